/* The pool of workers and the nodes of memory it follows, those of made-up machines included. */
#define _GNU_SOURCE /* sched_getaffinity, sched_getcpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/threads.h"

enum { MOST_THREADS = 8 };

/* ---- loops ---- */

typedef struct tally {
    int count;
    int hits[1000];      /* plain: each is written by one thread in a loop, which the end of the loop must order before the next */
    atomic_int inside;   /* tasks running now */
    int threads;
    atomic_bool wrong;   /* an index or a worker out of range */
} tally;

static void count_hit(void *context, int index, int worker)
{
    tally *t = context;
    atomic_fetch_add(&t->inside, 1);
    if (index < 0 || index >= t->count || worker < 0 || worker >= t->threads)
        atomic_store(&t->wrong, true);
    else
        t->hits[index]++;
    atomic_fetch_sub(&t->inside, 1);
}

/* One loop; when it returns, every index was run once and nobody is still running. */
static void check_loop(pool *p, tally *t, int count)
{
    t->count = count;
    t->threads = pool_threads(p);
    memset(t->hits, 0, (size_t)count * sizeof *t->hits);
    pool_run(p, count, count_hit, t);
    assert_int_equal(atomic_load(&t->inside), 0);
    assert_false(atomic_load(&t->wrong));
    for (int i = 0; i < count; i++)
        if (t->hits[i] != 1)
            fail_msg("%d threads, iteration %d of %d: run %d times", t->threads, i, count, t->hits[i]);
}

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void test_many_short_loops(void **state)
{
    (void)state;
    static const int counts[] = {2, 3, 1, 7, 0, 12, 16, 64, 257, 1000};
    error err = {0};
    tally t = {0};
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        pool *p = pool_create(threads, &err);
        assert_non_null(p);
        assert_int_equal(pool_threads(p), threads);
        for (int round = 0; round < 300; round++)
            check_loop(p, &t, counts[round % 10]);
        pool_destroy(p);
    }
}

/* Pauses around the time that waiting threads watch before they sleep: some loops meet workers that watch, some that are about to
 * sleep, some that sleep. */
static void test_loops_after_pauses(void **state)
{
    (void)state;
    static const long pauses[] = {0, 10, 40, 50, 60, 100, 3000};
    error err = {0};
    tally t = {0};
    for (int threads = 2; threads <= MOST_THREADS; threads *= 2) {
        pool *p = pool_create(threads, &err);
        assert_non_null(p);
        for (int round = 0; round < 140; round++) {
            sleep_us(pauses[round % 7]);
            check_loop(p, &t, 5 + round);
        }
        pool_destroy(p);
    }
}

static void sleep_long(void *context, int index, int worker)
{
    (void)worker;
    if (index == *(const int *)context)
        sleep_us(2000);
}

/* The caller has nothing left to do and has gone to sleep when the last worker leaves, or the other way round. */
static void test_one_long_iteration(void **state)
{
    (void)state;
    error err = {0};
    tally t = {0};
    for (int threads = 2; threads <= 4; threads++) {
        pool *p = pool_create(threads, &err);
        assert_non_null(p);
        for (int slow = 0; slow < 12; slow++) {
            pool_run(p, 12, sleep_long, &slow);
            check_loop(p, &t, 12);
        }
        pool_destroy(p);
    }
}

/* Workers that watch, that sleep, that have only just started. */
static void test_destroy_at_any_time(void **state)
{
    (void)state;
    static const long pauses[] = {0, 5, 50, 100, 1000};
    error err = {0};
    tally t = {0};
    for (int round = 0; round < 60; round++) {
        pool *p = pool_create(1 + round % MOST_THREADS, &err);
        assert_non_null(p);
        if (round % 3)
            check_loop(p, &t, 40);
        sleep_us(pauses[round % 5]);
        pool_destroy(p);
    }
    pool_destroy(NULL);
}

/* ---- nodes ---- */

