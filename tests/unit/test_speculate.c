/* Speculation: auto against machines whose best depth is known, by a virtual clock; simulated acceptance; words. */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "engine/speculate.h"

enum { DEPTH = 5, LIFE = 200 /* steps a sequence runs; then another takes its place */ };

/* A machine and a model: what steps take and how good drafts are. */
typedef struct machine {
    double base_us, row_us;   /* a step: base + rows * row, but */
    double flat_rows;         /* rows up to here are free */
    double fill_us, draft_us; /* of the draft layer per step, and per draft step */
    double draft_share;       /* and in both, of the time of a trunk step with as many rows */
    double chance[SPEC_DEPTH_MOST]; /* that a draft is right, given those before it are */
    double noise;             /* each time is up to so much longer or shorter */
    double stalls;            /* share of the steps that take ten times as long */
} machine;

typedef struct run {
    spec *spec;
    uint64_t seed, draws;
    int drafts;        /* at hand, for each of */
    int drafted;       /* so many sequences */
    int able;          /* sequences without a gap in their draft keys */
    double ends;       /* of sequences, the part of one that is due */
    double us, tokens; /* so far */
    int switches, latest; /* of the depth drafted; trials included */
    int filled;        /* steps with the draft layer filled */
} run;

static double draw(run *r)
{
    return random_uniform(r->seed, r->draws++, 0);
}

static machine gpu(double chance)
{
    machine m = {.base_us = 20000, .row_us = 20, .fill_us = 300, .draft_us = 900};
    for (int i = 0; i < SPEC_DEPTH_MOST; i++)
        m.chance[i] = chance;
    return m;
}

static machine cpu(double chance)
{
    machine m = gpu(chance);
    m.base_us = 1000;
    m.row_us = 10000;
    return m;
}

static double trunk_us(const machine *m, int rows)
{
    return m->base_us + m->row_us * fmax(0, rows - m->flat_rows);
}

static double distort(const machine *m, run *r, double us)
{
    us *= 1 + m->noise * (2 * draw(r) - 1);
    return draw(r) < m->stalls ? 10 * us : us;
}

static void verify(const machine *m, run *r, spec_step *step)
{
    step->tokens = step->decoding;
    for (int n = 0; n < r->drafted; n++)
        for (int i = 0; i < r->drafts; i++) {
            bool right = draw(r) < m->chance[i];
            step->tried[i]++;
            step->right[i] += right;
            step->tokens += right;
            if (!right)
                break;
        }
}

/* Sequences without a gap end last, as they are the youngest. */
static void replace_sequences(run *r, int decoding)
{
    r->able = r->able < decoding ? r->able : decoding;
    for (r->ends += decoding / (double)LIFE; r->ends >= 1; r->ends--) {
        r->able -= r->able == decoding;
        r->able += spec_fills_prompts(r->spec);
    }
}

/* All sequences that run end, and so many others begin. */
static void renew(run *r, int decoding)
{
    r->able = spec_fills_prompts(r->spec) ? decoding : 0;
    r->drafted = 0;
}

static double draft_layer_us(const machine *m, int decoding, int filled, int depth)
{
    double fill = m->fill_us + m->draft_share * trunk_us(m, filled), drafts = m->draft_us * depth;
    return fill + drafts + (depth > 1 ? (depth - 1) * m->draft_share * trunk_us(m, decoding) : 0);
}

static void run_step(const machine *m, run *r, int decoding, int prompt_rows)
{
    r->drafted = r->drafted < decoding ? r->drafted : decoding;
    r->able = r->able < decoding ? r->able : decoding;
    spec_step step = {.decoding = decoding, .rows = decoding + r->drafted * r->drafts + prompt_rows, .prompt_rows = prompt_rows};
    verify(m, r, &step);
    step.trunk_us = (uint64_t)distort(m, r, trunk_us(m, step.rows));
    r->able = spec_fills(r->spec, decoding) ? r->able : 0;
    r->filled += r->able > 0;
    r->drafts = r->able > 0 ? spec_depth(r->spec, decoding) : 0;
    r->drafted = r->drafts ? r->able : 0;
    step.drafted_depth = r->drafts;
    step.drafted = r->drafted;
    if (r->able > 0)
        step.draft_us = (uint64_t)distort(m, r, draft_layer_us(m, r->able, step.tokens * r->able / decoding, r->drafts));
    r->us += (double)(step.trunk_us + step.draft_us);
    r->tokens += step.tokens;
    r->switches += step.drafted_depth != r->latest;
    r->latest = step.drafted_depth;
    spec_record(r->spec, &step);
    replace_sequences(r, decoding);
}

