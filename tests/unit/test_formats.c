/* Number formats: every code of every scalar type, encoding against a slow search for the nearest value, and the block
 * formats against straightforward code written from their definitions. Nothing here has a tolerance. */
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
#include "formats/format.h"
#include "formats/scalar.h"

enum { RANDOM_FLOATS = 1000000 };

static float random_bits_float(uint64_t seed, uint64_t i)
{
    return float_of_bits((uint32_t)random_word(seed, i, 0));
}

/* Roughly normal, for weights. */
static float random_weight(uint64_t seed, uint64_t i)
{
    double sum = 0.0;
    for (uint64_t k = 0; k < 4; k++)
        sum += random_uniform(seed, i, k) - 0.5;
    return (float)sum;
}

/* ---- scalar types against a search ---- */

/* The magnitudes a type can have, by code without sign, computed here from the definition of the type. */
typedef struct ladder {
    double value[128];
    int count;
} ladder;

static ladder make_ladder(int exponent_bits, int mantissa_bits, int bias, int count)
{
    ladder l = {.count = count};
    for (int code = 0; code < count; code++) {
        int e = code >> mantissa_bits, m = code & ((1 << mantissa_bits) - 1);
        l.value[code] = e == 0 ? ldexp(m, 1 - bias - mantissa_bits) : ldexp(m + (1 << mantissa_bits), e - bias - mantissa_bits);
    }
    assert_true(exponent_bits + mantissa_bits < 8);
    return l;
}

/* The nearest magnitude by trying all, of two equally near the one with the even code; beyond the last one: the last. */
static int ladder_nearest(const ladder *l, double magnitude)
{
    int best = 0, last = l->count - 1;
    if (magnitude >= l->value[last])
        return last;
    for (int code = 1; code <= last && l->value[code - 1] <= magnitude; code++) {
        double d = fabs(l->value[code] - magnitude), b = fabs(l->value[best] - magnitude);
        if (d < b || (d == b && code % 2 == 0))
            best = code;
    }
    return best;
}

static void check_encode(const ladder *l, uint8_t (*encode)(float), int sign_bit, float value)
{
    int expected = isinf(value) ? l->count - 1 : ladder_nearest(l, fabs((double)value));
    if (encode(value) != (expected | (signbit(value) ? sign_bit : 0)))
        fail_msg("encode(%a) is %d, expected magnitude code %d", (double)value, encode(value), expected);
}

static void check_ladder(const ladder *l, uint8_t (*encode)(float), int sign_bit, uint64_t seed)
{
    for (int code = 0; code + 1 < l->count; code++) {
        float middle = (float)((l->value[code] + l->value[code + 1]) / 2);
        assert_true((double)middle == (l->value[code] + l->value[code + 1]) / 2);
        float around[] = {(float)l->value[code], nextafterf((float)l->value[code], INFINITY), nextafterf(middle, 0.0f), middle,
                          nextafterf(middle, INFINITY), nextafterf((float)l->value[code + 1], 0.0f), (float)l->value[code + 1]};
        for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
            check_encode(l, encode, sign_bit, around[i]);
            check_encode(l, encode, sign_bit, -around[i]);
        }
    }
    float top = (float)l->value[l->count - 1];
    float special[] = {0.0f, 1e-45f, 1.1754942e-38f, 1.17549435e-38f, nextafterf(top, INFINITY), top * 1.01f, top * 1.04f, top * 1.5f,
                       top * 2, 1e30f, 3.4028235e38f, INFINITY};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        check_encode(l, encode, sign_bit, special[i]);
        check_encode(l, encode, sign_bit, -special[i]);
    }
    for (uint64_t i = 0; i < RANDOM_FLOATS; i++) {
        /* half of them any finite float, half inside the type's range */
        float value = i % 2 ? random_bits_float(seed, i) : (float)((random_uniform(seed, i, 1) * 2 - 1) * 1.1) * top;
        if (!isnan(value))
            check_encode(l, encode, sign_bit, i % 4 == 2 ? value / 256 : value);
    }
}

