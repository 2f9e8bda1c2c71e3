#include "engine/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/kv_layout.h"

/* What was decided for one sequence so far. */
struct sched_work {
    int pages;     /* to take */
    int rows;      /* without drafts */
    int drafts;
    bool gone;     /* expired or preempted */
    bool admitted;
};

typedef struct sched_work sched_work;

/* A decision in the making. */
typedef struct decision {
    const sched_state *state;
    sched_plan *plan;
    int ordered;          /* entries of plan->order: all that have not expired, first in order first */
    int running_count;    /* entries of plan->running: those of them that run in the state, in the same order */
    int active;           /* run in the next step: running, not gone, and admitted */
    int available;        /* pages that can be taken */
    int gained;           /* of them, pages of the expired and preempted */
    int shared;           /* pages in use that those admitted share; they may belong to somebody who leaves after that */
    int starved;          /* the first of plan->running that lacks pages; running_count: none does */
} decision;

typedef bool (*goes_first)(const sched_state *s, int a, int b);

static int least(int a, int b)
{
    return a < b ? a : b;
}

static int most(int a, int b)
{
    return a > b ? a : b;
}

int sched_pages_for(int tokens)
{
    return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

void sched_plan_reserve(sched_plan *p, int count)
{
    if (count <= p->capacity)
        return;
    size_t n = (size_t)count;
    p->grants = mem_grow(p->grants, n, sizeof *p->grants);
    p->expired = mem_grow(p->expired, n, sizeof *p->expired);
    p->preempted = mem_grow(p->preempted, n, sizeof *p->preempted);
    p->admitted = mem_grow(p->admitted, n, sizeof *p->admitted);
    p->order = mem_grow(p->order, n, sizeof *p->order);
    p->running = mem_grow(p->running, n, sizeof *p->running);
    p->prompts = mem_grow(p->prompts, n, sizeof *p->prompts);
    p->work = mem_grow(p->work, n, sizeof *p->work);
    p->capacity = count;
}

void sched_plan_free(sched_plan *p)
{
    free(p->grants);
    free(p->expired);
    free(p->preempted);
    free(p->admitted);
    free(p->order);
    free(p->running);
    free(p->prompts);
    free(p->work);
    *p = (sched_plan){0};
}

static int rows_left(const sched_sequence *q)
{
    return most(q->known - q->cached, 1);
}

static bool is_decoding(const sched_sequence *q)
{
    return q->running && rows_left(q) == 1;
}

static bool earlier(const sched_state *s, int a, int b)
{
    const sched_sequence *x = &s->sequences[a], *y = &s->sequences[b];
    if (x->priority != y->priority)
        return x->priority > y->priority;
    if (x->arrival_us != y->arrival_us)
        return x->arrival_us < y->arrival_us;
    return x->order != y->order ? x->order < y->order : a < b;
}

static bool shorter(const sched_state *s, int a, int b)
{
    const sched_sequence *x = &s->sequences[a], *y = &s->sequences[b];
    if (x->priority != y->priority)
        return x->priority > y->priority;
    return rows_left(x) != rows_left(y) ? rows_left(x) < rows_left(y) : earlier(s, a, b);
}

static void sift(const sched_state *s, int *items, int root, int count, goes_first first)
{
    for (int child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && first(s, items[child], items[child + 1]))
            child++;
        if (!first(s, items[root], items[child]))
            return;
        int other = items[root];
        items[root] = items[child];
        items[child] = other;
    }
}

/* Heap sort: qsort has no place for the state and may allocate. */
static void sort(const sched_state *s, int *items, int count, goes_first first)
{
    for (int root = count / 2 - 1; root >= 0; root--)
        sift(s, items, root, count, first);
    for (int end = count - 1; end > 0; end--) {
        int other = items[0];
        items[0] = items[end];
        items[end] = other;
        sift(s, items, 0, end, first);
    }
}

/* Pages that come back for certain when a sequence leaves; `shared` as in the decision. */
static int own_pages(const decision *d, int i, int *shared)
{
    const sched_sequence *q = &d->state->sequences[i];
    int own = q->running ? q->own_pages : 0, kept = least(own, *shared);
    *shared -= kept;
    return own - kept;
}

