/* What a step must read and compute, counted from the model's shapes and from what the step chose: the bounds that speeds are compared
 * with. docs/benchmarking.md has the formulas.
 *
 * Counted while a forward pass runs, by its tap: experts are those the router chose, each read once per step; index keys and latents
 * are those a sequence's rows look at, each read once per step and layer. */
#ifndef BENCH_COST_H
#define BENCH_COST_H

#include "forward/forward.h"

typedef struct cost {
    /* bytes as stored, scales included */
    double weight_bytes; /* attention, indexer, dense MLPs, routers, shared experts; lm_head when there are logits */
    double expert_bytes; /* routed experts */
    double key_bytes;    /* latents and index keys */
    /* operations: a product and its addition are two */
    double byte_ops;     /* 4-bit weights with 8-bit rows */
    double fused_ops;    /* everything else, in f32 */
    double experts;      /* distinct experts, summed over layers and steps */
    int steps, logit_rows;
} cost;

double cost_read_bytes(const cost *c);

typedef struct cost_counter {
    const forward *forward;
    bool exact;          /* 4-bit weights are multiplied in f32 */
    cost sum;
    const step *s;       /* being counted */
    bool *chosen;        /* [experts] of a layer */
    uint64_t *seen;      /* [max_context / 64 + 1] bits of positions */
    int max_context;
    double selected;     /* positions the latest list has, a sequence's once */
    double pairs;        /* (row, position) pairs of that list */
} cost_counter;

void cost_counter_init(cost_counter *c, const forward *f, bool exact, int max_context);
void cost_counter_free(cost_counter *c);

/* Runs the forward pass over a step while it is counted, and its logits (logit_rows of them, the last rows). */
void cost_count_step(cost_counter *c, forward *f, const step *s, int logit_rows);

uint64_t matrix_bytes(const matrix *w); /* data and scales; 0 for no matrix */

#endif
