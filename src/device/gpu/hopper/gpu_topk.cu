/* Exact selection of the topk largest scores of a row, one block per row.
 *
 * The order of positions is that of one 64-bit number each: the score's bits as an unsigned number of the same order, then the position,
 * lower ones larger. The topk-th largest of these numbers is found, and every position whose number is not smaller is taken:
 *
 *     1. buckets of equal width between the smallest and the largest score are counted; rounding keeps order, so the bucket with the
 *        topk-th largest has few others in it
 *     2. where it has too many (scores that are crowded or not finite), bits of the number are fixed from the top, 11 by 11
 *     3. each number of the bucket counts the larger ones
 *
 * Each warp then writes its part of the positions, in order. */
#include "device/gpu/hopper/gpu_index.h"

enum { SELECT_THREADS = 1024, SELECT_WARPS = SELECT_THREADS / 32, BINS = 2048, BIN_BITS = 11, LIST = 1024, MOST_SHARED = 160 * 1024 };
enum { MOST_QUADS = 8, QUAD_POSITIONS = SELECT_THREADS * 4 };

struct select_shared {
    int bins[BINS];
    unsigned long long list[LIST];
    float least[SELECT_WARPS], most[SELECT_WARPS];
    int totals[SELECT_WARPS];
    int parts[MOST_QUADS * SELECT_WARPS];
    int listed, bin, above, inside;
    unsigned long long threshold;
};

/* Unsigned numbers in the order of floats; NaN is below everything, -0 equals +0. */
static __device__ __forceinline__ uint32_t order_key(float f)
{
    uint32_t u = __float_as_uint(f);
    if (f != f)
        return 0;
    if (u == 0x80000000u)
        u = 0;
    return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ unsigned long long order_number(float f, int position)
{
    return (unsigned long long)order_key(f) << 32 | (0xffffffffu - (uint32_t)position);
}

/* Buckets by value. */
struct by_width {
    float least, scale;
    __device__ __forceinline__ int operator()(float f, int) const
    {
        return (int)fminf((f - least) * scale, (float)(BINS - 1));
    }
};

/* Buckets by the BIN_BITS bits at `shift`, for numbers that begin with `prefix`; others are in none. */
struct by_bits {
    unsigned long long prefix;
    int shift;
    __device__ __forceinline__ int operator()(float f, int position) const
    {
        unsigned long long number = order_number(f, position) >> shift;
        return number >> BIN_BITS == prefix ? (int)(number & (BINS - 1)) : -1;
    }
};

/* Where a thread's scores are: in memory of either kind, or in its registers. */
struct in_memory {
    const float *scores;
    int n;
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS)
            f(scores[i], i);
    }
};

template <int QUADS> struct in_registers {
    float v[QUADS * 4];
    int n;
    /* of element e */
    static __device__ __forceinline__ int position(int e)
    {
        return (e / 4 * SELECT_THREADS + (int)threadIdx.x) * 4 + e % 4;
    }
    template <class F> __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int e = 0; e < QUADS * 4; e++)
            if (position(e) < n)
                f(v[e], position(e));
    }
};

/* Counts, and finds the bucket with the k-th largest: s->bin, s->above in larger buckets, s->inside in it. */
template <class V, class B> static __device__ __forceinline__ void count_buckets(select_shared *s, const V &scores, int k, const B &bucket)
{
    int thread = (int)threadIdx.x, lane = thread & 31, warp = thread / 32;
    for (int i = thread; i < BINS; i += SELECT_THREADS)
        s->bins[i] = 0;
    __syncthreads();
    scores.each([&](float score, int position) {
        int b = bucket(score, position);
        if (b >= 0)
            atomicAdd(&s->bins[b], 1);
    });
    __syncthreads();
    int high = BINS - 1 - 2 * thread, first = s->bins[high], both = first + s->bins[high - 1], sum = both;
    for (int step = 1; step < 32; step *= 2) {
        int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step)
            sum += other;
    }
    if (lane == 31)
        s->totals[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        int total = s->totals[lane], before = total;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(0xffffffffu, before, step);
            if (lane >= step)
                before += other;
        }
        s->totals[lane] = before - total;
    }
    __syncthreads();
    int above = s->totals[warp] + sum - both;
    if (above < k && k <= above + first) {
        s->bin = high;
        s->above = above;
        s->inside = first;
    } else if (above + first < k && k <= above + both) {
        s->bin = high - 1;
        s->above = above + first;
        s->inside = both - first;
    }
    __syncthreads();
}

