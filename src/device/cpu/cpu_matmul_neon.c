/* The matrix kernels for 64-bit Arm CPUs with dot products of bytes: 4-bit weights and 8-bit rows.
 *
 * A byte table looks up twice the e2m1 value of 16 codes; one instruction adds four products of signed bytes to a sum.
 *
 * Stream: a column is read once for up to four rows, as in the AVX2 stream; the eight lanes are two registers.
 *
 * Panel: for many rows. 16 columns are decoded once, in 32-bit words of four values, a block of weights after the other, lane by lane as in
 * cpu_matmul_avx2.c; three rows by 16 columns keep 12 sums of integers and 12 of a lane in registers. */
#include "device/cpu/cpu_matmul.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#include "device/cpu/cpu_matmul_loops.h"
#include "formats/decode_kernels.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per file. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

enum { MOST_ROWS = 4 };

/* Places 0 .. 3 and 4 .. 7. */
typedef struct lanes {
    float32x4_t low, high;
} lanes;

/* The sums of the four blocks of a group over four words each: values times codes, even and odd. */
CPU_LOOP void block_sums(const int8x16_t w[8], const int8_t *x, int32x4_t out[4])
{
    for (int b = 0; b < 4; b++)
        out[b] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), w[2 * b], vld1q_s8(x + b * 16)), w[2 * b + 1], vld1q_s8(x + 64 + b * 16));
}

CPU_LOOP void group_weights(const uint8_t *codes, int8x16_t w[8])
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8x16_t table = vld1q_s8(twice);
    for (int b = 0; b < 4; b++) {
        uint8x16_t bytes = vld1q_u8(codes + b * 16);
        w[2 * b] = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
        w[2 * b + 1] = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
    }
}

CPU_LOOP float32x4_t add_scaled(int32x4_t sum, const float *weight, const float *in, float32x4_t to)
{
    return vfmaq_f32(to, vcvtq_f32_s32(sum), vmulq_f32(vld1q_f32(weight), vld1q_f32(in)));
}

/* Adds one chunk to the lanes of each row. */
CPU_LOOP void stream_mxfp4(q8_column c, const cpu_q8 *const *x, int64_t at, int rows, lanes *sums)
{
    int8x16_t w[2][8];
    float scale[8];
    for (int b = 0; b < 8; b++)
        scale[cpu_q8_place(b)] = q8_e8m0(c.scales[b]);
    group_weights(c.codes, w[0]);
    group_weights(c.codes + 64, w[1]);
    for (int r = 0; r < rows; r++) {
        const cpu_q8 *q = &x[r][at];
        int32x4_t s[8];
        block_sums(w[0], q->values, s);
        block_sums(w[1], q->values + 128, s + 4);
        int32x4_t even = vpaddq_s32(vpaddq_s32(s[0], s[2]), vpaddq_s32(s[4], s[6]));
        int32x4_t odd = vpaddq_s32(vpaddq_s32(s[1], s[3]), vpaddq_s32(s[5], s[7]));
        sums[r].low = add_scaled(even, scale, q->scales, sums[r].low);
        sums[r].high = add_scaled(odd, scale + 4, q->scales + 4, sums[r].high);
    }
}

CPU_LOOP void stream_nvfp4(q8_column c, float outer, const cpu_q8 *const *x, int64_t at, int rows, lanes *sums)
{
    for (int g = 0; g < 2; g++) {
        int8x16_t w[8];
        float scale[8];
        for (int h = 0; h < 8; h++)
            scale[cpu_q8_half_place(h)] = e4m3_values[c.scales[g * 8 + h]] * outer;
        group_weights(c.codes + g * 64, w);
        for (int r = 0; r < rows; r++) {
            const cpu_q8 *q = &x[r][at];
            const float in[8] = {q->scales[2 * g], q->scales[2 * g], q->scales[2 * g + 1], q->scales[2 * g + 1],
                                 q->scales[4 + 2 * g], q->scales[4 + 2 * g], q->scales[5 + 2 * g], q->scales[5 + 2 * g]};
            int32x4_t s[4];
            block_sums(w, q->values + g * 128, s);
            sums[r].low = add_scaled(vpaddq_s32(s[0], s[2]), scale, in, sums[r].low);
            sums[r].high = add_scaled(vpaddq_s32(s[1], s[3]), scale + 4, in + 4, sums[r].high);
        }
    }
}

CPU_LOOP float fold(lanes l)
{
    float32x4_t four = vaddq_f32(l.low, l.high);
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return (vget_lane_f32(two, 0) + vget_lane_f32(two, 1)) + 0.0f;
}

