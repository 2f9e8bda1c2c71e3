/* Where config.json's quantization_config and the tensor headers disagree, in sentences.
 *
 * Every matrix gets a verdict. Verdicts that say the same of the same part of several layers become one sentence, with experts as
 * '*' and layers as ranges; a layer that disagrees as a whole becomes "model.layers.N.*". The draft layer always has sentences of
 * its own, because quantizers and engines name it differently: model.layers.N here, model.decoder elsewhere. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "model/claims.h"
#include "model/load.h"

typedef enum verdict_kind {
    AGREES,
    NOT_EXCLUDED, /* the list does not name it, its tensors are not quantized */
    EXCLUDED,     /* the list names it, its tensors are quantized */
    UNANNOUNCED,  /* quantized without a quantization_config */
    OTHER_FORMAT, /* quantized, but not in the claimed format */
} verdict_kind;

typedef struct verdict {
    verdict_kind kind;
    format_id format; /* found */
    int layer;        /* -1: outside the layers */
    int claimed;      /* format_id that config.json claims for it, or -1 */
    bool optional;    /* no quantizer need name it: embedding and router are not linear layers to them */
    view part;        /* name after "model.layers.N.", experts cut to "mlp.experts.*" */
} verdict;

/* What the matrices of one layer have in common. */
typedef struct layer_verdict {
    bool seen, mixed;
    verdict_kind kind;
    format_id format;
} layer_verdict;

typedef struct group {
    verdict_kind kind;
    format_id format;
    int claimed;  /* format_id, or -1 */
    bool outside; /* outside the layers: part is a whole name */
    bool draft;
    bool layers[CONFIG_MAX_LAYERS + 1];
    view part;
    int weights; /* weight tensors this speaks of */
} group;

typedef struct report {
    loader *l;
    claims claims;
    verdict *verdicts; /* [module_count] */
    layer_verdict layers[CONFIG_MAX_LAYERS + 1];
    group *groups;
    size_t group_count;
    text draft_entries; /* entries without a tensor that name the draft layer in another engine's words */
} report;

static bool starts(view v, const char *prefix)
{
    size_t n = strlen(prefix);
    return v.length >= n && memcmp(v.data, prefix, n) == 0;
}

/* Splits "model.layers.N.rest"; -1 for other names. */
static int layer_of(view name, view *rest)
{
    static const char prefix[] = "model.layers.";
    *rest = name;
    if (!starts(name, prefix))
        return -1;
    int layer = 0;
    size_t i = sizeof prefix - 1;
    for (; i < name.length && isdigit((unsigned char)name.data[i]) && layer <= CONFIG_MAX_LAYERS; i++)
        layer = layer * 10 + (name.data[i] - '0');
    if (layer > CONFIG_MAX_LAYERS || i + 1 >= name.length || name.data[i] != '.')
        return -1;
    *rest = (view){name.data + i + 1, name.length - i - 1};
    return layer;
}

/* A stacked tensor stands for the modules "experts.0.gate_proj", ...; config lists know only those. */
static bool is_stack(view part)
{
    return starts(part, "mlp.experts.") && part.length > 12 && !isdigit((unsigned char)part.data[12]);
}

static bool stack_excluded(report *r, view name)
{
    static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
    text module = {0};
    bool down = name.length > 9 && memcmp(name.data + name.length - 9, "down_proj", 9) == 0, excluded = false;
    size_t stem = name.length - (down ? strlen("down_proj") : strlen("gate_up_proj"));
    for (int e = 0; e < r->l->m->config.experts; e++)
        for (int p = down ? 2 : 0; p < (down ? 3 : 2); p++) {
            text_clear(&module);
            text_add(&module, name.data, stem);
            text_add_format(&module, "%d.%s", e, projections[p]);
            bool listed = claims_exclude(&r->claims, module.data);
            excluded = e == 0 && p != 1 ? listed : excluded;
        }
    text_free(&module);
    return excluded;
}

/* Also tells which format config.json claims for the module, should it be quantized. */
static bool module_excluded(report *r, view name, verdict *v)
{
    text module = {0};
    text_add(&module, name.data, name.length);
    bool excluded = is_stack(v->part) ? stack_excluded(r, name) : claims_exclude(&r->claims, module.data);
    v->claimed = claims_format(&r->claims, module.data);
    text_free(&module);
    return excluded;
}

static verdict_kind judge(report *r, const loaded_module *m, verdict *v)
{
    bool quantized = format_of(m->format)->block_cols > 0;
    if (!r->claims.method)
        return quantized ? UNANNOUNCED : AGREES;
    if (!r->claims.known)
        return AGREES;
    bool excluded = module_excluded(r, m->name, v);
    if (quantized && excluded)
        return EXCLUDED;
    if (quantized)
        return v->claimed >= 0 && v->claimed != (int)m->format ? OTHER_FORMAT : AGREES;
    return excluded || v->optional ? AGREES : NOT_EXCLUDED;
}

