/* libdrawbridge: the public functions of include/drawbridge.h, in terms of the engine. */
#include <drawbridge.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "model/chat.h"

struct drawbridge {
    model *model;
    tokenizer *tokenizer;
    chat_format *format;
    device *device;
    forward *forward;
    engine *engine;
    sampler_params defaults;
    int context;              /* tokens of one sequence */
    text kernels;             /* the dispatch table in a sentence */
    void (*notify)(void *);
    void *notify_context;
    pthread_mutex_t lock;     /* guards what follows */
    pthread_cond_t news;      /* events may be waiting */
    uint64_t notified;        /* counts notifications */
    int open_requests;        /* submitted, last event not taken */
};

/* What the library keeps of a request. */
typedef struct library_request {
    void *user;
    token_stream stream;
} library_request;

_Static_assert((int)DRAWBRIDGE_EVENT_TOKENS == (int)ENGINE_EVENT_TOKENS, "an event holds the tokens of a step");
_Static_assert((int)DRAWBRIDGE_FAILED == (int)ENGINE_FAILED && (int)DRAWBRIDGE_TIMEOUT == (int)ENGINE_DEADLINE, "the same numbers");
_Static_assert((int)DRAWBRIDGE_KV_FP8 == (int)KV_FP8, "the same numbers");

static const float HF_LATENT_EPS = 1e-6f; /* of the norms inside the attention, whatever config.json says */

static bool tell(const error *from, drawbridge_error *to)
{
    if (to) {
        to->code = (int)from->code;
        memcpy(to->text, from->text, sizeof to->text < sizeof from->text ? sizeof to->text : sizeof from->text);
    }
    return false;
}

/* ---- opening ---- */

drawbridge_options drawbridge_options_defaults(void)
{
    return (drawbridge_options){.kv = DRAWBRIDGE_KV_BF16, .max_running = 32, .max_waiting = 1024, .step_rows = 256, .speculation = "auto",
                                .prefix_cache = true};
}

static void be_notified(void *context)
{
    drawbridge *d = context;
    pthread_mutex_lock(&d->lock);
    d->notified++;
    pthread_cond_broadcast(&d->news);
    pthread_mutex_unlock(&d->lock);
    if (d->notify)
        d->notify(d->notify_context);
}

static bool open_text(drawbridge *d, const char *directory, const drawbridge_options *o, error *err)
{
    text path = {0};
    path_join(&path, directory, "tokenizer.json");
    d->tokenizer = tokenizer_load(path.data, err);
    text_free(&path);
    d->format = d->tokenizer ? chat_format_load(directory, d->tokenizer, o->chat_format, err) : NULL;
    if (!d->format)
        return false;
    d->defaults = sampler_params_default(tokenizer_size(d->tokenizer));
    return generation_defaults(directory, &d->defaults, err);
}

static bool check_options(const drawbridge_options *o, const model_config *c, error *err)
{
    enum { CONTEXT_LEAST = 2, ROWS_MOST = 4096, THREADS_MOST = 1024 };
    if (o->threads < 0 || o->threads > THREADS_MOST)
        return error_set(err, ERROR_USAGE, "options.threads is %d, expected 0 to %d", o->threads, THREADS_MOST);
    if (o->context != 0 && (o->context < CONTEXT_LEAST || o->context > c->max_positions))
        return error_set(err, ERROR_USAGE, "options.context is %d, expected 0 or %d to %d", o->context, CONTEXT_LEAST, c->max_positions);
    if (o->step_rows < 1 || o->step_rows > ROWS_MOST)
        return error_set(err, ERROR_USAGE, "options.step_rows is %d, expected 1 to %d", o->step_rows, ROWS_MOST);
    if ((int)o->kv < 0 || o->kv > DRAWBRIDGE_KV_FP8)
        return error_set(err, ERROR_USAGE, "options.kv is %d, expected one of drawbridge_kv", (int)o->kv);
    if (o->kv_tokens < 0)
        return error_set(err, ERROR_USAGE, "options.kv_tokens is negative");
    if (o->exact && o->kv != DRAWBRIDGE_KV_F32)
        return error_set(err, ERROR_USAGE, "options.exact needs an f32 cache; set options.kv to DRAWBRIDGE_KV_F32");
    if (o->require_tuned && (!o->tuned || o->kernels))
        return error_set(err, ERROR_USAGE, "options.require_tuned needs options.tuned, and options.kernels must be NULL");
    if (o->tuned && !file_is_directory(o->tuned))
        return error_set(err, ERROR_INPUT, "options.tuned is %s: there is no such directory; drawbridge tune makes one", o->tuned);
    return true;
}

