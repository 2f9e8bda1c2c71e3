/* What surrounds the two products of the experts: rounding of rows and sorting of (row, expert) pairs, the sum over a row's experts,
 * packing of weights, and the launcher. */
#include "device/gpu/gpu_moe.h"
#include "device/gpu/gpu_moe_pack.h"
#include "device/gpu/sm90.h"

namespace {

enum { SORT_THREADS = 1024, COMBINE_THREADS = 256, MOST_EXPERTS = SORT_THREADS };

struct preparation {
    gpu_moe_shape shape;
    gpu_moe_scratch scratch;
    int rows, width; /* most rows of a token tile */
    const void *x;
    gpu_moe_input x_type;
    const int32_t *experts;
};

__device__ __forceinline__ float warp_largest(float v)
{
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, m));
    return v;
}

/* 8 values of a row as floats. */
__device__ __forceinline__ void load_8(const preparation &p, int64_t at, float (&v)[8])
{
    if (p.x_type == GPU_MOE_F32) {
        const float4 *from = (const float4 *)((const float *)p.x + at);
        float4 a = __ldcg(from), b = __ldcg(from + 1);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        uint4 a = __ldcg((const uint4 *)((const uint16_t *)p.x + at));
        uint32_t w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = __uint_as_float(w[i] << 16);
            v[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
        }
    }
}

/* One row to e4m3 with the scale largest / 448. */
__device__ void round_row(const preparation &p, int row, float *shared)
{
    int at = threadIdx.x * 8, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool mine = at < p.shape.hidden;
    float v[8] = {}, top = 0.0f;
    if (mine)
        load_8(p, (int64_t)row * p.shape.hidden + at, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        top = fmaxf(top, fabsf(v[i]));
    top = warp_largest(top);
    if (lane == 0)
        shared[warp] = top;
    __syncthreads();
    top = warp_largest(shared[lane]); /* SORT_THREADS / 32 = 32 warps */
    float f = top > 1e-30f ? 448.0f / top : 0.0f;
    if (mine) {
        uint2 codes;
        codes.x = sm90_e4m3_pair(v[0] * f, v[1] * f) | (uint32_t)sm90_e4m3_pair(v[2] * f, v[3] * f) << 16;
        codes.y = sm90_e4m3_pair(v[4] * f, v[5] * f) | (uint32_t)sm90_e4m3_pair(v[6] * f, v[7] * f) << 16;
        *(uint2 *)(p.scratch.x_codes + (int64_t)row * p.shape.hidden + at) = codes;
    }
    if (threadIdx.x == 0)
        p.scratch.x_scale[row] = top * (1.0f / 448.0f);
}

/* Sums over the threads before this one; *total over all. One number per thread and list. */
__device__ int2 exclusive_sum(int2 v, int2 *shared)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int2 s = v;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        int x = __shfl_up_sync(0xFFFFFFFFu, s.x, m), y = __shfl_up_sync(0xFFFFFFFFu, s.y, m);
        if (lane >= m)
            s.x += x, s.y += y;
    }
    if (lane == 31)
        shared[warp] = s;
    __syncthreads();
    int2 before = make_int2(0, 0);
    for (int w = 0; w < warp; w++)
        before.x += shared[w].x, before.y += shared[w].y;
    return make_int2(before.x + s.x - v.x, before.y + s.y - v.y);
}

/* Pairs sorted by expert and cut into token tiles of nearly equal size. The order of an expert's pairs has no meaning. */
__device__ void sort_pairs(const preparation &p, int *next, int2 *shared)
{
    const gpu_moe_shape &s = p.shape;
    int e = threadIdx.x, slots = s.topk + s.shared, routed = p.rows * s.topk;
    next[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < routed; i += SORT_THREADS)
        atomicAdd(&next[__ldcg(p.experts + i)], 1);
    __syncthreads();
    int count = e < s.experts ? next[e] : e == s.experts && s.shared ? p.rows : 0, tiles = (count + p.width - 1) / p.width;
    int2 first = exclusive_sum(make_int2(count, tiles), shared); /* its barrier stands between the reads above and the writes below */
    next[e] = first.x;
    for (int i = 0, at = 0; i < tiles; i++) {
        int part = count / tiles + (i < count % tiles);
        *(int4 *)(p.scratch.tiles + first.y + i) = make_int4(e, first.x + at, part, 0);
        at += part;
    }
    if (e == SORT_THREADS - 1)
        *p.scratch.tile_count = first.y + tiles;
    __syncthreads();
    for (int i = threadIdx.x; i < routed; i += SORT_THREADS)
        p.scratch.pairs[atomicAdd(&next[__ldcg(p.experts + i)], 1)] = i / s.topk * slots + i % s.topk;
    if (s.shared)
        for (int row = threadIdx.x; row < p.rows; row += SORT_THREADS)
            p.scratch.pairs[routed + row] = row * slots + s.topk;
}

