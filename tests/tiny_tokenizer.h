/* A tokenizer for tests of the chat format: id = byte for ids below 256, a few longer tokens that begin and end in the middle of
 * words, white space and characters, then the control tokens in chat_control's order, a special token and a plain added one. */
#ifndef TESTS_TINY_TOKENIZER_H
#define TESTS_TINY_TOKENIZER_H

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "model/chat.h"
#include "model/tokenizer.h"

static const char *const tiny_long_tokens[] = {" a ",          "\n\nB\n",  "x\n", " \n", "\xE5\x8C", "\x97z",
                                               "\xF0\x9F\x98", "\"a\": 1", "tr",  "ue",  "12"};

enum {
    TINY_LONG = 256,
    TINY_LONG_COUNT = sizeof tiny_long_tokens / sizeof *tiny_long_tokens,
    TINY_CONTROL = TINY_LONG + TINY_LONG_COUNT,
    TINY_SPECIAL = TINY_CONTROL + CHAT_CONTROL_COUNT, /* "/nothink", special */
    TINY_ADDED,                                       /* "<|begin_of_box|>", not special */
    TINY_COUNT,
};

/* A byte in the alphabet of byte-level BPE, inside a JSON string. */
static inline void tiny_add_byte(text *t, unsigned char byte)
{
    uint32_t c = byte, next = 256;
    for (uint32_t b = 0; b <= byte; b++) {
        bool same = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        c = same ? b : next++;
    }
    if (c == '"' || c == '\\')
        text_add_char(t, '\\');
    text_add_utf8(t, c);
}

static inline void tiny_add_added(text *t, int id, const char *content, bool special)
{
    text_add_format(
        t,
        "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
        "\"special\":%s}",
        id == TINY_CONTROL ? "" : ",", id, content, special ? "true" : "false");
}

static inline void tiny_add_vocabulary(text *t)
{
    for (int id = 0; id < TINY_CONTROL; id++) {
        char byte[2] = {(char)id, '\0'};
        const char *bytes = id < 256 ? byte : tiny_long_tokens[id - TINY_LONG];
        text_add_text(t, id ? ",\"" : "\"");
        for (size_t i = 0; i == 0 || bytes[i]; i++)
            tiny_add_byte(t, (unsigned char)bytes[i]);
        text_add_format(t, "\":%d", id);
    }
}

/* leave_out: a control token the tokenizer does not have; CHAT_TEXT for none. */
static inline tokenizer *tiny_tokenizer(chat_control leave_out)
{
    static const char split[] =
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
        "\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"
        "\"behavior\":\"Isolated\",\"invert\":false}";
    static const char level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}";
    text t = {0};
    text_add_text(&t, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int c = 0; c < CHAT_CONTROL_COUNT; c++)
        tiny_add_added(&t, TINY_CONTROL + c, c == (int)leave_out ? "<left_out>" : chat_control_text((chat_control)c),
                       c < CHAT_THINK);
    tiny_add_added(&t, TINY_SPECIAL, "/nothink", true);
    tiny_add_added(&t, TINY_ADDED, "<|begin_of_box|>", false);
    text_add_format(&t, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[%s,%s]},"
                    "\"post_processor\":null,\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{", split, level, level);
    tiny_add_vocabulary(&t);
    text_add_text(&t, "},\"merges\":[]}}");
    error err = {0};
    tokenizer *made = tokenizer_parse(t.data, t.length, "tiny tokenizer", &err);
    text_free(&t);
    if (!made) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return made;
}

#endif
