/* Errors are values: a code that is also the program's exit status, and one sentence for the user that says
 * what is wrong, where (file, tensor, flag), expected against found, and what to do next.
 *
 * A function that can fail returns bool (or a pointer) and takes `error *err` as its last argument:
 *
 *     if (!file_map(path, &map, err))
 *         return error_add(err, "while opening shard %d", shard);
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stdbool.h>

/* The numbers are the exit codes of every command (docs/commands.md). */
typedef enum error_code {
    ERROR_NONE = 0,
    ERROR_RUNTIME = 1, /* something failed while running: I/O, memory, a broken invariant */
    ERROR_USAGE = 2,   /* a flag or an argument is wrong */
    ERROR_INPUT = 3,   /* a file or a request is invalid */
    ERROR_FIT = 4,     /* does not fit: memory, context, disk */
    ERROR_DEVICE = 5,  /* a device is missing or failed */
    ERROR_NETWORK = 6,
    ERROR_INTERRUPTED = 130,
} error_code;

typedef struct error {
    error_code code;
    char text[1024]; /* one sentence, no trailing newline; longer text is cut at a character boundary */
} error;

/* Sets the error and returns false, so that a caller can `return error_set(...)`. A NULL err is allowed. */
bool error_set(error *err, error_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* As error_set, with ": " and strerror(errno) appended. */
bool error_set_errno(error *err, error_code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " before an existing text; returns false. */
bool error_add(error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
