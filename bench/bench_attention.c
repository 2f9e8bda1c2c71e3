/* Attention and the indexer at long context, on the shapes of glm-mini with random weights and a random cache: what index_select and
 * attend cost per row for prompts (rows of one sequence at its end) of 1 to 256 rows.
 *
 *     bench_attention [KV [THREADS [ROWS ...]]]       bf16, 2 threads and 1 8 64 256 rows by default
 *
 * Each number is the best of several calls. "cpu" is processor time of all threads, which a busy machine disturbs less than wall time.
 * GB/s: cache entries as stored, each once per call (indexer) or once per row (attention); GFLOP/s: two per product of the scores and of
 * the weighted sums, by processor time. The line of context 512 is the part that does not depend on the context: projections, and
 * attention over all positions without any scoring. The model line adds up 5 indexers and 12 attentions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "forward/forward.h"

enum { LONGEST = 32768, MOST_ROWS = 256, LAYER = 0, FULL_LAYERS = 5, BUDGET_MS = 700, MOST_CALLS = 200 };

/* The shapes that matter here; the MLP is never run. */
static model_config mini_config(void)
{
    model_config c = {
        .vocab_size = 1024, .hidden_size = 2048, .layers = 12, .heads = 16, .q_lora_rank = 768, .kv_lora_rank = 512, .nope_dim = 128,
        .rope_dim = 64, .v_dim = 128, .dense_intermediate = 4096, .expert_intermediate = 512, .experts = 64, .experts_per_token = 8,
        .shared_experts = 1, .expert_groups = 1, .expert_groups_kept = 1, .routed_scale = 1.0f, .norm_eps = 1e-5f,
        .latent_norm_eps = 1e-5f, .rope_theta = 1e6, .max_positions = LONGEST, .index_heads = 16, .index_dim = 128, .index_topk = 512,
    };
    static const int full[FULL_LAYERS] = {0, 1, 2, 6, 10};
    for (int i = 0; i < FULL_LAYERS; i++)
        c.full_index[full[i]] = true;
    return c;
}

static float *random_values(arena *memory, uint64_t seed, size_t count, float scale)
{
    float *v = arena_alloc(memory, count, sizeof *v);
    uint64_t key = random_key(seed, 0);
    for (size_t i = 0; i < count; i++) { /* a sum of three: bell-shaped enough */
        double sum = random_uniform_at(key, 3 * i) + random_uniform_at(key, 3 * i + 1) + random_uniform_at(key, 3 * i + 2);
        v[i] = scale * 2.0f * (float)(sum - 1.5);
    }
    return v;
}

static matrix random_matrix(arena *memory, uint64_t seed, int64_t rows, int64_t cols)
{
    size_t count = (size_t)(rows * cols);
    float *values = random_values(memory, seed, count, 0.02f);
    uint8_t *data = arena_alloc(memory, count, 2);
    format_of(FORMAT_BF16)->encode(values, rows, cols, 1.0f, data, NULL);
    return (matrix){format_of(FORMAT_BF16), rows, cols, data, NULL, 1.0f};
}

static float *ones(arena *memory, int count)
{
    float *v = arena_alloc(memory, (size_t)count, sizeof *v);
    for (int i = 0; i < count; i++)
        v[i] = 1.0f;
    return v;
}

static layer_weights random_layer(arena *memory, const model_config *c)
{
    layer_weights w = {.full_index = true};
    w.kv_b = random_matrix(memory, 1, (int64_t)c->heads * (c->nope_dim + c->v_dim), c->kv_lora_rank);
    w.o = random_matrix(memory, 2, c->hidden_size, (int64_t)c->heads * c->v_dim);
    w.indexer.q_b = random_matrix(memory, 3, (int64_t)c->index_heads * c->index_dim, c->q_lora_rank);
    w.indexer.k = random_matrix(memory, 4, c->index_dim, c->hidden_size);
    w.indexer.head_weights = random_matrix(memory, 5, c->index_heads, c->hidden_size);
    w.indexer.k_norm = ones(memory, c->index_dim);
    w.indexer.k_norm_bias = random_values(memory, 6, (size_t)c->index_dim, 0.1f);
    return w;
}

