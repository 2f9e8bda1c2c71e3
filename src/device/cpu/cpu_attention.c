/* Multi-head latent attention in absorbed form: the cache holds one latent per token for all heads, and the key and value
 * projections are applied to the query and to the result instead of to every cached token (spec 2.1).
 *
 *     q_absorbed[h] = q_nope[h] W_UK[h]                          kv_b rows h*(nope+v) .. +nope
 *     score[j]      = (q_absorbed[h] . c_j + q_rope[h] . k_rope_j) / sqrt(nope + rope)      for the selected positions j
 *     attended[h]   = W_UV[h] sum_j softmax(score)[j] c_j        kv_b rows h*(nope+v)+nope .. +v */
#include <math.h>
#include <string.h>

#include "base/sanitize.h"
#include "device/cpu/cpu.h"

enum { CACHE_LINE = 64, PREFETCH_KEYS = 12 };

typedef struct attention_task {
    cpu_device *c;
    const step *s;
    const layer_weights *w;
    activations *a;
    int layer;
    int group_heads;   /* heads of one task of attend_group */
    int value_columns; /* columns of one task of value_part */
    const cpu_attention_kernels *absorb, *attend;
    const cpu_matmul *value;
} attention_task;

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

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
    attention_task t = {.c = c, .s = s, .w = w, .a = a, .layer = layer};
    pool_run(c->workers, s->rows, finish_row, &t);
}

/* Loads matrix rows first .. as `count` vectors. */
static void decode_rows(const matrix *w, int64_t first, int count, float *out)
{
    for (int i = 0; i < count; i++)
        matrix_row(w, first + i, out + i * w->cols);
}

/* q_absorbed of one head, few rows, from fp8 weights as they lie. False: one of them is not a number. */
static bool absorb_codes(const attention_task *t, int head)
{
    const model_config *m = &t->c->base.model->config;
    const matrix *w = &t->w->kv_b;
    int64_t rank = m->kv_lora_rank, qk_dim = m->nope_dim + m->rope_dim, q_stride = m->heads * qk_dim;
    for (int i = 0, count; i < m->nope_dim; i += count) {
        int64_t first = (int64_t)head * (m->nope_dim + m->v_dim) + i;
        float scales[CPU_KEY_BLOCK];
        count = smaller(m->nope_dim - i, CPU_KEY_BLOCK);
        touch_range(w->data + first * rank, (size_t)(count * rank));
        for (int64_t at = 0, size; at < rank; at += size) {
            size = rank - at < CPU_FP8_BLOCK ? rank - at : CPU_FP8_BLOCK;
            for (int j = 0; j < count; j++)
                scales[j] = cpu_fp8_scale(w, first + j, at);
            for (int row = 0; row < t->s->rows; row++)
                if (!t->absorb->add_codes(t->a->q + row * q_stride + head * qk_dim + i, w->data + first * rank + at, rank, scales, count,
                                          size, t->a->q_absorbed + row * m->heads * rank + head * rank + at))
                    return false;
        }
    }
    return true;
}

/* The same for any weights and number of rows: each row of W_UK is decoded once. */
static void absorb_decoded(const attention_task *t, int head, int worker)
{
    const model_config *m = &t->c->base.model->config;
    int64_t rank = m->kv_lora_rank, qk_dim = m->nope_dim + m->rope_dim, q_stride = m->heads * qk_dim, out_stride = m->heads * rank;
    float *keys = t->c->scratch[worker], *panel = keys + CPU_KEY_BLOCK * rank; /* [CPU_KEY_BLOCK][rank], [CPU_KEY_BLOCK][lanes] */
    for (int i = 0, count; i < m->nope_dim; i += count) {
        count = smaller(m->nope_dim - i, CPU_KEY_BLOCK);
        decode_rows(&t->w->kv_b, (int64_t)head * (m->nope_dim + m->v_dim) + i, count, keys);
        for (int row = 0, rows; row < t->s->rows; row += rows) {
            rows = smaller(t->s->rows - row, CPU_HEAD_GROUP);
            t->absorb->pack(t->a->q + row * q_stride + head * qk_dim + i, q_stride, rows, count, panel);
            cpu_weighted_sum sum = {.p = panel, .p_vector = cpu_head_lanes(rows), .p_head = 1, .heads = rows, .v = keys, .v_stride = rank,
                                    .n = rank, .count = count, .out = t->a->q_absorbed + row * out_stride + head * rank,
                                    .out_stride = out_stride};
            t->absorb->weighted_sum(&sum);
        }
    }
}

