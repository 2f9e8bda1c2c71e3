#include "eval/result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "eval/stats.h"

#define FORMAT_NAME "drawbridge eval 1"
enum { SAVE_US = 3000000 };
static const size_t DOCUMENT_LIMIT_BYTES = (size_t)1 << 32;
static const uint64_t BOOTSTRAP_SEED = 20261115;

static const char *string_of(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

/* ---- summary ---- */

static json_t *interval_json(stats_interval i)
{
    return isnan(i.low) ? json_null() : json_pack("[f, f]", i.low, i.high);
}

static json_t *accuracy_json(int64_t right, int64_t count)
{
    return json_pack("{s:I, s:I, s:f, s:o}", "items", (json_int_t)count, "correct", (json_int_t)right, "accuracy",
                     count ? (double)right / (double)count : 0.0, "interval", interval_json(stats_wilson(right, count)));
}

static void count_group(json_t *groups, const char *name, bool right)
{
    json_t *pair = json_object_get(groups, name);
    if (!pair) {
        pair = json_pack("[i, i]", 0, 0);
        json_object_set_new(groups, name, pair);
    }
    json_array_set_new(pair, 0, json_integer(json_integer_value(json_array_get(pair, 0)) + right));
    json_array_set_new(pair, 1, json_integer(json_integer_value(json_array_get(pair, 1)) + 1));
}

static json_t *summarize_accuracy(const json_t *items)
{
    json_t *counts = json_object(), *groups = json_object();
    int64_t right = 0, cut = 0, tokens = 0, unparsed = 0;
    size_t i;
    json_t *item, *pair;
    const char *name;
    json_array_foreach(items, i, item) {
        bool correct = json_is_true(json_object_get(item, "correct"));
        right += correct;
        cut += json_is_true(json_object_get(item, "cut"));
        tokens += json_integer_value(json_object_get(item, "tokens"));
        unparsed += !string_of(item, "parsed")[0];
        if (string_of(item, "group")[0])
            count_group(counts, string_of(item, "group"), correct);
    }
    json_t *summary = accuracy_json(right, (int64_t)json_array_size(items));
    json_object_set_new(summary, "cut", json_integer(cut));
    json_object_set_new(summary, "not_understood", json_integer(unparsed));
    json_object_set_new(summary, "tokens", json_integer(tokens));
    json_object_foreach(counts, name, pair) {
        json_object_set_new(
            groups, name,
            accuracy_json(json_integer_value(json_array_get(pair, 0)), json_integer_value(json_array_get(pair, 1))));
    }
    if (json_object_size(groups) > 1)
        json_object_set(summary, "groups", groups);
    json_decref(groups);
    json_decref(counts);
    return summary;
}

/* Sums and weights of every item, for means over tokens. */
static void sums_of(const json_t *items, const char *key, double *sums, double *weights)
{
    size_t i, k;
    json_t *item, *value;
    json_array_foreach(items, i, item) {
        const json_t *v = json_object_get(item, key);
        sums[i] = json_is_array(v) ? 0 : json_number_value(v);
        json_array_foreach(v, k, value) {
            sums[i] += json_number_value(value);
        }
        weights[i] = (double)json_integer_value(json_object_get(item, "tokens"));
    }
}

static double total(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static json_t *summarize_perplexity(const json_t *items)
{
    size_t count = json_array_size(items);
    double *sums = mem_alloc(count, sizeof *sums), *weights = mem_alloc(count, sizeof *weights);
    sums_of(items, "nll", sums, weights);
    double tokens = total(weights, count), nll = total(sums, count) / tokens;
    stats_interval i = stats_bootstrap(sums, weights, count, STATS_RESAMPLES, BOOTSTRAP_SEED);
    json_t *summary = json_pack("{s:I, s:I, s:f, s:f, s:o}", "windows", (json_int_t)count, "tokens", (json_int_t)tokens, "nll", nll,
                                "perplexity", exp(nll), "interval", interval_json((stats_interval){exp(i.low), exp(i.high)}));
    free(sums);
    free(weights);
    return summary;
}

static json_t *summarize_divergence(const json_t *items)
{
    size_t count = json_array_size(items), n = 0, i, k;
    double *sums = mem_alloc(count, sizeof *sums), *weights = mem_alloc(count, sizeof *weights);
    json_t *item, *value;
    int64_t agree = 0;
    sums_of(items, "kl", sums, weights);
    double positions = total(weights, count), mean = total(sums, count) / positions;
    double *all = mem_alloc((size_t)positions, sizeof *all);
    json_array_foreach(items, i, item) {
        agree += json_integer_value(json_object_get(item, "agree"));
        json_array_foreach(json_object_get(item, "kl"), k, value) {
            if (n < (size_t)positions)
                all[n++] = json_number_value(value);
        }
    }
    stats_interval kl = stats_bootstrap(sums, weights, count, STATS_RESAMPLES, BOOTSTRAP_SEED);
    json_t *summary =
        json_pack("{s:I, s:I, s:f, s:o, s:f, s:f, s:o}", "windows", (json_int_t)count, "positions", (json_int_t)positions,
                  "mean_kl", mean, "interval", interval_json(kl), "p99_kl", stats_quantile(all, n, 0.99), "top1_agreement",
                  (double)agree / positions, "top1_interval", interval_json(stats_wilson(agree, (int64_t)positions)));
    free(all);
    free(sums);
    free(weights);
    return summary;
}

static json_t *summarize(const json_t *items)
{
    const json_t *first = json_array_get(items, 0);
    if (!first)
        return json_object();
    if (json_object_get(first, "kl"))
        return summarize_divergence(items);
    return json_object_get(first, "nll") ? summarize_perplexity(items) : summarize_accuracy(items);
}

/* ---- documents ---- */

json_t *eval_result_document(const eval_result *r)
{
    json_t *document = json_copy(r->document), *items = json_array();
    for (size_t i = 0; i < r->count; i++)
        if (r->records[i])
            json_array_append(items, r->records[i]);
    json_object_set_new(document, "complete", json_boolean(r->done == r->count));
    json_object_set_new(document, "summary", summarize(items));
    json_object_set_new(document, "items", items);
    return document;
}

static int write_piece(const char *bytes, size_t count, void *writer)
{
    void **pair = writer;
    return file_writer_add(pair[0], bytes, count, pair[1]) ? 0 : -1;
}

bool eval_result_save(eval_result *r, error *err)
{
    if (!r->path)
        return true;
    file_writer *w = file_writer_open(r->path, err);
    if (!w)
        return false;
    json_t *document = eval_result_document(r);
    void *pair[2] = {w, err};
    bool ok = json_dump_callback(document, write_piece, pair, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0 &&
              file_writer_add(w, "\n", 1, err);
    json_decref(document);
    if (!ok) {
        file_writer_abandon(w);
        return err->text[0] ? false : error_set(err, ERROR_RUNTIME, "cannot write the results to %s", r->path);
    }
    r->saved_us = clock_now_us();
    return file_writer_commit(w, err);
}

/* What the rest of this file relies on. */
static bool item_ok(const json_t *item, size_t index, map *ids)
{
    bool scored = json_object_get(item, "nll") || json_object_get(item, "kl");
    return string_of(item, "id")[0] && string_of(item, "prompt")[0] && map_add(ids, view_of(string_of(item, "id")), (int64_t)index) &&
           (!scored || json_integer_value(json_object_get(item, "tokens")) > 0);
}

json_t *eval_document_load(const char *path, error *err)
{
    json_t *document = json_parse_file(path, DOCUMENT_LIMIT_BYTES, err);
    if (!document)
        return NULL;
    const json_t *items = json_object_get(document, "items");
    map ids = {0};
    bool ok = strcmp(string_of(document, "format"), FORMAT_NAME) == 0 && json_is_array(items);
    for (size_t i = 0; ok && i < json_array_size(items); i++)
        ok = item_ok(json_array_get(items, i), i, &ids);
    map_free(&ids);
    if (ok)
        return document;
    error_set(err, ERROR_INPUT,
              "%s is not a result of drawbridge eval (\"format\": \"" FORMAT_NAME "\" and items, each with an id of its own, a prompt, "
              "and for texts the number of tokens)",
              path);
    json_decref(document);
    return NULL;
}

/* ---- going on ---- */

static void hash_options(const json_t *options, char out[SHA256_TEXT_BYTES])
{
    char *dump = json_dumps(options, JSON_COMPACT | JSON_SORT_KEYS);
    sha256_hex(dump, strlen(dump), out);
    free(dump);
}

/* The first option that differs, for the message. */
static const char *first_difference(const json_t *mine, const json_t *theirs)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)mine, key, value) {
        if (!json_equal(value, json_object_get(theirs, key)))
            return key;
    }
    return "an option";
}

