/* Decision 4 for the whole engine: requests, greedy and sampled, alone against the same in random batches with random chunk sizes,
 * cache hits, forced preemption, cancelled neighbours, speculation off, 1, 3, 5 and auto, on 1 and 2 threads. Tokens and log-probabilities
 * are compared bit for bit; one difference is a failure.
 *
 *     bench_same_bytes [REQUESTS [SEED [MODEL [KERNELS]]]]      500 requests by default; the tests run a smaller number
 *
 * KERNELS is a name as of --kernels, or "all": each of this machine's in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/engine.h"
#include "engine/generate.h"

/* The device under test: tests/gpu builds this for others. */
#ifndef RIG_DEVICE
#define RIG_DEVICE cpu_device_create
#endif

enum { CONTEXT = 640, LONGEST_PROMPT = 420, LONGEST_ANSWER = 40, ROWS = 96 };

/* A request and what it gives alone. */
typedef struct job {
    int32_t prompt[LONGEST_PROMPT];
    int prompt_count, max_tokens;
    sampler_params params;
    sampler_bias bias[2];
    int32_t answer[LONGEST_ANSWER];
    double logprobs[LONGEST_ANSWER];
    int answer_count;
    int got;              /* tokens compared in the run at hand */
    bool cancelled, ended;
} job;

typedef struct setting {
    const char *name;
    int threads, max_running, kv_tokens;
    const char *spec;
    bool disturb, no_cache, cancel;
} setting;

static const setting settings[] = {
    {"batches of 8", 2, 8, 16384, "off", false, false, false},
    {"batches of 16, no prefix cache, 1 thread", 1, 16, 16384, "off", false, true, false},
    {"random chunks and preemption", 2, 12, 16384, "off", true, false, false},
    {"small cache: eviction and preemption", 2, 16, 2048, "off", false, false, false},
    {"1 draft", 2, 8, 16384, "1", false, false, false},
    {"3 drafts, 1 thread", 1, 8, 16384, "3", false, false, false},
    {"3 drafts, random chunks, depth and preemption", 2, 12, 8192, "3", true, false, false},
    {"5 drafts, small cache", 2, 10, 2304, "5", false, false, false},
    {"5 drafts, cancelled neighbours, random chunks", 2, 12, 4096, "5", true, false, true},
    {"8 drafts, batch of 1", 2, 1, 4096, "8", false, false, false},
    {"auto", 2, 8, 16384, "auto", false, false, false},
};

typedef struct lab {
    model *model;
    device *devices[2];   /* with 1 and 2 threads */
    forward *forwards[2];
    job *jobs;
    int count;
    uint64_t seed, drawn;
} lab;

static uint64_t draw(lab *l, uint64_t below)
{
    return random_word(l->seed, 1, l->drawn++) % below;
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "bench_same_bytes: %s: %s\n", what, why);
    exit(1);
}

/* Prompts begin like one of a few others, so that the cache has something to find. */
static void make_prompt(lab *l, job *j)
{
    uint64_t family = draw(l, 6);
    int shared = (int)draw(l, 300), own = 1 + (int)draw(l, 120);
    j->prompt_count = shared + own;
    for (int i = 0; i < shared; i++)
        j->prompt[i] = (int32_t)(random_word(l->seed, 100 + family, (uint64_t)i) % 4000);
    for (int i = 0; i < own; i++)
        j->prompt[shared + i] = (int32_t)draw(l, 4000);
}

static void make_params(lab *l, job *j)
{
    sampler_params p = sampler_params_default(4086);
    p.seed = draw(l, UINT64_MAX);
    p.temperature = draw(l, 3) == 0 ? 0 : 0.2 + 0.2 * (double)draw(l, 8);
    p.top_k = draw(l, 3) == 0 ? 1 + (int)draw(l, 60) : 0;
    p.top_p = draw(l, 3) == 0 ? 0.3 + 0.1 * (double)draw(l, 7) : 1;
    p.min_p = draw(l, 4) == 0 ? 0.05 : 0;
    p.repetition_penalty = draw(l, 4) == 0 ? 1.2 : 1;
    p.frequency_penalty = draw(l, 4) == 0 ? 0.5 : 0;
    p.presence_penalty = draw(l, 4) == 0 ? -0.5 : 0;
    p.logprobs = draw(l, 3) == 0 ? (int)draw(l, 4) : -1;
    if (draw(l, 4) == 0) {
        j->bias[0] = (sampler_bias){(int32_t)draw(l, 4000), 5};
        j->bias[1] = (sampler_bias){(int32_t)draw(l, 4000), -100};
        p.bias = j->bias;
        p.bias_count = 2;
    }
    j->params = p;
    j->max_tokens = 1 + (int)draw(l, LONGEST_ANSWER);
}

