/* The parser of chat output, case by case. tests/chat_output.py compares it with a reference on random streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "../tiny_tokenizer.h"
#include "base/json.h"
#include "model/chat_output.h"

static tokenizer *tiny;
static chat_format *format;
static json_t *tools;

static int open_all(void **state)
{
    (void)state;
    error err = {0};
    tiny = tiny_tokenizer(CHAT_TEXT);
    format = chat_format_load(NULL, tiny, "glm-5.2", &err);
    tools = json_loads(
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
        "\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"l\":{\"$ref\":\"#\"},\"deep\":{\"anyOf\":[{\"$ref\":"
        "\"#/properties/deep\"},{\"$ref\":\"#/properties/deep\"}]},\"n\":{\"type\":[\"string\",\"null\"]}}}}}]",
        0, NULL);
    return format && tools ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    json_decref(tools);
    chat_format_free(format);
    tokenizer_free(tiny);
    return 0;
}

/* Adds the events of o to a line such as: R(think)C(text)[f]A({"x": 1})E! finish. E! is a complete call, E? one that is not. */
static void take(chat_output *o, text *out)
{
    static const char *const finishes[] = {" stop", " calls", " cut"};
    chat_event e;
    while (chat_output_next(o, &e)) {
        assert_true(utf8_valid(e.text.data, e.text.length));
        switch (e.kind) {
        case CHAT_EVENT_REASONING: text_add_format(out, "R(%.*s)", (int)e.text.length, e.text.data); break;
        case CHAT_EVENT_CONTENT: text_add_format(out, "C(%.*s)", (int)e.text.length, e.text.data); break;
        case CHAT_EVENT_CALL_BEGIN: text_add_format(out, "%d[%.*s]", e.call, (int)e.text.length, e.text.data); break;
        case CHAT_EVENT_CALL_ARGUMENTS: text_add_format(out, "A(%.*s)", (int)e.text.length, e.text.data); break;
        case CHAT_EVENT_CALL_END: text_add_format(out, "E%c%u", e.complete ? '!' : '?', e.problems); break;
        default: text_add_format(out, "%s%u", finishes[e.finish], e.problems);
        }
    }
}

/* Feeds an output written with its control tokens; text between them as bytes, so that every character of more than one byte is split
 * over tokens. "@" is the special token. */
static void feed(chat_output *o, const char *output)
{
    for (const char *s = output; *s;) {
        int32_t id = *s == '@' ? TINY_SPECIAL : (unsigned char)*s;
        size_t bytes = 1;
        for (int c = 0; c < CHAT_CONTROL_COUNT; c++) {
            const char *control = chat_control_text((chat_control)c);
            if (text_starts_with(s, control)) {
                id = TINY_CONTROL + c;
                bytes = strlen(control);
            }
        }
        chat_output_add(o, id);
        s += bytes;
    }
}

static void expect(bool in_thinking, const char *output, const char *expected)
{
    text events = {0};
    chat_output *o = chat_output_new(format, tiny, tools, in_thinking);
    feed(o, output);
    chat_output_end(o);
    chat_output_end(o);
    take(o, &events);
    assert_string_equal(events.data, expected);
    text_free(&events);
    chat_output_free(o);
}

#define S(key, value) "<arg_key>" key "</arg_key><arg_value>" value "</arg_value>"

static void test_reasoning_and_content(void **state)
{
    (void)state;
    expect(true, "a b</think>c<|user|>", "R(a b)C(c) stop0");
    expect(true, " a\n</think>\n\nc\n<|user|>", "R( a\n)C(c) stop0");
    expect(false, "c d<|endoftext|>", "C(c d) stop0");
    expect(true, "never closed<|user|>", "R(never closed) stop0");
    expect(true, "a</think>b</think>c<|user|>", "R(a)C(bc) stop8");
    expect(true, "<think>a</think>b<think>c</think>d<|user|>", "R(a)C(b)R(c)C(d) stop0");
    expect(false, "a\n", "C(a\n) cut0");
    expect(false, "", " cut0");
    expect(false, "<|user|>ignored", " stop0");
    expect(false, "a<|assistant|>b@c<|user|>", "C(abc) stop8");
    expect(false, "see </tool_call> and <arg_key><|user|>", "C(see </tool_call> and <arg_key>) stop0");
}

