/* Sparse MLA attention, a cluster of blocks per row ("split" of gpu_attention.h).
 *
 *     block = 1 warpgroup of scores and softmax, 2 of values (half of the latent each), 4 that bring keys; it has one chunk of the keys
 *     scores^T [64 keys][heads]   = tile [64 keys][latent + rope] x q^T          tile read by line
 *     sums^T   [latent][heads]   += tile^T [latent][64 keys] x weights^T         the same tile read across
 *
 * Entries come from their pages by bulk copies, one block of keys ahead, are turned into f16 and stored to one of two tiles (entries that
 * are no multiple of 16 bytes come through registers). When all chunks are done, each block of the cluster sends the parts of its sums to
 * the block that merges them. A cluster goes on to further rows; the loaders look up and ask for the first keys of the next row while the
 * sums of this one are merged. */
#include "device/gpu/hopper/gpu_attention.h"
#include "device/gpu/hopper/gpu_attention_tile.h"

enum { SPLIT_THREADS = 896, SPLIT_LOADERS = 16, GROUP = 128, MEETING = 3 * GROUP, MOST_CHUNKS = 8 };
enum { SPLIT_SCORES, SPLIT_VALUES_LOW, SPLIT_VALUES_HIGH, SPLIT_FIRST_LOADERS }; /* warpgroups */
enum { SYNC_SCORES = 1, SYNC_MEETING = 2 };

/* Shared memory: queries, two tiles, weights, entries as they come (a slot of 4 keys per warp of loaders), and small things. */
template <int LATENT_, int ROPE_, int HEADS_, int DTYPE_, int CHUNK_> struct split_shape {
    static constexpr int LATENT = LATENT_, ROPE = ROPE_, HEADS = HEADS_, DTYPE = DTYPE_, CHUNK = CHUNK_;
    static constexpr int PANELS = LATENT / 64, TILE = (PANELS + 1) * ATTENTION_PANEL_BYTES, Q_PANEL = HEADS * SM90_LINE_BYTES;
    static constexpr int ENTRY = attention_entry_bytes(DTYPE == GPU_KV_FP8, LATENT, ROPE), RAW_ENTRY = attention_raw_bytes(ENTRY);
    static constexpr bool BULK = DTYPE == GPU_KV_FP8 && ENTRY % 16 == 0; /* bf16 entries have no room */
    static constexpr int RAW_SLOT = RAW_ENTRY * ATTENTION_UNIT;
    static constexpr int Q = 0, TILES = (PANELS + 1) * Q_PANEL, WEIGHTS = TILES + 2 * TILE, RAW = WEIGHTS + 2 * HEADS * SM90_LINE_BYTES;
    static constexpr int LARGEST = RAW + (BULK ? SPLIT_LOADERS * RAW_SLOT : 0);
    static constexpr int LOOKUPS = CHUNK / (SPLIT_LOADERS * 32); /* keys of a chunk that a lane of a loader looks up */
    static constexpr int STATE = LARGEST + 2 * 4 * HEADS * 4, STATES = STATE + 2 * HEADS * 4;
    static constexpr int FACTORS = STATES + MOST_CHUNKS * 2 * HEADS * 4;
    static constexpr int BARRIERS = FACTORS + 2 * HEADS * 4, CAME = BARRIERS + 8 * 8;
    static constexpr int BYTES = CAME + SPLIT_LOADERS * 8 + 1024; /* 1024: to begin at a multiple of it */
    static constexpr int STEPS = LATENT / 16 + ROPE / 16;
    static_assert(BYTES <= 232448, "a block has no more shared memory");
    static_assert(ATTENTION_BLOCK == SPLIT_LOADERS * ATTENTION_UNIT, "a warp of loaders has a unit of each block");
};

/* What a block knows of the launch. */
struct split_task {
    uint32_t shared;   /* address of the block's shared memory */
    uint8_t *memory;   /* the same */
    int work, works, stride; /* (row, group of heads) pairs: this cluster's first, their number, how far the next one is */
    int groups, first_head;
    int chunk, chunks; /* the block's chunk of every row; blocks of the cluster */
    float c, margin;   /* weights are 2^(c score); see attention_raise */
};

