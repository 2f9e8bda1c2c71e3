#include <math.h>
#include <stdio.h>
#include <string.h>

#include "serve/metrics_internal.h"

static const char *const series_names[SERIES_ACCEPT] = {
    [SERIES_OUTPUT_TPS] = "output_tps",
    [SERIES_PROMPT_TPS] = "prompt_tps",
    [SERIES_CACHED_TPS] = "cached_tps",
    [SERIES_RUNNING] = "running",
    [SERIES_WAITING] = "waiting",
    [SERIES_PAGES_USED] = "pages_used",
    [SERIES_PAGES_IDLE] = "pages_idle",
    [SERIES_PAGES_FREE] = "pages_free",
    [SERIES_HIT_RATE] = "hit_rate",
    [SERIES_TTFT_P50] = "ttft_p50",
    [SERIES_TTFT_P95] = "ttft_p95",
    [SERIES_ITL_P50] = "itl_p50",
    [SERIES_ITL_P95] = "itl_p95",
    [SERIES_ITL_P99] = "itl_p99",
    [SERIES_DEPTH] = "depth",
    [SERIES_TOKENS_PER_STEP] = "tokens_per_step",
    [SERIES_CONNECTIONS] = "connections",
};

static const double log_least_s = 1e-5, log_per_decade = 16;

void log_histogram_add(log_histogram *h, uint64_t us, uint32_t times)
{
    double place = us > 10 ? log10((double)us * 1e-6 / log_least_s) * log_per_decade : 0;
    int bucket = place < LOG_BUCKETS - 1 ? (int)place : LOG_BUCKETS - 1;
    h->counts[bucket] += times;
}

double log_histogram_quantile(const log_histogram *h, double q)
{
    uint64_t total = 0, below = 0;
    for (int i = 0; i < LOG_BUCKETS; i++)
        total += h->counts[i];
    if (total == 0)
        return NAN;
    uint64_t rank = (uint64_t)ceil(q * (double)total);
    int i = 0;
    while (i < LOG_BUCKETS - 1 && (below += h->counts[i]) < rank)
        i++;
    return log_least_s * pow(10, (i + .5) / log_per_decade); /* the middle of the bucket */
}

/* The sum of the newest `count` seconds of a ring whose newest entry is at `newest`. */
static log_histogram log_histogram_sum(const log_histogram *ring, uint64_t newest, int count)
{
    log_histogram sum = {{0}};
    for (int s = 0; s < count && (uint64_t)s <= newest; s++)
        for (int i = 0; i < LOG_BUCKETS; i++)
            sum.counts[i] += ring[(newest - (uint64_t)s) % METRICS_CURRENT_S].counts[i];
    return sum;
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : NAN;
}

/* Tokens per second: output since the snapshot before, prompts since the oldest of the window. */
static void sample_rates(float *v, const history *h, const engine_counters *c, uint64_t now_us, uint64_t window)
{
    uint64_t before = (h->seconds - 1) % (METRICS_WINDOW_S + 1), oldest = (h->seconds - window) % (METRICS_WINDOW_S + 1);
    const engine_counters *old = &h->past[oldest];
    double second_s = (double)(now_us - h->past_us[before]) * 1e-6, window_s = (double)(now_us - h->past_us[oldest]) * 1e-6;
    double cached = (double)(c->cached_tokens - old->cached_tokens), prompt = (double)(c->prompt_tokens - old->prompt_tokens);
    v[SERIES_OUTPUT_TPS] = (float)((double)(c->output_tokens - h->past[before].output_tokens) / second_s);
    v[SERIES_PROMPT_TPS] = (float)((prompt - cached) / window_s);
    v[SERIES_CACHED_TPS] = (float)(cached / window_s);
}

static void sample_levels(float *v, const engine_counters *c, int connections)
{
    v[SERIES_RUNNING] = (float)c->running;
    v[SERIES_WAITING] = (float)c->waiting;
    v[SERIES_PAGES_USED] = (float)(c->pages - c->free_pages - c->idle_pages);
    v[SERIES_PAGES_IDLE] = (float)c->idle_pages;
    v[SERIES_PAGES_FREE] = (float)c->free_pages;
    v[SERIES_DEPTH] = (float)c->spec.depth;
    v[SERIES_CONNECTIONS] = (float)connections;
}

