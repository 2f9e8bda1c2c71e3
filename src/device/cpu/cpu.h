/* The CPU device, inside. One operation per file, written with the inner loops of cpu_kernels.h; the generic ones are plain C and the
 * reference for every other device.
 *
 * Parallel loops run over independent outputs (a block of output columns, a head, a row), so no sum is ever split
 * between threads; sums run in one fixed order. */
#ifndef DEVICE_CPU_CPU_H
#define DEVICE_CPU_CPU_H

#include "base/threads.h"
#include "device/cpu/cpu_attention_kernels.h"
#include "device/cpu/cpu_kernels.h"
#include "device/cpu/cpu_matmul.h"
#include "device/device.h"

enum { CPU_MOST_MATMULS = 12 }; /* matrix kernels for one kind of input */

/* Sizes of the private memory of attention and indexer (cpu_device.c): heads that share one pass over the keys; keys decoded at a
 * time, a multiple of the kernels' tiles, and the blocks of the softmax; rows of a sequence that share decoded index keys. */
enum { CPU_HEAD_GROUP = CPU_HEAD_TILE, CPU_KEY_BLOCK = 48, CPU_INDEX_ROWS = 8 };

/* One expert (or a dense MLP) and the rows that go through it. */
typedef struct cpu_expert_job {
    const mlp_weights *w;
    int count;            /* rows */
    const int32_t *rows;  /* [count] ascending; NULL: all rows of the step */
    const float *weights; /* [count] factors of the result; NULL: 1 */
    float *act;           /* [count][intermediate] silu(gate) * up */
    cpu_q8 *act_q8;       /* the same in 8 bits, where the weights want that */
} cpu_expert_job;

/* Rows of x, as they are and in 8 bits. */
typedef struct cpu_inputs {
    const float *x;
    size_t stride;      /* floats */
    const cpu_q8 *q8;   /* NULL: no weight wants it */
    size_t q8_stride;   /* bytes */
    const float *packed; /* by cpu_f32_pack, or NULL */
} cpu_inputs;

typedef struct cpu_device {
    device base;
    bool exact;
    dispatch_table dispatch;    /* base.dispatch */
    dispatch_variant *variants; /* those of the table; in `memory` */
    uint8_t *q8;           /* [q8_bytes] rows in 8 bits: inputs of a layer first, activations of its experts behind them */
    size_t q8_bytes, q8_act_offset;
    float *packed;         /* [packed_floats] rows turned around for one loop of projections */
    size_t packed_floats;
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

/* cpu_dispatch.c: the device's variants and its dispatch table. */
bool cpu_dispatch_create(cpu_device *c, const device_limits *limits, error *err);
void cpu_exercise(device *d, const device_trial *t);

/* What the system calls this processor; on Arm it has only numbers. */
void cpu_model_name(text *out);

/* The kernel chosen for a matrix and so many rows. */
static inline const cpu_matmul *cpu_matmul_for(const cpu_device *c, const char *operation, const matrix *w, int rows)
{
    return dispatch_kernel(&c->dispatch, operation, w->format->name, w->rows, w->cols, rows);
}

/* The same for a part of a layer's attention: cpu_attention_kernels for absorb, attend and index, cpu_matmul for value. */
const void *cpu_attention_variant(const cpu_device *c, const char *operation, const layer_weights *w, int rows);

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
void cpu_dots(const cpu_kernels *k, const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y);
void cpu_add_scaled(const cpu_kernels *k, float *out, const float *scales, const float *x, int64_t x_stride, int count, int64_t n);

/* Input rows of a projection: row i begins at in + (rows ? rows[i] : i) * stride. */
typedef struct cpu_rows {
    const float *in;
    size_t stride;       /* floats */
    const int32_t *rows; /* NULL: row i itself */
    int count;
} cpu_rows;

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

/* The two halves of an MLP or of experts: act of every job from a->h; x += what they give together. */
void cpu_gate_up(cpu_device *c, activations *a, const cpu_expert_job *jobs, int count, int rows);
void cpu_down(cpu_device *c, activations *a, cpu_expert_job *jobs, int count, int rows);

/* One projection by itself. */
void cpu_project(cpu_device *c, const matrix *w, int rows, const float *in, float *out);

/* One token's entries in a page. */
void cpu_latent_store(const kv_layout *k, const float *latent, uint8_t *entry);
void cpu_latent_load(const kv_layout *k, const uint8_t *entry, float *latent);
void cpu_index_key_store(const kv_layout *k, const float *key, uint8_t *entry);

/* Index keys of positions first .. first+count-1 of a row's sequence, out[count][index_dim]. */
void cpu_index_keys_load(const kv_layout *k, const step *s, int row, int layer, int first, int count, float *out);

/* Address of the entry of a position in the pages of a row's sequence. */
static inline uint8_t *cpu_entry(const kv_layout *k, const step *s, int row, int position, size_t offset, size_t entry_bytes)
{
    size_t page = (size_t)s->page_tables[s->sequences[row]][position / KV_PAGE_TOKENS];
    return s->pages + page * k->page_bytes + offset + (size_t)(position % KV_PAGE_TOKENS) * entry_bytes;
}

/* The k largest of scores[n] as ascending indices; equal scores: the lower index first. k <= n. */
void cpu_select_largest(const float *scores, int n, int k, int32_t *out);

/* The same for thousands of scores; list has room for 2 * k. */
void cpu_select_many(const cpu_attention_kernels *kernels, const float *scores, int n, int k, int32_t *list, int32_t *out);

void cpu_embed(device *d, const step *s, activations *a);
void cpu_draft_embed(device *d, const step *s, const float *hidden_in, activations *a);
void cpu_attention_project(device *d, const step *s, int layer, activations *a);
void cpu_index_select(device *d, const step *s, int layer, activations *a);
void cpu_attend(device *d, const step *s, int layer, activations *a);
void cpu_mlp(device *d, const step *s, int layer, activations *a);

#endif
