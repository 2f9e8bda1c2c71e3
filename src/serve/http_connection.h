/* What the files of the HTTP server share: http.c (listening, accepting), http_connection.c (the life of a connection), http_reply.c (what
 * handlers call). Nobody else includes it. */
#ifndef SERVE_HTTP_CONNECTION_H
#define SERVE_HTTP_CONNECTION_H

#include <event2/buffer.h>
#include <event2/util.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include "serve/http.h"
#include "serve/http_parse.h"

enum { HTTP_PEER_BYTES = 64, HTTP_ID_BYTES = 65, HTTP_READ_BYTES = 65536, HTTP_CLIENT_GONE = 499 };

typedef enum connection_state {
    CONNECTION_READING,   /* between requests, or within one */
    CONNECTION_ANSWERING, /* the exchange is with a handler */
    CONNECTION_SENDING,   /* the exchange is over; bytes of its reply are left */
    CONNECTION_LINGERING, /* everything is sent, our side is closed; input is dropped until the client has seen that. Closing at once
                             while bytes are coming in would reset the connection and could destroy the reply on its way */
} connection_state;

typedef struct connection {
    http_server *server;
    struct connection *previous, *next;
    evutil_socket_t fd;
    connection_state state;
    struct event *read;        /* input; also how the connection is woken by connection_wake */
    struct event *write;       /* NULL until something could not be sent at once */
    struct event *timer;       /* what it means follows from the state, see on_timer */
    struct evbuffer *output;   /* NULL: nothing waits */
    text ahead;                /* input that came while a request was being answered */
    size_t ahead_used;         /* of it, parsed since */
    http_exchange *exchange;   /* NULL: none */
    size_t lingered;           /* bytes dropped */
    bool reading;              /* the read event is on */
    bool half_closed;          /* the client has closed its side, or all of the connection */
    bool deaf;                 /* too much came ahead; input is dropped and this reply is the last one */
    bool close_after;          /* this reply is the last one */
    bool linger;               /* when closing */
    bool doomed;               /* to be destroyed at the end of the current event, or by the next one */
    bool refused;              /* one too many; not counted */
    const char *doom_note;     /* for the record; NULL: the client went away */
    char peer[HTTP_PEER_BYTES];
} connection;

struct http_exchange {
    connection *connection;
    http_parser request;
    uint64_t started_us;
    char id[HTTP_ID_BYTES];
    text added;                /* "Name: value\r\n" ... */
    text note;
    int status;                /* 0: the reply has not begun */
    size_t reply_bytes;
    size_t body_counted;       /* part of the server's body_bytes */
    bool at_head;              /* the body has not been read */
    bool handed;               /* a handler has it */
    bool chunked;              /* the reply */
    bool bodiless;             /* HEAD, 204, 304 */
    bool events;               /* text/event-stream */
    uint64_t sent_us;          /* when the last piece of a stream was written */
    bool probed;               /* 100 Continue was sent to see whether the client is there */
    void (*closed)(void *context);
    void *closed_context;
};

/* Times as libevent's common timeouts: adding one is O(1) however many connections there are. */
typedef struct http_times {
    const struct timeval *header, *body, *idle, *write, *keep_alive, *probe, *linger;
} http_times;

struct http_server {
    struct event_base *base;
    http_options options;
    http_times times;
    http_handler handler, head;
    void *context, *head_context;
    void (*refuse)(void *context, http_exchange *x, int status, const char *sentence);
    void *refuse_context;
    void (*record)(void *context, const http_record *r);
    void *record_context;
    evutil_socket_t fd;        /* listening; -1: not any more */
    struct event *accept, *accept_again;
    uint64_t warned_us;        /* when a failing accept was last reported */
    connection *connections;   /* all */
    int connection_count, refused_count, exchange_count;
    size_t body_bytes;         /* in bodies of all exchanges */
    bool stopping;
    int port;
    bool loopback, wildcard;
    char host[HTTP_PEER_BYTES];
    uint64_t id_seed, id_count;
    time_t date_time;
    char date[40];
    char scratch[HTTP_READ_BYTES];  /* input on its way to a parser */
};

/* Takes over a new socket; one above the limit is told so and closed. */
void connection_open(http_server *s, evutil_socket_t fd, const struct sockaddr *address, socklen_t size);
void connection_destroy(connection *c); /* calls `closed` of its exchange */

/* Functions that handlers call must not end a connection under them: they doom it, and the loop ends it. note: for the record; NULL:
 * the client went away. */
void connection_doom(connection *c, const char *note);

/* Sends at once what the socket takes and keeps the rest. */
void connection_send(connection *c, struct iovec *pieces, int count);
void connection_send_text(connection *c, const char *s);
size_t connection_unsent(const connection *c);

/* The timer of a connection whose exchange is with a handler. */
void connection_arm_answering(connection *c);

/* The reply is complete, as far as the handler is concerned; the exchange is gone. */
void exchange_end(http_exchange *x);

/* "127.0.0.1" or "127.0.0.1:51234". */
void http_write_address(const struct sockaddr *address, socklen_t size, char out[HTTP_PEER_BYTES], bool with_port);

#endif
