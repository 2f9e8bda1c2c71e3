/* The HTTP request parser: what is taken, what is refused and with which status, however the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the above */
#include <cmocka.h>

#include "base/memory.h"
#include "serve/http_parse.h"

#define H "Host: a\r\n"

static const http_parser_limits limits = {512, 100};

/* What is left to compare of a request: "status" or "method path query-pairs body keep". */
static void describe(const http_parser *p, http_parse_result result, text *out)
{
    if (result == HTTP_PARSE_BAD) {
        assert_true(p->problem[0] != '\0');
        text_add_format(out, "%d", p->status);
        return;
    }
    if (result != HTTP_PARSE_DONE) {
        text_add_text(out, "more");
        return;
    }
    text_add_format(out, "%s %s", http_parser_method(p), p->path.data);
    for (size_t i = 0; i < p->query.length; i++)
        text_add_char(out, p->query.data[i] ? p->query.data[i] : '|');
    text_add_format(out, " [%s]%s%s", p->body ? p->body : "", p->keep_alive ? " keep" : "", p->expects_continue ? " expect" : "");
    assert_true(http_parser_has_head(p));
    assert_true(!p->body || strlen(p->body) == p->body_length);
}

/* Feeds in pieces: the first of `first` bytes, the others of `size`. Returns bytes used. Every piece is memory of its own, so that a
 * sanitizer sees a read beyond it. */
static size_t feed(const char *bytes, size_t count, size_t first, size_t size, text *out)
{
    http_parser p = {.limits = limits};
    http_parse_result result = HTTP_PARSE_MORE;
    size_t at = 0, piece = first;
    int heads = 0;
    while (at < count && (result == HTTP_PARSE_MORE || result == HTTP_PARSE_HEAD)) {
        size_t n = piece < count - at ? piece : count - at, used, offset = 0;
        char *copy = malloc(n ? n : 1);
        memcpy(copy, bytes + at, n);
        do {
            result = http_parser_feed(&p, copy + offset, n - offset, &used);
            offset += used;
            heads += result == HTTP_PARSE_HEAD;
        } while (result == HTTP_PARSE_HEAD && offset < n);
        assert_true(offset <= n);
        if (result == HTTP_PARSE_MORE)
            assert_int_equal(offset, n);
        at += offset;
        piece = size;
        free(copy);
    }
    assert_true(heads <= 1);
    describe(&p, result, out);
    http_parser_free(&p);
    return at;
}

/* However it is cut, the same result; and of a complete request the same number of bytes. */
static void check_bytes(const char *bytes, size_t count, const char *expected, const char *rest)
{
    text whole = {0};
    size_t used = feed(bytes, count, count, count, &whole);
    if (strcmp(whole.data, expected) != 0)
        print_error("in: %.*s\n", (int)count, bytes);
    assert_string_equal(whole.data, expected);
    if (rest)
        assert_int_equal(count - used, strlen(rest));
    for (size_t cut = 1; cut < count; cut++) {
        text out = {0};
        size_t again = feed(bytes, count, cut, count, &out);
        assert_string_equal(out.data, expected);
        if (rest)
            assert_int_equal(again, used);
        text_free(&out);
    }
    text out = {0};
    feed(bytes, count, 1, 1, &out);
    assert_string_equal(out.data, expected);
    text_free(&out);
    text_free(&whole);
}

static void check(const char *request, const char *expected)
{
    check_bytes(request, strlen(request), expected, NULL);
}

static void check_rest(const char *request, const char *rest, const char *expected)
{
    text all = {0};
    text_add_format(&all, "%s%s", request, rest);
    check_bytes(all.data, all.length, expected, rest);
    text_free(&all);
}

