/* /metrics and /dashboard.json as replies; the functions of http.h and engine.h that the handlers call are replaced by simple ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/handlers.h"
#include "serve/page.h"

struct http_exchange {
    const char *since;
    int status;
    char type[64];
    char *body;
    bool no_store;
};

const char *http_path(const http_exchange *x)
{
    (void)x;
    return "/";
}

const char *http_header(const http_exchange *x, const char *name)
{
    (void)x, (void)name;
    return NULL;
}

const char *http_query(const http_exchange *x, const char *name)
{
    return strcmp(name, "since") == 0 ? x->since : NULL;
}

void http_add_header(http_exchange *x, const char *name, const char *value)
{
    x->no_store |= strcmp(name, "Cache-Control") == 0 && strcmp(value, "no-store") == 0;
}

void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t bytes)
{
    assert_int_equal(x->status, 0);
    x->status = status;
    snprintf(x->type, sizeof x->type, "%s", type);
    x->body = calloc(bytes + 1, 1);
    memcpy(x->body, body, bytes);
}

void server_reply_error(http_exchange *x, int status, const char *param, const char *sentence, ...)
{
    assert_string_equal(param, "since");
    http_reply(x, status, "application/json", sentence, strlen(sentence));
}

int http_server_connections(const http_server *s)
{
    (void)s;
    return 5;
}

void engine_count(engine *e, engine_counters *out)
{
    (void)e;
    *out = (engine_counters){.running = 2, .pages = 10, .free_pages = 10, .spec_words = "off"};
}

engine_facts engine_describe(const engine *e)
{
    (void)e;
    return (engine_facts){.max_running = 8, .max_waiting = 64, .max_context = 4096, .kv_tokens = 8192};
}

static server test_server(void)
{
    server s = {.options = {.model_name = "nano"}, .started_unix = 1700000000};
    s.metrics = metrics_create("nano");
    engine_counters c;
    engine_count(NULL, &c);
    for (uint64_t i = 1; i < 6; i++)
        metrics_tick(s.metrics, &c, 5, i * 1000000);
    return s;
}

static void test_metrics_reply(void **state)
{
    (void)state;
    server s = test_server();
    http_exchange x = {0};
    handle_metrics(&s, &x, NULL);
    assert_int_equal(x.status, 200);
    assert_string_equal(x.type, "text/plain; version=0.0.4; charset=utf-8");
    assert_true(x.no_store);
    assert_non_null(strstr(x.body, "\ndrawbridge_running_requests 2\n"));
    assert_non_null(strstr(x.body, "\ndrawbridge_http_connections 5\n"));
    free(x.body);
    metrics_destroy(s.metrics);
}

static size_t samples_since(server *s, const char *since)
{
    http_exchange x = {.since = since};
    handle_dashboard(s, &x, NULL);
    assert_int_equal(x.status, 200);
    assert_string_equal(x.type, "application/json");
    assert_true(x.no_store);
    json_t *value = json_loads(x.body, 0, NULL);
    assert_non_null(value);
    json_t *facts = json_object_get(value, "server");
    assert_string_equal(json_string_value(json_object_get(facts, "model")), "nano");
    assert_int_equal(json_integer_value(json_object_get(facts, "kv_tokens")), 8192);
    assert_int_equal(json_is_true(json_object_get(facts, "charts")), page_has_charts());
    size_t count = json_array_size(json_object_get(json_object_get(value, "series"), "t"));
    json_decref(value);
    free(x.body);
    return count;
}

static void test_dashboard_reply(void **state)
{
    (void)state;
    server s = test_server();
    assert_int_equal(samples_since(&s, NULL), 4);
    assert_int_equal(samples_since(&s, "-1"), 4);
    assert_int_equal(samples_since(&s, "3"), 2);
    metrics_destroy(s.metrics);
}

static void test_bad_since_is_refused(void **state)
{
    (void)state;
    server s = test_server();
    static const char *const bad[] = {"", "x", "3x", "3.5"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        http_exchange x = {.since = bad[i]};
        handle_dashboard(&s, &x, NULL);
        assert_int_equal(x.status, 400);
        free(x.body);
    }
    metrics_destroy(s.metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_reply),
        cmocka_unit_test(test_dashboard_reply),
        cmocka_unit_test(test_bad_since_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
