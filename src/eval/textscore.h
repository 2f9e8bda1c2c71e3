/* Scores over a text: perplexity of one model, divergence of two. The text is cut into windows of equal length that are scored each on
 * its own; within a window the token at position i + 1 is predicted from positions 0 .. i, so its first token is not scored. */
#ifndef EVAL_TEXTSCORE_H
#define EVAL_TEXTSCORE_H

#include "eval/local.h"

typedef struct text_window {
    const int32_t *tokens; /* borrowed from the list */
    int count;             /* at least 2 */
} text_window;

/* Windows of `length` tokens over all of them; the last may be shorter. The caller frees the array. */
text_window *text_windows(const token_list *tokens, int length, size_t *count);

/* Sum of -ln P(token) over the window's positions 1 .. count - 1. Logits at and beyond vocab_used are padding. */
bool text_window_nll(eval_model *m, text_window w, double *nll, error *err);

/* For each position i of 0 .. count - 2: kl[i] = KL(P_reference || P_model) of the token at i + 1, in nats, and whether the most
 * likely tokens agree. Steps of both models run in turn, so that memory does not grow with the window. */
bool text_window_divergence(eval_model *m, eval_model *reference, text_window w, double *kl, int64_t *agree, error *err);

/* KL(P || Q) of two rows of logits over their first `count` entries; *agree: the largest entries are at the same place. */
double row_divergence(const float *p, const float *q, int count, bool *agree);

/* -ln P(token). */
double row_nll(const float *logits, int count, int32_t token);

#endif
