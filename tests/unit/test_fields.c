/* Requests of the OpenAI APIs: every field of the table works or is refused by name, and docs/api_openai.md has the same table. Then what
 * a request becomes: prompt tokens, parameters, forced calls. With the built-in model's tokenizer and chat format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "serve/openai.h"

#define NANO SOURCE_DIR "/models/nano"
#define USER "\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]"
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get_time\", \"parameters\": {\"type\": \"object\", " \
    "\"properties\": {}}}}, {\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\", " \
    "\"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}}}]"

static tokenizer *nano;
static openai_context context;

static int open_all(void **state)
{
    (void)state;
    error err = {0};
    nano = tokenizer_load(NANO "/tokenizer.json", &err);
    context = (openai_context){.tokenizer = nano, .format = nano ? chat_format_load(NANO, nano, NULL, &err) : NULL, .model_name = "nano"};
    if (!context.format) {
        print_error("%s\n", err.text);
        return -1;
    }
    context.defaults = sampler_params_default(tokenizer_size(nano));
    context.defaults.temperature = 0.6;
    context.defaults.top_p = 0.95;
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    chat_format_free((chat_format *)(uintptr_t)context.format);
    tokenizer_free(nano);
    return 0;
}

/* ---- reading requests ---- */

/* A request after reading; request_end frees it. */
typedef struct read_request {
    json_t *body;
    api_request r;
    openai_prompts prompts;
    request_error e;
    bool ok;
} read_request;

static read_request request(int api, const char *fields)
{
    read_request q = {0};
    text body = {0};
    error err = {0};
    text_add_format(&body, "{%s}", fields);
    q.body = json_parse(body.data, body.length, "test", &err);
    if (!q.body)
        fail_msg("%s: %s", body.data, err.text);
    text_free(&body);
    q.ok = api == API_CHAT ? openai_chat_read(&context, q.body, &q.r, &q.e)
                           : openai_completions_read(&context, q.body, &q.r, &q.prompts, &q.e);
    return q;
}

static void request_end(read_request *q)
{
    api_request_free(&q->r);
    openai_prompts_free(&q->prompts);
    json_decref(q->body);
}

static read_request accepted(int api, const char *fields)
{
    read_request q = request(api, fields);
    if (!q.ok)
        fail_msg("{%s} was refused: %s", fields, q.e.err.text);
    return q;
}

static void accept_request(int api, const char *fields)
{
    read_request q = accepted(api, fields);
    request_end(&q);
}

static void refuse(int api, const char *fields, int status, const char *param, const char *words)
{
    read_request q = request(api, fields);
    if (q.ok)
        fail_msg("{%s} was accepted, expected \"%s\"", fields, words);
    assert_int_equal(q.e.status, status);
    assert_string_equal(q.e.param, param);
    if (!strstr(q.e.err.text, words))
        fail_msg("{%s}: \"%s\" lacks \"%s\"", fields, q.e.err.text, words);
    request_end(&q);
}

#define CHAT(...) accept_request(API_CHAT, USER ", " __VA_ARGS__)
#define COMPLETE(...) accept_request(API_COMPLETIONS, "\"prompt\": \"hi\", " __VA_ARGS__)
#define CHAT_REFUSED(fields, param, words) refuse(API_CHAT, USER ", " fields, 400, param, words)
#define COMPLETE_REFUSED(fields, param, words) refuse(API_COMPLETIONS, "\"prompt\": \"hi\", " fields, 400, param, words)

/* ---- the table ---- */

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < fields_count; i++) {
        const field *f = &fields_table[i];
        for (size_t k = 0; k < i; k++)
            assert_true(strcmp(f->name, fields_table[k].name) != 0 || !(f->apis & fields_table[k].apis));
        assert_true(f->apis >= API_CHAT && f->apis <= API_BOTH);
        assert_true(f->refused ? f->words == NULL : f->words != NULL && f->neutral == NULL);
        if (f->type == FIELD_INT)
            assert_true(f->least < f->most && f->least >= -2147483648.0 && f->most <= 2147483647.0);
        json_t *neutral = f->neutral ? json_loads(f->neutral, 0, NULL) : NULL;
        assert_true(!f->neutral || json_array_size(neutral) > 0);
        json_decref(neutral);
    }
}