/* Tokens per second over so many steps. */
static double run_steps(const machine *m, run *r, int decoding, int steps)
{
    double us = r->us, tokens = r->tokens;
    for (int i = 0; i < steps; i++)
        run_step(m, r, decoding, 0);
    return (r->tokens - tokens) / (r->us - us) * 1e6;
}

static double worth(const machine *m, int decoding, int depth)
{
    double tokens = 1, reach = 1;
    for (int i = 0; i < depth; i++)
        tokens += reach *= m->chance[i];
    double us = trunk_us(m, decoding * (1 + depth)) + (depth ? draft_layer_us(m, decoding, (int)(tokens * decoding), depth) : 0);
    return decoding * tokens / (us * (1 + 9 * m->stalls)) * 1e6;
}

static int best_depth(const machine *m, int decoding)
{
    int best = 0;
    for (int d = 1; d <= DEPTH; d++)
        if (worth(m, decoding, d) > worth(m, decoding, best))
            best = d;
    return best;
}

static run start(spec_mode mode, uint64_t seed)
{
    spec_options o = {.mode = mode, .depth = DEPTH};
    return (run){.spec = spec_create(&o), .seed = seed, .able = INT_MAX};
}

/* Runs at the speed of the best depth, less what trials may cost. */
static void check_speed(const machine *m, run *r, int decoding, int steps, double share)
{
    double got = run_steps(m, r, decoding, steps), best = worth(m, decoding, best_depth(m, decoding));
    if (got < share * best)
        fail_msg("%.1f tokens/s with %d sequences, %.1f at the best depth %d; seed %d", got, decoding, best, best_depth(m, decoding),
                 (int)r->seed);
}

/* The depth kept outside of trials, by majority of 100 steps. */
static int kept_depth(const machine *m, run *r, int decoding)
{
    int seen[DEPTH + 1] = {0}, most = 0;
    for (int i = 0; i < 100; i++) {
        run_step(m, r, decoding, 0);
        seen[r->latest]++;
    }
    for (int d = 1; d <= DEPTH; d++)
        most = seen[d] > seen[most] ? d : most;
    return most;
}

static void test_flat_machine(void **unused)
{
    (void)unused;
    for (int chance = 1; chance < 10; chance += 2)
        for (int decoding = 1; decoding <= 64; decoding *= 8) {
            machine m = gpu(chance / 10.0);
            run r = start(SPEC_AUTO, (uint64_t)chance);
            run_steps(&m, &r, decoding, 200);
            check_speed(&m, &r, decoding, 10000, 0.95);
            int kept = kept_depth(&m, &r, decoding);
            assert_true(worth(&m, decoding, kept) > 0.95 * worth(&m, decoding, best_depth(&m, decoding)));
            spec_destroy(r.spec);
        }
}

static void test_linear_machine(void **unused)
{
    (void)unused;
    for (int decoding = 1; decoding <= 16; decoding *= 4) {
        machine m = cpu(0.8);
        run r = start(SPEC_AUTO, 3);
        run_steps(&m, &r, decoding, 80);
        assert_int_equal(spec_depth(r.spec, decoding), 0);
        assert_false(spec_fills(r.spec, decoding));
        assert_false(spec_fills_prompts(r.spec));
        check_speed(&m, &r, decoding, 20000, 0.98);
        assert_int_equal(kept_depth(&m, &r, decoding), 0);
        assert_true(r.filled < 3000);
        spec_destroy(r.spec);
    }
}

