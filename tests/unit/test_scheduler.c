/* The scheduler: each rule by a state made for it, and all of them by simulation of an engine with a page pool that shares and
 * evicts pages as the real one does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/random.h"
#include "engine/scheduler.h"

enum { PAGE = 64 };

static sched_plan plan;

static sched_plan *decide(const sched_state *s)
{
    sched_plan_reserve(&plan, s->count);
    sched_decide(s, &plan);
    return &plan;
}

static sched_state roomy(const sched_sequence *q, int count)
{
    return (sched_state){.sequences = q, .count = count, .now_us = 1000, .free_pages = 1000, .step_rows = 256, .logit_rows = 256,
                         .prefill_rows = 64, .max_running = 16};
}

static sched_sequence decoding(int arrival, int known)
{
    return (sched_sequence){.arrival_us = (uint64_t)arrival, .order = (uint64_t)arrival, .running = true, .known = known,
                            .cached = known - 1, .pages = sched_pages_for(known), .own_pages = sched_pages_for(known)};
}

static sched_sequence prompting(int arrival, int known)
{
    sched_sequence q = decoding(arrival, known);
    q.cached = 0;
    return q;
}

static sched_sequence waiting(int arrival, int known)
{
    return (sched_sequence){.arrival_us = (uint64_t)arrival, .order = (uint64_t)arrival, .known = known};
}

static const sched_grant *grant_of(const sched_plan *p, int i)
{
    static const sched_grant none;
    for (int k = 0; k < p->grant_count; k++)
        if (p->grants[k].sequence == i)
            return &p->grants[k];
    return &none;
}

static bool has(const int *list, int count, int i)
{
    for (int k = 0; k < count; k++)
        if (list[k] == i)
            return true;
    return false;
}

static bool admits(const sched_plan *p, int i)
{
    return has(p->admitted, p->admitted_count, i);
}

static bool preempts(const sched_plan *p, int i)
{
    return has(p->preempted, p->preempted_count, i);
}

static void test_pages_for(void **unused)
{
    (void)unused;
    assert_int_equal(sched_pages_for(0), 0);
    assert_int_equal(sched_pages_for(1), 1);
    assert_int_equal(sched_pages_for(64), 1);
    assert_int_equal(sched_pages_for(65), 2);
}

static void test_nothing(void **unused)
{
    (void)unused;
    sched_state s = roomy(NULL, 0);
    sched_plan empty = {0};
    sched_decide(&s, &empty);
    assert_int_equal(empty.grant_count, 0);
}

static void test_deadlines(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 100), waiting(2, 10), decoding(3, 100), waiting(4, 10)};
    q[0].deadline_us = 1000;
    q[1].deadline_us = 999;
    q[2].deadline_us = 1001;
    sched_state s = roomy(q, 4);
    sched_plan *p = decide(&s);
    assert_int_equal(p->expired_count, 2);
    assert_true(has(p->expired, 2, 0) && has(p->expired, 2, 1));
    assert_int_equal(grant_of(p, 0)->rows + grant_of(p, 1)->rows, 0);
    assert_int_equal(grant_of(p, 2)->rows, 1);
    assert_true(admits(p, 3));
}

/* Pages of a sequence that expires can be given to others in the same step. */
static void test_expired_pages(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 100), waiting(2, 100)};
    q[0].deadline_us = 1;
    sched_state s = roomy(q, 2);
    s.free_pages = 0;
    assert_true(admits(decide(&s), 1));
    q[0].own_pages = 1; /* the other page is shared with somebody unknown */
    assert_false(admits(decide(&s), 1));
}

static void test_decoding_first(void **unused)
{
    (void)unused;
    sched_sequence q[] = {prompting(1, 500), decoding(2, 64), decoding(3, 65)};
    q[1].drafts = 3;
    q[2].drafts = 1;
    sched_state s = roomy(q, 3);
    s.free_pages = 5;
    s.draft_room = 4;
    sched_plan *p = decide(&s);
    assert_int_equal(p->grant_count, 3);
    assert_int_equal(p->grants[0].sequence, 1);
    assert_int_equal(p->grants[0].rows, 4);
    assert_int_equal(p->grants[0].drafts, 3);
    assert_int_equal(p->grants[0].pages, 1);
    assert_int_equal(p->grants[1].sequence, 2);
    assert_int_equal(p->grants[1].rows, 2);
    assert_int_equal(p->grants[1].pages, 0);
    assert_int_equal(p->grants[2].rows, 64); /* prefill_rows */
}

