/* The HTTP server over real sockets on loopback, its loop pumped by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the above */
#include <cmocka.h>

#include <sys/resource.h>

#include "http_pump.h"
#include "serve/http.h"

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

/* The server under test and what its handler saw. */
static http_server *web;
static http_exchange *held; /* of /hold and /stream: the test answers it */
static int handled, closed_count, records;
static struct {
    int status;
    char method[16], path[64], id[65], note[128];
    size_t request_bytes, reply_bytes;
} last;
static bool refuse_heads;

static void on_closed(void *context)
{
    assert_ptr_equal(context, held);
    held = NULL;
    closed_count++;
}

static void hold(http_exchange *x)
{
    assert_null(held);
    held = x;
    http_on_closed(x, on_closed, x);
}

static void handle(void *context, http_exchange *x)
{
    const char *path = http_path(x);
    (void)context;
    handled++;
    if (strcmp(path, "/hold") == 0) {
        hold(x);
    } else if (strcmp(path, "/stream") == 0) {
        hold(x);
        http_stream_begin(x, 200, "text/event-stream");
    } else if (strcmp(path, "/big") == 0) {
        size_t bytes = strtoul(http_query(x, "bytes"), NULL, 10);
        char *body = calloc(bytes, 1);
        memset(body, 'x', bytes);
        http_reply(x, 200, "text/plain", body, bytes);
        free(body);
    } else if (strcmp(path, "/headers") == 0) {
        http_add_header(x, "X-One", "1\r\nX-Two: 2");
        assert_true(http_has_added_header(x, "x-one"));
        assert_false(http_has_added_header(x, "x-on"));
        http_note(x, "a=%d", 1);
        http_note(x, "b=%d", 2);
        http_reply(x, 204, NULL, "", 0);
    } else {
        text body = {0};
        text_add_format(&body, "<%s %s %.*s>", http_method(x), path, (int)http_body(x).length, http_body(x).data);
        http_reply(x, 200, "text/plain", body.data, body.length);
        text_free(&body);
    }
}

static void on_record(void *context, const http_record *r)
{
    (void)context;
    records++;
    last.status = r->status;
    snprintf(last.method, sizeof last.method, "%s", r->method);
    snprintf(last.path, sizeof last.path, "%s", r->path);
    snprintf(last.id, sizeof last.id, "%s", r->request_id);
    snprintf(last.note, sizeof last.note, "%s", r->note ? r->note : "");
    last.request_bytes = r->request_bytes;
    last.reply_bytes = r->reply_bytes;
    assert_true(text_starts_with(r->peer, "127.0.0.1:"));
}

static void on_head(void *context, http_exchange *x)
{
    (void)context;
    assert_int_equal(http_body(x).length, 0);
    if (refuse_heads)
        http_reply(x, 401, "text/plain", "no", 2);
}

static void start(http_options options)
{
    error err = {0};
    options.port = -1;
    pump_base = event_base_new();
    held = NULL;
    handled = closed_count = records = 0;
    refuse_heads = false;
    web = http_server_create(pump_base, &options, handle, NULL, &err);
    if (!web)
        print_error("%s\n", err.text);
    assert_non_null(web);
    http_server_on_record(web, on_record, NULL);
}

static void stop(void)
{
    http_server_destroy(web);
    event_base_free(pump_base);
    web = NULL;
}

static client open_client(void)
{
    return client_open(http_server_port(web));
}

