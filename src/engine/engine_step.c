/* One step of the engine, in the order of engine_advance at the end of this file:
 *
 *     look up what the cache has of waiting prompts -> schedule -> preempt, admit, take pages -> compose the rows -> trunk -> sample,
 *     verifying drafts -> fill the draft layer's keys -> draft for the next step -> pages into the prefix tree -> end what has ended
 *
 * Positions of a sequence [0 .. cached) have their keys in its pages; token cached is the first row of its next step. Rows of rejected
 * drafts leave keys behind at positions >= cached: nothing reads them, and the next step writes over them. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/engine_state.h"

/* ---- pages ---- */

/* The page that an admitted sequence would copy is not held any more; what it has is computed instead. */
static void forget_copy(engine *e, sequence *s)
{
    prefix_match *m = &s->match;
    if (m->copy_page < 0)
        return;
    kv_pages_drop(e->pages, m->copy_page);
    m->copy_page = -1;
    m->tokens -= m->copy_tokens;
    m->copy_tokens = 0;
    if (m->draft_tokens > m->tokens)
        m->draft_tokens = m->tokens;
}

/* Pages held to be copied are not in the scheduler's account: they may be the very ones that are needed. */
static bool take_page(engine *e, int32_t *page)
{
    if (kv_pages_take(e->pages, page))
        return true;
    for (int i = 0; e->pages->idle_count == 0 && i < e->plan.admitted_count; i++)
        forget_copy(e, e->sched_of[e->plan.admitted[i]]);
    prefix_tree_evict(e->tree, 1);
    e->tree_version++;
    return kv_pages_take(e->pages, page);
}

/* The scheduler has made sure that there are enough. */
static bool take_pages(engine *e, sequence *s, int count)
{
    sequence_reserve_pages(s, s->pages + count);
    for (int i = 0; i < count; i++)
        if (!take_page(e, &s->page_table[s->pages]))
            return false;
        else
            s->pages++;
    return true;
}

static void keep_in_tree(engine *e, sequence *s, int tokens)
{
    if (e->options.no_prefix_cache || tokens == 0)
        return;
    prefix_tree_insert(e->tree, sequence_space(s), s->tokens, tokens, s->draft_keys < tokens ? s->draft_keys : tokens, s->page_table);
    e->tree_version++;
}

void engine_release_pages(engine *e, sequence *s)
{
    keep_in_tree(e, s, s->cached);
    for (int i = 0; i < s->pages; i++)
        kv_pages_drop(e->pages, s->page_table[i]);
    s->pages = s->tree_pages = s->cached = s->draft_keys = s->draft_count = 0;
}

/* ---- beginning, pausing and ending ---- */

/* Becomes a user of the pages that the tree has of it. All that are admitted do so before any of them takes a new page, which may
 * evict others. */
static void share_cached(engine *e, sequence *s)
{
    sequence_reserve_pages(s, sched_pages_for(s->known));
    s->match = (prefix_match){.copy_page = -1};
    if (!e->options.no_prefix_cache)
        s->match = prefix_tree_take(e->tree, sequence_space(s), s->tokens, s->known - 1, s->page_table);
    s->pages = s->tree_pages = s->match.full_pages;
}

/* The page that the tree has in part is copied to the first of the pages just taken. */
static void copy_cached(engine *e, sequence *s)
{
    device *d = e->forward->device;
    prefix_match *m = &s->match;
    size_t bytes = d->layout.page_bytes;
    uint8_t *memory = e->pages->memory;
    if (m->copy_page >= 0) {
        d->ops->copy(d, memory + (size_t)s->page_table[m->full_pages] * bytes, memory + (size_t)m->copy_page * bytes, bytes);
        kv_pages_drop(e->pages, m->copy_page);
        m->copy_page = -1;
    }
    s->cached = m->tokens;
    s->draft_keys = m->draft_tokens;
}

