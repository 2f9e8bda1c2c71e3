/* The matrix kernels for CPUs with AVX-512 VNNI: 4-bit weights and 8-bit rows, and the panels of the other formats.
 *
 * As in cpu_matmul_avx2.c and cpu_matmul_f32_avx2.c, with one instruction for four products and their sum, and the 16 columns of a
 * panel in one register. Weights
 * have 12 added, as the instruction wants one factor without sign; the bias of the row, two halves that are added, takes it back. Tests
 * compile this file with the 512-bit instructions written out (tests/unit/avx512_emulated.h), for machines that have none. */
#include "device/cpu/cpu_f32_panel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/cpu_matmul_loops.h"

#if defined(CPU_MATMUL_EMULATED) /* whoever includes this has chosen */
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")
#endif

#include "device/cpu/cpu_matmul_x86.h" /* compiled for these instructions */

enum { STREAM_ROWS = 4, PANEL_TILE = 6, AHEAD = 1536 };

/* ---- stream ---- */

/* 12 + twice the value of each low nibble. */
CPU_LOOP __m512i weights_of(__m512i codes)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), _mm512_and_si512(codes, _mm512_set1_epi8(15)));
}

/* The sums of a group's eight half blocks. */
CPU_LOOP __m256i group_sums(__m512i low, __m512i high, const int8_t *x)
{
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), low, _mm512_loadu_si512(x));
    sum = _mm512_dpbusd_epi32(sum, high, _mm512_loadu_si512(x + 64));
    return _mm256_hadd_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
}

CPU_LOOP __m256 scaled(__m256i sum, const void *bias, __m256 weight, __m256 in, __m256 lanes)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(load(bias), _mm256_set1_epi16(1)));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(weight, in), lanes);
}

/* Adds one chunk to the lanes of each row. */
CPU_LOOP void stream_chunk(q8_column c, bool mx, float outer, const cpu_q8 *const *x, int64_t at, int rows, __m256 *lanes)
{
    __m512i first = _mm512_loadu_si512(c.codes), second = _mm512_loadu_si512(c.codes + 64);
    __m512i w[4] = {weights_of(first), weights_of(_mm512_srli_epi16(first, 4)), weights_of(second),
                    weights_of(_mm512_srli_epi16(second, 4))};
    for (int r = 0; r < rows; r++) {
        const cpu_q8 *q = &x[r][at];
        __m256i a = group_sums(w[0], w[1], q->values), b = group_sums(w[2], w[3], q->values + 128);
        __m256 in = _mm256_loadu_ps(q->scales);
        if (mx) {
            lanes[r] = scaled(_mm256_hadd_epi32(a, b), q->bias, mxfp4_scales(c.scales), in, lanes[r]);
        } else {
            lanes[r] = scaled(a, q->half_bias[0], nvfp4_scales(c.scales, outer), _mm256_permute_ps(in, 0x50), lanes[r]);
            lanes[r] = scaled(b, q->half_bias[1], nvfp4_scales(c.scales + 8, outer), _mm256_permute_ps(in, 0xFA), lanes[r]);
        }
    }
}

CPU_LOOP void stream_column(const matrix *w, bool mx, int64_t column, const cpu_q8 *const *x, int rows, float *y, size_t y_stride)
{
    __m256 lanes[STREAM_ROWS];
    q8_column c = q8_column_at(w, column);
    int64_t chunks = w->cols / CPU_Q8_CHUNK;
    for (int r = 0; r < rows; r++)
        lanes[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < chunks; i++) {
        q8_column at = {c.codes + i * 128, c.scales + i * (mx ? 8 : 16)};
        _mm_prefetch((const char *)at.codes + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)at.codes + AHEAD + 64, _MM_HINT_T0);
        stream_chunk(at, mx, w->scale, x, i, rows, lanes);
    }
    if (w->cols % CPU_Q8_CHUNK != 0) {
        q8_end end;
        stream_chunk(q8_end_of(c, w->cols, mx ? MXFP4_BLOCK : NVFP4_BLOCK, &end), mx, w->scale, x, chunks, rows, lanes);
    }
    for (int r = 0; r < rows; r++)
        y[(size_t)r * y_stride] = fold(lanes[r]);
}

