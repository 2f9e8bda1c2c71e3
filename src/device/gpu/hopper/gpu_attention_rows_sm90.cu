/* Sparse MLA attention, one block per row and 64 heads ("rows" of gpu_attention.h).
 *
 *     stage         before: the sequences' entries are turned into f16 once, [table entry][64 tokens][latent + rope]: many rows select them
 *     warpgroup 0   scores [64 heads][64 keys] = q x tile^T, softmax; weights go where the tile's rotary panel was
 *     warpgroups 1, 2   sums [64 heads][latent / 2 each] += weights x tile
 *     warpgroup 3   brings keys: copies of 16 bytes from the staged entries into one of two tiles
 *
 * The groups run at their own pace: while 1 and 2 add one block of keys, 0 has the scores of the next and 3 the keys after that. The sums
 * of a chunk fill the registers; those of the chunks before wait in a scratch of this block, which stays in the second cache. */
#include "device/gpu/hopper/gpu_attention.h"
#include "device/gpu/hopper/gpu_attention_tile.h"

enum { ROWS_THREADS = 512, ROWS_HEADS = 64, ROWS_GROUP = 128, SYNC_SCORES = 1 };
enum { ROWS_SCORES, ROWS_VALUES_LOW, ROWS_VALUES_HIGH, ROWS_KEYS };
enum { ROWS_LATENT = 512, ROWS_ROPE = 64, ROWS_PANELS = 8, ROWS_TILE = 9 * ATTENTION_PANEL_BYTES, STAGED_BYTES = 9 * SM90_LINE_BYTES };

/* Shared memory: queries, two tiles, factors and state of the softmax, barriers. */
enum {
    ROWS_Q = 0,
    ROWS_TILES = 9 * ATTENTION_PANEL_BYTES,
    ROWS_FACTORS = ROWS_TILES + 2 * ROWS_TILE,
    ROWS_STATE = ROWS_FACTORS + 2 * ROWS_HEADS * 4,
    ROWS_BARRIERS = ROWS_STATE + 2 * ROWS_HEADS * 4,
    ROWS_BYTES = ROWS_BARRIERS + 9 * 8 + 1024
};

/* Barriers: tile is filled [2], tile is free [2], weights are there [2], state of a chunk is there, state was read, queries are there. */
enum { FULL, EMPTY = 2, WEIGHED = 4, STATED = 6, STATE_READ = 7, ASKED = 8 };

/* What all groups know; each walks over the same rows, chunks and blocks. */
struct rows_task {
    uint32_t shared;
    uint8_t *memory;
    int work, works, groups; /* (row, group of 64 heads) pairs */
    int block;               /* blocks of keys so far, of all rows: which tile, and which phase */
    int chunk;               /* chunks so far, of all rows */
    float c, margin;
};

static __device__ __forceinline__ uint32_t rows_barrier(const rows_task &t, int which)
{
    return t.shared + (uint32_t)(ROWS_BARRIERS + which * 8);
}

static __device__ __forceinline__ uint32_t rows_phase(int block)
{
    return (uint32_t)(block >> 1) & 1u;
}

/* ---- keys ---- */

/* Where the staged entries of a row's sequence begin. */
static __device__ __forceinline__ const uint8_t *rows_staged(const gpu_attend_args &a, const uint8_t *staged, int row)
{
    const gpu_step *step = a.step;
    return staged + (int64_t)step->table_first[step->sequences[row]] * (GPU_PAGE_TOKENS * STAGED_BYTES);
}

/* A thread brings one 16-byte piece of each panel of 4 keys: 8 lanes a line of 128 bytes. */
enum { KEYS_EACH = 4 };

static __device__ __forceinline__ int rows_key(int i)
{
    int thread = (int)threadIdx.x % ROWS_GROUP;
    return thread / 32 * 16 + i * 4 + thread % 32 / 8;
}

/* Positions of the thread's keys of a block; -1 behind the last one. */
static __device__ __forceinline__ void rows_positions(int (&positions)[KEYS_EACH], const int32_t *selected, int left)
{
#pragma unroll
    for (int i = 0; i < KEYS_EACH; i++)
        positions[i] = rows_key(i) < left ? __ldg(selected + rows_key(i)) : -1;
}

