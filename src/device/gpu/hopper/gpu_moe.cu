/* What surrounds the two products of the experts: rounding of rows and sorting of (row, expert) pairs, the sum over a row's experts,
 * packing of weights, and the launcher. */
#include "device/gpu/hopper/gpu_moe.h"
#include "device/gpu/hopper/gpu_moe_pack.h"
#include "device/gpu/hopper/sm90.h"

namespace {

enum {
    SORT_THREADS = 1024,
    ROUND_THREADS = SORT_THREADS / 2,
    COMBINE_THREADS = 256,
    MOST_EXPERTS = SORT_THREADS,
    MOST_SLOTS = 32,
    ONE_LAUNCH_ROWS = 128 /* up to here every block finds the places of its row by itself, and one launch does all */
};

struct preparation {
    gpu_moe_shape shape;
    gpu_moe_scratch scratch;
    int rows, width; /* most rows of a token tile */
    const void *x;
    gpu_moe_type x_type;
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
__device__ __forceinline__ void load_8(const preparation &p, int64_t at, float *v)
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

/* Where a pair lies: its token tile begins at pair `first` and has `count` rows, of which it is number `row`. */
struct place {
    int first, count, row;
};

/* The tile of an expert's pair number `rank`, when `count` pairs from `first` are cut into tiles of at most `width`, as equal as can be:
 * the first count % tiles tiles have one row more. */
__device__ __forceinline__ place place_of(int first, int count, int width, int rank)
{
    int tiles = (count + width - 1) / width, part = count / tiles, longer = count % tiles, edge = longer * (part + 1);
    int tile = rank < edge ? rank / (part + 1) : longer + (rank - edge) / part;
    int begin = tile < longer ? tile * (part + 1) : edge + (tile - longer) * part;
    place at = {first + begin, tile < longer ? part + 1 : part, rank - begin};
    return at;
}

/* One row to e4m3 with the scale largest / 448, copied into the token tiles of its experts. A tile is stored as the products read it:
 * blocks of 128 columns, in each the tile's rows of 128 bytes, swizzled. A thread has COUNT values (8 or 16) from column COUNT * thread. */
template <int COUNT>
__device__ __forceinline__ void round_row(const preparation &p, int row, const float (&v)[COUNT], const place *places, float *shared)
{
    int at = threadIdx.x * COUNT, warp = threadIdx.x / 32, lane = threadIdx.x % 32, slots = p.shape.topk + p.shape.shared;
    float top = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        top = fmaxf(top, fabsf(v[i]));
    top = warp_largest(top);
    if (lane == 0)
        shared[warp] = top;
    __syncthreads();
    top = warp_largest(lane < (int)blockDim.x / 32 ? shared[lane] : 0.0f);
    float f = top > 1e-30f ? 448.0f / top : 0.0f;
    if (threadIdx.x == 0)
        p.scratch.x_scale[row] = top * (1.0f / 448.0f);
    if (at >= p.shape.hidden)
        return;
    uint32_t codes[COUNT / 4];
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++)
        codes[i] = sm90_e4m3_pair(v[4 * i] * f, v[4 * i + 1] * f) | (uint32_t)sm90_e4m3_pair(v[4 * i + 2] * f, v[4 * i + 3] * f) << 16;
    for (int slot = 0; slot < slots; slot++) {
        place t = places[slot];
        uint8_t *tile = p.scratch.x_codes + (int64_t)t.first * p.shape.hidden + (at / 128 * t.count + t.row) * 128;
        uint8_t *to = tile + ((at % 128 / 16 ^ t.row % 8) << 4) + at % 16;
        if (COUNT == 16)
            *(uint4 *)to = make_uint4(codes[0], codes[1], codes[COUNT / 8], codes[COUNT / 4 - 1]);
        else
            *(uint2 *)to = make_uint2(codes[0], codes[1]);
    }
}

/* Sums of x and y over the threads before this one. */
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
    int2 w = shared[lane], before = make_int2(lane < warp ? w.x : 0, lane < warp ? w.y : 0);
    before.x = __reduce_add_sync(0xFFFFFFFFu, before.x);
    before.y = __reduce_add_sync(0xFFFFFFFFu, before.y);
    return make_int2(before.x + s.x - v.x, before.y + s.y - v.y);
}

/* Pairs of each expert: thread e has those of expert e. */
__device__ __forceinline__ int count_pairs(const preparation &p, int *counts)
{
    int e = threadIdx.x, pairs = p.rows * p.shape.topk;
    counts[e] = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = threadIdx.x; i < pairs; i += SORT_THREADS)
        atomicAdd(&counts[__ldcg(p.experts + i)], 1);
    __syncthreads();
    return e < p.shape.experts ? counts[e] : e == p.shape.experts && p.shape.shared ? p.rows : 0;
}

