#include "device/dispatch.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/random.h"
#include "device/tuned.h"

const char dispatch_linear[] = "linear", dispatch_experts[] = "experts", dispatch_absorb[] = "absorb", dispatch_value[] = "value",
           dispatch_attend[] = "attend", dispatch_index[] = "index";

/* ---- buckets ---- */

const int dispatch_bucket_rows[DISPATCH_BUCKETS] = {1, 4, 16, 64, 256, INT32_MAX};
static const int bucket_typical_rows[DISPATCH_BUCKETS] = {1, 3, 10, 32, 128, 512};
static const char *const bucket_names[DISPATCH_BUCKETS] = {"1", "4", "16", "64", "256", "more"};

int dispatch_bucket(int rows)
{
    int bucket = 0;
    while (rows > dispatch_bucket_rows[bucket])
        bucket++;
    return bucket;
}

const char *dispatch_bucket_name(int bucket)
{
    return bucket_names[bucket];
}

int dispatch_bucket_named(view name)
{
    for (int i = 0; i < DISPATCH_BUCKETS; i++)
        if (view_equal_text(name, bucket_names[i]))
            return i;
    return -1;
}

/* ---- rows ---- */

static bool same_name(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

static bool same_key(const dispatch_key *a, const dispatch_key *b)
{
    return a->n == b->n && a->k == b->k && a->bucket == b->bucket && same_name(a->operation, b->operation) &&
           same_name(a->format, b->format);
}

static uint64_t key_hash(const dispatch_key *key)
{
    uint64_t operation = (unsigned char)key->operation[0], stored = (unsigned char)key->format[0];
    uint64_t names = operation << 16 | stored << 8 | (unsigned)key->bucket;
    return random_mix((uint64_t)(uint32_t)key->n << 32 | (uint32_t)key->k) ^ random_mix(names);
}

/* The slot that holds the key, or the empty one where it belongs. */
static int *slot_of(const dispatch_table *t, const dispatch_key *key)
{
    unsigned mask = (unsigned)t->slot_count - 1;
    for (unsigned i = (unsigned)key_hash(key) & mask;; i = (i + 1) & mask)
        if (t->slots[i] == 0 || same_key(&t->rows[t->slots[i] - 1].key, key))
            return &t->slots[i];
}

static void rebuild_slots(dispatch_table *t, int slot_count)
{
    free(t->slots);
    t->slots = mem_alloc((size_t)slot_count, sizeof *t->slots);
    t->slot_count = slot_count;
    for (int i = 0; i < t->count; i++)
        *slot_of(t, &t->rows[i].key) = i + 1;
}

dispatch_row *dispatch_find(dispatch_table *t, const dispatch_key *key)
{
    int row = t->slot_count ? *slot_of(t, key) : 0;
    return row ? &t->rows[row - 1] : NULL;
}

void dispatch_add(dispatch_table *t, const dispatch_key *key)
{
    dispatch_row *known = dispatch_find(t, key);
    if (known) {
        known->uses++;
        return;
    }
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->rows = mem_grow(t->rows, (size_t)t->capacity, sizeof *t->rows);
        rebuild_slots(t, 4 * t->capacity);
    }
    t->rows[t->count] = (dispatch_row){.key = *key, .uses = 1, .variant = -1};
    *slot_of(t, key) = t->count + 1;
    t->count++;
}

void dispatch_free(dispatch_table *t)
{
    free(t->rows);
    free(t->slots);
    *t = (dispatch_table){0};
}

static int compare_rows(const void *a, const void *b)
{
    const dispatch_key *x = &((const dispatch_row *)a)->key, *y = &((const dispatch_row *)b)->key;
    int order = strcmp(x->operation, y->operation);
    order = order ? order : strcmp(x->format, y->format);
    order = order ? order : (x->n > y->n) - (x->n < y->n);
    order = order ? order : (x->k > y->k) - (x->k < y->k);
    return order ? order : x->bucket - y->bucket;
}

const void *dispatch_kernel(const dispatch_table *t, const char *operation, const char *stored, int64_t n, int64_t k, int rows)
{
    dispatch_key key = {operation, stored, (int)n, (int)k, dispatch_bucket(rows)};
    int row = *slot_of(t, &key);
    assert(row > 0); /* dispatch_visit names all work; what it does not name must not be computed by chance */
    return t->variants[t->rows[row - 1].variant].kernel;
}

/* ---- the choice ---- */

static int level_named(const dispatch_table *t, const char *name)
{
    for (int i = 0; i <= t->level; i++)
        if (strcmp(t->levels[i], name) == 0)
            return i;
    return -1;
}

static bool can_run(const dispatch_table *t, const dispatch_variant *v, const dispatch_key *key)
{
    return v->level <= t->level && same_name(v->operation, key->operation) && (!v->supports || v->supports(v, key));
}