static void count_admission(engine *e, sequence *s)
{
    if (s->stats.admitted_us)
        return;
    s->stats.admitted_us = engine_now(e);
    s->stats.cached_tokens = s->cached;
    e->now.prompt_tokens += (uint64_t)s->prompt_count;
    e->now.cached_tokens += (uint64_t)s->cached;
}

/* From those that run back to its place in the queue. */
static void put_back(engine *e, sequence *s)
{
    engine_release_pages(e, s);
    sequence_list_remove(&e->running, s);
    s->running = false;
    s->match_version = 0;
    engine_enqueue(e, s);
}

static void pause(engine *e, sequence *s)
{
    put_back(e, s);
    s->stats.preemptions++;
    e->now.preemptions++;
}

static void admit(engine *e, sequence *s)
{
    sequence_list_remove(&e->waiting, s);
    sequence_list_add(&e->running, s);
    s->running = true;
    share_cached(e, s);
}

/* Takes pages until an admitted sequence has `pages`, or as many as there are; when its known tokens do not fit it waits again. */
static bool settle_admitted(engine *e, sequence *s, int pages)
{
    int least = sched_pages_for(s->known);
    if (!take_pages(e, s, least - s->pages)) {
        forget_copy(e, s);
        put_back(e, s);
        return false;
    }
    take_pages(e, s, pages - s->pages);
    copy_cached(e, s);
    count_admission(e, s);
    return true;
}

void engine_end(engine *e, sequence *s, engine_finish finish, const char *failure)
{
    engine_event *ev = engine_event_add(e, s);
    s->stats.finished_us = engine_now(e);
    *ev = (engine_event){.id = s->id, .user = s->user, .time_us = s->stats.finished_us, .finish = finish, .stats = s->stats};
    if (failure)
        ev->failure = mem_copy(failure, strlen(failure));
    e->now.finished[finish]++;
    if (s->running)
        engine_release_pages(e, s);
    sequence_list_remove(s->running ? &e->running : &e->waiting, s);
    sequence_free(s);
}

static void end_cancelled(engine *e)
{
    for (int i = e->running.count - 1; i >= 0; i--)
        if (e->running.items[i]->cancelled)
            engine_end(e, e->running.items[i], ENGINE_CANCELLED, NULL);
    uint64_t now = engine_now(e);
    for (int i = e->waiting.count - 1; i >= 0; i--) {
        sequence *s = e->waiting.items[i];
        if (s->cancelled)
            engine_end(e, s, ENGINE_CANCELLED, NULL);
        else if (s->deadline_us && s->deadline_us <= now)
            engine_end(e, s, ENGINE_DEADLINE, NULL);
    }
}

/* ---- what the scheduler is told ---- */

static void look_up(engine *e, sequence *s)
{
    if (s->match_version == e->tree_version)
        return;
    s->match_version = e->tree_version;
    s->match = (prefix_match){.copy_page = -1};
    if (!e->options.no_prefix_cache)
        s->match = prefix_tree_find(e->tree, sequence_space(s), s->tokens, s->known - 1);
}

/* Whether `other` is about to compute pages that s could share: it is worth waiting for them. Not for a lower priority, which others
 * may keep from going on. */
static bool waits_for(const sequence *s, const sequence *other)
{
    int found = s->match.full_pages * KV_PAGE_TOKENS, until = found + KV_PAGE_TOKENS;
    if (until < other->cached + 1)
        until = other->cached + 1;
    return other->priority >= s->priority && until < s->known && until <= other->known && sequence_begins_alike(s, other, found, until);
}

/* s is candidate number `index` of the queue; those before it may be admitted in the same step. */
static bool should_hold(const engine *e, const sequence *s, int index)
{
    if (e->options.no_prefix_cache)
        return false;
    for (int i = 0; i < e->running.count; i++)
        if (!sequence_decodes(e->running.items[i]) && waits_for(s, e->running.items[i]))
            return true;
    for (int i = 0; i < index; i++)
        if (waits_for(s, e->waiting.items[i]))
            return true;
    return false;
}

