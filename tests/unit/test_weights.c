/* Checkpoints in every layout: decoded values, missing, surplus and misshapen tensors, the draft layer, and the report of what
 * config.json claims against what the headers say. */
#include "checkpoint_builder.h"

#include "base/memory.h"
#include "forward/forward.h"
#include "model/claims.h"
#include "model/inspect.h"

static model *opened(const builder *b)
{
    error err = {0};
    model *m = model_open(b->directory, &err);
    if (!m)
        fail_msg("%s", err.text);
    return m;
}

/* Opens what must be refused with a text that contains all the given parts. */
static void refused(const builder *b, const char *first, const char *second)
{
    error err = {0};
    model *m = model_open(b->directory, &err);
    if (m)
        fail_msg("opened, expected an error about %s", first);
    assert_int_equal(err.code, ERROR_INPUT);
    if (!strstr(err.text, first) || !strstr(err.text, second))
        fail_msg("error names not both %s and %s: %s", first, second, err.text);
}

static bool any_contains(const disagreement *list, int count, const char *part)
{
    for (int i = 0; i < count; i++)
        if (strstr(list[i].text, part))
            return true;
    return false;
}

static void assert_disagreement(const model *m, const char *part)
{
    if (any_contains(m->disagreements, m->disagreement_count, part))
        return;
    for (int i = 0; i < m->disagreement_count; i++)
        print_message("  %s\n", m->disagreements[i].text);
    fail_msg("no disagreement says: %s", part);
}

static void check_matrix(const builder *b, const char *module, int64_t stack, int64_t first_row, const matrix *m, int64_t rows,
                         int64_t cols)
{
    float *row = mem_alloc((size_t)cols, sizeof *row);
    source s = source_of(b, module, stack);
    if (!m->format)
        fail_msg("%s is absent", module);
    assert_int_equal(m->rows, rows);
    assert_int_equal(m->cols, cols);
    for (int64_t r = 0; r < rows; r++) {
        matrix_row(m, r, row);
        for (int64_t c = 0; c < cols; c++)
            if (row[c] != expected_value(&s, first_row + r, c))
                fail_msg("%s [%d][%d] is %g, expected %g", module, (int)r, (int)c, (double)row[c],
                         (double)expected_value(&s, first_row + r, c));
    }
    free(row);
}

static void check_vector(const builder *b, const char *name, const float *values, size_t count)
{
    const item *it = item_find(b, name);
    assert_non_null(it);
    assert_non_null(values);
    for (size_t i = 0; i < count; i++)
        assert_true(values[i] == float_at(it, i));
}

static void check_mlp(const builder *b, const char *prefix, const mlp_weights *w, int64_t width)
{
    char name[160];
#define NAME(tail) (snprintf(name, sizeof name, "%s.%s", prefix, tail), name)
    check_matrix(b, NAME("gate_proj"), -1, 0, &w->gate, width, HIDDEN);
    check_matrix(b, NAME("up_proj"), -1, 0, &w->up, width, HIDDEN);
    check_matrix(b, NAME("down_proj"), -1, 0, &w->down, HIDDEN, width);
#undef NAME
}

static void check_expert(const builder *b, int layer, int e, const mlp_weights *w)
{
    char name[112];
    if (!b->stacked) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d", layer, e);
        check_mlp(b, name, w, WIDTH);
        return;
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    check_matrix(b, name, e, 0, &w->gate, WIDTH, HIDDEN);
    check_matrix(b, name, e, WIDTH, &w->up, WIDTH, HIDDEN);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
    check_matrix(b, name, e, 0, &w->down, HIDDEN, WIDTH);
}

