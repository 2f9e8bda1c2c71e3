/* The two grouped products of the experts on Hopper: weights (64 rows) from registers, tokens (8..128 columns) from shared memory.
 *
 * One kernel for gate/up and down. Blocks are persistent over a list of items; an item is a token tile of one expert and some row groups of
 * its matrix (a row group: MT tiles of 64 rows per consumer warpgroup). Roles of the warps:
 *
 *     consumers  1 or 2 warpgroups: packed weights from shared memory to registers, decoded to e4m3, multiplied, written out
 *     copies     one thread: bulk copies of packed tiles, and for gate/up of the token tile's columns, into a ring of stages
 *     tokens     down only: the whole token tile once per item, rounded from bf16 to e4m3 with one scale per row; where a block has one
 *                consumer warpgroup, the copying warp does this, too
 *
 * Sums: one chain of products over all columns in ascending order, whatever the width of the token tile. Columns of a product do not
 * influence each other, so rows of a token tile that do not exist are left as they are in shared memory. */
#include "device/gpu/hopper/gpu_moe_sm90.h"

namespace {

template <class C> __device__ __forceinline__ places places_make(int kblocks)
{
    extern __shared__ uint8_t memory[];
    uint32_t p = (sm90_shared(memory) + 1023) & ~1023u;
    asm volatile("" : "+r"(p)); /* else it is computed again wherever it is used */
    places s;
    s.tokens = p;
    p += C::token_bytes(kblocks);
    s.weights = p;
    p += C::STAGES * C::WEIGHT_STAGE;
    s.full = p;
    s.empty = s.full + 8 * C::STAGES;
    s.tile_full = s.empty + 8 * C::STAGES;
    s.tile_empty = s.tile_full + 8 * C::BUFS;
    static_assert(2 * C::STAGES + 2 * C::BUFS <= 32, "barriers fit into 256 bytes");
    p += 256;
    s.tile_scale = p;
    s.scale = s.tile_scale + 4 * C::BUFS * C::NMAX;
    s.row = s.scale + 4 * C::WGS * C::NMAX;
    return s;
}

__device__ __forceinline__ gpu_moe_tile tile_load(const product &p, int item)
{
    int4 v = __ldcg((const int4 *)(p.tiles + item / p.chunks));
    gpu_moe_tile t = {v.x, v.y, v.z, v.w};
    return t;
}

/* Row groups of an item. */
template <class C> __device__ __forceinline__ void groups_of(const product &p, int item, int *first, int *end)
{
    int groups = p.row_tiles / C::GROUP;
    *first = item % p.chunks * p.chunk;
    *end = *first + p.chunk < groups ? *first + p.chunk : groups;
}

/* ---- the copying thread ---- */

/* A stage: packed tiles of all warpgroups, and for gate/up the token tile's rows of the same columns. */
template <class C>
__device__ __forceinline__ void stage_copy(const product &p, const places &s, const gpu_moe_tile &t, int at, const uint8_t *weights, int kb)
{
    int blocks = p.kblocks - kb < C::KPS ? p.kblocks - kb : C::KPS;
    uint32_t bytes = blocks * MOE_TILE_BYTES, rows = C::GATE_UP ? t.count * MOE_TILE_COLS : 0, full = s.full + 8 * at;
    sm90_barrier_expect(full, bytes * C::GROUP + rows * blocks);
    uint32_t to = s.weights + at * C::WEIGHT_STAGE;
#pragma unroll
    for (int tile = 0; tile < C::GROUP; tile++)
        sm90_copy_bulk(to + tile * C::KPS * MOE_TILE_BYTES, weights + ((int64_t)tile * p.kblocks + kb) * MOE_TILE_BYTES, bytes, full);
    if (C::GATE_UP) {
        const uint8_t *tokens = p.x_codes + (int64_t)t.first * p.hidden + kb * rows;
#pragma unroll
        for (int b = 0; b < C::KPS; b++)
            if (b < blocks)
                sm90_copy_bulk(s.tokens + at * C::TOKEN_STAGE + b * C::NMAX * MOE_TILE_COLS, tokens + b * rows, rows, full);
    }
}

template <class C> __device__ void copies(const product &p, const places &s)
{
    if (C::GATE_UP)
        sm90_launch_wait();
    sm90_launch_next(); /* down: the list of tiles is complete, since gate/up let this launch begin only when it had the list itself */
    int items = __ldcg(p.tile_count) * p.chunks;
    ring<C::STAGES> r;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        gpu_moe_tile t = tile_load(p, item);
        int group, end;
        for (groups_of<C>(p, item, &group, &end); group < end; group++) {
            const uint8_t *weights = p.weights + ((int64_t)t.expert * p.row_tiles + group * C::GROUP) * p.kblocks * MOE_TILE_BYTES;
            for (int kb = 0; kb < p.kblocks; kb += C::KPS, r.next()) {
                sm90_barrier_wait(s.empty + 8 * r.at, r.parity ^ 1);
                stage_copy<C>(p, s, t, r.at, weights, kb);
            }
        }
    }
}

