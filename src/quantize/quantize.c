/* The order of a conversion, so that it can be killed at any point and run again:
 *
 *     lock the directory, decide whose it is        nothing is written before this
 *     journal                                       from here on the directory is ours
 *     file after file: temporary, sync, rename, a line in the journal
 *     small files, index, manifest, config.json     config.json last: before it, the directory is no model
 *     remove the journal
 *
 * Everything that is written follows from the source and the options, so doing a step again gives the same bytes. */
#include "quantize/quantize.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "quantize/destination.h"
#include "quantize/export_config.h"
#include "quantize/journal.h"
#include "quantize/manifest.h"

struct quantize_job {
    quantize_options options;
    char *directory; /* of the source */
    model *source;
    json_t *config;  /* the source's config.json */
    checkpoint *importance;
    plan plan;
    uint64_t conversion;   /* hash of options and source */
    shard_result *results; /* [plan.shard_count] */
    json_t *report;        /* after the run */
};

/* ---- opening ---- */

/* A file's size and time of change: another source with the same headers is told from this one. */
static bool describe_file(const char *directory, const char *name, text *out, error *err)
{
    struct stat s;
    text path = {0};
    path_join(&path, directory, name);
    bool ok = stat(path.data, &s) == 0;
    if (ok)
        text_add_format(out, "file %s %lld %lld.%09ld\n", name, (long long)s.st_size, (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    else
        error_set_errno(err, ERROR_INPUT, "cannot read %s", path.data);
    text_free(&path);
    return ok;
}

static void describe_globs(const char *what, const char *const *globs, size_t count, text *out)
{
    for (size_t i = 0; i < count; i++)
        text_add_format(out, "%s %s\n", what, globs[i]);
}

/* Everything that the result depends on, in words; threads are not among it. */
static bool describe_conversion(const quantize_job *j, text *out, error *err)
{
    const quantize_options *o = &j->options;
    text_add_format(out, "version 1\nto %s\nrecipe %s\ndraft %d\nrule %s\nsearch %d\nshard %" PRIu64 "\n",
                    format_of(o->recipe.to)->name, j->plan.recipe.name, j->plan.recipe.quantize_draft, scale_rule_name(o->rule),
                    o->search, o->shard_bytes);
    describe_globs("include", o->recipe.include, o->recipe.include_count, out);
    describe_globs("exclude", o->recipe.exclude, o->recipe.exclude_count, out);
    if (o->importance) {
        file_map map;
        if (!file_map_open(o->importance, &map, err))
            return false;
        text_add_format(out, "importance %016" PRIx64 "\n", (uint64_t)XXH3_64bits(map.data, map.bytes));
        file_map_close(&map);
    }
    if (!describe_file(j->directory, "config.json", out, err))
        return false;
    for (int i = 0; i < checkpoint_shards(j->source->checkpoint); i++)
        if (!describe_file(j->directory, checkpoint_shard_name(j->source->checkpoint, i), out, err))
            return false;
    return true;
}

static bool job_hash(quantize_job *j, error *err)
{
    text words = {0};
    bool ok = describe_conversion(j, &words, err);
    j->conversion = ok ? XXH3_64bits(words.data, words.length) : 0;
    text_free(&words);
    return ok;
}

/* Every tensor of the importance file belongs to some matrix; all are looked at before anything is written. */
static bool check_importance(const quantize_job *j, error *err)
{
    int used = 0;
    for (size_t i = 0; i < j->plan.count; i++) {
        const plan_entry *e = &j->plan.entries[i];
        const float *values;
        if (!e->to || e->copied || e->to->bits >= 8)
            continue;
        if (!stream_importance(j->importance, e->module, e->source.cols, &values, err))
            return false;
        used += values != NULL;
    }
    if (used == 0)
        return error_set(err, ERROR_INPUT, "--importance %s: no tensor in it is named like a matrix to be quantized to 4 bits",
                         j->options.importance);
    log_info("importance: %d matrices", used);
    return true;
}

static bool job_load(quantize_job *j, error *err)
{
    text path = {0};
    recipe r;
    if (!recipe_resolve(&j->options.recipe, &r, err))
        return false;
    j->source = model_open(j->directory, err);
    j->config = j->source ? config_read(j->directory, &path, err) : NULL;
    text_free(&path);
    if (!j->config || !plan_create(j->source, &r, j->options.shard_bytes, &j->plan, err))
        return false;
    j->results = mem_alloc(j->plan.shard_count + 1, sizeof *j->results);
    if (j->options.importance) {
        j->options.search = true;
        j->importance = checkpoint_open(j->options.importance, err);
        if (!j->importance || !check_importance(j, err))
            return false;
    }
    return job_hash(j, err);
}

quantize_job *quantize_open(const char *source, const quantize_options *o, error *err)
{
    quantize_job *j = mem_alloc(1, sizeof *j);
    j->options = *o;
    j->directory = mem_copy(source, strlen(source));
    if (job_load(j, err))
        return j;
    quantize_close(j);
    return NULL;
}

void quantize_close(quantize_job *j)
{
    if (!j)
        return;
    for (size_t i = 0; j->results && i < j->plan.shard_count; i++)
        shard_result_free(&j->results[i]);
    free(j->results);
    json_decref(j->report);
    plan_free(&j->plan);
    checkpoint_close(j->importance);
    json_decref(j->config);
    model_close(j->source);
    free(j->directory);
    free(j);
}

const plan *quantize_plan(const quantize_job *j)
{
    return &j->plan;
}

const model *quantize_source(const quantize_job *j)
{
    return j->source;
}

/* ---- files ---- */

static size_t finished(const quantize_job *j)
{
    size_t count = 0;
    for (size_t i = 0; i < j->plan.shard_count; i++)
        count += j->results[i].done;
    return count;
}

/* Adds what to do to an error that ended the run. */
static bool run_failed(const quantize_job *j, const char *destination, error *err)
{
    error cause = *err;
    bool damaged = cause.code == ERROR_INPUT;
    return error_set(err, cause.code, "%s; %zu of %zu files in %s are finished and kept: %s the same command again to go on", cause.text,
                     finished(j), j->plan.shard_count, destination,
                     damaged ? "repair the source, then run"
                     : cause.code == ERROR_INTERRUPTED ? "run"
                                                       : "see to it that there is space and that it can be written to, then run");
}

static bool write_shards(quantize_job *j, stream *s, const char *destination, journal *log, error *err)
{
    for (size_t i = 0; i < j->plan.shard_count; i++) {
        if (j->results[i].done) {
            stream_skip(s, i);
            continue;
        }
        if (!stream_shard(s, i, destination, &j->results[i], err) || !journal_add(log, i, &j->results[i], err))
            return run_failed(j, destination, err);
    }
    return true;
}

static bool convert(quantize_job *j, const char *destination, journal *log, error *err)
{
    const quantize_options *o = &j->options;
    stream_options so = {o->rule, o->search, j->importance, o->scales_bytes, o->stop};
    pool *workers = pool_create(o->threads, err);
    if (!workers)
        return false;
    progress *shown = progress_start("quantizing", "MB", (double)j->plan.source_bytes / 1e6);
    stream *s = stream_create(&j->plan, &so, workers, shown, err);
    bool ok = s && write_shards(j, s, destination, log, err);
    stream_free(s);
    progress_finish(shown);
    pool_destroy(workers);
    return ok;
}

static json_t *index_json(const plan *p)
{
    json_t *files = json_object();
    for (size_t s = 0; s < p->shard_count; s++)
        for (size_t i = p->shards[s].first; i < p->shards[s].first + p->shards[s].count; i++)
            for (int o = 0; o < p->entries[i].output_count; o++)
                json_object_set_new(files, p->entries[i].outputs[o].name, json_string(p->shards[s].file));
    return json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->bytes, "weight_map", files);
}

/* Takes the reference of value. */
static bool write_json(const char *destination, const char *name, json_t *value, json_t *manifest, error *err)
{
    text bytes = {0};
    bool ok = destination_render(value, &bytes, err) && destination_write(destination, name, &bytes, err);
    if (ok)
        manifest_note(manifest, name, &bytes);
    text_free(&bytes);
    return ok;
}

static bool write_rest(quantize_job *j, const char *destination, error *err)
{
    const plan *p = &j->plan;
    json_decref(j->report);
    j->report = report_json(p, j->results);
    json_t *manifest = manifest_new(j->conversion, json_incref(j->report)), *modelopt = export_hf_quant_config(p);
    text config = {0}, bytes = {0};
    for (size_t i = 0; i < p->shard_count; i++)
        manifest_add_shard(manifest, p, i, &j->results[i]);
    bool ok = destination_copy_small(destination, j->directory, manifest, err) &&
              write_json(destination, "model.safetensors.index.json", index_json(p), manifest, err) &&
              (!modelopt || write_json(destination, "hf_quant_config.json", modelopt, manifest, err)) &&
              destination_render(export_config(p, j->config, j->options.rule), &config, err);
    if (ok)
        manifest_note(manifest, "config.json", &config);
    ok = ok && destination_render(json_incref(manifest), &bytes, err) && destination_write(destination, MANIFEST_NAME, &bytes, err) &&
         destination_write(destination, "config.json", &config, err);
    json_decref(manifest);
    text_free(&config);
    text_free(&bytes);
    return ok || run_failed(j, destination, err);
}

/* ---- the whole ---- */

static bool refuse_other(const char *destination, bool complete, error *err)
{
    return error_set(err, ERROR_INPUT,
                     complete ? "%s holds the complete result of another conversion (other options or another source); name another "
                                "directory, or start over with --force"
                              : "%s holds an unfinished conversion with other options or from another source; run that command "
                                "again to finish it, name another directory, or start over with --force",
                     destination);
}

/* Decides what to do with the directory. valid_bytes: of the journal to go on with; 0: begin. */
static bool decide(quantize_job *j, const char *destination, uint64_t *valid_bytes, bool *already, bool *wipe, error *err)
{
    destination_state state;
    uint64_t conversion = 0;
    *already = *wipe = false;
    *valid_bytes = 0;
    if (!destination_look(destination, &state, err))
        return false;
    if (state == DESTINATION_FOREIGN)
        return error_set(err, ERROR_INPUT, "%s is not empty and holds no conversion of ours; name a new or empty directory", destination);
    if (state == DESTINATION_FINISHED) {
        bool same = manifest_conversion(destination, &conversion, &j->report) && conversion == j->conversion;
        *already = same && !j->options.force;
        *wipe = j->options.force;
        return same || j->options.force || refuse_other(destination, true, err);
    }
    if (state != DESTINATION_STARTED)
        return true;
    *wipe = j->options.force;
    if (j->options.force)
        return true;
    journal_state found = journal_read(destination, j->conversion, &j->plan, j->results, valid_bytes, err);
    return found != JOURNAL_ERROR && (found != JOURNAL_OTHER || refuse_other(destination, false, err));
}

static uint64_t bytes_left(const quantize_job *j)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < j->plan.shard_count; i++)
        bytes += j->results[i].done ? 0 : j->plan.shards[i].bytes;
    return bytes;
}

