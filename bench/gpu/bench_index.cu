/* The indexer on the GPU: scores against f64, exact selection against the host, same bits whatever the batch, and time.
 *
 *   nvcc -std=c++17 -O3 -Isrc -gencode arch=compute_90a,code=sm_90a -o bench_index bench/gpu/bench_index.cu \
 *     src/device/gpu/hopper/gpu_index.cu src/device/gpu/hopper/gpu_topk.cu && ./bench_index
 *
 * Goal on H200: scores and selection of one row at 16k positions, 32 heads of 128, 2048 selected, in 15 us. */
#include <algorithm>

#include "attention_bench.h"
#include "device/gpu/hopper/gpu_index.h"

typedef struct problem {
    int rows, heads, width, topk, dtype, sequences, context;
    int first_position, step_position; /* row r of a sequence is at first + r * step */
    gpu_step step;
    gpu_index_score_args score;
    gpu_select_args select;
    int32_t *positions;
} problem;

static void make_problem(problem *p)
{
    int per = (p->context + 63) / 64, pages = per * p->sequences;
    int64_t entry = p->dtype == GPU_KV_FP8 ? p->width + 4 : p->width * 2, page_bytes = 64 * entry + 4096;
    int32_t *tables = (int32_t *)malloc((size_t)pages * 4), *first = (int32_t *)malloc((size_t)p->sequences * 4);
    int32_t *sequences = (int32_t *)malloc((size_t)p->rows * 4);
    p->positions = (int32_t *)malloc((size_t)p->rows * 4);
    for (int i = 0; i < pages; i++)
        tables[i] = (int)((int64_t)i * 7919 % pages); /* a permutation: 7919 is prime and divides no number of pages used here */
    for (int i = 0; i < p->sequences; i++)
        first[i] = i * per;
    int rows_each = (p->rows + p->sequences - 1) / p->sequences;
    for (int r = 0; r < p->rows; r++) {
        sequences[r] = r / rows_each;
        p->positions[r] = p->first_position + r % rows_each * p->step_position;
    }
    p->step.rows = p->rows;
    p->step.tables = device_copy(tables, (size_t)pages);
    p->step.table_first = device_copy(first, (size_t)p->sequences);
    p->step.sequences = device_copy(sequences, (size_t)p->rows);
    p->step.positions = device_copy(p->positions, (size_t)p->rows);
    p->step.pages = (uint8_t *)device_memory((size_t)pages * (size_t)page_bytes, 0xff);
    fill_entries<<<1024, 128>>>(p->step.pages, page_bytes, 1024, entry, (int64_t)pages * 64, p->dtype, p->width, 0, (uint64_t)5 << 44);
    gpu_step *step = device_copy(&p->step, 1);
    int score_rows = p->rows < 1024 ? p->rows : 1024;
    p->score.step = step;
    p->score.cache = {p->dtype, 0, 0, p->width, 0, entry, 0, 1024, page_bytes};
    p->score.q = random_floats((int64_t)p->rows * p->heads * p->width, 1.0f, 8);
    p->score.weights = random_floats((int64_t)p->rows * p->heads, 0.2f, 9);
    p->score.context = p->context;
    p->score.scores = (float *)device_memory((size_t)score_rows * (size_t)p->context * 4, 0xff);
    p->score.heads = p->heads, p->score.topk = p->topk, p->score.score_rows = score_rows;
    p->score.scale = 1.0f / sqrtf((float)p->width);
    p->select = {step, p->score.scores, p->score.context, p->topk, 0, score_rows, NULL, NULL};
    p->select.selected = (int32_t *)device_memory((size_t)p->rows * (size_t)p->topk * 4, 0xff);
    p->select.selected_count = (int32_t *)device_memory((size_t)p->rows * 4, 0xff);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
}

static __global__ void reference(gpu_index_score_args a, double *out)
{
    const gpu_step *s = a.step;
    int row = (int)blockIdx.y, position = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (position > s->positions[row])
        return;
    int page = s->tables[s->table_first[s->sequences[row]] + position / 64];
    const uint8_t *e = s->pages + page * a.cache.page_bytes + a.cache.index_offset + position % 64 * a.cache.index_bytes;
    double sum = 0;
    for (int h = 0; h < a.heads; h++) {
        const float *q = a.q + ((int64_t)row * a.heads + h) * a.cache.index_dim;
        double dot = 0;
        for (int j = 0; j < a.cache.index_dim; j++)
            dot += (double)q[j] * entry_value(e, a.cache.dtype, a.cache.index_dim, 0, j);
        sum += (double)a.weights[row * a.heads + h] * a.scale * fmax(dot, 0.0);
    }
    out[(int64_t)row * a.context + position] = sum;
}

