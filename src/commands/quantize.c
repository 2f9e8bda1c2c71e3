/* drawbridge quantize: a checkpoint in another number format. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "commands/commands.h"
#include "commands/interrupt.h"
#include "quantize/quantize.h"

typedef struct quantize_values {
    const char *source, *destination;
    int to, recipe, mtp, rule;
    option_list exclude, include;
    bool search, dry_run, force;
    const char *importance, *report;
    int64_t shard_bytes, threads;
} quantize_values;

static const char *const to_choices[] = {"mxfp4", "fp8", "nvfp4", "bf16", NULL};
static const format_id to_formats[] = {FORMAT_MXFP4, FORMAT_FP8_BLOCK, FORMAT_NVFP4, FORMAT_BF16};
static const char *const recipe_choices[] = {"default", "amd", "amd-attn-fp8", "all", "zai", "modelopt", NULL}; /* recipe_id */
static const char *const mtp_choices[] = {"default", "keep", "quantize", NULL};                                 /* mtp_policy */
static const char *const rule_choices[] = {"even", "floor", "ceil", NULL};                                      /* scale_rule */

static const option quantize_options_table[] = {
    {.name = "SRC", .type = OPTION_DIRECTORY, .positional = true, .required = true, .offset = offsetof(quantize_values, source),
     .help = "The model's directory, in any format that can be read: bf16, f32, fp8, mxfp4, nvfp4."},
    {.name = "DST", .type = OPTION_DIRECTORY, .positional = true, .required = true, .offset = offsetof(quantize_values, destination),
     .help = "The directory to write: new, empty, or one that an interrupted run of the same command left, which is then finished."},
    {.name = "to", .type = OPTION_CHOICE, .choices = to_choices, .required = true, .offset = offsetof(quantize_values, to),
     .help = "The format of quantized matrices. mxfp4 is laid out as AMD Quark exports it, fp8 (blocks of 128 x 128) as zai-org "
             "does, nvfp4 as modelopt does; bf16 decodes everything."},
    {.name = "recipe", .type = OPTION_CHOICE, .choices = recipe_choices, .by_default = "default", .group = "What is quantized",
     .offset = offsetof(quantize_values, recipe),
     .help = "Which matrices are quantized. amd: routed and shared experts (the default for mxfp4). amd-attn-fp8: those and dense MLPs, "
             "attention in fp8 with a scale per row. all: attention, indexer and dense MLPs too. zai: the same with the draft layer (the "
             "default for fp8). modelopt: routed experts (the default for nvfp4). Embedding, lm_head, norms, router, the indexer's head "
             "weights and eh_proj are never quantized."},
    {.name = "exclude", .type = OPTION_TEXT, .metavar = "GLOB", .repeatable = true, .group = "What is quantized",
     .offset = offsetof(quantize_values, exclude),
     .help = "Do not quantize modules whose name matches, such as '*.layers.3.*' or '*.down_proj'. Stronger than --include."},
    {.name = "include", .type = OPTION_TEXT, .metavar = "GLOB", .repeatable = true, .group = "What is quantized",
     .offset = offsetof(quantize_values, include), .help = "Quantize modules whose name matches, although the recipe does not say so."},
    {.name = "mtp", .type = OPTION_CHOICE, .choices = mtp_choices, .by_default = "default", .group = "What is quantized",
     .offset = offsetof(quantize_values, mtp),
     .help = "The draft layer: keep it in bf16, or quantize it as the other layers. By default the recipe decides: amd, all and "
             "modelopt keep it, amd-attn-fp8 and zai quantize it."},
    {.name = "scale-rule", .type = OPTION_CHOICE, .choices = rule_choices, .by_default = "even", .group = "Rounding",
     .offset = offsetof(quantize_values, rule),
     .help = "How mxfp4 chooses the scale of a block. even is AMD Quark's, floor that of the OCP specification, ceil never clips."},
    {.name = "search", .type = OPTION_FLAG, .group = "Rounding", .offset = offsetof(quantize_values, search),
     .help = "Try neighbouring block scales and keep the one with the least squared error (mxfp4 and nvfp4). The format stays the same."},
    {.name = "importance", .type = OPTION_FILE, .metavar = "FILE", .group = "Rounding", .offset = offsetof(quantize_values, importance),
     .help = "Weights of the columns in that search, as eval collects them from activations. Implies --search."},
    {.name = "shard-bytes", .type = OPTION_INT, .metavar = "N", .by_default = "5000000000", .least = 1, .most = 1e15, .group = "Files",
     .offset = offsetof(quantize_values, shard_bytes),
     .help = "Begin a new file when this many bytes are exceeded. A matrix is never divided. An interrupted run redoes at most one file."},
    {.name = "report", .type = OPTION_FILE, .metavar = "FILE", .group = "Files", .offset = offsetof(quantize_values, report),
     .help = "Write the report as JSON, too."},
    {.name = "dry-run", .type = OPTION_FLAG, .group = "Files", .offset = offsetof(quantize_values, dry_run),
     .help = "Show the plan and write nothing. With -v, every matrix is listed."},
    {.name = "force", .type = OPTION_FLAG, .group = "Files", .offset = offsetof(quantize_values, force),
     .help = "Start over when DST holds another conversion, finished or not. A directory with other files is refused all the same."},
    {.name = "threads", .letter = 't', .type = OPTION_INT, .metavar = "N", .unset = "all cores", .least = 1, .most = 1024,
     .offset = offsetof(quantize_values, threads), .help = "Worker threads. The result does not depend on it."},
};

