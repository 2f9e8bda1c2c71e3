#include "commands/input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

static bool is_stdin(const char *path)
{
    return !path || strcmp(path, "-") == 0;
}

const char *input_name(const char *path)
{
    return is_stdin(path) ? "standard input" : path;
}

/* Opens a path that may be a pipe, such as a shell's <(...). */
static FILE *open_input(const char *path, error *err)
{
    if (is_stdin(path)) {
        if (isatty(STDIN_FILENO))
            log_info("reading standard input; Ctrl-D on an empty line ends it");
        return stdin;
    }
    if (file_is_directory(path)) {
        error_set(err, ERROR_INPUT, "%s is a directory, expected a file", path);
        return NULL;
    }
    FILE *f = fopen(path, "rbe"); /* e: close on exec, an extension of glibc and musl */
    if (!f)
        error_set_errno(err, ERROR_INPUT, "cannot open %s", path);
    return f;
}

static void close_input(FILE *f)
{
    if (f && f != stdin)
        fclose(f);
}

/* Ctrl-C while a command that counts it waits for input is the user's wish, not a failure. */
static bool cannot_read(const char *name, error *err)
{
    if (errno == EINTR)
        return error_set(err, ERROR_INTERRUPTED, "interrupted while reading %s", name);
    return error_set_errno(err, ERROR_INPUT, "cannot read %s", name);
}

bool input_read(const char *path, text *out, error *err)
{
    FILE *f = open_input(path, err);
    if (!f)
        return false;
    char buffer[64 * 1024];
    bool ok = true;
    size_t n;
    text_clear(out);
    while (ok && (n = fread(buffer, 1, sizeof buffer, f)) > 0) {
        text_add(out, buffer, n);
        if (out->length > INPUT_LIMIT_BYTES)
            ok = error_set(err, ERROR_INPUT, "%s has more than %d bytes", input_name(path), (int)INPUT_LIMIT_BYTES);
    }
    if (ok && ferror(f))
        ok = cannot_read(input_name(path), err);
    if (ok && out->length == 0)
        ok = error_set(err, ERROR_INPUT, "%s is empty", input_name(path));
    close_input(f);
    return ok;
}

json_t *input_read_json(const char *path, error *err)
{
    text bytes = {0};
    json_t *value = NULL;
    if (input_read(path, &bytes, err))
        value = json_parse(bytes.data, bytes.length, input_name(path), err);
    text_free(&bytes);
    return value;
}

bool input_lines_open(const char *path, input_lines *out, error *err)
{
    *out = (input_lines){.file = open_input(path, err), .name = input_name(path)};
    return out->file != NULL;
}

bool input_lines_next(input_lines *in, error *err)
{
    errno = 0;
    ssize_t n = getline(&in->line, &in->capacity, in->file);
    if (n < 0) {
        if (ferror(in->file))
            cannot_read(in->name, err);
        return false;
    }
    if (in->line[n - 1] == '\n')
        in->line[--n] = '\0';
    in->length = (size_t)n;
    in->number++;
    return true;
}

void input_lines_close(input_lines *in)
{
    close_input(in->file);
    free(in->line);
    *in = (input_lines){0};
}

json_t *input_lines_json(const input_lines *in, error *err)
{
    json_error_t e;
    json_t *value = json_loadb(in->line, in->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (!value)
        error_set(err, ERROR_INPUT, "%s, line %lld: not valid JSON at column %d: %s", in->name, (long long)in->number, e.column, e.text);
    return value;
}

/* ---- token ids ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool outside(const char *where, const char *id, size_t length, int64_t size, error *err)
{
    return error_set(err, ERROR_INPUT, "%s: token id %.*s is outside the vocabulary (0 to %lld)", where,
                     (int)(length < 24 ? length : 24), id, (long long)size - 1);
}

/* One id in decimal digits; -1 when it is something else. Stops counting far above any vocabulary. */
static int64_t parse_id(view word)
{
    int64_t id = 0;
    for (size_t i = 0; i < word.length; i++) {
        if (word.data[i] < '0' || word.data[i] > '9')
            return -1;
        if (id <= INT32_MAX)
            id = id * 10 + (word.data[i] - '0');
    }
    return id;
}

bool token_ids_parse(view ids, const char *where, int64_t size, token_list *out, error *err)
{
    for (size_t i = 0; i < ids.length;) {
        if (is_blank(ids.data[i])) {
            i++;
            continue;
        }
        view word = {ids.data + i, 0};
        while (i + word.length < ids.length && !is_blank(ids.data[i + word.length]))
            word.length++;
        int64_t id = parse_id(word);
        if (id < 0)
            return error_set(err, ERROR_INPUT, "%s: \"%.*s\" at byte %zu is not a token id; ids are decimal, separated by white space",
                             where, (int)(word.length < 24 ? word.length : 24), word.data, i);
        if (id >= size)
            return outside(where, word.data, word.length, size, err);
        token_list_add(out, (int32_t)id);
        i += word.length;
    }
    return true;
}

bool token_ids_from_json(const json_t *array, const char *where, int64_t size, token_list *out, error *err)
{
    if (!json_is_array(array))
        return error_set(err, ERROR_INPUT, "%s: expected an array of token ids, found %s", where, json_type_name(array));
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item))
            return error_set(err, ERROR_INPUT, "%s: item %zu must be a token id, found %s", where, i, json_type_name(item));
        int64_t id = json_integer_value(item);
        char digits[24];
        if (id < 0 || id >= size)
            return outside(where, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)id), size, err);
        token_list_add(out, (int32_t)id);
    }
    return true;
}
