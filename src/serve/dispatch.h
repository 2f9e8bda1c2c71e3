/* What happens to every request before and after its handler: Host and Origin, the route, the key; the access log. For server.c. */
#ifndef SERVE_DISPATCH_H
#define SERVE_DISPATCH_H

#include "serve/server.h"

void dispatch_attach(server *s); /* to s->http */
void dispatch_request(void *s, http_exchange *x); /* an http_handler */

/* The row for a path: of this method, or *other: of another method, or NULL. HEAD is taken for GET. */
const route *dispatch_route(const char *method, const char *path, const route **other);

/* Whether a Host header names this server; NULL (HTTP/1.0) does. bound: the address in numbers. */
bool dispatch_host_is_ours(const char *host, const char *bound, bool wildcard, const char *allowed);

#endif
