/* config.json of the result: the source's, with a quantization_config in the schema of whoever made the format known.
 *
 *     mxfp4         AMD Quark: "exclude" lists every matrix that is not quantized, by its full name
 *     fp8_block     zai-org (DeepSeek): "modules_to_not_convert"
 *     nvfp4         modelopt: "ignore", and hf_quant_config.json with the same under older names
 *     bf16          none
 *
 * Modules of the draft layer are listed twice, as model.layers.N.* and as engines call them that build that layer as a model of its
 * own (model.decoder.*, model.eh_proj), with model.decoder.mlp.experts for all its experts. */
#ifndef QUANTIZE_EXPORT_CONFIG_H
#define QUANTIZE_EXPORT_CONFIG_H

#include "base/json.h"
#include "quantize/encode.h"
#include "quantize/plan.h"

/* A copy of the source's config with the result's quantization_config. */
json_t *export_config(const plan *p, json_t *source, scale_rule rule);

/* hf_quant_config.json, or NULL where the format has none. */
json_t *export_hf_quant_config(const plan *p);

#endif
