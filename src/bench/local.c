#include "bench/local.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random.h"

enum { TOKEN_SEED = 1 };

struct local_bench {
    forward *forward;
    local_options options;
    kv_pages *pages;
    sampler *sampler;
    sampler_params params;
    fill *fill;
    cost_counter counter;
    int32_t **tables;   /* [max_batch] the pages of each sequence */
    int *filled;        /* [max_batch] positions whose entries are those of a depth */
    int32_t *tokens, *positions, *sequences, *logit_rows; /* [rows] of the step being composed */
    progress *progress; /* of the test that runs */
    int steps_done;
};

static int pages_of(int tokens)
{
    return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

uint64_t local_cache_bytes(const kv_layout *k, const local_options *o)
{
    return (uint64_t)pages_of(o->max_context) * (uint64_t)o->max_batch * k->page_bytes;
}

static bool take_pages(local_bench *b, error *err)
{
    int pages = pages_of(b->options.max_context);
    for (int i = 0; i < b->options.max_batch; i++) {
        b->tables[i] = mem_alloc((size_t)pages, sizeof **b->tables);
        for (int j = 0; j < pages; j++)
            if (!kv_pages_take(b->pages, &b->tables[i][j]))
                return error_set(err, ERROR_FIT, "the KV cache is too small for %d sequences", b->options.max_batch);
    }
    return true;
}

local_bench *local_create(forward *f, const local_options *o, error *err)
{
    local_bench *b = mem_alloc(1, sizeof *b);
    size_t batch = (size_t)o->max_batch, rows = (size_t)f->max_rows;
    int vocab = f->model->config.vocab_size;
    b->forward = f;
    b->options = *o;
    b->tables = mem_alloc(batch, sizeof *b->tables);
    b->filled = mem_alloc(batch, sizeof *b->filled);
    b->tokens = mem_alloc(rows, sizeof *b->tokens);
    b->positions = mem_alloc(rows, sizeof *b->positions);
    b->sequences = mem_alloc(rows, sizeof *b->sequences);
    b->logit_rows = mem_alloc(rows, sizeof *b->logit_rows);
    b->params = sampler_params_default(vocab);
    b->params.temperature = 0;
    cost_counter_init(&b->counter, f, o->exact, o->max_context);
    b->sampler = sampler_create(vocab, err);
    b->fill = fill_create(f->device, err);
    b->pages = kv_pages_create(f->device, (int64_t)pages_of(o->max_context) * KV_PAGE_TOKENS * o->max_batch, err);
    if (b->sampler && b->fill && b->pages && take_pages(b, err))
        return b;
    local_destroy(b);
    return NULL;
}

void local_destroy(local_bench *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->options.max_batch; i++)
        free(b->tables[i]);
    kv_pages_destroy(b->pages);
    fill_destroy(b->fill);
    sampler_free(b->sampler);
    cost_counter_free(&b->counter);
    free(b->tables);
    free(b->filled);
    free(b->tokens);
    free(b->positions);
    free(b->sequences);
    free(b->logit_rows);
    free(b);
}

/* ---- steps ---- */

static int32_t token_at(const local_bench *b, int sequence, int position)
{
    return (int32_t)(random_word(TOKEN_SEED, (uint64_t)sequence, (uint64_t)position) % (uint64_t)b->forward->model->config.vocab_size);
}

static void add_row(local_bench *b, step *s, int sequence, int position)
{
    b->tokens[s->rows] = token_at(b, sequence, position);
    b->positions[s->rows] = position;
    b->sequences[s->rows++] = sequence;
}

static step empty_step(const local_bench *b)
{
    return (step){.tokens = b->tokens, .positions = b->positions, .sequences = b->sequences,
                  .page_tables = (const int32_t *const *)b->tables, .pages = b->pages->memory, .keep_keys = true};
}

/* The logits of the last rows, and a greedy sample of each. */
static bool sample_rows(local_bench *b, const step *s, int count, error *err)
{
    size_t vocab = (size_t)b->forward->model->config.vocab_size;
    for (int i = 0; i < count; i++)
        b->logit_rows[i] = s->rows - count + i;
    const float *logits = count ? forward_logits(b->forward, count, b->logit_rows) : NULL;
    for (int i = 0; i < count; i++) {
        sampler_result result;
        uint64_t position = (uint64_t)s->positions[b->logit_rows[i]] + 1;
        if (!sampler_sample(b->sampler, &b->params, NULL, logits + (size_t)i * vocab, position, &result, err))
            return false;
    }
    return true;
}

/* Time by the clock, and of the processor. */
typedef struct times {
    double seconds, processor_seconds;
} times;

