/* Encoding of rows: source values are decoded into a small buffer, checked, encoded by a kernel, and for the statistics decoded
 * again as any reader of the result would.
 *
 * Row formats go by pieces of a row that stay in the first-level cache. FP8 goes by its 128 x 128 blocks, because the largest
 * magnitude of a block must be known before its first code. */
#include "quantize/encode.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "formats/scalar.h"
#include "quantize/encode_kernels.h"

enum { PIECE_COLS = 1024 }; /* a multiple of all blocks: two buffers of 4 KiB */

/* From 2^127 on a value may round to something that f32 or bf16 has only as infinity. */
static const uint32_t LARGE_BITS = 0x7F000000u, INFINITE_BITS = 0x7F800000u;

/* ---- names ---- */

static const char *const rule_names[SCALE_RULES] = {"even", "floor", "ceil"};
static const char *const variant_names[ENCODE_VARIANTS] = {"best", "generic", "avx2", "avx512"};

const char *scale_rule_name(scale_rule rule)
{
    assert((unsigned)rule < SCALE_RULES);
    return rule_names[rule];
}

bool scale_rule_by_name(const char *name, scale_rule *out)
{
    for (int i = 0; i < SCALE_RULES; i++)
        if (strcmp(rule_names[i], name) == 0) {
            *out = (scale_rule)i;
            return true;
        }
    return false;
}

const char *encode_variant_name(encode_variant variant)
{
    assert((unsigned)variant < ENCODE_VARIANTS);
    return variant_names[variant];
}

/* ---- variants ---- */

/* NULL where this CPU cannot run it. __builtin_cpu_supports (gcc, clang) also asks whether the system saves the registers. */
static const encode_kernels *kernels_of(encode_variant variant)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (variant == ENCODE_AVX512 || (variant == ENCODE_BEST && avx512))
        return avx512 ? &encode_kernels_avx512 : NULL;
    if (variant == ENCODE_AVX2 || (variant == ENCODE_BEST && avx2))
        return avx2 ? &encode_kernels_avx2 : NULL;
#endif
    return variant == ENCODE_BEST || variant == ENCODE_GENERIC ? &encode_kernels_generic : NULL;
}

bool encode_variant_available(encode_variant variant)
{
    return kernels_of(variant) != NULL;
}

/* ---- statistics ---- */

void encode_stats_merge(encode_stats *into, const encode_stats *more)
{
    into->values += more->values;
    into->source_squares += more->source_squares;
    into->result_squares += more->result_squares;
    into->error_squares += more->error_squares;
    into->max_error = more->max_error > into->max_error ? more->max_error : into->max_error;
}

double encode_stats_relative_l2(const encode_stats *s)
{
    return s->error_squares == 0.0 ? 0.0 : sqrt(s->error_squares / s->source_squares);
}

/* x.y = (x.x + y.y - (x-y).(x-y)) / 2 */
double encode_stats_cosine(const encode_stats *s)
{
    double x = s->source_squares, y = s->result_squares;
    if (s->error_squares == 0.0)
        return 1.0;
    return x == 0.0 || y == 0.0 ? 0.0 : (x + y - s->error_squares) / 2.0 / (sqrt(x) * sqrt(y));
}

/* ---- checks ---- */

/* The first value of a piece that is not finite, or, of a result, has become infinite. */
static bool refuse(const float *values, int64_t rows, int64_t cols, int64_t stride, int64_t row, int64_t col, const char *to, error *err)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float v = values[r * stride + c];
            if (isfinite(v))
                continue;
            long long at_row = (long long)(row + r), at_col = (long long)(col + c);
            if (to)
                return error_set(err, ERROR_INPUT, "row %lld, column %lld is so large that it becomes infinite as %s; "
                                 "keep this tensor in a wider format (exclude it)", at_row, at_col, to);
            return error_set(err, ERROR_INPUT, "row %lld, column %lld is %s; only finite values can be encoded, "
                             "so the source checkpoint must be repaired", at_row, at_col, isnan(v) ? "not a number" : "infinite");
        }
    return true;
}

/* ---- one call ---- */

/* What one call of encode_rows works with. */
typedef struct encoder {
    const encode_kernels *kernels;
    const matrix *source;
    int64_t first_row;    /* of the source: row 0 of the result */
    matrix result;        /* the rows of this call */
    uint8_t *data;        /* result.data, for writing */
    uint8_t *scales;      /* result.scales, for writing */
    block_rule rule;      /* its importance: of column 0 */
    encode_stats *stats;  /* NULL: not wanted */
} encoder;

