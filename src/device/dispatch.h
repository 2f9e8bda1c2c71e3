/* Which kernel runs for which work (DESIGN, decision 2). A device resolves every (operation, format, shape, rows) it will meet to a
 * named variant once, when it is created, and keeps the result here: for `inspect --dispatch`, the start-up banner, a metric, and
 * --require-tuned. Nothing is chosen later, so nothing can fall back unseen.
 *
 * Variants of an operation give the same bits (decision 4), so a tuned table changes speed alone. */
#ifndef DEVICE_DISPATCH_H
#define DEVICE_DISPATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* Rows of a step are looked up by bucket: the smallest bound that is not below them. */
enum { DISPATCH_BUCKETS = 6 };
extern const int dispatch_bucket_rows[DISPATCH_BUCKETS]; /* 1, 4, 16, 64, 256, INT32_MAX */

int dispatch_bucket(int rows);

typedef enum dispatch_source {
    DISPATCH_ONLY,      /* there is no other variant */
    DISPATCH_TUNED,     /* from the tuned table */
    DISPATCH_HEURISTIC, /* chosen by rule: the table has no row for it */
} dispatch_source;

/* What has to be computed. */
typedef struct dispatch_key {
    const char *operation; /* "linear", "experts", "attend", "index", ...; static */
    const char *format;    /* of the weights or of the cache: "mxfp4", "bf16", "fp8_block"; static */
    int n, k;              /* output and input width of one unit of work (for attention: heads, latent width) */
    int bucket;            /* of rows: index into dispatch_bucket_rows */
} dispatch_key;

typedef struct dispatch_row {
    dispatch_key key;
    int uses;              /* how many matrices or layers of the model have this key */
    int variant;           /* index into the device's variants of the operation */
    const char *name;      /* of that variant; static */
    dispatch_source source;
    double us;             /* measured by the tuner, of the chosen variant; 0: unknown */
} dispatch_row;

typedef struct dispatch_table {
    dispatch_row *rows;    /* [count], in the order of operation, format, n, k, bucket */
    int count, capacity;
    char device_name[64];  /* names the file in tuned/: "epyc-avx2-2t" */
    char tuned_path[512];  /* the table that was read; "": none */
} dispatch_table;

/* Adds a key, or counts one use more. */
void dispatch_add(dispatch_table *t, const dispatch_key *key);
dispatch_row *dispatch_find(dispatch_table *t, const dispatch_key *key); /* NULL: the model does not need it */
void dispatch_free(dispatch_table *t);

/* How many rows come from where. */
typedef struct dispatch_counts {
    int shapes, tuned, only, heuristic;
} dispatch_counts;

dispatch_counts dispatch_count(const dispatch_table *t);

#endif
