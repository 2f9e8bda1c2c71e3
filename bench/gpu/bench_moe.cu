/* The experts on the GPU: are they right, are they the same for any batch, how fast are they.
 *
 *   nvcc -std=c++17 -O3 -Isrc -gencode arch=compute_90a,code=sm_90a bench/gpu/bench_moe.cu src/device/gpu/hopper/gpu_moe.cu \
 *       src/device/gpu/hopper/gpu_moe_sm90.cu src/device/gpu/hopper/gpu_moe_row.cu -o bench_moe
 *   bench_moe check nano|tp4|tp8     against sums in f64: of the same rounded inputs (act, y), and without rounding (out)
 *   bench_moe same nano|tp4|tp8      every variant and every batch gives the bits of a row alone
 *   bench_moe time tp4|tp8 balanced|random [all]        microseconds a layer, stages and all, by number of rows; x and out are bf16;
 *                                                       all: every variant that makes sense
 *   bench_moe one tp4|tp8 balanced|random ROWS VARIANT  a few launches, for a profiler
 *   bench_moe copy                   memory bandwidth of a plain copy
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/gpu/hopper/gpu_moe.h"
#include "device/gpu/hopper/gpu_moe_pack.h"

#define CHECK(call)                                                                                         \
    do {                                                                                                    \
        gpu_status status_ = (call);                                                                        \
        if (status_ != GPU_OK) {                                                                            \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_));              \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

template <class T> static T *device_alloc(size_t count)
{
    void *p;
    CHECK(cudaMalloc(&p, count * sizeof(T)));
    return (T *)p;
}

static __host__ __device__ uint32_t hash(uint64_t v)
{
    v ^= v >> 33;
    v *= 0xff51afd7ed558ccdull;
    v ^= v >> 33;
    v *= 0xc4ceb9fe1a85ec53ull;
    return (uint32_t)(v >> 32);
}

/* ---- random inputs ---- */

__global__ void fill_codes(uint8_t *codes, size_t count, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        codes[i] = (uint8_t)hash(seed + i);
}

/* Exponents of weights near 1/64, spread over 4 binades, and one group in 2048 far below the others. */
__global__ void fill_scales(uint8_t *scales, size_t count, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = hash(seed + i);
        scales[i] = (uint8_t)(118 + h % 4 - (h / 4 % 2048 == 0 ? 10 + h / 8192 % 4 : 0));
    }
}

/* Nearly normal, a few columns far larger than the rest. */
__global__ void fill_rows(float *x, size_t count, int hidden, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        float sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (float)(hash(seed + i * 4 + k) >> 8) * (1.0f / 16777216) - 0.5f;
        x[i] = sum * 1.7f * (i % hidden % 511 == 7 ? 12.0f : 1.0f);
    }
}

__global__ void round_rows(const float *x, uint16_t *out, size_t count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        out[i] = (uint16_t)((__float_as_uint(x[i]) + 0x8000) >> 16);
}

/* ---- a layer and its reference ---- */

struct layer {
    uint8_t *codes[2], *scales[2]; /* gate/up and down as a checkpoint has them */
    uint8_t *packed[2];
    float *row_scales[2];
    unsigned long long lowered;
};

static int rows_of(const gpu_moe_shape *s, int product) { return product == 0 ? 2 * s->inter : s->hidden; }
static int cols_of(const gpu_moe_shape *s, int product) { return product == 0 ? s->hidden : s->inter; }

