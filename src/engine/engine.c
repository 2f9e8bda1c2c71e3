/* The engine's outer half: submission, cancellation, events, the thread. engine_step.c is the inner half.
 *
 * The thread that computes owns everything but the mailbox. Once per step it takes what came in, and hands out what it made,
 * under the mailbox's lock; so nobody ever waits for a step, and a step waits for nobody. */
#include "engine/engine.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "engine/engine_state.h"

uint64_t engine_now(const engine *e)
{
    return e->options.clock ? e->options.clock(e->options.clock_context) : clock_now_us();
}

/* ---- lists ---- */

void sequence_list_add(sequence_list *l, sequence *s)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 64;
        l->items = mem_grow(l->items, (size_t)l->capacity, sizeof *l->items);
    }
    l->items[l->count++] = s;
}

void sequence_list_remove(sequence_list *l, sequence *s)
{
    for (int i = 0; i < l->count; i++)
        if (l->items[i] == s) {
            memmove(l->items + i, l->items + i + 1, (size_t)(l->count - i - 1) * sizeof *l->items);
            l->count--;
            return;
        }
}

static bool goes_before(const sequence *a, const sequence *b)
{
    return a->priority != b->priority ? a->priority > b->priority : a->id < b->id;
}

void engine_enqueue(engine *e, sequence *s)
{
    sequence_list *q = &e->waiting;
    int low = 0, high = q->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (goes_before(q->items[middle], s))
            low = middle + 1;
        else
            high = middle;
    }
    sequence_list_add(q, s);
    memmove(q->items + low + 1, q->items + low, (size_t)(q->count - 1 - low) * sizeof *q->items);
    q->items[low] = s;
}

/* ---- events ---- */

engine_event *engine_event_add(engine *e, sequence *s)
{
    engine_batch *b = &e->batch;
    if (b->event_count == b->event_capacity) {
        b->event_capacity = b->event_capacity ? 2 * b->event_capacity : 64;
        b->events = mem_grow(b->events, (size_t)b->event_capacity, sizeof *b->events);
    }
    engine_event *ev = &b->events[b->event_count++];
    *ev = (engine_event){.id = s->id, .user = s->user};
    return ev;
}

void engine_event_free(engine_event *ev)
{
    free(ev->results);
    free(ev->failure);
    ev->results = NULL;
    ev->failure = NULL;
}

/* Moves the step's events to the mailbox; the lock is held. */
static void post_events(engine_mailbox *m, engine_batch *b)
{
    if (m->event_head > 0 && m->event_head + m->event_count + b->event_count > m->event_capacity) {
        memmove(m->events, m->events + m->event_head, (size_t)m->event_count * sizeof *m->events);
        m->event_head = 0;
    }
    if (m->event_count + b->event_count > m->event_capacity) {
        m->event_capacity = 2 * (m->event_count + b->event_count);
        m->events = mem_grow(m->events, (size_t)m->event_capacity, sizeof *m->events);
    }
    if (b->event_count > 0)
        memcpy(m->events + m->event_head + m->event_count, b->events, (size_t)b->event_count * sizeof *m->events);
    m->event_count += b->event_count;
    b->event_count = 0;
}

int engine_poll(engine *e, engine_event *events, int most)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    int count = m->event_count < most ? m->event_count : most;
    if (count > 0)
        memcpy(events, m->events + m->event_head, (size_t)count * sizeof *events);
    m->event_count -= count;
    m->event_head = m->event_count ? m->event_head + count : 0;
    pthread_mutex_unlock(&m->lock);
    return count;
}

/* ---- submission ---- */

int engine_draft_room(const engine *e)
{
    return e->depth_most ? 2 * e->depth_most + 1 : 0;
}

