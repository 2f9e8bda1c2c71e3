/* Sparse MLA attention, one block per row and 64 heads ("rows" of gpu_attention.h).
 *
 *     warpgroup 0   scores [64 heads][64 keys] = q x tile^T, softmax; weights go where the tile's rotary panel was
 *     warpgroups 1, 2   sums [64 heads][latent / 2 each] += weights x tile
 *     warpgroup 3   brings keys: pages -> registers -> f16 -> one of two tiles
 *
 * The groups run at their own pace: while 1 and 2 add one block of keys, 0 has the scores of the next and 3 the keys after that. The sums
 * of a chunk fill the registers; those of the chunks before wait in a scratch of this block, which stays in the second cache. */
#include "device/gpu/gpu_attention.h"
#include "device/gpu/gpu_attention_tile.h"

enum { ROWS_THREADS = 512, ROWS_HEADS = 64, ROWS_GROUP = 128, ROWS_LOADERS = 4, SYNC_SCORES = 1, SYNC_KEYS = 2 };
enum { ROWS_SCORES, ROWS_VALUES_LOW, ROWS_VALUES_HIGH, ROWS_KEYS };

template <int DTYPE_, int CHUNK_> struct rows_shape {
    static constexpr int LATENT = 512, ROPE = 64, DTYPE = DTYPE_, CHUNK = CHUNK_, PANELS = 8, TILE = 9 * ATTENTION_PANEL_BYTES;
    static constexpr int Q = 0, TILES = 9 * ATTENTION_PANEL_BYTES, SLOTS = TILES + 2 * TILE, FACTORS = SLOTS + 2 * CHUNK * 4;
    static constexpr int STATE = FACTORS + 2 * ROWS_HEADS * 4, BARRIERS = STATE + 2 * ROWS_HEADS * 4;
    static constexpr int BYTES = BARRIERS + 8 * 8 + 1024;
    static constexpr int UNITS = ATTENTION_BLOCK / ATTENTION_UNIT / ROWS_LOADERS, AHEAD = 2;
};

/* Barriers: tile is filled [2], tile is free [2], weights are there [2], state of a chunk is there, state was read. */
enum { FULL, EMPTY = 2, WEIGHED = 4, STATED = 6, STATE_READ = 7 };

/* What all groups know; each walks over the same rows, chunks and blocks. */
struct rows_task {
    uint32_t shared;
    uint8_t *memory;
    int work, works, groups; /* (row, group of 64 heads) pairs */
    int block;               /* blocks of keys so far, of all rows: which tile, and which phase */
    int chunk;               /* chunks so far, of all rows */
    float c, margin;
};

static __device__ __forceinline__ uint32_t rows_barrier(const rows_task &t, int barriers, int which)
{
    return t.shared + (uint32_t)(barriers + which * 8);
}

static __device__ __forceinline__ uint32_t rows_phase(int block)
{
    return (uint32_t)(block >> 1) & 1u;
}

/* ---- keys ---- */

template <class S> static __device__ __forceinline__ void rows_chunk_keys(const attention_keys &k, rows_task &t, const uint32_t *slots, int blocks)
{
    typedef attention_unit<S::LATENT, S::ROPE, S::DTYPE> unit;
    int thread = (int)threadIdx.x % ROWS_GROUP, warp = thread / 32, lane = thread % 32;
    unit units[S::AHEAD];
#pragma unroll
    for (int u = 0; u < S::AHEAD; u++)
        attention_unit_load(&units[u], &k, slots, (u * ROWS_LOADERS + warp) * ATTENTION_UNIT, lane);
    for (int j = 0; j < blocks; j++, t.block++) {
        int stage = t.block & 1;
        if (t.block >= 2)
            sm90a_barrier_wait(rows_barrier(t, S::BARRIERS, EMPTY + stage), rows_phase(t.block) ^ 1u, 20 + stage);
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            int next = u + S::AHEAD, next_block = j + next / S::UNITS;
            attention_unit_store(&units[u % S::AHEAD], t.shared + S::TILES + (uint32_t)stage * S::TILE, (u * ROWS_LOADERS + warp) * ATTENTION_UNIT,
                                 lane);
            if (next_block < blocks)
                attention_unit_load(&units[u % S::AHEAD], &k, slots + next_block * ATTENTION_BLOCK,
                                    (next % S::UNITS * ROWS_LOADERS + warp) * ATTENTION_UNIT, lane);
        }
        sm90a_fence_async();
        sm90a_barrier_arrive_warp(rows_barrier(t, S::BARRIERS, FULL + stage));
    }
}

