/* The inner part of projections and experts, for kernels: dot products of some rows of x with some rows of a matrix.
 *
 * A warp owns COLUMNS rows of the matrix, a block ROWS rows of x. Lane l takes chunks l, l + 32, ... of a row; 32 chunks are a stretch. As
 * many stretches of x as fit lie in shared memory at a time, and DEPTH stretches of weights are on their way while one is computed.
 * A piece of 8 values is summed by itself, scaled, and added to the lane's sum; the lanes' sums are added as a tree. So a result depends
 * on its two rows only, whatever ROWS, COLUMNS and DEPTH are. */
#ifndef DEVICE_GPU_GPU_TILE_H
#define DEVICE_GPU_GPU_TILE_H

#include "device/gpu/gpu_math.h"

/* Shared memory of a block: GPU_TILE_GROUPS times 32 groups of 4 values, with one group more per 32 so that neither side meets in one
 * bank. Enough for one stretch of 8 rows in the format with the longest chunks. */
enum { GPU_TILE_GROUP = GPU_LANES + 1, GPU_TILE_GROUPS = 64 };
#define GPU_TILE_BYTES ((size_t)GPU_TILE_GROUPS * GPU_TILE_GROUP * sizeof(gpu_f4))

/* How a block is cut: its rows of x, warps, and rows of the matrix per warp. For one row the weights are all that counts; for more, each
 * value of x that is read from shared memory has to meet more of them. */
template <int R, int W, int C, int D>
struct gpu_cut {
    enum { ROWS = R, WARPS = W, COLUMNS = C, DEPTH = D, THREADS = W * GPU_LANES, PER_BLOCK = W * C };
};
typedef gpu_cut<1, 8, 2, 4> gpu_cut_1;
typedef gpu_cut<4, 4, 4, 2> gpu_cut_4;
typedef gpu_cut<8, 4, 4, 1> gpu_cut_8;

/* Rows of x: row r of the tile begins at x + index(r) * stride. */
struct gpu_tile_rows {
    const float *x;
    int64_t stride;
    const int32_t *list; /* NULL: row first + r itself; else row list[first + r] */
    int first, count;    /* in the tile */
};

/* `stretches` stretches of the rows from column k0 on, zeros behind the last column. Group q of lane l at [stretch][row][q][l]. */
template <int VALUES, typename CUT>
GPU_DEVICE void gpu_tile_stage(const gpu_tile_rows &rows, int k0, int k, int stretches, gpu_f4 *staged)
{
    const int groups = VALUES / 4, per_row = GPU_LANES * groups;
    bool whole = rows.stride % 4 == 0 && k % 4 == 0 && (uintptr_t)rows.x % 16 == 0;
    for (int i = (int)threadIdx.x; i < stretches * CUT::ROWS * per_row; i += CUT::THREADS) {
        int line = i / per_row, group = i % per_row, r = line % CUT::ROWS;
        int first = k0 + line / CUT::ROWS * 4 * per_row, at = first + 4 * group;
        gpu_f4 v = {{0, 0, 0, 0}};
        if (first + group / groups * VALUES >= k) /* of a lane that has nothing to do */
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
        staged[(line * groups + group % groups) * GPU_TILE_GROUP + group / groups] = v;
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
template <int FORMAT, typename CUT>
GPU_DEVICE void gpu_tile_dots(const gpu_matrix &w, const int n[CUT::COLUMNS], const gpu_tile_rows &rows, gpu_f4 *staged,
                              float sums[CUT::ROWS][CUT::COLUMNS])
{
    const int values = gpu_chunk<FORMAT>::VALUES, stretch = GPU_LANES * values, groups = values / 4, depth = CUT::DEPTH;
    const int span = GPU_TILE_GROUPS / (groups * CUT::ROWS), total = (w.cols + stretch - 1) / stretch; /* stretches at a time, in all */
    const int lane_k = gpu_lane() * values;
    gpu_tile_weights<FORMAT, CUT::COLUMNS> ring[CUT::DEPTH];
    GPU_UNROLL for (int r = 0; r < CUT::ROWS; r++)
        GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
            sums[r][c] = 0.0f;
    GPU_UNROLL for (int d = 0; d < depth; d++)
        gpu_tile_load<FORMAT, CUT::COLUMNS>(w, n, d * stretch + lane_k, &ring[d]);
    for (int first = 0; first < total; first += span) {
        int count = gpu_least(total - first, span);
        gpu_sync();
        gpu_tile_stage<gpu_chunk<FORMAT>::VALUES, CUT>(rows, first * stretch, w.cols, count, staged);
        gpu_sync();
        for (int s = 0; s < count; s += depth) /* span is a multiple of depth, so that the ring goes on where it was */
            GPU_UNROLL for (int d = 0; d < depth; d++) {
                int k = (first + s + d) * stretch + lane_k;
                const gpu_f4 *x = staged + (s + d) * CUT::ROWS * groups * GPU_TILE_GROUP;
                if (s + d < count && k < w.cols)
                    gpu_tile_multiply<FORMAT, CUT::ROWS, CUT::COLUMNS>(ring[d], x, sums);
                gpu_tile_load<FORMAT, CUT::COLUMNS>(w, n, k + depth * stretch, &ring[d]);
            }
    }
    GPU_UNROLL for (int r = 0; r < CUT::ROWS; r++)
        if (r < rows.count) {
            GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
                sums[r][c] = gpu_lanes_sum(sums[r][c]);
        }
}

/* The same for a format known at run time. */
template <typename CUT>
GPU_DEVICE void gpu_tile_dots_any(const gpu_matrix &w, const int n[CUT::COLUMNS], const gpu_tile_rows &rows, gpu_f4 *staged,
                                  float sums[CUT::ROWS][CUT::COLUMNS])
{
    switch (w.format) {
    case GPU_F32: gpu_tile_dots<GPU_F32, CUT>(w, n, rows, staged, sums); break;
    case GPU_BF16: gpu_tile_dots<GPU_BF16, CUT>(w, n, rows, staged, sums); break;
    case GPU_FP8_BLOCK: gpu_tile_dots<GPU_FP8_BLOCK, CUT>(w, n, rows, staged, sums); break;
    case GPU_MXFP4: gpu_tile_dots<GPU_MXFP4, CUT>(w, n, rows, staged, sums); break;
    case GPU_NVFP4: gpu_tile_dots<GPU_NVFP4, CUT>(w, n, rows, staged, sums); break;
    default: gpu_tile_dots<GPU_FP8_CHANNEL, CUT>(w, n, rows, staged, sums);
    }
}

/* The matrix rows of this warp: COLUMNS from the returned one on, counted from `base`; those at `end` and behind it stand for the last. */
template <typename CUT>
GPU_DEVICE int gpu_tile_columns(int base, int end, int n[CUT::COLUMNS])
{
    int column = (int)blockIdx.x * CUT::PER_BLOCK + (int)threadIdx.x / GPU_LANES * CUT::COLUMNS;
    GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
        n[c] = base + gpu_least(column + c, end - 1);
    return column;
}

/* Blocks for so many columns. */
template <typename CUT>
static inline __host__ unsigned gpu_tile_blocks(int columns)
{
    return (unsigned)((columns + CUT::PER_BLOCK - 1) / CUT::PER_BLOCK);
}

#endif