/* Prompts alone may fill the step; beside a decoding sequence prefill_rows at most. */
static void test_prefill_rows(void **unused)
{
    (void)unused;
    sched_sequence q[] = {prompting(1, 500), prompting(2, 500)};
    sched_state s = roomy(q, 2);
    sched_plan *p = decide(&s);
    assert_int_equal(grant_of(p, 0)->rows, 128);
    assert_int_equal(grant_of(p, 1)->rows, 128);
}

/* The first in order gets at least half, and what others do not need; the rest goes to the shortest. */
static void test_prompt_shares(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 10), prompting(2, 500), prompting(3, 300), prompting(4, 20), prompting(5, 8)};
    sched_state s = roomy(q, 5);
    sched_plan *p = decide(&s);
    assert_int_equal(grant_of(p, 1)->rows, 32);
    assert_int_equal(grant_of(p, 4)->rows, 8);
    assert_int_equal(grant_of(p, 3)->rows, 20);
    assert_int_equal(grant_of(p, 2)->rows, 4);
    q[2].priority = 1; /* first in order now, and its priority goes before length */
    p = decide(&s);
    assert_int_equal(grant_of(p, 2)->rows, 32);
    assert_int_equal(grant_of(p, 4)->rows, 8);
    s.count = 2;
    assert_int_equal(grant_of(decide(&s), 1)->rows, 64);
}

/* A prompt's last row wants logits: without them it stops one row before. */
static void test_prompt_logits(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 10), decoding(2, 10), prompting(3, 20)};
    sched_state s = roomy(q, 3);
    s.logit_rows = 2;
    assert_int_equal(grant_of(decide(&s), 2)->rows, 19);
    q[2].cached = 18;
    assert_int_equal(grant_of(decide(&s), 2)->rows, 1);
    s.logit_rows = 3;
    assert_int_equal(grant_of(decide(&s), 2)->rows, 2);
}

/* Drafts give way: to rows of other sequences, to prompts, to logits; the first of all before the second of any. */
static void test_drafts_give_way(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 10), decoding(2, 10), decoding(3, 10), prompting(4, 50)};
    q[0].drafts = 5;
    q[1].drafts = 1;
    q[2].drafts = 5;
    sched_state s = roomy(q, 3);
    s.step_rows = 9;
    sched_plan *p = decide(&s);
    assert_int_equal(grant_of(p, 0)->drafts, 3);
    assert_int_equal(grant_of(p, 1)->drafts, 1);
    assert_int_equal(grant_of(p, 2)->drafts, 2);
    s.step_rows = 100;
    s.logit_rows = 5;
    p = decide(&s);
    assert_int_equal(grant_of(p, 0)->drafts, 1);
    assert_int_equal(grant_of(p, 1)->drafts, 1);
    assert_int_equal(grant_of(p, 2)->drafts, 0);
    s.count = 4; /* of the 6 rows that are left, the prompt gets 3; of the logits 1 */
    s.step_rows = 9;
    s.logit_rows = 100;
    p = decide(&s);
    assert_int_equal(grant_of(p, 3)->rows, 3);
    assert_int_equal(grant_of(p, 0)->drafts + grant_of(p, 1)->drafts + grant_of(p, 2)->drafts, 3);
    s.step_rows = 100;
    s.logit_rows = 5;
    p = decide(&s);
    assert_int_equal(grant_of(p, 0)->drafts, 1);
    assert_int_equal(grant_of(p, 1)->drafts, 0);
    assert_int_equal(grant_of(p, 3)->rows, 50);
}

/* Without pages for drafts a sequence goes on without them, and nobody is preempted. */
static void test_drafts_need_pages(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 62), decoding(2, 10)};
    q[0].drafts = 5;
    sched_state s = roomy(q, 2);
    s.free_pages = 0;
    s.draft_room = 8;
    sched_plan *p = decide(&s);
    assert_int_equal(p->preempted_count, 0);
    assert_int_equal(grant_of(p, 0)->drafts, 2);
    assert_int_equal(grant_of(p, 0)->pages, 0);
    s.idle_pages = 1;
    p = decide(&s);
    assert_int_equal(grant_of(p, 0)->drafts, 5);
    assert_int_equal(grant_of(p, 0)->pages, 1);
    q[0].drafts = 0; /* for drafts to come */
    assert_int_equal(grant_of(decide(&s), 0)->pages, 1);
}

