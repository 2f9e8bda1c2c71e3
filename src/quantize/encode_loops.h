/* The encoding loops in plain C, written so that a compiler turns them into vector code for whatever instruction set is on
 * where this file is included: no branches on values, fixed trip counts, sums in eight lanes. Each variant includes
 * it once. */
#ifndef QUANTIZE_ENCODE_LOOPS_H
#define QUANTIZE_ENCODE_LOOPS_H

#include <math.h>

#include "formats/scalar.h"
#include "quantize/encode_kernels.h"

/* Search ranges. MXFP4: one step of the exponent each way. NVFP4: codes around the rule's own. */
enum { NVFP4_SEARCH_BELOW = 2, NVFP4_SEARCH_ABOVE = 6, NVFP4_SEARCH_CODES = NVFP4_SEARCH_BELOW + 1 + NVFP4_SEARCH_ABOVE };

static inline uint32_t loop_largest(const float *x, int64_t count)
{
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(float_bits(x[i]) & 0x7FFFFFFFu);
        largest = bits > largest ? bits : largest;
    }
    return (uint32_t)largest;
}

static inline void loop_bf16(const float *x, int64_t count, uint8_t *data)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = float_bits(x[i]);
        uint16_t code = (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
        memcpy(data + 2 * i, &code, sizeof code);
    }
}

/* e4m3_encode for finite values, without branches. */
static inline uint32_t e4m3_code(float value)
{
    uint32_t bits = float_bits(value);
    int32_t magnitude = (int32_t)(bits & 0x7FFFFFFFu), top = 0x43E00000; /* 448 */
    uint32_t m = (uint32_t)(magnitude < top ? magnitude : top);
    uint32_t normal = ((m + 0x7FFFFu + (m >> 20 & 1u)) >> 20) - ((127u - 7u) << 3);
    uint32_t small = float_bits(float_of_bits(m) + 16384.0f) - 0x46800000u; /* steps of 2^-9, the step of an f32 near 2^14 */
    return (bits >> 24 & 0x80u) | (m < 0x3C800000u ? small : normal);      /* 2^-6, the smallest normal one */
}

static inline void loop_fp8(const float *x, int64_t count, float scale, uint8_t *codes)
{
    for (int64_t i = 0; i < count; i++)
        codes[i] = (uint8_t)e4m3_code(x[i] / scale);
}

/* ---- 4-bit blocks ---- */

static inline float magnitude_of(float value)
{
    return float_of_bits(float_bits(value) & 0x7FFFFFFFu);
}

/* e2m1_encode for finite values: how many midpoints lie below; a midpoint itself goes to the even code. */
static inline uint32_t e2m1_code(float value)
{
    float a = magnitude_of(value);
    uint32_t code = (uint32_t)(a > 0.25f) + (uint32_t)(a >= 0.75f) + (uint32_t)(a > 1.25f) + (uint32_t)(a >= 1.75f) +
                    (uint32_t)(a > 2.5f) + (uint32_t)(a >= 3.5f) + (uint32_t)(a > 5.0f);
    return (float_bits(value) >> 28 & 8u) | code;
}

/* The magnitude that e2m1_code would stand for. */
static inline float e2m1_round(float a)
{
    float low = (a > 0.25f ? 0.5f : 0.0f) + (a >= 0.75f ? 0.5f : 0.0f) + (a > 1.25f ? 0.5f : 0.0f) + (a >= 1.75f ? 0.5f : 0.0f);
    return low + (a > 2.5f ? 1.0f : 0.0f) + (a >= 3.5f ? 1.0f : 0.0f) + (a > 5.0f ? 2.0f : 0.0f);
}

static inline void fp4_store(const float *scaled, int count, uint8_t *data)
{
    for (int i = 0; i < count / 2; i++)
        data[i] = (uint8_t)(e2m1_code(scaled[2 * i]) | e2m1_code(scaled[2 * i + 1]) << 4);
}

static inline double lanes_sum(const double *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static inline uint32_t mxfp4_scale_code(uint32_t amax_bits, uint32_t round_bits)
{
    uint32_t exponent = (amax_bits + round_bits) >> 23;
    return exponent < 2 ? 0 : exponent - 2;
}

/* 2^(127 - code), code 0 .. 254. */
static inline float mxfp4_inverse(uint32_t code)
{
    return code == 254 ? 0x1p-127f : float_of_bits((254u - code) << 23);
}

/* The squared error of a block in units of its scale squared. a - e2m1_round(a) is exact. */
static inline double mxfp4_error(const float *x, float inverse, const float *importance)
{
    double lane[ENCODE_LANES] = {0};
    for (int i = 0; i < MXFP4_BLOCK; i += ENCODE_LANES)
        for (int l = 0; l < ENCODE_LANES; l++) {
            float a = magnitude_of(x[i + l] * inverse);
            double e = (double)(a - e2m1_round(a));
            lane[l] += importance ? e * e * (double)importance[i + l] : e * e;
        }
    return lanes_sum(lane);
}

/* The code of the rule, one less or one more: the least error, the rule's own and then the lower one when equal. */
static inline uint32_t mxfp4_choose(uint32_t own, double below, double equal, double above)
{
    uint32_t best = own;
    if (own > 0 && below * 0.25 < equal)
        best = own - 1, equal = below * 0.25;
    return own < 254 && above * 4.0 < equal ? own + 1 : best;
}

static inline uint32_t mxfp4_search(const float *x, uint32_t own, const float *importance)
{
    double sums[3];
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t code = own + k == 0 ? 0 : own + k - 1;
        sums[k] = mxfp4_error(x, mxfp4_inverse(code < 254 ? code : 254), importance);
    }
    return mxfp4_choose(own, sums[0], sums[1], sums[2]);
}

