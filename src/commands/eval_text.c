/* The tasks of the eval command over a text: perplexity, divergence, and statistics of activations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "commands/eval_job.h"
#include "commands/input.h"
#include "commands/interrupt.h"
#include "eval/importance.h"
#include "eval/textscore.h"

/* A text as windows of tokens. Zero before; windows_free in any case. */
typedef struct windows {
    token_list tokens;
    text_window *list;
    size_t count;
    int longest;
    char **ids, **hashes; /* [count] */
    char source[SHA256_TEXT_BYTES];
} windows;

static const char *const text_files[] = {"text.txt", NULL};

static bool read_texts(const eval_values *v, text *out, char source[SHA256_TEXT_BYTES], error *err)
{
    eval_paths paths = {0};
    text one = {0};
    bool ok = eval_paths_find(v, text_files, &paths, err);
    for (size_t i = 0; ok && i < paths.count; i++) {
        ok = input_read(paths.list[i], &one, err);
        if (ok)
            text_add(out, one.data, one.length);
    }
    if (ok)
        sha256_hex(out->data, out->length, source);
    text_free(&one);
    eval_paths_free(&paths);
    return ok;
}

static void name_windows(windows *w)
{
    w->ids = mem_alloc(w->count, sizeof *w->ids);
    w->hashes = mem_alloc(w->count, sizeof *w->hashes);
    for (size_t i = 0; i < w->count; i++) {
        char number[24], hash[SHA256_TEXT_BYTES];
        int n = snprintf(number, sizeof number, "%zu", i + 1);
        sha256_hex(w->list[i].tokens, (size_t)w->list[i].count * sizeof(int32_t), hash);
        w->ids[i] = mem_copy(number, (size_t)n);
        w->hashes[i] = mem_copy(hash, 16);
        w->longest = w->list[i].count > w->longest ? w->list[i].count : w->longest;
    }
}

static bool windows_read(const eval_values *v, const tokenizer *t, windows *w, error *err)
{
    text bytes = {0};
    bool ok = read_texts(v, &bytes, w->source, err);
    if (ok)
        tokenizer_encode(t, bytes.data, bytes.length, true, &w->tokens);
    text_free(&bytes);
    if (!ok)
        return false;
    w->list = text_windows(&w->tokens, (int)v->window, &w->count);
    if (v->limit != OPTION_NOT_GIVEN && w->count > (size_t)v->limit)
        w->count = (size_t)v->limit;
    if (w->count == 0)
        return error_set(err, ERROR_INPUT, "the text has %zu tokens, at least 2 are needed", w->tokens.count);
    name_windows(w);
    return true;
}

static void windows_free(windows *w)
{
    for (size_t i = 0; w->ids && i < w->count; i++) {
        free(w->ids[i]);
        free(w->hashes[i]);
    }
    free(w->ids);
    free(w->hashes);
    free(w->list);
    token_list_free(&w->tokens);
    *w = (windows){0};
}

/* ---- running over windows ---- */

typedef struct text_run {
    eval_engine engine, reference; /* reference: of divergence */
    windows windows;
    eval_result result;
} text_run;

static void text_run_free(text_run *r)
{
    eval_result_free(&r->result);
    windows_free(&r->windows);
    eval_engine_close(&r->engine);
    eval_engine_close(&r->reference);
}

static json_t *perplexity_record(text_run *r, size_t i, error *err)
{
    double nll = 0;
    if (!text_window_nll(&r->engine.model, r->windows.list[i], &nll, err))
        return NULL;
    return json_pack("{s:s, s:s, s:i, s:f}", "id", r->windows.ids[i], "prompt", r->windows.hashes[i], "tokens",
                     r->windows.list[i].count - 1, "nll", nll);
}

static json_t *divergence_record(text_run *r, size_t i, error *err)
{
    int positions = r->windows.list[i].count - 1;
    double *kl = mem_alloc((size_t)positions, sizeof *kl);
    int64_t agree = 0;
    json_t *record = NULL, *values = json_array();
    if (text_window_divergence(&r->engine.model, &r->reference.model, r->windows.list[i], kl, &agree, err)) {
        for (int k = 0; k < positions; k++)
            json_array_append_new(values, json_real(kl[k]));
        record = json_pack("{s:s, s:s, s:i, s:I, s:O}", "id", r->windows.ids[i], "prompt", r->windows.hashes[i], "tokens",
                           positions, "agree", (json_int_t)agree, "kl", values);
    }
    json_decref(values);
    free(kl);
    return record;
}

/* Score so far, for the progress line. */
static void show_score(const eval_result *r, const char *task, char *label, size_t capacity)
{
    double sum = 0, tokens = 0;
    for (size_t i = 0; i < r->count; i++) {
        sum += json_number_value(json_object_get(r->records[i], "nll"));
        tokens += json_number_value(json_object_get(r->records[i], "tokens"));
        size_t k;
        json_t *value;
        json_array_foreach(json_object_get(r->records[i], "kl"), k, value) {
            sum += json_number_value(value);
        }
    }
    snprintf(label, capacity, "%s %.5f per token", task, sum / tokens);
}

typedef json_t *(*window_record)(text_run *r, size_t i, error *err);

