#include "quantize/destination.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "quantize/journal.h"
#include "quantize/manifest.h"

enum { SMALL_FILE_BYTES = 64 << 20, SPARE_BYTES = 16 << 20 };

/* ---- names ---- */

typedef struct name_list {
    char **names;
    size_t count;
} name_list;

static void names_free(name_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* What a directory holds, sorted, without "." and "..". */
static bool names_read(const char *directory, name_list *out, error *err)
{
    *out = (name_list){0};
    DIR *d = opendir(directory);
    if (!d)
        return error_set_errno(err, ERROR_INPUT, "cannot read directory %s", directory);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        out->names = mem_grow(out->names, out->count + 1, sizeof *out->names);
        out->names[out->count++] = mem_copy(e->d_name, strlen(e->d_name));
    }
    closedir(d);
    if (out->count)
        qsort(out->names, out->count, sizeof *out->names, compare_names);
    return true;
}

/* "NAME.tmp.123", as base/file.c calls a file until it is complete. */
static bool is_temporary(const char *name)
{
    const char *at = strstr(name, ".tmp.");
    if (!at || !isdigit((unsigned char)at[5]))
        return false;
    return at[5 + strspn(at + 5, "0123456789")] == '\0';
}

/* Files that every conversion writes. */
static bool is_result(const char *name)
{
    static const char *const own[] = {"config.json", "model.safetensors.index.json", "hf_quant_config.json", MANIFEST_NAME};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(name, own[i]) == 0)
            return true;
    return text_starts_with(name, "model-") && text_ends_with(name, ".safetensors");
}

/* ---- the directory ---- */

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int destination_lock(const char *destination, const char *source, error *err)
{
    if (mkdir(destination, 0777) != 0 && errno != EEXIST) {
        error_set_errno(err, ERROR_RUNTIME, "cannot create directory %s", destination);
        return -1;
    }
    if (source && is_same_file(destination, source)) {
        error_set(err, ERROR_USAGE, "%s is the source itself; name another directory for the result", destination);
        return -1;
    }
    int fd = open(destination, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        error_set_errno(err, ERROR_RUNTIME, "cannot open directory %s", destination);
        return -1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    error_set(err, ERROR_RUNTIME, "another drawbridge is writing to %s; wait for it to end", destination);
    close(fd);
    return -1;
}

bool destination_look(const char *destination, destination_state *out, error *err)
{
    name_list names;
    if (!names_read(destination, &names, err))
        return false;
    bool started = false, complete = false, other = false;
    for (size_t i = 0; i < names.count; i++) {
        started = started || strcmp(names.names[i], JOURNAL_NAME) == 0;
        complete = complete || strcmp(names.names[i], MANIFEST_NAME) == 0;
        other = true;
    }
    *out = started ? DESTINATION_STARTED : complete ? DESTINATION_FINISHED : other ? DESTINATION_FOREIGN : DESTINATION_EMPTY;
    names_free(&names);
    return true;
}

bool destination_clean(const char *destination, bool everything, error *err)
{
    name_list names;
    text path = {0};
    if (!names_read(destination, &names, err))
        return false;
    bool ok = true;
    for (size_t i = 0; i < names.count && ok; i++) {
        if (!is_temporary(names.names[i]) && !(everything && is_result(names.names[i])))
            continue;
        path_join(&path, destination, names.names[i]);
        ok = unlink(path.data) == 0 || error_set_errno(err, ERROR_RUNTIME, "cannot remove %s", path.data);
    }
    names_free(&names);
    text_free(&path);
    return ok;
}

bool destination_space(const char *destination, uint64_t bytes, error *err)
{
    struct statvfs s;
    if (statvfs(destination, &s) != 0)
        return error_set_errno(err, ERROR_RUNTIME, "cannot ask for the free space of %s", destination);
    uint64_t available = (uint64_t)s.f_bavail * s.f_frsize;
    if (available >= bytes + SPARE_BYTES)
        return true;
    return error_set(err, ERROR_FIT, "%s has %.2f GB free, and %.2f GB are still to be written; free %.2f GB or name another directory",
                     destination, (double)available / 1e9, (double)(bytes + SPARE_BYTES) / 1e9,
                     (double)(bytes + SPARE_BYTES - available) / 1e9);
}

/* ---- files ---- */

bool destination_write(const char *destination, const char *name, const text *bytes, error *err)
{
    text path = {0};
    path_join(&path, destination, name);
    file_writer *w = file_writer_open(path.data, err);
    bool ok = w != NULL;
    if (ok && !file_writer_add(w, bytes->data, bytes->length, err)) {
        file_writer_abandon(w);
        ok = false;
    } else if (ok) {
        ok = file_writer_commit(w, err);
    }
    text_free(&path);
    return ok;
}

bool destination_render(json_t *value, text *out, error *err)
{
    /* 15 digits: 1e-05 stays as people wrote it */
    char *bytes = value ? json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(value);
    if (!bytes)
        return error_set(err, ERROR_RUNTIME, "out of memory for a JSON file");
    text_clear(out);
    text_add_text(out, bytes);
    text_add_char(out, '\n');
    free(bytes);
    return true;
}

/* Files that hold weights, or that are written anew. */
static bool is_left_out(const char *name)
{
    static const char *const weights[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx"};
    if (name[0] == '.' || is_temporary(name) || is_result(name) || strcmp(name, JOURNAL_NAME) == 0)
        return true;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (text_ends_with(name, weights[i]))
            return true;
    return false;
}

static bool copy_small(const char *destination, const char *path, const char *name, json_t *manifest, error *err)
{
    struct stat s;
    text bytes = {0};
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode))
        return true;
    if (s.st_size > SMALL_FILE_BYTES) {
        log_warning("%s (%.0f MB) is not copied; only files up to %d MB are", path, (double)s.st_size / 1e6, SMALL_FILE_BYTES >> 20);
        return true;
    }
    bool ok = file_read(path, SMALL_FILE_BYTES, &bytes, err) && destination_write(destination, name, &bytes, err);
    if (ok)
        manifest_note(manifest, name, &bytes);
    text_free(&bytes);
    return ok;
}

/* In a list that ends with NULL; a list that is NULL has every name. */
static bool is_listed(const char *name, const char *const *list)
{
    for (size_t i = 0; list && list[i]; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return !list;
}

bool destination_copy_small(const char *destination, const char *source, const char *const *only, json_t *manifest, error *err)
{
    name_list names;
    text path = {0};
    if (!names_read(source, &names, err))
        return false;
    bool ok = true;
    for (size_t i = 0; i < names.count && ok; i++) {
        if (is_left_out(names.names[i]) || !is_listed(names.names[i], only))
            continue;
        path_join(&path, source, names.names[i]);
        ok = copy_small(destination, path.data, names.names[i], manifest, err);
    }
    names_free(&names);
    text_free(&path);
    return ok;
}