static float *scores_of(const gpu_index_score_args *a, gpu_index_tile tile, int pages_per_block)
{
    size_t n = (size_t)a->score_rows * (size_t)a->context;
    float *host = (float *)malloc(n * 4);
    CHECK(cudaMemset(a->scores, 0xff, n * 4));
    gpu_index_scores_sm90(a, tile, pages_per_block, 0);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(host, a->scores, n * 4, cudaMemcpyDeviceToHost));
    return host;
}

/* The selection the slow way. */
static void select_on_host(const float *scores, int n, int k, int32_t *out)
{
    int32_t *order = (int32_t *)malloc((size_t)n * 4);
    for (int i = 0; i < n; i++)
        order[i] = i;
    auto value = [&](int i) { return scores[i] != scores[i] ? -INFINITY : scores[i]; };
    auto number = [&](int i) { return scores[i] != scores[i]; };
    std::sort(order, order + n, [&](int a, int b) {
        if (number(a) != number(b))
            return number(b);
        return value(a) != value(b) ? value(a) > value(b) : a < b;
    });
    std::sort(order, order + k);
    memcpy(out, order, (size_t)k * 4);
    free(order);
}

/* Rows whose selection is not the host's. */
static int wrong_selections(const problem *p, const float *scores, gpu_select_kernel kernel)
{
    gpu_select_args a = p->select;
    size_t n = (size_t)p->rows * (size_t)p->topk;
    int32_t *got = (int32_t *)malloc(n * 4), *count = (int32_t *)malloc((size_t)p->rows * 4),
            *want = (int32_t *)malloc((size_t)p->topk * 4);
    int wrong = 0;
    CHECK(cudaMemset(a.selected, 0xff, n * 4));
    CHECK(cudaMemset(a.selected_count, 0xff, (size_t)p->rows * 4));
    gpu_select_sm90(&a, kernel, 0);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(got, a.selected, n * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(count, a.selected_count, (size_t)p->rows * 4, cudaMemcpyDeviceToHost));
    for (int r = 0; r < p->rows; r++) {
        int seen = p->positions[r] + 1, k = seen < p->topk ? seen : p->topk;
        if (seen <= p->topk)
            for (int i = 0; i < k; i++)
                want[i] = i;
        else
            select_on_host(scores + (size_t)r * (size_t)p->context, seen, k, want);
        wrong += count[r] != k || memcmp(want, got + (size_t)r * (size_t)p->topk, (size_t)k * 4) != 0;
    }
    free(got);
    free(count);
    free(want);
    return wrong;
}

static int check_scores(const char *name, int heads, int width, int dtype, int topk)
{
    problem p = {};
    p.rows = 21, p.heads = heads, p.width = width, p.topk = topk, p.dtype = dtype, p.sequences = 3, p.context = 3700;
    p.first_position = topk - 3, p.step_position = topk == 2048 ? 230 : 480;
    make_problem(&p);
    size_t n = (size_t)p.rows * (size_t)p.context;
    double *device, *want = (double *)malloc(n * 8), difference = 0, size = 0;
    CHECK(cudaMalloc((void **)&device, n * 8));
    reference<<<dim3((unsigned)(p.context + 127) / 128, (unsigned)p.rows), 128>>>(p.score, device);
    CHECK(cudaMemcpy(want, device, n * 8, cudaMemcpyDeviceToHost));
    float *many = scores_of(&p.score, GPU_INDEX_MANY, 7), *some = scores_of(&p.score, GPU_INDEX_SOME, 5);
    float *few = scores_of(&p.score, GPU_INDEX_FEW, 2);
    int other = 0, alone = 0;
    for (int r = 0; r < p.rows; r++)
        for (int i = 0; i <= p.positions[r] && p.positions[r] >= topk; i++) {
            size_t at = (size_t)r * (size_t)p.context + (size_t)i;
            double d = (double)few[at] - want[at];
            difference += d == d ? d * d : 1e18;
            size += want[at] * want[at];
            other += memcmp(&few[at], &many[at], 4) != 0 || memcmp(&few[at], &some[at], 4) != 0;
        }
    int wrong = wrong_selections(&p, few, GPU_SELECT_HELD) + wrong_selections(&p, few, GPU_SELECT_SHARED);
    for (int r = 5; r < p.rows; r += 5) {
        gpu_index_score_args a = p.score;
        a.first_row = r, a.score_rows = 1;
        float *one = scores_of(&a, r % 2 ? GPU_INDEX_MANY : GPU_INDEX_FEW, 3);
        if (p.positions[r] >= topk)
            alone += memcmp(one, few + (size_t)r * (size_t)p.context, (size_t)(p.positions[r] + 1) * 4) != 0;
        free(one);
    }
    double error = sqrt(difference / size);
    bool bad = error > 2e-3 || other || alone || wrong;
    printf("%-16s error %.1e, scores that differ between few and many rows: %d, rows that differ alone: %d, wrong selections: %d%s\n", name,
           error, other, alone, wrong, bad ? " WRONG" : "");
    return bad;
}

