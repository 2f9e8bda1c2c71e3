/* config.json of a GlmMoeDsaForCausalLM checkpoint (GLM-5, 5.1, 5.2, 5.3), as a typed and checked struct.
 *
 * Keys that would change the computation and that we do not implement are refused by name; keys that carry no
 * meaning for inference are ignored knowingly (the list is in config.c). */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

enum { CONFIG_MAX_LAYERS = 512, CONFIG_MAX_EOS = 8 };

typedef struct model_config {
    int vocab_size, hidden_size, layers; /* layers: num_hidden_layers, the MTP layer not counted */
    int heads;                           /* num_attention_heads */
    int q_lora_rank, kv_lora_rank;       /* widths of the query latent and of the cached KV latent */
    int nope_dim, rope_dim, v_dim;       /* qk_nope_head_dim, qk_rope_head_dim, v_head_dim */
    int dense_intermediate;              /* intermediate_size: width of a dense MLP */
    int expert_intermediate;             /* moe_intermediate_size: width of one expert */
    int experts, experts_per_token, shared_experts;
    int expert_groups, expert_groups_kept; /* n_group, topk_group */
    bool normalize_expert_weights;       /* norm_topk_prob */
    float routed_scale;                  /* routed_scaling_factor */
    float norm_eps;                      /* rms_norm_eps */
    float latent_norm_eps;               /* eps of q_a_layernorm and kv_a_layernorm: norm_eps unless the user asks for
                                            HF's 1e-6 (docs/model.md) */
    double rope_theta;
    int max_positions;                   /* max_position_embeddings */
    int index_heads, index_dim, index_topk;
    bool share_index_in_drafts;          /* index_share_for_mtp_iteration */
    bool has_mtp;                        /* num_nextn_predict_layers is 1 (0 or absent: none; more is refused) */
    bool tie_embeddings;
    bool full_index[CONFIG_MAX_LAYERS];  /* layer computes its own index list (else reuses the last one) */
    bool sparse_mlp[CONFIG_MAX_LAYERS];  /* layer has experts (else a dense MLP) */
    int eos[CONFIG_MAX_EOS], eos_count;
} model_config;

bool config_parse(const json_t *root, const char *where, model_config *out, error *err);
bool config_load(const char *directory, model_config *out, error *err); /* directory/config.json */

/* The parsed file, for those who need more of it; *path receives its name for messages. NULL on failure; json_decref frees. */
json_t *config_read(const char *directory, text *path, error *err);

/* Keys of config.json that are in none of our lists, as "a, b, c" at the end of out (no change when there are none): they are
 * reported, so that a key of a later model does not go unnoticed. Returns how many. */
int config_unknown_keys(const json_t *root, text *out);

/* Parameters of the architecture. total: every matrix and norm, the MTP layer included, the router's correction bias (a
 * buffer in HF) not. active: the matrices one token is multiplied by, lm_head included; embedding, norms and MTP layer not. */
void config_parameters(const model_config *c, uint64_t *total, uint64_t *active);

#endif
