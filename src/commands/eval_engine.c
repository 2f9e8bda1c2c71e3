/* Opening models and finding data for the eval command. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "commands/eval_job.h"
#include "commands/interrupt.h"
#include "commands/model_path.h"

bool eval_has_baseline(const eval_values *v)
{
    return v->against || v->against_exact;
}

runner_values eval_baseline(const eval_values *v)
{
    runner_values other = v->runner;
    if (v->against_exact) {
        other.exact = true;
        other.kv = 0;
        other.kernels = NULL; /* the two modes have different ones */
        return other;
    }
    other.argument = v->against;
    other.model = NULL;
    return other;
}

bool eval_engine_text(const runner_values *v, const char *format_name, eval_engine *e, error *err)
{
    return text_model_open(runner_model_name(v), format_name, &e->text, err);
}

bool eval_engine_start(const runner_values *v, int64_t context, int batch, eval_engine *e, error *err)
{
    if (!runner_open_model(v, &e->runner, err) || !runner_start(v, context, RUNNER_CHUNK, &e->runner, err))
        return false;
    const model_config *c = &e->runner.model->config;
    bulk_options options = {
        .max_sequences = batch, .max_context = (int)context, .eos = c->eos, .eos_count = c->eos_count, .stop = &interrupt_count};
    e->bulk = bulk_create(e->runner.forward, &options, err);
    e->runner.session->stop = &interrupt_count;
    e->model = (eval_model){e->runner.session, e->bulk, e->text.tokenizer, e->text.format, &interrupt_count};
    return e->bulk != NULL;
}

void eval_engine_close(eval_engine *e)
{
    bulk_destroy(e->bulk);
    runner_close(&e->runner);
    text_model_close(&e->text);
    *e = (eval_engine){0};
}

const char *eval_model_label(const runner_values *v)
{
    return runner_model_name(v) ? runner_model_name(v) : "nano (built in)";
}

static bool hash_file(const char *directory, const char *name, char out[SHA256_TEXT_BYTES], error *err)
{
    text path = {0}, bytes = {0};
    path_join(&path, directory, name);
    bool ok = file_read(path.data, (size_t)1 << 28, &bytes, err);
    if (ok)
        sha256_hex(bytes.data, bytes.length, out);
    text_free(&path);
    text_free(&bytes);
    return ok;
}

/* Names, sizes and times of the files of weights: reading them all would take as long as a short evaluation. */
static bool hash_weights(const char *directory, const checkpoint *c, char out[SHA256_TEXT_BYTES], error *err)
{
    text path = {0}, words = {0};
    bool ok = true;
    for (int i = 0; i < checkpoint_shards(c) && ok; i++) {
        struct stat s;
        path_join(&path, directory, checkpoint_shard_name(c, i));
        ok = stat(path.data, &s) == 0 || error_set_errno(err, ERROR_INPUT, "cannot read %s", path.data);
        if (ok)
            text_add_format(&words, "%s %lld %lld.%09ld\n", checkpoint_shard_name(c, i), (long long)s.st_size,
                            (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    }
    if (ok)
        sha256_hex(words.data, words.length, out);
    text_free(&path);
    text_free(&words);
    return ok;
}

json_t *eval_model_identity(const runner_values *v, error *err)
{
    text directory = {0};
    char config[SHA256_TEXT_BYTES], weights[SHA256_TEXT_BYTES];
    json_t *identity = NULL;
    if (model_path_resolve(runner_model_name(v), "config.json", &directory, err) && hash_file(directory.data, "config.json", config, err)) {
        checkpoint *c = checkpoint_open(directory.data, err);
        if (c && hash_weights(directory.data, c, weights, err))
            identity = json_pack("{s:s, s:s, s:s, s:I, s:s, s:b, s:o}", "name", eval_model_label(v), "config", config, "weights", weights,
                                 "bytes", (json_int_t)checkpoint_bytes(c), "kv_dtype", runner_kv_choices[v->kv], "exact", (int)v->exact,
                                 "latent_eps", isnan(v->latent_eps) ? json_null() : json_real(v->latent_eps));
        checkpoint_close(c);
    }
    text_free(&directory);
    return identity;
}

static bool in_folder(const char *given, const char *name, text *out, error *err)
{
    text directory = {0}, folder = {0};
    bool found = model_path_resolve(given, "config.json", &directory, err);
    if (found) {
        path_join(&folder, directory.data, "eval");
        path_join(out, folder.data, name);
        found = file_exists(out->data);
    }
    text_free(&directory);
    text_free(&folder);
    return found;
}

bool eval_find_file(const runner_values *v, const char *name, text *out, error *err)
{
    error ignored = {0};
    const char *given = runner_model_name(v);
    if (in_folder(given, name, out, &ignored))
        return true;
    if (given && in_folder(NULL, name, out, &ignored)) {
        log_info("note: %s has no eval/%s; the built-in model's is used", given, name);
        return true;
    }
    return error_set(err, ERROR_INPUT, "there is no eval/%s beside the model or the built-in model; name a file with --data", name);
}

bool eval_paths_find(const eval_values *v, const char *const *names, eval_paths *out, error *err)
{
    enum { MOST = sizeof out->list / sizeof *out->list };
    if (v->data.count > MOST)
        return error_set(err, ERROR_USAGE, "--data is given %zu times, at most %d are possible", v->data.count, (int)MOST);
    for (size_t i = 0; i < v->data.count; i++)
        out->list[out->count++] = v->data.items[i];
    for (size_t i = 0; v->data.count == 0 && names[i]; i++) {
        if (!eval_find_file(&v->runner, names[i], &out->paths[i], err))
            return false;
        out->list[out->count++] = out->paths[i].data;
    }
    return true;
}

void eval_paths_free(eval_paths *p)
{
    for (size_t i = 0; i < sizeof p->paths / sizeof *p->paths; i++)
        text_free(&p->paths[i]);
}
