/* The matrix kernels for CPUs with AVX2 and FMA: f32, bf16 and fp8 weights with f32 rows.
 *
 * Stream: for few rows. Weights are read once, in the order in which they lie, and decoded in registers; the 16 lanes of a sum are two
 * registers, and several columns run side by side, since the additions of one sum wait for each other.
 *
 * Panel: for many rows. Columns are decoded once, 16 side by side, and the rows turned likewise (cpu_f32_panel.h); then one lane after the
 * other is summed for six rows by 16 columns, 12 registers. Products of a register with one value of a row need eight loads for twelve
 * products, most of them small. (Measured on Zen 3, from the first cache: 97 % of the peak; 82 % when registers hold lanes instead.) */
#include "device/cpu/cpu_f32_panel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>

#include "device/cpu/cpu_matmul_loops.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per
 * file. What is included above is compiled for any CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

#include "device/cpu/cpu_matmul_x86.h" /* compiled for these instructions */

enum { MOST_ROWS = 4, MOST_COLUMNS = 4, TILE_ROWS = 6, ROW_AHEAD = 128, COLUMN_AHEAD = 512 }; /* values and bytes asked for in advance */

/* 16 e4m3 codes to the f32 that their bits are. A code goes to the upper byte of a 16-bit word, value i + 8 above value i, and from there,
 * by shifts within words, to its place: less work than in words of 32 bits from the start. */
CPU_LOOP void e4m3_moved(const uint8_t *codes, __m256 out[2])
{
    const __m256i deal = _mm256_setr_epi8(-1, 0, -1, 8, -1, 1, -1, 9, -1, 2, -1, 10, -1, 3, -1, 11, -1, 4, -1, 12, -1, 5, -1, 13, -1, 6, -1,
                                          14, -1, 7, -1, 15);
    const __m256i mask = _mm256_set1_epi32((int)0x87F00000u);
    __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)codes));
    __m256i words = _mm256_srai_epi16(_mm256_shuffle_epi8(both, deal), 4);
    out[0] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(words, 16), mask));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(words, mask));
}

/* 16 weights; fp8 ones as their bits moved. */
CPU_LOOP void weights_at(format_id id, const uint8_t *data, __m256 out[2])
{
    if (id == FORMAT_FP8_BLOCK) {
        e4m3_moved(data, out);
        return;
    }
    for (int half = 0; half < 2; half++)
        if (id == FORMAT_F32)
            out[half] = _mm256_loadu_ps((const float *)(const void *)(data + 32 * half));
        else
            out[half] = _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(data + 16 * half))), 16));
}

CPU_LOOP int64_t bytes_of(format_id id)
{
    return id == FORMAT_F32 ? 4 : id == FORMAT_BF16 ? 2 : 1;
}

/* Gathers the largest e4m3 magnitudes of codes, doubled: 0xFE is not a number. */
CPU_LOOP __m256i largest_codes(__m256i seen, __m256i codes)
{
    return _mm256_max_epu8(seen, _mm256_add_epi8(codes, codes));
}

CPU_LOOP __m256i sixteen_codes(const uint8_t *codes)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)codes));
}

CPU_LOOP bool all_numbers(__m256i seen)
{
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(seen, _mm256_set1_epi8((char)0xFE))) == 0;
}

/* ---- stream ---- */

/* Adds `count` values, a multiple of 16, of each column to the sums. */
CPU_LOOP void stream_step(const uint8_t *data, int64_t row_bytes, format_id id, int columns, const float *const *x, int rows, int64_t k,
                          int count, __m256 sum[][2])
{
    for (int i = 0; i < count; i += 16)
        for (int c = 0; c < columns; c++) {
            __m256 weights[2];
            weights_at(id, data + c * row_bytes + (k + i) * bytes_of(id), weights);
            for (int r = 0; r < rows; r++) {
                sum[r * columns + c][0] = _mm256_fmadd_ps(weights[0], _mm256_loadu_ps(x[r] + k + i), sum[r * columns + c][0]);
                sum[r * columns + c][1] = _mm256_fmadd_ps(weights[1], _mm256_loadu_ps(x[r] + k + i + 8), sum[r * columns + c][1]);
            }
        }
}

