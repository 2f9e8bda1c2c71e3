/* Decision 4: a row's result depends on its own sequence only. The same tokens alone, in chunks of any size, one by one, in ragged batches
 * with other sequences, on 1, 2 or 3 threads and for every cache format give the same bytes. */
#include "golden.h"

#include "base/random.h"

#define NANO SOURCE_DIR "/models/nano"

enum { SEQUENCES = 3, LONGEST = 330 }; /* beyond nano's index_topk of 256: lists are really chosen */

static int32_t token_at(int sequence, int position)
{
    return (int32_t)(random_word(1, (uint64_t)sequence, (uint64_t)position) % 4000);
}

static int length_of(int sequence)
{
    static const int lengths[SEQUENCES] = {LONGEST, 70, 270};
    return lengths[sequence];
}

/* A sequence alone, in chunks; logits of every position. */
static float *run_alone(rig *r, int sequence, int chunk)
{
    int32_t ids[LONGEST];
    for (int i = 0; i < length_of(sequence); i++)
        ids[i] = token_at(sequence, i);
    return rig_all_logits(r, ids, length_of(sequence), chunk);
}

/* One cache format in one mode. */
static void check_chunks_and_threads(kv_dtype kv, bool exact)
{
    static const int chunks[] = {1, 7, 100};
    float *first = NULL;
    size_t bytes = 0;
    for (int threads = 1; threads <= 3; threads++) {
        rig r = rig_open_as(any_model(), kv, threads, 512, exact, NULL);
        bytes = (size_t)LONGEST * (size_t)r.model->config.vocab_size * sizeof(float);
        float *whole = run_alone(&r, 0, RIG_ROWS);
        if (!first)
            first = mem_copy(whole, bytes);
        assert_memory_equal(first, whole, bytes);
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0] && (threads == 2 || i == 1); i++) {
            float *pieces = run_alone(&r, 0, chunks[i]);
            assert_memory_equal(first, pieces, bytes);
            free(pieces);
        }
        free(whole);
        rig_close(&r);
    }
    free(first);
}

static void test_chunks_and_threads(void **state)
{
    (void)state;
    for (kv_dtype kv = 0; kv < KV_DTYPE_COUNT; kv++)
        if (kv == KV_BF16 || !forced_kernels)
            check_chunks_and_threads(kv, false);
}

static void test_chunks_and_threads_exact(void **state)
{
    (void)state;
    check_chunks_and_threads(KV_F32, true);
}

typedef struct ragged {
    int32_t tokens[RIG_ROWS], positions[RIG_ROWS], sequences[RIG_ROWS];
    int rows;
} ragged;

/* A batch of random shape: 0 to 40 rows of each sequence that is not finished. */
static ragged next_batch(int done[SEQUENCES], uint64_t seed, uint64_t round)
{
    ragged b = {.rows = 0};
    for (int s = 0; s < SEQUENCES; s++) {
        int n = (int)(random_word(seed, round, (uint64_t)s) % 41);
        for (; n > 0 && done[s] < length_of(s); n--, done[s]++, b.rows++) {
            b.tokens[b.rows] = token_at(s, done[s]);
            b.positions[b.rows] = done[s];
            b.sequences[b.rows] = s;
        }
    }
    return b;
}

static void test_ragged_batches(void **state)
{
    (void)state;
    rig r = rig_open_as(any_model(), KV_BF16, 2, 512, false, NULL);
    size_t vocab = (size_t)r.model->config.vocab_size;
    float *alone[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++)
        alone[s] = run_alone(&r, s, RIG_ROWS);
    for (uint64_t seed = 0; seed < 3; seed++) {
        int32_t tables[SEQUENCES][8];
        const int32_t *page_tables[SEQUENCES];
        int done[SEQUENCES] = {0};
        kv_pages *pages = kv_pages_create(r.device, SEQUENCES * 512, &(error){0});
        for (int i = 0; i < 8; i++) /* pages of the sequences interleaved */
            for (int s = 0; s < SEQUENCES; s++)
                assert_true(kv_pages_take(pages, &tables[s][i]));
        for (int s = 0; s < SEQUENCES; s++)
            page_tables[s] = tables[s];
        for (uint64_t round = 0; done[0] < length_of(0) || done[1] < length_of(1) || done[2] < length_of(2); round++) {
            ragged b = next_batch(done, seed, round);
            if (b.rows == 0)
                continue;
            step s = {b.rows, b.tokens, b.positions, b.sequences, page_tables, pages->memory, true};
            int32_t rows[RIG_ROWS];
            for (int i = 0; i < b.rows; i++)
                rows[i] = i;
            forward_run(r.forward, &s);
            const float *logits = forward_logits(r.forward, b.rows, rows);
            for (int i = 0; i < b.rows; i++)
                assert_memory_equal(logits + (size_t)i * vocab, alone[b.sequences[i]] + (size_t)b.positions[i] * vocab,
                                    vocab * sizeof(float));
        }
        kv_pages_destroy(pages);
    }
    for (int s = 0; s < SEQUENCES; s++)
        free(alone[s]);
    rig_close(&r);
}

