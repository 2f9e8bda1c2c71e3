/* Figures for people and machines: /metrics in Prometheus' text form under our own names and under those that gateways and
 * benchmarks of sglang and vLLM read, and a history of the last minutes for the page. Used by the loop thread alone. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <jansson.h>

#include "base/text.h"
#include "engine/engine.h"

typedef struct metrics metrics;

metrics *metrics_create(const char *model_name);
void metrics_destroy(metrics *m);

/* Tokens of one request came: the time since its previous tokens (or since its arrival, for the first) is taken per token. */
void metrics_tokens(metrics *m, const engine_event *ev, uint64_t previous_us);

/* A request has ended. reason: "stop", "length", "tool_calls", "abort", "timeout", "error". */
void metrics_finish(metrics *m, const engine_event *ev, const char *reason, int max_tokens);

/* An HTTP exchange has ended. */
void metrics_http(metrics *m, const char *path, int status, uint64_t duration_us);

/* Once a second: takes the engine's counters into the history. */
void metrics_tick(metrics *m, const engine_counters *c, int connections, uint64_t now_us);

/* The text of /metrics. */
void metrics_write(metrics *m, const engine_counters *c, int connections, text *out);

/* History and percentiles for the page: /dashboard.json?since=SECONDS. */
json_t *metrics_history(const metrics *m, const engine_counters *c, int64_t since);

#endif
