/* The JSON of answers: parts collect what comes, and become a whole answer or, step by step, chunks of a stream. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"

static json_t *text_json(const text *t)
{
    return json_stringn(t->data ? t->data : "", t->length);
}

static json_t *text_or_null(const text *t)
{
    return t->length > 0 ? text_json(t) : json_null();
}

void openai_part_free(openai_part *p)
{
    text_free(&p->content);
    text_free(&p->reasoning);
    text_free(&p->arguments);
    json_decref(p->calls);
    json_decref(p->logprobs);
    json_decref(p->ids);
    json_decref(p->matched);
    *p = (openai_part){0};
}

/* ---- errors ---- */

static const char *error_type(int status)
{
    switch (status) {
    case 400: return "invalid_request_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return "server_error";
    }
}

json_t *openai_error_json(int status, const char *param, const char *code, const char *message)
{
    text words = {0}, name = {0};
    text_add_text(&words, message);
    text_add_text(&name, param ? param : "");
    server_make_utf8(words.data);
    server_make_utf8(name.data);
    json_t *made = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", words.data, "type", error_type(status), "param",
                             name.length ? name.data : NULL, "code", code);
    text_free(&words);
    text_free(&name);
    return made;
}

/* ---- log-probabilities ---- */

/* The text of one token; bytes that are not characters are U+FFFD. */
static json_t *token_text(const openai_job *j, int32_t id)
{
    text t = {0};
    tokenizer_decode(j->server->tokenizer, &id, 1, false, &t);
    json_t *value = text_json(&t);
    text_free(&t);
    return value;
}

static json_t *token_bytes(const openai_job *j, int32_t id)
{
    view v = tokenizer_token(j->server->tokenizer, id);
    json_t *bytes = json_array();
    for (size_t i = 0; i < v.length; i++)
        json_array_append_new(bytes, json_integer((unsigned char)v.data[i]));
    return bytes;
}

/* JSON has no infinity; OpenAI writes -9999 for a token without probability. */
static double finite(double logprob)
{
    return isfinite(logprob) ? logprob : -9999.0;
}

static json_t *chat_logprob(const openai_job *j, int32_t id, double logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", token_text(j, id), "logprob", finite(logprob), "bytes", token_bytes(j, id));
}

static void chat_logprobs_add(openai_job *j, openai_part *p, const sampler_result *r)
{
    json_t *entry = chat_logprob(j, r->token, r->logprob), *top = json_array();
    for (int i = 0; i < r->top_count; i++)
        json_array_append_new(top, chat_logprob(j, r->top[i].id, r->top[i].logprob));
    json_object_set_new(entry, "top_logprobs", top);
    if (!p->logprobs)
        p->logprobs = json_array();
    json_array_append_new(p->logprobs, entry);
}

