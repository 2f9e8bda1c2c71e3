/* From the JSON of a request to prompt tokens and parameters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"
#include "serve/openai.h"

openai_context openai_context_of(const server *s)
{
    return (openai_context){.tokenizer = s->tokenizer, .format = s->format, .defaults = s->defaults,
                            .model_name = s->options.model_name};
}

static void random_bytes(void *out, size_t count)
{
    if (getrandom(out, count, 0) == (ssize_t)count)
        return;
    unsigned char *bytes = out; /* an old kernel: distinct is enough, nothing here is a secret */
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)random_word(clock_now_us(), (uint64_t)(uintptr_t)out, i);
}

void openai_random_hex(char *out, int bytes)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char random[OPENAI_HEX_BYTES_MOST];
    random_bytes(random, (size_t)bytes);
    for (int i = 0; i < bytes; i++) {
        out[2 * i] = digits[random[i] >> 4];
        out[2 * i + 1] = digits[random[i] & 15];
    }
    out[2 * bytes] = '\0';
}

uint64_t openai_random_seed(void)
{
    uint64_t seed = 0;
    random_bytes(&seed, sizeof seed);
    return seed;
}

/* ---- what both APIs check ---- */

static bool check_model(const openai_context *c, const char *wanted, request_error *e)
{
    if (!wanted || !*wanted || strcmp(wanted, "default") == 0 || strcmp(wanted, c->model_name) == 0)
        return true;
    request_refuse(e, "model", "the model \"%.200s\" is not served here; this server has \"%s\"", wanted, c->model_name);
    e->status = 404;
    e->code = "model_not_found";
    return false;
}

static bool read_fields(const openai_context *c, const json_t *body, int api, api_request *r, request_error *e)
{
    if (!check_model(c, json_string_value(json_object_get(body, "model")), e)) {
        *r = (api_request){0};
        return false;
    }
    if (!fields_read(body, api, &c->defaults, tokenizer_size(c->tokenizer), r, e))
        return false;
    if (!r->has_seed)
        r->spec.params.seed = openai_random_seed();
    return true;
}

/* ---- messages ---- */

/* A message with "developer" and "reasoning" under the names the chat format knows; a new reference. */
static json_t *message_translate(const json_t *message, size_t index, request_error *e)
{
    const json_t *role = json_object_get(message, "role");
    json_t *reasoning = json_object_get(message, "reasoning"), *known = json_object_get(message, "reasoning_content");
    bool developer = json_is_string(role) && strcmp(json_string_value(role), "developer") == 0;
    bool rename = reasoning && !json_is_null(reasoning);
    if (rename && known && !json_is_null(known) && !json_equal(reasoning, known)) {
        request_refuse(e, "messages", "messages[%zu]: reasoning and reasoning_content differ; send one of them", index);
        return NULL;
    }
    if (!developer && !rename)
        return json_incref((json_t *)(uintptr_t)message);
    json_t *copy = json_copy((json_t *)(uintptr_t)message);
    if (developer)
        json_object_set_new(copy, "role", json_string("system"));
    if (rename)
        json_object_set(copy, "reasoning_content", reasoning);
    return copy;
}

static json_t *messages_translate(const json_t *messages, request_error *e)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = message_translate(json_array_get(messages, i), i, e);
        if (!message) {
            json_decref(out);
            return NULL;
        }
        json_array_append_new(out, message);
    }
    return out;
}

/* ---- tools ---- */

static const json_t *tool_named(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *found = json_string_value(json_object_get(function, "name"));
        if (found && strcmp(found, name) == 0)
            return function;
    }
    return NULL;
}

