/* The sampler against a second, straightforward implementation (sort everything, add up in long double), its distribution
 * against exact probabilities, and its errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/sampler.h"

enum { LARGEST = 5000 };

static sampler *create(int vocab)
{
    error err;
    sampler *s = sampler_create(vocab, &err);
    assert_non_null(s);
    return s;
}

static int32_t sample(sampler *s, const sampler_params *p, const sampler_state *history, const float *x, uint64_t position)
{
    error err = {0};
    sampler_result r;
    if (!sampler_sample(s, p, history, x, position, &r, &err))
        fail_msg("%s", err.text);
    return r.token;
}

static double normal(uint64_t seed, uint64_t position, uint64_t index)
{
    double u = random_uniform(seed, position, 2 * index), v = random_uniform(seed, position, 2 * index + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static int pick(uint64_t seed, uint64_t position, uint64_t index, int below)
{
    return (int)(random_word(seed, position, index) % (uint64_t)below);
}

/* Rows of many kinds: smooth, coarse (many equal logits), constant, both zeros, extreme values, excluded tokens. */
static void fill_row(float *x, int n, uint64_t round)
{
    for (int i = 0; i < n; i++) {
        uint64_t k = (uint64_t)i;
        double g = normal(11, round, k);
        switch (round % 7) {
        case 0: x[i] = (float)(3 * g); break;
        case 1: x[i] = (float)floor(2 * g); break;
        case 2: x[i] = 1.5f; break;
        case 3: x[i] = pick(12, round, k, 2) ? 0.0f : -0.0f; break;
        case 4: x[i] = pick(12, round, k, 9) ? (float)(20 * g) : -INFINITY; break;
        case 5: x[i] = (float)fmax(fmin(g * 1e38, 3e38), -3e38); break;
        default: x[i] = (float)(g * (pick(12, round, k, 50) ? 1e-3 : 8)); break;
        }
    }
    if (round % 7 == 4)
        x[n / 2] = 0;
    if (round % 7 == 5)
        x[n / 2] = round % 2 ? FLT_MAX : -FLT_MAX;
}

/* ---- the second implementation ---- */

static const float *sort_row;