static bool check_same_run(const eval_result *r, const json_t *saved, error *err)
{
    if (strcmp(string_of(saved, "options_hash"), string_of(r->document, "options_hash")) == 0)
        return true;
    const json_t *mine = json_object_get(r->document, "options"), *theirs = json_object_get(saved, "options");
    return error_set(err, ERROR_INPUT, "%s is the result of another run (%s differs); name another --out, or remove the file to start anew",
                     r->path, strcmp(string_of(saved, "task"), string_of(r->document, "task")) ? "task" : first_difference(mine, theirs));
}

static bool resume(eval_result *r, const char *const *ids, const char *const *prompts, error *err)
{
    json_t *saved = eval_document_load(r->path, err), *item;
    bool ok = saved && check_same_run(r, saved, err);
    map known = {0};
    size_t k;
    for (size_t i = 0; ok && i < r->count; i++)
        map_add(&known, view_of(ids[i]), (int64_t)i);
    if (ok)
        json_array_foreach(json_object_get(saved, "items"), k, item) {
            int64_t i;
            if (!map_get(&known, view_of(string_of(item, "id")), &i) || strcmp(prompts[i], string_of(item, "prompt")) != 0 ||
                r->records[i]) {
                ok = error_set(err, ERROR_INPUT, "%s: item %s is not one of this run; remove the file to start anew", r->path,
                               string_of(item, "id"));
                break;
            }
            r->records[i] = json_incref(item);
            r->done++;
        }
    r->resumed = r->done;
    map_free(&known);
    json_decref(saved);
    return ok;
}