CPU_LOOP void stream_column(const matrix *w, bool mx, int64_t column, const cpu_q8 *const *x, int rows, float *y, size_t y_stride)
{
    lanes sums[MOST_ROWS];
    q8_column c = q8_column_at(w, column);
    int64_t chunks = w->cols / CPU_Q8_CHUNK;
    for (int r = 0; r < rows; r++)
        sums[r].low = sums[r].high = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < chunks; i++) {
        q8_column at = {c.codes + i * 128, c.scales + i * (mx ? 8 : 16)};
        mx ? stream_mxfp4(at, x, i, rows, sums) : stream_nvfp4(at, w->scale, x, i, rows, sums);
    }
    if (w->cols % CPU_Q8_CHUNK != 0) {
        q8_end end;
        q8_column at = q8_end_of(c, w->cols, mx ? MXFP4_BLOCK : NVFP4_BLOCK, &end);
        mx ? stream_mxfp4(at, x, chunks, rows, sums) : stream_nvfp4(at, w->scale, x, chunks, rows, sums);
    }
    for (int r = 0; r < rows; r++)
        y[(size_t)r * y_stride] = fold(sums[r]);
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
    for (; first + MOST_ROWS <= k->rows; first += MOST_ROWS)
        stream_rows(k, mx, first, MOST_ROWS);
    for (; first < k->rows; first++)
        stream_rows(k, mx, first, 1);
}

static void touch_work(const cpu_matmul_work *k)
{
    size_t bytes = format_row_bytes(k->w->format, k->w->cols);
    touch_range(k->w->data + (size_t)k->first * bytes, bytes * (size_t)k->columns);
    for (int i = 0; i < k->rows; i++)
        touch_range(cpu_work_row(k, i), (size_t)cpu_q8_chunks(k->w->cols) * sizeof(cpu_q8));
}

UNCHECKED_LOOP static void q8_stream(const cpu_matmul_work *k)
{
    touch_work(k);
    if (k->w->format->id == FORMAT_MXFP4)
        stream_all(k, true);
    else
        stream_all(k, false);
}

/* ---- panel ---- */

enum { TILE_ROWS = 3, VECTORS = CPU_PANEL_COLUMNS / 4, WORD_BYTES = 4 * CPU_PANEL_COLUMNS };

typedef struct panel {
    int8_t *bytes;         /* [unit][word][16 columns][4 values], units lane by lane: 0 8 16 .. 1 9 17 ..; even words first */
    float *scales, *lanes; /* [unit][16 columns]; [8 lanes][CPU_PANEL_ROWS][16 columns] */
    int64_t units;         /* blocks of weights */
    int64_t lane_units;    /* room for the units of a lane */
    int words;             /* of a unit */
} panel;

static panel panel_of(const cpu_matmul_work *k, bool mx)
{
    int64_t chunks = cpu_q8_chunks(k->w->cols);
    panel p = {.bytes = k->scratch, .units = k->w->cols / (mx ? MXFP4_BLOCK : NVFP4_BLOCK), .lane_units = chunks * (mx ? 1 : 2)};
    p.words = mx ? 8 : 4;
    p.scales = (float *)(void *)(p.bytes + chunks * CPU_Q8_CHUNK * CPU_PANEL_COLUMNS);
    p.lanes = p.scales + chunks * (CPU_Q8_CHUNK / NVFP4_BLOCK) * CPU_PANEL_COLUMNS;
    return p;
}

CPU_LOOP int64_t unit_at(const panel *p, int64_t unit)
{
    return unit % 8 * p->lane_units + unit / 8;
}

/* One block of one column: 16 or 8 bytes of codes. */
CPU_LOOP void fill_unit(const panel *p, const uint8_t *codes, int64_t unit, int column)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8_t *out = p->bytes + unit_at(p, unit) * p->words * WORD_BYTES + column * 4;
    int half = p->words / 2;
    for (int i = 0; i < half * 4; i++) {
        out[i / 4 * WORD_BYTES + i % 4] = twice[codes[i] & 15];
        out[(half + i / 4) * WORD_BYTES + i % 4] = twice[codes[i] >> 4];
    }
}

/* Decodes 16 columns; where there are fewer, the last one stands in. */
UNCHECKED_LOOP static void fill_panel(const panel *p, const matrix *w, bool mx, int64_t first, int columns)
{
    for (int c = 0; c < CPU_PANEL_COLUMNS; c++) {
        q8_column column = q8_column_at(w, first + (c < columns ? c : columns - 1));
        for (int64_t u = 0; u < p->units; u++) {
            fill_unit(p, column.codes + u * (mx ? 16 : 8), u, c);
            p->scales[unit_at(p, u) * CPU_PANEL_COLUMNS + c] = mx ? q8_e8m0(column.scales[u]) : e4m3_values[column.scales[u]] * w->scale;
        }
    }
}

/* Adds the products of four words, even or odd ones of mxfp4; `words` is 4 or 2. */
CPU_LOOP void panel_words(const int8_t *w, const int8_t *const *x, int rows, int words, int32x4_t sum[TILE_ROWS][VECTORS])
{
    int8x8_t in[TILE_ROWS][2];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < words / 2; i++)
            in[r][i] = vld1_s8(x[r] + i * 8);
    for (int i = 0; i < words / 2; i++)
        for (int v = 0; v < VECTORS; v++) {
            int8x16_t low = vld1q_s8(w + 2 * i * WORD_BYTES + v * 16), high = vld1q_s8(w + (2 * i + 1) * WORD_BYTES + v * 16);
            for (int r = 0; r < rows; r++)
                sum[r][v] = vdotq_lane_s32(vdotq_lane_s32(sum[r][v], low, in[r][i], 0), high, in[r][i], 1);
        }
}

