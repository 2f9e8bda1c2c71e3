/* The attention kernels for CPUs with AVX2 and FMA. A tile keeps up to 12 sums in registers, so that the four cycles of a fused
 * multiply-add are filled and there are fewer loads than products: six keys by sixteen heads (8 loads, 12 products), or for
 * eight heads twelve keys by one register; in weighted sums six heads by sixteen elements. */
#include "device/cpu/cpu_attention_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "base/sanitize.h"
#include "formats/scalar.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per
 * file. What is included above is compiled for any CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

/* The tiles below must become straight code whose sums live in registers, which C has no word for: gcc and clang have this one. */
#define TILE UNCHECKED_LOOP __attribute__((always_inline)) static inline

enum { WIDTH = 8, KEYS = 6, MOST_SUMS = 12 };

/* Transposes eight vectors of eight. */
TILE void transpose(__m256 r[8])
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* Eight lanes of a panel, of which `heads` (at most 8) have a head. */
UNCHECKED_LOOP static void pack_lanes(const float *x, int64_t x_stride, int heads, int64_t n, int lanes, float *out)
{
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 r[8];
        for (int h = 0; h < 8; h++)
            r[h] = h < heads ? _mm256_loadu_ps(x + h * x_stride + i) : _mm256_setzero_ps();
        transpose(r);
        for (int h = 0; h < 8; h++)
            _mm256_storeu_ps(out + (i + h) * lanes, r[h]);
    }
    for (; i < n; i++)
        for (int h = 0; h < 8; h++)
            out[i * lanes + h] = h < heads ? x[h * x_stride + i] : 0.0f;
}

static void avx2_pack(const float *x, int64_t x_stride, int heads, int64_t n, float *out)
{
    int lanes = cpu_head_lanes(heads);
    for (int h = 0; h < lanes; h += WIDTH)
        pack_lanes(x + h * x_stride, x_stride, heads - h < WIDTH ? heads - h : WIDTH, n, lanes, out + h);
}

/* sums[r][v] = chain over d of q[d][8 v ..] * keys[r][d]; rows and vectors are constants where this is inlined. */
TILE void score_tile(const float *q, int lanes, const float *keys, int64_t key_stride, int rows, int vectors, int64_t n,
                     __m256 sums[MOST_SUMS])
{
    for (int i = 0; i < rows * vectors; i++)
        sums[i] = _mm256_setzero_ps();
    for (int64_t d = 0; d < n; d++, q += lanes, keys++) {
        __m256 heads[2];
        for (int v = 0; v < vectors; v++)
            heads[v] = _mm256_loadu_ps(q + v * WIDTH);
        for (int r = 0; r < rows; r++) {
            __m256 key = _mm256_broadcast_ss(keys + r * key_stride);
            for (int v = 0; v < vectors; v++)
                sums[r * vectors + v] = _mm256_fmadd_ps(heads[v], key, sums[r * vectors + v]);
        }
    }
}

/* One block of `scores` for some keys; `add` to what the earlier blocks gave. */
TILE void score_block(const float *q, const float *keys, int64_t key_stride, int rows, int vectors, int64_t n, bool add, float *y)
{
    __m256 sums[MOST_SUMS];
    score_tile(q, vectors * WIDTH, keys, key_stride, rows, vectors, n, sums);
    for (int i = 0; i < rows * vectors; i++)
        _mm256_storeu_ps(y + i * WIDTH, add ? _mm256_add_ps(_mm256_loadu_ps(y + i * WIDTH), sums[i]) : sums[i]);
}

UNCHECKED_LOOP static void score_block_16(const float *q, const float *keys, int64_t key_stride, int count, int64_t n, bool add, float *y)
{
    int j = 0;
    for (; j + 6 <= count; j += 6)
        score_block(q, keys + j * key_stride, key_stride, 6, 2, n, add, y + (int64_t)j * 16);
    for (; j + 2 <= count; j += 2)
        score_block(q, keys + j * key_stride, key_stride, 2, 2, n, add, y + (int64_t)j * 16);
    for (; j < count; j++)
        score_block(q, keys + j * key_stride, key_stride, 1, 2, n, add, y + (int64_t)j * 16);
}

UNCHECKED_LOOP static void score_block_8(const float *q, const float *keys, int64_t key_stride, int count, int64_t n, bool add, float *y)
{
    int j = 0;
    for (; j + 12 <= count; j += 12)
        score_block(q, keys + j * key_stride, key_stride, 12, 1, n, add, y + (int64_t)j * 8);
    for (; j + 4 <= count; j += 4)
        score_block(q, keys + j * key_stride, key_stride, 4, 1, n, add, y + (int64_t)j * 8);
    for (; j < count; j++)
        score_block(q, keys + j * key_stride, key_stride, 1, 1, n, add, y + (int64_t)j * 8);
}

