/* drawbridge logits: the logits of every position of a token sequence, as a safetensors file.
 *
 * Steps of --chunk tokens run one after the other and their logits are written as they come; only taps are gathered in
 * memory. The tensors must be declared before the first byte of data, so the first step runs before the header is written. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "commands/commands.h"
#include "commands/input.h"
#include "commands/interrupt.h"
#include "commands/runner.h"
#include "commands/tap_file.h"

typedef struct logits_values {
    runner_values runner;
    const char *tokens, *out;
    bool one_by_one;
    option_list taps;
} logits_values;

static const option logits_options[] = {
    RUNNER_MODEL_ROWS(logits_values),
    {.name = "tokens", .type = OPTION_FILE, .metavar = "FILE", .required = true, .offset = offsetof(logits_values, tokens),
     .help = "Decimal token ids separated by white space, as tokenize and render --ids print them. - is standard input."},
    {.name = "out", .letter = 'o', .type = OPTION_FILE, .metavar = "FILE", .required = true, .offset = offsetof(logits_values, out),
     .help = "The safetensors file to write: tensor logits, f32, [tokens][vocabulary]."},
    {.name = "tap", .type = OPTION_TEXT, .metavar = "NAME[:LAYER]", .repeatable = true, .offset = offsetof(logits_values, taps),
     .help = "Write an intermediate too, as a tensor NAME.LAYER; without LAYER, that of every layer. A name that does not exist lists "
             "those that do."},
    RUNNER_ROWS(logits_values),
    {.name = "one-by-one", .type = OPTION_FLAG, .group = "Computation", .offset = offsetof(logits_values, one_by_one),
     .help = "Decode token by token, as while generating: the same as --chunk 1. The result is the same, byte for byte."},
};

/* One run of the command. */
typedef struct logits_job {
    runner runner;
    token_list ids;
    tap_file *taps;
    safetensors_writer *writer;
} logits_job;

static bool check_values(const logits_values *v, error *err)
{
    if (v->one_by_one && v->runner.chunk != OPTION_NOT_GIVEN)
        return error_set(err, ERROR_USAGE, "--one-by-one and --chunk exclude each other");
    return true;
}

/* Rows of logits held at a time: enough to share the decoding of lm_head, few enough for large vocabularies. */
enum { LOGIT_ROWS = 32 };

static bool read_ids(const logits_values *v, int64_t vocab, token_list *out, error *err)
{
    text bytes = {0};
    bool ok = input_read(v->tokens, &bytes, err) &&
              token_ids_parse((view){bytes.data, bytes.length}, input_name(v->tokens), vocab, out, err);
    text_free(&bytes);
    if (ok && out->count == 0)
        return error_set(err, ERROR_INPUT, "%s holds no token ids", input_name(v->tokens));
    return ok;
}

static bool prepare(const logits_values *v, logits_job *j, error *err)
{
    runner_values how = v->runner;
    if (v->one_by_one)
        how.chunk = 1;
    if (!runner_open_model(&how, &j->runner, err) || !read_ids(v, j->runner.model->config.vocab_size, &j->ids, err) ||
        !runner_start(&how, (int64_t)j->ids.count, LOGIT_ROWS, &j->runner, err))
        return false;
    j->writer = safetensors_writer_open(v->out, err); /* now: a name that cannot be written is said before the work */
    if (!j->writer)
        return false;
    j->taps = tap_file_create(&v->taps, &j->runner.model->config, (int)j->ids.count, err);
    if (!j->taps)
        return false;
    if (v->taps.count) {
        j->runner.forward->tap = tap_file_add;
        j->runner.forward->tap_context = j->taps;
    }
    return true;
}

/* What the file holds is known after the first step: the taps that came have given their shapes. */
static bool declare_tensors(logits_job *j, error *err)
{
    int64_t shape[2] = {(int64_t)j->ids.count, j->runner.model->config.vocab_size};
    return safetensors_writer_declare(j->writer, "logits", DTYPE_F32, 2, shape, err) &&
           tap_file_declare(j->taps, j->writer, err);
}

/* The logits of all rows of the latest step, as many at a time as the forward pass has room for. */
static bool write_step(logits_job *j, int rows, error *err)
{
    size_t row_bytes = (size_t)j->runner.model->config.vocab_size * sizeof(float);
    for (int first = 0; first < rows;) {
        int n = rows - first < j->runner.forward->max_logit_rows ? rows - first : j->runner.forward->max_logit_rows;
        if (!safetensors_writer_data(j->writer, session_step_logits(j->runner.session, first, n), (size_t)n * row_bytes, err))
            return false;
        first += n;
    }
    return true;
}

static bool compute(logits_job *j, error *err)
{
    int count = (int)j->ids.count;
    progress *p = progress_start("logits", "tokens", count);
    bool ok = true;
    for (int done = 0; ok && done < count;) {
        int n = count - done < j->runner.chunk ? count - done : j->runner.chunk;
        if (interrupt_count)
            ok = error_set(err, ERROR_INTERRUPTED, "interrupted after %d of %d tokens; nothing was written", done, count);
        ok = ok && session_feed(j->runner.session, j->ids.ids + done, n, err) && (done > 0 || declare_tensors(j, err)) &&
             write_step(j, n, err);
        done += n;
        progress_update(p, done);
    }
    progress_finish(p);
    return ok && tap_file_write(j->taps, j->writer, err);
}

static bool logits_run(const program *p, const void *values, error *err)
{
    (void)p;
    const logits_values *v = values;
    logits_job j = {0};
    uint64_t started_us = clock_now_us();
    interrupt_catch();
    bool ok = check_values(v, err) && prepare(v, &j, err) && compute(&j, err);
    if (ok) {
        safetensors_writer *w = j.writer;
        j.writer = NULL;
        ok = safetensors_writer_commit(w, err);
    }
    if (ok)
        log_info("%s: %zu x %d logits in %.1f s", v->out, j.ids.count, j.runner.model->config.vocab_size,
                 (double)(clock_now_us() - started_us) * 1e-6);
    safetensors_writer_abandon(j.writer);
    tap_file_free(j.taps);
    token_list_free(&j.ids);
    runner_close(&j.runner);
    return ok;
}

static const command_example logits_examples[] = {
    {"drawbridge tokenize 'Hello' | drawbridge logits --tokens - --out hello.safetensors", "The built-in model's logits of a text."},
    {"drawbridge logits MODEL --tokens ids.txt --out exact.safetensors --exact", "As HF transformers computes in float32."},
    {"drawbridge logits --tokens ids.txt --out x.safetensors --tap layer_out --tap selected:0",
     "With the output of every layer and the positions that layer 0 attends to."},
};

const command command_logits = {
    .name = "logits",
    .summary = "compute the logits of every position of a token sequence",
    .description = "Runs the model over a sequence of token ids and writes the f32 logits of every position to a safetensors file. Row i "
                   "predicts token i + 1. The bytes depend on the model, the tokens and the cache format only, not on --chunk, "
                   "--one-by-one or --threads.",
    .options = logits_options,
    .option_count = COUNT_OF(logits_options),
    .values_bytes = sizeof(logits_values),
    .examples = logits_examples,
    .example_count = COUNT_OF(logits_examples),
    .run = logits_run,
};
