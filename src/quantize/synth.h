/* A checkpoint of made-up weights from a config.json alone: real shapes, formats and files, for measuring speed without a download. */
#ifndef QUANTIZE_SYNTH_H
#define QUANTIZE_SYNTH_H

#include <signal.h>

#include "quantize/plan.h"

/* Which matrices get which format: the recipes of recipe.h under names of their own. */
typedef enum synth_format {
    SYNTH_MXFP4,          /* as amd/GLM-5.2-MXFP4 */
    SYNTH_MXFP4_ATTN8,    /* routed experts MXFP4, all other matrices of layers and lm_head FP8 with 128 x 128 blocks */
    SYNTH_MXFP4_ATTN_FP8, /* as AMD's attention-FP8 variant: a scale per row */
    SYNTH_MXFP4_ALL,      /* attention and dense MLPs MXFP4, too */
    SYNTH_FP8,            /* as zai-org/GLM-5.2-FP8 */
    SYNTH_NVFP4,          /* as nvidia/GLM-5.2-NVFP4 */
    SYNTH_BF16,
    SYNTH_FORMATS
} synth_format;

/* NULL at the end. */
extern const char *const synth_format_names[SYNTH_FORMATS + 1];

/* Strings are borrowed. */
typedef struct synth_options {
    const char *config;     /* path of a config.json */
    const char *text_model; /* directory of the model whose tokenizer is copied when its tokens fit the vocabulary */
    synth_format format;
    int layers;             /* 0: as many as the config says */
    uint64_t seed;
    uint64_t shard_bytes;   /* files are filled up to this */
    int threads;
    bool force;             /* replace an earlier result */
    const volatile sig_atomic_t *stop;
} synth_options;

typedef struct synth_job synth_job;

/* Reads the config and makes the plan; writes nothing. */
synth_job *synth_open(const synth_options *o, error *err);
const plan *synth_plan(const synth_job *j);
bool synth_has_tokenizer(const synth_job *j);

/* Writes the directory: begins, or goes on after a run that was interrupted. *already: it was complete before. */
bool synth_run(synth_job *j, const char *destination, bool *already, error *err);
void synth_close(synth_job *j);

#endif