static int by_logit_then_id(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_row[i] != sort_row[j])
        return sort_row[i] > sort_row[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Sorted ids and how many of them are kept. slack: how many more or fewer would also be right, because the mass at the cut
 * equals top_p to within 1e-12. Double sums of up to 5,000 terms err by at most 5,000 x 2^-53 = 6e-13. */
typedef struct naive {
    int32_t ids[LARGEST];
    int least, most;
} naive;

static void naive_top_p(const float *x, double temperature, double top_p, naive *out)
{
    long double total = 0, sum = 0;
    int n = out->most;
    for (int i = 0; i < n; i++)
        total += expl(((long double)x[out->ids[i]] - x[out->ids[0]]) / temperature);
    out->least = 0;
    for (out->most = 0; out->most < n; out->most++) {
        if (sum < (top_p - 1e-12L) * total)
            out->least = out->most + 1;
        if (out->most > 0 && sum >= (top_p + 1e-12L) * total)
            break;
        sum += expl(((long double)x[out->ids[out->most]] - x[out->ids[0]]) / temperature);
    }
    out->least = out->least < 1 ? 1 : out->least;
}

static int naive_min_p(const float *x, double temperature, double min_p, const int32_t *ids, int n)
{
    int kept = 0;
    while (kept < n && exp(((double)x[ids[kept]] - (double)x[ids[0]]) / temperature) >= min_p)
        kept++;
    return kept;
}

static void naive_keep(const float *x, const sampler_params *p, naive *out)
{
    int n = 0;
    for (int i = 0; i < p->vocab_used; i++)
        if (x[i] > -INFINITY)
            out->ids[n++] = i;
    sort_row = x;
    qsort(out->ids, (size_t)n, sizeof out->ids[0], by_logit_then_id);
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    out->least = out->most = n;
    if (p->top_p < 1)
        naive_top_p(x, p->temperature, p->top_p, out);
    if (p->min_p > 0) {
        out->least = naive_min_p(x, p->temperature, p->min_p, out->ids, out->least);
        out->most = naive_min_p(x, p->temperature, p->min_p, out->ids, out->most);
    }
}

static int32_t naive_draw(const float *x, const sampler_params *p, uint64_t position, const int32_t *ids, int n)
{
    int32_t best = -1;
    double best_score = 0;
    for (int i = 0; i < n; i++) {
        double g = -log(-log(random_uniform(p->seed, position, (uint64_t)ids[i])));
        double score = ((double)x[ids[i]] - (double)x[ids[0]]) / p->temperature + g;
        if (best < 0 || score > best_score || (score == best_score && ids[i] < best)) {
            best = ids[i];
            best_score = score;
        }
    }
    return best;
}

static int by_id(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return i < j ? -1 : i > j;
}

/* Compares kept set, probabilities and drawn token for one row. */
static void check_against_naive(sampler *s, const sampler_params *p, const float *x, uint64_t position)
{
    static naive expected;
    error err;
    sampler_distribution d;
    assert_true(sampler_params_check(p, LARGEST, &err));
    naive_keep(x, p, &expected);
    assert_true(sampler_distribution_get(s, p, NULL, x, position, &d, &err));
    assert_in_range(d.count, expected.least, expected.most);
    int32_t drawn = naive_draw(x, p, position, expected.ids, d.count);
    long double total = 0;
    for (int i = 0; i < d.count; i++)
        total += expl(((long double)x[expected.ids[i]] - x[expected.ids[0]]) / p->temperature);
    float max = x[expected.ids[0]];
    qsort(expected.ids, (size_t)d.count, sizeof expected.ids[0], by_id);
    for (int i = 0; i < d.count; i++) {
        assert_int_equal(d.ids[i], expected.ids[i]);
        double exact = (double)(expl(((long double)x[d.ids[i]] - max) / p->temperature) / total);
        assert_true(fabs(d.probabilities[i] - exact) <= 1e-11 * exact + 1e-300); /* exp's argument, up to 700, errs by 2^-53 of it */
    }
    assert_int_equal(sample(s, p, NULL, x, position), drawn);
}

static sampler_params random_params(int n, uint64_t round)
{
    static const double temperatures[] = {1, 0.7, 1.3, 0.05, 100, 1e-6};
    static const double top_ps[] = {1, 0.95, 0.5, 1e-9, 0.999999, 0.25};
    static const double min_ps[] = {0, 0, 0.05, 1, 1e-4};
    sampler_params p = sampler_params_default(n);
    p.temperature = temperatures[pick(21, round, 0, 6)];
    p.top_p = top_ps[pick(21, round, 1, 6)];
    p.min_p = min_ps[pick(21, round, 2, 5)];
    p.top_k = pick(21, round, 3, 2) ? 1 + pick(21, round, 4, n + 3) : pick(21, round, 5, 2) - 1;
    p.seed = random_word(21, round, 6);
    return p;
}

static void test_rules_agree_with_full_sort(void **state)
{
    (void)state;
    static float x[LARGEST];
    static const int sizes[] = {1, 2, 3, 7, 8, 9, 64, 1000, 2049, LARGEST};
    sampler *s = create(LARGEST);
    for (uint64_t round = 0; round < 2100; round++) {
        int n = round % 3 ? 1 + pick(20, round, 0, 60) : sizes[pick(20, round, 1, 10)];
        fill_row(x, n, round);
        sampler_params p = random_params(n, round);
        check_against_naive(s, &p, x, round);
    }
    sampler_free(s);
}

/* Equal logits have weight exactly 1, so the cut has no rounding: 3 of 10 for top_p 0.3, and the lowest ids. */
static void test_ties_are_cut_by_id(void **state)
{
    (void)state;
    error err;
    float x[10] = {0};
    sampler *s = create(10);
    sampler_params p = sampler_params_default(10);
    sampler_distribution d;
    for (int kept = 1; kept <= 10; kept++) {
        p.top_k = 0;
        p.top_p = kept / 10.0;
        assert_true(sampler_distribution_get(s, &p, NULL, x, 0, &d, &err));
        assert_int_equal(d.count, kept);
        assert_int_equal(d.ids[kept - 1], kept - 1);
        p.top_k = kept;
        p.top_p = 1;
        assert_true(sampler_distribution_get(s, &p, NULL, x, 0, &d, &err));
        assert_int_equal(d.count, kept);
        assert_int_equal(d.ids[kept - 1], kept - 1);
    }
    sampler_free(s);
}

static void test_greedy(void **state)
{
    (void)state;
    sampler *s = create(20);
    sampler_params p = sampler_params_default(20);
    p.temperature = 0;
    float x[20];
    for (int i = 0; i < 20; i++)
        x[i] = -3;
    assert_int_equal(sample(s, &p, NULL, x, 0), 0);
    x[17] = x[12] = x[19] = 2;
    assert_int_equal(sample(s, &p, NULL, x, 0), 12);
    x[4] = -0.0f;
    x[12] = x[17] = x[19] = 0.0f;
    assert_int_equal(sample(s, &p, NULL, x, 0), 4);
    p.top_k = 1;
    p.top_p = 0.1;
    assert_int_equal(sample(s, &p, NULL, x, 0), 4);
    sampler_free(s);
}

/* Padded rows are never looked at: not even a NaN there matters. */
static void test_padded_rows_are_masked(void **state)
{
    (void)state;
    float x[40];
    sampler *s = create(40);
    sampler_params p = sampler_params_default(33);
    for (int i = 0; i < 40; i++)
        x[i] = i < 33 ? (float)-i : i % 2 ? 1000.0f : NAN;
    p.logprobs = 20;
    for (uint64_t position = 0; position < 2000; position++) {
        p.temperature = (double)(position % 3) * 50;
        error err;
        sampler_result r;
        assert_true(sampler_sample(s, &p, NULL, x, position, &r, &err));
        assert_in_range(r.token, 0, 32);
        assert_int_equal(r.top[0].id, 0);
    }
    sampler_free(s);
}

/* ---- distribution ---- */

/* The value that a chi-square variable exceeds with probability 0.001 (Wilson and Hilferty's approximation, z = 3.0902). */
static double chi_square_critical(int freedom)
{
    double f = 2.0 / (9.0 * freedom), root = 1 - f + 3.0902 * sqrt(f);
    return freedom * root * root * root;
}

/* Draws at 200,000 positions against the exact probabilities; cells expecting fewer than 5 are put together. */
static void check_distribution(const sampler_params *p, const float *x, int n)
{
    enum { DRAWS = 200000 };
    static int hits[LARGEST];
    sampler *s = create(n);
    memset(hits, 0, sizeof hits);
    for (uint64_t position = 0; position < DRAWS; position++)
        hits[sample(s, p, NULL, x, position)]++;
    error err;
    sampler_distribution d;
    assert_true(sampler_distribution_get(s, p, NULL, x, 0, &d, &err));
    double chi = 0, rest_expected = 0, rest_hits = 0;
    int cells = 0, total = 0;
    for (int i = 0; i < d.count; i++) {
        double expected = d.probabilities[i] * DRAWS, got = hits[d.ids[i]];
        total += hits[d.ids[i]];
        if (expected < 5) {
            rest_expected += expected;
            rest_hits += got;
            continue;
        }
        chi += (got - expected) * (got - expected) / expected;
        cells++;
    }
    assert_int_equal(total, DRAWS);
    if (rest_expected >= 5) {
        chi += (rest_hits - rest_expected) * (rest_hits - rest_expected) / rest_expected;
        cells++;
    }
    assert_true(cells >= 2);
    assert_true(chi < chi_square_critical(cells - 1));
    sampler_free(s);
}

static void test_draws_follow_the_distribution(void **state)
{
    (void)state;
    float x[100];
    for (int i = 0; i < 100; i++)
        x[i] = (float)(2 * normal(31, 0, (uint64_t)i));
    sampler_params p = sampler_params_default(100);
    p.seed = 1;
    check_distribution(&p, x, 100);
    p.temperature = 0.6;
    p.seed = 2;
    check_distribution(&p, x, 100);
    p.temperature = 2;
    p.top_k = 20;
    p.seed = 3;
    check_distribution(&p, x, 100);
    p.top_k = 0;
    p.top_p = 0.9;
    p.seed = UINT64_MAX;
    check_distribution(&p, x, 100);
    p.temperature = 1;
    p.top_k = 40;
    p.min_p = 0.02;
    p.seed = 0;
    check_distribution(&p, x, 100);
}

static void test_draws_are_a_function_of_seed_and_position(void **state)
{
    (void)state;
    enum { N = 300, POSITIONS = 500 };
    float x[N];
    int32_t first[POSITIONS];
    int same_next = 0, same_seed = 0;
    for (int i = 0; i < N; i++)
        x[i] = (float)normal(41, 0, (uint64_t)i);
    sampler *s = create(N), *other = create(N);
    sampler_params p = sampler_params_default(N);
    p.seed = 77;
    for (int i = 0; i < POSITIONS; i++)
        first[i] = sample(s, &p, NULL, x, (uint64_t)i);
    for (int i = POSITIONS - 1; i >= 0; i--) {
        p.seed = 78;
        same_seed += sample(other, &p, NULL, x, (uint64_t)i) == first[i];
        p.seed = 77;
        assert_int_equal(sample(other, &p, NULL, x, (uint64_t)i), first[i]);
        same_next += i > 0 && first[i] == first[i - 1];
    }
    /* Two independent draws agree with probability sum p^2 = 0.009: 4.5 of 500, standard deviation 2.1. */
    assert_in_range(same_next, 0, 15);
    assert_in_range(same_seed, 0, 15);
    sampler_free(s);
    sampler_free(other);
}

/* A token that stays the winner among fewer: truncation and the noise do not interact. */
static void test_noise_does_not_depend_on_the_kept_set(void **state)
{
    (void)state;
    enum { N = 200 };
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)(3 * normal(42, 0, (uint64_t)i));
    error err;
    sampler *s = create(N);
    sampler_params all = sampler_params_default(N), few = all;
    few.top_k = 30;
    for (uint64_t position = 0; position < 1000; position++) {
        int32_t token = sample(s, &all, NULL, x, position);
        int32_t token_few = sample(s, &few, NULL, x, position);
        sampler_distribution d;
        assert_true(sampler_distribution_get(s, &few, NULL, x, position, &d, &err));
        bool kept = bsearch(&token, d.ids, (size_t)d.count, sizeof d.ids[0], by_id) != NULL;
        assert_true(!kept || token == token_few);
    }
    sampler_free(s);
}

