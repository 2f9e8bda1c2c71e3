/* The matrix kernels: every variant gives the bits of slow code written here from the definition in cpu_matmul.h, for every format, any
 * shape, any number of rows and any piece of the columns; and what rounding a row to 8 bits does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu_matmul.h"
#include "formats/scalar.h"

enum { ROUNDS = 60, MOST_ROWS = 40, MOST_COLUMNS = 40 };

static uint64_t word(uint64_t a, uint64_t b)
{
    return random_word(21, a, b);
}

static float value_at(uint64_t a, uint64_t b)
{
    uint64_t w = word(a, b);
    float sign = w & 1 ? -1.0f : 1.0f, unit = (float)(w >> 40) * 0x1p-24f;
    switch (w >> 1 & 15) {
    case 0: return sign * 0.0f;
    case 1: return sign * unit * 0x1p-30f;
    case 2: return sign * unit * 0x1p6f;
    default: return sign * unit;
    }
}

/* ---- a row in 8 bits, from the definition ---- */

typedef struct rounded {
    int *integers;
    float *scales; /* per 32 values */
} rounded;

static rounded rounded_of(const float *x, int64_t n)
{
    rounded r = {mem_alloc((size_t)n + 1, sizeof *r.integers), mem_alloc((size_t)n / 32 + 1, sizeof *r.scales)};
    for (int64_t b = 0; b * 32 < n; b++) {
        float amax = 0;
        int64_t end = (b + 1) * 32 < n ? (b + 1) * 32 : n;
        for (int64_t i = b * 32; i < end; i++)
            amax = fmaxf(amax, fabsf(x[i]));
        if (amax < 0x1p-100f)
            continue;
        volatile float inverse = 127.0f / amax, scale = amax / 127.0f;
        r.scales[b] = scale * 0.5f;
        for (int64_t i = b * 32; i < end; i++) {
            volatile float scaled = x[i] * inverse;
            r.integers[i] = (int)nearbyintf(scaled);
        }
    }
    return r;
}

static void rounded_free(rounded *r)
{
    free(r->integers);
    free(r->scales);
}

static int8_t stored_value(const cpu_q8 *q, int64_t i)
{
    const cpu_q8 *chunk = q + i / 256;
    int64_t in_group = i % 128;
    return chunk->values[i % 256 / 128 * 128 + in_group / 2 + (in_group % 2) * 64];
}

static void check_quantized(const float *x, int64_t n, const cpu_q8 *q)
{
    static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7}, halves[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    rounded r = rounded_of(x, n);
    for (int64_t i = 0; i < cpu_q8_chunks(n) * 256; i++)
        assert_int_equal(stored_value(q, i), i < n ? r.integers[i] : 0);
    for (int64_t b = 0; b < cpu_q8_chunks(n) * 8; b++) {
        int64_t block = b / 8 * 8 + order[b % 8];
        int sum = 0, half = 0;
        for (int64_t i = block * 32; i < block * 32 + 32; i++)
            sum += i < n ? r.integers[i] : 0;
        assert_true(float_bits(q[b / 8].scales[b % 8]) == float_bits(block * 32 < n ? r.scales[block] : 0.0f));
        assert_int_equal(q[b / 8].bias[b % 8][0] + q[b / 8].bias[b % 8][1], -12 * sum);
        for (int g = 0; g < 2; g++, half = 0) {
            for (int64_t i = b / 8 * 256 + g * 128 + halves[b % 8] * 16, end = i + 16; i < end; i++)
                half += i < n ? r.integers[i] : 0;
            assert_int_equal(q[b / 8].half_bias[g][b % 8][0] + q[b / 8].half_bias[g][b % 8][1], -12 * half);
        }
    }
    rounded_free(&r);
}

static void test_quantize(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 700; n += n < 40 ? 1 : 37) {
        float *x = mem_alloc((size_t)n, sizeof *x);
        cpu_q8 *q = mem_try_alloc_aligned((size_t)cpu_q8_chunks(n) * sizeof *q, 64);
        for (int64_t i = 0; i < n; i++)
            x[i] = value_at((uint64_t)n, (uint64_t)i);
        cpu_q8_quantize(x, n, q);
        check_quantized(x, n, q);
        free(x);
        free(q);
    }
}

