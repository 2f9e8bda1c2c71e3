/* Generations on a stand-in for the engine: the functions of engine.h, tenant.h and metrics.h that generation.c calls are replaced below,
 * and the tests make the engine's events by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "serve/generation.h"

#define engine_submit fake_submit
#define engine_cancel fake_cancel
#define engine_count fake_count
#define engine_describe fake_describe
#define engine_event_free fake_event_free
#define tenant_enter fake_enter
#define tenant_leave fake_leave
#define metrics_tokens fake_tokens
#define metrics_finish fake_finish

static engine_refusal fake_submit(engine *e, const engine_request *r, uint64_t *id, error *err);
static void fake_cancel(engine *e, uint64_t id);
static void fake_count(engine *e, engine_counters *out);
static engine_facts fake_describe(const engine *e);
static void fake_event_free(engine_event *ev);
static bool fake_enter(tenant *who, int count, uint64_t now_us, int *retry_after_s, error *err);
static void fake_leave(tenant *who, int count);
static void fake_tokens(metrics *m, const engine_event *ev, uint64_t previous_us);
static void fake_finish(metrics *m, const engine_event *ev, const char *reason, int max_tokens);

#include "serve/generation.c" /* NOLINT: the stand-ins above take the place of the engine */

#include "../tiny_tokenizer.h"

enum { REQUESTS_MOST = 64 };

/* What the engine was asked. */
typedef struct fake_engine {
    void *user[REQUESTS_MOST];
    uint64_t seed[REQUESTS_MOST], deadline_us;
    bool cancelled[REQUESTS_MOST];
    char space[64];
    int count, refuse_from, max_tokens, waiting;
    engine_refusal refusal;
    text finished; /* reasons given to metrics_finish */
    int tokens;    /* given to metrics_tokens */
} fake_engine;

static fake_engine fake;

static engine_refusal fake_submit(engine *e, const engine_request *r, uint64_t *id, error *err)
{
    (void)e;
    if (fake.count >= fake.refuse_from) {
        error_set(err, ERROR_FIT, "refused");
        return fake.refusal;
    }
    snprintf(fake.space, sizeof fake.space, "%s", r->space);
    fake.max_tokens = r->max_tokens;
    fake.deadline_us = r->deadline_us;
    fake.user[fake.count] = r->user;
    fake.seed[fake.count] = r->params.seed;
    *id = (uint64_t)fake.count++;
    return ENGINE_ACCEPTED;
}

static void fake_cancel(engine *e, uint64_t id)
{
    (void)e;
    fake.cancelled[id] = true;
}

static void fake_count(engine *e, engine_counters *out)
{
    (void)e;
    *out = (engine_counters){.waiting = fake.waiting};
}

static engine_facts fake_describe(const engine *e)
{
    (void)e;
    return (engine_facts){.max_context = 100, .max_waiting = 8};
}

static void fake_event_free(engine_event *ev)
{
    free(ev->results);
    free(ev->failure);
}

static bool fake_enter(tenant *who, int count, uint64_t now_us, int *retry_after_s, error *err)
{
    (void)now_us;
    *retry_after_s = 1;
    if (who->in_flight_most && who->in_flight + count > who->in_flight_most)
        return error_set(err, ERROR_FIT, "too many");
    who->in_flight += count;
    return true;
}

static void fake_leave(tenant *who, int count)
{
    who->in_flight -= count;
    assert_true(who->in_flight >= 0);
}

static void fake_tokens(metrics *m, const engine_event *ev, uint64_t previous_us)
{
    (void)m, (void)previous_us;
    fake.tokens += ev->count;
}

static void fake_finish(metrics *m, const engine_event *ev, const char *reason, int max_tokens)
{
    (void)m, (void)ev, (void)max_tokens;
    text_add_format(&fake.finished, "%s ", reason);
}

/* ---- a server and a listener ---- */

