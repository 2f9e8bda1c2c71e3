/* The variants of the GPU device, and the tuner's runs. A new variant is a row here, with the kernels it stands for. */
#include <stdio.h>
#include <string.h>

#include "device/gpu/gpu_device.h"

static const char *const levels[] = {"generic"};
enum { LEVELS = sizeof levels / sizeof levels[0] };

static const dispatch_variant variants[] = {
    {dispatch_linear, "generic", 0, 1, NULL, &gpu_generic}, {dispatch_experts, "generic", 0, 1, NULL, &gpu_generic},
    {dispatch_absorb, "generic", 0, 1, NULL, &gpu_generic}, {dispatch_value, "generic", 0, 1, NULL, &gpu_generic},
    {dispatch_attend, "generic", 0, 1, NULL, &gpu_generic}, {dispatch_index, "generic", 0, 1, NULL, &gpu_generic},
};

bool gpu_dispatch_create(gpu_device *g, const device_limits *limits, error *err)
{
    dispatch_table *t = &g->dispatch;
    char short_name[64];
    t->levels = levels;
    t->level_count = LEVELS;
    t->level = LEVELS - 1;
    t->variants = variants;
    t->variant_count = sizeof variants / sizeof variants[0];
    dispatch_device_name(g->properties.name, gpu_kind(), 1, short_name);
    snprintf(t->device_name, sizeof t->device_name, "%s%s", short_name, g->exact ? "-exact" : "");
    dispatch_enumerate(t, g->base.model, limits->kv, limits->max_rows);
    if (!dispatch_resolve(t, limits->tuned, limits->kernels, err))
        return false;
    snprintf(g->base.description, sizeof g->base.description, "%s, %.48s, %s kernels%s", gpu_kind(), g->properties.name, levels[t->level],
             g->exact ? ", exact" : "");
    return true;
}

/* ---- the tuner's runs ---- */

/* Where a matrix of the model lies on the GPU. */
static const gpu_matrix *matrix_on_gpu(const gpu_device *g, const dispatch_work *work)
{
    const model *m = g->base.model;
    if (work->layer < 0)
        return work->w == &m->lm_head ? &g->weights.lm_head : &g->weights.project;
    const layer_weights *w = work->layer == m->config.layers ? &m->mtp.layer : &m->layers[work->layer];
    const gpu_layer *on = &g->weights.layers[work->layer];
    const matrix *const host[] = {&w->q_a, &w->q_b, &w->kv_a, &w->o, &w->indexer.q_b, &w->indexer.k, &w->indexer.head_weights, &w->router};
    const gpu_matrix *const here[] = {&on->q_a, &on->q_b, &on->kv_a, &on->o, &on->index_q_b, &on->index_k, &on->index_weights, &on->router};
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++)
        if (host[i] == work->w)
            return here[i];
    return NULL;
}

void gpu_exercise(device *d, const device_trial *t)
{
    gpu_device *g = gpu_of(d);
    const dispatch_work *work = &t->works[0];
    const char *operation = work->key.operation;
    const gpu_matrix *w = operation == dispatch_linear ? matrix_on_gpu(g, work) : NULL;
    gpu_begin(d, t->s, DEVICE_LOOSE, NULL, t->a);
    if (w)
        gpu_project(g, w, t->in, t->out, false);
    else if (operation == dispatch_experts)
        gpu_op_mlp(d, t->s, work->layer, t->a); /* with the router's choice among all experts */
    else if (operation == dispatch_index)
        gpu_op_index_select(d, t->s, work->layer, t->a);
    else
        gpu_op_attend(d, t->s, work->layer, t->a);
    gpu_must(gpu_stream_wait(g->stream), "measuring");
}
