#include "base/csv.h"

#include <stdlib.h>
#include <string.h>

typedef struct csv_reader {
    view bytes;
    size_t at;
    int64_t line;
    const char *where;
    text field;       /* the field being read */
    view *fields;     /* of the row being read */
    size_t count, capacity;
    csv_table *table;
} csv_reader;

static bool at_line_end(const csv_reader *r)
{
    if (r->at >= r->bytes.length || r->bytes.data[r->at] == '\n')
        return true;
    return r->bytes.data[r->at] == '\r' && (r->at + 1 == r->bytes.length || r->bytes.data[r->at + 1] == '\n');
}

static bool read_quoted(csv_reader *r, error *err)
{
    int64_t opened = r->line;
    for (r->at++; r->at < r->bytes.length; r->at++) {
        char c = r->bytes.data[r->at];
        if (c == '"' && !(r->at + 1 < r->bytes.length && r->bytes.data[r->at + 1] == '"')) {
            r->at++;
            if (at_line_end(r) || r->bytes.data[r->at] == ',')
                return true;
            return error_set(err, ERROR_INPUT, "%s line %lld: expected a comma or the end of the line behind a closing quote", r->where,
                             (long long)r->line);
        }
        r->at += c == '"';
        r->line += c == '\n';
        text_add_char(&r->field, c);
    }
    return error_set(err, ERROR_INPUT, "%s line %lld: the quote that opens here is never closed", r->where, (long long)opened);
}

static bool read_field(csv_reader *r, error *err)
{
    text_clear(&r->field);
    if (r->at < r->bytes.length && r->bytes.data[r->at] == '"')
        return read_quoted(r, err);
    for (; !at_line_end(r) && r->bytes.data[r->at] != ','; r->at++) {
        if (r->bytes.data[r->at] == '"')
            return error_set(err, ERROR_INPUT, "%s line %lld: a quote inside a field that is not quoted", r->where, (long long)r->line);
        text_add_char(&r->field, r->bytes.data[r->at]);
    }
    return true;
}

static void keep_field(csv_reader *r)
{
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? 2 * r->capacity : 16;
        r->fields = mem_grow(r->fields, r->capacity, sizeof *r->fields);
    }
    r->fields[r->count++] = (view){arena_copy(&r->table->memory, r->field.data ? r->field.data : "", r->field.length), r->field.length};
}

/* One row, its line end included. */
static bool read_row(csv_reader *r, error *err)
{
    r->count = 0;
    for (;;) {
        if (!read_field(r, err))
            return false;
        keep_field(r);
        if (at_line_end(r))
            break;
        r->at++; /* the comma */
    }
    if (r->at < r->bytes.length && r->bytes.data[r->at] == '\r')
        r->at++;
    r->at++;
    r->line++;
    return true;
}

static bool keep_row(csv_reader *r, int64_t line, error *err)
{
    csv_table *t = r->table;
    view *fields = arena_alloc(&t->memory, r->count, sizeof *fields);
    memcpy(fields, r->fields, r->count * sizeof *fields);
    if (!t->names) {
        t->names = fields;
        t->columns = r->count;
        return true;
    }
    if (r->count != t->columns)
        return error_set(err, ERROR_INPUT, "%s line %lld: expected %zu fields as in the first row, found %zu", r->where, (long long)line,
                         t->columns, r->count);
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->rows = mem_grow(t->rows, t->capacity, sizeof *t->rows);
    }
    t->rows[t->count++] = (csv_row){fields, line};
    return true;
}

bool csv_parse(view bytes, const char *where, csv_table *out, error *err)
{
    csv_reader r = {.bytes = bytes, .line = 1, .where = where, .table = out};
    if (bytes.length >= 3 && memcmp(bytes.data, "\xEF\xBB\xBF", 3) == 0)
        r.at = 3;
    bool ok = true;
    while (ok && r.at < bytes.length) {
        int64_t line = r.line;
        ok = read_row(&r, err) && keep_row(&r, line, err);
    }
    if (ok && !out->names)
        ok = error_set(err, ERROR_INPUT, "%s is empty, expected a row with the names of the columns", where);
    text_free(&r.field);
    free(r.fields);
    return ok;
}

void csv_free(csv_table *t)
{
    free(t->rows);
    arena_free(&t->memory);
    *t = (csv_table){0};
}

int csv_column(const csv_table *t, const char *name)
{
    for (size_t i = 0; i < t->columns; i++)
        if (view_equal_text(t->names[i], name))
            return (int)i;
    return -1;
}