static tokenizer *tiny;
static chat_format *chat;
static server host;
static tenant who;
static generation *running; /* what the listener may cancel */
static text heard;
static char cancel_at; /* the letter of the sink function that cancels; 0: none */

static void hear(char letter)
{
    if (cancel_at == letter)
        generation_cancel(running);
}

static void on_tokens(void *context, int index, const generation_token *tokens, int count)
{
    (void)context, (void)tokens;
    text_add_format(&heard, "%dt%d ", index, count);
    hear('t');
}

static void on_piece(void *context, int index, const chat_event *piece)
{
    (void)context;
    text_add_format(&heard, "%dp(%.*s) ", index, (int)piece->text.length, piece->text.data);
    hear('p');
}

static void on_step(void *context, int index)
{
    (void)context;
    text_add_format(&heard, "%ds ", index);
    hear('s');
}

static void on_finish(void *context, int index, const generation_finish *f)
{
    (void)context;
    static const char *const words[] = {"stop", "length", "calls", "aborted", "timeout", "failed"};
    text_add_format(&heard, "%df(%s%s%s) ", index, words[f->end], f->failure ? ": " : "", f->failure ? f->failure : "");
    hear('f');
}

static void on_done(void *context)
{
    (void)context;
    generation_usage u = generation_usage_now(running);
    text_add_format(&heard, "done %d+%d", u.prompt_tokens, u.completion_tokens);
    hear('d');
}

static const generation_sink sink = {.tokens = on_tokens, .piece = on_piece, .step = on_step, .finish = on_finish, .done = on_done};

static int open_all(void **state)
{
    (void)state;
    error err = {0};
    tiny = tiny_tokenizer(CHAT_TEXT);
    chat = chat_format_load(NULL, tiny, "glm-5.2", &err);
    return chat ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    chat_format_free(chat);
    tokenizer_free(tiny);
    text_free(&heard);
    text_free(&fake.finished);
    return 0;
}

static void begin(generation_spec *wanted, int choices)
{
    host = (server){.tokenizer = tiny, .format = chat};
    host.options.limits = (server_limits){.max_choices = 4, .max_tokens = 50};
    who = (tenant){.name = "them"};
    text_clear(&heard);
    text_free(&fake.finished);
    fake = (fake_engine){.refuse_from = REQUESTS_MOST};
    text_add_text(&fake.finished, "");
    cancel_at = 0;
    *wanted = (generation_spec){.choices = choices, .params = sampler_params_default(TINY_COUNT)};
    wanted->params.seed = 7;
    for (int i = 0; i < 10; i++)
        token_list_add(&wanted->prompt, 'p');
}

static generation *start(generation_spec *wanted, int expected_status, const char *expected_error)
{
    int status = 0;
    error err = {0};
    running = generation_start(&host, wanted, &who, "req-1", &sink, &status, &err);
    assert_int_equal(status, expected_status);
    if (expected_error && !strstr(err.text, expected_error))
        fail_msg("\"%s\" lacks \"%s\"", err.text, expected_error);
    assert_true((running != NULL) == (expected_status == 200));
    generation_spec_free(wanted);
    return running;
}

/* An event of the request-th submitted request, with the bytes of a word as tokens. */
static void event(int request, const char *word, engine_finish finish)
{
    engine_event ev = {.id = (uint64_t)request, .user = fake.user[request], .count = (int)strlen(word), .finish = finish};
    for (int i = 0; i < ev.count; i++)
        ev.tokens[i] = (unsigned char)word[i];
    if (finish == ENGINE_FAILED)
        ev.failure = mem_copy("broken", 6);
    generation_take(&host, &ev);
}

static void expect_quiet(void)
{
    assert_null(host.generations);
    assert_int_equal(who.in_flight, 0);
}

