/* Anthropic's Messages API: every field works or is refused by name; prompts; blocks and events; the handlers on a fake server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "../tiny_tokenizer.h"
#include "serve/anthropic_answer.h"
#include "serve/anthropic_request.h"
#include "serve_fakes.h"

static json_t *parse(const char *json)
{
    error err = {0};
    json_t *v = json_parse(json, strlen(json), "test", &err);
    if (!v)
        fail_msg("%s in %s", err.text, json);
    return v;
}

/* A body with the required fields and more. */
static json_t *body_with(const char *more)
{
    text t = {0};
    text_add_format(&t, "{\"model\":\"m\",\"max_tokens\":2000,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]%s%s}",
                    *more ? "," : "", more);
    json_t *v = parse(t.data);
    text_free(&t);
    return v;
}

static void expect_refusal(json_t *body, bool counting, const char *expected)
{
    error err = {0};
    anthropic_request r;
    if (anthropic_request_read(body, counting, &r, &err))
        fail_msg("accepted, expected \"%s\"", expected);
    if (strncmp(err.text, expected, strlen(expected)) != 0)
        fail_msg("expected \"%s\", found \"%s\"", expected, err.text);
    anthropic_request_free(&r);
    json_decref(body);
}

static anthropic_request accepted(const json_t *body)
{
    error err = {0};
    anthropic_request r;
    if (!anthropic_request_read(body, false, &r, &err))
        fail_msg("%s", err.text);
    return r;
}

/* ---- fields ---- */

static const char tool[] = "\"tools\":[{\"name\":\"get\",\"input_schema\":{\"type\":\"object\"}}]";

