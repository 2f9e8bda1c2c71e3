/* The tuner: for every key of a model's dispatch table it measures the variants that can compute it, in the device's own operation with
 * the model's own weights, and writes the device's tuned table (device/tuned.h) after each key.
 *
 * A key goes to another variant than the rule's only when that one is faster by min_gain, in its typical time and in its least; else the
 * rule's choice is recorded with its time, so that the shape counts as tuned. Rows that the table has already, from the same version, are
 * kept. */
#ifndef TUNE_TUNE_H
#define TUNE_TUNE_H

#include <signal.h>
#include <stdio.h>

#include "device/tuned.h"
#include "forward/forward.h"

typedef struct tune_options {
    const int *rows;      /* [row_count] how many rows are measured; each stands for its bucket, no bucket twice */
    int row_count;
    double min_gain;      /* percent that a variant must be faster than the rule's */
    double seconds;       /* per key */
    bool force;           /* measure again what the table has */
    const char *path;     /* of the table; it is created, or completed */
    bool (*wanted)(void *context, const dispatch_key *key); /* NULL: all keys */
    void *context;
    const volatile sig_atomic_t *stop; /* ends the run when not 0; NULL: nothing does */
    uint64_t (*clock)(void);           /* microseconds; NULL: clock_now_us */
} tune_options;

typedef enum tune_state { TUNE_WAITING, TUNE_MEASURED, TUNE_KEPT, TUNE_ONLY } tune_state;

/* One key of the run. */
typedef struct tune_shape {
    dispatch_key key;
    int rows;          /* measured with */
    int variants;      /* compared */
    tune_state state;  /* KEPT: the table had it; ONLY: there is one variant, nothing to compare */
    tuned_row row;     /* MEASURED and KEPT */
} tune_shape;

typedef struct tune_result {
    tune_shape *shapes; /* [count] */
    int count;
} tune_result;

/* Uses f, whose device was made without a tuned table and for at least the largest of rows. Filled as far as it came, also on failure;
 * an interruption is an error of that code. */
bool tune_run(forward *f, const tune_options *o, tune_result *out, error *err);
void tune_result_free(tune_result *r);

/* Before and after, one line per measured key, and the sums. */
void tune_result_print(const tune_result *r, FILE *out);

/* ---- measuring (measure.c) ---- */

typedef struct tune_bench tune_bench; /* a step with a context behind it, and room for the largest key */

tune_bench *tune_bench_create(forward *f, int max_rows, uint64_t (*clock)(void), error *err);
void tune_bench_destroy(tune_bench *b);

/* Of one unit of a key's work with one variant, in microseconds. */
typedef struct tune_time {
    double us;    /* typical */
    double least; /* the fastest seen */
} tune_time;

/* times[i]: of variants[i]. False when stopped. */
bool tune_measure(tune_bench *b, dispatch_row *row, int rows, const int *variants, int count, double seconds,
                  const volatile sig_atomic_t *stop, tune_time *times);

#endif
