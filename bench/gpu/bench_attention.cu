/* Sparse MLA attention on the GPU: correctness against f64, same bits whatever the batch and the kernel, and time.
 *
 *   nvcc -std=c++17 -O3 -Isrc -gencode arch=compute_90a,code=sm_90a -t 4 -o bench_attention bench/gpu/bench_attention.cu \
 *     src/device/gpu/hopper/gpu_attention{,_sm90,_rows_sm90}.cu && ./bench_attention
 *
 * Goals on H200: decode with 16 heads at 70 % of 4.3 TB/s of the selected keys' bytes, prefill with 64 heads at 500 TFLOP/s. */
#include "attention_bench.h"
#include "device/gpu/hopper/gpu_attention.h"

enum { LAYERS = 4 }; /* of a page: the data sets that timing rotates over */

typedef struct problem {
    int rows, heads, latent, rope, nope, topk, dtype;
    int context, sequences; /* positions of each sequence; rows take sequences in turn */
    float spread;           /* of the scores */
    gpu_step step, *device_step;
    gpu_attend_args args[LAYERS];
    void *scratch;
    gpu_attention_limits limits;
    float *out;
} problem;

static int64_t entry_bytes(const problem *p)
{
    return p->dtype == GPU_KV_FP8 ? p->latent + (p->latent + 127) / 128 * 4 + p->rope * 2 : (p->latent + p->rope) * 2;
}

