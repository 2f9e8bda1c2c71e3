/* drawbridge bench: measures speed. --local runs the model in this process. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/machine.h"
#include "base/memory.h"
#include "base/threads.h"
#include "bench/local.h"
#include "commands/commands.h"
#include "commands/interrupt.h"
#include "commands/output.h"
#include "commands/runner.h"
#include "commands/synth_model.h"
#include "device/cpu/cpu.h"

typedef struct bench_values {
    runner_values runner;
    bool local, json;
    const char *prompts, *generates, *batches, *depths;
    int64_t repetitions, layers;
    int fill;
} bench_values;

#define AT(field) offsetof(bench_values, field)

static const char *const fill_choices[] = {"mixed", "computed", NULL};

static const option bench_options[] = {
    {.name = "MODEL", .type = OPTION_DIRECTORY, .positional = true, .offset = RUNNER_OFFSET(bench_values, argument),
     .help = "The model's directory. Without it, the built-in model is used. synth:CONFIG or synth:CONFIG:FORMAT makes weights of that "
             "shape for this run, as drawbridge synth does, under $TMPDIR or /tmp."},
    {.name = "model", .letter = 'm', .type = OPTION_DIRECTORY, .metavar = "DIR", .offset = RUNNER_OFFSET(bench_values, model),
     .unset = "the built-in model", .help = "The same as MODEL."},
    {.name = "local", .type = OPTION_FLAG, .offset = AT(local),
     .help = "Run the model in this process, without a server. The only way so far."},
    {.name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "Print one JSON object with every sample instead of a table."},
    {.name = "layers", .type = OPTION_INT, .metavar = "N", .least = 1, .most = CONFIG_MAX_LAYERS, .unset = "as CONFIG says",
     .offset = AT(layers), .help = "With synth:CONFIG, make this many layers (a draft layer comes on top)."},
    {.name = "prompt", .letter = 'p', .type = OPTION_TEXT, .metavar = "LIST", .by_default = "512", .group = "Tests", .offset = AT(prompts),
     .help = "Tokens of a prompt, separated by commas: one test (pp) each. 0: none."},
    {.name = "generate", .letter = 'n', .type = OPTION_TEXT, .metavar = "LIST", .by_default = "128", .group = "Tests",
     .offset = AT(generates), .help = "Tokens to generate, separated by commas: one test (tg) each. 0: none."},
    {.name = "batch", .letter = 'b', .type = OPTION_TEXT, .metavar = "LIST", .by_default = "1", .group = "Tests", .offset = AT(batches),
     .help = "Sequences that generate side by side, separated by commas."},
    {.name = "depth", .letter = 'd', .type = OPTION_TEXT, .metavar = "LIST", .by_default = "0", .group = "Tests", .offset = AT(depths),
     .help = "Tokens that the cache holds before a test begins, separated by commas."},
    {.name = "repetitions", .letter = 'r', .type = OPTION_INT, .metavar = "N", .least = 1, .most = LOCAL_REPETITIONS_MOST,
     .by_default = "3", .group = "Tests", .offset = AT(repetitions), .help = "How often each test is measured, after one run to warm up."},
    {.name = "fill", .type = OPTION_CHOICE, .choices = fill_choices, .by_default = "mixed", .group = "Tests", .offset = AT(fill),
     .help = "What the cache holds at a depth. mixed: the entries of 256 computed tokens, and mixtures of these with the same mean and "
             "covariance. computed: all tokens computed, which takes as long as a prompt of that length."},
    RUNNER_ROWS(bench_values),
};

/* ---- lists ---- */

enum { LIST_MOST = 16, TESTS_MOST = 256, TOKENS_MOST = 1 << 24, BATCH_MOST = 4096 };

typedef struct number_list {
    int values[LIST_MOST];
    int count;
} number_list;

