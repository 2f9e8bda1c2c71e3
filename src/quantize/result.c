/* The order of the work:
 *
 *     lock the directory, decide whose it is        nothing is written before this
 *     journal                                       from here on the directory is ours
 *     file after file: temporary, sync, rename, a line in the journal
 *     small files, index, manifest, config.json     config.json last: before it, the directory is no model
 *     remove the journal
 */
#include "quantize/result.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "quantize/destination.h"
#include "quantize/export_config.h"
#include "quantize/journal.h"
#include "quantize/manifest.h"
#include "quantize/report.h"

/* ---- files ---- */

static size_t finished(const result_job *j)
{
    size_t count = 0;
    for (size_t i = 0; i < j->plan->shard_count; i++)
        count += j->results[i].done;
    return count;
}

/* Adds what to do to an error that ended the run. */
static bool run_failed(const result_job *j, const char *destination, error *err)
{
    error cause = *err;
    bool damaged = cause.code == ERROR_INPUT;
    return error_set(err, cause.code, "%s; %zu of %zu files in %s are finished and kept: %s the same command again to go on", cause.text,
                     finished(j), j->plan->shard_count, destination,
                     damaged ? "repair the source, then run"
                     : cause.code == ERROR_INTERRUPTED ? "run"
                                                       : "see to it that there is space and that it can be written to, then run");
}

static bool write_shards(result_job *j, stream *s, const char *destination, journal *log, error *err)
{
    for (size_t i = 0; i < j->plan->shard_count; i++) {
        if (j->results[i].done) {
            stream_skip(s, i);
            continue;
        }
        if (!stream_shard(s, i, destination, &j->results[i], err) || !journal_add(log, i, &j->results[i], err))
            return run_failed(j, destination, err);
    }
    return true;
}

static bool convert(result_job *j, const char *destination, journal *log, error *err)
{
    pool *workers = pool_create(j->threads, err);
    if (!workers)
        return false;
    progress *shown = progress_start(j->doing, "MB", (double)j->plan->source_bytes / 1e6);
    stream *s = stream_create(j->plan, &j->stream, workers, shown, err);
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

static bool write_rest(result_job *j, const char *destination, error *err)
{
    const plan *p = j->plan;
    if (!j->report)
        j->report = report_json(p, j->results);
    json_t *manifest = manifest_new(j->conversion, json_incref(j->report)), *modelopt = export_hf_quant_config(p);
    text config = {0}, bytes = {0};
    for (size_t i = 0; i < p->shard_count; i++)
        manifest_add_shard(manifest, p, i, &j->results[i]);
    bool ok = (!j->directory || destination_copy_small(destination, j->directory, j->small_files, manifest, err)) &&
              write_json(destination, "model.safetensors.index.json", index_json(p), manifest, err) &&
              (!modelopt || write_json(destination, "hf_quant_config.json", modelopt, manifest, err)) &&
              destination_render(export_config(p, j->config, j->stream.rule), &config, err);
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
static bool decide(result_job *j, const char *destination, uint64_t *valid_bytes, bool *already, bool *wipe, error *err)
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
        json_t *report = NULL;
        bool same = manifest_conversion(destination, &conversion, &report) && conversion == j->conversion;
        *already = same && !j->force;
        if (*already) {
            json_decref(j->report);
            j->report = json_incref(report);
        }
        json_decref(report);
        *wipe = j->force;
        return same || j->force || refuse_other(destination, true, err);
    }
    if (state != DESTINATION_STARTED)
        return true;
    *wipe = j->force;
    if (j->force)
        return true;
    journal_state found = journal_read(destination, j->conversion, j->plan, j->results, valid_bytes, err);
    return found != JOURNAL_ERROR && (found != JOURNAL_OTHER || refuse_other(destination, false, err));
}

static uint64_t bytes_left(const result_job *j)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < j->plan->shard_count; i++)
        bytes += j->results[i].done ? 0 : j->plan->shards[i].bytes;
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

static bool run_locked(result_job *j, const char *destination, bool *already, error *err)
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
        log_info("%zu of %zu files were finished before; going on", finished(j), j->plan->shard_count);
    bool ok = destination_clean(destination, wipe, err) && (!wipe || destination_space(destination, bytes_left(j), err)) &&
              convert(j, destination, &log, err) && write_rest(j, destination, err) && remove_journal(destination, err);
    journal_close(&log);
    return ok;
}

bool result_write(result_job *j, const char *destination, bool *already, error *err)
{
    int lock = destination_lock(destination, j->directory, err);
    if (lock < 0)
        return false;
    j->results = mem_alloc(j->plan->shard_count + 1, sizeof *j->results);
    bool ok = run_locked(j, destination, already, err);
    close(lock);
    return ok;
}

void result_free(result_job *j)
{
    for (size_t i = 0; j->results && i < j->plan->shard_count; i++)
        shard_result_free(&j->results[i]);
    free(j->results);
    json_decref(j->report);
}