static void test_fields_refused(void **state)
{
    static const char *const rows[][2] = {
        {"\"container\":\"c\"", "container: there are no containers"},
        {"\"mcp_servers\":[]", "mcp_servers: this server does not call"},
        {"\"output_format\":{}", "output_format: structured output"},
        {"\"inference_geo\":\"us\"", "inference_geo: there is one place"},
        {"\"speed\":\"fast\"", "speed: there is one speed"},
        {"\"temprature\":1", "temprature: not a field of this API"},
        {"\"temperature\":1.5", "temperature: must be from 0 to 1"},
        {"\"temperature\":\"1\"", "temperature: expected a number, found a string"},
        {"\"top_p\":0", "top_p: must be greater than 0"},
        {"\"top_p\":1.01", "top_p: must be from 0 to 1"},
        {"\"top_k\":-1", "top_k: must be from 0"},
        {"\"top_k\":0.5", "top_k: expected an integer"},
        {"\"stream\":1", "stream: expected true or false"},
        {"\"stop_sequences\":\"x\"", "stop_sequences: expected an array"},
        {"\"stop_sequences\":[\"\"]", "stop_sequences[0]: must be"},
        {"\"stop_sequences\":[\"a\",1]", "stop_sequences[1]: expected a string"},
        {"\"metadata\":{\"user\":\"x\"}", "metadata.user: not supported"},
        {"\"metadata\":{\"user_id\":1}", "metadata.user_id: expected a string"},
        {"\"service_tier\":\"priority\"", "service_tier: \"priority\" is not one of \"auto\", \"standard_only\""},
        {"\"thinking\":true", "thinking: expected an object"},
        {"\"thinking\":{\"type\":\"on\"}", "thinking.type: \"on\" is not one of"},
        {"\"thinking\":{\"type\":\"enabled\"}", "thinking.budget_tokens: goes with"},
        {"\"thinking\":{\"type\":\"adaptive\",\"budget_tokens\":2000}", "thinking.budget_tokens: goes with"},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1023}", "thinking.budget_tokens: must be from 1024"},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2000}", "thinking.budget_tokens: must be less than max_tokens, found 2000 "
         "and 2000"},
        {"\"thinking\":{\"type\":\"adaptive\",\"display\":\"all\"}", "thinking.display: \"all\" is not"},
        {"\"thinking\":{\"type\":\"disabled\",\"display\":\"omitted\"}", "thinking.display: does not go"},
        {"\"thinking\":{\"type\":\"adaptive\",\"x\":1}", "thinking.x: not supported"},
        {"\"output_config\":{\"format\":{}}", "output_config.format: not supported"},
        {"\"output_config\":{\"effort\":\"lots\"}", "output_config.effort: \"lots\" is not one of"},
        {"\"context_management\":{\"edits\":[{\"type\":\"clear_tool_uses_20250919\"}]}", "context_management.edits[0].type: \"clear_tool"},
        {"\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":{\"type\":\"thinking_turns\",\"value\":3}}]}",
         "context_management.edits[0].keep: the model"},
        {"\"cache_control\":{\"type\":\"lasting\"}", "cache_control.type: \"lasting\""},
        {"\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"2h\"}", "cache_control.ttl: \"2h\""},
        {"\"system\":1", "system: expected a string or an array"},
        {"\"system\":[{\"type\":\"image\"}]", "system[0].type: \"image\" blocks are not supported"},
        {"\"system\":[{\"type\":\"text\"}]", "system[0].text: expected a string"},
        {"\"tools\":{}", "tools: expected an array"},
        {"\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]", "tools[0].type: the tool \"web_search_20250305\""},
        {"\"tools\":[{\"name\":\"a b\",\"input_schema\":{}}]", "tools[0].name: must be 1 to 128 letters"},
        {"\"tools\":[{\"name\":\"a\"}]", "tools[0].input_schema: expected a JSON schema"},
        {"\"tools\":[{\"name\":\"a\",\"input_schema\":{},\"description\":1}]", "tools[0].description: expected a string"},
        {"\"tools\":[{\"name\":\"a\",\"input_schema\":{},\"strict\":true}]", "tools[0].strict: only false"},
        {"\"tools\":[{\"name\":\"a\",\"input_schema\":{},\"defer_loading\":true}]", "tools[0].defer_loading: only false"},
        {"\"tools\":[{\"name\":\"a\",\"input_schema\":{},\"input_examples\":[]}]", "tools[0].input_examples: not supported"},
        {"\"tools\":[{\"name\":\"a\",\"input_schema\":{},\"allowed_callers\":[\"code\"]}]", "tools[0].allowed_callers[0]: only"},
        {"\"tools\":[{\"name\":\"a\",\"input_schema\":{}},{\"name\":\"a\",\"input_schema\":{}}]", "tools[1].name: there are two tools"},
        {"\"tool_choice\":{\"type\":\"auto\"}", "tool_choice: there are no tools"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_refusal(body_with(rows[i][0]), false, rows[i][1]);
    expect_refusal(parse("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"), false, "model: the field is missing");
    expect_refusal(parse("{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"), false,
                   "max_tokens: the field is missing");
    expect_refusal(parse("{\"model\":\"m\",\"max_tokens\":0}"), false, "max_tokens: must be from 1");
    expect_refusal(parse("{\"model\":\"m\",\"max_tokens\":1}"), false, "messages: expected an array");
    expect_refusal(parse("[]"), false, "request: expected an object");
    expect_refusal(body_with(""), true, "max_tokens: is a field of /v1/messages, not of /v1/messages/count_tokens");
}

static void test_tool_choice_refused(void **state)
{
    static const char *const rows[][2] = {
        {"\"tool_choice\":\"any\"", "tool_choice: expected an object"},
        {"\"tool_choice\":{\"type\":\"required\"}", "tool_choice.type: \"required\" is not one of"},
        {"\"tool_choice\":{\"type\":\"tool\"}", "tool_choice.name: expected the name of a tool"},
        {"\"tool_choice\":{\"type\":\"tool\",\"name\":\"put\"}", "tool_choice.name: there is no tool \"put\""},
        {"\"tool_choice\":{\"type\":\"any\",\"name\":\"get\"}", "tool_choice.name: goes with"},
        {"\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":1}", "tool_choice.disable_parallel_tool_use: expected"},
        {"\"tool_choice\":{\"type\":\"any\"},\"thinking\":{\"type\":\"adaptive\"}", "thinking: does not go with a tool_choice"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text t = {0};
        text_add_format(&t, "%s,%s", tool, rows[i][0]);
        expect_refusal(body_with(t.data), false, rows[i][1]);
        text_free(&t);
    }
}

static void test_fields_work(void **state)
{
    (void)state;
    json_t *b = body_with("\"stream\":true,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":3,\"stop_sequences\":[\"END\"],"
                          "\"metadata\":{\"user_id\":"
                          "\"u\"},\"service_tier\":\"auto\",\"container\":null,\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"},"
                          "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1999,\"display\":\"omitted\"},"
                          "\"output_config\":{\"effort\":\"low\"},\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\","
                          "\"keep\":\"all\"}]}");
    anthropic_request r = accepted(b);
    assert_string_equal(r.model, "m");
    assert_int_equal(r.max_tokens, 2000);
    assert_true(r.stream && r.temperature == 0.5 && r.top_p == 0.9 && r.top_k == 3 && r.hides_thinking);
    assert_int_equal(json_array_size(r.stops), 1);
    assert_int_equal(r.thinking, ANTHROPIC_THINKING_ON);
    assert_int_equal(r.budget, 1999);
    assert_string_equal(r.effort, "low");
    assert_int_equal(r.clear_thinking, CHAT_FALSE);
    anthropic_request_free(&r);
    json_decref(b);
    b = body_with("");
    r = accepted(b);
    assert_true(!r.stream && isnan(r.temperature) && isnan(r.top_p) && r.top_k == -1 && !r.stops && !r.tools);
    assert_int_equal(r.thinking, ANTHROPIC_THINKING_UNSET);
    anthropic_request_free(&r);
    json_decref(b);
}

static void test_tool_choices(void **state)
{
    static const struct {
        const char *choice;
        bool forced, named, off, one;
    } rows[] = {
        {"{\"type\":\"auto\"}", false, false, false, false},
        {"{\"type\":\"auto\",\"disable_parallel_tool_use\":true}", false, false, false, true},
        {"{\"type\":\"any\"}", true, false, false, false},
        {"{\"type\":\"any\",\"disable_parallel_tool_use\":true}", true, false, false, true},
        {"{\"type\":\"tool\",\"name\":\"get\"}", true, true, false, true},
        {"{\"type\":\"none\"}", false, false, true, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        text t = {0};
        text_add_format(&t, "%s,\"tool_choice\":%s", tool, rows[i].choice);
        json_t *b = body_with(t.data);
        anthropic_request r = accepted(b);
        assert_int_equal(r.forced, rows[i].forced);
        assert_int_equal(r.forced_name != NULL, rows[i].named);
        assert_int_equal(r.calls_off, rows[i].off);
        assert_int_equal(r.one_call, rows[i].one);
        anthropic_request_free(&r);
        json_decref(b);
        text_free(&t);
    }
}

static void test_tools_convert(void **state)
{
    (void)state;
    json_t *b = body_with("\"tools\":[{\"type\":\"custom\",\"name\":\"get\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"
                          "\"cache_control\":{\"type\":\"ephemeral\"},\"strict\":false,\"eager_input_streaming\":true,"
                          "\"allowed_callers\":[\"direct\"]}]");
    json_t *expected = parse("[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"description\":\"d\","
                             "\"parameters\":{\"type\":\"object\"}}}]");
    anthropic_request r = accepted(b);
    assert_true(json_equal(r.tools, expected));
    anthropic_request_free(&r);
    json_decref(b);
    json_decref(expected);
}

/* ---- messages ---- */

static json_t *conversation(const char *messages, const char *more)
{
    text t = {0};
    text_add_format(&t, "{\"model\":\"m\",\"max_tokens\":2000,\"messages\":%s%s%s}", messages, *more ? "," : "", more);
    json_t *v = parse(t.data);
    text_free(&t);
    return v;
}

static void expect_messages(const char *messages, const char *more, const char *expected)
{
    json_t *b = conversation(messages, more), *e = parse(expected);
    anthropic_request r = accepted(b);
    char *found = json_dumps(r.messages, JSON_COMPACT);
    if (!json_equal(r.messages, e))
        fail_msg("expected %s\nfound %s", expected, found);
    free(found);
    anthropic_request_free(&r);
    json_decref(b);
    json_decref(e);
}

#define CALLS "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"x\":1}},{\"type\":\"tool_use\",\"id\":\"t2\"," \
"\"name\":\"g\",\"input\":{}}"
#define ASKED "{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"content\":[" CALLS "]}"
#define CALLED                                                                                                                  \
    "{\"role\":\"user\",\"content\":\"go\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\"," \
    "\"function\":{\"name\":" \
    "\"f\",\"arguments\":{\"x\":1}}},{\"id\":\"t2\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]}"

static void test_messages(void **state)
{
    (void)state;
    expect_messages("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},{\"role\":\"assistant\","
                    "\"content\":\"c\"},"
                    "{\"role\":\"assistant\",\"content\":\"d\"},{\"role\":\"user\",\"content\":\"e\"}]", "",
                    "[{\"role\":\"user\",\"content\":\"a\\n\\nb\"},{\"role\":\"assistant\",\"content\":\"cd\"},{\"role\":\"user\","
                    "\"content\":\"e\"}]");
    expect_messages("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\","
                    "\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"text\",\"text\":\"c\",\"citations\":null}]}]",
                    "\"system\":[{\"type\":\"text\",\"text\":\"s\"},{\"type\":\"text\",\"text\":\"t\","
                    "\"cache_control\":{\"type\":\"ephemeral\"}}]",
                    "[{\"role\":\"system\",\"content\":\"s\\n\\nt\"},{\"role\":\"user\",\"content\":\"a\\n\\nb\\n\\nc\"}]");
    expect_messages("[{\"role\":\"user\",\"content\":\"a\\u0000b\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
                    "\"thinking\":\"hm\","
                    "\"signature\":\"s\"},{\"type\":\"text\",\"text\":\"A\"},{\"type\":\"thinking\",\"thinking\":\"!\"},"
                    "{\"type\":\"text\",\"text\":"
                    "\"B\"}]},{\"role\":\"user\",\"content\":\"c\"}]", "\"system\":\"s\"",
                    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\\u0000b\"},{\"role\":\"assistant\","
                    "\"content\":\"AB\","
                    "\"reasoning_content\":\"hm!\"},{\"role\":\"user\",\"content\":\"c\"}]");
    expect_messages("[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t2\","
                    "\"content\":[{\"type\":\"text\","
                    "\"text\":\"p\"},{\"type\":\"text\",\"text\":\"q\"}]},{\"type\":\"tool_result\",\"tool_use_id\":\"t1\","
                    "\"content\":\"r\","
                    "\"is_error\":true},{\"type\":\"text\",\"text\":\"and?\"}]}]", "",
                    "[" CALLED ",{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":\"Error: r\"},{\"role\":\"tool\","
                    "\"tool_call_id\":\"t2\","
                    "\"content\":\"p\\n\\nq\"},{\"role\":\"user\",\"content\":\"and?\"}]");
    expect_messages("[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"}]},{\"role\":\"user\","
                    "\"content\":"
                    "[{\"type\":\"tool_result\",\"tool_use_id\":\"t2\",\"content\":[]}]}]", "",
                    "[" CALLED ",{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":\"\"},{\"role\":\"tool\",\"tool_call_id\":\"t2\","
                    "\"content\":"
                    "\"\"}]");
}

