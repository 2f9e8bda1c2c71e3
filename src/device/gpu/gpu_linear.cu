/* Projections in f32 with weights decoded on the fly: the generic kernel, exact for every format. */
#include "device/gpu/gpu_tile.h"

template <int ROWS, int COLUMNS>
static __global__ void __launch_bounds__(GPU_TILE_THREADS) linear_kernel(gpu_linear_args a)
{
    GPU_DYNAMIC_SHARED(gpu_f4, staged);
    int first_row = (int)blockIdx.y * ROWS, rows = gpu_least(*a.rows - first_row, ROWS), batch = (int)blockIdx.z;
    if (rows <= 0)
        return;
    int column = ((int)blockIdx.x * GPU_TILE_WARPS + (int)threadIdx.x / GPU_LANES) * COLUMNS, n[COLUMNS];
    int base = batch * a.w_step + a.w_first;
    gpu_tile_columns<COLUMNS>(base + column, base + a.columns, n);
    gpu_tile_rows x = {a.x + batch * a.x_batch, a.x_stride, a.list, first_row, rows};
    float sums[ROWS][COLUMNS];
    gpu_tile_dots_any<ROWS, COLUMNS>(a.w, n, x, staged, sums);
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
            if (gpu_lane() == r * COLUMNS + c && r < rows && column + c < a.columns) {
                float *out = a.out + batch * a.out_batch + (first_row + r) * a.out_stride + column + c;
                *out = a.add ? *out + sums[r][c] : sums[r][c];
            }
}

#if GPU_HOST_CODE
template <int ROWS, int COLUMNS>
static void launch(const gpu_linear_args *a, int rows, gpu_stream s)
{
    int per_block = GPU_TILE_WARPS * COLUMNS;
    dim3 grid((unsigned)((a->columns + per_block - 1) / per_block), (unsigned)((rows + ROWS - 1) / ROWS), (unsigned)a->batch);
    void (*kernel)(gpu_linear_args) = linear_kernel<ROWS, COLUMNS>;
    GPU_LAUNCH(kernel, grid, dim3(GPU_TILE_THREADS), GPU_TILE_BYTES(ROWS), s, *a);
}

void gpu_linear(const gpu_linear_args *a, int rows, gpu_stream s)
{
    if (rows == 1)
        launch<1, 2>(a, rows, s);
    else if (rows <= 4)
        launch<4, 2>(a, rows, s);
    else
        launch<8, 4>(a, rows, s);
}
#else
template __global__ void linear_kernel<1, 2>(gpu_linear_args);
template __global__ void linear_kernel<4, 2>(gpu_linear_args);
template __global__ void linear_kernel<8, 4>(gpu_linear_args);
#endif
