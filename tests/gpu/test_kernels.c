/* The generic GPU kernels one by one, against references in f64 or the CPU device's own functions. The same program runs over the emulation
 * and on a GPU; without one it ends with 77, which the tests take for skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu.h"
#include "device/gpu/gpu_kernels.h"
#include "formats/format.h"
#include "model/kv_layout.h"

static gpu_stream stream;

static void must(gpu_status s)
{
    if (s != GPU_OK)
        fail_msg("%s", gpu_words(s));
}

/* Device memory with a copy of `bytes` bytes; bytes that nothing wrote are poisoned. */
static void *to_gpu(const void *from, size_t bytes)
{
    void *memory;
    must(gpu_alloc(&memory, bytes));
    must(gpu_to_device(memory, from, bytes, stream));
    must(gpu_stream_wait(stream));
    return memory;
}

static void *poisoned(size_t bytes)
{
    uint8_t *poison = mem_alloc(bytes, 1);
    memset(poison, 0xFF, bytes);
    void *memory = to_gpu(poison, bytes);
    free(poison);
    return memory;
}

static void *from_gpu(const void *memory, size_t bytes)
{
    void *host = mem_alloc(bytes, 1);
    must(gpu_last_launch());
    must(gpu_to_host(host, memory, bytes, stream));
    must(gpu_stream_wait(stream));
    return host;
}

/* Unlike cmocka's comparison, this one does not take a NaN. */
static void assert_near(float got, float want, float bound)
{
    if (!(fabsf(got - want) <= bound))
        fail_msg("%.9g, expected %.9g", (double)got, (double)want);
}

static float uniform(uint64_t seed, uint64_t i)
{
    return 2.0f * (float)random_uniform(seed, i, 0) - 1.0f;
}

static float *random_floats(uint64_t seed, size_t count, float size)
{
    float *v = mem_alloc(count, sizeof *v);
    for (size_t i = 0; i < count; i++)
        v[i] = size * uniform(seed, i);
    return v;
}

/* ---- projections ---- */

typedef struct test_matrix {
    matrix host;
    gpu_matrix gpu;
    uint8_t *data, *scales;
} test_matrix;

static test_matrix matrix_make(format_id id, int rows, int cols, uint64_t seed)
{
    const format *f = format_of(id);
    uint64_t bytes = 0, scale_bytes = 0;
    assert_true(format_data_bytes(f, rows, cols, &bytes) && format_scale_bytes(f, rows, cols, &scale_bytes));
    float *values = random_floats(seed, (size_t)(rows * cols), 0.3f);
    test_matrix t = {.data = mem_alloc(bytes, 1), .scales = mem_alloc(scale_bytes + 1, 1)};
    float tensor_scale = id == FORMAT_NVFP4 ? 0.01f : 1.0f;
    f->encode(values, rows, cols, tensor_scale, t.data, t.scales);
    t.host = (matrix){f, rows, cols, t.data, scale_bytes ? t.scales : NULL, tensor_scale};
    size_t row_bytes = format_row_bytes(f, cols), stride = (row_bytes + 31) / 32 * 32;
    uint8_t *padded = mem_alloc((size_t)rows * stride, 1);
    for (int r = 0; r < rows; r++)
        memcpy(padded + (size_t)r * stride, t.data + (size_t)r * row_bytes, row_bytes);
    t.gpu = (gpu_matrix){to_gpu(padded, (size_t)rows * stride), scale_bytes ? to_gpu(t.scales, scale_bytes) : NULL, tensor_scale,
                         (int32_t)id, rows, cols, (int64_t)stride};
    free(padded);
    free(values);
    return t;
}

static void matrix_free(test_matrix *t)
{
    gpu_free((void *)(uintptr_t)t->gpu.data);
    gpu_free((void *)(uintptr_t)t->gpu.scales);
    free(t->data);
    free(t->scales);
}

/* Rows of x through a matrix in two batches of `columns` of its rows; row i is row list[i] of x. */
typedef struct projection {
    int rows, columns;
    bool add;
    const int32_t *list;
} projection;

enum { PROJECTION_ROWS = 9 };

