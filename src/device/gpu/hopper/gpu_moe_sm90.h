/* What the kernels of the experts on Hopper share: how weights become registers, and sums of a row group over all columns. Seen by nvcc
 * alone. */
#ifndef DEVICE_GPU_GPU_MOE_SM90_H
#define DEVICE_GPU_GPU_MOE_SM90_H

#include "device/gpu/hopper/gpu_moe.h"
#include "device/gpu/hopper/gpu_moe_pack.h"
#include "device/gpu/hopper/sm90.h"

namespace {

struct product {
    const uint8_t *weights;  /* packed, [experts][row_tiles][kblocks] tiles */
    const float *row_scale;  /* [experts][row_tiles * 64] in order of positions */
    int row_tiles, kblocks;
    int chunk, chunks;       /* row groups of an item, items of a token tile */
    const gpu_moe_tile *tiles;
    const int32_t *tile_count;
    const int32_t *pairs;
    int slots;               /* pairs of a row */
    const uint8_t *x_codes;  /* gate/up: [pairs][hidden], token tiles in the layout of shared memory */
    const float *x_scale;
    uint16_t *act;           /* [pairs][inter]: output of gate/up, input of down */
    uint16_t *y;             /* down: [rows * slots][hidden] */
    int hidden, inter;
};

/* WGS consumer warpgroups with MT row tiles each, token tiles of at most NMAX, KPS blocks of 128 columns per stage, BUFS token tiles of the
 * down product, BLOCKS blocks per multiprocessor. */
template <bool GATE_UP_, int WGS_, int MT_, int NMAX_, int STAGES_, int KPS_, int BUFS_, int BLOCKS_> struct config {
    static constexpr bool GATE_UP = GATE_UP_;
    static constexpr int WGS = WGS_, MT = MT_, NMAX = NMAX_, STAGES = STAGES_, KPS = KPS_, BUFS = BUFS_, BLOCKS = BLOCKS_;
    static constexpr int PER_STAGE = MT * KPS; /* weight tiles of a stage and warpgroup */
    static_assert(PER_STAGE <= 2, "two register sets alternate over the tiles of a stage");
    static constexpr int GROUP = WGS * MT; /* row tiles of a row group */
    static constexpr int TOKEN_WARPS = WGS == 2 ? 3 : 0; /* beside the copying warp, which rounds tokens itself where there are none */
    static constexpr int ROUNDERS = TOKEN_WARPS ? TOKEN_WARPS : 1;
    static constexpr int THREADS = WGS * 128 + 32 + TOKEN_WARPS * 32;
    static constexpr int WEIGHT_STAGE = WGS * PER_STAGE * MOE_TILE_BYTES;
    static constexpr int TOKEN_STAGE = KPS * NMAX * MOE_TILE_COLS;
    static constexpr int SCALES = (NMAX + 127) / 128; /* token scales that a thread loads */

    static __host__ __device__ int token_bytes(int kblocks)
    {
        return GATE_UP ? STAGES * TOKEN_STAGE : BUFS * NMAX * MOE_TILE_COLS * kblocks;
    }
    static size_t shared_bytes(int kblocks)
    {
        return 1024 + (size_t)token_bytes(kblocks) + STAGES * WEIGHT_STAGE + 256 + sizeof(float) * NMAX * (BUFS + 2 * WGS);
    }
};

/* Shared memory of a block. */
struct places {
    uint32_t tokens, weights; /* rings, or token tiles of the down product */
    uint32_t full, empty;     /* [STAGES] barriers */
    uint32_t tile_full, tile_empty; /* [BUFS] of the down product's token tiles */
    uint32_t tile_scale;      /* [BUFS][NMAX] f32 */
    uint32_t scale;           /* [WGS][NMAX] f32, of the tile being written out */
    uint32_t row;             /* [WGS][NMAX] i32 */
};

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

/* ---- numbers ---- */

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

/* ---- weights ---- */

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

/* What a thread has of a packed tile. */
struct packed {
    uint4 low, high; /* columns 0..63, 64..127 */
    uint2 scales;
};

__device__ __forceinline__ packed packed_load(uint32_t tile, int thread)
{
    packed w = {sm90_load_16(tile + thread * 16), sm90_load_16(tile + 2048 + thread * 16),
                sm90_load_8(tile + MOE_TILE_CODES + thread / 4 * 8)};
    return w;
}

/* The registers of 64 x 128 weights: a[s] for columns 32 s .. 32 s + 31. */
__device__ __forceinline__ void packed_decode(const packed &w, uint32_t (&a)[4][4])
{
    uint32_t words[4][2] = {{w.low.x, w.low.y}, {w.low.z, w.low.w}, {w.high.x, w.high.y}, {w.high.z, w.high.w}};
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t scale = permute(h ? w.scales.y : w.scales.x, 0, 0x4440 + s);
            unpack(words[s][h], scale * 0x08080800u + 0x14100800u, scale * 0x08080808u + 0x24201C18u, a[s][h], a[s][2 + h]);
        }
}

