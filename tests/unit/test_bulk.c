/* Bulk generation gives every request the tokens it would get alone, and scoring gives the logits of the plain pass. */
#include "golden.h"

#include "base/random.h"
#include "engine/bulk.h"

#define NANO SOURCE_DIR "/models/nano"

enum { REQUESTS = 7, LONGEST = 90, ANSWER = 12 };

static int32_t prompts[REQUESTS][LONGEST];

static bulk_request request_at(int i, int vocab)
{
    bulk_request r = {.prompt = prompts[i],
                      .prompt_count = 3 + (int)(random_word(5, (uint64_t)i, 0) % (LONGEST - 3)),
                      .max_tokens = ANSWER - i % 3,
                      .params = sampler_params_default(vocab)};
    for (int k = 0; k < LONGEST; k++)
        prompts[i][k] = (int32_t)(random_word(6, (uint64_t)i, (uint64_t)k) % 4000);
    r.params.temperature = i % 2 ? 0.0 : 1.0;
    r.params.seed = (uint64_t)i;
    r.params.frequency_penalty = i % 3 == 2 ? 0.7 : 0.0;
    r.params.logprobs = 0;
    return r;
}

/* Runs all requests with a number of sequences at a time; answers back to back in out. */
static void run_all(rig *r, int sequences, const int32_t *eos, int eos_count, int32_t *out, double *logprobs, int *counts)
{
    error err = {0};
    bulk_options o = {.max_sequences = sequences, .max_context = 128, .eos = eos, .eos_count = eos_count};
    bulk *b = bulk_create(r->forward, &o, &err);
    assert_non_null(b);
    bulk_request requests[REQUESTS];
    for (int i = 0; i < REQUESTS; i++)
        requests[i] = request_at(i, r->model->config.vocab_size);
    if (!bulk_run(b, requests, REQUESTS, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < REQUESTS; i++) {
        counts[i] = (int)requests[i].answer.count;
        for (int k = 0; k < counts[i]; k++) {
            out[i * ANSWER + k] = requests[i].answer.ids[k];
            logprobs[i * ANSWER + k] = requests[i].logprobs[k];
        }
        token_list_free(&requests[i].answer);
        free(requests[i].logprobs);
    }
    bulk_destroy(b);
}

static void test_same_tokens_as_alone(void **state)
{
    (void)state;
    rig r = rig_open_as(any_model(), KV_BF16, 2, 512, false, NULL);
    int32_t alone[REQUESTS * ANSWER] = {0}, together[REQUESTS * ANSWER] = {0};
    double alone_p[REQUESTS * ANSWER] = {0}, together_p[REQUESTS * ANSWER] = {0};
    int counts[REQUESTS], again[REQUESTS];
    run_all(&r, 1, NULL, 0, alone, alone_p, counts);
    for (int i = 0; i < REQUESTS; i++)
        assert_int_equal(counts[i], ANSWER - i % 3);
    for (int sequences = 2; sequences <= 8; sequences += 3) {
        run_all(&r, sequences, NULL, 0, together, together_p, again);
        assert_memory_equal(alone, together, sizeof alone);
        assert_memory_equal(alone_p, together_p, sizeof alone_p);
    }
    rig_close(&r);
}

static void test_eos_ends_an_answer(void **state)
{
    (void)state;
    rig r = rig_open_as(any_model(), KV_BF16, 2, 512, false, NULL);
    int32_t all[REQUESTS * ANSWER] = {0}, cut[REQUESTS * ANSWER] = {0};
    double p[REQUESTS * ANSWER];
    int counts[REQUESTS], short_counts[REQUESTS];
    run_all(&r, 3, NULL, 0, all, p, counts);
    int32_t eos = all[4]; /* the fifth token of the first answer */
    run_all(&r, 3, &eos, 1, cut, p, short_counts);
    for (int i = 0; i < REQUESTS; i++) {
        int expected = 0;
        while (expected < counts[i] && (expected == 0 || all[i * ANSWER + expected - 1] != eos))
            expected++;
        assert_int_equal(short_counts[i], expected);
    }
    assert_true(short_counts[0] <= 5);
    rig_close(&r);
}

typedef struct scored {
    float *logits;
    size_t vocab;
    int rows;
} scored;

static void keep_rows(void *context, int first, int count, const float *logits)
{
    scored *s = context;
    assert_int_equal(first, s->rows);
    memcpy(s->logits + (size_t)first * s->vocab, logits, (size_t)count * s->vocab * sizeof(float));
    s->rows += count;
}

static void test_score_gives_the_logits_of_the_plain_pass(void **state)
{
    (void)state;
    error err = {0};
    enum { COUNT = 300 };
    int32_t ids[COUNT];
    for (int i = 0; i < COUNT; i++)
        ids[i] = (int32_t)(random_word(8, 0, (uint64_t)i) % 4000);
    rig r = rig_open_as(any_model(), KV_BF16, 2, 512, false, NULL);
    size_t vocab = (size_t)r.model->config.vocab_size;
    bulk *b = bulk_create(r.forward, &(bulk_options){.max_sequences = 2, .max_context = 320}, &err);
    scored s = {mem_alloc(COUNT * vocab, sizeof(float)), vocab, 0};
    assert_true(bulk_score(b, ids, COUNT, keep_rows, &s, &err));
    assert_int_equal(s.rows, COUNT);
    float *plain = rig_all_logits(&r, ids, COUNT, 77);
    assert_memory_equal(plain, s.logits, COUNT * vocab * sizeof(float));
    assert_false(bulk_score(b, ids, 320, keep_rows, &s, &err));
    assert_non_null(strstr(err.text, "320"));
    free(plain);
    free(s.logits);
    bulk_destroy(b);
    rig_close(&r);
}

static void test_bad_requests_are_named(void **state)
{
    (void)state;
    error err = {0};
    rig r = rig_open_as(any_model(), KV_BF16, 1, 512, false, NULL);
    bulk *b = bulk_create(r.forward, &(bulk_options){.max_sequences = 2, .max_context = 100}, &err);
    int32_t ids[2] = {1, 9999};
    bulk_request bad = {.prompt = ids, .prompt_count = 2, .max_tokens = 5, .params = sampler_params_default(4096)};
    assert_false(bulk_run(b, &bad, 1, NULL, NULL, &err));
    assert_string_equal(err.text, "request 0: token 1 is 9999, expected 0 to 4095");
    bad.prompt_count = 1;
    bad.max_tokens = 100;
    assert_false(bulk_run(b, &bad, 1, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "a sequence holds 100"));
    bulk_destroy(b);
    rig_close(&r);
}

/* The tap of the experts' inner activations, against the residual stream: sum of weight * down(act) and the shared part must give what
 * the layer added. */
typedef struct layer_taps {
    int layer;
    float *before, *after, *act, *shared, *weights;
    int32_t *experts;
} layer_taps;

static void keep_layer(void *context, const tap_value *v)
{
    layer_taps *t = context;
    size_t bytes = (size_t)v->rows * (size_t)v->columns * 4;
    if (v->layer != t->layer)
        return;
    if (strcmp(v->name, "attention_out") == 0)
        t->before = mem_copy(v->data, bytes);
    else if (strcmp(v->name, "layer_out") == 0)
        t->after = mem_copy(v->data, bytes);
    else if (strcmp(v->name, "mlp_act") == 0)
        t->act = mem_copy(v->data, bytes);
    else if (strcmp(v->name, "shared_act") == 0)
        t->shared = mem_copy(v->data, bytes);
    else if (strcmp(v->name, "router_weights") == 0)
        t->weights = mem_copy(v->data, bytes);
    else if (strcmp(v->name, "router_experts") == 0)
        t->experts = mem_copy(v->data, bytes);
}

static double down_dot(const matrix *down, int64_t column, const float *act)
{
    float row[1024];
    double sum = 0;
    matrix_row(down, column, row);
    for (int64_t i = 0; i < down->cols; i++)
        sum += (double)row[i] * act[i];
    return sum;
}

static void test_expert_taps_add_up(void **state)
{
    (void)state;
    error err = {0};
    enum { ROWS = 20, LAYER = 3 };
    int32_t ids[ROWS];
    for (int i = 0; i < ROWS; i++)
        ids[i] = (int32_t)(random_word(9, 0, (uint64_t)i) % 4000);
    rig r = rig_open(NANO, KV_F32, 2, 512);
    const model_config *m = &r.model->config;
    const layer_weights *w = &r.model->layers[LAYER];
    layer_taps t = {.layer = LAYER};
    r.forward->tap = keep_layer;
    r.forward->tap_context = &t;
    assert_true(session_feed(r.session, ids, ROWS, &err));
    for (int row = 0; row < ROWS; row++)
        for (int64_t column = 0; column < m->hidden_size; column += 37) {
            double sum = down_dot(&w->shared.down, column, t.shared + row * m->expert_intermediate);
            for (int i = 0; i < m->experts_per_token; i++) {
                int pair = row * m->experts_per_token + i;
                sum += (double)t.weights[pair] * down_dot(&w->experts[t.experts[pair]].down, column, t.act + pair * m->expert_intermediate);
            }
            int64_t at = row * m->hidden_size + column;
            assert_true(fabs((double)t.after[at] - t.before[at] - sum) <= 1e-5 * (1 + fabs((double)t.after[at]))); /* f32 rounding */
        }
    free(t.before);
    free(t.after);
    free(t.act);
    free(t.shared);
    free(t.weights);
    free(t.experts);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_tokens_as_alone),
        cmocka_unit_test(test_eos_ends_an_answer),
        cmocka_unit_test(test_score_gives_the_logits_of_the_plain_pass),
        cmocka_unit_test(test_bad_requests_are_named),
        cmocka_unit_test(test_expert_taps_add_up),
    };
    return golden_main(tests, MODE_FAST | MODE_EXACT, NULL, NULL);
}