/* Values that were just encoded, [rows][stride] at (row, col) of the result: decodes them again where that is needed, to measure
 * the error or to see whether large ones stayed finite. y has room for cols values. */
static bool check_result(const encoder *e, const float *x, int64_t rows, int64_t cols, int64_t stride, int64_t row, int64_t col,
                         uint32_t largest, float *y, error *err)
{
    const format *f = e->result.format;
    bool large = largest >= LARGE_BITS;
    for (int64_t r = 0; r < rows && (e->stats || large); r++) {
        f->decode(&e->result, row + r, col, cols, y);
        if (large && !refuse(y, 1, cols, cols, e->first_row + row + r, col, f->name, err))
            return false;
        if (e->stats)
            e->kernels->measure(x + r * stride, y, cols, e->stats);
    }
    return true;
}

static void encode_piece(const encoder *e, const float *x, int64_t row, int64_t col, int64_t count)
{
    const format *f = e->result.format;
    const encode_kernels *k = e->kernels;
    int64_t first = row * e->result.cols + col;
    uint8_t *data = e->data + first * f->bits / 8;
    block_rule rule = e->rule;
    if (rule.importance)
        rule.importance += col;
    switch (f->id) {
    case FORMAT_BF16:
        k->bf16(x, count, data);
        break;
    case FORMAT_MXFP4:
        k->mxfp4(x, count / MXFP4_BLOCK, &rule, data, e->scales + first / MXFP4_BLOCK);
        break;
    case FORMAT_NVFP4:
        k->nvfp4(x, count / NVFP4_BLOCK, &rule, data, e->scales + first / NVFP4_BLOCK);
        break;
    default:
        f->encode(x, 1, count, 1.0f, data, NULL);
    }
}

static bool encode_by_rows(const encoder *e, error *err)
{
    float x[PIECE_COLS], y[PIECE_COLS];
    int64_t cols = e->result.cols;
    for (int64_t row = 0; row < e->result.rows; row++)
        for (int64_t col = 0; col < cols; col += PIECE_COLS) {
            int64_t count = cols - col < PIECE_COLS ? cols - col : PIECE_COLS;
            e->source->format->decode(e->source, e->first_row + row, col, count, x);
            uint32_t largest = e->kernels->largest(x, count);
            if (largest >= INFINITE_BITS)
                return refuse(x, 1, count, count, e->first_row + row, col, NULL, err);
            encode_piece(e, x, row, col, count);
            if (!check_result(e, x, 1, count, count, row, col, largest, y, err))
                return false;
        }
    return true;
}

/* One block of rows x cols values at (row, col) of the result; tile has room for 128 x 128. */
static bool encode_fp8_block(const encoder *e, int64_t row, int64_t rows, int64_t col, int64_t cols, float *tile, error *err)
{
    uint32_t largest = 0;
    for (int64_t r = 0; r < rows; r++) {
        float *x = tile + r * FP8_SIDE;
        e->source->format->decode(e->source, e->first_row + row + r, col, cols, x);
        uint32_t bits = e->kernels->largest(x, cols);
        largest = bits > largest ? bits : largest;
    }
    if (largest >= INFINITE_BITS)
        return refuse(tile, rows, cols, FP8_SIDE, e->first_row + row, col, NULL, err);
    float scale = float_of_bits(largest) / 448.0f, y[FP8_SIDE];
    if (scale == 0.0f)
        scale = 1.0f;
    int64_t across = (e->result.cols + FP8_SIDE - 1) / FP8_SIDE;
    memcpy(e->scales + (row / FP8_SIDE * across + col / FP8_SIDE) * 4, &scale, sizeof scale);
    for (int64_t r = 0; r < rows; r++)
        e->kernels->fp8(tile + r * FP8_SIDE, cols, scale, e->data + (row + r) * e->result.cols + col);
    return check_result(e, tile, rows, cols, FP8_SIDE, row, col, largest, y, err);
}

static bool encode_by_squares(const encoder *e, error *err)
{
    float *tile = mem_alloc((size_t)FP8_SIDE * FP8_SIDE, sizeof *tile);
    int64_t rows = e->result.rows, cols = e->result.cols;
    bool ok = true;
    for (int64_t row = 0; row < rows && ok; row += FP8_SIDE)
        for (int64_t col = 0; col < cols && ok; col += FP8_SIDE)
            ok = encode_fp8_block(e, row, rows - row < FP8_SIDE ? rows - row : FP8_SIDE, col,
                                  cols - col < FP8_SIDE ? cols - col : FP8_SIDE, tile, err);
    free(tile);
    return ok;
}

