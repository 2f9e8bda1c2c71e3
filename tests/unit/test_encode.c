/* The quantizer's encoding kernels: bytes of every target, rule and variant against slow code written here from the definitions (nearest
 * value by trying all of them, scales by trying them or through frexp, all in double), over random and adversarial
 * blocks; statistics, refusals, and the built-in model's own bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "fixtures.h"
#include "formats/format.h"
#include "formats/safetensors.h"
#include "formats/scalar.h"
#include "quantize/encode.h"

/* ---- the slow reference ---- */

static const double e2m1_ladder[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static double e4m3_ladder(int code)
{
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10);
}

/* The nearest of `count` magnitudes, of two equally near the even one; at and beyond the last: the last. */
static int nearest(double (*value)(int), int count, double magnitude)
{
    int best = 0;
    for (int code = 1; code < count; code++) {
        double d = fabs(value(code) - magnitude), b = fabs(value(best) - magnitude);
        if (d < b || (d == b && code % 2 == 0))
            best = code;
    }
    return magnitude >= value(count - 1) ? count - 1 : best;
}

static double e2m1_step(int code)
{
    return e2m1_ladder[code];
}

static int slow_e2m1(double x)
{
    return nearest(e2m1_step, 8, fabs(x)) | (signbit(x) ? 8 : 0);
}

static int slow_e4m3(double x)
{
    return nearest(e4m3_ladder, 127, fabs(x)) | (signbit(x) ? 0x80 : 0);
}