/* ---- the token warps ---- */

/* down: the rows of a token tile, two at a time per warp, 8 values per lane and 256 columns. */
template <class C>
__device__ __forceinline__ void tile_round(const product &p, const gpu_moe_tile &t, uint32_t tokens, uint32_t scale, int warp, int lane)
{
    constexpr int ROWS = 2, SEGMENTS = 2;
    for (int n0 = warp * ROWS; n0 < t.count; n0 += C::ROUNDERS * ROWS) {
        uint4 v[ROWS][SEGMENTS];
        float top[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int k = 0; k < SEGMENTS; k++)
                v[i][k] = n0 + i < t.count && k * 256 + lane * 8 < p.inter
                              ? __ldcg((const uint4 *)(p.act + (int64_t)(t.first + n0 + i) * p.inter + k * 256 + lane * 8))
                              : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            top[i] = fmaxf(largest_of(v[i][0]), largest_of(v[i][1]));
#pragma unroll
            for (int m = 16; m > 0; m /= 2)
                top[i] = fmaxf(top[i], __shfl_xor_sync(0xFFFFFFFFu, top[i], m));
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int n = n0 + i;
            if (n >= t.count)
                break;
            float f = top[i] > 1e-30f ? 448.0f / top[i] : 0.0f;
            if (lane == 0)
                sm90_store_4(scale + 4 * n, __float_as_uint(top[i] * (1.0f / 448.0f)));
#pragma unroll
            for (int k = 0; k < SEGMENTS; k++) {
                int col = k * 256 + lane * 8;
                uint32_t to = tokens + col / 128 * C::NMAX * 128 + n * 128 + ((col % 128 / 16 ^ n % 8) << 4) + col % 16;
                if (col < p.inter)
                    sm90_store_8(to, four_codes(v[i][k].x, v[i][k].y, f), four_codes(v[i][k].z, v[i][k].w, f));
            }
        }
    }
}

/* The token tile of one item, when its place is free. */
template <class C>
__device__ __forceinline__ void tile_make(const product &p, const places &s, const gpu_moe_tile &t, ring<C::BUFS> &r, int warp, int lane)
{
    sm90_barrier_wait(s.tile_empty + 8 * r.at, r.parity ^ 1);
    tile_round<C>(p, t, s.tokens + r.at * C::NMAX * MOE_TILE_COLS * p.kblocks, s.tile_scale + 4 * r.at * C::NMAX, warp, lane);
    sm90_fence_async();
    __syncwarp();
    if (lane == 0)
        sm90_barrier_arrive(s.tile_full + 8 * r.at);
    r.next();
}

template <class C> __device__ void tokens_round(const product &p, const places &s, int thread)
{
    int items = __ldcg(p.tile_count) * p.chunks;
    ring<C::BUFS> r;
    sm90_launch_wait();
    for (int item = blockIdx.x; item < items; item += gridDim.x)
        tile_make<C>(p, s, tile_load(p, item), r, thread / 32, thread % 32);
}