static void write_file(const char *root, const char *name, const char *content)
{
    text path = {0};
    text_add_format(&path, "%s/%s", root, name);
    FILE *f = fopen(path.data, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
    text_free(&path);
}

static void make_node(const char *root, const char *node, const char *cpus)
{
    text path = {0};
    text_add_format(&path, "%s/%s", root, node);
    assert_int_equal(mkdir(path.data, 0700), 0);
    if (cpus)
        write_file(path.data, "cpulist", cpus);
    text_free(&path);
}

static void remove_tree(const char *root)
{
    text command = {0};
    text_add_format(&command, "rm -r '%s'", root);
    assert_int_equal(system(command.data), 0);
    text_free(&command);
}

static void test_nodes_are_read(void **state)
{
    (void)state;
    static const int allowed[] = {0, 1, 2, 3, 8, 10};
    char root[] = "/tmp/drawbridge-nodes-XXXXXX";
    error err = {0};
    topology t;
    assert_non_null(mkdtemp(root));
    make_node(root, "node10", "10-11\n");
    make_node(root, "node2", "2-5,8,9\n");
    make_node(root, "node0", "0,1\n");
    make_node(root, "node1", "\n");       /* memory without CPUs */
    make_node(root, "node3", "12-15\n");  /* not ours */
    make_node(root, "node4x", NULL);      /* not a node */
    make_node(root, "power", NULL);
    write_file(root, "online", "0-3,10\n");
    assert_true(topology_read(root, allowed, 6, &t, &err));
    assert_int_equal(t.node_count, 3);
    assert_int_equal(t.cpu_count, 6);
    static const int ids[] = {0, 2, 10}, sizes[] = {2, 3, 1}, cpus[] = {0, 1, 2, 3, 8, 10};
    for (int n = 0, at = 0; n < 3; n++) {
        assert_int_equal(t.nodes[n].id, ids[n]);
        assert_int_equal(t.nodes[n].count, sizes[n]);
        for (int i = 0; i < sizes[n]; i++, at++) {
            assert_int_equal(t.nodes[n].cpus[i], cpus[at]);
            assert_int_equal(topology_node_of(&t, cpus[at]), n);
        }
    }
    assert_int_equal(topology_node_of(&t, 12), 0);
    topology_free(&t);
    remove_tree(root);
}

/* Whatever order the directory has. */
static void test_nodes_are_in_order(void **state)
{
    (void)state;
    enum { NODES = 24 };
    char root[] = "/tmp/drawbridge-nodes-XXXXXX", node[16], cpu[16];
    int allowed[NODES];
    error err = {0};
    topology t;
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < NODES; i++) {
        int n = i * 7 % NODES;
        snprintf(node, sizeof node, "node%d", n);
        snprintf(cpu, sizeof cpu, "%d\n", n);
        make_node(root, node, cpu);
        allowed[i] = i;
    }
    assert_true(topology_read(root, allowed, NODES, &t, &err));
    assert_int_equal(t.node_count, NODES);
    for (int i = 0; i < NODES; i++)
        assert_int_equal(t.nodes[i].id, i);
    topology_free(&t);
    remove_tree(root);
}

static void test_bad_nodes_are_refused(void **state)
{
    (void)state;
    static const int allowed[] = {0, 1};
    static const struct {
        const char *list, *words;
    } bad[] = {
        {"0-\n", "expected a list of CPUs"}, {"0 1\n", "expected a list of CPUs"}, {"-1\n", "expected a list of CPUs"},
        {"0-99999999999999999999\n", "expected a list of CPUs"}, {"0,x\n", "expected a list of CPUs"},
        {"0\n", "of the 2 CPUs that this process may use 1 are in a node"},
    };
    error err = {0};
    topology t;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char root[] = "/tmp/drawbridge-nodes-XXXXXX";
        assert_non_null(mkdtemp(root));
        make_node(root, "node0", bad[i].list);
        assert_false(topology_read(root, allowed, 2, &t, &err));
        if (!strstr(err.text, bad[i].words))
            fail_msg("\"%s\": %s", bad[i].list, err.text);
        remove_tree(root);
    }
    char root[] = "/tmp/drawbridge-nodes-XXXXXX";
    assert_non_null(mkdtemp(root));
    make_node(root, "node0", NULL); /* without cpulist */
    assert_false(topology_read(root, allowed, 2, &t, &err));
    remove_tree(root);
}

/* A kernel that knows nothing of nodes. */
static void test_no_nodes_are_one(void **state)
{
    (void)state;
    static const int allowed[] = {1, 5};
    error err = {0};
    topology t;
    assert_true(topology_read("/tmp/drawbridge-no-such-directory", allowed, 2, &t, &err));
    assert_int_equal(t.node_count, 1);
    assert_int_equal(t.nodes[0].count, 2);
    assert_int_equal(t.nodes[0].cpus[1], 5);
    topology_free(&t);
    topology_of_machine(&t);
    assert_true(t.node_count >= 1);
    assert_int_equal(t.cpu_count, machine_cores());
    topology_free(&t);
}

/* A machine of several nodes made of the CPUs that there are; with fewer CPUs than nodes some are in two. */
static topology nodes_of_own_cpus(int nodes)
{
    int count;
    int *cpus = machine_cpus(&count);
    topology t = {.nodes = mem_alloc((size_t)nodes, sizeof *t.nodes), .node_count = nodes, .cpu_count = nodes};
    for (int n = 0; n < nodes; n++)
        t.nodes[n] = (topology_node){.id = n, .cpus = mem_copy(&cpus[n % count], sizeof *cpus), .count = 1};
    free(cpus);
    return t;
}

