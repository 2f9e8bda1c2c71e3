/* The dispatch table, tuned tables, the tuner, and other tuners' tables. */
#include "golden.h"

#include <limits.h>
#include <unistd.h>

#include "base/file.h"
#include "device/cpu/cpu.h"
#include "device/tuned.h"
#include "tune/foreign.h"
#include "tune/tune.h"

#define NANO SOURCE_DIR "/models/nano"
#define HEADER "operation,format,n,k,rows,variant,us,baseline_variant,baseline_us,version\n"

/* ---- names and buckets ---- */

static void test_buckets(void **state)
{
    (void)state;
    static const int rows[] = {0, 1, 2, 4, 5, 16, 17, 64, 65, 256, 257, INT_MAX}, buckets[] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(dispatch_bucket(rows[i]), buckets[i]);
    for (int i = 0; i < DISPATCH_BUCKETS; i++)
        assert_int_equal(dispatch_bucket_named(view_of(dispatch_bucket_name(i))), i);
    assert_int_equal(dispatch_bucket_named(view_of("2")), -1);
}

static void expect_name(const char *model_name, int threads, const char *expected)
{
    char name[64];
    dispatch_device_name(model_name, "avx2", threads, name);
    assert_string_equal(name, expected);
}

static void test_device_names(void **state)
{
    (void)state;
    expect_name("AMD EPYC", 2, "amd-epyc-avx2-2t");
    expect_name(" AMD EPYC 9B14 96-Core Processor", 96, "amd-epyc-9b14-avx2-96t");
    expect_name("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", 1024, "intel-xeon-platinum-8481c-avx2-1024t");
    expect_name("", 1, "cpu-avx2-1t");
    expect_name("../../etc\n\"x\"", 1, "etc-x-avx2-1t");
    expect_name("a b c d e f g h i j k l m n o p q s t u v w x y z aa bb cc dd ee", 1, "a-b-d-e-f-g-h-i-j-k-l-m-n-o-p-q-s-t-u-v-avx2-1t");
}

/* ---- the choice, on a device of words ---- */

static const char *const levels[] = {"low", "high", "absent"};

static bool supports_wide(const dispatch_variant *v, const dispatch_key *key)
{
    (void)v;
    return key->n >= 1000;
}

static const dispatch_variant fake_variants[] = {
    {dispatch_linear, "high stream", 1, 1, NULL, "hs"},
    {dispatch_linear, "high panel", 1, 8, NULL, "hp"},
    {dispatch_linear, "high wide", 1, 0, supports_wide, "hw"},
    {dispatch_linear, "far", 2, 1, NULL, "far"},
    {dispatch_linear, "low", 0, 1, NULL, "low"},
    {dispatch_experts, "low", 0, 1, NULL, "low"},
};

static dispatch_table fake_table(void)
{
    return (dispatch_table){.variants = fake_variants, .variant_count = 6, .levels = levels, .level_count = 3, .level = 1,
                            .device_name = "fake-high-2t"};
}

static void add(dispatch_table *t, const char *operation, const char *stored, int n, int k, int bucket)
{
    dispatch_key key = {operation, stored, n, k, bucket};
    dispatch_add(t, &key);
}

static void fill_table(dispatch_table *t)
{
    add(t, dispatch_linear, "mxfp4", 64, 32, 4);
    add(t, dispatch_linear, "mxfp4", 64, 32, 0);
    add(t, dispatch_linear, "bf16", 64, 32, 0);
    add(t, dispatch_linear, "bf16", 2000, 32, 0);
    add(t, dispatch_experts, "bf16", 64, 32, 0);
    add(t, dispatch_linear, "bf16", 64, 32, 0);
}

static const dispatch_row *row_of(dispatch_table *t, const char *operation, const char *stored, int n, int bucket)
{
    char own_operation[16]; /* found by content, not by address */
    snprintf(own_operation, sizeof own_operation, "%s", operation);
    dispatch_key key = {own_operation, stored, n, 32, bucket};
    const dispatch_row *row = dispatch_find(t, &key);
    assert_non_null(row);
    return row;
}

static void expect_row(dispatch_table *t, const char *operation, const char *stored, int n, int bucket, const char *name,
                       dispatch_source source)
{
    const dispatch_row *row = row_of(t, operation, stored, n, bucket);
    assert_string_equal(row->name, name);
    assert_int_equal(row->source, source);
}

