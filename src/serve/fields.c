#include "serve/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"

enum { NEAR_NAME_MOST = 64 };

bool request_refuse(request_error *e, const char *param, const char *words, ...)
{
    va_list args;
    text sentence = {0};
    va_start(args, words);
    text_add_arguments(&sentence, words, args);
    va_end(args);
    error_set(&e->err, ERROR_INPUT, "%s", sentence.data ? sentence.data : "");
    text_free(&sentence);
    e->status = 400;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    return false;
}

const field *fields_find(const char *name, int api)
{
    for (size_t i = 0; i < fields_count; i++)
        if ((fields_table[i].apis & api) && strcmp(fields_table[i].name, name) == 0)
            return &fields_table[i];
    return NULL;
}

/* ---- checks by type ---- */

static const char *type_words(field_type type)
{
    static const char *const words[] = {[FIELD_BOOL] = "true or false", [FIELD_INT] = "an integer", [FIELD_NUMBER] = "a number",
        [FIELD_STRING] = "a string", [FIELD_ARRAY] = "an array", [FIELD_OBJECT] = "an object", [FIELD_ANY] = "a value",
        [FIELD_SWITCH] = "true or false"};
    return words[type];
}

static bool has_type(field_type type, const json_t *v)
{
    switch (type) {
    case FIELD_BOOL:
    case FIELD_SWITCH: return json_is_boolean(v);
    case FIELD_INT: return json_is_integer(v) || (json_is_real(v) && json_real_value(v) == trunc(json_real_value(v)));
    case FIELD_NUMBER: return json_is_number(v);
    case FIELD_STRING: return json_is_string(v);
    case FIELD_ARRAY: return json_is_array(v);
    case FIELD_OBJECT: return json_is_object(v);
    default: return true;
    }
}

static bool check_range(const field *f, const field_reading *r)
{
    if ((f->least == 0 && f->most == 0) || !json_is_number(r->value))
        return true;
    double x = json_number_value(r->value);
    return (x >= f->least && x <= f->most) ||
           request_refuse(r->e, f->name, "%s: expected %s from %.10g to %.10g, found %.10g", f->name, type_words(f->type), f->least,
                          f->most, x);
}

static bool check_string(const field *f, const field_reading *r)
{
    size_t bytes = json_string_length(r->value);
    if (f->type != FIELD_STRING)
        return true;
    if (strlen(json_string_value(r->value)) != bytes)
        return request_refuse(r->e, f->name, "%s: a NUL character is not allowed", f->name);
    return f->most == 0 || (double)bytes <= f->most ||
           request_refuse(r->e, f->name, "%s: the string has %zu bytes, at most %.10g are allowed", f->name, bytes, f->most);
}

static bool check(const field *f, const field_reading *r)
{
    if (!has_type(f->type, r->value))
        return request_refuse(r->e, f->name, "%s: expected %s, found %s", f->name, type_words(f->type), json_type_name(r->value));
    return check_range(f, r) && check_string(f, r);
}

static void store_at(const field *f, const field_reading *r)
{
    char *at = (char *)r->request + f->offset;
    switch (f->type) {
    case FIELD_BOOL: *(bool *)(void *)at = json_is_true(r->value); break;
    case FIELD_INT: *(int *)(void *)at = (int)json_number_value(r->value); break;
    case FIELD_NUMBER: *(double *)(void *)at = json_number_value(r->value); break;
    case FIELD_STRING: *(const char **)(void *)at = json_string_value(r->value); break;
    case FIELD_SWITCH: *(chat_switch *)(void *)at = json_is_true(r->value) ? CHAT_TRUE : CHAT_FALSE; break;
    default: *(const json_t **)(void *)at = r->value;
    }
}

/* ---- refused and unknown fields ---- */