static float *project(const test_matrix *w, const float *x, const projection *p)
{
    size_t out_floats = (size_t)p->rows * 2 * (size_t)p->columns, x_floats = PROJECTION_ROWS * 2 * (size_t)w->host.cols;
    int32_t *count = to_gpu(&p->rows, sizeof(int32_t)), *list = to_gpu(p->list, PROJECTION_ROWS * sizeof(int32_t));
    float *ones = mem_alloc(out_floats, sizeof *ones), *in = to_gpu(x, x_floats * sizeof *x);
    for (size_t i = 0; i < out_floats; i++)
        ones[i] = 1.0f;
    float *out = p->add ? to_gpu(ones, out_floats * sizeof *ones) : poisoned(out_floats * sizeof *ones);
    gpu_linear_args a = {.rows = count, .list = list, .w = w->gpu, .columns = p->columns, .batch = 2, .w_first = 1,
                         .w_step = p->columns + 1, .x = in, .out = out, .x_stride = 2 * w->host.cols, .x_batch = w->host.cols,
                         .out_stride = 2 * p->columns, .out_batch = p->columns, .add = p->add};
    gpu_linear(&a, p->rows, stream);
    float *got = from_gpu(out, out_floats * sizeof *got);
    gpu_free(count);
    gpu_free(list);
    gpu_free(in);
    gpu_free(out);
    free(ones);
    return got;
}

static void check_projection(const test_matrix *w, const float *x, const projection *p, const float *got)
{
    float *row = mem_alloc((size_t)w->host.cols, sizeof *row);
    for (int b = 0; b < 2; b++)
        for (int n = 0; n < p->columns; n++) {
            matrix_row(&w->host, b * (p->columns + 1) + 1 + n, row);
            for (int r = 0; r < p->rows; r++) {
                double sum = p->add ? 1 : 0, size = 1;
                const float *in = x + (2 * p->list[r] + b) * w->host.cols;
                for (int64_t k = 0; k < w->host.cols; k++) {
                    sum += (double)row[k] * (double)in[k];
                    size += fabs((double)row[k] * (double)in[k]);
                }
                float y = got[(r * 2 + b) * p->columns + n];
                if (!(fabs((double)y - sum) <= 3e-7 * size))
                    fail_msg("%s, %d rows, row %d, column %d: %.9g, expected %.9g", w->host.format->name, p->rows, r, n, (double)y, sum);
            }
        }
    free(row);
}

/* Every format, also with rows that end inside a chunk, and for 1, 3 and 9 rows; a row's result is the same in all. */
static void test_projections(void **state)
{
    (void)state;
    static const int cols[GPU_FORMATS][3] = {{70, 256, 7},     {70, 512, 1030},  {70, 384, 640},
                                             {64, 1024, 1120}, {48, 1024, 1072}, {70, 512, 530}};
    static const int32_t lists[2][PROJECTION_ROWS] = {{4, 1, 2, 3, 0, 5, 6, 7, 8}, {4, 8, 0, 1, 2, 3, 5, 6, 7}};
    static const int rows[] = {1, 3, 9};
    for (int f = 0; f < GPU_FORMATS; f++)
        for (int i = 0; i < 3; i++) {
            enum { COLUMNS = 21 };
            test_matrix w = matrix_make((format_id)f, 2 * COLUMNS + 2, cols[f][i], (uint64_t)f);
            float *x = random_floats(77, PROJECTION_ROWS * 2 * (size_t)cols[f][i], 1.0f), first[2 * COLUMNS];
            for (int r = 0; r < 3; r++) {
                projection p = {rows[r], COLUMNS, r == 1, lists[r % 2]};
                float *got = project(&w, x, &p);
                check_projection(&w, x, &p, got);
                if (r == 0)
                    memcpy(first, got, sizeof first);
                else if (!p.add)
                    assert_memory_equal(first, got, sizeof first); /* row 4 is the first of both lists */
                free(got);
            }
            free(x);
            matrix_free(&w);
        }
}

/* ---- a step of some rows ---- */

enum { STEP_ROWS = 5, STEP_PAGES = 40 };

typedef struct test_step {
    gpu_step host;
    gpu_step *gpu;
    step cpu;        /* the same for the CPU's functions, with pages of its own */
    int32_t positions[STEP_ROWS], sequences[STEP_ROWS], tables[2][STEP_PAGES / 2];
    const int32_t *table_list[2];
    void *memory[6];
} test_step;

