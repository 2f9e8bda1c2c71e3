#include "serve/server.h"

#include <errno.h>
#include <event2/util.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "serve/dispatch.h"
#include "serve/generation.h"
#include "serve/handlers.h"

enum {
    EVENTS_AT_ONCE = 64,       /* taken from the engine with one call */
    EVENTS_PER_TURN = 4096,    /* before connections get their turn */
    DRAIN_LOOK_US = 20000,     /* how often the end of the drain is looked for */
    ABORT_GRACE_S = 5,         /* for telling clients that their requests were aborted */
    SECOND_GRACE_S = 1,        /* the same after a second signal */
    SPARE_DESCRIPTORS = 64,    /* open files that are not connections */
    DEFAULT_DRAIN_S = 30,
};

typedef struct server_loop {
    struct event *signals[2];  /* SIGTERM, SIGINT; NULL outside server_run */
    struct event *wake;        /* the engine has events */
    struct event *tick;        /* every second */
    struct event *drain;       /* while draining */
    int wake_read, wake_write; /* a pipe */
    atomic_bool woken;         /* a byte is in the pipe: no need for another one */
    int signal_count;
    bool aborting, broken_off;
    uint64_t drain_until_us, abort_until_us;
} server_loop;

/* ---- the engine */

void server_wake(void *context)
{
    server *s = context;
    server_loop *l = s->loop;
    if (atomic_exchange(&l->woken, true))
        return;
    ssize_t n;
    do
        n = write(l->wake_write, "", 1);
    while (n < 0 && errno == EINTR);
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    server *s = context;
    char bytes[64];
    engine_event events[EVENTS_AT_ONCE];
    int taken = 0, n = 0;
    (void)what;
    while (read(fd, bytes, sizeof bytes) > 0) {
    }
    atomic_store(&s->loop->woken, false); /* before the events are taken: one that comes later wakes again */
    while (s->engine && taken < EVENTS_PER_TURN && (n = engine_poll(s->engine, events, EVENTS_AT_ONCE)) > 0) {
        for (int i = 0; i < n; i++)
            generation_take(s, &events[i]);
        taken += n;
    }
    if (taken >= EVENTS_PER_TURN)
        server_wake(s);
    ops_flushes_take(s);
}

void server_set_engine(server *s, engine *e)
{
    s->engine = e;
    server_wake(s);
}

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    server *s = context;
    engine_counters counters;
    (void)fd;
    (void)what;
    if (!s->engine)
        return;
    engine_count(s->engine, &counters);
    metrics_tick(s->metrics, &counters, http_server_connections(s->http), clock_now_us());
}

/* ---- the end */

static void begin_abort(server *s, int grace_s, const char *why)
{
    server_loop *l = s->loop;
    l->abort_until_us = clock_now_us() + (uint64_t)grace_s * 1000000;
    if (l->aborting)
        return;
    l->aborting = true;
    log_warning("%s: %d requests are aborted", why, http_server_exchanges(s->http));
    if (s->engine)
        engine_cancel_all(s->engine);
}

static void on_drain(evutil_socket_t fd, short what, void *context)
{
    server *s = context;
    server_loop *l = s->loop;
    uint64_t now = clock_now_us();
    (void)fd;
    (void)what;
    if (http_server_exchanges(s->http) == 0 && !s->generations) {
        event_base_loopbreak(s->base);
    } else if (l->aborting && now >= l->abort_until_us) {
        l->broken_off = true;
        event_base_loopbreak(s->base);
    } else if (!l->aborting && now >= l->drain_until_us) {
        begin_abort(s, ABORT_GRACE_S, "the time for draining is over");
    }
}

static void begin_drain(server *s)
{
    server_loop *l = s->loop;
    struct timeval period = {0, DRAIN_LOOK_US};
    s->draining = true;
    l->drain_until_us = clock_now_us() + (uint64_t)(s->options.limits.drain_s * 1e6);
    if (s->engine)
        engine_close(s->engine);
    event_add(l->drain, &period);
    event_active(l->drain, EV_TIMEOUT, 0);
    if (http_server_exchanges(s->http) > 0)
        log_info("draining: %d requests are being answered; they have %.0f s, a second signal aborts them", http_server_exchanges(s->http),
                 s->options.limits.drain_s);
}

static void on_signal(evutil_socket_t number, short what, void *context)
{
    server *s = context;
    server_loop *l = s->loop;
    (void)number;
    (void)what;
    l->signal_count++;
    if (l->signal_count == 1) {
        begin_drain(s);
    } else if (l->signal_count == 2) {
        begin_abort(s, SECOND_GRACE_S, "second signal");
    } else {
        l->broken_off = true;
        event_base_loopbreak(s->base);
    }
}

/* ---- start and run */