/* Rows are free up to a point: many drafts for few sequences, none for many. */
static void test_loads(void **unused)
{
    (void)unused;
    machine m = gpu(0.7);
    m.flat_rows = 32;
    m.row_us = 600;
    run r = start(SPEC_AUTO, 4);
    for (int round = 0; round < 3; round++)
        for (int decoding = 1; decoding <= 256; decoding *= 4) {
            run_steps(&m, &r, decoding, 300);
            check_speed(&m, &r, decoding, 3000, 0.93);
        }
    renew(&r, 2);
    assert_true(kept_depth(&m, &r, 2) >= 3);
    renew(&r, 200);
    assert_int_equal(kept_depth(&m, &r, 200), 0);
    spec_destroy(r.spec);
}

/* The number of sequences drifts within a load. */
static void test_drift(void **unused)
{
    (void)unused;
    machine m = gpu(0.7);
    m.row_us = 200;
    run r = start(SPEC_AUTO, 5);
    run_steps(&m, &r, 8, 200);
    double best = 0, before = r.tokens;
    for (int i = 0; i < 10000; i++) {
        int decoding = 8 + (i / 37) % 8;
        double us = r.us;
        run_step(&m, &r, decoding, 0);
        best += worth(&m, decoding, best_depth(&m, decoding)) * (r.us - us) / 1e6;
    }
    assert_true(r.tokens - before > 0.95 * best);
    spec_destroy(r.spec);
}

static void test_acceptance_changes(void **unused)
{
    (void)unused;
    machine good = gpu(0.85), bad = gpu(0.05);
    run r = start(SPEC_AUTO, 6);
    for (int round = 0; round < 3; round++) {
        run_steps(&good, &r, 4, 3000);
        check_speed(&good, &r, 4, 3000, 0.94);
        run_steps(&bad, &r, 4, 1500);
        check_speed(&bad, &r, 4, 3000, 0.94);
    }
    spec_destroy(r.spec);
}

/* A machine that changes between depth 1 and the most, without a reason to give up. */
static void test_machine_changes(void **unused)
{
    (void)unused;
    machine narrow = gpu(0.8), wide = gpu(0.8);
    narrow.flat_rows = 8;
    narrow.row_us = 3500;
    assert_int_equal(best_depth(&narrow, 4), 1);
    assert_int_equal(best_depth(&wide, 4), DEPTH);
    run r = start(SPEC_AUTO, 13);
    for (int round = 0; round < 3; round++) {
        run_steps(&narrow, &r, 4, 1000);
        check_speed(&narrow, &r, 4, 3000, 0.95);
        run_steps(&wide, &r, 4, 3000);
        check_speed(&wide, &r, 4, 3000, 0.95);
    }
    spec_destroy(r.spec);
}

/* A machine that changes: gives up, and finds back by a retry. */
static void test_comes_back(void **unused)
{
    (void)unused;
    machine slow = cpu(0.8), fast = gpu(0.8);
    run r = start(SPEC_AUTO, 7);
    run_steps(&slow, &r, 4, 1000);
    assert_false(spec_fills(r.spec, 4));
    run_steps(&fast, &r, 4, 3000);
    assert_true(spec_fills(r.spec, 4));
    check_speed(&fast, &r, 4, 3000, 0.94);
    spec_destroy(r.spec);
}

/* Having given up under a load, it drafts at once for new sequences when the load is one that is known to gain. */
static void test_known_load_comes_back(void **unused)
{
    (void)unused;
    machine m = gpu(0.7);
    m.flat_rows = 32;
    m.row_us = 2000;
    run r = start(SPEC_AUTO, 8);
    run_steps(&m, &r, 2, 500);
    run_steps(&m, &r, 100, 1000);
    assert_false(spec_fills(r.spec, 100));
    assert_true(spec_fills(r.spec, 2));
    assert_true(spec_fills_prompts(r.spec));
    renew(&r, 2);
    run_step(&m, &r, 2, 0);
    assert_true(r.drafts > 1);
    spec_destroy(r.spec);
}