/* Fewer rows than decoding sequences: turns, exactly round. */
static void test_turns(void **unused)
{
    (void)unused;
    sched_sequence q[6];
    int turns[6] = {0};
    for (int i = 0; i < 6; i++) {
        q[i] = decoding(i, 100 + i);
        q[i].drafts = 3;
    }
    q[5].priority = 1;
    sched_state s = roomy(q, 6);
    s.step_rows = 3;
    for (int n = 0; n < 50; n++) {
        sched_plan *p = decide(&s);
        assert_int_equal(p->grant_count, 3);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(p->grants[k].rows, 1);
            turns[p->grants[k].sequence]++;
            q[p->grants[k].sequence].known++;
            q[p->grants[k].sequence].cached++;
        }
    }
    assert_int_equal(turns[5], 50);
    for (int i = 0; i < 5; i++)
        assert_int_equal(turns[i], 20);
}

/* Whose turn it is lacks a page: the row goes to another, and the first in order may preempt for it. */
static void test_turn_without_pages(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 3 * PAGE + 1), decoding(2, 3 * PAGE + 2)};
    sched_state s = roomy(q, 2);
    s.free_pages = 0;
    s.step_rows = 1;
    q[1].pages = q[1].own_pages = 3;
    for (int more = 0; more < 2; more++) { /* either has the turn */
        q[1].known += more;
        q[1].cached += more;
        assert_int_equal(grant_of(decide(&s), 0)->rows, 1);
    }
    q[0].pages = 3;
    for (int more = 0; more < 2; more++) {
        q[1].known += more;
        q[1].cached += more;
        sched_plan *p = decide(&s);
        assert_true(preempts(p, 1));
        assert_int_equal(grant_of(p, 0)->rows, 1);
    }
}

/* The lowest priority first, then the latest; only as many as needed; who gives nothing back is spared. */
static void test_preemption_order(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 65), decoding(2, 100), decoding(4, 100), decoding(3, 100), decoding(5, 100)};
    q[0].pages = 1;
    q[2].priority = 1;
    sched_state s = roomy(q, 5);
    s.free_pages = 0;
    sched_plan *p = decide(&s);
    assert_int_equal(p->preempted_count, 1);
    assert_true(preempts(p, 4));
    assert_int_equal(grant_of(p, 0)->pages, 1);
    assert_int_equal(grant_of(p, 0)->rows, 1);
    assert_int_equal(grant_of(p, 4)->rows, 0);
    q[3].priority = -1;
    assert_true(preempts(decide(&s), 3));
    q[3].priority = 0;
    q[4].own_pages = 0;
    p = decide(&s);
    assert_int_equal(p->preempted_count, 1);
    assert_true(preempts(p, 3));
    s.idle_pages = 1;
    assert_int_equal(decide(&s)->preempted_count, 0);
}

/* The last in order does not preempt those before it, nor itself: it waits, keeps its pages, and is not overtaken. */
static void test_last_waits(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 100), decoding(2, 65), waiting(3, 10)};
    q[1].pages = 1;
    q[2].pages = 0;
    q[2].known = 1;
    sched_state s = roomy(q, 3);
    s.free_pages = 0;
    sched_plan *p = decide(&s);
    assert_int_equal(p->preempted_count, 0);
    assert_int_equal(p->admitted_count, 0);
    assert_int_equal(grant_of(p, 0)->rows, 1);
    assert_int_equal(grant_of(p, 1)->rows, 0);
}

/* When it is not known which pages come back, one is preempted, and nobody takes what may come. */
static void test_preemption_in_the_dark(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 65), decoding(2, 65), decoding(3, 100), waiting(4, 1)};
    q[0].pages = q[1].pages = 1;
    for (int i = 0; i < 3; i++)
        q[i].own_pages = 0;
    sched_state s = roomy(q, 4);
    s.free_pages = 0;
    sched_plan *p = decide(&s);
    assert_int_equal(p->preempted_count, 1);
    assert_true(preempts(p, 2));
    assert_int_equal(p->grant_count + p->admitted_count, 0);
    q[0].known = 7 * PAGE;
    q[0].cached = q[0].known - 1;
    s.free_pages = 5; /* one too few for the first; the others must not have them */
    p = decide(&s);
    assert_int_equal(p->preempted_count, 1);
    assert_int_equal(p->grant_count + p->admitted_count, 0);
    q[3].priority = 1; /* unless they go before it */
    assert_true(admits(decide(&s), 3));
}

