/* The variants of the CPU device: every kernel that this CPU can run, from the tables of cpu_matmul.h and cpu_attention_kernels.h.
 * A new operation also needs its work in dispatch_visit and, for the tuner, a line in cpu_exercise. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "device/cpu/cpu.h"

/* The lowest first. */
#if defined(__x86_64__)
static const char *const levels[] = {"generic", "avx2", "avx512vnni"};
#elif defined(__aarch64__)
static const char *const levels[] = {"generic", "neon"};
#else
static const char *const levels[] = {"generic"};
#endif
enum { LEVELS = sizeof levels / sizeof levels[0], VARIANTS_MOST = (2 * CPU_INPUT_COUNT + 1) * CPU_MOST_MATMULS + 3 * LEVELS };

static int level_of(const char *name)
{
    int level = LEVELS - 1;
    while (level > 0 && strcmp(levels[level], name) != 0)
        level--;
    return level;
}

/* Whether a matrix kernel reads what the weights want multiplied. Exact ones, which decode all weights, are on exact devices only. */
static bool reads_format(const dispatch_variant *v, const dispatch_key *key)
{
    const cpu_matmul *kernel = v->kernel;
    return kernel->input == cpu_input_of(format_by_name(key->format), kernel->input == CPU_INPUT_EXACT);
}

static void add_variant(cpu_device *c, const char *operation, const char *name, const char *set, int from_rows, const void *kernel)
{
    dispatch_table *t = &c->dispatch;
    bool matrix_kernel = operation == dispatch_linear || operation == dispatch_experts;
    int level = level_of(set);
    assert(t->variant_count < VARIANTS_MOST);
    c->variants[t->variant_count++] = (dispatch_variant){operation, name, level, from_rows, matrix_kernel ? reads_format : NULL, kernel};
    t->level = level > t->level ? level : t->level;
}

static void add_variants(cpu_device *c)
{
    static const char *const matrix_work[] = {dispatch_linear, dispatch_experts};
    static const char *const attention_work[] = {dispatch_absorb, dispatch_attend, dispatch_index};
    const cpu_matmul *m;
    const cpu_attention_kernels *a;
    c->variants = arena_alloc(&c->memory, VARIANTS_MOST, sizeof *c->variants);
    c->dispatch.variants = c->variants;
    for (int input = 0; input < CPU_INPUT_COUNT; input++)
        for (int i = 0; (input == CPU_INPUT_EXACT) == c->exact && (m = cpu_matmul_at((cpu_input)input, NULL, i)); i++)
            for (int w = 0; w < 2; w++)
                add_variant(c, matrix_work[w], m->name, m->set, m->from_rows, m);
    for (int i = 0; (m = cpu_matmul_at(c->exact ? CPU_INPUT_EXACT : CPU_INPUT_F32, NULL, i)); i++) /* whatever the weights' format */
        add_variant(c, dispatch_value, m->name, m->set, m->from_rows, m);
    for (int i = 0; (a = cpu_attention_kernels_at(i)); i++)
        for (int w = 0; w < 3; w++)
            add_variant(c, attention_work[w], a->name, a->name, 1, a);
}

void cpu_model_name(text *out)
{
    enum { MOST = 1 << 24 };
    text bytes = {0};
    text_add_text(out, "");
    if (file_read("/proc/cpuinfo", MOST, &bytes, NULL)) {
        const char *line = strstr(bytes.data, "model name"), *value = line ? strchr(line, ':') : NULL;
        if (value)
            text_add(out, value + 1, strcspn(value + 1, "\n"));
        else if ((line = strstr(bytes.data, "CPU part")) && (value = strchr(line, ':')))
            text_add_format(out, "arm %.*s", (int)strcspn(value + 1, "\n"), value + 1);
    }
    text_free(&bytes);
}

static void describe(cpu_device *c)
{
    const dispatch_table *t = &c->dispatch;
    int threads = c->threads, level = t->level;
    for (int i = 0; i < LEVELS; i++)
        if (strcmp(t->forced, levels[i]) == 0)
            level = i;
    snprintf(c->base.description, sizeof c->base.description, "cpu, %d thread%s, %s kernels%s", threads, threads == 1 ? "" : "s",
             levels[level], c->exact ? ", exact" : "");
}

bool cpu_dispatch_create(cpu_device *c, const device_limits *limits, error *err)
{
    dispatch_table *t = &c->dispatch;
    text name = {0};
    char short_name[64];
    c->base.dispatch = t;
    t->levels = levels;
    t->level_count = LEVELS;
    add_variants(c);
    cpu_model_name(&name);
    dispatch_device_name(name.data, levels[t->level], limits->threads, short_name);
    snprintf(t->device_name, sizeof t->device_name, "%s%s", short_name, c->exact ? "-exact" : ""); /* another mode, other kernels */
    text_free(&name);
    dispatch_enumerate(t, c->base.model, limits->kv, limits->max_rows);
    if (!dispatch_resolve(t, limits->tuned, limits->kernels, err))
        return false;
    describe(c);
    return true;
}

/* ---- the kernels of work whose key is not that of a whole matrix ---- */

const void *cpu_attention_variant(const cpu_device *c, const char *operation, const layer_weights *w, int rows)
{
    const model_config *m = &c->base.model->config;
    const dispatch_table *t = &c->dispatch;
    if (operation == dispatch_absorb)
        return dispatch_kernel(t, operation, w->kv_b.format->name, m->kv_lora_rank, m->nope_dim, rows);
    if (operation == dispatch_value)
        return dispatch_kernel(t, operation, w->kv_b.format->name, m->v_dim, m->kv_lora_rank, rows);
    const char *cache = kv_dtype_name(c->base.layout.dtype);
    if (operation == dispatch_index)
        return dispatch_kernel(t, operation, cache, m->index_heads, m->index_dim, rows);
    return dispatch_kernel(t, operation, cache, m->heads, m->kv_lora_rank + m->rope_dim, rows);
}

/* ---- the tuner's runs ---- */

/* Some experts, or one MLP, with all rows each. Their act lie one behind the other. */
static void exercise_mlp(cpu_device *c, const device_trial *t)
{
    float *act = t->a->mlp_act;
    for (int i = 0; i < t->count; i++) {
        const mlp_weights *w = t->works[i].mlp;
        c->expert_jobs[i] = (cpu_expert_job){.w = w, .count = t->rows, .act = act};
        act += (int64_t)t->rows * w->gate.rows;
    }
    if (t->works[0].w == &t->works[0].mlp->down)
        cpu_down(c, t->a, c->expert_jobs, t->count, t->rows);
    else
        cpu_gate_up(c, t->a, c->expert_jobs, t->count, t->rows);
}

void cpu_exercise(device *d, const device_trial *t)
{
    cpu_device *c = cpu_of(d);
    const dispatch_work *work = &t->works[0];
    const char *operation = work->key.operation;
    if (operation == dispatch_linear)
        cpu_project(c, work->w, t->rows, t->in, t->out);
    else if (operation == dispatch_experts)
        exercise_mlp(c, t);
    else if (operation == dispatch_index)
        cpu_index_select(d, t->s, work->layer, t->a);
    else
        cpu_attend(d, t->s, work->layer, t->a); /* absorb, attend and value are parts of one call */
}