/* Zeros, values too small to matter, and values that are no numbers: the last must show in the results. */
static void test_quantize_extremes(void **state)
{
    (void)state;
    float x[128] = {0};
    cpu_q8 q;
    x[40] = 1e-38f;
    x[70] = INFINITY;
    x[100] = NAN;
    cpu_q8_quantize(x, 128, &q);
    for (int i = 0; i < 256; i++)
        assert_int_equal(q.values[i], 0);
    assert_true(q.scales[cpu_q8_place(0)] == 0.0f && q.scales[cpu_q8_place(1)] == 0.0f);
    assert_true(isnan(q.scales[cpu_q8_place(2)]) && isnan(q.scales[cpu_q8_place(3)]));
}

/* ---- products from the definition ---- */

static float fold_slow(volatile float *lane, int lanes)
{
    for (int width = lanes / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] = lane[j] + lane[j + width];
    return lane[0];
}

static float slow_q8(const matrix *w, int64_t row, const float *x)
{
    static const int block_order[8] = {0, 2, 4, 6, 1, 3, 5, 7}, half_order[8] = {0, 1, 4, 5, 2, 3, 6, 7};
    bool mx = w->format->id == FORMAT_MXFP4;
    int64_t block = mx ? 32 : 16;
    volatile float lane[8] = {0};
    rounded r = rounded_of(x, w->cols);
    for (int64_t b = 0; b < w->cols / block; b++) {
        uint8_t code = w->scales[row * (w->cols / block) + b];
        volatile float scale = mx ? ldexpf(1.0f, code - 127) : e4m3_decode(code) * w->scale;
        volatile float both = scale * r.scales[b * block / 32];
        int sum = 0;
        for (int64_t i = b * block; i < (b + 1) * block; i++)
            sum += (int)(2 * e2m1_decode((uint8_t)(w->data[(row * w->cols + i) / 2] >> (i % 2 * 4)))) * r.integers[i];
        for (int place = 0; place < 8; place++)
            if ((mx ? block_order : half_order)[place] == b % 8)
                lane[place] = fmaf((float)sum, both, lane[place]);
    }
    rounded_free(&r);
    return fold_slow(lane, 8) + 0.0f;
}

static float slow_f32(const matrix *w, int64_t row, const float *x, bool fused)
{
    volatile float lane[16] = {0};
    float *weights = mem_alloc((size_t)w->cols + 1, sizeof *weights);
    matrix_row(w, row, weights);
    for (int64_t i = 0; i < w->cols; i++) {
        volatile float product = weights[i] * x[i];
        lane[i % 16] = fused ? fmaf(weights[i], x[i], lane[i % 16]) : lane[i % 16] + product;
    }
    free(weights);
    return fused ? fold_slow(lane, 16) + 0.0f : fold_slow(lane, 16);
}

static float slow_fp8(const matrix *w, int64_t row, const float *x)
{
    volatile float lane[16] = {0};
    bool block = w->format->id == FORMAT_FP8_BLOCK;
    for (int64_t i = 0; i < w->cols; i++) {
        float scale = 1.0f;
        if (block)
            memcpy(&scale, w->scales + 4 * (row / 128 * ((w->cols + 127) / 128) + i / 128), sizeof scale);
        volatile float raised = x[i] * (scale * 0x1p60f);
        lane[i % 16] = fmaf(e4m3_decode(w->data[row * w->cols + i]) * 0x1p-120f, raised, lane[i % 16]);
    }
    float scale = 1.0f;
    if (!block)
        memcpy(&scale, w->scales + 4 * row, sizeof scale);
    volatile float result = fold_slow(lane, 16) * (scale * 0x1p60f);
    return result + 0.0f;
}

/* ---- the variants against them ---- */

typedef struct fixture {
    matrix w;
    uint8_t *data, *scales; /* owned, each a block of its own */
    float *x;               /* [MOST_ROWS][cols] */
    void *prepared;         /* rows as the input wants them */
    size_t stride;
} fixture;

