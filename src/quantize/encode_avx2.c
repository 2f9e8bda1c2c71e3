/* Encoding kernels for CPUs with AVX2: eight values at a time, the same operations as encode_loops.h on each. */
#include "quantize/encode_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "formats/scalar.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per
 * file. What is included above is compiled for any CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "quantize/encode_loops.h"

enum { WIDTH = 8 };

static inline __m256 magnitudes(__m256 v)
{
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF)));
}

static inline uint32_t horizontal_max(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* The bits of the largest magnitude of `count` vectors. */
static inline uint32_t block_largest(const __m256 *v, int count)
{
    __m256i largest = _mm256_castps_si256(magnitudes(v[0]));
    for (int i = 1; i < count; i++)
        largest = _mm256_max_epi32(largest, _mm256_castps_si256(magnitudes(v[i])));
    return horizontal_max(largest);
}

/* 32 bytes of codes from four vectors of 32-bit codes, in order. */
static inline __m256i narrow(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ---- fp8 ---- */

static inline __m256i e4m3_codes(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value), one = _mm256_set1_epi32(1);
    __m256i m = _mm256_min_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)), _mm256_set1_epi32(0x43E00000));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(m, 20), one);
    __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(m, _mm256_set1_epi32(0x7FFFF)), odd), 20);
    normal = _mm256_sub_epi32(normal, _mm256_set1_epi32((127 - 7) << 3));
    __m256 raised = _mm256_add_ps(_mm256_castsi256_ps(m), _mm256_set1_ps(16384.0f));
    __m256i small = _mm256_sub_epi32(_mm256_castps_si256(raised), _mm256_set1_epi32(0x46800000));
    __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), m);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(_mm256_blendv_epi8(normal, small, is_small), sign);
}

static void avx2_fp8(const float *x, int64_t count, float scale, uint8_t *codes)
{
    __m256 divisor = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 4 * WIDTH <= count; i += 4 * WIDTH) {
        __m256i c[4];
        for (int k = 0; k < 4; k++)
            c[k] = e4m3_codes(_mm256_div_ps(_mm256_loadu_ps(x + i + k * WIDTH), divisor));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), narrow(c[0], c[1], c[2], c[3]));
    }
    loop_fp8(x + i, count - i, scale, codes + i);
}

/* ---- 4-bit blocks ---- */

/* Minus the number of midpoints below each magnitude: minus its code. */
static inline __m256i e2m1_negative_codes(__m256 a)
{
#define PASSED(t, how) _mm256_castps_si256(_mm256_cmp_ps(a, _mm256_set1_ps(t), how))
    __m256i low = _mm256_add_epi32(PASSED(0.25f, _CMP_GT_OQ), PASSED(0.75f, _CMP_GE_OQ));
    __m256i middle = _mm256_add_epi32(PASSED(1.25f, _CMP_GT_OQ), PASSED(1.75f, _CMP_GE_OQ));
    __m256i high = _mm256_add_epi32(PASSED(2.5f, _CMP_GT_OQ), PASSED(3.5f, _CMP_GE_OQ));
    return _mm256_add_epi32(_mm256_add_epi32(low, middle), _mm256_add_epi32(high, PASSED(5.0f, _CMP_GT_OQ)));
#undef PASSED
}

/* The magnitudes e2m1 has for each. A permutation looks at the low three bits of an index: the table is that of -code. */
static inline __m256 e2m1_rounded(__m256 a)
{
    const __m256 of_negative = _mm256_setr_ps(0.0f, 6.0f, 4.0f, 3.0f, 2.0f, 1.5f, 1.0f, 0.5f);
    return _mm256_permutevar8x32_ps(of_negative, e2m1_negative_codes(a));
}

static inline __m256i e2m1_codes(__m256 v)
{
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(v), 28), _mm256_set1_epi32(8));
    return _mm256_sub_epi32(sign, e2m1_negative_codes(magnitudes(v)));
}

/* 32 codes of four bits; eight bytes of each half hold every second group of four codes. */
static inline __m128i e2m1_pack(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(0x1001)); /* even + 16 * odd */
    pairs = _mm256_packus_epi16(pairs, pairs);
    return _mm_unpacklo_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

/* Sums in eight lanes. */
typedef struct lanes {
    __m256d low, high; /* 0..3, 4..7 */
} lanes;

static inline double lanes_total(lanes s)
{
    __m256d by_four = _mm256_add_pd(s.low, s.high);
    __m128d by_two = _mm_add_pd(_mm256_castpd256_pd128(by_four), _mm256_extractf128_pd(by_four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(by_two, _mm_unpackhi_pd(by_two, by_two)));
}

static inline lanes widen(__m256 v)
{
    return (lanes){_mm256_cvtps_pd(_mm256_castps256_ps128(v)), _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))};
}

/* Adds e * e, times the weights unless they are NULL. */
static inline void add_squares(lanes *sum, lanes e, const float *weights)
{
    __m256d low = _mm256_mul_pd(e.low, e.low), high = _mm256_mul_pd(e.high, e.high);
    if (weights) {
        lanes w = widen(_mm256_loadu_ps(weights));
        low = _mm256_mul_pd(low, w.low), high = _mm256_mul_pd(high, w.high);
    }
    sum->low = _mm256_add_pd(sum->low, low);
    sum->high = _mm256_add_pd(sum->high, high);
}

static inline double avx2_mxfp4_error(const __m256 *v, uint32_t code, const float *importance)
{
    __m256 inverse = _mm256_set1_ps(mxfp4_inverse(code));
    lanes sum = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    for (int k = 0; k < MXFP4_BLOCK / WIDTH; k++) {
        __m256 a = magnitudes(_mm256_mul_ps(v[k], inverse));
        add_squares(&sum, widen(_mm256_sub_ps(a, e2m1_rounded(a))), importance ? importance + k * WIDTH : NULL);
    }
    return lanes_total(sum);
}