engine_refusal engine_submit(engine *e, const engine_request *r, uint64_t *id, error *err)
{
    engine_mailbox *m = &e->mail;
    sequence *s = sequence_create(r, &e->forward->model->config, e->options.max_context, err);
    engine_refusal refusal = s ? ENGINE_ACCEPTED : ENGINE_INVALID;
    if (s && sched_pages_for(s->limit) > e->pages->count) {
        error_set(err, ERROR_FIT, "prompt and answer need %d pages of %d tokens, the cache has %d; shorten the prompt, lower max_tokens, "
                  "or start the server with a larger --kv-tokens", sched_pages_for(s->limit), KV_PAGE_TOKENS, e->pages->count);
        refusal = ENGINE_INVALID;
    }
    pthread_mutex_lock(&m->lock);
    if (refusal == ENGINE_ACCEPTED && m->closed) {
        error_set(err, ERROR_RUNTIME, "the engine takes no new requests: it is being stopped");
        refusal = ENGINE_CLOSED;
    } else if (refusal == ENGINE_ACCEPTED && m->waiting >= e->options.max_waiting) {
        error_set(err, ERROR_FIT, "the queue is full: %d requests are waiting; try again later", m->waiting);
        refusal = ENGINE_QUEUE_FULL;
    }
    if (refusal == ENGINE_ACCEPTED) {
        *id = s->id = ++m->next_id;
        s->stats.arrival_us = engine_now(e);
        sequence_list_add(&m->inbox, s);
        m->waiting++;
        m->submitted++;
        pthread_cond_signal(&m->work);
    } else {
        m->refused++;
    }
    pthread_mutex_unlock(&m->lock);
    if (refusal != ENGINE_ACCEPTED)
        sequence_free(s);
    return refusal;
}

void engine_cancel(engine *e, uint64_t id)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    if (m->cancel_count == m->cancel_capacity) {
        m->cancel_capacity = m->cancel_capacity ? 2 * m->cancel_capacity : 64;
        m->cancels = mem_grow(m->cancels, (size_t)m->cancel_capacity, sizeof *m->cancels);
    }
    m->cancels[m->cancel_count++] = id;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

void engine_cancel_all(engine *e)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    m->cancel_all = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
}

void engine_close(engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    e->mail.closed = true;
    pthread_mutex_unlock(&e->mail.lock);
}

/* ---- the computing side ---- */

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void mark_cancelled(const sequence_list *l, const uint64_t *ids, int count, bool all)
{
    for (int i = 0; i < l->count; i++)
        if (all || bsearch(&l->items[i]->id, ids, (size_t)count, sizeof *ids, compare_ids))
            l->items[i]->cancelled = true;
}

/* Counters as others see them; the lock is held. */
static void post_counters(engine *e)
{
    engine_counters *c = &e->now;
    engine_mailbox *m = &e->mail;
    c->running = e->running.count;
    c->decoding = 0;
    for (int i = 0; i < e->running.count; i++)
        c->decoding += sequence_decodes(e->running.items[i]);
    c->prefilling = c->running - c->decoding;
    c->pages = e->pages->count;
    c->free_pages = e->pages->free_count;
    c->idle_pages = e->pages->idle_count;
    prefix_tree_stats tree = prefix_tree_count(e->tree);
    c->tree_pages = tree.pages;
    c->evicted_pages = tree.evicted_pages;
    c->spec = spec_count(e->spec);
    c->spec_simulated = spec_is_simulated(e->spec);
    spec_describe(e->spec, c->spec_words, (int)sizeof c->spec_words);
    m->counters = *c;
    m->waiting = m->inbox.count + e->waiting.count;
}

/* Takes what came in; the lock is held. */
static void take_mail(engine *e)
{
    engine_mailbox *m = &e->mail;
    for (int i = 0; i < m->inbox.count; i++)
        engine_enqueue(e, m->inbox.items[i]);
    m->inbox.count = 0;
    if (m->cancel_count > 0 || m->cancel_all) {
        if (m->cancel_count > 0) /* without any there may be no array to sort */
            qsort(m->cancels, (size_t)m->cancel_count, sizeof *m->cancels, compare_ids);
        mark_cancelled(&e->running, m->cancels, m->cancel_count, m->cancel_all);
        mark_cancelled(&e->waiting, m->cancels, m->cancel_count, m->cancel_all);
        m->cancel_count = 0;
        m->cancel_all = false;
    }
    if (m->flush_done != m->flush_wanted) {
        prefix_tree_clear(e->tree);
        e->tree_version++;
        m->flush_done = m->flush_wanted;
        post_counters(e); /* who waits for the flush need not wait for the step */
        pthread_cond_broadcast(&m->flushed);
    }
}