/* Pages of a sequence that can be had when it leaves. */
static int own_pages(const engine *e, const sequence *s)
{
    int count = 0;
    for (int i = 0; i < s->pages; i++)
        count += e->pages->users[s->page_table[i]] == 1 + e->pages->in_tree[s->page_table[i]];
    return count;
}

static sched_sequence describe(const sequence *s)
{
    return (sched_sequence){.priority = s->priority, .arrival_us = s->stats.arrival_us, .deadline_us = s->deadline_us, .order = s->id,
                            .running = s->running, .known = s->known, .cached = s->running ? s->cached : s->match.tokens,
                            .pages = s->running ? s->pages : s->match.full_pages,
                            .idle_pages = s->running ? 0 : s->match.idle_pages, .drafts = s->draft_count};
}

/* Prompt rows next to decoding ones: as many as the aim for the time between tokens leaves room for. */
static int prefill_budget(const engine *e)
{
    int most = e->forward->max_rows, least = most / 8 < 16 ? 16 : most / 8;
    if (e->options.prefill_rows > 0)
        return e->options.prefill_rows < most ? e->options.prefill_rows : most;
    if (e->prompt_row_us <= 0)
        return most < 64 ? most : 64;
    double room = ((double)e->options.itl_target_us - e->decode_step_us) / e->prompt_row_us;
    int rows = room > most ? most : room < least ? 0 : (int)room;
    return rows > least ? rows : least < most ? least : most;
}

static uint64_t draw(engine *e, uint64_t below)
{
    return random_word(e->options.disturb_seed, e->disturb_count++, 0) % below;
}

static int lowest_priority(const engine *e)
{
    int lowest = INT_MAX;
    for (int i = 0; i < e->running.count; i++)
        if (e->running.items[i]->priority < lowest)
            lowest = e->running.items[i]->priority;
    return lowest;
}

/* How many of the queue to look at: none while all places are taken by those who may keep them. */
static int count_candidates(const engine *e, int lowest)
{
    if (e->waiting.count == 0 || (e->running.count >= e->options.max_running && e->waiting.items[0]->priority <= lowest))
        return 0;
    return e->waiting.count < ENGINE_CANDIDATES ? e->waiting.count : ENGINE_CANDIDATES;
}

/* Whether somebody may have to leave for others to have pages: those that run, or waiting ones of a higher priority. Only then their
 * own pages are counted, which takes time in proportion to their length. */
static bool is_tight(const engine *e, int candidates, int lowest)
{
    int64_t wanted = 2 * (int64_t)e->running.count; /* a token and its drafts may begin two pages */
    for (int i = 0; i < candidates; i++)
        if (e->waiting.items[i]->priority > lowest)
            wanted += sched_pages_for(e->waiting.items[i]->known + engine_draft_room(e)) + e->running.count + 1;
    return wanted > (int64_t)e->pages->free_count + e->pages->idle_count;
}

static sched_state gather_state(engine *e)
{
    int count = 0, lowest = lowest_priority(e), candidates = count_candidates(e, lowest);
    bool tight = is_tight(e, candidates, lowest);
    for (int i = 0; i < e->running.count; i++) {
        e->sched_of[count] = e->running.items[i];
        e->sched[count] = describe(e->running.items[i]);
        e->sched[count++].own_pages = tight ? own_pages(e, e->running.items[i]) : 0;
    }
    for (int i = 0; i < candidates; i++) {
        sequence *s = e->waiting.items[i];
        look_up(e, s);
        e->sched_of[count] = s;
        e->sched[count] = describe(s);
        e->sched[count++].hold = should_hold(e, s, i);
    }
    e->now.prefill_rows = prefill_budget(e);
    sched_state state = {.sequences = e->sched, .count = count, .now_us = engine_now(e), .free_pages = e->pages->free_count,
                         .idle_pages = e->pages->idle_count, .step_rows = e->forward->max_rows, .logit_rows = e->forward->max_logit_rows,
                         .prefill_rows = e->now.prefill_rows, .max_running = e->options.max_running,
                         .draft_room = engine_draft_room(e)};
    if (e->options.disturb_seed) {
        int spare = state.step_rows - e->options.max_running;
        state.step_rows = e->options.max_running + (int)draw(e, (uint64_t)spare + 1);
        state.prefill_rows = 1 + (int)draw(e, (uint64_t)state.step_rows);
    }
    return state;
}