static float slow_amax(const float *x, int count)
{
    float amax = 0.0f;
    for (int i = 0; i < count; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    return amax;
}

/* The rules in words (encode.h); a code below 0 becomes 0. */
static int slow_mxfp4_scale(float amax, scale_rule rule)
{
    if (amax < FLT_MIN)
        return 0;
    int exponent, code = 0;
    double m = frexp((double)amax, &exponent) * 2.0;
    if (rule == SCALE_CEIL) {
        while (ldexp((double)amax, 127 - code) > 6.0)
            code++;
        return code;
    }
    code = exponent - 1 - 2 + 127 + (rule == SCALE_EVEN && m >= 1.75);
    return code < 0 ? 0 : code;
}

/* The order of sums that encode_kernels.h promises. */
static double lanes_total(const double *t)
{
    return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

static double slow_mxfp4_error(const float *x, int code, const float *importance)
{
    double lane[8] = {0};
    for (int i = 0; i < 32; i++) {
        double y = e2m1_ladder[slow_e2m1((double)x[i] * ldexp(1.0, 127 - code)) & 7] * ldexp(1.0, code - 127), e = fabs((double)x[i]) - y;
        lane[i % 8] += importance ? e * e * (double)importance[i] : e * e;
    }
    return lanes_total(lane);
}

static double slow_nvfp4_error(const float *x, int code, float tensor_scale, const float *importance)
{
    double lane[8] = {0};
    float block_scale = (float)e4m3_ladder(code), scale = block_scale * tensor_scale;
    for (int i = 0; i < 16; i++) {
        float y = (float)((double)(float)e2m1_ladder[slow_e2m1((double)(x[i] / scale)) & 7] * (double)block_scale) * tensor_scale;
        double e = (double)fabsf(x[i]) - (double)y;
        lane[i % 8] += importance ? e * e * (double)importance[i] : e * e;
    }
    return lanes_total(lane);
}

static void slow_mxfp4(const float *x, const encode_options *o, const float *importance, uint8_t *codes, uint8_t *scale)
{
    int own = slow_mxfp4_scale(slow_amax(x, 32), o->rule), best = own;
    static const int order[] = {0, -1, 1};
    for (int k = 0; k < 3 && o->search; k++)
        if (own + order[k] >= 0 && own + order[k] <= 254 &&
            slow_mxfp4_error(x, own + order[k], importance) < slow_mxfp4_error(x, best, importance))
            best = own + order[k];
    *scale = (uint8_t)best;
    for (int i = 0; i < 32; i += 2)
        codes[i / 2] = (uint8_t)(slow_e2m1((double)x[i] * ldexp(1.0, 127 - best)) |
                                 slow_e2m1((double)x[i + 1] * ldexp(1.0, 127 - best)) << 4);
}

static void slow_nvfp4(const float *x, const encode_options *o, float tensor_scale, const float *importance, uint8_t *codes, uint8_t *out)
{
    float amax = slow_amax(x, 16);
    int own = amax == 0.0f ? 0x38 : slow_e4m3((double)(amax / (6.0f * tensor_scale))), best = own;
    if (o->search && amax > 0.0f && (float)e4m3_ladder(own) * tensor_scale > 0.0f)
        for (int code = own - 2 < 1 ? 1 : own - 2; code <= own + 6 && code < 127; code++)
            if (slow_nvfp4_error(x, code, tensor_scale, importance) < slow_nvfp4_error(x, best, tensor_scale, importance))
                best = code;
    float scale = (float)e4m3_ladder(best) * tensor_scale;
    *out = (uint8_t)best;
    for (int i = 0; i < 16; i += 2)
        codes[i / 2] = (uint8_t)(scale == 0.0f ? 0 : slow_e2m1((double)(x[i] / scale)) | slow_e2m1((double)(x[i + 1] / scale)) << 4);
}

static void slow_fp8(const float *x, int64_t rows, int64_t cols, uint8_t *data, uint8_t *scales)
{
    for (int64_t r = 0; r < rows; r += 128)
        for (int64_t c = 0; c < cols; c += 128, scales += 4) {
            float amax = 0.0f;
            for (int64_t i = r; i < r + 128 && i < rows; i++)
                for (int64_t j = c; j < c + 128 && j < cols; j++)
                    amax = fmaxf(amax, fabsf(x[i * cols + j]));
            float scale = amax / 448.0f == 0.0f ? 1.0f : amax / 448.0f;
            memcpy(scales, &scale, 4);
            for (int64_t i = r; i < r + 128 && i < rows; i++)
                for (int64_t j = c; j < c + 128 && j < cols; j++)
                    data[i * cols + j] = (uint8_t)slow_e4m3((double)(x[i * cols + j] / scale));
        }
}

static uint16_t slow_bf16(float x)
{
    uint16_t low = (uint16_t)(float_bits(x) >> 16), high = (uint16_t)(low + 1);
    double a = fabs((double)x), below = fabs((double)bf16_decode(low)), above = fabs((double)bf16_decode(high));
    return a - below < above - a || (a - below == above - a && low % 2 == 0) ? low : high;
}

static void slow_encode(const float *x, int64_t rows, int64_t cols, const encode_options *o, float tensor_scale, uint8_t *data,
                        uint8_t *scales)
{
    if (o->to == FORMAT_FP8_BLOCK)
        slow_fp8(x, rows, cols, data, scales);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float *importance = o->importance ? o->importance + i % cols : NULL;
        uint16_t code = slow_bf16(x[i]);
        if (o->to == FORMAT_F32)
            memcpy(data + 4 * i, x + i, 4);
        else if (o->to == FORMAT_BF16)
            memcpy(data + 2 * i, &code, 2);
        else if (o->to == FORMAT_MXFP4 && i % 32 == 0)
            slow_mxfp4(x + i, o, importance, data + i / 2, scales + i / 32);
        else if (o->to == FORMAT_NVFP4 && i % 16 == 0)
            slow_nvfp4(x + i, o, tensor_scale, importance, data + i / 2, scales + i / 16);
    }
}

/* ---- values ---- */

typedef float (*value_maker)(uint64_t seed, uint64_t i);

static float maker_normal(uint64_t seed, uint64_t i)
{
    double sum = 0.0;
    for (uint64_t k = 0; k < 4; k++)
        sum += random_uniform(seed, i, k) - 0.5;
    return (float)(sum * 0.02);
}

/* Any bits below 2^126; blocks of 32 share a range of exponents, so that not all but one become zero. */
static float maker_bits(uint64_t seed, uint64_t i)
{
    uint32_t word = (uint32_t)random_word(seed, i, 0);
    uint32_t exponent = (uint32_t)(random_word(seed, i / 32, 1) % 247 + random_word(seed, i, 2) % 6);
    return float_of_bits((word & 0x807FFFFFu) | exponent << 23);
}

static float maker_zero(uint64_t seed, uint64_t i)
{
    return (seed + i / 64) % 2 && i % 3 ? -0.0f : 0.0f;
}

static float maker_denormal(uint64_t seed, uint64_t i)
{
    uint32_t word = (uint32_t)random_word(seed, i, 0);
    return float_of_bits((word & 0x80000000u) | (word & 0x7FFFFFu) >> (random_word(seed, i / 32, 1) % 23));
}

/* Midpoints between neighbours of e2m1 or e4m3, their neighbours, times a power of two that is one block's. */
static float maker_ties(uint64_t seed, uint64_t i)
{
    uint64_t word = random_word(seed, i, 0);
    int code = (int)(word % 7), big = (int)(word >> 20) % 126;
    double middle = i / 96 % 2 ? (e4m3_ladder(big) + e4m3_ladder(big + 1)) / 2 : (e2m1_ladder[code] + e2m1_ladder[code + 1]) / 2;
    float value = (float)ldexp(middle, (int)(random_word(seed, i / 32, 1) % 80) - 40);
    value = word >> 40 & 1 ? value : nextafterf(value, word >> 41 & 1 ? 0.0f : INFINITY);
    return word >> 42 & 1 ? -value : value;
}

/* One large value among tiny ones. */
static float maker_outlier(uint64_t seed, uint64_t i)
{
    return maker_normal(seed, i) * (random_word(seed, i / 32, 5) % 32 == i % 32 ? 1e20f : 1e-10f);
}

/* The largest value of a block has a mantissa at a threshold of a rule: 1, 1.5, 1.75, 2, or beside it. */
static float maker_threshold(uint64_t seed, uint64_t i)
{
    static const float edges[] = {1.0f, 1.25f, 1.5f, 1.75f, 1.875f, 2.0f};
    uint64_t word = random_word(seed, i / 32, 0);
    float edge = edges[word % 6];
    edge = word >> 10 & 1 ? edge : nextafterf(edge, word >> 11 & 1 ? 0.0f : 4.0f);
    float value = i % 32 == (word >> 12) % 32 ? edge : edge * (float)(random_uniform(seed, i, 1) * 2.0 - 1.0);
    return ldexpf(value, (int)(word >> 20 & 127) - 64);
}

static const value_maker makers[] = {maker_normal,  maker_bits,    maker_zero,     maker_denormal,
                                     maker_ties,    maker_outlier, maker_threshold};
enum { MAKERS = sizeof makers / sizeof *makers };

/* ---- checks ---- */

/* A matrix in memory of its own, with exact sizes, at odd addresses. */
typedef struct bytes {
    uint8_t *data_memory, *scale_memory;
    uint64_t data_bytes, scale_bytes;
} bytes;

static bytes bytes_make(format_id id, int64_t rows, int64_t cols)
{
    bytes b;
    assert_true(format_data_bytes(format_of(id), rows, cols, &b.data_bytes));
    assert_true(format_scale_bytes(format_of(id), rows, cols, &b.scale_bytes));
    b.data_memory = mem_alloc(b.data_bytes + 1, 1);
    b.scale_memory = mem_alloc(b.scale_bytes + 1, 1);
    memset(b.data_memory, 0xA5, b.data_bytes + 1);
    memset(b.scale_memory, 0xA5, b.scale_bytes + 1);
    return b;
}

static matrix bytes_matrix(const bytes *b, format_id id, int64_t rows, int64_t cols, float scale)
{
    return (matrix){format_of(id), rows, cols, b->data_memory + 1, b->scale_bytes ? b->scale_memory + 1 : NULL, scale};
}

static void bytes_free(bytes *b)
{
    free(b->data_memory);
    free(b->scale_memory);
}

static void check_same(const bytes *found, const bytes *expected, const encode_options *o, const char *what)
{
    for (uint64_t i = 0; i < expected->scale_bytes; i++)
        if (found->scale_memory[i + 1] != expected->scale_memory[i + 1])
            fail_msg("%s %s %s search %d: scale byte %llu is %02x, expected %02x", what, format_of(o->to)->name, scale_rule_name(o->rule),
                     o->search, (unsigned long long)i, found->scale_memory[i + 1], expected->scale_memory[i + 1]);
    for (uint64_t i = 0; i < expected->data_bytes; i++)
        if (found->data_memory[i + 1] != expected->data_memory[i + 1])
            fail_msg("%s %s %s search %d: byte %llu is %02x, expected %02x", what, format_of(o->to)->name, scale_rule_name(o->rule),
                     o->search, (unsigned long long)i, found->data_memory[i + 1], expected->data_memory[i + 1]);
}

/* Every sum again in long double from the decoded result. Sums of n doubles differ by n * 2^-53 of the sum at most. */
static void check_stats(const float *x, const matrix *result, const encode_stats *stats)
{
    long double xx = 0, yy = 0, ee = 0, xy = 0, most = 0;
    int64_t n = result->rows * result->cols;
    float *y = mem_alloc((size_t)result->cols, sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        if (i % result->cols == 0)
            matrix_row(result, i / result->cols, y);
        long double a = (long double)x[i], b = (long double)y[i % result->cols];
        xx += a * a, yy += b * b, ee += (a - b) * (a - b), xy += a * b;
        most = fmaxl(most, fabsl(a - b));
    }
    long double slack = (long double)n * 0x1p-53L;
    assert_int_equal(stats->values, n);
    assert_true(fabsl(stats->source_squares - xx) <= slack * xx);
    assert_true(fabsl(stats->result_squares - yy) <= slack * yy);
    assert_true(fabsl(stats->error_squares - ee) <= slack * ee);
    assert_true((long double)stats->max_error == (long double)(double)most);
    if (ee > 0)
        assert_true(fabsl(encode_stats_relative_l2(stats) - sqrtl(ee / xx)) <= 2 * slack * sqrtl(ee / xx));
    long double cosine = ee == 0 ? 1 : xx == 0 || yy == 0 ? 0 : xy / sqrtl(xx) / sqrtl(yy);
    if (ee == 0 || (xx > 1e-200L && yy > 1e-200L)) /* (xx + yy - ee) / 2 cancels by (xx + yy) / xy at most */
        assert_true(fabsl(encode_stats_cosine(stats) - cosine) <= 4 * slack * (1 + (xx + yy) / (sqrtl(xx) * sqrtl(yy) + (ee == 0))));
    free(y);
}

/* In calls of `step` rows; the statistics are merged. */
static void encode_in_calls(const matrix *source, int64_t step, const encode_options *o, float tensor_scale, bytes *out,
                            encode_stats *stats)
{
    const format *f = format_of(o->to);
    for (int64_t row = 0; row < source->rows; row += step) {
        int64_t rows = source->rows - row < step ? source->rows - row : step;
        encode_stats part = {0};
        error err;
        uint64_t data = 0, scales = 0;
        assert_true(format_data_bytes(f, row, source->cols, &data) && format_scale_bytes(f, row, source->cols, &scales));
        uint8_t *scale_out = out->scale_bytes ? out->scale_memory + 1 + scales : NULL;
        if (!encode_rows(source, row, rows, o, tensor_scale, out->data_memory + 1 + data, scale_out, &part, &err))
            fail_msg("%s", err.text);
        encode_stats_merge(stats, &part);
    }
}

/* Every variant, in one call and in several, against the reference. */
static void check_encode(const matrix *source, const float *x, const encode_options *options, float tensor_scale)
{
    int64_t rows = source->rows, cols = source->cols;
    bytes expected = bytes_make(options->to, rows, cols), found = bytes_make(options->to, rows, cols);
    slow_encode(x, rows, cols, options, tensor_scale, expected.data_memory + 1, expected.scale_memory + 1);
    encode_stats first = {0};
    for (encode_variant v = ENCODE_BEST; v < ENCODE_VARIANTS; v++) {
        encode_options o = *options;
        o.variant = v;
        if (!encode_variant_available(v))
            continue;
        for (int64_t step = 128; step < 1024; step *= 4) {
            encode_stats stats = {0};
            memset(found.data_memory, 0xA5, found.data_bytes + 1);
            memset(found.scale_memory, 0xA5, found.scale_bytes + 1);
            encode_in_calls(source, step, &o, tensor_scale, &found, &stats);
            check_same(&found, &expected, &o, encode_variant_name(v));
            matrix result = bytes_matrix(&found, o.to, rows, cols, o.to == FORMAT_NVFP4 ? tensor_scale : 1.0f);
            check_stats(x, &result, &stats);
            if (step == 128 && v == ENCODE_BEST)
                first = stats;
            if (step == 128)
                assert_memory_equal(&first, &stats, sizeof stats);
        }
    }
    bytes_free(&expected);
    bytes_free(&found);
}

static float *make_values(int64_t count, uint64_t seed, value_maker make)
{
    float *x = mem_alloc((size_t)count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = make(seed, (uint64_t)i);
    return x;
}

/* One shape to one target, from f32 and from bf16. */
static void check_target(int64_t rows, int64_t cols, uint64_t seed, value_maker make, const encode_options *o)
{
    float *x = make_values(rows * cols, seed, make);
    for (int narrow = 0; narrow < 2; narrow++) {
        format_id from = narrow ? FORMAT_BF16 : FORMAT_F32;
        bytes b = bytes_make(from, rows, cols);
        format_of(from)->encode(x, rows, cols, 1.0f, b.data_memory + 1, NULL);
        matrix source = bytes_matrix(&b, from, rows, cols, 1.0f);
        float largest;
        for (int64_t r = 0; r < rows; r++)
            matrix_row(&source, r, x + r * cols);
        assert_true(encode_largest(&source, 0, rows, &largest, NULL));
        assert_true(largest == slow_amax(x, (int)(rows * cols)));
        check_encode(&source, x, o, encode_tensor_scale(o->to, largest));
        bytes_free(&b);
    }
    free(x);
}

static void check_formats(int64_t rows, int64_t cols, uint64_t seed, bool search, const float *importance)
{
    for (int m = 0; m < MAKERS; m++) {
        for (scale_rule rule = 0; rule < SCALE_RULES && cols % 32 == 0; rule++)
            check_target(rows, cols, seed, makers[m], &(encode_options){FORMAT_MXFP4, rule, search, importance, ENCODE_BEST});
        if (cols % 16 == 0)
            check_target(rows, cols, seed, makers[m], &(encode_options){FORMAT_NVFP4, SCALE_EVEN, search, importance, ENCODE_BEST});
        for (format_id to = FORMAT_F32; to <= FORMAT_FP8_BLOCK && !search; to++)
            check_target(rows, cols, seed, makers[m], &(encode_options){.to = to});
    }
}

/* ---- tests ---- */

static void test_variants(void **state)
{
    (void)state;
    assert_true(encode_variant_available(ENCODE_BEST) && encode_variant_available(ENCODE_GENERIC));
    for (encode_variant v = ENCODE_AVX2; v < ENCODE_VARIANTS; v++)
        if (!encode_variant_available(v))
            printf("skipped: this CPU cannot run the %s kernels\n", encode_variant_name(v));
}

static void test_bytes(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{1, 32}, {3, 96}, {2, 1056}, {1, 2080}, {1, 16}, {2, 48}, {1, 1}, {127, 5}, {130, 131}, {259, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_formats(shapes[i][0], shapes[i][1], 100 + i, false, NULL);
    check_formats(160, 160, 200, false, NULL);
}

static void test_search(void **state)
{
    (void)state;
    float *importance = mem_alloc(1056, sizeof *importance);
    for (uint64_t i = 0; i < 1056; i++)
        importance[i] = i % 7 == 0 ? 0.0f : (float)exp(8.0 * random_uniform(9, i, 0));
    check_formats(5, 96, 300, true, NULL);
    check_formats(4, 1056, 301, true, importance);
    check_formats(9, 64, 302, true, importance);
    free(importance);
}

/* The search may only lower the error, and it does on ordinary values; a heavy column gets a smaller error of its own. */
static void test_search_gains(void **state)
{
    (void)state;
    enum { ROWS = 64, COLS = 64 };
    float *x = make_values(ROWS * COLS, 7, maker_normal), importance[COLS], row[COLS];
    matrix source = {format_of(FORMAT_F32), ROWS, COLS, (const uint8_t *)x, NULL, 1.0f};
    for (int i = 0; i < COLS; i++)
        importance[i] = i % 32 == 5 ? 1000.0f : 1.0f;
    static const format_id targets[] = {FORMAT_MXFP4, FORMAT_NVFP4};
    for (int t = 0; t < 2; t++) {
        bytes b = bytes_make(targets[t], ROWS, COLS);
        encode_stats stats[3] = {{0}, {0}, {0}};
        double column[3] = {0};
        for (int k = 0; k < 3; k++) {
            encode_options o = {targets[t], SCALE_EVEN, k > 0, k == 2 ? importance : NULL, ENCODE_BEST};
            assert_true(encode_rows(&source, 0, ROWS, &o, 1e-4f, b.data_memory + 1, b.scale_memory + 1, &stats[k], NULL));
            matrix result = bytes_matrix(&b, targets[t], ROWS, COLS, 1e-4f);
            for (int r = 0; r < ROWS; r++) {
                matrix_row(&result, r, row);
                for (int c = 5; c < COLS; c += 32)
                    column[k] += pow((double)row[c] - (double)x[r * COLS + c], 2);
            }
        }
        assert_true(stats[1].error_squares < stats[0].error_squares);
        assert_true(stats[2].error_squares > stats[1].error_squares && column[2] < column[1]);
        bytes_free(&b);
    }
    free(x);
}

/* Without search and with rule "even" the bytes are those of format->encode, from every source format. */
static void test_sources(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 160 };
    float *x = make_values(ROWS * COLS, 11, maker_normal), *decoded = mem_alloc(ROWS * COLS, sizeof *decoded);
    for (format_id from = 0; from < FORMAT_COUNT; from++) {
        bytes b = bytes_make(from, ROWS, COLS);
        format_of(from)->encode(x, ROWS, COLS, 1e-5f, b.data_memory + 1, b.scale_memory + 1);
        matrix source = bytes_matrix(&b, from, ROWS, COLS, 1e-5f);
        for (int r = 0; r < ROWS; r++)
            matrix_row(&source, r, decoded + r * COLS);
        for (format_id to = 0; to < FORMAT_COUNT; to++) {
            bytes found = bytes_make(to, ROWS, COLS), expected = bytes_make(to, ROWS, COLS);
            encode_options o = {.to = to};
            assert_true(encode_rows(&source, 0, ROWS, &o, 2e-5f, found.data_memory + 1, found.scale_memory + 1, NULL, NULL));
            format_of(to)->encode(decoded, ROWS, COLS, 2e-5f, expected.data_memory + 1, expected.scale_memory + 1);
            check_same(&found, &expected, &o, format_of(from)->name);
            bytes_free(&found);
            bytes_free(&expected);
        }
        bytes_free(&b);
    }
    free(x);
    free(decoded);
}

static void check_refused(const matrix *source, format_id to, const char *place, const char *why)
{
    bytes out = bytes_make(to, source->rows, source->cols);
    error err = {0};
    encode_options o = {.to = to, .search = to % 2};
    assert_false(encode_rows(source, 0, source->rows, &o, 1.0f, out.data_memory + 1, out.scale_memory + 1, NULL, &err));
    if (err.code != ERROR_INPUT || !strstr(err.text, place) || !strstr(err.text, why))
        fail_msg("to %s: %s", format_of(to)->name, err.text);
    bytes_free(&out);
}

/* One bad value at (row, col) of 131 x 1184, from f32. */
static void check_bad_value(float bad, int64_t row, int64_t col, const char *why)
{
    enum { ROWS = 131, COLS = 1184 };
    char place[64];
    float *x = make_values(ROWS * COLS, 12, maker_normal), largest;
    matrix source = {format_of(FORMAT_F32), ROWS, COLS, (const uint8_t *)x, NULL, 1.0f};
    x[row * COLS + col] = bad;
    snprintf(place, sizeof place, "row %lld, column %lld ", (long long)row, (long long)col);
    for (format_id to = 0; to < FORMAT_COUNT; to++)
        check_refused(&source, to, place, why);
    error err = {0};
    assert_false(encode_largest(&source, 0, ROWS, &largest, &err));
    assert_true(strstr(err.text, place) && strstr(err.text, why));
    assert_int_equal(encode_largest(&source, 0, row, &largest, &err), true);
    free(x);
}

static void test_refused(void **state)
{
    (void)state;
    check_bad_value(NAN, 0, 0, "not a number");
    check_bad_value(-INFINITY, 130, 1183, "infinite");
    check_bad_value(INFINITY, 129, 1030, "infinite");
    check_bad_value(float_of_bits(0xFF800001u), 5, 127, "not a number");

    static uint8_t codes[3 * 64], scales[3 * 4];
    matrix m = {format_of(FORMAT_MXFP4), 3, 64, codes, scales, 1.0f};
    scales[3] = 255;
    check_refused(&m, FORMAT_MXFP4, "row 1, column 32 ", "not a number");
    matrix fp8 = {format_of(FORMAT_FP8_BLOCK), 3, 64, codes, scales, 1.0f};
    codes[2 * 64 + 9] = 0x7F;
    check_refused(&fp8, FORMAT_BF16, "row 2, column 9 ", "not a number");
}

/* The largest floats: refused where the result would be infinite, and only there. */
static void test_large(void **state)
{
    (void)state;
    float x[2 * 32] = {0};
    x[32 + 7] = FLT_MAX;
    matrix source = {format_of(FORMAT_F32), 2, 32, (const uint8_t *)x, NULL, 1.0f};
    check_refused(&source, FORMAT_BF16, "row 1, column 7 ", "infinite as bf16");
    check_refused(&source, FORMAT_MXFP4, "row 1, column 7 ", "infinite as mxfp4");
    check_encode(&source, x, &(encode_options){.to = FORMAT_MXFP4, .rule = SCALE_FLOOR}, 1.0f);
    check_encode(&source, x, &(encode_options){.to = FORMAT_FP8_BLOCK}, 1.0f);
    x[32 + 7] = 0x1.7fp127f; /* below 1.75 * 2^127: even takes it without a step up */
    x[3] = -0x1.bfp127f;
    for (format_id to = FORMAT_BF16; to <= FORMAT_MXFP4; to++)
        check_encode(&source, x, &(encode_options){.to = to}, 1.0f);
}

static void test_scale_names(void **state)
{
    (void)state;
    for (scale_rule rule = 0; rule < SCALE_RULES; rule++) {
        scale_rule found = SCALE_RULES;
        assert_true(scale_rule_by_name(scale_rule_name(rule), &found));
        assert_int_equal(found, rule);
    }
    scale_rule untouched = SCALE_CEIL;
    assert_false(scale_rule_by_name("rceil", &untouched));
    assert_int_equal(untouched, SCALE_CEIL);
    assert_true(encode_tensor_scale(FORMAT_NVFP4, 2688.0f) == 1.0f && encode_tensor_scale(FORMAT_NVFP4, 1.0f) == 1.0f / 2688.0f);
    assert_true(encode_tensor_scale(FORMAT_NVFP4, 0.0f) == 1.0f && encode_tensor_scale(FORMAT_MXFP4, 5.0f) == 1.0f);
}

/* The values of one scale step, written out by hand. */
static void test_rules_by_hand(void **state)
{
    (void)state;
    static const struct { float amax; uint8_t even, floor, ceil; } rows[] = {
        {1.0f, 125, 125, 125}, {1.5f, 125, 125, 125}, {1.5000001f, 125, 125, 126}, {1.7499999f, 125, 125, 126}, {1.75f, 126, 125, 126},
        {1.9999999f, 126, 125, 126}, {6.0f, 127, 127, 127}, {7.0f, 128, 127, 128}, {0.0f, 0, 0, 0}, {1e-45f, 0, 0, 0},
        {0x1p-126f, 0, 0, 0}, {0x1.8p-125f, 0, 0, 0}, {0x1.9p-125f, 0, 0, 1}, {0x1.cp-125f, 1, 0, 1}, {0x1p126f, 251, 251, 251}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float x[32] = {[9] = -rows[i].amax};
        const uint8_t expected[SCALE_RULES] = {rows[i].even, rows[i].floor, rows[i].ceil};
        matrix source = {format_of(FORMAT_F32), 1, 32, (const uint8_t *)x, NULL, 1.0f};
        for (scale_rule rule = 0; rule < SCALE_RULES; rule++) {
            uint8_t data[16], scale;
            assert_true(encode_rows(&source, 0, 1, &(encode_options){.to = FORMAT_MXFP4, .rule = rule}, 1.0f, data, &scale, NULL, NULL));
            if (scale != expected[rule])
                fail_msg("%s of %a: %d, expected %d", scale_rule_name(rule), (double)rows[i].amax, scale, expected[rule]);
        }
    }
}

/* A matrix of the built-in model from its BF16 master; false when the tensor is not MXFP4. */
static bool check_nano_tensor(const checkpoint *nano, const checkpoint *master, const tensor *codes)
{
    char name[512];
    snprintf(name, sizeof name, "%s_scale", codes->name);
    const tensor *scales = checkpoint_find(nano, name), *x = checkpoint_find(master, codes->name);
    if (!scales || codes->type != DTYPE_U8)
        return false;
    assert_non_null(x);
    assert_true(x->type == DTYPE_BF16 && x->rank == 2);
    matrix source = {format_of(FORMAT_BF16), x->shape[0], x->shape[1], x->data, NULL, 1.0f};
    bytes b = bytes_make(FORMAT_MXFP4, x->shape[0], x->shape[1]);
    assert_true(encode_rows(&source, 0, x->shape[0], &(encode_options){.to = FORMAT_MXFP4}, 1.0f, b.data_memory + 1, b.scale_memory + 1,
                            NULL, NULL));
    assert_int_equal(b.data_bytes, codes->bytes);
    assert_int_equal(b.scale_bytes, scales->bytes);
    if (memcmp(b.data_memory + 1, codes->data, codes->bytes) || memcmp(b.scale_memory + 1, scales->data, scales->bytes))
        fail_msg("%s differs from the built-in model", codes->name);
    bytes_free(&b);
    return true;
}

static void test_nano(void **state)
{
    (void)state;
    const char *directory = fixture_nano_bf16();
    if (!directory)
        skip();
    error err;
    checkpoint *nano = checkpoint_open(SOURCE_DIR "/models/nano", &err), *master = checkpoint_open(directory, &err);
    assert_non_null(nano);
    assert_non_null(master);
    int found = 0;
    for (size_t i = 0; i < checkpoint_count(nano); i++)
        found += check_nano_tensor(nano, master, checkpoint_tensor(nano, i));
    assert_int_equal(found, 357);
    checkpoint_close(nano);
    checkpoint_close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),      cmocka_unit_test(test_scale_names), cmocka_unit_test(test_rules_by_hand),
        cmocka_unit_test(test_bytes),         cmocka_unit_test(test_search),      cmocka_unit_test(test_search_gains),
        cmocka_unit_test(test_sources),       cmocka_unit_test(test_refused),     cmocka_unit_test(test_large),
        cmocka_unit_test(test_nano),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
