/* Encoding kernels for CPUs with AVX-512. */
#if defined(__x86_64__)
/* What the loops include comes first, so that it is compiled for any CPU. */
#include "formats/scalar.h"
#include "quantize/encode_kernels.h"

/* An extension of both compilers, each with its own spelling: instructions chosen per function, no flags per file. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,prefer-vector-width=512")
#endif

#include "quantize/encode_loops.h"

const encode_kernels encode_kernels_avx512 = {loop_largest, loop_bf16, loop_fp8, loop_mxfp4, loop_nvfp4, loop_measure};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
