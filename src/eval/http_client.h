/* A small HTTP/1.1 client for `eval --url`: sends many requests, a given number of them at a time, and takes the answers.
 *
 * Built on libevent's evhttp: one event loop, one kept-open connection per slot. A slot takes the next request, sends it, and
 * after a passing failure (status 429 or 503, a connection that broke) waits and sends it again; the wait doubles each time,
 * with a random part, and Retry-After is obeyed. Whatever else goes wrong is final for that request and stands in its `err`;
 * the others go on. The process must ignore SIGPIPE, as main.c does. One thread at a time may use a client. */
#ifndef EVAL_HTTP_CLIENT_H
#define EVAL_HTTP_CLIENT_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"

/* Zero means the default, where one is given. */
typedef struct http_client_options {
    int in_flight;             /* requests at a time, at most 4,096; default 8 */
    double timeout_s;          /* of one attempt, from sending to the last byte; default 600 */
    int retries;               /* attempts after the first; default 5, negative: none */
    double back_off_s;         /* the first wait before another attempt; default 0.5 */
    double back_off_most_s;    /* the longest wait; a Retry-After beyond it ends the request; default 60 */
    size_t response_bytes;     /* limit on the body of a response; default 64 MiB */
    const char *api_key;       /* sent as a bearer token; NULL or "": none. Copied */
    const volatile sig_atomic_t *stop; /* non-zero: end with ERROR_INTERRUPTED; NULL: never */
} http_client_options;

/* Zero-initialise, set path and body. http_request_free releases what came back. */
typedef struct http_request {
    const char *path; /* begins with a slash; the URL's prefix is put before it. Borrowed */
    const char *body; /* [body_bytes] JSON, sent by POST; NULL: GET. Borrowed */
    size_t body_bytes;
    int status;       /* out: of the last attempt's answer; 0 when none came */
    text response;    /* out: the body, whatever the status */
    int attempts;     /* out */
    double seconds;   /* out: of the last attempt */
    error err;        /* out: code ERROR_NONE exactly when the status is 200 */
} http_request;

typedef struct http_client http_client;

/* Parses the URL (http_url.h), looks the host up and connects once, so that a wrong address is reported before any work.
 * NULL on failure. */
http_client *http_client_create(const char *url, const http_client_options *options, error *err);
void http_client_destroy(http_client *c); /* NULL is allowed */

/* Sends all requests and waits for all answers; `done` (NULL: none) is called once for each as it finishes, in the order of
 * finishing. True when all were carried to an end, be it an error of theirs; false: interrupted, or no memory for events. */
typedef void (*http_client_done)(void *context, http_request *requests, int index);
bool http_client_post_all(http_client *c, http_request *requests, int count, http_client_done done, void *context, error *err);
void http_request_free(http_request *r);

/* The key for a server: the first line of a file, or, without a file, the environment variable DRAWBRIDGE_API_KEY or else
 * OPENAI_API_KEY; empty when there is none. Refused: anything but printable ASCII, and more than 4,096 bytes. A key never
 * stands in an error text. */
bool http_api_key_load(const char *file, text *out, error *err);

#endif
