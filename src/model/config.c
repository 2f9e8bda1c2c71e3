/* config.json -> model_config.
 *
 * Four tables say what happens to every key: numbers[] are read with their range; choices[] must have the one value we
 * implement (or be absent); refused[] change the computation in a way we do not implement and must be null, false or
 * absent; ignored[] carry nothing that inference needs. A few keys with structure of their own (lists, rope) have a function
 * each. A key in none of them is a notice for the user (config_unknown_keys).
 *
 * The ranges keep every later product of two sizes far below 2^63. */
#include "model/config.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { CONFIG_FILE_LIMIT = 64 << 20 };

static const char *const architecture = "GlmMoeDsaForCausalLM";
static const char *const model_type = "glm_moe_dsa";

/* An integer key and the field it goes to. */
typedef struct number_key {
    const char *name;
    size_t field;     /* offset of an int in model_config */
    int least, most;
    int otherwise;    /* value when the key is absent; -1: the key is required */
} number_key;

static const number_key numbers[] = {
    {"vocab_size", offsetof(model_config, vocab_size), 1, 1 << 24, -1},
    {"hidden_size", offsetof(model_config, hidden_size), 1, 1 << 16, -1},
    {"num_hidden_layers", offsetof(model_config, layers), 1, CONFIG_MAX_LAYERS, -1},
    {"num_attention_heads", offsetof(model_config, heads), 1, 4096, -1},
    {"q_lora_rank", offsetof(model_config, q_lora_rank), 1, 1 << 16, -1},
    {"kv_lora_rank", offsetof(model_config, kv_lora_rank), 1, 1 << 16, -1},
    {"qk_nope_head_dim", offsetof(model_config, nope_dim), 1, 4096, -1},
    {"qk_rope_head_dim", offsetof(model_config, rope_dim), 2, 4096, -1},
    {"v_head_dim", offsetof(model_config, v_dim), 1, 4096, -1},
    {"intermediate_size", offsetof(model_config, dense_intermediate), 1, 1 << 20, -1},
    {"moe_intermediate_size", offsetof(model_config, expert_intermediate), 1, 1 << 20, -1},
    {"n_routed_experts", offsetof(model_config, experts), 1, 4096, -1},
    {"num_experts_per_tok", offsetof(model_config, experts_per_token), 1, 4096, -1},
    {"n_shared_experts", offsetof(model_config, shared_experts), 0, 64, -1},
    {"n_group", offsetof(model_config, expert_groups), 1, 4096, 1},
    {"topk_group", offsetof(model_config, expert_groups_kept), 1, 4096, 1},
    {"max_position_embeddings", offsetof(model_config, max_positions), 1, 1 << 27, -1},
    {"index_n_heads", offsetof(model_config, index_heads), 1, 4096, -1},
    {"index_head_dim", offsetof(model_config, index_dim), 1, 4096, -1},
    {"index_topk", offsetof(model_config, index_topk), 1, 1 << 27, -1},
};

/* A key with exactly one value we implement: a string, or a boolean when text is NULL. */
typedef struct choice_key {
    const char *name;
    const char *text;
    bool truth;
} choice_key;

static const choice_key choices[] = {
    {"model_type", "glm_moe_dsa", false},
    {"hidden_act", "silu", false},
    {"scoring_func", "sigmoid", false},
    {"topk_method", "noaux_tc", false},
    {"moe_router_dtype", "float32", false},
    {"rope_interleave", NULL, true},
    {"indexer_rope_interleave", NULL, true},
    {"attention_bias", NULL, false},
    {"mlp_bias", NULL, false},
};

static const char *const refused[] = {
    "swiglu_limit", "sliding_window", "use_sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "use_qk_norm", "o_lora_rank",
    "o_groups", "compress_ratios", "compress_rope_theta", "hc_mult", "num_hash_layers", "zero_expert_num", "zero_expert_type",
    "vision_config", "audio_config", "text_config",
};