static void check_layer(const builder *b, int layer, bool full, bool sparse, const layer_weights *w)
{
    char name[112];
#define NAME(tail) (snprintf(name, sizeof name, "model.layers.%d.%s", layer, tail), name)
    assert_int_equal(w->full_index, full);
    assert_int_equal(w->sparse, sparse);
    check_vector(b, NAME("input_layernorm.weight"), w->input_norm, HIDDEN);
    check_vector(b, NAME("post_attention_layernorm.weight"), w->post_attention_norm, HIDDEN);
    check_matrix(b, NAME("self_attn.q_a_proj"), -1, 0, &w->q_a, Q_LATENT, HIDDEN);
    check_vector(b, NAME("self_attn.q_a_layernorm.weight"), w->q_a_norm, Q_LATENT);
    check_matrix(b, NAME("self_attn.q_b_proj"), -1, 0, &w->q_b, HEADS * (NOPE + ROPE), Q_LATENT);
    check_matrix(b, NAME("self_attn.kv_a_proj_with_mqa"), -1, 0, &w->kv_a, KV_LATENT + ROPE, HIDDEN);
    check_vector(b, NAME("self_attn.kv_a_layernorm.weight"), w->kv_a_norm, KV_LATENT);
    check_matrix(b, NAME("self_attn.kv_b_proj"), -1, 0, &w->kv_b, HEADS * (NOPE + VALUE), KV_LATENT);
    check_matrix(b, NAME("self_attn.o_proj"), -1, 0, &w->o, HIDDEN, HEADS * VALUE);
    if (full) {
        check_matrix(b, NAME("self_attn.indexer.wq_b"), -1, 0, &w->indexer.q_b, INDEX_HEADS * INDEX_DIM, Q_LATENT);
        check_matrix(b, NAME("self_attn.indexer.wk"), -1, 0, &w->indexer.k, INDEX_DIM, HIDDEN);
        check_vector(b, NAME("self_attn.indexer.k_norm.weight"), w->indexer.k_norm, INDEX_DIM);
        check_vector(b, NAME("self_attn.indexer.k_norm.bias"), w->indexer.k_norm_bias, INDEX_DIM);
        check_matrix(b, NAME("self_attn.indexer.weights_proj"), -1, 0, &w->indexer.head_weights, INDEX_HEADS, HIDDEN);
    }
    if (!sparse) {
        check_mlp(b, NAME("mlp"), &w->mlp, DENSE);
        return;
    }
    check_matrix(b, NAME("mlp.gate"), -1, 0, &w->router, EXPERTS, HIDDEN);
    check_vector(b, NAME("mlp.gate.e_score_correction_bias"), w->router_bias, EXPERTS);
    check_mlp(b, NAME("mlp.shared_experts"), &w->shared, WIDTH);
    for (int e = 0; e < EXPERTS; e++)
        check_expert(b, layer, e, &w->experts[e]);
#undef NAME
}

static void check_model(const builder *b, const model *m)
{
    check_matrix(b, "model.embed_tokens", -1, 0, &m->embed, VOCAB, HIDDEN);
    check_matrix(b, "lm_head", -1, 0, &m->lm_head, VOCAB, HIDDEN);
    check_vector(b, "model.norm.weight", m->final_norm, HIDDEN);
    check_layer(b, 0, true, false, &m->layers[0]);
    check_layer(b, 1, false, true, &m->layers[1]);
    assert_int_equal(m->config.has_mtp, !b->no_mtp);
    if (b->no_mtp)
        return;
    check_layer(b, 2, true, true, &m->mtp.layer);
    check_vector(b, "model.layers.2.enorm.weight", m->mtp.embed_norm, HIDDEN);
    check_vector(b, "model.layers.2.hnorm.weight", m->mtp.hidden_norm, HIDDEN);
    check_vector(b, "model.layers.2.shared_head.norm.weight", m->mtp.head_norm, HIDDEN);
    check_matrix(b, "model.layers.2.eh_proj", -1, 0, &m->mtp.project, HIDDEN, 2 * HIDDEN);
}

/* Writes, opens, compares every value; returns the open model. */
static model *round_trip(builder *b, size_t shards)
{
    builder_fill(b);
    builder_write(b, shards);
    model *m = opened(b);
    check_model(b, m);
    return m;
}

static void test_every_layout(void **state)
{
    (void)state;
    static const format_id layouts[] = {FORMAT_BF16,  FORMAT_F32,   FORMAT_FP8_BLOCK,
                                        FORMAT_MXFP4, FORMAT_NVFP4, FORMAT_FP8_CHANNEL};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int stacked = 0; stacked < 2; stacked++) {
            builder b = builder_new(layouts[i]);
            b.stacked = stacked;
            model *m = round_trip(&b, 1);
            assert_true(m->format_tensors[layouts[i]] >= 30);
            uint64_t bytes = 0, vectors = 0;
            for (int f = 0; f < FORMAT_COUNT; f++)
                bytes += m->format_bytes[f];
            for (size_t k = 0; k < b.count; k++)
                vectors += strstr(b.items[k].name, "norm") || strstr(b.items[k].name, "e_score") ? b.items[k].count : 0;
            assert_int_equal(bytes + vectors, checkpoint_bytes(m->checkpoint));
            model_close(m);
            builder_free(&b);
        }
}

