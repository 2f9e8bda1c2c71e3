/* A server for tests of handlers, without HTTP, engine and threads: the functions that handlers call, and what they were called with.
 * A test program that includes this links none of the real ones. */
#ifndef TESTS_SERVE_FAKES_H
#define TESTS_SERVE_FAKES_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "serve/generation.h"
#include "serve/handlers.h"

enum { FAKE_GENERATIONS = 8 };

struct http_exchange {
    const char *body;
    const char *path;
    const char *query[8][2];  /* name, value */
    text headers;             /* "name: value\n" */
    int status;               /* 0: no reply yet */
    json_t *reply;            /* a JSON reply */
    text body_out;            /* any reply as text; the sentence of an error; for streams "event|json\n" */
    bool streaming, ended;
    int close_at;             /* the client goes away in the n-th write of a stream; 0: never */
    int writes;
    void (*closed)(void *context);
    void *context;
};

struct generation {
    generation_sink sink;
    generation_spec spec;     /* a deep enough copy for tests */
    generation_usage usage;
    char rid[128];
    bool cancelled, done;
};

static generation fake_generations[FAKE_GENERATIONS];
static int fake_generation_count;
static int fake_refuse_status;  /* of generation_start; 0: accept */
static int fake_refuse_from;    /* index of the first one that is refused */
static engine_facts fake_facts = {.max_running = 4, .max_waiting = 8, .max_context = 1000, .step_rows = 64, .kv_tokens = 6400,
                                  .page_bytes = 1024};
static engine_counters fake_counters;
static int fake_flushes, fake_aborts;
static bool fake_flush_waits; /* the engine is in a step */
static const tenant *fake_abort_who;
static char fake_abort_rid[128];
static bool fake_abort_all, fake_has_keys;

static inline void fake_reset(void)
{
    for (int i = 0; i < fake_generation_count; i++)
        generation_spec_free(&fake_generations[i].spec);
    memset(fake_generations, 0, sizeof fake_generations);
    fake_generation_count = fake_refuse_status = fake_refuse_from = fake_flushes = fake_aborts = 0;
    fake_flush_waits = false;
    fake_abort_who = NULL;
    fake_has_keys = fake_abort_all = false;
}

static inline void fake_exchange_free(http_exchange *x)
{
    json_decref(x->reply);
    text_free(&x->headers);
    text_free(&x->body_out);
    *x = (http_exchange){0};
}

/* ---- http.h ---- */

const char *http_request_id(const http_exchange *x)
{
    (void)x;
    return "req-1";
}

const char *http_path(const http_exchange *x)
{
    return x->path;
}

view http_body(const http_exchange *x)
{
    return view_of(x->body ? x->body : "");
}

const char *http_query(const http_exchange *x, const char *name)
{
    for (size_t i = 0; i < 8 && x->query[i][0]; i++)
        if (strcmp(x->query[i][0], name) == 0)
            return x->query[i][1];
    return NULL;
}

void http_add_header(http_exchange *x, const char *name, const char *value)
{
    text_add_format(&x->headers, "%s: %s\n", name, value);
}

void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t bytes)
{
    (void)type;
    x->status = status;
    x->ended = true;
    text_add(&x->body_out, body, bytes);
}

void http_stream_begin(http_exchange *x, int status, const char *type)
{
    (void)type;
    x->status = status;
    x->streaming = true;
}

static inline void fake_write(http_exchange *x)
{
    if (x->closed && ++x->writes == x->close_at)
        x->closed(x->context);
}

void http_stream_write(http_exchange *x, const void *bytes, size_t count)
{
    text_add(&x->body_out, bytes, count);
    fake_write(x);
}

void http_stream_end(http_exchange *x)
{
    x->ended = true;
}

void http_note(http_exchange *x, const char *words, ...)
{
    (void)x;
    (void)words;
}

void http_on_closed(http_exchange *x, void (*closed)(void *context), void *context)
{
    x->closed = closed;
    x->context = context;
}

uint64_t http_started_us(const http_exchange *x)
{
    (void)x;
    return 0;
}

/* ---- server.h ---- */

json_t *server_body(server *s, http_exchange *x)
{
    error err = {0};
    (void)s;
    json_t *value = json_parse(x->body, strlen(x->body), "request body", &err);
    if (!json_is_object(value)) {
        x->status = 400;
        text_add_text(&x->body_out, err.text);
        json_decref(value);
        return NULL;
    }
    return value;
}

void server_reply_json(http_exchange *x, int status, json_t *value)
{
    char *dumped = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    x->status = status;
    x->ended = true;
    x->reply = value;
    text_add_text(&x->body_out, dumped ? dumped : "(not JSON)");
    free(dumped);
}

void server_reply_error(http_exchange *x, int status, const char *param, const char *pattern, ...)
{
    va_list args;
    (void)param;
    x->status = status;
    x->ended = true;
    va_start(args, pattern);
    text_add_arguments(&x->body_out, pattern, args);
    va_end(args);
}

void server_send_event(http_exchange *x, const char *event, json_t *value)
{
    char *dumped = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
    text_add_format(&x->body_out, "%s|%s\n", event ? event : "data", dumped ? dumped : "(not JSON)");
    free(dumped);
    json_decref(value);
    fake_write(x);
}

