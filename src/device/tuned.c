#include "device/tuned.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/file.h"
#include "base/memory.h"

enum { COLUMN_OPERATION, COLUMN_FORMAT, COLUMN_N, COLUMN_K, COLUMN_ROWS, COLUMN_VARIANT, COLUMN_US, COLUMN_BASELINE, COLUMN_BASELINE_US,
       COLUMN_VERSION, COLUMNS };
static const char *const columns[COLUMNS] = {"operation", "format", "n", "k", "rows", "variant", "us", "baseline_variant", "baseline_us",
                                             "version"};

/* A row being read, with what its errors name. */
typedef struct reader {
    const char *where;
    int64_t line;
    const view *fields;
} reader;

static bool bad_field(const reader *r, int column, const char *expected, error *err)
{
    view found = r->fields[column];
    return error_set(err, ERROR_INPUT, "%s line %lld: %s must be %s, found \"%.*s\"", r->where, (long long)r->line, columns[column],
                     expected, found.length < 60 ? (int)found.length : 60, found.data);
}

/* Letters, digits and "_-. ", as names and versions have them: nothing that would need quotes. */
static bool read_name(const reader *r, int column, char out[TUNED_NAME_MOST], error *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. +";
    view f = r->fields[column];
    bool ok = f.length > 0 && f.length < TUNED_NAME_MOST && !memchr(f.data, '\0', f.length);
    for (size_t i = 0; ok && i < f.length; i++)
        ok = strchr(allowed, f.data[i]) != NULL;
    if (!ok || f.data[0] == ' ' || f.data[f.length - 1] == ' ')
        return bad_field(r, column, "a name of at most 47 letters, digits and _ - . +", err);
    memcpy(out, f.data, f.length);
    out[f.length] = '\0';
    return true;
}

static bool read_size(const reader *r, int column, int *out, error *err)
{
    view f = r->fields[column];
    int64_t value = 0;
    bool ok = f.length > 0 && f.length <= 10 && f.data[0] != '0';
    for (size_t i = 0; ok && i < f.length; i++) {
        ok = f.data[i] >= '0' && f.data[i] <= '9';
        value = 10 * value + (f.data[i] - '0');
    }
    if (!ok || value > INT32_MAX)
        return bad_field(r, column, "a whole number from 1 to 2147483647", err);
    *out = (int)value;
    return true;
}

static bool read_time(const reader *r, int column, double *out, error *err)
{
    view f = r->fields[column];
    char number[32], *end = number;
    bool ok = f.length > 0 && f.length < sizeof number && strspn(f.data, "0123456789.e+-") >= f.length;
    if (ok) {
        memcpy(number, f.data, f.length);
        number[f.length] = '\0';
        *out = strtod(number, &end);
    }
    if (!ok || *end || !(*out > 0 && *out < 1e12))
        return bad_field(r, column, "a time in microseconds above 0", err);
    return true;
}

static bool read_row(const reader *r, tuned_row *out, error *err)
{
    out->line = (int)r->line;
    if (!read_name(r, COLUMN_OPERATION, out->operation, err) || !read_name(r, COLUMN_FORMAT, out->format, err) ||
        !read_size(r, COLUMN_N, &out->n, err) || !read_size(r, COLUMN_K, &out->k, err))
        return false;
    if ((out->bucket = dispatch_bucket_named(r->fields[COLUMN_ROWS])) < 0)
        return bad_field(r, COLUMN_ROWS, "1, 4, 16, 64, 256 or more", err);
    return read_name(r, COLUMN_VARIANT, out->variant, err) && read_time(r, COLUMN_US, &out->us, err) &&
           read_name(r, COLUMN_BASELINE, out->baseline, err) && read_time(r, COLUMN_BASELINE_US, &out->baseline_us, err) &&
           read_name(r, COLUMN_VERSION, out->version, err);
}

static bool check_columns(const csv_table *t, const char *where, error *err)
{
    for (size_t i = 0; i < COLUMNS; i++)
        if (i >= t->columns || !view_equal_text(t->names[i], columns[i]))
            return error_set(err, ERROR_INPUT, "%s line 1: column %zu must be \"%s\", found \"%.*s\"; a tuned table begins with "
                             "operation,format,n,k,rows,variant,us,baseline_variant,baseline_us,version", where, i + 1, columns[i],
                             i < t->columns ? (int)(t->names[i].length < 40 ? t->names[i].length : 40) : 0,
                             i < t->columns ? t->names[i].data : "");
    return t->columns == COLUMNS || error_set(err, ERROR_INPUT, "%s line 1: a tuned table has %d columns, found %zu", where, COLUMNS,
                                              t->columns);
}

/* ---- order and search ---- */

