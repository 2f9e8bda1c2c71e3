#include "eval/http_url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"

static const char name_characters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
static const char address_characters[] = "0123456789abcdefABCDEF:.";
static const char form[] = "expected http://HOST[:PORT][/PREFIX], for example http://127.0.0.1:8000";

/* The input with anything that a terminal would act on replaced, cut to a length that fits a sentence. */
static const char *shown(const char *input, char *buffer, size_t bytes)
{
    size_t n = 0;
    for (; input[n] && n + 1 < bytes; n++)
        buffer[n] = input[n] > ' ' && input[n] < 127 ? input[n] : '?';
    buffer[n] = '\0';
    return buffer;
}

static bool refuse(const char *input, const char *reason, error *err)
{
    char buffer[200];
    return error_set(err, ERROR_USAGE, "the URL \"%s\" %s; %s", shown(input, buffer, sizeof buffer), reason, form);
}

static bool scheme_skip(const char *input, const char **rest, error *err)
{
    if (strncasecmp(input, "https://", 8) == 0)
        return error_set(err, ERROR_USAGE, "https is not supported: run a local proxy that speaks TLS to the server "
                                           "(nginx, stunnel, ssh -L) and give its http:// address");
    if (strncasecmp(input, "http://", 7) != 0)
        return refuse(input, "does not begin with http://", err);
    *rest = input + 7;
    return true;
}

/* Every byte of a URL that is allowed here is printable ASCII; a blank or a line end could start another header. */
static bool bytes_check(const char *input, error *err)
{
    for (const char *p = input; *p; p++)
        if (*p <= ' ' || *p >= 127)
            return refuse(input, "has a blank, a control character or a character that is not ASCII", err);
    return true;
}

static bool parts_check(const char *input, const char *authority, size_t length, error *err)
{
    if (memchr(authority, '@', length)) /* the text is not repeated: it holds a password */
        return error_set(err, ERROR_USAGE, "the URL holds a user name or a password; give a key in a file or in the "
                                           "environment instead");
    if (strpbrk(input, "?#"))
        return refuse(input, "has a query or a fragment", err);
    return true;
}

/* Cuts "[address]" or "host" off the authority; *rest is what follows, "" or ":port". */
static bool host_take(const char *input, view authority, http_url *out, view *rest, error *err)
{
    bool bracket = authority.length > 0 && authority.data[0] == '[';
    const char *end = memchr(authority.data, bracket ? ']' : ':', authority.length);
    if (bracket && !end)
        return refuse(input, "has a '[' without ']'", err);
    const char *from = authority.data + (bracket ? 1 : 0);
    const char *to = end ? end : authority.data + authority.length;
    if (to == from)
        return refuse(input, "has no host", err);
    if ((size_t)(to - from) >= sizeof out->host)
        return refuse(input, "has a host name longer than 255 bytes", err);
    memcpy(out->host, from, (size_t)(to - from));
    out->host[to - from] = '\0';
    if (out->host[strspn(out->host, bracket ? address_characters : name_characters)])
        return refuse(input, bracket ? "has no valid IPv6 address" : "has no valid host name", err);
    to += bracket ? 1 : 0;
    *rest = (view){to, (size_t)(authority.data + authority.length - to)};
    return true;
}

static bool port_take(const char *input, view rest, http_url *out, error *err)
{
    strcpy(out->port, "80");
    if (rest.length == 0)
        return true;
    long port = 0;
    if (rest.data[0] != ':' || rest.length < 2 || rest.length > 6)
        return refuse(input, "has no valid port after its host", err);
    for (size_t i = 1; i < rest.length; i++) {
        if (rest.data[i] < '0' || rest.data[i] > '9')
            return refuse(input, "has a port that is not a number", err);
        port = port * 10 + (rest.data[i] - '0');
    }
    if (port < 1 || port > 65535)
        return refuse(input, "has a port outside 1 to 65535", err);
    snprintf(out->port, sizeof out->port, "%d", (int)(port & 0xffff));
    return true;
}

static void slashes_cut(char *path)
{
    for (size_t n = strlen(path); n > 0 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
}

static bool prefix_take(const char *input, const char *path, http_url *out, error *err)
{
    size_t length = strlen(path);
    if (length >= sizeof out->prefix)
        return refuse(input, "has a path longer than 511 bytes", err);
    memcpy(out->prefix, path, length + 1);
    slashes_cut(out->prefix);
    if (text_ends_with(out->prefix, "/v1"))
        out->prefix[strlen(out->prefix) - 3] = '\0';
    slashes_cut(out->prefix);
    return true;
}

bool http_url_parse(const char *input, http_url *out, error *err)
{
    const char *start = "";
    view rest = {0};
    *out = (http_url){0};
    if (!scheme_skip(input, &start, err))
        return false;
    size_t length = strcspn(start, "/?#");
    if (!parts_check(input, start, length, err) || !bytes_check(input, err) ||
        !host_take(input, (view){start, length}, out, &rest, err) || !port_take(input, rest, out, err) ||
        !prefix_take(input, start + length, out, err))
        return false;
    bool ipv6 = strchr(out->host, ':') != NULL;
    bool usual = strcmp(out->port, "80") == 0;
    snprintf(out->origin, sizeof out->origin, "%s%s%s%s%s", ipv6 ? "[" : "", out->host, ipv6 ? "]" : "", usual ? "" : ":",
             usual ? "" : out->port);
    return true;
}