/* A CPU where one more row is cheap for one sequence, and dear for 32. */
static machine small_cpu(double chance)
{
    machine m = {.base_us = 3000, .row_us = 450, .draft_share = 0.12};
    for (int i = 0; i < SPEC_DEPTH_MOST; i++)
        m.chance[i] = chance;
    return m;
}

/* One sequence gains, 32 lose: finding out costs 32 little, giving up for them takes nothing from the one. */
static void test_one_gains_many_lose(void **unused)
{
    (void)unused;
    double most = 0;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (int chance = 3; chance <= 8; chance++) {
            machine m = small_cpu(chance / 10.0);
            m.noise = seed % 2 ? 0.15 : 0;
            m.stalls = seed % 4 == 3 ? 0.01 : 0;
            assert_int_equal(best_depth(&m, 32), 0);
            assert_true(best_depth(&m, 1) > 0);
            run r = start(SPEC_AUTO, seed);
            if (seed % 3)
                run_steps(&m, &r, 1, 500);
            renew(&r, 32);
            double many = run_steps(&m, &r, 32, 2000), loss = 1 - many / worth(&m, 32, 0);
            if (m.noise == 0)
                most = loss > most ? loss : most;
            if (loss > (m.stalls > 0 ? 0.08 : 0.04))
                fail_msg("%.1f%% lost with 32 sequences, chance %d/10, seed %d", 100 * loss, chance, (int)seed);
            assert_false(spec_fills(r.spec, 32));
            renew(&r, 1);
            run_steps(&m, &r, 1, 200);
            check_speed(&m, &r, 1, 2000, 0.93);
            spec_destroy(r.spec);
        }
    printf("%.1f%% lost at most\n", 100 * most);
}

/* Retries, for which new sequences have to come, cost little in the long run. */
static void test_retries_cost_little(void **unused)
{
    (void)unused;
    machine m = small_cpu(0.7);
    run r = start(SPEC_AUTO, 5);
    check_speed(&m, &r, 32, 20000, 0.985);
    assert_true(r.filled > 500 && r.filled < 3000);
    spec_destroy(r.spec);
}

/* Being at 32 and at one sequence by turns: neither forgets. */
static void test_loads_by_turns(void **unused)
{
    (void)unused;
    machine m = small_cpu(0.7);
    m.noise = 0.1;
    run r = start(SPEC_AUTO, 3);
    run_steps(&m, &r, 1, 300);
    run_steps(&m, &r, 32, 300);
    for (int round = 0; round < 20; round++) {
        renew(&r, 1);
        check_speed(&m, &r, 1, 200, 0.85);
        assert_true(r.drafts > 0);
        renew(&r, 32);
        check_speed(&m, &r, 32, 200, 0.9);
    }
    spec_destroy(r.spec);
}

/* Sequences of an idle load that fall to a load not seen yet cannot be drafted for; it is measured when new ones come. */
static void test_gap_is_no_verdict(void **unused)
{
    (void)unused;
    machine m = small_cpu(0.8);
    for (int steps = 100; steps < 1000; steps += 50) {
        run r = start(SPEC_AUTO, 4);
        run_steps(&m, &r, 32, 120);
        assert_false(spec_fills(r.spec, 32));
        for (int i = 0; i < steps; i++) {
            r.able = 0;
            run_step(&m, &r, 1, 0);
        }
        assert_true(spec_fills(r.spec, 1));
        assert_true(spec_fills_prompts(r.spec));
        renew(&r, 1);
        run_step(&m, &r, 1, 0);
        assert_true(r.drafts > 0);
        run_steps(&m, &r, 1, 100);
        check_speed(&m, &r, 1, 2000, 0.95);
        spec_destroy(r.spec);
    }
}

