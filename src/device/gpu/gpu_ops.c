/* The operations of device.h as kernel launches. Which kernel runs for what is asked of the dispatch table; launches are sized for the
 * rows of the bucket (gpu_kernels.h). */
#include <math.h>

#include "device/gpu/gpu_device.h"

static const float INDEX_NORM_EPS = 1e-6f; /* of the indexer's LayerNorm, fixed by the architecture */

static const model_config *config_of(const gpu_device *g)
{
    return &g->base.model->config;
}

static gpu_cache cache_of(const gpu_device *g, int layer)
{
    const kv_layout *k = &g->base.layout;
    return (gpu_cache){.dtype = (int32_t)k->dtype, .latent_dim = k->latent_dim, .rope_dim = k->rope_dim, .index_dim = k->index_dim,
                       .latent_bytes = (int64_t)k->latent_bytes, .index_bytes = (int64_t)k->index_bytes,
                       .latent_offset = (int64_t)k->latent_offset[layer], .index_offset = (int64_t)k->index_offset[layer],
                       .page_bytes = (int64_t)k->page_bytes};
}

static const gpu_kernels *kernels_for(const gpu_device *g, const char *operation, const gpu_matrix *w, int n, int k, int rows)
{
    return dispatch_kernel(&g->dispatch, operation, format_of((format_id)w->format)->name, n, k, rows);
}

static const gpu_kernels *cache_kernels(const gpu_device *g, const char *operation, int n, int k)
{
    return dispatch_kernel(&g->dispatch, operation, kv_dtype_name(g->base.layout.dtype), n, k, g->rows);
}

/* After launches: a launch that was refused says so nowhere else. */
static void check_launches(const char *operation)
{
    gpu_must(gpu_last_launch(), operation);
}

static void norm_rows(gpu_device *g, const float *in, int64_t in_stride, const float *weight, float eps, float *out, int64_t out_stride,
                      int n)
{
    gpu_norm_args a = {.step = g->step, .in = in, .weight = weight, .out = out, .n = n, .in_stride = in_stride, .out_stride = out_stride,
                       .eps = eps};
    gpu_norm(&a, g->rows, g->stream);
}

static void project_rows(gpu_device *g, const gpu_matrix *w, const int32_t *count, const int32_t *list, int rows, const float *in,
                         float *out, bool add)
{
    gpu_linear_args a = {.rows = count, .list = list, .w = *w, .columns = w->rows, .batch = 1, .x = in, .out = out, .x_stride = w->cols,
                         .out_stride = w->rows, .add = add};
    kernels_for(g, dispatch_linear, w, w->rows, w->cols, rows)->linear(g, &a, rows);
}

void gpu_project(gpu_device *g, const gpu_matrix *w, const float *in, float *out, bool add)
{
    project_rows(g, w, &g->step->rows, NULL, g->rows, in, out, add);
}

static void embed_rows(gpu_device *g, float *out, int64_t out_stride, activations *a)
{
    gpu_embed_args e = {.step = g->step, .table = g->weights.embed, .frequency = g->frequency, .out = out, .rope = a->rope,
                        .out_stride = out_stride, .rope_dim = config_of(g)->rope_dim};
    gpu_embed(&e, g->rows, g->stream);
}

void gpu_op_embed(device *d, const step *s, activations *a)
{
    gpu_device *g = gpu_of(d);
    (void)s;
    embed_rows(g, a->x, config_of(g)->hidden_size, a);
    check_launches("embed");
}

void gpu_op_draft_embed(device *d, const step *s, const float *hidden_in, activations *a)
{
    gpu_device *g = gpu_of(d);
    const model_config *m = config_of(g);
    int n = m->hidden_size;
    float *in = g->draft_input;
    (void)s;
    embed_rows(g, in, 2 * n, a);
    norm_rows(g, in, 2 * n, g->weights.embed_norm, m->norm_eps, in, 2 * n, n);
    norm_rows(g, hidden_in, n, g->weights.hidden_norm, m->norm_eps, in + n, 2 * n, n);
    gpu_project(g, &g->weights.project, in, a->x, false);
    check_launches("draft_embed");
}

