/* The native API and operation on a fake server: every field works or is refused by name; answers, streams, failures; loads and orders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../tiny_tokenizer.h"
#include "serve/native_request.h"
#include "serve_fakes.h"

static tokenizer *tiny;
static chat_format *nano;

static json_t *parse(const char *json)
{
    error err = {0};
    json_t *v = json_parse(json, strlen(json), "test", &err);
    if (!v)
        fail_msg("%s in %s", err.text, json);
    return v;
}

static server fake_server(void)
{
    error err = {0};
    tiny = tiny ? tiny : tiny_tokenizer(CHAT_TEXT);
    nano = nano ? nano : chat_format_load(NULL, tiny, "nano", &err);
    server s = {.tokenizer = tiny, .format = nano, .defaults = sampler_params_default(TINY_COUNT)};
    s.options.model_name = "m";
    s.options.model_path = "models/m";
    fake_reset();
    return s;
}

/* ---- /generate: fields ---- */

static void expect_refusal(const char *body, const char *expected)
{
    error err = {0};
    native_request r;
    json_t *b = parse(body);
    if (native_request_read(b, tiny, &r, &err))
        fail_msg("accepted %s, expected \"%s\"", body, expected);
    if (strncmp(err.text, expected, strlen(expected)) != 0)
        fail_msg("expected \"%s\", found \"%s\"", expected, err.text);
    native_request_free(&r);
    json_decref(b);
}

static void test_generate_refusals(void **state)
{
    static const char *const rows[][2] = {
        {"{}", "text: send exactly one of text and input_ids"},
        {"{\"text\":\"a\",\"input_ids\":[1]}", "text: send exactly one of"},
        {"{\"text\":1}", "text: expected a string or an array"},
        {"{\"text\":[]}", "text: expected 1 to 64 prompts, found 0"},
        {"{\"text\":[\"a\",2]}", "text: expected a string or an array"},
        {"{\"input_ids\":5}", "input_ids: expected an array of token ids"},
        {"{\"input_ids\":[1,\"a\"]}", "input_ids[1]: expected a token id"},
        {"{\"input_ids\":[100000]}", "input_ids[0]: the model's tokens go from 0 to"},
        {"{\"input_ids\":[[1],2]}", "input_ids: expected an array of token ids, found"},
        {"{\"text\":\"a\",\"prompt\":\"b\"}", "prompt: not a field of this API"},
        {"{\"text\":\"a\",\"stream\":1}", "stream: expected true or false"},
        {"{\"text\":\"a\",\"return_logprob\":[true]}", "return_logprob: expected true or false"},
        {"{\"text\":\"a\",\"top_logprobs_num\":21,\"return_logprob\":true}", "top_logprobs_num: must be from 0 to 20, found 21"},
        {"{\"text\":\"a\",\"top_logprobs_num\":2}", "top_logprobs_num: needs return_logprob"},
        {"{\"text\":\"a\",\"return_text_in_logprobs\":true}", "return_text_in_logprobs: needs return_logprob"},
        {"{\"text\":\"a\",\"logprob_start_len\":0}", "logprob_start_len: log-probabilities of the prompt"},
        {"{\"text\":\"a\",\"rid\":[\"x\"]}", "rid: expected a string, because"},
        {"{\"text\":[\"a\",\"b\"],\"rid\":[\"x\"]}", "rid: expected 2 strings"},
        {"{\"text\":\"a\",\"rid\":\"\"}", "rid: expected a string of 1 to 256 bytes"},
        {"{\"text\":\"a\",\"priority\":1.5}", "priority: expected an integer"},
        {"{\"text\":\"a\",\"no_logs\":1}", "no_logs: expected true or false"},
        {"{\"text\":\"a\",\"cache_salt\":1}", "cache_salt: expected a string"},
        {"{\"text\":\"a\",\"sampling_params\":[{}]}", "sampling_params: expected an object"},
    };
    static const char *const sampling[][2] = {
        {"\"max_new_tokens\":0", "max_new_tokens: must be from 1"},
        {"\"max_new_tokens\":4,\"min_new_tokens\":5", "min_new_tokens: must not be more than max_new_tokens, found 5 and 4"},
        {"\"stop\":\"\"", "stop: a stop string has 1 to 1024 bytes"},
        {"\"stop\":[1]", "stop: expected a string"},
        {"\"stop_token_ids\":[-1]", "stop_token_ids[0]: the model's tokens"},
        {"\"temperature\":\"1\"", "temperature: expected a number"},
        {"\"top_k\":0", "top_k: must be at least 1, or -1"},
        {"\"n\":17", "n: must be from 1 to 16, found 17"},
        {"\"ignore_eos\":0", "ignore_eos: expected true or false"},
        {"\"seed\":-1", "seed: expected an integer that is not negative"},
        {"\"seed\":1,\"sampling_seed\":2", "sampling_seed: seed and sampling_seed are the same field"},
        {"\"logit_bias\":{\"x\":1}", "logit_bias: \"x\" is not a token id"},
        {"\"logit_bias\":{\"1\":101}", "logit_bias.1: expected a number from -100 to 100"},
        {"\"spaces_between_special_tokens\":false", "spaces_between_special_tokens: not supported"},
        {"\"stream_interval\":2", "stream_interval: not supported"},
        {"\"stop_regex\":\"a+\"", "stop_regex: not supported: use stop"},
        {"\"regex\":\"a+\"", "regex: not supported: structured output"},
        {"\"json_schema\":\"{}\"", "json_schema: not supported"},
        {"\"ebnf\":\"x\"", "ebnf: not supported"},
        {"\"structural_tag\":\"x\"", "structural_tag: not supported"},
        {"\"custom_params\":{\"a\":1}", "custom_params: not supported"},
        {"\"max_tokens\":5", "max_tokens: not a field"},
    };
    (void)state;
    fake_server();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_refusal(rows[i][0], rows[i][1]);
    for (size_t i = 0; i < sizeof sampling / sizeof *sampling; i++) {
        text body = {0}, expected = {0};
        text_add_format(&body, "{\"text\":\"a\",\"sampling_params\":{%s}}", sampling[i][0]);
        text_add_format(&expected, "sampling_params.%s", sampling[i][1]);
        expect_refusal(body.data, expected.data);
        text_free(&body);
        text_free(&expected);
    }
    expect_refusal("{\"text\":\"a\",\"sampling_params\":{\"top_p\":0}}", "sampling_params: top_p");
    expect_refusal("{\"text\":\"a\",\"sampling_params\":{\"min_p\":2}}", "sampling_params: min_p");
    expect_refusal("{\"text\":\"a\",\"sampling_params\":{\"repetition_penalty\":0}}", "sampling_params: repetition_penalty");
    expect_refusal("{\"text\":\"a\",\"sampling_params\":{\"presence_penalty\":3}}", "sampling_params: presence_penalty");
    expect_refusal("{\"text\":\"a\",\"sampling_params\":{\"frequency_penalty\":-3}}", "sampling_params: frequency_penalty");
}

