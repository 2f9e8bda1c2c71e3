/* The quantizer: every original layout to every format, against format->encode; plans, lists, resuming, damage. */
#include "checkpoint_builder.h"

#include <dirent.h>
#include <math.h>

#include "model/claims.h"
#include "quantize/manifest.h"
#include "quantize/quantize.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/drawbridge-quantize-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[600];
    DIR *d = opendir(folder);
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
    return rmdir(folder);
}

static const quantize_options plain_options = {.recipe = {.to = FORMAT_MXFP4}, .shard_bytes = 300000, .threads = 2, .force = true};

/* Converts into the folder; fails the test with the sentence when that does not work. */
static void convert(const char *original, const quantize_options *o)
{
    error err = {0};
    bool already = true;
    quantize_job *j = quantize_open(original, o, &err);
    if (!j || !quantize_run(j, folder, &already, &err))
        fail_msg("%s", err.text);
    assert_false(already);
    quantize_close(j);
}

static void refused(const char *original, const quantize_options *o, const char *words, const char *more)
{
    error err = {0};
    bool already;
    quantize_job *j = quantize_open(original, o, &err);
    assert_false(j && quantize_run(j, folder, &already, &err));
    if (!strstr(err.text, words) || !strstr(err.text, more))
        fail_msg("expected \"%s\" and \"%s\", found: %s", words, more, err.text);
    quantize_close(j);
}

static model *opened(const char *directory)
{
    error err = {0};
    model *m = model_open(directory, &err);
    if (!m)
        fail_msg("%s", err.text);
    for (int i = 0; i < m->disagreement_count; i++)
        fail_msg("%s", m->disagreements[i].text);
    return m;
}

/* What a matrix must be: copied, or format->encode of the decoded original, as values. NVFP4 takes its scale from the file. */
static void check_matrix(const matrix *original, const matrix *result, const char *what)
{
    int64_t rows = original->rows, cols = original->cols;
    assert_int_equal(rows, result->rows);
    assert_int_equal(cols, result->cols);
    float *values = mem_alloc((size_t)(rows * cols), sizeof *values);
    uint64_t data = 0, scales = 0;
    assert_true(format_data_bytes(result->format, rows, cols, &data) && format_scale_bytes(result->format, rows, cols, &scales));
    uint8_t *codes = mem_alloc(data, 1), *blocks = mem_alloc(scales + 1, 1);
    for (int64_t r = 0; r < rows; r++)
        matrix_row(original, r, values + r * cols);
    result->format->encode(values, rows, cols, result->scale, codes, blocks);
    bool copied = original->format == result->format;
    if (memcmp(result->data, copied ? original->data : codes, data) != 0)
        fail_msg("%s: other codes", what);
    if (scales && memcmp(result->scales, copied ? original->scales : blocks, scales) != 0)
        fail_msg("%s: other scales", what);
    free(values);
    free(codes);
    free(blocks);
}

static void check_mlp(const mlp_weights *a, const mlp_weights *b, const char *what)
{
    check_matrix(&a->gate, &b->gate, what);
    check_matrix(&a->up, &b->up, what);
    check_matrix(&a->down, &b->down, what);
    if (b->gate.format->id == FORMAT_NVFP4 && a->gate.format->id != FORMAT_NVFP4) {
        float largest = 0, row[HIDDEN];
        for (int64_t r = 0; r < a->gate.rows + a->up.rows; r++) {
            const matrix *m = r < a->gate.rows ? &a->gate : &a->up;
            matrix_row(m, r % a->gate.rows, row);
            for (int i = 0; i < HIDDEN; i++)
                largest = fmaxf(largest, fabsf(row[i]));
        }
        assert_true(b->gate.scale == largest / (6 * 448) && b->up.scale == b->gate.scale); /* one scale for both */
    }
}

