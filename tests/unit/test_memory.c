/* Large blocks stay lazy, and the data of a checkpoint is read by the node that will use it. madvise, as defined here, takes the place
 * of the C library's in this program and notes who asked for what. */
#define _GNU_SOURCE /* mincore, madvise, sched_getaffinity, posix_fadvise */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sanitize.h"
#include "base/text.h"
#include "formats/safetensors.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20, MB = 1 << 20 };

typedef struct hint {
    const uint8_t *first;
    size_t bytes;
    int advice;
    int cpu; /* the only one its thread may use; -1: several */
} hint;

static pthread_mutex_t hint_lock = PTHREAD_MUTEX_INITIALIZER;
static hint hints[4096];
static int hint_count;

int madvise(void *first, size_t bytes, int advice)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    int cpu = -1;
    for (int i = 0; CPU_COUNT(&set) == 1 && i < CPU_SETSIZE; i++)
        cpu = CPU_ISSET((size_t)i, &set) ? i : cpu;
    pthread_mutex_lock(&hint_lock);
    if (hint_count < 4096)
        hints[hint_count++] = (hint){first, bytes, advice, cpu};
    pthread_mutex_unlock(&hint_lock);
    return (int)syscall(SYS_madvise, first, bytes, advice);
}

/* Bytes of a range that are in memory. */
static size_t resident(const void *first, size_t bytes)
{
    unsigned char *pages = mem_alloc((bytes + PAGE - 1) / PAGE, 1);
    assert_int_equal(mincore((void *)(uintptr_t)first, bytes, pages), 0);
    size_t sum = 0;
    for (size_t i = 0; i < (bytes + PAGE - 1) / PAGE; i++)
        sum += pages[i] & 1 ? PAGE : 0;
    free(pages);
    return sum;
}

static void test_large_blocks_stay_lazy(void **state)
{
    (void)state;
    enum { BYTES = 100 * MB + 12345 };
    hint_count = 0;
    char *p = mem_try_alloc_lazy(BYTES);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % HUGE_PAGE, 0);
    assert_int_equal(hint_count, 1);
    assert_true(hints[0].advice == MADV_HUGEPAGE && (const char *)hints[0].first == p && hints[0].bytes == BYTES);
    assert_int_equal(resident(p, BYTES), 0);
    assert_int_equal(p[BYTES / 2], 0);
    p[0] = p[BYTES / 2] = p[BYTES - 1] = 1;
    assert_in_range(resident(p, BYTES), 3 * PAGE, 3 * HUGE_PAGE);
#ifdef BASE_ADDRESS_SANITIZER
    assert_true(is_forbidden(p - 1) && is_forbidden(p + BYTES));
#endif
    mem_free_lazy(p);
}

/* Many blocks are sized for the longest step and used for one row. */
static void test_small_blocks_have_small_pages(void **state)
{
    (void)state;
    hint_count = 0;
    char *p = mem_try_alloc_lazy(16 * MB - 1);
    assert_non_null(p);
    assert_int_equal(hint_count, 0);
    mem_free_lazy(p);
    p = mem_try_alloc_lazy(16 * MB);
    assert_int_equal(hint_count, 1);
    mem_free_lazy(p);
    assert_null(mem_try_alloc_lazy(SIZE_MAX));
    assert_null(mem_try_alloc_lazy(SIZE_MAX - HUGE_PAGE));
    assert_null(mem_try_alloc_lazy(PTRDIFF_MAX));
}

/* A file of two matrices behind each other, one matrix, and tensors smaller than a page. */
static checkpoint *write_checkpoint(text *path)
{
    enum { BYTES = 4 * MB };
    error err = {0};
    char name[] = "/tmp/drawbridge-memory-XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    close(fd);
    text_clear(path);
    text_add_text(path, name);
    uint8_t *bytes = mem_alloc(BYTES, 1);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 7);
    safetensors_writer *w = safetensors_writer_open(name, &err);
    assert_non_null(w);
    assert_true(safetensors_writer_declare(w, "experts", DTYPE_U8, 3, (int64_t[]){2, 512, 4096}, &err));
    assert_true(safetensors_writer_declare(w, "matrix", DTYPE_U8, 2, (int64_t[]){1024, 4096}, &err));
    assert_true(safetensors_writer_declare(w, "small", DTYPE_U8, 1, (int64_t[]){10}, &err));
    assert_true(safetensors_writer_declare(w, "none", DTYPE_U8, 3, (int64_t[]){0, 4, 4}, &err));
    assert_true(safetensors_writer_data(w, bytes, BYTES, &err) && safetensors_writer_data(w, bytes, BYTES, &err));
    assert_true(safetensors_writer_data(w, bytes, 10, &err) && safetensors_writer_commit(w, &err));
    free(bytes);
    hint_count = 0;
    checkpoint *c = checkpoint_open(name, &err);
    assert_non_null(c);
    assert_int_equal(hint_count, 1);
    assert_true(hints[0].advice == MADV_HUGEPAGE && hints[0].bytes > 2 * BYTES);
    return c;
}

