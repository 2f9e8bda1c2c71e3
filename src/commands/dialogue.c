#include "commands/dialogue.h"

bool dialogue_prompt(const dialogue_values *v, const text_model *m, const json_t *messages, const json_t *tools, token_list *out,
                     bool *in_thinking, error *err)
{
    chat_options options = {.enable_thinking = v->thinking ? CHAT_UNSET : CHAT_FALSE,
                            .reasoning_effort = v->effort,
                            .add_generation_prompt = true};
    chat_prompt prompt = {0};
    bool ok = chat_render(m->format, messages, tools, &options, &prompt, err);
    if (ok) {
        chat_prompt_tokens(&prompt, m->tokenizer, out);
        *in_thinking = prompt.in_thinking;
    }
    chat_prompt_free(&prompt);
    return ok;
}

bool dialogue_add(json_t *messages, const char *role, const char *content, size_t bytes, const char *where, error *err)
{
    json_t *value = json_stringn(content, bytes);
    if (!value)
        return error_set(err, ERROR_INPUT, "%s is not valid UTF-8", where);
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", value));
    return true;
}
