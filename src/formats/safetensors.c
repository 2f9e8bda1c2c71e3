/* Checkpoints: one safetensors file, or the shards of a directory, as one set of named tensors.
 *
 * Shards are mapped and parsed one after the other, in the order of their names; tensors keep the order of their
 * data in the files. One map finds a tensor by name and tells a name that occurs twice. With an index, the set of
 * its names must be exactly the set of names found, each in the shard that the index gives. */
#include "formats/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/map.h"
#include "base/memory.h"
#include "formats/safetensors_header.h"

enum { INDEX_MAX_BYTES = 1 << 28 };

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_BOOL] = {"BOOL", 1}, [DTYPE_U8] = {"U8", 1}, [DTYPE_I8] = {"I8", 1}, [DTYPE_U16] = {"U16", 2}, [DTYPE_I16] = {"I16", 2},
    [DTYPE_U32] = {"U32", 4}, [DTYPE_I32] = {"I32", 4}, [DTYPE_U64] = {"U64", 8}, [DTYPE_I64] = {"I64", 8},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [DTYPE_F8_E8M0] = {"F8_E8M0", 1},
    [DTYPE_F16] = {"F16", 2}, [DTYPE_BF16] = {"BF16", 2}, [DTYPE_F32] = {"F32", 4}, [DTYPE_F64] = {"F64", 8},
};

const char *dtype_name(dtype t)
{
    return dtypes[t].name;
}

size_t dtype_bytes(dtype t)
{
    return dtypes[t].bytes;
}

bool dtype_parse(const char *name, dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (dtype)i;
            return true;
        }
    return false;
}

const char *tensor_shape_text(const tensor *t, char *buffer, size_t capacity)
{
    size_t used = (size_t)snprintf(buffer, capacity, "[");
    for (int i = 0; i < t->rank && used < capacity; i++)
        used += (size_t)snprintf(buffer + used, capacity - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (used < capacity)
        snprintf(buffer + used, capacity - used, "]");
    return buffer;
}

typedef struct shard_file {
    const char *name;     /* file name without directory */
    file_map mapping;     /* empty for a checkpoint over borrowed memory */
    json_t *metadata;     /* NULL when the file has none */
} shard_file;

struct checkpoint {
    tensor *tensors;      /* [count], shard after shard */
    size_t count;
    shard_file *shards;   /* [shard_count] */
    int shard_count;
    uint64_t bytes;       /* of all tensor data */
    map by_name;          /* name -> index into tensors */
    arena names;          /* of tensors and shards */
};

static checkpoint *checkpoint_new(size_t shards)
{
    checkpoint *c = mem_alloc(1, sizeof *c);
    c->shards = mem_alloc(shards, sizeof *c->shards);
    return c;
}

void checkpoint_close(checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->shard_count; i++) {
        json_decref(c->shards[i].metadata);
        file_map_close(&c->shards[i].mapping);
    }
    map_free(&c->by_name);
    arena_free(&c->names);
    free(c->shards);
    free(c->tensors);
    free(c);
}

/* Appends the tensors of a parsed file as the newest shard's. */
static bool checkpoint_add_tensors(checkpoint *c, const safetensors_file *file, error *err)
{
    char shown[SAFETENSORS_NAME_TEXT];
    int newest = c->shard_count - 1;
    c->tensors = mem_grow(c->tensors, c->count + file->count, sizeof *c->tensors);
    for (size_t i = 0; i < file->count; i++) {
        tensor *t = &c->tensors[c->count];
        *t = file->tensors[i];
        t->shard = newest;
        if (!map_add(&c->by_name, view_of(t->name), (int64_t)c->count))
            return error_set(err, ERROR_INPUT, "tensor \"%s\" is in two shards, %s and %s; expected it once",
                             safetensors_name_text(t->name, shown), c->shards[checkpoint_find(c, t->name)->shard].name,
                             c->shards[newest].name);
        c->count++;
        c->bytes += t->bytes;
    }
    return true;
}

/* Adds a shard whose bytes are at hand. The mapping, if any, belongs to the checkpoint from here on, on failure, too. */
static bool checkpoint_add_shard(checkpoint *c, const char *name, file_map mapping, const uint8_t *bytes,
                                 size_t count, const char *where, error *err)
{
    shard_file *s = &c->shards[c->shard_count++];
    s->name = arena_copy(&c->names, name, strlen(name));
    s->mapping = mapping;
    safetensors_file file;
    if (!safetensors_file_parse(bytes, count, where, &c->names, &file, err))
        return false;
    s->metadata = json_incref(file.metadata);
    bool ok = checkpoint_add_tensors(c, &file, err) || error_add(err, "%s", where);
    safetensors_file_free(&file);
    return ok;
}

