/* drawbridge synth: a checkpoint of made-up weights. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/threads.h"
#include "commands/commands.h"
#include "commands/interrupt.h"
#include "commands/model_path.h"
#include "quantize/synth.h"

typedef struct synth_command_values {
    const char *config, *destination;
    int format;
    int64_t layers, seed, shard_bytes, threads;
    bool dry_run, force;
} synth_command_values;

static const option synth_options_table[] = {
    {.name = "CONFIG", .type = OPTION_FILE, .positional = true, .required = true, .offset = offsetof(synth_command_values, config),
     .help = "The shapes: glm-mini, glm-5.2, or the path of a config.json or of a model directory that has one."},
    {.name = "DST", .type = OPTION_DIRECTORY, .positional = true, .required = true, .offset = offsetof(synth_command_values, destination),
     .help = "The directory to write: new, empty, or one that an interrupted run of the same command left, which is then finished."},
    {.name = "format", .type = OPTION_CHOICE, .choices = synth_format_names, .by_default = "mxfp4",
     .offset = offsetof(synth_command_values, format),
     .help = "Which matrices get which number format. mxfp4: routed and shared experts, the rest in bf16, as AMD's release. mxfp4-attn8: "
             "routed experts in mxfp4; attention, indexer, dense MLPs, shared experts and lm_head in fp8 with blocks of 128 x 128. "
             "mxfp4-attn-fp8: as quantize --recipe amd-attn-fp8. mxfp4-all: as quantize --recipe all. fp8: as zai-org's release. nvfp4: "
             "routed experts, as modelopt's. bf16: everything."},
    {.name = "layers", .type = OPTION_INT, .metavar = "N", .unset = "as CONFIG says", .least = 1, .most = CONFIG_MAX_LAYERS,
     .offset = offsetof(synth_command_values, layers), .help = "Make this many layers (a draft layer comes on top)."},
    {.name = "seed", .type = OPTION_INT, .metavar = "N", .by_default = "0", .least = 0, .most = 0x1p63,
     .offset = offsetof(synth_command_values, seed), .help = "The same seed gives the same bytes, on every machine."},
    {.name = "shard-bytes", .type = OPTION_INT, .metavar = "N", .by_default = "5000000000", .least = 1, .most = 1e15,
     .offset = offsetof(synth_command_values, shard_bytes),
     .help = "Begin a new file when this many bytes are exceeded. A matrix is never divided."},
    {.name = "dry-run", .type = OPTION_FLAG, .offset = offsetof(synth_command_values, dry_run),
     .help = "Show parameters, formats and bytes, and write nothing."},
    {.name = "force", .type = OPTION_FLAG, .offset = offsetof(synth_command_values, force),
     .help = "Replace what an earlier synth or quantize wrote to DST. A directory with other files is refused all the same."},
    {.name = "threads", .letter = 't', .type = OPTION_INT, .metavar = "N", .unset = "all cores", .least = 1, .most = 1024,
     .offset = offsetof(synth_command_values, threads), .help = "Worker threads. The result does not depend on it."},
};

static synth_options options_of(const synth_command_values *v, const text *config, const text *text_model)
{
    return (synth_options){
        .config = config->data,
        .text_model = text_model->data,
        .format = (synth_format)v->format,
        .layers = v->layers == OPTION_NOT_GIVEN ? 0 : (int)v->layers,
        .seed = (uint64_t)v->seed,
        .shard_bytes = (uint64_t)v->shard_bytes,
        .threads = v->threads == OPTION_NOT_GIVEN ? machine_cores() : (int)v->threads,
        .force = v->force,
        .stop = &interrupt_count,
    };
}

/* Parameters, formats and bytes. */
static void describe(const synth_job *j, const char *destination, text *out)
{
    const plan *p = synth_plan(j);
    uint64_t total, active;
    config_parameters(p->config, &total, &active);
    text_add_format(out, "%s: %d layers%s, %" PRIu64 " parameters, %" PRIu64 " active per token\n", destination, p->config->layers,
                    p->config->has_mtp ? " and a draft layer" : "", total, active);
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (p->format_count[f])
            text_add_format(out, "  %-12s %8d matrices %12.3f MB\n", format_of((format_id)f)->name, p->format_count[f],
                            (double)p->format_bytes[f] / 1e6);
    text_add_format(out, "  %-12s %8s          %12.3f MB in %zu file%s\n", "all", "", (double)p->bytes / 1e6, p->shard_count,
                    p->shard_count == 1 ? "" : "s");
    if (!synth_has_tokenizer(j))
        text_add_text(out, "  no tokenizer: the vocabulary is smaller than that of the built-in model, so only token ids can be used\n");
}

static void print_description(const synth_job *j, const char *destination)
{
    text words = {0};
    describe(j, destination, &words);
    fputs(words.data, stdout);
    text_free(&words);
}

static bool make(synth_job *j, const char *destination, error *err)
{
    bool already;
    uint64_t start = clock_now_us();
    if (!synth_run(j, destination, &already, err))
        return false;
    double seconds = (double)(clock_now_us() - start) / 1e6;
    print_description(j, destination);
    if (already)
        log_info("%s is complete already; nothing to do", destination);
    else
        log_info("%.1f s, %.0f MB/s", seconds, (double)synth_plan(j)->bytes / 1e6 / seconds);
    return true;
}

static bool synth_command_run(const program *p, const void *values, error *err)
{
    (void)p;
    const synth_command_values *v = values;
    text config = {0}, text_model = {0};
    synth_job *j = NULL;
    interrupt_catch();
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit is then an error of write */
    if (config_path_resolve(v->config, &config, err) && model_path_resolve(NULL, "tokenizer.json", &text_model, err)) {
        synth_options o = options_of(v, &config, &text_model);
        j = synth_open(&o, err);
    }
    if (j && v->dry_run)
        print_description(j, v->destination);
    bool ok = j && (v->dry_run || make(j, v->destination, err));
    synth_close(j);
    text_free(&config);
    text_free(&text_model);
    return ok;
}

static const command_example synth_examples[] = {
    {"drawbridge synth glm-mini /tmp/glm-mini --format mxfp4-attn8", "A model of 2.7 billion parameters for measurements."},
    {"drawbridge synth glm-5.2 /tmp/glm-5.2-4 --layers 4 --format fp8", "Four layers of GLM-5.2 in their true shapes."},
    {"drawbridge synth MODEL/config.json DST --format bf16 --seed 7", "Any model's shapes."},
};

const command command_synth = {
    .name = "synth",
    .summary = "write a model of made-up weights, for measurements",
    .description =
        "Writes a checkpoint with random weights in the shapes of a config.json, so that speed and memory can be measured without a "
        "download. Scales are such that activations keep their size over all layers and every expert gets its share of the tokens; the "
        "text it generates is noise. The built-in model's tokenizer is copied when its tokens fit the vocabulary, and the ids that end a "
        "text in config.json are then its.\n\n"
        "Weights are made and written block by block: memory does not depend on the size of the model. The run can be interrupted like "
        "that of quantize: the same command then goes on.",
    .options = synth_options_table,
    .option_count = COUNT_OF(synth_options_table),
    .values_bytes = sizeof(synth_command_values),
    .examples = synth_examples,
    .example_count = COUNT_OF(synth_examples),
    .run = synth_command_run,
};
