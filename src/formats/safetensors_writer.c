/* Writing one safetensors file as a stream.
 *
 * The header names every tensor with its offsets, so it is complete before the first byte of data: declarations collect
 * in a JSON object, the first data call (or commit) writes it, padded with spaces to a multiple of 8, and from then on
 * bytes only pass through and are counted. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/memory.h"
#include "formats/safetensors_header.h"

struct safetensors_writer {
    file_writer *file;
    char *path;        /* for messages */
    json_t *header;    /* what the file begins with; its keys also tell duplicates */
    char **names;      /* [count], in the order of declaration */
    uint64_t *ends;    /* [count], where each tensor's data ends */
    size_t count, capacity;
    uint64_t given;    /* bytes of data so far */
    bool header_written;
    safetensors_watch watch; /* NULL: nobody */
    void *watch_context;
    error failure;     /* of safetensors_writer_metadata, reported by the next call; code 0: none */
};

static void writer_free(safetensors_writer *w)
{
    for (size_t i = 0; i < w->count; i++)
        free(w->names[i]);
    free(w->names);
    free(w->ends);
    free(w->path);
    json_decref(w->header);
    free(w);
}

safetensors_writer *safetensors_writer_open(const char *path, error *err)
{
    file_writer *file = file_writer_open(path, err);
    if (!file)
        return NULL;
    safetensors_writer *w = mem_alloc(1, sizeof *w);
    w->file = file;
    w->path = mem_copy(path, strlen(path));
    w->header = json_object();
    return w;
}

void safetensors_writer_watch(safetensors_writer *w, safetensors_watch watch, void *context)
{
    w->watch = watch;
    w->watch_context = context;
}

static bool writer_put(safetensors_writer *w, const void *bytes, size_t count, error *err)
{
    if (w->watch)
        w->watch(w->watch_context, bytes, count);
    return file_writer_add(w->file, bytes, count, err);
}

/* "__metadata__" of the header, made when first asked for. NULL when out of memory. */
static json_t *writer_metadata_object(safetensors_writer *w)
{
    if (!json_object_get(w->header, SAFETENSORS_METADATA))
        json_object_set_new(w->header, SAFETENSORS_METADATA, json_object());
    return json_object_get(w->header, SAFETENSORS_METADATA);
}

void safetensors_writer_metadata(safetensors_writer *w, const char *key, const char *value)
{
    char shown[SAFETENSORS_NAME_TEXT];
    safetensors_name_text(key, shown);
    if (w->header_written)
        error_set(&w->failure, ERROR_RUNTIME, "%s: metadata \"%s\" was given after the first data", w->path, shown);
    else if (json_object_set_new(writer_metadata_object(w), key, json_string(value)) != 0)
        error_set(&w->failure, ERROR_INPUT, "%s: metadata \"%s\": key and value must be valid UTF-8", w->path, shown);
}

static bool writer_ready(const safetensors_writer *w, error *err)
{
    return w->failure.code == ERROR_NONE || error_set(err, w->failure.code, "%s", w->failure.text);
}

static bool name_check(const safetensors_writer *w, const char *name, const char *shown, error *err)
{
    if (name[0] == '\0' || strcmp(name, SAFETENSORS_METADATA) == 0 || !utf8_valid(name, strlen(name)))
        return error_set(err, ERROR_INPUT, "%s: \"%s\" cannot be the name of a tensor; expected valid UTF-8, not empty, not "
                         SAFETENSORS_METADATA, w->path, shown);
    if (json_object_get(w->header, name))
        return error_set(err, ERROR_INPUT, "%s: tensor \"%s\" is declared twice", w->path, shown);
    return true;
}

