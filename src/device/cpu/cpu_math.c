/* Dot products, norms, rotation and projections: what the operations are made of. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/sanitize.h"
#include "device/cpu/cpu.h"

void cpu_dots(const cpu_kernels *k, const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y)
{
    for (int i = 0; i < columns; i++)
        touch_range(w + i * w_stride, (size_t)n * sizeof *w);
    for (int i = 0; i < rows; i++)
        touch_range(x[i], (size_t)n * sizeof *w);
    k->dots(w, w_stride, columns, x, rows, n, y);
}

void cpu_add_scaled(const cpu_kernels *k, float *out, const float *scales, const float *x, int64_t x_stride, int count, int64_t n)
{
    touch_range(out, (size_t)n * sizeof *out);
    for (int i = 0; i < count; i++)
        touch_range(x + i * x_stride, (size_t)n * sizeof *x);
    k->add_scaled(out, scales, x, x_stride, count, n);
}

static float sum_of_squares(const float *x, int64_t n)
{
    float sum;
    cpu_kernels_generic.dots(x, 0, 1, &x, 1, n, &sum);
    return sum;
}

void cpu_rms_norm(const float *x, const float *weight, int64_t n, float eps, float *out)
{
    float scale = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = weight[i] * (x[i] * scale);
}

/* Values that one worker normalizes in less time (8 us) than it takes to call the others. */
enum { NORM_ALONE = 1 << 15 };

typedef struct norm_rows {
    const float *x, *weight;
    int64_t n;
    float eps, *out;
} norm_rows;

static void norm_row(void *context, int row, int worker)
{
    const norm_rows *t = context;
    (void)worker;
    cpu_rms_norm(t->x + row * t->n, t->weight, t->n, t->eps, t->out + row * t->n);
}

void cpu_rms_norm_rows(cpu_device *c, const float *x, int rows, int64_t n, const float *weight, float eps, float *out)
{
    norm_rows t = {x, weight, n, eps, out};
    if (rows * n > NORM_ALONE) {
        pool_run(c->workers, rows, norm_row, &t);
        return;
    }
    for (int row = 0; row < rows; row++)
        norm_row(&t, row, 0);
}

