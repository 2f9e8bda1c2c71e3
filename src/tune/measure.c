/* Measuring variants of one key.
 *
 * All variants take turns, so that whatever else the machine does hits them alike, and go on through the matrices that have the key, so
 * that weights come from where a step finds them: from memory when they do not fit a cache. The time is split into three parts; a
 * variant's time is the best of its three medians, which forgets a disturbance of less than half the time. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/kv_pages.h"
#include "formats/scalar.h"
#include "tune/tune.h"

enum {
    VARIANTS_MOST = 64,
    PARTS = 3,
    LEAST_ROUNDS = 3,      /* of a part */
    MOST_ROUNDS = 64,
    SAMPLE_US = 200,       /* least time between two looks at the clock */
    TRIES = 3,             /* of the warm-up */
    HOPELESS = 4,          /* times slower than the fastest: not measured any further */
    CONTEXT_FACTOR = 4,    /* positions behind the rows, in units of index_topk */
};

struct tune_bench {
    forward *f;
    uint64_t (*clock)(void);
    int max_rows, context;
    kv_pages *pages;
    int32_t *tokens, *positions, *sequences; /* [max_rows] */
    int32_t *page_table;
    const int32_t *page_tables[1];
    float *in, *out;      /* device memory for linear keys */
    size_t in_floats, out_floats;
    dispatch_work *works; /* [work_count] of the key being measured */
    int work_count, work_capacity;
    int turn;             /* next of them */
};

/* ---- values ---- */

static float value_at(uint64_t seed, uint64_t i)
{
    return (float)(2 * random_uniform(7, seed, i) - 1);
}

static bool fill(device *d, float *memory, size_t count, uint64_t seed)
{
    enum { BLOCK = 1 << 14 };
    float *host = mem_try_alloc(BLOCK, sizeof *host);
    for (size_t i = 0; host && i < BLOCK; i++)
        host[i] = value_at(seed, i);
    for (size_t done = 0; host && done < count; done += BLOCK)
        d->ops->write(d, memory + done, host, (count - done < BLOCK ? count - done : BLOCK) * sizeof *host);
    free(host);
    return host != NULL;
}

/* One value as the cache stores it. */
static uint8_t *put_value(kv_dtype cache, float value, uint8_t *to)
{
    if (cache == KV_F32) {
        memcpy(to, &value, 4);
        return to + 4;
    }
    uint16_t half = bf16_encode(value);
    memcpy(to, &half, 2);
    return to + 2;
}

/* An entry of the cache: `scaled` values that fp8 stores in 8 bits with a scale per group, then plain ones. */
static void fill_entry(kv_dtype cache, int scaled, int group, int plain, uint64_t seed, uint8_t *to)
{
    for (int i = 0; i < scaled; i++)
        if (cache == KV_FP8)
            *to++ = (uint8_t)(random_word(7, seed, (uint64_t)i) % 0x70 | (i % 2 ? 0x80 : 0)); /* no NaN */
        else
            to = put_value(cache, value_at(seed, (uint64_t)i), to);
    for (int i = 0; cache == KV_FP8 && i < scaled; i += group) {
        float scale = 1.0f / 64;
        memcpy(to, &scale, 4);
        to += 4;
    }
    for (int i = 0; i < plain; i++)
        to = put_value(cache == KV_F32 ? KV_F32 : KV_BF16, value_at(seed + 1, (uint64_t)i), to);
}

