/* Opening a checkpoint: config.json first, then every tensor of the architecture by the tables of tensors.c, then the
 * tensors that are left over, then the comparison with config.json's own claims (weights_report.c).
 *
 * A tensor that is not there does not stop the walk: all are counted and the first few named, together with tensors that have no
 * place, because a renamed tensor shows up as one of each. */
#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/load.h"

enum { NAMES_SHOWN = 4 };

static const tensor_endings separate = {".weight", ".weight_scale", ".weight_scale_inv", ".weight_scale_2"};
static const tensor_endings stacked = {"", "_scale", "_scale_inv", "_scale_2"};

/* Tensors that checkpoints carry and inference does not read. */
typedef struct harmless_rule {
    bool draft;         /* only in the draft layer */
    const char *ending;
    const char *why;
} harmless_rule;

static const harmless_rule harmless[] = {
    {false, ".input_scale", "activation scales of another engine"},
    {false, ".k_scale", "key cache scales of another engine"},
    {false, ".v_scale", "value cache scales of another engine"},
    {false, ".rotary_emb.inv_freq", "rope frequencies, computed here"},
    {true, ".shared_head.head.weight", "the draft layer's copy of lm_head"},
    {true, ".embed_tokens.weight", "the draft layer's copy of the embedding"},
};

enum { HARMLESS_COUNT = sizeof harmless / sizeof *harmless };

void sentence_add(disagreement **list, int *count, const char *pattern, ...)
{
    va_list args, again;
    va_start(args, pattern);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, pattern, args);
    char *sentence = mem_alloc((size_t)(length > 0 ? length : 0) + 1, 1);
    vsnprintf(sentence, (size_t)(length > 0 ? length : 0) + 1, pattern, again);
    va_end(args);
    va_end(again);
    *list = mem_grow(*list, (size_t)*count + 1, sizeof **list);
    (*list)[(*count)++].text = sentence;
}

/* A list of names in brackets: the first few, then "...". */
static void names_add(text *list, int count, const char *name)
{
    if (count < NAMES_SHOWN)
        text_add_format(list, "%s%s", count ? ", " : " (", name);
}

static const char *names_close(text *list, int count)
{
    text_add_text(list, count > NAMES_SHOWN ? ", ...)" : count ? ")" : "");
    return list->data;
}

const tensor *load_find(loader *l, const char *name)
{
    int64_t index;
    if (!map_get(&l->names, view_of(name), &index))
        return NULL;
    l->used[index] = true;
    return checkpoint_tensor(l->c, (size_t)index);
}

void load_missing(loader *l, const char *name)
{
    names_add(&l->missing, l->missing_count, name);
    l->missing_count++;
}

static void remember_module(loader *l, const stored_matrix *s, const char *ending)
{
    view name = {s->weight->name, strlen(s->weight->name) - strlen(ending)};
    if (l->module_count == l->module_capacity) {
        l->module_capacity = l->module_capacity ? 2 * l->module_capacity : 256;
        l->modules = mem_grow(l->modules, l->module_capacity, sizeof *l->modules);
    }
    l->modules[l->module_count++] = (loaded_module){name, s->first.format->id};
}

static void count_format(loader *l, const stored_matrix *s, int times)
{
    format_id id = s->first.format->id;
    l->m->format_tensors[id] += times;
    l->m->format_bytes[id] += (uint64_t)times * (s->data_bytes + s->scale_bytes + (s->tensor_scales ? sizeof(float) : 0));
}

static bool load_matrix(loader *l, const char *module, int64_t rows, int64_t cols, matrix *out)
{
    stored_matrix s;
    if (!load_stored(l, module, &separate, 0, rows, cols, &s))
        return false;
    *out = s.first;
    if (!s.first.format)
        return true;
    count_format(l, &s, 1);
    remember_module(l, &s, separate.weight);
    return true;
}

/* Loads all rows of a table into the struct at base; prefix begins every name. */
static bool load_table(loader *l, const tensor_table *t, const char *prefix, void *base)
{
    text name = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < t->count; i++) {
        const tensor_row *r = &t->rows[i];
        text_clear(&name);
        text_add_format(&name, "%s%s", prefix, r->name);
        void *field = (char *)base + r->field;
        ok = r->cols == DIM_ONE ? load_vector(l, name.data, l->dims[r->rows], field)
                                : load_matrix(l, name.data, l->dims[r->rows], l->dims[r->cols], field);
    }
    text_free(&name);
    return ok;
}

/* One stacked tensor [experts][rows][cols] of a layer's experts. */
static bool load_stack(loader *l, const char *prefix, const char *tail, int64_t rows, int64_t cols, stored_matrix *out)
{
    text module = {0};
    text_add_format(&module, "%s%s", prefix, tail);
    bool ok = load_stored(l, module.data, &stacked, l->dims[DIM_EXPERTS], rows, cols, out);
    text_free(&module);
    return ok;
}