/* Refuses a table with gaps when every shape has to be in it. */
static bool check_kernels(drawbridge *d, const drawbridge_options *o, error *err)
{
    const dispatch_table *t = d->device->dispatch;
    int heuristic = dispatch_count(t).heuristic, first = 0;
    dispatch_summary(t, &d->kernels);
    if (!o->require_tuned || heuristic == 0)
        return true;
    while (t->rows[first].source != DISPATCH_HEURISTIC)
        first++;
    text shape = {0};
    dispatch_describe(&t->rows[first].key, &shape);
    error_set(err, ERROR_DEVICE, "options.require_tuned: %d of %d shapes have no tuned kernel for %s in %s, the first is %s; run "
              "drawbridge tune on this machine", heuristic, t->count, t->device_name, o->tuned, shape.data);
    text_free(&shape);
    return false;
}

static bool start(drawbridge *d, const drawbridge_options *o, error *err)
{
    enum { CONTEXTS = 8 };
    if (!check_options(o, &d->model->config, err))
        return false;
    d->context = o->context ? o->context : d->model->config.max_positions;
    device_limits limits = {.kv = (kv_dtype)o->kv, .threads = o->threads ? o->threads : machine_cores(), .max_rows = o->step_rows,
                            .max_context = d->context, .exact = o->exact, .tuned = o->tuned, .kernels = o->kernels};
    engine_options e = {.max_running = o->max_running, .max_waiting = o->max_waiting, .max_context = d->context,
                        .kv_tokens = o->kv_tokens ? o->kv_tokens : (int64_t)CONTEXTS * d->context, .no_prefix_cache = !o->prefix_cache,
                        .notify = be_notified, .notify_context = d};
    if (!spec_options_parse(o->speculation ? o->speculation : "auto", &e.spec, err))
        return error_add(err, "options.speculation");
    if (o->exact)
        d->model->config.latent_norm_eps = HF_LATENT_EPS;
    d->device = cpu_device_create(d->model, &limits, err);
    d->forward = d->device && check_kernels(d, o, err) ? forward_create(d->device, o->step_rows, o->step_rows, err) : NULL;
    d->engine = d->forward ? engine_create(d->forward, &e, err) : NULL;
    return d->engine && engine_start(d->engine, err);
}

drawbridge *drawbridge_open(const char *directory, const drawbridge_options *options, drawbridge_error *err)
{
    error failure = {0};
    drawbridge_options o = options ? *options : drawbridge_options_defaults();
    drawbridge *d = mem_alloc(1, sizeof *d);
    d->notify = o.notify;
    d->notify_context = o.notify_context;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&d->news, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&d->lock, NULL);
    d->model = model_open(directory, &failure);
    if (d->model && open_text(d, directory, &o, &failure) && start(d, &o, &failure))
        return d;
    drawbridge_close(d);
    tell(&failure, err);
    return NULL;
}

/* Events that nobody took still own memory of the library. */
static void drop_events(drawbridge *d)
{
    drawbridge_event ev;
    engine_close(d->engine);
    engine_cancel_all(d->engine);
    while (drawbridge_poll(d, &ev, 1, -1) == 1)
        drawbridge_event_free(&ev);
}