static layer layer_make(const gpu_moe_shape *s, uint64_t seed, bool keep)
{
    layer l = {};
    int matrices = s->experts + s->shared;
    unsigned long long *lowered = device_alloc<unsigned long long>(1);
    CHECK(cudaMemset(lowered, 0, sizeof *lowered));
    for (int i = 0; i < 2; i++) {
        int rows = rows_of(s, i), cols = cols_of(s, i);
        size_t values = (size_t)matrices * rows * cols;
        l.codes[i] = device_alloc<uint8_t>(values / 2);
        l.scales[i] = device_alloc<uint8_t>(values / 32);
        l.packed[i] = device_alloc<uint8_t>(matrices * moe_packed_bytes(rows, cols));
        l.row_scales[i] = device_alloc<float>((size_t)matrices * rows);
        fill_codes<<<4096, 256>>>(l.codes[i], values / 2, seed + i * 0x1000000000ull);
        fill_scales<<<4096, 256>>>(l.scales[i], values / 32, seed + 0x7000000000ull + i * 0x1000000000ull);
        CHECK(gpu_moe_pack(i == 0, l.codes[i], l.scales[i], matrices, rows, cols, l.packed[i], l.row_scales[i], lowered, 0));
        CHECK(cudaDeviceSynchronize());
        if (!keep) {
            CHECK(cudaFree(l.codes[i]));
            CHECK(cudaFree(l.scales[i]));
        }
    }
    CHECK(cudaMemcpy(&l.lowered, lowered, sizeof l.lowered, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(lowered));
    return l;
}

/* A weight as the packed matrix has it: groups far below their row's largest are rounded. */
__device__ double weight_at(const uint8_t *codes, const uint8_t *scales, int64_t row, int cols, int col, int top)
{
    const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    int down;
    int scale = moe_scale_of(scales[row * (cols / 32) + col / 32], top, &down);
    uint32_t code = moe_code_at(codes, cols, row, col);
    if (down > 0)
        code = moe_code_lower(code, down);
    return (code & 8 ? -1.0 : 1.0) * ldexp(values[code & 7], scale - MOE_SCALE_TOP + top - 127);
}

__device__ float e4m3_value(uint8_t code)
{
    int e = code >> 3 & 15, m = code & 7;
    float v = e == 0 ? ldexpf((float)m, -9) : ldexpf((float)(8 + m), e - 10);
    return code & 128 ? -v : v;
}

__device__ uint8_t e4m3_round(float v)
{
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(v));
    return (uint8_t)pair;
}

__device__ double warp_sum(double v)
{
    for (int m = 16; m > 0; m /= 2)
        v += __shfl_xor_sync(0xFFFFFFFFu, v, m);
    return v;
}

__device__ int row_top(const uint8_t *scales, int64_t row, int groups)
{
    int top = 0;
    for (int i = threadIdx.x % 32; i < groups; i += 32)
        top = max(top, (int)scales[row * groups + i]);
    return __reduce_max_sync(0xFFFFFFFFu, top);
}

/* One warp per output: dot of one weight row with a vector. */
__device__ double dot_row(const uint8_t *codes, const uint8_t *scales, int64_t row, int cols, const double *v)
{
    int top = row_top(scales, row, cols / 32);
    double sum = 0;
    for (int k = threadIdx.x % 32; k < cols; k += 32)
        sum += weight_at(codes, scales, row, cols, k, top) * v[k];
    return warp_sum(sum);
}

/* x of row `row` as f64: as it is, or rounded as the kernels do. */
__global__ void reference_x(const float *x, const int *rows, int hidden, int rounded, double *out)
{
    __shared__ float top;
    const float *from = x + (int64_t)rows[blockIdx.x] * hidden;
    if (threadIdx.x == 0) {
        float t = 0;
        for (int i = 0; i < hidden; i++)
            t = fmaxf(t, fabsf(from[i]));
        top = t;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < hidden; i += blockDim.x)
        out[(int64_t)blockIdx.x * hidden + i] =
            rounded ? (double)e4m3_value(e4m3_round(from[i] * (448.0f / top))) * (double)(top * (1.0f / 448.0f)) : (double)from[i];
}

/* act[row i][slot][column] for the chosen rows; grid (columns / 8, slots, rows), 8 warps. */
__global__ void reference_act(gpu_moe_shape s, const uint8_t *codes, const uint8_t *scales, const double *x, const int *rows,
                              const int32_t *experts, double *act)
{
    int col = blockIdx.x * 8 + threadIdx.x / 32, slot = blockIdx.y, slots = s.topk + s.shared;
    int64_t expert = slot < s.topk ? experts[rows[blockIdx.z] * s.topk + slot] : s.experts;
    const double *v = x + (int64_t)blockIdx.z * s.hidden;
    double gate = dot_row(codes, scales, expert * 2 * s.inter + col, s.hidden, v);
    double up = dot_row(codes, scales, expert * 2 * s.inter + s.inter + col, s.hidden, v);
    if (threadIdx.x % 32 == 0)
        act[((int64_t)blockIdx.z * slots + slot) * s.inter + col] = gate / (1.0 + exp(-gate)) * up;
}