static void step_make(test_step *t, size_t page_bytes, const int32_t positions[STEP_ROWS])
{
    static const int32_t first[2] = {0, STEP_PAGES / 2}, tokens[STEP_ROWS] = {3, 1, 4, 1, 5};
    for (int i = 0; i < STEP_ROWS; i++) {
        t->positions[i] = positions[i];
        t->sequences[i] = i % 2;
    }
    for (int i = 0; i < STEP_PAGES; i++)
        t->tables[i % 2][i / 2] = (i * 7) % STEP_PAGES;
    t->memory[0] = to_gpu(tokens, sizeof tokens);
    t->memory[1] = to_gpu(t->positions, sizeof t->positions);
    t->memory[2] = to_gpu(t->sequences, sizeof t->sequences);
    t->memory[3] = to_gpu(first, sizeof first);
    t->memory[4] = to_gpu(t->tables, sizeof t->tables);
    t->memory[5] = poisoned(STEP_PAGES * page_bytes);
    t->host = (gpu_step){.rows = STEP_ROWS, .keep_keys = 1, .tokens = t->memory[0], .positions = t->memory[1], .sequences = t->memory[2],
                         .table_first = t->memory[3], .tables = t->memory[4], .pages = t->memory[5]};
    t->gpu = to_gpu(&t->host, sizeof t->host);
    t->table_list[0] = t->tables[0];
    t->table_list[1] = t->tables[1];
    t->cpu = (step){.rows = STEP_ROWS, .tokens = tokens, .positions = t->positions, .sequences = t->sequences,
                    .page_tables = t->table_list, .pages = mem_alloc(STEP_PAGES, page_bytes), .keep_keys = true};
}

static void step_free(test_step *t)
{
    for (int i = 0; i < 6; i++)
        gpu_free(t->memory[i]);
    gpu_free(t->gpu);
    free(t->cpu.pages);
}

static gpu_cache cache_of(const kv_layout *k)
{
    return (gpu_cache){(int32_t)k->dtype, k->latent_dim, k->rope_dim, k->index_dim, (int64_t)k->latent_bytes, (int64_t)k->index_bytes,
                       (int64_t)k->latent_offset[0], (int64_t)k->index_offset[0], (int64_t)k->page_bytes};
}

static model_config shapes(void)
{
    return (model_config){.layers = 1, .kv_lora_rank = 264, .rope_dim = 6, .index_dim = 72, .index_heads = 5, .heads = 6, .nope_dim = 10,
                          .v_dim = 9, .index_topk = 70, .full_index = {true}};
}

/* ---- entries of the cache ---- */