/* The number with `rank` larger ones among those of bucket s->bin, to s->threshold. */
template <class V, class B> static __device__ __forceinline__ void rank_bucket(select_shared *s, const V &scores, int rank, const B &bucket)
{
    int thread = (int)threadIdx.x, bin = s->bin;
    if (thread == 0)
        s->listed = 0;
    __syncthreads();
    scores.each([&](float score, int position) {
        if (bucket(score, position) == bin)
            s->list[atomicAdd(&s->listed, 1)] = order_number(score, position);
    });
    __syncthreads();
    int count = s->listed;
    for (int i = thread; i < count; i += SELECT_THREADS) {
        unsigned long long mine = s->list[i];
        int larger = 0;
        for (int j = 0; j < count; j++)
            larger += s->list[j] > mine;
        if (larger == rank)
            s->threshold = mine;
    }
    __syncthreads();
}

/* The buckets between the smallest and the largest score of all threads. */
static __device__ __forceinline__ by_width range_of(select_shared *s, float least, float most)
{
    int thread = (int)threadIdx.x;
    for (int step = 1; step < 32; step *= 2) {
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, step));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    if (thread % 32 == 0) {
        s->least[thread / 32] = least;
        s->most[thread / 32] = most;
    }
    __syncthreads();
    least = s->least[thread % 32];
    most = s->most[thread % 32];
    for (int step = 1; step < 32; step *= 2) {
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, step));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    by_width range = {least, (float)(BINS - 1) / (most - least)};
    return range;
}

template <class V> static __device__ __forceinline__ by_width range_of_scores(select_shared *s, const V &scores)
{
    float least = INFINITY, most = -INFINITY;
    scores.each([&](float score, int) {
        least = fminf(least, score != score ? -INFINITY : score);
        most = fmaxf(most, score);
    });
    return range_of(s, least, most);
}

template <class V> static __device__ __forceinline__ unsigned long long find_threshold(select_shared *s, const V &scores, int k)
{
    by_width range = range_of_scores(s, scores);
    if (isfinite(range.least) && isfinite(range.scale) && range.scale > 0.0f) {
        count_buckets(s, scores, k, range);
        if (s->inside <= LIST) {
            rank_bucket(s, scores, k - s->above - 1, range);
            return s->threshold;
        }
    }
    by_bits bits = {0, 64 - BIN_BITS};
    int left = k;
    for (;;) {
        count_buckets(s, scores, left, bits);
        left -= s->above;
        if (s->inside <= LIST) {
            rank_bucket(s, scores, left - 1, bits);
            return s->threshold;
        }
        bits.prefix = bits.prefix << BIN_BITS | (unsigned long long)s->bin;
        bits.shift -= BIN_BITS;
        __syncthreads();
    }
}

/* Positions whose number is not below the threshold, in order. */
static __device__ void write_selected(select_shared *s, const float *scores, int n, unsigned long long threshold, int32_t *out)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    int part = (n + SELECT_THREADS - 1) / SELECT_THREADS * 32, first = warp * part, last = min(first + part, n), count = 0;
    for (int i = first + lane; i < last; i += 32)
        count += order_number(scores[i], i) >= threshold;
    count = __reduce_add_sync(0xffffffffu, count);
    if (lane == 0)
        s->totals[warp] = count;
    __syncthreads();
    int before = __reduce_add_sync(0xffffffffu, lane < warp ? s->totals[lane] : 0);
    for (int i = first; i < last; i += 32) {
        bool take = i + lane < last && order_number(scores[i + lane], i + lane) >= threshold;
        uint32_t taken = __ballot_sync(0xffffffffu, take);
        if (take)
            out[before + __popc(taken & ((1u << lane) - 1u))] = i + lane;
        before += __popc(taken);
    }
}