/* ---- bias, penalties and history ---- */

typedef struct counts {
    int prompt[LARGEST], output[LARGEST];
} counts;

static void naive_adjust(float *x, const sampler_params *p, const counts *c)
{
    for (int i = 0; i < p->vocab_used; i++) {
        double v = (double)x[i];
        for (int b = 0; b < p->bias_count; b++)
            if (p->bias[b].id == i)
                v = (double)(float)(v + (double)p->bias[b].bias);
        if (c->prompt[i] + c->output[i] > 0)
            v = v > 0 ? v / p->repetition_penalty : v * p->repetition_penalty;
        if (c->output[i] > 0)
            v = v - p->frequency_penalty * c->output[i] - p->presence_penalty;
        x[i] = (float)v;
    }
}

static void check_penalties(sampler *s, int n, uint64_t round)
{
    static float x[LARGEST], adjusted[LARGEST];
    static counts c;
    error err;
    int32_t prompt[60];
    sampler_bias bias[5];
    memset(&c, 0, sizeof c);
    for (int i = 0; i < n; i++)
        adjusted[i] = x[i] = (float)(3 * normal(51, round, (uint64_t)i));
    for (int i = 0; i < 60; i++)
        c.prompt[prompt[i] = pick(52, round, (uint64_t)i, n)]++;
    sampler_state *history = sampler_state_create(prompt, 60, 50, &err);
    for (int i = 0; i < 50; i++) {
        int32_t id = pick(53, round, (uint64_t)i, n);
        c.output[id]++;
        assert_true(sampler_state_add(history, id, &err));
    }
    for (int i = 0; i < 5; i++)
        bias[i] = (sampler_bias){pick(54, round, (uint64_t)i, n), (float)(4 * normal(55, round, (uint64_t)i))};
    sampler_params p = sampler_params_default(n), plain = p;
    p.repetition_penalty = round % 2 ? 1 + random_uniform(56, round, 0) : 0.5;
    p.presence_penalty = round % 3 ? 4 * random_uniform(56, round, 1) - 2 : 0;
    p.frequency_penalty = round % 5 ? 4 * random_uniform(56, round, 2) - 2 : 0;
    p.bias = bias;
    p.bias_count = round % 4 ? 5 : 0;
    assert_true(sampler_params_check(&p, n, &err));
    naive_adjust(adjusted, &p, &c);
    for (uint64_t position = 0; position < 5; position++) {
        p.temperature = plain.temperature = (double)position;
        assert_int_equal(sample(s, &p, history, x, position), sample(s, &plain, NULL, adjusted, position));
    }
    sampler_distribution d;
    assert_true(sampler_distribution_get(s, &p, history, x, 0, &d, &err));
    double *kept = mem_copy(d.probabilities, (size_t)n * sizeof *kept);
    assert_true(sampler_distribution_get(s, &plain, NULL, adjusted, 0, &d, &err));
    assert_memory_equal(kept, d.probabilities, (size_t)n * sizeof *kept);
    free(kept);
    sampler_state_free(history);
}