/* Ratios of the window: since the oldest snapshot of it. */
static void sample_ratios(float *v, const engine_counters *c, const engine_counters *old)
{
    v[SERIES_HIT_RATE] = (float)ratio(c->cached_tokens - old->cached_tokens, c->prompt_tokens - old->prompt_tokens);
    v[SERIES_TOKENS_PER_STEP] =
        (float)ratio(c->spec.verify_tokens - old->spec.verify_tokens, c->spec.verify_steps - old->spec.verify_steps);
    for (int i = 0; i < SPEC_DEPTH_MOST; i++)
        v[SERIES_ACCEPT + i] = (float)ratio(c->spec.right[i] - old->spec.right[i], c->spec.tried[i] - old->spec.tried[i]);
}

static void sample_percentiles(float *v, const history *h)
{
    log_histogram ttft = log_histogram_sum(h->ttft, h->seconds, METRICS_WINDOW_S);
    log_histogram itl = log_histogram_sum(h->itl, h->seconds, METRICS_WINDOW_S);
    v[SERIES_TTFT_P50] = (float)log_histogram_quantile(&ttft, .5);
    v[SERIES_TTFT_P95] = (float)log_histogram_quantile(&ttft, .95);
    v[SERIES_ITL_P50] = (float)log_histogram_quantile(&itl, .5);
    v[SERIES_ITL_P95] = (float)log_histogram_quantile(&itl, .95);
    v[SERIES_ITL_P99] = (float)log_histogram_quantile(&itl, .99);
}

static void remember_gauges(history *h, const float *v)
{
    h->output_tps = (double)v[SERIES_OUTPUT_TPS];
    if (!isnan(v[SERIES_HIT_RATE]))
        h->hit_rate = (double)v[SERIES_HIT_RATE];
    if (!isnan(v[SERIES_TOKENS_PER_STEP]))
        h->tokens_per_step = (double)v[SERIES_TOKENS_PER_STEP];
}

/* The next second begins with empty histograms. */
static void next_second(history *h, const engine_counters *c, uint64_t now_us)
{
    h->past[h->seconds % (METRICS_WINDOW_S + 1)] = *c;
    h->past_us[h->seconds % (METRICS_WINDOW_S + 1)] = now_us;
    h->seconds++;
    memset(&h->ttft[h->seconds % METRICS_CURRENT_S], 0, sizeof h->ttft[0]);
    memset(&h->itl[h->seconds % METRICS_CURRENT_S], 0, sizeof h->itl[0]);
}

void metrics_tick(metrics *m, const engine_counters *c, int connections, uint64_t now_us)
{
    history *h = &m->history;
    if (h->seconds == 0) { /* the first call only says where counting begins */
        h->latest_us = now_us;
        next_second(h, c, now_us);
        return;
    }
    if (now_us < h->latest_us + 500000)
        return;
    uint64_t window = h->seconds < METRICS_WINDOW_S ? h->seconds : METRICS_WINDOW_S;
    const engine_counters *old = &h->past[(h->seconds - window) % (METRICS_WINDOW_S + 1)];
    history_sample *s = &h->samples[h->taken % METRICS_HISTORY_S];
    int64_t t = (int64_t)(now_us / 1000000);
    if (h->taken && t <= h->samples[(h->taken - 1) % METRICS_HISTORY_S].t)
        t = h->samples[(h->taken - 1) % METRICS_HISTORY_S].t + 1;
    s->t = t;
    sample_rates(s->values, h, c, now_us, window);
    sample_levels(s->values, c, connections);
    sample_ratios(s->values, c, old);
    sample_percentiles(s->values, h);
    remember_gauges(h, s->values);
    h->taken++;
    h->latest_us = now_us;
    next_second(h, c, now_us);
}