/* Bytes of a range that were asked for by a thread on a CPU. */
static size_t asked_by(const uint8_t *first, size_t bytes, int cpu)
{
    size_t sum = 0;
    for (int i = 0; i < hint_count; i++) {
        const uint8_t *from = hints[i].first > first ? hints[i].first : first;
        const uint8_t *end = hints[i].first + hints[i].bytes < first + bytes ? hints[i].first + hints[i].bytes : first + bytes;
        if (hints[i].advice == MADV_WILLNEED && hints[i].cpu == cpu && from < end)
            sum += (size_t)(end - from);
    }
    return sum;
}

/* The first half of a matrix is the first node's and no other's, the second half the second's; a page on the border may be both's. */
static void check_halves(const uint8_t *matrix, size_t bytes, const int cpus[2])
{
    for (int half = 0; half < 2; half++) {
        const uint8_t *first = matrix + (size_t)half * (bytes / 2);
        assert_in_range(asked_by(first, bytes / 2, cpus[half]), bytes / 2, bytes / 2 + 2 * PAGE);
        if (cpus[0] != cpus[1])
            assert_in_range(asked_by(first, bytes / 2, cpus[1 - half]), 0, 2 * PAGE);
    }
}

static void test_weights_are_placed(void **state)
{
    (void)state;
    text path = {0};
    error err = {0};
    checkpoint *c = write_checkpoint(&path);
    int count;
    int *own = machine_cpus(&count), cpus[2] = {own[0], own[count - 1]};
    free(own);
    topology_node two[] = {{.id = 0, .cpus = &cpus[0], .count = 1}, {.id = 1, .cpus = &cpus[1], .count = 1}};
    topology where = {.nodes = two, .node_count = 2, .cpu_count = 2};
    pool *p = pool_create_on(2, &where, &err);
    assert_non_null(p);
    hint_count = 0;
    assert_true(checkpoint_place(c, p, &err));
    const tensor *experts = checkpoint_find(c, "experts"), *matrix = checkpoint_find(c, "matrix");
    if (cpus[0] != cpus[1]) { /* on one CPU nothing tells the nodes apart */
        check_halves(experts->data, experts->bytes / 2, cpus);
        check_halves(experts->data + experts->bytes / 2, experts->bytes / 2, cpus);
        check_halves(matrix->data, matrix->bytes, cpus);
    }
    const uint8_t *page = (const uint8_t *)((uintptr_t)experts->data / PAGE * PAGE);
    size_t whole = (size_t)(matrix->data + matrix->bytes - page);
    assert_in_range(resident(page, whole), whole, whole + PAGE);
    pool_destroy(p);
    checkpoint_close(c);
    unlink(path.data);
    text_free(&path);
}

/* With one node nothing is read before it is needed. */
static void test_one_node_reads_nothing(void **state)
{
    (void)state;
    text path = {0};
    error err = {0};
    checkpoint *c = write_checkpoint(&path);
    topology_node one = {.id = 0, .cpus = (int[]){0, 1}, .count = 2};
    pool *p = pool_create_on(2, &(topology){.nodes = &one, .node_count = 1, .cpu_count = 2}, &err);
    assert_non_null(p);
    hint_count = 0;
    assert_true(checkpoint_place(c, p, &err));
    assert_true(checkpoint_place(NULL, p, &err));
    assert_int_equal(hint_count, 0);
    pool_destroy(p);
    checkpoint_close(c);
    unlink(path.data);
    text_free(&path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_blocks_stay_lazy),
        cmocka_unit_test(test_small_blocks_have_small_pages),
        cmocka_unit_test(test_weights_are_placed),
        cmocka_unit_test(test_one_node_reads_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
