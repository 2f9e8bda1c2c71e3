/* Scores of the sparse-attention indexer (gpu_index.h).
 *
 *     products^T [64 keys][rows of the tile x heads] = tile [64 keys][width] x q^T
 *     score[key][row] = key's scale * sum over heads of weight * relu(product)
 *
 * A block has a tile of rows and a run of pages. One warpgroup brings pages: the page's keys lie side by side and come by one bulk copy,
 * several pages ahead, and are turned into f16 in a ring of tiles; the others take one tile each in turn. Codes of fp8 keys are multiplied
 * as they are; the key's scale is applied to the score. Rows of a tile that belong to different sequences are scored one sequence after
 * the other. */
#include "device/gpu/hopper/gpu_index.h"
#include "device/gpu/hopper/sm90_attention.h"

enum { KEYS = 64, GROUP = 128, PANEL = KEYS * SM90_LINE_BYTES, SYNC_LOADERS = 1, SYNC_PRODUCTS = 2 };

template <int WIDTH_, int HEADS_, int ROWS_, int GROUPS_, int DTYPE_> struct index_shape {
    static constexpr int WIDTH = WIDTH_, HEADS = HEADS_, ROWS = ROWS_, GROUPS = GROUPS_, DTYPE = DTYPE_, N = ROWS * HEADS;
    static constexpr int ENTRY = DTYPE == GPU_KV_FP8 ? WIDTH + 4 : WIDTH * 2, PAGE = KEYS * ENTRY, PANELS = WIDTH / 64;
    static constexpr int STAGES = N != 128 ? 4 : DTYPE == GPU_KV_FP8 ? 3 : 2, RAW = STAGES; /* two blocks of N 128 fit in shared memory */
    static constexpr int TILE = PANELS * PANEL, Q_PANEL = N * SM90_LINE_BYTES, THREADS = GROUP * (1 + GROUPS);
    static constexpr int Q = 0, TILES = PANELS * Q_PANEL, RAWS = TILES + STAGES * TILE, WEIGHTS = RAWS + RAW * PAGE;
    static constexpr int SCALES = WEIGHTS + N * 4, BARRIERS = SCALES + STAGES * KEYS * 4, BYTES = BARRIERS + (2 * STAGES + RAW) * 8 + 1024;
    static constexpr int BLOCKS = N == 128 ? 2 : 1; /* on one multiprocessor, at least */
    static constexpr int FULL = 0, EMPTY = STAGES, CAME = 2 * STAGES; /* barriers: tile is filled, tile is free, raw page has come */
    static constexpr int VALUES = ROWS * 2; /* scores that a thread has of a tile before they are summed over its neighbours */
};


struct index_task {
    uint32_t shared;
    uint8_t *memory;
    int first, rows;      /* rows of the step */
    int page, last_page;  /* pages page .. last_page - 1 are this block's */
};

/* Rows first .. first + count - 1 of one sequence, and the pages that they see in this block. */
struct index_run {
    int first, count, page, pages;
};

template <class S> static __device__ __forceinline__ uint32_t index_barrier(const index_task &t, int which)
{
    return t.shared + (uint32_t)(S::BARRIERS + which * 8);
}

/* The next rows of one sequence, from row `first` on. */
static __device__ __forceinline__ index_run index_run_at(const gpu_index_score_args &a, const index_task &t, int first)
{
    const gpu_step *step = a.step;
    index_run r = {first, 0, t.page, 0};
    int seen = 0;
    for (; first + r.count < t.first + t.rows && step->sequences[first + r.count] == step->sequences[first]; r.count++) {
        int n = step->positions[first + r.count] + 1;
        if (n > a.topk)
            seen = max(seen, n);
    }
    r.pages = max(min((seen + KEYS - 1) / KEYS, t.last_page) - t.page, 0);
    return r;
}

/* Whether any row of the tile sees a page of this block. */
static __device__ __forceinline__ bool index_has_pages(const gpu_index_score_args &a, const index_task &t)
{
    for (int first = t.first; first < t.first + t.rows;) {
        index_run r = index_run_at(a, t, first);
        if (r.pages > 0)
            return true;
        first += r.count;
    }
    return false;
}

/* ---- keys ---- */

