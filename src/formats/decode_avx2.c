/* Decoding for CPUs with AVX2.
 *
 * An e2m1 value is exact in bf16, so two byte shuffles look up the upper and the lower byte of 32 codes at once. An e4m3 code, its
 * exponent and mantissa moved to where an f32 has them, is the value times 2^-120, also below the smallest normal one. */
#include "formats/decode_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/sanitize.h"
#include "formats/scalar.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per
 * file. What is included above is compiled for any CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

enum { WIDTH = 8 };

UNCHECKED_LOOP static void avx2_bf16(const uint8_t *codes, int64_t count, float *out)
{
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(codes + 2 * i)));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_slli_epi32(wide, 16));
    }
    decode_kernels_generic.bf16(codes + 2 * i, count - i, out + i);
}

UNCHECKED_LOOP static void avx2_fp8(const uint8_t *codes, int64_t count, float scale, float *out)
{
    const __m256 raise = _mm256_set1_ps(0x1p120f), by = _mm256_set1_ps(scale);
    const __m256i low = _mm256_set1_epi32(0x7F), nan = _mm256_set1_epi32(0x7FC00000);
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        __m256i magnitude = _mm256_and_si256(code, low), sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 7), 31);
        __m256i value = _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), raise));
        value = _mm256_blendv_epi8(value, nan, _mm256_cmpeq_epi32(magnitude, low));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(value, sign)), by));
    }
    decode_kernels_generic.fp8(codes + i, count - i, scale, out + i);
}

/* The low nibbles of 16 bytes in the even places, the high ones in the odd places. The codes are dealt out so that the interleaving
 * below, which works on each half of a register, gives values in order: codes 0-3 8-11 16-19 24-27 to the lower half, the others to
 * the upper one. */
UNCHECKED_LOOP static inline __m256i spread_nibbles(const uint8_t *bytes)
{
    const __m256i deal = _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13,
                                          2, 2, 3, 3, 6, 6, 7, 7, 10, 10, 11, 11, 14, 14, 15, 15);
    __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)bytes));
    __m256i twice = _mm256_shuffle_epi8(all, deal);
    return _mm256_or_si256(_mm256_and_si256(twice, _mm256_set1_epi16(0x000F)),
                           _mm256_and_si256(_mm256_srli_epi16(twice, 4), _mm256_set1_epi16(0x0F00)));
}

/* 32 e2m1 codes of 16 bytes as f32, in order. */
UNCHECKED_LOOP static inline void e2m1_values_of(const uint8_t *bytes, __m256 out[4])
{
    const __m256i zero = _mm256_setzero_si256();
    const __m256i high_bytes = _mm256_broadcastsi128_si256(_mm_set_epi64x((long long)0xC0C0C0C0BFBFBF80u, 0x404040403F3F3F00));
    const __m256i low_bytes = _mm256_broadcastsi128_si256(_mm_set_epi64x((long long)0xC0804000C0800000u, (long long)0xC0804000C0800000u));
    __m256i codes = spread_nibbles(bytes);
    __m256i high = _mm256_shuffle_epi8(high_bytes, codes), low = _mm256_shuffle_epi8(low_bytes, codes);
    __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
    out[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, first));
    out[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, first));
    out[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, second));
    out[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, second));
}

UNCHECKED_LOOP static void avx2_mxfp4(const uint8_t *codes, const uint8_t *scales, int64_t blocks, float *out)
{
    for (int64_t b = 0; b < blocks; b++) {
        __m256 v[4], scale = _mm256_set1_ps(e8m0_decode(scales[b]));
        e2m1_values_of(codes + b * (MXFP4_BLOCK / 2), v);
        for (int i = 0; i < 4; i++)
            _mm256_storeu_ps(out + b * MXFP4_BLOCK + i * WIDTH, _mm256_mul_ps(v[i], scale));
    }
}

/* Two blocks at a time: together they have 32 codes. */
UNCHECKED_LOOP static void avx2_nvfp4(const uint8_t *codes, const uint8_t *scales, float outer, int64_t blocks, float *out)
{
    int64_t b = 0;
    for (; b + 2 <= blocks; b += 2) {
        __m256 v[4], all = _mm256_set1_ps(outer);
        e2m1_values_of(codes + b * (NVFP4_BLOCK / 2), v);
        for (int i = 0; i < 4; i++) {
            __m256 scale = _mm256_set1_ps(e4m3_values[scales[b + i / 2]]);
            _mm256_storeu_ps(out + b * NVFP4_BLOCK + i * WIDTH, _mm256_mul_ps(_mm256_mul_ps(v[i], scale), all));
        }
    }
    decode_kernels_generic.nvfp4(codes + b * (NVFP4_BLOCK / 2), scales + b, outer, blocks - b, out + b * NVFP4_BLOCK);
}

const decode_kernels decode_kernels_avx2 = {"avx2", avx2_bf16, avx2_fp8, avx2_mxfp4, avx2_nvfp4};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