/* ---- carrying out the plan ---- */

static void disturb(engine *e)
{
    if (e->options.disturb_seed && e->running.count > 0 && draw(e, 8) == 0)
        pause(e, e->running.items[draw(e, (uint64_t)e->running.count)]);
}

static void add_member(engine *e, sequence *s, const sched_grant *g)
{
    engine_batch *b = &e->batch;
    engine_member *m = &b->members[b->member_count];
    *m = (engine_member){.s = s, .rows = g->rows, .first = b->rows, .drafts = g->drafts, .logits = -1, .event = -1, .draft_row = -1};
    for (int i = 0; i < g->rows; i++) {
        int at = s->cached + i;
        b->tokens[b->rows] = at < s->known ? s->tokens[at] : s->drafts[at - s->known];
        b->positions[b->rows] = at;
        b->sequences[b->rows++] = b->member_count;
    }
    m->decodes = s->known - s->cached == 1;
    if (m->decodes)
        b->record.decoding++;
    else
        b->prompt_rows += g->rows;
    if (s->cached + g->rows >= s->known) {
        m->logits = b->logits;
        for (int i = 0; i <= g->drafts; i++)
            b->logit_rows[b->logits++] = b->rows - 1 - g->drafts + i;
    }
    b->member_count++;
}

static void carry_out(engine *e)
{
    sched_plan *p = &e->plan;
    for (int i = 0; i < p->expired_count; i++)
        engine_end(e, e->sched_of[p->expired[i]], ENGINE_DEADLINE, NULL);
    for (int i = 0; i < p->preempted_count; i++)
        pause(e, e->sched_of[p->preempted[i]]);
    for (int i = 0; i < p->admitted_count; i++)
        admit(e, e->sched_of[p->admitted[i]]);
    for (int i = 0; i < p->grant_count; i++) {
        const sched_grant *g = &p->grants[i];
        sequence *s = e->sched_of[g->sequence];
        bool was_running = e->sched[g->sequence].running;
        bool ready = was_running ? take_pages(e, s, g->pages) : settle_admitted(e, s, e->sched[g->sequence].pages + g->pages);
        sched_grant granted = *g;
        if (granted.rows > s->known - s->cached + g->drafts) /* sequences that left put more of it into the tree */
            granted.rows = s->known - s->cached + g->drafts;
        if (ready && granted.rows > 0)
            add_member(e, s, &granted);
        else if (!ready && was_running)
            pause(e, s);
    }
    for (int i = 0; i < e->batch.member_count; i++)
        e->batch.page_tables[i] = e->batch.members[i].s->page_table;
}

/* ---- sampling ---- */

static bool sample_one(engine *e, sequence *s, const float *logits, sampler_result *out, error *err)
{
    return sampler_sample(e->sampler, sequence_params(s, s->known), s->history, logits, (uint64_t)s->known, out, err);
}

static void record_token(engine *e, engine_member *m, int32_t token, const sampler_result *result)
{
    sequence *s = m->s;
    if (m->event < 0) {
        engine_event *ev = engine_event_add(e, s);
        m->event = e->batch.event_count - 1;
        if (s->params.logprobs >= 0)
            ev->results = mem_alloc((size_t)m->drafts + 1, sizeof *ev->results);
    }
    engine_event *ev = &e->batch.events[m->event];
    if (ev->results)
        ev->results[ev->count] = *result;
    ev->tokens[ev->count++] = token;
}

