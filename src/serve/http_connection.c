#include "serve/http_connection.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

enum {
    AHEAD_BYTES = 65536,     /* requests that came while another one is being answered */
    LINGER_BYTES = 64 << 20, /* dropped at most while a connection closes */
    SEND_PIECES = 16,        /* pieces of the unsent bytes per system call */
};

static void connection_settle(connection *c);

static void connection_wake(connection *c)
{
    event_active(c->read, EV_TIMEOUT, 0);
}

void connection_doom(connection *c, const char *note)
{
    if (c->doomed)
        return;
    c->doomed = true;
    c->doom_note = note;
    connection_wake(c);
}

static void connection_arm(connection *c, const struct timeval *after)
{
    if (after)
        event_add(c->timer, after);
    else
        event_del(c->timer);
}

void connection_arm_answering(connection *c)
{
    const http_exchange *x = c->exchange;
    connection_arm(c, c->half_closed ? c->server->times.probe : x->events ? c->server->times.keep_alive : NULL);
}

/* ---- sending */

size_t connection_unsent(const connection *c)
{
    return c->output ? evbuffer_get_length(c->output) : 0;
}

/* Returns bytes sent, 0 when the socket takes none now, -1 when the connection is broken. Never raises SIGPIPE. */
static ssize_t send_pieces(evutil_socket_t fd, struct iovec *pieces, int count)
{
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    ssize_t n;
    do
        n = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n >= 0 ? n : errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS ? 0 : -1;
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    connection *c = context;
    struct iovec pieces[SEND_PIECES];
    (void)fd;
    if (what & EV_TIMEOUT)
        connection_doom(c, "cut=slow-reader");
    while (!c->doomed && connection_unsent(c) > 0) {
        int count = evbuffer_peek(c->output, -1, NULL, pieces, SEND_PIECES);
        ssize_t n = send_pieces(c->fd, pieces, count < SEND_PIECES ? count : SEND_PIECES);
        if (n < 0)
            connection_doom(c, NULL);
        if (n <= 0)
            break;
        evbuffer_drain(c->output, (size_t)n);
    }
    if (connection_unsent(c) == 0 && c->output) {
        evbuffer_free(c->output);
        c->output = NULL;
        event_del(c->write);
    }
    connection_settle(c);
}

static void keep_unsent(connection *c, const struct iovec *pieces, int count, size_t sent)
{
    if (!c->output)
        c->output = evbuffer_new();
    if (!c->write)
        c->write = event_new(c->server->base, c->fd, EV_WRITE | EV_PERSIST, on_writable, c);
    bool ok = c->output && c->write;
    for (int i = 0; ok && i < count; i++) {
        size_t skip = sent < pieces[i].iov_len ? sent : pieces[i].iov_len;
        sent -= skip;
        ok = evbuffer_add(c->output, (char *)pieces[i].iov_base + skip, pieces[i].iov_len - skip) == 0;
    }
    if (!ok)
        connection_doom(c, "cut=no-memory");
    else if (!event_pending(c->write, EV_WRITE, NULL))
        event_add(c->write, c->server->times.write);
}

void connection_send(connection *c, struct iovec *pieces, int count)
{
    size_t total = 0;
    ssize_t sent = 0;
    if (c->doomed)
        return;
    for (int i = 0; i < count; i++)
        total += pieces[i].iov_len;
    if (connection_unsent(c) == 0)
        sent = send_pieces(c->fd, pieces, count);
    if (sent < 0)
        connection_doom(c, NULL);
    else if ((size_t)sent < total)
        keep_unsent(c, pieces, count, (size_t)sent);
}

void connection_send_text(connection *c, const char *s)
{
    struct iovec piece = {(char *)(uintptr_t)s, strlen(s)};
    connection_send(c, &piece, 1);
}

/* ---- exchanges */

static http_exchange *exchange_create(connection *c)
{
    http_exchange *x = mem_alloc(1, sizeof *x);
    const http_options *o = &c->server->options;
    x->connection = c;
    x->started_us = clock_now_us();
    x->request.limits = (http_parser_limits){o->header_bytes, o->body_bytes};
    c->exchange = x;
    return x;
}

/* Keeps the server's sum of bodies right; false when it is above the limit. */
static bool exchange_count_body(http_exchange *x)
{
    http_server *s = x->connection->server;
    s->body_bytes += x->request.body_capacity - x->body_counted;
    x->body_counted = x->request.body_capacity;
    return s->body_bytes <= s->options.bodies_bytes;
}

