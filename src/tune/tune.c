#include "tune/tune.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"

enum { CHOICES_MOST = 64 };

/* How many rows are measured for a bucket; 0: it is not among the options. */
static int rows_of_bucket(const tune_options *o, int bucket)
{
    for (int i = 0; i < o->row_count; i++)
        if (dispatch_bucket(o->rows[i]) == bucket)
            return o->rows[i];
    return 0;
}

static bool is_wanted(const tune_options *o, const dispatch_key *key)
{
    return rows_of_bucket(o, key->bucket) > 0 && (!o->wanted || o->wanted(o->context, key));
}

/* Whether the table's row still says something about this program. */
static bool is_current(const dispatch_table *t, const tuned_row *row, const int *choices, int count)
{
    bool exists = false;
    for (int i = 0; i < count; i++)
        exists = exists || strcmp(t->variants[choices[i]].name, row->variant) == 0;
    return exists && strcmp(row->version, DRAWBRIDGE_VERSION) == 0;
}

static void list_shapes(const dispatch_table *t, const tune_options *o, const tuned_table *known, tune_result *out)
{
    out->shapes = mem_alloc((size_t)t->count + 1, sizeof *out->shapes);
    for (int i = 0; i < t->count; i++) {
        const dispatch_key *key = &t->rows[i].key;
        int choices[CHOICES_MOST];
        if (!is_wanted(o, key))
            continue;
        tune_shape *s = &out->shapes[out->count++];
        *s = (tune_shape){.key = *key, .rows = rows_of_bucket(o, key->bucket), .variants = dispatch_choices(t, key, choices, CHOICES_MOST)};
        s->variants = s->variants < CHOICES_MOST ? s->variants : CHOICES_MOST;
        const tuned_row *row = tuned_find(known, key);
        if (s->variants == 1) {
            s->state = TUNE_ONLY;
        } else if (row && !o->force && is_current(t, row, choices, s->variants)) {
            s->state = TUNE_KEPT;
            s->row = *row;
        }
    }
}

/* The table's row for a measured key; the device goes on with the winner. */
static void decide(dispatch_table *t, dispatch_row *row, tune_shape *s, const tune_options *o, int rule, const int *choices,
                   const tune_time *times)
{
    int baseline = 0;
    while (choices[baseline] != rule)
        baseline++;
    int best = baseline;
    double factor = 1 + o->min_gain / 100;
    for (int i = 0; i < s->variants; i++)
        if (times[i].us < times[best].us && times[baseline].us >= times[i].us * factor && times[baseline].least >= times[i].least * factor)
            best = i;
    dispatch_set(t, row, choices[best]);
    s->row = (tuned_row){.n = s->key.n, .k = s->key.k, .bucket = s->key.bucket, .us = times[best].us,
                         .baseline_us = times[baseline].us};
    snprintf(s->row.operation, TUNED_NAME_MOST, "%s", s->key.operation);
    snprintf(s->row.format, TUNED_NAME_MOST, "%s", s->key.format);
    snprintf(s->row.variant, TUNED_NAME_MOST, "%s", t->variants[choices[best]].name);
    snprintf(s->row.baseline, TUNED_NAME_MOST, "%s", t->variants[rule].name);
    snprintf(s->row.version, TUNED_NAME_MOST, "%s", DRAWBRIDGE_VERSION);
    s->state = TUNE_MEASURED;
}

static void log_shape(const tune_shape *s)
{
    text words = {0};
    dispatch_describe(&s->key, &words);
    log_detail("%s: %s %.1f us (rule: %s %.1f us)", words.data, s->row.variant, s->row.us, s->row.baseline, s->row.baseline_us);
    text_free(&words);
}

static bool tune_shape_run(tune_bench *b, forward *f, tune_shape *s, const tune_options *o)
{
    dispatch_table *t = f->device->dispatch;
    dispatch_row *row = dispatch_find(t, &s->key);
    int choices[CHOICES_MOST], rule = row->variant;
    tune_time times[CHOICES_MOST];
    dispatch_choices(t, &s->key, choices, CHOICES_MOST);
    bool ok = tune_measure(b, row, s->rows, choices, s->variants, o->seconds, o->stop, times);
    if (ok)
        decide(t, row, s, o, rule, choices, times);
    else
        dispatch_set(t, row, rule);
    return ok;
}

