/* Answers of the OpenAI APIs, from pieces to JSON and streams: openai_job.c and openai_reply.c with stand-ins for HTTP and for
 * generations, whose sinks the tests call by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "serve/openai.h"

#define generation_start fake_start
#define generation_cancel fake_cancel
#define generation_usage_now fake_usage
#define generation_retry_after fake_retry_after
#define http_add_header fake_header
#define http_note fake_note
#define http_on_closed fake_on_closed
#define http_request_id fake_request_id
#define http_stream_begin fake_begin
#define http_stream_write fake_write
#define http_stream_end fake_end
#define server_reply_json fake_reply
#define server_send_event fake_event

static generation *fake_start(server *s, const generation_spec *wanted, const tenant *who, const char *request_id,
                              const generation_sink *sink, int *status, error *err);
static void fake_cancel(generation *g);
static generation_usage fake_usage(const generation *g);
static int fake_retry_after(const server *s, const tenant *who, int status);
static void fake_header(http_exchange *x, const char *name, const char *value);
static void fake_note(http_exchange *x, const char *words, ...) __attribute__((format(printf, 2, 3)));
static void fake_on_closed(http_exchange *x, void (*closed)(void *context), void *context);
static const char *fake_request_id(const http_exchange *x);
static void fake_begin(http_exchange *x, int status, const char *type);
static void fake_write(http_exchange *x, const void *bytes, size_t count);
static void fake_end(http_exchange *x);
static void fake_reply(http_exchange *x, int status, json_t *value);
static void fake_event(http_exchange *x, const char *event, json_t *value);

#include "serve/openai_job.c" /* NOLINT: the stand-ins above take the place of HTTP */

#include "base/json.h"
#include "../tiny_tokenizer.h"

enum { GENERATIONS_MOST = 8 };

struct generation {
    generation_sink sink;
    generation_usage usage;
    bool cancelled;
};

static generation made[GENERATIONS_MOST];
static int made_count, refuse_from, refuse_status;
static error_code refuse_code;
static tokenizer *tiny;
static server host = {.options.model_name = "tiny"};
static tenant who;
static text sent, noted;           /* the stream's events, or the reply; notes */
static int status_sent;            /* 0: none yet */
static bool ended;
static void (*when_closed)(void *context);
static void *closed_context;
static int close_at;               /* the client goes away at this write; 0: never */
static int writes;

static generation *fake_start(server *s, const generation_spec *wanted, const tenant *t, const char *request_id,
                              const generation_sink *sink, int *status, error *err)
{
    (void)s, (void)t, (void)request_id;
    if (made_count >= refuse_from) {
        error_set(err, refuse_code, "no room");
        *status = refuse_status;
        return NULL;
    }
    made[made_count] = (generation){.sink = *sink, .usage = {.prompt_tokens = (int)wanted->prompt.count, .cached_tokens = 1}};
    return &made[made_count++];
}

static void fake_cancel(generation *g)
{
    assert_false(g->cancelled);
    g->cancelled = true;
}

static generation_usage fake_usage(const generation *g)
{
    return g->usage;
}

static int fake_retry_after(const server *s, const tenant *t, int status)
{
    (void)s, (void)t, (void)status;
    return 7;
}

static void fake_header(http_exchange *x, const char *name, const char *value)
{
    (void)x;
    text_add_format(&noted, "%s: %s ", name, value);
}

static void fake_note(http_exchange *x, const char *words, ...)
{
    va_list args;
    (void)x;
    assert_false(ended);
    va_start(args, words);
    text_add_arguments(&noted, words, args);
    va_end(args);
    text_add_char(&noted, ' ');
}

static void fake_on_closed(http_exchange *x, void (*closed)(void *context), void *context)
{
    (void)x;
    when_closed = closed;
    closed_context = context;
}

static const char *fake_request_id(const http_exchange *x)
{
    (void)x;
    return "request";
}

static void fake_begin(http_exchange *x, int status, const char *type)
{
    (void)x;
    assert_int_equal(status_sent, 0);
    assert_string_equal(type, "text/event-stream");
    status_sent = status;
}

