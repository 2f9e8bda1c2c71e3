/* A load generator for `drawbridge serve`, in C so that it leaves the cores to the server. bench/serve_load.py starts the server,
 * calls this program, and writes the reports; by hand:
 *
 *   bench_serve --port P --body FILE [--path PATH] OPTION...
 *     --clients N       closed loop: N clients, each sends its next request when its last one has ended
 *     --rate R          open loop: R requests per second, whatever the server does
 *     --seconds S       how long requests are sent (0: until --requests of them were)
 *     --warm-up S       not counted, before S
 *     --requests N      at most so many
 *     --first N         number of the first request; numbers decide prompts and aborts
 *     --aborts SHARE    of the requests are broken off by the client, at a stage drawn by lot
 *     --stages LIST     the stages to draw from, comma separated (default: all)
 *     --idle N          so many connections that are opened first, say nothing, and are asked for /health at the end
 *     --hold            closed loop: one request per client, all sent only when every client is connected
 *
 * --body may be given several times; request i takes file i modulo their number. "@I@" in it becomes the request's number.
 * A request ends with its whole reply. Tokens are what the reply's usage says: "tokens" are those of requests that ended with a whole
 * answer in the counted time, "flow" those that came in it. One JSON object goes to standard output. */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

enum { BODIES_MOST = 8, STATUS_MOST = 600, TAIL_BYTES = 512, PACE_US = 1000 };

/* Where a request is broken off. */
typedef enum stage {
    STAGE_CONNECTED, /* nothing was sent */
    STAGE_HALF_SENT, /* half of the request */
    STAGE_SENT,      /* the whole request, then at once */
    STAGE_DELAY,     /* some time after it: queued, in its prompt or in its answer */
    STAGE_EVENT,     /* after some event of the stream */
    STAGE_LAST,      /* with the event that has the usage, the last one before [DONE] */
    STAGE_DONE,      /* with [DONE], before the reply's own end */
    STAGE_ASKED,     /* not by the client: POST /abort_request, and the reply is read to its end */
    STAGE_COUNT,
    STAGE_NONE = STAGE_COUNT,
} stage;

static const char *const stage_names[] = {"connected", "half_sent", "sent", "delay", "event", "last", "done", "asked", "none"};

/* CHUNK_END: the line end behind a chunk. TRAILER: the empty line that ends a chunked reply. */
typedef enum parse_state { PARSE_HEAD, PARSE_LENGTH, PARSE_CHUNK_SIZE, PARSE_CHUNK, PARSE_CHUNK_END, PARSE_TRAILER } parse_state;

/* Latencies in milliseconds. */
typedef struct series {
    double *values;
    size_t count, capacity;
} series;

typedef struct load load;

/* A connection, and the request it carries. */
typedef struct client {
    load *load;
    struct client *next_free;
    struct bufferevent *connection; /* NULL: none */
    struct event *timer;            /* STAGE_DELAY; made when needed */
    bool busy;
    bool idle_probe;                /* one of --idle */
    bool helper;                    /* sends /abort_request; not counted */
    stage stage;
    int stage_events;               /* STAGE_EVENT, STAGE_ASKED: after so many */
    uint64_t number;                /* of the request */
    uint64_t sent_us, first_us, last_us; /* of the request's events */
    int events;
    int tokens;                     /* so far, as far as events with usage say */
    int status;
    parse_state state;
    size_t left;                    /* bytes of the body or chunk */
    bool chunked;
    bool close_after;               /* the server said Connection: close */
    bool at_line_start;
    char tail[TAIL_BYTES + 1];      /* the last bytes of the body */
    size_t tail_length;
} client;

typedef struct options {
    int port;
    const char *path;
    const char *body_files[BODIES_MOST];
    int body_count;
    int clients, idle;
    double rate, seconds, warm_up, aborts;
    uint64_t requests, first;
    const char *stages;
    bool hold;
} options;

