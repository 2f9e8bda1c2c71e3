/* The two grouped products of the experts on Hopper: weights (64 rows) from registers, tokens (8..256 columns) from shared memory.
 *
 * One kernel for gate/up and down. Blocks are persistent over a list of items; an item is a token tile of one expert and some row groups of
 * its matrix (a row group: 64 rows per consumer warpgroup). Roles of the warps:
 *
 *     consumers  1 or 2 warpgroups: packed weights from shared memory to registers, decoded to e4m3, multiplied, written out
 *     weights    one thread: bulk copies of packed tiles into a ring of stages
 *     tokens     gate/up: the tile's columns of the same stages, gathered by cp.async, 128-byte swizzle
 *                down: the whole token tile once per item, rounded from bf16 to e4m3 with one scale per row
 *
 * Sums: chains of products over pieces of the columns (moe_piece, given by the shape alone), the pieces added in ascending order, whatever
 * the width of the token tile. Columns of a product do not influence each other, so rows of a token tile that do not exist are left as
 * they are in shared memory. */
#include "device/gpu/gpu_moe.h"
#include "device/gpu/gpu_moe_pack.h"
#include "device/gpu/sm90.h"

namespace {

struct product {
    const uint8_t *weights;  /* packed, [experts][row_tiles][kblocks] tiles */
    const float *row_scale;  /* [experts][row_tiles * 64] in order of positions */
    int row_tiles, kblocks;
    int piece;               /* column blocks of a chain of products */
    int chunk, chunks;       /* row groups of an item, items of a token tile */
    const gpu_moe_tile *tiles;
    const int32_t *tile_count;
    const int32_t *pairs;
    int slots;               /* pairs of a row */
    const uint8_t *x_codes;  /* gate/up: [rows][hidden] */
    const float *x_scale;
    uint16_t *act;           /* [pairs][inter]: output of gate/up, input of down */
    uint16_t *y;             /* down: [rows * slots][hidden] */
    int hidden, inter;
};

/* WGS consumer warpgroups, token tiles of at most NMAX, KPS blocks of 128 columns per stage, BUFS token tiles of the down product,
 * BLOCKS blocks per multiprocessor. */
template <bool GATE_UP_, int WGS_, int NMAX_, int STAGES_, int KPS_, int BUFS_, int BLOCKS_> struct config {
    static constexpr bool GATE_UP = GATE_UP_;
    static constexpr int WGS = WGS_, NMAX = NMAX_, STAGES = STAGES_, KPS = KPS_, BUFS = BUFS_, BLOCKS = BLOCKS_;
    static constexpr int TOKEN_WARPS = WGS == 2 ? 3 : 1;
    static constexpr int THREADS = WGS * 128 + 32 + TOKEN_WARPS * 32;
    static constexpr int WEIGHT_STAGE = WGS * KPS * MOE_TILE_BYTES;
    static constexpr int TOKEN_STAGE = KPS * NMAX * MOE_TILE_COLS;
    static constexpr int SCALES = (NMAX + 127) / 128; /* token scales that a thread loads */

    static __host__ __device__ int token_bytes(int kblocks)
    {
        return GATE_UP ? STAGES * TOKEN_STAGE : BUFS * NMAX * MOE_TILE_COLS * kblocks;
    }
    static size_t shared_bytes(int kblocks)
    {
        return 1024 + (size_t)token_bytes(kblocks) + STAGES * WEIGHT_STAGE + 256 + sizeof(float) * NMAX * (BUFS + 2 * WGS + 1);
    }
};

/* Shared memory of a block. */
struct places {
    uint32_t tokens, weights; /* rings, or token tiles of the down product */
    uint32_t full, empty;     /* [STAGES] barriers */
    uint32_t tile_full, tile_empty; /* [BUFS] of the down product's token tiles */
    float *tile_scale;        /* [BUFS][NMAX] */
    float *scale;             /* [WGS][NMAX] of the tile being written out */
    int32_t *row;             /* [WGS][NMAX] */
    int32_t *source;          /* [NMAX] rows to gather */
};

template <class C> __device__ __forceinline__ places places_make(int kblocks)
{
    extern __shared__ uint8_t memory[];
    uintptr_t base = ((uintptr_t)memory + 1023) & ~(uintptr_t)1023;
    uint8_t *p = (uint8_t *)base;
    places s;
    s.tokens = sm90_shared(p);
    p += C::token_bytes(kblocks);
    s.weights = sm90_shared(p);
    p += C::STAGES * C::WEIGHT_STAGE;
    s.full = sm90_shared(p);
    s.empty = s.full + 8 * C::STAGES;
    s.tile_full = s.empty + 8 * C::STAGES;
    s.tile_empty = s.tile_full + 8 * C::BUFS;
    static_assert(2 * C::STAGES + 2 * C::BUFS <= 32, "barriers fit into 256 bytes");
    p += 256;
    s.tile_scale = (float *)p;
    s.scale = s.tile_scale + C::BUFS * C::NMAX;
    s.row = (int32_t *)(s.scale + C::WGS * C::NMAX);
    s.source = s.row + C::WGS * C::NMAX;
    return s;
}

/* Position in a ring of barriers. */
template <int COUNT> struct ring {
    int at = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++at == COUNT) {
            at = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ gpu_moe_tile tile_load(const product &p, int item)
{
    int4 v = __ldcg((const int4 *)(p.tiles + item / p.chunks));
    gpu_moe_tile t = {v.x, v.y, v.z, v.w};
    return t;
}

/* Row groups of an item. */
template <class C> __device__ __forceinline__ void groups_of(const product &p, int item, int *first, int *end)
{
    int groups = p.row_tiles / C::WGS;
    *first = item % p.chunks * p.chunk;
    *end = *first + p.chunk < groups ? *first + p.chunk : groups;
}

/* ---- the weights thread ---- */

template <class C> __device__ void weights_copy(const product &p, const places &s)
{
    if (C::GATE_UP)
        sm90_launch_wait();
    sm90_launch_next();
    int items = __ldcg(p.tile_count) * p.chunks;
    ring<C::STAGES> r;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        gpu_moe_tile t = tile_load(p, item);
        int group, end;
        for (groups_of<C>(p, item, &group, &end); group < end; group++) {
            const uint8_t *from = p.weights + ((int64_t)t.expert * p.row_tiles + group * C::WGS) * p.kblocks * MOE_TILE_BYTES;
            for (int kb = 0; kb < p.kblocks; kb += C::KPS, r.next()) {
                uint32_t bytes = (p.kblocks - kb < C::KPS ? p.kblocks - kb : C::KPS) * MOE_TILE_BYTES;
                sm90_barrier_wait(s.empty + 8 * r.at, r.parity ^ 1);
                sm90_barrier_expect(s.full + 8 * r.at, bytes * C::WGS);
#pragma unroll
                for (int w = 0; w < C::WGS; w++)
                    sm90_copy_bulk(s.weights + r.at * C::WEIGHT_STAGE + w * C::KPS * MOE_TILE_BYTES,
                                   from + ((int64_t)w * p.kblocks + kb) * MOE_TILE_BYTES, bytes, s.full + 8 * r.at);
            }
        }
    }
}

/* ---- the token warps ---- */

/* gate/up: rows of x_codes, column blocks in step with the weights. */
template <class C> __device__ void tokens_gather(const product &p, const places &s, int thread)
{
    sm90_launch_wait();
    int items = __ldcg(p.tile_count) * p.chunks;
    ring<C::STAGES> r;
    for (int item = blockIdx.x; item < items; item += gridDim.x) {
        gpu_moe_tile t = tile_load(p, item);
        sm90_warps_sync(1, C::TOKEN_WARPS * 32);
        for (int n = thread; n < t.count; n += C::TOKEN_WARPS * 32)
            s.source[n] = __ldcg(p.pairs + t.first + n) / p.slots;
        sm90_warps_sync(1, C::TOKEN_WARPS * 32);
        const uint8_t *from = p.x_codes + thread % 8 * 16;
        int group, end;
        for (groups_of<C>(p, item, &group, &end); group < end; group++) {
            for (int kb = 0; kb < p.kblocks; kb += C::KPS, r.next()) {
                sm90_barrier_wait(s.empty + 8 * r.at, r.parity ^ 1);
                uint32_t to = s.tokens + r.at * C::TOKEN_STAGE;
#pragma unroll
                for (int b = 0; b < C::KPS; b++, to += C::NMAX * MOE_TILE_COLS) {
                    if (kb + b >= p.kblocks)
                        break;
#pragma unroll 4
                    for (int n = thread / 8; n < t.count; n += C::TOKEN_WARPS * 4)
                        sm90_copy_16(to + n * 128 + ((thread % 8 ^ n % 8) << 4),
                                     from + (int64_t)s.source[n] * p.hidden + (kb + b) * MOE_TILE_COLS);
                }
                sm90_barrier_arrive_copies(s.full + 8 * r.at);
            }
        }
    }
}

__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ __forceinline__ float largest_of(uint4 v)
{
    float a = fmaxf(fmaxf(fabsf(low_of(v.x)), fabsf(high_of(v.x))), fmaxf(fabsf(low_of(v.y)), fabsf(high_of(v.y))));
    float b = fmaxf(fmaxf(fabsf(low_of(v.z)), fabsf(high_of(v.z))), fmaxf(fabsf(low_of(v.w)), fabsf(high_of(v.w))));
    return fmaxf(a, b);
}

__device__ __forceinline__ uint32_t four_codes(uint32_t p, uint32_t q, float f)
{
    return sm90_e4m3_pair(low_of(p) * f, high_of(p) * f) | (uint32_t)sm90_e4m3_pair(low_of(q) * f, high_of(q) * f) << 16;
}

/* down: the rows of a token tile, two at a time per warp, 8 values per lane and 256 columns. */
template <class C>
__device__ __forceinline__ void tile_round(const product &p, const gpu_moe_tile &t, uint32_t tokens, float *scale, int warp, int lane)
{
    constexpr int ROWS = 2, SEGMENTS = 2;
    for (int n0 = warp * ROWS; n0 < t.count; n0 += C::TOKEN_WARPS * ROWS) {
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
                scale[n] = top[i] * (1.0f / 448.0f);
#pragma unroll
            for (int k = 0; k < SEGMENTS; k++) {
                int col = k * 256 + lane * 8;
                uint32_t to = tokens + col / 128 * C::NMAX * 128 + n * 128 + ((col % 128 / 16 ^ n % 8) << 4) + col % 16;
                if (col < p.inter)
                    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(four_codes(v[i][k].x, v[i][k].y, f)),
                                 "r"(four_codes(v[i][k].z, v[i][k].w, f))
                                 : "memory");
            }
        }
    }
}

