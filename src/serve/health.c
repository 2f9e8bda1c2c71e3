/* /health, /readyz, /version */
#include "serve/handlers.h"

static void reply_status(http_exchange *x, int status, const char *words)
{
    http_add_header(x, "Cache-Control", "no-store");
    if (status == 503)
        http_add_header(x, "Retry-After", "5");
    server_reply_json(x, status, json_pack("{s:s}", "status", words));
}

void handle_health(server *s, http_exchange *x, const tenant *who)
{
    (void)s;
    (void)who;
    reply_status(x, 200, "ok");
}

void handle_ready(server *s, http_exchange *x, const tenant *who)
{
    (void)who;
    if (s->draining)
        reply_status(x, 503, "draining");
    else if (!s->engine)
        reply_status(x, 503, "starting");
    else
        reply_status(x, 200, "ready");
}

void handle_version(server *s, http_exchange *x, const tenant *who)
{
    (void)s;
    (void)who;
    server_reply_json(x, 200, json_pack("{s:s}", "version", DRAWBRIDGE_VERSION));
}