/* The rest of sglang's fields: refused by name, null and values without an effect accepted. */
static void test_generate_foreign_fields(void **state)
{
    static const char *const rows[][3] = {
        {"log_metrics", "false", "true"}, {"input_embeds", "[[1]]", "null"}, {"image_data", "\"x\"", "[]"}, {"video_data", "\"x\"", "null"},
        {"audio_data", "\"x\"", "null"}, {"modalities", "[\"image\"]", "[]"}, {"mm_hashes", "[\"x\"]", "[]"},
        {"mm_content_hashes", "[\"x\"]", "null"}, {"use_audio_in_video", "true", "false"}, {"video_config", "{\"a\":1}", "{}"},
        {"images_config", "{\"a\":1}", "{}"}, {"max_dynamic_patch", "1", "null"}, {"min_dynamic_patch", "1", "null"},
        {"image_max_dynamic_patch", "1", "null"}, {"video_max_dynamic_patch", "1", "null"}, {"need_wait_for_mm_inputs", "true", "false"},
        {"num_items_assigned", "{\"a\":1}", "null"}, {"encoder_urls", "[\"x\"]", "[]"}, {"token_ids_logprob", "[1]", "[]"},
        {"return_sampling_mask", "true", "false"}, {"return_flat_raw_top_logprobs", "true", "false"},
        {"return_flat_raw_top_logprobs_b64", "true", "false"}, {"return_hidden_states", "true", "false"},
        {"return_routed_experts", "true", "false"}, {"routed_experts_start_len", "1", "0"}, {"return_indexer_topk", "true", "false"},
        {"return_entropy", "true", "false"}, {"return_bytes", "true", "false"}, {"session_params", "{\"id\":\"x\"}", "{}"},
        {"session_id", "\"x\"", "null"}, {"lora_path", "\"x\"", "\"\""}, {"lora_id", "\"x\"", "null"},
        {"custom_logit_processor", "\"x\"", "null"}, {"positional_embed_overrides", "1", "null"},
        {"multi_item_delimiter_indices", "[1]", "null"}, {"bootstrap_host", "\"x\"", "null"}, {"bootstrap_port", "1", "null"},
        {"bootstrap_room", "1", "null"}, {"bootstrap_pair_key", "\"x\"", "null"}, {"decode_tp_size", "1", "null"},
        {"disagg_prefill_dp_rank", "0", "null"}, {"kv_router_hint", "{\"a\":1}", "{}"}, {"routed_dp_rank", "1", "0"},
        {"data_parallel_rank", "1", "0"}, {"routing_key", "\"x\"", "null"}, {"conversation_id", "\"x\"", "null"},
        {"http_worker_ipc", "\"x\"", "null"}, {"background", "true", "false"}, {"require_reasoning", "true", "false"},
        {"max_thinking_tokens", "1", "null"}, {"custom_labels", "{\"a\":\"b\"}", "{}"}, {"external_trace_header", "{\"a\":1}", "null"},
        {"received_time", "1.5", "null"},
    };
    (void)state;
    fake_server();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text body = {0}, expected = {0};
        error err = {0};
        native_request r;
        text_add_format(&body, "{\"text\":\"a\",\"%s\":%s}", rows[i][0], rows[i][1]);
        text_add_format(&expected, "%s: not supported: ", rows[i][0]);
        expect_refusal(body.data, expected.data);
        text_clear(&body);
        text_add_format(&body, "{\"text\":\"a\",\"%s\":%s}", rows[i][0], rows[i][2]);
        json_t *b = parse(body.data);
        if (!native_request_read(b, tiny, &r, &err))
            fail_msg("%s", err.text);
        native_request_free(&r);
        json_decref(b);
        text_free(&body);
        text_free(&expected);
    }
}

