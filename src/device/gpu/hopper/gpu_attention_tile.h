/* What both sparse-attention kernels share: the order of the arithmetic, which gives a row the same bits in both, and the way of a cached
 * key from its page into a tile of shared memory.
 *
 * The selected keys of a row are taken in chunks of fixed length, a chunk in blocks of 64. Within a chunk the softmax runs on line: sums
 * are relative to a reference score, which is raised to the largest score of a block when that exceeds it by 2^8 in the result. Chunks
 * are merged in ascending order. All products are f16 times f16, summed in f32 by the matrix units, 16 at a time in ascending order.
 *
 *     tile of 64 keys: panels of [64 keys][64 values] f16, swizzled (sm90_attention.h): the latent's panels, then the rotary one */
#ifndef DEVICE_GPU_GPU_ATTENTION_TILE_H
#define DEVICE_GPU_GPU_ATTENTION_TILE_H

#include "device/gpu/gpu_kernels.h"
#include "device/gpu/hopper/sm90_attention.h"

enum : uint32_t { ATTENTION_NO_SLOT = 0xffffffffu };

/* ---- softmax ---- */

/* Raises a reference score where it must be; returns the factor for what was summed so far. c: scores are worth c in the exponent of 2. */
static __device__ __forceinline__ float attention_raise(float *reference, float largest, float c, float margin)
{
    if (!(largest > *reference + margin))
        return 1.0f;
    float factor = sm90a_exp2(__fmul_rn(*reference - largest, c));
    *reference = largest;
    return factor;
}

/* 2^(c (score - reference)), with c reference given. */
static __device__ __forceinline__ float attention_weight(float score, float c, float c_reference)
{
    return sm90a_exp2(__fmaf_rn(score, c, -c_reference));
}

/* Sum of weights of one block as one thread keeps it: keys 16w + 2q, 16w + 8 + 2q, 16w + 2q + 1, 16w + 9 + 2q. */
static __device__ __forceinline__ float attention_add_weights(float sum, float factor, float even, float odd)
{
    return __fmaf_rn(sum, factor, __fadd_rn(even, odd));
}

/* How two chunks are weighed against each other when they are merged. */
struct attention_merge {
    float reference, sum;       /* of what is merged so far */
    float keep, take;           /* factors for the sums so far and for those of the next chunk */
};

static __device__ __forceinline__ void attention_merge_next(attention_merge *m, float reference, float sum, float c)
{
    float most = fmaxf(m->reference, reference);
    m->keep = sm90a_exp2(__fmul_rn(m->reference - most, c));
    m->take = sm90a_exp2(__fmul_rn(reference - most, c));
    m->sum = __fmaf_rn(sum, m->take, __fmul_rn(m->sum, m->keep));
    m->reference = most;
}

static __device__ __forceinline__ float attention_merged(float so_far, float next, const attention_merge *m)
{
    return __fmaf_rn(next, m->take, __fmul_rn(so_far, m->keep));
}

/* ---- keys ---- */

/* Entries of one layer and the slots of a chunk's keys. */
struct attention_keys {
    const uint8_t *entries; /* of page 0 */
    int64_t page_bytes;
};

/* 4 keys as one lane of a warp holds them between the page and the tile. */
template <int LATENT, int ROPE, int DTYPE> struct attention_unit {
    static constexpr int PANELS = LATENT / 64, PIECES = LATENT / 128, WORDS = DTYPE == GPU_KV_FP8 ? 1 : 2;
    static constexpr int ENTRY = attention_entry_bytes(DTYPE == GPU_KV_FP8, LATENT, ROPE), ROPE_PIECES = ROPE / 8;
    static constexpr bool ALIGNED = ENTRY % 16 == 0;
    uint4 codes[PIECES][WORDS];
    float scale[DTYPE == GPU_KV_FP8 ? PIECES : 1];
    uint4 rope;
};

template <bool ALIGNED> static __device__ __forceinline__ uint4 attention_read16(const uint8_t *p)
{
    if (ALIGNED)
        return sm90a_load16(p);
    return make_uint4(sm90a_load4(p), sm90a_load4(p + 4), sm90a_load4(p + 8), sm90a_load4(p + 12));
}

