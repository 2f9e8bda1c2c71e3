/* Matching. Exact names are looked up in a map: the module itself and each module around it, so a list of thousands of names
 * costs a few look-ups per module. Globs and regular expressions are tried one by one.
 *
 * Regular expressions come from a file: those with repetition counts, back references or Python's own escapes, and those longer
 * than 256 bytes, are not compiled (they are reported as not compared), which keeps regcomp's and regexec's cost small. */
#include "model/claims.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { REGEX_LIMIT = 256, PATTERN_LIMIT = 4096 };

/* Where a quantizer writes its list of excluded modules. */
typedef struct claim_method {
    const char *name;
    const char *lists[2];
    bool by_suffix;
} claim_method;

static const claim_method methods[] = {
    {"quark", {"exclude", NULL}, false},
    {"fp8", {"modules_to_not_convert", "ignored_layers"}, true},
    {"modelopt", {"ignore", "exclude_modules"}, false},
    {"compressed-tensors", {"ignore", NULL}, false},
};

/* Matches one character with the class that begins at *pattern; an unclosed class matches nothing. Moves *pattern behind it. */
static bool glob_class(const char **pattern, char c)
{
    const char *p = *pattern + 1;
    bool negated = *p == '!', found = false;
    p += negated;
    for (bool first = true; *p && (first || *p != ']'); first = false) {
        bool range = p[1] == '-' && p[2] && p[2] != ']';
        char high = range ? p[2] : *p;
        found = found || (c >= *p && c <= high);
        p += range ? 3 : 1;
    }
    *pattern = p + 1;
    return *p == ']' && found != negated;
}

bool glob_match(const char *p, const char *s)
{
    const char *star = NULL, *again = NULL;
    while (*s) {
        const char *next = p;
        if (*p == '*') {
            star = p++;
            again = s;
            continue;
        }
        if (*p == '?' || (*p == *s && *p != '[')) {
            p++;
            s++;
        } else if (*p == '[' && glob_class(&next, *s)) {
            p = next;
            s++;
        } else if (star) {
            p = star + 1;
            s = ++again;
        } else {
            return false;
        }
    }
    while (*p == '*')
        p++;
    return *p == '\0';
}

/* POSIX and Python agree on what is left when these are excluded. */
static bool regex_is_simple(const char *p)
{
    if (strlen(p) > REGEX_LIMIT || strchr(p, '{'))
        return false;
    for (; *p; p++) {
        if (*p == '\\' && isalnum((unsigned char)*++p))
            return false;
        if (*p == '\0' || (*p == '(' && p[1] == '?') || (strchr("*+?", *p) && p[1] && strchr("*+?", p[1])))
            return false;
    }
    return true;
}

static claim_kind entry_compile(claim_entry *e)
{
    text anchored = {0};
    if (strncmp(e->pattern, "re:", 3) != 0)
        return strpbrk(e->pattern, "*?[") ? CLAIM_GLOB : CLAIM_NAME;
    if (!regex_is_simple(e->pattern + 3))
        return CLAIM_UNREADABLE;
    text_add_format(&anchored, "^(%s)", e->pattern + 3); /* Python's re.match begins at the start and may end anywhere */
    int failed = regcomp(&e->regex, anchored.data, REG_EXTENDED | REG_NOSUB);
    text_free(&anchored);
    return failed ? CLAIM_UNREADABLE : CLAIM_REGEX;
}

static void entries_read(const json_t *list, claims *c)
{
    size_t size = json_array_size(list);
    c->entries = mem_alloc(size, sizeof *c->entries);
    c->patterns = mem_alloc(size, sizeof *c->patterns);
    for (size_t i = 0; i < size; i++) {
        const char *pattern = json_string_value(json_array_get(list, i));
        if (!pattern)
            continue;
        claim_entry *e = &c->entries[c->count];
        e->pattern = pattern;
        e->kind = c->pattern_count < PATTERN_LIMIT ? entry_compile(e) : CLAIM_UNREADABLE;
        if (e->kind == CLAIM_NAME && !map_add(&c->names, view_of(pattern), (int64_t)c->count))
            continue; /* named twice */
        if (e->kind == CLAIM_GLOB || e->kind == CLAIM_REGEX)
            c->patterns[c->pattern_count++] = c->count;
        c->count++;
    }
}

/* A "weight" of Quark's schema. */
static int format_of_quark(const json_t *weight)
{
    const char *type = json_string_value(json_object_get(weight, "dtype"));
    const char *scheme = json_string_value(json_object_get(weight, "qscheme"));
    if (type && strcmp(type, "fp4") == 0)
        return json_integer_value(json_object_get(weight, "group_size")) == 32 ? FORMAT_MXFP4 : -1;
    if (!type || strcmp(type, "fp8_e4m3") != 0 || !scheme)
        return -1;
    if (strcmp(scheme, "per_block") == 0)
        return json_integer_value(json_array_get(json_object_get(weight, "block_size"), 0)) == 128 ? FORMAT_FP8_BLOCK : -1;
    return strcmp(scheme, "per_channel") == 0 ? FORMAT_FP8_CHANNEL : -1;
}

