/* How a loop runs. One word, `state`, says all that workers and caller tell each other:
 *
 *     | generation: grows with every loop | active: workers inside | leaving | caller asleep | open |
 *
 * The caller writes the loop down, opens a new generation, takes iterations like everybody else, and closes it when none is left. A
 * worker enters by adding one to `active` of an open generation, and leaves by taking it away; the loop is over when it is closed and
 * nobody is inside. So a worker that sleeps, or that the system does not run just now, holds up nobody: it finds the loop closed.
 *
 * Waiting: both sides watch the word for SPIN_US and then sleep. A step has many short loops with little between them, and waking a
 * thread takes longer than most of them. Who watches longer than ALONE_US lets others run between two looks, since the one that is
 * waited for may need the same core. Whoever is away for CROWDED_US between two looks shares the core with other programs; then nobody
 * watches for CROWDED_REST_US, because the system favours threads that sleep over those that burn their share. With more threads than
 * cores nobody watches at all. No wake-up is lost: a worker counts itself in `sleepers` before its last look at the word, the caller
 * opens a generation before it looks at `sleepers`, and both then meet at the lock; a caller sets "caller asleep" before its last look.
 *
 * Iterations are handed out in runs of neighbours, 1 / (RUNS_PER_WORKER * workers) of what is left at a time: long runs first, for few
 * meetings and long reads in one direction, single ones at the end, so that all workers end together. */
#define _GNU_SOURCE /* sched_getcpu */
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/log.h"
#include "base/memory.h"

enum { SPIN_US = 50, ALONE_US = 5, CROWDED_US = 100, CROWDED_REST_US = 200000, PAUSES_PER_LOOK = 16 };
enum { RUNS_PER_WORKER = 4, CACHE_LINE_BYTES = 64 };

#define STATE_OPEN UINT64_C(1)
#define STATE_CALLER_ASLEEP UINT64_C(2)
#define STATE_LEAVING UINT64_C(4)
#define STATE_ACTIVE UINT64_C(8) /* times the number of workers inside */
#define STATE_ACTIVE_MASK UINT64_C(0xFFFFFFF8)
#define STATE_GENERATION (UINT64_C(1) << 32)

/* The iterations of one node, and who takes them first. A line of its own, since everybody writes there. */
typedef struct pool_part {
    _Alignas(CACHE_LINE_BYTES) _Atomic int64_t next; /* first iteration that nobody has */
    int64_t end;
    int workers; /* of this node */
} pool_part;

struct pool {
    _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t state;
    _Alignas(CACHE_LINE_BYTES) atomic_int sleepers; /* workers that sleep or are about to; changed under the lock */
    bool spins;         /* no more threads than cores */
    _Atomic int64_t crowded_until; /* ns of the clock: nobody watches before */
    int threads;
    pthread_t *handles; /* [threads - 1] */
    topology where;
    pool_part *parts;   /* [where.node_count] */
    pool_task task;     /* the loop: written by the caller while nobody is inside */
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
};

typedef struct pool_worker {
    pool *p;
    int index, node;
} pool_worker;

/* ---- waiting ---- */

/* Tells the processor that this is a waiting loop; C has no word for it. */
static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Whether there is something for a worker that has seen a generation. */
static bool is_news(uint64_t state, uint64_t seen)
{
    return state / STATE_GENERATION != seen;
}

static bool is_quiet(uint64_t state)
{
    return (state & STATE_ACTIVE_MASK) == 0;
}

static bool is_over(uint64_t state, bool everybody, uint64_t seen)
{
    return everybody ? is_quiet(state) : is_news(state, seen);
}

