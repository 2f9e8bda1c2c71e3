/* How auto decides. For each power of two of decoding sequences (a load) it keeps two curves, the trunk's time over the rows of
 * a step and the draft layer's time over the draft steps: one point per depth, each a mean that forgets, straight lines between
 * them. With the acceptance of each draft position, which all loads share, a depth is worth
 *
 *     (1 + a1 + a1 a2 + ... ) / (trunk time of n (1 + depth) rows + draft time of depth)      tokens per microsecond
 *
 * A load starts with a few steps each of depth 0, the middle and 1. Then it keeps a depth until another has been worth MARGIN
 * more at two evaluations in a row. Every EXPLORE_STEPS it tries another depth for a few steps. When depth 0 has been worth
 * CLEAR more than any other for GIVE_UP_STEPS, nothing is drafted or filled for RETRY_STEPS.
 *
 * A stall of the machine (a step of ten times the usual) counts as STALL times the usual at most; a lasting change is still
 * followed, at the curves' own pace. */
#include "engine/speculate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"

enum {
    LOADS = 24,            /* powers of two of decoding sequences */
    DEPTHS = SPEC_DEPTH_MOST + 1,
    AUTO_DEPTH = 5,        /* "auto" alone */
    TRIAL_STEPS = 8,       /* of one depth when it is tried */
    TRIAL_PATIENCE = 64,   /* steps to wait for them, when sequences cannot be drafted for */
    TRIALS_MOST = 3,
    EVALUATE_STEPS = 16,
    EXPLORE_STEPS = 256,   /* from one trial to the next */
    GIVE_UP_STEPS = 512,
    RETRY_STEPS = 2000,
    RETRY_MEASURE_STEPS = 32, /* after the trials of a retry, before giving up again */
    COME_BACK_STEPS = 64,  /* of a load that is known to gain, before drafting starts again */
    POINT_MEMORY = 32,     /* steps a point remembers */
    POINT_OLD_STEPS = 128, /* after so many steps elsewhere a point counts as POINT_OLD_WEIGHT steps */
    POINT_OLD_WEIGHT = 2,
    POINT_NEW_WEIGHT = 4,  /* up to here a point is new, and its first steps may have been a stall */
    ACCEPT_MEMORY = 500,   /* drafts a position remembers */
    SIMULATE_INDEX = 1 << 30, /* apart from the random numbers of the sampler, which are indexed by token */
};

static const double MARGIN = 1.04;
static const double CLEAR = 1.05;
static const double STALL = 1.5; /* a step of more than so many times what was expected counts as that */
static const double STALLED = 2; /* a point's first steps were a stall when the next takes less than their time by this */

typedef struct curve_point {
    double x, y;   /* means */
    int weight;    /* steps in them, POINT_MEMORY at most; 0: never seen */
    uint64_t seen; /* step of the load */
} curve_point;

typedef struct curve {
    curve_point points[DEPTHS];
} curve;

typedef struct spec_load {
    curve trunk;      /* x: rows, y: us */
    curve draft;      /* x: draft steps, y: us */
    double decoding;  /* mean of sequences */
    uint64_t steps;   /* recorded */
    int depth;        /* chosen */
    int rival;        /* was better at the latest evaluation; -1: none */
    bool clear;       /* depth 0 is better than any other by CLEAR */
    bool settled;     /* the first trials are over */
    int trials[TRIALS_MOST], trial_count; /* depths to try, the last one now */
    int trial_steps, trial_waits;         /* done of the one now; steps since it began */
    int turn;             /* which depth is tried next */
    uint64_t explore_at;  /* step */
} spec_load;

struct spec {
    spec_options options;
    double simulate_chance; /* of each draft, given those before it were accepted */
    double tried[SPEC_DEPTH_MOST], right[SPEC_DEPTH_MOST]; /* with forgetting */
    spec_load loads[LOADS];
    int latest;             /* decoding sequences of the latest step */
    bool off;               /* auto has given up */
    int zero_steps;         /* with depth 0 clearly the best, since another was chosen */
    int off_steps, gain_steps; /* since it gave up; of them, in a row in a load that would gain */
    spec_stats stats;
};

/* ---- options ---- */

static bool parse_depth(const char *words, int *depth)
{
    if (words[0] < '1' || words[0] > '0' + SPEC_DEPTH_MOST || words[1])
        return false;
    *depth = words[0] - '0';
    return true;
}