/* Noise and stalls: right all the same, and no flapping. */
static void test_noise(void **unused)
{
    (void)unused;
    for (uint64_t seed = 0; seed < 20; seed++) {
        machine flat = gpu(0.75), linear = cpu(0.75);
        flat.noise = linear.noise = 0.2;
        flat.stalls = linear.stalls = 0.03;
        run r = start(SPEC_AUTO, seed);
        run_steps(&flat, &r, 4, 500);
        r.switches = 0;
        run_steps(&flat, &r, 4, 10000);
        assert_true(r.switches < 160); /* 39 trials are two each */
        assert_true(worth(&flat, 4, kept_depth(&flat, &r, 4)) > 0.94 * worth(&flat, 4, best_depth(&flat, 4)));
        spec_destroy(r.spec);
        r = start(SPEC_AUTO, seed);
        run_steps(&linear, &r, 4, 1000);
        assert_false(spec_fills(r.spec, 4));
        r.switches = 0;
        run_steps(&linear, &r, 4, 10000);
        assert_true(r.switches < 40);
        spec_destroy(r.spec);
    }
}

/* Depths that are worth the same: noise does not make it wander between them. */
static void test_no_flapping(void **unused)
{
    (void)unused;
    int changes = 0;
    for (uint64_t seed = 0; seed < 5; seed++) {
        machine m = gpu(0.6);
        m.draft_us = 1750;
        m.noise = 0.15;
        run r = start(SPEC_AUTO, seed);
        run_steps(&m, &r, 4, 500);
        int kept = kept_depth(&m, &r, 4);
        for (int i = 0; i < 200; i++) {
            int now = kept_depth(&m, &r, 4);
            changes += now != kept;
            kept = now;
        }
        spec_destroy(r.spec);
    }
    printf("%d changes in 100,000 steps\n", changes);
    assert_true(changes <= 15);
}

/* A step of ten times the usual at any moment does not change the depth that is kept. */
static void test_one_stall(void **unused)
{
    (void)unused;
    for (int at = 0; at < 300; at += 3) {
        machine m = gpu(0.8);
        run r = start(SPEC_AUTO, 9);
        run_steps(&m, &r, 4, at);
        m.stalls = 1;
        run_step(&m, &r, 4, 0);
        m.stalls = 0;
        run_steps(&m, &r, 4, 200);
        assert_true(worth(&m, 4, kept_depth(&m, &r, 4)) > 0.95 * worth(&m, 4, best_depth(&m, 4)));
        spec_destroy(r.spec);
    }
}

/* Something else keeps the machine busy for the very steps of one trial: the confirmation comes at another time. */
static void test_one_slow_trial(void **unused)
{
    (void)unused;
    machine m = small_cpu(0.7), slow = small_cpu(0.7);
    slow.base_us *= 3;
    slow.row_us *= 3;
    for (int at = 0; at < 100; at++) {
        run r = start(SPEC_AUTO, 14);
        run_steps(&m, &r, 1, at);
        run_steps(&slow, &r, 1, 8);
        run_steps(&m, &r, 1, 100);
        check_speed(&m, &r, 1, 1000, 0.9);
        spec_destroy(r.spec);
    }
}

/* Steps that are mostly prompts say nothing about time: they neither turn drafting off, nor hide what it costs. */
static void test_prompt_rows(void **unused)
{
    (void)unused;
    machine machines[] = {gpu(0.8), cpu(0.8)};
    for (int k = 0; k < 2; k++) {
        const machine *m = &machines[k];
        run r = start(SPEC_AUTO, 10);
        for (int i = 0; i < 20000; i++)
            run_step(m, &r, 4, i % 4 ? 200 : 0);
        int depth = spec_depth(r.spec, 4);
        assert_true(worth(m, 4, depth) > 0.95 * worth(m, 4, best_depth(m, 4)));
        spec_destroy(r.spec);
    }
}

/* Where short requests come and go, every step has some prompt rows; what drafts cost is found out all the same. */
static void test_always_prompt_rows(void **unused)
{
    (void)unused;
    machine machines[] = {gpu(0.8), small_cpu(0.7)};
    for (int k = 0; k < 2; k++) {
        const machine *m = &machines[k];
        run r = start(SPEC_AUTO, 17);
        for (int i = 0; i < 300; i++)
            run_step(m, &r, 32, 10 + i % 7);
        int depth = spec_depth(r.spec, 32);
        assert_true(worth(m, 32, depth) > 0.95 * worth(m, 32, best_depth(m, 32)));
        assert_true((depth == 0) == (k == 1));
        spec_destroy(r.spec);
    }
}

