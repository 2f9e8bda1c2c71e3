/* Anthropic's Messages API: POST /v1/messages and /v1/messages/count_tokens. The conversion is in anthropic_request.h (in) and
 * anthropic_answer.h (out); here they meet the server. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "serve/anthropic_answer.h"
#include "serve/anthropic_request.h"
#include "serve/generation.h"
#include "serve/handlers.h"
#include "serve/seed.h"

/* One answer on its way. */
typedef struct reply {
    http_exchange *x;
    generation *g;
    anthropic_answer *answer;
    char *model;       /* owned; as the request named it */
    bool streams;
    bool begun;        /* anthropic_answer_begin was called */
    int busy;          /* sink functions on the stack: a write may find the connection closed */
    bool gone;         /* the client has gone; free once not busy */
    int failed;        /* HTTP status of a failure that was not sent yet */
    text failure;
    json_t *message;   /* the whole answer, not sent yet */
} reply;

/* ---- sink ---- */

static void reply_free(reply *r)
{
    anthropic_answer_free(r->answer);
    json_decref(r->message);
    text_free(&r->failure);
    free(r->model);
    free(r);
}

static void reply_closed(void *context)
{
    reply *r = context;
    r->gone = true;
    generation_cancel(r->g);
    if (r->busy == 0)
        reply_free(r);
}

static void reply_send(void *context, const char *event, json_t *value)
{
    reply *r = context;
    if (r->gone)
        json_decref(value);
    else
        server_send_event(r->x, event, value);
}

/* Every sink function goes through enter and leave; leave frees when the client went away in between. */
static void reply_enter(reply *r)
{
    r->busy++;
    if (r->begun || r->gone)
        return;
    r->begun = true;
    generation_usage usage = generation_usage_now(r->g);
    anthropic_answer_begin(r->answer, &usage);
}

static void reply_leave(reply *r)
{
    if (--r->busy == 0 && r->gone)
        reply_free(r);
}

static void sink_piece(void *context, int choice, const chat_event *piece)
{
    reply *r = context;
    (void)choice;
    reply_enter(r);
    if (!r->gone)
        anthropic_answer_piece(r->answer, piece);
    reply_leave(r);
}

static void sink_step(void *context, int choice)
{
    reply *r = context;
    (void)choice;
    reply_enter(r);
    if (!r->gone)
        anthropic_answer_step(r->answer);
    reply_leave(r);
}

static void sink_finish(void *context, int choice, const generation_finish *f)
{
    reply *r = context;
    (void)choice;
    reply_enter(r);
    generation_usage usage = {0};
    int status = anthropic_finish_status(f->end);
    const char *failure = f->failure ? f->failure : "the answer was not finished";
    if (!r->gone && status == 0) {
        usage = generation_usage_now(r->g);
        http_note(r->x, "prompt=%d cached=%d output=%d reasoning=%d", usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
                  usage.reasoning_tokens);
        r->message = anthropic_answer_end(r->answer, f, &usage);
    } else if (!r->gone && r->streams) {
        anthropic_answer_fail(r->answer, status, failure);
    } else if (!r->gone) {
        r->failed = status;
        text_add_text(&r->failure, failure);
    }
    reply_leave(r);
}

static void sink_done(void *context)
{
    reply *r = context;
    if (r->streams)
        http_stream_end(r->x);
    else if (r->message)
        server_reply_json(r->x, 200, json_incref(r->message));
    else
        server_reply_error(r->x, r->failed ? r->failed : 500, NULL, "%s", r->failure.data ? r->failure.data : "no answer came about");
    reply_free(r);
}

/* ---- from the request to the generation ---- */

static void spec_stops(const anthropic_request *r, generation_spec *job)
{
    for (size_t i = 0; i < json_array_size(r->stops); i++) {
        const json_t *stop = json_array_get(r->stops, i);
        job->stops[job->stop_count++] = mem_copy(json_string_value(stop), json_string_length(stop));
    }
}

static bool stops_check(const anthropic_request *r, error *err)
{
    size_t count = json_array_size(r->stops);
    if (count > GENERATION_STOPS_MOST)
        return error_set(err, ERROR_INPUT, "stop_sequences: at most %d, found %zu", GENERATION_STOPS_MOST, count);
    for (size_t i = 0; i < count; i++)
        if (json_string_length(json_array_get(r->stops, i)) > GENERATION_STOP_BYTES_MOST)
            return error_set(err, ERROR_INPUT, "stop_sequences[%zu]: at most %d bytes", i, GENERATION_STOP_BYTES_MOST);
    return true;
}

