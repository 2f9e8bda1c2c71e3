/* What the tests against HF's reference outputs share: a model ready to run, and the tensors of a reference file. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

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
#include "engine/session.h"
#include "formats/safetensors.h"

enum { RIG_ROWS = 256 };

/* HF builds the q_a and kv_a norms with this eps, whatever config.json says; the references were made that way. */
#define HF_LATENT_EPS 1e-6f

/* The device under test: tests/gpu builds the same programs for others. */
#ifndef RIG_DEVICE
#define RIG_DEVICE cpu_device_create
#endif

typedef struct rig {
    model *model;
    device *device;
    forward *forward;
    kv_pages *pages;
    session *session;
} rig;

static inline rig rig_open_as(const char *directory, kv_dtype kv, int threads, int max_tokens, bool exact, const char *kernels)
{
    error err = {0};
    rig r = {0};
    r.model = model_open(directory, &err);
    if (!r.model)
        fail_msg("%s: %s", directory, err.text);
    r.model->config.latent_norm_eps = HF_LATENT_EPS;
    if (max_tokens > r.model->config.max_positions)
        max_tokens = r.model->config.max_positions;
    device_limits limits = {.kv = kv, .threads = threads, .max_rows = RIG_ROWS, .max_context = max_tokens,
                            .exact = exact, .kernels = kernels};
    r.device = RIG_DEVICE(r.model, &limits, &err);
    if (!r.device && err.code == ERROR_DEVICE && RIG_DEVICE != cpu_device_create) {
        printf("skipped: %s\n", err.text);
        exit(77);
    }
    if (!r.device)
        fail_msg("%s", err.text);
    r.forward = forward_create(r.device, RIG_ROWS, RIG_ROWS, &err);
    r.pages = kv_pages_create(r.device, 2 * max_tokens, &err);
    r.session = session_create(r.forward, r.pages, max_tokens, RIG_ROWS, &err);
    assert_non_null(r.session);
    return r;
}

/* As HF computes. */
static inline rig rig_open(const char *directory, kv_dtype kv, int threads, int max_tokens)
{
    return rig_open_as(directory, kv, threads, max_tokens, true, NULL);
}

static inline void rig_close(rig *r)
{
    session_destroy(r->session);
    assert_int_equal(r->pages->free_count, r->pages->count);
    kv_pages_destroy(r->pages);
    forward_destroy(r->forward);
    r->device->ops->destroy(r->device);
    model_close(r->model);
}

/* Feeds all tokens in chunks and gathers the logits of every position, [count][vocab]; the caller frees. */
static inline float *rig_all_logits(rig *r, const int32_t *ids, int count, int chunk)
{
    error err = {0};
    size_t vocab = (size_t)r->model->config.vocab_size;
    float *all = mem_alloc((size_t)count * vocab, sizeof *all);
    session_truncate(r->session, 0);
    for (int first = 0; first < count; first += chunk) {
        int n = count - first < chunk ? count - first : chunk;
        if (!session_feed(r->session, ids + first, n, &err))
            fail_msg("%s", err.text);
        memcpy(all + (size_t)first * vocab, session_step_logits(r->session, 0, n), (size_t)n * vocab * sizeof *all);
    }
    return all;
}

/* A tensor of a reference file, copied to aligned memory the caller frees. */
static inline void *golden_tensor(const checkpoint *c, const char *name, dtype type, const tensor **info)
{
    const tensor *t = checkpoint_find(c, name);
    if (info)
        *info = t;
    if (!t)
        return NULL;
    assert_int_equal(t->type, type);
    return mem_copy(t->data, t->bytes);
}

/* The reference run of one prompt. */
typedef struct golden {
    checkpoint *file;
    int32_t *ids;
    int count; /* tokens of the prompt */
} golden;

static inline golden golden_open(const char *set, const char *prompt)
{
    char path[512];
    error err = {0};
    snprintf(path, sizeof path, "%s/tests/fixtures/%s/%s.safetensors", SOURCE_DIR, set, prompt);
    golden g = {.file = checkpoint_open(path, &err)};
    if (!g.file)
        fail_msg("%s", err.text);
    const tensor *info = NULL;
    g.ids = golden_tensor(g.file, "ids", DTYPE_I32, &info);
    g.count = (int)info->shape[0];
    return g;
}

static inline void golden_close(golden *g)
{
    free(g->ids);
    checkpoint_close(g->file);
}

static inline int argmax(const float *v, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

static inline float largest_magnitude(const float *v, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmaxf(m, fabsf(v[i]));
    return m;
}

#endif