static void clear_absorbed(const attention_task *t, int head)
{
    const model_config *m = &t->c->base.model->config;
    for (int row = 0; row < t->s->rows; row++)
        memset(t->a->q_absorbed + ((int64_t)row * m->heads + head) * m->kv_lora_rank, 0, (size_t)m->kv_lora_rank * sizeof(float));
}

/* q_absorbed of one head. Both ways give the same bits. */
static void absorb_head(void *context, int head, int worker)
{
    enum { FEW_ROWS = 3 };
    const attention_task *t = context;
    clear_absorbed(t, head);
    if (t->s->rows <= FEW_ROWS && cpu_is_fp8(&t->w->kv_b)) {
        if (absorb_codes(t, head))
            return;
        clear_absorbed(t, head);
    }
    absorb_decoded(t, head, worker);
}

static int head_groups(const model_config *m, int group_heads)
{
    return (m->heads + group_heads - 1) / group_heads;
}

/* Attention of one row over its selected positions, for one group of heads. */
typedef struct attention_group {
    int row, first_head, heads, lanes;
    const int32_t *selected; /* [count] ascending */
    int count;
    float *q;      /* [rank + rope][lanes] */
    float *keys;   /* [CPU_KEY_BLOCK][rank + rope] of some positions */
    float *scores; /* [CPU_KEY_BLOCK][lanes] of those positions */
    float *out;    /* [heads][rank] */
} attention_group;

static attention_group group_at(const attention_task *t, int index, int worker)
{
    const model_config *m = &t->c->base.model->config;
    int groups = head_groups(m, t->group_heads), row = index / groups, first_head = index % groups * t->group_heads;
    attention_group g = {.row = row, .first_head = first_head, .heads = smaller(m->heads - first_head, t->group_heads),
                         .selected = t->a->selected + (size_t)row * (size_t)m->index_topk, .count = t->a->selected_count[row]};
    g.lanes = cpu_head_lanes(g.heads);
    g.q = t->c->scratch[worker];
    g.keys = g.q + (m->kv_lora_rank + m->rope_dim) * CPU_HEAD_GROUP;
    g.scores = g.keys + (m->kv_lora_rank + m->rope_dim) * CPU_KEY_BLOCK;
    g.out = t->a->attended_latent + ((int64_t)row * m->heads + first_head) * m->kv_lora_rank;
    return g;
}

/* The queries of the group as one panel: the absorbed part, then the rotated one. */
static void pack_queries(const attention_task *t, const attention_group *g)
{
    const model_config *m = &t->c->base.model->config;
    int64_t rank = m->kv_lora_rank, qk_dim = m->nope_dim + m->rope_dim, at = (int64_t)g->row * m->heads + g->first_head;
    const float *absorbed = t->a->q_absorbed + at * rank, *rope = t->a->q + at * qk_dim + m->nope_dim;
    touch_range(absorbed, (size_t)(g->heads * rank) * sizeof(float));
    touch_range(rope, (size_t)((g->heads - 1) * qk_dim + m->rope_dim) * sizeof(float));
    t->attend->pack(absorbed, rank, g->heads, rank, g->q);
    t->attend->pack(rope, qk_dim, g->heads, m->rope_dim, g->q + rank * g->lanes);
}

/* Loads the keys of selected positions first .. as the page holds them, a block of them; returns how many. */
static int load_keys(const attention_task *t, const attention_group *g, int first)
{
    const kv_layout *k = &t->c->base.layout;
    int count = smaller(g->count - first, CPU_KEY_BLOCK);
    for (int i = 0; i < count; i++)
        cpu_latent_load(k, cpu_entry(k, t->s, g->row, g->selected[first + i], k->latent_offset[t->layer], k->latent_bytes),
                        g->keys + i * (k->latent_dim + k->rope_dim));
    return count;
}

/* Asks for the entries of selected positions first .. to be brought near while something else is computed. An extension of gcc and clang;
 * the entries lie all over the pages, where no hardware foresees them. */
static void prefetch_keys(const attention_task *t, const attention_group *g, int first, int count)
{
    const kv_layout *k = &t->c->base.layout;
    for (int i = first; i < smaller(first + count, g->count); i++) {
        const uint8_t *entry = cpu_entry(k, t->s, g->row, g->selected[i], k->latent_offset[t->layer], k->latent_bytes);
        for (size_t at = 0; at < k->latent_bytes; at += CACHE_LINE)
            __builtin_prefetch(entry + at, 0, 3);
    }
}

