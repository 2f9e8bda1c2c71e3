/* The layout of expert weights on the GPU, on the host: words through the kernel's decoding and the matrix instruction's register layout
 * back to the values of the checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "device/gpu/hopper/gpu_moe_pack.h"
#include "formats/format.h"
#include "formats/scalar.h"

enum { INTER = 128, HIDDEN = 256 };

/* Every code at every scale is the e4m3 number with its value. */
static void test_decode_table(void **state)
{
    (void)state;
    for (int scale = 0; scale <= MOE_SCALE_TOP; scale++)
        for (uint32_t code = 0; code < 16; code++)
            for (int at = 0; at < 8; at++) {
                uint32_t codes[8] = {0}, a, b;
                codes[at] = code;
                moe_word_unpack(moe_word_pack(codes), scale, &a, &b);
                float expected = ldexpf(e2m1_values[code], scale - 5);
                for (int i = 0; i < 8; i++) {
                    uint8_t got = (uint8_t)((i < 4 ? a : b) >> 8 * (i % 4));
                    assert_true(e4m3_decode(got) == (i == at ? expected : 0.0f));
                }
            }
}

/* Against the nearest of all values, ties to an even code. */
static void test_lowering(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 16; code++)
        for (int down = 1; down < 20; down++) {
            double wanted = fabs((double)e2m1_values[code]) * pow(2, -down), nearest = INFINITY;
            uint32_t best = 0;
            for (uint32_t c = 0; c < 8; c++) {
                double e = fabs((double)e2m1_values[c] - wanted);
                if (e < nearest || (e == nearest && c % 2 == 0)) {
                    best = c;
                    nearest = e;
                }
            }
            uint32_t got = moe_code_lower(code, down);
            assert_int_equal(got & 7u, best);
            assert_int_equal(got & 8u, best ? code & 8u : 0u);
        }
}

typedef struct weights {
    uint8_t *codes, *scales, *packed;
    float *row_scales;
    int rows, cols;
    int64_t lowered;
} weights;

static weights weights_make(moe_order order, int rows, int cols, int spread)
{
    weights w = {.rows = rows, .cols = cols};
    size_t values = (size_t)rows * (size_t)cols;
    w.codes = malloc(values / 2);
    w.scales = malloc(values / 32);
    w.packed = malloc(moe_packed_bytes(rows, cols));
    w.row_scales = malloc((size_t)rows * sizeof(float));
    for (size_t i = 0; i < values / 2; i++)
        w.codes[i] = (uint8_t)random_word(1, i, 0);
    for (size_t i = 0; i < values / 32; i++)
        w.scales[i] = (uint8_t)(100 + random_word(2, i, 0) % (uint64_t)spread);
    memset(w.packed, 0xEE, moe_packed_bytes(rows, cols));
    w.lowered = moe_pack_host(order, w.codes, w.scales, rows, cols, w.packed, w.row_scales);
    return w;
}

static void weights_free(weights *w)
{
    free(w->codes);
    free(w->scales);
    free(w->packed);
    free(w->row_scales);
}

/* The value that a thread has in byte `byte` of register `reg` for step s (32 columns) of a tile, as the kernel decodes it, and where the
 * matrix instruction takes it to be: row and column of the 64 x 32 operand. */
static float fragment_value(const uint8_t *tile, int thread, int s, int reg, int byte, int *row, int *col)
{
    int lane = thread % 32, h = reg % 2;
    uint32_t word, a, b;
    memcpy(&word, tile + s / 2 * 2048 + thread * 16 + (s % 2 * 2 + h) * 4, 4);
    int scale = tile[MOE_TILE_CODES + thread / 4 * 8 + h * 4 + s];
    moe_word_unpack(word, scale, &a, &b);
    *row = thread / 32 * 16 + lane / 4 + 8 * h;
    *col = lane % 4 * 4 + byte + reg / 2 * 16;
    return e4m3_decode((uint8_t)((reg < 2 ? a : b) >> 8 * byte));
}