/* 1 and 1.0 are the same number here. */
static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool is_neutral(const field *f, const json_t *value)
{
    bool found = false;
    json_t *values = f->neutral ? json_loads(f->neutral, 0, NULL) : NULL;
    for (size_t i = 0; !found && i < json_array_size(values); i++)
        found = same_value(json_array_get(values, i), value);
    json_decref(values);
    return found;
}

static const char *api_name(int api)
{
    return api == API_CHAT ? "/v1/chat/completions" : "/v1/completions";
}

/* The known field whose name is nearest. */
static const char *nearest(const char *name, int api)
{
    const char *best = NULL;
    size_t length = strlen(name), best_distance = length / 3 + 1;
    if (length > NEAR_NAME_MOST) /* no field is near, and comparing takes time */
        return NULL;
    for (size_t i = 0; i < fields_count; i++) {
        size_t d = fields_table[i].apis & api ? text_distance(name, fields_table[i].name, best_distance) : best_distance + 1;
        if (d < best_distance || (d == best_distance && !best)) {
            best = fields_table[i].name;
            best_distance = d;
        }
    }
    return best;
}

static bool refuse_unknown(const char *name, int api, request_error *e)
{
    const field *elsewhere = fields_find(name, API_BOTH & ~api);
    if (elsewhere)
        return request_refuse(e, name, "%s: %s has this field, %s does not", name, api_name(API_BOTH & ~api), api_name(api));
    const char *meant = nearest(name, api);
    if (meant)
        return request_refuse(e, name, "%.60s: unknown field; did you mean %s?", name, meant);
    return request_refuse(e, name, "%.60s: unknown field; docs/api_openai.md lists the known ones", name);
}

static bool read_field(const field *f, const field_reading *r)
{
    if (f->refused)
        return is_neutral(f, r->value) || request_refuse(r->e, f->name, "%s: %s", f->name, f->refused);
    if (!check(f, r))
        return false;
    if (f->store)
        return f->store(r);
    if (f->offset != FIELD_NOWHERE)
        store_at(f, r);
    return true;
}

/* ---- all of them ---- */

static api_request defaults_of(int api, const sampler_params *defaults, int vocab)
{
    api_request r = {.api = api, .parallel_calls = true, .separate_reasoning = true, .stream_reasoning = true, .include_reasoning = true,
                     .top_logprobs = -1, .logprob_count = -1, .skip_special = true};
    r.spec.params = *defaults;
    r.spec.params.vocab_used = vocab;
    r.spec.params.logprobs = -1;
    r.spec.params.bias = NULL;
    r.spec.params.bias_count = 0;
    r.spec.choices = 1;
    return r;
}

/* Fields that only make sense together. */
static bool check_together(api_request *r, request_error *e)
{
    if (r->max_tokens && r->max_completion_tokens && r->max_tokens != r->max_completion_tokens)
        return request_refuse(e, "max_tokens", "max_tokens is %d and max_completion_tokens is %d; send one of them", r->max_tokens,
                              r->max_completion_tokens);
    if (r->top_logprobs > 0 && !r->logprobs)
        return request_refuse(e, "top_logprobs", "top_logprobs: needs \"logprobs\": true");
    if (r->best_of && r->best_of != r->spec.choices)
        return request_refuse(e, "best_of", "best_of: only the value of n (%d) is supported, found %d", r->spec.choices, r->best_of);
    if ((r->include_usage || r->continuous_usage) && !r->stream)
        return request_refuse(e, "stream_options", "stream_options: only allowed with \"stream\": true");
    if (r->rid && r->request_id && strcmp(r->rid, r->request_id) != 0)
        return request_refuse(e, "request_id", "rid and request_id differ; send one of them");
    if (r->thinking != CHAT_UNSET && r->enable_thinking != CHAT_UNSET && r->thinking != r->enable_thinking)
        return request_refuse(e, "thinking", "thinking and chat_template_kwargs.enable_thinking differ; send one of them");
    if (r->echo && r->logprob_count >= 0)
        return request_refuse(e, "echo", "echo: not supported together with logprobs, which are of the answer's tokens only");
    return true;
}