static void test_admission_order(void **unused)
{
    (void)unused;
    sched_sequence q[] = {waiting(3, 10), waiting(2, 10), waiting(2, 10), waiting(9, 10), decoding(1, 10)};
    q[1].order = 8;
    q[2].order = 7;
    q[3].priority = 1;
    sched_state s = roomy(q, 5);
    s.max_running = 4;
    sched_plan *p = decide(&s);
    assert_int_equal(p->admitted_count, 3);
    assert_int_equal(p->admitted[0], 3);
    assert_int_equal(p->admitted[1], 2);
    assert_int_equal(p->admitted[2], 1);
    s.step_rows = 2; /* a slot needs a row */
    assert_int_equal(decide(&s)->admitted_count, 1);
    s.step_rows = 256;
    s.logit_rows = 3; /* and logits */
    assert_int_equal(decide(&s)->admitted_count, 2);
}

/* need = pages_for(known + draft_room) - shared; shared pages that are idle cannot be evicted any more. */
static void test_admission_pages(void **unused)
{
    (void)unused;
    sched_sequence q[] = {waiting(1, 3 * PAGE)};
    q[0].pages = 2;
    q[0].idle_pages = 1;
    q[0].cached = 2 * PAGE + 5;
    sched_state s = roomy(q, 1);
    s.draft_room = 8;
    s.free_pages = 1;
    s.idle_pages = 2;
    sched_plan *p = decide(&s);
    assert_true(admits(p, 0));
    assert_int_equal(grant_of(p, 0)->pages, 2);
    assert_int_equal(grant_of(p, 0)->rows, 59);
    s.idle_pages = 1; /* alone, draft_room is given up */
    p = decide(&s);
    assert_true(admits(p, 0));
    assert_int_equal(grant_of(p, 0)->pages, 1);
    s.free_pages = 0;
    assert_false(admits(decide(&s), 0));
}

/* An admission leaves a page for each running sequence to grow into; the first in order needs no such room. */
static void test_watermark(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 10), decoding(2, 10), waiting(3, 100)};
    sched_state s = roomy(q, 3);
    s.free_pages = 3;
    assert_false(admits(decide(&s), 2));
    s.free_pages = 4;
    assert_true(admits(decide(&s), 2));
    q[2].priority = 1; /* those of lower priority give way when it grows */
    s.free_pages = 2;
    sched_plan *p = decide(&s);
    assert_true(admits(p, 2));
    assert_int_equal(p->preempted_count, 0);
}

/* A large request at the head is not overtaken by small ones, of its own or of lower priority. */
static void test_head_of_line(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 10), waiting(2, 9 * PAGE), waiting(3, 5), waiting(4, 5)};
    q[3].priority = -1;
    sched_state s = roomy(q, 4);
    s.free_pages = 9;
    assert_int_equal(decide(&s)->admitted_count, 0);
    q[1].hold = true;
    sched_plan *p = decide(&s);
    assert_int_equal(p->admitted_count, 2);
    assert_false(admits(p, 1));
    s.sequences = q + 1; /* nothing runs: a hold has no reason */
    s.count = 1;
    assert_true(admits(decide(&s), 0));
}

static void test_priority_takes_slots(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 10), decoding(2, 10), waiting(3, 10), waiting(4, 10)};
    sched_state s = roomy(q, 4);
    s.max_running = 2;
    assert_int_equal(decide(&s)->preempted_count, 0);
    q[3].priority = 5;
    sched_plan *p = decide(&s);
    assert_int_equal(p->preempted_count, 1);
    assert_true(preempts(p, 1));
    assert_true(admits(p, 3));
    assert_int_equal(p->admitted_count, 1);
    assert_int_equal(grant_of(p, 3)->rows, 10);
}

static void test_priority_takes_pages(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 100), decoding(2, 2 * PAGE + 1), waiting(3, 5 * PAGE)};
    sched_state s = roomy(q, 3);
    q[1].pages = 2;
    q[1].own_pages = 2;
    q[2].priority = 1;
    s.free_pages = 1; /* sequence 1 is about to take it, and loses it again */
    sched_plan *p = decide(&s);
    assert_int_equal(p->preempted_count, 2);
    assert_true(admits(p, 2));
    q[1].own_pages = 0; /* all its pages but the new one are shared; it helps all the same */
    q[2].known = 3 * PAGE;
    assert_int_equal(decide(&s)->preempted_count, 2);
    q[1].pages = 3; /* now it does not */
    s.free_pages = 1;
    p = decide(&s);
    assert_int_equal(p->preempted_count, 1);
    assert_true(preempts(p, 0));
    assert_true(admits(p, 2));
    q[2].known = 6 * PAGE; /* all of them would not be enough: none is preempted */
    p = decide(&s);
    assert_int_equal(p->preempted_count, 0);
    assert_false(admits(p, 2));
}

