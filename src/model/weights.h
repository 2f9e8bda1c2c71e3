/* A checkpoint as typed weights. Formats are decided by the tensor headers alone (DESIGN, decision 1); what config.json
 * claims about them is compared and reported, never used.
 *
 * Matrices point into the mapped checkpoint. Norm weights and biases (a few kB each) are decoded to f32 at load. */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/memory.h"
#include "formats/format.h"
#include "formats/safetensors.h"
#include "model/config.h"

typedef struct mlp_weights {
    matrix gate, up; /* [intermediate][hidden] */
    matrix down;     /* [hidden][intermediate] */
} mlp_weights;

typedef struct indexer_weights {
    matrix q_b;                            /* [index_heads * index_dim][q_lora_rank], "wq_b" */
    matrix k;                              /* [index_dim][hidden], "wk" */
    const float *k_norm, *k_norm_bias;     /* [index_dim] each */
    matrix head_weights;                   /* [index_heads][hidden], "weights_proj" */
} indexer_weights;

typedef struct layer_weights {
    const float *input_norm, *post_attention_norm; /* [hidden] */
    matrix q_a;                 /* [q_lora_rank][hidden] */
    const float *q_a_norm;      /* [q_lora_rank] */
    matrix q_b;                 /* [heads * (nope + rope)][q_lora_rank] */
    matrix kv_a;                /* [kv_lora_rank + rope][hidden] */
    const float *kv_a_norm;     /* [kv_lora_rank] */
    matrix kv_b;                /* [heads * (nope + v)][kv_lora_rank] */
    matrix o;                   /* [hidden][heads * v] */
    bool full_index;            /* indexer below is present */
    indexer_weights indexer;
    bool sparse;                /* router, shared and experts are present; else mlp */
    mlp_weights mlp;
    matrix router;              /* [experts][hidden] */
    const float *router_bias;   /* [experts] e_score_correction_bias, for the choice only */
    mlp_weights shared;         /* absent (format NULL) when shared_experts is 0 */
    mlp_weights *experts;       /* [experts] */
} layer_weights;

typedef struct mtp_weights {
    const float *embed_norm, *hidden_norm; /* enorm, hnorm [hidden] */
    matrix project;                        /* eh_proj [hidden][2 * hidden]: embedding half first */
    const float *head_norm;                /* shared_head.norm [hidden] */
    layer_weights layer;                   /* always full_index and sparse */
} mtp_weights;

/* One sentence for the user, without a full stop. */
typedef struct disagreement {
    char *text;
} disagreement;

typedef struct model {
    model_config config;
    char *directory;
    checkpoint *checkpoint;
    arena memory;
    matrix embed, lm_head;      /* [vocab][hidden] */
    const float *final_norm;    /* [hidden] */
    layer_weights *layers;      /* [config.layers] */
    mtp_weights mtp;            /* when config.has_mtp */
    disagreement *disagreements; /* differences between config.json and what the headers say */
    int disagreement_count;
    disagreement *notices;      /* other things found: tensors not read, keys not known */
    int notice_count;
    int format_tensors[FORMAT_COUNT];      /* matrices found per format; every expert of a stacked tensor counts */
    uint64_t format_bytes[FORMAT_COUNT];   /* their bytes, scales included */
    uint64_t parameters, active_parameters; /* total with the MTP layer; per token without it, lm_head included */
} model;

/* Opens a checkpoint directory: config.json and the tensors. Every tensor the architecture needs must be there with its
 * shape, and no tensor may be left over (known harmless ones aside); the first few offenders are named. Whether there is an
 * MTP layer is decided by its tensors: config.has_mtp then says what was found. A caller who wants HF's epsilon sets
 * config.latent_norm_eps afterwards. */
model *model_open(const char *directory, error *err);
void model_close(model *m);

#endif
