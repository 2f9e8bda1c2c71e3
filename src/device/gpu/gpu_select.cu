/* The positions with the largest scores, exactly: one block per row finds the k-th largest byte by byte (four counting passes over numbers
 * that are ordered like the scores), then writes positions in ascending order; of equal scores the lower positions win. Counting is in
 * whole numbers, so the result does not depend on the order of threads. */
#include "device/gpu/gpu_math.h"

enum { THREADS = 512, WARPS = THREADS / GPU_LANES, BINS = 256 };

struct select_state {
    int bins[BINS];
    int byte, left;      /* the byte that was found, and how many of its numbers are still wanted */
    int taken[WARPS], equal[WARPS];
};

/* How many threads before this one have the flag; total: in the whole block. */
GPU_DEVICE int rank_in_block(bool flag, int *counts, int *total)
{
    uint32_t mask = gpu_ballot(flag);
    int warp = (int)threadIdx.x / GPU_LANES, before = gpu_ones(mask & ((1u << gpu_lane()) - 1u));
    if (gpu_lane() == 0)
        counts[warp] = gpu_ones(mask);
    gpu_sync();
    *total = 0;
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? counts[i] : 0;
        *total += counts[i];
    }
    gpu_sync();
    return before;
}

/* The k-th largest key; *equal: how many numbers of that value belong to the k largest. */
GPU_DEVICE uint32_t kth_largest(const float *scores, int n, int k, select_state *state, int *equal)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < BINS; i += THREADS)
            state->bins[i] = 0;
        gpu_sync();
        for (int i = (int)threadIdx.x; i < n; i += THREADS) {
            uint32_t key = gpu_order_key(scores[i]);
            if ((key & mask) == prefix)
                gpu_count(&state->bins[key >> shift & 255u], 1);
        }
        gpu_sync();
        if (threadIdx.x == 0) {
            int byte = 255;
            for (; byte > 0 && state->bins[byte] < k; byte--)
                k -= state->bins[byte];
            state->byte = byte;
            state->left = k;
        }
        gpu_sync();
        prefix |= (uint32_t)state->byte << shift;
        mask |= 255u << shift;
        k = state->left;
        gpu_sync();
    }
    *equal = k;
    return prefix;
}

static __global__ void __launch_bounds__(THREADS) select_kernel(gpu_select_args a)
{
    __shared__ select_state state;
    int row = a.first_row + (int)blockIdx.x;
    if (row >= a.step->rows)
        return;
    int seen = a.step->positions[row] + 1, written = 0, equal_left, total;
    int32_t *out = a.selected + (int64_t)row * a.topk;
    if (threadIdx.x == 0)
        a.selected_count[row] = gpu_least(seen, a.topk);
    if (seen <= a.topk) {
        for (int i = (int)threadIdx.x; i < seen; i += THREADS)
            out[i] = i;
        return;
    }
    const float *scores = a.scores + (int64_t)blockIdx.x * a.context;
    uint32_t threshold = kth_largest(scores, seen, a.topk, &state, &equal_left);
    for (int first = 0; first < seen; first += THREADS) {
        int i = first + (int)threadIdx.x;
        uint32_t key = i < seen ? gpu_order_key(scores[i]) : 0;
        bool is_equal = i < seen && key == threshold;
        int before = rank_in_block(is_equal, state.equal, &total);
        bool take = (i < seen && key > threshold) || (is_equal && before < equal_left);
        equal_left = equal_left > total ? equal_left - total : 0;
        int at = written + rank_in_block(take, state.taken, &total);
        if (take)
            out[at] = i;
        written += total;
    }
}

#if GPU_HOST_CODE
void gpu_select(const gpu_select_args *a, gpu_stream s)
{
    GPU_LAUNCH(select_kernel, dim3((unsigned)a->score_rows), dim3(THREADS), 0, s, *a);
}
#endif