static void test_mixed_and_sharded(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    b.attention = FORMAT_FP8_BLOCK;
    b.experts = FORMAT_MXFP4;
    b.draft = FORMAT_NVFP4;
    model *m = round_trip(&b, 3);
    assert_int_equal(checkpoint_shards(m->checkpoint), 3);
    assert_int_equal(m->format_tensors[FORMAT_MXFP4], 3 + 3 * EXPERTS);
    assert_int_equal(m->format_tensors[FORMAT_NVFP4], 3 + 3 * EXPERTS);
    assert_int_equal(m->format_tensors[FORMAT_FP8_BLOCK], 3 * 5 + 2 * 2);
    model_close(m);
    builder_free(&b);
}

/* One tensor removed: named, with the count. */
static void test_missing(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_MXFP4);
    builder_fill(&b);
    for (size_t i = 0; i < b.count; i++) {
        item saved = b.items[i];
        b.items[i] = b.items[--b.count];
        builder_write(&b, 1);
        refused(&b, saved.name, "1 missing");
        builder_remove_files(&b);
        b.items[b.count++] = b.items[i];
        b.items[i] = saved;
    }
    builder_free(&b);
}

static void test_many_missing_and_surplus(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    b.changes = "{'num_hidden_layers':4,'index_topk_pattern':'FSSS'}";
    b.no_mtp = true;
    builder_fill(&b);
    add_vector(&b, "model.layers.0.mystery.weight", 4);
    builder_write(&b, 1);
    refused(&b, "model.layers.2.", "missing");
    refused(&b, "...", "model.layers.0.mystery.weight");
    builder_free(&b);
}

/* A tensor changed to another shape or type: refused with its name and what was expected. */
static void refused_item(const char *name, dtype type, int rank, int64_t d0, int64_t d1, const char *expected, format_id layout)
{
    builder b = builder_new(layout);
    builder_fill(&b);
    item *old = item_find(&b, name);
    assert_non_null(old);
    size_t place = (size_t)(old - b.items);
    free(old->bytes);
    item *fresh = item_add(&b, name, type, rank, d0, d1, 0);
    b.items[place] = *fresh;
    b.count--;
    builder_write(&b, 1);
    refused(&b, name, expected);
    builder_free(&b);
}

static void test_shapes_and_types(void **state)
{
    (void)state;
    refused_item("model.layers.0.self_attn.q_a_proj.weight", DTYPE_BF16, 2, HIDDEN, Q_LATENT, "expected shape [64, 160]",
                 FORMAT_BF16);
    refused_item("model.layers.0.self_attn.q_a_proj.weight", DTYPE_BF16, 1, HIDDEN * Q_LATENT, 0, "expected shape [64, 160]",
                 FORMAT_BF16);
    refused_item("model.layers.0.self_attn.q_a_proj.weight", DTYPE_F16, 2, Q_LATENT, HIDDEN, "F16", FORMAT_BF16);
    refused_item("model.layers.0.input_layernorm.weight", DTYPE_F16, 1, HIDDEN, 0, "expected BF16 or F32", FORMAT_BF16);
    refused_item("model.layers.0.input_layernorm.weight", DTYPE_BF16, 1, HIDDEN + 1, 0, "expected shape [160]", FORMAT_BF16);
    refused_item("model.layers.0.input_layernorm.weight", DTYPE_BF16, 2, HIDDEN, 1, "expected shape [160]", FORMAT_BF16);
    refused_item("model.layers.2.eh_proj.weight", DTYPE_U8, 2, HIDDEN, HIDDEN, "model.layers.2.eh_proj.weight_scale",
                 FORMAT_BF16);
    refused_item("model.layers.1.mlp.experts.0.up_proj.weight", DTYPE_U8, 2, WIDTH, HIDDEN, "expected shape [128, 80]",
                 FORMAT_MXFP4);
    refused_item("model.layers.1.mlp.experts.0.up_proj.weight_scale", DTYPE_U8, 2, WIDTH, 4, "expected shape [128, 5]",
                 FORMAT_MXFP4);
    refused_item("model.layers.1.mlp.experts.0.up_proj.weight_scale", DTYPE_BF16, 2, WIDTH, 5, "F8_E8M0", FORMAT_MXFP4);
    refused_item("model.layers.1.mlp.experts.0.up_proj.weight_scale", DTYPE_F8_E4M3, 2, WIDTH, 5, "expected shape [128, 10]",
                 FORMAT_NVFP4);
    refused_item("model.layers.1.mlp.experts.0.up_proj.weight_scale_2", DTYPE_F32, 1, 2, 0, "expected one value", FORMAT_NVFP4);
    refused_item("model.layers.1.mlp.experts.0.up_proj.weight_scale_2", DTYPE_BF16, 1, 1, 0, "expected F32", FORMAT_NVFP4);
    refused_item("model.layers.0.self_attn.kv_b_proj.weight_scale_inv", DTYPE_F32, 2, 2, 1, "expected shape [1, 1]",
                 FORMAT_FP8_BLOCK);
    refused_item("model.layers.0.self_attn.kv_b_proj.weight_scale_inv", DTYPE_BF16, 2, 1, 1, "expected F32", FORMAT_FP8_BLOCK);
}