static void check_layer(const layer_weights *a, const layer_weights *b)
{
    check_matrix(&a->q_a, &b->q_a, "q_a");
    check_matrix(&a->q_b, &b->q_b, "q_b");
    check_matrix(&a->kv_a, &b->kv_a, "kv_a");
    check_matrix(&a->kv_b, &b->kv_b, "kv_b");
    check_matrix(&a->o, &b->o, "o");
    if (a->full_index) {
        check_matrix(&a->indexer.q_b, &b->indexer.q_b, "wq_b");
        check_matrix(&a->indexer.k, &b->indexer.k, "wk");
        check_matrix(&a->indexer.head_weights, &b->indexer.head_weights, "weights_proj");
    }
    if (!a->sparse) {
        check_mlp(&a->mlp, &b->mlp, "mlp");
        return;
    }
    check_matrix(&a->router, &b->router, "router");
    assert_memory_equal(a->router_bias, b->router_bias, EXPERTS * sizeof(float));
    check_mlp(&a->shared, &b->shared, "shared");
    for (int e = 0; e < EXPERTS; e++)
        check_mlp(&a->experts[e], &b->experts[e], "expert");
}

static void check_result(const model *a, const model *b)
{
    check_matrix(&a->embed, &b->embed, "embed");
    check_matrix(&a->lm_head, &b->lm_head, "lm_head");
    assert_memory_equal(a->final_norm, b->final_norm, HIDDEN * sizeof(float));
    for (int i = 0; i < LAYERS; i++)
        check_layer(&a->layers[i], &b->layers[i]);
    assert_int_equal(a->config.has_mtp, b->config.has_mtp);
    if (!a->config.has_mtp)
        return;
    check_layer(&a->mtp.layer, &b->mtp.layer);
    check_matrix(&a->mtp.project, &b->mtp.project, "eh_proj");
}

static void check_conversion(format_id from, bool stacked, format_id to, recipe_id named)
{
    error err = {0};
    builder b = builder_new(from);
    quantize_options o = plain_options;
    manifest_summary sum;
    b.stacked = stacked;
    builder_fill(&b);
    builder_write(&b, stacked ? 1 : 3);
    o.recipe.to = to;
    o.shard_bytes = from == FORMAT_BF16 ? 300000 : 1 << 30; /* every file is synced, which takes time */
    o.recipe.recipe = named;
    convert(b.directory, &o);
    model *original = model_open(b.directory, &err), *result = opened(folder);
    check_result(original, result);
    assert_true(manifest_verify(folder, &sum, &err));
    assert_int_equal(sum.tensors, checkpoint_count(result->checkpoint));
    assert_int_equal(checkpoint_shards(result->checkpoint) > 1, from == FORMAT_BF16);
    model_close(original);
    model_close(result);
    builder_free(&b);
}

static void test_every_conversion(void **state)
{
    (void)state;
    static const format_id targets[] = {FORMAT_MXFP4, FORMAT_FP8_BLOCK, FORMAT_NVFP4, FORMAT_BF16};
    for (format_id from = 0; from < FORMAT_COUNT; from++)
        for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
            check_conversion(from, (from + i) % 2, targets[i], RECIPE_DEFAULT);
    for (int stacked = 0; stacked < 2; stacked++) {
        check_conversion(FORMAT_BF16, stacked, FORMAT_MXFP4, RECIPE_ALL);
        check_conversion(FORMAT_BF16, stacked, FORMAT_MXFP4, RECIPE_AMD_ATTN_FP8);
        check_conversion(FORMAT_BF16, stacked, FORMAT_NVFP4, RECIPE_ALL);
        check_conversion(FORMAT_BF16, stacked, FORMAT_FP8_BLOCK, RECIPE_AMD);
    }
}

/* What the folder says of itself, as one text; the manifest has the checksums of the rest. */
static void folder_bytes(text *out)
{
    error err = {0};
    text path = {0}, bytes = {0};
    static const char *const names[] = {"config.json", "model.safetensors.index.json", MANIFEST_NAME};
    text_clear(out);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        path_join(&path, folder, names[i]);
        assert_true(file_read(path.data, 1 << 26, &bytes, &err));
        text_add_format(out, "%s %zu\n", names[i], bytes.length);
        text_add(out, bytes.data, bytes.length);
    }
    text_free(&path);
    text_free(&bytes);
}

