/* Byte pair encoding of one piece of text: merges ordered by rank, and a table of pieces that are one token. */
#ifndef MODEL_TOKENIZER_BPE_H
#define MODEL_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "model/tokenizer.h"

enum {
    BPE_MERGES_LIMIT = 1 << 24,
    BPE_NO_RANK = INT32_MAX, /* larger than any rank */
};

/* A merge: two tokens that become one. Its rank is its line in the list of merges, 0 first. */
typedef struct bpe_merge_rule {
    int32_t left, right, result; /* token ids */
} bpe_merge_rule;

/* A slot of the hash table of pairs. Most lookups find nothing; eight slots share a cache line. */
typedef struct bpe_pair {
    uint32_t tag; /* other bits of the pair's hash */
    int32_t rank; /* BPE_NO_RANK marks an empty slot */
} bpe_pair;

/* A piece that is one token, in the hash table of pieces. */
typedef struct bpe_piece {
    uint64_t key;    /* up to 8 bytes: the bytes themselves, so that one cache line decides; longer: their hash */
    uint32_t length; /* bytes; 0 marks an empty slot */
    int32_t id;      /* hidden pieces: minus id minus 1 */
} bpe_piece;

typedef struct bpe {
    int32_t byte_ids[256];     /* the token of each byte */
    int32_t *byte_pair_ranks;  /* [256][256] rank of a pair of bytes: the first lookups of every piece */
    bpe_merge_rule *merges;    /* [merge_count] by rank */
    uint64_t *pair_filter;     /* [filter_mask + 1] bits, one set for each pair: small enough for the second-level cache, and
                                * most pairs without a merge end here (a third off the time of merging) */
    size_t filter_mask;
    bpe_pair *pairs;           /* [pair_mask + 1], open addressing */
    size_t pair_mask, merge_count;
    bpe_piece *pieces;         /* [piece_mask + 1], open addressing */
    const char **piece_bytes;  /* [piece_mask + 1] the bytes of each piece, borrowed from the tokenizer */
    size_t piece_mask, longest_piece;
    uint64_t seed;             /* of both hashes, so that a crafted file cannot make all entries collide */
} bpe;

/* Memory for one caller's long pieces. Zero-initialise to create one. */
typedef struct bpe_scratch {
    struct bpe_node *nodes; /* [capacity] */
    uint64_t *heap;         /* [2 * capacity] */
    size_t capacity;        /* bytes of the longest piece so far */
} bpe_scratch;

void bpe_scratch_free(bpe_scratch *s);

/* Building, in this order: start; all pieces; byte_ids, which the caller fills; all merges; finish; hide. bpe_start is false when
 * memory is short. */
bool bpe_start(bpe *b, size_t merge_count, size_t piece_count);
void bpe_add_piece(bpe *b, view bytes, int32_t id); /* not empty, and must outlive b */
int32_t bpe_find_piece(const bpe *b, view bytes);   /* -1 for none; before the first bpe_hide_piece */
bool bpe_add_merge(bpe *b, int32_t left, int32_t right, int32_t rank, int32_t result); /* false: the pair has a merge already */
void bpe_finish_merges(bpe *b);
void bpe_hide_piece(bpe *b, view bytes); /* from now on bpe_encode merges these bytes instead of answering with the piece's id */
void bpe_free(bpe *b);

/* The rank of the merge of two tokens; BPE_NO_RANK when there is none. */
int32_t bpe_rank(const bpe *b, int32_t left, int32_t right);

/* Appends the tokens of a piece, by merges alone. */
void bpe_merge(const bpe *b, const char *piece, size_t count, bpe_scratch *scratch, token_list *out);

/* Says that bpe_encode of this piece comes soon: its slot is fetched into cache meanwhile. */
void bpe_prepare(const bpe *b, const char *piece, size_t count);

/* Appends the tokens of a piece, from the table of pieces where it is there. */
void bpe_encode(const bpe *b, const char *piece, size_t count, bpe_scratch *scratch, token_list *out);

#endif
