/* What bench counts, fills and reports. No figure of speed is looked at. */
#include "golden.h"

#include "bench/local.h"
#include "bench/peaks.h"

#define NANO SOURCE_DIR "/models/nano"

enum { LONGEST = 1200, BATCH = 3 };

/* ---- ceilings ---- */

static void test_peaks_run(void **state)
{
    (void)state;
    const peak_loop *(*const at[])(int) = {peak_fused_at, peak_bytes_at};
    for (int which = 0; which < 2; which++) {
        int count = 0;
        for (; at[which](count); count++) {
            assert_true(at[which](count)->operations >= 2.0 * PEAK_STEPS);
            assert_true(at[which](count)->run(1) != at[which](count)->run(3)); /* the result depends on what goes in */
        }
        assert_in_range(count, 1, 3);
        for (int i = 0; i < count; i++)
            assert_int_equal(at[which](i)->plain, i == count - 1);
    }
}

static void test_ceilings(void **state)
{
    (void)state;
    error err = {0};
    ceilings_options o = {.threads = 2, .seconds = 0, .read_bytes = 1};
    ceilings c;
    assert_true(ceilings_measure(&o, &c, &err));
    assert_int_equal(c.threads, 2);
    assert_int_equal(c.read_bytes, 4 << 20); /* whole pieces */
    assert_true(c.read_gb_s > 0 && c.read_one_gb_s > 0 && c.fused_gflop_s > 0 && c.bytes_gop_s > 0);
    assert_non_null(c.fused_name);
    assert_non_null(c.bytes_name);
    o.processor_time = true;
    assert_true(ceilings_measure(&o, &c, &err));
    assert_true(c.read_gb_s > 0 && c.fused_gflop_s > 0);
}

static void test_better_ceilings(void **state)
{
    (void)state;
    ceilings a = {.threads = 2, .read_gb_s = 20, .read_one_gb_s = 12, .fused_gflop_s = 100, .bytes_gop_s = 300, .fused_name = "a",
                  .bytes_name = "a"};
    ceilings b = {.threads = 2, .read_gb_s = 18, .read_one_gb_s = 15, .fused_gflop_s = 110, .bytes_gop_s = 250, .fused_name = "b",
                  .bytes_name = "b"};
    text words = {0};
    ceilings_improve(&a, &b);
    assert_true(a.read_gb_s == 20 && a.read_one_gb_s == 15 && a.fused_gflop_s == 110 && a.bytes_gop_s == 300);
    assert_string_equal(a.fused_name, "b");
    assert_string_equal(a.bytes_name, "a");
    ceilings_describe(&a, &words);
    assert_string_equal(words.data, "2 threads; reading 20.0 GB/s (one thread 15.0), fused f32 110 GFLOP/s (b), bytes 300 Gop/s (a)");
    text_free(&words);
}

/* ---- what a step costs ---- */

typedef struct bench_rig {
    rig rig;
    cost_counter counter;
    int32_t tokens[RIG_ROWS], positions[RIG_ROWS], sequences[RIG_ROWS];
    int32_t table[BATCH][(LONGEST + 63) / 64];
    const int32_t *tables[BATCH];
} bench_rig;

static bench_rig *open_rig(bool exact)
{
    bench_rig *b = mem_alloc(1, sizeof *b);
    b->rig = rig_open_as(NANO, KV_BF16, 1, LONGEST, exact, NULL);
    kv_pages_destroy(b->rig.pages);
    session_destroy(b->rig.session);
    error err = {0};
    b->rig.session = NULL;
    b->rig.pages = kv_pages_create(b->rig.device, BATCH * (LONGEST + 64), &err);
    for (int i = 0; i < BATCH; i++) {
        b->tables[i] = b->table[i];
        for (size_t j = 0; j < sizeof b->table[0] / sizeof b->table[0][0]; j++)
            assert_true(kv_pages_take(b->rig.pages, &b->table[i][j]));
    }
    cost_counter_init(&b->counter, b->rig.forward, exact, LONGEST);
    return b;
}

static void close_rig(bench_rig *b)
{
    cost_counter_free(&b->counter);
    kv_pages_destroy(b->rig.pages);
    forward_destroy(b->rig.forward);
    b->rig.device->ops->destroy(b->rig.device);
    model_close(b->rig.model);
    free(b);
}