static void test_sync_reuses_the_common_prefix(void **state)
{
    (void)state;
    error err = {0};
    rig r = rig_open_as(any_model(), KV_BF16, 2, 512, false, NULL);
    int32_t ids[200], other[200];
    int reused;
    for (int i = 0; i < 200; i++)
        other[i] = ids[i] = token_at(0, i);
    other[150] ^= 1;
    size_t bytes = (size_t)r.model->config.vocab_size * sizeof(float);
    assert_true(session_sync(r.session, ids, 200, &reused, &err));
    assert_int_equal(reused, 0);
    float *want = mem_copy(session_logits(r.session), bytes);
    assert_true(session_sync(r.session, other, 200, &reused, &err));
    assert_int_equal(reused, 150);
    assert_memory_not_equal(session_logits(r.session), want, bytes);
    assert_true(session_sync(r.session, ids, 200, &reused, &err));
    assert_int_equal(reused, 150);
    assert_memory_equal(session_logits(r.session), want, bytes);
    assert_true(session_sync(r.session, ids, 200, &reused, &err));
    assert_int_equal(reused, 199);
    assert_memory_equal(session_logits(r.session), want, bytes);
    free(want);
    rig_close(&r);
}

/* Root of the mean squared difference, relative to that of the logits themselves. */
static double relative_distance(const float *got, const float *want, size_t n)
{
    double squares = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        squares += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    return sqrt(squares / size);
}

/* The cache formats round, and a rounded key may turn a routing decision. On these prompts the logits move by the figures printed; two
 * to three times that is the bound, to notice a broken codec. */
static void test_cache_formats_stay_close(void **state)
{
    (void)state;
    if (forced_kernels)
        skip(); /* the golden tests have these prompts */
    static const double bound[KV_DTYPE_COUNT] = {0, 0.02, 0.1};
    static const char *const prompts[] = {"arith", "tool"};
    for (int p = 0; p < 2; p++) {
        golden g = golden_open("golden_mxfp4", prompts[p]);
        float *exact = NULL;
        for (kv_dtype kv = 0; kv < KV_DTYPE_COUNT; kv++) {
            rig r = rig_open(NANO, kv, 2, 512);
            size_t n = (size_t)g.count * (size_t)r.model->config.vocab_size;
            float *got = rig_all_logits(&r, g.ids, g.count, RIG_ROWS);
            if (!exact)
                exact = mem_copy(got, n * sizeof(float));
            double distance = relative_distance(got, exact, n);
            printf("  %s, %s cache: relative distance of the logits %.2g\n", prompts[p], kv_dtype_name(kv), distance);
            assert_true(distance <= bound[kv]);
            assert_true(kv == KV_F32 || distance > 0);
            free(got);
            rig_close(&r);
        }
        free(exact);
        golden_close(&g);
    }
}

static void test_token_out_of_range_is_refused(void **state)
{
    (void)state;
    error err = {0};
    rig r = rig_open(NANO, KV_BF16, 1, 512);
    int32_t ids[2] = {5, 4096};
    assert_false(session_feed(r.session, ids, 2, &err));
    assert_string_equal(err.text, "token 1 of the sequence is 4096, expected 0 to 4095");
    assert_int_equal(r.session->count, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_and_threads),
        cmocka_unit_test(test_chunks_and_threads_exact),
        cmocka_unit_test(test_ragged_batches),
        cmocka_unit_test(test_sync_reuses_the_common_prefix),
        cmocka_unit_test(test_cache_formats_stay_close),
        cmocka_unit_test(test_token_out_of_range_is_refused),
    };
    return golden_main(tests, MODE_FAST | MODE_EXACT, NULL, NULL);
}