static void test_generate_fields_work(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"text\":\"ab\",\"rid\":\"r\",\"priority\":3,\"cache_salt\":\"c\",\"extra_key\":\"k\","
                       "\"return_logprob\":true,"
                               "\"top_logprobs_num\":2,\"logprob_start_len\":-1,\"no_logs\":true,\"sampling_params\":{\"max_new_tokens\":9,"
                               "\"min_new_tokens\":2,\"stop\":[\"x\",\"y\"],\"stop_token_ids\":[5],\"temperature\":0.5,\"top_p\":0.9,"
                               "\"top_k\":7,"
                               "\"min_p\":0.1,\"frequency_penalty\":0.2,\"presence_penalty\":0.3,\"repetition_penalty\":1.1,\"n\":2,"
                               "\"ignore_eos\":true,\"skip_special_tokens\":false,\"no_stop_trim\":true,\"logit_bias\":{\"7\":1.5},"
                               "\"seed\":11,\"spaces_between_special_tokens\":true}}"};
    handle_generate(&s, &x, NULL);
    assert_int_equal(fake_generation_count, 1);
    const generation_spec *g = &fake_generations[0].spec;
    assert_int_equal(g->prompt.count, 2);
    assert_string_equal(g->rid, "r");
    assert_string_equal(g->cache_salt, "c\nk");
    assert_true(!g->chat && g->priority == 3 && g->max_tokens == 9 && g->min_tokens == 2 && g->choices == 2);
    assert_true(g->stop_count == 2 && g->stop_ids.count == 1 && g->stop_ids.ids[0] == 5);
    const sampler_params *p = &g->params;
    assert_true(p->temperature == 0.5 && p->top_p == 0.9 && p->top_k == 7 && p->min_p == 0.1 && p->seed == 11 && p->logprobs == 2);
    assert_true(p->frequency_penalty == 0.2 && p->presence_penalty == 0.3 && p->repetition_penalty == 1.1);
    assert_true(g->ignore_eos && g->keep_special && g->keep_stop && p->bias_count == 1 && g->bias[0].id == 7 && g->bias[0].bias == 1.5F);
    x.closed(x.context);
    assert_true(fake_generations[0].cancelled);
    fake_exchange_free(&x);
    fake_reset();
}

