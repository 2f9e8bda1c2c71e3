/* Making a plan: the tables of model/tensors.h are walked with the loaded weights beside them, so every matrix comes with its
 * source, whether it was stored by itself or in a stack of experts; then entries are ordered, paired and put into files.
 * Without weights the same walk gives a plan of shapes. */
#include "quantize/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "model/claims.h"
#include "model/tensors.h"

/* Where the walk is. */
typedef struct walker {
    plan *p;
    const model *m; /* NULL: shapes only */
    const model_config *config;
    int64_t dims[DIM_COUNT];
    plan_vector_maker make; /* shapes only */
    const void *context;
    bool draft;
    text name, why;
    bool *include_hit, *exclude_hit; /* [include_count], [exclude_count]: a module matched */
} walker;

static plan_entry *entry_add(plan *p)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 1024;
        p->entries = mem_grow(p->entries, p->capacity, sizeof *p->entries);
    }
    plan_entry *e = &p->entries[p->count++];
    *e = (plan_entry){.partner = PLAN_NO_PARTNER, .largest = -1.0f, .input_scale = 1.0f};
    return e;
}

static void output_add(plan *p, plan_entry *e, const char *ending, output_part part, dtype type, int rank, int64_t d0, int64_t d1)
{
    text name = {0};
    text_add_format(&name, "%s%s", e->module, ending);
    plan_output *o = &e->outputs[e->output_count++];
    *o = (plan_output){.name = arena_copy(&p->memory, name.data, name.length), .type = type, .rank = rank, .part = part};
    o->shape[0] = d0;
    o->shape[1] = d1;
    o->bytes = dtype_bytes(type) * (uint64_t)(rank > 0 ? d0 : 1) * (uint64_t)(rank > 1 ? d1 : 1);
    e->bytes += o->bytes;
    text_free(&name);
}

/* The tensors that a matrix of this format consists of, as the engines that made the format name them. */
static void outputs_of_matrix(plan *p, plan_entry *e)
{
    int64_t rows = e->source.rows, cols = e->source.cols;
    switch (e->to->id) {
    case FORMAT_F32: output_add(p, e, ".weight", PART_DATA, DTYPE_F32, 2, rows, cols); break;
    case FORMAT_FP8_BLOCK:
        output_add(p, e, ".weight", PART_DATA, DTYPE_F8_E4M3, 2, rows, cols);
        output_add(p, e, ".weight_scale_inv", PART_SCALES, DTYPE_F32, 2, (rows + 127) / 128, (cols + 127) / 128);
        break;
    case FORMAT_FP8_CHANNEL:
        output_add(p, e, ".weight", PART_DATA, DTYPE_F8_E4M3, 2, rows, cols);
        output_add(p, e, ".weight_scale", PART_SCALES, DTYPE_F32, 1, rows, 0);
        break;
    case FORMAT_MXFP4:
        output_add(p, e, ".weight", PART_DATA, DTYPE_U8, 2, rows, cols / 2);
        output_add(p, e, ".weight_scale", PART_SCALES, DTYPE_U8, 2, rows, cols / 32);
        break;
    case FORMAT_NVFP4:
        output_add(p, e, ".weight", PART_DATA, DTYPE_U8, 2, rows, cols / 2);
        output_add(p, e, ".weight_scale", PART_SCALES, DTYPE_F8_E4M3, 2, rows, cols / 16);
        output_add(p, e, ".weight_scale_2", PART_TENSOR_SCALE, DTYPE_F32, 0, 0, 0);
        output_add(p, e, ".input_scale", PART_INPUT_SCALE, DTYPE_F32, 0, 0, 0);
        break;
    default: output_add(p, e, ".weight", PART_DATA, DTYPE_BF16, 2, rows, cols);
    }
}

static void add_copy(plan *p, const tensor *t, bool draft)
{
    plan_entry *e = entry_add(p);
    e->module = t->name;
    e->class = CLASS_OTHER;
    e->draft = draft;
    e->raw = t;
    e->copied = true;
    e->source_bytes = e->bytes = t->bytes;
    e->outputs[e->output_count++] =
        (plan_output){.name = arena_copy(&p->memory, t->name, strlen(t->name)), .type = t->type, .rank = t->rank, .bytes = t->bytes};
    memcpy(e->outputs[0].shape, t->shape, sizeof t->shape);
}

