/* Checks a conversation in OpenAI's form and reduces it to what the renderer needs. Errors name the place as a path,
 * messages[3].tool_calls[0].function.name. What a template would print as nonsense or leave out is refused here. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/chat_internal.h"
#include "model/python_json.h"

enum { PATH_BYTES = 128 };

/* What the readers of one message share. */
typedef struct reading {
    chat_conversation *c;
    const chat_rules *rules;
    const json_t *tools; /* NULL: none */
    size_t message;      /* index */
    const json_t *value; /* the message */
    error *err;
} reading;

/* Sets an error that begins with a path and returns false. */
static bool refuse(const reading *r, const char *path, const char *what)
{
    return error_set(r->err, ERROR_INPUT, "messages[%zu]%s: %s", r->message, path, what);
}

static bool refuse_type(const reading *r, const char *path, const char *expected, const json_t *found)
{
    return error_set(r->err, ERROR_INPUT, "messages[%zu]%s: expected %s, found %s", r->message, path, expected,
                     json_type_name(found));
}

static view string_view(const json_t *value)
{
    return (view){json_string_value(value), json_string_length(value)};
}

static const json_t *present(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_null(v) ? NULL : v;
}

static view keep_text(chat_conversation *c, text *t)
{
    view v = {arena_copy(&c->memory, t->data ? t->data : "", t->length), t->length};
    text_free(t);
    return v;
}

/* "image", "video" or "audio" for the types of such parts; NULL for others. */
static const char *media_of(const char *type)
{
    static const char *const types[][2] = {{"image", "image"}, {"image_url", "image"}, {"video", "video"},
        {"video_url", "video"}, {"audio", "audio"}, {"audio_url", "audio"}, {"input_audio", "audio"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i][0], type) == 0)
            return types[i][1];
    return NULL;
}

/* Adds what is visible of one part of a content list. */
static bool part_read(const reading *r, size_t index, const json_t *part, text *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, ".content[%zu]", index);
    if (json_is_string(part)) {
        text_add(out, json_string_value(part), json_string_length(part));
        return true;
    }
    if (!json_is_object(part))
        return refuse_type(r, path, "a string or an object with \"type\"", part);
    const json_t *type = json_object_get(part, "type"), *words = json_object_get(part, "text");
    snprintf(path, sizeof path, ".content[%zu].type", index);
    if (!json_is_string(type))
        return refuse_type(r, path, "a string", type);
    const char *media = media_of(json_string_value(type));
    if (media && r->rules->reminds_of_media) {
        text_add_format(out, "<reminder>You are unable to process this %s because you don't have multi-modal input ability. "
                        "Try different methods.</reminder>", media);
        return true;
    }
    if (strcmp(json_string_value(type), "text") != 0)
        return error_set(r->err, ERROR_INPUT, "messages[%zu]%s: \"%.40s\" parts are not supported by this model's chat format; "
                         "send parts of type \"text\"", r->message, path, json_string_value(type));
    snprintf(path, sizeof path, ".content[%zu].text", index);
    if (!json_is_string(words))
        return refuse_type(r, path, "a string", words);
    text_add(out, json_string_value(words), json_string_length(words));
    return true;
}

/* The visible text of a string or a list of parts. */
static bool content_read(const reading *r, const json_t *content, view *out)
{
    if (json_is_string(content)) {
        *out = string_view(content);
        return true;
    }
    if (!json_is_array(content))
        return refuse_type(r, ".content", "a string or an array of parts", content);
    text joined = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(content); i++)
        ok = part_read(r, i, json_array_get(content, i), &joined);
    *out = keep_text(r->c, &joined);
    return ok;
}

/* Arguments as an object: given as one, as JSON text, or not at all. */
static bool arguments_read(const reading *r, const char *path, const json_t *given, const json_t **out)
{
    if (!given || json_is_null(given) || (json_is_string(given) && json_string_length(given) == 0)) {
        json_t *empty = json_object();
        json_array_append_new(r->c->parsed, empty);
        *out = empty;
        return true;
    }
    *out = given;
    if (json_is_string(given)) {
        char where[PATH_BYTES + 32];
        snprintf(where, sizeof where, "messages[%zu]%s", r->message, path);
        json_t *parsed = json_parse(json_string_value(given), json_string_length(given), where, r->err);
        if (!parsed)
            return false;
        json_array_append_new(r->c->parsed, parsed);
        *out = parsed;
    }
    return json_is_object(*out) || refuse_type(r, path, "a JSON object (or its text)", *out);
}

