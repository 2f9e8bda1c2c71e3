#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/random.h"
#include "serve/http_connection.h"

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
        {200, "OK"}, {201, "Created"}, {202, "Accepted"}, {204, "No Content"}, {304, "Not Modified"}, {400, "Bad Request"},
        {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"}, {405, "Method Not Allowed"}, {408, "Request Timeout"},
        {409, "Conflict"}, {413, "Content Too Large"}, {415, "Unsupported Media Type"}, {417, "Expectation Failed"},
        {421, "Misdirected Request"}, {422, "Unprocessable Content"}, {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"}, {501, "Not Implemented"},
        {503, "Service Unavailable"}, {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Status";
}

/* The Date header's value, made once a second. */
static const char *date_now(http_server *s)
{
    time_t now = time(NULL);
    struct tm parts;
    if (now != s->date_time && gmtime_r(&now, &parts)) {
        static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
        static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
        snprintf(s->date, sizeof s->date, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[parts.tm_wday], parts.tm_mday % 100,
                 months[parts.tm_mon], (parts.tm_year + 1900) % 10000, parts.tm_hour % 100, parts.tm_min % 100, parts.tm_sec % 100);
        s->date_time = now;
    }
    return s->date;
}

static bool is_sane_id(const char *id)
{
    size_t n = strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
    return n > 0 && n < HTTP_ID_BYTES && id[n] == '\0';
}

static void make_id(http_server *s, char out[HTTP_ID_BYTES])
{
    s->id_count++;
    snprintf(out, HTTP_ID_BYTES, "req_%016llx%08llx", (unsigned long long)random_word(s->id_seed, s->id_count, 0),
             (unsigned long long)(random_word(s->id_seed, s->id_count, 1) >> 32));
}

/* ---- the request */

const char *http_method(const http_exchange *x)
{
    return http_parser_has_line(&x->request) ? http_parser_method(&x->request) : "-";
}

const char *http_path(const http_exchange *x)
{
    return http_parser_has_line(&x->request) ? x->request.path.data : "-";
}

const char *http_query(const http_exchange *x, const char *name)
{
    return http_parser_query(&x->request, name);
}

const char *http_header(const http_exchange *x, const char *name)
{
    return http_parser_header(&x->request, name);
}

view http_body(const http_exchange *x)
{
    return (view){x->request.body ? x->request.body : "", x->request.body_length};
}

const char *http_peer(const http_exchange *x)
{
    return x->connection->peer;
}

const char *http_request_id(const http_exchange *x)
{
    if (x->id[0])
        return x->id;
    http_exchange *own = x->connection->exchange; /* x itself; the id is made when it is first asked for */
    const char *given = http_header(x, "x-request-id");
    if (given && is_sane_id(given))
        snprintf(own->id, sizeof own->id, "%s", given);
    else
        make_id(x->connection->server, own->id);
    return own->id;
}

uint64_t http_started_us(const http_exchange *x)
{
    return x->started_us;
}

/* ---- the reply */

void http_add_header(http_exchange *x, const char *name, const char *value)
{
    text_add_format(&x->added, "%s: ", name);
    for (const char *s = value; *s; s++)
        text_add_char(&x->added, (unsigned char)*s < 0x20 || *s == 0x7F ? ' ' : *s);
    text_add_text(&x->added, "\r\n");
}

bool http_has_added_header(const http_exchange *x, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = x->added.data; line && *line; line = strchr(line, '\n') + 1)
        if (strncasecmp(line, name, n) == 0 && line[n] == ':')
            return true;
    return false;
}

void http_note(http_exchange *x, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (x->note.length)
        text_add_char(&x->note, ' ');
    text_add_arguments(&x->note, format, args);
    va_end(args);
}

/* The status line and the headers, without the empty line. */
static void write_head(http_exchange *x, int status, const char *type, text *out)
{
    connection *c = x->connection;
    bool old = http_parser_has_line(&x->request) && x->request.minor == 0;
    if (x->at_head)
        c->close_after = c->linger = true;
    if (c->server->stopping)
        c->close_after = true;
    x->status = status;
    x->bodiless = status == 204 || status == 304 || strcmp(http_method(x), "HEAD") == 0;
    text_add_format(out, "HTTP/1.1 %d %s\r\nDate: %s\r\nX-Request-Id: %s\r\n", status, reason_of(status), date_now(c->server),
                    http_request_id(x));
    if (type)
        text_add_format(out, "Content-Type: %s\r\n", type);
    if (c->close_after)
        text_add_text(out, "Connection: close\r\n");
    else if (old)
        text_add_text(out, "Connection: keep-alive\r\n");
    text_add(out, x->added.data, x->added.length);
}

void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t bytes)
{
    text head = {0};
    write_head(x, status, type, &head);
    if (status != 204 && status != 304)
        text_add_format(&head, "Content-Length: %zu\r\n", bytes);
    text_add_text(&head, "\r\n");
    struct iovec pieces[] = {{head.data, head.length}, {(void *)(uintptr_t)body, x->bodiless ? 0 : bytes}};
    x->reply_bytes = pieces[1].iov_len;
    connection_send(x->connection, pieces, 2);
    text_free(&head);
    exchange_end(x);
}

void http_stream_begin(http_exchange *x, int status, const char *type)
{
    text head = {0};
    x->chunked = x->request.minor == 1;
    if (!x->chunked)
        x->connection->close_after = true; /* only the end of the connection tells the end of the body */
    x->events = text_starts_with(type, "text/event-stream");
    write_head(x, status, type, &head);
    if (x->events)
        text_add_text(&head, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    text_add_text(&head, x->chunked && !x->bodiless ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    struct iovec piece = {head.data, head.length};
    connection_send(x->connection, &piece, 1);
    text_free(&head);
    x->sent_us = clock_now_us();
    connection_arm_answering(x->connection);
}

void http_stream_write(http_exchange *x, const void *bytes, size_t count)
{
    connection *c = x->connection;
    char size[24];
    if (count == 0 || x->bodiless)
        return;
    x->reply_bytes += count;
    int n = x->chunked ? snprintf(size, sizeof size, "%zx\r\n", count) : 0;
    struct iovec pieces[] = {{size, (size_t)n}, {(void *)(uintptr_t)bytes, count}, {(char *)(uintptr_t) "\r\n", x->chunked ? 2 : 0}};
    connection_send(c, pieces, 3);
    if (connection_unsent(c) > c->server->options.unsent_bytes)
        connection_doom(c, "cut=slow-reader");
    x->sent_us = clock_now_us();
    if (x->events && !c->half_closed)
        connection_arm_answering(x->connection);
}

void http_stream_end(http_exchange *x)
{
    if (x->chunked && !x->bodiless)
        connection_send_text(x->connection, "0\r\n\r\n");
    exchange_end(x);
}

bool http_streaming(const http_exchange *x)
{
    return x->status != 0;
}

void http_close_after(http_exchange *x)
{
    x->connection->close_after = true;
}

void http_on_closed(http_exchange *x, void (*closed)(void *context), void *context)
{
    x->closed = closed;
    x->closed_context = context;
}