static void avx2_scores(const float *q, int lanes, const float *keys, int64_t key_stride, int count, int64_t n, float *y)
{
    for (int64_t first = 0; first < n; first += CPU_SCORE_BLOCK) {
        int64_t size = n - first < CPU_SCORE_BLOCK ? n - first : CPU_SCORE_BLOCK;
        if (lanes == 16)
            score_block_16(q + first * 16, keys + first, key_stride, count, size, first > 0, y);
        else
            score_block_8(q + first * 8, keys + first, key_stride, count, size, first > 0, y);
    }
}

TILE __m256 exponential(__m256 x)
{
    const __m256 round = _mm256_set1_ps(CPU_EXP_ROUND);
    __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(CPU_EXP_LOG2E), round), n = _mm256_sub_ps(shifted, round);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(CPU_EXP_LN2_HIGH), x), series = _mm256_set1_ps(cpu_exp_series[0]);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(CPU_EXP_LN2_LOW), r);
    for (int i = 1; i < CPU_EXP_TERMS; i++)
        series = _mm256_fmadd_ps(series, r, _mm256_set1_ps(cpu_exp_series[i]));
    __m256i power = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(shifted), 23), _mm256_set1_epi32(0x3F800000));
    __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(CPU_EXP_LEAST), _CMP_LT_OQ);
    return _mm256_andnot_ps(below, _mm256_mul_ps(series, _mm256_castsi256_ps(power)));
}

UNCHECKED_LOOP static void avx2_softmax_block(float *y, int lanes, int count, float scale, cpu_softmax *state)
{
    for (int h = 0; h < lanes; h += WIDTH) {
        __m256 largest = _mm256_loadu_ps(y + h), before = _mm256_loadu_ps(state->largest + h), by = _mm256_set1_ps(scale);
        for (int j = 1; j < count; j++)
            largest = _mm256_max_ps(_mm256_loadu_ps(y + j * lanes + h), largest);
        largest = _mm256_max_ps(before, _mm256_mul_ps(largest, by));
        __m256 factor = exponential(_mm256_sub_ps(before, largest)), sum = _mm256_mul_ps(_mm256_loadu_ps(state->sum + h), factor);
        for (int j = 0; j < count; j++) {
            __m256 e = exponential(_mm256_fmsub_ps(_mm256_loadu_ps(y + j * lanes + h), by, largest));
            _mm256_storeu_ps(y + j * lanes + h, e);
            sum = _mm256_add_ps(sum, e);
        }
        _mm256_storeu_ps(state->largest + h, largest);
        _mm256_storeu_ps(state->factor + h, factor);
        _mm256_storeu_ps(state->sum + h, sum);
    }
}

/* `heads` results of 8 * vectors elements, in registers while all vectors are added. */
TILE void sum_tile(const cpu_weighted_sum *t, int first_head, int heads, int64_t k, int vectors)
{
    __m256 sums[MOST_SUMS];
    const float *p = t->p + first_head * t->p_head, *v = t->v + k;
    float *out = t->out + first_head * t->out_stride + k;
    int64_t p_head = t->p_head, p_vector = t->p_vector, v_stride = t->v_stride;
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++)
            sums[h * vectors + i] = _mm256_loadu_ps(out + h * t->out_stride + i * WIDTH);
    for (int j = 0, count = t->count; j < count; j++, p += p_vector, v += v_stride) {
        __m256 in[8];
        for (int i = 0; i < vectors; i++)
            in[i] = _mm256_loadu_ps(v + i * WIDTH);
        for (int h = 0; h < heads; h++) {
            __m256 factor = _mm256_broadcast_ss(p + h * p_head);
            for (int i = 0; i < vectors; i++)
                sums[h * vectors + i] = _mm256_fmadd_ps(factor, in[i], sums[h * vectors + i]);
        }
    }
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < vectors; i++)
            _mm256_storeu_ps(out + h * t->out_stride + i * WIDTH, sums[h * vectors + i]);
}

/* The tile of up to six heads; returns how many. The heads that are left are shared out evenly: 16 = 6 + 5 + 5. */
UNCHECKED_LOOP static int sum_heads(const cpu_weighted_sum *t, int first_head, int64_t k)
{
    int left = t->heads - first_head, tiles = (left + 5) / 6, heads = (left + tiles - 1) / tiles;
    switch (heads) {
    case 6: sum_tile(t, first_head, 6, k, 2); break;
    case 5: sum_tile(t, first_head, 5, k, 2); break;
    case 4: sum_tile(t, first_head, 4, k, 2); break;
    case 3: sum_tile(t, first_head, 3, k, 2); break;
    case 2: sum_tile(t, first_head, 2, k, 2); break;
    default: sum_tile(t, first_head, 1, k, 2); break;
    }
    return heads;
}

