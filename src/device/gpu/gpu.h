/* One set of names for CUDA and HIP: runtime, streams, graphs, and the few intrinsics that differ. The only file that includes a vendor's
 * header (tests/layers.py checks it). Host code in C and kernels in .cu files both include it; the part for kernels is seen by their
 * compilers alone.
 *
 * Kernel files hold one operation each: kernels, and a launcher with C linkage that host code calls. Vendor-specific fast paths
 * (WGMMA and bulk copies of sm_90a, scaled MFMA of gfx950) lie in files of their own behind the same launcher. */
#ifndef DEVICE_GPU_GPU_H
#define DEVICE_GPU_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__HIP__) && !defined(GPU_DEVICE_ONLY)
#include <hip/hip_runtime.h>
#elif !defined(__HIP__)
#include <cuda_runtime.h>
#endif

#if defined(__HIP__)
#define GPU_AMD 1
enum { GPU_WARP = 64 };
#if !defined(GPU_DEVICE_ONLY)
typedef hipStream_t gpu_stream;
typedef hipEvent_t gpu_event;
typedef hipGraphExec_t gpu_graph;
typedef hipError_t gpu_status;
#define GPU_OK hipSuccess
#endif
#else
#define GPU_AMD 0
enum { GPU_WARP = 32 };
typedef cudaStream_t gpu_stream;
typedef cudaEvent_t gpu_event;
typedef cudaGraphExec_t gpu_graph;
typedef cudaError_t gpu_status;
#define GPU_OK cudaSuccess
#endif

#ifdef __cplusplus
#define GPU_API extern "C"
#else
#define GPU_API extern
#endif

#endif