/* One lane of some rows and 16 columns. */
CPU_LOOP void panel_lane(const panel *p, bool mx, int lane, const cpu_q8 *const *x, int rows, float *out)
{
    int words = mx ? 8 : 4;
    float32x4_t sum[TILE_ROWS][VECTORS];
    const int8_t *w = p->bytes + lane * p->lane_units * words * WORD_BYTES;
    const float *scale = p->scales + lane * p->lane_units * CPU_PANEL_COLUMNS;
    int64_t steps = (p->units - lane + 7) / 8;
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < steps; i++, w += words * WORD_BYTES, scale += CPU_PANEL_COLUMNS) {
        int64_t chunk = mx ? i : i / 2, group = mx ? lane / 4 : i % 2;
        int64_t even = group * 128 + (mx ? lane % 4 * 16 : lane * 8), place = cpu_q8_place(mx ? lane : (int)group * 4 + lane / 2);
        const int8_t *at[TILE_ROWS], *odd[TILE_ROWS];
        int32x4_t s[TILE_ROWS][VECTORS];
        for (int r = 0; r < rows; r++) {
            at[r] = x[r][chunk].values + even;
            odd[r] = at[r] + 64;
            for (int v = 0; v < VECTORS; v++)
                s[r][v] = vdupq_n_s32(0);
        }
        panel_words(w, at, rows, words / 2, s);
        panel_words(w + words / 2 * WORD_BYTES, odd, rows, words / 2, s);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = vfmaq_f32(sum[r][v], vcvtq_f32_s32(s[r][v]),
                                      vmulq_n_f32(vld1q_f32(scale + v * 4), x[r][chunk].scales[place]));
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            vst1q_f32(out + r * CPU_PANEL_COLUMNS + v * 4, sum[r][v]);
}

/* The lanes of a row to its results. */
CPU_LOOP void panel_fold(const float *all_lanes, int columns, float *y)
{
    enum { LANE = CPU_PANEL_ROWS * CPU_PANEL_COLUMNS };
    float all[CPU_PANEL_COLUMNS];
    for (int v = 0; v < CPU_PANEL_COLUMNS; v += 4) {
        float32x4_t l[4];
        for (int i = 0; i < 4; i++)
            l[i] = vaddq_f32(vld1q_f32(all_lanes + i * LANE + v), vld1q_f32(all_lanes + (i + 4) * LANE + v));
        vst1q_f32(all + v, vaddq_f32(vaddq_f32(vaddq_f32(l[0], l[2]), vaddq_f32(l[1], l[3])), vdupq_n_f32(0.0f)));
    }
    memcpy(y, all, (size_t)columns * sizeof *y);
}

CPU_LOOP void panel_rows(const cpu_matmul_work *k, const panel *p, bool mx, int first, int rows, int column, int columns)
{
    const cpu_q8 *x[CPU_PANEL_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int lane = 0; lane < 8; lane++) {
        float *out = p->lanes + (mx ? cpu_q8_place(lane) : cpu_q8_half_place(lane)) * CPU_PANEL_ROWS * CPU_PANEL_COLUMNS;
        int r = 0;
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
            panel_lane(p, mx, lane, x + r, TILE_ROWS, out + r * CPU_PANEL_COLUMNS);
        for (; r < rows; r++)
            panel_lane(p, mx, lane, x + r, 1, out + r * CPU_PANEL_COLUMNS);
    }
    for (int r = 0; r < rows; r++)
        panel_fold(p->lanes + r * CPU_PANEL_COLUMNS, columns, k->y + (size_t)(first + r) * k->y_stride + column);
}

CPU_LOOP void panel_all(const cpu_matmul_work *k, bool mx)
{
    panel p = panel_of(k, mx);
    for (int column = 0; column < k->columns; column += CPU_PANEL_COLUMNS) {
        int columns = k->columns - column < CPU_PANEL_COLUMNS ? k->columns - column : CPU_PANEL_COLUMNS;
        fill_panel(&p, k->w, mx, k->first + column, columns);
        for (int first = 0; first < k->rows; first += CPU_PANEL_ROWS)
            panel_rows(k, &p, mx, first, k->rows - first < CPU_PANEL_ROWS ? k->rows - first : CPU_PANEL_ROWS, column, columns);
    }
}

UNCHECKED_LOOP static void q8_panel(const cpu_matmul_work *k)
{
    touch_work(k);
    touch_range(k->scratch, cpu_matmul_scratch_bytes(k->w->cols));
    if (k->w->format->id == FORMAT_MXFP4)
        panel_all(k, true);
    else
        panel_all(k, false);
}

const cpu_matmul cpu_matmul_neon[] = {
    {"neon stream", "neon", CPU_INPUT_Q8, 1, q8_stream},
    {"neon 3x16 panel", "neon", CPU_INPUT_Q8, 16, q8_panel},
    {0},
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
