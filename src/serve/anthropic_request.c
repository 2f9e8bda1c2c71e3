/* The fields of a Messages request: one row of a table and one reader each. */
#include "serve/anthropic_request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { PATH_BYTES = 96 };

/* ---- helpers ---- */

static bool refuse_type(const char *path, const char *expected, const json_t *found, error *err)
{
    return error_set(err, ERROR_INPUT, "%s: expected %s, found %s", path, expected, json_type_name(found));
}

/* Whether value is a string of the list (ended by NULL); the error gives all of them. */
static bool word_check(const json_t *value, const char *path, const char *const *words, error *err)
{
    text list = {0};
    for (size_t i = 0; words[i]; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), words[i]) == 0) {
            text_free(&list);
            return true;
        }
        text_add_format(&list, "%s\"%s\"", i ? ", " : "", words[i]);
    }
    if (json_is_string(value))
        error_set(err, ERROR_INPUT, "%s: \"%.60s\" is not one of %s", path, json_string_value(value), list.data);
    else
        error_set(err, ERROR_INPUT, "%s: expected one of %s, found %s", path, list.data, json_type_name(value));
    text_free(&list);
    return false;
}

bool anthropic_keys_check(const json_t *object, const char *path, const char *const *allowed, error *err)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        bool known = false;
        for (size_t i = 0; allowed[i] && !known; i++)
            known = strcmp(key, allowed[i]) == 0;
        if (!known && !json_is_null(value))
            return error_set(err, ERROR_INPUT, "%s.%.60s: not supported here; leave it out", path, key);
    }
    return true;
}

bool anthropic_cache_check(const json_t *holder, const char *path, error *err)
{
    static const char *const keys[] = {"type", "ttl", "scope", NULL};
    static const char *const types[] = {"ephemeral", NULL}, *const ttls[] = {"5m", "1h", NULL};
    const json_t *value = json_object_get(holder, "cache_control"), *ttl = json_object_get(value, "ttl");
    char place[PATH_BYTES], inner[PATH_BYTES + 8];
    if (!value || json_is_null(value))
        return true;
    snprintf(place, sizeof place, "%s%scache_control", path, path[0] ? "." : "");
    if (!json_is_object(value))
        return refuse_type(place, "an object", value, err);
    snprintf(inner, sizeof inner, "%s.type", place);
    if (!anthropic_keys_check(value, place, keys, err) || !word_check(json_object_get(value, "type"), inner, types, err))
        return false;
    snprintf(inner, sizeof inner, "%s.ttl", place);
    return !ttl || json_is_null(ttl) || word_check(ttl, inner, ttls, err);
}

static bool read_number(const json_t *value, const char *path, double least, double most, double *out, error *err)
{
    if (!json_is_number(value))
        return refuse_type(path, "a number", value, err);
    *out = json_number_value(value);
    if (!(*out >= least && *out <= most))
        return error_set(err, ERROR_INPUT, "%s: must be from %g to %g, found %g", path, least, most, *out);
    return true;
}

static bool read_integer(const json_t *value, const char *path, json_int_t least, int *out, error *err)
{
    if (!json_is_integer(value))
        return refuse_type(path, "an integer", value, err);
    json_int_t n = json_integer_value(value);
    if (n < least || n > INT32_MAX)
        return error_set(err, ERROR_INPUT, "%s: must be from %lld to %d, found %lld", path, (long long)least, INT32_MAX, (long long)n);
    *out = (int)n;
    return true;
}

/* ---- the fields ---- */

static bool read_model(anthropic_request *r, const json_t *value, error *err)
{
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return refuse_type("model", "a string", value, err);
    r->model = json_string_value(value);
    return true;
}

static bool read_max_tokens(anthropic_request *r, const json_t *value, error *err)
{
    return read_integer(value, "max_tokens", 1, &r->max_tokens, err);
}

static bool read_stream(anthropic_request *r, const json_t *value, error *err)
{
    if (!json_is_boolean(value))
        return refuse_type("stream", "true or false", value, err);
    r->stream = json_is_true(value);
    return true;
}

static bool read_temperature(anthropic_request *r, const json_t *value, error *err)
{
    return read_number(value, "temperature", 0, 1, &r->temperature, err);
}

