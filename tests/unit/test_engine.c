/* The engine, rule by rule, on the built-in model. That its answers equal those of requests alone, whatever happens around them, is
 * checked by bench_same_bytes, which the tests run with fewer requests. */
#include "golden.h"

#include <pthread.h>
#include <time.h>

#include "base/random.h"
#include "engine/engine.h"


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
    if (forced_kernels)
        skip(); /* many steps; bench_same_bytes compares requests with every kernel */
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

/* Steps until all has ended; a run that does not end is a failure, not a test that hangs. */
static void run_at_most(engine *e, int steps)
{
    while (engine_step(e)) {
        take(e);
        if (steps-- == 0)
            fail_msg("the engine goes round in circles");
    }
    take(e);
}

static spec_options drafts(int depth)
{
    return (spec_options){.mode = depth ? SPEC_FIXED : SPEC_OFF, .depth = depth};
}

/* The page that a prompt's beginning could be copied from is the last one that the prompt needs itself. */
static void test_copied_page_is_needed(void **state)
{
    (void)state;
    engine_options options = usual();
    options.kv_tokens = 8 * KV_PAGE_TOKENS;
    engine *e = start(options);
    int32_t prompt[CONTEXT];
    outcome first, second;
    fill_prompt(prompt, 40, CONTEXT);
    engine_request r = request(prompt, 30, 1, &first);
    submit(e, &r);
    run_at_most(e, 50);
    prompt[20]++;
    r = request(prompt, 500, 5, &second);
    submit(e, &r);
    run_at_most(e, 50);
    assert_int_equal(second.finish, ENGINE_LENGTH);
    assert_int_equal(second.count, 5);
    assert_int_equal(second.stats.cached_tokens, 0);
    assert_int_equal(second.stats.preemptions, 0);
    check_idle(e);
    engine_destroy(e);
}

/* Room for drafts is taken when there is some: it keeps nobody out. */
static void test_room_for_drafts_is_optional(void **state)
{
    (void)state;
    engine_options options = usual();
    options.kv_tokens = 8 * KV_PAGE_TOKENS;
    options.prefill_rows = 128; /* steps are counted, so they must not depend on the time they take */
    options.spec = drafts(8);
    engine *e = start(options);
    int32_t prompt[CONTEXT];
    outcome low, high;
    fill_prompt(prompt, 41, CONTEXT);
    engine_request r = request(prompt, 130, 40, &low); /* holds 3 pages */
    submit(e, &r);
    engine_step(e);
    r = request(prompt + 400, 310, 5, &high); /* 5 pages, 6 with its drafts */
    r.priority = 1;
    submit(e, &r);
    for (int i = 0; i < 12 && !high.ended; i++) {
        engine_step(e);
        take(e);
    }
    assert_true(high.ended);
    assert_int_equal(high.stats.preemptions, 0);
    run_at_most(e, 100);
    assert_int_equal(low.finish, ENGINE_LENGTH);
    check_idle(e);
    engine_destroy(e);
}

/* A cache of exactly one context has room for a request that fills it, with and without drafts. */
static void test_full_context(void **state)
{
    (void)state;
    outcome o[2][2];
    for (int k = 0; k < 2; k++) {
        engine_options options = usual();
        options.kv_tokens = CONTEXT;
        options.spec = drafts(k ? 8 : 0);
        engine *e = start(options);
        int32_t prompt[CONTEXT];
        static const int lengths[] = {CONTEXT - 20, CONTEXT - 1};
        fill_prompt(prompt, 42, CONTEXT);
        for (int i = 0; i < 2; i++) {
            engine_request r = request(prompt, lengths[i], CONTEXT - lengths[i], &o[k][i]);
            submit(e, &r);
            run_at_most(e, 100);
            assert_int_equal(o[k][i].finish, ENGINE_LENGTH);
            assert_int_equal(o[k][i].count, CONTEXT - lengths[i]);
        }
        check_idle(e);
        engine_destroy(e);
    }
    for (int i = 0; i < 2; i++)
        assert_memory_equal(o[0][i].tokens, o[1][i].tokens, (size_t)o[0][i].count * sizeof(int32_t));
}

