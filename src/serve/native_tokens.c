/* /tokenize and /detokenize: requests in the forms of sglang ({"prompt"}, {"text"}) and vLLM ({"prompt"}, {"messages"}). */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "serve/native_request.h"

/* Fields by name, borrowed from the body. */
typedef struct given {
    const char *name;
    const json_t **value;
} given;

static bool fields_take(const json_t *body, const given *fields, error *err)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value) {
        const given *g = fields;
        while (g->name && strcmp(g->name, key) != 0)
            g++;
        if (!g->name && !json_is_null(value))
            return error_set(err, ERROR_INPUT, "%.60s: not supported here; leave it out", key);
        if (g->name && !json_is_null(value))
            *g->value = value;
    }
    return true;
}

static bool flag_take(const json_t *value, const char *name, bool *out, error *err)
{
    if (value && !json_is_boolean(value))
        return error_set(err, ERROR_INPUT, "%s: expected true or false, found %s", name, json_type_name(value));
    if (value)
        *out = json_is_true(value);
    return true;
}

/* ---- /tokenize ---- */

typedef struct tokenize_fields {
    const json_t *model, *prompt, *text, *messages, *tools, *special, *generation, *continued, *strings, *kwargs;
} tokenize_fields;

static bool prompts_encode(const json_t *prompt, const tokenizer *t, native_tokenize *out, error *err)
{
    out->list = json_is_array(prompt);
    size_t count = out->list ? json_array_size(prompt) : 1;
    if (count == 0 || count > NATIVE_PROMPTS_MOST)
        return error_set(err, ERROR_INPUT, "prompt: expected 1 to %d prompts, found %zu", NATIVE_PROMPTS_MOST, count);
    out->lists = mem_alloc(count, sizeof *out->lists);
    out->count = (int)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *words = out->list ? json_array_get(prompt, i) : prompt;
        if (!json_is_string(words))
            return error_set(err, ERROR_INPUT, "prompt: expected a string or an array of strings, found %s", json_type_name(words));
        tokenizer_encode(t, json_string_value(words), json_string_length(words), true, &out->lists[i]);
    }
    return true;
}

static chat_switch switch_of(bool on)
{
    return on ? CHAT_TRUE : CHAT_FALSE;
}

static bool kwargs_read(const json_t *kwargs, chat_options *o, error *err)
{
    const json_t *thinking = NULL, *clearing = NULL, *effort = NULL;
    const given fields[] = {{"enable_thinking", &thinking}, {"clear_thinking", &clearing}, {"reasoning_effort", &effort}, {NULL, NULL}};
    bool on = false;
    if (!kwargs)
        return true;
    if (!json_is_object(kwargs))
        return error_set(err, ERROR_INPUT, "chat_template_kwargs: expected an object, found %s", json_type_name(kwargs));
    if (!fields_take(kwargs, fields, err))
        return error_add(err, "chat_template_kwargs");
    if (!flag_take(thinking, "chat_template_kwargs.enable_thinking", &on, err))
        return false;
    o->enable_thinking = thinking ? switch_of(on) : CHAT_UNSET;
    if (!flag_take(clearing, "chat_template_kwargs.clear_thinking", &on, err))
        return false;
    o->clear_thinking = clearing ? switch_of(on) : CHAT_UNSET;
    if (effort && !json_is_string(effort))
        return error_set(err, ERROR_INPUT, "chat_template_kwargs.reasoning_effort: expected a string, found %s", json_type_name(effort));
    o->reasoning_effort = json_string_value(effort);
    return true;
}

static bool messages_encode(const tokenize_fields *g, const tokenizer *t, const chat_format *f, native_tokenize *out, error *err)
{
    bool opens = true, continued = false;
    chat_options o = {0};
    chat_prompt p = {0};
    if (!f)
        return error_set(err, ERROR_INPUT, "messages: this model has no known chat format; send prompt");
    if (!flag_take(g->continued, "continue_final_message", &continued, err))
        return false;
    opens = !continued;
    if (!flag_take(g->generation, "add_generation_prompt", &opens, err) || !kwargs_read(g->kwargs, &o, err))
        return false;
    if (opens && continued)
        return error_set(err, ERROR_INPUT, "continue_final_message: does not go with add_generation_prompt");
    o.add_generation_prompt = opens;
    bool ok = chat_render(f, g->messages, g->tools, &o, &p, err);
    if (ok) {
        out->lists = mem_alloc(1, sizeof *out->lists);
        out->count = 1;
        chat_prompt_tokens(&p, t, &out->lists[0]);
    }
    chat_prompt_free(&p);
    return ok;
}

