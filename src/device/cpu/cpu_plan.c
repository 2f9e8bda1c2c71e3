/* Which matrix kernel runs for which weight and number of rows: every shape of the model is entered into the dispatch table when the
 * device is created, each with the variant that the rule takes; what is in the table at the time of a step is what runs. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu.h"

static const int BUCKET_TYPICAL_ROWS[DISPATCH_BUCKETS] = {1, 3, 10, 32, 128, 512};

static cpu_plan *find_plan(const cpu_device *c, const char *operation, const matrix *w)
{
    for (int i = 0; i < c->plan_count; i++) {
        cpu_plan *p = &c->plans[i];
        if (p->format == w->format && p->n == w->rows && p->k == w->cols && strcmp(p->operation, operation) == 0)
            return p;
    }
    return NULL;
}

static dispatch_key key_of(const cpu_plan *p, int bucket)
{
    return (dispatch_key){p->operation, p->format->name, (int)p->n, (int)p->k, bucket};
}

static void add_matrix(cpu_device *c, const char *operation, const matrix *w)
{
    if (!w->format)
        return;
    cpu_plan *p = find_plan(c, operation, w);
    if (!p) {
        c->plans = mem_grow(c->plans, (size_t)c->plan_count + 1, sizeof *c->plans);
        p = &c->plans[c->plan_count++];
        *p = (cpu_plan){operation, w->format, w->rows, w->cols, cpu_input_of(w->format, c->exact), {0}};
    }
    for (int b = 0; b < DISPATCH_BUCKETS; b++) {
        dispatch_key key = key_of(p, b);
        dispatch_add(&c->dispatch, &key);
    }
}

static void add_mlp(cpu_device *c, const mlp_weights *w)
{
    add_matrix(c, "experts", &w->gate);
    add_matrix(c, "experts", &w->up);
    add_matrix(c, "experts", &w->down);
}

static void add_layer(cpu_device *c, const layer_weights *w)
{
    const matrix *const linear[] = {&w->q_a, &w->q_b, &w->kv_a, &w->o, &w->router,
                                    &w->indexer.q_b, &w->indexer.k, &w->indexer.head_weights};
    for (size_t i = 0; i < sizeof linear / sizeof linear[0]; i++)
        add_matrix(c, "linear", linear[i]);
    add_mlp(c, &w->mlp);
    add_mlp(c, &w->shared);
    for (int e = 0; w->experts && e < c->base.model->config.experts; e++)
        add_mlp(c, &w->experts[e]);
}

static void choose(cpu_device *c, cpu_plan *p)
{
    for (int b = 0; b < DISPATCH_BUCKETS; b++) {
        dispatch_key key = key_of(p, b);
        dispatch_row *row = dispatch_find(&c->dispatch, &key);
        row->variant = cpu_matmul_by_rule(p->input, c->set, BUCKET_TYPICAL_ROWS[b]);
        row->name = c->matmuls[p->input][row->variant]->name;
        row->source = c->matmuls[p->input][1] ? DISPATCH_HEURISTIC : DISPATCH_ONLY;
        p->rows[b] = row;
    }
}

void cpu_plan_model(cpu_device *c)
{
    const model *m = c->base.model;
    for (int input = 0; input < CPU_INPUT_COUNT; input++)
        for (int i = 0; i < CPU_MOST_MATMULS; i++)
            c->matmuls[input][i] = cpu_matmul_at((cpu_input)input, c->set, i);
    for (int i = 0; i < m->config.layers; i++)
        add_layer(c, &m->layers[i]);
    add_matrix(c, "linear", &m->lm_head);
    if (m->config.has_mtp) {
        add_matrix(c, "linear", &m->mtp.project);
        add_layer(c, &m->mtp.layer);
    }
    for (int i = 0; i < c->plan_count; i++)
        choose(c, &c->plans[i]);
}

void cpu_plan_free(cpu_device *c)
{
    free(c->plans);
    dispatch_free(&c->dispatch);
}

const cpu_matmul *cpu_matmul_for(const cpu_device *c, const char *operation, const matrix *w, int rows)
{
    const cpu_plan *p = find_plan(c, operation, w);
    assert(p);
    return c->matmuls[p->input][p->rows[dispatch_bucket(rows)]->variant];
}
