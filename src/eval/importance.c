#include "eval/importance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/safetensors.h"

/* Sums of squares of the columns of one activation. */
typedef struct column_sums {
    double *sums; /* [columns] */
    int columns;
    int64_t rows;
} column_sums;

typedef struct layer_sums {
    column_sums attention_norm, q_latent, attended, mlp_norm;
    column_sums mlp_act;     /* dense: input of down_proj */
    column_sums shared_act;
    column_sums *expert_in;  /* [experts] */
    column_sums *expert_act; /* [experts] */
    bool sparse, full_index;
} layer_sums;

struct importance {
    session *session;
    const model_config *config;
    layer_sums *layers;    /* [layer_count] */
    int layer_count;       /* the draft layer included */
    column_sums hidden;    /* input of lm_head */
    float *norm_rows;      /* [max_rows][hidden] mlp_norm of the running layer */
    int32_t *experts;      /* [max_rows][experts_per_token] of the running layer */
    int64_t tokens;
};

/* ---- collecting ---- */

static void add_row(column_sums *s, const float *row)
{
    for (int i = 0; i < s->columns; i++)
        s->sums[i] += (double)row[i] * (double)row[i];
    s->rows++;
}

static void add_rows(column_sums *s, const tap_value *v)
{
    for (int row = 0; row < v->rows && v->columns == s->columns; row++)
        add_row(s, (const float *)v->data + (size_t)row * (size_t)v->columns);
}

/* router_experts comes behind mlp_norm of the same rows: each row counts for its experts. */
static void take_experts(importance *m, layer_sums *l, const tap_value *v)
{
    const int32_t *ids = v->data;
    size_t hidden = (size_t)m->config->hidden_size;
    memcpy(m->experts, ids, (size_t)v->rows * (size_t)v->columns * sizeof *ids);
    for (int row = 0; row < v->rows; row++)
        for (int k = 0; k < v->columns; k++)
            add_row(&l->expert_in[ids[row * v->columns + k]], m->norm_rows + (size_t)row * hidden);
}

/* mlp_act of a sparse layer: one line per expert of a row, in the order of router_experts. */
static void take_expert_act(importance *m, layer_sums *l, const tap_value *v)
{
    int per_token = m->config->experts_per_token, wide = m->config->expert_intermediate;
    const float *lines = v->data;
    for (int pair = 0; pair < v->rows * per_token; pair++)
        add_row(&l->expert_act[m->experts[pair]], lines + (size_t)pair * (size_t)wide);
}

static void take(void *context, const tap_value *v)
{
    importance *m = context;
    if (strcmp(v->name, "hidden") == 0)
        add_rows(&m->hidden, v);
    if (v->layer < 0)
        return;
    layer_sums *l = &m->layers[v->layer];
    const struct {
        const char *name;
        column_sums *sums;
    } plain[] = {{"attention_norm", &l->attention_norm}, {"q_latent", &l->q_latent},  {"attended", &l->attended},
                 {"mlp_norm", &l->mlp_norm},             {"shared_act", &l->shared_act}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(v->name, plain[i].name) == 0)
            add_rows(plain[i].sums, v);
    if (strcmp(v->name, "mlp_norm") == 0)
        memcpy(m->norm_rows, v->data, (size_t)v->rows * (size_t)v->columns * sizeof *m->norm_rows);
    else if (strcmp(v->name, "router_experts") == 0)
        take_experts(m, l, v);
    else if (strcmp(v->name, "mlp_act") == 0 && l->sparse)
        take_expert_act(m, l, v);
    else if (strcmp(v->name, "mlp_act") == 0)
        add_rows(&l->mlp_act, v);
}

/* The draft layer over the rows of the latest step whose next token is known. */
static void extend_drafts(importance *m, const int32_t *tokens, int first, int rows)
{
    session *s = m->session;
    int32_t *positions = mem_alloc((size_t)rows, sizeof *positions), *sequences = mem_alloc((size_t)rows, sizeof *sequences);
    const int32_t *tables[1] = {s->page_table};
    for (int i = 0; i < rows; i++)
        positions[i] = first + i;
    step draft = {.rows = rows, .tokens = tokens + first + 1, .positions = positions, .sequences = sequences, .page_tables = tables,
                  .pages = s->pages->memory, .keep_keys = true};
    forward_draft_extend(s->forward, &draft, s->forward->a.hidden);
    free(positions);
    free(sequences);
}

bool importance_add(importance *m, const int32_t *tokens, int count, error *err)
{
    session_truncate(m->session, 0);
    for (int first = 0; first < count;) {
        int n = count - first < m->session->chunk ? count - first : m->session->chunk;
        int known = first + n < count ? n : n - 1;
        if (!session_feed(m->session, tokens + first, n, err))
            return false;
        if (m->config->has_mtp && known > 0)
            extend_drafts(m, tokens, first, known);
        first += n;
    }
    m->tokens += count;
    return true;
}

