/* What a model needs computed: every matrix, expert and attention of a step, from the typed weights. */
#include "device/dispatch.h"

typedef struct visit {
    const model *m;
    kv_dtype kv;
    dispatch_visitor call;
    void *context;
    int layer;
} visit;

static void visit_linear(const visit *v, const matrix *w)
{
    dispatch_work work = {{dispatch_linear, w->format->name, (int)w->rows, (int)w->cols, 0}, .w = w, .layer = v->layer};
    v->call(v->context, &work);
}

static void visit_mlp(const visit *v, const mlp_weights *w, bool routed)
{
    const matrix *const parts[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++) {
        dispatch_key key = {dispatch_experts, parts[i]->format->name, (int)parts[i]->rows, (int)parts[i]->cols, 0};
        dispatch_work work = {key, .w = parts[i], .mlp = w, .layer = v->layer, .routed = routed};
        v->call(v->context, &work);
    }
}

static void visit_attention(const visit *v, const layer_weights *w)
{
    const model_config *c = &v->m->config;
    dispatch_key absorb = {dispatch_absorb, w->kv_b.format->name, c->kv_lora_rank, c->nope_dim, 0};
    dispatch_work work = {.key = absorb, .w = &w->kv_b, .layer = v->layer};
    v->call(v->context, &work);
    work.key = (dispatch_key){dispatch_value, w->kv_b.format->name, c->v_dim, c->kv_lora_rank, 0};
    v->call(v->context, &work);
    work = (dispatch_work){.key = {dispatch_attend, kv_dtype_name(v->kv), c->heads, c->kv_lora_rank + c->rope_dim, 0}, .layer = v->layer};
    v->call(v->context, &work);
}

static void visit_indexer(const visit *v, const indexer_weights *w)
{
    const model_config *c = &v->m->config;
    visit_linear(v, &w->q_b);
    visit_linear(v, &w->k);
    visit_linear(v, &w->head_weights);
    dispatch_work work = {.key = {dispatch_index, kv_dtype_name(v->kv), c->index_heads, c->index_dim, 0}, .layer = v->layer};
    v->call(v->context, &work);
}

static void visit_layer(const visit *v, const layer_weights *w)
{
    visit_linear(v, &w->q_a);
    visit_linear(v, &w->q_b);
    visit_linear(v, &w->kv_a);
    visit_linear(v, &w->o);
    visit_attention(v, w);
    if (w->full_index)
        visit_indexer(v, &w->indexer);
    if (!w->sparse) {
        visit_mlp(v, &w->mlp, false);
        return;
    }
    visit_linear(v, &w->router);
    for (int e = 0; e < v->m->config.experts; e++)
        visit_mlp(v, &w->experts[e], true);
    if (w->shared.gate.format)
        visit_mlp(v, &w->shared, false);
}

void dispatch_visit(const model *m, kv_dtype kv, dispatch_visitor call, void *context)
{
    visit v = {m, kv, call, context, 0};
    for (; v.layer < m->config.layers; v.layer++)
        visit_layer(&v, &m->layers[v.layer]);
    if (m->config.has_mtp) {
        visit_layer(&v, &m->mtp.layer);
        v.layer = -1;
        visit_linear(&v, &m->mtp.project);
    }
    v.layer = -1;
    visit_linear(&v, &m->lm_head);
}

typedef struct enumeration {
    dispatch_table *table;
    int last_bucket;
} enumeration;

static void add_work(void *context, const dispatch_work *work)
{
    const enumeration *e = context;
    dispatch_key key = work->key;
    for (key.bucket = 0; key.bucket <= e->last_bucket; key.bucket++)
        dispatch_add(e->table, &key);
}

void dispatch_enumerate(dispatch_table *t, const model *m, kv_dtype kv, int max_rows)
{
    enumeration e = {t, dispatch_bucket(max_rows)};
    dispatch_visit(m, kv, add_work, &e);
}