/* The source is mapped, so a read error arrives as a signal. What is unfinished stays a temporary file, which the next run removes. */
static void on_bus_error(int number)
{
    static const char words[] = "drawbridge quantize: a file of the source cannot be read (I/O error, or it was cut while being read); "
                                "check the disk, then run the same command again to go on\n";
    (void)number;
    (void)!write(STDERR_FILENO, words, sizeof words - 1);
    _exit(ERROR_INPUT);
}

static void catch_signals(void)
{
    interrupt_catch();
    signal(SIGBUS, on_bus_error);
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit is then an error of write */
}

static quantize_options options_of(const quantize_values *v)
{
    return (quantize_options){
        .recipe = {.to = to_formats[v->to], .recipe = (recipe_id)v->recipe, .mtp = (mtp_policy)v->mtp,
                   .include = v->include.items, .include_count = v->include.count, .exclude = v->exclude.items,
                   .exclude_count = v->exclude.count},
        .rule = (scale_rule)v->rule,
        .search = v->search,
        .importance = v->importance,
        .shard_bytes = (uint64_t)v->shard_bytes,
        .threads = v->threads == OPTION_NOT_GIVEN ? machine_cores() : (int)v->threads,
        .force = v->force,
        .stop = &interrupt_count,
    };
}

static bool check_values(const quantize_values *v, error *err)
{
    format_id to = to_formats[v->to];
    if (v->rule != SCALE_EVEN && to != FORMAT_MXFP4)
        return error_set(err, ERROR_USAGE, "--scale-rule is for --to mxfp4");
    if ((v->search || v->importance) && to != FORMAT_MXFP4 && to != FORMAT_NVFP4)
        return error_set(err, ERROR_USAGE, "--search and --importance are for --to mxfp4 and --to nvfp4");
    return true;
}

static void list_matrices(const plan *p, text *out)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->entries[i].to)
            text_add_format(out, "%s: %s -> %s%s%s%s\n", p->entries[i].module, p->entries[i].source.format->name, p->entries[i].to->name,
                            p->entries[i].why ? " (" : "", p->entries[i].why ? p->entries[i].why : "", p->entries[i].why ? ")" : "");
}

static bool write_report(const quantize_job *j, const char *path, error *err)
{
    json_t *json = quantize_report_json(j);
    char *bytes = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    file_writer *w = file_writer_open(path, err);
    bool ok = w != NULL;
    if (ok && !(file_writer_add(w, bytes, strlen(bytes), err) && file_writer_add(w, "\n", 1, err))) {
        file_writer_abandon(w);
        ok = false;
    } else if (ok) {
        ok = file_writer_commit(w, err);
    }
    free(bytes);
    return ok;
}

static bool convert(quantize_job *j, const quantize_values *v, error *err)
{
    bool already;
    text words = {0};
    if (!quantize_run(j, v->destination, &already, err))
        return false;
    if (already)
        log_info("%s is complete already; nothing to do", v->destination);
    else
        quantize_report(j, &words);
    fputs(words.data ? words.data : "", stdout);
    text_free(&words);
    return !v->report || write_report(j, v->report, err);
}

static bool quantize_command_run(const program *p, const void *values, error *err)
{
    (void)p;
    const quantize_values *v = values;
    text words = {0};
    quantize_options o = options_of(v);
    if (!check_values(v, err))
        return false;
    catch_signals();
    quantize_job *j = quantize_open(v->source, &o, err);
    if (!j)
        return false;
    const model *m = quantize_source(j);
    for (int i = 0; i < m->disagreement_count; i++)
        log_warning("%s: %s", v->source, m->disagreements[i].text);
    plan_describe(quantize_plan(j), &words);
    if (v->dry_run && log_level_now() == LOG_VERBOSE)
        list_matrices(quantize_plan(j), &words);
    if (v->dry_run)
        fputs(words.data, stdout);
    else
        log_info("%.*s", (int)words.length - 1, words.data);
    text_free(&words);
    bool ok = v->dry_run || convert(j, v, err);
    quantize_close(j);
    return ok;
}

static const command_example quantize_examples[] = {
    {"drawbridge quantize GLM-5.2 GLM-5.2-MXFP4 --to mxfp4", "As AMD's release: experts in mxfp4, the rest in bf16."},
    {"drawbridge quantize GLM-5.2-FP8 OUT --to mxfp4 --recipe all --search", "From fp8, attention too, with better rounding."},
    {"drawbridge quantize GLM-5.2 GLM-5.2-FP8 --to fp8", "As zai-org's release."},
    {"drawbridge quantize SRC DST --to mxfp4 --dry-run", "What would be done."},
};

const command command_quantize = {
    .name = "quantize",
    .summary = "write a model in another number format",
    .description =
        "Converts a checkpoint to another one, file by file, in the layouts that AMD Quark (mxfp4), zai-org (fp8) and modelopt (nvfp4) "
        "publish, or back to bf16. No calibration data is needed. Memory stays below 1 GiB whatever the sizes of the files.\n\n"
        "It can be interrupted at any point, by kill -9 or a full disk, too: the same command then goes on, redoes at most one file, "
        "and gives the same bytes. A manifest with checksums is written, which inspect --verify checks.\n\n"
        "The report at the end has the error of every class of matrices against the source.",
    .options = quantize_options_table,
    .option_count = COUNT_OF(quantize_options_table),
    .values_bytes = sizeof(quantize_values),
    .examples = quantize_examples,
    .example_count = COUNT_OF(quantize_examples),
    .run = quantize_command_run,
};