/* Keys of the block's chunk of a row. */
template <class S> static __device__ __forceinline__ int split_keys(const split_task &t, int count)
{
    return min(max(count - t.chunk * S::CHUNK, 0), S::CHUNK);
}

static __device__ __forceinline__ int blocks_of(int keys)
{
    return (keys + ATTENTION_BLOCK - 1) / ATTENTION_BLOCK;
}

static __device__ __forceinline__ uint32_t full_barrier(uint32_t barriers, int stage)
{
    return barriers + (uint32_t)stage * 8;
}

static __device__ __forceinline__ uint32_t empty_barrier(uint32_t barriers, int stage)
{
    return barriers + 16 + (uint32_t)stage * 8;
}

static __device__ __forceinline__ uint32_t cluster_barrier(uint32_t barriers)
{
    return barriers + 32;
}

static __device__ __forceinline__ uint32_t weighed_barrier(uint32_t barriers, int stage)
{
    return barriers + 48 + (uint32_t)stage * 8;
}

/* The sums of a row are merged; they lie where the tiles are. */
static __device__ __forceinline__ uint32_t merged_barrier(uint32_t barriers)
{
    return barriers + 40;
}

static __device__ __forceinline__ int loader_warp(void)
{
    return (int)threadIdx.x / 32 - SPLIT_FIRST_LOADERS * (GROUP / 32);
}

/* Which key of the chunk entry e of a warp's list is: its unit of one block after the other. */
static __device__ __forceinline__ int list_key(int e)
{
    return e / ATTENTION_UNIT * ATTENTION_BLOCK + loader_warp() * ATTENTION_UNIT + e % ATTENTION_UNIT;
}

/* The keys of a row that a warp of loaders brings, as they are looked up: each step needs what the one before has loaded, so a step is done
 * per block of keys. Lane l has entries l, l + 32, ... of the list. */
template <class S> struct split_lookup {
    int row, step, keys, sequence;
    const int32_t *table;
    uint32_t slots[S::LOOKUPS]; /* positions, then slots: page id * 64 + token of the page */
};

enum { LOOKUP_STEPS = 4 };

template <class S> static __device__ __forceinline__ void split_lookup_begin(split_lookup<S> *l, const split_task &t, int work)
{
    l->row = work / t.groups;
    l->step = work < t.works ? 0 : LOOKUP_STEPS;
    l->keys = 0;
}

template <class S>
static __device__ __forceinline__ void split_lookup_step(split_lookup<S> *l, const gpu_attend_args &a, const split_task &t)
{
    const gpu_step *step = a.step;
    int lane = (int)threadIdx.x % 32;
    if (l->step == 0) {
        l->keys = __ldg(a.selected_count + l->row);
        l->sequence = __ldg(step->sequences + l->row);
    } else if (l->step == 1) {
        l->keys = split_keys<S>(t, l->keys);
        l->table = step->tables + __ldg(step->table_first + l->sequence);
#pragma unroll
        for (int i = 0; i < S::LOOKUPS; i++) {
            int key = list_key(lane + 32 * i);
            l->slots[i] = key < l->keys ? (uint32_t)__ldg(a.selected + (int64_t)l->row * a.topk + t.chunk * S::CHUNK + key) : 0;
        }
    } else if (l->step == 2) {
#pragma unroll
        for (int i = 0; i < S::LOOKUPS; i++)
            if (list_key(lane + 32 * i) < l->keys)
                l->slots[i] = (uint32_t)__ldg(l->table + l->slots[i] / GPU_PAGE_TOKENS) * GPU_PAGE_TOKENS + l->slots[i] % GPU_PAGE_TOKENS;
    }
    if (l->step < LOOKUP_STEPS)
        l->step++;
}

template <class S>
static __device__ __forceinline__ void split_lookup_end(split_lookup<S> *l, const gpu_attend_args &a, const split_task &t)
{
    while (l->step < LOOKUP_STEPS)
        split_lookup_step<S>(l, a, t);
}