static __device__ __forceinline__ void rows_copy_block(const uint8_t *staged, const int (&positions)[KEYS_EACH], uint32_t tile)
{
    int piece = (int)threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < KEYS_EACH; i++) {
        const uint8_t *from = staged + (int64_t)max(positions[i], 0) * STAGED_BYTES + piece * 16;
        uint32_t to = tile + sm90_piece((uint32_t)rows_key(i), (uint32_t)piece), bytes = positions[i] >= 0 ? 16 : 0;
#pragma unroll
        for (int p = 0; p <= ROWS_PANELS; p++)
            sm90a_copy16(to + (uint32_t)p * ATTENTION_PANEL_BYTES, from + p * SM90_LINE_BYTES, bytes);
    }
}

/* Asks for the queries of a later work to be brought into the second cache: they are read at once when its turn comes. */
static __device__ __forceinline__ void rows_prefetch_queries(const gpu_attend_args &a, const rows_task &t, int work)
{
    if (work >= t.works)
        return;
    int thread = (int)threadIdx.x % ROWS_GROUP;
    int64_t head = (int64_t)(work / t.groups) * a.heads + work % t.groups * ROWS_HEADS;
    const float *absorbed = a.q_absorbed + head * ROWS_LATENT, *rope = a.q + (head + thread / 2) * (a.nope + ROWS_ROPE) + a.nope;
#pragma unroll
    for (int i = 0; i < ROWS_HEADS * ROWS_LATENT / 32; i += ROWS_GROUP)
        sm90a_prefetch(absorbed + (i + thread) * 32);
    sm90a_prefetch(rope + thread % 2 * 32);
}

static __device__ __forceinline__ void rows_keys(const gpu_attend_args &a, rows_task &t, const uint8_t *staged)
{
    int positions[KEYS_EACH], turn = 0;
    for (; t.work < t.works; t.work += (int)gridDim.x, turn++) {
        rows_prefetch_queries(a, t, t.work + (int)gridDim.x);
        int row = t.work / t.groups, count = a.selected_count[row];
        const int32_t *selected = a.selected + (int64_t)row * a.topk;
        const uint8_t *entries = rows_staged(a, staged, row);
        rows_positions(positions, selected, count);
        for (int done = 0; done < count; done += ATTENTION_BLOCK, t.block++) {
            int stage = t.block & 1, next[KEYS_EACH];
            rows_positions(next, selected + done + ATTENTION_BLOCK, count - done - ATTENTION_BLOCK);
            if (t.block >= 2)
                sm90a_barrier_wait(rows_barrier(t, EMPTY + stage), rows_phase(t.block) ^ 1u, 20 + stage);
            if (done == ATTENTION_BLOCK) /* the second block waits until the queries are read: they are needed before it */
                sm90a_barrier_wait(rows_barrier(t, ASKED), (uint32_t)turn & 1u, 22);
            rows_copy_block(entries, positions, t.shared + ROWS_TILES + (uint32_t)stage * ROWS_TILE);
            sm90a_barrier_arrive_copies(rows_barrier(t, FULL + stage));
#pragma unroll
            for (int i = 0; i < KEYS_EACH; i++)
                positions[i] = next[i];
        }
        if (count <= ATTENTION_BLOCK)
            sm90a_barrier_wait(rows_barrier(t, ASKED), (uint32_t)turn & 1u, 23);
    }
}

/* ---- scores ---- */

/* What a thread keeps of its two heads, t % 32 / 4 and 8 further: reference, and sums of weights by 16 keys. */
struct rows_state {
    float reference[2], sum[2][4];
};

