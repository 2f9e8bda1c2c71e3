/* Small checkpoints for tests: tensors with known bytes, written in any layout, and what each matrix must decode to. */
#ifndef TESTS_CHECKPOINT_BUILDER_H
#define TESTS_CHECKPOINT_BUILDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "formats/safetensors.h"
#include "formats/scalar.h"
#include "model/weights.h"

enum {
    HIDDEN = 160,
    VOCAB = 40,
    HEADS = 2,
    NOPE = 32,
    ROPE = 16,
    VALUE = 32,
    Q_LATENT = 64,
    KV_LATENT = 32,
    DENSE = 192,
    WIDTH = 128,
    EXPERTS = 4,
    INDEX_HEADS = 4,
    INDEX_DIM = 32,
    LAYERS = 2
};

typedef struct item {
    char name[112];
    dtype type;
    int rank;
    int64_t shape[3];
    uint8_t *bytes;
    size_t count; /* bytes */
} item;

typedef struct builder {
    item *items;
    size_t count, capacity;
    uint64_t state;      /* of the random bytes */
    format_id attention; /* layout of self_attn projections */
    format_id experts;   /* layout of routed and shared experts of the trunk */
    format_id draft;     /* layout of the MTP layer's experts */
    dtype plain;         /* of everything else: DTYPE_BF16 or DTYPE_F32 */
    bool stacked, no_mtp;
    const char *changes; /* JSON object (with ' for ") merged into config.json */
    char directory[64];
} builder;

static inline uint32_t builder_random(builder *b)
{
    b->state = b->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(b->state >> 33);
}

static inline item *item_add(builder *b, const char *name, dtype type, int rank, int64_t d0, int64_t d1, int64_t d2)
{
    if (b->count == b->capacity) {
        b->capacity = b->capacity ? 2 * b->capacity : 256;
        b->items = mem_grow(b->items, b->capacity, sizeof *b->items);
    }
    item *it = &b->items[b->count++];
    *it = (item){.type = type, .rank = rank, .shape = {d0, d1, d2}};
    snprintf(it->name, sizeof it->name, "%s", name);
    it->count = dtype_bytes(type);
    for (int i = 0; i < rank; i++)
        it->count *= (size_t)it->shape[i];
    it->bytes = mem_alloc(it->count, 1);
    return it;
}

/* Values in [-2, 2) in steps of 1/64: exact in bf16 and f32. Positive and near 1 for scales. */
static inline void item_fill_float(builder *b, item *it)
{
    for (size_t i = 0; i < it->count / dtype_bytes(it->type); i++) {
        float v = (float)((int)(builder_random(b) & 255) - 128) / 64;
        uint16_t half = bf16_encode(v);
        memcpy(it->bytes + i * dtype_bytes(it->type), it->type == DTYPE_F32 ? (void *)&v : (void *)&half, dtype_bytes(it->type));
    }
}

static inline void item_fill_codes(builder *b, item *it, uint8_t least, uint8_t most)
{
    for (size_t i = 0; i < it->count; i++)
        it->bytes[i] = (uint8_t)(least + builder_random(b) % (uint32_t)(most - least + 1));
}

static inline item *item_find(const builder *b, const char *name)
{
    for (size_t i = 0; i < b->count; i++)
        if (strcmp(b->items[i].name, name) == 0)
            return &b->items[i];
    return NULL;
}

static inline void add_vector(builder *b, const char *name, int64_t count)
{
    item_fill_float(b, item_add(b, name, strstr(name, "e_score") ? DTYPE_F32 : b->plain, 1, count, 0, 0));
}

/* A tensor [stack][rows][cols], the first only when stack is not 0. */
static inline item *add_shaped(builder *b, const char *module, const char *ending, dtype type, int64_t stack, int64_t rows,
                               int64_t cols)
{
    char name[112];
    snprintf(name, sizeof name, "%s%s", module, ending);
    return stack ? item_add(b, name, type, 3, stack, rows, cols) : item_add(b, name, type, 2, rows, cols, 0);
}