static void test_generate_defaults(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"input_ids\":[1,2,3],\"sampling_params\":{\"top_k\":1073741824}}"};
    handle_generate(&s, &x, NULL);
    const generation_spec *g = &fake_generations[0].spec;
    assert_true(g->max_tokens == 128 && g->choices == 1 && g->params.temperature == 1 && g->params.top_p == 1 && g->params.top_k == -1);
    assert_true(g->params.logprobs == -1 && !g->keep_special && !g->keep_stop && !g->cache_salt);
    assert_string_equal(g->rid, "req-1");
    x.closed(x.context);
    fake_reset();
    fake_facts.max_context = 100;
    handle_generate(&s, &x, NULL);
    assert_int_equal(fake_generations[0].spec.max_tokens, 97);
    x.closed(x.context);
    fake_facts.max_context = 1000;
    fake_exchange_free(&x);
    fake_reset();
}

/* ---- /generate: answers ---- */

static void give_token(generation *g, int choice, int32_t id, const char *words, const sampler_result *result)
{
    generation_token t = {id, result};
    if (!g->cancelled)
        g->sink.tokens(g->sink.context, choice, &t, 1);
    fake_piece(g, choice, CHAT_EVENT_CONTENT, words);
    fake_step(g, choice);
}

static const json_t *at(const json_t *value, const char *path)
{
    char key[64];
    while (value && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        value = key[0] >= '0' && key[0] <= '9' ? json_array_get(value, (size_t)atoi(key)) : json_object_get(value, key);
        path += n + (path[n] == '.');
    }
    return value;
}

static void expect_at(const json_t *value, const char *path, const char *expected)
{
    char *found = json_dumps(at(value, path), JSON_COMPACT | JSON_ENCODE_ANY);
    if (!found || strcmp(found, expected) != 0)
        fail_msg("%s: expected %s, found %s", path, expected, found ? found : "nothing");
    free(found);
}

static void test_generate_whole(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"text\":\"ab\",\"return_logprob\":true,\"top_logprobs_num\":1,\"return_text_in_logprobs\":true,"
                               "\"return_prompt_token_ids\":true}"};
    sampler_result r = {.token = 'H', .logprob = -0.5, .top_count = 1, .top = {{'I', -0.25}}};
    handle_generate(&s, &x, NULL);
    generation *g = &fake_generations[0];
    give_token(g, 0, 'H', "H", &r);
    g->usage.verify_steps = 2;
    g->usage.accepted = 1;
    g->usage.drafted = 4;
    fake_facts.spec.simulate = 3.5;
    fake_finish(g, 0, (generation_finish){.end = GENERATION_STOP, .stop_id = 17});
    fake_done(g);
    assert_int_equal(x.status, 200);
    expect_at(x.reply, "text", "\"H\"");
    expect_at(x.reply, "output_ids", "[72]");
    expect_at(x.reply, "prompt_token_ids", "[97,98]");
    expect_at(x.reply, "meta_info.id", "\"req-1\"");
    expect_at(x.reply, "meta_info.finish_reason", "{\"type\":\"stop\",\"matched\":17}");
    expect_at(x.reply, "meta_info.prompt_tokens", "2");
    expect_at(x.reply, "meta_info.completion_tokens", "1");
    expect_at(x.reply, "meta_info.cached_tokens", "2");
    expect_at(x.reply, "meta_info.spec_accept_length", "1.5");
    expect_at(x.reply, "meta_info.spec_accept_rate", "0.25");
    expect_at(x.reply, "meta_info.spec_simulated", "true");
    expect_at(x.reply, "meta_info.output_token_logprobs", "[[-0.5,72,\"H\"]]");
    expect_at(x.reply, "meta_info.output_top_logprobs", "[[[-0.25,73,\"I\"]]]");
    assert_true(json_is_real(at(x.reply, "meta_info.e2e_latency")));
    fake_facts.spec.simulate = 0;
    fake_exchange_free(&x);
    fake_reset();
}

static void test_generate_lists(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"text\":[\"a\",\"bc\"],\"rid\":\"r\",\"sampling_params\":{\"n\":2}}"};
    handle_generate(&s, &x, NULL);
    assert_int_equal(fake_generation_count, 2);
    for (int i = 1; i >= 0; i--)
        for (int k = 0; k < 2; k++) {
            char words[2] = {(char)('a' + 2 * i + k), '\0'};
            assert_int_equal(x.status, 0);
            give_token(&fake_generations[i], k, words[0], words, NULL);
            fake_finish(&fake_generations[i], k, (generation_finish){.end = k ? GENERATION_LENGTH : GENERATION_STOP, .stop_text = "END"});
            if (k == 1)
                fake_done(&fake_generations[i]);
        }
    assert_int_equal(json_array_size(x.reply), 4);
    expect_at(x.reply, "0.text", "\"a\"");
    expect_at(x.reply, "1.text", "\"b\"");
    expect_at(x.reply, "3.text", "\"d\"");
    expect_at(x.reply, "0.meta_info.id", "\"r_0\"");
    expect_at(x.reply, "3.meta_info.id", "\"r_1\"");
    expect_at(x.reply, "3.meta_info.prompt_tokens", "2");
    expect_at(x.reply, "0.meta_info.finish_reason", "{\"type\":\"stop\",\"matched\":\"END\"}");
    expect_at(x.reply, "1.meta_info.finish_reason", "{\"type\":\"length\",\"length\":1}");
    fake_exchange_free(&x);
    fake_reset();
}