static bool parse_list(const char *name, const char *list, int least, int most, number_list *out, error *err)
{
    for (const char *s = list;; s++) {
        size_t length = strspn(s, "0123456789");
        int value = length > 0 && length <= 8 ? atoi(s) : -1;
        if (value < least || value > most || (s[length] && s[length] != ','))
            return error_set(err, ERROR_USAGE, "--%s must be numbers from %d to %d, separated by commas, found \"%.60s\"", name, least,
                             most, list);
        if (out->count == LIST_MOST)
            return error_set(err, ERROR_USAGE, "--%s has more than %d numbers; measure the others in another run", name, LIST_MOST);
        out->values[out->count++] = value;
        s += length;
        if (!*s)
            return true;
    }
}

/* One run of the command. */
typedef struct bench_job {
    runner runner;
    const char *model_name; /* for people */
    local_test tests[TESTS_MOST];
    int test_count;
    local_result *results; /* [test_count] */
    int done;
    local_options options;
    ceilings ceilings;
    local_bench *bench;
} bench_job;

static bool add_test(bench_job *j, local_test t, error *err)
{
    if (j->test_count == TESTS_MOST)
        return error_set(err, ERROR_USAGE, "the lists make more than %d tests; shorten them", TESTS_MOST);
    int context = t.depth + t.prompt + t.generate;
    j->options.max_context = context > j->options.max_context ? context : j->options.max_context;
    j->options.max_batch = t.batch > j->options.max_batch ? t.batch : j->options.max_batch;
    j->tests[j->test_count++] = t;
    return true;
}

static bool list_tests(const bench_values *v, bench_job *j, error *err)
{
    number_list prompts = {0}, generates = {0}, batches = {0}, depths = {0};
    if (!parse_list("prompt", v->prompts, 0, TOKENS_MOST, &prompts, err) ||
        !parse_list("generate", v->generates, 0, TOKENS_MOST, &generates, err) ||
        !parse_list("batch", v->batches, 1, BATCH_MOST, &batches, err) || !parse_list("depth", v->depths, 0, TOKENS_MOST, &depths, err))
        return false;
    bool ok = true;
    for (int d = 0; d < depths.count; d++) {
        for (int p = 0; ok && p < prompts.count; p++)
            if (prompts.values[p])
                ok = add_test(j, (local_test){.prompt = prompts.values[p], .batch = 1, .depth = depths.values[d]}, err);
        for (int n = 0; n < generates.count; n++)
            for (int b = 0; ok && generates.values[n] && b < batches.count; b++)
                ok = add_test(j, (local_test){.generate = generates.values[n], .batch = batches.values[b], .depth = depths.values[d]}, err);
    }
    if (ok && j->test_count == 0)
        return error_set(err, ERROR_USAGE, "--prompt 0 and --generate 0 leave nothing to measure");
    return ok;
}

/* ---- the table ---- */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static uint64_t model_bytes(const model *m)
{
    uint64_t bytes = 0;
    for (int f = 0; f < FORMAT_COUNT; f++)
        bytes += m->format_bytes[f];
    return bytes;
}

static const char *kernels_of(const bench_job *j)
{
    const dispatch_table *t = j->runner.device->dispatch;
    return t->forced[0] ? t->forced : t->levels[t->level];
}

static void print_table(const bench_job *j)
{
    const model *m = j->runner.model;
    text summary = {0}, name = {0};
    int width = (int)strlen(j->model_name) > 5 ? (int)strlen(j->model_name) : 5;
    dispatch_summary(j->runner.device->dispatch, &summary);
    printf("| %-*s | %9s | %8s | %-11s | %-5s | %7s | %-20s | %18s | %9s | %5s | %5s |\n", width, "model", "size", "params", "kernels",
           "cache", "threads", "test", "tok/s", "ms/step", "read", "arith");
    printf("|:%.*s|----------:|---------:|:------------|:------|--------:|:---------------------|-------------------:|----------:|------:|"
           "------:|\n", width + 1, "----------------------------------------------------------------");
    for (int i = 0; i < j->done; i++) {
        local_figures f = local_figures_of(&j->results[i], &j->ceilings);
        text_clear(&name);
        local_test_name(&j->results[i].test, &name);
        printf("| %-*s | %6.2f GB | %6.2f B | %-11s | %-5s | %7d | %-20s | %9.2f ± %6.2f | %9.2f | %4.0f%% | %4.0f%% |\n", width,
               j->model_name, (double)model_bytes(m) * 1e-9, (double)m->parameters * 1e-9, kernels_of(j),
               kv_dtype_name(j->runner.device->layout.dtype), j->ceilings.threads, name.data, f.tokens_per_second, f.deviation, f.step_ms,
               100 * f.read_share, 100 * f.arithmetic_share);
    }
    text_clear(&name);
    ceilings_describe(&j->ceilings, &name);
    printf("\n%s\ndispatch: %s\n", name.data, summary.data);
    text_free(&summary);
    text_free(&name);
}

