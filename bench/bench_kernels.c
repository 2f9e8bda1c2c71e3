/* The matrix kernels at the shapes of real models against what this machine can do, measured in the same run (src/bench/ceilings.h).
 *
 *   bench_kernels [--json] [--all] [--cpu] [--threads N] [--rows N] [--rounds N] [MODEL ...]
 *
 * MODEL: nano, glm-mini or glm-5.2, whose main shapes are known here in several formats, or a model's directory, of which every matrix
 * shape and format is measured (of matrices with more than 16,384 rows or 64 MB a part); the three without one. --all: every variant, not
 * the one the device takes by rule. --rows: one number of rows alone. --cpu: in processor time over threads, not by the clock: for a
 * machine that others use, too.
 *
 * Each figure is the best of all rounds. Weights go round in memory larger than the last cache, so that a figure for few rows is one of
 * memory; rows are already in the form the kernel reads. read: GB/s of the weights, scales included, as a share of reading alone. peak:
 * operations as a share of the byte products (4-bit weights) or of the fused f32 products that the CPU can do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/threads.h"
#include "bench/ceilings.h"
#include "device/cpu/cpu.h"

enum { POOL_BYTES = 256 << 20, SCALE_BYTES = 16 << 20, MOST_ROWS = 256, MOST_THREADS = 64, SHORTEST_US = 3000, LARGEST = 16384 };

typedef struct shape {
    const char *model, *name;
    int n, k;
    format_id format;
} shape;

static const shape SHAPES[] = {
    {"nano", "expert gate", 128, 384, FORMAT_MXFP4},      {"nano", "expert down", 384, 128, FORMAT_MXFP4},
    {"nano", "q_b", 512, 192, FORMAT_BF16},               {"nano", "lm_head", 4096, 384, FORMAT_BF16},
    {"glm-mini", "expert gate", 512, 2048, FORMAT_MXFP4}, {"glm-mini", "expert down", 2048, 512, FORMAT_MXFP4},
    {"glm-mini", "expert gate", 512, 2048, FORMAT_NVFP4}, {"glm-mini", "expert down", 2048, 512, FORMAT_NVFP4},
    {"glm-mini", "expert gate", 512, 2048, FORMAT_FP8_BLOCK}, {"glm-mini", "expert gate", 512, 2048, FORMAT_BF16},
    {"glm-mini", "lm_head", 16384, 2048, FORMAT_FP8_BLOCK}, {"glm-mini", "o", 2048, 2048, FORMAT_MXFP4},
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
    ceilings ceilings;
} bench;

static double seconds_now(const bench *b)
{
    struct timespec t;
    clock_gettime(b->cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / (b->cpu ? b->threads : 1);
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
    double peak = v->input == CPU_INPUT_Q8 ? b->ceilings.bytes_gop_s : b->ceilings.fused_gflop_s;
    const char *format_name = format_of(s->format)->name;
    if (b->json)
        printf("%s\n  {\"model\": \"%s\", \"weight\": \"%s\", \"format\": \"%s\", \"n\": %d, \"k\": %d, \"rows\": %d, \"kernel\": \"%s\", "
               "\"us\": %.2f, \"gb_s\": %.2f, \"gflop_s\": %.1f, \"of_read\": %.3f, \"of_peak\": %.3f}",
               behind ? "," : "", s->model, s->name, format_name, s->n, s->k, rows, v->name, seconds * 1e6, gb, gflop,
               gb / b->ceilings.read_gb_s, gflop / peak);
    else
        printf("%-9s %-12s %-11s %6d %6d %5d  %-18s %10.1f %7.1f %8.1f %6.0f%% %6.0f%%\n", s->model, s->name, format_name, s->n, s->k, rows,
               v->name, seconds * 1e6, gb, gflop, 100 * gb / b->ceilings.read_gb_s, 100 * gflop / peak);
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
    b->weights = mem_try_alloc_lazy(POOL_BYTES);
    b->x = mem_try_alloc_lazy((size_t)MOST_ROWS * LARGEST * sizeof(float));
    b->q8 = mem_try_alloc_lazy(MOST_ROWS * cpu_q8_row_bytes(LARGEST));
    b->y = mem_try_alloc_lazy((size_t)MOST_ROWS * LARGEST * sizeof(float));
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
    for (int i = 0; i < MOST_ROWS * LARGEST; i++)
        b->x[i] = (float)(random_word(2, (uint64_t)i, 0) >> 40) * 0x1p-23f - 1.0f;
    for (int i = 0; i < b->threads; i++)
        b->scratch[i] = mem_try_alloc_lazy(cpu_matmul_scratch_bytes(LARGEST));
}

static void print_head(const bench *b)
{
    text words = {0};
    ceilings_describe(&b->ceilings, &words);
    json_t *object = ceilings_json(&b->ceilings);
    char *values = json_dumps(object, JSON_COMPACT);
    if (b->json)
        printf("{\"ceilings\": %s, \"rows\": [", values);
    else
        printf("%s\n\n%-9s %-12s %-11s %6s %6s %5s  %-18s %10s %7s %8s %7s %7s\n", words.data, "model", "weight", "format", "n", "k",
               "rows", "kernel", "us", "GB/s", "GFLOP/s", "read", "peak");
    free(values);
    json_decref(object);
    text_free(&words);
}

static void bench_rows(bench *b, const shape *s)
{
    for (size_t r = 0; r < sizeof ROWS / sizeof ROWS[0]; r++)
        if (b->only_rows == 0 || b->only_rows == ROWS[r])
            bench_shape(b, s, ROWS[r]);
}

/* The shapes of a model's matrices, each once. */
typedef struct shape_list {
    shape shapes[128];
    int count;
    const char *model;
} shape_list;

