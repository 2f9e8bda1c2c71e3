/* Loops of the matrix kernels that are the same C for every instruction set, and vectorized for each where they are included. */
#ifndef DEVICE_CPU_CPU_MATMUL_LOOPS_H
#define DEVICE_CPU_CPU_MATMUL_LOOPS_H

#include <string.h>

#include "base/sanitize.h"
#include "device/cpu/cpu_matmul.h"
#include "formats/scalar.h"

/* They must be compiled for the instruction set of the function they are in, which C has no word for: gcc and clang have this one. */
#define CPU_LOOP UNCHECKED_LOOP __attribute__((always_inline, unused)) static inline

enum { Q8_BIAS = 12 };

/* The bits of the largest magnitude. */
CPU_LOOP uint32_t q8_largest(const float *x)
{
    int32_t largest = 0;
    for (int i = 0; i < CPU_Q8_BLOCK; i++) {
        int32_t bits = (int32_t)(float_bits(x[i]) & 0x7FFFFFFFu);
        largest = bits > largest ? bits : largest;
    }
    return (uint32_t)largest;
}

/* One block of 32 to its 16 even and 16 odd integers. Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits. */
CPU_LOOP float q8_block(const float *x, int8_t *even, int8_t *odd)
{
    uint32_t largest = q8_largest(x);
    float amax = float_of_bits(largest);
    float inverse = largest >= 0x7F800000u || amax < 0x1p-100f ? 0.0f : 127.0f / amax;
    int32_t word[CPU_Q8_BLOCK];
    for (int i = 0; i < CPU_Q8_BLOCK; i++)
        word[i] = (int32_t)float_bits(x[i] * inverse + 12582912.0f);
    for (int i = 0; i < CPU_Q8_BLOCK / 2; i++) {
        even[i] = (int8_t)(word[2 * i] & 0xFF);
        odd[i] = (int8_t)(word[2 * i + 1] & 0xFF);
    }
    if (inverse == 0.0f) { /* an infinite value times zero is no integer */
        memset(even, 0, CPU_Q8_BLOCK / 2);
        memset(odd, 0, CPU_Q8_BLOCK / 2);
        return largest >= 0x7F800000u ? float_of_bits(0x7FC00000u) : 0.0f;
    }
    return amax / 127.0f * 0.5f;
}

CPU_LOOP void q8_bias(const int8_t *even, const int8_t *odd, int half, int16_t out[2])
{
    int sum[2] = {0};
    for (int i = half * 8; i < half * 8 + 8; i++)
        sum[i / 2 % 2] += even[i] + odd[i];
    out[0] = (int16_t)(-Q8_BIAS * sum[0]);
    out[1] = (int16_t)(-Q8_BIAS * sum[1]);
}

CPU_LOOP void q8_chunk(const float *x, cpu_q8 *out)
{
    for (int b = 0; b < CPU_Q8_BLOCKS; b++) {
        int8_t *even = out->values + b / 4 * 128 + b % 4 * 16, *odd = even + 64;
        int16_t(*halves)[2] = &out->half_bias[b / 4][cpu_q8_half_place(b % 4 * 2)], *both = out->bias[cpu_q8_place(b)];
        out->scales[cpu_q8_place(b)] = q8_block(x + b * CPU_Q8_BLOCK, even, odd);
        q8_bias(even, odd, 0, halves[0]);
        q8_bias(even, odd, 1, halves[1]);
        both[0] = (int16_t)(halves[0][0] + halves[1][0]);
        both[1] = (int16_t)(halves[0][1] + halves[1][1]);
    }
}

CPU_LOOP void q8_quantize(const float *x, int64_t n, cpu_q8 *out)
{
    for (; n >= CPU_Q8_CHUNK; n -= CPU_Q8_CHUNK, x += CPU_Q8_CHUNK)
        q8_chunk(x, out++);
    if (n > 0) {
        float end[CPU_Q8_CHUNK] = {0};
        memcpy(end, x, (size_t)n * sizeof *end);
        q8_chunk(end, out);
    }
}

/* The scale of an mxfp4 block, with infinity for 255. */
CPU_LOOP float q8_e8m0(uint8_t code)
{
    return float_of_bits(code == 0 ? 0x00400000u : (uint32_t)code << 23);
}

/* The packed codes and scales of one row of the matrix. */
typedef struct q8_column {
    const uint8_t *codes, *scales;
} q8_column;

CPU_LOOP q8_column q8_column_at(const matrix *w, int64_t row)
{
    int64_t per_row = w->cols / w->format->block_cols;
    return (q8_column){w->data + row * (w->cols / 2), w->scales + row * per_row};
}

/* The last chunk of a column, with zeros behind it. A zero scale code does not matter: the input's scale is zero there. */
typedef struct q8_end {
    uint8_t codes[CPU_Q8_CHUNK / 2], scales[CPU_Q8_CHUNK / 16];
} q8_end;

CPU_LOOP q8_column q8_end_of(q8_column c, int64_t cols, int block, q8_end *end)
{
    int64_t whole = cols / CPU_Q8_CHUNK * CPU_Q8_CHUNK, left = cols - whole;
    memset(end, 0, sizeof *end);
    memcpy(end->codes, c.codes + whole / 2, (size_t)left / 2);
    memcpy(end->scales, c.scales + whole / block, (size_t)(left / block));
    return (q8_column){end->codes, end->scales};
}

#endif