static void test_shares_follow_workers(void **state)
{
    (void)state;
    /* 4 + 2 CPUs: of 3 threads two stand on the first node. */
    int cpus;
    int *own = machine_cpus(&cpus), cpu = own[0];
    free(own);
    topology_node two[] = {{.id = 0, .cpus = (int[]){cpu, cpu, cpu, cpu}, .count = 4}, {.id = 1, .cpus = (int[]){cpu, cpu}, .count = 2}};
    topology t = {.nodes = two, .node_count = 2, .cpu_count = 6};
    static const struct {
        int threads;
        int64_t count, middle;
    } cases[] = {{1, 90, 90}, {2, 90, 90}, {3, 90, 60}, {6, 90, 60}, {12, 90, 60}, {3, 1, 0}, {3, 0, 0},
                 {3, INT64_C(3) << 60, INT64_C(2) << 60}};
    error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pool *p = pool_create_on(cases[i].threads, &t, &err);
        assert_non_null(p);
        int64_t first, middle, after, end;
        pool_share(p, 0, cases[i].count, &first, &middle);
        pool_share(p, 1, cases[i].count, &after, &end);
        assert_true(first == 0 && middle == cases[i].middle && after == middle && end == cases[i].count);
        pool_destroy(p);
    }
}

static void test_loops_on_nodes(void **state)
{
    (void)state;
    error err = {0};
    tally t = {0};
    for (int nodes = 2; nodes <= 3; nodes++) {
        topology where = nodes_of_own_cpus(nodes);
        for (int threads = 1; threads <= 6; threads++) {
            pool *p = pool_create_on(threads, &where, &err);
            assert_non_null(p);
            assert_int_equal(pool_nodes(p)->node_count, nodes);
            for (int round = 0; round < 60; round++)
                check_loop(p, &t, round * 3);
            pool_destroy(p);
        }
        topology_free(&where);
    }
}

typedef struct where_ran {
    atomic_bool astray;
    atomic_int seen[2];
    const topology *t;
} where_ran;

static void note_affinity(where_ran *w, int node)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1 || !CPU_ISSET((size_t)w->t->nodes[node].cpus[0], &set))
        atomic_store(&w->astray, true);
    atomic_fetch_add(&w->seen[node], 1);
}

/* Workers 1..3 of 4 on 2 nodes stand on 0, 1, 1. */
static void look_around(void *context, int index, int worker)
{
    (void)index;
    if (worker > 0)
        note_affinity(context, worker / 2);
    sleep_us(200);
}

static void look_around_node(void *context, int node)
{
    note_affinity(context, node);
}

static void test_workers_stay_on_their_node(void **state)
{
    (void)state;
    error err = {0};
    cpu_set_t before, after;
    topology where = nodes_of_own_cpus(2);
    where_ran w = {.t = &where};
    sched_getaffinity(0, sizeof before, &before);
    pool *p = pool_create_on(4, &where, &err);
    assert_non_null(p);
    for (int round = 0; round < 50 && (round < 3 || !atomic_load(&w.seen[0]) || !atomic_load(&w.seen[1])); round++)
        pool_run(p, 40, look_around, &w);
    assert_false(atomic_load(&w.astray));
    assert_true(atomic_load(&w.seen[0]) > 0 && atomic_load(&w.seen[1]) > 0);
    pool_destroy(p);
    w = (where_ran){.t = &where};
    assert_true(topology_run(&where, look_around_node, &w, &err));
    assert_false(atomic_load(&w.astray));
    assert_int_equal(atomic_load(&w.seen[0]), 1);
    assert_int_equal(atomic_load(&w.seen[1]), 1);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after)); /* the caller's thread is not ours to bind */
    topology_free(&where);
}

typedef struct split_task {
    atomic_int first_of[4]; /* the first index of each worker, plus one */
    atomic_int arrived;
} split_task;

/* Everybody holds the first iteration it got until all four have one. */
static void note_first(void *context, int index, int worker)
{
    split_task *t = context;
    if (atomic_load(&t->first_of[worker]) > 0)
        return;
    atomic_store(&t->first_of[worker], index + 1);
    atomic_fetch_add(&t->arrived, 1);
    while (atomic_load(&t->arrived) < 4)
        sleep_us(50);
}

static void test_own_part_comes_first(void **state)
{
    (void)state;
    error err = {0};
    topology where = nodes_of_own_cpus(2);
    pool *p = pool_create_on(4, &where, &err);
    assert_non_null(p);
    for (int round = 0; round < 10; round++) {
        split_task t = {0};
        pool_run(p, 400, note_first, &t);
        assert_in_range(atomic_load(&t.first_of[1]), 1, 200);
        assert_in_range(atomic_load(&t.first_of[2]), 201, 400);
        assert_in_range(atomic_load(&t.first_of[3]), 201, 400);
    }
    pool_destroy(p);
    topology_free(&where);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_short_loops),
        cmocka_unit_test(test_loops_after_pauses),
        cmocka_unit_test(test_one_long_iteration),
        cmocka_unit_test(test_destroy_at_any_time),
        cmocka_unit_test(test_nodes_are_read),
        cmocka_unit_test(test_nodes_are_in_order),
        cmocka_unit_test(test_bad_nodes_are_refused),
        cmocka_unit_test(test_no_nodes_are_one),
        cmocka_unit_test(test_shares_follow_workers),
        cmocka_unit_test(test_loops_on_nodes),
        cmocka_unit_test(test_workers_stay_on_their_node),
        cmocka_unit_test(test_own_part_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
