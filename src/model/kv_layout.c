#include "model/kv_layout.h"

const char *kv_dtype_name(kv_dtype t)
{
    static const char *const names[KV_DTYPE_COUNT] = {"f32", "bf16", "fp8"};
    return names[t];
}

static size_t latent_entry_bytes(kv_dtype dtype, size_t latent_dim, size_t rope_dim)
{
    switch (dtype) {
    case KV_F32: return (latent_dim + rope_dim) * 4;
    case KV_BF16: return (latent_dim + rope_dim) * 2;
    default: return latent_dim + (latent_dim + KV_SCALE_GROUP - 1) / KV_SCALE_GROUP * 4 + rope_dim * 2;
    }
}

static size_t index_entry_bytes(kv_dtype dtype, size_t index_dim)
{
    switch (dtype) {
    case KV_F32: return index_dim * 4;
    case KV_BF16: return index_dim * 2;
    default: return index_dim + 4;
    }
}

kv_layout kv_layout_of(const model_config *c, kv_dtype dtype)
{
    kv_layout k = {.dtype = dtype, .latent_dim = c->kv_lora_rank, .rope_dim = c->rope_dim, .index_dim = c->index_dim};
    k.latent_bytes = latent_entry_bytes(dtype, (size_t)c->kv_lora_rank, (size_t)c->rope_dim);
    k.index_bytes = index_entry_bytes(dtype, (size_t)c->index_dim);
    k.layers = c->layers + (c->has_mtp ? 1 : 0);
    for (int i = 0; i < k.layers; i++) {
        k.latent_offset[i] = k.page_bytes;
        k.page_bytes += KV_PAGE_TOKENS * k.latent_bytes;
        k.index_offset[i] = k.page_bytes;
        if (i == c->layers || c->full_index[i])
            k.page_bytes += KV_PAGE_TOKENS * k.index_bytes;
    }
    return k;
}
