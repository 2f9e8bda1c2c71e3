#include "serve/dispatch.h"

#include <arpa/inet.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "serve/http_parse.h"

/* ---- routes */

static bool path_matches(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    if (n >= 2 && pattern[n - 2] == '/' && pattern[n - 1] == '*')
        return strncmp(pattern, path, n - 1) == 0 && path[n - 1] != '\0';
    return strcmp(pattern, path) == 0;
}

const route *dispatch_route(const char *method, const char *path, const route **other)
{
    *other = NULL;
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (const route *r = server_routes; r->path; r++) {
        if (!path_matches(r->path, path))
            continue;
        if (strcmp(r->method, method) == 0)
            return r;
        *other = r;
    }
    return NULL;
}

/* "GET, HEAD, POST": what a path answers to. */
static void allowed_methods(const char *path, text *out)
{
    for (const route *r = server_routes; r->path; r++)
        if (path_matches(r->path, path))
            text_add_format(out, "%s, ", strcmp(r->method, "GET") == 0 ? "GET, HEAD" : r->method);
    text_add_text(out, "OPTIONS");
}

/* ---- Host and Origin: a page from elsewhere must not use a server on this machine through its user's browser */

/* A name can be made to point here by whoever owns it (DNS rebinding), an address in numbers cannot. */
static bool address_is_ours(const char *host, const char *bound, bool wildcard)
{
    struct in_addr four;
    struct in6_addr six;
    if (evutil_inet_pton(AF_INET, host, &four) == 1)
        return wildcard || ntohl(four.s_addr) >> 24 == 127 || strcmp(host, bound) == 0;
    if (evutil_inet_pton(AF_INET6, host, &six) == 1)
        return wildcard || IN6_IS_ADDR_LOOPBACK(&six) || strcasecmp(host, bound) == 0;
    return false;
}

bool dispatch_host_is_ours(const char *host, const char *bound, bool wildcard, const char *allowed)
{
    char name[256];
    if (!host || (allowed && (http_list_has(allowed, "*") || http_list_has(allowed, host))))
        return true;
    bool bracketed = host[0] == '[';
    host += bracketed;
    size_t n = strcspn(host, bracketed ? "]" : ":");
    const char *rest = host + n + (bracketed && host[n] == ']');
    if (n == 0 || n >= sizeof name || (bracketed && host[n] != ']'))
        return false;
    if (rest[0] && (rest[0] != ':' || strspn(rest + 1, "0123456789") != strlen(rest + 1)))
        return false;
    memcpy(name, host, n);
    name[n] = '\0';
    if (n > 1 && name[n - 1] == '.')
        name[n - 1] = '\0';
    return strcasecmp(name, "localhost") == 0 || strcasecmp(name, bound) == 0 || address_is_ours(name, bound, wildcard) ||
           (allowed && http_list_has(allowed, name));
}

static bool origin_is_same(const char *origin, const char *host)
{
    const char *authority = strstr(origin, "://");
    return authority && host && strcasecmp(authority + 3, host) == 0;
}

static bool origin_is_allowed(const server *s, const char *origin)
{
    const char *allowed = s->options.allowed_origins;
    return allowed && (http_list_has(allowed, "*") || http_list_has(allowed, origin));
}

/* Lets a page from an allowed origin read the reply. */
static void add_cross_origin(const server *s, http_exchange *x)
{
    const char *origin = http_header(x, "origin");
    if (!origin || !origin_is_allowed(s, origin) || http_has_added_header(x, "access-control-allow-origin"))
        return;
    http_add_header(x, "Access-Control-Allow-Origin", origin);
    http_add_header(x, "Access-Control-Expose-Headers", "x-request-id, retry-after");
    http_add_header(x, "Vary", "Origin");
}

static bool check_host(const server *s, http_exchange *x)
{
    const char *host = http_header(x, "host");
    if (dispatch_host_is_ours(host, http_server_host(s->http), http_server_is_wildcard(s->http), s->options.allowed_hosts))
        return true;
    server_reply_error(x, 421, NULL, "The Host \"%.100s\" is not a name of this server; start it with --allow-host to allow it.", host);
    return false;
}

