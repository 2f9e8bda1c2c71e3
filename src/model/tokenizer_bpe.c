/* Byte pair encoding. A piece begins as one token per byte; as long as some neighbouring pair has a merge, the pair with the
 * lowest rank (of equals the leftmost) becomes one token.
 *
 * Three ways to the same result:
 *   - a piece in the table of pieces is one lookup. The loader leaves a token there when its own bytes merge into it (or when
 *     the file says ignore_merges) and hides the others, so the answer is that of the merges;
 *   - short pieces keep ids and ranks in two small arrays and look for the lowest rank by a scan;
 *   - long pieces are a linked list over the bytes with a heap of (rank, position), so n bytes cost n log n. An entry of the
 *     heap is out of date when the rank stored at its position is another one; it is then dropped. */
#include "model/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

enum {
    SHORT_PIECE = 128, /* bytes; up to here the scan beats the heap */
    POSITION_BITS = 40,
};

/* A token of a long piece, at the position of its first byte. */
typedef struct bpe_node {
    size_t previous, next; /* positions; NOWHERE at the ends */
    int32_t id;
    int32_t rank; /* of the pair (this, next); BPE_NO_RANK without one or once merged into the previous token */
} bpe_node;

static const size_t NOWHERE = SIZE_MAX;

static inline uint64_t mix(uint64_t x)
{
    x *= UINT64_C(0x9E3779B97F4A7C15);
    return x ^ (x >> 32);
}

/* count > 0 */
static inline uint64_t load_bytes(const char *p, size_t count)
{
    if (count >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        return w;
    }
    if (count >= 4) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + count - 4, 4);
        return (uint64_t)b << 32 | a;
    }
    const unsigned char *u = (const unsigned char *)p;
    return (uint64_t)u[0] << 16 | (uint64_t)u[count / 2] << 8 | u[count - 1];
}

/* Of up to 8 bytes their value (overlapping loads: equal lengths load alike, so no two values are equal), of more a hash. */
static inline uint64_t piece_key(const char *p, size_t count, uint64_t seed)
{
    if (count <= 8)
        return load_bytes(p, count);
    uint64_t h = seed;
    while (count > 8) {
        h = mix(h ^ load_bytes(p, 8));
        size_t step = count >= 16 ? 8 : count - 8;
        p += step;
        count -= step;
    }
    return mix(h ^ load_bytes(p, count));
}

static inline uint64_t pair_hash(int32_t left, int32_t right, uint64_t seed)
{
    return mix(((uint64_t)(uint32_t)left << 32 | (uint32_t)right) ^ seed);
}

static size_t table_capacity(size_t count)
{
    size_t capacity = 64;
    while (capacity < count * 2)
        capacity *= 2;
    return capacity;
}

bool bpe_start(bpe *b, size_t merge_count, size_t piece_count)
{
    size_t pairs = table_capacity(merge_count), pieces = table_capacity(piece_count);
    b->merge_count = merge_count;
    b->pair_mask = pairs - 1;
    b->piece_mask = pieces - 1;
    b->filter_mask = table_capacity(merge_count * 4) - 1;
    b->pair_filter = mem_try_alloc((b->filter_mask + 1) / 64, sizeof *b->pair_filter);
    b->byte_pair_ranks = mem_try_alloc(256 * 256, sizeof *b->byte_pair_ranks);
    b->merges = mem_try_alloc(merge_count, sizeof *b->merges);
    b->pairs = mem_try_alloc(pairs, sizeof *b->pairs);
    b->pieces = mem_try_alloc(pieces, sizeof *b->pieces);
    b->piece_bytes = mem_try_alloc(pieces, sizeof *b->piece_bytes);
    if (!b->byte_pair_ranks || !b->merges || !b->pairs || !b->pair_filter || !b->pieces || !b->piece_bytes)
        return false;
    b->seed = random_word((uint64_t)(uintptr_t)b->pairs, (uint64_t)(uintptr_t)b->pieces, 0);
    for (size_t i = 0; i < pairs; i++)
        b->pairs[i].rank = BPE_NO_RANK;
    return true;
}

void bpe_free(bpe *b)
{
    free(b->byte_pair_ranks);
    free(b->merges);
    free(b->pairs);
    free(b->pair_filter);
    free(b->pieces);
    free(b->piece_bytes);
    *b = (bpe){0};
}

void bpe_scratch_free(bpe_scratch *s)
{
    free(s->nodes);
    free(s->heap);
    *s = (bpe_scratch){0};
}

