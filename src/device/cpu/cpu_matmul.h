/* The matrix kernels: y = W x for a block of output columns (rows of the stored matrix) and any number of input rows.
 *
 * What x is, and how a product is summed, follows from the format of the weights and the mode of the device:
 *
 *     exact           f32 values; a weight is decoded to f32; 16 lanes, product and sum rounded apart (cpu_kernels.h, dots)
 *     f32  (fast)     f32 values; f32, bf16 and fp8 weights, decoded to f32; 16 lanes, fused (cpu_kernels.h, dots_fused); the scales of
 *                     fp8 weights are not multiplied into them, see below
 *     q8   (fast)     rows in 8 bits (cpu_q8); mxfp4 and nvfp4 weights, as integers: twice an e2m1 value is one
 *
 * An fp8 product, so that a weight costs a few shifts: the bits of an e4m3 code, moved to where an f32 has exponent and mantissa, are its
 * value times 2^-120. Those are multiplied, not the values themselves. The input is multiplied beforehand, by (2^60 * scale of the block
 * of 128 x 128), rounded, or by 2^60 where a scale belongs to a whole row; the folded sum is multiplied by 2^60, or by (2^60 * scale of the
 * row), and +0 is added.
 *
 * A q8 product: the sum over one block of weights (32 values in mxfp4, 16 in nvfp4) is an exact integer. It is converted to f32 and
 * multiplied by (weight scale * input scale), rounded, and added to one of eight lanes in one fused step; block b has lane b % 8. The
 * weight scale is e8m0, or e4m3 * outer, rounded. The lanes lie in the order in which AVX2 sums end up (cpu_q8_place for mxfp4,
 * cpu_q8_half_place for nvfp4) and fold in a tree, place i + 4 onto place i, then 2, 1; +0 is added at the end, so that a zero has no
 * sign. An e8m0 code of 255 (no number) counts as infinite. Every variant gives these bits, whatever the rows, columns and threads. */
#ifndef DEVICE_CPU_CPU_MATMUL_H
#define DEVICE_CPU_CPU_MATMUL_H

#include <stdbool.h>
#include <string.h>

#include "device/cpu/cpu_kernels.h"
#include "formats/format.h"

enum { CPU_Q8_CHUNK = 256, CPU_Q8_BLOCK = 32, CPU_Q8_BLOCKS = 8 };

/* 256 values of a row, in blocks of 32 with one scale each: value = 2 * scale * integer. Behind the last value of a row lie zeros.
 *
 *     values   two groups of four blocks: the 64 even values of a group, then its 64 odd ones, as the low and high nibbles of packed
 *              weights lie; four of them, an even or odd number in, are one 32-bit word of a dot product
 *     bias     -12 * (sum of the values), as two halves that add up to it: the values in places 0 and 1 of their words, those in 2
 *              and 3. Where an instruction wants one factor without sign, 12 is added to each weight */
typedef struct cpu_q8 {
    int8_t values[CPU_Q8_CHUNK];
    float scales[CPU_Q8_BLOCKS];        /* half of max / 127; blocks in the order 0 2 4 6 1 3 5 7 */
    int16_t bias[CPU_Q8_BLOCKS][2];     /* in the same order */
    int16_t half_bias[2][8][2];         /* per 16 values: of each group in the order 0 1 4 5 2 3 6 7 */
} cpu_q8;

/* The place of a block of a chunk among the scales and lanes. */
static inline int cpu_q8_place(int block)
{
    return block % 2 * 4 + block % 8 / 2;
}

/* The place of a half block (16 values) of a group. */
static inline int cpu_q8_half_place(int half)
{
    return half / 2 % 2 * 4 + half / 4 % 2 * 2 + half % 2;
}

static inline int64_t cpu_q8_chunks(int64_t cols)
{
    return (cols + CPU_Q8_CHUNK - 1) / CPU_Q8_CHUNK;
}

typedef enum cpu_input {
    CPU_INPUT_EXACT, /* f32 */
    CPU_INPUT_F32,   /* f32, fused sums */
    CPU_INPUT_Q8,    /* cpu_q8 */
    CPU_INPUT_COUNT
} cpu_input;

/* What a kernel reads for a weight of this format. */
cpu_input cpu_input_of(const format *f, bool exact);