/* What the kernels store is what the CPU stores for the same values. */
static void check_entries(kv_dtype kv)
{
    static const int32_t positions[STEP_ROWS] = {0, 63, 64, 200, 1000};
    model_config c = shapes();
    kv_layout k = kv_layout_of(&c, kv);
    test_step t;
    step_make(&t, k.page_bytes, positions);
    size_t width = (size_t)(c.kv_lora_rank + c.rope_dim), q_width = (size_t)(c.heads * (c.nope_dim + c.rope_dim));
    float *latent = random_floats(1, STEP_ROWS * width, 3), *q = random_floats(2, STEP_ROWS * q_width, 1);
    float *norm = random_floats(3, width, 1);
    float *key = random_floats(4, STEP_ROWS * (size_t)c.index_dim, 2), *rope = random_floats(5, STEP_ROWS * (size_t)c.rope_dim, 1);
    memset(latent, 0, width * sizeof *latent); /* a group of zeros */
    float *latent_gpu = to_gpu(latent, STEP_ROWS * width * 4), *q_gpu = to_gpu(q, STEP_ROWS * q_width * 4);
    float *norm_gpu = to_gpu(norm, width * 4);
    float *key_gpu = to_gpu(key, STEP_ROWS * (size_t)c.index_dim * 4), *rope_gpu = to_gpu(rope, STEP_ROWS * (size_t)c.rope_dim * 4);
    float *index_q = poisoned(STEP_ROWS * (size_t)(c.index_heads * c.index_dim) * 4);
    float *weights = poisoned(STEP_ROWS * (size_t)c.index_heads * 4);
    gpu_latent_args l = {.step = t.gpu, .cache = cache_of(&k), .rope = rope_gpu, .norm = norm_gpu, .q = q_gpu, .latent = latent_gpu,
                         .heads = c.heads, .nope = c.nope_dim, .eps = 1e-5f};
    gpu_latent(&l, STEP_ROWS + 3, stream);
    gpu_index_row_args r = {.step = t.gpu, .cache = cache_of(&k), .rope = rope_gpu, .norm = norm_gpu, .norm_bias = norm_gpu, .q = index_q,
                            .k = key_gpu, .weights = weights, .heads = c.index_heads, .eps = 1e-6f, .weight_scale = 1};
    gpu_index_row(&r, STEP_ROWS + 3, stream);
    uint8_t *pages = from_gpu(t.memory[5], STEP_PAGES * k.page_bytes);
    float *stored = from_gpu(latent_gpu, STEP_ROWS * width * 4), *stored_key = from_gpu(key_gpu, STEP_ROWS * (size_t)c.index_dim * 4);
    for (int i = 0; i < STEP_ROWS; i++) {
        uint8_t want[2048];
        step s = t.cpu;
        s.pages = pages;
        cpu_latent_store(&k, stored + (size_t)i * width, want);
        assert_memory_equal(want, cpu_entry(&k, &s, i, positions[i], k.latent_offset[0], k.latent_bytes), k.latent_bytes);
        cpu_index_key_store(&k, stored_key + i * c.index_dim, want);
        assert_memory_equal(want, cpu_entry(&k, &s, i, positions[i], k.index_offset[0], k.index_bytes), k.index_bytes);
        cpu_rms_norm(latent + (size_t)i * width, norm, c.kv_lora_rank, 1e-5f, latent + (size_t)i * width);
        cpu_rotate(latent + (size_t)i * width + c.kv_lora_rank, rope + i * c.rope_dim, c.rope_dim);
        for (size_t j = 0; j < width; j++)
            assert_near(stored[(size_t)i * width + j], latent[(size_t)i * width + j], 1e-5f);
        cpu_layer_norm(key + i * c.index_dim, norm, norm, c.index_dim, 1e-6f, key + i * c.index_dim);
        cpu_rotate(key + i * c.index_dim, rope + i * c.rope_dim, c.rope_dim);
        for (int j = 0; j < c.index_dim; j++)
            assert_near(stored_key[i * c.index_dim + j], key[i * c.index_dim + j], 1e-5f);
    }
    void *const device_memory[] = {latent_gpu, q_gpu, norm_gpu, key_gpu, rope_gpu, index_q, weights};
    void *const host_memory[] = {latent, q, norm, key, rope, pages, stored, stored_key};
    for (size_t i = 0; i < sizeof device_memory / sizeof device_memory[0]; i++)
        gpu_free(device_memory[i]);
    for (size_t i = 0; i < sizeof host_memory / sizeof host_memory[0]; i++)
        free(host_memory[i]);
    step_free(&t);
}

static void test_entries(void **state)
{
    (void)state;
    for (kv_dtype d = 0; d < KV_DTYPE_COUNT; d++)
        check_entries(d);
}

/* ---- attention and index scores over a filled cache ---- */

static void fill_pages(test_step *t, const kv_layout *k)
{
    float values[512];
    for (int p = 0; p < STEP_PAGES * KV_PAGE_TOKENS; p++) {
        uint8_t *page = t->cpu.pages + (size_t)(p / KV_PAGE_TOKENS) * k->page_bytes;
        for (int i = 0; i < 512; i++)
            values[i] = uniform(9, (uint64_t)(p * 512 + i));
        cpu_latent_store(k, values, page + k->latent_offset[0] + (size_t)(p % KV_PAGE_TOKENS) * k->latent_bytes);
        cpu_index_key_store(k, values, page + k->index_offset[0] + (size_t)(p % KV_PAGE_TOKENS) * k->index_bytes);
    }
    must(gpu_to_device(t->memory[5], t->cpu.pages, STEP_PAGES * k->page_bytes, stream));
    must(gpu_stream_wait(stream));
}

