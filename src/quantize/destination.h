/* The directory a conversion writes to: whose it is, its lock, its space, and the small files beside the tensors. */
#ifndef QUANTIZE_DESTINATION_H
#define QUANTIZE_DESTINATION_H

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

typedef enum destination_state {
    DESTINATION_EMPTY,    /* holds nothing, or only torn beginnings of our own */
    DESTINATION_STARTED,  /* has a journal */
    DESTINATION_FINISHED, /* has a manifest and no journal */
    DESTINATION_FOREIGN,  /* has other files */
} destination_state;

/* Makes the directory if need be and locks it (until the descriptor is closed); refuses the source itself and a directory that
 * another process has locked. source may be NULL. The descriptor, or -1. */
int destination_lock(const char *destination, const char *source, error *err);
bool destination_look(const char *destination, destination_state *out, error *err);

/* Removes temporary files that a killed run left; with `everything`, also the files of an earlier conversion (the journal aside). */
bool destination_clean(const char *destination, bool everything, error *err);

/* Whether `bytes` more fit. */
bool destination_space(const char *destination, uint64_t bytes, error *err);

/* Copies tokenizer, template and the like, and notes each in the manifest. only: names, NULL at the end; NULL: all of them. */
bool destination_copy_small(const char *destination, const char *source, const char *const *only, json_t *manifest, error *err);

/* JSON as it is written to files; takes the reference. */
bool destination_render(json_t *value, text *out, error *err);
/* Writes a file, complete or not at all. */
bool destination_write(const char *destination, const char *name, const text *bytes, error *err);

#endif
