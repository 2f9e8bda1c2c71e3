/* The life of an answer: started, fed by the sinks of its generations, replied, freed.
 *
 * A write may find that the client has gone, and then calls job_closed while a sink function is on the stack; so whatever writes
 * looks at `over` afterwards, and the job is freed when the outermost function leaves. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "serve/openai.h"

void openai_reply_problem(server *s, http_exchange *x, const tenant *who, const request_error *e)
{
    if (e->status == 429 || e->status == 503) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", generation_retry_after(s, who, e->status));
        http_add_header(x, "Retry-After", seconds);
    }
    const char *code = e->code ? e->code : e->status == 503 ? "overloaded" : e->status == 429 ? "rate_limit_exceeded" : NULL;
    server_reply_json(x, e->status, openai_error_json(e->status, e->param, code, e->err.text));
}

openai_job *openai_job_new(server *s, http_exchange *x, const tenant *who, json_t *body)
{
    openai_job *j = mem_alloc(1, sizeof *j);
    j->server = s;
    j->exchange = x;
    j->who = who;
    j->body = body;
    j->created = (int64_t)time(NULL);
    return j;
}

void openai_job_free(openai_job *j)
{
    for (int i = 0; i < j->part_count; i++)
        openai_part_free(&j->parts[i]);
    for (int i = 0; i < j->source_count; i++)
        json_decref(j->sources[i].prompt_ids);
    api_request_free(&j->request);
    json_decref(j->body);
    free(j->parts);
    free(j->sources);
    free(j);
}

static void job_enter(openai_job *j)
{
    j->depth++;
}

static void job_leave(openai_job *j)
{
    if (--j->depth == 0 && j->over)
        openai_job_free(j);
}

static void cancel_all(openai_job *j)
{
    for (int i = 0; i < j->source_count; i++) {
        generation *g = j->sources[i].generation;
        j->sources[i].generation = NULL;
        if (g)
            generation_cancel(g);
    }
}

/* The client has gone. */
static void job_closed(void *context)
{
    openai_job *j = context;
    job_enter(j);
    j->over = true;
    cancel_all(j);
    job_leave(j);
}

/* ---- usage ---- */

static void usage_add(generation_usage *to, generation_usage u)
{
    to->prompt_tokens += u.prompt_tokens;
    to->cached_tokens += u.cached_tokens;
    to->completion_tokens += u.completion_tokens;
    to->reasoning_tokens += u.reasoning_tokens;
    to->drafted += u.drafted;
    to->accepted += u.accepted;
    to->verify_steps += u.verify_steps;
}

/* Counts as of now. */
static void usage_update(openai_job *j)
{
    j->usage = j->done;
    for (int i = 0; i < j->source_count; i++)
        if (j->sources[i].generation)
            usage_add(&j->usage, generation_usage_now(j->sources[i].generation));
}

/* ---- replying ---- */

/* Sends an event; afterwards the job may be over. NULL: nothing is sent. */
static void job_send(openai_job *j, json_t *event)
{
    if (event)
        server_send_event(j->exchange, NULL, event);
}

static void end_stream(openai_job *j)
{
    static const char done[] = "data: [DONE]\n\n";
    if (!j->over)
        http_stream_write(j->exchange, done, sizeof done - 1);
    if (j->over)
        return;
    j->over = true;
    http_stream_end(j->exchange);
}

/* What clients send is logged only when it cannot disturb a log line. */
static bool loggable(const char *name)
{
    size_t n = name ? strlen(name) : 0;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.@:", name[i]))
            return false;
    return n > 0 && n <= 64;
}

static void note(openai_job *j)
{
    usage_update(j);
    generation_usage u = j->usage;
    if (loggable(j->id))
        http_note(j->exchange, "rid=%s", j->id);
    http_note(j->exchange, "prompt=%d cached=%d output=%d reasoning=%d", u.prompt_tokens, u.cached_tokens, u.completion_tokens,
              u.reasoning_tokens);
    if (j->user[0])
        http_note(j->exchange, "user=%s", j->user);
}

/* Everything has come. */
static void job_finish(openai_job *j)
{
    note(j);
    if (!j->request.stream) {
        j->over = true;
        server_reply_json(j->exchange, 200, openai_answer(j));
        return;
    }
    if (j->request.include_usage || j->request.return_cached_details || j->request.return_spec_details)
        job_send(j, openai_usage_chunk(j));
    end_stream(j);
}

static void job_fail(openai_job *j, const generation_finish *f)
{
    int status = f->end == GENERATION_TIMEOUT ? 504 : f->end == GENERATION_ABORTED ? 503 : 500;
    note(j);
    cancel_all(j);
    json_t *error_json = openai_error_json(status, NULL, f->end == GENERATION_ABORTED ? "aborted" : NULL, f->failure);
    if (!j->request.stream) {
        j->over = true;
        server_reply_json(j->exchange, status, error_json);
        return;
    }
    job_send(j, error_json);
    end_stream(j);
}

/* ---- the sink ---- */

static void sink_tokens(void *context, int index, const generation_token *tokens, int count)
{
    const openai_source *s = context;
    openai_tokens_add(s->job, s->first_part + index, tokens, count);
}

static void sink_piece(void *context, int index, const chat_event *piece)
{
    const openai_source *s = context;
    openai_piece_add(s->job, s->first_part + index, piece);
}

static void sink_step(void *context, int index)
{
    const openai_source *s = context;
    openai_job *j = s->job;
    if (!j->request.stream)
        return;
    job_enter(j);
    if (j->request.continuous_usage)
        usage_update(j);
    job_send(j, openai_chunk(j, s->first_part + index, false));
    job_leave(j);
}