/* Watches the word for a while: until a new generation, or, with everybody, until nobody is inside. */
static uint64_t watch(pool *p, bool everybody, uint64_t seen)
{
    uint64_t s = atomic_load_explicit(&p->state, memory_order_acquire);
    if (!p->spins || is_over(s, everybody, seen))
        return s;
    int64_t start = now_ns(), before = start, now = start;
    if (start < atomic_load_explicit(&p->crowded_until, memory_order_relaxed))
        return s;
    for (; now - start < SPIN_US * 1000 && !is_over(s, everybody, seen); before = now) {
        if (now - start > ALONE_US * 1000)
            sched_yield();
        for (int i = 0; i < PAUSES_PER_LOOK; i++)
            pause_briefly();
        s = atomic_load_explicit(&p->state, memory_order_acquire);
        now = now_ns();
        if (now - before > CROWDED_US * 1000)
            atomic_store_explicit(&p->crowded_until, now + CROWDED_REST_US * 1000, memory_order_relaxed);
    }
    return s;
}

static uint64_t wait_for_news(pool *p, uint64_t seen)
{
    uint64_t s = watch(p, false, seen);
    if (is_news(s, seen))
        return s;
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (s = atomic_load(&p->state), !is_news(s, seen))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
    return s;
}

static void wait_until_quiet(pool *p)
{
    if (is_quiet(watch(p, true, 0)))
        return;
    atomic_fetch_or(&p->state, STATE_CALLER_ASLEEP);
    pthread_mutex_lock(&p->lock);
    while (!is_quiet(atomic_load(&p->state)))
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* At most `wanted` of those that sleep. */
static void wake_workers(pool *p, int64_t wanted)
{
    int sleepers = atomic_load(&p->sleepers);
    if (sleepers == 0)
        return;
    pthread_mutex_lock(&p->lock);
    if (wanted >= sleepers)
        pthread_cond_broadcast(&p->work);
    else
        for (int64_t i = 0; i < wanted; i++)
            pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

/* ---- working ---- */

/* Takes the next run of a part; its length, 0 when the part is used up. */
static int64_t take_run(pool_part *part, int64_t *first)
{
    int64_t next = atomic_load_explicit(&part->next, memory_order_relaxed), count;
    do {
        int64_t left = part->end - next;
        if (left <= 0)
            return 0;
        count = left / (RUNS_PER_WORKER * part->workers);
        count = count > 0 ? count : 1;
    } while (!atomic_compare_exchange_weak_explicit(&part->next, &next, next + count, memory_order_relaxed, memory_order_relaxed));
    *first = next;
    return count;
}

/* The node's own iterations first, then what the others have left. */
static void work_through(pool *p, int node, int worker)
{
    int nodes = p->where.node_count;
    for (int n = 0; n < nodes; n++) {
        pool_part *part = &p->parts[(node + n) % nodes];
        int64_t first, count;
        while ((count = take_run(part, &first)) > 0)
            for (int64_t i = 0; i < count; i++)
                p->task(p->context, (int)(first + i), worker);
    }
}

/* Enters the generation of s unless it is closed, or has been by now; a failed exchange renews s. */
static bool enter(pool *p, uint64_t s)
{
    uint64_t generation = s / STATE_GENERATION;
    while ((s & STATE_OPEN) && s / STATE_GENERATION == generation)
        if (atomic_compare_exchange_weak(&p->state, &s, s + STATE_ACTIVE))
            return true;
    return false;
}

static void leave(pool *p)
{
    uint64_t before = atomic_fetch_sub(&p->state, STATE_ACTIVE);
    if ((before & STATE_CALLER_ASLEEP) && (before & STATE_ACTIVE_MASK) == STATE_ACTIVE) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->done);
        pthread_mutex_unlock(&p->lock);
    }
}

static void *worker_main(void *argument)
{
    pool_worker me = *(pool_worker *)argument;
    pool *p = me.p;
    const topology_node *home = &p->where.nodes[me.node];
    free(argument);
    if (p->where.node_count > 1 && !thread_bind(home->cpus, home->count))
        log_warning("cannot bind thread %d to the CPUs of memory node %d; it may read memory of other nodes", me.index, home->id);
    for (uint64_t seen = 0;;) {
        uint64_t s = wait_for_news(p, seen);
        if (s & STATE_LEAVING)
            return NULL;
        seen = s / STATE_GENERATION;
        if (enter(p, s)) {
            work_through(p, me.node, me.index);
            leave(p);
        }
    }
}

