/* One choice of an answer: pieces, stop strings, counting and ends. tests/tiny_tokenizer.h has one token per byte, so that every piece of
 * text comes in the smallest steps; each case is also fed in larger ones, and must end alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "../tiny_tokenizer.h"
#include "serve/choice.h"

static tokenizer *tiny;
static chat_format *format;

static int open_all(void **state)
{
    (void)state;
    error err = {0};
    tiny = tiny_tokenizer(CHAT_TEXT);
    format = chat_format_load(NULL, tiny, "glm-5.2", &err);
    return format ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    chat_format_free(format);
    tokenizer_free(tiny);
    return 0;
}

/* Tokens of an output written with its control tokens, one for each other byte. */
static void tokens_of(const char *output, token_list *out)
{
    for (const char *s = output; *s;) {
        int32_t id = (unsigned char)*s;
        size_t bytes = 1;
        for (int c = 0; c < CHAT_CONTROL_COUNT; c++) {
            const char *control = chat_control_text((chat_control)c);
            if (text_starts_with(s, control)) {
                id = TINY_CONTROL + c;
                bytes = strlen(control);
            }
        }
        token_list_add(out, id);
        s += bytes;
    }
}

/* Text of the same kind goes into one bracket. */
static void take(choice *c, text *out, char *open)
{
    static const char kinds[] = "RC[A";
    chat_event e;
    while (choice_next(c, &e)) {
        assert_true(utf8_valid(e.text.data, e.text.length));
        assert_int_not_equal(e.kind, CHAT_EVENT_FINISH);
        char kind = e.kind == CHAT_EVENT_CALL_END ? 'E' : kinds[e.kind];
        if (*open && *open != kind)
            text_add_char(out, ')');
        if (*open != kind && kind != 'E')
            text_add_format(out, "%c(", kind);
        if (kind == 'E')
            text_add_text(out, e.complete ? "E!" : "E?");
        text_add(out, e.text.data, e.text.length);
        *open = kind == 'E' ? '\0' : kind;
    }
}

/* What came out: pieces, then how it ended, tokens and reasoning tokens. */
static void run(const choice_options *o, const token_list *in, int step, bool ended, text *out)
{
    choice *c = choice_new(o);
    char open = '\0';
    for (int at = 0; at < (int)in->count && !choice_ended(c); at += step) {
        int count = (int)in->count - at < step ? (int)in->count - at : step;
        int used = choice_add(c, in->ids + at, count, ended && at + count == (int)in->count);
        assert_true(used == count || choice_ended(c));
        take(c, out, &open);
    }
    choice_end(c);
    choice_end(c);
    take(c, out, &open);
    const choice_result *r = choice_result_now(c);
    text_add_format(out, "%s%s%s", open ? ")" : "", r->stopped ? " stop" : " cut", r->calls ? " calls" : "");
    if (r->stop_text)
        text_add_format(out, " '%s'", r->stop_text);
    if (r->stop_id >= 0)
        text_add_format(out, " #%d", (int)r->stop_id >= TINY_CONTROL ? (int)r->stop_id - TINY_CONTROL : -(int)r->stop_id);
    text_add_format(out, " %d %d", r->tokens, r->reasoning_tokens);
    choice_free(c);
}

/* ended: the last token is one that ended the answer. */
static void expect(choice_options o, bool ended, const char *output, const char *expected)
{
    token_list in = {0};
    tokens_of(output, &in);
    o.tokenizer = tiny;
    for (int step = 1; step <= 5; step++) {
        text out = {0};
        run(&o, &in, step, ended, &out);
        assert_string_equal(out.data, expected);
        text_free(&out);
    }
    token_list_free(&in);
}

#define CHAT .format = format
#define STOPS(...) .stops = (char *[]){__VA_ARGS__}, .stop_count = (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *))

static void test_plain_text(void **state)
{
    (void)state;
    expect((choice_options){0}, false, "a b", "C(a b) cut 3 0");
    expect((choice_options){0}, false, "<think>a</think>", "C(<think>a</think>) cut 3 0");
    expect((choice_options){0}, true, "ab<|user|>", "C(ab) stop #4 3 0");
    expect((choice_options){0}, false, "a<|user|>b", "C(ab) cut 3 0");
    expect((choice_options){.keep_special = true}, false, "a<|user|>b", "C(a<|user|>b) cut 3 0");
    expect((choice_options){.keep_special = true}, true, "a<|user|>", "C(a) stop #4 2 0");
    expect((choice_options){.keep_special = true, .keep_stop = true}, true, "a<|user|>", "C(a<|user|>) stop #4 2 0");
    expect((choice_options){0}, true, "abx", "C(ab) stop #-120 3 0");
    expect((choice_options){.keep_stop = true}, true, "abx", "C(abx) stop #-120 3 0");
    expect((choice_options){0}, false, "\xE5\x8C\x97\xE5", "C(北\uFFFD) cut 4 0");
}

