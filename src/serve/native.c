/* The native API: POST /generate as sglang has it, /tokenize and /detokenize. Requests are read by native_request.h.
 *
 * A request to /generate has one or more prompts, each is one generation with n choices; every (prompt, choice) is an item of the answer.
 * A stream sends for each step an item as it stands: the whole text so far, not only what is new. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "serve/handlers.h"
#include "serve/native_request.h"

/* One choice of one prompt. */
typedef struct item {
    text text;
    json_t *ids;                    /* output_ids */
    json_t *logprobs, *top_logprobs; /* NULL: not asked for */
    json_t *reason;                 /* finish_reason; NULL: not finished */
} item;

typedef struct job job;

/* One prompt: the context of its generation's sink. */
typedef struct source {
    job *job;
    generation *g;  /* NULL: not running */
    char *rid;      /* owned */
    int first;      /* index of its first item */
    generation_usage usage; /* kept when the generation has ended */
} source;

struct job {
    const server *server;
    http_exchange *x;
    native_request request; /* owned; its prompts stay for return_prompt_token_ids */
    source *sources;        /* [request.count] */
    item *items;            /* [request.count * choices], by prompt */
    int running;            /* sources */
    int failed;             /* HTTP status of the first failure; 0: none */
    text failure;
    int busy;               /* sink functions on the stack: a write may find the connection closed */
    bool over;              /* answered, or the client has gone; free once not busy */
    bool gone;              /* the client has gone: x must not be used */
};

static void job_free(job *j)
{
    int items = j->request.count * j->request.spec.choices;
    for (int i = 0; i < items; i++) {
        text_free(&j->items[i].text);
        json_decref(j->items[i].ids);
        json_decref(j->items[i].logprobs);
        json_decref(j->items[i].top_logprobs);
        json_decref(j->items[i].reason);
    }
    for (int i = 0; i < j->request.count; i++)
        free(j->sources[i].rid);
    free(j->items);
    free(j->sources);
    text_free(&j->failure);
    native_request_free(&j->request);
    free(j);
}

static void job_enter(job *j)
{
    j->busy++;
}

static void job_leave(job *j)
{
    if (--j->busy == 0 && j->over)
        job_free(j);
}

static void cancel_running(job *j)
{
    for (int i = 0; i < j->request.count; i++) {
        generation *g = j->sources[i].g;
        j->sources[i].g = NULL;
        if (g)
            generation_cancel(g);
    }
}

static void job_closed(void *context)
{
    job *j = context;
    job_enter(j);
    j->over = j->gone = true;
    cancel_running(j);
    job_leave(j);
}

/* ---- the answer ---- */

static json_t *token_ids(const token_list *l)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < l->count; i++)
        json_array_append_new(ids, json_integer(l->ids[i]));
    return ids;
}

/* How the drafts went; only for a prompt with one choice, because they are counted per generation. */
static void add_speculation(json_t *meta, const generation_usage *u, bool simulated)
{
    if (u->verify_steps == 0)
        return;
    json_object_set_new(meta, "spec_verify_ct", json_integer(u->verify_steps));
    json_object_set_new(meta, "spec_accept_length", json_real(1 + (double)u->accepted / u->verify_steps));
    json_object_set_new(meta, "spec_accept_rate", json_real(u->drafted ? (double)u->accepted / u->drafted : 0));
    json_object_set_new(meta, "spec_accept_token_num", json_integer(u->accepted));
    json_object_set_new(meta, "spec_draft_token_num", json_integer(u->drafted));
    if (simulated)
        json_object_set_new(meta, "spec_simulated", json_true());
}

static json_t *meta_json(const job *j, const source *s, const item *it)
{
    generation_usage u = s->g ? generation_usage_now(s->g) : s->usage;
    json_t *meta = json_pack("{s:s, s:O?, s:i, s:I, s:i, s:f}", "id", s->rid, "finish_reason", it->reason, "prompt_tokens", u.prompt_tokens,
                             "completion_tokens", (json_int_t)json_array_size(it->ids), "cached_tokens", u.cached_tokens, "e2e_latency",
                             (double)(clock_now_us() - http_started_us(j->x)) * 1e-6);
    if (j->request.spec.choices == 1)
        add_speculation(meta, &u, engine_describe(j->server->engine).spec.simulate > 0);
    if (it->logprobs)
        json_object_set(meta, "output_token_logprobs", it->logprobs);
    if (it->top_logprobs)
        json_object_set(meta, "output_top_logprobs", it->top_logprobs);
    if (it->logprobs) {
        json_object_set_new(meta, "input_token_logprobs", json_array());
        if (it->top_logprobs)
            json_object_set_new(meta, "input_top_logprobs", json_array());
    }
    return meta;
}

