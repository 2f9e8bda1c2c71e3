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

template <typename CUT>
static __global__ void __launch_bounds__(CUT::THREADS) gate_up_kernel(gpu_mlp_args a)
{
    GPU_DYNAMIC_SHARED(gpu_f4, staged);
    mlp_work work = mlp_work_of<CUT::ROWS>(a);
    if (work.count <= 0)
        return;
    int n[CUT::COLUMNS], column = gpu_tile_columns<CUT>(0, a.wide, n);
    gpu_tile_rows x = {a.x, a.x_stride, a.tiles ? a.pair_rows : nullptr, work.line, work.count};
    float gate[CUT::ROWS][CUT::COLUMNS], up[CUT::ROWS][CUT::COLUMNS] = {};
    GPU_NO_UNROLL for (int part = 0; part < 2; part++) { /* one copy of the code for both */
        GPU_UNROLL for (int r = 0; r < CUT::ROWS; r++)
            GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
                gate[r][c] = up[r][c];
        gpu_tile_dots_any<CUT>(part ? work.w->up : work.w->gate, n, x, staged, up);
    }
    float *act = a.act + (int64_t)a.step->rows * a.act_after;
    GPU_UNROLL for (int r = 0; r < CUT::ROWS; r++)
        GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
            if (gpu_lane() == r * CUT::COLUMNS + c && r < work.count && column + c < a.wide)
                act[(int64_t)(work.line + r) * a.wide + column + c] = gpu_silu(gate[r][c]) * up[r][c];
}

template <typename CUT>
static __global__ void __launch_bounds__(CUT::THREADS) down_kernel(gpu_mlp_args a)
{
    GPU_DYNAMIC_SHARED(gpu_f4, staged);
    mlp_work work = mlp_work_of<CUT::ROWS>(a);
    if (work.count <= 0)
        return;
    int n[CUT::COLUMNS], column = gpu_tile_columns<CUT>(0, a.hidden, n);
    gpu_tile_rows act = {a.act + (int64_t)a.step->rows * a.act_after, a.wide, nullptr, work.line, work.count};
    float sums[CUT::ROWS][CUT::COLUMNS];
    gpu_tile_dots_any<CUT>(work.w->down, n, act, staged, sums);
    GPU_UNROLL for (int r = 0; r < CUT::ROWS; r++)
        GPU_UNROLL for (int c = 0; c < CUT::COLUMNS; c++)
            if (gpu_lane() == r * CUT::COLUMNS + c && r < work.count && column + c < a.hidden)
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
template <typename CUT>
static void launch(void (*kernel)(gpu_mlp_args), const gpu_mlp_args *a, int columns, int rows, int tiles, gpu_stream s)
{
    gpu_mlp_args with_parts = *a;
    int most = rows < GPU_EXPERT_ROWS ? rows : (int)GPU_EXPERT_ROWS; /* rows of a tile */
    with_parts.parts = (most + CUT::ROWS - 1) / CUT::ROWS;
    int lines = a->tiles ? tiles * with_parts.parts : (rows + CUT::ROWS - 1) / CUT::ROWS;
    GPU_LAUNCH(kernel, dim3(gpu_tile_blocks<CUT>(columns), (unsigned)lines), dim3(CUT::THREADS), GPU_TILE_BYTES, s, with_parts);
}

/* Rows that a tile has at most, or, with many experts, mostly. */
static int rows_together(const gpu_mlp_args *a, int rows)
{
    return a->tiles && rows <= 16 ? (rows < 4 ? rows : 4) : rows;
}

void gpu_gate_up(const gpu_mlp_args *a, int rows, int tiles, gpu_stream s)
{
    int together = rows_together(a, rows);
    if (together == 1)
        launch<gpu_cut_1>(gate_up_kernel<gpu_cut_1>, a, a->wide, rows, tiles, s);
    else if (together <= 4)
        launch<gpu_cut_4>(gate_up_kernel<gpu_cut_4>, a, a->wide, rows, tiles, s);
    else
        launch<gpu_cut_8>(gate_up_kernel<gpu_cut_8>, a, a->wide, rows, tiles, s);
}

void gpu_down(const gpu_mlp_args *a, int rows, int tiles, gpu_stream s)
{
    int together = rows_together(a, rows);
    if (together == 1)
        launch<gpu_cut_1>(down_kernel<gpu_cut_1>, a, a->hidden, rows, tiles, s);
    else if (together <= 4)
        launch<gpu_cut_4>(down_kernel<gpu_cut_4>, a, a->hidden, rows, tiles, s);
    else
        launch<gpu_cut_8>(down_kernel<gpu_cut_8>, a, a->hidden, rows, tiles, s);
}

void gpu_combine(const gpu_combine_args *a, int rows, gpu_stream s)
{
    dim3 grid((unsigned)rows, (unsigned)((a->hidden + COMBINE_THREADS - 1) / COMBINE_THREADS));
    GPU_LAUNCH(combine_kernel, grid, dim3(COMBINE_THREADS), 0, s, *a);
}
#else
template __global__ void gate_up_kernel<gpu_cut_1>(gpu_mlp_args);
template __global__ void gate_up_kernel<gpu_cut_4>(gpu_mlp_args);
template __global__ void gate_up_kernel<gpu_cut_8>(gpu_mlp_args);
template __global__ void down_kernel<gpu_cut_1>(gpu_mlp_args);
template __global__ void down_kernel<gpu_cut_4>(gpu_mlp_args);
template __global__ void down_kernel<gpu_cut_8>(gpu_mlp_args);
#endif
