/* The generic variant of every operation: kernels for f32 activations and any weights, exact. */
#include "device/gpu/gpu_device.h"

static void generic_linear(gpu_device *g, const gpu_linear_args *a, int rows)
{
    gpu_linear(a, rows, g->stream);
}

static void generic_mlp(gpu_device *g, const gpu_mlp_args *a)
{
    gpu_gate_up(a, g->rows, 0, g->stream);
    gpu_down(a, g->rows, 0, g->stream);
}

/* The experts' lines of mlp_act come first, behind them those of the shared expert. */
static void generic_experts(gpu_device *g, int layer, activations *a)
{
    const model_config *m = &g->base.model->config;
    const gpu_layer *w = &g->weights.layers[layer];
    int pairs = g->rows * m->experts_per_token, most = pairs / GPU_EXPERT_ROWS + (pairs < m->experts ? pairs : m->experts);
    gpu_sort_args sort = {.step = g->step, .chosen = a->router_experts, .pair_rows = g->pair_rows, .slots = g->slots, .tiles = g->tiles,
                          .tile_count = g->tile_count, .counts = g->expert_counts, .experts = m->experts,
                          .per_token = m->experts_per_token};
    gpu_sort_pairs(&sort, g->stream);
    gpu_mlp_args mlp = {.step = g->step, .weights = w->experts, .tiles = g->tiles, .tile_count = g->tile_count,
                        .pair_rows = g->pair_rows, .x = a->h, .act = a->mlp_act, .out = g->pair_out, .hidden = m->hidden_size,
                        .wide = m->expert_intermediate, .x_stride = m->hidden_size};
    gpu_gate_up(&mlp, g->rows, most, g->stream);
    gpu_down(&mlp, g->rows, most, g->stream);
    if (w->shared) {
        gpu_mlp_args shared = {.step = g->step, .weights = w->shared, .x = a->h, .act = a->mlp_act, .out = g->shared_out,
                               .act_after = m->experts_per_token * m->expert_intermediate, .hidden = m->hidden_size,
                               .wide = (int32_t)gpu_host_layer(g, layer)->shared.gate.rows, .x_stride = m->hidden_size};
        generic_mlp(g, &shared);
    }
    gpu_combine_args combine = {.step = g->step, .routed = g->pair_out, .slots = g->slots, .weights = a->router_weights,
                                .shared = w->shared ? g->shared_out : NULL, .x = a->x, .per_token = m->experts_per_token,
                                .hidden = m->hidden_size};
    gpu_combine(&combine, g->rows, g->stream);
}

static void generic_absorb(gpu_device *g, const gpu_absorb_args *a)
{
    gpu_absorb(a, g->rows, g->stream);
}

static void generic_attend(gpu_device *g, const gpu_attend_args *a)
{
    gpu_attend(a, g->rows, g->stream);
}

/* Where no row can see more than topk positions, nothing is ever scored. */
static void generic_index(gpu_device *g, const gpu_index_score_args *scores, const gpu_select_args *select)
{
    if (g->max_context > scores->topk)
        gpu_index_scores(scores, g->stream);
    gpu_select(select, g->stream);
}

const gpu_kernels gpu_generic = {generic_linear, generic_mlp, generic_experts, generic_absorb, generic_attend, generic_index};