/* The tensor that holds a matrix: its own, or the stack of its layer's experts. */
static const tensor *holder_of(const model *m, const char *module, text *name)
{
    text_clear(name);
    text_add_format(name, "%s.weight", module);
    const tensor *t = checkpoint_find(m->checkpoint, name->data);
    const char *experts = strstr(module, ".mlp.experts.");
    if (t || !experts)
        return t;
    text_clear(name);
    text_add(name, module, (size_t)(experts - module) + strlen(".mlp.experts."));
    text_add_text(name, text_ends_with(module, ".down_proj") ? "down_proj" : "gate_up_proj");
    return checkpoint_find(m->checkpoint, name->data);
}

static float source_input_scale(const model *m, const char *module, text *name)
{
    float value = 1.0f;
    text_clear(name);
    text_add_format(name, "%s.input_scale", module);
    const tensor *t = checkpoint_find(m->checkpoint, name->data);
    if (t && t->type == DTYPE_F32 && t->bytes == sizeof value)
        memcpy(&value, t->data, sizeof value);
    return value;
}

static void mark_globs(walker *w, const char *module)
{
    const recipe_options *o = &w->p->recipe.options;
    for (size_t i = 0; i < o->include_count; i++)
        w->include_hit[i] = w->include_hit[i] || glob_match(o->include[i], module);
    for (size_t i = 0; i < o->exclude_count; i++)
        w->exclude_hit[i] = w->exclude_hit[i] || glob_match(o->exclude[i], module);
}

static uint64_t matrix_bytes(const matrix *m)
{
    uint64_t data = 0, scales = 0;
    format_data_bytes(m->format, m->rows, m->cols, &data);
    format_scale_bytes(m->format, m->rows, m->cols, &scales);
    return data + scales + (m->format->id == FORMAT_NVFP4 ? sizeof(float) : 0);
}

static void add_matrix(walker *w, const char *module, const matrix *m, matrix_class class)
{
    plan *p = w->p;
    plan_entry *e = entry_add(p);
    mark_globs(w, module);
    e->module = arena_copy(&p->memory, module, strlen(module));
    e->class = class;
    e->draft = w->draft;
    e->source = *m;
    e->raw = holder_of(w->m, module, &w->name);
    e->to = format_of(recipe_format(&p->recipe, module, class, w->draft, m->rows, m->cols, &w->why));
    e->why = w->why.length ? arena_copy(&p->memory, w->why.data, w->why.length) : NULL;
    e->copied = e->to->id == m->format->id;
    e->source_bytes = matrix_bytes(m);
    if (e->to->id == FORMAT_NVFP4)
        e->input_scale = source_input_scale(w->m, module, &w->name);
    outputs_of_matrix(p, e);
}

/* A matrix of a plan of shapes. */
static void add_matrix_shape(walker *w, const char *module, int64_t rows, int64_t cols, matrix_class class)
{
    plan *p = w->p;
    plan_entry *e = entry_add(p);
    e->module = arena_copy(&p->memory, module, strlen(module));
    e->class = class;
    e->draft = w->draft;
    e->to = format_of(recipe_format(&p->recipe, module, class, w->draft, rows, cols, &w->why));
    e->why = w->why.length ? arena_copy(&p->memory, w->why.data, w->why.length) : NULL;
    e->source = (matrix){.format = e->to, .rows = rows, .cols = cols, .scale = 1.0f};
    e->source_bytes = matrix_bytes(&e->source);
    outputs_of_matrix(p, e);
}

/* A vector of a plan of shapes. */
static void add_vector_shape(walker *w, const char *name, int64_t values, bool buffer)
{
    plan *p = w->p;
    tensor *t = arena_alloc(&p->memory, 1, sizeof *t);
    t->name = arena_copy(&p->memory, name, strlen(name));
    t->type = buffer ? DTYPE_F32 : DTYPE_BF16;
    t->rank = 1;
    t->shape[0] = values;
    t->bytes = dtype_bytes(t->type) * (uint64_t)values;
    uint8_t *bytes = arena_alloc(&p->memory, 1, (size_t)t->bytes);
    w->make(w->context, t, bytes);
    t->data = bytes;
    add_copy(p, t, w->draft);
}

