/* Any bytes -> JSON -> config_parse, and its quantization_config -> claims about modules. What is accepted must have the sizes
 * that config.h promises and a parameter count that does not wrap. */
#include <stdint.h>
#include <stdlib.h>

#include "model/claims.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
    if (!condition)
        abort();
}

static void check_accepted(const model_config *c)
{
    uint64_t total, active;
    check(c->layers >= 1 && c->layers <= CONFIG_MAX_LAYERS && c->full_index[0]);
    check(c->experts_per_token >= 1 && c->experts_per_token <= c->experts && c->experts % c->expert_groups == 0);
    check(c->rope_dim % 2 == 0 && c->index_dim >= c->rope_dim && c->rope_theta >= 1 && c->norm_eps > 0);
    check(c->eos_count <= CONFIG_MAX_EOS);
    config_parameters(c, &total, &active);
    check(total > 0 && total < UINT64_MAX / 16 && active > 0);
}

static void try_claims(const json_t *quantization)
{
    static const char *const modules[] = {"lm_head", "model.layers.78.mlp.experts.12.gate_proj", "model.layers.3.self_attn.o_proj"};
    claims c;
    claims_read(quantization, &c);
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        claims_exclude(&c, modules[i]);
        claims_mark(&c, modules[i]);
    }
    claims_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    error err = {0};
    model_config c;
    text keys = {0};
    json_t *root = json_parse((const char *)data, size, "fuzz", &err);
    if (!root)
        return 0;
    if (config_parse(root, "fuzz", &c, &err))
        check_accepted(&c);
    else
        check(err.code == ERROR_INPUT && err.text[0] != '\0');
    config_unknown_keys(root, &keys);
    try_claims(json_object_get(root, "quantization_config"));
    text_free(&keys);
    json_decref(root);
    return 0;
}
