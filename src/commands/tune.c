/* drawbridge tune: measures which kernel is fastest for each shape of a model on this machine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/threads.h"
#include "commands/commands.h"
#include "commands/interrupt.h"
#include "commands/model_path.h"
#include "commands/output.h"
#include "commands/runner.h"
#include "tune/foreign.h"
#include "tune/tune.h"

typedef struct tune_values {
    runner_values runner; /* model, device, threads, kv, tuned */
    int form;
    int64_t tensor_parallel;
    const char *rows, *import;
    double min_gain, seconds;
    bool force;
} tune_values;

#define AT(field) offsetof(tune_values, field)

static const char *const export_choices[] = {"none", "aiter", "triton", NULL}; /* 1 + foreign_format */

static const option tune_options_table[] = {
    RUNNER_MODEL_ROWS(tune_values),
    {.name = "device", .type = OPTION_CHOICE, .choices = runner_device_choices, .by_default = "cpu",
     .offset = RUNNER_OFFSET(tune_values, device), .help = "The device to measure."},
    {.name = "threads", .letter = 't', .type = OPTION_INT, .metavar = "N", .least = 1, .most = RUNNER_MAX_THREADS, .unset = "all cores",
     .offset = RUNNER_OFFSET(tune_values, threads), .help = "Threads that compute. Each number of threads has a table of its own."},
    {.name = "tp", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1024, .by_default = "1", .offset = AT(tensor_parallel),
     .help = "Devices that share a model. Only 1 so far."},
    {.name = "kv-dtype", .type = OPTION_CHOICE, .choices = runner_kv_choices, .by_default = "auto",
     .offset = RUNNER_OFFSET(tune_values, kv),
     .help = "Number format of the cache that attention is measured with. auto is bf16, and f32 with --exact."},
    {.name = "exact", .type = OPTION_FLAG, .offset = RUNNER_OFFSET(tune_values, exact),
     .help = "Measure the kernels that other commands use with --exact. They have a table of their own."},
    {.name = "rows", .type = OPTION_TEXT, .metavar = "LIST", .by_default = "1,4,16,64,256", .group = "Measuring", .offset = AT(rows),
     .help = "Rows of a step to measure, separated by commas. Each stands for its bucket: up to 1, 4, 16, 64, 256, and more."},
    {.name = "time", .type = OPTION_NUMBER, .metavar = "S", .least = 0.0001, .most = 3600, .by_default = "0.2", .group = "Measuring",
     .offset = AT(seconds), .help = "Seconds per shape, for all its kernels together."},
    {.name = "min-gain", .type = OPTION_NUMBER, .metavar = "PERCENT", .least = 0, .most = 1000, .by_default = "3", .group = "Measuring",
     .offset = AT(min_gain), .help = "How much faster than the rule's choice a kernel must be to replace it."},
    {.name = "force", .type = OPTION_FLAG, .group = "Measuring", .offset = AT(force),
     .help = "Measure again what the table has already. Without it, an interrupted run goes on where it was."},
    {.name = "tuned", .type = OPTION_DIRECTORY, .metavar = "DIR", .unset = "tuned beside the built-in models", .group = "Files",
     .offset = RUNNER_OFFSET(tune_values, tuned), .help = "The directory of the table. It is made when it is missing."},
    {.name = "import", .type = OPTION_FILE, .metavar = "FILE", .group = "Files", .offset = AT(import),
     .help = "Measure the shapes of another tuner's table only: a .csv of aiter's fused MoE, or a Triton MoE .json of vLLM or sglang. Says "
             "which of them this model has."},
    {.name = "export", .type = OPTION_CHOICE, .choices = export_choices, .by_default = "none", .group = "Files", .offset = AT(form),
     .help = "Measure nothing; write what the table has for the experts to standard output, in aiter's or Triton's form."},
};

enum { ROWS_MOST = DISPATCH_BUCKETS };

typedef struct tune_job {
    runner runner;
    text directory, path;    /* of the tables; of this device's */
    int rows[ROWS_MOST];     /* one per bucket */
    int row_count;
    foreign_list imported;
    int *imported_rows;      /* [imported.count] rows per expert; 0: not of this model */
} tune_job;

/* ---- options ---- */

static bool add_rows(tune_job *j, int rows, error *err)
{
    for (int i = 0; i < j->row_count; i++)
        if (dispatch_bucket(j->rows[i]) == dispatch_bucket(rows))
            return error_set(err, ERROR_USAGE, "--rows: %d and %d are in the same bucket (rows %s); give one of them", j->rows[i], rows,
                             dispatch_bucket_name(dispatch_bucket(rows)));
    j->rows[j->row_count++] = rows;
    return true;
}