static fixture fixture_create(format_id id, uint64_t seed, int64_t rows, int64_t cols)
{
    fixture f = {.w = {.format = format_of(id), .rows = rows, .cols = cols, .scale = id == FORMAT_NVFP4 ? 0.0123f : 1.0f}};
    uint64_t data_bytes, scale_bytes;
    assert_true(format_data_bytes(f.w.format, rows, cols, &data_bytes) && format_scale_bytes(f.w.format, rows, cols, &scale_bytes));
    float *values = mem_alloc((size_t)(rows * cols) + 1, sizeof *values);
    for (int64_t i = 0; i < rows * cols; i++)
        values[i] = value_at(2 * seed, (uint64_t)i);
    f.data = mem_alloc(data_bytes + 1, 1);
    f.scales = mem_alloc(scale_bytes + 1, 1);
    f.w.format->encode(values, rows, cols, f.w.scale, f.data + 1, f.scales + 1); /* at an odd address */
    f.w.data = f.data + 1;
    f.w.scales = f.scales + 1;
    if (id == FORMAT_MXFP4) /* scales of all sizes, the smallest too */
        for (uint64_t i = 0; i < scale_bytes; i++)
            f.scales[1 + i] = (uint8_t)(word(seed, i) % 40 == 0 ? 0 : 100 + word(seed, i) % 40);
    f.x = mem_alloc((size_t)(MOST_ROWS * cols) + 1, sizeof *f.x);
    for (int64_t i = 0; i < MOST_ROWS * cols; i++)
        f.x[i] = value_at(2 * seed + 1, (uint64_t)i);
    free(values);
    return f;
}

static void fixture_prepare(fixture *f, cpu_input input)
{
    f->stride = input == CPU_INPUT_Q8 ? (size_t)cpu_q8_chunks(f->w.cols) * sizeof(cpu_q8) : (size_t)f->w.cols * sizeof(float);
    f->prepared = mem_try_alloc_aligned(MOST_ROWS * f->stride + 64, 64);
    for (int i = 0; i < MOST_ROWS; i++) {
        void *to = (char *)f->prepared + (size_t)i * f->stride;
        if (input == CPU_INPUT_Q8)
            cpu_q8_quantize(f->x + i * f->w.cols, f->w.cols, to);
        else
            memcpy(to, f->x + i * f->w.cols, f->stride);
    }
}

static void fixture_free(fixture *f)
{
    free(f->data);
    free(f->scales);
    free(f->x);
    free(f->prepared);
}

static float expected_value(const fixture *f, cpu_input input, int64_t column, int row)
{
    const float *x = f->x + row * f->w.cols;
    if (input == CPU_INPUT_Q8)
        return slow_q8(&f->w, column, x);
    return input == CPU_INPUT_F32 && cpu_is_fp8(&f->w) ? slow_fp8(&f->w, column, x) : slow_f32(&f->w, column, x, input == CPU_INPUT_F32);
}

/* Pieces of the columns, some rows in any order, in one variant. */
static void check_variant(const cpu_matmul *v, const fixture *f, const float *expected, uint64_t seed)
{
    enum { WIDE = MOST_COLUMNS + 3 };
    int32_t order[MOST_ROWS];
    float *y = mem_alloc(MOST_ROWS * WIDE, sizeof *y);
    void *scratch = mem_try_alloc_aligned(cpu_matmul_scratch_bytes(f->w.cols), 64);
    int rows = 1 + (int)(word(seed, 1) % (word(seed, 5) % 2 ? 6 : MOST_ROWS)), first = (int)(word(seed, 2) % (uint64_t)f->w.rows);
    int left = (int)f->w.rows - first, columns = 1 + (int)(word(seed, 3) % (uint64_t)(left < MOST_COLUMNS ? left : MOST_COLUMNS));
    bool gather = word(seed, 4) % 2;
    for (int i = 0; i < MOST_ROWS; i++)
        order[i] = (int32_t)(gather ? word(seed, 10 + (uint64_t)i) % MOST_ROWS : (uint64_t)i);
    for (int i = 0; i < MOST_ROWS * WIDE; i++)
        y[i] = 77.0f;
    cpu_matmul_work k = {&f->w, first, columns, f->prepared, f->stride, gather ? order : NULL, rows, y, WIDE, scratch, NULL};
    float *packed = mem_try_alloc_aligned(cpu_f32_packed_bytes(rows, f->w.cols), 64);
    if (cpu_matmul_packs(v) && word(seed, 6) % 2) {
        for (int i = 0; i < rows; i += CPU_PACK_ROWS)
            cpu_f32_pack(&k, i, packed);
        k.packed = packed;
    }
    v->run(&k);
    for (int i = 0; i < MOST_ROWS; i++)
        for (int c = 0; c < WIDE; c++) {
            float e = i < rows && c < columns ? expected[order[i] * f->w.rows + first + c] : 77.0f;
            if (float_bits(y[i * WIDE + c]) != float_bits(e))
                fail_msg("%s, %s, %lld x %lld, %d rows: row %d column %d is %a, expected %a", v->name, f->w.format->name,
                         (long long)f->w.rows, (long long)f->w.cols, rows, i, first + c, (double)y[i * WIDE + c], (double)e);
        }
    free(y);
    free(scratch);
    free(packed);
}

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "avx512_emulated.h"
void emulated_f32_panel(const cpu_matmul_work *k);
#include "device/cpu/cpu_matmul_avx512.c"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

