/* JSON by jansson, read strictly: UTF-8 only, no duplicate keys, nothing after the value, nesting at most 2,048.
 * The getters below name the file and the key in their errors, so that callers need not. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Parses bytes; `where` (a path, "request body", ...) begins the error text. NULL on failure; json_decref frees. */
json_t *json_parse(const char *bytes, size_t count, const char *where, error *err);

/* Reads and parses a file of at most limit bytes. */
json_t *json_parse_file(const char *path, size_t limit, error *err);

/* An object with the name of where it came from, for the getters. */
typedef struct json_source {
    const json_t *object;
    const char *where; /* path of the file, or of the enclosing key */
} json_source;

bool json_has(json_source s, const char *key); /* present and not null */

/* Each stores the value and returns true, or sets err: missing key, wrong type, out of [least, most]. */
bool json_get_int(json_source s, const char *key, int64_t least, int64_t most, int64_t *out, error *err);
bool json_get_number(json_source s, const char *key, double least, double most, double *out, error *err);
bool json_get_bool(json_source s, const char *key, bool *out, error *err);
bool json_get_string(json_source s, const char *key, const char **out, error *err); /* without NUL characters */

/* As above, but a missing or null key leaves *out as it is. */
bool json_get_int_or(json_source s, const char *key, int64_t least, int64_t most, int64_t *out, error *err);
bool json_get_number_or(json_source s, const char *key, double least, double most, double *out, error *err);
bool json_get_bool_or(json_source s, const char *key, bool *out, error *err);
bool json_get_string_or(json_source s, const char *key, const char **out, error *err);

const char *json_type_name(const json_t *value); /* "an object", "a string", ... for messages */

#endif
