/* tokenizer.json: byte-level BPE with GLM's split rule (docs/tokenizer.md). Thread-safe after loading. */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

typedef struct tokenizer tokenizer;

/* A growing list of token ids. Zero-initialise to create one. */
typedef struct token_list {
    int32_t *ids;
    size_t count, capacity;
} token_list;

void token_list_add(token_list *l, int32_t id);
void token_list_free(token_list *l);

tokenizer *tokenizer_load(const char *path, error *err); /* path of tokenizer.json */
tokenizer *tokenizer_parse(const char *json, size_t count, const char *where, error *err);
void tokenizer_free(tokenizer *t);

int tokenizer_size(const tokenizer *t);                           /* largest id + 1, added tokens included */
int32_t tokenizer_added_id(const tokenizer *t, const char *content); /* id of an added token; -1 when unknown */
bool tokenizer_is_special(const tokenizer *t, int32_t id);        /* an added token with "special": true */
bool tokenizer_is_added(const tokenizer *t, int32_t id);

/* Appends the ids of text to out. With added_tokens, added tokens written out in the text become their ids, as in
 * HF; without, they are ordinary text. Text need not be valid UTF-8: HF's own decoder replaces what is not; we encode the
 * bytes as they are. */
void tokenizer_encode(const tokenizer *t, const char *text, size_t count, bool added_tokens, token_list *out);

/* The bytes one token decodes to. Added tokens give their content (but, as in HF, one written wholly in the byte alphabet with
 * characters beyond ASCII gives the bytes these stand for). {NULL, 0} for an id without a token. */
view tokenizer_token(const tokenizer *t, int32_t id);

/* Appends the text of ids. skip_special leaves out tokens with "special": true. Bytes that are not valid UTF-8
 * become U+FFFD, as in HF. */
void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t count, bool skip_special, text *out);

/* Streaming decode: feeds tokens one by one; only whole characters come out. The concatenation of all pieces and of the
 * final flush equals tokenizer_decode of all ids. */
typedef struct token_stream {
    char pending[8]; /* bytes of a character that is not complete */
    size_t pending_bytes;
    bool skip_special;
} token_stream;

void token_stream_add(token_stream *s, const tokenizer *t, int32_t id, text *out);
void token_stream_flush(token_stream *s, text *out);

#endif