static inline void loop_mxfp4(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales)
{
    const float *importance = rule->importance;
    for (int64_t b = 0; b < blocks; b++, x += MXFP4_BLOCK, data += MXFP4_BLOCK / 2) {
        uint32_t code = mxfp4_scale_code(loop_largest(x, MXFP4_BLOCK), rule->round_bits);
        if (rule->search)
            code = mxfp4_search(x, code, importance ? importance + b * MXFP4_BLOCK : NULL);
        float inverse = mxfp4_inverse(code), scaled[MXFP4_BLOCK];
        for (int i = 0; i < MXFP4_BLOCK; i++)
            scaled[i] = x[i] * inverse;
        fp4_store(scaled, MXFP4_BLOCK, data);
        scales[b] = (uint8_t)code;
    }
}

/* The squared error of a block with a given scale code, against the values as they will be decoded. */
static inline double nvfp4_error(const float *x, uint32_t code, float tensor_scale, const float *importance)
{
    float block_scale = e4m3_values[code], scale = block_scale * tensor_scale;
    double lane[ENCODE_LANES] = {0};
    for (int i = 0; i < NVFP4_BLOCK; i += ENCODE_LANES)
        for (int l = 0; l < ENCODE_LANES; l++) {
            float a = magnitude_of(x[i + l]), y = e2m1_round(a / scale) * block_scale * tensor_scale;
            double e = (double)a - (double)y;
            lane[l] += importance ? e * e * (double)importance[i + l] : e * e;
        }
    return lanes_sum(lane);
}

/* The codes that the search tries. */
typedef struct code_range {
    uint32_t first, last; /* of 1 .. 0x7E: the scale is positive and a number */
} code_range;

static inline code_range nvfp4_search_range(uint32_t own)
{
    return (code_range){own > NVFP4_SEARCH_BELOW ? own - NVFP4_SEARCH_BELOW : 1,
                        own + NVFP4_SEARCH_ABOVE < 0x7E ? own + NVFP4_SEARCH_ABOVE : 0x7E};
}

/* The least of sums[0 .. last-first]; when equal the rule's own, then the lowest code. */
static inline uint32_t nvfp4_choose(uint32_t own, code_range range, const double *sums)
{
    uint32_t best = own;
    for (uint32_t code = range.first; code <= range.last; code++)
        if (sums[code - range.first] < sums[best - range.first])
            best = code;
    return best;
}

static inline uint32_t nvfp4_search(const float *x, uint32_t own, float tensor_scale, const float *importance)
{
    double sums[NVFP4_SEARCH_CODES];
    code_range range = nvfp4_search_range(own);
    for (uint32_t code = range.first; code <= range.last; code++)
        sums[code - range.first] = nvfp4_error(x, code, tensor_scale, importance);
    return nvfp4_choose(own, range, sums);
}

/* The scale code of a block of 16 by the rule: e4m3(amax / (6 * tensor_scale)); for a block of zeros 1, as modelopt has it. */
static inline uint32_t nvfp4_scale_code(uint32_t amax_bits, float tensor_scale)
{
    return amax_bits == 0 ? 0x38 : e4m3_code(float_of_bits(amax_bits) / (6.0f * tensor_scale));
}

static inline void loop_nvfp4(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales)
{
    const float *importance = rule->importance;
    for (int64_t b = 0; b < blocks; b++, x += NVFP4_BLOCK, data += NVFP4_BLOCK / 2) {
        uint32_t amax = loop_largest(x, NVFP4_BLOCK), code = nvfp4_scale_code(amax, rule->tensor_scale);
        float scale = e4m3_values[code] * rule->tensor_scale;
        if (rule->search && scale > 0.0f && amax > 0) {
            code = nvfp4_search(x, code, rule->tensor_scale, importance ? importance + b * NVFP4_BLOCK : NULL);
            scale = e4m3_values[code] * rule->tensor_scale;
        }
        float scaled[NVFP4_BLOCK];
        for (int i = 0; i < NVFP4_BLOCK; i++)
            scaled[i] = scale > 0.0f ? x[i] / scale : 0.0f;
        fp4_store(scaled, NVFP4_BLOCK, data);
        scales[b] = (uint8_t)code;
    }
}

/* ---- statistics ---- */

typedef struct measure_lanes {
    double x[ENCODE_LANES], y[ENCODE_LANES], e[ENCODE_LANES], max[ENCODE_LANES]; /* sums of x^2, y^2, (x-y)^2; largest |x-y| */
} measure_lanes;

static inline void measure_step(const float *x, const float *y, int count, measure_lanes *lanes)
{
    for (int l = 0; l < count; l++) {
        double a = (double)x[l], b = (double)y[l], e = a - b, size = fabs(e);
        lanes->x[l] += a * a;
        lanes->y[l] += b * b;
        lanes->e[l] += e * e;
        lanes->max[l] = size > lanes->max[l] ? size : lanes->max[l];
    }
}

static inline void measure_finish(const measure_lanes *lanes, int64_t count, encode_stats *stats)
{
    stats->values += count;
    stats->source_squares += lanes_sum(lanes->x);
    stats->result_squares += lanes_sum(lanes->y);
    stats->error_squares += lanes_sum(lanes->e);
    for (int l = 0; l < ENCODE_LANES; l++)
        stats->max_error = lanes->max[l] > stats->max_error ? lanes->max[l] : stats->max_error;
}

static inline void loop_measure(const float *x, const float *y, int64_t count, encode_stats *stats)
{
    measure_lanes lanes = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + ENCODE_LANES <= count; i += ENCODE_LANES)
        measure_step(x + i, y + i, ENCODE_LANES, &lanes);
    measure_step(x + i, y + i, (int)(count - i), &lanes);
    measure_finish(&lanes, count, stats);
}

#endif
