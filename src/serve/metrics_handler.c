/* GET /metrics and GET /dashboard.json. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "serve/handlers.h"
#include "serve/page.h"

void handle_metrics(server *s, http_exchange *x, const tenant *who)
{
    (void)who;
    engine_counters c;
    text out = {0};
    engine_count(s->engine, &c);
    metrics_write(s->metrics, &c, http_server_connections(s->http), &out);
    http_add_header(x, "Cache-Control", "no-store");
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", out.data, out.length);
    text_free(&out);
}

/* What the page says about the server itself. */
static json_t *server_json(const server *s)
{
    engine_facts facts = engine_describe(s->engine);
    return json_pack("{s:s, s:s, s:I, s:i, s:i, s:i, s:I, s:i, s:i, s:b, s:b, s:b}", "model", s->options.model_name, "version",
                     DRAWBRIDGE_VERSION, "started", (json_int_t)s->started_unix, "max_running", facts.max_running, "max_waiting",
                     facts.max_waiting, "max_context", facts.max_context, "kv_tokens", (json_int_t)facts.kv_tokens, "page_tokens",
                     KV_PAGE_TOKENS, "connections", http_server_connections(s->http), "chat", s->format != NULL, "draining",
                     (int)s->draining, "charts", (int)page_has_charts());
}

void handle_dashboard(server *s, http_exchange *x, const tenant *who)
{
    (void)who;
    const char *since = http_query(x, "since");
    char *end = NULL;
    long long after = since ? strtoll(since, &end, 10) : -1;
    if (since && (end == since || *end)) {
        server_reply_error(x, 400, "since", "since is \"%.40s\"; it must be a number of seconds: the last \"t\" of an earlier answer",
                           since);
        return;
    }
    engine_counters c;
    engine_count(s->engine, &c);
    json_t *out = metrics_history(s->metrics, &c, after);
    json_object_set_new(out, "server", server_json(s));
    char *bytes = json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(out);
    http_add_header(x, "Cache-Control", "no-store");
    http_reply(x, 200, "application/json", bytes ? bytes : "{}", bytes ? strlen(bytes) : 2);
    free(bytes);
}