/* One warp for both: copies fill the ring before gate/up is complete, then the first token tile; later tiles are made one item ahead. */
template <class C> __device__ void copies_and_tokens(const product &p, const places &s, int lane)
{
    sm90_launch_next();
    int items = __ldcg(p.tile_count) * p.chunks, issued = 0;
    ring<C::STAGES> r;
    ring<C::BUFS> tiles;
    gpu_moe_tile t = {};
    if ((int)blockIdx.x < items)
        t = tile_load(p, blockIdx.x);
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        int group, end;
        for (groups_of<C>(p, item, &group, &end); group < end; group++) {
            const uint8_t *weights = p.weights + ((int64_t)t.expert * p.row_tiles + group * C::GROUP) * p.kblocks * MOE_TILE_BYTES;
            for (int kb = 0; kb < p.kblocks; kb += C::KPS, r.next()) {
                sm90_barrier_wait(s.empty + 8 * r.at, r.parity ^ 1);
                if (lane == 0)
                    stage_copy<C>(p, s, t, r.at, weights, kb);
                __syncwarp();
                issued++;
                bool last = group + 1 == end && kb + C::KPS >= p.kblocks;
                if (item == (int)blockIdx.x && (issued == C::STAGES || (issued < C::STAGES && last))) {
                    sm90_launch_wait();
                    tile_make<C>(p, s, t, tiles, 0, lane);
                }
            }
        }
        if (item + (int)gridDim.x < items) {
            t = tile_load(p, item + gridDim.x);
            tile_make<C>(p, s, t, tiles, 0, lane);
        }
    }
}

/* ---- the consumers ---- */

/* Blocks of 8 tokens whose scales are loaded together before their results are written. */
template <int N> struct batch {
    static constexpr int BLOCKS = N / 8, SIZE = BLOCKS % 3 == 0 ? 3 : BLOCKS % 4 == 0 ? 4 : BLOCKS;
};

/* gate/up: silu(gate) * up as bf16. Per token a lane has one column of each row tile; those of a pair of tiles are neighbours. */
template <class C, int N>
__device__ __forceinline__ void write_act(const product &p, const gpu_moe_tile &t, const consumer &c, const float (&d)[C::MT][N / 2],
                                          const float2 (&factor)[C::MT], uint32_t scale, int row_tile)
{
    constexpr int SIZE = batch<N>::SIZE;
    uint16_t *to = p.act + (int64_t)t.first * p.inter + row_tile / 2 * 64 + c.warp * 16 + c.lane / 4 * 2 + row_tile % 2;
#pragma unroll
    for (int j0 = 0; j0 < N / 8; j0 += SIZE) {
        uint2 tokens[SIZE];
#pragma unroll
        for (int j = 0; j < SIZE; j++)
            tokens[j] = sm90_load_8(scale + 4 * (8 * (j0 + j) + 2 * (c.lane % 4)));
#pragma unroll
        for (int k = 0; k < 2 * SIZE; k++) {
            int at = 4 * (j0 + k / 2) + k % 2, n = 8 * (j0 + k / 2) + 2 * (c.lane % 4) + k % 2;
            float token = __uint_as_float(k % 2 ? tokens[k / 2].y : tokens[k / 2].x), v[C::MT];
#pragma unroll
            for (int m = 0; m < C::MT; m++)
                v[m] = silu(d[m][at] * factor[m].x * token) * (d[m][at + 2] * factor[m].y * token);
            if (C::MT == 2)
                sm90_write_4(to + (uint32_t)(n * p.inter), sm90_bf16_pair(v[0], v[C::MT - 1]), n < t.count);
            else
                sm90_write_2(to + (uint32_t)(n * p.inter), sm90_bf16_pair(v[0], 0.0f), n < t.count);
        }
    }
}