/* Block 0 sorts, the others round one row each. */
__global__ void __launch_bounds__(SORT_THREADS) moe_prepare(const __grid_constant__ preparation p)
{
    __shared__ int next[MOST_EXPERTS];
    __shared__ int2 shared[SORT_THREADS / 32];
    sm90_launch_wait();
    sm90_launch_next();
    if (blockIdx.x == 0)
        sort_pairs(p, next, shared);
    else
        round_row(p, blockIdx.x - 1, (float *)shared);
}

/* out = sum over a row's experts in the order of its slots, the shared expert last. */
__global__ void __launch_bounds__(COMBINE_THREADS) moe_combine(const uint16_t *y, const float *routing, float *out, int hidden,
                                                               int topk, int shared)
{
    sm90_launch_wait();
    sm90_launch_next();
    int row = blockIdx.y, at = (blockIdx.x * COMBINE_THREADS + threadIdx.x) * 8;
    if (at >= hidden)
        return;
    const uint16_t *from = y + (int64_t)row * (topk + shared) * hidden + at;
    float sum[8] = {};
#pragma unroll 9
    for (int slot = 0; slot < topk + shared; slot++) {
        uint4 v = __ldcg((const uint4 *)(from + (int64_t)slot * hidden));
        float w = slot < topk ? __ldg(routing + row * topk + slot) : 1.0f;
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum[2 * i] = fmaf(w, __uint_as_float(words[i] << 16), sum[2 * i]);
            sum[2 * i + 1] = fmaf(w, __uint_as_float(words[i] & 0xFFFF0000u), sum[2 * i + 1]);
        }
    }
    float4 *to = (float4 *)(out + (int64_t)row * hidden + at);
    to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
}

/* ---- packing ---- */

/* One warp per row: its largest scale, and the factor at its position. */
__global__ void moe_row_tops(moe_order order, const uint8_t *scales, int64_t rows_total, int rows, int cols, float *row_scales)
{
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32, groups = cols / MOE_GROUP, top = 0;
    if (at >= rows_total)
        return;
    int64_t row = at / rows * rows + moe_row_at(order, (int)(at % rows), rows / 2);
    for (int i = lane; i < groups; i += 32)
        top = max(top, (int)scales[row * groups + i]);
    top = __reduce_max_sync(0xFFFFFFFFu, top);
    if (lane == 0)
        row_scales[at] = scalbnf(1.0f, top - 127 - 6);
}

/* One thread per word of codes; one in eight also writes a scale. */
__global__ void moe_pack_words(moe_order order, const uint8_t *codes, const uint8_t *scales, int64_t words, int rows, int cols,
                               const float *row_scales, uint8_t *packed, unsigned long long *lowered)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= words)
        return;
    int64_t tile = at / 1024;
    int i = (int)(at % 1024), kblocks = cols / MOE_TILE_COLS, tiles = rows / MOE_TILE_ROWS * kblocks, groups = cols / MOE_GROUP;
    int64_t matrix_row = tile / tiles * rows;
    int first_position = (int)(tile % tiles / kblocks) * MOE_TILE_ROWS, first_col = (int)(tile % kblocks) * MOE_TILE_COLS;
    int piece = i / 512, thread = i / 4 % 128, word = i % 4, down;
    int position = first_position + moe_word_position(thread, word), col = first_col + moe_word_column(thread, piece, word);
    int64_t row = matrix_row + moe_row_at(order, position, rows / 2);
    int top = ilogbf(row_scales[matrix_row + position]) + 127 + 6;
    int scale = moe_scale_of(scales[row * groups + col / MOE_GROUP], top, &down);
    uint8_t *to = packed + tile * MOE_TILE_BYTES;
    ((uint32_t *)to)[i] = moe_word_make(codes, cols, row, col, down);
    if (thread % 4 == 0) {
        to[moe_scale_offset(position - first_position, (col - first_col) / MOE_GROUP)] = (uint8_t)scale;
        if (down > 0)
            atomicAdd(lowered, 1ull);
    }
}

template <class... TYPES, class... VALUES>
gpu_status launch(void (*kernel)(TYPES...), dim3 blocks, int threads, gpu_stream stream, VALUES... values)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t l = {};
    l.gridDim = blocks;
    l.blockDim = dim3(threads);
    l.stream = stream;
    l.attrs = &attribute;
    l.numAttrs = 1;
    return cudaLaunchKernelEx(&l, kernel, values...);
}

