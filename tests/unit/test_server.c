/* The server's life cycle and what happens to every request, with an engine, APIs and metrics that are stubs of this file: start, keys,
 * hosts, origins, errors, waking, draining, aborting. The server runs in a thread of its own; the test is its clients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the above */
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "serve/dispatch.h"
#include "serve/generation.h"
#include "serve/handlers.h"

/* ---- stubs: an engine whose events come from the test */

enum { QUEUE = 20000 };

static struct {
    pthread_mutex_t lock;
    engine_event events[QUEUE];
    int first, count;
    atomic_bool closed, cancelled, deaf; /* deaf: cancelling has no effect */
} stub = {.lock = PTHREAD_MUTEX_INITIALIZER};

static server *web;
static http_exchange *held;      /* the stream of /v1/chat/completions; of the loop thread */
static atomic_int closed_count, http_count, tick_count;
static char last_path[64];

static void push_event(int32_t token, engine_finish finish)
{
    pthread_mutex_lock(&stub.lock);
    if (stub.count < QUEUE)
        stub.events[stub.count++] = (engine_event){.count = 1, .tokens = {token}, .finish = finish};
    pthread_mutex_unlock(&stub.lock);
    server_wake(web);
}

int engine_poll(engine *e, engine_event *events, int most)
{
    (void)e;
    pthread_mutex_lock(&stub.lock);
    int n = stub.count - stub.first < most ? stub.count - stub.first : most;
    memcpy(events, stub.events + stub.first, (size_t)n * sizeof *events);
    stub.first += n;
    pthread_mutex_unlock(&stub.lock);
    return n;
}

void engine_close(engine *e)
{
    (void)e;
    stub.closed = true;
}

void engine_cancel_all(engine *e)
{
    (void)e;
    stub.cancelled = true;
    if (!stub.deaf)
        push_event(0, ENGINE_CANCELLED);
}

void engine_count(engine *e, engine_counters *out)
{
    (void)e;
    *out = (engine_counters){0};
}

void generation_take(server *s, engine_event *ev)
{
    if (!held)
        return;
    server_send_event(held, ev->finish == ENGINE_CANCELLED ? "error" : NULL, json_pack("{s:i}", "token", (int)ev->tokens[0]));
    if (ev->finish == ENGINE_RUNNING)
        return;
    http_stream_end(held);
    held = NULL;
    s->generations = NULL;
}

metrics *metrics_create(const char *model_name)
{
    (void)model_name;
    return NULL;
}

void metrics_destroy(metrics *m)
{
    (void)m;
}

void metrics_http(metrics *m, const char *path, int status, uint64_t duration_us)
{
    (void)m;
    (void)status;
    (void)duration_us;
    pthread_mutex_lock(&stub.lock);
    snprintf(last_path, sizeof last_path, "%s", path);
    pthread_mutex_unlock(&stub.lock);
    atomic_fetch_add(&http_count, 1);
}

void metrics_tick(metrics *m, const engine_counters *c, int connections, uint64_t now_us)
{
    (void)m;
    (void)c;
    (void)connections;
    (void)now_us;
    atomic_fetch_add(&tick_count, 1);
}

static void on_closed(void *context)
{
    server *s = context;
    held = NULL;
    s->generations = NULL;
    atomic_fetch_add(&closed_count, 1);
}

void handle_openai_chat(server *s, http_exchange *x, const tenant *who)
{
    (void)who;
    held = x;
    s->generations = (struct generation *)(void *)x; /* only whether it is NULL is looked at */
    http_on_closed(x, on_closed, s);
    http_stream_begin(x, 200, "text/event-stream");
    http_stream_write(x, ": hello\n\n", 9);
}

/* Replies with who asked and what. */
static void handle_other(server *s, http_exchange *x, const tenant *who)
{
    json_t *body = strcmp(http_method(x), "POST") == 0 ? server_body(s, x) : json_object();
    if (body)
        server_reply_json(x, 200, json_pack("{s:s, s:s, s:o}", "who", who ? who->name : "nobody", "path", http_path(x), "body", body));
}

#define STUB_HANDLER(name)                                          \
    void name(server *s, http_exchange *x, const tenant *who)       \
    {                                                               \
        handle_other(s, x, who);                                    \
    }

STUB_HANDLER(handle_openai_completions)
STUB_HANDLER(handle_models)
STUB_HANDLER(handle_anthropic_messages)
STUB_HANDLER(handle_anthropic_count)
STUB_HANDLER(handle_generate)
STUB_HANDLER(handle_tokenize)
STUB_HANDLER(handle_detokenize)
STUB_HANDLER(handle_metrics)
STUB_HANDLER(handle_server_info)
STUB_HANDLER(handle_loads)
STUB_HANDLER(handle_flush_cache)
STUB_HANDLER(handle_abort_request)
STUB_HANDLER(handle_page)
STUB_HANDLER(handle_dashboard)

