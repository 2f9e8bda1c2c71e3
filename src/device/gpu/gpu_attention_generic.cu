/* Multi-head latent attention in absorbed form, generic: f32, exact for every cache format (cpu_attention.c has the formulas).
 *
 * Each (row, group of heads) is one block that walks the selected positions in ascending blocks of keys; the softmax is taken block by
 * block, and what was summed up is rescaled when a larger score turns up. How many keys make a block follows from the shape alone. */
#include "device/gpu/gpu_kv.h"

enum { THREADS = 256, WARPS = THREADS / GPU_LANES };

/* ---- the end of the projections ---- */

static __global__ void __launch_bounds__(THREADS) latent_kernel(gpu_latent_args a)
{
    __shared__ float scratch[WARPS];
    const gpu_cache &c = a.cache;
    int row = (int)blockIdx.x, half = c.rope_dim / 2, q_dim = a.nope + c.rope_dim;
    if (row >= a.step->rows)
        return;
    const float *rope = a.rope + (int64_t)row * c.rope_dim;
    float *q = a.q + (int64_t)row * a.heads * q_dim, *latent = a.latent + (int64_t)row * (c.latent_dim + c.rope_dim), squares = 0.0f;
    for (int i = (int)threadIdx.x; i < a.heads * half; i += THREADS)
        gpu_rotate_pair(q + i / half * q_dim + a.nope, rope, i % half);
    for (int i = (int)threadIdx.x; i < half; i += THREADS)
        gpu_rotate_pair(latent + c.latent_dim, rope, i);
    for (int i = (int)threadIdx.x; i < c.latent_dim; i += THREADS)
        squares = gpu_fma(latent[i], latent[i], squares);
    squares = gpu_block_sum<THREADS>(squares, scratch);
    float scale = 1.0f / gpu_sqrt(squares / (float)c.latent_dim + a.eps);
    for (int i = (int)threadIdx.x; i < c.latent_dim; i += THREADS)
        latent[i] = a.norm[i] * (latent[i] * scale);
    gpu_sync();
    if (!a.step->keep_keys)
        return;
    uint8_t *entry = gpu_entry(a.step, c, row, a.step->positions[row], c.latent_offset, c.latent_bytes);
    if (c.dtype == GPU_KV_FP8) {
        gpu_store_fp8<THREADS>(latent, c.latent_dim, entry);
        gpu_store_plain<THREADS>(GPU_KV_BF16, latent + c.latent_dim, c.rope_dim, entry + c.latent_dim + 4 * gpu_latent_groups(c));
    } else {
        gpu_store_plain<THREADS>(c.dtype, latent, c.latent_dim + c.rope_dim, entry);
    }
}

/* ---- queries into latent space ---- */

enum { ABSORB_THREADS = 64, ABSORB_ROWS = 8 };

/* A thread has 8 columns of one head for up to ABSORB_ROWS rows; W_UK is summed over its rows in ascending order. */
template <int ROWS>
static __global__ void __launch_bounds__(ABSORB_THREADS) absorb_kernel(gpu_absorb_args a)
{
    int first_row = (int)blockIdx.y * ROWS, rows = gpu_least(a.step->rows - first_row, ROWS), head = (int)blockIdx.z;
    int column = 8 * ((int)blockIdx.x * ABSORB_THREADS + (int)threadIdx.x), q_dim = a.nope + a.rope;
    if (rows <= 0 || column >= a.rank)
        return;
    float sums[ROWS][8];
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        GPU_UNROLL for (int j = 0; j < 8; j++)
            sums[r][j] = 0.0f;
    const float *q = a.q + ((int64_t)first_row * a.heads + head) * q_dim;
    for (int i = 0; i < a.nope; i++) {
        float w[8];
        gpu_row_values(a.kv_b, head * (a.nope + a.v) + i, column, w);
        GPU_UNROLL for (int r = 0; r < ROWS; r++) {
            float x = r < rows ? q[(int64_t)r * a.heads * q_dim + i] : 0.0f;
            GPU_UNROLL for (int j = 0; j < 8; j++)
                sums[r][j] = gpu_fma(x, w[j], sums[r][j]);
        }
    }
    GPU_UNROLL for (int r = 0; r < ROWS; r++)
        GPU_UNROLL for (int j = 0; j < 8; j++)
            if (r < rows && column + j < a.rank)
                a.out[((int64_t)(first_row + r) * a.heads + head) * a.rank + column + j] = sums[r][j];
}

/* ---- attention ---- */

enum { HEADS = 4, MOST_KEYS = 32, SHARED_FLOATS = 11 * 1024 + 768, SUMS = GPU_ATTEND_MOST_RANK / THREADS };

/* What a block keeps in shared memory besides queries and keys. */
struct attend_state {
    float scores[HEADS][MOST_KEYS]; /* then the weights of the keys */
    float largest[HEADS], sum[HEADS], factor[HEADS];
};

/* Keys of a block: as many as fit. */
static inline __host__ __device__ int keys_per_block(int width)
{
    int fit = (int)(SHARED_FLOATS - sizeof(attend_state) / sizeof(float)) / width - HEADS;
    return fit > MOST_KEYS ? MOST_KEYS : fit;
}

GPU_DEVICE void attend_scores(const attend_state *state, const float *q, const float *keys, int count, int width, float scale,
                              float scores[HEADS][MOST_KEYS])
{
    (void)state;
    for (int i = (int)threadIdx.x / GPU_LANES; i < HEADS * count; i += WARPS) {
        const float *qi = q + i % HEADS * width, *key = keys + i / HEADS * width;
        float sum = 0.0f;
        for (int j = gpu_lane(); j < width; j += GPU_LANES)
            sum = gpu_fma(qi[j], key[j], sum);
        sum = gpu_lanes_sum(sum);
        if (gpu_lane() == 0)
            scores[i % HEADS][i / HEADS] = sum * scale;
    }
}

