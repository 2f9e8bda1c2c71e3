/* RMS norm of rows: one block per row. */
#include "device/gpu/gpu_math.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) norm_kernel(gpu_norm_args a)
{
    __shared__ float scratch[THREADS / GPU_LANES];
    int row = (int)blockIdx.x;
    if (row >= a.step->rows)
        return;
    const float *in = a.in + row * a.in_stride;
    float *out = a.out + row * a.out_stride, squares = 0.0f;
    for (int i = (int)threadIdx.x; i < a.n; i += THREADS)
        squares = gpu_fma(in[i], in[i], squares);
    squares = gpu_block_sum<THREADS>(squares, scratch);
    float scale = 1.0f / gpu_sqrt(squares / (float)a.n + a.eps);
    for (int i = (int)threadIdx.x; i < a.n; i += THREADS)
        out[i] = a.weight[i] * (in[i] * scale);
}

#if GPU_HOST_CODE
void gpu_norm(const gpu_norm_args *a, int rows, gpu_stream s)
{
    GPU_LAUNCH(norm_kernel, dim3((unsigned)rows), dim3(THREADS), 0, s, *a);
}
#endif