static const char *const ignored[] = {
    "head_dim", "attention_dropout", "initializer_range", "pretraining_tp", "ep_size", "use_cache", "pad_token_id",
    "bos_token_id", "dtype", "torch_dtype", "transformers_version", "quantization_config", "_name_or_path", "auto_map",
    "output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "output_attentions", "output_hidden_states",
    "return_dict", "is_encoder_decoder", "chunk_size_feed_forward", "id2label", "label2id", "problem_type",
};

/* Keys that functions below read. */
static const char *const structured[] = {
    "architectures", "num_key_value_heads", "qk_head_dim", "norm_topk_prob", "routed_scaling_factor", "rms_norm_eps",
    "rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor", "layer_types", "indexer_types",
    "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset", "index_share_for_mtp_iteration", "mlp_layer_types",
    "first_k_dense_replace", "moe_layer_freq", "num_nextn_predict_layers", "tie_word_embeddings", "eos_token_id",
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool contradiction(json_source s, const char *key, const char *reason, error *err)
{
    return error_set(err, ERROR_INPUT, "%s: key \"%s\" %s", s.where, key, reason);
}

static bool read_numbers(json_source s, model_config *c, error *err)
{
    for (size_t i = 0; i < COUNT(numbers); i++) {
        const number_key *k = &numbers[i];
        int64_t value = k->otherwise;
        if (k->otherwise < 0 ? !json_get_int(s, k->name, k->least, k->most, &value, err)
                             : !json_get_int_or(s, k->name, k->least, k->most, &value, err))
            return false;
        int number = (int)value;
        memcpy((char *)c + k->field, &number, sizeof number);
    }
    return true;
}

static bool check_choice(json_source s, const choice_key *k, error *err)
{
    const char *word = k->text;
    bool truth = k->truth;
    if (!k->text) {
        if (!json_get_bool_or(s, k->name, &truth, err))
            return false;
        return truth == k->truth ||
               error_set(err, ERROR_INPUT, "%s: key \"%s\" is %s, but only %s is implemented; this model cannot be run", s.where,
                         k->name, truth ? "true" : "false", k->truth ? "true" : "false");
    }
    if (!json_get_string_or(s, k->name, &word, err))
        return false;
    return strcmp(word, k->text) == 0 ||
           error_set(err, ERROR_INPUT, "%s: key \"%s\" is \"%s\", but only \"%s\" is implemented; this model cannot be run",
                     s.where, k->name, word, k->text);
}

static bool check_refused(json_source s, error *err)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        const json_t *v = json_object_get(s.object, refused[i]);
        if (v && !json_is_null(v) && !json_is_false(v))
            return error_set(err, ERROR_INPUT,
                             "%s: key \"%s\" changes the computation and is not implemented; this model cannot be run", s.where,
                             refused[i]);
    }
    return true;
}

/* architectures must name ours; where it is absent, model_type must be there. */
static bool check_architecture(json_source s, error *err)
{
    const json_t *list = json_object_get(s.object, "architectures");
    if (!json_has(s, "architectures")) {
        const char *type;
        return json_get_string(s, "model_type", &type, err);
    }
    if (!json_is_array(list))
        return contradiction(s, "architectures", "must be an array of names", err);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)) && strcmp(json_string_value(json_array_get(list, i)), architecture) == 0)
            return true;
    const char *found = json_string_value(json_array_get(list, 0));
    return error_set(err, ERROR_INPUT, "%s: architecture %s is not supported, expected %s (model_type %s)", s.where,
                     found ? found : "(none)", architecture, model_type);
}

static bool read_scalars(json_source s, model_config *c, error *err)
{
    double scale, eps;
    int64_t drafts = 0;
    c->normalize_expert_weights = true;
    if (!json_get_number(s, "routed_scaling_factor", 1e-6, 1e6, &scale, err) ||
        !json_get_number(s, "rms_norm_eps", 1e-20, 0.1, &eps, err) ||
        !json_get_bool_or(s, "norm_topk_prob", &c->normalize_expert_weights, err) ||
        !json_get_bool_or(s, "index_share_for_mtp_iteration", &c->share_index_in_drafts, err) ||
        !json_get_bool_or(s, "tie_word_embeddings", &c->tie_embeddings, err) ||
        !json_get_int_or(s, "num_nextn_predict_layers", 0, 1, &drafts, err))
        return false;
    c->routed_scale = (float)scale;
    c->norm_eps = c->latent_norm_eps = (float)eps;
    c->has_mtp = drafts == 1;
    return true;
}