static void fake_write(http_exchange *x, const void *bytes, size_t count)
{
    (void)x;
    assert_false(ended);
    text_add(&sent, bytes, count);
    if (++writes == close_at) {
        ended = true;
        when_closed(closed_context);
    }
}

static void fake_end(http_exchange *x)
{
    (void)x;
    assert_false(ended);
    ended = true;
}

static void dump(json_t *value)
{
    char *words = json_dumps(value, JSON_COMPACT);
    text_add_format(&sent, "%s\n", words);
    free(words);
}

static void fake_reply(http_exchange *x, int status, json_t *value)
{
    (void)x;
    assert_int_equal(status_sent, 0);
    status_sent = status;
    ended = true;
    dump(value);
    json_decref(value);
}

/* Only what changes from chunk to chunk is kept. */
static void fake_event(http_exchange *x, const char *event, json_t *value)
{
    (void)event;
    assert_true(status_sent == 200);
    json_object_del(value, "id");
    json_object_del(value, "created");
    json_object_del(value, "object");
    json_object_del(value, "model");
    json_object_del(value, "system_fingerprint");
    char *words = json_dumps(value, JSON_COMPACT);
    json_decref(value);
    text line = {0};
    text_add_format(&line, "%s\n", words);
    free(words);
    fake_write(x, line.data, line.length);
    text_free(&line);
}

/* ---- helpers ---- */

static int open_all(void **state)
{
    (void)state;
    host.tokenizer = tiny = tiny_tokenizer(CHAT_TEXT);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    tokenizer_free(tiny);
    text_free(&sent);
    text_free(&noted);
    return 0;
}

/* Starts an answer to `count` prompts of three tokens; the fields are read from the table. */
static openai_job *start(int api, int count, const char *fields)
{
    text_clear(&sent);
    text_clear(&noted);
    made_count = status_sent = writes = close_at = 0;
    refuse_from = GENERATIONS_MOST;
    ended = false;
    when_closed = NULL;
    request_error e = {0};
    error err = {0};
    sampler_params defaults = sampler_params_default(TINY_COUNT);
    json_t *body = json_parse(fields, strlen(fields), "test", &err);
    assert_non_null(body);
    openai_job *j = openai_job_new(&host, NULL, &who, body);
    if (!fields_read(body, api, &defaults, TINY_COUNT, &j->request, &e))
        fail_msg("%s", e.err.text);
    token_list prompts[GENERATIONS_MOST] = {0};
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 3; k++)
            token_list_add(&prompts[i], 'p' + k);
    if (strstr(fields, "refused"))
        refuse_from = 1;
    openai_job_start(j, prompts, count);
    for (int i = 0; i < count; i++)
        token_list_free(&prompts[i]);
    return j;
}

static void piece(int g, int index, chat_event_kind kind, int call, const char *words)
{
    chat_event e = {.kind = kind, .call = call, .text = view_of(words), .complete = true};
    made[g].sink.piece(made[g].sink.context, index, &e);
}

static void tokens(int g, int index, int32_t id, double logprob)
{
    sampler_result r = {.token = id, .logprob = logprob, .top_count = 1, .top = {{.id = 'z', .logprob = -0.5}}};
    generation_token t = {id, logprob < 0 ? &r : NULL};
    made[g].usage.completion_tokens++;
    made[g].sink.tokens(made[g].sink.context, index, &t, 1);
}

static void stepped(int g, int index)
{
    made[g].sink.step(made[g].sink.context, index);
}

static void finish(int g, int index, generation_finish f)
{
    f.stop_id = f.stop_id ? f.stop_id : -1;
    made[g].sink.finish(made[g].sink.context, index, &f);
}

static void done(int g)
{
    made[g].sink.done(made[g].sink.context);
}

static void expect_sent(const char *words)
{
    if (!strstr(sent.data ? sent.data : "", words))
        fail_msg("sent:\n%s\nexpected in it:\n%s", sent.data, words);
}

/* ---- tests ---- */

