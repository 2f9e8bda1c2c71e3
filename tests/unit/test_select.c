/* Selection of the k largest scores: against a full stable sort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu.h"

typedef struct entry {
    float score;
    int index;
} entry;

static int by_score_then_index(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index - y->index;
}

static int by_index(const void *a, const void *b)
{
    return ((const entry *)a)->index - ((const entry *)b)->index;
}

static void check(const float *scores, int n, int k)
{
    entry *sorted = mem_alloc((size_t)n, sizeof *sorted);
    int32_t *got = mem_alloc((size_t)k, sizeof *got), *list = mem_alloc(2 * (size_t)k, sizeof *list);
    for (int i = 0; i < n; i++)
        sorted[i] = (entry){scores[i], i};
    qsort(sorted, (size_t)n, sizeof *sorted, by_score_then_index);
    qsort(sorted, (size_t)k, sizeof *sorted, by_index);
    cpu_select_largest(scores, n, k, got);
    for (int i = 0; i < k; i++)
        assert_int_equal(got[i], sorted[i].index);
    for (int v = 0; cpu_attention_kernels_at(v); v++) {
        memset(got, 0xFF, (size_t)k * sizeof *got);
        cpu_select_many(cpu_attention_kernels_at(v), scores, n, k, list, got);
        for (int i = 0; i < k; i++)
            assert_int_equal(got[i], sorted[i].index);
    }
    free(sorted);
    free(got);
    free(list);
}

static void test_against_a_stable_sort(void **state)
{
    (void)state;
    enum { N = 700 };
    float scores[N];
    for (uint64_t round = 0; round < 400; round++) {
        int n = 1 + (int)(random_word(1, round, 0) % N), k = 1 + (int)(random_word(2, round, 0) % (uint64_t)n);
        for (int i = 0; i < n; i++) {
            double u = random_uniform(3, round, (uint64_t)i);
            switch (round % 4) { /* smooth, many ties, tiny differences, all magnitudes and signs */
            case 0: scores[i] = (float)(u - 0.5); break;
            case 1: scores[i] = (float)((int)(u * 5) - 2); break;
            case 2: scores[i] = nextafterf(1.0f, u < 0.5 ? 0.0f : 2.0f); break;
            default: scores[i] = (float)ldexp(u - 0.5, (int)(random_word(4, round, (uint64_t)i) % 200) - 100); break;
            }
        }
        check(scores, n, k);
    }
}

static void test_zeros_and_infinities(void **state)
{
    (void)state;
    const float scores[] = {0.0f, -0.0f, -INFINITY, 1.0f, -0.0f, INFINITY, -INFINITY};
    for (int k = 1; k <= 7; k++)
        check(scores, 7, k);
}

/* NaN is below everything, whichever way the selection goes. */
static void test_nan(void **state)
{
    (void)state;
    const float scores[] = {1.0f, NAN, -3.0f, NAN, 2.0f, -4.0f, 0.5f, 0.5f, 0.5f, 0.5f};
    for (int v = 0; cpu_attention_kernels_at(v); v++) {
        int32_t list[18], got[9];
        cpu_select_many(cpu_attention_kernels_at(v), scores, 10, 8, list, got);
        const int32_t eight[] = {0, 2, 4, 5, 6, 7, 8, 9}, nine[] = {0, 1, 2, 4, 5, 6, 7, 8, 9};
        assert_memory_equal(got, eight, sizeof eight);
        cpu_select_many(cpu_attention_kernels_at(v), scores, 10, 9, list, got);
        assert_memory_equal(got, nine, sizeof nine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_a_stable_sort), cmocka_unit_test(test_zeros_and_infinities), cmocka_unit_test(test_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