/* act as the kernels wrote it, for the chosen rows: found through the sorted list. */
__global__ void gather_act(gpu_moe_shape s, gpu_moe_scratch w, int pairs, const int *rows, int count, double *act)
{
    int slots = s.topk + s.shared;
    for (int i = 0; i < count; i++)
        if (w.pairs[blockIdx.x] / slots == rows[i])
            for (int c = threadIdx.x; c < s.inter; c += blockDim.x)
                act[((int64_t)i * slots + w.pairs[blockIdx.x] % slots) * s.inter + c] =
                    (double)__uint_as_float((uint32_t)w.act[(int64_t)blockIdx.x * s.inter + c] << 16);
}

/* Rounds lines of act as the down product does. */
__global__ void reference_round(double *act, int inter)
{
    double *line = act + (int64_t)blockIdx.x * inter;
    __shared__ float top;
    if (threadIdx.x == 0) {
        float t = 0;
        for (int i = 0; i < inter; i++)
            t = fmaxf(t, fabsf((float)line[i]));
        top = t;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < inter; i += blockDim.x)
        line[i] = (double)e4m3_value(e4m3_round((float)line[i] * (448.0f / top))) * (double)(top * (1.0f / 448.0f));
}

/* y[row i][slot][column]; grid (hidden / 8, slots, rows). */
__global__ void reference_y(gpu_moe_shape s, const uint8_t *codes, const uint8_t *scales, const double *act, const int *rows,
                            const int32_t *experts, double *y)
{
    int col = blockIdx.x * 8 + threadIdx.x / 32, slot = blockIdx.y, slots = s.topk + s.shared;
    int64_t expert = slot < s.topk ? experts[rows[blockIdx.z] * s.topk + slot] : s.experts;
    int64_t line = (int64_t)blockIdx.z * slots + slot;
    double sum = dot_row(codes, scales, expert * s.hidden + col, s.inter, act + line * s.inter);
    if (threadIdx.x % 32 == 0)
        y[line * s.hidden + col] = sum;
}

/* ---- a problem: inputs of a step ---- */

struct problem {
    gpu_moe_shape shape;
    int rows;
    float *x;
    int32_t *experts;
    float *routing;
    float *out;
    uint16_t *x16; /* x as bf16, for the measurements */
    void *memory;
    gpu_moe_args args;
    int distinct; /* experts that have rows, the shared one included */
};

static void route(const gpu_moe_shape *s, int rows, bool balanced, uint64_t seed, int32_t *experts, float *routing)
{
    int offset = (int)(hash(seed) % (uint32_t)s->experts);
    for (int row = 0; row < rows; row++) {
        int32_t *e = experts + row * s->topk;
        for (int k = 0; k < s->topk; k++) {
            bool again = true;
            for (int tries = 0; again; tries++) {
                e[k] = balanced ? (row * s->topk + k + offset) % s->experts
                                : (int32_t)(hash(seed + ((uint64_t)row * s->topk + k) * 1000 + tries) % (uint32_t)s->experts);
                again = false;
                for (int i = 0; i < k; i++)
                    again |= e[i] == e[k];
            }
        }
        for (int i = 1; i < s->topk; i++)
            for (int j = i; j > 0 && e[j - 1] > e[j]; j--) {
                int32_t t = e[j];
                e[j] = e[j - 1];
                e[j - 1] = t;
            }
        for (int k = 0; k < s->topk; k++)
            routing[row * s->topk + k] = 0.1f + (float)(hash(seed + 77 + row * s->topk + k) % 1000) * 5e-4f;
    }
}