template <class S> static __device__ __forceinline__ void rows_keys(const gpu_attend_args &a, rows_task &t)
{
    const gpu_step *step = a.step;
    attention_keys k = {step->pages + a.cache.latent_offset, a.cache.page_bytes};
    int thread = (int)threadIdx.x % ROWS_GROUP;
    for (; t.work < t.works; t.work += (int)gridDim.x) {
        int row = t.work / t.groups, count = a.selected_count[row];
        const int32_t *table = step->tables + step->table_first[step->sequences[row]];
        for (int first = 0; first < count; first += S::CHUNK, t.chunk++) {
            uint32_t *slots = (uint32_t *)(t.memory + S::SLOTS) + (t.chunk & 1) * S::CHUNK;
            int keys = min(count - first, S::CHUNK);
            attention_slots(slots, a.selected + (int64_t)row * a.topk + first, keys, table, thread, ROWS_GROUP);
            sm90a_sync(SYNC_KEYS, ROWS_GROUP);
            rows_chunk_keys<S>(k, t, slots, (keys + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK);
        }
    }
}

/* ---- scores ---- */

/* What a thread keeps of its two heads, t % 32 / 4 and 8 further: reference, and sums of weights by 16 keys. */
struct rows_state {
    float reference[2], sum[2][4];
};

/* Weights of a block for one of the thread's two heads: scores s[4n + 2 line + e]. */
template <class S>
static __device__ __forceinline__ void rows_weights(float (&s)[32], int line, const rows_task &t, int left, uint32_t panel, rows_state &state)
{
    int thread = (int)threadIdx.x, lane = thread % 32;
    uint32_t head = (uint32_t)(thread / 32 * 16 + lane / 4 + line * 8);
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (n * 8 + lane % 4 * 2 + e >= left)
                s[4 * n + 2 * line + e] = -INFINITY;
            largest = fmaxf(largest, s[4 * n + 2 * line + e]);
        }
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    float factor = attention_raise(&state.reference[line], largest, t.c, t.margin), c_reference = __fmul_rn(state.reference[line], t.c);
    if (lane % 4 == 0)
        ((float *)(t.memory + S::FACTORS))[(t.block & 1) * ROWS_HEADS + (int)head] = factor;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float weight[2][2]; /* keys 16w + 8i + 2q + e */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[i][0] = attention_weight(s[8 * w + 4 * i + 2 * line], t.c, c_reference);
            weight[i][1] = attention_weight(s[8 * w + 4 * i + 2 * line + 1], t.c, c_reference);
            sm90a_store4(panel + sm90_piece(head, (uint32_t)(2 * w + i)) + (uint32_t)(lane % 4) * 4, sm90a_f16x2(weight[i][0], weight[i][1]));
        }
        state.sum[line][w] = attention_add_weights(state.sum[line][w], factor, __fadd_rn(weight[0][0], weight[1][0]),
                                                   __fadd_rn(weight[0][1], weight[1][1]));
    }
}

template <class S> static __device__ __forceinline__ void rows_block_scores(rows_task &t, int left, rows_state &state)
{
    float s[32];
    int stage = t.block & 1;
    uint32_t tile = t.shared + S::TILES + (uint32_t)stage * S::TILE, panel = tile + S::PANELS * ATTENTION_PANEL_BYTES;
    sm90a_barrier_wait(rows_barrier(t, S::BARRIERS, FULL + stage), rows_phase(t.block), stage);
    sm90a_product_begin();
#pragma unroll
    for (int i = 0; i < (S::LATENT + S::ROPE) / 16; i++) {
        uint32_t at = (uint32_t)(i / 4) * ATTENTION_PANEL_BYTES + (uint32_t)(i % 4) * 32;
        sm90a_product<64, 0, 0>::run(s, sm90_tile(t.shared + S::Q + at, 0), sm90_tile(tile + at, 0), i > 0);
    }
    sm90a_product_commit();
    sm90a_product_wait<0>();
    sm90a_touch(s);
    sm90a_sync(SYNC_SCORES, ROWS_GROUP); /* all four warps are done with the rotary panel */
    rows_weights<S>(s, 0, t, left, panel, state);
    rows_weights<S>(s, 1, t, left, panel, state);
    sm90a_fence_async();
    sm90a_barrier_arrive_warp(rows_barrier(t, S::BARRIERS, WEIGHED + stage));
    t.block++;
}