static void judge_all(report *r)
{
    for (size_t i = 0; i < r->l->module_count; i++) {
        const loaded_module *m = &r->l->modules[i];
        verdict *v = &r->verdicts[i];
        v->layer = layer_of(m->name, &v->part);
        v->optional = view_equal_text(v->part, "mlp.gate") || view_equal_text(v->part, "model.embed_tokens");
        v->format = m->format;
        v->kind = judge(r, m, v);
        if (v->layer < 0 || v->optional)
            continue;
        layer_verdict *lv = &r->layers[v->layer];
        lv->mixed = lv->mixed || (lv->seen && (lv->kind != v->kind || lv->format != v->format));
        lv->seen = true;
        lv->kind = v->kind;
        lv->format = v->format;
    }
}

/* The part of a layer a sentence speaks of: all of it, all experts, all shared experts, or one matrix. */
static view part_named(const report *r, const verdict *v)
{
    if (v->layer >= 0 && !r->layers[v->layer].mixed && !v->optional)
        return view_of("*");
    if (v->layer >= 0 && starts(v->part, "mlp.experts."))
        return view_of("mlp.experts.*");
    if (v->layer >= 0 && starts(v->part, "mlp.shared_experts."))
        return view_of("mlp.shared_experts.*");
    return v->part;
}

static group *group_of(report *r, const verdict *v)
{
    view part = part_named(r, v);
    bool draft = v->layer == r->l->m->config.layers;
    for (size_t i = 0; i < r->group_count; i++) {
        group *g = &r->groups[i];
        if (g->kind == v->kind && g->format == v->format && g->claimed == v->claimed && g->draft == draft && g->outside == (v->layer < 0) &&
            view_equal(g->part, part))
            return g;
    }
    r->groups = mem_grow(r->groups, r->group_count + 1, sizeof *r->groups);
    group *g = &r->groups[r->group_count++];
    *g = (group){.kind = v->kind, .format = v->format, .claimed = v->claimed, .draft = draft, .outside = v->layer < 0, .part = part};
    return g;
}

static void group_all(report *r)
{
    for (size_t i = 0; i < r->l->module_count; i++) {
        const verdict *v = &r->verdicts[i];
        if (v->kind == AGREES)
            continue;
        group *g = group_of(r, v);
        g->weights++;
        if (v->layer >= 0)
            g->layers[v->layer] = true;
    }
}

/* "7" or "{0-2,6,10}" */
static void layers_text(const group *g, text *out)
{
    int count = 0, parts = 0;
    for (int i = 0; i <= CONFIG_MAX_LAYERS; i++)
        count += g->layers[i];
    text_add_text(out, count > 1 ? "{" : "");
    for (int i = 0; i <= CONFIG_MAX_LAYERS; i++) {
        if (!g->layers[i])
            continue;
        int last = i;
        while (last < CONFIG_MAX_LAYERS && g->layers[last + 1])
            last++;
        text_add_format(out, last > i ? "%s%d-%d" : "%s%d", parts++ ? "," : "", i, last);
        i = last;
    }
    text_add_text(out, count > 1 ? "}" : "");
}

static const char *upper_name(format_id id, char buffer[32])
{
    size_t i = 0;
    for (const char *s = format_of(id)->name; *s && i < 31; s++)
        buffer[i++] = (char)toupper((unsigned char)*s);
    buffer[i] = '\0';
    return buffer;
}

static void group_sentence(report *r, const group *g)
{
    model *m = r->l->m;
    text name = {0};
    char found[32], claimed[32];
    if (!g->outside) {
        text_add_text(&name, "model.layers.");
        layers_text(g, &name);
        text_add_char(&name, '.');
    }
    text_add(&name, g->part.data, g->part.length);
    upper_name(g->format, found);
    switch (g->kind) {
    case NOT_EXCLUDED:
        sentence_add(&m->disagreements, &m->disagreement_count,
                     "config.json does not exclude %s%s%s%s, but its tensors (%d) are %s: read as %s", name.data,
                     g->draft && r->draft_entries.length ? " (it excludes " : "",
                     g->draft && r->draft_entries.length ? r->draft_entries.data : "",
                     g->draft && r->draft_entries.length ? ")" : "", g->weights, found, found);
        break;
    case EXCLUDED:
        sentence_add(&m->disagreements, &m->disagreement_count,
                     "config.json excludes %s from quantization, but its tensors (%d) are %s: read as %s", name.data, g->weights,
                     found, found);
        break;
    case UNANNOUNCED:
        sentence_add(&m->disagreements, &m->disagreement_count,
                     "config.json has no quantization_config, but the tensors of %s (%d) are %s: read as %s", name.data,
                     g->weights, found, found);
        break;
    case OTHER_FORMAT:
        sentence_add(&m->disagreements, &m->disagreement_count,
                     "config.json says quantized weights are %s, but the tensors of %s (%d) are %s: read as %s",
                     upper_name((format_id)g->claimed, claimed), name.data, g->weights, found, found);
        break;
    case AGREES: break;
    }
    text_free(&name);
}

/* The other engines' name of an excluded module of the draft layer counts as matching. */
static void mark_alias(report *r, const char *module, text *alias)
{
    if (draft_alias(module, r->l->m->config.layers, alias) && claims_exclude(&r->claims, module))
        claims_mark(&r->claims, alias->data);
}