/* Whether --kernels allows a variant, given the best level that any allowed one has for this key. */
static bool is_allowed(const dispatch_table *t, const dispatch_variant *v, const dispatch_key *key)
{
    if (!t->forced[0])
        return true;
    int level = level_named(t, t->forced);
    bool named = false;
    int best = -1;
    for (int i = 0; i < t->variant_count; i++) {
        const dispatch_variant *other = &t->variants[i];
        if (!can_run(t, other, key))
            continue;
        named = named || strcmp(other->name, t->forced) == 0;
        if (other->level <= level && other->level > best)
            best = other->level;
    }
    if (level >= 0)
        return v->level == best;
    return !named || strcmp(v->name, t->forced) == 0;
}

int dispatch_choices(const dispatch_table *t, const dispatch_key *key, int *out, int most)
{
    int count = 0;
    for (int i = 0; i < t->variant_count; i++)
        if (can_run(t, &t->variants[i], key) && is_allowed(t, &t->variants[i], key)) {
            if (count < most)
                out[count] = i;
            count++;
        }
    return count;
}

void dispatch_set(dispatch_table *t, dispatch_row *row, int variant)
{
    row->variant = variant;
    row->name = t->variants[variant].name;
}

enum { CHOICES_MOST = 64 };

static bool is_better(const dispatch_variant *a, const dispatch_variant *b, int rows)
{
    bool a_fits = a->from_rows > 0 && a->from_rows <= rows, b_fits = b->from_rows > 0 && b->from_rows <= rows;
    if (a_fits != b_fits)
        return a_fits;
    return a->level != b->level ? a->level > b->level : a_fits && a->from_rows > b->from_rows;
}

static bool resolve_by_rule(dispatch_table *t, dispatch_row *row, error *err)
{
    int choices[CHOICES_MOST], count = dispatch_choices(t, &row->key, choices, CHOICES_MOST);
    if (count == 0) {
        text words = {0};
        dispatch_describe(&row->key, &words);
        error_set(err, ERROR_DEVICE, "no kernel of this device computes %s", words.data);
        text_free(&words);
        return false;
    }
    int chosen = choices[0];
    for (int i = 1; i < count && i < CHOICES_MOST; i++)
        if (is_better(&t->variants[choices[i]], &t->variants[chosen], bucket_typical_rows[row->key.bucket]))
            chosen = choices[i];
    dispatch_set(t, row, chosen);
    row->choices = count;
    row->source = count == 1 ? DISPATCH_ONLY : DISPATCH_HEURISTIC;
    row->us = 0;
    return true;
}

/* ---- tuned rows ---- */

static int choice_named(const dispatch_table *t, const dispatch_key *key, const char *name)
{
    int choices[CHOICES_MOST], count = dispatch_choices(t, key, choices, CHOICES_MOST);
    for (int i = 0; i < count && i < CHOICES_MOST; i++)
        if (strcmp(t->variants[choices[i]].name, name) == 0)
            return choices[i];
    return -1;
}

static void note_stale(dispatch_table *t, const tuned_row *from, const char *reason)
{
    if (t->stale++ == 0)
        snprintf(t->stale_words, sizeof t->stale_words, "line %d (%s %s %d x %d, rows %s) %s", from->line, from->operation, from->format,
                 from->n, from->k, dispatch_bucket_name(from->bucket), reason);
}

static void apply_tuned_row(dispatch_table *t, dispatch_row *row, const tuned_row *from)
{
    char reason[128];
    int variant = choice_named(t, &row->key, from->variant);
    if (strcmp(from->version, DRAWBRIDGE_VERSION) != 0) {
        snprintf(reason, sizeof reason, "was measured by version %s, this is %s", from->version, DRAWBRIDGE_VERSION);
        note_stale(t, from, reason);
    } else if (variant < 0) {
        snprintf(reason, sizeof reason, "names the kernel \"%s\", which is not there", from->variant);
        note_stale(t, from, reason);
    } else {
        dispatch_set(t, row, variant);
        row->us = from->us;
        if (row->choices > 1)
            row->source = DISPATCH_TUNED;
    }
}

static bool apply_tuned(dispatch_table *t, const char *directory, error *err)
{
    text path = {0};
    tuned_table found = {0};
    tuned_path(directory, t->device_name, &path);
    bool ok = true;
    if (file_exists(path.data)) {
        ok = tuned_read(path.data, &found, err);
        snprintf(t->tuned_path, sizeof t->tuned_path, "%s", path.data);
        for (int i = 0; ok && i < t->count; i++) {
            const tuned_row *from = tuned_find(&found, &t->rows[i].key);
            if (from)
                apply_tuned_row(t, &t->rows[i], from);
        }
    }
    tuned_free(&found);
    text_free(&path);
    return ok;
}

/* ---- everything ---- */

/* Whether a variant can run here and is the first of a name that no level has. */
static bool is_new_name(const dispatch_table *t, int variant)
{
    const dispatch_variant *v = &t->variants[variant];
    bool is_new = v->level <= t->level && level_named(t, v->name) < 0;
    for (int i = 0; i < variant && is_new; i++)
        is_new = strcmp(t->variants[i].name, v->name) != 0;
    return is_new;
}