static void add_shape(void *context, const dispatch_work *work)
{
    shape_list *l = context;
    bool matrix_work = work->key.operation == dispatch_linear || work->key.operation == dispatch_experts;
    if (!matrix_work || work->key.k > LARGEST || l->count == 128)
        return;
    shape s = {l->model, work->key.operation, work->key.n, work->key.k, work->w->format->id};
    uint64_t bytes;
    while (s.n > LARGEST || (format_data_bytes(work->w->format, s.n, s.k, &bytes) && bytes > POOL_BYTES / 4)) {
        s.n /= 2; /* a part of a large matrix stands for it */
        s.name = "part";
    }
    for (int i = 0; i < l->count; i++)
        if (l->shapes[i].n == s.n && l->shapes[i].k == s.k && l->shapes[i].format == s.format && l->shapes[i].name == s.name)
            return;
    l->shapes[l->count++] = s;
}

static void bench_directory(bench *b, const char *directory)
{
    error err = {0};
    shape_list *l = mem_alloc(1, sizeof *l);
    model *m = model_open(directory, &err);
    if (!m) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        exit(1);
    }
    const char *slash = strrchr(directory, '/');
    l->model = slash && slash[1] ? slash + 1 : directory;
    dispatch_visit(m, KV_BF16, add_shape, l);
    for (int i = 0; i < l->count; i++)
        bench_rows(b, &l->shapes[i]);
    model_close(m);
    free(l);
}

static void bench_named(bench *b, const char *name)
{
    bool known = false;
    for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++)
        if (!name || strcmp(name, SHAPES[s].model) == 0) {
            bench_rows(b, &SHAPES[s]);
            known = true;
        }
    if (!known)
        bench_directory(b, name);
}

static void usage(void)
{
    fprintf(stderr, "usage: bench_kernels [--json] [--all] [--cpu] [--threads 1..%d] [--rows 1..%d] [--rounds N] [MODEL ...]\n",
            MOST_THREADS, MOST_ROWS);
    exit(2);
}

int main(int argc, char **argv)
{
    bench b = {.threads = machine_cores(), .rounds = 7};
    const char *names[16] = {NULL};
    int name_count = 0;
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
        else if (argv[i][0] != '-' && name_count < 16)
            names[name_count++] = argv[i];
        else
            usage();
    }
    if (b.threads < 1 || b.threads > MOST_THREADS || b.rounds < 1 || b.only_rows < 0 || b.only_rows > MOST_ROWS)
        usage();
    b.workers = pool_create(b.threads, &err);
    ceilings_options o = {.threads = b.threads, .seconds = 0.15, .processor_time = b.cpu};
    if (!b.workers || !ceilings_measure(&o, &b.ceilings, &err)) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 1;
    }
    fill(&b);
    print_head(&b);
    for (int i = 0; i < (name_count ? name_count : 1); i++)
        bench_named(&b, names[i]);
    printf(b.json ? "\n]}\n" : "");
    pool_destroy(b.workers);
    return 0;
}