static void exchange_drop_body(http_exchange *x)
{
    free(x->request.body);
    x->request.body = NULL;
    x->request.body_capacity = x->request.body_length = 0;
    exchange_count_body(x);
}

static void exchange_destroy(http_exchange *x)
{
    exchange_drop_body(x);
    http_parser_free(&x->request);
    text_free(&x->added);
    text_free(&x->note);
    x->connection->exchange = NULL;
    free(x);
}

static void exchange_record(http_exchange *x)
{
    connection *c = x->connection;
    http_server *s = c->server;
    if (!s->record)
        return;
    if (c->doomed && c->doom_note)
        http_note(x, "%s", c->doom_note);
    http_record r = {.method = http_method(x),
                     .path = http_path(x),
                     .peer = c->peer,
                     .request_id = http_request_id(x),
                     .status = c->doomed ? HTTP_CLIENT_GONE : x->status,
                     .request_bytes = x->request.body_wire,
                     .reply_bytes = x->reply_bytes,
                     .duration_us = clock_now_us() - x->started_us,
                     .note = x->note.length ? x->note.data : NULL};
    s->record(s->record_context, &r);
}

void exchange_end(http_exchange *x)
{
    connection *c = x->connection;
    exchange_record(x);
    exchange_destroy(x);
    c->state = CONNECTION_SENDING;
    connection_arm(c, NULL);
    connection_wake(c);
}

/* From here on the connection is answering; every way out of that state passes answering_ends. */
static void answering_begins(connection *c)
{
    c->state = CONNECTION_ANSWERING;
    c->server->exchange_count++;
    connection_arm(c, NULL);
}

static void answering_ends(connection *c)
{
    c->state = CONNECTION_READING;
    c->server->exchange_count--;
}

/* ---- the life of a connection */

/* Whether the connection was reset. Its input has ended, so reading tells nothing; poll reports it whatever is asked for. */
static bool peer_is_gone(const connection *c)
{
    struct pollfd p = {.fd = c->fd};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR));
}

static void send_comment(http_exchange *x, const char *comment)
{
    size_t counted = x->reply_bytes;
    http_stream_write(x, comment, strlen(comment));
    x->reply_bytes = counted;
}

/* The client has closed its side while its answer is being made: sends bytes that a client which is gone answers with a reset. */
static void probe(connection *c)
{
    http_exchange *x = c->exchange;
    if (x->status == 0 && x->request.minor == 1 && !x->probed)
        connection_send_text(c, "HTTP/1.1 100 Continue\r\n\r\n");
    else if (x->events && connection_unsent(c) == 0)
        send_comment(x, ":\n\n");
    x->probed = true;
    connection_arm(c, c->server->times.probe);
}

void connection_destroy(connection *c)
{
    http_server *s = c->server;
    http_exchange *x = c->exchange;
    c->doomed = true;
    if (c->state == CONNECTION_ANSWERING || c->state == CONNECTION_SENDING)
        answering_ends(c);
    if (x) {
        void (*closed)(void *context) = x->handed ? x->closed : NULL;
        void *context = x->closed_context;
        if (x->handed)
            exchange_record(x);
        exchange_destroy(x);
        if (closed)
            closed(context);
    }
    if (c->previous)
        c->previous->next = c->next;
    else
        s->connections = c->next;
    if (c->next)
        c->next->previous = c->previous;
    s->connection_count -= !c->refused;
    s->refused_count -= c->refused;
    struct event *events[] = {c->read, c->write, c->timer};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (c->output)
        evbuffer_free(c->output);
    text_free(&c->ahead);
    evutil_closesocket(c->fd);
    free(c);
}

/* Reading goes on while a request is being answered, so that a disconnect is seen. It pauses only while a reply cannot be sent and
 * enough has come ahead; then sending finds the disconnect. */
static void connection_set_reading(connection *c)
{
    bool wanted = !c->half_closed && (c->state != CONNECTION_SENDING || c->ahead.length - c->ahead_used < AHEAD_BYTES);
    if (wanted == c->reading)
        return;
    c->reading = wanted;
    event_del(c->read); /* also undoes a wake-up, which has been served by now; libevent would not watch an event that is active */
    if (wanted)
        event_add(c->read, NULL);
}

static void connection_linger(connection *c)
{
    if (c->half_closed || shutdown(c->fd, SHUT_WR) != 0) {
        connection_doom(c, NULL);
        return;
    }
    c->state = CONNECTION_LINGERING;
    connection_arm(c, c->server->times.linger);
}

