/* CSV as RFC 4180 writes it: fields between commas, quoted where they hold commas, quotes ("" for one) or line ends. The first row
 * names the columns. A byte order mark and CRLF line ends are accepted. */
#ifndef BASE_CSV_H
#define BASE_CSV_H

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"

typedef struct csv_row {
    view *fields;   /* [csv_table.columns] */
    int64_t line;   /* where it begins in the file, from 1 */
} csv_row;

/* Zero-initialise to create one; csv_free in any case. */
typedef struct csv_table {
    view *names;    /* [columns] */
    size_t columns;
    csv_row *rows;  /* [count] */
    size_t count, capacity;
    arena memory;   /* holds the fields */
} csv_table;

/* Errors name `where` and the line. Every row must have as many fields as the first one. */
bool csv_parse(view bytes, const char *where, csv_table *out, error *err);
void csv_free(csv_table *t);

/* The column of a name; -1 when there is none. */
int csv_column(const csv_table *t, const char *name);

#endif
