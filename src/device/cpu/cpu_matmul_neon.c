/* The matrix kernels for 64-bit Arm CPUs with dot products of bytes: 4-bit weights and 8-bit rows.
 *
 * A byte table looks up twice the e2m1 value of 16 codes; one instruction adds four products of signed bytes to a sum. A column is read
 * once for up to four rows, as in the AVX2 stream; the eight lanes are two registers. */
#include "device/cpu/cpu_matmul.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "device/cpu/cpu_matmul_loops.h"
#include "formats/decode_kernels.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per file. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

enum { MOST_ROWS = 4 };

/* Places 0 .. 3 and 4 .. 7. */
typedef struct lanes {
    float32x4_t low, high;
} lanes;

/* The sums of the four blocks of a group over four words each: values times codes, even and odd. */
CPU_LOOP void block_sums(const int8x16_t w[8], const int8_t *x, int32x4_t out[4])
{
    for (int b = 0; b < 4; b++)
        out[b] = vdotq_s32(vdotq_s32(vdupq_n_s32(0), w[2 * b], vld1q_s8(x + b * 16)), w[2 * b + 1], vld1q_s8(x + 64 + b * 16));
}

CPU_LOOP void group_weights(const uint8_t *codes, int8x16_t w[8])
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    int8x16_t table = vld1q_s8(twice);
    for (int b = 0; b < 4; b++) {
        uint8x16_t bytes = vld1q_u8(codes + b * 16);
        w[2 * b] = vqtbl1q_s8(table, vandq_u8(bytes, vdupq_n_u8(15)));
        w[2 * b + 1] = vqtbl1q_s8(table, vshrq_n_u8(bytes, 4));
    }
}

CPU_LOOP float32x4_t add_scaled(int32x4_t sum, const float *weight, const float *in, float32x4_t to)
{
    return vfmaq_f32(to, vcvtq_f32_s32(sum), vmulq_f32(vld1q_f32(weight), vld1q_f32(in)));
}

/* Adds one chunk to the lanes of each row. */
CPU_LOOP void stream_mxfp4(q8_column c, const cpu_q8 *const *x, int64_t at, int rows, lanes *sums)
{
    int8x16_t w[2][8];
    float scale[8];
    for (int b = 0; b < 8; b++)
        scale[cpu_q8_place(b)] = q8_e8m0(c.scales[b]);
    group_weights(c.codes, w[0]);
    group_weights(c.codes + 64, w[1]);
    for (int r = 0; r < rows; r++) {
        const cpu_q8 *q = &x[r][at];
        int32x4_t s[8];
        block_sums(w[0], q->values, s);
        block_sums(w[1], q->values + 128, s + 4);
        int32x4_t even = vpaddq_s32(vpaddq_s32(s[0], s[2]), vpaddq_s32(s[4], s[6]));
        int32x4_t odd = vpaddq_s32(vpaddq_s32(s[1], s[3]), vpaddq_s32(s[5], s[7]));
        sums[r].low = add_scaled(even, scale, q->scales, sums[r].low);
        sums[r].high = add_scaled(odd, scale + 4, q->scales + 4, sums[r].high);
    }
}

CPU_LOOP void stream_nvfp4(q8_column c, float outer, const cpu_q8 *const *x, int64_t at, int rows, lanes *sums)
{
    for (int g = 0; g < 2; g++) {
        int8x16_t w[8];
        float scale[8];
        for (int h = 0; h < 8; h++)
            scale[cpu_q8_half_place(h)] = e4m3_values[c.scales[g * 8 + h]] * outer;
        group_weights(c.codes + g * 64, w);
        for (int r = 0; r < rows; r++) {
            const cpu_q8 *q = &x[r][at];
            const float in[8] = {q->scales[2 * g], q->scales[2 * g], q->scales[2 * g + 1], q->scales[2 * g + 1],
                                 q->scales[4 + 2 * g], q->scales[4 + 2 * g], q->scales[5 + 2 * g], q->scales[5 + 2 * g]};
            int32x4_t s[4];
            block_sums(w, q->values + g * 128, s);
            sums[r].low = add_scaled(vpaddq_s32(s[0], s[2]), scale, in, sums[r].low);
            sums[r].high = add_scaled(vpaddq_s32(s[1], s[3]), scale + 4, in + 4, sums[r].high);
        }
    }
}

CPU_LOOP float fold(lanes l)
{
    float32x4_t four = vaddq_f32(l.low, l.high);
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return (vget_lane_f32(two, 0) + vget_lane_f32(two, 1)) + 0.0f;
}

CPU_LOOP void stream_column(const matrix *w, bool mx, int64_t column, const cpu_q8 *const *x, int rows, float *y, size_t y_stride)
{
    lanes sums[MOST_ROWS];
    q8_column c = q8_column_at(w, column);
    int64_t chunks = w->cols / CPU_Q8_CHUNK;
    for (int r = 0; r < rows; r++)
        sums[r].low = sums[r].high = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < chunks; i++) {
        q8_column at = {c.codes + i * 128, c.scales + i * (mx ? 8 : 16)};
        mx ? stream_mxfp4(at, x, i, rows, sums) : stream_nvfp4(at, w->scale, x, i, rows, sums);
    }
    if (w->cols % CPU_Q8_CHUNK != 0) {
        q8_end end;
        q8_column at = q8_end_of(c, w->cols, mx ? MXFP4_BLOCK : NVFP4_BLOCK, &end);
        mx ? stream_mxfp4(at, x, chunks, rows, sums) : stream_nvfp4(at, w->scale, x, chunks, rows, sums);
    }
    for (int r = 0; r < rows; r++)
        y[(size_t)r * y_stride] = fold(sums[r]);
}

CPU_LOOP void stream_rows(const cpu_matmul_work *k, bool mx, int first, int rows)
{
    const cpu_q8 *x[MOST_ROWS];
    for (int r = 0; r < rows; r++)
        x[r] = cpu_work_row(k, first + r);
    for (int c = 0; c < k->columns; c++)
        stream_column(k->w, mx, k->first + c, x, rows, k->y + (size_t)first * k->y_stride + c, k->y_stride);
}

CPU_LOOP void stream_all(const cpu_matmul_work *k, bool mx)
{
    int first = 0;
    for (; first + MOST_ROWS <= k->rows; first += MOST_ROWS)
        stream_rows(k, mx, first, MOST_ROWS);
    for (; first < k->rows; first++)
        stream_rows(k, mx, first, 1);
}

UNCHECKED_LOOP static void q8_stream(const cpu_matmul_work *k)
{
    size_t bytes = format_row_bytes(k->w->format, k->w->cols);
    touch_range(k->w->data + (size_t)k->first * bytes, bytes * (size_t)k->columns);
    for (int i = 0; i < k->rows; i++)
        touch_range(cpu_work_row(k, i), (size_t)cpu_q8_chunks(k->w->cols) * sizeof(cpu_q8));
    if (k->w->format->id == FORMAT_MXFP4)
        stream_all(k, true);
    else
        stream_all(k, false);
}

const cpu_matmul cpu_matmul_neon[] = {
    {"neon stream", "neon", CPU_INPUT_Q8, 1, q8_stream},
    {0},
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
