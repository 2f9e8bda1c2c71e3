#include "base/json.h"

#include <string.h>

#include "base/file.h"
#include "base/text.h"

json_t *json_parse(const char *bytes, size_t count, const char *where, error *err)
{
    json_error_t e;
    const char *nul = count ? memchr(bytes, '\0', count) : NULL;
    if (nul) { /* jansson overlooks one that follows a number */
        error_set(err, ERROR_INPUT, "%s: not valid JSON: a NUL byte at offset %zu", where, (size_t)(nul - bytes));
        return NULL;
    }
    json_t *value = json_loadb(bytes, count, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!value)
        error_set(err, ERROR_INPUT, "%s: not valid JSON at line %d, column %d: %s", where, e.line, e.column, e.text);
    return value;
}

json_t *json_parse_file(const char *path, size_t limit, error *err)
{
    text bytes = {0};
    json_t *value = NULL;
    if (file_read(path, limit, &bytes, err))
        value = json_parse(bytes.data, bytes.length, path, err);
    text_free(&bytes);
    return value;
}

const char *json_type_name(const json_t *value)
{
    if (!value)
        return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

bool json_has(json_source s, const char *key)
{
    const json_t *v = json_object_get(s.object, key);
    return v && !json_is_null(v);
}

static bool wrong_type(json_source s, const char *key, const char *expected, error *err)
{
    const json_t *v = json_object_get(s.object, key);
    if (!v)
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" is missing (expected %s)", s.where, key, expected);
    return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be %s, found %s", s.where, key, expected, json_type_name(v));
}

bool json_get_int(json_source s, const char *key, int64_t least, int64_t most, int64_t *out, error *err)
{
    const json_t *v = json_object_get(s.object, key);
    if (!json_is_integer(v))
        return wrong_type(s, key, "an integer", err);
    int64_t n = json_integer_value(v);
    if (n < least || n > most)
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be from %lld to %lld, found %lld", s.where, key,
                         (long long)least, (long long)most, (long long)n);
    *out = n;
    return true;
}

bool json_get_number(json_source s, const char *key, double least, double most, double *out, error *err)
{
    const json_t *v = json_object_get(s.object, key);
    if (!json_is_number(v))
        return wrong_type(s, key, "a number", err);
    double n = json_number_value(v);
    if (!(n >= least && n <= most))
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be from %g to %g, found %g", s.where, key, least, most, n);
    *out = n;
    return true;
}

bool json_get_bool(json_source s, const char *key, bool *out, error *err)
{
    const json_t *v = json_object_get(s.object, key);
    if (!json_is_boolean(v))
        return wrong_type(s, key, "true or false", err);
    *out = json_is_true(v);
    return true;
}

bool json_get_string(json_source s, const char *key, const char **out, error *err)
{
    const json_t *v = json_object_get(s.object, key);
    if (!json_is_string(v))
        return wrong_type(s, key, "a string", err);
    size_t length = strlen(json_string_value(v));
    if (length != json_string_length(v))
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be a string without NUL characters, found one after %zu bytes",
                         s.where, key, length);
    *out = json_string_value(v);
    return true;
}

bool json_get_int_or(json_source s, const char *key, int64_t least, int64_t most, int64_t *out, error *err)
{
    return !json_has(s, key) || json_get_int(s, key, least, most, out, err);
}

bool json_get_number_or(json_source s, const char *key, double least, double most, double *out, error *err)
{
    return !json_has(s, key) || json_get_number(s, key, least, most, out, err);
}

bool json_get_bool_or(json_source s, const char *key, bool *out, error *err)
{
    return !json_has(s, key) || json_get_bool(s, key, out, err);
}

bool json_get_string_or(json_source s, const char *key, const char **out, error *err)
{
    return !json_has(s, key) || json_get_string(s, key, out, err);
}
