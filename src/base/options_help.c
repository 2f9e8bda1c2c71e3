/* Help texts from option tables, and the words that help, manual pages and completion share. */
#include "base/options.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 80, HELP_COLUMN = 28 };

const exit_code_row exit_codes[] = {
    {ERROR_NONE, "success"},
    {ERROR_RUNTIME, "something failed while running"},
    {ERROR_USAGE, "an option or an argument is wrong"},
    {ERROR_INPUT, "a model, a file or other input is invalid"},
    {ERROR_FIT, "does not fit: memory, context or disk"},
    {ERROR_DEVICE, "a device is missing or failed"},
    {ERROR_NETWORK, "the network failed"},
    {ERROR_INTERRUPTED, "interrupted with Ctrl-C"},
};
const size_t exit_code_count = sizeof exit_codes / sizeof exit_codes[0];

/* ---- words ---- */

size_t sentence_length(const char *words)
{
    for (size_t i = 0; words[i]; i++)
        if (words[i] == '.' && (!words[i + 1] || words[i + 1] == '\n' || (words[i + 1] == ' ' && words[i + 2] != '\0')))
            return i + 1;
    return strlen(words);
}

void option_metavar(const option *o, text *out)
{
    if (o->type == OPTION_CHOICE && !o->metavar)
        for (int i = 0; o->choices[i]; i++)
            text_add_format(out, "%s%s", i ? "|" : "", o->choices[i]);
    else if (o->type != OPTION_FLAG)
        text_add_text(out, o->metavar ? o->metavar : "VALUE");
}

static void positional_usage(const option *o, text *out)
{
    text_add_text(out, o->required ? "" : "[");
    if (o->type == OPTION_CHOICE && !o->metavar)
        option_metavar(o, out);
    else
        text_add_text(out, o->name);
    text_add_text(out, o->required ? "" : "]");
    text_add_text(out, o->repeatable ? "..." : "");
}

void option_usage(const option *o, text *out)
{
    if (o->positional) {
        positional_usage(o, out);
        return;
    }
    if (o->letter)
        text_add_format(out, "-%c, ", o->letter);
    text_add_format(out, "--%s%s", option_is_on(o) ? "no-" : "", o->name);
    if (option_takes_value(o)) {
        text_add_char(out, ' ');
        option_metavar(o, out);
    }
}

static void note(text *out, size_t start)
{
    text_add_text(out, out->length > start ? "; " : "");
}

void option_notes(const option *o, text *out)
{
    size_t start = out->length;
    if (o->least < o->most && o->type == OPTION_INT && o->most >= 0x1p63)
        text_add_format(out, "at least %.0f", o->least);
    else if (o->least < o->most && o->type == OPTION_INT)
        text_add_format(out, "from %.0f to %.0f", o->least, o->most);
    else if (o->least < o->most)
        text_add_format(out, "from %g to %g", o->least, o->most);
    if (o->repeatable && !o->positional) {
        note(out, start);
        text_add_text(out, "may be repeated");
    }
    if (option_takes_value(o) && (o->by_default || o->unset)) {
        note(out, start);
        text_add_format(out, "default: %s", o->by_default ? o->by_default : o->unset);
    }
}

void command_usage(const program *p, const command *c, text *out)
{
    text_add_format(out, "%s %s [OPTIONS]", p->name, c->name);
    for (size_t i = 0; i < c->option_count; i++) {
        const option *o = &c->options[i];
        if (!o->positional && o->required) {
            text_add_format(out, " --%s ", o->name);
            option_metavar(o, out);
        } else if (o->positional) {
            text_add_char(out, ' ');
            positional_usage(o, out);
        }
    }
}

/* ---- layout ---- */

/* Adds words broken at blanks so that lines end before WIDTH; column is where the cursor stands, indent where further
 * lines begin. */