static json_t *job_json(const program *p, const bench_values *v, const bench_job *j)
{
    const model *m = j->runner.model;
    const dispatch_table *t = j->runner.device->dispatch;
    dispatch_counts c = dispatch_count(t);
    text cpu = {0};
    json_t *tests = json_array();
    cpu_model_name(&cpu);
    for (int i = 0; i < j->done; i++)
        json_array_append_new(tests, local_result_json(&j->results[i], &j->ceilings));
    const char *cpu_name = cpu.data + strspn(cpu.data, " ");
    json_t *model_json = json_pack("{s:s, s:s, s:I, s:I, s:I}", "name", j->model_name, "directory", m->directory, "bytes",
                                   (json_int_t)model_bytes(m), "parameters", (json_int_t)m->parameters, "active_parameters",
                                   (json_int_t)m->active_parameters);
    json_t *dispatch = json_pack("{s:s, s:s?, s:s?, s:i, s:i, s:i, s:i, s:i}", "device", t->device_name, "table",
                                 t->tuned_path[0] ? t->tuned_path : NULL, "forced", t->forced[0] ? t->forced : NULL, "shapes", c.shapes,
                                 "tuned", c.tuned, "only", c.only, "heuristic", c.heuristic, "stale", t->stale);
    json_t *out = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:b, s:s, s:i, s:o, s:o, s:o, s:o}", "program", p->name, "version",
                            p->version, "mode", "local", "cpu", cpu_name, "device", j->runner.device->description, "threads",
                            j->ceilings.threads, "kv_dtype", kv_dtype_name(j->runner.device->layout.dtype), "chunk", j->options.chunk,
                            "exact", v->runner.exact, "fill", fill_choices[v->fill], "repetitions", (int)v->repetitions, "model",
                            model_json, "dispatch", dispatch, "ceilings", ceilings_json(&j->ceilings), "tests", tests);
    text_free(&cpu);
    return out;
}

/* ---- the run ---- */

static bool check_values(const bench_values *v, error *err)
{
    if (!v->local)
        return error_set(err, ERROR_USAGE, "only --local exists so far: it measures a model in this process; add it");
    return true;
}

static int threads_of(const bench_values *v)
{
    return v->runner.threads == OPTION_NOT_GIVEN ? machine_cores() : (int)v->runner.threads;
}

/* Opens the model. Made-up weights are removed as soon as they are mapped, so that nothing is left whatever happens. */
static bool open_model(const bench_values *v, bench_job *j, error *err)
{
    runner_values how = v->runner;
    const char *name = runner_model_name(&how);
    text made = {0};
    if (!synth_model_named(name) && v->layers != OPTION_NOT_GIVEN)
        return error_set(err, ERROR_USAGE, "--layers is for a MODEL of the form synth:CONFIG; other models have the layers they have");
    bool ok = !synth_model_named(name) ||
              synth_model_make(name, v->layers == OPTION_NOT_GIVEN ? 0 : (int)v->layers, threads_of(v), &made, err);
    if (made.length)
        *(how.argument ? &how.argument : &how.model) = made.data;
    ok = ok && runner_open_model(&how, &j->runner, err);
    synth_model_remove(&made);
    text_free(&made);
    if (ok)
        j->model_name = synth_model_named(name) ? name : file_name(j->runner.model->directory);
    return ok;
}

