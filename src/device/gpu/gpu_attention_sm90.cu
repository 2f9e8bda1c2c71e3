/* Sparse MLA attention, a cluster of blocks per row ("split" of gpu_attention.h).
 *
 *     block = 1 warpgroup of products + 2 warpgroups that bring keys; it has one chunk of the row's selected keys
 *     scores^T [64 keys][heads]   = tile [64 keys][latent + rope] x q^T          tile read by line
 *     sums^T   [latent][heads]   += tile^T [latent][64 keys] x weights^T         the same tile read across
 *
 * Entries come from their pages by bulk copies, one block of keys ahead, are turned into f16 and stored to one of two tiles (entries that
 * are no multiple of 16 bytes come through registers). When all chunks are done, each block of the cluster merges its part of the latent
 * from the shared memory of all of them. */
#include "device/gpu/gpu_attention.h"
#include "device/gpu/gpu_attention_tile.h"

enum { SPLIT_THREADS = 384, SPLIT_LOADERS = 8, PRODUCTS = 128, SYNC_PRODUCTS = 1, SYNC_LOADERS = 2, MOST_CHUNKS = 8 };

/* Shared memory: queries, two tiles, weights, entries as they come (in slots of 4 keys, SLOTS per warp of loaders), and small things. */
template <int LATENT_, int ROPE_, int HEADS_, int DTYPE_, int CHUNK_> struct split_shape {
    static constexpr int LATENT = LATENT_, ROPE = ROPE_, HEADS = HEADS_, DTYPE = DTYPE_, CHUNK = CHUNK_;
    static constexpr int PANELS = LATENT / 64, TILE = (PANELS + 1) * ATTENTION_PANEL_BYTES, Q_PANEL = HEADS * SM90_LINE_BYTES;
    static constexpr int ENTRY = attention_entry_bytes(DTYPE == GPU_KV_FP8, LATENT, ROPE), RAW_ENTRY = attention_raw_bytes(ENTRY);
    static constexpr bool BULK = ENTRY % 16 == 0 && (DTYPE == GPU_KV_FP8 || HEADS <= 24 || LATENT < 512); /* else no room */
    static constexpr int SLOTS = DTYPE == GPU_KV_FP8 && HEADS <= 24 ? 2 : 1, RAW_SLOT = RAW_ENTRY * ATTENTION_UNIT;
    static constexpr int Q = 0, TILES = (PANELS + 1) * Q_PANEL, WEIGHTS = TILES + 2 * TILE, RAW = WEIGHTS + HEADS * SM90_LINE_BYTES;
    static constexpr int KEYS = RAW + (BULK ? SPLIT_LOADERS * SLOTS * RAW_SLOT : 0), LARGEST = KEYS + CHUNK * 4;
    static constexpr int STATE = LARGEST + 2 * 4 * HEADS * 4, STATES = STATE + 2 * HEADS * 4;
    static constexpr int BARRIERS = STATES + MOST_CHUNKS * 2 * HEADS * 4, CAME = BARRIERS + 4 * 8;
    static constexpr int BYTES = CAME + SPLIT_LOADERS * SLOTS * 8 + 1024; /* 1024: to begin at a multiple of it */
    static constexpr int STEPS = LATENT / 16 + ROPE / 16, UNITS = ATTENTION_BLOCK / ATTENTION_UNIT / SPLIT_LOADERS;
    static_assert(BYTES <= 232448, "a block has no more shared memory");
};

/* One row's chunk as a block sees it. */
struct split_task {
    uint32_t shared;   /* address of the block's shared memory */
    uint8_t *memory;   /* the same */
    int row, chunk, keys, blocks; /* keys of this chunk, and blocks of 64 of them */
    int chunks;        /* of this row that have keys */
    int first_head;
    float c, margin;   /* weights are 2^(c score); see attention_raise */
};

static __device__ __forceinline__ uint32_t full_barrier(uint32_t barriers, int stage)
{
    return barriers + (uint32_t)stage * 8;
}

static __device__ __forceinline__ uint32_t empty_barrier(uint32_t barriers, int stage)
{
    return barriers + 16 + (uint32_t)stage * 8;
}

