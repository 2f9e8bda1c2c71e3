#include "serve/metrics.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "serve/metrics_internal.h"

const char *const finish_reason_names[REASONS] = {"stop", "length", "tool_calls", "abort", "timeout", "error"};
const char *const status_class_names[STATUS_CLASSES] = {"2xx", "3xx", "4xx", "5xx", "closed"};

/* Bounds in seconds. Those for the first token are vLLM's; the others begin lower than usual, because small models on fast machines do. */
static const double first_token_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75,
                                            1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
static const double per_token_bounds[] = {.0005, .001, .0025, .005, .01, .015, .02, .025, .03, .04, .05, .06, .075,
                                          .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 10, 20, 40, 80};
static const double request_bounds[] = {.005, .01, .025, .05, .1, .2, .3, .5, .8, 1, 1.5, 2, 2.5, 5,
                                        10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double count_bounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000,
                                      10000, 20000, 50000, 100000, 200000, 500000, 1000000};

#define BOUNDS(array) {.bounds = (array), .bound_count = (int)(sizeof(array) / sizeof(array)[0])}
static const histogram empty_histograms[HISTOGRAMS] = {
    [HISTOGRAM_TTFT] = BOUNDS(first_token_bounds),
    [HISTOGRAM_ITL] = BOUNDS(per_token_bounds),
    [HISTOGRAM_E2E] = BOUNDS(request_bounds),
    [HISTOGRAM_QUEUE] = BOUNDS(request_bounds),
    [HISTOGRAM_PREFILL] = BOUNDS(request_bounds),
    [HISTOGRAM_DECODE] = BOUNDS(request_bounds),
    [HISTOGRAM_INFERENCE] = BOUNDS(request_bounds),
    [HISTOGRAM_TPOT] = BOUNDS(per_token_bounds),
    [HISTOGRAM_PROMPT] = BOUNDS(count_bounds),
    [HISTOGRAM_UNCACHED] = BOUNDS(count_bounds),
    [HISTOGRAM_OUTPUT] = BOUNDS(count_bounds),
    [HISTOGRAM_MAX_TOKENS] = BOUNDS(count_bounds),
    [HISTOGRAM_HTTP] = BOUNDS(request_bounds),
};

/* Label values escape backslash, quote and line feed. */
static char *escape_label(const char *value)
{
    text t = {0};
    text_add_text(&t, "");
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            text_add_text(&t, "\\n");
        else {
            if (*c == '\\' || *c == '"')
                text_add_char(&t, '\\');
            text_add_char(&t, *c);
        }
    }
    char *out = mem_copy(t.length ? t.data : "", t.length);
    text_free(&t);
    return out;
}

metrics *metrics_create(const char *model_name)
{
    metrics *m = mem_alloc(1, sizeof *m);
    m->model_name = escape_label(model_name);
    memcpy(m->histograms, empty_histograms, sizeof m->histograms);
    return m;
}

void metrics_destroy(metrics *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->path_count; i++)
        free(m->paths[i]);
    free(m->model_name);
    free(m);
}

static void observe(metrics *m, histogram_id id, double value, uint64_t times)
{
    histogram *h = &m->histograms[id];
    int i = 0;
    while (i < h->bound_count && value > h->bounds[i])
        i++;
    h->counts[i] += times;
    h->sum += value * (double)times;
}

/* Seconds from one time to a later one; 0 when either did not happen. */
static double seconds_between(uint64_t from_us, uint64_t to_us)
{
    return from_us && to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0;
}

void metrics_tokens(metrics *m, const engine_event *ev, uint64_t previous_us)
{
    history *h = &m->history;
    if (ev->count <= 0)
        return;
    bool first = ev->stats.output_tokens <= ev->count;
    uint64_t since = first ? ev->stats.arrival_us : previous_us;
    uint64_t gap_us = ev->time_us > since ? ev->time_us - since : 0;
    if (first) {
        observe(m, HISTOGRAM_TTFT, (double)gap_us * 1e-6, 1);
        log_histogram_add(&h->ttft[h->seconds % METRICS_CURRENT_S], gap_us, 1);
        return;
    }
    observe(m, HISTOGRAM_ITL, (double)gap_us * 1e-6 / ev->count, (uint64_t)ev->count);
    log_histogram_add(&h->itl[h->seconds % METRICS_CURRENT_S], gap_us / (uint64_t)ev->count, (uint32_t)ev->count);
}

static finish_reason reason_of(const char *name)
{
    for (int i = 0; i < REASONS; i++)
        if (name && strcmp(name, finish_reason_names[i]) == 0)
            return (finish_reason)i;
    return REASON_ERROR;
}

/* Stages that a request never reached are not observed, so that refused and aborted ones do not look fast. */
void metrics_finish(metrics *m, const engine_event *ev, const char *reason, int max_tokens)
{
    const engine_request_stats *s = &ev->stats;
    uint64_t end_us = s->finished_us ? s->finished_us : ev->time_us;
    m->reasons[reason_of(reason)]++;
    m->drafted += (uint64_t)s->drafted;
    m->accepted += (uint64_t)s->accepted;
    observe(m, HISTOGRAM_E2E, seconds_between(s->arrival_us, end_us), 1);
    observe(m, HISTOGRAM_PROMPT, s->prompt_tokens, 1);
    observe(m, HISTOGRAM_OUTPUT, s->output_tokens, 1);
    if (max_tokens > 0)
        observe(m, HISTOGRAM_MAX_TOKENS, max_tokens, 1);
    if (!s->admitted_us)
        return;
    observe(m, HISTOGRAM_QUEUE, seconds_between(s->arrival_us, s->admitted_us), 1);
    observe(m, HISTOGRAM_UNCACHED, s->prompt_tokens - s->cached_tokens, 1);
    observe(m, HISTOGRAM_INFERENCE, seconds_between(s->admitted_us, end_us), 1);
    if (!s->first_token_us)
        return;
    double decode_s = seconds_between(s->first_token_us, end_us);
    observe(m, HISTOGRAM_PREFILL, seconds_between(s->admitted_us, s->first_token_us), 1);
    observe(m, HISTOGRAM_DECODE, decode_s, 1);
    if (s->output_tokens > 1)
        observe(m, HISTOGRAM_TPOT, decode_s / (s->output_tokens - 1), 1);
}

static status_class class_of(int status)
{
    if (status == 499)
        return STATUS_CLOSED;
    return status >= 500 ? STATUS_5XX : status >= 400 ? STATUS_4XX : status >= 300 ? STATUS_3XX : STATUS_2XX;
}

/* The row of a route's path; a new one when it is seen for the first time. With all rows taken, or with characters that no route
 * has, the row of all others. */
static int path_row(metrics *m, const char *path)
{
    static const char allowed[] = "/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.*";
    if (!path || path[0] != '/' || path[strspn(path, allowed)])
        return METRICS_PATHS_MOST;
    for (int i = 0; i < m->path_count; i++)
        if (strcmp(path, m->paths[i]) == 0)
            return i;
    if (m->path_count == METRICS_PATHS_MOST)
        return METRICS_PATHS_MOST;
    m->paths[m->path_count] = mem_copy(path, strlen(path));
    return m->path_count++;
}

void metrics_http(metrics *m, const char *path, int status, uint64_t duration_us)
{
    m->http[path_row(m, path)][class_of(status)]++;
    observe(m, HISTOGRAM_HTTP, (double)duration_us * 1e-6, 1);
}
