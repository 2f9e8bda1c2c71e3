/* The sparse-attention indexer for Hopper: scores of all positions a row sees, and the best of them.
 *
 *     score(row, j) = sum_h weights[row][h] * scale * relu(q[row][h] . key[j])
 *
 * Scores come from f16 products summed in f32 in one order, whatever number of rows is scored together; the selection is exact: larger
 * scores first, of equal ones the lower position, positions in ascending order. */
#ifndef DEVICE_GPU_GPU_INDEX_H
#define DEVICE_GPU_GPU_INDEX_H

#include "device/gpu/gpu_kernels.h"

/* Rows that one block scores together: FEW, one, for single rows of many sequences; SOME, 4, and MANY, 8, for runs of rows of one sequence.
 * Any choice is right for any rows. */
typedef enum gpu_index_tile { GPU_INDEX_FEW, GPU_INDEX_SOME, GPU_INDEX_MANY } gpu_index_tile;

/* Whether there are kernels for these heads, width and format. */
GPU_API bool gpu_index_supports(const gpu_index_score_args *a);

/* As gpu_index_scores. pages_per_block: pages of 64 positions that one block scores; any number gives the same scores. */
GPU_API void gpu_index_scores_sm90(const gpu_index_score_args *a, gpu_index_tile tile, int pages_per_block, gpu_stream s);

/* Where the scores are while they are searched: in registers (up to 32768 positions and a context that is a multiple of 4, else as shared),
 * or in shared memory as far as they fit. The same selection from both. */
typedef enum gpu_select_kernel { GPU_SELECT_HELD, GPU_SELECT_SHARED } gpu_select_kernel;

/* As gpu_select. */
GPU_API void gpu_select_sm90(const gpu_select_args *a, gpu_select_kernel kernel, gpu_stream s);

#endif
