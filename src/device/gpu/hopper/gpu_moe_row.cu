/* The experts of a single row on Hopper, in two launches: what counts is the time until the last byte of the weights is there and used.
 *
 * gate/up: one block per multiprocessor (blocks of one launch that fit beside each other would be put there, while others have none), with
 * two warpgroups; an item is a row tile of a slot. Copies begin as soon as the expert is known, the row is rounded meanwhile.
 * down: one block per row tile, three warpgroups with a third of the slots each; the sum over the experts is made in the block.
 * Each warpgroup has a ring of weights of its own; one thread of the block fills them in turn.
 *
 * The same numbers are rounded and summed in the same order as in the kernels for many rows, so the results are the same bits. */
#include "device/gpu/hopper/gpu_moe_sm90.h"

namespace {

enum {
    UP_GROUPS = 2,   /* warpgroups of a gate/up block */
    UP_STAGES = 10,  /* of two column blocks, per warpgroup */
    DOWN_GROUPS = 3,
    DOWN_STAGES = 6, /* all weights of GLM-5.2 at TP4 */
    DOWN_SLOTS = 3,  /* of a warpgroup */
    UP_THREADS = UP_GROUPS * 128 + 32,
    DOWN_THREADS = DOWN_GROUPS * 128 + 32,
    MOST_SLOTS = DOWN_GROUPS * DOWN_SLOTS,
    TOKEN_BLOCK = 8 * MOE_TILE_COLS /* a token tile of 8 rows: the row, and 7 that nobody looks at */
};

typedef config<false, 1, 1, 8, UP_STAGES, 2, 1, 1> up_config;
typedef config<false, 1, 1, 8, DOWN_STAGES, 2, 1, 1> down_config;

struct row_args {
    product p;              /* weights, row_scale, row_tiles, kblocks, act, hidden, inter, slots */
    const void *x;
    gpu_moe_type x_type;
    const int32_t *experts;
    const float *routing;
    void *out;
    gpu_moe_type out_type;
    int topk, shared_expert; /* its id */
};

__device__ __forceinline__ uint32_t shared_base(void)
{
    extern __shared__ uint8_t memory[];
    uint32_t p = (sm90_shared(memory) + 1023) & ~1023u;
    asm volatile("" : "+r"(p));
    return p;
}

/* Tokens, rings of weights, their barriers, and some numbers behind them. */
template <class C> __device__ __forceinline__ places row_places(uint32_t token_bytes, int groups)
{
    places s = {};
    s.tokens = shared_base();
    s.weights = s.tokens + token_bytes;
    s.full = s.weights + groups * C::STAGES * C::WEIGHT_STAGE;
    s.scale = s.full + groups * 16 * C::STAGES;
    return s;
}

template <class C> size_t row_shared_bytes(size_t token_bytes, int groups, size_t numbers)
{
    return 1024 + token_bytes + (size_t)groups * C::STAGES * (C::WEIGHT_STAGE + 16) + 4 * numbers;
}

/* The ring of a warpgroup. */
template <class C> __device__ __forceinline__ places ring_of(places s, int group)
{
    s.weights += group * C::STAGES * C::WEIGHT_STAGE;
    s.full += group * 16 * C::STAGES;
    s.empty = s.full + 8 * C::STAGES;
    return s;
}

template <class C> __device__ __forceinline__ void row_barriers_init(const places &s, int groups)
{
    for (int i = 0; i < groups * C::STAGES; i++) {
        places own = ring_of<C>(s, i / C::STAGES);
        sm90_barrier_init(own.full + 8 * (i % C::STAGES), 1);
        sm90_barrier_init(own.empty + 8 * (i % C::STAGES), 4);
    }
    sm90_barrier_init_done();
}

/* Two column blocks into a ring. */
template <class C> __device__ __forceinline__ void ring_copy(const places &s, const ring<C::STAGES> &r, const uint8_t *from)
{
    uint32_t full = s.full + 8 * r.at;
    sm90_barrier_wait(s.empty + 8 * r.at, r.parity ^ 1);
    sm90_barrier_expect(full, C::WEIGHT_STAGE);
    sm90_copy_bulk(s.weights + r.at * C::WEIGHT_STAGE, from, C::WEIGHT_STAGE, full);
}

__device__ __forceinline__ int expert_of(const row_args &a, int slot)
{
    return slot < a.topk ? __ldcg(a.experts + slot) : a.shared_expert;
}

__device__ __forceinline__ float warp_largest(float v)
{
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, m));
    return v;
}

/* Four values of the row. */
__device__ __forceinline__ float4 load_4(const row_args &a, int at)
{
    if (a.x_type == GPU_MOE_F32)
        return __ldcg((const float4 *)((const float *)a.x + at));
    uint2 v = __ldcg((const uint2 *)((const uint16_t *)a.x + at));
    return make_float4(low_of(v.x), high_of(v.x), low_of(v.y), high_of(v.y));
}

