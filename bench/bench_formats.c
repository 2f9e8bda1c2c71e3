/* How fast rows decode and encode, per format, on one core: values per second of CPU time over a matrix of 2048 x 6144 (one
 * expert projection of GLM-5.2). Prints the best of several passes. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/memory.h"
#include "base/random.h"
#include "formats/format.h"

enum { ROWS = 2048, COLS = 6144, PASSES = 7 };

static double best_seconds(double best, clock_t start)
{
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    return best == 0.0 || seconds < best ? seconds : best;
}

static void measure(const format *f, const float *values, float *row)
{
    uint64_t data_bytes, scale_bytes;
    if (!format_data_bytes(f, ROWS, COLS, &data_bytes) || !format_scale_bytes(f, ROWS, COLS, &scale_bytes))
        return;
    uint8_t *data = mem_alloc(data_bytes, 1), *scales = mem_alloc(scale_bytes, 1);
    double encode = 0.0, decode = 0.0;
    for (int pass = 0; pass < PASSES; pass++) {
        clock_t start = clock();
        f->encode(values, ROWS, COLS, 1.0f / 2688.0f, data, scales);
        encode = best_seconds(encode, start);
        matrix m = {f, ROWS, COLS, data, scales, 1.0f / 2688.0f};
        start = clock();
        for (int64_t r = 0; r < ROWS; r++)
            matrix_row(&m, r, row);
        decode = best_seconds(decode, start);
    }
    double count = (double)ROWS * COLS, bytes = (double)(data_bytes + scale_bytes);
    printf("%-10s decode %7.2f G values/s (%6.2f GB/s stored)   encode %6.3f G values/s\n", f->name, count / decode * 1e-9,
           bytes / decode * 1e-9, count / encode * 1e-9);
    free(data);
    free(scales);
}

int main(void)
{
    float *values = mem_alloc((size_t)ROWS * COLS, sizeof *values), *row = mem_alloc(COLS, sizeof *row);
    for (uint64_t i = 0; i < (uint64_t)ROWS * COLS; i++)
        values[i] = (float)(random_uniform(1, i, 0) + random_uniform(1, i, 1) - 1.0);
    for (format_id id = 0; id < FORMAT_COUNT; id++)
        measure(format_of(id), values, row);
    free(values);
    free(row);
    return 0;
}