/* softmax(q . entries) entries, in f64. */
static void reference_attention(const float *absorbed, const float *rope, const float *entries, int count, const model_config *c,
                                double scale, double *out)
{
    double scores[128], sum = 0, most = -INFINITY;
    int width = c->kv_lora_rank + c->rope_dim;
    for (int j = 0; j < count; j++) {
        scores[j] = 0;
        for (int i = 0; i < width; i++)
            scores[j] += (double)(i < c->kv_lora_rank ? absorbed[i] : rope[i - c->kv_lora_rank]) * (double)entries[j * width + i];
        scores[j] *= scale;
        most = fmax(most, scores[j]);
    }
    for (int j = 0; j < count; j++)
        sum += scores[j] = exp(scores[j] - most);
    for (int i = 0; i < c->kv_lora_rank; i++) {
        out[i] = 0;
        for (int j = 0; j < count; j++)
            out[i] += scores[j] / sum * (double)entries[j * width + i];
    }
}

static void check_attention(kv_dtype kv)
{
    static const int32_t positions[STEP_ROWS] = {0, 40, 69, 500, 1200};
    model_config c = shapes();
    kv_layout k = kv_layout_of(&c, kv);
    test_step t;
    step_make(&t, k.page_bytes, positions);
    fill_pages(&t, &k);
    int rank = c.kv_lora_rank, width = rank + c.rope_dim, q_dim = c.nope_dim + c.rope_dim, heads = c.heads, topk = c.index_topk;
    size_t out_floats = (size_t)(STEP_ROWS * heads * rank);
    float *absorbed = random_floats(21, out_floats, 0.5f), *q = random_floats(22, (size_t)(STEP_ROWS * heads * q_dim), 0.5f);
    int32_t *selected = mem_alloc((size_t)(STEP_ROWS * topk), sizeof *selected), counts[STEP_ROWS];
    for (int r = 0; r < STEP_ROWS; r++) {
        counts[r] = positions[r] + 1 < topk ? positions[r] + 1 : topk;
        for (int i = 0; i < counts[r]; i++)
            selected[r * topk + i] = (int32_t)((int64_t)i * (positions[r] + 1) / counts[r]);
    }
    void *absorbed_gpu = to_gpu(absorbed, out_floats * 4), *q_gpu = to_gpu(q, (size_t)(STEP_ROWS * heads * q_dim) * 4);
    void *selected_gpu = to_gpu(selected, (size_t)(STEP_ROWS * topk) * 4), *counts_gpu = to_gpu(counts, sizeof counts);
    void *out = poisoned(out_floats * 4);
    gpu_attend_args a = {.step = t.gpu, .cache = cache_of(&k), .q_absorbed = absorbed_gpu, .q = q_gpu, .selected = selected_gpu,
                         .selected_count = counts_gpu, .out = out, .heads = heads, .nope = c.nope_dim, .topk = topk, .scale = 0.25f};
    gpu_attend(&a, STEP_ROWS + 3, stream);
    float *got = from_gpu(out, out_floats * 4), *entries = mem_alloc((size_t)(topk * width), sizeof *entries);
    double want[512];
    for (int r = 0; r < STEP_ROWS; r++) {
        for (int i = 0; i < counts[r]; i++)
            cpu_latent_load(&k, cpu_entry(&k, &t.cpu, r, selected[r * topk + i], k.latent_offset[0], k.latent_bytes), entries + i * width);
        for (int h = 0; h < heads; h++) {
            int at = r * heads + h;
            reference_attention(absorbed + at * rank, q + at * q_dim + c.nope_dim, entries, counts[r], &c, 0.25, want);
            for (int i = 0; i < rank; i++)
                assert_near(got[(r * heads + h) * rank + i], (float)want[i], 3e-6f);
        }
    }
    void *const device_memory[] = {absorbed_gpu, q_gpu, selected_gpu, counts_gpu, out};
    void *const host_memory[] = {absorbed, q, selected, got, entries};
    for (int i = 0; i < 5; i++) {
        gpu_free(device_memory[i]);
        free(host_memory[i]);
    }
    step_free(&t);
}

static void test_attention(void **state)
{
    (void)state;
    for (kv_dtype d = 0; d < KV_DTYPE_COUNT; d++)
        check_attention(d);
}

