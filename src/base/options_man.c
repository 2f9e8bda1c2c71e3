/* Manual pages in mdoc (checked with `mandoc -Tlint`) and docs/commands.md, from option tables.
 *
 * In mdoc a line that begins with "." or "'" is a request, a backslash begins an escape, and on a request line every word that is
 * a macro's name is called. So prose goes on text lines of its own, one sentence per line, and words on request lines
 * are made harmless by a zero-width \& before them. */
#include "base/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_WIDTH = 78 };

/* ---- mdoc ---- */

/* One word with roff's special characters escaped. */
static void add_roff(text *out, const char *word, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (word[i] == '\\')
            text_add_text(out, "\\e");
        else if (word[i] == '"')
            text_add_text(out, "\\(dq");
        else
            text_add_char(out, word[i]);
    }
}

static bool ends_sentence(const char *words, size_t end)
{
    return end > 0 && strchr(".?!", words[end - 1]);
}

/* Prose as text lines: one sentence begins one line, no line longer than TEXT_WIDTH. */
static void add_prose(text *out, const char *words, size_t count)
{
    size_t column = 0;
    for (size_t i = 0; i < count;) {
        size_t n = 0;
        while (i + n < count && !isspace((unsigned char)words[i + n]))
            n++;
        bool fresh = column == 0 || column + 1 + n > TEXT_WIDTH || ends_sentence(words, i - 1);
        if (column)
            text_add_char(out, fresh ? '\n' : ' ');
        if (fresh && strchr(".'", words[i]))
            text_add_text(out, "\\&");
        column = fresh ? n : column + 1 + n;
        add_roff(out, words + i, n);
        for (i += n; i < count && isspace((unsigned char)words[i]); i++)
            ;
    }
    text_add_char(out, '\n');
}

static void add_prose_paragraphs(text *out, const char *words)
{
    while (*words) {
        const char *end = strstr(words, "\n\n");
        size_t n = end ? (size_t)(end - words) : strlen(words);
        add_prose(out, words, n);
        text_add_text(out, end ? ".Pp\n" : "");
        words += end ? n + 2 : n;
    }
}

/* Words for a request line: none of them is a macro. */
static void add_arguments(text *out, const char *words)
{
    while (*words) {
        size_t n = strcspn(words, " ");
        if (n) {
            text_add_text(out, " \\&");
            add_roff(out, words, n);
        }
        words += n + (words[n] == ' ');
    }
}

/* The value of an option as macro arguments. */
static void add_value(text *out, const option *o)
{
    text value = {0};
    option_metavar(o, &value);
    text_add_text(out, " Ar");
    add_arguments(out, value.data);
    text_free(&value);
}

static void add_option_macros(text *out, const option *o)
{
    if (o->positional) {
        text name = {0};
        text_add_text(&name, o->name);
        if (o->type == OPTION_CHOICE) {
            text_clear(&name);
            option_metavar(o, &name);
        }
        text_add_text(out, "Ar");
        add_arguments(out, name.data);
        text_add_text(out, o->repeatable ? " ..." : "");
        text_free(&name);
        return;
    }
    if (o->letter)
        text_add_format(out, "Fl %c , ", o->letter);
    text_add_format(out, "Fl -%s%s", option_is_on(o) ? "no-" : "", o->name);
    if (option_takes_value(o))
        add_value(out, o);
}

static void add_item(text *out, const option *o)
{
    text_add_text(out, ".It ");
    add_option_macros(out, o);
    text_add_char(out, '\n');
    add_prose(out, o->help, strlen(o->help));
    text notes = {0};
    option_notes(o, &notes);
    if (notes.length) {
        notes.data[0] = (char)toupper((unsigned char)notes.data[0]);
        text_add_char(&notes, '.');
        add_prose(out, notes.data, notes.length);
    }
    text_free(&notes);
}

static void add_items(text *out, const option *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        add_item(out, &rows[i]);
}

static void add_synopsis(const program *p, const command *c, text *out)
{
    text_add_format(out, ".Sh SYNOPSIS\n.Nm %s %s\n.Op Ar OPTIONS\n", p->name, c->name);
    for (size_t i = 0; i < c->option_count; i++) {
        const option *o = &c->options[i];
        if (!o->positional && !o->required)
            continue;
        text_add_text(out, o->required ? "." : ".Op ");
        add_option_macros(out, o);
        text_add_char(out, '\n');
    }
}

static void add_exit_status(text *out)
{
    text_add_text(out, ".Sh EXIT STATUS\n.Bl -tag -width 3n\n");
    for (size_t i = 0; i < exit_code_count; i++) {
        text_add_format(out, ".It %d\n", (int)exit_codes[i].code);
        add_prose(out, exit_codes[i].meaning, strlen(exit_codes[i].meaning));
    }
    text_add_text(out, ".El\n");
}

static void add_examples(const command *c, text *out)
{
    if (c->example_count == 0)
        return;
    text_add_text(out, ".Sh EXAMPLES\n");
    for (size_t i = 0; i < c->example_count; i++) {
        text_add_text(out, i ? ".Pp\n" : "");
        add_prose(out, c->examples[i].words, strlen(c->examples[i].words));
        text_add_text(out, ".Dl");
        add_arguments(out, c->examples[i].line);
        text_add_char(out, '\n');
    }
}

