/* The router: which experts a row goes to, and the pairs (row, expert) sorted by expert. */
#include "device/gpu/gpu_math.h"

/* ---- choice: one warp per row ---- */

/* The larger choice, of equals the lower index; 0 when there is none. */
GPU_DEVICE uint64_t choice_key(float value, int index)
{
    return (uint64_t)gpu_order_key(value) << 32 | (uint32_t)(0x7FFFFFFF - index);
}

GPU_DEVICE int choice_index(uint64_t key)
{
    return 0x7FFFFFFF - (int)(uint32_t)key;
}

/* Groups that are not among the best lose all their experts: a group's score is the sum of its two best. Lane 0 works; there are few. */
GPU_DEVICE void drop_weak_groups(const gpu_route_args &a, float *choice, float *score)
{
    int size = a.experts / a.groups;
    const float least = gpu_float(0xFF800000u);
    for (int g = 0; g < a.groups; g++) {
        float best = least, second = least;
        for (int i = g * size; i < (g + 1) * size; i++) {
            if (choice[i] > best) {
                second = best;
                best = choice[i];
            } else if (choice[i] > second) {
                second = choice[i];
            }
        }
        score[g] = best + second;
    }
    for (int g = 0; g < a.groups; g++) {
        int better = 0;
        for (int other = 0; other < a.groups; other++)
            better += choice_key(score[other], other) > choice_key(score[g], g);
        for (int i = g * size; better >= a.groups_kept && i < (g + 1) * size; i++)
            choice[i] = least;
    }
}

static __global__ void __launch_bounds__(GPU_LANES) route_kernel(gpu_route_args a)
{
    __shared__ float choice[GPU_ROUTE_MOST_EXPERTS], group_score[GPU_ROUTE_MOST_EXPERTS];
    __shared__ uint32_t chosen[GPU_ROUTE_MOST_EXPERTS / 32];
    int row = (int)blockIdx.x, lane = gpu_lane();
    if (row >= a.step->rows)
        return;
    float *scores = a.scores + (int64_t)row * a.experts;
    for (int e = lane; e < a.experts; e += GPU_LANES) {
        scores[e] = gpu_sigmoid(scores[e]);
        choice[e] = scores[e] + a.bias[e];
    }
    for (int i = lane; i < GPU_ROUTE_MOST_EXPERTS / 32; i += GPU_LANES)
        chosen[i] = 0;
    gpu_sync();
    if (a.groups > 1 && lane == 0)
        drop_weak_groups(a, choice, group_score);
    gpu_sync();
    for (int k = 0; k < a.per_token; k++) {
        uint64_t best = 0;
        for (int e = lane; e < a.experts; e += GPU_LANES) {
            uint64_t key = choice_key(choice[e], e);
            best = !(chosen[e / 32] >> e % 32 & 1u) && key > best ? key : best;
        }
        best = gpu_lanes_largest_u64(best);
        gpu_sync();
        if (lane == 0)
            chosen[choice_index(best) / 32] |= 1u << choice_index(best) % 32;
        gpu_sync();
    }
    if (lane != 0)
        return;
    int32_t *out = a.chosen + (int64_t)row * a.per_token;
    float *weights = a.weights + (int64_t)row * a.per_token, sum = 0.0f;
    for (int e = 0, k = 0; e < a.experts; e++)
        if (chosen[e / 32] >> e % 32 & 1u) {
            out[k] = e;
            weights[k++] = scores[e];
            sum += scores[e];
        }
    for (int k = 0; k < a.per_token; k++)
        weights[k] = (a.normalize ? weights[k] / (sum + 1e-20f) : weights[k]) * a.scale;
}

/* ---- sorting: one block per expert ---- */

enum { THREADS = 256, WARPS = THREADS / GPU_LANES };

/* Every block counts the pairs of all experts, which costs less than waiting for another block to have done it. */
static __global__ void __launch_bounds__(THREADS) sort_kernel(gpu_sort_args a)
{
    __shared__ int counts[GPU_ROUTE_MOST_EXPERTS], warp_counts[WARPS];
    int expert = (int)blockIdx.x, pairs = a.step->rows * a.per_token, warp = (int)threadIdx.x / GPU_LANES, first = 0, tile = 0;
    for (int e = (int)threadIdx.x; e < a.experts; e += THREADS)
        counts[e] = 0;
    gpu_sync();
    for (int p = (int)threadIdx.x; p < pairs; p += THREADS)
        gpu_count(&counts[a.chosen[p]], 1);
    gpu_sync();
    for (int e = 0; e < expert; e++) {
        first += counts[e];
        tile += (counts[e] + GPU_EXPERT_ROWS - 1) / GPU_EXPERT_ROWS;
    }
    int count = counts[expert], tiles = (count + GPU_EXPERT_ROWS - 1) / GPU_EXPERT_ROWS;
    for (int t = (int)threadIdx.x; t < tiles; t += THREADS) {
        gpu_tile made = {expert, first + t * GPU_EXPERT_ROWS, gpu_least(count - t * GPU_EXPERT_ROWS, GPU_EXPERT_ROWS)};
        a.tiles[tile + t] = made;
    }
    if (threadIdx.x == 0) {
        a.counts[expert] = count;
        if (expert == a.experts - 1)
            *a.tile_count = tile + tiles;
    }
    for (int p0 = 0; p0 < pairs; p0 += THREADS) {
        int p = p0 + (int)threadIdx.x;
        bool mine = p < pairs && a.chosen[p] == expert;
        uint32_t mask = gpu_ballot(mine);
        if (gpu_lane() == 0)
            warp_counts[warp] = gpu_ones(mask);
        gpu_sync();
        int slot = first + gpu_ones(mask & ((1u << gpu_lane()) - 1u));
        for (int w = 0; w < WARPS; w++) {
            slot += w < warp ? warp_counts[w] : 0;
            first += warp_counts[w];
        }
        if (mine) {
            a.pair_rows[slot] = p / a.per_token;
            a.slots[p] = slot;
        }
        gpu_sync();
    }
}

#if GPU_HOST_CODE
void gpu_route(const gpu_route_args *a, int rows, gpu_stream s)
{
    GPU_LAUNCH(route_kernel, dim3((unsigned)rows), dim3(GPU_LANES), 0, s, *a);
}

void gpu_sort_pairs(const gpu_sort_args *a, gpu_stream s)
{
    GPU_LAUNCH(sort_kernel, dim3((unsigned)a->experts), dim3(THREADS), 0, s, *a);
}
#endif