static json_t *item_json(const job *j, int index)
{
    const source *s = &j->sources[index / j->request.spec.choices];
    const item *it = &j->items[index];
    json_t *value = json_pack("{s:s%, s:O, s:o}", "text", it->text.data ? it->text.data : "", it->text.length, "output_ids", it->ids,
                              "meta_info", meta_json(j, s, it));
    if (j->request.prompt_ids)
        json_object_set_new(value, "prompt_token_ids", token_ids(&j->request.prompts[s - j->sources]));
    return value;
}

static bool answer_is_list(const job *j)
{
    return j->request.list || j->request.spec.choices > 1;
}

static void send_chunk(job *j, int index)
{
    json_t *value = item_json(j, index);
    if (answer_is_list(j))
        json_object_set_new(value, "index", json_integer(index));
    server_send_event(j->x, NULL, value);
}

/* For the log. */
static void note(job *j)
{
    int prompt = 0, cached = 0, output = 0;
    for (int i = 0; i < j->request.count; i++) {
        prompt += j->sources[i].usage.prompt_tokens;
        cached += j->sources[i].usage.cached_tokens;
        output += j->sources[i].usage.completion_tokens;
    }
    http_note(j->x, "prompt=%d cached=%d output=%d", prompt, cached, output);
}

/* All generations have ended. */
static void job_reply(job *j)
{
    int items = j->request.count * j->request.spec.choices;
    j->over = true;
    note(j);
    if (j->request.stream) {
        static const char done[] = "data: [DONE]\n\n";
        http_stream_write(j->x, done, sizeof done - 1);
        if (!j->gone)
            http_stream_end(j->x);
        return;
    }
    if (j->failed && items == 1) {
        server_reply_error(j->x, j->failed, NULL, "%s", j->failure.data);
        return;
    }
    json_t *all = answer_is_list(j) ? json_array() : item_json(j, 0);
    for (int i = 0; i < items && answer_is_list(j); i++)
        json_array_append_new(all, item_json(j, i));
    server_reply_json(j->x, 200, all);
}

/* ---- sink ---- */

/* [log-probability, token, its text or null] */
static json_t *logprob_json(const job *j, double logprob, int32_t id)
{
    text t = {0};
    logprob = isfinite(logprob) ? logprob : -9999.0; /* JSON has no infinity */
    if (j->request.logprob_text)
        tokenizer_decode(j->server->tokenizer, &id, 1, false, &t);
    json_t *made = json_pack("[f, i, s#]", logprob, (int)id, t.data ? t.data : "", (int)t.length);
    if (!j->request.logprob_text)
        json_array_set_new(made, 2, json_null());
    text_free(&t);
    return made;
}

static void add_logprobs(job *j, item *it, const sampler_result *r)
{
    json_array_append_new(it->logprobs, logprob_json(j, r->logprob, r->token));
    if (!it->top_logprobs)
        return;
    json_t *top = json_array();
    for (int i = 0; i < r->top_count; i++)
        json_array_append_new(top, logprob_json(j, r->top[i].logprob, r->top[i].id));
    json_array_append_new(it->top_logprobs, top);
}

static void sink_tokens(void *context, int choice, const generation_token *tokens, int count)
{
    source *s = context;
    item *it = &s->job->items[s->first + choice];
    for (int i = 0; i < count; i++) {
        json_array_append_new(it->ids, json_integer(tokens[i].id));
        if (it->logprobs && tokens[i].result)
            add_logprobs(s->job, it, tokens[i].result);
    }
}

static void sink_piece(void *context, int choice, const chat_event *piece)
{
    source *s = context;
    if (piece->kind == CHAT_EVENT_CONTENT)
        text_add(&s->job->items[s->first + choice].text, piece->text.data, piece->text.length);
}

static void sink_step(void *context, int choice)
{
    source *s = context;
    job *j = s->job;
    job_enter(j);
    if (j->request.stream && !j->over)
        send_chunk(j, s->first + choice);
    job_leave(j);
}

