#include "forward/tap.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static const tap_description DESCRIPTIONS[] = {
    {"embed", "hidden", "token embeddings", false},
    {"attention_norm", "hidden", "input of the attention, after its norm", true},
    {"q_latent", "q_lora_rank", "query latent after its norm", true},
    {"q", "heads x (nope + rope)", "queries, rope part rotated", true},
    {"latent", "kv_lora_rank + rope", "cached latent and rotated key part, before rounding to the cache format", true},
    {"index_q", "index_heads x index_dim", "index queries, rotated (layers with an indexer)", true},
    {"index_k", "index_dim", "index keys, before rounding to the cache format (layers with an indexer)", true},
    {"index_weights", "index_heads", "weights of the index heads (layers with an indexer)", true},
    {"selected", "index_topk", "positions attended to, ascending, -1 behind the last (layers with an indexer)", true},
    {"q_absorbed", "heads x kv_lora_rank", "queries in latent space", true},
    {"attended_latent", "heads x kv_lora_rank", "attention result in latent space", true},
    {"attended", "heads x v", "attention result", true},
    {"attention_out", "hidden", "residual stream after the attention", true},
    {"mlp_norm", "hidden", "input of the MLP, after its norm", true},
    {"router_scores", "experts", "sigmoid of the router (layers with experts)", true},
    {"router_experts", "experts_per_token", "chosen experts, ascending (layers with experts)", true},
    {"router_weights", "experts_per_token", "their weights (layers with experts)", true},
    {"mlp_act", "intermediate", "input of down_proj; with experts experts_per_token x intermediate, in the order of router_experts", true},
    {"shared_act", "shared intermediate", "input of the shared experts' down_proj (layers with experts)", true},
    {"layer_out", "hidden", "residual stream after the layer", true},
    {"hidden", "hidden", "after the final norm: input of lm_head", false},
    {"draft_hidden", "hidden", "after the draft head's norm", false},
};

const tap_description *tap_descriptions(int *count)
{
    *count = (int)(sizeof DESCRIPTIONS / sizeof DESCRIPTIONS[0]);
    return DESCRIPTIONS;
}

static void emit(forward *f, const step *s, const char *name, int layer, const void *data, int columns, bool integers)
{
    size_t bytes = (size_t)s->rows * (size_t)columns * 4;
    void *host = mem_alloc(bytes, 1);
    f->device->ops->read(f->device, host, data, bytes);
    tap_value v = {name, layer, integers, s->rows, columns, host};
    f->tap(f->tap_context, &v);
    free(host);
}

/* Lists have their own lengths: what lies behind the last position is shown as -1. */
static void emit_selected(forward *f, const step *s, int layer)
{
    device *d = f->device;
    size_t topk = (size_t)f->model->config.index_topk, rows = (size_t)s->rows;
    int32_t *list = mem_alloc(rows * topk, sizeof *list), *count = mem_alloc(rows, sizeof *count);
    d->ops->read(d, list, f->a.selected, rows * topk * sizeof *list);
    d->ops->read(d, count, f->a.selected_count, rows * sizeof *count);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = (size_t)count[row]; i < topk; i++)
            list[row * topk + i] = -1;
    tap_value v = {"selected", layer, true, s->rows, (int)topk, list};
    f->tap(f->tap_context, &v);
    free(list);
    free(count);
}

void tap_embed(forward *f, const step *s)
{
    if (f->tap)
        emit(f, s, "embed", -1, f->a.x, f->model->config.hidden_size, false);
}

void tap_attention_project(forward *f, const step *s, int layer)
{
    const model_config *m = &f->model->config;
    if (!f->tap)
        return;
    emit(f, s, "attention_norm", layer, f->a.h, m->hidden_size, false);
    emit(f, s, "q_latent", layer, f->a.q_latent, m->q_lora_rank, false);
    emit(f, s, "q", layer, f->a.q, m->heads * (m->nope_dim + m->rope_dim), false);
    emit(f, s, "latent", layer, f->a.latent, m->kv_lora_rank + m->rope_dim, false);
}