/* Neither threads nor the way large scales are made show in the bytes. */
static void test_same_bytes(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    builder_fill(&b);
    builder_write(&b, 1);
    static const format_id targets[] = {FORMAT_MXFP4, FORMAT_FP8_BLOCK, FORMAT_NVFP4};
    for (size_t i = 0; i < 3; i++) {
        text first = {0}, again = {0};
        quantize_options o = plain_options;
        o.recipe = (recipe_options){.to = targets[i], .recipe = RECIPE_ALL};
        o.shard_bytes = 1 << 30;
        o.threads = 1;
        convert(b.directory, &o);
        folder_bytes(&first);
        o.threads = 3;
        convert(b.directory, &o);
        folder_bytes(&again);
        assert_int_equal(first.length, again.length);
        assert_memory_equal(first.data, again.data, first.length);
        o.scales_bytes = 1;
        convert(b.directory, &o);
        folder_bytes(&again);
        assert_int_equal(first.length, again.length);
        assert_memory_equal(first.data, again.data, first.length);
        text_free(&first);
        text_free(&again);
    }
    builder_free(&b);
}

static void check_nan(const char *name, size_t offset, const char *words)
{
    static const uint8_t nan[2] = {0xC0, 0x7F};
    builder b = builder_new(FORMAT_BF16);
    builder_fill(&b);
    memcpy(item_find(&b, name)->bytes + offset, nan, 2);
    builder_write(&b, 1);
    char module[112];
    snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    refused(b.directory, &plain_options, module, words);
    builder_free(&b);
}

/* One byte of a tensor that is copied, not decoded. */
static void check_nan_code(format_id to, const char *name, uint8_t code, const char *words)
{
    builder b = builder_new(to);
    quantize_options o = plain_options;
    builder_fill(&b);
    o.recipe.to = to;
    item_find(&b, name)->bytes[5] = code;
    builder_write(&b, 1);
    refused(b.directory, &o, "model.layers.1.mlp.experts.2.up_proj", words);
    builder_free(&b);
}

static void test_not_finite(void **state)
{
    check_nan_code(FORMAT_FP8_BLOCK, "model.layers.1.mlp.experts.2.up_proj.weight", 0xFF, "value 5 is not a number");
    check_nan_code(FORMAT_MXFP4, "model.layers.1.mlp.experts.2.up_proj.weight_scale", 0xFF, "scale 5 is not a number");
    check_nan_code(FORMAT_NVFP4, "model.layers.1.mlp.experts.2.up_proj.weight_scale", 0x7F, "scale 5 is not a number");
    (void)state;
    check_nan("model.layers.1.mlp.experts.2.up_proj.weight", 2 * (7 * HIDDEN + 33), "row 7, column 33 is not a number");
    check_nan("model.layers.0.self_attn.o_proj.weight", 2 * 130, "value 130 is not a number");
    check_nan("lm_head.weight", 0, "0 of ");
}

static void test_recipes(void **state)
{
    (void)state;
    error err = {0};
    recipe r;
    text why = {0};
    const char *globs[] = {"*.o_proj"};
    assert_true(recipe_resolve(&(recipe_options){.to = FORMAT_MXFP4}, &r, &err));
    assert_int_equal(recipe_format(&r, "m", CLASS_EXPERTS, false, 8, 64, &why), FORMAT_MXFP4);
    assert_int_equal(recipe_format(&r, "m", CLASS_EXPERTS, false, 8, 48, &why), FORMAT_BF16);
    assert_non_null(strstr(why.data, "48 values are not a multiple of 32"));
    assert_int_equal(recipe_format(&r, "m", CLASS_EXPERTS, true, 8, 64, &why), FORMAT_BF16);
    assert_non_null(strstr(why.data, "draft layer"));
    assert_int_equal(recipe_format(&r, "m", CLASS_ATTENTION, false, 8, 64, &why), FORMAT_BF16);
    assert_true(recipe_resolve(
        &(recipe_options){.to = FORMAT_MXFP4, .recipe = RECIPE_AMD_ATTN_FP8, .exclude = globs, .exclude_count = 1}, &r, &err));
    assert_int_equal(recipe_format(&r, "a.q_a_proj", CLASS_ATTENTION, true, 8, 48, &why), FORMAT_FP8_CHANNEL);
    assert_int_equal(recipe_format(&r, "a.o_proj", CLASS_ATTENTION, false, 8, 64, &why), FORMAT_BF16);
    assert_string_equal(why.data, "--exclude *.o_proj");
    assert_true(recipe_resolve(
        &(recipe_options){.to = FORMAT_FP8_BLOCK, .recipe = RECIPE_AMD, .include = globs, .include_count = 1}, &r, &err));
    assert_int_equal(recipe_format(&r, "a.o_proj", CLASS_ATTENTION, true, 8, 64, &why), FORMAT_FP8_BLOCK);
    for (matrix_class c = CLASS_ROUTER; c < CLASS_COUNT; c++)
        assert_int_equal(recipe_format(&r, "a.o_proj", c, false, 8, 64, &why), FORMAT_BF16);
    assert_false(recipe_resolve(&(recipe_options){.to = FORMAT_NVFP4, .recipe = RECIPE_AMD_ATTN_FP8}, &r, &err));
    assert_false(recipe_resolve(&(recipe_options){.to = FORMAT_BF16, .mtp = MTP_KEEP}, &r, &err));
    text_free(&why);
}

