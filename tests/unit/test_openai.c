/* Requests and answers of OpenAI's API, and the addresses users give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the above */
#include <cmocka.h>

#include "eval/http_url.h"
#include "eval/openai.h"

static void expect_url(const char *input, const char *host, const char *port, const char *origin, const char *prefix)
{
    http_url u;
    error err = {0};
    if (!http_url_parse(input, &u, &err))
        fail_msg("%s: %s", input, err.text);
    assert_string_equal(u.host, host);
    assert_string_equal(u.port, port);
    assert_string_equal(u.origin, origin);
    assert_string_equal(u.prefix, prefix);
}

static void test_urls(void **state)
{
    (void)state;
    expect_url("http://127.0.0.1:8000", "127.0.0.1", "8000", "127.0.0.1:8000", "");
    expect_url("HTTP://Node-1.example/", "Node-1.example", "80", "Node-1.example", "");
    expect_url("http://h:80/v1", "h", "80", "h", "");
    expect_url("http://h:1/v1/", "h", "1", "h:1", "");
    expect_url("http://h:65535/a/b/v1//", "h", "65535", "h:65535", "/a/b");
    expect_url("http://h//v1//", "h", "80", "h", "");
    expect_url("http://h/xv1", "h", "80", "h", "/xv1");
    expect_url("http://[::1]:8000/api", "::1", "8000", "[::1]:8000", "/api");
    expect_url("http://h:00080", "h", "80", "h", "");
}

static void test_bad_urls(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"https://h", "local proxy"}, {"", "does not begin with http://"}, {"h:80", "does not begin with http://"},
        {"http://", "no host"}, {"http://:80", "no host"}, {"http:///v1", "no host"}, {"http://[]:80", "no host"},
        {"http://[::1", "without ']'"}, {"http://[::1]80", "port"}, {"http://[g::1]", "IPv6"}, {"http://h:", "port"},
        {"http://h:0", "outside"}, {"http://h:65536", "outside"}, {"http://h:8x", "not a number"}, {"http://h:123456", "port"},
        {"http://h o", "blank"}, {"http://h/\r\nX: 1", "control"}, {"http://h/?a=1", "query"}, {"http://h#f", "fragment"},
        {"http://\xc3\xa4", "not ASCII"}, {"http://a\\b", "host name"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        http_url u;
        error err = {0};
        if (http_url_parse(bad[i][0], &u, &err) || !strstr(err.text, bad[i][1]) || err.code != ERROR_USAGE)
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i][0], err.text, bad[i][1]);
    }
    char large[2048] = "http://";
    http_url u;
    error err = {0};
    memset(large + 7, 'a', 300);
    assert_false(http_url_parse(large, &u, &err));
    memset(large + 8, '/', 600);
    large[9] = 'p';
    memset(large + 10, 'p', 600);
    assert_false(http_url_parse(large, &u, &err));
}

static void test_password_is_not_repeated(void **state)
{
    (void)state;
    http_url u;
    error err = {0};
    assert_false(http_url_parse("http://me:hunter2@h", &u, &err));
    assert_null(strstr(err.text, "hunter2"));
    assert_non_null(strstr(err.text, "password"));
}

static void expect_body(const openai_query *q, const char *expected)
{
    text body = {0};
    error err = {0};
    assert_true(openai_query_body(q, &body, &err));
    assert_string_equal(body.data, expected);
    text_free(&body);
}

static void test_bodies(void **state)
{
    (void)state;
    const char *stop[] = {"\n\n", "Question:"};
    json_t *messages = json_loads("[{\"role\":\"user\",\"content\":\"h\\u00e4\"}]", 0, NULL);
    json_t *tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", 0, NULL);
    openai_query q = {.model = "m", .messages = messages, .temperature = -1, .seed = -1};
    expect_body(&q, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\xc3\xa4\"}],\"stream\":false}");
    q = (openai_query){.model = "m", .messages = messages, .tools = tools, .temperature = 0, .top_p = 0.5, .max_tokens = 7,
                       .seed = 0, .enable_thinking = CHAT_FALSE, .reasoning_effort = "high"};
    expect_body(&q, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"h\xc3\xa4\"}],\"tools\":[{\"type\":"
                    "\"function\",\"function\":{\"name\":\"f\"}}],\"reasoning_effort\":\"high\",\"chat_template_kwargs\":"
                    "{\"enable_thinking\":false},\"temperature\":0.0,\"top_p\":0.5,\"max_tokens\":7,\"seed\":0,\"stream\":false}");
    q = (openai_query){.model = "m", .prompt = "Q", .temperature = 0, .seed = -1, .stop = stop, .stop_count = 2};
    expect_body(&q, "{\"model\":\"m\",\"prompt\":\"Q\",\"temperature\":0.0,\"stop\":[\"\\n\\n\",\"Question:\"],\"stream\":false}");
    text body = {0};
    error err = {0};
    q.prompt = "\xff";
    assert_false(openai_query_body(&q, &body, &err));
    assert_non_null(strstr(err.text, "UTF-8"));
    text_free(&body);
    json_decref(messages);
    json_decref(tools);
}

