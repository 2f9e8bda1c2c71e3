/* One request inside the engine: its tokens, pages, drafts and sampling state. Used by the thread that computes; made by the one
 * that submits. */
#ifndef ENGINE_SEQUENCE_H
#define ENGINE_SEQUENCE_H

#include "engine/engine.h"
#include "engine/prefix_tree.h"

typedef struct sequence {
    uint64_t id;           /* counts submissions, from 1 */
    void *user;
    int32_t *tokens;       /* [token_capacity]: the prompt and what was sampled; [0 .. known) */
    int token_capacity;
    int prompt_count;
    int known;             /* tokens known */
    int cached;            /* of them, those whose keys are in the pages */
    int limit;             /* prompt_count + max_tokens */
    int min_known;         /* prompt_count + min_tokens: no end before */
    int draft_keys;        /* leading positions that have the draft layer's keys */
    int32_t drafts[SPEC_DEPTH_MOST]; /* guesses for positions known, known + 1, ... */
    int draft_count;
    int32_t *page_table;   /* [page_capacity] */
    int page_capacity, pages; /* pages held */
    int tree_pages;        /* leading pages that are in the prefix tree */
    char *space;           /* namespace of the prefix tree */
    sampler_params params;
    sampler_params early;  /* the same with end tokens banned, while known < min_known */
    sampler_bias *bias;    /* [params.bias_count + bans], what params and early point to */
    sampler_state *history; /* NULL when no penalty is on */
    int32_t *stop_ids;     /* [stop_count] all that end it: the model's own unless ignored, and the request's */
    int stop_count;
    int priority;
    uint64_t deadline_us;  /* 0: none */
    bool running;
    bool cancelled;
    engine_request_stats stats;
    prefix_match match;    /* waiting: what the tree has of it */
    uint64_t match_version; /* of the tree when that was looked up; 0: never */
} sequence;

/* Checks and copies the request; NULL with a sentence when it is invalid. */
sequence *sequence_create(const engine_request *r, const model_config *c, int max_context, error *err);
void sequence_free(sequence *s); /* its pages must have been given back */

void sequence_append(sequence *s, int32_t token); /* room is made when needed */
void sequence_reserve_pages(sequence *s, int pages); /* room in page_table */
bool sequence_ends_with(const sequence *s, int32_t token);
const sampler_params *sequence_params(const sequence *s, int position); /* for the token at this position */

static inline bool sequence_decodes(const sequence *s) /* one known token is not computed yet: a step gives the next one */
{
    return s->running && s->known - s->cached == 1;
}

static inline view sequence_space(const sequence *s)
{
    return view_of(s->space);
}

/* Whether two sequences are of the same space and have their first `count` tokens in common, which both have. Those from `first` on are
 * compared before the others: where a difference is likely is for the caller to know. */
bool sequence_begins_alike(const sequence *a, const sequence *b, int first, int count);

#endif
