#include "eval/http_client.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"
#include "eval/http_url.h"

enum {
    CONNECT_TIMEOUT_MS = 10000, /* of the first connection, per address */
    STOP_PERIOD_US = 100000,    /* how often the stop flag is looked at */
    HEADER_BYTES = 64 * 1024,   /* limit on the headers of a response */
    KEY_BYTES = 4096,           /* limit on a key */
    MESSAGE_BYTES = 400,        /* of a server's own words in an error text */
};

typedef enum slot_state { SLOT_IDLE, SLOT_WAITING, SLOT_SENT } slot_state;

/* A place for one request at a time, with its connection. The timer starts an attempt while waiting, and ends it by
 * time-out once it is sent. */
typedef struct slot {
    http_client *client;
    struct evhttp_connection *connection; /* NULL: made when needed */
    struct event *timer;
    slot_state state;
    int index;                            /* of the request */
    bool broken;                          /* the connection failed: a new one before the next attempt */
    int failure;                          /* enum evhttp_request_error of the attempt, -1: none told */
    uint64_t sent_us;                     /* when the attempt was sent */
} slot;

struct http_client {
    http_url url;
    http_client_options options;
    char address[64];         /* numeric, the one that accepted the first connection */
    text authorization;       /* value of the header, "" without a key */
    struct event_base *events;
    struct event *stop_timer;
    slot *slots;              /* [options.in_flight] */
    /* of the running http_client_post_all: */
    http_request *requests;
    int count, next, finished; /* requests in all, taken by a slot, ended */
    http_client_done done;
    void *context;
};

static struct timeval interval(double seconds)
{
    time_t whole = (time_t)seconds;
    return (struct timeval){whole, (suseconds_t)((seconds - (double)whole) * 1e6)};
}

/* ---- the words of a server, for error texts */

/* Printable characters only: what a server says must not steer a terminal. */
static void add_printable(text *out, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count && out->length < MESSAGE_BYTES;) {
        uint32_t c;
        int n = utf8_decode(bytes + i, count - i, &c);
        if (n > 0 && c >= ' ' && c != 127 && (c < 0x80 || c > 0x9f))
            text_add(out, bytes + i, (size_t)n);
        else if (out->length && out->data[out->length - 1] != ' ')
            text_add_char(out, ' ');
        i += n > 0 ? (size_t)n : 1;
    }
}

/* Where servers put their message: {"error": {"message": ...}} or {"error" | "message" | "detail": ...}. */
static const json_t *message_of(const json_t *root)
{
    static const char *const keys[] = {"error", "message", "detail"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = json_object_get(root, keys[i]);
        const json_t *inner = json_object_get(v, "message");
        if (json_is_string(v) || json_is_string(inner))
            return json_is_string(v) ? v : inner;
    }
    return NULL;
}

static void add_server_message(text *out, const text *body)
{
    error ignored = {0};
    json_t *root = body->length ? json_parse(body->data, body->length, "body", &ignored) : NULL;
    const json_t *message = message_of(root);
    if (message)
        add_printable(out, json_string_value(message), json_string_length(message));
    else
        add_printable(out, body->data, body->length);
    json_decref(root);
    if (!out->length)
        text_add_text(out, "no message");
}

/* ---- one attempt */

static void slot_next(slot *s);

static http_request *slot_request(const slot *s)
{
    return &s->client->requests[s->index];
}

static void slot_finish(slot *s)
{
    http_client *c = s->client;
    event_del(s->timer);
    s->state = SLOT_IDLE;
    c->finished++;
    if (c->done)
        c->done(c->context, c->requests, s->index);
    if (c->finished == c->count)
        event_base_loopbreak(c->events);
    else
        slot_next(s);
}

static void slot_wait(slot *s, double seconds)
{
    struct timeval t = interval(seconds);
    s->state = SLOT_WAITING;
    event_add(s->timer, &t);
}

