#include "model/chat_schema.h"

#include <stdlib.h>
#include <string.h>

#include "model/python_json.h"

enum { VISITS_MOST = 1000, REFERENCE_BYTES_MOST = 1024 };

/* A walk through one schema. References may loop, so that the walk is bounded. */
typedef struct walk {
    const json_t *root;
    int visits_left;
} walk;

static unsigned types_of(walk *w, const json_t *schema);

bool schema_find_tool(const json_t *tools, view name, const json_t **parameters)
{
    *parameters = NULL;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
        function = function ? function : tool;
        const json_t *found = json_object_get(function, "name");
        if (!json_is_string(found) || !view_equal(name, (view){json_string_value(found), json_string_length(found)}))
            continue;
        *parameters = json_object_get(function, "parameters");
        return true;
    }
    return false;
}

static unsigned type_named(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } known[] = {{"string", SCHEMA_STRING}, {"integer", SCHEMA_INTEGER}, {"number", SCHEMA_NUMBER | SCHEMA_INTEGER},
                 {"boolean", SCHEMA_BOOLEAN}, {"null", SCHEMA_NULL}, {"object", SCHEMA_OBJECT}, {"array", SCHEMA_ARRAY}};
    for (size_t i = 0; json_is_string(name) && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, json_string_value(name)) == 0)
            return known[i].types;
    return SCHEMA_ANY;
}

/* The type of a value of the schema itself: of "const" and "enum". */
static unsigned type_of_value(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return SCHEMA_OBJECT;
    case JSON_ARRAY: return SCHEMA_ARRAY;
    case JSON_STRING: return SCHEMA_STRING;
    case JSON_INTEGER: return SCHEMA_INTEGER;
    case JSON_REAL: return SCHEMA_NUMBER;
    case JSON_NULL: return SCHEMA_NULL;
    default: return SCHEMA_BOOLEAN;
    }
}

/* The union over the items of a list; SCHEMA_ANY when it is not a list or is empty. */
static unsigned types_of_list(walk *w, const json_t *list, bool of_schemas, bool of_names)
{
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        types |= of_schemas ? types_of(w, item) : of_names ? type_named(item) : type_of_value(item);
    }
    return types ? types : SCHEMA_ANY;
}

/* What a local reference such as #/$defs/unit points to. NULL when nothing is there. */
static const json_t *reference_find(const walk *w, const char *reference)
{
    char copy[REFERENCE_BYTES_MOST], *rest = copy;
    const json_t *at = w->root;
    size_t n = strlen(reference);
    if (n == 0 || n >= sizeof copy || reference[0] != '#')
        return NULL;
    memcpy(copy, reference + 1, n);
    while (at && *rest == '/') {
        char *part = rest + 1;
        rest = part + strcspn(part, "/");
        char next = *rest;
        *rest = '\0';
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(part, NULL, 10)) : json_object_get(at, part);
        *rest = next;
    }
    return *rest ? NULL : at;
}

static unsigned types_of(walk *w, const json_t *schema)
{
    unsigned types = SCHEMA_ANY;
    if (!json_is_object(schema) || w->visits_left-- <= 0)
        return SCHEMA_ANY;
    const json_t *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const");
    const json_t *reference = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    types &= json_is_array(type) ? types_of_list(w, type, false, true) : type_named(type);
    types &= constant ? type_of_value(constant) : types_of_list(w, json_object_get(schema, "enum"), false, false);
    types &= types_of_list(w, json_object_get(schema, "anyOf"), true, false);
    types &= types_of_list(w, json_object_get(schema, "oneOf"), true, false);
    for (size_t i = 0; i < json_array_size(all); i++)
        types &= types_of(w, json_array_get(all, i));
    if (json_is_string(reference))
        types &= types_of(w, reference_find(w, json_string_value(reference)));
    return types ? types : SCHEMA_ANY;
}

unsigned schema_property_types(const json_t *parameters, view key)
{
    walk w = {.root = parameters, .visits_left = VISITS_MOST};
    const json_t *properties = json_object_get(parameters, "properties");
    return types_of(&w, json_object_getn(properties, key.data, key.length));
}

view schema_trim(view s)
{
    while (s.length > 0 && memchr(" \t\r\n", s.data[0], 4))
        s = (view){s.data + 1, s.length - 1};
    while (s.length > 0 && memchr(" \t\r\n", s.data[s.length - 1], 4))
        s.length--;
    return s;
}

/* Parses one JSON value as strictly as json_parse does, so that what is passed on can also come back. */
static json_t *parse_value(view s)
{
    if (s.length == 0 || memchr(s.data, '\0', s.length))
        return NULL; /* jansson overlooks a NUL that follows a number */
    return json_loadb(s.data, s.length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
}

/* The type of a parsed value; 2.0 is also an integer. */
static unsigned type_of_parsed(const json_t *v)
{
    double real = json_real_value(v);
    if (json_is_real(v) && real >= -9e15 && real <= 9e15 && real == (double)(long long)real)
        return SCHEMA_NUMBER | SCHEMA_INTEGER;
    return type_of_value(v);
}

static void add_string(text *out, view raw)
{
    text_add_char(out, '"');
    python_escape_add(out, raw.data, raw.length);
    text_add_char(out, '"');
}

/* True, False and None, where JSON's own words for them are allowed and text is not. */
static const char *python_word(view s, unsigned types)
{
    if (types & SCHEMA_STRING)
        return NULL;
    if ((types & SCHEMA_BOOLEAN) && view_equal_text(s, "True"))
        return "true";
    if ((types & SCHEMA_BOOLEAN) && view_equal_text(s, "False"))
        return "false";
    return (types & SCHEMA_NULL) && view_equal_text(s, "None") ? "null" : NULL;
}

/* A JSON string where the schema has no string: its content may be the value. */
static bool add_unquoted(text *out, const json_t *quoted, view written, unsigned types)
{
    view inner = schema_trim((view){json_string_value(quoted), json_string_length(quoted)});
    json_t *v = parse_value(inner);
    bool fits = v && (type_of_parsed(v) & types);
    view chosen = fits ? inner : written;
    text_add(out, chosen.data, chosen.length);
    json_decref(v);
    return fits;
}

bool schema_value_add(text *out, view raw, unsigned types)
{
    view s = schema_trim(raw);
    const char *word = python_word(s, types);
    if (word) {
        text_add_text(out, word);
        return true;
    }
    json_t *v = parse_value(s);
    bool fits = true;
    if (v && (type_of_parsed(v) & types)) {
        text_add(out, s.data, s.length);
    } else if (v && json_is_string(v)) {
        fits = add_unquoted(out, v, s, types);
    } else if (v && !(types & SCHEMA_STRING)) {
        fits = false;
        text_add(out, s.data, s.length);
    } else {
        fits = (types & SCHEMA_STRING) != 0;
        add_string(out, raw);
    }
    json_decref(v);
    return fits;
}
