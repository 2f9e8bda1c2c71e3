/* Parsing of arguments by option tables. */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

const option options_common[] = {
    {.name = "help", .letter = 'h', .type = OPTION_FLAG, .group = "Common options", .offset = offsetof(common_values, long_help),
     .help = "Show help: -h the options, --help everything with examples."},
    {.name = "quiet", .letter = 'q', .type = OPTION_FLAG, .group = "Common options", .offset = offsetof(common_values, quiet),
     .help = "Write no messages to standard error, except warnings and errors."},
    {.name = "verbose", .letter = 'v', .type = OPTION_FLAG, .group = "Common options", .offset = offsetof(common_values, verbose),
     .help = "Write more messages to standard error."},
};
const size_t options_common_count = sizeof options_common / sizeof options_common[0];

enum { SUGGEST_DISTANCE = 2 };

/* How one option was written: the row, and for a flag the value it gets. */
typedef struct match {
    const option *row;
    bool *given;   /* whether the row was given before */
    void *base;    /* the struct that holds its field */
    bool on;       /* flags: --name true, --no-name false */
} match;

/* One run of options_parse. */
typedef struct parser {
    const command *command;
    int count, next;          /* arguments, and the index of the next one */
    char *const *arguments;
    void *values;
    common_values *common;
    bool *given;              /* [option_count], then [options_common_count] */
    size_t positional;        /* how many positional arguments were taken */
    error *err;
} parser;

bool option_takes_value(const option *o)
{
    return o->type != OPTION_FLAG;
}

bool option_is_on(const option *o)
{
    return o->type == OPTION_FLAG && o->by_default && strcmp(o->by_default, "on") == 0;
}

/* The name of an option for an error: "--max-tokens", or "MODEL". */
static const char *shown_name(const option *o, char *buffer, size_t capacity)
{
    snprintf(buffer, capacity, "%s%s", o->positional ? "" : "--", o->name);
    return buffer;
}

/* Distance as for "did you mean": 0 also when one begins with the other. */
static size_t likeness(const char *typed, const char *name)
{
    if (strlen(typed) >= 2 && text_starts_with(name, typed))
        return 0;
    size_t d = text_distance(typed, name, SUGGEST_DISTANCE);
    return d < strlen(name) ? d : SUGGEST_DISTANCE + 1;
}

/* ---- values ---- */

static bool store_int(const option *o, const char *value, void *field, error *err)
{
    char name[64], *end;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    bool digits = isdigit((unsigned char)value[0]) || (value[0] == '-' && isdigit((unsigned char)value[1]));
    if (!digits || *end)
        return error_set(err, ERROR_USAGE, "%s needs a whole number, found \"%s\"", shown_name(o, name, sizeof name), value);
    bool ranged = o->least < o->most;
    bool outside = errno == ERANGE || (ranged && ((double)n < o->least || (double)n > o->most));
    if (outside && ranged && o->most < 0x1p63)
        return error_set(err, ERROR_USAGE, "%s must be from %.0f to %.0f, found %s", shown_name(o, name, sizeof name), o->least,
                         o->most, value);
    if (outside && ranged && errno != ERANGE)
        return error_set(err, ERROR_USAGE, "%s must be at least %.0f, found %s", shown_name(o, name, sizeof name), o->least, value);
    if (outside)
        return error_set(err, ERROR_USAGE, "%s is too large, found %s", shown_name(o, name, sizeof name), value);
    *(int64_t *)field = n;
    return true;
}

static bool store_number(const option *o, const char *value, void *field, error *err)
{
    char name[64], *end;
    double n = strtod(value, &end);
    bool decimal = value[0] && strspn(value, "+-.0123456789eE") == strlen(value); /* no hexadecimal, inf, nan or blanks */
    if (!decimal || *end || end == value)
        return error_set(err, ERROR_USAGE, "%s needs a number, found \"%s\"", shown_name(o, name, sizeof name), value);
    bool ranged = o->least < o->most;
    if (!isfinite(n) || (ranged && (n < o->least || n > o->most))) {
        if (!ranged)
            return error_set(err, ERROR_USAGE, "%s is too large, found %s", shown_name(o, name, sizeof name), value);
        return error_set(err, ERROR_USAGE, "%s must be from %g to %g, found %s", shown_name(o, name, sizeof name), o->least, o->most,
                         value);
    }
    *(double *)field = n;
    return true;
}

static bool store_choice(const option *o, const char *value, void *field, error *err)
{
    const char *best = NULL;
    size_t best_distance = SUGGEST_DISTANCE + 1;
    text all = {0};
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], value) == 0) {
            *(int *)field = i;
            text_free(&all);
            return true;
        }
        size_t d = likeness(value, o->choices[i]);
        if (d < best_distance) {
            best = o->choices[i];
            best_distance = d;
        }
        text_add_format(&all, "%s%s", i ? ", " : "", o->choices[i]);
    }
    char name[64];
    error_set(err, ERROR_USAGE, "%s must be one of %s, found \"%s\"%s%s%s", shown_name(o, name, sizeof name), all.data, value,
              best ? "; did you mean " : "", best ? best : "", best ? "?" : "");
    text_free(&all);
    return false;
}

