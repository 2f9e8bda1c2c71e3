/* The tokenizer: Unicode tables, split rule, merges, added tokens, decoding, refusals. Expected values marked "HF" were printed
 * by HF tokenizers 0.23.2 for the same tokenizer.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"
#include "model/tokenizer_internal.h"
#include "model/tokenizer_split.h"
#include "model/unicode_tables.h"

static tokenizer *nano; /* models/nano/tokenizer.json */

/* ---- a tokenizer of 256 bytes, id = byte, for everything that needs a special file ---- */

/* The parts of a tokenizer.json that tests vary; NULL stands for the part of a valid file. */
typedef struct parts {
    const char *version, *truncation, *added, *normalizer, *pre, *post, *decoder, *model, *vocab, *merges, *more;
    int missing_byte; /* a byte to leave out of the vocabulary, 0 for none */
} parts;

#define SPLIT_START "{\"type\":\"Split\",\"pattern\":{\"Regex\":"
#define SPLIT_END "},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}"
#define SEQUENCE(a, b) "{\"type\":\"Sequence\",\"pretokenizers\":[" a "," b "]}"
#define RULE \
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}|" \
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\""
#define SPLIT SPLIT_START RULE SPLIT_END

static void add_byte_vocab(text *t, int missing)
{
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++;
        if (missing && (int)b == missing)
            continue;
        text_add_text(t, b ? ",\"" : "\"");
        if (c == '"' || c == '\\')
            text_add_char(t, '\\');
        text_add_utf8(t, c);
        text_add_format(t, "\":%u", b);
    }
}

static text build(parts p)
{
    text t = {0};
    text_add_format(&t, "{\"version\":%s,\"truncation\":%s,\"padding\":null,\"added_tokens\":%s,\"normalizer\":%s,",
                    p.version ? p.version : "\"1.0\"", p.truncation ? p.truncation : "null", p.added ? p.added : "[]",
                    p.normalizer ? p.normalizer : "null");
    text_add_format(&t, "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,", p.pre ? p.pre : SEQUENCE(SPLIT, BYTES),
                    p.post ? p.post : "null", p.decoder ? p.decoder : BYTES);
    text_add_format(&t, "\"model\":{%s,\"vocab\":{", p.model ? p.model : "\"type\":\"BPE\"");
    add_byte_vocab(&t, p.missing_byte);
    text_add_format(&t, "%s},\"merges\":%s}%s}", p.vocab ? p.vocab : "", p.merges ? p.merges : "[]", p.more ? p.more : "");
    return t;
}

static tokenizer *open_parts(parts p, error *err)
{
    text json = build(p);
    tokenizer *t = tokenizer_parse(json.data, json.length, "file", err);
    text_free(&json);
    return t;
}

static tokenizer *open_valid(parts p)
{
    error err = {0};
    tokenizer *t = open_parts(p, &err);
    if (!t)
        print_message("%s\n", err.text);
    assert_non_null(t);
    return t;
}

/* Encodes and writes the ids: bytes as themselves, others as {id}. */
static void encode_shown(const tokenizer *t, const char *s, bool added, text *out)
{
    token_list ids = {0};
    tokenizer_encode(t, s, strlen(s), added, &ids);
    text_clear(out);
    for (size_t i = 0; i < ids.count; i++)
        if (ids.ids[i] < 256)
            text_add_char(out, (char)ids.ids[i]);
        else
            text_add_format(out, "{%d}", ids.ids[i]);
    token_list_free(&ids);
}

static void expect_encoding(const tokenizer *t, const char *s, const char *expected)
{
    text found = {0};
    encode_shown(t, s, true, &found);
    assert_string_equal(found.data, expected);
    text_free(&found);
}

/* ---- tables ---- */

typedef struct class_count {
    int characters, ranges;
} class_count;

static class_count count_class(unicode_class class)
{
    class_count n = {0};
    bool before = false;
    for (uint32_t c = 0; c < 0x110000; c++) {
        bool now = unicode_class_of(c) == class;
        n.characters += now;
        n.ranges += now && !before;
        before = now;
    }
    return n;
}

