/* Inside the engine: what engine.c (queues and thread) and engine_step.c (one step) share. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/prefix_tree.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

/* A growing list of sequences. */
typedef struct sequence_list {
    sequence **items;
    int count, capacity;
} sequence_list;

/* What the two sides exchange; everything here is guarded by the lock. */
typedef struct engine_mailbox {
    pthread_mutex_t lock;
    pthread_cond_t work;        /* something for the computing thread to do */
    pthread_cond_t flushed;
    sequence_list inbox;        /* submitted, not seen by the computing thread yet */
    uint64_t *cancels;          /* [cancel_count] ids to cancel */
    int cancel_count, cancel_capacity;
    engine_event *events;       /* [event_count] from event_head on */
    int event_head, event_count, event_capacity;
    uint64_t next_id;
    int waiting;                /* requests accepted and not running: inbox and queue */
    uint64_t submitted, refused;
    uint64_t flush_wanted, flush_done; /* numbers of flushes */
    bool cancel_all, closed, stop;
    engine_counters counters;   /* as of the latest step */
} engine_mailbox;

/* A sequence's part in a step. */
typedef struct engine_member {
    sequence *s;
    int rows, first;      /* rows it has, and the first of them */
    bool decodes;         /* before the step; else the rows are a chunk of its prompt */
    int drafts;           /* of the rows, guesses: the last ones */
    int right;            /* guesses that were right */
    int logits;           /* index of the first of its 1 + drafts logits; -1: none wanted */
    int computed;         /* positions whose keys are valid after the step, beyond those before */
    int event;            /* index of its event; -1: none */
    int draft_row;        /* its last row in the step that fills the draft layer; -1: none */
    int draft_room;       /* drafts it can make */
    engine_finish finish;
    char *failure;
} engine_member;

/* Scratch of one step. */
typedef struct engine_batch {
    int32_t *tokens, *positions, *sequences; /* [step_rows] */
    int32_t *logit_rows, *trunk_rows;        /* [step_rows]; trunk_rows: of a draft step, the trunk's rows it follows */
    const int32_t **page_tables;             /* [sequence_capacity] of the members */
    engine_member *members;                  /* [sequence_capacity] */
    int *chain;                              /* [sequence_capacity] members that draft, those with the most room first */
    int member_count, rows, prompt_rows, logits;
    engine_event *events;                    /* [event_count] to hand over at the end of the step */
    int event_count, event_capacity;
    spec_step record;
} engine_batch;

struct engine {
    engine_options options;
    forward *forward;
    kv_pages *pages;
    prefix_tree *tree;
    uint64_t tree_version;      /* changes whenever the tree does */
    sampler *sampler;
    spec *spec;
    int depth_most;             /* drafts per step, 0 without speculation */
    sequence_list running, waiting; /* waiting: in the order of the queue */
    sched_sequence *sched;      /* [sequence_capacity] */
    sequence **sched_of;        /* [sequence_capacity] the sequences they describe */
    sched_plan plan;
    int sequence_capacity;      /* running + candidates of the queue looked at in a step */
    engine_batch batch;
    engine_counters now;        /* counters of the computing thread */
    double prompt_row_us;       /* measured time of a prompt row, and of a step that only decodes; 0: not yet */
    double decode_step_us;
    uint64_t disturb_count;     /* numbers drawn for options.disturb_seed */
    engine_mailbox mail;
    pthread_t thread;
    bool has_thread;
};

enum { ENGINE_CANDIDATES = 32 }; /* of the queue, looked at in one step */

uint64_t engine_now(const engine *e);

/* Positions beyond the newest token for which pages are held: drafts of this step and of the next. */
int engine_draft_room(const engine *e);

void sequence_list_add(sequence_list *l, sequence *s);
void sequence_list_remove(sequence_list *l, sequence *s);
void engine_enqueue(engine *e, sequence *s); /* into the queue, at its place */

/* Ends a sequence that is in running or waiting: pages back, last event queued, freed. */
void engine_end(engine *e, sequence *s, engine_finish finish, const char *failure);

engine_event *engine_event_add(engine *e, sequence *s); /* for this step */

/* Gives a running sequence's pages back; what is computed stays in the prefix tree as long as there is room. */
void engine_release_pages(engine *e, sequence *s);

/* One step over what is running and waiting. False: there was nothing to do. */
bool engine_advance(engine *e);

#endif