static void test_good(void **state)
{
    (void)state;
    check("GET / HTTP/1.1\r\n" H "\r\n", "GET / [] keep");
    check("\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", "GET / [] keep");
    check("GET / HTTP/1.0\r\n\r\n", "GET / []");
    check("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "GET / [] keep");
    check("GET / HTTP/1.1\r\n" H "Connection: foo , CLOSE\r\n\r\n", "GET / []");
    check("GET / HTTP/1.1\r\n" H "Connection: foo\r\nconnection: close\r\n\r\n", "GET / []");
    check("GET /a%20b/%c3%A9?x=1&y=%26+z&flag&=e HTTP/1.1\r\n" H "\r\n", "GET /a b/\xc3\xa9x|1|y|& z|flag|||e| [] keep");
    check("GET /a?&&b=c& HTTP/1.1\r\n" H "\r\n", "GET /ab|c| [] keep");
    check("OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS * [] keep");
    check("GET http://b:80/x?y HTTP/1.1\r\n" H "\r\n", "GET /xy|| [] keep");
    check("GET http://b HTTP/1.1\r\n" H "\r\n", "GET / [] keep");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", "POST /p [hello] keep");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 005\r\ncontent-length: 005\r\n\r\nhello", "POST /p [hello] keep");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", "POST /p [] keep");
    check("POST /p HTTP/1.1\r\n" H "Expect: 100-Continue\r\nContent-Length: 2\r\n\r\nhi", "POST /p [hi] keep expect");
    check("POST /p HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi", "POST /p [hi]");
    check("X-Y!# / HTTP/1.1\r\n" H "\r\n", "X-Y!# / [] keep");
    check("GET / HTTP/1.1\r\n" H "Empty:\r\nTab:\tx\ty \t\r\nBytes: \xff\xfe\r\n\r\n", "GET / [] keep");
}

