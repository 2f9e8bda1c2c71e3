/* Life of a generation: the API's handle is good until done or generation_cancel; the memory stays until the engine has sent the last
 * event of every choice, because events carry pointers to the choices. A generation without a listener ("silent") only waits for that.
 *
 * Sink functions may call generation_cancel, for example when a write closes the connection: the slot whose event is being handled counts
 * as running until they have returned, so that nothing is freed below them. */
#include "serve/generation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "serve/choice.h"

typedef struct slot {
    generation *owner;
    int index;
    uint64_t id;            /* of the engine */
    choice *text;
    bool running;           /* the engine's last event has not come */
    bool over;              /* finish was reported, or nobody listens any more */
    const char *reason;     /* for metrics, once over */
    uint64_t previous_us;   /* when its latest tokens came; 0: none */
    engine_request_stats stats; /* of its latest event before it was over */
} slot;

struct generation {
    server *server;
    generation *previous, *next; /* in server->generations */
    generation_sink sink;
    tenant *who;
    char *rid;
    double timeout_s;
    int prompt_tokens, max_tokens;
    int count;   /* choices that were submitted */
    int running; /* slots with events to come */
    int open;    /* slots that are not over */
    bool silent; /* done was called, or the client has gone */
    slot slots[GENERATION_CHOICES_MOST];
};

/* ---- the list ---- */

static void list_add(generation *g)
{
    g->next = g->server->generations;
    if (g->next)
        g->next->previous = g;
    g->server->generations = g;
}

static void generation_free(generation *g)
{
    if (g->previous)
        g->previous->next = g->next;
    else
        g->server->generations = g->next;
    if (g->next)
        g->next->previous = g->previous;
    for (int i = 0; i < g->count; i++)
        choice_free(g->slots[i].text);
    free(g->rid);
    free(g);
}

static void free_if_unused(generation *g)
{
    if (g->silent && g->running == 0)
        generation_free(g);
}

/* Gives the slot's place back. The engine may still be busy with it for a step. */
static void slot_close(slot *s, const char *reason)
{
    if (s->over)
        return;
    s->over = true;
    s->reason = reason;
    s->owner->open--;
    tenant_leave(s->owner->who, 1);
}

/* Nobody listens any more: what still runs is cancelled. */
static void fall_silent(generation *g)
{
    g->silent = true;
    for (int i = 0; i < g->count; i++) {
        if (g->slots[i].running && !g->slots[i].over)
            engine_cancel(g->server->engine, g->slots[i].id);
        slot_close(&g->slots[i], "abort");
    }
}

/* ---- starting ---- */

static bool refuse(int *status, int code)
{
    *status = code;
    return false;
}

bool generation_admits(server *s, const tenant *who, int *status, error *err)
{
    engine_counters now;
    if (s->draining) {
        error_set(err, ERROR_RUNTIME, "the server is shutting down and takes no new requests; send this one to another replica");
        return refuse(status, 503);
    }
    engine_count(s->engine, &now);
    int most = engine_describe(s->engine).max_waiting;
    if (most > 0 && now.waiting >= most) {
        error_set(err, ERROR_FIT, "the request queue is full (%d waiting); try again later", now.waiting);
        return refuse(status, 503);
    }
    if (who->in_flight_most > 0 && who->in_flight >= who->in_flight_most) {
        error_set(err, ERROR_FIT, "%d generations of this key are running, the most it may have is %d; wait for one to end",
                  who->in_flight, who->in_flight_most);
        return refuse(status, 429);
    }
    return true;
}

int generation_retry_after(const server *s, const tenant *who, int status)
{
    if (status == 503 && s->draining)
        return s->options.limits.drain_s > 1 ? (int)s->options.limits.drain_s : 1;
    if (status != 429 || who->per_minute_most <= 0 || who->tokens >= 1)
        return 1;
    return (int)ceil((1 - who->tokens) * 60 / who->per_minute_most) + 1;
}