static bool run_windows(text_run *r, const char *task, window_record record, json_t **document, error *err)
{
    char label[64];
    snprintf(label, sizeof label, "%s", task);
    size_t before = r->result.done;
    progress *p = progress_start(label, "windows", (double)(r->windows.count - before));
    bool ok = true;
    for (size_t i = 0; ok && i < r->windows.count; i++) {
        if (r->result.records[i])
            continue;
        json_t *done = record(r, i, err);
        ok = done && eval_result_set(&r->result, i, done, err);
        if (ok)
            show_score(&r->result, task, label, sizeof label);
        progress_update(p, (double)(r->result.done - before));
    }
    progress_finish(p);
    error saving = {0};
    bool saved = eval_result_save(&r->result, &saving);
    *document = eval_result_document(&r->result);
    if (ok && !saved)
        *err = saving;
    if (!ok && err->code == ERROR_INTERRUPTED)
        error_set(err, ERROR_INTERRUPTED, "interrupted after %zu of %zu windows%s", r->result.done, r->result.count,
                  r->result.path && saved ? "; --out keeps them, the same command goes on" : "");
    return ok && saved;
}

static bool open_result(const eval_values *v, text_run *r, const char *task, const runner_values *tested, const runner_values *reference,
                        const char *out_path, error *err)
{
    json_t *identity = eval_model_identity(tested, err), *other = reference && identity ? eval_model_identity(reference, err) : NULL;
    if (!identity || (reference && !other)) {
        json_decref(identity);
        return false;
    }
    json_t *options = json_pack("{s:s, s:I, s:I, s:o, s:o*}", "data", r->windows.source, "window", (json_int_t)v->window, "windows",
                                (json_int_t)r->windows.count, "model", identity, "against", other);
    return eval_result_open(&r->result, out_path, task, eval_model_label(tested), options, (const char *const *)r->windows.ids,
                            (const char *const *)r->windows.hashes, r->windows.count, err);
}

bool eval_text_perplexity(const eval_values *v, const runner_values *tested, const char *out_path, json_t **document, error *err)
{
    text_run r = {0};
    bool ok = eval_engine_text(tested, v->format, &r.engine, err) && windows_read(v, r.engine.text.tokenizer, &r.windows, err) &&
              open_result(v, &r, "ppl", tested, NULL, out_path, err) &&
              eval_engine_start(tested, r.windows.longest + 1, 1, &r.engine, err) &&
              run_windows(&r, "ppl", perplexity_record, document, err);
    text_run_free(&r);
    return ok;
}

/* Both models must read the text as the same tokens. */
static bool check_same_tokens(const eval_values *v, text_run *r, error *err)
{
    windows other = {0};
    bool ok = windows_read(v, r->reference.text.tokenizer, &other, err);
    if (ok && (other.tokens.count != r->windows.tokens.count ||
               memcmp(other.tokens.ids, r->windows.tokens.ids, other.tokens.count * sizeof(int32_t)) != 0))
        ok = error_set(err, ERROR_INPUT, "the two models' tokenizers read the text differently, so their predictions cannot be compared");
    windows_free(&other);
    return ok;
}

static bool check_same_vocab(const text_run *r, error *err)
{
    int a = r->engine.runner.model->config.vocab_size, b = r->reference.runner.model->config.vocab_size;
    return a == b || error_set(err, ERROR_INPUT, "the models' vocabularies have %d and %d rows; they must be equal", a, b);
}

bool eval_text_divergence(const eval_values *v, const char *out_path, json_t **document, error *err)
{
    text_run r = {0};
    if (!eval_has_baseline(v))
        return error_set(err, ERROR_USAGE, "--task kl compares two models; name the reference with --against MODEL2, or take the same "
                         "model in exact arithmetic with --against-exact");
    runner_values reference = eval_baseline(v);
    bool ok = eval_engine_text(&v->runner, v->format, &r.engine, err) && eval_engine_text(&reference, v->format, &r.reference, err) &&
              windows_read(v, r.engine.text.tokenizer, &r.windows, err) && check_same_tokens(v, &r, err) &&
              open_result(v, &r, "kl", &v->runner, &reference, out_path, err) &&
              eval_engine_start(&v->runner, r.windows.longest + 1, 1, &r.engine, err) &&
              eval_engine_start(&reference, r.windows.longest + 1, 1, &r.reference, err) && check_same_vocab(&r, err) &&
              run_windows(&r, "kl", divergence_record, document, err);
    text_run_free(&r);
    return ok;
}

/* ---- statistics of activations ---- */

static bool collect(text_run *r, importance *m, error *err)
{
    progress *p = progress_start("activation statistics", "windows", (double)r->windows.count);
    bool ok = true;
    for (size_t i = 0; ok && i < r->windows.count; i++) {
        if (interrupt_count)
            ok = error_set(err, ERROR_INTERRUPTED, "interrupted; no statistics were written");
        ok = ok && importance_add(m, r->windows.list[i].tokens, r->windows.list[i].count, err);
        progress_update(p, (double)(i + 1));
    }
    progress_finish(p);
    return ok;
}

bool eval_text_importance(const eval_values *v, error *err)
{
    text_run r = {0};
    int lonely = 0;
    bool ok = eval_engine_text(&v->runner, v->format, &r.engine, err) && windows_read(v, r.engine.text.tokenizer, &r.windows, err) &&
              eval_engine_start(&v->runner, r.windows.longest + 1, 1, &r.engine, err);
    importance *m = ok ? importance_create(r.engine.runner.session, err) : NULL;
    ok = m && collect(&r, m, err) && importance_write(m, v->importance, r.windows.source, &lonely, err);
    if (ok)
        log_info("%s: activation statistics of %zu windows", v->importance, r.windows.count);
    if (ok && lonely)
        log_warning("%d experts saw no token and have the statistics of their layer; a longer text reaches more of them", lonely);
    importance_free(m);
    text_run_free(&r);
    return ok;
}