struct consumer {
    int group, warp, lane, thread; /* warpgroup, warp in it, lane, thread in it */
};

__device__ __forceinline__ float silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

__device__ __forceinline__ void release(const consumer &c, uint32_t barrier)
{
    if (c.lane == 0)
        sm90_barrier_arrive(barrier);
}

/* Sums of a row group over all columns. Weight tiles go in pairs (two column blocks, or two row tiles) with a register set each, so that
 * one is decoded while the products of the other run, and the packed form of the next one is loaded before. A branch around the products
 * would make the compiler serialise them, so there is none: with one row tile the number of column blocks must be even. */
template <class C, int N> struct group_sums {
    const product &p;
    const places s;
    const consumer &c;
    uint32_t tile_tokens;
    ring<C::STAGES> &r, before;
    packed next; /* of the tile to be decoded next */

    __device__ __forceinline__ group_sums(const product &p_, const places &s_, const consumer &c_, uint32_t tokens, ring<C::STAGES> &r_)
        : p(p_), s(s_), c(c_), tile_tokens(tokens), r(r_), before(r_)
    {
    }

    __device__ __forceinline__ uint32_t tile_at(int stage, int i) const
    {
        return s.weights + stage * C::WEIGHT_STAGE + (c.group * C::PER_STAGE + i) * MOE_TILE_BYTES;
    }

    __device__ __forceinline__ void prime()
    {
        sm90_barrier_wait(s.full + 8 * r.at, r.parity);
        next = packed_load(tile_at(r.at, 0), c.thread);
    }

    /* Tile I of its stage. `ends`: the last of its stage; `more`: another one follows in this item. */
    template <int I>
    __device__ __forceinline__ void step(int kb, float (&d)[N / 2], uint32_t (&a)[4][4], bool first_of_group, bool ends, bool more)
    {
        packed_decode(next, a);
        uint32_t tokens = C::GATE_UP ? s.tokens + r.at * C::TOKEN_STAGE + (C::KPS == 2 ? I : 0) * (C::NMAX * MOE_TILE_COLS)
                                     : tile_tokens + kb * (C::NMAX * MOE_TILE_COLS);
        ring<C::STAGES> after = r;
        if (ends)
            after.next();
        if (more) {
            if (ends)
                sm90_barrier_wait(s.full + 8 * after.at, after.parity);
            next = packed_load(tile_at(after.at, ends ? 0 : 1), c.thread);
        }
        uint32_t b = sm90_tile_128(tokens);
        sm90_wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            sm90_wgmma<N>::run(d, a[k], b + 2 * k, k > 0 || kb > 0);
        sm90_wgmma_commit();
        sm90_wgmma_wait<1>();
        if ((C::PER_STAGE == 1 || I == 0) && !first_of_group)
            release(c, s.empty + 8 * before.at);
        if (ends) {
            before = r;
            r = after;
        }
    }

    /* `more`: another group follows in this item. */
    __device__ __forceinline__ void run(float (&d)[C::MT][N / 2], bool more)
    {
        uint32_t a[2][4][4];
#pragma unroll
        for (int k = 0; k < C::MT * N / 2; k++) /* or the sums of every width take registers all the time */
            asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[k / (N / 2)][k % (N / 2)]));
        if (C::MT == 2) {
            for (int kb = 0; kb < p.kblocks; kb++) {
                step<0>(kb, d[0], a[0], kb == 0, false, true);
                step<1>(kb, d[C::MT - 1], a[1], false, true, more || kb + 1 < p.kblocks);
            }
        } else {
            for (int kb = 0; kb < p.kblocks; kb += 2) {
                step<0>(kb, d[0], a[0], kb == 0, C::KPS == 1, true);
                step<1>(kb + 1, d[0], a[1], false, true, more || kb + 2 < p.kblocks);
            }
        }
        sm90_wgmma_wait<0>();
        sm90_wgmma_pin(d[0]);
        sm90_wgmma_pin(d[C::MT - 1]);
        release(c, s.empty + 8 * before.at);
    }
};

} // namespace

#endif
