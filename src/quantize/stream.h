/* Writing one file of the result: rows are encoded in parallel, written in order, hashed on the way.
 *
 * Memory does not depend on the sizes of files or tensors: work goes in rounds of at most 64 MiB of source, source pages are given
 * back after use, and while one round is encoded, the one before it is written. The bytes of the result do not depend on the
 * number of threads. */
#ifndef QUANTIZE_STREAM_H
#define QUANTIZE_STREAM_H

#include <signal.h>

#include "base/log.h"
#include "base/threads.h"
#include "quantize/encode.h"
#include "quantize/plan.h"

/* What is remembered of a finished file: checksums and how well its matrices came out. */
typedef struct shard_result {
    bool done;
    uint64_t bytes;      /* of the whole file */
    uint64_t hash;       /* XXH3-64 of the whole file */
    uint64_t *hashes;    /* XXH3-64 of every tensor, in the order of the file */
    size_t hash_count;
    encode_stats stats[CLASS_COUNT][2]; /* by class; [1]: of the draft layer. Matrices that were encoded, not copied ones */
} shard_result;

void shard_result_free(shard_result *r);
size_t shard_tensors(const plan *p, size_t shard); /* tensors in a file of the plan */

/* Makes rows first_row .. first_row+rows-1 of a matrix of a plan of shapes, laid out as encode_rows does. Called by several threads,
 * more than once for some rows. */
typedef void (*stream_maker)(const void *context, const plan_entry *e, int64_t first_row, int64_t rows, uint8_t *data, uint8_t *scales);

typedef struct stream_options {
    scale_rule rule;
    bool search;
    const checkpoint *importance; /* NULL: none; see docs/quantize.md */
    uint64_t scales_bytes; /* scales of one matrix that are held in memory; 0: 64 MiB. Tests make it small */
    const volatile sig_atomic_t *stop; /* not zero: stop soon; NULL: never */
    stream_maker make;     /* for a plan of shapes; else NULL */
    const void *make_context;
} stream_options;

typedef struct stream stream;

stream *stream_create(plan *p, const stream_options *o, pool *workers, progress *shown, error *err);
void stream_free(stream *s);

/* Writes directory/file of one shard, complete or not at all. */
bool stream_shard(stream *s, size_t shard, const char *directory, shard_result *out, error *err);

/* Source bytes of a shard that need not be done again, for the progress. */
void stream_skip(stream *s, size_t shard);

/* Importance of the columns of a matrix: [cols] values, borrowed from the file; NULL when it has none for this module. False when
 * what it has does not fit. */
bool stream_importance(const checkpoint *file, const char *module, int64_t cols, const float **out, error *err);

#endif