/* Slot of key i of the warp's list in a block, to every lane that asks with its own i. */
template <class S> static __device__ __forceinline__ uint32_t split_slot(const split_lookup<S> &l, int block, int i)
{
    int e = block * ATTENTION_UNIT + i;
    uint32_t slot = 0;
#pragma unroll
    for (int r = 0; r < S::LOOKUPS; r++) {
        uint32_t v = __shfl_sync(0xffffffffu, l.slots[r], e % 32);
        slot = e / 32 == r ? v : slot;
    }
    return slot;
}

/* Zeros in the place of a key that is not there: what was there before may be anything. */
template <class S> static __device__ __forceinline__ void split_clear(uint32_t entry)
{
    for (int i = (int)threadIdx.x % 32; i < S::ENTRY / 16; i += 32)
        sm90a_store16(entry + (uint32_t)i * 16, 0, 0, 0, 0);
}

/* Asks for the warp's entries of a block: one lane each. */
template <class S>
static __device__ __forceinline__ void split_request(const attention_keys &k, const split_task &t, const split_lookup<S> &l, int block)
{
    int lane = (int)threadIdx.x % 32, there = min(l.keys - block * ATTENTION_BLOCK - loader_warp() * ATTENTION_UNIT, (int)ATTENTION_UNIT);
    uint32_t came = t.shared + S::CAME + (uint32_t)loader_warp() * 8, raw = t.shared + S::RAW + (uint32_t)(loader_warp() * S::RAW_SLOT);
    uint32_t slot = split_slot<S>(l, block, lane);
    if (there < ATTENTION_UNIT) {
        for (int i = max(there, 0); i < ATTENTION_UNIT; i++)
            split_clear<S>(raw + (uint32_t)(i * S::RAW_ENTRY));
        sm90a_fence_async();
    }
    if (lane == 0)
        sm90a_barrier_expect(came, (uint32_t)(max(there, 0) * S::ENTRY));
    __syncwarp();
    if (lane < there)
        sm90a_bulk_load(raw + (uint32_t)(lane * S::RAW_ENTRY), attention_entry<S::ENTRY>(&k, slot), S::ENTRY, came);
}

/* Waits until tile `number` of all the block's tiles may be filled. */
template <class S> static __device__ __forceinline__ void split_free_tile(const split_task &t, int number)
{
    int stage = number & 1;
    if (number >= 2)
        sm90a_barrier_wait(empty_barrier(t.shared + S::BARRIERS, stage), (uint32_t)(number / 2 - 1) & 1u, 10 + stage);
}

/* Waits until the row before is merged; called once per row, `turn` counts them. */
template <class S> static __device__ __forceinline__ void split_wait_merged(const split_task &t, int turn)
{
    if (turn > 0)
        sm90a_barrier_wait(merged_barrier(t.shared + S::BARRIERS), (uint32_t)(turn - 1) & 1u, 40);
}

template <class S> static __device__ __forceinline__ void split_tile_full(const split_task &t, int number)
{
    sm90a_fence_async();
    sm90a_barrier_arrive_warp(full_barrier(t.shared + S::BARRIERS, number & 1));
}

/* Keys by bulk copies: they are asked for one block ahead, as soon as the entries before them are in registers. */
template <class S>
static __device__ __forceinline__ void split_load_bulk(const attention_keys &k, const gpu_attend_args &a, const split_task &t)
{
    int lane = (int)threadIdx.x % 32, number = 0, turn = 0;
    uint32_t came = t.shared + S::CAME + (uint32_t)loader_warp() * 8;
    attention_places<S::LATENT, S::ROPE> places = attention_places_of<S::LATENT, S::ROPE, S::ENTRY>(
        t.shared + S::RAW + (uint32_t)(loader_warp() * S::RAW_SLOT), t.shared + S::TILES, loader_warp() * ATTENTION_UNIT, lane);
    split_lookup<S> now, next;
    split_lookup_begin<S>(&now, t, t.work);
    split_lookup_end<S>(&now, a, t);
    if (now.keys > 0)
        split_request<S>(k, t, now, 0);
    for (int work = t.work; work < t.works; work += t.stride) {
        split_lookup_begin<S>(&next, t, work + t.stride);
        for (int j = 0; j < blocks_of(now.keys); j++, number++) {
            attention_unit<S::LATENT, S::ROPE, S::DTYPE> u;
            sm90a_barrier_wait(came, (uint32_t)number & 1u, 20);
            attention_unit_read(&u, places);
            if (now.keys - j * ATTENTION_BLOCK > ATTENTION_BLOCK) {
                split_request<S>(k, t, now, j + 1);
                split_lookup_step<S>(&next, a, t);
            } else {
                split_lookup_end<S>(&next, a, t);
                if (next.keys > 0)
                    split_request<S>(k, t, next, 0);
            }
            if (j == 0)
                split_wait_merged<S>(t, turn);
            split_free_tile<S>(t, number);
            attention_unit_put(&u, (uint32_t)(number & 1) * S::TILE, places);
            split_tile_full<S>(t, number);
        }
        if (now.keys == 0) {
            split_lookup_end<S>(&next, a, t);
            if (next.keys > 0)
                split_request<S>(k, t, next, 0);
            split_wait_merged<S>(t, turn);
        }
        turn++;
        now = next;
    }
}