/* Page tables that are a permutation of all pages. */
static void make_pages(problem *p)
{
    int per = (p->context + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS, pages = per * p->sequences;
    int64_t layer_bytes = GPU_PAGE_TOKENS * entry_bytes(p), page_bytes = LAYERS * layer_bytes;
    int32_t *tables = (int32_t *)malloc((size_t)pages * 4), *first = (int32_t *)malloc((size_t)p->sequences * 4);
    for (int i = 0; i < pages; i++)
        tables[i] = i;
    for (int i = pages - 1; i > 0; i--) {
        int j = (int)(mix((uint64_t)i) % (uint32_t)(i + 1)), t = tables[i];
        tables[i] = tables[j];
        tables[j] = t;
    }
    for (int i = 0; i < p->sequences; i++)
        first[i] = i * per;
    p->step.tables = device_copy(tables, (size_t)pages);
    p->step.table_first = device_copy(first, (size_t)p->sequences);
    p->step.pages = (uint8_t *)device_memory((size_t)pages * (size_t)page_bytes, 0xff);
    for (int i = 0; i < LAYERS; i++) {
        fill_entries<<<1024, 128>>>(p->step.pages, page_bytes, i * layer_bytes, entry_bytes(p), (int64_t)pages * GPU_PAGE_TOKENS, p->dtype,
                                    p->latent + p->rope, p->rope, (uint64_t)(i + 7) << 44);
        p->args[i].cache = {p->dtype, p->latent, p->rope, 0, entry_bytes(p), 0, i * layer_bytes, 0, page_bytes};
    }
    CHECK(cudaGetLastError());
    free(tables);
    free(first);
}

/* counts[row % 8], or topk. Positions are ascending and spread over the context. */
static void make_rows(problem *p, const int *counts)
{
    int32_t *sequences = (int32_t *)malloc((size_t)p->rows * 4), *selected = (int32_t *)calloc((size_t)p->rows * (size_t)p->topk, 4);
    int32_t *count = (int32_t *)malloc((size_t)p->rows * 4), *positions = (int32_t *)malloc((size_t)p->rows * 4);
    for (int r = 0; r < p->rows; r++) {
        sequences[r] = r % p->sequences;
        positions[r] = p->context - 1;
        count[r] = counts ? counts[r % 8] : p->topk;
        for (int i = 0; i < p->topk; i++) {
            int low = (int)((int64_t)i * p->context / p->topk), high = (int)((int64_t)(i + 1) * p->context / p->topk);
            selected[(size_t)r * (size_t)p->topk + (size_t)i] = low + (int)(mix((uint64_t)(r * 4099 + i)) % (uint32_t)(high - low));
        }
    }
    p->step.rows = p->rows;
    p->step.sequences = device_copy(sequences, (size_t)p->rows);
    p->step.positions = device_copy(positions, (size_t)p->rows);
    p->args[0].selected = device_copy(selected, (size_t)p->rows * (size_t)p->topk);
    p->args[0].selected_count = device_copy(count, (size_t)p->rows);
    free(sequences);
    free(positions);
    free(selected);
    free(count);
}

static void make_problem(problem *p, const int *counts)
{
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    p->nope = p->latent == 512 ? 192 : 32;
    int pages = (p->context + GPU_PAGE_TOKENS - 1) / GPU_PAGE_TOKENS;
    p->limits = {properties.multiProcessorCount, p->sequences, pages, pages * p->sequences};
    make_pages(p);
    make_rows(p, counts);
    p->device_step = device_copy(&p->step, 1);
    int64_t vectors = (int64_t)p->rows * p->heads;
    const float *absorbed = random_floats(vectors * p->latent, p->spread, 3),
                *q = random_floats(vectors * (p->nope + p->rope), p->spread, 4);
    p->out = (float *)device_memory((size_t)vectors * (size_t)p->latent * 4, 0xff);
    p->scratch = device_memory(gpu_attention_scratch_bytes(GPU_ATTENTION_ROWS, &p->limits), 0xff);
    for (int i = 0; i < LAYERS; i++) {
        gpu_cache cache = p->args[i].cache;
        p->args[i] = p->args[0];
        p->args[i].cache = cache;
        p->args[i].step = p->device_step;
        p->args[i].q_absorbed = absorbed;
        p->args[i].q = q;
        p->args[i].out = p->out;
        p->args[i].heads = p->heads;
        p->args[i].nope = p->nope;
        p->args[i].topk = p->topk;
        p->args[i].scale = 1.0f / sqrtf((float)(p->nope + p->rope));
    }
    CHECK(cudaDeviceSynchronize());
}

/* One block per (row, head), f64. */
static __global__ void reference(gpu_attend_args a, double *out)
{
    extern __shared__ double score[];
    __shared__ double total;
    const gpu_step *s = a.step;
    int row = (int)blockIdx.x, head = (int)blockIdx.y, count = a.selected_count[row], rank = a.cache.latent_dim, rope = a.cache.rope_dim;
    const int32_t *table = s->tables + s->table_first[s->sequences[row]];
    int64_t at = (int64_t)row * a.heads + head;
    const float *qa = a.q_absorbed + at * rank, *qr = a.q + at * (a.nope + rope) + a.nope;
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        int position = a.selected[(int64_t)row * a.topk + i];
        const uint8_t *e =
            s->pages + table[position / 64] * a.cache.page_bytes + a.cache.latent_offset + position % 64 * a.cache.latent_bytes;
        double sum = 0;
        for (int j = 0; j < rank + rope; j++)
            sum += (double)(j < rank ? qa[j] : qr[j - rank]) * entry_value(e, a.cache.dtype, rank + rope, rope, j);
        score[i] = sum * a.scale;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double most = score[0];
        total = 0;
        for (int i = 1; i < count; i++)
            most = fmax(most, score[i]);
        for (int i = 0; i < count; i++)
            total += score[i] = exp(score[i] - most);
    }
    __syncthreads();
    for (int j = (int)threadIdx.x; j < rank; j += (int)blockDim.x) {
        double sum = 0;
        for (int i = 0; i < count; i++) {
            int position = a.selected[(int64_t)row * a.topk + i];
            const uint8_t *e =
                s->pages + table[position / 64] * a.cache.page_bytes + a.cache.latent_offset + position % 64 * a.cache.latent_bytes;
            sum += score[i] * entry_value(e, a.cache.dtype, rank + rope, rope, j);
        }
        out[at * rank + j] = sum / total;
    }
}

static float *fetch(const float *from, size_t n)
{
    float *p = (float *)malloc(n * 4);
    CHECK(cudaMemcpy(p, from, n * 4, cudaMemcpyDeviceToHost));
    return p;
}

/* Worst relative error over (row, head) vectors; NaN counts as 1e9. */
static double worst_error(problem *p)
{
    size_t vectors = (size_t)p->rows * (size_t)p->heads, n = vectors * (size_t)p->latent;
    double *want = (double *)malloc(n * 8), *device, worst = 0;
    CHECK(cudaMalloc((void **)&device, n * 8));
    reference<<<dim3((unsigned)p->rows, (unsigned)p->heads), 256, (size_t)p->topk * 8>>>(p->args[1], device);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(want, device, n * 8, cudaMemcpyDeviceToHost));
    float *got = fetch(p->out, n);
    for (size_t v = 0; v < vectors; v++) {
        double difference = 0, size = 0;
        for (int j = 0; j < p->latent; j++) {
            double w = want[v * (size_t)p->latent + (size_t)j], d = (double)got[v * (size_t)p->latent + (size_t)j] - w;
            difference += d * d;
            size += w * w;
        }
        double error = sqrt(difference / (size + 1e-300));
        worst = error == error ? fmax(worst, error) : 1e9;
    }
    free(want);
    free(got);
    return worst;
}