void pool_run(pool *p, int count, pool_task task, void *context)
{
    if (count <= 1 || p->threads == 1) {
        for (int i = 0; i < count; i++)
            task(context, i, 0);
        return;
    }
    int nodes = p->where.node_count;
    p->task = task;
    p->context = context;
    for (int n = 0; n < nodes; n++) {
        int64_t first;
        pool_share(p, n, count, &first, &p->parts[n].end);
        atomic_store_explicit(&p->parts[n].next, first, memory_order_relaxed);
    }
    uint64_t generation = atomic_load_explicit(&p->state, memory_order_relaxed) / STATE_GENERATION + 1;
    atomic_store(&p->state, generation * STATE_GENERATION | STATE_OPEN);
    wake_workers(p, count - 1);
    work_through(p, nodes > 1 ? topology_node_of(&p->where, sched_getcpu()) : 0, 0);
    if (!is_quiet(atomic_fetch_and(&p->state, ~STATE_OPEN)))
        wait_until_quiet(p);
}

/* ---- creation ---- */

/* Worker i of n stands where CPU i / n of all CPUs is, node after node; the caller is worker 0, and goes where the system puts it. */
static int node_of_worker(const pool *p, int index, int threads)
{
    int64_t cpu = (int64_t)index * p->where.cpu_count / threads;
    int node = 0;
    for (; cpu >= p->where.nodes[node].count; node++)
        cpu -= p->where.nodes[node].count;
    return node;
}

void pool_share(const pool *p, int node, int64_t count, int64_t *first, int64_t *end)
{
    int64_t before = 0, all = 0;
    for (int n = 0; n < p->where.node_count; n++) {
        all += p->parts[n].workers;
        before += n < node ? p->parts[n].workers : 0;
    }
    *first = count / all * before + count % all * before / all;
    before += p->parts[node].workers;
    *end = count / all * before + count % all * before / all;
}

/* A worker takes no signals but those of its own faults: the others belong to the caller, who may block them for a moment to
 * look at what they changed. */
static bool start_worker(pool *p, int index, int node)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    pool_worker *w = mem_alloc(1, sizeof *w);
    sigset_t blocked, before;
    *w = (pool_worker){p, index, node};
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    bool ok = pthread_create(&p->handles[index - 1], NULL, worker_main, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!ok)
        free(w);
    return ok;
}

/* Memory for structures with parts on lines of their own. */
static void *line_alloc(size_t bytes)
{
    void *memory = mem_try_alloc_aligned(bytes, CACHE_LINE_BYTES);
    return memory ? memory : mem_alloc(SIZE_MAX, 1); /* which says that there is no memory */
}

pool *pool_create_on(int threads, const topology *nodes, error *err)
{
    pool *p = line_alloc(sizeof *p);
    p->threads = 1;
    p->spins = threads <= machine_cores();
    p->handles = mem_alloc((size_t)threads, sizeof *p->handles);
    p->parts = line_alloc((size_t)nodes->node_count * sizeof *p->parts);
    topology_copy(nodes, &p->where);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < threads; i++)
        p->parts[node_of_worker(p, i, threads)].workers++;
    for (int i = 1; i < threads; i++) {
        if (!start_worker(p, i, node_of_worker(p, i, threads))) {
            pool_destroy(p);
            error_set(err, ERROR_RUNTIME, "cannot start thread %d of %d; use fewer with --threads", i + 1, threads);
            return NULL;
        }
        p->threads++;
    }
    return p;
}

pool *pool_create(int threads, error *err)
{
    topology machine;
    topology_of_machine(&machine);
    pool *p = pool_create_on(threads, &machine, err);
    topology_free(&machine);
    return p;
}

void pool_destroy(pool *p)
{
    if (!p)
        return;
    uint64_t generation = atomic_load(&p->state) / STATE_GENERATION + 1;
    atomic_store(&p->state, generation * STATE_GENERATION | STATE_LEAVING);
    wake_workers(p, p->threads);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->handles[i - 1], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    topology_free(&p->where);
    free(p->parts);
    free(p->handles);
    free(p);
}

int pool_threads(const pool *p)
{
    return p->threads;
}

const topology *pool_nodes(const pool *p)
{
    return &p->where;
}