static size_t count_characters(const char *s, size_t bytes)
{
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

/* The older form: parallel arrays. */
static void text_logprobs_add(openai_job *j, openai_part *p, const sampler_result *r)
{
    if (!p->logprobs)
        p->logprobs = json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
    json_t *token = token_text(j, r->token), *top = json_object();
    for (int i = 0; i < r->top_count; i++) {
        json_t *word = token_text(j, r->top[i].id);
        json_object_setn_new(top, json_string_value(word), json_string_length(word), json_real(finite(r->top[i].logprob)));
        json_decref(word);
    }
    json_array_append_new(json_object_get(p->logprobs, "top_logprobs"), top);
    json_array_append_new(json_object_get(p->logprobs, "token_logprobs"), json_real(finite(r->logprob)));
    json_array_append_new(json_object_get(p->logprobs, "text_offset"), json_integer((json_int_t)p->text_offset));
    if (!j->request.skip_special || !tokenizer_is_special(j->server->tokenizer, r->token))
        p->text_offset += count_characters(json_string_value(token), json_string_length(token));
    json_array_append_new(json_object_get(p->logprobs, "tokens"), token);
}

void openai_tokens_add(openai_job *j, int part, const generation_token *tokens, int count)
{
    openai_part *p = &j->parts[part];
    if (j->request.return_token_ids && !p->ids)
        p->ids = json_array();
    for (int i = 0; i < count; i++) {
        if (j->request.return_token_ids)
            json_array_append_new(p->ids, json_integer(tokens[i].id));
        if (tokens[i].result && j->request.api == API_CHAT)
            chat_logprobs_add(j, p, tokens[i].result);
        else if (tokens[i].result)
            text_logprobs_add(j, p, tokens[i].result);
    }
}

static json_t *logprobs_json(const openai_job *j, const openai_part *p)
{
    if (!p->logprobs)
        return json_null();
    return j->request.api == API_CHAT ? json_pack("{s:O, s:n}", "content", p->logprobs, "refusal") : json_incref(p->logprobs);
}

/* ---- pieces ---- */

/* Puts the arguments that came into the newest entry of calls. */
static void arguments_settle(openai_part *p)
{
    json_t *entry = json_array_get(p->calls, json_array_size(p->calls) - 1);
    if (entry)
        json_object_set_new(json_object_get(entry, "function"), "arguments", text_json(&p->arguments));
}

static void call_begin(openai_part *p, const chat_event *e)
{
    char id[8 + 2 * OPENAI_HEX_BYTES_MOST] = "call_";
    openai_random_hex(id + 5, 12);
    if (!p->calls)
        p->calls = json_array();
    arguments_settle(p);
    text_clear(&p->arguments);
    p->call = e->call;
    json_array_append_new(p->calls, json_pack("{s:i, s:s, s:s, s:{s:s%, s:s}}", "index", e->call, "id", id, "type", "function", "function",
                                              "name", e->text.data, e->text.length, "arguments", ""));
}

/* In a stream the beginning of the call may have been sent already. */
static void call_continue(openai_part *p, const chat_event *e)
{
    if (!p->calls)
        p->calls = json_array();
    if (json_array_size(p->calls) == 0 || p->call != e->call) {
        text_clear(&p->arguments);
        p->call = e->call;
        json_array_append_new(p->calls, json_pack("{s:i, s:{}}", "index", e->call, "function"));
    }
    text_add(&p->arguments, e->text.data, e->text.length);
}

void openai_piece_add(openai_job *j, int part, const chat_event *e)
{
    openai_part *p = &j->parts[part];
    p->reasoning_over |= e->kind != CHAT_EVENT_REASONING;
    switch (e->kind) {
    case CHAT_EVENT_REASONING:
        if (j->request.include_reasoning)
            text_add(&p->reasoning, e->text.data, e->text.length);
        break;
    case CHAT_EVENT_CONTENT: text_add(&p->content, e->text.data, e->text.length); break;
    case CHAT_EVENT_CALL_BEGIN: call_begin(p, e); break;
    case CHAT_EVENT_CALL_ARGUMENTS: call_continue(p, e); break;
    default: break;
    }
}

/* ---- usage ---- */

static json_t *usage_json(const openai_job *j)
{
    generation_usage u = j->usage;
    return json_pack("{s:i, s:i, s:i, s:{s:i}, s:{s:i}, s:i}", "prompt_tokens", u.prompt_tokens, "completion_tokens", u.completion_tokens,
                     "total_tokens", u.prompt_tokens + u.completion_tokens, "prompt_tokens_details", "cached_tokens", u.cached_tokens,
                     "completion_tokens_details", "reasoning_tokens", u.reasoning_tokens, "reasoning_tokens", u.reasoning_tokens);
}

/* What sglang's clients read; NULL when not asked for. */
static json_t *extension_json(const openai_job *j)
{
    generation_usage u = j->usage;
    if (!j->request.return_cached_details && !j->request.return_spec_details)
        return NULL;
    json_t *out = json_object();
    if (j->request.return_cached_details)
        json_object_set_new(out, "cached_tokens_details",
                            json_pack("{s:i, s:i, s:i, s:n}", "device", u.cached_tokens, "host", 0, "storage", 0, "storage_backend"));
    if (j->request.return_spec_details) {
        int steps = u.verify_steps;
        json_object_set_new(out, "spec_tokens_details",
                            json_pack("{s:f, s:f, s:i, s:i, s:i}", "spec_accept_rate", u.drafted ? (double)u.accepted / u.drafted : 0.0,
                                      "spec_accept_length", steps ? 1 + (double)u.accepted / steps : 1.0, "spec_num_correct_drafts",
                                      u.accepted, "spec_num_proposed_drafts", u.drafted, "spec_verify_ct", steps));
    }
    return out;
}

/* ---- answers ---- */

static json_t *envelope(const openai_job *j, const char *object, json_t *choices)
{
    char fingerprint[SERVER_MODEL_NAME_MOST + 64];
    snprintf(fingerprint, sizeof fingerprint, "drawbridge-%s-%s", DRAWBRIDGE_VERSION, j->server->options.model_name);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", j->id, "object", object, "created", (json_int_t)j->created, "model",
                     j->server->options.model_name, "system_fingerprint", fingerprint, "choices", choices);
}

static const openai_source *source_of(const openai_job *j, int part)
{
    int i = j->source_count - 1;
    while (i > 0 && j->sources[i].first_part > part)
        i--;
    return &j->sources[i];
}

static void add_ids(const openai_job *j, int part, bool first, json_t *choice)
{
    const openai_part *p = &j->parts[part];
    const openai_source *s = source_of(j, part);
    if (p->ids)
        json_object_set(choice, "token_ids", p->ids);
    if (first && s->prompt_ids && j->request.api == API_COMPLETIONS)
        json_object_set(choice, "prompt_token_ids", s->prompt_ids);
}

static json_t *ending(const openai_part *p, json_t *choice)
{
    json_object_set_new(choice, "finish_reason", p->finish ? json_string(p->finish) : json_null());
    json_object_set_new(choice, "matched_stop", p->matched ? json_incref(p->matched) : json_null());
    return choice;
}