void ops_flushes_take(server *s)
{
    (void)s;
}

/* ---- a server in a thread, and clients that wait */

static pthread_t thread;
static int port;
static bool ran_well;

static void *run(void *context)
{
    error err = {0};
    (void)context;
    ran_well = server_run(web, &err);
    return NULL;
}

static void start(server_options options, bool with_engine)
{
    error err = {0};
    static int engine_stands_for;
    server_parts parts = {.engine = with_engine ? (engine *)(void *)&engine_stands_for : NULL};
    stub.first = stub.count = 0;
    atomic_store(&stub.closed, false);
    atomic_store(&stub.cancelled, false);
    atomic_store(&stub.deaf, false);
    atomic_store(&closed_count, 0);
    atomic_store(&http_count, 0);
    options.http.port = -1;
    options.model_name = "stub";
    web = server_create(&options, &parts, &err);
    if (!web)
        print_error("%s\n", err.text);
    assert_non_null(web);
    port = http_server_port(web->http);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
}

static int dial(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct timeval long_enough = {60, 0};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &long_enough, sizeof long_enough);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Reads until `words`, or, when NULL, until the end. False when the end came first. */
static bool receive(int fd, text *in, const char *words)
{
    char bytes[4096];
    size_t from = in->length;
    while (!words || !in->data || !strstr(in->data + from, words)) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n <= 0)
            return false;
        text_add(in, bytes, (size_t)n);
    }
    return true;
}

/* One request on a connection of its own; the whole reply in a static buffer. */
static const char *ask(const char *line, const char *headers, const char *body)
{
    static char reply[65536];
    text request = {0}, in = {0};
    int fd = dial();
    assert_true(fd >= 0);
    text_add_format(&request, "%s HTTP/1.1\r\n%sConnection: close\r\n", line, headers);
    if (!strstr(headers, "Host:"))
        text_add_format(&request, "Host: localhost:%d\r\n", port);
    if (body)
        text_add_format(&request, "Content-Length: %zu\r\n", strlen(body));
    text_add_format(&request, "\r\n%s", body ? body : "");
    assert_int_equal(send(fd, request.data, request.length, MSG_NOSIGNAL), request.length);
    receive(fd, &in, NULL);
    snprintf(reply, sizeof reply, "%s", in.data ? in.data : "");
    text_free(&request);
    text_free(&in);
    close(fd);
    return reply;
}

static void expect(const char *reply, const char *words)
{
    if (!strstr(reply, words))
        print_error("expected: %s\nfound: %s\n", words, reply);
    assert_non_null(strstr(reply, words));
}

static void expect_not(const char *reply, const char *words)
{
    if (strstr(reply, words))
        print_error("not expected: %s\nfound: %s\n", words, reply);
    assert_null(strstr(reply, words));
}

/* What the metrics were told. */
static void expect_last_path(const char *path)
{
    pthread_mutex_lock(&stub.lock);
    bool same = strcmp(last_path, path) == 0;
    pthread_mutex_unlock(&stub.lock);
    assert_true(same);
}

