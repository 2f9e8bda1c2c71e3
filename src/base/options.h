/* Option tables: one table per command gives parsing, help, shell completion, the man page and docs/commands.md.
 *
 * A command describes its arguments as rows of `option`, and a struct of its own that receives the values; each row
 * knows the offset of its field. The field's type follows from the row:
 *
 *     OPTION_FLAG             bool
 *     OPTION_INT              int64_t (OPTION_NOT_GIVEN when not given and without default)
 *     OPTION_NUMBER           double (NaN when not given and without default)
 *     OPTION_TEXT, _FILE, _DIRECTORY, _COMMAND   const char * (NULL when not given and without default)
 *     OPTION_CHOICE           int (index into choices; enums are written to match)
 *     a text type, repeatable option_list
 *
 * Accepted forms: --name VALUE, --name=VALUE, -n VALUE, -nVALUE, -n=VALUE, bundled flags (-qv), --name and, for a
 * flag that is on by default, --no-name; "--" ends the options, "-" is an argument. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

typedef enum option_type {
    OPTION_FLAG,
    OPTION_INT,
    OPTION_NUMBER,
    OPTION_TEXT,
    OPTION_FILE,      /* a path of a file; shells complete it */
    OPTION_DIRECTORY, /* a path of a directory */
    OPTION_COMMAND,   /* the name of a command of the program */
    OPTION_CHOICE,
} option_type;

#define OPTION_NOT_GIVEN INT64_MIN

typedef struct option {
    const char *name;      /* "max-tokens" for --max-tokens; a positional argument: as usage shows it, "MODEL" */
    char letter;           /* 'n' for -n; 0: none */
    option_type type;
    bool positional;       /* an argument, in the order of the table */
    bool required;         /* missing is an error */
    bool repeatable;       /* may be given again; the field is an option_list. Among positionals: the last one only */
    size_t offset;         /* of the field in the command's struct */
    const char *metavar;   /* what help shows for the value: "N", "FILE"; NULL for flags and choices */
    const char *by_default; /* parsed into the field before the arguments ("on" for a flag); NULL: none */
    const char *unset;     /* words for help where by_default is NULL: "the built-in model" */
    double least, most;    /* range of a number, both ends allowed; both 0: any. INT: most >= 2^63 means no upper end */
    const char *const *choices; /* OPTION_CHOICE: NULL-terminated */
    const char *group;     /* heading in help; NULL: "Options" */
    const char *help;      /* one or more sentences, the first one alone in -h; for a flag that is on: what --no-name does */
} option;

/* Values of a repeatable option, in the order given. The strings are borrowed from argv. */
typedef struct option_list {
    const char **items;
    size_t count;
} option_list;

typedef struct command_example {
    const char *line;  /* as typed in a shell */
    const char *words; /* what it does */
} command_example;

typedef struct program program;

typedef struct command {
    const char *name;
    const char *summary;     /* one line without a full stop */
    const char *description; /* paragraphs separated by an empty line */
    const option *options;
    size_t option_count;
    size_t values_bytes;     /* size of the struct that receives the values; 0: none */
    const command_example *examples;
    size_t example_count;
    bool (*run)(const program *p, const void *values, error *err); /* the error's code becomes the exit status */
} command;

struct program {
    const char *name, *version, *summary;
    const char *description; /* paragraphs separated by an empty line */
    const char *date;        /* of the manual pages, "November 15, 2026" */
    const command *const *commands;
    size_t command_count;
};

/* Options that every command has. */
typedef struct common_values {
    bool short_help, long_help; /* -h, --help */
    bool quiet, verbose;
} common_values;

extern const option options_common[];
extern const size_t options_common_count;

/* Parses arguments (the command's name not among them) into values, which must be zeroed. Stops at the first -h or
 * --help. Errors have code ERROR_USAGE. options_free in any case. */
bool options_parse(const command *c, int count, char *const *arguments, void *values, common_values *common, error *err);
void options_free(const command *c, void *values);

const command *program_find(const program *p, const char *name);       /* NULL when unknown */
bool program_unknown_command(const program *p, const char *name, error *err); /* with "did you mean"; returns false */

/* Help for people, 80 columns. */
void help_program(const program *p, text *out);                  /* all commands, by name and summary */
void help_short(const program *p, const command *c, text *out);  /* usage and one line per option */
void help_long(const program *p, const command *c, text *out);   /* with descriptions, examples and exit codes */

/* The same tables as files. */
void completion_bash(const program *p, text *out);
void completion_zsh(const program *p, text *out);
void completion_fish(const program *p, text *out);
void manual_mdoc(const program *p, const command *c, text *out); /* c NULL: the page of the program itself */
void manual_markdown(const program *p, text *out);               /* all commands: docs/commands.md */

/* What the files above and help share. */
typedef struct exit_code_row {
    error_code code;
    const char *meaning;
} exit_code_row;

extern const exit_code_row exit_codes[];
extern const size_t exit_code_count;

bool option_takes_value(const option *o);
bool option_is_on(const option *o);                        /* a flag that is on unless --no-name is given */
void option_metavar(const option *o, text *out);           /* "N", "FILE", "f32|bf16|fp8"; nothing for a flag */
void option_usage(const option *o, text *out);             /* "-n, --name N", "--no-name", "[TEXT]..." */
void option_notes(const option *o, text *out);             /* "from 0 to 2; default 1"; nothing when there is nothing */
void command_usage(const program *p, const command *c, text *out); /* "drawbridge tokenize [OPTIONS] [TEXT]..." */
size_t sentence_length(const char *words);                 /* bytes of the first sentence */

#endif
