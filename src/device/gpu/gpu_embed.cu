/* Token embeddings and the angles of positions: one block per row. The product of position and frequency is rounded to f32, as in the
 * reference. */
#include "device/gpu/gpu_math.h"

enum { THREADS = 128 };

static __global__ void __launch_bounds__(THREADS) embed_kernel(gpu_embed_args a)
{
    int row = (int)blockIdx.x;
    if (row >= a.step->rows)
        return;
    float *out = a.out + row * a.out_stride, *rope = a.rope + (int64_t)row * a.rope_dim;
    for (int k = 8 * (int)threadIdx.x; k < a.table.cols; k += 8 * THREADS) {
        float values[8];
        gpu_row_values(a.table, a.step->tokens[row], k, values);
        for (int i = 0; i < 8 && k + i < a.table.cols; i++)
            out[k + i] = values[i];
    }
    for (int i = (int)threadIdx.x; i < a.rope_dim / 2; i += THREADS)
        gpu_cos_sin((float)a.step->positions[row] * a.frequency[i], rope + 2 * i, rope + 2 * i + 1);
}

#if GPU_HOST_CODE
void gpu_embed(const gpu_embed_args *a, int rows, gpu_stream s)
{
    GPU_LAUNCH(embed_kernel, dim3((unsigned)rows), dim3(THREADS), 0, s, *a);
}
#endif
