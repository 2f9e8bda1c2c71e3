#define _DEFAULT_SOURCE /* madvise: posix_madvise frees nothing */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

bool file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

bool file_is_directory(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

void path_join(text *out, const char *directory, const char *name)
{
    text_clear(out);
    text_add_text(out, directory);
    if (out->length && out->data[out->length - 1] != '/')
        text_add_char(out, '/');
    text_add_text(out, name);
}

/* Opens a regular file for reading and stores its size. O_NONBLOCK keeps a FIFO from blocking the open. */
static int open_regular(const char *path, size_t *bytes, error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        error_set_errno(err, ERROR_INPUT, "cannot open %s", path);
        return -1;
    }
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) {
        error_set(err, ERROR_INPUT, "%s is not a regular file", path);
        close(fd);
        return -1;
    }
    *bytes = (size_t)s.st_size;
    return fd;
}

static bool read_until_end(int fd, const char *name, size_t limit, text *out, error *err)
{
    char buffer[64 * 1024];
    text_clear(out);
    for (;;) {
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set_errno(err, ERROR_RUNTIME, "cannot read %s", name);
        if (n == 0)
            break;
        if ((size_t)n > limit - out->length)
            return error_set(err, ERROR_INPUT, "%s is larger than the limit of %zu bytes", name, limit);
        text_add(out, buffer, (size_t)n);
    }
    text_add(out, "", 0);
    return true;
}

bool file_read(const char *path, size_t limit, text *out, error *err)
{
    size_t bytes;
    int fd = open_regular(path, &bytes, err);
    if (fd < 0)
        return false;
    bool ok = bytes <= limit ? read_until_end(fd, path, limit, out, err)
                             : error_set(err, ERROR_INPUT, "%s has %zu bytes, more than the limit of %zu", path, bytes, limit);
    close(fd);
    return ok;
}

bool file_read_stdin(size_t limit, text *out, error *err)
{
    return read_until_end(STDIN_FILENO, "standard input", limit, out, err);
}

bool file_map_open(const char *path, file_map *out, error *err)
{
    *out = (file_map){0};
    size_t bytes;
    int fd = open_regular(path, &bytes, err);
    if (fd < 0)
        return false;
    if (bytes > 0) {
        void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            error_set_errno(err, ERROR_RUNTIME, "cannot map %s (%zu bytes)", path, bytes);
            close(fd);
            return false;
        }
        *out = (file_map){p, bytes};
    }
    close(fd);
    return true;
}

void file_map_close(file_map *map)
{
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (file_map){0};
}

void file_map_release(const void *bytes, size_t count)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)bytes / page * page;
    if (count > 0)
        madvise((void *)first, (uintptr_t)bytes + count - first, MADV_DONTNEED);
}

struct file_writer {
    int fd;
    char *path, *temporary; /* the final name, and the name until commit */
};

static void file_writer_free(file_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    free(w->path);
    free(w->temporary);
    free(w);
}

file_writer *file_writer_open(const char *path, error *err)
{
    file_writer *w = mem_alloc(1, sizeof *w);
    text name = {0};
    text_add_format(&name, "%s.tmp.%ld", path, (long)getpid());
    w->path = mem_copy(path, strlen(path));
    w->temporary = name.data;
    w->fd = open(w->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        error_set_errno(err, ERROR_RUNTIME, "cannot create %s", w->temporary);
        file_writer_free(w);
        return NULL;
    }
    return w;
}

bool file_writer_add(file_writer *w, const void *bytes, size_t count, error *err)
{
    const char *p = bytes;
    while (count > 0) {
        ssize_t n = write(w->fd, p, count);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set_errno(err, ERROR_RUNTIME, "cannot write %s", w->temporary);
        p += n;
        count -= (size_t)n;
    }
    return true;
}

bool file_writer_patch(file_writer *w, uint64_t offset, const void *bytes, size_t count, error *err)
{
    const char *p = bytes;
    while (count > 0) {
        ssize_t n = pwrite(w->fd, p, count, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set_errno(err, ERROR_RUNTIME, "cannot write %s", w->temporary);
        p += n;
        offset += (uint64_t)n;
        count -= (size_t)n;
    }
    return true;
}

/* Makes a rename in the directory of path durable. A directory that cannot be synced is not an error. */
static void sync_directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *directory = slash ? mem_copy(path, (size_t)(slash - path) + 1) : mem_copy(".", 1);
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(directory);
}

bool file_writer_commit(file_writer *w, error *err)
{
    bool ok = fsync(w->fd) == 0;
    if (ok) {
        ok = close(w->fd) == 0;
        w->fd = -1; /* also after a failure: the descriptor is gone and its number may be in use again */
    }
    if (ok && rename(w->temporary, w->path) == 0) {
        sync_directory_of(w->path);
        file_writer_free(w);
        return true;
    }
    error_set_errno(err, ERROR_RUNTIME, "cannot finish %s", w->path);
    file_writer_abandon(w);
    return false;
}

void file_writer_abandon(file_writer *w)
{
    if (!w)
        return;
    unlink(w->temporary);
    file_writer_free(w);
}
