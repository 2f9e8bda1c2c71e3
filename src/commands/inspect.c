/* drawbridge inspect: what a model is and what it needs. */
#include <stdio.h>

#include "commands/commands.h"
#include "commands/dispatch_report.h"
#include "commands/model_path.h"
#include "commands/output.h"
#include "commands/runner.h"
#include "model/inspect.h"
#include "quantize/manifest.h"

typedef struct inspect_values {
    runner_values runner;
    bool json, verify, dispatch;
} inspect_values;

static const option inspect_options[] = {
    RUNNER_MODEL_ROWS(inspect_values),
    {.name = "json", .type = OPTION_FLAG, .offset = offsetof(inspect_values, json), .help = "Print a JSON object."},
    {.name = "verify", .type = OPTION_FLAG, .offset = offsetof(inspect_values, verify),
     .help = "Read every file and compare it with the checksums that quantize wrote (drawbridge-manifest.json). A damaged tensor is "
             "named."},
    {.name = "dispatch", .type = OPTION_FLAG, .offset = offsetof(inspect_values, dispatch),
     .help = "Show which kernel computes each shape of the model on this machine, and where that choice comes from."},
    RUNNER_DEVICE_ROWS(inspect_values),
    {.name = "exact", .type = OPTION_FLAG, .group = "Computation", .offset = RUNNER_OFFSET(inspect_values, exact),
     .help = "The kernels that other commands use with --exact."},
    RUNNER_KERNEL_ROWS(inspect_values),
};

/* Checksums only: a damaged model need not open. */
static bool verify(const char *directory, bool json, error *err)
{
    manifest_summary s;
    if (!manifest_verify(directory, &s, err))
        return false;
    if (json)
        output_json(json_pack("{s:b, s:i, s:i, s:I}", "verified", true, "files", s.files, "tensors", s.tensors, "bytes",
                              (json_int_t)s.bytes));
    else
        printf("%s: %d files, %d tensors, %.3f GB: all as written\n", directory, s.files, s.tensors, (double)s.bytes / 1e9);
    return true;
}

static bool describe(const char *directory, bool json, error *err)
{
    model *m = model_open(directory, err);
    if (m && json)
        output_json(inspect_json(m));
    else if (m)
        inspect_print(m, stdout);
    model_close(m);
    return m != NULL;
}

/* The table that a device for these options has; nothing is computed. */
static bool show_dispatch(const inspect_values *v, const char *directory, error *err)
{
    model *m = model_open(directory, err);
    device *d = m ? runner_create_device(&v->runner, m, m->config.max_positions, runner_chunk(&v->runner), err) : NULL;
    bool ok = d && runner_check_kernels(&v->runner, d, runner_chunk(&v->runner), false, err);
    if (ok && v->json)
        output_json(dispatch_report_json(d->dispatch));
    else if (ok)
        dispatch_report_print(d->dispatch, stdout);
    if (d)
        d->ops->destroy(d);
    model_close(m);
    return ok;
}

/* What only --dispatch looks at. */
static bool check_values(const inspect_values *v, error *err)
{
    const runner_values *r = &v->runner;
    const char *needs = r->threads != OPTION_NOT_GIVEN ? "threads" : r->chunk != OPTION_NOT_GIVEN ? "chunk" : r->kv != 0 ? "kv-dtype"
                        : r->exact ? "exact" : r->tuned ? "tuned" : r->kernels ? "kernels" : r->device != RUNNER_CPU ? "device" : NULL;
    if (r->argument && r->model)
        return error_set(err, ERROR_USAGE, "the model is given twice: %s and --model %s", r->argument, r->model);
    if (r->exact && r->kv != 0 && r->kv != 1 + KV_F32)
        return error_set(err, ERROR_USAGE, "--exact needs an f32 cache, found --kv-dtype %s", runner_kv_choices[r->kv]);
    if (v->verify && v->dispatch)
        return error_set(err, ERROR_USAGE, "--verify and --dispatch are two questions; ask one at a time");
    return v->dispatch || !needs || error_set(err, ERROR_USAGE, "--%s means something with --dispatch only", needs);
}

static bool inspect_run(const program *p, const void *values, error *err)
{
    (void)p;
    const inspect_values *v = values;
    text directory = {0};
    bool ok = check_values(v, err) && model_path_resolve(runner_model_name(&v->runner), "config.json", &directory, err);
    if (ok && v->dispatch)
        ok = show_dispatch(v, directory.data, err);
    else if (ok)
        ok = (v->verify ? verify : describe)(directory.data, v->json, err);
    text_free(&directory);
    return ok;
}

static const command_example inspect_examples[] = {
    {"drawbridge inspect", "Describe the built-in model."},
    {"drawbridge inspect MODEL --json", "The same for another model, as JSON."},
    {"drawbridge inspect MODEL --verify", "Compare every file with its checksum."},
    {"drawbridge inspect --dispatch", "Which kernel runs for each shape, and which are tuned."},
};

const command command_inspect = {
    .name = "inspect",
    .summary = "show what a model is, holds and needs",
    .description = "Opens a model and checks every tensor's name, shape and format, then shows the architecture, the parameters in all and "
                   "per token, the tensors by number format, their bytes, the memory a context needs, and where config.json disagrees "
                   "with what the tensors say. The weights themselves are not read, but with --verify.\n\n"
                   "With --dispatch it shows the kernels instead: docs/tuning.md says what they are chosen by.",
    .options = inspect_options,
    .option_count = COUNT_OF(inspect_options),
    .values_bytes = sizeof(inspect_values),
    .examples = inspect_examples,
    .example_count = COUNT_OF(inspect_examples),
    .run = inspect_run,
};
