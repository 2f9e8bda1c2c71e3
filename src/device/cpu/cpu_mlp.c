/* The MLP of a layer: dense, or a router with routed and shared experts (spec 2.3).
 *
 * Rows are grouped by expert, so that each weight row is decoded once for all rows that need it. A row's experts are summed in
 * ascending order of their ids, the shared expert last, whatever else is in the batch. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu.h"

typedef struct mlp_task {
    cpu_device *c;
    activations *a;
    const cpu_expert_job *jobs; /* in the order in which their results are added */
    int count;
    int blocks;             /* column blocks per job in the first pass */
    int rows;
} mlp_task;

static float silu(float x)
{
    return x / (1.0f + expf(-x));
}

/* act columns of one block of one job. */
static void gate_up_block(void *context, int index, int worker)
{
    const mlp_task *t = context;
    const cpu_expert_job *job = &t->jobs[index / t->blocks];
    const mlp_weights *w = job->w;
    int64_t hidden = w->gate.cols, wide = w->gate.rows, first = (int64_t)(index % t->blocks) * CPU_COLUMN_BLOCK;
    if (first >= wide)
        return;
    float *gate = t->c->scratch[worker], *up = gate + CPU_COLUMN_BLOCK * hidden; /* [CPU_COLUMN_BLOCK][hidden] each */
    float y[CPU_ROW_GROUP * CPU_COLUMN_BLOCK], z[CPU_ROW_GROUP * CPU_COLUMN_BLOCK];
    const cpu_kernels *k = cpu_kernels_for(t->c, dispatch_experts, &w->gate, job->count);
    const cpu_kernels *k_up = cpu_kernels_for(t->c, dispatch_experts, &w->up, job->count);
    cpu_rows h = {t->a->h, (size_t)hidden, job->rows, job->count};
    int columns = cpu_decode_block(&w->gate, first, wide, gate);
    cpu_decode_block(&w->up, first, wide, up);
    for (int row = 0, count; row < job->count; row += count) {
        count = cpu_dots_group(k, gate, columns, hidden, &h, row, y);
        cpu_dots_group(k_up, up, columns, hidden, &h, row, z);
        for (int i = 0; i < count; i++)
            for (int n = 0; n < columns; n++)
                job->act[(row + i) * wide + first + n] = silu(y[i * CPU_COLUMN_BLOCK + n]) * z[i * CPU_COLUMN_BLOCK + n];
    }
}

/* Adds one block of output columns of all jobs to x. */
static void down_block(void *context, int block, int worker)
{
    const mlp_task *t = context;
    int64_t hidden = t->c->base.model->config.hidden_size, first = (int64_t)block * CPU_COLUMN_BLOCK;
    int columns = 0;
    float *sum = t->c->scratch[worker], *down = sum + t->rows * CPU_COLUMN_BLOCK; /* sum [rows][CPU_COLUMN_BLOCK] */
    float y[CPU_ROW_GROUP * CPU_COLUMN_BLOCK];
    memset(sum, 0, (size_t)(t->rows * CPU_COLUMN_BLOCK) * sizeof(float));
    for (int j = 0; j < t->count; j++) {
        const cpu_expert_job *job = &t->jobs[j];
        int64_t wide = job->w->down.cols;
        cpu_rows act = {job->act, (size_t)wide, NULL, job->count};
        const cpu_kernels *k = cpu_kernels_for(t->c, dispatch_experts, &job->w->down, job->count);
        columns = cpu_decode_block(&job->w->down, first, hidden, down);
        for (int row = 0, count; row < job->count; row += count) {
            count = cpu_dots_group(k, down, columns, wide, &act, row, y);
            for (int i = 0; i < count; i++) {
                float *to = sum + (job->rows ? job->rows[row + i] : row + i) * CPU_COLUMN_BLOCK;
                float weight = job->weights ? job->weights[row + i] : 1.0f; /* a product with 1 is exact */
                for (int n = 0; n < columns; n++)
                    to[n] += weight * y[i * CPU_COLUMN_BLOCK + n];
            }
        }
    }
    for (int row = 0; row < t->rows; row++)
        for (int n = 0; n < columns; n++)
            t->a->x[row * hidden + first + n] += sum[row * CPU_COLUMN_BLOCK + n];
}

void cpu_gate_up(cpu_device *c, activations *a, const cpu_expert_job *jobs, int count)
{
    mlp_task t = {.c = c, .a = a, .jobs = jobs, .count = count};
    int64_t widest = 0;
    for (int j = 0; j < count; j++)
        widest = jobs[j].w->gate.rows > widest ? jobs[j].w->gate.rows : widest;
    t.blocks = (int)((widest + CPU_COLUMN_BLOCK - 1) / CPU_COLUMN_BLOCK);
    pool_run(c->workers, count * t.blocks, gate_up_block, &t);
}

void cpu_down(cpu_device *c, activations *a, const cpu_expert_job *jobs, int count, int rows)
{
    mlp_task t = {.c = c, .a = a, .jobs = jobs, .count = count, .rows = rows};
    pool_run(c->workers, (c->base.model->config.hidden_size + CPU_COLUMN_BLOCK - 1) / CPU_COLUMN_BLOCK, down_block, &t);
}

