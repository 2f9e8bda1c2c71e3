/* libdrawbridge: GLM-5.2-class models inside your own program.
 *
 *     drawbridge *d = drawbridge_open("models/nano", NULL, &err);
 *     drawbridge_request r = drawbridge_request_defaults(d);
 *     r.messages = "[{\"role\": \"user\", \"content\": \"What is 2 + 3?\"}]";
 *     uint64_t id;
 *     drawbridge_submit(d, &r, &id, &err);
 *     for (drawbridge_event ev; drawbridge_poll(d, &ev, 1, -1) == 1; drawbridge_event_free(&ev)) {
 *         fwrite(ev.text, 1, ev.text_bytes, stdout);
 *         if (ev.finish) ...
 *     }
 *     drawbridge_close(d);
 *
 * docs/embedding.md has a whole program. Any number of requests may run at the same time; they are computed together, and each
 * gets the tokens it would get alone. submit, cancel and stats may be called from any thread; poll from one thread at a time.
 * Functions that can fail return false, NULL or a negative number and fill in the error, whose text is a sentence for a user. */
#ifndef DRAWBRIDGE_H
#define DRAWBRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DRAWBRIDGE_API __attribute__((visibility("default")))
#else
#define DRAWBRIDGE_API
#endif

typedef struct drawbridge drawbridge; /* a model and the engine that computes it */

typedef struct drawbridge_error {
    int code;        /* what the program would exit with: 1 run-time, 2 usage, 3 input, 4 does not fit, 5 device */
    char text[1024];
} drawbridge_error;

/* ---- opening ---- */

typedef enum drawbridge_kv { DRAWBRIDGE_KV_F32, DRAWBRIDGE_KV_BF16, DRAWBRIDGE_KV_FP8 } drawbridge_kv;

/* Start from drawbridge_options_defaults. */
typedef struct drawbridge_options {
    int threads;              /* 0: all cores */
    int context;              /* tokens of one sequence; 0: what the model allows */
    int64_t kv_tokens;        /* room in the cache; 0: 8 contexts */
    drawbridge_kv kv;         /* number format of the cache */
    int max_running;          /* sequences computed at the same time */
    int max_waiting;          /* requests in the queue */
    int step_rows;            /* most tokens computed in one step */
    const char *speculation;  /* "off", "1" .. "8", "auto"; the output is the same */
    bool prefix_cache;        /* keep computed prefixes for requests that begin alike */
    const char *chat_format;  /* NULL: recognised from the model's files */
    bool exact;               /* compute as HF transformers does in float32; needs DRAWBRIDGE_KV_F32 */
    const char *tuned;        /* directory of the tables that `drawbridge tune` wrote; NULL: none, kernels are chosen by rule */
    bool require_tuned;       /* refuse to open unless every shape of the model is in the table */
    const char *kernels;      /* for tests: kernels to be used wherever there are any, "generic"; tables are then not read. NULL: free */
    /* Called by the engine's thread when events are waiting, for programs with a loop of their own; must be quick. NULL: none */
    void (*notify)(void *context);
    void *notify_context;
} drawbridge_options;

DRAWBRIDGE_API drawbridge_options drawbridge_options_defaults(void);

/* Opens a model directory and starts its engine. options NULL: the defaults. */
DRAWBRIDGE_API drawbridge *drawbridge_open(const char *directory, const drawbridge_options *options, drawbridge_error *err);
DRAWBRIDGE_API void drawbridge_close(drawbridge *d); /* ends what is running; NULL is allowed */

/* Where the kernels come from: "117 shapes, 110 tuned, 7 heuristic". Lives as long as d. */
DRAWBRIDGE_API const char *drawbridge_kernels(const drawbridge *d);

/* ---- text and tokens ---- */

/* Each appends nothing and allocates: free the result with drawbridge_free. */
DRAWBRIDGE_API int32_t *drawbridge_encode(const drawbridge *d, const char *text, size_t bytes, size_t *count);
DRAWBRIDGE_API char *drawbridge_decode(const drawbridge *d, const int32_t *tokens, size_t count, size_t *bytes);