static void test_generate_stream(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"text\":\"a\",\"stream\":true}"};
    handle_generate(&s, &x, NULL);
    assert_true(x.streaming);
    generation *g = &fake_generations[0];
    give_token(g, 0, 'H', "H", NULL);
    assert_non_null(strstr(x.body_out.data, "\"finish_reason\":null"));
    give_token(g, 0, 'i', "i", NULL);
    assert_non_null(strstr(x.body_out.data, "\"output_ids\":[72,105],\"text\":\"Hi\""));
    fake_finish(g, 0, (generation_finish){.end = GENERATION_ABORTED, .failure = "the request was aborted"});
    fake_done(g);
    assert_non_null(strstr(x.body_out.data, "\"finish_reason\":{\"message\":\"the request was aborted\",\"type\":\"abort\"}"));
    assert_true(x.ended && text_ends_with(x.body_out.data, "data: [DONE]\n\n"));
    assert_null(strstr(x.body_out.data, "\"index\""));
    fake_exchange_free(&x);
    fake_reset();
}

/* The client goes away in any of the writes, or between two steps. */
static void test_generate_closed(void **state)
{
    (void)state;
    for (int close_at = 0; close_at < 6; close_at++) {
        server s = fake_server();
        http_exchange x = {.body = "{\"text\":[\"a\",\"b\"],\"stream\":true}", .close_at = close_at};
        handle_generate(&s, &x, NULL);
        for (int i = 0; i < 2; i++) {
            generation *g = &fake_generations[i];
            give_token(g, 0, 'H', "H", NULL);
            if (close_at == 0 && i == 0)
                x.closed(x.context);
            fake_finish(g, 0, (generation_finish){.end = GENERATION_LENGTH});
            fake_done(g);
        }
        assert_int_equal(fake_generations[0].cancelled, close_at < 3);
        assert_int_equal(fake_generations[1].cancelled, close_at < 5);
        assert_false(x.ended);
        fake_exchange_free(&x);
        fake_reset();
    }
}

static void test_generate_failures(void **state)
{
    (void)state;
    for (int list = 0; list < 2; list++) {
        server s = fake_server();
        http_exchange x = {.body = list ? "{\"text\":[\"a\",\"b\"]}" : "{\"text\":\"a\"}"};
        handle_generate(&s, &x, NULL);
        for (int i = 0; i <= list; i++) {
            fake_finish(&fake_generations[i], 0, (generation_finish){.end = GENERATION_TIMEOUT, .failure = "too slow"});
            fake_done(&fake_generations[i]);
        }
        assert_int_equal(x.status, list ? 200 : 504);
        assert_non_null(strstr(x.body_out.data, "too slow"));
        fake_exchange_free(&x);
        fake_reset();
    }
    server s = fake_server();
    http_exchange x = {.body = "{\"text\":[\"a\",\"b\",\"c\"]}"};
    fake_refuse_status = 503;
    fake_refuse_from = 2;
    handle_generate(&s, &x, NULL);
    assert_int_equal(x.status, 503);
    assert_string_equal(x.headers.data, "retry-after: 7\n");
    assert_true(fake_generations[0].cancelled && fake_generations[1].cancelled && !x.closed);
    fake_exchange_free(&x);
    s.draining = true;
    x.body = "{\"text\":\"a\"}";
    handle_generate(&s, &x, NULL);
    assert_int_equal(x.status, 503);
    fake_exchange_free(&x);
    fake_reset();
}

/* ---- /tokenize, /detokenize ---- */

static void expect_reply(server_handler handler, const char *body, int status, const char *expected)
{
    server s = fake_server();
    http_exchange x = {.body = body};
    handler(&s, &x, NULL);
    if (x.status != status || (status == 200 ? strcmp(x.body_out.data, expected) != 0 : !strstr(x.body_out.data, expected)))
        fail_msg("%s: expected %d %s, found %d %s", body, status, expected, x.status, x.body_out.data);
    fake_exchange_free(&x);
}

