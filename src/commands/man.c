/* drawbridge man [COMMAND] */
#include <stdio.h>

#include "commands/commands.h"

typedef struct man_values {
    const char *command;
    bool markdown;
} man_values;

static const option man_options[] = {
    {.name = "COMMAND", .type = OPTION_COMMAND, .positional = true, .offset = offsetof(man_values, command),
     .help = "The command whose page is printed; without it, the page of the program."},
    {.name = "markdown", .type = OPTION_FLAG, .offset = offsetof(man_values, markdown),
     .help = "Print all commands as one Markdown page (docs/commands.md)."},
};

static bool man_run(const program *p, const void *values, error *err)
{
    const man_values *v = values;
    const command *c = v->command ? program_find(p, v->command) : NULL;
    if (v->command && !c)
        return program_unknown_command(p, v->command, err);
    if (v->command && v->markdown)
        return error_set(err, ERROR_USAGE, "--markdown prints all commands and takes no COMMAND");
    text page = {0};
    if (v->markdown)
        manual_markdown(p, &page);
    else
        manual_mdoc(p, c, &page);
    fputs(page.data, stdout);
    text_free(&page);
    return true;
}

static const command_example man_examples[] = {
    {"drawbridge man tokenize > drawbridge-tokenize.1 && man ./drawbridge-tokenize.1", "Read the manual page of a command."},
    {"drawbridge man --markdown > docs/commands.md", "Write the documentation of all commands again."},
};

const command command_man = {
    .name = "man",
    .summary = "print a manual page",
    .description = "Prints a manual page in mdoc, the language that man formats, from the same tables as --help.",
    .options = man_options,
    .option_count = COUNT_OF(man_options),
    .values_bytes = sizeof(man_values),
    .examples = man_examples,
    .example_count = COUNT_OF(man_examples),
    .run = man_run,
};
