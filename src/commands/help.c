/* drawbridge help [COMMAND] */
#include <stdio.h>

#include "commands/commands.h"

typedef struct help_values {
    const char *command;
} help_values;

static const option help_options[] = {
    {.name = "COMMAND", .type = OPTION_COMMAND, .positional = true, .offset = offsetof(help_values, command),
     .help = "The command to explain; without it, all commands are listed."},
};

static bool help_run(const program *p, const void *values, error *err)
{
    const help_values *v = values;
    const command *c = v->command ? program_find(p, v->command) : NULL;
    if (v->command && !c)
        return program_unknown_command(p, v->command, err);
    text page = {0};
    if (c)
        help_long(p, c, &page);
    else
        help_program(p, &page);
    fputs(page.data, stdout);
    text_free(&page);
    return true;
}

static const command_example help_examples[] = {
    {"drawbridge help", "List the commands."},
    {"drawbridge help tokenize", "The same as drawbridge tokenize --help."},
};

const command command_help = {
    .name = "help",
    .summary = "explain a command, or list all of them",
    .description = "Prints the page that COMMAND --help prints, or the list of commands.",
    .options = help_options,
    .option_count = COUNT_OF(help_options),
    .values_bytes = sizeof(help_values),
    .examples = help_examples,
    .example_count = COUNT_OF(help_examples),
    .run = help_run,
};
