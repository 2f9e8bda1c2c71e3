/* The table of number formats, with the decoders and encoders of whole matrices.
 *
 * A decoder walks the blocks that its column range touches and hands each piece, which has one scale, or all whole blocks at once, to
 * the loops of decode_kernels.h. Every product is one f32 multiplication of exact factors, in the same order for
 * every range, so a value does not depend on how it was asked for. */
#include "formats/format.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/sanitize.h"
#include "formats/decode_kernels.h"
#include "formats/scalar.h"

enum { FP8_BLOCK = 128 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t blocks_of(int64_t count, int64_t block)
{
    return count / block + (count % block != 0);
}

/* Magnitudes compare like their bits; integers let the compiler use vectors. */
static float largest_magnitude(const float *values, int64_t count)
{
    int32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(float_bits(values[i]) & 0x7FFFFFFFu);
        largest = bits > largest ? bits : largest;
    }
    return float_of_bits((uint32_t)largest);
}

static float load_f32(const uint8_t *p)
{
    float value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* ---- f32 and bf16 ---- */

static void f32_decode_row(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out)
{
    if (count > 0)
        memcpy(out, m->data + (row * m->cols + first_col) * 4, (size_t)count * 4);
}

static void f32_encode_rows(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data, uint8_t *scales)
{
    (void)tensor_scale, (void)scales;
    if (rows * cols > 0)
        memcpy(data, values, (size_t)(rows * cols) * 4);
}

static void bf16_decode_row(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out)
{
    const uint8_t *codes = m->data + (row * m->cols + first_col) * 2;
    touch_range(codes, (size_t)count * 2);
    touch_range(out, (size_t)count * sizeof *out);
    decode_kernels_at(0)->bf16(codes, count, out);
}

static void bf16_encode_rows(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data, uint8_t *scales)
{
    (void)tensor_scale, (void)scales;
    for (int64_t i = 0; i < rows * cols; i++) {
        uint16_t code = bf16_encode(values[i]);
        memcpy(data + 2 * i, &code, sizeof code);
    }
}

/* ---- fp8_block ---- */

static void fp8_decode_piece(const uint8_t *codes, int64_t count, float scale, float *out)
{
    touch_range(codes, (size_t)count);
    touch_range(out, (size_t)count * sizeof *out);
    decode_kernels_at(0)->fp8(codes, count, scale, out);
}

static void fp8_block_decode_row(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out)
{
    const uint8_t *codes = m->data + row * m->cols;
    const uint8_t *scales = m->scales + row / FP8_BLOCK * blocks_of(m->cols, FP8_BLOCK) * 4;
    int64_t end = first_col + count;
    for (int64_t col = first_col; col < end;) {
        int64_t block = col / FP8_BLOCK, stop = least(end, (block + 1) * FP8_BLOCK);
        fp8_decode_piece(codes + col, stop - col, load_f32(scales + block * 4), out);
        out += stop - col;
        col = stop;
    }
}

/* Values with one scale: a 128 x 128 block or what the matrix has of it, or a row. Zeros alone, or values so small that the scale
 * would be zero, get scale 1. */
static void fp8_block_encode_one(const float *values, int64_t rows, int64_t cols, int64_t stride, uint8_t *codes, uint8_t *scale_out)
{
    float amax = 0.0f;
    for (int64_t r = 0; r < rows; r++)
        amax = fmaxf(amax, largest_magnitude(values + r * stride, cols));
    float scale = amax / 448.0f;
    if (scale == 0.0f)
        scale = 1.0f;
    memcpy(scale_out, &scale, sizeof scale);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            codes[r * stride + c] = e4m3_encode(values[r * stride + c] / scale);
}

static void fp8_block_encode_rows(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data,
                                  uint8_t *scales)
{
    (void)tensor_scale;
    for (int64_t r = 0; r < rows; r += FP8_BLOCK)
        for (int64_t c = 0; c < cols; c += FP8_BLOCK, scales += 4)
            fp8_block_encode_one(values + r * cols + c, least(FP8_BLOCK, rows - r), least(FP8_BLOCK, cols - c), cols,
                                 data + r * cols + c, scales);
}

/* ---- fp8_channel ---- */

static void fp8_channel_decode_row(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out)
{
    fp8_decode_piece(m->data + row * m->cols + first_col, count, load_f32(m->scales + row * 4), out);
}

static void fp8_channel_encode_rows(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data,
                                    uint8_t *scales)
{
    (void)tensor_scale;
    for (int64_t r = 0; r < rows; r++)
        fp8_block_encode_one(values + r * cols, 1, cols, cols, data + r * cols, scales + r * 4);
}

/* ---- mxfp4 and nvfp4: two e2m1 codes to a byte, the even column in the low nibble ---- */

/* Columns first .. stop-1 of a packed row, all of one block: where a range does not hold whole blocks. */
static void fp4_decode_piece(const uint8_t *codes, int64_t first, int64_t stop, float scale, float outer, float *out)
{
    for (int64_t col = first; col < stop; col++)
        *out++ = e2m1_decode((uint8_t)(codes[col / 2] >> 4 * (col % 2))) * scale * outer;
}

/* The whole blocks of a column range. */
static int64_t whole_blocks(int64_t first_col, int64_t count, int64_t block, const uint8_t *codes, const uint8_t *scales, float *out)
{
    int64_t blocks = first_col % block == 0 ? count / block : 0;
    touch_range(codes + first_col / 2, (size_t)(blocks * block / 2));
    touch_range(scales + first_col / block, (size_t)blocks);
    touch_range(out, (size_t)(blocks * block) * sizeof *out);
    return blocks;
}

static void mxfp4_decode_row(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out)
{
    const uint8_t *codes = m->data + row * (m->cols / 2), *scales = m->scales + row * (m->cols / MXFP4_BLOCK);
    int64_t end = first_col + count, blocks = whole_blocks(first_col, count, MXFP4_BLOCK, codes, scales, out);
    decode_kernels_at(0)->mxfp4(codes + first_col / 2, scales + first_col / MXFP4_BLOCK, blocks, out);
    out += blocks * MXFP4_BLOCK;
    for (int64_t col = first_col + blocks * MXFP4_BLOCK, stop; col < end; out += stop - col, col = stop) {
        int64_t block = col / MXFP4_BLOCK;
        stop = least(end, (block + 1) * MXFP4_BLOCK);
        fp4_decode_piece(codes, col, stop, e8m0_decode(scales[block]), 1.0f, out);
    }
}

static void nvfp4_decode_row(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out)
{
    const uint8_t *codes = m->data + row * (m->cols / 2), *scales = m->scales + row * (m->cols / NVFP4_BLOCK);
    int64_t end = first_col + count, blocks = whole_blocks(first_col, count, NVFP4_BLOCK, codes, scales, out);
    decode_kernels_at(0)->nvfp4(codes + first_col / 2, scales + first_col / NVFP4_BLOCK, m->scale, blocks, out);
    out += blocks * NVFP4_BLOCK;
    for (int64_t col = first_col + blocks * NVFP4_BLOCK, stop; col < end; out += stop - col, col = stop) {
        int64_t block = col / NVFP4_BLOCK;
        stop = least(end, (block + 1) * NVFP4_BLOCK);
        fp4_decode_piece(codes, col, stop, e4m3_values[scales[block]], m->scale, out);
    }
}

static uint8_t fp4_pack(float even, float odd)
{
    return (uint8_t)(e2m1_encode(even) | e2m1_encode(odd) << 4);
}

static void mxfp4_encode_rows(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data, uint8_t *scales)
{
    (void)tensor_scale;
    for (int64_t block = 0; block < rows * (cols / MXFP4_BLOCK); block++) {
        uint8_t code = mxfp4_scale_even(largest_magnitude(values, MXFP4_BLOCK));
        float inverse = ldexpf(1.0f, 127 - code); /* a power of two: x * inverse is exact wherever it matters */
        for (int i = 0; i < MXFP4_BLOCK; i += 2, values += 2)
            *data++ = fp4_pack(values[0] * inverse, values[1] * inverse);
        scales[block] = code;
    }
}

/* One block of 16. A block of zeros gets scale 1, as modelopt has it. A scale that rounds to zero makes every value zero, so the
 * codes are zero, too. */
static uint8_t nvfp4_encode_block(const float *values, float tensor_scale, uint8_t *codes)
{
    float amax = largest_magnitude(values, NVFP4_BLOCK);
    uint8_t code = e4m3_encode(amax == 0.0f ? 1.0f : amax / (6.0f * tensor_scale));
    float scale = e4m3_decode(code) * tensor_scale;
    for (int i = 0; i < NVFP4_BLOCK; i += 2)
        codes[i / 2] = scale > 0.0f ? fp4_pack(values[i] / scale, values[i + 1] / scale) : 0;
    return code;
}

static void nvfp4_encode_rows(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data, uint8_t *scales)
{
    for (int64_t block = 0; block < rows * (cols / NVFP4_BLOCK); block++)
        scales[block] = nvfp4_encode_block(values + block * NVFP4_BLOCK, tensor_scale, data + block * (NVFP4_BLOCK / 2));
}

/* ---- the table ---- */

static const format formats[FORMAT_COUNT] = {
    {FORMAT_F32, "f32", "32-bit floating point", 32, 0, 0, 0, f32_decode_row, f32_encode_rows},
    {FORMAT_BF16, "bf16", "bfloat16", 16, 0, 0, 0, bf16_decode_row, bf16_encode_rows},
    {FORMAT_FP8_BLOCK, "fp8_block", "fp8 e4m3, one f32 scale per 128 x 128 block", 8, FP8_BLOCK, FP8_BLOCK, 4,
     fp8_block_decode_row, fp8_block_encode_rows},
    {FORMAT_MXFP4, "mxfp4", "fp4 e2m1, one e8m0 scale per 32 values", 4, 1, MXFP4_BLOCK, 1, mxfp4_decode_row,
     mxfp4_encode_rows},
    {FORMAT_NVFP4, "nvfp4", "fp4 e2m1, one e4m3 scale per 16 values and one f32 scale per matrix", 4, 1, NVFP4_BLOCK, 1,
     nvfp4_decode_row, nvfp4_encode_rows},
    {FORMAT_FP8_CHANNEL, "fp8_channel", "fp8 e4m3, one f32 scale per row", 8, 1, FORMAT_WHOLE_ROW, 4, fp8_channel_decode_row,
     fp8_channel_encode_rows},
};

const format *format_of(format_id id)
{
    assert((unsigned)id < FORMAT_COUNT);
    return &formats[id];
}

const format *format_by_name(const char *name)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

/* Sub-byte formats are packed in whole blocks of a row. */
static bool format_fits(const format *f, int64_t rows, int64_t cols)
{
    return rows >= 0 && cols >= 0 && (f->bits >= 8 || cols % f->block_cols == 0);
}

bool format_data_bytes(const format *f, int64_t rows, int64_t cols, uint64_t *out)
{
    uint64_t bits;
    if (!format_fits(f, rows, cols) || !checked_mul_u64((uint64_t)cols, (uint64_t)f->bits, &bits))
        return false;
    return checked_mul_u64((uint64_t)rows, bits / 8, out);
}

bool format_scale_bytes(const format *f, int64_t rows, int64_t cols, uint64_t *out)
{
    if (!format_fits(f, rows, cols))
        return false;
    *out = 0;
    if (f->scale_bytes == 0)
        return true;
    uint64_t down = (uint64_t)blocks_of(rows, f->block_rows), across = (uint64_t)blocks_of(cols, f->block_cols), blocks;
    return checked_mul_u64(down, across, &blocks) && checked_mul_u64(blocks, (uint64_t)f->scale_bytes, out);
}

size_t format_row_bytes(const format *f, int64_t cols)
{
    return (size_t)cols * (size_t)f->bits / 8;
}

matrix matrix_rows(const matrix *m, int64_t first, int64_t count)
{
    const format *f = m->format;
    assert(first >= 0 && count >= 0 && first <= m->rows && count <= m->rows - first);
    assert(f->block_rows <= 1 || first % f->block_rows == 0);
    matrix part = *m;
    part.rows = count;
    part.data += (size_t)first * format_row_bytes(f, m->cols);
    if (f->scale_bytes > 0)
        part.scales += first / f->block_rows * blocks_of(m->cols, f->block_cols) * f->scale_bytes;
    return part;
}