/* Keys through registers, for entries that bulk copies cannot bring. */
template <class S>
static __device__ __forceinline__ void split_load_registers(const attention_keys &k, const gpu_attend_args &a, const split_task &t)
{
    int lane = (int)threadIdx.x % 32, number = 0, turn = 0;
    for (int work = t.work; work < t.works; work += t.stride, turn++) {
        split_lookup<S> now;
        split_lookup_begin<S>(&now, t, work);
        split_lookup_end<S>(&now, a, t);
        split_wait_merged<S>(t, turn);
        for (int j = 0; j < blocks_of(now.keys); j++, number++) {
            attention_unit<S::LATENT, S::ROPE, S::DTYPE> u;
            uint32_t slot = split_slot<S>(now, j, lane % ATTENTION_UNIT);
            slot = j * ATTENTION_BLOCK + loader_warp() * ATTENTION_UNIT + lane % ATTENTION_UNIT < now.keys ? slot
                                                                                                           : (uint32_t)ATTENTION_NO_SLOT;
            attention_unit_load(&u, &k, slot, lane);
            split_free_tile<S>(t, number);
            attention_unit_store(&u, t.shared + S::TILES + (uint32_t)(number & 1) * S::TILE, loader_warp() * ATTENTION_UNIT, lane);
            split_tile_full<S>(t, number);
        }
    }
}

template <class S> static __device__ __forceinline__ void split_load(const gpu_attend_args &a, const split_task &t)
{
    attention_keys k = {a.step->pages + a.cache.latent_offset, a.cache.page_bytes};
    if constexpr (S::BULK)
        split_load_bulk<S>(k, a, t);
    else
        split_load_registers<S>(k, a, t);
}

/* What a thread of the products keeps: for each of its columns (heads 8n + 2 (t % 4) + e: column 2n + e). */
template <int HEADS> struct split_state {
    float reference[HEADS / 4], sum[HEADS / 4];
};

template <class S> static __device__ __forceinline__ void split_scores(float (&s)[S::HEADS / 2], uint32_t q, uint32_t tile)
{
    uint64_t keys = sm90_tile(tile, 0), queries = sm90_tile(q, 0);
#pragma unroll
    for (int i = 0; i < S::STEPS; i++)
        sm90a_product<S::HEADS, 0, 0>::run(s, sm90_tile_at(keys, (uint32_t)(i / 4) * ATTENTION_PANEL_BYTES + (uint32_t)(i % 4) * 32),
                                           sm90_tile_at(queries, (uint32_t)(i / 4) * S::Q_PANEL + (uint32_t)(i % 4) * 32), i > 0);
}

/* Largest score of each column over the 64 keys; those from key `left` on are taken out. */
template <class S>
static __device__ __forceinline__ void split_largest(float (&s)[S::HEADS / 2], const split_task &t, int block, int left,
                                                     float (&largest)[S::HEADS / 4])
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, key = warp * 16 + lane / 4;
    float *shared = (float *)(t.memory + S::LARGEST) + (block & 1) * 4 * S::HEADS;
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        int at = i / 2 * 4 + i % 2;
        if (left < ATTENTION_BLOCK) {
            s[at] = key >= left ? -INFINITY : s[at];
            s[at + 2] = key + 8 >= left ? -INFINITY : s[at + 2];
        }
        float most = fmaxf(s[at], s[at + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        if (lane < 4)
            shared[warp * S::HEADS + i / 2 * 8 + lane * 2 + i % 2] = most;
    }
    sm90a_sync(SYNC_SCORES, GROUP);
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        largest[i] =
            fmaxf(fmaxf(shared[column], shared[S::HEADS + column]), fmaxf(shared[2 * S::HEADS + column], shared[3 * S::HEADS + column]));
    }
}

