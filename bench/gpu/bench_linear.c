/* The generic projection kernel on shapes of GLM-5.2 (one rank of four): time and bytes of weights per second, for few rows.
 *
 *   bench_linear [ROUNDS]
 *
 * Launches go round over copies of the weights that are together larger than the L2 cache, in a graph; the best of some rounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/gpu/gpu_kernels.h"

enum { LAUNCHES = 24, ROWS_MOST = 64, BYTES_LEAST = 400 << 20, COPIES_MOST = 24 };

typedef struct shape {
    const char *name;
    int format, n, k, batch; /* batch: heads, each with n of the matrix rows */
    double bytes;            /* per value, scales included */
} shape;

static const shape shapes[] = {
    {"q_a and kv_a", GPU_FP8_CHANNEL, 2624, 6144, 1, 1}, {"q_b", GPU_FP8_CHANNEL, 4096, 2048, 1, 1},
    {"o", GPU_FP8_CHANNEL, 6144, 4096, 1, 1},            {"o, block scales", GPU_FP8_BLOCK, 6144, 4096, 1, 1},
    {"o, bf16", GPU_BF16, 6144, 4096, 1, 2},             {"lm_head", GPU_BF16, 38720, 6144, 1, 2},
    {"dense gate", GPU_MXFP4, 3072, 6144, 1, 0.53125},   {"dense down", GPU_MXFP4, 6144, 3072, 1, 0.53125},
    {"router", GPU_BF16, 256, 6144, 1, 2},               {"index k", GPU_BF16, 128, 6144, 1, 2},
    {"value, 16 heads", GPU_FP8_CHANNEL, 256, 512, 16, 1},
};

static void must(gpu_status s, const char *what)
{
    if (s == GPU_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, gpu_words(s));
    exit(1);
}

/* Random bytes, which are valid codes and scales enough. */
static uint8_t *random_memory(size_t bytes, gpu_stream s)
{
    enum { PATTERN = 1 << 22 };
    uint8_t *memory = NULL, *pattern = mem_alloc(PATTERN, 1);
    for (size_t i = 0; i < PATTERN; i++)
        pattern[i] = (uint8_t)(random_word(1, i, 0) % 0x70);
    must(gpu_alloc((void **)&memory, bytes), "memory");
    for (size_t at = 0; at < bytes; at += PATTERN)
        must(gpu_to_device(memory + at, pattern, bytes - at < PATTERN ? bytes - at : PATTERN, s), "filling memory");
    must(gpu_stream_wait(s), "filling memory");
    free(pattern);
    return memory;
}

static double measure(const shape *sh, int rows, int rounds, gpu_stream s)
{
    int matrix_rows = sh->n * sh->batch, copies = 1;
    size_t row_bytes = (size_t)(sh->format == GPU_BF16 ? 2 * sh->k : sh->format == GPU_MXFP4 ? sh->k / 2 : sh->k);
    size_t data = (size_t)matrix_rows * row_bytes, scales = ((size_t)matrix_rows * (size_t)sh->k / 16 + 4096) / 256 * 256;
    while (copies < COPIES_MOST && (size_t)copies * data < BYTES_LEAST)
        copies++;
    uint8_t *memory = random_memory((size_t)copies * (data + scales), s);
    float *x = (void *)random_memory(ROWS_MOST * (size_t)(sh->k * sh->batch) * 4, s), *out = NULL;
    int32_t *count = NULL;
    must(gpu_alloc((void **)&out, ROWS_MOST * (size_t)matrix_rows * 4), "memory");
    must(gpu_alloc((void **)&count, 4), "memory");
    must(gpu_to_device(count, &rows, 4, s), "rows");
    must(gpu_stream_wait(s), "rows");
    gpu_graph graph = NULL;
    for (int recording = 0; recording < 2; recording++) {
        if (recording)
            must(gpu_capture_begin(s), "recording");
        for (int i = 0; i < LAUNCHES; i++) {
            uint8_t *w = memory + (size_t)(i % copies) * (data + scales);
            gpu_linear_args a = {.rows = count, .w = {w, w + data, 1.0f, sh->format, matrix_rows, sh->k, (int64_t)row_bytes},
                                 .columns = sh->n, .batch = sh->batch, .w_step = sh->n, .x = x, .out = out,
                                 .x_stride = (int64_t)sh->k * sh->batch, .x_batch = sh->k, .out_stride = matrix_rows, .out_batch = sh->n};
            gpu_linear(&a, rows, s);
        }
        must(gpu_last_launch(), "launching");
        if (recording)
            must(gpu_capture_end(s, &graph), "recording");
    }
    gpu_event from, to;
    double best = 1e30, us;
    must(gpu_event_create(&from), "event");
    must(gpu_event_create(&to), "event");
    for (int i = 0; i < rounds; i++) {
        must(gpu_event_record(from, s), "timing");
        must(gpu_graph_launch(graph, s), "timing");
        must(gpu_event_record(to, s), "timing");
        must(gpu_stream_wait(s), "timing");
        must(gpu_event_us(from, to, &us), "timing");
        best = us < best ? us : best;
    }
    gpu_graph_destroy(graph);
    gpu_event_destroy(from);
    gpu_event_destroy(to);
    gpu_free(memory);
    gpu_free(x);
    gpu_free(out);
    gpu_free(count);
    return best / LAUNCHES;
}

int main(int argc, char **argv)
{
    static const int rows[] = {1, 2, 4, 8, 16, 64};
    int devices = 0, rounds = argc > 1 ? atoi(argv[1]) : 10;
    gpu_properties p;
    gpu_stream s;
    if (gpu_devices(&devices) != GPU_OK || devices == 0) {
        printf("skipped: no GPU here\n");
        return 77;
    }
    must(gpu_use(0, &p), "GPU");
    must(gpu_stream_create(&s), "stream");
    printf("%s; us and TB/s of weights\n%-16s", p.name, "");
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        printf("%10d rows", rows[r]);
    printf("\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        printf("%-16s", shapes[i].name);
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            double us = measure(&shapes[i], rows[r], rounds, s);
            printf("%8.1f %5.2f ", us, shapes[i].bytes * shapes[i].n * shapes[i].batch * shapes[i].k / us * 1e-6);
        }
        printf("\n");
        fflush(stdout);
    }
    gpu_stream_destroy(s);
    return 0;
}
