/* MLPs and experts, generic: f32 activations, weights decoded on the fly. Each block has one tile of up to GPU_EXPERT_ROWS rows of one
 * expert; a row's experts are added afterwards in ascending order of their ids, the shared expert last. */
#include "device/gpu/gpu_tile.h"

enum { COMBINE_THREADS = 256 };

/* The block's rows: lines of act and out begin at `line`. */
struct mlp_work {
    const gpu_mlp *w;
    int line, count;
};

template <int ROWS>
GPU_DEVICE mlp_work mlp_work_of(const gpu_mlp_args &a)
{
    mlp_work work = {a.weights, 0, 0};
    int tile = (int)blockIdx.y;
    if (a.tiles) {
        int part = tile % a.parts * ROWS;
        if (tile / a.parts < *a.tile_count) {
            gpu_tile t = a.tiles[tile / a.parts];
            work = {a.weights + t.expert, t.first + part, gpu_least(t.count - part, ROWS)};
        }
    } else {
        work.line = tile * ROWS;
        work.count = gpu_least(a.step->rows - work.line, ROWS);
    }
    return work;
}

template <int ROWS, int COLUMNS>
static __global__ void __launch_bounds__(GPU_TILE_THREADS) gate_up_kernel(gpu_mlp_args a)
{
    GPU_DYNAMIC_SHARED(gpu_f4, staged);
    mlp_work work = mlp_work_of<ROWS>(a);
    if (work.count <= 0)
        return;
    int column = ((int)blockIdx.x * GPU_TILE_WARPS + (int)threadIdx.x / GPU_LANES) * COLUMNS, n[COLUMNS];
    gpu_tile_columns<COLUMNS>(column, a.wide, n);
    gpu_tile_rows x = {a.x, a.x_stride, a.tiles ? a.pair_rows : nullptr, work.line, work.count};
    float gate[ROWS][COLUMNS], up[ROWS][COLUMNS] = {};
    GPU_NO_UNROLL for (int part = 0; part < 2; part++) { /* one copy of the code for both */
        GPU_UNROLL for (int r = 0; r < ROWS; r++)
            GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
                gate[r][c] = up[r][c];
        gpu_tile_dots_any<ROWS, COLUMNS>(part ? work.w->up : work.w->gate, n, x, staged, up);
    }
    float *act = a.act + (int64_t)a.step->rows * a.act_after;
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
            if (gpu_lane() == r * COLUMNS + c && r < work.count && column + c < a.wide)
                act[(int64_t)(work.line + r) * a.wide + column + c] = gpu_silu(gate[r][c]) * up[r][c];
}

template <int ROWS, int COLUMNS>
static __global__ void __launch_bounds__(GPU_TILE_THREADS) down_kernel(gpu_mlp_args a)
{
    GPU_DYNAMIC_SHARED(gpu_f4, staged);
    mlp_work work = mlp_work_of<ROWS>(a);
    if (work.count <= 0)
        return;
    int column = ((int)blockIdx.x * GPU_TILE_WARPS + (int)threadIdx.x / GPU_LANES) * COLUMNS, n[COLUMNS];
    gpu_tile_columns<COLUMNS>(column, a.hidden, n);
    gpu_tile_rows act = {a.act + (int64_t)a.step->rows * a.act_after, a.wide, nullptr, work.line, work.count};
    float sums[ROWS][COLUMNS];
    gpu_tile_dots_any<ROWS, COLUMNS>(work.w->down, n, act, staged, sums);
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        GPU_UNROLL for (int c = 0; c < COLUMNS; c++)
            if (gpu_lane() == r * COLUMNS + c && r < work.count && column + c < a.hidden)
                a.out[(int64_t)(work.line + r) * a.hidden + column + c] = sums[r][c];
}

static __global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(gpu_combine_args a)
{
    int row = (int)blockIdx.x, column = (int)(blockIdx.y * COMBINE_THREADS + threadIdx.x);
    if (row >= a.step->rows || column >= a.hidden)
        return;
    float sum = 0.0f;
    for (int k = 0; k < (a.routed ? a.per_token : 0); k++) {
        int64_t pair = (int64_t)row * a.per_token + k;
        sum = gpu_fma(a.weights[pair], a.routed[(int64_t)a.slots[pair] * a.hidden + column], sum);
    }
    if (a.shared)
        sum += a.shared[(int64_t)row * a.hidden + column];
    a.x[(int64_t)row * a.hidden + column] += sum;
}

#if GPU_HOST_CODE
template <int ROWS, int COLUMNS>
static void launch(void (*kernel)(gpu_mlp_args), const gpu_mlp_args *a, int columns, int rows, int tiles, gpu_stream s)
{
    gpu_mlp_args with_parts = *a;
    int per_block = GPU_TILE_WARPS * COLUMNS, most = rows < GPU_EXPERT_ROWS ? rows : (int)GPU_EXPERT_ROWS; /* rows of a tile */
    with_parts.parts = (most + ROWS - 1) / ROWS;
    int lines = a->tiles ? tiles * with_parts.parts : (rows + ROWS - 1) / ROWS;
    dim3 grid((unsigned)((columns + per_block - 1) / per_block), (unsigned)lines);
    GPU_LAUNCH(kernel, grid, dim3(GPU_TILE_THREADS), GPU_TILE_BYTES(ROWS), s, with_parts);
}

void gpu_gate_up(const gpu_mlp_args *a, int rows, int tiles, gpu_stream s)
{
    if (rows == 1)
        launch<1, 2>(gate_up_kernel<1, 2>, a, a->wide, rows, tiles, s);
    else if (rows <= 16)
        launch<4, 2>(gate_up_kernel<4, 2>, a, a->wide, rows, tiles, s);
    else
        launch<8, 4>(gate_up_kernel<8, 4>, a, a->wide, rows, tiles, s);
}

void gpu_down(const gpu_mlp_args *a, int rows, int tiles, gpu_stream s)
{
    if (rows == 1)
        launch<1, 2>(down_kernel<1, 2>, a, a->hidden, rows, tiles, s);
    else if (rows <= 16)
        launch<4, 2>(down_kernel<4, 2>, a, a->hidden, rows, tiles, s);
    else
        launch<8, 4>(down_kernel<8, 4>, a, a->hidden, rows, tiles, s);
}

void gpu_combine(const gpu_combine_args *a, int rows, gpu_stream s)
{
    dim3 grid((unsigned)rows, (unsigned)((a->hidden + COMBINE_THREADS - 1) / COMBINE_THREADS));
    GPU_LAUNCH(combine_kernel, grid, dim3(COMBINE_THREADS), 0, s, *a);
}
#else
template __global__ void gate_up_kernel<1, 2>(gpu_mlp_args);
template __global__ void gate_up_kernel<4, 2>(gpu_mlp_args);
template __global__ void gate_up_kernel<8, 4>(gpu_mlp_args);
template __global__ void down_kernel<1, 2>(gpu_mlp_args);
template __global__ void down_kernel<4, 2>(gpu_mlp_args);
template __global__ void down_kernel<8, 4>(gpu_mlp_args);
#endif
