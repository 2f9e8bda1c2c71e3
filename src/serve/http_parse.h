/* A parser of HTTP/1.x requests that takes its bytes in any pieces: the same bytes give the same result however they are cut.
 *
 * Strict where two programs could read the same bytes differently (request smuggling): lines end with CR LF, no blank before a
 * colon, no folded lines, no control characters, one Content-Length or one "Transfer-Encoding: chunked", never both. */
#ifndef SERVE_HTTP_PARSE_H
#define SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

enum { HTTP_HEADERS_MOST = 128, HTTP_EXTENSION_BYTES = 1024 }; /* fields of a request; bytes of chunk extensions of a request */

typedef struct http_parser_limits {
    size_t header_bytes; /* request line and headers; trailers of a chunked body again as many */
    size_t body_bytes;
} http_parser_limits;

typedef enum http_parse_result {
    HTTP_PARSE_MORE, /* all bytes were taken; more are needed */
    HTTP_PARSE_HEAD, /* the headers are complete and a body follows; once, before the first byte of the body is taken */
    HTTP_PARSE_DONE, /* the request is complete */
    HTTP_PARSE_BAD,  /* status and problem say why; nothing more may be fed */
} http_parse_result;

/* Places in `head`, which holds terminated strings once the headers are complete. */
typedef struct http_field {
    uint32_t name, value;
} http_field;

typedef enum http_parser_state {
    HTTP_AT_START,       /* blank lines before the request line */
    HTTP_AT_LINE,        /* the request line */
    HTTP_AT_FIELDS,
    HTTP_AT_BODY,        /* `left` bytes of Content-Length */
    HTTP_AT_SIZE,        /* the line with a chunk's size */
    HTTP_AT_EXTENSION,   /* of that line, after a semicolon */
    HTTP_AT_SIZE_END,    /* its line feed */
    HTTP_AT_CHUNK,       /* `left` bytes of the chunk */
    HTTP_AT_CHUNK_END,   /* CR after the chunk */
    HTTP_AT_CHUNK_END_2, /* LF */
    HTTP_AT_TRAILERS,
    HTTP_AT_END,
} http_parser_state;

/* One request. Zero-initialise, set limits; http_parser_free releases what it owns. */
typedef struct http_parser {
    http_parser_limits limits;
    http_parser_state state;
    text head;            /* bytes of the request line and headers */
    text trailers;        /* those of a chunked body */
    size_t line;          /* where the line being read begins in head or trailers */
    http_field *fields;   /* [field_count] */
    int field_count;
    text path;            /* decoded */
    text query;           /* decoded: name NUL value NUL ... */
    text authority;       /* host of a target like http://host/path; it counts instead of the Host header */
    char *body;           /* terminated */
    size_t body_length, body_capacity;
    uint64_t left;        /* bytes of the body or chunk that are still to come */
    int digits;           /* of the chunk size so far */
    size_t extra;         /* bytes of blank lines before the request, then of chunk extensions, so far */
    size_t body_wire;     /* bytes of the body as sent, framing included */
    uint32_t method, target; /* places in head */
    int minor;            /* HTTP/1.minor */
    bool chunked;
    uint64_t content_length;
    bool expects_continue;   /* Expect: 100-continue */
    bool keep_alive;         /* the client lets the connection stay open */
    bool options_asterisk;   /* OPTIONS * */
    int status;              /* HTTP_PARSE_BAD: what to answer */
    char problem[200];       /* and why, a sentence */
} http_parser;

/* Takes bytes; *used says how many. HTTP_PARSE_HEAD and HTTP_PARSE_DONE may leave some: they belong to the body, which is fed next, and to
 * the next request. */
http_parse_result http_parser_feed(http_parser *p, const char *bytes, size_t count, size_t *used);
void http_parser_free(http_parser *p);

bool http_parser_has_line(const http_parser *p); /* method and path are known */
bool http_parser_has_head(const http_parser *p); /* the headers are complete */
const char *http_parser_method(const http_parser *p);
const char *http_parser_header(const http_parser *p, const char *name); /* any case; the first of several; NULL: absent */
const char *http_parser_query(const http_parser *p, const char *name);  /* NULL: absent */

/* Whether a comma-separated list has this word, in any case. */
bool http_list_has(const char *list, const char *word);

/* Decodes %XX (and + as a blank, for queries) at the end of out; false for broken escapes and for %00. */
bool http_percent_decode(view encoded, bool plus_is_blank, text *out);

bool http_is_token(const char *s); /* a method or a field name: not empty, only characters that RFC 9110 allows */

#endif
