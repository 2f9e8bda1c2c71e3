/* Dot products, norms, rotation and projections: what the operations are made of. */
#include <math.h>
#include <string.h>

#include "base/sanitize.h"
#include "device/cpu/cpu.h"

enum { LANES = 16 };

UNCHECKED_LOOP static float dot(const float *a, const float *b, int64_t n)
{
    float lane[LANES] = {0};
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += a[k + j] * b[k + j];
    for (int j = 0; k < n; k++, j++)
        lane[j] += a[k] * b[k];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

float cpu_dot(const float *a, const float *b, int64_t n)
{
    touch_range(a, (size_t)n * sizeof *a);
    touch_range(b, (size_t)n * sizeof *b);
    return dot(a, b, n);
}

UNCHECKED_LOOP static void add_scaled(float *restrict out, float scale, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] += scale * x[i];
}

void cpu_add_scaled(float *out, float scale, const float *x, int64_t n)
{
    touch_range(out, (size_t)n * sizeof *out);
    touch_range(x, (size_t)n * sizeof *x);
    add_scaled(out, scale, x, n);
}

void cpu_rms_norm(const float *x, const float *weight, int64_t n, float eps, float *out)
{
    float scale = 1.0f / sqrtf(cpu_dot(x, x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = weight[i] * (x[i] * scale);
}

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
    pool_run(c->workers, rows, norm_row, &t);
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

typedef struct linear_task {
    cpu_device *c;
    const cpu_linear_job *job;
} linear_task;

static void linear_block(void *context, int block, int worker)
{
    const linear_task *t = context;
    const cpu_linear_job *job = t->job;
    const matrix *w = job->w;
    int64_t first = (int64_t)block * CPU_COLUMN_BLOCK;
    int columns = w->rows - first < CPU_COLUMN_BLOCK ? (int)(w->rows - first) : CPU_COLUMN_BLOCK;
    float *decoded = t->c->scratch[worker]; /* [columns][w->cols] */
    for (int n = 0; n < columns; n++)
        matrix_row(w, first + n, decoded + n * w->cols);
    for (int i = 0; i < job->count; i++) {
        const float *in = job->in + (size_t)(job->rows ? job->rows[i] : i) * job->in_stride;
        float *out = job->out + (size_t)i * job->out_stride + first;
        for (int n = 0; n < columns; n++) {
            float y = cpu_dot(decoded + n * w->cols, in, w->cols);
            out[n] = job->add ? out[n] + y : y;
        }
    }
}

void cpu_linear(cpu_device *c, const cpu_linear_job *job)
{
    linear_task t = {c, job};
    pool_run(c->workers, (int)((job->w->rows + CPU_COLUMN_BLOCK - 1) / CPU_COLUMN_BLOCK), linear_block, &t);
}

void cpu_project(cpu_device *c, const matrix *w, int rows, const float *in, float *out)
{
    cpu_linear_job job = {.w = w, .in = in, .in_stride = (size_t)w->cols, .count = rows, .out = out, .out_stride = (size_t)w->rows};
    cpu_linear(c, &job);
}
