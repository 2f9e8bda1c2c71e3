/* Where a token's cached state lies: a page holds 64 tokens of all layers, the draft layer included, so that sharing,
 * spilling or restoring a page can never lose part of it (DESIGN, decision 6).
 *
 *     page:   | layer 0: latent [64][latent_bytes] | index keys [64][index_bytes] (full layers only) | layer 1 ... | draft layer |
 *
 *     latent entry   f32: kv_lora_rank + rope f32
 *                    bf16: kv_lora_rank + rope bf16
 *                    fp8: kv_lora_rank e4m3 | one f32 scale per 128 of them | rope bf16
 *     index entry    f32, bf16: index_dim values;  fp8: index_dim e4m3 | one f32 scale
 *
 * The latent is stored after its norm, the rope part and the index key after rotation. */
#ifndef MODEL_KV_LAYOUT_H
#define MODEL_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

enum { KV_PAGE_TOKENS = 64, KV_SCALE_GROUP = 128 };

typedef enum kv_dtype { KV_F32, KV_BF16, KV_FP8, KV_DTYPE_COUNT } kv_dtype;

const char *kv_dtype_name(kv_dtype t); /* "f32", "bf16", "fp8" */

typedef struct kv_layout {
    kv_dtype dtype;
    int latent_dim, rope_dim, index_dim;         /* values per entry */
    size_t latent_bytes, index_bytes;            /* of one token's entries in one layer */
    int layers;                                  /* trunk layers plus the draft layer when the model has one */
    size_t latent_offset[CONFIG_MAX_LAYERS + 1]; /* of a layer's latents in the page */
    size_t index_offset[CONFIG_MAX_LAYERS + 1];  /* of a layer's index keys; meaningless for layers that share a list */
    size_t page_bytes;
} kv_layout;

kv_layout kv_layout_of(const model_config *c, kv_dtype dtype);

#endif
