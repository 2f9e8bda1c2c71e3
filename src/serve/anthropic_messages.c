/* The messages of a Messages request in OpenAI's form.
 *
 *     user:      tool_result, tool_result, text, text   ->  tool, tool (in the order of the calls), user
 *     assistant: thinking, text, tool_use, tool_use     ->  assistant with reasoning_content, content, tool_calls
 *
 * Messages of the same role in a row are one turn, as in the API. Text blocks of the user, of a result and of the system prompt are
 * separated by an empty line; those of the assistant are what the model wrote and are joined as they are. The chat format has no ids: it
 * knows which result belongs to which call by their order, so results are sorted by it and must be complete. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "serve/anthropic_request.h"

enum { PATH_BYTES = 96, PLACE_BYTES = 64 };

typedef enum turn_role { TURN_NONE, TURN_USER, TURN_ASSISTANT } turn_role;

/* The conversation so far, and the turn being read. */
typedef struct conversion {
    json_t *out;      /* messages in OpenAI's form */
    turn_role role;
    size_t message;   /* index, for errors */
    char place[PLACE_BYTES]; /* of the block being read: messages[2].content[0] */
    bool has_words, has_reasoning;
    text words, reasoning;
    json_t *calls;    /* assistant: tool_calls */
    json_t *open;     /* array of the ids of the assistant's calls before this user turn */
    json_t *results;  /* user: id -> text */
    error *err;
} conversion;

static bool refuse(const conversion *c, const char *inner, const char *what)
{
    return error_set(c->err, ERROR_INPUT, "%s%s: %s", c->place, inner, what);
}

static bool refuse_type(const conversion *c, const char *inner, const char *expected, const json_t *found)
{
    return error_set(c->err, ERROR_INPUT, "%s%s: expected %s, found %s", c->place, inner, expected, json_type_name(found));
}

static void words_add(conversion *c, const json_t *string, const char *separator)
{
    if (c->has_words)
        text_add_text(&c->words, separator);
    text_add(&c->words, json_string_value(string), json_string_length(string));
    c->has_words = true;
}

static json_t *string_of(const text *t)
{
    return json_stringn(t->data ? t->data : "", t->length);
}

/* A block of type text: its words, or NULL when it is wrong. */
static const json_t *text_block(const json_t *block, const char *place, error *err)
{
    static const char *const keys[] = {"type", "text", "cache_control", "citations", NULL};
    const json_t *words = json_object_get(block, "text"), *citations = json_object_get(block, "citations");
    if (!anthropic_keys_check(block, place, keys, err) || !anthropic_cache_check(block, place, err))
        return NULL;
    if (json_array_size(citations) > 0 || (citations && !json_is_null(citations) && !json_is_array(citations))) {
        error_set(err, ERROR_INPUT, "%s.citations: there are no citations here; leave it out", place);
        return NULL;
    }
    if (!json_is_string(words)) {
        error_set(err, ERROR_INPUT, "%s.text: expected a string, found %s", place, json_type_name(words));
        return NULL;
    }
    return words;
}

/* The type of a block, or NULL when it has none. */
static const char *block_type(const json_t *block, const char *place, error *err)
{
    if (!json_is_object(block)) {
        error_set(err, ERROR_INPUT, "%s: expected an object with \"type\", found %s", place, json_type_name(block));
        return NULL;
    }
    const json_t *type = json_object_get(block, "type");
    if (!json_is_string(type))
        error_set(err, ERROR_INPUT, "%s.type: expected a string, found %s", place, json_type_name(type));
    return json_string_value(type);
}

static bool refuse_block(const char *place, const char *type, const char *who, error *err)
{
    static const char *const media[] = {"image", "document", "search_result", "container_upload"};
    for (size_t i = 0; i < sizeof media / sizeof *media; i++)
        if (strcmp(type, media[i]) == 0)
            return error_set(err, ERROR_INPUT, "%s.type: \"%s\" blocks are not supported, this model reads text only; send \"text\" blocks",
                             place, type);
    if (strcmp(type, "redacted_thinking") == 0)
        return error_set(err, ERROR_INPUT, "%s.type: \"redacted_thinking\" blocks cannot be read here; leave the block out", place);
    return error_set(err, ERROR_INPUT, "%s.type: \"%.60s\" blocks are not supported in %s", place, type, who);
}