static step rows_of(bench_rig *b, int rows, int sequence, int first)
{
    for (int i = 0; i < rows; i++) {
        b->tokens[i] = 100 + i;
        b->positions[i] = first + i;
        b->sequences[i] = sequence;
    }
    return (step){.rows = rows, .tokens = b->tokens, .positions = b->positions, .sequences = b->sequences, .page_tables = b->tables,
                  .pages = b->rig.pages->memory, .keep_keys = true};
}

static double mlp_bytes(const mlp_weights *w)
{
    return (double)(matrix_bytes(&w->gate) + matrix_bytes(&w->up) + matrix_bytes(&w->down));
}

/* All matrices the checkpoint has, less those a step does not read whole: the embedding, the draft layer, routed experts. */
static double fixed_bytes(const model *m)
{
    const layer_weights *d = &m->mtp.layer;
    const matrix *draft[] = {&m->mtp.project, &d->q_a, &d->q_b, &d->kv_a, &d->kv_b, &d->o, &d->indexer.q_b, &d->indexer.k,
                             &d->indexer.head_weights, &d->router};
    double bytes = -(double)matrix_bytes(&m->embed) - mlp_bytes(&d->shared);
    for (int f = 0; f < FORMAT_COUNT; f++)
        bytes += (double)m->format_bytes[f];
    for (size_t i = 0; i < sizeof draft / sizeof draft[0]; i++)
        bytes -= (double)matrix_bytes(draft[i]);
    for (int layer = 0; layer <= m->config.layers; layer++) {
        const layer_weights *w = layer == m->config.layers ? d : &m->layers[layer];
        for (int e = 0; w->sparse && e < m->config.experts; e++)
            bytes -= mlp_bytes(&w->experts[e]);
    }
    return bytes;
}

static int sparse_layers(const model *m)
{
    int count = 0;
    for (int i = 0; i < m->config.layers; i++)
        count += m->layers[i].sparse;
    return count;
}

static int full_layers(const model *m)
{
    int count = 0;
    for (int i = 0; i < m->config.layers; i++)
        count += m->layers[i].full_index;
    return count;
}

static double pair_ops(const model_config *c)
{
    return 2.0 * c->heads * (2 * c->kv_lora_rank + c->rope_dim);
}

static void test_cost_of_one_row(void **state)
{
    (void)state;
    bench_rig *b = open_rig(false);
    const model *m = b->rig.model;
    const model_config *c = &m->config;
    const kv_layout *k = &b->rig.device->layout;
    for (int position = 0; position < 3; position++) {
        step s = rows_of(b, 1, 0, position);
        b->counter.sum = (cost){0};
        cost_count_step(&b->counter, b->rig.forward, &s, 1);
        const cost *sum = &b->counter.sum;
        assert_true(sum->weight_bytes == fixed_bytes(m));
        assert_true(sum->experts == sparse_layers(m) * c->experts_per_token);
        assert_true(sum->expert_bytes == sum->experts * mlp_bytes(&m->layers[c->layers - 1].experts[0]));
        assert_true(sum->key_bytes == (double)(position + 1) * c->layers * (double)k->latent_bytes);
        double attention = (position + 1) * c->layers * pair_ops(c);
        assert_true(sum->byte_ops + sum->fused_ops - attention == 2.0 * (double)m->active_parameters);
        assert_true(sum->byte_ops > 0 && sum->steps == 1 && sum->logit_rows == 1);
        assert_null(b->rig.forward->tap);
        double head = (double)matrix_bytes(&m->lm_head), all = sum->weight_bytes;
        b->counter.sum = (cost){0};
        cost_count_step(&b->counter, b->rig.forward, &s, 0);
        assert_true(b->counter.sum.weight_bytes == all - head);
    }
    close_rig(b);
}

static void test_cost_of_exact_products(void **state)
{
    (void)state;
    bench_rig *b = open_rig(true);
    step s = rows_of(b, 2, 0, 0);
    cost_count_step(&b->counter, b->rig.forward, &s, 0);
    assert_true(b->counter.sum.byte_ops == 0 && b->counter.sum.fused_ops > 0);
    close_rig(b);
}

typedef struct expert_sets {
    bool chosen[CONFIG_MAX_LAYERS][64];
} expert_sets;

static void note_experts(void *context, const tap_value *v)
{
    expert_sets *e = context;
    for (int i = 0; strcmp(v->name, "router_experts") == 0 && i < v->rows * v->columns; i++)
        e->chosen[v->layer][((const int32_t *)v->data)[i]] = true;
}