template <class C> __device__ void tokens_round(const product &p, const places &s, int thread)
{
    int items = __ldcg(p.tile_count) * p.chunks;
    ring<C::BUFS> r;
    sm90_launch_wait();
    for (int item = blockIdx.x; item < items; item += gridDim.x, r.next()) {
        gpu_moe_tile t = tile_load(p, item);
        sm90_barrier_wait(s.tile_empty + 8 * r.at, r.parity ^ 1);
        tile_round<C>(p, t, s.tokens + r.at * C::NMAX * MOE_TILE_COLS * p.kblocks, s.tile_scale + r.at * C::NMAX, thread / 32, thread % 32);
        sm90_fence_async();
        __syncwarp();
        if (thread % 32 == 0)
            sm90_barrier_arrive(s.tile_full + 8 * r.at);
    }
}

/* ---- the consumers ---- */

__device__ __forceinline__ uint32_t permute(uint32_t lo, uint32_t hi, uint32_t selector)
{
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(lo), "r"(hi), "r"(selector));
    return v;
}

/* moe_word_unpack with PRMT. */
__device__ __forceinline__ void unpack(uint32_t word, uint32_t lo, uint32_t hi, uint32_t &a, uint32_t &b)
{
    uint32_t m = word & 0x77777777u;
    a = permute(lo, hi, m) | (word << 4 & 0x80808080u);
    b = permute(lo, hi, m >> 16) | (word & 0x80808080u);
}

