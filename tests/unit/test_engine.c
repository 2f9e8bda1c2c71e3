/* The engine, rule by rule, on the built-in model. That its answers equal those of requests alone, whatever happens around them, is
 * checked by bench_same_bytes, which the tests run with fewer requests. */
#include "golden.h"

#include <pthread.h>
#include <time.h>

#include "base/random.h"
#include "engine/engine.h"

#define NANO SOURCE_DIR "/models/nano"

enum { CONTEXT = 1024, PROMPT = 200 };

static rig lab;

typedef struct outcome {
    int32_t tokens[CONTEXT];
    int count, events;
    engine_finish finish;
    engine_request_stats stats;
    bool ended;
    char failure[256];
} outcome;

static engine_options usual(void)
{
    return (engine_options){.max_running = 8, .max_waiting = 64, .max_context = CONTEXT, .kv_tokens = 8192};
}

static engine *start(engine_options o)
{
    error err = {0};
    engine *e = engine_create(lab.forward, &o, &err);
    if (!e)
        fail_msg("%s", err.text);
    return e;
}

static int32_t word(int family, int i)
{
    return (int32_t)(random_word(5, (uint64_t)family, (uint64_t)i) % 4000);
}

static void fill_prompt(int32_t *tokens, int family, int count)
{
    for (int i = 0; i < count; i++)
        tokens[i] = word(family, i);
}

static engine_request request(const int32_t *prompt, int count, int max_tokens, outcome *out)
{
    *out = (outcome){0};
    engine_request r = {.prompt = prompt, .prompt_count = count, .max_tokens = max_tokens, .params = sampler_params_default(4086),
                        .ignore_eos = true, .user = out};
    r.params.temperature = 0;
    return r;
}

static uint64_t submit(engine *e, const engine_request *r)
{
    error err = {0};
    uint64_t id = 0;
    if (engine_submit(e, r, &id, &err) != ENGINE_ACCEPTED)
        fail_msg("%s", err.text);
    return id;
}

static void take(engine *e)
{
    engine_event ev;
    while (engine_poll(e, &ev, 1) == 1) {
        outcome *o = ev.user;
        assert_false(o->ended);
        for (int i = 0; i < ev.count; i++)
            o->tokens[o->count++] = ev.tokens[i];
        o->events++;
        o->finish = ev.finish;
        o->stats = ev.stats;
        o->ended = ev.finish != ENGINE_RUNNING;
        if (ev.failure)
            snprintf(o->failure, sizeof o->failure, "%s", ev.failure);
        engine_event_free(&ev);
    }
}

static void run(engine *e)
{
    while (engine_step(e))
        take(e);
    take(e);
}

static void check_idle(engine *e)
{
    engine_counters c;
    engine_count(e, &c);
    assert_int_equal(c.running, 0);
    assert_int_equal(c.waiting, 0);
    assert_int_equal(c.free_pages + c.idle_pages, c.pages);
}

static void test_one_request(void **state)
{
    (void)state;
    engine *e = start(usual());
    int32_t prompt[PROMPT];
    outcome o;
    fill_prompt(prompt, 1, PROMPT);
    engine_request r = request(prompt, PROMPT, 5, &o);
    submit(e, &r);
    run(e);
    assert_int_equal(o.finish, ENGINE_LENGTH);
    assert_int_equal(o.count, 5);
    assert_int_equal(o.stats.output_tokens, 5);
    assert_int_equal(o.stats.prompt_tokens, PROMPT);
    assert_int_equal(o.stats.cached_tokens, 0);
    assert_int_equal(o.stats.computed_tokens, PROMPT + 4); /* the last token is not computed */
    assert_true(o.stats.arrival_us <= o.stats.admitted_us && o.stats.admitted_us <= o.stats.first_token_us);
    assert_true(o.stats.first_token_us <= o.stats.finished_us);
    check_idle(e);
    engine_destroy(e);
}

