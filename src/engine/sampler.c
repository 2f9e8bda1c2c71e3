/* How one row is sampled.
 *
 * Bias and penalties touch few entries; with any of them the row is copied first. Truncation works on a list of candidate
 * ids in ascending order. top_k and top_p are one operation, "keep the shortest prefix of the descending order whose mass
 * reaches a target", with mass 1 per token for top_k and the probability for top_p. It is done by radix selection: the mass
 * per value of the highest 11 bits of an order-preserving integer of the logit, then of the next 11 bits within the bin
 * where the target is reached, then of the last 10; what is left are equal logits, taken by ascending id. Three passes,
 * nothing sorted, no bad inputs.
 *
 * Every sum is in double and in an order fixed by the row alone. Differences to the largest logit are taken before the
 * division by the temperature, so that no parameter overflows. */
#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

enum { BIN_BITS = 11, BINS = 1 << BIN_BITS };

struct sampler {
    int vocab;
    float *adjusted;   /* [vocab]; the row after bias and penalties */
    int32_t *ids;      /* [vocab]; candidates, ascending */
    double *weights;   /* [vocab]; of the candidates: probability divided by the largest one */
    double bins[BINS]; /* mass per digit */
    int count;         /* candidates */
};

/* A row ready for choosing. */
typedef struct row {
    const float *x;  /* logits after bias and penalties */
    int count;       /* entries that are tokens */
    float max;       /* the largest entry, finite */
} row;

sampler_params sampler_params_default(int vocab_used)
{
    return (sampler_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .vocab_used = vocab_used, .logprobs = -1};
}

