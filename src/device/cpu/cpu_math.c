/* Dot products, norms, rotation and projections: what the operations are made of. */
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

int cpu_decode_block(const matrix *w, int64_t first, int64_t end, float *out)
{
    int count = end - first < CPU_COLUMN_BLOCK ? (int)(end - first) : CPU_COLUMN_BLOCK;
    for (int i = 0; i < count; i++)
        matrix_row(w, first + i, out + i * w->cols);
    return count;
}

int cpu_dots_group(const cpu_kernels *k, const float *w, int columns, int64_t n, const cpu_rows *x, int first, float *y)
{
    const float *rows[CPU_ROW_GROUP];
    int count = x->count - first < CPU_ROW_GROUP ? x->count - first : CPU_ROW_GROUP;
    for (int i = 0; i < count; i++)
        rows[i] = x->in + (size_t)(x->rows ? x->rows[first + i] : first + i) * x->stride;
    cpu_dots(k, w, n, columns, rows, count, n, y);
    return count;
}

typedef struct linear_task {
    cpu_device *c;
    const cpu_linear_job *jobs;
} linear_task;

static int job_blocks(const cpu_linear_job *job)
{
    return (int)((job->w->rows + CPU_COLUMN_BLOCK - 1) / CPU_COLUMN_BLOCK);
}

static void linear_block(void *context, int index, int worker)
{
    const linear_task *t = context;
    const cpu_linear_job *job = t->jobs;
    for (; index >= job_blocks(job); job++)
        index -= job_blocks(job);
    int64_t first = (int64_t)index * CPU_COLUMN_BLOCK;
    float *decoded = t->c->scratch[worker]; /* [CPU_COLUMN_BLOCK][cols] */
    float y[CPU_ROW_GROUP * CPU_COLUMN_BLOCK];
    int columns = cpu_decode_block(job->w, first, job->w->rows, decoded);
    const cpu_kernels *k = cpu_kernels_for(t->c, dispatch_linear, job->w, job->x.count);
    for (int row = 0, count; row < job->x.count; row += count) {
        count = cpu_dots_group(k, decoded, columns, job->w->cols, &job->x, row, y);
        for (int i = 0; i < count; i++) {
            float *out = job->out + (size_t)(row + i) * job->out_stride + first;
            for (int n = 0; n < columns; n++)
                out[n] = job->add ? out[n] + y[i * CPU_COLUMN_BLOCK + n] : y[i * CPU_COLUMN_BLOCK + n];
        }
    }
}

void cpu_linear(cpu_device *c, const cpu_linear_job *jobs, int count)
{
    linear_task t = {c, jobs};
    int blocks = 0;
    for (int i = 0; i < count; i++)
        blocks += job_blocks(&jobs[i]);
    pool_run(c->workers, blocks, linear_block, &t);
}

void cpu_project(cpu_device *c, const matrix *w, int rows, const float *in, float *out)
{
    cpu_linear_job job = cpu_projection(w, rows, in, out);
    cpu_linear(c, &job, 1);
}
