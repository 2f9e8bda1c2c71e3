#include "commands/dispatch_report.h"

#include <string.h>

#include "base/log.h"

enum { SHOWN = 3 };

/* The first untuned shapes: "a; b; c and 4 more". Returns how many there are. */
static int untuned_shapes(const dispatch_table *t, text *out)
{
    int count = 0;
    for (int i = 0; i < t->count; i++) {
        if (t->rows[i].source != DISPATCH_HEURISTIC)
            continue;
        if (count < SHOWN) {
            text_add_text(out, count ? "; " : "");
            dispatch_describe(&t->rows[i].key, out);
        }
        count++;
    }
    if (count > SHOWN)
        text_add_format(out, " and %d more", count - SHOWN);
    return count;
}

static bool refuse_untuned(const dispatch_table *t, const char *tune_command, error *err)
{
    text shapes = {0};
    int count = untuned_shapes(t, &shapes);
    if (count)
        error_set(err, ERROR_DEVICE, "--require-tuned: %d of %d shapes have no tuned kernel for %s: %s; to measure them, run %s", count,
                  t->count, t->device_name, shapes.data, tune_command);
    text_free(&shapes);
    return count == 0;
}

static void warn_stale(const dispatch_table *t, const char *tune_command)
{
    if (t->stale == 1)
        log_warning("%s: %s; this shape uses the heuristic. Run %s again", t->tuned_path, t->stale_words, tune_command);
    else if (t->stale > 1)
        log_warning("%s: %s; %d more rows cannot be used either. These shapes use the heuristic. Run %s again", t->tuned_path,
                    t->stale_words, t->stale - 1, tune_command);
}

static void warn_missing(const dispatch_table *t, const char *tune_command)
{
    int count = 0;
    for (int i = 0; i < t->count; i++) {
        const dispatch_row *row = &t->rows[i];
        if (row->source != DISPATCH_HEURISTIC || count++ >= SHOWN)
            continue;
        text words = {0};
        dispatch_describe(&row->key, &words);
        log_warning("no tuned kernel for %s: \"%s\" is used, by rule", words.data, row->name);
        text_free(&words);
    }
    if (count > SHOWN)
        log_warning("%d more shapes have no tuned kernel; drawbridge inspect --dispatch lists them, %s measures them", count - SHOWN,
                    tune_command);
}

bool dispatch_report_check(const dispatch_table *t, bool directory_given, bool require, const char *tune_command, error *err)
{
    if (require && !refuse_untuned(t, tune_command, err))
        return false;
    if (t->forced[0])
        return true;
    warn_stale(t, tune_command);
    if (t->tuned_path[0])
        warn_missing(t, tune_command);
    else if (directory_given)
        log_warning("--tuned has no table for this device (%s.csv): all %d shapes have their kernels by rule; %s measures them",
                    t->device_name, dispatch_count(t).shapes, tune_command);
    return true;
}

void dispatch_report_print(const dispatch_table *t, FILE *out)
{
    text summary = {0};
    dispatch_summary(t, &summary);
    fprintf(out, "device  %s\ntable   %s\n\n", t->device_name, t->tuned_path[0] ? t->tuned_path : "none");
    fprintf(out, "%-9s %-12s %8s %8s %5s %6s  %-20s %-10s %10s\n", "operation", "format", "n", "k", "rows", "uses", "variant", "source",
            "us");
    for (int i = 0; i < t->count; i++) {
        const dispatch_row *r = &t->rows[i];
        fprintf(out, "%-9s %-12s %8d %8d %5s %6d  %-20s %s", r->key.operation, r->key.format, r->key.n, r->key.k,
                dispatch_bucket_name(r->key.bucket), r->uses, r->name, dispatch_source_name(r->source));
        if (r->us > 0)
            fprintf(out, "%*.1f", 21 - (int)strlen(dispatch_source_name(r->source)), r->us);
        fputc('\n', out);
    }
    fprintf(out, "\n%s\n", summary.data);
    text_free(&summary);
}

static json_t *row_json(const dispatch_row *r)
{
    json_t *row = json_pack("{s:s, s:s, s:i, s:i, s:s, s:i, s:i, s:s, s:s}", "operation", r->key.operation, "format", r->key.format, "n",
                            r->key.n, "k", r->key.k, "rows", dispatch_bucket_name(r->key.bucket), "uses", r->uses, "choices", r->choices,
                            "variant", r->name, "source", dispatch_source_name(r->source));
    json_object_set_new(row, "us", r->us > 0 ? json_real(r->us) : json_null());
    return row;
}

json_t *dispatch_report_json(const dispatch_table *t)
{
    dispatch_counts c = dispatch_count(t);
    json_t *rows = json_array(), *names = json_array();
    const char *name;
    for (int i = 0; (name = dispatch_kernels_name(t, i)); i++)
        json_array_append_new(names, json_string(name));
    for (int i = 0; i < t->count; i++)
        json_array_append_new(rows, row_json(&t->rows[i]));
    return json_pack("{s:s, s:s?, s:s?, s:i, s:i, s:i, s:i, s:i, s:o, s:o}", "device", t->device_name, "table",
                     t->tuned_path[0] ? t->tuned_path : NULL, "forced", t->forced[0] ? t->forced : NULL, "shapes", c.shapes, "tuned",
                     c.tuned, "only", c.only, "heuristic", c.heuristic, "stale", t->stale, "kernels", names, "rows", rows);
}