static matrix_class class_of_row(const tensor_row *r, matrix_class class)
{
    return class == CLASS_INDEXER && text_ends_with(r->name, "weights_proj") ? CLASS_INDEX_WEIGHTS : class;
}

/* base: the struct that the table's fields are offsets in; not looked at where there are no weights. */
static void walk_table(walker *w, const tensor_table *t, const char *prefix, const void *base, matrix_class class)
{
    text name = {0};
    for (size_t i = 0; i < t->count; i++) {
        const tensor_row *r = &t->rows[i];
        text_clear(&name);
        text_add_format(&name, "%s%s", prefix, r->name);
        if (!w->m && r->cols == DIM_ONE)
            add_vector_shape(w, name.data, w->dims[r->rows], r->buffer);
        else if (!w->m)
            add_matrix_shape(w, name.data, w->dims[r->rows], w->dims[r->cols], class_of_row(r, class));
        else if (r->cols == DIM_ONE)
            add_copy(w->p, checkpoint_find(w->m->checkpoint, name.data), w->draft);
        else
            add_matrix(w, name.data, (const matrix *)(const void *)((const char *)base + r->field), class_of_row(r, class));
    }
    text_free(&name);
}

static void walk_experts(walker *w, const char *prefix, const layer_weights *l)
{
    text name = {0};
    for (int e = 0; e < w->config->experts; e++) {
        text_clear(&name);
        text_add_format(&name, "%smlp.experts.%d.", prefix, e);
        walk_table(w, &tensors_expert, name.data, l ? &l->experts[e] : NULL, CLASS_EXPERTS);
    }
    text_free(&name);
}

static void walk_layer(walker *w, const char *prefix, const layer_weights *l, bool full_index, bool sparse)
{
    walk_table(w, &tensors_layer, prefix, l, CLASS_ATTENTION);
    if (full_index)
        walk_table(w, &tensors_indexer, prefix, l, CLASS_INDEXER);
    if (!sparse) {
        walk_table(w, &tensors_dense, prefix, l, CLASS_DENSE);
        return;
    }
    walk_table(w, &tensors_sparse, prefix, l, CLASS_ROUTER);
    if (w->config->shared_experts)
        walk_table(w, &tensors_shared, prefix, l, CLASS_SHARED);
    walk_experts(w, prefix, l);
}

/* Tensors that the loader does not read but other engines do. Activation scales belong to the source's own quantization. */
static void walk_rest(walker *w, const char *draft_prefix)
{
    static const char *const endings[] = {".k_scale", ".v_scale", ".rotary_emb.inv_freq", ".shared_head.head.weight",
                                          ".embed_tokens.weight"};
    const checkpoint *c = w->m->checkpoint;
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const tensor *t = checkpoint_tensor(c, i);
        bool draft = text_starts_with(t->name, draft_prefix), wanted = false;
        for (size_t k = 0; k < sizeof endings / sizeof *endings; k++)
            wanted = wanted || (text_ends_with(t->name, endings[k]) && (k < 3 || draft));
        if (wanted || (w->m->config.tie_embeddings && strcmp(t->name, "lm_head.weight") == 0))
            add_copy(w->p, t, draft);
        w->p->dropped += text_ends_with(t->name, ".input_scale");
    }
}

static void walk_layers(walker *w, text *prefix)
{
    const model *m = w->m;
    const model_config *c = w->config;
    for (int i = 0; i < c->layers + (c->has_mtp ? 1 : 0); i++) {
        text_clear(prefix);
        text_add_format(prefix, "model.layers.%d.", i);
        w->draft = i == c->layers;
        if (w->draft)
            walk_table(w, &tensors_mtp, prefix->data, m ? &m->mtp : NULL, CLASS_DRAFT_PROJECT);
        walk_layer(w, prefix->data, !m ? NULL : w->draft ? &m->mtp.layer : &m->layers[i], w->draft || c->full_index[i],
                   w->draft || c->sparse_mlp[i]);
    }
}