/* Takes the next request, if any is left. The timer begins the attempt, so that none begins inside a call of libevent. */
static void slot_next(slot *s)
{
    http_client *c = s->client;
    if (c->next == c->count)
        return;
    s->index = c->next++;
    slot_wait(s, 0);
}

/* The wait before attempt n + 1: doubles from back_off_s, of which the second half is random. */
static double back_off(const http_client *c, const http_request *r, int index)
{
    double wait = c->options.back_off_s;
    for (int i = 1; i < r->attempts && wait < c->options.back_off_most_s; i++)
        wait *= 2;
    wait = wait < c->options.back_off_most_s ? wait : c->options.back_off_most_s;
    return wait * (0.5 + 0.5 * random_uniform(clock_now_us(), (uint64_t)index, (uint64_t)r->attempts));
}

/* Timers of libevent follow a coarse clock and may end a few milliseconds early; a server that asks for a second gets a second. */
static const double TIMER_EARLY_S = 0.02;

/* Waits and tries again when attempts are left; otherwise the error that is set stays. asked_s: Retry-After, or negative. */
static void slot_retry(slot *s, double asked_s)
{
    http_client *c = s->client;
    http_request *r = slot_request(s);
    if (r->attempts > c->options.retries) {
        if (r->attempts > 1)
            error_add(&r->err, "after %d attempts", r->attempts);
        slot_finish(s);
        return;
    }
    if (asked_s > c->options.back_off_most_s) {
        error_add(&r->err, "the server asks to wait %.0f s, more than %.0f", asked_s, c->options.back_off_most_s);
        slot_finish(s);
        return;
    }
    double wait = back_off(c, r, s->index), asked = asked_s + TIMER_EARLY_S;
    slot_wait(s, asked > wait ? asked : wait);
}

static double retry_after(struct evhttp_request *answer)
{
    const char *value = evhttp_find_header(evhttp_request_get_input_headers(answer), "Retry-After");
    char *end = NULL;
    long seconds = value ? strtol(value, &end, 10) : -1;
    return value && end != value && *end == '\0' && seconds >= 0 ? (double)seconds : -1;
}

static void take_body(http_request *r, struct evhttp_request *answer)
{
    struct evbuffer *body = evhttp_request_get_input_buffer(answer);
    size_t n = evbuffer_get_length(body);
    text_clear(&r->response);
    text_add(&r->response, n ? (const char *)evbuffer_pullup(body, -1) : "", n);
}

/* An answer came. */
static void slot_answer(slot *s, struct evhttp_request *answer)
{
    http_client *c = s->client;
    http_request *r = slot_request(s);
    r->status = evhttp_request_get_response_code(answer);
    take_body(r, answer);
    if (r->status == 200) {
        r->err = (error){0};
        slot_finish(s);
        return;
    }
    const char *location = evhttp_find_header(evhttp_request_get_input_headers(answer), "Location");
    text message = {0};
    if (r->status >= 300 && r->status < 400 && location) {
        text_add_text(&message, "moved; use that address: ");
        add_printable(&message, location, strlen(location));
    } else {
        add_server_message(&message, &r->response);
    }
    error_set(&r->err, ERROR_NETWORK, "%s%s%s answers with status %d: %s", c->url.origin, c->url.prefix, r->path, r->status,
              message.data);
    text_free(&message);
    if (r->status == 429 || r->status == 503)
        slot_retry(s, retry_after(answer));
    else
        slot_finish(s);
}

/* No answer came: libevent's reason decides whether another attempt makes sense. */
static void slot_failure(slot *s)
{
    http_client *c = s->client;
    http_request *r = slot_request(s);
    bool again = false;
    s->broken = true;
    r->status = 0;
    text_clear(&r->response);
    switch (s->failure) {
    case EVREQ_HTTP_DATA_TOO_LONG:
        error_set(&r->err, ERROR_NETWORK, "the response of %s is larger than the limit of %zu bytes", c->url.origin,
                  c->options.response_bytes);
        break;
    case EVREQ_HTTP_INVALID_HEADER:
        error_set(&r->err, ERROR_NETWORK, "%s does not answer in HTTP/1.1 (or its headers exceed %d bytes); is this the right "
                  "address?", c->url.origin, HEADER_BYTES);
        break;
    case -1:
        again = true;
        error_set(&r->err, ERROR_NETWORK, "cannot connect to %s; is the server still running?", c->url.origin);
        break;
    default:
        again = true;
        error_set(&r->err, ERROR_NETWORK, "%s closed the connection before its response was complete", c->url.origin);
    }
    if (again)
        slot_retry(s, -1);
    else
        slot_finish(s);
}

