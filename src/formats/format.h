/* Number formats of weights, one table row each, and matrices stored in them.
 *
 * A matrix is rows x cols values in row-major order. Its bytes are borrowed from a mapped checkpoint, in the
 * checkpoint's own layout, with no alignment guaranteed. */
#ifndef FORMATS_FORMAT_H
#define FORMATS_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum format_id {
    FORMAT_F32,
    FORMAT_BF16,
    FORMAT_FP8_BLOCK, /* e4m3, one f32 scale per 128 x 128 block (DeepSeek, zai-org) */
    FORMAT_MXFP4,     /* e2m1 pairs, one e8m0 scale per 32 values of a row (OCP MX, AMD Quark) */
    FORMAT_NVFP4,     /* e2m1 pairs, one e4m3 scale per 16 values of a row, one f32 scale per matrix (modelopt) */
    FORMAT_FP8_CHANNEL, /* e4m3, one f32 scale per row (AMD Quark's attention weights) */
    FORMAT_COUNT
} format_id;

enum { FORMAT_WHOLE_ROW = INT32_MAX }; /* as block_cols */

typedef struct format format;

typedef struct matrix {
    const format *format;  /* NULL: no matrix */
    int64_t rows, cols;    /* values, not bytes */
    const uint8_t *data;   /* rows of format_row_bytes() each */
    const uint8_t *scales; /* block scales, NULL where the format has none:
                              FP8_BLOCK f32 [ceil(rows/128)][ceil(cols/128)], MXFP4 e8m0 [rows][cols/32],
                              NVFP4 e4m3 [rows][cols/16], FP8_CHANNEL f32 [rows] */
    float scale;           /* NVFP4: weight_scale_2; other formats: 1 */
} matrix;

struct format {
    format_id id;
    const char *name;          /* "bf16", "mxfp4", ... as users write it */
    const char *description;   /* one line for reports */
    int bits;                  /* per value, scales aside */
    int block_rows, block_cols; /* the values that share one scale; 0: no scales. FORMAT_WHOLE_ROW: all of a row */
    int scale_bytes;           /* per block; 0: no scales */
    /* Decodes values first_col .. first_col+count-1 of one row. For the block formats first_col may be any column. */
    void (*decode)(const matrix *m, int64_t row, int64_t first_col, int64_t count, float *out);
    /* Encodes whole rows: data and scales have the sizes of format_data_bytes/format_scale_bytes. tensor_scale is used by
     * NVFP4 only, and is positive there. Values must be finite (the caller checks). */
    void (*encode)(const float *values, int64_t rows, int64_t cols, float tensor_scale, uint8_t *data, uint8_t *scales);
};

const format *format_of(format_id id);
const format *format_by_name(const char *name); /* NULL when unknown */

/* Sizes of a matrix in bytes; false when cols does not fit the format's packing or a product overflows. */
bool format_data_bytes(const format *f, int64_t rows, int64_t cols, uint64_t *out);
bool format_scale_bytes(const format *f, int64_t rows, int64_t cols, uint64_t *out);
size_t format_row_bytes(const format *f, int64_t cols); /* for sizes that format_data_bytes accepted */

/* Decodes one whole row to out[cols]. */
static inline void matrix_row(const matrix *m, int64_t row, float *out)
{
    m->format->decode(m, row, 0, m->cols, out);
}

/* rows first .. first+count-1 of a matrix as a matrix of its own. The range must lie inside (asserted); for FP8_BLOCK
 * `first` must be a multiple of 128. */
matrix matrix_rows(const matrix *m, int64_t first, int64_t count);

#endif
