/* The matrix kernels for any CPU, and the choice between all of them. */
#include "device/cpu/cpu_matmul.h"

#include <math.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "device/cpu/cpu_f32_panel.h"
#include "device/cpu/cpu_matmul_loops.h"
#include "formats/decode_kernels.h"

cpu_input cpu_input_of(const format *f, bool exact)
{
    if (exact)
        return CPU_INPUT_EXACT;
    return f->id == FORMAT_MXFP4 || f->id == FORMAT_NVFP4 ? CPU_INPUT_Q8 : CPU_INPUT_F32;
}

/* A panel of decoded columns: 16 of one byte per value with scales and lanes; or several of f32, with rows and lanes (cpu_f32_panel.h). */
size_t cpu_matmul_scratch_bytes(int64_t cols)
{
    size_t chunks = (size_t)cpu_q8_chunks(cols), wide = chunks * CPU_Q8_CHUNK;
    size_t q8 = CPU_PANEL_COLUMNS * (wide + wide / 16 * sizeof(float)) + (size_t)8 * CPU_PANEL_ROWS * CPU_PANEL_COLUMNS * sizeof(float);
    size_t f32 = f32_panel_floats(cols) * sizeof(float);
    return q8 > f32 ? q8 : f32;
}

size_t cpu_f32_packed_bytes(int rows, int64_t cols)
{
    return (size_t)((rows + CPU_PACK_ROWS - 1) / CPU_PACK_ROWS * f32_block_floats(cols)) * sizeof(float);
}

#if defined(__x86_64__)
bool cpu_matmul_packs(const cpu_matmul *v)
{
    return v->run == cpu_f32_panel_avx2 || v->run == cpu_f32_panel_avx512;
}

void cpu_f32_pack(const cpu_matmul_work *k, int first, float *out)
{
    const float *x[CPU_PACK_ROWS];
    int rows = k->rows - first < CPU_PACK_ROWS ? k->rows - first : CPU_PACK_ROWS;
    for (int r = 0; r < rows; r++) {
        x[r] = cpu_work_row(k, first + r);
        touch_range(x[r], (size_t)k->w->cols * sizeof(float));
    }
    cpu_f32_pack_avx2(x, rows, k->w->cols, out + first / CPU_PACK_ROWS * f32_block_floats(k->w->cols));
}
#else
bool cpu_matmul_packs(const cpu_matmul *v)
{
    (void)v;
    return false;
}

void cpu_f32_pack(const cpu_matmul_work *k, int first, float *out)
{
    (void)k, (void)first, (void)out; /* no kernel asks for it */
}
#endif

/* ---- decode to f32, then dot products ---- */

typedef void (*dots_function)(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y);

enum { DECODED_ROWS = 24 };

/* Row i of the work as an fp8 product wants it. */
UNCHECKED_LOOP static void raise_row(const cpu_matmul_work *k, int i, int64_t column, float *out)
{
    const float *x = cpu_work_row(k, i);
    for (int64_t first = 0; first < k->w->cols; first += 128) {
        int64_t end = first + 128 < k->w->cols ? first + 128 : k->w->cols;
        float factor = k->w->format->id == FORMAT_FP8_CHANNEL ? CPU_FP8_RAISE : cpu_fp8_scale(k->w, column, first) * CPU_FP8_RAISE;
        for (int64_t j = first; j < end; j++)
            out[j] = x[j] * factor;
    }
}

/* Some rows times decoded columns, to y[row][CPU_COLUMN_BLOCK]. */
static void decoded_dots(const cpu_matmul_work *k, const float *decoded, int first, int rows, int columns, dots_function dots, float *y)
{
    const float *x[DECODED_ROWS];
    for (int i = 0; i < rows; i++) {
        x[i] = cpu_work_row(k, first + i);
        touch_range(x[i], (size_t)k->w->cols * sizeof(float));
    }
    dots(decoded, k->w->cols, columns, x, rows, k->w->cols, y);
}

/* The same with fp8 weights, whose columns share their blocks. */
static void fp8_dots(const cpu_matmul_work *k, float *decoded, int first, int rows, int64_t column, int columns, dots_function dots,
                     float *y)
{
    const float *raised = decoded + CPU_COLUMN_BLOCK * k->w->cols;
    for (int i = 0; i < rows; i++) {
        touch_range(cpu_work_row(k, first + i), (size_t)k->w->cols * sizeof(float));
        raise_row(k, first + i, column, decoded + CPU_COLUMN_BLOCK * k->w->cols);
        dots(decoded, k->w->cols, columns, &raised, 1, k->w->cols, y + i * CPU_COLUMN_BLOCK);
        for (int c = 0; c < columns; c++) {
            float factor = k->w->format->id == FORMAT_FP8_CHANNEL ? cpu_fp8_scale(k->w, column + c, 0) * CPU_FP8_RAISE : CPU_FP8_RAISE;
            y[i * CPU_COLUMN_BLOCK + c] = y[i * CPU_COLUMN_BLOCK + c] * factor + 0.0f;
        }
    }
}

