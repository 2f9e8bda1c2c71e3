/* The engine: many requests at once over one model. Requests are submitted from any thread, computed together by the engine's
 * own thread (or by whoever calls engine_step), and their tokens come back as events.
 *
 *     engine_submit -> queue -> scheduler (scheduler.h) -> one ragged step (forward.h) -> sampler -> events -> engine_poll
 *
 * A request's tokens depend on its prompt, parameters and seed alone: not on other requests, chunking, cache hits, preemption or
 * speculation (DESIGN, decisions 4 and 5). Every accepted request ends with exactly one event that has a `finish`. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/kv_pages.h"
#include "engine/sampler.h"
#include "engine/speculate.h"
#include "forward/forward.h"

typedef struct engine engine;

typedef struct engine_options {
    int max_running;       /* sequences computed at the same time */
    int max_waiting;       /* requests in the queue; one more is refused */
    int max_context;       /* tokens of one sequence, prompt and answer */
    int64_t kv_tokens;     /* room in the page pool */
    int prefill_rows;      /* prompt rows in a step that decodes; 0: as many as itl_target_us allows, measured */
    uint64_t itl_target_us; /* aim for the time between two tokens of a stream while prompts are computed; 0: 100,000 */
    spec_options spec;
    bool no_prefix_cache;
    uint64_t disturb_seed; /* tests: not 0: random chunk sizes, random preemption, random draft depth (with SPEC_FIXED) */
    uint64_t (*clock)(void *context); /* microseconds; NULL: clock_now_us */
    void *clock_context;
    void (*notify)(void *context); /* called by the thread that computes when events are waiting; must be quick. NULL: none */
    void *notify_context;
} engine_options;

typedef struct engine_request {
    const int32_t *prompt;  /* [prompt_count], copied */
    int prompt_count;
    int max_tokens;         /* of the answer; prompt_count + max_tokens <= max_context */
    int min_tokens;         /* until then neither eos nor stop ids are chosen */
    sampler_params params;  /* bias is copied */
    const int32_t *stop_ids; /* [stop_count] tokens that end the answer beside the model's own; copied */
    int stop_count;
    bool ignore_eos;        /* the model's own end tokens do not end it; stop_ids still do */
    const char *space;      /* prefix cache namespace (tenant, cache_salt); NULL: "" */
    int priority;           /* larger goes first */
    uint64_t deadline_us;   /* on the engine's clock; 0: none */
    void *user;             /* handed back in every event */
} engine_request;

typedef enum engine_finish {
    ENGINE_RUNNING,   /* not finished */
    ENGINE_STOP,      /* the last token is an end token or a stop id */
    ENGINE_LENGTH,    /* max_tokens */
    ENGINE_CANCELLED, /* engine_cancel, or the engine is being destroyed */
    ENGINE_DEADLINE,
    ENGINE_FAILED,    /* error text in the event */
} engine_finish;

/* Of one request, complete with its last event. Times on the engine's clock. */
typedef struct engine_request_stats {
    uint64_t arrival_us, admitted_us, first_token_us, finished_us; /* 0: did not happen */
    int prompt_tokens;
    int cached_tokens;    /* of the prompt, found in the prefix cache when first admitted */
    int output_tokens;
    int drafted, accepted; /* drafts verified; of them right */
    int verify_steps;      /* steps with at least one draft */
    int preemptions;
    int computed_tokens;   /* rows computed for it, drafts and recomputation included */
} engine_request_stats;

enum { ENGINE_EVENT_TOKENS = SPEC_DEPTH_MOST + 1 };

typedef struct engine_event {
    uint64_t id;
    void *user;
    int count;                                   /* tokens of this step; 0 possible in a last event */
    int32_t tokens[ENGINE_EVENT_TOKENS];         /* the token that ended the answer included */
    sampler_result *results;                     /* [count] with logprobs, when params.logprobs >= 0; else NULL. The receiver frees */
    uint64_t time_us;                            /* when the step ended */
    engine_finish finish;
    engine_request_stats stats;                  /* up to this event */
    char *failure;                               /* ENGINE_FAILED: a sentence; the receiver frees. Else NULL */
} engine_event;

/* Uses f, which must outlive it and is not used by others meanwhile. NULL on failure. */
engine *engine_create(forward *f, const engine_options *options, error *err);
void engine_destroy(engine *e); /* stops the thread; undelivered events are dropped */

bool engine_start(engine *e, error *err); /* a thread that computes whenever there is something to compute */

/* Without a thread: one step. False when there is nothing to do. */
bool engine_step(engine *e);

typedef enum engine_refusal {
    ENGINE_ACCEPTED,
    ENGINE_INVALID,    /* a parameter is out of range, or the request can never fit: error text */
    ENGINE_QUEUE_FULL,
    ENGINE_CLOSED,     /* engine_close was called */
} engine_refusal;

/* From any thread. err has a sentence unless ENGINE_ACCEPTED. */
engine_refusal engine_submit(engine *e, const engine_request *r, uint64_t *id, error *err);

/* From any thread; ends the request within a step, with an event ENGINE_CANCELLED. An unknown or finished id is ignored. */
void engine_cancel(engine *e, uint64_t id);
void engine_cancel_all(engine *e);

/* From now on refuses new requests; those it has go on. */
void engine_close(engine *e);

/* Takes up to `most` events, oldest first; returns how many. From any thread. */
int engine_poll(engine *e, engine_event *events, int most);
void engine_event_free(engine_event *ev);

/* Empties the prefix cache between two steps; pages in use stay. Waits for that: a step over a long prompt may take seconds. From any
 * thread. */
void engine_flush_cache(engine *e);

/* The same without waiting: returns a number to ask with. `notify` is called when it is done. */
uint64_t engine_flush_begin(engine *e);
bool engine_flush_is_done(engine *e, uint64_t number);

/* A snapshot; counters only grow. From any thread. */
typedef struct engine_counters {
    int running, waiting;              /* requests */
    int decoding, prefilling;          /* of the running */
    int pages, free_pages, idle_pages; /* of the pool; used by sequences: pages - free - idle */
    int64_t tree_pages;
    uint64_t submitted, refused, finished[ENGINE_FAILED + 1]; /* requests; by engine_finish */
    uint64_t prompt_tokens, cached_tokens; /* of admitted requests; found in the cache */
    uint64_t computed_tokens;          /* rows */
    uint64_t output_tokens;
    uint64_t preemptions, evicted_pages, steps;
    uint64_t step_us;                  /* time spent in steps */
    int last_rows;                     /* of the latest step */
    int prefill_rows;                  /* budget now */
    spec_stats spec;
    char spec_words[96];               /* spec_describe */
    bool spec_simulated;
    dispatch_counts dispatch;          /* of the device; settled when it was created */
} engine_counters;

void engine_count(engine *e, engine_counters *out);

/* What was settled at creation. */
typedef struct engine_facts {
    int max_running, max_waiting, max_context, step_rows;
    int64_t kv_tokens;
    size_t page_bytes;
    spec_options spec;
} engine_facts;

engine_facts engine_describe(const engine *e);

#endif