static void leave(decision *d, int i)
{
    sched_work *w = &d->plan->work[i];
    int own = own_pages(d, i, &d->shared);
    d->available += own + w->pages;
    d->gained += own;
    *w = (sched_work){.gone = true};
}

static void preempt(decision *d, int i)
{
    leave(d, i);
    d->active--;
    d->plan->preempted[d->plan->preempted_count++] = i;
}

static void sort_out(decision *d)
{
    sched_plan *p = d->plan;
    for (int i = 0; i < d->state->count; i++) {
        const sched_sequence *q = &d->state->sequences[i];
        if (q->deadline_us && q->deadline_us <= d->state->now_us) {
            leave(d, i);
            p->expired[p->expired_count++] = i;
        } else {
            p->order[d->ordered++] = i;
        }
    }
    sort(d->state, p->order, d->ordered, earlier);
    for (int k = 0; k < d->ordered; k++)
        if (d->state->sequences[p->order[k]].running)
            p->running[d->running_count++] = p->order[k];
    d->active = d->starved = d->running_count;
}

/* One row for each decoding sequence of running[first .. end), which are of one priority. When there are too few rows, turns
 * are taken: each row of such a step gives one token, so the sum of known tokens moves on by as many as had their turn. */
static int give_turns(decision *d, int first, int end, int rows)
{
    int decoding = 0, nth = 0;
    uint64_t known = 0;
    for (int k = first; k < end; k++) {
        const sched_sequence *q = &d->state->sequences[d->plan->running[k]];
        decoding += is_decoding(q);
        known += is_decoding(q) ? (uint64_t)q->known : 0;
    }
    int turn = decoding > rows ? (int)(known % (uint64_t)decoding) : 0;
    for (int k = first; k < end; k++) {
        int i = d->plan->running[k];
        if (is_decoding(&d->state->sequences[i]))
            d->plan->work[i].rows = (nth++ - turn + decoding) % decoding < rows;
    }
    return least(decoding, rows);
}

static void give_decode_rows(decision *d)
{
    const sched_sequence *q = d->state->sequences;
    const int *running = d->plan->running;
    int rows = least(d->state->step_rows, d->state->logit_rows);
    for (int first = 0, end; first < d->running_count; first = end) {
        for (end = first + 1; end < d->running_count && q[running[end]].priority == q[running[first]].priority; end++)
            ;
        rows -= give_turns(d, first, end, rows);
    }
}

/* Before anybody is admitted. */
static int gives_back(const decision *d, int i)
{
    return d->state->sequences[i].own_pages + d->plan->work[i].pages;
}

/* Preempts from the end of the order until running[k] can have `need` pages. False: it cannot in this step. Then the pages
 * that come back are not known for certain, as sequences share them; one is preempted, and the next state tells. */
static bool make_room(decision *d, int k, int need)
{
    int sum = d->available, last = -1;
    for (int j = k + 1; j < d->running_count; j++)
        if (!d->plan->work[d->plan->running[j]].gone) {
            sum += gives_back(d, d->plan->running[j]);
            last = j;
        }
    if (sum < need && last >= 0)
        preempt(d, d->plan->running[last]);
    if (sum < need)
        return false;
    for (int j = last; d->available < need; j--) {
        int victim = d->plan->running[j];
        if (!d->plan->work[victim].gone && gives_back(d, victim))
            preempt(d, victim);
    }
    return true;
}

/* Pages for all known tokens of running[k]. False: it gets none, keeps what it has and waits, and nobody behind it gets any. */
static bool reserve_known(decision *d, int k)
{
    const sched_sequence *q = &d->state->sequences[d->plan->running[k]];
    int need = sched_pages_for(q->known) - q->pages;
    if (need <= 0)
        return true;
    if (k >= d->starved)
        return false;
    if (need > d->available && !make_room(d, k, need)) {
        d->starved = k;
        return false;
    }
    d->plan->work[d->plan->running[k]].pages = need;
    d->available -= need;
    return true;
}