static void test_unicode_tables(void **state)
{
    (void)state;
    assert_string_equal(UNICODE_TABLES_VERSION, "16.0.0");
    class_count letters = count_class(UNICODE_LETTER), numbers = count_class(UNICODE_NUMBER), spaces = count_class(UNICODE_SPACE);
    assert_int_equal(letters.characters, 141028);
    assert_int_equal(letters.ranges, 677);
    assert_int_equal(numbers.characters, 1911);
    assert_int_equal(numbers.ranges, 144);
    assert_int_equal(spaces.characters, 25);
    assert_int_equal(spaces.ranges, 10);
    for (uint32_t c = 0; c < 128; c++) {
        unsigned wide = unicode_class_of(c), ascii = unicode_ascii_class[c];
        assert_int_equal(ascii, c == '\r' || c == '\n' ? UNICODE_NEWLINE : wide);
        bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        assert_int_equal(unicode_is_word(c), word);
    }
    assert_int_equal(unicode_class_of(0x180E), UNICODE_OTHER); /* Mongolian vowel separator: a space until Unicode 6.3 */
    assert_int_equal(unicode_class_of(0x0085), UNICODE_SPACE);
    assert_int_equal(unicode_class_of(0x1C89), UNICODE_LETTER); /* new in Unicode 16 */
}

/* ---- split rule ---- */

static void expect_pieces(const char *s, const char *expected)
{
    text found = {0};
    size_t count = strlen(s);
    for (size_t at = 0; at < count;) {
        size_t n = tokenizer_split_next(s + at, count - at);
        assert_true(n > 0 && n <= count - at);
        text_add(&found, s + at, n);
        at += n;
        if (at < count)
            text_add_char(&found, '|');
    }
    assert_string_equal(found.data, expected);
    text_free(&found);
}

static void test_split(void **state)
{
    (void)state;
    expect_pieces("Hello world", "Hello| world");
    expect_pieces("It's we'RE they'Ll I'D x'\xC5\xBF", "It|'s| we|'RE| they|'Ll| I|'D| x|'\xC5\xBF");
    expect_pieces("'\xC5\xBFx '\xC5\xBFx", "'\xC5\xBF|x| '|\xC5\xBFx");
    expect_pieces("'sample 'lx 'l", "'s|ample| '|lx| '|l"); /* the space takes the quote before the quote can take the letters */
    expect_pieces("'lx", "'lx");
    expect_pieces("12345678", "123|456|78");
    expect_pieces(" 1", " |1");
    expect_pieces("a  b", "a| | b");
    expect_pieces("a\t\tb", "a|\t|\tb");
    expect_pieces("a   ", "a|   ");
    expect_pieces(" \n \n  x", " \n \n| | x");
    expect_pieces("x \r\n", "x| \r\n");
    expect_pieces("a!!\n\nb", "a|!!\n\n|b");
    expect_pieces("f(x)=\"y\"", "f|(x|)=\"|y|\"");
    expect_pieces("\nabc", "\n|abc");
    expect_pieces(" $5", " $|5");
    expect_pieces("\t$", "\t|$");
    expect_pieces("\xE3\x80\x80\xE6\x97\xA5\xE6\x9C\xAC 3", "\xE3\x80\x80\xE6\x97\xA5\xE6\x9C\xAC| |3");
    expect_pieces("\xC2\xA0\xC2\xA0" "1", "\xC2\xA0|\xC2\xA0|1");
    expect_pieces("\xE2\x80\xA8 a", "\xE2\x80\xA8| a"); /* a line separator is a space but no line end */
    expect_pieces("\xF0\x9F\x98\x80\xF0\x9F\x98\x80" "a", "\xF0\x9F\x98\x80\xF0\x9F\x98\x80|a");
}

/* Every byte string splits into pieces that cover it, valid UTF-8 or not. */
static void test_split_covers_any_bytes(void **state)
{
    (void)state;
    char s[64];
    for (uint64_t round = 0; round < 20000; round++) {
        size_t count = 1 + random_word(1, round, 0) % sizeof s, at = 0;
        for (size_t i = 0; i < count; i++)
            s[i] = (char)random_word(2, round, i);
        while (at < count) {
            size_t n = tokenizer_split_next(s + at, count - at);
            assert_true(n > 0 && n <= count - at);
            at += n;
        }
    }
}

/* ---- HF's ids for 6,000 texts ---- */

static void expect_vector(const json_t *vector, size_t line)
{
    const json_t *s = json_array_get(vector, 0), *expected = json_array_get(vector, 1);
    token_list ids = {0};
    text back = {0};
    tokenizer_encode(nano, json_string_value(s), json_string_length(s), true, &ids);
    bool same = ids.count == json_array_size(expected);
    for (size_t i = 0; same && i < ids.count; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same)
        fail_msg("line %zu: %zu ids, expected %zu, or other ids", line, ids.count, json_array_size(expected));
    tokenizer_decode(nano, ids.ids, ids.count, false, &back);
    assert_int_equal(back.length, json_string_length(s));
    if (back.length)
        assert_memory_equal(back.data, json_string_value(s), back.length);
    token_list_free(&ids);
    text_free(&back);
}