/* ---- tenant.h ---- */

bool tenants_have_keys(const tenants *t)
{
    (void)t;
    return fake_has_keys;
}

/* ---- generation.h ---- */

void generation_spec_free(generation_spec *s)
{
    token_list_free(&s->prompt);
    token_list_free(&s->forced);
    token_list_free(&s->stop_ids);
    json_decref(s->tools);
    free(s->bias);
    for (int i = 0; i < s->stop_count; i++)
        free(s->stops[i]);
    free(s->cache_salt);
    free(s->rid);
    *s = (generation_spec){0};
}

static inline token_list fake_tokens(const token_list *from)
{
    token_list made = {0};
    for (size_t i = 0; i < from->count; i++)
        token_list_add(&made, from->ids[i]);
    return made;
}

static inline char *fake_string(const char *s)
{
    return s ? mem_copy(s, strlen(s)) : NULL;
}

bool generation_admits(server *s, const tenant *who, int *status, error *err)
{
    (void)who;
    *status = 503;
    return !s->draining || error_set(err, ERROR_RUNTIME, "the server is shutting down");
}

int generation_retry_after(const server *s, const tenant *who, int status)
{
    (void)s;
    (void)who;
    (void)status;
    return 7;
}

generation *generation_start(server *s, const generation_spec *from, const tenant *who, const char *request_id, const generation_sink *sink,
                             int *status, error *err)
{
    (void)s;
    (void)who;
    if (fake_refuse_status && fake_generation_count >= fake_refuse_from) {
        *status = fake_refuse_status;
        error_set(err, ERROR_INPUT, "the queue is full");
        return NULL;
    }
    generation *g = &fake_generations[fake_generation_count++];
    g->sink = *sink;
    g->spec = *from;
    g->spec.prompt = fake_tokens(&from->prompt);
    g->spec.forced = fake_tokens(&from->forced);
    g->spec.stop_ids = fake_tokens(&from->stop_ids);
    json_incref(g->spec.tools);
    g->spec.bias = from->bias ? mem_copy(from->bias, (size_t)from->params.bias_count * sizeof *from->bias) : NULL;
    for (int i = 0; i < from->stop_count; i++)
        g->spec.stops[i] = fake_string(from->stops[i]);
    g->spec.cache_salt = fake_string(from->cache_salt);
    g->spec.rid = fake_string(from->rid);
    g->usage = (generation_usage){.prompt_tokens = (int)from->prompt.count, .cached_tokens = 2};
    snprintf(g->rid, sizeof g->rid, "%s", from->rid ? from->rid : request_id);
    return g;
}

void generation_cancel(generation *g)
{
    g->cancelled = true;
}

generation_usage generation_usage_now(const generation *g)
{
    return g->usage;
}

int generation_prompt_tokens(const generation *g)
{
    return g->usage.prompt_tokens;
}

const char *generation_id(const generation *g)
{
    return g->rid;
}

int generation_abort_of(server *s, const tenant *who, const char *rid, bool all)
{
    (void)s;
    fake_abort_who = who;
    snprintf(fake_abort_rid, sizeof fake_abort_rid, "%s", rid ? rid : "");
    fake_abort_all = all;
    fake_aborts++;
    return 1;
}

/* ---- what the engine would do; each stops when the generation was cancelled ---- */

static inline void fake_piece(generation *g, int choice, chat_event_kind kind, const char *words)
{
    chat_event e = {.kind = kind, .text = view_of(words), .complete = true};
    if (!g->cancelled && g->sink.piece)
        g->sink.piece(g->sink.context, choice, &e);
}

static inline void fake_step(generation *g, int choice)
{
    if (!g->cancelled && g->sink.step)
        g->sink.step(g->sink.context, choice);
}

static inline void fake_finish(generation *g, int choice, generation_finish f)
{
    if (!g->cancelled && g->sink.finish)
        g->sink.finish(g->sink.context, choice, &f);
}

static inline void fake_done(generation *g)
{
    if (!g->cancelled && g->sink.done)
        g->sink.done(g->sink.context);
    g->done = true;
}

/* ---- metrics.h ---- */

json_t *metrics_history(const metrics *m, const engine_counters *c, int64_t since)
{
    (void)m;
    (void)c;
    (void)since;
    return json_pack("{s:{s:f}}", "current", "output_tps", 12.5);
}

/* ---- engine.h ---- */

engine_facts engine_describe(const engine *e)
{
    (void)e;
    return fake_facts;
}

void engine_count(engine *e, engine_counters *out)
{
    (void)e;
    *out = fake_counters;
}

bool engine_flush_is_done(engine *e, uint64_t number)
{
    (void)e;
    return number <= (uint64_t)fake_flushes && !fake_flush_waits;
}

uint64_t engine_flush_begin(engine *e)
{
    (void)e;
    fake_flushes++;
    fake_counters.free_pages += fake_counters.idle_pages;
    fake_counters.idle_pages = 0;
    fake_counters.tree_pages = fake_counters.pages - fake_counters.free_pages;
    return (uint64_t)fake_flushes;
}

#endif