/* Weights of a block's keys, to shared memory as [heads][64 keys] f16, and to the sums. */
template <class S>
static __device__ __forceinline__ void split_weights(float (&s)[S::HEADS / 2], const split_task &t, int block, int left,
                                                     split_state<S::HEADS> &state)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t weights = t.shared + S::WEIGHTS + (uint32_t)(block & 1) * S::HEADS * SM90_LINE_BYTES, in_piece = (uint32_t)lane / 4 * 2;
    float *factors = (float *)(t.memory + S::FACTORS) + (block & 1) * S::HEADS;
    float largest[S::HEADS / 4];
    split_largest<S>(s, t, block, left, largest);
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        int at = i / 2 * 4 + i % 2;
        uint32_t head = (uint32_t)(i / 2 * 8 + lane % 4 * 2 + i % 2);
        float factor = attention_raise(&state.reference[i], largest[i], t.c, t.margin);
        if (warp == 0 && lane < 4)
            factors[head] = factor;
        float c_reference = __fmul_rn(state.reference[i], t.c);
        float low = attention_weight(s[at], t.c, c_reference), high = attention_weight(s[at + 2], t.c, c_reference);
        uint32_t packed = sm90a_f16x2(low, high);
        sm90a_store2(weights + sm90_piece(head, (uint32_t)warp * 2) + in_piece, packed);
        sm90a_store2(weights + sm90_piece(head, (uint32_t)warp * 2 + 1) + in_piece, packed >> 16);
        float both = __fadd_rn(low, high);
        state.sum[i] = attention_add_weights(state.sum[i], factor, both, __shfl_xor_sync(0xffffffffu, both, 4));
    }
}

/* Sums of one warpgroup of values: half of the panels. */
template <class S> struct split_sums {
    float v[S::PANELS / 2][S::HEADS / 2];
};

template <class S> static __device__ __forceinline__ void split_rescale(split_sums<S> &sums, const split_task &t, int number)
{
    const float *factors = (const float *)(t.memory + S::FACTORS) + (number & 1) * S::HEADS + threadIdx.x % 4 * 2;
    float factor[S::HEADS / 4];
    bool change = false;
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        factor[i] = factors[i / 2 * 8 + i % 2];
        change = change || factor[i] != 1.0f;
    }
    if (!__any_sync(0xffffffffu, change))
        return;
#pragma unroll
    for (int p = 0; p < S::PANELS / 2; p++)
#pragma unroll
        for (int i = 0; i < S::HEADS / 2; i++)
            sums.v[p][i] *= factor[i / 4 * 2 + i % 2];
}

template <class S> static __device__ __forceinline__ void split_values(split_sums<S> &sums, uint32_t tile, uint32_t weights)
{
    uint64_t keys = sm90_tile(tile, 0), by_keys = sm90_tile(weights, 0);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int p = 0; p < S::PANELS / 2; p++)
            sm90a_product<S::HEADS, 1, 0>::run(sums.v[p], sm90_tile_at(keys, (uint32_t)p * ATTENTION_PANEL_BYTES + (uint32_t)i * 2048),
                                               sm90_tile_at(by_keys, (uint32_t)i * 32), 1);
}

/* The sums of weights of all threads, to STATE with the references. */
template <class S> static __device__ __forceinline__ void split_publish_state(const split_task &t, split_state<S::HEADS> &state)
{
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *parts = (float *)(t.memory + S::LARGEST), *out = (float *)(t.memory + S::STATE);
    sm90a_sync(SYNC_SCORES, GROUP); /* LARGEST is still being read for the last block */
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
    sm90a_sync(SYNC_SCORES, GROUP);
    for (int h = (int)threadIdx.x; h < S::HEADS; h += GROUP)
        out[S::HEADS + h] =
            __fadd_rn(__fadd_rn(parts[h], parts[S::HEADS + h]), __fadd_rn(parts[2 * S::HEADS + h], parts[3 * S::HEADS + h]));
}

