/* Bytes of a client through the HTTP request parser, whole and cut at places the input chooses. Checked: no crash, the same result
 * and the same bytes used in both ways, limits kept, and what a parsed request promises: a clean path, a terminated body. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/http_parse.h"

static void require(bool ok)
{
    if (!ok)
        abort();
}

static const http_parser_limits limits = {300, 200};

static void check_request(const http_parser *p)
{
    require(http_parser_has_head(p) && http_is_token(http_parser_method(p)));
    require(p->path.length == strlen(p->path.data) && (p->path.data[0] == '/' || strcmp(p->path.data, "*") == 0));
    require(utf8_valid(p->path.data, p->path.length) && !strstr(p->path.data, "/../"));
    require(p->body_length <= limits.body_bytes && p->head.length <= limits.header_bytes);
    require(!p->body || p->body[p->body_length] == '\0');
    require(!p->chunked || !http_parser_header(p, "content-length"));
    for (int i = 0; i < p->field_count; i++)
        require(http_is_token(p->head.data + p->fields[i].name) && !strpbrk(p->head.data + p->fields[i].value, "\r\n"));
    http_parser_query(p, "a");
}

/* Feeds one request; pieces of 1 to `most` bytes. Returns bytes used. */
static size_t feed(http_parser *p, const uint8_t *data, size_t size, size_t most, http_parse_result *result)
{
    size_t at = 0, step = 1;
    *result = HTTP_PARSE_MORE;
    while (at < size && (*result == HTTP_PARSE_MORE || *result == HTTP_PARSE_HEAD)) {
        size_t n = step % most + 1, used;
        n = n < size - at ? n : size - at;
        char *copy = malloc(n); /* memory of its own, so that a read beyond it is seen */
        require(copy != NULL);
        memcpy(copy, data + at, n);
        *result = http_parser_feed(p, copy, n, &used);
        free(copy);
        require(used <= n && (*result != HTTP_PARSE_MORE || used == n) && (used > 0 || *result != HTTP_PARSE_HEAD));
        require((*result == HTTP_PARSE_BAD) == (p->status != 0));
        at += used;
        step = step * 7 + 3;
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t most = size ? data[size - 1] % 16 + 1 : 1;
    for (int requests = 0; size > 0 && requests < 8; requests++) {
        http_parser whole = {.limits = limits}, cut = {.limits = limits};
        http_parse_result a, b;
        size_t used = feed(&whole, data, size, size, &a), again = feed(&cut, data, size, most, &b);
        require(a == b && whole.status == cut.status && (a == HTTP_PARSE_BAD || used == again));
        require(whole.body_length == cut.body_length || a == HTTP_PARSE_BAD);
        require(whole.body_length == 0 || a == HTTP_PARSE_BAD || memcmp(whole.body, cut.body, whole.body_length) == 0);
        if (a == HTTP_PARSE_DONE)
            check_request(&whole);
        http_parser_free(&whole);
        http_parser_free(&cut);
        if (a != HTTP_PARSE_DONE)
            break;
        data += used;
        size -= used;
    }
    return 0;
}
