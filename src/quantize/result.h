/* Writing a whole checkpoint directory from a plan, so that it can be killed at any point and run again. Everything that is written
 * follows from what the job describes, so doing a step again gives the same bytes. */
#ifndef QUANTIZE_RESULT_H
#define QUANTIZE_RESULT_H

#include "quantize/stream.h"

/* Strings and pointers are borrowed, but for results and report. */
typedef struct result_job {
    const char *doing;              /* for the progress: "quantizing" */
    plan *plan;
    json_t *config;                 /* config.json without the result's quantization_config */
    const char *directory;          /* small files come from here, and it must not be the destination; NULL: none */
    const char *const *small_files; /* their names, NULL at the end; NULL: all that hold no weights */
    stream_options stream;
    int threads;
    bool force;                     /* start over when the directory holds another conversion */
    uint64_t conversion;            /* hash of everything that the result depends on */
    shard_result *results;          /* [plan->shard_count], after result_write; result_free */
    json_t *report;                 /* for the manifest; NULL before result_write: the report of a conversion */
} result_job;

/* Begins, or goes on after a run that was interrupted. *already: it was complete before (report is then the one written with it). */
bool result_write(result_job *j, const char *destination, bool *already, error *err);
void result_free(result_job *j);

#endif
