/* The CPU device, inside. One operation per file, written with the inner loops of cpu_kernels.h; the generic ones are plain C and the
 * reference for every other device.
 *
 * Parallel loops run over independent outputs (a block of output columns, a head, a row), so no sum is ever split
 * between threads; sums run in one fixed order. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "base/threads.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/cpu_matmul.h"
#include "device/device.h"

/* Heads that share one pass over the keys; private memory is sized by it (cpu_device.c). Input rows whose results are held
 * together before they go to their places. */
enum { CPU_HEAD_GROUP = 8, CPU_ROW_GROUP = 24, CPU_MOST_MATMULS = 12 };

/* One expert (or a dense MLP) and the rows that go through it. */
typedef struct cpu_expert_job {
    const mlp_weights *w;
    int count;            /* rows */
    const int32_t *rows;  /* [count] ascending; NULL: all rows of the step */
    const float *weights; /* [count] factors of the result; NULL: 1 */
    float *act;           /* [count][intermediate] silu(gate) * up */
    cpu_q8 *act_q8;       /* the same in 8 bits, where the weights want that */
} cpu_expert_job;

/* The rows of the dispatch table for one shape of weight, one per bucket of rows. */
typedef struct cpu_plan {
    const char *operation; /* "linear" or "experts" */
    const format *format;
    int64_t n, k;
    cpu_input input;
    const dispatch_row *rows[DISPATCH_BUCKETS];
} cpu_plan;

/* Rows of x, as they are and in 8 bits. */
typedef struct cpu_inputs {
    const float *x;
    size_t stride;      /* floats */
    const cpu_q8 *q8;   /* NULL: no weight wants it */
    size_t q8_stride;   /* bytes */
} cpu_inputs;

typedef struct cpu_device {
    device base;
    const cpu_kernels *kernels;
    const char *set;       /* instruction set of the matrix kernels; NULL: all that this CPU has */
    bool exact;
    dispatch_table dispatch;
    const cpu_matmul *matmuls[CPU_INPUT_COUNT][CPU_MOST_MATMULS]; /* cpu_matmul_at of every index; NULL behind the last */
    cpu_plan *plans;       /* [plan_count] */
    int plan_count;
    uint8_t *q8;           /* [q8_bytes] rows in 8 bits: inputs of a layer first, activations of its experts behind them */
    size_t q8_bytes, q8_act_offset;
    pool *workers;
    int threads;           /* workers, the caller included */
    float **scratch;       /* [threads][scratch_floats] private memory of a worker */
    size_t scratch_floats;
    size_t kernel_floats;  /* the first part of scratch: that of the matrix kernels */
    float *index_scores;   /* [index_score_floats] scores of a group of rows over their whole context */
    size_t index_score_floats;
    float *rope_frequency; /* [rope_dim / 2] */
    float *draft_input;    /* [max_rows][2 * hidden] rows of [embedding; hidden] */
    int max_rows;          /* of a step */
    cpu_expert_job *expert_jobs; /* [experts + 1] */
    int *expert_next;      /* [experts + 1] next free slot of an expert while pairs are sorted */
    int32_t *expert_rows;  /* [max_rows * experts_per_token] rows sorted by expert */
    float *expert_weights; /* [max_rows * experts_per_token] their factors */
    arena memory;          /* holds the small arrays above; scratch, scores and draft input are lazy blocks */
} cpu_device;

static inline cpu_device *cpu_of(device *d)
{
    return (cpu_device *)d;
}

const layer_weights *cpu_layer(const device *d, int layer);

/* Makes the plans for every matrix of the model (cpu_plan.c). */
void cpu_plan_model(cpu_device *c);
void cpu_plan_free(cpu_device *c);

/* The kernel for a weight and a number of rows. */
const cpu_matmul *cpu_matmul_for(const cpu_device *c, const char *operation, const matrix *w, int rows);

/* Output columns of one task: a multiple of CPU_PANEL_COLUMNS, at most CPU_TASK_COLUMNS. No result depends on it. */
enum { CPU_TASK_COLUMNS = 64 };
int cpu_task_columns(const matrix *w, int rows, int threads);

/* Runs a kernel for columns first .. first + columns - 1 and input rows of x; y [count][y_stride]. The first part of the worker's scratch
 * is the kernel's; cpu_task_scratch is what lies behind it. */
void cpu_matmul_run(cpu_device *c, const cpu_matmul *kernel, const matrix *w, int64_t first, int columns, const cpu_inputs *x,
                    const int32_t *rows, int count, float *y, size_t y_stride, int worker);