/* The last elements of a size that is no multiple of 16. */
UNCHECKED_LOOP static void sum_end(const cpu_weighted_sum *t, int64_t k)
{
    for (int h = 0; h < t->heads; h++) {
        int64_t at = k;
        for (; at + WIDTH <= t->n; at += WIDTH)
            sum_tile(t, h, 1, at, 1);
        for (; at < t->n; at++) {
            float *out = t->out + h * t->out_stride + at;
            for (int j = 0; j < t->count; j++)
                *out = __builtin_fmaf(t->p[j * t->p_vector + h * t->p_head], t->v[j * t->v_stride + at], *out);
        }
    }
}

UNCHECKED_LOOP static void avx2_weighted_sum(const cpu_weighted_sum *t)
{
    int64_t k = 0;
    for (; t->heads == 1 && k + 8 * WIDTH <= t->n; k += 8 * WIDTH)
        sum_tile(t, 0, 1, k, 8);
    for (; k + 2 * WIDTH <= t->n; k += 2 * WIDTH)
        for (int h = 0; h < t->heads; h += sum_heads(t, h, k))
            ;
    if (k < t->n)
        sum_end(t, k);
}

/* 16 e4m3 codes to the f32 that their bits are, the value times 2^-120: cpu_matmul_f32_avx2.c. */
TILE void codes_moved(const uint8_t *codes, __m256i *seen, __m256 out[2])
{
    const __m256i deal = _mm256_setr_epi8(-1, 0, -1, 8, -1, 1, -1, 9, -1, 2, -1, 10, -1, 3, -1, 11, -1, 4, -1, 12, -1, 5, -1, 13, -1, 6, -1,
                                          14, -1, 7, -1, 15);
    const __m256i mask = _mm256_set1_epi32((int)0x87F00000u);
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)codes));
    __m256i words = _mm256_srai_epi16(_mm256_shuffle_epi8(both, deal), 4);
    *seen = _mm256_max_epu8(*seen, _mm256_add_epi8(both, both)); /* twice a code that is not a number is 0xFE */
    out[0] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(words, 16), mask));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(words, mask));
}

/* `groups` x 16 elements of out. */
TILE void codes_tile(const float *p, const uint8_t *codes, int64_t stride, const float *raised, int count, int groups, __m256i *seen,
                     float *out)
{
    __m256 sum[4][2];
    for (int g = 0; g < groups; g++) {
        sum[g][0] = _mm256_loadu_ps(out + g * 16);
        sum[g][1] = _mm256_loadu_ps(out + g * 16 + 8);
    }
    for (int j = 0; j < count; j++) {
        __m256 factor = _mm256_broadcast_ss(p + j), scale = _mm256_broadcast_ss(raised + j);
        _mm_prefetch((const char *)codes + (j + count) * stride, _MM_HINT_T0); /* the same part of the vectors that come next */
        for (int g = 0; g < groups; g++) {
            __m256 w[2];
            codes_moved(codes + j * stride + g * 16, seen, w);
            sum[g][0] = _mm256_fmadd_ps(factor, _mm256_mul_ps(w[0], scale), sum[g][0]);
            sum[g][1] = _mm256_fmadd_ps(factor, _mm256_mul_ps(w[1], scale), sum[g][1]);
        }
    }
    for (int g = 0; g < groups; g++) {
        _mm256_storeu_ps(out + g * 16, sum[g][0]);
        _mm256_storeu_ps(out + g * 16 + 8, sum[g][1]);
    }
}

enum { CODES_AT_ONCE = 64 };

/* At most CODES_AT_ONCE vectors. */
TILE bool add_some_codes(const float *p, const uint8_t *codes, int64_t stride, const float *scales, int count, int64_t n, float *out)
{
    float raised[CODES_AT_ONCE], finite = 0;
    __m256i seen = _mm256_setzero_si256();
    int64_t k = 0;
    for (int j = 0; j < count; j++) {
        raised[j] = scales[j] * 0x1p120f;
        finite += raised[j] * 0.0f; /* stays 0 while all are */
    }
    for (; k + 64 <= n; k += 64)
        codes_tile(p, codes + k, stride, raised, count, 4, &seen, out + k);
    for (; k + 16 <= n; k += 16)
        codes_tile(p, codes + k, stride, raised, count, 1, &seen, out + k);
    for (; k < n; k++)
        for (int j = 0; j < count; j++)
            out[k] = __builtin_fmaf(p[j], e4m3_values[codes[j * stride + k]] * scales[j], out[k]);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(seen, _mm256_set1_epi8((char)0xFE))) == 0 && finite == 0.0f;
}

