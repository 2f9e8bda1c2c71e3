/* Rows of a buffer to the front of another: what a draft chain takes from the rows it continues. */
#include "device/gpu/gpu_math.h"

enum { THREADS = 256 };

static __global__ void __launch_bounds__(THREADS) gather_kernel(gpu_gather_args a)
{
    int row = (int)blockIdx.x;
    if (row >= *a.count)
        return;
    const uint32_t *from = a.from + (int64_t)a.list[row] * a.words;
    uint32_t *to = a.to + (int64_t)row * a.words;
    for (int i = (int)threadIdx.x; i < a.words; i += THREADS)
        to[i] = from[i];
}

#if GPU_HOST_CODE
void gpu_gather(const gpu_gather_args *a, int rows, gpu_stream s)
{
    GPU_LAUNCH(gather_kernel, dim3((unsigned)rows), dim3(THREADS), 0, s, *a);
}
#endif