/* One thread's part of a page, from the raw page to the tile: 8 values of each LINES-th key. Lanes read different banks: an entry of an fp8
 * key is 33 words long. */
template <class S> static __device__ __forceinline__ void index_convert(const uint8_t *raw, uint32_t tile)
{
    constexpr int PIECES = S::WIDTH / 8, LINES = GROUP / PIECES; /* a multiple of 8: the swizzle is the same for all of the thread's keys */
    int piece = (int)threadIdx.x % PIECES, key = (int)threadIdx.x / PIECES;
    uint32_t to = tile + (uint32_t)(piece / 8) * PANEL + sm90_piece((uint32_t)key, (uint32_t)piece % 8);
    const uint8_t *from = raw + key * S::ENTRY + piece * (S::DTYPE == GPU_KV_FP8 ? 8 : 16);
#pragma unroll
    for (int i = 0; i < KEYS / LINES; i++) {
        if (S::DTYPE == GPU_KV_FP8) {
            const uint32_t *codes = (const uint32_t *)(from + i * LINES * S::ENTRY);
            uint32_t a = codes[0], b = codes[1];
            sm90a_store16(to + (uint32_t)(i * LINES) * SM90_LINE_BYTES, sm90a_e4m3_low(a), sm90a_e4m3_high(a), sm90a_e4m3_low(b),
                          sm90a_e4m3_high(b));
        } else {
            uint4 v = *(const uint4 *)(from + i * LINES * S::ENTRY);
            sm90a_store16(to + (uint32_t)(i * LINES) * SM90_LINE_BYTES, sm90a_bf16_to_f16(v.x), sm90a_bf16_to_f16(v.y),
                          sm90a_bf16_to_f16(v.z), sm90a_bf16_to_f16(v.w));
        }
    }
}

template <class S> static __device__ __forceinline__ void index_request(const index_task &t, const uint8_t *keys, int64_t page_bytes,
                                                                        const int32_t *table, int page, int number)
{
    uint32_t came = index_barrier<S>(t, S::CAME + number % S::RAW);
    sm90a_barrier_expect(came, S::PAGE);
    sm90a_bulk_load(t.shared + S::RAWS + (uint32_t)(number % S::RAW) * S::PAGE, keys + (int64_t)table[page] * page_bytes, S::PAGE, came);
}

template <class S> static __device__ __forceinline__ void index_load(const gpu_index_score_args &a, const index_task &t)
{
    const gpu_step *step = a.step;
    const uint8_t *keys = step->pages + a.cache.index_offset;
    int thread = (int)threadIdx.x, number = 0; /* pages so far */
    for (int first = t.first; first < t.first + t.rows;) {
        index_run r = index_run_at(a, t, first);
        const int32_t *table = step->tables + step->table_first[step->sequences[first]];
        if (thread == 0)
            for (int i = 0; i < min(S::RAW, r.pages); i++)
                index_request<S>(t, keys, a.cache.page_bytes, table, r.page + i, number + i);
        for (int i = 0; i < r.pages; i++, number++) {
            int stage = number % S::STAGES;
            const uint8_t *raw = t.memory + S::RAWS + number % S::RAW * S::PAGE;
            sm90a_barrier_wait(index_barrier<S>(t, S::CAME + number % S::RAW), (uint32_t)(number / S::RAW) & 1u, 1);
            if (number >= S::STAGES)
                sm90a_barrier_wait(index_barrier<S>(t, S::EMPTY + stage), (uint32_t)(number / S::STAGES - 1) & 1u, 2);
            index_convert<S>(raw, t.shared + S::TILES + (uint32_t)stage * S::TILE);
            if (S::DTYPE == GPU_KV_FP8 && thread < KEYS)
                ((float *)(t.memory + S::SCALES))[stage * KEYS + thread] = *(const float *)(raw + thread * S::ENTRY + S::WIDTH);
            sm90a_fence_async();
            sm90a_barrier_arrive_warp(index_barrier<S>(t, S::FULL + stage));
            sm90a_sync(SYNC_LOADERS, GROUP); /* nobody reads this raw page any more */
            if (thread == 0 && i + S::RAW < r.pages)
                index_request<S>(t, keys, a.cache.page_bytes, table, r.page + i + S::RAW, number + S::RAW);
        }
        first += r.count;
    }
}

/* ---- scores ---- */

