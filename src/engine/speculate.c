/* How auto decides. For each power of two of decoding sequences (a load) it keeps two curves, the trunk's time over the rows of
 * a step and the draft layer's time over the draft steps: one point per depth, each a mean that forgets, straight lines between
 * them. With the acceptance of each draft position, which all loads share, a depth is worth
 *
 *     (1 + a1 + a1 a2 + ... ) / (trunk time of n (1 + depth) rows + draft time of depth)      tokens per microsecond
 *
 * A load goes from state to state on its own, as guessing may gain with few sequences and lose with many:
 *
 *     first  -> active   a few steps each of depth 0, 1 and the middle; guessing gains
 *            -> doubt    depth 0 is worth CLEAR more than any other
 *     active -> active   keeps a depth until another has been worth MARGIN more at two evaluations in a row; tries others at times
 *            -> doubt    depth 0 was worth CLEAR more at two evaluations in a row
 *     doubt  -> idle     after some steps of depth 0 the best other depth was measured again, and lost again
 *            -> active   it won
 *     idle   -> retry    after RETRY_STEPS
 *     retry  -> active   a few steps of depth 1 were worth MARGIN more
 *            -> idle     they were not, or too few sequences could be drafted for
 *
 * So depth 0 is never kept for long while the draft layer is filled, which would cost time and give nothing.
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
    TRIAL_LARGE_STEPS = 4, /* the same when a step has more than TRIAL_LARGE_ROWS: a mistake is dear, and drafts are many */
    TRIAL_LARGE_ROWS = 32,
    TRIAL_PATIENCE = 64,   /* steps to wait for them, while only some sequences can be drafted for */
    EVALUATE_STEPS = 16,
    EXPLORE_SOON_STEPS = 64, /* to the first trial of a load that has become active */
    EXPLORE_STEPS = 256,   /* from one trial to the next */
    DOUBT_STEPS = 16,      /* of depth 0 before the best other depth is measured again */
    RETRY_STEPS = 2000,
    RETRY_PATIENCE = 256,  /* sequences that ran while the load was idle cannot be drafted for: others have to come */
    POINT_MEMORY = 32,     /* steps a point remembers */
    POINT_OLD_STEPS = 128, /* after so many steps elsewhere a point counts as POINT_OLD_WEIGHT steps */
    POINT_OLD_WEIGHT = 2,
    POINT_NEW_WEIGHT = 4,  /* up to here a point is new, and its first steps may have been a stall */
    ACCEPT_MEMORY = 500,   /* drafts a position remembers */
    SIMULATE_INDEX = 1 << 30, /* apart from the random numbers of the sampler, which are indexed by token */
};

static const double MARGIN = 1.04;
static const double CLEAR = 1.05;
static const double HOPELESS = 1.25; /* depth 1 loses by more than this: the middle is not tried */
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

typedef enum load_state { LOAD_FIRST, LOAD_ACTIVE, LOAD_DOUBT, LOAD_IDLE, LOAD_RETRY } load_state;

typedef struct spec_load {
    curve trunk;      /* x: rows, y: us */
    curve draft;      /* x: draft steps, y: us */
    double decoding;  /* mean of sequences */
    uint64_t steps;   /* recorded */
    load_state state;
    int depth;        /* kept outside of trials: 0 unless active */
    int rival;        /* was better at the latest evaluation; -1: none */
    int trial;        /* depth on trial; -1: none */
    int trial_steps, trial_waits; /* of them measured, and in all */
    int turn;         /* which depth is tried next */
    uint64_t act_at;  /* step at which the next trial begins, when the state has one */
    int lost_depth;   /* the best that guesses when the load went idle, */
    double lost_tokens, lost_ratio; /* its tokens per step, and its time over that of depth 0 */
} spec_load;

