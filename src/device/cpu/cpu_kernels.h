/* The inner loops of the CPU device, one row of functions per variant, and the choice between them.
 *
 * All variants give the same bits. A dot product runs in 16 lanes: value k goes into lane k % 16, each product is rounded before it is
 * added, and the lanes fold in a tree, lane j + 8 onto lane j, then 4, 2, 1. A weighted sum adds its terms to each element in their
 * order. How many rows or columns a variant computes at a time is its own affair and changes no sum. The fused dot product is the same
 * but for its steps: product and sum are rounded once, together; +0 is added at the end, so that a zero has no sign. */
#ifndef DEVICE_CPU_CPU_KERNELS_H
#define DEVICE_CPU_CPU_KERNELS_H

#include <stdint.h>

/* Output columns that one task of a projection computes, the most that `dots` takes at once. */
enum { CPU_COLUMN_BLOCK = 8 };

typedef struct cpu_kernels {
    const char *name; /* "avx2": as in device.description */
    /* y[r][c] = w[c] . x[r] for r < rows and c < columns <= CPU_COLUMN_BLOCK; w + c * w_stride and x[r] are n values each, y has
     * CPU_COLUMN_BLOCK columns. */
    void (*dots)(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y);
    void (*dots_fused)(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y);
    /* out[k] = ((out[k] + scales[0] * x[0][k]) + scales[1] * x[1][k]) + ... for k < n; x + i * x_stride are `count` vectors. */
    void (*add_scaled)(float *out, const float *scales, const float *x, int64_t x_stride, int count, int64_t n);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_generic;
#if defined(__x86_64__)
extern const cpu_kernels cpu_kernels_avx2;
#endif

/* The variants that this build on this CPU can run, the best first, the generic one last; NULL behind it. */
const cpu_kernels *cpu_kernels_at(int index);

#endif
