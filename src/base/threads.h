/* A pool of workers for loops whose iterations are independent.
 *
 * pool_run(p, n, f, c) calls f(c, i, worker) once for every i in 0..n-1, on any of the threads, and returns when all
 * are done. Which worker runs which i is not fixed, so f must give the same result on every worker; `worker` (0 ..
 * pool_threads-1) is only for scratch memory. The caller takes part as worker 0. One pool_run at a time. The other
 * workers take no signals, those of their own faults aside. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include "base/error.h"

typedef struct pool pool;
typedef void (*pool_task)(void *context, int index, int worker);

pool *pool_create(int threads, error *err); /* threads >= 1, the caller included */
void pool_destroy(pool *p);
int pool_threads(const pool *p);
void pool_run(pool *p, int count, pool_task task, void *context);

int machine_cores(void); /* cores this process may use */

#endif
