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
    cpu_project(c, &w->q_a, s->rows, a->h, a->q_latent);
    cpu_rms_norm_rows(c, a->q_latent, s->rows, m->q_lora_rank, w->q_a_norm, m->latent_norm_eps, a->q_latent);
    cpu_project(c, &w->q_b, s->rows, a->q_latent, a->q);
    cpu_project(c, &w->kv_a, s->rows, a->h, a->latent);
    attention_task t = {c, s, w, a, layer};
    pool_run(c->workers, s->rows, finish_row, &t);
}

/* q_absorbed of one head, all rows: each row of W_UK is decoded once. */
static void absorb_head(void *context, int head, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    size_t rank = (size_t)m->kv_lora_rank, heads = (size_t)m->heads, qk_dim = (size_t)(m->nope_dim + m->rope_dim);
    float *key_row = t->c->scratch[worker]; /* [rank] */
    for (int row = 0; row < t->s->rows; row++)
        memset(t->a->q_absorbed + ((size_t)row * heads + (size_t)head) * rank, 0, rank * sizeof(float));
    for (int i = 0; i < m->nope_dim; i++) {
        matrix_row(&t->w->kv_b, (int64_t)head * (m->nope_dim + m->v_dim) + i, key_row);
        for (int row = 0; row < t->s->rows; row++) {
            float q = t->a->q[((size_t)row * heads + (size_t)head) * qk_dim + (size_t)i];
            float *out = t->a->q_absorbed + ((size_t)row * heads + (size_t)head) * rank;
            cpu_add_scaled(out, q, key_row, m->kv_lora_rank);
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

/* Attention of one row over its selected positions, for one group of heads. The keys are read as the page holds them. */
static void attend_group(void *context, int index, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    const kv_layout *k = &t->c->base.layout;
    int groups = head_groups(m), row = index / groups, first_head = index % groups * CPU_HEAD_GROUP;
    int heads = m->heads - first_head < CPU_HEAD_GROUP ? m->heads - first_head : CPU_HEAD_GROUP;
    size_t rank = (size_t)m->kv_lora_rank, qk_dim = (size_t)(m->nope_dim + m->rope_dim), topk = (size_t)m->index_topk;
    const int32_t *selected = t->a->selected + (size_t)row * topk;
    int n = t->a->selected_count[row];
    float scale = 1.0f / sqrtf((float)qk_dim);
    float *key = t->c->scratch[worker], *scores = key + rank + (size_t)m->rope_dim; /* key [rank + rope], scores [CPU_HEAD_GROUP][topk] */
    size_t first = (size_t)row * (size_t)m->heads + (size_t)first_head;
    for (int j = 0; j < n; j++) {
        cpu_latent_load(k, cpu_entry(k, t->s, row, selected[j], k->latent_offset[t->layer], k->latent_bytes), key);
        for (int h = 0; h < heads; h++) {
            const float *absorbed = t->a->q_absorbed + (first + (size_t)h) * rank;
            const float *q_rope = t->a->q + (first + (size_t)h) * qk_dim + m->nope_dim;
            scores[(size_t)h * topk + (size_t)j] =
                (cpu_dot(absorbed, key, m->kv_lora_rank) + cpu_dot(q_rope, key + rank, m->rope_dim)) * scale;
        }
    }
    float *out = t->a->attended_latent + first * rank; /* [heads][rank] */
    memset(out, 0, (size_t)heads * rank * sizeof(float));
    for (int h = 0; h < heads; h++)
        softmax(scores + (size_t)h * topk, n);
    for (int j = 0; j < n; j++) {
        cpu_latent_load(k, cpu_entry(k, t->s, row, selected[j], k->latent_offset[t->layer], k->latent_bytes), key);
        for (int h = 0; h < heads; h++)
            cpu_add_scaled(out + (size_t)h * rank, scores[(size_t)h * topk + (size_t)j], key, m->kv_lora_rank);
    }
}

/* attended of one head, all rows. */
static void value_head(void *context, int head, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    size_t rank = (size_t)m->kv_lora_rank, heads = (size_t)m->heads, v_dim = (size_t)m->v_dim;
    float *value_row = t->c->scratch[worker]; /* [rank] */
    for (int i = 0; i < m->v_dim; i++) {
        matrix_row(&t->w->kv_b, (int64_t)head * (m->nope_dim + m->v_dim) + m->nope_dim + i, value_row);
        for (int row = 0; row < t->s->rows; row++) {
            size_t at = (size_t)row * heads + (size_t)head;
            t->a->attended[at * v_dim + (size_t)i] = cpu_dot(value_row, t->a->attended_latent + at * rank, m->kv_lora_rank);
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
    cpu_linear_job out = {.w = &t.w->o, .in = a->attended, .in_stride = (size_t)(m->heads * m->v_dim), .count = s->rows,
                          .out = a->x, .out_stride = (size_t)m->hidden_size, .add = true};
    cpu_linear(c, &out);
}