typedef struct lab {
    arena memory;
    model model;
    device *device;
    forward *forward;
    uint8_t *pages;
    int32_t table[LONGEST / KV_PAGE_TOKENS];
    const int32_t *tables[1];
    int32_t positions[MOST_ROWS], sequences[MOST_ROWS], tokens[MOST_ROWS];
} lab;

static void fail(const char *why)
{
    fprintf(stderr, "bench_attention: %s\n", why);
    exit(1);
}

/* The cache of one layer, pages in a scattered order. */
static void fill_pages(lab *l)
{
    const kv_layout *k = &l->device->layout;
    int pages = LONGEST / KV_PAGE_TOKENS;
    l->pages = l->device->ops->alloc(l->device, (size_t)pages * k->page_bytes);
    if (!l->pages)
        fail("no memory for the cache");
    arena scratch = {0};
    size_t spread = 4096;
    float *values = random_values(&scratch, 7, spread + (size_t)(k->latent_dim + k->rope_dim), 1.0f);
    for (int i = 0; i < pages; i++)
        l->table[i] = (int32_t)((i * 37) % pages);
    l->tables[0] = l->table;
    step s = {.page_tables = l->tables, .pages = l->pages, .sequences = l->sequences};
    for (int i = 0; i < LONGEST; i++) {
        const float *latent = values + random_word(8, (uint64_t)i, 0) % spread, *key = values + random_word(8, (uint64_t)i, 1) % spread;
        cpu_latent_store(k, latent, cpu_entry(k, &s, 0, i, k->latent_offset[LAYER], k->latent_bytes));
        cpu_index_key_store(k, key, cpu_entry(k, &s, 0, i, k->index_offset[LAYER], k->index_bytes));
    }
    arena_free(&scratch);
}

static void fill_activations(lab *l)
{
    const model_config *c = &l->model.config;
    activations *a = &l->forward->a;
    size_t hidden = (size_t)MOST_ROWS * (size_t)c->hidden_size, latent = (size_t)MOST_ROWS * (size_t)c->q_lora_rank;
    size_t q = (size_t)MOST_ROWS * (size_t)(c->heads * (c->nope_dim + c->rope_dim));
    memcpy(a->h, random_values(&l->memory, 9, hidden, 1.0f), hidden * sizeof(float));
    memcpy(a->q_latent, random_values(&l->memory, 10, latent, 1.0f), latent * sizeof(float));
    memcpy(a->q, random_values(&l->memory, 11, q, 1.0f), q * sizeof(float));
    for (size_t i = 0; i < (size_t)MOST_ROWS * (size_t)c->rope_dim; i += 2)
        a->rope[i] = 1.0f;
}

static void lab_open(lab *l, kv_dtype kv, int threads)
{
    error err = {0};
    l->model.config = mini_config();
    const model_config *c = &l->model.config;
    l->model.layers = arena_alloc(&l->memory, (size_t)c->layers, sizeof *l->model.layers);
    l->model.layers[LAYER] = random_layer(&l->memory, c);
    device_limits limits = {.kv = kv, .threads = threads, .max_rows = MOST_ROWS, .max_context = LONGEST};
    l->device = cpu_device_create(&l->model, &limits, &err);
    l->forward = l->device ? forward_create(l->device, MOST_ROWS, 1, &err) : NULL;
    if (!l->forward)
        fail(err.text);
    fill_pages(l);
    fill_activations(l);
}

static void lab_close(lab *l)
{
    forward_destroy(l->forward);
    l->device->ops->free(l->device, l->pages);
    l->device->ops->destroy(l->device);
    arena_free(&l->memory);
}