static void test_messages_refused(void **state)
{
    static const char *const rows[][2] = {
        {"[]", "messages: the array is empty"},
        {"[1]", "messages[0]: expected an object"},
        {"[{\"role\":\"system\",\"content\":\"x\"}]", "messages[0].role: expected \"user\" or \"assistant\""},
        {"[{\"role\":\"user\"}]", "messages[0].content: expected a string or an array"},
        {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content: the array is empty"},
        {"[{\"role\":\"user\",\"content\":\"x\",\"name\":\"n\"}]", "messages[0].name: not supported"},
        {"[{\"role\":\"user\",\"content\":[\"x\"]}]", "messages[0].content[0]: expected an object"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]", "messages[0].content[0].type: expected a string"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\",\"source\":{}}]}]",
         "messages[0].content[1].type: \"image\" blocks are not supported"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"document\"}]}]", "messages[0].content[0].type: \"document\" blocks"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"search_result\"}]}]", "messages[0].content[0].type: \"search_result\""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"thinking\"}]}]", "messages[0].content[0].type: \"thinking\" blocks are not"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\",\"citations\":[1]}]}]", "messages[0].content[0].citations"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\",\"cache_control\":1}]}]",
         "messages[0].content[0].cache_control: expected an object"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"redacted_thinking\",\"data\":\"x\"}]}]",
         "messages[1].content[0].type: \"redacted_thinking\" blocks cannot be read"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"server_tool_use\"}]}]", "messages[0].content[0].type: \"server_tool_use\""},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\"}]}]", "messages[0].content[0].thinking: expected a string"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":\"{}\"}]}]",
         "messages[0].content[0].input: expected an object"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"\",\"name\":\"f\",\"input\":{}}]}]",
         "messages[0].content[0].id:"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"\",\"input\":{}}]}]",
         "messages[0].content[0].name:"},
        {"[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{},"
         "\"caller\":{\"type\":\"x\"}}]}]",
         "messages[0].content[0].caller:"},
        {"[{\"role\":\"assistant\",\"content\":[" CALLS "," CALLS "]}]", "messages[0].content[2].id: another tool_use"},
        {"[" ASKED "]", "messages[1]: the last message has a tool_use block"},
        {"[" ASKED ",{\"role\":\"user\",\"content\":\"x\"}]", "messages[2]: the call \"t1\" of the message before has no tool_result"},
        {"[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t9\"}]}]",
         "messages[2].content[0].tool_use_id: the message before has no"},
        {"[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"},{\"type\":\"tool_result\","
         "\"tool_use_id\":"
         "\"t1\"}]}]", "messages[2].content[1].tool_use_id: there are two results"},
        {"[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"tool_result\","
         "\"tool_use_id\":\"t1\"}]}]",
         "messages[2].content[1]: tool_result blocks must come before"},
        {"[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\","
         "\"content\":[{\"type\":\"image\"}]}]}]",
         "messages[2].content[0].content[0].type: \"image\" blocks"},
        {"[" ASKED ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"is_error\":1}]}]",
         "messages[2].content[0].is_error: expected"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"so \"}]",
         "messages[1].content: the last message is"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_refusal(conversation(rows[i][0], ""), false, rows[i][1]);
    expect_refusal(conversation("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"so\"}]",
                                "\"thinking\":{\"type\":\"adaptive\"}"), false, "messages: the last message is the assistant's");
    text t = {0};
    text_add_format(&t, "%s,\"tool_choice\":{\"type\":\"any\"}", tool);
    expect_refusal(conversation("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"so\"}]", t.data), false,
                   "messages: the last message is the assistant's, which does not go with a tool_choice");
    text_free(&t);
}

/* ---- prompts ---- */

/* The whole prompt as text, and how much of its end is forced. */
static void expect_prompt(const char *name, json_t *body, const char *end, const char *forced, bool in_thinking, bool in_content)
{
    error err = {0};
    tokenizer *t = tiny_tokenizer(CHAT_TEXT);
    chat_format *f = chat_format_load(NULL, t, name, &err);
    anthropic_request r = accepted(body);
    anthropic_prompt p = {0};
    text all = {0}, part = {0};
    if (!anthropic_prompt_make(&r, f, t, &p, &err))
        fail_msg("%s", err.text);
    tokenizer_decode(t, p.tokens.ids, p.tokens.count, false, &all);
    tokenizer_decode(t, p.forced.ids, p.forced.count, false, &part);
    if (!text_ends_with(all.data, end))
        fail_msg("expected the end \"%s\" of \"%s\"", end, all.data);
    assert_string_equal(part.data ? part.data : "", forced);
    assert_true(p.forced.count <= p.tokens.count);
    assert_memory_equal(p.tokens.ids + p.tokens.count - p.forced.count, p.forced.ids, p.forced.count * sizeof *p.forced.ids);
    assert_int_equal(p.in_thinking, in_thinking);
    assert_int_equal(p.in_content, in_content);
    text_free(&all);
    text_free(&part);
    anthropic_prompt_free(&p);
    anthropic_request_free(&r);
    chat_format_free(f);
    tokenizer_free(t);
    json_decref(body);
}

static void expect_prompt_refusal(const char *name, json_t *body, const char *expected)
{
    error err = {0};
    tokenizer *t = tiny_tokenizer(CHAT_TEXT);
    chat_format *f = chat_format_load(NULL, t, name, &err);
    anthropic_request r = accepted(body);
    anthropic_prompt p = {0};
    assert_false(anthropic_prompt_make(&r, f, t, &p, &err));
    if (strncmp(err.text, expected, strlen(expected)) != 0)
        fail_msg("expected \"%s\", found \"%s\"", expected, err.text);
    anthropic_prompt_free(&p);
    anthropic_request_free(&r);
    chat_format_free(f);
    tokenizer_free(t);
    json_decref(body);
}

static json_t *body_with_tool(const char *more)
{
    text t = {0};
    text_add_format(&t, "%s,%s", tool, more);
    json_t *v = body_with(t.data);
    text_free(&t);
    return v;
}

#define EFFORT(e) "\"thinking\":{\"type\":\"adaptive\"},\"output_config\":{\"effort\":\"" e "\"}"
#define KEEP_ALL "\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]}"

static void test_prompts(void **state)
{
    (void)state;
    expect_prompt("glm-5.2", body_with(""), "[gMASK]<sop><|user|>hi<|assistant|><think></think>", "", false, false);
    expect_prompt("glm-5.2", body_with("\"thinking\":{\"type\":\"adaptive\"}"),
                  "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("glm-5.2", body_with(EFFORT("low")), "Reasoning Effort: High<|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("glm-5.2", body_with(EFFORT("max")), "Reasoning Effort: Max<|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("glm-5.3", body_with(EFFORT("low")), "Reasoning Effort: Low<|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("glm-5.3", body_with(EFFORT("medium")), "Reasoning Effort: High<|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("glm-5", body_with(EFFORT("low")), "[gMASK]<sop><|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("glm-5.3", body_with(""), "<|user|>hi<|assistant|><think>", "", true, false);
    expect_prompt("nano", body_with_tool("\"tool_choice\":{\"type\":\"any\"}"), "hi<|assistant|><think></think><tool_call>", "<tool_call>",
                  false, false);
    expect_prompt("glm-5.2", body_with_tool("\"tool_choice\":{\"type\":\"tool\",\"name\":\"get\"}"),
                  "hi<|assistant|><think></think><tool_call>get", "<tool_call>get", false, false);
    expect_prompt("glm-5.3", body_with_tool("\"tool_choice\":{\"type\":\"tool\",\"name\":\"get\"}"),
                  "hi<|assistant|><think></think><tool_call>get", "</think><tool_call>get", true, false);
    expect_prompt("glm-5.2", body_with_tool("\"tool_choice\":{\"type\":\"none\"}"), "[gMASK]<sop><|user|>hi<|assistant|><think></think>",
                  "",
                  false, false);
    expect_prompt_refusal("glm-5.3", body_with("\"thinking\":{\"type\":\"disabled\"}"),
                          "thinking.type: the model's chat format glm-5.3 always");
    expect_prompt_refusal("nano", body_with(KEEP_ALL), "context_management.edits[0].keep: the model's chat format nano cannot");
}

static void test_kept_thinking(void **state)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
    "\"thinking\":"
                                   "\"hm\"},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"user\",\"content\":\"c\"}]";
    (void)state;
    expect_prompt("glm-5.2", conversation(messages, ""), "<think></think>b<|user|>c<|assistant|><think></think>", "", false, false);
    expect_prompt("glm-5.2", conversation(messages, KEEP_ALL), "<think>hm</think>b<|user|>c<|assistant|><think></think>", "", false, false);
}

#define PREFILL(words) "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"" words "\"}]"

static void test_prefill(void **state)
{
    (void)state;
    expect_prompt("nano", conversation(PREFILL("The sky"), ""), "q<|assistant|><think></think>The sky", "", false, true);
    expect_prompt("glm-5", conversation(PREFILL("  The sky"), ""), "q<|assistant|></think>The sky", "", false, true);
    expect_prompt("nano", conversation(PREFILL(""), ""), "q<|assistant|><think></think>", "", false, false);
}

/* ---- answers ---- */

typedef struct recorder {
    text events; /* "event json\n" */
} recorder;

static void record(void *context, const char *event, json_t *value)
{
    recorder *r = context;
    assert_string_equal(json_string_value(json_object_get(value, "type")), event);
    json_object_del(value, "type");
    char *dumped = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS);
    text_add_format(&r->events, "%s %s\n", event, dumped);
    free(dumped);
    json_decref(value);
}

static void add(anthropic_answer *a, chat_event_kind kind, const char *words, bool complete)
{
    chat_event e = {.kind = kind, .text = view_of(words), .complete = complete};
    anthropic_answer_piece(a, &e);
}

static void add_usual(anthropic_answer *a)
{
    add(a, CHAT_EVENT_REASONING, "hm", true);
    add(a, CHAT_EVENT_REASONING, "m", true);
    anthropic_answer_step(a);
    add(a, CHAT_EVENT_CONTENT, "Hello", true);
    anthropic_answer_step(a);
    anthropic_answer_step(a);
    add(a, CHAT_EVENT_CONTENT, "!", true);
    add(a, CHAT_EVENT_CALL_BEGIN, "get", true);
    add(a, CHAT_EVENT_CALL_ARGUMENTS, "{\"x\": ", true);
    anthropic_answer_step(a);
    add(a, CHAT_EVENT_CALL_ARGUMENTS, "1}", true);
    add(a, CHAT_EVENT_CALL_END, "", true);
    anthropic_answer_step(a);
}

/* Replaces each made id by its prefix. */
static void hide_ids(text *t)
{
    static const char *const prefixes[] = {"msg_", "toolu_"};
    for (size_t i = 0; i < 2; i++)
        for (char *id = t->data; (id = strstr(id, prefixes[i])) != NULL;) {
            id += strlen(prefixes[i]);
            memmove(id, id + 24, strlen(id + 24) + 1);
        }
    t->length = strlen(t->data);
}

static void test_answer_streamed(void **state)
{
    (void)state;
    recorder r = {0};
    anthropic_answer_options o = {.model = "m", .send = record, .context = &r};
    anthropic_answer *a = anthropic_answer_create(&o);
    generation_usage u = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 1};
    anthropic_answer_begin(a, &u);
    add_usual(a);
    u.completion_tokens = 9;
    assert_null(anthropic_answer_end(a, &(generation_finish){.end = GENERATION_CALLS, .stop_id = 3}, &u));
    hide_ids(&r.events);
    assert_string_equal(r.events.data,
        "message_start {\"message\":{\"content\":[],\"id\":\"msg_\",\"model\":\"m\",\"role\":\"assistant\",\"stop_reason\":null,"
        "\"stop_sequence\":"
        "null,\"type\":\"message\",\"usage\":{\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":4,\"input_tokens\":6,"
        "\"output_tokens\":1}}}\n"
        "ping {}\n"
        "content_block_start {\"content_block\":{\"signature\":\"\",\"thinking\":\"\",\"type\":\"thinking\"},\"index\":0}\n"
        "content_block_delta {\"delta\":{\"thinking\":\"hmm\",\"type\":\"thinking_delta\"},\"index\":0}\n"
        "content_block_delta {\"delta\":{\"signature\":\"\",\"type\":\"signature_delta\"},\"index\":0}\n"
        "content_block_stop {\"index\":0}\n"
        "content_block_start {\"content_block\":{\"text\":\"\",\"type\":\"text\"},\"index\":1}\n"
        "content_block_delta {\"delta\":{\"text\":\"Hello\",\"type\":\"text_delta\"},\"index\":1}\n"
        "content_block_delta {\"delta\":{\"text\":\"!\",\"type\":\"text_delta\"},\"index\":1}\n"
        "content_block_stop {\"index\":1}\n"
        "content_block_start {\"content_block\":{\"id\":\"toolu_\",\"input\":{},\"name\":\"get\",\"type\":\"tool_use\"},\"index\":2}\n"
        "content_block_delta {\"delta\":{\"partial_json\":\"{\\\"x\\\": \",\"type\":\"input_json_delta\"},\"index\":2}\n"
        "content_block_delta {\"delta\":{\"partial_json\":\"1}\",\"type\":\"input_json_delta\"},\"index\":2}\n"
        "content_block_stop {\"index\":2}\n"
        "message_delta {\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"cache_creation_input_tokens\":0,"
        "\"cache_read_input_tokens\":4,\"input_tokens\":6,\"output_tokens\":9}}\n"
        "message_stop {}\n");
    anthropic_answer_free(a);
    text_free(&r.events);
}

/* Gathers the same and compares content, stop_reason and stop_sequence. */
static void expect_gathered(anthropic_answer_options o, void (*feed)(anthropic_answer *), generation_finish f, const char *content,
                            const char *reason, const char *sequence)
{
    anthropic_answer *a = anthropic_answer_create(&o);
    generation_usage u = {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 9};
    anthropic_answer_begin(a, &u);
    feed(a);
    json_t *m = anthropic_answer_end(a, &f, &u);
    char *dumped = json_dumps(json_object_get(m, "content"), JSON_COMPACT | JSON_SORT_KEYS);
    text t = {0};
    text_add_text(&t, dumped);
    hide_ids(&t);
    assert_string_equal(t.data, content);
    assert_string_equal(json_string_value(json_object_get(m, "stop_reason")), reason);
    if (sequence)
        assert_string_equal(json_string_value(json_object_get(m, "stop_sequence")), sequence);
    else
        assert_true(json_is_null(json_object_get(m, "stop_sequence")));
    assert_int_equal(strlen(json_string_value(json_object_get(m, "id"))), strlen("msg_") + 24);
    text_free(&t);
    free(dumped);
    json_decref(m);
    anthropic_answer_free(a);
}

static void add_cut_call(anthropic_answer *a)
{
    add(a, CHAT_EVENT_CONTENT, "x", true);
    add(a, CHAT_EVENT_CALL_BEGIN, "get", true);
    add(a, CHAT_EVENT_CALL_ARGUMENTS, "{\"x\": \"un", true);
    add(a, CHAT_EVENT_CALL_END, "", false);
}

static void add_cut_name(anthropic_answer *a)
{
    add(a, CHAT_EVENT_CALL_BEGIN, "get", true);
    add(a, CHAT_EVENT_CALL_END, "", false);
}

static void add_continued(anthropic_answer *a)
{
    add(a, CHAT_EVENT_CONTENT, "The ", true);
    add(a, CHAT_EVENT_CONTENT, "sky is", true);
}

static void add_nothing(anthropic_answer *a)
{
    add(a, CHAT_EVENT_CONTENT, "", true);
}

static void test_answer_gathered(void **state)
{
    static const char whole[] = "[{\"signature\":\"\",\"thinking\":\"hmm\",\"type\":\"thinking\"},{\"text\":\"Hello!\",\"type\":\"text\"},"
                                "{\"id\":\"toolu_\",\"input\":{\"x\":1},\"name\":\"get\",\"type\":\"tool_use\"}]";
    static const char hidden[] = "[{\"signature\":\"\",\"thinking\":\"\",\"type\":\"thinking\"},{\"text\":\"Hello!\",\"type\":\"text\"},"
                                 "{\"id\":\"toolu_\",\"input\":{\"x\":1},\"name\":\"get\",\"type\":\"tool_use\"}]";
    anthropic_answer_options o = {.model = "m"}, clipped = {.model = "m", .clipped = true};
    anthropic_answer_options hides = {.model = "m", .hides_thinking = true};
    (void)state;
    expect_gathered(o, add_usual, (generation_finish){.end = GENERATION_CALLS}, whole, "tool_use", NULL);
    expect_gathered(hides, add_usual, (generation_finish){.end = GENERATION_CALLS}, hidden, "tool_use", NULL);
    expect_gathered(o, add_cut_call, (generation_finish){.end = GENERATION_LENGTH}, "[{\"text\":\"x\",\"type\":\"text\"}]", "max_tokens",
                    NULL);
    expect_gathered(o, add_cut_name, (generation_finish){.end = GENERATION_LENGTH}, "[]", "max_tokens", NULL);
    expect_gathered(clipped, add_cut_call, (generation_finish){.end = GENERATION_LENGTH}, "[{\"text\":\"x\",\"type\":\"text\"}]",
                    "model_context_window_exceeded", NULL);
    expect_gathered(o, add_continued, (generation_finish){.end = GENERATION_STOP, .stop_text = "END"},
                    "[{\"text\":\"The sky is\",\"type\":\"text\"}]", "stop_sequence", "END");
    expect_gathered(o, add_nothing, (generation_finish){.end = GENERATION_STOP}, "[]", "end_turn", NULL);
}

static void test_answer_cut_stream(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        recorder r = {0};
        anthropic_answer_options o = {.model = "m", .send = record, .context = &r};
        anthropic_answer *a = anthropic_answer_create(&o);
        generation_usage u = {0};
        anthropic_answer_begin(a, &u);
        add_cut_call(a);
        anthropic_answer_end(a, &(generation_finish){.end = cut ? GENERATION_LENGTH : GENERATION_STOP}, &u);
        assert_int_equal(strstr(r.events.data, "\"stop_reason\":\"max_tokens\"") != NULL, cut);
        assert_int_equal(strstr(r.events.data, "message_stop") != NULL, cut);
        assert_int_equal(strstr(r.events.data, "error {\"error\":{\"message\":\"the model ended its turn inside a tool call") != NULL,
                         !cut);
        anthropic_answer_free(a);
        text_free(&r.events);
    }
}