const char *dispatch_kernels_name(const dispatch_table *t, int index)
{
    if (index <= t->level)
        return t->levels[index];
    int left = index - t->level;
    for (int i = 0; i < t->variant_count; i++)
        if (is_new_name(t, i) && --left == 0)
            return t->variants[i].name;
    return NULL;
}

static bool is_known(const dispatch_table *t, const char *name)
{
    const char *known;
    for (int i = 0; (known = dispatch_kernels_name(t, i)); i++)
        if (strcmp(known, name) == 0)
            return true;
    return false;
}

static bool unknown_kernels(const dispatch_table *t, const char *name, error *err)
{
    text known = {0};
    const char *other;
    for (int i = 0; (other = dispatch_kernels_name(t, i)); i++)
        text_add_format(&known, i ? ", \"%s\"" : "\"%s\"", other);
    error_set(err, ERROR_USAGE, "there are no kernels \"%s\" on this machine; there are %s", name, known.data);
    text_free(&known);
    return false;
}

bool dispatch_resolve(dispatch_table *t, const char *tuned_directory, const char *kernels, error *err)
{
    if (kernels && !is_known(t, kernels))
        return unknown_kernels(t, kernels, err);
    snprintf(t->forced, sizeof t->forced, "%s", kernels ? kernels : "");
    t->tuned_path[0] = '\0';
    t->stale = 0;
    qsort(t->rows, (size_t)t->count, sizeof *t->rows, compare_rows);
    if (t->count)
        rebuild_slots(t, t->slot_count);
    for (int i = 0; i < t->count; i++)
        if (!resolve_by_rule(t, &t->rows[i], err))
            return false;
    return kernels || !tuned_directory || apply_tuned(t, tuned_directory, err);
}

/* ---- words ---- */

const char *dispatch_source_name(dispatch_source s)
{
    return s == DISPATCH_ONLY ? "only" : s == DISPATCH_TUNED ? "tuned" : "heuristic";
}

void dispatch_describe(const dispatch_key *key, text *out)
{
    text_add_format(out, "%s %s %d x %d, %s row%s", key->operation, key->format, key->n, key->k,
                    key->bucket == DISPATCH_BUCKETS - 1 ? "more" : dispatch_bucket_name(key->bucket), key->bucket ? "s" : "");
}

dispatch_counts dispatch_count(const dispatch_table *t)
{
    dispatch_counts c = {.shapes = t->count};
    for (int i = 0; i < t->count; i++) {
        c.tuned += t->rows[i].source == DISPATCH_TUNED;
        c.only += t->rows[i].source == DISPATCH_ONLY;
        c.heuristic += t->rows[i].source == DISPATCH_HEURISTIC;
    }
    return c;
}

void dispatch_summary(const dispatch_table *t, text *out)
{
    dispatch_counts c = dispatch_count(t);
    text_add_format(out, "%d shapes, %d tuned", c.shapes, c.tuned);
    if (c.only)
        text_add_format(out, ", %d with one kernel", c.only);
    text_add_format(out, ", %d heuristic", c.heuristic);
    if (t->forced[0])
        text_add_format(out, "; FORCED to %s by --kernels", t->forced);
    else if (!t->tuned_path[0])
        text_add_format(out, "; no table for %s", t->device_name);
}

/* Words of a processor's name that say nothing about which one it is. */
static bool is_filler(const char *word)
{
    static const char *const fillers[] = {"r", "tm", "c", "cpu", "processor", "with", "core", "cores"};
    for (size_t i = 0; i < sizeof fillers / sizeof *fillers; i++)
        if (strcmp(word, fillers[i]) == 0)
            return true;
    return false;
}

void dispatch_device_name(const char *cpu_model, const char *level, int threads, char out[64])
{
    enum { MODEL_MOST = 40 };
    char model_part[MODEL_MOST + 1] = "";
    size_t used = 0;
    for (const char *s = cpu_model; *s && *s != '@';) {
        char word[24];
        size_t length = 0;
        for (; isalnum((unsigned char)*s); s++)
            if (length + 1 < sizeof word)
                word[length++] = (char)tolower((unsigned char)*s);
        word[length] = '\0';
        bool counts_cores = *s == '-' && (strncmp(s, "-Core", 5) == 0 || strncmp(s, "-core", 5) == 0);
        if (length && !counts_cores && !is_filler(word) && used + length + 1 <= MODEL_MOST)
            used += (size_t)snprintf(model_part + used, sizeof model_part - used, "%s%s", used ? "-" : "", word);
        while (*s && *s != '@' && !isalnum((unsigned char)*s))
            s++;
    }
    snprintf(out, 64, "%s-%.12s-%dt", used ? model_part : "cpu", level, threads);
}
