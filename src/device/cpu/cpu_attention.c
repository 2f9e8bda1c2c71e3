/* Multi-head latent attention in absorbed form: the cache holds one latent per token for all heads, and the key and value
 * projections are applied to the query and to the result instead of to every cached token (spec 2.1).
 *
 *     q_absorbed[h] = q_nope[h] W_UK[h]                          kv_b rows h*(nope+v) .. +nope
 *     score[j]      = (q_absorbed[h] . c_j + q_rope[h] . k_rope_j) / sqrt(nope + rope)      for the selected positions j
 *     attended[h]   = W_UV[h] sum_j softmax(score)[j] c_j        kv_b rows h*(nope+v)+nope .. +v */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu.h"

typedef struct attention_task {
    cpu_device *c;
    const step *s;
    const layer_weights *w;
    activations *a;
    int layer;
} attention_task;

/* The tail of the projections: latent norm, rotations, and the entry in the page. */
static void finish_row(void *context, int row, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    const kv_layout *k = &t->c->base.layout;
    const float *rope = t->a->rope + (size_t)row * (size_t)m->rope_dim;
    int qk_dim = m->nope_dim + m->rope_dim;
    float *q = t->a->q + (size_t)row * (size_t)(m->heads * qk_dim);
    (void)worker;
    for (int h = 0; h < m->heads; h++)
        cpu_rotate(q + h * qk_dim + m->nope_dim, rope, m->rope_dim);
    float *latent = t->a->latent + (size_t)row * (size_t)(m->kv_lora_rank + m->rope_dim);
    cpu_rms_norm(latent, t->w->kv_a_norm, m->kv_lora_rank, m->latent_norm_eps, latent);
    cpu_rotate(latent + m->kv_lora_rank, rope, m->rope_dim);
    if (t->s->keep_keys)
        cpu_latent_store(k, latent, cpu_entry(k, t->s, row, t->s->positions[row], k->latent_offset[t->layer], k->latent_bytes));
}

void cpu_attention_project(device *d, const step *s, int layer, activations *a)
{
    cpu_device *c = cpu_of(d);
    const model_config *m = &d->model->config;
    const layer_weights *w = cpu_layer(d, layer);
    cpu_rms_norm_rows(c, a->x, s->rows, m->hidden_size, w->input_norm, m->norm_eps, a->h);
    cpu_linear_job latents[2] = {cpu_projection(&w->q_a, s->rows, a->h, a->q_latent), cpu_projection(&w->kv_a, s->rows, a->h, a->latent)};
    cpu_linear(c, latents, 2);
    cpu_rms_norm_rows(c, a->q_latent, s->rows, m->q_lora_rank, w->q_a_norm, m->latent_norm_eps, a->q_latent);
    cpu_project(c, &w->q_b, s->rows, a->q_latent, a->q);
    attention_task t = {c, s, w, a, layer};
    pool_run(c->workers, s->rows, finish_row, &t);
}

/* Heads [rows][heads] of a buffer, one vector of `size` floats each. */
static cpu_rows head_rows(const attention_task *t, const float *buffer, int head, size_t size)
{
    size_t heads = (size_t)t->c->base.model->config.heads;
    return (cpu_rows){buffer + (size_t)head * size, heads * size, NULL, t->s->rows};
}

/* q_absorbed of one head, all rows: each row of W_UK is decoded once. */
static void absorb_head(void *context, int head, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    size_t rank = (size_t)m->kv_lora_rank, heads = (size_t)m->heads, qk_dim = (size_t)(m->nope_dim + m->rope_dim);
    const cpu_kernels *k = cpu_attention_kernels(t->c, dispatch_absorb, t->w, t->s->rows);
    float *keys = t->c->scratch[worker]; /* [CPU_COLUMN_BLOCK][rank] */
    int64_t first = (int64_t)head * (m->nope_dim + m->v_dim), end = first + m->nope_dim;
    for (int row = 0; row < t->s->rows; row++)
        memset(t->a->q_absorbed + ((size_t)row * heads + (size_t)head) * rank, 0, rank * sizeof(float));
    for (int i = 0, count; i < m->nope_dim; i += count) {
        count = cpu_decode_block(&t->w->kv_b, first + i, end, keys);
        for (int row = 0; row < t->s->rows; row++) {
            size_t at = (size_t)row * heads + (size_t)head;
            cpu_add_scaled(k, t->a->q_absorbed + at * rank, t->a->q + at * qk_dim + i, keys, m->kv_lora_rank, count, m->kv_lora_rank);
        }
    }
}

/* Turns scores into probabilities in place. */
static void softmax(float *score, int n)
{
    float largest = score[0], sum = 0;
    for (int i = 1; i < n; i++)
        largest = fmaxf(largest, score[i]);
    for (int i = 0; i < n; i++) {
        score[i] = expf(score[i] - largest);
        sum += score[i];
    }
    for (int i = 0; i < n; i++)
        score[i] /= sum;
}

static int head_groups(const model_config *m)
{
    return (m->heads + CPU_HEAD_GROUP - 1) / CPU_HEAD_GROUP;
}

/* The positions a row attends to, for one group of heads. */
typedef struct attention_group {
    int row, first_head, heads;
    const int32_t *selected; /* [count] */
    int count;
    float *keys;   /* [CPU_COLUMN_BLOCK][rank + rope] of some positions */
    float *scores; /* [heads][index_topk] */
} attention_group;

