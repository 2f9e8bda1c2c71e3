/* The matrix kernels for CPUs with AVX2 and FMA: 4-bit weights and 8-bit rows. Those of the other formats are in cpu_matmul_f32_avx2.c.
 *
 * Stream: for few rows. A column is read once, 128 packed bytes (one chunk) at a time, and decoded in registers: a byte shuffle looks
 * up 12 + twice the e2m1 value, which has no sign, as the multiplication of bytes wants it; the bias of the row takes the 12 back.
 * Columns follow each other in memory, so this is one stream of bytes.
 *
 * Panel: for many rows. 16 columns are decoded once to bytes, column by column within 32-bit words of four values, so that a block's
 * sum of one column ends up in one lane without any addition across lanes:
 *
 *     panel   unit (block of weights), lane major: units 0 8 16 .. 1 9 17 ..
 *             of each unit its words, first the even values, then the odd ones: [word][16 columns][4 values]
 *     scales  of each unit [16 columns]
 *     lanes   [8][CPU_PANEL_ROWS][16 columns] sums of the lanes, folded at the end
 *
 * One lane's part of the panel stays in the first cache while the rows pass. Sums of 16-bit numbers may wrap: with the bias in, the
 * result of a block is at most 16 * 12 * 127. */
#include "device/cpu/cpu_matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/cpu_matmul_loops.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per
 * file. What is included above is compiled for any CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#include "device/cpu/cpu_matmul_x86.h" /* compiled for these instructions */

enum { MOST_ROWS = 4, AHEAD = 1536 }; /* bytes that the stream asks for in advance */

UNCHECKED_LOOP void cpu_q8_quantize_avx2(const float *x, int64_t n, cpu_q8 *out)
{
    q8_quantize(x, n, out);
}

/* 12 + twice the value of each low nibble. */
CPU_LOOP __m256i weights_of(__m256i codes)
{
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15, 16, 18, 20, 24, 12,
                                           11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}

/* ---- stream ---- */

/* The sums over 8 values of a group of four blocks, 16 bits each, and pairs of them added: the words of one half block each. */
CPU_LOOP __m256i group_sums(const __m256i w[4], const int8_t *x)
{
    __m256i a = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], load(x)), _mm256_maddubs_epi16(w[1], load(x + 64)));
    __m256i b = _mm256_add_epi16(_mm256_maddubs_epi16(w[2], load(x + 32)), _mm256_maddubs_epi16(w[3], load(x + 96)));
    return _mm256_madd_epi16(_mm256_hadd_epi16(a, b), _mm256_set1_epi16(1));
}

CPU_LOOP void group_weights(const uint8_t *codes, __m256i w[4])
{
    __m256i a = load(codes), b = load(codes + 32);
    w[0] = weights_of(a);
    w[1] = weights_of(_mm256_srli_epi16(a, 4));
    w[2] = weights_of(b);
    w[3] = weights_of(_mm256_srli_epi16(b, 4));
}

/* Adds one chunk to the lanes of each row; rows is a constant where this is inlined. */
CPU_LOOP void stream_mxfp4(q8_column c, const cpu_q8 *const *x, int64_t at, int rows, __m256 *lanes)
{
    __m256i first[MOST_ROWS], w[4];
    const __m256i ones = _mm256_set1_epi16(1);
    __m256 scale = mxfp4_scales(c.scales);
    group_weights(c.codes, w);
    for (int r = 0; r < rows; r++)
        first[r] = group_sums(w, x[r][at].values);
    group_weights(c.codes + 64, w);
    for (int r = 0; r < rows; r++) {
        __m256i sum = _mm256_hadd_epi32(first[r], group_sums(w, x[r][at].values + 128));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(load(x[r][at].bias), ones));
        lanes[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, _mm256_loadu_ps(x[r][at].scales)), lanes[r]);
    }
}

CPU_LOOP void stream_nvfp4(q8_column c, float outer, const cpu_q8 *const *x, int64_t at, int rows, __m256 *lanes)
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (int g = 0; g < 2; g++) {
        __m256i w[4];
        __m256 scale = nvfp4_scales(c.scales + g * 8, outer);
        group_weights(c.codes + g * 64, w);
        for (int r = 0; r < rows; r++) {
            __m256 in = _mm256_loadu_ps(x[r][at].scales);
            in = g == 0 ? _mm256_permute_ps(in, 0x50) : _mm256_permute_ps(in, 0xFA);
            __m256i sum = _mm256_add_epi32(group_sums(w, x[r][at].values + g * 128), _mm256_madd_epi16(load(x[r][at].half_bias[g]), ones));
            lanes[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(scale, in), lanes[r]);
        }
    }
}