static const char *finish_words(generation_end end)
{
    return end == GENERATION_LENGTH ? "length" : end == GENERATION_CALLS ? "tool_calls" : "stop";
}

static void sink_finish(void *context, int index, const generation_finish *f)
{
    const openai_source *s = context;
    openai_job *j = s->job;
    openai_part *p = &j->parts[s->first_part + index];
    job_enter(j);
    if (f->end == GENERATION_ABORTED || f->end == GENERATION_TIMEOUT || f->end == GENERATION_FAILED) {
        job_fail(j, f);
    } else {
        p->finish = finish_words(f->end);
        p->matched = f->stop_text ? json_string(f->stop_text) : f->stop_id >= 0 ? json_integer(f->stop_id) : NULL;
        usage_update(j);
        if (j->request.stream)
            job_send(j, openai_chunk(j, s->first_part + index, true));
    }
    job_leave(j);
}

static void sink_done(void *context)
{
    openai_source *s = context;
    openai_job *j = s->job;
    usage_add(&j->done, generation_usage_now(s->generation));
    s->generation = NULL;
    job_enter(j);
    if (--j->running == 0)
        job_finish(j);
    job_leave(j);
}

/* ---- starting ---- */

/* The answer's id is also what /abort_request knows it by. */
static void choose_id(openai_job *j)
{
    char random[2 * OPENAI_HEX_BYTES_MOST + 1];
    generation_spec *s = &j->request.spec;
    openai_random_hex(random, 12);
    if (s->rid)
        snprintf(j->id, sizeof j->id, "%s", s->rid);
    else
        snprintf(j->id, sizeof j->id, "%s-%s", j->request.api == API_CHAT ? "chatcmpl" : "cmpl", random);
    if (!s->rid)
        s->rid = mem_copy(j->id, strlen(j->id));
}

static json_t *ids_json(const token_list *ids)
{
    json_t *out = json_array();
    for (size_t i = 0; i < ids->count; i++)
        json_array_append_new(out, json_integer(ids->ids[i]));
    return out;
}

static void echo_prompt(openai_job *j, const openai_source *s, const token_list *prompt)
{
    text words = {0};
    tokenizer_decode(j->server->tokenizer, prompt->ids, prompt->count, j->request.skip_special, &words);
    for (int i = 0; i < j->request.spec.choices; i++)
        text_add(&j->parts[s->first_part + i].content, words.data, words.length);
    text_free(&words);
}

/* The field that a refusal of generation_start is about. */
static const char *param_of(const openai_job *j, const request_error *e)
{
    if (e->status != 400)
        return "";
    if (text_starts_with(e->err.text, "n is"))
        return "n";
    if (text_starts_with(e->err.text, "min_tokens"))
        return "min_tokens";
    if (text_starts_with(e->err.text, "max_tokens") || strstr(e->err.text, "max_tokens is"))
        return "max_tokens";
    return e->err.code != ERROR_FIT ? "" : j->request.api == API_CHAT ? "messages" : "prompt";
}

/* Submits one prompt, which is used up. */
static bool start_source(openai_job *j, int index, token_list *prompt, request_error *e)
{
    static const generation_sink functions = {.tokens = sink_tokens, .piece = sink_piece, .step = sink_step, .finish = sink_finish,
                                              .done = sink_done};
    openai_source *s = &j->sources[index];
    generation_sink sink = functions;
    generation_spec wanted = j->request.spec;
    *s = (openai_source){.job = j, .first_part = index * wanted.choices};
    if (j->request.return_token_ids || j->request.return_prompt_token_ids)
        s->prompt_ids = ids_json(prompt);
    if (j->request.echo)
        echo_prompt(j, s, prompt);
    wanted.prompt = *prompt;
    sink.context = s;
    s->generation = generation_start(j->server, &wanted, j->who, http_request_id(j->exchange), &sink, &e->status, &e->err);
    token_list_free(prompt);
    if (!s->generation) {
        e->code = e->status == 400 && e->err.code == ERROR_FIT ? "context_length_exceeded" : NULL;
        snprintf(e->param, sizeof e->param, "%s", param_of(j, e));
    }
    return s->generation != NULL;
}

/* A conversation may be large, and an answer may take long: what was borrowed from the body is not needed any more. */
static void drop_body(openai_job *j)
{
    api_request *r = &j->request;
    if (loggable(r->user))
        snprintf(j->user, sizeof j->user, "%s", r->user);
    r->messages = r->prompt = r->tools = r->tool_choice = r->input_ids = NULL;
    r->model = r->user = r->rid = r->request_id = r->cache_salt = r->extra_key = r->reasoning_effort = r->template_effort = NULL;
    json_decref(j->body);
    j->body = NULL;
}

void openai_job_start(openai_job *j, token_list *prompts, int count)
{
    request_error e = {0};
    choose_id(j);
    drop_body(j);
    j->part_count = count * j->request.spec.choices;
    j->parts = mem_alloc((size_t)j->part_count, sizeof *j->parts);
    j->sources = mem_alloc((size_t)count, sizeof *j->sources);
    for (; j->source_count < count; j->source_count++) {
        if (start_source(j, j->source_count, &prompts[j->source_count], &e))
            continue;
        json_decref(j->sources[j->source_count].prompt_ids);
        cancel_all(j);
        openai_reply_problem(j->server, j->exchange, j->who, &e);
        openai_job_free(j);
        return;
    }
    j->running = count;
    http_on_closed(j->exchange, job_closed, j);
    if (!j->request.stream)
        return;
    job_enter(j);
    http_stream_begin(j->exchange, 200, "text/event-stream");
    job_leave(j);
}