struct load {
    options o;
    text bodies[BODIES_MOST];
    stage stages[STAGE_COUNT];
    int stage_count;
    struct event_base *base;
    struct event *pace;      /* open loop */
    client **clients;
    size_t client_count, client_capacity;
    client *free_list;
    uint64_t started_us, counted_us, end_us; /* counting begins at counted_us */
    uint64_t sent, ended;    /* requests */
    int idle_open, idle_failed, idle_alive; /* of --idle */
    int held;                /* --hold: clients that are connected, or could not connect; -1: requests are sent */
    /* within the counted time: */
    uint64_t statuses[STATUS_MOST]; /* index 0: no whole reply */
    uint64_t broken[STAGE_COUNT + 1];
    uint64_t good, tokens, events;
    uint64_t flow;           /* tokens that came, of any request; only events with usage tell (continuous_usage_stats) */
    series good_ms, refused_ms, first_ms, gap_ms;
};

static void request_begin(client *c);
static void client_close(client *c);

static void series_add(series *s, double value)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 1024;
        s->values = mem_grow(s->values, s->capacity, sizeof *s->values);
    }
    s->values[s->count++] = value;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void series_print(const char *name, series *s)
{
    if (s->count)
        qsort(s->values, s->count, sizeof *s->values, compare_doubles);
    printf(", \"%s\": {\"count\": %zu", name, s->count);
    static const double parts[] = {0.5, 0.9, 0.99, 1.0};
    static const char *const names[] = {"p50", "p90", "p99", "max"};
    for (int i = 0; i < 4 && s->count; i++)
        printf(", \"%s\": %.3f", names[i], s->values[(size_t)(parts[i] * (double)(s->count - 1) + 0.5)]);
    printf("}");
}

static double lot(const client *c, uint64_t what)
{
    return random_uniform(11, c->number, what);
}

static bool counted(const load *l, uint64_t now)
{
    return now >= l->counted_us && (l->end_us == 0 || now <= l->end_us);
}

static bool may_send(const load *l, uint64_t now)
{
    return (l->o.requests == 0 || l->sent < l->o.requests) && (l->end_us == 0 || now < l->end_us);
}

static void stop_when_over(load *l)
{
    uint64_t now = clock_now_us();
    if (!may_send(l, now) && l->ended == l->sent)
        event_base_loopbreak(l->base);
}

/* ---- the end of a request */

static int usage_tokens(const client *c)
{
    static const char key[] = "\"completion_tokens\":";
    const char *found = NULL;
    for (const char *p = c->tail; (p = strstr(p, key)) != NULL; p += sizeof key - 1)
        found = p + sizeof key - 1;
    return found ? atoi(found) : 0;
}

static void request_count(client *c, bool whole)
{
    load *l = c->load;
    uint64_t now = clock_now_us();
    if (!counted(l, now))
        return;
    double ms = (double)(now - c->sent_us) / 1000.0;
    l->statuses[whole && c->status < STATUS_MOST ? c->status : 0]++;
    if (whole && c->status == 200) {
        l->good++;
        l->tokens += (uint64_t)usage_tokens(c);
        series_add(&l->good_ms, ms);
    } else if (whole && (c->status == 503 || c->status == 429)) {
        series_add(&l->refused_ms, ms);
    }
}

/* Takes the client's next request, or lays the client down. */
static void client_go_on(client *c)
{
    load *l = c->load;
    if (l->o.rate > 0 || l->o.hold) {
        c->next_free = l->free_list;
        l->free_list = c;
    } else if (may_send(l, clock_now_us())) {
        request_begin(c);
        return;
    }
    stop_when_over(l);
}

static void request_end(client *c, bool whole)
{
    bool helper = c->helper;
    c->busy = false;
    if (c->timer)
        event_del(c->timer);
    if (!whole || c->close_after || helper)
        client_close(c);
    if (helper)
        return;
    if (c->idle_probe) {
        c->load->idle_alive += whole && c->status == 200;
        if (++c->load->ended == c->load->sent)
            event_base_loopbreak(c->load->base);
        return;
    }
    if (c->stage == STAGE_NONE || c->stage == STAGE_ASKED)
        request_count(c, whole);
    c->load->broken[c->stage]++;
    c->load->ended++;
    client_go_on(c);
}

/* The client's own end of it. */
static void request_break(client *c)
{
    request_end(c, false);
}

/* ---- reading a reply */

static void ask_to_abort(client *c);

