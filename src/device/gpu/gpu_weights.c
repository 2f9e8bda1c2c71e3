#include "device/gpu/gpu_weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "model/kv_layout.h"

_Static_assert((int)GPU_F32 == (int)FORMAT_F32 && (int)GPU_BF16 == (int)FORMAT_BF16 && (int)GPU_FP8_BLOCK == (int)FORMAT_FP8_BLOCK &&
               (int)GPU_MXFP4 == (int)FORMAT_MXFP4 && (int)GPU_NVFP4 == (int)FORMAT_NVFP4 &&
               (int)GPU_FP8_CHANNEL == (int)FORMAT_FP8_CHANNEL && (int)GPU_FORMATS == (int)FORMAT_COUNT, "kernels know all formats");
_Static_assert((int)GPU_KV_F32 == (int)KV_F32 && (int)GPU_KV_BF16 == (int)KV_BF16 && (int)GPU_KV_FP8 == (int)KV_FP8, "and all caches");
_Static_assert((int)GPU_PAGE_TOKENS == (int)KV_PAGE_TOKENS && (int)GPU_KV_GROUP == (int)KV_SCALE_GROUP, "and the pages");

enum { ALIGNMENT = 256, ROW_ALIGNMENT = 32, STAGING_BYTES = 8 << 20, STAGINGS = 2 };

/* One walk over the weights finds their size (base NULL), a second one copies them: memory that the host fills while what it filled
 * before is on its way. */
typedef struct upload {
    uint8_t *base;      /* device memory */
    size_t used;        /* bytes given out */
    gpu_stream stream;
    uint8_t *staging[STAGINGS];
    gpu_event sent[STAGINGS];
    int turn;
    progress *progress;
    gpu_status status;  /* the first failure */
} upload;

static void keep(upload *u, gpu_status s)
{
    if (u->status == GPU_OK)
        u->status = s;
}

/* count rows of `bytes` each to rows of `stride` each, with zeros between; at most STAGING_BYTES. */
static void send(upload *u, uint8_t *to, const uint8_t *from, int64_t count, size_t bytes, size_t stride)
{
    uint8_t *staging = u->staging[u->turn];
    keep(u, gpu_event_wait(u->sent[u->turn]));
    if (bytes == stride) {
        memcpy(staging, from, (size_t)count * bytes);
    } else {
        for (int64_t i = 0; i < count; i++) {
            memcpy(staging + (size_t)i * stride, from + (size_t)i * bytes, bytes);
            memset(staging + (size_t)i * stride + bytes, 0, stride - bytes);
        }
    }
    keep(u, gpu_to_device(to, staging, (size_t)count * stride, u->stream));
    keep(u, gpu_event_record(u->sent[u->turn], u->stream));
    u->turn = (u->turn + 1) % STAGINGS;
}