/* weight * relu(product) over the heads that this thread has of each row: v[2 row + line]. Fewer than 8 heads: lanes of a quad have rows of
 * their own. */
template <class S>
static __device__ __forceinline__ void index_weigh(const float (&d)[S::N / 2], const float *weights, float (&v)[S::VALUES])
{
    constexpr int PER_ROW = S::HEADS / 8;
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int row = 0; row < S::ROWS; row++) {
        float low = 0.0f, high = 0.0f;
#pragma unroll
        for (int n = row * PER_ROW; n < (row + 1) * PER_ROW; n++) {
            float2 w = *(const float2 *)(weights + n * 8 + lane % 4 * 2);
            low = __fmaf_rn(w.y, fmaxf(d[4 * n + 1], 0.0f), __fmaf_rn(w.x, fmaxf(d[4 * n], 0.0f), low));
            high = __fmaf_rn(w.y, fmaxf(d[4 * n + 3], 0.0f), __fmaf_rn(w.x, fmaxf(d[4 * n + 2], 0.0f), high));
        }
        v[2 * row] = low;
        v[2 * row + 1] = high;
    }
}

/* Sums v over the four lanes of a quad: lane q gets line q % 2 of rows 2i + q / 2 (of all rows, where there is one), in out[i]. */
template <class S> static __device__ __forceinline__ void index_sum_quad(const float (&v)[S::VALUES], float (&out)[(S::ROWS + 1) / 2])
{
    int lane = (int)threadIdx.x % 32;
    bool odd = (lane & 1) != 0;
    [[maybe_unused]] bool upper = (lane & 2) != 0;
    float u[S::ROWS];
#pragma unroll
    for (int i = 0; i < S::ROWS; i++) {
        float other = __shfl_xor_sync(0xffffffffu, odd ? v[2 * i] : v[2 * i + 1], 1);
        u[i] = __fadd_rn(odd ? v[2 * i + 1] : v[2 * i], other);
    }
    if constexpr (S::ROWS == 1) {
        out[0] = __fadd_rn(u[0], __shfl_xor_sync(0xffffffffu, u[0], 2));
    } else {
#pragma unroll
        for (int i = 0; i < S::ROWS / 2; i++) {
            float other = __shfl_xor_sync(0xffffffffu, upper ? u[2 * i] : u[2 * i + 1], 2);
            out[i] = __fadd_rn(upper ? u[2 * i + 1] : u[2 * i], other);
        }
    }
}

/* 4 heads, 2 rows: columns 0..3 are row 0, 4..7 row 1; lane q has heads 2 (q % 2) and the next of row q / 2. */
template <class S> static __device__ __forceinline__ float index_four_heads(const float (&d)[S::N / 2], const float *weights)
{
    int lane = (int)threadIdx.x % 32;
    float2 w = *(const float2 *)(weights + lane % 4 * 2);
    float low = __fmaf_rn(w.y, fmaxf(d[1], 0.0f), __fmul_rn(w.x, fmaxf(d[0], 0.0f)));
    float high = __fmaf_rn(w.y, fmaxf(d[3], 0.0f), __fmul_rn(w.x, fmaxf(d[2], 0.0f)));
    float other = __shfl_xor_sync(0xffffffffu, lane & 1 ? low : high, 1);
    return __fadd_rn(lane & 1 ? high : low, other);
}

/* Which rows of the tile a lane has after the sums over a quad, out[i] of index_sum_quad: 4 heads, 1 row, or several rows. */
template <class S> static __device__ __forceinline__ int index_lane_row(int i)
{
    int lane = (int)threadIdx.x % 32;
    return S::HEADS == 4 ? lane / 2 % 2 : S::ROWS > 1 ? 2 * i + lane / 2 % 2 : 0;
}

/* What a lane stores in this run: where its rows' scores are and the last position of each; -1: it stores none of that row. */
template <class S> struct index_target {
    static constexpr int EACH = S::HEADS == 4 ? 1 : (S::ROWS + 1) / 2;
    int last[EACH];
    float *scores; /* of the first of its rows, position 0 */
};

