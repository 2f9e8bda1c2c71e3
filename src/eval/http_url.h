/* The base address of a server as a user writes it: http://HOST[:PORT][/PREFIX]. */
#ifndef EVAL_HTTP_URL_H
#define EVAL_HTTP_URL_H

#include <stdbool.h>

#include "base/error.h"

typedef struct http_url {
    char host[256];   /* a name or an address; an IPv6 address without its brackets */
    char port[6];     /* decimal, 1 to 65535; "80" where none was given */
    char origin[272]; /* the value of the Host header: host, in brackets if IPv6, and :port unless it is 80 */
    char prefix[512]; /* what every path begins with: "" or "/..." without a slash at the end */
} http_url;

/* A trailing "/v1" is cut off, because the paths of the API begin with it: http://h:1/ and http://h:1/v1 mean the same.
 * Refused: https (by name, with what to do instead), a user name or password, a query, a fragment. */
bool http_url_parse(const char *input, http_url *out, error *err);

#endif