bool native_tokenize_read(const json_t *body, const tokenizer *t, const chat_format *f, native_tokenize *out, error *err)
{
    tokenize_fields g = {0};
    const given fields[] = {{"model", &g.model}, {"prompt", &g.prompt}, {"text", &g.text}, {"messages", &g.messages}, {"tools", &g.tools},
                            {"add_special_tokens", &g.special}, {"add_generation_prompt", &g.generation},
                            {"continue_final_message", &g.continued}, {"return_token_strs", &g.strings},
                            {"chat_template_kwargs", &g.kwargs}, {NULL, NULL}};
    bool unused = false;
    *out = (native_tokenize){0};
    if (!fields_take(body, fields, err) || !flag_take(g.special, "add_special_tokens", &unused, err) ||
        !flag_take(g.strings, "return_token_strs", &out->strings, err))
        return false;
    if ((g.prompt != NULL) + (g.text != NULL) + (g.messages != NULL) != 1)
        return error_set(err, ERROR_INPUT, "prompt: send exactly one of prompt, text and messages");
    if (g.messages)
        return messages_encode(&g, t, f, out, err);
    if (g.tools || g.generation || g.continued || g.kwargs)
        return error_set(err, ERROR_INPUT, "%s: goes with messages only", g.tools ? "tools" : g.generation ? "add_generation_prompt"
                         : g.continued ? "continue_final_message" : "chat_template_kwargs");
    return prompts_encode(g.prompt ? g.prompt : g.text, t, out, err);
}

void native_tokenize_free(native_tokenize *r)
{
    for (int i = 0; i < r->count; i++)
        token_list_free(&r->lists[i]);
    free(r->lists);
    *r = (native_tokenize){0};
}

/* ---- /detokenize ---- */

static bool tokens_decode(const json_t *tokens, const tokenizer *t, bool skip_special, text *out, error *err)
{
    token_list ids = {0};
    bool ok = json_is_array(tokens);
    if (!ok)
        error_set(err, ERROR_INPUT, "tokens: expected an array of token ids, found %s", json_type_name(tokens));
    for (size_t i = 0; ok && i < json_array_size(tokens); i++) {
        const json_t *id = json_array_get(tokens, i);
        ok = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < tokenizer_size(t);
        if (ok)
            token_list_add(&ids, (int32_t)json_integer_value(id));
        else
            error_set(err, ERROR_INPUT, "tokens[%zu]: expected a token id from 0 to %d", i, tokenizer_size(t) - 1);
    }
    if (ok)
        tokenizer_decode(t, ids.ids, ids.count, skip_special, out);
    token_list_free(&ids);
    return ok;
}

bool native_detokenize_read(const json_t *body, const tokenizer *t, native_detokenize *out, error *err)
{
    const json_t *name = NULL, *tokens = NULL, *skip = NULL;
    const given fields[] = {{"model", &name}, {"tokens", &tokens}, {"skip_special_tokens", &skip}, {NULL, NULL}};
    bool skips = true;
    *out = (native_detokenize){0};
    if (!fields_take(body, fields, err) || !flag_take(skip, "skip_special_tokens", &skips, err))
        return false;
    out->list = json_is_array(json_array_get(tokens, 0));
    size_t count = out->list ? json_array_size(tokens) : 1;
    if (count > NATIVE_PROMPTS_MOST)
        return error_set(err, ERROR_INPUT, "tokens: expected at most %d lists, found %zu", NATIVE_PROMPTS_MOST, count);
    out->texts = mem_alloc(count, sizeof *out->texts);
    out->count = (int)count;
    for (size_t i = 0; i < count; i++)
        if (!tokens_decode(out->list ? json_array_get(tokens, i) : tokens, t, skips, &out->texts[i], err))
            return false;
    return true;
}

void native_detokenize_free(native_detokenize *r)
{
    for (int i = 0; i < r->count; i++)
        text_free(&r->texts[i]);
    free(r->texts);
    *r = (native_detokenize){0};
}
