/* Which tokens a sequence has seen, and how often: what the penalties of the sampler need.
 *
 * A sequence without penalties needs none (sampler_params_use_history), so it costs nothing then. All memory is taken
 * at creation; adding and rewinding allocate nothing. Speculation adds tokens that may turn out wrong and rewinds. */
#ifndef ENGINE_SAMPLER_STATE_H
#define ENGINE_SAMPLER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* One distinct token of the sequence. */
typedef struct sampler_seen {
    int32_t id;
    uint32_t prompt; /* times in the prompt */
    uint32_t output; /* times in the output so far */
} sampler_seen;

typedef struct sampler_state sampler_state;

/* A state holding the prompt, with room for output_limit tokens of output. NULL on failure. */
sampler_state *sampler_state_create(const int32_t *prompt, size_t prompt_count, size_t output_limit, error *err);
void sampler_state_free(sampler_state *s); /* NULL is allowed */

bool sampler_state_add(sampler_state *s, int32_t id, error *err); /* appends one output token */
bool sampler_state_rewind(sampler_state *s, size_t outputs, error *err); /* keeps the first `outputs` output tokens */
size_t sampler_state_outputs(const sampler_state *s); /* output tokens now in the state */

/* The distinct tokens in the order of their first appearance. */
const sampler_seen *sampler_state_seen(const sampler_state *s, size_t *count);

#endif
