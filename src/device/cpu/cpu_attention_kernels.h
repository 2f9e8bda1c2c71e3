/* The inner loops of attention and of the indexer, one row of functions per variant, and the choice between them.
 *
 * All variants give the same bits, whatever the width of their registers: vectors run over independent results (heads, or elements of a
 * latent), and every sum is one chain of fused multiply-adds in ascending order, written here per function.
 *
 * Queries come in panels, transposed so that the heads lie side by side: q[d][lanes], where `lanes` is the number of heads rounded up to a
 * multiple of CPU_HEAD_LANES, with zeros in the lanes that have no head. A key's value then meets all heads at once, and keys are read
 * as they lie. */
#ifndef DEVICE_CPU_CPU_ATTENTION_KERNELS_H
#define DEVICE_CPU_CPU_ATTENTION_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CPU_HEAD_LANES = 8,       /* panels are multiples of this */
    CPU_HEAD_TILE = 16,       /* most lanes of `scores` and `softmax_block` */
    CPU_SCORE_BLOCK = 128,    /* values of one chain in `scores` */
    CPU_FP8_BLOCK = 128,      /* most values of `add_codes` that share a scale */
    CPU_SELECT_BUCKETS = 2048 /* of `count_buckets` */
};

static inline int cpu_head_lanes(int heads)
{
    return (heads + CPU_HEAD_LANES - 1) / CPU_HEAD_LANES * CPU_HEAD_LANES;
}

/* A softmax taken block by block, so that a key is needed once. A block's y[j][h] becomes e^(y[j][h] * scale - largest[h]), where
 * largest is that of this and all earlier blocks; factor[h] is what earlier results must be multiplied by (1 unless the largest has
 * grown). The sum has been already: sum = sum * factor, then + y[0], + y[1] ... Begin with largest -INFINITY and sum 0; divide by
 * the sum at the end. */
typedef struct cpu_softmax {
    float largest[CPU_HEAD_TILE], sum[CPU_HEAD_TILE], factor[CPU_HEAD_TILE];
} cpu_softmax;

/* out[h][k] = ((out[h][k] + p[0][h] * v[0][k]) + p[1][h] * v[1][k]) + ..., each step fused, for h < heads and k < n. */
typedef struct cpu_weighted_sum {
    const float *p; /* p[j][h] is p[j * p_vector + h * p_head] */
    int64_t p_vector, p_head;
    int heads;
    const float *v; /* `count` vectors of n values, v_stride apart */
    int64_t v_stride, n;
    int count;
    float *out;
    int64_t out_stride;
} cpu_weighted_sum;

typedef struct cpu_attention_kernels {
    const char *name; /* "avx2" */
    /* A panel: out[i][h] = x[h * x_stride + i] for h < heads, i < n. */
    void (*pack)(const float *x, int64_t x_stride, int heads, int64_t n, float *out);
    /* y[j][h] = (b0 + b1) + b2 ..., where b are the sums of q[d][h] * keys[j][d] over blocks of CPU_SCORE_BLOCK values of d, each a chain
     * from zero; j < count, keys are key_stride apart, lanes is 8 or 16. */
    void (*scores)(const float *q, int lanes, const float *keys, int64_t key_stride, int count, int64_t n, float *y);
    /* One block of a softmax over many: see cpu_softmax. The exponential is written in cpu_attention_kernels.c; it is within 2 ulp and
     * gives 0 below e^-87. */
    void (*softmax_block)(float *y, int lanes, int count, float scale, cpu_softmax *state);
    void (*weighted_sum)(const cpu_weighted_sum *t);
    /* out[k] = (out[k] + p[0] * w[0][k]) + p[1] * w[1][k] ..., each step fused, for k < n, where w[j][k] is the e4m3 code at
     * codes[j * stride + k] times scales[j], rounded. False, with out undefined, when a code or a scale is one that the variant leaves to
     * weighted_sum: not a number, or a scale above 2^7. */
    bool (*add_codes)(const float *p, const uint8_t *codes, int64_t stride, const float *scales, int count, int64_t n, float *out);
    /* out[j] = sum over h of weights[h] * max(0, q[.][h] . keys[j]). The products are one chain; the heads go to lane h % 8, and the lanes
     * fold, 4 onto 0, then 2, 1. Any number of lanes, keys lie without gaps. */
    void (*index_scores)(const float *q, int lanes, const float *weights, const float *keys, int count, int64_t n, float *out);
    /* Smallest and largest of n >= 1 values; false when one is not finite. */
    bool (*range)(const float *x, int n, float *least, float *most);
    /* Counts how many x fall into bucket (int)((x - least) * scale), which the caller has made sure is below CPU_SELECT_BUCKETS. */
    void (*count_buckets)(const float *x, int n, float least, float scale, int32_t counts[CPU_SELECT_BUCKETS]);
    /* The indices of x in the buckets from `first` on, ascending. */
    void (*pick)(const float *x, int n, float least, float scale, int first, int32_t *out);
} cpu_attention_kernels;

extern const cpu_attention_kernels cpu_attention_kernels_generic;
#if defined(__x86_64__)
extern const cpu_attention_kernels cpu_attention_kernels_avx2;
#endif

/* The variants that this build on this CPU can run, the best first, the generic one last; NULL behind it. */
const cpu_attention_kernels *cpu_attention_kernels_at(int index);

/* Constants of the exponential: e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln 2 / 2; ln 2 in two parts, the first of which times n
 * is exact; e^r by its series up to r^7 / 7!, whose error is below 2^-27. Adding CPU_EXP_ROUND rounds to an integer and leaves it in the
 * lowest bits. */
#define CPU_EXP_LEAST -87.0f
#define CPU_EXP_ROUND 0x1.8p23f
#define CPU_EXP_LOG2E 0x1.715476p0f
#define CPU_EXP_LN2_HIGH 0x1.62ep-1f
#define CPU_EXP_LN2_LOW 0x1.0bfbe8p-15f
enum { CPU_EXP_TERMS = 8 };
extern const float cpu_exp_series[CPU_EXP_TERMS]; /* 1/7!, 1/6!, ... 1 */

#endif
