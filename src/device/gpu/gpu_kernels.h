/* What the kernels are given, and the launchers that host code calls. Kernels never wait for the host and allocate nothing; how many rows
 * a step has, and where its tables are, they read from device memory, so that one captured graph serves every step of a bucket:
 * launchers get the bucket's `rows`, and blocks without a row of the step leave at once. */
#ifndef DEVICE_GPU_GPU_KERNELS_H
#define DEVICE_GPU_GPU_KERNELS_H

#include "device/gpu/gpu.h"

/* As format_id (formats/format.h) and kv_dtype (model/kv_layout.h); gpu_weights.c asserts that they agree. */
enum { GPU_F32, GPU_BF16, GPU_FP8_BLOCK, GPU_MXFP4, GPU_NVFP4, GPU_FP8_CHANNEL, GPU_FORMATS };
enum { GPU_KV_F32, GPU_KV_BF16, GPU_KV_FP8 };

enum { GPU_PAGE_TOKENS = 64, GPU_KV_GROUP = 128 };

/* A matrix in device memory: the checkpoint's codes, rows beginning at multiples of 32 bytes with zeros behind their last value. */
typedef struct gpu_matrix {
    const uint8_t *data;   /* rows of row_bytes each */
    const uint8_t *scales; /* as in formats/format.h, without gaps */
    float scale;           /* NVFP4: of the whole matrix */
    int32_t format;        /* GPU_F32 ... */
    int32_t rows, cols;
    int64_t row_bytes;
} gpu_matrix;

typedef struct gpu_mlp {
    gpu_matrix gate, up, down;
} gpu_mlp;

/* The step that is being computed, in device memory at a fixed address. */
typedef struct gpu_step {
    int32_t rows, keep_keys;
    int32_t logit_rows;
    const int32_t *tokens, *positions; /* [rows] */
    const int32_t *sequences;          /* [rows] index into table_first */
    const int32_t *table_first;        /* [sequences] where the page ids of a sequence begin in tables */
    const int32_t *tables;
    const int32_t *logit_list;         /* [logit_rows] rows whose logits are wanted */
    uint8_t *pages;
} gpu_step;

/* Entries of one layer in the pages (model/kv_layout.h). */
typedef struct gpu_cache {
    int32_t dtype;                     /* GPU_KV_F32 ... */
    int32_t latent_dim, rope_dim, index_dim;
    int64_t latent_bytes, index_bytes; /* of one entry */
    int64_t latent_offset, index_offset, page_bytes;
} gpu_cache;

/* ---- norms and embedding ---- */

/* out[row] = norm(in[row]); n values, rows in_stride and out_stride apart. Works in place. */
typedef struct gpu_norm_args {
    const gpu_step *step;
    const float *in, *weight;
    float *out;
    int32_t n;
    int64_t in_stride, out_stride;
    float eps;
} gpu_norm_args;

GPU_API void gpu_norm(const gpu_norm_args *a, int rows, gpu_stream s);

/* out[row] = embedding of the row's token, rope[row] = cos and sin of its angles. */
typedef struct gpu_embed_args {
    const gpu_step *step;
    gpu_matrix table;
    const float *frequency; /* [rope_dim / 2] */
    float *out, *rope;
    int64_t out_stride;
    int32_t rope_dim;
} gpu_embed_args;

GPU_API void gpu_embed(const gpu_embed_args *a, int rows, gpu_stream s);

/* ---- projections ---- */

/* out[b][i][n] = (add ? out : 0) + w[b * w_step + w_first + n] . x[b][row i], n < columns, b < batch. Row i of x is row list[i] where there
 * is a list. */
typedef struct gpu_linear_args {
    const int32_t *rows;      /* how many, in device memory */
    const int32_t *const *list; /* NULL: row i itself; where the list's address lies in device memory */
    gpu_matrix w;
    int32_t columns, batch, w_first, w_step;
    const float *x;
    float *out;
    int64_t x_stride, x_batch, out_stride, out_batch; /* floats */
    int32_t add;
} gpu_linear_args;

GPU_API void gpu_linear(const gpu_linear_args *a, int rows, gpu_stream s);

/* ---- attention ---- */

/* Ends the projections of a row: q rotated, latent normed and rotated, its entry written. */
typedef struct gpu_latent_args {
    const gpu_step *step;
    gpu_cache cache;
    const float *rope, *norm;
    float *q, *latent;
    int32_t heads, nope;
    float eps;
} gpu_latent_args;

GPU_API void gpu_latent(const gpu_latent_args *a, int rows, gpu_stream s);

/* q_absorbed[row][h][j] = sum_i q[row][h][i] * kv_b[h * (nope + v) + i][j]. */
typedef struct gpu_absorb_args {
    const gpu_step *step;
    gpu_matrix kv_b;
    const float *q;
    float *out;
    int32_t heads, nope, rope, v, rank;
} gpu_absorb_args;