size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

} // namespace

extern "C" const char *gpu_moe_supports(const gpu_moe_shape *s)
{
    if (s->hidden % 128 != 0 || s->hidden > SORT_THREADS * 8)
        return "the GPU's expert kernels need a hidden size that is a multiple of 128 and at most 8192";
    if (s->inter % 128 != 0 || s->inter > 512)
        return "the GPU's expert kernels need an expert width on this rank that is a multiple of 128 and at most 512; raise --tp";
    if (s->experts + s->shared > MOST_EXPERTS)
        return "the GPU's expert kernels take at most 1024 experts, the shared one included";
    if (s->shared != 0 && s->shared != 1)
        return "the GPU's expert kernels take one shared expert of the width of the others, or none";
    return nullptr;
}

extern "C" size_t gpu_moe_scratch_make(const gpu_moe_shape *s, int rows, void *memory, gpu_moe_scratch *out)
{
    size_t pairs = (size_t)rows * (size_t)(s->topk + s->shared), at = 0;
    size_t tiles = (size_t)(s->experts + s->shared) + pairs / 8 + 1;
    size_t bytes[] = {(size_t)rows * s->hidden,     rows * sizeof(float), pairs * sizeof(int32_t),
                      tiles * sizeof(gpu_moe_tile), sizeof(int32_t),      pairs * s->inter * 2, pairs * s->hidden * 2};
    uint8_t *places[7];
    for (int i = 0; i < 7; i++) {
        places[i] = (uint8_t *)memory + at;
        at += padded(bytes[i]);
    }
    if (out) {
        out->x_codes = places[0];
        out->x_scale = (float *)places[1];
        out->pairs = (int32_t *)places[2];
        out->tiles = (gpu_moe_tile *)places[3];
        out->tile_count = (int32_t *)places[4];
        out->act = (uint16_t *)places[5];
        out->y = (uint16_t *)places[6];
    }
    return at;
}

extern "C" gpu_status gpu_moe_pack(int gate_up, const uint8_t *codes, const uint8_t *scales, int matrices, int rows, int cols,
                                   uint8_t *packed, float *row_scales, unsigned long long *lowered, gpu_stream stream)
{
    moe_order order = gate_up ? MOE_GATE_UP : MOE_DOWN;
    int64_t all_rows = (int64_t)matrices * rows, words = all_rows * cols / 8;
    moe_row_tops<<<(unsigned)((all_rows * 32 + 255) / 256), 256, 0, stream>>>(order, scales, all_rows, rows, cols, row_scales);
    moe_pack_words<<<(unsigned)((words + 255) / 256), 256, 0, stream>>>(order, codes, scales, words, rows, cols, row_scales, packed,
                                                                        lowered);
    return cudaGetLastError();
}

extern "C" int gpu_moe_variant_for(const gpu_moe_shape *s, int rows)
{
    int each = rows * s->topk / s->experts; /* rows of an expert, on average */
    if (rows <= 8)
        return 1;
    return each <= 6 ? 3 : each <= 16 ? 4 : each <= 48 ? 5 : 6;
}

extern "C" gpu_status gpu_moe_run(const gpu_moe_args *a, int stages, gpu_stream stream)
{
    const gpu_moe_shape *s = &a->shape;
    int variant = a->variant >= 0 ? a->variant : gpu_moe_variant_for(s, a->rows);
    gpu_status status = GPU_OK;
    if (stages & GPU_MOE_PREPARE) {
        preparation p = {*s, a->scratch, a->rows, gpu_moe_variant_width(variant), a->x, a->x_type, a->experts};
        status = launch(moe_prepare, dim3(1 + a->rows), SORT_THREADS, stream, p);
    }
    if (status == GPU_OK && stages & GPU_MOE_GATE_UP)
        status = gpu_moe_sm90_run(a, 1, variant, stream);
    if (status == GPU_OK && stages & GPU_MOE_DOWN)
        status = gpu_moe_sm90_run(a, 0, variant, stream);
    if (status == GPU_OK && stages & GPU_MOE_COMBINE)
        status = launch(moe_combine, dim3((s->hidden / 8 + COMBINE_THREADS - 1) / COMBINE_THREADS, a->rows), COMBINE_THREADS, stream,
                        (const uint16_t *)a->scratch.y, a->routing, a->out, s->hidden, s->topk, s->shared);
    return status;
}
