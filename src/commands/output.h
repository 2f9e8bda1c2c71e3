/* What commands write to standard output. */
#ifndef COMMANDS_OUTPUT_H
#define COMMANDS_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/text.h"

/* Appends ids: "1 2 3" with separator " ", "1,2,3" with ",". */
void output_ids(const int32_t *ids, size_t count, const char *separator, text *out);

/* Appends bytes as a JSON string; what is not UTF-8 becomes U+FFFD. */
void output_json_string(const char *bytes, size_t count, text *out);

/* Prints one JSON value and a newline: indented for a terminal, on one line elsewhere. Takes the reference. */
void output_json(json_t *value);

/* Prints the text and clears it. Returns false when standard output can take no more (main.c tells why). */
bool output_text(text *t);

/* As output_text; on a terminal a newline follows when the text does not end with one. */
bool output_document(text *t);

#endif
