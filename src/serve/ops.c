/* What operators, gateways and benchmarks ask: /server_info, /model_info, /v1/loads, and what they order: /flush_cache, /abort_request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "serve/generation.h"
#include "serve/handlers.h"

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static int used_pages(const engine_counters *c)
{
    return c->pages - c->free_pages - c->idle_pages;
}

/* Output tokens that one verify step gave on average; 0 before the first. */
static double accept_length(const engine_counters *c)
{
    return share((double)c->spec.verify_tokens, (double)c->spec.verify_steps);
}

static double accept_rate(const engine_counters *c)
{
    uint64_t tried = 0, right = 0;
    for (int i = 0; i < SPEC_DEPTH_MOST; i++) {
        tried += c->spec.tried[i];
        right += c->spec.right[i];
    }
    return share((double)right, (double)tried);
}

/* Output tokens per second, as the page shows them. */
static double throughput(const server *s, const engine_counters *c)
{
    json_t *history = metrics_history(s->metrics, c, INT64_MAX); /* no samples, only what is true now */
    double tps = json_number_value(json_object_get(json_object_get(history, "current"), "output_tps"));
    json_decref(history);
    return tps;
}

/* ---- /server_info, /model_info ---- */

static const char *spec_mode_word(spec_mode m)
{
    return m == SPEC_OFF ? "off" : m == SPEC_FIXED ? "fixed" : "auto";
}

static json_t *speculation_json(const engine_facts *f, const engine_counters *c)
{
    json_t *positions = json_array();
    for (int i = 0; i < SPEC_DEPTH_MOST && c->spec.tried[i] > 0; i++)
        json_array_append_new(positions, json_real(share((double)c->spec.right[i], (double)c->spec.tried[i])));
    return json_pack("{s:s, s:i, s:i, s:b, s:f, s:s, s:f, s:f, s:o}", "mode", spec_mode_word(f->spec.mode), "most_drafts", f->spec.depth,
                     "drafts_now", c->spec.depth, "simulated", c->spec_simulated, "simulated_accept_length", f->spec.simulate, "state",
                     c->spec_words, "accept_length", accept_length(c), "accept_rate", accept_rate(c), "accept_rate_by_position", positions);
}

static json_t *engine_json(const engine_facts *f)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:I, s:i, s:I}", "max_running", f->max_running, "max_waiting", f->max_waiting, "max_context",
                     f->max_context, "step_rows", f->step_rows, "kv_tokens", (json_int_t)f->kv_tokens, "page_tokens", KV_PAGE_TOKENS,
                     "page_bytes", (json_int_t)f->page_bytes);
}

static json_t *dispatch_json(const dispatch_counts *c)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "shapes", c->shapes, "tuned", c->tuned, "only", c->only, "heuristic", c->heuristic);
}

static json_t *counters_json(const engine_counters *c)
{
    static const char *const finishes[] = {[ENGINE_STOP] = "stop", [ENGINE_LENGTH] = "length", [ENGINE_CANCELLED] = "cancelled",
                                           [ENGINE_DEADLINE] = "deadline", [ENGINE_FAILED] = "failed"};
    json_t *finished = json_object();
    for (int i = ENGINE_STOP; i <= ENGINE_FAILED; i++)
        json_object_set_new(finished, finishes[i], json_integer((json_int_t)c->finished[i]));
    json_t *made = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "running", c->running, "waiting", c->waiting, "decoding",
                             c->decoding, "prefilling", c->prefilling, "pages", c->pages, "free_pages", c->free_pages, "cached_pages",
                             c->idle_pages, "finished", finished);
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"submitted", c->submitted}, {"refused", c->refused}, {"prompt_tokens", c->prompt_tokens},
                {"cached_tokens", c->cached_tokens}, {"computed_tokens", c->computed_tokens}, {"output_tokens", c->output_tokens},
                {"preemptions", c->preemptions}, {"evicted_pages", c->evicted_pages}, {"steps", c->steps}, {"step_us", c->step_us}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        json_object_set_new(made, rows[i].name, json_integer((json_int_t)rows[i].value));
    return made;
}

static json_t *limits_json(const server *s)
{
    const server_limits *l = &s->options.limits;
    return json_pack("{s:i, s:i, s:i, s:f, s:f, s:b}", "max_tokens", l->max_tokens, "default_max_tokens", l->default_max_tokens,
                     "max_choices", l->max_choices, "request_s", l->request_s, "drain_s", l->drain_s, "api_keys",
                     tenants_have_keys(s->tenants));
}

