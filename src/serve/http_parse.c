#include "serve/http_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

enum { BLANK_LINES_BYTES = 8, FIELDS_AT_FIRST = 16, BODY_AT_FIRST = 4096, CHUNK_DIGITS = 15 };

static bool bad(http_parser *p, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns false, so that a caller can `return bad(...)`. */
static bool bad(http_parser *p, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(p->problem, sizeof p->problem, format, args);
    va_end(args);
    p->status = status;
    return false;
}

/* ---- characters */

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

bool http_is_token(const char *s)
{
    if (!*s)
        return false;
    for (; *s; s++)
        if (!is_token_char((unsigned char)*s))
            return false;
    return true;
}

static bool is_digits(const char *s)
{
    size_t n = strspn(s, "0123456789");
    return n > 0 && s[n] == '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool http_percent_decode(view encoded, bool plus_is_blank, text *out)
{
    for (size_t i = 0; i < encoded.length; i++) {
        char c = encoded.data[i];
        if (c == '+' && plus_is_blank) {
            c = ' ';
        } else if (c == '%') {
            int high = i + 2 < encoded.length ? hex_value(encoded.data[i + 1]) : -1;
            int low = high >= 0 ? hex_value(encoded.data[i + 2]) : -1;
            if (low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        text_add_char(out, c);
    }
    return true;
}

/* The next word of a comma-separated list, without blanks around it; false at the end. Empty ones are left out. */
static bool next_word(const char **rest, view *word)
{
    const char *s = *rest;
    s += strspn(s, ", \t");
    if (!*s)
        return false;
    size_t n = strcspn(s, ",");
    *rest = s + n;
    while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t'))
        n--;
    *word = (view){s, n};
    return true;
}

static bool same_word(view word, const char *other)
{
    return word.length == strlen(other) && strncasecmp(word.data, other, word.length) == 0;
}

bool http_list_has(const char *list, const char *word)
{
    view found;
    while (list && next_word(&list, &found))
        if (same_word(found, word))
            return true;
    return false;
}

/* ---- the request line */

/* Decoded text becomes part of messages and logs, so it must be characters, none of them a control character. */
static bool is_clean(const text *t)
{
    for (size_t i = 0; i < t->length; i++)
        if ((unsigned char)t->data[i] < 0x20 || t->data[i] == 0x7F)
            return false;
    return t->length == 0 || utf8_valid(t->data, t->length);
}

/* Whether a segment of the path is "." or "..". Clients resolve them; one that is still there looks for files it should not see. */
static bool has_dot_segment(const char *path)
{
    for (const char *s = path; s; s = strchr(s + 1, '/')) {
        size_t n = strcspn(s + 1, "/");
        if ((n == 1 && s[1] == '.') || (n == 2 && s[1] == '.' && s[2] == '.'))
            return true;
    }
    return false;
}

static bool parse_query(http_parser *p, const char *query)
{
    text piece = {0};
    bool ok = true;
    while (ok && *query) {
        size_t n = strcspn(query, "&"), name = strcspn(query, "=&");
        view parts[2] = {{query, name}, {query + name + (name < n), n - name - (name < n)}};
        for (int i = 0; ok && i < 2 && n > 0; i++) {
            text_clear(&piece);
            ok = http_percent_decode(parts[i], true, &piece) && (piece.length == 0 || utf8_valid(piece.data, piece.length));
            text_add(&p->query, piece.length ? piece.data : "", piece.length);
            text_add_char(&p->query, '\0');
        }
        query += n + (query[n] == '&');
    }
    text_free(&piece);
    return ok || bad(p, 400, "The query of the request's target has a broken escape or is not UTF-8.");
}

/* "/path?query", "*" for OPTIONS, or "http://authority/path?query", whose authority then counts as the Host. */
static bool parse_target(http_parser *p, char *target)
{
    p->target = (uint32_t)(target - p->head.data);
    if (strcmp(target, "*") == 0 && strcmp(http_parser_method(p), "OPTIONS") == 0) {
        p->options_asterisk = true;
        text_add_char(&p->path, '*');
        return true;
    }
    const char *path = target;
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        const char *authority = strchr(target, ':') + 3;
        path = authority + strcspn(authority, "/?#");
        if (path == authority || memchr(authority, '@', (size_t)(path - authority)))
            return bad(p, 400, "The host in the request's target is empty or has a user name.");
        text_add(&p->authority, authority, (size_t)(path - authority));
    }
    size_t n = strcspn(path, "?#");
    if (strchr(path, '#'))
        return bad(p, 400, "The request's target has a fragment (#), which clients do not send.");
    if (path == target && *path != '/')
        return bad(p, 400, "The request's target must begin with a slash.");
    if (n == 0)
        text_add_char(&p->path, '/');
    if (!http_percent_decode((view){path, n}, false, &p->path) || !is_clean(&p->path))
        return bad(p, 400, "The path of the request has a broken escape, a control character, or is not UTF-8.");
    if (has_dot_segment(p->path.data))
        return bad(p, 400, "The path of the request has \".\" or \"..\" as a segment.");
    return path[n] != '?' || parse_query(p, path + n + 1);
}

static bool parse_version(http_parser *p, const char *version)
{
    if (strcmp(version, "HTTP/1.1") == 0 || strcmp(version, "HTTP/1.0") == 0) {
        p->minor = version[7] - '0';
        return true;
    }
    if (strlen(version) == 8 && strncmp(version, "HTTP/", 5) == 0 && hex_value(version[5]) >= 0 && version[6] == '.' &&
        hex_value(version[7]) >= 0)
        return bad(p, 505, "The HTTP version is not supported; expected HTTP/1.1 or HTTP/1.0.");
    return bad(p, 400, "The request line must be METHOD, blank, target, blank, HTTP/1.1.");
}

static bool parse_request_line(http_parser *p, char *line)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version || target == line || version == target + 1)
        return bad(p, 400, "The request line must be METHOD, blank, target, blank, HTTP/1.1.");
    *target++ = '\0';
    *version++ = '\0';
    if (!http_is_token(line) || strlen(line) > 32)
        return bad(p, 400, "The request's method is not a word.");
    for (const char *s = target; *s; s++)
        if ((unsigned char)*s <= ' ' || (unsigned char)*s >= 0x7F)
            return bad(p, 400, "The request's target has a character that must be escaped as %%XX.");
    p->method = (uint32_t)(line - p->head.data);
    return parse_version(p, version) && parse_target(p, target);
}

/* ---- header fields */

/* Splits a line at its colon, in place: *value is what follows, without blanks around it. */
static bool split_field(http_parser *p, char *line, char **value)
{
    if (*line == ' ' || *line == '\t')
        return bad(p, 400, "A header line begins with a blank; folded lines are not allowed.");
    char *colon = strchr(line, ':');
    if (!colon)
        return bad(p, 400, "A header line has no colon.");
    *colon = '\0';
    if (!http_is_token(line))
        return bad(p, 400, "The name of a header is empty or has a character that is not allowed, such as a blank before the colon.");
    char *start = colon + 1 + strspn(colon + 1, " \t"), *end = start + strlen(start);
    while (end > start && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    *value = start;
    return true;
}

static bool parse_field(http_parser *p, char *line)
{
    char *value;
    if (!split_field(p, line, &value))
        return false;
    if (p->field_count == HTTP_HEADERS_MOST)
        return bad(p, 431, "The request has more than %d headers.", HTTP_HEADERS_MOST);
    int n = p->field_count;
    if (n == 0 || (n >= FIELDS_AT_FIRST && (n & (n - 1)) == 0))
        p->fields = mem_grow(p->fields, n ? (size_t)n * 2 : FIELDS_AT_FIRST, sizeof *p->fields);
    p->fields[n] = (http_field){(uint32_t)(line - p->head.data), (uint32_t)(value - p->head.data)};
    p->field_count++;
    return true;
}

static bool check_host(http_parser *p)
{
    int hosts = 0;
    for (int i = 0; i < p->field_count; i++)
        hosts += strcasecmp(p->head.data + p->fields[i].name, "host") == 0;
    if (hosts > 1)
        return bad(p, 400, "The request has more than one Host header.");
    if (hosts == 0 && p->minor == 1)
        return bad(p, 400, "The request has no Host header, which HTTP/1.1 demands.");
    return true;
}

static bool check_content_length(http_parser *p, bool *given)
{
    const char *first = NULL;
    for (int i = 0; i < p->field_count; i++) {
        const char *value = p->head.data + p->fields[i].value;
        if (strcasecmp(p->head.data + p->fields[i].name, "content-length") != 0)
            continue;
        if (!is_digits(value))
            return bad(p, 400, "Content-Length is not a number.");
        if (first && strcmp(first, value) != 0)
            return bad(p, 400, "The request has several Content-Length headers that differ.");
        first = value;
    }
    *given = first != NULL;
    if (!first)
        return true;
    first += strspn(first, "0");
    p->content_length = strlen(first) > 18 ? UINT64_MAX : strtoull(first, NULL, 10);
    if (p->content_length > p->limits.body_bytes)
        return bad(p, 413, "The request's body is larger than the limit of %zu bytes.", p->limits.body_bytes);
    return true;
}

static bool check_transfer_encoding(http_parser *p, bool length_given)
{
    int found = 0;
    for (int i = 0; i < p->field_count; i++) {
        if (strcasecmp(p->head.data + p->fields[i].name, "transfer-encoding") != 0)
            continue;
        if (p->minor == 0)
            return bad(p, 400, "HTTP/1.0 has no Transfer-Encoding.");
        if (strcasecmp(p->head.data + p->fields[i].value, "chunked") != 0)
            return bad(p, 501, "The only Transfer-Encoding that is supported is \"chunked\".");
        found++;
    }
    if (found > 1)
        return bad(p, 400, "The request has more than one Transfer-Encoding header.");
    if (found && length_given)
        return bad(p, 400, "The request has both Content-Length and Transfer-Encoding.");
    p->chunked = found > 0;
    return true;
}

static bool check_fields(http_parser *p)
{
    bool length_given;
    if (!check_host(p) || !check_content_length(p, &length_given) || !check_transfer_encoding(p, length_given))
        return false;
    const char *expect = http_parser_header(p, "expect");
    if (expect && p->minor == 1) {
        if (strcasecmp(expect, "100-continue") != 0)
            return bad(p, 417, "The only Expect that is supported is \"100-continue\".");
        p->expects_continue = true;
    }
    bool close = false, keep = p->minor == 1;
    for (int i = 0; i < p->field_count; i++) {
        if (strcasecmp(p->head.data + p->fields[i].name, "connection") != 0)
            continue;
        close = close || http_list_has(p->head.data + p->fields[i].value, "close");
        keep = keep || http_list_has(p->head.data + p->fields[i].value, "keep-alive");
    }
    p->keep_alive = keep && !close;
    p->left = p->content_length;
    return true;
}

/* ---- lines */

/* Looks at a complete line, end included, and cuts its end off. */
static bool check_line(http_parser *p, char *line, size_t length)
{
    bool ok = length >= 2 && line[length - 2] == '\r';
    for (size_t i = 0; ok && i + 2 < length; i++)
        ok = ((unsigned char)line[i] >= 0x20 || line[i] == '\t') && line[i] != 0x7F;
    if (!ok)
        return bad(p, 400, "A line of the request's headers has a control character or does not end with CR LF.");
    line[length - 2] = '\0';
    return true;
}

/* Takes bytes up to a line feed into `lines`. True: *line is a terminated line without its end. False: more is needed, or bad. */
static bool take_line(http_parser *p, text *lines, const char *bytes, size_t count, size_t *used, char **line)
{
    const char *end = memchr(bytes, '\n', count);
    size_t n = end ? (size_t)(end - bytes) + 1 : count, room = p->limits.header_bytes - lines->length;
    if (n > room) {
        *used += room;
        return bad(p, 431, "The request's headers are larger than the limit of %zu bytes.", p->limits.header_bytes);
    }
    text_add(lines, bytes, n);
    *used += n;
    if (!end || !check_line(p, lines->data + p->line, lines->length - p->line))
        return false;
    *line = lines->data + p->line;
    p->line = lines->length;
    return true;
}

/* Blank lines before a request are skipped: some clients end a body with one too many. */
static bool feed_start(http_parser *p, char c, size_t *used)
{
    if (c == 0x16)
        return bad(p, 400, "This looks like TLS; the server speaks plain HTTP. Use http://, or put a proxy with TLS in front of it.");
    bool blank = c == (p->extra % 2 ? '\n' : '\r');
    if (!blank && (p->extra % 2 || !is_token_char((unsigned char)c)))
        return bad(p, 400, "The request does not begin with a method.");
    if (!blank) {
        p->extra = 0;
        p->state = HTTP_AT_LINE;
        return true;
    }
    *used += 1;
    return ++p->extra <= BLANK_LINES_BYTES || bad(p, 400, "The request begins with too many blank lines.");
}

static bool feed_line(http_parser *p, const char *bytes, size_t count, size_t *used)
{
    char *line;
    if (!take_line(p, &p->head, bytes, count, used, &line))
        return p->status == 0;
    if (!parse_request_line(p, line))
        return false;
    p->state = HTTP_AT_FIELDS;
    return true;
}

static bool feed_field(http_parser *p, const char *bytes, size_t count, size_t *used)
{
    char *line;
    if (!take_line(p, &p->head, bytes, count, used, &line))
        return p->status == 0;
    if (*line)
        return parse_field(p, line);
    if (!check_fields(p))
        return false;
    p->state = p->chunked ? HTTP_AT_SIZE : p->left > 0 ? HTTP_AT_BODY : HTTP_AT_END;
    p->line = 0;
    return true;
}

/* ---- the body */

/* Room for count more bytes; memory is taken as bytes come, not as they are announced. */
static bool body_reserve(http_parser *p, size_t count)
{
    size_t needed = p->body_length + count + 1, capacity = p->body_capacity ? p->body_capacity : BODY_AT_FIRST;
    if (needed <= p->body_capacity)
        return true;
    while (capacity < needed)
        capacity *= 2;
    if (!p->chunked && capacity > p->content_length + 1)
        capacity = (size_t)p->content_length + 1;
    char *grown = realloc(p->body, capacity);
    if (!grown)
        return bad(p, 503, "The server has no memory for the request's body now.");
    p->body = grown;
    p->body_capacity = capacity;
    return true;
}

static bool feed_body(http_parser *p, const char *bytes, size_t count, size_t *used)
{
    size_t n = count < p->left ? count : (size_t)p->left;
    if (!body_reserve(p, n))
        return false;
    memcpy(p->body + p->body_length, bytes, n);
    p->body_length += n;
    p->body[p->body_length] = '\0';
    p->left -= n;
    *used += n;
    if (p->left == 0)
        p->state = p->chunked ? HTTP_AT_CHUNK_END : HTTP_AT_END;
    return true;
}

/* The size line is complete. */
static bool chunk_begin(http_parser *p)
{
    if (p->left > p->limits.body_bytes - p->body_length)
        return bad(p, 413, "The request's body is larger than the limit of %zu bytes.", p->limits.body_bytes);
    p->digits = 0;
    p->state = p->left ? HTTP_AT_CHUNK : HTTP_AT_TRAILERS;
    return true;
}

static bool feed_size(http_parser *p, char c)
{
    int value = hex_value(c);
    if (value >= 0) {
        p->left = p->left * 16 + (uint64_t)value;
        return ++p->digits <= CHUNK_DIGITS || bad(p, 413, "A chunk of the request's body is too large.");
    }
    if (p->digits == 0 || (c != '\r' && c != ';'))
        return bad(p, 400, "The size of a chunk of the request's body is not a hexadecimal number.");
    p->state = c == ';' ? HTTP_AT_EXTENSION : HTTP_AT_SIZE_END;
    return true;
}

static bool feed_extension(http_parser *p, char c)
{
    if (c == '\r') {
        p->state = HTTP_AT_SIZE_END;
        return true;
    }
    if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7F)
        return bad(p, 400, "The extension of a chunk of the request's body has a control character.");
    return ++p->extra <= HTTP_EXTENSION_BYTES || bad(p, 400, "The chunks of the request's body have too many extensions.");
}

/* The bytes of a chunked body that are not data, one at a time. */
static bool feed_framing(http_parser *p, char c)
{
    switch (p->state) {
    case HTTP_AT_SIZE:
        return feed_size(p, c);
    case HTTP_AT_EXTENSION:
        return feed_extension(p, c);
    case HTTP_AT_SIZE_END:
        return c == '\n' ? chunk_begin(p) : bad(p, 400, "The line with the size of a chunk does not end with CR LF.");
    default:
        if (c != (p->state == HTTP_AT_CHUNK_END ? '\r' : '\n'))
            return bad(p, 400, "A chunk of the request's body is not followed by CR LF.");
        p->state = p->state == HTTP_AT_CHUNK_END ? HTTP_AT_CHUNK_END_2 : HTTP_AT_SIZE;
        return true;
    }
}

/* Trailers are checked like headers and dropped. */
static bool feed_trailer(http_parser *p, const char *bytes, size_t count, size_t *used)
{
    char *line, *value;
    if (!take_line(p, &p->trailers, bytes, count, used, &line))
        return p->status == 0;
    if (*line)
        return split_field(p, line, &value);
    p->state = HTTP_AT_END;
    return true;
}

/* Takes at least one byte, or changes the state, or fails. */
static bool feed_some(http_parser *p, const char *bytes, size_t count, size_t *used)
{
    switch (p->state) {
    case HTTP_AT_START:
        return feed_start(p, *bytes, used);
    case HTTP_AT_LINE:
        return feed_line(p, bytes, count, used);
    case HTTP_AT_FIELDS:
        return feed_field(p, bytes, count, used);
    case HTTP_AT_BODY:
    case HTTP_AT_CHUNK:
        return feed_body(p, bytes, count, used);
    case HTTP_AT_TRAILERS:
        return feed_trailer(p, bytes, count, used);
    default:
        *used += 1;
        return feed_framing(p, *bytes);
    }
}

http_parse_result http_parser_feed(http_parser *p, const char *bytes, size_t count, size_t *used)
{
    *used = 0;
    while (p->status == 0 && p->state != HTTP_AT_END && *used < count) {
        bool in_body = p->state >= HTTP_AT_BODY;
        size_t before = *used;
        if (!feed_some(p, bytes + *used, count - *used, used))
            break;
        p->body_wire += in_body ? *used - before : 0;
        if (!in_body && p->state >= HTTP_AT_BODY && p->state != HTTP_AT_END)
            return HTTP_PARSE_HEAD;
    }
    if (p->status)
        return HTTP_PARSE_BAD;
    return p->state == HTTP_AT_END ? HTTP_PARSE_DONE : HTTP_PARSE_MORE;
}

void http_parser_free(http_parser *p)
{
    text_free(&p->head);
    text_free(&p->trailers);
    text_free(&p->path);
    text_free(&p->query);
    text_free(&p->authority);
    free(p->fields);
    free(p->body);
    *p = (http_parser){.limits = p->limits};
}

/* ---- what was parsed */

bool http_parser_has_line(const http_parser *p)
{
    return p->state >= HTTP_AT_FIELDS;
}

bool http_parser_has_head(const http_parser *p)
{
    return p->state >= HTTP_AT_BODY;
}

const char *http_parser_method(const http_parser *p)
{
    return p->head.data + p->method;
}

const char *http_parser_header(const http_parser *p, const char *name)
{
    if (p->authority.length && strcasecmp(name, "host") == 0)
        return p->authority.data;
    for (int i = 0; i < p->field_count; i++)
        if (strcasecmp(p->head.data + p->fields[i].name, name) == 0)
            return p->head.data + p->fields[i].value;
    return NULL;
}

const char *http_parser_query(const http_parser *p, const char *name)
{
    const char *end = p->query.length ? p->query.data + p->query.length : NULL;
    for (const char *s = p->query.data; end && s < end;) {
        const char *value = s + strlen(s) + 1;
        if (strcmp(s, name) == 0)
            return value;
        s = value + strlen(value) + 1;
    }
    return NULL;
}