/* One piece of work: y[i * y_stride + c] = w[first + c] . x[i] for c < columns. */
typedef struct cpu_matmul_work {
    const matrix *w;
    int64_t first;
    int columns;
    const void *x;         /* input row i begins at x + (x_rows ? x_rows[i] : i) * x_stride */
    size_t x_stride;       /* bytes */
    const int32_t *x_rows;
    int rows;
    float *y;
    size_t y_stride;       /* floats */
    void *scratch;         /* cpu_matmul_scratch_bytes(w->cols), 64-byte aligned */
    const float *packed;   /* the rows by cpu_f32_pack, for a kernel that wants them; NULL: it does that itself, for itself */
} cpu_matmul_work;

static inline const void *cpu_work_row(const cpu_matmul_work *k, int i)
{
    return (const char *)k->x + (size_t)(k->x_rows ? k->x_rows[i] : i) * k->x_stride;
}

enum { CPU_PANEL_COLUMNS = 16, CPU_PANEL_ROWS = 32 };

/* Factors of fp8 products: of an input (or its scale) and of the folded sum; of a weight. */
#define CPU_FP8_RAISE 0x1p60f
#define CPU_FP8_LOWER 0x1p-120f

/* The scale of an fp8 weight. */
static inline float cpu_fp8_scale(const matrix *w, int64_t row, int64_t col)
{
    float scale;
    int64_t at = w->format->id == FORMAT_FP8_CHANNEL ? row : row / 128 * ((w->cols + 127) / 128) + col / 128;
    memcpy(&scale, w->scales + at * 4, sizeof scale);
    return scale;
}

static inline bool cpu_is_fp8(const matrix *w)
{
    return w->format->id == FORMAT_FP8_BLOCK || w->format->id == FORMAT_FP8_CHANNEL;
}

size_t cpu_matmul_scratch_bytes(int64_t cols);

typedef struct cpu_matmul {
    const char *name; /* "avx2 stream" */
    const char *set;  /* the instruction set, as in cpu_kernels.name */
    cpu_input input;
    int from_rows;    /* by rule it is taken from this number of rows on; 0: only by a tuned table */
    void (*run)(const cpu_matmul_work *k);
} cpu_matmul;

/* Whether a kernel turns its rows around before it multiplies them, which can be done once for all columns; and that, for rows of the
 * work from `first` on: one block of them, CPU_PACK_ROWS at most. out has cpu_f32_packed_bytes for all rows. */
enum { CPU_PACK_ROWS = 24 };
bool cpu_matmul_packs(const cpu_matmul *v);
void cpu_f32_pack(const cpu_matmul_work *k, int first, float *out);
size_t cpu_f32_packed_bytes(int rows, int64_t cols);

/* The variants for an input that this build on this CPU can run; NULL behind the last. set: only those of this instruction set;
 * NULL: all. Where a set has none for an input, all stand in. */
const cpu_matmul *cpu_matmul_at(cpu_input input, const char *set, int index);

bool cpu_matmul_set_known(const char *set); /* whether this CPU has kernels of that name */

/* The index of the variant that the rule takes for a number of rows: of the best set that has one for so many rows, the one with the
 * largest from_rows. */
int cpu_matmul_by_rule(cpu_input input, const char *set, int rows);

/* Rounds a row of n values to 8 bits, to nearest, ties to even. A block that holds no finite maximum gets a scale that is not a number;
 * one whose maximum is below 2^-100 becomes zeros. */
void cpu_q8_quantize(const float *x, int64_t n, cpu_q8 *out); /* out[cpu_q8_chunks(n)] */

/* The tables of the variants, each ended by a row without a name. */
extern const cpu_matmul cpu_matmul_generic[];
#if defined(__x86_64__)
extern const cpu_matmul cpu_matmul_avx2[], cpu_matmul_avx512[];
void cpu_matmul_decoded_fused(const cpu_matmul_work *k); /* any weights decoded to f32 first, with AVX2 and FMA */
void cpu_f32_stream_avx2(const cpu_matmul_work *k);
void cpu_f32_panel_avx2(const cpu_matmul_work *k);
void cpu_f32_panel_avx512(const cpu_matmul_work *k);
void cpu_f32_pack_avx2(const float *const *x, int rows, int64_t cols, float *out);
void cpu_q8_quantize_avx2(const float *x, int64_t n, cpu_q8 *out);
#endif
#if defined(__aarch64__)
extern const cpu_matmul cpu_matmul_neon[];
#endif

#endif