static inline void add_matrix(builder *b, const char *module, int64_t stack, int64_t rows, int64_t cols, format_id layout)
{
    const char *weight = stack ? "" : ".weight", *scale = stack ? "_scale" : ".weight_scale";
    switch (layout) {
    case FORMAT_FP8_BLOCK:
        item_fill_codes(b, add_shaped(b, module, weight, DTYPE_F8_E4M3, stack, rows, cols), 0, 126);
        item_fill_float(b, add_shaped(b, module, stack ? "_scale_inv" : ".weight_scale_inv", DTYPE_F32, stack, (rows + 127) / 128,
                                      (cols + 127) / 128));
        return;
    case FORMAT_FP8_CHANNEL: {
        item_fill_codes(b, add_shaped(b, module, weight, DTYPE_F8_E4M3, stack, rows, cols), 0, 126);
        char name[112];
        snprintf(name, sizeof name, "%s%s", module, scale);
        bool flat = b->count % 2;
        item_fill_float(b, item_add(b, name, DTYPE_F32, (stack ? 3 : 2) - flat, stack ? stack : rows, stack ? rows : 1, 1));
        return;
    }
    case FORMAT_MXFP4:
        item_fill_codes(b, add_shaped(b, module, weight, DTYPE_U8, stack, rows, cols / 2), 0, 255);
        item_fill_codes(b, add_shaped(b, module, scale, stack ? DTYPE_F8_E8M0 : DTYPE_U8, stack, rows, cols / 32), 120, 130);
        return;
    case FORMAT_NVFP4: {
        item_fill_codes(b, add_shaped(b, module, weight, DTYPE_U8, stack, rows, cols / 2), 0, 255);
        item_fill_codes(b, add_shaped(b, module, scale, DTYPE_F8_E4M3, stack, rows, cols / 16), 1, 126);
        char name[112];
        snprintf(name, sizeof name, "%s%s_2", module, scale);
        item_fill_float(b, item_add(b, name, DTYPE_F32, stack ? 1 : (int)(b->count % 2), stack ? stack : 1, 0, 0));
        return;
    }
    default: item_fill_float(b, add_shaped(b, module, weight, layout == FORMAT_F32 ? DTYPE_F32 : DTYPE_BF16, stack, rows, cols));
    }
}

static inline format_id plain_format(const builder *b)
{
    return b->plain == DTYPE_F32 ? FORMAT_F32 : FORMAT_BF16;
}

static inline void add_layer(builder *b, int layer, bool full, bool sparse, format_id experts)
{
    char n[112];
#define NAME(...)                                                                                                                \
    (snprintf(n, sizeof n, "model.layers.%d.", layer), snprintf(n + strlen(n), sizeof n - strlen(n), __VA_ARGS__), n)
    add_vector(b, NAME("input_layernorm.weight"), HIDDEN);
    add_vector(b, NAME("post_attention_layernorm.weight"), HIDDEN);
    add_matrix(b, NAME("self_attn.q_a_proj"), 0, Q_LATENT, HIDDEN, b->attention);
    add_vector(b, NAME("self_attn.q_a_layernorm.weight"), Q_LATENT);
    add_matrix(b, NAME("self_attn.q_b_proj"), 0, HEADS * (NOPE + ROPE), Q_LATENT, b->attention);
    add_matrix(b, NAME("self_attn.kv_a_proj_with_mqa"), 0, KV_LATENT + ROPE, HIDDEN, b->attention);
    add_vector(b, NAME("self_attn.kv_a_layernorm.weight"), KV_LATENT);
    add_matrix(b, NAME("self_attn.kv_b_proj"), 0, HEADS * (NOPE + VALUE), KV_LATENT, b->attention);
    add_matrix(b, NAME("self_attn.o_proj"), 0, HIDDEN, HEADS * VALUE, b->attention);
    if (full) {
        add_matrix(b, NAME("self_attn.indexer.wq_b"), 0, INDEX_HEADS * INDEX_DIM, Q_LATENT, b->attention);
        add_matrix(b, NAME("self_attn.indexer.wk"), 0, INDEX_DIM, HIDDEN, b->attention);
        add_vector(b, NAME("self_attn.indexer.k_norm.weight"), INDEX_DIM);
        add_vector(b, NAME("self_attn.indexer.k_norm.bias"), INDEX_DIM);
        add_matrix(b, NAME("self_attn.indexer.weights_proj"), 0, INDEX_HEADS, HIDDEN, plain_format(b));
    }
    if (!sparse) {
        add_matrix(b, NAME("mlp.gate_proj"), 0, DENSE, HIDDEN, plain_format(b));
        add_matrix(b, NAME("mlp.up_proj"), 0, DENSE, HIDDEN, plain_format(b));
        add_matrix(b, NAME("mlp.down_proj"), 0, HIDDEN, DENSE, plain_format(b));
        return;
    }
    add_matrix(b, NAME("mlp.gate"), 0, EXPERTS, HIDDEN, plain_format(b));
    add_vector(b, NAME("mlp.gate.e_score_correction_bias"), EXPERTS);
    add_matrix(b, NAME("mlp.shared_experts.gate_proj"), 0, WIDTH, HIDDEN, experts);
    add_matrix(b, NAME("mlp.shared_experts.up_proj"), 0, WIDTH, HIDDEN, experts);
    add_matrix(b, NAME("mlp.shared_experts.down_proj"), 0, HIDDEN, WIDTH, experts);
    if (b->stacked) {
        add_matrix(b, NAME("mlp.experts.gate_up_proj"), EXPERTS, 2 * WIDTH, HIDDEN, experts);
        add_matrix(b, NAME("mlp.experts.down_proj"), EXPERTS, HIDDEN, WIDTH, experts);
        return;
    }
    for (int e = 0; e < EXPERTS; e++) {
        add_matrix(b, NAME("mlp.experts.%d.gate_proj", e), 0, WIDTH, HIDDEN, experts);
        add_matrix(b, NAME("mlp.experts.%d.up_proj", e), 0, WIDTH, HIDDEN, experts);
        add_matrix(b, NAME("mlp.experts.%d.down_proj", e), 0, HIDDEN, WIDTH, experts);
    }
#undef NAME
}

