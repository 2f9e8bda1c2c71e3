/* Kernels of src/device/gpu as plain C++ on the CPU, for tests: the threads of a block are coroutines that switch at barriers and
 * shuffles, one block after the other. It is not the GPU: it finds wrong indices, wrong arithmetic, missing barriers (results that depend
 * on the order of threads, see emulated_order), barriers that not all threads reach, and with ASan accesses out of bounds. It says
 * nothing about memory ordering, alignment faults of the hardware, registers or speed.
 *
 * gpu.h includes this file when GPU_EMULATE is defined. The runtime's functions have the names that CUDA and HIP have in common, with
 * `emulated` in front; a captured graph is a list of recorded calls. */
#ifndef TESTS_GPU_EMULATE_H
#define TESTS_GPU_EMULATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum emulatedError_t { emulatedSuccess, emulatedErrorMemoryAllocation = 2, emulatedErrorInvalidValue = 1 } emulatedError_t;
typedef struct emulated_stream *emulatedStream_t;
typedef struct emulated_event *emulatedEvent_t;
typedef struct emulated_graph *emulatedGraphExec_t;

enum { emulatedMemcpyHostToDevice, emulatedMemcpyDeviceToHost, emulatedMemcpyDeviceToDevice };

emulatedError_t emulatedMalloc(void **out, size_t bytes);
emulatedError_t emulatedFree(void *memory);
emulatedError_t emulatedMallocHost(void **out, size_t bytes);
emulatedError_t emulatedFreeHost(void *memory);
emulatedError_t emulatedMemcpyAsync(void *to, const void *from, size_t bytes, int kind, emulatedStream_t s);
emulatedError_t emulatedMemsetAsync(void *memory, int value, size_t bytes, emulatedStream_t s);
emulatedError_t emulated_capture_begin(emulatedStream_t s);
emulatedError_t emulated_capture_end(emulatedStream_t s, emulatedGraphExec_t *out);
emulatedError_t emulated_graph_launch(emulatedGraphExec_t g, emulatedStream_t s);
void emulated_graph_destroy(emulatedGraphExec_t g);

/* The order in which blocks, warps and lanes run: 0 ascending, 1 descending; from the environment (EMULATED_ORDER). Results must not
 * depend on it. */
extern int emulated_order;

/* How many kernels have run, and how many graphs. */
extern long emulated_launches, emulated_graphs;

#ifdef __cplusplus
}

#include <functional>

#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

/* The running thread's place. */
struct emulated_place {
    dim3 thread, block, grid, threads;
};
extern emulated_place *emulated_now;
#define threadIdx (emulated_now->thread)
#define blockIdx (emulated_now->block)
#define gridDim (emulated_now->grid)
#define blockDim (emulated_now->threads)

void *emulated_shared(void);
void __syncthreads(void);
void __syncwarp(void);
uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, int lanes);
const uint32_t *emulated_exchange(uint32_t value); /* the values of all lanes of the warp, until the next exchange */
uint32_t __ballot_sync(uint32_t mask, bool condition);
void emulated_launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, emulatedStream_t s, std::function<void()> kernel);

/* Arguments are copied when a kernel is launched, as on a GPU. */
template <typename... P, typename... A>
std::function<void()> emulated_bind(void (*kernel)(P...), A... arguments)
{
    return [=] { kernel(arguments...); };
}
#endif
#endif
