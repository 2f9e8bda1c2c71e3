/* How much a step gains from more rows: decoded tokens per second for 1 to 32 sequences that share every step, and rows per second of
 * a prompt, by wall clock.
 *
 *   bench_batch [MODEL [THREADS [CONTEXT [ROUNDS]]]]   by default models/nano, 2 threads, 32 tokens in the cache when decoding begins,
 *                                                      best of 5 rounds
 *
 * Decoding is the time of an answer of ANSWER + 1 tokens less that of an answer of one, so a prompt's own time is not in it. Each figure
 * is the best of all rounds, and a round measures every number of sequences, so that a busy moment does not hit one of them alone. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/bulk.h"

/* The device to measure: tests/gpu builds this for others. */
#ifndef RIG_DEVICE
#define RIG_DEVICE cpu_device_create
#endif

enum { ANSWER = 32, ROWS = 256, MOST = 32, CASES = 6 };

typedef struct bench {
    model *model;
    device *device;
    forward *forward;
    int32_t *prompt; /* [MOST][longest] */
    int longest;     /* tokens of a prompt, the most that is used */
} bench;

static const int SEQUENCES[CASES] = {1, 2, 4, 8, 16, 32};

static bool bench_open(bench *b, const char *directory, int threads, int context, error *err)
{
    b->model = model_open(directory, err);
    if (!b->model)
        return false;
    b->longest = context > ROWS ? context : ROWS;
    device_limits limits = {.kv = KV_BF16, .threads = threads, .max_rows = ROWS, .max_context = b->longest + ANSWER + 1};
    b->device = RIG_DEVICE(b->model, &limits, err);
    b->forward = b->device ? forward_create(b->device, ROWS, MOST, err) : NULL;
    b->prompt = mem_alloc((size_t)MOST * (size_t)b->longest, sizeof *b->prompt);
    for (int i = 0; i < MOST * b->longest; i++)
        b->prompt[i] = (int32_t)(random_word(1, (uint64_t)i, 0) % (uint64_t)b->model->config.vocab_size);
    return b->forward != NULL;
}

static void bench_close(bench *b)
{
    forward_destroy(b->forward);
    if (b->device)
        b->device->ops->destroy(b->device);
    model_close(b->model);
    free(b->prompt);
}

/* Seconds for `count` requests at once; negative on failure. */
static double run_once(const bench *b, int count, int prompt_tokens, int answer_tokens, error *err)
{
    bulk *all = bulk_create(b->forward, &(bulk_options){.max_sequences = count, .max_context = prompt_tokens + answer_tokens}, err);
    bulk_request requests[MOST] = {0};
    if (!all)
        return -1;
    for (int i = 0; i < count; i++) {
        requests[i] = (bulk_request){.prompt = b->prompt + (size_t)i * (size_t)b->longest, .prompt_count = prompt_tokens,
                                     .max_tokens = answer_tokens, .params = sampler_params_default(b->model->config.vocab_size)};
        requests[i].params.seed = (uint64_t)i;
    }
    uint64_t start = clock_now_us();
    bool ok = bulk_run(all, requests, count, NULL, NULL, err);
    double seconds = (double)(clock_now_us() - start) * 1e-6;
    for (int i = 0; i < count; i++)
        token_list_free(&requests[i].answer);
    bulk_destroy(all);
    return ok ? seconds : -1;
}

static bool keep_best(double seconds, double *best)
{
    if (*best == 0 || seconds < *best)
        *best = seconds;
    return seconds >= 0;
}

static bool measure(const bench *b, int context, int rounds, error *err)
{
    double shorter[CASES] = {0}, longer[CASES] = {0}, prefill = 0, one = 0;
    for (int round = 0; round < rounds; round++) {
        for (int c = 0; c < CASES; c++)
            if (!keep_best(run_once(b, SEQUENCES[c], context, 1, err), &shorter[c]) ||
                !keep_best(run_once(b, SEQUENCES[c], context, ANSWER + 1, err), &longer[c]))
                return false;
        if (!keep_best(run_once(b, 1, ROWS, 1, err), &prefill))
            return false;
    }
    for (int c = 0; c < CASES; c++) {
        double rate = SEQUENCES[c] * ANSWER / (longer[c] - shorter[c]);
        one = c == 0 ? rate : one;
        printf("decode   %3d sequences %8.1f tokens/s  %6.2fx  %8.3f ms/step\n", SEQUENCES[c], rate, rate / one,
               SEQUENCES[c] / rate * 1e3);
    }
    printf("prefill  %3d rows      %8.1f tokens/s  %6.2fx  %8.3f ms/step\n", ROWS, ROWS / prefill, ROWS / prefill / one, prefill * 1e3);
    return true;
}

int main(int argc, char **argv)
{
    error err = {0};
    bench b = {0};
    const char *directory = argc > 1 ? argv[1] : SOURCE_DIR "/models/nano";
    int threads = argc > 2 ? atoi(argv[2]) : 2, context = argc > 3 ? atoi(argv[3]) : 32, rounds = argc > 4 ? atoi(argv[4]) : 5;
    if (threads < 1 || context < 1 || rounds < 1) {
        fprintf(stderr, "usage: bench_batch [MODEL [THREADS [CONTEXT [ROUNDS]]]], all numbers at least 1\n");
        return 2;
    }
    bool ok = bench_open(&b, directory, threads, context, &err);
    if (ok) {
        printf("%s, context %d\n", b.device->description, context);
        ok = measure(&b, context, rounds, &err);
    }
    if (!ok)
        fprintf(stderr, "%s\n", err.text);
    bench_close(&b);
    return ok ? 0 : 1;
}
