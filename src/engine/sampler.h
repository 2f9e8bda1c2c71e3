/* The sampler: one row of logits -> one token, and log-probabilities when asked. docs/sampling.md has the rules.
 *
 *     mask padded rows -> logit bias -> repetition, frequency, presence penalty -> temperature -> top_k -> top_p -> min_p -> draw
 *
 * A draw adds to each kept, tempered logit its own Gumbel noise, a function of (seed, position, token id) alone, and takes
 * the largest sum. That is an exact draw from the kept distribution, and the same token whatever is in the batch, in which
 * order positions are computed, and whether the position was reached by speculation (DESIGN, decisions 4 and 5). */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/sampler_state.h"

enum { SAMPLER_LOGPROBS_MOST = 20 };

/* What is added to the logit of one token. */
typedef struct sampler_bias {
    int32_t id;
    float bias; /* -100 .. 100; the engine itself also uses -INFINITY: never chosen */
} sampler_bias;

/* Parameters of one request. Start from sampler_params_default. */
typedef struct sampler_params {
    double temperature;        /* 0 .. 100; 0: greedy, the largest logit, of equal ones the lowest id */
    int top_k;                 /* keep the k largest; 0 or -1: off */
    double top_p;              /* (0, 1]; keep the fewest largest whose probabilities reach top_p; 1: off */
    double min_p;              /* 0 .. 1; keep those with at least min_p times the largest probability; 0: off */
    double repetition_penalty; /* (0, 10]; tokens of prompt and output: positive logits divided, others multiplied; 1: off */
    double presence_penalty;   /* -2 .. 2; subtracted once for a token of the output; 0: off */
    double frequency_penalty;  /* -2 .. 2; subtracted once per appearance in the output; 0: off */
    const sampler_bias *bias;  /* [bias_count], borrowed; biases of an id given twice add up */
    int bias_count;
    uint64_t seed;
    int vocab_used; /* rows that are tokens (tokenizer_size); rows at and beyond it are padding and never chosen */
    int logprobs;   /* -1: none; 0: of the chosen token; 1 .. 20: of as many most likely tokens too */
} sampler_params;

/* temperature 1, seed 0, everything else off. */
sampler_params sampler_params_default(int vocab_used);

/* Whether every field is in its range for a model of `vocab` rows; the sentence names the field. */
bool sampler_params_check(const sampler_params *p, int vocab, error *err);

/* Whether a penalty is on, so that sampling needs a sampler_state. */
bool sampler_params_use_history(const sampler_params *p);

typedef struct sampler_logprob {
    int32_t id;
    double logprob; /* natural logarithm */
} sampler_logprob;

typedef struct sampler_result {
    int32_t token;
    double logprob;                                /* of token; set when params.logprobs >= 0 */
    int top_count;                                 /* entries of top; fewer than asked when fewer have a probability */
    sampler_logprob top[SAMPLER_LOGPROBS_MOST];    /* most likely first, of equal ones the lower id first */
} sampler_result;

/* Scratch memory for one row at a time; one per thread. */
typedef struct sampler sampler;

sampler *sampler_create(int vocab, error *err); /* vocab: entries in a row of logits, padding included */
void sampler_free(sampler *s);                  /* NULL is allowed */

/* Chooses the token for `position`, the place in the sequence that the token will take. Params must have passed
 * sampler_params_check with the sampler's vocab. History may be NULL when sampler_params_use_history says no.
 * Fails, naming the position, when a logit is NaN or +inf or when no token is left. Allocates nothing. */
bool sampler_sample(sampler *s, const sampler_params *p, const sampler_state *history, const float *logits, uint64_t position,
                    sampler_result *out, error *err);

/* The distribution that sampler_sample draws from: token ids in ascending order and their probabilities, which add up to 1.
 * Both point into the sampler and hold until its next call. */
typedef struct sampler_distribution {
    const int32_t *ids;          /* [count] */
    const double *probabilities; /* [count] */
    int count;
} sampler_distribution;

bool sampler_distribution_get(sampler *s, const sampler_params *p, const sampler_state *history, const float *logits,
                              uint64_t position, sampler_distribution *out, error *err);

#endif