static bool list_has(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), name) == 0)
            return true;
    return false;
}

static json_t *result_config(void)
{
    error err = {0};
    text path = {0};
    json_t *config = config_read(folder, &path, &err);
    assert_non_null(config);
    text_free(&path);
    return config;
}

/* The draft layer is named in both ways; a list that names it only in the other engines' way disagrees. */
static void test_lists(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    builder_fill(&b);
    builder_write(&b, 1);
    convert(b.directory, &plain_options);
    json_t *config = result_config(), *q = json_object_get(config, "quantization_config");
    assert_string_equal(json_string_value(json_object_get(q, "quant_method")), "quark");
    const json_t *exclude = json_object_get(q, "exclude");
    static const char *const expected[] = {"lm_head", "model.layers.1.mlp.gate", "model.layers.2.eh_proj", "model.eh_proj",
                                           "model.layers.2.mlp.experts.3.up_proj", "model.decoder.mlp.experts.3.up_proj",
                                           "model.decoder.mlp.experts", "model.decoder.self_attn.indexer.wk"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (!list_has(exclude, expected[i]))
            fail_msg("%s is not in the list", expected[i]);
    assert_false(list_has(exclude, "model.layers.1.mlp.experts.0.up_proj"));
    json_decref(config);
    quantize_options o = plain_options;
    o.recipe.to = FORMAT_BF16;
    convert(b.directory, &o);
    config = result_config();
    assert_null(json_object_get(config, "quantization_config"));
    json_decref(config);
    builder_free(&b);
}

static void test_directories(void **state)
{
    (void)state;
    builder b = builder_new(FORMAT_BF16);
    error err = {0};
    bool already;
    text path = {0};
    builder_fill(&b);
    builder_write(&b, 1);
    quantize_options o = plain_options;
    o.force = false;
    const char *globs[] = {"*.nothing"};
    assert_int_equal(rmdir(folder), 0);
    convert(b.directory, &o);
    quantize_job *j = quantize_open(b.directory, &o, &err);
    assert_true(quantize_run(j, folder, &already, &err) && already);
    assert_false(quantize_run(j, b.directory, &already, &err));
    assert_non_null(strstr(err.text, "is the source itself"));
    quantize_close(j);
    o.rule = SCALE_CEIL;
    refused(b.directory, &o, "complete result of another conversion", "--force");
    o.recipe.include = globs;
    o.recipe.include_count = 1;
    refused(b.directory, &o, "--include *.nothing matches no matrix", "");
    globs[0] = "lm_head";
    refused(b.directory, &o, "--include lm_head matches only matrices that are never quantized", "");
    path_join(&path, folder, MANIFEST_NAME);
    assert_int_equal(unlink(path.data), 0);
    refused(b.directory, &plain_options, "is not empty and holds no conversion of ours", "");
    text_free(&path);
    builder_free(&b);
}

static void damage(const char *name, long offset)
{
    text path = {0};
    path_join(&path, folder, name);
    FILE *f = fopen(path.data, "r+b");
    assert_non_null(f);
    fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 1, f);
    fclose(f);
    text_free(&path);
}