static void reply_foreign(http_exchange *x, const char *origin)
{
    server_reply_error(x, 403, NULL, "Pages from %.100s may not use this server; start it with --allow-origin to allow them.", origin);
}

/* Browsers say where a request comes from; programs send neither header. */
static bool check_origin(const server *s, http_exchange *x, const route *r)
{
    const char *origin = http_header(x, "origin"), *site = http_header(x, "sec-fetch-site");
    bool reads = strcmp(http_method(x), "GET") == 0 || strcmp(http_method(x), "HEAD") == 0;
    bool foreign = origin ? !origin_is_same(origin, http_header(x, "host")) && !origin_is_allowed(s, origin)
                          : site && (strcmp(site, "cross-site") == 0 || strcmp(site, "same-site") == 0);
    if (!foreign || (reads && r->access == ROUTE_OPEN))
        return true;
    reply_foreign(x, origin ? origin : "another site");
    return false;
}

static void reply_options(const server *s, http_exchange *x)
{
    const char *origin = http_header(x, "origin"), *wanted = http_header(x, "access-control-request-headers");
    text methods = {0};
    allowed_methods(http_path(x), &methods);
    if (!origin || origin_is_same(origin, http_header(x, "host")) || origin_is_allowed(s, origin)) {
        http_add_header(x, "Allow", methods.data);
        if (origin && origin_is_allowed(s, origin)) {
            http_add_header(x, "Access-Control-Allow-Methods", methods.data);
            http_add_header(x, "Access-Control-Max-Age", "600");
            if (wanted)
                http_add_header(x, "Access-Control-Allow-Headers", wanted);
        }
        http_reply(x, 204, NULL, "", 0);
    } else {
        reply_foreign(x, origin);
    }
    text_free(&methods);
}

/* ---- a request */

static bool is_known_method(const char *method)
{
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(method, known[i]) == 0)
            return true;
    return false;
}

/* NULL: there is none, which has been said. */
static const route *find_route(http_exchange *x)
{
    const route *other, *r = dispatch_route(http_method(x), http_path(x), &other);
    if (r)
        return r;
    if (!is_known_method(http_method(x))) {
        server_reply_error(x, 501, NULL, "The method %s is not known.", http_method(x));
    } else if (other) {
        text methods = {0};
        allowed_methods(http_path(x), &methods);
        http_add_header(x, "Allow", methods.data);
        server_reply_error(x, 405, NULL, "%s does not answer to %s, only to %s.", http_path(x), http_method(x), methods.data);
        text_free(&methods);
    } else {
        server_reply_error(x, 404, NULL, "There is nothing at %.200s.", http_path(x));
    }
    return NULL;
}

static bool check_key(http_exchange *x, const route *r, const tenant *who)
{
    if (r->access == ROUTE_OPEN || (who && (who->admin || r->access == ROUTE_KEY)))
        return true;
    if (who) {
        server_reply_error(x, 403, NULL, "%s needs a key that is marked admin in the server's key file.", http_path(x));
        return false;
    }
    http_add_header(x, "WWW-Authenticate", "Bearer realm=\"drawbridge\"");
    bool given = http_header(x, "authorization") || http_header(x, "x-api-key");
    server_reply_error(x, 401, NULL, given ? "The API key is not right." :
                       "An API key is needed: send \"Authorization: Bearer KEY\" or \"x-api-key: KEY\".");
    return false;
}

/* Whether the request may go to the handler of *r; otherwise it has been answered. */
static bool admit(server *s, http_exchange *x, const route **r, tenant **who)
{
    add_cross_origin(s, x);
    if (s->draining)
        http_close_after(x);
    if (!http_has_added_header(x, "x-content-type-options"))
        http_add_header(x, "X-Content-Type-Options", "nosniff");
    if (!check_host(s, x))
        return false;
    if (strcmp(http_method(x), "OPTIONS") == 0) {
        reply_options(s, x);
        return false;
    }
    *r = find_route(x);
    if (!*r || !check_origin(s, x, *r))
        return false;
    *who = tenants_find(s->tenants, http_header(x, "authorization"), http_header(x, "x-api-key"));
    if (!check_key(x, *r, *who))
        return false;
    if (s->engine || (*r)->access == ROUTE_OPEN)
        return true;
    server_reply_error(x, 503, NULL, "The server is starting; try again in a moment.");
    return false;
}

