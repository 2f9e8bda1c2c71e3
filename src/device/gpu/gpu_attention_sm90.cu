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

enum { SPLIT_THREADS = 384, SPLIT_LOADERS = 8, SPLIT_UNITS = 2, PRODUCTS = 128, SYNC_PRODUCTS = 1, SYNC_LOADERS = 2, MOST_CHUNKS = 8 };

/* Shared memory: queries, two tiles, weights, entries as they come (two slots of 4 keys per warp of loaders), and small things. */
template <int LATENT_, int ROPE_, int HEADS_, int DTYPE_, int CHUNK_> struct split_shape {
    static constexpr int LATENT = LATENT_, ROPE = ROPE_, HEADS = HEADS_, DTYPE = DTYPE_, CHUNK = CHUNK_;
    static constexpr int PANELS = LATENT / 64, TILE = (PANELS + 1) * ATTENTION_PANEL_BYTES, Q_PANEL = HEADS * SM90_LINE_BYTES;
    static constexpr int ENTRY = attention_entry_bytes(DTYPE == GPU_KV_FP8, LATENT, ROPE), RAW_ENTRY = attention_raw_bytes(ENTRY);
    static constexpr bool BULK = DTYPE == GPU_KV_FP8 && ENTRY % 16 == 0; /* bf16 entries have no room */
    static constexpr int RAW_SLOT = RAW_ENTRY * ATTENTION_UNIT;
    static constexpr int Q = 0, TILES = (PANELS + 1) * Q_PANEL, WEIGHTS = TILES + 2 * TILE, RAW = WEIGHTS + HEADS * SM90_LINE_BYTES;
    static constexpr int KEYS = RAW + (BULK ? SPLIT_LOADERS * SPLIT_UNITS * RAW_SLOT : 0), LARGEST = KEYS + CHUNK * 4;
    static constexpr int STATE = LARGEST + 2 * 4 * HEADS * 4, STATES = STATE + 2 * HEADS * 4;
    static constexpr int BARRIERS = STATES + MOST_CHUNKS * 2 * HEADS * 4, CAME = BARRIERS + 4 * 8;
    static constexpr int BYTES = CAME + SPLIT_LOADERS * 8 + 1024; /* 1024: to begin at a multiple of it */
    static constexpr int STEPS = LATENT / 16 + ROPE / 16;
    static_assert(BYTES <= 232448, "a block has no more shared memory");
    static_assert(ATTENTION_BLOCK == SPLIT_LOADERS * SPLIT_UNITS * ATTENTION_UNIT, "a warp of loaders has SPLIT_UNITS units of each block");
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

static __device__ __forceinline__ int loader_warp(void)
{
    return (int)threadIdx.x / 32 - PRODUCTS / 32;
}

/* First key, in its block, of unit u of a warp. */
static __device__ __forceinline__ int unit_key(int u)
{
    return (u * SPLIT_LOADERS + loader_warp()) * ATTENTION_UNIT;
}

/* Keys through registers: the loads of the next block are under way while this one is stored. */
template <class S>
static __device__ __forceinline__ void split_load_registers(const attention_keys &k, const split_task &t, const uint32_t *slots)
{
    int lane = (int)threadIdx.x % 32;
    uint32_t barriers = t.shared + S::BARRIERS;
    attention_unit<S::LATENT, S::ROPE, S::DTYPE> units[SPLIT_UNITS];
#pragma unroll
    for (int u = 0; u < SPLIT_UNITS; u++)
        attention_unit_load(&units[u], &k, slots, unit_key(u), lane);
    for (int j = 0; j < t.blocks; j++) {
        int stage = j & 1;
        if (j >= 2)
            sm90a_barrier_wait(empty_barrier(barriers, stage), (uint32_t)(j / 2 - 1) & 1u, 10 + stage);
#pragma unroll
        for (int u = 0; u < SPLIT_UNITS; u++) {
            attention_unit_store(&units[u], t.shared + S::TILES + (uint32_t)stage * S::TILE, unit_key(u), lane);
            if (j + 1 < t.blocks)
                attention_unit_load(&units[u], &k, slots + (j + 1) * ATTENTION_BLOCK, unit_key(u), lane);
        }
        sm90a_fence_async();
        sm90a_barrier_arrive_warp(full_barrier(barriers, stage));
    }
}

/* Asks for the warp's entries of a block: one lane each. */
template <class S>
static __device__ __forceinline__ void split_request(const attention_keys &k, const split_task &t, const uint32_t *slots, int block)
{
    int lane = (int)threadIdx.x % 32, u = lane / ATTENTION_UNIT, key = block * ATTENTION_BLOCK + unit_key(u) + lane % ATTENTION_UNIT;
    bool there = lane < SPLIT_UNITS * ATTENTION_UNIT && key < t.keys;
    uint32_t came = t.shared + S::CAME + (uint32_t)loader_warp() * 8, all = __ballot_sync(0xffffffffu, there);
    if (lane == 0)
        sm90a_barrier_expect(came, (uint32_t)__popc(all) * S::ENTRY);
    __syncwarp();
    if (there)
        sm90a_bulk_load(t.shared + S::RAW +
                            (uint32_t)((loader_warp() * SPLIT_UNITS + u) * S::RAW_SLOT + lane % ATTENTION_UNIT * S::RAW_ENTRY),
                        attention_entry<S::ENTRY>(&k, slots[key]), S::ENTRY, came);
}

/* Keys by bulk copies: they are asked for one block ahead, as soon as the entries before them are in registers. */
template <class S>
static __device__ __forceinline__ void split_load_bulk(const attention_keys &k, const split_task &t, const uint32_t *slots)
{
    int lane = (int)threadIdx.x % 32;
    uint32_t barriers = t.shared + S::BARRIERS, came = t.shared + S::CAME + (uint32_t)loader_warp() * 8;
    const uint8_t *raw = t.memory + S::RAW + loader_warp() * SPLIT_UNITS * S::RAW_SLOT;
    attention_places<S::LATENT, S::ROPE> places = attention_places_of<S::LATENT, S::ROPE, S::ENTRY>(unit_key(0), lane);
    split_request<S>(k, t, slots, 0);
    for (int j = 0; j < t.blocks; j++) {
        int stage = j & 1, left = t.keys - j * ATTENTION_BLOCK;
        attention_unit<S::LATENT, S::ROPE, S::DTYPE> units[SPLIT_UNITS];
        sm90a_barrier_wait(came, (uint32_t)j & 1u, 20);
#pragma unroll
        for (int u = 0; u < SPLIT_UNITS; u++)
            attention_unit_read(&units[u], raw + u * S::RAW_SLOT, places);
        if (j + 1 < t.blocks) {
            split_request<S>(k, t, slots, j + 1);
        } else if (left < ATTENTION_BLOCK) {
#pragma unroll
            for (int u = 0; u < SPLIT_UNITS; u++)
                attention_unit_clear(&units[u], left - unit_key(u), lane);
        }
        if (j >= 2)
            sm90a_barrier_wait(empty_barrier(barriers, stage), (uint32_t)(j / 2 - 1) & 1u, 10 + stage);
#pragma unroll
        for (int u = 0; u < SPLIT_UNITS; u++) /* a multiple of 8 lines further: the same swizzle */
            attention_unit_put(&units[u], t.memory + S::TILES + stage * S::TILE + u * SPLIT_LOADERS * ATTENTION_UNIT * SM90_LINE_BYTES,
                               places);
        sm90a_fence_async();
        sm90a_barrier_arrive_warp(full_barrier(barriers, stage));
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

template <class S>
static __device__ __forceinline__ void split_multiply(const gpu_attend_args &a, const split_task &t, float (&sums)[S::PANELS][S::HEADS / 2])
{
    float s[S::HEADS / 2];
    split_state<S::HEADS> state;
    uint32_t barriers = t.shared + S::BARRIERS, weights = t.shared + S::WEIGHTS;
    int64_t head = (int64_t)t.row * a.heads + t.first_head;
    attention_queries<S::LATENT, S::ROPE, S::HEADS, S::PANELS / 2>(t.shared + S::Q, a.q_absorbed + head * S::LATENT,
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
}

/* Which block of the cluster merges a panel, and where it finds the sums of a chunk: [chunk][its panels][heads / 8][thread] of 4. */
template <class S> static __device__ __forceinline__ uint32_t split_place(int chunk, int chunks, int panel, int n, int thread)
{
    int each = (S::PANELS + chunks - 1) / chunks;
    return S::TILES + (uint32_t)((((chunk * each + panel / chunks) * (S::HEADS / 8) + n) * PRODUCTS + thread) * 16);
}

/* Sends the chunk's sums to the blocks that merge them, and its state to all; the tiles of all blocks are free by now. */
template <class S>
static __device__ __forceinline__ void split_send(const split_task &t, const float (&sums)[S::PANELS][S::HEADS / 2], int chunks)
{
    int thread = (int)threadIdx.x;
#pragma unroll
    for (int p = 0; p < S::PANELS; p++) {
        uint32_t there = sm90a_cluster_address(t.shared, (uint32_t)(p % chunks));
#pragma unroll
        for (int n = 0; n < S::HEADS / 8; n++)
            sm90a_cluster_store4(there + split_place<S>(t.chunk, chunks, p, n, thread), sums[p][4 * n], sums[p][4 * n + 1],
                                 sums[p][4 * n + 2], sums[p][4 * n + 3]);
    }
    const float *state = (const float *)(t.memory + S::STATE);
    for (int i = thread; i < chunks * 2 * S::HEADS; i += PRODUCTS)
        sm90a_cluster_store(sm90a_cluster_address(t.shared, (uint32_t)(i / (2 * S::HEADS))) + S::STATES
                                + (uint32_t)(t.chunk * 2 * S::HEADS + i % (2 * S::HEADS)) * 4,
                            state[i % (2 * S::HEADS)]);
}

/* Merges the block's panels from its own memory, by all its threads, and writes the result. */
template <class S> static __device__ __forceinline__ void split_merge(const gpu_attend_args &a, const split_task &t, int chunks)
{
    float *out = a.out + ((int64_t)t.row * a.heads + t.first_head) * S::LATENT;
    for (int i = (int)threadIdx.x; i < (S::PANELS + chunks - 1 - t.chunk) / chunks * (S::HEADS / 8) * PRODUCTS; i += SPLIT_THREADS) {
        int thread = i % PRODUCTS, n = i / PRODUCTS % (S::HEADS / 8), panel = i / PRODUCTS / (S::HEADS / 8) * chunks + t.chunk;
        int column = n * 8 + thread % 4 * 2;
        attention_merge m[2] = {};
        float4 sum = make_float4(0, 0, 0, 0);
        for (int chunk = 0; chunk < t.chunks; chunk++) {
            float4 next = *(const float4 *)(t.memory + split_place<S>(chunk, chunks, panel, n, thread));
            const float *state = (const float *)(t.memory + S::STATES) + chunk * 2 * S::HEADS + column;
            if (chunk == 0) {
                m[0] = {state[0], state[S::HEADS], 0.0f, 1.0f};
                m[1] = {state[1], state[S::HEADS + 1], 0.0f, 1.0f};
                sum = next;
            } else {
                attention_merge_next(&m[0], state[0], state[S::HEADS], t.c);
                attention_merge_next(&m[1], state[1], state[S::HEADS + 1], t.c);
                sum = make_float4(attention_merged(sum.x, next.x, &m[0]), attention_merged(sum.y, next.y, &m[1]),
                                  attention_merged(sum.z, next.z, &m[0]), attention_merged(sum.w, next.w, &m[1]));
            }
        }
        float *to = out + column * S::LATENT + panel * 64 + thread / 32 * 16 + thread % 32 / 4;
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
        for (int i = 0; i < SPLIT_LOADERS; i++)
            sm90a_barrier_init(t.shared + (uint32_t)(S::CAME + i * 8), 1);
        sm90a_barrier_init_done();
        sm90a_fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= PRODUCTS) {
        sm90a_registers_fewer<152>();
        if (t.blocks > 0)
            split_load<S>(a, t);
        sm90a_cluster_sync();
        sm90a_cluster_sync();
        split_merge<S>(a, t, chunks);
    } else {
        sm90a_registers_more<200>();
        float sums[S::PANELS][S::HEADS / 2] = {};
        if (t.blocks > 0)
            split_multiply<S>(a, t, sums);
        sm90a_cluster_sync();
        if (t.blocks > 0)
            split_send<S>(t, sums, chunks);
        sm90a_cluster_sync();
        split_merge<S>(a, t, chunks);
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

/* Groups of 16 heads, and one of 8 where they are no multiple of 16. */
template <int LATENT, int ROPE, int DTYPE, int CHUNK> static void split_heads(const gpu_attend_args *a, int rows, gpu_stream stream)
{
    if (a->heads >= 16)
        split_launch<split_shape<LATENT, ROPE, 16, DTYPE, CHUNK>>(a, 0, a->heads / 16, rows, stream);
    if (a->heads % 16 != 0)
        split_launch<split_shape<LATENT, ROPE, 8, DTYPE, CHUNK>>(a, a->heads / 16 * 16, 1, rows, stream);
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
