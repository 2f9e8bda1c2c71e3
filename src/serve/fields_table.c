/* The rows, and the functions that store what is more than one value. A new field is one row here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "serve/fields.h"

/* ---- values with a shape of their own ---- */

static bool add_stop(const field_reading *r, const json_t *value, const char *where)
{
    generation_spec *s = &r->request->spec;
    if (!json_is_string(value))
        return request_refuse(r->e, r->name, "%s: expected a string, found %s", where, json_type_name(value));
    const char *bytes = json_string_value(value);
    size_t length = json_string_length(value);
    if (length == 0 || length > GENERATION_STOP_BYTES_MOST || strlen(bytes) != length)
        return request_refuse(r->e, r->name, "%s: expected 1 to %d bytes without NUL, found %zu", where, GENERATION_STOP_BYTES_MOST,
                              length);
    if (s->stop_count == GENERATION_STOPS_MOST)
        return request_refuse(r->e, r->name, "stop: at most %d stop strings are allowed", GENERATION_STOPS_MOST);
    s->stops[s->stop_count++] = mem_copy(bytes, length);
    return true;
}

static bool store_stop(const field_reading *r)
{
    if (!json_is_array(r->value))
        return add_stop(r, r->value, "stop");
    for (size_t i = 0; i < json_array_size(r->value); i++) {
        char where[32];
        snprintf(where, sizeof where, "stop[%zu]", i);
        if (!add_stop(r, json_array_get(r->value, i), where))
            return false;
    }
    return true;
}

static bool store_stop_ids(const field_reading *r)
{
    if (json_array_size(r->value) > GENERATION_STOP_IDS_MOST)
        return request_refuse(r->e, r->name, "stop_token_ids: at most %d ids are allowed, found %zu", GENERATION_STOP_IDS_MOST,
                              json_array_size(r->value));
    return fields_token_ids(r->value, r->vocab, r->name, r->name, &r->request->spec.stop_ids, r->e);
}

static bool store_bias(const field_reading *r)
{
    generation_spec *s = &r->request->spec;
    const char *key;
    const json_t *value;
    s->bias = mem_alloc(json_object_size(r->value) + 1, sizeof *s->bias);
    json_object_foreach ((json_t *)(uintptr_t)r->value, key, value) {
        char *end;
        long id = strtol(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || (key[0] == '0' && key[1]) || *end || id >= r->vocab)
            return request_refuse(r->e, r->name, "logit_bias: expected token ids from 0 to %d as keys, found \"%.40s\"", r->vocab - 1, key);
        double x = json_is_number(value) ? json_number_value(value) : 1000;
        if (!(x >= -100 && x <= 100))
            return request_refuse(r->e, r->name, "logit_bias: the bias of token %ld must be a number from -100 to 100", id);
        s->bias[s->params.bias_count++] = (sampler_bias){(int32_t)id, (float)x};
    }
    return true;
}

static bool store_seed(const field_reading *r)
{
    if (!json_is_integer(r->value))
        return request_refuse(r->e, r->name, "seed: expected an integer, found %s", json_type_name(r->value));
    r->request->spec.params.seed = (uint64_t)json_integer_value(r->value);
    r->request->has_seed = true;
    return true;
}

static bool store_max_tokens(const field_reading *r)
{
    int value = (int)json_number_value(r->value);
    if (strcmp(r->name, "max_tokens") == 0)
        r->request->max_tokens = value;
    else
        r->request->max_completion_tokens = value;
    return true;
}

static bool inner_bool(const field_reading *r, const char *key, const json_t *value, bool *out)
{
    if (!json_is_boolean(value) && !json_is_null(value))
        return request_refuse(r->e, r->name, "%s.%s: expected true or false, found %s", r->name, key, json_type_name(value));
    *out = json_is_true(value);
    return true;
}