/* The experts that the rows of a step choose, found apart. */
static int distinct_experts(bench_rig *b, const step *s)
{
    static expert_sets e;
    int count = 0;
    memset(&e, 0, sizeof e);
    b->rig.forward->tap = note_experts;
    b->rig.forward->tap_context = &e;
    forward_run(b->rig.forward, s);
    b->rig.forward->tap = NULL;
    for (int layer = 0; layer < b->rig.model->config.layers; layer++)
        for (int i = 0; i < 64; i++)
            count += e.chosen[layer][i];
    return count;
}

/* Rows of a prompt share weights and keys; rows of several sequences share weights. */
static void test_cost_of_rows_together(void **state)
{
    (void)state;
    bench_rig *b = open_rig(false);
    const model *m = b->rig.model;
    const model_config *c = &m->config;
    double latent = (double)b->rig.device->layout.latent_bytes * c->layers;
    step s = rows_of(b, 4, 0, 0);
    cost_count_step(&b->counter, b->rig.forward, &s, 1);
    cost sum = b->counter.sum;
    assert_true(sum.weight_bytes == fixed_bytes(m));
    assert_true(sum.key_bytes == 4 * latent);
    double head = 2.0 * (double)m->lm_head.rows * (double)m->lm_head.cols, attention = (1 + 2 + 3 + 4) * c->layers * pair_ops(c);
    assert_true(sum.byte_ops + sum.fused_ops == 4 * (2.0 * (double)m->active_parameters - head) + head + attention);
    assert_int_equal((int)sum.experts, distinct_experts(b, &s));
    assert_true(sum.experts > sparse_layers(m) * c->experts_per_token);
    assert_true(sum.expert_bytes == sum.experts * mlp_bytes(&m->layers[c->layers - 1].experts[0]));
    s.rows = 3;
    for (int i = 0; i < 3; i++) {
        b->sequences[i] = i;
        b->positions[i] = 0;
    }
    b->counter.sum = (cost){0};
    cost_count_step(&b->counter, b->rig.forward, &s, 3);
    assert_true(b->counter.sum.weight_bytes == fixed_bytes(m));
    assert_true(b->counter.sum.key_bytes == 3 * latent);
    close_rig(b);
}

/* Behind index_topk positions the indexer reads and scores all of them, attention only those selected. */
static void test_cost_of_a_long_context(void **state)
{
    (void)state;
    bench_rig *b = open_rig(false);
    const model *m = b->rig.model;
    const model_config *c = &m->config;
    const kv_layout *k = &b->rig.device->layout;
    int depth = c->index_topk + 10;
    assert_true(depth + 3 <= LONGEST);
    for (int at = 0; at < depth; at += RIG_ROWS) {
        step s = rows_of(b, depth - at < RIG_ROWS ? depth - at : RIG_ROWS, 0, at);
        forward_run(b->rig.forward, &s);
    }
    step s = rows_of(b, 1, 0, c->index_topk - 1); /* it sees index_topk positions: all are selected, nothing is scored */
    cost_count_step(&b->counter, b->rig.forward, &s, 0);
    assert_true(b->counter.sum.key_bytes == (double)c->index_topk * c->layers * (double)k->latent_bytes);
    s = rows_of(b, 1, 0, depth);
    b->counter.sum = (cost){0};
    cost_count_step(&b->counter, b->rig.forward, &s, 0);
    double latents = (double)c->index_topk * c->layers * (double)k->latent_bytes;
    assert_true(b->counter.sum.key_bytes == latents + (double)(depth + 1) * full_layers(m) * (double)k->index_bytes);
    double one = b->counter.sum.fused_ops + b->counter.sum.byte_ops;
    double matrices = 2.0 * (double)m->active_parameters - 2.0 * (double)m->lm_head.rows * (double)m->lm_head.cols;
    double index = 2.0 * c->index_heads * c->index_dim * full_layers(m), attention = (double)c->index_topk * c->layers * pair_ops(c);
    assert_true(one == matrices + attention + (depth + 1) * index);
    s = rows_of(b, 2, 0, depth);
    b->counter.sum = (cost){0};
    cost_count_step(&b->counter, b->rig.forward, &s, 0);
    double keys = b->counter.sum.key_bytes - (double)(depth + 2) * full_layers(m) * (double)k->index_bytes;
    assert_true(keys >= latents && keys <= 2 * latents); /* positions that both rows selected count once */
    assert_true(b->counter.sum.fused_ops + b->counter.sum.byte_ops == 2 * (matrices + attention) + (2 * depth + 3) * index);
    close_rig(b);
}

/* ---- depth ---- */

