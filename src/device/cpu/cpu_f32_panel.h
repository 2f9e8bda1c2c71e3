/* The memory of a panel product with f32 inputs: some columns and 24 rows at a time, both turned so that what one step multiplies lies
 * together. Value k of an input belongs to lane k % 16 and step k / 16; behind the last value lie zeros.
 *
 *     weights  [panel][lane][step][16 columns]
 *     rows     [lane][step][24 rows]    where a block has fewer, the last one stands in for those of its group of eight
 *     lanes    [lane][panel][24 rows][16 columns]    sums, folded at the end
 *
 * A lane's part of the rows and of one panel stays in the first cache while it is computed. A lane's part is followed by a gap of a cache
 * line: at a distance of a power of two all lanes would fall into the same few places of a cache. */
#ifndef DEVICE_CPU_CPU_F32_PANEL_H
#define DEVICE_CPU_CPU_F32_PANEL_H

#include "device/cpu/cpu_matmul.h"

enum { F32_LANES = 16, F32_ROWS = CPU_PACK_ROWS, F32_PANELS = 8, F32_GAP = 16, F32_PANEL_SUMS = F32_ROWS * CPU_PANEL_COLUMNS };

typedef struct f32_panel {
    float *weights, *rows, *lanes;
    int64_t steps;
    int64_t weight_lane, row_lane; /* floats from one lane to the next */
} f32_panel;

static inline f32_panel f32_panel_of(int64_t cols, float *scratch)
{
    f32_panel p = {.weights = scratch, .steps = (cols + F32_LANES - 1) / F32_LANES};
    p.weight_lane = p.steps * CPU_PANEL_COLUMNS + F32_GAP;
    p.row_lane = p.steps * F32_ROWS + F32_GAP;
    p.rows = p.weights + F32_PANELS * F32_LANES * p.weight_lane;
    p.lanes = p.rows + F32_LANES * p.row_lane;
    return p;
}

/* Packed rows: blocks of F32_ROWS, each laid out as `rows` above. */
static inline int64_t f32_block_floats(int64_t cols)
{
    return F32_LANES * f32_panel_of(cols, NULL).row_lane;
}

static inline size_t f32_panel_floats(int64_t cols)
{
    f32_panel p = f32_panel_of(cols, NULL);
    return (size_t)(F32_LANES * (F32_PANELS * p.weight_lane + p.row_lane + F32_PANELS * F32_PANEL_SUMS));
}

#if defined(__x86_64__)
/* A block of packed rows, and which columns they are multiplied with. */
typedef struct f32_rows {
    const float *packed;
    const matrix *w;
    int64_t column; /* the first */
} f32_rows;

/* One lane of packed rows, [step][24 rows]; in fp8 products times the scales of the columns' block, in the memory of the panel's rows. Each
 * lane is to be asked for once. */
const float *cpu_f32_lane_avx2(const f32_panel *p, const f32_rows *in, int lane);

/* Sums of all lanes for packed rows and some panels. */
typedef void (*f32_sums)(const f32_panel *p, const f32_rows *in, int rows, int panels);

/* A panel product, all but these sums with AVX2. */
void cpu_f32_panel_run(const cpu_matmul_work *k, f32_sums sums);
#endif

#endif