/* down: per token a lane has two neighbouring columns of each row tile, four of a pair of tiles. */
template <class C, int N>
__device__ __forceinline__ void write_y(const product &p, const gpu_moe_tile &t, const consumer &c, const float (&d)[C::MT][N / 2],
                                        const float2 (&factor)[C::MT], uint32_t scale, uint32_t begin, int row_tile)
{
    constexpr int SIZE = batch<N>::SIZE;
    uint16_t *to = p.y + row_tile / 2 * 128 + c.warp * 32 + c.lane / 4 * 4 + row_tile % 2 * 2;
#pragma unroll
    for (int j0 = 0; j0 < N / 8; j0 += SIZE) {
        uint2 tokens[SIZE], begins[SIZE];
#pragma unroll
        for (int j = 0; j < SIZE; j++) {
            tokens[j] = sm90_load_8(scale + 4 * (8 * (j0 + j) + 2 * (c.lane % 4)));
            begins[j] = sm90_load_8(begin + 4 * (8 * (j0 + j) + 2 * (c.lane % 4)));
        }
#pragma unroll
        for (int k = 0; k < 2 * SIZE; k++) {
            int at = 4 * (j0 + k / 2) + k % 2, n = 8 * (j0 + k / 2) + 2 * (c.lane % 4) + k % 2;
            float token = __uint_as_float(k % 2 ? tokens[k / 2].y : tokens[k / 2].x);
            uint32_t v[C::MT];
#pragma unroll
            for (int m = 0; m < C::MT; m++)
                v[m] = sm90_bf16_pair(d[m][at] * factor[m].x * token, d[m][at + 2] * factor[m].y * token);
            uint16_t *row = to + (k % 2 ? begins[k / 2].y : begins[k / 2].x);
            if (C::MT == 2)
                sm90_write_8(row, v[0], v[C::MT - 1], n < t.count);
            else
                sm90_write_4(row, v[0], n < t.count);
        }
    }
}

/* Where the tile's tokens begin in y, and their scales, to where all threads of the warpgroup find them. */
template <class C> struct token_facts {
    float scale[C::SCALES];
    int32_t row[C::SCALES];

    __device__ __forceinline__ token_facts(const product &p, const gpu_moe_tile &t, const consumer &c)
    {
#pragma unroll
        for (int i = 0; i < C::SCALES; i++) {
            int n = c.thread + 128 * i;
            row[i] = n < t.count ? __ldcg(p.pairs + t.first + n) : 0;
            scale[i] = C::GATE_UP ? __ldcg(p.x_scale + row[i] / p.slots) : 0.0f;
            row[i] *= p.hidden;
        }
    }

    __device__ __forceinline__ void share(const consumer &c, uint32_t scales, uint32_t rows) const
    {
        sm90_warps_sync(2 + c.group, 128);
#pragma unroll
        for (int i = 0; i < C::SCALES; i++)
            if (c.thread + 128 * i < C::NMAX) {
                if (C::GATE_UP)
                    sm90_store_4(scales + 4 * (c.thread + 128 * i), __float_as_uint(scale[i]));
                else
                    sm90_store_4(rows + 4 * (c.thread + 128 * i), (uint32_t)row[i]);
            }
        sm90_warps_sync(2 + c.group, 128);
    }
};

/* All row groups of an item with token tiles of N columns. */
template <class C, int N>
__device__ __forceinline__ void item_multiply(const product &p, const places &s, const consumer &c, int item, const gpu_moe_tile &t,
                                              ring<C::STAGES> &r, ring<C::BUFS> &tile_ring)
{
    token_facts<C> facts(p, t, c);
    uint32_t scale = s.scale + 4 * c.group * C::NMAX, row = s.row + 4 * c.group * C::NMAX;
    if (!C::GATE_UP)
        sm90_barrier_wait(s.tile_full + 8 * tile_ring.at, tile_ring.parity);
    group_sums<C, N> sums(p, s, c, s.tokens + (C::GATE_UP ? 0 : tile_ring.at * C::NMAX * MOE_TILE_COLS * p.kblocks), r);
    sums.prime();
    int first, end;
    groups_of<C>(p, item, &first, &end);
    for (int group = first; group < end; group++) {
        int row_tile = group * C::GROUP + c.group * C::MT;
        const float *factors = p.row_scale + ((int64_t)t.expert * p.row_tiles + row_tile) * MOE_TILE_ROWS + c.warp * 16 + c.lane / 4;
        float2 factor[C::MT];
#pragma unroll
        for (int m = 0; m < C::MT; m++)
            factor[m] = make_float2(__ldg(factors + m * MOE_TILE_ROWS), __ldg(factors + m * MOE_TILE_ROWS + 8));
        float d[C::MT][N / 2];
        sums.run(d, group + 1 < end);
        if (group == first)
            facts.share(c, scale, row);
        if (C::GATE_UP)
            write_act<C, N>(p, t, c, d, factor, scale, row_tile);
        else
            write_y<C, N>(p, t, c, d, factor, s.tile_scale + 4 * tile_ring.at * C::NMAX, row, row_tile);
    }
    if (!C::GATE_UP) {
        __syncwarp();
        release(c, s.tile_empty + 8 * tile_ring.at);
        tile_ring.next();
    }
}