struct spec {
    spec_options options;
    double simulate_chance; /* of each draft, given those before it were accepted */
    double tried[SPEC_DEPTH_MOST], right[SPEC_DEPTH_MOST]; /* with forgetting */
    spec_load loads[LOADS];
    int latest;             /* decoding sequences of the latest step */
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

static double time_ratio(const spec_load *l, int depth)
{
    return time_at(l, depth) / fmax(time_at(l, 0), 1e-9);
}

static double worth(const spec *s, const spec_load *l, int depth)
{
    double time = time_at(l, depth);
    return time > 0 ? tokens_at(s, depth) / time : 0;
}

/* Of the depths that guess. */
static int best_depth(const spec *s, const spec_load *l)
{
    int best = 1;
    for (int d = 2; d <= s->options.depth; d++)
        if (worth(s, l, d) > worth(s, l, best))
            best = d;
    return best;
}

/* Whether drafting was ever measured. */
static bool is_measured(const spec_load *l)
{
    for (int d = 1; d < DEPTHS; d++)
        if (l->draft.points[d].weight)
            return true;
    return false;
}

/* By how much depth 0 is better than any other. */
static double zero_gain(const spec *s, const spec_load *l)
{
    return worth(s, l, 0) / fmax(worth(s, l, best_depth(s, l)), 1e-30);
}

/* ---- states ---- */

static void try_depth(spec_load *l, int depth)
{
    l->trial = depth;
    l->trial_steps = l->trial_waits = 0;
}

static void become_active(spec_load *l, int depth)
{
    l->state = LOAD_ACTIVE;
    l->depth = depth;
    l->rival = -1;
    l->turn = 0;
    l->act_at = l->steps + EXPLORE_SOON_STEPS;
}

static void become_doubtful(spec_load *l)
{
    l->state = LOAD_DOUBT;
    l->depth = 0;
    l->act_at = l->steps + (is_measured(l) ? DOUBT_STEPS : EXPLORE_STEPS);
}

static void become_idle(spec_load *l)
{
    l->state = LOAD_IDLE;
    l->depth = 0;
    l->act_at = l->steps + RETRY_STEPS;
}

/* For those who ask why: while the load is idle, the times of depth 0 alone go on. */
static void note_loss(const spec *s, spec_load *l)
{
    l->lost_depth = best_depth(s, l);
    l->lost_tokens = tokens_at(s, l->lost_depth);
    l->lost_ratio = time_ratio(l, l->lost_depth);
}

/* Depth 0 has been tried before: from the cheapest to the dearest, which is left out when it cannot win. */
static void go_on_with_first(const spec *s, spec_load *l, int tried)
{
    int middle = (s->options.depth + 1) / 2;
    if (tried == 0)
        try_depth(l, 1);
    else if (tried == 1 && middle > 1 && is_measured(l) && worth(s, l, 0) < HOPELESS * worth(s, l, 1))
        try_depth(l, middle);
    else if (is_measured(l) && zero_gain(s, l) < CLEAR)
        become_active(l, best_depth(s, l));
    else
        become_doubtful(l);
}

static void evaluate(const spec *s, spec_load *l)
{
    int best = zero_gain(s, l) > CLEAR ? 0 : best_depth(s, l);
    bool is_better = best == 0 || worth(s, l, best) > MARGIN * worth(s, l, l->depth);
    if (is_better && l->rival >= 0) {
        l->depth = best;
        is_better = false;
        if (best == 0)
            become_doubtful(l);
    }
    l->rival = is_better ? best : -1;
}

/* Depth 0 soon and then at times, the next neighbours often, those beyond less often. */
static void explore(const spec *s, spec_load *l)
{
    static const int steps[] = {-SPEC_DEPTH_MOST, 1, -1, 1, -1, 2};
    int count = (int)(sizeof steps / sizeof *steps);
    for (int i = 0; i < count && l->trial < 0; i++) {
        int d = l->depth + steps[l->turn];
        l->turn = (l->turn + 1) % count;
        d = d < 0 ? 0 : d > s->options.depth ? s->options.depth : d;
        if (d != l->depth)
            try_depth(l, d);
    }
    l->act_at = l->steps + EXPLORE_STEPS;
}

/* Measures the best of the depths measured before once more; what it took then counts little. */
static void begin_confirmation(const spec *s, spec_load *l)
{
    int best = 1;
    for (int d = 2; d <= s->options.depth; d++)
        if (l->draft.points[d].weight && worth(s, l, d) > worth(s, l, best))
            best = d;
    curve_point *points[] = {&l->trunk.points[best], &l->draft.points[best]};
    for (int i = 0; i < 2; i++)
        points[i]->weight = points[i]->weight < 1 ? points[i]->weight : 1;
    try_depth(l, best);
}

static void begin_retry(spec_load *l)
{
    l->state = LOAD_RETRY;
    try_depth(l, 1);
}

/* What drafts cost when the load went idle is too long ago; it is kept until the first step that says something new. */
static void forget_drafts(spec_load *l)
{
    for (int d = 1; d < DEPTHS; d++)
        l->trunk.points[d].weight = l->draft.points[d].weight = 0;
}

/* ---- trials ---- */

static int trial_steps(const spec_load *l)
{
    return l->decoding * (1 + l->trial) > TRIAL_LARGE_ROWS ? TRIAL_LARGE_STEPS : TRIAL_STEPS;
}

/* Steps with drafts for few of the sequences say little about what drafts for all would cost. */
static bool is_drafted(const spec_step *step)
{
    return step->drafted_depth > 0 && 2 * step->drafted >= step->decoding;
}

/* A row costs about the same whose it is, so a few of prompts do no harm. Where prompts come all the time, there are no other steps. */
static bool tells_time(const spec_step *step)
{
    return 2 * step->prompt_rows <= step->rows;
}

/* True when it is over. Steps in which nobody could be drafted for cost nothing, and the trial waits for better ones. */
static bool go_on_with_trial(spec_load *l, const spec_step *step)
{
    if (l->trial > 0 && step->drafted_depth == 0)
        return false;
    l->trial_waits++;
    if (tells_time(step))
        l->trial_steps += l->trial == 0 || (is_drafted(step) && step->drafted_depth >= l->trial);
    return l->trial_steps >= trial_steps(l) || l->trial_waits >= (l->state == LOAD_RETRY ? RETRY_PATIENCE : TRIAL_PATIENCE);
}

static void end_trial(const spec *s, spec_load *l)
{
    int tried = l->trial;
    bool is_complete = l->trial_steps >= trial_steps(l);
    l->trial = -1;
    if (l->state == LOAD_DOUBT || (l->state == LOAD_RETRY && is_complete))
        note_loss(s, l);
    switch (l->state) {
    case LOAD_FIRST:
        go_on_with_first(s, l, tried);
        break;
    case LOAD_ACTIVE:
        evaluate(s, l);
        break;
    case LOAD_DOUBT:
        if (!is_measured(l))
            become_doubtful(l);
        else if (zero_gain(s, l) > 1)
            become_idle(l);
        else
            become_active(l, best_depth(s, l));
        break;
    case LOAD_RETRY:
        if (is_complete && zero_gain(s, l) * MARGIN < 1)
            become_active(l, best_depth(s, l));
        else
            become_idle(l);
        break;
    case LOAD_IDLE:
        break;
    }
}

static void begin_trial(const spec *s, spec_load *l)
{
    if (l->state == LOAD_ACTIVE)
        explore(s, l);
    else if (l->state == LOAD_DOUBT)
        begin_confirmation(s, l);
    else if (l->state == LOAD_IDLE)
        begin_retry(l);
}

/* ---- recording ---- */

static void record_time(spec_load *l, const spec_step *step)
{
    double trunk = (double)step->trunk_us, draft = (double)step->draft_us;
    int depth = (step->rows - step->prompt_rows - step->decoding + step->decoding / 2) / step->decoding;
    depth = depth < 0 ? 0 : depth < DEPTHS ? depth : DEPTHS - 1;
    curve_record(&l->trunk, depth, step->rows, trunk, curve_at(&l->trunk, step->rows), l->steps);
    if (is_drafted(step) && step->drafted_depth < DEPTHS)
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
    l->steps++;
    l->decoding += (step->decoding - l->decoding) / (double)(l->steps < POINT_MEMORY ? l->steps : POINT_MEMORY);
    if (l->state == LOAD_RETRY && l->trial_steps == 0 && is_drafted(step))
        forget_drafts(l);
    if (tells_time(step))
        record_time(l, step);
    if (l->trial >= 0) {
        if (go_on_with_trial(l, step))
            end_trial(s, l);
    } else if (l->state == LOAD_ACTIVE && l->steps % EVALUATE_STEPS == 0) {
        evaluate(s, l);
    }
    if (l->trial < 0 && l->steps >= l->act_at)
        begin_trial(s, l);
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
        try_depth(&s->loads[i], 0);
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
    const spec_load *l = &s->loads[load_of(decoding)];
    return l->trial >= 0 ? l->trial : l->depth;
}

bool spec_fills(const spec *s, int decoding)
{
    return s->options.mode != SPEC_OFF && s->loads[load_of(decoding)].state != LOAD_IDLE;
}

bool spec_fills_prompts(const spec *s)
{
    bool any_seen = false;
    for (int i = 0; i < LOADS; i++) {
        any_seen |= s->loads[i].steps > 0;
        if (s->loads[i].steps > 0 && s->loads[i].state != LOAD_IDLE)
            return s->options.mode != SPEC_OFF;
    }
    return s->options.mode != SPEC_OFF && !any_seen;
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
    } else if (l->state == LOAD_IDLE) {
        snprintf(out, room, "off: %.2f tokens per step at %.1fx the time with %d", l->lost_tokens, l->lost_ratio, l->lost_depth);
    } else if (l->state == LOAD_FIRST || !is_measured(l)) {
        snprintf(out, room, "auto: not measured yet with %d sequences", s->latest);
    } else {
        int depth = l->depth ? l->depth : best_depth(s, l);
        snprintf(out, room, "depth %d: %.2f tokens per step at %.1fx the time with %d", l->depth, tokens_at(s, depth),
                 time_ratio(l, depth), depth);
    }
}
