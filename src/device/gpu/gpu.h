/* One set of names for CUDA and HIP: runtime, streams, graphs, and the few intrinsics that differ. The only file that includes a vendor's
 * header (tests/layers.py checks it). Host code in C and kernels in .cu files both include it; the part for kernels is seen by their
 * compilers alone.
 *
 * Kernel files hold one operation each: kernels, and a launcher with C linkage that host code calls. Vendor-specific fast paths
 * (WGMMA and bulk copies of sm_90a, scaled MFMA of gfx950) lie in files of their own behind the same launcher.
 *
 * Four ways to compile:
 *     nvcc                                      NVIDIA; host code by the C compiler against the same header
 *     clang -x hip                              AMD, with HIP's headers
 *     clang -x hip -DGPU_DEVICE_ONLY            AMD kernels alone, without any ROCm file (tools/amd.sh)
 *     any C++ compiler -DGPU_EMULATE            kernels as plain C++ on the CPU (tests/gpu/emulate.h), for tests
 * Launchers lie between #if GPU_HOST_CODE and #endif. */
#ifndef DEVICE_GPU_GPU_H
#define DEVICE_GPU_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(GPU_EMULATE)
#include <emulate.h>
#elif defined(__HIP__) && !defined(GPU_DEVICE_ONLY)
#include <hip/hip_runtime.h>
#elif !defined(__HIP__)
#include <cuda_runtime.h>
#endif

#if defined(__HIP__)
#define GPU_AMD 1
#else
#define GPU_AMD 0
#endif

#if defined(GPU_DEVICE_ONLY)
#define GPU_HOST_CODE 0
#else
#define GPU_HOST_CODE 1
#endif

#ifdef __cplusplus
#define GPU_API extern "C"
#else
#define GPU_API extern
#endif

/* Threads of a hardware warp (a wavefront), and lanes that our reductions and shuffles work on: half a wavefront on AMD, so that sums
 * have the same order everywhere. */
#if GPU_AMD
enum { GPU_WARP = 64, GPU_LANES = 32 };
#else
enum { GPU_WARP = 32, GPU_LANES = 32 };
#endif

/* ---- runtime ---- */

#if GPU_HOST_CODE
/* A function or type of the vendor's runtime by the part of its name that all have in common: GPU_RUNTIME(Malloc)(...). */
#if defined(GPU_EMULATE)
#define GPU_RUNTIME(name) emulated##name
#elif GPU_AMD
#define GPU_RUNTIME(name) hip##name
#else
#define GPU_RUNTIME(name) cuda##name
#endif

typedef GPU_RUNTIME(Stream_t) gpu_stream;
typedef GPU_RUNTIME(Event_t) gpu_event;
typedef GPU_RUNTIME(GraphExec_t) gpu_graph;
typedef GPU_RUNTIME(Error_t) gpu_status;
#define GPU_OK GPU_RUNTIME(Success)

typedef struct gpu_properties {
    char name[64];       /* "NVIDIA H200" */
    int major, minor;    /* compute capability; AMD: of the architecture */
    int processors;      /* SMs or CUs */
    size_t memory_bytes;
    size_t free_bytes;
} gpu_properties;

/* gpu_runtime.c. Functions that return a status change nothing else when they fail; gpu_words says what a status means. */
GPU_API const char *gpu_words(gpu_status s);
GPU_API const char *gpu_kind(void); /* "cuda", "hip" or "emulated" */
GPU_API gpu_status gpu_devices(int *count);
GPU_API gpu_status gpu_use(int index, gpu_properties *out);
GPU_API gpu_status gpu_alloc(void **out, size_t bytes);
GPU_API gpu_status gpu_alloc_host(void **out, size_t bytes); /* pinned: copies from and to it run beside the host */
GPU_API void gpu_free(void *memory);
GPU_API void gpu_free_host(void *memory);
GPU_API gpu_status gpu_zero(void *memory, size_t bytes, gpu_stream s);
GPU_API gpu_status gpu_to_device(void *to, const void *from, size_t bytes, gpu_stream s);
GPU_API gpu_status gpu_to_host(void *to, const void *from, size_t bytes, gpu_stream s);
GPU_API gpu_status gpu_on_device(void *to, const void *from, size_t bytes, gpu_stream s);
GPU_API gpu_status gpu_stream_create(gpu_stream *out);
GPU_API void gpu_stream_destroy(gpu_stream s);
GPU_API gpu_status gpu_stream_wait(gpu_stream s);            /* the host waits for all work of the stream */
GPU_API gpu_status gpu_event_create(gpu_event *out);
GPU_API void gpu_event_destroy(gpu_event e);
GPU_API gpu_status gpu_event_record(gpu_event e, gpu_stream s);
GPU_API gpu_status gpu_event_wait(gpu_event e);              /* the host waits; at once when it was never recorded */
GPU_API gpu_status gpu_stream_after(gpu_stream s, gpu_event e); /* later work of s waits */
GPU_API gpu_status gpu_event_us(gpu_event from, gpu_event to, double *us);
GPU_API gpu_status gpu_capture_begin(gpu_stream s);
GPU_API gpu_status gpu_capture_end(gpu_stream s, gpu_graph *out);
GPU_API gpu_status gpu_graph_launch(gpu_graph g, gpu_stream s);
GPU_API void gpu_graph_destroy(gpu_graph g);
GPU_API gpu_status gpu_last_launch(void); /* of the launches since the last call, the first that was refused */
#else
typedef void *gpu_stream; /* in declarations only */
#endif