/* The row to e4m3 in shared memory, by all consumers; returns its scale. Row 0 of a swizzled tile lies in order. */
__device__ __forceinline__ float row_round(const row_args &a, const places &s, int thread)
{
    enum { THREADS = UP_GROUPS * 128, MOST = 8192 / (THREADS * 4) };
    float4 v[MOST];
    float top = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = (i * THREADS + thread) * 4;
        v[i] = at < a.p.hidden ? load_4(a, at) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < MOST; i++)
        top = fmaxf(top, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
    top = warp_largest(top);
    if (thread % 32 == 0)
        sm90_store_4(s.scale + thread / 32 * 4, __float_as_uint(top));
    sm90_warps_sync(1, THREADS);
    for (int w = 0; w < THREADS / 32; w++)
        top = fmaxf(top, __uint_as_float(sm90_load_4(s.scale + 4 * w)));
    float f = top > 1e-30f ? 448.0f / top : 0.0f;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
        int at = (i * THREADS + thread) * 4;
        if (at < a.p.hidden)
            sm90_store_4(s.tokens + at / 128 * TOKEN_BLOCK + at % 128,
                         sm90_e4m3_pair(v[i].x * f, v[i].y * f) | (uint32_t)sm90_e4m3_pair(v[i].z * f, v[i].w * f) << 16);
    }
    sm90_fence_async();
    sm90_warps_sync(1, THREADS);
    return top * (1.0f / 448.0f);
}

__device__ __forceinline__ float2 factors_of(const product &p, int expert, int row_tile, const consumer &c)
{
    const float *from = p.row_scale + ((int64_t)expert * p.row_tiles + row_tile) * MOE_TILE_ROWS + c.warp * 16 + c.lane / 4;
    return make_float2(__ldg(from), __ldg(from + 8));
}

/* One thread: the weights of all items of the block, the rings in turn. */
__device__ __forceinline__ void row_up_copies(const row_args &a, const places &s, int items)
{
    const product &p = a.p;
    ring<UP_STAGES> r[UP_GROUPS];
    for (int item = blockIdx.x; item < items; item += UP_GROUPS * gridDim.x) {
        const uint8_t *from[UP_GROUPS];
#pragma unroll
        for (int g = 0; g < UP_GROUPS; g++) {
            int own = item + g * (int)gridDim.x;
            int64_t tile = own < items ? (int64_t)expert_of(a, own / p.row_tiles) * p.row_tiles + own % p.row_tiles : 0;
            from[g] = p.weights + tile * p.kblocks * MOE_TILE_BYTES;
        }
        for (int kb = 0; kb < p.kblocks; kb += 2)
#pragma unroll
            for (int g = 0; g < UP_GROUPS; g++)
                if (item + g * (int)gridDim.x < items) {
                    ring_copy<up_config>(ring_of<up_config>(s, g), r[g], from[g] + (int64_t)kb * MOE_TILE_BYTES);
                    r[g].next();
                }
    }
}

__global__ void __launch_bounds__(UP_THREADS, 1) moe_row_gate_up(const __grid_constant__ row_args a)
{
    const product &p = a.p;
    places s = row_places<up_config>(p.kblocks * TOKEN_BLOCK, UP_GROUPS);
    int items = p.slots * p.row_tiles, warp = threadIdx.x / 32;
    if (threadIdx.x == 0)
        row_barriers_init<up_config>(s, UP_GROUPS);
    __syncthreads();
    sm90_launch_wait();
    if (warp >= UP_GROUPS * 4) {
        if (threadIdx.x % 32 == 0) {
            sm90_launch_next();
            row_up_copies(a, s, items);
        }
        return;
    }
    consumer c = {0, warp % 4, (int)threadIdx.x % 32, (int)threadIdx.x % 128};
    int item = blockIdx.x + warp / 4 * gridDim.x, expert = item < items ? expert_of(a, item / p.row_tiles) : 0;
    float token = row_round(a, s, threadIdx.x);
    ring<UP_STAGES> r;
    group_sums<up_config, 8> sums(p, ring_of<up_config>(s, warp / 4), c, s.tokens, r);
    for (; item < items; item += UP_GROUPS * gridDim.x) {
        int slot = item / p.row_tiles, row_tile = item % p.row_tiles;
        float2 factor = factors_of(p, expert, row_tile, c);
        if (item + UP_GROUPS * (int)gridDim.x < items)
            expert = expert_of(a, (item + UP_GROUPS * (int)gridDim.x) / p.row_tiles);
        float d[1][4];
        sums.prime();
        sums.run(d, false);
        if (c.lane % 4 == 0) {
            float v = silu(d[0][0] * factor.x * token) * (d[0][2] * factor.y * token);
            p.act[slot * p.inter + row_tile / 2 * 64 + c.warp * 16 + c.lane / 4 * 2 + row_tile % 2] = (uint16_t)sm90_bf16_pair(v, 0.0f);
        }
    }
}