bool spec_options_parse(const char *words, spec_options *out, error *err)
{
    *out = (spec_options){0};
    if (strcmp(words, "off") == 0)
        return true;
    out->mode = text_starts_with(words, "auto") ? SPEC_AUTO : SPEC_FIXED;
    out->depth = AUTO_DEPTH;
    if (strcmp(words, "auto") == 0)
        return true;
    bool has_most = text_starts_with(words, "auto:");
    if ((out->mode == SPEC_FIXED || has_most) && parse_depth(has_most ? words + 5 : words, &out->depth))
        return true;
    *out = (spec_options){0};
    return error_set(err, ERROR_USAGE, "speculation is \"%s\"; expected off, auto, auto:N or N, where N drafts are 1 to %d", words,
                     SPEC_DEPTH_MOST);
}

/* The chance p with p + p^2 + ... + p^depth = mean. */
static double solve_chance(double mean, int depth)
{
    double low = 0, high = 1;
    for (int i = 0; i < 60; i++) {
        double p = (low + high) / 2, sum = 0, product = 1;
        for (int k = 0; k < depth; k++)
            sum += product *= p;
        if (sum < mean)
            low = p;
        else
            high = p;
    }
    return (low + high) / 2;
}

/* ---- curves ---- */

static void curve_record(curve *c, int index, double x, double y, double expected, uint64_t step)
{
    curve_point *p = &c->points[index];
    if (p->weight > POINT_OLD_WEIGHT && step - p->seen > POINT_OLD_STEPS)
        p->weight = POINT_OLD_WEIGHT;
    if (p->weight && y > STALL * expected)
        y = STALL * expected;
    if (p->weight && p->weight < POINT_NEW_WEIGHT && y < expected / STALLED)
        p->weight = 0; /* nothing is faster than it can be */
    p->weight += p->weight < POINT_MEMORY;
    p->x += (x - p->x) / p->weight;
    p->y += (y - p->y) / p->weight;
    p->seen = step;
}

