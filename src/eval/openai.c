#include "eval/openai.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static const char where[] = "the server's answer";

/* Adds an owned value; a NULL value (text that is not UTF-8, no memory) is remembered in *ok. */
static void put(json_t *object, const char *key, json_t *value, bool *ok)
{
    if (json_object_set_new(object, key, value) != 0)
        *ok = false;
}

static void put_sampling(json_t *body, const openai_query *q, bool *ok)
{
    if (q->temperature >= 0)
        put(body, "temperature", json_real(q->temperature), ok);
    if (q->top_p > 0)
        put(body, "top_p", json_real(q->top_p), ok);
    if (q->max_tokens > 0)
        put(body, "max_tokens", json_integer(q->max_tokens), ok);
    if (q->seed >= 0)
        put(body, "seed", json_integer(q->seed), ok);
    if (q->stop_count > 0) {
        json_t *stop = json_array();
        for (int i = 0; i < q->stop_count; i++)
            if (json_array_append_new(stop, json_string(q->stop[i])) != 0)
                *ok = false;
        put(body, "stop", stop, ok);
    }
}

static void put_chat(json_t *body, const openai_query *q, bool *ok)
{
    put(body, "messages", json_deep_copy(q->messages), ok);
    if (q->tools && json_array_size(q->tools) > 0)
        put(body, "tools", json_deep_copy(q->tools), ok);
    if (q->reasoning_effort)
        put(body, "reasoning_effort", json_string(q->reasoning_effort), ok);
    if (q->enable_thinking != CHAT_UNSET)
        put(body, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", q->enable_thinking == CHAT_TRUE), ok);
}

bool openai_query_body(const openai_query *q, text *out, error *err)
{
    bool ok = true;
    json_t *body = json_object();
    put(body, "model", json_string(q->model), &ok);
    if (q->messages)
        put_chat(body, q, &ok);
    else
        put(body, "prompt", json_string(q->prompt), &ok);
    put_sampling(body, q, &ok);
    put(body, "stream", json_false(), &ok);
    char *bytes = ok ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    text_clear(out);
    if (!bytes)
        return error_set(err, ERROR_INPUT, "the request cannot be written as JSON: a text in it is not valid UTF-8");
    text_add_text(out, bytes);
    free(bytes);
    return true;
}

/* An optional text of an object: absent and null leave out empty. NUL characters are kept. */
static bool take_text(const json_t *object, const char *key, text *out, error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return true;
    if (!json_is_string(v))
        return error_set(err, ERROR_INPUT, "%s: \"%s\" must be a string, found %s", where, key, json_type_name(v));
    text_add(out, json_string_value(v), json_string_length(v));
    return true;
}

/* The arguments of a call: a text that holds a JSON object, or the object itself as some servers send it. */
static json_t *arguments_of(const json_t *function)
{
    json_t *v = json_object_get(function, "arguments");
    if (json_is_string(v)) {
        error ignored = {0};
        json_t *parsed = json_parse(json_string_value(v), json_string_length(v), "arguments", &ignored);
        if (json_is_object(parsed))
            return parsed;
        json_decref(parsed);
    }
    return json_is_object(v) ? json_incref(v) : json_null();
}

static bool take_calls(const json_t *message, json_t *calls, error *err)
{
    const json_t *list = json_object_get(message, "tool_calls"), *call;
    size_t i;
    if (!list || json_is_null(list))
        return true;
    if (!json_is_array(list))
        return error_set(err, ERROR_INPUT, "%s: \"tool_calls\" must be an array, found %s", where, json_type_name(list));
    json_array_foreach (list, i, call) {
        const json_t *function = json_object_get(call, "function");
        json_t *name = json_object_get(function, "name");
        if (!json_is_string(name))
            return error_set(err, ERROR_INPUT, "%s: tool_calls[%zu] has no function.name", where, i);
        json_t *taken = json_object();
        json_object_set(taken, "name", name);
        json_object_set_new(taken, "arguments", arguments_of(function));
        json_array_append_new(calls, taken);
    }
    return true;
}

static openai_finish finish_of(const json_t *choice)
{
    const char *reason = json_string_value(json_object_get(choice, "finish_reason"));
    if (!reason)
        return OPENAI_FINISH_OTHER;
    if (strcmp(reason, "stop") == 0)
        return OPENAI_FINISH_STOP;
    if (strcmp(reason, "length") == 0)
        return OPENAI_FINISH_LENGTH;
    return strcmp(reason, "tool_calls") == 0 ? OPENAI_FINISH_CALLS : OPENAI_FINISH_OTHER;
}

static int64_t count_of(const json_t *usage, const char *key)
{
    const json_t *v = json_object_get(usage, key);
    return json_is_integer(v) && json_integer_value(v) >= 0 ? json_integer_value(v) : -1;
}

static bool take_choice(const json_t *choice, openai_answer *out, error *err)
{
    const json_t *message = json_object_get(choice, "message");
    out->finish = finish_of(choice);
    if (json_is_string(json_object_get(choice, "text")))
        return take_text(choice, "text", &out->content, err);
    if (!json_is_object(message))
        return error_set(err, ERROR_INPUT, "%s: choices[0] has neither a message nor a text", where);
    const char *reasoning = json_has((json_source){message, where}, "reasoning_content") ? "reasoning_content" : "reasoning";
    return take_text(message, "content", &out->content, err) && take_text(message, reasoning, &out->reasoning, err) &&
           take_calls(message, out->calls, err);
}

bool openai_answer_parse(const char *bytes, size_t count, openai_answer *out, error *err)
{
    openai_answer_free(out);
    json_t *root = json_parse(bytes, count, where, err);
    if (!root)
        return false;
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *usage = json_object_get(root, "usage");
    out->calls = json_array();
    out->prompt_tokens = count_of(usage, "prompt_tokens");
    out->completion_tokens = count_of(usage, "completion_tokens");
    text_add(&out->content, "", 0);
    text_add(&out->reasoning, "", 0);
    bool ok = choice ? take_choice(choice, out, err)
                     : error_set(err, ERROR_INPUT, "%s has no \"choices\"; is this an OpenAI-compatible server?", where);
    json_decref(root);
    if (!ok)
        openai_answer_free(out);
    return ok;
}

void openai_answer_free(openai_answer *a)
{
    text_free(&a->content);
    text_free(&a->reasoning);
    json_decref(a->calls);
    *a = (openai_answer){0};
}

bool openai_models_parse(const char *bytes, size_t count, text *name, error *err)
{
    text_clear(name);
    json_t *root = json_parse(bytes, count, "the server's list of models", err);
    if (!root)
        return false;
    const json_t *id = json_object_get(json_array_get(json_object_get(root, "data"), 0), "id");
    bool ok = json_is_string(id) && json_string_length(id) > 0;
    if (ok)
        text_add(name, json_string_value(id), json_string_length(id));
    else
        error_set(err, ERROR_INPUT, "the server's list of models is empty or has no \"id\"; name the model yourself");
    json_decref(root);
    return ok;
}