static void test_chat_answer(void **state)
{
    (void)state;
    start(API_CHAT, 1, "{\"rid\": \"mine\", \"user\": \"me\"}");
    tokens(0, 0, 'a', 0);
    piece(0, 0, CHAT_EVENT_REASONING, 0, "why");
    piece(0, 0, CHAT_EVENT_CONTENT, 0, "be");
    piece(0, 0, CHAT_EVENT_CONTENT, 0, "cause");
    stepped(0, 0);
    assert_int_equal(status_sent, 0);
    finish(0, 0, (generation_finish){.end = GENERATION_STOP, .stop_id = 5});
    done(0);
    assert_int_equal(status_sent, 200);
    expect_sent("{\"id\":\"mine\",\"object\":\"chat.completion\",\"created\":");
    expect_sent("\"model\":\"tiny\",\"system_fingerprint\":\"drawbridge-" DRAWBRIDGE_VERSION "-tiny\",\"choices\":[{\"index\":0,"
                "\"message\":{"
                "\"role\":\"assistant\",\"content\":\"because\",\"reasoning_content\":\"why\",\"reasoning\":\"why\"},\"logprobs\":null,"
                "\"finish_reason\":\"stop\",\"matched_stop\":5}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4,"
                "\"prompt_tokens_details\":{\"cached_tokens\":1},\"completion_tokens_details\":{\"reasoning_tokens\":0},"
                "\"reasoning_tokens\":0}}");
    assert_string_equal(noted.data, "rid=mine prompt=3 cached=1 output=1 reasoning=0 user=me ");
}

static void test_calls(void **state)
{
    (void)state;
    start(API_CHAT, 1, "{}");
    for (int i = 0; i < 2; i++) {
        piece(0, 0, CHAT_EVENT_CALL_BEGIN, i, i ? "g" : "f");
        piece(0, 0, CHAT_EVENT_CALL_ARGUMENTS, i, "{\"a\": ");
        piece(0, 0, CHAT_EVENT_CALL_ARGUMENTS, i, i ? "2}" : "1}");
        piece(0, 0, CHAT_EVENT_CALL_END, i, "");
    }
    finish(0, 0, (generation_finish){.end = GENERATION_CALLS});
    done(0);
    expect_sent("\"content\":null");
    expect_sent("\"tool_calls\":[{\"id\":\"call_");
    expect_sent("\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}}");
    expect_sent("\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"a\\\": 2}\"}}]");
    expect_sent("\"finish_reason\":\"tool_calls\",\"matched_stop\":null");
}

static void test_chat_stream(void **state)
{
    (void)state;
    start(API_CHAT, 1, "{\"stream\": true, \"stream_options\": {\"include_usage\": true}}");
    assert_int_equal(status_sent, 200);
    piece(0, 0, CHAT_EVENT_REASONING, 0, "hm");
    stepped(0, 0);
    stepped(0, 0);
    piece(0, 0, CHAT_EVENT_CONTENT, 0, "a");
    piece(0, 0, CHAT_EVENT_CALL_BEGIN, 0, "f");
    piece(0, 0, CHAT_EVENT_CALL_ARGUMENTS, 0, "{");
    stepped(0, 0);
    piece(0, 0, CHAT_EVENT_CALL_ARGUMENTS, 0, "}");
    stepped(0, 0);
    finish(0, 0, (generation_finish){.end = GENERATION_STOP, .stop_text = "END"});
    done(0);
    assert_true(ended);
    expect_sent("{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"reasoning_content\":\"hm\",\"reasoning\":\"hm\","
                "\"content\":\"\"},"
                "\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}]}\n"
                "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\",\"tool_calls\":[{\"index\":0,\"id\":\"call_");
    expect_sent("\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]},");
    expect_sent("{\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]},"
                "\"logprobs\":null,"
                "\"finish_reason\":null,\"matched_stop\":null}]}\n"
                "{\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"matched_stop\":\"END\"}]}\n"
                "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,");
    assert_true(text_ends_with(sent.data, "data: [DONE]\n\n"));
}

