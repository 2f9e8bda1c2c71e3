/* Steps: their tables on the way to the GPU, and the recording and replay of programs. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/gpu/gpu_device.h"

enum { FIRST_TABLE_ENTRIES = 1 << 16 };

/* Rows are rounded up by less than a quarter: some kernels compute the rows that are not there. One recording for each. */
int gpu_bucket_rows(const gpu_device *g, int rows)
{
    int unit = 1;
    while (unit * 8 < rows)
        unit *= 2;
    int bucket = (rows + unit - 1) / unit * unit;
    return bucket < g->max_rows ? bucket : g->max_rows;
}

static void free_step(gpu_device *g)
{
    gpu_free(g->step);
    g->step = NULL;
    for (int i = 0; i < GPU_STAGINGS; i++) {
        gpu_free_host(g->staging[i].memory);
        g->staging[i].memory = NULL;
    }
}

static gpu_status alloc_step(gpu_device *g, size_t bytes)
{
    gpu_status s = gpu_alloc((void **)&g->step, bytes);
    g->step_bytes = bytes;
    for (int i = 0; s == GPU_OK && i < GPU_STAGINGS; i++)
        s = gpu_alloc_host((void **)&g->staging[i].memory, bytes);
    return s;
}

static size_t step_bytes_for(const gpu_device *g, size_t table_entries)
{
    return sizeof(gpu_step) + (4 * (size_t)g->max_rows + 1 + table_entries) * sizeof(int32_t);
}

bool gpu_step_create(gpu_device *g, error *err)
{
    gpu_status s = alloc_step(g, step_bytes_for(g, FIRST_TABLE_ENTRIES));
    for (int i = 0; s == GPU_OK && i < GPU_STAGINGS; i++)
        s = gpu_event_create(&g->staging[i].sent);
    return s == GPU_OK || error_set(err, ERROR_DEVICE, "no memory for the tables of a step on the GPU: %s", gpu_words(s));
}

static void drop_recordings(gpu_device *g)
{
    for (int i = 0; i < g->recording_count; i++)
        if (g->recordings[i].graph)
            gpu_graph_destroy(g->recordings[i].graph);
    g->recording_count = 0;
}

void gpu_step_destroy(gpu_device *g)
{
    drop_recordings(g);
    free_step(g);
    for (int i = 0; i < GPU_STAGINGS; i++)
        gpu_event_destroy(g->staging[i].sent);
    free(g->sequence_pages);
}

/* Pinned memory that is free again. */
static uint8_t *staging_next(gpu_device *g, size_t bytes)
{
    assert(bytes <= g->step_bytes);
    g->turn = (g->turn + 1) % GPU_STAGINGS;
    gpu_must(gpu_event_wait(g->staging[g->turn].sent), "waiting for an earlier step");
    return g->staging[g->turn].memory;
}

/* The first bytes of it, to the GPU. */
static void send_staging(gpu_device *g, void *to, size_t bytes)
{
    gpu_staging *from = &g->staging[g->turn];
    gpu_must(gpu_to_device(to, from->memory, bytes, g->stream), "copying the tables of a step");
    gpu_must(gpu_event_record(from->sent, g->stream), "copying the tables of a step");
}

void gpu_send_list(gpu_device *g, int count, const int32_t *rows)
{
    size_t bytes = ((size_t)count + 1) * sizeof(int32_t);
    assert(count <= g->max_rows);
    int32_t *list = (int32_t *)(void *)staging_next(g, bytes);
    list[0] = count;
    memcpy(list + 1, rows, (size_t)count * sizeof *rows);
    send_staging(g, g->row_list, bytes);
}

/* Pages that each sequence of the step needs, at g->sequence_pages[sequence]; returns how many sequences there are. */
static int count_pages(gpu_device *g, const step *s, size_t *total)
{
    int sequences = 0;
    for (int i = 0; i < s->rows; i++)
        sequences = s->sequences[i] >= sequences ? s->sequences[i] + 1 : sequences;
    if (sequences > g->most_sequences) {
        g->most_sequences = 2 * sequences;
        g->sequence_pages = mem_grow(g->sequence_pages, (size_t)g->most_sequences, sizeof *g->sequence_pages);
    }
    memset(g->sequence_pages, 0, (size_t)sequences * sizeof *g->sequence_pages);
    for (int i = 0; i < s->rows; i++) {
        int32_t needs = s->positions[i] / KV_PAGE_TOKENS + 1, *has = &g->sequence_pages[s->sequences[i]];
        *has = needs > *has ? needs : *has;
    }
    *total = 0;
    for (int i = 0; i < sequences; i++)
        *total += (size_t)g->sequence_pages[i];
    return sequences;
}