static void walk_model(walker *w)
{
    text prefix = {0};
    walk_table(w, &tensors_top, "", w->m, CLASS_EMBEDDING);
    if (!w->config->tie_embeddings)
        walk_table(w, &tensors_head, "", w->m, CLASS_HEAD);
    walk_layers(w, &prefix);
    text_clear(&prefix);
    text_add_format(&prefix, "model.layers.%d.", w->config->layers);
    if (w->m)
        walk_rest(w, prefix.data);
    text_free(&prefix);
}

/* By file, then by place in it. A vector's or matrix's data decide; ties (empty tensors) go by name. */
static int compare_entries(const void *a, const void *b)
{
    const plan_entry *x = a, *y = b;
    if (x->raw->shard != y->raw->shard)
        return x->raw->shard < y->raw->shard ? -1 : 1;
    uintptr_t px = (uintptr_t)(x->source.format ? x->source.data : x->raw->data);
    uintptr_t py = (uintptr_t)(y->source.format ? y->source.data : y->raw->data);
    return px != py ? (px < py ? -1 : 1) : strcmp(x->module, y->module);
}

/* gate_proj and up_proj of one MLP run as one product in other engines, which then need one tensor scale for both. */
static void find_partners(plan *p)
{
    map by_name = {0};
    text other = {0};
    for (size_t i = 0; i < p->count; i++)
        map_add(&by_name, view_of(p->entries[i].module), (int64_t)i);
    for (size_t i = 0; i < p->count; i++) {
        plan_entry *e = &p->entries[i];
        int64_t partner;
        if (!e->to || e->to->id != FORMAT_NVFP4 || e->copied || !text_ends_with(e->module, ".gate_proj"))
            continue;
        text_clear(&other);
        text_add(&other, e->module, strlen(e->module) - strlen("gate_proj"));
        text_add_text(&other, "up_proj");
        if (!map_get(&by_name, view_of(other.data), &partner) || p->entries[partner].to != e->to || p->entries[partner].copied)
            continue;
        e->partner = partner;
        p->entries[partner].partner = (int64_t)i;
    }
    text_free(&other);
    map_free(&by_name);
}

/* Files are filled in order up to the limit; an entry is never divided, so one that is larger has a file to itself. */
static void divide(plan *p, uint64_t shard_bytes)
{
    p->shards = mem_alloc(p->count ? p->count : 1, sizeof *p->shards);
    for (size_t i = 0; i < p->count; i++) {
        plan_entry *e = &p->entries[i];
        plan_shard *s = p->shard_count ? &p->shards[p->shard_count - 1] : NULL;
        if (!s || s->bytes + e->bytes > shard_bytes) {
            s = &p->shards[p->shard_count++];
            *s = (plan_shard){.first = i};
        }
        s->count++;
        s->bytes += e->bytes;
        p->bytes += e->bytes;
        p->source_bytes += e->source_bytes;
        if (e->to) {
            p->format_count[e->to->id]++;
            p->format_bytes[e->to->id] += e->bytes;
        }
    }
    for (size_t i = 0; i < p->shard_count; i++) {
        char name[80];
        int n = snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, p->shard_count);
        p->shards[i].file = arena_copy(&p->memory, name, (size_t)n);
    }
}

static bool globs_hit(const char *option, const char *const *globs, const bool *hit, size_t count, error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!hit[i])
            return error_set(err, ERROR_USAGE,
                             "%s %s matches no matrix of the model; patterns are compared with module names such as "
                             "model.layers.3.self_attn.o_proj (--dry-run -v lists them)",
                             option, globs[i]);
    return true;
}