/* The prompt of a conversation: messages and tools as JSON arrays in OpenAI's form; tools may be NULL. */
DRAWBRIDGE_API int32_t *drawbridge_render(const drawbridge *d, const char *messages, const char *tools, bool thinking, size_t *count,
                                          drawbridge_error *err);
DRAWBRIDGE_API void drawbridge_free(void *memory);

/* ---- requests ---- */

/* Start from drawbridge_request_defaults, which knows the model's own sampling parameters. */
typedef struct drawbridge_request {
    const char *messages;     /* a conversation as JSON, or NULL */
    const char *tools;        /* JSON, or NULL */
    bool thinking;            /* of a conversation: reason first */
    const int32_t *tokens;    /* without messages: the prompt itself, [token_count] */
    size_t token_count;
    int max_tokens;           /* of the answer; 0: what the context allows */
    int min_tokens;
    double temperature;       /* 0: greedy */
    double top_p, min_p;
    int top_k;                /* 0: off */
    double repetition_penalty, presence_penalty, frequency_penalty;
    uint64_t seed;
    const int32_t *stop_tokens; /* [stop_count] beside the model's own */
    int stop_count;
    bool ignore_eos;
    int priority;             /* larger goes first */
    double timeout_s;         /* 0: none */
    const char *cache_space;  /* requests share cached prefixes only within a space; NULL: "" */
    void *user;               /* handed back in events */
} drawbridge_request;

DRAWBRIDGE_API drawbridge_request drawbridge_request_defaults(const drawbridge *d);

/* Everything the request points to is copied. */
DRAWBRIDGE_API bool drawbridge_submit(drawbridge *d, const drawbridge_request *r, uint64_t *id, drawbridge_error *err);

/* The request ends within a step; its last event says DRAWBRIDGE_CANCELLED. Unknown ids are ignored. */
DRAWBRIDGE_API void drawbridge_cancel(drawbridge *d, uint64_t id);

/* ---- events ---- */

typedef enum drawbridge_finish {
    DRAWBRIDGE_RUNNING,   /* more comes */
    DRAWBRIDGE_STOP,      /* an end token; it is the last of `tokens` and not part of the text */
    DRAWBRIDGE_LENGTH,
    DRAWBRIDGE_CANCELLED,
    DRAWBRIDGE_TIMEOUT,
    DRAWBRIDGE_FAILED,    /* see failure */
} drawbridge_finish;

enum { DRAWBRIDGE_EVENT_TOKENS = 9 };

typedef struct drawbridge_event {
    uint64_t id;
    void *user;
    int32_t tokens[DRAWBRIDGE_EVENT_TOKENS]; /* [token_count] */
    int token_count;
    char *text;               /* what they add to the answer, whole UTF-8 characters; terminated. Control tokens such as <think> and
                                 <tool_call> stand in it as they are */
    size_t text_bytes;
    drawbridge_finish finish; /* set in the last event of a request, and only there */
    char *failure;            /* a sentence; NULL without */
    int prompt_tokens, cached_tokens, output_tokens; /* so far */
    int drafted, accepted;    /* guesses of the draft head; of them right */
} drawbridge_event;

/* Waits up to timeout_ms (negative: as long as a request is running) and takes up to `most` events; returns how many. */
DRAWBRIDGE_API int drawbridge_poll(drawbridge *d, drawbridge_event *events, int most, int timeout_ms);
DRAWBRIDGE_API void drawbridge_event_free(drawbridge_event *ev);

/* ---- figures ---- */

typedef struct drawbridge_stats {
    int running, waiting;                    /* requests */
    int pages, free_pages, idle_pages;       /* of 64 tokens; idle: cached prefixes nobody uses now */
    uint64_t prompt_tokens, cached_tokens, output_tokens, steps, preemptions;
} drawbridge_stats;

DRAWBRIDGE_API void drawbridge_stats_get(drawbridge *d, drawbridge_stats *out);
DRAWBRIDGE_API const char *drawbridge_version(void);

#ifdef __cplusplus
}
#endif

#endif
