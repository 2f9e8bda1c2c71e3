#include "commands/tap_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { ALL_LAYERS = -2 };

/* One --tap. */
typedef struct wanted_tap {
    const char *typed; /* NAME or NAME:LAYER */
    const char *name;  /* from tap_descriptions */
    int layer;         /* ALL_LAYERS: every layer, and taps outside the layers */
    bool seen;
} wanted_tap;

/* What one intermediate of one layer gave so far. */
typedef struct gathered_tap {
    const char *name;
    int layer, columns, rows; /* rows so far */
    bool integers;
    uint8_t *data; /* [tokens][columns] of 4 bytes; NULL when memory was short */
} gathered_tap;

struct tap_file {
    wanted_tap *wanted;
    int wanted_count;
    gathered_tap *gathered;
    int gathered_count;
    int tokens; /* rows in all */
};

static bool parse_layer(const char *digits, const char *typed, int layers, int *out, error *err)
{
    char *end;
    long n = strtol(digits, &end, 10);
    if (digits[0] < '0' || digits[0] > '9' || *end || n >= layers)
        return error_set(err, ERROR_USAGE, "--tap %s: the layer must be from 0 to %d", typed, layers - 1);
    *out = (int)n;
    return true;
}

static bool unknown_name(const char *typed, view name, error *err)
{
    int count;
    const tap_description *d = tap_descriptions(&count);
    text names = {0};
    for (int i = 0; i < count; i++)
        text_add_format(&names, "%s%s", i ? ", " : "", d[i].name);
    error_set(err, ERROR_USAGE, "--tap %s: \"%.*s\" is not one of %s", typed, (int)name.length, name.data, names.data);
    text_free(&names);
    return false;
}

static bool parse_wanted(const char *typed, const model_config *config, wanted_tap *out, error *err)
{
    view name = {typed, strcspn(typed, ":")};
    const char *layer = typed[name.length] ? typed + name.length + 1 : NULL;
    int count;
    const tap_description *d = tap_descriptions(&count);
    *out = (wanted_tap){.typed = typed, .layer = ALL_LAYERS};
    for (int i = 0; i < count && !out->name; i++) {
        if (!view_equal_text(name, d[i].name))
            continue;
        out->name = d[i].name;
        if (layer && !d[i].per_layer)
            return error_set(err, ERROR_USAGE, "--tap %s: %s belongs to no layer", typed, d[i].name);
    }
    if (!out->name)
        return unknown_name(typed, name, err);
    return !layer || parse_layer(layer, typed, config->layers, &out->layer, err);
}

tap_file *tap_file_create(const option_list *wanted, const model_config *config, int tokens, error *err)
{
    tap_file *t = mem_alloc(1, sizeof *t);
    t->tokens = tokens;
    t->wanted = mem_alloc(wanted->count ? wanted->count : 1, sizeof *t->wanted);
    for (size_t i = 0; i < wanted->count; i++) {
        if (!parse_wanted(wanted->items[i], config, &t->wanted[i], err)) {
            tap_file_free(t);
            return NULL;
        }
        t->wanted_count++;
    }
    return t;
}

void tap_file_free(tap_file *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->gathered_count; i++)
        free(t->gathered[i].data);
    free(t->gathered);
    free(t->wanted);
    free(t);
}

static bool is_wanted(tap_file *t, const tap_value *v)
{
    bool any = false;
    for (int i = 0; i < t->wanted_count; i++) {
        wanted_tap *w = &t->wanted[i];
        if (strcmp(w->name, v->name) != 0 || (w->layer != ALL_LAYERS && w->layer != v->layer))
            continue;
        any = w->seen = true;
    }
    return any;
}

static gathered_tap *gathered_of(tap_file *t, const tap_value *v)
{
    for (int i = 0; i < t->gathered_count; i++)
        if (t->gathered[i].layer == v->layer && strcmp(t->gathered[i].name, v->name) == 0)
            return &t->gathered[i];
    t->gathered = mem_grow(t->gathered, (size_t)t->gathered_count + 1, sizeof *t->gathered);
    gathered_tap *g = &t->gathered[t->gathered_count++];
    *g = (gathered_tap){.name = v->name, .layer = v->layer, .columns = v->columns, .integers = v->integers};
    g->data = mem_try_alloc((size_t)t->tokens, (size_t)v->columns * 4);
    return g;
}

void tap_file_add(void *context, const tap_value *value)
{
    tap_file *t = context;
    if (!is_wanted(t, value))
        return;
    gathered_tap *g = gathered_of(t, value);
    size_t row_bytes = (size_t)g->columns * 4;
    if (g->data && g->rows + value->rows <= t->tokens)
        memcpy(g->data + (size_t)g->rows * row_bytes, value->data, (size_t)value->rows * row_bytes);
    g->rows += value->rows;
}

bool tap_file_declare(const tap_file *t, safetensors_writer *w, error *err)
{
    for (int i = 0; i < t->wanted_count; i++)
        if (!t->wanted[i].seen)
            return error_set(err, ERROR_USAGE, "--tap %s: this model computes no such value there", t->wanted[i].typed);
    for (int i = 0; i < t->gathered_count; i++) {
        const gathered_tap *g = &t->gathered[i];
        char name[64];
        int64_t shape[2] = {t->tokens, g->columns};
        if (!g->data)
            return error_set(err, ERROR_FIT, "no memory for %d rows of %s; tap fewer layers or tokens", t->tokens, g->name);
        snprintf(name, sizeof name, g->layer < 0 ? "%s" : "%s.%d", g->name, g->layer);
        if (!safetensors_writer_declare(w, name, g->integers ? DTYPE_I32 : DTYPE_F32, 2, shape, err))
            return false;
    }
    return true;
}

bool tap_file_write(const tap_file *t, safetensors_writer *w, error *err)
{
    for (int i = 0; i < t->gathered_count; i++) {
        const gathered_tap *g = &t->gathered[i];
        if (g->rows != t->tokens)
            return error_set(err, ERROR_RUNTIME, "tap %s gave %d rows, expected %d", g->name, g->rows, t->tokens);
        if (!safetensors_writer_data(w, g->data, (size_t)t->tokens * (size_t)g->columns * 4, err))
            return false;
    }
    return true;
}