/* Scores of the rows that see more than topk positions; nothing is written for the others. */
static void check_scores(kv_dtype kv)
{
    enum { CONTEXT = 1250 };
    static const int32_t positions[STEP_ROWS] = {0, 69, 70, 500, 1200};
    model_config c = shapes();
    kv_layout k = kv_layout_of(&c, kv);
    test_step t;
    step_make(&t, k.page_bytes, positions);
    fill_pages(&t, &k);
    int heads = c.index_heads, n = c.index_dim;
    float *q = random_floats(31, (size_t)(STEP_ROWS * heads * n), 1), *weights = random_floats(32, (size_t)(STEP_ROWS * heads), 1);
    void *q_gpu = to_gpu(q, (size_t)(STEP_ROWS * heads * n) * 4), *weights_gpu = to_gpu(weights, (size_t)(STEP_ROWS * heads) * 4);
    void *out = poisoned(STEP_ROWS * CONTEXT * 4);
    gpu_index_score_args a = {.step = t.gpu, .cache = cache_of(&k), .q = q_gpu, .weights = weights_gpu, .scores = out, .context = CONTEXT,
                              .heads = heads, .topk = c.index_topk, .first_row = 1, .score_rows = STEP_ROWS, .scale = 0.125f};
    gpu_index_scores(&a, stream);
    float *got = from_gpu(out, STEP_ROWS * CONTEXT * 4), key[128];
    for (int r = 1; r < STEP_ROWS; r++)
        for (int j = 0; j < CONTEXT; j++) {
            float y = got[(r - 1) * CONTEXT + j];
            if (positions[r] < c.index_topk || j > positions[r]) {
                assert_true(isnan(y));
                continue;
            }
            double want = 0;
            cpu_index_keys_load(&k, &t.cpu, r, 0, j, 1, key);
            for (int h = 0; h < heads; h++) {
                double dot = 0;
                for (int i = 0; i < n; i++)
                    dot += (double)q[(r * heads + h) * n + i] * (double)key[i];
                want += fmax(dot, 0) * (double)weights[r * heads + h] * 0.125;
            }
            assert_near(y, (float)want, 2e-6f);
        }
    gpu_free(q_gpu);
    gpu_free(weights_gpu);
    gpu_free(out);
    free(q);
    free(weights);
    free(got);
    step_free(&t);
}

static void test_index_scores(void **state)
{
    (void)state;
    for (kv_dtype d = 0; d < KV_DTYPE_COUNT; d++)
        check_scores(d);
}

/* ---- selection ---- */

static float odd_score(int kind, uint64_t i)
{
    double u = random_uniform(41, (uint64_t)kind, i);
    switch (kind) { /* smooth, many ties, tiny differences, all magnitudes, what is no number */
    case 0: return (float)(u - 0.5);
    case 1: return (float)((int)(u * 5) - 2);
    case 2: return nextafterf(1.0f, u < 0.5 ? 0.0f : 2.0f);
    case 3: return (float)ldexp(u - 0.5, (int)(random_word(42, i, 0) % 200) - 100);
    default: return u < 0.1 ? NAN : u < 0.3 ? INFINITY : u < 0.4 ? -INFINITY : u < 0.6 ? -0.0f : u < 0.8 ? 0.0f : (float)u;
    }
}

static void test_selection(void **state)
{
    (void)state;
    enum { CONTEXT = 1600 };
    static const int32_t positions[STEP_ROWS] = {68, 69, 70, 700, 1599};
    for (int kind = 0; kind < 5; kind++)
        for (int topk = 70; topk >= 1; topk -= 23) {
            test_step t;
            step_make(&t, 64, positions);
            float *scores = mem_alloc(STEP_ROWS * CONTEXT, sizeof *scores);
            for (int i = 0; i < STEP_ROWS * CONTEXT; i++)
                scores[i] = odd_score(kind, (uint64_t)i);
            void *scores_gpu = to_gpu(scores, STEP_ROWS * CONTEXT * 4), *out = poisoned((size_t)(STEP_ROWS * topk) * 4);
            void *counts_gpu = poisoned(STEP_ROWS * 4);
            gpu_select_args a = {.step = t.gpu, .scores = scores_gpu, .context = CONTEXT, .topk = topk, .score_rows = STEP_ROWS + 2,
                                 .selected = out, .selected_count = counts_gpu};
            gpu_select(&a, stream);
            int32_t *got = from_gpu(out, (size_t)(STEP_ROWS * topk) * 4), *counts = from_gpu(counts_gpu, STEP_ROWS * 4), want[128];
            for (int r = 0; r < STEP_ROWS; r++) {
                int seen = positions[r] + 1, count = seen < topk ? seen : topk;
                assert_int_equal(counts[r], count);
                if (seen > topk)
                    cpu_select_largest(scores + r * CONTEXT, seen, topk, want);
                for (int i = 0; i < count; i++)
                    assert_int_equal(got[r * topk + i], seen > topk ? want[i] : i);
            }
            gpu_free(scores_gpu);
            gpu_free(out);
            gpu_free(counts_gpu);
            free(scores);
            free(got);
            free(counts);
            step_free(&t);
        }
}