/* Keys through registers: the loads of the next block are under way while this one is stored. */
template <class S>
static __device__ __forceinline__ void split_load_registers(const attention_keys &k, const split_task &t, const uint32_t *slots)
{
    typedef attention_unit<S::LATENT, S::ROPE, S::DTYPE> unit;
    int warp = (int)threadIdx.x / 32 - PRODUCTS / 32, lane = (int)threadIdx.x % 32;
    uint32_t barriers = t.shared + S::BARRIERS;
    unit units[S::UNITS];
#pragma unroll
    for (int u = 0; u < S::UNITS; u++)
        attention_unit_load(&units[u], &k, slots, (u * SPLIT_LOADERS + warp) * ATTENTION_UNIT, lane);
    for (int j = 0; j < t.blocks; j++) {
        int stage = j & 1;
        if (j >= 2)
            sm90a_barrier_wait(empty_barrier(barriers, stage), (uint32_t)(j / 2 - 1) & 1u, 10 + stage);
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            int first = (u * SPLIT_LOADERS + warp) * ATTENTION_UNIT;
            attention_unit_store(&units[u], t.shared + S::TILES + (uint32_t)stage * S::TILE, first, lane);
            if (j + 1 < t.blocks)
                attention_unit_load(&units[u], &k, slots + (j + 1) * ATTENTION_BLOCK, first, lane);
        }
        sm90a_fence_async();
        sm90a_barrier_arrive_warp(full_barrier(barriers, stage));
    }
}

/* Which 4 keys of the chunk a warp's unit `number` is: UNITS per block of keys. */
template <class S> static __device__ __forceinline__ int split_unit_key(int number, int warp)
{
    return number / S::UNITS * ATTENTION_BLOCK + (number % S::UNITS * SPLIT_LOADERS + warp) * ATTENTION_UNIT;
}

/* Asks for the entries of a unit: lanes 0 to 3 one each. */
template <class S>
static __device__ __forceinline__ void split_request(const attention_keys &k, const split_task &t, const uint32_t *slots, int number,
                                                     int warp, int lane)
{
    int first = split_unit_key<S>(number, warp), there = min(max(t.keys - first, 0), (int)ATTENTION_UNIT);
    uint32_t slot = (uint32_t)(warp * S::SLOTS + number % S::SLOTS), came = t.shared + S::CAME + slot * 8;
    if (lane == 0)
        sm90a_barrier_expect(came, (uint32_t)(there * S::ENTRY));
    __syncwarp();
    if (lane < there)
        sm90a_bulk_load(t.shared + S::RAW + slot * S::RAW_SLOT + (uint32_t)(lane * S::RAW_ENTRY),
                        attention_entry<S::ENTRY>(&k, slots[first + lane]), S::ENTRY, came);
}

/* Keys by bulk copies: a slot is asked for again as soon as its entries are in registers. */
template <class S>
static __device__ __forceinline__ void split_load_bulk(const attention_keys &k, const split_task &t, const uint32_t *slots)
{
    typedef attention_unit<S::LATENT, S::ROPE, S::DTYPE> unit;
    int warp = (int)threadIdx.x / 32 - PRODUCTS / 32, lane = (int)threadIdx.x % 32, units = t.blocks * S::UNITS;
    uint32_t barriers = t.shared + S::BARRIERS;
    for (int i = 0; i < min(S::SLOTS, units); i++)
        split_request<S>(k, t, slots, i, warp, lane);
    for (int number = 0; number < units; number++) {
        int block = number / S::UNITS, stage = block & 1;
        uint32_t slot = (uint32_t)(warp * S::SLOTS + number % S::SLOTS);
        unit u;
        sm90a_barrier_wait(t.shared + S::CAME + slot * 8, (uint32_t)(number / S::SLOTS) & 1u, 20);
        attention_unit_read(&u, t.shared + S::RAW + slot * S::RAW_SLOT, t.keys - split_unit_key<S>(number, warp), lane);
        __syncwarp();
        if (number + S::SLOTS < units)
            split_request<S>(k, t, slots, number + S::SLOTS, warp, lane);
        if (block >= 2 && number % S::UNITS == 0)
            sm90a_barrier_wait(empty_barrier(barriers, stage), (uint32_t)(block / 2 - 1) & 1u, 10 + stage);
        attention_unit_store(&u, t.shared + S::TILES + (uint32_t)stage * S::TILE, split_unit_key<S>(number, warp) % ATTENTION_BLOCK, lane);
        if (number % S::UNITS == S::UNITS - 1) {
            sm90a_fence_async();
            sm90a_barrier_arrive_warp(full_barrier(barriers, stage));
        }
    }
}