template <int ENTRY> static __device__ __forceinline__ const uint8_t *attention_entry(const attention_keys *k, uint32_t slot)
{
    return k->entries + (int64_t)(slot >> 6) * k->page_bytes + (slot & 63u) * (uint32_t)ENTRY;
}

/* Begins to load 4 keys; absent ones are zeros. slot: that of key lane % 4. */
template <int LATENT, int ROPE, int DTYPE>
static __device__ __forceinline__ void attention_unit_load(attention_unit<LATENT, ROPE, DTYPE> *u, const attention_keys *k,
                                                           uint32_t slot_of, int lane)
{
    typedef attention_unit<LATENT, ROPE, DTYPE> unit;
    const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < unit::PIECES; i++) {
        attention_piece p = attention_piece_at(i, lane, unit::PANELS);
        uint32_t slot = __shfl_sync(0xffffffffu, slot_of, p.key);
        const uint8_t *entry = attention_entry<unit::ENTRY>(k, slot);
        bool there = slot != ATTENTION_NO_SLOT;
        if (DTYPE == GPU_KV_FP8) {
            u->codes[i][0] = there ? attention_read16<unit::ALIGNED>(entry + p.panel * 64 + p.quarter * 16) : zeros;
            u->scale[i] = there ? __uint_as_float(sm90a_load4(entry + LATENT + p.panel / 2 * 4)) : 0.0f;
        } else {
            const uint8_t *at = entry + p.panel * 128 + p.quarter * 32;
            u->codes[i][0] = there ? attention_read16<unit::ALIGNED>(at) : zeros;
            u->codes[i][unit::WORDS - 1] = there ? attention_read16<unit::ALIGNED>(at + 16) : zeros;
        }
    }
    uint32_t slot = __shfl_sync(0xffffffffu, slot_of, lane / unit::ROPE_PIECES % ATTENTION_UNIT);
    if (lane < ATTENTION_UNIT * unit::ROPE_PIECES) {
        const uint8_t *rope = attention_entry<unit::ENTRY>(k, slot) + unit::ENTRY - ROPE * 2 + lane % unit::ROPE_PIECES * 16;
        u->rope = slot != ATTENTION_NO_SLOT ? attention_read16<unit::ALIGNED>(rope) : zeros;
    }
}

/* A scale as two f16 in both halves of a word each: so that two codes times their scale are rounded once. */
struct attention_scale {
    uint32_t most, rest;
};

static __device__ __forceinline__ attention_scale attention_scale_of(float scale)
{
    attention_scale s = {sm90a_f16x2(scale, scale), 0};
    float rest = scale - sm90a_f16_value(s.most);
    s.rest = sm90a_f16x2(rest, rest);
    return s;
}

static __device__ __forceinline__ uint32_t attention_scaled(uint32_t codes, attention_scale s)
{
    return sm90a_f16x2_fma(codes, s.most, sm90a_f16x2_mul(codes, s.rest));
}

/* 16 codes times their scale: two pieces of a tile. */
static __device__ __forceinline__ void attention_scale_codes(uint4 v, float scale, uint4 (&out)[2])
{
    attention_scale s = attention_scale_of(scale);
    out[0] = make_uint4(attention_scaled(sm90a_e4m3_low(v.x), s), attention_scaled(sm90a_e4m3_high(v.x), s),
                        attention_scaled(sm90a_e4m3_low(v.y), s), attention_scaled(sm90a_e4m3_high(v.y), s));
    out[1] = make_uint4(attention_scaled(sm90a_e4m3_low(v.z), s), attention_scaled(sm90a_e4m3_high(v.z), s),
                        attention_scaled(sm90a_e4m3_low(v.w), s), attention_scaled(sm90a_e4m3_high(v.w), s));
}

static __device__ __forceinline__ uint4 attention_from_bf16(uint4 v)
{
    return make_uint4(sm90a_bf16_to_f16(v.x), sm90a_bf16_to_f16(v.y), sm90a_bf16_to_f16(v.z), sm90a_bf16_to_f16(v.w));
}