static bool check_tool(const json_t *tools, size_t i, request_error *e)
{
    const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
    const json_t *name = json_object_get(function, "name"), *parameters = json_object_get(function, "parameters");
    const char *type = json_string_value(json_object_get(tool, "type"));
    if (!type || strcmp(type, "function") != 0)
        return request_refuse(e, "tools", "tools[%zu].type: expected \"function\"", i);
    if (!json_is_object(function))
        return request_refuse(e, "tools", "tools[%zu].function: expected an object, found %s", i, json_type_name(function));
    if (json_string_length(name) == 0 || json_string_length(name) > 256 || strlen(json_string_value(name)) != json_string_length(name))
        return request_refuse(e, "tools", "tools[%zu].function.name: expected a string of 1 to 256 bytes without NUL", i);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return request_refuse(e, "tools", "tools[%zu].function.parameters: expected a JSON schema (an object), found %s", i,
                              json_type_name(parameters));
    return true;
}

/* names: of the tools before, a set. */
static bool check_tools(const json_t *tools, json_t *names, request_error *e)
{
    size_t count = json_array_size(tools);
    if (count > OPENAI_TOOLS_MOST)
        return request_refuse(e, "tools", "tools: at most %d tools are allowed, found %zu", OPENAI_TOOLS_MOST, count);
    for (size_t i = 0; i < count; i++) {
        if (!check_tool(tools, i, e))
            return false;
        const char *name = json_string_value(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name"));
        if (json_object_get(names, name))
            return request_refuse(e, "tools", "tools[%zu].function.name: \"%.100s\" is the name of an earlier tool", i, name);
        json_object_set_new(names, name, json_true());
    }
    return true;
}

/* What tool_choice asks for. */
typedef struct tool_decision {
    bool hidden;            /* the tools are not shown */
    bool forced;            /* the answer begins with a call */
    const json_t *function; /* of this tool; NULL: any */
    bool one_call;          /* and has no other */
} tool_decision;

static bool decide_named(const json_t *tools, const json_t *choice, tool_decision *out, request_error *e)
{
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    if (!type || strcmp(type, "function") != 0 || !name)
        return request_refuse(e, "tool_choice", "tool_choice: expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", "
                              "\"function\": {\"name\": ...}}");
    out->forced = out->one_call = true;
    out->function = tool_named(tools, name);
    return out->function || request_refuse(e, "tool_choice", "tool_choice: \"%.100s\" is not the name of one of the tools", name);
}

static bool decide_tools(const api_request *r, tool_decision *out, request_error *e)
{
    const char *word = json_string_value(r->tool_choice);
    json_t *names = json_object();
    bool ok = check_tools(r->tools, names, e);
    json_decref(names);
    if (!ok)
        return false;
    if (!r->tool_choice || (word && strcmp(word, "auto") == 0))
        return true;
    out->hidden = word && strcmp(word, "none") == 0;
    if (out->hidden)
        return true;
    if (!word || strcmp(word, "required") != 0)
        return decide_named(r->tools, r->tool_choice, out, e);
    out->forced = true;
    if (json_array_size(r->tools) == 1)
        out->function = json_object_get(json_array_get(r->tools, 0), "function");
    return json_array_size(r->tools) > 0 || request_refuse(e, "tool_choice", "tool_choice: \"required\" needs tools to choose from");
}

/* Begins the answer with a call. A name is followed by a key where the tool has required arguments: otherwise the model could go on with
 * the name of another tool. */
static void force_call(const openai_context *c, const tool_decision *d, generation_spec *s)
{
    token_list_add(&s->forced, chat_format_id(c->format, CHAT_CALL));
    if (d->function) {
        const json_t *name = json_object_get(d->function, "name");
        tokenizer_encode(c->tokenizer, json_string_value(name), json_string_length(name), false, &s->forced);
        if (json_array_size(json_object_get(json_object_get(d->function, "parameters"), "required")) > 0)
            token_list_add(&s->forced, chat_format_id(c->format, CHAT_KEY));
    }
    s->one_call |= d->one_call;
    for (size_t i = 0; i < s->forced.count; i++)
        token_list_add(&s->prompt, s->forced.ids[i]);
}

/* ---- chat ---- */

static bool check_continuation(const api_request *r, const tool_decision *d, request_error *e)
{
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    const json_t *content = json_object_get(last, "content");
    if (!r->continue_final)
        return true;
    if (r->add_generation_prompt == CHAT_TRUE)
        return request_refuse(e, "continue_final_message", "continue_final_message and add_generation_prompt exclude each other");
    if (d->forced)
        return request_refuse(e, "continue_final_message", "continue_final_message: not with a tool_choice that asks for a call");
    if (!role || strcmp(role, "assistant") != 0 || (json_string_length(content) == 0 && json_array_size(content) == 0) ||
        json_array_size(json_object_get(last, "tool_calls")) > 0)
        return request_refuse(e, "continue_final_message", "continue_final_message: the last message must be the assistant's, with content "
                              "and without tool calls");
    return true;
}

static chat_options options_of(const api_request *r, const tool_decision *d)
{
    const char *effort = r->reasoning_effort ? r->reasoning_effort : r->template_effort;
    chat_switch thinking = r->enable_thinking != CHAT_UNSET ? r->enable_thinking : r->thinking;
    chat_options o = {.enable_thinking = thinking, .clear_thinking = r->clear_thinking, .reasoning_effort = effort,
                      .add_generation_prompt = !r->continue_final && r->add_generation_prompt != CHAT_FALSE};
    if (effort && strcmp(effort, "none") == 0 && o.enable_thinking == CHAT_UNSET)
        o.enable_thinking = CHAT_FALSE;
    if (d->forced)
        o.enable_thinking = CHAT_FALSE;
    return o;
}

/* The renderer's errors begin with the place. */
static bool refuse_rendering(const error *err, const tool_decision *d, request_error *e)
{
    if (d->forced && text_starts_with(err->text, "enable_thinking"))
        return request_refuse(e, "tool_choice", "tool_choice: a call can only be asked for with thinking off, and this model always thinks"
                              "; use \"auto\"");
    const char *param = text_starts_with(err->text, "messages") ? "messages" : text_starts_with(err->text, "tools") ? "tools"
                        : "chat_template_kwargs";
    return request_refuse(e, param, "%s", err->text);
}

static bool render(const openai_context *c, api_request *r, const tool_decision *d, request_error *e)
{
    error err = {0};
    chat_prompt prompt = {0};
    chat_options options = options_of(r, d);
    json_t *messages = messages_translate(r->messages, e);
    if (!messages)
        return false;
    const json_t *tools = d->hidden ? NULL : r->tools;
    bool ok = chat_render(c->format, messages, tools, &options, &prompt, &err);
    json_decref(messages);
    if (ok) {
        chat_prompt_tokens(&prompt, c->tokenizer, &r->spec.prompt);
        r->spec.in_thinking = prompt.in_thinking;
        r->spec.in_content = r->continue_final;
        r->spec.tools = json_incref((json_t *)(uintptr_t)tools);
    }
    chat_prompt_free(&prompt);
    return ok || refuse_rendering(&err, d, e);
}

/* Whether a prompt given as tokens ends inside reasoning: its last <think> is not closed. */
static bool ends_in_thinking(const chat_format *f, const token_list *prompt)
{
    for (size_t i = prompt->count; i-- > 0;) {
        chat_control control = chat_format_control(f, prompt->ids[i]);
        if (control == CHAT_THINK || control == CHAT_THINK_END || control == CHAT_ASSISTANT)
            return control == CHAT_THINK;
    }
    return false;
}

static bool take_input_ids(const openai_context *c, api_request *r, const tool_decision *d, request_error *e)
{
    if (json_array_size(r->messages) > 0 || r->continue_final || d->forced)
        return request_refuse(e, "input_ids", "input_ids: the prompt is complete; leave out messages (or send []), "
                              "continue_final_message and a tool_choice that asks for a call");
    if (json_array_size(r->input_ids) == 0)
        return request_refuse(e, "input_ids", "input_ids: the array is empty");
    if (!fields_token_ids(r->input_ids, tokenizer_size(c->tokenizer), "input_ids", "input_ids", &r->spec.prompt, e))
        return false;
    r->spec.in_thinking = ends_in_thinking(c->format, &r->spec.prompt);
    r->spec.tools = d->hidden ? NULL : json_incref((json_t *)(uintptr_t)r->tools);
    return true;
}

bool openai_chat_read(const openai_context *c, const json_t *body, api_request *r, request_error *e)
{
    tool_decision decision = {0};
    if (!read_fields(c, body, API_CHAT, r, e))
        return false;
    if (!c->format)
        return request_refuse(e, "messages", "this model has no known chat format; use /v1/completions");
    if (!decide_tools(r, &decision, e))
        return false;
    r->spec.chat = true;
    if (r->input_ids)
        return take_input_ids(c, r, &decision, e);
    if (!r->messages)
        return request_refuse(e, "messages", "messages: missing; expected an array with at least one message");
    if (!check_continuation(r, &decision, e) || !render(c, r, &decision, e))
        return false;
    if (decision.forced)
        force_call(c, &decision, &r->spec);
    return true;
}

/* ---- completions ---- */

static bool add_text_prompt(const openai_context *c, const json_t *value, const char *where, token_list *out, request_error *e)
{
    if (json_string_length(value) == 0)
        return request_refuse(e, "prompt", "%s: the prompt is empty; send at least one character", where);
    tokenizer_encode(c->tokenizer, json_string_value(value), json_string_length(value), true, out);
    return true;
}

static bool add_prompt(const openai_context *c, const json_t *value, const char *where, openai_prompts *p, request_error *e)
{
    token_list *out = &p->tokens[p->count++];
    if (json_is_string(value))
        return add_text_prompt(c, value, where, out, e);
    if (!json_is_array(value))
        return request_refuse(e, "prompt", "%s: expected a string or an array of token ids, found %s", where, json_type_name(value));
    if (json_array_size(value) == 0)
        return request_refuse(e, "prompt", "%s: the array is empty", where);
    return fields_token_ids(value, tokenizer_size(c->tokenizer), "prompt", where, out, e);
}

bool openai_completions_read(const openai_context *c, const json_t *body, api_request *r, openai_prompts *p, request_error *e)
{
    if (!read_fields(c, body, API_COMPLETIONS, r, e))
        return false;
    if (!r->prompt)
        return request_refuse(e, "prompt", "prompt: missing; expected a string, token ids, or an array of either");
    const json_t *first = json_array_get(r->prompt, 0);
    bool several = json_is_array(r->prompt) && !json_is_integer(first);
    size_t count = several ? json_array_size(r->prompt) : 1;
    if (count < 1 || count > OPENAI_PROMPTS_MOST || count * (size_t)r->spec.choices > OPENAI_CHOICES_MOST)
        return request_refuse(e, "prompt", "prompt: expected 1 to %d prompts and at most %d choices in all, found %zu with n = %d",
                              OPENAI_PROMPTS_MOST, OPENAI_CHOICES_MOST, count, r->spec.choices);
    p->tokens = mem_alloc(count, sizeof *p->tokens);
    if (!several)
        return add_prompt(c, r->prompt, "prompt", p, e);
    for (size_t i = 0; i < count; i++) {
        char where[32];
        snprintf(where, sizeof where, "prompt[%zu]", i);
        if (!add_prompt(c, json_array_get(r->prompt, i), where, p, e))
            return false;
    }
    return true;
}

void openai_prompts_free(openai_prompts *p)
{
    for (int i = 0; i < p->count; i++)
        token_list_free(&p->tokens[i]);
    free(p->tokens);
    *p = (openai_prompts){0};
}
