/* Which kernel runs for which work (DESIGN, decision 2). A device resolves every (operation, format, shape, rows) it will meet to a
 * named variant once, when it is created, and keeps the result here: for `inspect --dispatch`, the start-up banner, a metric, and
 * --require-tuned. Nothing is chosen later, so nothing can fall back unseen: work that is not in the table stops the program.
 *
 *     the device says     which variants it has: one row of its table each
 *     dispatch_enumerate  what this model needs: one row here per (operation, format, n, k, bucket)
 *     dispatch_resolve    a variant for each row: the only one, that of the tuned table (tuned.h), or the rule's
 *     dispatch_kernel     what the device then runs, many times per step
 *
 * Variants of an operation give the same bits (decision 4), so a tuned table changes speed alone. */
#ifndef DEVICE_DISPATCH_H
#define DEVICE_DISPATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "model/kv_layout.h"
#include "model/weights.h"

/* Rows of a step are looked up by bucket: the smallest bound that is not below them. */
enum { DISPATCH_BUCKETS = 6 };
extern const int dispatch_bucket_rows[DISPATCH_BUCKETS]; /* 1, 4, 16, 64, 256, INT32_MAX */

int dispatch_bucket(int rows);
const char *dispatch_bucket_name(int bucket); /* "1", "4", ..., "more" */
int dispatch_bucket_named(view name);         /* -1: none */

typedef enum dispatch_source {
    DISPATCH_ONLY,      /* there is no other variant */
    DISPATCH_TUNED,     /* from the tuned table */
    DISPATCH_HEURISTIC, /* chosen by rule: the table has no row for it */
} dispatch_source;

const char *dispatch_source_name(dispatch_source s); /* "only", "tuned", "heuristic" */

/* The operations: what a key's n and k mean, and where its rows come from.
 *     linear   y = W x                              n x k: the matrix
 *     experts  the same, of an expert or a dense MLP: gate, up or down; rows are those of one expert
 *     absorb   a head's query times its part of kv_b   n: latent width, k: nope
 *     value    the other part of kv_b times the result n: v, k: latent width
 *     attend   scores, softmax, weighted latents    n: heads, k: latent and rotary width; the format is the cache's
 *     index    scores of the indexer and selection  n: index heads, k: index width; likewise */
extern const char dispatch_linear[], dispatch_experts[], dispatch_absorb[], dispatch_value[], dispatch_attend[], dispatch_index[];

/* What has to be computed. */
typedef struct dispatch_key {
    const char *operation; /* one of the above; static */
    const char *format;    /* of the weights or of the cache: "mxfp4", "bf16", "fp8_block"; static */
    int n, k;              /* output and input width of one unit of work */
    int bucket;            /* of rows: index into dispatch_bucket_rows */
} dispatch_key;

/* One way to compute an operation. The rule that holds without a tuned row: of the highest level the variant with the largest from_rows
 * that is not above the bucket's typical rows; of equals the first. */
typedef struct dispatch_variant dispatch_variant;
struct dispatch_variant {
    const char *operation, *name; /* "avx2 panel"; a key is supported by one variant of a name only */
    int level;                    /* of the instructions it needs: index into dispatch_table.levels */
    int from_rows;                /* 0: never by rule while there is another */
    bool (*supports)(const dispatch_variant *v, const dispatch_key *key); /* NULL: every format and shape */
    const void *kernel;           /* what the device runs, in a form of its own */
};

typedef struct dispatch_row {
    dispatch_key key;
    int uses;              /* how many matrices or layers of the model have this key */
    int choices;           /* variants that could compute it */
    int variant;           /* index into the device's variants */
    const char *name;      /* of that variant; static */
    dispatch_source source;
    double us;             /* measured by the tuner, of the chosen variant; 0: unknown */
} dispatch_row;

typedef struct dispatch_table {
    dispatch_row *rows;    /* [count], in the order of operation, format, n, k, bucket once enumerated */
    int count, capacity;
    int *slots;            /* [slot_count] hash of the rows: row + 1, 0: empty */
    int slot_count;        /* a power of two */
    const dispatch_variant *variants; /* [variant_count] */
    int variant_count;
    const char *const *levels; /* [level_count] "generic", "avx2", ...: the lowest first */
    int level_count;
    int level;             /* the highest one that this machine runs */
    char device_name[80];  /* names the file in tuned/: "amd-epyc-avx2-2t", "amd-epyc-avx2-2t-exact" */
    char tuned_path[512];  /* the table that was read; "": none */
    int stale;             /* rows of that table which could not be used: another version's, or of a variant that is gone */
    char stale_words[256]; /* the first of them, as a sentence */
    char forced[64];       /* --kernels; "": nothing is forced */
} dispatch_table;

/* "AMD EPYC 9B14 96-Core Processor", "avx2", 2 -> "amd-epyc-9b14-avx2-2t". */
void dispatch_device_name(const char *cpu_model, const char *level, int threads, char out[64]);

/* Adds a key, or counts one use more. Not after dispatch_resolve. */
void dispatch_add(dispatch_table *t, const dispatch_key *key);
dispatch_row *dispatch_find(dispatch_table *t, const dispatch_key *key); /* NULL: the model does not need it */
void dispatch_free(dispatch_table *t);

/* A unit of the model's work: one matrix, one expert, or the attention of one layer. */
typedef struct dispatch_work {
    dispatch_key key;        /* bucket 0 */
    const matrix *w;         /* linear, experts, absorb, value */
    const mlp_weights *mlp;  /* experts: what w belongs to */
    int layer;               /* -1: outside the layers; config.layers: the draft layer */
    bool routed;             /* one of many experts */
} dispatch_work;

typedef void (*dispatch_visitor)(void *context, const dispatch_work *work);

/* Visits all work of a step of the model. */
void dispatch_visit(const model *m, kv_dtype kv, dispatch_visitor visit, void *context);

/* Adds the keys of all that work, in each bucket that steps of up to max_rows rows reach. */
void dispatch_enumerate(dispatch_table *t, const model *m, kv_dtype kv, int max_rows);

/* Chooses a variant for every row. tuned_directory: where the table of this device may be; NULL: none. kernels: a level, or the name of a
 * variant, that is taken wherever there is one (--kernels); NULL: free choice. Fails when the table is damaged or the name is unknown. */
bool dispatch_resolve(dispatch_table *t, const char *tuned_directory, const char *kernels, error *err);

/* The names that can be forced on this machine: its levels, the lowest first, then the variants called otherwise. NULL behind the last. */
const char *dispatch_kernels_name(const dispatch_table *t, int index);

/* Sets one row to a variant by hand: for the tuner. */
void dispatch_set(dispatch_table *t, dispatch_row *row, int variant);

/* The variants that can compute a key here, in the device's order; at most `most`. Returns how many there are. */
int dispatch_choices(const dispatch_table *t, const dispatch_key *key, int *out, int most);

/* The kernel chosen for an operation on weights or a cache stored in a format, of a shape, with so many rows. */
const void *dispatch_kernel(const dispatch_table *t, const char *operation, const char *stored, int64_t n, int64_t k, int rows);

/* "linear mxfp4 2048 x 512, 16 rows" */
void dispatch_describe(const dispatch_key *key, text *out);

/* How many rows come from where. */
typedef struct dispatch_counts {
    int shapes, tuned, only, heuristic;
} dispatch_counts;

dispatch_counts dispatch_count(const dispatch_table *t);

/* "312 shapes, 309 tuned, 3 heuristic" */
void dispatch_summary(const dispatch_table *t, text *out);

#endif