static void rest(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void finish(void)
{
    pthread_join(thread, NULL);
    assert_true(ran_well);
    assert_null(web->http);
    server_destroy(web);
    web = NULL;
}

static void stop(void)
{
    ask("GET /health", "", NULL); /* the signal is caught once the loop runs */
    kill(getpid(), SIGTERM);
    finish();
}

/* Opens a stream that the engine's events fill. */
static int open_stream(text *in)
{
    int fd = dial();
    char request[128];
    snprintf(request, sizeof request, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}");
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    assert_true(receive(fd, in, ": hello\n\n"));
    return fd;
}

/* ---- tests */

static void test_routes(void **state)
{
    (void)state;
    start((server_options){0}, true);
    static const char *const health[] = {"GET /health", "GET /healthz", "GET /ping", "HEAD /health", "GET /readyz"};
    for (size_t i = 0; i < sizeof health / sizeof *health; i++)
        expect(ask(health[i], "", NULL), "HTTP/1.1 200 OK");
    expect(ask("GET /health", "", NULL), "{\"status\":\"ok\"}");
    expect_not(ask("HEAD /health", "", NULL), "status");
    expect(ask("GET /version", "", NULL), "\"version\"");
    expect(ask("GET /v1/models/a%2Fb", "", NULL), "\"path\":\"/v1/models/a/b\"");
    expect_last_path("/v1/models/*");
    expect(ask("GET /v1/models/", "", NULL), "HTTP/1.1 404");
    expect(ask("GET /n\303\266", "", NULL), "HTTP/1.1 400");
    const char *reply = ask("GET /no%20where", "x-request-id: it-is-me\r\n", NULL);
    expect(reply, "HTTP/1.1 404 Not Found");
    expect(reply, "{\"error\":{\"message\":\"There is nothing at /no where.\",\"type\":\"not_found_error\",\"param\":null,\"code\":null}}");
    expect(reply, "X-Request-Id: it-is-me\r\n");
    expect(reply, "X-Content-Type-Options: nosniff\r\n");
    expect_last_path("other");
    reply = ask("DELETE /flush_cache", "", NULL);
    expect(reply, "HTTP/1.1 405");
    expect(reply, "Allow: GET, HEAD, POST, OPTIONS\r\n");
    reply = ask("GET /v1/messages", "x-request-id: it-is-me\r\n", NULL);
    expect(reply, "HTTP/1.1 405");
    expect(reply, "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":");
    expect(reply, "\"request_id\":\"it-is-me\"}");
    expect(ask("BREW /health", "", NULL), "HTTP/1.1 501");
    expect(ask("OPTIONS *", "", NULL), "HTTP/1.1 204");
    expect(ask("OPTIONS /health", "", NULL), "Allow: GET, HEAD, OPTIONS\r\n");
    stop();
}

static void test_bodies(void **state)
{
    (void)state;
    start((server_options){.http.body_bytes = 1000}, true);
    expect(ask("POST /generate", "", "{\"a\":1}"), "\"body\":{\"a\":1}");
    static const struct {
        const char *headers, *body, *status, *words;
    } cases[] = {
        {"", "", "400", "has no body"},
        {"", "[1]", "400", "expected a JSON object, found an array"},
        {"", "{\"a\":1,\"a\":2}", "400", "not valid JSON at line 1"},
        {"", "{\"a\":\"\xff\"}", "400", "not valid JSON"},
        {"Content-Encoding: gzip\r\n", "{}", "415", "Content-Encoding gzip"},
        {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", NULL, "400", "both Content-Length"},
        {"Content-Length: 5000\r\n", NULL, "413", "request_too_large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *reply = ask("POST /generate", cases[i].headers, cases[i].body);
        expect(reply, cases[i].status);
        expect(reply, cases[i].words);
        expect(reply, "{\"error\":{\"message\":");
        expect(reply, "X-Request-Id: ");
    }
    expect(ask("POST /v1/messages", "Content-Length: 5000\r\n", NULL),
           "{\"type\":\"error\",\"error\":{\"type\":\"request_too_large\"");
    stop();
}

static void test_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/test_server_XXXXXX";
    int fd = mkstemp(path);
    const char *keys = "alice sk-alice admin\nbob sk-bob\n";
    assert_int_equal(write(fd, keys, strlen(keys)), strlen(keys));
    close(fd);
    start((server_options){.api_keys = path}, true);
    unlink(path);
    expect(ask("GET /health", "", NULL), "200 OK");
    expect(ask("GET /", "", NULL), "\"who\":\"nobody\"");
    const char *reply = ask("GET /v1/models", "", NULL);
    expect(reply, "HTTP/1.1 401");
    expect(reply, "WWW-Authenticate: Bearer realm=\"drawbridge\"\r\n");
    expect(reply, "\"type\":\"authentication_error\"");
    expect(reply, "An API key is needed");
    expect(ask("GET /v1/models", "x-api-key: sk-carol\r\n", NULL), "The API key is not right");
    expect(ask("GET /v1/models", "Authorization: Bearer sk-bob\r\n", NULL), "\"who\":\"bob\"");
    expect(ask("GET /v1/models", "x-api-key: sk-alice\r\n", NULL), "\"who\":\"alice\"");
    expect(ask("POST /v1/messages", "", "{}"), "{\"type\":\"error\",\"error\":{\"type\":\"authentication_error\"");
    reply = ask("POST /flush_cache", "x-api-key: sk-bob\r\n", "{}");
    expect(reply, "HTTP/1.1 403");
    expect(reply, "permission_error");
    expect(ask("POST /flush_cache", "x-api-key: sk-alice\r\n", "{}"), "HTTP/1.1 200");
    /* a body is not read for somebody without a key */
    expect(ask("POST /generate", "Content-Length: 500000\r\n", NULL), "HTTP/1.1 401");
    stop();
}

static void test_hosts_and_origins(void **state)
{
    (void)state;
    start((server_options){.allowed_hosts = "a.example, b.example:81", .allowed_origins = "https://page.example"}, true);
    expect(ask("GET /health", "Host: 127.0.0.1\r\n", NULL), "200 OK");
    expect(ask("GET /health", "Host: A.example:80\r\n", NULL), "200 OK");
    const char *reply = ask("GET /health", "Host: evil.example\r\n", NULL);
    expect(reply, "HTTP/1.1 421");
    expect(reply, "evil.example");
    expect(ask("GET /health", "Host: \xff\r\n", NULL), "The Host \\\"?\\\"");
    expect(ask("POST /generate", "Host: localhost:1\r\nOrigin: http://localhost:1\r\n", "{}"), "200 OK");
    reply = ask("POST /generate", "Host: localhost:1\r\nOrigin: http://localhost:2\r\n", "{}");
    expect(reply, "HTTP/1.1 403");
    expect_not(reply, "Access-Control-Allow-Origin");
    expect(ask("POST /generate", "Origin: null\r\n", "{}"), "HTTP/1.1 403");
    expect(ask("GET /flush_cache", "Sec-Fetch-Site: cross-site\r\n", NULL), "HTTP/1.1 403");
    expect(ask("GET /flush_cache", "Sec-Fetch-Site: same-origin\r\n", NULL), "HTTP/1.1 200");
    expect(ask("GET /", "Sec-Fetch-Site: cross-site\r\n", NULL), "HTTP/1.1 200");
    reply = ask("POST /generate", "Origin: https://page.example\r\n", "{}");
    expect(reply, "200 OK");
    expect(reply, "Access-Control-Allow-Origin: https://page.example\r\n");
    expect(reply, "Vary: Origin\r\n");
    reply = ask("OPTIONS /generate", "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n"
                                     "Access-Control-Request-Headers: authorization,x-stainless-os\r\n", NULL);
    expect(reply, "HTTP/1.1 204");
    expect(reply, "Access-Control-Allow-Headers: authorization,x-stainless-os\r\n");
    expect(reply, "Access-Control-Allow-Methods: POST, OPTIONS\r\n");
    expect(reply, "Access-Control-Allow-Origin: https://page.example\r\n");
    reply = ask("OPTIONS /generate", "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n", NULL);
    expect(reply, "HTTP/1.1 403");
    expect_not(reply, "Access-Control");
    stop();
}

static void test_host_names(void **state)
{
    (void)state;
    static const struct {
        const char *host, *bound;
        bool wildcard, ours;
    } cases[] = {
        {NULL, "127.0.0.1", false, true},
        {"localhost", "127.0.0.1", false, true},
        {"LOCALHOST.:8000", "127.0.0.1", false, true},
        {"127.0.0.1:8000", "127.0.0.1", false, true},
        {"127.1.2.3", "127.0.0.1", false, true},
        {"[::1]:8000", "::1", false, true},
        {"[::1]", "127.0.0.1", false, true},
        {"10.0.0.5:80", "10.0.0.5", false, true},
        {"10.0.0.6:80", "10.0.0.5", false, false},
        {"10.0.0.6:80", "0.0.0.0", true, true},
        {"[fe80::2]", "::", true, true},
        {"rebound.example", "0.0.0.0", true, false},
        {"localhost.evil.example", "127.0.0.1", false, false},
        {"127.0.0.1.evil.example", "127.0.0.1", false, false},
        {"evil.example:localhost", "127.0.0.1", false, false},
        {"localhost:80@evil", "127.0.0.1", false, false},
        {"[::1]evil", "127.0.0.1", false, false},
        {"", "127.0.0.1", false, false},
        {":8000", "127.0.0.1", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool ours = dispatch_host_is_ours(cases[i].host, cases[i].bound, cases[i].wildcard, NULL);
        if (ours != cases[i].ours)
            print_error("%s\n", cases[i].host);
        assert_int_equal(ours, cases[i].ours);
    }
    assert_true(dispatch_host_is_ours("any.example", "127.0.0.1", false, "*"));
    assert_true(dispatch_host_is_ours("b.example:81", "127.0.0.1", false, "a.example, b.example:81"));
    assert_false(dispatch_host_is_ours("b.example:82", "127.0.0.1", false, "a.example, b.example:81"));
}

static void test_exposure(void **state)
{
    (void)state;
    error err = {0};
    server_options options = {.http = {.host = "0.0.0.0", .port = -1}};
    server_parts parts = {0};
    assert_null(server_create(&options, &parts, &err));
    assert_int_equal(err.code, ERROR_USAGE);
    assert_non_null(strstr(err.text, "--api-keys"));
}

static void test_starting(void **state)
{
    (void)state;
    start((server_options){0}, false);
    expect(ask("GET /health", "", NULL), "200 OK");
    expect(ask("GET /readyz", "", NULL), "HTTP/1.1 503");
    const char *reply = ask("POST /generate", "", "{}");
    expect(reply, "HTTP/1.1 503");
    expect(reply, "Retry-After: 1\r\n");
    expect(reply, "overloaded_error");
    stop();
}

/* Every event of another thread arrives, in order. */
static void test_wake(void **state)
{
    (void)state;
    enum { EVENTS = 10000 };
    text in = {0};
    start((server_options){0}, true);
    int fd = open_stream(&in);
    for (int i = 1; i <= EVENTS; i++)
        push_event(i, i == EVENTS ? ENGINE_STOP : ENGINE_RUNNING);
    assert_true(receive(fd, &in, "data: {\"token\":10000}\n\n"));
    const char *at = in.data;
    for (int i = 1; i <= EVENTS; i++) {
        char words[64];
        snprintf(words, sizeof words, "data: {\"token\":%d}\n\n", i);
        at = strstr(at, words);
        assert_non_null(at);
    }
    close(fd);
    text_free(&in);
    stop();
}

static void test_drain(void **state)
{
    (void)state;
    text in = {0};
    start((server_options){0}, true);
    int fd = open_stream(&in);
    kill(getpid(), SIGTERM);
    while (strstr(ask("GET /readyz", "", NULL), "200 OK"))
        rest();
    const char *reply = ask("GET /readyz", "", NULL); /* connections are still taken */
    expect(reply, "HTTP/1.1 503");
    expect(reply, "draining");
    expect(reply, "Connection: close\r\n");
    expect(ask("GET /health", "", NULL), "200 OK");
    assert_true(stub.closed);
    push_event(1, ENGINE_RUNNING);
    assert_true(receive(fd, &in, "data: {\"token\":1}\n\n"));
    push_event(2, ENGINE_STOP); /* the stream ends as it would have */
    assert_true(receive(fd, &in, "0\r\n\r\n"));
    finish();
    assert_false(stub.cancelled);
    assert_int_equal(atomic_load(&closed_count), 0);
    assert_int_equal(dial(), -1);
    close(fd);
    text_free(&in);
}

static void test_abort(void **state)
{
    (void)state;
    for (int second_signal = 0; second_signal < 2; second_signal++) {
        text in = {0};
        start((server_options){.limits.drain_s = second_signal ? 1000 : 0.05}, true);
        int fd = open_stream(&in);
        kill(getpid(), SIGINT);
        while (second_signal && strstr(ask("GET /readyz", "", NULL), "200 OK"))
            rest();
        if (second_signal)
            kill(getpid(), SIGINT);
        assert_true(receive(fd, &in, "event: error\ndata: "));
        assert_true(strstr(in.data, "0\r\n\r\n") || receive(fd, &in, "0\r\n\r\n")); /* told, and ended properly */
        finish();
        assert_true(stub.cancelled);
        close(fd);
        text_free(&in);
    }
}

/* An engine that does not answer does not keep the server. */
static void test_broken_off(void **state)
{
    (void)state;
    text in = {0};
    start((server_options){.limits.drain_s = 1000}, true);
    int fd = open_stream(&in);
    stub.deaf = true;
    for (int i = 0; i < 2; i++) {
        kill(getpid(), SIGTERM);
        while (strstr(ask("GET /readyz", "", NULL), "200 OK"))
            rest();
    }
    finish();
    assert_int_equal(atomic_load(&closed_count), 1);
    assert_false(receive(fd, &in, "0\r\n\r\n"));
    close(fd);
    text_free(&in);
}

static void test_ticks(void **state)
{
    (void)state;
    int before = atomic_load(&tick_count);
    start((server_options){.log_json = true}, true);
    while (atomic_load(&tick_count) == before)
        rest();
    ask("GET /health", "", NULL);
    assert_true(atomic_load(&http_count) >= 1);
    stop();
}

int main(void)
{
    log_set_level(LOG_QUIET);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),   cmocka_unit_test(test_bodies), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_hosts_and_origins), cmocka_unit_test(test_host_names), cmocka_unit_test(test_exposure),
        cmocka_unit_test(test_starting), cmocka_unit_test(test_wake),   cmocka_unit_test(test_drain),
        cmocka_unit_test(test_abort),    cmocka_unit_test(test_broken_off), cmocka_unit_test(test_ticks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