/* A refused field is refused with any value but its neutral ones; a field that works refuses values of another type. null is fine. */
static void check_row(const field *f, int api)
{
    text fields = {0};
    const char *base = api == API_CHAT ? USER : "\"prompt\": \"hi\"";
    bool base_has_it = strcmp(f->name, "messages") == 0 || strcmp(f->name, "prompt") == 0;
    json_t *neutral = f->neutral ? json_loads(f->neutral, 0, NULL) : NULL;
    for (size_t i = 0; i < json_array_size(neutral); i++) {
        char *value = json_dumps(json_array_get(neutral, i), JSON_ENCODE_ANY);
        text_clear(&fields);
        text_add_format(&fields, "%s, \"%s\": %s", base, f->name, value);
        accept_request(api, fields.data);
        free(value);
    }
    json_decref(neutral);
    text_clear(&fields);
    text_add_format(&fields, "%s, \"%s\": null", base, f->name);
    if (!base_has_it)
        accept_request(api, fields.data);
    text_clear(&fields);
    text_add_format(&fields, "%s\"%s\": {\"odd\": [\"value\"]}", base_has_it ? "" : api == API_CHAT ? USER ", " : "\"prompt\": \"hi\", ",
                    f->name);
    if (f->offset != FIELD_NOWHERE || f->store || f->refused)
        refuse(api, fields.data, 400, f->name, f->refused ? f->refused : f->name);
    text_free(&fields);
}

static void test_every_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < fields_count; i++)
        for (int api = API_CHAT; api <= API_COMPLETIONS; api++)
            if (fields_table[i].apis & api)
                check_row(&fields_table[i], api);
}

/* Every name of the survey of OpenAI's, sglang's and vLLM's requests has a row in the chat API. */
static void test_all_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "messages", "model", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "max_tokens",
        "max_completion_tokens", "n", "response_format", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "user",
        "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "top_k", "min_p", "min_tokens",
        "repetition_penalty", "stop_token_ids",
        "stop_regex", "no_stop_trim", "ignore_eos", "skip_special_tokens", "regex", "ebnf", "continue_final_message", "separate_reasoning",
        "stream_reasoning", "chat_template_kwargs", "input_ids", "rid", "extra_key", "cache_salt", "priority", "session_id",
        "session_params", "lora_path", "custom_logit_processor", "custom_params", "return_token_ids", "return_prompt_token_ids",
        "return_meta_info", "return_cached_tokens_details", "return_spec_tokens_details", "return_hidden_states", "return_routed_experts",
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank", "disagg_prefill_dp_rank", "custom_labels",
        "thinking_token_budget", "include_reasoning", "include_stop_str_in_output", "truncate_prompt_tokens", "prompt_logprobs",
        "allowed_token_ids", "bad_words", "echo", "add_generation_prompt", "chat_template", "documents", "structured_outputs", "request_id",
        "kv_transfer_params", "vllm_xargs", "repetition_detection", "stream_interval", "length_penalty", "use_beam_search", "store",
        "metadata", "service_tier", "timeout",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!fields_find(names[i], API_CHAT))
            fail_msg("%s has no row", names[i]);
    static const char *const others[] = {"prompt", "echo", "suffix", "best_of", "logprobs"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_non_null(fields_find(others[i], API_COMPLETIONS));
}

static void test_documentation(void **state)
{
    (void)state;
    text page = {0}, table = {0};
    error err = {0};
    fields_markdown(&table);
    assert_true(file_read(SOURCE_DIR "/docs/api_openai.md", 1 << 20, &page, &err));
    if (!strstr(page.data, table.data)) {
        fprintf(stderr, "%s", table.data);
        fail_msg("docs/api_openai.md must contain the table above");
    }
    text_free(&page);
    text_free(&table);
}

static void test_unknown_fields(void **state)
{
    (void)state;
    CHAT_REFUSED("\"temprature\": 1", "temprature", "did you mean temperature?");
    CHAT_REFUSED("\"max_token\": 1", "max_token", "did you mean max_tokens?");
    CHAT_REFUSED("\"quite_something_else\": 1", "quite_something_else", "unknown field; docs/api_openai.md");
    CHAT_REFUSED("\"prompt\": \"x\"", "prompt", "/v1/completions has this field, /v1/chat/completions does not");
    COMPLETE_REFUSED("\"tools\": []", "tools", "/v1/chat/completions has this field");
    CHAT_REFUSED("\"quite_something_else\": null", "quite_something_else", "unknown field");
}