/* A conversation that goes on computes its new tokens and the one that was sampled last. */
static void test_prefix_in_tokens(void **state)
{
    (void)state;
    for (int drafts = 0; drafts <= 3; drafts += 3) {
        engine_options options = usual();
        options.spec = (spec_options){.mode = drafts ? SPEC_FIXED : SPEC_OFF, .depth = drafts};
        engine *e = start(options);
        int32_t prompt[CONTEXT];
        outcome first, second, third;
        fill_prompt(prompt, 2, 150);
        engine_request r = request(prompt, 150, 7, &first);
        submit(e, &r);
        run(e);
        memcpy(prompt + 150, first.tokens, 7 * sizeof *prompt);
        for (int i = 0; i < 20; i++)
            prompt[157 + i] = word(3, i);
        engine_request next = request(prompt, 177, 3, &second);
        submit(e, &next);
        run(e);
        assert_int_equal(second.stats.cached_tokens, 156);
        engine_request elsewhere = request(prompt, 177, 3, &third);
        elsewhere.space = "another tenant";
        submit(e, &elsewhere);
        run(e);
        assert_int_equal(third.stats.cached_tokens, 0);
        assert_memory_equal(second.tokens, third.tokens, 3 * sizeof *prompt);
        engine_flush_cache(e);
        engine_request again = request(prompt, 177, 3, &third);
        submit(e, &again);
        run(e);
        assert_int_equal(third.stats.cached_tokens, 0);
        assert_memory_equal(second.tokens, third.tokens, 3 * sizeof *prompt);
        check_idle(e);
        engine_destroy(e);
    }
}

/* Equal prompts that come together are computed once. */
static void test_prefix_of_neighbours(void **state)
{
    (void)state;
    engine *e = start(usual());
    int32_t prompt[PROMPT];
    outcome o[4];
    fill_prompt(prompt, 4, PROMPT);
    for (int i = 0; i < 4; i++) {
        engine_request r = request(prompt, PROMPT, 4, &o[i]);
        submit(e, &r);
    }
    run(e);
    engine_counters c;
    engine_count(e, &c);
    int pages = (PROMPT - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    assert_int_equal(c.computed_tokens, PROMPT + 3 * (PROMPT - pages) + 4 * 3);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(o[i].stats.cached_tokens, pages);
        assert_memory_equal(o[i].tokens, o[0].tokens, 4 * sizeof *prompt);
    }
    check_idle(e);
    engine_destroy(e);
}

static void test_ends(void **state)
{
    (void)state;
    engine *e = start(usual());
    int32_t prompt[PROMPT];
    outcome free_running, o;
    fill_prompt(prompt, 5, 40);
    engine_request r = request(prompt, 40, 12, &free_running);
    submit(e, &r);
    run(e);
    int32_t stop = free_running.tokens[6];
    int first = 0;
    while (free_running.tokens[first] != stop)
        first++;

    engine_request stops = request(prompt, 40, 12, &o);
    stops.stop_ids = &stop;
    stops.stop_count = 1;
    submit(e, &stops);
    run(e);
    assert_int_equal(o.finish, ENGINE_STOP);
    assert_int_equal(o.count, first + 1);
    assert_int_equal(o.tokens[first], stop);

    engine_request late = request(prompt, 40, 12, &o); /* the stop token is not chosen before 9 others */
    late.stop_ids = &stop;
    late.stop_count = 1;
    late.min_tokens = 9;
    submit(e, &late);
    run(e);
    assert_true(o.count >= 9);
    for (int i = 0; i < 9; i++)
        assert_int_not_equal(o.tokens[i], stop);
    check_idle(e);
    engine_destroy(e);
}

static uint64_t now_us;

static uint64_t virtual_clock(void *context)
{
    (void)context;
    return now_us;
}

static void test_deadline(void **state)
{
    (void)state;
    engine_options options = usual();
    options.max_running = 1;
    options.clock = virtual_clock;
    now_us = 1000;
    engine *e = start(options);
    int32_t prompt[PROMPT];
    outcome running, waiting, patient;
    fill_prompt(prompt, 6, 40);
    engine_request r = request(prompt, 40, 500, &running);
    r.deadline_us = 5000;
    submit(e, &r);
    engine_request w = request(prompt, 30, 5, &waiting);
    w.deadline_us = 4000;
    submit(e, &w);
    engine_request p = request(prompt, 20, 5, &patient);
    submit(e, &p);
    for (int i = 0; i < 5; i++)
        engine_step(e);
    take(e);
    assert_true(running.count > 0 && !running.ended && !waiting.ended);
    now_us = 4500;
    engine_step(e);
    take(e);
    assert_int_equal(waiting.finish, ENGINE_DEADLINE);
    assert_int_equal(waiting.count, 0);
    assert_false(running.ended);
    now_us = 5500;
    run(e);
    assert_int_equal(running.finish, ENGINE_DEADLINE);
    assert_int_equal(patient.finish, ENGINE_LENGTH);
    assert_int_equal(patient.count, 5);
    check_idle(e);
    engine_destroy(e);
}