GPU_API void gpu_absorb(const gpu_absorb_args *a, int rows, gpu_stream s);

/* Softmax over the selected positions, and the weighted sum of their latents. */
typedef struct gpu_attend_args {
    const gpu_step *step;
    gpu_cache cache;
    const float *q_absorbed, *q; /* the rotated part of q behind `nope` values */
    const int32_t *selected, *selected_count;
    float *out;                  /* [rows][heads][rank] */
    int32_t heads, nope, topk;
    float scale;
} gpu_attend_args;

enum { GPU_ATTEND_MOST_RANK = 1024 };
GPU_API void gpu_attend(const gpu_attend_args *a, int rows, gpu_stream s);

/* ---- indexer ---- */

/* Ends the indexer's projections of a row: q rotated, weights scaled, key normed, rotated and written. */
typedef struct gpu_index_row_args {
    const gpu_step *step;
    gpu_cache cache;
    const float *rope, *norm, *norm_bias;
    float *q, *k, *weights;
    int32_t heads;
    float eps, weight_scale;
} gpu_index_row_args;

GPU_API void gpu_index_row(const gpu_index_row_args *a, int rows, gpu_stream s);

/* Scores of rows first_row .. first_row + score_rows - 1 over all positions they see, unless these are topk or fewer. */
typedef struct gpu_index_score_args {
    const gpu_step *step;
    gpu_cache cache;
    const float *q, *weights;
    float *scores;        /* [score_rows][context] */
    int64_t context;      /* floats per row of scores */
    int32_t heads, topk, first_row, score_rows;
    float scale;
} gpu_index_score_args;

GPU_API void gpu_index_scores(const gpu_index_score_args *a, gpu_stream s);

/* The topk largest scores of each of these rows as ascending positions; all positions while there are no more. */
typedef struct gpu_select_args {
    const gpu_step *step;
    const float *scores;
    int64_t context;
    int32_t topk, first_row, score_rows;
    int32_t *selected, *selected_count;
} gpu_select_args;

GPU_API void gpu_select(const gpu_select_args *a, gpu_stream s);

/* ---- experts ---- */

/* Sigmoid of the router's logits in place, the chosen experts in ascending order, their weights. */
typedef struct gpu_route_args {
    const gpu_step *step;
    float *scores;       /* [rows][experts] in: logits */
    const float *bias;
    int32_t *chosen;
    float *weights;
    int32_t experts, per_token, groups, groups_kept, normalize;
    float scale;
} gpu_route_args;

enum { GPU_ROUTE_MOST_EXPERTS = 1024 };
GPU_API void gpu_route(const gpu_route_args *a, int rows, gpu_stream s);

/* (row, expert) pairs sorted by expert, then by row, and the tiles of up to GPU_EXPERT_ROWS pairs of one expert. */
enum { GPU_EXPERT_ROWS = 8 };

typedef struct gpu_tile {
    int32_t expert, first, count; /* pairs first .. of the sorted list */
} gpu_tile;

typedef struct gpu_sort_args {
    const gpu_step *step;
    const int32_t *chosen;   /* [rows][per_token] */
    int32_t *pair_rows;      /* [pairs] row of each sorted pair */
    int32_t *slots;          /* [rows][per_token] where a pair went */
    gpu_tile *tiles;
    int32_t *tile_count;
    int32_t *counts;         /* [experts] pairs of each expert */
    int32_t experts, per_token;
} gpu_sort_args;

GPU_API void gpu_sort_pairs(const gpu_sort_args *a, gpu_stream s);

/* Experts (tiles given) or one MLP for all rows (tiles NULL): act = silu(gate x) * (up x), then out = down act. Lines of act and of out
 * are sorted pairs, or rows. */
typedef struct gpu_mlp_args {
    const gpu_step *step;
    const gpu_mlp *weights;  /* in device memory: [experts], or one */
    const gpu_tile *tiles;
    const int32_t *tile_count, *pair_rows;
    const float *x;
    float *act, *out;
    int32_t act_after;       /* lines of act begin behind rows * act_after floats: of the experts, for the shared one */
    int32_t hidden, wide;
    int64_t x_stride;
} gpu_mlp_args;

/* tiles: an upper bound of their number; without a list, that of the rows. */
GPU_API void gpu_gate_up(const gpu_mlp_args *a, int rows, int tiles, gpu_stream s);
GPU_API void gpu_down(const gpu_mlp_args *a, int rows, int tiles, gpu_stream s);

/* x[row] += sum over the row's experts of weight * out[slot], then + shared[row]; either may be missing. */
typedef struct gpu_combine_args {
    const gpu_step *step;
    const float *routed;     /* [pairs][hidden] */
    const int32_t *slots;
    const float *weights;
    const float *shared;     /* [rows][hidden] */
    float *x;
    int32_t per_token, hidden;
} gpu_combine_args;

GPU_API void gpu_combine(const gpu_combine_args *a, int rows, gpu_stream s);

#endif