/* ---- memory ---- */

static bool start(column_sums *s, int columns)
{
    s->columns = columns;
    s->sums = mem_try_alloc((size_t)(columns ? columns : 1), sizeof *s->sums);
    return s->sums != NULL;
}

static bool start_experts(layer_sums *l, const model_config *c)
{
    l->expert_in = mem_alloc((size_t)c->experts, sizeof *l->expert_in);
    l->expert_act = mem_alloc((size_t)c->experts, sizeof *l->expert_act);
    bool ok = start(&l->shared_act, c->shared_experts * c->expert_intermediate);
    for (int e = 0; ok && e < c->experts; e++)
        ok = start(&l->expert_in[e], c->hidden_size) && start(&l->expert_act[e], c->expert_intermediate);
    return ok;
}

static bool start_layer(layer_sums *l, const model_config *c, int layer)
{
    bool draft = layer == c->layers;
    l->sparse = draft || c->sparse_mlp[layer];
    l->full_index = draft || c->full_index[layer];
    return start(&l->attention_norm, c->hidden_size) && start(&l->q_latent, c->q_lora_rank) && start(&l->attended, c->heads * c->v_dim) &&
           start(&l->mlp_norm, c->hidden_size) && (l->sparse ? start_experts(l, c) : start(&l->mlp_act, c->dense_intermediate));
}

importance *importance_create(session *s, error *err)
{
    importance *m = mem_alloc(1, sizeof *m);
    const model_config *c = &s->forward->model->config;
    size_t rows = (size_t)s->forward->max_rows;
    m->session = s;
    m->config = c;
    m->layer_count = c->layers + (c->has_mtp ? 1 : 0);
    m->layers = mem_alloc((size_t)m->layer_count, sizeof *m->layers);
    m->norm_rows = mem_alloc(rows * (size_t)c->hidden_size, sizeof *m->norm_rows);
    m->experts = mem_alloc(rows * (size_t)c->experts_per_token, sizeof *m->experts);
    bool ok = start(&m->hidden, c->hidden_size);
    for (int i = 0; ok && i < m->layer_count; i++)
        ok = start_layer(&m->layers[i], c, i);
    if (!ok) {
        importance_free(m);
        error_set(err, ERROR_FIT, "no memory for the statistics of %d layers", c->layers);
        return NULL;
    }
    s->forward->tap = take;
    s->forward->tap_context = m;
    return m;
}

void importance_free(importance *m)
{
    if (!m)
        return;
    m->session->forward->tap = NULL;
    for (int i = 0; i < m->layer_count; i++) {
        layer_sums *l = &m->layers[i];
        column_sums *all[] = {&l->attention_norm, &l->q_latent, &l->attended, &l->mlp_norm, &l->mlp_act, &l->shared_act};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            free(all[k]->sums);
        for (int e = 0; l->expert_in && e < m->config->experts; e++) {
            free(l->expert_in[e].sums);
            free(l->expert_act[e].sums);
        }
        free(l->expert_in);
        free(l->expert_act);
    }
    free(m->hidden.sums);
    free(m->layers);
    free(m->norm_rows);
    free(m->experts);
    free(m);
}

/* ---- writing ---- */

typedef struct statistic {
    char *module;
    const column_sums *sums;
} statistic;

typedef struct statistics {
    statistic *list;
    size_t count, capacity;
    column_sums *pooled; /* [layer_count] act of all experts of a layer together, for experts without rows */
    text lonely;         /* their names */
    int lonely_count;
} statistics;

/* expert -1: none. Without rows there is nothing to say about a matrix. */
static void list_add(statistics *s, const column_sums *sums, int layer, int expert, const char *matrix_name)
{
    if (sums->columns == 0 || sums->rows == 0)
        return;
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->list = mem_grow(s->list, s->capacity, sizeof *s->list);
    }
    text name = {0};
    if (layer >= 0)
        text_add_format(&name, "model.layers.%d.", layer);
    if (expert >= 0)
        text_add_format(&name, "mlp.experts.%d.", expert);
    text_add_text(&name, matrix_name);
    s->list[s->count++] = (statistic){name.data, sums};
}

static void pool_experts(const importance *m, const layer_sums *l, column_sums *out)
{
    out->columns = m->config->expert_intermediate;
    out->sums = mem_alloc((size_t)out->columns, sizeof *out->sums);
    for (int e = 0; e < m->config->experts; e++) {
        for (int i = 0; i < out->columns; i++)
            out->sums[i] += l->expert_act[e].sums[i];
        out->rows += l->expert_act[e].rows;
    }
}