static bool checkpoint_add_file(checkpoint *c, const char *path, error *err)
{
    file_map mapping;
    const char *slash = strrchr(path, '/');
    if (!file_map_open(path, &mapping, err))
        return false;
    mem_prefer_huge(mapping.data, mapping.bytes);
    return checkpoint_add_shard(c, slash ? slash + 1 : path, mapping, mapping.data, mapping.bytes, path, err);
}

static checkpoint *checkpoint_or_null(checkpoint *c, bool ok)
{
    if (ok)
        return c;
    checkpoint_close(c);
    return NULL;
}

checkpoint *checkpoint_from_memory(const uint8_t *bytes, size_t count, const char *name, error *err)
{
    checkpoint *c = checkpoint_new(1);
    return checkpoint_or_null(c, checkpoint_add_shard(c, name, (file_map){0}, bytes, count, name, err));
}

static checkpoint *checkpoint_open_file(const char *path, error *err)
{
    checkpoint *c = checkpoint_new(1);
    return checkpoint_or_null(c, checkpoint_add_file(c, path, err));
}

/* ---- the index of a sharded checkpoint ---- */

static bool shard_name_check(const char *where, const char *name, const json_t *value, error *err)
{
    char shown[SAFETENSORS_NAME_TEXT], shown_file[SAFETENSORS_NAME_TEXT];
    safetensors_name_text(name, shown);
    if (!json_is_string(value))
        return error_set(err, ERROR_INPUT, "%s: tensor \"%s\": the shard must be a string, found %s", where, shown, json_type_name(value));
    const char *file = json_string_value(value);
    safetensors_name_text(file, shown_file);
    bool plain = strlen(file) == json_string_length(value) && strcmp(file, shown_file) == 0; /* no control character, not too long */
    if (!plain || file[0] == '\0' || file[0] == '.' || strchr(file, '/'))
        return error_set(err, ERROR_INPUT, "%s: tensor \"%s\": bad shard name \"%s\"; expected the name of a file in the same "
                         "directory, without '/' and not beginning with '.'", where, shown, shown_file);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of a weight_map, sorted. NULL on error; the names are borrowed from the JSON. */
static const char **shard_names(const char *where, json_t *weight_map, size_t *count, error *err)
{
    const char **names = mem_alloc(json_object_size(weight_map), sizeof *names);
    map seen = {0};
    bool ok = true;
    const char *name;
    json_t *value;
    *count = 0;
    json_object_foreach(weight_map, name, value) {
        ok = shard_name_check(where, name, value, err);
        if (!ok)
            break;
        if (map_add(&seen, view_of(json_string_value(value)), 0))
            names[(*count)++] = json_string_value(value);
    }
    map_free(&seen);
    if (!ok) {
        free(names);
        return NULL;
    }
    qsort(names, *count, sizeof *names, compare_names);
    return names;
}

static bool open_shards(checkpoint *c, const char *directory, const char *where, const char **names, size_t count, error *err)
{
    text path = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        path_join(&path, directory, names[i]);
        ok = file_exists(path.data) ? checkpoint_add_file(c, path.data, err)
                                    : error_set(err, ERROR_INPUT, "%s: shard %s is missing; expected it beside the index (%zu "
                                                "shards are named); fetch it again", where, names[i], count);
    }
    text_free(&path);
    return ok;
}

/* Every tensor of the index is in its shard, and the shards have no other. */
static bool index_check(const checkpoint *c, const char *where, json_t *weight_map, error *err)
{
    const char *name;
    json_t *value;
    char shown[SAFETENSORS_NAME_TEXT];
    json_object_foreach(weight_map, name, value) {
        const tensor *t = checkpoint_find(c, name);
        if (!t)
            return error_set(err, ERROR_INPUT, "%s: tensor \"%s\" is not in shard %s, where the index puts it, nor in any other", where,
                             safetensors_name_text(name, shown), json_string_value(value));
        if (strcmp(c->shards[t->shard].name, json_string_value(value)) != 0)
            return error_set(err, ERROR_INPUT, "%s: tensor \"%s\" is in shard %s, but the index puts it in %s", where,
                             safetensors_name_text(name, shown), c->shards[t->shard].name, json_string_value(value));
    }
    for (size_t i = 0; i < c->count; i++)
        if (!json_object_get(weight_map, c->tensors[i].name))
            return error_set(err, ERROR_INPUT, "%s: tensor \"%s\" is in shard %s, but not in the index", where,
                             safetensors_name_text(c->tensors[i].name, shown), c->shards[c->tensors[i].shard].name);
    return true;
}

