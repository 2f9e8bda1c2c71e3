/* The loops that decode weights and cache entries, one row of functions per variant, and the choice between them. They trust their
 * caller with every size.
 *
 * All variants give the same bits: a code becomes an exact f32, and each product is one f32 multiplication, in the order that is written
 * here. Codes and scales may lie at any address. */
#ifndef FORMATS_DECODE_KERNELS_H
#define FORMATS_DECODE_KERNELS_H

#include <stdint.h>

enum { MXFP4_BLOCK = 32, NVFP4_BLOCK = 16 };

typedef struct decode_kernels {
    const char *name; /* "avx2" */
    void (*bf16)(const uint8_t *codes, int64_t count, float *out);
    void (*fp8)(const uint8_t *codes, int64_t count, float scale, float *out); /* e4m3 * scale */
    /* Whole blocks, two e2m1 codes to a byte, the even value in the low nibble. */
    void (*mxfp4)(const uint8_t *codes, const uint8_t *scales, int64_t blocks, float *out);              /* e2m1 * e8m0 */
    void (*nvfp4)(const uint8_t *codes, const uint8_t *scales, float outer, int64_t blocks, float *out); /* (e2m1 * e4m3) * outer */
} decode_kernels;

extern const decode_kernels decode_kernels_generic;
#if defined(__x86_64__)
extern const decode_kernels decode_kernels_avx2;
#endif

/* The variants that this build on this CPU can run, the best first, the generic one last; NULL behind it. */
const decode_kernels *decode_kernels_at(int index);

#endif
