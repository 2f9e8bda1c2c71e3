/* The sparse-attention indexer, generic: the end of its projections, and the scores (cpu_index.c has the formula). A thread has one key at
 * a time and all heads; it sums over the key's values in ascending order, then over the heads. */
#include "device/gpu/gpu_kv.h"

enum { ROW_THREADS = 128, SCORE_THREADS = 128, SCORE_HEADS = 8, SCORE_BLOCKS = 128 };

static __global__ void __launch_bounds__(ROW_THREADS) index_row_kernel(gpu_index_row_args a)
{
    __shared__ float scratch[ROW_THREADS / GPU_LANES];
    const gpu_cache &c = a.cache;
    int row = (int)blockIdx.x, half = c.rope_dim / 2, n = c.index_dim;
    if (row >= a.step->rows)
        return;
    const float *rope = a.rope + (int64_t)row * c.rope_dim;
    float *q = a.q + (int64_t)row * a.heads * n, *key = a.k + (int64_t)row * n, *weights = a.weights + (int64_t)row * a.heads;
    float sum = 0.0f, squares = 0.0f;
    for (int i = (int)threadIdx.x; i < a.heads * half; i += ROW_THREADS)
        gpu_rotate_pair(q + i / half * n, rope, i % half);
    for (int i = (int)threadIdx.x; i < a.heads; i += ROW_THREADS)
        weights[i] *= a.weight_scale;
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        sum += key[i];
    float mean = gpu_block_sum<ROW_THREADS>(sum, scratch) / (float)n;
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        squares = gpu_fma(key[i] - mean, key[i] - mean, squares);
    float scale = 1.0f / gpu_sqrt(gpu_block_sum<ROW_THREADS>(squares, scratch) / (float)n + a.eps);
    for (int i = (int)threadIdx.x; i < n; i += ROW_THREADS)
        key[i] = (key[i] - mean) * scale * a.norm[i] + a.norm_bias[i];
    gpu_sync();
    for (int i = (int)threadIdx.x; i < half; i += ROW_THREADS)
        gpu_rotate_pair(key, rope, i);
    gpu_sync();
    if (!a.step->keep_keys)
        return;
    uint8_t *entry = gpu_entry(a.step, c, row, a.step->positions[row], c.index_offset, c.index_bytes);
    if (c.dtype != GPU_KV_FP8)
        gpu_store_plain<ROW_THREADS>(c.dtype, key, n, entry);
    else if (threadIdx.x < GPU_LANES)
        gpu_store_fp8_group(key, n, entry, (float *)(entry + n)); /* one scale, however wide the key is */
}

/* Blocks take the positions of a row in turn, SCORE_THREADS at a time. */
static __global__ void __launch_bounds__(SCORE_THREADS) index_score_kernel(gpu_index_score_args a)
{
    GPU_DYNAMIC_SHARED(float, q);
    const gpu_cache &c = a.cache;
    int row = a.first_row + (int)blockIdx.y, n = c.index_dim, padded = (a.heads + SCORE_HEADS - 1) / SCORE_HEADS * SCORE_HEADS;
    if (row >= a.step->rows || a.step->positions[row] < a.topk)
        return;
    int seen = a.step->positions[row] + 1, first = (int)blockIdx.x * SCORE_THREADS;
    float *weights = q + padded * n;
    if (first >= seen)
        return;
    for (int i = (int)threadIdx.x; i < padded * n; i += SCORE_THREADS)
        q[i] = i < a.heads * n ? a.q[(int64_t)row * a.heads * n + i] : 0.0f;
    for (int i = (int)threadIdx.x; i < padded; i += SCORE_THREADS)
        weights[i] = i < a.heads ? a.weights[(int64_t)row * a.heads + i] * a.scale : 0.0f;
    gpu_sync();
    for (int j = first + (int)threadIdx.x; j < seen; j += SCORE_THREADS * (int)GPU_GRID_X) {
        const uint8_t *entry = gpu_entry(a.step, c, row, j, c.index_offset, c.index_bytes);
        float score = 0.0f;
        for (int h0 = 0; h0 < padded; h0 += SCORE_HEADS) {
            float dots[SCORE_HEADS];
            GPU_UNROLL for (int h = 0; h < SCORE_HEADS; h++)
                dots[h] = 0.0f;
            for (int i = 0; i < n; i += 8) {
                float key[8];
                gpu_index_piece(c, entry, i, key);
                GPU_UNROLL for (int h = 0; h < SCORE_HEADS; h++) {
                    const gpu_f4 *qh = (const gpu_f4 *)(q + (h0 + h) * n + i);
                    gpu_f4 low = qh[0], high = qh[1];
                    GPU_UNROLL for (int v = 0; v < 4; v++)
                        dots[h] = gpu_fma(key[v], low.v[v], dots[h]);
                    GPU_UNROLL for (int v = 0; v < 4; v++)
                        dots[h] = gpu_fma(key[4 + v], high.v[v], dots[h]);
                }
            }
            GPU_UNROLL for (int h = 0; h < SCORE_HEADS; h++)
                score = gpu_fma(gpu_larger(dots[h], 0.0f), weights[h0 + h], score);
        }
        a.scores[(int64_t)blockIdx.y * a.context + j] = score;
    }
}

#if GPU_HOST_CODE
void gpu_index_row(const gpu_index_row_args *a, int rows, gpu_stream s)
{
    GPU_LAUNCH(index_row_kernel, dim3((unsigned)rows), dim3(ROW_THREADS), 0, s, *a);
}

void gpu_index_scores(const gpu_index_score_args *a, gpu_stream s)
{
    int64_t blocks = (a->context + SCORE_THREADS - 1) / SCORE_THREADS;
    int padded = (a->heads + SCORE_HEADS - 1) / SCORE_HEADS * SCORE_HEADS;
    dim3 grid(blocks < SCORE_BLOCKS ? (unsigned)blocks : (unsigned)SCORE_BLOCKS, (unsigned)a->score_rows);
    GPU_LAUNCH(index_score_kernel, grid, dim3(SCORE_THREADS), (size_t)(padded * (a->cache.index_dim + 1)) * sizeof(float), s, *a);
}
#endif
