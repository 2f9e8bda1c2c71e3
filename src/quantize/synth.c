/* config.json is read, cut to --layers, and given the end-of-text ids of the tokenizer that comes with it; a plan of shapes and
 * result.c do the rest, with values from synth_values.c. */
#include "quantize/synth.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "model/tokenizer.h"
#include "quantize/result.h"
#include "quantize/synth_values.h"

enum { CONFIG_FILE_LIMIT = 64 << 20 };

const char *const synth_format_names[SYNTH_FORMATS + 1] = {
    [SYNTH_MXFP4] = "mxfp4",         [SYNTH_MXFP4_ATTN8] = "mxfp4-attn8", [SYNTH_MXFP4_ATTN_FP8] = "mxfp4-attn-fp8",
    [SYNTH_MXFP4_ALL] = "mxfp4-all", [SYNTH_FP8] = "fp8",                 [SYNTH_NVFP4] = "nvfp4",
    [SYNTH_BF16] = "bf16",
};

static const recipe_options recipes[SYNTH_FORMATS] = {
    [SYNTH_MXFP4] = {.to = FORMAT_MXFP4, .recipe = RECIPE_AMD},
    [SYNTH_MXFP4_ATTN8] = {.to = FORMAT_MXFP4, .recipe = RECIPE_ATTN8},
    [SYNTH_MXFP4_ATTN_FP8] = {.to = FORMAT_MXFP4, .recipe = RECIPE_AMD_ATTN_FP8},
    [SYNTH_MXFP4_ALL] = {.to = FORMAT_MXFP4, .recipe = RECIPE_ALL},
    [SYNTH_FP8] = {.to = FORMAT_FP8_BLOCK, .recipe = RECIPE_ZAI},
    [SYNTH_NVFP4] = {.to = FORMAT_NVFP4, .recipe = RECIPE_MODELOPT},
    [SYNTH_BF16] = {.to = FORMAT_BF16},
};

/* What makes text of token ids and back. */
static const char *const tokenizer_files[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
                                              NULL};

struct synth_job {
    synth_options options;
    json_t *root; /* the result's config.json, without quantization_config */
    model_config config;
    bool has_tokenizer;
    synth_values *values;
    plan plan;
    uint64_t conversion; /* hash of the config and the options */
    result_job result;
};

/* ---- the config ---- */

/* Lists with an entry per layer: they can be cut but not made longer. */
static bool cut_list(synth_job *j, const char *key, error *err)
{
    const json_t *list = json_object_get(j->root, key);
    size_t layers = (size_t)j->options.layers, size = json_array_size(list);
    if (json_is_string(list))
        size = json_string_length(list);
    else if (!json_is_array(list))
        return true;
    if (size < layers)
        return error_set(err, ERROR_USAGE, "--layers %zu: %s lists %zu layers in \"%s\"; ask for at most %zu, or remove the key so that "
                         "the rule for all layers holds", layers, j->options.config, size, key, size);
    json_t *cut = json_is_string(list) ? json_stringn(json_string_value(list), layers) : json_array();
    for (size_t i = 0; json_is_array(cut) && i < layers; i++)
        json_array_append(cut, json_array_get(list, i));
    json_object_set_new(j->root, key, cut);
    return true;
}

static bool set_layers(synth_job *j, error *err)
{
    static const char *const lists[] = {"layer_types", "indexer_types", "index_topk_pattern", "mlp_layer_types"};
    if (j->options.layers == 0)
        return true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (!cut_list(j, lists[i], err))
            return false;
    json_object_set_new(j->root, "num_hidden_layers", json_integer(j->options.layers));
    return true;
}

