/* What the attention and indexer programs share: checked calls, random data made on the device, timing, one process per case. */
#ifndef BENCH_GPU_ATTENTION_BENCH_H
#define BENCH_GPU_ATTENTION_BENCH_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/gpu/gpu_kernels.h"

#define CHECK(call)                                                                                        \
    do {                                                                                                   \
        gpu_status status_ = (call);                                                                       \
        if (status_ != GPU_OK) {                                                                           \
            printf("FAILED %s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_));       \
            fflush(stdout);                                                                                \
            _exit(3);                                                                                      \
        }                                                                                                  \
    } while (0)

static inline void *device_memory(size_t bytes, int poison)
{
    void *p;
    CHECK(cudaMalloc(&p, bytes));
    CHECK(cudaMemset(p, poison, bytes));
    return p;
}

template <class T> static T *device_copy(const T *from, size_t count)
{
    T *p;
    CHECK(cudaMalloc((void **)&p, count * sizeof(T)));
    CHECK(cudaMemcpy(p, from, count * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

static __host__ __device__ inline uint32_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 32;
    return (uint32_t)x;
}

/* About normal, variance 1. */
static __host__ __device__ inline float normal(uint64_t x)
{
    uint32_t a = mix(x * 2 + 1), b = mix(x * 2 + 0x51ed270b0000ull);
    float s = 0;
    for (int i = 0; i < 4; i++)
        s += (float)((a >> (8 * i)) & 255) + (float)((b >> (8 * i)) & 255);
    return (s - 1020.0f) / 209.0f;
}

static __global__ void fill_normal(float *p, int64_t n, float scale, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        p[i] = scale * normal(seed + (uint64_t)i);
}

static inline float *random_floats(int64_t n, float scale, uint64_t seed)
{
    float *p = (float *)device_memory((size_t)n * 4, 0xff);
    fill_normal<<<1024, 256>>>(p, n, scale, seed << 40);
    CHECK(cudaGetLastError());
    return p;
}

/* Codes without NaN; the lower half of them is near zero. */
static __device__ inline uint8_t random_e4m3(uint64_t x)
{
    uint8_t code = (uint8_t)mix(x);
    return (code & 0x7f) == 0x7f ? 0x33 : code;
}

static __device__ inline void put_bf16(uint8_t *p, float v)
{
    uint16_t code = (uint16_t)((__float_as_uint(v) + 0x8000u) >> 16);
    p[0] = (uint8_t)code;
    p[1] = (uint8_t)(code >> 8);
}

/* Entries of n values: fp8 with a scale per 128, of which `plain` last ones are bf16 instead; or bf16. One thread per entry. */
static __global__ void fill_entries(uint8_t *pages, int64_t page_bytes, int64_t offset, int64_t entry_bytes, int64_t entries, int dtype,
                                    int n, int plain, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < entries; i += (int64_t)gridDim.x * blockDim.x) {
        uint8_t *e = pages + i / GPU_PAGE_TOKENS * page_bytes + offset + i % GPU_PAGE_TOKENS * entry_bytes;
        uint64_t x = seed + (uint64_t)i * 1024;
        int coded = dtype == GPU_KV_FP8 ? n - plain : 0;
        for (int j = 0; j < coded; j++)
            e[j] = random_e4m3(x + (uint64_t)j);
        e += coded;
        for (int g = 0; g < coded; g += GPU_KV_GROUP, e += 4) {
            float scale = (1.0f + 0.3f * normal(x + 800 + (uint64_t)g)) * 0.012f;
            memcpy(e, &scale, 4);
        }
        for (int j = coded; j < n; j++, e += 2)
            put_bf16(e, normal(x + (uint64_t)j));
    }
}

static __host__ __device__ inline double e4m3_value(uint8_t code)
{
    int e = (code >> 3) & 15, m = code & 7;
    double v = e ? ldexp(1.0 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);
    return code & 0x80 ? -v : v;
}

static __host__ __device__ inline double bf16_value(const uint8_t *p)
{
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Value j of an entry as fill_entries and model/kv_layout.h have it. */
static __host__ __device__ inline double entry_value(const uint8_t *e, int dtype, int n, int plain, int j)
{
    if (dtype == GPU_KV_BF16)
        return bf16_value(e + 2 * j);
    int coded = n - plain, groups = (coded + GPU_KV_GROUP - 1) / GPU_KV_GROUP;
    if (j >= coded)
        return bf16_value(e + coded + 4 * groups + 2 * (j - coded));
    float scale;
    memcpy(&scale, e + coded + j / GPU_KV_GROUP * 4, 4);
    return e4m3_value(e[j]) * (double)scale;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Median time of run(i) in microseconds; run(i) with i rotating, so that data sets rotate. */
template <class F> static float median_us(int times, F run)
{
    static float us[1024];
    gpu_event begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 3; i++)
        run(i);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < times; i++) {
        CHECK(cudaEventRecord(begin));
        run(i);
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        CHECK(cudaEventElapsedTime(&us[i], begin, end));
    }
    CHECK(cudaGetLastError());
    qsort(us, (size_t)times, sizeof us[0], compare_floats);
    return us[times / 2] * 1000.0f;
}

/* Time of one run out of a graph of `length` of them, in microseconds: what a step of a captured graph pays. */
template <class F> static float graph_us(int length, F run)
{
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < length; i++)
        run(i, s);
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    float best = 1e30f;
    for (int i = 0; i < 5; i++) {
        gpu_event begin, end;
        float ms;
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        CHECK(cudaEventRecord(begin, s));
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaEventRecord(end, s));
        CHECK(cudaStreamSynchronize(s));
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        best = fminf(best, ms * 1000.0f / (float)length);
    }
    return best;
}

/* Runs each case in a process of its own, so that one that fails or hangs does not hide the others. */
static inline int run_cases(const char *self, const char *const *names, int count)
{
    int failed = 0;
    for (int i = 0; i < count; i++) {
        char command[512];
        snprintf(command, sizeof command, "timeout 25 %s %s", self, names[i]);
        fflush(stdout);
        int status = system(command);
        if (status != 0) {
            printf("%s: FAILED with status %d\n", names[i], status >> 8);
            failed++;
        }
    }
    return failed;
}

#endif