/* One line of act to e4m3, by one warp; returns its scale. */
__device__ __forceinline__ float act_round(const product &p, int slot, uint32_t tokens, int lane)
{
    uint4 v[2];
    float top = 0.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int col = k * 256 + lane * 8;
        v[k] = col < p.inter ? __ldcg((const uint4 *)(p.act + slot * p.inter + col)) : make_uint4(0, 0, 0, 0);
        top = fmaxf(top, largest_of(v[k]));
    }
    top = warp_largest(top);
    float f = top > 1e-30f ? 448.0f / top : 0.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int col = k * 256 + lane * 8;
        if (col < p.inter)
            sm90_store_8(tokens + col / 128 * TOKEN_BLOCK + col % 128, four_codes(v[k].x, v[k].y, f), four_codes(v[k].z, v[k].w, f));
    }
    return top * (1.0f / 448.0f);
}

/* y of the slots of a warpgroup, rounded to bf16, to shared memory: [slot][64]. */
__device__ __forceinline__ void row_down(const row_args &a, const places &s, const consumer &c, int group, uint32_t scales, uint32_t ys)
{
    const product &p = a.p;
    int expert[DOWN_SLOTS];
    float2 factor[DOWN_SLOTS];
#pragma unroll
    for (int i = 0; i < DOWN_SLOTS; i++)
        expert[i] = group + i * DOWN_GROUPS < p.slots ? expert_of(a, group + i * DOWN_GROUPS) : 0;
#pragma unroll
    for (int i = 0; i < DOWN_SLOTS; i++)
        factor[i] = factors_of(p, expert[i], blockIdx.x, c);
    sm90_launch_wait();
    for (int slot = group + c.warp * DOWN_GROUPS; slot < p.slots; slot += 4 * DOWN_GROUPS) { /* a warp per slot */
        float scale = act_round(p, slot, s.tokens + slot * p.kblocks * TOKEN_BLOCK, c.lane);
        if (c.lane == 0)
            sm90_store_4(scales + 4 * slot, __float_as_uint(scale));
    }
    sm90_fence_async();
    sm90_warps_sync(1 + group, 128);
    ring<DOWN_STAGES> r;
    group_sums<down_config, 8> sums(p, ring_of<down_config>(s, group), c, s.tokens, r);
    sums.prime();
#pragma unroll
    for (int i = 0; i < DOWN_SLOTS; i++) {
        int slot = group + i * DOWN_GROUPS;
        if (slot >= p.slots)
            break;
        float d[1][4];
        sums.tile_tokens = s.tokens + slot * p.kblocks * TOKEN_BLOCK;
        sums.run(d, slot + DOWN_GROUPS < p.slots);
        if (c.lane % 4 == 0) {
            float token = __uint_as_float(sm90_load_4(scales + 4 * slot));
            uint32_t pair = sm90_bf16_pair(d[0][0] * factor[i].x * token, d[0][2] * factor[i].y * token);
            uint32_t to = ys + 4 * (slot * MOE_TILE_ROWS + c.warp * 16 + c.lane / 4);
            sm90_store_4(to, pair << 16);
            sm90_store_4(to + 32, pair & 0xFFFF0000u);
        }
    }
}

/* One thread: the weights of a row tile of all slots, the rings in turn. The choice of experts is complete before gate/up is: gate/up had
 * it when it let this launch begin. */
__device__ __forceinline__ void row_down_copies(const row_args &a, const places &s)
{
    const product &p = a.p;
    ring<DOWN_STAGES> r[DOWN_GROUPS];
    for (int slot = 0; slot < p.slots; slot += DOWN_GROUPS) {
        const uint8_t *from[DOWN_GROUPS];
#pragma unroll
        for (int g = 0; g < DOWN_GROUPS; g++) {
            int64_t tile = slot + g < p.slots ? (int64_t)expert_of(a, slot + g) * p.row_tiles + blockIdx.x : 0;
            from[g] = p.weights + tile * p.kblocks * MOE_TILE_BYTES;
        }
        for (int kb = 0; kb < p.kblocks; kb += 2)
#pragma unroll
            for (int g = 0; g < DOWN_GROUPS; g++)
                if (slot + g < p.slots) {
                    ring_copy<down_config>(ring_of<down_config>(s, g), r[g], from[g] + kb * MOE_TILE_BYTES);
                    r[g].next();
                }
    }
}