/* Samples the rows of a member until one does not confirm its draft. */
static bool sample_member(engine *e, engine_member *m, const float *logits, error *err)
{
    sequence *s = m->s;
    spec_step *record = &e->batch.record;
    size_t vocab = (size_t)e->forward->model->config.vocab_size;
    int chance = spec_is_simulated(e->spec) ? spec_simulated(e->spec, s->params.seed, (uint64_t)s->known, m->drafts) : -1;
    for (int i = 0; i <= m->drafts; i++) {
        sampler_result result;
        if (!sample_one(e, s, logits + (size_t)(m->logits + i) * vocab, &result, err))
            return false;
        bool right = i < m->drafts && (chance >= 0 ? i < chance : result.token == s->drafts[i]);
        if (right)
            result.token = s->drafts[i];
        if (s->history && !sampler_state_add(s->history, result.token, err))
            return false;
        sequence_append(s, result.token);
        record_token(e, m, result.token, &result);
        if (i < m->drafts) {
            record->tried[i]++;
            record->right[i] += right;
            m->right += right;
        }
        if (sequence_ends_with(s, result.token) && s->known > s->min_known)
            m->finish = ENGINE_STOP;
        else if (s->known >= s->limit)
            m->finish = ENGINE_LENGTH;
        if (m->finish || !right)
            break;
    }
    return true;
}

static void count_member(engine *e, engine_member *m, int gained)
{
    engine_request_stats *t = &m->s->stats;
    t->computed_tokens += m->rows;
    e->now.computed_tokens += (uint64_t)m->rows;
    if (gained == 0)
        return;
    t->output_tokens += gained;
    e->now.output_tokens += (uint64_t)gained;
    if (m->drafts > 0) {
        t->drafted += m->drafts;
        t->accepted += m->right;
        t->verify_steps++;
    }
    if (m->s->stats.first_token_us == 0)
        m->s->stats.first_token_us = engine_now(e);
}

static void sample_all(engine *e, const float *logits)
{
    for (int i = 0; i < e->batch.member_count; i++) {
        engine_member *m = &e->batch.members[i];
        sequence *s = m->s;
        int before = s->known;
        error err = {0};
        if (m->logits >= 0 && !sample_member(e, m, logits, &err)) {
            m->finish = ENGINE_FAILED;
            m->failure = mem_copy(err.text, strlen(err.text));
        }
        int gained = s->known - before;
        m->computed = m->rows - m->drafts + (m->drafts > 0 && gained > 0 ? gained - 1 : 0);
        count_member(e, m, gained);
        s->draft_count = 0;
        if (m->decodes)
            e->batch.record.tokens += gained;
    }
}

/* ---- drafting ---- */

/* Rows of the step that fills the draft layer: for each newly computed position, the token that follows it. */
static int compose_fill(engine *e)
{
    engine_batch *b = &e->batch;
    int rows = 0;
    bool fills = spec_fills(e->spec, b->record.decoding), fills_prompts = spec_fills_prompts(e->spec);
    for (int i = 0; i < b->member_count; i++) {
        engine_member *m = &b->members[i];
        sequence *s = m->s;
        int first = s->cached;
        s->cached += m->computed;
        if (s->draft_keys != first || m->finish == ENGINE_FAILED || !(m->decodes ? fills : fills_prompts))
            continue;
        for (int k = 0; k < m->computed; k++) {
            b->tokens[rows] = s->tokens[first + k + 1];
            b->positions[rows] = first + k;
            b->sequences[rows] = i;
            b->trunk_rows[rows++] = m->first + k;
        }
        s->draft_keys = s->cached;
        m->draft_row = rows - 1;
    }
    return rows;
}

static step batch_step(engine *e, int rows)
{
    engine_batch *b = &e->batch;
    return (step){.rows = rows, .tokens = b->tokens, .positions = b->positions, .sequences = b->sequences, .page_tables = b->page_tables,
                  .pages = e->pages->memory, .keep_keys = true};
}