/* How many tokens an answer may have; 0 after an error. */
static int settle_max_tokens(const server *s, const generation_spec *wanted, error *err)
{
    const server_limits *l = &s->options.limits;
    int64_t context = engine_describe(s->engine).max_context, room = context - (int64_t)wanted->prompt.count;
    if (room < 1) {
        error_set(err, ERROR_FIT, "the prompt has %zu tokens, the context has room for %d and an answer needs some; shorten the prompt",
                  wanted->prompt.count, (int)context);
        return 0;
    }
    if (wanted->max_tokens == 0) {
        int64_t most = l->default_max_tokens > 0 ? l->default_max_tokens : room;
        if (l->max_tokens > 0 && most > l->max_tokens)
            most = l->max_tokens;
        return (int)(most < room ? most : room);
    }
    if (l->max_tokens > 0 && wanted->max_tokens > l->max_tokens) {
        error_set(err, ERROR_INPUT, "max_tokens is %d, this server allows %d", wanted->max_tokens, l->max_tokens);
        return 0;
    }
    if (wanted->max_tokens > room) {
        error_set(err, ERROR_FIT, "the prompt has %zu tokens and max_tokens is %d, together %lld; the context has room for %d: lower "
                  "max_tokens to %d, or leave it out", wanted->prompt.count, wanted->max_tokens,
                  (long long)wanted->prompt.count + wanted->max_tokens, (int)context, (int)room);
        return 0;
    }
    return wanted->max_tokens;
}

static bool spec_check(const server *s, const generation_spec *wanted, error *err)
{
    int most = s->options.limits.max_choices > 0 ? s->options.limits.max_choices : GENERATION_CHOICES_MOST;
    most = most < GENERATION_CHOICES_MOST ? most : GENERATION_CHOICES_MOST;
    if (wanted->choices < 1 || wanted->choices > most)
        return error_set(err, ERROR_INPUT, "n is %d, expected 1 to %d", wanted->choices, most);
    if (wanted->prompt.count == 0)
        return error_set(err, ERROR_INPUT, "the prompt is empty; send at least one token");
    if (wanted->chat && !s->format)
        return error_set(err, ERROR_INPUT, "this model has no known chat format; use /v1/completions or /generate");
    return true;
}

/* What can never be granted is no matter of trying again. */
static bool tenant_check(const tenant *who, int choices, error *err)
{
    if (who->in_flight_most > 0 && choices > who->in_flight_most)
        return error_set(err, ERROR_INPUT, "n is %d, this key may have %d answers at a time", choices, who->in_flight_most);
    if (who->per_minute_most > 0 && choices > who->per_minute_most)
        return error_set(err, ERROR_INPUT, "n is %d, this key may start %d answers per minute", choices, who->per_minute_most);
    return true;
}

static choice *new_choice(const server *s, const generation_spec *wanted)
{
    choice_options o = {
        .tokenizer = s->tokenizer,
        .format = wanted->chat ? s->format : NULL,
        .tools = wanted->tools,
        .forced = &wanted->forced,
        .in_thinking = wanted->in_thinking,
        .in_content = wanted->in_content,
        .plain_reasoning = wanted->plain_reasoning,
        .one_call = wanted->one_call,
        .ignore_eos = wanted->ignore_eos,
        .keep_stop = wanted->keep_stop,
        .keep_special = wanted->keep_special,
        .min_tokens = wanted->min_tokens,
        .stops = wanted->stops,
        .stop_count = wanted->stop_count,
    };
    return choice_new(&o);
}

static uint64_t settle_deadline(generation *g, const generation_spec *wanted)
{
    double most = g->server->options.limits.request_s;
    g->timeout_s = wanted->timeout_s > 0 && (most <= 0 || wanted->timeout_s < most) ? wanted->timeout_s : most;
    return g->timeout_s > 0 ? clock_now_us() + (uint64_t)(g->timeout_s * 1e6) : 0;
}

static int status_of_refusal(engine_refusal r)
{
    return r == ENGINE_INVALID ? 400 : 503;
}

