#include "model/tensors.h"

#include "model/weights.h"

#define TOP(name, member, rows, cols) {name, offsetof(model, member), rows, cols, false}
#define LAYER(name, member, rows, cols) {name, offsetof(layer_weights, member), rows, cols, false}
#define EXPERT(name, member, rows, cols) {name, offsetof(mlp_weights, member), rows, cols, false}
#define MTP(name, member, rows, cols) {name, offsetof(mtp_weights, member), rows, cols, false}
#define TABLE(rows) {rows, sizeof(rows) / sizeof *(rows)}

static const tensor_row top[] = {
    TOP("model.embed_tokens", embed, DIM_VOCAB, DIM_HIDDEN),
    TOP("model.norm.weight", final_norm, DIM_HIDDEN, DIM_ONE),
};

static const tensor_row head[] = {
    TOP("lm_head", lm_head, DIM_VOCAB, DIM_HIDDEN),
};

static const tensor_row layer[] = {
    LAYER("input_layernorm.weight", input_norm, DIM_HIDDEN, DIM_ONE),
    LAYER("post_attention_layernorm.weight", post_attention_norm, DIM_HIDDEN, DIM_ONE),
    LAYER("self_attn.q_a_proj", q_a, DIM_Q_LATENT, DIM_HIDDEN),
    LAYER("self_attn.q_a_layernorm.weight", q_a_norm, DIM_Q_LATENT, DIM_ONE),
    LAYER("self_attn.q_b_proj", q_b, DIM_Q_ALL, DIM_Q_LATENT),
    LAYER("self_attn.kv_a_proj_with_mqa", kv_a, DIM_KV_A, DIM_HIDDEN),
    LAYER("self_attn.kv_a_layernorm.weight", kv_a_norm, DIM_KV_LATENT, DIM_ONE),
    LAYER("self_attn.kv_b_proj", kv_b, DIM_KV_B, DIM_KV_LATENT),
    LAYER("self_attn.o_proj", o, DIM_HIDDEN, DIM_V_ALL),
};

static const tensor_row indexer[] = {
    LAYER("self_attn.indexer.wq_b", indexer.q_b, DIM_INDEX_Q, DIM_Q_LATENT),
    LAYER("self_attn.indexer.wk", indexer.k, DIM_INDEX, DIM_HIDDEN),
    LAYER("self_attn.indexer.k_norm.weight", indexer.k_norm, DIM_INDEX, DIM_ONE),
    LAYER("self_attn.indexer.k_norm.bias", indexer.k_norm_bias, DIM_INDEX, DIM_ONE),
    LAYER("self_attn.indexer.weights_proj", indexer.head_weights, DIM_INDEX_HEADS, DIM_HIDDEN),
};

static const tensor_row dense[] = {
    LAYER("mlp.gate_proj", mlp.gate, DIM_DENSE, DIM_HIDDEN),
    LAYER("mlp.up_proj", mlp.up, DIM_DENSE, DIM_HIDDEN),
    LAYER("mlp.down_proj", mlp.down, DIM_HIDDEN, DIM_DENSE),
};

static const tensor_row sparse[] = {
    LAYER("mlp.gate", router, DIM_EXPERTS, DIM_HIDDEN),
    {"mlp.gate.e_score_correction_bias", offsetof(layer_weights, router_bias), DIM_EXPERTS, DIM_ONE, true},
};

static const tensor_row shared[] = {
    LAYER("mlp.shared_experts.gate_proj", shared.gate, DIM_SHARED, DIM_HIDDEN),
    LAYER("mlp.shared_experts.up_proj", shared.up, DIM_SHARED, DIM_HIDDEN),
    LAYER("mlp.shared_experts.down_proj", shared.down, DIM_HIDDEN, DIM_SHARED),
};

static const tensor_row expert[] = {
    EXPERT("gate_proj", gate, DIM_EXPERT, DIM_HIDDEN),
    EXPERT("up_proj", up, DIM_EXPERT, DIM_HIDDEN),
    EXPERT("down_proj", down, DIM_HIDDEN, DIM_EXPERT),
};

