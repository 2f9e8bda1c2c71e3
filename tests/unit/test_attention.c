/* Every variant of the attention kernels gives the bits of the generic one, and that one those of slow code written here from the
 * definitions: odd sizes, any alignment, all numbers of heads and keys. The whole model gives the same logits with each of them. */
#include "golden.h"

#include <float.h>

#include "base/random.h"
#include "device/cpu/cpu.h"
#include "formats/scalar.h"

#define NANO SOURCE_DIR "/models/nano"

enum { ROUNDS = 300, MOST_KEYS = 30, LONGEST = 300, MOST_HEADS = 40 };

static uint64_t word(uint64_t a, uint64_t b)
{
    return random_word(21, a, b);
}

static float value_at(uint64_t a, uint64_t b)
{
    uint64_t w = word(a, b);
    float sign = w & 1 ? -1.0f : 1.0f, unit = (float)(w >> 40) * 0x1p-24f;
    switch (w >> 1 & 15) {
    case 0: return sign * 0.0f;
    case 1: return sign * unit * 0x1p-120f;
    case 2: return sign * unit * 0x1p10f;
    default: return sign * unit;
    }
}

/* Memory of its own for each use, so that a sanitizer sees every access behind its end. */
static float *values_of(uint64_t seed, size_t count)
{
    float *v = mem_alloc(count + 1, sizeof *v);
    for (size_t i = 0; i < count; i++)
        v[i] = value_at(seed, i);
    return v;
}

static float *panel_of(const float *x, int64_t stride, int heads, int64_t n)
{
    int lanes = (heads + 7) / 8 * 8;
    float *panel = mem_alloc((size_t)(n * lanes) + 1, sizeof *panel);
    for (int64_t i = 0; i < n; i++)
        for (int h = 0; h < heads; h++)
            panel[i * lanes + h] = x[h * stride + i];
    return panel;
}

static void test_pack(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t n = (int64_t)(word(round, 0) % 70), stride = n + (int64_t)(word(round, 1) % 5);
        int heads = 1 + (int)(word(round, 2) % MOST_HEADS), lanes = cpu_head_lanes(heads);
        float *x = values_of(round, (size_t)(stride * heads)), *expected = panel_of(x, stride, heads, n);
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            float *got = values_of(round + 1, (size_t)(n * lanes));
            cpu_attention_kernels_at(v)->pack(x, stride, heads, n, got);
            assert_memory_equal(got, expected, (size_t)(n * lanes) * sizeof(float));
            free(got);
        }
        free(x);
        free(expected);
    }
}

static float slow_chain(const float *a, const float *b, int64_t n)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum = fmaf(a[i], b[i], sum);
    return sum;
}

static float slow_score(const float *a, const float *b, int64_t n)
{
    volatile float sum = 0;
    for (int64_t first = 0; first < n; first += 128) {
        float block = slow_chain(a + first, b + first, n - first < 128 ? n - first : 128);
        sum = first == 0 ? block : sum + block;
    }
    return sum;
}

static void test_scores(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t n = 1 + (int64_t)(word(round, 3) % LONGEST), stride = n + (int64_t)(word(round, 4) % 5);
        int heads = 1 + (int)(word(round, 5) % CPU_HEAD_TILE), lanes = cpu_head_lanes(heads), count = (int)(word(round, 6) % MOST_KEYS);
        float *q = values_of(2 * round, (size_t)(n * heads)), *panel = panel_of(q, n, heads, n);
        float *keys = values_of(2 * round + 1, (size_t)(stride * count));
        float *got = mem_alloc((size_t)(count * lanes) + 1, sizeof *got);
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            memset(got, 0xFF, (size_t)(count * lanes) * sizeof *got);
            cpu_attention_kernels_at(v)->scores(panel, lanes, keys, stride, count, n, got);
            for (int j = 0; j < count; j++)
                for (int h = 0; h < heads; h++)
                    if (got[j * lanes + h] != slow_score(q + h * n, keys + j * stride, n))
                        fail_msg("%s: key %d of %d, head %d of %d, %lld values: %a", cpu_attention_kernels_at(v)->name, j, count, h, heads,
                                 (long long)n, (double)got[j * lanes + h]);
        }
        free(q);
        free(panel);
        free(keys);
        free(got);
    }
}