static bool store_stream_options(const field_reading *r)
{
    const char *key;
    const json_t *value;
    bool unused = false;
    json_object_foreach ((json_t *)(uintptr_t)r->value, key, value) {
        bool *to = strcmp(key, "include_usage") == 0            ? &r->request->include_usage
                   : strcmp(key, "continuous_usage_stats") == 0 ? &r->request->continuous_usage
                   : strcmp(key, "include_obfuscation") == 0    ? &unused
                                                                : NULL;
        if (!to)
            return request_refuse(r->e, r->name, "stream_options.%.60s: unknown; known are include_usage and continuous_usage_stats", key);
        if (!inner_bool(r, key, value, to))
            return false;
        if (unused)
            return request_refuse(r->e, r->name, "stream_options.include_obfuscation: not supported; leave it out");
    }
    return true;
}

static bool known_effort(const char *word)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return false;
}

static bool check_effort(const field_reading *r, const char *where, const json_t *value)
{
    const char *word = json_string_value(value);
    return (word && known_effort(word)) ||
           request_refuse(r->e, r->name, "%s: expected \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"", where);
}

static bool store_effort(const field_reading *r)
{
    r->request->reasoning_effort = json_string_value(r->value);
    return check_effort(r, r->name, r->value);
}

static bool store_kwargs(const field_reading *r)
{
    const char *key;
    const json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)r->value, key, value) {
        bool on = false;
        if (json_is_null(value))
            continue;
        if (strcmp(key, "reasoning_effort") == 0) {
            if (!check_effort(r, "chat_template_kwargs.reasoning_effort", value))
                return false;
            r->request->template_effort = json_string_value(value);
            continue;
        }
        bool thinking = strcmp(key, "enable_thinking") == 0;
        if (!thinking && strcmp(key, "clear_thinking") != 0)
            return request_refuse(r->e, r->name, "chat_template_kwargs.%.60s: this model's chat format has no such variable; it has "
                                  "enable_thinking, clear_thinking and reasoning_effort", key);
        if (!inner_bool(r, key, value, &on))
            return false;
        *(thinking ? &r->request->enable_thinking : &r->request->clear_thinking) = on ? CHAT_TRUE : CHAT_FALSE;
    }
    return true;
}

/* The switch of the API that GLM's makers offer. */
static bool store_thinking(const field_reading *r)
{
    const char *type = json_string_value(json_object_get(r->value, "type"));
    bool on = type && strcmp(type, "enabled") == 0;
    if (json_object_size(r->value) != 1 || !type || (!on && strcmp(type, "disabled") != 0))
        return request_refuse(r->e, r->name, "thinking: expected {\"type\": \"enabled\"} or {\"type\": \"disabled\"}");
    r->request->thinking = on ? CHAT_TRUE : CHAT_FALSE;
    return true;
}

static bool store_tier(const field_reading *r)
{
    const char *word = json_string_value(r->value);
    return strcmp(word, "auto") == 0 || strcmp(word, "default") == 0 ||
           request_refuse(r->e, r->name, "service_tier: this server has one tier; expected \"auto\" or \"default\", found \"%.40s\"", word);
}

/* ---- the table ---- */

#define AT(member) .offset = offsetof(api_request, member)
#define BY(function) .offset = FIELD_NOWHERE, .store = function
#define REFUSED(name_, apis_, neutral_, words_) \
    {.name = name_, .apis = apis_, .type = FIELD_ANY, .offset = FIELD_NOWHERE, .neutral = neutral_, .refused = words_, .words = NULL}
#define TOKENS_MOST 16777216 /* more than any context */
#define STRUCTURED "structured output is not supported; describe the form in the prompt, or use a tool with tool_choice"
#define NO_SESSIONS "there are no sessions; send the whole conversation, the prefix cache finds what was computed before"
#define ONE_REPLICA "this server is one replica that computes prompts and answers itself; leave it out"

