/* Statistics of evaluations: intervals, and whether two models differ on the same items. docs/evaluation.md has the formulas.
 * Everything is deterministic; what is drawn at random is a function of a seed. */
#ifndef EVAL_STATS_H
#define EVAL_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct stats_interval {
    double low, high; /* 95 % */
} stats_interval;

enum {
    STATS_RESAMPLES = 2000,
    STATS_FEWEST = 6, /* items that can tell two means apart: 5 signs agree by chance with p = 2 / 32, 6 with 2 / 64 < 0.05 */
};

/* Wilson's score interval of a proportion; [0, 1] without trials. */
stats_interval stats_wilson(int64_t successes, int64_t trials);

/* Mean and its interval mean +- z * s / sqrt(n); NaN for fewer than two values (the mean itself for one). */
stats_interval stats_mean(const double *values, size_t count, double *mean);

/* Percentile bootstrap of sum(sums) / sum(weights), resampling whole items. weights NULL: all 1, so that it is the mean. Weights must
 * be positive. NaN for fewer than two items. */
stats_interval stats_bootstrap(const double *sums, const double *weights, size_t count, int resamples, uint64_t seed);

/* Exact two-sided McNemar test: how likely a split at least as uneven is when a disagreement goes either way with equal chance. */
double stats_mcnemar(int64_t only_first, int64_t only_second);

/* The q-quantile with linear interpolation between order statistics; sorts the values. NaN without any. */
double stats_quantile(double *values, size_t count, double q);

typedef enum stats_verdict { STATS_NO_DIFFERENCE, STATS_BETTER, STATS_WORSE, STATS_TOO_FEW } stats_verdict;

const char *stats_verdict_text(stats_verdict v); /* "no difference within noise", "better", "worse", "too few to tell" */

/* A candidate against a baseline on the same items. */
typedef struct stats_comparison {
    double baseline, candidate; /* proportions or means */
    double delta;               /* candidate - baseline */
    stats_interval interval;    /* of delta, paired bootstrap */
    double p;                   /* McNemar; NaN for means */
    stats_verdict verdict;      /* of the candidate */
} stats_comparison;

/* Two models' right answers. A difference counts when the interval excludes 0 and McNemar's p is below 0.05. */
stats_comparison stats_compare_correct(const bool *baseline, const bool *candidate, size_t count, uint64_t seed);

/* Two models' sums over items of the given weights. A difference counts when the interval excludes 0. Fewer items than
 * STATS_FEWEST are too few: their bootstrap excludes 0 whenever the signs happen to agree. */
stats_comparison stats_compare_means(const double *baseline, const double *candidate, const double *weights, size_t count,
                                     bool lower_is_better, uint64_t seed);

#endif