static void test_values(void **state)
{
    (void)state;
    read_request q = accepted(API_CHAT, USER ", \"temperature\": 0, \"top_p\": 0.5, \"top_k\": 40, \"min_p\": 0.1, \"n\": 3, "
        "\"frequency_penalty\": 1, \"presence_penalty\": -1, \"repetition_penalty\": 1.1, \"seed\": -5, \"max_completion_tokens\": 9, "
        "\"min_tokens\": 2, \"stop\": [\"a\", \"bc\"], \"stop_token_ids\": [5], \"logit_bias\": {\"7\": -100, \"8\": 1.5}, \"logprobs\": "
        "true, \"top_logprobs\": 4, \"ignore_eos\": true, \"no_stop_trim\": true, \"rid\": \"r1\", \"cache_salt\": \"s\", "
        "\"extra_key\": \"k\", \"priority\": 3, \"timeout\": 1.5, \"stream\": true, \"stream_options\": {\"include_usage\": true, "
        "\"continuous_usage_stats\": true}, \"parallel_tool_calls\": false, \"separate_reasoning\": false, \"user\": \"someone\"");
    const generation_spec *s = &q.r.spec;
    assert_true(s->params.temperature == 0 && s->params.top_p == 0.5 && s->params.top_k == 40 && s->params.min_p == 0.1);
    assert_true(s->params.frequency_penalty == 1 && s->params.presence_penalty == -1 && s->params.repetition_penalty == 1.1);
    assert_true(s->choices == 3 && s->params.seed == (uint64_t)-5 && s->max_tokens == 9 && s->min_tokens == 2);
    assert_true(s->stop_count == 2 && strcmp(s->stops[1], "bc") == 0 && s->stop_ids.count == 1 && s->stop_ids.ids[0] == 5);
    assert_true(s->params.bias_count == 2 && s->params.bias == s->bias && s->bias[0].id == 7 && s->bias[1].bias == 1.5f);
    assert_true(s->params.logprobs == 4 && s->ignore_eos && s->keep_stop && s->priority == 3 && s->timeout_s == 1.5);
    assert_string_equal(s->rid, "r1");
    assert_string_equal(s->cache_salt, "s\nk");
    assert_true(q.r.stream && q.r.include_usage && q.r.continuous_usage && s->one_call && s->plain_reasoning);
    assert_string_equal(q.r.user, "someone");
    request_end(&q);
    q = accepted(API_CHAT, USER);
    assert_true(q.r.spec.params.temperature == 0.6 && q.r.spec.params.top_p == 0.95 && q.r.spec.params.logprobs == -1);
    assert_true(q.r.spec.choices == 1 && q.r.spec.max_tokens == 0 && !q.r.spec.one_call && q.r.spec.stop_count == 0);
    request_end(&q);
    q = accepted(API_COMPLETIONS, "\"prompt\": \"x\", \"logprobs\": 0, \"n\": 2, \"best_of\": 2, "
                                  "\"skip_special_tokens\": false, \"stop\": \"z\"");
    assert_true(q.r.spec.params.logprobs == 0 && q.r.spec.keep_special && q.r.spec.stop_count == 1 && !q.r.spec.chat);
    request_end(&q);
    CHAT("\"logprobs\": true");
    CHAT("\"length_penalty\": 1.0");
    q = accepted(API_CHAT, USER ", \"rid\": \"\", \"extra_key\": \"\"");
    assert_true(!q.r.spec.rid && !q.r.spec.cache_salt);
    request_end(&q);
    CHAT("\"max_tokens\": 5, \"max_completion_tokens\": 5");
    COMPLETE("\"temperature\": 1.0, \"n\": 2.0");
}