static json_t *reason_json(const generation_finish *f, size_t tokens)
{
    switch (f->end) {
    case GENERATION_LENGTH: return json_pack("{s:s, s:I}", "type", "length", "length", (json_int_t)tokens);
    case GENERATION_STOP:
    case GENERATION_CALLS: {
        json_t *reason = json_pack("{s:s}", "type", "stop");
        json_t *matched = f->stop_text ? json_string(f->stop_text) : f->stop_id >= 0 ? json_integer(f->stop_id) : json_null();
        json_object_set_new(reason, "matched", matched);
        return reason;
    }
    default: return json_pack("{s:s, s:s}", "type", "abort", "message", f->failure ? f->failure : "the request was aborted");
    }
}

static void sink_finish(void *context, int choice, const generation_finish *f)
{
    source *s = context;
    job *j = s->job;
    item *it = &j->items[s->first + choice];
    job_enter(j);
    it->reason = reason_json(f, json_array_size(it->ids));
    if (!j->failed && (f->end == GENERATION_FAILED || f->end == GENERATION_TIMEOUT)) {
        j->failed = f->end == GENERATION_TIMEOUT ? 504 : 500;
        text_add_text(&j->failure, f->failure ? f->failure : "the answer was not finished");
    }
    if (j->request.stream && !j->over)
        send_chunk(j, s->first + choice);
    job_leave(j);
}

static void sink_done(void *context)
{
    source *s = context;
    job *j = s->job;
    job_enter(j);
    s->usage = generation_usage_now(s->g);
    s->g = NULL;
    if (--j->running == 0 && !j->over)
        job_reply(j);
    job_leave(j);
}

/* ---- /generate ---- */

/* Without max_new_tokens an answer has the usual length, or what there is room for. */
static int default_tokens(const server *s, size_t prompt)
{
    int64_t room = (int64_t)engine_describe(s->engine).max_context - (int64_t)prompt, most = s->options.limits.max_tokens;
    int64_t wanted = NATIVE_MAX_NEW_TOKENS;
    if (most > 0 && wanted > most)
        wanted = most;
    return (int)(room > 0 && wanted > room ? room : wanted);
}

static bool source_start(server *s, job *j, int index, const tenant *who, int *status, error *err)
{
    source *from = &j->sources[index];
    native_request *r = &j->request;
    generation_spec wanted = r->spec; /* borrows everything of r */
    generation_sink sink = {from, sink_tokens, sink_piece, sink_step, sink_finish, sink_done};
    char numbered[192];
    *status = 400;
    snprintf(numbered, sizeof numbered, r->count > 1 ? "%.160s_%d" : "%.160s", http_request_id(j->x), index);
    wanted.prompt = r->prompts[index];
    wanted.rid = r->rids ? r->rids[index] : numbered;
    if (!r->max_given)
        wanted.max_tokens = default_tokens(s, wanted.prompt.count);
    if (!r->max_given && wanted.min_tokens > wanted.max_tokens)
        return error_set(err, ERROR_INPUT, "sampling_params.min_new_tokens: is %d, more than the answer may have, %d; send max_new_tokens",
                         wanted.min_tokens, wanted.max_tokens);
    from->g = generation_start(s, &wanted, who, http_request_id(j->x), &sink, status, err);
    if (!from->g)
        return false;
    from->rid = mem_copy(generation_id(from->g), strlen(generation_id(from->g)));
    j->running++;
    return true;
}

static void refuse(server *s, http_exchange *x, const tenant *who, int status, const error *err)
{
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", generation_retry_after(s, who, status));
    if (status == 429 || status == 503)
        http_add_header(x, "retry-after", seconds);
    server_reply_error(x, status, NULL, "%s", err->text);
}

static void items_make(job *j)
{
    const native_request *r = &j->request;
    int n = r->spec.choices;
    j->sources = mem_alloc((size_t)r->count, sizeof *j->sources);
    j->items = mem_alloc((size_t)(r->count * n), sizeof *j->items);
    for (int i = 0; i < r->count; i++)
        j->sources[i] = (source){.job = j, .first = i * n};
    for (int i = 0; i < r->count * n; i++)
        j->items[i] = (item){.ids = json_array(), .logprobs = r->logprobs ? json_array() : NULL,
                             .top_logprobs = r->top_logprobs > 0 ? json_array() : NULL};
}