/* evhttp ends every attempt here: with the answer, with NULL after on_error, or with status 0 when it could not connect. */
static void on_answer(struct evhttp_request *answer, void *context)
{
    slot *s = context;
    event_del(s->timer);
    slot_request(s)->seconds = (double)(clock_now_us() - s->sent_us) * 1e-6;
    if (answer && evhttp_request_get_response_code(answer) != 0)
        slot_answer(s, answer);
    else
        slot_failure(s);
}

static void on_error(enum evhttp_request_error reason, void *context)
{
    ((slot *)context)->failure = (int)reason;
}

static void slot_time_out(slot *s)
{
    http_client *c = s->client;
    http_request *r = slot_request(s);
    evhttp_connection_free(s->connection); /* the request goes with it, without a call of on_answer */
    s->connection = NULL;
    r->status = 0;
    r->seconds = (double)(clock_now_us() - s->sent_us) * 1e-6;
    error_set(&r->err, ERROR_NETWORK, "%s did not answer within %g s; a longer time-out or fewer requests at a time may help",
              c->url.origin, c->options.timeout_s);
    slot_finish(s);
}

static bool slot_connect(slot *s)
{
    http_client *c = s->client;
    if (s->broken && s->connection) {
        evhttp_connection_free(s->connection);
        s->connection = NULL;
    }
    s->broken = false;
    if (s->connection)
        return true;
    s->connection = evhttp_connection_base_new(c->events, NULL, c->address, (unsigned short)atoi(c->url.port));
    if (!s->connection)
        return false;
    struct timeval idle = interval(c->options.timeout_s + 60); /* the slot's timer comes first */
    evhttp_connection_set_timeout_tv(s->connection, &idle);
    evhttp_connection_set_max_headers_size(s->connection, HEADER_BYTES);
    evhttp_connection_set_max_body_size(s->connection, (ev_ssize_t)c->options.response_bytes);
    return true;
}

static struct evhttp_request *request_build(slot *s)
{
    http_client *c = s->client;
    http_request *r = slot_request(s);
    struct evhttp_request *q = evhttp_request_new(on_answer, s);
    if (!q)
        return NULL;
    evhttp_request_set_error_cb(q, on_error);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(q);
    evhttp_add_header(headers, "Host", c->url.origin);
    evhttp_add_header(headers, "User-Agent", "drawbridge/" DRAWBRIDGE_VERSION);
    evhttp_add_header(headers, "Accept", "application/json");
    if (c->authorization.length)
        evhttp_add_header(headers, "Authorization", c->authorization.data);
    if (r->body) {
        evhttp_add_header(headers, "Content-Type", "application/json");
        evbuffer_add(evhttp_request_get_output_buffer(q), r->body, r->body_bytes);
    }
    return q;
}

/* Sends the slot's request once more. */
static void slot_send(slot *s)
{
    http_client *c = s->client;
    http_request *r = slot_request(s);
    struct evhttp_request *q = slot_connect(s) ? request_build(s) : NULL;
    text path = {0};
    r->attempts++;
    s->failure = -1;
    s->state = SLOT_SENT;
    s->sent_us = clock_now_us();
    text_add_format(&path, "%s%s", c->url.prefix, r->path);
    struct timeval limit = interval(c->options.timeout_s);
    event_add(s->timer, &limit);
    /* evhttp_make_request owns q from here on; with -1 it has freed it */
    if (!q || evhttp_make_request(s->connection, q, r->body ? EVHTTP_REQ_POST : EVHTTP_REQ_GET, path.data) != 0) {
        event_del(s->timer);
        slot_failure(s);
    }
    text_free(&path);
}