static void parse(const char *json, openai_answer *a)
{
    error err = {0};
    if (!openai_answer_parse(json, strlen(json), a, &err))
        fail_msg("%s: %s", json, err.text);
}

static void test_answers(void **state)
{
    (void)state;
    openai_answer a = {0};
    parse("{\"choices\":[{\"message\":{\"content\":\"A\",\"reasoning_content\":\"R\",\"tool_calls\":null},\"finish_reason\":"
          "\"stop\"}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}", &a);
    assert_string_equal(a.content.data, "A");
    assert_string_equal(a.reasoning.data, "R");
    assert_int_equal(a.finish, OPENAI_FINISH_STOP);
    assert_int_equal(a.prompt_tokens, 3);
    assert_int_equal(a.completion_tokens, 4);
    assert_int_equal(json_array_size(a.calls), 0);
    parse("{\"choices\":[{\"message\":{\"content\":null,\"reasoning\":\"S\"},\"finish_reason\":\"length\"}]}", &a);
    assert_string_equal(a.content.data, "");
    assert_string_equal(a.reasoning.data, "S");
    assert_int_equal(a.finish, OPENAI_FINISH_LENGTH);
    assert_int_equal(a.completion_tokens, -1);
    parse("{\"choices\":[{\"text\":\"T\",\"finish_reason\":null}],\"usage\":null}", &a);
    assert_string_equal(a.content.data, "T");
    assert_int_equal(a.finish, OPENAI_FINISH_OTHER);
    openai_answer_free(&a);
}

static void test_calls(void **state)
{
    (void)state;
    openai_answer a = {0};
    parse("{\"choices\":[{\"message\":{\"content\":\"\",\"tool_calls\":["
          "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}},"
          "{\"function\":{\"name\":\"g\",\"arguments\":\"{\\\"x\\\": \"}},"
          "{\"function\":{\"name\":\"h\",\"arguments\":{\"y\":[2]}}},"
          "{\"function\":{\"name\":\"i\",\"arguments\":\"[1]\"}}]},\"finish_reason\":\"tool_calls\"}]}", &a);
    json_t *expected = json_loads("[{\"name\":\"f\",\"arguments\":{\"x\":1}},{\"name\":\"g\",\"arguments\":null},"
                                  "{\"name\":\"h\",\"arguments\":{\"y\":[2]}},{\"name\":\"i\",\"arguments\":null}]", 0, NULL);
    assert_true(json_equal(a.calls, expected));
    assert_int_equal(a.finish, OPENAI_FINISH_CALLS);
    json_decref(expected);
    openai_answer_free(&a);
}

static void test_bad_answers(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"<html>", "not valid JSON"}, {"{}", "has no \"choices\""}, {"[]", "has no \"choices\""},
        {"{\"choices\":[]}", "has no \"choices\""}, {"{\"choices\":[{}]}", "neither a message nor a text"},
        {"{\"choices\":[{\"message\":{\"content\":[1]}}]}", "\"content\" must be a string, found an array"},
        {"{\"choices\":[{\"message\":{\"tool_calls\":{}}}]}", "\"tool_calls\" must be an array"},
        {"{\"choices\":[{\"message\":{\"tool_calls\":[{}]}}]}", "tool_calls[0] has no function.name"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        openai_answer a = {0};
        error err = {0};
        if (openai_answer_parse(bad[i][0], strlen(bad[i][0]), &a, &err) || !strstr(err.text, bad[i][1]))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i][0], err.text, bad[i][1]);
        assert_null(a.calls);
    }
}

static void test_models(void **state)
{
    (void)state;
    const char *good = "{\"object\":\"list\",\"data\":[{\"id\":\"zai-org/GLM-5.2\"},{\"id\":\"b\"}]}", *empty = "{\"data\":[]}";
    text name = {0};
    error err = {0};
    assert_true(openai_models_parse(good, strlen(good), &name, &err));
    assert_string_equal(name.data, "zai-org/GLM-5.2");
    assert_false(openai_models_parse(empty, strlen(empty), &name, &err));
    assert_non_null(strstr(err.text, "name the model yourself"));
    text_free(&name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),    cmocka_unit_test(test_bad_urls),    cmocka_unit_test(test_password_is_not_repeated),
        cmocka_unit_test(test_bodies),  cmocka_unit_test(test_answers),     cmocka_unit_test(test_calls),
        cmocka_unit_test(test_bad_answers), cmocka_unit_test(test_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