/* Every tensor's module, so that entries for norms and the like count as matching. */
static void mark_all(report *r)
{
    text module = {0}, alias = {0};
    for (size_t i = 0; i < checkpoint_count(r->l->c); i++) {
        const char *name = checkpoint_tensor(r->l->c, i)->name;
        if (text_ends_with(name, "_scale") || text_ends_with(name, "_scale_inv") || text_ends_with(name, "_scale_2"))
            continue;
        const char *dot = strrchr(name, '.');
        text_clear(&module);
        text_add(&module, name, dot ? (size_t)(dot - name) : strlen(name));
        claims_mark(&r->claims, module.data);
        mark_alias(r, module.data, &alias);
    }
    text_free(&alias);
    text_free(&module);
}

/* Names of the draft layer in engines that build it as a model of its own. */
static bool names_draft(const char *pattern)
{
    static const char *const words[] = {"model.decoder", "model.eh_proj", "model.enorm", "model.hnorm", "model.shared_head"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (text_starts_with(pattern, words[i]))
            return true;
    return false;
}

/* An entry with numbers as '*', and everything below model.decoder as one. */
static void entry_shape(const char *pattern, text *out)
{
    text_clear(out);
    if (text_starts_with(pattern, "model.decoder.")) {
        text_add_text(out, "model.decoder.*");
        return;
    }
    for (const char *p = pattern; *p;) {
        size_t n = strcspn(p, ".");
        bool number = n > 0 && strspn(p, "0123456789") >= n;
        text_add(out, number ? "*" : p, number ? 1 : n);
        p += n;
        if (*p == '.')
            text_add_char(out, *p++);
    }
}

/* Entries of one shape, and all shapes. */
typedef struct shape_count {
    char *shape;
    int count;
} shape_count;

typedef struct shape_list {
    shape_count *items;
    size_t count, capacity;
    map index; /* shape -> place in items */
} shape_list;

static void shapes_add(shape_list *s, const char *shape)
{
    int64_t place;
    if (map_get(&s->index, view_of(shape), &place)) {
        s->items[place].count++;
        return;
    }
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 16;
        s->items = mem_grow(s->items, s->capacity, sizeof *s->items);
    }
    char *copy = mem_copy(shape, strlen(shape));
    map_add(&s->index, view_of(copy), (int64_t)s->count);
    s->items[s->count++] = (shape_count){copy, 1};
}

static void shapes_free(shape_list *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->items[i].shape);
    free(s->items);
    map_free(&s->index);
}

static void shapes_sentence(report *r, const shape_list *s, int entries, const char *what)
{
    enum { SHOWN = 8 };
    text list = {0};
    for (size_t i = 0; i < s->count && i < SHOWN; i++)
        text_add_format(&list, s->items[i].count > 1 ? "%s%s (%d entries)" : "%s%s", i ? ", " : "", s->items[i].shape,
                        s->items[i].count);
    if (s->count > SHOWN)
        text_add_format(&list, " and %zu other forms", s->count - SHOWN);
    sentence_add(&r->l->m->disagreements, &r->l->m->disagreement_count, "config.json's list \"%s\" has %d %s that %s: %s",
                 r->claims.list_key, entries, entries == 1 ? "entry" : "entries", what, list.data);
    text_free(&list);
}

/* Reports entries that match no tensor (unreadable false), or that cannot be compared (unreadable true). */
static void report_entries(report *r, bool unreadable)
{
    shape_list shapes = {0};
    int entries = 0;
    text shape = {0};
    for (size_t i = 0; i < r->claims.count; i++) {
        const claim_entry *e = &r->claims.entries[i];
        if ((e->kind == CLAIM_UNREADABLE) != unreadable || e->hit)
            continue;
        entry_shape(e->pattern, &shape);
        shapes_add(&shapes, shape.data ? shape.data : "");
        entries++;
    }
    if (entries)
        shapes_sentence(r, &shapes, entries, unreadable ? "could not be compared (pattern not understood)" : "no tensor matches");
    for (size_t i = 0; i < shapes.count; i++)
        if (!unreadable && names_draft(shapes.items[i].shape))
            text_add_format(&r->draft_entries, "%s%s", r->draft_entries.length ? ", " : "", shapes.items[i].shape);
    shapes_free(&shapes);
    text_free(&shape);
}

void report_disagreements(loader *l, const json_t *quantization)
{
    report r = {.l = l};
    model *m = l->m;
    claims_read(quantization, &r.claims);
    r.verdicts = mem_alloc(l->module_count, sizeof *r.verdicts);
    judge_all(&r);
    mark_all(&r);
    group_all(&r);
    if (r.claims.method && !r.claims.known)
        sentence_add(&m->notices, &m->notice_count,
                     "config.json's quantization_config has quant_method %s, whose lists are not known here: not compared",
                     r.claims.method);
    report_entries(&r, false);
    report_entries(&r, true);
    for (size_t i = 0; i < r.group_count; i++)
        group_sentence(&r, &r.groups[i]);
    claims_free(&r.claims);
    text_free(&r.draft_entries);
    free(r.verdicts);
    free(r.groups);
}
