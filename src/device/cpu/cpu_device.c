/* The CPU device: its memory, and the table of its operations. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu.h"

enum { INDEX_SCORE_FLOATS = 1 << 20 };

const layer_weights *cpu_layer(const device *d, int layer)
{
    const model *m = d->model;
    return layer == m->config.layers ? &m->mtp.layer : &m->layers[layer];
}

static void *cpu_alloc(device *d, size_t bytes)
{
    (void)d;
    return mem_try_alloc_lazy(bytes);
}

static void cpu_free(device *d, void *memory)
{
    (void)d;
    mem_free_lazy(memory);
}

static void cpu_read(device *d, void *host, const void *memory, size_t bytes)
{
    (void)d;
    memcpy(host, memory, bytes);
}

/* host to device and device to device are the same here */
static void cpu_write(device *d, void *memory, const void *host, size_t bytes)
{
    (void)d;
    memcpy(memory, host, bytes);
}

static void cpu_gather(device *d, void *to, const void *from, int count, const int32_t *rows, size_t bytes)
{
    (void)d;
    for (int i = 0; i < count; i++)
        memcpy((char *)to + (size_t)i * bytes, (const char *)from + (size_t)rows[i] * bytes, bytes);
}

static void cpu_destroy(device *d)
{
    cpu_device *c = cpu_of(d);
    pool_destroy(c->workers);
    for (int i = 0; i < c->threads; i++)
        mem_free_lazy(c->scratch[i]);
    mem_free_lazy(c->index_scores);
    mem_free_lazy(c->draft_input);
    mem_free_lazy(c->q8);
    mem_free_lazy(c->packed);
    dispatch_free(&c->dispatch);
    arena_free(&c->memory);
    free(c);
}

/* Nothing is recorded here: operations are calls. */
static bool cpu_begin(device *d, const step *s, device_program program, const float *hidden_in, activations *a)
{
    (void)d, (void)s, (void)program, (void)hidden_in, (void)a;
    return false;
}

static void cpu_end(device *d)
{
    (void)d;
}

typedef struct embed_task {
    cpu_device *c;
    const step *s;
    const float *hidden_in; /* NULL in the trunk */
    activations *a;
} embed_task;

/* cos and sin of position x frequency, the product rounded to f32 as the reference does. */
static void rope_row(const embed_task *t, int row)
{
    int rope_dim = t->c->base.model->config.rope_dim;
    float *rope = t->a->rope + (size_t)row * (size_t)rope_dim;
    for (int i = 0; i < rope_dim / 2; i++) {
        float angle = (float)t->s->positions[row] * t->c->rope_frequency[i];
        rope[2 * i] = cosf(angle);
        rope[2 * i + 1] = sinf(angle);
    }
}

static void embed_row(void *context, int row, int worker)
{
    const embed_task *t = context;
    const model *m = t->c->base.model;
    (void)worker;
    rope_row(t, row);
    matrix_row(&m->embed, t->s->tokens[row], t->a->x + (size_t)row * (size_t)m->config.hidden_size);
}

void cpu_embed(device *d, const step *s, activations *a)
{
    embed_task t = {cpu_of(d), s, NULL, a};
    pool_run(t.c->workers, s->rows, embed_row, &t);
}

static void draft_embed_row(void *context, int row, int worker)
{
    const embed_task *t = context;
    const model *m = t->c->base.model;
    size_t hidden = (size_t)m->config.hidden_size;
    float *in = t->c->draft_input + (size_t)row * 2 * hidden;
    (void)worker;
    rope_row(t, row);
    matrix_row(&m->embed, t->s->tokens[row], in);
    cpu_rms_norm(in, m->mtp.embed_norm, m->config.hidden_size, m->config.norm_eps, in);
    cpu_rms_norm(t->hidden_in + (size_t)row * hidden, m->mtp.hidden_norm, m->config.hidden_size, m->config.norm_eps, in + hidden);
}

void cpu_draft_embed(device *d, const step *s, const float *hidden_in, activations *a)
{
    embed_task t = {cpu_of(d), s, hidden_in, a};
    pool_run(t.c->workers, s->rows, draft_embed_row, &t);
    cpu_project(t.c, &d->model->mtp.project, s->rows, t.c->draft_input, a->x);
}

static void cpu_finish(device *d, const step *s, bool draft, activations *a)
{
    const model *m = d->model;
    cpu_rms_norm_rows(cpu_of(d), a->x, s->rows, m->config.hidden_size, draft ? m->mtp.head_norm : m->final_norm, m->config.norm_eps,
                      a->hidden);
}

static void cpu_logits(device *d, const float *hidden, int count, const int32_t *rows, activations *a)
{
    const model *m = d->model;
    cpu_linear_job job = {.w = &m->lm_head, .x = {hidden, (size_t)m->config.hidden_size, rows, count}, .out = a->logits,
                          .out_stride = (size_t)m->config.vocab_size};
    cpu_linear(cpu_of(d), &job, 1);
}

static const device_ops CPU_OPS = {
    .name = "cpu", .alloc = cpu_alloc, .free = cpu_free, .read = cpu_read, .write = cpu_write, .copy = cpu_write, .gather = cpu_gather,
    .alloc_host = cpu_alloc, .free_host = cpu_free, .destroy = cpu_destroy, .begin = cpu_begin, .end = cpu_end,
    .embed = cpu_embed, .attention_project = cpu_attention_project, .index_select = cpu_index_select, .attend = cpu_attend,
    .mlp = cpu_mlp, .finish = cpu_finish, .draft_embed = cpu_draft_embed, .logits = cpu_logits, .exercise = cpu_exercise,
};

