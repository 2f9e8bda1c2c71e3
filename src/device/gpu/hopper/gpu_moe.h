/* Routed and shared experts of one layer on the GPU: y = sum of weight * down(silu(gate(h)) * up(h)) over a row's experts, the shared one
 * last. Weights are MXFP4 in the layout of gpu_moe_pack.h, activations e4m3 with one scale per row, sums f32.
 *
 * Launches: rows are rounded to e4m3 and (row, expert) pairs sorted by expert (one launch, two for many rows); gate and up with silu;
 * down; the sum over a row's experts. A row's result does not depend on the other rows or on the variant (widths of token tiles), bit
 * for bit. */
#ifndef DEVICE_GPU_GPU_MOE_H
#define DEVICE_GPU_GPU_MOE_H

#include "device/gpu/gpu.h"

typedef struct gpu_moe_shape {
    int hidden;  /* a multiple of 128 */
    int inter;   /* of one expert on this rank; a multiple of 128, at most 512 */
    int experts; /* routed; at most 1023 */
    int topk;
    int shared;  /* 0 or 1: the expert behind the routed ones, which every row visits with weight 1 */
} gpu_moe_shape;

/* Weights of a layer: all routed experts, then the shared one. */
typedef struct gpu_moe_weights {
    const uint8_t *gate_up;     /* [experts + shared] packed 2 inter x hidden */
    const float *gate_up_scale; /* [experts + shared][2 inter] */
    const uint8_t *down;        /* [experts + shared] packed hidden x inter */
    const float *down_scale;    /* [experts + shared][hidden] */
} gpu_moe_weights;

/* A tile of the work list: rows of one expert that are computed together. */
typedef struct gpu_moe_tile {
    int32_t expert, first, count, pad; /* pairs first .. first + count - 1 of the sorted list */
} gpu_moe_tile;

/* Memory of a step, shared by all layers. */
typedef struct gpu_moe_scratch {
    uint8_t *x_codes;      /* [pairs][hidden] e4m3: token tiles one behind the other; of each, blocks of 128 columns; of each, the
                              tile's rows of 128 bytes, swizzled */
    float *x_scale;        /* [rows] */
    int32_t *pairs;        /* [rows * (topk + shared)] row * (topk + shared) + slot, sorted by expert */
    int4 *ranges;          /* [1024] of each expert: first pair, number of pairs, and a counter */
    gpu_moe_tile *tiles;
    int32_t *tile_count;   /* one number */
    uint16_t *act;         /* [pairs][inter] bf16, sorted */
    uint16_t *y;           /* [rows][topk + shared][hidden] bf16, without routing weights; in the place of x_codes, then unused */
} gpu_moe_scratch;

typedef enum gpu_moe_type { GPU_MOE_F32, GPU_MOE_BF16 } gpu_moe_type;

typedef struct gpu_moe_args {
    gpu_moe_shape shape;
    gpu_moe_weights weights;
    gpu_moe_scratch scratch;
    int rows;
    const void *x;          /* [rows][hidden] */
    gpu_moe_type x_type;
    const int32_t *experts; /* [rows][topk] ascending */
    const float *routing;   /* [rows][topk] */
    void *out;              /* [rows][hidden] */
    gpu_moe_type out_type;
    int variant;            /* -1: by the number of rows */
    int blocks;             /* multiprocessors */
} gpu_moe_args;

/* What of a layer is launched: all, or one stage for measurements. */
enum { GPU_MOE_PREPARE = 1, GPU_MOE_GATE_UP = 2, GPU_MOE_DOWN = 4, GPU_MOE_COMBINE = 8, GPU_MOE_ALL = 15 };

#ifdef __cplusplus
extern "C" {
#endif

/* NULL, or a sentence that says why the kernels do not take this shape. */
const char *gpu_moe_supports(const gpu_moe_shape *s);

/* Bytes of scratch memory for steps of at most `rows` rows; sets the pointers of *out behind `memory` when out is not NULL. */
size_t gpu_moe_scratch_make(const gpu_moe_shape *s, int rows, void *memory, gpu_moe_scratch *out);

/* Packs matrices on the GPU: `matrices` of rows x cols one behind the other. lowered counts groups that had to be rounded (added to). */
gpu_status gpu_moe_pack(int gate_up, const uint8_t *codes, const uint8_t *scales, int matrices, int rows, int cols, uint8_t *packed,
                        float *row_scales, unsigned long long *lowered, gpu_stream stream);

/* Once per process, before the first launch: raises the shared-memory limits of the kernels. */
gpu_status gpu_moe_init(void);

gpu_status gpu_moe_run(const gpu_moe_args *a, int stages, gpu_stream stream);

/* Names of the variants, for measurements; NULL behind the last one. */
const char *gpu_moe_variant_name(int variant);
int gpu_moe_variant_width(int variant); /* pairs of a token tile, at most */
int gpu_moe_variant_fits(int variant, const gpu_moe_shape *s);
int gpu_moe_variant_for(const gpu_moe_shape *s, int rows);

/* Device side of the two products; used by gpu_moe_run. */
gpu_status gpu_moe_sm90_init(void);
gpu_status gpu_moe_sm90_run(const gpu_moe_args *a, int gate_up, int variant, gpu_stream stream);

/* The same for a single row in two launches (gpu_moe_row.cu): rounding is part of gate/up, the sum over experts part of down. */
enum { GPU_MOE_ROW = 100 }; /* as variant */
int gpu_moe_row_fits(const gpu_moe_shape *s);
gpu_status gpu_moe_row_init(void);
gpu_status gpu_moe_row_run(const gpu_moe_args *a, int stages, gpu_stream stream);

#ifdef __cplusplus
}
#endif

#endif