static void test_two_choices(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 2);
    wanted.cache_salt = mem_copy("salt", 4);
    start(&wanted, 200, NULL);
    assert_int_equal(who.in_flight, 2);
    assert_string_equal(fake.space, "them\nsalt");
    assert_true(fake.seed[0] == 7 && fake.seed[1] == 8);
    assert_int_equal(fake.max_tokens, 50);
    assert_string_equal(generation_id(running), "req-1");
    event(1, "ab", ENGINE_RUNNING);
    event(0, "c", ENGINE_LENGTH);
    assert_int_equal(who.in_flight, 1);
    event(1, "", ENGINE_STOP);
    assert_string_equal(heard.data, "1t2 1p(ab) 1s 0t1 0p(c) 0s 0f(length) 1s 1f(stop) done 10+3");
    assert_string_equal(fake.finished.data, "length stop ");
    expect_quiet();
}

static void test_stop_string_ends_early(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 1);
    wanted.stops[wanted.stop_count++] = mem_copy("cd", 2);
    start(&wanted, 200, NULL);
    event(0, "bc", ENGINE_RUNNING);
    event(0, "de", ENGINE_RUNNING);
    assert_string_equal(heard.data, "0t2 0p(b) 0s 0t1 0s 0f(stop) done 10+3");
    assert_true(fake.cancelled[0]);
    assert_int_equal(who.in_flight, 0);
    assert_non_null(host.generations);
    event(0, "fg", ENGINE_RUNNING);
    event(0, "", ENGINE_CANCELLED);
    assert_string_equal(heard.data, "0t2 0p(b) 0s 0t1 0s 0f(stop) done 10+3");
    assert_string_equal(fake.finished.data, "stop ");
    assert_int_equal(fake.tokens, 4);
    expect_quiet();
}

static void test_ends(void **state)
{
    (void)state;
    static const struct { engine_finish finish; const char *heard, *reason; } cases[] = {
        {ENGINE_LENGTH, "0s 0f(length) done 10+0", "length "},
        {ENGINE_CANCELLED, "0s 0f(aborted: the request was aborted) done 10+0", "abort "},
        {ENGINE_DEADLINE, "0s 0f(timeout: the request did not finish within its time limit of 3 s) done 10+0", "timeout "},
        {ENGINE_FAILED, "0s 0f(failed: broken) done 10+0", "error "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        generation_spec wanted;
        begin(&wanted, 1);
        wanted.timeout_s = 60;
        host.options.limits.request_s = 3;
        start(&wanted, 200, NULL);
        assert_true(fake.deadline_us > 0 && fake.deadline_us <= clock_now_us() + 3000000);
        event(0, "", cases[i].finish);
        assert_string_equal(heard.data, cases[i].heard);
        assert_string_equal(fake.finished.data, cases[i].reason);
        expect_quiet();
    }
}

static void test_cancel(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 2);
    generation *g = start(&wanted, 200, NULL);
    event(0, "a", ENGINE_LENGTH);
    generation_cancel(g);
    assert_true(fake.cancelled[1] && !fake.cancelled[0]);
    assert_int_equal(who.in_flight, 0);
    event(1, "b", ENGINE_RUNNING);
    event(1, "", ENGINE_CANCELLED);
    assert_string_equal(heard.data, "0t1 0p(a) 0s 0f(length) ");
    assert_string_equal(fake.finished.data, "length abort ");
    expect_quiet();
}

/* A sink function may cancel; nothing is called afterwards. */
static void test_cancel_from_inside(void **state)
{
    (void)state;
    static const char *const expected[] = {"0t1 ", "0t1 0p(a) ", "0t1 0p(a) 0s ", "0t1 0p(a) 0s 0f(length) ",
                                           "0t1 0p(a) 0s 0f(length) done 10+1"};
    for (int i = 0; i < 5; i++) {
        generation_spec wanted;
        begin(&wanted, 1);
        start(&wanted, 200, NULL);
        cancel_at = "tpsfd"[i];
        event(0, "a", ENGINE_LENGTH);
        assert_string_equal(heard.data, expected[i]);
        expect_quiet();
    }
}

