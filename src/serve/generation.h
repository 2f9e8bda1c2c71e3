/* A generation: what every API that produces text shares. An API file turns its JSON into a generation_spec and receives pieces
 * of the answer through a generation_sink; this file talks to the engine, parses the model's output (reasoning, content,
 * calls), looks for stop strings, counts, and makes sure that everything ends.
 *
 * n choices are n engine requests with seeds seed, seed + 1, ...; the prefix cache computes their prompt once. All in the loop thread. */
#ifndef SERVE_GENERATION_H
#define SERVE_GENERATION_H

#include "engine/engine.h"
#include "model/chat_output.h"
#include "serve/server.h"

enum { GENERATION_CHOICES_MOST = 16, GENERATION_STOPS_MOST = 16, GENERATION_STOP_BYTES_MOST = 1024,
       GENERATION_STOP_IDS_MOST = 256 };

/* What to generate. Zero-initialise, then fill; generation_spec_free releases what it owns. */
typedef struct generation_spec {
    token_list prompt;       /* owned */
    bool chat;               /* parse reasoning and calls; otherwise all is content */
    bool in_thinking;        /* chat: the prompt ends inside <think> */
    bool in_content;         /* chat: the prompt ends inside content, which the output goes on with */
    bool plain_reasoning;    /* chat: do not separate reasoning, give it as content (separate_reasoning false) */
    token_list forced;       /* owned; tokens already put at the end of the prompt that count as the beginning of the output for the
                                parser (a forced tool call) */
    json_t *tools;           /* owned reference; NULL: none */
    bool one_call;           /* parallel_tool_calls false: the answer ends after its first call */
    int choices;             /* n */
    sampler_params params;   /* bias is owned by the spec */
    sampler_bias *bias;      /* owned */
    int max_tokens;          /* 0: what the context and the server's limit allow */
    int min_tokens;
    bool ignore_eos;
    token_list stop_ids;     /* owned */
    char *stops[GENERATION_STOPS_MOST]; /* owned; matched in the content (reasoning is not searched) */
    int stop_count;
    bool keep_stop;          /* include_stop_str_in_output, no_stop_trim: the stop string or token stays in the output */
    bool keep_special;       /* skip_special_tokens false: special tokens appear as text (not chat) */
    int priority;
    char *cache_salt;        /* owned; NULL: none */
    char *rid;               /* owned; id for /abort_request; NULL: the request id */
    double timeout_s;        /* 0: the server's, which is also the most */
} generation_spec;

void generation_spec_free(generation_spec *s);

/* One token of the answer, for logprobs and token ids. */
typedef struct generation_token {
    int32_t id;
    const sampler_result *result; /* NULL without logprobs */
} generation_token;

typedef struct generation generation;

typedef struct generation_usage {
    int prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    int drafted, accepted, verify_steps; /* of all choices */
} generation_usage;

typedef enum generation_end {
    GENERATION_STOP,      /* the model ended its turn, a stop string or stop id */
    GENERATION_LENGTH,
    GENERATION_CALLS,     /* as STOP, with at least one complete call */
    GENERATION_ABORTED,   /* /abort_request, shutdown */
    GENERATION_TIMEOUT,   /* deadline */
    GENERATION_FAILED,
} generation_end;

typedef struct generation_finish {
    generation_end end;
    const char *stop_text;  /* the stop string that matched; NULL: none */
    int32_t stop_id;        /* the stop id or end token that ended it; -1: none */
    unsigned problems;      /* of chat_output.h */
    const char *failure;    /* a sentence; GENERATION_FAILED, _TIMEOUT, _ABORTED */
} generation_finish;

/* What an API does with the answer. For each engine event, in this order: tokens, then any number of pieces, then step (once,
 * a good place to send a chunk). At the end of a choice finish, at the end of the last choice done; after done the generation is gone.
 * Any may be NULL. */
typedef struct generation_sink {
    void *context;
    void (*tokens)(void *context, int choice, const generation_token *tokens, int count);
    void (*piece)(void *context, int choice, const chat_event *piece); /* never CHAT_EVENT_FINISH; text that may be a stop string is
                                                                           held back until it is decided */
    void (*step)(void *context, int choice);
    void (*finish)(void *context, int choice, const generation_finish *f);
    void (*done)(void *context);
} generation_sink;

/* What can be known before a prompt is rendered and tokenized: draining, a full queue, the tenant's running generations. False: status
 * and sentence as below. generation_start checks again. */
bool generation_admits(server *s, const tenant *who, int *status, error *err);

/* Seconds for a Retry-After header after a refusal with this status (429, 503). */
int generation_retry_after(const server *s, const tenant *who, int status);

/* Submits. On success the generation lives until done or generation_cancel. What is wanted stays the caller's; what is needed is copied.
 * On refusal *status is the HTTP status (400, 429, 503) and err the sentence; NULL is returned. 400 with code ERROR_FIT: prompt and
 * answer do not fit into the context. */
generation *generation_start(server *s, const generation_spec *wanted, const tenant *who, const char *request_id,
                             const generation_sink *sink, int *status, error *err);

/* The client has gone: ends all choices; no sink function is called any more; the generation is gone. */
void generation_cancel(generation *g);

/* As of now. */
generation_usage generation_usage_now(const generation *g);
int generation_prompt_tokens(const generation *g);
const char *generation_id(const generation *g); /* the rid */

/* Called by the server when the engine has events. */
void generation_take(server *s, engine_event *ev); /* frees what the event owns */

/* /abort_request: ends the generations with this rid, with `all` those whose rid begins with it (NULL: every one); they finish as
 * GENERATION_ABORTED. Returns how many. */
int generation_abort(server *s, const char *rid, bool all);

/* The same among the generations of one tenant; of an admin, or NULL: among all. */
int generation_abort_of(server *s, const tenant *who, const char *rid, bool all);

/* After the engine is gone, so that no event can come any more: frees what is left, without calling a sink. */
void generation_free_all(server *s);

#endif
