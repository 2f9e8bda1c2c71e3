/* drawbridge chat: a conversation in the terminal.
 *
 * Each turn renders the whole conversation again and gives it to the session, which computes only what its cache does not
 * hold. Lines come from the terminal's own editing, or from a pipe, then without prompts. Ctrl-C while an answer comes stops it; the
 * next Ctrl-C, or one while a line is awaited, leaves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "commands/answer.h"
#include "commands/commands.h"
#include "commands/dialogue.h"
#include "commands/input.h"
#include "commands/interrupt.h"
#include "commands/sampling.h"

typedef struct chat_values {
    runner_values runner;
    dialogue_values dialogue;
    sampling_values sampling;
} chat_values;

static const option chat_options_table[] = {
    RUNNER_MODEL_ROWS(chat_values),
    DIALOGUE_ROWS(chat_values),
    SAMPLING_ROWS(chat_values),
    RUNNER_CONTEXT_ROW(chat_values),
    RUNNER_ROWS(chat_values),
};

/* A running conversation. */
typedef struct chat_job {
    answerer answerer;
    runner runner;
    text_model text;
    dialogue_values dialogue; /* as the options say, then as slash commands change it */
    char *system;             /* set by /system; NULL: dialogue.system is the option's */
    json_t *messages, *tools;
    sampler_bias *bias;
    uint64_t first_seed;
    int turns;                /* answers so far, over all conversations */
    bool terminal;            /* lines come from a terminal: show prompts */
    bool colour;
    line_reader input;
    text line;                /* the line read last */
} chat_job;

/* ---- lines ---- */

/* False at the end of the input, after Ctrl-C, or with err set. */
static bool read_line(chat_job *j, const char *prompt, error *err)
{
    view line;
    interrupt_count = 0;
    if (j->terminal) {
        printf("%s%s%s", j->colour ? "\x1b[1m" : "", prompt, j->colour ? "\x1b[0m" : "");
        fflush(stdout);
    }
    if (!line_reader_next(&j->input, &line, err)) {
        if (j->terminal)
            putchar('\n');
        return false;
    }
    if (line.length && line.data[line.length - 1] == '\r')
        line.length--;
    text_clear(&j->line);
    text_add(&j->line, line.data, line.length);
    return true;
}

/* ---- the conversation ---- */

static bool clear_conversation(chat_job *j, error *err)
{
    json_array_clear(j->messages);
    const char *system = j->system ? j->system : j->dialogue.system;
    return !system || !system[0] || dialogue_add(j->messages, "system", system, strlen(system), "the system message", err);
}

/* Asks for the result of each call; false when the input ends. */
static bool ask_tool_results(chat_job *j, const answer *out, error *err)
{
    json_t *call;
    size_t i;
    json_array_foreach(out->calls, i, call) {
        text prompt = {0};
        text_add_format(&prompt, "result of %s> ", json_string_value(json_object_get(call, "name")));
        bool ok = read_line(j, prompt.data, err) &&
                  dialogue_add(j->messages, "tool", j->line.data, j->line.length, "the result", err);
        text_free(&prompt);
        if (!ok)
            return false;
    }
    return true;
}

/* One answer of the model, added to the conversation. *calls: it ended with tool calls. */
static bool answer_once(chat_job *j, bool *calls, error *err)
{
    token_list prompt = {0};
    answer out = {0};
    bool in_thinking = false;
    *calls = false;
    interrupt_count = 0;
    j->answerer.params.seed = j->first_seed + (uint64_t)j->turns;
    bool ok = dialogue_prompt(&j->dialogue, &j->text, j->messages, j->tools, &prompt, &in_thinking, err) &&
              answer_prompt(&j->answerer, &prompt, in_thinking, &out, err);
    if (ok) {
        j->turns++;
        json_array_append_new(j->messages, answer_message(&out));
        answer_log_speed(&j->answerer, &out);
        if (strcmp(out.finish, "interrupted") == 0)
            log_info("(stopped; Ctrl-C again leaves)");
        else if (strcmp(out.finish, "length") == 0)
            log_info("(the answer was cut at %zu tokens)", out.ids.count);
        *calls = strcmp(out.finish, "tool_calls") == 0 && ask_tool_results(j, &out, err);
        ok = err->code == ERROR_NONE;
    }
    token_list_free(&prompt);
    answer_free(&out);
    return ok;
}