static void test_vectors(void **state)
{
    (void)state;
    text file = {0};
    error err = {0};
    size_t line = 0;
    assert_true(file_read(SOURCE_DIR "/tests/fixtures/tokenizer_vectors.jsonl", 1 << 24, &file, &err));
    for (size_t at = 0; at < file.length; line++) {
        const char *end = memchr(file.data + at, '\n', file.length - at);
        size_t count = end ? (size_t)(end - file.data) - at : file.length - at;
        json_t *vector = json_parse(file.data + at, count, "vectors", &err);
        assert_non_null(vector);
        expect_vector(vector, line + 1);
        json_decref(vector);
        at += count + 1;
    }
    assert_int_equal(line, 6000);
    text_free(&file);
}

/* ---- merges ---- */

/* The definition: as long as a pair has a merge, the lowest rank, leftmost first. */
static size_t merge_naively(const bpe *b, const char *piece, size_t count, int32_t *ids)
{
    for (size_t i = 0; i < count; i++)
        ids[i] = b->byte_ids[(unsigned char)piece[i]];
    for (;;) {
        size_t best = 0;
        int32_t rank = BPE_NO_RANK;
        for (size_t i = 0; i + 1 < count; i++)
            if (bpe_rank(b, ids[i], ids[i + 1]) < rank)
                rank = bpe_rank(b, ids[best = i], ids[i + 1]);
        if (rank == BPE_NO_RANK)
            return count;
        ids[best] = b->merges[rank].result;
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof *ids);
        count--;
    }
}

static void test_merges_are_those_of_the_definition(void **state)
{
    (void)state;
    enum { LONGEST = 300 };
    static const char letters[] = "aeehiinorsttw ";
    char piece[LONGEST];
    int32_t expected[LONGEST];
    bpe_scratch scratch = {0};
    token_list found = {0};
    for (uint64_t round = 0; round < 3000; round++) {
        size_t count = 1 + random_word(3, round, 0) % (round % 4 ? 60 : LONGEST);
        for (size_t i = 0; i < count; i++)
            piece[i] = letters[random_word(4, round, i) % (round % 3 ? 14 : 4)];
        size_t n = merge_naively(&nano->bpe, piece, count, expected);
        for (int whole = 0; whole < 2; whole++) {
            found.count = 0;
            (whole ? bpe_encode : bpe_merge)(&nano->bpe, piece, count, &scratch, &found);
            assert_int_equal(found.count, n);
            assert_memory_equal(found.ids, expected, n * sizeof *expected);
        }
    }
    bpe_scratch_free(&scratch);
    token_list_free(&found);
}

static void test_ignore_merges(void **state)
{
    (void)state;
    static const char *const model[2] = {"\"type\":\"BPE\",\"ignore_merges\":false", "\"type\":\"BPE\",\"ignore_merges\":true"};
    for (int ignore = 0; ignore < 2; ignore++) {
        tokenizer *t = open_valid((parts){.model = model[ignore], .vocab = ",\"ab\":256,\"abc\":257,\"bc\":258",
                                          .merges = "[[\"b\",\"c\"],[\"a\",\"b\"]]"});
        expect_encoding(t, "abc", ignore ? "{257}" : "a{258}");
        expect_encoding(t, "abcd", "a{258}d");
        expect_encoding(t, "ab", "{256}");
        tokenizer_free(t);
    }
}

static void test_merges_as_strings(void **state)
{
    (void)state;
    tokenizer *t = open_valid((parts){.vocab = ",\"ab\":256,\"\u0120ab\":257",
                                      .merges = "[\"#version: 0.2\",\"a b\",\"\u0120 ab\"]"});
    expect_encoding(t, "ab ab", "{256}{257}");
    tokenizer_free(t);
}