static void list_experts(const importance *m, int layer, statistics *s)
{
    const layer_sums *l = &m->layers[layer];
    pool_experts(m, l, &s->pooled[layer]);
    for (int e = 0; e < m->config->experts; e++) {
        bool lonely = l->expert_in[e].rows == 0;
        const column_sums *in = lonely ? &l->mlp_norm : &l->expert_in[e], *act = lonely ? &s->pooled[layer] : &l->expert_act[e];
        list_add(s, in, layer, e, "gate_proj");
        list_add(s, in, layer, e, "up_proj");
        list_add(s, act, layer, e, "down_proj");
        if (lonely)
            text_add_format(&s->lonely, "%smodel.layers.%d.mlp.experts.%d", s->lonely_count++ ? "," : "", layer, e);
    }
}

static void list_layer(const importance *m, int layer, statistics *s)
{
    const layer_sums *l = &m->layers[layer];
    list_add(s, &l->attention_norm, layer, -1, "self_attn.q_a_proj");
    list_add(s, &l->attention_norm, layer, -1, "self_attn.kv_a_proj_with_mqa");
    list_add(s, &l->q_latent, layer, -1, "self_attn.q_b_proj");
    list_add(s, &l->attended, layer, -1, "self_attn.o_proj");
    if (l->full_index) {
        list_add(s, &l->attention_norm, layer, -1, "self_attn.indexer.wk");
        list_add(s, &l->attention_norm, layer, -1, "self_attn.indexer.weights_proj");
        list_add(s, &l->q_latent, layer, -1, "self_attn.indexer.wq_b");
    }
    if (!l->sparse) {
        list_add(s, &l->mlp_norm, layer, -1, "mlp.gate_proj");
        list_add(s, &l->mlp_norm, layer, -1, "mlp.up_proj");
        list_add(s, &l->mlp_act, layer, -1, "mlp.down_proj");
        return;
    }
    if (m->config->shared_experts > 0) {
        list_add(s, &l->mlp_norm, layer, -1, "mlp.shared_experts.gate_proj");
        list_add(s, &l->mlp_norm, layer, -1, "mlp.shared_experts.up_proj");
        list_add(s, &l->shared_act, layer, -1, "mlp.shared_experts.down_proj");
    }
    list_experts(m, layer, s);
}

static bool write_sums(safetensors_writer *w, const column_sums *s, error *err)
{
    float *means = mem_alloc((size_t)s->columns, sizeof *means);
    for (int i = 0; i < s->columns; i++)
        means[i] = (float)(s->sums[i] / (double)s->rows);
    bool ok = safetensors_writer_data(w, means, (size_t)s->columns * sizeof *means, err);
    free(means);
    return ok;
}

static bool write_file(const importance *m, const statistics *s, const char *path, const char *source, error *err)
{
    safetensors_writer *w = safetensors_writer_open(path, err);
    if (!w)
        return false;
    char tokens[24];
    snprintf(tokens, sizeof tokens, "%lld", (long long)m->tokens);
    safetensors_writer_metadata(w, "kind", "drawbridge importance 1: mean square of each input column");
    safetensors_writer_metadata(w, "tokens", tokens);
    safetensors_writer_metadata(w, "source", source);
    safetensors_writer_metadata(w, "experts_without_rows", s->lonely.data ? s->lonely.data : "");
    bool ok = true;
    for (size_t i = 0; ok && i < s->count; i++) {
        int64_t shape[1] = {s->list[i].sums->columns};
        ok = safetensors_writer_declare(w, s->list[i].module, DTYPE_F32, 1, shape, err);
    }
    for (size_t i = 0; ok && i < s->count; i++)
        ok = write_sums(w, s->list[i].sums, err);
    if (ok)
        return safetensors_writer_commit(w, err);
    safetensors_writer_abandon(w);
    return false;
}

bool importance_write(const importance *m, const char *path, const char *source, int *lonely, error *err)
{
    statistics s = {.pooled = mem_alloc((size_t)m->layer_count, sizeof *s.pooled)};
    for (int i = 0; i < m->layer_count; i++)
        list_layer(m, i, &s);
    list_add(&s, &m->hidden, -1, -1, "lm_head");
    bool ok = write_file(m, &s, path, source, err);
    *lonely = s.lonely_count;
    for (size_t i = 0; i < s.count; i++)
        free(s.list[i].module);
    for (int i = 0; i < m->layer_count; i++)
        free(s.pooled[i].sums);
    free(s.pooled);
    free(s.list);
    text_free(&s.lonely);
    return ok;
}