static attention_group group_at(const attention_task *t, int index, int worker)
{
    const model_config *m = &t->c->base.model->config;
    int groups = head_groups(m), row = index / groups, first_head = index % groups * CPU_HEAD_GROUP, left = m->heads - first_head;
    float *scratch = t->c->scratch[worker];
    return (attention_group){row, first_head, left < CPU_HEAD_GROUP ? left : CPU_HEAD_GROUP,
                             t->a->selected + (size_t)row * (size_t)m->index_topk, t->a->selected_count[row], scratch,
                             scratch + CPU_COLUMN_BLOCK * (m->kv_lora_rank + m->rope_dim)};
}

/* Loads the keys of selected positions first .. as the page holds them, a block of them; returns how many. */
static int load_keys(const attention_task *t, const attention_group *g, int first)
{
    const kv_layout *k = &t->c->base.layout;
    int count = g->count - first < CPU_COLUMN_BLOCK ? g->count - first : CPU_COLUMN_BLOCK;
    for (int i = 0; i < count; i++)
        cpu_latent_load(k, cpu_entry(k, t->s, g->row, g->selected[first + i], k->latent_offset[t->layer], k->latent_bytes),
                        g->keys + i * (k->latent_dim + k->rope_dim));
    return count;
}

static void score_keys(const attention_task *t, const attention_group *g)
{
    const model_config *m = &t->c->base.model->config;
    int64_t rank = m->kv_lora_rank, qk_dim = m->nope_dim + m->rope_dim, stride = rank + m->rope_dim;
    const cpu_kernels *k = cpu_attention_kernels(t->c, dispatch_attend, t->w, t->s->rows);
    const float *absorbed[CPU_HEAD_GROUP], *q_rope[CPU_HEAD_GROUP];
    float y[CPU_HEAD_GROUP * CPU_COLUMN_BLOCK], z[CPU_HEAD_GROUP * CPU_COLUMN_BLOCK], scale = 1.0f / sqrtf((float)qk_dim);
    for (int h = 0; h < g->heads; h++) {
        int64_t at = (int64_t)g->row * m->heads + g->first_head + h;
        absorbed[h] = t->a->q_absorbed + at * rank;
        q_rope[h] = t->a->q + at * qk_dim + m->nope_dim;
    }
    for (int first = 0, count; first < g->count; first += count) {
        count = load_keys(t, g, first);
        cpu_dots(k, g->keys, stride, count, absorbed, g->heads, rank, y);
        cpu_dots(k, g->keys + rank, stride, count, q_rope, g->heads, m->rope_dim, z);
        for (int h = 0; h < g->heads; h++)
            for (int j = 0; j < count; j++)
                g->scores[h * m->index_topk + first + j] = (y[h * CPU_COLUMN_BLOCK + j] + z[h * CPU_COLUMN_BLOCK + j]) * scale;
    }
}

/* Attention of one row over its selected positions, for one group of heads. */
static void attend_group(void *context, int index, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    int64_t rank = m->kv_lora_rank;
    const cpu_kernels *k = cpu_attention_kernels(t->c, dispatch_attend, t->w, t->s->rows);
    attention_group g = group_at(t, index, worker);
    float *out = t->a->attended_latent + ((int64_t)g.row * m->heads + g.first_head) * rank; /* [heads][rank] */
    score_keys(t, &g);
    memset(out, 0, (size_t)(g.heads * rank) * sizeof(float));
    for (int h = 0; h < g.heads; h++)
        softmax(g.scores + h * m->index_topk, g.count);
    for (int first = 0, count; first < g.count; first += count) {
        count = load_keys(t, &g, first);
        for (int h = 0; h < g.heads; h++)
            cpu_add_scaled(k, out + h * rank, g.scores + h * m->index_topk + first, g.keys, rank + m->rope_dim, count, rank);
    }
}

/* attended of one head, all rows. */
static void value_head(void *context, int head, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    int64_t first = (int64_t)head * (m->nope_dim + m->v_dim) + m->nope_dim, rank = m->kv_lora_rank;
    float *values = t->c->scratch[worker]; /* [CPU_COLUMN_BLOCK][rank] */
    float y[CPU_ROW_GROUP * CPU_COLUMN_BLOCK];
    const cpu_kernels *k = cpu_attention_kernels(t->c, dispatch_value, t->w, t->s->rows);
    cpu_rows latents = head_rows(t, t->a->attended_latent, head, (size_t)rank);
    for (int v = 0, columns; v < m->v_dim; v += columns) {
        columns = cpu_decode_block(&t->w->kv_b, first + v, first + m->v_dim, values);
        for (int row = 0, count; row < t->s->rows; row += count) {
            count = cpu_dots_group(k, values, columns, rank, &latents, row, y);
            for (int i = 0; i < count; i++)
                memcpy(t->a->attended + ((int64_t)(row + i) * m->heads + head) * m->v_dim + v, y + i * CPU_COLUMN_BLOCK,
                       (size_t)columns * sizeof(float));
        }
    }
}

void cpu_attend(device *d, const step *s, int layer, activations *a)
{
    cpu_device *c = cpu_of(d);
    const model_config *m = &d->model->config;
    attention_task t = {c, s, cpu_layer(d, layer), a, layer};
    pool_run(c->workers, m->heads, absorb_head, &t);
    pool_run(c->workers, s->rows * head_groups(m), attend_group, &t);
    pool_run(c->workers, m->heads, value_head, &t);
    cpu_linear_job out = {.w = &t.w->o, .x = {a->attended, (size_t)(m->heads * m->v_dim), NULL, s->rows}, .out = a->x,
                          .out_stride = (size_t)m->hidden_size, .add = true};
    cpu_linear(c, &out, 1);
}
