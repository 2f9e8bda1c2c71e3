/* What a conversion is: its source, its options, and the hash that tells it from others. result.c does the work. */
#include "quantize/quantize.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/file.h"
#include "quantize/result.h"

struct quantize_job {
    quantize_options options;
    char *directory; /* of the source */
    model *source;
    json_t *config;  /* the source's config.json */
    checkpoint *importance;
    plan plan;
    uint64_t conversion; /* hash of options and source */
    result_job result;   /* after the run */
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
    result_free(&j->result);
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

/* ---- the whole ---- */

bool quantize_run(quantize_job *j, const char *destination, bool *already, error *err)
{
    const quantize_options *o = &j->options;
    result_free(&j->result);
    j->result = (result_job){
        .doing = "quantizing",
        .plan = &j->plan,
        .config = j->config,
        .directory = j->directory,
        .stream = {.rule = o->rule, .search = o->search, .importance = j->importance, .scales_bytes = o->scales_bytes, .stop = o->stop},
        .threads = o->threads,
        .force = o->force,
        .conversion = j->conversion,
    };
    return result_write(&j->result, destination, already, err);
}

void quantize_report(const quantize_job *j, text *out)
{
    report_text(&j->plan, j->result.results, out);
}

json_t *quantize_report_json(const quantize_job *j)
{
    return json_incref(j->result.report);
}
