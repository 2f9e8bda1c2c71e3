/* Entries of the KV pages (model/kv_layout.h), for kernels. */
#ifndef DEVICE_GPU_GPU_KV_H
#define DEVICE_GPU_GPU_KV_H

#include "device/gpu/gpu_math.h"

/* e4m3 with the group's largest magnitude at 448; a group of zeros has scale 1. The lanes of a warp share the work. */
GPU_DEVICE void gpu_store_fp8_group(const float *v, int n, uint8_t *codes, float *scale_out)
{
    float largest = 0.0f;
    for (int i = gpu_lane(); i < n; i += GPU_LANES)
        largest = gpu_larger(largest, gpu_float(gpu_bits(v[i]) & 0x7FFFFFFFu));
    largest = gpu_lanes_largest(largest);
    float scale = largest > 0.0f ? largest / 448.0f : 1.0f;
    for (int i = gpu_lane(); i < n; i += GPU_LANES)
        codes[i] = gpu_to_e4m3(v[i] / scale);
    if (gpu_lane() == 0)
        *scale_out = scale;
}

/* All threads of a block write n values as they are or as bf16. */
template <int THREADS>
GPU_DEVICE void gpu_store_plain(int dtype, const float *v, int n, uint8_t *entry)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        if (dtype == GPU_KV_F32)
            ((float *)entry)[i] = v[i];
        else
            ((uint16_t *)entry)[i] = gpu_to_bf16(v[i]);
}

/* n values as e4m3 in groups of GPU_KV_GROUP, their scales behind them: a warp per group. */
template <int THREADS>
GPU_DEVICE void gpu_store_fp8(const float *v, int n, uint8_t *entry)
{
    float *scales = (float *)(entry + n);
    for (int g = (int)threadIdx.x / GPU_LANES; g * GPU_KV_GROUP < n; g += THREADS / GPU_LANES)
        gpu_store_fp8_group(v + g * GPU_KV_GROUP, gpu_least(n - g * GPU_KV_GROUP, GPU_KV_GROUP), entry + g * GPU_KV_GROUP, scales + g);
}

GPU_DEVICE int gpu_latent_groups(const gpu_cache &c)
{
    return (c.latent_dim + GPU_KV_GROUP - 1) / GPU_KV_GROUP;
}

/* Values i and i + 1 of a latent entry, i even. */
GPU_DEVICE void gpu_latent_pair(const gpu_cache &c, const uint8_t *entry, int i, float out[2])
{
    if (c.dtype == GPU_KV_F32) {
        out[0] = ((const float *)entry)[i];
        out[1] = ((const float *)entry)[i + 1];
        return;
    }
    if (c.dtype == GPU_KV_FP8 && i < c.latent_dim) {
        float scale = ((const float *)(entry + c.latent_dim))[i / GPU_KV_GROUP];
        uint32_t codes = *(const uint16_t *)(entry + i);
        out[0] = gpu_from_e4m3(codes & 0xFFu) * scale;
        out[1] = gpu_from_e4m3(codes >> 8) * scale;
        return;
    }
    if (c.dtype == GPU_KV_FP8)
        entry += c.latent_dim + 4 * gpu_latent_groups(c) - 2 * c.latent_dim;
    uint32_t codes = *(const uint32_t *)(entry + 2 * i);
    out[0] = gpu_float(codes << 16);
    out[1] = gpu_float(codes & 0xFFFF0000u);
}

/* Values i .. i + 7 of an index entry, i a multiple of 8. */
GPU_DEVICE void gpu_index_piece(const gpu_cache &c, const uint8_t *entry, int i, float out[8])
{
    if (c.dtype == GPU_KV_FP8) {
        float scale = *(const float *)(entry + c.index_dim);
        const uint32_t *codes = (const uint32_t *)(entry + i);
        gpu_from_e4m3x4(codes[0], out);
        gpu_from_e4m3x4(codes[1], out + 4);
        GPU_UNROLL for (int j = 0; j < 8; j++)
            out[j] *= scale;
    } else if (c.dtype == GPU_KV_BF16) {
        gpu_u4 codes = *(const gpu_u4 *)(entry + 2 * i);
        gpu_decode_piece<GPU_BF16>(&codes, 0, out);
    } else {
        gpu_u4 codes[2] = {((const gpu_u4 *)(entry + 4 * i))[0], ((const gpu_u4 *)(entry + 4 * i))[1]};
        gpu_decode_piece<GPU_F32>(codes, 0, out);
    }
}

#endif