template <class C> __device__ void consume(const product &p, const places &s, int thread)
{
    consumer c = {thread / 128, thread / 32 % 4, thread % 32, thread % 128};
    if (C::GATE_UP)
        sm90_launch_wait();
    int items = __ldcg(p.tile_count) * p.chunks;
    ring<C::STAGES> r;
    ring<C::BUFS> tile_ring;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        gpu_moe_tile t = tile_load(p, item);
#define WIDTH(n)                                                         \
    if (C::NMAX >= n && t.count <= n) {                                  \
        item_multiply<C, C::NMAX >= n ? n : 8>(p, s, c, item, t, r, tile_ring); \
        continue;                                                        \
    }
        if (C::NMAX <= 32) {
            WIDTH(8)
            WIDTH(16)
            WIDTH(32)
        } else {
            item_multiply<C, C::NMAX>(p, s, c, item, t, r, tile_ring);
        }
#undef WIDTH
    }
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) moe_product(const __grid_constant__ product p)
{
    places s = places_make<C>(p.kblocks);
    int thread = threadIdx.x, first_producer = C::WGS * 128;
    if (thread == 0) {
        for (int i = 0; i < C::STAGES; i++) {
            sm90_barrier_init(s.full + 8 * i, 1);
            sm90_barrier_init(s.empty + 8 * i, C::WGS * 4);
        }
        for (int i = 0; i < C::BUFS; i++) {
            sm90_barrier_init(s.tile_full + 8 * i, C::ROUNDERS);
            sm90_barrier_init(s.tile_empty + 8 * i, C::WGS * 4);
        }
        sm90_barrier_init_done();
    }
    __syncthreads();
    if (thread >= first_producer) {
        if (C::WGS == 2)
            sm90_registers_fewer<72>();
        if (!C::GATE_UP && C::TOKEN_WARPS == 0) {
            copies_and_tokens<C>(p, s, thread - first_producer);
        } else if (thread < first_producer + 32) {
            if (thread == first_producer)
                copies<C>(p, s);
        } else if (!C::GATE_UP) {
            tokens_round<C>(p, s, thread - first_producer - 32);
        }
    } else {
        if (C::WGS == 2)
            sm90_registers_more<216>();
        consume<C>(p, s, thread);
    }
}

/* ---- launches ---- */

template <class C> gpu_status product_init(void)
{
    return cudaFuncSetAttribute(moe_product<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
}

template <class C> gpu_status product_launch(product p, int blocks, gpu_stream stream)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(blocks * C::BLOCKS);
    launch.blockDim = dim3(C::THREADS);
    launch.dynamicSmemBytes = C::shared_bytes(p.kblocks);
    launch.stream = stream;
    launch.attrs = &attribute;
    launch.numAttrs = 1;
    p.chunks = (p.row_tiles / C::GROUP + p.chunk - 1) / p.chunk;
    return cudaLaunchKernelEx(&launch, moe_product<C>, p);
}

/* One row per variant: gate/up and down with the same widths of token tiles. */
struct variant {
    const char *name;
    int width;
    int group; /* row tiles of a row group: the rows of both matrices must be a multiple */
    int blocks; /* column blocks of both matrices must be a multiple */
    int chunk; /* row groups of an item of the down product */
    gpu_status (*init_gate_up)(void), (*init_down)(void);
    gpu_status (*gate_up)(product p, int blocks, gpu_stream stream), (*down)(product p, int blocks, gpu_stream stream);
};