static bool read_top_p(anthropic_request *r, const json_t *value, error *err)
{
    if (!read_number(value, "top_p", 0, 1, &r->top_p, err))
        return false;
    return r->top_p > 0 || error_set(err, ERROR_INPUT, "top_p: must be greater than 0; for the most likely token send temperature 0");
}

static bool read_top_k(anthropic_request *r, const json_t *value, error *err)
{
    return read_integer(value, "top_k", 0, &r->top_k, err);
}

static bool read_stops(anthropic_request *r, const json_t *value, error *err)
{
    if (!json_is_array(value))
        return refuse_type("stop_sequences", "an array of strings", value, err);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *stop = json_array_get(value, i);
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "stop_sequences[%zu]", i);
        if (!json_is_string(stop))
            return refuse_type(path, "a string", stop, err);
        if (json_string_length(stop) == 0 || strlen(json_string_value(stop)) != json_string_length(stop))
            return error_set(err, ERROR_INPUT, "%s: must be a string that is not empty and has no NUL character", path);
    }
    r->stops = json_array_size(value) ? value : NULL;
    return true;
}

static bool read_metadata(anthropic_request *r, const json_t *value, error *err)
{
    static const char *const keys[] = {"user_id", NULL};
    (void)r;
    if (!json_is_object(value))
        return refuse_type("metadata", "an object", value, err);
    const json_t *user = json_object_get(value, "user_id");
    if (user && !json_is_string(user) && !json_is_null(user))
        return refuse_type("metadata.user_id", "a string", user, err);
    return anthropic_keys_check(value, "metadata", keys, err);
}

static bool read_service_tier(anthropic_request *r, const json_t *value, error *err)
{
    static const char *const tiers[] = {"auto", "standard_only", NULL};
    (void)r;
    return word_check(value, "service_tier", tiers, err);
}

static bool read_thinking(anthropic_request *r, const json_t *value, error *err)
{
    static const char *const keys[] = {"type", "budget_tokens", "display", NULL};
    static const char *const types[] = {"enabled", "disabled", "adaptive", NULL}, *const displays[] = {"summarized", "omitted", NULL};
    if (!json_is_object(value))
        return refuse_type("thinking", "an object", value, err);
    const json_t *budget = json_object_get(value, "budget_tokens"), *display = json_object_get(value, "display");
    if (!anthropic_keys_check(value, "thinking", keys, err) || !word_check(json_object_get(value, "type"), "thinking.type", types, err))
        return false;
    const char *type = json_string_value(json_object_get(value, "type"));
    r->thinking = strcmp(type, "disabled") == 0 ? ANTHROPIC_THINKING_OFF : ANTHROPIC_THINKING_ON;
    bool has_budget = budget && !json_is_null(budget), enabled = strcmp(type, "enabled") == 0;
    if (has_budget != enabled)
        return error_set(err, ERROR_INPUT, "thinking.budget_tokens: goes with the type \"enabled\" and with no other");
    if (has_budget && !read_integer(budget, "thinking.budget_tokens", ANTHROPIC_THINKING_LEAST, &r->budget, err))
        return false;
    if (!display || json_is_null(display))
        return true;
    if (r->thinking == ANTHROPIC_THINKING_OFF)
        return error_set(err, ERROR_INPUT, "thinking.display: does not go with the type \"disabled\"");
    r->hides_thinking = json_is_string(display) && strcmp(json_string_value(display), "omitted") == 0;
    return word_check(display, "thinking.display", displays, err);
}

static bool read_output_config(anthropic_request *r, const json_t *value, error *err)
{
    static const char *const keys[] = {"effort", NULL}, *const efforts[] = {"low", "medium", "high", "xhigh", "max", NULL};
    if (!json_is_object(value))
        return refuse_type("output_config", "an object", value, err);
    const json_t *effort = json_object_get(value, "effort");
    if (!anthropic_keys_check(value, "output_config", keys, err))
        return false;
    if (!effort || json_is_null(effort))
        return true;
    r->effort = json_string_value(effort);
    return word_check(effort, "output_config.effort", efforts, err);
}