/* FP8 with one scale per matrix: another layout, refused by name rather than read wrongly. */
static void test_fp8_matrix_scale_refused(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_FP8_BLOCK);
    builder_fill(&b);
    item *scale = item_find(&b, "model.layers.0.self_attn.o_proj.weight_scale_inv");
    snprintf(scale->name, sizeof scale->name, "model.layers.0.self_attn.o_proj.weight_scale");
    builder_write(&b, 1);
    refused(&b, "model.layers.0.self_attn.o_proj.weight", "expected one scale per row");
    builder_free(&b);
}

static void refused_value(const char *name, size_t offset, format_id layout, const char *place)
{
    static const uint8_t nan[4] = {0, 0, 0xC0, 0x7F};
    builder b = builder_new(layout);
    builder_fill(&b);
    item *it = item_find(&b, name);
    memcpy(it->bytes + offset, nan + (it->type == DTYPE_BF16 ? 2 : 0), dtype_bytes(it->type));
    builder_write(&b, 1);
    refused(&b, name, place);
    builder_free(&b);
}

static void test_not_finite(void **state)
{
    (void)state;
    refused_value("model.layers.0.post_attention_layernorm.weight", 6, FORMAT_BF16, "value 3 is");
    refused_value("model.layers.1.mlp.gate.e_score_correction_bias", 8, FORMAT_BF16, "value 2 is");
    refused_value("model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv", 4, FORMAT_FP8_BLOCK, "value 1 is");
    refused_value("model.layers.1.mlp.experts.3.gate_proj.weight_scale_2", 0, FORMAT_NVFP4, "value 0 is");
}

static void test_harmless_extras(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_NVFP4);
    builder_fill(&b);
    item_add(&b, "model.layers.1.mlp.experts.0.up_proj.input_scale", DTYPE_F32, 0, 0, 0, 0);
    item_add(&b, "model.layers.1.self_attn.k_proj.k_scale", DTYPE_F32, 0, 0, 0, 0);
    item_add(&b, "model.layers.0.self_attn.rotary_emb.inv_freq", DTYPE_F32, 1, 8, 0, 0);
    item_add(&b, "model.layers.2.shared_head.head.weight", DTYPE_BF16, 2, VOCAB, HIDDEN, 0);
    item_add(&b, "model.layers.2.embed_tokens.weight", DTYPE_BF16, 2, VOCAB, HIDDEN, 0);
    builder_write(&b, 1);
    model *m = opened(&b);
    assert_int_equal(m->notice_count, 5);
    assert_true(any_contains(m->notices, m->notice_count, "shared_head.head"));
    model_close(m);
    snprintf(item_find(&b, "model.layers.2.embed_tokens.weight")->name, 112, "model.layers.1.embed_tokens.weight");
    builder_write_shard(&b, "model.safetensors", 0, 1);
    refused(&b, "model.layers.1.embed_tokens.weight", "1 without a place");
    builder_free(&b);
}

static void test_tied_embeddings(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    b.changes = "{'tie_word_embeddings':true}";
    builder_fill(&b);
    builder_write(&b, 1);
    model *m = opened(&b);
    assert_ptr_equal(m->lm_head.data, m->embed.data);
    assert_true(any_contains(m->notices, m->notice_count, "lm_head.weight is not read"));
    model_close(m);
    snprintf(item_find(&b, "lm_head.weight")->name, 112, "model.layers.2.embed_tokens.weight");
    builder_write_shard(&b, "model.safetensors", 0, 1);
    m = opened(&b);
    assert_ptr_equal(m->lm_head.data, m->embed.data);
    model_close(m);
    builder_free(&b);
}