/* ---- the router ---- */

/* Ties go to the lower id, the sigmoid is accurate, and the pairs are sorted by expert, then by row. */
static void test_router(void **state)
{
    (void)state;
    enum { EXPERTS = 40, EACH = 6 };
    static const int32_t positions[STEP_ROWS] = {0};
    test_step t;
    step_make(&t, 64, positions);
    float logits[STEP_ROWS * EXPERTS], bias[EXPERTS];
    for (int i = 0; i < STEP_ROWS * EXPERTS; i++)
        logits[i] = i < 2 * EXPERTS ? (float)(i % 7 - 3) : 30.0f * uniform(51, (uint64_t)i);
    for (int e = 0; e < EXPERTS; e++)
        bias[e] = (float)(e % 3) * 0.25f;
    void *scores = to_gpu(logits, sizeof logits), *bias_gpu = to_gpu(bias, sizeof bias);
    void *chosen = poisoned(STEP_ROWS * EACH * 4), *weights = poisoned(STEP_ROWS * EACH * 4), *pair_rows = poisoned(STEP_ROWS * EACH * 4);
    void *slots = poisoned(STEP_ROWS * EACH * 4), *tiles = poisoned(STEP_ROWS * EACH * sizeof(gpu_tile));
    void *numbers = poisoned((EXPERTS + 1) * 4);
    gpu_route_args a = {.step = t.gpu, .scores = scores, .bias = bias_gpu, .chosen = chosen, .weights = weights, .experts = EXPERTS,
                        .per_token = EACH, .groups = 1, .groups_kept = 1, .normalize = 1, .scale = 2.5f};
    gpu_route(&a, STEP_ROWS + 3, stream);
    gpu_sort_args s = {.step = t.gpu, .chosen = chosen, .pair_rows = pair_rows, .slots = slots, .tiles = tiles, .tile_count = numbers,
                       .counts = (int32_t *)numbers + 1, .experts = EXPERTS, .per_token = EACH};
    gpu_sort_pairs(&s, stream);
    float *sigmoid = from_gpu(scores, sizeof logits), *weight = from_gpu(weights, STEP_ROWS * EACH * 4);
    int32_t *ids = from_gpu(chosen, STEP_ROWS * EACH * 4), *rows = from_gpu(pair_rows, STEP_ROWS * EACH * 4);
    int32_t *slot = from_gpu(slots, STEP_ROWS * EACH * 4), *number = from_gpu(numbers, (EXPERTS + 1) * 4), next = 0;
    gpu_tile *tile = from_gpu(tiles, STEP_ROWS * EACH * sizeof *tile);
    for (int r = 0; r < STEP_ROWS; r++) {
        float choice[EXPERTS], sum = 0, total = 0;
        int32_t want[EACH];
        for (int e = 0; e < EXPERTS; e++) {
            double exact = 1 / (1 + exp(-(double)logits[r * EXPERTS + e]));
            assert_true(fabs((double)sigmoid[r * EXPERTS + e] - exact) <= 4e-7 * exact);
            choice[e] = sigmoid[r * EXPERTS + e] + bias[e];
        }
        cpu_select_largest(choice, EXPERTS, EACH, want);
        assert_memory_equal(ids + r * EACH, want, sizeof want);
        for (int i = 0; i < EACH; i++)
            sum += sigmoid[r * EXPERTS + want[i]];
        for (int i = 0; i < EACH; i++) {
            assert_near(weight[r * EACH + i], sigmoid[r * EXPERTS + want[i]] / sum * 2.5f, 1e-6f);
            total += weight[r * EACH + i];
        }
        assert_near(total, 2.5f, 1e-5f);
    }
    for (int e = 0, at = 0; e < EXPERTS; e++) {
        int first = next;
        for (int p = 0; p < STEP_ROWS * EACH; p++)
            if (ids[p] == e) {
                assert_int_equal(slot[p], next);
                assert_int_equal(rows[next++], p / EACH);
            }
        assert_int_equal(number[1 + e], next - first);
        for (; first < next; first += GPU_EXPERT_ROWS, at++) {
            gpu_tile want = {e, first, next - first < GPU_EXPERT_ROWS ? next - first : GPU_EXPERT_ROWS};
            assert_memory_equal(&tile[at], &want, sizeof want);
        }
        if (e == EXPERTS - 1)
            assert_int_equal(number[0], at);
    }
    void *const device_memory[] = {scores, bias_gpu, chosen, weights, pair_rows, slots, tiles, numbers};
    void *const host_memory[] = {sigmoid, weight, ids, rows, slot, number, tile};
    for (size_t i = 0; i < sizeof device_memory / sizeof device_memory[0]; i++)
        gpu_free(device_memory[i]);
    for (size_t i = 0; i < sizeof host_memory / sizeof host_memory[0]; i++)
        free(host_memory[i]);
    step_free(&t);
}

