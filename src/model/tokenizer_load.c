/* tokenizer.json -> tokenizer. The file may describe far more than we implement, so everything is read strictly: a key, a type
 * or a setting that would change the tokens and that we do not know is refused by name.
 *
 * A vocabulary token is written in the byte alphabet: each byte stands as one visible character (33..126, 161..172 and 174..255
 * as themselves, the other 68 as U+0100 and up, in order). A token with any other character cannot come out of text; it keeps
 * its id and decodes to its own UTF-8, as in HF. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "model/tokenizer_internal.h"
#include "model/tokenizer_split.h"

enum {
    FILE_LIMIT_BYTES = 256 << 20,
    ID_LIMIT = 1 << 24,
    ADDED_CONTENT_LIMIT_BYTES = 1024, /* the search for added tokens costs up to this many steps a byte */
    ALPHABET_SIZE = 256 + 68,         /* code points the byte alphabet uses lie below this */
};

/* What loading needs besides the tokenizer. */
typedef struct loader {
    tokenizer *t;
    const char *where;
    error *err;
    const json_t *vocab;
    int16_t byte_of[ALPHABET_SIZE]; /* code point -> byte, -1 for none */
    char character_of[256][3];      /* byte -> its character in UTF-8, terminated */
    text joined;                    /* the bytes of a merge's two halves */
    bool ignore_merges;
} loader;

/* A token for an error message: at most 48 bytes of it, cut at a character. */
typedef struct shown {
    char text[64];
} shown;

static shown show(const char *token)
{
    shown s = {0};
    size_t n = strlen(token);
    if (n > 48)
        n = 48;
    n -= utf8_incomplete_tail(token, n);
    memcpy(s.text, token, n);
    memcpy(s.text + n, token[n] ? "..." : "", token[n] ? 4 : 1);
    return s;
}

/* Sets the error "<file>: <sentence>"; returns false. */
__attribute__((format(printf, 2, 3))) static bool refuse(loader *l, const char *format, ...)
{
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return error_set(l->err, ERROR_INPUT, "%s: %s", l->where, sentence);
}

static void alphabet_start(loader *l)
{
    uint32_t next = 256;
    memset(l->byte_of, 0xFF, sizeof l->byte_of);
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t c = itself ? b : next++;
        l->byte_of[c] = (int16_t)b;
        char *u = l->character_of[b];
        if (c < 0x80) {
            u[0] = (char)c;
        } else {
            u[0] = (char)(0xC0 | c >> 6);
            u[1] = (char)(0x80 | (c & 0x3F));
        }
    }
}

static bool check_keys(json_source s, const char *const *known, error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)s.object, key, value)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (!*k)
            return error_set(err, ERROR_INPUT, "%s: key \"%s\" is not known to this tokenizer; it could change the tokens",
                             s.where, show(key).text);
    }
    return true;
}

/* Opens an object below s; its name in errors is put into path. */
static bool open_object(json_source s, const char *key, text *path, json_source *out, error *err)
{
    const json_t *v = json_object_get(s.object, key);
    if (!json_is_object(v))
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be an object, found %s", s.where, key, json_type_name(v));
    text_clear(path);
    text_add_format(path, "%s: %s", s.where, key);
    *out = (json_source){v, path->data};
    return true;
}

static bool expect_null(json_source s, const char *key, error *err)
{
    if (json_has(s, key))
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be null, found %s; this tokenizer does not implement it",
                         s.where, key, json_type_name(json_object_get(s.object, key)));
    return true;
}

static bool expect_string(json_source s, const char *key, const char *expected, error *err)
{
    const char *found;
    if (!json_get_string(s, key, &found, err))
        return false;
    if (strcmp(found, expected) != 0)
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be \"%s\", found \"%s\"; this tokenizer implements nothing else",
                         s.where, key, expected, show(found).text);
    return true;
}

static bool expect_bool(json_source s, const char *key, bool if_missing, bool expected, error *err)
{
    bool found = if_missing;
    if (!json_get_bool_or(s, key, &found, err))
        return false;
    if (found != expected)
        return error_set(err, ERROR_INPUT, "%s: key \"%s\" must be %s; this tokenizer implements nothing else", s.where, key,
                         expected ? "true" : "false");
    return true;
}