static int count_state(const tune_result *r, tune_state state)
{
    int count = 0;
    for (int i = 0; i < r->count; i++)
        count += r->shapes[i].state == state;
    return count;
}

static bool measure_shapes(forward *f, tune_bench *b, const tune_options *o, tuned_table *table, tune_result *out, error *err)
{
    int waiting = count_state(out, TUNE_WAITING), done = 0;
    progress *shown = progress_start("tuning", "shapes", waiting);
    bool ok = true;
    for (int i = 0; ok && i < out->count; i++) {
        tune_shape *s = &out->shapes[i];
        if (s->state != TUNE_WAITING)
            continue;
        progress_update(shown, done);
        if (!tune_shape_run(b, f, s, o)) {
            ok = error_set(err, ERROR_INTERRUPTED, "interrupted after %d of %d shapes; they are in %s, and the same command goes on", done,
                           waiting, o->path);
            break;
        }
        tuned_put(table, &s->row);
        ok = tuned_write(table, o->path, err);
        log_shape(s);
        done++;
    }
    progress_finish(shown);
    return ok;
}

bool tune_run(forward *f, const tune_options *o, tune_result *out, error *err)
{
    tuned_table table = {0};
    int most = 0;
    for (int i = 0; i < o->row_count; i++)
        most = o->rows[i] > most ? o->rows[i] : most;
    bool ok = !file_exists(o->path) || tuned_read(o->path, &table, err);
    if (ok)
        list_shapes(f->device->dispatch, o, &table, out);
    if (ok && count_state(out, TUNE_WAITING) > 0) {
        tune_bench *b = tune_bench_create(f, most, o->clock ? o->clock : clock_now_us, err);
        ok = b && measure_shapes(f, b, o, &table, out, err);
        tune_bench_destroy(b);
    }
    tuned_free(&table);
    return ok;
}

void tune_result_free(tune_result *r)
{
    free(r->shapes);
    *r = (tune_result){0};
}

/* ---- before and after ---- */

static void print_shape(const tune_shape *s, FILE *out)
{
    const tuned_row *r = &s->row;
    fprintf(out, "%-9s %-12s %8d %8d %5s  %-20s %10.1f  %-20s %10.1f %6.1f%%\n", s->key.operation, s->key.format, s->key.n, s->key.k,
            dispatch_bucket_name(s->key.bucket), r->baseline, r->baseline_us, r->variant, r->us, 100 * (r->baseline_us / r->us - 1));
}

/* Sums of one bucket: what choosing is worth for steps of such a size. */
static void print_bucket(const tune_result *r, int bucket, FILE *out)
{
    double before = 0, after = 0;
    int count = 0, changed = 0;
    for (int i = 0; i < r->count; i++) {
        const tune_shape *s = &r->shapes[i];
        if (s->key.bucket != bucket || (s->state != TUNE_MEASURED && s->state != TUNE_KEPT))
            continue;
        before += s->row.baseline_us;
        after += s->row.us;
        changed += strcmp(s->row.variant, s->row.baseline) != 0;
        count++;
    }
    if (count)
        fprintf(out, "rows %-5s %4d shapes, %3d changed: one of each takes %10.1f us by rule, %10.1f us tuned (%.1f%%)\n",
                dispatch_bucket_name(bucket), count, changed, before, after, 100 * (before / after - 1));
}

void tune_result_print(const tune_result *r, FILE *out)
{
    int measured = count_state(r, TUNE_MEASURED);
    if (measured)
        fprintf(out, "%-9s %-12s %8s %8s %5s  %-20s %10s  %-20s %10s %7s\n", "operation", "format", "n", "k", "rows", "before", "us",
                "after", "us", "gain");
    for (int i = 0; i < r->count; i++)
        if (r->shapes[i].state == TUNE_MEASURED)
            print_shape(&r->shapes[i], out);
    if (measured)
        fputc('\n', out);
    for (int bucket = 0; bucket < DISPATCH_BUCKETS; bucket++)
        print_bucket(r, bucket, out);
    fprintf(out, "%d shapes: %d measured, %d in the table before, %d with one kernel, %d left\n", r->count, measured,
            count_state(r, TUNE_KEPT), count_state(r, TUNE_ONLY), count_state(r, TUNE_WAITING));
}