/* Device memory for rows of `stride` bytes, filled from rows of `bytes`. A row is no longer than STAGING_BYTES. */
static const uint8_t *put_rows(upload *u, const void *from, int64_t rows, size_t bytes, size_t stride)
{
    uint8_t *to = u->base ? u->base + u->used : NULL;
    int64_t at_once = stride > 0 ? (int64_t)(STAGING_BYTES / stride) : rows;
    for (int64_t i = 0, count; to && u->status == GPU_OK && i < rows; i += count) {
        count = rows - i < at_once ? rows - i : at_once;
        send(u, to + (size_t)i * stride, (const uint8_t *)from + (size_t)i * bytes, count, bytes, stride);
        progress_update(u->progress, (double)(u->used + (size_t)(i + count) * stride) * 1e-6);
    }
    u->used += ((size_t)rows * stride + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return to;
}

/* Bytes without rows. */
static const void *put_bytes(upload *u, const void *from, size_t bytes)
{
    enum { PIECE = 4096 };
    size_t whole = bytes / PIECE, rest = bytes % PIECE;
    const uint8_t *to = u->base ? u->base + u->used : NULL;
    size_t before = u->used;
    put_rows(u, from, (int64_t)whole, PIECE, PIECE);
    if (rest > 0) {
        u->used = before + whole * PIECE;
        put_rows(u, (const uint8_t *)from + whole * PIECE, 1, rest, rest);
    }
    return to;
}

static const float *put_floats(upload *u, const float *from, int count)
{
    return put_bytes(u, from, (size_t)count * sizeof *from);
}

static gpu_matrix put_matrix(upload *u, const matrix *m)
{
    size_t bytes = format_row_bytes(m->format, m->cols), stride = (bytes + ROW_ALIGNMENT - 1) / ROW_ALIGNMENT * ROW_ALIGNMENT;
    uint64_t scale_bytes = 0;
    format_scale_bytes(m->format, m->rows, m->cols, &scale_bytes);
    gpu_matrix out = {.scale = m->scale, .format = (int32_t)m->format->id, .rows = (int32_t)m->rows, .cols = (int32_t)m->cols,
                      .row_bytes = (int64_t)stride};
    out.data = put_rows(u, m->data, m->rows, bytes, stride);
    out.scales = scale_bytes > 0 ? put_bytes(u, m->scales, (size_t)scale_bytes) : NULL;
    return out;
}

/* Some MLPs, and their descriptions as an array in device memory. */
static const gpu_mlp *put_mlps(upload *u, const mlp_weights *w, int count)
{
    gpu_mlp *list = mem_alloc((size_t)count, sizeof *list);
    for (int i = 0; i < count; i++)
        list[i] = (gpu_mlp){put_matrix(u, &w[i].gate), put_matrix(u, &w[i].up), put_matrix(u, &w[i].down)};
    const gpu_mlp *out = put_bytes(u, list, (size_t)count * sizeof *list);
    free(list);
    return out;
}

static void put_experts(upload *u, const model_config *c, const layer_weights *w, gpu_layer *out)
{
    out->router = put_matrix(u, &w->router);
    out->router_bias = put_floats(u, w->router_bias, c->experts);
    out->experts = put_mlps(u, w->experts, c->experts);
    if (w->shared.gate.format)
        out->shared = put_mlps(u, &w->shared, 1);
}

static void put_indexer(upload *u, const model_config *c, const indexer_weights *w, gpu_layer *out)
{
    out->index_q_b = put_matrix(u, &w->q_b);
    out->index_k = put_matrix(u, &w->k);
    out->index_weights = put_matrix(u, &w->head_weights);
    out->index_k_norm = put_floats(u, w->k_norm, c->index_dim);
    out->index_k_norm_bias = put_floats(u, w->k_norm_bias, c->index_dim);
}

static void put_layer(upload *u, const model_config *c, const layer_weights *w, gpu_layer *out)
{
    out->input_norm = put_floats(u, w->input_norm, c->hidden_size);
    out->post_attention_norm = put_floats(u, w->post_attention_norm, c->hidden_size);
    out->q_a_norm = put_floats(u, w->q_a_norm, c->q_lora_rank);
    out->kv_a_norm = put_floats(u, w->kv_a_norm, c->kv_lora_rank);
    out->q_a = put_matrix(u, &w->q_a);
    out->q_b = put_matrix(u, &w->q_b);
    out->kv_a = put_matrix(u, &w->kv_a);
    out->kv_b = put_matrix(u, &w->kv_b);
    out->o = put_matrix(u, &w->o);
    if (w->full_index)
        put_indexer(u, c, &w->indexer, out);
    if (w->sparse)
        put_experts(u, c, w, out);
    else
        out->mlp = put_mlps(u, &w->mlp, 1);
}

static void put_model(upload *u, const model *m, gpu_weights *out)
{
    const model_config *c = &m->config;
    out->embed = put_matrix(u, &m->embed);
    out->lm_head = m->lm_head.data == m->embed.data ? out->embed : put_matrix(u, &m->lm_head);
    out->final_norm = put_floats(u, m->final_norm, c->hidden_size);
    for (int i = 0; i < c->layers; i++)
        put_layer(u, c, &m->layers[i], &out->layers[i]);
    if (!c->has_mtp)
        return;
    put_layer(u, c, &m->mtp.layer, &out->layers[c->layers]);
    out->project = put_matrix(u, &m->mtp.project);
    out->embed_norm = put_floats(u, m->mtp.embed_norm, c->hidden_size);
    out->hidden_norm = put_floats(u, m->mtp.hidden_norm, c->hidden_size);
    out->head_norm = put_floats(u, m->mtp.head_norm, c->hidden_size);
}

static void copy_model(upload *u, const model *m, gpu_weights *out)
{
    for (int i = 0; i < STAGINGS; i++) {
        keep(u, gpu_alloc_host((void **)&u->staging[i], STAGING_BYTES));
        keep(u, gpu_event_create(&u->sent[i]));
    }
    u->progress = progress_start("copying weights to the GPU", "MB", (double)out->bytes * 1e-6);
    if (u->status == GPU_OK)
        put_model(u, m, out);
    keep(u, gpu_stream_wait(u->stream));
    progress_finish(u->progress);
    for (int i = 0; i < STAGINGS; i++) {
        gpu_free_host(u->staging[i]);
        gpu_event_destroy(u->sent[i]);
    }
}

bool gpu_weights_upload(const model *m, size_t free_bytes, gpu_stream s, gpu_weights *out, error *err)
{
    upload measure = {.status = GPU_OK}, copy = {.stream = s, .status = GPU_OK};
    *out = (gpu_weights){.layers = mem_alloc((size_t)m->config.layers + 1, sizeof *out->layers)};
    put_model(&measure, m, out);
    out->bytes = measure.used;
    if (out->bytes > free_bytes)
        return error_set(err, ERROR_FIT, "the weights take %zu MB of GPU memory, %zu MB are free; use a smaller model or number format",
                         out->bytes >> 20, free_bytes >> 20);
    keep(&copy, gpu_alloc((void **)&copy.base, out->bytes));
    out->memory = copy.base;
    if (copy.status == GPU_OK)
        copy_model(&copy, m, out);
    return copy.status == GPU_OK || error_set(err, ERROR_DEVICE, "copying %zu MB of weights to the GPU failed: %s", out->bytes >> 20,
                                              gpu_words(copy.status));
}

void gpu_weights_free(gpu_weights *w)
{
    gpu_free(w->memory);
    free(w->layers);
}