static void layers_read(json_t *layers, claims *c)
{
    const char *pattern;
    json_t *value;
    c->layers = mem_alloc(json_object_size(layers), sizeof *c->layers);
    json_object_foreach(layers, pattern, value)
        if (c->layer_count < PATTERN_LIMIT)
            c->layers[c->layer_count++] = (claim_layer){pattern, format_of_quark(json_object_get(value, "weight"))};
}

/* The claimed format of what is quantized, -1 where it is not one of ours or not said. */
static int format_claimed(const json_t *q, const char *method)
{
    if (strcmp(method, "quark") == 0)
        return format_of_quark(json_object_get(json_object_get(q, "global_quant_config"), "weight"));
    if (strcmp(method, "fp8") == 0)
        return json_integer_value(json_array_get(json_object_get(q, "weight_block_size"), 0)) == 128 ? FORMAT_FP8_BLOCK : -1;
    const char *name = json_string_value(json_object_get(q, strcmp(method, "modelopt") == 0 ? "quant_algo" : "format"));
    if (!name)
        return -1;
    if (strstr(name, "NVFP4") || strstr(name, "nvfp4"))
        return FORMAT_NVFP4;
    return strstr(name, "MXFP4") || strstr(name, "mxfp4") ? FORMAT_MXFP4 : -1;
}

void claims_read(const json_t *q, claims *out)
{
    *out = (claims){.format = -1};
    if (!q || json_is_null(q))
        return;
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    out->method = method ? method : "(none)";
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(method, methods[i].name) != 0)
            continue;
        out->known = true;
        out->by_suffix = methods[i].by_suffix;
        out->list_key = methods[i].lists[0];
        if (methods[i].lists[1] && !json_is_array(json_object_get(q, out->list_key)))
            out->list_key = methods[i].lists[1];
        out->format = format_claimed(q, method);
        if (strcmp(method, "quark") == 0)
            layers_read(json_object_get(q, "layer_quant_config"), out);
        entries_read(json_object_get(q, out->list_key), out);
    }
}

void claims_free(claims *c)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->entries[i].kind == CLAIM_REGEX)
            regfree(&c->entries[i].regex);
    map_free(&c->names);
    free(c->layers);
    free(c->entries);
    free(c->patterns);
}

static bool name_hit(claims *c, view name)
{
    int64_t index;
    if (!map_get(&c->names, name, &index))
        return false;
    c->entries[index].hit = true;
    return true;
}

/* Marks all entries that are this name or a name around it; true when there is one. */
static bool names_hit(claims *c, const char *module)
{
    bool found = false;
    size_t length = strlen(module);
    for (size_t i = 1; i <= length; i++)
        if (i == length || module[i] == '.')
            found |= name_hit(c, (view){module, i});
    for (size_t i = 1; c->by_suffix && i < length; i++)
        if (module[i - 1] == '.')
            found |= name_hit(c, (view){module + i, length - i});
    return found;
}

static bool pattern_matches(const claim_entry *e, const char *module)
{
    return e->kind == CLAIM_GLOB ? glob_match(e->pattern, module) : regexec(&e->regex, module, 0, NULL, 0) == 0;
}

bool claims_exclude(claims *c, const char *module)
{
    bool found = names_hit(c, module);
    for (size_t i = 0; !found && i < c->pattern_count; i++)
        found = pattern_matches(&c->entries[c->patterns[i]], module);
    return found;
}

int claims_format(const claims *c, const char *module)
{
    for (size_t i = 0; i < c->layer_count; i++)
        if (glob_match(c->layers[i].pattern, module))
            return c->layers[i].format;
    return c->format;
}

bool draft_alias(const char *module, int draft_layer, text *out)
{
    static const char *const own[] = {"eh_proj", "enorm", "hnorm", "shared_head"};
    text prefix = {0};
    text_add_format(&prefix, "model.layers.%d.", draft_layer);
    bool draft = text_starts_with(module, prefix.data), outside = false;
    const char *rest = draft ? module + prefix.length : module;
    text_free(&prefix);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        outside = outside || text_starts_with(rest, own[i]);
    text_clear(out);
    text_add_format(out, "model.%s%s", outside ? "" : "decoder.", rest);
    return draft;
}

void claims_mark(claims *c, const char *module)
{
    names_hit(c, module);
    for (size_t i = 0; i < c->pattern_count; i++) {
        claim_entry *e = &c->entries[c->patterns[i]];
        e->hit = e->hit || pattern_matches(e, module);
    }
}