static problem problem_make(const gpu_moe_shape *s, const layer *l, int rows, bool balanced, uint64_t seed)
{
    problem p = {*s, rows};
    size_t pairs = (size_t)rows * s->topk;
    int32_t *experts = (int32_t *)malloc(pairs * 4);
    float *routing = (float *)malloc(pairs * 4);
    bool *seen = (bool *)calloc(s->experts, 1);
    route(s, rows, balanced, seed, experts, routing);
    for (size_t i = 0; i < pairs; i++) {
        p.distinct += !seen[experts[i]];
        seen[experts[i]] = true;
    }
    p.distinct += s->shared;
    p.x = device_alloc<float>((size_t)rows * s->hidden);
    p.out = device_alloc<float>((size_t)rows * s->hidden);
    p.experts = device_alloc<int32_t>(pairs);
    p.routing = device_alloc<float>(pairs);
    fill_rows<<<1024, 256>>>(p.x, (size_t)rows * s->hidden, s->hidden, seed * 977);
    p.x16 = device_alloc<uint16_t>((size_t)rows * s->hidden);
    round_rows<<<1024, 256>>>(p.x, p.x16, (size_t)rows * s->hidden);
    CHECK(cudaMemcpy(p.experts, experts, pairs * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(p.routing, routing, pairs * 4, cudaMemcpyHostToDevice));
    size_t bytes = gpu_moe_scratch_make(s, rows, nullptr, nullptr);
    p.memory = device_alloc<uint8_t>(bytes);
    CHECK(cudaMemset(p.memory, 0xFF, bytes)); /* NaN everywhere */
    CHECK(cudaMemset(p.out, 0xFF, (size_t)rows * s->hidden * 4));
    gpu_moe_args a = {*s, {l->packed[0], l->row_scales[0], l->packed[1], l->row_scales[1]}};
    a.rows = rows;
    a.x = p.x;
    a.x_type = GPU_MOE_F32;
    a.out_type = GPU_MOE_F32;
    a.experts = p.experts;
    a.routing = p.routing;
    a.out = p.out;
    a.variant = -1;
    gpu_moe_scratch_make(s, rows, p.memory, &a.scratch);
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    a.blocks = prop.multiProcessorCount;
    p.args = a;
    free(experts);
    free(routing);
    free(seen);
    return p;
}

static void problem_free(problem *p)
{
    CHECK(cudaFree(p->x));
    CHECK(cudaFree(p->x16));
    CHECK(cudaFree(p->out));
    CHECK(cudaFree(p->experts));
    CHECK(cudaFree(p->routing));
    CHECK(cudaFree(p->memory));
}

/* ---- check ---- */

/* ||a - b|| / ||b|| and the largest difference over the rms of b. */
static void compare(const char *what, const double *a, const double *b, size_t count)
{
    double diff = 0, norm = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        double d = a[i] - b[i];
        diff += d * d;
        norm += b[i] * b[i];
        most = isnan(d) ? INFINITY : fmax(most, fabs(d));
    }
    printf(" %s %.2e (max %.2e)", what, sqrt(diff / norm), most / sqrt(norm / (double)count));
}

static double *to_host(const double *device, size_t count)
{
    double *host = (double *)malloc(count * sizeof *host);
    CHECK(cudaMemcpy(host, device, count * sizeof *host, cudaMemcpyDeviceToHost));
    return host;
}

