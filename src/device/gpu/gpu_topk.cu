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
#include "device/gpu/gpu_index.h"

enum { SELECT_THREADS = 1024, SELECT_WARPS = SELECT_THREADS / 32, BINS = 2048, BIN_BITS = 11, LIST = 1024, MOST_SHARED = 160 * 1024 };

struct select_shared {
    int bins[BINS];
    unsigned long long list[LIST];
    float least[SELECT_WARPS], most[SELECT_WARPS];
    int totals[SELECT_WARPS + 1];
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

/* Counts, and finds the bucket with the k-th largest: s->bin, s->above in larger buckets, s->inside in it. */
template <class B> static __device__ void count_buckets(select_shared *s, const float *scores, int n, int k, const B &bucket)
{
    int thread = (int)threadIdx.x, lane = thread & 31, warp = thread / 32;
    for (int i = thread; i < BINS; i += SELECT_THREADS)
        s->bins[i] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += SELECT_THREADS) {
        int b = bucket(scores[i], i);
        if (b >= 0)
            atomicAdd(&s->bins[b], 1);
    }
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
template <class B> static __device__ void rank_bucket(select_shared *s, const float *scores, int n, int rank, const B &bucket)
{
    int thread = (int)threadIdx.x, bin = s->bin;
    if (thread == 0)
        s->listed = 0;
    __syncthreads();
    for (int i = thread; i < n; i += SELECT_THREADS)
        if (bucket(scores[i], i) == bin)
            s->list[atomicAdd(&s->listed, 1)] = order_number(scores[i], i);
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

/* Copies the scores to shared memory where there is room, and finds their range. */
static __device__ const float *load_scores(select_shared *s, const float *scores, int n, float *copy, int room, by_width *range)
{
    int thread = (int)threadIdx.x;
    float least = INFINITY, most = -INFINITY;
    bool keep = n <= room;
#pragma unroll 4
    for (int i = thread; i < n; i += SELECT_THREADS) {
        float f = __ldcg(scores + i);
        if (keep)
            copy[i] = f;
        least = fminf(least, f != f ? -INFINITY : f);
        most = fmaxf(most, f);
    }
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
    range->least = least;
    range->scale = (float)(BINS - 1) / (most - least);
    return keep ? copy : scores;
}

static __device__ unsigned long long find_threshold(select_shared *s, const float *scores, int n, int k, const by_width &range)
{
    if (isfinite(range.least) && isfinite(range.scale) && range.scale > 0.0f) {
        count_buckets(s, scores, n, k, range);
        if (s->inside <= LIST) {
            rank_bucket(s, scores, n, k - s->above - 1, range);
            return s->threshold;
        }
    }
    by_bits bits = {0, 64 - BIN_BITS};
    int left = k;
    for (;;) {
        count_buckets(s, scores, n, left, bits);
        left -= s->above;
        if (s->inside <= LIST) {
            rank_bucket(s, scores, n, left - 1, bits);
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

static __global__ void __launch_bounds__(SELECT_THREADS) select_rows(const __grid_constant__ gpu_select_args a, int room)
{
    extern __shared__ float copy[];
    __shared__ select_shared s;
    int row = a.first_row + (int)blockIdx.x;
    if (row >= a.step->rows)
        return;
    int n = a.step->positions[row] + 1;
    int32_t *out = a.selected + (int64_t)row * a.topk;
    if (threadIdx.x == 0)
        a.selected_count[row] = min(n, a.topk);
    if (n <= a.topk) {
        for (int i = (int)threadIdx.x; i < n; i += SELECT_THREADS)
            out[i] = i;
        return;
    }
    by_width range;
    const float *scores = load_scores(&s, a.scores + (int64_t)blockIdx.x * a.context, n, copy, room, &range);
    __syncthreads();
    write_selected(&s, scores, n, find_threshold(&s, scores, n, a.topk, range), out);
}

void gpu_select_sm90(const gpu_select_args *a, gpu_stream s)
{
    int bytes = a->context * 4 <= MOST_SHARED ? (int)a->context * 4 : MOST_SHARED;
    cudaFuncSetAttribute(select_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED);
    select_rows<<<a->score_rows, SELECT_THREADS, bytes, s>>>(*a, bytes / 4);
}