static size_t largest(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t shared_width(const model_config *m)
{
    return (size_t)m->expert_intermediate * (size_t)(m->shared_experts > 1 ? m->shared_experts : 1);
}

/* The widest input of a projection. */
static size_t widest_input(const model_config *m)
{
    size_t wide = largest((size_t)m->dense_intermediate, shared_width(m));
    return largest(largest(2 * (size_t)m->hidden_size, wide), largest((size_t)m->q_lora_rank, (size_t)(m->heads * m->v_dim)));
}

/* The most that any operation's private memory needs. */
static size_t scratch_floats(const model_config *m, int max_rows, size_t kernel_floats)
{
    size_t results = kernel_floats + 2 * (size_t)max_rows * CPU_TASK_COLUMNS;
    size_t entry = (size_t)(m->kv_lora_rank + m->rope_dim), topk = (size_t)m->index_topk, index_dim = (size_t)m->index_dim;
    size_t attend = (CPU_KEY_BLOCK + CPU_HEAD_GROUP) * entry + CPU_HEAD_GROUP * CPU_KEY_BLOCK; /* absorb and value need less */
    size_t index = CPU_INDEX_ROWS * (index_dim + 1) * (size_t)cpu_head_lanes(m->index_heads) + CPU_KEY_BLOCK * index_dim;
    size_t route = (size_t)m->experts + 2 * (size_t)m->expert_groups;
    return largest(largest(results, attend), largest(route, largest(index, 2 * topk)));
}

/* Rows in 8 bits: two inputs of a layer, and the activations of its experts. */
static void size_q8(cpu_device *c, int max_rows)
{
    const model_config *m = &c->base.model->config;
    size_t rows = (size_t)max_rows, second = largest((size_t)m->hidden_size, (size_t)m->q_lora_rank);
    size_t experts = (size_t)m->experts_per_token * cpu_q8_row_bytes(m->expert_intermediate) + cpu_q8_row_bytes((int64_t)shared_width(m));
    c->q8_act_offset = rows * (cpu_q8_row_bytes((int64_t)widest_input(m)) + cpu_q8_row_bytes((int64_t)second));
    c->q8_bytes = c->q8_act_offset + rows * largest(experts, cpu_q8_row_bytes(m->dense_intermediate));
}

/* inverse frequencies theta^(-2i/dim), every step rounded to f32 as in the reference. */
static void fill_rope_frequencies(const model_config *m, float *frequency)
{
    for (int i = 0; i < m->rope_dim / 2; i++)
        frequency[i] = 1.0f / powf((float)m->rope_theta, (float)(2 * i) / (float)m->rope_dim);
}

/* Memory whose size follows from the model and the limits: it takes physical memory only where it is used. */
static bool alloc_private_memory(cpu_device *c, const device_limits *limits, error *err)
{
    const model_config *m = &c->base.model->config;
    c->kernel_floats = (cpu_matmul_scratch_bytes((int64_t)widest_input(m)) + 63) / 64 * 16;
    c->scratch_floats = scratch_floats(m, limits->max_rows, c->kernel_floats);
    size_q8(c, limits->max_rows);
    c->q8 = mem_try_alloc_lazy(c->q8_bytes);
    c->packed_floats = 2 * cpu_f32_packed_bytes(limits->max_rows, (int64_t)widest_input(m)) / sizeof(float);
    c->packed = mem_try_alloc_lazy(c->packed_floats * sizeof(float));
    c->index_score_floats = largest(INDEX_SCORE_FLOATS, (size_t)limits->max_context);
    c->index_scores = mem_try_alloc_lazy(c->index_score_floats * sizeof(float));
    c->draft_input = mem_try_alloc_lazy((size_t)limits->max_rows * 2 * (size_t)m->hidden_size * sizeof(float));
    bool ok = c->index_scores && c->draft_input && c->q8 && c->packed;
    for (int i = 0; i < limits->threads; i++) {
        c->scratch[i] = mem_try_alloc_lazy(c->scratch_floats * sizeof(float));
        ok = ok && c->scratch[i];
    }
    return ok || error_set(err, ERROR_FIT, "no memory for the working buffers of %d threads (%zu MB each)", limits->threads,
                           c->scratch_floats * sizeof(float) >> 20);
}

device *cpu_device_create(const model *m, const device_limits *limits, error *err)
{
    cpu_device *c = mem_alloc(1, sizeof *c);
    const model_config *config = &m->config;
    size_t pairs = (size_t)limits->max_rows * (size_t)config->experts_per_token;
    c->base = (device){.ops = &CPU_OPS, .model = m, .layout = kv_layout_of(config, limits->kv)};
    c->exact = limits->exact;
    c->max_rows = limits->max_rows;
    c->threads = limits->threads;
    c->workers = pool_create(limits->threads, err);
    c->scratch = arena_alloc(&c->memory, (size_t)limits->threads, sizeof *c->scratch);
    c->rope_frequency = arena_alloc(&c->memory, (size_t)config->rope_dim / 2, sizeof(float));
    fill_rope_frequencies(config, c->rope_frequency);
    c->expert_jobs = arena_alloc(&c->memory, (size_t)config->experts + 1, sizeof *c->expert_jobs);
    c->expert_next = arena_alloc(&c->memory, (size_t)config->experts + 1, sizeof *c->expert_next);
    c->expert_rows = arena_alloc(&c->memory, pairs, sizeof *c->expert_rows);
    c->expert_weights = arena_alloc(&c->memory, pairs, sizeof *c->expert_weights);
    if (c->workers && checkpoint_place(m->checkpoint, c->workers, err) && cpu_dispatch_create(c, limits, err) &&
        alloc_private_memory(c, limits, err))
        return &c->base;
    cpu_destroy(&c->base);
    return NULL;
}