static void test_penalties_agree_with_dense_counts(void **state)
{
    (void)state;
    sampler *s = create(LARGEST);
    for (uint64_t round = 0; round < 400; round++)
        check_penalties(s, round % 10 ? 1 + pick(50, round, 0, 100) : LARGEST, round);
    sampler_free(s);
}

/* Extreme logits stay finite under penalties, excluded tokens stay excluded, ids beyond the vocabulary are harmless. */
static void test_penalties_at_the_edges(void **state)
{
    (void)state;
    error err;
    float x[4] = {FLT_MAX, -FLT_MAX, -INFINITY, 0};
    const int32_t prompt[] = {0, 1, 2, 3, 4, 1000000};
    sampler_bias bias[] = {{0, 100}, {2, 100}};
    sampler_state *history = sampler_state_create(prompt, 6, 0, &err);
    sampler *s = create(4);
    sampler_params p = sampler_params_default(4);
    sampler_distribution d;
    p.bias = bias;
    p.bias_count = 2;
    p.repetition_penalty = 1e-30;
    assert_true(sampler_distribution_get(s, &p, history, x, 0, &d, &err));
    assert_int_equal(d.count, 3);
    assert_true(d.probabilities[0] == 1 && d.probabilities[1] == 0 && d.ids[2] == 3);
    p.repetition_penalty = 10;
    assert_true(sampler_distribution_get(s, &p, history, x, 0, &d, &err));
    assert_int_equal(d.count, 3);
    sampler_state_free(history);
    sampler_free(s);
}