template <class S> static __device__ __forceinline__ void split_load(const gpu_attend_args &a, const split_task &t)
{
    const gpu_step *step = a.step;
    attention_keys k = {step->pages + a.cache.latent_offset, a.cache.page_bytes};
    uint32_t *slots = (uint32_t *)(t.memory + S::KEYS);
    attention_slots(slots, a.selected + (int64_t)t.row * a.topk + t.chunk * S::CHUNK, t.keys,
                    step->tables + step->table_first[step->sequences[t.row]], (int)threadIdx.x - PRODUCTS, SPLIT_LOADERS * 32);
    sm90a_sync(SYNC_LOADERS, SPLIT_LOADERS * 32);
    if constexpr (S::BULK)
        split_load_bulk<S>(k, t, slots);
    else
        split_load_registers<S>(k, t, slots);
}

/* What a thread of the products keeps: for each of its columns (heads 8n + 2 (t % 4) + e: column 2n + e). */
template <int HEADS> struct split_state {
    float reference[HEADS / 4], sum[HEADS / 4], factor[HEADS / 4];
};

template <class S> static __device__ __forceinline__ void split_scores(float (&s)[S::HEADS / 2], uint32_t q, uint32_t tile)
{
    uint64_t keys = sm90_tile(tile, 0), queries = sm90_tile(q, 0);
#pragma unroll
    for (int i = 0; i < S::STEPS; i++)
        sm90a_product<S::HEADS, 0, 0>::run(s, sm90_tile_at(keys, (uint32_t)(i / 4) * ATTENTION_PANEL_BYTES + (uint32_t)(i % 4) * 32),
                                           sm90_tile_at(queries, (uint32_t)(i / 4) * S::Q_PANEL + (uint32_t)(i % 4) * 32), i > 0);
}

/* Largest score of each column over the 64 keys; keys behind the last one are taken out. */
template <class S>
static __device__ __forceinline__ void split_largest(float (&s)[S::HEADS / 2], const split_task &t, int block,
                                                     float (&largest)[S::HEADS / 4])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, left = t.keys - block * ATTENTION_BLOCK, key = warp * 16 + lane / 4;
    float *shared = (float *)(t.memory + S::LARGEST) + (block & 1) * 4 * S::HEADS;
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        int at = i / 2 * 4 + i % 2;
        if (key >= left)
            s[at] = -INFINITY;
        if (key + 8 >= left)
            s[at + 2] = -INFINITY;
        float most = fmaxf(s[at], s[at + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        if (lane < 4)
            shared[warp * S::HEADS + i / 2 * 8 + lane * 2 + i % 2] = most;
    }
    sm90a_sync(SYNC_PRODUCTS, PRODUCTS);
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        largest[i] =
            fmaxf(fmaxf(shared[column], shared[S::HEADS + column]), fmaxf(shared[2 * S::HEADS + column], shared[3 * S::HEADS + column]));
    }
}

/* Weights of a block's keys, to shared memory as [heads][64 keys] f16, and to the sums. */
template <class S>
static __device__ __forceinline__ void split_weights(float (&s)[S::HEADS / 2], const split_task &t, int block, split_state<S::HEADS> &state)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t weights = t.shared + S::WEIGHTS, in_piece = (uint32_t)lane / 4 * 2;
    float largest[S::HEADS / 4];
    split_largest<S>(s, t, block, largest);
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        int at = i / 2 * 4 + i % 2;
        uint32_t head = (uint32_t)(i / 2 * 8 + lane % 4 * 2 + i % 2);
        state.factor[i] = attention_raise(&state.reference[i], largest[i], t.c, t.margin);
        float c_reference = __fmul_rn(state.reference[i], t.c);
        float low = attention_weight(s[at], t.c, c_reference), high = attention_weight(s[at + 2], t.c, c_reference);
        uint32_t packed = sm90a_f16x2(low, high);
        sm90a_store2(weights + sm90_piece(head, (uint32_t)warp * 2) + in_piece, packed);
        sm90a_store2(weights + sm90_piece(head, (uint32_t)warp * 2 + 1) + in_piece, packed >> 16);
        float both = __fadd_rn(low, high);
        state.sum[i] = attention_add_weights(state.sum[i], state.factor[i], both, __shfl_xor_sync(0xffffffffu, both, 4));
    }
}