bool sampler_params_use_history(const sampler_params *p)
{
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static bool within(const char *field, double value, double least, double most, error *err)
{
    if (value >= least && value <= most)
        return true;
    return error_set(err, ERROR_INPUT, "%s must be from %g to %g, found %g", field, least, most, value);
}

static bool above_zero(const char *field, double value, double most, error *err)
{
    if (value > 0 && value <= most)
        return true;
    return error_set(err, ERROR_INPUT, "%s must be above 0 and at most %g, found %g", field, most, value);
}

static bool bias_check(const sampler_params *p, error *err)
{
    if (p->bias_count < 0 || (p->bias_count > 0 && !p->bias))
        return error_set(err, ERROR_INPUT, "logit_bias has %d entries and no list of them", p->bias_count);
    for (int i = 0; i < p->bias_count; i++) {
        sampler_bias b = p->bias[i];
        if (b.id < 0 || b.id >= p->vocab_used)
            return error_set(err, ERROR_INPUT, "logit_bias has token id %d; the tokens of this model are 0 to %d", (int)b.id,
                             p->vocab_used - 1);
        if (!(b.bias >= -100 && b.bias <= 100))
            return error_set(err, ERROR_INPUT, "logit_bias of token id %d must be from -100 to 100, found %g", (int)b.id,
                             (double)b.bias);
    }
    return true;
}

bool sampler_params_check(const sampler_params *p, int vocab, error *err)
{
    if (p->vocab_used < 1 || p->vocab_used > vocab)
        return error_set(err, ERROR_INPUT, "vocab_used must be from 1 to the %d rows of the model, found %d", vocab, p->vocab_used);
    if (p->top_k < -1)
        return error_set(err, ERROR_INPUT, "top_k must be at least 1, or 0 or -1 to keep every token, found %d", p->top_k);
    if (p->logprobs < -1 || p->logprobs > SAMPLER_LOGPROBS_MOST)
        return error_set(err, ERROR_INPUT, "logprobs must be from 0 to %d, or -1 for none, found %d", SAMPLER_LOGPROBS_MOST,
                         p->logprobs);
    return within("temperature", p->temperature, 0, 100, err) && above_zero("top_p", p->top_p, 1, err) &&
           within("min_p", p->min_p, 0, 1, err) && above_zero("repetition_penalty", p->repetition_penalty, 10, err) &&
           within("presence_penalty", p->presence_penalty, -2, 2, err) &&
           within("frequency_penalty", p->frequency_penalty, -2, 2, err) && bias_check(p, err);
}

sampler *sampler_create(int vocab, error *err)
{
    if (vocab < 1) {
        error_set(err, ERROR_INPUT, "a sampler needs a vocabulary of at least 1 token, found %d", vocab);
        return NULL;
    }
    sampler *s = mem_alloc(1, sizeof *s);
    s->vocab = vocab;
    s->adjusted = mem_try_alloc((size_t)vocab, sizeof *s->adjusted);
    s->ids = mem_try_alloc((size_t)vocab, sizeof *s->ids);
    s->weights = mem_try_alloc((size_t)vocab, sizeof *s->weights);
    if (s->adjusted && s->ids && s->weights)
        return s;
    error_set(err, ERROR_FIT, "no memory for sampling from a vocabulary of %d tokens", vocab);
    sampler_free(s);
    return NULL;
}

void sampler_free(sampler *s)
{
    if (!s)
        return;
    free(s->adjusted);
    free(s->ids);
    free(s->weights);
    free(s);
}

/* The largest of count entries; false when one is NaN or +inf. Eight lanes, so that the compiler can use vectors. */
static bool row_max(const float *x, int count, float *max)
{
    enum { LANES = 8 };
    float lane[LANES];
    int bad[LANES] = {0}, i = 0;
    for (int j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    for (; i + LANES <= count; i += LANES)
        for (int j = 0; j < LANES; j++) {
            bad[j] |= !(x[i + j] <= FLT_MAX);
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
        }
    for (int j = 0; i < count; i++, j++) {
        bad[j] |= !(x[i] <= FLT_MAX);
        lane[j] = x[i] > lane[j] ? x[i] : lane[j];
    }
    for (int j = 1; j < LANES; j++) {
        bad[0] |= bad[j];
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    }
    *max = lane[0];
    return !bad[0];
}

static bool bad_logit(const float *x, int count, uint64_t position, error *err)
{
    int i = 0;
    while (i < count - 1 && x[i] <= FLT_MAX)
        i++;
    return error_set(err, ERROR_RUNTIME, "cannot choose a token for position %llu: the logit of token %d is %g; the weights or a "
                     "kernel are broken", (unsigned long long)position, i, (double)x[i]);
}

/* A finite logit stays finite: a penalty lowers a token, only a logit of -inf excludes it. */
static float to_logit(double v)
{
    return (float)(v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v);
}

static void add_bias(float *x, const sampler_params *p)
{
    for (int i = 0; i < p->bias_count; i++) {
        float *v = &x[p->bias[i].id];
        if (p->bias[i].bias == -INFINITY)
            *v = -INFINITY;
        else if (*v != -INFINITY)
            *v = to_logit((double)*v + (double)p->bias[i].bias);
    }
}

static void apply_penalties(float *x, const sampler_params *p, const sampler_state *history)
{
    size_t count;
    const sampler_seen *seen = sampler_state_seen(history, &count);
    for (size_t i = 0; i < count; i++) {
        sampler_seen t = seen[i];
        if (t.id >= p->vocab_used || x[t.id] == -INFINITY)
            continue;
        double v = (double)x[t.id];
        v = v > 0 ? v / p->repetition_penalty : v * p->repetition_penalty;
        v -= p->frequency_penalty * t.output;
        v -= t.output > 0 ? p->presence_penalty : 0;
        x[t.id] = to_logit(v);
    }
}

/* Checks the row and applies bias and penalties. */
static bool prepare(sampler *s, const sampler_params *p, const sampler_state *history, const float *logits, uint64_t position,
                    row *out, error *err)
{
    if (p->vocab_used < 1 || p->vocab_used > s->vocab)
        return error_set(err, ERROR_RUNTIME, "vocab_used must be from 1 to %d, found %d", s->vocab, p->vocab_used);
    bool penalties = sampler_params_use_history(p);
    if (penalties && !history)
        return error_set(err, ERROR_RUNTIME, "a penalty is set for position %llu and there is no history to apply it to",
                         (unsigned long long)position);
    *out = (row){.x = logits, .count = p->vocab_used};
    if (!row_max(logits, p->vocab_used, &out->max))
        return bad_logit(logits, p->vocab_used, position, err);
    if (out->max == -INFINITY)
        return error_set(err, ERROR_RUNTIME, "cannot choose a token for position %llu: all %d logits are -inf",
                         (unsigned long long)position, p->vocab_used);
    if (p->bias_count == 0 && !penalties)
        return true;
    memcpy(s->adjusted, logits, (size_t)p->vocab_used * sizeof *logits);
    add_bias(s->adjusted, p);
    if (penalties)
        apply_penalties(s->adjusted, p, history);
    out->x = s->adjusted;
    row_max(s->adjusted, p->vocab_used, &out->max);
    if (out->max == -INFINITY)
        return error_set(err, ERROR_RUNTIME, "cannot choose a token for position %llu: every token is excluded",
                         (unsigned long long)position);
    return true;
}

/* An integer that orders as the logit does; -0 and +0 are equal. */
static uint32_t order_of(float x)
{
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Adds up the mass of the candidates whose order, above `shift + bits`, equals that of `prefix`, per digit of `bits` bits. */
static void fill_bins(sampler *s, const float *x, const double *mass, uint32_t prefix, int shift, int bits)
{
    uint32_t digits = 1u << bits;
    memset(s->bins, 0, digits * sizeof s->bins[0]);
    for (int i = 0; i < s->count; i++) {
        uint32_t key = order_of(x[s->ids[i]]);
        if ((uint64_t)(key ^ prefix) >> (shift + bits) == 0)
            s->bins[(key >> shift) & (digits - 1)] += mass ? mass[i] : 1.0;
    }
}

/* The highest digit at which *sum reaches target, or the lowest with mass when rounding keeps it below. *sum becomes the
 * mass of everything above that digit. */
static uint32_t find_digit(const sampler *s, int bits, double target, double *sum)
{
    uint32_t found = 0;
    double above = *sum, total = *sum;
    for (int d = (1 << bits) - 1; d >= 0 && total < target; d--) {
        if (s->bins[d] == 0)
            continue;
        found = (uint32_t)d;
        above = total;
        total += s->bins[d];
    }
    *sum = above;
    return found;
}

/* Drops the candidates whose order is below least. */
static void drop_below(sampler *s, const float *x, double *mass, uint32_t least)
{
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        int32_t id = s->ids[i];
        s->ids[kept] = id;
        if (mass)
            mass[kept] = mass[i];
        kept += order_of(x[id]) >= least;
    }
    s->count = kept;
}

/* Of the candidates whose order is `last`, the lowest of all, keeps the first ones until the mass reaches target. */
static void keep_first_equal(sampler *s, const float *x, double *mass, uint32_t last, double sum, double target)
{
    int kept = 0;
    for (int i = 0; i < s->count; i++) {
        double m = mass ? mass[i] : 1.0;
        if (order_of(x[s->ids[i]]) == last) {
            if (sum >= target)
                continue;
            sum += m;
        }
        if (mass)
            mass[kept] = m;
        s->ids[kept++] = s->ids[i];
    }
    s->count = kept;
}

/* Keeps the candidates in descending order, of equal ones the lower id first, until their mass reaches target (> 0). A NULL
 * mass is 1 each. */
static void keep_prefix(sampler *s, const float *x, double *mass, double target)
{
    static const int bits[3] = {BIN_BITS, BIN_BITS, 32 - 2 * BIN_BITS};
    uint32_t last = 0;
    double sum = 0;
    for (int level = 0, shift = 32; level < 3; level++) {
        shift -= bits[level];
        fill_bins(s, x, mass, last, shift, bits[level]);
        last |= find_digit(s, bits[level], target, &sum) << shift;
        drop_below(s, x, mass, last);
    }
    keep_first_equal(s, x, mass, last, sum, target);
}

static void weigh(sampler *s, row r, double temperature)
{
    for (int i = 0; i < s->count; i++)
        s->weights[i] = exp(((double)r.x[s->ids[i]] - (double)r.max) / temperature);
}

static double weights_sum(const sampler *s)
{
    double sum = 0;
    for (int i = 0; i < s->count; i++)
        sum += s->weights[i];
    return sum;
}

static void keep_likely(sampler *s, double min_p)
{
    int kept = 0;
    for (int i = 0; i < s->count; i++)
        if (s->weights[i] >= min_p) {
            s->weights[kept] = s->weights[i];
            s->ids[kept++] = s->ids[i];
        }
    s->count = kept;
}

/* Fills the candidates that top_k, top_p and min_p leave. */
static void truncate_row(sampler *s, const sampler_params *p, row r)
{
    int count = 0;
    for (int i = 0; i < r.count; i++) {
        s->ids[count] = i;
        count += r.x[i] != -INFINITY;
    }
    s->count = count;
    if (p->top_k > 0 && p->top_k < s->count)
        keep_prefix(s, r.x, NULL, p->top_k);
    if (p->top_p == 1 && p->min_p == 0)
        return;
    weigh(s, r, p->temperature);
    if (p->top_p < 1)
        keep_prefix(s, r.x, s->weights, p->top_p * weights_sum(s));
    if (p->min_p > 0)
        keep_likely(s, p->min_p);
}

/* At least the Gumbel noise -log(-log(u)): -log(u) >= 1 - u, and 1 - u >= 2^e with e its binary exponent. */
static double gumbel_bound(double u)
{
    uint64_t bits;
    double v = 1 - u;
    memcpy(&bits, &v, sizeof bits);
    return (1023.0 - (double)(bits >> 52)) * 0.69314718056 + 1e-9; /* log 2 rounded up; the margin covers rounding elsewhere */
}

/* The candidate with the largest noisy logit. The bound spares two logarithms for nearly all that cannot win. */
static int32_t draw(const sampler *s, const sampler_params *p, row r, uint64_t position)
{
    uint64_t key = random_key(p->seed, position);
    double best = -INFINITY;
    int32_t winner = -1;
    for (int i = 0; i < s->count; i++) {
        int32_t id = s->ids[i];
        double z = ((double)r.x[id] - (double)r.max) / p->temperature, u = random_uniform_at(key, (uint64_t)id);
        if (z + gumbel_bound(u) < best)
            continue;
        double noisy = z - log(-log(u));
        if (noisy > best) {
            best = noisy;
            winner = id;
        }
    }
    return winner;
}

static int32_t first_largest(row r)
{
    int32_t i = 0;
    while (r.x[i] != r.max)
        i++;
    return i;
}

/* Inserts (id, x) into the descending list of at most `most`; ids come in ascending order, so equal ones stay behind. */
static void top_insert(sampler_result *out, int most, int32_t id, double x)
{
    int i = out->top_count < most ? out->top_count++ : most - 1;
    for (; i > 0 && out->top[i - 1].logprob < x; i--)
        out->top[i] = out->top[i - 1];
    out->top[i] = (sampler_logprob){id, x};
}

/* Log-softmax of the row as the model gave it, over the rows that are tokens. */
static void fill_logprobs(const sampler_params *p, const float *logits, sampler_result *out)
{
    float max;
    double sum = 0;
    row_max(logits, p->vocab_used, &max);
    for (int i = 0; i < p->vocab_used; i++)
        sum += exp((double)logits[i] - (double)max);
    double log_sum = log(sum);
    out->logprob = (double)logits[out->token] - (double)max - log_sum;
    out->top_count = 0;
    for (int i = 0; p->logprobs > 0 && i < p->vocab_used; i++) {
        bool full = out->top_count == p->logprobs;
        if (logits[i] != -INFINITY && (!full || (double)logits[i] > out->top[p->logprobs - 1].logprob))
            top_insert(out, p->logprobs, i, (double)logits[i]);
    }
    for (int i = 0; i < out->top_count; i++)
        out->top[i].logprob = out->top[i].logprob - (double)max - log_sum;
}

bool sampler_sample(sampler *s, const sampler_params *p, const sampler_state *history, const float *logits, uint64_t position,
                    sampler_result *out, error *err)
{
    row r;
    if (!prepare(s, p, history, logits, position, &r, err))
        return false;
    out->top_count = 0;
    if (p->temperature == 0) {
        out->token = first_largest(r);
    } else {
        truncate_row(s, p, r);
        out->token = draw(s, p, r, position);
    }
    if (p->logprobs >= 0)
        fill_logprobs(p, logits, out);
    return true;
}

bool sampler_distribution_get(sampler *s, const sampler_params *p, const sampler_state *history, const float *logits,
                              uint64_t position, sampler_distribution *out, error *err)
{
    row r;
    if (!prepare(s, p, history, logits, position, &r, err))
        return false;
    if (p->temperature == 0) {
        s->ids[0] = first_largest(r);
        s->count = 1;
        s->weights[0] = 1;
    } else {
        truncate_row(s, p, r);
        weigh(s, r, p->temperature);
    }
    double sum = weights_sum(s);
    for (int i = 0; i < s->count; i++)
        s->weights[i] /= sum;
    *out = (sampler_distribution){s->ids, s->weights, s->count};
    return true;
}