static void test_chunked(void **state)
{
    (void)state;
    const char *head = "POST /p HTTP/1.1\r\n" H "Transfer-Encoding: Chunked\r\n\r\n";
    static const struct {
        const char *body, *expected;
    } cases[] = {
        {"5\r\nhello\r\n0\r\n\r\n", "POST /p [hello] keep"},
        {"0\r\n\r\n", "POST /p [] keep"},
        {"2\r\nhe\r\n0003;name=\"v\"\r\nllo\r\n00\r\nTrailer: x\r\nContent-Length: 7\r\n\r\n", "POST /p [hello] keep"},
        {"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", "POST /p [01234567890123456789] keep"},
        {"5\r\nhello\r\n", "more"},
        {"5\nhello\r\n0\r\n\r\n", "400"},
        {"5\r\nhello\n0\r\n\r\n", "400"},
        {"5\r\nhelloX\r\n0\r\n\r\n", "400"},
        {"5\r\nhelloXY0\r\n\r\n", "400"},
        {"5\r\nhello\rY0\r\n\r\n", "400"},
        {"5 \r\nhello\r\n0\r\n\r\n", "400"},
        {" 5\r\nhello\r\n0\r\n\r\n", "400"},
        {"\r\nhello\r\n0\r\n\r\n", "400"},
        {";x\r\nhello\r\n0\r\n\r\n", "400"},
        {"0x5\r\nhello\r\n0\r\n\r\n", "400"},
        {"-5\r\nhello\r\n0\r\n\r\n", "400"},
        {"+5\r\nhello\r\n0\r\n\r\n", "400"},
        {"5;a\x01\r\nhello\r\n0\r\n\r\n", "400"},
        {"5;a\nhello\r\n0\r\n\r\n", "400"},
        {"5\rXhello\r\n0\r\n\r\n", "400"},
        {"65\r\n", "413"},
        {"64\r\n", "more"},
        {"ffffffffffffffff\r\n", "413"},
        {"10000000000000005\r\nhello\r\n0\r\n\r\n", "413"},
        {"0\r\nbad trailer\r\n\r\n", "400"},
        {"0\r\n folded: x\r\n\r\n", "400"},
        {"0\r\nx: y\n\r\n", "400"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text all = {0};
        text_add_format(&all, "%s%s", head, cases[i].body);
        check(all.data, cases[i].expected);
        text_free(&all);
    }
    text many = {0};
    text_add_text(&many, head);
    for (int i = 0; i < 11; i++)
        text_add_text(&many, "a\r\n0123456789\r\n");
    check(many.data, "413");
    text_free(&many);
}

static void test_smuggling(void **state)
{
    (void)state;
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 5, 5\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: -5\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 0x5\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length:\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length : 5\r\n\r\nhello", "400");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 18446744073709551621\r\n\r\nhello", "413");
    check("POST /p HTTP/1.1\r\n" H "Content-Length: 101\r\n\r\n", "413");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: gzip\r\n\r\n", "501");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", "501");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: identity\r\n\r\n", "501");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n", "501");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "400");
    check("POST /p HTTP/1.1\r\n" H "Transfer-Encoding:\x0b" "chunked\r\n\r\n", "400");
    check("POST /p HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H " folded\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n folded: first\r\n" H "\r\n", "400");
    check("GET / HTTP/1.1\r\n" H "no colon\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H ": no name\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H "a b: c\r\n\r\n", "400");
    check("GET / HTTP/1.1\n" H "\r\n", "400");
    check("GET / HTTP/1.1\r\nHost: a\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H "\n", "400");
    check("GET / HTTP/1.1\r\n" H "X: a\rb\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H "X: a\r\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H H "\r\n", "400");
    check("GET / HTTP/1.1\r\n\r\n", "400");
    check("GET / HTTP/1.1\r\n" H "Expect: wonders\r\n\r\n", "417");
    static const char nul[] = "GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", nul_name[] = "GET / HTTP/1.1\r\nHo\0st: a\r\n\r\n";
    check_bytes(nul, sizeof nul - 1, "400", NULL);
    check_bytes(nul_name, sizeof nul_name - 1, "400", NULL);
}

static void test_request_line(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "GET /", "GET", "GET  / HTTP/1.1", "GET / HTTP/1.1 ", " GET / HTTP/1.1", "GET /a b HTTP/1.1", "G@T / HTTP/1.1",
        "GET a HTTP/1.1", "GET * HTTP/1.1", "GET ?x HTTP/1.1", "GET /# HTTP/1.1", "GET /\xff HTTP/1.1", "GET /%ff HTTP/1.1",
        "GET /%00 HTTP/1.1", "GET /%0 HTTP/1.1", "GET /% HTTP/1.1", "GET /%zz HTTP/1.1", "GET /%0a HTTP/1.1", "GET /%7f HTTP/1.1",
        "GET /.. HTTP/1.1", "GET /a/%2e%2e/b HTTP/1.1", "GET /./a HTTP/1.1", "GET /a%2f..%2fb HTTP/1.1",
        "GET /?a=%00 HTTP/1.1", "GET /?a=%f HTTP/1.1", "GET /?%ff HTTP/1.1", "GET http:///x HTTP/1.1", "GET http://u@h/ HTTP/1.1",
        "GET / HTTP/1", "GET / http/1.1", "GET / HTTP/1.10", "GET / HTTP/x.1", "\x80 / HTTP/1.1",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA / HTTP/1.1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        text all = {0};
        text_add_format(&all, "%s\r\n" H "\r\n", lines[i]);
        check(all.data, "400");
        text_free(&all);
    }
    check("GET / HTTP/1.2\r\n" H "\r\n", "505");
    check("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505");
    check("GET /...a/..b HTTP/1.1\r\n" H "\r\n", "GET /...a/..b [] keep");
    check("\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", "400");
    check("\n", "400");
    check("\rGET / HTTP/1.1\r\n" H "\r\n", "400");
    check("\x16\x03\x01\x02", "400");
}