template <class S>
static __device__ __forceinline__ void split_rescale(float (&sums)[S::PANELS][S::HEADS / 2], const split_state<S::HEADS> &state)
{
    bool change = false;
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++)
        change = change || state.factor[i] != 1.0f;
    if (!__any_sync(0xffffffffu, change))
        return;
#pragma unroll
    for (int p = 0; p < S::PANELS; p++)
#pragma unroll
        for (int i = 0; i < S::HEADS / 2; i++)
            sums[p][i] *= state.factor[i / 4 * 2 + i % 2];
}

template <class S>
static __device__ __forceinline__ void split_values(float (&sums)[S::PANELS][S::HEADS / 2], uint32_t tile, uint32_t weights)
{
    uint64_t keys = sm90_tile(tile, 0), by_keys = sm90_tile(weights, 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int p = 0; p < S::PANELS; p++)
            sm90a_product<S::HEADS, 1, 0>::run(sums[p], sm90_tile_at(keys, (uint32_t)p * ATTENTION_PANEL_BYTES + (uint32_t)i * 2048),
                                               sm90_tile_at(by_keys, (uint32_t)i * 32), 1);
}

/* The sums of weights of all threads, to STATE with the references. */
template <class S> static __device__ __forceinline__ void split_publish_state(const split_task &t, split_state<S::HEADS> &state)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *parts = (float *)(t.memory + S::LARGEST), *out = (float *)(t.memory + S::STATE);
    sm90a_sync(SYNC_PRODUCTS, PRODUCTS); /* LARGEST is still being read for the last block */
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        float sum = state.sum[i];
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 8));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 16));
        int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (lane < 4) {
            parts[warp * S::HEADS + column] = sum;
            if (warp == 0)
                out[column] = state.reference[i];
        }
    }
    sm90a_sync(SYNC_PRODUCTS, PRODUCTS);
    for (int h = (int)threadIdx.x; h < S::HEADS; h += PRODUCTS)
        out[S::HEADS + h] =
            __fadd_rn(__fadd_rn(parts[h], parts[S::HEADS + h]), __fadd_rn(parts[2 * S::HEADS + h], parts[3 * S::HEADS + h]));
}

/* The chunk's sums, to the memory of the tiles: [panel][register / 4][thread] of 4 registers. */
template <class S>
static __device__ __forceinline__ void split_publish_sums(const split_task &t, float (&sums)[S::PANELS][S::HEADS / 2])
{
    float4 *out = (float4 *)(t.memory + S::TILES);
#pragma unroll
    for (int p = 0; p < S::PANELS; p++)
#pragma unroll
        for (int i = 0; i < S::HEADS / 8; i++)
            out[(p * (S::HEADS / 8) + i) * PRODUCTS + (int)threadIdx.x] =
                make_float4(sums[p][4 * i], sums[p][4 * i + 1], sums[p][4 * i + 2], sums[p][4 * i + 3]);
}

template <class S> static __device__ __forceinline__ void split_multiply(const gpu_attend_args &a, const split_task &t)
{
    float sums[S::PANELS][S::HEADS / 2] = {}, s[S::HEADS / 2];
    split_state<S::HEADS> state;
    uint32_t barriers = t.shared + S::BARRIERS, weights = t.shared + S::WEIGHTS;
    int64_t head = (int64_t)t.row * a.heads + t.first_head;
    attention_queries<S::LATENT, S::ROPE, S::HEADS, S::HEADS <= 16 ? S::PANELS / 2 : 1>(t.shared + S::Q, a.q_absorbed + head * S::LATENT,
                                                                  a.q + head * (a.nope + S::ROPE) + a.nope, a.nope + S::ROPE);
    sm90a_fence_async();
    sm90a_sync(SYNC_PRODUCTS, PRODUCTS);
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        state.reference[i] = -INFINITY;
        state.sum[i] = 0.0f;
    }
    for (int j = 0; j < t.blocks; j++) {
        int stage = j & 1;
        uint32_t tile = t.shared + S::TILES + (uint32_t)stage * S::TILE;
        sm90a_barrier_wait(full_barrier(barriers, stage), (uint32_t)(j / 2) & 1u, stage);
        sm90a_product_begin();
        split_scores<S>(s, t.shared + S::Q, tile);
        sm90a_product_commit();
        sm90a_product_wait<0>();
        split_weights<S>(s, t, j, state);
        split_rescale<S>(sums, state);
        sm90a_fence_async();
        sm90a_sync(SYNC_PRODUCTS, PRODUCTS);
        sm90a_product_begin();
        split_values<S>(sums, tile, weights);
        sm90a_product_commit();
        sm90a_product_wait<0>();
        sm90a_barrier_arrive_warp(empty_barrier(barriers, stage));
    }
    split_publish_state<S>(t, state);
    split_publish_sums<S>(t, sums);
}

