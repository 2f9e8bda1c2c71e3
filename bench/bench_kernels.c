/* The matrix kernels at the shapes of real models against what this machine can do, measured in the same run: reading memory, fused f32
 * products, products of bytes.
 *
 *   bench_kernels [--json] [--all] [--cpu] [--threads N] [--rows N] [--rounds N] [MODEL]
 *
 * --cpu: in processor time over threads, not by the clock: for a machine that others use, too.
 * MODEL: nano, glm-mini or glm-5.2; all three without one. --all: every variant, not the one the device takes by rule. --rows: one number
 * of rows alone. Each figure is the best of all rounds. Weights go round in memory larger than the last cache, so that a figure for few
 * rows is one of memory; rows are already in the form the kernel reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/memory.h"
#include "base/random.h"
#include "base/threads.h"
#include "device/cpu/cpu.h"

enum { POOL_BYTES = 256 << 20, STREAM_BYTES = 512 << 20, SCALE_BYTES = 16 << 20, MOST_ROWS = 256, MOST_THREADS = 64, SHORTEST_US = 3000 };

typedef struct shape {
    const char *model, *name;
    int n, k;
    format_id format;
} shape;

static const shape SHAPES[] = {
    {"nano", "expert gate", 128, 384, FORMAT_MXFP4},      {"nano", "expert down", 384, 128, FORMAT_MXFP4},
    {"nano", "q_b", 512, 192, FORMAT_BF16},               {"nano", "lm_head", 4096, 384, FORMAT_BF16},
    {"glm-mini", "expert gate", 512, 2048, FORMAT_MXFP4}, {"glm-mini", "expert down", 2048, 512, FORMAT_MXFP4},
    {"glm-mini", "expert gate", 512, 2048, FORMAT_NVFP4}, {"glm-mini", "o", 2048, 2048, FORMAT_MXFP4},
    {"glm-mini", "o", 2048, 2048, FORMAT_FP8_BLOCK},      {"glm-mini", "q_b", 3072, 768, FORMAT_FP8_CHANNEL},
    {"glm-mini", "o", 2048, 2048, FORMAT_BF16},           {"glm-mini", "router", 64, 2048, FORMAT_F32},
    {"glm-5.2", "expert gate", 2048, 6144, FORMAT_MXFP4}, {"glm-5.2", "expert down", 6144, 2048, FORMAT_MXFP4},
    {"glm-5.2", "expert gate", 2048, 6144, FORMAT_NVFP4}, {"glm-5.2", "o", 6144, 16384, FORMAT_FP8_BLOCK},
    {"glm-5.2", "q_a", 2048, 6144, FORMAT_FP8_CHANNEL},   {"glm-5.2", "lm_head part", 8192, 6144, FORMAT_BF16},
};
static const int ROWS[] = {1, 4, 16, 64, 256};

typedef struct bench {
    pool *workers;
    int threads, rounds, only_rows;
    bool json, all, cpu;
    uint8_t *weights, *scales[FORMAT_COUNT];
    float *x, *y;
    cpu_q8 *q8;
    void *scratch[MOST_THREADS];
    double read_one, read_all, fma, bytes; /* ceilings: GB/s with one and all threads, GFLOP/s with all */
} bench;

static double seconds_now(const bench *b)
{
    struct timespec t;
    clock_gettime(b->cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / (b->cpu ? b->threads : 1);
}

/* ---- ceilings ---- */

typedef struct ceiling_task {
    const uint8_t *memory;
    int pieces;
    volatile uint64_t sink[MOST_THREADS * 8];
} ceiling_task;

static void read_piece(void *context, int piece, int worker)
{
    ceiling_task *t = context;
    size_t bytes = STREAM_BYTES / (size_t)t->pieces;
    const uint64_t *p = (const uint64_t *)(const void *)(t->memory + (size_t)piece * bytes);
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < bytes / 8; i += 8)
        for (int j = 0; j < 8; j++)
            sum[j] += p[i + (size_t)j];
    for (int j = 0; j < 8; j++)
        t->sink[worker * 8] += sum[j];
}