void gpu_op_attention_project(device *d, const step *s, int layer, activations *a)
{
    gpu_device *g = gpu_of(d);
    const model_config *m = config_of(g);
    const gpu_layer *w = &g->weights.layers[layer];
    (void)s;
    norm_rows(g, a->x, m->hidden_size, w->input_norm, m->norm_eps, a->h, m->hidden_size, m->hidden_size);
    gpu_project(g, &w->q_a, a->h, a->q_latent, false);
    gpu_project(g, &w->kv_a, a->h, a->latent, false);
    norm_rows(g, a->q_latent, m->q_lora_rank, w->q_a_norm, m->latent_norm_eps, a->q_latent, m->q_lora_rank, m->q_lora_rank);
    gpu_project(g, &w->q_b, a->q_latent, a->q, false);
    gpu_latent_args l = {.step = g->step, .cache = cache_of(g, layer), .rope = a->rope, .norm = w->kv_a_norm, .q = a->q,
                         .latent = a->latent, .heads = m->heads, .nope = m->nope_dim, .eps = m->latent_norm_eps};
    gpu_latent(&l, g->rows, g->stream);
    check_launches("attention_project");
}

void gpu_op_index_select(device *d, const step *s, int layer, activations *a)
{
    gpu_device *g = gpu_of(d);
    const model_config *m = config_of(g);
    const gpu_layer *w = &g->weights.layers[layer];
    const gpu_kernels *kernels = cache_kernels(g, dispatch_index, m->index_heads, m->index_dim);
    gpu_cache cache = cache_of(g, layer);
    (void)s;
    gpu_project(g, &w->index_q_b, a->q_latent, a->index_q, false);
    gpu_project(g, &w->index_k, a->h, a->index_k, false);
    gpu_project(g, &w->index_weights, a->h, a->index_weights, false);
    gpu_index_row_args r = {.step = g->step, .cache = cache, .rope = a->rope, .norm = w->index_k_norm, .norm_bias = w->index_k_norm_bias,
                            .q = a->index_q, .k = a->index_k, .weights = a->index_weights, .heads = m->index_heads,
                            .eps = INDEX_NORM_EPS, .weight_scale = 1.0f / sqrtf((float)m->index_heads)};
    gpu_index_row(&r, g->rows, g->stream);
    for (int first = 0; first < g->rows; first += g->score_rows) {
        int rows = g->rows - first < g->score_rows ? g->rows - first : g->score_rows;
        gpu_index_score_args scores = {.step = g->step, .cache = cache, .q = a->index_q, .weights = a->index_weights,
                                       .scores = g->index_scores, .context = g->max_context, .heads = m->index_heads,
                                       .topk = m->index_topk, .first_row = first, .score_rows = rows,
                                       .scale = 1.0f / sqrtf((float)m->index_dim)};
        gpu_select_args select = {.step = g->step, .scores = g->index_scores, .context = g->max_context, .topk = m->index_topk,
                                  .first_row = first, .score_rows = rows, .selected = a->selected, .selected_count = a->selected_count};
        kernels->index(g, &scores, &select);
    }
    check_launches("index_select");
}

void gpu_op_attend(device *d, const step *s, int layer, activations *a)
{
    gpu_device *g = gpu_of(d);
    const model_config *m = config_of(g);
    const gpu_layer *w = &g->weights.layers[layer];
    int rank = m->kv_lora_rank, rows = g->rows;
    (void)s;
    gpu_absorb_args absorb = {.step = g->step, .kv_b = w->kv_b, .q = a->q, .out = a->q_absorbed, .heads = m->heads, .nope = m->nope_dim,
                              .rope = m->rope_dim, .v = m->v_dim, .rank = rank};
    kernels_for(g, dispatch_absorb, &w->kv_b, rank, m->nope_dim, rows)->absorb(g, &absorb);
    gpu_attend_args attend = {.step = g->step, .cache = cache_of(g, layer), .q_absorbed = a->q_absorbed, .q = a->q,
                              .selected = a->selected, .selected_count = a->selected_count, .out = a->attended_latent, .heads = m->heads,
                              .nope = m->nope_dim, .topk = m->index_topk, .scale = 1.0f / sqrtf((float)(m->nope_dim + m->rope_dim))};
    cache_kernels(g, dispatch_attend, m->heads, rank + m->rope_dim)->attend(g, &attend);
    gpu_linear_args value = {.rows = &g->step->rows, .w = w->kv_b, .columns = m->v_dim, .batch = m->heads, .w_first = m->nope_dim,
                             .w_step = m->nope_dim + m->v_dim, .x = a->attended_latent, .out = a->attended,
                             .x_stride = (int64_t)m->heads * rank, .x_batch = rank, .out_stride = (int64_t)m->heads * m->v_dim,
                             .out_batch = m->v_dim};
    kernels_for(g, dispatch_value, &w->kv_b, m->v_dim, rank, rows)->linear(g, &value, rows);
    gpu_project(g, &w->o, a->attended, a->x, true);
    check_launches("attend");
}