static void reserve_running(decision *d)
{
    int rows = least(d->state->step_rows, d->state->logit_rows);
    for (int k = 0; k < d->running_count; k++) {
        int i = d->plan->running[k];
        sched_work *w = &d->plan->work[i];
        bool decodes = is_decoding(&d->state->sequences[i]);
        if (!w->gone && (w->rows || !decodes) && !reserve_known(d, k))
            w->rows = 0;
    }
    for (int k = 0; k < d->running_count; k++)
        rows -= d->plan->work[d->plan->running[k]].rows;
    for (int k = 0; k < d->running_count && rows > 0; k++) { /* turns that could not be taken */
        sched_work *w = &d->plan->work[d->plan->running[k]];
        if (w->gone || w->rows || !is_decoding(&d->state->sequences[d->plan->running[k]]) || !reserve_known(d, k))
            continue;
        w->rows = 1;
        rows--;
    }
}

/* Pages for drafts, as long as there are any; those of this step are cut to what the pages hold. */
static void reserve_drafts(decision *d)
{
    for (int k = 0; k < d->running_count; k++) {
        int i = d->plan->running[k];
        const sched_sequence *q = &d->state->sequences[i];
        sched_work *w = &d->plan->work[i];
        if (!w->rows)
            continue;
        int want = sched_pages_for(q->known + most(d->state->draft_room, q->drafts)) - q->pages - w->pages;
        int more = d->starved < d->running_count ? 0 : least(most(want, 0), d->available);
        w->pages += more;
        d->available -= more;
        w->drafts = most(0, least(q->drafts, (q->pages + w->pages) * KV_PAGE_TOKENS - q->known));
    }
}

static int slots(const sched_state *s)
{
    return least(s->max_running, least(s->step_rows, s->logit_rows));
}

/* Those that run on with this priority or a higher one. */
static int count_ahead(const decision *d, int priority)
{
    int ahead = d->plan->admitted_count;
    for (int k = 0; k < d->running_count; k++) {
        int i = d->plan->running[k];
        ahead += !d->plan->work[i].gone && d->state->sequences[i].priority >= priority;
    }
    return ahead;
}

/* Preempts sequences of a lower priority than `priority` until there is a slot and `need` pages are available. Preempts none
 * when all of them would not be enough. */
static bool make_way(decision *d, int priority, int need)
{
    for (int pass = 0; pass < 2; pass++) {
        int active = d->active, available = d->available, shared = d->shared;
        for (int k = d->running_count - 1; k >= 0 && (active >= slots(d->state) || available < need); k--) {
            int i = d->plan->running[k];
            if (d->state->sequences[i].priority >= priority)
                break;
            if (d->plan->work[i].gone)
                continue;
            int gives = own_pages(d, i, &shared) + d->plan->work[i].pages;
            if (active < slots(d->state) && !gives)
                continue;
            active--;
            available += gives;
            if (pass == 1)
                preempt(d, i);
        }
        if (active >= slots(d->state) || available < need)
            return false;
    }
    return true;
}

/* Of the pages that a waiting sequence would share, how many may come from `available`: the idle ones, and those that were in
 * use until somebody left in this very decision. */
static int pinned_pages(const decision *d, const sched_sequence *q)
{
    return q->idle_pages + least(q->pages - q->idle_pages, d->gained);
}

static bool admit(decision *d, int i)
{
    const sched_sequence *q = &d->state->sequences[i];
    int ahead = count_ahead(d, q->priority);
    int known = most(0, sched_pages_for(q->known) - q->pages);
    int need = most(0, sched_pages_for(q->known + d->state->draft_room) - q->pages);
    int least_need = ahead ? need + ahead : known; /* first in order: it must run, whatever is left for growing */
    if (d->starved < d->running_count && d->state->sequences[d->plan->running[d->starved]].priority >= q->priority)
        return false;
    if (!make_way(d, q->priority, least_need + q->idle_pages))
        return false;
    int left = d->available - pinned_pages(d, q);
    if (left < least_need)
        return false;
    sched_work *w = &d->plan->work[i];
    w->admitted = true;
    w->pages = least(need, left);
    d->available = left - w->pages;
    d->shared += q->pages - pinned_pages(d, q);
    d->active++;
    d->plan->admitted[d->plan->admitted_count++] = i;
    return true;
}

static void admit_waiting(decision *d)
{
    for (int k = 0; k < d->ordered; k++) {
        int i = d->plan->order[k];
        const sched_sequence *q = &d->state->sequences[i];
        if (q->running || (q->hold && d->active)) /* with nothing running, there is nothing to wait for */
            continue;
        if (!admit(d, i))
            return;
    }
}