#define VARIANT(name, chunk, WGS, MT, NMAX, KPS, STAGES_UP, BLOCKS_UP, STAGES_DOWN, BUFS, BLOCKS_DOWN)                          \
    {                                                                                                                           \
        name, NMAX, WGS *MT, MT == 1 ? 2 : 1, chunk,                                                                            \
            product_init<config<true, WGS, MT, NMAX, STAGES_UP, KPS, 1, BLOCKS_UP>>,                                            \
            product_init<config<false, WGS, MT, NMAX, STAGES_DOWN, KPS, BUFS, BLOCKS_DOWN>>,                                    \
            product_launch<config<true, WGS, MT, NMAX, STAGES_UP, KPS, 1, BLOCKS_UP>>,                                          \
            product_launch<config<false, WGS, MT, NMAX, STAGES_DOWN, KPS, BUFS, BLOCKS_DOWN>>                                   \
    }

/*          name    chunk WGS MT NMAX KPS | gate/up: stages, blocks | down: stages, token tiles, blocks */
const variant variants[] = {
    VARIANT("n8", 4, 1, 2, 8, 1, 7, 3, 7, 2, 3),     VARIANT("n16", 4, 1, 2, 16, 1, 9, 2, 6, 2, 3),
    VARIANT("n32", 4, 1, 2, 32, 1, 8, 2, 7, 2, 2),   VARIANT("n48", 12, 2, 2, 48, 1, 9, 1, 8, 2, 1),
    VARIANT("n64", 12, 2, 2, 64, 1, 8, 1, 6, 2, 1),   VARIANT("n96", 12, 2, 2, 96, 1, 7, 1, 6, 2, 1),
    VARIANT("n144", 12, 2, 2, 144, 1, 6, 1, 4, 2, 1),
};
const int variant_count = sizeof variants / sizeof *variants;

} // namespace

extern "C" gpu_status gpu_moe_sm90_init(void)
{
    for (int i = 0; i < variant_count; i++) {
        gpu_status status = variants[i].init_gate_up();
        if (status == GPU_OK)
            status = variants[i].init_down();
        if (status != GPU_OK)
            return status;
    }
    return GPU_OK;
}

extern "C" const char *gpu_moe_variant_name(int v)
{
    return v == GPU_MOE_ROW ? "row" : v >= 0 && v < variant_count ? variants[v].name : nullptr;
}

extern "C" int gpu_moe_variant_width(int v)
{
    return variants[v].width;
}

extern "C" int gpu_moe_variant_fits(int v, const gpu_moe_shape *s)
{
    const variant *o = &variants[v];
    return 2 * s->inter / MOE_TILE_ROWS % o->group == 0 && s->hidden / MOE_TILE_ROWS % o->group == 0 &&
           s->hidden / MOE_TILE_COLS % o->blocks == 0 && s->inter / MOE_TILE_COLS % o->blocks == 0;
}

extern "C" gpu_status gpu_moe_sm90_run(const gpu_moe_args *a, int gate_up, int v, gpu_stream stream)
{
    const gpu_moe_shape *s = &a->shape;
    product p = {};
    p.weights = gate_up ? a->weights.gate_up : a->weights.down;
    p.row_scale = gate_up ? a->weights.gate_up_scale : a->weights.down_scale;
    p.row_tiles = (gate_up ? 2 * s->inter : s->hidden) / MOE_TILE_ROWS;
    p.kblocks = (gate_up ? s->hidden : s->inter) / MOE_TILE_COLS;
    p.chunk = gate_up ? 1 : variants[v].chunk;
    p.tiles = a->scratch.tiles;
    p.tile_count = a->scratch.tile_count;
    p.pairs = a->scratch.pairs;
    p.slots = s->topk + s->shared;
    p.x_codes = a->scratch.x_codes;
    p.x_scale = a->scratch.x_scale;
    p.act = a->scratch.act;
    p.y = a->scratch.y;
    p.hidden = s->hidden;
    p.inter = s->inter;
    return gate_up ? variants[v].gate_up(p, a->blocks, stream) : variants[v].down(p, a->blocks, stream);
}
