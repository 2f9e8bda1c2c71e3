#include "eval/stats.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"

static const double Z95 = 1.959963984540054; /* the 0.975 quantile of the normal distribution */

stats_interval stats_wilson(int64_t successes, int64_t trials)
{
    if (trials <= 0)
        return (stats_interval){0, 1};
    double n = (double)trials, p = (double)successes / n, z2 = Z95 * Z95;
    double middle = (p + z2 / (2 * n)) / (1 + z2 / n);
    double half = Z95 / (1 + z2 / n) * sqrt(p * (1 - p) / n + z2 / (4 * n * n));
    stats_interval i = {middle - half, middle + half};
    if (successes == 0)
        i.low = 0;
    if (successes == trials)
        i.high = 1;
    return i;
}

stats_interval stats_mean(const double *values, size_t count, double *mean)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    *mean = count ? sum / (double)count : NAN;
    if (count < 2)
        return (stats_interval){NAN, NAN};
    for (size_t i = 0; i < count; i++)
        squares += (values[i] - *mean) * (values[i] - *mean);
    double half = Z95 * sqrt(squares / (double)(count - 1) / (double)count);
    return (stats_interval){*mean - half, *mean + half};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sorted_quantile(const double *values, size_t count, double q)
{
    if (count == 0)
        return NAN;
    double at = q * (double)(count - 1);
    size_t below = (size_t)at;
    double rest = at - (double)below;
    return below + 1 < count ? values[below] + rest * (values[below + 1] - values[below]) : values[below];
}

double stats_quantile(double *values, size_t count, double q)
{
    if (count)
        qsort(values, count, sizeof *values, by_value);
    return sorted_quantile(values, count, q);
}

static double resample(const double *sums, const double *weights, size_t count, uint64_t key)
{
    double sum = 0, weight = 0;
    for (size_t i = 0; i < count; i++) {
        size_t pick = (size_t)(random_uniform_at(key, i) * (double)count);
        sum += sums[pick];
        weight += weights ? weights[pick] : 1;
    }
    return sum / weight;
}

stats_interval stats_bootstrap(const double *sums, const double *weights, size_t count, int resamples, uint64_t seed)
{
    if (count < 2 || resamples < 1)
        return (stats_interval){NAN, NAN};
    double *means = mem_alloc((size_t)resamples, sizeof *means);
    for (int r = 0; r < resamples; r++)
        means[r] = resample(sums, weights, count, random_key(seed, (uint64_t)r));
    qsort(means, (size_t)resamples, sizeof *means, by_value);
    stats_interval i = {sorted_quantile(means, (size_t)resamples, 0.025), sorted_quantile(means, (size_t)resamples, 0.975)};
    free(means);
    return i;
}

double stats_mcnemar(int64_t only_first, int64_t only_second)
{
    int64_t n = only_first + only_second, least = only_first < only_second ? only_first : only_second;
    if (n == 0)
        return 1;
    double tail = 0;
    for (int64_t k = 0; k <= least; k++)
        tail += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * log(2.0));
    return tail < 0.5 ? 2 * tail : 1;
}

const char *stats_verdict_text(stats_verdict v)
{
    static const char *const texts[] = {"no difference within noise", "better", "worse", "too few to tell"};
    return texts[v];
}

static stats_verdict judge(const stats_comparison *c, bool lower_is_better)
{
    bool noise = !(c->interval.low > 0 || c->interval.high < 0) || (!isnan(c->p) && c->p >= 0.05);
    if (noise)
        return STATS_NO_DIFFERENCE;
    return (c->delta > 0) != lower_is_better ? STATS_BETTER : STATS_WORSE;
}

stats_comparison stats_compare_means(const double *baseline, const double *candidate, const double *weights, size_t count,
                                     bool lower_is_better, uint64_t seed)
{
    double *deltas = mem_alloc(count ? count : 1, sizeof *deltas), first = 0, second = 0, weight = 0;
    for (size_t i = 0; i < count; i++) {
        deltas[i] = candidate[i] - baseline[i];
        first += baseline[i];
        second += candidate[i];
        weight += weights ? weights[i] : 1;
    }
    stats_comparison c = {.baseline = first / weight, .candidate = second / weight, .delta = (second - first) / weight, .p = NAN};
    c.interval = stats_bootstrap(deltas, weights, count, STATS_RESAMPLES, seed);
    c.verdict = count < STATS_FEWEST ? STATS_TOO_FEW : judge(&c, lower_is_better);
    free(deltas);
    return c;
}

stats_comparison stats_compare_correct(const bool *baseline, const bool *candidate, size_t count, uint64_t seed)
{
    double *first = mem_alloc(count ? count : 1, sizeof *first), *second = mem_alloc(count ? count : 1, sizeof *second);
    int64_t only_first = 0, only_second = 0;
    for (size_t i = 0; i < count; i++) {
        first[i] = baseline[i];
        second[i] = candidate[i];
        only_first += baseline[i] && !candidate[i];
        only_second += candidate[i] && !baseline[i];
    }
    stats_comparison c = stats_compare_means(first, second, NULL, count, false, seed);
    c.p = stats_mcnemar(only_first, only_second);
    c.verdict = judge(&c, false);
    free(first);
    free(second);
    return c;
}