/* A higher priority takes the pages of a lower one, which goes on later as if nothing had been. */
static void test_priority_takes_pages(void **state)
{
    (void)state;
    engine_options options = usual();
    options.kv_tokens = 8 * KV_PAGE_TOKENS;
    engine *e = start(options);
    int32_t prompt[CONTEXT];
    outcome low, high, alone;
    fill_prompt(prompt, 43, CONTEXT);
    engine_request r = request(prompt, 300, 60, &low);
    submit(e, &r);
    for (int i = 0; i < 10; i++)
        engine_step(e);
    r = request(prompt + 500, 300, 5, &high);
    r.priority = 1;
    submit(e, &r);
    for (int i = 0; i < 10; i++)
        engine_step(e);
    take(e);
    assert_int_equal(high.finish, ENGINE_LENGTH);
    assert_false(low.ended);
    run_at_most(e, 200);
    assert_int_equal(low.finish, ENGINE_LENGTH);
    assert_int_equal(low.stats.preemptions, 1);
    r = request(prompt, 300, 60, &alone);
    r.space = "elsewhere";
    submit(e, &r);
    run_at_most(e, 200);
    assert_memory_equal(low.tokens, alone.tokens, 60 * sizeof(int32_t));
    check_idle(e);
    engine_destroy(e);
}

static int running_now(engine *e)
{
    engine_counters c;
    engine_count(e, &c);
    return c.running;
}

/* It is not worth waiting for a prefix that somebody of a lower priority computes: others may go before that one for as long as they
 * like. */
static void test_nobody_waits_for_a_lower_priority(void **state)
{
    (void)state;
    enum { OTHERS = 4, LAST = OTHERS };
    engine_options options = usual();
    options.prefill_rows = 16;
    engine *e = start(options);
    int32_t prompt[CONTEXT];
    outcome o[OTHERS + 1];
    static const int lengths[] = {20, 700, 900, 900}, priorities[] = {5, 0, 5, 5};
    for (int i = 0; i < OTHERS; i++) { /* one decodes, one of low priority, two that keep it from going on */
        fill_prompt(prompt, 50 + i, CONTEXT);
        engine_request r = request(prompt, lengths[i], 50, &o[i]);
        r.priority = priorities[i];
        submit(e, &r);
        engine_step(e);
    }
    assert_int_equal(running_now(e), OTHERS);
    fill_prompt(prompt, 51, 200);
    engine_request r = request(prompt, 200, 5, &o[LAST]);
    r.priority = 5;
    submit(e, &r);
    engine_step(e);
    assert_int_equal(running_now(e), OTHERS + 1);
    run_at_most(e, 1000);
    for (int i = 0; i <= LAST; i++)
        assert_int_equal(o[i].finish, ENGINE_LENGTH);
    check_idle(e);
    engine_destroy(e);
}

/* The counters that follow a flush know of it. */
static void test_flush_is_counted(void **state)
{
    (void)state;
    for (int with_thread = 0; with_thread < 2; with_thread++) {
        engine *e = start(usual());
        int32_t prompt[PROMPT];
        outcome o;
        error err = {0};
        engine_counters c;
        fill_prompt(prompt, 44, PROMPT);
        engine_request r = request(prompt, PROMPT, 2, &o);
        submit(e, &r);
        run_at_most(e, 50);
        engine_count(e, &c);
        assert_true(c.tree_pages > 0 && c.idle_pages == c.tree_pages);
        assert_true(!with_thread || engine_start(e, &err));
        engine_flush_cache(e);
        engine_count(e, &c);
        assert_int_equal(c.tree_pages, 0);
        assert_int_equal(c.free_pages, c.pages);
        engine_destroy(e);
    }
}

static void check_refused_options(engine_options o, const char *words)
{
    error err = {0};
    engine *e = engine_create(lab.forward, &o, &err);
    assert_null(e);
    assert_non_null(strstr(err.text, words));
}