float *cpu_task_scratch(cpu_device *c, int worker);

/* Rounds rows of n floats, `stride` apart, to 8 bits at out; returns the bytes that were used. rows: which; NULL: the first ones. */
size_t cpu_quantize_rows(cpu_device *c, const float *x, size_t stride, const int32_t *rows, int count, int64_t n, void *out);

static inline size_t cpu_q8_row_bytes(int64_t n)
{
    return (size_t)cpu_q8_chunks(n) * sizeof(cpu_q8);
}

/* The kernels of the same names. */
void cpu_dots(const cpu_device *c, const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y);
void cpu_add_scaled(const cpu_device *c, float *out, const float *scales, const float *x, int64_t x_stride, int count, int64_t n);

/* Input rows of a projection: row i begins at in + (rows ? rows[i] : i) * stride. */
typedef struct cpu_rows {
    const float *in;
    size_t stride;       /* floats */
    const int32_t *rows; /* NULL: row i itself */
    int count;
} cpu_rows;

/* Decodes matrix rows first .. end - 1, at most CPU_COLUMN_BLOCK of them, to out[count][cols]. Returns count. */
int cpu_decode_block(const matrix *w, int64_t first, int64_t end, float *out);

/* y[i][c] = w[c] . row first + i, w [columns][n]; y [CPU_ROW_GROUP][CPU_COLUMN_BLOCK]. Returns how many rows there were, at most
 * CPU_ROW_GROUP. */
int cpu_dots_group(const cpu_device *c, const float *w, int columns, int64_t n, const cpu_rows *x, int first, float *y);

void cpu_rms_norm(const float *x, const float *weight, int64_t n, float eps, float *out);
void cpu_rms_norm_rows(cpu_device *c, const float *x, int rows, int64_t n, const float *weight, float eps, float *out);
void cpu_layer_norm(const float *x, const float *weight, const float *bias, int64_t n, float eps, float *out);

/* Rotates pairs (2i, 2i+1) of v[0..rope_dim-1] by the row's angles. */
void cpu_rotate(float *v, const float *rope, int rope_dim);

/* out[i][n] = (add ? out[i][n] : 0) + w[n] . row i of x. */
typedef struct cpu_linear_job {
    const matrix *w;
    cpu_rows x;
    float *out;
    size_t out_stride; /* floats */
    bool add;
} cpu_linear_job;

/* Projections that do not wait for each other, in one parallel loop: a step is short, and each loop costs a meeting of all workers. */
void cpu_linear(cpu_device *c, const cpu_linear_job *jobs, int count);

/* in[rows] -> out[rows] with a weight, without gaps. */
static inline cpu_linear_job cpu_projection(const matrix *w, int rows, const float *in, float *out)
{
    return (cpu_linear_job){.w = w, .x = {in, (size_t)w->cols, NULL, rows}, .out = out, .out_stride = (size_t)w->rows};
}

/* One projection by itself. */
void cpu_project(cpu_device *c, const matrix *w, int rows, const float *in, float *out);

/* One token's entries in a page. */
void cpu_latent_store(const kv_layout *k, const float *latent, uint8_t *entry);
void cpu_latent_load(const kv_layout *k, const uint8_t *entry, float *latent);
void cpu_index_key_store(const kv_layout *k, const float *key, uint8_t *entry);
void cpu_index_key_load(const kv_layout *k, const uint8_t *entry, float *key);

/* Address of the entry of a position in the pages of a row's sequence. */
static inline uint8_t *cpu_entry(const kv_layout *k, const step *s, int row, int position, size_t offset, size_t entry_bytes)
{
    size_t page = (size_t)s->page_tables[s->sequences[row]][position / KV_PAGE_TOKENS];
    return s->pages + page * k->page_bytes + offset + (size_t)(position % KV_PAGE_TOKENS) * entry_bytes;
}

/* The k largest of scores[n] as ascending indices; equal scores: the lower index first. k <= n. */
void cpu_select_largest(const float *scores, int n, int k, int32_t *out);

void cpu_embed(device *d, const step *s, activations *a);
void cpu_draft_embed(device *d, const step *s, const float *hidden_in, activations *a);
void cpu_attention_project(device *d, const step *s, int layer, activations *a);
void cpu_index_select(device *d, const step *s, int layer, activations *a);
void cpu_attend(device *d, const step *s, int layer, activations *a);
void cpu_mlp(device *d, const step *s, int layer, activations *a);

#endif
