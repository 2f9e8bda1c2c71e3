/* What the files of metrics share: metrics.c records, metrics_write.c writes Prometheus' text, metrics_history.c keeps the history. */
#ifndef SERVE_METRICS_INTERNAL_H
#define SERVE_METRICS_INTERNAL_H

#include "serve/metrics.h"

enum { HISTOGRAM_BOUNDS_MOST = 32, METRICS_PATHS_MOST = 64, LOG_BUCKETS = 136 };

/* A Prometheus histogram. counts[i]: values in (bounds[i-1], bounds[i]]; the last: above all bounds. */
typedef struct histogram {
    const double *bounds;
    int bound_count;
    uint64_t counts[HISTOGRAM_BOUNDS_MOST + 1];
    double sum;
} histogram;

typedef enum histogram_id {
    HISTOGRAM_TTFT,
    HISTOGRAM_ITL,
    HISTOGRAM_E2E,
    HISTOGRAM_QUEUE,
    HISTOGRAM_PREFILL,
    HISTOGRAM_DECODE,
    HISTOGRAM_INFERENCE,    /* prefill and decode */
    HISTOGRAM_TPOT,         /* mean time per output token of a request, without its first */
    HISTOGRAM_PROMPT,
    HISTOGRAM_UNCACHED,     /* prompt tokens that were not in the prefix cache */
    HISTOGRAM_OUTPUT,
    HISTOGRAM_MAX_TOKENS,
    HISTOGRAM_HTTP,
    HISTOGRAMS,
} histogram_id;

typedef enum finish_reason { REASON_STOP, REASON_LENGTH, REASON_CALLS, REASON_ABORT, REASON_TIMEOUT, REASON_ERROR, REASONS } finish_reason;
typedef enum status_class { STATUS_2XX, STATUS_3XX, STATUS_4XX, STATUS_5XX, STATUS_CLOSED, STATUS_CLASSES } status_class;

extern const char *const finish_reason_names[REASONS];
extern const char *const status_class_names[STATUS_CLASSES];

/* Durations of one second, 16 buckets per factor of ten from 10 us upwards: percentiles are right to 15 %. */
typedef struct log_histogram {
    uint32_t counts[LOG_BUCKETS];
} log_histogram;

void log_histogram_add(log_histogram *h, uint64_t us, uint32_t times);
double log_histogram_quantile(const log_histogram *h, double q); /* seconds; NAN when empty */

/* The series of a sample; NAN: nothing to measure. */
typedef enum series_id {
    SERIES_OUTPUT_TPS,
    SERIES_PROMPT_TPS,  /* prompt tokens to compute; counted when their request is admitted, hence the mean of the window */
    SERIES_CACHED_TPS,  /* prompt tokens found in the prefix cache; likewise */
    SERIES_RUNNING,
    SERIES_WAITING,
    SERIES_PAGES_USED,
    SERIES_PAGES_IDLE,
    SERIES_PAGES_FREE,
    SERIES_HIT_RATE,
    SERIES_TTFT_P50,
    SERIES_TTFT_P95,
    SERIES_ITL_P50,
    SERIES_ITL_P95,
    SERIES_ITL_P99,
    SERIES_DEPTH,
    SERIES_TOKENS_PER_STEP, /* of steps that verified drafts */
    SERIES_CONNECTIONS,
    SERIES_ACCEPT,      /* of the first draft position; SPEC_DEPTH_MOST in a row */
    SERIES = SERIES_ACCEPT + SPEC_DEPTH_MOST,
} series_id;

typedef struct history_sample {
    int64_t t;            /* seconds of the monotonic clock; grows by at least 1 from sample to sample */
    float values[SERIES];
} history_sample;

/* A ring: sample i of all that were ever taken is samples[i % METRICS_HISTORY_S]. */
typedef struct history {
    history_sample samples[METRICS_HISTORY_S];
    uint64_t taken;
    uint64_t latest_us;                                  /* time of the latest sample */
    log_histogram ttft[METRICS_CURRENT_S], itl[METRICS_CURRENT_S]; /* per second, rings; [seconds % METRICS_CURRENT_S] is being filled */
    uint64_t seconds;                                    /* ticks taken */
    engine_counters past[METRICS_WINDOW_S + 1];          /* ring by tick */
    uint64_t past_us[METRICS_WINDOW_S + 1];              /* when they were taken */
    double hit_rate, tokens_per_step, output_tps;        /* latest known, for gauges */
} history;

struct metrics {
    char *model_name;        /* escaped for a label value */
    histogram histograms[HISTOGRAMS];
    uint64_t reasons[REASONS];
    uint64_t drafted, accepted;  /* of ended requests */
    char *paths[METRICS_PATHS_MOST];
    int path_count;
    uint64_t http[METRICS_PATHS_MOST + 1][STATUS_CLASSES]; /* by index into paths; the last row: other */
    history history;
};

#endif
