/* The scheduler: what the next step computes. A pure function of the state it is given: no clock, no memory of its own, no
 * pages touched; so it can be tested by simulation, and a simulated device runs the very same decisions.
 *
 *     1. requests past their deadline end
 *     2. every decoding sequence gets its row; when pages run out, running sequences are preempted: lowest priority first, of
 *        equal ones the latest arrival; their pages are dropped, their tokens kept, and they wait again at their old place in
 *        the queue. The last of them waits for pages without giving up its own
 *     3. waiting requests are admitted in strict order (priority, then arrival) while slots and pages last, with a page left
 *        for each running sequence to grow into; only held ones are passed over. A higher priority may preempt a lower one
 *     4. drafts get rows as far as rows, logits and pages go, the first draft of every sequence before the second of any
 *     5. prompts share what rows are left, at most prefill_rows of them while anything is decoding, at least half of what the
 *        decoding rows leave: the first in order gets at least half, the rest goes by priority to those with the least left
 *
 * Never a deadlock: the first sequence in order is never preempted, and the engine refuses requests that could not run alone
 * (sched_pages_for(prompt + answer) pages). Never more sequences run than a step has rows and logits for; should the limits
 * shrink below what runs already, those of one priority take turns. docs/scheduling.md has the reasons. */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

/* What the scheduler knows of one request. */
typedef struct sched_sequence {
    int priority;         /* larger goes first */
    uint64_t arrival_us;
    uint64_t deadline_us; /* 0: none */
    uint64_t order;       /* counts submissions; decides between equal arrivals */
    bool running;
    bool hold;            /* waiting: a running sequence is computing its prefix right now; do not admit yet */
    int known;            /* tokens known: the prompt and what was sampled */
    int cached;           /* of them, computed; for a waiting one: found in the prefix tree. known - cached > 1: prompt to compute */
    int pages;            /* running: pages it holds; waiting: whole pages it would share */
    int idle_pages;       /* waiting: of those, how many are idle now and would not be any more */
    int own_pages;        /* running: of its pages, those that come back when it ends: none but it and the tree use them. A number
                             that is too small is safe, but then a preemption helps one step later */
    int drafts;           /* decoding: guesses at hand to verify */
} sched_sequence;

typedef struct sched_state {
    const sched_sequence *sequences; /* [count], in any order */
    int count;
    uint64_t now_us;
    int free_pages;   /* in the pool */
    int idle_pages;   /* can be evicted */
    int step_rows;    /* most rows of a step */
    int logit_rows;   /* most rows whose logits are wanted: one per decoding sequence and draft, one per prompt that ends */
    int prefill_rows; /* most rows for prompts in a step that decodes; at least 1 */
    int max_running;  /* sequences */
    int draft_room;   /* decoding: pages are reserved for this many positions beyond the newest token, for drafts to come */
} sched_state;

/* Rows of one sequence in the next step: a decoding one gets 1 + drafts, a prompt a chunk. With `pages` it has room for all
 * known tokens and the drafts of this step; for draft_room only when there were pages enough: drafts to come go no further than
 * the pages a sequence holds. */
typedef struct sched_grant {
    int sequence; /* index into sequences */
    int rows;
    int drafts;   /* of the rows, guesses */
    int pages;    /* that the sequence must take before the step */
} sched_grant;

typedef struct sched_plan {
    sched_grant *grants; /* [count] in order of decoding first */
    int grant_count;
    int *expired, *preempted, *admitted; /* [count] indices; every admitted one has a grant, perhaps of 0 rows */
    int expired_count, preempted_count, admitted_count;
    int *order, *running, *prompts; /* [count] scratch */
    struct sched_work *work;        /* [count] scratch */
    int capacity;        /* sequences there is room for */
} sched_plan;

/* Makes room for `count` sequences. Zero-initialise a plan first. */
void sched_plan_reserve(sched_plan *p, int count);
void sched_plan_free(sched_plan *p);

/* Fills the plan, which must have room for state->count. To be carried out in the order expired, preempted, admitted, grants.
 * An admitted sequence takes the pages for all its known tokens and draft_room at once: they are in its grant's `pages`. The
 * page that a beginning is copied from is not counted: it may be the very page that has to be evicted, and then the beginning
 * is computed instead. A plan may have expired or preempted ones and no rows: decide again then. */
void sched_decide(const sched_state *state, sched_plan *plan);

/* Pages that hold `tokens` tokens. */
int sched_pages_for(int tokens);

#endif
