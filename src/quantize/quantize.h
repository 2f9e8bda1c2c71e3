/* Checkpoint to checkpoint: the whole conversion, from two directories and options. */
#ifndef QUANTIZE_QUANTIZE_H
#define QUANTIZE_QUANTIZE_H

#include "quantize/report.h"

typedef struct quantize_options {
    recipe_options recipe;
    scale_rule rule;
    bool search;                /* also implied by importance */
    const char *importance;     /* file; NULL: none */
    uint64_t shard_bytes;       /* files are filled up to this */
    int threads;
    uint64_t scales_bytes;      /* stream.h; 0: the default */
    bool force;                 /* start over when the directory holds another conversion */
    const volatile sig_atomic_t *stop;
} quantize_options;

typedef struct quantize_job quantize_job;

/* Opens the source and makes the plan; writes nothing. */
quantize_job *quantize_open(const char *source, const quantize_options *o, error *err);
const plan *quantize_plan(const quantize_job *j);
const model *quantize_source(const quantize_job *j);

/* Writes the result to a directory: begins, or goes on after a run that was interrupted. *already: it was complete before. */
bool quantize_run(quantize_job *j, const char *destination, bool *already, error *err);

/* After quantize_run. The text only when it was not complete before. */
void quantize_report(const quantize_job *j, text *out);
json_t *quantize_report_json(const quantize_job *j); /* also when it was complete before; json_decref frees */

void quantize_close(quantize_job *j);

#endif
