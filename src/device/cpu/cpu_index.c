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

enum { POSITIONS_PER_TASK = 1024 };
static const float INDEX_NORM_EPS = 1e-6f; /* of the indexer's LayerNorm, fixed by the architecture */

typedef struct index_task {
    cpu_device *c;
    const step *s;
    const layer_weights *w;
    activations *a;
    int layer;
    int first_row;       /* of the group of rows being scored */
    int chunks;          /* tasks per row */
    size_t score_stride; /* floats of index_scores per row of the group */
} index_task;

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

/* Scores of one row over one chunk of positions. */
static void score_chunk(void *context, int index, int worker)
{
    const index_task *t = context;
    const model_config *m = &t->c->base.model->config;
    const kv_layout *k = &t->c->base.layout;
    int in_group = index / t->chunks, row = t->first_row + in_group;
    int first = index % t->chunks * POSITIONS_PER_TASK, last = t->s->positions[row] + 1;
    if (last > first + POSITIONS_PER_TASK)
        last = first + POSITIONS_PER_TASK;
    if (t->s->positions[row] < m->index_topk)
        return;
    const float *q = t->a->index_q + (size_t)row * (size_t)(m->index_heads * m->index_dim);
    const float *weight = t->a->index_weights + (size_t)row * (size_t)m->index_heads;
    float *keys = t->c->scratch[worker], scale = 1.0f / sqrtf((float)m->index_dim); /* keys [CPU_COLUMN_BLOCK][index_dim] */
    float *scores = t->c->index_scores + (size_t)in_group * t->score_stride;
    const cpu_kernels *kernels = cpu_attention_kernels(t->c, dispatch_index, t->w, t->s->rows);
    cpu_rows heads = {q, (size_t)m->index_dim, NULL, m->index_heads};
    for (int j = first, keep; j < last; j += keep) {
        float sum[CPU_COLUMN_BLOCK] = {0}, y[CPU_ROW_GROUP * CPU_COLUMN_BLOCK];
        keep = last - j < CPU_COLUMN_BLOCK ? last - j : CPU_COLUMN_BLOCK;
        for (int i = 0; i < keep; i++)
            cpu_index_key_load(k, cpu_entry(k, t->s, row, j + i, k->index_offset[t->layer], k->index_bytes), keys + i * m->index_dim);
        for (int h = 0, count; h < m->index_heads; h += count) {
            count = cpu_dots_group(kernels, keys, keep, m->index_dim, &heads, h, y);
            for (int n = 0; n < count; n++)
                for (int i = 0; i < keep; i++)
                    sum[i] += weight[h + n] * fmaxf(y[n * CPU_COLUMN_BLOCK + i] * scale, 0.0f);
        }
        memcpy(scores + j, sum, (size_t)keep * sizeof *sum);
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

/* The k-th largest key: its bytes are found from the top, each by one counting pass over the numbers that share the bytes
 * found so far. */
static uint32_t kth_largest(const float *scores, int n, int k)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int count[256] = {0}, byte = 255;
        for (int i = 0; i < n; i++) {
            uint32_t key = order_key(scores[i]);
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

void cpu_select_largest(const float *scores, int n, int k, int32_t *out)
{
    uint32_t threshold = kth_largest(scores, n, k);
    int above = 0, taken = 0;
    for (int i = 0; i < n; i++)
        above += order_key(scores[i]) > threshold;
    int equal_left = k - above;
    for (int i = 0; i < n && taken < k; i++) {
        uint32_t key = order_key(scores[i]);
        if (key > threshold || (key == threshold && equal_left-- > 0))
            out[taken++] = i;
    }
}

static void select_row(void *context, int in_group, int worker)
{
    const index_task *t = context;
    int row = t->first_row + in_group, topk = t->c->base.model->config.index_topk;
    int seen = t->s->positions[row] + 1;
    int32_t *out = t->a->selected + (size_t)row * (size_t)topk;
    (void)worker;
    if (seen <= topk) {
        for (int i = 0; i < seen; i++)
            out[i] = i;
        t->a->selected_count[row] = seen;
        return;
    }
    cpu_select_largest(t->c->index_scores + (size_t)in_group * t->score_stride, seen, topk, out);
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
    index_task t = {.c = c, .s = s, .w = w, .a = a, .layer = layer};
    pool_run(c->workers, s->rows, finish_row, &t);

    int context = longest_context(s);
    t.score_stride = (size_t)context;
    t.chunks = context > m->index_topk ? (context + POSITIONS_PER_TASK - 1) / POSITIONS_PER_TASK : 0;
    int group = (int)(c->index_score_floats / t.score_stride); /* rows scored together; at least one by construction */
    for (t.first_row = 0; t.first_row < s->rows; t.first_row += group) {
        int rows = s->rows - t.first_row < group ? s->rows - t.first_row : group;
        pool_run(c->workers, rows * t.chunks, score_chunk, &t);
        pool_run(c->workers, rows, select_row, &t);
    }
}
