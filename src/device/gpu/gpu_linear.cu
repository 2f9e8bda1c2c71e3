/* Projections in f32 with weights decoded on the fly: the generic kernel, exact for every format. */
#include "device/gpu/gpu_tile.h"

template <typename CUT>
static __global__ void __launch_bounds__(CUT::THREADS) linear_kernel(gpu_linear_args a)
{
    GPU_DYNAMIC_SHARED(gpu_f4, staged);
    int first_row = (int)blockIdx.y * CUT::ROWS, rows = gpu_least(*a.rows - first_row, CUT::ROWS), batch = (int)blockIdx.z;
    if (rows <= 0)
        return;
    int n[CUT::COLUMNS], column = gpu_tile_columns<CUT>(batch * a.w_step + a.w_first, a.columns, n);
    gpu_tile_rows x = {a.x + batch * a.x_batch, a.x_stride, a.list, first_row, rows};
    float sums[CUT::ROWS][CUT::COLUMNS];
    gpu_tile_dots_any<CUT>(a.w, n, x, staged, sums);
    GPU_UNROLL for (int r = 0; r < CUT::ROWS; r++)
        GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
            if (gpu_lane() == r * CUT::COLUMNS + c && r < rows && column + c < a.columns) {
                float *out = a.out + batch * a.out_batch + (first_row + r) * a.out_stride + column + c;
                *out = a.add ? *out + sums[r][c] : sums[r][c];
            }
}

#if GPU_HOST_CODE
template <typename CUT>
static void launch(const gpu_linear_args *a, int rows, gpu_stream s)
{
    dim3 grid(gpu_tile_blocks<CUT>(a->columns), (unsigned)((rows + CUT::ROWS - 1) / CUT::ROWS), (unsigned)a->batch);
    GPU_LAUNCH(linear_kernel<CUT>, grid, dim3(CUT::THREADS), GPU_TILE_BYTES, s, *a);
}

void gpu_linear(const gpu_linear_args *a, int rows, gpu_stream s)
{
    if (rows == 1)
        launch<gpu_cut_1>(a, rows, s);
    else if (rows <= 4)
        launch<gpu_cut_4>(a, rows, s);
    else
        launch<gpu_cut_8>(a, rows, s);
}
#else
template __global__ void linear_kernel<gpu_cut_1>(gpu_linear_args);
template __global__ void linear_kernel<gpu_cut_4>(gpu_linear_args);
template __global__ void linear_kernel<gpu_cut_8>(gpu_linear_args);
#endif