static checkpoint *open_weight_map(const char *directory, const char *where, json_t *weight_map, error *err)
{
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0) {
        error_set(err, ERROR_INPUT, "%s: key \"weight_map\" must be an object from tensor names to shard names, found %s", where,
                  json_is_object(weight_map) ? "an empty one" : json_type_name(weight_map));
        return NULL;
    }
    size_t count;
    const char **names = shard_names(where, weight_map, &count, err);
    if (!names)
        return NULL;
    checkpoint *c = checkpoint_new(count);
    bool ok = open_shards(c, directory, where, names, count, err) && index_check(c, where, weight_map, err);
    free(names);
    return checkpoint_or_null(c, ok);
}

static checkpoint *checkpoint_open_index(const char *directory, const char *path, error *err)
{
    json_t *index = json_parse_file(path, INDEX_MAX_BYTES, err);
    if (!index)
        return NULL;
    checkpoint *c = open_weight_map(directory, path, json_object_get(index, "weight_map"), err);
    json_decref(index);
    return c;
}

/* ---- directories ---- */

/* The name of the only *.safetensors in a directory, into out. */
static bool find_single_file(const char *directory, text *out, error *err)
{
    DIR *d = opendir(directory);
    if (!d)
        return error_set_errno(err, ERROR_INPUT, "cannot read directory %s", directory);
    bool ok = true;
    for (const struct dirent *e; ok && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.' || !text_ends_with(e->d_name, ".safetensors"))
            continue;
        if (out->length)
            ok = error_set(err, ERROR_INPUT, "%s has several .safetensors files (%s, %s) but no model.safetensors.index.json; fetch the "
                           "index, or name one file", directory, out->data, e->d_name);
        else
            text_add_text(out, e->d_name);
    }
    closedir(d);
    if (ok && !out->length)
        ok = error_set(err, ERROR_INPUT, "%s has no .safetensors file; expected a checkpoint directory", directory);
    return ok;
}

static checkpoint *checkpoint_open_directory(const char *directory, error *err)
{
    text path = {0}, name = {0};
    checkpoint *c = NULL;
    path_join(&path, directory, "model.safetensors.index.json");
    if (file_exists(path.data)) {
        c = checkpoint_open_index(directory, path.data, err);
    } else {
        path_join(&path, directory, "model.safetensors");
        bool found = file_exists(path.data);
        if (!found && find_single_file(directory, &name, err)) {
            path_join(&path, directory, name.data);
            found = true;
        }
        if (found)
            c = checkpoint_open_file(path.data, err);
    }
    text_free(&path);
    text_free(&name);
    return c;
}

checkpoint *checkpoint_open(const char *path, error *err)
{
    return file_is_directory(path) ? checkpoint_open_directory(path, err) : checkpoint_open_file(path, err);
}

/* ---- placing the data ---- */

typedef struct placement {
    const checkpoint *c;
    const pool *workers;
} placement;

/* A matrix is computed in blocks of rows, so a node reads the same share of it as it has of the workers. Tensors of rank 3 hold one
 * matrix behind the other. */
static void place_on_node(void *context, int node)
{
    const placement *p = context;
    for (size_t i = 0; i < p->c->count; i++) {
        const tensor *t = &p->c->tensors[i];
        int64_t matrices = t->rank >= 3 && t->shape[0] > 0 ? t->shape[0] : 1, bytes = (int64_t)t->bytes / matrices, first, end;
        pool_share(p->workers, node, bytes, &first, &end);
        for (int64_t m = 0; m < matrices; m++)
            mem_read_ahead(t->data + m * bytes + first, (size_t)(end - first));
    }
}

bool checkpoint_place(const checkpoint *c, const pool *workers, error *err)
{
    placement p = {c, workers};
    return !c || pool_nodes(workers)->node_count == 1 || topology_run(pool_nodes(workers), place_on_node, &p, err);
}

/* ---- looking things up ---- */

size_t checkpoint_count(const checkpoint *c)
{
    return c->count;
}

const tensor *checkpoint_tensor(const checkpoint *c, size_t index)
{
    return &c->tensors[index];
}

const tensor *checkpoint_find(const checkpoint *c, const char *name)
{
    int64_t index;
    return map_get(&c->by_name, view_of(name), &index) ? &c->tensors[index] : NULL;
}

int checkpoint_shards(const checkpoint *c)
{
    return c->shard_count;
}

const char *checkpoint_shard_name(const checkpoint *c, int shard)
{
    return c->shards[shard].name;
}

uint64_t checkpoint_bytes(const checkpoint *c)
{
    return c->bytes;
}

const char *checkpoint_metadata(const checkpoint *c, int shard, const char *key)
{
    return json_string_value(json_object_get(c->shards[shard].metadata, key));
}
