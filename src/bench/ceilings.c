#define _DEFAULT_SOURCE /* madvise, MADV_HUGEPAGE */
#include "bench/ceilings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/threads.h"
#include "bench/peaks.h"

enum { LEAST_READ_BYTES = 512 << 20, CACHES = 4, PIECE_BYTES = 4 << 20, PIECES_PER_THREAD = 64, LEAST_ROUNDS = 3 };

/* One measurement: pieces for the pool. */
typedef struct ceiling_task {
    const uint8_t *memory;
    const peak_loop *loop;
    uint64_t sinks[64][8]; /* a cache line per worker, so that writing it costs nothing */
} ceiling_task;

static double seconds_now(const ceilings_options *o, int threads)
{
    struct timespec t;
    clock_gettime(o->processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / (o->processor_time ? threads : 1);
}

static void read_piece(void *context, int piece, int worker)
{
    ceiling_task *t = context;
    const uint64_t *p = (const uint64_t *)(const void *)(t->memory + (size_t)piece * PIECE_BYTES);
    uint64_t sum[16] = {0};
    for (size_t i = 0; i < PIECE_BYTES / 8; i += 16)
        for (size_t j = 0; j < 16; j++)
            sum[j] += p[i + j];
    for (int j = 0; j < 16; j++)
        t->sinks[worker % 64][0] += sum[j];
}

static void peak_piece(void *context, int piece, int worker)
{
    ceiling_task *t = context;
    t->sinks[worker % 64][0] += t->loop->run(piece % 8 + 1);
}

/* Seconds of the best round of count pieces. */
static double best_seconds(const ceilings_options *o, pool *p, int count, pool_task task, ceiling_task *context)
{
    int threads = pool_threads(p);
    double best = 1e30, begun = seconds_now(o, threads);
    for (int round = 0; round < LEAST_ROUNDS || seconds_now(o, threads) - begun < o->seconds; round++) {
        double start = seconds_now(o, threads);
        pool_run(p, count, task, context);
        double seconds = seconds_now(o, threads) - start;
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* Operations per second, in units of 1e9, of the fastest loop. */
static double best_peak(const ceilings_options *o, pool *p, const peak_loop *(*at)(int), ceiling_task *t, const char **name)
{
    int pieces = pool_threads(p) * PIECES_PER_THREAD;
    double best = 0;
    for (int i = 0; (t->loop = at(i)) && (i == 0 || !t->loop->plain); i++) {
        double rate = t->loop->operations * pieces * 1e-9 / best_seconds(o, p, pieces, peak_piece, t);
        if (rate > best) {
            best = rate;
            *name = t->loop->name;
        }
    }
    return best;
}

static size_t read_block_bytes(const ceilings_options *o)
{
    if (o->read_bytes)
        return (o->read_bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t wanted = cache > 0 ? (size_t)cache * CACHES : 0;
    return (wanted > LEAST_READ_BYTES ? wanted : LEAST_READ_BYTES) / PIECE_BYTES * PIECE_BYTES;
}

static void measure_reading(const ceilings_options *o, pool *alone, pool *all, ceiling_task *t, ceilings *out)
{
    int pieces = (int)(out->read_bytes / PIECE_BYTES);
    double bytes = (double)out->read_bytes * 1e-9;
    out->read_one_gb_s = bytes / best_seconds(o, alone, pieces, read_piece, t);
    out->read_gb_s = o->threads == 1 ? out->read_one_gb_s : bytes / best_seconds(o, all, pieces, read_piece, t);
}

bool ceilings_measure(const ceilings_options *o, ceilings *out, error *err)
{
    *out = (ceilings){.threads = o->threads, .read_bytes = read_block_bytes(o)};
    uint8_t *memory = mem_try_alloc_lazy(out->read_bytes);
    pool *alone = pool_create(1, err), *all = pool_create(o->threads, err);
    ceiling_task *t = mem_alloc(1, sizeof *t);
    bool ok = alone && all;
    if (!memory)
        ok = error_set(err, ERROR_FIT, "no memory for the %zu MB whose reading is measured", out->read_bytes >> 20);
    if (ok) {
        madvise(memory, out->read_bytes, MADV_HUGEPAGE); /* a wish: the bound is measured either way */
        memset(memory, 1, out->read_bytes);
        t->memory = memory;
        measure_reading(o, alone, all, t, out);
        out->fused_gflop_s = best_peak(o, all, peak_fused_at, t, &out->fused_name);
        out->bytes_gop_s = best_peak(o, all, peak_bytes_at, t, &out->bytes_name);
    }
    free(t);
    mem_free_lazy(memory);
    if (alone)
        pool_destroy(alone);
    if (all)
        pool_destroy(all);
    return ok;
}

static void take_larger(double *a, double b)
{
    *a = b > *a ? b : *a;
}

void ceilings_improve(ceilings *c, const ceilings *other)
{
    take_larger(&c->read_gb_s, other->read_gb_s);
    take_larger(&c->read_one_gb_s, other->read_one_gb_s);
    if (other->fused_gflop_s > c->fused_gflop_s)
        c->fused_name = other->fused_name;
    if (other->bytes_gop_s > c->bytes_gop_s)
        c->bytes_name = other->bytes_name;
    take_larger(&c->fused_gflop_s, other->fused_gflop_s);
    take_larger(&c->bytes_gop_s, other->bytes_gop_s);
}

void ceilings_describe(const ceilings *c, text *out)
{
    text_add_format(out, "%d thread%s; reading %.1f GB/s (one thread %.1f), fused f32 %.0f GFLOP/s (%s), bytes %.0f Gop/s (%s)", c->threads,
                    c->threads == 1 ? "" : "s", c->read_gb_s, c->read_one_gb_s, c->fused_gflop_s, c->fused_name, c->bytes_gop_s,
                    c->bytes_name);
}

json_t *ceilings_json(const ceilings *c)
{
    return json_pack("{s:i, s:I, s:f, s:f, s:f, s:s, s:f, s:s}", "threads", c->threads, "read_block_bytes", (json_int_t)c->read_bytes,
                     "read_gb_s", c->read_gb_s, "read_one_thread_gb_s", c->read_one_gb_s, "fused_f32_gflop_s", c->fused_gflop_s,
                     "fused_f32_loop", c->fused_name, "bytes_gop_s", c->bytes_gop_s, "bytes_loop", c->bytes_name);
}