/* The list and its names are those that benchmarks for sglang read. */
static json_t *internal_states(const server *s, const engine_facts *f, const engine_counters *c)
{
    json_t *state = json_pack("{s:f, s:f, s:i, s:I}", "last_gen_throughput", throughput(s, c), "token_usage",
                              share(used_pages(c), c->pages), "max_running_requests", f->max_running, "max_total_num_tokens",
                              (json_int_t)f->kv_tokens);
    if (c->spec.verify_steps > 0)
        json_object_set_new(state, "avg_spec_accept_length", json_real(accept_length(c)));
    if (c->spec_simulated)
        json_object_set_new(state, "spec_simulated", json_true());
    return json_pack("[o]", state);
}

static void reply_model_info(const server *s, http_exchange *x)
{
    sampler_params d = s->defaults;
    json_t *made = json_pack("{s:s, s:s, s:s, s:b, s:i, s:i, s:s?, s:{s:f, s:f, s:i, s:f, s:f}}", "model_path", s->options.model_path
                             ? s->options.model_path : "", "served_model_name", s->options.model_name, "tokenizer_path",
                             s->options.model_path ? s->options.model_path : "", "is_generation", 1, "max_model_len",
                             engine_describe(s->engine).max_context, "vocab_size", tokenizer_size(s->tokenizer), "chat_format",
                             s->format ? chat_format_name(s->format) : NULL, "preferred_sampling_params", "temperature", d.temperature,
                             "top_p", d.top_p, "top_k", d.top_k, "min_p", d.min_p, "repetition_penalty", d.repetition_penalty);
    server_reply_json(x, 200, made);
}

static void reply_server_info(const server *s, http_exchange *x)
{
    engine_counters c;
    engine_facts f = engine_describe(s->engine);
    engine_count(s->engine, &c);
    json_t *made = json_pack("{s:s, s:s, s:s, s:s?, s:I, s:I, s:b, s:i, s:I}", "version", DRAWBRIDGE_VERSION, "served_model_name",
                             s->options.model_name, "model_path", s->options.model_path ? s->options.model_path : "", "chat_format",
                             s->format ? chat_format_name(s->format) : NULL, "started", (json_int_t)s->started_unix, "uptime_s",
                             (json_int_t)time(NULL) - (json_int_t)s->started_unix, "draining", s->draining, "max_model_len", f.max_context,
                             "max_total_num_tokens", (json_int_t)f.kv_tokens);
    json_object_set_new(made, "limits", limits_json(s));
    json_object_set_new(made, "engine", engine_json(&f));
    json_object_set_new(made, "dispatch", dispatch_json(&c.dispatch));
    json_object_set_new(made, "counters", counters_json(&c));
    json_object_set_new(made, "speculation", speculation_json(&f, &c));
    json_object_set_new(made, "internal_states", internal_states(s, &f, &c));
    server_reply_json(x, 200, made);
}

/* Serves /server_info and /model_info and their old names with get_. */
void handle_server_info(server *s, http_exchange *x, const tenant *who)
{
    (void)who;
    if (text_ends_with(http_path(x), "model_info"))
        reply_model_info(s, x);
    else
        reply_server_info(s, x);
}

/* ---- /v1/loads ---- */

enum { LOADS_CORE = 1, LOADS_MEMORY = 2, LOADS_SPEC = 4, LOADS_QUEUES = 8, LOADS_LORA = 16, LOADS_DISAGG = 32, LOADS_ALL = 63 };

/* "core,spec": which sections; 0 when a name is unknown. */
static int loads_sections(const char *names)
{
    static const struct {
        const char *name;
        int bit;
    } known[] = {{"core", LOADS_CORE}, {"memory", LOADS_MEMORY}, {"spec", LOADS_SPEC}, {"queues", LOADS_QUEUES}, {"lora", LOADS_LORA},
                 {"disagg", LOADS_DISAGG}, {"all", LOADS_ALL}};
    int found = 0;
    while (*names) {
        size_t length = strcspn(names, ","), begin = strspn(names, " "), end = length;
        int bit = 0;
        while (end > begin && names[end - 1] == ' ')
            end--;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (begin <= end && view_equal_text((view){names + begin, end - begin}, known[i].name))
                bit = known[i].bit;
        if (!bit)
            return 0;
        found |= bit;
        names += length + (names[length] == ',');
    }
    return found;
}