/* The largest score of each of the thread's two heads. */
static __device__ __forceinline__ void rows_largest(const float (&s)[32], float (&largest)[2])
{
#pragma unroll
    for (int line = 0; line < 2; line++) {
        float most[2] = {s[2 * line], s[2 * line + 1]};
#pragma unroll
        for (int n = 1; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                most[e] = fmaxf(most[e], s[4 * n + 2 * line + e]);
        largest[line] = fmaxf(most[0], most[1]);
    }
#pragma unroll
    for (int step = 1; step <= 2; step *= 2)
#pragma unroll
        for (int line = 0; line < 2; line++)
            largest[line] = fmaxf(largest[line], __shfl_xor_sync(0xffffffffu, largest[line], step));
}

/* Weights of a block for one of the thread's two heads: scores s[4n + 2 line + e], packed[n] receives the weights of keys 8n + 2q and the
 * next. */
static __device__ __forceinline__ void rows_weights(const float (&s)[32], int line, const rows_task &t, float factor, rows_state &state,
                                                    uint32_t (&packed)[8])
{
    float c_reference = __fmul_rn(state.reference[line], t.c);
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float weight[2][2]; /* keys 16w + 8i + 2q + e */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            weight[i][0] = attention_weight(s[8 * w + 4 * i + 2 * line], t.c, c_reference);
            weight[i][1] = attention_weight(s[8 * w + 4 * i + 2 * line + 1], t.c, c_reference);
            packed[2 * w + i] = sm90a_f16x2(weight[i][0], weight[i][1]);
        }
        state.sum[line][w] = attention_add_weights(state.sum[line][w], factor, __fadd_rn(weight[0][0], weight[1][0]),
                                                   __fadd_rn(weight[0][1], weight[1][1]));
    }
}

/* The scores of a block begin to be computed. */
static __device__ __forceinline__ void rows_begin_scores(float (&s)[32], const rows_task &t, int block)
{
    int stage = block & 1;
    uint32_t tile = t.shared + ROWS_TILES + (uint32_t)stage * ROWS_TILE;
    sm90a_barrier_wait(rows_barrier(t, FULL + stage), rows_phase(block), stage);
    sm90a_fence_async(); /* the copies were ordinary writes */
    uint64_t q = sm90_tile(t.shared + ROWS_Q, 0), k = sm90_tile(tile, 0);
    sm90a_product_begin();
#pragma unroll
    for (int i = 0; i < (ROWS_LATENT + ROWS_ROPE) / 16; i++) {
        uint32_t at = (uint32_t)(i / 4) * ATTENTION_PANEL_BYTES + (uint32_t)(i % 4) * 32;
        sm90a_product<64, 0, 0>::run(s, sm90_tile_at(q, at), sm90_tile_at(k, at), i > 0);
    }
    sm90a_product_commit();
}

/* Weights of a block from its scores, of which `left` and more are of no key; called when all four warps have their scores. */
static __device__ __forceinline__ void rows_block_weights(float (&s)[32], const rows_task &t, int block, int left, rows_state &state)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    uint32_t panel = t.shared + ROWS_TILES + (uint32_t)(block & 1) * ROWS_TILE + ROWS_PANELS * ATTENTION_PANEL_BYTES;
    if (left < ATTENTION_BLOCK)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= left)
                s[i] = -INFINITY;
    float largest[2];
    uint32_t packed[2][8];
    rows_largest(s, largest);
#pragma unroll
    for (int line = 0; line < 2; line++) {
        float factor = attention_raise(&state.reference[line], largest[line], t.c, t.margin);
        if (lane % 4 == 0)
            ((float *)(t.memory + ROWS_FACTORS))[(block & 1) * ROWS_HEADS + warp * 16 + line * 8 + lane / 4] = factor;
        rows_weights(s, line, t, factor, state, packed[line]);
    }
#pragma unroll
    for (int line = 0; line < 2; line++)
#pragma unroll
        for (int n = 0; n < 8; n += 4)
            sm90a_store_matrices(panel + sm90_piece((uint32_t)(warp * 16 + line * 8 + lane % 8), (uint32_t)(n + lane / 8)), packed[line][n],
                                 packed[line][n + 1], packed[line][n + 2], packed[line][n + 3]);
    sm90a_fence_async();
    sm90a_barrier_arrive_warp(rows_barrier(t, WEIGHED + (block & 1)));
}

/* Tells the other groups the reference and the sum of weights of each head. */
static __device__ __forceinline__ void rows_publish_state(rows_task &t, const rows_state &state)
{
    int thread = (int)threadIdx.x, lane = thread % 32;
    float *out = (float *)(t.memory + ROWS_STATE);
    if (t.chunk >= 1)
        sm90a_barrier_wait(rows_barrier(t, STATE_READ), (uint32_t)(t.chunk - 1) & 1u, 30);
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
    sm90a_barrier_arrive_warp(rows_barrier(t, STATED));
    t.chunk++;
}