/* A megabyte in one piece: a merge that looks at all pairs each time would take days. */
static void test_long_runs(void **state)
{
    (void)state;
    enum { COUNT = 1 << 20 };
    static const char *const units[] = {"a", " ", "\n", "!", "ab", "the", "\xE6\x97\xA5", "<", "1", " \n", "'"};
    char *s = mem_alloc(COUNT, 1);
    token_list ids = {0};
    text back = {0};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]), count = COUNT / unit * unit;
        for (size_t i = 0; i < count; i++)
            s[i] = units[u][i % unit];
        ids.count = 0;
        text_clear(&back);
        tokenizer_encode(nano, s, count, true, &ids);
        tokenizer_decode(nano, ids.ids, ids.count, false, &back);
        assert_int_equal(back.length, count);
        assert_memory_equal(back.data, s, count);
    }
    free(s);
    token_list_free(&ids);
    text_free(&back);
}

/* ---- added tokens ---- */

#define ADDED(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"," flags "}"
#define FLAGS(w, l, r, n, s) \
    "\"single_word\":" #w ",\"lstrip\":" #l ",\"rstrip\":" #r ",\"normalized\":" #n ",\"special\":" #s
#define PLAIN FLAGS(false, false, false, false, false)

static const char added_list[] = "["
    ADDED(256, "<w>", FLAGS(true, false, false, false, false)) ","
    ADDED(257, "<l>", FLAGS(false, true, false, false, false)) ","
    ADDED(258, "<r>", FLAGS(false, false, true, false, false)) ","
    ADDED(259, "<n>", FLAGS(false, false, false, true, false)) ","
    ADDED(260, "<n><l>", FLAGS(false, false, false, false, true)) ","
    ADDED(261, "word", FLAGS(true, false, false, true, false)) ","
    ADDED(262, "  x", PLAIN) ","
    ADDED(263, "<lr>", FLAGS(false, true, true, true, false)) ","
    ADDED(264, "\xE6\x97\xA5\xE6\x9C\xAC", PLAIN) ","
    ADDED(265, "\xC3\xA9\xC3\xBF", PLAIN) ","
    ADDED(266, ">y", PLAIN) ","
    ADDED(267, ">yzz", PLAIN) "]";

/* HF's ids for texts with these tokens. */
static const char *const added_cases[][2] = {
    {"a<w>b", "a<w>b"},
    {"a <w> b", "a {256} b"},
    {"<w>", "{256}"},
    {"_<w>", "_<w>"},
    {"-<w>-", "-{256}-"},
    {"\303\251<w>", "\303\251<w>"},
    {"<w>\314\201", "<w>\314\201"},
    {"\342\200\215<w>", "\342\200\215<w>"},
    {"<w><w>x", "{256}<w>x"},
    {"1<w>", "1<w>"},
    {"<w>\342\205\247", "<w>\342\205\247"},
    {"\342\200\277<w>", "\342\200\277<w>"},
    {"a  <l>  b", "a{257}  b"},
    {"a\011\343\200\200<l>", "a{257}"},
    {"a  <r> \012 b", "a  {258}b"},
    {"<r>  <l>", "{258}{257}"},
    {"<r>  x<l>", "{258}{262}{257}"},
    {"<r>  <r>", "{258}{258}"},
    {"<n><l>", "{260}"},
    {"<n> <l>", "{259}{257}"},
    {"<n>  <n>", "{259}  {259}"},
    {"word words sword word", "{261} words sword {261}"},
    {"<w", "<w"},
    {"  x", "{262}"},
    {"a   xb", "a {262}b"},
    {"<r>  x", "{258}{262}"},
    {"<lr>", "{263}"},
    {"a <lr> b <n> c", "a{263}b {259} c"},
    {"<n> <lr> <n>", "{259}{263}{259}"},
    {"<r> <lr> <l>", "{258}{263}{257}"},
    {"<lr>  x <lr>", "{263}{262}{263}"},
    {"\346\227\245\346\234\254\350\252\236", "{264}\350\252\236"},
    {"\346\227\245\346\234\254<lr> \346\227\245\346\234\254", "{264}{263}{264}"},
    {"\341\240\216<l>", "\341\240\216{257}"},
    {"\302\205<l>", "{257}"},
    {"\342\200\213<l>", "\342\200\213{257}"},
    {"<r>\015\012 \342\200\250z", "{258}z"},
    {"<r> <r> <l> <l>", "{258}{258}{257}{257}"},
    {" <r><l> ", " {258}{257} "},
    {"<l> <l>", "{257}{257}"},
    {"word<n>word", "{261}{259}{261}"},
    {"<n>word ", "{259}{261} "},
    {"wordword", "wordword"},
    {"\303\251\303\277", "{265}"},
    {"<w>word", "<w>{261}"},
    {"<n><l><n><l>", "{260}{260}"},
    {"<r> 's", "{258}'s"},
    {"  <n>  ", "  {259}  "},
    {"a<w>y", "a<w>y"},
    {"a<w>>y", "a<w>{266}"},
    {"<w>y", "<w>y"},
    {"<n>y", "<n{266}"},
    {">yz", "{266}z"},
    {">yzz", "{267}"},
    {">y>yzz", "{266}{267}"},
};