enum { PEAK_STEPS = 1 << 19, PEAK_CHAINS = 12 };

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void fma_piece(void *context, int piece, int worker)
{
    ceiling_task *t = context;
    __m256 sum[PEAK_CHAINS], a = _mm256_set1_ps(1.0f + (float)piece), b = _mm256_set1_ps(0.5f);
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++)
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
        __asm__ volatile("" : "+x"(a)); /* the loop must not be computed in advance */
    }
    for (int i = 0; i < PEAK_CHAINS; i++)
        t->sink[worker * 8] += (uint64_t)_mm256_cvtss_f32(sum[i]);
}

/* The sum of products of bytes as an AVX2 CPU does it: multiply and add pairs, add pairs of those, add to the sum. */
__attribute__((target("avx2"))) static void bytes_piece(void *context, int piece, int worker)
{
    ceiling_task *t = context;
    __m256i sum[PEAK_CHAINS], a = _mm256_set1_epi8((char)piece), ones = _mm256_set1_epi16(1);
    for (int i = 0; i < PEAK_CHAINS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++) {
            __asm__ volatile("" : "+x"(a));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), ones));
        }
    }
    for (int i = 0; i < PEAK_CHAINS; i++)
        t->sink[worker * 8] += (uint64_t)_mm256_extract_epi32(sum[i], 0);
}
#endif