static void add_wrapped(text *out, const char *words, size_t count, size_t column, size_t indent)
{
    bool first = true;
    for (size_t i = 0; i < count;) {
        size_t n = 0;
        while (i + n < count && words[i + n] != ' ' && words[i + n] != '\n')
            n++;
        if (!first && column + 1 + n > WIDTH) {
            text_add_format(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            text_add_char(out, ' ');
            column++;
        }
        text_add(out, words + i, n);
        column += n;
        first = false;
        for (i += n; i < count && (words[i] == ' ' || words[i] == '\n'); i++)
            ;
    }
    text_add_char(out, '\n');
}

/* Paragraphs are separated by an empty line. */
static void add_paragraphs(text *out, const char *words)
{
    while (*words) {
        const char *end = strstr(words, "\n\n");
        size_t n = end ? (size_t)(end - words) : strlen(words);
        add_wrapped(out, words, n, 0, 0);
        text_add_char(out, '\n');
        words += end ? n + 2 : n;
    }
}

/* Two columns: "  left", then words from HELP_COLUMN on. */
static void add_row(text *out, const char *left, const char *words)
{
    size_t start = out->length;
    text_add_format(out, "  %s", left);
    size_t column = out->length - start;
    if (column + 2 > HELP_COLUMN) {
        text_add_char(out, '\n');
        column = 0;
    }
    text_add_format(out, "%*s", (int)(HELP_COLUMN - column), "");
    add_wrapped(out, words, strlen(words), HELP_COLUMN, HELP_COLUMN);
}

static void add_option(text *out, const option *o, bool brief)
{
    text left = {0}, words = {0};
    if (!o->letter && !o->positional)
        text_add_text(&left, "    ");
    option_usage(o, &left);
    text_add(&words, o->help, brief ? sentence_length(o->help) : strlen(o->help));
    size_t before = words.length;
    text_add_text(&words, " [");
    option_notes(o, &words);
    if (words.length == before + 2)
        words.data[words.length = before] = '\0';
    else
        text_add_char(&words, ']');
    add_row(out, left.data, words.data);
    text_free(&left);
    text_free(&words);
}

static const char *group_of(const option *o)
{
    return o->positional ? "Arguments" : o->group ? o->group : "Options";
}

/* The rows of one group, under its heading; the caller gives the first row of the group. */
static void add_group(text *out, const option *rows, size_t count, size_t first, bool brief)
{
    const char *group = group_of(&rows[first]);
    text_add_format(out, "%s:\n", group);
    for (size_t i = first; i < count; i++)
        if (strcmp(group_of(&rows[i]), group) == 0)
            add_option(out, &rows[i], brief);
    text_add_char(out, '\n');
}

static void add_groups(text *out, const option *rows, size_t count, bool brief)
{
    for (size_t i = 0; i < count; i++) {
        bool seen = false;
        for (size_t j = 0; j < i; j++)
            seen = seen || strcmp(group_of(&rows[j]), group_of(&rows[i])) == 0;
        if (!seen)
            add_group(out, rows, count, i, brief);
    }
}

static void add_exit_codes(text *out)
{
    text_add_text(out, "Exit codes:\n");
    for (size_t i = 0; i < exit_code_count; i++)
        text_add_format(out, "  %3d  %s\n", (int)exit_codes[i].code, exit_codes[i].meaning);
}

/* ---- pages ---- */

static void add_heading(text *out, const program *p, const command *c)
{
    text usage = {0};
    text_add_format(out, "%s %s: %s\n\n", p->name, c->name, c->summary);
    text_add_text(&usage, "Usage: ");
    command_usage(p, c, &usage);
    add_wrapped(out, usage.data, usage.length, 0, 11);
    text_add_char(out, '\n');
    text_free(&usage);
}

void help_short(const program *p, const command *c, text *out)
{
    add_heading(out, p, c);
    add_groups(out, c->options, c->option_count, true);
    add_groups(out, options_common, options_common_count, true);
    text_add_format(out, "%s %s --help tells more, with examples.\n", p->name, c->name);
}

void help_long(const program *p, const command *c, text *out)
{
    add_heading(out, p, c);
    add_paragraphs(out, c->description);
    add_groups(out, c->options, c->option_count, false);
    add_groups(out, options_common, options_common_count, false);
    if (c->example_count)
        text_add_text(out, "Examples:\n");
    for (size_t i = 0; i < c->example_count; i++) {
        text_add_format(out, "  %s\n      ", c->examples[i].line);
        add_wrapped(out, c->examples[i].words, strlen(c->examples[i].words), 6, 6);
    }
    text_add_text(out, c->example_count ? "\n" : "");
    add_exit_codes(out);
}

void help_program(const program *p, text *out)
{
    text_add_format(out, "%s %s: %s\n\nUsage: %s COMMAND [OPTIONS] [ARGUMENTS]\n\n", p->name, p->version, p->summary, p->name);
    add_paragraphs(out, p->description);
    text_add_text(out, "Commands:\n");
    for (size_t i = 0; i < p->command_count; i++)
        text_add_format(out, "  %-12s%s\n", p->commands[i]->name, p->commands[i]->summary);
    text_add_char(out, '\n');
    add_groups(out, options_common, options_common_count, false);
    add_exit_codes(out);
}