static void on_timer(evutil_socket_t none, short what, void *context)
{
    slot *s = context;
    (void)none;
    (void)what;
    if (s->state == SLOT_WAITING)
        slot_send(s);
    else if (s->state == SLOT_SENT)
        slot_time_out(s);
}

static void on_stop_timer(evutil_socket_t none, short what, void *context)
{
    http_client *c = context;
    (void)none;
    (void)what;
    if (c->options.stop && *c->options.stop)
        event_base_loopbreak(c->events);
}

/* ---- all requests */

static void run_begin(http_client *c)
{
    for (int i = 0; i < c->count; i++) {
        http_request *r = &c->requests[i];
        text_clear(&r->response);
        r->status = r->attempts = 0;
        r->seconds = 0;
        r->err = (error){ERROR_INTERRUPTED, "interrupted before an answer came"};
    }
    for (int i = 0; i < c->options.in_flight; i++)
        slot_next(&c->slots[i]);
}

/* After an interruption: connections with a request under way are closed. */
static void run_end(http_client *c)
{
    for (int i = 0; i < c->options.in_flight; i++) {
        slot *s = &c->slots[i];
        event_del(s->timer);
        if (s->state == SLOT_SENT) {
            evhttp_connection_free(s->connection);
            s->connection = NULL;
        }
        s->state = SLOT_IDLE;
    }
}

bool http_client_post_all(http_client *c, http_request *requests, int count, http_client_done done, void *context, error *err)
{
    struct timeval period = {0, STOP_PERIOD_US};
    c->requests = requests;
    c->count = count;
    c->next = c->finished = 0;
    c->done = done;
    c->context = context;
    if (count <= 0)
        return true;
    run_begin(c);
    event_add(c->stop_timer, &period);
    int status = event_base_dispatch(c->events);
    event_del(c->stop_timer);
    run_end(c);
    if (c->finished == count)
        return true;
    if (c->options.stop && *c->options.stop)
        return error_set(err, ERROR_INTERRUPTED, "interrupted after %d of %d requests", c->finished, count);
    return error_set(err, ERROR_RUNTIME, "the event loop ended early (%d) after %d of %d requests", status, c->finished, count);
}

void http_request_free(http_request *r)
{
    text_free(&r->response);
    *r = (http_request){0};
}

/* ---- creating a client */

/* Connects to one address within CONNECT_TIMEOUT_MS; returns 0 or an errno. */
static int try_connect(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol), failure = 0;
    socklen_t size = sizeof failure;
    if (fd < 0)
        return errno;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        failure = errno;
    } else if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        failure = errno;
        if (failure == EINPROGRESS) {
            int ready = poll(&p, 1, CONNECT_TIMEOUT_MS);
            failure = ready < 0 ? errno : ready == 0 ? ETIMEDOUT : 0;
            if (!failure && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) != 0)
                failure = errno;
        }
    }
    close(fd);
    return failure;
}

/* Looks the host up and keeps the first address that accepts a connection. libevent alone would try only the first one, which
 * for "localhost" is often ::1 while the server listens on 127.0.0.1. */
static bool find_address(http_client *c, error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC}, *list = NULL;
    int failure = getaddrinfo(c->url.host, c->url.port, &hints, &list);
    if (failure)
        return error_set(err, ERROR_NETWORK, "cannot find the host %s: %s", c->url.host, gai_strerror(failure));
    failure = ECONNREFUSED;
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        failure = try_connect(a);
        if (failure == 0 &&
            getnameinfo(a->ai_addr, a->ai_addrlen, c->address, sizeof c->address, NULL, 0, NI_NUMERICHOST) == 0)
            break;
    }
    freeaddrinfo(list);
    if (failure == 0 && c->address[0])
        return true;
    return error_set(err, ERROR_NETWORK, "cannot connect to %s port %s: %s; is the server running there?", c->url.host, c->url.port,
                     strerror(failure));
}

