/* config.json: the real figures of GLM-5.2, every way to say which layers index and which have experts, and bad input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"

/* GLM-5.2's keys; index and MLP layers by freq/offset and first_k_dense_replace. */
static const char *const glm52 =
    "{'architectures':['GlmMoeDsaForCausalLM'],'model_type':'glm_moe_dsa','vocab_size':154880,'hidden_size':6144,"
    "'num_hidden_layers':78,'num_attention_heads':64,'num_key_value_heads':64,'q_lora_rank':2048,'kv_lora_rank':512,"
    "'qk_nope_head_dim':192,'qk_rope_head_dim':64,'qk_head_dim':256,'v_head_dim':256,'head_dim':192,'intermediate_size':12288,"
    "'moe_intermediate_size':2048,'n_routed_experts':256,'num_experts_per_tok':8,'n_shared_experts':1,'first_k_dense_replace':3,"
    "'moe_layer_freq':1,'n_group':1,'topk_group':1,'scoring_func':'sigmoid','topk_method':'noaux_tc','norm_topk_prob':true,"
    "'routed_scaling_factor':2.5,'moe_router_dtype':'float32','hidden_act':'silu','rms_norm_eps':1e-05,'attention_bias':false,"
    "'attention_dropout':0.0,'rope_parameters':{'rope_theta':8000000,'rope_type':'default'},'rope_interleave':true,"
    "'max_position_embeddings':1048576,'index_n_heads':32,'index_head_dim':128,'index_topk':2048,'indexer_rope_interleave':true,"
    "'index_topk_freq':4,'index_skip_topk_offset':3,'index_topk_pattern':null,'index_share_for_mtp_iteration':true,"
    "'num_nextn_predict_layers':1,'tie_word_embeddings':false,'eos_token_id':[154820,154827,154829],'pad_token_id':154820,"
    "'dtype':'bfloat16','transformers_version':'5.12.0'}";

/* Parses text written with ' for ". */
static json_t *quoted(const char *source)
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

/* glm52 with the keys of `changes` set; a value "-" removes the key. */
static json_t *changed(const char *changes)
{
    json_t *root = quoted(glm52), *patch = quoted(changes), *value;
    const char *key;
    json_object_foreach (patch, key, value) {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    json_decref(patch);
    return root;
}

static model_config parsed(const char *changes)
{
    error err = {0};
    model_config c;
    json_t *root = changed(changes);
    if (!config_parse(root, "config.json", &c, &err))
        fail_msg("%s: %s", changes, err.text);
    json_decref(root);
    return c;
}

static void test_glm52(void **state)
{
    (void)state;
    model_config c = parsed("{}");
    assert_int_equal(c.layers, 78);
    assert_int_equal(c.heads, 64);
    assert_int_equal(c.nope_dim + c.rope_dim, 256);
    assert_int_equal(c.experts_per_token, 8);
    assert_int_equal(c.index_topk, 2048);
    assert_true(c.rope_theta == 8e6);
    assert_true(c.norm_eps == 1e-5f && c.latent_norm_eps == 1e-5f);
    assert_true(c.has_mtp && c.share_index_in_drafts && c.normalize_expert_weights && !c.tie_embeddings);
    assert_int_equal(c.eos_count, 3);
    assert_int_equal(c.eos[2], 154829);
    int full = 0, sparse = 0;
    for (int i = 0; i < c.layers; i++) {
        assert_int_equal(c.full_index[i], i < 3 || (i >= 6 && (i - 6) % 4 == 0));
        assert_int_equal(c.sparse_mlp[i], i >= 3);
        full += c.full_index[i];
        sparse += c.sparse_mlp[i];
    }
    assert_int_equal(full, 21);
    assert_int_equal(sparse, 75);
}

/* The totals of the published checkpoint (docs/model.md). */
static void test_parameters(void **state)
{
    (void)state;
    uint64_t total, active;
    model_config c = parsed("{}");
    config_parameters(&c, &total, &active);
    assert_true(total == UINT64_C(753329921024));
    assert_true(active == UINT64_C(40297758720));
    c.has_mtp = false;
    uint64_t without, same;
    config_parameters(&c, &without, &same);
    assert_true(same == active && total - without > UINT64_C(9000000000));
    c.tie_embeddings = true;
    uint64_t tied;
    config_parameters(&c, &tied, &same);
    assert_true(without - tied == UINT64_C(154880) * 6144 && same == active);
}

/* GLM-5 and 5.1: no index keys at all, so every layer computes its own list. */
static void test_glm5(void **state)
{
    (void)state;
    model_config c = parsed("{'index_topk_freq':'-','index_skip_topk_offset':'-','index_topk_pattern':'-','index_share_for_mtp_"
                            "iteration':'-',"
                            "'rope_parameters':'-','rope_theta':1000000,'max_position_embeddings':202752}");
    for (int i = 0; i < c.layers; i++)
        assert_true(c.full_index[i]);
    assert_true(c.rope_theta == 1e6);
    assert_false(c.share_index_in_drafts);
}

static void test_layer_lists(void **state)
{
    (void)state;
    model_config c = parsed("{'num_hidden_layers':4,'indexer_types':['full','shared','full','shared'],'mlp_layer_types':['sparse'"
                            ",'dense','dense','sparse'],"
                            "'index_topk_pattern':'FFFF','layer_types':['deepseek_sparse_attention','deepseek_sparse_attention',"
                            "'deepseek_sparse_attention','deepseek_sparse_attention']}");
    assert_true(c.full_index[0] && !c.full_index[1] && c.full_index[2] && !c.full_index[3]);
    assert_true(c.sparse_mlp[0] && !c.sparse_mlp[1] && !c.sparse_mlp[2] && c.sparse_mlp[3]);
    c = parsed("{'num_hidden_layers':5,'index_topk_pattern':'FSSFS','first_k_dense_replace':1,'moe_layer_freq':2}");
    assert_true(c.full_index[0] && !c.full_index[1] && !c.full_index[2] && c.full_index[3] && !c.full_index[4]);
    assert_true(!c.sparse_mlp[0] && !c.sparse_mlp[1] && c.sparse_mlp[2] && !c.sparse_mlp[3] && c.sparse_mlp[4]);
    c = parsed("{'num_hidden_layers':6,'index_skip_topk_offset':'-','index_topk_freq':2}"); /* offset 2 when absent */
    assert_true(c.full_index[0] && c.full_index[1] && !c.full_index[2] && c.full_index[3] && !c.full_index[4] && c.full_index[5]);
}

static void test_accepted(void **state)
{
    (void)state;
    static const char *const accepted[] = {
        "{'rope_scaling':null}", "{'rope_scaling':{'type':'default'}}", "{'rope_theta':8000000}", "{'eos_token_id':null}",
        "{'eos_token_id':'-'}", "{'num_nextn_predict_layers':0}", "{'num_nextn_predict_layers':'-'}", "{'architectures':'-'}",
        "{'architectures':['Other','GlmMoeDsaForCausalLM']}",
        "{'sliding_window':null,'swiglu_limit':null,'use_sliding_window':false}",
        "{'rope_interleave':'-','indexer_rope_interleave':'-'}",
        "{'scoring_func':'-','topk_method':'-','hidden_act':'-','n_group':'-','topk_group':'-','norm_topk_prob':'-'}",
        "{'n_shared_experts':0}", "{'n_group':8,'topk_group':4}", "{'num_hidden_layers':1}", "{'tie_word_embeddings':true}",
        "{'a_key_of_tomorrow':5}", "{'num_hidden_layers':512,'index_topk_freq':1}",
    };
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++)
        parsed(accepted[i]);
    assert_int_equal(parsed("{'eos_token_id':7}").eos_count, 1);
    assert_int_equal(parsed("{'num_nextn_predict_layers':0}").has_mtp, false);
    assert_true(parsed("{'norm_topk_prob':false}").normalize_expert_weights == false);
}