static inline bpe_pair *pair_slot(const bpe *b, int32_t left, int32_t right)
{
    uint64_t hash = pair_hash(left, right, b->seed);
    for (size_t i = hash & b->pair_mask;; i = (i + 1) & b->pair_mask) {
        bpe_pair *p = &b->pairs[i];
        if (p->rank == BPE_NO_RANK)
            return p;
        const bpe_merge_rule *m = &b->merges[p->rank];
        if (p->tag == (uint32_t)(hash >> 32) && m->left == left && m->right == right)
            return p;
    }
}

static inline size_t filter_bit(const bpe *b, int32_t left, int32_t right)
{
    return pair_hash(left, right, b->seed) >> 24 & b->filter_mask;
}

static inline int32_t pair_rank(const bpe *b, int32_t left, int32_t right)
{
    size_t bit = filter_bit(b, left, right);
    if (!(b->pair_filter[bit / 64] >> (bit % 64) & 1))
        return BPE_NO_RANK;
    return pair_slot(b, left, right)->rank;
}

int32_t bpe_rank(const bpe *b, int32_t left, int32_t right)
{
    return pair_rank(b, left, right);
}

bool bpe_add_merge(bpe *b, int32_t left, int32_t right, int32_t rank, int32_t result)
{
    bpe_pair *p = pair_slot(b, left, right);
    if (p->rank != BPE_NO_RANK)
        return false;
    *p = (bpe_pair){(uint32_t)(pair_hash(left, right, b->seed) >> 32), rank};
    size_t bit = filter_bit(b, left, right);
    b->pair_filter[bit / 64] |= UINT64_C(1) << (bit % 64);
    b->merges[rank] = (bpe_merge_rule){left, right, result};
    return true;
}

void bpe_finish_merges(bpe *b)
{
    for (size_t i = 0; i < 256; i++)
        for (size_t j = 0; j < 256; j++)
            b->byte_pair_ranks[i * 256 + j] = pair_rank(b, b->byte_ids[i], b->byte_ids[j]);
}

static inline size_t piece_home(const bpe *b, uint64_t key, size_t count)
{
    return mix(key ^ b->seed ^ (uint64_t)count << 56) & b->piece_mask;
}

/* The slot that holds these bytes, or the empty one where they belong. */
static inline size_t piece_slot(const bpe *b, const char *bytes, size_t count)
{
    uint64_t key = piece_key(bytes, count, b->seed);
    for (size_t i = piece_home(b, key, count);; i = (i + 1) & b->piece_mask) {
        const bpe_piece *p = &b->pieces[i];
        if (p->length == 0 || (p->key == key && p->length == count && (count <= 8 || memcmp(b->piece_bytes[i], bytes, count) == 0)))
            return i;
    }
}

void bpe_add_piece(bpe *b, view bytes, int32_t id)
{
    size_t slot = piece_slot(b, bytes.data, bytes.length);
    b->pieces[slot] = (bpe_piece){piece_key(bytes.data, bytes.length, b->seed), (uint32_t)bytes.length, id};
    b->piece_bytes[slot] = bytes.data;
    if (bytes.length > b->longest_piece)
        b->longest_piece = bytes.length;
}

int32_t bpe_find_piece(const bpe *b, view bytes)
{
    const bpe_piece *p = &b->pieces[piece_slot(b, bytes.data, bytes.length)];
    return p->length ? p->id : -1;
}

void bpe_hide_piece(bpe *b, view bytes)
{
    bpe_piece *p = &b->pieces[piece_slot(b, bytes.data, bytes.length)];
    p->id = -p->id - 1;
}

static inline int32_t byte_rank(const bpe *b, const char *p)
{
    return b->byte_pair_ranks[(size_t)(unsigned char)p[0] * 256 + (unsigned char)p[1]];
}

static size_t lowest(const int32_t *ranks, size_t count)
{
    int32_t least = ranks[0];
    size_t at = 0;
    for (size_t i = 1; i < count; i++) /* two loops: the compiler vectorises the first */
        least = ranks[i] < least ? ranks[i] : least;
    while (ranks[at] != least)
        at++;
    return at;
}