/* The layer-1 result of one kernel, on the host. */
static float *result(problem *p, gpu_attention_kernel kernel, const gpu_attend_args *a, int rows)
{
    size_t n = (size_t)rows * (size_t)a->heads * (size_t)p->latent;
    CHECK(cudaMemset(a->out, 0xff, n * 4));
    gpu_attention(kernel, a, &p->limits, p->scratch, rows, 0);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    return fetch(a->out, n);
}

/* Row r alone has the bits that it has in the batch. */
static int row_alone_differs(problem *p, gpu_attention_kernel kernel, const float *batch, int r)
{
    gpu_attend_args a = p->args[1];
    gpu_step step = p->step;
    int64_t vectors = (int64_t)r * p->heads;
    step.rows = 1;
    step.sequences += r;
    step.positions += r;
    a.step = device_copy(&step, 1);
    a.q_absorbed += vectors * p->latent;
    a.q += vectors * (p->nope + p->rope);
    a.selected += (int64_t)r * p->topk;
    a.selected_count += r;
    float *alone = result(p, kernel, &a, 1);
    int differs = memcmp(alone, batch + vectors * p->latent, (size_t)p->heads * (size_t)p->latent * 4) != 0;
    free(alone);
    return differs;
}

/* Queries and keys are rounded to f16: what that changes in a score grows with the scores, and moves the weights by as much. */
static int check(const char *name, int rows_in_step, int heads, int latent, int dtype, float spread)
{
    double allowed = spread > 1.0f ? 2e-2 : 2e-3;
    static const int counts[8] = {2048, 1, 63, 64, 65, 512, 513, 1000}, small[8] = {256, 1, 63, 64, 65, 128, 255, 200};
    problem p = {};
    p.rows = rows_in_step, p.heads = heads, p.latent = latent, p.rope = latent / 8 > 32 ? 64 : 32, p.topk = latent == 512 ? 2048 : 256;
    p.dtype = dtype, p.context = 8000, p.sequences = 3, p.spread = spread;
    make_problem(&p, latent == 512 ? counts : small);
    size_t bytes = (size_t)p.rows * (size_t)heads * (size_t)latent * 4;
    float *split = result(&p, GPU_ATTENTION_SPLIT, &p.args[1], p.rows);
    double error = worst_error(&p);
    int alone = 0;
    for (int r = 0; r < 8; r++)
        alone += row_alone_differs(&p, GPU_ATTENTION_SPLIT, split, r);
    int bad = error > allowed || alone;
    printf("%-22s split: error %.1e%s, rows that differ alone: %d", name, error, error > allowed ? " WRONG" : "", alone);
    if (gpu_attention_supports(GPU_ATTENTION_ROWS, &p.args[1])) {
        float *rows = result(&p, GPU_ATTENTION_ROWS, &p.args[1], p.rows);
        error = worst_error(&p);
        alone = 0;
        for (int r = 0; r < 8; r++)
            alone += row_alone_differs(&p, GPU_ATTENTION_ROWS, rows, r);
        int same = memcmp(rows, split, bytes) == 0;
        printf("; rows: error %.1e%s, alone: %d, %s", error, error > allowed ? " WRONG" : "", alone,
               same ? "same bits as split" : "OTHER BITS than split");
        bad = bad || error > allowed || alone || !same;
    }
    printf("\n");
    return bad;
}

static void time_decode(int rows, int heads, int dtype)
{
    problem p = {};
    p.rows = rows, p.heads = heads, p.latent = 512, p.rope = 64, p.topk = 2048, p.dtype = dtype, p.context = 16384;
    p.sequences = rows, p.spread = 0.5f;
    make_problem(&p, NULL);
    float us = median_us(41, [&](int i) { gpu_attention(GPU_ATTENTION_SPLIT, &p.args[i % LAYERS], &p.limits, p.scratch, rows, 0); });
    float in_graph =
        graph_us(40, [&](int i, gpu_stream s) { gpu_attention(GPU_ATTENTION_SPLIT, &p.args[i % LAYERS], &p.limits, p.scratch, rows, s); });
    double bytes = (double)rows * 2048 * (double)entry_bytes(&p), flops = (double)rows * heads * 2048 * 2176;
    printf("decode  %4d rows %2d heads %s: %8.1f us (in a graph %8.1f us) %5.2f TB/s %5.1f TFLOP/s\n", rows, heads,
           dtype == GPU_KV_FP8 ? "fp8 " : "bf16", us, in_graph, bytes / in_graph * 1e-6, flops / in_graph * 1e-6);
}