/* Waits for the scores that were begun last. */
static __device__ __forceinline__ void rows_end_scores(void)
{
    sm90a_product_wait<0>();
    sm90a_sync(SYNC_SCORES, ROWS_GROUP); /* all four warps are done with the rotary panel, where the weights go */
}

/* Weights of the next block, and the state of the chunk when it was the last of one. left: keys of the row from this block on. */
template <int CHUNK>
static __device__ __forceinline__ void rows_next_weights(float (&s)[32], rows_task &t, int count, int *left, rows_state &state)
{
    rows_block_weights(s, t, t.block, *left, state);
    t.block++;
    *left -= ATTENTION_BLOCK;
    if (*left <= 0 || (count - *left) % CHUNK == 0) {
        rows_publish_state(t, state);
        rows_state fresh = {{-INFINITY, -INFINITY}, {}};
        state = fresh;
    }
}

template <int CHUNK> static __device__ __forceinline__ void rows_row_scores(rows_task &t, int count)
{
    rows_state state = {{-INFINITY, -INFINITY}, {}};
    float s[32];
    for (int left = count; left > 0;) {
        rows_begin_scores(s, t, t.block);
        rows_end_scores();
        rows_next_weights<CHUNK>(s, t, count, &left, state);
    }
}

template <int CHUNK> static __device__ __forceinline__ void rows_scores(const gpu_attend_args &a, rows_task &t)
{
    for (; t.work < t.works; t.work += (int)gridDim.x) {
        int row = t.work / t.groups;
        int64_t head = (int64_t)row * a.heads + t.work % t.groups * ROWS_HEADS;
        attention_queries<ROWS_LATENT, ROWS_ROPE, ROWS_HEADS, 2>(t.shared + ROWS_Q, a.q_absorbed + head * ROWS_LATENT,
                                                                 a.q + head * (a.nope + ROWS_ROPE) + a.nope, a.nope + ROWS_ROPE);
        sm90a_fence_async();
        sm90a_barrier_arrive_warp(rows_barrier(t, ASKED));
        sm90a_sync(SYNC_SCORES, ROWS_GROUP);
        rows_row_scores<CHUNK>(t, a.selected_count[row]);
    }
}

/* ---- values ---- */

/* One block of keys into the sums of 64 heads and 256 values. */
static __device__ __forceinline__ void rows_block_values(float (&sums)[2][64], rows_task &t, int half, bool fresh)
{
    int thread = (int)threadIdx.x % ROWS_GROUP, lane = thread % 32, stage = t.block & 1;
    uint32_t tile = t.shared + ROWS_TILES + (uint32_t)stage * ROWS_TILE;
    sm90a_barrier_wait(rows_barrier(t, WEIGHED + stage), rows_phase(t.block), 40 + half * 2 + stage);
    sm90a_fence_async();
    const float *factors = (const float *)(t.memory + ROWS_FACTORS) + stage * ROWS_HEADS + thread / 32 * 16 + lane / 4;
    float factor[2] = {factors[0], factors[8]};
    if (!fresh && __any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < 128; i++)
            sums[i / 64][i % 64] *= factor[i / 2 % 2];
    uint64_t weights = sm90_tile(tile + ROWS_PANELS * ATTENTION_PANEL_BYTES, 0);
    uint64_t values = sm90_tile(tile + (uint32_t)half * 4 * ATTENTION_PANEL_BYTES, ATTENTION_PANEL_BYTES);
    sm90a_product_begin();
#pragma unroll
    for (int i = 0; i < 8; i++)
        sm90a_product<128, 0, 1>::run(sums[i % 2], sm90_tile_at(weights, (uint32_t)(i / 2) * 32),
                                      sm90_tile_at(values, (uint32_t)(i % 2) * 2 * ATTENTION_PANEL_BYTES + (uint32_t)(i / 2) * 2048),
                                      !(fresh && i < 2));
    sm90a_product_commit();
    sm90a_product_wait<0>();
    sm90a_touch(sums[0]);
    sm90a_touch(sums[1]);
    sm90a_barrier_arrive_warp(rows_barrier(t, EMPTY + stage));
    t.block++;
}