/* An --include that could never have an effect is a misunderstanding. */
static bool includes_allowed(const plan *p, const recipe_options *o, error *err)
{
    for (size_t g = 0; g < o->include_count; g++) {
        bool allowed = false;
        for (size_t i = 0; i < p->count && !allowed; i++)
            allowed = p->entries[i].module && p->entries[i].class < CLASS_ROUTER && glob_match(o->include[g], p->entries[i].module);
        if (!allowed)
            return error_set(err, ERROR_USAGE,
                             "--include %s matches only matrices that are never quantized (embedding, lm_head, router, indexer head "
                             "weights, eh_proj)",
                             o->include[g]);
    }
    return true;
}

bool plan_create(const model *source, const recipe *r, uint64_t shard_bytes, plan *out, error *err)
{
    *out = (plan){.source = source, .config = &source->config, .recipe = *r};
    const recipe_options *o = &r->options;
    walker w = {.p = out, .m = source, .config = out->config};
    w.include_hit = mem_alloc(o->include_count + 1, sizeof *w.include_hit);
    w.exclude_hit = mem_alloc(o->exclude_count + 1, sizeof *w.exclude_hit);
    walk_model(&w);
    qsort(out->entries, out->count, sizeof *out->entries, compare_entries);
    find_partners(out);
    divide(out, shard_bytes);
    bool ok = globs_hit("--include", o->include, w.include_hit, o->include_count, err) &&
              globs_hit("--exclude", o->exclude, w.exclude_hit, o->exclude_count, err) && includes_allowed(out, o, err);
    free(w.include_hit);
    free(w.exclude_hit);
    text_free(&w.name);
    text_free(&w.why);
    if (!ok)
        plan_free(out);
    return ok;
}

void plan_create_shapes(const model_config *config, const recipe *r, uint64_t shard_bytes, plan_vector_maker make, const void *context,
                        plan *out)
{
    *out = (plan){.config = config, .recipe = *r};
    walker w = {.p = out, .config = config, .make = make, .context = context};
    dims_of(config, w.dims);
    walk_model(&w);
    divide(out, shard_bytes);
    text_free(&w.name);
    text_free(&w.why);
}

void plan_free(plan *p)
{
    arena_free(&p->memory);
    free(p->entries);
    free(p->shards);
    *p = (plan){0};
}

/* One line per class and format: how many matrices. */
static void describe_class(const plan *p, matrix_class class, bool draft, text *out)
{
    int count[FORMAT_COUNT] = {0};
    const char *why = NULL;
    for (size_t i = 0; i < p->count; i++) {
        const plan_entry *e = &p->entries[i];
        if (!e->to || e->class != class || e->draft != draft)
            continue;
        count[e->to->id]++;
        why = e->why && e->to->id == FORMAT_BF16 ? e->why : why;
    }
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (count[f])
            text_add_format(out, "  %-22s %-12s %7d -> %s%s%s%s\n", matrix_class_name(class), draft ? "draft layer" : "", count[f],
                            format_of((format_id)f)->name, f == FORMAT_BF16 && why ? " (" : "", f == FORMAT_BF16 && why ? why : "",
                            f == FORMAT_BF16 && why ? ")" : "");
}

void plan_describe(const plan *p, text *out)
{
    const recipe *r = &p->recipe;
    text_add_format(out, "to %s, recipe %s: %zu tensors, %.2f GB -> %.2f GB in %zu file%s\n",
                    r->options.to == FORMAT_FP8_BLOCK ? "fp8" : format_of(r->options.to)->name, r->name, p->count,
                    (double)p->source_bytes / 1e9, (double)p->bytes / 1e9, p->shard_count, p->shard_count == 1 ? "" : "s");
    if (!p->config->has_mtp)
        text_add_text(out, "draft layer (MTP): the source has none\n");
    else if (r->options.to != FORMAT_BF16)
        text_add_format(out, "draft layer (MTP): %s (%s)\n", r->quantize_draft ? "quantized as the recipe says" : "kept in bf16",
                        r->draft_by_default ? "the recipe's default, change it with --mtp" : "--mtp");
    for (int class = 0; class < CLASS_OTHER; class++)
        for (int draft = 0; draft < 2; draft++)
            describe_class(p, (matrix_class)class, draft, out);
    if (p->dropped)
        text_add_format(out, "  %d input_scale tensors of the source's quantization are not carried over\n", p->dropped);
}
