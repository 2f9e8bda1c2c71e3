/* A pool of workers for loops whose iterations are independent.
 *
 * pool_run(p, n, f, c) calls f(c, i, worker) once for every i in 0..n-1, on any of the threads, and returns when all
 * are done. Which worker runs which i is not fixed, so f must give the same result on every worker; `worker` (0 ..
 * pool_threads-1) is only for scratch memory. The caller takes part as worker 0. One pool_run at a time. The other
 * workers take no signals, those of their own faults aside.
 *
 * Where memory has several nodes, workers are bound to the CPUs of one node each, and node k of n takes iterations from
 * its own part of 0..n-1 first (pool_share). Data that is read by iteration i is best kept on the node of i. */
#ifndef BASE_THREADS_H
#define BASE_THREADS_H

#include <stdint.h>

#include "base/error.h"
#include "base/topology.h"

typedef struct pool pool;
typedef void (*pool_task)(void *context, int index, int worker);

pool *pool_create(int threads, error *err); /* threads >= 1, the caller included */
/* The same on nodes that are not this machine's own; they are copied. */
pool *pool_create_on(int threads, const topology *nodes, error *err);
void pool_destroy(pool *p);
int pool_threads(const pool *p);
const topology *pool_nodes(const pool *p);
void pool_run(pool *p, int count, pool_task task, void *context);

/* The part *first .. *end - 1 of 0 .. count - 1 that belongs to a node: in proportion to its workers, in the order of the nodes. */
void pool_share(const pool *p, int node, int64_t count, int64_t *first, int64_t *end);

#endif