/* A page that the preempted one and the waiting one share comes back and goes at once: it must not be counted as available. */
static void test_shared_with_the_preempted(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 4 * PAGE), waiting(2, 4 * PAGE)};
    q[1].priority = 1;
    q[1].pages = 2;
    sched_state s = roomy(q, 2);
    s.free_pages = 0;
    sched_plan *p = decide(&s);
    assert_true(preempts(p, 0));
    assert_true(admits(p, 1)); /* 4 come back, 2 of them perhaps shared */
    q[0].own_pages = 3;
    p = decide(&s);
    assert_true(preempts(p, 0));
    assert_false(admits(p, 1)); /* the next state tells */
}

/* Nor one that it shares with somebody admitted just before. */
static void test_shared_with_the_admitted(void **unused)
{
    (void)unused;
    sched_sequence q[] = {decoding(1, 6 * PAGE), waiting(2, 6 * PAGE), waiting(3, 60)};
    q[1].priority = q[2].priority = 1;
    q[1].pages = 4;
    sched_state s = roomy(q, 3);
    s.free_pages = 3;
    q[0].own_pages = 4;
    sched_plan *p = decide(&s);
    assert_true(admits(p, 1));
    assert_false(admits(p, 2));
    assert_int_equal(p->preempted_count, 0);
    q[0].own_pages = 5;
    p = decide(&s);
    assert_true(preempts(p, 0));
    assert_true(admits(p, 2));
}

/* ---- simulation ---- */

enum { REQUESTS = 48, FAMILIES = 3, BLOCKS = 16, POOL_MOST = 64, DEPTH = 5 };

/* A request of the simulated engine. Its first `common` pages are those of its family. */
typedef struct request {
    sched_sequence q;
    int family, common, prompt, answer;
    bool arrived, finished;
    int table[BLOCKS + 1]; /* page ids */
} request;

typedef struct engine_model {
    uint64_t seed, draws;
    sched_state limits;
    bool knows_own;         /* own_pages is filled in */
    bool limits_vary;       /* below what runs, too */
    int pool, users[POOL_MOST];
    bool in_tree[POOL_MOST];
    int family_tree[FAMILIES][BLOCKS], request_tree[REQUESTS][BLOCKS]; /* page id + 1; 0: not cached */
    request requests[REQUESTS];
    int live[REQUESTS], live_count; /* what the sequences of the state are */
    sched_sequence view[REQUESTS];
    int barren;             /* decisions in a row without a row */
} engine_model;

static engine_model model;
static uint64_t preemptions, admissions, page_waits, draft_cuts; /* over all simulations: the rare cases must happen */

static int draw(int bound)
{
    return (int)(random_word(model.seed, model.draws++, 0) % (uint64_t)bound);
}

static int *tree_slot(request *r, int block)
{
    return block < r->common ? &model.family_tree[r->family][block] : &model.request_tree[r - model.requests][block];
}

static int count_pages(bool idle)
{
    int count = 0;
    for (int i = 0; i < model.pool; i++)
        count += model.users[i] == 0 && model.in_tree[i] == idle;
    return count;
}

static void forget(int page)
{
    int *slots = &model.family_tree[0][0];
    for (int k = 0; k < FAMILIES * BLOCKS; k++)
        slots[k] = slots[k] == page + 1 ? 0 : slots[k];
    slots = &model.request_tree[0][0];
    for (int k = 0; k < REQUESTS * BLOCKS; k++)
        slots[k] = slots[k] == page + 1 ? 0 : slots[k];
    model.in_tree[page] = false;
}

/* A free page, or an idle one that the tree gives up. */
static int take_page(void)
{
    for (int wants_idle = 0; wants_idle < 2; wants_idle++)
        for (int i = 0; i < model.pool; i++)
            if (!model.users[i] && model.in_tree[i] == wants_idle) {
                forget(i);
                model.users[i] = 1;
                return i;
            }
    fail_msg("seed %d: the plan takes a page that does not exist", (int)model.seed);
    return -1;
}