/* Tells the other groups the reference and the sum of weights of each head. */
template <class S> static __device__ __forceinline__ void rows_publish_state(rows_task &t, const rows_state &state)
{
    int thread = (int)threadIdx.x, lane = thread % 32;
    float *out = (float *)(t.memory + S::STATE);
    if (t.chunk >= 1)
        sm90a_barrier_wait(rows_barrier(t, S::BARRIERS, STATE_READ), (uint32_t)(t.chunk - 1) & 1u, 30);
#pragma unroll
    for (int line = 0; line < 2; line++) {
        float sum[4];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            sum[w] = state.sum[line][w];
            sum[w] = __fadd_rn(sum[w], __shfl_xor_sync(0xffffffffu, sum[w], 1));
            sum[w] = __fadd_rn(sum[w], __shfl_xor_sync(0xffffffffu, sum[w], 2));
        }
        int head = thread / 32 * 16 + lane / 4 + line * 8;
        if (lane % 4 == 0) {
            out[head] = state.reference[line];
            out[ROWS_HEADS + head] = __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
        }
    }
    sm90a_barrier_arrive_warp(rows_barrier(t, S::BARRIERS, STATED));
    t.chunk++;
}

template <class S> static __device__ __forceinline__ void rows_scores(const gpu_attend_args &a, rows_task &t)
{
    for (; t.work < t.works; t.work += (int)gridDim.x) {
        int row = t.work / t.groups, count = a.selected_count[row];
        int64_t head = (int64_t)row * a.heads + t.work % t.groups * ROWS_HEADS;
        attention_queries<S::LATENT, S::ROPE, ROWS_HEADS, 2>(t.shared + S::Q, a.q_absorbed + head * S::LATENT,
                                                          a.q + head * (a.nope + S::ROPE) + a.nope, a.nope + S::ROPE, (int)threadIdx.x, ROWS_GROUP);
        sm90a_fence_async();
        sm90a_sync(SYNC_SCORES, ROWS_GROUP);
        for (int first = 0; first < count; first += S::CHUNK) {
            int keys = min(count - first, S::CHUNK);
            rows_state state = {{-INFINITY, -INFINITY}, {}};
            for (int left = keys; left > 0; left -= ATTENTION_BLOCK)
                rows_block_scores<S>(t, left, state);
            rows_publish_state<S>(t, state);
        }
    }
}

/* ---- values ---- */

/* One block of keys into the sums of 64 heads and 256 values. */
template <class S> static __device__ __forceinline__ void rows_block_values(float (&sums)[2][64], rows_task &t, int half, bool fresh)
{
    int thread = (int)threadIdx.x % ROWS_GROUP, lane = thread % 32, stage = t.block & 1;
    uint32_t tile = t.shared + S::TILES + (uint32_t)stage * S::TILE;
    sm90a_barrier_wait(rows_barrier(t, S::BARRIERS, WEIGHED + stage), rows_phase(t.block), 40 + half * 2 + stage);
    const float *factors = (const float *)(t.memory + S::FACTORS) + stage * ROWS_HEADS + thread / 32 * 16 + lane / 4;
    float factor[2] = {factors[0], factors[8]};
    if (!fresh && __any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < 128; i++)
            sums[i / 64][i % 64] *= factor[i / 2 % 2];
    sm90a_product_begin();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t values = tile + (uint32_t)(half * 4 + i % 2 * 2) * ATTENTION_PANEL_BYTES + (uint32_t)(i / 2) * 2048;
        sm90a_product<128, 0, 1>::run(sums[i % 2], sm90_tile(tile + S::PANELS * ATTENTION_PANEL_BYTES + (uint32_t)(i / 2) * 32, 0),
                                      sm90_tile(values, ATTENTION_PANEL_BYTES), !(fresh && i < 2));
    }
    sm90a_product_commit();
    sm90a_product_wait<0>();
    sm90a_touch(sums[0]);
    sm90a_touch(sums[1]);
    sm90a_barrier_arrive_warp(rows_barrier(t, S::BARRIERS, EMPTY + stage));
    t.block++;
}

/* Merges the sums of a chunk into what the scratch holds of this row; the first is only kept there, unless it is the last too. */
static __device__ __forceinline__ void rows_merge(float (&sums)[2][64], float4 *scratch, const attention_merge (&m)[2], bool first, bool last)
{
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        float4 before[4];
        if (!first)
#pragma unroll
            for (int n = 0; n < 4; n++)
                before[n] = __ldcg(scratch + (i + n) * ROWS_GROUP);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float *v = sums[i / 16] + 4 * (i % 16 + n);
            if (!first) {
                v[0] = attention_merged(before[n].x, v[0], &m[0]);
                v[1] = attention_merged(before[n].y, v[1], &m[0]);
                v[2] = attention_merged(before[n].z, v[2], &m[1]);
                v[3] = attention_merged(before[n].w, v[3], &m[1]);
            }
            if (!last)
                __stcg(scratch + (i + n) * ROWS_GROUP, make_float4(v[0], v[1], v[2], v[3]));
        }
    }
}