/* Columns of some rows over whole groups of 16 values; rows and columns are constants where this is inlined. False: one of the fp8 codes
 * is not a number. */
CPU_LOOP bool stream_tile(const uint8_t *data, format_id id, int64_t cols, int columns, const float *const *x, int rows, float *y,
                          size_t y_stride)
{
    int64_t bytes = bytes_of(id), row_bytes = cols * bytes, k = 0;
    __m256 sum[MOST_ROWS * MOST_COLUMNS][2];
    __m256i seen = _mm256_setzero_si256();
    for (int i = 0; i < rows * columns; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
    for (; k + 64 <= cols; k += 64) {
        for (int c = 0; c < columns; c++) {
            const uint8_t *at = data + c * row_bytes + k * bytes;
            for (int line = 0; line < bytes; line++) /* the same part of the columns that come next */
                _mm_prefetch((const char *)at + columns * row_bytes + 64 * line, _MM_HINT_T0);
            if (id == FORMAT_FP8_BLOCK)
                seen = largest_codes(largest_codes(seen, load(at)), load(at + 32));
        }
        stream_step(data, row_bytes, id, columns, x, rows, k, 64, sum);
    }
    for (; k < cols; k += 16) {
        for (int c = 0; id == FORMAT_FP8_BLOCK && c < columns; c++)
            seen = largest_codes(seen, sixteen_codes(data + c * row_bytes + k));
        stream_step(data, row_bytes, id, columns, x, rows, k, 16, sum);
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            y[(size_t)r * y_stride + (size_t)c] = fold(_mm256_add_ps(sum[r * columns + c][0], sum[r * columns + c][1]));
    return all_numbers(seen);
}

/* Columns that need a decoder which knows all codes. */
static void stream_decoded(const cpu_matmul_work *k, int first_row, int rows, int column, int columns)
{
    cpu_matmul_work part = *k;
    int32_t which[MOST_ROWS];
    for (int r = 0; r < rows; r++)
        which[r] = k->x_rows ? k->x_rows[first_row + r] : first_row + r;
    part.first += column;
    part.columns = columns;
    part.rows = rows;
    part.x_rows = which;
    part.y += (size_t)first_row * k->y_stride + (size_t)column;
    part.scratch = (float *)k->scratch + MOST_ROWS * k->w->cols; /* the raised rows lie in front */
    cpu_matmul_decoded_fused(&part);
}

/* A row as an fp8 product wants it: in columns from `column` to the end of their block. */
CPU_LOOP void raise_row(const matrix *w, int64_t column, const float *x, float *out)
{
    for (int64_t first = 0; first < w->cols; first += 128) {
        int64_t end = first + 128 < w->cols ? first + 128 : w->cols;
        float factor = w->format->id == FORMAT_FP8_CHANNEL ? CPU_FP8_RAISE : cpu_fp8_scale(w, column, first) * CPU_FP8_RAISE;
        for (int64_t i = first; i < end; i++)
            out[i] = x[i] * factor;
    }
}

/* Columns whose fp8 scales are those of one block, from column c on. */
static int columns_of_block(const cpu_matmul_work *k, int c)
{
    int in_block = 128 - (int)((k->first + c) % 128), left = k->columns - c;
    return k->w->format->id != FORMAT_FP8_BLOCK || left < in_block ? left : in_block;
}

/* Multiplies results of fp8 products by what is left of their scales. */
static void lower_results(const matrix *w, int64_t first, int columns, int rows, float *y, size_t y_stride)
{
    for (int c = 0; c < columns; c++) {
        float factor = w->format->id == FORMAT_FP8_CHANNEL ? cpu_fp8_scale(w, first + c, 0) * CPU_FP8_RAISE : CPU_FP8_RAISE;
        for (int r = 0; r < rows; r++)
            y[(size_t)r * y_stride + (size_t)c] = y[(size_t)r * y_stride + (size_t)c] * factor + 0.0f;
    }
}

/* Some rows and `columns` columns from c on, a constant where this is inlined. */
CPU_LOOP void stream_columns(const cpu_matmul_work *k, format_id id, int first, int rows, int columns, int c, const float *const *x)
{
    const uint8_t *data = k->w->data + (k->first + c) * k->w->cols * bytes_of(id);
    float *y = k->y + (size_t)first * k->y_stride + c;
    bool numbers = stream_tile(data, id, k->w->cols, columns, x, rows, y, k->y_stride);
    if (!numbers)
        stream_decoded(k, first, rows, c, columns);
    else if (id == FORMAT_FP8_BLOCK)
        lower_results(k->w, k->first + c, columns, rows, y, k->y_stride);
}

CPU_LOOP void stream_rows(const cpu_matmul_work *k, format_id id, int first, int rows, int columns)
{
    const float *x[MOST_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int c = 0, count; c < k->columns; c += count) {
        count = columns_of_block(k, c);
        for (int r = 0; id == FORMAT_FP8_BLOCK && r < rows; r++) {
            float *raised = (float *)k->scratch + r * k->w->cols;
            raise_row(k->w, k->first + c, cpu_work_row(k, first + r), raised);
            x[r] = raised;
        }
        int i = c;
        for (; i + columns <= c + count; i += columns)
            stream_columns(k, id, first, rows, columns, i, x);
        for (; i < c + count; i++)
            stream_columns(k, id, first, rows, 1, i, x);
    }
}

CPU_LOOP void stream_all(const cpu_matmul_work *k, format_id id)
{
    int first = 0;
    for (; first + 4 <= k->rows; first += 4)
        stream_rows(k, id, first, 4, 1);
    for (; first + 2 <= k->rows; first += 2)
        stream_rows(k, id, first, 2, 2);
    if (first < k->rows)
        stream_rows(k, id, first, 1, id == FORMAT_FP8_BLOCK ? 4 : 2);
}

UNCHECKED_LOOP void cpu_f32_stream_avx2(const cpu_matmul_work *k)
{
    touch_work(k, (size_t)k->w->cols * sizeof(float));
    if (k->w->cols % 16 != 0)
        cpu_matmul_decoded_fused(k);
    else if (k->w->format->id == FORMAT_F32)
        stream_all(k, FORMAT_F32);
    else if (k->w->format->id == FORMAT_BF16)
        stream_all(k, FORMAT_BF16);
    else if (cpu_is_fp8(k->w))
        stream_all(k, FORMAT_FP8_BLOCK);
    else
        cpu_matmul_decoded_fused(k);
}

/* ---- panel ---- */

CPU_LOOP void transpose(__m256 r[8])
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

/* Half a step of eight columns or rows, eight values each, to their lanes: out[lane * stride]. */
CPU_LOOP void store_lanes(__m256 v[8], float *out, int64_t stride)
{
    transpose(v);
    for (int i = 0; i < 8; i++)
        _mm256_storeu_ps(out + i * stride, v[i]);
}

/* Eight weights, as weights_at gives them. */
CPU_LOOP __m256 eight_weights(format_id id, const uint8_t *data)
{
    if (id == FORMAT_F32)
        return _mm256_loadu_ps((const float *)(const void *)data);
    if (id == FORMAT_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)data)), 16));
    __m256i words = _mm256_slli_epi32(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)data)), 20);
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0x87F00000u)));
}

