/* The tokenizer as its own files see it. */
#ifndef MODEL_TOKENIZER_INTERNAL_H
#define MODEL_TOKENIZER_INTERNAL_H

#include "base/map.h"
#include "model/tokenizer.h"
#include "model/tokenizer_added.h"
#include "model/tokenizer_bpe.h"

/* What an id stands for. */
typedef struct token_entry {
    const char *bytes; /* what it decodes to; NULL: no token has this id */
    uint32_t length;   /* bytes */
    bool added, special;
} token_entry;

struct tokenizer {
    token_entry *tokens; /* [size] by id */
    int size;            /* largest id + 1 */
    char *pool;          /* the bytes of all tokens and the contents of the added ones */
    size_t pool_bytes, pool_used;
    bpe bpe;
    added_set added[2]; /* looked for one after the other: "normalized": false, then true */
    map added_ids;      /* content of an added token -> id */
};

#endif