static void decoded_rows(const cpu_matmul_work *k, float *decoded, int column, int columns, bool fp8, dots_function dots)
{
    float y[DECODED_ROWS * CPU_COLUMN_BLOCK];
    for (int first = 0, count; first < k->rows; first += count) {
        count = k->rows - first < DECODED_ROWS ? k->rows - first : DECODED_ROWS;
        if (fp8)
            fp8_dots(k, decoded, first, count, k->first + column, columns, dots, y);
        else
            decoded_dots(k, decoded, first, count, columns, dots, y);
        for (int i = 0; i < count; i++)
            memcpy(k->y + (size_t)(first + i) * k->y_stride + column, y + i * CPU_COLUMN_BLOCK, (size_t)columns * sizeof *y);
    }
}

/* An fp8 row as its bits moved. */
static void lowered_row(const matrix *w, int64_t row, float *out)
{
    for (int64_t i = 0; i < w->cols; i++)
        out[i] = e4m3_values[w->data[row * w->cols + i]] * CPU_FP8_LOWER;
}

static void decoded_run(const cpu_matmul_work *k, bool exact, dots_function dots)
{
    float *decoded = k->scratch;
    bool fp8 = !exact && cpu_is_fp8(k->w);
    for (int c = 0, columns; c < k->columns; c += columns) {
        int in_block = 128 - (int)((k->first + c) % 128);
        columns = k->columns - c < CPU_COLUMN_BLOCK ? k->columns - c : CPU_COLUMN_BLOCK;
        columns = columns < in_block ? columns : in_block;
        for (int i = 0; i < columns; i++)
            if (fp8)
                lowered_row(k->w, k->first + c + i, decoded + i * k->w->cols);
            else
                matrix_row(k->w, k->first + c + i, decoded + i * k->w->cols);
        decoded_rows(k, decoded, c, columns, fp8, dots);
    }
}

static void exact_generic(const cpu_matmul_work *k)
{
    decoded_run(k, true, cpu_kernels_generic.dots);
}

static void fused_generic(const cpu_matmul_work *k)
{
    decoded_run(k, false, cpu_kernels_generic.dots_fused);
}

#if defined(__x86_64__)
static void exact_avx2(const cpu_matmul_work *k)
{
    decoded_run(k, true, cpu_kernels_avx2.dots);
}

void cpu_matmul_decoded_fused(const cpu_matmul_work *k)
{
    decoded_run(k, false, cpu_kernels_avx2.dots_fused);
}
#endif

/* ---- 4-bit weights and 8-bit rows ---- */

static const int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float fold(const float lane[8])
{
    float a = (lane[0] + lane[4]) + (lane[2] + lane[6]), b = (lane[1] + lane[5]) + (lane[3] + lane[7]);
    return (a + b) + 0.0f;
}

/* The products of codes first .. first + 7, two to a byte: 16 values. */
UNCHECKED_LOOP static int half_sum(const uint8_t *codes, const int8_t *even)
{
    int sum = 0;
    for (int i = 0; i < 8; i++)
        sum += TWICE_E2M1[codes[i] & 15] * even[i] + TWICE_E2M1[codes[i] >> 4] * even[64 + i];
    return sum;
}

UNCHECKED_LOOP static float dot_mxfp4(q8_column w, int64_t cols, const cpu_q8 *x)
{
    float lane[8] = {0};
    for (int64_t b = 0; b < cols / MXFP4_BLOCK; b++) {
        const cpu_q8 *chunk = x + b / CPU_Q8_BLOCKS;
        int at = (int)(b % CPU_Q8_BLOCKS), place = cpu_q8_place(at);
        const int8_t *even = chunk->values + at / 4 * 128 + at % 4 * 16;
        int sum = half_sum(w.codes + b * 16, even) + half_sum(w.codes + b * 16 + 8, even + 8);
        lane[place] = fmaf((float)sum, q8_e8m0(w.scales[b]) * chunk->scales[place], lane[place]);
    }
    return fold(lane);
}

