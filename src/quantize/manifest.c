#include "quantize/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "base/map.h"

enum { MANIFEST_MAX_BYTES = 1 << 28, HASH_PIECE_BYTES = 8 << 20, NAMES_SHOWN = 4 };

static const char manifest_format[] = "drawbridge-manifest 1";

static json_t *hash_json(uint64_t hash)
{
    char hex[20];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    return json_string(hex);
}

json_t *manifest_new(uint64_t conversion, json_t *report)
{
    return json_pack("{s:s, s:s, s:o, s:o, s:{}, s:{}}", "format", manifest_format, "made_by", "drawbridge " DRAWBRIDGE_VERSION,
                     "conversion", hash_json(conversion), "report", report, "files", "tensors");
}

void manifest_add_file(json_t *m, const char *name, uint64_t bytes, uint64_t hash)
{
    json_object_set_new(json_object_get(m, "files"), name,
                        json_pack("{s:I, s:o}", "bytes", (json_int_t)bytes, "xxh3", hash_json(hash)));
}

void manifest_note(json_t *m, const char *name, const text *bytes)
{
    manifest_add_file(m, name, bytes->length, XXH3_64bits(bytes->data, bytes->length));
}

void manifest_add_shard(json_t *m, const plan *p, size_t shard, const shard_result *r)
{
    const plan_shard *s = &p->shards[shard];
    json_t *tensors = json_object_get(m, "tensors");
    size_t at = 0;
    manifest_add_file(m, s->file, r->bytes, r->hash);
    for (size_t i = s->first; i < s->first + s->count; i++)
        for (int o = 0; o < p->entries[i].output_count && at < r->hash_count; o++)
            json_object_set_new(tensors, p->entries[i].outputs[o].name,
                                json_pack("{s:s, s:o}", "file", s->file, "xxh3", hash_json(r->hashes[at++])));
}

static json_t *manifest_load(const char *directory, text *path, error *err)
{
    path_join(path, directory, MANIFEST_NAME);
    if (!file_exists(path->data)) {
        error_set(err, ERROR_INPUT,
                  "%s has no " MANIFEST_NAME ", so there is nothing to verify it with; drawbridge quantize writes one beside its result",
                  directory);
        return NULL;
    }
    json_t *m = json_parse_file(path->data, MANIFEST_MAX_BYTES, err);
    const char *kind = json_string_value(json_object_get(m, "format"));
    if (m && (!kind || strcmp(kind, manifest_format) != 0 || !json_is_object(json_object_get(m, "files")) ||
              !json_is_object(json_object_get(m, "tensors")))) {
        error_set(err, ERROR_INPUT, "%s is not a manifest that this version reads; expected \"format\": \"%s\"", path->data,
                  manifest_format);
        json_decref(m);
        return NULL;
    }
    return m;
}

bool manifest_conversion(const char *directory, uint64_t *out, json_t **report)
{
    text path = {0};
    json_t *m = manifest_load(directory, &path, NULL);
    const char *hex = json_string_value(json_object_get(m, "conversion"));
    bool ok = hex != NULL;
    *report = NULL;
    if (ok) {
        *out = strtoull(hex, NULL, 16);
        *report = json_incref(json_object_get(m, "report"));
    }
    json_decref(m);
    text_free(&path);
    return ok;
}

/* ---- verifying ---- */

/* In pieces, so that mapped pages do not add up. */
static uint64_t hash_mapped(const uint8_t *bytes, uint64_t count)
{
    XXH3_state_t *state = XXH3_createState();
    XXH3_64bits_reset(state);
    for (uint64_t at = 0; at < count; at += HASH_PIECE_BYTES) {
        size_t n = count - at < HASH_PIECE_BYTES ? (size_t)(count - at) : HASH_PIECE_BYTES;
        XXH3_64bits_update(state, bytes + at, n);
        file_map_release(bytes + at, n);
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

static bool hash_is(const json_t *entry, uint64_t hash)
{
    const char *hex = json_string_value(json_object_get(entry, "xxh3"));
    return hex && strtoull(hex, NULL, 16) == hash;
}

/* The tensors of a damaged file that are damaged, in words. */
static void damaged_tensors(const char *path, const char *file, json_t *tensors, text *out)
{
    int count = 0;
    error err = {0};
    checkpoint *c = checkpoint_open(path, &err);
    if (!c) {
        text_add_text(out, "its header is damaged");
        return;
    }
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const tensor *t = checkpoint_tensor(c, i);
        const json_t *entry = json_object_get(tensors, t->name);
        const char *home = json_string_value(json_object_get(entry, "file"));
        if (home && strcmp(home, file) == 0 && hash_is(entry, hash_mapped(t->data, t->bytes)))
            continue;
        if (count++ < NAMES_SHOWN)
            text_add_format(out, "%s%s", count > 1 ? ", " : "damaged: tensor ", t->name);
    }
    if (count > NAMES_SHOWN)
        text_add_format(out, " and %d more", count - NAMES_SHOWN);
    if (count == 0)
        text_add_text(out, "its tensors are intact, its header is not");
    checkpoint_close(c);
}

static bool file_damaged(const char *path, const char *name, json_t *tensors, error *err)
{
    text words = {0};
    if (text_ends_with(name, ".safetensors"))
        damaged_tensors(path, name, tensors, &words);
    error_set(err, ERROR_INPUT, "%s differs from what was written%s%s; copy or download the file again, or run quantize again", path,
              words.length ? ": " : "", words.length ? words.data : "");
    text_free(&words);
    return false;
}

static bool verify_file(const char *path, const char *name, const json_t *entry, json_t *tensors, manifest_summary *sum, error *err)
{
    file_map whole;
    if (!file_exists(path))
        return error_set(err, ERROR_INPUT, "%s is missing; copy or download it again, or run quantize again", path);
    if (!file_map_open(path, &whole, err))
        return false;
    uint64_t expected = (uint64_t)json_integer_value(json_object_get(entry, "bytes"));
    bool ok = true;
    if (whole.bytes != expected)
        ok = error_set(err, ERROR_INPUT, "%s has %zu bytes, expected %" PRIu64 "; copy or download it again, or run quantize again", path,
                       whole.bytes, expected);
    else if (!hash_is(entry, hash_mapped(whole.data, whole.bytes)))
        ok = file_damaged(path, name, tensors, err);
    sum->files++;
    sum->bytes += whole.bytes;
    file_map_close(&whole);
    return ok;
}

bool manifest_verify(const char *directory, manifest_summary *out, error *err)
{
    text path = {0};
    *out = (manifest_summary){0};
    json_t *m = manifest_load(directory, &path, err), *entry;
    bool ok = m != NULL;
    const char *name;
    json_t *tensors = json_object_get(m, "tensors");
    json_object_foreach(json_object_get(m, "files"), name, entry) {
        if (name[0] == '\0' || name[0] == '.' || strchr(name, '/')) {
            ok = error_set(err, ERROR_INPUT, "%s names a file outside its directory", path.data);
            break;
        }
        path_join(&path, directory, name);
        ok = verify_file(path.data, name, entry, tensors, out, err);
        if (!ok)
            break;
    }
    out->tensors = (int)json_object_size(tensors);
    json_decref(m);
    text_free(&path);
    return ok;
}