static __device__ __forceinline__ void attention_store_fp8(uint32_t line, uint32_t piece, uint32_t swizzle, uint4 v, float scale)
{
    uint4 out[2];
    attention_scale_codes(v, scale, out);
    sm90a_store16(line + ((piece ^ swizzle) << 4), out[0].x, out[0].y, out[0].z, out[0].w);
    sm90a_store16(line + (((piece + 1) ^ swizzle) << 4), out[1].x, out[1].y, out[1].z, out[1].w);
}

static __device__ __forceinline__ void attention_store_bf16(uint32_t address, uint4 v)
{
    v = attention_from_bf16(v);
    sm90a_store16(address, v.x, v.y, v.z, v.w);
}

/* Puts the loaded keys into the tile, as f16. */
template <int LATENT, int ROPE, int DTYPE>
static __device__ __forceinline__ void attention_unit_store(const attention_unit<LATENT, ROPE, DTYPE> *u, uint32_t tile, int first,
                                                            int lane)
{
    typedef attention_unit<LATENT, ROPE, DTYPE> unit;
#pragma unroll
    for (int i = 0; i < unit::PIECES; i++) {
        attention_piece p = attention_piece_at(i, lane, unit::PANELS);
        uint32_t key = (uint32_t)(first + p.key), line = tile + (uint32_t)p.panel * ATTENTION_PANEL_BYTES + key * SM90_LINE_BYTES;
        if (DTYPE == GPU_KV_FP8) {
            attention_store_fp8(line, (uint32_t)p.quarter * 2, key & 7u, u->codes[i][0], u->scale[i]);
        } else {
            attention_store_bf16(line + ((((uint32_t)p.quarter * 2) ^ (key & 7u)) << 4), u->codes[i][0]);
            attention_store_bf16(line + ((((uint32_t)p.quarter * 2 + 1) ^ (key & 7u)) << 4), u->codes[i][unit::WORDS - 1]);
        }
    }
    if (lane < ATTENTION_UNIT * unit::ROPE_PIECES)
        attention_store_bf16(tile + unit::PANELS * ATTENTION_PANEL_BYTES
                                 + sm90_piece((uint32_t)(first + lane / unit::ROPE_PIECES), (uint32_t)(lane % unit::ROPE_PIECES)),
                             u->rope);
}

/* Where a lane reads and puts its pieces of a unit whose entries came to shared memory: addresses for the first unit and tile, computed
 * once; the compiler is kept from computing them again for each block of keys. */
template <int LATENT, int ROPE> struct attention_places {
    uint32_t from[LATENT / 128], scale[LATENT / 128], rope_from; /* in the slot of the unit */
    uint32_t to[LATENT / 128], rope_to;                          /* in the tile: first of two pieces, the second has bit 4 flipped */
};

