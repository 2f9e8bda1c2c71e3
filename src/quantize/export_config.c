#include "quantize/export_config.h"

#include <string.h>

#include "model/claims.h"

/* Names of all matrices that are not quantized, in the plan's order, then once more for the draft layer. */
static json_t *unquantized(const plan *p)
{
    json_t *list = json_array();
    text alias = {0};
    bool experts = false;
    for (size_t i = 0; i < p->count; i++)
        if (p->entries[i].to && p->entries[i].to->block_cols == 0)
            json_array_append_new(list, json_string(p->entries[i].module));
    for (size_t i = 0; i < p->count; i++) {
        const plan_entry *e = &p->entries[i];
        if (!e->to || e->to->block_cols != 0 || !draft_alias(e->module, p->config->layers, &alias))
            continue;
        json_array_append_new(list, json_string(alias.data));
        experts = experts || e->class == CLASS_EXPERTS;
    }
    if (experts)
        json_array_append_new(list, json_string("model.decoder.mlp.experts"));
    text_free(&alias);
    return list;
}

/* ---- AMD Quark ---- */

static json_t *quark_mxfp4(bool dynamic, scale_rule rule)
{
    return json_pack("{s:s, s:s, s:i, s:i, s:b, s:s, s:s, s:s, s:s, s:s, s:n, s:b, s:n}", "dtype", "fp4", "qscheme", "per_group",
                     "group_size", 32, "ch_axis", -1, "is_dynamic", dynamic, "scale_format", "e8m0", "scale_type", "float",
                     "scale_calculation_mode", scale_rule_name(rule), "round_method", "half_even", "observer_cls",
                     "PerBlockMXObserver", "mx_element_dtype", "is_scale_quant", false, "symmetric");
}

static json_t *quark_fp8(bool dynamic)
{
    return json_pack("{s:s, s:s, s:n, s:i, s:b, s:n, s:s, s:n, s:s, s:s, s:n, s:b, s:b}", "dtype", "fp8_e4m3", "qscheme", "per_channel",
                     "group_size", "ch_axis", dynamic ? 1 : 0, "is_dynamic", dynamic, "scale_format", "scale_type", "float",
                     "scale_calculation_mode", "round_method", "half_even", "observer_cls", "PerChannelMinMaxObserver",
                     "mx_element_dtype", "is_scale_quant", false, "symmetric", true);
}

/* The same per block of 128 x 128 weights; activations per group of 128. */
static json_t *quark_fp8_block(bool dynamic)
{
    json_t *j = quark_fp8(dynamic);
    json_object_set_new(j, "qscheme", json_string(dynamic ? "per_group" : "per_block"));
    json_object_set_new(j, dynamic ? "group_size" : "block_size", dynamic ? json_integer(128) : json_pack("[i, i]", 128, 128));
    json_object_set_new(j, "observer_cls", json_string(dynamic ? "PerGroupMinMaxObserver" : "PerBlockMinMaxObserver"));
    return j;
}

static json_t *quark_scheme(json_t *weight, json_t *input)
{
    return json_pack("{s:o, s:o, s:n, s:n, s:n}", "weight", weight, "input_tensors", input, "output_tensors", "bias", "target_device");
}

/* Patterns for the classes of recipe attn8 that are not in the plan's own format. */
static void quark_fp8_block_layers(json_t *layers)
{
    static const char *const patterns[] = {"*self_attn*", "*.mlp.shared_experts.*", "*.mlp.gate_proj", "*.mlp.up_proj", "*.mlp.down_proj",
                                           "lm_head"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        json_object_set_new(layers, patterns[i], quark_scheme(quark_fp8_block(false), quark_fp8_block(true)));
}

static json_t *quark_config(const plan *p, scale_rule rule)
{
    json_t *layers = json_object();
    if (p->format_count[FORMAT_FP8_CHANNEL])
        json_object_set_new(layers, "*self_attn*", quark_scheme(quark_fp8(false), quark_fp8(true)));
    if (p->format_count[FORMAT_FP8_BLOCK])
        quark_fp8_block_layers(layers);
    json_t *q = json_pack("{s:s, s:s, s:s, s:n, s:o, s:o, s:o, s:{}, s:{}, s:b, s:n}", "quant_method", "quark", "quant_mode", "eager_mode",
                          "version", "0.11", "algo_config", "global_quant_config",
                          quark_scheme(quark_mxfp4(false, rule), quark_mxfp4(true, SCALE_EVEN)), "exclude", unquantized(p),
                          "layer_quant_config", layers, "layer_type_quant_config", "kv_cache_quant_config", "kv_cache_post_rope",
                          false, "softmax_quant_spec");
    json_object_set_new(q, "export", json_pack("{s:[], s:f, s:s, s:s, s:n}", "kv_cache_group", "min_kv_scale", 0.0, "pack_method",
                                               "reorder", "weight_format", "real_quantized", "weight_merge_groups"));
    return q;
}

/* ---- zai-org and modelopt ---- */

static json_t *fp8_config(const plan *p)
{
    return json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme", "dynamic",
                     "weight_block_size", 128, 128, "modules_to_not_convert", unquantized(p));
}

static json_t *modelopt_group(void)
{
    return json_pack("{s:b, s:i, s:s, s:i}", "dynamic", false, "num_bits", 4, "type", "float", "group_size", 16);
}

static json_t *modelopt_producer(void)
{
    return json_pack("{s:s, s:s}", "name", "drawbridge", "version", DRAWBRIDGE_VERSION);
}

static json_t *modelopt_config(const plan *p)
{
    return json_pack("{s:{s:{s:o, s:o, s:[s]}}, s:o, s:s, s:o, s:s}", "config_groups", "group_0", "input_activations", modelopt_group(),
                     "weights", modelopt_group(), "targets", "Linear", "ignore", unquantized(p), "quant_algo", "NVFP4", "producer",
                     modelopt_producer(), "quant_method", "modelopt");
}

json_t *export_hf_quant_config(const plan *p)
{
    if (p->format_count[FORMAT_NVFP4] == 0)
        return NULL;
    return json_pack("{s:o, s:{s:s, s:n, s:i, s:o}}", "producer", modelopt_producer(), "quantization", "quant_algo", "NVFP4",
                     "kv_cache_quant_algo", "group_size", 16, "exclude_modules", unquantized(p));
}

json_t *export_config(const plan *p, json_t *source, scale_rule rule)
{
    json_t *config = json_deep_copy(source), *quantization = NULL;
    json_object_del(config, "quantization_config");
    if (p->format_count[FORMAT_MXFP4] || p->format_count[FORMAT_FP8_CHANNEL])
        quantization = quark_config(p, rule);
    else if (p->format_count[FORMAT_FP8_BLOCK])
        quantization = fp8_config(p);
    else if (p->format_count[FORMAT_NVFP4])
        quantization = modelopt_config(p);
    static const char *const types[] = {"dtype", "torch_dtype"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_object_get(config, types[i]))
            json_object_set_new(config, types[i], json_string("bfloat16"));
    if (quantization)
        json_object_set_new(config, "quantization_config", quantization);
    return config;
}