static void test_e4m3(void **state)
{
    (void)state;
    ladder l = make_ladder(4, 3, 7, 127);
    assert_true(l.value[126] == 448.0);
    for (int code = 0; code < 256; code++) {
        float value = e4m3_decode((uint8_t)code);
        if ((code & 0x7F) == 0x7F) {
            assert_true(isnan(value));
        } else {
            assert_true((double)fabsf(value) == l.value[code & 0x7F]);
            assert_int_equal(signbit(value) != 0, code >> 7);
        }
        if (!isnan(value))
            assert_int_equal(e4m3_encode(value), code);
    }
    assert_int_equal(e4m3_encode(NAN), 0x7F);
    assert_int_equal(e4m3_encode(-NAN), 0xFF);
    assert_int_equal(e4m3_encode(float_of_bits(0xFF800001u)), 0xFF);
    check_ladder(&l, e4m3_encode, 0x80, 1);
}

static void test_e2m1(void **state)
{
    (void)state;
    static const double definition[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    ladder l = make_ladder(2, 1, 1, 8);
    for (int code = 0; code < 16; code++) {
        float value = e2m1_decode((uint8_t)code);
        assert_true(l.value[code & 7] == definition[code & 7]);
        assert_true((double)fabsf(value) == definition[code & 7]);
        assert_int_equal(signbit(value) != 0, code >> 3);
        assert_int_equal(e2m1_encode(value), code);
        assert_true(e2m1_decode((uint8_t)(code | 0xF0)) == value);
    }
    assert_int_equal(e2m1_encode(NAN), 7);
    assert_int_equal(e2m1_encode(-NAN), 15);
    check_ladder(&l, e2m1_encode, 8, 2);
}

static void test_e8m0(void **state)
{
    (void)state;
    for (int code = 0; code < 255; code++)
        assert_true((double)e8m0_decode((uint8_t)code) == ldexp(1.0, code - 127));
    assert_true(isnan(e8m0_decode(255)));
}

/* The nearest bf16 of a finite float by comparing the two neighbours in double; from half a step beyond the largest: infinity. */
static uint16_t bf16_nearest(float value)
{
    uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u, below = bits >> 16 & 0x7FFFu, above = below + 1;
    double a = fabs((double)value), low = fabs((double)float_of_bits(below << 16));
    double high = above == 0x7F80u ? ldexp(1.0, 128) : fabs((double)float_of_bits(above << 16));
    uint32_t chosen = a - low < high - a ? below : a - low > high - a ? above : below % 2 == 0 ? below : above;
    return (uint16_t)(sign | chosen);
}

static void check_bf16(float value)
{
    if (isfinite(value) && bf16_encode(value) != bf16_nearest(value))
        fail_msg("bf16_encode(%a) is %04x, expected %04x", (double)value, bf16_encode(value), bf16_nearest(value));
}

static void test_bf16(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++) {
        float value = bf16_decode((uint16_t)code);
        assert_int_equal(float_bits(value), code << 16);
        bool nan = (code & 0x7F80) == 0x7F80 && (code & 0x7F) != 0;
        assert_int_equal(isnan(value) != 0, nan);
        assert_int_equal(bf16_encode(value), nan ? code | 0x40 : code);
        static const uint32_t tails[] = {0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
        for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
            float near = float_of_bits(code << 16 | tails[i]);
            check_bf16(near);
            if (isnan(near))
                assert_true(isnan(bf16_decode(bf16_encode(near))) && bf16_encode(near) >> 15 == code >> 15);
        }
    }
    assert_int_equal(bf16_encode(INFINITY), 0x7F80);
    assert_int_equal(bf16_encode(-INFINITY), 0xFF80);
    assert_int_equal(bf16_encode(3.4028235e38f), 0x7F80);
    for (uint64_t i = 0; i < RANDOM_FLOATS; i++)
        check_bf16(random_bits_float(3, i));
}