/* One thread per head: weights of a block of keys, and what the earlier blocks are multiplied by. */
GPU_DEVICE void attend_softmax(attend_state *state, int count)
{
    int h = (int)threadIdx.x;
    if (h >= HEADS)
        return;
    float before = state->largest[h], largest = before, sum = 0.0f;
    for (int j = 0; j < count; j++)
        largest = gpu_larger(state->scores[h][j], largest);
    for (int j = 0; j < count; j++) {
        float p = gpu_exp(state->scores[h][j] - largest);
        state->scores[h][j] = p;
        sum += p;
    }
    float factor = gpu_exp(before - largest);
    state->factor[h] = factor;
    state->sum[h] = gpu_fma(state->sum[h], factor, sum);
    state->largest[h] = largest;
}

static __global__ void __launch_bounds__(THREADS) attend_kernel(gpu_attend_args a)
{
    GPU_DYNAMIC_SHARED(float, shared);
    const gpu_cache &c = a.cache;
    int row = (int)blockIdx.x, first_head = (int)blockIdx.y * HEADS, heads = gpu_least(a.heads - first_head, HEADS);
    int rank = c.latent_dim, width = rank + c.rope_dim, per_block = keys_per_block(width), count;
    if (row >= a.step->rows)
        return;
    attend_state *state = (attend_state *)shared;
    float *q = shared + sizeof(attend_state) / sizeof(float), *keys = q + HEADS * width, sums[SUMS][HEADS];
    const int32_t *selected = a.selected + (int64_t)row * a.topk;
    int total = a.selected_count[row];
    for (int i = (int)threadIdx.x; i < HEADS * width; i += THREADS) {
        int h = gpu_least(i / width, heads - 1), j = i % width; /* heads that are not there repeat the last */
        int64_t at = (int64_t)row * a.heads + first_head + h;
        q[i] = j < rank ? a.q_absorbed[at * rank + j] : a.q[at * (a.nope + c.rope_dim) + a.nope + j - rank];
    }
    if (threadIdx.x < HEADS) {
        state->largest[threadIdx.x] = gpu_float(0xFF800000u); /* minus infinity */
        state->sum[threadIdx.x] = 0.0f;
    }
    GPU_UNROLL for (int i = 0; i < SUMS; i++)
        GPU_UNROLL for (int h = 0; h < HEADS; h++)
            sums[i][h] = 0.0f;
    for (int first = 0; first < total; first += count) {
        count = gpu_least(total - first, per_block);
        gpu_sync();
        for (int i = (int)threadIdx.x; i < count * (width / 2); i += THREADS) {
            int k = i / (width / 2), j = i % (width / 2) * 2;
            gpu_latent_pair(c, gpu_entry(a.step, c, row, selected[first + k], c.latent_offset, c.latent_bytes), j, keys + k * width + j);
        }
        gpu_sync();
        attend_scores(state, q, keys, count, width, a.scale, state->scores);
        gpu_sync();
        attend_softmax(state, count);
        gpu_sync();
        GPU_UNROLL for (int i = 0; i < SUMS; i++) {
            int j = i * THREADS + (int)threadIdx.x;
            if (j >= rank)
                break;
            GPU_UNROLL for (int h = 0; h < HEADS; h++)
                sums[i][h] *= state->factor[h];
            for (int k = 0; k < count; k++)
                GPU_UNROLL for (int h = 0; h < HEADS; h++)
                    sums[i][h] = gpu_fma(state->scores[h][k], keys[k * width + j], sums[i][h]);
        }
    }
    GPU_UNROLL for (int i = 0; i < SUMS; i++) {
        int j = i * THREADS + (int)threadIdx.x;
        GPU_UNROLL for (int h = 0; h < HEADS; h++)
            if (j < rank && h < heads)
                a.out[((int64_t)row * a.heads + first_head + h) * rank + j] = sums[i][h] * (1.0f / state->sum[h]);
    }
}

#if GPU_HOST_CODE
void gpu_latent(const gpu_latent_args *a, int rows, gpu_stream s)
{
    GPU_LAUNCH(latent_kernel, dim3((unsigned)rows), dim3(THREADS), 0, s, *a);
}

template <int ROWS>
static void launch_absorb(const gpu_absorb_args *a, int rows, gpu_stream s)
{
    int per_block = 8 * ABSORB_THREADS;
    dim3 grid((unsigned)((a->rank + per_block - 1) / per_block), (unsigned)((rows + ROWS - 1) / ROWS), (unsigned)a->heads);
    void (*kernel)(gpu_absorb_args) = absorb_kernel<ROWS>;
    GPU_LAUNCH(kernel, grid, dim3(ABSORB_THREADS), 0, s, *a);
}

void gpu_absorb(const gpu_absorb_args *a, int rows, gpu_stream s)
{
    if (rows == 1)
        launch_absorb<1>(a, rows, s);
    else
        launch_absorb<ABSORB_ROWS>(a, rows, s);
}

void gpu_attend(const gpu_attend_args *a, int rows, gpu_stream s)
{
    int width = a->cache.latent_dim + a->cache.rope_dim;
    size_t floats = sizeof(attend_state) / sizeof(float) + (size_t)(HEADS + keys_per_block(width)) * (size_t)width;
    dim3 grid((unsigned)rows, (unsigned)((a->heads + HEADS - 1) / HEADS));
    GPU_LAUNCH(attend_kernel, grid, dim3(THREADS), floats * sizeof(float), s, *a);
}
#else
template __global__ void absorb_kernel<1>(gpu_absorb_args);
template __global__ void absorb_kernel<ABSORB_ROWS>(gpu_absorb_args);
#endif