/* All tensors of the test architecture: layer 0 dense with an index, layer 1 sparse and sharing it, layer 2 the MTP layer. */
static inline void builder_fill(builder *b)
{
    b->state = 7;
    add_matrix(b, "model.embed_tokens", 0, VOCAB, HIDDEN, plain_format(b));
    add_matrix(b, "lm_head", 0, VOCAB, HIDDEN, plain_format(b));
    add_vector(b, "model.norm.weight", HIDDEN);
    add_layer(b, 0, true, false, b->experts);
    add_layer(b, 1, false, true, b->experts);
    if (b->no_mtp)
        return;
    add_layer(b, 2, true, true, b->draft);
    add_vector(b, "model.layers.2.enorm.weight", HIDDEN);
    add_vector(b, "model.layers.2.hnorm.weight", HIDDEN);
    add_vector(b, "model.layers.2.shared_head.norm.weight", HIDDEN);
    add_matrix(b, "model.layers.2.eh_proj", 0, HIDDEN, 2 * HIDDEN, plain_format(b));
}

static inline builder builder_new(format_id all)
{
    builder b = {.attention = all, .experts = all, .draft = all, .plain = all == FORMAT_F32 ? DTYPE_F32 : DTYPE_BF16};
    return b;
}

static inline json_t *builder_json(const char *source)
{
    error err = {0};
    char *copy = strdup(source);
    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *v = json_parse(copy, strlen(copy), "test", &err);
    if (!v)
        fail_msg("%s", err.text);
    free(copy);
    return v;
}

static inline void builder_write_config(const builder *b)
{
    char path[128];
    json_t *root =
        json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "architectures",
                  "GlmMoeDsaForCausalLM", "model_type", "glm_moe_dsa", "vocab_size", VOCAB, "hidden_size", HIDDEN,
                  "num_hidden_layers", LAYERS, "num_attention_heads", HEADS, "q_lora_rank", Q_LATENT, "kv_lora_rank", KV_LATENT,
                  "qk_nope_head_dim", NOPE, "qk_rope_head_dim", ROPE, "v_head_dim", VALUE, "intermediate_size", DENSE,
                  "moe_intermediate_size", WIDTH, "n_routed_experts", EXPERTS, "num_experts_per_tok", 2, "n_shared_experts", 1);
    json_t *more = builder_json("{'routed_scaling_factor':2.5,'rms_norm_eps':1e-5,'max_position_embeddings':512,'index_n_heads':"
                                "4,'index_head_dim':32,"
                                "'index_topk':8,'rope_parameters':{'rope_theta':1e6,'rope_type':'default'},'index_topk_pattern':'"
                                "FS',"
                                "'first_k_dense_replace':1,'num_nextn_predict_layers':1,'eos_token_id':[1,2]}");
    json_t *changes = builder_json(b->changes ? b->changes : "{}");
    json_object_update(root, more);
    json_object_update(root, changes);
    snprintf(path, sizeof path, "%s/config.json", b->directory);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(changes);
    json_decref(more);
    json_decref(root);
}

/* Tensors number shard, shard + shards, ... in one file. */
static inline void builder_write_shard(const builder *b, const char *file, size_t shard, size_t shards)
{
    error err = {0};
    char path[160];
    snprintf(path, sizeof path, "%s/%s", b->directory, file);
    safetensors_writer *w = safetensors_writer_open(path, &err);
    for (size_t i = shard; w && i < b->count; i += shards)
        if (!safetensors_writer_declare(w, b->items[i].name, b->items[i].type, b->items[i].rank, b->items[i].shape, &err))
            fail_msg("%s", err.text);
    for (size_t i = shard; w && i < b->count; i += shards)
        if (!safetensors_writer_data(w, b->items[i].bytes, b->items[i].count, &err))
            fail_msg("%s", err.text);
    if (!w || !safetensors_writer_commit(w, &err))
        fail_msg("%s", err.text);
}