/* Fills the job; the prompt's lists move into it. *clipped: the context has less room than max_tokens. */
static bool spec_make(const server *s, const anthropic_request *r, anthropic_prompt *p, generation_spec *job, bool *clipped, error *err)
{
    int room = engine_describe(s->engine).max_context - (int)p->tokens.count;
    if (room < 1)
        return error_set(err, ERROR_INPUT, "prompt is too long: %zu tokens > %d maximum", p->tokens.count,
                         engine_describe(s->engine).max_context - 1);
    if (!stops_check(r, err))
        return false;
    job->chat = true;
    job->in_thinking = p->in_thinking;
    job->in_content = p->in_content;
    job->tools = json_incref(r->tools);
    job->one_call = r->one_call;
    job->choices = 1;
    job->params = s->defaults;
    job->params.seed = serve_new_seed();
    job->params.logprobs = -1;
    job->params.temperature = isnan(r->temperature) ? job->params.temperature : r->temperature;
    job->params.top_p = isnan(r->top_p) ? job->params.top_p : r->top_p;
    job->params.top_k = r->top_k < 0 ? job->params.top_k : r->top_k;
    *clipped = r->max_tokens > room;
    job->max_tokens = *clipped ? room : r->max_tokens;
    spec_stops(r, job);
    job->prompt = p->tokens;
    job->forced = p->forced;
    p->tokens = p->forced = (token_list){0};
    return true;
}

/* A refusal of the generation: full queue, limits of a tenant, draining. */
static void refuse(server *s, http_exchange *x, const tenant *who, int status, const error *err)
{
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%d", generation_retry_after(s, who, status));
    if (status == 429 || status == 503)
        http_add_header(x, "retry-after", seconds);
    server_reply_error(x, status, NULL, "%s", err->text);
}

static void answer_start(server *s, http_exchange *x, const tenant *who, const anthropic_request *r, const generation_spec *job,
                         const anthropic_answer_options *options)
{
    reply *made = mem_alloc(1, sizeof *made);
    generation_sink sink = {.context = made, .piece = sink_piece, .step = sink_step, .finish = sink_finish, .done = sink_done};
    anthropic_answer_options o = *options;
    error err = {0};
    int status = 500;
    made->x = x;
    made->streams = r->stream;
    o.model = made->model = mem_copy(r->model, strlen(r->model));
    o.send = r->stream ? reply_send : NULL;
    o.context = made;
    made->answer = anthropic_answer_create(&o);
    made->g = generation_start(s, job, who, http_request_id(x), &sink, &status, &err);
    if (!made->g) {
        reply_free(made);
        refuse(s, x, who, status, &err);
        return;
    }
    if (r->budget > 0)
        http_add_header(x, "drawbridge-notice", "thinking.budget_tokens is a target here; the limit is max_tokens");
    http_on_closed(x, reply_closed, made);
    if (r->stream)
        http_stream_begin(x, 200, "text/event-stream");
}

/* Reads and renders; on failure the error was sent. */
static bool request_prepare(server *s, http_exchange *x, const json_t *body, bool counting, anthropic_request *r, anthropic_prompt *p)
{
    error err = {0};
    if (!s->format) {
        server_reply_error(x, 400, NULL, "this model has no known chat format, so it has no chat; use /v1/completions or /generate");
        return false;
    }
    if (!anthropic_request_read(body, counting, r, &err)) {
        server_reply_error(x, 400, NULL, "%s", err.text);
        return false;
    }
    if (strcmp(r->model, s->options.model_name) != 0 && strcmp(r->model, "default") != 0) {
        server_reply_error(x, 404, NULL, "model: there is no model \"%.80s\" here, this server has \"%s\"", r->model,
                           s->options.model_name);
        return false;
    }
    if (!anthropic_prompt_make(r, s->format, s->tokenizer, p, &err)) {
        server_reply_error(x, 400, NULL, "%s", err.text);
        return false;
    }
    return true;
}

void handle_anthropic_messages(server *s, http_exchange *x, const tenant *who)
{
    anthropic_request r = {0};
    anthropic_prompt p = {0};
    generation_spec job = {0};
    anthropic_answer_options o = {0};
    error err = {0};
    int status = 0;
    if (!generation_admits(s, who, &status, &err)) {
        refuse(s, x, who, status, &err);
        return;
    }
    json_t *body = server_body(s, x);
    if (body && request_prepare(s, x, body, false, &r, &p)) {
        o = (anthropic_answer_options){.hides_thinking = r.hides_thinking, .seed = serve_new_seed()};
        if (spec_make(s, &r, &p, &job, &o.clipped, &err))
            answer_start(s, x, who, &r, &job, &o);
        else
            server_reply_error(x, 400, NULL, "%s", err.text);
    }
    generation_spec_free(&job);
    anthropic_prompt_free(&p);
    anthropic_request_free(&r);
    json_decref(body);
}

void handle_anthropic_count(server *s, http_exchange *x, const tenant *who)
{
    json_t *body = server_body(s, x);
    anthropic_request r = {0};
    anthropic_prompt p = {0};
    (void)who;
    if (body && request_prepare(s, x, body, true, &r, &p))
        server_reply_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)p.tokens.count));
    anthropic_prompt_free(&p);
    anthropic_request_free(&r);
    json_decref(body);
}