static void test_verify(void **state)
{
    (void)state;
    error err = {0};
    manifest_summary sum;
    builder b = builder_new(FORMAT_BF16);
    quantize_options o = plain_options;
    builder_fill(&b);
    builder_write(&b, 1);
    assert_false(manifest_verify(b.directory, &sum, &err));
    assert_non_null(strstr(err.text, "has no drawbridge-manifest.json"));
    o.shard_bytes = 1 << 30;
    convert(b.directory, &o);
    assert_true(manifest_verify(folder, &sum, &err));
    damage("model-00001-of-00001.safetensors", -1);
    assert_false(manifest_verify(folder, &sum, &err));
    assert_non_null(strstr(err.text, "damaged: tensor model.layers.2.eh_proj.weight;"));
    damage("model-00001-of-00001.safetensors", -1);
    damage("model-00001-of-00001.safetensors", 20);
    assert_false(manifest_verify(folder, &sum, &err));
    assert_non_null(strstr(err.text, "header"));
    damage("model-00001-of-00001.safetensors", 20);
    assert_true(manifest_verify(folder, &sum, &err));
    damage("config.json", 3);
    assert_false(manifest_verify(folder, &sum, &err));
    assert_non_null(strstr(err.text, "config.json differs"));
    builder_free(&b);
}

static void test_importance(void **state)
{
    (void)state;
    error err = {0};
    builder b = builder_new(FORMAT_BF16);
    builder_fill(&b);
    builder_write(&b, 1);
    char path[160];
    snprintf(path, sizeof path, "%s.importance", folder);
    safetensors_writer *w = safetensors_writer_open(path, &err);
    float values[HIDDEN];
    for (int i = 0; i < HIDDEN; i++)
        values[i] = i % 7 ? 1e-3f : 9.0f;
    assert_true(safetensors_writer_declare(w, "model.layers.1.mlp.experts.up_proj", DTYPE_F32, 1, (int64_t[]){HIDDEN}, &err));
    assert_true(safetensors_writer_data(w, values, sizeof values, &err) && safetensors_writer_commit(w, &err));
    checkpoint *c = checkpoint_open(path, &err);
    const float *found;
    assert_true(stream_importance(c, "model.layers.1.mlp.experts.3.up_proj", HIDDEN, &found, &err) && found);
    assert_memory_equal(found, values, sizeof values);
    assert_true(stream_importance(c, "model.layers.1.mlp.experts.3.down_proj", WIDTH, &found, &err) && !found);
    assert_false(stream_importance(c, "model.layers.1.mlp.experts.3.up_proj", WIDTH, &found, &err));
    checkpoint_close(c);
    quantize_options o = plain_options;
    o.importance = path;
    convert(b.directory, &o);
    model_close(opened(folder));
    unlink(path);
    builder_free(&b);
}

/* AMD's recipe from the BF16 master gives the built-in model, tensor by tensor. */
static void test_nano(void **state)
{
    (void)state;
    error err = {0};
    if (!file_is_directory(NANO_BF16_DIR))
        skip();
    quantize_options o = plain_options;
    o.shard_bytes = 10000000;
    convert(NANO_BF16_DIR, &o);
    checkpoint *mine = checkpoint_open(folder, &err), *nano = checkpoint_open(SOURCE_DIR "/models/nano", &err);
    assert_true(mine && nano);
    assert_int_equal(checkpoint_count(mine), checkpoint_count(nano));
    for (size_t i = 0; i < checkpoint_count(nano); i++) {
        const tensor *a = checkpoint_tensor(nano, i), *b = checkpoint_find(mine, a->name);
        if (!b || a->type != b->type || a->rank != b->rank || a->bytes != b->bytes ||
            memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) != 0 || memcmp(a->data, b->data, a->bytes) != 0)
            fail_msg("tensor %s differs", a->name);
    }
    checkpoint_close(mine);
    checkpoint_close(nano);
    model_close(opened(folder));
}

int main(void)
{
    log_set_level(LOG_QUIET);
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_every_conversion), TEST(test_same_bytes), TEST(test_not_finite), TEST(test_recipes), TEST(test_lists),
        TEST(test_directories),      TEST(test_verify),     TEST(test_importance), TEST(test_nano),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