static http_client_options with_defaults(const http_client_options *given)
{
    http_client_options o = given ? *given : (http_client_options){0};
    o.in_flight = o.in_flight > 0 ? o.in_flight : 8;
    o.in_flight = o.in_flight < 4096 ? o.in_flight : 4096;
    o.timeout_s = o.timeout_s > 0 ? o.timeout_s : 600;
    o.retries = o.retries == 0 ? 5 : o.retries < 0 ? 0 : o.retries;
    o.back_off_s = o.back_off_s > 0 ? o.back_off_s : 0.5;
    o.back_off_most_s = o.back_off_most_s > 0 ? o.back_off_most_s : 60;
    o.response_bytes = o.response_bytes > 0 ? o.response_bytes : (size_t)64 << 20;
    o.response_bytes = o.response_bytes < (size_t)INT_MAX ? o.response_bytes : (size_t)INT_MAX;
    return o;
}

static bool events_create(http_client *c, error *err)
{
    c->events = event_base_new();
    c->stop_timer = c->events ? event_new(c->events, -1, EV_PERSIST, on_stop_timer, c) : NULL;
    bool ok = c->stop_timer != NULL;
    for (int i = 0; i < c->options.in_flight; i++) {
        slot *s = &c->slots[i];
        s->client = c;
        s->timer = ok ? event_new(c->events, -1, 0, on_timer, s) : NULL;
        ok = ok && s->timer;
    }
    return ok || error_set(err, ERROR_RUNTIME, "libevent has no memory or no event mechanism");
}

http_client *http_client_create(const char *url, const http_client_options *options, error *err)
{
    http_client *c = mem_alloc(1, sizeof *c);
    c->options = with_defaults(options);
    c->slots = mem_alloc((size_t)c->options.in_flight, sizeof *c->slots);
    if (c->options.api_key && c->options.api_key[0])
        text_add_format(&c->authorization, "Bearer %s", c->options.api_key);
    c->options.api_key = NULL;
    if (http_url_parse(url, &c->url, err) && find_address(c, err) && events_create(c, err))
        return c;
    http_client_destroy(c);
    return NULL;
}

void http_client_destroy(http_client *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->options.in_flight; i++) {
        if (c->slots[i].connection)
            evhttp_connection_free(c->slots[i].connection);
        if (c->slots[i].timer)
            event_free(c->slots[i].timer);
    }
    if (c->stop_timer)
        event_free(c->stop_timer);
    if (c->events)
        event_base_free(c->events);
    text_free(&c->authorization);
    free(c->slots);
    free(c);
}

/* ---- keys */

static bool key_check(const text *key, const char *source, error *err)
{
    if (key->length > KEY_BYTES)
        return error_set(err, ERROR_INPUT, "the key in %s is longer than %d bytes", source, KEY_BYTES);
    for (size_t i = 0; i < key->length; i++)
        if (key->data[i] <= ' ' || key->data[i] >= 127)
            return error_set(err, ERROR_INPUT, "the key in %s has a blank or a character that is not printable ASCII at byte %zu",
                             source, i + 1);
    return true;
}

static bool key_from_file(const char *file, text *out, error *err)
{
    if (!file_read(file, KEY_BYTES + 2, out, err))
        return false;
    size_t length = out->length ? strcspn(out->data, "\r\n") : 0;
    if (length == 0)
        return error_set(err, ERROR_INPUT, "the first line of %s is empty; it should hold the key", file);
    out->data[length] = '\0';
    out->length = length;
    return key_check(out, file, err);
}

bool http_api_key_load(const char *file, text *out, error *err)
{
    static const char *const names[] = {"DRAWBRIDGE_API_KEY", "OPENAI_API_KEY"};
    text_clear(out);
    if (file)
        return key_from_file(file, out, err);
    text_add(out, "", 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0]) {
            text_add_text(out, value);
            return key_check(out, names[i], err);
        }
    }
    return true;
}