static const tensor_row mtp[] = {
    MTP("enorm.weight", embed_norm, DIM_HIDDEN, DIM_ONE),
    MTP("hnorm.weight", hidden_norm, DIM_HIDDEN, DIM_ONE),
    MTP("eh_proj", project, DIM_HIDDEN, DIM_TWO_HIDDEN),
    MTP("shared_head.norm.weight", head_norm, DIM_HIDDEN, DIM_ONE),
};

const tensor_table tensors_top = TABLE(top), tensors_head = TABLE(head), tensors_layer = TABLE(layer),
                   tensors_indexer = TABLE(indexer), tensors_dense = TABLE(dense), tensors_sparse = TABLE(sparse),
                   tensors_shared = TABLE(shared), tensors_expert = TABLE(expert), tensors_mtp = TABLE(mtp);

void dims_of(const model_config *c, int64_t d[DIM_COUNT])
{
    d[DIM_ONE] = 1;
    d[DIM_HIDDEN] = c->hidden_size;
    d[DIM_TWO_HIDDEN] = 2 * (int64_t)c->hidden_size;
    d[DIM_VOCAB] = c->vocab_size;
    d[DIM_Q_LATENT] = c->q_lora_rank;
    d[DIM_Q_ALL] = (int64_t)c->heads * (c->nope_dim + c->rope_dim);
    d[DIM_KV_LATENT] = c->kv_lora_rank;
    d[DIM_KV_A] = (int64_t)c->kv_lora_rank + c->rope_dim;
    d[DIM_KV_B] = (int64_t)c->heads * (c->nope_dim + c->v_dim);
    d[DIM_V_ALL] = (int64_t)c->heads * c->v_dim;
    d[DIM_INDEX_Q] = (int64_t)c->index_heads * c->index_dim;
    d[DIM_INDEX] = c->index_dim;
    d[DIM_INDEX_HEADS] = c->index_heads;
    d[DIM_DENSE] = c->dense_intermediate;
    d[DIM_SHARED] = (int64_t)c->shared_experts * c->expert_intermediate;
    d[DIM_EXPERT] = c->expert_intermediate;
    d[DIM_EXPERTS] = c->experts;
}

/* Adds `times` copies of a table's parameters to *all, and of its matrices to *matrices. */
static void add_table(const tensor_table *t, const int64_t *d, int times, uint64_t *all, uint64_t *matrices)
{
    for (size_t i = 0; i < t->count; i++) {
        uint64_t n = (uint64_t)times * (uint64_t)d[t->rows[i].rows] * (uint64_t)d[t->rows[i].cols];
        *all += t->rows[i].buffer ? 0 : n;
        *matrices += t->rows[i].cols == DIM_ONE ? 0 : n;
    }
}

static void add_layer(const int64_t *d, const model_config *c, bool full, bool is_sparse, uint64_t *all, uint64_t *active)
{
    uint64_t unused = 0;
    add_table(&tensors_layer, d, 1, all, active);
    add_table(&tensors_indexer, d, full ? 1 : 0, all, active);
    if (!is_sparse) {
        add_table(&tensors_dense, d, 1, all, active);
        return;
    }
    add_table(&tensors_sparse, d, 1, all, active);
    add_table(&tensors_shared, d, 1, all, active);
    add_table(&tensors_expert, d, c->experts, all, &unused);
    add_table(&tensors_expert, d, c->experts_per_token, &unused, active);
}

void config_parameters(const model_config *c, uint64_t *total, uint64_t *active)
{
    int64_t d[DIM_COUNT];
    uint64_t unused = 0;
    dims_of(c, d);
    *total = *active = 0;
    add_table(&tensors_top, d, 1, total, &unused);
    add_table(&tensors_head, d, 1, c->tie_embeddings ? &unused : total, active);
    for (int i = 0; i < c->layers; i++)
        add_layer(d, c, c->full_index[i], c->sparse_mlp[i], total, active);
    if (!c->has_mtp)
        return;
    add_layer(d, c, true, true, total, &unused);
    add_table(&tensors_mtp, d, 1, total, &unused);
}