/* Merges the sums of a chunk into what the scratch holds of this row; the first is only kept there, unless it is the last too. */
static __device__ __forceinline__ void rows_merge(float (&sums)[2][64], float4 *scratch, const attention_merge (&m)[2], bool first,
                                                  bool last)
{
    constexpr int AT_ONCE = 8; /* loads under way in a thread */
#pragma unroll
    for (int i = 0; i < 32; i += AT_ONCE) {
        float4 before[AT_ONCE];
        if (!first)
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
                before[n] = __ldcg(scratch + (i + n) * ROWS_GROUP);
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
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

template <int CHUNK> static __device__ __forceinline__ void rows_values(const gpu_attend_args &a, rows_task &t, int half, float4 *scratch)
{
    float sums[2][64];
    int thread = (int)threadIdx.x % ROWS_GROUP, lane = thread % 32, line = thread / 32 * 16 + lane / 4;
    const float *state = (const float *)(t.memory + ROWS_STATE) + line;
    for (; t.work < t.works; t.work += (int)gridDim.x) {
        int row = t.work / t.groups, count = a.selected_count[row];
        attention_merge m[2];
        for (int first = 0; first < count; first += CHUNK, t.chunk++) {
            int keys = min(count - first, CHUNK);
            for (int done = 0; done < keys; done += ATTENTION_BLOCK)
                rows_block_values(sums, t, half, done == 0);
            sm90a_barrier_wait(rows_barrier(t, STATED), (uint32_t)t.chunk & 1u, 50 + half);
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (first == 0)
                    m[i] = {state[8 * i], state[ROWS_HEADS + 8 * i], 0.0f, 1.0f};
                else
                    attention_merge_next(&m[i], state[8 * i], state[ROWS_HEADS + 8 * i], t.c);
            sm90a_barrier_arrive_warp(rows_barrier(t, STATE_READ));
            rows_merge(sums, scratch, m, first == 0, first + CHUNK >= count);
        }
        float scale[2] = {__frcp_rn(m[0].sum), __frcp_rn(m[1].sum)};
        float *out = a.out + ((int64_t)row * a.heads + t.work % t.groups * ROWS_HEADS + line) * ROWS_LATENT + half * 256 + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 32; n++) {
            const float *v = sums[n / 16] + 4 * (n % 16);
            __stcs((float2 *)(out + n * 8), make_float2(__fmul_rn(v[0], scale[0]), __fmul_rn(v[1], scale[0])));
            __stcs((float2 *)(out + 8 * ROWS_LATENT + n * 8), make_float2(__fmul_rn(v[2], scale[1]), __fmul_rn(v[3], scale[1])));
        }
    }
}

template <int CHUNK>
__global__ void __launch_bounds__(ROWS_THREADS, 1)
    attention_rows(const __grid_constant__ gpu_attend_args a, const uint8_t *staged, float4 *scratch)
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
            sm90a_barrier_init(rows_barrier(t, FULL + i), ROWS_GROUP);
            sm90a_barrier_init(rows_barrier(t, EMPTY + i), 8);
            sm90a_barrier_init(rows_barrier(t, WEIGHED + i), 4);
        }
        sm90a_barrier_init(rows_barrier(t, STATED), 4);
        sm90a_barrier_init(rows_barrier(t, ASKED), 4);
        sm90a_barrier_init(rows_barrier(t, STATE_READ), 8);
        sm90a_barrier_init_done();
    }
    __syncthreads();
    int role = (int)threadIdx.x / ROWS_GROUP;
    if (role == ROWS_SCORES) {
        sm90a_registers_fewer<104>();
        rows_scores<CHUNK>(a, t);
    } else if (role == ROWS_KEYS) {
        sm90a_registers_fewer<40>();
        rows_keys(a, t, staged);
    } else {
        sm90a_registers_more<184>();
        int half = role - ROWS_VALUES_LOW;
        rows_values<CHUNK>(a, t, half, scratch + ((int64_t)blockIdx.x * 2 + half) * (ROWS_GROUP * 32) + (int)threadIdx.x % ROWS_GROUP);
    }
}

