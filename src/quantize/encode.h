/* Encoding kernels of the quantizer: rows of a matrix in any format become rows in another one.
 *
 * A call works on some rows of one matrix, uses no global state and allocates at most 128 KiB, so threads can share a tensor
 * by rows. The bytes that come out depend on the values and the options alone: not on the split into calls, not on the
 * variant (generic, AVX2, AVX-512), not on the machine. Without search they are those of format->encode (rule "even").
 *
 *     encode_options o = {.to = FORMAT_MXFP4, .rule = SCALE_EVEN};
 *     encode_stats stats = {0};
 *     if (!encode_rows(&source, first, count, &o, 1.0f, data, scales, &stats, err))
 *         return error_add(err, "tensor %s", name);
 */
#ifndef QUANTIZE_ENCODE_H
#define QUANTIZE_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/format.h"

/* How MXFP4 chooses a block's power-of-two scale from its largest magnitude amax = m * 2^e, 1 <= m < 2. */
typedef enum scale_rule {
    SCALE_EVEN,  /* 2^(e-2), doubled when m >= 1.75: scaled amax in [3.5, 7), clipped above 6 (AMD Quark) */
    SCALE_FLOOR, /* 2^(e-2): scaled amax in [4, 8), clipped above 6 (OCP MX specification) */
    SCALE_CEIL,  /* the smallest power of two with amax / scale <= 6: nothing is clipped (torchao calls it RCEIL) */
    SCALE_RULES
} scale_rule;

const char *scale_rule_name(scale_rule rule); /* "even", "floor", "ceil" */
bool scale_rule_by_name(const char *name, scale_rule *out);

/* Implementations of the same function; all give the same bytes and the same statistics. */
typedef enum encode_variant {
    ENCODE_BEST, /* the fastest one this CPU can run */
    ENCODE_GENERIC,
    ENCODE_AVX2,
    ENCODE_AVX512, /* F, BW, VL */
    ENCODE_VARIANTS
} encode_variant;

const char *encode_variant_name(encode_variant variant);
bool encode_variant_available(encode_variant variant); /* can this build on this CPU run it? */

typedef struct encode_options {
    format_id to;            /* any format */
    scale_rule rule;         /* MXFP4 only */
    bool search;             /* MXFP4, NVFP4: try neighbouring block scales, keep the one with the least squared error */
    const float *importance; /* [cols] weights of the squared error in the search, finite and not negative; NULL: all 1 */
    encode_variant variant;  /* ENCODE_BEST, but for tests and benchmarks */
} encode_options;

/* Sums over the values encoded so far. Start from {0}. Results of calls are merged in row order, then they do not
 * depend on the number of threads (but, in the last digits, on how rows were split into calls: keep that fixed). */
typedef struct encode_stats {
    int64_t values;        /* how many */
    double source_squares; /* sum of x^2, x the value as decoded from the source */
    double result_squares; /* sum of y^2, y the value as decoded from the result */
    double error_squares;  /* sum of (x - y)^2 */
    double max_error;      /* largest |x - y| */
} encode_stats;

void encode_stats_merge(encode_stats *into, const encode_stats *more);
double encode_stats_relative_l2(const encode_stats *s); /* sqrt(error_squares / source_squares); 0 without error */
double encode_stats_cosine(const encode_stats *s);      /* of x and y; 1 when both are zero */

/* Encodes rows first_row .. first_row+rows-1 of the source. data and scales are where the first of these rows goes, with room
 * for format_data_bytes and format_scale_bytes of rows x source->cols (scales may be NULL where the format has none).
 * cols must fit the format (format_data_bytes says so; asserted). For FP8_BLOCK first_row is a multiple of 128, and so is rows
 * unless the range ends with the matrix. tensor_scale: NVFP4's weight_scale_2, positive; ignored otherwise. stats may be NULL,
 * which saves time; else the sums of this call are added to it.
 * Fails, naming row and column, at a NaN or an infinity in the source, and at a value that would become infinite (bf16). */
bool encode_rows(const matrix *source, int64_t first_row, int64_t rows, const encode_options *o, float tensor_scale, uint8_t *data,
                 uint8_t *scales, encode_stats *stats, error *err);

/* The largest magnitude of some rows, for encode_tensor_scale; fails as above at NaN and infinity. The largest of the results of
 * several calls is that of all rows. */
bool encode_largest(const matrix *source, int64_t first_row, int64_t rows, float *largest, error *err);

/* The tensor scale for encode_rows: largest / (6 * 448) for NVFP4 as modelopt has it (1 where that is zero); 1 otherwise. */
float encode_tensor_scale(format_id to, float largest);

#endif