/* Seconds of the best of several runs of count pieces. */
static double best_seconds(const bench *b, pool *p, int count, pool_task task, void *context)
{
    double best = 1e30;
    for (int round = 0; round < b->rounds + 3; round++) {
        double start = seconds_now(b);
        pool_run(p, count, task, context);
        double seconds = seconds_now(b) - start;
        if (b->cpu && pool_threads(p) < b->threads)
            seconds *= b->threads;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void measure_ceilings(bench *b, pool *alone)
{
    ceiling_task t = {.memory = mem_try_alloc_lazy(STREAM_BYTES), .pieces = 64};
    if (!t.memory) {
        fprintf(stderr, "no memory for %d MB\n", STREAM_BYTES >> 20);
        exit(1);
    }
    memset((void *)(uintptr_t)t.memory, 1, STREAM_BYTES);
    b->read_one = STREAM_BYTES * 1e-9 / best_seconds(b, alone, t.pieces, read_piece, &t);
    b->read_all = STREAM_BYTES * 1e-9 / best_seconds(b, b->workers, t.pieces, read_piece, &t);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        double steps = (double)PEAK_STEPS * PEAK_CHAINS * b->threads * 4;
        b->fma = steps * 8 * 2 * 1e-9 / best_seconds(b, b->workers, b->threads * 4, fma_piece, &t);
        b->bytes = steps * 32 * 2 * 1e-9 / best_seconds(b, b->workers, b->threads * 4, bytes_piece, &t);
    }
#endif
    mem_free_lazy((void *)(uintptr_t)t.memory);
}

/* ---- one shape ---- */

typedef struct work_task {
    bench *b;
    const cpu_matmul *kernel;
    matrix w;
    const void *x;
    size_t x_stride;
    int rows, columns;
} work_task;

static void work_piece(void *context, int piece, int worker)
{
    const work_task *t = context;
    int64_t first = (int64_t)piece * t->columns, left = t->w.rows - first;
    t->kernel->run(&(cpu_matmul_work){.w = &t->w, .first = first, .columns = left < t->columns ? (int)left : t->columns, .x = t->x,
                                      .x_stride = t->x_stride, .rows = t->rows, .y = t->b->y + first, .y_stride = (size_t)t->w.rows,
                                      .scratch = t->b->scratch[worker]});
}

/* Seconds of one product. Each goes to the next place in the memory of weights. */
static double measure(bench *b, work_task *t, uint64_t bytes, int64_t *at)
{
    int tasks = (int)((t->w.rows + t->columns - 1) / t->columns), repeats = 0;
    double best = 1e30;
    for (int round = 0; round < b->rounds; round++) {
        double start = seconds_now(b), now = start;
        for (repeats = 0; now - start < SHORTEST_US * 1e-6; repeats++, now = seconds_now(b)) {
            if (*at + (int64_t)bytes > POOL_BYTES)
                *at = 0;
            t->w.data = b->weights + *at;
            *at += (int64_t)(bytes + 63) / 64 * 64;
            pool_run(b->workers, tasks, work_piece, t);
        }
        double seconds = (now - start) / repeats;
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void print_row(const bench *b, const shape *s, const cpu_matmul *v, int rows, double seconds, uint64_t bytes)
{
    static bool behind;
    double gb = (double)bytes * 1e-9 / seconds, gflop = 2.0 * s->n * s->k * rows * 1e-9 / seconds;
    double peak = v->input == CPU_INPUT_Q8 ? b->bytes : b->fma;
    const char *format_name = format_of(s->format)->name;
    if (b->json)
        printf("%s\n  {\"model\": \"%s\", \"weight\": \"%s\", \"format\": \"%s\", \"n\": %d, \"k\": %d, \"rows\": %d, \"kernel\": \"%s\", "
               "\"us\": %.2f, \"gb_s\": %.2f, \"gflop_s\": %.1f, \"of_read\": %.3f, \"of_peak\": %.3f}",
               behind ? "," : "", s->model, s->name, format_name, s->n, s->k, rows, v->name, seconds * 1e6, gb, gflop, gb / b->read_all,
               peak > 0 ? gflop / peak : 0.0);
    else
        printf("%-9s %-12s %-11s %6d %6d %5d  %-18s %10.1f %7.1f %8.1f %6.0f%% %6.0f%%\n", s->model, s->name, format_name, s->n, s->k, rows,
               v->name, seconds * 1e6, gb, gflop, 100 * gb / b->read_all, peak > 0 ? 100 * gflop / peak : 0.0);
    fflush(stdout);
    behind = true;
}

static void bench_shape(bench *b, const shape *s, int rows)
{
    const format *f = format_of(s->format);
    cpu_input input = cpu_input_of(f, false);
    uint64_t data, scale;
    format_data_bytes(f, s->n, s->k, &data);
    format_scale_bytes(f, s->n, s->k, &scale);
    work_task t = {.b = b, .rows = rows};
    t.w = (matrix){.format = f, .rows = s->n, .cols = s->k, .scales = b->scales[s->format], .scale = 1.0f};
    t.x = input == CPU_INPUT_Q8 ? (const void *)b->q8 : b->x;
    t.x_stride = input == CPU_INPUT_Q8 ? cpu_q8_row_bytes(s->k) : (size_t)s->k * sizeof(float);
    t.columns = cpu_task_columns(&t.w, rows, b->threads);
    for (int i = 0; input == CPU_INPUT_Q8 && i < rows; i++)
        cpu_q8_quantize(b->x + (int64_t)i * s->k, s->k, (void *)((uint8_t *)b->q8 + (size_t)i * t.x_stride));
    int64_t at = 0;
    for (int v = 0; cpu_matmul_at(input, NULL, v); v++) {
        t.kernel = cpu_matmul_at(input, NULL, v);
        bool chosen = v == cpu_matmul_by_rule(input, NULL, rows);
        if (chosen || (b->all && strcmp(t.kernel->set, "generic") != 0))
            print_row(b, s, t.kernel, rows, measure(b, &t, data, &at), data + scale);
    }
}

static void fill(bench *b)
{
    enum { LARGEST_K = 16384 };
    b->weights = mem_try_alloc_lazy(POOL_BYTES);
    b->x = mem_try_alloc_lazy((size_t)MOST_ROWS * LARGEST_K * sizeof(float));
    b->q8 = mem_try_alloc_lazy(MOST_ROWS * cpu_q8_row_bytes(LARGEST_K));
    b->y = mem_try_alloc_lazy((size_t)MOST_ROWS * LARGEST_K * sizeof(float));
    for (size_t i = 0; i < POOL_BYTES / 8; i++) { /* e4m3 codes as trained weights have them: none below the normal ones, all numbers */
        uint64_t word = (random_word(1, i, 0) & 0xBFBFBFBFBFBFBFBFu) | 0x2020202020202020u;
        memcpy(b->weights + 8 * i, &word, sizeof word);
    }
    for (int f = 0; f < FORMAT_COUNT; f++) {
        float one = 0.01f;
        b->scales[f] = mem_try_alloc_lazy(SCALE_BYTES);
        for (size_t i = 0; i < SCALE_BYTES; i += 4)
            f == FORMAT_MXFP4 || f == FORMAT_NVFP4 ? memset(b->scales[f] + i, 0x70, 4) : memcpy(b->scales[f] + i, &one, 4);
    }
    for (int i = 0; i < MOST_ROWS * LARGEST_K; i++)
        b->x[i] = (float)(random_word(2, (uint64_t)i, 0) >> 40) * 0x1p-23f - 1.0f;
    for (int i = 0; i < b->threads; i++)
        b->scratch[i] = mem_try_alloc_lazy(cpu_matmul_scratch_bytes(LARGEST_K));
}

static void print_head(const bench *b)
{
    if (b->json)
        printf("{\"threads\": %d, \"read_gb_s_1\": %.2f, \"read_gb_s\": %.2f, \"fma_gflop_s\": %.1f, \"bytes_gop_s\": %.1f, \"rows\": [",
               b->threads, b->read_one, b->read_all, b->fma, b->bytes);
    else
        printf("%d threads; reading %.1f GB/s (one thread %.1f), fused f32 %.0f GFLOP/s, bytes %.0f Gop/s\n\n"
               "%-9s %-12s %-11s %6s %6s %5s  %-18s %10s %7s %8s %7s %7s\n",
               b->threads, b->read_all, b->read_one, b->fma, b->bytes, "model", "weight", "format", "n", "k", "rows", "kernel", "us",
               "GB/s", "GFLOP/s", "read", "peak");
}

int main(int argc, char **argv)
{
    bench b = {.threads = machine_cores(), .rounds = 7};
    const char *model_name = NULL;
    error err = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            b.json = true;
        else if (strcmp(argv[i], "--all") == 0)
            b.all = true;
        else if (strcmp(argv[i], "--cpu") == 0)
            b.cpu = true;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            b.threads = atoi(argv[++i]);
        else if (strcmp(argv[i], "--rows") == 0 && i + 1 < argc)
            b.only_rows = atoi(argv[++i]);
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            b.rounds = atoi(argv[++i]);
        else
            model_name = argv[i];
    }
    if (b.threads < 1 || b.threads > MOST_THREADS || b.rounds < 1 || b.only_rows < 0 || b.only_rows > MOST_ROWS) {
        fprintf(stderr, "usage: bench_kernels [--json] [--all] [--cpu] [--threads 1..%d] [--rows 1..%d] [--rounds N] [MODEL]\n",
                MOST_THREADS, MOST_ROWS);
        return 2;
    }
    pool *alone = pool_create(1, &err);
    b.workers = pool_create(b.threads, &err);
    measure_ceilings(&b, alone);
    fill(&b);
    print_head(&b);
    for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++)
        for (size_t r = 0; r < sizeof ROWS / sizeof ROWS[0]; r++)
            if ((!model_name || strcmp(model_name, SHAPES[s].model) == 0) && (b.only_rows == 0 || b.only_rows == ROWS[r]))
                bench_shape(&b, &SHAPES[s], ROWS[r]);
    printf(b.json ? "\n]}\n" : "");
    pool_destroy(b.workers);
    pool_destroy(alone);
    return 0;
}
