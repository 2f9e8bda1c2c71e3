/* Every variant of the CPU kernels and of the decoders gives the bits of the generic one, and that one those of slow code written here
 * from the definition: odd sizes, any alignment, tiny and huge values. */
#include "golden.h"

#include "base/random.h"
#include "device/cpu/cpu.h"
#include "formats/decode_kernels.h"
#include "formats/scalar.h"

#define NANO SOURCE_DIR "/models/nano"

enum { LONGEST = 150, MOST_ROWS = 11, ROUNDS = 1500 };

static uint64_t word(uint64_t a, uint64_t b)
{
    return random_word(11, a, b);
}

/* Finite values of all kinds: normal ones, some denormal, zeros of both signs, and some whose sums lose bits. */
static float value_at(uint64_t a, uint64_t b)
{
    uint64_t w = word(a, b);
    float sign = w & 1 ? -1.0f : 1.0f, unit = (float)(w >> 40) * 0x1p-24f;
    switch (w >> 1 & 15) {
    case 0: return sign * 0.0f;
    case 1: return sign * unit * 0x1p-126f;
    case 2: return sign * unit * 0x1p-70f;
    case 3: return sign * unit * 0x1p20f;
    default: return sign * unit;
    }
}

/* A block of its own for each use, so that a sanitizer sees every access behind its end; `skew` moves it off its alignment. */
typedef struct block {
    float *memory, *values;
} block;

static block block_of(uint64_t seed, size_t count, size_t skew)
{
    block b = {.memory = mem_alloc(count + skew + 1, sizeof *b.memory)};
    b.values = b.memory + skew;
    for (size_t i = 0; i < count; i++)
        b.values[i] = value_at(seed, i);
    return b;
}

static float slow_dot(const float *a, const float *b, int64_t n)
{
    volatile float lane[16] = {0};
    for (int64_t k = 0; k < n; k++) {
        volatile float product = a[k] * b[k];
        lane[k % 16] = lane[k % 16] + product;
    }
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] = lane[j] + lane[j + width];
    return lane[0];
}

static void test_dots(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t unit = round % 2 ? 16 : 1, n = (int64_t)(word(round, 0) % LONGEST) / unit * unit; /* 16: no end of a vector */
        int64_t stride = n + (int64_t)(word(round, 1) % 5);
        int rows = (int)(word(round, 2) % (MOST_ROWS + 1)), columns = 1 + (int)(word(round, 3) % CPU_COLUMN_BLOCK);
        block w = block_of(2 * round, (size_t)(stride * columns), word(round, 4) % 8);
        block in = block_of(2 * round + 1, (size_t)(n * rows), word(round, 5) % 8);
        const float *x[MOST_ROWS];
        float expected[MOST_ROWS * CPU_COLUMN_BLOCK], got[MOST_ROWS * CPU_COLUMN_BLOCK];
        for (int r = 0; r < rows; r++)
            x[r] = in.values + (rows - 1 - r) * n;
        for (int i = 0; i < MOST_ROWS * CPU_COLUMN_BLOCK; i++)
            expected[i] = 77.0f; /* what lies beside the results stays */
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++)
                expected[r * CPU_COLUMN_BLOCK + c] = slow_dot(w.values + c * stride, x[r], n);
        for (int v = 0; cpu_kernels_at(v); v++) {
            for (int i = 0; i < MOST_ROWS * CPU_COLUMN_BLOCK; i++)
                got[i] = 77.0f;
            cpu_kernels_at(v)->dots(w.values, stride, columns, x, rows, n, got);
            assert_memory_equal(got, expected, sizeof got);
        }
        free(w.memory);
        free(in.memory);
    }
}

static void test_add_scaled(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t n = (int64_t)(word(round, 6) % LONGEST), stride = n + (int64_t)(word(round, 7) % 5);
        int count = (int)(word(round, 8) % 12);
        block x = block_of(3 * round, (size_t)(stride * count), word(round, 9) % 8);
        block scales = block_of(3 * round + 1, (size_t)count, word(round, 10) % 8);
        block expected = block_of(3 * round + 2, (size_t)n, 0);
        for (int64_t k = 0; k < n; k++)
            for (int i = 0; i < count; i++) {
                volatile float product = scales.values[i] * x.values[i * stride + k];
                expected.values[k] += product;
            }
        for (int v = 0; cpu_kernels_at(v); v++) {
            block got = block_of(3 * round + 2, (size_t)n, word(round, 11) % 8);
            cpu_kernels_at(v)->add_scaled(got.values, scales.values, x.values, stride, count, n);
            assert_memory_equal(got.values, expected.values, (size_t)n * sizeof(float));
            free(got.memory);
        }
        free(x.memory);
        free(scales.memory);
        free(expected.memory);
    }
}

/* What a decoder is given: bytes of all values at an odd address, and the results of a variant. */
typedef struct decoding {
    uint8_t *codes, *scales;
    float *out;
} decoding;