/* ---- staging ---- */

/* One block per page of one sequence: its entries as f16, if a row of the step sees them. */
template <int DTYPE> __global__ void __launch_bounds__(256) attention_stage(const __grid_constant__ gpu_attend_args a, uint8_t *staged)
{
    constexpr int ENTRY = attention_entry_bytes(DTYPE == GPU_KV_FP8, ROWS_LATENT, ROWS_ROPE), PIECES = 9 * 8;
    const gpu_step *step = a.step;
    int page = (int)blockIdx.x, sequence = (int)blockIdx.y;
    bool seen = false;
    for (int first = 0; first < step->rows && !seen; first += 256) {
        int row = first + (int)threadIdx.x;
        seen =
            __syncthreads_or(row < step->rows && step->sequences[row] == sequence && step->positions[row] / GPU_PAGE_TOKENS >= page) != 0;
    }
    if (!seen)
        return;
    int at = step->table_first[sequence] + page;
    const uint8_t *entries = step->pages + a.cache.latent_offset + (int64_t)step->tables[at] * a.cache.page_bytes;
    uint4 *out = (uint4 *)(staged + (int64_t)at * (GPU_PAGE_TOKENS * STAGED_BYTES));
    for (int i = (int)threadIdx.x; i < GPU_PAGE_TOKENS * PIECES; i += 256) {
        int token = i / PIECES, piece = i % PIECES;
        const uint8_t *e = entries + token * ENTRY;
        if (DTYPE == GPU_KV_FP8 && piece < ROWS_LATENT / 8) {
            uint2 v = __ldg((const uint2 *)(e + piece * 8));
            attention_scale s = attention_scale_of(__uint_as_float(sm90a_load4(e + ROWS_LATENT + piece / 16 * 4)));
            out[i] = make_uint4(attention_scaled(sm90a_e4m3_low(v.x), s), attention_scaled(sm90a_e4m3_high(v.x), s),
                                attention_scaled(sm90a_e4m3_low(v.y), s), attention_scaled(sm90a_e4m3_high(v.y), s));
        } else {
            uint4 v =
                __ldg((const uint4 *)(e + (DTYPE == GPU_KV_FP8 ? ENTRY - ROWS_ROPE * 2 + (piece - ROWS_LATENT / 8) * 16 : piece * 16)));
            out[i] = make_uint4(sm90a_bf16_to_f16(v.x), sm90a_bf16_to_f16(v.y), sm90a_bf16_to_f16(v.z), sm90a_bf16_to_f16(v.w));
        }
    }
}

size_t gpu_attention_rows_sm90_bytes(const gpu_attention_limits *l)
{
    return (size_t)l->table_entries * (GPU_PAGE_TOKENS * STAGED_BYTES) + (size_t)l->processors * ROWS_HEADS * ROWS_LATENT * sizeof(float);
}

void gpu_attention_rows_sm90(const gpu_attend_args *a, const gpu_attention_limits *l, void *scratch, int rows, gpu_stream s)
{
    int works = rows * (a->heads / ROWS_HEADS);
    uint8_t *staged = (uint8_t *)scratch;
    float4 *sums = (float4 *)(staged + (size_t)l->table_entries * (GPU_PAGE_TOKENS * STAGED_BYTES));
    dim3 pages((unsigned)l->pages, (unsigned)l->sequences);
    if (a->cache.dtype == GPU_KV_FP8)
        attention_stage<GPU_KV_FP8><<<pages, 256, 0, s>>>(*a, staged);
    else
        attention_stage<GPU_KV_BF16><<<pages, 256, 0, s>>>(*a, staged);
    cudaFuncSetAttribute(attention_rows<GPU_ATTENTION_CHUNK>, cudaFuncAttributeMaxDynamicSharedMemorySize, ROWS_BYTES);
    attention_rows<GPU_ATTENTION_CHUNK><<<works < l->processors ? works : l->processors, ROWS_THREADS, ROWS_BYTES, s>>>(*a, staged, sums);
}