/* All weights of a matrix through the registers; returns how many differ from the checkpoint. Each must come once. */
static int wrong_weights(moe_order order, const weights *w)
{
    matrix m = {.format = format_of(FORMAT_MXFP4), .rows = w->rows, .cols = w->cols, .data = w->codes, .scales = w->scales, .scale = 1};
    float *line = malloc((size_t)w->cols * sizeof *line);
    uint8_t *seen = calloc((size_t)w->rows * (size_t)w->cols, 1);
    int wrong = 0, kblocks = w->cols / MOE_TILE_COLS;
    for (int tile = 0; tile < w->rows / MOE_TILE_ROWS * kblocks; tile++)
        for (int i = 0; i < 128 * 4 * 4 * 4; i++) {
            int row, col;
            const uint8_t *from = w->packed + (size_t)tile * MOE_TILE_BYTES;
            float value = fragment_value(from, i % 128, i / 128 % 4, i / 512 % 4, i / 2048, &row, &col);
            int position = tile / kblocks * MOE_TILE_ROWS + row, at = tile % kblocks * MOE_TILE_COLS + i / 128 % 4 * 32 + col;
            int model_row = moe_row_at(order, position, w->rows / 2);
            m.format->decode(&m, model_row, at, 1, line);
            wrong += value * w->row_scales[position] != line[0] || seen[(size_t)model_row * (size_t)w->cols + (size_t)at]++;
        }
    free(line);
    free(seen);
    return wrong;
}

static void test_pack_exact(void **state)
{
    (void)state;
    weights gate_up = weights_make(MOE_GATE_UP, 2 * INTER, HIDDEN, 12), down = weights_make(MOE_DOWN, HIDDEN, INTER, 12);
    assert_int_equal(gate_up.lowered, 0);
    assert_int_equal(wrong_weights(MOE_GATE_UP, &gate_up), 0);
    assert_int_equal(down.lowered, 0);
    assert_int_equal(wrong_weights(MOE_DOWN, &down), 0);
    weights_free(&gate_up);
    weights_free(&down);
}

/* Groups too far below their row's largest are counted, and nothing else differs. */
static void test_pack_lowered(void **state)
{
    (void)state;
    weights w = weights_make(MOE_DOWN, HIDDEN, INTER, 14);
    int64_t expected = 0;
    int groups = w.cols / MOE_GROUP;
    for (int row = 0; row < w.rows; row++) {
        int top = 0;
        for (int g = 0; g < groups; g++)
            top = w.scales[row * groups + g] > top ? w.scales[row * groups + g] : top;
        for (int g = 0; g < groups; g++)
            expected += top - w.scales[row * groups + g] > MOE_SCALE_TOP;
    }
    assert_true(expected > 0);
    assert_int_equal(w.lowered, expected);
    int wrong = wrong_weights(MOE_DOWN, &w);
    assert_true(wrong > 0 && wrong <= expected * MOE_GROUP);
    weights_free(&w);
}

/* gate and up of one column lie in one thread; what a thread has of both tiles of a pair are neighbours. */
static void test_positions(void **state)
{
    (void)state;
    for (int position = 0; position < 2 * INTER; position++) {
        int other = position ^ 8, pair = position ^ 64, first = position % 128 < 64, gate = position % 16 < 8;
        int column = moe_row_at(MOE_GATE_UP, position, INTER), row = moe_row_at(MOE_DOWN, position, INTER);
        assert_int_equal(moe_row_at(MOE_GATE_UP, other, INTER), column + (gate ? INTER : -INTER));
        assert_int_equal(moe_row_at(MOE_GATE_UP, pair, INTER), column + (first ? 1 : -1));
        assert_int_equal(moe_row_at(MOE_DOWN, other, INTER), row + (gate ? 1 : -1));
        assert_int_equal(moe_row_at(MOE_DOWN, pair, INTER), row + (first ? 2 : -2));
        assert_int_equal(column % INTER / 64, position / 128);
        assert_int_equal(row / 128, position / 128);
    }
    uint8_t byte = 0;
    float scale = 0;
    assert_int_equal(moe_pack_host(MOE_DOWN, &byte, &byte, 64, 128, &byte, &scale), -1);
    assert_int_equal(moe_pack_host(MOE_DOWN, &byte, &byte, 128, 96, &byte, &scale), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_table), cmocka_unit_test(test_lowering), cmocka_unit_test(test_pack_exact),
        cmocka_unit_test(test_pack_lowered), cmocka_unit_test(test_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
