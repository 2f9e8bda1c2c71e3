#include "quantize/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"

static const size_t journal_most_bytes = (size_t)1 << 30;

static void first_line(uint64_t hash, text *out)
{
    text_clear(out);
    text_add_format(out, "drawbridge-quantize 1 %016" PRIx64 "\n", hash);
}

/* ---- one line ---- */

static json_t *number_json(double value)
{
    char exact[40];
    snprintf(exact, sizeof exact, "%a", value); /* survives unchanged, so a resumed run reports the same digits */
    return json_string(exact);
}

static json_t *hash_json(uint64_t hash)
{
    char hex[20];
    snprintf(hex, sizeof hex, "%016" PRIx64, hash);
    return json_string(hex);
}

static uint64_t hash_of(const json_t *value)
{
    const char *hex = json_string_value(value);
    return hex ? strtoull(hex, NULL, 16) : 0;
}

static double number_of(const json_t *value)
{
    const char *exact = json_string_value(value);
    return exact ? strtod(exact, NULL) : 0.0;
}

static json_t *result_json(size_t shard, const shard_result *r)
{
    json_t *hashes = json_array(), *stats = json_array();
    for (size_t i = 0; i < r->hash_count; i++)
        json_array_append_new(hashes, hash_json(r->hashes[i]));
    for (int c = 0; c < CLASS_COUNT; c++)
        for (int d = 0; d < 2; d++) {
            const encode_stats *s = &r->stats[c][d];
            if (s->values)
                json_array_append_new(stats, json_pack("[i, i, I, o, o, o, o]", c, d, (json_int_t)s->values,
                                                       number_json(s->source_squares), number_json(s->result_squares),
                                                       number_json(s->error_squares), number_json(s->max_error)));
        }
    return json_pack("{s:I, s:I, s:o, s:o, s:o}", "shard", (json_int_t)shard, "bytes", (json_int_t)r->bytes, "xxh3", hash_json(r->hash),
                     "tensors", hashes, "errors", stats);
}

static bool stats_read(const json_t *list, shard_result *out)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *s = json_array_get(list, i);
        json_int_t c = json_integer_value(json_array_get(s, 0)), d = json_integer_value(json_array_get(s, 1));
        if (json_array_size(s) != 7 || c < 0 || c >= CLASS_COUNT || d < 0 || d > 1)
            return false;
        out->stats[c][d] = (encode_stats){.values = json_integer_value(json_array_get(s, 2)),
                                          .source_squares = number_of(json_array_get(s, 3)),
                                          .result_squares = number_of(json_array_get(s, 4)),
                                          .error_squares = number_of(json_array_get(s, 5)),
                                          .max_error = number_of(json_array_get(s, 6))};
    }
    return true;
}

static bool result_read(const json_t *line, const plan *p, shard_result *results)
{
    json_int_t shard = json_integer_value(json_object_get(line, "shard"));
    const json_t *hashes = json_object_get(line, "tensors");
    if (!json_is_object(line) || shard < 0 || (uint64_t)shard >= p->shard_count ||
        json_array_size(hashes) != shard_tensors(p, (size_t)shard))
        return false;
    shard_result *r = &results[shard];
    shard_result_free(r);
    r->bytes = (uint64_t)json_integer_value(json_object_get(line, "bytes"));
    r->hash = hash_of(json_object_get(line, "xxh3"));
    r->hash_count = json_array_size(hashes);
    r->hashes = mem_alloc(r->hash_count + 1, sizeof *r->hashes);
    for (size_t i = 0; i < r->hash_count; i++)
        r->hashes[i] = hash_of(json_array_get(hashes, i));
    r->done = stats_read(json_object_get(line, "errors"), r);
    return r->done;
}

/* "HASH JSON" without the newline. */
static bool line_read(const char *line, size_t length, const plan *p, shard_result *results)
{
    char hex[20];
    if (length < 18 || line[16] != ' ')
        return false;
    snprintf(hex, sizeof hex, "%016" PRIx64, (uint64_t)XXH3_64bits(line + 17, length - 17));
    if (memcmp(hex, line, 16) != 0)
        return false;
    json_t *json = json_parse(line + 17, length - 17, "journal", NULL);
    bool ok = json && result_read(json, p, results);
    json_decref(json);
    return ok;
}