static void test_stop_strings(void **state)
{
    (void)state;
    expect((choice_options){STOPS("END")}, false, "one END two", "C(one ) stop 'END' 7 0");
    expect((choice_options){STOPS("END"), .keep_stop = true}, false, "one END two", "C(one END) stop 'END' 7 0");
    expect((choice_options){STOPS("END")}, false, "ENENE", "C(ENENE) cut 5 0");
    expect((choice_options){STOPS("aab")}, false, "aaab", "C(a) stop 'aab' 4 0");
    expect((choice_options){STOPS("abab")}, false, "abaabab.", "C(aba) stop 'abab' 7 0");
    expect((choice_options){STOPS("b", "abc")}, false, "abc", "C(a) stop 'b' 2 0");
    expect((choice_options){STOPS("c", "abc")}, false, "abc", " stop 'abc' 3 0");
    expect((choice_options){STOPS("x", "yz")}, false, "yyz x", "C(y) stop 'yz' 3 0");
    expect((choice_options){STOPS("北京")}, false, "北海北京!", "C(北海) stop '北京' 12 0");
    expect((choice_options){STOPS("ab")}, true, "a<|user|>", "C(a) stop #4 2 0");
    expect((choice_options){STOPS("aa"), .min_tokens = 4}, false, "aaaaa", "C(aa) stop 'aa' 4 0");
}

static void test_chat(void **state)
{
    (void)state;
    expect((choice_options){CHAT, .in_thinking = true}, true, "ab</think>cd<|user|>", "R(ab)C(cd) stop #4 6 3");
    expect((choice_options){CHAT, .in_thinking = true}, false, "ab", "R(ab) cut 2 2");
    expect((choice_options){CHAT}, false, "ab</think>c", "C(abc) cut 4 0");
    expect((choice_options){CHAT, .in_thinking = true}, false, "a</think>b<|user|>cde", "R(a)C(b) stop #4 4 2");
    expect((choice_options){CHAT, .in_thinking = true, .plain_reasoning = true}, true, "ab</think>cd<|user|>",
           "C(ab</think>cd) stop #4 6 3");
    expect((choice_options){CHAT, .in_thinking = true, STOPS("b")}, false, "ab</think>abc", "R(ab)C(a) stop 'b' 5 3");
    expect((choice_options){CHAT, .in_thinking = true, .plain_reasoning = true, STOPS("b")}, false, "ab</think>abc",
           "C(ab</think>a) stop 'b' 5 3");
    expect((choice_options){CHAT, STOPS("\n\n")}, true, "a\n\n<|user|>", "C(a) stop #4 4 0");
    expect((choice_options){CHAT, STOPS("\n\n")}, false, "a\n\nb", "C(a) stop '\n\n' 4 0");
    expect((choice_options){CHAT}, true, "abx", "C(ab) stop #-120 3 0");
    expect((choice_options){CHAT}, true, " b<|user|>", "C(b) stop #4 3 0");
    expect((choice_options){CHAT, .in_content = true}, true, " b<|user|>", "C( b) stop #4 3 0");
    expect((choice_options){CHAT, .ignore_eos = true}, false, "a<|user|>b<|user|>c", "C(abc) cut 5 0");
    expect((choice_options){CHAT, .ignore_eos = true}, true, "a<|user|>b<|user|>", "C(ab) stop #4 4 0");
}

static void test_calls(void **state)
{
    (void)state;
    expect((choice_options){CHAT}, true, "a<tool_call>f</tool_call><|observation|>", "C(a)[(f)A({})E! stop calls #6 5 0");
    expect((choice_options){CHAT}, false, "<tool_call>f<arg_key>k", "[(f)E? cut 4 0");
    expect((choice_options){CHAT, .in_thinking = true}, true, "ab<tool_call>f</tool_call><|observation|>",
           "R(ab)[(f)A({})E! stop calls #6 6 2");
    expect((choice_options){CHAT, .one_call = true}, false, "<tool_call>f</tool_call><tool_call>g</tool_call>",
           "[(f)A({})E! stop calls 3 0");
    expect((choice_options){CHAT}, false, "<tool_call>f</tool_call><tool_call>g</tool_call>",
           "[(f)A({})E![(g)A({})E! cut calls 6 0");
    expect((choice_options){CHAT, STOPS("ab")}, false, "a<tool_call>f</tool_call>b", "C(a)[(f)A({})E!C(b) cut calls 5 0");
    expect((choice_options){CHAT, STOPS("b")}, false, "<tool_call>f</tool_call>b", "[(f)A({})E! stop calls 'b' 4 0");
}

static void test_forced(void **state)
{
    (void)state;
    token_list forced = {0};
    tokens_of("<tool_call>get", &forced);
    expect((choice_options){CHAT, .forced = &forced}, true, "_x</tool_call><|observation|>", "[(get_x)A({})E! stop calls #6 4 0");
    tokens_of("<arg_key>a</arg_key><arg_value>1", &forced);
    expect((choice_options){CHAT, .forced = &forced}, false, "2</arg_value></tool_call>", "[(get)A({\"a\": 12})E! cut calls 3 0");
    token_list_free(&forced);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_text), cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_chat),
        cmocka_unit_test(test_calls),      cmocka_unit_test(test_forced),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