UNCHECKED_LOOP static float dot_nvfp4(q8_column w, int64_t cols, float outer, const cpu_q8 *x)
{
    float lane[8] = {0};
    for (int64_t h = 0; h < cols / NVFP4_BLOCK; h++) {
        const cpu_q8 *chunk = x + h / (2 * CPU_Q8_BLOCKS);
        int at = (int)(h % (2 * CPU_Q8_BLOCKS)), place = cpu_q8_half_place(at % 8);
        float weight = e4m3_values[w.scales[h]] * outer;
        int sum = half_sum(w.codes + h * 8, chunk->values + at / 8 * 128 + at % 8 * 8);
        lane[place] = fmaf((float)sum, weight * chunk->scales[cpu_q8_place(at / 2)], lane[place]);
    }
    return fold(lane);
}

static void q8_generic(const cpu_matmul_work *k)
{
    int64_t cols = k->w->cols;
    bool mx = k->w->format->id == FORMAT_MXFP4;
    for (int c = 0; c < k->columns; c++) {
        q8_column w = q8_column_at(k->w, k->first + c);
        touch_range(w.codes, (size_t)cols / 2);
        touch_range(w.scales, (size_t)(cols / k->w->format->block_cols));
        for (int i = 0; i < k->rows; i++) {
            const cpu_q8 *x = cpu_work_row(k, i);
            touch_range(x, (size_t)cpu_q8_chunks(cols) * sizeof *x);
            k->y[(size_t)i * k->y_stride + (size_t)c] = mx ? dot_mxfp4(w, cols, x) : dot_nvfp4(w, cols, k->w->scale, x);
        }
    }
}

UNCHECKED_LOOP static void q8_quantize_generic(const float *x, int64_t n, cpu_q8 *out)
{
    q8_quantize(x, n, out);
}

void cpu_q8_quantize(const float *x, int64_t n, cpu_q8 *out)
{
    touch_range(x, (size_t)n * sizeof *x);
    touch_range(out, (size_t)cpu_q8_chunks(n) * sizeof *out);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        cpu_q8_quantize_avx2(x, n, out);
        return;
    }
#endif
    q8_quantize_generic(x, n, out);
}

/* ---- the variants ---- */

const cpu_matmul cpu_matmul_generic[] = {
    {"generic", "generic", CPU_INPUT_EXACT, 1, exact_generic},
    {"generic", "generic", CPU_INPUT_F32, 1, fused_generic},
    {"generic", "generic", CPU_INPUT_Q8, 1, q8_generic},
    {0},
};

#if defined(__x86_64__)
static const cpu_matmul avx2_decoded[] = {
    {"avx2 3x2", "avx2", CPU_INPUT_EXACT, 1, exact_avx2},
    {0},
};
#endif

/* A table of variants, when this CPU can run it. __builtin_cpu_supports (gcc, clang) also asks whether the system saves the registers. */
static const cpu_matmul *table_at(int index)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && index-- == 0)
        return cpu_matmul_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (index < 2)
            return index == 0 ? avx2_decoded : cpu_matmul_avx2;
        index -= 2;
    }
#endif
#if defined(__aarch64__)
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP && index-- == 0)
        return cpu_matmul_neon;
#endif
    return index == 0 ? cpu_matmul_generic : NULL;
}

static const cpu_matmul *variant_at(cpu_input input, const char *set, int index)
{
    const cpu_matmul *v;
    for (int t = 0; (v = table_at(t)); t++)
        for (; v->name; v++)
            if (v->input == input && (!set || strcmp(v->set, set) == 0) && index-- == 0)
                return v;
    return NULL;
}

const cpu_matmul *cpu_matmul_at(cpu_input input, const char *set, int index)
{
    return variant_at(input, set && variant_at(input, set, 0) ? set : NULL, index);
}

int cpu_matmul_by_rule(cpu_input input, const char *set, int rows)
{
    int best = 0;
    const cpu_matmul *v, *found = NULL;
    for (int i = 0; (v = cpu_matmul_at(input, set, i)); i++)
        if (v->from_rows > 0 && v->from_rows <= rows && (!found || (strcmp(v->set, found->set) == 0 && v->from_rows > found->from_rows))) {
            found = v;
            best = i;
        }
    return best;
}

bool cpu_matmul_set_known(const char *set)
{
    for (int i = 0; i < CPU_INPUT_COUNT; i++)
        if (variant_at((cpu_input)i, set, 0))
            return true;
    return false;
}