static void test_added_tokens(void **state)
{
    (void)state;
    tokenizer *t = open_valid((parts){.added = added_list});
    for (size_t i = 0; i < sizeof added_cases / sizeof *added_cases; i++)
        expect_encoding(t, added_cases[i][0], added_cases[i][1]);
    assert_int_equal(tokenizer_size(t), 268);
    assert_int_equal(tokenizer_added_id(t, "<n><l>"), 260);
    assert_int_equal(tokenizer_added_id(t, "<x>"), -1);
    assert_true(tokenizer_is_special(t, 260));
    assert_false(tokenizer_is_special(t, 259));
    assert_true(tokenizer_is_added(t, 259));
    assert_false(tokenizer_is_added(t, 'a'));
    assert_false(tokenizer_is_added(t, 300));
    assert_false(tokenizer_is_added(t, -1));
    assert_null(tokenizer_token(t, 300).data);
    assert_true(view_equal_text(tokenizer_token(t, 260), "<n><l>"));
    tokenizer_free(t);
}

static void expect_decoding(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special, const char *expected)
{
    text found = {0};
    tokenizer_decode(t, ids, count, skip_special, &found);
    text_add(&found, "", 0);
    assert_string_equal(found.data, expected);
    text_free(&found);
}

static void test_decode_added_tokens(void **state)
{
    (void)state;
    tokenizer *t = open_valid((parts){.added = added_list});
    const int32_t ids[] = {256, 257, 258, 265, 'a', 260, 0xE9, 999, -5, 'b'};
    /* HF: an added token wholly in the byte alphabet decodes as bytes, so 265 gives E9 FF */
    expect_decoding(t, ids, 10, false, "<w><l><r>\xEF\xBF\xBD\xEF\xBF\xBD" "a<n><l>\xEF\xBF\xBD" "b");
    expect_decoding(t, ids, 10, true, "<w><l><r>\xEF\xBF\xBD\xEF\xBF\xBD" "a\xEF\xBF\xBD" "b");
    expect_decoding(t, ids, 0, true, "");
    tokenizer_free(t);
}

/* Control tokens in user text: with added_tokens they are ids, without they are letters and symbols. */
static void test_control_tokens_as_text(void **state)
{
    (void)state;
    static const char s[] = "[gMASK]<sop><|system|>x<|user|>hi<|assistant|><think></think><tool_call>f<arg_key>k</arg_key>/nothink";
    token_list with = {0}, without = {0};
    text back = {0};
    tokenizer_encode(nano, s, strlen(s), true, &with);
    tokenizer_encode(nano, s, strlen(s), false, &without);
    size_t added = 0;
    for (size_t i = 0; i < with.count; i++)
        added += tokenizer_is_added(nano, with.ids[i]);
    assert_int_equal(added, 11);
    assert_int_equal(with.ids[0], tokenizer_added_id(nano, "[gMASK]"));
    for (size_t i = 0; i < without.count; i++)
        assert_false(tokenizer_is_added(nano, without.ids[i]));
    tokenizer_decode(nano, without.ids, without.count, true, &back);
    assert_string_equal(back.data, s);
    token_list_free(&with);
    token_list_free(&without);
    text_free(&back);
}

/* ---- decoding ---- */