static bool call_read(const reading *r, size_t index, const json_t *value, chat_call *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, ".tool_calls[%zu]", index);
    if (!json_is_object(value))
        return refuse_type(r, path, "an object", value);
    const json_t *function = present(value, "function");
    const char *inner = function ? ".function" : "";
    snprintf(path, sizeof path, ".tool_calls[%zu]%s", index, inner);
    if (function && !json_is_object(function))
        return refuse_type(r, path, "an object", function);
    function = function ? function : value;
    const json_t *name = json_object_get(function, "name");
    snprintf(path, sizeof path, ".tool_calls[%zu]%s.name", index, inner);
    if (!json_is_string(name) || json_string_length(name) == 0)
        return refuse_type(r, path, "a string that is not empty", name);
    out->name = string_view(name);
    snprintf(path, sizeof path, ".tool_calls[%zu]%s.arguments", index, inner);
    return arguments_read(r, path, json_object_get(function, "arguments"), &out->arguments);
}

static bool calls_read(const reading *r, const json_t *calls, chat_turn *turn)
{
    if (!json_is_array(calls))
        return refuse_type(r, ".tool_calls", "an array", calls);
    turn->call_count = json_array_size(calls);
    turn->calls = arena_alloc(&r->c->memory, turn->call_count, sizeof *turn->calls);
    for (size_t i = 0; i < turn->call_count; i++)
        if (!call_read(r, i, json_array_get(calls, i), &turn->calls[i]))
            return false;
    return true;
}

static bool assistant_read(const reading *r, chat_turn *turn)
{
    const json_t *content = present(r->value, "content"), *reasoning = present(r->value, "reasoning_content");
    const json_t *calls = present(r->value, "tool_calls");
    if (!content && !reasoning && !calls)
        return refuse(r, "", "an assistant message needs \"content\", \"reasoning_content\" or \"tool_calls\"");
    if (reasoning && !json_is_string(reasoning))
        return refuse_type(r, ".reasoning_content", "a string", reasoning);
    turn->has_reasoning = reasoning != NULL;
    if (reasoning)
        turn->reasoning = string_view(reasoning);
    return (!content || content_read(r, content, &turn->content)) && (!calls || calls_read(r, calls, turn));
}

/* The object that names a tool: its "function", or the tool itself. */
static const json_t *tool_function(const json_t *tool)
{
    const json_t *function = json_object_get(tool, "function");
    return function ? function : tool;
}

void chat_tool_add(text *out, const chat_rules *r, const json_t *tool)
{
    const json_t *printed = r->whole_tools ? tool : tool_function(tool), *value;
    const char *key;
    if (!r->filtered_tools) {
        python_json_add(out, printed);
        return;
    }
    const char *separator = "";
    text_add_char(out, '{');
    json_object_foreach((json_t *)(uintptr_t)printed, key, value) {
        if (strcmp(key, "defer_loading") == 0 || strcmp(key, "strict") == 0)
            continue;
        text_add_format(out, "%s\"%s\": ", separator, key); /* the template does not escape these keys either */
        python_json_add(out, value);
        separator = ", ";
    }
    text_add_char(out, '}');
}

/* A response that describes the tools a list of references names. */
static bool references_read(const reading *r, const json_t *content, view *out)
{
    text described = {0};
    bool ok = true;
    text_add_text(&described, "<tools>\n");
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const json_t *item = json_array_get(content, i), *name = json_object_get(item, "name");
        const json_t *type = json_object_get(item, "type");
        bool known = false;
        for (size_t k = 0; json_is_string(name) && k < json_array_size(r->tools); k++) {
            const json_t *tool = json_array_get(r->tools, k);
            if (!json_equal(json_object_get(tool_function(tool), "name"), name))
                continue;
            known = true;
            chat_tool_add(&described, r->rules, tool);
            text_add_char(&described, '\n');
        }
        if (!known || !json_is_string(type) || strcmp(json_string_value(type), "tool_reference") != 0)
            ok = error_set(r->err, ERROR_INPUT, "messages[%zu].content[%zu]: expected {\"type\": \"tool_reference\", \"name\": "
                           "the name of one of the tools}", r->message, i);
    }
    text_add_text(&described, "</tools>");
    *out = keep_text(r->c, &described);
    return ok;
}

/* One response for each item of a list of {"output": text}, or of strings where the format allows it. */
static bool outputs_read(const reading *r, const json_t *content, chat_turn *turn)
{
    turn->response_count = json_array_size(content);
    turn->responses = arena_alloc(&r->c->memory, turn->response_count, sizeof *turn->responses);
    turn->own_observation = r->rules->response_per_item;
    for (size_t i = 0; i < turn->response_count; i++) {
        const json_t *item = json_array_get(content, i), *output = json_object_get(item, "output");
        if (r->rules->response_per_item && json_is_string(item))
            output = item;
        char path[PATH_BYTES];
        snprintf(path, sizeof path, ".content[%zu].output", i);
        if (!json_is_string(output))
            return refuse_type(r, path, "a string", output);
        turn->responses[i] = string_view(output);
    }
    return true;
}