static void test_bad_values(void **state)
{
    (void)state;
    CHAT_REFUSED("\"temperature\": -1", "temperature", "from 0 to 100, found -1");
    CHAT_REFUSED("\"temperature\": \"1\"", "temperature", "expected a number, found a string");
    CHAT_REFUSED("\"top_p\": 0", "top_p", "from 1e-06 to 1");
    CHAT_REFUSED("\"n\": 17", "n", "from 1 to 16, found 17");
    CHAT_REFUSED("\"n\": 1.5", "n", "expected an integer");
    CHAT_REFUSED("\"max_tokens\": 0", "max_tokens", "from 1");
    CHAT_REFUSED("\"max_tokens\": 1e30", "max_tokens", "from 1");
    CHAT_REFUSED("\"max_tokens\": 4, \"max_completion_tokens\": 5", "max_tokens", "send one of them");
    CHAT_REFUSED("\"top_logprobs\": 2", "top_logprobs", "needs \"logprobs\": true");
    CHAT_REFUSED("\"logprobs\": true, \"top_logprobs\": 21", "top_logprobs", "to 20");
    COMPLETE_REFUSED("\"logprobs\": true", "logprobs", "expected an integer");
    COMPLETE_REFUSED("\"logprobs\": 2, \"echo\": true", "echo", "not supported together");
    COMPLETE_REFUSED("\"best_of\": 2", "best_of", "only the value of n (1)");
    CHAT_REFUSED("\"stop\": \"\"", "stop", "expected 1 to 1024 bytes");
    CHAT_REFUSED("\"stop\": [\"a\", 1]", "stop", "stop[1]: expected a string");
    CHAT_REFUSED("\"stop\": [\"a\\u0000b\"]", "stop", "without NUL");
    CHAT_REFUSED("\"stop\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]",
                 "stop", "at most 16");
    CHAT_REFUSED("\"stop_token_ids\": [-1]", "stop_token_ids", "stop_token_ids[0]: the model's tokens go from 0");
    CHAT_REFUSED("\"logit_bias\": {\"x\": 1}", "logit_bias", "token ids from 0");
    CHAT_REFUSED("\"logit_bias\": {\"1\": 101}", "logit_bias", "token 1 must be a number from -100 to 100");
    CHAT_REFUSED("\"logit_bias\": {\"99999999\": 1}", "logit_bias", "token ids from 0");
    CHAT_REFUSED("\"seed\": 1.5", "seed", "expected an integer");
    CHAT_REFUSED("\"stream_options\": {\"include_usage\": true}", "stream_options", "only allowed with \"stream\": true");
    CHAT_REFUSED("\"stream\": true, \"stream_options\": {\"x\": true}", "stream_options", "stream_options.x: unknown");
    CHAT_REFUSED("\"stream\": true, \"stream_options\": {\"include_usage\": 1}", "stream_options", "expected true or false");
    CHAT_REFUSED("\"reasoning_effort\": \"huge\"", "reasoning_effort", "expected \"none\"");
    CHAT_REFUSED("\"chat_template_kwargs\": {\"thinking\": true}", "chat_template_kwargs", "chat_template_kwargs.thinking");
    CHAT_REFUSED("\"chat_template_kwargs\": {\"enable_thinking\": 1}", "chat_template_kwargs", "expected true or false");
    CHAT_REFUSED("\"thinking\": {\"type\": \"maybe\"}", "thinking", "expected {");
    CHAT_REFUSED("\"thinking\": {\"type\": \"disabled\"}, \"chat_template_kwargs\": {\"enable_thinking\": true}", "thinking", "differ");
    CHAT_REFUSED("\"service_tier\": \"flex\"", "service_tier", "one tier");
    CHAT_REFUSED("\"rid\": \"a\", \"request_id\": \"b\"", "request_id", "differ");
    CHAT_REFUSED("\"rid\": \"a\\u0000\"", "rid", "NUL");
    CHAT_REFUSED("\"skip_special_tokens\": false", "skip_special_tokens", "use /v1/completions");
    CHAT_REFUSED("\"response_format\": {\"type\": \"json_object\"}", "response_format", "structured output is not supported");
    CHAT_REFUSED("\"store\": true", "store", "not stored");
}

static void test_model_name(void **state)
{
    (void)state;
    CHAT("\"model\": \"nano\"");
    CHAT("\"model\": \"\"");
    CHAT("\"model\": \"default\"");
    refuse(API_CHAT, USER ", \"model\": \"gpt-4\"", 404, "model", "this server has \"nano\"");
    read_request q = request(API_COMPLETIONS, "\"model\": \"other\"");
    assert_string_equal(q.e.code, "model_not_found");
    request_end(&q);
}

/* ---- prompts ---- */

/* The text of a prompt, control tokens included. */
static char *prompt_text(const token_list *prompt)
{
    text t = {0};
    tokenizer_decode(nano, prompt->ids, prompt->count, false, &t);
    return t.data;
}

static void expect_end(const char *fields, const char *end, bool in_thinking)
{
    read_request q = accepted(API_CHAT, fields);
    char *found = prompt_text(&q.r.spec.prompt);
    if (!text_ends_with(found, end))
        fail_msg("{%s} became \"%s\", expected \"%s\" at its end", fields, found, end);
    assert_int_equal(q.r.spec.in_thinking, in_thinking);
    free(found);
    request_end(&q);
}

