/* drawbridge inspect: what a model is and what it needs. */
#include <stdio.h>

#include "commands/commands.h"
#include "commands/model_path.h"
#include "commands/output.h"
#include "model/inspect.h"
#include "quantize/manifest.h"

typedef struct inspect_values {
    const char *argument, *model;
    bool json, verify;
} inspect_values;

static const option inspect_options[] = {
    {.name = "MODEL", .type = OPTION_DIRECTORY, .positional = true, .offset = offsetof(inspect_values, argument),
     .help = "The model's directory. Without it, the built-in model is used."},
    {.name = "model", .letter = 'm', .type = OPTION_DIRECTORY, .metavar = "DIR", .unset = "the built-in model",
     .offset = offsetof(inspect_values, model), .help = "The same as MODEL."},
    {.name = "json", .type = OPTION_FLAG, .offset = offsetof(inspect_values, json), .help = "Print a JSON object."},
    {.name = "verify", .type = OPTION_FLAG, .offset = offsetof(inspect_values, verify),
     .help = "Read every file and compare it with the checksums that quantize wrote (drawbridge-manifest.json). A damaged tensor is "
             "named."},
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

static bool inspect_run(const program *p, const void *values, error *err)
{
    (void)p;
    const inspect_values *v = values;
    if (v->argument && v->model)
        return error_set(err, ERROR_USAGE, "the model is given twice: %s and --model %s", v->argument, v->model);
    text directory = {0};
    bool ok = model_path_resolve(v->argument ? v->argument : v->model, "config.json", &directory, err) &&
              (v->verify ? verify : describe)(directory.data, v->json, err);
    text_free(&directory);
    return ok;
}

static const command_example inspect_examples[] = {
    {"drawbridge inspect", "Describe the built-in model."},
    {"drawbridge inspect MODEL --json", "The same for another model, as JSON."},
    {"drawbridge inspect MODEL --verify", "Compare every file with its checksum."},
};

const command command_inspect = {
    .name = "inspect",
    .summary = "show what a model is, holds and needs",
    .description = "Opens a model and checks every tensor's name, shape and format, then shows the architecture, the parameters in all and "
                   "per token, the tensors by number format, their bytes, the memory a context needs, and where config.json disagrees "
                   "with what the tensors say. The weights themselves are not read, but with --verify.",
    .options = inspect_options,
    .option_count = COUNT_OF(inspect_options),
    .values_bytes = sizeof(inspect_values),
    .examples = inspect_examples,
    .example_count = COUNT_OF(inspect_examples),
    .run = inspect_run,
};
