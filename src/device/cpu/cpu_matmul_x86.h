/* What the AVX2 and AVX-512 matrix kernels share: the scales of packed weights, the layout of a panel, the fold of lanes. To be included
 * behind the line that chooses the instruction set. */
#ifndef DEVICE_CPU_CPU_MATMUL_X86_H
#define DEVICE_CPU_CPU_MATMUL_X86_H

#include "formats/decode_kernels.h"

CPU_LOOP __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* The scales of a chunk's eight blocks: a code becomes the exponent of an f32; code 0 is 2^-127. */
CPU_LOOP __m256 mxfp4_scales(const uint8_t *codes)
{
    const __m256i deal = _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 2, -1, -1, -1, 4, -1, -1, -1, 6, -1, -1, -1, 1, -1, -1, -1, 3, -1, -1,
                                          -1, 5, -1, -1, -1, 7);
    __m256i all = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    __m256i bits = _mm256_srli_epi32(_mm256_shuffle_epi8(all, deal), 1);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000)));
}

/* e4m3 codes in the low bytes of eight words. */
CPU_LOOP __m256 e4m3_of(__m256i code)
{
    const __m256i low = _mm256_set1_epi32(0x7F), nan = _mm256_set1_epi32(0x7FC00000);
    __m256i magnitude = _mm256_and_si256(code, low), sign = _mm256_slli_epi32(_mm256_srli_epi32(code, 7), 31);
    __m256i value = _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f)));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_blendv_epi8(value, nan, _mm256_cmpeq_epi32(magnitude, low)), sign));
}

/* The scales of a group's eight half blocks. */
CPU_LOOP __m256 nvfp4_scales(const uint8_t *codes, float outer)
{
    const __m256i deal = _mm256_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 6, -1,
                                          -1, -1, 7, -1, -1, -1);
    __m256i all = _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    return _mm256_mul_ps(e4m3_of(_mm256_shuffle_epi8(all, deal)), _mm256_set1_ps(outer));
}

CPU_LOOP float fold(__m256 lanes)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two))) + 0.0f;
}

static void touch_work(const cpu_matmul_work *k, size_t row_bytes)
{
    size_t bytes = format_row_bytes(k->w->format, k->w->cols);
    touch_range(k->w->data + (size_t)k->first * bytes, bytes * (size_t)k->columns);
    for (int i = 0; i < k->rows; i++)
        touch_range(cpu_work_row(k, i), row_bytes);
}

/* ---- panels; their layout is described in cpu_matmul_avx2.c ---- */

enum { WORD_BYTES = 4 * CPU_PANEL_COLUMNS };

typedef struct panel {
    uint8_t *bytes;
    float *scales, *lanes;
    int64_t units;        /* with scales: blocks of weights */
    int64_t lane_units;   /* room for the units of a lane */
} panel;

CPU_LOOP panel panel_of(const cpu_matmul_work *k, bool mx)
{
    int64_t chunks = cpu_q8_chunks(k->w->cols);
    panel p = {.bytes = k->scratch};
    p.units = k->w->cols / (mx ? MXFP4_BLOCK : NVFP4_BLOCK);
    p.lane_units = chunks * (mx ? 1 : 2); /* units of a block */
    p.scales = (float *)(void *)(p.bytes + chunks * CPU_Q8_CHUNK * CPU_PANEL_COLUMNS);
    p.lanes = p.scales + chunks * (CPU_Q8_CHUNK / NVFP4_BLOCK) * CPU_PANEL_COLUMNS;
    return p;
}

/* Decodes 16 columns; where there are fewer, the last one stands in. */
void cpu_panel_fill_avx2(const panel *p, const matrix *w, int64_t first, int columns);

/* Where the values, the scale and the bias of unit number `step` of a lane lie in a row. */
typedef struct unit_place {
    size_t values, scale, bias; /* bytes */
} unit_place;

CPU_LOOP unit_place place_of(bool mx, int lane, int64_t step)
{
    if (mx) {
        size_t chunk = (size_t)step * sizeof(cpu_q8), place = (size_t)cpu_q8_place(lane);
        return (unit_place){chunk + (size_t)(lane / 4 * 128 + lane % 4 * 16), chunk + offsetof(cpu_q8, scales) + place * sizeof(float),
                            chunk + offsetof(cpu_q8, bias) + place * 4};
    }
    size_t chunk = (size_t)(step / 2) * sizeof(cpu_q8), group = (size_t)(step % 2), block = group * 4 + (size_t)lane / 2;
    return (unit_place){chunk + group * 128 + (size_t)lane * 8,
                        chunk + offsetof(cpu_q8, scales) + (size_t)cpu_q8_place((int)block) * sizeof(float),
                        chunk + offsetof(cpu_q8, half_bias) + (group * 8 + (size_t)cpu_q8_half_place(lane)) * 4};
}

/* The part of the next panel's codes, which follow in memory, to ask for while some rows pass. */
typedef struct panel_ahead {
    const char *codes;
    size_t lane_bytes; /* while one lane is summed */
} panel_ahead;

CPU_LOOP panel_ahead panel_ahead_of(const cpu_matmul_work *k, int first, int rows, int column)
{
    size_t row_bytes = (size_t)k->w->cols / 2, all = CPU_PANEL_COLUMNS * row_bytes, total = (size_t)k->rows;
    size_t from = all * (size_t)first / total / 64 * 64, to = all * (size_t)(first + rows) / total;
    const uint8_t *next = k->w->data + (size_t)(k->first + column + CPU_PANEL_COLUMNS) * row_bytes;
    return (panel_ahead){(const char *)next + from, (to - from + 7) / 8};
}

CPU_LOOP void prefetch_panel(const panel_ahead *a, int lane)
{
    size_t first = a->lane_bytes * (size_t)lane / 64 * 64, end = a->lane_bytes * (size_t)(lane + 1);
    for (; first < end; first += 64)
        _mm_prefetch(a->codes + first, _MM_HINT_T1);
}

/* The lanes of a row to its results, eight columns at a time. */
CPU_LOOP void panel_fold(const float *lanes, int columns, float *y)
{
    enum { LANE = CPU_PANEL_ROWS * CPU_PANEL_COLUMNS };
    float all[CPU_PANEL_COLUMNS];
    for (int v = 0; v < CPU_PANEL_COLUMNS; v += 8) {
        __m256 l[4];
        for (int i = 0; i < 4; i++)
            l[i] = _mm256_add_ps(_mm256_loadu_ps(lanes + i * LANE + v), _mm256_loadu_ps(lanes + (i + 4) * LANE + v));
        __m256 sum = _mm256_add_ps(_mm256_add_ps(l[0], l[2]), _mm256_add_ps(l[1], l[3]));
        _mm256_storeu_ps(all + v, _mm256_add_ps(sum, _mm256_setzero_ps()));
    }
    memcpy(y, all, (size_t)columns * sizeof *y);
}

#endif