/* One column and some rows. */
CPU_LOOP void stream_column(const matrix *w, bool mx, int64_t column, const cpu_q8 *const *x, int rows, float *y, size_t y_stride)
{
    __m256 lanes[MOST_ROWS];
    q8_column c = q8_column_at(w, column);
    int64_t chunks = w->cols / CPU_Q8_CHUNK;
    for (int r = 0; r < rows; r++)
        lanes[r] = _mm256_setzero_ps();
    for (int64_t i = 0; i < chunks; i++) {
        q8_column at = {c.codes + i * 128, c.scales + i * (mx ? 8 : 16)};
        _mm_prefetch((const char *)at.codes + AHEAD, _MM_HINT_T0);
        _mm_prefetch((const char *)at.codes + AHEAD + 64, _MM_HINT_T0);
        mx ? stream_mxfp4(at, x, i, rows, lanes) : stream_nvfp4(at, w->scale, x, i, rows, lanes);
    }
    if (w->cols % CPU_Q8_CHUNK != 0) {
        q8_end end;
        q8_column at = q8_end_of(c, w->cols, mx ? MXFP4_BLOCK : NVFP4_BLOCK, &end);
        mx ? stream_mxfp4(at, x, chunks, rows, lanes) : stream_nvfp4(at, w->scale, x, chunks, rows, lanes);
    }
    for (int r = 0; r < rows; r++)
        y[(size_t)r * y_stride] = fold(lanes[r]);
}

CPU_LOOP void stream_rows(const cpu_matmul_work *k, bool mx, int first, int rows)
{
    const cpu_q8 *x[MOST_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int c = 0; c < k->columns; c++)
        stream_column(k->w, mx, k->first + c, x, rows, k->y + (size_t)first * k->y_stride + c, k->y_stride);
}