CPU_LOOP void stream_rows(const cpu_matmul_work *k, bool mx, int first, int rows)
{
    const cpu_q8 *x[STREAM_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int c = 0; c < k->columns; c++)
        stream_column(k->w, mx, k->first + c, x, rows, k->y + (size_t)first * k->y_stride + c, k->y_stride);
}

CPU_LOOP void stream_all(const cpu_matmul_work *k, bool mx)
{
    int first = 0;
    for (; first + STREAM_ROWS <= k->rows; first += STREAM_ROWS)
        stream_rows(k, mx, first, STREAM_ROWS);
    for (; first < k->rows; first++)
        stream_rows(k, mx, first, 1);
}

UNCHECKED_LOOP static void q8_stream(const cpu_matmul_work *k)
{
    touch_work(k, (size_t)cpu_q8_chunks(k->w->cols) * sizeof(cpu_q8));
    if (k->w->format->id == FORMAT_MXFP4)
        stream_all(k, true);
    else
        stream_all(k, false);
}

/* ---- panel ---- */

CPU_LOOP int32_t word_at(const char *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The bias of a unit: both halves. */
CPU_LOOP int32_t bias_at(const char *p)
{
    int16_t halves[2];
    memcpy(halves, p, sizeof halves);
    return halves[0] + halves[1];
}

/* One lane of some rows and 16 columns. */
CPU_LOOP void panel_lane(const panel *p, bool mx, int lane, const char *const *x, int rows, float *out)
{
    int words = mx ? 8 : 4;
    __m512 sum[PANEL_TILE];
    const uint8_t *w = p->bytes + lane * p->lane_units * words * WORD_BYTES;
    const float *scale = p->scales + lane * p->lane_units * CPU_PANEL_COLUMNS;
    for (int r = 0; r < rows; r++)
        sum[r] = _mm512_setzero_ps();
    int64_t steps = (p->units - lane + 7) / 8;
    for (int64_t i = 0; i < steps; i++, w += words * WORD_BYTES, scale += CPU_PANEL_COLUMNS) {
        unit_place at = place_of(mx, lane, i);
        __m512i s[PANEL_TILE];
        __m512 weight = _mm512_loadu_ps(scale);
        for (int r = 0; r < rows; r++)
            s[r] = _mm512_set1_epi32(bias_at(x[r] + at.bias));
        for (int word = 0; word < words; word++) {
            size_t offset = at.values + (size_t)(word / (words / 2) * 64 + word % (words / 2) * 4);
            __m512i columns = _mm512_loadu_si512(w + word * WORD_BYTES);
            for (int r = 0; r < rows; r++)
                s[r] = _mm512_dpbusd_epi32(s[r], columns, _mm512_set1_epi32(word_at(x[r] + offset)));
        }
        for (int r = 0; r < rows; r++) {
            float in;
            memcpy(&in, x[r] + at.scale, sizeof in);
            sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[r]), _mm512_mul_ps(weight, _mm512_set1_ps(in)), sum[r]);
        }
    }
    for (int r = 0; r < rows; r++)
        _mm512_storeu_ps(out + r * CPU_PANEL_COLUMNS, sum[r]);
}

CPU_LOOP void panel_rows(const cpu_matmul_work *k, const panel *p, bool mx, int first, int rows, int column, int columns)
{
    const char *x[CPU_PANEL_ROWS];
    panel_ahead ahead = panel_ahead_of(k, first, rows, column);
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int lane = 0; lane < 8; lane++) {
        float *out = p->lanes + (mx ? cpu_q8_place(lane) : cpu_q8_half_place(lane)) * CPU_PANEL_ROWS * CPU_PANEL_COLUMNS;
        int r = 0;
        prefetch_panel(&ahead, lane);
        for (; r + PANEL_TILE <= rows; r += PANEL_TILE)
            panel_lane(p, mx, lane, x + r, PANEL_TILE, out + r * CPU_PANEL_COLUMNS);
        for (; r < rows; r++)
            panel_lane(p, mx, lane, x + r, 1, out + r * CPU_PANEL_COLUMNS);
    }
    for (int r = 0; r < rows; r++)
        panel_fold(p->lanes + r * CPU_PANEL_COLUMNS, columns, k->y + (size_t)(first + r) * k->y_stride + column);
}