/* ---- handlers ---- */

static tokenizer *tiny;
static chat_format *nano;

static server fake_server(void)
{
    error err = {0};
    tiny = tiny ? tiny : tiny_tokenizer(CHAT_TEXT);
    nano = nano ? nano : chat_format_load(NULL, tiny, "nano", &err);
    server s = {.tokenizer = tiny, .format = nano, .defaults = sampler_params_default(TINY_COUNT)};
    s.options.model_name = "m";
    s.defaults.temperature = 0.7;
    s.defaults.top_p = 0.95;
    fake_reset();
    return s;
}

static void test_handler_whole(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"model\":\"m\",\"max_tokens\":50,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"top_k\":5,"
                               "\"temperature\":0,\"stop_sequences\":[\"END\"]}"};
    handle_anthropic_messages(&s, &x, NULL);
    assert_int_equal(fake_generation_count, 1);
    generation *g = &fake_generations[0];
    assert_true(g->spec.chat && !g->spec.in_thinking && g->spec.choices == 1 && g->spec.max_tokens == 50);
    assert_true(g->spec.params.temperature == 0 && g->spec.params.top_k == 5 && g->spec.params.top_p == 0.95);
    assert_int_equal(g->spec.stop_count, 1);
    assert_string_equal(g->spec.stops[0], "END");
    assert_int_equal(x.status, 0);
    fake_piece(g, 0, CHAT_EVENT_CONTENT, "Hello");
    fake_step(g, 0);
    g->usage.completion_tokens = 3;
    fake_finish(g, 0, (generation_finish){.end = GENERATION_STOP, .stop_id = 1});
    fake_done(g);
    assert_int_equal(x.status, 200);
    const json_t *usage = json_object_get(x.reply, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "input_tokens")), (json_int_t)g->spec.prompt.count - 2);
    assert_int_equal(json_integer_value(json_object_get(usage, "output_tokens")), 3);
    assert_string_equal(json_string_value(json_object_get(x.reply, "stop_reason")), "end_turn");
    fake_exchange_free(&x);
    fake_reset();
}