static void test_tokenize(void **state)
{
    (void)state;
    expect_reply(handle_tokenize, "{\"prompt\":\"ab\",\"model\":\"m\",\"add_special_tokens\":true}", 200,
                 "{\"tokens\":[97,98],\"count\":2,\"max_model_len\":1000}");
    expect_reply(handle_tokenize, "{\"text\":\"a\",\"return_token_strs\":true}", 200,
                 "{\"tokens\":[97],\"count\":1,\"max_model_len\":1000,\"token_strs\":[\"a\"]}");
    expect_reply(handle_tokenize, "{\"prompt\":[\"a\",\"bc\"]}", 200, "{\"tokens\":[[97],[98,99]],\"count\":[1,2],\"max_model_len\":1000}");
    /* [gMASK] <sop> <|user|> a <|assistant|> <think> </think> */
    expect_reply(handle_tokenize, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                 "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
                 200, "{\"tokens\":[267,268,271,97,272,274,275],\"count\":7,\"max_model_len\":1000}");
    expect_reply(handle_tokenize, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"add_generation_prompt\":false,"
                 "\"chat_template_kwargs\":{\"enable_thinking\":false}}", 200,
                 "{\"tokens\":[267,268,271,97],\"count\":4,\"max_model_len\":1000}");
    expect_reply(handle_tokenize, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}],"
                 "\"continue_final_message\":true,\"chat_template_kwargs\":{\"enable_thinking\":false}}", 200,
                 "{\"tokens\":[267,268,271,97,272,274,275,98],\"count\":8,\"max_model_len\":1000}");
    expect_reply(handle_tokenize, "{\"prompt\":\"a\",\"model\":\"x\"}", 404, "model: there is no model \"x\"");
    expect_reply(handle_tokenize, "{}", 400, "prompt: send exactly one of");
    expect_reply(handle_tokenize, "{\"prompt\":\"a\",\"text\":\"b\"}", 400, "prompt: send exactly one of");
    expect_reply(handle_tokenize, "{\"prompt\":[1]}", 400, "prompt: expected a string or an array");
    expect_reply(handle_tokenize, "{\"prompt\":[]}", 400, "prompt: expected 1 to 64 prompts");
    expect_reply(handle_tokenize, "{\"prompt\":\"a\",\"tools\":[]}", 400, "tools: goes with messages only");
    expect_reply(handle_tokenize, "{\"prompt\":\"a\",\"chat_template\":\"x\"}", 400, "chat_template: not supported");
    expect_reply(handle_tokenize, "{\"prompt\":\"a\",\"add_special_tokens\":1}", 400, "add_special_tokens: expected true or false");
    expect_reply(handle_tokenize, "{\"messages\":[]}", 400, "messages: the array is empty");
    expect_reply(handle_tokenize, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{\"x\":1}}", 400,
                 "chat_template_kwargs: x: not supported");
    expect_reply(handle_tokenize, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"continue_final_message\":true,"
                 "\"add_generation_prompt\":true}", 400, "continue_final_message: does not go with");
}

static void test_detokenize(void **state)
{
    (void)state;
    expect_reply(handle_detokenize, "{\"tokens\":[97,267,98]}", 200, "{\"text\":\"ab\",\"prompt\":\"ab\"}");
    expect_reply(handle_detokenize, "{\"tokens\":[97,267],\"skip_special_tokens\":false}", 200,
                 "{\"text\":\"a[gMASK]\",\"prompt\":\"a[gMASK]\"}");
    expect_reply(handle_detokenize, "{\"tokens\":[[97],[98]]}", 200, "{\"text\":[\"a\",\"b\"],\"prompt\":[\"a\",\"b\"]}");
    expect_reply(handle_detokenize, "{\"tokens\":[]}", 200, "{\"text\":\"\",\"prompt\":\"\"}");
    expect_reply(handle_detokenize, "{\"tokens\":[99999]}", 400, "tokens[0]: expected a token id from 0 to");
    expect_reply(handle_detokenize, "{\"tokens\":\"a\"}", 400, "tokens: expected an array of token ids");
    expect_reply(handle_detokenize, "{}", 400, "tokens: expected an array");
    expect_reply(handle_detokenize, "{\"tokens\":[1],\"x\":1}", 400, "x: not supported");
}

/* ---- operation ---- */