/* Sequences that cannot be drafted for (their draft layer is not filled) do not block the trials. */
static void test_nothing_drafted(void **unused)
{
    (void)unused;
    run r = start(SPEC_AUTO, 11);
    spec_step step = {.decoding = 4, .rows = 4, .trunk_us = 1000, .tokens = 4};
    for (int i = 0; i < 5000; i++)
        spec_record(r.spec, &step);
    char words[96];
    spec_describe(r.spec, words, sizeof words);
    assert_string_equal(words, "auto: not measured yet with 4 sequences");
    machine m = gpu(0.8);
    run_steps(&m, &r, 4, 3000);
    check_speed(&m, &r, 4, 3000, 0.94);
    spec_destroy(r.spec);
}

static void test_same_record_same_depth(void **unused)
{
    (void)unused;
    machine m = gpu(0.6);
    m.noise = 0.3;
    run a = start(SPEC_AUTO, 12), b = start(SPEC_AUTO, 12);
    for (int i = 0; i < 3000; i++) {
        run_step(&m, &a, 1 + i % 9, i % 5 ? 0 : 100);
        run_step(&m, &b, 1 + i % 9, i % 5 ? 0 : 100);
        for (int n = 1; n < 40; n++)
            assert_int_equal(spec_depth(a.spec, n), spec_depth(b.spec, n));
    }
    spec_destroy(a.spec);
    spec_destroy(b.spec);
}

/* Of the sequences of a step, only those with drafts count as verified. */
static void test_count(void **unused)
{
    (void)unused;
    spec_options o = {.mode = SPEC_FIXED, .depth = 2};
    spec *s = spec_create(&o);
    spec_step step = {.decoding = 4, .rows = 8, .tried = {2, 1}, .right = {1, 0}, .tokens = 5};
    spec_step plain = {.decoding = 3, .rows = 3, .tokens = 3};
    spec_record(s, &step);
    spec_record(s, &plain);
    spec_stats stats = spec_count(s);
    assert_int_equal(stats.verify_steps, 2);
    assert_int_equal(stats.verify_tokens, 3);
    assert_int_equal(stats.tried[0], 2);
    assert_int_equal(stats.tried[1], 1);
    assert_int_equal(stats.right[0], 1);
    spec_destroy(s);
}

static void test_off_and_fixed(void **unused)
{
    (void)unused;
    machine m = cpu(0.5);
    run off = start(SPEC_OFF, 1), fixed = start(SPEC_FIXED, 1);
    char words[96];
    assert_int_equal(spec_depth(off.spec, 4), 0);
    assert_false(spec_fills(off.spec, 4) || spec_fills_prompts(off.spec));
    spec_describe(off.spec, words, sizeof words);
    assert_string_equal(words, "off");
    run_steps(&m, &fixed, 4, 5000);
    assert_int_equal(spec_depth(fixed.spec, 4), DEPTH);
    assert_true(spec_fills(fixed.spec, 4) && spec_fills_prompts(fixed.spec));
    spec_stats stats = spec_count(fixed.spec);
    assert_int_equal(stats.depth, DEPTH);
    assert_int_equal(stats.verify_steps, 4 * 4999);
    assert_int_equal(stats.verify_tokens, (int)fixed.tokens - 4);
    assert_int_equal(stats.tried[0], 4 * 4999);
    assert_int_equal(stats.tried[1], stats.right[0]);
    spec_describe(fixed.spec, words, sizeof words);
    assert_true(strncmp(words, "depth 5: 1.9", 12) == 0 || strncmp(words, "depth 5: 2.0", 12) == 0);
    spec_destroy(off.spec);
    spec_destroy(fixed.spec);
}

