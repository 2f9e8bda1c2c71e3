/* drawbridge version */
#include <stdio.h>

#include "base/json.h"
#include "commands/commands.h"

typedef struct version_values {
    bool json;
} version_values;

static const option version_options[] = {
    {.name = "json", .type = OPTION_FLAG, .offset = offsetof(version_values, json), .help = "Print a JSON object."},
};

#if defined __x86_64__
static const char architecture[] = "x86-64";
#elif defined __aarch64__
static const char architecture[] = "arm64";
#else
static const char architecture[] = "another";
#endif

#if defined __clang__
static const char compiler[] = "clang " __clang_version__;
#else
static const char compiler[] = "gcc " __VERSION__;
#endif

static bool version_run(const program *p, const void *values, error *err)
{
    (void)err;
    const version_values *v = values;
    if (!v->json) {
        printf("%s %s (%s, %s)\n", p->name, p->version, architecture, compiler);
        return true;
    }
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", p->name, "version", p->version, "architecture", architecture, "compiler",
                          compiler, "json_library", JANSSON_VERSION);
    json_dumpf(o, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(o);
    return true;
}

static const command_example version_examples[] = {
    {"drawbridge version --json", "For scripts: version, architecture and compiler as JSON."},
};

const command command_version = {
    .name = "version",
    .summary = "print the version",
    .description = "Prints the version of the program, the architecture it was built for and the compiler.",
    .options = version_options,
    .option_count = COUNT_OF(version_options),
    .values_bytes = sizeof(version_values),
    .examples = version_examples,
    .example_count = COUNT_OF(version_examples),
    .run = version_run,
};