/* References and sums of all chunks, [chunk][2][heads], to this block's memory. */
template <class S> static __device__ __forceinline__ void split_collect_states(const split_task &t)
{
    float *states = (float *)(t.memory + S::STATES);
    for (int i = (int)threadIdx.x; i < t.chunks * 2 * S::HEADS; i += PRODUCTS)
        states[i] = sm90a_cluster_load(sm90a_cluster_address(t.shared + S::STATE, (uint32_t)(i / (2 * S::HEADS)))
                                       + (uint32_t)(i % (2 * S::HEADS)) * 4);
    sm90a_sync(SYNC_PRODUCTS, PRODUCTS);
}

/* Merges the next chunks, up to 4, into the sums of two heads: columns `column` and the next. */
template <class S>
static __device__ __forceinline__ void split_merge_some(const split_task &t, int first, const float4 (&next)[4], int column,
                                                        attention_merge (&m)[2], float4 *sum)
{
    const float *states = (const float *)(t.memory + S::STATES) + column;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + i >= t.chunks)
            break;
        const float *state = states + (first + i) * 2 * S::HEADS;
        if (first + i == 0) {
            m[0] = {state[0], state[S::HEADS], 0.0f, 1.0f};
            m[1] = {state[1], state[S::HEADS + 1], 0.0f, 1.0f};
            *sum = next[0];
        } else {
            attention_merge_next(&m[0], state[0], state[S::HEADS], t.c);
            attention_merge_next(&m[1], state[1], state[S::HEADS + 1], t.c);
            *sum = make_float4(attention_merged(sum->x, next[i].x, &m[0]), attention_merged(sum->y, next[i].y, &m[1]),
                               attention_merged(sum->z, next[i].z, &m[0]), attention_merged(sum->w, next[i].w, &m[1]));
        }
    }
}

/* Panels rank, rank + size, ... of the merged result. Called by the threads of the products. */
template <class S>
static __device__ __forceinline__ void split_merge(const gpu_attend_args &a, const split_task &t, uint32_t rank, uint32_t size)
{
    int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32;
    float *out = a.out + ((int64_t)t.row * a.heads + t.first_head) * S::LATENT;
    split_collect_states<S>(t);
    for (int p = (int)rank; p < S::PANELS; p += (int)size)
#pragma unroll
        for (int n = 0; n < S::HEADS / 8; n++) {
            attention_merge m[2] = {};
            float4 sum = make_float4(0, 0, 0, 0), next[4];
            int column = n * 8 + lane % 4 * 2;
            for (int first = 0; first < t.chunks; first += 4) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (first + i < t.chunks)
                        next[i] = sm90a_cluster_load4(sm90a_cluster_address(t.shared, (uint32_t)(first + i)) + S::TILES
                                                      + (uint32_t)((p * (S::HEADS / 8) + n) * PRODUCTS + thread) * 16);
                split_merge_some<S>(t, first, next, column, m, &sum);
            }
            float *to = out + column * S::LATENT + p * 64 + warp * 16 + lane / 4;
            float scale[2] = {__frcp_rn(m[0].sum), __frcp_rn(m[1].sum)};
            to[0] = __fmul_rn(sum.x, scale[0]);
            to[S::LATENT] = __fmul_rn(sum.y, scale[1]);
            to[8] = __fmul_rn(sum.z, scale[0]);
            to[S::LATENT + 8] = __fmul_rn(sum.w, scale[1]);
        }
}