static void test_describe_auto(void **unused)
{
    (void)unused;
    machine m = cpu(0.8), fast = gpu(0.8);
    char words[96], later[96];
    run r = start(SPEC_AUTO, 2);
    spec_describe(r.spec, words, sizeof words);
    assert_string_equal(words, "auto: not measured yet with 0 sequences");
    run_steps(&m, &r, 4, 1000);
    spec_describe(r.spec, words, sizeof words);
    assert_int_equal(strncmp(words, "off: 1.", 7), 0);
    assert_non_null(strstr(words, "tokens per step at 2.0x the time with 1"));
    run_steps(&fast, &r, 4, 500); /* depth 0 alone: says nothing about guessing */
    spec_describe(r.spec, later, sizeof later);
    assert_string_equal(words, later);
    spec_destroy(r.spec);
    r = start(SPEC_AUTO, 2);
    run_steps(&fast, &r, 4, 1000);
    spec_describe(r.spec, words, sizeof words);
    assert_int_equal(strncmp(words, "depth 5: 3.", 11), 0);
    spec_destroy(r.spec);
}

static void test_simulated(void **unused)
{
    (void)unused;
    const struct { double mean; int depth; } cases[] = {{3.61, 5}, {1, 3}, {4, 3}, {1.5, 1}, {2.75, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spec_options o = {SPEC_FIXED, cases[i].depth, cases[i].mean};
        spec *s = spec_create(&o);
        double tokens = 0;
        for (uint64_t n = 0; n < 100000; n++) {
            int accepted = spec_simulated(s, n % 17, n, o.depth);
            assert_true(accepted >= 0 && accepted <= o.depth);
            assert_int_equal(accepted, spec_simulated(s, n % 17, n, o.depth));
            int of_one = spec_simulated(s, n % 17, n, 1); /* fewer drafts: the same lot, cut */
            assert_int_equal(of_one, accepted > 0);
            tokens += 1 + accepted;
        }
        assert_true(fabs(tokens / 100000 - o.simulate) < 0.01 * o.simulate);
        assert_true(spec_is_simulated(s));
        spec_destroy(s);
    }
}

static void test_parse(void **unused)
{
    (void)unused;
    static const char *const wrong[] = {"", "0", "9", "12", "-1", "3x", "on", "auto:", "auto:0", "auto:9", "autos", "auto5", "OFF", "off "};
    error err = {0};
    spec_options o;
    assert_true(spec_options_parse("off", &o, &err) && o.mode == SPEC_OFF);
    assert_true(spec_options_parse("auto", &o, &err) && o.mode == SPEC_AUTO && o.depth == 5);
    assert_true(spec_options_parse("auto:8", &o, &err) && o.mode == SPEC_AUTO && o.depth == 8);
    assert_true(spec_options_parse("1", &o, &err) && o.mode == SPEC_FIXED && o.depth == 1 && o.simulate == 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (spec_options_parse(wrong[i], &o, &err))
            fail_msg("\"%s\" is taken", wrong[i]);
        assert_int_equal(err.code, ERROR_USAGE);
        assert_non_null(strstr(err.text, "expected off, auto, auto:N or N, where N drafts are 1 to 8"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flat_machine),
        cmocka_unit_test(test_linear_machine),
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_drift),
        cmocka_unit_test(test_acceptance_changes),
        cmocka_unit_test(test_machine_changes),
        cmocka_unit_test(test_comes_back),
        cmocka_unit_test(test_known_load_comes_back),
        cmocka_unit_test(test_one_gains_many_lose),
        cmocka_unit_test(test_retries_cost_little),
        cmocka_unit_test(test_loads_by_turns),
        cmocka_unit_test(test_gap_is_no_verdict),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_no_flapping),
        cmocka_unit_test(test_one_stall),
        cmocka_unit_test(test_one_slow_trial),
        cmocka_unit_test(test_prompt_rows),
        cmocka_unit_test(test_nothing_drafted),
        cmocka_unit_test(test_same_record_same_depth),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_off_and_fixed),
        cmocka_unit_test(test_always_prompt_rows),
        cmocka_unit_test(test_describe_auto),
        cmocka_unit_test(test_simulated),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