static double processor_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* One step whose last `logits` rows are sampled. taken: its time is added there; NULL: it is counted instead. */
static bool run_step(local_bench *b, const step *s, int logits, times *taken, error *err)
{
    double processor = processor_now();
    uint64_t begun = clock_now_us();
    if (taken)
        forward_run(b->forward, s);
    else
        cost_count_step(&b->counter, b->forward, s, logits);
    if (!sample_rows(b, s, logits, err))
        return false;
    if (taken) {
        taken->seconds += (double)(clock_now_us() - begun) * 1e-6;
        taken->processor_seconds += processor_now() - processor;
    }
    progress_update(b->progress, ++b->steps_done);
    if (b->options.stop && *b->options.stop)
        return error_set(err, ERROR_INTERRUPTED, "interrupted");
    return true;
}

static bool run_prompt(local_bench *b, const local_test *t, times *taken, error *err)
{
    int end = t->depth + t->prompt;
    for (int at = t->depth; at < end;) {
        step s = empty_step(b);
        while (s.rows < b->options.chunk && at < end)
            add_row(b, &s, 0, at++);
        if (!run_step(b, &s, at == end, taken, err))
            return false;
    }
    return true;
}

static bool run_generation(local_bench *b, const local_test *t, times *taken, error *err)
{
    for (int i = 0; i < t->generate; i++) {
        step s = empty_step(b);
        for (int sequence = 0; sequence < t->batch; sequence++)
            add_row(b, &s, sequence, t->depth + i);
        if (!run_step(b, &s, s.rows, taken, err))
            return false;
    }
    return true;
}

/* ---- depth ---- */

/* Computes positions first .. end - 1 of a sequence. gathers: for the fill. */
static bool compute_depth(local_bench *b, int sequence, int first, int end, bool gathers, error *err)
{
    forward *f = b->forward;
    if (gathers)
        b->fill->count = 0;
    while (first < end) {
        step s = empty_step(b);
        while (s.rows < b->options.chunk && first < end)
            add_row(b, &s, sequence, first++);
        f->tap = gathers ? fill_tap : NULL;
        f->tap_context = b->fill;
        forward_run(f, &s);
        f->tap = NULL;
        if (gathers)
            fill_gathered(b->fill, s.rows);
        b->filled[sequence] = first;
        progress_update(b->progress, first);
        if (b->options.stop && *b->options.stop)
            return error_set(err, ERROR_INTERRUPTED, "interrupted");
    }
    return true;
}

static bool fill_sequence(local_bench *b, int sequence, int depth, error *err)
{
    bool mixes = !b->options.real_depth && depth > FILL_REAL, gathers = mixes && b->fill->count < FILL_REAL;
    int real = mixes ? FILL_REAL : depth, first = gathers ? 0 : b->filled[sequence];
    if (first < real && !compute_depth(b, sequence, first, real, gathers, err))
        return false;
    for (int end; (first = b->filled[sequence]) < depth;) {
        int page = first / KV_PAGE_TOKENS;
        end = (page + 1) * KV_PAGE_TOKENS < depth ? (page + 1) * KV_PAGE_TOKENS : depth;
        fill_page(b->fill, b->forward->device, b->pages->memory + (size_t)b->tables[sequence][page] * b->forward->device->layout.page_bytes,
                  page * KV_PAGE_TOKENS, first, end, sequence);
        b->filled[sequence] = end;
        progress_update(b->progress, end);
        if (b->options.stop && *b->options.stop)
            return error_set(err, ERROR_INTERRUPTED, "interrupted");
    }
    return true;
}

static bool fill_depth(local_bench *b, const local_test *t, error *err)
{
    bool ok = true;
    for (int i = 0; ok && i < t->batch; i++) {
        b->progress = progress_start("filling the cache", "tokens", t->depth);
        ok = fill_sequence(b, i, t->depth, err);
        progress_finish(b->progress);
        b->progress = NULL;
        if (b->filled[i] > t->depth)
            b->filled[i] = t->depth; /* the test writes behind its depth */
    }
    return ok;
}

/* ---- a test ---- */

static int steps_of(const local_bench *b, const local_test *t)
{
    return t->generate ? t->generate : (t->prompt + b->options.chunk - 1) / b->options.chunk;
}

bool local_run(local_bench *b, const local_test *t, local_result *out, error *err)
{
    bool (*run)(local_bench *, const local_test *, times *, error *) = t->generate ? run_generation : run_prompt;
    text name = {0};
    *out = (local_result){.test = *t, .repetitions = b->options.repetitions};
    b->counter.sum = (cost){0};
    bool ok = fill_depth(b, t, err);
    local_test_name(t, &name);
    b->progress = ok ? progress_start(name.data, "steps", steps_of(b, t) * (b->options.repetitions + 1.0)) : NULL;
    b->steps_done = 0;
    ok = ok && run(b, t, NULL, err);
    for (int i = 0; ok && i < b->options.repetitions; i++) {
        times taken = {0};
        ok = run(b, t, &taken, err);
        out->seconds[i] = taken.seconds;
        out->processor_seconds[i] = taken.processor_seconds;
    }
    if (b->progress)
        progress_finish(b->progress);
    b->progress = NULL;
    out->cost = b->counter.sum;
    text_free(&name);
    return ok;
}