static void fill_counters(void)
{
    fake_counters = (engine_counters){.running = 2, .waiting = 1, .decoding = 2, .pages = 80, .free_pages = 40, .idle_pages = 30,
                                      .prompt_tokens = 200, .cached_tokens = 50, .output_tokens = 10, .preemptions = 3,
                                      .spec_words = "on"};
    fake_counters.spec.tried[0] = 10;
    fake_counters.spec.right[0] = 5;
    fake_counters.spec.verify_steps = 10;
    fake_counters.spec.verify_tokens = 15;
    fake_counters.finished[ENGINE_LENGTH] = 4;
    fake_counters.dispatch = (dispatch_counts){12, 7, 4, 1};
}

static void test_server_info(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.path = "/get_server_info"};
    fill_counters();
    fake_counters.spec_simulated = true;
    fake_facts.spec = (spec_options){.mode = SPEC_FIXED, .depth = 5, .simulate = 3.5};
    handle_server_info(&s, &x, NULL);
    expect_at(x.reply, "version", "\"" DRAWBRIDGE_VERSION "\"");
    expect_at(x.reply, "served_model_name", "\"m\"");
    expect_at(x.reply, "chat_format", "\"nano\"");
    expect_at(x.reply, "engine.max_context", "1000");
    expect_at(x.reply, "counters.finished.length", "4");
    expect_at(x.reply, "counters.cached_tokens", "50");
    expect_at(x.reply, "dispatch.shapes", "12");
    expect_at(x.reply, "dispatch.tuned", "7");
    expect_at(x.reply, "dispatch.only", "4");
    expect_at(x.reply, "dispatch.heuristic", "1");
    expect_at(x.reply, "speculation.simulated", "true");
    expect_at(x.reply, "speculation.simulated_accept_length", "3.5");
    expect_at(x.reply, "speculation.accept_rate_by_position", "[0.5]");
    expect_at(x.reply, "internal_states.0.avg_spec_accept_length", "1.5");
    expect_at(x.reply, "internal_states.0.spec_simulated", "true");
    expect_at(x.reply, "internal_states.0.last_gen_throughput", "12.5");
    fake_exchange_free(&x);
    fake_facts.spec = (spec_options){0};
    x.path = "/model_info";
    handle_server_info(&s, &x, NULL);
    expect_at(x.reply, "model_path", "\"models/m\"");
    expect_at(x.reply, "is_generation", "true");
    expect_at(x.reply, "preferred_sampling_params.top_p", "1.0");
    assert_null(at(x.reply, "counters"));
    fake_exchange_free(&x);
}

static void test_loads(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.path = "/v1/loads"};
    fill_counters();
    handle_loads(&s, &x, NULL);
    expect_at(x.reply, "loads.0.num_running_reqs", "2");
    expect_at(x.reply, "loads.0.num_total_reqs", "3");
    expect_at(x.reply, "loads.0.num_used_tokens", "640");
    expect_at(x.reply, "loads.0.token_usage", "0.125");
    expect_at(x.reply, "loads.0.cache_hit_rate", "0.25");
    expect_at(x.reply, "loads.0.utilization", "0.5");
    expect_at(x.reply, "loads.0.speculative.accept_length", "1.5");
    expect_at(x.reply, "loads.0.queues.retracted", "3");
    expect_at(x.reply, "loads.0.memory.token_capacity", "5120");
    fake_exchange_free(&x);
    x = (http_exchange){.path = "/v1/loads", .query = {{"include", "spec, queues"}, {"dp_rank", "0"}}};
    handle_loads(&s, &x, NULL);
    assert_null(at(x.reply, "loads.0.num_running_reqs"));
    assert_null(at(x.reply, "loads.0.memory"));
    assert_non_null(at(x.reply, "loads.0.speculative"));
    assert_non_null(at(x.reply, "loads.0.queues"));
    fake_exchange_free(&x);
    x = (http_exchange){.path = "/v1/loads", .query = {{"format", "prometheus"}, {"include", "core,spec"}}};
    handle_loads(&s, &x, NULL);
    assert_non_null(strstr(x.body_out.data, "# TYPE sglang_num_running_reqs gauge\nsglang_num_running_reqs{dp_rank=\"0\"} 2\n"));
    assert_non_null(strstr(x.body_out.data, "sglang_spec_accept_length{dp_rank=\"0\"} 1.5\n"));
    fake_exchange_free(&x);
    static const char *const wrong[][3] = {{"include", "core,cores", "include: expected some of"}, {"include", "core,,spec",
        "include: expected"},
                                           {"format", "xml", "format: expected json or prometheus"}, {"dp_rank", "1",
                                               "dp_rank: there is one"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        x = (http_exchange){.path = "/v1/loads", .query = {{wrong[i][0], wrong[i][1]}}};
        handle_loads(&s, &x, NULL);
        assert_int_equal(x.status, 400);
        assert_true(text_starts_with(x.body_out.data, wrong[i][2]));
        fake_exchange_free(&x);
    }
    x = (http_exchange){.path = "/get_load"};
    handle_loads(&s, &x, NULL);
    expect_at(x.reply, "0.num_reqs", "3");
    expect_at(x.reply, "0.num_tokens", "640");
    fake_exchange_free(&x);
}