static void test_reasoning_switches(void **state)
{
    (void)state;
    start(API_CHAT, 1, "{\"stream\": true, \"stream_reasoning\": false, \"stream_options\": {\"continuous_usage_stats\": true}}");
    piece(0, 0, CHAT_EVENT_REASONING, 0, "one ");
    stepped(0, 0);
    piece(0, 0, CHAT_EVENT_REASONING, 0, "two");
    stepped(0, 0);
    piece(0, 0, CHAT_EVENT_CONTENT, 0, "x");
    stepped(0, 0);
    expect_sent("{\"role\":\"assistant\",\"content\":\"\"}");
    expect_sent("\"delta\":{\"reasoning_content\":\"one two\",\"reasoning\":\"one two\",\"content\":\"x\"}");
    expect_sent("\"matched_stop\":null}],\"usage\":{\"prompt_tokens\":3,");
    finish(0, 0, (generation_finish){.end = GENERATION_LENGTH});
    done(0);
    start(API_CHAT, 1, "{\"include_reasoning\": false}");
    piece(0, 0, CHAT_EVENT_REASONING, 0, "secret");
    finish(0, 0, (generation_finish){.end = GENERATION_LENGTH});
    done(0);
    expect_sent("\"content\":\"\",\"reasoning_content\":null,\"reasoning\":null");
    expect_sent("\"finish_reason\":\"length\"");
}

static void test_logprobs(void **state)
{
    (void)state;
    start(API_CHAT, 1, "{\"logprobs\": true, \"top_logprobs\": 1, \"return_token_ids\": true}");
    tokens(0, 0, 'a', -1.5);
    tokens(0, 0, 0xE5, -2.5);
    finish(0, 0, (generation_finish){.end = GENERATION_LENGTH});
    done(0);
    expect_sent("\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1.5,\"bytes\":[97],\"top_logprobs\":[{\"token\":\"z\","
                "\"logprob\":-0.5,"
                "\"bytes\":[122]}]},{\"token\":\"\uFFFD\",\"logprob\":-2.5,\"bytes\":[229]");
    expect_sent("\"token_ids\":[97,229]");
    expect_sent("\"prompt_token_ids\":[112,113,114]");
    start(API_COMPLETIONS, 1, "{\"logprobs\": 1, \"return_spec_tokens_details\": true, \"return_cached_tokens_details\": true}");
    made[0].usage.drafted = 4;
    made[0].usage.accepted = 3;
    made[0].usage.verify_steps = 2;
    tokens(0, 0, 'a', -1.5);
    tokens(0, 0, TINY_LONG, -1.5);
    tokens(0, 0, 'b', -1.5);
    finish(0, 0, (generation_finish){.end = GENERATION_LENGTH});
    done(0);
    expect_sent("\"logprobs\":{\"tokens\":[\"a\",\" a \",\"b\"],\"token_logprobs\":[-1.5,-1.5,-1.5],"
                "\"top_logprobs\":[{\"z\":-0.5},{\"z\":-0.5},"
                "{\"z\":-0.5}],\"text_offset\":[0,1,4]}");
    expect_sent("\"sglext\":{\"cached_tokens_details\":{\"device\":1,\"host\":0,\"storage\":0,\"storage_backend\":null},"
                "\"spec_tokens_details\":{"
                "\"spec_accept_rate\":0.75,\"spec_accept_length\":2.5,\"spec_num_correct_drafts\":3,\"spec_num_proposed_drafts\":4,"
                "\"spec_verify_ct\":2}}");
}

static void test_several_prompts(void **state)
{
    (void)state;
    start(API_COMPLETIONS, 2, "{\"n\": 2, \"echo\": true, \"return_prompt_token_ids\": true}");
    piece(1, 0, CHAT_EVENT_CONTENT, 0, "C");
    piece(0, 1, CHAT_EVENT_CONTENT, 0, "B");
    piece(1, 1, CHAT_EVENT_CONTENT, 0, "D");
    piece(0, 0, CHAT_EVENT_CONTENT, 0, "A");
    for (int g = 0; g < 2; g++) {
        finish(g, 0, (generation_finish){.end = GENERATION_STOP});
        finish(g, 1, (generation_finish){.end = GENERATION_LENGTH});
    }
    done(1);
    assert_int_equal(status_sent, 0);
    made[1].usage = (generation_usage){.prompt_tokens = 1000};
    done(0);
    expect_sent("[{\"index\":0,\"text\":\"pqrA\",\"logprobs\":null,\"prompt_token_ids\":[112,113,114],\"finish_reason\":\"stop\",");
    expect_sent("{\"index\":1,\"text\":\"pqrB\"");
    expect_sent("{\"index\":2,\"text\":\"pqrC\"");
    expect_sent("{\"index\":3,\"text\":\"pqrD\"");
    expect_sent("\"usage\":{\"prompt_tokens\":6,");
}

