/* The inner part of projections and experts, for kernels: dot products of some rows of x with some rows of a matrix.
 *
 * A warp owns COLUMNS rows of the matrix, a block ROWS rows of x, which lie in shared memory a stretch of 32 chunks at a time. Lane l
 * takes chunks l, l + 32, ...; a piece of 8 values is summed by itself, scaled, and added to the lane's sum; the lanes' sums are
 * added as a tree. So a result depends on its two rows only, whatever ROWS and COLUMNS are. */
#ifndef DEVICE_GPU_GPU_TILE_H
#define DEVICE_GPU_GPU_TILE_H

#include "device/gpu/gpu_math.h"

enum { GPU_TILE_WARPS = 4, GPU_TILE_THREADS = GPU_TILE_WARPS * GPU_LANES };

/* Shared memory of a block with that many rows: 8 or fewer groups of 4 values per chunk, one group more per 32 so that neither side
 * meets in one bank. */
enum { GPU_TILE_GROUP = GPU_LANES + 1 };
#define GPU_TILE_BYTES(rows) ((size_t)(rows) * 8 * GPU_TILE_GROUP * sizeof(gpu_f4))

/* Rows of x: row r of the tile begins at x + index(r) * stride. */
struct gpu_tile_rows {
    const float *x;
    int64_t stride;
    const int32_t *list; /* NULL: row first + r itself; else row list[first + r] */
    int first, count;    /* in the tile */
};

/* Columns k0 .. k0 + 32 * VALUES - 1 of the rows, zeros behind the last. Group q of lane l at [row][q][l]. */
template <int VALUES, int ROWS>
GPU_DEVICE void gpu_tile_stage(const gpu_tile_rows &rows, int k0, int k, gpu_f4 *staged)
{
    const int groups = VALUES / 4, per_row = GPU_LANES * groups;
    bool whole = rows.stride % 4 == 0 && k % 4 == 0 && (uintptr_t)rows.x % 16 == 0;
    for (int i = (int)threadIdx.x; i < ROWS * per_row; i += GPU_TILE_THREADS) {
        int r = i / per_row, group = i % per_row, at = k0 + 4 * group;
        gpu_f4 v = {{0, 0, 0, 0}};
        if (k0 + group / groups * VALUES >= k) /* of a lane that has nothing to do */
            continue;
        if (r < rows.count && at < k) {
            int64_t row = rows.list ? rows.list[rows.first + r] : rows.first + r;
            const float *x = rows.x + row * rows.stride + at;
            if (whole)
                v = *(const gpu_f4 *)x;
            else
                for (int j = 0; j < 4 && at + j < k; j++)
                    v.v[j] = x[j];
        }
        staged[(r * groups + group % groups) * GPU_TILE_GROUP + group / groups] = v;
    }
}

/* The chunk of each of the warp's columns that belongs to the lane, and its factors. */
template <int FORMAT, int COLUMNS>
struct gpu_tile_weights {
    gpu_u4 chunk[COLUMNS][gpu_chunk<FORMAT>::LOADS];
    float scale[COLUMNS][FORMAT == GPU_NVFP4 ? 2 : 1];
};

template <int FORMAT, int COLUMNS>
GPU_DEVICE void gpu_tile_load(const gpu_matrix &w, const int n[COLUMNS], int k, gpu_tile_weights<FORMAT, COLUMNS> *out)
{
    const int loads = gpu_chunk<FORMAT>::LOADS, scales = FORMAT == GPU_NVFP4 ? 2 : 1;
    GPU_UNROLL for (int c = 0; c < COLUMNS; c++) {
        const gpu_u4 *from = (const gpu_u4 *)(w.data + n[c] * w.row_bytes) + k / gpu_chunk<FORMAT>::VALUES * loads;
        GPU_UNROLL for (int i = 0; i < loads; i++) {
            gpu_u4 zero = {{0, 0, 0, 0}};
            out->chunk[c][i] = k < w.cols ? from[i] : zero;
        }
        GPU_UNROLL for (int i = 0; i < scales; i++)
            out->scale[c][i] = gpu_piece_scale<FORMAT>(w, n[c], k + 16 * i);
    }
}

