/* drawbridge inspect: what a model is and what it needs. */
#include <stdio.h>

#include "commands/commands.h"
#include "commands/model_path.h"
#include "commands/output.h"
#include "model/inspect.h"

typedef struct inspect_values {
    const char *argument, *model;
    bool json;
} inspect_values;

static const option inspect_options[] = {
    {.name = "MODEL", .type = OPTION_DIRECTORY, .positional = true, .offset = offsetof(inspect_values, argument),
     .help = "The model's directory. Without it, the built-in model is used."},
    {.name = "model", .letter = 'm', .type = OPTION_DIRECTORY, .metavar = "DIR", .unset = "the built-in model",
     .offset = offsetof(inspect_values, model), .help = "The same as MODEL."},
    {.name = "json", .type = OPTION_FLAG, .offset = offsetof(inspect_values, json), .help = "Print a JSON object."},
};

static bool inspect_run(const program *p, const void *values, error *err)
{
    (void)p;
    const inspect_values *v = values;
    if (v->argument && v->model)
        return error_set(err, ERROR_USAGE, "the model is given twice: %s and --model %s", v->argument, v->model);
    text directory = {0};
    model *m = NULL;
    if (model_path_resolve(v->argument ? v->argument : v->model, "config.json", &directory, err))
        m = model_open(directory.data, err);
    if (m && v->json)
        output_json(inspect_json(m));
    else if (m)
        inspect_print(m, stdout);
    bool ok = m != NULL;
    model_close(m);
    text_free(&directory);
    return ok;
}

static const command_example inspect_examples[] = {
    {"drawbridge inspect", "Describe the built-in model."},
    {"drawbridge inspect MODEL --json", "The same for another model, as JSON."},
};

const command command_inspect = {
    .name = "inspect",
    .summary = "show what a model is, holds and needs",
    .description = "Opens a model and checks every tensor's name, shape and format, then shows the architecture, the parameters in all and "
                   "per token, the tensors by number format, their bytes, the memory a context needs, and where config.json disagrees "
                   "with what the tensors say. The weights themselves are not read.",
    .options = inspect_options,
    .option_count = COUNT_OF(inspect_options),
    .values_bytes = sizeof(inspect_values),
    .examples = inspect_examples,
    .example_count = COUNT_OF(inspect_examples),
    .run = inspect_run,
};