static void test_refused(void **state)
{
    (void)state;
    refuse_status = 400;
    refuse_code = ERROR_FIT;
    start(API_COMPLETIONS, 3, "{\"user\": \"refused\", \"return_token_ids\": true}");
    assert_int_equal(status_sent, 400);
    expect_sent("{\"error\":{\"message\":\"no room\",\"type\":\"invalid_request_error\",\"param\":\"prompt\",\"code\":"
                "\"context_length_exceeded\"}}");
    assert_true(made_count == 1 && made[0].cancelled);
    refuse_status = 503;
    start(API_COMPLETIONS, 2, "{\"user\": \"refused\", \"stream\": true}");
    assert_int_equal(status_sent, 503);
    expect_sent("\"param\":null,\"code\":\"overloaded\"");
    assert_string_equal(noted.data, "Retry-After: 7 ");
    start(API_CHAT, 1, "{\"rid\": \"two words\", \"user\": \"me\\nyou\"}");
    finish(0, 0, (generation_finish){.end = GENERATION_STOP});
    done(0);
    expect_sent("\"id\":\"two words\"");
    assert_string_equal(noted.data, "prompt=3 cached=1 output=0 reasoning=0 ");
}

static void test_failures(void **state)
{
    (void)state;
    static const struct { generation_end end; int status; const char *words; } cases[] = {
        {GENERATION_TIMEOUT, 504, "{\"error\":{\"message\":\"so\",\"type\":\"timeout_error\",\"param\":null,\"code\":null}}"},
        {GENERATION_ABORTED, 503, "\"code\":\"aborted\""},
        {GENERATION_FAILED, 500, "\"type\":\"server_error\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(API_COMPLETIONS, 2, "{}");
        finish(0, 0, (generation_finish){.end = cases[i].end, .failure = "so"});
        assert_int_equal(status_sent, cases[i].status);
        expect_sent(cases[i].words);
        assert_true(made[0].cancelled && made[1].cancelled);
        start(API_COMPLETIONS, 2, "{\"stream\": true}");
        piece(0, 0, CHAT_EVENT_CONTENT, 0, "A");
        stepped(0, 0);
        finish(1, 0, (generation_finish){.end = cases[i].end, .failure = "so"});
        expect_sent(cases[i].words);
        assert_true(text_ends_with(sent.data, "data: [DONE]\n\n") && ended && made[0].cancelled);
    }
}

/* The client goes away between two events, or is found to be away by any of the writes. */
static void test_closed(void **state)
{
    (void)state;
    start(API_CHAT, 1, "{}");
    when_closed(closed_context);
    assert_true(made[0].cancelled);
    for (int at = 1; at <= 4; at++) {
        start(API_COMPLETIONS, 2, "{\"stream\": true, \"stream_options\": {\"include_usage\": true}}");
        close_at = at;
        piece(0, 0, CHAT_EVENT_CONTENT, 0, "A");
        stepped(0, 0);
        if (at > 1)
            finish(0, 0, (generation_finish){.end = GENERATION_LENGTH});
        if (at > 2) {
            done(0);
            finish(1, 0, (generation_finish){.end = GENERATION_LENGTH});
        }
        if (at > 3)
            done(1);
        assert_true(ended);
        assert_int_equal(writes, at);
    }
    start(API_COMPLETIONS, 1, "{\"stream\": true}");
    close_at = 1;
    finish(0, 0, (generation_finish){.end = GENERATION_FAILED, .failure = "so"});
    assert_int_equal(writes, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_answer), cmocka_unit_test(test_calls),           cmocka_unit_test(test_chat_stream),
        cmocka_unit_test(test_logprobs),    cmocka_unit_test(test_several_prompts), cmocka_unit_test(test_reasoning_switches),
        cmocka_unit_test(test_refused),     cmocka_unit_test(test_failures),        cmocka_unit_test(test_closed),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