static void check_counts(const sampler_state *h, const counts *c, int n)
{
    size_t distinct, expected = 0;
    const sampler_seen *seen = sampler_state_seen(h, &distinct);
    for (int i = 0; i < n; i++)
        expected += c->prompt[i] + c->output[i] > 0;
    assert_int_equal(distinct, expected);
    for (size_t i = 0; i < distinct; i++) {
        assert_int_equal(seen[i].prompt, c->prompt[seen[i].id]);
        assert_int_equal(seen[i].output, c->output[seen[i].id]);
    }
}

/* Thousands of additions and rewinds in a state with room for 40 outputs, mostly of new tokens. */
static void test_state_rewinds(void **state)
{
    (void)state;
    enum { N = 3000, PROMPT = 30, OUTPUT = 40 };
    static counts c;
    error err = {0};
    int32_t prompt[PROMPT], output[OUTPUT];
    for (int i = 0; i < PROMPT; i++)
        c.prompt[prompt[i] = pick(61, 0, (uint64_t)i, 20)]++;
    sampler_state *h = sampler_state_create(prompt, PROMPT, OUTPUT, &err);
    size_t count = 0;
    for (uint64_t round = 0; round < 5000; round++) {
        size_t target = (size_t)pick(62, round, 0, OUTPUT + 1);
        while (count > target)
            c.output[output[--count]]--;
        assert_true(sampler_state_rewind(h, count, &err));
        for (; count < target; count++) {
            output[count] = pick(63, round, count, pick(64, round, count, 2) ? N : 30);
            c.output[output[count]]++;
            assert_true(sampler_state_add(h, output[count], &err));
        }
        assert_int_equal(sampler_state_outputs(h), count);
        check_counts(h, &c, N);
    }
    assert_false(sampler_state_rewind(h, count + 1, &err));
    assert_non_null(strstr(err.text, "cannot rewind"));
    while (sampler_state_outputs(h) < OUTPUT)
        assert_true(sampler_state_add(h, 5, &err));
    assert_false(sampler_state_add(h, 5, &err));
    assert_non_null(strstr(err.text, "created for 40"));
    sampler_state_rewind(h, 0, &err);
    assert_false(sampler_state_add(h, -1, &err));
    sampler_state_free(h);
    prompt[3] = -7;
    assert_null(sampler_state_create(prompt, PROMPT, 1, &err));
    assert_non_null(strstr(err.text, "token 3 of the prompt is -7"));
    assert_null(sampler_state_create(prompt, 1, SIZE_MAX, &err));
    assert_non_null(strstr(err.text, "more than"));
}

