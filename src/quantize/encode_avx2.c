/* Encoding kernels for CPUs with AVX2. */
#if defined(__x86_64__)
/* What the loops include comes first, so that it is compiled for any CPU. */
#include "formats/scalar.h"
#include "quantize/encode_kernels.h"

/* An extension of both compilers, each with its own spelling: instructions chosen per function, no flags per file. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#include "quantize/encode_loops.h"

const encode_kernels encode_kernels_avx2 = {loop_largest, loop_bf16, loop_fp8, loop_mxfp4, loop_nvfp4, loop_measure};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