/* Scores and weights of the chunk of one row. number: tiles so far, of all rows. */
template <class S> static __device__ __forceinline__ void split_chunk_scores(const split_task &t, int keys, int number)
{
    float s[S::HEADS / 2];
    split_state<S::HEADS> state;
    uint32_t barriers = t.shared + S::BARRIERS;
#pragma unroll
    for (int i = 0; i < S::HEADS / 4; i++) {
        state.reference[i] = -INFINITY;
        state.sum[i] = 0.0f;
    }
    for (int left = keys; left > 0; left -= ATTENTION_BLOCK, number++) {
        int stage = number & 1;
        sm90a_barrier_wait(full_barrier(barriers, stage), (uint32_t)(number / 2) & 1u, stage);
        sm90a_product_begin();
        split_scores<S>(s, t.shared + S::Q, t.shared + S::TILES + (uint32_t)stage * S::TILE);
        sm90a_product_commit();
        sm90a_product_wait<0>();
        split_weights<S>(s, t, number, left, state);
        sm90a_fence_async();
        sm90a_barrier_arrive_warp(weighed_barrier(barriers, stage));
    }
    split_publish_state<S>(t, state);
}

/* Values of the chunk of one row, `half` of the latent. */
template <class S>
static __device__ __forceinline__ void split_chunk_values(const split_task &t, int keys, int number, int half, split_sums<S> &sums)
{
    uint32_t barriers = t.shared + S::BARRIERS, panels = t.shared + S::TILES + (uint32_t)(half * (S::PANELS / 2)) * ATTENTION_PANEL_BYTES;
    for (int left = keys; left > 0; left -= ATTENTION_BLOCK, number++) {
        int stage = number & 1;
        sm90a_barrier_wait(weighed_barrier(barriers, stage), (uint32_t)(number / 2) & 1u, 50 + half);
        split_rescale<S>(sums, t, number);
        sm90a_product_begin();
        split_values<S>(sums, panels + (uint32_t)stage * S::TILE, t.shared + S::WEIGHTS + (uint32_t)stage * S::HEADS * SM90_LINE_BYTES);
        sm90a_product_commit();
        sm90a_product_wait<0>();
        sm90a_barrier_arrive_warp(empty_barrier(barriers, stage));
    }
}

/* All threads of scores and values of all blocks of the cluster meet: what they wrote before, each sees after. turn counts the meetings. */
template <class S> static __device__ __forceinline__ void split_meet(const split_task &t, int turn)
{
    uint32_t barrier = cluster_barrier(t.shared + S::BARRIERS);
    sm90a_cluster_fence();
    sm90a_sync(SYNC_MEETING, MEETING);
    if ((int)threadIdx.x < t.chunks)
        sm90a_cluster_arrive(sm90a_cluster_address(barrier, threadIdx.x));
    sm90a_cluster_wait(barrier, (uint32_t)turn & 1u, 30);
}

/* Which block of the cluster merges a panel, and where it finds the sums of a chunk: [chunk][its panels][heads / 8][thread] of 4. */
template <class S> static __device__ __forceinline__ uint32_t split_place(int chunk, int chunks, int panel, int n, int thread)
{
    int each = (S::PANELS + chunks - 1) / chunks;
    return S::TILES + (uint32_t)((((chunk * each + panel / chunks) * (S::HEADS / 8) + n) * GROUP + thread) * 16);
}

/* Sends half of the chunk's sums to the blocks that merge them; the tiles of all blocks are free by now. */
template <class S> static __device__ __forceinline__ void split_send_sums(const split_task &t, const split_sums<S> &sums, int half)
{
#pragma unroll
    for (int i = 0; i < S::PANELS / 2; i++) {
        int p = half * (S::PANELS / 2) + i;
        uint32_t there = sm90a_cluster_address(t.shared, (uint32_t)(p % t.chunks));
#pragma unroll
        for (int n = 0; n < S::HEADS / 8; n++)
            sm90a_cluster_store4(there + split_place<S>(t.chunk, t.chunks, p, n, (int)threadIdx.x % GROUP), sums.v[i][4 * n],
                                 sums.v[i][4 * n + 1], sums.v[i][4 * n + 2], sums.v[i][4 * n + 3]);
    }
}