/* The rule in words: round amax to one mantissa bit, half upwards; the exponent of the result, less 2. */
static int scale_even_slow(float amax)
{
    if (amax < 1.17549435e-38f)
        return 0;
    int exponent;
    double fraction = frexp((double)amax, &exponent) * 2; /* 1 <= fraction < 2 */
    exponent -= 1;
    double rounded = floor(fraction * 2 + 0.5) / 2;
    int code = exponent + (rounded >= 2.0) - 2 + 127;
    return code < 0 ? 0 : code;
}

static void test_mxfp4_scale(void **state)
{
    (void)state;
    assert_int_equal(mxfp4_scale_even(0.0f), 0);
    assert_int_equal(mxfp4_scale_even(6.0f), 127);
    assert_int_equal(mxfp4_scale_even(nextafterf(7.0f, 0.0f)), 127);
    assert_int_equal(mxfp4_scale_even(7.0f), 128);
    assert_int_equal(mxfp4_scale_even(4.0f), 127);
    assert_int_equal(mxfp4_scale_even(nextafterf(4.0f, 0.0f)), 127);
    assert_int_equal(mxfp4_scale_even(nextafterf(3.5f, 0.0f)), 126);
    assert_int_equal(mxfp4_scale_even(1e-45f), 0);
    assert_int_equal(mxfp4_scale_even(3.4028235e38f), 253);
    for (uint64_t i = 0; i < RANDOM_FLOATS; i++) {
        float amax = fabsf(random_bits_float(4, i));
        if (isfinite(amax) && mxfp4_scale_even(amax) != scale_even_slow(amax))
            fail_msg("mxfp4_scale_even(%a) is %d, expected %d", (double)amax, mxfp4_scale_even(amax), scale_even_slow(amax));
    }
}

/* ---- matrices ---- */

/* A matrix with its own bytes, placed at an odd address. */
typedef struct owned_matrix {
    matrix m;
    uint8_t *data_memory, *scale_memory;
    size_t data_bytes, scale_bytes;
} owned_matrix;

static owned_matrix matrix_make(format_id id, int64_t rows, int64_t cols)
{
    owned_matrix o = {.m = {.format = format_of(id), .rows = rows, .cols = cols, .scale = 1.0f}};
    uint64_t data, scales;
    assert_true(format_data_bytes(o.m.format, rows, cols, &data));
    assert_true(format_scale_bytes(o.m.format, rows, cols, &scales));
    o.data_bytes = (size_t)data;
    o.scale_bytes = (size_t)scales;
    /* exact sizes, so that the address sanitizer sees an access beyond them */
    o.data_memory = mem_alloc(o.data_bytes + 1, 1);
    o.scale_memory = mem_alloc(o.scale_bytes + 1, 1);
    o.m.data = o.data_memory + 1;
    o.m.scales = o.scale_bytes ? o.scale_memory + 1 : NULL;
    return o;
}

static void matrix_fill_random(owned_matrix *o, uint64_t seed)
{
    for (size_t i = 0; i < o->data_bytes; i++)
        o->data_memory[i + 1] = (uint8_t)random_word(seed, i, 0);
    for (size_t i = 0; i < o->scale_bytes; i++)
        o->scale_memory[i + 1] = (uint8_t)random_word(seed, i, 1);
}

static void matrix_free(owned_matrix *o)
{
    free(o->data_memory);
    free(o->scale_memory);
}

