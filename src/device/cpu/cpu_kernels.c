/* The kernels for any CPU, and the table of variants. */
#include "device/cpu/cpu_kernels.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/sanitize.h"

enum { LANES = 16 };

static float fold(float lane[LANES])
{
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

UNCHECKED_LOOP static float dot(const float *a, const float *b, int64_t n)
{
    float lane[LANES] = {0};
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += a[k + j] * b[k + j];
    for (int j = 0; k < n; k++, j++)
        lane[j] += a[k] * b[k];
    return fold(lane);
}

UNCHECKED_LOOP static float dot_fused(const float *a, const float *b, int64_t n)
{
    float lane[LANES] = {0};
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = fmaf(a[k + j], b[k + j], lane[j]);
    for (int j = 0; k < n; k++, j++)
        lane[j] = fmaf(a[k], b[k], lane[j]);
    return fold(lane) + 0.0f;
}

static void generic_dots(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            y[r * CPU_COLUMN_BLOCK + c] = dot(w + c * w_stride, x[r], n);
}

static void generic_dots_fused(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            y[r * CPU_COLUMN_BLOCK + c] = dot_fused(w + c * w_stride, x[r], n);
}

UNCHECKED_LOOP static void add_one_scaled(float *restrict out, float scale, const float *restrict x, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        out[k] += scale * x[k];
}

static void generic_add_scaled(float *out, const float *scales, const float *x, int64_t x_stride, int count, int64_t n)
{
    for (int i = 0; i < count; i++)
        add_one_scaled(out, scales[i], x + i * x_stride, n);
}

const cpu_kernels cpu_kernels_generic = {"generic", generic_dots, generic_dots_fused, generic_add_scaled};

/* __builtin_cpu_supports (gcc, clang) also asks whether the system saves the registers. */
const cpu_kernels *cpu_kernels_at(int index)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && index-- == 0)
        return &cpu_kernels_avx2;
#endif
    return index == 0 ? &cpu_kernels_generic : NULL;
}
