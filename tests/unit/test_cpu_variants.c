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

static float slow_dot(const float *a, const float *b, int64_t n, bool fused)
{
    volatile float lane[16] = {0};
    for (int64_t k = 0; k < n; k++) {
        volatile float product = a[k] * b[k];
        lane[k % 16] = fused ? fmaf(a[k], b[k], lane[k % 16]) : lane[k % 16] + product;
    }
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] = lane[j] + lane[j + width];
    return fused ? lane[0] + 0.0f : lane[0];
}

static void check_dots(bool fused)
{
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
                expected[r * CPU_COLUMN_BLOCK + c] = slow_dot(w.values + c * stride, x[r], n, fused);
        for (int v = 0; cpu_kernels_at(v); v++) {
            for (int i = 0; i < MOST_ROWS * CPU_COLUMN_BLOCK; i++)
                got[i] = 77.0f;
            const cpu_kernels *k = cpu_kernels_at(v);
            (fused ? k->dots_fused : k->dots)(w.values, stride, columns, x, rows, n, got);
            assert_memory_equal(got, expected, sizeof got);
        }
        free(w.memory);
        free(in.memory);
    }
}

static void test_dots(void **state)
{
    (void)state;
    check_dots(false);
    check_dots(true);
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

static double log_sum_exp(const float *logits, size_t n)
{
    double largest = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, (double)logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

/* KL(a || b) of the distributions of two rows of logits. */
static double divergence(const float *a, const float *b, size_t n)
{
    double total_a = log_sum_exp(a, n), total_b = log_sum_exp(b, n), sum = 0;
    for (size_t i = 0; i < n; i++) {
        double log_a = (double)a[i] - total_a;
        sum += exp(log_a) * (log_a - ((double)b[i] - total_b));
    }
    return sum;
}

enum { PROMPT = 280, SHORT_PROMPT = 40 }; /* the first is longer than index_topk; fused sums without an instruction are slow */

static float *prompt_logits(rig *r, int count)
{
    int32_t ids[PROMPT];
    for (int i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)(word(13, (uint64_t)i) % 4000);
    return rig_all_logits(r, ids, count, 100);
}

/* The whole model: logits of a prompt in the kernels that were chosen, with every variant in turn for all shapes, and in those
 * of every instruction set. */
static void check_model(bool exact)
{
    rig r = rig_open_as(NANO, KV_BF16, 2, 512, exact, NULL);
    int count = exact ? PROMPT : SHORT_PROMPT;
    size_t bytes = (size_t)count * (size_t)r.model->config.vocab_size * sizeof(float);
    dispatch_table *t = r.device->dispatch;
    float *chosen = prompt_logits(&r, count);
    for (int v = 0, most = 1; v < most; v++) {
        for (int i = 0; i < t->count; i++) {
            int choices[CPU_MOST_MATMULS], found = dispatch_choices(t, &t->rows[i].key, choices, CPU_MOST_MATMULS);
            assert_in_range(found, 1, CPU_MOST_MATMULS);
            most = found > most ? found : most;
            if (v < found)
                dispatch_set(t, &t->rows[i], choices[v]);
        }
        float *other = prompt_logits(&r, count);
        assert_memory_equal(chosen, other, bytes);
        free(other);
    }
    rig_close(&r);
    for (int v = 0; cpu_kernels_at(v); v++) {
        r = rig_open_as(NANO, KV_BF16, 2, 512, exact, cpu_kernels_at(v)->name);
        const cpu_matmul *kernel = cpu_matmul_for(cpu_of(r.device), dispatch_linear, &r.model->lm_head, 3);
        assert_string_equal(kernel->set, cpu_kernels_at(v)->name);
        assert_true((kernel->input == CPU_INPUT_EXACT) == exact);
        assert_non_null(strstr(r.device->description, cpu_kernels_at(v)->name));
        float *other = prompt_logits(&r, count);
        assert_memory_equal(chosen, other, bytes);
        free(other);
        rig_close(&r);
    }
    free(chosen);
}

static void test_model(void **state)
{
    (void)state;
    check_model(true);
    check_model(false);
}

static void test_unknown_kernels_are_refused(void **state)
{
    (void)state;
    error err = {0};
    model *m = model_open(NANO, &err);
    device_limits limits = {.kv = KV_BF16, .threads = 1, .max_rows = 8, .max_context = 64, .kernels = "avx9"};
    assert_null(cpu_device_create(m, &limits, &err));
    assert_non_null(strstr(err.text, "avx9"));
    model_close(m);
}

typedef struct closeness {
    double divergence;
    int tokens, same; /* same: the first choice */
} closeness;

static void compare_modes(const char *prompt, closeness *sum)
{
    golden g = golden_open("golden_mxfp4", prompt);
    rig exact = rig_open_as(NANO, KV_F32, 2, 512, true, NULL), fast = rig_open_as(NANO, KV_F32, 2, 512, false, NULL);
    int count = g.count < 300 ? g.count : 300;
    size_t vocab = (size_t)exact.model->config.vocab_size;
    float *a = rig_all_logits(&exact, g.ids, count, 100), *b = rig_all_logits(&fast, g.ids, count, 100);
    for (int i = 0; i < count; i++) {
        sum->divergence += divergence(a + (size_t)i * vocab, b + (size_t)i * vocab, vocab);
        sum->same += argmax(a + (size_t)i * vocab, (int)vocab) == argmax(b + (size_t)i * vocab, (int)vocab);
    }
    sum->tokens += count;
    free(a);
    free(b);
    rig_close(&exact);
    rig_close(&fast);
    golden_close(&g);
}

/* 8-bit activations change the distribution of the next token by little. */
static void test_fast_is_close_to_exact(void **state)
{
    (void)state;
    static const char *const texts[] = {"arith", "chat", "tool", "retr1200"};
    closeness sum = {0};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        compare_modes(texts[i], &sum);
    print_message("%d tokens: mean KL %.2e, the same first choice for %.1f%%\n", sum.tokens, sum.divergence / sum.tokens,
                  100.0 * sum.same / sum.tokens);
    assert_true(sum.divergence > 0); /* it is another mode */
    assert_true(sum.divergence / sum.tokens <= 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dots),
        cmocka_unit_test(test_add_scaled),
        cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_unknown_kernels_are_refused),
        cmocka_unit_test(test_fast_is_close_to_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