/* What several fields say together. */
static void settle(api_request *r)
{
    generation_spec *s = &r->spec;
    s->max_tokens = r->max_completion_tokens ? r->max_completion_tokens : r->max_tokens;
    s->keep_stop = r->no_stop_trim || r->include_stop;
    s->keep_special = !r->skip_special;
    s->plain_reasoning = !r->separate_reasoning;
    s->one_call = !r->parallel_calls;
    if (r->api == API_CHAT && r->logprobs)
        s->params.logprobs = r->top_logprobs > 0 ? r->top_logprobs : 0;
    if (r->api == API_COMPLETIONS)
        s->params.logprobs = r->logprob_count;
    const char *rid = r->rid && *r->rid ? r->rid : r->request_id;
    bool extra = r->extra_key && *r->extra_key;
    if (rid && *rid)
        s->rid = mem_copy(rid, strlen(rid));
    if (r->cache_salt || extra) {
        text salt = {0};
        text_add_format(&salt, "%s%s%s", r->cache_salt ? r->cache_salt : "", extra ? "\n" : "", extra ? r->extra_key : "");
        s->cache_salt = mem_copy(salt.data, salt.length);
        text_free(&salt);
    }
    s->params.bias = s->bias;
}

bool fields_read(const json_t *body, int api, const sampler_params *defaults, int vocab, api_request *r, request_error *e)
{
    const char *name;
    json_t *value;
    *r = defaults_of(api, defaults, vocab);
    json_object_foreach ((json_t *)(uintptr_t)body, name, value) {
        const field *f = fields_find(name, api);
        if (!f)
            return refuse_unknown(name, api, e);
        if (json_is_null(value))
            continue;
        field_reading reading = {.name = name, .value = value, .vocab = vocab, .request = r, .e = e};
        if (!read_field(f, &reading))
            return false;
    }
    if (!check_together(r, e))
        return false;
    settle(r);
    error err = {0};
    return sampler_params_check(&r->spec.params, vocab, &err) || request_refuse(e, NULL, "%s", err.text);
}

void api_request_free(api_request *r)
{
    generation_spec_free(&r->spec);
    *r = (api_request){0};
}

bool fields_token_ids(const json_t *array, int vocab, const char *param, const char *where, token_list *out, request_error *e)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *id = json_array_get(array, i);
        if (!json_is_integer(id))
            return request_refuse(e, param, "%s[%zu]: expected a token id, found %s", where, i, json_type_name(id));
        if (json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return request_refuse(e, param, "%s[%zu]: the model's tokens go from 0 to %d, found %lld", where, i, vocab - 1,
                                  (long long)json_integer_value(id));
        token_list_add(out, (int32_t)json_integer_value(id));
    }
    return true;
}

/* ---- documentation ---- */

static void add_notes(const field *f, text *out)
{
    if (f->refused) {
        text_add_format(out, "refused: %s", f->refused);
        if (f->neutral)
            text_add_format(out, ". Accepted: null, %.*s", (int)strlen(f->neutral) - 2, f->neutral + 1);
        return;
    }
    text_add_text(out, f->words);
    if (f->least == 0 && f->most == 0)
        return;
    if (f->type == FIELD_STRING)
        text_add_format(out, "; at most %.10g bytes", f->most);
    else
        text_add_format(out, "; %.10g to %.10g", f->least, f->most);
}

void fields_markdown(text *out)
{
    text_add_text(out, "| field | chat | completions | |\n|---|---|---|---|\n");
    for (size_t i = 0; i < fields_count; i++) {
        const field *f = &fields_table[i];
        const char *mark = f->refused ? "refused" : "yes";
        text_add_format(out, "| `%s` | %s | %s | ", f->name, f->apis & API_CHAT ? mark : "", f->apis & API_COMPLETIONS ? mark : "");
        add_notes(f, out);
        text_add_text(out, " |\n");
    }
}