/* sums[r][c] += the lane's share of one stretch. */
template <int FORMAT, int ROWS, int COLUMNS>
GPU_DEVICE void gpu_tile_multiply(const gpu_tile_weights<FORMAT, COLUMNS> &w, const gpu_f4 *staged, float sums[ROWS][COLUMNS])
{
    const int groups = gpu_chunk<FORMAT>::VALUES / 4, lane = gpu_lane();
    GPU_UNROLL for (int piece = 0; piece < gpu_chunk<FORMAT>::PIECES; piece++) {
        float values[COLUMNS][8];
        GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
            gpu_decode_piece<FORMAT>(w.chunk[c], piece, values[c]);
        GPU_UNROLL for (int r = 0; r < ROWS; r++) {
            gpu_f4 low = staged[(r * groups + 2 * piece) * GPU_TILE_GROUP + lane];
            gpu_f4 high = staged[(r * groups + 2 * piece + 1) * GPU_TILE_GROUP + lane];
            GPU_UNROLL for (int c = 0; c < COLUMNS; c++) {
                float sum = values[c][0] * low.v[0];
                GPU_UNROLL for (int i = 1; i < 4; i++)
                    sum = gpu_fma(values[c][i], low.v[i], sum);
                GPU_UNROLL for (int i = 0; i < 4; i++)
                    sum = gpu_fma(values[c][4 + i], high.v[i], sum);
                sums[r][c] = gpu_fma(sum, w.scale[c][FORMAT == GPU_NVFP4 ? piece / 2 : 0], sums[r][c]);
            }
        }
    }
}

/* All threads of the block call this; all lanes get the sums. n: the warp's rows of w. */
template <int FORMAT, int ROWS, int COLUMNS>
GPU_DEVICE void gpu_tile_dots(const gpu_matrix &w, const int n[COLUMNS], const gpu_tile_rows &rows, gpu_f4 *staged,
                              float sums[ROWS][COLUMNS])
{
    const int values = gpu_chunk<FORMAT>::VALUES, stretch = GPU_LANES * values;
    gpu_tile_weights<FORMAT, COLUMNS> now, next;
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
            sums[r][c] = 0.0f;
    gpu_tile_load<FORMAT, COLUMNS>(w, n, gpu_lane() * values, &next);
    for (int k0 = 0; k0 < w.cols; k0 += stretch) {
        now = next;
        gpu_sync();
        gpu_tile_stage<gpu_chunk<FORMAT>::VALUES, ROWS>(rows, k0, w.cols, staged);
        if (k0 + stretch < w.cols)
            gpu_tile_load<FORMAT, COLUMNS>(w, n, k0 + stretch + gpu_lane() * values, &next);
        gpu_sync();
        if (k0 + gpu_lane() * values < w.cols)
            gpu_tile_multiply<FORMAT, ROWS, COLUMNS>(now, staged, sums);
    }
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        if (r < rows.count) {
            GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
                sums[r][c] = gpu_lanes_sum(sums[r][c]);
        }
}

/* The same for a format known at run time. */
template <int ROWS, int COLUMNS>
GPU_DEVICE void gpu_tile_dots_any(const gpu_matrix &w, const int n[COLUMNS], const gpu_tile_rows &rows, gpu_f4 *staged,
                                  float sums[ROWS][COLUMNS])
{
    switch (w.format) {
    case GPU_F32: gpu_tile_dots<GPU_F32, ROWS, COLUMNS>(w, n, rows, staged, sums); break;
    case GPU_BF16: gpu_tile_dots<GPU_BF16, ROWS, COLUMNS>(w, n, rows, staged, sums); break;
    case GPU_FP8_BLOCK: gpu_tile_dots<GPU_FP8_BLOCK, ROWS, COLUMNS>(w, n, rows, staged, sums); break;
    case GPU_MXFP4: gpu_tile_dots<GPU_MXFP4, ROWS, COLUMNS>(w, n, rows, staged, sums); break;
    case GPU_NVFP4: gpu_tile_dots<GPU_NVFP4, ROWS, COLUMNS>(w, n, rows, staged, sums); break;
    default: gpu_tile_dots<GPU_FP8_CHANNEL, ROWS, COLUMNS>(w, n, rows, staged, sums);
    }
}

/* The matrix rows of this warp: COLUMNS from first on; those at `end` and behind it stand for the last. */
template <int COLUMNS>
GPU_DEVICE void gpu_tile_columns(int first, int end, int n[COLUMNS])
{
    GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
        n[c] = gpu_least(first + c, end - 1);
}

#endif
