/* What commands read besides models: text, lines and token ids from files, pipes and standard input. */
#ifndef COMMANDS_INPUT_H
#define COMMANDS_INPUT_H

#include <stdio.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "model/tokenizer.h"

enum { INPUT_LIMIT_BYTES = 1 << 30 };

/* Reads a whole file or pipe; NULL or "-" is standard input. Empty input is an error. */
bool input_read(const char *path, text *out, error *err);

const char *input_name(const char *path); /* for errors: the path, or "standard input" */

/* Reads and parses a JSON document in the same way. */
json_t *input_read_json(const char *path, error *err);

/* Lines of a file, a pipe or standard input, one at a time. */
typedef struct input_lines {
    FILE *file;
    const char *name; /* for errors */
    char *line;       /* the current line, without its newline */
    size_t length, capacity;
    int64_t number;   /* of the current line, from 1 */
} input_lines;

bool input_lines_open(const char *path, input_lines *out, error *err);
bool input_lines_next(input_lines *in, error *err); /* false at the end, or with err->code set */
void input_lines_close(input_lines *in);

/* Parses the current line as any JSON value; errors name the line. */
json_t *input_lines_json(const input_lines *in, error *err);

/* Appends decimal token ids separated by white space. Each must be below size; `where` begins the error. */
bool token_ids_parse(view ids, const char *where, int64_t size, token_list *out, error *err);

/* Appends the ids of a JSON array. */
bool token_ids_from_json(const json_t *array, const char *where, int64_t size, token_list *out, error *err);

#endif
