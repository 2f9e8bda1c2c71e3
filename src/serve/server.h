/* The server: one model, one engine, one HTTP loop. server.c has the life cycle (start, drain, stop), dispatch.c what happens to every
 * request (who may ask, which handler, the access log), routes.c the table of endpoints; each API has a file of its own with handlers
 * of type server_handler.
 *
 * SIGTERM or SIGINT begins the drain: /readyz turns to 503 at once, new generations are refused, connections are still accepted (for
 * health checks) and what runs goes on. The server ends when nothing is being answered any more; after drain_s, or at a second signal,
 * what still runs is aborted, which its clients are told; a third signal ends the server without that. */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include <event2/event.h>
#include <jansson.h>

#include "engine/engine.h"
#include "model/chat.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "serve/tenant.h"

enum { SERVER_MODEL_NAME_MOST = 256 }; /* bytes */

typedef struct server_limits {
    int max_tokens;        /* of an answer; 0: what the context allows */
    int default_max_tokens; /* when a request says nothing; 0: what the context allows */
    int max_choices;       /* n */
    double request_s;      /* deadline of a request; 0: none */
    double drain_s;        /* after SIGTERM; then what still runs is aborted; default 30 */
    double keep_alive_s;   /* SSE comment after so long without a byte; default 5 */
} server_limits;

/* The strings must outlive the server. */
typedef struct server_options {
    const char *model_name;    /* as /v1/models shows it; requests may name it or leave "model" out. UTF-8 of at most
                                  SERVER_MODEL_NAME_MOST bytes */
    const char *model_path;    /* directory, for /server_info */
    http_options http;
    server_limits limits;
    const char *api_keys;      /* file; NULL: no keys, loopback only */
    const char *allowed_hosts; /* Host values beside loopback names and the bound address, comma separated; NULL: none, "*": any */
    const char *allowed_origins; /* Origin values that may call from a browser page elsewhere, comma separated; NULL: none, "*": any */
    bool log_json;             /* access log lines as JSON instead of key=value */
} server_options;

/* Everything the handlers see. */
typedef struct server {
    server_options options;
    struct event_base *base;
    http_server *http;
    engine *engine;
    const model *model;
    const tokenizer *tokenizer;
    const chat_format *format;       /* NULL: the model has no known chat format; chat APIs refuse */
    sampler_params defaults;         /* of generation_config.json */
    tenants *tenants;
    metrics *metrics;
    struct generation *generations;  /* all that are running, a list of generation.c */
    struct flush_wait *flushes;      /* /flush_cache that wait for the engine, a list of ops.c */
    uint64_t started_unix;           /* seconds */
    bool draining;                   /* SIGTERM came: /readyz says so, new generations are refused */
    struct server_loop *loop;        /* events and timers of server.c */
} server;

/* Parts that must outlive server_run. The engine may be NULL and be set later: until then the server is not ready. */
typedef struct server_parts {
    engine *engine;
    const model *model;
    const tokenizer *tokenizer;
    const chat_format *format;
    sampler_params defaults;
} server_parts;

server *server_create(const server_options *options, const server_parts *parts, error *err); /* binds the port */

/* Until SIGTERM or SIGINT and the drain that follows. Afterwards all connections are closed and nothing refers to the engine any more.
 * The engine's thread may still call server_wake: destroy the engine before the server. */
bool server_run(server *s, error *err);
void server_destroy(server *s);
void server_wake(void *s);              /* engine_options.notify: from any thread */
void server_set_engine(server *s, engine *e); /* before server_run, or in its thread */

/* ---- what handlers use ---- */
/* who: never NULL but on ROUTE_OPEN rows, where it may be. */
typedef void (*server_handler)(server *s, http_exchange *x, const tenant *who);

typedef enum route_access { ROUTE_OPEN, ROUTE_KEY, ROUTE_ADMIN } route_access; /* ADMIN: a key marked admin, or no keys at all */

typedef struct route {
    const char *method, *path; /* exact; a path that ends in a slash and a star matches what begins with it */
    route_access access;
    server_handler handler;
    bool anthropic_errors;     /* errors in Anthropic's form */
} route;

extern const route server_routes[]; /* routes.c: the table of all endpoints, ended by a row without a path */

/* The request body as a JSON object; on failure a 400 has been sent and NULL is returned. json_decref frees. */
json_t *server_body(server *s, http_exchange *x);

/* Replies with a JSON value (the reference is taken). */
void server_reply_json(http_exchange *x, int status, json_t *value);

/* OpenAI's form: {"error": {"message", "type", "param", "code"}} with type from the status; param NULL: null. Anthropic's form on its
 * routes. 429 and 503 get a Retry-After unless one was added. */
void server_reply_error(http_exchange *x, int status, const char *param, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Messages quote headers, which may be any bytes, and cut long names in the middle of a character: what is not UTF-8 becomes '?'. */
void server_make_utf8(char *words);

/* The type that an error of this status has, in either API's words; for errors within a stream. */
const char *server_error_type(int status, bool anthropic);

/* Server-sent events: "data: JSON\n\n" (event NULL) or with an "event:" line before it. The reference is taken. */
void server_send_event(http_exchange *x, const char *event, json_t *value);

#endif
