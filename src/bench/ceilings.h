/* What this machine can do at most, measured: reading memory, fused f32 products, products of bytes. Speeds are given as shares of it.
 *
 * read    all threads read a block of memory much larger than the caches, in huge pages where the system gives them
 * fused   the fastest loop of peaks.h for f32
 * bytes   the fastest one for bytes: what 4-bit weights and 8-bit rows need
 * Each is the best of many rounds, so that whatever else the machine does disturbs it least. */
#ifndef BENCH_CEILINGS_H
#define BENCH_CEILINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

typedef struct ceilings_options {
    int threads;
    double seconds;      /* for each of the measurements */
    size_t read_bytes;   /* of the block to read; 0: at least 512 MB, and four times the last cache */
    bool processor_time; /* of all threads, divided by their number, instead of the clock's: where others use the machine, too */
} ceilings_options;

typedef struct ceilings {
    int threads;
    size_t read_bytes;         /* of the block that is read */
    double read_gb_s, read_one_gb_s; /* with all threads and with one */
    double fused_gflop_s, bytes_gop_s;
    const char *fused_name, *bytes_name; /* the loops; static */
} ceilings;

bool ceilings_measure(const ceilings_options *o, ceilings *out, error *err);

/* The better of two measurements, figure by figure. */
void ceilings_improve(ceilings *c, const ceilings *other);

void ceilings_describe(const ceilings *c, text *out); /* one line for people */
json_t *ceilings_json(const ceilings *c);             /* json_decref frees */

#endif