/* As sglang has them; there are neither adapters nor split prefill, so those sections are empty. */
static json_t *load_json(const server *s, const engine_facts *f, const engine_counters *c, int sections)
{
    int64_t used = (int64_t)used_pages(c) * KV_PAGE_TOKENS, most = (int64_t)c->pages * KV_PAGE_TOKENS;
    json_t *load = json_pack("{s:i, s:f}", "dp_rank", 0, "timestamp", (double)time(NULL));
    if (sections & LOADS_CORE)
        json_object_update_new(load, json_pack("{s:i, s:i, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:i}", "num_running_reqs", c->running,
            "num_waiting_reqs", c->waiting, "num_total_reqs", c->running + c->waiting, "num_used_tokens", (json_int_t)used,
            "max_total_num_tokens", (json_int_t)most, "token_usage", share((double)used, (double)most), "gen_throughput", throughput(s, c),
            "cache_hit_rate", share((double)c->cached_tokens, (double)c->prompt_tokens), "utilization", share(c->running, f->max_running),
            "max_running_requests", f->max_running));
    if (sections & LOADS_MEMORY)
        json_object_set_new(load, "memory", json_pack("{s:f, s:I, s:i, s:i, s:i}", "kv_cache_gb", (double)f->page_bytes * c->pages * 1e-9,
            "token_capacity", (json_int_t)most, "pages", c->pages, "free_pages", c->free_pages, "cached_pages", c->idle_pages));
    if (sections & LOADS_SPEC)
        json_object_set_new(load, "speculative", json_pack("{s:f, s:f, s:b}", "accept_length", accept_length(c), "accept_rate",
            accept_rate(c), "simulated", c->spec_simulated));
    if (sections & LOADS_QUEUES)
        json_object_set_new(load, "queues", json_pack("{s:i, s:i, s:i, s:I}", "waiting", c->waiting, "grammar", 0, "paused", 0, "retracted",
            (json_int_t)c->preemptions));
    return load;
}

static void prometheus_add(text *out, const char *section, const char *key, const json_t *value)
{
    if (!json_is_number(value))
        return;
    text_add_format(out, "# TYPE sglang_%s%s gauge\n", section, key);
    text_add_format(out, "sglang_%s%s{dp_rank=\"0\"} %.17g\n", section, key, json_number_value(value));
}

static void reply_prometheus(http_exchange *x, json_t *load)
{
    const char *key, *inner;
    json_t *value, *one;
    text out = {0};
    json_object_del(load, "dp_rank");
    json_object_foreach(load, key, value) {
        prometheus_add(&out, "", key, value);
        const char *section = strcmp(key, "speculative") == 0 ? "spec_" : strcmp(key, "memory") == 0 ? "memory_" : "queues_";
        if (json_is_object(value))
            json_object_foreach(value, inner, one)
                prometheus_add(&out, section, inner, one);
    }
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data ? out.data : "", out.length);
    text_free(&out);
}