/* Every connection is an open file; the soft limit is often far below the hard one. */
static void raise_open_files(server_options *o)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
            getrlimit(RLIMIT_NOFILE, &limit);
    }
    int wanted = o->http.max_connections > 0 ? o->http.max_connections : 16384;
    if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < (rlim_t)wanted + SPARE_DESCRIPTORS) {
        int possible = limit.rlim_cur > 2 * SPARE_DESCRIPTORS ? (int)limit.rlim_cur - SPARE_DESCRIPTORS : SPARE_DESCRIPTORS;
        log_detail("%d open files are allowed, so at most %d connections are accepted", (int)limit.rlim_cur, possible);
        o->http.max_connections = possible;
    }
}

static bool loop_create(server *s, error *err)
{
    server_loop *l = s->loop;
    int ends[2];
    if (pipe(ends) != 0)
        return error_set_errno(err, ERROR_RUNTIME, "cannot create a pipe for the server");
    l->wake_read = ends[0];
    l->wake_write = ends[1];
    for (int i = 0; i < 2; i++) {
        evutil_make_socket_nonblocking(ends[i]);
        evutil_make_socket_closeonexec(ends[i]);
    }
    struct timeval second = {1, 0};
    l->wake = event_new(s->base, l->wake_read, EV_READ | EV_PERSIST, on_wake, s);
    l->tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    l->drain = event_new(s->base, -1, EV_PERSIST, on_drain, s);
    return (l->wake && l->tick && l->drain && event_add(l->wake, NULL) == 0 && event_add(l->tick, &second) == 0) ||
           error_set(err, ERROR_RUNTIME, "libevent has no memory or no event mechanism");
}

static bool check_exposure(const server *s, error *err)
{
    if (http_server_is_loopback(s->http) || tenants_have_keys(s->tenants))
        return true;
    return error_set(err, ERROR_USAGE, "%s can be reached from other machines, so the server needs keys: write a file with a line "
                     "\"NAME KEY\" and give it with --api-keys, or listen on 127.0.0.1", http_server_host(s->http));
}

static bool open_parts(server *s, error *err)
{
    s->tenants = tenants_load(s->options.api_keys, err);
    if (!s->tenants)
        return false;
    s->base = event_base_new();
    if (!s->base)
        return error_set(err, ERROR_RUNTIME, "libevent has no memory or no event mechanism");
    s->http = http_server_create(s->base, &s->options.http, dispatch_request, s, err);
    if (!s->http || !check_exposure(s, err) || !loop_create(s, err))
        return false;
    s->metrics = metrics_create(s->options.model_name);
    dispatch_attach(s);
    return true;
}

server *server_create(const server_options *options, const server_parts *parts, error *err)
{
    server *s = mem_alloc(1, sizeof *s);
    s->loop = mem_alloc(1, sizeof *s->loop);
    s->loop->wake_read = s->loop->wake_write = -1;
    s->options = *options;
    server_limits *limits = &s->options.limits;
    limits->drain_s = limits->drain_s > 0 ? limits->drain_s : DEFAULT_DRAIN_S;
    limits->keep_alive_s = limits->keep_alive_s > 0 ? limits->keep_alive_s : 5;
    s->options.http.keep_alive_s = limits->keep_alive_s;
    s->engine = parts->engine;
    s->model = parts->model;
    s->tokenizer = parts->tokenizer;
    s->format = parts->format;
    s->defaults = parts->defaults;
    s->started_unix = (uint64_t)time(NULL);
    raise_open_files(&s->options);
    if (open_parts(s, err))
        return s;
    server_destroy(s);
    return NULL;
}

static bool catch_signals(server *s, error *err)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        s->loop->signals[i] = evsignal_new(s->base, numbers[i], on_signal, s);
        if (!s->loop->signals[i] || event_add(s->loop->signals[i], NULL) != 0)
            return error_set(err, ERROR_RUNTIME, "libevent cannot catch signals");
    }
    return true;
}

static void close_http(server *s)
{
    http_server_destroy(s->http);
    s->http = NULL;
}

bool server_run(server *s, error *err)
{
    server_loop *l = s->loop;
    bool ok = catch_signals(s, err);
    if (ok && event_base_dispatch(s->base) < 0)
        ok = error_set(err, ERROR_RUNTIME, "the event loop failed");
    if (l->broken_off)
        log_warning("%d requests were broken off", http_server_exchanges(s->http));
    event_del(l->tick);
    close_http(s);
    for (int i = 0; i < 2; i++)
        if (l->signals[i]) {
            event_free(l->signals[i]);
            l->signals[i] = NULL;
        }
    return ok;
}

void server_destroy(server *s)
{
    if (!s)
        return;
    server_loop *l = s->loop;
    close_http(s);
    struct event *events[] = {l->wake, l->tick, l->drain};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    if (l->wake_read >= 0) {
        close(l->wake_read);
        close(l->wake_write);
    }
    if (s->metrics)
        metrics_destroy(s->metrics);
    tenants_free(s->tenants);
    free(l);
    free(s);
}