template <class S>
static __device__ __forceinline__ index_target<S> index_target_of(const gpu_index_score_args &a, const index_task &t, const index_run &r)
{
    index_target<S> target;
    bool twin = S::HEADS > 4 && S::ROWS == 1 && threadIdx.x % 4 >= 2; /* its partner has the same sum */
    target.scores = a.scores + (int64_t)(t.first + index_lane_row<S>(0) - a.first_row) * a.context;
#pragma unroll
    for (int i = 0; i < index_target<S>::EACH; i++) {
        int row = t.first + index_lane_row<S>(i);
        target.last[i] = !twin && row >= r.first && row < r.first + r.count ? a.step->positions[row] : -1;
        if (target.last[i] < a.topk)
            target.last[i] = -1;
    }
    return target;
}

template <class S>
static __device__ __forceinline__ void index_page_scores(const index_task &t, const index_target<S> &target, int64_t context, int page,
                                                         int number)
{
    float d[S::N / 2], out[index_target<S>::EACH];
    int stage = number % S::STAGES, thread = (int)threadIdx.x % GROUP, lane = thread % 32;
    uint64_t keys = sm90_tile(t.shared + S::TILES + (uint32_t)stage * S::TILE, 0), queries = sm90_tile(t.shared + S::Q, 0);
    const float *weights = (const float *)(t.memory + S::WEIGHTS);
    sm90a_barrier_wait(index_barrier<S>(t, S::FULL + stage), (uint32_t)(number / S::STAGES) & 1u, 3);
    sm90a_product_begin();
#pragma unroll
    for (int i = 0; i < S::WIDTH / 16; i++)
        sm90a_product<S::N, 0, 0>::run(d, sm90_tile_at(keys, (uint32_t)(i / 4) * PANEL + (uint32_t)(i % 4) * 32),
                                       sm90_tile_at(queries, (uint32_t)(i / 4) * S::Q_PANEL + (uint32_t)(i % 4) * 32), i > 0);
    sm90a_product_commit();
    int key = thread / 32 * 16 + lane / 4 + lane % 2 * 8, position = page * KEYS + key;
    float scale = S::DTYPE == GPU_KV_FP8 ? ((const float *)(t.memory + S::SCALES))[stage * KEYS + key] : 1.0f;
    sm90a_product_wait<0>();
    sm90a_touch(d);
    sm90a_barrier_arrive_warp(index_barrier<S>(t, S::EMPTY + stage));
    if constexpr (S::HEADS == 4) {
        out[0] = index_four_heads<S>(d, weights);
    } else {
        float v[S::VALUES];
        index_weigh<S>(d, weights, v);
        index_sum_quad<S>(v, out);
    }
    float *to = target.scores + position;
#pragma unroll
    for (int i = 0; i < index_target<S>::EACH; i++)
        if (position <= target.last[i])
            to[2 * i * context] = __fmul_rn(out[i], scale);
}

template <class S> static __device__ __forceinline__ void index_multiply(const gpu_index_score_args &a, const index_task &t)
{
    int group = (int)threadIdx.x / GROUP - 1, number = 0;
    for (int first = t.first; first < t.first + t.rows;) {
        index_run r = index_run_at(a, t, first);
        index_target<S> target = index_target_of<S>(a, t, r);
        for (int i = 0; i < r.pages; i++, number++)
            if (number % S::GROUPS == group)
                index_page_scores<S>(t, target, a.context, r.page + i, number);
        first += r.count;
    }
}

/* Queries of the tile's rows as f16 panels, weights with the scale; rows behind the last one are zeros. Called by the threads of the
 * products, while the others ask for the first pages. */
template <class S> static __device__ __forceinline__ void index_queries(const gpu_index_score_args &a, const index_task &t)
{
    constexpr int PIECES = S::WIDTH / 8;
    for (int i = (int)threadIdx.x - GROUP; i < S::N * PIECES; i += S::THREADS - GROUP) {
        int line = i / PIECES, piece = i % PIECES;
        float4 low = make_float4(0, 0, 0, 0), high = low;
        if (line < t.rows * S::HEADS) {
            const float4 *from = (const float4 *)(a.q + ((int64_t)t.first * S::HEADS + line) * S::WIDTH + piece * 8);
            low = __ldg(from);
            high = __ldg(from + 1);
        }
        sm90a_store16(t.shared + S::Q + (uint32_t)(piece / 8) * S::Q_PANEL + sm90_piece((uint32_t)line, (uint32_t)piece % 8),
                      sm90a_f16x2(low.x, low.y), sm90a_f16x2(low.z, low.w), sm90a_f16x2(high.x, high.y), sm90a_f16x2(high.z, high.w));
    }
    for (int i = (int)threadIdx.x - GROUP; i < S::N; i += S::THREADS - GROUP)
        ((float *)(t.memory + S::WEIGHTS))[i] = i < t.rows * S::HEADS ? a.weights[(int64_t)t.first * S::HEADS + i] * a.scale : 0.0f;
    sm90a_fence_async();
}