enum { DECODED = 256 * MXFP4_BLOCK };

static decoding decoding_create(void)
{
    decoding d = {mem_alloc(2 * DECODED + 1, 1), mem_alloc(DECODED + 1, 1), mem_alloc(DECODED + 1, sizeof(float))};
    for (uint64_t i = 0; i < 2 * DECODED + 1; i++)
        d.codes[i] = (uint8_t)word(i, 12);
    for (int i = 0; i <= DECODED; i++)
        d.scales[i] = (uint8_t)i;
    return d;
}

static void decoding_free(decoding *d)
{
    free(d->codes);
    free(d->scales);
    free(d->out);
}

/* Compares out[count] with the value of each index, and that nothing behind it was written. */
static void check_decoded(decoding *d, int64_t count, float (*expected)(const decoding *d, int64_t i))
{
    for (int64_t i = 0; i < count; i++)
        if (float_bits(d->out[i]) != float_bits(expected(d, i)))
            fail_msg("value %lld of %lld is %a, expected %a", (long long)i, (long long)count, (double)d->out[i], (double)expected(d, i));
    assert_true(d->out[count] == 77.0f);
}

static float bf16_expected(const decoding *d, int64_t i)
{
    return bf16_decode((uint16_t)(d->codes[1 + 2 * i] | d->codes[2 + 2 * i] << 8));
}

static const float FP8_SCALE = 0.0123f, NVFP4_OUTER = 0.00321f;

static float fp8_expected(const decoding *d, int64_t i)
{
    return e4m3_decode(d->codes[1 + i]) * FP8_SCALE;
}

static float e2m1_at(const decoding *d, int64_t i)
{
    return e2m1_decode((uint8_t)(d->codes[1 + i / 2] >> (i % 2 ? 4 : 0)));
}

static float mxfp4_expected(const decoding *d, int64_t i)
{
    return e2m1_at(d, i) * e8m0_decode(d->scales[1 + i / MXFP4_BLOCK]);
}

static float nvfp4_expected(const decoding *d, int64_t i)
{
    volatile float inner = e2m1_at(d, i) * e4m3_decode(d->scales[1 + i / NVFP4_BLOCK]);
    return inner * NVFP4_OUTER;
}

static void test_decoders(void **state)
{
    (void)state;
    decoding d = decoding_create();
    for (int v = 0; decode_kernels_at(v); v++) {
        const decode_kernels *k = decode_kernels_at(v);
        static const int64_t counts[] = {0, 1, 5, 7, 8, 9, 31, 33, 255, 1003};
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            d.out[counts[i]] = 77.0f;
            k->bf16(d.codes + 1, counts[i], d.out);
            check_decoded(&d, counts[i], bf16_expected);
            k->fp8(d.codes + 1, counts[i], FP8_SCALE, d.out);
            check_decoded(&d, counts[i], fp8_expected);
        }
        for (int64_t blocks = 0; blocks <= 256; blocks += blocks < 5 ? 1 : 251) {
            d.out[blocks * MXFP4_BLOCK] = 77.0f;
            k->mxfp4(d.codes + 1, d.scales + 1, blocks, d.out);
            check_decoded(&d, blocks * MXFP4_BLOCK, mxfp4_expected);
            d.out[blocks * NVFP4_BLOCK] = 77.0f;
            k->nvfp4(d.codes + 1, d.scales + 1, NVFP4_OUTER, blocks, d.out);
            check_decoded(&d, blocks * NVFP4_BLOCK, nvfp4_expected);
        }
    }
    decoding_free(&d);
}

/* The whole model: logits of a prompt longer than index_topk, in the variant that was chosen and in all others. */
static void test_model(void **state)
{
    (void)state;
    enum { COUNT = 280 };
    int32_t ids[COUNT];
    for (int i = 0; i < COUNT; i++)
        ids[i] = (int32_t)(word(13, (uint64_t)i) % 4000);
    rig r = rig_open(NANO, KV_BF16, 2, 512);
    size_t bytes = COUNT * (size_t)r.model->config.vocab_size * sizeof(float);
    assert_non_null(strstr(r.device->description, cpu_kernels_at(0)->name));
    float *chosen = rig_all_logits(&r, ids, COUNT, 100);
    for (int v = 1; cpu_kernels_at(v); v++) {
        error err = {0};
        assert_true(dispatch_resolve(r.device->dispatch, NULL, cpu_kernels_at(v)->name, &err));
        assert_ptr_equal(cpu_kernels_for(cpu_of(r.device), dispatch_linear, &r.model->lm_head, 3), cpu_kernels_at(v));
        float *other = rig_all_logits(&r, ids, COUNT, 100);
        assert_memory_equal(chosen, other, bytes);
        free(other);
    }
    free(chosen);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dots),
        cmocka_unit_test(test_add_scaled),
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