/* rope_parameters and the older rope_scaling have the same shape; only the plain kind is implemented. */
static bool check_rope_kind(json_source s, const char *key, error *err)
{
    const json_t *object = json_object_get(s.object, key);
    if (!json_has(s, key))
        return true;
    if (!json_is_object(object))
        return contradiction(s, key, "must be an object", err);
    json_source rope = {object, s.where};
    const char *kind = "default", *older = "default";
    double rotary = 1;
    if (!json_get_string_or(rope, "rope_type", &kind, err) || !json_get_string_or(rope, "type", &older, err) ||
        !json_get_number_or(rope, "partial_rotary_factor", 0, 1e6, &rotary, err))
        return error_add(err, "%s", key);
    if (strcmp(kind, "default") == 0)
        kind = older;
    if (strcmp(kind, "default") != 0)
        return error_set(err, ERROR_INPUT,
                         "%s: %s has rope_type \"%s\", but only \"default\" is implemented; this model cannot be run", s.where,
                         key, kind);
    if (rotary != 1)
        return error_set(err, ERROR_INPUT,
                         "%s: %s has partial_rotary_factor %g, but only 1 is implemented; this model cannot be run", s.where, key,
                         rotary);
    return true;
}

static bool read_rope(json_source s, model_config *c, error *err)
{
    enum { UNSET = 0 };
    const double least = 1, most = 1e15;
    double nested = UNSET, plain = UNSET, rotary = 1;
    if (!check_rope_kind(s, "rope_parameters", err) || !check_rope_kind(s, "rope_scaling", err))
        return false;
    json_source rope = {json_object_get(s.object, "rope_parameters"), s.where};
    if (json_has(s, "rope_parameters") && !json_get_number_or(rope, "rope_theta", least, most, &nested, err))
        return error_add(err, "rope_parameters");
    if (!json_get_number_or(s, "rope_theta", least, most, &plain, err) ||
        !json_get_number_or(s, "partial_rotary_factor", 0, 1e6, &rotary, err))
        return false;
    if (rotary != 1)
        return contradiction(s, "partial_rotary_factor", "is not 1, which is not implemented; this model cannot be run", err);
    if (nested == UNSET && plain == UNSET)
        return contradiction(s, "rope_theta", "is missing, in rope_parameters and beside it (expected a number)", err);
    if (nested != UNSET && plain != UNSET && nested != plain)
        return error_set(err, ERROR_INPUT, "%s: rope_theta is %g but rope_parameters.rope_theta is %g; remove the wrong one",
                         s.where, plain, nested);
    c->rope_theta = nested != UNSET ? nested : plain;
    return true;
}

/* A list with one of two words per layer. `found` tells whether the key is there. */
static bool read_layer_words(json_source s, const char *key, int layers, const char *yes, const char *no, bool *out, bool *found,
                             error *err)
{
    const json_t *list = json_object_get(s.object, key);
    *found = json_has(s, key);
    if (!*found)
        return true;
    if (!json_is_array(list))
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be an array, found %s", s.where, key, json_type_name(list));
    if (json_array_size(list) != (size_t)layers)
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" has %zu entries, expected one for each of the %d layers", s.where, key,
                         json_array_size(list), layers);
    for (int i = 0; i < layers; i++) {
        const char *word = json_string_value(json_array_get(list, (size_t)i));
        if (!word || (strcmp(word, yes) != 0 && (!no || strcmp(word, no) != 0)))
            return error_set(err, ERROR_INPUT, "%s: entry %d of \"%s\" is %s, expected \"%s\"%s%s%s", s.where, i, key,
                             word ? word : json_type_name(json_array_get(list, (size_t)i)), yes, no ? " or \"" : "", no ? no : "",
                             no ? "\"" : "");
        out[i] = strcmp(word, yes) == 0;
    }
    return true;
}