template <class S>
__global__ void __launch_bounds__(SPLIT_THREADS, 1) attention_split(const __grid_constant__ gpu_attend_args a, int first_head, int chunks)
{
    extern __shared__ uint8_t raw[];
    split_task t;
    t.memory = raw + ((1024 - (sm90a_shared(raw) & 1023u)) & 1023u);
    t.shared = sm90a_shared(t.memory);
    t.row = (int)blockIdx.x / chunks;
    t.chunk = (int)sm90a_cluster_rank();
    t.first_head = first_head + (int)blockIdx.y * S::HEADS;
    if (t.row >= a.step->rows)
        return;
    int count = a.selected_count[t.row];
    t.chunks = (count + S::CHUNK - 1) / S::CHUNK;
    t.keys = min(max(count - t.chunk * S::CHUNK, 0), S::CHUNK);
    t.blocks = (t.keys + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
    t.c = a.scale * 1.44269504088896340736f;
    t.margin = 8.0f / t.c;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            sm90a_barrier_init(full_barrier(t.shared + S::BARRIERS, i), SPLIT_LOADERS);
            sm90a_barrier_init(empty_barrier(t.shared + S::BARRIERS, i), PRODUCTS / 32);
        }
        for (int i = 0; i < SPLIT_LOADERS * S::SLOTS; i++)
            sm90a_barrier_init(t.shared + (uint32_t)(S::CAME + i * 8), 1);
        sm90a_barrier_init_done();
        sm90a_fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= PRODUCTS) {
        sm90a_registers_fewer<136>();
        if (t.blocks > 0)
            split_load<S>(a, t);
        sm90a_cluster_sync();
        sm90a_cluster_sync();
    } else {
        sm90a_registers_more<232>();
        if (t.blocks > 0)
            split_multiply<S>(a, t);
        sm90a_cluster_sync();
        split_merge<S>(a, t, (uint32_t)t.chunk, (uint32_t)chunks);
        sm90a_cluster_sync();
    }
}

template <class S> static void split_launch(const gpu_attend_args *a, int first_head, int groups, int rows, gpu_stream stream)
{
    int chunks = (a->topk + S::CHUNK - 1) / S::CHUNK;
    cudaFuncSetAttribute(attention_split<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3((unsigned)(rows * chunks), (unsigned)groups);
    launch.blockDim = dim3(SPLIT_THREADS);
    launch.dynamicSmemBytes = S::BYTES;
    launch.stream = stream;
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {(unsigned)chunks, 1, 1};
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    cudaLaunchKernelEx(&launch, attention_split<S>, *a, first_head, chunks);
}

template <int LATENT, int ROPE, int DTYPE, int CHUNK>
static void split_heads(const gpu_attend_args *a, int rows, gpu_stream stream)
{
    int wide = a->heads / 32, rest = a->heads % 32;
    if (wide > 0)
        split_launch<split_shape<LATENT, ROPE, 32, DTYPE, CHUNK>>(a, 0, wide, rows, stream);
    if (rest == 8)
        split_launch<split_shape<LATENT, ROPE, 8, DTYPE, CHUNK>>(a, wide * 32, 1, rows, stream);
    if (rest == 16)
        split_launch<split_shape<LATENT, ROPE, 16, DTYPE, CHUNK>>(a, wide * 32, 1, rows, stream);
    if (rest == 24)
        split_launch<split_shape<LATENT, ROPE, 24, DTYPE, CHUNK>>(a, wide * 32, 1, rows, stream);
}

#ifndef GPU_ATTENTION_CHUNK
#define GPU_ATTENTION_CHUNK 512
#endif

void gpu_attention_split_sm90(const gpu_attend_args *a, int rows, gpu_stream s)
{
    if (a->cache.latent_dim == 512 && a->cache.dtype == GPU_KV_FP8)
        split_heads<512, 64, GPU_KV_FP8, GPU_ATTENTION_CHUNK>(a, rows, s);
    else if (a->cache.latent_dim == 512)
        split_heads<512, 64, GPU_KV_BF16, GPU_ATTENTION_CHUNK>(a, rows, s);
    else if (a->cache.dtype == GPU_KV_FP8)
        split_heads<128, 32, GPU_KV_FP8, GPU_ATTENTION_CHUNK>(a, rows, s);
    else
        split_heads<128, 32, GPU_KV_BF16, GPU_ATTENTION_CHUNK>(a, rows, s);
}