/* One round: mail in, a step, mail out. False when there was nothing to compute. */
static bool round_trip(engine *e)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    bool flushes = m->flush_done != m->flush_wanted;
    take_mail(e);
    pthread_mutex_unlock(&m->lock);
    if (flushes && e->options.notify)
        e->options.notify(e->options.notify_context);
    bool worked = engine_advance(e);
    pthread_mutex_lock(&m->lock);
    bool news = e->batch.event_count > 0;
    post_events(m, &e->batch);
    post_counters(e);
    pthread_mutex_unlock(&m->lock);
    if (news && e->options.notify)
        e->options.notify(e->options.notify_context);
    return worked;
}

bool engine_step(engine *e)
{
    return round_trip(e);
}

/* Waits for something to do; false: stop. */
static bool wait_for_work(engine *e)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    while (!m->stop && m->inbox.count == 0 && m->cancel_count == 0 && !m->cancel_all && m->flush_done == m->flush_wanted)
        pthread_cond_wait(&m->work, &m->lock);
    bool go_on = !m->stop;
    pthread_mutex_unlock(&m->lock);
    return go_on;
}

static bool is_stopped(engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    bool stop = e->mail.stop;
    pthread_mutex_unlock(&e->mail.lock);
    return stop;
}

static void *compute(void *context)
{
    engine *e = context;
    while (wait_for_work(e))
        while (round_trip(e) && !is_stopped(e)) {
        }
    return NULL;
}

bool engine_start(engine *e, error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the thread that called */
    int failed = pthread_create(&e->thread, NULL, compute, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        errno = failed;
        return error_set_errno(err, ERROR_RUNTIME, "cannot start the engine's thread");
    }
    e->has_thread = true;
    return true;
}

uint64_t engine_flush_begin(engine *e)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    uint64_t number = ++m->flush_wanted;
    if (e->has_thread)
        pthread_cond_signal(&m->work);
    else
        take_mail(e);
    pthread_mutex_unlock(&m->lock);
    return number;
}

bool engine_flush_is_done(engine *e, uint64_t number)
{
    pthread_mutex_lock(&e->mail.lock);
    bool done = e->mail.flush_done >= number;
    pthread_mutex_unlock(&e->mail.lock);
    return done;
}