static void refuse(http_exchange *x, int status, const char *sentence)
{
    connection *c = x->connection;
    http_server *s = c->server;
    x->handed = true;
    c->close_after = c->linger = true;
    answering_begins(c);
    if (s->refuse) {
        s->refuse(s->refuse_context, x, status, sentence);
        return;
    }
    text body = {0};
    text_add_format(&body, "%s\n", sentence);
    http_reply(x, status, "text/plain; charset=utf-8", body.data, body.length);
    text_free(&body);
}

static void hand_over(http_exchange *x)
{
    connection *c = x->connection;
    x->handed = true;
    x->at_head = false;
    c->close_after = c->close_after || !x->request.keep_alive;
    answering_begins(c);
    c->server->handler(c->server->context, x);
    if (c->exchange != x)
        return;
    exchange_drop_body(x);
    if (c->half_closed)
        probe(c);
}

/* The headers are there, the body is not. */
static void take_head(http_exchange *x, bool body_has_begun)
{
    connection *c = x->connection;
    http_server *s = c->server;
    if (s->head) {
        x->at_head = x->handed = true;
        answering_begins(c);
        s->head(s->head_context, x);
        if (c->exchange != x)
            return;
        x->at_head = x->handed = false;
        answering_ends(c);
    }
    if (x->request.expects_continue && !body_has_begun)
        connection_send_text(c, "HTTP/1.1 100 Continue\r\n\r\n");
    connection_arm(c, s->times.body);
}

/* Reads requests until one is being answered or the bytes are used up; returns how many were used. */
static size_t connection_parse(connection *c, const char *bytes, size_t count)
{
    size_t used = 0, taken;
    while (used < count && c->state == CONNECTION_READING && !c->doomed) {
        http_exchange *x = c->exchange;
        if (!x) {
            x = exchange_create(c);
            connection_arm(c, c->server->times.header);
        }
        http_parse_result result = http_parser_feed(&x->request, bytes + used, count - used, &taken);
        used += taken;
        bool fits = exchange_count_body(x);
        if (result == HTTP_PARSE_BAD)
            refuse(x, x->request.status, x->request.problem);
        else if (!fits)
            refuse(x, 503, "The server is reading too many large requests; try again later.");
        else if (result == HTTP_PARSE_DONE)
            hand_over(x);
        else if (result == HTTP_PARSE_HEAD)
            take_head(x, used < count);
        else if (http_parser_has_head(&x->request))
            connection_arm(c, c->server->times.body);
    }
    return used;
}

static void drop_ahead(connection *c)
{
    text_free(&c->ahead);
    c->ahead_used = 0;
}

static void connection_take(connection *c, const char *bytes, size_t count)
{
    size_t used = c->ahead.length == 0 ? connection_parse(c, bytes, count) : 0;
    if (used == count || c->deaf)
        return;
    if (c->ahead_used) {
        c->ahead.length -= c->ahead_used;
        memmove(c->ahead.data, c->ahead.data + c->ahead_used, c->ahead.length);
        c->ahead_used = 0;
    }
    if (c->ahead.length + (count - used) <= AHEAD_BYTES + HTTP_READ_BYTES) {
        text_add(&c->ahead, bytes + used, count - used);
        return;
    }
    /* Not reading on would hide a disconnect behind the unread bytes, so they are dropped, and the client has to ask again. */
    c->deaf = c->close_after = c->linger = true;
    drop_ahead(c);
}

static void connection_take_ahead(connection *c)
{
    c->ahead_used += connection_parse(c, c->ahead.data + c->ahead_used, c->ahead.length - c->ahead_used);
    if (c->ahead_used == c->ahead.length)
        drop_ahead(c);
}

static void input_ended(connection *c)
{
    c->half_closed = true;
    if (c->state == CONNECTION_ANSWERING)
        probe(c);
    else if (c->state != CONNECTION_SENDING)
        connection_doom(c, NULL);
}

static void connection_receive(connection *c)
{
    http_server *s = c->server;
    if (!c->reading)
        return;
    ssize_t n = recv(c->fd, s->scratch, HTTP_READ_BYTES, 0);
    if (n < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            connection_doom(c, NULL);
    } else if (n == 0) {
        input_ended(c);
    } else if (c->state == CONNECTION_LINGERING) {
        c->lingered += (size_t)n;
        if (c->lingered > LINGER_BYTES)
            connection_doom(c, NULL);
    } else {
        connection_take(c, s->scratch, (size_t)n);
    }
}

/* A reply has left completely: the connection closes or goes on with the next request. */
static void reply_left(connection *c)
{
    answering_ends(c);
    if (c->close_after || c->server->stopping) {
        if (c->linger || c->ahead.length)
            connection_linger(c);
        else
            connection_doom(c, NULL);
    } else if (c->half_closed && c->ahead.length == 0) {
        connection_doom(c, NULL);
    } else if (c->ahead.length) {
        connection_take_ahead(c);
        if (c->half_closed && c->state == CONNECTION_READING)
            connection_doom(c, NULL);
    }
}