static bool is_end(const model_config *c, int32_t id)
{
    for (int i = 0; i < c->eos_count; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

/* What the request gives alone: one sequence, no batching, no cache, no drafts, by the code that `run` uses. */
static void answer_alone(lab *l, session *s, generator *g, job *j)
{
    error err = {0};
    session_truncate(s, 0);
    if (!generator_begin(g, s, &j->params, j->prompt, j->prompt_count, j->max_tokens, &err))
        fail("alone", err.text);
    while (j->answer_count < j->max_tokens) {
        sampler_result r;
        if (!generator_next(g, &r, &err))
            fail("alone", err.text);
        j->logprobs[j->answer_count] = r.logprob;
        j->answer[j->answer_count++] = r.token;
        if (is_end(&l->model->config, r.token))
            return;
    }
}

static void answer_all_alone(lab *l)
{
    error err = {0};
    generator g = {0};
    kv_pages *pages = kv_pages_create(l->devices[0], CONTEXT, &err);
    session *s = pages ? session_create(l->forwards[0], pages, CONTEXT, ROWS, &err) : NULL;
    if (!s)
        fail("alone", err.text);
    for (int i = 0; i < l->count; i++)
        answer_alone(l, s, &g, &l->jobs[i]);
    generator_free(&g);
    session_destroy(s);
    kv_pages_destroy(pages);
}

/* Compares an event with what its request gave alone; returns the differences. */
static int check_event(const engine_event *ev)
{
    job *j = ev->user;
    int wrong = 0;
    for (int i = 0; i < ev->count; i++, j->got++) {
        bool equal = j->got < j->answer_count && ev->tokens[i] == j->answer[j->got];
        if (equal && ev->results)
            equal = memcmp(&ev->results[i].logprob, &j->logprobs[j->got], sizeof(double)) == 0;
        wrong += !equal;
    }
    if (ev->finish == ENGINE_FAILED)
        fail("engine", ev->failure);
    if (ev->finish) {
        j->ended = true;
        wrong += !j->cancelled && j->got != j->answer_count;
    }
    return wrong;
}

static void submit(lab *l, engine *e, job *j, const setting *set, uint64_t *ids, int index)
{
    error err = {0};
    engine_request r = {.prompt = j->prompt, .prompt_count = j->prompt_count, .max_tokens = j->max_tokens, .params = j->params,
                        .priority = (int)draw(l, 3), .user = j};
    if (engine_submit(e, &r, &ids[index], &err) != ENGINE_ACCEPTED)
        fail(set->name, err.text);
}

static int drain(engine *e)
{
    engine_event ev;
    int wrong = 0;
    while (engine_poll(e, &ev, 1) == 1) {
        wrong += check_event(&ev);
        engine_event_free(&ev);
    }
    return wrong;
}

/* Submits the jobs in random order and at random times, and computes until all have ended. */
static int run_jobs(lab *l, engine *e, const setting *set)
{
    uint64_t *ids = mem_alloc((size_t)l->count, sizeof *ids);
    int *order = mem_alloc((size_t)l->count, sizeof *order);
    int wrong = 0, next = 0;
    for (int i = 0; i < l->count; i++) {
        int other = (int)draw(l, (uint64_t)i + 1);
        order[i] = order[other];
        order[other] = i;
        l->jobs[i].got = 0;
        l->jobs[i].ended = l->jobs[i].cancelled = false;
    }
    for (bool busy = true; busy || next < l->count;) {
        for (uint64_t more = draw(l, 6); more > 0 && next < l->count; more--, next++)
            submit(l, e, &l->jobs[order[next]], set, ids, next);
        if (set->cancel && next > 0 && draw(l, 4) == 0) {
            int victim = (int)draw(l, (uint64_t)next);
            l->jobs[order[victim]].cancelled = true;
            engine_cancel(e, ids[victim]);
        }
        busy = engine_step(e);
        wrong += drain(e);
    }
    for (int i = 0; i < l->count; i++)
        wrong += !l->jobs[i].ended;
    free(ids);
    free(order);
    return wrong;
}

static int run_setting(lab *l, const setting *set)
{
    error err = {0};
    engine_options options = {.max_running = set->max_running, .max_waiting = l->count + 1, .max_context = CONTEXT,
                              .kv_tokens = set->kv_tokens, .no_prefix_cache = set->no_cache,
                              .disturb_seed = set->disturb ? l->seed + 77 : 0};
    if (!spec_options_parse(set->spec, &options.spec, &err))
        fail(set->name, err.text);
    engine *e = engine_create(l->forwards[set->threads - 1], &options, &err);
    if (!e)
        fail(set->name, err.text);
    uint64_t started = clock_now_us();
    int wrong = run_jobs(l, e, set);
    engine_counters c;
    engine_count(e, &c);
    uint64_t tried = 0, right = 0;
    for (int i = 0; i < SPEC_DEPTH_MOST; i++) {
        tried += c.spec.tried[i];
        right += c.spec.right[i];
    }
    printf("%-46s %4d  %6.2f s  cached %5.1f%%  preempted %4llu  evicted %4llu  drafts right %5.1f%% of %llu\n", set->name, wrong,
           (double)(clock_now_us() - started) * 1e-6, 100.0 * (double)c.cached_tokens / (double)(c.prompt_tokens + !c.prompt_tokens),
           (unsigned long long)c.preemptions, (unsigned long long)c.evicted_pages, tried ? 100.0 * (double)right / (double)tried : 0.0,
           (unsigned long long)tried);
    if (c.pages != c.free_pages + c.idle_pages) {
        printf("%-46s %d pages are still in use\n", set->name, c.pages - c.free_pages - c.idle_pages);
        wrong++;
    }
    fflush(stdout);
    engine_destroy(e);
    return wrong;
}

/* kernels NULL: free choice */
static void open_devices(lab *l, const char *path, const char *kernels)
{
    error err = {0};
    for (int i = 0; i < 2; i++) {
        device_limits limits = {.kv = KV_BF16, .threads = i + 1, .max_rows = ROWS, .max_context = CONTEXT, .kernels = kernels};
        l->devices[i] = RIG_DEVICE(l->model, &limits, &err);
        if (!l->devices[i] && err.code == ERROR_DEVICE) {
            printf("skipped: %s\n", err.text);
            exit(77);
        }
        l->forwards[i] = l->devices[i] ? forward_create(l->devices[i], ROWS, ROWS, &err) : NULL;
        if (!l->forwards[i])
            fail(path, err.text);
    }
}

static void close_devices(lab *l)
{
    for (int i = 0; i < 2; i++) {
        forward_destroy(l->forwards[i]);
        l->devices[i]->ops->destroy(l->devices[i]);
    }
}

/* Everything with one choice of kernels; returns the differences. */
static int run_kernels(lab *l, const char *path, const char *kernels)
{
    int wrong = 0;
    open_devices(l, path, kernels);
    for (int i = 0; i < l->count; i++)
        l->jobs[i].answer_count = 0;
    answer_all_alone(l);
    if (kernels)
        printf("kernels: %s\n", kernels);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        wrong += run_setting(l, &settings[i]);
    close_devices(l);
    return wrong;
}

/* The i-th name of kernels; the names are static. */
static const char *kernels_name(lab *l, const char *path, int i)
{
    open_devices(l, path, NULL);
    const char *name = dispatch_kernels_name(l->devices[0]->dispatch, i);
    close_devices(l);
    return name;
}

int main(int count, char **arguments)
{
    lab l = {.count = count > 1 ? atoi(arguments[1]) : 500, .seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1};
    if (l.count < 1 || l.count > 100000)
        fail("REQUESTS", "expected a number from 1 to 100000");
    const char *path = count > 3 ? arguments[3] : SOURCE_DIR "/models/nano", *kernels = count > 4 ? arguments[4] : NULL, *name;
    error err = {0};
    l.model = model_open(path, &err);
    if (!l.model)
        fail(path, err.text);
    l.jobs = mem_alloc((size_t)l.count, sizeof *l.jobs);
    for (int i = 0; i < l.count; i++) {
        make_prompt(&l, &l.jobs[i]);
        make_params(&l, &l.jobs[i]);
    }
    printf("%d requests, seed %llu; differences from the same request alone:\n", l.count, (unsigned long long)l.seed);
    int wrong = 0;
    if (kernels && strcmp(kernels, "all") == 0)
        for (int i = 0; (name = kernels_name(&l, path, i)); i++)
            wrong += run_kernels(&l, path, name);
    else
        wrong = run_kernels(&l, path, kernels);
    printf("%s: %d differences\n", wrong ? "FAILED" : "passed", wrong);
    model_close(l.model);
    free(l.jobs);
    return wrong ? 1 : 0;
}
