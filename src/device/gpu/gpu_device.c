/* The GPU device: its memory, and the table of its operations. */
#include "device/gpu/gpu_device.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"

enum { SCORE_FLOATS = 1 << 26 }; /* 256 MB for the scores of the indexer, more where one row needs it */

void gpu_must(gpu_status s, const char *what)
{
    if (s == GPU_OK)
        return;
    log_warning("the GPU failed (%s): %s; the program ends, start it again", what, gpu_words(s));
    fflush(NULL);
    _Exit(ERROR_DEVICE);
}

static void *device_alloc(device *d, size_t bytes)
{
    gpu_device *g = gpu_of(d);
    void *memory = NULL;
    if (gpu_alloc(&memory, bytes > 0 ? bytes : 1) != GPU_OK) {
        (void)gpu_last_launch(); /* the refusal was an answer, not a failure of what follows */
        return NULL;
    }
    gpu_must(gpu_zero(memory, bytes, g->stream), "clearing memory");
    return memory;
}

static void device_free(device *d, void *memory)
{
    gpu_must(gpu_stream_wait(gpu_of(d)->stream), "waiting for the last step");
    gpu_free(memory);
}

static void device_read(device *d, void *host, const void *memory, size_t bytes)
{
    gpu_device *g = gpu_of(d);
    gpu_must(gpu_to_host(host, memory, bytes, g->stream), "reading results");
    gpu_must(gpu_stream_wait(g->stream), "computing a step");
}

static void device_write(device *d, void *memory, const void *host, size_t bytes)
{
    gpu_device *g = gpu_of(d);
    gpu_must(gpu_to_device(memory, host, bytes, g->stream), "writing memory");
    gpu_must(gpu_stream_wait(g->stream), "writing memory");
}

static void device_copy(device *d, void *to, const void *from, size_t bytes)
{
    gpu_must(gpu_on_device(to, from, bytes, gpu_of(d)->stream), "copying memory");
}

static void device_gather(device *d, void *to, const void *from, int count, const int32_t *rows, size_t bytes)
{
    gpu_device *g = gpu_of(d);
    gpu_send_list(g, count, rows);
    gpu_gather_args a = {.count = g->row_list, .list = g->row_list + 1, .from = from, .to = to, .words = (int32_t)(bytes / 4)};
    gpu_gather(&a, count, g->stream);
}

static void *device_alloc_host(device *d, size_t bytes)
{
    void *memory = NULL;
    (void)d;
    if (gpu_alloc_host(&memory, bytes) == GPU_OK)
        return memory;
    (void)gpu_last_launch();
    return NULL;
}

static void device_free_host(device *d, void *memory)
{
    gpu_must(gpu_stream_wait(gpu_of(d)->stream), "waiting for the last step");
    gpu_free_host(memory);
}

static size_t device_free_bytes(device *d)
{
    gpu_properties now;
    (void)d;
    gpu_must(gpu_use(0, &now), "asking for free memory");
    return now.free_bytes;
}

static void device_destroy(device *d)
{
    gpu_device *g = gpu_of(d);
    if (g->stream)
        (void)gpu_stream_wait(g->stream);
    gpu_step_destroy(g);
    for (int i = 0; i < g->scratch_count; i++)
        gpu_free(g->scratch[i]);
    gpu_weights_free(&g->weights);
    dispatch_free(&g->dispatch);
    gpu_stream_destroy(g->stream);
    free(g);
}

static const device_ops GPU_OPS = {
    .name = "gpu", .alloc = device_alloc, .free = device_free, .read = device_read, .write = device_write, .copy = device_copy,
    .gather = device_gather, .alloc_host = device_alloc_host, .free_host = device_free_host, .destroy = device_destroy,
    .free_bytes = device_free_bytes, .begin = gpu_begin, .end = gpu_end, .embed = gpu_op_embed,
    .attention_project = gpu_op_attention_project, .index_select = gpu_op_index_select, .attend = gpu_op_attend, .mlp = gpu_op_mlp,
    .finish = gpu_op_finish, .draft_embed = gpu_op_draft_embed, .logits = gpu_op_logits, .exercise = gpu_exercise,
};