static json_t *entry_json(dtype type, int rank, const int64_t *shape, uint64_t begin, uint64_t end)
{
    json_t *dims = json_array();
    for (int i = 0; i < rank; i++)
        json_array_append_new(dims, json_integer(shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_name(type), "shape", dims, "data_offsets", (json_int_t)begin,
                     (json_int_t)end);
}

static void writer_add_tensor(safetensors_writer *w, const char *name, uint64_t end)
{
    if (w->count == w->capacity) {
        w->capacity = w->capacity ? w->capacity * 2 : 64;
        w->names = mem_grow(w->names, w->capacity, sizeof *w->names);
        w->ends = mem_grow(w->ends, w->capacity, sizeof *w->ends);
    }
    w->names[w->count] = mem_copy(name, strlen(name));
    w->ends[w->count++] = end;
}

bool safetensors_writer_declare(safetensors_writer *w, const char *name, dtype type, int rank, const int64_t *shape, error *err)
{
    char shown[SAFETENSORS_NAME_TEXT];
    safetensors_name_text(name, shown);
    if (!writer_ready(w, err) || !name_check(w, name, shown, err))
        return false;
    if (w->header_written)
        return error_set(err, ERROR_RUNTIME, "%s: tensor \"%s\" was declared after the first data", w->path, shown);
    if (rank < 0 || rank > SAFETENSORS_MAX_RANK)
        return error_set(err, ERROR_INPUT, "%s: tensor \"%s\" has rank %d; expected 0 to %d", w->path, shown, rank, SAFETENSORS_MAX_RANK);
    uint64_t begin = w->count ? w->ends[w->count - 1] : 0, bytes, end;
    if (!safetensors_tensor_bytes(type, rank, shape, &bytes) || !checked_add_u64(begin, bytes, &end)
        || end > (uint64_t)SAFETENSORS_MAX_INTEGER)
        return error_set(err, ERROR_INPUT, "%s: tensor \"%s\" has a negative dimension or ends beyond 2^53 bytes", w->path, shown);
    if (json_object_set_new(w->header, name, entry_json(type, rank, shape, begin, end)) != 0)
        return error_set(err, ERROR_RUNTIME, "%s: out of memory for the header", w->path);
    writer_add_tensor(w, name, end);
    return true;
}

static bool header_write_text(safetensors_writer *w, const char *json, error *err)
{
    size_t length = strlen(json), padding = (8 - length % 8) % 8;
    if (length + padding > SAFETENSORS_MAX_HEADER_BYTES)
        return error_set(err, ERROR_INPUT, "%s: the header has %zu bytes; the format allows %d: split the tensors over more files", w->path,
                         length + padding, SAFETENSORS_MAX_HEADER_BYTES);
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (uint8_t)((uint64_t)(length + padding) >> (8 * i));
    return writer_put(w, prefix, sizeof prefix, err) && writer_put(w, json, length, err) && writer_put(w, "        ", padding, err);
}

static bool header_write(safetensors_writer *w, error *err)
{
    if (w->header_written)
        return true;
    char *json = json_dumps(w->header, JSON_COMPACT);
    if (!json)
        return error_set(err, ERROR_RUNTIME, "%s: out of memory for the header", w->path);
    bool ok = header_write_text(w, json, err);
    free(json);
    w->header_written = ok;
    return ok;
}

static uint64_t writer_total(const safetensors_writer *w)
{
    return w->count ? w->ends[w->count - 1] : 0;
}

bool safetensors_writer_data(safetensors_writer *w, const void *bytes, size_t count, error *err)
{
    if (!writer_ready(w, err) || !header_write(w, err))
        return false;
    if (count > writer_total(w) - w->given)
        return error_set(err, ERROR_RUNTIME, "%s: %zu bytes of data were given where the declared tensors have only %" PRIu64
                         " left of %" PRIu64, w->path, count, writer_total(w) - w->given, writer_total(w));
    if (!writer_put(w, bytes, count, err))
        return false;
    w->given += count;
    return true;
}

static bool all_given(const safetensors_writer *w, error *err)
{
    char shown[SAFETENSORS_NAME_TEXT];
    if (w->given == writer_total(w))
        return true;
    size_t first = 0; /* tensor that is not complete */
    while (w->ends[first] <= w->given)
        first++;
    return error_set(err, ERROR_RUNTIME, "%s: tensor \"%s\" lacks %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64 " bytes of data were given",
                     w->path, safetensors_name_text(w->names[first], shown), w->ends[first] - w->given, w->given, writer_total(w));
}

bool safetensors_writer_commit(safetensors_writer *w, error *err)
{
    bool ok = writer_ready(w, err) && header_write(w, err) && all_given(w, err);
    if (ok)
        ok = file_writer_commit(w->file, err);
    else
        file_writer_abandon(w->file);
    writer_free(w);
    return ok;
}

void safetensors_writer_abandon(safetensors_writer *w)
{
    if (!w)
        return;
    file_writer_abandon(w->file);
    writer_free(w);
}