static void test_handler_prefill(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"model\":\"m\",\"max_tokens\":50,\"messages\":" PREFILL("so") "}"};
    handle_anthropic_messages(&s, &x, NULL);
    assert_true(fake_generations[0].spec.in_content && !fake_generations[0].spec.in_thinking);
    x.closed(x.context);
    fake_exchange_free(&x);
    fake_reset();
}

static void test_handler_stream(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"model\":\"m\",\"max_tokens\":5000,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                               "\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2000}}"};
    handle_anthropic_messages(&s, &x, NULL);
    generation *g = &fake_generations[0];
    assert_true(x.streaming && g->spec.in_thinking);
    assert_int_equal(g->spec.max_tokens, 1000 - (int)g->spec.prompt.count);
    assert_non_null(strstr(x.headers.data, "drawbridge-notice: thinking.budget_tokens"));
    assert_int_equal(x.body_out.length, 0);
    fake_piece(g, 0, CHAT_EVENT_REASONING, "hm");
    fake_step(g, 0);
    assert_non_null(strstr(x.body_out.data, "\"thinking\":\"hm\""));
    fake_finish(g, 0, (generation_finish){.end = GENERATION_LENGTH});
    fake_done(g);
    assert_true(x.ended);
    assert_non_null(strstr(x.body_out.data, "model_context_window_exceeded"));
    assert_true(text_ends_with(x.body_out.data, "message_stop|{\"type\":\"message_stop\"}\n"));
    fake_exchange_free(&x);
    fake_reset();
}