/* ---- turns ---- */

static void assistant_end(conversion *c)
{
    json_t *m = json_pack("{s:s}", "role", "assistant");
    if (c->has_words || json_array_size(c->calls) == 0)
        json_object_set_new(m, "content", string_of(&c->words));
    if (c->has_reasoning && c->reasoning.length > 0)
        json_object_set_new(m, "reasoning_content", string_of(&c->reasoning));
    for (size_t i = 0; i < json_array_size(c->calls); i++)
        json_array_append(c->open, json_object_get(json_array_get(c->calls, i), "id"));
    if (json_array_size(c->calls) > 0)
        json_object_set_new(m, "tool_calls", json_copy(c->calls)); /* a copy: c->calls is emptied */
    json_array_append_new(c->out, m);
}

static bool user_end(conversion *c)
{
    for (size_t i = 0; i < json_array_size(c->open); i++) {
        const char *id = json_string_value(json_array_get(c->open, i));
        json_t *result = json_object_get(c->results, id);
        if (!result)
            return error_set(c->err, ERROR_INPUT, "messages[%zu]: the call \"%.60s\" of the message before has no tool_result here",
                             c->message, id);
        json_array_append_new(c->out, json_pack("{s:s, s:s, s:O}", "role", "tool", "tool_call_id", id, "content", result));
    }
    json_array_clear(c->open);
    if (c->has_words)
        json_array_append_new(c->out, json_pack("{s:s, s:o}", "role", "user", "content", string_of(&c->words)));
    return true;
}

static bool turn_end(conversion *c)
{
    bool ok = true;
    if (c->role == TURN_ASSISTANT)
        assistant_end(c);
    else if (c->role == TURN_USER)
        ok = user_end(c);
    c->has_words = c->has_reasoning = false;
    text_clear(&c->words);
    text_clear(&c->reasoning);
    json_array_clear(c->calls);
    json_object_clear(c->results);
    return ok;
}

/* ---- blocks of the assistant ---- */

static bool thinking_read(conversion *c, const json_t *block)
{
    static const char *const keys[] = {"type", "thinking", "signature", NULL};
    const json_t *thought = json_object_get(block, "thinking"), *signature = json_object_get(block, "signature");
    if (!anthropic_keys_check(block, c->place, keys, c->err))
        return false;
    if (!json_is_string(thought))
        return refuse_type(c, ".thinking", "a string", thought);
    if (signature && !json_is_string(signature) && !json_is_null(signature))
        return refuse_type(c, ".signature", "a string", signature);
    text_add(&c->reasoning, json_string_value(thought), json_string_length(thought));
    c->has_reasoning = true;
    return true;
}

static bool id_check(const conversion *c, const char *inner, const json_t *id)
{
    if (!json_is_string(id))
        return refuse_type(c, inner, "a string", id);
    if (json_string_length(id) == 0 || strlen(json_string_value(id)) != json_string_length(id))
        return refuse(c, inner, "must not be empty and have no NUL character");
    return true;
}

static bool tool_use_read(conversion *c, const json_t *block)
{
    static const char *const keys[] = {"type", "id", "name", "input", "cache_control", "caller", NULL};
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"), *input = json_object_get(block, "input");
    const json_t *caller = json_object_get(block, "caller"), *type = json_object_get(caller, "type");
    if (!anthropic_keys_check(block, c->place, keys, c->err) || !anthropic_cache_check(block, c->place, c->err) ||
        !id_check(c, ".id", id))
        return false;
    if (!json_is_string(name) || json_string_length(name) == 0)
        return refuse(c, ".name", "expected a string that is not empty");
    if (!json_is_object(input))
        return refuse_type(c, ".input", "an object", input);
    if (caller && !json_is_null(caller) && !(json_is_string(type) && strcmp(json_string_value(type), "direct") == 0))
        return refuse(c, ".caller", "only {\"type\": \"direct\"} is supported here");
    for (size_t i = 0; i < json_array_size(c->calls); i++)
        if (json_equal(json_object_get(json_array_get(c->calls, i), "id"), (json_t *)(uintptr_t)id))
            return refuse(c, ".id", "another tool_use block of this turn has the same id");
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", input);
    json_array_append_new(c->calls, call);
    return true;
}