static void check_one(const gpu_moe_shape *s, const layer *l, int rows, int variant, bool balanced)
{
    enum { MOST = 6 };
    int32_t identity[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    problem p = problem_make(s, l, rows, balanced, 1000 + rows);
    p.args.variant = variant;
    CHECK(gpu_moe_run(&p.args, GPU_MOE_ALL, 0));
    CHECK(cudaDeviceSynchronize());
    int count = rows < MOST ? rows : MOST, chosen[MOST], slots = s->topk + s->shared;
    for (int i = 0; i < count; i++)
        chosen[i] = (int)((int64_t)i * (rows - 1) / (count > 1 ? count - 1 : 1));
    int *where = device_alloc<int>(MOST);
    CHECK(cudaMemcpy(where, chosen, sizeof chosen, cudaMemcpyHostToDevice));
    size_t acts = (size_t)count * slots * s->inter, ys = (size_t)count * slots * s->hidden;
    double *x = device_alloc<double>((size_t)count * s->hidden), *act = device_alloc<double>(acts), *own = device_alloc<double>(acts),
           *y = device_alloc<double>(ys);
    dim3 act_grid(s->inter / 8, slots, count), y_grid(s->hidden / 8, slots, count);
    printf("%6d rows %-11s", rows, variant < 0 ? "auto" : gpu_moe_variant_name(variant));
    reference_x<<<count, 256>>>(p.x, where, s->hidden, 1, x);
    reference_act<<<act_grid, 256>>>(*s, l->codes[0], l->scales[0], x, where, p.experts, act);
    CHECK(cudaMemset(own, 0xFF, acts * 8));
    bool alone = variant < 0 && gpu_moe_variant_for(s, rows) == GPU_MOE_ROW;
    if (alone) /* no sorted list: the lines lie in the order of slots; y stays inside the kernel */
        CHECK(cudaMemcpy(p.args.scratch.pairs, identity, sizeof identity, cudaMemcpyHostToDevice));
    gather_act<<<rows * slots, 128>>>(*s, p.args.scratch, rows * slots, where, count, own);
    double *a = to_host(own, acts), *b = to_host(act, acts);
    compare("act", a, b, acts);
    reference_round<<<count * slots, 256>>>(own, s->inter);
    reference_y<<<y_grid, 256>>>(*s, l->codes[1], l->scales[1], own, where, p.experts, y);
    double *want = to_host(y, ys), *got = (double *)malloc(ys * 8);
    uint16_t *line = (uint16_t *)malloc((size_t)slots * s->hidden * 2);
    for (int i = 0; i < count; i++) {
        CHECK(cudaMemcpy(line, p.args.scratch.y + (size_t)chosen[i] * slots * s->hidden, (size_t)slots * s->hidden * 2,
                         cudaMemcpyDeviceToHost));
        for (int k = 0; k < slots * s->hidden; k++) {
            uint32_t bits = (uint32_t)line[k] << 16;
            float v;
            memcpy(&v, &bits, 4);
            got[(size_t)i * slots * s->hidden + k] = v;
        }
    }
    if (!alone)
        compare("y", got, want, ys);
    reference_x<<<count, 256>>>(p.x, where, s->hidden, 0, x);
    reference_act<<<act_grid, 256>>>(*s, l->codes[0], l->scales[0], x, where, p.experts, act);
    reference_y<<<y_grid, 256>>>(*s, l->codes[1], l->scales[1], act, where, p.experts, y);
    size_t outs = (size_t)count * s->hidden;
    double *exact = to_host(y, ys), *sum = (double *)calloc(outs, 8), *out = (double *)malloc(outs * 8);
    float *routing = (float *)malloc((size_t)rows * s->topk * 4), *out_line = (float *)malloc((size_t)s->hidden * 4);
    CHECK(cudaMemcpy(routing, p.routing, (size_t)rows * s->topk * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) {
        CHECK(cudaMemcpy(out_line, p.out + (size_t)chosen[i] * s->hidden, (size_t)s->hidden * 4, cudaMemcpyDeviceToHost));
        for (int k = 0; k < s->hidden; k++) {
            for (int slot = 0; slot < slots; slot++)
                sum[(size_t)i * s->hidden + k] += (slot < s->topk ? routing[chosen[i] * s->topk + slot] : 1.0f) *
                                                  exact[((size_t)i * slots + slot) * s->hidden + k];
            out[(size_t)i * s->hidden + k] = out_line[k];
        }
    }
    compare("out, unrounded", out, sum, (size_t)count * s->hidden);
    printf("\n");
    free(a), free(b), free(want), free(got), free(line), free(exact), free(sum), free(out), free(routing), free(out_line);
    CHECK(cudaFree(x));
    CHECK(cudaFree(act));
    CHECK(cudaFree(own));
    CHECK(cudaFree(y));
    CHECK(cudaFree(where));
    problem_free(&p);
}

static void check(const gpu_moe_shape *s)
{
    layer l = layer_make(s, 42, true);
    printf("check hidden %d inter %d: %llu of %lld groups rounded\n", s->hidden, s->inter, l.lowered,
           (long long)(s->experts + s->shared) * 3 * s->inter * s->hidden / 32);
    for (int v = 0; gpu_moe_variant_name(v); v++)
        if (gpu_moe_variant_fits(v, s))
            check_one(s, &l, 3 * gpu_moe_variant_width(v) / 2 + 1, v, false);
    const int rows[] = {1, 1024};
    for (int r : rows)
        check_one(s, &l, r, -1, false);
}

/* ---- same bits ---- */

static void same(const gpu_moe_shape *s)
{
    layer l = layer_make(s, 43, false);
    const int most = 600;
    problem p = problem_make(s, &l, most, false, 5);
    size_t bytes = (size_t)most * s->hidden * 4;
    uint8_t *first = (uint8_t *)malloc(bytes), *now = (uint8_t *)malloc(bytes);
    for (int row = 0; row < most; row += 23) { /* each alone */
        gpu_moe_args a = p.args;
        a.rows = 1;
        a.x = p.x + (size_t)row * s->hidden;
        a.experts = p.experts + row * s->topk;
        a.routing = p.routing + row * s->topk;
        a.out = p.out + (size_t)row * s->hidden;
        a.variant = gpu_moe_row_fits(s) ? GPU_MOE_ROW : 0;
        CHECK(gpu_moe_run(&a, GPU_MOE_ALL, 0));
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(first, p.out, bytes, cudaMemcpyDeviceToHost));
    for (int v = 0; gpu_moe_variant_name(v); v++) {
        if (!gpu_moe_variant_fits(v, s))
            continue;
        p.args.variant = v;
        int wrong = 0, repeated = 0;
        for (int again = 0; again < 3; again++) {
            CHECK(cudaMemset(p.out, 0xFF, bytes));
            CHECK(gpu_moe_run(&p.args, GPU_MOE_ALL, 0));
            CHECK(cudaDeviceSynchronize());
            if (again > 0) {
                uint8_t *before = (uint8_t *)malloc(bytes);
                memcpy(before, now, bytes);
                CHECK(cudaMemcpy(now, p.out, bytes, cudaMemcpyDeviceToHost));
                repeated += memcmp(before, now, bytes) != 0;
                free(before);
            } else {
                CHECK(cudaMemcpy(now, p.out, bytes, cudaMemcpyDeviceToHost));
            }
        }
        for (int row = 0; row < most; row += 23)
            wrong += memcmp(first + (size_t)row * s->hidden * 4, now + (size_t)row * s->hidden * 4, (size_t)s->hidden * 4) != 0;
        printf("same hidden %d inter %d %-11s: %d rows of %d differ from the row alone, %d of 2 repetitions differ\n", s->hidden, s->inter,
               gpu_moe_variant_name(v), wrong, (most + 22) / 23, repeated);
    }
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Median microseconds of one layer: a graph of `layers` layers, each with its own routing, on a few weight sets in turn. */
static float time_layers(problem *p, int layers, int stages, int variant)
{
    enum { RUNS = 15 };
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < layers; i++) {
        gpu_moe_args a = p[i].args;
        a.variant = variant;
        a.x = p[i].x16;
        a.x_type = a.out_type = GPU_MOE_BF16;
        CHECK(gpu_moe_run(&a, stages, stream));
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    float us[RUNS];
    for (int i = -2; i < RUNS; i++) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaStreamSynchronize(stream));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0)
            us[i] = ms * 1000 / layers;
    }
    qsort(us, RUNS, sizeof *us, by_value);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return us[RUNS / 2];
}