static void test_rendering(void **state)
{
    (void)state;
    expect_end(USER, "<|user|>hi<|assistant|><think>", true);
    expect_end(USER ", \"chat_template_kwargs\": {\"enable_thinking\": false}", "<|user|>hi<|assistant|><think></think>", false);
    expect_end(USER ", \"thinking\": {\"type\": \"disabled\"}", "<|assistant|><think></think>", false);
    expect_end(USER ", \"thinking\": {\"type\": \"enabled\"}", "<|assistant|><think>", true);
    expect_end(USER ", \"reasoning_effort\": \"none\"", "<|user|>hi<|assistant|><think></think>", false);
    expect_end(USER ", \"reasoning_effort\": \"none\", \"chat_template_kwargs\": {\"enable_thinking\": true}", "<think>", true);
    expect_end(USER ", \"add_generation_prompt\": false", "<|user|>hi", false);
    expect_end("\"messages\": [{\"role\": \"developer\", \"content\": \"d\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
               "\"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]", "<|system|>d<|user|>ab<|assistant|><think>", true);
    expect_end("\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"The\", \"reasoning\": "
               "\"so\"}], \"continue_final_message\": true", "<|assistant|><think>so</think>The", false);
    read_request q = accepted(API_CHAT, USER ", \"reasoning_effort\": \"high\"");
    char *found = prompt_text(&q.r.spec.prompt);
    assert_non_null(strstr(found, "Reasoning Effort: High"));
    free(found);
    request_end(&q);
    q = accepted(API_CHAT, "\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"continue_final_message\": true");
    assert_true(q.r.spec.in_content);
    request_end(&q);
}

static void test_bad_messages(void **state)
{
    (void)state;
    refuse(API_CHAT, "", 400, "messages", "messages: missing");
    refuse(API_CHAT, "\"messages\": []", 400, "messages", "the array is empty");
    refuse(API_CHAT, "\"messages\": [{\"role\": \"robot\", \"content\": \"x\"}]", 400, "messages", "messages[0].role");
    refuse(API_CHAT, "\"messages\": [1]", 400, "messages", "messages[0]");
    refuse(API_CHAT, "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", 400, "messages",
           "\"image_url\" parts are not supported");
    refuse(API_CHAT, "\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"x\", \"reasoning_content\": \"y\"}]",
           400, "messages", "differ");
    CHAT_REFUSED("\"continue_final_message\": true", "continue_final_message", "must be the assistant's");
    CHAT_REFUSED("\"continue_final_message\": true, \"add_generation_prompt\": true", "continue_final_message", "exclude each other");
    CHAT_REFUSED("\"chat_template_kwargs\": {\"clear_thinking\": false}", "chat_template_kwargs", "clear_thinking");
}

static void test_input_ids(void **state)
{
    (void)state;
    char fields[96];
    int think = (int)chat_format_id(context.format, CHAT_THINK), end = (int)chat_format_id(context.format, CHAT_THINK_END);
    snprintf(fields, sizeof fields, "\"messages\": [], \"input_ids\": [5, %d, 6]", think);
    read_request q = accepted(API_CHAT, fields);
    assert_true(q.r.spec.in_thinking && q.r.spec.prompt.count == 3 && q.r.spec.prompt.ids[2] == 6);
    request_end(&q);
    snprintf(fields, sizeof fields, "\"input_ids\": [%d, 6, %d]", think, end);
    q = accepted(API_CHAT, fields);
    assert_false(q.r.spec.in_thinking);
    request_end(&q);
    CHAT_REFUSED("\"input_ids\": [1]", "input_ids", "leave out messages");
    refuse(API_CHAT, "\"input_ids\": []", 400, "input_ids", "empty");
    refuse(API_CHAT, "\"input_ids\": [99999999]", 400, "input_ids", "input_ids[0]: the model's tokens go from 0");
}

