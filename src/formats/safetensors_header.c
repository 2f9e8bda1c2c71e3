/* Parsing one safetensors file.
 *
 * Every entry of the header is checked alone (keys, dtype, shape, offsets, size), then all together: sorted by
 * offset they must cover the data from its first byte to the end of the file, each beginning where the one before
 * ends. After that every tensor's bytes are known to lie inside the mapping. */
#include "formats/safetensors_header.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"

/* A parsed entry, for sorting. */
typedef struct entry {
    tensor tensor;
    uint64_t begin, end; /* data_offsets */
    size_t position;     /* in the header: the order of empty tensors at one offset */
} entry;

const char *safetensors_name_text(const char *name, char buffer[SAFETENSORS_NAME_TEXT])
{
    size_t length = strlen(name), shown = length;
    if (length >= SAFETENSORS_NAME_TEXT) {
        shown = SAFETENSORS_NAME_TEXT - 4;
        while (((unsigned char)name[shown] & 0xC0) == 0x80)
            shown--;
    }
    for (size_t i = 0; i < shown; i++)
        buffer[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7F ? '?' : name[i];
    strcpy(buffer + shown, shown < length ? "..." : "");
    return buffer;
}

/* "file: tensor "name": fact" */
static bool tensor_error(const char *where, const char *name, error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static bool tensor_error(const char *where, const char *name, error *err, const char *format, ...)
{
    char fact[512], shown[SAFETENSORS_NAME_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(fact, sizeof fact, format, args);
    va_end(args);
    return error_set(err, ERROR_INPUT, "%s: tensor \"%s\": %s", where, safetensors_name_text(name, shown), fact);
}

bool safetensors_tensor_bytes(dtype type, int rank, const int64_t *shape, uint64_t *out)
{
    *out = dtype_bytes(type);
    for (int i = 0; i < rank; i++)
        if (shape[i] < 0 || shape[i] > SAFETENSORS_MAX_INTEGER || !checked_mul_u64(*out, (uint64_t)shape[i], out))
            return false;
    return true;
}

/* One integer of "shape" or "data_offsets". */
static bool integer_parse(const char *where, const char *name, const char *key, const json_t *value, int64_t *out, error *err)
{
    if (!json_is_integer(value))
        return tensor_error(where, name, err, "\"%s\" must hold integers, found %s", key, json_type_name(value));
    *out = json_integer_value(value);
    if (*out < 0 || *out > SAFETENSORS_MAX_INTEGER)
        return tensor_error(where, name, err, "\"%s\" holds %" PRId64 "; expected 0 to 2^53", key, *out);
    return true;
}

static bool dtype_read(const char *where, const json_t *object, tensor *t, error *err)
{
    const json_t *value = json_object_get(object, "dtype");
    if (!json_is_string(value))
        return tensor_error(where, t->name, err, "\"dtype\" must be a string, found %s", json_type_name(value));
    char shown[SAFETENSORS_NAME_TEXT];
    const char *text = json_string_value(value);
    if (strlen(text) != json_string_length(value) || !dtype_parse(text, &t->type))
        return tensor_error(where, t->name, err, "unknown dtype \"%s\"; expected one of BOOL, U8 .. U64, I8 .. I64, F8_E4M3, "
                            "F8_E5M2, F8_E8M0, F16, BF16, F32, F64", safetensors_name_text(text, shown));
    return true;
}

static bool shape_read(const char *where, const json_t *object, tensor *t, error *err)
{
    const json_t *value = json_object_get(object, "shape");
    if (!json_is_array(value))
        return tensor_error(where, t->name, err, "\"shape\" must be an array, found %s", json_type_name(value));
    size_t rank = json_array_size(value);
    if (rank > SAFETENSORS_MAX_RANK)
        return tensor_error(where, t->name, err, "\"shape\" has %zu dimensions; expected at most %d", rank, SAFETENSORS_MAX_RANK);
    t->rank = (int)rank;
    for (size_t i = 0; i < rank; i++)
        if (!integer_parse(where, t->name, "shape", json_array_get(value, i), &t->shape[i], err))
            return false;
    return true;
}

static bool offsets_read(const char *where, const json_t *object, entry *e, error *err)
{
    const char *name = e->tensor.name;
    const json_t *value = json_object_get(object, "data_offsets");
    if (!json_is_array(value))
        return tensor_error(where, name, err, "\"data_offsets\" must be an array, found %s", json_type_name(value));
    if (json_array_size(value) != 2)
        return tensor_error(where, name, err, "\"data_offsets\" has %zu numbers; expected 2", json_array_size(value));
    int64_t begin = 0, end = 0;
    if (!integer_parse(where, name, "data_offsets", json_array_get(value, 0), &begin, err)
        || !integer_parse(where, name, "data_offsets", json_array_get(value, 1), &end, err))
        return false;
    if (begin > end)
        return tensor_error(where, name, err, "\"data_offsets\" are reversed: begin %" PRId64 " is after end %" PRId64, begin, end);
    e->begin = (uint64_t)begin;
    e->end = (uint64_t)end;
    return true;
}

static bool keys_check(const char *where, const char *name, json_t *object, error *err)
{
    const char *key;
    json_t *value;
    char shown[SAFETENSORS_NAME_TEXT];
    json_object_foreach(object, key, value)
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
            return tensor_error(where, name, err, "unknown key \"%s\"; expected only dtype, shape and data_offsets",
                                safetensors_name_text(key, shown));
    return true;
}

static bool entry_parse(const char *where, json_t *object, entry *e, error *err)
{
    tensor *t = &e->tensor;
    if (t->name[0] == '\0')
        return error_set(err, ERROR_INPUT, "%s: a tensor has an empty name", where);
    if (!json_is_object(object))
        return tensor_error(where, t->name, err, "its entry must be an object, found %s", json_type_name(object));
    if (!keys_check(where, t->name, object, err) || !dtype_read(where, object, t, err) || !shape_read(where, object, t, err)
        || !offsets_read(where, object, e, err))
        return false;
    char shape[128];
    tensor_shape_text(t, shape, sizeof shape);
    if (!safetensors_tensor_bytes(t->type, t->rank, t->shape, &t->bytes))
        return tensor_error(where, t->name, err, "shape %s of %s has more than 2^64 bytes", shape, dtype_name(t->type));
    if (t->bytes != e->end - e->begin)
        return tensor_error(where, t->name, err, "shape %s of %s needs %" PRIu64 " bytes, but data_offsets %" PRIu64 " to %" PRIu64
                            " span %" PRIu64, shape, dtype_name(t->type), t->bytes, e->begin, e->end, e->end - e->begin);
    return true;
}

/* By begin, then end (an empty tensor before the one that starts there), then place in the header. */
static int entry_compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* The sorted entries must tile 0 .. data_bytes. */
static bool layout_check(const char *where, const entry *entries, size_t count, uint64_t data_bytes, error *err)
{
    uint64_t position = 0;
    char shown[SAFETENSORS_NAME_TEXT];
    for (size_t i = 0; i < count; i++) {
        const entry *e = &entries[i];
        if (e->end > data_bytes)
            return tensor_error(where, e->tensor.name, err, "ends at byte %" PRIu64 " of the data, but the file has only %" PRIu64
                                " bytes of data; is the file cut short? Compare its size with the source and copy it again", e->end,
                                data_bytes);
        if (e->begin > position)
            return tensor_error(where, e->tensor.name, err, "begins at byte %" PRIu64 " of the data, expected %" PRIu64
                                ": the bytes between belong to no tensor", e->begin, position);
        if (e->begin < position)
            return tensor_error(where, e->tensor.name, err, "begins at byte %" PRIu64 " of the data and overlaps tensor \"%s\", which "
                                "ends at %" PRIu64, e->begin, safetensors_name_text(entries[i - 1].tensor.name, shown), position);
        position = e->end;
    }
    if (position != data_bytes)
        return error_set(err, ERROR_INPUT, "%s: the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64
                         " bytes of data; expected no bytes after the last tensor", where, position, data_bytes);
    return true;
}

static bool metadata_check(const char *where, json_t *metadata, error *err)
{
    if (!json_is_object(metadata))
        return error_set(err, ERROR_INPUT, "%s: \"" SAFETENSORS_METADATA "\" must be an object of strings, found %s", where,
                         json_type_name(metadata));
    const char *key;
    json_t *value;
    char shown[SAFETENSORS_NAME_TEXT];
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return error_set(err, ERROR_INPUT, "%s: \"" SAFETENSORS_METADATA "\": value of \"%s\" must be a string, found %s", where,
                             safetensors_name_text(key, shown), json_type_name(value));
        if (strlen(json_string_value(value)) != json_string_length(value))
            return error_set(err, ERROR_INPUT, "%s: \"" SAFETENSORS_METADATA "\": value of \"%s\" contains a NUL character", where,
                             safetensors_name_text(key, shown));
    }
    return true;
}

static bool entries_parse(const char *where, json_t *header, arena *names, entry *entries, safetensors_file *out, error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(header, name, value) {
        if (strcmp(name, SAFETENSORS_METADATA) == 0) {
            if (!metadata_check(where, value, err))
                return false;
            out->metadata = json_incref(value);
            continue;
        }
        entry *e = &entries[out->count];
        e->tensor.name = arena_copy(names, name, strlen(name));
        e->position = out->count++;
        if (!entry_parse(where, value, e, err))
            return false;
    }
    return true;
}

static bool header_parse(const char *where, json_t *header, const uint8_t *data, arena *names, safetensors_file *out, error *err)
{
    size_t capacity = json_object_size(header);
    entry *entries = mem_try_alloc(capacity, sizeof *entries);
    out->tensors = mem_try_alloc(capacity, sizeof *out->tensors);
    bool ok = entries && out->tensors;
    if (!ok)
        error_set(err, ERROR_RUNTIME, "%s: out of memory for the header of %zu tensors", where, capacity);
    ok = ok && entries_parse(where, header, names, entries, out, err);
    if (ok) {
        qsort(entries, out->count, sizeof *entries, entry_compare);
        ok = layout_check(where, entries, out->count, out->data_bytes, err);
    }
    for (size_t i = 0; ok && i < out->count; i++) {
        out->tensors[i] = entries[i].tensor;
        out->tensors[i].data = data + entries[i].begin;
    }
    free(entries);
    return ok;
}

/* Reads the length of the header, checked against the file. */
static bool header_length(const uint8_t *bytes, size_t count, const char *where, size_t *out, error *err)
{
    if (count < 8)
        return error_set(err, ERROR_INPUT, "%s: has %zu bytes; a safetensors file begins with 8 bytes of header length", where, count);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length == 0)
        return error_set(err, ERROR_INPUT, "%s: header length is 0; expected at least 2 bytes (\"{}\")", where);
    if (length > SAFETENSORS_MAX_HEADER_BYTES)
        return error_set(err, ERROR_INPUT, "%s: header length is %" PRIu64 "; expected at most %d: this is not a safetensors file",
                         where, length, SAFETENSORS_MAX_HEADER_BYTES);
    if (length > count - 8)
        return error_set(err, ERROR_INPUT, "%s: header length is %" PRIu64 ", but the file has only %zu bytes after the length; "
                         "is it cut short?", where, length, count - 8);
    if (bytes[8] != '{')
        return error_set(err, ERROR_INPUT, "%s: header begins with byte 0x%02X; expected '{'", where, bytes[8]);
    *out = (size_t)length;
    return true;
}

bool safetensors_file_parse(const uint8_t *bytes, size_t count, const char *where, arena *names, safetensors_file *out, error *err)
{
    *out = (safetensors_file){0};
    size_t length = 0;
    if (!header_length(bytes, count, where, &length, err))
        return false;
    json_t *header = json_parse((const char *)bytes + 8, length, where, err);
    if (!header)
        return error_add(err, "safetensors header");
    out->data_bytes = count - 8 - length;
    bool ok = header_parse(where, header, bytes + 8 + length, names, out, err);
    json_decref(header);
    if (!ok)
        safetensors_file_free(out);
    return ok;
}

void safetensors_file_free(safetensors_file *f)
{
    json_decref(f->metadata);
    free(f->tensors);
    *f = (safetensors_file){0};
}