/* Codes of all kinds; in some rounds one that is not a number, or a scale that some variants leave to others. */
static void test_add_codes(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t n = 1 + (int64_t)(word(round, 30) % 128), stride = n + (int64_t)(word(round, 31) % 5);
        int count = (int)(word(round, 32) % 90), odd = round % 5 == 4 && count > 0 ? (int)(word(round, 33) % (uint64_t)count) : -1;
        float *p = values_of(4 * round, (size_t)count), *scales = values_of(4 * round + 1, (size_t)count);
        float *before = values_of(4 * round + 2, (size_t)n), *expected = mem_alloc((size_t)n, sizeof *expected);
        float *got = mem_alloc((size_t)n, sizeof *got);
        uint8_t *codes = mem_alloc((size_t)(stride * count) + 1, 1);
        for (int64_t i = 0; i < stride * count; i++)
            codes[1 + i] = (uint8_t)(word(4 * round + 3, (uint64_t)i) % 127 + (word(4 * round + 3, (uint64_t)i) >> 32) % 2 * 128);
        for (int j = 0; j < count; j++)
            scales[j] = fabsf(scales[j]) * 0.01f;
        if (odd >= 0 && round % 2)
            codes[1 + odd * stride] = 0xFF;
        else if (odd >= 0)
            scales[odd] = 1000.0f;
        memcpy(expected, before, (size_t)n * sizeof *before);
        for (int j = 0; j < count; j++)
            for (int64_t k = 0; k < n; k++) {
                volatile float weight = e4m3_decode(codes[1 + j * stride + k]) * scales[j];
                expected[k] = fmaf(p[j], weight, expected[k]);
            }
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            memcpy(got, before, (size_t)n * sizeof *before);
            bool done = cpu_attention_kernels_at(v)->add_codes(p, codes + 1, stride, scales, count, n, got);
            assert_true(done || odd >= 0);
            for (int64_t k = 0; done && k < n; k++)
                assert_true(float_bits(got[k]) == float_bits(expected[k]) || (isnan(got[k]) && isnan(expected[k])));
        }
        free(p);
        free(scales);
        free(before);
        free(expected);
        free(got);
        free(codes);
    }
}

/* Several blocks, with each variant and by the plain formula in doubles: the same bits, and close. */
static void test_softmax(void **state)
{
    (void)state;
    enum { LANES = 16, COUNT = 100 };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int block = 1 + (int)(word(round, 7) % 48), lanes = round % 2 ? 8 : 16;
        float scores[COUNT * LANES], spread = (float)(1 + word(round, 8) % 60), sums[2][LANES], first[COUNT * LANES];
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            cpu_softmax s = {0};
            for (int h = 0; h < LANES; h++)
                s.largest[h] = -INFINITY;
            for (int i = 0; i < COUNT * lanes; i++)
                scores[i] = spread * value_at(round, (uint64_t)i);
            for (int j = 0; j < COUNT; j += block) {
                cpu_attention_kernels_at(v)->softmax_block(scores + j * lanes, lanes, COUNT - j < block ? COUNT - j : block, 0.125f, &s);
                for (int i = 0; i < j * lanes; i++)
                    scores[i] *= s.factor[i % lanes];
            }
            memcpy(sums[v > 0], s.sum, sizeof s.sum);
            if (v == 0)
                memcpy(first, scores, sizeof scores);
            assert_memory_equal(first, scores, (size_t)(COUNT * lanes) * sizeof(float));
            assert_memory_equal(sums[0], sums[v > 0], (size_t)lanes * sizeof(float));
        }
        for (int h = 0; h < lanes; h++) {
            double largest = -INFINITY, sum = 0;
            for (uint64_t j = 0; j < COUNT; j++)
                largest = fmax(largest, 0.125 * (double)(spread * value_at(round, j * (uint64_t)lanes + (uint64_t)h)));
            for (uint64_t j = 0; j < COUNT; j++)
                sum += exp(0.125 * (double)(spread * value_at(round, j * (uint64_t)lanes + (uint64_t)h)) - largest);
            assert_true(fabs((double)sums[0][h] - sum) < 1e-5 * sum);
        }
    }
}