static bool tool_read(const reading *r, chat_turn *turn)
{
    const json_t *content = json_object_get(r->value, "content");
    const json_t *first = json_array_get(content, 0), *type = json_object_get(first, "type");
    if (json_is_array(content) && !first)
        return refuse(r, ".content", "the array is empty; send \"\" when the tool returned nothing");
    bool references = json_is_string(type) && strcmp(json_string_value(type), "tool_reference") == 0;
    if (!(references && r->rules->tool_references)) {
        if (r->rules->response_lists && json_object_get(first, "output"))
            return outputs_read(r, content, turn);
        if (r->rules->response_per_item && json_is_string(first))
            return outputs_read(r, content, turn);
    }
    turn->response_count = 1;
    turn->responses = arena_alloc(&r->c->memory, 1, sizeof *turn->responses);
    if (references && r->rules->tool_references)
        return references_read(r, content, turn->responses);
    return content_read(r, content, turn->responses);
}

static bool role_read(const reading *r, chat_role *out)
{
    static const char *const names[] = {"system", "user", "assistant", "tool"};
    const json_t *role = json_object_get(r->value, "role");
    if (!json_is_string(role))
        return refuse_type(r, ".role", "\"system\", \"user\", \"assistant\" or \"tool\"", role);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], json_string_value(role)) != 0)
            continue;
        *out = (chat_role)i;
        return true;
    }
    return error_set(r->err, ERROR_INPUT, "messages[%zu].role: expected \"system\", \"user\", \"assistant\" or \"tool\", found "
                     "\"%.40s\"", r->message, json_string_value(role));
}

static bool message_read(const reading *r, chat_turn *turn)
{
    if (!json_is_object(r->value))
        return refuse_type(r, "", "an object", r->value);
    if (!role_read(r, &turn->role))
        return false;
    if (turn->role == CHAT_ROLE_ASSISTANT)
        return assistant_read(r, turn);
    if (json_array_size(json_object_get(r->value, "tool_calls")) > 0)
        return refuse(r, ".tool_calls", "only an assistant message can have tool calls");
    if (turn->role == CHAT_ROLE_TOOL)
        return tool_read(r, turn);
    return content_read(r, json_object_get(r->value, "content"), &turn->content);
}

/* What Python takes for true. */
static bool truthy(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT: return json_object_size(v) > 0;
    case JSON_ARRAY: return json_array_size(v) > 0;
    case JSON_STRING: return json_string_length(v) > 0;
    case JSON_INTEGER: return json_integer_value(v) != 0;
    case JSON_REAL: return json_real_value(v) != 0;
    default: return json_is_true(v);
    }
}

static bool tools_read(chat_conversation *c, const chat_rules *rules, const json_t *tools, error *err)
{
    if (!tools || json_is_null(tools))
        return true;
    if (!json_is_array(tools))
        return error_set(err, ERROR_INPUT, "tools: expected an array, found %s", json_type_name(tools));
    size_t count = json_array_size(tools);
    c->has_tools = count > 0;
    c->tools = arena_alloc(&c->memory, count, sizeof *c->tools);
    for (size_t i = 0; i < count; i++) {
        const json_t *tool = json_array_get(tools, i), *function = tool_function(tool);
        if (!json_is_object(tool) || !json_is_object(function))
            return error_set(err, ERROR_INPUT, "tools[%zu]: expected {\"type\": \"function\", \"function\": {...}}, found %s", i,
                             json_type_name(json_is_object(tool) ? function : tool));
        const json_t *name = json_object_get(function, "name");
        if (!json_is_string(name) || json_string_length(name) == 0)
            return error_set(err, ERROR_INPUT, "tools[%zu]%s.name: expected a string that is not empty, found %s", i,
                             function == tool ? "" : ".function", json_type_name(name));
        if (!rules->filtered_tools || !truthy(json_object_get(function, "defer_loading")))
            c->tools[c->tool_count++] = tool;
    }
    return true;
}

bool chat_conversation_read(chat_conversation *c, const chat_rules *rules, const json_t *messages, const json_t *tools,
                            error *err)
{
    if (!json_is_array(messages))
        return error_set(err, ERROR_INPUT, "messages: expected an array, found %s", json_type_name(messages));
    if (json_array_size(messages) == 0)
        return error_set(err, ERROR_INPUT, "messages: the array is empty; send at least one message");
    if (!tools_read(c, rules, tools, err))
        return false;
    c->parsed = json_array();
    c->count = json_array_size(messages);
    c->turns = arena_alloc(&c->memory, c->count, sizeof *c->turns);
    for (size_t i = 0; i < c->count; i++) {
        reading r = {.c = c, .rules = rules, .tools = tools, .message = i, .value = json_array_get(messages, i), .err = err};
        if (!message_read(&r, &c->turns[i]))
            return false;
    }
    return true;
}

void chat_conversation_free(chat_conversation *c)
{
    json_decref(c->parsed);
    arena_free(&c->memory);
    *c = (chat_conversation){0};
}
