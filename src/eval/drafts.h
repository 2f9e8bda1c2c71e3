/* How well the draft head guesses: greedy speculative decoding replayed over an answer the model gave. */
#ifndef EVAL_DRAFTS_H
#define EVAL_DRAFTS_H

#include "engine/session.h"

enum { DRAFTS_MOST = 16 };

/* Counts over all replayed answers; zero-initialise. */
typedef struct draft_counts {
    int64_t steps;                /* steps of the trunk with a full chain of drafts or a wrong one */
    int64_t tokens;               /* tokens those steps gave: one, and each draft that was right */
    int64_t tried[DRAFTS_MOST];   /* drafts looked at, by place in the chain */
    int64_t right[DRAFTS_MOST];
} draft_counts;

/* tokens: a prompt of prompt_count tokens and the model's own greedy answer. Each step of the replay computes the tokens just accepted,
 * lets the draft head guess `drafts` more, and accepts those that the answer has. A step cut by the end of the answer is not counted
 * unless a draft was wrong before it. */
bool drafts_replay(session *s, const int32_t *tokens, int count, int prompt_count, int drafts, draft_counts *out, error *err);

#endif
