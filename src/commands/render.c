/* drawbridge render: a conversation in OpenAI's form becomes the prompt that the model reads.
 *
 * A document is an array of messages, or an object with "messages" and, if it likes, "tools" and the template's variables
 * (enable_thinking, clear_thinking, reasoning_effort, add_generation_prompt), which then go before the options. */
#include <stdio.h>

#include "base/log.h"
#include "commands/commands.h"
#include "commands/input.h"
#include "commands/output.h"
#include "commands/text_model.h"
#include "model/chat.h"

typedef struct render_values {
    const char *file, *model, *format, *tools, *effort;
    bool thinking, keep_thinking, generation_prompt;
    bool text, ids, json, jsonl;
} render_values;

static const option render_options[] = {
    {.name = "FILE", .type = OPTION_FILE, .positional = true, .offset = offsetof(render_values, file),
     .help = "JSON: an array of messages, or an object with messages and tools as a chat request has. Keys of a request that do not "
             "change the prompt are ignored. - or nothing: standard input."},
    {.name = "model", .letter = 'm', .type = OPTION_DIRECTORY, .metavar = "DIR", .unset = "the built-in model",
     .offset = offsetof(render_values, model), .help = "The directory that holds the tokenizer and the template."},
    {.name = "template", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the model's own", .offset = offsetof(render_values, format),
     .help = "Use a chat template by name instead of the model's own. A name that does not exist lists those that do."},
    {.name = "tools", .type = OPTION_FILE, .metavar = "FILE", .offset = offsetof(render_values, tools),
     .help = "JSON array of tools, as in a chat request."},
    {.name = "thinking", .type = OPTION_FLAG, .by_default = "on", .offset = offsetof(render_values, thinking),
     .help = "Ask for an answer without reasoning."},
    {.name = "keep-thinking", .type = OPTION_FLAG, .offset = offsetof(render_values, keep_thinking),
     .help = "Keep the reasoning of earlier turns."},
    {.name = "effort", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the template's", .offset = offsetof(render_values, effort),
     .help = "How much to reason, where the template knows it: high or max."},
    {.name = "generation-prompt", .type = OPTION_FLAG, .by_default = "on", .offset = offsetof(render_values, generation_prompt),
     .help = "Leave out the beginning of the assistant's turn at the end."},
    {.name = "text", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(render_values, text),
     .help = "Print the text only, byte for byte."},
    {.name = "ids", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(render_values, ids),
     .help = "Print the token ids only, in the form that logits --tokens reads."},
    {.name = "json", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(render_values, json),
     .help = "Print a JSON object: text, ids, and whether the answer begins with reasoning."},
    {.name = "jsonl", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(render_values, jsonl),
     .help = "Read one conversation per line and print one such object per line."},
};

static bool set_switch(json_source s, const char *key, chat_switch *out, error *err)
{
    bool value = false;
    if (!json_has(s, key))
        return true;
    if (!json_get_bool(s, key, &value, err))
        return false;
    *out = value ? CHAT_TRUE : CHAT_FALSE;
    return true;
}

/* The template's variables in the document itself. */
static bool set_variables(json_source s, chat_options *o, error *err)
{
    return set_switch(s, "enable_thinking", &o->enable_thinking, err) && set_switch(s, "clear_thinking", &o->clear_thinking, err) &&
           json_get_string_or(s, "reasoning_effort", &o->reasoning_effort, err) &&
           json_get_bool_or(s, "add_generation_prompt", &o->add_generation_prompt, err);
}

static void print_plain(const render_values *v, chat_prompt *prompt, const token_list *ids)
{
    text line = {0};
    output_ids(ids->ids, ids->count, " ", &line);
    text_add_char(&line, '\n');
    if (v->text) {
        output_document(&prompt->text);
    } else {
        if (!v->ids) {
            output_text(&prompt->text);
            fputs("\n\n", stdout);
        }
        output_text(&line);
    }
    text_free(&line);
}

static void print_object(const chat_prompt *prompt, const token_list *ids)
{
    text line = {0};
    text_add_text(&line, "{\"text\":");
    output_json_string(prompt->text.data, prompt->text.length, &line);
    text_add_text(&line, ",\"ids\":[");
    output_ids(ids->ids, ids->count, ",", &line);
    text_add_format(&line, "],\"in_thinking\":%s}\n", prompt->in_thinking ? "true" : "false");
    output_text(&line);
    text_free(&line);
}