/* Computed pages go into the tree; where it has one already, that one is used. */
static void insert(request *r)
{
    for (int b = 0; b < r->q.cached / PAGE; b++) {
        int *slot = tree_slot(r, b);
        if (*slot && *slot - 1 != r->table[b]) {
            model.users[r->table[b]]--;
            r->table[b] = *slot - 1;
            model.users[r->table[b]]++;
        }
        *slot = r->table[b] + 1;
        model.in_tree[r->table[b]] = true;
    }
}

static void stop(request *r)
{
    if (!r->q.running)
        return;
    insert(r);
    for (int b = 0; b < r->q.pages; b++)
        model.users[r->table[b]]--;
    r->q.running = false;
    r->q.pages = r->q.cached = r->q.drafts = r->q.own_pages = 0;
}

static bool computes_prefix(const request *waits)
{
    for (int i = 0; i < REQUESTS; i++) {
        const request *r = &model.requests[i];
        if (r->q.running && r->family == waits->family && r->q.cached < r->common * PAGE && waits->q.pages * PAGE <= r->q.cached &&
            waits->q.pages < waits->common)
            return true;
    }
    return false;
}

static void look_up(request *r)
{
    sched_sequence *q = &r->q;
    q->pages = q->idle_pages = 0;
    for (int b = 0; b < (q->known - 1) / PAGE && *tree_slot(r, b); b++) {
        q->pages++;
        q->idle_pages += model.users[*tree_slot(r, b) - 1] == 0;
    }
    int left = q->known - 1 - q->pages * PAGE;
    q->cached = q->pages * PAGE + (left > 0 && draw(3) == 0 ? draw(left < PAGE ? left : PAGE - 1) : 0);
    q->hold = computes_prefix(r);
}

static void count_own(request *r)
{
    r->q.own_pages = 0;
    for (int b = 0; model.knows_own && b < r->q.pages; b++)
        r->q.own_pages += model.users[r->table[b]] == 1;
}

static sched_state view_state(void)
{
    sched_state s = model.limits;
    model.live_count = 0;
    for (int i = 0; i < REQUESTS; i++) {
        request *r = &model.requests[i];
        if (!r->arrived || r->finished)
            continue;
        if (r->q.running)
            count_own(r);
        else
            look_up(r);
        model.view[model.live_count] = r->q;
        model.live[model.live_count++] = i;
    }
    s.sequences = model.view;
    s.count = model.live_count;
    s.free_pages = count_pages(false);
    s.idle_pages = count_pages(true);
    return s;
}

static bool precedes(const sched_sequence *a, const sched_sequence *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->arrival_us != b->arrival_us ? a->arrival_us < b->arrival_us : a->order < b->order;
}

static void check_grant(const sched_state *s, const sched_plan *p, const sched_grant *g)
{
    const sched_sequence *q = &s->sequences[g->sequence];
    assert_true(q->running || admits(p, g->sequence));
    assert_false(preempts(p, g->sequence) || has(p->expired, p->expired_count, g->sequence));
    assert_true(g->pages >= 0 && g->drafts >= 0);
    assert_true((q->pages + g->pages) * PAGE >= q->known + g->drafts);
    assert_true(g->rows - g->drafts <= q->known - q->cached);
    bool decodes = q->running && q->known - q->cached == 1;
    assert_true(decodes ? g->rows == 1 + g->drafts && g->drafts <= q->drafts : g->drafts == 0);
    draft_cuts += decodes && g->drafts < q->drafts;
}

static void check_limits(const sched_state *s, const sched_plan *p)
{
    int rows = 0, logits = 0, prompt_rows = 0, decodes = 0, active = p->admitted_count - p->preempted_count - p->expired_count;
    for (int k = 0; k < p->grant_count; k++) {
        const sched_grant *g = &p->grants[k];
        const sched_sequence *q = &s->sequences[g->sequence];
        bool decoding_one = q->running && q->known - q->cached == 1;
        check_grant(s, p, g);
        rows += g->rows;
        decodes += decoding_one;
        prompt_rows += decoding_one ? 0 : g->rows;
        logits += decoding_one ? g->rows : g->rows == q->known - q->cached;
        assert_true(!decoding_one || k == 0 || s->sequences[p->grants[k - 1].sequence].running);
    }
    for (int i = 0; i < s->count; i++)
        active += s->sequences[i].running;
    assert_true(active <= s->max_running);
    assert_true(rows <= s->step_rows);
    assert_true(logits <= s->logit_rows);
    assert_true(!decodes || prompt_rows <= s->prefill_rows);
    model.barren = rows ? 0 : model.barren + 1;
    assert_true(model.barren == 0 || p->preempted_count + p->expired_count);
    assert_true(model.barren <= s->max_running);
}