static void timestamp_words(char out[32])
{
    time_t now = time(NULL);
    struct tm utc = {0};
    gmtime_r(&now, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
}

/* /get_load, the older form: the list alone. */
static void reply_old_load(http_exchange *x, const engine_counters *c)
{
    server_reply_json(x, 200, json_pack("[{s:i, s:i, s:i, s:I}]", "dp_rank", 0, "num_reqs", c->running + c->waiting, "num_waiting_reqs",
                                        c->waiting, "num_tokens", (json_int_t)used_pages(c) * KV_PAGE_TOKENS));
}

void handle_loads(server *s, http_exchange *x, const tenant *who)
{
    const char *include = http_query(x, "include"), *form = http_query(x, "format"), *rank = http_query(x, "dp_rank");
    int sections = include && *include ? loads_sections(include) : LOADS_ALL;
    bool prometheus = form && strcmp(form, "prometheus") == 0;
    engine_counters c;
    char when[32];
    (void)who;
    engine_facts f = engine_describe(s->engine);
    engine_count(s->engine, &c);
    if (text_ends_with(http_path(x), "get_load")) {
        reply_old_load(x, &c);
        return;
    }
    if (sections == 0) {
        server_reply_error(x, 400, "include", "include: expected some of core, memory, spec, lora, disagg, queues, all, separated by "
                           "commas, found \"%.80s\"", include);
        return;
    }
    if (form && !prometheus && strcmp(form, "json") != 0) {
        server_reply_error(x, 400, "format", "format: expected json or prometheus, found \"%.40s\"", form);
        return;
    }
    if (rank && strcmp(rank, "0") != 0) {
        server_reply_error(x, 400, "dp_rank", "dp_rank: there is one rank, 0, found \"%.40s\"", rank);
        return;
    }
    json_t *load = load_json(s, &f, &c, sections);
    if (prometheus) {
        reply_prometheus(x, load);
        json_decref(load);
        return;
    }
    timestamp_words(when);
    server_reply_json(x, 200, json_pack("{s:s, s:s, s:[o]}", "timestamp", when, "version", DRAWBRIDGE_VERSION, "loads", load));
}

/* ---- orders ---- */

/* A flush that the engine does after its present step; the loop does not wait for that. */
typedef struct flush_wait {
    server *server;
    http_exchange *x;
    uint64_t number; /* of the engine */
    int free_pages;  /* before */
    struct flush_wait *next;
} flush_wait;

static void flush_reply(server *s, http_exchange *x, int free_before)
{
    engine_counters now;
    engine_count(s->engine, &now);
    int freed = now.free_pages > free_before ? now.free_pages - free_before : 0;
    server_reply_json(x, 200, json_pack("{s:b, s:s, s:i, s:i}", "success", 1, "message",
                                        "the prefix cache is empty; pages of running requests stay", "freed_pages", freed, "pages_in_use",
                                        used_pages(&now)));
}

static void flush_closed(void *context)
{
    flush_wait *gone = context;
    flush_wait **at = &gone->server->flushes;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    free(gone);
}

void ops_flushes_take(server *s)
{
    for (flush_wait **at = &s->flushes; *at;) {
        flush_wait *w = *at;
        if (!engine_flush_is_done(s->engine, w->number)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        flush_reply(s, w->x, w->free_pages);
        free(w);
    }
}

/* Empties what is not in use, whether requests are running or not; nothing has to be waited for, so a time-out is only checked. */
void handle_flush_cache(server *s, http_exchange *x, const tenant *who)
{
    const char *timeout = http_query(x, "timeout");
    char *end = NULL;
    engine_counters before;
    (void)who;
    double seconds = timeout ? strtod(timeout, &end) : 0;
    if (timeout && (end == timeout || *end || !(seconds >= 0 && seconds <= 86400))) {
        server_reply_error(x, 400, "timeout", "timeout: expected seconds from 0 to 86400, found \"%.40s\"", timeout);
        return;
    }
    engine_count(s->engine, &before);
    flush_wait *w = mem_alloc(1, sizeof *w);
    *w = (flush_wait){s, x, engine_flush_begin(s->engine), before.free_pages, s->flushes};
    s->flushes = w;
    http_on_closed(x, flush_closed, w);
    ops_flushes_take(s);
}

/* {"rid": "..."} or {"abort_all": true}. A tenant ends its own requests, an admin those of all. */
void handle_abort_request(server *s, http_exchange *x, const tenant *who)
{
    json_t *body = server_body(s, x);
    const char *key, *rid = NULL;
    bool all = false;
    error err = {0};
    json_source from = {body, "request body"};
    json_t *value;
    if (!body)
        return;
    json_object_foreach(body, key, value)
        if (strcmp(key, "rid") != 0 && strcmp(key, "abort_all") != 0 && !json_is_null(value) && !err.code)
            error_set(&err, ERROR_INPUT, "%.60s: not a field of this API; leave it out", key);
    if (!err.code && json_get_string_or(from, "rid", &rid, &err))
        json_get_bool_or(from, "abort_all", &all, &err);
    if (!err.code && !all && (!rid || !*rid))
        error_set(&err, ERROR_INPUT, "rid: send the rid of a request, or abort_all");
    if (err.code)
        server_reply_error(x, 400, NULL, "%s", err.text);
    else if (all && tenants_have_keys(s->tenants) && !who->admin)
        server_reply_error(x, 403, "abort_all", "abort_all: needs a key marked admin, because it ends requests of others");
    else
        server_reply_json(x, 200, json_pack("{s:b, s:i}", "success", 1, "aborted", generation_abort_of(s, who, all ? NULL : rid, all)));
    json_decref(body);
}
