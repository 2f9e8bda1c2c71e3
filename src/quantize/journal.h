/* The journal of a conversion, DST/quantize.journal: what is finished, so that a run that was killed goes on where it was.
 *
 *     drawbridge-quantize 1 HASH\n         HASH: of the options and the source
 *     HASH {"shard": 0, ...}\n             one line per finished file; HASH: of the JSON behind it
 *
 * A line is added and synced after its file is complete under its name. A torn line at the end counts as not written. */
#ifndef QUANTIZE_JOURNAL_H
#define QUANTIZE_JOURNAL_H

#include "quantize/stream.h"

#define JOURNAL_NAME "quantize.journal"

typedef struct journal {
    int fd;
    char *path;
} journal;

typedef enum journal_state {
    JOURNAL_NONE,  /* no journal, or one that was torn before anything was finished */
    JOURNAL_SAME,  /* of this conversion */
    JOURNAL_OTHER, /* of another one */
    JOURNAL_ERROR, /* err tells */
} journal_state;

/* Looks at the journal in a directory. With JOURNAL_SAME results (one per shard of the plan) receives what is finished: files that
 * are not there with their size count as not finished. valid_bytes: the length without a torn line. */
journal_state journal_read(const char *directory, uint64_t hash, const plan *p, shard_result *results, uint64_t *valid_bytes, error *err);

/* Begins a journal, or goes on with one of valid_bytes (0: begin). */
bool journal_open(const char *directory, uint64_t hash, uint64_t valid_bytes, journal *out, error *err);
bool journal_add(journal *j, size_t shard, const shard_result *r, error *err);
void journal_close(journal *j);

#endif