typedef struct bad_config {
    const char *changes;
    const char *named; /* must be part of the error */
} bad_config;

static const bad_config bad[] = {
    {"{'model_type':'glm5_next'}", "glm5_next"},
    {"{'model_type':7}", "model_type"},
    {"{'architectures':['LlamaForCausalLM']}", "LlamaForCausalLM"},
    {"{'architectures':[]}", "architecture"},
    {"{'architectures':'GlmMoeDsaForCausalLM'}", "architectures"},
    {"{'architectures':'-','model_type':'-'}", "model_type"},
    {"{'vocab_size':'-'}", "vocab_size"},
    {"{'vocab_size':'many'}", "vocab_size"},
    {"{'hidden_size':0}", "hidden_size"},
    {"{'hidden_size':6144.0}", "hidden_size"},
    {"{'num_hidden_layers':0}", "num_hidden_layers"},
    {"{'num_hidden_layers':1000000000}", "num_hidden_layers"},
    {"{'num_hidden_layers':513}", "num_hidden_layers"},
    {"{'num_hidden_layers':-1}", "num_hidden_layers"},
    {"{'q_lora_rank':null}", "q_lora_rank"},
    {"{'qk_head_dim':255}", "qk_head_dim"},
    {"{'qk_rope_head_dim':63,'qk_head_dim':255}", "even"},
    {"{'index_head_dim':32}", "index_head_dim"},
    {"{'num_key_value_heads':8}", "num_key_value_heads"},
    {"{'num_experts_per_tok':257}", "num_experts_per_tok"},
    {"{'n_group':3}", "n_group"},
    {"{'n_group':4,'topk_group':5}", "topk_group"},
    {"{'n_group':256,'topk_group':8}", "n_group"},
    {"{'n_group':64,'topk_group':1}", "topk_group"},
    {"{'rope_parameters':{'rope_theta':0,'rope_type':'default'}}", "rope_theta"},
    {"{'rope_parameters':{'rope_type':'default'}}", "rope_theta"},
    {"{'rope_parameters':'-'}", "rope_theta"},
    {"{'rope_parameters':[]}", "rope_parameters"},
    {"{'rope_parameters':{'rope_theta':8000000,'rope_type':'yarn','factor':4}}", "yarn"},
    {"{'rope_parameters':{'rope_theta':8000000,'partial_rotary_factor':0.5}}", "partial_rotary_factor"},
    {"{'rope_theta':10000}", "rope_theta"},
    {"{'rope_scaling':{'type':'yarn','factor':40}}", "yarn"},
    {"{'rope_interleave':false}", "rope_interleave"},
    {"{'indexer_rope_interleave':false}", "indexer_rope_interleave"},
    {"{'scoring_func':'softmax'}", "scoring_func"},
    {"{'topk_method':'greedy'}", "topk_method"},
    {"{'hidden_act':'gelu'}", "hidden_act"},
    {"{'attention_bias':true}", "attention_bias"},
    {"{'mlp_bias':true}", "mlp_bias"},
    {"{'moe_router_dtype':'bfloat16'}", "moe_router_dtype"},
    {"{'swiglu_limit':7.0}", "swiglu_limit"},
    {"{'sliding_window':4096}", "sliding_window"},
    {"{'rms_norm_eps':0}", "rms_norm_eps"},
    {"{'routed_scaling_factor':'-'}", "routed_scaling_factor"},
    {"{'num_nextn_predict_layers':2}", "num_nextn_predict_layers"},
    {"{'indexer_types':['full']}", "indexer_types"},
    {"{'indexer_types':'full'}", "indexer_types"},
    {"{'num_hidden_layers':2,'indexer_types':['full','half']}", "half"},
    {"{'num_hidden_layers':2,'indexer_types':['full',1]}", "an integer"},
    {"{'num_hidden_layers':2,'indexer_types':['shared','full']}", "layer 0"},
    {"{'num_hidden_layers':2,'index_topk_pattern':'SF'}", "layer 0"},
    {"{'num_hidden_layers':2,'index_topk_pattern':'FX'}", "index_topk_pattern"},
    {"{'num_hidden_layers':2,'index_topk_pattern':'FFS'}", "index_topk_pattern"},
    {"{'index_topk_freq':0}", "index_topk_freq"},
    {"{'num_hidden_layers':1,'mlp_layer_types':['mixed']}", "mixed"},
    {"{'num_hidden_layers':1,'layer_types':['sliding_attention']}", "sliding_attention"},
    {"{'first_k_dense_replace':'-'}", "first_k_dense_replace"},
    {"{'moe_layer_freq':0}", "moe_layer_freq"},
    {"{'eos_token_id':154880}", "eos_token_id"},
    {"{'eos_token_id':-1}", "eos_token_id"},
    {"{'eos_token_id':['a']}", "eos_token_id"},
    {"{'eos_token_id':[1,2,3,4,5,6,7,8,9]}", "eos_token_id"},
    {"{'tie_word_embeddings':1}", "tie_word_embeddings"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error err = {0};
        model_config c;
        json_t *root = changed(bad[i].changes);
        if (config_parse(root, "config.json", &c, &err))
            fail_msg("accepted: %s", bad[i].changes);
        assert_int_equal(err.code, ERROR_INPUT);
        if (!strstr(err.text, bad[i].named) || !strstr(err.text, "config.json"))
            fail_msg("%s: error does not name %s: %s", bad[i].changes, bad[i].named, err.text);
        json_decref(root);
    }
    json_t *array = quoted("[1]");
    error err = {0};
    model_config c;
    assert_false(config_parse(array, "config.json", &c, &err));
    json_decref(array);
    assert_false(config_load(SOURCE_DIR "/does-not-exist", &c, &err));
}