/* {"type": "clear_thinking_20251015", "keep": "all" or {"type": "thinking_turns", "value": 1}}; keep left out is the latter. */
static bool read_edit(anthropic_request *r, const json_t *edit, error *err)
{
    static const char *const keys[] = {"type", "keep", NULL}, *const types[] = {"clear_thinking_20251015", NULL};
    if (!json_is_object(edit))
        return refuse_type("context_management.edits[0]", "an object", edit, err);
    const json_t *keep = json_object_get(edit, "keep");
    if (!word_check(json_object_get(edit, "type"), "context_management.edits[0].type", types, err) ||
        !anthropic_keys_check(edit, "context_management.edits[0]", keys, err))
        return false;
    const json_t *type = json_object_get(keep, "type"), *turns = json_object_get(keep, "value");
    bool all = (json_is_string(keep) && strcmp(json_string_value(keep), "all") == 0) ||
               (json_is_string(type) && strcmp(json_string_value(type), "all") == 0);
    bool last = !keep || json_is_null(keep) || (json_is_string(type) && strcmp(json_string_value(type), "thinking_turns") == 0 &&
                                                json_is_integer(turns) && json_integer_value(turns) == 1);
    if (!all && !last)
        return error_set(err, ERROR_INPUT, "context_management.edits[0].keep: the model's chat format can keep the thinking of all turns "
                         "(\"all\") or of the last one ({\"type\": \"thinking_turns\", \"value\": 1})");
    r->clear_thinking = all ? CHAT_FALSE : CHAT_TRUE;
    return true;
}

static bool read_context_management(anthropic_request *r, const json_t *value, error *err)
{
    static const char *const keys[] = {"edits", NULL};
    if (!json_is_object(value))
        return refuse_type("context_management", "an object", value, err);
    const json_t *edits = json_object_get(value, "edits");
    if (!anthropic_keys_check(value, "context_management", keys, err))
        return false;
    if (!edits || json_is_null(edits))
        return true;
    if (!json_is_array(edits) || json_array_size(edits) > 1)
        return error_set(err, ERROR_INPUT, "context_management.edits: expected an array of at most one edit, clear_thinking_20251015");
    return json_array_size(edits) == 0 || read_edit(r, json_array_get(edits, 0), err);
}

/* ---- tools ---- */

static bool tool_name_check(const json_t *name, const char *path, error *err)
{
    size_t bytes = json_string_length(name);
    if (!json_is_string(name))
        return refuse_type(path, "a string", name, err);
    const char *s = json_string_value(name);
    bool plain = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == bytes;
    if (bytes == 0 || bytes > ANTHROPIC_TOOL_NAME_MOST || !plain)
        return error_set(err, ERROR_INPUT, "%s: must be 1 to %d letters, digits, _ and -, found \"%.80s\"", path,
                         ANTHROPIC_TOOL_NAME_MOST, s);
    return true;
}

static bool tool_type_check(const json_t *tool, const char *path, error *err)
{
    const json_t *type = json_object_get(tool, "type");
    if (!type || json_is_null(type))
        return true;
    if (!json_is_string(type))
        return error_set(err, ERROR_INPUT, "%s.type: expected a string, found %s", path, json_type_name(type));
    if (strcmp(json_string_value(type), "custom") == 0)
        return true;
    return error_set(err, ERROR_INPUT, "%s.type: the tool \"%.60s\" is run by Anthropic's servers or defined by them and does not exist "
                     "here; send tools of type \"custom\" with an input_schema", path, json_string_value(type));
}

/* Switches of a tool that may only have one value here. */
static bool tool_switches_check(const json_t *tool, const char *path, error *err)
{
    static const char *const off[] = {"strict", "defer_loading"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const json_t *value = json_object_get(tool, off[i]);
        if (value && !json_is_null(value) && !json_is_false(value))
            return error_set(err, ERROR_INPUT, "%s.%s: only false is supported here", path, off[i]);
    }
    const json_t *eager = json_object_get(tool, "eager_input_streaming"), *callers = json_object_get(tool, "allowed_callers");
    if (eager && !json_is_null(eager) && !json_is_boolean(eager))
        return error_set(err, ERROR_INPUT, "%s.eager_input_streaming: expected true or false, found %s", path, json_type_name(eager));
    for (size_t i = 0; i < json_array_size(callers); i++) {
        const json_t *caller = json_array_get(callers, i);
        if (!json_is_string(caller) || strcmp(json_string_value(caller), "direct") != 0)
            return error_set(err, ERROR_INPUT, "%s.allowed_callers[%zu]: only \"direct\" is supported here", path, i);
    }
    return true;
}

