#define _GNU_SOURCE /* sched_getaffinity */
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/memory.h"

struct pool {
    int threads;
    pthread_t *handles; /* [threads - 1] */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    unsigned generation; /* grows by one with every pool_run; guarded by lock */
    int busy;            /* workers that have not finished this generation; guarded by lock */
    bool leaving;
    pool_task task;
    void *context;
    int count;
    atomic_int next; /* next iteration to hand out */
};

typedef struct pool_worker {
    pool *p;
    int index;
} pool_worker;

static void work_through(pool *p, int worker)
{
    for (;;) {
        int i = atomic_fetch_add(&p->next, 1);
        if (i >= p->count)
            return;
        p->task(p->context, i, worker);
    }
}

static void *worker_main(void *argument)
{
    pool_worker me = *(pool_worker *)argument;
    free(argument);
    pool *p = me.p;
    unsigned seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->generation == seen && !p->leaving)
            pthread_cond_wait(&p->work, &p->lock);
        if (p->leaving)
            break;
        seen = p->generation;
        pthread_mutex_unlock(&p->lock);
        work_through(p, me.index);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0)
            pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* A worker takes no signals but those of its own faults: the others belong to the caller, who may block them for a moment to
 * look at what they changed. */
static bool start_worker(pool *p, int index)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    pool_worker *w = mem_alloc(1, sizeof *w);
    sigset_t blocked, before;
    *w = (pool_worker){p, index};
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

pool *pool_create(int threads, error *err)
{
    pool *p = mem_alloc(1, sizeof *p);
    p->threads = 1;
    p->handles = mem_alloc((size_t)threads, sizeof *p->handles);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 1; i < threads; i++) {
        if (!start_worker(p, i)) {
            pool_destroy(p);
            error_set(err, ERROR_RUNTIME, "cannot start thread %d of %d; use fewer with --threads", i + 1, threads);
            return NULL;
        }
        p->threads++;
    }
    return p;
}

void pool_destroy(pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->leaving = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->handles[i - 1], NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p->handles);
    free(p);
}

int pool_threads(const pool *p)
{
    return p->threads;
}

void pool_run(pool *p, int count, pool_task task, void *context)
{
    if (count <= 1 || p->threads == 1) {
        for (int i = 0; i < count; i++)
            task(context, i, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->task = task;
    p->context = context;
    p->count = count;
    atomic_store(&p->next, 0);
    p->busy = p->threads - 1;
    p->generation++;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    work_through(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->busy > 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* The kernel refuses a set smaller than its own, so the set grows until it is taken. */
int machine_cores(void)
{
    enum { MOST_CPUS = 1 << 20 };
    int cores = 0;
    for (size_t cpus = CPU_SETSIZE; cores == 0 && cpus <= MOST_CPUS; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        if (set && sched_getaffinity(0, bytes, set) == 0)
            cores = CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
    }
    return cores > 0 ? cores : 1;
}