static void test_draft_layer(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16); /* announced, not there: as HF saves it */
    b.no_mtp = true;
    model *m = round_trip(&b, 1);
    assert_true(any_contains(m->notices, m->notice_count, "loaded without it"));
    model_close(m);
    builder_free(&b);

    b = builder_new(FORMAT_BF16); /* there, not announced */
    b.changes = "{'num_nextn_predict_layers':0}";
    m = round_trip(&b, 1);
    assert_true(any_contains(m->notices, m->notice_count, "loaded as the draft layer"));
    model_close(m);
    builder_free(&b);

    b = builder_new(FORMAT_BF16); /* half of it there */
    b.no_mtp = true;
    builder_fill(&b);
    add_vector(&b, "model.layers.2.enorm.weight", HIDDEN);
    builder_write(&b, 1);
    refused(&b, "model.layers.2.hnorm.weight", "missing");
    builder_free(&b);
}

static void test_no_shared_experts(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    b.changes = "{'n_shared_experts':0,'num_nextn_predict_layers':0}";
    b.no_mtp = true;
    builder_fill(&b);
    for (size_t i = 0; i < b.count;) {
        if (strstr(b.items[i].name, "shared_experts")) {
            free(b.items[i].bytes);
            b.items[i] = b.items[--b.count];
        } else {
            i++;
        }
    }
    builder_write(&b, 1);
    model *m = opened(&b);
    assert_null(m->layers[1].shared.gate.format);
    assert_int_equal(m->notice_count, 0);
    model_close(m);
    builder_free(&b);
}

#define QUARK(exclude)                                                                                                           \
    "{'quantization_config':{'quant_method':'quark','global_quant_config':{'weight':{'dtype':'fp4','group_size':32}},'exclude':" \
    "[" exclude "]}}"
#define TRUNK_PLAIN "'lm_head','*self_attn*','*mlp.gate','model.layers.0.mlp.*'"

static model *with_config(builder *b, const char *changes)
{
    b->changes = changes;
    builder_fill(b);
    builder_write(b, 1);
    model *m = opened(b);
    check_model(b, m);
    return m;
}

static void close_both(model *m, builder *b)
{
    model_close(m);
    builder_free(b);
    *b = (builder){.attention = FORMAT_BF16, .experts = FORMAT_MXFP4, .draft = FORMAT_BF16, .plain = DTYPE_BF16};
}

/* AMD's recipe: experts of the trunk MXFP4, the draft layer BF16, and the several ways its list may name the draft layer. */
static void test_quark_lists(void **state)
{
    (void)state;
    builder b = {.attention = FORMAT_BF16, .experts = FORMAT_MXFP4, .draft = FORMAT_BF16, .plain = DTYPE_BF16};
    model *m = with_config(&b, QUARK(TRUNK_PLAIN ",'*layers.2.*'"));
    assert_int_equal(m->disagreement_count, 0);
    close_both(m, &b);

    m = with_config(&b, QUARK(TRUNK_PLAIN ",'re:model\\\\.layers\\\\.2\\\\.(mlp|eh_proj)'"));
    assert_int_equal(m->disagreement_count, 0);
    close_both(m, &b);

    m = with_config(&b, QUARK(TRUNK_PLAIN ",'model.eh_proj','model.decoder.mlp.experts.0.gate_proj','model.decoder.mlp.experts.1."
                                          "gate_proj'"));
    assert_disagreement(m, "config.json does not exclude model.layers.2.mlp.experts.* (it excludes model.eh_proj, "
                           "model.decoder.*), but its tensors (12) "
                           "are BF16: read as BF16");
    assert_disagreement(m, "does not exclude model.layers.2.eh_proj (it excludes");
    assert_disagreement(m, "config.json's list \"exclude\" has 3 entries that no tensor matches: model.eh_proj, model.decoder.* "
                           "(2 entries)");
    assert_int_equal(m->disagreement_count, 4);
    close_both(m, &b);

    m = with_config(&b, QUARK("'lm_head','model.layers.0.*','model.layers.1.self_attn.*','model.decoder.*'"));
    assert_disagreement(m, "config.json does not exclude model.layers.2.* (it excludes model.decoder.*), but its tensors (24) "
                           "are BF16: read as BF16");
    assert_int_equal(m->disagreement_count, 2);
    close_both(m, &b);

    m = with_config(&b, QUARK("'lm_head','model.*'"));
    assert_disagreement(m, "config.json excludes model.layers.1.mlp.experts.* from quantization, but its tensors (12) are MXFP4: "
                           "read as MXFP4");
    assert_disagreement(m, "config.json excludes model.layers.1.mlp.shared_experts.* from quantization, but its tensors (3) are "
                           "MXFP4");
    assert_int_equal(m->disagreement_count, 2);
    close_both(m, &b);

    m = with_config(&b, QUARK(TRUNK_PLAIN ",'model.layers.2','lm_head','re:(?i)x','re:a{9}','re:\\\\d'"));
    assert_disagreement(m, "config.json's list \"exclude\" has 3 entries that could not be compared");
    assert_int_equal(m->disagreement_count, 1);
    close_both(m, &b);
    builder_free(&b);
}