template <class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) index_scores(const __grid_constant__ gpu_index_score_args a, int pages_per_block)
{
    extern __shared__ uint8_t raw[];
    index_task t;
    t.memory = raw + ((1024 - (sm90a_shared(raw) & 1023u)) & 1023u);
    t.shared = sm90a_shared(t.memory);
    t.first = a.first_row + (int)blockIdx.y * S::ROWS;
    t.rows = min(min(S::ROWS, a.first_row + a.score_rows - t.first), a.step->rows - t.first);
    t.page = (int)blockIdx.x * pages_per_block;
    t.last_page = t.page + pages_per_block;
    if (S::ROWS > 1 && !index_has_pages(a, t))
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            sm90a_barrier_init(index_barrier<S>(t, S::FULL + i), GROUP / 32);
            sm90a_barrier_init(index_barrier<S>(t, S::EMPTY + i), GROUP / 32);
        }
        for (int i = 0; i < S::RAW; i++)
            sm90a_barrier_init(index_barrier<S>(t, S::CAME + i), 1);
        sm90a_barrier_init_done();
        sm90a_fence_async();
    }
    __syncthreads();
    if (threadIdx.x < GROUP) {
        index_load<S>(a, t);
    } else {
        index_queries<S>(a, t);
        sm90a_sync(SYNC_PRODUCTS, S::THREADS - GROUP);
        index_multiply<S>(a, t);
    }
}

template <class S> static void index_launch(const gpu_index_score_args *a, int pages_per_block, gpu_stream stream)
{
    int pages = (int)((a->context + KEYS - 1) / KEYS);
    dim3 grid((unsigned)((pages + pages_per_block - 1) / pages_per_block), (unsigned)((a->score_rows + S::ROWS - 1) / S::ROWS));
    cudaFuncSetAttribute(index_scores<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
    index_scores<S><<<grid, S::THREADS, S::BYTES, stream>>>(*a, pages_per_block);
}

bool gpu_index_supports(const gpu_index_score_args *a)
{
    if (a->cache.dtype == GPU_KV_F32)
        return false;
    return (a->heads == 32 && a->cache.index_dim == 128) || (a->heads == 4 && a->cache.index_dim == 64);
}

void gpu_index_scores_sm90(const gpu_index_score_args *a, gpu_index_tile tile, int pages_per_block, gpu_stream s)
{
    bool fp8 = a->cache.dtype == GPU_KV_FP8;
    if (a->heads == 4 && fp8)
        index_launch<index_shape<64, 4, 2, 1, GPU_KV_FP8>>(a, pages_per_block, s);
    else if (a->heads == 4)
        index_launch<index_shape<64, 4, 2, 1, GPU_KV_BF16>>(a, pages_per_block, s);
    else if (tile == GPU_INDEX_FEW && fp8)
        index_launch<index_shape<128, 32, 1, 1, GPU_KV_FP8>>(a, pages_per_block, s);
    else if (tile == GPU_INDEX_FEW)
        index_launch<index_shape<128, 32, 1, 1, GPU_KV_BF16>>(a, pages_per_block, s);
    else if (tile == GPU_INDEX_SOME && fp8)
        index_launch<index_shape<128, 32, 4, 1, GPU_KV_FP8>>(a, pages_per_block, s);
    else if (tile == GPU_INDEX_SOME)
        index_launch<index_shape<128, 32, 4, 1, GPU_KV_BF16>>(a, pages_per_block, s);
    else if (fp8)
        index_launch<index_shape<128, 32, 8, 2, GPU_KV_FP8>>(a, pages_per_block, s);
    else
        index_launch<index_shape<128, 32, 8, 2, GPU_KV_BF16>>(a, pages_per_block, s);
}