bool eval_result_open(eval_result *r, const char *path, const char *task, const char *model, json_t *options, const char *const *ids,
                      const char *const *prompts, size_t count, error *err)
{
    char hash[SHA256_TEXT_BYTES];
    hash_options(options, hash);
    r->document = json_pack("{s:s, s:s, s:s, s:o, s:s}", "format", FORMAT_NAME, "task", task, "model", model, "options", options,
                            "options_hash", hash);
    if (!r->document)
        return error_set(err, ERROR_USAGE, "the model's name is not UTF-8");
    r->records = mem_alloc(count ? count : 1, sizeof *r->records);
    r->count = count;
    r->path = path ? mem_copy(path, strlen(path)) : NULL;
    r->saved_us = clock_now_us();
    if (path && file_exists(path))
        return resume(r, ids, prompts, err);
    return eval_result_save(r, err); /* a place that cannot be written to is found now, not after the work */
}

void eval_result_free(eval_result *r)
{
    for (size_t i = 0; i < r->count; i++)
        json_decref(r->records[i]);
    free(r->records);
    free(r->path);
    json_decref(r->document);
    *r = (eval_result){0};
}

bool eval_result_set(eval_result *r, size_t index, json_t *record, error *err)
{
    if (!record)
        return error_set(err, ERROR_RUNTIME, "the record of item %zu cannot be made", index);
    r->done += !r->records[index];
    json_decref(r->records[index]);
    r->records[index] = record;
    return clock_now_us() - r->saved_us < SAVE_US || eval_result_save(r, err);
}

size_t eval_result_correct(const eval_result *r)
{
    size_t right = 0;
    for (size_t i = 0; i < r->count; i++)
        right += json_is_true(json_object_get(r->records[i], "correct"));
    return right;
}

/* ---- for people ---- */

static double at(const json_t *summary, const char *key)
{
    return json_number_value(json_object_get(summary, key));
}

