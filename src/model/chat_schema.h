/* Types of tool arguments: what a tool's JSON schema allows, and the JSON of a value the model wrote as text. */
#ifndef MODEL_CHAT_SCHEMA_H
#define MODEL_CHAT_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>

#include "base/text.h"

/* A set of JSON types. */
enum {
    SCHEMA_STRING = 1,
    SCHEMA_INTEGER = 2,
    SCHEMA_NUMBER = 4, /* that is not an integer */
    SCHEMA_BOOLEAN = 8,
    SCHEMA_NULL = 16,
    SCHEMA_OBJECT = 32,
    SCHEMA_ARRAY = 64,
    SCHEMA_ANY = 127,
};

/* The schema of a tool's arguments. Returns false when no tool of that name is in tools; *parameters is NULL when the
 * tool has none. */
bool schema_find_tool(const json_t *tools, view name, const json_t **parameters);

/* The types that a property may have; SCHEMA_ANY when the schema does not say. */
unsigned schema_property_types(const json_t *parameters, view key);

/* Appends the JSON of a value written as raw text, where types is not SCHEMA_STRING alone (docs/chat.md has the rules).
 * What is appended is always valid JSON that json_parse accepts. False when its type is not among types. */
bool schema_value_add(text *out, view raw, unsigned types);

/* s without spaces, tabs and line ends at its ends. */
view schema_trim(view s);

#endif