template <class S> static __device__ __forceinline__ void rows_values(const gpu_attend_args &a, rows_task &t, int half, float4 *scratch)
{
    float sums[2][64];
    int thread = (int)threadIdx.x % ROWS_GROUP, lane = thread % 32, line = thread / 32 * 16 + lane / 4;
    const float *state = (const float *)(t.memory + S::STATE) + line;
    for (; t.work < t.works; t.work += (int)gridDim.x) {
        int row = t.work / t.groups, count = a.selected_count[row];
        attention_merge m[2];
        for (int first = 0; first < count; first += S::CHUNK, t.chunk++) {
            int keys = min(count - first, S::CHUNK);
            for (int done = 0; done < keys; done += ATTENTION_BLOCK)
                rows_block_values<S>(sums, t, half, done == 0);
            sm90a_barrier_wait(rows_barrier(t, S::BARRIERS, STATED), (uint32_t)t.chunk & 1u, 50 + half);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (first == 0)
                    m[i] = {state[8 * i], state[ROWS_HEADS + 8 * i], 0.0f, 1.0f};
                else
                    attention_merge_next(&m[i], state[8 * i], state[ROWS_HEADS + 8 * i], t.c);
            sm90a_barrier_arrive_warp(rows_barrier(t, S::BARRIERS, STATE_READ));
            rows_merge(sums, scratch, m, first == 0, first + S::CHUNK >= count);
        }
        float scale[2] = {__frcp_rn(m[0].sum), __frcp_rn(m[1].sum)};
        float *out = a.out + ((int64_t)row * a.heads + t.work % t.groups * ROWS_HEADS + line) * S::LATENT + half * 256 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 32; n++) {
            const float *v = sums[n / 16] + 4 * (n % 16);
            __stcs((float2 *)(out + n * 8), make_float2(__fmul_rn(v[0], scale[0]), __fmul_rn(v[1], scale[0])));
            __stcs((float2 *)(out + 8 * S::LATENT + n * 8), make_float2(__fmul_rn(v[2], scale[1]), __fmul_rn(v[3], scale[1])));
        }
    }
}

template <class S>
__global__ void __launch_bounds__(ROWS_THREADS, 1) attention_rows(const __grid_constant__ gpu_attend_args a, float4 *scratch)
{
    extern __shared__ uint8_t raw[];
    rows_task t = {};
    t.memory = raw + ((1024 - (sm90a_shared(raw) & 1023u)) & 1023u);
    t.shared = sm90a_shared(t.memory);
    t.groups = a.heads / ROWS_HEADS;
    t.work = (int)blockIdx.x;
    t.works = a.step->rows * t.groups;
    t.c = a.scale * 1.44269504088896340736f;
    t.margin = 8.0f / t.c;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            sm90a_barrier_init(rows_barrier(t, S::BARRIERS, FULL + i), ROWS_LOADERS);
            sm90a_barrier_init(rows_barrier(t, S::BARRIERS, EMPTY + i), 8);
            sm90a_barrier_init(rows_barrier(t, S::BARRIERS, WEIGHED + i), 4);
        }
        sm90a_barrier_init(rows_barrier(t, S::BARRIERS, STATED), 4);
        sm90a_barrier_init(rows_barrier(t, S::BARRIERS, STATE_READ), 8);
        sm90a_barrier_init_done();
    }
    __syncthreads();
    int role = (int)threadIdx.x / ROWS_GROUP;
    if (role == ROWS_SCORES) {
        sm90a_registers_fewer<88>();
        rows_scores<S>(a, t);
    } else if (role == ROWS_KEYS) {
        sm90a_registers_fewer<104>();
        rows_keys<S>(a, t);
    } else {
        sm90a_registers_more<160>();
        int half = role - ROWS_VALUES_LOW;
        rows_values<S>(a, t, half, scratch + ((int64_t)blockIdx.x * 2 + half) * (ROWS_GROUP * 32) + (int)threadIdx.x % ROWS_GROUP);
    }
}

template <class S> static void rows_launch(const gpu_attend_args *a, void *scratch, int processors, int rows, gpu_stream stream)
{
    int works = rows * (a->heads / ROWS_HEADS);
    cudaFuncSetAttribute(attention_rows<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    attention_rows<S><<<works < processors ? works : processors, ROWS_THREADS, S::BYTES, stream>>>(*a, (float4 *)scratch);
}

#ifndef GPU_ATTENTION_CHUNK
#define GPU_ATTENTION_CHUNK 512
#endif

void gpu_attention_rows_sm90(const gpu_attend_args *a, void *scratch, int processors, int rows, gpu_stream s)
{
    if (a->cache.dtype == GPU_KV_FP8)
        rows_launch<rows_shape<GPU_KV_FP8, GPU_ATTENTION_CHUNK>>(a, scratch, processors, rows, s);
    else
        rows_launch<rows_shape<GPU_KV_BF16, GPU_ATTENTION_CHUNK>>(a, scratch, processors, rows, s);
}
