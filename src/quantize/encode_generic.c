/* Encoding kernels for any CPU: the plain loops. */
#include "quantize/encode_loops.h"

const encode_kernels encode_kernels_generic = {loop_largest, loop_bf16, loop_fp8, loop_mxfp4, loop_nvfp4, loop_measure};