/* One step of eight columns; fp8 weights times 2^-60, which are no denormal numbers. */
CPU_LOOP void fill_step(format_id id, const uint8_t *const *columns, int64_t at, __m256i *seen, float *out, int64_t stride)
{
    const __m256 raise = _mm256_set1_ps(1.0f / (CPU_FP8_LOWER * CPU_FP8_RAISE));
    for (int c = 0; id == FORMAT_FP8_BLOCK && c < 8; c += 2)
        *seen = largest_codes(*seen, _mm256_loadu2_m128i((const __m128i *)(const void *)(columns[c] + at),
                                                         (const __m128i *)(const void *)(columns[c + 1] + at)));
    for (int half = 0; half < 2; half++) {
        __m256 v[8];
        for (int c = 0; c < 8; c++) {
            if (half == 0 && at % 64 == 0)
                _mm_prefetch((const char *)columns[c] + at + COLUMN_AHEAD, _MM_HINT_T0);
            v[c] = eight_weights(id, columns[c] + at + half * 8 * bytes_of(id));
            v[c] = id == FORMAT_FP8_BLOCK ? _mm256_mul_ps(v[c], raise) : v[c];
        }
        store_lanes(v, out + half * 8 * stride, stride);
    }
}

/* All of a panel; both halves of a cache line one after the other. */
CPU_LOOP void fill_columns(const f32_panel *p, format_id id, const uint8_t *const *columns, int64_t cols, float *out)
{
    int64_t bytes = bytes_of(id), whole = cols / 16;
    __m256i seen = _mm256_setzero_si256();
    for (int64_t step = 0; step < whole; step++)
        for (int c = 0; c < CPU_PANEL_COLUMNS; c += 8)
            fill_step(id, columns + c, step * 16 * bytes, &seen, out + step * CPU_PANEL_COLUMNS + c, p->weight_lane);
    if (whole < p->steps) {
        uint8_t end[CPU_PANEL_COLUMNS][64] = {0};
        const uint8_t *ends[CPU_PANEL_COLUMNS];
        for (int c = 0; c < CPU_PANEL_COLUMNS; c++)
            ends[c] = memcpy(end[c], columns[c] + whole * 16 * bytes, (size_t)((cols - whole * 16) * bytes));
        for (int c = 0; c < CPU_PANEL_COLUMNS; c += 8)
            fill_step(id, ends + c, 0, &seen, out + whole * CPU_PANEL_COLUMNS + c, p->weight_lane);
    }
    for (int64_t k = 0; !all_numbers(seen) && k < cols; k++)
        for (int c = 0; c < CPU_PANEL_COLUMNS; c++)
            if ((columns[c][k] & 0x7F) == 0x7F)
                out[k % 16 * p->weight_lane + k / 16 * CPU_PANEL_COLUMNS + c] = NAN;
}