/* Scores that selections find hard. */
static float hard_score(int kind, int i, int n)
{
    uint32_t u = mix((uint64_t)kind << 32 | (uint64_t)i);
    switch (kind) {
    case 0: return normal((uint64_t)i);
    case 1: return 1.0f;                                             /* all equal */
    case 2: return (float)(u % 5);                                   /* many ties */
    case 3: return u % 3 ? 0.0f : (u & 8 ? -0.0f : 1.0f);            /* both zeros */
    case 4: return i == n / 2 ? 1e30f : normal((uint64_t)i) * 1e-3f; /* one far away */
    case 5: return (float)i;
    case 6: return (float)-i;
    case 7: return u % 7 == 0 ? INFINITY : u % 7 == 1 ? -INFINITY : normal((uint64_t)i);
    case 8: return u % 50 == 0 ? NAN : normal((uint64_t)i);
    case 9: return 1.0f + (float)(u % 64) * 1.1920929e-7f;           /* neighbours */
    case 10: return expf(20.0f * normal((uint64_t)i));
    default: return (float)(u % 100000) * 1e-40f;                    /* subnormal */
    }
}

static int check_select(gpu_select_kernel kernel, int context)
{
    enum { LENGTHS = 8, KINDS = 12 };
    const int lengths[LENGTHS] = {2047, 2048, 2049, 2050, 5000, context / 2 + 1, context - 1, context};
    problem p = {};
    p.rows = LENGTHS * KINDS, p.topk = 2048, p.context = context;
    p.positions = (int32_t *)malloc((size_t)p.rows * 4);
    float *scores = (float *)malloc((size_t)p.rows * (size_t)context * 4);
    for (int r = 0; r < p.rows; r++) {
        int n = lengths[r % LENGTHS];
        p.positions[r] = n - 1;
        for (int i = 0; i < context; i++)
            scores[(size_t)r * (size_t)context + (size_t)i] = i < n ? hard_score(r / LENGTHS, i, n) : 1e30f;
    }
    p.step.rows = p.rows;
    p.step.positions = device_copy(p.positions, (size_t)p.rows);
    p.select = {device_copy(&p.step, 1), device_copy(scores, (size_t)p.rows * (size_t)context), context, p.topk, 0, p.rows, NULL, NULL};
    p.select.selected = (int32_t *)device_memory((size_t)p.rows * 2048 * 4, 0xff);
    p.select.selected_count = (int32_t *)device_memory((size_t)p.rows * 4, 0xff);
    int wrong = wrong_selections(&p, scores, kernel);
    printf("select %s, up to %d positions: %d lists of 12 kinds and 8 lengths, wrong: %d%s\n",
           kernel == GPU_SELECT_HELD ? "held" : "shared", context, p.rows, wrong, wrong ? " WRONG" : "");
    return wrong != 0;
}