/* A turn that fails leaves the conversation as it was before it. */
static bool take_turn(chat_job *j, error *err)
{
    size_t before = json_array_size(j->messages);
    bool calls = true, ok = dialogue_add(j->messages, "user", j->line.data, j->line.length, "the line", err);
    while (ok && calls)
        ok = answer_once(j, &calls, err);
    while (!ok && json_array_size(j->messages) > before)
        json_array_remove(j->messages, json_array_size(j->messages) - 1);
    if (j->terminal)
        putchar('\n');
    return ok;
}

/* ---- slash commands ---- */

typedef struct slash_command {
    const char *name, *arguments, *words;
    bool (*act)(chat_job *j, const char *argument, error *err); /* NULL: leaves */
} slash_command;

static bool slash_help(chat_job *j, const char *argument, error *err);

static bool slash_clear(chat_job *j, const char *argument, error *err)
{
    (void)argument;
    log_info("(a new conversation)");
    return clear_conversation(j, err);
}

static bool slash_system(chat_job *j, const char *argument, error *err)
{
    char *copy = malloc(strlen(argument) + 1);
    if (!copy)
        return error_set(err, ERROR_RUNTIME, "no memory");
    strcpy(copy, argument);
    free(j->system);
    j->system = copy;
    log_info(argument[0] ? "(a new conversation with this system message)" : "(a new conversation without system message)");
    return clear_conversation(j, err);
}

static bool slash_thinking(chat_job *j, const char *argument, error *err)
{
    if (strcmp(argument, "on") != 0 && strcmp(argument, "off") != 0)
        return error_set(err, ERROR_USAGE, "/thinking needs on or off");
    j->dialogue.thinking = strcmp(argument, "on") == 0;
    return true;
}

static bool slash_status(chat_job *j, const char *argument, error *err)
{
    (void)argument;
    (void)err;
    log_info("%s, %s; %zu messages, %d of %d tokens in the cache; thinking %s, temperature %g, seed %llu", j->runner.model->directory,
             j->runner.device->description, json_array_size(j->messages), j->runner.session->count, j->runner.session->max_tokens,
             j->dialogue.thinking ? "on" : "off", j->answerer.params.temperature, (unsigned long long)j->first_seed);
    return true;
}

static const slash_command slash_commands[] = {
    {"/help", "", "this list", slash_help},
    {"/clear", "", "forget the conversation", slash_clear},
    {"/system", " TEXT", "begin a new conversation with a system message", slash_system},
    {"/thinking", " on|off", "ask for answers with or without reasoning", slash_thinking},
    {"/status", "", "model, context used, settings", slash_status},
    {"/exit", "", "leave; so do Ctrl-D and Ctrl-C", NULL},
};

static bool slash_help(chat_job *j, const char *argument, error *err)
{
    (void)j;
    (void)argument;
    (void)err;
    for (size_t i = 0; i < COUNT_OF(slash_commands); i++)
        log_info("  %s%-*s %s", slash_commands[i].name, (int)(16 - strlen(slash_commands[i].name)), slash_commands[i].arguments,
                 slash_commands[i].words);
    return true;
}

/* *leave: the command was /exit. */
static bool take_slash(chat_job *j, bool *leave, error *err)
{
    size_t n = strcspn(j->line.data, " ");
    const char *argument = j->line.data + n + (j->line.data[n] == ' ');
    for (size_t i = 0; i < COUNT_OF(slash_commands); i++) {
        const slash_command *c = &slash_commands[i];
        if (!view_equal_text((view){j->line.data, n}, c->name))
            continue;
        if (!c->arguments[0] && argument[0])
            return error_set(err, ERROR_USAGE, "%s takes nothing after it", c->name);
        *leave = c->act == NULL;
        return *leave || c->act(j, argument, err);
    }
    return error_set(err, ERROR_USAGE, "%.*s is not a command; /help lists them, and a line that begins with a blank is text", (int)n,
                     j->line.data);
}

/* ---- the program ---- */