static bool read_index_pattern(json_source s, model_config *c, bool *found, error *err)
{
    const char *pattern = NULL;
    if (!json_get_string_or(s, "index_topk_pattern", &pattern, err))
        return false;
    *found = pattern != NULL;
    if (!pattern)
        return true;
    if (strlen(pattern) != (size_t)c->layers || strspn(pattern, "FS") != (size_t)c->layers)
        return error_set(err, ERROR_INPUT,
                         "%s: key \"index_topk_pattern\" must have one letter F or S for each of the %d layers, found \"%.80s\"",
                         s.where, c->layers, pattern);
    for (int i = 0; i < c->layers; i++)
        c->full_index[i] = pattern[i] == 'F';
    return true;
}

static bool read_index_formula(json_source s, model_config *c, error *err)
{
    int64_t every = 1, offset = 2;
    if (!json_get_int_or(s, "index_topk_freq", 1, CONFIG_MAX_LAYERS, &every, err) ||
        !json_get_int_or(s, "index_skip_topk_offset", 0, CONFIG_MAX_LAYERS, &offset, err))
        return false;
    for (int i = 0; i < c->layers; i++) {
        int64_t past = i - offset + 1;
        c->full_index[i] = (past > 0 ? past : 0) % every == 0;
    }
    return true;
}

/* Which layers compute an index list: indexer_types, else the pattern, else the formula. */
static bool read_index_layers(json_source s, model_config *c, error *err)
{
    bool found, plain[CONFIG_MAX_LAYERS], listed;
    if (!read_layer_words(s, "layer_types", c->layers, "deepseek_sparse_attention", NULL, plain, &found, err) ||
        !read_layer_words(s, "indexer_types", c->layers, "full", "shared", c->full_index, &listed, err))
        return false;
    if (!listed && (!read_index_pattern(s, c, &listed, err) || (!listed && !read_index_formula(s, c, err))))
        return false;
    return c->full_index[0] ||
           error_set(err, ERROR_INPUT, "%s: layer 0 has a \"shared\" index, but there is no earlier layer to share with",
                     s.where);
}

static bool read_mlp_layers(json_source s, model_config *c, error *err)
{
    bool listed;
    int64_t dense = 0, every = 1;
    if (!read_layer_words(s, "mlp_layer_types", c->layers, "sparse", "dense", c->sparse_mlp, &listed, err) ||
        !json_get_int_or(s, "first_k_dense_replace", 0, 1 << 20, &dense, err) ||
        !json_get_int_or(s, "moe_layer_freq", 1, CONFIG_MAX_LAYERS, &every, err))
        return false;
    if (listed)
        return true;
    if (!json_has(s, "first_k_dense_replace"))
        return contradiction(s, "mlp_layer_types",
                             "is missing, and so is first_k_dense_replace: which layers have experts is unknown", err);
    for (int i = 0; i < c->layers; i++)
        c->sparse_mlp[i] = i >= dense && i % every == 0;
    return true;
}

static bool add_eos(json_source s, const json_t *id, model_config *c, error *err)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= c->vocab_size)
        return error_set(err, ERROR_INPUT, "%s: key \"eos_token_id\" must hold token ids from 0 to %d", s.where,
                         c->vocab_size - 1);
    if (c->eos_count == CONFIG_MAX_EOS)
        return error_set(err, ERROR_INPUT, "%s: key \"eos_token_id\" has more than %d ids", s.where, CONFIG_MAX_EOS);
    c->eos[c->eos_count++] = (int)json_integer_value(id);
    return true;
}

static bool read_eos(json_source s, model_config *c, error *err)
{
    const json_t *v = json_object_get(s.object, "eos_token_id");
    if (!json_has(s, "eos_token_id"))
        return true;
    if (!json_is_array(v))
        return add_eos(s, v, c, err);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_eos(s, json_array_get(v, i), c, err))
            return false;
    return true;
}

