/* The sparse-attention indexer (spec 2.2): a small attention of its own that scores every earlier position for each row and
 * keeps the index_topk best.
 *
 *     score(row, j) = sum_h weight[row][h] * relu(index_q[row][h] . index_k[j] / sqrt(index_dim))
 *
 * While a row has no more than index_topk positions to see, all are selected and nothing is scored; its index key is stored all
 * the same. */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu.h"

enum { POSITIONS_PER_TASK = 10 * CPU_KEY_BLOCK };
static const float INDEX_NORM_EPS = 1e-6f; /* of the indexer's LayerNorm, fixed by the architecture */

typedef struct index_task {
    cpu_device *c;
    const step *s;
    const layer_weights *w;
    activations *a;
    int layer;
    int first_row;       /* of the group of rows being scored */
    int rows;            /* in the group */
    int chunks;          /* tasks per CPU_INDEX_ROWS rows */
    size_t score_stride; /* floats of index_scores per row of the group */
    const cpu_attention_kernels *kernels;
} index_task;

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static void finish_row(void *context, int row, int worker)
{
    const index_task *t = context;
    const model_config *m = &t->c->base.model->config;
    const kv_layout *k = &t->c->base.layout;
    const float *rope = t->a->rope + (size_t)row * (size_t)m->rope_dim;
    float *q = t->a->index_q + (size_t)row * (size_t)(m->index_heads * m->index_dim);
    float *key = t->a->index_k + (size_t)row * (size_t)m->index_dim;
    float *weight = t->a->index_weights + (size_t)row * (size_t)m->index_heads;
    (void)worker;
    for (int h = 0; h < m->index_heads; h++) {
        cpu_rotate(q + h * m->index_dim, rope, m->rope_dim);
        weight[h] *= 1.0f / sqrtf((float)m->index_heads);
    }
    cpu_layer_norm(key, t->w->indexer.k_norm, t->w->indexer.k_norm_bias, m->index_dim, INDEX_NORM_EPS, key);
    cpu_rotate(key, rope, m->rope_dim);
    if (t->s->keep_keys)
        cpu_index_key_store(k, key, cpu_entry(k, t->s, row, t->s->positions[row], k->index_offset[t->layer], k->index_bytes));
}

/* Some rows of one sequence that are scored over one chunk of positions. */
typedef struct index_rows {
    int in_group, count; /* first row, counted from the group's */
    int first, last;     /* positions first .. last-1 */
    float *keys;         /* [CPU_KEY_BLOCK][index_dim] */
    float *weights;      /* [CPU_INDEX_ROWS][lanes] */
    float *panels;       /* [CPU_INDEX_ROWS][index_dim][lanes] */
} index_rows;

/* The queries as panels, and the weights with the scale: relu(x * scale) * w = relu(x) * (scale * w). */
static void pack_rows(const index_task *t, const index_rows *r)
{
    const model_config *m = &t->c->base.model->config;
    int lanes = cpu_head_lanes(m->index_heads);
    float scale = 1.0f / sqrtf((float)m->index_dim);
    for (int i = 0; i < r->count; i++) {
        int64_t row = t->first_row + r->in_group + i;
        const float *weight = t->a->index_weights + row * m->index_heads;
        for (int h = 0; h < lanes; h++)
            r->weights[i * lanes + h] = h < m->index_heads ? weight[h] * scale : 0.0f;
        t->kernels->pack(t->a->index_q + row * m->index_heads * m->index_dim, m->index_dim, m->index_heads, m->index_dim,
                         r->panels + (int64_t)i * lanes * m->index_dim);
    }
}

static void score_rows(const index_task *t, const index_rows *r)
{
    const model_config *m = &t->c->base.model->config;
    int lanes = cpu_head_lanes(m->index_heads);
    pack_rows(t, r);
    for (int j = r->first, block; j < r->last; j += block) {
        block = smaller(r->last - j, CPU_KEY_BLOCK);
        cpu_index_keys_load(&t->c->base.layout, t->s, t->first_row + r->in_group, t->layer, j, block, r->keys);
        for (int i = 0; i < r->count; i++) {
            int seen = smaller(t->s->positions[t->first_row + r->in_group + i] + 1 - j, block);
            if (seen > 0)
                t->kernels->index_scores(r->panels + (int64_t)i * lanes * m->index_dim, lanes, r->weights + i * lanes, r->keys, seen,
                                         m->index_dim, t->c->index_scores + (size_t)(r->in_group + i) * t->score_stride + j);
        }
    }
}

/* CPU_INDEX_ROWS rows over one chunk of positions; rows of one sequence share the decoded keys, rows that see no more than
 * index_topk positions take no part. */
static void score_chunk(void *context, int index, int worker)
{
    const index_task *t = context;
    const model_config *m = &t->c->base.model->config;
    int first = index % t->chunks * POSITIONS_PER_TASK, row = index / t->chunks * CPU_INDEX_ROWS;
    int end = smaller(row + CPU_INDEX_ROWS, t->rows), lanes = cpu_head_lanes(m->index_heads);
    const int32_t *positions = t->s->positions + t->first_row, *sequences = t->s->sequences + t->first_row;
    index_rows r = {.first = first, .keys = t->c->scratch[worker]};
    r.weights = r.keys + CPU_KEY_BLOCK * m->index_dim;
    r.panels = r.weights + CPU_INDEX_ROWS * lanes;
    for (; row < end; row += r.count > 0 ? r.count : 1) {
        r.in_group = row;
        r.last = 0;
        for (r.count = 0; row + r.count < end && sequences[row + r.count] == sequences[row]; r.count++) {
            if (positions[row + r.count] < m->index_topk)
                break;
            r.last = smaller(positions[row + r.count] + 1, first + POSITIONS_PER_TASK);
        }
        if (r.last > first)
            score_rows(t, &r);
    }
}