/* The registers of 64 x 128 weights: a[s] for columns 32 s .. 32 s + 31. */
__device__ __forceinline__ void weights_decode(uint32_t tile, int thread, uint32_t (&a)[4][4])
{
    uint4 p0 = sm90_load_16(tile + thread * 16), p1 = sm90_load_16(tile + 2048 + thread * 16);
    uint2 scales = sm90_load_8(tile + MOE_TILE_CODES + thread / 4 * 8);
    uint32_t words[4][2] = {{p0.x, p0.y}, {p0.z, p0.w}, {p1.x, p1.y}, {p1.z, p1.w}};
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t scale = permute(h ? scales.y : scales.x, 0, 0x4440 + s);
            unpack(words[s][h], scale * 0x08080800u + 0x14100800u, scale * 0x08080808u + 0x24201C18u, a[s][h], a[s][2 + h]);
        }
}

struct consumer {
    int group, warp, lane, thread; /* warpgroup, warp in it, lane, thread in it */
};

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + __expf(-x));
}

/* gate/up: silu(gate) * up as bf16. A lane has one column and two rows; neighbours exchange so that each writes two columns of one row. */
template <int N>
__device__ __forceinline__ void write_act(const product &p, const gpu_moe_tile &t, const consumer &c, const float (&d)[N / 2],
                                          float2 factor, const float *scale, int row_tile)
{
    int g = c.lane / 4, odd = g & 1;
    uint16_t *to = p.act + (int64_t)t.first * p.inter + row_tile * 32 + c.warp * 8 + (g & ~1);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int n = 8 * j + 2 * (c.lane % 4);
        float2 token = *(const float2 *)(scale + n);
        float v0 = silu(d[4 * j] * factor.x * token.x) * (d[4 * j + 2] * factor.y * token.x);
        float v1 = silu(d[4 * j + 1] * factor.x * token.y) * (d[4 * j + 3] * factor.y * token.y);
        float other = __shfl_xor_sync(0xFFFFFFFFu, odd ? v0 : v1, 4);
        if (n + odd < t.count)
            *(uint32_t *)(to + (int64_t)(n + odd) * p.inter) = odd ? sm90_bf16_pair(other, v1) : sm90_bf16_pair(v0, other);
    }
}