static void time_rows(const gpu_moe_shape *s, const layer *weights, int sets, int rows, bool balanced, int variant)
{
    enum { MOST = 16 };
    int layers = rows <= 128 ? MOST : 4;
    problem p[MOST];
    double distinct = 0;
    for (int i = 0; i < layers; i++) {
        p[i] = problem_make(s, &weights[i % sets], rows, balanced, 100 + i);
        distinct += (double)p[i].distinct / layers;
    }
    if (variant < 0)
        variant = gpu_moe_variant_for(s, rows);
    float all = time_layers(p, layers, GPU_MOE_ALL, variant), stage[4];
    for (int i = 0; i < 4; i++)
        stage[i] = variant == GPU_MOE_ROW && (i == 0 || i == 3) ? 0.0f : time_layers(p, layers, 1 << i, variant);
    double bytes = distinct * (double)(moe_packed_bytes(2 * s->inter, s->hidden) + moe_packed_bytes(s->hidden, s->inter));
    double flop = 2.0 * rows * (s->topk + s->shared) * 3.0 * s->inter * s->hidden;
    printf("%5d %-11s %5.1f experts: all %8.1f us | prepare %6.1f gate/up %7.1f (%4.2f TB/s) down %7.1f (%4.2f) combine %6.1f | "
           "%5.2f TB/s %6.1f TFLOP/s\n",
           rows, gpu_moe_variant_name(variant), distinct, all, stage[0], stage[1], bytes * 2 / 3 / stage[1] / 1e6, stage[2],
           bytes / 3 / stage[2] / 1e6, stage[3], bytes / all / 1e6, flop / all / 1e6);
    fflush(stdout);
    for (int i = 0; i < layers; i++)
        problem_free(&p[i]);
}