static void test_invalid_utf8(void **state)
{
    (void)state;
#define X "\xEF\xBF\xBD"
    static const char *const cases[][2] = {
        /* HF */
        {"\xE4\xBD", X},
        {"\xE4\xBD" "a", X "a"},
        {"\xF0\x90\x80", X},
        {"\xF0\x80\x80\x80", X X X X},
        {"\xED\xA0\x80", X X X},
        {"\xC0\x80", X X},
        {"\xF5\x80", X X},
        {"\xE4\xE4\xBD\xA0", X "\xE4\xBD\xA0"},
        {"\xF0\x9F\x98\x80\xF0\x9F", "\xF0\x9F\x98\x80" X},
        {"\x80\x80", X X},
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
        {"\xF4\x90\x80\x80", X X X X},
        {"\xE0\x80\x80", X X X},
        {"\xC3", X},
        {"\xF0\x9F\xC3\xA9", X "\xC3\xA9"},
    };
#undef X
    tokenizer *t = open_valid((parts){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t ids[16];
        size_t count = strlen(cases[i][0]);
        for (size_t k = 0; k < count; k++)
            ids[k] = (unsigned char)cases[i][0][k];
        expect_decoding(t, ids, count, false, cases[i][1]);
    }
    tokenizer_free(t);
}

/* A second way to replace invalid UTF-8, over all bytes at once: the longest prefix of a character, or one byte. */
static void replace_invalid(const text *bytes, text *out)
{
    uint32_t c;
    for (size_t at = 0; at < bytes->length;) {
        size_t left = bytes->length - at, bad = 1;
        int n = utf8_decode(bytes->data + at, left, &c);
        if (n) {
            text_add(out, bytes->data + at, (size_t)n);
            at += (size_t)n;
            continue;
        }
        for (size_t k = 2; k <= 3 && k <= left; k++)
            if (utf8_incomplete_tail(bytes->data + at, k) == k)
                bad = k;
        text_add_text(out, "\xEF\xBF\xBD");
        at += bad;
    }
}

static int32_t random_id(uint64_t round, uint64_t i)
{
    uint64_t kind = random_word(5, round, i) % 8;
    if (kind < 5) /* bytes above 127: most likely to make and break characters */
        return nano->bpe.byte_ids[128 + random_word(6, round, i) % 128];
    return (int32_t)(random_word(6, round, i) % (kind == 5 ? 4200 : 4075));
}

static void test_streaming_equals_decoding(void **state)
{
    (void)state;
    text whole = {0}, pieces = {0}, bytes = {0}, replaced = {0};
    for (uint64_t round = 0; round < 20000; round++) {
        int32_t ids[24];
        size_t count = random_word(7, round, 0) % 25;
        token_stream stream = {.skip_special = round % 2};
        text_clear(&whole), text_clear(&pieces), text_clear(&bytes), text_clear(&replaced);
        for (size_t i = 0; i < count; i++) {
            ids[i] = random_id(round, i);
            size_t before = pieces.length;
            token_stream_add(&stream, nano, ids[i], &pieces);
            if (pieces.length > before)
                assert_true(utf8_valid(pieces.data + before, pieces.length - before));
            view v = tokenizer_token(nano, ids[i]);
            if (!(stream.skip_special && tokenizer_is_special(nano, ids[i])))
                text_add(&bytes, v.data, v.length);
        }
        token_stream_flush(&stream, &pieces);
        tokenizer_decode(nano, ids, count, stream.skip_special, &whole);
        replace_invalid(&bytes, &replaced);
        assert_true(view_equal((view){whole.data, whole.length}, (view){pieces.data, pieces.length}));
        assert_true(view_equal((view){whole.data, whole.length}, (view){replaced.data, replaced.length}));
    }
    text_free(&whole), text_free(&pieces), text_free(&bytes), text_free(&replaced);
}

/* A character must come out with its last byte, not later. */
static void test_streaming_does_not_wait(void **state)
{
    (void)state;
    tokenizer *t = open_valid((parts){0});
    token_stream s = {0};
    text out = {0};
    static const unsigned char bytes[] = {'a', 0xF0, 0x9F, 0x98, 0x80, 0xC3, 'b'};
    static const size_t lengths[] = {1, 1, 1, 1, 5, 5, 9};
    for (size_t i = 0; i < sizeof bytes; i++) {
        token_stream_add(&s, t, bytes[i], &out);
        assert_int_equal(out.length, lengths[i]);
    }
    text_free(&out);
    tokenizer_free(t);
}

/* ---- refusals ---- */

static void expect_refused(parts p, const char *named)
{
    error err = {0};
    tokenizer *t = open_parts(p, &err);
    if (t)
        fail_msg("accepted, expected an error about %s", named);
    assert_int_equal(err.code, ERROR_INPUT);
    if (!strstr(err.text, named))
        fail_msg("error \"%s\" does not name %s", err.text, named);
}

static void test_refused_steps(void **state)
{
    (void)state;
    expect_refused((parts){.version = "\"2.0\""}, "\"version\"");
    expect_refused((parts){.truncation = "{\"max_length\":4}"}, "\"truncation\"");
    expect_refused((parts){.normalizer = "{\"type\":\"NFC\"}"}, "\"normalizer\"");
    expect_refused((parts){.more = ",\"novelty\":1"}, "\"novelty\"");
    expect_refused((parts){.pre = "null"}, "\"pre_tokenizer\"");
    expect_refused((parts){.pre = BYTES}, "\"Sequence\"");
    expect_refused((parts){.pre = SEQUENCE(SPLIT, SPLIT)}, "pretokenizers[1]");
    expect_refused((parts){.pre = SEQUENCE(BYTES, SPLIT)}, "pretokenizers[0]");
    expect_refused((parts){.pre = SEQUENCE(SPLIT, BYTES "," BYTES)}, "\"pretokenizers\"");
    expect_refused((parts){.pre = SEQUENCE(SPLIT_START "\"\\\\s+\"" SPLIT_END, BYTES)}, "\"Regex\"");
    expect_refused((parts){.pre = SEQUENCE("{\"type\":\"Split\",\"pattern\":{\"String\":\" \"" SPLIT_END, BYTES)}, "pattern");
    expect_refused((parts){.pre = SEQUENCE(SPLIT_START RULE "},\"behavior\":\"Removed\",\"invert\":false}", BYTES)},
                   "\"behavior\"");
    expect_refused((parts){.pre = SEQUENCE(SPLIT_START RULE "},\"behavior\":\"Isolated\",\"invert\":true}", BYTES)},
                   "\"invert\"");
    expect_refused((parts){.pre = SEQUENCE(SPLIT, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}")},
                   "\"add_prefix_space\"");
    expect_refused((parts){.pre = SEQUENCE(SPLIT, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}")}, "\"use_regex\"");
    expect_refused((parts){.post = "{\"type\":\"TemplateProcessing\"}"}, "post_processor");
    expect_refused((parts){.decoder = "null"}, "\"decoder\"");
    expect_refused((parts){.decoder = "{\"type\":\"Metaspace\"}"}, "decoder");
}

static void test_refused_models(void **state)
{
    (void)state;
    expect_refused((parts){.model = "\"type\":\"Unigram\""}, "\"type\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"dropout\":0.1"}, "\"dropout\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"unk_token\":\"a\""}, "\"unk_token\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"byte_fallback\":true"}, "\"byte_fallback\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\""}, "\"continuing_subword_prefix\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\""}, "\"end_of_word_suffix\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"ignore_merges\":1"}, "\"ignore_merges\"");
    expect_refused((parts){.model = "\"type\":\"BPE\",\"surprise\":1"}, "\"surprise\"");
    expect_refused((parts){.vocab = ",\"ab\":7"}, "id 7 belongs to two tokens");
    expect_refused((parts){.vocab = ",\"ab\":16777216"}, "from 0 to 16777215");
    expect_refused((parts){.vocab = ",\"ab\":-1"}, "\"ab\"");
    expect_refused((parts){.vocab = ",\"ab\":2147483648"}, "\"ab\"");
    expect_refused((parts){.vocab = ",\"ab\":1.5"}, "\"ab\"");
    expect_refused((parts){.vocab = ",\"a\":300"}, "JSON");
    expect_refused((parts){.missing_byte = 'q'}, "for byte 113");
    expect_refused((parts){.merges = "{}"}, "\"merges\"");
    expect_refused((parts){.merges = "[[\"a\",\"bb\"]]"}, "\"bb\" is not in the vocabulary");
    expect_refused((parts){.merges = "[[\"aa\",\"b\"]]"}, "\"aa\" is not in the vocabulary");
    expect_refused((parts){.merges = "[[\"a\",\"b\"]]"}, "\"ab\" is not in the vocabulary");
    static const char ab[] = ",\"ab\":256,\"bc\":257";
    expect_refused((parts){.vocab = ab, .merges = "[[\"a\",\"b\"],[\"a\",\"b\"]]"}, "merges[1]");
    expect_refused((parts){.vocab = ab, .merges = "[[\"a\",\"b\"],\"b c\"]"}, "merges[1]");
    expect_refused((parts){.vocab = ab, .merges = "[\"a b\",[\"b\",\"c\"]]"}, "merges[1]");
    expect_refused((parts){.vocab = ab, .merges = "[[\"a\",\"b\",\"c\"]]"}, "merges[0]");
    expect_refused((parts){.vocab = ab, .merges = "[[\"\",\"b\"]]"}, "merges[0]");
    expect_refused((parts){.vocab = ab, .merges = "[\"a b c\"]"}, "merges[0]");
    expect_refused((parts){.vocab = ab, .merges = "[\"ab\"]"}, "merges[0]");
    expect_refused((parts){.vocab = ab, .merges = "[[\"a\\u0000\",\"b\"]]"}, "merges[0]");
    expect_refused((parts){.vocab = ab, .merges = "[7]"}, "merges[0]");
}