/* down: two neighbouring columns of two rows per lane. */
template <int N>
__device__ __forceinline__ void write_y(const product &p, const gpu_moe_tile &t, const consumer &c, const float (&d)[N / 2], float2 factor,
                                        const float *scale, const int32_t *row, int row_tile)
{
    uint16_t *to = p.y + row_tile * 64 + c.warp * 16 + c.lane / 4 * 2;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int n = 8 * j + 2 * (c.lane % 4);
        float2 token = *(const float2 *)(scale + n);
        int2 rows = *(const int2 *)(row + n);
        if (n < t.count)
            *(uint32_t *)(to + (int64_t)rows.x * p.hidden) =
                sm90_bf16_pair(d[4 * j] * factor.x * token.x, d[4 * j + 2] * factor.y * token.x);
        if (n + 1 < t.count)
            *(uint32_t *)(to + (int64_t)rows.y * p.hidden) =
                sm90_bf16_pair(d[4 * j + 1] * factor.x * token.y, d[4 * j + 3] * factor.y * token.y);
    }
}

__device__ __forceinline__ void release(const consumer &c, uint32_t barrier)
{
    if (c.lane == 0)
        sm90_barrier_arrive(barrier);
}

/* One block of 128 columns: B is its token tile. The products of the block before are complete on return. */
template <class C, int N>
__device__ __forceinline__ void block_multiply(uint32_t weights, uint32_t tokens, int thread, float (&d)[N / 2], uint32_t (&a)[4][4],
                                               bool begins)
{
    weights_decode(weights, thread, a);
    uint64_t b = sm90_tile_128(tokens);
    sm90_wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        sm90_wgmma<N>::run(d, a[s], b + 2 * s, s > 0 || !begins);
    sm90_wgmma_commit();
    sm90_wgmma_wait<1>();
}

/* Sums of one row tile over all columns. Column blocks go in pairs with a register set each, so that one is decoded while the products of
 * the other run; a branch between the two would make the compiler serialise them, so the odd last block stands apart. */
