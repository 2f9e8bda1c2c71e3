/* The MLP of a layer: dense, or a router with routed and shared experts (spec 2.3).
 *
 * Rows are grouped by expert, so that each weight row is decoded once for all rows that need it. A row's experts are summed in
 * ascending order of their ids, the shared expert last, whatever else is in the batch. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "device/cpu/cpu.h"

typedef struct mlp_task {
    cpu_device *c;
    activations *a;
    const cpu_expert_job *jobs; /* in the order in which their results are added */
    int count;
    cpu_inputs h;
    int columns;            /* of one task */
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
    int64_t wide = w->gate.rows, first = (int64_t)(index % t->blocks) * t->columns;
    if (first >= wide)
        return;
    int columns = wide - first < t->columns ? (int)(wide - first) : t->columns;
    float *gate = cpu_task_scratch(t->c, worker), *up = gate + job->count * columns; /* [count][columns] each */
    const cpu_matmul *for_gate = cpu_matmul_for(t->c, dispatch_experts, &w->gate, job->count);
    const cpu_matmul *for_up = cpu_matmul_for(t->c, dispatch_experts, &w->up, job->count);
    cpu_matmul_run(t->c, for_gate, &w->gate, first, columns, &t->h, job->rows, job->count, gate, (size_t)columns, worker);
    cpu_matmul_run(t->c, for_up, &w->up, first, columns, &t->h, job->rows, job->count, up, (size_t)columns, worker);
    for (int i = 0; i < job->count; i++)
        for (int n = 0; n < columns; n++)
            job->act[i * wide + first + n] = silu(gate[i * columns + n]) * up[i * columns + n];
}

/* Adds one block of output columns of all jobs to x. */
static void down_block(void *context, int block, int worker)
{
    const mlp_task *t = context;
    int64_t hidden = t->c->base.model->config.hidden_size, first = (int64_t)block * t->columns;
    int columns = hidden - first < t->columns ? (int)(hidden - first) : t->columns;
    float *sum = cpu_task_scratch(t->c, worker), *y = sum + t->rows * columns; /* [rows][columns] and [count][columns] */
    memset(sum, 0, (size_t)(t->rows * columns) * sizeof(float));
    for (int j = 0; j < t->count; j++) {
        const cpu_expert_job *job = &t->jobs[j];
        int64_t wide = job->w->down.cols;
        cpu_inputs act = {job->act, (size_t)wide, job->act_q8, cpu_q8_row_bytes(wide), NULL};
        const cpu_matmul *kernel = cpu_matmul_for(t->c, dispatch_experts, &job->w->down, job->count);
        cpu_matmul_run(t->c, kernel, &job->w->down, first, columns, &act, NULL, job->count, y, (size_t)columns, worker);
        for (int i = 0; i < job->count; i++) {
            float *to = sum + (job->rows ? job->rows[i] : i) * columns;
            float weight = job->weights ? job->weights[i] : 1.0f; /* a product with 1 is exact */
            for (int n = 0; n < columns; n++)
                to[n] += weight * y[i * columns + n];
        }
    }
    for (int row = 0; row < t->rows; row++)
        for (int n = 0; n < columns; n++)
            t->a->x[row * hidden + first + n] += sum[row * columns + n];
}

static bool wants_q8(const cpu_device *c, const matrix *w)
{
    return cpu_input_of(w->format, c->exact) == CPU_INPUT_Q8;
}

/* h in 8 bits, once for all jobs, when one of them wants it. */
static cpu_inputs prepare_h(cpu_device *c, activations *a, const cpu_expert_job *jobs, int count, int rows)
{
    int64_t hidden = c->base.model->config.hidden_size;
    cpu_inputs h = {.x = a->h, .stride = (size_t)hidden, .q8_stride = cpu_q8_row_bytes(hidden)};
    for (int j = 0; j < count && !h.q8; j++)
        if (wants_q8(c, &jobs[j].w->gate) || wants_q8(c, &jobs[j].w->up))
            h.q8 = (const void *)c->q8;
    if (h.q8)
        cpu_quantize_rows(c, a->h, (size_t)hidden, NULL, rows, hidden, c->q8);
    return h;
}

/* The activations of jobs whose down projection wants them in 8 bits. Jobs of one width lie one behind the other, and are done at once. */
static void prepare_acts(cpu_device *c, cpu_expert_job *jobs, int count)
{
    uint8_t *to = c->q8 + c->q8_act_offset;
    for (int j = 0, end; j < count; j = end) {
        int64_t wide = jobs[j].w->down.cols;
        int lines = 0;
        for (end = j; end < count && jobs[end].act == jobs[j].act + lines * wide && jobs[end].w->down.cols == wide &&
                      wants_q8(c, &jobs[end].w->down);
             end++) {
            jobs[end].act_q8 = (void *)(to + (size_t)lines * cpu_q8_row_bytes(wide));
            lines += jobs[end].count;
        }
        if (end == j)
            end++;
        to += cpu_quantize_rows(c, jobs[j].act, (size_t)wide, NULL, lines, wide, to);
    }
    assert(to <= c->q8 + c->q8_bytes);
}

void cpu_gate_up(cpu_device *c, activations *a, const cpu_expert_job *jobs, int count, int rows)
{
    mlp_task t = {.c = c, .a = a, .jobs = jobs, .count = count, .rows = rows, .h = prepare_h(c, a, jobs, count, rows)};
    int64_t widest = 0;
    int most = 0; /* rows of one job */
    for (int j = 0; j < count; j++) {
        widest = jobs[j].w->gate.rows > widest ? jobs[j].w->gate.rows : widest;
        most = jobs[j].count > most ? jobs[j].count : most;
    }
    t.columns = cpu_task_columns(&jobs[0].w->gate, most, c->threads);
    t.blocks = (int)((widest + t.columns - 1) / t.columns);
    pool_run(c->workers, count * t.blocks, gate_up_block, &t);
}

void cpu_down(cpu_device *c, activations *a, cpu_expert_job *jobs, int count, int rows)
{
    mlp_task t = {.c = c, .a = a, .jobs = jobs, .count = count, .rows = rows};
    int64_t hidden = c->base.model->config.hidden_size;
    prepare_acts(c, jobs, count);
    t.columns = cpu_task_columns(&jobs[0].w->down, rows, c->threads);
    pool_run(c->workers, (int)((hidden + t.columns - 1) / t.columns), down_block, &t);
}

static void run_jobs(cpu_device *c, activations *a, cpu_expert_job *jobs, int count, int rows)
{
    cpu_gate_up(c, a, jobs, count, rows);
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
                                                      a->mlp_act + (int64_t)first * m->expert_intermediate, NULL};
    }
    for (int p = 0; p < pairs; p++) {
        int slot = next[a->router_experts[p]]++;
        c->expert_rows[slot] = p / m->experts_per_token;
        c->expert_weights[slot] = a->router_weights[p];
    }
    if (w->shared.gate.format)
        c->expert_jobs[jobs++] = (cpu_expert_job){&w->shared, rows, NULL, NULL, a->mlp_act + (int64_t)pairs * m->expert_intermediate,
                                                  NULL};
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
    cpu_expert_job dense = {&w->mlp, s->rows, NULL, NULL, a->mlp_act, NULL};
    run_jobs(c, a, &dense, 1, s->rows);
}