/* A ByteLevel step. As a pre-tokenizer its settings change tokens; as a decoder or post-processor they change none. */
static bool check_byte_level(json_source s, bool changes_text, error *err)
{
    static const char *const keys[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    if (!expect_string(s, "type", "ByteLevel", err) || !check_keys(s, keys, err))
        return false;
    return !changes_text ||
           (expect_bool(s, "add_prefix_space", true, false, err) && expect_bool(s, "use_regex", true, false, err));
}

static bool check_split(json_source s, error *err)
{
    static const char *const keys[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const pattern_keys[] = {"Regex", NULL};
    text path = {0};
    json_source pattern;
    bool ok = expect_string(s, "type", "Split", err) && check_keys(s, keys, err) && expect_string(s, "behavior", "Isolated", err) &&
              expect_bool(s, "invert", false, false, err) && open_object(s, "pattern", &path, &pattern, err) &&
              check_keys(pattern, pattern_keys, err) && expect_string(pattern, "Regex", tokenizer_split_regex, err);
    text_free(&path);
    return ok;
}

static bool check_pre_tokenizer(json_source root, error *err)
{
    static const char *const keys[] = {"type", "pretokenizers", NULL};
    text path = {0}, split_path = {0}, bytes_path = {0};
    json_source s;
    bool ok = open_object(root, "pre_tokenizer", &path, &s, err) && expect_string(s, "type", "Sequence", err) &&
              check_keys(s, keys, err);
    if (ok) {
        const json_t *steps = json_object_get(s.object, "pretokenizers");
        text_add_format(&split_path, "%s: pretokenizers[0]", s.where);
        text_add_format(&bytes_path, "%s: pretokenizers[1]", s.where);
        ok = json_is_array(steps) && json_array_size(steps) == 2 && json_is_object(json_array_get(steps, 0)) &&
             json_is_object(json_array_get(steps, 1));
        if (!ok)
            error_set(err, ERROR_INPUT, "%s: key \"pretokenizers\" must be a list of a Split and a ByteLevel step", s.where);
        else
            ok = check_split((json_source){json_array_get(steps, 0), split_path.data}, err) &&
                 check_byte_level((json_source){json_array_get(steps, 1), bytes_path.data}, true, err);
    }
    text_free(&path);
    text_free(&split_path);
    text_free(&bytes_path);
    return ok;
}

static bool check_steps(json_source root, error *err)
{
    static const char *const keys[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                       "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    text path = {0};
    json_source s;
    bool ok = check_keys(root, keys, err) && expect_string(root, "version", "1.0", err) && expect_null(root, "truncation", err) &&
              expect_null(root, "padding", err) && expect_null(root, "normalizer", err) && check_pre_tokenizer(root, err) &&
              open_object(root, "decoder", &path, &s, err) && check_byte_level(s, false, err);
    if (ok && json_has(root, "post_processor"))
        ok = open_object(root, "post_processor", &path, &s, err) && check_byte_level(s, false, err);
    text_free(&path);
    return ok;
}

/* Settings of the model other than its vocabulary and merges. */
static bool check_model(loader *l, json_source m)
{
    static const char *const keys[] = {
        "type",     "dropout",       "unk_token",     "continuing_subword_prefix", "end_of_word_suffix",
        "fuse_unk", "byte_fallback", "ignore_merges", "vocab",                     "merges",
        NULL};
    bool fuse_unk = false; /* without an unknown token it has no effect */
    return expect_string(m, "type", "BPE", l->err) && check_keys(m, keys, l->err) && expect_null(m, "dropout", l->err) &&
           expect_null(m, "unk_token", l->err) && expect_null(m, "continuing_subword_prefix", l->err) &&
           expect_null(m, "end_of_word_suffix", l->err) && json_get_bool_or(m, "fuse_unk", &fuse_unk, l->err) &&
           expect_bool(m, "byte_fallback", false, false, l->err) &&
           json_get_bool_or(m, "ignore_merges", &l->ignore_merges, l->err);
}

static bool check_id(loader *l, const char *token, const json_t *id)
{
    if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < ID_LIMIT)
        return true;
    if (!json_is_integer(id))
        return refuse(l, "the id of token \"%s\" must be an integer, found %s", show(token).text, json_type_name(id));
    return refuse(l, "the id of token \"%s\" must be from 0 to %d, found %lld",
                  show(token).text, ID_LIMIT - 1, (long long)json_integer_value(id));
}

static void note_token(tokenizer *t, const char *content, const json_t *id)
{
    if (json_integer_value(id) >= t->size)
        t->size = (int)json_integer_value(id) + 1;
    t->pool_bytes += strlen(content) + 1;
}

/* First pass over all tokens: checks ids and finds the sizes of the tables. */
static bool measure(loader *l, const json_t *added)
{
    const char *token;
    json_t *value;
    size_t i;
    json_object_foreach((json_t *)l->vocab, token, value)
    {
        if (!check_id(l, token, value))
            return false;
        note_token(l->t, token, value);
    }
    json_array_foreach(added, i, value)
    {
        const json_t *content = json_object_get(value, "content"), *id = json_object_get(value, "id");
        size_t length = json_string_length(content);
        if (length == 0 || length > ADDED_CONTENT_LIMIT_BYTES || strlen(json_string_value(content)) != length)
            return refuse(l, "added_tokens[%zu]: key \"content\" must be a string of 1 to %d bytes without NUL",
                          i, ADDED_CONTENT_LIMIT_BYTES);
        if (!check_id(l, json_string_value(content), id))
            return false;
        note_token(l->t, json_string_value(content), id);
        note_token(l->t, json_string_value(content), id); /* content and decoded bytes are kept apart */
    }
    if (l->t->size == 0)
        return refuse(l, "key \"vocab\" has no tokens");
    l->t->tokens = mem_try_alloc((size_t)l->t->size, sizeof *l->t->tokens);
    l->t->pool = mem_try_alloc(l->t->pool_bytes, 1);
    if (!l->t->tokens || !l->t->pool)
        return error_set(l->err, ERROR_FIT, "%s: not enough memory for %d tokens of %zu bytes together", l->where, l->t->size,
                         l->t->pool_bytes);
    return true;
}

static char *pool_take(tokenizer *t, size_t count)
{
    char *p = t->pool + t->pool_used;
    t->pool_used += count + 1;
    return p;
}

/* The bytes of a token written in the byte alphabet; false for any other token. out has room for token.length bytes. */
static bool alphabet_bytes(const loader *l, view token, char *out, size_t *count)
{
    uint32_t c;
    *count = 0;
    for (size_t at = 0; at < token.length; ++*count) {
        at += (size_t)utf8_decode(token.data + at, token.length - at, &c);
        if (c >= ALPHABET_SIZE || l->byte_of[c] < 0)
            return false;
        out[*count] = (char)l->byte_of[c];
    }
    return true;
}

/* Stores what a token decodes to; true when it is written in the byte alphabet. */
static bool token_bytes(loader *l, const char *token, view *out)
{
    view raw = view_of(token);
    char *p = pool_take(l->t, raw.length);
    *out = (view){p, raw.length};
    if (alphabet_bytes(l, raw, p, &out->length))
        return true;
    memcpy(p, token, raw.length + 1);
    out->length = raw.length;
    return false;
}

static bool load_vocab(loader *l, bool *in_alphabet)
{
    const char *token;
    json_t *value;
    json_object_foreach((json_t *)l->vocab, token, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        token_entry *e = &l->t->tokens[id];
        view bytes;
        if (e->bytes)
            return refuse(l, "id %d belongs to two tokens, one of them \"%s\"", id, show(token).text);
        in_alphabet[id] = token_bytes(l, token, &bytes) && bytes.length > 0;
        *e = (token_entry){.bytes = bytes.data, .length = (uint32_t)bytes.length};
        if (in_alphabet[id])
            bpe_add_piece(&l->t->bpe, bytes, id);
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        l->t->bpe.byte_ids[b] = bpe_find_piece(&l->t->bpe, (view){&byte, 1});
        if (l->t->bpe.byte_ids[b] < 0)
            return refuse(l, "key \"vocab\" has no token \"%s\" for byte %d; text with it could not be encoded",
                          l->character_of[b], b);
    }
    return true;
}

static bool expect_in_vocab(loader *l, size_t index, view left, view right)
{
    text name = {0};
    text_add(&name, left.data, left.length);
    text_add(&name, right.data, right.length);
    bool known = json_object_get(l->vocab, name.data) != NULL;
    if (!known)
        refuse(l, "merges[%zu]: \"%s\" is not in the vocabulary", index, show(name.data).text);
    text_free(&name);
    return known;
}

/* A merge of tokens that are not all written in the byte alphabet: text never gets there, so it only has to be right. */
static bool check_merge(loader *l, size_t index, view left, view right)
{
    view nothing = {"", 0};
    return expect_in_vocab(l, index, left, nothing) && expect_in_vocab(l, index, right, nothing) &&
           expect_in_vocab(l, index, left, right);
}

static bool add_merge(loader *l, size_t index, size_t rank, view left, view right)
{
    bpe *b = &l->t->bpe;
    size_t left_count, right_count;
    text_clear(&l->joined);
    text_add(&l->joined, left.data, left.length);
    text_add(&l->joined, right.data, right.length);
    char *bytes = l->joined.data;
    if (!alphabet_bytes(l, left, bytes, &left_count) || !alphabet_bytes(l, right, bytes + left_count, &right_count))
        return check_merge(l, index, left, right);
    int32_t left_id = bpe_find_piece(b, (view){bytes, left_count});
    int32_t right_id = bpe_find_piece(b, (view){bytes + left_count, right_count});
    int32_t result = bpe_find_piece(b, (view){bytes, left_count + right_count});
    if (left_id < 0 || right_id < 0 || result < 0)
        return check_merge(l, index, left, right);
    if (!bpe_add_merge(b, left_id, right_id, (int32_t)rank, result))
        return refuse(l, "merges[%zu]: the pair is listed twice", index);
    return true;
}

/* Reads ["a", "b"] or "a b", whichever form the list has. */
static bool merge_halves(const json_t *merge, bool pairs, view *left, view *right)
{
    if (pairs) {
        const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
        if (!json_is_string(a) || !json_is_string(b) || json_array_size(merge) != 2)
            return false;
        *left = (view){json_string_value(a), json_string_length(a)};
        *right = (view){json_string_value(b), json_string_length(b)};
    } else {
        const char *s = json_string_value(merge), *space = s ? strchr(s, ' ') : NULL;
        if (!space || strchr(space + 1, ' '))
            return false;
        *left = (view){s, (size_t)(space - s)};
        *right = (view){space + 1, json_string_length(merge) - left->length - 1};
    }
    return left->length && right->length && !memchr(left->data, 0, left->length) && !memchr(right->data, 0, right->length);
}

static bool load_merges(loader *l, const json_t *merges)
{
    bool pairs = json_is_array(json_array_get(merges, 0));
    size_t index, rank = 0;
    const json_t *merge;
    view left, right;
    json_array_foreach(merges, index, merge)
    {
        if (!pairs && json_is_string(merge) && text_starts_with(json_string_value(merge), "#version"))
            continue;
        if (!merge_halves(merge, pairs, &left, &right))
            return refuse(l, "merges[%zu] must be %s, neither half empty", index,
                          pairs ? "a list of two strings like the first one" : "a string of two halves with one space between");
        if (!add_merge(l, index, rank++, left, right))
            return false;
    }
    bpe_finish_merges(&l->t->bpe);
    return true;
}

/* Leaves in the table of pieces the tokens that their own bytes merge into; with ignore_merges, all tokens. */
static void settle_pieces(loader *l, const bool *in_alphabet)
{
    bpe_scratch scratch = {0};
    token_list found = {0};
    for (int32_t id = 0; id < l->t->size && !l->ignore_merges; id++) {
        const token_entry *e = &l->t->tokens[id];
        if (!in_alphabet[id])
            continue;
        found.count = 0;
        bpe_merge(&l->t->bpe, e->bytes, e->length, &scratch, &found);
        if (found.count != 1 || found.ids[0] != id)
            bpe_hide_piece(&l->t->bpe, (view){e->bytes, e->length});
    }
    bpe_scratch_free(&scratch);
    token_list_free(&found);
}

static bool load_model(loader *l, json_source model)
{
    const json_t *merges = json_object_get(model.object, "merges");
    if (!json_is_array(merges) || json_array_size(merges) > BPE_MERGES_LIMIT)
        return refuse(l, "key \"merges\" must be a list of at most %d merges", BPE_MERGES_LIMIT);
    bool *in_alphabet = mem_try_alloc((size_t)l->t->size, sizeof *in_alphabet);
    bool ok = in_alphabet && bpe_start(&l->t->bpe, json_array_size(merges), json_object_size(l->vocab));
    if (!ok)
        error_set(l->err, ERROR_FIT, "%s: not enough memory for the tables of %zu merges", l->where, json_array_size(merges));
    ok = ok && load_vocab(l, in_alphabet) && load_merges(l, merges);
    if (ok)
        settle_pieces(l, in_alphabet);
    free(in_alphabet);
    return ok;
}

/* The id of an added token must agree with the vocabulary: the same token's id, or one no other token has. */
static bool check_added_id(loader *l, size_t index, const char *content, int32_t id)
{
    const json_t *value = json_object_get(l->vocab, content);
    int64_t listed = value ? json_integer_value(value) : -1;
    if (listed >= 0 && listed != id)
        return refuse(l, "added_tokens[%zu]: \"%s\" has id %d, but %lld in the vocabulary",
                      index, show(content).text, id, (long long)listed);
    if (listed < 0 && l->t->tokens[id].bytes)
        return refuse(l, "added_tokens[%zu]: \"%s\" has id %d, which another token has", index, show(content).text, id);
    return true;
}

static bool load_added_token(loader *l, size_t index, json_source s)
{
    static const char *const keys[] = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", NULL};
    const char *content = json_string_value(json_object_get(s.object, "content"));
    added_token a = {.id = (int32_t)json_integer_value(json_object_get(s.object, "id"))};
    token_entry *e = &l->t->tokens[a.id];
    bool normalized, special;
    if (!check_keys(s, keys, l->err) || !json_get_bool(s, "single_word", &a.single_word, l->err) ||
        !json_get_bool(s, "lstrip", &a.lstrip, l->err) || !json_get_bool(s, "rstrip", &a.rstrip, l->err) ||
        !json_get_bool(s, "normalized", &normalized, l->err) || !json_get_bool(s, "special", &special, l->err) ||
        !check_added_id(l, index, content, a.id))
        return false;
    a.content = (view){memcpy(pool_take(l->t, strlen(content)), content, strlen(content) + 1), strlen(content)};
    if (!map_add(&l->t->added_ids, a.content, a.id))
        return refuse(l, "added_tokens[%zu]: \"%s\" is listed twice", index, show(content).text);
    if (!e->bytes) {
        view bytes;
        token_bytes(l, content, &bytes);
        *e = (token_entry){.bytes = bytes.data, .length = (uint32_t)bytes.length};
    }
    e->added = true;
    e->special = special;
    added_set_add(&l->t->added[normalized ? 1 : 0], a);
    return true;
}

static bool load_added(loader *l, const json_t *added)
{
    size_t i;
    const json_t *value;
    text path = {0};
    bool ok = true;
    json_array_foreach(added, i, value)
    {
        text_clear(&path);
        text_add_format(&path, "%s: added_tokens[%zu]", l->where, i);
        ok = ok && load_added_token(l, i, (json_source){value, path.data});
    }
    text_free(&path);
    return ok;
}

static bool load_root(loader *l, const json_t *document)
{
    json_source root = {document, l->where}, model = {0};
    if (!json_is_object(document))
        return refuse(l, "must be an object, found %s", json_type_name(document));
    const json_t *added = json_object_get(document, "added_tokens");
    if (added && !json_is_array(added))
        return refuse(l, "key \"added_tokens\" must be a list, found %s", json_type_name(added));
    text path = {0};
    bool ok = check_steps(root, l->err) && open_object(root, "model", &path, &model, l->err) && check_model(l, model);
    if (ok) {
        l->vocab = json_object_get(model.object, "vocab");
        if (!json_is_object(l->vocab))
            ok = error_set(l->err, ERROR_INPUT, "%s: key \"vocab\" must be an object, found %s", model.where,
                           json_type_name(l->vocab));
    }
    ok = ok && measure(l, added) && load_model(l, model) && load_added(l, added);
    text_free(&path);
    return ok;
}

tokenizer *tokenizer_parse(const char *json, size_t count, const char *where, error *err)
{
    json_t *document = json_parse(json, count, where, err);
    if (!document)
        return NULL;
    loader l = {.t = mem_alloc(1, sizeof *l.t), .where = where, .err = err};
    alphabet_start(&l);
    bool ok = load_root(&l, document);
    json_decref(document);
    text_free(&l.joined);
    if (ok)
        return l.t;
    tokenizer_free(l.t);
    return NULL;
}

tokenizer *tokenizer_load(const char *path, error *err)
{
    text bytes = {0};
    tokenizer *t = NULL;
    if (file_read(path, FILE_LIMIT_BYTES, &bytes, err))
        t = tokenizer_parse(bytes.data, bytes.length, path, err);
    text_free(&bytes);
    return t;
}
