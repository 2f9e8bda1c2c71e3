/* The attention kernels for any CPU, and the table of variants. */
#include "device/cpu/cpu_attention_kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/sanitize.h"
#include "formats/scalar.h"

const float cpu_exp_series[CPU_EXP_TERMS] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f};

static void generic_pack(const float *x, int64_t x_stride, int heads, int64_t n, float *out)
{
    int lanes = cpu_head_lanes(heads);
    for (int64_t i = 0; i < n; i++)
        for (int h = 0; h < lanes; h++)
            out[i * lanes + h] = h < heads ? x[h * x_stride + i] : 0.0f;
}

/* Eight lanes of a panel against one key: a chain per lane. */
UNCHECKED_LOOP static void lane_chains(const float *restrict q, int lanes, const float *restrict key, int64_t n,
                                       float sum[restrict CPU_HEAD_LANES])
{
    for (int l = 0; l < CPU_HEAD_LANES; l++)
        sum[l] = 0.0f;
    for (int64_t d = 0; d < n; d++)
        for (int l = 0; l < CPU_HEAD_LANES; l++)
            sum[l] = fmaf(q[d * lanes + l], key[d], sum[l]);
}

static void generic_scores(const float *q, int lanes, const float *keys, int64_t key_stride, int count, int64_t n, float *y)
{
    for (int64_t first = 0; first < n; first += CPU_SCORE_BLOCK) {
        int64_t size = n - first < CPU_SCORE_BLOCK ? n - first : CPU_SCORE_BLOCK;
        for (int j = 0; j < count; j++) {
            for (int h = 0; h < lanes; h += CPU_HEAD_LANES) {
                float sum[CPU_HEAD_LANES], *to = y + (int64_t)j * lanes + h;
                lane_chains(q + first * lanes + h, lanes, keys + j * key_stride + first, size, sum);
                for (int l = 0; l < CPU_HEAD_LANES; l++)
                    to[l] = first == 0 ? sum[l] : to[l] + sum[l];
            }
        }
    }
}

/* e^x for x that is hardly above 0. */
static float exponential(float x)
{
    float shifted = fmaf(x, CPU_EXP_LOG2E, CPU_EXP_ROUND), n = shifted - CPU_EXP_ROUND, power, series = cpu_exp_series[0];
    float r = fmaf(-n, CPU_EXP_LN2_LOW, fmaf(-n, CPU_EXP_LN2_HIGH, x));
    uint32_t bits;
    if (x < CPU_EXP_LEAST)
        return 0.0f;
    for (int i = 1; i < CPU_EXP_TERMS; i++)
        series = fmaf(series, r, cpu_exp_series[i]);
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3F800000u;
    memcpy(&power, &bits, sizeof bits);
    return series * power;
}

static void generic_softmax_block(float *y, int lanes, int count, float scale, cpu_softmax *state)
{
    for (int h = 0; h < lanes; h++) {
        float largest = y[h];
        for (int j = 1; j < count; j++)
            largest = y[j * lanes + h] > largest ? y[j * lanes + h] : largest;
        largest *= scale;
        largest = state->largest[h] > largest ? state->largest[h] : largest;
        state->factor[h] = exponential(state->largest[h] - largest);
        state->largest[h] = largest;
        float sum = state->sum[h] * state->factor[h];
        for (int j = 0; j < count; j++)
            sum += y[j * lanes + h] = exponential(fmaf(y[j * lanes + h], scale, -largest));
        state->sum[h] = sum;
    }
}

UNCHECKED_LOOP static void add_one_fused(float *restrict out, float scale, const float *restrict v, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        out[k] = fmaf(scale, v[k], out[k]);
}

static void generic_weighted_sum(const cpu_weighted_sum *t)
{
    for (int h = 0; h < t->heads; h++)
        for (int j = 0; j < t->count; j++)
            add_one_fused(t->out + h * t->out_stride, t->p[j * t->p_vector + h * t->p_head], t->v + j * t->v_stride, t->n);
}

static bool generic_add_codes(const float *p, const uint8_t *codes, int64_t stride, const float *scales, int count, int64_t n, float *out)
{
    for (int j = 0; j < count; j++)
        for (int64_t k = 0; k < n; k++)
            out[k] = fmaf(p[j], e4m3_values[codes[j * stride + k]] * scales[j], out[k]);
    return true;
}

static void generic_index_scores(const float *q, int lanes, const float *weights, const float *keys, int count, int64_t n, float *out)
{
    for (int j = 0; j < count; j++) {
        float lane[CPU_HEAD_LANES] = {0};
        for (int h = 0; h < lanes; h += CPU_HEAD_LANES) {
            float sum[CPU_HEAD_LANES];
            lane_chains(q + h, lanes, keys + j * n, n, sum);
            for (int l = 0; l < CPU_HEAD_LANES; l++)
                lane[l] = fmaf(weights[h + l], sum[l] > 0.0f ? sum[l] : 0.0f, lane[l]);
        }
        for (int width = CPU_HEAD_LANES / 2; width > 0; width /= 2)
            for (int l = 0; l < width; l++)
                lane[l] += lane[l + width];
        out[j] = lane[0];
    }
}

static bool generic_range(const float *x, int n, float *least, float *most)
{
    *least = *most = x[0];
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        *least = x[i] < *least ? x[i] : *least;
        *most = x[i] > *most ? x[i] : *most;
    }
    return finite;
}

static void generic_count_buckets(const float *x, int n, float least, float scale, int32_t counts[CPU_SELECT_BUCKETS])
{
    for (int i = 0; i < n; i++)
        counts[(int)((x[i] - least) * scale)]++;
}

static void generic_pick(const float *x, int n, float least, float scale, int first, int32_t *out)
{
    for (int i = 0; i < n; i++)
        if ((int)((x[i] - least) * scale) >= first)
            *out++ = i;
}

const cpu_attention_kernels cpu_attention_kernels_generic = {
    "generic", generic_pack, generic_scores, generic_softmax_block, generic_weighted_sum, generic_add_codes, generic_index_scores,
    generic_range, generic_count_buckets, generic_pick,
};

/* __builtin_cpu_supports (gcc, clang) also asks whether the system saves the registers. */
const cpu_attention_kernels *cpu_attention_kernels_at(int index)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && index-- == 0)
        return &cpu_attention_kernels_avx2;
#endif
    return index == 0 ? &cpu_attention_kernels_generic : NULL;
}
