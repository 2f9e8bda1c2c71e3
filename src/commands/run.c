/* drawbridge run: one prompt, one answer.
 *
 * The answer goes to standard output as it comes. Its reasoning goes to standard error, dimmed, when that is a terminal; --json
 * has both. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "commands/answer.h"
#include "commands/commands.h"
#include "commands/dialogue.h"
#include "commands/input.h"
#include "commands/interrupt.h"
#include "commands/output.h"
#include "commands/sampling.h"

typedef struct run_values {
    runner_values runner;
    dialogue_values dialogue;
    sampling_values sampling;
    const char *prompt, *file, *messages;
    bool raw, json;
    int64_t logprobs;
} run_values;

static const option run_options[] = {
    RUNNER_MODEL_ROWS(run_values),
    {.name = "prompt", .letter = 'p', .type = OPTION_TEXT, .metavar = "TEXT", .offset = offsetof(run_values, prompt),
     .help = "The prompt. Without it, --file or --messages, standard input is read."},
    {.name = "file", .letter = 'f', .type = OPTION_FILE, .metavar = "FILE", .offset = offsetof(run_values, file),
     .help = "Read the prompt from a file; - is standard input."},
    {.name = "messages", .type = OPTION_FILE, .metavar = "FILE", .offset = offsetof(run_values, messages),
     .help = "Read a whole conversation: a JSON array of messages, as in a chat request."},
    {.name = "raw", .type = OPTION_FLAG, .offset = offsetof(run_values, raw),
     .help = "Continue the prompt as it is, without the chat template. Special tokens written in it are recognised."},
    {.name = "json", .type = OPTION_FLAG, .offset = offsetof(run_values, json),
     .help = "Print one JSON object at the end: text, reasoning, tool_calls, finish_reason, token counts, ids and seed."},
    {.name = "logprobs", .type = OPTION_INT, .metavar = "N", .least = 0, .most = SAMPLER_LOGPROBS_MOST, .unset = "none",
     .offset = offsetof(run_values, logprobs), .help = "With --json: the log-probability of each token, and of the N likeliest."},
    SAMPLING_ROWS(run_values),
    DIALOGUE_ROWS(run_values),
    RUNNER_CONTEXT_ROW(run_values),
    RUNNER_ROWS(run_values),
};

/* One run of the command. */
typedef struct run_job {
    answerer answerer;
    runner runner;
    text_model text;
    json_t *tools;
    sampler_bias *bias;
    token_list prompt;
    bool in_thinking;
} run_job;

static bool check_values(const run_values *v, error *err)
{
    if ((v->prompt != NULL) + (v->file != NULL) + (v->messages != NULL) > 1)
        return error_set(err, ERROR_USAGE, "--prompt, --file and --messages exclude each other");
    const dialogue_values *d = &v->dialogue;
    if (v->raw && (v->messages || d->system || d->tools || d->effort || d->format || !d->thinking))
        return error_set(err, ERROR_USAGE, "--raw uses no chat template, so --messages, --system, --tools, --effort, --template and "
                                           "--no-thinking have no meaning");
    if (v->logprobs != OPTION_NOT_GIVEN && !v->json)
        return error_set(err, ERROR_USAGE, "--logprobs needs --json");
    if (!v->prompt && !v->file && !v->messages && isatty(STDIN_FILENO))
        return error_set(err, ERROR_USAGE, "there is no prompt: give --prompt TEXT, --file FILE, or text on standard input");
    return true;
}

static bool read_text(const run_values *v, text *out, error *err)
{
    if (!v->prompt)
        return input_read(v->file, out, err);
    text_add_text(out, v->prompt);
    return true;
}

static json_t *read_messages(const run_values *v, error *err)
{
    if (v->messages)
        return input_read_json(v->messages, err);
    text words = {0};
    json_t *messages = json_array();
    bool ok = read_text(v, &words, err);
    if (ok && v->dialogue.system)
        ok = dialogue_add(messages, "system", v->dialogue.system, view_of(v->dialogue.system).length, "--system", err);
    ok = ok && dialogue_add(messages, "user", words.data, words.length, v->prompt ? "--prompt" : input_name(v->file), err);
    text_free(&words);
    if (ok)
        return messages;
    json_decref(messages);
    return NULL;
}

static bool make_prompt(const run_values *v, run_job *j, error *err)
{
    if (v->raw) {
        text words = {0};
        bool ok = read_text(v, &words, err);
        if (ok)
            tokenizer_encode(j->text.tokenizer, words.data, words.length, true, &j->prompt);
        text_free(&words);
        return ok && (j->prompt.count || error_set(err, ERROR_INPUT, "the prompt is empty"));
    }
    json_t *messages = read_messages(v, err);
    bool ok = messages && dialogue_prompt(&v->dialogue, &j->text, messages, j->tools, &j->prompt, &j->in_thinking, err);
    json_decref(messages);
    return ok;
}

static bool open_text(const run_values *v, run_job *j, error *err)
{
    const char *name = runner_model_name(&v->runner);
    if (!v->raw)
        return text_model_open(name, v->dialogue.format, &j->text, err);
    return (j->text.tokenizer = text_model_tokenizer(name, err)) != NULL;
}

