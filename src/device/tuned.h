/* Tuned tables: tuned/<device>.csv, one line per key that `drawbridge tune` measured on such a device. All models that ran there share
 * the file; a model uses the rows that have its keys.
 *
 *     operation,format,n,k,rows,variant,us,baseline_variant,baseline_us,version
 *     linear,mxfp4,2048,512,16,avx2 panel,41.7,avx2,55.2,0.1.0
 *
 * rows is the bound of a bucket or "more"; us is the time of one unit of the work with the variant, baseline that of the rule's choice. */
#ifndef DEVICE_TUNED_H
#define DEVICE_TUNED_H

#include "base/error.h"
#include "base/text.h"
#include "device/dispatch.h"

enum { TUNED_NAME_MOST = 48, TUNED_FILE_MOST = 1 << 26 };

typedef struct tuned_row {
    char operation[TUNED_NAME_MOST], format[TUNED_NAME_MOST];
    int n, k, bucket;
    char variant[TUNED_NAME_MOST];
    double us;
    char baseline[TUNED_NAME_MOST];
    double baseline_us;
    char version[TUNED_NAME_MOST]; /* of the program that measured */
    int line;                      /* in the file; 0: not from one */
} tuned_row;

/* Zero-initialise to create one. */
typedef struct tuned_table {
    tuned_row *rows; /* [count] */
    int count, capacity;
} tuned_table;

/* Strict: the columns above in their order, no field empty, each key once. Errors name `where` and the line. tuned_free in any case. */
bool tuned_parse(view bytes, const char *where, tuned_table *out, error *err);
bool tuned_read(const char *path, tuned_table *out, error *err);
void tuned_free(tuned_table *t);

const tuned_row *tuned_find(const tuned_table *t, const dispatch_key *key); /* NULL: not there */

/* Adds a row, or replaces the one with its key. */
void tuned_put(tuned_table *t, const tuned_row *row);

void tuned_format(const tuned_table *t, text *out); /* the file's text, in the order of the keys */
bool tuned_write(const tuned_table *t, const char *path, error *err);

/* directory/<device>.csv */
void tuned_path(const char *directory, const char *device_name, text *out);

#endif
