/* Files: read whole, map, and write so that a reader sees either the old file or the complete new one. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

bool file_exists(const char *path);
bool file_is_directory(const char *path);

/* Reads a regular file of at most limit bytes. */
bool file_read(const char *path, size_t limit, text *out, error *err);

/* Reads standard input until its end, at most limit bytes. */
bool file_read_stdin(size_t limit, text *out, error *err);

/* A regular file mapped read-only. The file must not shrink while it is mapped. */
typedef struct file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t bytes;
} file_map;

bool file_map_open(const char *path, file_map *out, error *err);
void file_map_close(file_map *map);

/* Mapped bytes that will not be read again soon: their pages leave this process's memory (reading them again is allowed, and
 * reads the file again). A hint, so it cannot fail. */
void file_map_release(const void *bytes, size_t count);

/* A file being written beside its final name; it takes that name, complete and on disk, at file_writer_commit.
 * Until then a crash, an error or file_writer_abandon leaves the old file (if any) untouched. */
typedef struct file_writer file_writer;

file_writer *file_writer_open(const char *path, error *err);
bool file_writer_add(file_writer *w, const void *bytes, size_t count, error *err);
/* Overwrites bytes written earlier (a header whose contents are known only at the end). */
bool file_writer_patch(file_writer *w, uint64_t offset, const void *bytes, size_t count, error *err);
bool file_writer_commit(file_writer *w, error *err); /* fsync, rename, fsync of the directory; frees w in any case */
void file_writer_abandon(file_writer *w);            /* removes the temporary file; NULL is allowed */

/* directory + "/" + name, in a text the caller frees. */
void path_join(text *out, const char *directory, const char *name);

#endif