static bool render_document(const render_values *v, const text_model *m, const json_t *document, const json_t *tools, const char *where,
                            error *err)
{
    chat_options options = {.enable_thinking = v->thinking ? CHAT_UNSET : CHAT_FALSE,
                            .clear_thinking = v->keep_thinking ? CHAT_FALSE : CHAT_UNSET,
                            .reasoning_effort = v->effort,
                            .add_generation_prompt = v->generation_prompt};
    const json_t *messages = document;
    if (json_is_object(document)) {
        messages = json_object_get(document, "messages");
        if (!messages)
            return error_set(err, ERROR_INPUT, "%s: key \"messages\" is missing", where);
        if (json_has((json_source){document, where}, "tools"))
            tools = json_object_get(document, "tools");
        if (!set_variables((json_source){document, where}, &options, err))
            return false;
    }
    chat_prompt prompt = {0};
    token_list ids = {0};
    bool ok = chat_render(m->format, messages, tools, &options, &prompt, err) || error_add(err, "%s", where);
    if (ok) {
        chat_prompt_tokens(&prompt, m->tokenizer, &ids);
        log_detail("%s: %zu bytes, %zu tokens", chat_format_name(m->format), prompt.text.length, ids.count);
        if (v->json || v->jsonl)
            print_object(&prompt, &ids);
        else
            print_plain(v, &prompt, &ids);
    }
    chat_prompt_free(&prompt);
    token_list_free(&ids);
    return ok;
}

static bool render_lines(const render_values *v, const text_model *m, const json_t *tools, error *err)
{
    input_lines in;
    if (!input_lines_open(v->file, &in, err))
        return false;
    bool ok = true;
    while (ok && !ferror(stdout) && input_lines_next(&in, err)) {
        char where[300];
        snprintf(where, sizeof where, "%.250s, line %lld", in.name, (long long)in.number);
        json_t *document = input_lines_json(&in, err);
        ok = document && render_document(v, m, document, tools, where, err);
        json_decref(document);
    }
    input_lines_close(&in);
    return ok && err->code == ERROR_NONE;
}

static bool render_one(const render_values *v, const text_model *m, const json_t *tools, error *err)
{
    json_t *document = input_read_json(v->file, err);
    bool ok = document && render_document(v, m, document, tools, input_name(v->file), err);
    json_decref(document);
    return ok;
}

static bool render_run(const program *p, const void *values, error *err)
{
    (void)p;
    const render_values *v = values;
    if (v->text + v->ids + v->json + v->jsonl > 1)
        return error_set(err, ERROR_USAGE, "--text, --ids, --json and --jsonl exclude each other");
    text_model m = {0};
    json_t *tools = NULL;
    bool ok = text_model_open(v->model, v->format, &m, err);
    if (ok && v->tools)
        ok = (tools = input_read_json(v->tools, err)) != NULL;
    if (ok)
        ok = v->jsonl ? render_lines(v, &m, tools, err) : render_one(v, &m, tools, err);
    json_decref(tools);
    text_model_close(&m);
    return ok;
}

static const command_example render_examples[] = {
    {"echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | drawbridge render", "Show the prompt of a conversation, then its token ids."},
    {"drawbridge render --tools tools.json --no-thinking chat.json", "With tools, and no reasoning in the answer."},
    {"drawbridge render --ids chat.json > ids.txt", "Ids for drawbridge logits --tokens ids.txt."},
};

const command command_render = {
    .name = "render",
    .summary = "turn chat messages into the prompt the model reads",
    .description = "Renders messages in OpenAI's form by the model's chat template and prints the text and its token ids. Only the "
                   "template writes control tokens: a message that contains <|user|> or the like stays text, so the ids can differ from "
                   "those of tokenizing the printed text.",
    .options = render_options,
    .option_count = COUNT_OF(render_options),
    .values_bytes = sizeof(render_values),
    .examples = render_examples,
    .example_count = COUNT_OF(render_examples),
    .run = render_run,
};