/* Every page gets the same content: valid keys of all layers. */
static bool fill_pages(tune_bench *b)
{
    device *d = b->f->device;
    const kv_layout *k = &d->layout;
    uint8_t *page = mem_try_alloc(k->page_bytes, 1);
    if (!page)
        return false;
    for (int layer = 0; layer < k->layers; layer++) {
        bool index = layer == d->model->config.layers || d->model->config.full_index[layer];
        for (int i = 0; i < KV_PAGE_TOKENS; i++) {
            uint64_t seed = (uint64_t)(layer * KV_PAGE_TOKENS + i) * 4;
            uint8_t *latent = page + k->latent_offset[layer] + (size_t)i * k->latent_bytes;
            fill_entry(k->dtype, k->latent_dim, KV_SCALE_GROUP, k->rope_dim, seed, latent);
            if (index)
                fill_entry(k->dtype, k->index_dim, k->index_dim, 0, seed + 2, page + k->index_offset[layer] + (size_t)i * k->index_bytes);
        }
    }
    for (int i = 0; i < b->pages->count; i++)
        d->ops->write(d, b->pages->memory + (size_t)i * k->page_bytes, page, k->page_bytes);
    free(page);
    return true;
}

/* ---- the bench ---- */

static void grow_linear(void *context, const dispatch_work *work)
{
    tune_bench *b = context;
    size_t in = (size_t)b->max_rows * (size_t)work->key.k, out = (size_t)b->max_rows * (size_t)work->key.n;
    if (work->key.operation != dispatch_linear)
        return;
    b->in_floats = in > b->in_floats ? in : b->in_floats;
    b->out_floats = out > b->out_floats ? out : b->out_floats;
}

static bool fill_activations(tune_bench *b)
{
    const model_config *m = &b->f->model->config;
    device *d = b->f->device;
    activations *a = &b->f->a;
    size_t rows = (size_t)b->max_rows, width = (size_t)m->dense_intermediate;
    size_t expert_width = (size_t)(m->experts_per_token * m->expert_intermediate);
    width = expert_width > width ? expert_width : width;
    return fill(d, a->x, rows * (size_t)m->hidden_size, 1) && fill(d, a->h, rows * (size_t)m->hidden_size, 2) &&
           fill(d, a->q_latent, rows * (size_t)m->q_lora_rank, 3) &&
           fill(d, a->q, rows * (size_t)(m->heads * (m->nope_dim + m->rope_dim)), 4) && fill(d, a->mlp_act, rows * width, 5) &&
           fill(d, b->in, b->in_floats, 6) && fill(d, a->rope, rows * (size_t)m->rope_dim, 8);
}

/* Positions the rows attend to when the indexer is not asked: spread evenly over what they see. */
static void fill_selected(tune_bench *b, int rows)
{
    const model_config *m = &b->f->model->config;
    device *d = b->f->device;
    int32_t *list = mem_alloc((size_t)m->index_topk, sizeof *list);
    for (int row = 0; row < rows; row++) {
        int seen = b->positions[row] + 1;
        int32_t count = seen < m->index_topk ? seen : m->index_topk;
        for (int i = 0; i < count; i++)
            list[i] = (int32_t)((int64_t)i * seen / count);
        d->ops->write(d, b->f->a.selected + (size_t)row * (size_t)m->index_topk, list, (size_t)count * sizeof *list);
        d->ops->write(d, b->f->a.selected_count + row, &count, sizeof count);
    }
    free(list);
}

static bool allocate(tune_bench *b, error *err)
{
    device *d = b->f->device;
    dispatch_visit(d->model, d->layout.dtype, grow_linear, b);
    b->in = d->ops->alloc(d, b->in_floats * sizeof(float));
    b->out = d->ops->alloc(d, b->out_floats * sizeof(float));
    b->pages = kv_pages_create(d, b->context, err);
    return b->in && b->out && b->pages && fill_pages(b) && fill_activations(b);
}

