/* Speed of a model in this process: prompts (pp) and generation (tg) at a depth, the forward pass called as the engine calls it.
 *
 *     pp   one sequence: steps of up to `chunk` tokens, logits of the last one, a greedy sample
 *     tg   `batch` sequences: steps of one token each, logits and a greedy sample for all of them
 *
 * The tokens are random and so is the next one of a sequence, whatever was sampled: a model of made-up weights repeats itself, and would
 * always ask for the same experts. There are no drafts. The cache holds `depth` tokens before the measurement begins (fill.h).
 *
 * Each test runs once uncounted, to warm up and to count what its steps read and compute (cost.h), then `repetitions` times. */
#ifndef BENCH_LOCAL_H
#define BENCH_LOCAL_H

#include <signal.h>

#include "base/json.h"
#include "bench/ceilings.h"
#include "bench/cost.h"
#include "bench/fill.h"
#include "engine/kv_pages.h"
#include "engine/sampler.h"

enum { LOCAL_REPETITIONS_MOST = 100 };

typedef struct local_test {
    int prompt, generate; /* tokens; one of them is 0 */
    int batch;            /* sequences side by side */
    int depth;            /* tokens in the cache before */
} local_test;

typedef struct local_result {
    local_test test;
    int repetitions;
    double seconds[LOCAL_REPETITIONS_MOST]; /* of each one, all its steps */
    double processor_seconds[LOCAL_REPETITIONS_MOST]; /* of all threads together: tells more where others use the machine, too */
    cost cost;                              /* of one repetition */
} local_result;

typedef struct local_options {
    int chunk;         /* tokens of a prompt per step, at most forward->max_rows */
    int max_batch, max_context;
    int repetitions;
    bool exact;        /* of the device */
    bool real_depth;   /* compute all tokens of the depth */
    const volatile sig_atomic_t *stop; /* becomes non-zero: the run ends with ERROR_INTERRUPTED; NULL: never */
} local_options;

typedef struct local_bench local_bench;

/* Bytes of cache that the options ask for. */
uint64_t local_cache_bytes(const kv_layout *k, const local_options *o);

local_bench *local_create(forward *f, const local_options *o, error *err);
void local_destroy(local_bench *b);
bool local_run(local_bench *b, const local_test *t, local_result *out, error *err);

/* "pp512", "tg128 b8 @ d8192" */
void local_test_name(const local_test *t, text *out);

/* What a result says. */
typedef struct local_figures {
    double tokens_per_second, deviation; /* mean over repetitions, and standard deviation (n - 1); 0 for one */
    double best_tokens_per_second;
    double step_ms;                      /* mean of all steps */
    double read_share;  /* time that reading what must be read takes at the ceiling, of the time it took */
    double arithmetic_share; /* the same of the arithmetic: bytes at their ceiling and then f32 at its own */
} local_figures;

local_figures local_figures_of(const local_result *r, const ceilings *c);
json_t *local_result_json(const local_result *r, const ceilings *c); /* json_decref frees */

#endif