static void test_rule(void **state)
{
    (void)state;
    error err = {0};
    dispatch_table t = fake_table();
    fill_table(&t);
    assert_int_equal(t.count, 5);
    assert_true(dispatch_resolve(&t, NULL, NULL, &err));
    expect_row(&t, "linear", "mxfp4", 64, 0, "high stream", DISPATCH_HEURISTIC);
    expect_row(&t, "linear", "mxfp4", 64, 4, "high panel", DISPATCH_HEURISTIC);
    expect_row(&t, "linear", "bf16", 2000, 0, "high stream", DISPATCH_HEURISTIC);
    expect_row(&t, "experts", "bf16", 64, 0, "low", DISPATCH_ONLY);
    assert_int_equal(row_of(&t, "linear", "bf16", 64, 0)->uses, 2);
    assert_int_equal(row_of(&t, "linear", "bf16", 64, 0)->choices, 3);
    assert_int_equal(row_of(&t, "linear", "bf16", 2000, 0)->choices, 4);
    for (int i = 1; i < t.count; i++) { /* sorted */
        const dispatch_key *a = &t.rows[i - 1].key, *b = &t.rows[i].key;
        int order = strcmp(a->operation, b->operation);
        order = order ? order : strcmp(a->format, b->format);
        assert_true(order < 0 || (order == 0 && (a->n < b->n || (a->n == b->n && a->bucket < b->bucket))));
    }
    assert_string_equal(dispatch_kernel(&t, dispatch_linear, "mxfp4", 64, 32, 100), "hp");
    assert_string_equal(dispatch_kernel(&t, dispatch_linear, "mxfp4", 64, 32, 1), "hs");
    dispatch_key absent = {dispatch_linear, "mxfp4", 64, 33, 0};
    assert_null(dispatch_find(&t, &absent));
    dispatch_counts c = dispatch_count(&t);
    assert_true(c.shapes == 5 && c.tuned == 0 && c.only == 1 && c.heuristic == 4);
    dispatch_free(&t);
}

static void test_forced(void **state)
{
    (void)state;
    error err = {0};
    text summary = {0};
    dispatch_table t = fake_table();
    fill_table(&t);
    assert_true(dispatch_resolve(&t, NULL, "low", &err));
    expect_row(&t, "linear", "mxfp4", 64, 4, "low", DISPATCH_ONLY);
    assert_true(dispatch_resolve(&t, NULL, "high", &err));
    expect_row(&t, "linear", "mxfp4", 64, 4, "high panel", DISPATCH_HEURISTIC);
    expect_row(&t, "experts", "bf16", 64, 0, "low", DISPATCH_ONLY); /* none is higher */
    assert_true(dispatch_resolve(&t, NULL, "high wide", &err));
    expect_row(&t, "linear", "bf16", 2000, 0, "high wide", DISPATCH_ONLY);
    expect_row(&t, "linear", "bf16", 64, 0, "high stream", DISPATCH_HEURISTIC); /* does not support it */
    dispatch_summary(&t, &summary);
    assert_non_null(strstr(summary.data, "FORCED to high wide"));
    assert_false(dispatch_resolve(&t, NULL, "far", &err)); /* this machine cannot run it */
    assert_int_equal(err.code, ERROR_USAGE);
    assert_non_null(strstr(err.text, "\"far\" on this machine; there are "
                                     "\"low\", \"high\", \"high stream\", \"high panel\", \"high wide\""));
    assert_string_equal(dispatch_kernels_name(&t, 0), "low");
    assert_string_equal(dispatch_kernels_name(&t, 4), "high wide");
    assert_null(dispatch_kernels_name(&t, 5));
    text_free(&summary);
    dispatch_free(&t);
}

static void test_no_kernel(void **state)
{
    (void)state;
    error err = {0};
    dispatch_table t = fake_table();
    add(&t, dispatch_attend, "bf16", 8, 160, 1);
    assert_false(dispatch_resolve(&t, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "attend bf16 8 x 160, 4 rows"));
    dispatch_free(&t);
}

/* ---- tuned tables ---- */

static void expect_refused(const char *rows, const char *sentence)
{
    text bytes = {0};
    error err = {0};
    tuned_table t = {0};
    text_add_format(&bytes, "%s%s", HEADER, rows);
    assert_false(tuned_parse((view){bytes.data, bytes.length}, "t.csv", &t, &err));
    if (!strstr(err.text, sentence))
        fail_msg("expected \"%s\", found \"%s\"", sentence, err.text);
    assert_int_equal(err.code, ERROR_INPUT);
    tuned_free(&t);
    text_free(&bytes);
}