void dispatch_request(void *context, http_exchange *x)
{
    server *s = context;
    const route *r;
    tenant *who;
    if (!admit(s, x, &r, &who))
        return;
    if (who && who->name[0])
        http_note(x, "tenant=%s", who->name);
    r->handler(s, x, who);
}

/* Before the body is read: who may not ask need not send it. */
static void on_head(void *context, http_exchange *x)
{
    const route *r;
    tenant *who;
    admit(context, x, &r, &who);
}

static void on_refusal(void *context, http_exchange *x, int status, const char *sentence)
{
    add_cross_origin(context, x);
    server_reply_error(x, status, NULL, "%s", sentence);
}

/* ---- the access log */

static void write_time(text *out)
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    text_add_format(out, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                    parts.tm_min, parts.tm_sec, (int)(now.tv_nsec / 1000000));
}

static void add_value(text *line, const char *key, const char *value)
{
    text_add_format(line, " %s=", key);
    if (*value && !strpbrk(value, " \"=\\")) {
        text_add_text(line, value);
        return;
    }
    text_add_char(line, '"');
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            text_add_char(line, '\\');
        text_add_char(line, *value);
    }
    text_add_char(line, '"');
}

static void log_words(const http_record *r, const char *now)
{
    text line = {0};
    text_add_format(&line, "time=%s", now);
    add_value(&line, "id", r->request_id);
    add_value(&line, "method", r->method);
    add_value(&line, "path", r->path);
    text_add_format(&line, " status=%d bytes_in=%zu bytes_out=%zu ms=%.3f peer=%s", r->status, r->request_bytes, r->reply_bytes,
                    (double)r->duration_us * 1e-3, r->peer);
    if (r->note)
        text_add_format(&line, " %s", r->note);
    log_info("%s", line.data);
    text_free(&line);
}

/* Counts are numbers; a name that consists of digits is still a name. */
static json_t *note_value(const char *key, const char *value, size_t length)
{
    static const char *const names[] = {"tenant", "rid", "user"};
    bool number = length > 0 && length <= 9 && strspn(value, "0123456789") >= length;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        number = number && strcmp(key, names[i]) != 0;
    return number ? json_integer(strtol(value, NULL, 10)) : json_stringn(value, length);
}

/* "key=value key=value" as members. */
static void add_note(json_t *line, const char *note)
{
    while (note && *note) {
        size_t n = strcspn(note, " "), key = strcspn(note, "= ");
        if (key < n) {
            char name[64];
            size_t length = key < sizeof name ? key : sizeof name - 1;
            memcpy(name, note, length);
            name[length] = '\0';
            json_object_set_new(line, name, note_value(name, note + key + 1, n - key - 1));
        }
        note += n + strspn(note + n, " ");
    }
}

static void log_json(const http_record *r, const char *now)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:f, s:s}", "time", now, "id", r->request_id, "method", r->method,
                             "path", r->path, "status", r->status, "bytes_in", (json_int_t)r->request_bytes, "bytes_out",
                             (json_int_t)r->reply_bytes, "ms", (double)r->duration_us * 1e-3, "peer", r->peer);
    add_note(line, r->note);
    char *words = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (words)
        log_info("%s", words);
    free(words);
    json_decref(line);
}

static void on_record(void *context, const http_record *r)
{
    server *s = context;
    const route *other, *row = dispatch_route(r->method, r->path, &other);
    /* unknown paths are one, so that nobody can make the metrics grow */
    metrics_http(s->metrics, row ? row->path : other ? other->path : "other", r->status, r->duration_us);
    if (log_level_now() < LOG_NORMAL)
        return;
    text now = {0};
    write_time(&now);
    (s->options.log_json ? log_json : log_words)(r, now.data);
    text_free(&now);
}