static void test_characters(void **state)
{
    (void)state;
    expect(false, "北😀<|user|>", "C(北😀) stop0");
    expect(true, "a\xE5\x8C</think>\x97<|user|>", "R(a\uFFFD)C(\uFFFD) stop0");
    expect(false, "<tool_call>f" S("s", "北\xF0\x9F") "</tool_call>", "0[f]A({\"s\": \"北\uFFFD\"})E!0 cut0");
}

static void test_calls(void **state)
{
    (void)state;
    expect(false, "<tool_call>f</tool_call><|observation|>", "0[f]A({})E!0 calls0");
    expect(false, "<tool_call>f" S("s", "x") S("i", "3") "</tool_call><|observation|>",
           "0[f]A({\"s\": \"x\", \"i\": 3})E!0 calls0");
    expect(false, "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x</arg_value>\n</tool_call>\n<|observation|>",
           "0[f]A({\"s\": \"x\"})E!0 calls0");
    expect(false, "A\n<tool_call>f</tool_call>\n<tool_call>g</tool_call>\nB\n<|observation|>",
           "C(A)0[f]A({})E!01[g]A({})E!2C(\n\nB) calls2");
    expect(true, "think <tool_call>f</tool_call><|observation|>", "R(think )0[f]A({})E!0 calls0");
    expect(true, "t<tool_call>f</tool_call></think>c<|user|>", "R(t)0[f]A({})E!0C(c) calls8");
    expect(false, "<tool_call>g" S("a", "[1]") S("b", "text") S("c", "\"q\"") "</tool_call>",
           "0[g]A({\"a\": [1], \"b\": \"text\", \"c\": \"q\"})E!2 cut2");
}

static void test_values(void **state)
{
    (void)state;
    expect(false, "<tool_call>f" S("s", " {\"a\":\n1} ") "</tool_call>", "0[f]A({\"s\": \" {\\\"a\\\":\\n1} \"})E!0 cut0");
    expect(false, "<tool_call>f" S("s", "<think></arg_key><tool_call>") "</tool_call>",
           "0[f]A({\"s\": \"<think></arg_key><tool_call>\"})E!0 cut0");
    expect(false, "<tool_call>f" S("i", " \n5 ") S("b", "True") S("n", "null") "</tool_call>",
           "0[f]A({\"i\": 5, \"b\": true, \"n\": null})E!0 cut0");
    expect(false, "<tool_call>f" S("i", "\"5\"") S("b", "yes") S("n", "7") "</tool_call>",
           "0[f]A({\"i\": 5, \"b\": \"yes\", \"n\": \"7\"})E!32 cut32");
    expect(false, "<tool_call>f" S("i", "18446744073709551616") "</tool_call>",
           "0[f]A({\"i\": \"18446744073709551616\"})E!32 cut32");
    expect(false, "<tool_call>f" S("l", "1") S("deep", "x") "</tool_call>", "0[f]A({\"l\": 1, \"deep\": \"x\"})E!0 cut0");
    expect(false, "<tool_call>f" S("s", "") S("i", "") "</tool_call>", "0[f]A({\"s\": \"\", \"i\": \"\"})E!32 cut32");
}

