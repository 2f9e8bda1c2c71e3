#include "serve/http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "serve/http_connection.h"

enum {
    DEFAULT_PORT = 8000,
    BACKLOG = 4096,
    ACCEPT_AT_ONCE = 64,        /* connections taken before other events get their turn */
    ACCEPT_PAUSE_US = 100000,   /* after accept found no descriptor or memory */
    WARNING_PERIOD_US = 10000000,
    REFUSED_MOST = 256,         /* connections beyond the limit that are being told so */
    PROBE_US = 100000,          /* how often a half-closed connection is looked at */
    LINGER_US = 2000000,
};

/* ---- accepting */

/* No descriptor or no memory: the connection stays in the queue, so trying again at once would spin. */
static void accept_pause(http_server *s, int failure)
{
    uint64_t now = clock_now_us();
    struct timeval after = {0, ACCEPT_PAUSE_US};
    event_del(s->accept);
    event_add(s->accept_again, &after);
    if (s->warned_us && now - s->warned_us < WARNING_PERIOD_US)
        return;
    s->warned_us = now;
    log_warning("cannot accept a connection while %d are open: %s; raise the limit on open files (ulimit -n) or lower the limit on "
                "connections", s->connection_count, strerror(failure));
}

static void on_accept_again(evutil_socket_t fd, short what, void *context)
{
    http_server *s = context;
    (void)fd;
    (void)what;
    if (s->fd >= 0)
        event_add(s->accept, NULL);
}

static void on_accept(evutil_socket_t listening, short what, void *context)
{
    http_server *s = context;
    (void)what;
    for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        evutil_socket_t fd = accept(listening, (struct sockaddr *)&address, &size);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                accept_pause(s, errno);
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            return;
        }
        bool full = s->connection_count >= s->options.max_connections && s->refused_count >= REFUSED_MOST;
        if (full || evutil_make_socket_nonblocking(fd) != 0 || evutil_make_socket_closeonexec(fd) != 0)
            evutil_closesocket(fd);
        else
            connection_open(s, fd, (struct sockaddr *)&address, size);
    }
}

/* ---- the server */

static http_options with_defaults(const http_options *given)
{
    http_options o = given ? *given : (http_options){0};
    o.host = o.host && o.host[0] ? o.host : "127.0.0.1";
    o.port = o.port == 0 ? DEFAULT_PORT : o.port < 0 ? 0 : o.port;
    o.max_connections = o.max_connections > 0 ? o.max_connections : 16384;
    o.header_bytes = o.header_bytes > 0 ? o.header_bytes : (size_t)32 << 10;
    o.body_bytes = o.body_bytes > 0 ? o.body_bytes : (size_t)64 << 20;
    o.bodies_bytes = o.bodies_bytes > 0 ? o.bodies_bytes : (size_t)1 << 30;
    o.unsent_bytes = o.unsent_bytes > 0 ? o.unsent_bytes : (size_t)4 << 20;
    double *times[] = {&o.header_s, &o.body_s, &o.idle_s, &o.write_s, &o.keep_alive_s};
    static const double defaults[] = {10, 30, 120, 30, 5};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (!(*times[i] > 0))
            *times[i] = defaults[i];
    return o;
}

static const struct timeval *common_time(http_server *s, double seconds)
{
    if (seconds > 1e8)
        seconds = 1e8;
    struct timeval t = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    return event_base_init_common_timeout(s->base, &t);
}

static bool times_create(http_server *s, error *err)
{
    const http_options *o = &s->options;
    s->times = (http_times){common_time(s, o->header_s), common_time(s, o->body_s), common_time(s, o->idle_s),
                            common_time(s, o->write_s), common_time(s, o->keep_alive_s), common_time(s, PROBE_US * 1e-6),
                            common_time(s, LINGER_US * 1e-6)};
    const http_times *t = &s->times;
    return (t->header && t->body && t->idle && t->write && t->keep_alive && t->probe && t->linger) ||
           error_set(err, ERROR_RUNTIME, "libevent has no room for the HTTP server's timers");
}

static void note_address(http_server *s, const struct sockaddr *address, socklen_t size)
{
    http_write_address(address, size, s->host, false);
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        s->port = ntohs(in.sin_port);
        s->loopback = ntohl(in.sin_addr.s_addr) >> 24 == 127;
        s->wildcard = in.sin_addr.s_addr == htonl(INADDR_ANY);
    } else {
        struct sockaddr_in6 in6;
        memcpy(&in6, address, sizeof in6);
        s->port = ntohs(in6.sin6_port);
        s->loopback = IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
        s->wildcard = IN6_IS_ADDR_UNSPECIFIED(&in6.sin6_addr);
    }
}

