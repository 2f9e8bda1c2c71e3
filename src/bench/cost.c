#include "bench/cost.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu_matmul.h"

double cost_read_bytes(const cost *c)
{
    return c->weight_bytes + c->expert_bytes + c->key_bytes;
}

uint64_t matrix_bytes(const matrix *w)
{
    uint64_t data = 0, scales = 0;
    if (w->format) {
        format_data_bytes(w->format, w->rows, w->cols, &data);
        format_scale_bytes(w->format, w->rows, w->cols, &scales);
    }
    return data + scales;
}

void cost_counter_init(cost_counter *c, const forward *f, bool exact, int max_context)
{
    *c = (cost_counter){.forward = f, .exact = exact, .max_context = max_context};
    c->chosen = mem_alloc((size_t)f->model->config.experts + 1, sizeof *c->chosen);
    c->seen = mem_alloc((size_t)max_context / 64 + 1, sizeof *c->seen);
}

void cost_counter_free(cost_counter *c)
{
    free(c->chosen);
    free(c->seen);
}

/* Products of a matrix with some rows. */
static void add_products(cost_counter *c, const matrix *w, double rows)
{
    if (!w->format)
        return;
    double ops = 2.0 * (double)w->rows * (double)w->cols * rows;
    *(cpu_input_of(w->format, c->exact) == CPU_INPUT_Q8 ? &c->sum.byte_ops : &c->sum.fused_ops) += ops;
}

/* A matrix that a step reads once and multiplies with some rows. */
static void add_matrix(cost_counter *c, const matrix *w, double rows)
{
    c->sum.weight_bytes += (double)matrix_bytes(w);
    add_products(c, w, rows);
}

static void add_mlp(cost_counter *c, const mlp_weights *w, double rows)
{
    add_matrix(c, &w->gate, rows);
    add_matrix(c, &w->up, rows);
    add_matrix(c, &w->down, rows);
}

/* What a layer reads and multiplies whatever is chosen. kv_b works in two parts, each in f32 on every row. */
static void add_layer(cost_counter *c, const layer_weights *w, double rows)
{
    add_matrix(c, &w->q_a, rows);
    add_matrix(c, &w->q_b, rows);
    add_matrix(c, &w->kv_a, rows);
    add_matrix(c, &w->o, rows);
    c->sum.weight_bytes += (double)matrix_bytes(&w->kv_b);
    c->sum.fused_ops += 2.0 * (double)w->kv_b.rows * (double)w->kv_b.cols * rows;
    if (w->full_index) {
        add_matrix(c, &w->indexer.q_b, rows);
        add_matrix(c, &w->indexer.k, rows);
        add_matrix(c, &w->indexer.head_weights, rows);
    }
    if (!w->sparse) {
        add_mlp(c, &w->mlp, rows);
        return;
    }
    add_matrix(c, &w->router, rows);
    add_mlp(c, &w->shared, rows);
}

/* Index keys: rows that see more than index_topk positions score them all; a sequence's keys are read once for its last such row. */
static void add_index(cost_counter *c)
{
    const model_config *m = &c->forward->model->config;
    const step *s = c->s;
    for (int row = 0; row < s->rows; row++) {
        double seen = s->positions[row] + 1;
        if (seen <= m->index_topk)
            continue;
        c->sum.fused_ops += 2.0 * seen * m->index_heads * m->index_dim;
        if (row + 1 == s->rows || s->sequences[row + 1] != s->sequences[row])
            c->sum.key_bytes += seen * (double)c->forward->device->layout.index_bytes;
    }
}

static int bits_set(uint64_t word)
{
    int count = 0;
    for (; word; word &= word - 1)
        count++;
    return count;
}

/* How many positions the lists of a layer have: in all, and each once per sequence. */
static void count_selected(cost_counter *c, const tap_value *v)
{
    const int32_t *list = v->data;
    size_t words = (size_t)c->max_context / 64 + 1;
    c->selected = c->pairs = 0;
    for (int row = 0; row < v->rows; row++) {
        for (int i = 0; i < v->columns && list[(size_t)row * (size_t)v->columns + (size_t)i] >= 0; i++) {
            int32_t position = list[(size_t)row * (size_t)v->columns + (size_t)i];
            c->seen[position / 64] |= UINT64_C(1) << (position % 64);
            c->pairs++;
        }
        if (row + 1 < v->rows && c->s->sequences[row + 1] == c->s->sequences[row])
            continue;
        for (size_t i = 0; i < words; i++)
            c->selected += bits_set(c->seen[i]);
        memset(c->seen, 0, words * sizeof *c->seen);
    }
}

/* Scores and weighted sums over the positions that the latest list has. */
static void add_attention(cost_counter *c)
{
    const model_config *m = &c->forward->model->config;
    c->sum.key_bytes += c->selected * (double)c->forward->device->layout.latent_bytes;
    c->sum.fused_ops += c->pairs * m->heads * 2.0 * (2 * m->kv_lora_rank + m->rope_dim);
}

static void add_experts(cost_counter *c, const tap_value *v)
{
    const layer_weights *w = &c->forward->model->layers[v->layer];
    int experts = c->forward->model->config.experts;
    const int32_t *ids = v->data;
    memset(c->chosen, 0, (size_t)experts * sizeof *c->chosen);
    for (size_t i = 0; i < (size_t)v->rows * (size_t)v->columns; i++) {
        const mlp_weights *e = &w->experts[ids[i]];
        c->chosen[ids[i]] = true;
        add_products(c, &e->gate, 1);
        add_products(c, &e->up, 1);
        add_products(c, &e->down, 1);
    }
    for (int i = 0; i < experts; i++)
        if (c->chosen[i]) {
            const mlp_weights *e = &w->experts[i];
            c->sum.expert_bytes += (double)(matrix_bytes(&e->gate) + matrix_bytes(&e->up) + matrix_bytes(&e->down));
            c->sum.experts++;
        }
}

static void count_tap(void *context, const tap_value *v)
{
    cost_counter *c = context;
    if (strcmp(v->name, "selected") == 0) {
        add_index(c);
        count_selected(c, v);
    } else if (strcmp(v->name, "attended") == 0) {
        add_attention(c);
    } else if (strcmp(v->name, "router_experts") == 0) {
        add_experts(c, v);
    } else if (strcmp(v->name, "layer_out") == 0) {
        add_layer(c, &c->forward->model->layers[v->layer], v->rows);
    }
}

void cost_count_step(cost_counter *c, forward *f, const step *s, int logit_rows)
{
    tap_function tap = f->tap;
    void *context = f->tap_context;
    c->s = s;
    f->tap = count_tap;
    f->tap_context = c;
    forward_run(f, s);
    f->tap = tap;
    f->tap_context = context;
    c->s = NULL;
    c->sum.steps++;
    c->sum.logit_rows += logit_rows;
    if (logit_rows)
        add_matrix(c, &f->model->lm_head, logit_rows);
}
