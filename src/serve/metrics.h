/* Figures for people and machines: /metrics in Prometheus' text form under our own names and under those that gateways and
 * benchmarks of sglang and vLLM read, and a history of the last minutes for the page. Used by the loop thread alone.
 * docs/metrics.md lists the names. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <jansson.h>

#include "base/text.h"
#include "engine/engine.h"

/* Seconds that the history keeps; over how many the percentiles and rates of a sample are taken; the same for "current" figures. */
enum { METRICS_HISTORY_S = 900, METRICS_WINDOW_S = 10, METRICS_CURRENT_S = 60 };

typedef struct metrics metrics;

metrics *metrics_create(const char *model_name);
void metrics_destroy(metrics *m);

/* Tokens of one request came: the time since its previous tokens (or since its arrival, for the first) is taken per token. */
void metrics_tokens(metrics *m, const engine_event *ev, uint64_t previous_us);

/* A request has ended. reason: "stop", "length", "tool_calls", "abort", "timeout", "error"; NULL and any other count as "error". */
void metrics_finish(metrics *m, const engine_event *ev, const char *reason, int max_tokens);

/* An HTTP exchange has ended. path: the route's, as the table of routes has it, never what a client made up; NULL: no route, "other".
 * Status 499, the client went away first, is counted as "closed". */
void metrics_http(metrics *m, const char *path, int status, uint64_t duration_us);

/* Once a second: takes the engine's counters into the history. A call less than half a second after the previous one is ignored. */
void metrics_tick(metrics *m, const engine_counters *c, int connections, uint64_t now_us);

/* The text of /metrics. */
void metrics_write(metrics *m, const engine_counters *c, int connections, text *out);

/* History and percentiles for the page: /dashboard.json?since=SECONDS. Samples later than `since` (their "t"; -1: all) as one array
 * per series, of equal length, null where there was nothing to measure. The caller owns the reference. */
json_t *metrics_history(const metrics *m, const engine_counters *c, int64_t since);

#endif