/* Binds one address and listens; 0 or an errno. */
static int try_listen(http_server *s, const struct addrinfo *a)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    int on = 1, failure = 0;
    s->fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (s->fd < 0)
        return errno;
    setsockopt(s->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s->fd, a->ai_addr, a->ai_addrlen) != 0 || listen(s->fd, BACKLOG) != 0 || evutil_make_socket_nonblocking(s->fd) != 0 ||
        evutil_make_socket_closeonexec(s->fd) != 0 || getsockname(s->fd, (struct sockaddr *)&bound, &size) != 0)
        failure = errno;
    if (failure) {
        evutil_closesocket(s->fd);
        s->fd = -1;
        return failure;
    }
    note_address(s, (struct sockaddr *)&bound, size);
    return 0;
}

static bool server_listen(http_server *s, error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    char port[16], host[256];
    const char *given = s->options.host;
    bool bracketed = given[0] == '[' && text_ends_with(given, "]");
    snprintf(host, sizeof host, "%.*s", (int)(strlen(given) - (bracketed ? 2 : 0)), given + bracketed);
    snprintf(port, sizeof port, "%d", s->options.port);
    int failure = getaddrinfo(host, port, &hints, &list);
    if (failure)
        return error_set(err, ERROR_NETWORK, "cannot find the address %s to listen on: %s", given, gai_strerror(failure));
    failure = EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && failure; a = a->ai_next)
        if (a->ai_family == AF_INET || a->ai_family == AF_INET6)
            failure = try_listen(s, a);
    freeaddrinfo(list);
    if (failure == 0)
        return true;
    const char *advice = failure == EADDRINUSE ? "; another program listens there, choose another port" : "";
    return error_set(err, ERROR_NETWORK, "cannot listen on %s port %s: %s%s", given, port, strerror(failure), advice);
}

http_server *http_server_create(struct event_base *base, const http_options *options, http_handler handler, void *context, error *err)
{
    http_server *s = mem_alloc(1, sizeof *s);
    s->base = base;
    s->options = with_defaults(options);
    s->handler = handler;
    s->context = context;
    s->fd = -1;
    evutil_secure_rng_get_bytes(&s->id_seed, sizeof s->id_seed);
    if (times_create(s, err) && server_listen(s, err)) {
        s->accept = event_new(base, s->fd, EV_READ | EV_PERSIST, on_accept, s);
        s->accept_again = evtimer_new(base, on_accept_again, s);
        if (s->accept && s->accept_again && event_add(s->accept, NULL) == 0)
            return s;
        error_set(err, ERROR_RUNTIME, "libevent cannot watch the listening socket");
    }
    http_server_destroy(s);
    return NULL;
}

static void stop_listening(http_server *s)
{
    if (s->accept)
        event_free(s->accept);
    if (s->accept_again)
        event_free(s->accept_again);
    if (s->fd >= 0)
        evutil_closesocket(s->fd);
    s->accept = s->accept_again = NULL;
    s->fd = -1;
}

void http_server_destroy(http_server *s)
{
    if (!s)
        return;
    stop_listening(s);
    while (s->connections)
        connection_destroy(s->connections);
    free(s);
}

void http_server_stop_accepting(http_server *s)
{
    stop_listening(s);
    s->stopping = true;
    for (connection *c = s->connections; c; c = c->next)
        if (c->state == CONNECTION_READING && !c->exchange)
            connection_doom(c, NULL);
}

int http_server_port(const http_server *s)
{
    return s->port;
}

const char *http_server_host(const http_server *s)
{
    return s->host;
}

bool http_server_is_loopback(const http_server *s)
{
    return s->loopback;
}

bool http_server_is_wildcard(const http_server *s)
{
    return s->wildcard;
}

int http_server_connections(const http_server *s)
{
    return s->connection_count;
}

int http_server_exchanges(const http_server *s)
{
    return s->exchange_count;
}

void http_server_on_head(http_server *s, http_handler head, void *context)
{
    s->head = head;
    s->head_context = context;
}

void http_server_on_refusal(http_server *s, void (*refusal)(void *context, http_exchange *x, int status, const char *sentence),
                            void *context)
{
    s->refuse = refusal;
    s->refuse_context = context;
}

void http_server_on_record(http_server *s, void (*record)(void *context, const http_record *r), void *context)
{
    s->record = record;
    s->record_context = context;
}