static void test_tuned_is_strict(void **state)
{
    (void)state;
    static const char good[] = "linear,mxfp4,64,32,256,high panel,1.5,high stream,2.25,0.1.0\n";
    expect_refused("linear,mxfp4,64,32,256,high panel,1.5,high stream,2.25\n", "t.csv line 2: expected 10 fields");
    expect_refused("linear,mxfp4,064,32,256,a,1,b,2,0.1.0\n", "line 2: n must be a whole number from 1 to 2147483647, found \"064\"");
    expect_refused("linear,mxfp4,64,2147483648,256,a,1,b,2,0.1.0\n", "line 2: k must be");
    expect_refused("linear,mxfp4,64,-1,256,a,1,b,2,0.1.0\n", "line 2: k must be");
    expect_refused("linear,mxfp4,64,32,8,a,1,b,2,0.1.0\n", "line 2: rows must be 1, 4, 16, 64, 256 or more, found \"8\"");
    expect_refused("linear,mxfp4,64,32,1,a,0,b,2,0.1.0\n", "line 2: us must be a time in microseconds above 0, found \"0\"");
    expect_refused("linear,mxfp4,64,32,1,a,nan,b,2,0.1.0\n", "line 2: us must be");
    expect_refused("linear,mxfp4,64,32,1,a,1e999,b,2,0.1.0\n", "line 2: us must be");
    expect_refused("linear,mxfp4,64,32,1,a,1,b,0x10,0.1.0\n", "line 2: baseline_us must be");
    expect_refused("linear,mxfp4,64,32,1,,1,b,2,0.1.0\n", "line 2: variant must be a name");
    expect_refused("linear,mxfp4,64,32,1,a\tb,1,b,2,0.1.0\n", "line 2: variant must be a name");
    expect_refused("linear,\"mx,fp4\",64,32,1,a,1,b,2,0.1.0\n", "line 2: format must be a name");
    expect_refused("linear,mxfp4,64,32,1,a,1,b,2,0.1.0\nexperts,bf16,1,1,1,a,1,b,2,0.1.0\nlinear,mxfp4,64,32,1,c,1,b,2,0.1.0\n",
                   "t.csv line 4: linear mxfp4 64 x 32 with rows 1 is on line 2 already");
    error err = {0};
    tuned_table t = {0};
    assert_false(tuned_parse(view_of("operation,format,n,rows,k,variant\n"), "t.csv", &t, &err));
    assert_non_null(strstr(err.text, "t.csv line 1: column 4 must be \"k\", found \"rows\""));
    tuned_free(&t);
    text bytes = {0};
    text_add_format(&bytes, "%s%s", HEADER, good);
    assert_true(tuned_parse((view){bytes.data, bytes.length}, "t.csv", &t, &err));
    text again = {0};
    tuned_format(&t, &again);
    assert_string_equal(again.data, bytes.data);
    text_free(&again);
    text_free(&bytes);
    tuned_free(&t);
}

static tuned_row tuned_row_of(const char *operation, int n, int bucket, const char *variant)
{
    tuned_row r = {.n = n, .k = 32, .bucket = bucket, .us = 3, .baseline_us = 4};
    snprintf(r.operation, sizeof r.operation, "%s", operation);
    snprintf(r.format, sizeof r.format, "bf16");
    snprintf(r.variant, sizeof r.variant, "%s", variant);
    snprintf(r.baseline, sizeof r.baseline, "low");
    snprintf(r.version, sizeof r.version, "%s", DRAWBRIDGE_VERSION);
    return r;
}

static void test_tuned_put(void **state)
{
    (void)state;
    tuned_table t = {0};
    for (int i = 0; i < 300; i++) {
        tuned_row r = tuned_row_of(i % 2 ? "linear" : "experts", 1 + (i * 7) % 150, i % DISPATCH_BUCKETS, i < 150 ? "a" : "b");
        tuned_put(&t, &r);
        dispatch_key key = {r.operation, "bf16", r.n, 32, r.bucket};
        assert_string_equal(tuned_find(&t, &key)->variant, r.variant);
    }
    text bytes = {0};
    tuned_table again = {0};
    error err = {0};
    tuned_format(&t, &bytes);
    assert_true(tuned_parse((view){bytes.data, bytes.length}, "t", &again, &err)); /* no key twice */
    assert_int_equal(again.count, t.count);
    for (int i = 0; i < t.count; i++) /* in order */
        assert_int_equal(again.rows[i].line, i + 2);
    text_free(&bytes);
    tuned_free(&t);
    tuned_free(&again);
}

typedef struct folder {
    char path[64];
    text table;
} folder;