static float entry_value(const fill *f, const uint8_t *page, int slot, int index)
{
    float v;
    memcpy(&v, page + f->device->layout.latent_offset[1] + (size_t)slot * f->device->layout.latent_bytes + (size_t)index * 4, 4);
    return v;
}

/* The entries made keep mean and variance of those given, and none is like another. */
static void test_filled_entries(void **state)
{
    (void)state;
    error err = {0};
    rig r = rig_open(NANO, KV_F32, 1, 64);
    const kv_layout *k = &r.device->layout;
    fill *f = fill_create(r.device, &err);
    int width = k->latent_dim + k->rope_dim, layers = r.model->config.layers;
    float *latents = mem_alloc((size_t)(FILL_REAL * width), sizeof *latents), *keys = mem_alloc((size_t)(FILL_REAL * k->index_dim), 4);
    for (int i = 0; i < FILL_REAL * width; i++)
        latents[i] = (float)(i % width) + sinf((float)i * 1.7f);
    for (int layer = 0; layer < layers; layer++) {
        fill_tap(f, &(tap_value){"latent", layer, false, FILL_REAL, width, latents});
        fill_tap(f, &(tap_value){"index_k", layer, false, FILL_REAL, k->index_dim, keys});
    }
    fill_gathered(f, FILL_REAL);
    uint8_t *page = mem_alloc(k->page_bytes, 1);
    double sum = 0, squares = 0, same = 0;
    enum { PAGES = 40 };
    for (int p = 0; p < PAGES; p++) {
        fill_page(f, r.device, page, 64 * p, 64 * p + (p == 0), 64 * p + 64, 0);
        for (int slot = 1; slot < 64; slot++) {
            double d = (double)entry_value(f, page, slot, 5) - 5;
            sum += d;
            squares += d * d;
            same += slot > 1 && entry_value(f, page, slot, 5) == entry_value(f, page, slot - 1, 5);
        }
        assert_true(p > 0 || entry_value(f, page, 0, 5) == 0); /* not asked for */
    }
    assert_true(fabs(sum / (63 * PAGES)) < 0.06 && fabs(squares / (63 * PAGES) - 0.5) < 0.06); /* of a sine */
    assert_true(same == 0);
    uint8_t zeros[64] = {0};
    assert_memory_equal(page + k->latent_offset[layers], zeros, sizeof zeros); /* the draft layer's part */
    free(latents);
    free(keys);
    free(page);
    fill_destroy(f);
    rig_close(&r);
}

/* ---- whole tests ---- */

static local_bench *open_bench(rig *r, local_options *o)
{
    error err = {0};
    *r = rig_open_as(NANO, KV_BF16, 1, LONGEST, false, NULL);
    *o = (local_options){.chunk = 64, .max_batch = 2, .max_context = LONGEST, .repetitions = 2};
    local_bench *b = local_create(r->forward, o, &err);
    if (!b)
        fail_msg("%s", err.text);
    return b;
}

static cost run_one(local_bench *b, local_test t)
{
    error err = {0};
    local_result r;
    if (!local_run(b, &t, &r, &err))
        fail_msg("%s", err.text);
    assert_int_equal(r.repetitions, 2);
    assert_true(r.seconds[0] > 0 && r.seconds[1] > 0 && r.processor_seconds[0] > 0);
    assert_true(r.test.depth == t.depth && r.test.batch == t.batch);
    return r.cost;
}

static void test_local_runs(void **state)
{
    (void)state;
    rig r;
    local_options o;
    local_bench *b = open_bench(&r, &o);
    cost prompt = run_one(b, (local_test){.prompt = 130, .batch = 1});
    assert_true(prompt.steps == 3 && prompt.logit_rows == 1);
    cost one = run_one(b, (local_test){.generate = 3, .batch = 1}), two = run_one(b, (local_test){.generate = 3, .batch = 2});
    assert_true(one.steps == 3 && one.logit_rows == 3 && two.steps == 3 && two.logit_rows == 6);
    assert_true(one.weight_bytes == two.weight_bytes && two.key_bytes == 2 * one.key_bytes);
    local_destroy(b);
    rig_close(&r);
}