/* The exponential through a softmax of two scores, 0 and x. */
static void test_exponential(void **state)
{
    (void)state;
    for (int v = 0; cpu_attention_kernels_at(v); v++) {
        for (int i = 0; i < 20000; i++) {
            float y[2 * CPU_HEAD_LANES] = {0}, x = -(float)i * 0.0047f;
            cpu_softmax s = {0};
            y[CPU_HEAD_LANES] = x;
            cpu_attention_kernels_at(v)->softmax_block(y, CPU_HEAD_LANES, 2, 1.0f, &s);
            double expected = x < -87.0f ? 0 : exp((double)x);
            if (fabs((double)y[CPU_HEAD_LANES] - expected) > 2 * (double)FLT_EPSILON * expected)
                fail_msg("%s: e^%a is %a, expected %a", cpu_attention_kernels_at(v)->name, (double)x, (double)y[CPU_HEAD_LANES], expected);
        }
        float y[2 * CPU_HEAD_LANES] = {0};
        cpu_softmax s = {0};
        y[CPU_HEAD_LANES] = NAN; /* must not disappear */
        cpu_attention_kernels_at(v)->softmax_block(y, CPU_HEAD_LANES, 2, 1.0f, &s);
        assert_true(isnan(s.sum[0]));
    }
}

static void test_weighted_sum(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int heads = 1 + (int)(word(round, 9) % 17), count = (int)(word(round, 10) % MOST_KEYS);
        int64_t n = (int64_t)(word(round, 11) % 150), stride = n + (int64_t)(word(round, 12) % 5), out_stride = n + (int64_t)(round % 3);
        float *p = values_of(3 * round, (size_t)(count * heads)), *x = values_of(3 * round + 1, (size_t)(stride * count));
        float *expected = values_of(3 * round + 2, (size_t)(out_stride * heads));
        for (int h = 0; h < heads; h++)
            for (int64_t k = 0; k < n; k++)
                for (int j = 0; j < count; j++)
                    expected[h * out_stride + k] = fmaf(p[j * heads + h], x[j * stride + k], expected[h * out_stride + k]);
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            float *got = values_of(3 * round + 2, (size_t)(out_stride * heads));
            cpu_weighted_sum t = {.p = p, .p_vector = heads, .p_head = 1, .heads = heads, .v = x, .v_stride = stride, .n = n,
                                  .count = count, .out = got, .out_stride = out_stride};
            cpu_attention_kernels_at(v)->weighted_sum(&t);
            assert_memory_equal(got, expected, (size_t)(out_stride * heads) * sizeof(float));
            free(got);
        }
        free(p);
        free(x);
        free(expected);
    }
}

static float slow_index_score(const float *q, const float *weights, int heads, const float *key, int64_t n)
{
    float lane[8] = {0};
    for (int h = 0; h < heads; h++) {
        float dot = slow_chain(q + h * n, key, n);
        lane[h % 8] = fmaf(weights[h], dot > 0 ? dot : 0, lane[h % 8]);
    }
    for (int i = 0; i < 4; i++)
        lane[i] += lane[i + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

static void test_index_scores(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        int64_t n = 1 + (int64_t)(word(round, 13) % 150);
        int heads = 1 + (int)(word(round, 14) % MOST_HEADS), lanes = cpu_head_lanes(heads), count = (int)(word(round, 15) % MOST_KEYS);
        float *q = values_of(2 * round, (size_t)(n * heads)), *panel = panel_of(q, n, heads, n);
        float *keys = values_of(2 * round + 1, (size_t)(n * count)), weights[MOST_HEADS] = {0}, got[MOST_KEYS + 1];
        for (int h = 0; h < heads; h++)
            weights[h] = value_at(round, 1000 + (uint64_t)h);
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            got[count] = 77.0f;
            cpu_attention_kernels_at(v)->index_scores(panel, lanes, weights, keys, count, n, got);
            for (int j = 0; j < count; j++)
                if (got[j] != slow_index_score(q, weights, heads, keys + j * n, n))
                    fail_msg("%s: key %d of %d, %d heads, %lld values", cpu_attention_kernels_at(v)->name, j, count, heads, (long long)n);
            assert_true(got[count] == 77.0f);
        }
        free(q);
        free(panel);
        free(keys);
    }
}