static bool assistant_block_read(conversion *c, const json_t *block)
{
    const char *type = block_type(block, c->place, c->err);
    if (!type)
        return false;
    if (strcmp(type, "thinking") == 0)
        return thinking_read(c, block);
    if (strcmp(type, "tool_use") == 0)
        return tool_use_read(c, block);
    if (strcmp(type, "text") != 0)
        return refuse_block(c->place, type, "a message of the assistant", c->err);
    const json_t *words = text_block(block, c->place, c->err);
    if (words)
        words_add(c, words, "");
    return words != NULL;
}

/* ---- blocks of the user ---- */

/* A string, text blocks, or nothing. */
static bool result_text(const conversion *c, const json_t *content, text *out)
{
    if (!content || json_is_null(content))
        return true;
    if (json_is_string(content)) {
        text_add(out, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return refuse_type(c, ".content", "a string or an array of blocks", content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        char place[PATH_BYTES];
        snprintf(place, sizeof place, "%s.content[%zu]", c->place, i);
        const char *type = block_type(block, place, c->err);
        if (!type)
            return false;
        if (strcmp(type, "text") != 0)
            return refuse_block(place, type, "a tool_result", c->err);
        const json_t *words = text_block(block, place, c->err);
        if (!words)
            return false;
        text_add_text(out, i ? "\n\n" : "");
        text_add(out, json_string_value(words), json_string_length(words));
    }
    return true;
}

static bool open_call(const conversion *c, const json_t *id)
{
    for (size_t i = 0; i < json_array_size(c->open); i++)
        if (json_equal(json_array_get(c->open, i), (json_t *)(uintptr_t)id))
            return true;
    return false;
}

static bool tool_result_read(conversion *c, const json_t *block)
{
    static const char *const keys[] = {"type", "tool_use_id", "content", "is_error", "cache_control", NULL};
    const json_t *id = json_object_get(block, "tool_use_id"), *failed = json_object_get(block, "is_error");
    if (!anthropic_keys_check(block, c->place, keys, c->err) || !anthropic_cache_check(block, c->place, c->err) ||
        !id_check(c, ".tool_use_id", id))
        return false;
    if (failed && !json_is_null(failed) && !json_is_boolean(failed))
        return refuse_type(c, ".is_error", "true or false", failed);
    if (c->has_words)
        return refuse(c, "", "tool_result blocks must come before the text of their message");
    if (!open_call(c, id))
        return refuse(c, ".tool_use_id", "the message before has no tool_use block with this id");
    if (json_object_get(c->results, json_string_value(id)))
        return refuse(c, ".tool_use_id", "there are two results for this call");
    text words = {0};
    text_add_text(&words, json_is_true(failed) ? "Error: " : "");
    bool ok = result_text(c, json_object_get(block, "content"), &words);
    if (ok)
        json_object_set_new(c->results, json_string_value(id), string_of(&words));
    text_free(&words);
    return ok;
}

static bool user_block_read(conversion *c, const json_t *block)
{
    const char *type = block_type(block, c->place, c->err);
    if (!type)
        return false;
    if (strcmp(type, "tool_result") == 0)
        return tool_result_read(c, block);
    if (strcmp(type, "text") != 0)
        return refuse_block(c->place, type, "a message of the user", c->err);
    const json_t *words = text_block(block, c->place, c->err);
    if (words)
        words_add(c, words, "\n\n");
    return words != NULL;
}

/* ---- messages ---- */

static bool content_read(conversion *c, const json_t *content)
{
    if (json_is_string(content)) {
        words_add(c, content, c->role == TURN_USER ? "\n\n" : "");
        return true;
    }
    snprintf(c->place, sizeof c->place, "messages[%zu].content", c->message);
    if (!json_is_array(content))
        return refuse_type(c, "", "a string or an array of blocks", content);
    if (json_array_size(content) == 0)
        return refuse(c, "", "the array is empty; send at least one block");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        snprintf(c->place, sizeof c->place, "messages[%zu].content[%zu]", c->message, i);
        if (c->role == TURN_USER ? !user_block_read(c, block) : !assistant_block_read(c, block))
            return false;
    }
    return true;
}

static bool message_read(conversion *c, size_t index, const json_t *message)
{
    static const char *const keys[] = {"role", "content", NULL};
    char path[PLACE_BYTES];
    snprintf(path, sizeof path, "messages[%zu]", index);
    snprintf(c->place, sizeof c->place, "%s", path);
    if (!json_is_object(message))
        return refuse_type(c, "", "an object", message);
    const json_t *role = json_object_get(message, "role");
    const char *name = json_is_string(role) ? json_string_value(role) : "";
    turn_role next = strcmp(name, "user") == 0 ? TURN_USER : strcmp(name, "assistant") == 0 ? TURN_ASSISTANT : TURN_NONE;
    if (next == TURN_NONE)
        return refuse(c, ".role", "expected \"user\" or \"assistant\"; a system prompt goes into the field \"system\"");
    if (!anthropic_keys_check(message, path, keys, c->err))
        return false;
    if (next != c->role && !turn_end(c))
        return false;
    c->role = next;
    c->message = index;
    return content_read(c, json_object_get(message, "content"));
}

/* White space at the end of a prefill would be joined with the next token's, which the model has never seen. */
static bool prefill_check(const conversion *c)
{
    const json_t *calls = json_object_get(json_array_get(c->out, json_array_size(c->out) - 1), "tool_calls");
    const json_t *content = json_object_get(json_array_get(c->out, json_array_size(c->out) - 1), "content");
    size_t length = json_string_length(content);
    if (calls)
        return error_set(c->err, ERROR_INPUT, "messages[%zu]: the last message has a tool_use block; send its tool_result in a user "
                         "message", c->message);
    if (length > 0 && strchr(" \t\r\n\v\f", json_string_value(content)[length - 1]))
        return error_set(c->err, ERROR_INPUT, "messages[%zu].content: the last message is the assistant's and must not end with white "
                         "space", c->message);
    return true;
}

static bool messages_read(conversion *c, const json_t *messages)
{
    if (!json_is_array(messages))
        return error_set(c->err, ERROR_INPUT, "messages: expected an array, found %s", json_type_name(messages));
    if (json_array_size(messages) == 0)
        return error_set(c->err, ERROR_INPUT, "messages: the array is empty; send at least one message");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!message_read(c, i, json_array_get(messages, i)))
            return false;
    return turn_end(c) && (c->role != TURN_ASSISTANT || prefill_check(c));
}