__global__ void __launch_bounds__(DOWN_THREADS, 1) moe_row_down(const __grid_constant__ row_args a)
{
    const product &p = a.p;
    places s = row_places<down_config>(p.slots * p.kblocks * TOKEN_BLOCK, DOWN_GROUPS);
    uint32_t scales = s.scale, ys = scales + 4 * 16;
    int thread = threadIdx.x, row_tile = blockIdx.x;
    if (thread == 0)
        row_barriers_init<down_config>(s, DOWN_GROUPS);
    __syncthreads();
    if (thread >= DOWN_GROUPS * 128) {
        if (thread == DOWN_GROUPS * 128) {
            sm90_launch_next();
            row_down_copies(a, s);
        }
        return;
    }
    consumer c = {0, thread / 32 % 4, thread % 32, thread % 128};
    row_down(a, s, c, thread / 128, scales, ys);
    sm90_warps_sync(1 + DOWN_GROUPS, DOWN_GROUPS * 128);
    if (thread < MOE_TILE_ROWS) {
        float sum = 0.0f;
        for (int slot = 0; slot < p.slots; slot++)
            sum = fmaf(slot < a.topk ? __ldg(a.routing + slot) : 1.0f,
                       __uint_as_float(sm90_load_4(ys + 4 * (slot * MOE_TILE_ROWS + thread))), sum);
        int at = moe_row_at(MOE_DOWN, row_tile * MOE_TILE_ROWS + thread, 0);
        if (a.out_type == GPU_MOE_F32)
            ((float *)a.out)[at] = sum;
        else
            ((uint16_t *)a.out)[at] = (uint16_t)sm90_bf16_pair(sum, 0.0f);
    }
}

template <class K> gpu_status row_launch(K kernel, int blocks, int threads, size_t bytes, const row_args &a, gpu_stream stream)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(blocks);
    launch.blockDim = dim3(threads);
    launch.dynamicSmemBytes = bytes;
    launch.stream = stream;
    launch.attrs = &attribute;
    launch.numAttrs = 1;
    return cudaLaunchKernelEx(&launch, kernel, a);
}

size_t up_bytes(const gpu_moe_shape *s)
{
    return row_shared_bytes<up_config>((size_t)s->hidden / MOE_TILE_COLS * TOKEN_BLOCK, UP_GROUPS, 4 * UP_GROUPS);
}

size_t down_bytes(const gpu_moe_shape *s)
{
    return row_shared_bytes<down_config>((size_t)(s->topk + s->shared) * s->inter / MOE_TILE_COLS * TOKEN_BLOCK, DOWN_GROUPS,
                                         16 + MOST_SLOTS * MOE_TILE_ROWS);
}

template <class K> gpu_status row_kernel_init(K kernel)
{
    gpu_status status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
    return status == GPU_OK ? cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100) : status;
}

} // namespace

extern "C" int gpu_moe_row_fits(const gpu_moe_shape *s)
{
    int slots = s->topk + s->shared;
    return s->hidden % 256 == 0 && s->inter % 256 == 0 && slots <= MOST_SLOTS && down_bytes(s) <= 227 * 1024 && up_bytes(s) <= 227 * 1024;
}

extern "C" gpu_status gpu_moe_row_init(void)
{
    gpu_status status = row_kernel_init(moe_row_gate_up);
    return status == GPU_OK ? row_kernel_init(moe_row_down) : status;
}

extern "C" gpu_status gpu_moe_row_run(const gpu_moe_args *g, int stages, gpu_stream stream)
{
    const gpu_moe_shape *s = &g->shape;
    row_args a = {};
    a.p.slots = s->topk + s->shared;
    a.p.act = g->scratch.act;
    a.p.hidden = s->hidden;
    a.p.inter = s->inter;
    a.x = g->x;
    a.x_type = g->x_type;
    a.experts = g->experts;
    a.routing = g->routing;
    a.out = g->out;
    a.out_type = g->out_type;
    a.topk = s->topk;
    a.shared_expert = s->experts;
    gpu_status status = GPU_OK;
    if (stages & GPU_MOE_GATE_UP) {
        a.p.weights = g->weights.gate_up;
        a.p.row_scale = g->weights.gate_up_scale;
        a.p.row_tiles = 2 * s->inter / MOE_TILE_ROWS;
        a.p.kblocks = s->hidden / MOE_TILE_COLS;
        int items = a.p.slots * a.p.row_tiles;
        status = row_launch(moe_row_gate_up, items < g->blocks ? items : g->blocks, UP_THREADS, up_bytes(s), a, stream);
    }
    if (status == GPU_OK && stages & GPU_MOE_DOWN) {
        a.p.weights = g->weights.down;
        a.p.row_scale = g->weights.down_scale;
        a.p.row_tiles = s->hidden / MOE_TILE_ROWS;
        a.p.kblocks = s->inter / MOE_TILE_COLS;
        status = row_launch(moe_row_down, a.p.row_tiles, DOWN_THREADS, down_bytes(s), a, stream);
    }
    return status;
}