/* One value, from the definition of the format; arithmetic in double, rounded once. */
static float slow_value(const matrix *m, int64_t r, int64_t c)
{
    int64_t n = r * m->cols + c;
    float f;
    uint8_t nibble = (uint8_t)(m->data[n / 2] >> (n % 2 * 4) & 15);
    switch (m->format->id) {
    case FORMAT_F32:
        memcpy(&f, m->data + 4 * n, 4);
        return f;
    case FORMAT_BF16:
        return float_of_bits((uint32_t)m->data[2 * n] << 16 | (uint32_t)m->data[2 * n + 1] << 24);
    case FORMAT_FP8_BLOCK:
        memcpy(&f, m->scales + 4 * (r / 128 * ((m->cols + 127) / 128) + c / 128), 4);
        return (float)((double)e4m3_decode(m->data[n]) * (double)f);
    case FORMAT_FP8_CHANNEL:
        memcpy(&f, m->scales + 4 * r, 4);
        return (float)((double)e4m3_decode(m->data[n]) * (double)f);
    case FORMAT_MXFP4:
        return (float)((double)e2m1_decode(nibble) * (double)e8m0_decode(m->scales[n / 32]));
    case FORMAT_NVFP4:
        return (float)((double)e2m1_decode(nibble) * (double)e4m3_decode(m->scales[n / 16]) * (double)m->scale);
    default:
        fail();
        return 0;
    }
}

static bool same_float(float a, float b)
{
    return isnan(a) ? isnan(b) : float_bits(a) == float_bits(b);
}

static void check_range(const matrix *m, int64_t row, int64_t first, int64_t count)
{
    float *out = mem_alloc((size_t)count + 2, sizeof *out);
    out[0] = out[count + 1] = 12345.0f;
    m->format->decode(m, row, first, count, out + 1);
    assert_true(out[0] == 12345.0f && out[count + 1] == 12345.0f);
    for (int64_t i = 0; i < count; i++)
        if (!same_float(out[i + 1], slow_value(m, row, first + i)))
            fail_msg("%s [%lld, %lld]: decoded %a, expected %a", m->format->name, (long long)row, (long long)(first + i),
                     (double)out[i + 1], (double)slow_value(m, row, first + i));
    free(out);
}

static void check_decode(format_id id, int64_t rows, int64_t cols, uint64_t seed)
{
    owned_matrix o = matrix_make(id, rows, cols);
    matrix_fill_random(&o, seed);
    o.m.scale = id == FORMAT_NVFP4 ? 0x1.930be3p-7f : 1.0f; /* 24 significant bits, so that the order of products shows */
    for (int64_t row = 0; row < rows; row++)
        check_range(&o.m, row, 0, cols);
    for (uint64_t i = 0; i < 400; i++) {
        int64_t row = (int64_t)(random_word(seed, i, 2) % (uint64_t)rows), first = (int64_t)(random_word(seed, i, 3) % (uint64_t)cols);
        check_range(&o.m, row, first, (int64_t)(random_word(seed, i, 4) % (uint64_t)(cols - first + 1)));
    }
    matrix_free(&o);
}

static void test_decode(void **state)
{
    (void)state;
    for (format_id id = 0; id < FORMAT_COUNT; id++) {
        check_decode(id, 3, 96, 10 + id);
        check_decode(id, 129, 256, 20 + id);
    }
    static const int64_t odd[][2] = {{1, 1}, {127, 5}, {128, 128}, {129, 127}, {130, 129}, {257, 300}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        check_decode(FORMAT_F32, odd[i][0], odd[i][1], 30 + i);
        check_decode(FORMAT_BF16, odd[i][0], odd[i][1], 40 + i);
        check_decode(FORMAT_FP8_BLOCK, odd[i][0], odd[i][1], 50 + i);
        check_decode(FORMAT_FP8_CHANNEL, odd[i][0], odd[i][1], 70 + i);
    }
    check_decode(FORMAT_MXFP4, 5, 32, 60);
    check_decode(FORMAT_NVFP4, 5, 16, 61);
    check_decode(FORMAT_NVFP4, 7, 48, 62);
}

/* The largest magnitude of every block, in the order of the scales; the caller frees it. */
static float *block_largest(const float *values, int64_t rows, int64_t cols, const format *f)
{
    int64_t across = (cols + f->block_cols - 1) / f->block_cols, down = (rows + f->block_rows - 1) / f->block_rows;
    float *largest = mem_alloc((size_t)(across * down), sizeof *largest);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float *slot = &largest[r / f->block_rows * across + c / f->block_cols];
            *slot = fmaxf(*slot, fabsf(values[r * cols + c]));
        }
    return largest;
}

