/* drawbridge completion bash|zsh|fish */
#include <stdio.h>

#include "commands/commands.h"

typedef struct completion_values {
    int shell; /* index into shells */
} completion_values;

static const char *const shells[] = {"bash", "zsh", "fish", NULL};
static void (*const writers[])(const program *p, text *out) = {completion_bash, completion_zsh, completion_fish};

static const option completion_options[] = {
    {.name = "SHELL", .type = OPTION_CHOICE, .positional = true, .required = true, .choices = shells,
     .offset = offsetof(completion_values, shell), .help = "The shell to write for."},
};

static bool completion_run(const program *p, const void *values, error *err)
{
    (void)err;
    const completion_values *v = values;
    text script = {0};
    writers[v->shell](p, &script);
    fputs(script.data, stdout);
    text_free(&script);
    return true;
}

static const command_example completion_examples[] = {
    {"source <(drawbridge completion bash)", "Complete in this bash, until it ends."},
    {"drawbridge completion zsh > ~/.zfunc/_drawbridge", "Install for zsh, into a directory of its fpath."},
    {"drawbridge completion fish > ~/.config/fish/completions/drawbridge.fish", "Install for fish."},
};

const command command_completion = {
    .name = "completion",
    .summary = "print a completion script for a shell",
    .description = "Prints a script that completes commands, options, choices and paths. It asks nothing of the program later, so "
                   "install it again after an update.",
    .options = completion_options,
    .option_count = COUNT_OF(completion_options),
    .values_bytes = sizeof(completion_values),
    .examples = completion_examples,
    .example_count = COUNT_OF(completion_examples),
    .run = completion_run,
};
