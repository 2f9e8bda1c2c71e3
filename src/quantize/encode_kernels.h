/* The table of encoding kernels, one row of functions per variant. Private to the quantizer.
 *
 * encode_generic.c, encode_avx2.c and encode_avx512.c each fill one table. Their results are equal bit by bit: every operation is an
 * integer one or a single IEEE operation on the same operands, and sums run in eight fixed lanes (value i into lane i % 8)
 * that are added as ((0+4)+(2+6)) + ((1+5)+(3+7)). */
#ifndef QUANTIZE_ENCODE_KERNELS_H
#define QUANTIZE_ENCODE_KERNELS_H

#include "quantize/encode.h"

enum { FP8_SIDE = 128, MXFP4_BLOCK = 32, NVFP4_BLOCK = 16, ENCODE_LANES = 8 };

/* What a row of 4-bit blocks is encoded with. */
typedef struct block_rule {
    uint32_t round_bits;     /* MXFP4: added to the bits of amax before its exponent is taken */
    float tensor_scale;      /* NVFP4 */
    bool search;             /* try neighbouring scales */
    const float *importance; /* of the first value; NULL: all 1 */
} block_rule;

typedef struct encode_kernels {
    /* The bits of the largest magnitude; from 0x7F800000 on: there is an infinity or a NaN. */
    uint32_t (*largest)(const float *x, int64_t count);
    void (*bf16)(const float *x, int64_t count, uint8_t *data);
    void (*fp8)(const float *x, int64_t count, float scale, uint8_t *codes); /* e4m3(x / scale) */
    void (*mxfp4)(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales);
    void (*nvfp4)(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales);
    /* Adds x (source) and y (result), count values, to the statistics. */
    void (*measure)(const float *x, const float *y, int64_t count, encode_stats *stats);
} encode_kernels;

extern const encode_kernels encode_kernels_generic;
#if defined(__x86_64__)
extern const encode_kernels encode_kernels_avx2;
extern const encode_kernels encode_kernels_avx512;
#endif

#endif