void cpu_layer_norm(const float *x, const float *weight, const float *bias, int64_t n, float eps, float *out)
{
    float sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    float mean = sum / (float)n;
    for (int64_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(squares / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void cpu_rotate(float *v, const float *rope, int rope_dim)
{
    for (int i = 0; i < rope_dim; i += 2) {
        float a = v[i], b = v[i + 1], cosine = rope[i], sine = rope[i + 1];
        v[i] = a * cosine - b * sine;
        v[i + 1] = b * cosine + a * sine;
    }
}

/* Many rows are turned around for each task of f32 products (cpu_f32_panel.h): the wider it is, the less that costs. */
int cpu_task_columns(const matrix *w, int rows, int threads)
{
    enum { TASK_BYTES = 1 << 16, TASKS_PER_THREAD = 6, MANY_ROWS = 32 };
    int64_t columns = TASK_BYTES / (int64_t)format_row_bytes(w->format, w->cols), share = w->rows / (TASKS_PER_THREAD * threads);
    if (rows >= MANY_ROWS)
        columns = w->format->bits == 4 ? CPU_PANEL_COLUMNS : CPU_TASK_COLUMNS;
    columns = columns < CPU_PANEL_COLUMNS ? CPU_PANEL_COLUMNS : columns;
    columns = columns > CPU_TASK_COLUMNS ? CPU_TASK_COLUMNS : columns;
    columns = columns > share ? share : columns;
    columns = columns < 1 ? 1 : columns;
    return (int)(columns + CPU_PANEL_COLUMNS - 1) / CPU_PANEL_COLUMNS * CPU_PANEL_COLUMNS;
}

float *cpu_task_scratch(cpu_device *c, int worker)
{
    return c->scratch[worker] + c->kernel_floats;
}

void cpu_matmul_run(cpu_device *c, const cpu_matmul *kernel, const matrix *w, int64_t first, int columns, const cpu_inputs *x,
                    const int32_t *rows, int count, float *y, size_t y_stride, int worker)
{
    cpu_matmul_work k = {.w = w, .first = first, .columns = columns, .x = x->x, .x_stride = x->stride * sizeof(float), .x_rows = rows,
                         .rows = count, .y = y, .y_stride = y_stride, .scratch = c->scratch[worker], .packed = x->packed};
    if (kernel->input == CPU_INPUT_Q8) {
        k.x = x->q8;
        k.x_stride = x->q8_stride;
    }
    kernel->run(&k);
}

typedef struct quantize_task {
    const float *x;
    size_t stride;
    const int32_t *rows;
    int64_t n;
    uint8_t *out;
} quantize_task;

static void quantize_row(void *context, int row, int worker)
{
    const quantize_task *t = context;
    (void)worker;
    const float *x = t->x + (size_t)(t->rows ? t->rows[row] : row) * t->stride;
    cpu_q8_quantize(x, t->n, (void *)(t->out + (size_t)row * cpu_q8_row_bytes(t->n)));
}

size_t cpu_quantize_rows(cpu_device *c, const float *x, size_t stride, const int32_t *rows, int count, int64_t n, void *out)
{
    quantize_task t = {x, stride, rows, n, out};
    if (count * n > NORM_ALONE) {
        pool_run(c->workers, count, quantize_row, &t);
    } else {
        for (int row = 0; row < count; row++)
            quantize_row(&t, row, 0);
    }
    return (size_t)count * cpu_q8_row_bytes(n);
}

/* A job with what was found for it. */
typedef struct linear_part {
    const cpu_linear_job *job;
    const cpu_matmul *kernel;
    cpu_inputs x;
    const int32_t *rows; /* of x; 8-bit rows are gathered and need none */
    int columns, tasks;
} linear_part;

enum { LINEAR_JOBS = 4 };

typedef struct linear_task {
    cpu_device *c;
    linear_part parts[LINEAR_JOBS];
} linear_task;

static void linear_block(void *context, int index, int worker)
{
    linear_task *t = context;
    const linear_part *p = t->parts;
    for (; index >= p->tasks; p++)
        index -= p->tasks;
    const cpu_linear_job *job = p->job;
    int64_t first = (int64_t)index * p->columns;
    int columns = job->w->rows - first < p->columns ? (int)(job->w->rows - first) : p->columns;
    float *out = job->out + first, *y = job->add ? cpu_task_scratch(t->c, worker) : out;
    size_t stride = job->add ? (size_t)columns : job->out_stride;
    cpu_matmul_run(t->c, p->kernel, job->w, first, columns, &p->x, p->rows, job->x.count, y, stride, worker);
    for (int i = 0; job->add && i < job->x.count; i++)
        for (int n = 0; n < columns; n++)
            out[(size_t)i * job->out_stride + (size_t)n] += y[i * columns + n];
}

typedef struct pack_task {
    cpu_matmul_work k;
    float *out;
} pack_task;

static void pack_block(void *context, int block, int worker)
{
    const pack_task *t = context;
    (void)worker;
    cpu_f32_pack(&t->k, block * CPU_PACK_ROWS, t->out);
}

/* What is used of the memory for prepared rows. */
typedef struct prepared {
    size_t q8_bytes, packed_floats;
} prepared;

static void quantize_part(cpu_device *c, linear_part *p, prepared *used)
{
    const cpu_rows *x = &p->job->x;
    p->x.q8 = (const void *)(c->q8 + used->q8_bytes);
    used->q8_bytes += cpu_quantize_rows(c, x->in, x->stride, x->rows, x->count, p->job->w->cols, c->q8 + used->q8_bytes);
    assert(used->q8_bytes <= c->q8_bytes);
}

static void pack_part(cpu_device *c, linear_part *p, prepared *used)
{
    const cpu_rows *x = &p->job->x;
    pack_task t = {{.w = p->job->w, .x = x->in, .x_stride = x->stride * sizeof(float), .x_rows = x->rows, .rows = x->count},
                   c->packed + used->packed_floats};
    p->x.packed = t.out;
    used->packed_floats += cpu_f32_packed_bytes(x->count, p->job->w->cols) / sizeof(float);
    assert(used->packed_floats <= c->packed_floats);
    pool_run(c->workers, (x->count + CPU_PACK_ROWS - 1) / CPU_PACK_ROWS, pack_block, &t);
}

/* 8-bit rows, and rows turned around, are made once for jobs that read the same ones. */
static void prepare_part(cpu_device *c, linear_part *p, const linear_part *before, int count, prepared *used)
{
    const cpu_rows *x = &p->job->x;
    bool q8 = p->kernel->input == CPU_INPUT_Q8, packs = cpu_matmul_packs(p->kernel);
    p->x = (cpu_inputs){.x = x->in, .stride = x->stride, .q8_stride = q8 ? cpu_q8_row_bytes(p->job->w->cols) : 0};
    p->rows = q8 ? NULL : x->rows;
    for (int i = 0; i < count; i++)
        if (before[i].x.x == x->in && before[i].job->x.rows == x->rows && before[i].job->w->cols == p->job->w->cols) {
            p->x.q8 = q8 && before[i].x.q8 ? before[i].x.q8 : p->x.q8;
            p->x.packed = packs && before[i].x.packed ? before[i].x.packed : p->x.packed;
        }
    if (q8 && !p->x.q8)
        quantize_part(c, p, used);
    if (packs && !p->x.packed)
        pack_part(c, p, used);
}

void cpu_linear(cpu_device *c, const cpu_linear_job *jobs, int count)
{
    linear_task t = {.c = c};
    prepared used = {0};
    int tasks = 0;
    assert(count <= LINEAR_JOBS);
    for (int i = 0; i < count; i++) {
        linear_part *p = &t.parts[i];
        p->job = &jobs[i];
        p->kernel = cpu_matmul_for(c, dispatch_linear, jobs[i].w, jobs[i].x.count);
        p->columns = cpu_task_columns(jobs[i].w, jobs[i].x.count, c->threads);
        p->tasks = (int)((jobs[i].w->rows + p->columns - 1) / p->columns);
        tasks += p->tasks;
        prepare_part(c, p, t.parts, i, &used);
    }
    pool_run(c->workers, tasks, linear_block, &t);
}

void cpu_project(cpu_device *c, const matrix *w, int rows, const float *in, float *out)
{
    cpu_linear_job job = cpu_projection(w, rows, in, out);
    cpu_linear(c, &job, 1);
}
