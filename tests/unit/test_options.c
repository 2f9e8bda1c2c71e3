/* Option tables: parsing, error sentences, and that help, manual and completion come from the same rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"

typedef struct sample {
    const char *model;
    option_list words;
    int64_t count, seed;
    double heat, bias;
    const char *prompt, *out;
    option_list taps;
    int kind;
    bool exact, special;
} sample;

static const char *const kinds[] = {"f32", "bf16", "fp8", NULL};

static const option rows[] = {
    {.name = "MODEL", .type = OPTION_DIRECTORY, .positional = true, .offset = offsetof(sample, model), .help = "The model."},
    {.name = "WORD", .type = OPTION_TEXT, .positional = true, .repeatable = true, .offset = offsetof(sample, words), .help = "Words."},
    {.name = "count", .letter = 'n', .type = OPTION_INT, .metavar = "N", .by_default = "16", .least = 1, .most = 100,
     .offset = offsetof(sample, count), .help = "How many. More is slower."},
    {.name = "seed", .type = OPTION_INT, .metavar = "N", .least = 0, .most = 0x1p63, .offset = offsetof(sample, seed), .help = "Seed."},
    {.name = "temperature", .type = OPTION_NUMBER, .metavar = "T", .by_default = "1", .least = 0, .most = 2,
     .offset = offsetof(sample, heat), .group = "Sampling", .help = "Heat."},
    {.name = "bias", .type = OPTION_NUMBER, .metavar = "X", .offset = offsetof(sample, bias), .help = "Bias."},
    {.name = "prompt", .letter = 'p', .type = OPTION_TEXT, .metavar = "TEXT", .offset = offsetof(sample, prompt), .help = "Prompt."},
    {.name = "out", .letter = 'o', .type = OPTION_FILE, .metavar = "FILE", .offset = offsetof(sample, out), .help = "Output."},
    {.name = "tap", .type = OPTION_TEXT, .metavar = "NAME", .repeatable = true, .offset = offsetof(sample, taps), .help = "Tap."},
    {.name = "kind", .type = OPTION_CHOICE, .choices = kinds, .by_default = "bf16", .offset = offsetof(sample, kind), .help = "Kind."},
    {.name = "exact", .letter = 'x', .type = OPTION_FLAG, .offset = offsetof(sample, exact), .help = "Exact."},
    {.name = "special", .type = OPTION_FLAG, .by_default = "on", .offset = offsetof(sample, special), .help = "Treat as text."},
};

static const command sample_command = {
    .name = "sample",
    .summary = "try the options",
    .description = "First paragraph.\n\n.Second paragraph \\ with a \"quote\".",
    .options = rows,
    .option_count = sizeof rows / sizeof rows[0],
    .values_bytes = sizeof(sample),
};

static const command *const sample_commands[] = {&sample_command};
static const program sample_program = {"drawbridge", "1", "a program", "It's a program.", "November 15, 2026", sample_commands, 1};

/* Splits a line at blanks, keeping "_" as a stand-in for an empty argument, and parses it. */
static bool parse_line(const char *line, sample *values, common_values *common, error *err, char *buffer, size_t capacity)
{
    static char *arguments[32]; /* lists borrow from it until the next call */
    int count = 0;
    snprintf(buffer, capacity, "%s", line);
    for (char *word = strtok(buffer, " "); word; word = strtok(NULL, " "))
        arguments[count++] = strcmp(word, "_") == 0 ? word + 1 : word;
    *values = (sample){0};
    return options_parse(&sample_command, count, arguments, values, common, err);
}

static void test_defaults(void **state)
{
    (void)state;
    char buffer[256];
    sample v;
    common_values common;
    error err = {0};
    assert_true(parse_line("", &v, &common, &err, buffer, sizeof buffer));
    assert_null(v.model);
    assert_int_equal(v.count, 16);
    assert_true(v.seed == OPTION_NOT_GIVEN);
    assert_true(v.heat == 1.0);
    assert_true(isnan(v.bias));
    assert_int_equal(v.kind, 1);
    assert_false(v.exact);
    assert_true(v.special);
    assert_int_equal(v.taps.count, 0);
}