static void test_damaged_calls(void **state)
{
    (void)state;
    expect(false, "<tool_call>f" S("s", "a") S("s", "b") "</tool_call>", "0[f]A({\"s\": \"a\"})E!4 cut4");
    expect(false, "<tool_call></tool_call>x<|user|>", "C(x) stop1");
    expect(false, "<tool_call>" S("s", "a") "</tool_call><|user|>", " stop1");
    expect(false, "<tool_call>f" S("s", "a") " stray " S("i", "1") "</tool_call>", "0[f]A({\"s\": \"a\", \"i\": 1})E!8 cut8");
    expect(false, "<tool_call>f<arg_key>s</tool_call>", "0[f]A({})E!8 cut8");
    expect(false, "<tool_call>f<arg_key>s<arg_value>a</tool_call>", "0[f]A({\"s\": \"a\"})E!16 cut16");
    expect(false, "<tool_call>f" S("s", "a") "<tool_call>f</tool_call>", "0[f]A({\"s\": \"a\"})E!161[f]A({})E!0 cut16");
    expect(false, "<tool_call>f<arg_key>s</arg_key><tool_call>f</tool_call>", "0[f]E?161[f]A({})E!0 cut16");
}

static void test_cut_calls(void **state)
{
    (void)state;
    expect(false, "<tool_call>na", " cut16");
    expect(false, "<tool_call>f<|user|>", " stop16");
    expect(false, "<tool_call>f<|observation|>", "0[f]A({})E!16 calls16");
    expect(false, "<tool_call>f" S("s", "a") "<|observation|>", "0[f]A({\"s\": \"a\"})E!16 calls16");
    expect(false, "<tool_call>f" S("s", "a") "<|user|>", "0[f]A({\"s\": \"a\")E?16 stop16");
    expect(false, "<tool_call>f<arg_key>s</arg_key><arg_value>par", "0[f]A({\"s\": \"par)E?16 cut16");
    expect(false, "<tool_call>f<arg_key>i</arg_key><arg_value>1<|observation|>", "0[f]A({\"i\": )E?16 stop16");
}

/* A string argument arrives while it is written; the end of the turn is reported by chat_output_add. */
static void test_streaming(void **state)
{
    (void)state;
    text events = {0};
    chat_output *o = chat_output_new(format, tiny, tools, true);
    feed(o, "t");
    take(o, &events);
    feed(o, "</think>\nc");
    take(o, &events);
    feed(o, " \n");
    take(o, &events);
    feed(o, "d<tool_call>f<arg_key>s</arg_key><arg_value>x\"");
    take(o, &events);
    text_add_char(&events, '|');
    feed(o, "y");
    take(o, &events);
    feed(o, "</arg_value></tool_call>");
    take(o, &events);
    assert_true(chat_output_add(o, 'z'));
    assert_false(chat_output_add(o, TINY_CONTROL + CHAT_USER));
    assert_false(chat_output_add(o, 'z'));
    take(o, &events);
    assert_string_equal(events.data, "R(t)C(c)C( \nd)0[f]A({\"s\": \"x\\\")|A(y)A(\"})E!0C(z) calls0");
    text_free(&events);
    chat_output_free(o);
}

/* The built-in model's tokenizer has every control token as one id, and text never becomes one. */
static void test_nano_control_tokens(void **state)
{
    (void)state;
    error err = {0};
    tokenizer *nano = tokenizer_load(SOURCE_DIR "/models/nano/tokenizer.json", &err);
    assert_non_null(nano);
    chat_format *f = chat_format_load(SOURCE_DIR "/models/nano", nano, NULL, &err);
    assert_non_null(f);
    for (int c = 0; c < CHAT_CONTROL_COUNT; c++) {
        const char *s = chat_control_text((chat_control)c);
        token_list as_control = {0}, as_text = {0};
        tokenizer_encode(nano, s, strlen(s), true, &as_control);
        tokenizer_encode(nano, s, strlen(s), false, &as_text);
        assert_int_equal(as_control.count, 1);
        assert_int_equal(as_control.ids[0], chat_format_id(f, (chat_control)c));
        for (size_t i = 0; i < as_text.count; i++)
            assert_int_equal(chat_format_control(f, as_text.ids[i]), CHAT_TEXT);
        token_list_free(&as_control);
        token_list_free(&as_text);
    }
    chat_format_free(f);
    tokenizer_free(nano);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning_and_content),
        cmocka_unit_test(test_characters),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_damaged_calls),
        cmocka_unit_test(test_cut_calls),
        cmocka_unit_test(test_streaming),
        cmocka_unit_test(test_nano_control_tokens),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