static bool parse_rows(const char *list, tune_job *j, error *err)
{
    for (const char *s = list;; s++) {
        size_t length = strspn(s, "0123456789");
        int rows = length > 0 && length <= 4 ? atoi(s) : 0;
        if (rows < 1 || rows > RUNNER_MAX_CHUNK || (s[length] && s[length] != ','))
            return error_set(err, ERROR_USAGE, "--rows must be numbers from 1 to %d, separated by commas, found \"%.60s\"",
                             RUNNER_MAX_CHUNK, list);
        if (!add_rows(j, rows, err))
            return false;
        s += length;
        if (!*s)
            return true;
    }
}

static bool check_values(const tune_values *v, error *err)
{
    if (v->tensor_parallel > 1)
        return error_set(err, ERROR_USAGE, "--tp %lld: a model runs on one device so far, so there are no such shapes to measure; leave "
                         "it out", (long long)v->tensor_parallel);
    if (v->import && v->form)
        return error_set(err, ERROR_USAGE, "--import says what to measure and --export measures nothing; give one of them");
    return true;
}

/* ---- other tuners' shapes ---- */

static bool is_imported(void *context, const dispatch_key *key)
{
    const tune_job *j = context;
    for (int i = 0; i < j->imported.count; i++)
        if (foreign_means(&j->imported.shapes[i], j->imported_rows[i], &j->runner.model->config, key))
            return true;
    return false;
}

static void tell_shape(const foreign_shape *s, int rows, const char *reason)
{
    text words = {0};
    text_add_format(&words, "%lld tokens, %lld experts of width %lld", (long long)s->tokens, (long long)s->experts, (long long)s->width);
    if (s->hidden)
        text_add_format(&words, ", hidden %lld", (long long)s->hidden);
    if (rows)
        log_info("  %s: %s%s%s with %d row%s per expert", words.data, s->gate_up ? "gate_up" : "", s->gate_up && s->down ? " and " : "",
                 s->down ? "down" : "", rows, rows == 1 ? "" : "s");
    else
        log_info("  %s: not this model: %s", words.data, reason);
    text_free(&words);
}

/* The buckets to measure are those of the shapes, each with the most rows it has there. */
static void take_imported_rows(tune_job *j, int rows)
{
    for (int i = 0; i < j->row_count; i++)
        if (dispatch_bucket(j->rows[i]) == dispatch_bucket(rows)) {
            j->rows[i] = rows > j->rows[i] ? rows : j->rows[i];
            return;
        }
    j->rows[j->row_count++] = rows;
}

static bool import_shapes(const tune_values *v, tune_job *j, error *err)
{
    text reason = {0};
    int hits = 0;
    if (!foreign_read(v->import, &j->imported, err))
        return false;
    j->row_count = 0;
    j->imported_rows = mem_alloc((size_t)j->imported.count + 1, sizeof *j->imported_rows);
    log_info("%s: %d shapes in the form of %s", v->import, j->imported.count, j->imported.kind);
    for (int i = 0; i < j->imported.count; i++) {
        int rows = foreign_rows(&j->imported.shapes[i], &j->runner.model->config, &reason);
        j->imported_rows[i] = rows;
        tell_shape(&j->imported.shapes[i], rows, reason.data);
        if (rows)
            take_imported_rows(j, rows);
        hits += rows > 0;
    }
    log_info("this model has %d of them; their kernel names and tile sizes are not used%s", hits,
             strcmp(j->imported.kind, "triton") == 0 ? "; the form does not say the hidden width, which is taken to be this model's" : "");
    text_free(&reason);
    return hits > 0 || error_set(err, ERROR_INPUT, "%s has no shape of this model; nothing is measured", v->import);
}