/* Submits choice after choice; false with the rest not submitted. */
static bool submit_all(generation *g, const generation_spec *wanted, int *status, error *err)
{
    text space = {0};
    text_add_format(&space, "%s\n%s", g->who->name, wanted->cache_salt ? wanted->cache_salt : "");
    engine_request r = {
        .prompt = wanted->prompt.ids,
        .prompt_count = (int)wanted->prompt.count,
        .max_tokens = g->max_tokens,
        .min_tokens = wanted->min_tokens,
        .params = wanted->params,
        .stop_ids = wanted->stop_ids.ids,
        .stop_count = (int)wanted->stop_ids.count,
        .ignore_eos = wanted->ignore_eos,
        .space = space.data,
        .priority = wanted->priority,
        .deadline_us = settle_deadline(g, wanted),
    };
    r.params.bias = wanted->bias;
    engine_refusal refusal = ENGINE_ACCEPTED;
    for (int i = 0; i < wanted->choices && refusal == ENGINE_ACCEPTED; i++) {
        slot *s = &g->slots[i];
        *s = (slot){.owner = g, .index = i};
        r.user = s;
        r.params.seed = wanted->params.seed + (uint64_t)i;
        refusal = engine_submit(g->server->engine, &r, &s->id, err);
        if (refusal != ENGINE_ACCEPTED)
            break;
        s->text = new_choice(g->server, wanted);
        s->running = true;
        g->count++;
        g->running++;
        g->open++;
    }
    text_free(&space);
    return refusal == ENGINE_ACCEPTED || refuse(status, status_of_refusal(refusal));
}

static bool enter(tenant *who, int count, int *status, error *err)
{
    int retry_after_s = 0;
    return tenant_enter(who, count, clock_now_us(), &retry_after_s, err) || refuse(status, 429);
}

generation *generation_start(server *s, const generation_spec *wanted, const tenant *who, const char *request_id,
                             const generation_sink *sink, int *status, error *err)
{
    tenant *counted = (tenant *)(uintptr_t)who; /* handlers only read it; its places are counted here */
    *status = 400;
    if (!spec_check(s, wanted, err) || !tenant_check(who, wanted->choices, err))
        return NULL;
    int max_tokens = settle_max_tokens(s, wanted, err);
    if (max_tokens == 0)
        return NULL;
    if (!generation_admits(s, who, status, err) || !enter(counted, wanted->choices, status, err))
        return NULL;
    generation *g = mem_alloc(1, sizeof *g);
    g->server = s;
    g->sink = *sink;
    g->who = counted;
    g->rid = mem_copy(wanted->rid ? wanted->rid : request_id, strlen(wanted->rid ? wanted->rid : request_id));
    g->prompt_tokens = (int)wanted->prompt.count;
    g->max_tokens = max_tokens;
    list_add(g);
    if (submit_all(g, wanted, status, err)) {
        *status = 200;
        return g;
    }
    tenant_leave(counted, wanted->choices - g->count);
    fall_silent(g);
    free_if_unused(g);
    return NULL;
}

/* ---- ending ---- */

void generation_cancel(generation *g)
{
    fall_silent(g);
    free_if_unused(g);
}

int generation_abort(server *s, const char *rid, bool all)
{
    return generation_abort_of(s, NULL, rid, all);
}

int generation_abort_of(server *s, const tenant *who, const char *rid, bool all)
{
    int found = 0;
    for (generation *g = s->generations; g; g = g->next) {
        bool meant = all ? !rid || text_starts_with(g->rid, rid) : rid && strcmp(g->rid, rid) == 0;
        bool allowed = !who || who->admin || who == g->who;
        if (g->silent || !meant || !allowed)
            continue;
        found++;
        for (int i = 0; i < g->count; i++)
            if (!g->slots[i].over)
                engine_cancel(s->engine, g->slots[i].id);
    }
    return found;
}

void generation_free_all(server *s)
{
    while (s->generations) {
        generation *g = s->generations;
        for (int i = 0; i < g->count; i++)
            slot_close(&g->slots[i], "abort");
        generation_free(g);
    }
}

/* ---- events ---- */

/* Tokens, then pieces, then step; stops when a sink function has cancelled the generation. */
static void report_pieces(slot *s, const engine_event *ev, int used)
{
    generation *g = s->owner;
    generation_token tokens[ENGINE_EVENT_TOKENS];
    for (int i = 0; i < used; i++)
        tokens[i] = (generation_token){ev->tokens[i], ev->results ? &ev->results[i] : NULL};
    if (used > 0 && g->sink.tokens)
        g->sink.tokens(g->sink.context, s->index, tokens, used);
    chat_event piece;
    while (!g->silent && choice_next(s->text, &piece))
        if (g->sink.piece)
            g->sink.piece(g->sink.context, s->index, &piece);
    if (!g->silent && g->sink.step)
        g->sink.step(g->sink.context, s->index);
}