tune_bench *tune_bench_create(forward *f, int max_rows, uint64_t (*clock)(void), error *err)
{
    const model_config *m = &f->model->config;
    tune_bench *b = mem_alloc(1, sizeof *b);
    *b = (tune_bench){.f = f, .clock = clock, .max_rows = max_rows, .context = CONTEXT_FACTOR * m->index_topk};
    b->context = b->context < max_rows ? max_rows : b->context;
    b->context = b->context > m->max_positions ? m->max_positions : b->context;
    b->tokens = mem_alloc((size_t)max_rows, sizeof *b->tokens);
    b->positions = mem_alloc((size_t)max_rows, sizeof *b->positions);
    b->sequences = mem_alloc((size_t)max_rows, sizeof *b->sequences);
    b->page_table = mem_alloc((size_t)(b->context / KV_PAGE_TOKENS) + 1, sizeof *b->page_table);
    for (int i = 0; i <= b->context / KV_PAGE_TOKENS; i++)
        b->page_table[i] = i;
    b->page_tables[0] = b->page_table;
    if (allocate(b, err))
        return b;
    tune_bench_destroy(b);
    if (!err->code)
        error_set(err, ERROR_FIT, "no memory to measure %d rows; leave the largest of --rows out", max_rows);
    return NULL;
}

void tune_bench_destroy(tune_bench *b)
{
    if (!b)
        return;
    device *d = b->f->device;
    kv_pages_destroy(b->pages);
    d->ops->free(d, b->in);
    d->ops->free(d, b->out);
    free(b->works);
    free(b->tokens);
    free(b->positions);
    free(b->sequences);
    free(b->page_table);
    free(b);
}

/* ---- one key ---- */

typedef struct collection {
    tune_bench *b;
    const dispatch_key *key;
    bool found, routed; /* any; a routed expert: those are kept then, as a step computes several at once */
    bool down;          /* the first one is the down matrix of its expert: such are kept */
} collection;

static bool has_key(const dispatch_work *work, const dispatch_key *key)
{
    return work->key.operation == key->operation && work->key.n == key->n && work->key.k == key->k &&
           strcmp(work->key.format, key->format) == 0;
}

static bool is_down(const dispatch_work *work)
{
    return work->mlp && work->w == &work->mlp->down;
}

/* Gate and up are computed together, so one of them stands for both. */
static bool is_second(const dispatch_work *work)
{
    return work->mlp && work->w == &work->mlp->up && work->mlp->gate.format == work->mlp->up.format;
}

static void look_at_work(void *context, const dispatch_work *work)
{
    collection *c = context;
    if (!has_key(work, c->key) || (c->found && c->routed >= work->routed))
        return;
    c->found = true;
    c->routed = work->routed;
    c->down = is_down(work);
}

static void collect_work(void *context, const dispatch_work *work)
{
    const collection *c = context;
    tune_bench *b = c->b;
    if (!has_key(work, c->key) || work->routed != c->routed || is_down(work) != c->down || is_second(work))
        return;
    if (b->work_count == b->work_capacity) {
        b->work_capacity = b->work_capacity ? 2 * b->work_capacity : 64;
        b->works = mem_grow(b->works, (size_t)b->work_capacity, sizeof *b->works);
    }
    b->works[b->work_count++] = *work;
}

/* Works of a key that one call computes. */
static int group_size(const tune_bench *b)
{
    int group = b->works[0].routed ? b->f->model->config.experts_per_token : 1;
    return group < b->work_count ? group : b->work_count;
}

static void prepare_key(tune_bench *b, const dispatch_key *key, int rows)
{
    collection c = {b, key, false, false, false};
    device *d = b->f->device;
    b->work_count = b->turn = 0;
    dispatch_visit(d->model, d->layout.dtype, look_at_work, &c);
    dispatch_visit(d->model, d->layout.dtype, collect_work, &c);
    for (int i = 0; i < rows; i++)
        b->positions[i] = b->context - rows + i;
    fill_selected(b, rows);
}