static int more_room_first(const void *a, const void *b, const engine_member *members)
{
    int x = members[*(const int *)a].draft_room, y = members[*(const int *)b].draft_room;
    return x != y ? y - x : *(const int *)a - *(const int *)b;
}

/* Members that can draft, those with the most room first; returns how many. */
static int compose_chain(engine *e, int depth)
{
    engine_batch *b = &e->batch;
    int count = 0;
    for (int i = 0; i < b->member_count; i++) {
        engine_member *m = &b->members[i];
        sequence *s = m->s;
        int left = s->limit - s->known - 1, held = s->pages * KV_PAGE_TOKENS - s->known;
        m->draft_room = left < depth ? left : depth;
        m->draft_room = held < m->draft_room ? held : m->draft_room;
        if (m->finish || m->draft_row < 0 || m->draft_room < 1 || !sequence_decodes(s) || count >= e->forward->max_logit_rows)
            continue;
        int at = count++;
        for (b->chain[at] = i; at > 0 && more_room_first(&b->chain[at], &b->chain[at - 1], b->members) < 0; at--) {
            b->chain[at] = b->chain[at - 1];
            b->chain[at - 1] = i;
        }
    }
    return count;
}

/* The next draft of the first `count` members of the chain, from logits [count][vocab]. A draft that cannot be sampled ends the
 * member's chain there. Its noise is that of the position, so that it equals the target's choice whenever their logits agree. */
static void sample_drafts(engine *e, int count, const float *logits)
{
    size_t vocab = (size_t)e->forward->model->config.vocab_size;
    for (int i = 0; i < count; i++) {
        engine_member *m = &e->batch.members[e->batch.chain[i]];
        sequence *s = m->s;
        int position = s->known + s->draft_count;
        sampler_params params = *sequence_params(s, position);
        sampler_result result;
        params.logprobs = -1;
        if (!sampler_sample(e->sampler, &params, s->history, logits + (size_t)i * vocab, (uint64_t)position, &result, NULL))
            result.token = s->tokens[s->known - 1];
        s->drafts[s->draft_count++] = result.token;
        if (s->history)
            sampler_state_add(s->history, result.token, NULL);
    }
}

static void forget_drafts_in_history(engine *e, int count)
{
    for (int i = 0; i < count; i++) {
        sequence *s = e->batch.members[e->batch.chain[i]].s;
        if (s->history)
            sampler_state_rewind(s->history, (size_t)(s->known - s->prompt_count), NULL);
    }
}

/* Guesses for the next step; the draft layer has just been filled with `rows` rows. */
static void draft(engine *e, int depth)
{
    engine_batch *b = &e->batch;
    int count = compose_chain(e, depth), active = count;
    if (count == 0)
        return;
    for (int i = 0; i < count; i++)
        b->logit_rows[i] = b->members[b->chain[i]].draft_row;
    sample_drafts(e, count, forward_logits(e->forward, count, b->logit_rows));
    b->record.drafted_depth = 1;
    b->record.drafted = count;
    forward_draft_begin(e->forward, count, b->logit_rows);
    for (int k = 1; k < depth; k++) {
        while (active > 0 && b->members[b->chain[active - 1]].draft_room <= k)
            active--;
        if (active == 0)
            break;
        for (int i = 0; i < active; i++) {
            sequence *s = b->members[b->chain[i]].s;
            b->tokens[i] = s->drafts[k - 1];
            b->positions[i] = s->cached + k - 1;
            b->sequences[i] = b->chain[i];
            b->logit_rows[i] = i;
        }
        step more = batch_step(e, active);
        forward_draft_next(e->forward, &more);
        sample_drafts(e, active, forward_logits(e->forward, active, b->logit_rows));
        b->record.drafted_depth = k + 1;
    }
    forget_drafts_in_history(e, count);
}