static void time_decode(int rows, int dtype)
{
    problem p = {};
    p.rows = rows, p.heads = 32, p.width = 128, p.topk = 2048, p.dtype = dtype, p.sequences = rows, p.context = 16384;
    p.first_position = 16383;
    make_problem(&p);
    printf("decode %3d rows at 16k %s:", rows, dtype == GPU_KV_FP8 ? "fp8 " : "bf16");
    float best = 1e30f;
    for (int pages = rows == 1 ? 1 : 4; pages <= (rows == 1 ? 4 : 32); pages *= 2) {
        float us = graph_us(50, [&](int, gpu_stream s) { gpu_index_scores_sm90(&p.score, GPU_INDEX_FEW, pages, s); });
        printf(" scores/%d %.2f us,", pages, us);
        best = fminf(best, graph_us(50, [&](int, gpu_stream s) {
            gpu_index_scores_sm90(&p.score, GPU_INDEX_FEW, pages, s);
            gpu_select_sm90(&p.select, GPU_SELECT_HELD, s);
        }));
    }
    float held = graph_us(50, [&](int, gpu_stream s) { gpu_select_sm90(&p.select, GPU_SELECT_HELD, s); });
    float shared = graph_us(50, [&](int, gpu_stream s) { gpu_select_sm90(&p.select, GPU_SELECT_SHARED, s); });
    printf(" select held %.2f us, shared %.2f us, scores and select %.2f us\n", held, shared, best);
}

static void time_prefill(int dtype)
{
    problem p = {};
    p.rows = 8192, p.heads = 32, p.width = 128, p.topk = 2048, p.dtype = dtype, p.sequences = 1, p.context = 20480;
    p.first_position = 12288, p.step_position = 1;
    make_problem(&p);
    double flops = 8192.0 * 16384 * 32 * 128 * 2;
    printf("prefill 8192 rows at 12k..20k %s:", dtype == GPU_KV_FP8 ? "fp8 " : "bf16");
    for (int tile = GPU_INDEX_SOME; tile <= GPU_INDEX_MANY; tile++)
        for (int pages = 80; pages <= 320; pages *= 2) {
            float us = median_us(5, [&](int) {
                for (int first = 0; first < p.rows; first += 1024) {
                    p.score.first_row = first;
                    gpu_index_scores_sm90(&p.score, (gpu_index_tile)tile, pages, 0);
                }
            });
            printf(" %s/%d %.0f us %.0f TFLOP/s,", tile == GPU_INDEX_SOME ? "4 rows" : "8 rows", pages, us, flops / us * 1e-6);
        }
    for (int kernel = GPU_SELECT_HELD; kernel <= GPU_SELECT_SHARED; kernel++) {
        float us = median_us(5, [&](int) {
            for (int first = 0; first < p.rows; first += 1024) {
                p.select.first_row = first;
                gpu_select_sm90(&p.select, (gpu_select_kernel)kernel, 0);
            }
        });
        printf(" select %s %.0f us", kernel == GPU_SELECT_HELD ? "held" : "shared", us);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"fp8", "bf16", "nano", "select", "decode1", "decode32", "decodebf16", "prefill", "prefillbf16"};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 2)
        return run_cases(argv[0], names, (int)(sizeof names / sizeof names[0]));
    const char *name = argv[1];
    int bad = 0;
    if (!strcmp(name, "fp8"))
        bad = check_scores("32 heads fp8", 32, 128, GPU_KV_FP8, 2048);
    else if (!strcmp(name, "bf16"))
        bad = check_scores("32 heads bf16", 32, 128, GPU_KV_BF16, 2048);
    else if (!strcmp(name, "nano"))
        bad = check_scores("nano fp8", 4, 64, GPU_KV_FP8, 256) | check_scores("nano bf16", 4, 64, GPU_KV_BF16, 256);
    else if (!strcmp(name, "select"))
        bad = check_select(GPU_SELECT_SHARED, 45000) | check_select(GPU_SELECT_SHARED, 16384) | check_select(GPU_SELECT_HELD, 16384)
              | check_select(GPU_SELECT_HELD, 20480) | check_select(GPU_SELECT_HELD, 32768);
    else if (!strcmp(name, "decode1"))
        time_decode(1, GPU_KV_FP8);
    else if (!strcmp(name, "decode32"))
        time_decode(32, GPU_KV_FP8);
    else if (!strcmp(name, "decodebf16"))
        time_decode(1, GPU_KV_BF16);
    else if (!strcmp(name, "prefill"))
        time_prefill(GPU_KV_FP8);
    else if (!strcmp(name, "prefillbf16"))
        time_prefill(GPU_KV_BF16);
    else {
        printf("no case %s\n", name);
        bad = 1;
    }
    return bad;
}
