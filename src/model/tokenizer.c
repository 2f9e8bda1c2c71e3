/* Text to tokens and back. Encoding: added tokens are cut out, what lies between is cut into pieces by the split rule
 * (tokenizer_split.c), and each piece is merged (tokenizer_bpe.c). Decoding: the bytes of the tokens one after the other, and
 * what is not UTF-8 replaced. */
#include "model/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/tokenizer_split.h"

enum { ADDED_SETS = 2 };

void token_list_add(token_list *l, int32_t id)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? l->capacity * 2 : 64;
        l->ids = mem_grow(l->ids, l->capacity, sizeof *l->ids);
    }
    l->ids[l->count++] = id;
}

void token_list_free(token_list *l)
{
    free(l->ids);
    *l = (token_list){0};
}

void tokenizer_free(tokenizer *t)
{
    if (!t)
        return;
    bpe_free(&t->bpe);
    for (int i = 0; i < ADDED_SETS; i++)
        added_set_free(&t->added[i]);
    map_free(&t->added_ids);
    free(t->tokens);
    free(t->pool);
    free(t);
}

int tokenizer_size(const tokenizer *t)
{
    return t->size;
}

static const token_entry *entry_of(const tokenizer *t, int32_t id)
{
    static const token_entry none;
    return id >= 0 && id < t->size ? &t->tokens[id] : &none;
}

int32_t tokenizer_added_id(const tokenizer *t, const char *content)
{
    int64_t id;
    return map_get(&t->added_ids, view_of(content), &id) ? (int32_t)id : -1;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return entry_of(t, id)->special;
}

bool tokenizer_is_added(const tokenizer *t, int32_t id)
{
    return entry_of(t, id)->added;
}

view tokenizer_token(const tokenizer *t, int32_t id)
{
    const token_entry *e = entry_of(t, id);
    return (view){e->bytes, e->length};
}

/* One call of tokenizer_encode. */
typedef struct encoding {
    const tokenizer *tokenizer;
    token_list *out;
    bpe_scratch scratch;
} encoding;

/* A group of pieces at a time, so that their slots arrive in cache together: with GLM's vocabulary the table of pieces is larger
 * than the second-level cache. */
static void encode_ordinary(encoding *e, view s)
{
    enum { GROUP = 16 };
    const bpe *b = &e->tokenizer->bpe;
    view pieces[GROUP];
    for (size_t at = 0; at < s.length;) {
        size_t count = 0;
        for (; count < GROUP && at < s.length; count++) {
            pieces[count] = (view){s.data + at, tokenizer_split_next(s.data + at, s.length - at)};
            bpe_prepare(b, pieces[count].data, pieces[count].length);
            at += pieces[count].length;
        }
        for (size_t i = 0; i < count; i++)
            bpe_encode(b, pieces[i].data, pieces[i].length, &e->scratch, e->out);
    }
}

/* Cuts out the added tokens of one set; the text between them goes to the next set, and at last to the split rule. */
static void encode_from_set(encoding *e, view s, int set)
{
    if (set == ADDED_SETS) {
        encode_ordinary(e, s);
        return;
    }
    added_match m;
    size_t from = 0, done = 0;
    while (added_set_next(&e->tokenizer->added[set], s, &from, &m)) {
        if (done < m.start)
            encode_from_set(e, (view){s.data + done, m.start - done}, set + 1);
        token_list_add(e->out, m.token->id);
        done = m.end;
    }
    if (done < s.length)
        encode_from_set(e, (view){s.data + done, s.length - done}, set + 1);
}

void tokenizer_encode(const tokenizer *t, const char *bytes, size_t count, bool added_tokens, token_list *out)
{
    encoding e = {.tokenizer = t, .out = out};
    encode_from_set(&e, (view){bytes, count}, added_tokens ? 0 : ADDED_SETS);
    bpe_scratch_free(&e.scratch);
}

static size_t valid_prefix(const char *bytes, size_t count)
{
    uint32_t c;
    size_t at = 0;
    for (int n; at < count && (n = utf8_decode(bytes + at, count - at, &c)) > 0;)
        at += (size_t)n;
    return at;
}

/* Settles what the pending bytes are after one more was added: the beginning of a character (kept), a character, or an invalid
 * sequence, which is one U+FFFD for the longest part that could have begun a character. */
static void pending_settle(token_stream *s, text *out)
{
    uint32_t c;
    while (s->pending_bytes > 0 && utf8_incomplete_tail(s->pending, s->pending_bytes) != s->pending_bytes) {
        if (utf8_decode(s->pending, s->pending_bytes, &c) == (int)s->pending_bytes) {
            text_add(out, s->pending, s->pending_bytes);
            s->pending_bytes = 0;
            return;
        }
        text_add_utf8(out, 0xFFFD);
        s->pending[0] = s->pending[s->pending_bytes - 1];
        s->pending_bytes = s->pending_bytes > 1 ? 1 : 0;
    }
}

static void stream_bytes(token_stream *s, const char *bytes, size_t count, text *out)
{
    for (size_t at = 0; at < count;) {
        if (s->pending_bytes == 0) {
            size_t valid = valid_prefix(bytes + at, count - at);
            text_add(out, bytes + at, valid);
            at += valid;
            if (at == count)
                return;
        }
        s->pending[s->pending_bytes++] = bytes[at++];
        pending_settle(s, out);
    }
}

void token_stream_add(token_stream *s, const tokenizer *t, int32_t id, text *out)
{
    const token_entry *e = entry_of(t, id);
    if (!(s->skip_special && e->special))
        stream_bytes(s, e->bytes, e->length, out);
}

void token_stream_flush(token_stream *s, text *out)
{
    if (s->pending_bytes)
        text_add_utf8(out, 0xFFFD);
    s->pending_bytes = 0;
}

void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special, text *out)
{
    token_stream s = {.skip_special = skip_special};
    for (size_t i = 0; i < count; i++)
        token_stream_add(&s, t, ids[i], out);
    token_stream_flush(&s, out);
}