static void merge_short(const bpe *b, const char *piece, size_t count, token_list *out)
{
    int32_t ids[SHORT_PIECE], ranks[SHORT_PIECE]; /* ranks[i] belongs to the pair (i, i + 1) */
    for (size_t i = 0; i < count; i++)
        ids[i] = b->byte_ids[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = byte_rank(b, piece + i);
    while (count > 1) {
        size_t at = lowest(ranks, count - 1);
        if (ranks[at] == BPE_NO_RANK)
            break;
        ids[at] = b->merges[ranks[at]].result;
        count--;
        for (size_t i = at + 1; i < count; i++) {
            ids[i] = ids[i + 1];
            ranks[i - 1] = ranks[i];
        }
        if (at + 1 < count)
            ranks[at] = pair_rank(b, ids[at], ids[at + 1]);
        if (at > 0)
            ranks[at - 1] = pair_rank(b, ids[at - 1], ids[at]);
    }
    for (size_t i = 0; i < count; i++)
        token_list_add(out, ids[i]);
}

static void heap_sift_down(uint64_t *heap, size_t count, size_t at)
{
    uint64_t key = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t key)
{
    size_t at = (*count)++;
    for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count)
{
    uint64_t top = heap[0];
    heap[0] = heap[--*count];
    heap_sift_down(heap, *count, 0);
    return top;
}

static inline uint64_t heap_key(int32_t rank, size_t position)
{
    return (uint64_t)(uint32_t)rank << POSITION_BITS | position;
}

static void scratch_reserve(bpe_scratch *s, size_t count)
{
    if (count <= s->capacity)
        return;
    s->nodes = mem_grow(s->nodes, count, sizeof *s->nodes);
    s->heap = mem_grow(s->heap, count, 2 * sizeof *s->heap);
    s->capacity = count;
}

/* Fills the list and returns the number of entries in the heap. */
static size_t list_start(const bpe *b, const char *piece, size_t count, bpe_scratch *s)
{
    size_t entries = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t rank = i + 1 < count ? byte_rank(b, piece + i) : BPE_NO_RANK;
        s->nodes[i] = (bpe_node){i ? i - 1 : NOWHERE, i + 1 < count ? i + 1 : NOWHERE, b->byte_ids[(unsigned char)piece[i]], rank};
        if (rank != BPE_NO_RANK)
            s->heap[entries++] = heap_key(rank, i);
    }
    for (size_t i = entries / 2; i-- > 0;)
        heap_sift_down(s->heap, entries, i);
    return entries;
}

/* Finds the rank of the pair at a position again, after one of its two tokens changed. */
static void pair_update(const bpe *b, bpe_scratch *s, size_t position, size_t *entries)
{
    bpe_node *n = &s->nodes[position];
    n->rank = n->next == NOWHERE ? BPE_NO_RANK : pair_rank(b, n->id, s->nodes[n->next].id);
    if (n->rank != BPE_NO_RANK)
        heap_push(s->heap, entries, heap_key(n->rank, position));
}

static void merge_long(const bpe *b, const char *piece, size_t count, bpe_scratch *s, token_list *out)
{
    scratch_reserve(s, count);
    size_t entries = list_start(b, piece, count, s);
    while (entries) {
        uint64_t key = heap_pop(s->heap, &entries);
        size_t position = (size_t)(key & ((UINT64_C(1) << POSITION_BITS) - 1));
        bpe_node *left = &s->nodes[position];
        if (left->rank != (int32_t)(key >> POSITION_BITS))
            continue;
        bpe_node *right = &s->nodes[left->next];
        left->id = b->merges[left->rank].result;
        left->next = right->next;
        right->rank = BPE_NO_RANK;
        if (left->next != NOWHERE)
            s->nodes[left->next].previous = position;
        pair_update(b, s, position, &entries);
        if (left->previous != NOWHERE)
            pair_update(b, s, left->previous, &entries);
    }
    for (size_t i = 0; i != NOWHERE; i = s->nodes[i].next)
        token_list_add(out, s->nodes[i].id);
}

void bpe_merge(const bpe *b, const char *piece, size_t count, bpe_scratch *scratch, token_list *out)
{
    if (count <= SHORT_PIECE)
        merge_short(b, piece, count, out);
    else
        merge_long(b, piece, count, scratch, out);
}

void bpe_prepare(const bpe *b, const char *piece, size_t count)
{
    if (count <= b->longest_piece) /* the builtin, of gcc and clang, has no equivalent in C17 */
        __builtin_prefetch(&b->pieces[piece_home(b, piece_key(piece, count, b->seed), count)]);
}

void bpe_encode(const bpe *b, const char *piece, size_t count, bpe_scratch *scratch, token_list *out)
{
    if (count <= b->longest_piece) {
        const bpe_piece *p = &b->pieces[piece_slot(b, piece, count)];
        if (p->length && p->id >= 0) {
            token_list_add(out, p->id);
            return;
        }
    }
    bpe_merge(b, piece, count, scratch, out);
}
