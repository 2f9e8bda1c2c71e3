/* Microseconds of processor time per sampled token for a vocabulary of 154,880 rows, one thread.
 *
 * Two made-up rows: "peaked", a normal distribution of standard deviation 2.5 with a few tokens far above it, as a model
 * gives when the context decides; and "flat", standard deviation 0.5, where top_p keeps most of the vocabulary. Each case is
 * run for 0.3 s; the figure is the median of the calls. Processor time, because a machine that does other things
 * interrupts calls of some milliseconds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "base/random.h"
#include "engine/sampler.h"

enum { VOCAB = 154880, USED = 154856, HISTORY = 4000, MOST_CALLS = 20000 };

typedef struct bench_case {
    const char *name;
    sampler_params params;
} bench_case;

static void fill_row(float *x, double deviation, double peak)
{
    for (int i = 0; i < VOCAB; i++) {
        double u = random_uniform(1, 0, (uint64_t)i), v = random_uniform(1, 1, (uint64_t)i);
        x[i] = (float)(deviation * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    for (int i = 0; i < 12; i++)
        x[(i * 12345 + 777) % USED] += (float)(peak - i);
}

static uint64_t processor_time_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double median_us(sampler *s, const sampler_params *p, const sampler_state *history, const float *logits)
{
    static uint64_t took[MOST_CALLS];
    sampler_result r;
    error err;
    size_t calls = 0;
    for (uint64_t start = processor_time_us(), now = start; calls < MOST_CALLS && now - start < 300000; calls++) {
        if (!sampler_sample(s, p, history, logits, calls, &r, &err)) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        uint64_t end = processor_time_us();
        took[calls] = end - now;
        now = end;
    }
    qsort(took, calls, sizeof took[0], compare_u64);
    return (double)took[calls / 2];
}

static sampler_params with(double temperature, int top_k, double top_p, double penalty, int logprobs)
{
    sampler_params p = sampler_params_default(USED);
    p.temperature = temperature;
    p.top_k = top_k;
    p.top_p = top_p;
    p.repetition_penalty = 1 + penalty;
    p.presence_penalty = p.frequency_penalty = penalty;
    p.logprobs = logprobs;
    return p;
}

int main(void)
{
    error err;
    float *peaked = mem_alloc(VOCAB, sizeof *peaked), *flat = mem_alloc(VOCAB, sizeof *flat);
    int32_t prompt[HISTORY];
    fill_row(peaked, 2.5, 14);
    fill_row(flat, 0.5, 0);
    for (int i = 0; i < HISTORY; i++)
        prompt[i] = (int32_t)(random_word(2, 0, (uint64_t)i) % USED);
    sampler *s = sampler_create(VOCAB, &err);
    sampler_state *history = sampler_state_create(prompt, HISTORY, HISTORY, &err);
    for (int i = 0; i < HISTORY; i++)
        sampler_state_add(history, prompt[i / 2], &err);
    const bench_case cases[] = {
        {"greedy", with(0, 0, 1, 0, -1)},
        {"greedy, 20 logprobs", with(0, 0, 1, 0, 20)},
        {"temperature 1", with(1, 0, 1, 0, -1)},
        {"temperature 1, top_p 0.95", with(1, 0, 0.95, 0, -1)},
        {"temperature 1, top_k 50, top_p 0.95", with(1, 50, 0.95, 0, -1)},
        {"all penalties, top_p 0.95", with(1, 0, 0.95, 0.1, -1)},
    };
    printf("vocabulary %d, history of %d + %d tokens\n%-38s %12s %12s\n", VOCAB, HISTORY, HISTORY, "median us per token", "peaked", "flat");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        printf("%-38s %12.0f %12.0f\n", cases[i].name, median_us(s, &cases[i].params, history, peaked),
               median_us(s, &cases[i].params, history, flat));
    sampler_state_free(history);
    sampler_free(s);
    free(peaked);
    free(flat);
    return 0;
}