static void test_impossible_options(void **state)
{
    (void)state;
    engine_options o = usual();
    o.max_context = 1 << 30;
    check_refused_options(o, "the model allows");
    o = usual();
    o.spec = drafts(SPEC_DEPTH_MOST + 1);
    check_refused_options(o, "drafts");
    o = usual();
    o.kv_tokens = 1000000000000;
    check_refused_options(o, "1000000000000 tokens");
    engine *e = start(usual());
    int32_t prompt[4] = {1, 2, 3, 4};
    outcome out;
    error err = {0};
    uint64_t id;
    engine_request r = request(prompt, 4, 4, &out);
    r.stop_count = -1;
    assert_int_equal(engine_submit(e, &r, &id, &err), ENGINE_INVALID);
    assert_non_null(strstr(err.text, "stop"));
    engine_destroy(e);
}

/* ---- ends, with drafts ---- */

typedef struct answer {
    outcome out;
    sampler_result results[CONTEXT];
    int result_count;
} answer;

static void take_answers(engine *e)
{
    engine_event ev;
    while (engine_poll(e, &ev, 1) == 1) {
        answer *a = ev.user;
        assert_false(a->out.ended);
        for (int i = 0; i < ev.count; i++) {
            a->out.tokens[a->out.count++] = ev.tokens[i];
            if (ev.results)
                a->results[a->result_count++] = ev.results[i];
        }
        a->out.finish = ev.finish;
        a->out.ended = ev.finish != ENGINE_RUNNING;
        a->out.stats = ev.stats;
        engine_event_free(&ev);
    }
}

enum { EDGES = 30 };

/* Prompt lengths around page boundaries, short answers, stop ids that come early, min_tokens, penalties, log-probabilities. */
static engine_request edge(int i, int32_t *prompt, int32_t *stops, answer *a)
{
    static const int lengths[] = {1, 2, 63, 64, 65, 127, 128, 129, 192, 193};
    static const int limits[] = {1, 2, 3, 9, 12, 66};
    int count = lengths[i * 7 % 10];
    fill_prompt(prompt, 60 + i % 3, count);
    engine_request r = request(prompt, count, limits[i % 6], &a->out);
    a->result_count = 0;
    r.user = a;
    for (int k = 0; k < 40; k++)
        stops[k] = (int32_t)(random_word(9, (uint64_t)i, (uint64_t)k) % 4000);
    r.stop_ids = stops;
    r.stop_count = i % 4 == 0 ? 40 : 0;
    r.ignore_eos = i % 3 != 0;
    r.min_tokens = i % 5 == 0 ? r.max_tokens / 2 : i % 5 == 1 ? r.max_tokens : 0;
    r.params.seed = (uint64_t)i;
    r.params.temperature = i % 2 ? 1.3 : 0;
    r.params.repetition_penalty = i % 7 == 0 ? 1.3 : 1;
    r.params.frequency_penalty = i % 7 == 1 ? 0.7 : 0;
    r.params.logprobs = i % 3 - 1;
    return r;
}

static void check_edge(const answer *got, const answer *expected, const engine_request *r)
{
    assert_int_equal(got->out.count, expected->out.count);
    assert_int_equal(got->out.finish, expected->out.finish);
    assert_memory_equal(got->out.tokens, expected->out.tokens, (size_t)got->out.count * sizeof(int32_t));
    assert_int_equal(got->result_count, r->params.logprobs >= 0 ? got->out.count : 0);
    for (int i = 0; i < got->result_count; i++) {
        assert_int_equal(got->results[i].token, got->out.tokens[i]);
        assert_true(got->results[i].logprob == expected->results[i].logprob);
        assert_int_equal(got->results[i].top_count, expected->results[i].top_count);
    }
    assert_true(got->out.count >= r->min_tokens && got->out.count <= r->max_tokens);
    assert_int_equal(got->out.stats.output_tokens, got->out.count);
    for (int i = 0; i < got->out.count; i++)
        for (int k = 0; k < r->stop_count; k++)
            assert_true(got->out.tokens[i] != r->stop_ids[k] || (got->out.finish == ENGINE_STOP && i == got->out.count - 1));
}