/* 16 columns; where there are fewer, the last one stands in. 4-bit weights are decoded first, in the memory of the rows. */
UNCHECKED_LOOP static void fill_panel(const f32_panel *p, const matrix *w, int64_t first, int columns, float *out)
{
    const uint8_t *column[CPU_PANEL_COLUMNS];
    format_id id = cpu_is_fp8(w) ? FORMAT_FP8_BLOCK : w->format->id;
    bool packed = id == FORMAT_MXFP4 || id == FORMAT_NVFP4;
    for (int c = 0; c < CPU_PANEL_COLUMNS; c++) {
        int64_t row = first + (c < columns ? c : columns - 1);
        column[c] = packed ? (const uint8_t *)(p->rows + c * w->cols) : w->data + (size_t)row * format_row_bytes(w->format, w->cols);
        if (packed)
            matrix_row(w, row, p->rows + c * w->cols);
    }
    if (id == FORMAT_FP8_BLOCK)
        fill_columns(p, FORMAT_FP8_BLOCK, column, w->cols, out);
    else if (id == FORMAT_BF16)
        fill_columns(p, FORMAT_BF16, column, w->cols, out);
    else
        fill_columns(p, FORMAT_F32, column, w->cols, out);
}

/* One step of eight rows. */
CPU_LOOP void pack_step(const float *const *x, int64_t at, float *out, int64_t stride)
{
    for (int half = 0; half < 2; half++) {
        __m256 v[8];
        for (int r = 0; r < 8; r++) {
            if (half == 0)
                _mm_prefetch((const char *)(x[r] + at + ROW_AHEAD), _MM_HINT_T0);
            v[r] = _mm256_loadu_ps(x[r] + at + half * 8);
        }
        store_lanes(v, out + half * 8 * stride, stride);
    }
}

CPU_LOOP void pack_eight(const float *const *x, int64_t cols, float *out, int64_t stride)
{
    int64_t whole = cols / 16;
    for (int64_t step = 0; step < whole; step++)
        pack_step(x, step * 16, out + step * F32_ROWS, stride);
    if (whole * 16 < cols) {
        float end[8][16] = {0};
        const float *ends[8];
        for (int r = 0; r < 8; r++)
            ends[r] = memcpy(end[r], x[r] + whole * 16, (size_t)(cols - whole * 16) * sizeof(float));
        pack_step(ends, 0, out + whole * F32_ROWS, stride);
    }
}