static bool remove_journal(const char *destination, error *err)
{
    text path = {0};
    path_join(&path, destination, JOURNAL_NAME);
    bool ok = unlink(path.data) == 0 || error_set_errno(err, ERROR_RUNTIME, "cannot remove %s", path.data);
    text_free(&path);
    return ok;
}

static bool run_locked(quantize_job *j, const char *destination, bool *already, error *err)
{
    uint64_t valid_bytes;
    bool wipe;
    journal log;
    if (!decide(j, destination, &valid_bytes, already, &wipe, err) || *already)
        return *already;
    if (!wipe && !destination_space(destination, bytes_left(j), err))
        return false;
    if (!journal_open(destination, j->conversion, valid_bytes, &log, err))
        return false;
    if (finished(j))
        log_info("%zu of %zu files were finished before; going on", finished(j), j->plan.shard_count);
    bool ok = destination_clean(destination, wipe, err) && (!wipe || destination_space(destination, bytes_left(j), err)) &&
              convert(j, destination, &log, err) && write_rest(j, destination, err) && remove_journal(destination, err);
    journal_close(&log);
    return ok;
}

bool quantize_run(quantize_job *j, const char *destination, bool *already, error *err)
{
    int lock = destination_lock(destination, j->directory, err);
    if (lock < 0)
        return false;
    bool ok = run_locked(j, destination, already, err);
    close(lock);
    return ok;
}

void quantize_report(const quantize_job *j, text *out)
{
    report_text(&j->plan, j->results, out);
}

json_t *quantize_report_json(const quantize_job *j)
{
    return json_incref(j->report);
}