static void test_refused_added_tokens(void **state)
{
    (void)state;
    expect_refused((parts){.added = "{}"}, "\"added_tokens\"");
    expect_refused((parts){.added = "[7]"}, "added_tokens[0]");
    expect_refused((parts){.added = "[" ADDED(256, "", PLAIN) "]"}, "\"content\"");
    expect_refused((parts){.added = "[" ADDED(256, "x\\u0000", PLAIN) "]"}, "\"content\"");
    expect_refused((parts){.added = "[" ADDED(7, "<x>", PLAIN) "]"}, "which another token has");
    expect_refused((parts){.added = "[" ADDED(256, "a", PLAIN) "]"}, "97 in the vocabulary");
    expect_refused((parts){.added = "[" ADDED(256, "<x>", PLAIN) "," ADDED(257, "<x>", PLAIN) "]"}, "listed twice");
    expect_refused((parts){.added = "[" ADDED(256, "<x>", PLAIN) "," ADDED(256, "<y>", PLAIN) "]"}, "which another token has");
    expect_refused((parts){.added = "[" ADDED(99999999, "<x>", PLAIN) "]"}, "\"<x>\"");
    expect_refused((parts){.added = "[" ADDED(256, "<x>", PLAIN ",\"extra\":1") "]"}, "\"extra\"");
    expect_refused((parts){.added = "[{\"id\":256,\"content\":\"<x>\"}]"}, "\"single_word\"");
    text content = {0};
    text_add_text(&content, "[{\"id\":256,\"content\":\"");
    for (int i = 0; i < 1025; i++)
        text_add_char(&content, 'x');
    text_add_text(&content, "\"," PLAIN "}]");
    expect_refused((parts){.added = content.data}, "\"content\"");
    text_free(&content);
}