static void set_screen(const run_values *v, answer_screen *s)
{
    *s = (answer_screen){0};
    if (v->json)
        return;
    s->content = stdout;
    s->clean = isatty(STDOUT_FILENO);
    if (isatty(STDERR_FILENO) && log_level_now() > LOG_QUIET) {
        s->reasoning = stderr;
        s->clean = true;
        s->dim = terminal_has_colour(STDERR_FILENO);
    }
}

static bool prepare(const run_values *v, run_job *j, error *err)
{
    if (v->dialogue.tools && !(j->tools = input_read_json(v->dialogue.tools, err)))
        return false;
    if (!open_text(v, j, err) || !make_prompt(v, j, err) || !runner_open_model(&v->runner, &j->runner, err))
        return false;
    answerer *a = &j->answerer;
    *a = (answerer){.runner = &j->runner, .text = &j->text, .tools = j->tools, .max_tokens = v->sampling.max_tokens};
    set_screen(v, &a->screen);
    if (!sampling_params(&v->sampling, j->runner.model->directory, tokenizer_size(j->text.tokenizer), &a->params, &j->bias, err))
        return false;
    a->params.logprobs = v->logprobs == OPTION_NOT_GIVEN ? -1 : (int)v->logprobs;
    int64_t context = runner_context(&v->runner, &j->runner, (int64_t)j->prompt.count, v->sampling.max_tokens);
    return runner_start(&v->runner, context, 1, &j->runner, err);
}

static json_t *ids_json(const token_list *ids)
{
    json_t *array = json_array();
    for (size_t i = 0; i < ids->count; i++)
        json_array_append_new(array, json_integer(ids->ids[i]));
    return array;
}

static void print_json(const run_job *j, const answer *out)
{
    const char *content = out->content.data ? out->content.data : "";
    json_t *o = json_pack("{s:s%}", "text", content, out->content.length);
    if (out->reasoning.length)
        json_object_set_new(o, "reasoning", json_stringn(out->reasoning.data, out->reasoning.length));
    if (json_array_size(out->calls))
        json_object_set(o, "tool_calls", out->calls);
    json_object_set_new(o, "finish_reason", json_string(out->finish));
    json_object_set_new(o, "prompt_tokens", json_integer((json_int_t)j->prompt.count));
    json_object_set_new(o, "completion_tokens", json_integer((json_int_t)out->ids.count));
    json_object_set_new(o, "seed", json_integer((json_int_t)j->answerer.params.seed));
    json_object_set_new(o, "ids", ids_json(&out->ids));
    if (out->logprobs)
        json_object_set(o, "logprobs", out->logprobs);
    output_json(o);
}

static bool answer_job(const run_values *v, run_job *j, error *err)
{
    answer out = {0};
    bool ok = v->raw ? answer_raw(&j->answerer, &j->prompt, &out, err)
                     : answer_prompt(&j->answerer, &j->prompt, j->in_thinking, &out, err);
    if (ok && v->json)
        print_json(j, &out);
    if (ok)
        answer_log_speed(&j->answerer, &out);
    if (ok && interrupt_count)
        ok = error_set(err, ERROR_INTERRUPTED, "interrupted after %zu tokens", out.ids.count);
    else if (ok && out.finish[0] == 'l' && !v->json)
        log_info("(the answer was cut at %zu tokens; --max-tokens and --context set the limit)", out.ids.count);
    answer_free(&out);
    return ok;
}

static bool run_run(const program *p, const void *values, error *err)
{
    (void)p;
    const run_values *v = values;
    run_job j = {0};
    bool ok = check_values(v, err);
    if (ok)
        interrupt_catch();
    ok = ok && prepare(v, &j, err) && answer_job(v, &j, err);
    generator_free(&j.answerer.generator);
    token_list_free(&j.prompt);
    json_decref(j.tools);
    free(j.bias);
    runner_close(&j.runner);
    text_model_close(&j.text);
    return ok;
}

static const command_example run_examples[] = {
    {"drawbridge run -p 'What is 17 + 25?'", "Ask the built-in model."},
    {"drawbridge run MODEL -f question.txt --temperature 0", "Ask another model, always with the same answer."},
    {"drawbridge run --raw -p 'Once upon a time' -n 100", "Continue a text."},
    {"drawbridge run --json --seed 7 -p 'Sort: 3 1 2' | python3 -m json.tool", "For scripts: the answer as JSON."},
};

const command command_run = {
    .name = "run",
    .summary = "answer one prompt",
    .description = "Sends one prompt through the model's chat template and prints the answer as it comes. The reasoning is shown dimmed on "
                   "standard error when that is a terminal. Ctrl-C stops the answer.\n\n"
                   "What is not given for sampling comes from the model's generation_config.json.",
    .options = run_options,
    .option_count = COUNT_OF(run_options),
    .values_bytes = sizeof(run_values),
    .examples = run_examples,
    .example_count = COUNT_OF(run_examples),
    .run = run_run,
};
