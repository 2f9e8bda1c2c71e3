/* Sparse MLA attention for Hopper: q_absorbed and rotated q over the selected entries of the paged cache, to attended_latent.
 *
 * Two kernels with the same arithmetic (gpu_attention_tile.h):
 *
 *     split   a cluster of blocks per row, one block per chunk of selected keys; heads are the narrow side of the products, so that any
 *             multiple of 8 of them costs no padding
 *     rows    one block per row, 64 heads, chunks one after the other: for many rows
 *
 * A row's result has the same bits from both, whatever the other rows are. */
#ifndef DEVICE_GPU_GPU_ATTENTION_H
#define DEVICE_GPU_GPU_ATTENTION_H

#include "device/gpu/gpu_kernels.h"

/* Selected keys of a chunk: part of the arithmetic, alike for all kernels and batches. Shorter chunks give a single row more blocks (1 row:
 * 24 us with 512, 42 with 1024), longer ones cost less at their ends (128 rows: 115 and 82 us; 8192 rows of 64 heads: 451 and 487
 * TFLOP/s). */
#ifndef GPU_ATTENTION_CHUNK
#define GPU_ATTENTION_CHUNK 1024
#endif

typedef enum gpu_attention_kernel { GPU_ATTENTION_SPLIT, GPU_ATTENTION_ROWS } gpu_attention_kernel;

/* What the scratch is sized by. */
typedef struct gpu_attention_limits {
    int processors;    /* multiprocessors of the device */
    int sequences;     /* of a step, at most */
    int pages;         /* of one sequence, at most */
    int table_entries; /* of all page tables of a step together, at most */
} gpu_attention_limits;

/* Whether there is a kernel for these shapes: latent and rotary width, cache format, heads a multiple of 8 (rows: of 64). */
GPU_API bool gpu_attention_supports(gpu_attention_kernel kernel, const gpu_attend_args *a);

/* Bytes of scratch in device memory: 0 for `split`; `rows` stages the entries of the step's sequences as f16. */
GPU_API size_t gpu_attention_scratch_bytes(gpu_attention_kernel kernel, const gpu_attention_limits *l);

/* Computes a->out. `scratch` may be used by one launch at a time. */
GPU_API void gpu_attention(gpu_attention_kernel kernel, const gpu_attend_args *a, const gpu_attention_limits *l, void *scratch, int rows,
                           gpu_stream s);

#endif