static bool export_table(const tune_values *v, tune_job *j, error *err)
{
    text out = {0}, notes = {0};
    runner_values values = v->runner;
    values.tuned = j->directory.data;
    j->runner.device = runner_create_device(&values, j->runner.model, j->runner.model->config.max_positions, RUNNER_MAX_CHUNK, err);
    bool ok = j->runner.device && foreign_export((foreign_format)(v->form - 1), j->runner.device->dispatch, j->runner.model,
                                                 j->runner.device->layout.dtype, &out, &notes, err);
    for (char *line = ok ? notes.data : NULL; line && *line;) {
        size_t length = strcspn(line, "\n");
        log_info("note: %.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
    ok = ok && output_text(&out);
    text_free(&out);
    text_free(&notes);
    return ok;
}

/* ---- the run ---- */

static bool make_directory(const char *path, error *err)
{
    if (file_is_directory(path) || mkdir(path, 0777) == 0 || errno == EEXIST)
        return true;
    return error_set_errno(err, ERROR_RUNTIME, "cannot make the directory %s for the table", path);
}

/* A device without a table: it has the rule's choices, which are what others must beat. */
static bool start_device(const tune_values *v, tune_job *j, error *err)
{
    int most = 0;
    const model_config *m = &j->runner.model->config;
    device_limits limits = {.kv = v->runner.kv ? (kv_dtype)(v->runner.kv - 1) : v->runner.exact ? KV_F32 : KV_BF16,
                            .threads = v->runner.threads == OPTION_NOT_GIVEN ? machine_cores() : (int)v->runner.threads,
                            .max_context = m->max_positions,
                            .exact = v->runner.exact};
    for (int i = 0; i < j->row_count; i++)
        most = j->rows[i] > most ? j->rows[i] : most;
    if (most > m->max_positions)
        return error_set(err, ERROR_FIT, "--rows %d: the model's context has %d tokens", most, m->max_positions);
    limits.max_rows = most;
    j->runner.device = (v->runner.device == RUNNER_CUDA ? gpu_device_create : cpu_device_create)(j->runner.model, &limits, err);
    j->runner.forward = j->runner.device ? forward_create(j->runner.device, most, 1, err) : NULL;
    return j->runner.forward != NULL;
}

static bool measure(const tune_values *v, tune_job *j, error *err)
{
    if (!(v->import ? import_shapes(v, j, err) : parse_rows(v->rows, j, err)) || !start_device(v, j, err) ||
        !make_directory(j->directory.data, err))
        return false;
    tuned_path(j->directory.data, j->runner.device->dispatch->device_name, &j->path);
    tune_options o = {.rows = j->rows, .row_count = j->row_count, .min_gain = v->min_gain, .seconds = v->seconds, .force = v->force,
                      .path = j->path.data, .wanted = v->import ? is_imported : NULL, .context = j, .stop = &interrupt_count};
    tune_result result = {0};
    log_info("%s: the table of %s", j->path.data, j->runner.device->description);
    bool ok = tune_run(j->runner.forward, &o, &result, err);
    if (result.count)
        tune_result_print(&result, stdout);
    tune_result_free(&result);
    return ok;
}

static bool tune_command_run(const program *p, const void *values, error *err)
{
    (void)p;
    const tune_values *v = values;
    tune_job j = {0};
    bool ok = check_values(v, err) && tuned_path_for_writing(v->runner.tuned, &j.directory, err) &&
              runner_open_model(&v->runner, &j.runner, err);
    if (ok)
        interrupt_catch();
    ok = ok && (v->form ? export_table : measure)(v, &j, err);
    free(j.imported_rows);
    foreign_free(&j.imported);
    runner_close(&j.runner);
    text_free(&j.directory);
    text_free(&j.path);
    return ok;
}

static const command_example tune_examples[] = {
    {"drawbridge tune", "Measure every shape of the built-in model."},
    {"drawbridge tune MODEL --time 1 --rows 1,16,256", "Another model, more carefully, for three sizes of steps."},
    {"drawbridge tune MODEL --import tuned_fmoe.csv", "Only the shapes that aiter's table has, too."},
    {"drawbridge tune MODEL --export aiter > shapes.csv", "The experts' shapes for aiter's tuner."},
};

const command command_tune = {
    .name = "tune",
    .summary = "measure which kernels are fastest on this machine",
    .description = "Measures every kernel that can compute a shape of the model, with the model's own weights in the calls that serving "
                   "makes, and writes the fastest into tuned/DEVICE.csv, which serve, run, chat and eval read when they start. Results do "
                   "not depend on the kernel, only speed does.\n\n"
                   "The table is written after each shape. Ctrl-C keeps what is done, and the same command goes on. At the end a table "
                   "shows each shape's kernel and time before and after.",
    .options = tune_options_table,
    .option_count = COUNT_OF(tune_options_table),
    .values_bytes = sizeof(tune_values),
    .examples = tune_examples,
    .example_count = COUNT_OF(tune_examples),
    .run = tune_command_run,
};