__device__ __forceinline__ void write_tiles(const preparation &p, int e, int first_pair, int count, int first_tile, int tiles)
{
    for (int i = 0, at = 0; i < tiles; i++) {
        int part = count / tiles + (i < count % tiles);
        *(int4 *)(p.scratch.tiles + first_tile + i) = make_int4(e, first_pair + at, part, 0);
        at += part;
    }
    if (e == SORT_THREADS - 1)
        *p.scratch.tile_count = first_tile + tiles;
}

/* Few rows: one block per row. Each counts all pairs, and finds the places of its own. */
__global__ void __launch_bounds__(SORT_THREADS) moe_prepare(const __grid_constant__ preparation p)
{
    __shared__ int counts[MOST_EXPERTS], firsts[MOST_EXPERTS], ranks[MOST_EXPERTS];
    __shared__ int2 sums[SORT_THREADS / 32];
    __shared__ float tops[SORT_THREADS / 32];
    __shared__ place places[MOST_SLOTS];
    const gpu_moe_shape &s = p.shape;
    int e = threadIdx.x, row = blockIdx.x, slots = s.topk + s.shared;
    counts[e] = 0;
    ranks[e] = 0;
    __syncthreads();
    sm90_launch_wait();
    sm90_launch_next();
    float v[8] = {};
    if (threadIdx.x * 8 < s.hidden)
        load_8(p, (int64_t)row * s.hidden + threadIdx.x * 8, v);
    int mine = e < s.topk ? __ldcg(p.experts + row * s.topk + e) : s.experts;
#pragma unroll 2
    for (int i = threadIdx.x; i < p.rows * s.topk; i += SORT_THREADS) {
        int expert = __ldcg(p.experts + i);
        atomicAdd(&counts[expert], 1);
        if (i < row * s.topk)
            atomicAdd(&ranks[expert], 1); /* pairs of the rows before this one */
    }
    __syncthreads();
    int count = e < s.experts ? counts[e] : e == s.experts && s.shared ? p.rows : 0, tiles = (count + p.width - 1) / p.width;
    int2 first = exclusive_sum(make_int2(count, tiles), sums);
    counts[e] = count;
    firsts[e] = first.x;
    if (row == 0)
        write_tiles(p, e, first.x, count, first.y, tiles);
    __syncthreads();
    if (e < slots) {
        int rank = e < s.topk ? ranks[mine] : row;
        places[e] = place_of(firsts[mine], counts[mine], p.width, rank);
        p.scratch.pairs[firsts[mine] + rank] = row * slots + e;
    }
    __syncthreads();
    round_row<8>(p, row, v, places, tops);
}

/* Many rows: one block counts, then one block per row finds places. The order of an expert's pairs has no meaning. */
__global__ void __launch_bounds__(SORT_THREADS) moe_count(const __grid_constant__ preparation p)
{
    __shared__ int counts[MOST_EXPERTS];
    __shared__ int2 sums[SORT_THREADS / 32];
    int e = threadIdx.x;
    sm90_launch_wait();
    sm90_launch_next();
    int count = count_pairs(p, counts), tiles = (count + p.width - 1) / p.width;
    int2 first = exclusive_sum(make_int2(count, tiles), sums);
    p.scratch.ranges[e] = make_int4(first.x, count, 0, 0);
    write_tiles(p, e, first.x, count, first.y, tiles);
}

__global__ void __launch_bounds__(ROUND_THREADS) moe_round(const __grid_constant__ preparation p)
{
    __shared__ float tops[ROUND_THREADS / 32];
    __shared__ place places[MOST_SLOTS];
    const gpu_moe_shape &s = p.shape;
    int row = blockIdx.x, slot = threadIdx.x, slots = s.topk + s.shared;
    float v[16] = {};
    if (threadIdx.x * 16 < s.hidden) { /* x was complete before moe_count began */
        load_8(p, (int64_t)row * s.hidden + threadIdx.x * 16, v);
        load_8(p, (int64_t)row * s.hidden + threadIdx.x * 16 + 8, v + 8);
    }
    sm90_launch_wait();
    sm90_launch_next();
    if (slot < slots) {
        int expert = slot < s.topk ? __ldcg(p.experts + row * s.topk + slot) : s.experts;
        int4 range = __ldcg(p.scratch.ranges + expert);
        int rank = slot < s.topk ? atomicAdd(&p.scratch.ranges[expert].z, 1) : row;
        places[slot] = place_of(range.x, range.y, p.width, rank);
        p.scratch.pairs[range.x + rank] = row * slots + slot;
    }
    round_row<16>(p, row, v, places, tops); /* its barrier makes places visible */
}

