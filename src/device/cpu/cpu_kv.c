/* Entries of the KV pages: f32, bf16 and fp8 as drawn in model/kv_layout.h. */
#include <math.h>
#include <string.h>

#include "base/sanitize.h"
#include "device/cpu/cpu.h"
#include "formats/decode_kernels.h"
#include "formats/scalar.h"

static void store_bf16(const float *v, int n, uint8_t *out)
{
    for (int i = 0; i < n; i++) {
        uint16_t code = bf16_encode(v[i]);
        memcpy(out + 2 * i, &code, 2);
    }
}

static void load_bf16(const uint8_t *in, int n, float *v)
{
    touch_range(in, (size_t)n * 2);
    touch_range(v, (size_t)n * sizeof *v);
    decode_kernels_at(0)->bf16(in, n, v);
}

/* e4m3 with the group's largest magnitude at 448; a group of zeros has scale 1. */
static void store_fp8_group(const float *v, int n, uint8_t *codes, uint8_t *scale_out)
{
    float amax = 0;
    for (int i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(v[i]));
    float scale = amax > 0 ? amax / 448.0f : 1.0f;
    for (int i = 0; i < n; i++)
        codes[i] = e4m3_encode(v[i] / scale);
    memcpy(scale_out, &scale, 4);
}

static void load_fp8_group(const uint8_t *codes, const uint8_t *scale_in, int n, float *v)
{
    float scale;
    memcpy(&scale, scale_in, 4);
    touch_range(codes, (size_t)n);
    touch_range(v, (size_t)n * sizeof *v);
    decode_kernels_at(0)->fp8(codes, n, scale, v);
}

static int group_size(int dim, int first)
{
    return dim - first < KV_SCALE_GROUP ? dim - first : KV_SCALE_GROUP;
}

void cpu_latent_store(const kv_layout *k, const float *latent, uint8_t *entry)
{
    int n = k->latent_dim + k->rope_dim, groups = (k->latent_dim + KV_SCALE_GROUP - 1) / KV_SCALE_GROUP;
    if (k->dtype == KV_F32) {
        memcpy(entry, latent, (size_t)n * 4);
    } else if (k->dtype == KV_BF16) {
        store_bf16(latent, n, entry);
    } else {
        uint8_t *scales = entry + k->latent_dim;
        for (int g = 0; g < groups; g++) {
            int first = g * KV_SCALE_GROUP;
            store_fp8_group(latent + first, group_size(k->latent_dim, first), entry + first, scales + 4 * g);
        }
        store_bf16(latent + k->latent_dim, k->rope_dim, scales + 4 * groups);
    }
}

void cpu_latent_load(const kv_layout *k, const uint8_t *entry, float *latent)
{
    int n = k->latent_dim + k->rope_dim, groups = (k->latent_dim + KV_SCALE_GROUP - 1) / KV_SCALE_GROUP;
    if (k->dtype == KV_F32) {
        memcpy(latent, entry, (size_t)n * 4);
    } else if (k->dtype == KV_BF16) {
        load_bf16(entry, n, latent);
    } else {
        const uint8_t *scales = entry + k->latent_dim;
        for (int g = 0; g < groups; g++) {
            int first = g * KV_SCALE_GROUP;
            load_fp8_group(entry + first, scales + 4 * g, group_size(k->latent_dim, first), latent + first);
        }
        load_bf16(scales + 4 * groups, k->rope_dim, latent + k->latent_dim);
    }
}

void cpu_index_key_store(const kv_layout *k, const float *key, uint8_t *entry)
{
    if (k->dtype == KV_F32)
        memcpy(entry, key, (size_t)k->index_dim * 4);
    else if (k->dtype == KV_BF16)
        store_bf16(key, k->index_dim, entry);
    else
        store_fp8_group(key, k->index_dim, entry, entry + k->index_dim);
}

/* Index keys that lie side by side in a page. */
static void load_index_run(const kv_layout *k, const uint8_t *entries, int count, float *out)
{
    if (k->dtype == KV_F32) {
        memcpy(out, entries, (size_t)(count * k->index_dim) * 4);
    } else if (k->dtype == KV_BF16) {
        load_bf16(entries, count * k->index_dim, out);
    } else {
        for (int i = 0; i < count; i++, entries += k->index_bytes)
            load_fp8_group(entries, entries + k->index_dim, k->index_dim, out + i * k->index_dim);
    }
}

void cpu_index_keys_load(const kv_layout *k, const step *s, int row, int layer, int first, int count, float *out)
{
    for (int i = 0, run; i < count; i += run) {
        int in_page = KV_PAGE_TOKENS - (first + i) % KV_PAGE_TOKENS;
        run = count - i < in_page ? count - i : in_page;
        load_index_run(k, cpu_entry(k, s, row, first + i, k->index_offset[layer], k->index_bytes), run, out + i * k->index_dim);
    }
}