/* Order and fairness: nobody is overtaken, the first runs, a decoding sequence waits for nothing but pages. */
static void check_order(const sched_state *s, const sched_plan *p)
{
    for (int i = 0; i < s->count; i++) {
        const sched_sequence *q = &s->sequences[i];
        const sched_grant *g = grant_of(p, i);
        assert_true(!admits(p, i) || g->sequence == i);
        assert_true(!preempts(p, i) || (q->running && !admits(p, i)));
        if (has(p->expired, p->expired_count, i))
            continue;
        if (q->running && q->known - q->cached == 1 && !g->rows && !preempts(p, i) && !model.limits_vary) {
            assert_true(sched_pages_for(q->known) > q->pages);
            page_waits++;
        }
        bool is_first = true;
        for (int k = 0; k < s->count; k++) {
            const sched_sequence *o = &s->sequences[k];
            is_first &= k == i || !precedes(o, q) || has(p->expired, p->expired_count, k);
            bool is_overtaken = admits(p, k) && !q->running && !q->hold && !admits(p, i) && precedes(q, o);
            assert_false(is_overtaken);
        }
        assert_false(is_first && preempts(p, i));
        assert_true(!is_first || !q->running || g->rows || p->preempted_count + p->expired_count || model.limits_vary);
    }
}

/* The same state, in another order of its sequences, gives the same plan. */
static void check_same(const sched_state *s, const sched_plan *p)
{
    static sched_plan other;
    static sched_sequence mixed[REQUESTS];
    int shift = draw(s->count);
    sched_state t = *s;
    t.sequences = mixed;
    for (int i = 0; i < s->count; i++)
        mixed[(i + shift) % s->count] = s->sequences[i];
    sched_plan_reserve(&other, t.count);
    sched_decide(&t, &other);
    assert_int_equal(other.grant_count, p->grant_count);
    assert_int_equal(other.preempted_count, p->preempted_count);
    assert_int_equal(other.admitted_count, p->admitted_count);
    for (int k = 0; k < p->grant_count; k++) {
        sched_grant g = p->grants[k];
        g.sequence = (g.sequence + shift) % s->count;
        assert_memory_equal(&g, &other.grants[k], sizeof g);
    }
    for (int k = 0; k < p->preempted_count; k++)
        assert_int_equal((p->preempted[k] + shift) % s->count, other.preempted[k]);
}

static void take_shared(request *r)
{
    for (int b = 0; b < r->q.pages; b++) {
        r->table[b] = *tree_slot(r, b) - 1;
        model.users[r->table[b]]++;
    }
    r->q.running = true;
}

static void finish(request *r)
{
    stop(r);
    r->finished = true;
}

static void run_grant(request *r, const sched_grant *g)
{
    sched_sequence *q = &r->q;
    int todo = q->known - q->cached, accepted = 0;
    while (accepted < g->drafts && draw(3))
        accepted++;
    if (!g->rows)
        return;
    if (g->rows - g->drafts < todo) {
        q->cached += g->rows;
        insert(r);
        return;
    }
    q->cached = q->known + accepted;
    q->known = q->cached + 1;
    if (q->known >= r->prompt + r->answer) {
        q->known = r->prompt + r->answer;
        q->cached = q->known - 1;
        finish(r);
        return;
    }
    int room = q->pages * PAGE - q->known;
    q->drafts = room > 0 ? draw(room < DEPTH ? room + 1 : DEPTH + 1) : 0;
}

static void carry_out(const sched_plan *p)
{
    for (int k = 0; k < p->expired_count; k++)
        finish(&model.requests[model.live[p->expired[k]]]);
    for (int k = 0; k < p->preempted_count; k++)
        stop(&model.requests[model.live[p->preempted[k]]]);
    for (int k = 0; k < p->admitted_count; k++)
        take_shared(&model.requests[model.live[p->admitted[k]]]);
    for (int k = 0; k < p->grant_count; k++) {
        request *r = &model.requests[model.live[p->grants[k].sequence]];
        for (int n = 0; n < p->grants[k].pages; n++)
            r->table[r->q.pages++] = take_page();
    }
    for (int k = 0; k < p->grant_count; k++)
        run_grant(&model.requests[model.live[p->grants[k].sequence]], &p->grants[k]);
    preemptions += (uint64_t)p->preempted_count;
    admissions += (uint64_t)p->admitted_count;
}