CPU_LOOP void stream_all(const cpu_matmul_work *k, bool mx)
{
    int first = 0;
    for (; first + 4 <= k->rows; first += 4)
        stream_rows(k, mx, first, 4);
    for (; first + 2 <= k->rows; first += 2)
        stream_rows(k, mx, first, 2);
    if (first < k->rows)
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

CPU_LOOP void transpose_words(__m256i v[8])
{
    __m256i t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + 2 + j]);
            u[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

/* Where a word of a block lies; word 0 .. 3 even values, 4 .. 7 odd ones. */
CPU_LOOP uint8_t *panel_word(const panel *p, bool mx, int64_t block, int word)
{
    int per = mx ? 1 : 2, words = 4 / per; /* even words of a unit */
    int64_t unit = block * per + word % 4 / words;
    int64_t at = unit % 8 * p->lane_units + unit / 8;
    return p->bytes + (at * 2 * words + word / 4 * words + word % words) * WORD_BYTES;
}

/* Two blocks (32 bytes of codes) of eight columns. */
CPU_LOOP void panel_blocks(const panel *p, bool mx, const q8_column *columns, int64_t codes_at, int64_t block, int half)
{
    __m256i even[8], odd[8];
    for (int c = 0; c < 8; c++) {
        __m256i codes = load(columns[c].codes + codes_at);
        even[c] = weights_of(codes);
        odd[c] = weights_of(_mm256_srli_epi16(codes, 4));
    }
    transpose_words(even);
    transpose_words(odd);
    for (int i = 0; i < 8; i++) {
        _mm256_storeu_si256((__m256i *)(void *)(panel_word(p, mx, block + i / 4, i % 4) + half * 32), even[i]);
        _mm256_storeu_si256((__m256i *)(void *)(panel_word(p, mx, block + i / 4, 4 + i % 4) + half * 32), odd[i]);
    }
}

/* The scales of eight units, one of each lane, of eight columns. */
CPU_LOOP void panel_scales(const panel *p, const q8_column *columns, int64_t step, bool mx, float outer, int half)
{
    __m256i scales[8];
    for (int c = 0; c < 8; c++)
        scales[c] = _mm256_castps_si256(mx ? mxfp4_scales(columns[c].scales) : nvfp4_scales(columns[c].scales, outer));
    transpose_words(scales);
    for (int lane = 0; lane < 8; lane++) {
        float *out = p->scales + (lane * p->lane_units + step) * CPU_PANEL_COLUMNS + half * 8;
        _mm256_storeu_ps(out, _mm256_castsi256_ps(scales[mx ? cpu_q8_place(lane) : cpu_q8_half_place(lane)]));
    }
}

/* One chunk of eight columns. */
CPU_LOOP void panel_chunk(const panel *p, const q8_column *columns, int64_t at, int64_t chunk, bool mx, float outer, int half)
{
    q8_column moved[8];
    for (int b = 0; b < CPU_Q8_BLOCKS; b += 2)
        panel_blocks(p, mx, columns, at * 128 + b * 16, chunk * CPU_Q8_BLOCKS + b, half);
    for (int i = 0; i < (mx ? 1 : 2); i++) {
        for (int c = 0; c < 8; c++)
            moved[c] = (q8_column){columns[c].codes, columns[c].scales + (at * (mx ? 1 : 2) + i) * 8};
        panel_scales(p, moved, chunk * (mx ? 1 : 2) + i, mx, outer, half);
    }
}

/* Decodes 16 columns; where there are fewer, the last one stands in. */
CPU_LOOP void panel_fill(const panel *p, const matrix *w, bool mx, int64_t first, int columns)
{
    q8_column column[CPU_PANEL_COLUMNS], ends[CPU_PANEL_COLUMNS];
    q8_end end[CPU_PANEL_COLUMNS];
    int64_t chunks = w->cols / CPU_Q8_CHUNK, left = w->cols % CPU_Q8_CHUNK;
    for (int c = 0; c < CPU_PANEL_COLUMNS; c++) {
        column[c] = q8_column_at(w, first + (c < columns ? c : columns - 1));
        if (left > 0)
            ends[c] = q8_end_of(column[c], w->cols, mx ? MXFP4_BLOCK : NVFP4_BLOCK, &end[c]);
    }
    for (int half = 0; half < 2; half++) {
        for (int64_t i = 0; i < chunks; i++)
            panel_chunk(p, column + half * 8, i, i, mx, w->scale, half);
        if (left > 0)
            panel_chunk(p, ends + half * 8, 0, chunks, mx, w->scale, half);
    }
}

UNCHECKED_LOOP void cpu_panel_fill_avx2(const panel *p, const matrix *w, int64_t first, int columns)
{
    if (w->format->id == FORMAT_MXFP4)
        panel_fill(p, w, true, first, columns);
    else
        panel_fill(p, w, false, first, columns);
}

CPU_LOOP __m256i broadcast_word(const char *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm256_set1_epi32(word);
}

/* An extension of gcc and clang: without it gcc forms all products of a block first and adds them up in a tree of its own, through
 * memory, which halves the speed. */
#define IN_REGISTER(value) __asm__("" : "+x"(value))

/* One lane of some rows and 16 columns. */
CPU_LOOP void panel_lane(const panel *p, bool mx, int lane, const char *const *x, int rows, float *out)
{
    enum { MOST = 3 };
    int words = mx ? 8 : 4;
    __m256 sum[MOST][2];
    const uint8_t *w = p->bytes + lane * p->lane_units * words * WORD_BYTES;
    const float *scale = p->scales + lane * p->lane_units * CPU_PANEL_COLUMNS;
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    int64_t steps = (p->units - lane + 7) / 8;
    for (int64_t i = 0; i < steps; i++, w += words * WORD_BYTES, scale += CPU_PANEL_COLUMNS) {
        unit_place at = place_of(mx, lane, i);
        __m256i s[MOST][2];
        for (int r = 0; r < rows; r++)
            s[r][0] = s[r][1] = broadcast_word(x[r] + at.bias);
        for (int word = 0; word < words; word++) {
            size_t offset = at.values + (size_t)(word / (words / 2) * 64 + word % (words / 2) * 4);
            __m256i w0 = load(w + word * WORD_BYTES), w1 = load(w + word * WORD_BYTES + 32);
            for (int r = 0; r < rows; r++) {
                __m256i in = broadcast_word(x[r] + offset);
                s[r][0] = _mm256_add_epi16(s[r][0], _mm256_maddubs_epi16(w0, in));
                s[r][1] = _mm256_add_epi16(s[r][1], _mm256_maddubs_epi16(w1, in));
                IN_REGISTER(s[r][0]);
                IN_REGISTER(s[r][1]);
            }
        }
        for (int r = 0; r < rows; r++) {
            __m256 in = _mm256_castsi256_ps(broadcast_word(x[r] + at.scale));
            for (int v = 0; v < 2; v++) {
                __m256 value = _mm256_cvtepi32_ps(_mm256_madd_epi16(s[r][v], _mm256_set1_epi16(1)));
                sum[r][v] = _mm256_fmadd_ps(value, _mm256_mul_ps(_mm256_loadu_ps(scale + v * 8), in), sum[r][v]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        _mm256_storeu_ps(out + r * CPU_PANEL_COLUMNS, sum[r][0]);
        _mm256_storeu_ps(out + r * CPU_PANEL_COLUMNS + 8, sum[r][1]);
    }
}

CPU_LOOP void panel_rows(const cpu_matmul_work *k, const panel *p, bool mx, int tile, int first, int rows, int column, int columns)
{
    const char *x[CPU_PANEL_ROWS];
    panel_ahead ahead = panel_ahead_of(k, first, rows, column);
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int lane = 0; lane < 8; lane++) {
        float *out = p->lanes + (mx ? cpu_q8_place(lane) : cpu_q8_half_place(lane)) * CPU_PANEL_ROWS * CPU_PANEL_COLUMNS;
        int r = 0;
        prefetch_panel(&ahead, lane);
        for (; r + tile <= rows; r += tile)
            panel_lane(p, mx, lane, x + r, tile, out + r * CPU_PANEL_COLUMNS);
        for (; r + 2 <= rows; r += 2)
            panel_lane(p, mx, lane, x + r, 2, out + r * CPU_PANEL_COLUMNS);
        if (r < rows)
            panel_lane(p, mx, lane, x + r, 1, out + r * CPU_PANEL_COLUMNS);
    }
    for (int r = 0; r < rows; r++)
        panel_fold(p->lanes + r * CPU_PANEL_COLUMNS, columns, k->y + (size_t)(first + r) * k->y_stride + column);
}

CPU_LOOP void panel_all(const cpu_matmul_work *k, bool mx, int tile)
{
    panel p = panel_of(k, mx);
    touch_work(k, (size_t)cpu_q8_chunks(k->w->cols) * sizeof(cpu_q8));
    touch_range(k->scratch, cpu_matmul_scratch_bytes(k->w->cols));
    for (int column = 0; column < k->columns; column += CPU_PANEL_COLUMNS) {
        int columns = k->columns - column < CPU_PANEL_COLUMNS ? k->columns - column : CPU_PANEL_COLUMNS;
        cpu_panel_fill_avx2(&p, k->w, k->first + column, columns);
        for (int first = 0; first < k->rows; first += CPU_PANEL_ROWS)
            panel_rows(k, &p, mx, tile, first, k->rows - first < CPU_PANEL_ROWS ? k->rows - first : CPU_PANEL_ROWS, column, columns);
    }
}

UNCHECKED_LOOP static void q8_panel_2(const cpu_matmul_work *k)
{
    if (k->w->format->id == FORMAT_MXFP4)
        panel_all(k, true, 2);
    else
        panel_all(k, false, 2);
}

UNCHECKED_LOOP static void q8_panel_3(const cpu_matmul_work *k)
{
    if (k->w->format->id == FORMAT_MXFP4)
        panel_all(k, true, 3);
    else
        panel_all(k, false, 3);
}

const cpu_matmul cpu_matmul_avx2[] = {
    {"avx2 stream", "avx2", CPU_INPUT_F32, 1, cpu_f32_stream_avx2},
    {"avx2 6x16 panel", "avx2", CPU_INPUT_F32, 32, cpu_f32_panel_avx2},
    {"avx2 stream", "avx2", CPU_INPUT_Q8, 1, q8_stream},
    {"avx2 3x16 panel", "avx2", CPU_INPUT_Q8, 16, q8_panel_3},
    {"avx2 2x16 panel", "avx2", CPU_INPUT_Q8, 0, q8_panel_2},
    {0},
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
