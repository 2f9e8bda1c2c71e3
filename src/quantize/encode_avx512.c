/* Encoding kernels for CPUs with AVX-512 (F, BW, VL): sixteen values at a time, the same operations as encode_loops.h on each.
 * Sums run in one register of eight lanes: of sixteen values the first eight are added, then the others. */
#include "quantize/encode_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "formats/scalar.h"

/* As in encode_avx2.c. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl")
#endif

#include "quantize/encode_loops.h"

enum { WIDTH = 16, HALF = WIDTH / 2 };

static inline __m512 magnitudes(__m512 v)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7FFFFFFF)));
}

static inline uint32_t horizontal_max(__m512i v)
{
    __m256i m = _mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(n);
}

static uint32_t avx512_largest(const float *x, int64_t count)
{
    __m512i largest = _mm512_setzero_si512();
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        largest = _mm512_max_epi32(largest, _mm512_castps_si512(magnitudes(_mm512_loadu_ps(x + i))));
    uint32_t first = horizontal_max(largest), rest = loop_largest(x + i, count - i);
    return first > rest ? first : rest;
}

/* ---- fp8 ---- */

static inline __m512i e4m3_codes(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i m = _mm512_min_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF)), _mm512_set1_epi32(0x43E00000));
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(m, 20), _mm512_set1_epi32(1));
    __m512i normal = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(m, _mm512_set1_epi32(0x7FFFF)), odd), 20);
    normal = _mm512_sub_epi32(normal, _mm512_set1_epi32((127 - 7) << 3));
    __m512 raised = _mm512_add_ps(_mm512_castsi512_ps(m), _mm512_set1_ps(16384.0f));
    __m512i small = _mm512_sub_epi32(_mm512_castps_si512(raised), _mm512_set1_epi32(0x46800000));
    __mmask16 is_small = _mm512_cmplt_epi32_mask(m, _mm512_set1_epi32(0x3C800000));
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    return _mm512_or_si512(_mm512_mask_blend_epi32(is_small, normal, small), sign);
}

static void avx512_fp8(const float *x, int64_t count, float scale, uint8_t *codes)
{
    __m512 divisor = _mm512_set1_ps(scale);
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        __m512i c = e4m3_codes(_mm512_div_ps(_mm512_loadu_ps(x + i), divisor));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(c));
    }
    loop_fp8(x + i, count - i, scale, codes + i);
}

/* ---- 4-bit blocks ---- */

/* How many midpoints lie below each magnitude: its code. */
static inline __m512i e2m1_magnitude_codes(__m512 a)
{
    const __m512i one = _mm512_set1_epi32(1);
#define PASSED(t, how) _mm512_cmp_ps_mask(a, _mm512_set1_ps(t), how)
    __m512i low = _mm512_maskz_mov_epi32(PASSED(0.25f, _CMP_GT_OQ), one);
    __m512i high = _mm512_maskz_mov_epi32(PASSED(2.5f, _CMP_GT_OQ), one);
    low = _mm512_mask_add_epi32(low, PASSED(0.75f, _CMP_GE_OQ), low, one);
    high = _mm512_mask_add_epi32(high, PASSED(3.5f, _CMP_GE_OQ), high, one);
    low = _mm512_mask_add_epi32(low, PASSED(1.25f, _CMP_GT_OQ), low, one);
    high = _mm512_mask_add_epi32(high, PASSED(5.0f, _CMP_GT_OQ), high, one);
    low = _mm512_mask_add_epi32(low, PASSED(1.75f, _CMP_GE_OQ), low, one);
#undef PASSED
    return _mm512_add_epi32(low, high);
}

static inline __m512 e2m1_rounded(__m512 a)
{
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, 0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    return _mm512_permutexvar_ps(e2m1_magnitude_codes(a), table);
}

/* Sixteen codes in eight bytes. */
static inline void e2m1_store(__m512 v, uint8_t *data)
{
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(v), 28), _mm512_set1_epi32(8));
    __m128i codes = _mm512_cvtepi32_epi8(_mm512_or_si512(e2m1_magnitude_codes(magnitudes(v)), sign));
    __m128i pairs = _mm_maddubs_epi16(codes, _mm_set1_epi16(0x1001)); /* even + 16 * odd */
    _mm_storel_epi64((__m128i *)(void *)data, _mm_packus_epi16(pairs, pairs));
}

static inline double lanes_total(__m512d s)
{
    __m256d by_four = _mm256_add_pd(_mm512_castpd512_pd256(s), _mm512_extractf64x4_pd(s, 1));
    __m128d by_two = _mm_add_pd(_mm256_castpd256_pd128(by_four), _mm256_extractf128_pd(by_four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(by_two, _mm_unpackhi_pd(by_two, by_two)));
}

static inline __m512d widen_low(__m512 v)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}

static inline __m512d widen_high(__m512 v)
{
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(v), 1)));
}

/* sum + e * e, times eight weights unless they are NULL. */
static inline __m512d add_squares(__m512d sum, __m512d e, const float *weights)
{
    __m512d square = _mm512_mul_pd(e, e);
    if (weights)
        square = _mm512_mul_pd(square, _mm512_cvtps_pd(_mm256_loadu_ps(weights)));
    return _mm512_add_pd(sum, square);
}

