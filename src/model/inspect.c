#include "model/inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXTS = 3 };

static int full_layers(const model_config *c)
{
    int count = 0;
    for (int i = 0; i < c->layers; i++)
        count += c->full_index[i];
    return count;
}

static int sparse_layers(const model_config *c)
{
    int count = 0;
    for (int i = 0; i < c->layers; i++)
        count += c->sparse_mlp[i];
    return count;
}

uint64_t kv_token_bytes(const model_config *c, kv_dtype kv)
{
    return kv_layout_of(c, kv).page_bytes / KV_PAGE_TOKENS;
}

/* f32 activations of one row of a step: residual and norms, projections, attention in absorbed form, the widest MLP, index. */
static uint64_t row_bytes(const model_config *c)
{
    uint64_t heads = (uint64_t)c->heads, hidden = (uint64_t)c->hidden_size;
    uint64_t attention = heads * (uint64_t)(c->nope_dim + c->rope_dim + 2 * c->kv_lora_rank + c->v_dim) +
                         (uint64_t)(c->q_lora_rank + c->kv_lora_rank);
    uint64_t experts = (uint64_t)(c->experts_per_token + c->shared_experts) * (uint64_t)c->expert_intermediate;
    uint64_t dense = (uint64_t)c->dense_intermediate;
    uint64_t index = (uint64_t)c->index_heads * (uint64_t)c->index_dim + (uint64_t)c->index_topk;
    return 4 * (4 * hidden + attention + 2 * (dense > experts ? dense : experts) + index);
}

memory_need memory_needed(const model *m, kv_dtype kv, int64_t context_tokens)
{
    const model_config *c = &m->config;
    uint64_t tokens = ((uint64_t)context_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    memory_need n = {.weight_bytes = checkpoint_bytes(m->checkpoint) + m->memory.used_bytes,
                     .kv_bytes = tokens * kv_token_bytes(c, kv)};
    n.working_bytes = INSPECT_STEP_ROWS * row_bytes(c) + 4 * (uint64_t)c->vocab_size + 4 * tokens;
    n.total_bytes = n.weight_bytes + n.kv_bytes + n.working_bytes;
    return n;
}

/* Contexts worth showing: 4,096 and 32,768 where the model allows them, and its limit. */
static int contexts_of(const model_config *c, int64_t out[CONTEXTS])
{
    int count = 0;
    if (c->max_positions > 4096)
        out[count++] = 4096;
    if (c->max_positions > 32768)
        out[count++] = 32768;
    out[count++] = c->max_positions;
    return count;
}

static const char *number_text(uint64_t value, char buffer[32])
{
    char plain[24];
    size_t n = (size_t)snprintf(plain, sizeof plain, "%" PRIu64, value), at = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            buffer[at++] = ',';
        buffer[at++] = plain[i];
    }
    buffer[at] = '\0';
    return buffer;
}