template <class C, int N> struct tile_sums {
    static constexpr bool PIECES = C::GATE_UP; /* the columns of the down product are few: one piece */
    static constexpr int SUMS = PIECES ? N / 2 : 1;
    const product &p;
    const places &s;
    const consumer &c;
    uint32_t tile_tokens;
    ring<C::STAGES> &r, before;
    float (&d)[N / 2];
    float sums[SUMS] = {};

    __device__ __forceinline__ tile_sums(const product &p_, const places &s_, const consumer &c_, uint32_t tokens, ring<C::STAGES> &r_,
                                         float (&d_)[N / 2])
        : p(p_), s(s_), c(c_), tile_tokens(tokens), r(r_), before(r_), d(d_)
    {
    }

    template <int IN_STAGE> __device__ __forceinline__ void block(int kb, bool begins, uint32_t (&a)[4][4], bool last_of_stage)
    {
        if (IN_STAGE == 0) {
            sm90_barrier_wait(s.full + 8 * r.at, r.parity);
            if (C::GATE_UP)
                sm90_fence_async();
        }
        uint32_t weights = s.weights + r.at * C::WEIGHT_STAGE + (c.group * C::KPS + IN_STAGE) * MOE_TILE_BYTES;
        uint32_t tokens = C::GATE_UP ? s.tokens + r.at * C::TOKEN_STAGE + IN_STAGE * (C::NMAX * MOE_TILE_COLS)
                                     : tile_tokens + kb * (C::NMAX * MOE_TILE_COLS);
        block_multiply<C, N>(weights, tokens, c.thread, d, a, begins);
        if (IN_STAGE == 0 && kb > 0)
            release(c, s.empty + 8 * before.at);
        if (last_of_stage) {
            before = r;
            r.next();
        }
    }

    __device__ __forceinline__ void run()
    {
        uint32_t a[2][4][4];
#pragma unroll
        for (int k = 0; k < N / 2; k++)
            asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[k])); /* or the sums of every width take registers all the time */
        for (int kb = 0; kb < p.kblocks;) {
            int start = kb, stop = PIECES && kb + p.piece < p.kblocks ? kb + p.piece : p.kblocks;
            for (; kb + 1 < stop; kb += 2) {
                block<0>(kb, kb == start, a[0], C::KPS == 1);
                block<C::KPS - 1>(kb + 1, false, a[1], true);
            }
            sm90_wgmma_wait<0>();
            if (kb < stop) {
                block<0>(kb, kb == start, a[0], true);
                kb++;
                sm90_wgmma_wait<0>();
            }
            sm90_wgmma_pin(d);
#pragma unroll
            for (int k = 0; k < SUMS && PIECES; k++)
                sums[k] += d[k]; /* the first of them to 0: exact */
        }
        release(c, s.empty + 8 * before.at);
#pragma unroll
        for (int k = 0; k < SUMS && PIECES; k++)
            d[k] = sums[k];
    }
};