static void test_forms(void **state)
{
    (void)state;
    char buffer[256];
    sample v;
    common_values common;
    error err = {0};
    assert_true(parse_line("dir --count 5 --temperature=.5 --prompt=a=b --kind fp8 -xq --no-special one - -- --two", &v, &common, &err,
                           buffer, sizeof buffer));
    assert_string_equal(v.model, "dir");
    assert_int_equal(v.count, 5);
    assert_true(v.heat == 0.5);
    assert_string_equal(v.prompt, "a=b");
    assert_int_equal(v.kind, 2);
    assert_true(v.exact && common.quiet && !common.verbose && !v.special);
    assert_int_equal(v.words.count, 3);
    assert_string_equal(v.words.items[0], "one");
    assert_string_equal(v.words.items[1], "-");
    assert_string_equal(v.words.items[2], "--two");
    options_free(&sample_command, &v);
    assert_true(parse_line("-n7 -p=x -o y --tap a --tap=b --seed 9223372036854775807 -x -x", &v, &common, &err, buffer, sizeof buffer));
    assert_int_equal(v.count, 7);
    assert_int_equal(v.seed, INT64_MAX);
    assert_string_equal(v.prompt, "x");
    assert_string_equal(v.out, "y");
    assert_int_equal(v.taps.count, 2);
    assert_string_equal(v.taps.items[1], "b");
    options_free(&sample_command, &v);
    assert_true(parse_line("-p -1 --prompt=", &v, &common, &err, buffer, sizeof buffer) == false);
    assert_true(parse_line("-p -1 --special", &v, &common, &err, buffer, sizeof buffer));
    assert_string_equal(v.prompt, "-1");
    assert_true(parse_line("-p _", &v, &common, &err, buffer, sizeof buffer));
    assert_string_equal(v.prompt, "");
}

static void test_help_stops_parsing(void **state)
{
    (void)state;
    char buffer[256];
    sample v;
    common_values common;
    error err = {0};
    assert_true(parse_line("-x --help --nonsense", &v, &common, &err, buffer, sizeof buffer));
    assert_true(common.long_help && !common.short_help);
    assert_true(parse_line("-xh --nonsense", &v, &common, &err, buffer, sizeof buffer));
    assert_true(common.short_help && !common.long_help);
    assert_false(parse_line("--nonsense -h", &v, &common, &err, buffer, sizeof buffer));
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {"--cuont 3", "unknown option --cuont; did you mean --count?"},
        {"--temp 1", "unknown option --temp; did you mean --temperature?"},
        {"--no-spacial", "unknown option --no-spacial; did you mean --no-special?"},
        {"--no-exact", "unknown option --no-exact: --exact is off unless given"},
        {"--zzzzzz", "unknown option --zzzzzz"},
        {"--MODEL x", "unknown option --MODEL"},
        {"-z", "unknown option -z"},
        {"-xz", "unknown option -z"},
        {"--count", "--count needs a value: --count N"},
        {"-n", "--count needs a value: --count N"},
        {"--kind", "--kind needs a value: --kind f32|bf16|fp8"},
        {"--prompt --exact", "--prompt needs a value: --prompt TEXT"},
        {"--prompt -x", "--prompt needs a value: --prompt TEXT"},
        {"--count ten", "--count needs a whole number, found \"ten\""},
        {"--count 1x", "--count needs a whole number, found \"1x\""},
        {"--count=", "--count needs a whole number, found \"\""},
        {"--count 1.5", "--count needs a whole number, found \"1.5\""},
        {"--count 0x10", "--count needs a whole number, found \"0x10\""},
        {"--count 0", "--count must be from 1 to 100, found 0"},
        {"--count 101", "--count must be from 1 to 100, found 101"},
        {"--count 99999999999999999999", "--count must be from 1 to 100, found 99999999999999999999"},
        {"--seed -1", "--seed must be at least 0, found -1"},
        {"--seed 9223372036854775808", "--seed is too large, found 9223372036854775808"},
        {"--temperature warm", "--temperature needs a number, found \"warm\""},
        {"--temperature nan", "--temperature needs a number, found \"nan\""},
        {"--temperature 0x1", "--temperature needs a number, found \"0x1\""},
        {"--temperature 1e", "--temperature needs a number, found \"1e\""},
        {"--temperature 2.5", "--temperature must be from 0 to 2, found 2.5"},
        {"--temperature 1e999", "--temperature must be from 0 to 2, found 1e999"},
        {"--temperature=-0.1", "--temperature must be from 0 to 2, found -0.1"},
        {"--bias 1e999", "--bias is too large, found 1e999"},
        {"--kind fp9", "--kind must be one of f32, bf16, fp8, found \"fp9\"; did you mean fp8?"},
        {"--kind int4", "--kind must be one of f32, bf16, fp8, found \"int4\""},
        {"--count 2 -n 3", "--count is given more than once"},
        {"--special --no-special", "--special and --no-special exclude each other"},
        {"--exact=yes", "--exact takes no value, found \"yes\""},
        {"--out _", "--out needs a path, found an empty text"},
        {"-q -v", "--quiet and --verbose exclude each other"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char buffer[256];
        sample v;
        common_values common;
        error err = {0};
        assert_false(parse_line(cases[i].line, &v, &common, &err, buffer, sizeof buffer));
        assert_string_equal(err.text, cases[i].sentence);
        assert_int_equal(err.code, ERROR_USAGE);
        options_free(&sample_command, &v);
    }
}