static bool check_memory(const bench_job *j, error *err)
{
    const local_options *o = &j->options;
    uint64_t wanted = local_cache_bytes(&j->runner.device->layout, o), available = machine_free_bytes();
    if (available == 0 || wanted <= available)
        return true;
    return error_set(err, ERROR_FIT, "the cache of %d sequence%s of %d tokens takes %.1f GB, and %.1f GB of memory are free; use a smaller "
                     "--batch or --depth", o->max_batch, o->max_batch == 1 ? "" : "s", o->max_context, (double)wanted * 1e-9,
                     (double)available * 1e-9);
}

static bool start(const bench_values *v, bench_job *j, error *err)
{
    if (!open_model(v, j, err))
        return false;
    j->options.chunk = runner_chunk(&v->runner);
    j->options.repetitions = (int)v->repetitions;
    j->options.exact = v->runner.exact;
    j->options.real_depth = v->fill == 1;
    j->options.stop = &interrupt_count;
    int rows = j->options.chunk > j->options.max_batch ? j->options.chunk : j->options.max_batch;
    if (!runner_start_forward(&v->runner, j->options.max_context, rows, j->options.max_batch, &j->runner, err) ||
        !check_memory(j, err))
        return false;
    j->bench = local_create(j->runner.forward, &j->options, err);
    j->results = mem_alloc((size_t)j->test_count, sizeof *j->results);
    return j->bench != NULL;
}

/* Before the tests and again behind them: the better figures hold. */
static bool measure_ceilings(const bench_values *v, bench_job *j, error *err)
{
    ceilings_options o = {.threads = threads_of(v), .seconds = 0.15};
    ceilings now;
    if (!ceilings_measure(&o, &now, err))
        return false;
    if (j->ceilings.threads)
        ceilings_improve(&j->ceilings, &now);
    else
        j->ceilings = now;
    return true;
}

static bool run_tests(bench_job *j, error *err)
{
    for (j->done = 0; j->done < j->test_count; j->done++)
        if (!local_run(j->bench, &j->tests[j->done], &j->results[j->done], err))
            return err->code == ERROR_INTERRUPTED
                       ? error_set(err, ERROR_INTERRUPTED, "interrupted after %d of %d tests", j->done, j->test_count)
                       : false;
    return true;
}

static bool bench_run(const program *p, const void *values, error *err)
{
    const bench_values *v = values;
    bench_job j = {0};
    interrupt_catch();
    bool ok = check_values(v, err) && list_tests(v, &j, err) && start(v, &j, err) && measure_ceilings(v, &j, err) &&
              run_tests(&j, err) && measure_ceilings(v, &j, err);
    if (ok || (err->code == ERROR_INTERRUPTED && j.done)) {
        if (v->json)
            output_json(job_json(p, v, &j));
        else
            print_table(&j);
    }
    local_destroy(j.bench);
    free(j.results);
    runner_close(&j.runner);
    return ok;
}

static const command_example bench_examples[] = {
    {"drawbridge bench --local", "The built-in model: a prompt of 512 tokens, and 128 generated ones."},
    {"drawbridge bench --local MODEL -p 512 -n 128 -b 1,8,32", "Generation of 1, 8 and 32 sequences side by side, too."},
    {"drawbridge bench --local MODEL -p 512 -n 32 -d 0,2048,16384", "How speed changes with the length of the context."},
    {"drawbridge bench --local synth:glm-mini:mxfp4-attn8", "Made-up weights of a shape, removed afterwards."},
    {"drawbridge bench --local MODEL -p 0 -n 64 --json > speed.json", "Every sample, the ceilings and the kernels, for programs."},
};

const command command_bench = {
    .name = "bench",
    .summary = "measure the speed of a model",
    .description =
        "Measures how fast a model computes prompts (pp) and generates (tg), in this process and without drafts. Tokens are random. A row "
        "has the mean and standard deviation of tokens per second, the time of a step, and two shares of what this machine can do, "
        "measured in the same run: read, the time it takes to read the bytes that the steps must read, and arith, the time it takes to do "
        "the arithmetic that they must do, both as parts of the time they took. docs/benchmarking.md has the formulas.",
    .options = bench_options,
    .option_count = COUNT_OF(bench_options),
    .values_bytes = sizeof(bench_values),
    .examples = bench_examples,
    .example_count = COUNT_OF(bench_examples),
    .run = bench_run,
};