static void test_tools(void **state)
{
    (void)state;
    read_request q = accepted(API_CHAT, USER ", " TOOLS);
    char *found = prompt_text(&q.r.spec.prompt);
    assert_non_null(strstr(found, "get_time"));
    assert_true(q.r.spec.tools && q.r.spec.forced.count == 0 && q.r.spec.in_thinking);
    free(found);
    request_end(&q);
    q = accepted(API_CHAT, USER ", " TOOLS ", \"tool_choice\": \"none\"");
    found = prompt_text(&q.r.spec.prompt);
    assert_null(strstr(found, "get_time"));
    assert_null(q.r.spec.tools);
    free(found);
    request_end(&q);
    q = accepted(API_CHAT, USER ", " TOOLS ", \"tool_choice\": \"required\"");
    assert_true(q.r.spec.forced.count == 1 && q.r.spec.forced.ids[0] == chat_format_id(context.format, CHAT_CALL) && !q.r.spec.one_call);
    request_end(&q);
    expect_end(USER ", " TOOLS ", \"tool_choice\": \"required\"", "<|assistant|><think></think><tool_call>", false);
    expect_end(USER ", " TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"get_time\"}}",
               "</think><tool_call>get_time", false);
    expect_end(USER ", " TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"add\"}}",
               "</think><tool_call>add<arg_key>", false);
    q = accepted(API_CHAT, USER ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"only\"}}], "
                           "\"tool_choice\": \"required\"");
    found = prompt_text(&q.r.spec.prompt);
    assert_true(text_ends_with(found, "<tool_call>only") && !q.r.spec.one_call);
    free(found);
    request_end(&q);
    CHAT_REFUSED(TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"sub\"}}", "tool_choice", "\"sub\" is not");
    CHAT_REFUSED(TOOLS ", \"tool_choice\": \"sometimes\"", "tool_choice", "expected \"auto\"");
    CHAT_REFUSED("\"tool_choice\": \"required\"", "tool_choice", "needs tools");
    CHAT_REFUSED("\"tools\": [{\"type\": \"search\"}]", "tools", "tools[0].type");
    CHAT_REFUSED("\"tools\": [{\"type\": \"function\"}]", "tools", "tools[0].function");
    CHAT_REFUSED("\"tools\": [{\"type\": \"function\", \"function\": {}}]", "tools", "tools[0].function.name");
    CHAT_REFUSED("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"parameters\": []}}]", "tools", "parameters");
    CHAT_REFUSED("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\"}}, {\"type\": \"function\", \"function\": {\"name\": "
                 "\"a\"}}]", "tools", "earlier tool");
}

static void test_completion_prompts(void **state)
{
    (void)state;
    static const struct { const char *prompt; int count; size_t first; } cases[] = {
        {"\"hi\"", 1, 0}, {"[1, 2, 3]", 1, 3}, {"[\"a\", \"b\"]", 2, 0}, {"[[1, 2], [3]]", 2, 2}, {"[[1], \"b\"]", 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text fields = {0};
        text_add_format(&fields, "\"prompt\": %s", cases[i].prompt);
        read_request q = accepted(API_COMPLETIONS, fields.data);
        assert_int_equal(q.prompts.count, cases[i].count);
        assert_true(cases[i].first == 0 || q.prompts.tokens[0].count == cases[i].first);
        request_end(&q);
        text_free(&fields);
    }
    refuse(API_COMPLETIONS, "", 400, "prompt", "prompt: missing");
    refuse(API_COMPLETIONS, "\"prompt\": \"\"", 400, "prompt", "the prompt is empty");
    refuse(API_COMPLETIONS, "\"prompt\": []", 400, "prompt", "expected 1 to 64 prompts");
    refuse(API_COMPLETIONS, "\"prompt\": [[]]", 400, "prompt", "prompt[0]: the array is empty");
    refuse(API_COMPLETIONS, "\"prompt\": [1, \"a\"]", 400, "prompt", "prompt[1]: expected a token id");
    refuse(API_COMPLETIONS, "\"prompt\": [1.5]", 400, "prompt", "prompt[0]: expected a string or");
    refuse(API_COMPLETIONS, "\"prompt\": [[99999999]]", 400, "prompt", "the model's tokens go from 0");
}

static void test_random(void **state)
{
    (void)state;
    char a[25], b[25];
    openai_random_hex(a, 12);
    openai_random_hex(b, 12);
    assert_int_equal(strlen(a), 24);
    assert_string_not_equal(a, b);
    assert_int_equal(strspn(a, "0123456789abcdef"), 24);
    assert_true(openai_random_seed() != openai_random_seed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_every_row),  cmocka_unit_test(test_all_names),
        cmocka_unit_test(test_documentation),  cmocka_unit_test(test_values),     cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_unknown_fields), cmocka_unit_test(test_model_name), cmocka_unit_test(test_rendering),
        cmocka_unit_test(test_bad_messages),   cmocka_unit_test(test_input_ids),  cmocka_unit_test(test_tools),
        cmocka_unit_test(test_completion_prompts), cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