/* Takes the request. */
static void job_start(server *s, http_exchange *x, const tenant *who, native_request *r)
{
    job *j = mem_alloc(1, sizeof *j);
    error err = {0};
    int status = 400;
    *j = (job){.server = s, .x = x, .request = *r};
    *r = (native_request){0};
    j->request.text = j->request.input_ids = j->request.rid = NULL; /* they belong to the body, which goes */
    items_make(j);
    for (int i = 0; i < j->request.count; i++)
        if (!source_start(s, j, i, who, &status, &err)) {
            cancel_running(j);
            job_free(j);
            refuse(s, x, who, status, &err);
            return;
        }
    http_on_closed(x, job_closed, j);
    if (j->request.stream)
        http_stream_begin(x, 200, "text/event-stream");
}

void handle_generate(server *s, http_exchange *x, const tenant *who)
{
    native_request r = {0};
    error err = {0};
    int status = 0;
    if (!generation_admits(s, who, &status, &err)) {
        refuse(s, x, who, status, &err);
        return;
    }
    json_t *body = server_body(s, x);
    if (body && native_request_read(body, s->tokenizer, &r, &err))
        job_start(s, x, who, &r);
    else if (body)
        server_reply_error(x, 400, NULL, "%s", err.text);
    native_request_free(&r);
    json_decref(body);
}

/* ---- /tokenize, /detokenize ---- */

/* Whether "model", if it is there, is ours; else the error was sent. */
static bool model_check(const server *s, http_exchange *x, const json_t *body)
{
    const json_t *given = json_object_get(body, "model");
    const char *name = json_is_string(given) ? json_string_value(given) : "";
    if (!given || json_is_null(given) || strcmp(name, s->options.model_name) == 0 || strcmp(name, "default") == 0)
        return true;
    server_reply_error(x, 404, "model", "model: there is no model \"%.80s\" here, this server has \"%s\"", name, s->options.model_name);
    return false;
}

static json_t *token_strings(const tokenizer *t, const token_list *l)
{
    json_t *all = json_array();
    for (size_t i = 0; i < l->count; i++) {
        text one = {0};
        tokenizer_decode(t, &l->ids[i], 1, false, &one);
        json_array_append_new(all, json_stringn(one.data ? one.data : "", one.length));
        text_free(&one);
    }
    return all;
}

static json_t *tokenize_json(const server *s, const native_tokenize *r)
{
    json_t *tokens = json_array(), *counts = json_array(), *strings = json_array();
    for (int i = 0; i < r->count; i++) {
        json_array_append_new(tokens, token_ids(&r->lists[i]));
        json_array_append_new(counts, json_integer((json_int_t)r->lists[i].count));
        if (r->strings)
            json_array_append_new(strings, token_strings(s->tokenizer, &r->lists[i]));
    }
    json_t *made = json_pack("{s:O, s:O, s:i}", "tokens", r->list ? tokens : json_array_get(tokens, 0), "count",
                             r->list ? counts : json_array_get(counts, 0), "max_model_len", engine_describe(s->engine).max_context);
    if (r->strings)
        json_object_set(made, "token_strs", r->list ? strings : json_array_get(strings, 0));
    json_decref(tokens);
    json_decref(counts);
    json_decref(strings);
    return made;
}

void handle_tokenize(server *s, http_exchange *x, const tenant *who)
{
    json_t *body = server_body(s, x);
    native_tokenize r = {0};
    error err = {0};
    (void)who;
    if (body && model_check(s, x, body)) {
        if (native_tokenize_read(body, s->tokenizer, s->format, &r, &err))
            server_reply_json(x, 200, tokenize_json(s, &r));
        else
            server_reply_error(x, 400, NULL, "%s", err.text);
    }
    native_tokenize_free(&r);
    json_decref(body);
}

void handle_detokenize(server *s, http_exchange *x, const tenant *who)
{
    json_t *body = server_body(s, x);
    native_detokenize r = {0};
    error err = {0};
    (void)who;
    if (body && model_check(s, x, body)) {
        if (native_detokenize_read(body, s->tokenizer, &r, &err)) {
            json_t *texts = json_array();
            for (int i = 0; i < r.count; i++)
                json_array_append_new(texts, json_stringn(r.texts[i].data ? r.texts[i].data : "", r.texts[i].length));
            json_t *shown = r.list ? texts : json_array_get(texts, 0);
            server_reply_json(x, 200, json_pack("{s:O, s:O}", "text", shown, "prompt", shown));
            json_decref(texts);
        } else {
            server_reply_error(x, 400, NULL, "%s", err.text);
        }
    }
    native_detokenize_free(&r);
    json_decref(body);
}