/* A device with one layer of random weights and no checkpoint: more heads than a tile, sizes that no tile divides. */
enum { ROWS = 11, CONTEXT = 700 };

typedef struct lab {
    model model;
    layer_weights layer;
    device *device;
    forward *forward;
    uint8_t *pages;
    int32_t tables[2][CONTEXT / KV_PAGE_TOKENS + 1], positions[ROWS], sequences[ROWS], tokens[ROWS];
    const int32_t *table_list[2];
} lab;

/* Makes a device compute with one variant of the attention kernels, wherever it has the choice. */
static void use_variant(device *d, int index)
{
    error err = {0};
    static const char *const operations[] = {dispatch_absorb, dispatch_attend, dispatch_index};
    const cpu_attention_kernels *wanted = cpu_attention_kernels_at(index);
    assert_true(dispatch_resolve(d->dispatch, NULL, wanted->name, &err));
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(cpu_attention_variant(cpu_of(d), operations[i], cpu_layer(d, 0), 1), wanted);
}

static matrix f32_matrix(lab *l, uint64_t seed, int64_t rows, int64_t cols)
{
    float *v = arena_alloc(&l->model.memory, (size_t)(rows * cols), sizeof *v);
    for (int64_t i = 0; i < rows * cols; i++)
        v[i] = (float)random_uniform(seed, 1, (uint64_t)i) - 0.5f;
    return (matrix){format_of(FORMAT_F32), rows, cols, (const uint8_t *)v, NULL, 1.0f};
}

static void lab_weights(lab *l)
{
    const model_config *c = &l->model.config;
    layer_weights *w = &l->layer;
    w->full_index = true;
    w->q_a = f32_matrix(l, 10, c->q_lora_rank, c->hidden_size);
    w->q_b = f32_matrix(l, 11, (int64_t)c->heads * (c->nope_dim + c->rope_dim), c->q_lora_rank);
    w->kv_a = f32_matrix(l, 12, c->kv_lora_rank + c->rope_dim, c->hidden_size);
    w->kv_b = f32_matrix(l, 1, (int64_t)c->heads * (c->nope_dim + c->v_dim), c->kv_lora_rank);
    w->o = f32_matrix(l, 2, c->hidden_size, (int64_t)c->heads * c->v_dim);
    w->indexer.q_b = f32_matrix(l, 3, (int64_t)c->index_heads * c->index_dim, c->q_lora_rank);
    w->indexer.k = f32_matrix(l, 4, c->index_dim, c->hidden_size);
    w->indexer.head_weights = f32_matrix(l, 5, c->index_heads, c->hidden_size);
    w->indexer.k_norm = w->indexer.k_norm_bias = (const float *)(const void *)f32_matrix(l, 6, 1, c->index_dim).data;
    w->mlp.gate = w->mlp.up = f32_matrix(l, 13, c->dense_intermediate, c->hidden_size);
    w->mlp.down = f32_matrix(l, 14, c->hidden_size, c->dense_intermediate);
    l->model.lm_head = f32_matrix(l, 15, c->vocab_size, c->hidden_size);
    l->model.layers = w;
}

/* Rows 0 .. 3 belong to a sequence that just begins to need a selection, rows 4 .. 10 end another. */
static void lab_open(lab *l, kv_dtype kv)
{
    error err = {0};
    l->model.config = (model_config){
        .vocab_size = 16, .hidden_size = 48, .layers = 1, .heads = 20, .q_lora_rank = 24, .kv_lora_rank = 140, .nope_dim = 50,
        .rope_dim = 12, .v_dim = 10, .dense_intermediate = 16, .expert_intermediate = 16, .experts = 4, .experts_per_token = 2,
        .rope_theta = 1e4, .max_positions = CONTEXT, .index_heads = 21, .index_dim = 36, .index_topk = 70, .full_index = {true},
    };
    lab_weights(l);
    device_limits limits = {.kv = kv, .threads = 2, .max_rows = ROWS, .max_context = CONTEXT};
    l->device = cpu_device_create(&l->model, &limits, &err);
    l->forward = l->device ? forward_create(l->device, ROWS, 1, &err) : NULL;
    assert_non_null(l->forward);
    const kv_layout *k = &l->device->layout;
    int pages = CONTEXT / KV_PAGE_TOKENS + 1;
    l->pages = l->device->ops->alloc(l->device, 2 * (size_t)pages * k->page_bytes);
    for (int i = 0; i < pages; i++) {
        l->tables[0][i] = 2 * pages - 1 - 2 * i;
        l->tables[1][i] = 2 * i;
    }
    l->table_list[0] = l->tables[0];
    l->table_list[1] = l->tables[1];
    for (int i = 0; i < ROWS; i++) {
        l->positions[i] = i < 4 ? 68 + i : CONTEXT - ROWS + i;
        l->sequences[i] = i < 4 ? 1 : 0;
    }
}