static inline double avx512_mxfp4_error(const __m512 *v, uint32_t code, const float *importance)
{
    __m512 inverse = _mm512_set1_ps(mxfp4_inverse(code));
    __m512d sum = _mm512_setzero_pd();
    for (int k = 0; k < MXFP4_BLOCK / WIDTH; k++) {
        __m512 a = magnitudes(_mm512_mul_ps(v[k], inverse)), e = _mm512_sub_ps(a, e2m1_rounded(a));
        sum = add_squares(sum, widen_low(e), importance ? importance + k * WIDTH : NULL);
        sum = add_squares(sum, widen_high(e), importance ? importance + k * WIDTH + HALF : NULL);
    }
    return lanes_total(sum);
}

static inline uint32_t avx512_mxfp4_search(const __m512 *v, uint32_t own, const float *importance)
{
    double below = avx512_mxfp4_error(v, own > 0 ? own - 1 : 0, importance), equal = avx512_mxfp4_error(v, own, importance);
    return mxfp4_choose(own, below, equal, avx512_mxfp4_error(v, own < 254 ? own + 1 : 254, importance));
}

static void avx512_mxfp4(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales)
{
    const float *importance = rule->importance;
    for (int64_t b = 0; b < blocks; b++, x += MXFP4_BLOCK, data += MXFP4_BLOCK / 2) {
        __m512 v[2] = {_mm512_loadu_ps(x), _mm512_loadu_ps(x + WIDTH)};
        __m512i largest = _mm512_max_epi32(_mm512_castps_si512(magnitudes(v[0])), _mm512_castps_si512(magnitudes(v[1])));
        uint32_t code = mxfp4_scale_code(horizontal_max(largest), rule->round_bits);
        if (rule->search)
            code = avx512_mxfp4_search(v, code, importance ? importance + b * MXFP4_BLOCK : NULL);
        __m512 inverse = _mm512_set1_ps(mxfp4_inverse(code));
        e2m1_store(_mm512_mul_ps(v[0], inverse), data);
        e2m1_store(_mm512_mul_ps(v[1], inverse), data + WIDTH / 2);
        scales[b] = (uint8_t)code;
    }
}

static inline double avx512_nvfp4_error(__m512 v, uint32_t code, float tensor_scale, const float *importance)
{
    __m512 block_scale = _mm512_set1_ps(e4m3_values[code]), outer = _mm512_set1_ps(tensor_scale), a = magnitudes(v);
    __m512 scaled = _mm512_div_ps(a, _mm512_mul_ps(block_scale, outer));
    __m512 y = _mm512_mul_ps(_mm512_mul_ps(e2m1_rounded(scaled), block_scale), outer);
    __m512d sum = _mm512_setzero_pd();
    sum = add_squares(sum, _mm512_sub_pd(widen_low(a), widen_low(y)), importance);
    sum = add_squares(sum, _mm512_sub_pd(widen_high(a), widen_high(y)), importance ? importance + HALF : NULL);
    return lanes_total(sum);
}

static inline uint32_t avx512_nvfp4_search(__m512 v, uint32_t own, float tensor_scale, const float *importance)
{
    double sums[NVFP4_SEARCH_CODES];
    code_range range = nvfp4_search_range(own);
    for (uint32_t code = range.first; code <= range.last; code++)
        sums[code - range.first] = avx512_nvfp4_error(v, code, tensor_scale, importance);
    return nvfp4_choose(own, range, sums);
}

static void avx512_nvfp4(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales)
{
    const float *importance = rule->importance;
    for (int64_t b = 0; b < blocks; b++, data += NVFP4_BLOCK / 2) {
        __m512 v = _mm512_loadu_ps(x + b * NVFP4_BLOCK);
        uint32_t amax = horizontal_max(_mm512_castps_si512(magnitudes(v))), code = nvfp4_scale_code(amax, rule->tensor_scale);
        float scale = e4m3_values[code] * rule->tensor_scale;
        if (rule->search && scale > 0.0f && amax > 0) {
            code = avx512_nvfp4_search(v, code, rule->tensor_scale, importance ? importance + b * NVFP4_BLOCK : NULL);
            scale = e4m3_values[code] * rule->tensor_scale;
        }
        __m512 scaled = _mm512_div_ps(v, _mm512_set1_ps(scale));
        e2m1_store(scale > 0.0f ? scaled : _mm512_setzero_ps(), data);
        scales[b] = (uint8_t)code;
    }
}

/* ---- statistics ---- */

static void avx512_measure(const float *x, const float *y, int64_t count, encode_stats *stats)
{
    __m512d xx = _mm512_setzero_pd(), yy = xx, ee = xx, most = xx;
    int64_t i = 0;
    for (; i + HALF <= count; i += HALF) {
        __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(x + i)), b = _mm512_cvtps_pd(_mm256_loadu_ps(y + i)), e = _mm512_sub_pd(a, b);
        xx = add_squares(xx, a, NULL);
        yy = add_squares(yy, b, NULL);
        ee = add_squares(ee, e, NULL);
        most = _mm512_max_pd(most, _mm512_abs_pd(e));
    }
    measure_lanes all;
    _mm512_storeu_pd(all.x, xx);
    _mm512_storeu_pd(all.y, yy);
    _mm512_storeu_pd(all.e, ee);
    _mm512_storeu_pd(all.max, most);
    measure_step(x + i, y + i, (int)(count - i), &all);
    measure_finish(&all, count, stats);
}

const encode_kernels encode_kernels_avx512 = {avx512_largest, loop_bf16, avx512_fp8, avx512_mxfp4, avx512_nvfp4, avx512_measure};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