/* Each request alone without cache and drafts, then all together with both: no difference. */
static void test_edges(void **state)
{
    (void)state;
    if (forced_kernels)
        skip(); /* many steps; bench_same_bytes compares requests with every kernel */
    answer *alone = mem_alloc(EDGES, sizeof *alone), *together = mem_alloc(EDGES, sizeof *together);
    int32_t prompt[PROMPT], stops[40];
    engine_options options = usual();
    options.no_prefix_cache = true;
    engine *e = start(options);
    for (int i = 0; i < EDGES; i++) {
        engine_request r = edge(i, prompt, stops, &alone[i]);
        submit(e, &r);
        while (engine_step(e))
            take_answers(e);
        take_answers(e);
    }
    engine_destroy(e);
    for (int variant = 0; variant < 3; variant++) {
        options = usual();
        options.spec = drafts(variant == 0 ? 8 : 3);
        options.kv_tokens = variant == 2 ? 12 * KV_PAGE_TOKENS : 8192;
        options.disturb_seed = variant == 1 ? 5 : 0;
        e = start(options);
        for (int i = 0; i < EDGES; i++) {
            engine_request r = edge(i, prompt, stops, &together[i]);
            submit(e, &r);
        }
        while (engine_step(e))
            take_answers(e);
        take_answers(e);
        for (int i = 0; i < EDGES; i++) {
            answer unused;
            engine_request r = edge(i, prompt, stops, &unused);
            check_edge(&together[i], &alone[i], &r);
        }
        check_idle(e);
        engine_destroy(e);
    }
    free(alone);
    free(together);
}

/* A cache that has all of a prompt but its last token computes one row. */
static void test_whole_prompt_cached(void **state)
{
    (void)state;
    static const int lengths[] = {2, 64, 65, 129};
    for (int i = 0; i < 4; i++) {
        engine_options options = usual();
        options.spec = drafts(i % 2 ? 2 : 0);
        engine *e = start(options);
        int32_t prompt[PROMPT];
        outcome o[2];
        fill_prompt(prompt, 45, PROMPT);
        for (int k = 0; k < 2; k++) {
            engine_request r = request(prompt, lengths[i], 1, &o[k]);
            submit(e, &r);
            run_at_most(e, 20);
        }
        assert_int_equal(o[1].stats.cached_tokens, lengths[i] - 1);
        assert_int_equal(o[1].stats.computed_tokens, 1);
        assert_int_equal(o[1].tokens[0], o[0].tokens[0]);
        check_idle(e);
        engine_destroy(e);
    }
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
    lab = rig_open_as(any_model(), KV_BF16, 2, CONTEXT, false, NULL);
    return 0;
}

static int close_lab(void **state)
{
    (void)state;
    rig_close(&lab);
    return 0;
}

int main(int count, char **arguments)
{
    if (count > 1)
        cmocka_set_test_filter(arguments[1]); /* those that match alone, for sanitizers that take long */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),       cmocka_unit_test(test_prefix_in_tokens), cmocka_unit_test(test_prefix_of_neighbours),
        cmocka_unit_test(test_ends),              cmocka_unit_test(test_deadline),         cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_preemption),       cmocka_unit_test(test_simulated_acceptance),
        cmocka_unit_test(test_drafts_need_a_head), cmocka_unit_test(test_copied_page_is_needed),
        cmocka_unit_test(test_room_for_drafts_is_optional), cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_priority_takes_pages), cmocka_unit_test(test_nobody_waits_for_a_lower_priority),
        cmocka_unit_test(test_flush_is_counted),  cmocka_unit_test(test_impossible_options), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_whole_prompt_cached), cmocka_unit_test(test_thread),
    };
    return golden_main(tests, MODE_FAST, open_lab, close_lab);
}