static bool system_read(conversion *c, const json_t *system)
{
    if (!system || json_is_null(system))
        return true;
    if (!json_is_string(system) && !json_is_array(system))
        return error_set(c->err, ERROR_INPUT, "system: expected a string or an array of text blocks, found %s", json_type_name(system));
    if (json_is_string(system))
        words_add(c, system, "");
    for (size_t i = 0; i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i), *words;
        char place[PLACE_BYTES];
        snprintf(place, sizeof place, "system[%zu]", i);
        const char *type = block_type(block, place, c->err);
        if (!type)
            return false;
        if (strcmp(type, "text") != 0)
            return refuse_block(place, type, "a system prompt", c->err);
        if (!(words = text_block(block, place, c->err)))
            return false;
        words_add(c, words, "\n\n");
    }
    if (c->words.length > 0)
        json_array_append_new(c->out, json_pack("{s:s, s:o}", "role", "system", "content", string_of(&c->words)));
    c->has_words = false;
    text_clear(&c->words);
    return true;
}

json_t *anthropic_messages_convert(const json_t *messages, const json_t *system, bool *prefill, error *err)
{
    conversion c = {.out = json_array(), .calls = json_array(), .open = json_array(), .results = json_object(), .err = err};
    bool ok = system_read(&c, system) && messages_read(&c, messages);
    *prefill = c.role == TURN_ASSISTANT;
    text_free(&c.words);
    text_free(&c.reasoning);
    json_decref(c.calls);
    json_decref(c.open);
    json_decref(c.results);
    if (!ok) {
        json_decref(c.out);
        return NULL;
    }
    return c.out;
}
