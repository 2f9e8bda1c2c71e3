/* Generating one sequence: prompt in, one sampled token at a time out. What `run` and `chat` drive. */
#ifndef ENGINE_GENERATE_H
#define ENGINE_GENERATE_H

#include "engine/sampler.h"
#include "engine/session.h"

/* Zero-initialise, then generator_begin for each prompt; generator_free at the end. */
typedef struct generator {
    session *session;      /* borrowed */
    sampler *sampler;
    sampler_params params; /* of the running answer */
    sampler_state *history; /* NULL when no penalty is on */
    int32_t previous;      /* the token sampled last, not fed yet; -1: none */
    int prompt_count;      /* tokens of the prompt */
    int reused;            /* of them, found in the cache */
    int produced;          /* tokens sampled so far */
} generator;

/* Computes the prompt (count >= 1), as far as the cache does not hold it. params are checked and copied; at most limit tokens
 * will be asked for. */
bool generator_begin(generator *g, session *s, const sampler_params *params, const int32_t *prompt, int count, int limit, error *err);

/* Samples the next token. The caller decides what ends the answer. */
bool generator_next(generator *g, sampler_result *out, error *err);

void generator_free(generator *g);

/* What generation_config.json of a model directory says about sampling (do_sample false: greedy; temperature, top_p, top_k, min_p,
 * repetition_penalty); other fields of p stay as they are. No file: nothing changes. */
bool generation_defaults(const char *directory, sampler_params *p, error *err);

#endif