static void set_screen(chat_job *j)
{
    bool terminal = isatty(STDOUT_FILENO);
    j->terminal = isatty(STDIN_FILENO) && terminal;
    j->colour = terminal_has_colour(STDOUT_FILENO);
    j->answerer.screen = (answer_screen){.content = stdout, .reasoning = terminal ? stdout : NULL, .clean = terminal, .dim = j->colour};
}

static bool prepare(const chat_values *v, chat_job *j, error *err)
{
    j->dialogue = v->dialogue;
    j->messages = json_array();
    if (v->dialogue.tools && !(j->tools = input_read_json(v->dialogue.tools, err)))
        return false;
    if (!text_model_open(runner_model_name(&v->runner), v->dialogue.format, &j->text, err) ||
        !runner_open_model(&v->runner, &j->runner, err))
        return false;
    answerer *a = &j->answerer;
    *a = (answerer){.runner = &j->runner, .text = &j->text, .tools = j->tools, .max_tokens = v->sampling.max_tokens};
    set_screen(j);
    if (!sampling_params(&v->sampling, j->runner.model->directory, tokenizer_size(j->text.tokenizer), &a->params, &j->bias, err))
        return false;
    j->first_seed = a->params.seed;
    return runner_start(&v->runner, runner_context(&v->runner, &j->runner, 0, OPTION_NOT_GIVEN), 1, &j->runner, err) &&
           clear_conversation(j, err);
}

/* A problem with one line does not end the conversation at a terminal; a pipe has nobody to answer, so there it does. */
static bool forgive(const chat_job *j, error *err)
{
    if (!j->terminal || err->code == ERROR_RUNTIME)
        return false;
    log_warning("%s", err->text);
    *err = (error){0};
    return true;
}

static bool converse(chat_job *j, error *err)
{
    bool leave = false;
    while (!leave && !ferror(stdout) && read_line(j, "> ", err)) {
        bool ok = true;
        if (j->line.data[0] == '/')
            ok = take_slash(j, &leave, err);
        else if (strspn(j->line.data, " \t") < j->line.length)
            ok = take_turn(j, err);
        if (!ok && !forgive(j, err))
            return false;
        if (interrupt_count > 1)
            break;
    }
    if (interrupt_count)
        err->code = ERROR_INTERRUPTED;
    return err->code == ERROR_NONE;
}

static void release(chat_job *j)
{
    generator_free(&j->answerer.generator);
    json_decref(j->messages);
    json_decref(j->tools);
    free(j->bias);
    free(j->system);
    text_free(&j->line);
    text_free(&j->input.bytes);
    runner_close(&j->runner);
    text_model_close(&j->text);
}

static bool chat_run(const program *p, const void *values, error *err)
{
    const chat_values *v = values;
    chat_job j = {0};
    bool ok = prepare(v, &j, err);
    if (ok) {
        if (j.terminal)
            log_info("%s %s: %s on %s\n/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.\n", p->name, p->version,
                     j.runner.model->directory, j.runner.device->description);
        interrupt_catch();
        ok = converse(&j, err);
    }
    release(&j);
    return ok;
}

static const command_example chat_examples[] = {
    {"drawbridge chat", "Talk to the built-in model."},
    {"drawbridge chat MODEL --system 'Answer in one sentence.' --no-thinking", "Another model, with a system message, no reasoning."},
    {"printf 'Hi\\nWhat is 2 + 3?\\n' | drawbridge chat --seed 1", "Two turns from a pipe."},
};

const command command_chat = {
    .name = "chat",
    .summary = "talk to a model in the terminal",
    .description = "Reads a line, answers it, and remembers the conversation. On a terminal the reasoning is shown dimmed before the "
                   "answer. Ctrl-C stops an answer, a second one leaves; so do /exit and Ctrl-D. Lines that begin with a slash are "
                   "commands; /help lists them.\n\n"
                   "Standard input may be a pipe: each line is a turn, and only the answers are printed. When the model calls a tool, the "
                   "next line is its result.",
    .options = chat_options_table,
    .option_count = COUNT_OF(chat_options_table),
    .values_bytes = sizeof(chat_values),
    .examples = chat_examples,
    .example_count = COUNT_OF(chat_examples),
    .run = chat_run,
};