static __device__ __forceinline__ uint32_t attention_keep(uint32_t v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* raw: the slot; tile: the first tile; first: first key of the unit in its block. */
template <int LATENT, int ROPE, int ENTRY>
static __device__ __forceinline__ attention_places<LATENT, ROPE> attention_places_of(uint32_t raw, uint32_t tile, int first, int lane)
{
    attention_places<LATENT, ROPE> l;
#pragma unroll
    for (int i = 0; i < LATENT / 128; i++) {
        attention_piece p = attention_piece_at(i, lane, LATENT / 64);
        uint32_t entry = raw + (uint32_t)(p.key * attention_raw_bytes(ENTRY));
        l.from[i] = attention_keep(entry + (uint32_t)(p.panel * 64 + p.quarter * 16));
        l.scale[i] = attention_keep(entry + (uint32_t)(LATENT + p.panel / 2 * 4));
        l.to[i] = attention_keep(tile + (uint32_t)(p.panel * ATTENTION_PANEL_BYTES) +
                                 sm90_piece((uint32_t)(first + p.key), (uint32_t)p.quarter * 2));
    }
    int key = lane / (ROPE / 8) % ATTENTION_UNIT, piece = lane % (ROPE / 8);
    l.rope_from = attention_keep(raw + (uint32_t)(key * attention_raw_bytes(ENTRY) + ENTRY - ROPE * 2 + piece * 16));
    l.rope_to =
        attention_keep(tile + (uint32_t)(LATENT / 64 * ATTENTION_PANEL_BYTES) + sm90_piece((uint32_t)(first + key), (uint32_t)piece));
    return l;
}

/* Reads a unit of fp8 entries from shared memory. */
template <int LATENT, int ROPE>
static __device__ __forceinline__ void attention_unit_read(attention_unit<LATENT, ROPE, GPU_KV_FP8> *u,
                                                           const attention_places<LATENT, ROPE> &l)
{
#pragma unroll
    for (int i = 0; i < LATENT / 128; i++) {
        u->codes[i][0] = sm90a_shared_load16(l.from[i]);
        u->scale[i] = sm90a_shared_load(l.scale[i]);
    }
    u->rope = sm90a_shared_load16(l.rope_from);
}

/* Puts a unit of fp8 entries into a tile, `offset` bytes behind the first, as f16. */
template <int LATENT, int ROPE>
static __device__ __forceinline__ void attention_unit_put(const attention_unit<LATENT, ROPE, GPU_KV_FP8> *u, uint32_t offset,
                                                          const attention_places<LATENT, ROPE> &l)
{
#pragma unroll
    for (int i = 0; i < LATENT / 128; i++) {
        uint4 out[2];
        attention_scale_codes(u->codes[i][0], u->scale[i], out);
        sm90a_store16(l.to[i] + offset, out[0].x, out[0].y, out[0].z, out[0].w);
        sm90a_store16((l.to[i] ^ 16u) + offset, out[1].x, out[1].y, out[1].z, out[1].w);
    }
    if (ROPE == 64 || (int)threadIdx.x % 32 < ATTENTION_UNIT * (ROPE / 8))
        attention_store_bf16(l.rope_to + offset, u->rope);
}

/* ---- queries ---- */

/* 8 values of a query, as f16 in a tile. */
static __device__ __forceinline__ void attention_store_query(uint32_t address, float4 a, float4 b)
{
    sm90a_store16(address, sm90a_f16x2(a.x, a.y), sm90a_f16x2(a.z, a.w), sm90a_f16x2(b.x, b.y), sm90a_f16x2(b.z, b.w));
}

/* Puts the queries of HEADS heads into a tile of panels [HEADS][64] f16: the absorbed part, then the rotary one. 128 threads; 8 of them
 * bring a line. AT_ONCE: panels under way at once. */
template <int LATENT, int ROPE, int HEADS, int AT_ONCE>
static __device__ __forceinline__ void attention_queries(uint32_t tile, const float *absorbed, const float *rope, int rope_stride)
{
    constexpr int EACH = (HEADS + 15) / 16; /* heads of a thread */
    int head = (int)threadIdx.x / 8 % 16, piece = (int)threadIdx.x % 8;
    uint32_t to = tile + sm90_piece((uint32_t)head, (uint32_t)piece);
    if (HEADS % 16 != 0 && head >= 8 && EACH == 1)
        return;
    for (int first = 0; first < LATENT / 64; first += AT_ONCE) {
        float4 v[AT_ONCE][EACH][2];
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++)
#pragma unroll
            for (int h = 0; h < EACH; h++)
                if (head + 16 * h < HEADS) {
                    const float4 *from = (const float4 *)(absorbed + (head + 16 * h) * LATENT + (first + p) * 64 + piece * 8);
                    v[p][h][0] = __ldg(from);
                    v[p][h][1] = __ldg(from + 1);
                }
#pragma unroll
        for (int p = 0; p < AT_ONCE; p++)
#pragma unroll
            for (int h = 0; h < EACH; h++)
                if (head + 16 * h < HEADS)
                    attention_store_query(to + (uint32_t)((first + p) * HEADS * SM90_LINE_BYTES + h * 16 * SM90_LINE_BYTES), v[p][h][0],
                                          v[p][h][1]);
    }
#pragma unroll
    for (int h = 0; h < EACH; h++)
        if (head + 16 * h < HEADS && piece < ROPE / 8) {
            const float4 *from = (const float4 *)(rope + (head + 16 * h) * rope_stride + piece * 8);
            attention_store_query(to + (uint32_t)(LATENT / 64 * HEADS * SM90_LINE_BYTES + h * 16 * SM90_LINE_BYTES), __ldg(from),
                                  __ldg(from + 1));
        }
}

#endif