/* All that this CPU can run, and those of AVX-512 by emulation. */
static const cpu_matmul *tested_variant(cpu_input input, int index)
{
    int known = 0;
    while (cpu_matmul_at(input, NULL, known))
        known++;
    if (index < known)
        return cpu_matmul_at(input, NULL, index);
#if defined(__x86_64__)
    index -= known;
    for (const cpu_matmul *v = emulated_matmul_avx512; v->name && cpu_matmul_set_known("avx2"); v++)
        if (v->input == input && index-- == 0)
            return v;
#endif
    return NULL;
}

static void check_format(format_id id, bool exact)
{
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t unit = id == FORMAT_MXFP4 ? 32 : id == FORMAT_NVFP4 ? 16 : round % 2 ? 16 : 1;
        int64_t cols = (1 + (int64_t)(word(round, 6) % (round % 3 ? 600 : 1300)) / unit) * unit;
        int64_t rows = (id == FORMAT_FP8_BLOCK && round % 4 == 0 ? 120 : 1) + (int64_t)(word(round, 7) % MOST_COLUMNS);
        fixture f = fixture_create(id, round, rows, cols);
        cpu_input input = cpu_input_of(f.w.format, exact);
        float *expected = mem_alloc((size_t)(MOST_ROWS * rows), sizeof *expected);
        fixture_prepare(&f, input);
        for (int i = 0; i < MOST_ROWS; i++)
            for (int64_t c = 0; c < rows; c++)
                expected[i * rows + c] = expected_value(&f, input, c, i);
        for (int v = 0; tested_variant(input, v); v++)
            for (uint64_t again = 0; again < 3; again++)
                check_variant(tested_variant(input, v), &f, expected, 100 * round + again);
        free(expected);
        fixture_free(&f);
    }
}

static void test_formats(void **state)
{
    (void)state;
    for (format_id id = 0; id < FORMAT_COUNT; id++)
        check_format(id, false);
}

static void test_exact(void **state)
{
    (void)state;
    check_format(FORMAT_BF16, true);
    check_format(FORMAT_FP8_BLOCK, true);
    check_format(FORMAT_MXFP4, true);
}

/* A weight or a scale that is no number shows in the result. */
static void test_not_a_number(void **state)
{
    (void)state;
    static const format_id ids[] = {FORMAT_F32, FORMAT_BF16, FORMAT_FP8_BLOCK, FORMAT_FP8_CHANNEL, FORMAT_MXFP4, FORMAT_NVFP4};
    for (size_t k = 0; k < sizeof ids / sizeof ids[0]; k++) {
        fixture f = fixture_create(ids[k], 5, 16, 512);
        cpu_input input = cpu_input_of(f.w.format, false);
        fixture_prepare(&f, input);
        void *scratch = mem_try_alloc_aligned(cpu_matmul_scratch_bytes(512), 64);
        if (input == CPU_INPUT_Q8)
            f.scales[1 + 3 * (512 / f.w.format->block_cols)] = ids[k] == FORMAT_MXFP4 ? 255 : 127;
        else
            memset(f.data + 1 + 3 * format_row_bytes(f.w.format, 512), 0x7F, 4); /* not a number in fp8 */
        if (ids[k] == FORMAT_F32 || ids[k] == FORMAT_BF16)
            memset(f.data + 1 + 3 * format_row_bytes(f.w.format, 512), 0xFF, 4);
        for (int v = 0; tested_variant(input, v); v++)
            for (int rows = 1; rows <= 9; rows += 4) {
                float y[9 * 16];
                tested_variant(input, v)->run(&(cpu_matmul_work){&f.w, 0, 16, f.prepared, f.stride, NULL, rows, y, 16, scratch, NULL});
                for (int i = 0; i < rows * 16; i++)
                    assert_int_equal(!isfinite(y[i]), i % 16 == 3);
            }
        free(scratch);
        fixture_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize),  cmocka_unit_test(test_quantize_extremes), cmocka_unit_test(test_formats),
        cmocka_unit_test(test_exact),     cmocka_unit_test(test_not_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