static void test_abort(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 1);
    wanted.rid = mem_copy("job-1", 5);
    start(&wanted, 200, NULL);
    assert_int_equal(generation_abort(&host, "job", false), 0);
    assert_int_equal(generation_abort(&host, NULL, false), 0);
    tenant other = {.name = "other"};
    assert_int_equal(generation_abort_of(&host, &other, "job-1", false), 0);
    assert_false(fake.cancelled[0]);
    other.admin = true;
    assert_int_equal(generation_abort_of(&host, &other, "job-1", false), 1);
    assert_int_equal(generation_abort_of(&host, &who, "job-1", false), 1);
    assert_int_equal(generation_abort(&host, "job", true), 1);
    assert_int_equal(generation_abort(&host, NULL, true), 1);
    assert_int_equal(generation_abort(&host, "job-1", false), 1);
    assert_true(fake.cancelled[0]);
    event(0, "", ENGINE_CANCELLED);
    assert_int_equal(generation_abort(&host, NULL, true), 0);
    expect_quiet();
}

static void test_refusals(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 5);
    start(&wanted, 400, "n is 5, expected 1 to 4");
    begin(&wanted, 1);
    wanted.max_tokens = 51;
    start(&wanted, 400, "max_tokens is 51, this server allows 50");
    begin(&wanted, 1);
    host.options.limits.max_tokens = 0;
    wanted.max_tokens = 91;
    start(&wanted, 400, "together 101; the context has room for 100: lower max_tokens to 90");
    begin(&wanted, 1);
    for (int i = 0; i < 90; i++)
        token_list_add(&wanted.prompt, 'p');
    start(&wanted, 400, "the prompt has 100 tokens, the context has room for 100");
    begin(&wanted, 1);
    host.draining = true;
    start(&wanted, 503, "shutting down");
    begin(&wanted, 1);
    fake.waiting = 8;
    start(&wanted, 503, "queue is full");
    begin(&wanted, 2);
    who.in_flight_most = 1;
    start(&wanted, 400, "n is 2, this key may have 1 answers at a time");
    begin(&wanted, 3);
    who.per_minute_most = 2;
    start(&wanted, 400, "n is 3, this key may start 2 answers per minute");
    begin(&wanted, 2);
    who.in_flight_most = 2;
    who.in_flight = 1;
    start(&wanted, 429, "too many");
    begin(&wanted, 1);
    fake.refuse_from = 0;
    fake.refusal = ENGINE_INVALID;
    start(&wanted, 400, "refused");
    expect_quiet();
}

/* The second choice is refused: the first one is cancelled, and its events are swallowed. */
static void test_refused_half_way(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 3);
    fake.refuse_from = 1;
    fake.refusal = ENGINE_QUEUE_FULL;
    start(&wanted, 503, "refused");
    assert_true(fake.cancelled[0]);
    assert_int_equal(who.in_flight, 0);
    event(0, "a", ENGINE_RUNNING);
    event(0, "", ENGINE_CANCELLED);
    assert_int_equal(heard.length, 0);
    expect_quiet();
}

static void test_free_all(void **state)
{
    (void)state;
    generation_spec wanted;
    begin(&wanted, 2);
    start(&wanted, 200, NULL);
    generation_cancel(running);
    wanted = (generation_spec){.choices = 1, .params = sampler_params_default(TINY_COUNT)};
    token_list_add(&wanted.prompt, 'p');
    start(&wanted, 200, NULL);
    assert_int_equal(who.in_flight, 1);
    generation_free_all(&host);
    expect_quiet();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_choices), cmocka_unit_test(test_stop_string_ends_early), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_cancel),      cmocka_unit_test(test_cancel_from_inside),     cmocka_unit_test(test_abort),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_refused_half_way),       cmocka_unit_test(test_free_all),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