UNCHECKED_LOOP static bool avx2_add_codes(const float *p, const uint8_t *codes, int64_t stride, const float *scales, int count, int64_t n,
                                          float *out)
{
    bool numbers = true;
    for (int j = 0, some; j < count; j += some) {
        some = count - j < CODES_AT_ONCE ? count - j : CODES_AT_ONCE;
        numbers = add_some_codes(p + j, codes + j * stride, stride, scales + j, some, n, out) && numbers;
    }
    return numbers;
}

/* The lanes of some keys, over all heads, and their folds. */
TILE void index_tile(const float *q, int lanes, const float *weights, const float *keys, int rows, int64_t n, float *out)
{
    __m256 sums[MOST_SUMS], lane[KEYS], zero = _mm256_setzero_ps();
    for (int r = 0; r < rows; r++)
        lane[r] = zero;
    for (int h = 0; h < lanes; h += 2 * WIDTH) {
        bool two = h + 2 * WIDTH <= lanes;
        if (two)
            score_tile(q + h, lanes, keys, n, rows, 2, n, sums);
        else
            score_tile(q + h, lanes, keys, n, rows, 1, n, sums);
        for (int r = 0; r < rows; r++) {
            lane[r] = _mm256_fmadd_ps(_mm256_loadu_ps(weights + h), _mm256_max_ps(sums[two ? 2 * r : r], zero), lane[r]);
            if (two)
                lane[r] = _mm256_fmadd_ps(_mm256_loadu_ps(weights + h + WIDTH), _mm256_max_ps(sums[2 * r + 1], zero), lane[r]);
        }
    }
    for (int r = 0; r < rows; r++) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(lane[r]), _mm256_extractf128_ps(lane[r], 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        _mm_store_ss(out + r, _mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
    }
}

UNCHECKED_LOOP static void avx2_index_scores(const float *q, int lanes, const float *weights, const float *keys, int count, int64_t n,
                                             float *out)
{
    int j = 0;
    for (; j + KEYS <= count; j += KEYS)
        index_tile(q, lanes, weights, keys + j * n, KEYS, n, out + j);
    for (; j < count; j++)
        index_tile(q, lanes, weights, keys + j * n, 1, n, out + j);
}

UNCHECKED_LOOP static bool avx2_range(const float *x, int n, float *least, float *most)
{
    const __m256 absolute = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)), finite_limit = _mm256_set1_ps(0x1.fffffep127f);
    __m256 low = _mm256_set1_ps(x[0]), high = low, finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    float lows[WIDTH], highs[WIDTH], rest_low, rest_high;
    int i = 0;
    bool ok = true;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 v = _mm256_loadu_ps(x + i);
        low = _mm256_min_ps(v, low);
        high = _mm256_max_ps(v, high);
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(_mm256_and_ps(v, absolute), finite_limit, _CMP_LE_OQ));
    }
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    ok = cpu_attention_kernels_generic.range(lows, WIDTH, least, &rest_high);
    ok = cpu_attention_kernels_generic.range(highs, WIDTH, &rest_low, most) && ok;
    if (i < n) {
        ok = cpu_attention_kernels_generic.range(x + i, n - i, &rest_low, &rest_high) && ok;
        *least = rest_low < *least ? rest_low : *least;
        *most = rest_high > *most ? rest_high : *most;
    }
    return ok && _mm256_movemask_ps(finite) == 0xFF;
}

UNCHECKED_LOOP static void avx2_count_buckets(const float *x, int n, float least, float scale, int32_t counts[CPU_SELECT_BUCKETS])
{
    __m256 from = _mm256_set1_ps(least), by = _mm256_set1_ps(scale);
    int i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        int32_t bucket[WIDTH];
        __m256i b = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), from), by));
        _mm256_storeu_si256((__m256i *)(void *)bucket, b);
        for (int k = 0; k < WIDTH; k++)
            counts[bucket[k]]++;
    }
    cpu_attention_kernels_generic.count_buckets(x + i, n - i, least, scale, counts);
}

UNCHECKED_LOOP static void avx2_pick(const float *x, int n, float least, float scale, int first, int32_t *out)
{
    __m256 from = _mm256_set1_ps(least), by = _mm256_set1_ps(scale), limit = _mm256_set1_ps((float)first);
    int i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        __m256 place = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), from), by);
        unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(place, limit, _CMP_GE_OQ));
        for (; mask; mask &= mask - 1)
            *out++ = i + __builtin_ctz(mask);
    }
    for (; i < n; i++)
        if ((x[i] - least) * scale >= (float)first)
            *out++ = i;
}

const cpu_attention_kernels cpu_attention_kernels_avx2 = {
    "avx2", avx2_pack, avx2_scores, avx2_softmax_block, avx2_weighted_sum, avx2_add_codes, avx2_index_scores, avx2_range,
    avx2_count_buckets, avx2_pick,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