const field fields_table[] = {
    /* what to answer */
    {"messages", API_CHAT, FIELD_ARRAY, 0, 0, AT(messages), .words = "the conversation; role `developer` is `system`, `reasoning` in an "
     "assistant message is `reasoning_content`; content is text or an array of text parts"},
    {"prompt", API_COMPLETIONS, FIELD_ANY, 0, 0, AT(prompt), .words = "a string, token ids, or an array of either: choices in that order"},
    {"input_ids", API_CHAT, FIELD_ARRAY, 0, 0, AT(input_ids), .words = "the rendered prompt as token ids, instead of messages"},
    {"model", API_BOTH, FIELD_STRING, 0, 256, AT(model), .words = "the served name, `default`, empty or absent; else 404"},
    {"tools", API_CHAT, FIELD_ARRAY, 0, 0, AT(tools), .words = "functions the model may call, at most 1024"},
    {"tool_choice", API_CHAT, FIELD_ANY, 0, 0, AT(tool_choice), .words = "`auto`, `none`, `required` or `{\"type\": \"function\", "
     "\"function\": {\"name\"}}`; the last two turn thinking off and begin the answer with a call"},
    {"parallel_tool_calls", API_CHAT, FIELD_BOOL, 0, 0, AT(parallel_calls), .words = "false: the answer ends after its first call"},
    {"reasoning_effort", API_CHAT, FIELD_STRING, 0, 16, BY(store_effort), .words = "`none` turns thinking off; the others go to the chat "
     "format (docs/chat.md)"},
    {"chat_template_kwargs", API_CHAT, FIELD_OBJECT, 0, 0, BY(store_kwargs), .words = "`enable_thinking`, `clear_thinking`, "
     "`reasoning_effort`; others are refused by name"},
    {"thinking", API_CHAT, FIELD_OBJECT, 0, 0, BY(store_thinking), .words = "`{\"type\": \"enabled\"}` or `disabled`: the same as "
     "`enable_thinking`"},
    {"add_generation_prompt", API_CHAT, FIELD_SWITCH, 0, 0, AT(add_generation_prompt), .words = "false: the prompt ends with the last "
     "message"},
    {"continue_final_message", API_CHAT, FIELD_BOOL, 0, 0, AT(continue_final), .words = "go on with the content of the last message, which "
     "must be the assistant's; only what is new is returned"},
    {"echo", API_COMPLETIONS, FIELD_BOOL, 0, 0, AT(echo), .words = "the text begins with the prompt; not with logprobs"},
    REFUSED("echo", API_CHAT, "[false]", "only /v1/completions can echo the prompt"),
    REFUSED("suffix", API_COMPLETIONS, "[\"\"]", "the model cannot fill in the middle; put everything in the prompt"),

    /* how long */
    {"max_tokens", API_BOTH, FIELD_INT, 1, TOKENS_MOST, BY(store_max_tokens), .words = "of the answer, reasoning included; absent: what "
     "the context allows. More than fits is refused, not cut"},
    {"max_completion_tokens", API_CHAT, FIELD_INT, 1, TOKENS_MOST, BY(store_max_tokens), .words = "the same under its newer name"},
    {"min_tokens", API_BOTH, FIELD_INT, 0, TOKENS_MOST, AT(spec.min_tokens), .words = "before that nothing ends the answer"},
    {"stop", API_BOTH, FIELD_ANY, 0, 0, BY(store_stop), .words = "a string or up to 16; searched in the content, not in reasoning"},
    {"stop_token_ids", API_BOTH, FIELD_ARRAY, 0, 0, BY(store_stop_ids), .words = "tokens that end the answer; up to 256"},
    {"ignore_eos", API_BOTH, FIELD_BOOL, 0, 0, AT(spec.ignore_eos), .words = "the model's own end tokens do not end the answer"},
    {"no_stop_trim", API_BOTH, FIELD_BOOL, 0, 0, AT(no_stop_trim), .words = "the stop string stays in the text"},
    {"include_stop_str_in_output", API_BOTH, FIELD_BOOL, 0, 0, AT(include_stop), .words = "the same under vLLM's name"},
    {"timeout", API_BOTH, FIELD_NUMBER, 0.001, 86400, AT(spec.timeout_s), .words = "seconds for the whole request; the "
     "server's limit holds, too"},
    REFUSED("stop_regex", API_BOTH, "[\"\", []]", "not supported; use stop"),
    REFUSED("thinking_token_budget", API_CHAT, NULL, "not supported; use reasoning_effort or max_tokens"),
    REFUSED("truncate_prompt_tokens", API_BOTH, NULL, "prompts are never cut; shorten it in the client"),

    /* sampling */
    {"temperature", API_BOTH, FIELD_NUMBER, 0, 100, AT(spec.params.temperature), .words = "0: greedy; absent: the model's own"},
    {"top_p", API_BOTH, FIELD_NUMBER, 1e-6, 1, AT(spec.params.top_p), .words = "absent: the model's own"},
    {"top_k", API_BOTH, FIELD_INT, -1, 1 << 24, AT(spec.params.top_k), .words = "-1 and 0: off"},
    {"min_p", API_BOTH, FIELD_NUMBER, 0, 1, AT(spec.params.min_p), .words = "keeps tokens with this share of the largest probability"},
    {"frequency_penalty", API_BOTH, FIELD_NUMBER, -2, 2, AT(spec.params.frequency_penalty), .words = "per appearance in the answer"},
    {"presence_penalty", API_BOTH, FIELD_NUMBER, -2, 2, AT(spec.params.presence_penalty), .words = "for appearing in the answer"},
    {"repetition_penalty", API_BOTH, FIELD_NUMBER, 1e-6, 10, AT(spec.params.repetition_penalty), .words = "for appearing in prompt or "
     "answer; 1: off"},
    {"logit_bias", API_BOTH, FIELD_OBJECT, 0, 0, BY(store_bias), .words = "token id to -100 .. 100"},
    {"seed", API_BOTH, FIELD_ANY, 0, 0, BY(store_seed), .words = "an integer: same request, same tokens; choice i has seed + i. "
     "Absent: random"},
    {"n", API_BOTH, FIELD_INT, 1, GENERATION_CHOICES_MOST, AT(spec.choices), .words = "choices (of each prompt)"},
    {"best_of", API_COMPLETIONS, FIELD_INT, 1, GENERATION_CHOICES_MOST, AT(best_of), .words = "only the value of n"},
    REFUSED("use_beam_search", API_BOTH, "[false]", "not supported; leave it out to sample"),
    REFUSED("length_penalty", API_BOTH, "[1]", "belongs to beam search, which is not supported"),
    REFUSED("early_stopping", API_BOTH, "[false]", "belongs to beam search, which is not supported"),
    REFUSED("allowed_token_ids", API_BOTH, "[[]]", "not supported; use logit_bias"),
    REFUSED("bad_words", API_BOTH, "[[]]", "not supported; use logit_bias with -100"),
    REFUSED("custom_logit_processor", API_BOTH, "[\"\"]", "the server runs no code of clients; use logit_bias"),
    REFUSED("logits_processors", API_BOTH, "[[]]", "the server runs no code of clients; use logit_bias"),
    REFUSED("custom_params", API_BOTH, "[{}]", "belongs to custom_logit_processor, which is not supported"),
    REFUSED("repetition_detection", API_BOTH, "[false]", "not supported; use repetition_penalty or frequency_penalty"),

    /* structured output */
    REFUSED("response_format", API_BOTH, "[{\"type\": \"text\"}]", STRUCTURED),
    REFUSED("structured_outputs", API_BOTH, "[{}]", STRUCTURED),
    REFUSED("regex", API_BOTH, "[\"\"]", STRUCTURED),
    REFUSED("ebnf", API_BOTH, "[\"\"]", STRUCTURED),
    REFUSED("json_schema", API_BOTH, "[\"\"]", STRUCTURED),
    REFUSED("structural_tag", API_BOTH, "[\"\"]", STRUCTURED),
    REFUSED("guided_json", API_BOTH, NULL, STRUCTURED),
    REFUSED("guided_regex", API_BOTH, NULL, STRUCTURED),
    REFUSED("guided_choice", API_BOTH, NULL, STRUCTURED),
    REFUSED("guided_grammar", API_BOTH, NULL, STRUCTURED),

    /* what comes back */
    {"stream", API_BOTH, FIELD_BOOL, 0, 0, AT(stream), .words = "server-sent events"},
    {"stream_options", API_BOTH, FIELD_OBJECT, 0, 0, BY(store_stream_options), .words = "`include_usage`, `continuous_usage_stats`"},
    {"logprobs", API_CHAT, FIELD_BOOL, 0, 0, AT(logprobs), .words = "log-probabilities of the answer's tokens"},
    {"logprobs", API_COMPLETIONS, FIELD_INT, 0, SAMPLER_LOGPROBS_MOST, AT(logprob_count), .words = "log-probabilities of the "
     "answer's tokens and of as many alternatives"},
    {"top_logprobs", API_CHAT, FIELD_INT, 0, SAMPLER_LOGPROBS_MOST, AT(top_logprobs), .words = "alternatives for each token"},
    {"skip_special_tokens", API_COMPLETIONS, FIELD_BOOL, 0, 0, AT(skip_special), .words = "false: special tokens are text"},
    REFUSED("skip_special_tokens", API_CHAT, "[true]", "special tokens structure a chat answer; use /v1/completions to see them"),
    {"separate_reasoning", API_CHAT, FIELD_BOOL, 0, 0, AT(separate_reasoning), .words = "false: reasoning is part of the content, up to "
     "`</think>`"},
    {"stream_reasoning", API_CHAT, FIELD_BOOL, 0, 0, AT(stream_reasoning), .words = "false: reasoning comes in one piece "
     "when it is complete"},
    {"include_reasoning", API_CHAT, FIELD_BOOL, 0, 0, AT(include_reasoning), .words = "false: reasoning is not sent"},
    {"return_token_ids", API_BOTH, FIELD_BOOL, 0, 0, AT(return_token_ids), .words = "`token_ids` in each choice, and `prompt_token_ids`"},
    {"return_prompt_token_ids", API_BOTH, FIELD_BOOL, 0, 0, AT(return_prompt_token_ids), .words = "`prompt_token_ids`: of the whole answer "
     "(chat), of each choice (completions)"},
    {"return_cached_tokens_details", API_BOTH, FIELD_BOOL, 0, 0, AT(return_cached_details), .words = "`sglext.cached_tokens_details`"},
    {"return_spec_tokens_details", API_BOTH, FIELD_BOOL, 0, 0, AT(return_spec_details), .words = "`sglext.spec_tokens_details`"},
    REFUSED("return_meta_info", API_BOTH, "[false]", "not supported; use return_cached_tokens_details and return_spec_tokens_details"),
    REFUSED("return_hidden_states", API_BOTH, "[false]", "not supported; leave it out"),
    REFUSED("return_routed_experts", API_BOTH, "[false]", "not supported; leave it out"),
    REFUSED("return_tokens_as_token_ids", API_BOTH, "[false]", "not supported; use return_token_ids"),
    REFUSED("prompt_logprobs", API_BOTH, NULL, "not supported; logprobs are of the answer's tokens"),
    REFUSED("spaces_between_special_tokens", API_BOTH, "[true]", "not supported; text is never changed"),
    REFUSED("stream_interval", API_BOTH, "[1]", "every step is sent at once; leave it out"),

    /* who, and how it is served */
    {"user", API_BOTH, FIELD_STRING, 0, 4096, AT(user), .words = "no effect; short printable names are written to the access log"},
    {"safety_identifier", API_BOTH, FIELD_STRING, 0, 4096, .offset = FIELD_NOWHERE, .words = "no effect"},
    {"prompt_cache_key", API_BOTH, FIELD_STRING, 0, 4096, .offset = FIELD_NOWHERE, .words = "no effect: one cache serves all; use "
     "cache_salt to separate"},
    {"metadata", API_BOTH, FIELD_OBJECT, 0, 0, .offset = FIELD_NOWHERE, .words = "no effect: it belongs to stored answers, and "
     "nothing is stored"},
    {"service_tier", API_BOTH, FIELD_STRING, 0, 64, BY(store_tier), .words = "`auto` or `default`"},
    {"rid", API_BOTH, FIELD_STRING, 0, 256, AT(rid), .words = "id of the answer, for /abort_request"},
    {"request_id", API_BOTH, FIELD_STRING, 0, 256, AT(request_id), .words = "the same under vLLM's name"},
    {"cache_salt", API_BOTH, FIELD_STRING, 0, 256, AT(cache_salt), .words = "requests share cached prefixes only with the same salt"},
    {"extra_key", API_BOTH, FIELD_STRING, 0, 256, AT(extra_key), .words = "a second salt"},
    {"priority", API_BOTH, FIELD_INT, -1000000, 1000000, AT(spec.priority), .words = "larger goes first"},
    REFUSED("store", API_BOTH, "[false]", "answers are not stored; leave it out"),
    REFUSED("session_id", API_BOTH, "[\"\"]", NO_SESSIONS),
    REFUSED("session_params", API_BOTH, "[{}]", NO_SESSIONS),
    REFUSED("lora_path", API_BOTH, "[\"\"]", "adapters are not supported; serve the merged model"),
    REFUSED("custom_labels", API_BOTH, "[{}]", "metrics have no labels of clients; use user, which is logged"),
    REFUSED("bootstrap_host", API_BOTH, "[\"\"]", ONE_REPLICA),
    REFUSED("bootstrap_port", API_BOTH, NULL, ONE_REPLICA),
    REFUSED("bootstrap_room", API_BOTH, NULL, ONE_REPLICA),
    REFUSED("routed_dp_rank", API_BOTH, NULL, ONE_REPLICA),
    REFUSED("data_parallel_rank", API_BOTH, NULL, ONE_REPLICA),
    REFUSED("disagg_prefill_dp_rank", API_BOTH, NULL, ONE_REPLICA),
    REFUSED("kv_transfer_params", API_BOTH, "[{}]", ONE_REPLICA),
    REFUSED("vllm_xargs", API_BOTH, "[{}]", "has arguments of vLLM's plugins; leave it out"),
    REFUSED("chat_template", API_CHAT, "[\"\"]", "templates are not interpreted; the model's own format is used (docs/chat.md)"),
    REFUSED("documents", API_CHAT, "[[]]", "the chat format has no place for documents; put them in a message"),
    REFUSED("mm_processor_kwargs", API_CHAT, "[{}]", "the model takes text only"),
    REFUSED("modalities", API_CHAT, "[[\"text\"]]", "the model writes text only"),
    REFUSED("audio", API_CHAT, NULL, "the model writes text only"),
    REFUSED("prediction", API_CHAT, NULL, "not supported; the server speculates with the model's own draft layer"),
    REFUSED("verbosity", API_CHAT, "[\"medium\"]", "the model has no such setting; ask for it in a message"),
    REFUSED("web_search_options", API_CHAT, "[{}]", "the server does not search; offer a tool"),
    REFUSED("functions", API_CHAT, "[[]]", "deprecated by OpenAI; use tools"),
    REFUSED("function_call", API_CHAT, "[\"none\", \"auto\"]", "deprecated by OpenAI; use tool_choice"),
};

const size_t fields_count = sizeof fields_table / sizeof *fields_table;