static void test_keep_alive(void **state)
{
    (void)state;
    start((http_options){0});
    client c = open_client();
    for (int i = 0; i < 3; i++) {
        client_send(&c, GET("/a%20b?q=1"));
        client_expect(&c, "HTTP/1.1 200 OK\r\n");
        client_expect(&c, "Content-Length: 11\r\n");
        client_expect(&c, "\r\n<GET /a b >");
        assert_int_equal(http_server_connections(web), 1);
        assert_int_equal(handled, i + 1);
        PUMP_UNTIL(http_server_exchanges(web) == 0);
    }
    client_send(&c, "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client_expect(&c, "Connection: close\r\n");
    client_expect(&c, "<GET /x >");
    client_expect_end(&c);
    assert_int_equal(http_server_connections(web), 0);
    client_close(&c);

    c = open_client();
    client_send(&c, "GET /x HTTP/1.0\r\n\r\n");
    client_expect(&c, "<GET /x >");
    client_expect_end(&c);
    client_close(&c);
    stop();
}

static void test_split_everywhere(void **state)
{
    (void)state;
    static const char *const requests[] = {
        "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    };
    start((http_options){0});
    client c = open_client();
    for (size_t r = 0; r < 2; r++)
        for (size_t cut = 1; cut < strlen(requests[r]); cut++) {
            client_send_bytes(&c, requests[r], cut);
            pump_some();
            client_send(&c, requests[r] + cut);
            client_expect(&c, "<POST /p hello>");
        }
    for (size_t i = 0; requests[1][i]; i++) {
        client_send_bytes(&c, requests[1] + i, 1);
        pump_some();
    }
    client_expect(&c, "<POST /p hello>");
    assert_int_equal(http_server_connections(web), 1);
    client_close(&c);
    stop();
}

static void test_pipelining(void **state)
{
    (void)state;
    start((http_options){0});
    client c = open_client();
    client_send(&c, GET("/1") "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi" GET("/hold") GET("/3") GET("/4"));
    client_expect(&c, "<GET /1 >");
    client_expect(&c, "<POST /2 hi>");
    PUMP_UNTIL(held);
    pump_some();
    assert_int_equal(handled, 3); /* /3 waits for its turn */
    client_send(&c, GET("/5"));
    pump_some();
    assert_int_equal(handled, 3);
    http_reply(held, 200, "text/plain", "held!", 5);
    held = NULL;
    client_expect(&c, "held!");
    client_expect(&c, "<GET /3 >");
    client_expect(&c, "<GET /4 >");
    client_expect(&c, "<GET /5 >");
    assert_int_equal(closed_count, 0);
    client_close(&c);

    /* the last request of a client that closes its side and of one that says so */
    c = open_client();
    client_send(&c, GET("/1") GET("/2"));
    shutdown(c.fd, SHUT_WR);
    client_expect(&c, "<GET /1 >");
    client_expect(&c, "<GET /2 >");
    client_expect_end(&c);
    client_close(&c);
    c = open_client();
    client_send(&c, "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" GET("/2"));
    client_expect(&c, "<GET /1 >");
    client_expect_end(&c);
    assert_null(strstr(c.in.data, "/2"));
    client_close(&c);
    stop();
}

/* A disconnect is seen while the reply is pending, in all forms: closed, reset; before the reply and within a stream. */
static void test_disconnect(void **state)
{
    (void)state;
    start((http_options){0});
    static const char *const requests[] = {GET("/hold"), GET("/stream")};
    for (int i = 0; i < 4; i++) {
        client c = open_client();
        client_send(&c, requests[i / 2]);
        PUMP_UNTIL(held);
        if (i / 2)
            client_expect(&c, "\r\n\r\n");
        assert_int_equal(http_server_exchanges(web), 1);
        (i % 2 ? client_reset : client_close)(&c);
        PUMP_UNTIL(closed_count == i + 1);
        assert_null(held);
        assert_int_equal(last.status, 499);
        assert_int_equal(records, i + 1);
        PUMP_UNTIL(http_server_connections(web) == 0);
        assert_int_equal(http_server_exchanges(web), 0);
    }
    client c = open_client(); /* a request that never became whole is no exchange */
    client_send(&c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel");
    PUMP_UNTIL(http_server_connections(web) == 1);
    pump_some();
    client_close(&c);
    PUMP_UNTIL(http_server_connections(web) == 0);
    assert_int_equal(records, 4);
    stop();
}

/* A client that has closed its side only still gets its answer. */
static void test_half_closed(void **state)
{
    (void)state;
    start((http_options){0});
    client c = open_client();
    client_send(&c, GET("/hold"));
    shutdown(c.fd, SHUT_WR);
    client_expect(&c, "HTTP/1.1 100 Continue\r\n\r\n");
    struct timespec moment = {0, 250000000}; /* long enough for the server to look twice */
    nanosleep(&moment, NULL);
    pump_some();
    nanosleep(&moment, NULL);
    pump_some();
    assert_non_null(held);
    http_reply(held, 200, "text/plain", "held!", 5);
    held = NULL;
    client_expect(&c, "HTTP/1.1 200 OK");
    client_expect(&c, "held!");
    client_expect_end(&c);
    client_close(&c);

    c = open_client();
    client_send(&c, GET("/stream"));
    shutdown(c.fd, SHUT_WR);
    client_expect(&c, "3\r\n:\n\n\r\n");
    http_stream_write(held, "data: 1\n\n", 9);
    client_expect(&c, "9\r\ndata: 1\n\n\r\n");
    http_stream_end(held);
    held = NULL;
    client_expect(&c, "0\r\n\r\n");
    client_expect_end(&c);
    assert_int_equal(last.reply_bytes, 9); /* comments are not counted */
    client_close(&c);

    c = open_client();
    client_send(&c, "GET /hold HTTP/1.0\r\n\r\n");
    shutdown(c.fd, SHUT_WR);
    PUMP_UNTIL(held);
    pump_some();
    http_reply(held, 200, "text/plain", "held!", 5);
    held = NULL;
    client_expect(&c, "held!");
    assert_true(text_starts_with(c.in.data, "HTTP/1.1 200"));
    assert_int_equal(closed_count, 0);
    client_close(&c);
    stop();
}

static void test_stream(void **state)
{
    (void)state;
    start((http_options){.keep_alive_s = 0.01});
    client c = open_client();
    client_send(&c, GET("/stream"));
    client_expect(&c, "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
                      "Transfer-Encoding: chunked\r\n\r\n");
    client_expect(&c, "e\r\n: keep-alive\n\n\r\n");
    client_expect(&c, "e\r\n: keep-alive\n\n\r\n");
    http_stream_write(held, "", 0); /* an empty chunk would be the end */
    http_stream_write(held, "data: 1\n\n", 9);
    client_expect(&c, "9\r\ndata: 1\n\n\r\n");
    client_expect(&c, "e\r\n: keep-alive\n\n\r\n");
    assert_true(http_streaming(held));
    assert_null(strstr(c.in.data, "\r\n0\r\n"));
    http_stream_end(held);
    held = NULL;
    client_expect(&c, "0\r\n\r\n");
    client_send(&c, GET("/next"));
    client_expect(&c, "<GET /next >");
    client_close(&c);

    c = open_client();
    client_send(&c, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    client_expect(&c, "Connection: close\r\n");
    client_expect(&c, "X-Accel-Buffering: no\r\n\r\n");
    http_stream_write(held, "data: 1\n\n", 9);
    http_stream_end(held);
    held = NULL;
    client_expect(&c, "data: 1\n\n");
    client_expect_end(&c);
    assert_null(strstr(c.in.data, "chunked"));
    client_close(&c);

    c = open_client();
    client_send(&c, "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    client_expect(&c, "\r\n\r\n");
    http_stream_write(held, "data: 1\n\n", 9);
    http_stream_end(held);
    held = NULL;
    client_send(&c, "HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n" GET("/y"));
    client_expect(&c, "Content-Length: 10\r\n\r\nHTTP/1.1 200 OK");
    client_expect(&c, "<GET /y >");
    assert_null(strstr(c.in.data, "data"));
    client_close(&c);
    stop();
}

static void test_timeouts(void **state)
{
    (void)state;
    start((http_options){.header_s = 0.05, .body_s = 0.05, .idle_s = 0.05});
    client c = open_client();
    client_expect_end(&c); /* idle from the beginning */
    assert_int_equal(c.in.length, 0);
    assert_int_equal(records, 0);
    client_close(&c);

    c = open_client();
    client_send(&c, GET("/1"));
    client_expect(&c, "<GET /1 >");
    client_send(&c, "\r\n"); /* not a request */
    size_t before = c.in.length;
    client_expect_end(&c); /* idle after a request */
    assert_int_equal(c.in.length, before);
    client_close(&c);

    c = open_client();
    client_send(&c, "GET /1 HTT");
    client_expect(&c, "HTTP/1.1 408 Request Timeout\r\n");
    client_expect(&c, "Connection: close\r\n");
    client_expect(&c, "headers");
    client_expect_end(&c);
    assert_string_equal(last.method, "-");
    client_close(&c);

    c = open_client();
    client_send(&c, "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel");
    client_expect(&c, "HTTP/1.1 408 Request Timeout\r\n");
    client_expect(&c, "body");
    client_expect_end(&c);
    assert_int_equal(last.status, 408);
    assert_string_equal(last.path, "/1");
    client_close(&c);

    /* a request that is being answered has no time-out here */
    c = open_client();
    client_send(&c, GET("/hold"));
    PUMP_UNTIL(held);
    nanosleep(&(struct timespec){0, 150000000}, NULL);
    pump_some();
    assert_non_null(held);
    http_reply(held, 200, "text/plain", "held!", 5);
    held = NULL;
    client_expect(&c, "held!");
    client_close(&c);
    PUMP_UNTIL(http_server_connections(web) == 0);
    assert_int_equal(http_server_exchanges(web), 0);
    stop();
}

/* Bytes that come a few at a time do not move the end of the time for headers. */
static void test_slow_headers(void **state)
{
    (void)state;
    start((http_options){.header_s = 0.2});
    client c = open_client();
    client_send(&c, "GET / HTTP/1.1\r\n");
    for (int i = 0; records == 0; i++) {
        assert_true(i < 2000);
        client_send(&c, "a: b\r\n");
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        pump_some();
    }
    client_expect(&c, "HTTP/1.1 408");
    client_close(&c);
    stop();
}

static void test_slow_readers(void **state)
{
    (void)state;
    char piece[4096];
    memset(piece, 'x', sizeof piece);
    start((http_options){.unsent_bytes = 100000, .keep_alive_s = 1000});
    client c = client_open_sized(http_server_port(web), 4096);
    client_send(&c, GET("/stream"));
    PUMP_UNTIL(held);
    for (int i = 0; held; i++) {
        assert_true(i < 20000);
        http_stream_write(held, piece, sizeof piece);
        if (i % 16 == 0)
            pump();
    }
    assert_int_equal(closed_count, 1);
    assert_int_equal(last.status, 499);
    assert_string_equal(last.note, "cut=slow-reader");
    client_close(&c);

    /* ended by the handler before the loop saw the cut */
    c = client_open_sized(http_server_port(web), 4096);
    client_send(&c, GET("/stream"));
    PUMP_UNTIL(held);
    for (int i = 0; i < 5000; i++)
        http_stream_write(held, piece, sizeof piece);
    http_stream_end(held);
    held = NULL;
    assert_int_equal(last.status, 499);
    PUMP_UNTIL(http_server_connections(web) == 0);
    assert_int_equal(closed_count, 1);
    client_close(&c);
    stop();

    start((http_options){.write_s = 0.1});
    c = client_open_sized(http_server_port(web), 4096);
    client_send(&c, GET("/big?bytes=20000000"));
    PUMP_UNTIL(handled == 1);
    PUMP_UNTIL(http_server_connections(web) == 0);
    assert_int_equal(http_server_exchanges(web), 0);
    client_close(&c);
    stop();
}

static void test_big_reply(void **state)
{
    (void)state;
    start((http_options){.unsent_bytes = 1000});
    client c = open_client();
    client_send(&c, GET("/big?bytes=5000000") GET("/1"));
    client_expect(&c, "Content-Length: 5000000\r\n\r\n");
    client_expect(&c, "<GET /1 >"); /* only after all of it */
    size_t count = 0;
    for (size_t i = 0; i < c.in.length; i++)
        count += c.in.data[i] == 'x';
    assert_true(count >= 5000000);
    client_close(&c);
    stop();
}

static void expect_refusal(const char *request, const char *status_line)
{
    client c = open_client();
    int before = handled;
    client_send(&c, request);
    client_expect(&c, status_line);
    client_expect(&c, "Connection: close\r\n");
    shutdown(c.fd, SHUT_WR);
    client_expect_end(&c);
    assert_int_equal(handled, before);
    client_close(&c);
}

static void test_refusals(void **state)
{
    (void)state;
    start((http_options){.header_bytes = 1000, .body_bytes = 1000});
    expect_refusal("nonsense\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n");
    expect_refusal("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n");
    expect_refusal("GET / HTTP/3.0\r\n\r\n", "HTTP/1.1 505 HTTP Version Not Supported\r\n");
    expect_refusal("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501 Not Implemented\r\n");
    expect_refusal("POST / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n", "HTTP/1.1 417 Expectation Failed\r\n");
    expect_refusal("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n",
                   "HTTP/1.1 413 Content Too Large\r\n");
    text large = {0};
    text_add_text(&large, "GET / HTTP/1.1\r\nHost: a\r\nX: ");
    while (large.length < 2000)
        text_add_char(&large, 'x');
    expect_refusal(large.data, "HTTP/1.1 431 Request Header Fields Too Large\r\n");
    text_free(&large);

    /* the answer arrives although the client goes on sending */
    client c = open_client();
    client_send(&c, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
    char *bytes = calloc(1, 1000);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(send(c.fd, bytes, 1000, MSG_NOSIGNAL), 1000); /* would fail after a reset */
        pump();
    }
    free(bytes);
    client_expect(&c, "HTTP/1.1 413 Content Too Large\r\n");
    assert_string_equal(last.path, "/p");
    client_expect_end(&c);
    assert_false(c.reset);
    client_close(&c);
    stop();
}

static void on_refusal(void *context, http_exchange *x, int status, const char *sentence)
{
    text body = {0};
    text_add_format(&body, "%s|%s|%s|%s", (const char *)context, http_method(x), http_path(x), sentence);
    http_reply(x, status, "x/y", body.data, body.length);
    text_free(&body);
}

static void test_refusal_hook(void **state)
{
    (void)state;
    start((http_options){0});
    http_server_on_refusal(web, on_refusal, "mine");
    client c = open_client();
    client_send(&c, "GET /path HTTP/1.1\r\nbad\r\n");
    client_expect(&c, "Content-Type: x/y\r\n");
    client_expect(&c, "mine|GET|/path|A header line has no colon.");
    client_close(&c);
    c = open_client();
    client_send(&c, "\x16\x03\x01");
    client_expect(&c, "mine|-|-|This looks like TLS");
    client_close(&c);
    stop();
}

static void test_head_hook(void **state)
{
    (void)state;
    start((http_options){0});
    http_server_on_head(web, on_head, NULL);
    client c = open_client();
    client_send(&c, "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    client_expect(&c, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_int_equal(http_server_exchanges(web), 0);
    client_send(&c, "hi");
    client_expect(&c, "<POST /1 hi>");
    client_send(&c, "POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi");
    client_expect(&c, "HTTP/1.1 200"); /* what has come need not be asked for */
    client_expect(&c, "<POST /2 hi>");
    assert_null(strstr(strstr(c.in.data, "100 Continue") + 1, "100 Continue"));
    refuse_heads = true;
    client_send(&c, GET("/3"));
    client_expect(&c, "<GET /3 >"); /* without a body there is nothing to refuse early */
    client_send(&c, "POST /4 HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhi");
    client_expect(&c, "HTTP/1.1 401");
    client_expect(&c, "Connection: close");
    client_close(&c);
    assert_int_equal(handled, 3);
    stop();
}

static void test_bodies(void **state)
{
    (void)state;
    enum { BYTES = 3000000 };
    start((http_options){.bodies_bytes = 5000000});
    char *bytes = malloc(BYTES);
    memset(bytes, 'b', BYTES);
    client c = open_client();
    for (int i = 0; i < 3; i++) { /* the memory is given back each time */
        client_send(&c, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
        client_send_bytes(&c, bytes, BYTES);
        client_expect(&c, "HTTP/1.1 200");
        client_expect(&c, "bbb>");
    }
    client_close(&c);

    /* a request that is being answered has given back its body */
    c = open_client();
    client_send(&c, "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
    client_send_bytes(&c, bytes, BYTES);
    PUMP_UNTIL(held);
    assert_int_equal(http_body(held).length, 0);
    client d = open_client(), e = open_client();
    client_send(&d, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
    client_send_bytes(&d, bytes, BYTES - 1);
    for (int i = 0; i < 1000; i++)
        pump(); /* until the server has read it */
    client_send(&e, "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2dc6c0\r\n");
    client_send_bytes(&e, bytes, BYTES);
    client_expect(&e, "HTTP/1.1 503");
    client_send(&d, "b");
    client_expect(&d, "HTTP/1.1 200");
    client_close(&c);
    client_close(&d);
    client_close(&e);
    PUMP_UNTIL(closed_count == 1);
    free(bytes);
    stop();
}

static void test_connection_limit(void **state)
{
    (void)state;
    start((http_options){.max_connections = 2});
    client a = open_client(), b = open_client();
    PUMP_UNTIL(http_server_connections(web) == 2);
    client c = open_client();
    client_send(&c, GET("/c"));
    client_expect(&c, "HTTP/1.1 503 Service Unavailable\r\n");
    client_expect(&c, "Retry-After: ");
    client_expect(&c, "}}\n");
    client_expect_end(&c);
    client_close(&c);
    client_send(&a, GET("/a"));
    client_expect(&a, "<GET /a >");
    client_close(&b);
    PUMP_UNTIL(http_server_connections(web) == 1);
    c = open_client();
    client_send(&c, GET("/c"));
    client_expect(&c, "<GET /c >");
    client_close(&a);
    client_close(&c);
    stop();
}

static void test_many_idle(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 2 * MANY + 100)
        skip();
    start((http_options){0});
    client *all = calloc(MANY, sizeof *all);
    for (int i = 0; i < MANY; i++) {
        all[i] = open_client();
        if (i % 50 == 0)
            pump();
    }
    PUMP_UNTIL(http_server_connections(web) == MANY);
    for (int i = 0; i < MANY; i += 37) {
        client_send(&all[i], GET("/1"));
        client_expect(&all[i], "<GET /1 >");
    }
    for (int i = 0; i < MANY; i += 2)
        client_close(&all[i]);
    PUMP_UNTIL(http_server_connections(web) == MANY / 2);
    stop();
    for (int i = 1; i < MANY; i += 2) {
        client_read(&all[i]);
        assert_true(all[i].ended);
        client_close(&all[i]);
    }
    free(all);
}

/* Without descriptors the server waits instead of spinning, and takes the connection when there is one again. */
static void test_no_descriptors(void **state)
{
    (void)state;
    struct rlimit before, tight;
    start((http_options){0});
    client a = open_client(), b = open_client();
    getrlimit(RLIMIT_NOFILE, &before);
    tight = before;
    tight.rlim_cur = (rlim_t)b.fd + 1;
    setrlimit(RLIMIT_NOFILE, &tight);
    pump_some();
    assert_int_equal(http_server_connections(web), 0);
    assert_int_equal(event_base_get_num_events(pump_base, EVENT_BASE_COUNT_ACTIVE), 0);
    setrlimit(RLIMIT_NOFILE, &before);
    client_send(&a, GET("/a"));
    client_expect(&a, "<GET /a >");
    client_close(&a);
    client_close(&b);
    stop();
}

static void test_stop_accepting(void **state)
{
    (void)state;
    start((http_options){0});
    client a = open_client(), b = open_client(), c = open_client();
    client_send(&a, GET("/hold"));
    client_send(&c, "POST /late HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh");
    PUMP_UNTIL(held && http_server_connections(web) == 3);
    pump_some();
    http_server_stop_accepting(web);
    client_expect_end(&b);
    client_send(&c, "i");
    client_expect(&c, "Connection: close\r\n");
    client_expect(&c, "<POST /late hi>");
    client_expect_end(&c);
    http_reply(held, 200, "text/plain", "held!", 5);
    held = NULL;
    client_expect(&a, "Connection: close\r\n");
    client_expect(&a, "held!");
    client_expect_end(&a);
    assert_int_equal(http_server_connections(web), 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_server_port(web))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), -1);
    close(fd);
    client_close(&a);
    client_close(&b);
    client_close(&c);
    stop();
}

static void test_destroy_calls_closed(void **state)
{
    (void)state;
    start((http_options){0});
    client c = open_client();
    client_send(&c, GET("/stream"));
    PUMP_UNTIL(held);
    stop();
    assert_int_equal(closed_count, 1);
    assert_int_equal(last.status, 499);
    client_close(&c);
}

/* Many requests at once are all answered, however the replies are taken. */
static void test_many_pipelined(void **state)
{
    (void)state;
    enum { REQUESTS = 8000 };
    text many = {0};
    for (int i = 0; i < REQUESTS; i++)
        text_add_format(&many, "GET /%d HTTP/1.1\r\nHost: a\r\nX-Padding: 0123456789012345678901234567890123456789\r\n\r\n", i);
    start((http_options){0});
    client c = open_client();
    client_send_bytes(&c, many.data, many.length);
    client_expect(&c, "<GET /7999 >");
    assert_int_equal(handled, REQUESTS);
    client_close(&c);
    text_free(&many);
    stop();
}

/* Replies that cannot be sent pause the reading of requests, which then goes on. */
static void test_paused(void **state)
{
    (void)state;
    enum { REQUESTS = 150, PADDING = 2000, BYTES = 100000 };
    text many = {0};
    for (int i = 0; i < REQUESTS; i++)
        text_add_format(&many, "GET /big?bytes=%d HTTP/1.1\r\nHost: a\r\nX-Padding: %0*d\r\n\r\n", BYTES, PADDING, i);
    start((http_options){0});
    client c = client_open_sized(http_server_port(web), 4096);
    for (size_t at = 0; at < many.length;) { /* without reading */
        ssize_t n = send(c.fd, many.data + at, many.length - at, MSG_NOSIGNAL);
        at += n > 0 ? (size_t)n : 0;
        pump();
    }
    for (int i = 0; i < 50; i++)
        pump();
    assert_true(handled < REQUESTS);
    for (int i = 0; i < REQUESTS; i++)
        client_expect(&c, "Content-Length: 100000\r\n");
    assert_int_equal(handled, REQUESTS);
    client_close(&c);
    text_free(&many);
    stop();
}

/* More than fits comes while a reply is pending: the reply is the last one, and a disconnect is seen behind all those bytes. */
static void test_far_ahead(void **state)
{
    (void)state;
    enum { BYTES = 1000000 };
    char *bytes = malloc(BYTES);
    memset(bytes, 'x', BYTES);
    start((http_options){0});
    for (int leave = 0; leave < 2; leave++) {
        client c = open_client();
        client_send(&c, leave ? GET("/stream") : GET("/hold"));
        PUMP_UNTIL(held);
        client_send_bytes(&c, bytes, BYTES);
        for (int i = 0; i < 100; i++)
            pump();
        assert_int_equal(handled, leave + 1);
        if (leave) {
            client_close(&c);
            PUMP_UNTIL(closed_count == 1);
            break;
        }
        http_reply(held, 200, "text/plain", "held!", 5);
        held = NULL;
        client_expect(&c, "Connection: close\r\n");
        client_expect(&c, "held!");
        client_expect_end(&c);
        client_close(&c);
    }
    free(bytes);
    stop();
}

static void test_ids_and_headers(void **state)
{
    (void)state;
    start((http_options){0});
    client c = open_client();
    client_send(&c, "GET /headers HTTP/1.1\r\nHost: a\r\nx-request-id: My_id-1.2\r\n\r\n");
    client_expect(&c, "HTTP/1.1 204 No Content\r\n");
    client_expect(&c, "X-Request-Id: My_id-1.2\r\n");
    client_expect(&c, "X-One: 1  X-Two: 2\r\n\r\n");
    assert_null(strstr(c.in.data, "Content-Length"));
    assert_string_equal(last.id, "My_id-1.2");
    assert_string_equal(last.note, "a=1 b=2");
    client_send(&c, "GET /x HTTP/1.1\r\nHost: a\r\nx-request-id: <script>\r\n\r\n");
    client_expect(&c, "X-Request-Id: req_");
    client_expect(&c, "<GET /x >");
    char first[65];
    snprintf(first, sizeof first, "%s", last.id);
    client_send(&c, GET("/x"));
    client_expect(&c, "<GET /x >");
    assert_string_not_equal(last.id, first);
    client_close(&c);
    stop();
}

static void test_create_fails(void **state)
{
    (void)state;
    start((http_options){0});
    error err = {0};
    http_options taken = {.port = http_server_port(web)}, unknown = {.host = "no such host", .port = -1};
    assert_null(http_server_create(pump_base, &taken, handle, NULL, &err));
    assert_int_equal(err.code, ERROR_NETWORK);
    assert_non_null(strstr(err.text, "another program listens there"));
    assert_null(http_server_create(pump_base, &unknown, handle, NULL, &err));
    assert_true(http_server_is_loopback(web));
    assert_false(http_server_is_wildcard(web));
    assert_string_equal(http_server_host(web), "127.0.0.1");
    stop();
    start((http_options){.host = "0.0.0.0"});
    assert_false(http_server_is_loopback(web));
    assert_true(http_server_is_wildcard(web));
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_alive), cmocka_unit_test(test_split_everywhere), cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_disconnect), cmocka_unit_test(test_half_closed), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_timeouts), cmocka_unit_test(test_slow_headers), cmocka_unit_test(test_slow_readers),
        cmocka_unit_test(test_big_reply), cmocka_unit_test(test_refusals), cmocka_unit_test(test_refusal_hook),
        cmocka_unit_test(test_head_hook), cmocka_unit_test(test_bodies), cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_many_idle), cmocka_unit_test(test_no_descriptors), cmocka_unit_test(test_stop_accepting),
        cmocka_unit_test(test_destroy_calls_closed), cmocka_unit_test(test_far_ahead),
        cmocka_unit_test(test_paused), cmocka_unit_test(test_many_pipelined),
        cmocka_unit_test(test_ids_and_headers), cmocka_unit_test(test_create_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