/* ---- kernels ---- */

#if defined(__CUDACC__) || defined(__HIP__) || (defined(GPU_EMULATE) && defined(__cplusplus))

#if defined(GPU_DEVICE_ONLY)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
struct gpu_index_3 {
    unsigned x, y, z;
};
static __device__ inline gpu_index_3 gpu_thread_index()
{
    return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
static __device__ inline gpu_index_3 gpu_block_index()
{
    return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
#define threadIdx gpu_thread_index()
#define blockIdx gpu_block_index()
#define GPU_GRID_X (__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x())
#else
#define GPU_GRID_X (gridDim.x)
#endif

#define GPU_DEVICE static __device__ inline
#if defined(GPU_EMULATE)
#define GPU_UNROLL _Pragma("GCC unroll 8")
#define GPU_NO_UNROLL
#define GPU_DYNAMIC_SHARED(type, name) type *name = (type *)emulated_shared()
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    emulated_launch(#kernel, grid, block, shared_bytes, stream, emulated_bind(kernel, __VA_ARGS__))
#else
#define GPU_UNROLL _Pragma("unroll")
#define GPU_NO_UNROLL _Pragma("unroll 1")
#define GPU_DYNAMIC_SHARED(type, name) \
    extern __shared__ __attribute__((aligned(16))) unsigned char gpu_dynamic_shared[]; \
    type *name = reinterpret_cast<type *>(gpu_dynamic_shared)
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) (kernel)<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)
#endif

/* 16 bytes that move in one instruction. */
struct alignas(16) gpu_f4 {
    float v[4];
};
struct alignas(16) gpu_u4 {
    uint32_t v[4];
};

GPU_DEVICE float gpu_float(uint32_t bits)
{
    return __builtin_bit_cast(float, bits);
}

GPU_DEVICE uint32_t gpu_bits(float value)
{
    return __builtin_bit_cast(uint32_t, value);
}

/* All threads of the block. */
GPU_DEVICE void gpu_sync()
{
#if defined(GPU_DEVICE_ONLY)
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#else
    __syncthreads();
#endif
}

/* The lanes of a group of GPU_LANES; what they wrote to shared memory before is seen after. */
GPU_DEVICE void gpu_sync_lanes()
{
#if defined(GPU_DEVICE_ONLY) || GPU_AMD
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
#else
    __syncwarp();
#endif
}

GPU_DEVICE int gpu_lane()
{
    return (int)(threadIdx.x % GPU_LANES);
}

/* The value of lane (own ^ mask), mask < GPU_LANES. */
GPU_DEVICE uint32_t gpu_shuffle_xor(uint32_t value, int mask)
{
#if GPU_AMD
    int at = (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)) ^ mask;
    return (uint32_t)__builtin_amdgcn_ds_bpermute(at << 2, (int)value);
#else
    return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
#endif
}

/* Bit i: whether the condition holds in lane i of the own group of GPU_LANES. */
GPU_DEVICE uint32_t gpu_ballot(bool condition)
{
#if GPU_AMD
    uint64_t all = __builtin_amdgcn_ballot_w64(condition);
    return (uint32_t)(all >> (__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)) & 32u));
#else
    return __ballot_sync(0xFFFFFFFFu, condition);
#endif
}

GPU_DEVICE int gpu_ones(uint32_t bits)
{
#if defined(__CUDACC__)
    return __popc(bits);
#else
    return __builtin_popcount(bits);
#endif
}

/* a * b + c, rounded once. Nothing else is fused: kernels are compiled without contraction. */
GPU_DEVICE float gpu_fma(float a, float b, float c)
{
#if defined(__CUDACC__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

GPU_DEVICE double gpu_fma64(double a, double b, double c)
{
#if defined(__CUDACC__)
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}

GPU_DEVICE float gpu_sqrt(float a)
{
#if defined(__CUDACC__)
    return __fsqrt_rn(a);
#else
    return __builtin_sqrtf(a);
#endif
}

GPU_DEVICE float gpu_round(float a)
{
#if defined(__CUDACC__)
    return rintf(a);
#else
    return __builtin_rintf(a);
#endif
}

GPU_DEVICE double gpu_round64(double a)
{
#if defined(__CUDACC__)
    return rint(a);
#else
    return __builtin_rint(a);
#endif
}

/* Adds to a counter in shared memory; the order does not matter, for the numbers are whole. */
GPU_DEVICE int gpu_count(int *counter, int add)
{
#if defined(__CUDACC__) || (defined(__HIP__) && !defined(GPU_DEVICE_ONLY))
    return atomicAdd(counter, add);
#elif defined(GPU_DEVICE_ONLY)
    return __scoped_atomic_fetch_add(counter, add, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
#else
    int before = *counter;
    *counter = before + add;
    return before;
#endif
}

/* Bytes of a (0-3) and b (4-7) chosen by the four low nibbles of `select`, whose values are 0-7. */
GPU_DEVICE uint32_t gpu_permute_bytes(uint32_t a, uint32_t b, uint32_t select)
{
#if defined(__CUDACC__)
    return __byte_perm(a, b, select);
#elif GPU_AMD
    uint32_t bytes = (select & 7u) | (select >> 4 & 7u) << 8 | (select >> 8 & 7u) << 16 | (select >> 12 & 7u) << 24;
    return __builtin_amdgcn_perm(b, a, bytes);
#else
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)(both >> 8 * (select >> 4 * i & 7u) & 0xFFu) << 8 * i;
    return out;
#endif
}

#endif
#endif
