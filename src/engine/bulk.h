/* Many independent requests in one go: what `eval` drives. Sequences that are running share every step (one row each while they
 * decode, a chunk of rows while their prompt is computed), so weights are read once for all of them. By decision 4 a request's
 * tokens are the same as if it ran alone. The server's scheduler is another, richer thing; this one only keeps a step full. */
#ifndef ENGINE_BULK_H
#define ENGINE_BULK_H

#include <signal.h>

#include "engine/kv_pages.h"
#include "engine/sampler.h"
#include "forward/forward.h"
#include "model/tokenizer.h"

typedef enum bulk_finish { BULK_STOP, BULK_LENGTH } bulk_finish;

typedef struct bulk_request {
    const int32_t *prompt;  /* [prompt_count] borrowed */
    int prompt_count;
    int max_tokens;         /* of the answer, at least 1; prompt and answer must fit the context */
    sampler_params params;
    token_list answer;      /* out: with the token that stopped it, if any; free with token_list_free */
    bulk_finish finish;     /* out */
    /* out, when params.logprobs >= 0: of each answer token; the caller frees */
    double *logprobs;
} bulk_request;

typedef struct bulk bulk;

typedef struct bulk_options {
    int max_sequences;      /* that run at the same time */
    int max_context;        /* tokens of one sequence, prompt and answer */
    const int32_t *eos;     /* [eos_count] tokens that end an answer */
    int eos_count;
    const volatile sig_atomic_t *stop; /* non-zero: end with ERROR_INTERRUPTED; NULL: never */
} bulk_options;

bulk *bulk_create(forward *f, const bulk_options *options, error *err);
void bulk_destroy(bulk *b);

/* Answers all requests; `done` (NULL: none) is called once for each as it finishes, in the order of finishing. */
typedef void (*bulk_done)(void *context, bulk_request *requests, int index);
bool bulk_run(bulk *b, bulk_request *requests, int count, bulk_done done, void *context, error *err);

/* Logits of every position of a token sequence, in chunks: `rows` is called with positions first .. first + count - 1,
 * logits [count][vocab]. For perplexity and divergence. */
typedef void (*bulk_rows)(void *context, int first, int count, const float *logits);
bool bulk_score(bulk *b, const int32_t *tokens, int count, bulk_rows rows, void *context, error *err);

#endif