static step lab_step(lab *l, int first, int rows)
{
    return (step){.rows = rows, .tokens = l->tokens, .positions = l->positions + first, .sequences = l->sequences + first,
                  .page_tables = l->table_list, .pages = l->pages};
}

static void lab_fill(lab *l)
{
    const kv_layout *k = &l->device->layout;
    step s = lab_step(l, 3, 2); /* a row of each sequence */
    float values[160];
    for (int i = 0; i < 2 * CONTEXT; i++) {
        for (int j = 0; j < 160; j++)
            values[j] = (float)random_uniform(7, (uint64_t)i, (uint64_t)j) - 0.5f;
        cpu_latent_store(k, values, cpu_entry(k, &s, i % 2, i / 2, k->latent_offset[0], k->latent_bytes));
        cpu_index_key_store(k, values, cpu_entry(k, &s, i % 2, i / 2, k->index_offset[0], k->index_bytes));
    }
}

static void lab_close(lab *l)
{
    forward_destroy(l->forward);
    l->device->ops->free(l->device, l->pages);
    l->device->ops->destroy(l->device);
    arena_free(&l->model.memory);
}

/* Runs rows first .. of the batch. Their inputs depend on the row alone. */
static activations *lab_run(lab *l, int first, int rows)
{
    const model_config *c = &l->model.config;
    activations *a = &l->forward->a;
    step s = lab_step(l, first, rows);
    for (int row = 0; row < rows; row++) {
        uint64_t seed = (uint64_t)(first + row);
        for (int i = 0; i < c->hidden_size; i++)
            a->h[row * c->hidden_size + i] = (float)random_uniform(8, seed, (uint64_t)i) - 0.5f;
        for (int i = 0; i < c->q_lora_rank; i++)
            a->q_latent[row * c->q_lora_rank + i] = (float)random_uniform(9, seed, (uint64_t)i) - 0.5f;
        for (int i = 0; i < c->heads * (c->nope_dim + c->rope_dim); i++)
            a->q[row * c->heads * (c->nope_dim + c->rope_dim) + i] = 8.0f * (float)random_uniform(10, seed, (uint64_t)i) - 4.0f;
        for (int i = 0; i < c->rope_dim; i++)
            a->rope[row * c->rope_dim + i] = i % 2 == 0;
    }
    cpu_index_select(l->device, &s, 0, a);
    cpu_attend(l->device, &s, 0, a);
    return a;
}

/* attended_latent of one row and head, in doubles, from the selected positions and q_absorbed. */
static void slow_attend(lab *l, int row, int head, double *out)
{
    const model_config *c = &l->model.config;
    const kv_layout *k = &l->device->layout;
    const activations *a = &l->forward->a;
    int rank = c->kv_lora_rank, qk = c->nope_dim + c->rope_dim, at = row * c->heads + head;
    step s = lab_step(l, 0, ROWS);
    double sum = 0;
    memset(out, 0, (size_t)rank * sizeof *out);
    for (int i = 0; i < a->selected_count[row]; i++) {
        float key[160];
        double score = 0;
        cpu_latent_load(k, cpu_entry(k, &s, row, a->selected[row * c->index_topk + i], k->latent_offset[0], k->latent_bytes), key);
        for (int d = 0; d < rank; d++)
            score += (double)key[d] * (double)a->q_absorbed[at * rank + d];
        for (int d = 0; d < c->rope_dim; d++)
            score += (double)key[rank + d] * (double)a->q[at * qk + c->nope_dim + d];
        double e = exp(score / sqrt(qk));
        sum += e;
        for (int d = 0; d < rank; d++)
            out[d] += e * (double)key[d];
    }
    for (int d = 0; d < rank; d++)
        out[d] /= sum;
}