/* All row groups of an item with token tiles of N columns. */
template <class C, int N>
__device__ __forceinline__ void item_multiply(const product &p, const places &s, const consumer &c, int item, const gpu_moe_tile &t,
                                              ring<C::STAGES> &r, ring<C::BUFS> &tile_ring)
{
    float token_scale[C::SCALES];
    int32_t token_row[C::SCALES];
#pragma unroll
    for (int i = 0; i < C::SCALES; i++) {
        int n = c.thread + 128 * i;
        token_row[i] = n < t.count ? __ldcg(p.pairs + t.first + n) : 0;
        token_scale[i] = C::GATE_UP ? __ldcg(p.x_scale + token_row[i] / p.slots) : 0.0f;
    }
    uint32_t tile_tokens = s.tokens + (C::GATE_UP ? 0 : tile_ring.at * C::NMAX * MOE_TILE_COLS * p.kblocks);
    float *scale = s.scale + c.group * C::NMAX;
    int32_t *row = s.row + c.group * C::NMAX;
    if (!C::GATE_UP)
        sm90_barrier_wait(s.tile_full + 8 * tile_ring.at, tile_ring.parity);
    int first, end;
    groups_of<C>(p, item, &first, &end);
    for (int group = first; group < end; group++) {
        int row_tile = group * C::WGS + c.group;
        const float *factors = p.row_scale + ((int64_t)t.expert * p.row_tiles + row_tile) * MOE_TILE_ROWS + c.warp * 16 + c.lane / 4;
        float2 factor = make_float2(__ldg(factors), __ldg(factors + 8));
        float d[N / 2];
        tile_sums<C, N>(p, s, c, tile_tokens, r, d).run();
        if (group == first) {
            sm90_warps_sync(2 + c.group, 128);
#pragma unroll
            for (int i = 0; i < C::SCALES; i++)
                if (c.thread + 128 * i < C::NMAX) {
                    scale[c.thread + 128 * i] = token_scale[i];
                    row[c.thread + 128 * i] = token_row[i];
                }
            sm90_warps_sync(2 + c.group, 128);
        }
        if (C::GATE_UP)
            write_act<N>(p, t, c, d, factor, scale, row_tile);
        else
            write_y<N>(p, t, c, d, factor, s.tile_scale + tile_ring.at * C::NMAX, row, row_tile);
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
        } else if (C::NMAX <= 64) {
            WIDTH(16)
            WIDTH(32)
            WIDTH(64)
        } else if (C::NMAX <= 128) {
            WIDTH(64)
            WIDTH(96)
            WIDTH(128)
        } else {
            WIDTH(160)
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
            sm90_barrier_init(s.full + 8 * i, C::GATE_UP ? 1 + C::TOKEN_WARPS * 32 : 1);
            sm90_barrier_init(s.empty + 8 * i, C::WGS * 4);
        }
        for (int i = 0; i < C::BUFS; i++) {
            sm90_barrier_init(s.tile_full + 8 * i, C::TOKEN_WARPS);
            sm90_barrier_init(s.tile_empty + 8 * i, C::WGS * 4);
        }
        sm90_barrier_init_done();
    }
    __syncthreads();
    if (thread >= first_producer) {
        if (C::WGS == 2)
            sm90_registers_fewer<72>();
        if (thread < first_producer + 32) {
            if (thread == first_producer)
                weights_copy<C>(p, s);
        } else if (C::GATE_UP) {
            tokens_gather<C>(p, s, thread - first_producer - 32);
        } else {
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
    p.chunks = (p.row_tiles / C::WGS + p.chunk - 1) / p.chunk;
    return cudaLaunchKernelEx(&launch, moe_product<C>, p);
}

/* One row per variant: gate/up and down with the same widths of token tiles. */
struct variant {
    const char *name;
    int width;
    int chunk; /* row groups of an item of the down product */
    gpu_status (*init_gate_up)(void), (*init_down)(void);
    gpu_status (*gate_up)(product p, int blocks, gpu_stream stream), (*down)(product p, int blocks, gpu_stream stream);
};

#define VARIANT(name, chunk, WGS, NMAX, STAGES_UP, STAGES_DOWN, KPS, BUFS, BLOCKS)                                              \
    {                                                                                                                           \
        name, NMAX, chunk, product_init<config<true, WGS, NMAX, STAGES_UP, KPS, 1, BLOCKS>>,                                    \
            product_init<config<false, WGS, NMAX, STAGES_DOWN, KPS, BUFS, BLOCKS>>,                                             \
            product_launch<config<true, WGS, NMAX, STAGES_UP, KPS, 1, BLOCKS>>,                                                 \
            product_launch<config<false, WGS, NMAX, STAGES_DOWN, KPS, BUFS, BLOCKS>>                                            \
    }

const variant variants[] = {
    VARIANT("n8", 4, 1, 8, 10, 10, 2, 2, 2),
    VARIANT("n8b3", 4, 1, 8, 6, 7, 2, 2, 3),
    VARIANT("n8b4", 4, 1, 8, 9, 9, 1, 2, 4),
    VARIANT("n16b3", 8, 1, 16, 5, 6, 2, 2, 3),
    VARIANT("n32", 8, 1, 32, 6, 7, 2, 2, 2),
    VARIANT("n64x2", 12, 2, 64, 12, 12, 1, 2, 1),
    VARIANT("n128x2", 12, 2, 128, 8, 8, 1, 2, 1),
};
const int variant_count = sizeof variants / sizeof *variants;

} // namespace

extern "C" gpu_status gpu_moe_init(void)
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
    return v >= 0 && v < variant_count ? variants[v].name : nullptr;
}

extern "C" int gpu_moe_variant_width(int v)
{
    return variants[v].width;
}

extern "C" gpu_status gpu_moe_sm90_run(const gpu_moe_args *a, int gate_up, int v, gpu_stream stream)
{
    const gpu_moe_shape *s = &a->shape;
    product p = {};
    p.weights = gate_up ? a->weights.gate_up : a->weights.down;
    p.row_scale = gate_up ? a->weights.gate_up_scale : a->weights.down_scale;
    p.row_tiles = (gate_up ? 2 * s->inter : s->hidden) / MOE_TILE_ROWS;
    p.kblocks = (gate_up ? s->hidden : s->inter) / MOE_TILE_COLS;
    p.piece = moe_piece(p.kblocks);
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