static void test_handler_failures(void **state)
{
    static const struct {
        generation_end end;
        int status;
        const char *type;
    } rows[] = {{GENERATION_FAILED, 500, "api_error"}, {GENERATION_TIMEOUT, 504, "timeout_error"}, {GENERATION_ABORTED, 503,
        "overloaded_error"}};
    (void)state;
    for (int i = 0; i < 6; i++) {
        server s = fake_server();
        http_exchange x = {.body = i < 3 ? "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
                                         : "{\"model\":\"m\",\"max_tokens\":5,\"stream\":true,\"messages\":[{\"role\":\"user\","
                                         "\"content\":\"hi\"}]}"};
        handle_anthropic_messages(&s, &x, NULL);
        fake_finish(&fake_generations[0], 0, (generation_finish){.end = rows[i % 3].end, .failure = "it broke"});
        fake_done(&fake_generations[0]);
        assert_int_equal(x.status, i < 3 ? rows[i].status : 200);
        assert_non_null(strstr(x.body_out.data, "it broke"));
        if (i >= 3)
            assert_non_null(strstr(x.body_out.data, rows[i % 3].type));
        fake_exchange_free(&x);
        fake_reset();
    }
}

/* The client goes away: between two steps, or in any of the writes. */
static void test_handler_closed(void **state)
{
    (void)state;
    for (int at = 0; at < 8; at++) {
        server s = fake_server();
        http_exchange x = {.body = "{\"model\":\"m\",\"max_tokens\":5,\"stream\":true,\"messages\":[{\"role\":\"user\","
                           "\"content\":\"hi\"}]}",
                           .close_at = at};
        handle_anthropic_messages(&s, &x, NULL);
        generation *g = &fake_generations[0];
        fake_piece(g, 0, CHAT_EVENT_CONTENT, "Hello");
        fake_step(g, 0);
        if (at == 0)
            x.closed(x.context);
        fake_finish(g, 0, (generation_finish){.end = GENERATION_STOP});
        fake_done(g);
        assert_true(g->cancelled && !x.ended);
        fake_exchange_free(&x);
        fake_reset();
    }
}