/* What the dispatch table has for an MLP of the model. */
static const gpu_kernels *mlp_kernels(const gpu_device *g, const matrix *w, int rows)
{
    return dispatch_kernel(&g->dispatch, dispatch_experts, w->format->name, w->rows, w->cols, rows);
}

static void route_rows(gpu_device *g, const gpu_layer *w, activations *a)
{
    const model_config *m = config_of(g);
    gpu_project(g, &w->router, a->h, a->router_scores, false);
    gpu_route_args route = {.step = g->step, .scores = a->router_scores, .bias = w->router_bias, .chosen = a->router_experts,
                            .weights = a->router_weights, .experts = m->experts, .per_token = m->experts_per_token,
                            .groups = m->expert_groups, .groups_kept = m->expert_groups_kept,
                            .normalize = m->normalize_expert_weights, .scale = m->routed_scale};
    gpu_route(&route, g->rows, g->stream);
}

const layer_weights *gpu_host_layer(const gpu_device *g, int layer)
{
    const model *m = g->base.model;
    return layer == m->config.layers ? &m->mtp.layer : &m->layers[layer];
}

/* The dense MLP of a layer: its result is added as that of a shared expert is. */
static void dense_mlp(gpu_device *g, int layer, activations *a)
{
    const mlp_weights *w = &gpu_host_layer(g, layer)->mlp;
    gpu_mlp_args mlp = {.step = g->step, .weights = g->weights.layers[layer].mlp, .x = a->h, .act = a->mlp_act, .out = g->shared_out,
                        .hidden = (int32_t)w->gate.cols, .wide = (int32_t)w->gate.rows, .x_stride = w->gate.cols};
    mlp_kernels(g, &w->gate, g->rows)->mlp(g, &mlp);
    gpu_combine_args combine = {.step = g->step, .shared = g->shared_out, .x = a->x, .hidden = config_of(g)->hidden_size};
    gpu_combine(&combine, g->rows, g->stream);
}

void gpu_op_mlp(device *d, const step *s, int layer, activations *a)
{
    gpu_device *g = gpu_of(d);
    const model_config *m = config_of(g);
    const gpu_layer *w = &g->weights.layers[layer];
    const layer_weights *host = gpu_host_layer(g, layer);
    (void)s;
    norm_rows(g, a->x, m->hidden_size, w->post_attention_norm, m->norm_eps, a->h, m->hidden_size, m->hidden_size);
    if (host->sparse) {
        int rows_each = g->rows * m->experts_per_token / m->experts; /* on average; the host knows no more */
        route_rows(g, w, a);
        mlp_kernels(g, &host->experts[0].gate, rows_each > 0 ? rows_each : 1)->experts(g, layer, a);
    } else {
        dense_mlp(g, layer, a);
    }
    check_launches("mlp");
}

void gpu_op_finish(device *d, const step *s, bool draft, activations *a)
{
    gpu_device *g = gpu_of(d);
    const model_config *m = config_of(g);
    (void)s;
    norm_rows(g, a->x, m->hidden_size, draft ? g->weights.head_norm : g->weights.final_norm, m->norm_eps, a->hidden, m->hidden_size,
              m->hidden_size);
    check_launches("finish");
}

void gpu_op_logits(device *d, const float *hidden, int count, const int32_t *rows, activations *a)
{
    gpu_device *g = gpu_of(d);
    gpu_send_list(g, count, rows);
    project_rows(g, &g->weights.lm_head, g->row_list, g->row_list + 1, gpu_bucket_rows(g, count), hidden, a->logits, false);
    check_launches("logits");
}