UNCHECKED_LOOP void cpu_f32_pack_avx2(const float *const *x, int rows, int64_t cols, float *out)
{
    f32_panel p = f32_panel_of(cols, NULL);
    for (int group = 0; group < rows; group += 8) {
        const float *eight[8];
        for (int r = 0; r < 8; r++)
            eight[r] = x[group + r < rows ? group + r : rows - 1];
        pack_eight(eight, cols, out + group, p.row_lane);
    }
}

/* The 2^60 of fp8 products is with the weights. */
UNCHECKED_LOOP const float *cpu_f32_lane_avx2(const f32_panel *p, const f32_rows *in, int lane)
{
    const __m256 lower = _mm256_set1_ps(1.0f / CPU_FP8_RAISE);
    const float *from = in->packed + lane * p->row_lane;
    float *out = in->packed == p->rows ? p->rows + lane * p->row_lane : p->rows; /* in place; or all lanes in the place of the first */
    if (in->w->format->id != FORMAT_FP8_BLOCK)
        return from;
    for (int64_t step = 0; step < p->steps; step += 8) {
        const __m256 raise = _mm256_set1_ps(cpu_fp8_scale(in->w, in->column, step * 16) * CPU_FP8_RAISE);
        int64_t end = (step + 8 < p->steps ? step + 8 : p->steps) * F32_ROWS;
        for (int64_t i = step * F32_ROWS; i < end; i += 8)
            _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(from + i), raise), lower));
    }
    return out;
}

/* Rows first .. of the work. */
static f32_rows rows_of(const f32_panel *p, const cpu_matmul_work *k, int64_t column, int first, int rows)
{
    f32_rows in = {k->packed ? k->packed + first / F32_ROWS * f32_block_floats(k->w->cols) : p->rows, k->w, column};
    if (!k->packed) {
        const float *x[F32_ROWS];
        for (int r = 0; r < rows; r++)
            x[r] = cpu_work_row(k, first + r);
        cpu_f32_pack_avx2(x, rows, k->w->cols, p->rows);
    }
    return in;
}