static bool check_heads(json_source s, const model_config *c, error *err)
{
    int64_t heads = c->heads, wide = c->nope_dim + c->rope_dim;
    if (!json_get_int_or(s, "num_key_value_heads", 1, 4096, &heads, err) ||
        !json_get_int_or(s, "qk_head_dim", 1, 8192, &wide, err))
        return false;
    if (heads != c->heads)
        return error_set(err, ERROR_INPUT,
                         "%s: num_key_value_heads is %d, expected num_attention_heads = %d (every head has its own keys)",
                         s.where, (int)heads, c->heads);
    if (wide != c->nope_dim + c->rope_dim)
        return error_set(err, ERROR_INPUT, "%s: qk_head_dim is %d, expected qk_nope_head_dim + qk_rope_head_dim = %d", s.where,
                         (int)wide, c->nope_dim + c->rope_dim);
    if (c->rope_dim % 2 != 0)
        return contradiction(s, "qk_rope_head_dim", "must be even", err);
    if (c->index_dim < c->rope_dim)
        return error_set(err, ERROR_INPUT, "%s: index_head_dim is %d, expected at least qk_rope_head_dim = %d", s.where,
                         c->index_dim, c->rope_dim);
    return true;
}

static bool check_experts(json_source s, const model_config *c, error *err)
{
    if (c->experts_per_token > c->experts)
        return error_set(err, ERROR_INPUT, "%s: num_experts_per_tok is %d, more than n_routed_experts = %d", s.where,
                         c->experts_per_token, c->experts);
    if (c->experts % c->expert_groups != 0)
        return error_set(err, ERROR_INPUT, "%s: n_group is %d, which does not divide n_routed_experts = %d", s.where,
                         c->expert_groups, c->experts);
    if (c->expert_groups_kept > c->expert_groups)
        return error_set(err, ERROR_INPUT, "%s: topk_group is %d, more than n_group = %d", s.where, c->expert_groups_kept,
                         c->expert_groups);
    int each = c->experts / c->expert_groups;
    if (c->expert_groups > 1 && each < 2)
        return error_set(err, ERROR_INPUT,
                         "%s: n_group is %d, which leaves one expert per group; groups are ranked by their best two", s.where,
                         c->expert_groups);
    if (c->experts_per_token > each * c->expert_groups_kept)
        return error_set(err, ERROR_INPUT,
                         "%s: num_experts_per_tok is %d, but topk_group = %d groups of %d leave only %d experts to choose from",
                         s.where, c->experts_per_token, c->expert_groups_kept, each, each * c->expert_groups_kept);
    return true;
}

bool config_parse(const json_t *root, const char *where, model_config *out, error *err)
{
    json_source s = {root, where};
    *out = (model_config){0};
    if (!json_is_object(root))
        return error_set(err, ERROR_INPUT, "%s: expected an object, found %s", where, json_type_name(root));
    for (size_t i = 0; i < COUNT(choices); i++)
        if (!check_choice(s, &choices[i], err))
            return false;
    return check_architecture(s, err) && check_refused(s, err) && read_numbers(s, out, err) && read_scalars(s, out, err) &&
           read_rope(s, out, err) && read_index_layers(s, out, err) && read_mlp_layers(s, out, err) && read_eos(s, out, err) &&
           check_heads(s, out, err) && check_experts(s, out, err);
}

json_t *config_read(const char *directory, text *path, error *err)
{
    path_join(path, directory, "config.json");
    return json_parse_file(path->data, CONFIG_FILE_LIMIT, err);
}

bool config_load(const char *directory, model_config *out, error *err)
{
    text path = {0};
    json_t *root = config_read(directory, &path, err);
    bool ok = root && config_parse(root, path.data, out, err);
    json_decref(root);
    text_free(&path);
    return ok;
}

static bool listed(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}

static bool key_known(const char *key)
{
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (strcmp(key, numbers[i].name) == 0)
            return true;
    for (size_t i = 0; i < COUNT(choices); i++)
        if (strcmp(key, choices[i].name) == 0)
            return true;
    return listed(key, refused, COUNT(refused)) || listed(key, ignored, COUNT(ignored)) ||
           listed(key, structured, COUNT(structured));
}

int config_unknown_keys(const json_t *root, text *out)
{
    int count = 0;
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)root, key, value) {
        if (key_known(key))
            continue;
        text_add_text(out, count ? ", " : "");
        text_add_text(out, key);
        count++;
    }
    return count;
}