typedef struct cost {
    double wall_us, cpu_us; /* of one call */
} cost;

static double cpu_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef void (*operation)(device *d, const step *s, int layer, activations *a);

static cost measure(lab *l, const step *s, operation op)
{
    cost best = {1e18, 1e18};
    uint64_t begun = clock_now_us();
    for (int i = 0; i < MOST_CALLS && (i < 3 || clock_now_us() - begun < BUDGET_MS * 1000); i++) {
        double cpu = cpu_now_us();
        uint64_t wall = clock_now_us();
        op(l->device, s, LAYER, &l->forward->a);
        double wall_us = (double)(clock_now_us() - wall), cpu_us = cpu_now_us() - cpu;
        best.wall_us = wall_us < best.wall_us ? wall_us : best.wall_us;
        best.cpu_us = cpu_us < best.cpu_us ? cpu_us : best.cpu_us;
    }
    return best;
}

static void measure_at(lab *l, int context, int rows)
{
    const model_config *c = &l->model.config;
    const kv_layout *k = &l->device->layout;
    const device_ops *ops = l->device->ops;
    for (int i = 0; i < rows; i++)
        l->positions[i] = context - rows + i;
    step s = {.rows = rows, .tokens = l->tokens, .positions = l->positions, .sequences = l->sequences, .page_tables = l->tables,
              .pages = l->pages};
    cost index = measure(l, &s, ops->index_select), attend = measure(l, &s, ops->attend);
    double scored = context > c->index_topk ? (double)context : 0, seen = context > c->index_topk ? c->index_topk : context;
    double index_flop = 2.0 * rows * scored * c->index_heads * c->index_dim;
    double attend_flop = 2.0 * rows * seen * c->heads * (2 * c->kv_lora_rank + c->rope_dim);
    double r = rows, model_us = FULL_LAYERS * index.cpu_us + c->layers * attend.cpu_us;
    printf("%7d %5d | %9.1f %9.1f %7.2f %7.1f | %9.1f %9.1f %7.2f %7.1f | %10.0f\n", context, rows, index.wall_us / r, index.cpu_us / r,
           scored * (double)k->index_bytes / index.wall_us * 1e-3, index_flop / index.cpu_us * 1e-3, attend.wall_us / r, attend.cpu_us / r,
           r * seen * (double)k->latent_bytes / attend.wall_us * 1e-3, attend_flop / attend.cpu_us * 1e-3, model_us / r);
    fflush(stdout);
}

static kv_dtype kv_by_name(const char *name)
{
    for (kv_dtype t = 0; t < KV_DTYPE_COUNT; t++)
        if (strcmp(name, kv_dtype_name(t)) == 0)
            return t;
    fail("the cache type is f32, bf16 or fp8");
    return KV_BF16;
}

int main(int argc, char **argv)
{
    static const int contexts[] = {512, 2048, 8192, 16384, 32768}, usual_rows[] = {1, 8, 64, 256};
    static lab l;
    kv_dtype kv = argc > 1 ? kv_by_name(argv[1]) : KV_BF16;
    lab_open(&l, kv, argc > 2 ? atoi(argv[2]) : 2);
    printf("%s, %s cache\n%7s %5s | %9s %9s %7s %7s | %9s %9s %7s %7s | %10s\n", l.device->description, kv_dtype_name(kv), "context",
           "rows", "index us", "cpu us", "GB/s", "GFLOP/s", "attend us", "cpu us", "GB/s", "GFLOP/s", "model cpu");
    for (int i = 0; i < (argc > 3 ? argc - 3 : 4); i++) {
        int rows = argc > 3 ? atoi(argv[i + 3]) : usual_rows[i];
        if (rows < 1 || rows > MOST_ROWS)
            fail("rows are 1 to 256");
        for (int j = 0; j < 5; j++)
            measure_at(&l, contexts[j], rows);
    }
    lab_close(&l);
    return 0;
}