/* ---- log-probabilities ---- */

static void test_logprobs_are_of_the_raw_row(void **state)
{
    (void)state;
    static float x[LARGEST];
    static naive sorted;
    error err;
    sampler *s = create(LARGEST);
    sampler_bias bias = {0, 50};
    for (uint64_t round = 0; round < 700; round++) {
        int n = round % 5 ? 1 + pick(70, round, 0, 50) : LARGEST;
        fill_row(x, n, round);
        sampler_params p = sampler_params_default(n), plain = p;
        p.temperature = 0.3;
        p.top_k = 2;
        p.bias = &bias;
        p.bias_count = 1;
        p.logprobs = pick(70, round, 1, 21);
        sampler_result r;
        assert_true(sampler_sample(s, &p, NULL, x, round, &r, &err));
        naive_keep(x, &plain, &sorted);
        long double sum = 0, max = x[sorted.ids[0]];
        for (int i = 0; i < sorted.most; i++)
            sum += expl(x[sorted.ids[i]] - max);
        assert_int_equal(r.top_count, p.logprobs < sorted.most ? p.logprobs : sorted.most);
        for (int i = 0; i < r.top_count; i++) {
            double exact = (double)(x[sorted.ids[i]] - max - logl(sum));
            assert_int_equal(r.top[i].id, sorted.ids[i]);
            assert_true(fabs(r.top[i].logprob - exact) <= 1e-12 * (1 + fabs(exact))); /* 5,000 double additions, one log */
        }
        double exact = (double)(x[r.token] - max - logl(sum));
        assert_true(fabs(r.logprob - exact) <= 1e-12 * (1 + fabs(exact)));
    }
    sampler_free(s);
}

/* ---- errors ---- */

static void expect_failure(const sampler_params *p, const char *part)
{
    error err = {0};
    assert_false(sampler_params_check(p, 100, &err));
    assert_int_equal(err.code, ERROR_INPUT);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not contain \"%s\"", err.text, part);
}