/* An event of a stream began. Returns false when the request was broken off here. */
static bool event_seen(client *c)
{
    uint64_t now = clock_now_us();
    bool counts = counted(c->load, now) && c->status == 200;
    if (c->events++ == 0) {
        c->first_us = now;
        if (counts)
            series_add(&c->load->first_ms, (double)(now - c->sent_us) / 1000.0);
    } else if (counts) {
        series_add(&c->load->gap_ms, (double)(now - c->last_us) / 1000.0);
    }
    c->last_us = now;
    c->load->events += counts;
    if (c->stage == STAGE_ASKED && c->events == c->stage_events)
        ask_to_abort(c);
    if (c->stage != STAGE_EVENT || c->events < c->stage_events)
        return true;
    request_break(c);
    return false;
}

static void tail_add(client *c, const char *bytes, size_t count)
{
    if (count >= TAIL_BYTES) {
        memcpy(c->tail, bytes + count - TAIL_BYTES, TAIL_BYTES);
        c->tail_length = TAIL_BYTES;
    } else {
        size_t keep = c->tail_length + count > TAIL_BYTES ? TAIL_BYTES - count : c->tail_length;
        memmove(c->tail, c->tail + c->tail_length - keep, keep);
        memcpy(c->tail + keep, bytes, count);
        c->tail_length = keep + count;
    }
    c->tail[c->tail_length] = 0;
}

/* Takes bytes of the body. Returns false when the request was broken off. */
static bool body_seen(client *c, const char *bytes, size_t count)
{
    tail_add(c, bytes, count);
    for (size_t i = 0; i < count; i++) {
        if (c->at_line_start && bytes[i] == 'd' && !event_seen(c))
            return false;
        c->at_line_start = bytes[i] == '\n';
    }
    int tokens = usage_tokens(c);
    if (tokens > c->tokens && counted(c->load, clock_now_us()))
        c->load->flow += (uint64_t)(tokens - c->tokens);
    c->tokens = tokens > c->tokens ? tokens : c->tokens;
    if ((c->stage == STAGE_LAST && tokens > 0) || (c->stage == STAGE_DONE && strstr(c->tail, "[DONE]"))) {
        request_break(c);
        return false;
    }
    return true;
}

static void parse_head_line(client *c, const char *line)
{
    if (c->status == 0)
        c->status = strlen(line) >= 12 ? atoi(line + 9) : 0;
    else if (evutil_ascii_strncasecmp(line, "content-length:", 15) == 0)
        c->left = (size_t)strtoull(line + 15, NULL, 10);
    else if (evutil_ascii_strncasecmp(line, "transfer-encoding:", 18) == 0)
        c->chunked = true;
    else if (evutil_ascii_strncasecmp(line, "connection: close", 17) == 0)
        c->close_after = true;
    else if (line[0] == 0)
        c->state = c->chunked ? PARSE_CHUNK_SIZE : PARSE_LENGTH;
}

/* Takes one line of the head or around a chunk. Returns false when there is none, or the request has ended. */
static bool parse_line(client *c, struct evbuffer *in)
{
    char *line = evbuffer_readln(in, NULL, EVBUFFER_EOL_CRLF);
    if (!line)
        return false;
    bool ended = c->state == PARSE_TRAILER && line[0] == 0;
    if (c->state == PARSE_HEAD) {
        parse_head_line(c, line);
    } else if (c->state == PARSE_CHUNK_SIZE) {
        c->left = (size_t)strtoull(line, NULL, 16);
        c->state = c->left ? PARSE_CHUNK : PARSE_TRAILER;
    } else if (c->state == PARSE_CHUNK_END) {
        c->state = PARSE_CHUNK_SIZE;
    }
    free(line);
    if (ended)
        request_end(c, true);
    return !ended;
}

/* Takes bytes of the body. Returns false when more are needed, or the request has ended. */
static bool parse_body(client *c, struct evbuffer *in)
{
    size_t have = evbuffer_get_length(in), take = have < c->left ? have : c->left;
    if (take > 0) {
        if (!body_seen(c, (const char *)evbuffer_pullup(in, (ev_ssize_t)take), take))
            return false;
        c->left -= take;
        evbuffer_drain(in, take);
    }
    if (c->left > 0)
        return false;
    if (c->state == PARSE_CHUNK) {
        c->state = PARSE_CHUNK_END;
        return true;
    }
    request_end(c, true);
    return false;
}