static void expect_reply(const char *body, int status, const char *expected)
{
    server s = fake_server();
    http_exchange x = {.body = body};
    fake_refuse_status = 503;
    handle_anthropic_messages(&s, &x, NULL);
    assert_int_equal(x.status, status);
    assert_int_equal(x.headers.data && strstr(x.headers.data, "retry-after: 7"), status == 503);
    if (!strstr(x.body_out.data, expected))
        fail_msg("expected \"%s\", found \"%s\"", expected, x.body_out.data);
    fake_exchange_free(&x);
    fake_reset();
}

static void test_handler_refusals(void **state)
{
    (void)state;
    text t = {0}, stops = {0};
    expect_reply("{", 400, "request body");
    expect_reply("{\"model\":\"claude\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 404,
                 "model: there is no model \"claude\" here, this server has \"m\"");
    expect_reply("{\"model\":\"default\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 503,
                 "the queue is full");
    expect_reply("{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", 400,
                 "messages[0].content[0].type");
    text_add_text(&t, "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 2000; i++)
        text_add_char(&t, 'x');
    text_add_text(&t, "\"}]}");
    expect_reply(t.data, 400, "prompt is too long: ");
    text_add_text(&stops, "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                  "\"stop_sequences\":[\"x\"");
    for (int i = 0; i < GENERATION_STOPS_MOST; i++)
        text_add_text(&stops, ",\"x\"");
    text_add_text(&stops, "]}");
    expect_reply(stops.data, 400, "stop_sequences: at most 16, found 17");
    text_free(&t);
    text_free(&stops);

    server s = fake_server();
    s.format = NULL;
    http_exchange x = {.body = "{}"};
    handle_anthropic_messages(&s, &x, NULL);
    assert_int_equal(x.status, 400);
    assert_non_null(strstr(x.body_out.data, "no known chat format"));
    fake_exchange_free(&x);
    s.draining = true;
    x.body = "{}";
    handle_anthropic_messages(&s, &x, NULL);
    assert_int_equal(x.status, 503);
    assert_non_null(strstr(x.headers.data, "retry-after: 7"));
    fake_exchange_free(&x);
}

static void test_handler_count(void **state)
{
    (void)state;
    server s = fake_server();
    http_exchange x = {.body = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"system\":\"s\"}"};
    handle_anthropic_count(&s, &x, NULL);
    assert_int_equal(x.status, 200);
    /* [gMASK] <sop> <|system|> s <|user|> h i <|assistant|> <think> </think> */
    assert_string_equal(x.body_out.data, "{\"input_tokens\":10}");
    fake_exchange_free(&x);
    x.body = "{\"model\":\"m\",\"messages\":[]}";
    handle_anthropic_count(&s, &x, NULL);
    assert_int_equal(x.status, 400);
    fake_exchange_free(&x);
}

static int release(void **state)
{
    (void)state;
    chat_format_free(nano);
    tokenizer_free(tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_refused),   cmocka_unit_test(test_tool_choice_refused), cmocka_unit_test(test_fields_work),
        cmocka_unit_test(test_tool_choices),     cmocka_unit_test(test_tools_convert),       cmocka_unit_test(test_messages),
        cmocka_unit_test(test_messages_refused), cmocka_unit_test(test_prompts),             cmocka_unit_test(test_kept_thinking),
        cmocka_unit_test(test_prefill),          cmocka_unit_test(test_answer_streamed),     cmocka_unit_test(test_answer_gathered),
        cmocka_unit_test(test_answer_cut_stream), cmocka_unit_test(test_handler_whole),      cmocka_unit_test(test_handler_stream),
        cmocka_unit_test(test_handler_failures), cmocka_unit_test(test_handler_closed),      cmocka_unit_test(test_handler_refusals),
        cmocka_unit_test(test_handler_count),    cmocka_unit_test(test_handler_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, release);
}