static folder folder_create(const char *device_name)
{
    folder f = {.path = "/tmp/drawbridge-tuned-XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    tuned_path(f.path, device_name, &f.table);
    return f;
}

static void folder_free(folder *f)
{
    unlink(f->table.data);
    rmdir(f->path);
    text_free(&f->table);
}

static void test_tuned_choice(void **state)
{
    (void)state;
    error err = {0};
    folder f = folder_create("fake-high-2t");
    tuned_table rows = {0};
    tuned_row good = tuned_row_of("linear", 64, 0, "high panel"), gone = tuned_row_of("linear", 2000, 0, "high gone");
    tuned_row only = tuned_row_of("experts", 64, 0, "low"), elsewhere = tuned_row_of("linear", 77, 0, "who knows");
    tuned_put(&rows, &good);
    tuned_put(&rows, &gone);
    tuned_put(&rows, &only);
    tuned_put(&rows, &elsewhere);
    assert_true(tuned_write(&rows, f.table.data, &err));
    dispatch_table t = fake_table();
    fill_table(&t);
    assert_true(dispatch_resolve(&t, f.path, NULL, &err));
    assert_string_equal(t.tuned_path, f.table.data);
    expect_row(&t, "linear", "bf16", 64, 0, "high panel", DISPATCH_TUNED);
    assert_true(row_of(&t, "linear", "bf16", 64, 0)->us == 3);
    expect_row(&t, "linear", "bf16", 2000, 0, "high stream", DISPATCH_HEURISTIC);
    expect_row(&t, "experts", "bf16", 64, 0, "low", DISPATCH_ONLY);
    assert_int_equal(t.stale, 1); /* a row that this model does not need is nobody's concern */
    assert_non_null(strstr(t.stale_words, "(linear bf16 2000 x 32, rows 1) names the kernel \"high gone\", which is not there"));
    snprintf(good.version, sizeof good.version, "0.0.9");
    tuned_put(&rows, &good);
    assert_true(tuned_write(&rows, f.table.data, &err));
    assert_true(dispatch_resolve(&t, f.path, NULL, &err));
    expect_row(&t, "linear", "bf16", 64, 0, "high stream", DISPATCH_HEURISTIC);
    assert_int_equal(t.stale, 2);
    assert_non_null(strstr(t.stale_words, "was measured by version 0.0.9, this is " DRAWBRIDGE_VERSION));
    assert_true(dispatch_resolve(&t, f.path, "low", &err)); /* forced: the table is not asked */
    assert_int_equal(t.stale, 0);
    assert_string_equal(t.tuned_path, "");
    file_writer *w = file_writer_open(f.table.data, &err);
    assert_true(file_writer_add(w, HEADER "x\n", strlen(HEADER "x\n"), &err) && file_writer_commit(w, &err));
    assert_false(dispatch_resolve(&t, f.path, NULL, &err));
    assert_non_null(strstr(err.text, "line 2"));
    tuned_free(&rows);
    dispatch_free(&t);
    folder_free(&f);
}

/* ---- a model ---- */

typedef struct coverage {
    dispatch_table *t;
    int works, experts;
} coverage;

static void cover(void *context, const dispatch_work *work)
{
    coverage *c = context;
    for (int b = 0; b < DISPATCH_BUCKETS; b++) {
        dispatch_key key = work->key;
        key.bucket = b;
        dispatch_row *row = dispatch_find(c->t, &key);
        assert_true((b <= dispatch_bucket(RIG_ROWS)) == (row != NULL));
        if (row)
            row->uses--;
    }
    c->works++;
    c->experts += work->key.operation == dispatch_experts;
}

static void test_model(void **state)
{
    (void)state;
    rig r = rig_open(NANO, KV_FP8, 1, 128);
    const model_config *m = &r.model->config;
    coverage c = {.t = r.device->dispatch};
    dispatch_visit(r.model, KV_FP8, cover, &c);
    for (int i = 0; i < c.t->count; i++) {
        assert_int_equal(c.t->rows[i].uses, 0);
        assert_true(c.t->rows[i].choices >= 1 && c.t->rows[i].name);
    }
    int sparse = 0;
    for (int i = 0; i < m->layers; i++)
        sparse += r.model->layers[i].sparse;
    sparse += m->has_mtp;
    int dense = m->layers + m->has_mtp - sparse;
    assert_int_equal(c.experts, 3 * (sparse * (m->experts + (m->shared_experts > 0)) + dense));
    dispatch_key attend = {dispatch_attend, "fp8", m->heads, m->kv_lora_rank + m->rope_dim, 0};
    assert_non_null(dispatch_find(c.t, &attend));
    rig_close(&r);
}

static bool is_matrix_work(const dispatch_key *key)
{
    return key->operation == dispatch_linear || key->operation == dispatch_experts;
}

/* Each mode has its own matrix kernels, for what its weights want, and its own table. */
static void test_modes(void **state)
{
    (void)state;
    char names[2][80];
    for (int exact = 0; exact < 2; exact++) {
        rig r = rig_open_as(NANO, KV_F32, 1, 64, exact, NULL);
        const dispatch_table *t = r.device->dispatch;
        int choices[64], q8 = 0;
        for (int i = 0; i < t->count; i++)
            for (int j = 0; is_matrix_work(&t->rows[i].key) && j < dispatch_choices(t, &t->rows[i].key, choices, 64); j++) {
                const cpu_matmul *kernel = t->variants[choices[j]].kernel;
                assert_int_equal(kernel->input, cpu_input_of(format_by_name(t->rows[i].key.format), exact));
                q8 += kernel->input == CPU_INPUT_Q8;
            }
        assert_true((q8 == 0) == exact);
        snprintf(names[exact], sizeof names[exact], "%s", t->device_name);
        rig_close(&r);
    }
    strcat(names[0], "-exact");
    assert_string_equal(names[0], names[1]);
}

/* ---- the tuner ---- */

/* A clock that the kernels move: what is measured does not depend on the machine. */
static uint64_t now_us, quick_us = 1;

static uint64_t fake_clock(void)
{
    return now_us;
}

/* Time is taken per 8 columns of a projection or 8 keys of the indexer. */
static uint64_t blocks(int count)
{
    enum { BLOCK = 8 };
    return (uint64_t)(count + BLOCK - 1) / BLOCK;
}

static void slow_run(const cpu_matmul_work *k)
{
    now_us += 100 * blocks(k->columns);
    cpu_matmul_generic[0].run(k);
}

static void quick_run(const cpu_matmul_work *k)
{
    now_us += quick_us * blocks(k->columns);
    cpu_matmul_generic[0].run(k);
}

static void slow_index(const float *q, int lanes, const float *weights, const float *keys, int count, int64_t n, float *out)
{
    now_us += 100 * blocks(count);
    cpu_attention_kernels_generic.index_scores(q, lanes, weights, keys, count, n, out);
}

static void quick_index(const float *q, int lanes, const float *weights, const float *keys, int count, int64_t n, float *out)
{
    now_us += quick_us * blocks(count);
    cpu_attention_kernels_generic.index_scores(q, lanes, weights, keys, count, n, out);
}

/* For rigs, which are exact. */
static const cpu_matmul slow_matmul = {"slow", "generic", CPU_INPUT_EXACT, 1, slow_run};
static const cpu_matmul quick_matmul = {"quick", "generic", CPU_INPUT_EXACT, 0, quick_run};
static cpu_attention_kernels slow_attention, quick_attention; /* the generic ones but for index_scores */

/* By rule the slow ones run; whoever measures must find out. Of the indexer only the scores are theirs. */
static const dispatch_variant slow_variants[] = {
    {dispatch_linear, "slow", 0, 1, NULL, &slow_matmul},    {dispatch_linear, "quick", 0, 0, NULL, &quick_matmul},
    {dispatch_experts, "slow", 0, 1, NULL, &slow_matmul},   {dispatch_experts, "quick", 0, 0, NULL, &quick_matmul},
    {dispatch_index, "slow", 0, 1, NULL, &slow_attention},  {dispatch_index, "quick", 0, 0, NULL, &quick_attention},
    {dispatch_attend, "generic", 0, 1, NULL, &cpu_attention_kernels_generic},
    {dispatch_absorb, "generic", 0, 1, NULL, &cpu_attention_kernels_generic},
    {dispatch_value, "generic", 0, 1, NULL, &cpu_matmul_generic[0]},
};

static rig slow_rig(kv_dtype kv)
{
    error err = {0};
    quick_us = 1;
    slow_attention = quick_attention = cpu_attention_kernels_generic;
    slow_attention.index_scores = slow_index;
    quick_attention.index_scores = quick_index;
    rig r = rig_open(NANO, kv, 1, 1024);
    dispatch_table *t = r.device->dispatch;
    t->variants = slow_variants;
    t->variant_count = sizeof slow_variants / sizeof *slow_variants;
    t->level = 0;
    assert_true(dispatch_resolve(t, NULL, NULL, &err));
    return r;
}

static int count_variant(const tuned_table *t, const char *name)
{
    int count = 0;
    for (int i = 0; i < t->count; i++)
        count += strcmp(t->rows[i].variant, name) == 0;
    return count;
}

static bool only_index(void *context, const dispatch_key *key)
{
    (void)context;
    return key->operation == dispatch_index;
}

static void test_tune(void **state)
{
    (void)state;
    error err = {0};
    static const int rows[] = {1, 3};
    rig r = slow_rig(KV_BF16);
    folder f = folder_create("x");
    tuned_table t = {0};
    tune_result result = {0};
    tune_options o = {.rows = rows, .row_count = 2, .min_gain = 3, .seconds = 1e-4, .path = f.table.data, .clock = fake_clock};
    assert_true(tune_run(r.forward, &o, &result, &err));
    assert_true(tuned_read(f.table.data, &t, &err));
    assert_int_equal(count_variant(&t, "quick"), t.count);
    int only = 0;
    for (int i = 0; i < result.count; i++) {
        const tune_shape *s = &result.shapes[i];
        assert_true(s->key.bucket < 2 && s->rows == rows[s->key.bucket]);
        only += s->state == TUNE_ONLY;
        assert_true(s->state == TUNE_ONLY || (s->state == TUNE_MEASURED && s->row.us < s->row.baseline_us));
        if (s->key.operation == dispatch_linear || s->key.operation == dispatch_experts) /* nothing but the key's work is timed */
            assert_true(s->row.baseline_us == 100 * s->row.us);
    }
    assert_int_equal(only, 6); /* absorb, attend and value, in two buckets */
    assert_int_equal(t.count, result.count - only);
    tune_result_free(&result);
    assert_true(tune_run(r.forward, &o, &result, &err)); /* all is there */
    for (int i = 0; i < result.count; i++)
        assert_true(result.shapes[i].state != TUNE_MEASURED && result.shapes[i].state != TUNE_WAITING);
    tune_result_free(&result);
    tuned_free(&t);
    folder_free(&f);
    rig_close(&r);
}

/* A gain below the least that counts leaves the rule's choice, which is then tuned all the same. */
static void expect_index_choice(rig *r, double min_gain, const char *variant)
{
    error err = {0};
    static const int rows[] = {2};
    folder f = folder_create("x");
    tuned_table t = {0};
    tune_result result = {0};
    tune_options o = {.rows = rows, .row_count = 1, .min_gain = min_gain, .seconds = 1e-4, .path = f.table.data, .wanted = only_index,
                      .clock = fake_clock};
    assert_true(dispatch_resolve(r->device->dispatch, NULL, NULL, &err));
    assert_true(tune_run(r->forward, &o, &result, &err));
    assert_true(tuned_read(f.table.data, &t, &err));
    assert_int_equal(t.count, 1);
    assert_string_equal(t.rows[0].variant, variant);
    assert_string_equal(t.rows[0].baseline, "slow");
    if (strcmp(variant, "slow") == 0)
        assert_true(t.rows[0].us == t.rows[0].baseline_us);
    tune_result_free(&result);
    tuned_free(&t);
    folder_free(&f);
}

static void test_least_gain(void **state)
{
    (void)state;
    rig r = slow_rig(KV_FP8);
    expect_index_choice(&r, 1e9, "slow");
    expect_index_choice(&r, 3, "quick");
    quick_us = 50; /* twice as fast but for the projections, which are slow in either case */
    expect_index_choice(&r, 80, "slow");
    expect_index_choice(&r, 60, "quick");
    quick_us = 99;
    expect_index_choice(&r, 3, "slow");
    quick_us = 101;
    expect_index_choice(&r, 0, "slow");
    rig_close(&r);
}

/* Rows of another version are measured again; what stops stays undone. */
static void test_tune_resumes(void **state)
{
    (void)state;
    error err = {0};
    static const int rows[] = {1};
    volatile sig_atomic_t stop = 1;
    rig r = slow_rig(KV_F32);
    folder f = folder_create("x");
    tuned_table t = {0};
    tune_result result = {0};
    tune_options o = {.rows = rows, .row_count = 1, .min_gain = 3, .seconds = 1e-4, .path = f.table.data, .wanted = only_index,
                      .stop = &stop, .clock = fake_clock};
    assert_false(tune_run(r.forward, &o, &result, &err));
    assert_int_equal(err.code, ERROR_INTERRUPTED);
    assert_non_null(strstr(err.text, "interrupted after 0 of 1 shapes"));
    assert_int_equal(result.shapes[0].state, TUNE_WAITING);
    assert_false(file_exists(f.table.data));
    tune_result_free(&result);
    stop = 0;
    assert_true(tune_run(r.forward, &o, &result, &err));
    assert_true(tuned_read(f.table.data, &t, &err));
    tuned_row old = t.rows[0];
    snprintf(old.version, sizeof old.version, "0.0.1");
    snprintf(old.variant, sizeof old.variant, "slow");
    tuned_put(&t, &old);
    assert_true(tuned_write(&t, f.table.data, &err));
    tune_result_free(&result);
    assert_true(tune_run(r.forward, &o, &result, &err));
    assert_int_equal(result.shapes[0].state, TUNE_MEASURED);
    tuned_free(&t);
    assert_true(tuned_read(f.table.data, &t, &err));
    assert_string_equal(t.rows[0].version, DRAWBRIDGE_VERSION);
    tune_result_free(&result);
    tuned_free(&t);
    folder_free(&f);
    rig_close(&r);
}

/* ---- other tuners ---- */

static const char AITER[] =
    "gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,doweight_stage1,block_m,ksplit,"
    "us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,xbf16,flat,tflops,bw,_tag\n"
    "gfx950,256,1,384,128,16,4,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0,32,"
    "0,23.1,k1,0.9%,16.8,k2,1.4%,40.0,0,0,0,16.98,242417.31,\n"
    "gfx950,256,64,384,128,17,5,ActivationType.Silu,torch.bfloat16,torch.float4_e2m1fn_x2,torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0,32,"
    "0,23.1,k1,0.9%,16.8,k2,1.4%,40.0,0,0,0,16.98,242417.31,\n";

static const model_config FAMILY = {.hidden_size = 384, .expert_intermediate = 128, .experts = 16, .experts_per_token = 4,
                                    .shared_experts = 1};

static int rows_with(foreign_shape s, const char *reason)
{
    text words = {0};
    int rows = foreign_rows(&s, &FAMILY, &words);
    if (reason && (rows || !strstr(words.data, reason)))
        fail_msg("expected \"%s\", found %d, \"%s\"", reason, rows, words.data ? words.data : "");
    text_free(&words);
    return rows;
}

static void test_aiter(void **state)
{
    (void)state;
    error err = {0};
    foreign_list l = {0};
    assert_true(foreign_parse_aiter(view_of(AITER), "a.csv", &l, &err));
    assert_int_equal(l.count, 2);
    assert_int_equal(rows_with(l.shapes[0], NULL), 1);
    assert_int_equal(rows_with(l.shapes[1], NULL), 16); /* shared expert fused: still ours */
    dispatch_key gate = {dispatch_experts, "mxfp4", 128, 384, 2}, down = {dispatch_experts, "bf16", 384, 128, 2};
    assert_true(foreign_means(&l.shapes[1], 16, &FAMILY, &gate) && foreign_means(&l.shapes[1], 16, &FAMILY, &down));
    gate.bucket = 1;
    assert_false(foreign_means(&l.shapes[1], 16, &FAMILY, &gate));
    down.operation = dispatch_linear;
    assert_false(foreign_means(&l.shapes[1], 16, &FAMILY, &down));
    rows_with((foreign_shape){.tokens = 1, .hidden = 6144, .width = 128, .experts = 16, .topk = 4}, "hidden width is 6144");
    rows_with((foreign_shape){.tokens = 1, .hidden = 384, .width = 32, .experts = 16, .topk = 4}, "one of 4 tensor-parallel parts");
    rows_with((foreign_shape){.tokens = 1, .hidden = 384, .width = 100, .experts = 16, .topk = 4}, "expert width is 100, this model's 128");
    rows_with((foreign_shape){.tokens = 1, .hidden = 384, .width = 128, .experts = 64, .topk = 4}, "64 experts");
    rows_with((foreign_shape){.tokens = 1, .hidden = 384, .width = 128, .experts = 16, .topk = 8}, "another number per token");
    rows_with((foreign_shape){.tokens = 32768, .hidden = 384, .width = 128, .experts = 16, .topk = 4}, "at most 4096");
    foreign_free(&l);
    assert_false(foreign_parse_aiter(view_of("token,model_dim\n1,2\n"), "a.csv", &l, &err));
    assert_non_null(strstr(err.text, "a.csv line 1: there is no column \"inter_dim\""));
    assert_false(foreign_parse_aiter(view_of("token,model_dim,inter_dim,expert,topk\n1,2,3,x,5\n"), "a.csv", &l, &err));
    assert_non_null(strstr(err.text, "a.csv line 2: expert must be a whole number from 1, found \"x\""));
    foreign_free(&l);
}

static void test_triton(void **state)
{
    (void)state;
    error err = {0};
    foreign_list l = {0};
    static const char table[] = "{\"triton_version\": \"3.4.0\", \"1\": {\"BLOCK_SIZE_M\": 16}, \"4096\": {\"BLOCK_SIZE_M\": 128}}";
    assert_true(foreign_parse_triton(view_of(table), "x/E=16,N=128,device_name=NVIDIA_H200,dtype=fp8_w8a8.json", &l, &err));
    assert_int_equal(l.count, 2);
    assert_true(l.shapes[0].gate_up && l.shapes[0].down && l.shapes[0].hidden == 0);
    assert_int_equal(rows_with(l.shapes[0], NULL), 1);
    assert_int_equal(rows_with(l.shapes[1], NULL), 1024);
    foreign_free(&l);
    assert_true(foreign_parse_triton(view_of(table), "E=16,N=128,device_name=AMD,block_shape=[128, 128]_down.json", &l, &err));
    assert_true(!l.shapes[0].gate_up && l.shapes[0].down);
    foreign_free(&l);
    assert_false(foreign_parse_triton(view_of(table), "x/MOE=16,N=128.json", &l, &err));
    assert_non_null(strstr(err.text, "the name of a Triton MoE table says E=..,N=.."));
    assert_false(foreign_parse_triton(view_of("{\"one\": {}}"), "E=16,N=128.json", &l, &err));
    assert_non_null(strstr(err.text, "\"one\" must be a number of tokens"));
    assert_false(foreign_parse_triton(view_of("{\"1\": 3}"), "E=16,N=128.json", &l, &err));
    assert_non_null(strstr(err.text, "must be an object of tile sizes, found"));
    assert_false(foreign_parse_triton(view_of("[1]"), "E=16,N=128.json", &l, &err));
    foreign_free(&l);
}

/* What is written for aiter can be read again, and means shapes of the model it came from. */
static void test_export(void **state)
{
    (void)state;
    error err = {0};
    rig r = rig_open(NANO, KV_BF16, 1, 64);
    text out = {0}, notes = {0}, reason = {0};
    foreign_list l = {0};
    dispatch_table *t = r.device->dispatch;
    if (dispatch_count(t).only < t->count) {
        assert_false(foreign_export(FOREIGN_AITER, t, r.model, KV_BF16, &out, &notes, &err));
        assert_non_null(strstr(err.text, "run drawbridge tune first"));
    }
    for (int half = 0; half < 2; half++) { /* gate and up alone, then down alone */
        for (int i = 0; i < t->count; i++)
            t->rows[i].source = (t->rows[i].key.n == r.model->config.hidden_size) == half ? DISPATCH_TUNED : DISPATCH_HEURISTIC;
        assert_false(foreign_export(FOREIGN_AITER, t, r.model, KV_BF16, &out, &notes, &err));
    }
    for (int i = 0; i < t->count; i++)
        t->rows[i].source = DISPATCH_TUNED;
    text_clear(&out);
    text_clear(&notes);
    assert_true(foreign_export(FOREIGN_AITER, t, r.model, KV_BF16, &out, &notes, &err));
    assert_non_null(strstr(out.data, "torch.float4_e2m1fn_x2,QuantType.per_1x32,1,0,drawbridge "));
    assert_non_null(strstr(out.data, "torch.bfloat16,QuantType.No,1,0,drawbridge "));
    assert_true(foreign_parse_aiter((view){out.data, out.length}, "out", &l, &err));
    assert_true(l.count > 2);
    for (int i = 0; i < l.count; i++)
        assert_true(foreign_rows(&l.shapes[i], &r.model->config, &reason) > 0);
    foreign_free(&l);
    text_clear(&out);
    text_clear(&notes);
    assert_true(foreign_export(FOREIGN_TRITON, t, r.model, KV_BF16, &out, &notes, &err));
    assert_non_null(strstr(notes.data, "experts in bf16 and bf16 are left out: a file of this form holds one format"));
    assert_non_null(strstr(notes.data, ",dtype=mxfp4.json"));
    assert_true(foreign_parse_triton((view){out.data, out.length}, "E=16,N=128,device_name=x.json", &l, &err));
    assert_true(l.count > 1);
    foreign_free(&l);
    text_free(&out);
    text_free(&notes);
    text_free(&reason);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),      cmocka_unit_test(test_device_names),        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_forced),       cmocka_unit_test(test_no_kernel),           cmocka_unit_test(test_tuned_is_strict),
        cmocka_unit_test(test_tuned_put),    cmocka_unit_test(test_tuned_choice),        cmocka_unit_test(test_model),
        cmocka_unit_test(test_tune),         cmocka_unit_test(test_least_gain)         , cmocka_unit_test(test_tune_resumes),
        cmocka_unit_test(test_aiter),        cmocka_unit_test(test_triton),              cmocka_unit_test(test_export),
        cmocka_unit_test(test_modes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