/* Takes over the ids that end a text, where all tokens of the tokenizer fit the vocabulary. */
static bool set_tokenizer(synth_job *j, error *err)
{
    static const char *const keys[] = {"eos_token_id", "pad_token_id"};
    text path = {0};
    path_join(&path, j->options.text_model, tokenizer_files[0]);
    tokenizer *t = tokenizer_load(path.data, err);
    bool ok = t != NULL;
    j->has_tokenizer = ok && tokenizer_size(t) <= j->config.vocab_size;
    tokenizer_free(t);
    text_clear(&path);
    json_t *from = j->has_tokenizer ? config_read(j->options.text_model, &path, err) : NULL;
    ok = ok && (from || !j->has_tokenizer);
    for (size_t i = 0; from && i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(from, keys[i]))
            json_object_set(j->root, keys[i], json_object_get(from, keys[i]));
    json_decref(from);
    text_free(&path);
    return ok;
}

static bool load_config(synth_job *j, error *err)
{
    const char *path = j->options.config;
    j->root = json_parse_file(path, CONFIG_FILE_LIMIT, err);
    return j->root && config_parse(j->root, path, &j->config, err) && set_layers(j, err) && set_tokenizer(j, err) &&
           config_parse(j->root, path, &j->config, err);
}

/* ---- the plan ---- */

static void make_plan(synth_job *j, const recipe *r)
{
    plan_create_shapes(&j->config, r, j->options.shard_bytes, synth_values_vector, j->values, &j->plan);
    for (size_t i = 0; i < j->plan.count; i++) {
        plan_entry *e = &j->plan.entries[i];
        if (e->to && e->to->id == FORMAT_NVFP4)
            e->largest = synth_values_largest(j->values, e);
    }
}

static bool hash_job(synth_job *j, error *err)
{
    const synth_options *o = &j->options;
    text words = {0};
    char *config = json_dumps(j->root, JSON_COMPACT | JSON_SORT_KEYS);
    if (!config)
        return error_set(err, ERROR_RUNTIME, "out of memory for a copy of %s", o->config);
    text_add_format(&words, "synth 1\nformat %s\nseed %" PRIu64 "\nshard %" PRIu64 "\ntokenizer %d\n%s\n", synth_format_names[o->format],
                    o->seed, o->shard_bytes, j->has_tokenizer, config);
    j->conversion = XXH3_64bits(words.data, words.length);
    text_free(&words);
    free(config);
    return true;
}

static bool job_load(synth_job *j, error *err)
{
    recipe r;
    if (!load_config(j, err) || !recipe_resolve(&recipes[j->options.format], &r, err) || !hash_job(j, err))
        return false;
    j->values = synth_values_create(&j->config, j->options.seed);
    make_plan(j, &r);
    return true;
}

synth_job *synth_open(const synth_options *o, error *err)
{
    synth_job *j = mem_alloc(1, sizeof *j);
    j->options = *o;
    if (job_load(j, err))
        return j;
    synth_close(j);
    return NULL;
}

const plan *synth_plan(const synth_job *j)
{
    return &j->plan;
}

bool synth_has_tokenizer(const synth_job *j)
{
    return j->has_tokenizer;
}

bool synth_run(synth_job *j, const char *destination, bool *already, error *err)
{
    const synth_options *o = &j->options;
    result_free(&j->result);
    j->result = (result_job){
        .doing = "making weights",
        .plan = &j->plan,
        .config = j->root,
        .directory = j->has_tokenizer ? o->text_model : NULL,
        .small_files = tokenizer_files,
        .stream = {.stop = o->stop, .make = synth_values_make, .make_context = j->values},
        .threads = o->threads,
        .force = o->force,
        .conversion = j->conversion,
        .report = json_pack("{s:b, s:s, s:I, s:I}", "synthetic", true, "format", synth_format_names[o->format], "seed",
                            (json_int_t)o->seed, "bytes", (json_int_t)j->plan.bytes),
    };
    return result_write(&j->result, destination, already, err);
}

void synth_close(synth_job *j)
{
    if (!j)
        return;
    result_free(&j->result);
    plan_free(&j->plan);
    synth_values_free(j->values);
    json_decref(j->root);
    free(j);
}