/* Maps a float to an unsigned number of the same order; NaN goes below everything. */
static uint32_t order_key(float f)
{
    uint32_t u;
    if (isnan(f))
        return 0;
    memcpy(&u, &f, 4);
    if (u == 0x80000000u)
        u = 0; /* -0 equals +0 */
    return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

/* The k-th largest order key of scores[list[i]] (list NULL: scores[i]), i < n: its bytes are found from the top, each by one counting pass
 * over the numbers that share the bytes found so far. */
static uint32_t kth_largest(const float *scores, const int32_t *list, int n, int k)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, byte = 255;
        for (int i = 0; i < n; i++) {
            uint32_t key = order_key(scores[list ? list[i] : i]);
            if ((key & mask) == prefix)
                count[(key >> shift) & 255]++;
        }
        for (; byte > 0 && count[byte] < k; byte--)
            k -= count[byte];
        prefix |= (uint32_t)byte << shift;
        mask |= 255u << shift;
    }
    return prefix;
}

/* The k largest among the indices of a list, or among all. */
static void select_exactly(const float *scores, const int32_t *list, int n, int k, int32_t *out)
{
    uint32_t threshold = kth_largest(scores, list, n, k);
    int above = 0, taken = 0;
    for (int i = 0; i < n; i++)
        above += order_key(scores[list ? list[i] : i]) > threshold;
    int equal_left = k - above;
    for (int i = 0; i < n && taken < k; i++) {
        int index = list ? list[i] : i;
        uint32_t key = order_key(scores[index]);
        if (key > threshold || (key == threshold && equal_left-- > 0))
            out[taken++] = index;
    }
}

void cpu_select_largest(const float *scores, int n, int k, int32_t *out)
{
    select_exactly(scores, NULL, n, k, out);
}

/* Rounding keeps order, so buckets of equal width between the smallest and the largest score are in order too: those from the one that
 * holds the k-th largest on hold all of the result and little else. Scores that defeat this (not finite, hardly any range, crowded in
 * one bucket) go to the exact passes as a whole. */
void cpu_select_many(const cpu_attention_kernels *kernels, const float *scores, int n, int k, int32_t *list, int32_t *out)
{
    int32_t counts[CPU_SELECT_BUCKETS] = {0};
    int bucket = CPU_SELECT_BUCKETS - 1, found = 0;
    float least, most;
    bool finite = kernels->range(scores, n, &least, &most);
    float scale = (CPU_SELECT_BUCKETS - 1) / (most - least);
    if (!finite || !isfinite(most - least) || !isfinite(scale)) {
        select_exactly(scores, NULL, n, k, out);
        return;
    }
    kernels->count_buckets(scores, n, least, scale, counts);
    for (found = counts[bucket]; found < k; found += counts[bucket])
        bucket--;
    if (found > 2 * k) {
        select_exactly(scores, NULL, n, k, out);
        return;
    }
    kernels->pick(scores, n, least, scale, bucket, list);
    select_exactly(scores, list, found, k, out);
}

static void select_row(void *context, int in_group, int worker)
{
    const index_task *t = context;
    int row = t->first_row + in_group, topk = t->c->base.model->config.index_topk;
    int seen = t->s->positions[row] + 1;
    int32_t *out = t->a->selected + (size_t)row * (size_t)topk, *list = (int32_t *)(void *)t->c->scratch[worker];
    if (seen <= topk) {
        for (int i = 0; i < seen; i++)
            out[i] = i;
        t->a->selected_count[row] = seen;
        return;
    }
    cpu_select_many(t->kernels, t->c->index_scores + (size_t)in_group * t->score_stride, seen, topk, list, out);
    t->a->selected_count[row] = topk;
}

static int longest_context(const step *s)
{
    int longest = 0;
    for (int i = 0; i < s->rows; i++)
        longest = s->positions[i] + 1 > longest ? s->positions[i] + 1 : longest;
    return longest;
}

void cpu_index_select(device *d, const step *s, int layer, activations *a)
{
    cpu_device *c = cpu_of(d);
    const model_config *m = &d->model->config;
    const layer_weights *w = cpu_layer(d, layer);
    cpu_linear_job jobs[3] = {cpu_projection(&w->indexer.q_b, s->rows, a->q_latent, a->index_q),
                              cpu_projection(&w->indexer.k, s->rows, a->h, a->index_k),
                              cpu_projection(&w->indexer.head_weights, s->rows, a->h, a->index_weights)};
    cpu_linear(c, jobs, 3);
    index_task t = {.c = c, .s = s, .w = w, .a = a, .layer = layer, .kernels = cpu_attention_variant(c, dispatch_index, w, s->rows)};
    pool_run(c->workers, s->rows, finish_row, &t);

    int context = longest_context(s);
    t.score_stride = (size_t)context;
    t.chunks = context > m->index_topk ? (context + POSITIONS_PER_TASK - 1) / POSITIONS_PER_TASK : 0;
    int group = (int)(c->index_score_floats / t.score_stride); /* rows scored together; at least one by construction */
    for (t.first_row = 0; t.first_row < s->rows; t.first_row += group) {
        t.rows = smaller(s->rows - t.first_row, group);
        pool_run(c->workers, (t.rows + CPU_INDEX_ROWS - 1) / CPU_INDEX_ROWS * t.chunks, score_chunk, &t);
        pool_run(c->workers, t.rows, select_row, &t);
    }
}