/* The same from registers: parts of 32 threads and 4 positions each, one behind the other. */
template <int QUADS>
static __device__ __forceinline__ void write_held(select_shared *s, const in_registers<QUADS> &scores, unsigned long long threshold,
                                                  int32_t *out)
{
    int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x / 32;
    uint32_t taken = 0, below = (1u << lane) - 1u; /* one bit per element of this thread */
    int before[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        int total = 0;
        before[q] = 0;
#pragma unroll
        for (int e = 4 * q; e < 4 * q + 4; e++) {
            bool take = scores.position(e) < scores.n && order_number(scores.v[e], scores.position(e)) >= threshold;
            uint32_t all = __ballot_sync(0xffffffffu, take);
            taken |= (uint32_t)take << e;
            before[q] += __popc(all & below);
            total += __popc(all);
        }
        if (lane == 0)
            s->parts[q * SELECT_WARPS + warp] = total;
    }
    __syncthreads();
    if (warp == 0) {
        int sum = 0;
        for (int i = 0; i < QUADS; i++)
            sum += s->parts[lane * QUADS + i];
        int first = sum;
        for (int step = 1; step < 32; step *= 2) {
            int other = __shfl_up_sync(0xffffffffu, first, step);
            if (lane >= step)
                first += other;
        }
        first -= sum;
        for (int i = 0; i < QUADS; i++) {
            int part = s->parts[lane * QUADS + i];
            s->parts[lane * QUADS + i] = first;
            first += part;
        }
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        int at = s->parts[q * SELECT_WARPS + warp] + before[q];
#pragma unroll
        for (int e = 4 * q; e < 4 * q + 4; e++)
            if (taken >> e & 1u)
                out[at++] = scores.position(e);
    }
}

/* Whether the row sees no more than topk positions; then all are taken. */
static __device__ __forceinline__ bool select_all(const gpu_select_args &a, int row, int n, int32_t *out)
{
    if (threadIdx.x == 0)
        a.selected_count[row] = min(n, a.topk);
    if (n > a.topk)
        return false;
    for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS)
        out[i] = i;
    return true;
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_shared_rows(const __grid_constant__ gpu_select_args a, int room)
{
    extern __shared__ float copy[];
    __shared__ select_shared s;
    int row = a.first_row + (int)blockIdx.x;
    if (row >= a.step->rows)
        return;
    int n = a.step->positions[row] + 1;
    int32_t *out = a.selected + (int64_t)row * a.topk;
    if (select_all(a, row, n, out))
        return;
    in_memory scores = {a.scores + (int64_t)blockIdx.x * a.context, n};
    if (n <= room) {
#pragma unroll 8
        for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS)
            copy[i] = __ldcg(scores.scores + i);
        scores.scores = copy;
        __syncthreads();
    }
    write_selected(&s, scores.scores, n, find_threshold(&s, scores, a.topk), out);
}

template <int QUADS> static __global__ void __launch_bounds__(SELECT_THREADS, 1) select_held_rows(const __grid_constant__ gpu_select_args a)
{
    __shared__ select_shared s;
    in_registers<QUADS> scores;
    const float4 *from = (const float4 *)(a.scores + (int64_t)blockIdx.x * a.context);
#pragma unroll
    for (int q = 0; q < QUADS; q++) /* before it is known how many there are: what lies behind the row's last position is not looked at */
        if (scores.position(4 * q) < a.context)
            *(float4 *)(scores.v + 4 * q) = __ldcg(from + q * SELECT_THREADS + (int)threadIdx.x);
    int row = a.first_row + (int)blockIdx.x;
    if (row >= a.step->rows)
        return;
    scores.n = a.step->positions[row] + 1;
    int32_t *out = a.selected + (int64_t)row * a.topk;
    if (!select_all(a, row, scores.n, out))
        write_held(&s, scores, find_threshold(&s, scores, a.topk), out);
}

void gpu_select_sm90(const gpu_select_args *a, gpu_select_kernel kernel, gpu_stream s)
{
    int bytes = a->context * 4 <= MOST_SHARED ? (int)a->context * 4 : MOST_SHARED;
    bool held = kernel == GPU_SELECT_HELD && a->context % 4 == 0;
    if (held && a->context <= 4 * QUAD_POSITIONS)
        select_held_rows<4><<<a->score_rows, SELECT_THREADS, 0, s>>>(*a);
    else if (held && a->context <= 5 * QUAD_POSITIONS)
        select_held_rows<5><<<a->score_rows, SELECT_THREADS, 0, s>>>(*a);
    else if (held && a->context <= MOST_QUADS * QUAD_POSITIONS)
        select_held_rows<MOST_QUADS><<<a->score_rows, SELECT_THREADS, 0, s>>>(*a);
    else {
        cudaFuncSetAttribute(select_shared_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED);
        select_shared_rows<<<a->score_rows, SELECT_THREADS, bytes, s>>>(*a, bytes / 4);
    }
}