static void test_refused_documents(void **state)
{
    (void)state;
    static const char *const documents[] = {"", "[]", "7", "{", "{}", "{\"version\":\"1.0\"}", "\xFF",
                                            "{\"version\":\"1.0\",\"version\":1}"};
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        error err = {0};
        assert_null(tokenizer_parse(documents[i], strlen(documents[i]), "file", &err));
        assert_true(text_starts_with(err.text, "file: "));
    }
    error err = {0};
    assert_null(tokenizer_load(SOURCE_DIR "/no/such/file", &err));
    assert_true(err.code != ERROR_NONE);
    text json = build((parts){0});
    for (size_t cut = 0; cut < json.length; cut += 37)
        assert_null(tokenizer_parse(json.data, cut, "file", &err));
    text_free(&json);
}

/* Ids may have holes; a token outside the byte alphabet keeps its id and decodes to itself. */
static void test_holes_and_foreign_tokens(void **state)
{
    (void)state;
    tokenizer *t = open_valid((parts){.vocab = ",\"a b\":1000,\"\":1001",
                                      .added = "[" ADDED(2000, "<x>", PLAIN) "," ADDED(97, "a", PLAIN) "]"});
    assert_int_equal(tokenizer_size(t), 2001);
    assert_null(tokenizer_token(t, 500).data);
    assert_non_null(tokenizer_token(t, 1001).data);
    const int32_t ids[] = {500, 1000, 1001, 2000, 97};
    expect_decoding(t, ids, 5, true, "a b<x>a");
    expect_encoding(t, "a b<x>", "a b{2000}");
    assert_true(tokenizer_is_added(t, 97));
    tokenizer_free(t);
}

static int open_nano(void **state)
{
    (void)state;
    error err = {0};
    nano = tokenizer_load(SOURCE_DIR "/models/nano/tokenizer.json", &err);
    if (!nano)
        print_message("%s\n", err.text);
    return nano ? 0 : -1;
}

static int close_nano(void **state)
{
    (void)state;
    tokenizer_free(nano);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unicode_tables),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_covers_any_bytes),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_merges_are_those_of_the_definition),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_merges_as_strings),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_decode_added_tokens),
        cmocka_unit_test(test_control_tokens_as_text),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_streaming_equals_decoding),
        cmocka_unit_test(test_streaming_does_not_wait),
        cmocka_unit_test(test_refused_steps),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_refused_added_tokens),
        cmocka_unit_test(test_refused_documents),
        cmocka_unit_test(test_holes_and_foreign_tokens),
    };
    return cmocka_run_group_tests(tests, open_nano, close_nano);
}