void dispatch_attach(server *s)
{
    http_server_on_head(s->http, on_head, s);
    http_server_on_refusal(s->http, on_refusal, s);
    http_server_on_record(s->http, on_record, s);
}

/* ---- what handlers use */

static bool has_anthropic_errors(const http_exchange *x)
{
    const route *other, *r = dispatch_route(http_method(x), http_path(x), &other);
    return r ? r->anthropic_errors : other && other->anthropic_errors;
}

const char *server_error_type(int status, bool anthropic)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: break;
    }
    if (status < 500)
        return "invalid_request_error";
    return anthropic ? "api_error" : "server_error";
}

void server_make_utf8(char *words)
{
    uint32_t c;
    for (size_t i = 0, length = strlen(words); i < length;) {
        int n = utf8_decode(words + i, length - i, &c);
        if (n == 0)
            words[i] = '?';
        i += n ? (size_t)n : 1;
    }
}

static json_t *error_value(http_exchange *x, int status, const char *param, const text *message)
{
    bool anthropic = has_anthropic_errors(x);
    const char *type = server_error_type(status, anthropic);
    if (anthropic)
        return json_pack("{s:s, s:{s:s, s:s%}, s:s}", "type", "error", "error", "type", type, "message", message->data,
                         message->length, "request_id", http_request_id(x));
    return json_pack("{s:{s:s%, s:s, s:s?, s:s?}}", "error", "message", message->data, message->length, "type", type, "param", param,
                     "code", status == 401 ? "invalid_api_key" : NULL);
}

void server_reply_error(http_exchange *x, int status, const char *param, const char *sentence, ...)
{
    text message = {0};
    va_list args;
    va_start(args, sentence);
    text_add_arguments(&message, sentence, args);
    va_end(args);
    server_make_utf8(message.data);
    if ((status == 429 || status == 503) && !http_has_added_header(x, "retry-after"))
        http_add_header(x, "Retry-After", "1");
    server_reply_json(x, status, error_value(x, status, param, &message));
    text_free(&message);
}

json_t *server_body(server *s, http_exchange *x)
{
    view body = http_body(x);
    error err = {0};
    const char *coding = http_header(x, "content-encoding");
    (void)s;
    if (coding && strcasecmp(coding, "identity") != 0) {
        server_reply_error(x, 415, NULL, "The Content-Encoding %.40s is not supported; send the body as it is.", coding);
        return NULL;
    }
    if (body.length == 0) {
        server_reply_error(x, 400, NULL, "The request has no body; expected a JSON object.");
        return NULL;
    }
    json_t *value = json_parse(body.data, body.length, "request body", &err);
    if (json_is_object(value))
        return value;
    if (value)
        server_reply_error(x, 400, NULL, "request body: expected a JSON object, found %s", json_type_name(value));
    else
        server_reply_error(x, 400, NULL, "%s", err.text);
    json_decref(value);
    return NULL;
}

void server_reply_json(http_exchange *x, int status, json_t *value)
{
    char *words = value ? json_dumps(value, JSON_COMPACT) : NULL;
    static const char failed[] = "{\"error\":{\"message\":\"The reply could not be written as JSON.\",\"type\":\"server_error\","
                                 "\"param\":null,\"code\":null}}";
    if (words)
        http_reply(x, status, "application/json", words, strlen(words));
    else
        http_reply(x, 500, "application/json", failed, sizeof failed - 1);
    free(words);
    json_decref(value);
}

static int add_to_text(const char *bytes, size_t count, void *out)
{
    text_add(out, bytes, count);
    return 0;
}

void server_send_event(http_exchange *x, const char *event, json_t *value)
{
    text line = {0};
    if (event)
        text_add_format(&line, "event: %s\n", event);
    text_add_text(&line, "data: ");
    if (json_dump_callback(value, add_to_text, &line, JSON_COMPACT | JSON_ENCODE_ANY) == 0) {
        text_add_text(&line, "\n\n");
        http_stream_write(x, line.data, line.length);
    } else {
        log_warning("an event of request %s could not be written as JSON and was left out", http_request_id(x));
    }
    text_free(&line);
    json_decref(value);
}