static void set_up(uint64_t seed)
{
    memset(&model, 0, sizeof model);
    model.seed = seed;
    model.knows_own = seed % 4 != 3;
    model.limits_vary = seed % 5 == 4;
    model.pool = 4 + draw(draw(2) ? 12 : POOL_MOST - 4);
    int slots = 1 + draw(12);
    model.limits = (sched_state){.step_rows = slots + draw(draw(2) ? 20 : 400), .logit_rows = slots + draw(40),
                                 .prefill_rows = 1 + draw(80), .max_running = slots, .draft_room = draw(2 * DEPTH)};
    int longest = model.pool < BLOCKS ? model.pool * PAGE : BLOCKS * PAGE;
    for (int i = 0; i < REQUESTS; i++) {
        request *r = &model.requests[i];
        r->family = draw(FAMILIES);
        r->prompt = 1 + draw(draw(2) ? longest / 4 : longest - 1);
        r->answer = 1 + draw(longest - r->prompt < 200 ? longest - r->prompt : 200);
        r->common = draw(2) ? r->prompt / PAGE : 0;
        r->q = (sched_sequence){.priority = draw(4) ? 0 : draw(3) - 1, .order = (uint64_t)i, .known = r->prompt};
    }
}

static void arrive(int step)
{
    for (int i = 0; i < REQUESTS; i++) {
        request *r = &model.requests[i];
        if (!r->arrived && draw(12) == 0) {
            r->arrived = true;
            r->q.arrival_us = (uint64_t)(step / 4);
            r->q.deadline_us = draw(8) ? 0 : (uint64_t)(step + 1 + draw(300));
        } else if (r->arrived && !r->finished && draw(2000) == 0) {
            finish(r); /* cancelled */
        }
    }
}

static void simulate(uint64_t seed)
{
    set_up(seed);
    int unfinished = REQUESTS;
    for (int step = 0; unfinished; step++) {
        if (step > 200000)
            fail_msg("seed %d: requests do not finish", (int)seed);
        arrive(step);
        sched_state s = view_state();
        s.now_us = (uint64_t)step;
        if (model.limits_vary) {
            s.step_rows = 1 + draw(s.step_rows);
            s.logit_rows = 1 + draw(s.logit_rows);
        }
        sched_plan *p = decide(&s);
        if (s.count) {
            check_limits(&s, p);
            check_order(&s, p);
            check_same(&s, p);
        }
        carry_out(p);
        unfinished = 0;
        for (int i = 0; i < REQUESTS; i++)
            unfinished += !model.requests[i].finished;
    }
    assert_int_equal(count_pages(false) + count_pages(true), model.pool);
}

static void test_simulation(void **unused)
{
    (void)unused;
    for (uint64_t seed = 0; seed < 150; seed++)
        simulate(seed);
    printf("%d admissions, %d preemptions, %d waits for pages, %d cuts of drafts\n", (int)admissions, (int)preemptions, (int)page_waits,
           (int)draft_cuts);
    assert_true(preemptions > 300 && admissions > preemptions && page_waits > 300 && draft_cuts > 300);
}

static int tear_down(void **unused)
{
    (void)unused;
    sched_plan_free(&plan);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_for),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_expired_pages),
        cmocka_unit_test(test_decoding_first),
        cmocka_unit_test(test_prefill_rows),
        cmocka_unit_test(test_prompt_shares),
        cmocka_unit_test(test_prompt_logits),
        cmocka_unit_test(test_drafts_give_way),
        cmocka_unit_test(test_drafts_need_pages),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_turn_without_pages),
        cmocka_unit_test(test_preemption_order),
        cmocka_unit_test(test_last_waits),
        cmocka_unit_test(test_preemption_in_the_dark),
        cmocka_unit_test(test_admission_order),
        cmocka_unit_test(test_admission_pages),
        cmocka_unit_test(test_watermark),
        cmocka_unit_test(test_head_of_line),
        cmocka_unit_test(test_priority_takes_slots),
        cmocka_unit_test(test_priority_takes_pages),
        cmocka_unit_test(test_shared_with_the_preempted),
        cmocka_unit_test(test_shared_with_the_admitted),
        cmocka_unit_test(test_simulation),
    };
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
