/* The HTTP/1.1 server: connections, limits, time-outs and replies, on libevent; http_parse.h reads the requests. One thread, the one that
 * runs the event base.
 *
 * A request that has arrived whole becomes an http_exchange and goes to the handler, which replies at once or later: with
 * http_reply, or with http_stream_begin, http_stream_write ... http_stream_end. Exactly one reply per exchange. When the client
 * goes away first, `closed` is called (if set) and the exchange is gone: it must not be touched afterwards. After http_reply or
 * http_stream_end the exchange is gone, too. `closed` is called by the event loop, never from within one of the functions below.
 *
 * Bad requests (syntax, sizes, unsupported transfer codings) are answered here and never reach the handler.
 *
 * A client that closes its side of the connection while its answer is being made may be gone or may still be reading: TCP sends the
 * same FIN for both. The server finds out with bytes that change nothing: "100 Continue" before the reply, a comment within a stream
 * of events. A client that is gone answers them with a reset within one round trip, and `closed` is called; one that still reads
 * gets its answer. (HTTP/1.0 knows no such bytes: those clients are taken to be reading.) */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

typedef void (*http_handler)(void *context, http_exchange *x);

/* Zero means the default. */
typedef struct http_options {
    const char *host;          /* address to bind, default 127.0.0.1; "unix:/path" is not supported */
    int port;                  /* default 8000; -1: any free one */
    int max_connections;       /* default 16,384; one more is answered 503 and closed */
    size_t header_bytes;       /* request line and headers; default 32 KiB: 431 */
    size_t body_bytes;         /* default 64 MiB: 413 */
    size_t bodies_bytes;       /* bodies of all requests that are being read or have not been taken by a handler; default 1 GiB: 503 */
    size_t unsent_bytes;       /* a stream whose client has not taken this much is cut; default 4 MiB */
    double header_s;           /* from the first byte of a request to the end of its headers; default 10: 408 */
    double body_s;             /* between two reads of the body; default 30: 408 */
    double idle_s;             /* a kept-open connection without a request; default 120 */
    double write_s;            /* a client that takes nothing for so long is cut; default 30 */
    double keep_alive_s;       /* a comment is sent on streams of type text/event-stream that were silent for so long; default 5 */
} http_options;

http_server *http_server_create(struct event_base *base, const http_options *options, http_handler handler, void *context, error *err);
void http_server_destroy(http_server *s); /* closes all connections; calls `closed` of open exchanges */

int http_server_port(const http_server *s);
const char *http_server_host(const http_server *s);   /* the bound address in numbers */
bool http_server_is_loopback(const http_server *s);   /* only this machine can connect */
bool http_server_is_wildcard(const http_server *s);   /* bound to all addresses of this machine */
void http_server_stop_accepting(http_server *s); /* closes the listening socket and idle connections; running exchanges go on */
int http_server_connections(const http_server *s);
int http_server_exchanges(const http_server *s); /* being answered, or the answer has not left this process */

/* Called when the headers of a request are complete and its body has not come yet, so that a request that will be refused anyway
 * need not be read. It may reply, there and then (the connection is closed afterwards), or return; it must not keep the exchange. */
void http_server_on_head(http_server *s, http_handler head, void *context);

/* Called instead of the plain-text replies to bad requests; must reply with this status. The request may be incomplete. */
void http_server_on_refusal(http_server *s, void (*refuse)(void *context, http_exchange *x, int status, const char *sentence),
                            void *context);

/* ---- the request ---- */
const char *http_method(const http_exchange *x);            /* "GET", "POST", ...; "-" in a refusal before it is known */
const char *http_path(const http_exchange *x);              /* decoded, without the query; begins with a slash, or is "*" (OPTIONS);
                                                               UTF-8 without control characters */
const char *http_query(const http_exchange *x, const char *name); /* decoded value of ?name=; NULL when absent */
const char *http_header(const http_exchange *x, const char *name); /* any case; NULL when absent; the first of several */
view http_body(const http_exchange *x);                     /* until the handler returns; terminated */
const char *http_peer(const http_exchange *x);              /* "127.0.0.1:51234" */
const char *http_request_id(const http_exchange *x);        /* the client's X-Request-Id when it is sane, else made here */
uint64_t http_started_us(const http_exchange *x);           /* clock_now_us when its first byte came */

/* ---- the reply ---- */
/* HEAD requests are answered like GET; the body is counted but not sent. */
void http_add_header(http_exchange *x, const char *name, const char *value); /* before the reply begins */
bool http_has_added_header(const http_exchange *x, const char *name);        /* any case */
void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t bytes);
void http_stream_begin(http_exchange *x, int status, const char *type);      /* chunked; text/event-stream gets no-cache headers */
void http_stream_write(http_exchange *x, const void *bytes, size_t count);
void http_stream_end(http_exchange *x);
bool http_streaming(const http_exchange *x);                /* the reply has begun */
void http_close_after(http_exchange *x);                    /* before the reply begins: the connection does not stay open after it */
void http_on_closed(http_exchange *x, void (*closed)(void *context), void *context);

/* Called for every exchange that ended, for logs and metrics. */
typedef struct http_record {
    const char *method, *path, *peer, *request_id;
    int status;          /* 499: the client went away first */
    size_t request_bytes, reply_bytes; /* of the bodies */
    uint64_t duration_us;
    const char *note;    /* what a handler added with http_note; NULL: nothing */
} http_record;

void http_server_on_record(http_server *s, void (*record)(void *context, const http_record *r), void *context);
void http_note(http_exchange *x, const char *format, ...) __attribute__((format(printf, 2, 3))); /* "key=value key=value" */

#endif