static void test_ranges_are_checked(void **state)
{
    (void)state;
    error err;
    const sampler_params good = sampler_params_default(90);
    const sampler_bias biases[] = {{89, 100}, {90, 0}, {-1, 0}, {0, -100.5f}, {0, NAN}};
    assert_true(sampler_params_check(&good, 100, &err));
    assert_true(sampler_params_check(&good, 90, &err));
#define EXPECT(field, value, part)   \
    do {                             \
        sampler_params p = good;     \
        p.field = value;             \
        expect_failure(&p, part);    \
    } while (0)
    EXPECT(temperature, -0.1, "temperature must be from 0 to 100, found -0.1");
    EXPECT(temperature, 101, "temperature must");
    EXPECT(temperature, NAN, "temperature must");
    EXPECT(top_p, 0, "top_p must be above 0 and at most 1, found 0");
    EXPECT(top_p, 1.01, "top_p must");
    EXPECT(top_p, NAN, "top_p must");
    EXPECT(min_p, -1, "min_p must");
    EXPECT(min_p, 1.5, "min_p must");
    EXPECT(top_k, -2, "top_k must be at least 1, or 0 or -1 to keep every token, found -2");
    EXPECT(repetition_penalty, 0, "repetition_penalty must be above 0 and at most 10, found 0");
    EXPECT(repetition_penalty, 11, "repetition_penalty must");
    EXPECT(presence_penalty, 2.1, "presence_penalty must");
    EXPECT(frequency_penalty, -2.1, "frequency_penalty must");
    EXPECT(frequency_penalty, NAN, "frequency_penalty must");
    EXPECT(vocab_used, 0, "vocab_used must");
    EXPECT(vocab_used, 101, "vocab_used must be from 1 to the 100 rows of the model, found 101");
    EXPECT(logprobs, 21, "logprobs must");
    EXPECT(logprobs, -2, "logprobs must");
    EXPECT(bias_count, 1, "no list");
#undef EXPECT
    sampler_params p = good;
    p.bias_count = 1;
    p.bias = &biases[0];
    assert_true(sampler_params_check(&p, 100, &err));
    p.bias = &biases[1];
    expect_failure(&p, "logit_bias has token id 90; the tokens of this model are 0 to 89");
    p.bias = &biases[2];
    expect_failure(&p, "token id -1");
    p.bias = &biases[3];
    expect_failure(&p, "logit_bias of token id 0 must be from -100 to 100, found -100.5");
    p.bias = &biases[4];
    expect_failure(&p, "must be from -100 to 100");
    assert_null(sampler_create(0, &err));
}

static void expect_no_token(sampler *s, const sampler_params *p, const float *x, const char *part)
{
    error err = {0};
    sampler_result r;
    sampler_distribution d;
    assert_false(sampler_sample(s, p, NULL, x, 4711, &r, &err));
    assert_non_null(strstr(err.text, "position 4711"));
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not contain \"%s\"", err.text, part);
    assert_false(sampler_distribution_get(s, p, NULL, x, 4711, &d, &err));
}

static void test_broken_rows_are_errors(void **state)
{
    (void)state;
    enum { N = 21 };
    float x[N] = {0};
    sampler *s = create(N);
    for (int greedy = 0; greedy < 2; greedy++) {
        sampler_params p = sampler_params_default(N);
        p.temperature = 1 - greedy;
        for (int i = 0; i < N; i++) {
            char part[40];
            snprintf(part, sizeof part, "the logit of token %d is ", i);
            x[i] = NAN;
            expect_no_token(s, &p, x, part);
            x[i] = INFINITY;
            expect_no_token(s, &p, x, part);
            x[i] = 0;
        }
        for (int i = 0; i < N; i++)
            x[i] = -INFINITY;
        expect_no_token(s, &p, x, "all 21 logits are -inf");
        x[20] = -5;
        assert_int_equal(sample(s, &p, NULL, x, 0), 20);
        for (int i = 0; i < N; i++)
            x[i] = 0;
        p.presence_penalty = 1;
        expect_no_token(s, &p, x, "no history");
    }
    sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_agree_with_full_sort),
        cmocka_unit_test(test_ties_are_cut_by_id),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_padded_rows_are_masked),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_draws_are_a_function_of_seed_and_position),
        cmocka_unit_test(test_noise_does_not_depend_on_the_kept_set),
        cmocka_unit_test(test_penalties_agree_with_dense_counts),
        cmocka_unit_test(test_penalties_at_the_edges),
        cmocka_unit_test(test_state_rewinds),
        cmocka_unit_test(test_logprobs_are_of_the_raw_row),
        cmocka_unit_test(test_ranges_are_checked),
        cmocka_unit_test(test_broken_rows_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