static void test_other_lists(void **state)
{
    (void)state;
    builder b = {.attention = FORMAT_BF16, .experts = FORMAT_MXFP4, .draft = FORMAT_BF16, .plain = DTYPE_BF16};
    model *m = with_config(&b, "{}");
    assert_disagreement(m, "config.json has no quantization_config, but the tensors of model.layers.1.mlp.experts.* (12) are "
                           "MXFP4");
    assert_int_equal(m->disagreement_count, 2);
    close_both(m, &b);

    m = with_config(&b, "{'quantization_config':{'quant_method':'modelopt','quant_algo':'NVFP4','ignore':['lm_head','model."
                        "layers.[02]*','*.self_attn*']}}");
    assert_disagreement(m, "config.json says quantized weights are NVFP4, but the tensors of model.layers.1.mlp.experts.* (12) "
                           "are MXFP4: read as MXFP4");
    assert_int_equal(m->disagreement_count, 2);
    close_both(m, &b);

    m = with_config(&b, "{'quantization_config':{'quant_method':'gguf'},'unheard_of':1}");
    assert_int_equal(m->disagreement_count, 0);
    assert_true(any_contains(m->notices, m->notice_count, "gguf"));
    assert_true(any_contains(m->notices, m->notice_count, "unheard_of"));
    close_both(m, &b);

    /* zai-org's FP8 list: weights_proj under a name that no tensor has */
    b.attention = b.experts = b.draft = FORMAT_FP8_BLOCK;
    m = with_config(&b, "{'quantization_config':{'quant_method':'fp8','weight_block_size':[128,128],'modules_to_not_convert':['"
                        "lm_head','eh_proj',"
                        "'model.embed_tokens','model.norm','model.layers.0.self_attn.indexers_proj','model.layers.2.self_attn."
                        "indexers_proj',"
                        "'model.layers.1.mlp.gate','model.layers.2.enorm','model.layers.0.mlp']}}");
    assert_disagreement(m, "config.json's list \"modules_to_not_convert\" has 2 entries that no tensor matches: "
                           "model.layers.*.self_attn.indexers_proj (2 entries)");
    assert_disagreement(m, "config.json does not exclude model.layers.0.self_attn.indexer.weights_proj, but its tensors (1) are "
                           "BF16");
    assert_disagreement(m, "config.json does not exclude model.layers.2.self_attn.indexer.weights_proj, but its tensors (1) are "
                           "BF16");
    assert_int_equal(m->disagreement_count, 3);
    close_both(m, &b);

    /* stacked experts stand for the modules a list names */
    b.stacked = true;
    m = with_config(&b, QUARK(TRUNK_PLAIN ",'model.layers.2.self_attn','model.layers.2.eh_proj','model.layers.2.mlp.shared_"
                                          "experts',"
                                          "'model.layers.2.mlp.experts.0.gate_proj','model.layers.2.mlp.experts.0.up_proj','"
                                          "model.layers.2.mlp.experts.0.down_proj',"
                                          "'model.layers.2.mlp.experts.3.down_proj'"));
    assert_int_equal(m->disagreement_count, 0);
    close_both(m, &b);
    builder_free(&b);
}