static json_t *tool_convert(const json_t *tool, const char *path, error *err)
{
    static const char *const keys[] = {"name", "description", "input_schema", "type", "cache_control", "strict", "defer_loading",
                                       "eager_input_streaming", "allowed_callers", NULL};
    char inner[PATH_BYTES + 16];
    if (!json_is_object(tool)) {
        refuse_type(path, "an object", tool, err);
        return NULL;
    }
    snprintf(inner, sizeof inner, "%s.name", path);
    const json_t *name = json_object_get(tool, "name"), *description = json_object_get(tool, "description");
    const json_t *schema = json_object_get(tool, "input_schema");
    if (!tool_type_check(tool, path, err) || !anthropic_keys_check(tool, path, keys, err) || !tool_name_check(name, inner, err) ||
        !tool_switches_check(tool, path, err) || !anthropic_cache_check(tool, path, err))
        return NULL;
    if (description && !json_is_null(description) && !json_is_string(description)) {
        error_set(err, ERROR_INPUT, "%s.description: expected a string, found %s", path, json_type_name(description));
        return NULL;
    }
    if (!json_is_object(schema)) {
        error_set(err, ERROR_INPUT, "%s.input_schema: expected a JSON schema (an object), found %s", path, json_type_name(schema));
        return NULL;
    }
    json_t *function = json_pack("{s:O}", "name", name);
    if (json_is_string(description))
        json_object_set(function, "description", (json_t *)(uintptr_t)description);
    json_object_set(function, "parameters", (json_t *)(uintptr_t)schema);
    return json_pack("{s:s, s:o}", "type", "function", "function", function);
}

static bool tool_known(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0)
            return true;
    }
    return false;
}

static bool read_tools(anthropic_request *r, const json_t *value, error *err)
{
    if (!json_is_array(value))
        return refuse_type("tools", "an array", value, err);
    if (json_array_size(value) > ANTHROPIC_TOOLS_MOST)
        return error_set(err, ERROR_INPUT, "tools: at most %d tools, found %zu", ANTHROPIC_TOOLS_MOST, json_array_size(value));
    if (json_array_size(value) == 0)
        return true;
    r->tools = json_array();
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *tool = json_array_get(value, i);
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "tools[%zu]", i);
        json_t *made = tool_convert(tool, path, err);
        if (!made)
            return false;
        const char *name = json_string_value(json_object_get(tool, "name"));
        bool twice = tool_known(r->tools, name);
        json_array_append_new(r->tools, made);
        if (twice)
            return error_set(err, ERROR_INPUT, "%s.name: there are two tools \"%.80s\"; names must be unique", path, name);
    }
    return true;
}

static bool read_tool_choice(anthropic_request *r, const json_t *value, error *err)
{
    static const char *const keys[] = {"type", "name", "disable_parallel_tool_use", NULL};
    static const char *const types[] = {"auto", "any", "tool", "none", NULL};
    if (!json_is_object(value))
        return refuse_type("tool_choice", "an object", value, err);
    if (!word_check(json_object_get(value, "type"), "tool_choice.type", types, err) ||
        !anthropic_keys_check(value, "tool_choice", keys, err))
        return false;
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *name = json_object_get(value, "name"), *single = json_object_get(value, "disable_parallel_tool_use");
    bool named = strcmp(type, "tool") == 0;
    if (single && !json_is_null(single) && !json_is_boolean(single))
        return refuse_type("tool_choice.disable_parallel_tool_use", "true or false", single, err);
    if (!named && name && !json_is_null(name))
        return error_set(err, ERROR_INPUT, "tool_choice.name: goes with the type \"tool\" only");
    if (named && !json_is_string(name))
        return refuse_type("tool_choice.name", "the name of a tool", name, err);
    r->forced = named || strcmp(type, "any") == 0;
    r->forced_name = named ? json_string_value(name) : NULL;
    r->calls_off = strcmp(type, "none") == 0;
    r->one_call = named || json_is_true(single);
    return true;
}

/* ---- the table ---- */

typedef struct field {
    const char *name;
    bool counts; /* also a field of count_tokens */
    bool (*read)(anthropic_request *r, const json_t *value, error *err);
    const char *refusal; /* when there is no reader */
} field;

/* messages and system are read together, after the others. */
static bool read_later(anthropic_request *r, const json_t *value, error *err)
{
    (void)r;
    (void)value;
    (void)err;
    return true;
}

