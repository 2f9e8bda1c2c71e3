/* What a parallel loop costs beside its work.
 *
 *   bench_threads [THREADS [RUNS]]
 *
 * Loops whose iterations do nothing, and loops of short ones, one behind the other or with pauses in which the caller alone is busy, as
 * between the operations of a step. Times are medians, so that other programs on the machine disturb little. The last column is
 * processor time of all threads over elapsed time: what waiting burns. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "base/threads.h"

typedef struct loop_case {
    int count;       /* iterations */
    double task_us;  /* of one */
    double pause_us; /* between loops */
} loop_case;

static const loop_case CASES[] = {
    {2, 0, 0},  {16, 0, 0}, {256, 0, 0}, {12, 2, 0},  {12, 2, 5},  {12, 2, 20}, {12, 2, 40}, {12, 2, 100},
    {12, 2, 1000}, {12, 20, 0}, {12, 20, 20}, {12, 20, 100},
};

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void busy(double us)
{
    double end = seconds_of(CLOCK_MONOTONIC) + us * 1e-6;
    while (us > 0 && seconds_of(CLOCK_MONOTONIC) < end)
        ;
}

static void task(void *context, int index, int worker)
{
    (void)index;
    (void)worker;
    busy(((const loop_case *)context)->task_us);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(pool *p, const loop_case *c, int runs, double *seconds)
{
    double wall = seconds_of(CLOCK_MONOTONIC), cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < runs; i++) {
        double start = seconds_of(CLOCK_MONOTONIC);
        pool_run(p, c->count, task, (void *)(uintptr_t)c);
        seconds[i] = seconds_of(CLOCK_MONOTONIC) - start;
        busy(c->pause_us);
    }
    wall = seconds_of(CLOCK_MONOTONIC) - wall;
    cpu = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    qsort(seconds, (size_t)runs, sizeof *seconds, compare);
    double sum = 0, ideal = (c->count + pool_threads(p) - 1) / pool_threads(p) * c->task_us;
    for (int i = 0; i < runs; i++)
        sum += seconds[i];
    printf("%7d %8.0f %8.0f %8.0f %10.2f %10.2f %10.2f %8.2f\n", c->count, c->task_us, c->pause_us, ideal, seconds[runs / 2] * 1e6,
           seconds[runs * 9 / 10] * 1e6, sum / runs * 1e6, cpu / wall);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : machine_cores(), runs = argc > 2 ? atoi(argv[2]) : 20000;
    error err = {0};
    pool *p = threads > 0 && runs > 0 ? pool_create(threads, &err) : NULL;
    if (!p) {
        fprintf(stderr, "%s\n", err.text[0] ? err.text : "usage: bench_threads [THREADS [RUNS]]");
        return 2;
    }
    printf("%d threads, %d cores, times in microseconds\n%7s %8s %8s %8s %10s %10s %10s %8s\n", threads, machine_cores(), "tasks", "task",
           "pause", "ideal", "median", "90%", "mean", "cpu");
    double *seconds = mem_alloc((size_t)runs, sizeof *seconds);
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        measure(p, &CASES[i], CASES[i].task_us + CASES[i].pause_us > 100 ? runs / 20 + 1 : runs, seconds);
    free(seconds);
    pool_destroy(p);
    return 0;
}