/* Seen points in ascending x; returns how many. */
static int curve_sort(const curve *c, const curve_point **sorted)
{
    int count = 0;
    for (int i = 0; i < DEPTHS; i++) {
        if (!c->points[i].weight)
            continue;
        int at = count++;
        for (; at > 0 && sorted[at - 1]->x > c->points[i].x; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = &c->points[i];
    }
    return count;
}

/* The curve at x; beyond its ends the nearest line goes on, but never falls. 0 when nothing was seen. */
static double curve_at(const curve *c, double x)
{
    const curve_point *sorted[DEPTHS];
    int count = curve_sort(c, sorted), i = 0;
    if (count < 2)
        return count ? sorted[0]->y : 0;
    while (i < count - 2 && x > sorted[i + 1]->x)
        i++;
    const curve_point *a = sorted[i], *b = sorted[i + 1];
    double width = b->x - a->x, slope = width > 1e-6 ? (b->y - a->y) / width : 0;
    if (x > b->x)
        return b->y + fmax(slope, 0) * (x - b->x);
    return fmax(a->y + (x < a->x ? fmax(slope, 0) : slope) * (x - a->x), 0.1 * a->y);
}

/* ---- what a depth is worth ---- */

static int load_of(int decoding)
{
    int load = 0;
    while (decoding > 1 && load < LOADS - 1) {
        decoding >>= 1;
        load++;
    }
    return load;
}

/* Tokens per step and sequence. A position that was not tried yet is taken to be as good as the one before it. */
static double tokens_at(const spec *s, int depth)
{
    double tokens = 1, reach = 1, before = 0.7;
    for (int i = 0; i < depth; i++) {
        before = (s->right[i] + before) / (s->tried[i] + 1);
        reach *= before;
        tokens += reach;
    }
    return tokens;
}

static double time_at(const spec_load *l, int depth)
{
    double trunk = curve_at(&l->trunk, l->decoding * (1 + depth));
    return trunk + (depth ? curve_at(&l->draft, depth) : 0);
}

static double worth(const spec *s, const spec_load *l, int depth)
{
    double time = time_at(l, depth);
    return time > 0 ? tokens_at(s, depth) / time : 0;
}

/* Of the depths from `first` on. */
static int best_depth(const spec *s, const spec_load *l, int first)
{
    int best = first;
    for (int d = first + 1; d <= s->options.depth; d++)
        if (worth(s, l, d) > worth(s, l, best))
            best = d;
    return best;
}

/* ---- trials ---- */

static void add_trial(spec_load *l, int depth)
{
    for (int i = 0; i < l->trial_count; i++)
        if (l->trials[i] == depth)
            return;
    if (l->trial_count < TRIALS_MOST)
        l->trials[l->trial_count++] = depth;
}

/* The trials a load starts with; they are taken from the end. */
static void add_first_trials(const spec *s, spec_load *l)
{
    add_trial(l, 1);
    add_trial(l, (s->options.depth + 1) / 2);
    add_trial(l, 0);
}

/* The next neighbours often, those beyond and depth 0 less often. */
static void explore(const spec *s, spec_load *l)
{
    static const int steps[] = {1, -1, 1, -1, 2, -SPEC_DEPTH_MOST};
    int count = (int)(sizeof steps / sizeof *steps);
    for (int i = 0; i < count && !l->trial_count; i++) {
        int d = l->depth + steps[l->turn];
        l->turn = (l->turn + 1) % count;
        d = d < 0 ? 0 : d > s->options.depth ? s->options.depth : d;
        if (d != l->depth)
            add_trial(l, d);
    }
    l->explore_at = l->steps + EXPLORE_STEPS;
}

static void go_on_with_trial(spec_load *l, const spec_step *step)
{
    if (step->has_prompt_rows)
        return;
    l->trial_waits++;
    l->trial_steps += step->drafted_depth == l->trials[l->trial_count - 1];
    if (l->trial_steps < TRIAL_STEPS && l->trial_waits < TRIAL_PATIENCE)
        return;
    l->trial_count--;
    l->trial_steps = l->trial_waits = 0;
}

static void evaluate(const spec *s, spec_load *l)
{
    int best = best_depth(s, l, 0);
    bool is_better = best != l->depth && worth(s, l, best) > MARGIN * worth(s, l, l->depth);
    if (!l->settled || (is_better && l->rival >= 0)) {
        l->depth = best;
        is_better = false;
    }
    l->rival = is_better ? best : -1;
    l->clear = worth(s, l, 0) > CLEAR * worth(s, l, best_depth(s, l, 1));
    if (!l->settled)
        l->explore_at = l->steps + EXPLORE_STEPS;
    l->settled = true;
}

/* ---- giving up ---- */

static void retry(spec *s, spec_load *l)
{
    s->off = false;
    s->zero_steps = GIVE_UP_STEPS - RETRY_MEASURE_STEPS;
    l->trial_count = l->trial_steps = l->trial_waits = 0;
    if (!l->settled) {
        add_first_trials(s, l);
        return;
    }
    add_trial(l, 1);
}

static void count_off(spec *s, spec_load *l)
{
    s->off_steps++;
    s->gain_steps = l->settled && l->depth > 0 ? s->gain_steps + 1 : 0;
    if (s->gain_steps >= COME_BACK_STEPS) {
        s->off = false;
        s->zero_steps = 0;
    } else if (s->off_steps >= RETRY_STEPS) {
        retry(s, l);
    }
}

static void count_zero(spec *s, const spec_load *l)
{
    if (!l->settled || l->trial_count)
        return;
    s->zero_steps = l->depth ? 0 : s->zero_steps + l->clear;
    if (s->zero_steps < GIVE_UP_STEPS)
        return;
    s->off = true;
    s->off_steps = s->gain_steps = 0;
}

/* ---- recording ---- */

static void record_time(spec_load *l, const spec_step *step)
{
    double trunk = (double)step->trunk_us, draft = (double)step->draft_us;
    int depth = (step->rows - step->decoding + step->decoding / 2) / step->decoding;
    depth = depth < 0 ? 0 : depth < DEPTHS ? depth : DEPTHS - 1;
    l->steps++;
    l->decoding += (step->decoding - l->decoding) / (double)(l->steps < POINT_MEMORY ? l->steps : POINT_MEMORY);
    curve_record(&l->trunk, depth, step->rows, trunk, curve_at(&l->trunk, step->rows), l->steps);
    if (step->drafted_depth > 0 && step->drafted_depth < DEPTHS)
        curve_record(&l->draft, step->drafted_depth, step->drafted_depth, draft, curve_at(&l->draft, step->drafted_depth), l->steps);
}

static void record_counts(spec *s, const spec_step *step)
{
    for (int i = 0; i < SPEC_DEPTH_MOST; i++) {
        double keep = 1 / (1 + step->tried[i] / (double)ACCEPT_MEMORY);
        s->tried[i] = s->tried[i] * keep + step->tried[i];
        s->right[i] = s->right[i] * keep + step->right[i];
        s->stats.tried[i] += (uint64_t)step->tried[i];
        s->stats.right[i] += (uint64_t)step->right[i];
    }
    int pairs = step->tried[0], tokens = step->tokens - (step->decoding - pairs);
    s->stats.verify_steps += (uint64_t)pairs;
    s->stats.verify_tokens += pairs && tokens > 0 ? (uint64_t)tokens : 0;
}

void spec_record(spec *s, const spec_step *step)
{
    if (step->decoding < 1)
        return;
    s->latest = step->decoding;
    record_counts(s, step);
    if (s->options.mode != SPEC_AUTO)
        return;
    spec_load *l = &s->loads[load_of(step->decoding)];
    if (!step->has_prompt_rows)
        record_time(l, step);
    if (s->off) {
        count_off(s, l);
        return;
    }
    if (l->trial_count) {
        go_on_with_trial(l, step);
        if (!l->trial_count)
            evaluate(s, l);
    } else if (!step->has_prompt_rows && l->steps % EVALUATE_STEPS == 0) {
        evaluate(s, l);
    }
    if (!l->trial_count && l->steps >= l->explore_at)
        explore(s, l);
    count_zero(s, l);
}

/* ---- the rest ---- */

spec *spec_create(const spec_options *options)
{
    spec *s = mem_alloc(1, sizeof *s);
    s->options = *options;
    if (options->mode == SPEC_OFF)
        s->options.depth = 0;
    s->simulate_chance = solve_chance(options->simulate - 1, s->options.depth);
    for (int i = 0; i < LOADS; i++) {
        s->loads[i].rival = -1;
        add_first_trials(s, &s->loads[i]);
    }
    return s;
}

void spec_destroy(spec *s)
{
    free(s);
}

int spec_depth(const spec *s, int decoding)
{
    if (s->options.mode != SPEC_AUTO)
        return s->options.depth;
    if (s->off)
        return 0;
    const spec_load *l = &s->loads[load_of(decoding)];
    return l->trial_count ? l->trials[l->trial_count - 1] : l->depth;
}

bool spec_fills(const spec *s)
{
    return s->options.mode != SPEC_OFF && !s->off;
}

bool spec_is_simulated(const spec *s)
{
    return s->options.simulate > 0;
}

int spec_simulated(const spec *s, uint64_t seed, uint64_t position, int drafts)
{
    double lot = random_uniform(seed, position, SIMULATE_INDEX), reach = s->simulate_chance;
    int accepted = 0;
    for (; accepted < drafts && lot < reach; accepted++)
        reach *= s->simulate_chance;
    return accepted;
}

spec_stats spec_count(const spec *s)
{
    spec_stats stats = s->stats;
    stats.depth = spec_depth(s, s->latest);
    return stats;
}

static void describe_fixed(const spec *s, char *out, size_t bytes)
{
    const char *kind = spec_is_simulated(s) ? "simulated, depth" : "depth";
    if (s->stats.verify_steps)
        snprintf(out, bytes, "%s %d: %.2f tokens per step", kind, s->options.depth,
                 (double)s->stats.verify_tokens / (double)s->stats.verify_steps);
    else
        snprintf(out, bytes, "%s %d", kind, s->options.depth);
}

void spec_describe(const spec *s, char *out, int bytes)
{
    size_t room = bytes > 0 ? (size_t)bytes : 0;
    const spec_load *l = &s->loads[load_of(s->latest)];
    if (s->options.mode == SPEC_OFF) {
        snprintf(out, room, "off");
    } else if (s->options.mode == SPEC_FIXED) {
        describe_fixed(s, out, room);
    } else if (!l->settled) {
        snprintf(out, room, "%s: not measured yet with %d sequences", s->off ? "off" : "auto", s->latest);
    } else {
        int depth = l->depth ? l->depth : best_depth(s, l, 1);
        double ratio = time_at(l, depth) / fmax(time_at(l, 0), 1e-9);
        char chosen[24] = "off";
        if (!s->off)
            snprintf(chosen, sizeof chosen, "depth %d", l->depth);
        snprintf(out, room, "%s: %.2f tokens per step at %.1fx the time with %d", chosen, tokens_at(s, depth), ratio, depth);
    }
}