static const field fields[] = {
    {"model", true, read_model, NULL},
    {"messages", true, read_later, NULL},
    {"system", true, read_later, NULL},
    {"cache_control", true, read_later, NULL},
    {"tools", true, read_tools, NULL},
    {"tool_choice", true, read_tool_choice, NULL},
    {"thinking", true, read_thinking, NULL},
    {"output_config", true, read_output_config, NULL},
    {"context_management", true, read_context_management, NULL},
    {"max_tokens", false, read_max_tokens, NULL},
    {"metadata", false, read_metadata, NULL},
    {"stop_sequences", false, read_stops, NULL},
    {"stream", false, read_stream, NULL},
    {"temperature", false, read_temperature, NULL},
    {"top_p", false, read_top_p, NULL},
    {"top_k", false, read_top_k, NULL},
    {"service_tier", false, read_service_tier, NULL},
    {"container", false, NULL, "there are no containers here"},
    {"mcp_servers", true, NULL, "this server does not call MCP servers; let the client call them and offer their tools in \"tools\""},
    {"output_format", true, NULL, "structured output is not supported"},
    {"inference_geo", false, NULL, "there is one place of inference, this server"},
    {"speed", true, NULL, "there is one speed"},
};

static bool field_read(anthropic_request *r, const char *key, const json_t *value, bool counting, error *err)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *f = &fields[i];
        if (strcmp(f->name, key) != 0)
            continue;
        if (counting && !f->counts)
            return error_set(err, ERROR_INPUT, "%s: is a field of /v1/messages, not of /v1/messages/count_tokens; leave it out", key);
        if (!f->read)
            return error_set(err, ERROR_INPUT, "%s: %s; leave it out", key, f->refusal);
        return f->read(r, value, err);
    }
    return error_set(err, ERROR_INPUT, "%.60s: not a field of this API; leave it out", key);
}

/* What two fields say together. */
static bool together_check(const anthropic_request *r, const json_t *body, bool counting, error *err)
{
    if (!r->model)
        return error_set(err, ERROR_INPUT, "model: the field is missing");
    if (!counting && r->max_tokens == 0)
        return error_set(err, ERROR_INPUT, "max_tokens: the field is missing");
    if (!counting && r->budget >= r->max_tokens)
        return error_set(err, ERROR_INPUT, "thinking.budget_tokens: must be less than max_tokens, found %d and %d", r->budget,
                         r->max_tokens);
    const json_t *choice = json_object_get(body, "tool_choice");
    if (choice && !json_is_null(choice) && !r->tools)
        return error_set(err, ERROR_INPUT, "tool_choice: there are no tools to choose from; send \"tools\" or leave it out");
    if (r->forced_name && !tool_known(r->tools, r->forced_name))
        return error_set(err, ERROR_INPUT, "tool_choice.name: there is no tool \"%.80s\" in \"tools\"", r->forced_name);
    if (r->forced && r->thinking == ANTHROPIC_THINKING_ON)
        return error_set(err, ERROR_INPUT, "thinking: does not go with a tool_choice that forces a call; use the tool_choice \"auto\" or "
                         "\"none\", or disable thinking");
    if (r->prefill && r->thinking == ANTHROPIC_THINKING_ON)
        return error_set(err, ERROR_INPUT, "messages: the last message is the assistant's, which does not go with thinking; end with a "
                         "user message, or disable thinking");
    if (r->prefill && r->forced)
        return error_set(err, ERROR_INPUT, "messages: the last message is the assistant's, which does not go with a tool_choice that "
                         "forces a call");
    return true;
}

bool anthropic_request_read(const json_t *body, bool counting, anthropic_request *out, error *err)
{
    const char *key;
    const json_t *value;
    *out = (anthropic_request){.temperature = NAN, .top_p = NAN, .top_k = -1};
    if (!json_is_object(body))
        return refuse_type("request", "an object", body, err);
    json_object_foreach((json_t *)(uintptr_t)body, key, value)
        if (!json_is_null(value) && !field_read(out, key, value, counting, err))
            return false;
    if (!anthropic_cache_check(body, "", err))
        return false;
    out->messages = anthropic_messages_convert(json_object_get(body, "messages"), json_object_get(body, "system"), &out->prefill, err);
    return out->messages && together_check(out, body, counting, err);
}

void anthropic_request_free(anthropic_request *r)
{
    json_decref(r->messages);
    json_decref(r->tools);
    *r = (anthropic_request){0};
}