static void time_prefill(gpu_attention_kernel kernel, int rows, int heads, int dtype)
{
    problem p = {};
    p.rows = rows, p.heads = heads, p.latent = 512, p.rope = 64, p.topk = 2048, p.dtype = dtype, p.context = 20480;
    p.sequences = 1, p.spread = 0.5f;
    make_problem(&p, NULL);
    float us = median_us(7, [&](int i) { gpu_attention(kernel, &p.args[i % LAYERS], &p.limits, p.scratch, rows, 0); });
    printf("prefill %4d rows %2d heads %s %-5s: %8.1f us %5.1f TFLOP/s\n", rows, heads, dtype == GPU_KV_FP8 ? "fp8 " : "bf16",
           kernel == GPU_ATTENTION_ROWS ? "rows" : "split", us, (double)rows * heads * 2048 * 2176 / us * 1e-6);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"check16",   "check8",    "check64",     "checkbf16", "checknano", "checkwide",
                                        "decode1",   "decode32",  "decode64",    "decode128", "decode8h",  "decodebf16",
                                        "prefill64", "prefill16", "prefillbf16", "prefillall"};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2)
        return run_cases(argv[0], names, (int)(sizeof names / sizeof names[0]));
    const char *name = argv[1];
    int bad = 0;
    if (!strcmp(name, "check16"))
        bad = check("16 heads fp8", 16, 16, 512, GPU_KV_FP8, 0.5f) | check("16 heads fp8, 150 rows", 150, 16, 512, GPU_KV_FP8, 0.5f) |
              check("16 heads fp8 steep", 16, 16, 512, GPU_KV_FP8, 6.0f);
    else if (!strcmp(name, "check8"))
        bad = check("8 heads fp8", 16, 8, 512, GPU_KV_FP8, 0.5f) | check("40 heads fp8", 16, 40, 512, GPU_KV_FP8, 0.5f);
    else if (!strcmp(name, "check64"))
        bad = check("64 heads fp8", 16, 64, 512, GPU_KV_FP8, 0.5f) | check("64 heads fp8 steep", 16, 64, 512, GPU_KV_FP8, 6.0f);
    else if (!strcmp(name, "checkbf16"))
        bad = check("64 heads bf16", 16, 64, 512, GPU_KV_BF16, 0.5f);
    else if (!strcmp(name, "checknano"))
        bad = check("nano fp8", 16, 8, 128, GPU_KV_FP8, 0.7f) | check("nano bf16", 16, 8, 128, GPU_KV_BF16, 0.7f);
    else if (!strcmp(name, "checkwide"))
        bad = check("128 heads fp8", 16, 128, 512, GPU_KV_FP8, 0.5f);
    else if (!strcmp(name, "decode1"))
        time_decode(1, 16, GPU_KV_FP8);
    else if (!strcmp(name, "decode32"))
        time_decode(32, 16, GPU_KV_FP8);
    else if (!strcmp(name, "decode64"))
        time_decode(64, 16, GPU_KV_FP8);
    else if (!strcmp(name, "decode128"))
        time_decode(128, 16, GPU_KV_FP8);
    else if (!strcmp(name, "decode8h"))
        time_decode(128, 8, GPU_KV_FP8);
    else if (!strcmp(name, "decodebf16"))
        time_decode(128, 16, GPU_KV_BF16);
    else if (!strcmp(name, "prefill64"))
        time_prefill(GPU_ATTENTION_ROWS, 2048, 64, GPU_KV_FP8);
    else if (!strcmp(name, "prefill16"))
        time_prefill(GPU_ATTENTION_SPLIT, 2048, 16, GPU_KV_FP8);
    else if (!strcmp(name, "prefillbf16"))
        time_prefill(GPU_ATTENTION_ROWS, 2048, 64, GPU_KV_BF16);
    else if (!strcmp(name, "prefillall"))
        time_prefill(GPU_ATTENTION_ROWS, 8192, 64, GPU_KV_FP8);
    else {
        printf("no case %s\n", name);
        bad = 1;
    }
    return bad;
}