/* Shapes that the kernels are not made for; each is far beyond, or unlike, any published model of this architecture. */
static bool check_shapes(const model_config *m, error *err)
{
    static const char unlike[] = "the GPU kernels need %s, found %d in config.json; use --device cpu";
    if (m->kv_lora_rank % 8 != 0 || m->kv_lora_rank > GPU_ATTEND_MOST_RANK)
        return error_set(err, ERROR_DEVICE, unlike, "kv_lora_rank a multiple of 8 and at most 1024", m->kv_lora_rank);
    if (m->rope_dim % 2 != 0 || m->rope_dim > 256)
        return error_set(err, ERROR_DEVICE, unlike, "qk_rope_head_dim even and at most 256", m->rope_dim);
    if (m->index_dim % 8 != 0 || (m->index_heads + 7) / 8 * 8 * (m->index_dim + 1) > 12 * 1024)
        return error_set(err, ERROR_DEVICE, unlike, "index_head_dim a multiple of 8 and 12288 values or fewer in all index heads",
                         m->index_dim);
    if (m->experts > GPU_ROUTE_MOST_EXPERTS)
        return error_set(err, ERROR_DEVICE, unlike, "n_routed_experts at most 1024", m->experts);
    return true;
}

static void *scratch(gpu_device *g, size_t bytes, bool *ok)
{
    void *memory = device_alloc(&g->base, bytes);
    assert((size_t)g->scratch_count < sizeof g->scratch / sizeof g->scratch[0]);
    g->scratch[g->scratch_count++] = memory;
    *ok = *ok && memory;
    return memory;
}

static bool alloc_scratch(gpu_device *g, error *err)
{
    const model_config *m = &g->base.model->config;
    size_t rows = (size_t)g->max_rows, hidden = (size_t)m->hidden_size, pairs = rows * (size_t)m->experts_per_token, f = sizeof(float);
    bool ok = true;
    int64_t score_rows = SCORE_FLOATS / g->max_context;
    g->score_rows = score_rows < 1 ? 1 : score_rows < g->max_rows ? (int)score_rows : g->max_rows;
    g->row_list = scratch(g, (rows + 1) * sizeof(int32_t), &ok);
    g->frequency = scratch(g, (size_t)m->rope_dim / 2 * f, &ok);
    g->draft_input = scratch(g, m->has_mtp ? rows * 2 * hidden * f : f, &ok);
    g->index_scores = scratch(g, (size_t)g->score_rows * (size_t)g->max_context * f, &ok);
    g->pair_rows = scratch(g, pairs * sizeof(int32_t), &ok);
    g->slots = scratch(g, pairs * sizeof(int32_t), &ok);
    g->tiles = scratch(g, pairs * sizeof(gpu_tile), &ok);
    g->tile_count = scratch(g, sizeof(int32_t), &ok);
    g->expert_counts = scratch(g, (size_t)m->experts * sizeof(int32_t), &ok);
    g->pair_out = scratch(g, pairs * hidden * f, &ok);
    g->shared_out = scratch(g, rows * hidden * f, &ok);
    return ok || error_set(err, ERROR_FIT, "no GPU memory for the working buffers of %d rows and %d positions beside the weights; use a "
                           "smaller --chunk or --context", g->max_rows, g->max_context);
}

/* inverse frequencies theta^(-2i/dim), every step rounded to f32 as in the reference. */
static void write_frequencies(gpu_device *g)
{
    const model_config *m = &g->base.model->config;
    size_t count = (size_t)m->rope_dim / 2;
    float *frequency = mem_alloc(count, sizeof *frequency);
    for (size_t i = 0; i < count; i++)
        frequency[i] = 1.0f / powf((float)m->rope_theta, (float)(2 * i) / (float)m->rope_dim);
    device_write(&g->base, g->frequency, frequency, count * sizeof *frequency);
    free(frequency);
}

static bool open_gpu(gpu_device *g, error *err)
{
    int count = 0;
    gpu_status s = gpu_devices(&count);
    if (s != GPU_OK || count == 0)
        return error_set(err, ERROR_DEVICE, "no GPU found (%s); use --device cpu, or check the driver with nvidia-smi",
                         s == GPU_OK ? "the driver lists none" : gpu_words(s));
    s = gpu_use(0, &g->properties);
    if (s == GPU_OK)
        s = gpu_stream_create(&g->stream);
    return s == GPU_OK || error_set(err, ERROR_DEVICE, "the first GPU cannot be used: %s", gpu_words(s));
}

device *gpu_device_create(const model *m, const device_limits *limits, error *err)
{
    gpu_device *g = mem_alloc(1, sizeof *g);
    g->base = (device){.ops = &GPU_OPS, .model = m, .layout = kv_layout_of(&m->config, limits->kv), .dispatch = &g->dispatch};
    g->exact = limits->exact;
    g->max_rows = limits->max_rows;
    g->max_context = limits->max_context;
    if (check_shapes(&m->config, err) && open_gpu(g, err) && gpu_dispatch_create(g, limits, err) &&
        gpu_weights_upload(m, g->properties.free_bytes, g->stream, &g->weights, err) && gpu_step_create(g, err) && alloc_scratch(g, err)) {
        write_frequencies(g);
        return &g->base;
    }
    device_destroy(&g->base);
    return NULL;
}