static json_t *message_json(openai_part *p)
{
    json_t *message = json_pack("{s:s}", "role", "assistant");
    arguments_settle(p);
    json_t *calls = p->calls ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(p->calls); i++) {
        json_t *call = json_copy(json_array_get(p->calls, i));
        json_object_del(call, "index");
        json_array_append_new(calls, call);
    }
    json_object_set_new(message, "content", p->calls ? text_or_null(&p->content) : text_json(&p->content));
    json_object_set_new(message, "reasoning_content", text_or_null(&p->reasoning));
    json_object_set_new(message, "reasoning", text_or_null(&p->reasoning));
    if (calls)
        json_object_set_new(message, "tool_calls", calls);
    return message;
}

static json_t *answer_choice(const openai_job *j, int part)
{
    openai_part *p = &j->parts[part];
    json_t *choice = json_pack("{s:i}", "index", part);
    if (j->request.api == API_CHAT)
        json_object_set_new(choice, "message", message_json(p));
    else
        json_object_set_new(choice, "text", text_json(&p->content));
    json_object_set_new(choice, "logprobs", logprobs_json(j, p));
    add_ids(j, part, true, choice);
    return ending(p, choice);
}

static void add_prompt_ids(const openai_job *j, json_t *answer)
{
    if (j->request.api == API_CHAT && j->sources[0].prompt_ids)
        json_object_set(answer, "prompt_token_ids", j->sources[0].prompt_ids);
}

json_t *openai_answer(const openai_job *j)
{
    json_t *choices = json_array();
    for (int i = 0; i < j->part_count; i++)
        json_array_append_new(choices, answer_choice(j, i));
    json_t *answer = envelope(j, j->request.api == API_CHAT ? "chat.completion" : "text_completion", choices);
    json_object_set_new(answer, "usage", usage_json(j));
    json_t *extension = extension_json(j);
    if (extension)
        json_object_set_new(answer, "sglext", extension);
    add_prompt_ids(j, answer);
    return answer;
}

/* ---- chunks ---- */

/* The delta of a chat; what goes into it is taken from the part. */
static json_t *take_delta(const openai_job *j, openai_part *p)
{
    json_t *delta = json_object();
    bool ready = j->request.stream_reasoning || p->reasoning_over || p->finish;
    if (!p->begun)
        json_object_set_new(delta, "role", json_string("assistant"));
    if (p->reasoning.length > 0 && ready) {
        json_object_set_new(delta, "reasoning_content", text_json(&p->reasoning));
        json_object_set_new(delta, "reasoning", text_json(&p->reasoning));
        text_clear(&p->reasoning);
    }
    if (p->content.length > 0 || !p->begun)
        json_object_set_new(delta, "content", text_json(&p->content));
    if (p->calls) {
        arguments_settle(p);
        text_clear(&p->arguments);
        json_object_set_new(delta, "tool_calls", p->calls);
        p->calls = NULL;
    }
    text_clear(&p->content);
    return delta;
}

static void take_rest(openai_part *p)
{
    json_decref(p->logprobs);
    json_decref(p->ids);
    p->logprobs = p->ids = NULL;
    p->begun = true;
}

json_t *openai_chunk(const openai_job *j, int part, bool last)
{
    openai_part *p = &j->parts[part];
    bool chat = j->request.api == API_CHAT, first = !p->begun;
    json_t *choice = json_pack("{s:i}", "index", part);
    if (chat) {
        json_object_set_new(choice, "delta", take_delta(j, p));
    } else {
        json_object_set_new(choice, "text", text_json(&p->content));
        text_clear(&p->content);
    }
    const json_t *delta = json_object_get(choice, "delta"), *words = json_object_get(choice, "text");
    bool empty = chat ? json_object_size(delta) == 0 : json_string_length(words) == 0;
    if (empty && !last && !p->logprobs && !p->ids) {
        json_decref(choice);
        return NULL;
    }
    json_object_set_new(choice, "logprobs", logprobs_json(j, p));
    add_ids(j, part, first, choice);
    ending(p, choice);
    take_rest(p);
    json_t *chunk = envelope(j, chat ? "chat.completion.chunk" : "text_completion", json_pack("[o]", choice));
    if (first)
        add_prompt_ids(j, chunk);
    if (j->request.continuous_usage)
        json_object_set_new(chunk, "usage", usage_json(j));
    return chunk;
}

json_t *openai_usage_chunk(const openai_job *j)
{
    json_t *chunk = envelope(j, j->request.api == API_CHAT ? "chat.completion.chunk" : "text_completion", json_array());
    if (j->request.include_usage)
        json_object_set_new(chunk, "usage", usage_json(j));
    json_t *extension = extension_json(j);
    if (extension)
        json_object_set_new(chunk, "sglext", extension);
    return chunk;
}