/* out = sum over a row's experts in the order of its slots, the shared expert last. */
__global__ void __launch_bounds__(COMBINE_THREADS) moe_combine(const uint16_t *y, const float *routing, void *out, gpu_moe_type type,
                                                               int hidden, int topk, int shared)
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
    if (type == GPU_MOE_F32) {
        float4 *to = (float4 *)((float *)out + (int64_t)row * hidden + at);
        to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    } else {
        *(uint4 *)((uint16_t *)out + (int64_t)row * hidden + at) =
            make_uint4(sm90_bf16_pair(sum[0], sum[1]), sm90_bf16_pair(sum[2], sum[3]), sm90_bf16_pair(sum[4], sum[5]),
                       sm90_bf16_pair(sum[6], sum[7]));
    }
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
    if (s->topk + s->shared > MOST_SLOTS)
        return "the GPU's expert kernels take at most 31 experts per token";
    if (s->shared != 0 && s->shared != 1)
        return "the GPU's expert kernels take one shared expert of the width of the others, or none";
    return nullptr;
}

extern "C" size_t gpu_moe_scratch_make(const gpu_moe_shape *s, int rows, void *memory, gpu_moe_scratch *out)
{
    size_t pairs = (size_t)rows * (size_t)(s->topk + s->shared), at = 0;
    size_t tiles = (size_t)(s->experts + s->shared) + pairs / 8 + 1;
    size_t bytes[] = {pairs * s->hidden * 2,        rows * sizeof(float), pairs * sizeof(int32_t), MOST_EXPERTS * sizeof(int4),
                      tiles * sizeof(gpu_moe_tile), sizeof(int32_t),      pairs * s->inter * 2};
    uint8_t *places[7];
    for (int i = 0; i < 7; i++) {
        places[i] = (uint8_t *)memory + at;
        at += padded(bytes[i]);
    }
    if (out) {
        out->x_codes = places[0];
        out->y = (uint16_t *)places[0];
        out->x_scale = (float *)places[1];
        out->pairs = (int32_t *)places[2];
        out->ranges = (int4 *)places[3];
        out->tiles = (gpu_moe_tile *)places[4];
        out->tile_count = (int32_t *)places[5];
        out->act = (uint16_t *)places[6];
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

extern "C" gpu_status gpu_moe_init(void)
{
    gpu_status status = gpu_moe_sm90_init();
    return status == GPU_OK ? gpu_moe_row_init() : status;
}

extern "C" int gpu_moe_variant_for(const gpu_moe_shape *s, int rows)
{
    if (rows == 1 && gpu_moe_row_fits(s))
        return GPU_MOE_ROW;
    int each = rows * s->topk / s->experts; /* rows of an expert, on average */
    int variant = rows <= 16 ? 0 : each <= 4 ? 1 : each <= 16 ? 2 : each <= 36 ? 3 : each <= 56 ? 4 : each <= 80 ? 5 : 6;
    while (!gpu_moe_variant_fits(variant, s))
        variant--;
    return variant;
}

extern "C" gpu_status gpu_moe_run(const gpu_moe_args *a, int stages, gpu_stream stream)
{
    const gpu_moe_shape *s = &a->shape;
    int variant = a->variant >= 0 ? a->variant : gpu_moe_variant_for(s, a->rows);
    if ((int64_t)a->rows * (s->topk + s->shared) * s->hidden > INT32_MAX)
        return cudaErrorInvalidValue; /* the kernels index y with 32 bits: 38,000 rows of GLM-5.2 */
    if (variant == GPU_MOE_ROW)
        return gpu_moe_row_run(a, stages, stream);
    gpu_status status = GPU_OK;
    if (stages & GPU_MOE_PREPARE) {
        preparation p = {*s, a->scratch, a->rows, gpu_moe_variant_width(variant), a->x, a->x_type, a->experts};
        if (a->rows <= ONE_LAUNCH_ROWS)
            status = launch(moe_prepare, dim3(a->rows), SORT_THREADS, stream, p);
        else
            status = launch(moe_count, dim3(1), SORT_THREADS, stream, p);
        if (status == GPU_OK && a->rows > ONE_LAUNCH_ROWS)
            status = launch(moe_round, dim3(a->rows), (s->hidden / 16 + 31) / 32 * 32, stream, p);
    }
    if (status == GPU_OK && stages & GPU_MOE_GATE_UP)
        status = gpu_moe_sm90_run(a, 1, variant, stream);
    if (status == GPU_OK && stages & GPU_MOE_DOWN)
        status = gpu_moe_sm90_run(a, 0, variant, stream);
    if (status == GPU_OK && stages & GPU_MOE_COMBINE)
        status = launch(moe_combine, dim3((s->hidden / 8 + COMBINE_THREADS - 1) / COMBINE_THREADS, a->rows), COMBINE_THREADS, stream,
                        (const uint16_t *)a->scratch.y, a->routing, a->out, a->out_type, s->hidden, s->topk, s->shared);
    return status;
}