static const char *size_text(uint64_t bytes, char buffer[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(buffer, 32, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

static void print_architecture(const model *m, FILE *out)
{
    const model_config *c = &m->config;
    char total[32], active[32];
    fprintf(out, "%s\n\n", m->directory);
    fprintf(out, "Architecture      GlmMoeDsaForCausalLM, %d layers (%d with experts)%s\n", c->layers, sparse_layers(c),
            c->has_mtp ? " and a draft layer" : ", no draft layer");
    fprintf(out, "Parameters        %s, %s active per token\n", number_text(m->parameters, total),
            number_text(m->active_parameters, active));
    fprintf(out, "Widths            hidden %d, dense MLP %d, expert %d, vocabulary %d%s\n", c->hidden_size, c->dense_intermediate,
            c->expert_intermediate, c->vocab_size, c->tie_embeddings ? " (tied)" : "");
    fprintf(out, "Attention         %d heads of %d + %d rope, values %d; latents: query %d, KV %d\n", c->heads, c->nope_dim,
            c->rope_dim, c->v_dim, c->q_lora_rank, c->kv_lora_rank);
    fprintf(out, "Index             %d heads of %d, top %d; computed in %d of %d layers\n", c->index_heads, c->index_dim,
            c->index_topk, full_layers(c), c->layers);
    fprintf(out, "Experts           %d, %d per token, %d shared", c->experts, c->experts_per_token, c->shared_experts);
    if (c->expert_groups > 1)
        fprintf(out, "; from the best %d of %d groups", c->expert_groups_kept, c->expert_groups);
    fprintf(out, "\n");
    fprintf(out, "Positions         %d, rope theta %g\n", c->max_positions, c->rope_theta);
    fprintf(out, "Norm epsilon      %g, latent norms %g\n", (double)c->norm_eps, (double)c->latent_norm_eps);
}

static void print_tensors(const model *m, FILE *out)
{
    char count[32], size[32];
    fprintf(out, "\nTensors           %s in %d file%s, %s\n", number_text(checkpoint_count(m->checkpoint), count),
            checkpoint_shards(m->checkpoint), checkpoint_shards(m->checkpoint) == 1 ? "" : "s",
            size_text(checkpoint_bytes(m->checkpoint), size));
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (m->format_tensors[f])
            fprintf(out, "  %-10s %9s matrices %12s  %s\n", format_of((format_id)f)->name,
                    number_text((uint64_t)m->format_tensors[f], count), size_text(m->format_bytes[f], size),
                    format_of((format_id)f)->description);
}

static void print_memory(const model *m, FILE *out)
{
    int64_t contexts[CONTEXTS];
    char a[32], b[32], c[32];
    int count = contexts_of(&m->config, contexts);
    memory_need base = memory_needed(m, KV_BF16, 0);
    fprintf(out, "\nMemory            weights %s (mapped), working buffers about %s\n", size_text(base.weight_bytes, a),
            size_text(base.working_bytes, b));
    fprintf(out, "  cache       bytes/token");
    for (int i = 0; i < count; i++)
        fprintf(out, " %8s tokens   (total)", number_text((uint64_t)contexts[i], a));
    fprintf(out, "\n");
    for (int k = 0; k < KV_DTYPE_COUNT; k++) {
        fprintf(out, "  %-10s %12s", kv_dtype_name((kv_dtype)k), number_text(kv_token_bytes(&m->config, (kv_dtype)k), a));
        for (int i = 0; i < count; i++) {
            memory_need n = memory_needed(m, (kv_dtype)k, contexts[i]);
            fprintf(out, " %12s %12s", size_text(n.kv_bytes, b), size_text(n.total_bytes, c));
        }
        fprintf(out, "\n");
    }
}

static void print_sentences(const char *title, const disagreement *list, int count, FILE *out)
{
    if (count)
        fprintf(out, "\n%s\n", title);
    for (int i = 0; i < count; i++)
        fprintf(out, "  - %s\n", list[i].text);
}

void inspect_print(const model *m, FILE *out)
{
    print_architecture(m, out);
    print_tensors(m, out);
    print_memory(m, out);
    print_sentences("Disagreements between config.json and the tensor headers (the headers decide)", m->disagreements,
                    m->disagreement_count, out);
    print_sentences("Notices", m->notices, m->notice_count, out);
}

/* The shortest decimal that is this float: 1e-05, not 9.9999997e-06. */
static double decimal_of(float value)
{
    char buffer[32];
    snprintf(buffer, sizeof buffer, "%.7g", (double)value);
    return strtod(buffer, NULL);
}

static json_t *json_of(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *layers_json(const bool *flags, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        if (flags[i])
            json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *architecture_json(const model_config *c)
{
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "name", "GlmMoeDsaForCausalLM", "layers", c->layers,
                  "vocab_size", c->vocab_size, "hidden_size", c->hidden_size, "heads", c->heads, "q_lora_rank", c->q_lora_rank,
                  "kv_lora_rank", c->kv_lora_rank, "nope_dim", c->nope_dim, "rope_dim", c->rope_dim, "v_dim", c->v_dim);
    json_t *more = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:f, s:f, s:i}", "dense_intermediate",
                             c->dense_intermediate, "expert_intermediate", c->expert_intermediate, "experts", c->experts,
                             "experts_per_token", c->experts_per_token, "shared_experts", c->shared_experts, "expert_groups",
                             c->expert_groups, "expert_groups_kept", c->expert_groups_kept, "normalize_expert_weights",
                             c->normalize_expert_weights, "routed_scale", decimal_of(c->routed_scale), "norm_eps",
                             decimal_of(c->norm_eps), "latent_norm_eps", decimal_of(c->latent_norm_eps), "rope_theta",
                             c->rope_theta, "max_positions", c->max_positions);
    json_t *index = json_pack("{s:i, s:i, s:i, s:b, s:b, s:b}", "index_heads", c->index_heads, "index_dim", c->index_dim,
                              "index_topk", c->index_topk, "share_index_in_drafts", c->share_index_in_drafts, "draft_layer",
                              c->has_mtp, "tie_embeddings", c->tie_embeddings);
    json_object_update(o, more);
    json_object_update(o, index);
    json_decref(more);
    json_decref(index);
    json_object_set_new(o, "full_index_layers", layers_json(c->full_index, c->layers));
    json_object_set_new(o, "expert_layers", layers_json(c->sparse_mlp, c->layers));
    return o;
}

static json_t *formats_json(const model *m)
{
    json_t *list = json_array();
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (m->format_tensors[f])
            json_array_append_new(list, json_pack("{s:s, s:i, s:o}", "name", format_of((format_id)f)->name, "matrices",
                                                  m->format_tensors[f], "bytes", json_of(m->format_bytes[f])));
    return list;
}

static json_t *memory_json(const model *m)
{
    int64_t contexts[CONTEXTS];
    int count = contexts_of(&m->config, contexts);
    json_t *list = json_array();
    for (int k = 0; k < KV_DTYPE_COUNT; k++)
        for (int i = 0; i < count; i++) {
            memory_need n = memory_needed(m, (kv_dtype)k, contexts[i]);
            json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "cache", kv_dtype_name((kv_dtype)k), "context_tokens",
                                                  json_of((uint64_t)contexts[i]), "weight_bytes", json_of(n.weight_bytes),
                                                  "kv_bytes", json_of(n.kv_bytes), "working_bytes", json_of(n.working_bytes),
                                                  "total_bytes", json_of(n.total_bytes)));
        }
    return list;
}

static json_t *sentences_json(const disagreement *list, int count)
{
    json_t *out = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(out, json_string(list[i].text));
    return out;
}

json_t *inspect_json(const model *m)
{
    json_t *kv = json_object();
    for (int k = 0; k < KV_DTYPE_COUNT; k++)
        json_object_set_new(kv, kv_dtype_name((kv_dtype)k), json_of(kv_token_bytes(&m->config, (kv_dtype)k)));
    json_t *directory = json_string(m->directory); /* NULL when the path is not UTF-8 */
    return json_pack("{s:o, s:o, s:{s:o, s:o}, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "directory",
                     directory ? directory : json_null(), "architecture", architecture_json(&m->config), "parameters", "total",
                     json_of(m->parameters), "active", json_of(m->active_parameters), "tensors",
                     json_of(checkpoint_count(m->checkpoint)), "files", checkpoint_shards(m->checkpoint), "bytes",
                     json_of(checkpoint_bytes(m->checkpoint)), "formats", formats_json(m), "kv_bytes_per_token", kv, "memory",
                     memory_json(m), "disagreements", sentences_json(m->disagreements, m->disagreement_count), "notices",
                     sentences_json(m->notices, m->notice_count));
}