static void test_flush(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.path = "/flush_cache", .query = {{"timeout", "30"}}};
    fill_counters();
    handle_flush_cache(&s, &x, NULL);
    assert_int_equal(fake_flushes, 1);
    expect_at(x.reply, "success", "true");
    expect_at(x.reply, "freed_pages", "30");
    expect_at(x.reply, "pages_in_use", "10");
    fake_exchange_free(&x);
    x = (http_exchange){.path = "/flush_cache", .query = {{"timeout", "soon"}}};
    handle_flush_cache(&s, &x, NULL);
    assert_int_equal(x.status, 400);
    assert_int_equal(fake_flushes, 1);
    fake_exchange_free(&x);
}

/* The loop goes on while the engine finishes its step; whoever leaves before is forgotten. */
static void test_flush_waits(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange first = {.path = "/flush_cache"}, second = {.path = "/flush_cache"};
    fill_counters();
    fake_flush_waits = true;
    handle_flush_cache(&s, &first, NULL);
    handle_flush_cache(&s, &second, NULL);
    ops_flushes_take(&s);
    assert_int_equal(first.status, 0);
    first.closed(first.context);
    fake_flush_waits = false;
    ops_flushes_take(&s);
    assert_int_equal(first.status, 0);
    assert_int_equal(second.status, 200);
    assert_null(s.flushes);
    fake_exchange_free(&first);
    fake_exchange_free(&second);
    fake_reset();
}

static void test_abort(void **state)
{
    (void)state;
    tenant plain = {.name = "p"}, admin = {.name = "a", .admin = true};
    expect_reply(handle_abort_request, "{}", 400, "rid: send the rid");
    expect_reply(handle_abort_request, "{\"rid\":1}", 400, "\"rid\" must be a string");
    expect_reply(handle_abort_request, "{\"rid\":\"x\",\"abort_message\":\"y\"}", 400, "abort_message: not a field");
    expect_reply(handle_abort_request, "{\"rid\":\"x\",\"abort_all\":false,\"abort_message\":null}", 200,
                 "{\"success\":true,\"aborted\":1}");
    assert_string_equal(fake_abort_rid, "x");
    expect_reply(handle_abort_request, "{\"abort_all\":true}", 200, "{\"success\":true,\"aborted\":1}");
    assert_true(fake_abort_all);
    for (int i = 0; i < 2; i++) {
        server s = fake_server();
        http_exchange x = {.body = "{\"abort_all\":true}"};
        fake_has_keys = true;
        handle_abort_request(&s, &x, i ? &admin : &plain);
        assert_int_equal(x.status, i ? 200 : 403);
        assert_int_equal(fake_aborts, i);
        fake_exchange_free(&x);
    }
    server s = fake_server();
    http_exchange x = {.body = "{\"rid\":\"x\"}"};
    handle_abort_request(&s, &x, &plain); /* ends requests of this tenant only */
    assert_ptr_equal(fake_abort_who, &plain);
    fake_exchange_free(&x);
    fake_reset();
}

static int release(void **state)
{
    (void)state;
    fake_reset();
    chat_format_free(nano);
    tokenizer_free(tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_refusals), cmocka_unit_test(test_generate_foreign_fields),
        cmocka_unit_test(test_generate_fields_work),
        cmocka_unit_test(test_generate_defaults), cmocka_unit_test(test_generate_whole),          cmocka_unit_test(test_generate_lists),
        cmocka_unit_test(test_generate_stream),   cmocka_unit_test(test_generate_closed),         cmocka_unit_test(test_generate_failures),
        cmocka_unit_test(test_tokenize),          cmocka_unit_test(test_detokenize),              cmocka_unit_test(test_server_info),
        cmocka_unit_test(test_loads),             cmocka_unit_test(test_flush),                   cmocka_unit_test(test_flush_waits),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
