/* Four random-weight models as HF saves them, against HF's own float32 logits of every position. */
#include "golden.h"

static const char *const MODELS[] = {"groups_f32", "allfull_bf16", "topk8_f32", "dense3_bf16"};

/* 1e-3 of the largest logit: the bound the project promises. HF's one pass and its token by token decoding differ by up to 7e-6
 * themselves (tests/fixtures/random/random.json), so anything beyond rounding would stand out. */
static void compare(const char *name, const float *got, const float *want, int rows, int vocab)
{
    float bound = 1e-3f * largest_magnitude(want, (size_t)rows * (size_t)vocab), worst = 0;
    for (int row = 0; row < rows; row++) {
        const float *g = got + row * vocab, *w = want + row * vocab;
        for (int i = 0; i < vocab; i++)
            worst = fmaxf(worst, fabsf(g[i] - w[i]));
        if (argmax(g, vocab) != argmax(w, vocab))
            fail_msg("%s: position %d: top token %d, HF has %d", name, row, argmax(g, vocab), argmax(w, vocab));
    }
    printf("  %-14s largest difference %.2e (bound %.2e)\n", name, (double)worst, (double)bound);
    assert_true(worst <= bound);
}

static void test_logits_equal_hf(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof MODELS / sizeof MODELS[0]; i++) {
        char path[512];
        error err = {0};
        snprintf(path, sizeof path, "%s/tests/fixtures/random/%s", SOURCE_DIR, MODELS[i]);
        rig r = rig_open(path, KV_F32, 2, 64);
        snprintf(path, sizeof path, "%s/tests/fixtures/random/%s/golden.safetensors", SOURCE_DIR, MODELS[i]);
        checkpoint *file = checkpoint_open(path, &err);
        assert_non_null(file);
        const tensor *info = NULL;
        int32_t *ids = golden_tensor(file, "ids", DTYPE_I32, &info);
        int count = (int)info->shape[0], vocab = r.model->config.vocab_size;
        float *prefill = golden_tensor(file, "prefill_logits", DTYPE_F32, NULL);
        float *decode = golden_tensor(file, "decode_logits", DTYPE_F32, NULL);
        float *once = rig_all_logits(&r, ids, count, count);
        compare(MODELS[i], once, prefill, count, vocab);
        for (int chunk = 1; chunk <= 7; chunk += 3) {
            float *pieces = rig_all_logits(&r, ids, count, chunk);
            assert_memory_equal(once, pieces, (size_t)count * (size_t)vocab * sizeof(float));
            compare(MODELS[i], pieces, decode, count, vocab);
            free(pieces);
        }
        free(once);
        free(decode);
        free(prefill);
        free(ids);
        checkpoint_close(file);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_logits_equal_hf)};
    return golden_main(tests, MODE_EXACT, NULL, NULL);
}