static generation_end end_of(const choice_result *r, engine_finish finish)
{
    if (r->stopped || finish == ENGINE_STOP)
        return r->calls ? GENERATION_CALLS : GENERATION_STOP;
    switch (finish) {
    case ENGINE_LENGTH: return GENERATION_LENGTH;
    case ENGINE_DEADLINE: return GENERATION_TIMEOUT;
    case ENGINE_FAILED: return GENERATION_FAILED;
    default: return GENERATION_ABORTED;
    }
}

static const char *reason_of(generation_end end)
{
    static const char *const words[] = {[GENERATION_STOP] = "stop", [GENERATION_LENGTH] = "length", [GENERATION_CALLS] = "tool_calls",
        [GENERATION_ABORTED] = "abort", [GENERATION_TIMEOUT] = "timeout", [GENERATION_FAILED] = "error"};
    return words[end];
}

static void report_finish(slot *s, const engine_event *ev)
{
    generation *g = s->owner;
    const choice_result *r = choice_result_now(s->text);
    char late[96];
    generation_finish f = {.end = end_of(r, ev->finish), .stop_text = r->stop_text, .stop_id = r->stop_id, .problems = r->problems};
    snprintf(late, sizeof late, "the request did not finish within its time limit of %g s", g->timeout_s);
    if (f.end == GENERATION_FAILED)
        f.failure = ev->failure ? ev->failure : "the engine failed";
    else if (f.end == GENERATION_TIMEOUT)
        f.failure = late;
    else if (f.end == GENERATION_ABORTED)
        f.failure = "the request was aborted";
    if (ev->finish == ENGINE_RUNNING)
        engine_cancel(g->server->engine, s->id);
    slot_close(s, reason_of(f.end));
    if (g->sink.finish)
        g->sink.finish(g->sink.context, s->index, &f);
    if (g->silent || g->open > 0)
        return;
    g->silent = true;
    if (g->sink.done)
        g->sink.done(g->sink.context);
}

static void take_live(slot *s, const engine_event *ev)
{
    s->stats = ev->stats;
    if (ev->count > 0) {
        metrics_tokens(s->owner->server->metrics, ev, s->previous_us ? s->previous_us : ev->stats.arrival_us);
        s->previous_us = ev->time_us;
    }
    int used = choice_add(s->text, ev->tokens, ev->count, ev->finish == ENGINE_STOP);
    if (ev->finish != ENGINE_RUNNING)
        choice_end(s->text);
    report_pieces(s, ev, used);
    if (!s->owner->silent && choice_ended(s->text))
        report_finish(s, ev);
}

void generation_take(server *s, engine_event *ev)
{
    slot *at = ev->user;
    generation *g = at->owner;
    bool last = ev->finish != ENGINE_RUNNING;
    if (!at->over)
        take_live(at, ev);
    if (last) {
        metrics_finish(s->metrics, ev, at->reason, g->max_tokens);
        at->running = false;
        g->running--;
    }
    free_if_unused(g);
    engine_event_free(ev);
}

/* ---- questions ---- */

generation_usage generation_usage_now(const generation *g)
{
    generation_usage u = {.prompt_tokens = g->prompt_tokens, .cached_tokens = g->count > 0 ? g->slots[0].stats.cached_tokens : 0};
    for (int i = 0; i < g->count; i++) {
        const slot *s = &g->slots[i];
        const choice_result *r = choice_result_now(s->text);
        u.completion_tokens += r->tokens;
        u.reasoning_tokens += r->reasoning_tokens;
        u.drafted += s->stats.drafted;
        u.accepted += s->stats.accepted;
        u.verify_steps += s->stats.verify_steps;
    }
    return u;
}

int generation_prompt_tokens(const generation *g)
{
    return g->prompt_tokens;
}

const char *generation_id(const generation *g)
{
    return g->rid;
}