static json_t *number_or_null(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static json_t *series_json(const history *h, uint64_t first, int series)
{
    json_t *out = json_array();
    for (uint64_t i = first; i < h->taken; i++)
        json_array_append_new(out, number_or_null((double)h->samples[i % METRICS_HISTORY_S].values[series]));
    return out;
}

static json_t *all_series_json(const history *h, int64_t since)
{
    json_t *out = json_object(), *times = json_array();
    uint64_t first = h->taken > METRICS_HISTORY_S ? h->taken - METRICS_HISTORY_S : 0;
    while (first < h->taken && h->samples[first % METRICS_HISTORY_S].t <= since)
        first++;
    for (uint64_t i = first; i < h->taken; i++)
        json_array_append_new(times, json_integer(h->samples[i % METRICS_HISTORY_S].t));
    json_object_set_new(out, "t", times);
    for (int i = 0; i < SERIES_ACCEPT; i++)
        json_object_set_new(out, series_names[i], series_json(h, first, i));
    for (int i = 0; i < SPEC_DEPTH_MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "accept_%d", i + 1);
        json_object_set_new(out, name, series_json(h, first, SERIES_ACCEPT + i));
    }
    return out;
}

static json_t *counters_json(const engine_counters *c)
{
    json_int_t used = c->pages - c->free_pages - c->idle_pages;
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "running", c->running, "waiting",
                     c->waiting, "decoding", c->decoding, "prefilling", c->prefilling, "pages", c->pages, "pages_used", used,
                     "pages_idle", c->idle_pages, "pages_free", c->free_pages, "requests", (json_int_t)c->submitted, "refused",
                     (json_int_t)c->refused, "prompt_tokens", (json_int_t)c->prompt_tokens, "cached_tokens",
                     (json_int_t)c->cached_tokens, "output_tokens", (json_int_t)c->output_tokens, "preemptions",
                     (json_int_t)c->preemptions);
}

static json_t *spec_json(const engine_counters *c)
{
    json_t *accept = json_array();
    for (int i = 0; i < SPEC_DEPTH_MOST; i++)
        json_array_append_new(accept, number_or_null(ratio(c->spec.right[i], c->spec.tried[i])));
    return json_pack("{s:i, s:o, s:o, s:s, s:b}", "depth", c->spec.depth, "accept", accept, "tokens_per_step",
                     number_or_null(ratio(c->spec.verify_tokens, c->spec.verify_steps)), "words", c->spec_words, "simulated",
                     (int)c->spec_simulated);
}

json_t *metrics_history(const metrics *m, const engine_counters *c, int64_t since)
{
    const history *h = &m->history;
    log_histogram ttft = log_histogram_sum(h->ttft, h->seconds, METRICS_CURRENT_S);
    log_histogram itl = log_histogram_sum(h->itl, h->seconds, METRICS_CURRENT_S);
    json_t *now = counters_json(c);
    json_object_set_new(now, "output_tps", json_real(h->output_tps));
    json_object_set_new(now, "ttft_p50", number_or_null(log_histogram_quantile(&ttft, .5)));
    json_object_set_new(now, "ttft_p95", number_or_null(log_histogram_quantile(&ttft, .95)));
    json_object_set_new(now, "itl_p50", number_or_null(log_histogram_quantile(&itl, .5)));
    json_object_set_new(now, "itl_p95", number_or_null(log_histogram_quantile(&itl, .95)));
    json_object_set_new(now, "itl_p99", number_or_null(log_histogram_quantile(&itl, .99)));
    json_object_set_new(now, "hit_rate", number_or_null(ratio(c->cached_tokens, c->prompt_tokens)));
    return json_pack("{s:I, s:i, s:i, s:i, s:o, s:o, s:o}", "now", (json_int_t)(h->latest_us / 1000000), "history_s", METRICS_HISTORY_S,
                     "window_s", METRICS_WINDOW_S, "current_s", METRICS_CURRENT_S, "current", now, "speculation", spec_json(c), "series",
                     all_series_json(h, since));
}
