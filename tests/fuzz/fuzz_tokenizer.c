/* Fuzzes the tokenizer. The first byte chooses: odd, the rest is a tokenizer.json; even, the rest is text (and a list of ids) for
 * the nano tokenizer. Run from the repository root or from tests/. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static tokenizer *nano(void)
{
    static tokenizer *t;
    static const char from_tests[] = "../models/nano/tokenizer.json", *from_root = from_tests + 3;
    error err = {0};
    if (!t)
        t = tokenizer_load(file_exists(from_root) ? from_root : from_tests, &err);
    require(t != NULL, err.text);
    return t;
}

static bool same(const text *a, const char *bytes, size_t count)
{
    return a->length == count && (count == 0 || memcmp(a->data, bytes, count) == 0);
}

/* Streaming gives whole characters only, and together what decoding gives. */
static void check_streaming(const tokenizer *t, const token_list *ids, bool skip_special)
{
    text whole = {0}, pieces = {0};
    token_stream s = {.skip_special = skip_special};
    tokenizer_decode(t, ids->ids, ids->count, skip_special, &whole);
    for (size_t i = 0; i < ids->count; i++) {
        size_t before = pieces.length;
        token_stream_add(&s, t, ids->ids[i], &pieces);
        require(pieces.length == before || utf8_valid(pieces.data + before, pieces.length - before), "a piece is valid UTF-8");
    }
    token_stream_flush(&s, &pieces);
    require(same(&whole, pieces.data, pieces.length), "streaming equals decoding");
    text_free(&whole);
    text_free(&pieces);
}

static void check_round_trip(const tokenizer *t, const char *bytes, size_t count, bool added)
{
    token_list ids = {0};
    text back = {0}, raw = {0};
    tokenizer_encode(t, bytes, count, added, &ids);
    for (size_t i = 0; i < ids.count; i++) {
        view v = tokenizer_token(t, ids.ids[i]);
        require(v.data != NULL, "every id has a token");
        text_add(&raw, v.data, v.length);
    }
    require(same(&raw, bytes, count), "the tokens hold the bytes of the text");
    tokenizer_decode(t, ids.ids, ids.count, false, &back);
    require(!utf8_valid(bytes, count) || same(&back, bytes, count), "decoding gives back valid UTF-8");
    check_streaming(t, &ids, added);
    token_list_free(&ids);
    text_free(&back);
    text_free(&raw);
}

static void check_ids(const tokenizer *t, const uint8_t *data, size_t size)
{
    token_list ids = {0};
    for (size_t i = 0; i + 1 < size; i += 2)
        token_list_add(&ids, (data[i] | data[i + 1] << 8) % (tokenizer_size(t) + 8));
    check_streaming(t, &ids, size % 4 < 2);
    token_list_free(&ids);
}

static void check_file(const char *json, size_t count)
{
    static const char sample[] = "It's 2024,\n  the <w> caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC\xF0\x9F\x98\x80!  ";
    error err = {0};
    tokenizer *t = tokenizer_parse(json, count, "input", &err);
    if (!t) {
        require(err.code == ERROR_INPUT && err.text[0] != '\0', "a refusal says why");
        return;
    }
    token_list ids = {0};
    tokenizer_encode(t, sample, sizeof sample - 1, true, &ids);
    check_streaming(t, &ids, true);
    token_list_free(&ids);
    tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    if (data[0] & 1) {
        check_file((const char *)data + 1, size - 1);
    } else {
        check_round_trip(nano(), (const char *)data + 1, size - 1, true);
        check_round_trip(nano(), (const char *)data + 1, size - 1, false);
        check_ids(nano(), data + 1, size - 1);
    }
    return 0;
}