static int count_deeper(const decision *d, int level)
{
    int count = 0;
    for (int k = 0; k < d->running_count; k++)
        count += d->plan->work[d->plan->running[k]].drafts > level;
    return count;
}

/* Cuts the drafts to `room` in all: the first of every sequence, then the second of every one, and so on. */
static void cut_drafts(decision *d, int room)
{
    int level = 0, sum = 0;
    for (int next; (next = count_deeper(d, level)) > 0 && sum + next <= room; level++)
        sum += next;
    for (int k = 0; k < d->running_count; k++) {
        sched_work *w = &d->plan->work[d->plan->running[k]];
        if (w->drafts <= level)
            continue;
        w->drafts = level + (sum < room);
        sum += sum < room;
    }
}

/* The rows a prompt gets of `rows`: its last row needs logits. */
static int give_chunk(decision *d, int i, int rows, int *logits)
{
    int todo = rows_left(&d->state->sequences[i]), old = d->plan->work[i].rows;
    rows = least(rows, todo - old - !*logits);
    if (rows <= 0)
        return 0;
    d->plan->work[i].rows += rows;
    *logits -= old + rows == todo;
    return rows;
}

static void give_prompt_rows(decision *d, int count, int rows, int logits)
{
    int *prompts = d->plan->prompts;
    if (!count)
        return;
    int oldest = prompts[0];
    rows -= give_chunk(d, oldest, (rows + 1) / 2, &logits);
    sort(d->state, prompts, count, shorter);
    for (int k = 0; k < count && rows; k++)
        if (prompts[k] != oldest)
            rows -= give_chunk(d, prompts[k], rows, &logits);
    if (rows)
        give_chunk(d, oldest, rows, &logits);
}

/* Prompts of the step in order, into plan->prompts; returns how many, and the sum of their rows. */
static int find_prompts(decision *d, int *wanted)
{
    int count = 0;
    *wanted = 0;
    for (int k = 0; k < d->ordered; k++) {
        int i = d->plan->order[k];
        const sched_sequence *q = &d->state->sequences[i];
        const sched_work *w = &d->plan->work[i];
        bool has_pages = sched_pages_for(q->known) <= q->pages + w->pages;
        if (w->gone || !has_pages || (q->running ? is_decoding(q) : !w->admitted))
            continue;
        d->plan->prompts[count++] = i;
        *wanted = rows_left(q) < d->state->step_rows - *wanted ? *wanted + rows_left(q) : d->state->step_rows;
    }
    return count;
}

static void give_rows(decision *d)
{
    const sched_state *s = d->state;
    int decoding = 0, drafts = 0, wanted;
    for (int k = 0; k < d->running_count; k++) {
        decoding += d->plan->work[d->plan->running[k]].rows;
        drafts += d->plan->work[d->plan->running[k]].drafts;
    }
    int prompts = find_prompts(d, &wanted);
    int rows = s->step_rows - decoding, logits = s->logit_rows - decoding;
    int chunk = least(wanted, decoding ? least(rows, most(s->prefill_rows, 1)) : rows);
    int room = least(rows - least(chunk, (rows + 1) / 2), most(logits - prompts, 0));
    if (drafts > room) {
        cut_drafts(d, room);
        drafts = room;
    }
    give_prompt_rows(d, prompts, least(chunk, rows - drafts), logits - drafts);
}

static void add_grant(sched_plan *p, int i)
{
    const sched_work *w = &p->work[i];
    if (w->rows || w->admitted)
        p->grants[p->grant_count++] = (sched_grant){i, w->rows + w->drafts, w->drafts, w->pages};
}

static void write_grants(const decision *d)
{
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < d->ordered; k++)
            if (is_decoding(&d->state->sequences[d->plan->order[k]]) == (pass == 0))
                add_grant(d->plan, d->plan->order[k]);
}

void sched_decide(const sched_state *state, sched_plan *plan)
{
    plan->grant_count = plan->expired_count = plan->preempted_count = plan->admitted_count = 0;
    if (state->count)
        memset(plan->work, 0, (size_t)state->count * sizeof *plan->work);
    decision d = {.state = state, .plan = plan, .available = state->free_pages + state->idle_pages};
    sort_out(&d);
    give_decode_rows(&d);
    reserve_running(&d);
    reserve_drafts(&d);
    admit_waiting(&d);
    give_rows(&d);
    write_grants(&d);
}