/* Brings a connection into order at the end of every event; it may be gone afterwards. */
static void connection_settle(connection *c)
{
    while (!c->doomed && c->state == CONNECTION_SENDING && connection_unsent(c) == 0)
        reply_left(c);
    if (c->doomed) {
        connection_destroy(c);
        return;
    }
    if (c->state == CONNECTION_READING && !c->exchange && !event_pending(c->timer, EV_TIMEOUT, NULL))
        connection_arm(c, c->server->times.idle);
    connection_set_reading(c);
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    connection *c = context;
    (void)fd;
    if ((what & EV_READ) && !c->doomed)
        connection_receive(c);
    connection_settle(c);
}

static void timer_while_reading(connection *c)
{
    http_exchange *x = c->exchange;
    if (!x || x->request.state == HTTP_AT_START)
        connection_doom(c, NULL);
    else if (http_parser_has_head(&x->request))
        refuse(x, 408, "The body of the request came too slowly.");
    else
        refuse(x, 408, "The headers of the request came too slowly.");
}

static void timer_while_answering(connection *c)
{
    http_exchange *x = c->exchange;
    if (c->half_closed && peer_is_gone(c)) {
        connection_doom(c, NULL);
        return;
    }
    double silent_s = (double)(clock_now_us() - x->sent_us) * 1e-6;
    if (x->events && connection_unsent(c) == 0 && (!c->half_closed || silent_s >= c->server->options.keep_alive_s))
        send_comment(x, ": keep-alive\n\n");
    connection_arm_answering(c);
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
    connection *c = context;
    (void)fd;
    (void)what;
    if (c->doomed || c->state == CONNECTION_LINGERING)
        connection_doom(c, NULL);
    else if (c->state == CONNECTION_READING)
        timer_while_reading(c);
    else if (c->state == CONNECTION_ANSWERING)
        timer_while_answering(c);
    connection_settle(c);
}

/* ---- the beginning */

void http_write_address(const struct sockaddr *address, socklen_t size, char out[HTTP_PEER_BYTES], bool with_port)
{
    char host[HTTP_PEER_BYTES - 10] = "?", port[8] = "0";
    getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    if (!with_port)
        snprintf(out, HTTP_PEER_BYTES, "%s", host);
    else
        snprintf(out, HTTP_PEER_BYTES, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

static void set_number(evutil_socket_t fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value); /* without effect where the system has none of it */
}

static void set_socket_options(const http_server *s, evutil_socket_t fd)
{
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, 15);
    set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
#endif
#ifdef TCP_USER_TIMEOUT
    /* small replies fit the kernel's buffer: only the kernel can see that they are not taken */
    if (s->options.write_s * 1e3 >= 1)
        set_number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(s->options.write_s * 1e3));
#else
    (void)s;
#endif
}

static void send_too_many(connection *c)
{
    static const char body[] = "{\"error\": {\"message\": \"The server has as many connections as it may have; try again later.\", "
                               "\"type\": \"overloaded_error\", \"param\": null, \"code\": null}}\n";
    char reply[512];
    snprintf(reply, sizeof reply,
             "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n"
             "Retry-After: 5\r\n\r\n%s", sizeof body - 1, body);
    connection_send_text(c, reply);
}

void connection_open(http_server *s, evutil_socket_t fd, const struct sockaddr *address, socklen_t size)
{
    connection *c = mem_alloc(1, sizeof *c);
    *c = (connection){.server = s, .fd = fd, .next = s->connections, .reading = true};
    c->refused = s->connection_count >= s->options.max_connections;
    http_write_address(address, size, c->peer, true);
    set_socket_options(s, fd);
    c->read = event_new(s->base, fd, EV_READ | EV_PERSIST, on_readable, c);
    c->timer = evtimer_new(s->base, on_timer, c);
    if (!c->read || !c->timer || event_add(c->read, NULL) != 0) {
        if (c->read)
            event_free(c->read);
        if (c->timer)
            event_free(c->timer);
        evutil_closesocket(fd);
        free(c);
        return;
    }
    if (c->next)
        c->next->previous = c;
    s->connections = c;
    s->connection_count += !c->refused;
    s->refused_count += c->refused;
    if (c->refused) {
        send_too_many(c);
        connection_linger(c);
    } else {
        connection_arm(c, s->times.idle);
    }
}