static inline void builder_write_shards(const builder *b, size_t shards)
{
    char file[64], path[160];
    json_t *map_of_files = json_object();
    for (size_t s = 0; s < shards; s++) {
        snprintf(file, sizeof file, "model-%05zu-of-%05zu.safetensors", s + 1, shards);
        builder_write_shard(b, file, s, shards);
        for (size_t i = s; i < b->count; i += shards)
            json_object_set_new(map_of_files, b->items[i].name, json_string(file));
    }
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map_of_files);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", b->directory);
    assert_int_equal(json_dump_file(index, path, 0), 0);
    json_decref(index);
}

/* Writes everything to a new temporary directory; shards 1: one file without an index. */
static inline void builder_write(builder *b, size_t shards)
{
    snprintf(b->directory, sizeof b->directory, "/tmp/drawbridge-weights-XXXXXX");
    assert_non_null(mkdtemp(b->directory));
    builder_write_config(b);
    if (shards == 1)
        builder_write_shard(b, "model.safetensors", 0, 1);
    else
        builder_write_shards(b, shards);
}

static inline void builder_remove_files(builder *b)
{
    static const char *const files[] = {"config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    char path[160];
    for (size_t i = 0; b->directory[0] && i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", b->directory, files[i]);
        unlink(path);
    }
    if (b->directory[0])
        assert_int_equal(rmdir(b->directory), 0);
    b->directory[0] = '\0';
}

static inline void builder_free(builder *b)
{
    builder_remove_files(b);
    for (size_t i = 0; i < b->count; i++)
        free(b->items[i].bytes);
    free(b->items);
}

static inline float float_at(const item *it, size_t index)
{
    float v;
    uint16_t half;
    if (it->type == DTYPE_BF16) {
        memcpy(&half, it->bytes + 2 * index, 2);
        return bf16_decode(half);
    }
    memcpy(&v, it->bytes + 4 * index, 4);
    return v;
}

static inline const item *item_ending(const builder *b, const char *module, const char *ending)
{
    char name[140];
    snprintf(name, sizeof name, "%s%s", module, ending);
    return item_find(b, name);
}

/* The tensors of one matrix. */
typedef struct source {
    const item *weight, *scale, *inverse, *tensor_scale;
    int64_t stack; /* place in a stacked tensor; -1: a two-dimensional one */
} source;

static inline source source_of(const builder *b, const char *module, int64_t stack)
{
    return (source){item_ending(b, module, stack < 0 ? ".weight" : ""),
                    item_ending(b, module, stack < 0 ? ".weight_scale" : "_scale"),
                    item_ending(b, module, stack < 0 ? ".weight_scale_inv" : "_scale_inv"),
                    item_ending(b, module, stack < 0 ? ".weight_scale_2" : "_scale_2"), stack};
}

/* What value (row, col) must be, from the bytes that were written. */
static inline float expected_value(const source *s, int64_t row, int64_t col)
{
    const item *w = s->weight;
    int64_t rows = w->shape[s->stack < 0 ? 0 : 1], stored = w->shape[s->stack < 0 ? 1 : 2], at = s->stack < 0 ? 0 : s->stack;
    int64_t line = at * rows + row;
    if (w->type == DTYPE_BF16 || w->type == DTYPE_F32)
        return float_at(w, (size_t)(line * stored + col));
    if (w->type == DTYPE_F8_E4M3 && !s->inverse)
        return e4m3_decode(w->bytes[line * stored + col]) * float_at(s->scale, (size_t)line);
    if (w->type == DTYPE_F8_E4M3) {
        int64_t high = (rows + 127) / 128, wide = (stored + 127) / 128;
        return e4m3_decode(w->bytes[line * stored + col]) *
               float_at(s->inverse, (size_t)((at * high + row / 128) * wide + col / 128));
    }
    uint8_t pair = w->bytes[line * stored + col / 2];
    float element = e2m1_decode(col % 2 ? pair >> 4 : pair & 15);
    int64_t block = s->tensor_scale ? 16 : 32;
    uint8_t scale = s->scale->bytes[line * (2 * stored / block) + col / block];
    return s->tensor_scale ? element * (e4m3_decode(scale) * float_at(s->tensor_scale, (size_t)at))
                           : element * e8m0_decode(scale);
}

#endif