/* HF's own layout: gate and up of all experts in one tensor, gate rows first, and down in another. */
static bool load_stacked_experts(loader *l, const char *prefix, mlp_weights *experts)
{
    stored_matrix gate_up, down;
    int64_t width = l->dims[DIM_EXPERT];
    if (!load_stack(l, prefix, "gate_up_proj", 2 * width, l->dims[DIM_HIDDEN], &gate_up) ||
        !load_stack(l, prefix, "down_proj", l->dims[DIM_HIDDEN], width, &down))
        return false;
    if (!gate_up.weight || !down.weight)
        return true;
    if (gate_up.first.format->block_rows > 1 && width % gate_up.first.format->block_rows != 0)
        return error_set(l->err, ERROR_INPUT,
                         "%s: tensor %s has scales per %d rows, but the up part begins at row %lld, inside a block",
                         l->m->directory, gate_up.weight->name, gate_up.first.format->block_rows, (long long)width);
    for (int64_t e = 0; e < l->dims[DIM_EXPERTS]; e++) {
        matrix both = stored_at(&gate_up, e);
        experts[e] = (mlp_weights){matrix_rows(&both, 0, width), matrix_rows(&both, width, width), stored_at(&down, e)};
    }
    count_format(l, &gate_up, (int)l->dims[DIM_EXPERTS]);
    count_format(l, &down, (int)l->dims[DIM_EXPERTS]);
    remember_module(l, &gate_up, stacked.weight);
    remember_module(l, &down, stacked.weight);
    return true;
}

static bool load_separate_experts(loader *l, const char *prefix, mlp_weights *experts)
{
    text name = {0};
    bool ok = true;
    for (int64_t e = 0; ok && e < l->dims[DIM_EXPERTS]; e++) {
        text_clear(&name);
        text_add_format(&name, "%s%lld.", prefix, (long long)e);
        ok = load_table(l, &tensors_expert, name.data, &experts[e]);
    }
    text_free(&name);
    return ok;
}

/* Whether a tensor prefix + tail exists. */
static bool has_tensor(loader *l, const char *prefix, const char *tail)
{
    int64_t index;
    text_clear(&l->name);
    text_add_format(&l->name, "%s%s", prefix, tail);
    return map_get(&l->names, view_of(l->name.data), &index);
}

static bool load_experts(loader *l, const char *layer, layer_weights *w)
{
    text prefix = {0};
    text_add_format(&prefix, "%smlp.experts.", layer);
    bool ok = true, is_stacked = has_tensor(l, prefix.data, "gate_up_proj");
    if (!is_stacked && !w->router.format && !has_tensor(l, prefix.data, "0.gate_proj.weight")) {
        load_missing(l, l->name.data); /* their number is only a claim: allocate nothing for it */
        l->missing_count += 3 * (int)l->dims[DIM_EXPERTS] - 1;
    } else {
        w->experts = arena_alloc(&l->m->memory, (size_t)l->dims[DIM_EXPERTS], sizeof *w->experts);
        ok = is_stacked ? load_stacked_experts(l, prefix.data, w->experts) : load_separate_experts(l, prefix.data, w->experts);
    }
    text_free(&prefix);
    return ok;
}

static bool load_layer(loader *l, const char *prefix, bool full, bool sparse, layer_weights *w)
{
    w->full_index = full;
    w->sparse = sparse;
    if (!load_table(l, &tensors_layer, prefix, w) || (full && !load_table(l, &tensors_indexer, prefix, w)))
        return false;
    if (!sparse)
        return load_table(l, &tensors_dense, prefix, w);
    return load_table(l, &tensors_sparse, prefix, w) &&
           (l->m->config.shared_experts == 0 || load_table(l, &tensors_shared, prefix, w)) && load_experts(l, prefix, w);
}

static const char *layer_prefix(text *buffer, int layer)
{
    text_clear(buffer);
    text_add_format(buffer, "model.layers.%d.", layer);
    return buffer->data;
}

/* The draft layer is there when any tensor carries its number. HF leaves it out when it saves a model. */
static void find_mtp(loader *l, const char *prefix)
{
    bool claimed = l->m->config.has_mtp, found = false;
    for (size_t i = 0; !found && i < checkpoint_count(l->c); i++)
        found = text_starts_with(checkpoint_tensor(l->c, i)->name, prefix);
    l->m->config.has_mtp = found;
    if (claimed && !found)
        sentence_add(&l->m->notices, &l->m->notice_count,
                     "config.json announces a draft layer (num_nextn_predict_layers 1), but there is no tensor "
                     "%s*: loaded without it, speculative decoding is not possible",
                     prefix);
    if (!claimed && found)
        sentence_add(&l->m->notices, &l->m->notice_count,
                     "config.json announces no draft layer (num_nextn_predict_layers), but there are tensors "
                     "%s*: loaded as the draft layer",
                     prefix);
}

static bool load_mtp(loader *l, const char *prefix)
{
    if (!l->m->config.has_mtp)
        return true;
    return load_table(l, &tensors_mtp, prefix, &l->m->mtp) && load_layer(l, prefix, true, true, &l->m->mtp.layer);
}