CPU_LOOP void panel_all(const cpu_matmul_work *k, bool mx)
{
    panel p = panel_of(k, mx);
    touch_work(k, (size_t)cpu_q8_chunks(k->w->cols) * sizeof(cpu_q8));
    touch_range(k->scratch, cpu_matmul_scratch_bytes(k->w->cols));
    for (int column = 0; column < k->columns; column += CPU_PANEL_COLUMNS) {
        int columns = k->columns - column < CPU_PANEL_COLUMNS ? k->columns - column : CPU_PANEL_COLUMNS;
        cpu_panel_fill_avx2(&p, k->w, k->first + column, columns);
        for (int first = 0; first < k->rows; first += CPU_PANEL_ROWS)
            panel_rows(k, &p, mx, first, k->rows - first < CPU_PANEL_ROWS ? k->rows - first : CPU_PANEL_ROWS, column, columns);
    }
}

UNCHECKED_LOOP static void q8_panel(const cpu_matmul_work *k)
{
    if (k->w->format->id == FORMAT_MXFP4)
        panel_all(k, true);
    else
        panel_all(k, false);
}

/* ---- panels of f32 values ---- */

enum { F32_TILE = 12 };

/* One lane of 12 rows and one or two panels. */
CPU_LOOP void f32_tile(const float *const *w, int panels, const float *x, int64_t steps, float *out)
{
    __m512 sum[F32_TILE][2];
    for (int r = 0; r < F32_TILE; r++)
        for (int i = 0; i < panels; i++)
            sum[r][i] = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; step++) {
        __m512 weights[2];
        for (int i = 0; i < panels; i++)
            weights[i] = _mm512_loadu_ps(w[i] + step * CPU_PANEL_COLUMNS);
        for (int r = 0; r < F32_TILE; r++) {
            __m512 in = _mm512_set1_ps(x[step * F32_ROWS + r]);
            for (int i = 0; i < panels; i++)
                sum[r][i] = _mm512_fmadd_ps(in, weights[i], sum[r][i]);
        }
    }
    for (int i = 0; i < panels; i++)
        for (int r = 0; r < F32_TILE; r++)
            _mm512_storeu_ps(out + i * F32_PANEL_SUMS + r * CPU_PANEL_COLUMNS, sum[r][i]);
}

UNCHECKED_LOOP static void f32_panel_sums(const f32_panel *p, const f32_rows *in, int rows, int panels)
{
    for (int lane = 0; lane < F32_LANES; lane++) {
        const float *packed = cpu_f32_lane_avx2(p, in, lane);
        for (int i = 0; i < panels; i += 2)
            for (int r = 0; r < rows; r += F32_TILE) {
                const float *w[2] = {p->weights + (i * F32_LANES + lane) * p->weight_lane,
                                     p->weights + ((i + 1) * F32_LANES + lane) * p->weight_lane};
                const float *x = packed + r;
                float *out = p->lanes + (lane * F32_PANELS + i) * F32_PANEL_SUMS + r * CPU_PANEL_COLUMNS;
                if (i + 1 < panels)
                    f32_tile(w, 2, x, p->steps, out);
                else
                    f32_tile(w, 1, x, p->steps, out);
            }
    }
}

void cpu_f32_panel_avx512(const cpu_matmul_work *k)
{
    cpu_f32_panel_run(k, f32_panel_sums);
}

const cpu_matmul cpu_matmul_avx512[] = {
    {"avx512vnni stream", "avx512vnni", CPU_INPUT_Q8, 1, q8_stream},
    {"avx512vnni 6x16 panel", "avx512vnni", CPU_INPUT_Q8, 16, q8_panel},
    {"avx512vnni 12x32 panel", "avx512vnni", CPU_INPUT_F32, 32, cpu_f32_panel_avx512},
    {0},
};

#if defined(__clang__) && !defined(CPU_MATMUL_EMULATED)
#pragma clang attribute pop
#endif
#endif
