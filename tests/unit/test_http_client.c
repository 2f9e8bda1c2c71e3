/* The HTTP client against tests/http_mock.py, a mock server on loopback. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka needs the above */
#include <cmocka.h>

#include "base/clock.h"
#include "base/json.h"
#include "eval/http_client.h"

static char base[64]; /* "http://127.0.0.1:PORT" */
static pid_t mock;
static int mock_input; /* closing it ends the mock */

static int mock_start(void **state)
{
    int in[2], out[2];
    char port[16] = {0};
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    if (pipe(in) != 0 || pipe(out) != 0 || (mock = fork()) < 0)
        return -1;
    if (mock == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl("/usr/bin/python3", "python3", SOURCE_DIR "/tests/http_mock.py", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    mock_input = in[1];
    size_t n = 0; /* up to the line end: it can come as a piece of its own */
    while (n + 1 < sizeof port && read(out[0], port + n, 1) == 1 && port[n] != '\n')
        n++;
    close(out[0]);
    if (n == 0)
        return -1;
    snprintf(base, sizeof base, "http://127.0.0.1:%d", atoi(port));
    return 0;
}

static int mock_end(void **state)
{
    (void)state;
    close(mock_input);
    return waitpid(mock, NULL, 0) == mock ? 0 : -1;
}

static http_client *client(http_client_options options)
{
    error err = {0};
    options.back_off_s = options.back_off_s > 0 ? options.back_off_s : 0.01;
    http_client *c = http_client_create(base, &options, &err);
    if (!c)
        fail_msg("%s", err.text);
    return c;
}

/* Sends one request; the caller frees it. */
static http_request one(http_client *c, const char *path, const char *body)
{
    error err = {0};
    http_request r = {.path = path, .body = body, .body_bytes = body ? strlen(body) : 0};
    assert_true(http_client_post_all(c, &r, 1, NULL, NULL, &err));
    return r;
}

/* One request that must fail with a status (0: no answer) and words in its error. */
static void expect_failure(http_client_options options, const char *path, int status, int attempts, const char *words)
{
    http_client *c = client(options);
    http_request r = one(c, path, "{}");
    assert_int_equal(r.status, status);
    assert_int_equal(r.attempts, attempts);
    assert_int_equal(r.err.code, ERROR_NETWORK);
    if (!strstr(r.err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", r.err.text, words);
    http_request_free(&r);
    http_client_destroy(c);
}

static void expect_success(http_client_options options, const char *path, int attempts)
{
    http_client *c = client(options);
    http_request r = one(c, path, "{}");
    if (r.err.code != ERROR_NONE)
        fail_msg("%s: %s", path, r.err.text);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.attempts, attempts);
    http_request_free(&r);
    http_client_destroy(c);
}

static void test_request_as_sent(void **state)
{
    (void)state;
    http_client *c = client((http_client_options){.api_key = "secret-1"});
    http_request r = one(c, "/echo/v1/chat", "{\"a\":\"\xc3\xa4\"}");
    error err = {0};
    assert_int_equal(r.err.code, ERROR_NONE);
    json_t *got = json_parse(r.response.data, r.response.length, "echo", &err);
    json_t *headers = json_object_get(got, "headers");
    assert_string_equal(json_string_value(json_object_get(got, "method")), "POST");
    assert_string_equal(json_string_value(json_object_get(got, "path")), "/echo/v1/chat");
    assert_string_equal(json_string_value(json_object_get(got, "body")), "{\"a\":\"\xc3\xa4\"}");
    assert_string_equal(json_string_value(json_object_get(headers, "Authorization")), "Bearer secret-1");
    assert_string_equal(json_string_value(json_object_get(headers, "Content-Type")), "application/json");
    assert_string_equal(json_string_value(json_object_get(headers, "Host")), base + strlen("http://"));
    assert_true(r.seconds > 0);
    json_decref(got);
    http_request_free(&r);
    http_client_destroy(c);
}

static void test_get_prefix_and_no_key(void **state)
{
    (void)state;
    char url[96];
    error err = {0};
    snprintf(url, sizeof url, "%s/echo/v1/", base);
    http_client *c = http_client_create(url, NULL, &err);
    assert_non_null(c);
    http_request r = one(c, "/v1/models", NULL);
    json_t *got = json_parse(r.response.data, r.response.length, "echo", &err);
    assert_string_equal(json_string_value(json_object_get(got, "method")), "GET");
    assert_string_equal(json_string_value(json_object_get(got, "path")), "/echo/v1/models");
    assert_null(json_object_get(json_object_get(got, "headers"), "Authorization"));
    json_decref(got);
    http_request_free(&r);
    http_client_destroy(c);
}

static void count_done(void *context, http_request *requests, int index)
{
    int *calls = context; /* per request */
    assert_int_equal(requests[index].err.code, ERROR_NONE);
    calls[index]++;
}

static void test_many_in_flight(void **state)
{
    (void)state;
    enum { COUNT = 30, WIDTH = 5 };
    http_request requests[COUNT] = {0};
    int calls[COUNT] = {0};
    error err = {0};
    for (int i = 0; i < COUNT; i++)
        requests[i] = (http_request){.path = "/parallel/5", .body = "{}", .body_bytes = 2};
    http_client *c = client((http_client_options){.in_flight = WIDTH, .timeout_s = 30});
    assert_true(http_client_post_all(c, requests, COUNT, count_done, calls, &err));
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(calls[i], 1);
        http_request_free(&requests[i]);
    }
    http_request r = one(c, "/peak", "{}");
    assert_string_equal(r.response.data, "{\"peak\": 5}");
    http_request_free(&r);
    http_client_destroy(c);
}

static void test_retries(void **state)
{
    (void)state;
    expect_success((http_client_options){0}, "/busy/2/a", 3);
    expect_success((http_client_options){0}, "/drop/1/b", 2);
    expect_failure((http_client_options){.retries = 2}, "/busy/9/c", 429, 3, "after 3 attempts");
    expect_failure((http_client_options){.retries = -1}, "/busy/9/d", 429, 1, "too many requests");
    expect_failure((http_client_options){.retries = 1}, "/drop/9/e", 0, 2, "closed the connection");
}

static void test_retry_after(void **state)
{
    (void)state;
    uint64_t start = clock_now_us();
    expect_success((http_client_options){0}, "/wait/1/f", 2);
    assert_true(clock_now_us() - start >= 1000000);
    expect_failure((http_client_options){0}, "/wait/3600/g", 503, 1, "asks to wait 3600 s");
}

static void test_statuses(void **state)
{
    (void)state;
    expect_failure((http_client_options){0}, "/status/500", 500, 1, "status 500: this is the reason of 500");
    expect_failure((http_client_options){0}, "/status/404", 404, 1, "this is the reason of 404");
    expect_failure((http_client_options){0}, "/status/401", 401, 1, "/status/401 answers with status 401");
    expect_failure((http_client_options){0}, "/plain", 500, 1, "line one [31mred  end");
    expect_failure((http_client_options){0}, "/redirect", 302, 1, "http://elsewhere.example/v1");
}

static void test_timeout(void **state)
{
    (void)state;
    uint64_t start = clock_now_us();
    expect_failure((http_client_options){.timeout_s = 0.3}, "/sleep/3", 0, 1, "did not answer within 0.3 s");
    assert_true(clock_now_us() - start < 2500000);
}

static void test_timeout_leaves_others(void **state)
{
    (void)state;
    error err = {0};
    http_request r[3] = {{.path = "/sleep/3"}, {.path = "/echo"}, {.path = "/echo"}};
    http_client *c = client((http_client_options){.timeout_s = 1, .in_flight = 1});
    assert_true(http_client_post_all(c, r, 3, NULL, NULL, &err));
    assert_int_equal(r[0].err.code, ERROR_NETWORK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(r[i].status, i ? 200 : 0);
        http_request_free(&r[i]);
    }
    http_client_destroy(c);
}

static void test_bodies(void **state)
{
    (void)state;
    http_client *c = client((http_client_options){.response_bytes = 10000});
    http_request r = one(c, "/chunked", "{}");
    assert_string_equal(r.response.data, "{\"a\": 123}");
    http_request_free(&r);
    r = one(c, "/size/10000", "{}");
    assert_int_equal(r.response.length, 10000);
    http_request_free(&r);
    r = one(c, "/size/0", "{}");
    assert_int_equal(r.status, 200);
    assert_int_equal(r.response.length, 0);
    http_request_free(&r);
    http_client_destroy(c);
    http_client_options small = {.response_bytes = 10000};
    expect_failure(small, "/size/10001", 0, 1, "larger than the limit of 10000 bytes");
    expect_failure(small, "/endless", 0, 1, "larger than the limit of 10000 bytes");
    expect_failure((http_client_options){0}, "/garbage", 0, 1, "does not answer in HTTP/1.1");
}

static void test_addresses(void **state)
{
    (void)state;
    error err = {0};
    assert_null(http_client_create("http://127.0.0.1:1", NULL, &err));
    assert_int_equal(err.code, ERROR_NETWORK);
    assert_non_null(strstr(err.text, "Connection refused"));
    assert_null(http_client_create("http://no-such-host.invalid:1", NULL, &err));
    assert_int_equal(err.code, ERROR_NETWORK);
    assert_non_null(strstr(err.text, "cannot find the host no-such-host.invalid"));
    assert_null(http_client_create("https://127.0.0.1:1", NULL, &err));
    assert_int_equal(err.code, ERROR_USAGE);
    http_client *c = http_client_create("http://localhost:1", NULL, &err);
    assert_null(c);
}

static void test_server_goes_away(void **state)
{
    (void)state;
    http_client *c = client((http_client_options){.retries = 2});
    mock_end(NULL);
    http_request r = one(c, "/echo", "{}");
    assert_int_equal(r.attempts, 3);
    assert_non_null(strstr(r.err.text, "cannot connect to 127.0.0.1"));
    http_request_free(&r);
    http_client_destroy(c);
    assert_int_equal(mock_start(NULL), 0);
}

static volatile sig_atomic_t stop;

static void stop_now(void *context, http_request *requests, int index)
{
    (void)context, (void)requests, (void)index;
    stop = 1;
}

static void test_interrupt(void **state)
{
    (void)state;
    error err = {0};
    http_request r[3] = {{.path = "/echo"}, {.path = "/sleep/3"}, {.path = "/sleep/3"}};
    http_client *c = client((http_client_options){.in_flight = 2, .stop = &stop});
    uint64_t start = clock_now_us();
    assert_false(http_client_post_all(c, r, 3, stop_now, NULL, &err));
    assert_true(clock_now_us() - start < 2500000);
    assert_int_equal(err.code, ERROR_INTERRUPTED);
    if (r[0].status != 200)
        fail_msg("%s: %s", err.text, r[0].err.text);
    assert_int_equal(r[2].err.code, ERROR_INTERRUPTED);
    stop = 0;
    assert_true(http_client_post_all(c, r, 1, NULL, NULL, &err)); /* the client can be used again */
    for (int i = 0; i < 3; i++)
        http_request_free(&r[i]);
    http_client_destroy(c);
}

static bool key_from(const char *content, text *key, error *err)
{
    char path[] = "/tmp/drawbridge-key-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, content, strlen(content)) == (ssize_t)strlen(content));
    close(fd);
    bool ok = http_api_key_load(path, key, err);
    unlink(path);
    return ok;
}

static void test_keys(void **state)
{
    (void)state;
    text key = {0};
    error err = {0};
    assert_true(key_from("abc-1\r\nsecond line\n", &key, &err));
    assert_string_equal(key.data, "abc-1");
    assert_false(key_from("\n", &key, &err));
    assert_false(key_from("ab c\n", &key, &err));
    assert_null(strstr(err.text, "ab c"));
    assert_false(http_api_key_load("/no/such/file", &key, &err));
    unsetenv("DRAWBRIDGE_API_KEY");
    unsetenv("OPENAI_API_KEY");
    assert_true(http_api_key_load(NULL, &key, &err));
    assert_int_equal(key.length, 0);
    setenv("OPENAI_API_KEY", "two", 1);
    assert_true(http_api_key_load(NULL, &key, &err));
    assert_string_equal(key.data, "two");
    setenv("DRAWBRIDGE_API_KEY", "one", 1);
    assert_true(http_api_key_load(NULL, &key, &err));
    assert_string_equal(key.data, "one");
    setenv("DRAWBRIDGE_API_KEY", "one\nX-Header: 1", 1);
    assert_false(http_api_key_load(NULL, &key, &err));
    unsetenv("DRAWBRIDGE_API_KEY");
    unsetenv("OPENAI_API_KEY");
    text_free(&key);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_in_flight), /* first: it looks at the mock's peak */
        cmocka_unit_test(test_request_as_sent),
        cmocka_unit_test(test_get_prefix_and_no_key),
        cmocka_unit_test(test_retries),
        cmocka_unit_test(test_retry_after),
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_timeout_leaves_others),
        cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_server_goes_away),
        cmocka_unit_test(test_interrupt),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, mock_start, mock_end);
}