/* A depth is the same whatever ran before it, shallower or deeper, and no less than it says. */
static void test_local_depths(void **state)
{
    (void)state;
    rig r;
    local_options o;
    local_bench *b = open_bench(&r, &o);
    local_test deep = {.generate = 2, .batch = 2, .depth = LONGEST - 100};
    run_one(b, (local_test){.generate = 1, .batch = 1, .depth = 100}); /* less than is gathered for mixtures */
    cost first = run_one(b, deep);
    run_one(b, (local_test){.prompt = 300, .batch = 1, .depth = 70});
    run_one(b, (local_test){.generate = 2, .batch = 2});
    cost again = run_one(b, deep);
    const model_config *c = &r.model->config;
    double index = (double)r.device->layout.index_bytes * full_layers(r.model), least = 2.0 * 2 * (deep.depth + 1) * index;
    assert_true(first.key_bytes >= least + 4.0 * c->index_topk * c->layers * (double)r.device->layout.latent_bytes);
    assert_memory_equal(&first, &again, sizeof first);
    local_destroy(b);
    o.real_depth = true;
    error err = {0};
    b = local_create(r.forward, &o, &err);
    cost real = run_one(b, deep);
    assert_true(real.key_bytes == first.key_bytes && real.weight_bytes == first.weight_bytes);
    local_destroy(b);
    rig_close(&r);
}

static void test_local_stops(void **state)
{
    (void)state;
    rig r;
    local_options o;
    error err = {0};
    local_destroy(open_bench(&r, &o));
    volatile sig_atomic_t stop = 1;
    o.stop = &stop;
    local_bench *b = local_create(r.forward, &o, &err);
    local_result result;
    for (int depth = 0; depth < 1000; depth += 500) {
        err = (error){0};
        assert_false(local_run(b, &(local_test){.generate = 1, .batch = 1, .depth = depth}, &result, &err));
        assert_int_equal(err.code, ERROR_INTERRUPTED);
    }
    local_destroy(b);
    rig_close(&r);
}

/* ---- figures ---- */

static void expect_name(local_test t, const char *expected)
{
    text name = {0};
    local_test_name(&t, &name);
    assert_string_equal(name.data, expected);
    text_free(&name);
}

static void test_names(void **state)
{
    (void)state;
    expect_name((local_test){.prompt = 512, .batch = 1}, "pp512");
    expect_name((local_test){.prompt = 512, .batch = 1, .depth = 8192}, "pp512 @ d8192");
    expect_name((local_test){.generate = 128, .batch = 1}, "tg128");
    expect_name((local_test){.generate = 128, .batch = 8, .depth = 16}, "tg128 b8 @ d16");
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static void test_figures(void **state)
{
    (void)state;
    ceilings c = {.read_gb_s = 20, .fused_gflop_s = 100, .bytes_gop_s = 400, .fused_name = "a", .bytes_name = "b"};
    local_result r = {.test = {.generate = 10, .batch = 4}, .repetitions = 2, .seconds = {1.0, 3.0},
                      .cost = {.weight_bytes = 5e9, .expert_bytes = 4e9, .key_bytes = 1e9, .byte_ops = 80e9, .fused_ops = 60e9,
                               .steps = 10}};
    local_figures f = local_figures_of(&r, &c);
    double mean = (40 + 40.0 / 3) / 2;
    assert_true(near(f.tokens_per_second, mean) && near(f.best_tokens_per_second, 40));
    assert_true(near(f.deviation, (40 - mean) * sqrt(2)));
    assert_true(near(f.step_ms, 200));
    assert_true(near(f.read_share, 0.25) && near(f.arithmetic_share, 0.4)); /* 0.5 s of 2; 0.2 s and 0.6 s of 2 */
    json_t *o = local_result_json(&r, &c);
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "test")), "tg10 b4");
    assert_true(near(json_number_value(json_object_get(o, "read_share")), 0.25));
    assert_int_equal(json_array_size(json_object_get(o, "seconds")), 2);
    assert_true(json_number_value(json_object_get(json_object_get(o, "must"), "key_bytes")) == 1e9);
    json_decref(o);
    r.repetitions = 1;
    assert_true(local_figures_of(&r, &c).deviation == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peaks_run),           cmocka_unit_test(test_ceilings),
        cmocka_unit_test(test_better_ceilings),     cmocka_unit_test(test_cost_of_one_row),
        cmocka_unit_test(test_cost_of_exact_products), cmocka_unit_test(test_cost_of_rows_together),
        cmocka_unit_test(test_cost_of_a_long_context), cmocka_unit_test(test_filled_entries),
        cmocka_unit_test(test_local_runs),          cmocka_unit_test(test_local_depths),
        cmocka_unit_test(test_local_stops),         cmocka_unit_test(test_names),
        cmocka_unit_test(test_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