static void test_cancel(void **state)
{
    (void)state;
    engine_options options = usual();
    options.max_running = 1;
    options.prefill_rows = 32;
    engine *e = start(options);
    int32_t prompt[PROMPT];
    outcome running, waiting;
    fill_prompt(prompt, 7, PROMPT);
    engine_request r = request(prompt, PROMPT, 500, &running);
    uint64_t first = submit(e, &r);
    engine_request w = request(prompt + 1, 30, 5, &waiting);
    uint64_t second = submit(e, &w);
    engine_step(e);
    engine_cancel(e, second);
    engine_cancel(e, 12345);
    engine_step(e);
    take(e);
    assert_int_equal(waiting.finish, ENGINE_CANCELLED);
    assert_false(running.ended);
    engine_cancel(e, first);
    engine_step(e);
    take(e);
    assert_int_equal(running.finish, ENGINE_CANCELLED);
    check_idle(e);
    engine_cancel(e, first); /* long gone */
    engine_step(e);
    check_idle(e);
    engine_destroy(e);
}

static void test_refusals(void **state)
{
    (void)state;
    engine_options options = usual();
    options.max_waiting = 2;
    options.kv_tokens = 512;
    engine *e = start(options);
    int32_t prompt[CONTEXT];
    outcome o[3];
    error err = {0};
    uint64_t id;
    fill_prompt(prompt, 8, CONTEXT);
    engine_request r = request(prompt, 600, 300, &o[0]);
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_INVALID);
    assert_non_null(strstr(err.text, "need 15 pages of 64 tokens, the cache has 8"));
    r = request(prompt, 1000, 100, &o[0]);
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_INVALID);
    assert_non_null(strstr(err.text, "together more than the context of 1024"));
    r = request(prompt, 0, 10, &o[0]);
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_INVALID);
    r = request(prompt, 5, 10, &o[0]);
    r.params.top_p = 7;
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_INVALID);
    assert_non_null(strstr(err.text, "top_p"));
    int32_t wrong[] = {1, 99999};
    r = request(wrong, 2, 10, &o[0]);
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_INVALID);
    for (int i = 0; i < 2; i++) {
        r = request(prompt, 5, 3, &o[i]);
        submit(e, &r);
    }
    r = request(prompt, 5, 3, &o[2]);
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_QUEUE_FULL);
    run(e);
    engine_close(e);
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_CLOSED);
    engine_counters c;
    engine_count(e, &c);
    assert_int_equal(c.submitted, 2);
    assert_int_equal(c.refused, 7);
    check_idle(e);
    engine_destroy(e);
}

/* More sequences than the cache can hold at once: all end, none with other tokens. */
static void test_preemption(void **state)
{
    (void)state;
    enum { COUNT = 6 };
    static const int pools[] = {8192, 512};
    outcome o[2][COUNT];
    for (int p = 0; p < 2; p++) {
        engine_options options = usual();
        options.kv_tokens = pools[p];
        engine *e = start(options);
        int32_t prompt[PROMPT];
        for (int i = 0; i < COUNT; i++) {
            fill_prompt(prompt, 20 + i, 60);
            engine_request r = request(prompt, 60, 90, &o[p][i]);
            submit(e, &r);
        }
        run(e);
        engine_counters c;
        engine_count(e, &c);
        assert_true((c.preemptions > 0) == (p == 1));
        check_idle(e);
        engine_destroy(e);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(o[1][i].finish, ENGINE_LENGTH);
        assert_int_equal(o[1][i].count, 90);
        assert_memory_equal(o[0][i].tokens, o[1][i].tokens, 90 * sizeof(int32_t));
    }
}