/* what: 0 the variant of each number of rows, 1 all variants that make sense for it. */
static void time_all(const gpu_moe_shape *s, bool balanced, int what)
{
    enum { SETS = 3 };
    const int rows[] = {1, 8, 16, 32, 64, 128, 1024, 8192};
    layer weights[SETS];
    for (int i = 0; i < SETS; i++)
        weights[i] = layer_make(s, 1000 * (i + 1), false);
    printf("time hidden %d inter %d, %s routing\n", s->hidden, s->inter, balanced ? "balanced" : "random");
    for (int r : rows) {
        if (what == 0) {
            time_rows(s, weights, SETS, r, balanced, -1);
            continue;
        }
        if (r == 1)
            time_rows(s, weights, SETS, r, balanced, -1);
        for (int v = 0; gpu_moe_variant_name(v); v++) {
            int width = gpu_moe_variant_width(v), each = r * s->topk / s->experts;
            if (width <= 8 ? r <= 64 : width <= 32 ? r >= 16 && r <= 1024 : width <= 64 ? r >= 128 && r <= 1024 : r >= 1024)
                if (each <= 4 * width)
                    time_rows(s, weights, SETS, r, balanced, v);
        }
    }
}

/* A few launches of one case, for a profiler. */
static void one(const gpu_moe_shape *s, bool balanced, int rows, int variant)
{
    layer l = layer_make(s, 7, false);
    problem p = problem_make(s, &l, rows, balanced, 3);
    p.args.variant = variant;
    for (int i = 0; i < 2; i++)
        CHECK(gpu_moe_run(&p.args, GPU_MOE_ALL, 0));
    CHECK(cudaDeviceSynchronize());
}

static void time_copy(void)
{
    size_t bytes = (size_t)4 << 30;
    uint8_t *a = device_alloc<uint8_t>(bytes), *b = device_alloc<uint8_t>(bytes);
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    fill_codes<<<4096, 256>>>(a, bytes, 1);
    float best = 1e9f;
    for (int i = 0; i < 6; i++) {
        CHECK(cudaEventRecord(begin));
        CHECK(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice));
        CHECK(cudaEventRecord(end));
        CHECK(cudaDeviceSynchronize());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        best = fminf(best, ms);
    }
    printf("copy: %.2f TB/s read and written\n", 2.0 * (double)bytes / best / 1e9);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "", *which = argc > 2 ? argv[2] : "tp4";
    gpu_moe_shape s = {6144, 512, 256, 8, 1};
    if (strcmp(which, "tp8") == 0)
        s.inter = 256;
    if (strcmp(which, "nano") == 0)
        s = {384, 128, 16, 4, 1};
    const char *refused = gpu_moe_supports(&s);
    if (refused) {
        printf("%s\n", refused);
        return 1;
    }
    CHECK(gpu_moe_init());
    if (strcmp(what, "check") == 0)
        check(&s);
    else if (strcmp(what, "same") == 0)
        same(&s);
    else if (strcmp(what, "time") == 0)
        time_all(&s, argc > 3 && strcmp(argv[3], "balanced") == 0, argc > 4);
    else if (strcmp(what, "one") == 0 && argc > 5)
        one(&s, strcmp(argv[3], "balanced") == 0, atoi(argv[4]), atoi(argv[5]));
    else if (strcmp(what, "copy") == 0)
        time_copy();
    else
        printf("bench_moe check|same|time|copy, see the head of bench/gpu/bench_moe.cu\n");
    return 0;
}
