/* The variants of the CPU device: one row each. A new variant is a new row; a new operation also needs its work in dispatch_visit
 * and, for the tuner, a line in cpu_exercise. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "device/cpu/cpu.h"

enum { LEVEL_GENERIC, LEVEL_AVX2, LEVELS };
static const char *const levels[LEVELS] = {"generic", "avx2"};

/* Those of attention may need more than their level says. */
static bool runs_here(const dispatch_variant *v, const dispatch_key *key)
{
    (void)key;
    int i = 0;
    while (cpu_attention_kernels_at(i) && cpu_attention_kernels_at(i) != v->kernel)
        i++;
    return cpu_attention_kernels_at(i) != NULL;
}

/* Every operation with the inner loops of one level. */
#define ALL_OPERATIONS(name, level, kernels, attention) \
    {dispatch_linear, name, level, 1, NULL, kernels}, {dispatch_experts, name, level, 1, NULL, kernels}, \
    {dispatch_absorb, name, level, 1, runs_here, attention}, {dispatch_value, name, level, 1, NULL, kernels}, \
    {dispatch_attend, name, level, 1, runs_here, attention}, {dispatch_index, name, level, 1, runs_here, attention}

static const dispatch_variant variants[] = {
#if defined(__x86_64__)
    ALL_OPERATIONS("avx2", LEVEL_AVX2, &cpu_kernels_avx2, &cpu_attention_kernels_avx2),
#endif
    ALL_OPERATIONS("generic", LEVEL_GENERIC, &cpu_kernels_generic, &cpu_attention_kernels_generic),
};

static int level_of(const char *name)
{
    int level = LEVELS - 1;
    while (level > 0 && strcmp(levels[level], name) != 0)
        level--;
    return level;
}

/* What the system calls this processor; on Arm it has only numbers. */
static void cpu_model(text *out)
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
    for (int i = 0; cpu_kernels_at(i); i++)
        if (strcmp(cpu_kernels_at(i)->name, levels[level]) == 0)
            c->kernels = cpu_kernels_at(i);
    snprintf(c->base.description, sizeof c->base.description, "cpu, %d thread%s, %s kernels", threads, threads == 1 ? "" : "s",
             levels[level]);
}

bool cpu_dispatch_create(cpu_device *c, const device_limits *limits, error *err)
{
    dispatch_table *t = &c->dispatch;
    text name = {0};
    c->base.dispatch = t;
    t->variants = variants;
    t->variant_count = sizeof variants / sizeof *variants;
    t->levels = levels;
    t->level_count = LEVELS;
    t->level = level_of(cpu_kernels_at(0)->name);
    cpu_model(&name);
    dispatch_device_name(name.data, levels[t->level], limits->threads, t->device_name);
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
        cpu_gate_up(c, t->a, c->expert_jobs, t->count);
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
