/* Renders conversations for tests/chat_jinja.py: one JSON object per line of standard input, one JSON value per line of
 * output: the prompt as a string, or {"error": text}. With a number in the key "float" it prints that number as
 * Python's repr would, as a string. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/chat.h"
#include "model/python_json.h"

static chat_switch switch_of(const json_t *v)
{
    return json_is_true(v) ? CHAT_TRUE : json_is_false(v) ? CHAT_FALSE : CHAT_UNSET;
}

static json_t *render(const json_t *request, chat_prompt *prompt)
{
    error err = {0};
    chat_format *f = chat_format_load(json_string_value(json_object_get(request, "directory")), NULL,
                                      json_string_value(json_object_get(request, "format")), &err);
    chat_options o = {
        .enable_thinking = switch_of(json_object_get(request, "enable_thinking")),
        .clear_thinking = switch_of(json_object_get(request, "clear_thinking")),
        .reasoning_effort = json_string_value(json_object_get(request, "reasoning_effort")),
        .add_generation_prompt = json_is_true(json_object_get(request, "add_generation_prompt")),
    };
    bool ok = f && chat_render(f, json_object_get(request, "messages"), json_object_get(request, "tools"), &o, prompt, &err);
    chat_format_free(f);
    return ok ? json_stringn(prompt->text.data, prompt->text.length) : json_pack("{s:s}", "error", err.text);
}

static json_t *answer(const json_t *request, chat_prompt *prompt)
{
    const json_t *number = json_object_get(request, "float");
    if (!number)
        return render(request, prompt);
    text t = {0};
    python_float_add(&t, json_number_value(number));
    json_t *value = json_string(t.data);
    text_free(&t);
    return value;
}

int main(void)
{
    chat_prompt prompt = {0};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        error err = {0};
        json_t *request = json_parse(line, (size_t)length, "standard input", &err);
        json_t *value = request ? answer(request, &prompt) : json_pack("{s:s}", "error", err.text);
        json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
        putchar('\n');
        json_decref(value);
        json_decref(request);
    }
    free(line);
    chat_prompt_free(&prompt);
    return 0;
}