/* Accepting by lot gives the asked number of tokens per step. */
static void test_simulated_acceptance(void **state)
{
    (void)state;
    engine_options options = usual();
    options.spec = (spec_options){.mode = SPEC_FIXED, .depth = 5, .simulate = 3.61};
    engine *e = start(options);
    int32_t prompt[PROMPT];
    outcome o[4];
    for (int i = 0; i < 4; i++) {
        fill_prompt(prompt, 30 + i, 20);
        engine_request r = request(prompt, 20, 200, &o[i]);
        submit(e, &r);
    }
    run(e);
    engine_counters c;
    engine_count(e, &c);
    assert_true(c.spec_simulated);
    int steps = 0, tokens = 0;
    for (int i = 0; i < 4; i++) {
        steps += o[i].stats.verify_steps;
        tokens += o[i].stats.accepted + o[i].stats.verify_steps;
    }
    double mean = (double)tokens / steps;
    assert_true(mean > 3.1 && mean < 4.1); /* some 220 draws with a deviation near 1.8: 3.61 +- 4 standard errors */
    check_idle(e);
    engine_destroy(e);
}

static void test_drafts_need_a_head(void **state)
{
    (void)state;
    error err = {0};
    engine_options options = usual();
    options.spec = (spec_options){.mode = SPEC_FIXED, .depth = 2};
    lab.model->config.has_mtp = false;
    engine *e = engine_create(lab.forward, &options, &err);
    lab.model->config.has_mtp = true;
    assert_null(e);
    assert_non_null(strstr(err.text, "--spec 2 needs a draft head"));
}

/* ---- with its thread ---- */

typedef struct wake {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int count;
} wake;

static void notify(void *context)
{
    wake *w = context;
    pthread_mutex_lock(&w->lock);
    w->count++;
    pthread_cond_signal(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static void wait_for_news(wake *w, int *seen)
{
    pthread_mutex_lock(&w->lock);
    while (w->count == *seen)
        pthread_cond_wait(&w->news, &w->lock);
    *seen = w->count;
    pthread_mutex_unlock(&w->lock);
}

static void test_thread(void **state)
{
    (void)state;
    enum { COUNT = 24 };
    wake w = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};
    engine_options options = usual();
    options.spec = (spec_options){.mode = SPEC_FIXED, .depth = 2};
    options.notify = notify;
    options.notify_context = &w;
    engine *e = start(options);
    error err = {0};
    assert_true(engine_start(e, &err));
    int32_t prompt[PROMPT];
    outcome o[COUNT];
    int seen = 0, ended = 0;
    for (int i = 0; i < COUNT; i++) {
        fill_prompt(prompt, i % 5, 70);
        engine_request r = request(prompt, 10 + i, 6, &o[i]);
        uint64_t id = submit(e, &r);
        if (i % 4 == 3)
            engine_cancel(e, id);
        if (i == 10)
            engine_flush_cache(e);
    }
    while (ended < COUNT) {
        wait_for_news(&w, &seen);
        take(e);
        ended = 0;
        for (int i = 0; i < COUNT; i++)
            ended += o[i].ended;
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(o[i].finish == ENGINE_LENGTH || i % 4 == 3);
    check_idle(e);
    fill_prompt(prompt, 1, 70);
    engine_request last = request(prompt, 70, 500, &o[0]);
    submit(e, &last); /* destroyed while it runs */
    engine_destroy(e);
}

static int open_lab(void **state)
{
    (void)state;
    lab = rig_open_as(NANO, KV_BF16, 2, CONTEXT, false, NULL);
    return 0;
}

static int close_lab(void **state)
{
    (void)state;
    rig_close(&lab);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),       cmocka_unit_test(test_prefix_in_tokens), cmocka_unit_test(test_prefix_of_neighbours),
        cmocka_unit_test(test_ends),              cmocka_unit_test(test_deadline),         cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_preemption),       cmocka_unit_test(test_simulated_acceptance),
        cmocka_unit_test(test_drafts_need_a_head), cmocka_unit_test(test_thread),
    };
    return cmocka_run_group_tests(tests, open_lab, close_lab);
}