static void on_read(struct bufferevent *connection, void *context)
{
    client *c = context;
    struct evbuffer *in = bufferevent_get_input(connection);
    while (c->busy && c->connection == connection) {
        bool more = c->state == PARSE_LENGTH || c->state == PARSE_CHUNK ? parse_body(c, in) : parse_line(c, in);
        if (!more)
            return;
    }
}

/* ---- connections */

static void start_held(load *l);

static void on_event(struct bufferevent *connection, short what, void *context)
{
    (void)connection;
    client *c = context;
    load *l = c->load;
    bool connected = what & BEV_EVENT_CONNECTED;
    if (!connected && c->busy)
        request_end(c, false);
    else if (!connected)
        client_close(c);
    else if (c->busy && c->stage == STAGE_CONNECTED)
        request_break(c);
    if (c->idle_probe && l->started_us == 0) {
        *(connected ? &l->idle_open : &l->idle_failed) += 1;
        if (l->idle_open + l->idle_failed == l->o.idle)
            event_base_loopbreak(l->base);
    } else if (l->o.hold && !c->idle_probe && l->held >= 0 && ++l->held == l->o.clients) {
        start_held(l);
    }
}

static void client_open(client *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)c->load->o.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->connection = bufferevent_socket_new(c->load->base, -1, BEV_OPT_CLOSE_ON_FREE);
    bufferevent_setcb(c->connection, on_read, NULL, on_event, c);
    bufferevent_enable(c->connection, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(c->connection, (struct sockaddr *)&address, sizeof address) != 0) {
        fprintf(stderr, "bench_serve: connect: %s\n", strerror(errno));
        exit(1);
    }
    int on = 1;
    setsockopt(bufferevent_getfd(c->connection), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Closing with unread bytes resets the connection, as a client that was killed does. */
static void client_close(client *c)
{
    if (c->connection)
        bufferevent_free(c->connection);
    c->connection = NULL;
}

static client *client_create(load *l)
{
    client *c = mem_alloc(1, sizeof *c);
    c->load = l;
    c->stage = STAGE_NONE;
    if (l->client_count == l->client_capacity) {
        l->client_capacity = l->client_capacity ? 2 * l->client_capacity : 1024;
        l->clients = mem_grow(l->clients, l->client_capacity, sizeof(client *));
    }
    return l->clients[l->client_count++] = c;
}

/* ---- sending */

static void on_delay(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    client *c = context;
    if (c->busy)
        request_break(c);
}

/* The body of a request: the file with its number filled in. */
static void body_make(const client *c, text *out)
{
    static const char mark[] = "@I@";
    const char *p = c->load->bodies[c->number % (uint64_t)c->load->o.body_count].data;
    for (const char *at; (at = strstr(p, mark)) != NULL; p = at + sizeof mark - 1) {
        text_add(out, p, (size_t)(at - p));
        text_add_format(out, "%llu", (unsigned long long)c->number);
    }
    text_add_text(out, p);
}

static void send_request(client *c, const char *method, const char *path, const char *body, double share)
{
    text t = {0};
    text_add_format(&t, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", method,
                    path, c->load->o.port, strlen(body), body);
    bufferevent_write(c->connection, t.data, (size_t)((double)t.length * share));
    text_free(&t);
    c->status = c->events = c->tokens = 0;
    c->state = PARSE_HEAD;
    c->left = c->tail_length = 0;
    c->chunked = c->close_after = false;
    c->at_line_start = true;
    c->sent_us = clock_now_us();
    c->busy = true;
}

static void ask_to_abort(client *c)
{
    char body[64];
    snprintf(body, sizeof body, "{\"rid\": \"r%llu\"}", (unsigned long long)c->number);
    client *helper = client_create(c->load);
    helper->helper = true;
    client_open(helper);
    send_request(helper, "POST", "/abort_request", body, 1.0);
}

static void stage_draw(client *c)
{
    load *l = c->load;
    c->stage = STAGE_NONE;
    if (lot(c, 0) >= l->o.aborts)
        return;
    c->stage = l->stages[(int)(lot(c, 1) * l->stage_count)];
    c->stage_events = 1 + (int)(lot(c, 2) * 12.0);
}

static void flush_written(struct bufferevent *connection, void *context)
{
    client *c = context;
    bufferevent_setcb(connection, on_read, NULL, on_event, c);
    if (c->busy)
        request_break(c);
}

static void request_begin(client *c)
{
    load *l = c->load;
    c->number = l->o.first + l->sent++;
    stage_draw(c);
    if (c->stage == STAGE_CONNECTED)
        client_close(c);
    if (!c->connection)
        client_open(c);
    if (c->stage == STAGE_CONNECTED) {
        c->busy = true;
        return;
    }
    text body = {0};
    body_make(c, &body);
    send_request(c, "POST", l->o.path, body.data, c->stage == STAGE_HALF_SENT ? 0.5 : 1.0);
    text_free(&body);
    if (c->stage == STAGE_HALF_SENT || c->stage == STAGE_SENT)
        bufferevent_setcb(c->connection, on_read, flush_written, on_event, c);
    if (c->stage == STAGE_DELAY) {
        struct timeval wait = {0, (suseconds_t)(lot(c, 3) * 300e3)};
        if (!c->timer)
            c->timer = evtimer_new(l->base, on_delay, c);
        evtimer_add(c->timer, &wait);
    }
}

static void start_held(load *l)
{
    l->held = -1;
    for (size_t i = 0, count = l->client_count; i < count; i++)
        if (!l->clients[i]->idle_probe)
            request_begin(l->clients[i]);
}

/* Open loop: sends what is due by now. */
static void on_pace(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    load *l = context;
    uint64_t now = clock_now_us();
    double due = l->o.rate * (double)(now - l->started_us) / 1e6;
    while ((double)l->sent < due && may_send(l, now)) {
        client *c = l->free_list;
        if (c)
            l->free_list = c->next_free;
        else
            c = client_create(l);
        request_begin(c);
    }
    stop_when_over(l);
}

static void on_end(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    stop_when_over(context);
}

/* ---- phases */

static void idle_open_all(load *l)
{
    for (int i = 0; i < l->o.idle; i++) {
        client *c = client_create(l);
        c->idle_probe = true;
        client_open(c);
        if (i % 256 == 255) /* the server's backlog is finite */
            event_base_loop(l->base, EVLOOP_NONBLOCK);
    }
    if (l->idle_open + l->idle_failed < l->o.idle)
        event_base_dispatch(l->base);
}

static void idle_ask_all(load *l)
{
    l->sent = l->ended = 0;
    for (size_t i = 0; i < l->client_count; i++) {
        client *c = l->clients[i];
        if (!c->idle_probe || !c->connection)
            continue;
        l->sent++;
        send_request(c, "GET", "/health", "", 1.0);
    }
    if (l->sent > 0)
        event_base_dispatch(l->base);
}

static void run(load *l)
{
    l->started_us = clock_now_us();
    l->counted_us = l->started_us + (uint64_t)(l->o.warm_up * 1e6);
    l->end_us = l->o.seconds > 0 ? l->counted_us + (uint64_t)(l->o.seconds * 1e6) : 0;
    struct event *end = evtimer_new(l->base, on_end, l);
    struct timeval until = {(time_t)(l->o.warm_up + l->o.seconds) + 1, 0}, period = {0, PACE_US};
    if (l->end_us)
        evtimer_add(end, &until);
    if (l->o.rate > 0) {
        l->pace = event_new(l->base, -1, EV_PERSIST, on_pace, l);
        event_add(l->pace, &period);
    }
    for (int i = 0; i < l->o.clients && l->o.rate <= 0; i++) {
        client *c = client_create(l);
        if (l->o.hold)
            client_open(c);
        else if (may_send(l, clock_now_us()))
            request_begin(c);
    }
    event_base_dispatch(l->base);
    if (l->pace)
        event_free(l->pace);
    event_free(end);
}

static void report(load *l, double seconds)
{
    printf("{\"seconds\": %.3f, \"good\": %llu, \"tokens\": %llu, \"events\": %llu, \"tokens_per_s\": %.2f, "
           "\"flow_tokens_per_s\": %.2f", seconds, (unsigned long long)l->good, (unsigned long long)l->tokens,
           (unsigned long long)l->events, (double)l->tokens / seconds, (double)l->flow / seconds);
    printf(", \"statuses\": {");
    const char *comma = "";
    for (int i = 0; i < STATUS_MOST; i++)
        if (l->statuses[i]) {
            printf("%s\"%d\": %llu", comma, i, (unsigned long long)l->statuses[i]);
            comma = ", ";
        }
    printf("}, \"stages\": {");
    for (int i = 0; i <= STAGE_COUNT; i++)
        printf("%s\"%s\": %llu", i ? ", " : "", stage_names[i], (unsigned long long)l->broken[i]);
    printf("}, \"idle_open\": %d, \"idle_alive\": %d, \"connections\": %zu", l->idle_open, l->idle_alive, l->client_count);
    series_print("good_ms", &l->good_ms);
    series_print("refused_ms", &l->refused_ms);
    series_print("first_ms", &l->first_ms);
    series_print("gap_ms", &l->gap_ms);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf(", \"generator_cpu_s\": %.3f}\n", (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                                                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
}

static void usage_error(const char *words, const char *what)
{
    fprintf(stderr, "bench_serve: %s %s; the head of bench/bench_serve.c lists the options\n", words, what);
    exit(2);
}

static void body_read(text *out, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        usage_error("cannot read", path);
    char block[4096];
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;)
        text_add(out, block, n);
    fclose(f);
}

static void stages_read(load *l)
{
    for (int i = 0; i < STAGE_COUNT; i++) {
        const char *found = l->o.stages ? strstr(l->o.stages, stage_names[i]) : stage_names[i];
        if (found)
            l->stages[l->stage_count++] = (stage)i;
    }
    if (l->stage_count == 0)
        usage_error("no stage in", l->o.stages);
}

/* Numbers are taken as given: this is a tool for bench/serve_load.py. */
static void options_read(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--hold") == 0) {
            o->hold = true;
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            usage_error("no value after", name);
        else if (strcmp(name, "--port") == 0)
            o->port = atoi(value);
        else if (strcmp(name, "--path") == 0)
            o->path = value;
        else if (strcmp(name, "--body") == 0 && o->body_count < BODIES_MOST)
            o->body_files[o->body_count++] = value;
        else if (strcmp(name, "--clients") == 0)
            o->clients = atoi(value);
        else if (strcmp(name, "--idle") == 0)
            o->idle = atoi(value);
        else if (strcmp(name, "--rate") == 0)
            o->rate = atof(value);
        else if (strcmp(name, "--seconds") == 0)
            o->seconds = atof(value);
        else if (strcmp(name, "--warm-up") == 0)
            o->warm_up = atof(value);
        else if (strcmp(name, "--aborts") == 0)
            o->aborts = atof(value);
        else if (strcmp(name, "--stages") == 0)
            o->stages = value;
        else if (strcmp(name, "--requests") == 0)
            o->requests = strtoull(value, NULL, 10);
        else if (strcmp(name, "--first") == 0)
            o->first = strtoull(value, NULL, 10);
        else
            usage_error("unknown option", name);
    }
    if (o->port <= 0 || o->body_count == 0 || (o->clients <= 0 && o->rate <= 0))
        usage_error("needed:", "--port, --body, and --clients or --rate");
    if (o->hold)
        o->requests = (uint64_t)o->clients;
    if (o->seconds <= 0 && o->requests == 0)
        usage_error("needed:", "--seconds or --requests");
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    load l = {.o = {.path = "/v1/completions"}};
    options_read(&l.o, argc, argv);
    stages_read(&l);
    for (int i = 0; i < l.o.body_count; i++)
        body_read(&l.bodies[i], l.o.body_files[i]);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    l.base = event_base_new();
    if (!l.base)
        usage_error("no", "event base");
    idle_open_all(&l);
    run(&l);
    uint64_t now = clock_now_us();
    double seconds = (double)((l.end_us && l.end_us < now ? l.end_us : now) - l.counted_us) / 1e6;
    if (l.o.idle > 0)
        idle_ask_all(&l);
    report(&l, seconds > 0 ? seconds : 1e-6);
    return 0;
}