static bool load_head(loader *l)
{
    model *m = l->m;
    if (!m->config.tie_embeddings)
        return load_table(l, &tensors_head, "", m);
    m->lm_head = m->embed;
    if (load_find(l, "lm_head.weight"))
        sentence_add(&m->notices, &m->notice_count,
                     "config.json ties lm_head to the embedding (tie_word_embeddings): lm_head.weight is not read");
    return true;
}

static bool load_all(loader *l)
{
    model *m = l->m;
    text prefix = {0};
    m->layers = arena_alloc(&m->memory, (size_t)m->config.layers, sizeof *m->layers);
    bool ok = load_table(l, &tensors_top, "", m) && load_head(l);
    for (int i = 0; ok && i < m->config.layers; i++)
        ok = load_layer(l, layer_prefix(&prefix, i), m->config.full_index[i], m->config.sparse_mlp[i], &m->layers[i]);
    if (ok) {
        find_mtp(l, layer_prefix(&prefix, m->config.layers));
        ok = load_mtp(l, prefix.data);
    }
    text_free(&prefix);
    return ok;
}

static int harmless_find(const char *name, const char *draft_prefix)
{
    for (int i = 0; i < HARMLESS_COUNT; i++)
        if (text_ends_with(name, harmless[i].ending) && (!harmless[i].draft || text_starts_with(name, draft_prefix)))
            return i;
    return -1;
}

static void report_harmless(model *m, const int counts[HARMLESS_COUNT])
{
    for (int i = 0; i < HARMLESS_COUNT; i++)
        if (counts[i])
            sentence_add(&m->notices, &m->notice_count, "%d tensor%s *%s (%s) not read", counts[i], counts[i] == 1 ? "" : "s",
                         harmless[i].ending, harmless[i].why);
}

/* Names what is missing and what has no place. */
static bool check_complete(loader *l)
{
    int surplus = 0, counts[HARMLESS_COUNT] = {0};
    text names = {0}, prefix = {0};
    layer_prefix(&prefix, l->m->config.layers);
    for (size_t i = 0; i < checkpoint_count(l->c); i++) {
        const char *name = checkpoint_tensor(l->c, i)->name;
        int rule = l->used[i] ? -1 : harmless_find(name, prefix.data);
        if (rule >= 0)
            counts[rule]++;
        else if (!l->used[i])
            names_add(&names, surplus++, name);
    }
    report_harmless(l->m, counts);
    bool ok = surplus == 0 && l->missing_count == 0;
    if (!ok)
        error_set(l->err, ERROR_INPUT,
                  "%s: the tensors do not fit config.json: %d missing%s, %d without a place%s; "
                  "is the download complete and config.json from the same model?",
                  l->m->directory, l->missing_count, names_close(&l->missing, l->missing_count), surplus,
                  names_close(&names, surplus));
    text_free(&names);
    text_free(&prefix);
    return ok;
}

static void loader_prepare(loader *l, model *m, error *err)
{
    *l = (loader){.m = m, .c = m->checkpoint, .err = err};
    size_t count = checkpoint_count(m->checkpoint);
    l->used = mem_alloc(count, sizeof *l->used);
    for (size_t i = 0; i < count; i++)
        map_add(&l->names, view_of(checkpoint_tensor(m->checkpoint, i)->name), (int64_t)i);
    dims_of(&m->config, l->dims);
}

static void loader_finish(loader *l)
{
    map_free(&l->names);
    free(l->used);
    free(l->modules);
    text_free(&l->name);
    text_free(&l->missing);
}

static void report_unknown_keys(model *m, const json_t *root)
{
    text keys = {0};
    if (config_unknown_keys(root, &keys))
        sentence_add(&m->notices, &m->notice_count, "config.json has keys that are not known here and were ignored: %s",
                     keys.data);
    text_free(&keys);
}

static bool model_load(model *m, const json_t *root, const char *config_path, error *err)
{
    if (!config_parse(root, config_path, &m->config, err))
        return false;
    report_unknown_keys(m, root);
    m->checkpoint = checkpoint_open(m->directory, err);
    if (!m->checkpoint)
        return false;
    loader l;
    loader_prepare(&l, m, err);
    bool ok = load_all(&l) && check_complete(&l);
    if (ok) {
        report_disagreements(&l, json_object_get(root, "quantization_config"));
        config_parameters(&m->config, &m->parameters, &m->active_parameters);
    }
    loader_finish(&l);
    return ok;
}

model *model_open(const char *directory, error *err)
{
    text path = {0};
    model *m = mem_alloc(1, sizeof *m);
    m->directory = mem_copy(directory, strlen(directory));
    json_t *root = config_read(directory, &path, err);
    bool ok = root && model_load(m, root, path.data, err);
    json_decref(root);
    text_free(&path);
    if (ok)
        return m;
    model_close(m);
    return NULL;
}

static void sentences_free(disagreement *list, int count)
{
    for (int i = 0; i < count; i++)
        free(list[i].text);
    free(list);
}

void model_close(model *m)
{
    if (!m)
        return;
    sentences_free(m->disagreements, m->disagreement_count);
    sentences_free(m->notices, m->notice_count);
    arena_free(&m->memory);
    if (m->checkpoint)
        checkpoint_close(m->checkpoint);
    free(m->directory);
    free(m);
}