static double end_at(const json_t *summary, const char *key, size_t end)
{
    return json_number_value(json_array_get(json_object_get(summary, key), end));
}

static void print_interval(const json_t *summary, int digits, text *out)
{
    if (json_is_array(json_object_get(summary, "interval")))
        text_add_format(out, "95 %% interval %.*f .. %.*f", digits, end_at(summary, "interval", 0), digits, end_at(summary, "interval", 1));
    else
        text_add_text(out, "(one window: no interval)");
}

static void print_accuracy(const char *name, const json_t *s, text *out)
{
    text_add_format(out, "%-18s %6.2f %%  (%lld of %lld)   95 %% interval %.2f .. %.2f %%\n", name, 100 * at(s, "accuracy"),
                    (long long)at(s, "correct"), (long long)at(s, "items"), 100 * end_at(s, "interval", 0), 100 * end_at(s, "interval", 1));
}

void eval_document_print(const json_t *document, text *out)
{
    const json_t *s = json_object_get(document, "summary");
    const char *name, *task = string_of(document, "task");
    json_t *group;
    if (json_object_get(s, "mean_kl")) {
        text_add_format(out, "%s: mean KL %.6f  ", task, at(s, "mean_kl"));
        print_interval(s, 6, out);
        text_add_format(out, ", 99th percentile %.6f\n", at(s, "p99_kl"));
        text_add_format(out, "top-1 agreement %.4f  95 %% interval %.4f .. %.4f, over %lld positions\n", at(s, "top1_agreement"),
                        end_at(s, "top1_interval", 0), end_at(s, "top1_interval", 1), (long long)at(s, "positions"));
    } else if (json_object_get(s, "perplexity")) {
        text_add_format(out, "%s: perplexity %.5f  ", task, at(s, "perplexity"));
        print_interval(s, 5, out);
        text_add_format(out, ", over %lld tokens in %lld windows\n", (long long)at(s, "tokens"), (long long)at(s, "windows"));
    } else if (json_object_get(s, "accuracy")) {
        print_accuracy(task, s, out);
        json_object_foreach(json_object_get(s, "groups"), name, group) {
            print_accuracy(name, group, out);
        }
        if (at(s, "cut") > 0)
            text_add_format(out, "%lld answers were cut by --max-tokens\n", (long long)at(s, "cut"));
        if (at(s, "not_understood") > 0)
            text_add_format(out, "in %lld answers nothing was found that could be compared\n", (long long)at(s, "not_understood"));
    } else {
        text_add_format(out, "%s: no item is done\n", task);
    }
}

/* ---- two runs ---- */

/* The items both documents have, in the candidate's order, as two arrays of borrowed items. */
typedef struct eval_pairs {
    const json_t **baseline, **candidate; /* [count] */
    size_t count, left_out;
} eval_pairs;

static bool pair_items(const json_t *baseline, const json_t *candidate, eval_pairs *out, error *err)
{
    const json_t *a = json_object_get(baseline, "items"), *b = json_object_get(candidate, "items");
    map known = {0};
    size_t na = json_array_size(a), nb = json_array_size(b);
    bool ok = true;
    out->baseline = mem_alloc(nb ? nb : 1, sizeof *out->baseline);
    out->candidate = mem_alloc(nb ? nb : 1, sizeof *out->candidate);
    for (size_t i = 0; i < na; i++)
        map_add(&known, view_of(string_of(json_array_get(a, i), "id")), (int64_t)i);
    for (size_t i = 0; ok && i < nb; i++) {
        const json_t *item = json_array_get(b, i), *other;
        int64_t k;
        if (!map_get(&known, view_of(string_of(item, "id")), &k))
            continue;
        other = json_array_get(a, (size_t)k);
        if (strcmp(string_of(item, "prompt"), string_of(other, "prompt")) != 0)
            ok = error_set(
                err, ERROR_INPUT,
                "item %s was asked differently in the two runs, so they cannot be compared; use the same data and options",
                string_of(item, "id"));
        out->baseline[out->count] = other;
        out->candidate[out->count++] = item;
    }
    out->left_out = na + nb - 2 * out->count;
    map_free(&known);
    if (ok && out->count == 0)
        ok = error_set(err, ERROR_INPUT, "the two runs have no item in common");
    return ok;
}