/* Time of `calls` calls per unit of work. */
static double time_calls(tune_bench *b, int rows, int calls)
{
    device *d = b->f->device;
    step s = {.rows = rows, .tokens = b->tokens, .positions = b->positions, .sequences = b->sequences, .page_tables = b->page_tables,
              .pages = b->pages->memory};
    device_trial t = {.count = group_size(b), .rows = rows, .s = &s, .a = &b->f->a, .in = b->in, .out = b->out};
    uint64_t began = b->clock();
    for (int i = 0; i < calls; i++) {
        if (b->turn + t.count > b->work_count)
            b->turn = 0;
        t.works = b->works + b->turn;
        b->turn += t.count;
        d->ops->exercise(d, &t);
    }
    return (double)(b->clock() - began) / calls / t.count;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_times);
    return values[count / 2];
}

/* The variants of one measurement. */
typedef struct race {
    tune_bench *b;
    dispatch_row *row;
    int rows, count, calls;
    const int *variants;
    bool out[VARIANTS_MOST];  /* hopeless */
    double samples[VARIANTS_MOST][MOST_ROUNDS];
} race;

static const double LEAST_US = 0.001; /* nothing takes no time */

static double run_variant(race *r, int i, int calls)
{
    dispatch_set(r->b->f->device->dispatch, r->row, r->variants[i]);
    double us = time_calls(r->b, r->rows, calls);
    return us > LEAST_US ? us : LEAST_US;
}

/* First, how long they take at all: the least of some tries, because one alone may be unlucky. */
static void warm_up(race *r, tune_time *times)
{
    for (int try = 0; try < TRIES; try++)
        for (int i = 0; i < r->count; i++) {
            double us = run_variant(r, i, 1);
            us = us < SAMPLE_US ? run_variant(r, i, 8) : us; /* the clock has whole microseconds */
            if (try == 0 || us < times[i].us)
                times[i] = (tune_time){us, us};
        }
    double fastest = times[0].us;
    for (int i = 1; i < r->count; i++)
        fastest = times[i].us < fastest ? times[i].us : fastest;
    for (int i = 0; i < r->count; i++)
        r->out[i] = times[i].us > HOPELESS * fastest;
    double wanted = SAMPLE_US / (fastest * group_size(r->b));
    r->calls = wanted < 1 ? 1 : wanted > 100000 ? 100000 : (int)wanted + 1;
}

static bool stopped(const volatile sig_atomic_t *stop)
{
    return stop && *stop;
}

/* One part: rounds in which every variant runs once, in alternating order. */
static bool run_part(race *r, bool first, uint64_t until_us, const volatile sig_atomic_t *stop, tune_time *times)
{
    int rounds = 0;
    for (; rounds < MOST_ROUNDS && (rounds < LEAST_ROUNDS || r->b->clock() < until_us); rounds++) {
        if (stopped(stop))
            return false;
        for (int j = 0; j < r->count; j++) {
            int i = rounds % 2 ? r->count - 1 - j : j;
            if (!r->out[i])
                r->samples[i][rounds] = run_variant(r, i, r->calls);
        }
    }
    for (int i = 0; i < r->count; i++) {
        if (r->out[i])
            continue;
        double typical = median(r->samples[i], rounds), least = r->samples[i][0]; /* sorted by now */
        times[i].us = first || typical < times[i].us ? typical : times[i].us;
        times[i].least = first || least < times[i].least ? least : times[i].least;
    }
    return true;
}

bool tune_measure(tune_bench *b, dispatch_row *row, int rows, const int *variants, int count, double seconds,
                  const volatile sig_atomic_t *stop, tune_time *times)
{
    race *r = mem_alloc(1, sizeof *r);
    *r = (race){.b = b, .row = row, .rows = rows, .count = count < VARIANTS_MOST ? count : VARIANTS_MOST, .variants = variants};
    prepare_key(b, &row->key, rows);
    uint64_t began = b->clock();
    bool ok = !stopped(stop);
    if (ok)
        warm_up(r, times);
    for (int part = 0; ok && part < PARTS; part++)
        ok = run_part(r, part == 0, began + (uint64_t)(seconds * 1e6 * (part + 1) / PARTS), stop, times);
    free(r);
    return ok;
}