/* Many index keys at once, over the ends of pages, against one at a time. */
static void check_index_keys(lab *l)
{
    enum { COUNT = 150, FIRST = 50 };
    const kv_layout *k = &l->device->layout;
    step s = lab_step(l, ROWS - 1, 1);
    float many[COUNT * 36], one[36];
    assert_int_equal(k->index_dim, 36);
    cpu_index_keys_load(k, &s, 0, 0, FIRST, COUNT, many);
    for (int i = 0; i < COUNT; i++) {
        cpu_index_keys_load(k, &s, 0, 0, FIRST + i, 1, one);
        assert_memory_equal(one, many + i * 36, sizeof one);
    }
}

/* A batch against its rows one by one, which split the heads otherwise, with every variant and type of cache: the same bits; and against
 * slow_attend. */
static void test_rows_alone(void **state)
{
    (void)state;
    for (kv_dtype kv = 0; kv < KV_DTYPE_COUNT; kv++) {
        lab l = {0};
        lab_open(&l, kv);
        lab_fill(&l);
        check_index_keys(&l);
        const model_config *c = &l.model.config;
        size_t topk = (size_t)c->index_topk, latents = (size_t)(c->heads * c->kv_lora_rank);
        activations *a = lab_run(&l, 0, ROWS);
        for (int row = 0; row < ROWS; row++)
            for (int head = 0; head < c->heads; head++) {
                double expected[160];
                slow_attend(&l, row, head, expected);
                const float *got = a->attended_latent + (size_t)row * latents + (size_t)(head * c->kv_lora_rank);
                for (int d = 0; d < c->kv_lora_rank; d++)
                    assert_true(fabs((double)got[d] - expected[d]) < 1e-5);
            }
        int32_t *selected = mem_copy(a->selected, ROWS * topk * sizeof *selected), counts[ROWS];
        float *attended = mem_copy(a->attended_latent, ROWS * latents * sizeof *attended);
        memcpy(counts, a->selected_count, sizeof counts);
        for (int v = 0; cpu_attention_kernels_at(v); v++) {
            use_variant(l.device, v);
            for (int row = 0; row < ROWS; row++) {
                a = lab_run(&l, row, 1);
                assert_int_equal(a->selected_count[0], counts[row]);
                assert_int_equal(counts[row], l.positions[row] < c->index_topk ? l.positions[row] + 1 : c->index_topk);
                assert_memory_equal(a->selected, selected + (size_t)row * topk, (size_t)counts[row] * sizeof *selected);
                assert_memory_equal(a->attended_latent, attended + (size_t)row * latents, latents * sizeof *attended);
            }
        }
        free(selected);
        free(attended);
        lab_close(&l);
    }
}

/* Logits of a prompt longer than index_topk: in the variant that was chosen and in all others, in chunks of other sizes. */
static void test_model(void **state)
{
    (void)state;
    enum { COUNT = 270 };
    int32_t ids[COUNT];
    for (int i = 0; i < COUNT; i++)
        ids[i] = (int32_t)(word(16, (uint64_t)i) % 4000);
    rig r = rig_open(NANO, KV_BF16, 2, 512);
    size_t bytes = COUNT * (size_t)r.model->config.vocab_size * sizeof(float);
    assert_ptr_equal(cpu_attention_variant(cpu_of(r.device), dispatch_attend, cpu_layer(r.device, 0), 1), cpu_attention_kernels_at(0));
    float *chosen = rig_all_logits(&r, ids, COUNT, 100);
    for (int v = 0; cpu_attention_kernels_at(v); v++) {
        use_variant(r.device, v);
        float *other = rig_all_logits(&r, ids, COUNT, v == 0 ? 13 : 77);
        assert_memory_equal(chosen, other, bytes);
        free(other);
    }
    free(chosen);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack),        cmocka_unit_test(test_scores),    cmocka_unit_test(test_add_codes),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_exponential), cmocka_unit_test(test_weighted_sum), cmocka_unit_test(test_index_scores),
        cmocka_unit_test(test_rows_alone),  cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