typedef struct strict {
    const char *in, *out;
} strict;

static const option strict_rows[] = {
    {.name = "IN", .type = OPTION_FILE, .positional = true, .required = true, .offset = offsetof(strict, in), .help = "Input."},
    {.name = "out", .letter = 'o', .type = OPTION_FILE, .metavar = "FILE", .required = true, .offset = offsetof(strict, out),
     .help = "Output."},
};

static const command strict_command = {.name = "strict", .summary = "strict", .description = "Strict.", .options = strict_rows,
                                       .option_count = 2, .values_bytes = sizeof(strict)};

static void expect_strict(int count, char **arguments, const char *sentence)
{
    strict v = {0};
    common_values common;
    error err = {0};
    assert_false(options_parse(&strict_command, count, arguments, &v, &common, &err));
    assert_string_equal(err.text, sentence);
}

static void test_required_and_surplus(void **state)
{
    (void)state;
    char *arguments[] = {"a", "-o", "b", "c"};
    expect_strict(0, arguments, "IN is missing");
    expect_strict(1, arguments, "-o, --out FILE is missing");
    expect_strict(4, arguments, "surplus argument \"c\"");
    strict v = {0};
    common_values common;
    error err = {0};
    assert_true(options_parse(&strict_command, 3, arguments, &v, &common, &err));
    assert_string_equal(v.out, "b");
}

static void test_unknown_command(void **state)
{
    (void)state;
    error err = {0};
    assert_false(program_unknown_command(&sample_program, "smaple", &err));
    assert_string_equal(err.text, "unknown command \"smaple\"; did you mean sample?");
    assert_false(program_unknown_command(&sample_program, "fly", &err));
    assert_string_equal(err.text, "unknown command \"fly\"");
    assert_ptr_equal(program_find(&sample_program, "sample"), &sample_command);
    assert_null(program_find(&sample_program, "sampl"));
}

static void expect_contains(const char *where, const char *what)
{
    if (!strstr(where, what))
        fail_msg("\"%s\" is not in:\n%s", what, where);
}

static void test_help_has_every_row(void **state)
{
    (void)state;
    text page = {0}, brief = {0};
    help_long(&sample_program, &sample_command, &page);
    help_short(&sample_program, &sample_command, &brief);
    static const char *const expected[] = {
        "Usage: drawbridge sample [OPTIONS] [MODEL] [WORD]...", "-n, --count N", "--no-special", "--kind f32|bf16|fp8",
        "[from 1 to 100; default:", "[at least 0]", "Sampling:", "[may be repeated]", "-h, --help", "-q, --quiet",
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        expect_contains(page.data, expected[i]);
        expect_contains(brief.data, expected[i]);
    }
    expect_contains(page.data, "More is slower.");
    expect_contains(page.data, "Exit codes:");
    assert_null(strstr(brief.data, "More is slower."));
    text_free(&page);
    text_free(&brief);
}

static void test_help_is_80_columns_wide(void **state)
{
    (void)state;
    text page = {0};
    help_long(&sample_program, &sample_command, &page);
    for (const char *line = page.data; *line;) {
        size_t n = strcspn(line, "\n");
        assert_in_range(n, 0, 80);
        line += n + 1;
    }
    text_free(&page);
}

static void test_mdoc_is_escaped(void **state)
{
    (void)state;
    text page = {0};
    manual_mdoc(&sample_program, &sample_command, &page);
    expect_contains(page.data, "\n\\&.Second paragraph \\e with a \\(dqquote\\(dq.\n");
    expect_contains(page.data, ".It Fl n , Fl -count Ar \\&N\n");
    expect_contains(page.data, ".It Fl -no-special\n");
    text_free(&page);
}

static void test_completion_has_every_row(void **state)
{
    (void)state;
    void (*const writers[])(const program *p, text *out) = {completion_bash, completion_zsh, completion_fish};
    for (size_t w = 0; w < 3; w++) {
        text script = {0};
        writers[w](&sample_program, &script);
        for (size_t i = 2; i < sample_command.option_count; i++)
            expect_contains(script.data, rows[i].name);
        expect_contains(script.data, "f32 bf16 fp8");
        expect_contains(script.data, "no-special");
        text_free(&script);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_help_stops_parsing),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_required_and_surplus),
        cmocka_unit_test(test_unknown_command),
        cmocka_unit_test(test_help_has_every_row),
        cmocka_unit_test(test_help_is_80_columns_wide),
        cmocka_unit_test(test_mdoc_is_escaped),
        cmocka_unit_test(test_completion_has_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