void engine_flush_cache(engine *e)
{
    engine_mailbox *m = &e->mail;
    uint64_t number = engine_flush_begin(e);
    pthread_mutex_lock(&m->lock);
    while (m->flush_done < number && !m->stop)
        pthread_cond_wait(&m->flushed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void engine_count(engine *e, engine_counters *out)
{
    engine_mailbox *m = &e->mail;
    pthread_mutex_lock(&m->lock);
    *out = m->counters;
    out->waiting = m->waiting;
    out->submitted = m->submitted;
    out->refused = m->refused;
    pthread_mutex_unlock(&m->lock);
    out->dispatch = dispatch_count(e->forward->device->dispatch);
}

engine_facts engine_describe(const engine *e)
{
    return (engine_facts){.max_running = e->options.max_running, .max_waiting = e->options.max_waiting,
                          .max_context = e->options.max_context, .step_rows = e->forward->max_rows,
                          .kv_tokens = (int64_t)e->pages->count * KV_PAGE_TOKENS,
                          .page_bytes = e->forward->device->layout.page_bytes, .spec = e->options.spec};
}

/* ---- life ---- */

static bool settle_options(engine *e, error *err)
{
    engine_options *o = &e->options;
    const model_config *c = &e->forward->model->config;
    if (o->max_running < 1 || o->max_waiting < 1 || o->max_context < 2 || o->kv_tokens < 1)
        return error_set(err, ERROR_USAGE, "an engine needs room for at least 1 running and 1 waiting request of 2 tokens");
    if (o->max_context > c->max_positions)
        return error_set(err, ERROR_USAGE, "a context of %d tokens is not possible: the model allows up to %d; lower --context",
                         o->max_context, c->max_positions);
    if (o->spec.mode != SPEC_OFF && (o->spec.depth < 1 || o->spec.depth > SPEC_DEPTH_MOST))
        return error_set(err, ERROR_USAGE, "speculation of %d drafts is not possible; expected 1 to %d", o->spec.depth, SPEC_DEPTH_MOST);
    if (o->spec.mode != SPEC_OFF && !c->has_mtp) {
        if (o->spec.mode == SPEC_FIXED)
            return error_set(err, ERROR_USAGE, "--spec %d needs a draft head, and this model has none (num_nextn_predict_layers is 0); "
                             "use --spec off", o->spec.depth);
        o->spec.mode = SPEC_OFF;
    }
    if (o->max_running > e->forward->max_rows)
        o->max_running = e->forward->max_rows; /* each decoding sequence needs a row and its logits */
    if (o->max_running > e->forward->max_logit_rows)
        o->max_running = e->forward->max_logit_rows;
    if (!o->itl_target_us)
        o->itl_target_us = 100000;
    e->depth_most = o->spec.mode == SPEC_OFF ? 0 : o->spec.depth;
    return true;
}

static void create_batch(engine *e)
{
    engine_batch *b = &e->batch;
    size_t rows = (size_t)e->forward->max_rows, members = (size_t)e->sequence_capacity;
    b->tokens = mem_alloc(rows, sizeof *b->tokens);
    b->positions = mem_alloc(rows, sizeof *b->positions);
    b->sequences = mem_alloc(rows, sizeof *b->sequences);
    b->trunk_rows = mem_alloc(rows, sizeof *b->trunk_rows);
    b->logit_rows = mem_alloc(rows, sizeof *b->logit_rows);
    b->page_tables = mem_alloc(members, sizeof *b->page_tables);
    b->members = mem_alloc(members, sizeof *b->members);
    b->chain = mem_alloc(members, sizeof *b->chain);
}

engine *engine_create(forward *f, const engine_options *options, error *err)
{
    engine *e = mem_alloc(1, sizeof *e);
    e->options = *options;
    e->forward = f;
    pthread_mutex_init(&e->mail.lock, NULL);
    pthread_cond_init(&e->mail.work, NULL);
    pthread_cond_init(&e->mail.flushed, NULL);
    bool ok = settle_options(e, err);
    if (ok) {
        e->sequence_capacity = e->options.max_running + ENGINE_CANDIDATES;
        e->sched = mem_alloc((size_t)e->sequence_capacity, sizeof *e->sched);
        e->sched_of = mem_alloc((size_t)e->sequence_capacity, sizeof *e->sched_of);
        sched_plan_reserve(&e->plan, e->sequence_capacity);
        create_batch(e);
        e->spec = spec_create(&e->options.spec);
        e->pages = kv_pages_create(f->device, e->options.kv_tokens, err);
        e->sampler = e->pages ? sampler_create(f->model->config.vocab_size, err) : NULL;
        ok = e->sampler != NULL;
    }
    if (ok) {
        e->tree = prefix_tree_create(e->pages);
        e->tree_version = 1;
        post_counters(e);
        return e;
    }
    engine_destroy(e);
    return NULL;
}

static void free_sequences(engine *e, sequence_list *l)
{
    for (int i = 0; i < l->count; i++) {
        for (int p = 0; p < l->items[i]->pages; p++)
            kv_pages_drop(e->pages, l->items[i]->page_table[p]);
        sequence_free(l->items[i]);
    }
    free(l->items);
}

static void free_batch(engine_batch *b)
{
    for (int i = 0; i < b->event_count; i++)
        engine_event_free(&b->events[i]);
    free(b->events);
    free(b->tokens);
    free(b->positions);
    free(b->sequences);
    free(b->trunk_rows);
    free(b->logit_rows);
    free(b->page_tables);
    free(b->members);
    free(b->chain);
}

static void stop_thread(engine *e)
{
    engine_mailbox *m = &e->mail;
    if (!e->has_thread)
        return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->work);
    pthread_cond_broadcast(&m->flushed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(e->thread, NULL);
}

void engine_destroy(engine *e)
{
    if (!e)
        return;
    stop_thread(e);
    free_sequences(e, &e->running);
    free_sequences(e, &e->waiting);
    free_sequences(e, &e->mail.inbox);
    for (int i = 0; i < e->mail.event_count; i++)
        engine_event_free(&e->mail.events[e->mail.event_head + i]);
    free(e->mail.events);
    free(e->mail.cancels);
    free_batch(&e->batch);
    prefix_tree_destroy(e->tree);
    kv_pages_destroy(e->pages);
    sampler_free(e->sampler);
    if (e->spec)
        spec_destroy(e->spec);
    sched_plan_free(&e->plan);
    free(e->sched);
    free(e->sched_of);
    pthread_mutex_destroy(&e->mail.lock);
    pthread_cond_destroy(&e->mail.work);
    pthread_cond_destroy(&e->mail.flushed);
    free(e);
}