static bool store_text(const option *o, const char *value, void *field, error *err)
{
    char name[64];
    if ((o->type == OPTION_FILE || o->type == OPTION_DIRECTORY) && value[0] == '\0')
        return error_set(err, ERROR_USAGE, "%s needs a path, found an empty text", shown_name(o, name, sizeof name));
    if (!o->repeatable) {
        *(const char **)field = value;
        return true;
    }
    option_list *list = field;
    list->items = mem_grow(list->items, list->count + 1, sizeof *list->items);
    list->items[list->count++] = value;
    return true;
}

static bool store_value(const option *o, const char *value, void *base, error *err)
{
    void *field = (char *)base + o->offset;
    switch (o->type) {
    case OPTION_INT: return store_int(o, value, field, err);
    case OPTION_NUMBER: return store_number(o, value, field, err);
    case OPTION_CHOICE: return store_choice(o, value, field, err);
    case OPTION_FLAG: *(bool *)field = strcmp(value, "on") == 0; return true;
    default: return store_text(o, value, field, err);
    }
}

static void store_nothing(const option *o, void *base)
{
    void *field = (char *)base + o->offset;
    if (o->type == OPTION_INT)
        *(int64_t *)field = OPTION_NOT_GIVEN;
    else if (o->type == OPTION_NUMBER)
        *(double *)field = NAN;
}

static bool store_defaults(const command *c, void *values, error *err)
{
    for (size_t i = 0; i < c->option_count; i++) {
        const option *o = &c->options[i];
        if (!o->by_default)
            store_nothing(o, values);
        else if (!store_value(o, o->by_default, values, err))
            return error_add(err, "the default value");
    }
    return true;
}

/* ---- finding rows ---- */

/* The i-th row of the command's table followed by the common one; NULL after the last. */
static bool row_at(const parser *p, size_t i, match *out)
{
    size_t own = p->command->option_count;
    if (i >= own + options_common_count)
        return false;
    *out = (match){i < own ? &p->command->options[i] : &options_common[i - own], &p->given[i], i < own ? p->values : p->common, true};
    return true;
}

/* Finds --name or --no-name; name is not terminated. */
static bool find_long(const parser *p, view name, match *out)
{
    bool negated = name.length > 3 && memcmp(name.data, "no-", 3) == 0;
    view positive = negated ? (view){name.data + 3, name.length - 3} : name;
    for (size_t i = 0; row_at(p, i, out); i++) {
        if (out->row->positional)
            continue;
        if (view_equal_text(name, out->row->name))
            return true;
        if (negated && option_is_on(out->row) && view_equal_text(positive, out->row->name)) {
            out->on = false;
            return true;
        }
    }
    return false;
}

static bool find_letter(const parser *p, char letter, match *out)
{
    for (size_t i = 0; row_at(p, i, out); i++)
        if (!out->row->positional && out->row->letter == letter)
            return true;
    return false;
}

/* "--no-json" where json is a flag that is off anyway. */
static bool is_needless_negation(const parser *p, const char *name)
{
    match m;
    return text_starts_with(name, "no-") && find_long(p, view_of(name + 3), &m) && m.row->type == OPTION_FLAG;
}

static bool unknown_long(const parser *p, view typed)
{
    char name[65], best[96] = "";
    snprintf(name, sizeof name, "%.*s", (int)(typed.length < 64 ? typed.length : 64), typed.data);
    if (is_needless_negation(p, name))
        return error_set(p->err, ERROR_USAGE, "unknown option --%s: --%s is off unless given", name, name + 3);
    size_t best_distance = SUGGEST_DISTANCE + 1;
    match m;
    for (size_t i = 0; row_at(p, i, &m); i++) {
        char shown[64];
        snprintf(shown, sizeof shown, "%s%s", option_is_on(m.row) ? "no-" : "", m.row->name);
        size_t d = m.row->positional ? best_distance : likeness(name, shown);
        if (d < best_distance) {
            best_distance = d;
            snprintf(best, sizeof best, "; did you mean --%s?", shown);
        }
    }
    return error_set(p->err, ERROR_USAGE, "unknown option --%s%s", name, best);
}

/* Whether the next argument is written as one of our options, so that it is not meant as a value. */
static bool is_known_option(const parser *p, const char *argument)
{
    match m;
    if (text_starts_with(argument, "--"))
        return argument[2] && find_long(p, (view){argument + 2, strcspn(argument + 2, "=")}, &m);
    return argument[0] == '-' && argument[1] && !argument[2] && find_letter(p, argument[1], &m);
}

/* ---- taking arguments ---- */

static bool take_flag(const parser *p, match m)
{
    bool *field = (bool *)((char *)m.base + m.row->offset);
    if (*m.given && *field != m.on)
        return error_set(p->err, ERROR_USAGE, "--%s and --no-%s exclude each other", m.row->name, m.row->name);
    *m.given = true;
    *field = m.on;
    return true;
}