void tap_index_select(forward *f, const step *s, int layer)
{
    const model_config *m = &f->model->config;
    if (!f->tap)
        return;
    emit(f, s, "index_q", layer, f->a.index_q, m->index_heads * m->index_dim, false);
    emit(f, s, "index_k", layer, f->a.index_k, m->index_dim, false);
    emit(f, s, "index_weights", layer, f->a.index_weights, m->index_heads, false);
    emit_selected(f, s, layer);
}

void tap_attend(forward *f, const step *s, int layer)
{
    const model_config *m = &f->model->config;
    if (!f->tap)
        return;
    emit(f, s, "q_absorbed", layer, f->a.q_absorbed, m->heads * m->kv_lora_rank, false);
    emit(f, s, "attended_latent", layer, f->a.attended_latent, m->heads * m->kv_lora_rank, false);
    emit(f, s, "attended", layer, f->a.attended, m->heads * m->v_dim, false);
    emit(f, s, "attention_out", layer, f->a.x, m->hidden_size, false);
}

/* The lines of mlp_act are sorted by expert (device.h); the tap shows them row by row, in the order of router_experts. */
static void emit_expert_act(forward *f, const step *s, int layer)
{
    const model_config *m = &f->model->config;
    size_t wide = (size_t)m->expert_intermediate, pairs = (size_t)s->rows * (size_t)m->experts_per_token;
    float *sorted = mem_alloc(pairs * wide, sizeof *sorted), *lines = mem_alloc(pairs * wide, sizeof *lines);
    int32_t *experts = mem_alloc(pairs, sizeof *experts);
    size_t *next = mem_alloc((size_t)m->experts + 1, sizeof *next);
    f->device->ops->read(f->device, sorted, f->a.mlp_act, pairs * wide * sizeof *sorted);
    f->device->ops->read(f->device, experts, f->a.router_experts, pairs * sizeof *experts);
    for (size_t p = 0; p < pairs; p++)
        next[experts[p] + 1]++;
    for (int e = 0; e < m->experts; e++)
        next[e + 1] += next[e];
    for (size_t p = 0; p < pairs; p++)
        memcpy(lines + p * wide, sorted + next[experts[p]]++ * wide, wide * sizeof *lines);
    tap_value v = {"mlp_act", layer, false, s->rows, m->experts_per_token * m->expert_intermediate, lines};
    f->tap(f->tap_context, &v);
    free(sorted);
    free(lines);
    free(experts);
    free(next);
}

static void tap_experts(forward *f, const step *s, int layer)
{
    const model_config *m = &f->model->config;
    size_t routed = (size_t)s->rows * (size_t)m->experts_per_token * (size_t)m->expert_intermediate;
    emit(f, s, "router_scores", layer, f->a.router_scores, m->experts, false);
    emit(f, s, "router_experts", layer, f->a.router_experts, m->experts_per_token, true);
    emit(f, s, "router_weights", layer, f->a.router_weights, m->experts_per_token, false);
    emit_expert_act(f, s, layer);
    if (m->shared_experts > 0)
        emit(f, s, "shared_act", layer, f->a.mlp_act + routed, m->shared_experts * m->expert_intermediate, false);
}

void tap_mlp(forward *f, const step *s, int layer)
{
    const model_config *m = &f->model->config;
    if (!f->tap)
        return;
    emit(f, s, "mlp_norm", layer, f->a.h, m->hidden_size, false);
    if (layer == m->layers || m->sparse_mlp[layer])
        tap_experts(f, s, layer);
    else
        emit(f, s, "mlp_act", layer, f->a.mlp_act, m->dense_intermediate, false);
    emit(f, s, "layer_out", layer, f->a.x, m->hidden_size, false);
}

void tap_finish(forward *f, const step *s, bool draft)
{
    if (f->tap)
        emit(f, s, draft ? "draft_hidden" : "hidden", -1, f->a.hidden, f->model->config.hidden_size, false);
}