/* Every required key, removed one at a time, is named. */
static void test_required_keys(void **state)
{
    (void)state;
    static const char *const required[] = {
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "q_lora_rank", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate_size", "moe_intermediate_size", "n_routed_experts",
        "num_experts_per_tok", "n_shared_experts", "routed_scaling_factor", "rms_norm_eps", "max_position_embeddings",
        "index_n_heads", "index_head_dim", "index_topk",
    };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        error err = {0};
        model_config c;
        json_t *root = quoted(glm52);
        json_object_del(root, required[i]);
        assert_false(config_parse(root, "config.json", &c, &err));
        assert_non_null(strstr(err.text, required[i]));
        json_decref(root);
    }
}

static void test_unknown_keys(void **state)
{
    (void)state;
    text out = {0};
    json_t *root = quoted(glm52);
    assert_int_equal(config_unknown_keys(root, &out), 0);
    assert_null(out.data);
    json_object_set_new(root, "new_key", json_integer(1));
    assert_int_equal(config_unknown_keys(root, &out), 1);
    assert_string_equal(out.data, "new_key");
    text_free(&out);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_glm52),         cmocka_unit_test(test_parameters),   cmocka_unit_test(test_glm5),
        cmocka_unit_test(test_layer_lists),   cmocka_unit_test(test_accepted),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_required_keys), cmocka_unit_test(test_unknown_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