/* Sends the chunk's references and sums of weights to all blocks. */
template <class S> static __device__ __forceinline__ void split_send_state(const split_task &t)
{
    const float *state = (const float *)(t.memory + S::STATE);
    for (int i = (int)threadIdx.x; i < t.chunks * 2 * S::HEADS; i += GROUP)
        sm90a_cluster_store(sm90a_cluster_address(t.shared, (uint32_t)(i / (2 * S::HEADS))) + S::STATES +
                                (uint32_t)(t.chunk * 2 * S::HEADS + i % (2 * S::HEADS)) * 4,
                            state[i % (2 * S::HEADS)]);
}

/* Merges the block's panels from its own memory and writes the result. full: chunks of the row that have keys. */
template <class S> static __device__ __forceinline__ void split_merge(const split_task &t, int full, float *out)
{
    int thread = (int)threadIdx.x % GROUP, group = (int)threadIdx.x / GROUP, item = 0;
    for (int panel = t.chunk; panel < S::PANELS; panel += t.chunks)
        for (int n = 0; n < S::HEADS / 8; n++, item++) {
            if (item % (MEETING / GROUP) != group)
                continue;
            int column = n * 8 + thread % 4 * 2;
            attention_merge m[2] = {};
            float4 sum = make_float4(0, 0, 0, 0);
            for (int chunk = 0; chunk < full; chunk++) {
                float4 next = *(const float4 *)(t.memory + split_place<S>(chunk, t.chunks, panel, n, thread));
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

/* The end of a row: what was summed up is sent, merged and written. send: this thread's part of the sending. */
template <class S, class F>
static __device__ __forceinline__ void split_finish(const gpu_attend_args &a, const split_task &t, int work, int count, int *turn, F send)
{
    int64_t head = (int64_t)(work / t.groups) * a.heads + t.first_head + work % t.groups * S::HEADS;
    split_meet<S>(t, (*turn)++);
    if (split_keys<S>(t, count) > 0)
        send();
    split_meet<S>(t, (*turn)++);
    split_merge<S>(t, (count + S::CHUNK - 1) / S::CHUNK, a.out + head * S::LATENT);
    sm90a_barrier_arrive_warp(merged_barrier(t.shared + S::BARRIERS));
}

template <class S> static __device__ __forceinline__ void split_all_scores(const gpu_attend_args &a, const split_task &t)
{
    int number = 0, turn = 0;
    for (int work = t.work; work < t.works; work += t.stride) {
        int row = work / t.groups, count = a.selected_count[row], keys = split_keys<S>(t, count);
        int64_t head = (int64_t)row * a.heads + t.first_head + work % t.groups * S::HEADS;
        if (keys > 0) {
            attention_queries<S::LATENT, S::ROPE, S::HEADS, S::PANELS / 4 < 1 ? 1 : S::PANELS / 4>(
                t.shared + S::Q, a.q_absorbed + head * S::LATENT, a.q + head * (a.nope + S::ROPE) + a.nope, a.nope + S::ROPE);
            sm90a_fence_async();
            sm90a_sync(SYNC_SCORES, GROUP);
            split_chunk_scores<S>(t, keys, number);
            number += blocks_of(keys);
        }
        split_finish<S>(a, t, work, count, &turn, [&]() { split_send_state<S>(t); });
    }
}

template <class S> static __device__ __forceinline__ void split_all_values(const gpu_attend_args &a, const split_task &t, int half)
{
    int number = 0, turn = 0;
    for (int work = t.work; work < t.works; work += t.stride) {
        int count = a.selected_count[work / t.groups], keys = split_keys<S>(t, count);
        split_sums<S> sums = {};
        split_chunk_values<S>(t, keys, number, half, sums);
        number += blocks_of(keys);
        split_finish<S>(a, t, work, count, &turn, [&]() { split_send_sums<S>(t, sums, half); });
    }
}

template <class S>
__global__ void __launch_bounds__(SPLIT_THREADS, 1)
    attention_split(const __grid_constant__ gpu_attend_args a, int first_head, int groups, int chunks)
{
    extern __shared__ uint8_t raw[];
    split_task t;
    t.memory = raw + ((1024 - (sm90a_shared(raw) & 1023u)) & 1023u);
    t.shared = sm90a_shared(t.memory);
    t.work = (int)blockIdx.x / chunks;
    t.works = a.step->rows * groups;
    t.stride = (int)gridDim.x / chunks;
    t.groups = groups;
    t.first_head = first_head;
    t.chunk = (int)sm90a_cluster_rank();
    t.chunks = chunks;
    t.c = a.scale * 1.44269504088896340736f;
    t.margin = 8.0f / t.c;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            sm90a_barrier_init(full_barrier(t.shared + S::BARRIERS, i), SPLIT_LOADERS);
            sm90a_barrier_init(empty_barrier(t.shared + S::BARRIERS, i), 2 * GROUP / 32);
            sm90a_barrier_init(weighed_barrier(t.shared + S::BARRIERS, i), GROUP / 32);
        }
        sm90a_barrier_init(cluster_barrier(t.shared + S::BARRIERS), (uint32_t)chunks);
        sm90a_barrier_init(merged_barrier(t.shared + S::BARRIERS), MEETING / 32);
        for (int i = 0; i < SPLIT_LOADERS; i++)
            sm90a_barrier_init(t.shared + (uint32_t)(S::CAME + i * 8), 1);
        sm90a_barrier_init_done();
        sm90a_fence_async();
    }
    sm90a_cluster_sync(); /* the others' barriers are there too */
    int role = (int)threadIdx.x / GROUP;
    if (role >= SPLIT_FIRST_LOADERS)
        split_load<S>(a, t);
    else if (role == SPLIT_SCORES)
        split_all_scores<S>(a, t);
    else
        split_all_values<S>(a, t, role - SPLIT_VALUES_LOW);
    sm90a_cluster_sync(); /* nobody leaves while another may still send to it */
}

/* Clusters that run at the same time. */
template <class S> static int split_clusters(const cudaLaunchConfig_t *launch)
{
    static int known[MOST_CHUNKS + 1];
    int chunks = (int)launch->attrs[0].val.clusterDim.x;
    if (known[chunks] == 0 && cudaOccupancyMaxActiveClusters(&known[chunks], attention_split<S>, launch) != cudaSuccess)
        known[chunks] = 1;
    return known[chunks];
}

template <class S> static void split_launch(const gpu_attend_args *a, int first_head, int groups, int rows, gpu_stream stream)
{
    int chunks = (a->topk + S::CHUNK - 1) / S::CHUNK;
    cudaFuncSetAttribute(attention_split<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    cudaLaunchConfig_t launch = {};
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {(unsigned)chunks, 1, 1};
    launch.attrs = &cluster;
    launch.numAttrs = 1;
    launch.gridDim = dim3((unsigned)chunks);
    launch.blockDim = dim3(SPLIT_THREADS);
    launch.dynamicSmemBytes = S::BYTES;
    launch.stream = stream;
    int clusters = split_clusters<S>(&launch), works = rows * groups;
    launch.gridDim = dim3((unsigned)((works < clusters ? works : clusters) * chunks));
    cudaLaunchKernelEx(&launch, attention_split<S>, *a, first_head, groups, chunks);
}

/* Groups of 16 heads, and one of 8 where they are no multiple of 16. */
template <int LATENT, int ROPE, int DTYPE, int CHUNK> static void split_heads(const gpu_attend_args *a, int rows, gpu_stream stream)
{
    if (a->heads >= 16)
        split_launch<split_shape<LATENT, ROPE, 16, DTYPE, CHUNK>>(a, 0, a->heads / 16, rows, stream);
    if (a->heads % 16 != 0)
        split_launch<split_shape<LATENT, ROPE, 8, DTYPE, CHUNK>>(a, a->heads / 16 * 16, 1, rows, stream);
}

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