/* attached: the value after "=" or after a letter; NULL: the next argument is the value. */
static bool take_value(parser *p, match m, const char *attached)
{
    const option *o = m.row;
    if (*m.given && !o->repeatable)
        return error_set(p->err, ERROR_USAGE, "--%s is given more than once", o->name);
    if (!attached && (p->next >= p->count || is_known_option(p, p->arguments[p->next]))) {
        text shown = {0};
        option_metavar(o, &shown);
        error_set(p->err, ERROR_USAGE, "--%s needs a value: --%s %s", o->name, o->name, shown.data);
        text_free(&shown);
        return false;
    }
    *m.given = true;
    return store_value(o, attached ? attached : p->arguments[p->next++], m.base, p->err);
}

static bool take_long(parser *p, const char *argument)
{
    view name = {argument + 2, strcspn(argument + 2, "=")};
    const char *attached = name.data[name.length] ? name.data + name.length + 1 : NULL;
    match m;
    if (!find_long(p, name, &m))
        return unknown_long(p, name);
    if (option_takes_value(m.row))
        return take_value(p, m, attached);
    if (attached)
        return error_set(p->err, ERROR_USAGE, "--%.*s takes no value, found \"%s\"", (int)name.length, name.data, attached);
    return take_flag(p, m);
}

static bool take_letters(parser *p, const char *letters)
{
    for (; *letters; letters++) {
        match m;
        if (!find_letter(p, *letters, &m))
            return error_set(p->err, ERROR_USAGE, "unknown option -%.1s", letters);
        if (option_takes_value(m.row)) {
            const char *rest = letters[1] == '=' ? letters + 2 : letters + 1;
            return take_value(p, m, letters[1] ? rest : NULL);
        }
        if (*letters == 'h' && m.base == p->common) {
            p->common->short_help = true;
            return true;
        }
        if (!take_flag(p, m))
            return false;
    }
    return true;
}

/* The n-th positional row; the last one stands for all further ones when it is repeatable. */
static const option *positional_row(const command *c, size_t n)
{
    const option *last = NULL;
    for (size_t i = 0; i < c->option_count; i++) {
        if (!c->options[i].positional)
            continue;
        last = &c->options[i];
        if (n-- == 0)
            return last;
    }
    return last && last->repeatable ? last : NULL;
}

static bool take_positional(parser *p, const char *argument)
{
    const option *o = positional_row(p->command, p->positional++);
    if (!o)
        return error_set(p->err, ERROR_USAGE, "surplus argument \"%s\"", argument);
    p->given[o - p->command->options] = true;
    return store_value(o, argument, p->values, p->err);
}

static bool take_all(parser *p)
{
    bool only_positional = false;
    while (p->next < p->count && !p->common->short_help && !p->common->long_help) {
        const char *a = p->arguments[p->next++];
        bool ok;
        if (only_positional || a[0] != '-' || !a[1])
            ok = take_positional(p, a);
        else if (a[1] != '-')
            ok = take_letters(p, a + 1);
        else if (a[2])
            ok = take_long(p, a);
        else
            ok = only_positional = true;
        if (!ok)
            return false;
    }
    return true;
}

static bool check_required(const parser *p)
{
    for (size_t i = 0; i < p->command->option_count; i++) {
        const option *o = &p->command->options[i];
        if (!o->required || p->given[i])
            continue;
        text shown = {0};
        option_usage(o, &shown);
        error_set(p->err, ERROR_USAGE, "%s is missing", shown.data);
        text_free(&shown);
        return false;
    }
    return true;
}

bool options_parse(const command *c, int count, char *const *arguments, void *values, common_values *common, error *err)
{
    *common = (common_values){0};
    bool *given = mem_alloc(c->option_count + options_common_count, sizeof *given);
    parser p = {c, count, 0, arguments, values, common, given, 0, err};
    bool ok = store_defaults(c, values, err) && take_all(&p);
    if (ok && !common->short_help && !common->long_help)
        ok = check_required(&p);
    if (ok && common->quiet && common->verbose)
        ok = error_set(err, ERROR_USAGE, "--quiet and --verbose exclude each other");
    free(given);
    return ok;
}

void options_free(const command *c, void *values)
{
    for (size_t i = 0; i < c->option_count; i++) {
        if (!c->options[i].repeatable)
            continue;
        option_list *list = (option_list *)((char *)values + c->options[i].offset);
        free(list->items);
        *list = (option_list){0};
    }
}

/* ---- commands ---- */

const command *program_find(const program *p, const char *name)
{
    for (size_t i = 0; i < p->command_count; i++)
        if (strcmp(p->commands[i]->name, name) == 0)
            return p->commands[i];
    return NULL;
}

bool program_unknown_command(const program *p, const char *name, error *err)
{
    const char *best = NULL;
    size_t best_distance = SUGGEST_DISTANCE + 1;
    for (size_t i = 0; i < p->command_count; i++) {
        size_t d = likeness(name, p->commands[i]->name);
        if (d < best_distance) {
            best = p->commands[i]->name;
            best_distance = d;
        }
    }
    if (best)
        return error_set(err, ERROR_USAGE, "unknown command \"%s\"; did you mean %s?", name, best);
    return error_set(err, ERROR_USAGE, "unknown command \"%s\"", name);
}