static void test_limits(void **state)
{
    (void)state;
    text long_line = {0}, many = {0}, exact = {0};
    text_add_text(&long_line, "GET /");
    while (long_line.length < limits.header_bytes + 50)
        text_add_char(&long_line, 'a');
    check(long_line.data, "431");
    text_add_text(&many, "GET / HTTP/1.1\r\n" H);
    for (int i = 0; i < HTTP_HEADERS_MOST; i++)
        text_add_text(&many, "a:\r\n");
    text_add_text(&many, "\r\n");
    check(many.data, "431"); /* of bytes */
    text_add_text(&exact, "GET / HTTP/1.1\r\n" H "X: ");
    while (exact.length < limits.header_bytes - 4)
        text_add_char(&exact, 'x');
    text_add_text(&exact, "\r\n\r\n");
    assert_int_equal(exact.length, limits.header_bytes);
    text out = {0};
    feed(exact.data, exact.length, exact.length, 1, &out);
    assert_string_equal(out.data, "GET / [] keep");
    text_free(&out);

    http_parser p = {.limits = {1 << 20, 100}};
    size_t used;
    assert_int_equal(http_parser_feed(&p, many.data, many.length, &used), HTTP_PARSE_BAD); /* of fields */
    assert_int_equal(p.status, 431);
    http_parser_free(&p);

    /* the trailers have the same limit, extensions one of their own */
    text trailers = {0};
    text_add_text(&trailers, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0\r\n");
    for (size_t i = 0; i < limits.header_bytes; i += 4)
        text_add_text(&trailers, "a:\r\n");
    text_add_text(&trailers, "b:\r\n");
    check(trailers.data, "431");
    text_free(&trailers);
    text_add_text(&trailers, "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n0;");
    for (int i = 0; i <= HTTP_EXTENSION_BYTES; i++)
        text_add_char(&trailers, 'e');
    check(trailers.data, "400");
    text_free(&trailers);
    text_free(&long_line);
    text_free(&many);
    text_free(&exact);
}

static void test_pipelined_rest(void **state)
{
    (void)state;
    check_rest("GET /1 HTTP/1.1\r\n" H "\r\n", "GET /2 HTTP/1.1\r\n" H "\r\n", "GET /1 [] keep");
    check_rest("POST /1 HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc", "GET /2", "POST /1 [abc] keep");
    check_rest("POST /1 HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "POST", "POST /1 [abc] keep");
}

static void test_getters(void **state)
{
    (void)state;
    http_parser p = {.limits = limits};
    size_t used;
    const char *request = "GET http://real:81/x?a=1&b=&a=2&c HTTP/1.1\r\nHOST: other\r\nX-A: 1\r\nx-a: 2\r\n\r\n";
    assert_int_equal(http_parser_feed(&p, request, strlen(request), &used), HTTP_PARSE_DONE);
    assert_string_equal(http_parser_header(&p, "x-A"), "1");
    assert_string_equal(http_parser_header(&p, "Host"), "real:81");
    assert_null(http_parser_header(&p, "x-"));
    assert_string_equal(http_parser_query(&p, "a"), "1");
    assert_string_equal(http_parser_query(&p, "b"), "");
    assert_string_equal(http_parser_query(&p, "c"), "");
    assert_null(http_parser_query(&p, "d"));
    http_parser_free(&p);
    assert_true(http_list_has("a, B ,c", "b"));
    assert_false(http_list_has("a, bc", "b"));
    assert_false(http_list_has(NULL, "b"));
    assert_false(http_list_has("", ""));
}

/* A body's memory follows what came, not what was announced. */
static void test_body_memory(void **state)
{
    (void)state;
    http_parser p = {.limits = {4096, (size_t)1 << 40}};
    size_t used;
    const char *request = "POST / HTTP/1.1\r\n" H "Content-Length: 1000000000000\r\n\r\n";
    assert_int_equal(http_parser_feed(&p, request, strlen(request), &used), HTTP_PARSE_HEAD);
    assert_int_equal(http_parser_feed(&p, "x", 1, &used), HTTP_PARSE_MORE);
    assert_true(p.body_capacity <= 4096);
    http_parser_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),           cmocka_unit_test(test_chunked), cmocka_unit_test(test_smuggling),
        cmocka_unit_test(test_request_line),   cmocka_unit_test(test_limits),  cmocka_unit_test(test_pipelined_rest),
        cmocka_unit_test(test_getters),        cmocka_unit_test(test_body_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