static void test_globs(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {
        {"*", "", true},
        {"*", "a.b", true},
        {"a*", "a", true},
        {"a*c", "abcbc", true},
        {"a*c", "abcb", false},
        {"*a*b*", "xaxbx", true},
        {"a?c", "abc", true},
        {"a?c", "ac", false},
        {"", "a", false},
        {"a", "ab", false},
        {"ab", "a", false},
        {"l.[02]*", "l.2.x", true},
        {"l.[02]*", "l.1.x", false},
        {"[!a-c]", "d", true},
        {"[!a-c]", "b", false},
        {"[a-c]x", "bx", true},
        {"[]]", "]", true},
        {"[a-]", "-", true},
        {"[ab", "a", false},
        {"*[0-9].w", "e.12.w", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (glob_match(cases[i].pattern, cases[i].name) != cases[i].matches)
            fail_msg("%s against %s", cases[i].pattern, cases[i].name);
}

static size_t counted_bytes;

static void *count_alloc(device *d, size_t bytes)
{
    (void)d;
    counted_bytes += bytes;
    return mem_try_alloc_lazy(bytes);
}

static void count_free(device *d, void *memory)
{
    (void)d;
    mem_free_lazy(memory);
}

/* The estimate is at least what a step of the default size allocates, and not more than twice that. */
static void test_working_memory(void **state)
{
    (void)state;
    static const device_ops ops = {.alloc = count_alloc, .free = count_free, .alloc_host = count_alloc, .free_host = count_free};
    error err;
    model *m = model_open(SOURCE_DIR "/models/nano", &err);
    assert_non_null(m);
    device d = {.ops = &ops, .model = m};
    counted_bytes = 0;
    forward *f = forward_create(&d, 256, 1, &err);
    assert_non_null(f);
    forward_destroy(f);
    uint64_t told = memory_needed(m, KV_BF16, 0).working_bytes;
    assert_true(told >= counted_bytes && told <= 2 * counted_bytes);
    model_close(m);
}

static void test_inspect(void **state)
{
    (void)state;
    builder b = {.attention = FORMAT_BF16, .experts = FORMAT_MXFP4, .draft = FORMAT_BF16, .plain = DTYPE_BF16};
    model *m = with_config(&b, QUARK("'lm_head','model.layers.0.*','model.layers.1.self_attn.*','model.decoder.*'"));
    /* bf16: 3 layers x (32 + 16) x 2, 2 indexers x 32 x 2; fp8: 3 x (32 + 4 + 32), 2 x 36 */
    assert_int_equal(kv_token_bytes(&m->config, KV_BF16), 3 * 48 * 2 + 2 * 32 * 2);
    assert_int_equal(kv_token_bytes(&m->config, KV_F32), 2 * kv_token_bytes(&m->config, KV_BF16));
    assert_int_equal(kv_token_bytes(&m->config, KV_FP8), 3 * 68 + 2 * 36);
    memory_need n = memory_needed(m, KV_BF16, 65);
    assert_int_equal(n.kv_bytes, 128 * kv_token_bytes(&m->config, KV_BF16));
    assert_int_equal(n.total_bytes, n.weight_bytes + n.kv_bytes + n.working_bytes);
    json_t *j = inspect_json(m);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(j, "parameters"), "total")), (json_int_t)m->parameters);
    assert_int_equal(json_array_size(json_object_get(j, "disagreements")), 2);
    assert_int_equal(json_array_size(json_object_get(j, "formats")), 2);
    json_decref(j);
    char *words = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&words, &length);
    inspect_print(m, out);
    fclose(out);
    assert_non_null(strstr(words, "it excludes model.decoder.*"));
    assert_non_null(strstr(words, "mxfp4"));
    free(words);
    close_both(m, &b);
    builder_free(&b);
}

/* GLM-5.2's published figure for one token: 79 layers of 1152 bytes and 22 indexers of 256. */
static void test_glm52_cache(void **state)
{
    (void)state;
    model_config c = {.layers = 78, .kv_lora_rank = 512, .rope_dim = 64, .index_dim = 128, .has_mtp = true};
    for (int i = 0; i < 78; i++)
        c.full_index[i] = i < 3 || (i >= 6 && (i - 6) % 4 == 0);
    assert_int_equal(kv_token_bytes(&c, KV_BF16), 79 * 1152 + 22 * 256);
    assert_int_equal(kv_token_bytes(&c, KV_FP8), 79 * 656 + 22 * 132);
}

static void add_tiny(builder *b, int layer, const char *tail, int64_t rows, int64_t cols)
{
    char name[112];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, tail);
    item_add(b, name, DTYPE_BF16, cols ? 2 : 1, rows, cols, 0);
}