void drawbridge_close(drawbridge *d)
{
    if (!d)
        return;
    if (d->engine)
        drop_events(d);
    engine_destroy(d->engine);
    forward_destroy(d->forward);
    if (d->device)
        d->device->ops->destroy(d->device);
    chat_format_free(d->format);
    tokenizer_free(d->tokenizer);
    model_close(d->model);
    text_free(&d->kernels);
    pthread_cond_destroy(&d->news);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

const char *drawbridge_kernels(const drawbridge *d)
{
    return d->kernels.data;
}

/* ---- text and tokens ---- */

int32_t *drawbridge_encode(const drawbridge *d, const char *words, size_t bytes, size_t *count)
{
    token_list l = {0};
    tokenizer_encode(d->tokenizer, words, bytes, false, &l);
    *count = l.count;
    return l.ids ? l.ids : mem_alloc(1, sizeof *l.ids);
}

char *drawbridge_decode(const drawbridge *d, const int32_t *tokens, size_t count, size_t *bytes)
{
    text t = {0};
    tokenizer_decode(d->tokenizer, tokens, count, false, &t);
    *bytes = t.length;
    return t.data ? t.data : mem_copy("", 0);
}

static bool render(const drawbridge *d, const char *messages, const char *tools, bool thinking, token_list *out, error *err)
{
    chat_options options = {.enable_thinking = thinking ? CHAT_TRUE : CHAT_FALSE, .add_generation_prompt = true};
    chat_prompt prompt = {0};
    json_t *conversation = json_parse(messages, strlen(messages), "messages", err);
    json_t *functions = conversation && tools ? json_parse(tools, strlen(tools), "tools", err) : NULL;
    bool ok = conversation && (functions || !tools) && chat_render(d->format, conversation, functions, &options, &prompt, err);
    if (ok)
        chat_prompt_tokens(&prompt, d->tokenizer, out);
    chat_prompt_free(&prompt);
    json_decref(functions);
    json_decref(conversation);
    return ok;
}

int32_t *drawbridge_render(const drawbridge *d, const char *messages, const char *tools, bool thinking, size_t *count,
                           drawbridge_error *err)
{
    error failure = {0};
    token_list l = {0};
    if (!render(d, messages, tools, thinking, &l, &failure)) {
        tell(&failure, err);
        return NULL;
    }
    *count = l.count;
    return l.ids;
}

void drawbridge_free(void *memory)
{
    free(memory);
}

/* ---- requests ---- */

drawbridge_request drawbridge_request_defaults(const drawbridge *d)
{
    const sampler_params *p = &d->defaults;
    return (drawbridge_request){.thinking = true, .temperature = p->temperature, .top_p = p->top_p, .min_p = p->min_p,
                                .top_k = p->top_k > 0 ? p->top_k : 0, .repetition_penalty = p->repetition_penalty,
                                .presence_penalty = p->presence_penalty, .frequency_penalty = p->frequency_penalty};
}

static sampler_params params_of(const drawbridge *d, const drawbridge_request *r)
{
    sampler_params p = d->defaults;
    p.temperature = r->temperature;
    p.top_p = r->top_p;
    p.min_p = r->min_p;
    p.top_k = r->top_k;
    p.repetition_penalty = r->repetition_penalty;
    p.presence_penalty = r->presence_penalty;
    p.frequency_penalty = r->frequency_penalty;
    p.seed = r->seed;
    p.logprobs = -1;
    return p;
}

static bool find_prompt(const drawbridge *d, const drawbridge_request *r, token_list *out, error *err)
{
    if (r->messages && r->tokens)
        return error_set(err, ERROR_USAGE, "request.messages and request.tokens are both given; use one of them");
    if (r->messages)
        return render(d, r->messages, r->tools, r->thinking, out, err);
    if (r->tools)
        return error_set(err, ERROR_USAGE, "request.tools needs request.messages");
    for (size_t i = 0; i < r->token_count; i++)
        token_list_add(out, r->tokens[i]);
    return true;
}

static bool submit(drawbridge *d, const drawbridge_request *r, const token_list *prompt, uint64_t *id, error *err)
{
    enum { TIMEOUT_MOST = 1000000000 };
    int64_t room = (int64_t)d->context - (int64_t)prompt->count;
    if (room < 1)
        return error_set(err, ERROR_FIT, "the prompt has %zu tokens, the context has room for %d; shorten it", prompt->count, d->context);
    if (r->max_tokens < 0)
        return error_set(err, ERROR_USAGE, "request.max_tokens is %d, expected 0 or more", r->max_tokens);
    if (!(r->timeout_s >= 0 && r->timeout_s <= TIMEOUT_MOST))
        return error_set(err, ERROR_USAGE, "request.timeout_s is %g, expected 0 to %d seconds", r->timeout_s, TIMEOUT_MOST);
    library_request *mine = mem_alloc(1, sizeof *mine);
    mine->user = r->user;
    engine_request e = {.prompt = prompt->ids, .prompt_count = (int)prompt->count,
                        .max_tokens = r->max_tokens ? r->max_tokens : (int)room, .min_tokens = r->min_tokens, .params = params_of(d, r),
                        .stop_ids = r->stop_tokens, .stop_count = r->stop_count, .ignore_eos = r->ignore_eos, .space = r->cache_space,
                        .priority = r->priority, .user = mine};
    if (r->timeout_s > 0)
        e.deadline_us = clock_now_us() + (uint64_t)(r->timeout_s * 1e6);
    pthread_mutex_lock(&d->lock);
    bool ok = engine_submit(d->engine, &e, id, err) == ENGINE_ACCEPTED;
    d->open_requests += ok;
    pthread_mutex_unlock(&d->lock);
    if (!ok)
        free(mine);
    return ok;
}

bool drawbridge_submit(drawbridge *d, const drawbridge_request *r, uint64_t *id, drawbridge_error *err)
{
    error failure = {0};
    token_list prompt = {0};
    bool ok = find_prompt(d, r, &prompt, &failure) && submit(d, r, &prompt, id, &failure);
    token_list_free(&prompt);
    return ok || tell(&failure, err);
}

void drawbridge_cancel(drawbridge *d, uint64_t id)
{
    engine_cancel(d->engine, id);
}

/* ---- events ---- */

static void translate(drawbridge *d, engine_event *from, drawbridge_event *to)
{
    library_request *mine = from->user;
    text added = {0};
    int shown = from->finish == ENGINE_STOP ? from->count - 1 : from->count;
    for (int i = 0; i < shown; i++)
        token_stream_add(&mine->stream, d->tokenizer, from->tokens[i], &added);
    if (from->finish)
        token_stream_flush(&mine->stream, &added);
    *to = (drawbridge_event){.id = from->id, .user = mine->user, .token_count = from->count, .text_bytes = added.length,
                             .text = added.data ? added.data : mem_copy("", 0), .finish = (drawbridge_finish)from->finish,
                             .failure = from->failure, .prompt_tokens = from->stats.prompt_tokens,
                             .cached_tokens = from->stats.cached_tokens, .output_tokens = from->stats.output_tokens,
                             .drafted = from->stats.drafted, .accepted = from->stats.accepted};
    memcpy(to->tokens, from->tokens, sizeof to->tokens);
    from->failure = NULL;
    engine_event_free(from);
    if (from->finish)
        free(mine);
}

static int take(drawbridge *d, drawbridge_event *events, int most)
{
    int count = 0, ended = 0;
    for (engine_event ev; count < most && engine_poll(d->engine, &ev, 1) == 1; count++) {
        ended += ev.finish != ENGINE_RUNNING;
        translate(d, &ev, &events[count]);
    }
    pthread_mutex_lock(&d->lock);
    d->open_requests -= ended;
    pthread_mutex_unlock(&d->lock);
    return count;
}

static struct timespec deadline_after(int timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

int drawbridge_poll(drawbridge *d, drawbridge_event *events, int most, int timeout_ms)
{
    struct timespec until = deadline_after(timeout_ms > 0 ? timeout_ms : 0);
    for (;;) {
        pthread_mutex_lock(&d->lock);
        uint64_t seen = d->notified;
        bool nothing = d->open_requests == 0;
        pthread_mutex_unlock(&d->lock);
        int count = take(d, events, most);
        if (count > 0 || timeout_ms == 0 || (timeout_ms < 0 && nothing))
            return count;
        int waited = 0;
        pthread_mutex_lock(&d->lock);
        while (d->notified == seen && waited != ETIMEDOUT)
            waited = timeout_ms < 0 ? pthread_cond_wait(&d->news, &d->lock) : pthread_cond_timedwait(&d->news, &d->lock, &until);
        pthread_mutex_unlock(&d->lock);
        if (waited == ETIMEDOUT)
            return take(d, events, most);
    }
}

void drawbridge_event_free(drawbridge_event *ev)
{
    free(ev->text);
    free(ev->failure);
    ev->text = ev->failure = NULL;
}

/* ---- figures ---- */

void drawbridge_stats_get(drawbridge *d, drawbridge_stats *out)
{
    engine_counters c;
    engine_count(d->engine, &c);
    *out = (drawbridge_stats){.running = c.running, .waiting = c.waiting, .pages = c.pages, .free_pages = c.free_pages,
                              .idle_pages = c.idle_pages, .prompt_tokens = c.prompt_tokens, .cached_tokens = c.cached_tokens,
                              .output_tokens = c.output_tokens, .steps = c.steps, .preemptions = c.preemptions};
}

const char *drawbridge_version(void)
{
    return DRAWBRIDGE_VERSION;
}
