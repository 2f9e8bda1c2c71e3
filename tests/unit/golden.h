/* What the tests against HF's reference outputs share: a model ready to run, and the tensors of a reference file.
 *
 * Programs whose main calls golden_main compute with the kernels that DRAWBRIDGE_TEST_KERNELS names, "all": with each level and variant
 * of this machine in turn. DRAWBRIDGE_TEST_MODEL is a smaller model for the tests that take any: plain C is slow. */
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

enum { RIG_ROWS = 256, KERNELS_MOST = 64 };

static const char *forced_kernels; /* what golden_main runs at the moment; NULL: free choice */

static inline const char *any_model(void)
{
    const char *given = getenv("DRAWBRIDGE_TEST_MODEL");
    return given ? given : SOURCE_DIR "/models/nano";
}

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

/* Whether a mode has the kernels that golden_main forces. */
static inline bool forced_exists(const model *m, device_limits limits)
{
    error err = {0};
    limits.kernels = forced_kernels;
    device *d = cpu_device_create(m, &limits, &err);
    if (d)
        d->ops->destroy(d);
    return d || err.code != ERROR_USAGE;
}

/* Skips the test when there is nothing to force in this mode. */
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
                            .exact = exact, .kernels = kernels ? kernels : forced_kernels};
    if (forced_kernels && !kernels && !forced_exists(r.model, limits)) {
        printf("  no \"%s\" %s --exact\n", forced_kernels, exact ? "with" : "without");
        model_close(r.model);
        skip();
    }
    r.device = RIG_DEVICE(r.model, &limits, &err);
    if (!r.device && err.code == ERROR_DEVICE) { /* a GPU that is not there */
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

/* Adds the names of the kernels that a mode has here, each once. */
static inline int add_kernel_names(const model *m, bool exact, const char **names, int count)
{
    error err = {0};
    device_limits limits = {.kv = KV_F32, .threads = 1, .max_rows = 1, .max_context = 64, .exact = exact};
    device *d = cpu_device_create(m, &limits, &err);
    const char *name;
    for (int i = 0; d && (name = dispatch_kernels_name(d->dispatch, i)); i++) {
        int known = 0;
        while (known < count && strcmp(names[known], name) != 0)
            known++;
        if (known == count && count < KERNELS_MOST && i != d->dispatch->level) /* of the highest level is what is chosen freely */
            names[count++] = name;
    }
    if (d)
        d->ops->destroy(d);
    return count;
}

enum { MODE_FAST = 1, MODE_EXACT = 2 };

/* All names of some modes that differ from the free choice; they are static. */
static inline int kernel_names(int modes, const char **names)
{
    error err = {0};
    model *m = model_open(SOURCE_DIR "/models/nano", &err);
    int count = m && (modes & MODE_FAST) ? add_kernel_names(m, false, names, 0) : 0;
    count = m && (modes & MODE_EXACT) ? add_kernel_names(m, true, names, count) : count;
    model_close(m);
    return count;
}

static inline int golden_run(const struct CMUnitTest *tests, size_t count, int modes, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const char *asked = getenv("DRAWBRIDGE_TEST_KERNELS"), *names[KERNELS_MOST];
    int failed = 0, ran = 0, known = asked ? kernel_names(modes, names) : 0;
    if (!asked)
        return _cmocka_run_group_tests("tests", tests, count, setup, teardown);
    for (int i = 0; i < known; i++) {
        if (strcmp(asked, "all") != 0 && strcmp(asked, names[i]) != 0)
            continue;
        forced_kernels = names[i];
        failed += _cmocka_run_group_tests(names[i], tests, count, setup, teardown);
        ran++;
    }
    if (ran == 0)
        fprintf(stderr, "DRAWBRIDGE_TEST_KERNELS=%s names no kernels that these tests could be run with here\n", asked);
    return failed != 0 || ran == 0;
}

/* cmocka_run_group_tests of tests that compute in some modes, with the kernels that the environment asks for. */
#define golden_main(tests, modes, setup, teardown) golden_run(tests, sizeof(tests) / sizeof(tests)[0], modes, setup, teardown)

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