static int slow_code(const ladder *l, double x, int sign_bit, float sign_of)
{
    return ladder_nearest(l, fabs(x)) | (signbit(sign_of) ? sign_bit : 0);
}

/* What value (r, c) should have become, in code and in scale. */
static void check_encoded_value(const matrix *m, const float *values, const float *blocks, int64_t r, int64_t c, const ladder *e4m3,
                                const ladder *e2m1)
{
    const format *f = m->format;
    int64_t n = r * m->cols + c, across = (m->cols + f->block_cols - 1) / f->block_cols;
    float largest = blocks[r / f->block_rows * across + c / f->block_cols], found, scale;
    uint8_t nibble = (uint8_t)(m->data[n / 2] >> (n % 2 * 4) & 15);
    switch (f->id) {
    case FORMAT_FP8_BLOCK:
        scale = largest / 448.0f == 0.0f ? 1.0f : largest / 448.0f;
        memcpy(&found, m->scales + 4 * (r / 128 * ((m->cols + 127) / 128) + c / 128), 4);
        assert_true(found == scale);
        assert_int_equal(m->data[n], slow_code(e4m3, (double)(values[n] / scale), 0x80, values[n]));
        break;
    case FORMAT_FP8_CHANNEL:
        scale = largest / 448.0f == 0.0f ? 1.0f : largest / 448.0f;
        memcpy(&found, m->scales + 4 * r, 4);
        assert_true(found == scale);
        assert_int_equal(m->data[n], slow_code(e4m3, (double)(values[n] / scale), 0x80, values[n]));
        break;
    case FORMAT_MXFP4:
        assert_int_equal(m->scales[n / 32], scale_even_slow(largest));
        assert_int_equal(nibble, slow_code(e2m1, ldexp((double)values[n], 127 - m->scales[n / 32]), 8, values[n]));
        break;
    default:
        assert_int_equal(m->scales[n / 16], ladder_nearest(e4m3, largest == 0.0f ? 1.0 : (double)(largest / (6.0f * m->scale))));
        scale = e4m3_decode(m->scales[n / 16]) * m->scale;
        assert_int_equal(nibble, scale == 0.0f ? 0 : slow_code(e2m1, (double)(values[n] / scale), 8, values[n]));
    }
}

static void check_encode_matrix(format_id id, int64_t rows, int64_t cols, const float *values, float tensor_scale)
{
    ladder e4m3 = make_ladder(4, 3, 7, 127), e2m1 = make_ladder(2, 1, 1, 8);
    owned_matrix o = matrix_make(id, rows, cols);
    o.m.scale = tensor_scale;
    o.m.format->encode(values, rows, cols, tensor_scale, o.data_memory + 1, o.scale_memory + 1);
    float *blocks = block_largest(values, rows, cols, o.m.format);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            check_encoded_value(&o.m, values, blocks, r, c, &e4m3, &e2m1);
    free(blocks);
    matrix_free(&o);
}

typedef float (*value_maker)(uint64_t seed, uint64_t i);

static float maker_zero(uint64_t seed, uint64_t i)
{
    return seed % 2 && i % 3 ? -0.0f : 0.0f;
}

static float maker_any_finite(uint64_t seed, uint64_t i)
{
    float value = random_bits_float(seed, i);
    return isfinite(value) ? value : 1.0f;
}

static float maker_denormal(uint64_t seed, uint64_t i)
{
    return float_of_bits((uint32_t)random_word(seed, i, 0) & 0x80FFFFFFu);
}

static float maker_smallest(uint64_t seed, uint64_t i)
{
    return random_word(seed, i, 0) % 5 ? 0.0f : 1e-45f;
}

static float maker_huge(uint64_t seed, uint64_t i)
{
    return random_word(seed, i, 0) % 2 ? 3.4028235e38f : -3.3e38f;
}

/* Multiples of 1/8 up to 7.875: many ties, and block maxima on both sides of 1.75 * 2^k. */
static float maker_ties(uint64_t seed, uint64_t i)
{
    return (float)((int)(random_word(seed, i, 0) % 127) - 63) / 8.0f;
}