/* ---- embedding and angles ---- */

static void test_embedding(void **state)
{
    (void)state;
    enum { ROPE = 64 };
    static const int32_t positions[STEP_ROWS] = {0, 1, 8191, 131071, 1048575};
    test_step t;
    step_make(&t, 64, positions);
    float frequency[ROPE / 2];
    for (int i = 0; i < ROPE / 2; i++)
        frequency[i] = 1.0f / powf(1e6f, (float)(2 * i) / ROPE);
    for (int f = 0; f < GPU_FORMATS; f++) {
        enum { COLS = 96 };
        test_matrix w = matrix_make((format_id)f, 6, COLS, 61);
        void *frequency_gpu = to_gpu(frequency, sizeof frequency), *out = poisoned(STEP_ROWS * COLS * 4);
        void *rope = poisoned(STEP_ROWS * ROPE * 4);
        gpu_embed_args a = {.step = t.gpu, .table = w.gpu, .frequency = frequency_gpu, .out = out, .rope = rope, .out_stride = COLS,
                            .rope_dim = ROPE};
        gpu_embed(&a, STEP_ROWS + 3, stream);
        float *got = from_gpu(out, STEP_ROWS * COLS * 4), *angles = from_gpu(rope, STEP_ROWS * ROPE * 4), want[COLS];
        for (int r = 0; r < STEP_ROWS; r++) {
            matrix_row(&w.host, t.cpu.tokens[r], want);
            for (int i = 0; i < COLS; i++)
                assert_near(got[r * COLS + i], want[i], 1e-7f);
            for (int i = 0; i < ROPE / 2; i++) {
                double angle = (double)((float)positions[r] * frequency[i]);
                assert_true(fabs((double)angles[r * ROPE + 2 * i] - cos(angle)) <= 6e-8);
                assert_true(fabs((double)angles[r * ROPE + 2 * i + 1] - sin(angle)) <= 6e-8);
            }
        }
        gpu_free(frequency_gpu);
        gpu_free(out);
        gpu_free(rope);
        free(got);
        free(angles);
        matrix_free(&w);
    }
    step_free(&t);
}

int main(void)
{
    int count = 0;
    gpu_properties properties;
    if (gpu_devices(&count) != GPU_OK || count == 0 || gpu_use(0, &properties) != GPU_OK || gpu_stream_create(&stream) != GPU_OK) {
        printf("skipped: no GPU here\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections), cmocka_unit_test(test_entries), cmocka_unit_test(test_attention),
        cmocka_unit_test(test_index_scores), cmocka_unit_test(test_selection), cmocka_unit_test(test_router),
        cmocka_unit_test(test_embedding),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    gpu_stream_destroy(stream);
    return failed;
}