static stats_comparison compare_correct(const eval_pairs *p)
{
    bool *a = mem_alloc(p->count, sizeof *a), *b = mem_alloc(p->count, sizeof *b);
    for (size_t i = 0; i < p->count; i++) {
        a[i] = json_is_true(json_object_get(p->baseline[i], "correct"));
        b[i] = json_is_true(json_object_get(p->candidate[i], "correct"));
    }
    stats_comparison c = stats_compare_correct(a, b, p->count, BOOTSTRAP_SEED);
    free(a);
    free(b);
    return c;
}

static stats_comparison compare_sums(const eval_pairs *p, const char *key)
{
    json_t *a = json_array(), *b = json_array();
    double *first = mem_alloc(p->count, sizeof *first), *second = mem_alloc(p->count, sizeof *second);
    double *weights = mem_alloc(p->count, sizeof *weights);
    for (size_t i = 0; i < p->count; i++) {
        json_array_append(a, (json_t *)(uintptr_t)p->baseline[i]);
        json_array_append(b, (json_t *)(uintptr_t)p->candidate[i]);
    }
    sums_of(a, key, first, weights);
    sums_of(b, key, second, weights);
    stats_comparison c = stats_compare_means(first, second, weights, p->count, true, BOOTSTRAP_SEED);
    free(first);
    free(second);
    free(weights);
    json_decref(a);
    json_decref(b);
    return c;
}

static void print_comparison(const char *task, const char *metric, const stats_comparison *c, const eval_pairs *p, text *out)
{
    char p_text[24] = "-";
    if (!isnan(c->p))
        snprintf(p_text, sizeof p_text, "%.4f", c->p);
    text_add_format(out, "%-24s %10s %10s %10s   %-24s %-8s %s\n", "", "baseline", "candidate", "delta", "95 % interval of delta",
                    "McNemar", "verdict");
    text name = {0}, interval = {0};
    text_add_format(&name, "%s, %s", task, metric);
    if (isnan(c->interval.low))
        text_add_text(&interval, "-");
    else
        text_add_format(&interval, "%+.5f .. %+.5f", c->interval.low, c->interval.high);
    text_add_format(out, "%-24s %10.5f %10.5f %+10.5f   %-24s %-8s %s\n", name.data, c->baseline, c->candidate, c->delta,
                    interval.data, p_text, stats_verdict_text(c->verdict));
    if (p->left_out)
        text_add_format(out, "%zu items are in one of the runs only and were left out\n", p->left_out);
    text_free(&name);
    text_free(&interval);
}

bool eval_documents_compare(const json_t *baseline, const json_t *candidate, json_t **comparison, text *out, error *err)
{
    const char *task = string_of(candidate, "task");
    if (strcmp(string_of(baseline, "task"), task) != 0)
        return error_set(err, ERROR_INPUT, "the runs are of different tasks, %s and %s", string_of(baseline, "task"), task);
    eval_pairs p = {0};
    bool ok = pair_items(baseline, candidate, &p, err);
    if (ok) {
        bool nll = json_object_get(p.candidate[0], "nll") != NULL, kl = json_object_get(p.candidate[0], "kl") != NULL;
        const char *metric = kl ? "mean_kl" : nll ? "nll" : "accuracy";
        stats_comparison c = kl ? compare_sums(&p, "kl") : nll ? compare_sums(&p, "nll") : compare_correct(&p);
        print_comparison(task, metric, &c, &p, out);
        *comparison =
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:s}", "task", task, "metric", metric,
                      "baseline_model", string_of(baseline, "model"), "candidate_model", string_of(candidate, "model"), "items",
                      (json_int_t)p.count, "left_out", (json_int_t)p.left_out, "baseline", c.baseline, "candidate", c.candidate,
                      "delta", c.delta, "interval", interval_json(c.interval), "mcnemar_p",
                      isnan(c.p) ? json_null() : json_real(c.p), "verdict", stats_verdict_text(c.verdict));
    }
    free(p.baseline);
    free(p.candidate);
    return ok;
}