/* More table entries than there was room for: recordings hold the old address. */
static void grow(gpu_device *g, size_t entries)
{
    gpu_must(gpu_stream_wait(g->stream), "waiting for an earlier step");
    drop_recordings(g);
    free_step(g);
    gpu_must(alloc_step(g, step_bytes_for(g, 2 * entries)), "finding memory for the tables of a step");
}

/* header | tokens | positions | sequences | table_first | tables */
static void send_step(gpu_device *g, const step *s)
{
    size_t rows = (size_t)s->rows, total;
    int sequences = count_pages(g, s, &total);
    const int32_t *pages = g->sequence_pages;
    size_t bytes = sizeof(gpu_step) + (3 * rows + (size_t)sequences + total) * sizeof(int32_t);
    if (bytes > g->step_bytes)
        grow(g, (size_t)sequences + total);
    uint8_t *staging = staging_next(g, bytes);
    int32_t *to = (int32_t *)(void *)(staging + sizeof(gpu_step)), *first = to + 3 * rows, *table = first + sequences;
    const int32_t *there = (const int32_t *)(const void *)(g->step + 1);
    gpu_step header = {.rows = s->rows, .keep_keys = s->keep_keys, .tokens = there, .positions = there + rows,
                       .sequences = there + 2 * rows, .table_first = there + 3 * rows, .tables = there + 3 * rows + sequences,
                       .pages = s->pages};
    memcpy(staging, &header, sizeof header);
    memcpy(to, s->tokens, rows * sizeof *to);
    memcpy(to + rows, s->positions, rows * sizeof *to);
    memcpy(to + 2 * rows, s->sequences, rows * sizeof *to);
    for (int i = 0; i < sequences; i++) {
        first[i] = (int32_t)(table - (first + sequences));
        if (pages[i] > 0)
            memcpy(table, s->page_tables[i], (size_t)pages[i] * sizeof *table);
        table += pages[i];
    }
    send_staging(g, g->step, bytes);
}

static gpu_recording *find_recording(gpu_device *g, const gpu_recording *want)
{
    for (int i = 0; i < g->recording_count; i++) {
        gpu_recording *r = &g->recordings[i];
        if (r->program == want->program && r->rows == want->rows && r->hidden_in == want->hidden_in && r->x == want->x)
            return r;
    }
    return NULL;
}

/* A place for one more: the last, or that of the one not used for longest. */
static gpu_recording *place_for(gpu_device *g)
{
    if (g->recording_count < GPU_GRAPHS)
        return &g->recordings[g->recording_count++];
    gpu_recording *oldest = &g->recordings[0];
    for (int i = 1; i < GPU_GRAPHS; i++)
        oldest = g->recordings[i].used < oldest->used ? &g->recordings[i] : oldest;
    if (oldest->graph)
        gpu_graph_destroy(oldest->graph);
    return oldest;
}

bool gpu_begin(device *d, const step *s, device_program program, const float *hidden_in, activations *a)
{
    gpu_device *g = gpu_of(d);
    gpu_recording want = {.program = program, .rows = gpu_bucket_rows(g, s->rows), .hidden_in = hidden_in, .x = a->x,
                          .used = ++g->launches};
    assert(s->rows >= 1 && s->rows <= g->max_rows);
    send_step(g, s);
    g->rows = want.rows;
    if (program == DEVICE_LOOSE)
        return false;
    gpu_recording *known = find_recording(g, &want);
    if (!known) { /* the first time it runs as it is: kernels are loaded when they are first launched, which must not be recorded */
        *place_for(g) = want;
        return false;
    }
    known->used = g->launches;
    if (known->graph) {
        gpu_must(gpu_graph_launch(known->graph, g->stream), "replaying a step");
        return true;
    }
    g->open = known;
    gpu_must(gpu_capture_begin(g->stream), "recording a step");
    return false;
}

void gpu_end(device *d)
{
    gpu_device *g = gpu_of(d);
    if (!g->open)
        return;
    gpu_must(gpu_capture_end(g->stream, &g->open->graph), "recording a step");
    gpu_must(gpu_graph_launch(g->open->graph, g->stream), "running a step");
    g->open = NULL;
}