/* ---- the file ---- */

static void forget_missing(const char *directory, const plan *p, shard_result *results)
{
    text path = {0};
    for (size_t i = 0; i < p->shard_count; i++) {
        struct stat s;
        path_join(&path, directory, p->shards[i].file);
        if (results[i].done && (stat(path.data, &s) != 0 || (uint64_t)s.st_size != results[i].bytes))
            shard_result_free(&results[i]);
    }
    text_free(&path);
}

static journal_state journal_parse(const text *bytes, uint64_t hash, const plan *p, shard_result *results, uint64_t *valid_bytes)
{
    text expected = {0};
    first_line(hash, &expected);
    const char *end = memchr(bytes->data, '\n', bytes->length);
    bool same = end && bytes->length >= expected.length && memcmp(bytes->data, expected.data, expected.length) == 0;
    text_free(&expected);
    if (!end)
        return JOURNAL_NONE;
    if (!same)
        return JOURNAL_OTHER;
    const char *line = end + 1, *stop = bytes->data + bytes->length;
    for (; (end = memchr(line, '\n', (size_t)(stop - line))) != NULL; line = end + 1)
        if (!line_read(line, (size_t)(end - line), p, results))
            break;
    *valid_bytes = (uint64_t)(line - bytes->data);
    return JOURNAL_SAME;
}

journal_state journal_read(const char *directory, uint64_t hash, const plan *p, shard_result *results, uint64_t *valid_bytes, error *err)
{
    text path = {0}, bytes = {0};
    journal_state state = JOURNAL_NONE;
    *valid_bytes = 0;
    path_join(&path, directory, JOURNAL_NAME);
    if (file_exists(path.data))
        state = file_read(path.data, journal_most_bytes, &bytes, err) ? journal_parse(&bytes, hash, p, results, valid_bytes)
                                                                      : JOURNAL_ERROR;
    if (state == JOURNAL_SAME)
        forget_missing(directory, p, results);
    text_free(&path);
    text_free(&bytes);
    return state;
}

static bool journal_write(journal *j, const text *line, error *err)
{
    const char *p = line->data;
    size_t left = line->length;
    while (left > 0) {
        ssize_t n = write(j->fd, p, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set_errno(err, ERROR_RUNTIME, "cannot write %s", j->path);
        p += n;
        left -= (size_t)n;
    }
    return fsync(j->fd) == 0 || error_set_errno(err, ERROR_RUNTIME, "cannot write %s", j->path);
}

bool journal_open(const char *directory, uint64_t hash, uint64_t valid_bytes, journal *out, error *err)
{
    text path = {0}, line = {0};
    path_join(&path, directory, JOURNAL_NAME);
    *out = (journal){.path = path.data};
    out->fd = open(path.data, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    bool ok = out->fd >= 0 && ftruncate(out->fd, (off_t)valid_bytes) == 0 && lseek(out->fd, 0, SEEK_END) >= 0;
    if (!ok)
        error_set_errno(err, ERROR_RUNTIME, "cannot create %s", path.data);
    if (ok && valid_bytes == 0) {
        first_line(hash, &line);
        ok = journal_write(out, &line, err);
    }
    text_free(&line);
    if (!ok)
        journal_close(out);
    return ok;
}

bool journal_add(journal *j, size_t shard, const shard_result *r, error *err)
{
    text line = {0};
    json_t *json = result_json(shard, r);
    char *body = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!body)
        return error_set(err, ERROR_RUNTIME, "out of memory for the journal");
    text_add_format(&line, "%016" PRIx64 " %s\n", (uint64_t)XXH3_64bits(body, strlen(body)), body);
    bool ok = journal_write(j, &line, err);
    free(body);
    text_free(&line);
    return ok;
}

void journal_close(journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    free(j->path);
    *j = (journal){.fd = -1};
}