static void fill_and_draft(engine *e)
{
    int rows = compose_fill(e);
    if (rows == 0)
        return;
    step fill = batch_step(e, rows);
    forward_draft_follow(e->forward, &fill, e->batch.trunk_rows);
    int depth = spec_depth(e->spec, e->batch.record.decoding);
    if (e->options.disturb_seed && depth > 0)
        depth = (int)draw(e, (uint64_t)depth + 1);
    if (depth > 0)
        draft(e, depth);
}

/* ---- the end of a step ---- */

static void settle_member(engine *e, engine_member *m)
{
    sequence *s = m->s;
    int full = s->cached / KV_PAGE_TOKENS;
    if (m->finish == ENGINE_FAILED)
        s->cached = full = 0; /* what was computed is not to be trusted */
    if (full > s->tree_pages) {
        keep_in_tree(e, s, full * KV_PAGE_TOKENS);
        s->tree_pages = full;
    }
    if (m->event >= 0) {
        engine_event *ev = &e->batch.events[m->event];
        ev->time_us = engine_now(e);
        ev->stats = s->stats;
    }
    if (!m->finish)
        return;
    if (m->event < 0) {
        engine_end(e, s, m->finish, m->failure);
    } else {
        /* The last tokens and the end travel in one event. */
        engine_event last = e->batch.events[m->event];
        engine_end(e, s, m->finish, m->failure);
        engine_event *end = &e->batch.events[--e->batch.event_count];
        last.finish = end->finish;
        last.stats = end->stats;
        last.failure = end->failure;
        e->batch.events[m->event] = last;
    }
    free(m->failure);
}

static void measure(engine *e, uint64_t started, uint64_t sampled, uint64_t ended)
{
    engine_batch *b = &e->batch;
    enum { ENOUGH_ROWS = 8 };
    double all = (double)(ended - started), weight = 0.2;
    if (b->prompt_rows == 0) {
        e->decode_step_us += e->decode_step_us > 0 ? weight * (all - e->decode_step_us) : all;
    } else if (b->prompt_rows >= ENOUGH_ROWS) {
        double rest = b->record.decoding > 0 && e->decode_step_us < all ? all - e->decode_step_us : all;
        double row = rest / b->prompt_rows;
        e->prompt_row_us += e->prompt_row_us > 0 ? weight * (row - e->prompt_row_us) : row;
    }
    b->record.rows = b->rows;
    b->record.prompt_rows = b->prompt_rows;
    b->record.trunk_us = sampled - started;
    b->record.draft_us = ended - sampled;
    spec_record(e->spec, &b->record);
    e->now.steps++;
    e->now.step_us += ended - started;
    e->now.last_rows = b->rows;
}

static void run_batch(engine *e)
{
    engine_batch *b = &e->batch;
    uint64_t started = engine_now(e);
    step s = batch_step(e, b->rows);
    forward_run(e->forward, &s);
    sample_all(e, b->logits ? forward_logits(e->forward, b->logits, b->logit_rows) : NULL);
    uint64_t sampled = engine_now(e);
    fill_and_draft(e);
    measure(e, started, sampled, engine_now(e));
    for (int i = 0; i < b->member_count; i++)
        settle_member(e, &b->members[i]);
}

bool engine_advance(engine *e)
{
    engine_batch *b = &e->batch;
    b->member_count = b->rows = b->prompt_rows = b->logits = 0;
    b->record = (spec_step){0};
    end_cancelled(e);
    disturb(e);
    if (e->running.count + e->waiting.count == 0)
        return b->event_count > 0;
    sched_state state = gather_state(e);
    sched_decide(&state, &e->plan);
    carry_out(e);
    if (b->rows > 0)
        run_batch(e);
    else if (e->running.count == 0 && e->plan.expired_count + e->plan.preempted_count + e->plan.admitted_count == 0 && e->waiting.count > 0)
        engine_end(e, e->waiting.items[0], ENGINE_FAILED, "the request cannot be scheduled though nothing else is running");
    return true;
}