static void add_tiny_layer(builder *b, int layer, bool full, bool sparse)
{
    char name[112];
    static const char *const vectors[] = {"input_layernorm", "post_attention_layernorm", "self_attn.q_a_layernorm",
                                          "self_attn.kv_a_layernorm"};
    for (size_t i = 0; i < 4; i++)
        add_tiny(b, layer, vectors[i], 2, 0);
    add_tiny(b, layer, "self_attn.q_a_proj", 2, 2);
    add_tiny(b, layer, "self_attn.q_b_proj", 3, 2);
    add_tiny(b, layer, "self_attn.kv_a_proj_with_mqa", 4, 2);
    add_tiny(b, layer, "self_attn.kv_b_proj", 2, 2);
    add_tiny(b, layer, "self_attn.o_proj", 2, 1);
    if (full) {
        add_tiny(b, layer, "self_attn.indexer.wq_b", 2, 2);
        add_tiny(b, layer, "self_attn.indexer.wk", 2, 2);
        add_tiny(b, layer, "self_attn.indexer.weights_proj", 1, 2);
        add_tiny(b, layer, "self_attn.indexer.k_norm", 2, 0);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.indexer.k_norm.bias", layer);
        item_add(b, name, DTYPE_BF16, 1, 2, 0, 0);
    }
    for (int e = sparse ? -2 : -1; e < (sparse ? 256 : 0); e++) {
        static const char *const tails[] = {"gate_proj", "up_proj", "down_proj"};
        for (int p = 0; p < 3; p++) {
            char tail[64];
            if (e >= 0)
                snprintf(tail, sizeof tail, "mlp.experts.%d.%s", e, tails[p]);
            else
                snprintf(tail, sizeof tail, "mlp.%s%s", sparse ? "shared_experts." : "", tails[p]);
            if (e != -1 || !sparse)
                add_tiny(b, layer, tail, p == 2 ? 2 : 1, p == 2 ? 1 : 2);
        }
    }
    if (!sparse)
        return;
    add_tiny(b, layer, "mlp.gate", 256, 2);
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate.e_score_correction_bias", layer);
    item_add(b, name, DTYPE_F32, 1, 256, 0, 0);
}

/* GLM-5.2's tensors with tiny shapes: the published number of tensors, opened without a loop over all of them for each. */
static void test_glm52_tensor_count(void **state)
{
    (void)state;
    builder b = {.plain = DTYPE_BF16,
                 .changes = "{'num_hidden_layers':78,'index_topk_pattern':null,'index_topk_freq':4,'index_skip_topk_offset':3,"
                            "'first_k_dense_replace':3,'hidden_size':2,'q_lora_rank':2,'kv_lora_rank':2,'num_attention_heads':1,'"
                            "qk_nope_head_dim':1,"
                            "'qk_rope_head_dim':2,'v_head_dim':1,'intermediate_size':1,'moe_intermediate_size':1,'n_routed_"
                            "experts':256,"
                            "'index_n_heads':1,'index_head_dim':2}"};
    item_add(&b, "model.embed_tokens.weight", DTYPE_BF16, 2, VOCAB, 2, 0);
    item_add(&b, "lm_head.weight", DTYPE_BF16, 2, VOCAB, 2, 0);
    item_add(&b, "model.norm.weight", DTYPE_BF16, 1, 2, 0, 0);
    for (int i = 0; i <= 78; i++)
        add_tiny_layer(&b, i, i == 78 || i < 3 || (i >= 6 && (i - 6) % 4 == 0), i >= 3);
    add_tiny(&b, 78, "enorm", 2, 0);
    add_tiny(&b, 78, "hnorm", 2, 0);
    add_tiny(&b, 78, "shared_head.norm", 2, 0);
    add_tiny(&b, 78, "eh_proj", 2, 4);
    assert_int_equal(b.count, 59585);
    builder_write(&b, 1);
    model *m = opened(&b);
    assert_true(m->config.has_mtp);
    model_close(m);
    builder_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout), cmocka_unit_test(test_mixed_and_sharded), cmocka_unit_test(test_missing),
        cmocka_unit_test(test_many_missing_and_surplus), cmocka_unit_test(test_shapes_and_types),
        cmocka_unit_test(test_fp8_matrix_scale_refused), cmocka_unit_test(test_not_finite), cmocka_unit_test(test_harmless_extras),
        cmocka_unit_test(test_tied_embeddings), cmocka_unit_test(test_draft_layer), cmocka_unit_test(test_no_shared_experts),
        cmocka_unit_test(test_quark_lists), cmocka_unit_test(test_other_lists), cmocka_unit_test(test_globs),
        cmocka_unit_test(test_inspect), cmocka_unit_test(test_working_memory), cmocka_unit_test(test_glm52_cache),
        cmocka_unit_test(test_glm52_tensor_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