static int compare_rows(const void *a, const void *b)
{
    const tuned_row *x = a, *y = b;
    int order = strcmp(x->operation, y->operation);
    order = order ? order : strcmp(x->format, y->format);
    order = order ? order : (x->n > y->n) - (x->n < y->n);
    order = order ? order : (x->k > y->k) - (x->k < y->k);
    return order ? order : x->bucket - y->bucket;
}

/* Where a key is or belongs, in a sorted table. */
static int place_of(const tuned_table *t, const tuned_row *key)
{
    int low = 0, high = t->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (compare_rows(&t->rows[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const tuned_row *tuned_find(const tuned_table *t, const dispatch_key *key)
{
    tuned_row wanted = {.n = key->n, .k = key->k, .bucket = key->bucket};
    snprintf(wanted.operation, sizeof wanted.operation, "%s", key->operation);
    snprintf(wanted.format, sizeof wanted.format, "%s", key->format);
    int place = place_of(t, &wanted);
    return place < t->count && compare_rows(&t->rows[place], &wanted) == 0 ? &t->rows[place] : NULL;
}

static void append_row(tuned_table *t, const tuned_row *row)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->rows = mem_grow(t->rows, (size_t)t->capacity, sizeof *t->rows);
    }
    t->rows[t->count++] = *row;
}

void tuned_put(tuned_table *t, const tuned_row *row)
{
    int place = place_of(t, row);
    if (place == t->count || compare_rows(&t->rows[place], row) != 0) {
        append_row(t, row);
        memmove(t->rows + place + 1, t->rows + place, (size_t)(t->count - 1 - place) * sizeof *t->rows);
    }
    t->rows[place] = *row;
}

/* ---- files ---- */

static bool check_duplicates(const tuned_table *t, const char *where, error *err)
{
    for (int i = 1; i < t->count; i++) {
        const tuned_row *a = &t->rows[i - 1], *b = &t->rows[i];
        if (compare_rows(a, b) == 0)
            return error_set(err, ERROR_INPUT, "%s line %d: %s %s %d x %d with rows %s is on line %d already; keep one of them", where,
                             a->line > b->line ? a->line : b->line, a->operation, a->format, a->n, a->k, dispatch_bucket_name(a->bucket),
                             a->line < b->line ? a->line : b->line);
    }
    return true;
}

bool tuned_parse(view bytes, const char *where, tuned_table *out, error *err)
{
    csv_table csv = {0};
    bool ok = csv_parse(bytes, where, &csv, err) && check_columns(&csv, where, err);
    for (size_t i = 0; ok && i < csv.count; i++) {
        reader r = {where, csv.rows[i].line, csv.rows[i].fields};
        tuned_row row = {0};
        ok = read_row(&r, &row, err);
        append_row(out, &row);
    }
    if (ok && out->count)
        qsort(out->rows, (size_t)out->count, sizeof *out->rows, compare_rows);
    ok = ok && check_duplicates(out, where, err);
    csv_free(&csv);
    return ok;
}

bool tuned_read(const char *path, tuned_table *out, error *err)
{
    text bytes = {0};
    bool ok = file_read(path, TUNED_FILE_MOST, &bytes, err) &&
              tuned_parse((view){bytes.data ? bytes.data : "", bytes.length}, path, out, err);
    text_free(&bytes);
    return ok;
}

void tuned_free(tuned_table *t)
{
    free(t->rows);
    *t = (tuned_table){0};
}

void tuned_format(const tuned_table *t, text *out)
{
    for (int i = 0; i < COLUMNS; i++)
        text_add_format(out, "%s%s", i ? "," : "", columns[i]);
    text_add_char(out, '\n');
    for (int i = 0; i < t->count; i++) {
        const tuned_row *r = &t->rows[i];
        text_add_format(out, "%s,%s,%d,%d,%s,%s,%.5g,%s,%.5g,%s\n", r->operation, r->format, r->n, r->k, dispatch_bucket_name(r->bucket),
                        r->variant, r->us, r->baseline, r->baseline_us, r->version);
    }
}

bool tuned_write(const tuned_table *t, const char *path, error *err)
{
    text bytes = {0};
    tuned_format(t, &bytes);
    file_writer *w = file_writer_open(path, err);
    bool ok = w && file_writer_add(w, bytes.data, bytes.length, err);
    if (ok)
        ok = file_writer_commit(w, err);
    else
        file_writer_abandon(w);
    text_free(&bytes);
    return ok;
}

void tuned_path(const char *directory, const char *device_name, text *out)
{
    text name = {0};
    text_add_format(&name, "%s.csv", device_name);
    path_join(out, directory, name.data);
    text_free(&name);
}
