/* Which sparse-attention kernel there is for which shapes (gpu_attention.h). */
#include "device/gpu/hopper/gpu_attention.h"

void gpu_attention_split_sm90(const gpu_attend_args *a, int rows, gpu_stream s);
void gpu_attention_rows_sm90(const gpu_attend_args *a, const gpu_attention_limits *l, void *scratch, int rows, gpu_stream s);
size_t gpu_attention_rows_sm90_bytes(const gpu_attention_limits *l);

enum { MOST_CHUNKS = 8 }; /* blocks of a cluster */

bool gpu_attention_supports(gpu_attention_kernel kernel, const gpu_attend_args *a)
{
    bool large = a->cache.latent_dim == 512 && a->cache.rope_dim == 64, small = a->cache.latent_dim == 128 && a->cache.rope_dim == 32;
    if (a->cache.dtype == GPU_KV_F32 || a->nope % 4 != 0 || a->topk > MOST_CHUNKS * GPU_ATTENTION_CHUNK)
        return false;
    if (kernel == GPU_ATTENTION_ROWS)
        return large && a->heads % 64 == 0;
    return (large || small) && a->heads % 8 == 0;
}

size_t gpu_attention_scratch_bytes(gpu_attention_kernel kernel, const gpu_attention_limits *l)
{
    return kernel == GPU_ATTENTION_ROWS ? gpu_attention_rows_sm90_bytes(l) : 0;
}

void gpu_attention(gpu_attention_kernel kernel, const gpu_attend_args *a, const gpu_attention_limits *l, void *scratch, int rows,
                   gpu_stream s)
{
    if (rows > 0 && kernel == GPU_ATTENTION_ROWS)
        gpu_attention_rows_sm90(a, l, scratch, rows, s);
    else if (rows > 0)
        gpu_attention_split_sm90(a, rows, s);
}
