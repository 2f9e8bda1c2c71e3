#include "device/dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

const int dispatch_bucket_rows[DISPATCH_BUCKETS] = {1, 4, 16, 64, 256, INT32_MAX};

int dispatch_bucket(int rows)
{
    int bucket = 0;
    while (dispatch_bucket_rows[bucket] < rows)
        bucket++;
    return bucket;
}

static int compare(const dispatch_key *a, const dispatch_key *b)
{
    int order = strcmp(a->operation, b->operation);
    order = order ? order : strcmp(a->format, b->format);
    order = order ? order : (a->n > b->n) - (a->n < b->n);
    order = order ? order : (a->k > b->k) - (a->k < b->k);
    return order ? order : a->bucket - b->bucket;
}

/* The first row that is not before the key. */
static int position(const dispatch_table *t, const dispatch_key *key)
{
    int first = 0, end = t->count;
    while (first < end) {
        int middle = (first + end) / 2;
        if (compare(&t->rows[middle].key, key) < 0)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

dispatch_row *dispatch_find(dispatch_table *t, const dispatch_key *key)
{
    int at = position(t, key);
    return at < t->count && compare(&t->rows[at].key, key) == 0 ? &t->rows[at] : NULL;
}

void dispatch_add(dispatch_table *t, const dispatch_key *key)
{
    dispatch_row *row = dispatch_find(t, key);
    if (row) {
        row->uses++;
        return;
    }
    int at = position(t, key);
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->rows = mem_grow(t->rows, (size_t)t->capacity, sizeof *t->rows);
    }
    memmove(t->rows + at + 1, t->rows + at, (size_t)(t->count - at) * sizeof *t->rows);
    t->rows[at] = (dispatch_row){.key = *key, .uses = 1};
    t->count++;
}

void dispatch_free(dispatch_table *t)
{
    free(t->rows);
    *t = (dispatch_table){0};
}

dispatch_counts dispatch_count(const dispatch_table *t)
{
    dispatch_counts counts = {.shapes = t->count};
    for (int i = 0; i < t->count; i++) {
        counts.tuned += t->rows[i].source == DISPATCH_TUNED;
        counts.only += t->rows[i].source == DISPATCH_ONLY;
        counts.heuristic += t->rows[i].source == DISPATCH_HEURISTIC;
    }
    return counts;
}