static void add_title(const program *p, const char *name, const char *summary, text *out)
{
    text_add_format(out, ".\\\" Generated from the option tables by `%s man`.\n.Dd %s\n.Dt ", p->name, p->date);
    for (const char *s = name; *s; s++)
        text_add_char(out, *s == ' ' ? '-' : (char)toupper((unsigned char)*s));
    text_add_text(out, " 1\n.Os\n.Sh NAME\n.Nm ");
    for (const char *s = name; *s; s++)
        text_add_char(out, *s == ' ' ? '-' : *s);
    text_add_text(out, "\n.Nd");
    add_arguments(out, summary);
    text_add_char(out, '\n');
}

static void program_page(const program *p, text *out)
{
    add_title(p, p->name, p->summary, out);
    text_add_format(out, ".Sh SYNOPSIS\n.Nm %s\n.Ar COMMAND\n.Op Ar OPTIONS\n.Op Ar ARGUMENTS\n.Sh DESCRIPTION\n", p->name);
    add_prose_paragraphs(out, p->description);
    text_add_text(out, ".Pp\nThe commands are:\n.Bl -tag -width completionxx\n");
    for (size_t i = 0; i < p->command_count; i++) {
        text_add_format(out, ".It Cm %s\n", p->commands[i]->name);
        add_prose(out, p->commands[i]->summary, strlen(p->commands[i]->summary));
    }
    text_add_text(out, ".El\n.Pp\nEvery command has these options:\n.Bl -tag -width Ds\n");
    add_items(out, options_common, options_common_count);
    text_add_text(out, ".El\n");
    add_exit_status(out);
}

void manual_mdoc(const program *p, const command *c, text *out)
{
    if (!c) {
        program_page(p, out);
        return;
    }
    text name = {0};
    text_add_format(&name, "%s %s", p->name, c->name);
    add_title(p, name.data, c->summary, out);
    add_synopsis(p, c, out);
    text_add_text(out, ".Sh DESCRIPTION\n");
    add_prose_paragraphs(out, c->description);
    text_add_text(out, ".Bl -tag -width Ds\n");
    add_items(out, c->options, c->option_count);
    add_items(out, options_common, options_common_count);
    text_add_text(out, ".El\n");
    add_exit_status(out);
    add_examples(c, out);
    text_free(&name);
}

/* ---- Markdown ---- */

/* Text of a table cell or a paragraph, without characters that mean something in Markdown. */
static void add_markdown(text *out, const char *words)
{
    for (; *words; words++) {
        if (strchr("|<*_`\\", *words))
            text_add_char(out, '\\');
        text_add_char(out, *words);
    }
}

/* Code in a table cell: "|" ends a cell even inside backquotes unless escaped. */
static void add_code_cell(text *out, const char *code)
{
    text_add_char(out, '`');
    for (; *code; code++)
        text_add_format(out, "%s%c", *code == '|' ? "\\" : "", *code);
    text_add_char(out, '`');
}

static void markdown_option(const option *o, text *out)
{
    text usage = {0}, notes = {0};
    option_usage(o, &usage);
    option_notes(o, &notes);
    text_add_text(out, "| ");
    add_code_cell(out, usage.data);
    text_add_text(out, " | ");
    add_markdown(out, o->help);
    if (notes.length) {
        text_add_text(out, " (");
        add_markdown(out, notes.data);
        text_add_char(out, ')');
    }
    text_add_text(out, " |\n");
    text_free(&usage);
    text_free(&notes);
}

static void markdown_options(const option *rows, size_t count, text *out)
{
    if (count)
        text_add_text(out, "| option | meaning |\n|---|---|\n");
    for (size_t i = 0; i < count; i++)
        markdown_option(&rows[i], out);
    text_add_text(out, count ? "\n" : "");
}

static void markdown_command(const program *p, const command *c, text *out)
{
    text_add_format(out, "## %s\n\n", c->name);
    text_add_text(out, "    ");
    command_usage(p, c, out);
    text_add_text(out, "\n\n");
    add_markdown(out, c->description);
    text_add_text(out, "\n\n");
    markdown_options(c->options, c->option_count, out);
    if (c->example_count)
        text_add_text(out, "```sh\n");
    for (size_t i = 0; i < c->example_count; i++)
        text_add_format(out, "# %s\n%s\n", c->examples[i].words, c->examples[i].line);
    text_add_text(out, c->example_count ? "```\n\n" : "");
}

void manual_markdown(const program *p, text *out)
{
    text_add_format(out, "<!-- Generated from the option tables by `%s man --markdown`; a test checks that it is fresh. -->\n", p->name);
    text_add_format(out, "# The commands of %s\n\n", p->name);
    add_markdown(out, p->description);
    text_add_text(out, "\n\n| command | what it does |\n|---|---|\n");
    for (size_t i = 0; i < p->command_count; i++)
        text_add_format(out, "| [%s](#%s) | %s |\n", p->commands[i]->name, p->commands[i]->name, p->commands[i]->summary);
    text_add_text(out, "\nEvery command has:\n\n");
    markdown_options(options_common, options_common_count, out);
    text_add_text(out, "Exit codes:\n\n| code | meaning |\n|---|---|\n");
    for (size_t i = 0; i < exit_code_count; i++)
        text_add_format(out, "| %d | %s |\n", (int)exit_codes[i].code, exit_codes[i].meaning);
    for (size_t i = 0; i < p->command_count; i++) {
        text_add_char(out, '\n');
        markdown_command(p, p->commands[i], out);
    }
    while (out->length > 1 && out->data[out->length - 2] == '\n')
        out->data[--out->length] = '\0';
}