/* Scores of a block of keys, while those of the next block are fetched. */
static void score_keys(const attention_task *t, const attention_group *g, int first, int count)
{
    int width = t->c->base.layout.latent_dim + t->c->base.layout.rope_dim;
    for (int j = 0; j < count; j += PREFETCH_KEYS) {
        prefetch_keys(t, g, first + CPU_KEY_BLOCK + j, PREFETCH_KEYS);
        t->attend->scores(g->q, g->lanes, g->keys + j * width, width, smaller(count - j, PREFETCH_KEYS), width, g->scores + j * g->lanes);
    }
}

static void scale_vector(float *v, int n, float factor)
{
    for (int i = 0; i < n; i++)
        v[i] *= factor;
}

/* Each key is loaded once: the softmax is taken block by block, and what was summed up is rescaled when a larger score turns up. */
static void attend_group(void *context, int index, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    int rank = m->kv_lora_rank;
    float scale = 1.0f / sqrtf((float)(m->nope_dim + m->rope_dim));
    attention_group g = group_at(t, index, worker);
    cpu_softmax state = {0};
    for (int h = 0; h < CPU_HEAD_TILE; h++)
        state.largest[h] = -INFINITY;
    prefetch_keys(t, &g, 0, CPU_KEY_BLOCK);
    pack_queries(t, &g);
    memset(g.out, 0, (size_t)(g.heads * rank) * sizeof(float));
    for (int first = 0, count; first < g.count; first += count) {
        count = load_keys(t, &g, first);
        score_keys(t, &g, first, count);
        t->attend->softmax_block(g.scores, g.lanes, count, scale, &state);
        for (int h = 0; h < g.heads; h++)
            if (state.factor[h] != 1.0f)
                scale_vector(g.out + h * rank, rank, state.factor[h]);
        cpu_weighted_sum sum = {.p = g.scores, .p_vector = g.lanes, .p_head = 1, .heads = g.heads, .v = g.keys,
                                .v_stride = rank + m->rope_dim, .n = rank, .count = count, .out = g.out, .out_stride = rank};
        t->attend->weighted_sum(&sum);
    }
    for (int h = 0; h < g.heads; h++)
        scale_vector(g.out + h * rank, rank, 1.0f / state.sum[h]);
}

/* attended of some columns of one head, all rows: rows of kv_b times attended_latent. */
static void value_part(void *context, int index, int worker)
{
    const attention_task *t = context;
    const model_config *m = &t->c->base.model->config;
    int parts = (m->v_dim + t->value_columns - 1) / t->value_columns, head = index / parts, first = index % parts * t->value_columns;
    size_t rank = (size_t)m->kv_lora_rank, heads = (size_t)m->heads, v_dim = (size_t)m->v_dim;
    cpu_inputs latents = {.x = t->a->attended_latent + (size_t)head * rank, .stride = heads * rank};
    cpu_matmul_run(t->c, t->value, &t->w->kv_b, (int64_t)head * (m->nope_dim + m->v_dim) + m->nope_dim + first,
                   smaller(m->v_dim - first, t->value_columns), &latents, NULL, t->s->rows,
                   t->a->attended + (size_t)head * v_dim + (size_t)first, heads * v_dim, worker);
}

void cpu_attend(device *d, const step *s, int layer, activations *a)
{
    cpu_device *c = cpu_of(d);
    const model_config *m = &d->model->config;
    const layer_weights *w = cpu_layer(d, layer);
    attention_task t = {.c = c, .s = s, .w = w, .a = a, .layer = layer, .group_heads = CPU_HEAD_GROUP,
                        .absorb = cpu_attention_variant(c, dispatch_absorb, w, s->rows),
                        .attend = cpu_attention_variant(c, dispatch_attend, w, s->rows),
                        .value = cpu_attention_variant(c, dispatch_value, w, s->rows)};
    if (s->rows * head_groups(m, CPU_HEAD_GROUP) < c->threads)
        t.group_heads = CPU_HEAD_LANES; /* work for more threads; heads are independent, so that changes no result */
    pool_run(c->workers, m->heads, absorb_head, &t);
    pool_run(c->workers, s->rows * head_groups(m, t.group_heads), attend_group, &t);
    t.value_columns = m->heads < 4 * c->threads ? CPU_PANEL_COLUMNS : m->v_dim;
    pool_run(c->workers, m->heads * ((m->v_dim + t.value_columns - 1) / t.value_columns), value_part, &t);
    cpu_linear_job out = {.w = &w->o, .x = {a->attended, (size_t)(m->heads * m->v_dim), NULL, s->rows}, .out = a->x,
                          .out_stride = (size_t)m->hidden_size, .add = true};
    cpu_linear(c, &out, 1);
}