/* One lane of six rows and 16 columns. */
CPU_LOOP void panel_tile(const float *w, const float *x, int64_t steps, float *out)
{
    __m256 sum[TILE_ROWS][2];
    for (int r = 0; r < TILE_ROWS; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_ps();
    for (int64_t i = 0; i < steps; i++, w += CPU_PANEL_COLUMNS, x += F32_ROWS) {
        __m256 w0 = _mm256_loadu_ps(w), w1 = _mm256_loadu_ps(w + 8);
        for (int r = 0; r < TILE_ROWS; r++) {
            __m256 in = _mm256_broadcast_ss(x + r);
            sum[r][0] = _mm256_fmadd_ps(in, w0, sum[r][0]);
            sum[r][1] = _mm256_fmadd_ps(in, w1, sum[r][1]);
        }
    }
    for (int r = 0; r < TILE_ROWS; r++) {
        _mm256_storeu_ps(out + r * CPU_PANEL_COLUMNS, sum[r][0]);
        _mm256_storeu_ps(out + r * CPU_PANEL_COLUMNS + 8, sum[r][1]);
    }
}

/* The lanes of a row to its results, times a factor per column. */
CPU_LOOP void fold_row(const float *lanes, const float *factors, int columns, float *y)
{
    enum { LANE = F32_PANELS * F32_PANEL_SUMS };
    __m256 all[2];
    for (int v = 0; v < 2; v++) {
        __m256 l[8];
        for (int i = 0; i < 8; i++)
            l[i] = _mm256_add_ps(_mm256_loadu_ps(lanes + i * LANE + v * 8), _mm256_loadu_ps(lanes + (i + 8) * LANE + v * 8));
        for (int width = 4; width > 0; width /= 2)
            for (int i = 0; i < width; i++)
                l[i] = _mm256_add_ps(l[i], l[i + width]);
        all[v] = _mm256_add_ps(_mm256_mul_ps(l[0], _mm256_loadu_ps(factors + v * 8)), _mm256_setzero_ps());
    }
    if (columns == CPU_PANEL_COLUMNS) {
        _mm256_storeu_ps(y, all[0]);
        _mm256_storeu_ps(y + 8, all[1]);
    } else {
        memcpy(y, all, (size_t)columns * sizeof *y);
    }
}

static void column_factors(const matrix *w, int64_t first, int columns, float factors[CPU_PANEL_COLUMNS])
{
    for (int c = 0; c < CPU_PANEL_COLUMNS; c++) {
        int64_t column = first + (c < columns ? c : columns - 1);
        factors[c] = w->format->id == FORMAT_FP8_CHANNEL ? cpu_fp8_scale(w, column, 0) : 1.0f;
        factors[c] *= cpu_is_fp8(w) ? CPU_FP8_RAISE : 1.0f;
    }
}

/* Some packed rows and all panels. */
UNCHECKED_LOOP static void panel_sums(const f32_panel *p, const f32_rows *in, int rows, int panels)
{
    for (int lane = 0; lane < F32_LANES; lane++) {
        const float *packed = cpu_f32_lane_avx2(p, in, lane);
        for (int i = 0; i < panels; i++)
            for (int r = 0; r < rows; r += TILE_ROWS)
                panel_tile(p->weights + (i * F32_LANES + lane) * p->weight_lane, packed + r, p->steps,
                           p->lanes + (lane * F32_PANELS + i) * F32_PANEL_SUMS + r * CPU_PANEL_COLUMNS);
    }
}

/* Rows first .. and columns c .. of the panels. */
static void panel_rows(const f32_panel *p, const cpu_matmul_work *k, f32_sums sums, int first, int rows, int c, int columns,
                       float factors[F32_PANELS][CPU_PANEL_COLUMNS])
{
    int panels = (columns + CPU_PANEL_COLUMNS - 1) / CPU_PANEL_COLUMNS;
    f32_rows in = rows_of(p, k, k->first + c, first, rows);
    sums(p, &in, rows, panels);
    for (int i = 0; i < panels; i++) {
        int at = i * CPU_PANEL_COLUMNS, count = columns - at < CPU_PANEL_COLUMNS ? columns - at : CPU_PANEL_COLUMNS;
        for (int r = 0; r < rows; r++)
            fold_row(p->lanes + i * F32_PANEL_SUMS + r * CPU_PANEL_COLUMNS, factors[i], count,
                     k->y + (size_t)(first + r) * k->y_stride + c + at);
    }
}

void cpu_f32_panel_run(const cpu_matmul_work *k, f32_sums sums)
{
    f32_panel p = f32_panel_of(k->w->cols, k->scratch);
    touch_work(k, (size_t)k->w->cols * sizeof(float));
    touch_range(k->scratch, cpu_matmul_scratch_bytes(k->w->cols));
    if (k->packed)
        touch_range(k->packed, cpu_f32_packed_bytes(k->rows, k->w->cols));
    for (int c = 0, count; c < k->columns; c += count) {
        float factors[F32_PANELS][CPU_PANEL_COLUMNS];
        count = columns_of_block(k, c);
        count = count < F32_PANELS * CPU_PANEL_COLUMNS ? count : F32_PANELS * CPU_PANEL_COLUMNS;
        for (int i = 0; i < count; i += CPU_PANEL_COLUMNS) {
            int columns = count - i < CPU_PANEL_COLUMNS ? count - i : CPU_PANEL_COLUMNS;
            fill_panel(&p, k->w, k->first + c + i, columns, p.weights + i / CPU_PANEL_COLUMNS * F32_LANES * p.weight_lane);
            column_factors(k->w, k->first + c + i, columns, factors[i / CPU_PANEL_COLUMNS]);
        }
        for (int first = 0; first < k->rows; first += F32_ROWS)
            panel_rows(&p, k, sums, first, k->rows - first < F32_ROWS ? k->rows - first : F32_ROWS, c, count, factors);
    }
}

void cpu_f32_panel_avx2(const cpu_matmul_work *k)
{
    cpu_f32_panel_run(k, panel_sums);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