/* The largest magnitude of one row, as bits. */
static bool row_largest(const encoder *e, int64_t row, float *x, uint32_t *most, error *err)
{
    int64_t cols = e->result.cols;
    *most = 0;
    for (int64_t col = 0; col < cols; col += PIECE_COLS) {
        int64_t count = cols - col < PIECE_COLS ? cols - col : PIECE_COLS;
        e->source->format->decode(e->source, e->first_row + row, col, count, x);
        uint32_t bits = e->kernels->largest(x, count);
        if (bits >= INFINITE_BITS)
            return refuse(x, 1, count, count, e->first_row + row, col, NULL, err);
        *most = bits > *most ? bits : *most;
    }
    return true;
}

/* fp8 with one scale per row: every row is read twice. */
static bool encode_by_channels(const encoder *e, error *err)
{
    float x[PIECE_COLS], y[PIECE_COLS];
    int64_t cols = e->result.cols;
    for (int64_t row = 0; row < e->result.rows; row++) {
        uint32_t largest;
        if (!row_largest(e, row, x, &largest, err))
            return false;
        float scale = float_of_bits(largest) / 448.0f;
        if (scale == 0.0f)
            scale = 1.0f;
        memcpy(e->scales + row * 4, &scale, sizeof scale);
        for (int64_t col = 0; col < cols; col += PIECE_COLS) {
            int64_t count = cols - col < PIECE_COLS ? cols - col : PIECE_COLS;
            e->source->format->decode(e->source, e->first_row + row, col, count, x);
            e->kernels->fp8(x, count, scale, e->data + row * cols + col);
            if (!check_result(e, x, 1, count, count, row, col, largest, y, err))
                return false;
        }
    }
    return true;
}

bool encode_rows(const matrix *source, int64_t first_row, int64_t rows, const encode_options *o, float tensor_scale, uint8_t *data,
                 uint8_t *scales, encode_stats *stats, error *err)
{
    static const uint32_t round_bits[SCALE_RULES] = {[SCALE_EVEN] = 0x200000, [SCALE_FLOOR] = 0, [SCALE_CEIL] = 0x3FFFFF};
    const format *f = format_of(o->to);
    uint64_t bytes;
    assert(first_row >= 0 && rows >= 0 && rows <= source->rows - first_row && (unsigned)o->rule < SCALE_RULES);
    assert(format_data_bytes(f, rows, source->cols, &bytes));
    assert(f->id != FORMAT_FP8_BLOCK || (first_row % FP8_SIDE == 0 && (rows % FP8_SIDE == 0 || first_row + rows == source->rows)));
    (void)bytes;
    encoder e = {.kernels = kernels_of(o->variant), .source = source, .first_row = first_row, .data = data, .scales = scales,
                 .stats = stats};
    if (!e.kernels)
        return error_set(err, ERROR_DEVICE, "this CPU cannot run the %s kernels", encode_variant_name(o->variant));
    e.result = (matrix){f, rows, source->cols, data, scales, f->id == FORMAT_NVFP4 ? tensor_scale : 1.0f};
    e.rule = (block_rule){round_bits[o->rule], tensor_scale, o->search, o->importance};
    if (f->id == FORMAT_FP8_CHANNEL)
        return encode_by_channels(&e, err);
    return f->id == FORMAT_FP8_BLOCK ? encode_by_squares(&e, err) : encode_by_rows(&e, err);
}

/* ---- the scale of a tensor ---- */

bool encode_largest(const matrix *source, int64_t first_row, int64_t rows, float *largest, error *err)
{
    const encode_kernels *kernels = kernels_of(ENCODE_BEST);
    float x[PIECE_COLS];
    uint32_t most = 0;
    for (int64_t row = first_row; row < first_row + rows; row++)
        for (int64_t col = 0; col < source->cols; col += PIECE_COLS) {
            int64_t count = source->cols - col < PIECE_COLS ? source->cols - col : PIECE_COLS;
            source->format->decode(source, row, col, count, x);
            uint32_t bits = kernels->largest(x, count);
            if (bits >= INFINITE_BITS)
                return refuse(x, 1, count, count, row, col, NULL, err);
            most = bits > most ? bits : most;
        }
    *largest = float_of_bits(most);
    return true;
}

float encode_tensor_scale(format_id to, float largest)
{
    float scale = largest / (6.0f * 448.0f);
    return to == FORMAT_NVFP4 && scale > 0.0f ? scale : 1.0f;
}
