/* How many tokens to guess ahead. Speculation never changes the output (DESIGN, decision 5): this file only decides how many
 * drafts are worth their cost, and keeps count.
 *
 * Fixed depth: always that many. Auto: from the measured acceptance of each draft position and the measured time of steps (as
 * a function of their rows) and of draft steps, the depth with the most tokens per second is chosen, per number of decoding
 * sequences; depth 0 when guessing loses, as it does where a step's time grows with its rows, and then the draft layer is not even
 * filled. From time to time another depth is tried for a few steps, so that the measurements stay true. Everything is a
 * function of what was recorded, so a virtual clock works.
 *
 * Simulated acceptance is for benchmarks of speed alone: drafts are accepted by lot, right or wrong, so that the mean number
 * of tokens per step is as asked for. The output is then not the model's. */
#ifndef ENGINE_SPECULATE_H
#define ENGINE_SPECULATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { SPEC_DEPTH_MOST = 8 };

typedef enum spec_mode { SPEC_OFF, SPEC_FIXED, SPEC_AUTO } spec_mode;

typedef struct spec_options {
    spec_mode mode;
    int depth;       /* SPEC_FIXED: 1 .. SPEC_DEPTH_MOST; SPEC_AUTO: the most it may choose */
    double simulate; /* mean tokens per step, 1 .. depth + 1 (needs SPEC_FIXED); 0: real acceptance */
} spec_options;

/* "off", "auto" (up to 5), "auto:N", or a number. */
bool spec_options_parse(const char *words, spec_options *out, error *err);

typedef struct spec spec;

spec *spec_create(const spec_options *options);
void spec_destroy(spec *s);

/* Drafts to make for each decoding sequence after a step with this many of them: 0 .. options.depth. */
int spec_depth(const spec *s, int decoding);

/* Whether new rows must fill the draft layer's part of the pages. Rows of sequences that decode, in a step with this many of them:
 * true unless off, or auto that has given up guessing with so many for now. Rows of prompts: true as long as guessing may gain with any
 * number of sequences that has occurred, so that cached prompts are complete. A sequence with a gap cannot be drafted for. */
bool spec_fills(const spec *s, int decoding);
bool spec_fills_prompts(const spec *s);

/* One step, as it went. */
typedef struct spec_step {
    int decoding;         /* sequences */
    int rows;             /* of the trunk, drafts and prompts included */
    int prompt_rows;      /* of them, prompts; when they are more than the others, the step is not used to measure time */
    uint64_t trunk_us;    /* trunk, logits and sampling */
    uint64_t draft_us;    /* filling the draft layer and drafting, for the next step */
    int drafted_depth;    /* draft steps in draft_us */
    int drafted;          /* sequences they were for */
    int tried[SPEC_DEPTH_MOST], right[SPEC_DEPTH_MOST]; /* by draft position; tried at i: i drafts before it were right */
    int tokens;           /* output tokens the decoding sequences gained */
} spec_step;

void spec_record(spec *s, const spec_step *step);

/* With simulated acceptance: how many of `drafts` to accept; (seed, position) decide. Over many steps 1 + the mean is
 * options.simulate, when drafts is always the full depth. */
int spec_simulated(const spec *s, uint64_t seed, uint64_t position, int drafts);
bool spec_is_simulated(const spec *s);

typedef struct spec_stats {
    uint64_t tried[SPEC_DEPTH_MOST], right[SPEC_DEPTH_MOST];
    uint64_t verify_steps;    /* (sequence, step) pairs with at least one draft */
    uint64_t verify_tokens;   /* output tokens they gave */
    int depth;                /* chosen now, for the number of sequences of the latest step */
} spec_stats;

spec_stats spec_count(const spec *s);

/* Why auto is where it is, one line for logs and /server_info: "off: 1.42 tokens per step at 1.9x the time". */
void spec_describe(const spec *s, char *out, int bytes);

#endif