/* Blocks of very different size, one large value among small ones. */
static float maker_outliers(uint64_t seed, uint64_t i)
{
    float scale = ldexpf(1.0f, (int)(random_word(seed, i / 16, 1) % 40) - 20);
    return random_weight(seed, i) * (random_word(seed, i, 2) % 16 ? 1e-3f : 1.0f) * scale;
}

/* Largest values of 16 within a step of a tie between two e4m3 scales, for this tensor scale: the order of divisions shows. */
static const float tie_tensor_scale = 0x1.1a2b3dp-12f;

static float maker_scale_ties(uint64_t seed, uint64_t i)
{
    uint64_t block = i / 16;
    if (i % 16 != random_word(seed, block, 0) % 16)
        return 0.0f;
    uint8_t code = (uint8_t)(8 + random_word(seed, block, 1) % 118);
    float amax = (e4m3_decode(code) + e4m3_decode((uint8_t)(code + 1))) / 2.0f * 6.0f * tie_tensor_scale;
    return float_of_bits(float_bits(amax) + (uint32_t)(random_word(seed, block, 2) % 5) - 2u);
}

static void test_encode(void **state)
{
    (void)state;
    static const value_maker makers[] = {random_weight, maker_zero, maker_any_finite, maker_denormal, maker_smallest, maker_huge,
                                         maker_ties, maker_outliers, maker_scale_ties};
    static const int64_t fp8_shapes[][2] = {{1, 1}, {3, 200}, {128, 128}, {129, 257}, {200, 100}};
    float *values = mem_alloc(129 * 257, sizeof *values);
    for (size_t k = 0; k < sizeof makers / sizeof *makers; k++) {
        for (uint64_t i = 0; i < 129 * 257; i++)
            values[i] = makers[k](70 + k, i);
        check_encode_matrix(FORMAT_MXFP4, 9, 320, values, 1.0f);
        check_encode_matrix(FORMAT_NVFP4, 9, 304, values, 0.5f / (6 * 448));
        check_encode_matrix(FORMAT_NVFP4, 9, 304, values, 1.0f);
        check_encode_matrix(FORMAT_NVFP4, 64, 304, values, tie_tensor_scale);
        for (size_t i = 0; i < sizeof fp8_shapes / sizeof *fp8_shapes; i++) {
            check_encode_matrix(FORMAT_FP8_BLOCK, fp8_shapes[i][0], fp8_shapes[i][1], values, 1.0f);
            check_encode_matrix(FORMAT_FP8_CHANNEL, fp8_shapes[i][0], fp8_shapes[i][1], values, 1.0f);
        }
    }
    free(values);
}

/* Plain formats give back what they hold; a decoded block format encodes to the same values again. */
static void test_round_trip(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 160 };
    float *values = mem_alloc(ROWS * COLS, sizeof *values), *again = mem_alloc(ROWS * COLS, sizeof *again);
    for (format_id id = 0; id < FORMAT_COUNT; id++) {
        owned_matrix o = matrix_make(id, ROWS, COLS);
        for (uint64_t i = 0; i < ROWS * COLS; i++)
            values[i] = id == FORMAT_BF16 ? bf16_decode((uint16_t)(random_word(80, i, 0) % 0x7F80)) : maker_outliers(80, i);
        for (int pass = 0; pass < 2; pass++) {
            o.m.format->encode(values, ROWS, COLS, 1.0f, o.data_memory + 1, o.scale_memory + 1);
            for (int64_t r = 0; r < ROWS; r++)
                matrix_row(&o.m, r, again + r * COLS);
            if (pass == 1 || id == FORMAT_F32 || id == FORMAT_BF16)
                assert_memory_equal(values, again, ROWS * COLS * sizeof *values);
            memcpy(values, again, ROWS * COLS * sizeof *values);
            if (id == FORMAT_NVFP4 || id == FORMAT_FP8_BLOCK || id == FORMAT_FP8_CHANNEL)
                break; /* their scale of the decoded block may differ: the largest value need not map to 6 or 448 */
        }
        matrix_free(&o);
    }
    free(values);
    free(again);
}

