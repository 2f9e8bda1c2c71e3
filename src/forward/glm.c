/* The trunk of GLM-5.2, top to bottom:
 *
 *     x = embed(token)
 *     for each layer:
 *         x += attention(norm(x))     latents to the pages; full layers choose the positions, shared layers reuse the choice
 *         x += mlp(norm(x))           dense in the first layers, then experts
 *     hidden = norm(x)                also what the draft head starts from
 *     logits = lm_head(hidden)        only for the rows that need them */
#include <stdlib.h>

#include "base/memory.h"
#include "forward/forward.h"
#include "forward/tap.h"

void forward_layer(forward *f, const step *s, int layer, bool choose)
{
    device *d = f->device;
    d->ops->attention_project(d, s, layer, &f->a);
    tap_attention_project(f, s, layer);
    if (choose) {
        d->ops->index_select(d, s, layer, &f->a);
        tap_index_select(f, s, layer);
    }
    d->ops->attend(d, s, layer, &f->a);
    tap_attend(f, s, layer);
    d->ops->mlp(d, s, layer, &f->a);
    tap_mlp(f, s, layer);
}

void forward_run(forward *f, const step *s)
{
    device *d = f->device;
    const model_config *m = &f->model->config;
    if (d->ops->begin(d, s, f->tap ? DEVICE_LOOSE : DEVICE_TRUNK, NULL, &f->a))
        return;
    d->ops->embed(d, s, &f->a);
    tap_embed(f, s);
    for (int layer = 0; layer < m->layers; layer++)
        forward_layer(f, s, layer, m->full_index[layer]);
    d->ops->finish(d, s, false, &f->a);
    tap_finish(f, s, false);
    d->ops->end(d);
}

const float *forward_logits(forward *f, int count, const int32_t *rows)
{
    device *d = f->device;
    d->ops->logits(d, f->a.hidden, count, rows, &f->a);
    d->ops->read(d, f->host_logits, f->a.logits, (size_t)count * (size_t)f->model->config.vocab_size * sizeof(float));
    return f->host_logits;
}

/* Floats of activations.mlp_act: every row through its experts and the shared ones, or through a dense MLP. */
static size_t mlp_act_floats(const model_config *m, size_t rows)
{
    size_t routed = (size_t)m->experts_per_token * (size_t)m->expert_intermediate;
    size_t sparse = routed + (size_t)m->shared_experts * (size_t)m->expert_intermediate;
    size_t dense = (size_t)m->dense_intermediate;
    return rows * (sparse > dense ? sparse : dense);
}

typedef struct buffer_row {
    void **pointer;
    size_t items; /* of 4 bytes */
} buffer_row;

enum { BUFFERS = 23 };

/* The size of every buffer; the shapes are those of device.h. */
static void list_buffers(forward *f, buffer_row out[BUFFERS])
{
    const model_config *m = &f->model->config;
    activations *a = &f->a;
    size_t rows = (size_t)f->max_rows, hidden = (size_t)m->hidden_size, heads = (size_t)m->heads, rank = (size_t)m->kv_lora_rank;
    size_t topk = (size_t)m->index_topk, per_token = (size_t)m->experts_per_token;
    const buffer_row list[BUFFERS] = {
        {(void **)&a->rope, rows * (size_t)m->rope_dim},
        {(void **)&a->x, rows * hidden},
        {(void **)&a->h, rows * hidden},
        {(void **)&a->q_latent, rows * (size_t)m->q_lora_rank},
        {(void **)&a->q, rows * heads * (size_t)(m->nope_dim + m->rope_dim)},
        {(void **)&a->latent, rows * (rank + (size_t)m->rope_dim)},
        {(void **)&a->index_q, rows * (size_t)m->index_heads * (size_t)m->index_dim},
        {(void **)&a->index_k, rows * (size_t)m->index_dim},
        {(void **)&a->index_weights, rows * (size_t)m->index_heads},
        {(void **)&a->selected, rows * topk},
        {(void **)&a->selected_count, rows},
        {(void **)&a->q_absorbed, rows * heads * rank},
        {(void **)&a->attended_latent, rows * heads * rank},
        {(void **)&a->attended, rows * heads * (size_t)m->v_dim},
        {(void **)&a->router_scores, rows * (size_t)m->experts},
        {(void **)&a->router_experts, rows * per_token},
        {(void **)&a->router_weights, rows * per_token},
        {(void **)&a->mlp_act, mlp_act_floats(m, rows)},
        {(void **)&a->hidden, rows * hidden},
        {(void **)&a->logits, (size_t)f->max_logit_rows * (size_t)m->vocab_size},
        {(void **)&f->draft_hidden, m->has_mtp ? rows * hidden : 1},
        {(void **)&f->draft_selected, m->has_mtp ? rows * topk : 1},
        {(void **)&f->draft_selected_count, rows},
    };
    for (int i = 0; i < BUFFERS; i++)
        out[i] = list[i];
}

forward *forward_create(device *d, int max_rows, int max_logit_rows, error *err)
{
    forward *f = mem_alloc(1, sizeof *f);
    *f = (forward){.device = d, .model = d->model, .max_rows = max_rows, .max_logit_rows = max_logit_rows};
    buffer_row buffers[BUFFERS];
    list_buffers(f, buffers);
    bool ok = true;
    size_t bytes = 0;
    for (int i = 0; i < BUFFERS; i++) {
        bytes += buffers[i].items * 4;
        *buffers[i].pointer = d->ops->alloc(d, buffers[i].items * 4);
        ok = ok && *buffers[i].pointer;
    }
    f->host_logits = d->ops->alloc_host(d, (size_t)max_logit_rows * (size_t)d->model->config.vocab_size * sizeof(float));
    if (ok && f->host_logits)
        return f;
    forward_destroy(f);
    error_set(err, ERROR_FIT, "no memory for the activations of %d rows (%zu MB); use a smaller --chunk", max_rows, bytes >> 20);
    return NULL;
}

void forward_destroy(forward *f)
{
    if (!f)
        return;
    buffer_row buffers[BUFFERS];
    list_buffers(f, buffers);
    for (int i = 0; i < BUFFERS; i++)
        f->device->ops->free(f->device, *buffers[i].pointer);
    f->device->ops->free_host(f->device, f->host_logits);
    free(f);
}
