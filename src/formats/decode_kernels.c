/* Decoding for any CPU, and the table of variants. */
#include "formats/decode_kernels.h"

#include <stddef.h>
#include <string.h>

#include "base/sanitize.h"
#include "formats/scalar.h"

/* A bf16 is the upper half of an f32. */
UNCHECKED_LOOP static void generic_bf16(const uint8_t *codes, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, codes + 2 * i, sizeof code);
        uint32_t bits = (uint32_t)code << 16;
        memcpy(out + i, &bits, sizeof bits);
    }
}

static void generic_fp8(const uint8_t *restrict codes, int64_t count, float scale, float *restrict out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = e4m3_values[codes[i]] * scale;
}

#define PAIR(high, low) {low, high}
#define PAIRS(high)                                                                                     \
    PAIR(high, 0.0f), PAIR(high, 0.5f), PAIR(high, 1.0f), PAIR(high, 1.5f), PAIR(high, 2.0f),           \
    PAIR(high, 3.0f), PAIR(high, 4.0f), PAIR(high, 6.0f), PAIR(high, -0.0f), PAIR(high, -0.5f),         \
    PAIR(high, -1.0f), PAIR(high, -1.5f), PAIR(high, -2.0f), PAIR(high, -3.0f), PAIR(high, -4.0f), PAIR(high, -6.0f)

/* Both values of every byte: one load instead of two shifts and two loads. */
static const float e2m1_pairs[256][2] = {
    PAIRS(0.0f), PAIRS(0.5f), PAIRS(1.0f), PAIRS(1.5f), PAIRS(2.0f), PAIRS(3.0f), PAIRS(4.0f), PAIRS(6.0f),
    PAIRS(-0.0f), PAIRS(-0.5f), PAIRS(-1.0f), PAIRS(-1.5f), PAIRS(-2.0f), PAIRS(-3.0f), PAIRS(-4.0f), PAIRS(-6.0f)};

/* A whole block: `block` is a constant where this is inlined. (code * scale) * outer; MXFP4 passes outer = 1, which the
 * compiler removes. */
static inline void fp4_block(const uint8_t *restrict codes, int block, float scale, float outer, float *restrict out)
{
    for (int i = 0; i < block / 2; i++) {
        const float *pair = e2m1_pairs[codes[i]];
        out[2 * i] = pair[0] * scale * outer;
        out[2 * i + 1] = pair[1] * scale * outer;
    }
}

static void generic_mxfp4(const uint8_t *codes, const uint8_t *scales, int64_t blocks, float *out)
{
    for (int64_t b = 0; b < blocks; b++)
        fp4_block(codes + b * (MXFP4_BLOCK / 2), MXFP4_BLOCK, e8m0_decode(scales[b]), 1.0f, out + b * MXFP4_BLOCK);
}

static void generic_nvfp4(const uint8_t *codes, const uint8_t *scales, float outer, int64_t blocks, float *out)
{
    for (int64_t b = 0; b < blocks; b++)
        fp4_block(codes + b * (NVFP4_BLOCK / 2), NVFP4_BLOCK, e4m3_values[scales[b]], outer, out + b * NVFP4_BLOCK);
}

const decode_kernels decode_kernels_generic = {"generic", generic_bf16, generic_fp8, generic_mxfp4, generic_nvfp4};

/* __builtin_cpu_supports (gcc, clang) also asks whether the system saves the registers. */
const decode_kernels *decode_kernels_at(int index)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && index-- == 0)
        return &decode_kernels_avx2;
#endif
    return index == 0 ? &decode_kernels_generic : NULL;
}