static inline uint32_t avx2_mxfp4_search(const __m256 *v, uint32_t own, const float *importance)
{
    double below = avx2_mxfp4_error(v, own > 0 ? own - 1 : 0, importance), equal = avx2_mxfp4_error(v, own, importance);
    return mxfp4_choose(own, below, equal, avx2_mxfp4_error(v, own < 254 ? own + 1 : 254, importance));
}

static void avx2_mxfp4(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales)
{
    const float *importance = rule->importance;
    for (int64_t b = 0; b < blocks; b++, x += MXFP4_BLOCK) {
        __m256 v[4] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16), _mm256_loadu_ps(x + 24)};
        uint32_t code = mxfp4_scale_code(block_largest(v, 4), rule->round_bits);
        if (rule->search)
            code = avx2_mxfp4_search(v, code, importance ? importance + b * MXFP4_BLOCK : NULL);
        __m256 inverse = _mm256_set1_ps(mxfp4_inverse(code));
        __m256i c[4];
        for (int k = 0; k < 4; k++)
            c[k] = e2m1_codes(_mm256_mul_ps(v[k], inverse));
        _mm_storeu_si128((__m128i *)(void *)(data + b * (MXFP4_BLOCK / 2)), e2m1_pack(c[0], c[1], c[2], c[3]));
        scales[b] = (uint8_t)code;
    }
}

static inline double avx2_nvfp4_error(const __m256 *v, uint32_t code, float tensor_scale, const float *importance)
{
    __m256 block_scale = _mm256_set1_ps(e4m3_values[code]), outer = _mm256_set1_ps(tensor_scale);
    __m256 scale = _mm256_mul_ps(block_scale, outer);
    lanes sum = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    for (int k = 0; k < NVFP4_BLOCK / WIDTH; k++) {
        __m256 a = magnitudes(v[k]);
        __m256 y = _mm256_mul_ps(_mm256_mul_ps(e2m1_rounded(_mm256_div_ps(a, scale)), block_scale), outer);
        lanes from = widen(a), to = widen(y), e = {_mm256_sub_pd(from.low, to.low), _mm256_sub_pd(from.high, to.high)};
        add_squares(&sum, e, importance ? importance + k * WIDTH : NULL);
    }
    return lanes_total(sum);
}

static inline uint32_t avx2_nvfp4_search(const __m256 *v, uint32_t own, float tensor_scale, const float *importance)
{
    double sums[NVFP4_SEARCH_CODES];
    code_range range = nvfp4_search_range(own);
    for (uint32_t code = range.first; code <= range.last; code++)
        sums[code - range.first] = avx2_nvfp4_error(v, code, tensor_scale, importance);
    return nvfp4_choose(own, range, sums);
}

static void avx2_nvfp4(const float *x, int64_t blocks, const block_rule *rule, uint8_t *data, uint8_t *scales)
{
    const float *importance = rule->importance;
    for (int64_t b = 0; b < blocks; b++, x += NVFP4_BLOCK) {
        __m256 v[2] = {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
        uint32_t amax = block_largest(v, 2), code = nvfp4_scale_code(amax, rule->tensor_scale);
        float scale = e4m3_values[code] * rule->tensor_scale;
        if (rule->search && scale > 0.0f && amax > 0) {
            code = avx2_nvfp4_search(v, code, rule->tensor_scale, importance ? importance + b * NVFP4_BLOCK : NULL);
            scale = e4m3_values[code] * rule->tensor_scale;
        }
        __m256 divisor = _mm256_set1_ps(scale);
        __m256i even = e2m1_codes(_mm256_div_ps(v[0], divisor)), odd = e2m1_codes(_mm256_div_ps(v[1], divisor));
        __m128i packed = e2m1_pack(even, odd, even, odd);
        _mm_storel_epi64((__m128i *)(void *)(data + b * (NVFP4_BLOCK / 2)), scale > 0.0f ? packed : _mm_setzero_si128());
        scales[b] = (uint8_t)code;
    }
}

/* ---- statistics ---- */

static void avx2_measure(const float *x, const float *y, int64_t count, encode_stats *stats)
{
    lanes zero = {_mm256_setzero_pd(), _mm256_setzero_pd()}, xx = zero, yy = zero, ee = zero, most = zero;
    __m256d no_sign = _mm256_castsi256_pd(_mm256_set1_epi64x(INT64_MAX));
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH) {
        lanes a = widen(_mm256_loadu_ps(x + i)), b = widen(_mm256_loadu_ps(y + i));
        lanes e = {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)};
        add_squares(&xx, a, NULL);
        add_squares(&yy, b, NULL);
        add_squares(&ee, e, NULL);
        most.low = _mm256_max_pd(most.low, _mm256_and_pd(e.low, no_sign));
        most.high = _mm256_max_pd(most.high, _mm256_and_pd(e.high, no_sign));
    }
    measure_lanes all;
    _mm256_storeu_pd(all.x, xx.low), _mm256_storeu_pd(all.x + 4, xx.high);
    _mm256_storeu_pd(all.y, yy.low), _mm256_storeu_pd(all.y + 4, yy.high);
    _mm256_storeu_pd(all.e, ee.low), _mm256_storeu_pd(all.e + 4, ee.high);
    _mm256_storeu_pd(all.max, most.low), _mm256_storeu_pd(all.max + 4, most.high);
    measure_step(x + i, y + i, (int)(count - i), &all);
    measure_finish(&all, count, stats);
}

const encode_kernels encode_kernels_avx2 = {loop_largest, loop_bf16, avx2_fp8, avx2_mxfp4, avx2_nvfp4, avx2_measure};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