static void run_jobs(cpu_device *c, activations *a, const cpu_expert_job *jobs, int count, int rows)
{
    cpu_gate_up(c, a, jobs, count);
    cpu_down(c, a, jobs, count, rows);
}

/* Marks the experts of groups that are not among the best: a group's score is the sum of its two best experts.
 * score and kept are scratch for one number per group. */
static void drop_weak_groups(const model_config *m, float *choice, float *score, int32_t *kept)
{
    int size = m->experts / m->expert_groups;
    for (int g = 0; g < m->expert_groups; g++) {
        float best = -INFINITY, second = -INFINITY;
        for (int i = g * size; i < (g + 1) * size; i++) {
            if (choice[i] > best) {
                second = best;
                best = choice[i];
            } else if (choice[i] > second) {
                second = choice[i];
            }
        }
        score[g] = best + second; /* config.c requires two experts per group */
    }
    cpu_select_largest(score, m->expert_groups, m->expert_groups_kept, kept);
    for (int g = 0, k = 0; g < m->expert_groups; g++) {
        if (k < m->expert_groups_kept && kept[k] == g) {
            k++;
            continue;
        }
        for (int i = g * size; i < (g + 1) * size; i++)
            choice[i] = -INFINITY;
    }
}

typedef struct route_task {
    cpu_device *c;
    const layer_weights *w;
    activations *a;
} route_task;

/* Chooses a row's experts by sigmoid + bias and weighs them by the sigmoid alone. */
static void route_row(void *context, int row, int worker)
{
    const route_task *t = context;
    const model_config *m = &t->c->base.model->config;
    float *scores = t->a->router_scores + (size_t)row * (size_t)m->experts, *choice = t->c->scratch[worker];
    int32_t *experts = t->a->router_experts + (size_t)row * (size_t)m->experts_per_token;
    float *weights = t->a->router_weights + (size_t)row * (size_t)m->experts_per_token, sum = 0;
    for (int e = 0; e < m->experts; e++) {
        scores[e] = 1.0f / (1.0f + expf(-scores[e]));
        choice[e] = scores[e] + t->w->router_bias[e];
    }
    if (m->expert_groups > 1) {
        float *score = choice + m->experts;
        drop_weak_groups(m, choice, score, (int32_t *)(score + m->expert_groups));
    }
    cpu_select_largest(choice, m->experts, m->experts_per_token, experts);
    for (int i = 0; i < m->experts_per_token; i++)
        sum += scores[experts[i]];
    for (int i = 0; i < m->experts_per_token; i++) {
        float w = scores[experts[i]];
        weights[i] = (m->normalize_expert_weights ? w / (sum + 1e-20f) : w) * m->routed_scale;
    }
}

/* Sorts the (row, expert) pairs by expert, rows ascending, and makes one job per expert that has rows, in ascending order, then one
 * for the shared experts. Returns their number. */
static int group_by_expert(cpu_device *c, const layer_weights *w, int rows, activations *a)
{
    const model_config *m = &c->base.model->config;
    int pairs = rows * m->experts_per_token, jobs = 0;
    int *next = c->expert_next;
    memset(next, 0, (size_t)(m->experts + 1) * sizeof *next);
    for (int p = 0; p < pairs; p++)
        next[a->router_experts[p] + 1]++;
    for (int e = 0; e < m->experts; e++) {
        int first = next[e], count = next[e + 1];
        next[e + 1] += first;
        if (count > 0)
            c->expert_jobs[jobs++] = (cpu_expert_job){&w->experts[e], count, c->expert_rows + first, c->expert_weights + first,
                                                      a->mlp_act + (int64_t)first * m->expert_intermediate};
    }
    for (int p = 0; p < pairs; p++) {
        int slot = next[a->router_experts[p]]++;
        c->expert_rows[slot] = p / m->experts_per_token;
        c->expert_weights[slot] = a->router_weights[p];
    }
    if (w->shared.gate.format)
        c->expert_jobs[jobs++] = (cpu_expert_job){&w->shared, rows, NULL, NULL, a->mlp_act + (int64_t)pairs * m->expert_intermediate};
    return jobs;
}

static void run_experts(cpu_device *c, const layer_weights *w, int rows, activations *a)
{
    cpu_project(c, &w->router, rows, a->h, a->router_scores);
    route_task route = {c, w, a};
    pool_run(c->workers, rows, route_row, &route);
    int count = group_by_expert(c, w, rows, a);
    run_jobs(c, a, c->expert_jobs, count, rows);
}

void cpu_mlp(device *d, const step *s, int layer, activations *a)
{
    cpu_device *c = cpu_of(d);
    const model_config *m = &d->model->config;
    const layer_weights *w = cpu_layer(d, layer);
    cpu_rms_norm_rows(c, a->x, s->rows, m->hidden_size, w->post_attention_norm, m->norm_eps, a->h);
    if (w->sparse) {
        run_experts(c, w, s->rows, a);
        return;
    }
    cpu_expert_job dense = {&w->mlp, s->rows, NULL, NULL, a->mlp_act};
    run_jobs(c, a, &dense, 1, s->rows);
}