static void test_matrix_rows(void **state)
{
    (void)state;
    enum { ROWS = 300, COLS = 160 };
    float whole[COLS], part[COLS];
    for (format_id id = 0; id < FORMAT_COUNT; id++) {
        owned_matrix o = matrix_make(id, ROWS, COLS);
        matrix_fill_random(&o, 90 + id);
        o.m.scale = 3.0f;
        int64_t step = id == FORMAT_FP8_BLOCK ? 128 : 7;
        for (int64_t first = 0; first < ROWS; first += step) {
            int64_t count = ROWS - first < 5 ? ROWS - first : 5;
            matrix rows = matrix_rows(&o.m, first, count);
            assert_int_equal(rows.rows, count);
            for (int64_t r = 0; r < count; r++) {
                matrix_row(&o.m, first + r, whole);
                matrix_row(&rows, r, part);
                assert_memory_equal(whole, part, sizeof whole);
            }
        }
        matrix none = matrix_rows(&o.m, id == FORMAT_FP8_BLOCK ? 256 : ROWS, 0);
        assert_int_equal(none.rows, 0);
        matrix_free(&o);
    }
}

static void test_table(void **state)
{
    (void)state;
    for (format_id id = 0; id < FORMAT_COUNT; id++) {
        assert_int_equal(format_of(id)->id, id);
        assert_ptr_equal(format_by_name(format_of(id)->name), format_of(id));
    }
    assert_null(format_by_name("fp7"));
    assert_null(format_by_name(""));
}

static void check_sizes(format_id id, int64_t rows, int64_t cols, int64_t data, int64_t scales)
{
    uint64_t found;
    assert_int_equal(format_data_bytes(format_of(id), rows, cols, &found), data >= 0);
    if (data >= 0)
        assert_int_equal(found, data);
    assert_int_equal(format_scale_bytes(format_of(id), rows, cols, &found), scales >= 0);
    if (scales >= 0)
        assert_int_equal(found, scales);
}

static void test_sizes(void **state)
{
    (void)state;
    check_sizes(FORMAT_F32, 3, 5, 60, 0);
    check_sizes(FORMAT_BF16, 3, 5, 30, 0);
    check_sizes(FORMAT_FP8_BLOCK, 576, 6144, 576 * 6144, 5 * 48 * 4);
    check_sizes(FORMAT_FP8_BLOCK, 129, 1, 129, 8);
    check_sizes(FORMAT_MXFP4, 2048, 6144, 2048 * 3072, 2048 * 192);
    check_sizes(FORMAT_NVFP4, 6144, 2048, 6144 * 1024, 6144 * 128);
    check_sizes(FORMAT_MXFP4, 2, 48, -1, -1);
    check_sizes(FORMAT_NVFP4, 2, 48, 48, 6);
    check_sizes(FORMAT_NVFP4, 2, 24, -1, -1);
    check_sizes(FORMAT_MXFP4, 0, 32, 0, 0);
    check_sizes(FORMAT_F32, -1, 4, -1, -1);
    check_sizes(FORMAT_F32, 4, -1, -1, -1);
    check_sizes(FORMAT_F32, INT64_C(1) << 32, INT64_C(1) << 32, -1, 0);
    check_sizes(FORMAT_F32, 1, INT64_MAX, -1, 0);
    check_sizes(FORMAT_MXFP4, INT64_MAX, INT64_C(1) << 20, -1, -1);
    assert_int_equal(format_row_bytes(format_of(FORMAT_MXFP4), 6144), 3072);
    assert_int_equal(format_row_bytes(format_of(FORMAT_BF16), 5), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e4m3), cmocka_unit_test(test_e2m1), cmocka_unit_test(test_e8m0), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_mxfp4_scale), cmocka_unit_test(test_decode), cmocka_unit_test(test_encode),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_matrix_rows), cmocka_unit_test(test_table),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
