/* Nodes come from one block with room for every page of the pool, so nothing is allocated per page, and a page finds its node
 * by its id.
 *
 * The children of a node form a treap: a search tree by tokens that is a heap by random priorities. Its depth is logarithmic
 * whatever the tokens are, thousands of different prompts below one root included, and its links lie in the nodes.
 *
 *     root of a space --children--> [tokens 0 .. 63 | page 17] --children--> [tokens 64 .. 127 | page 4]
 *                                     left /        \ right
 *                              siblings with      siblings with
 *                              lesser tokens      greater tokens
 *
 * No node's tokens are a beginning of a sibling's. */
#include "engine/prefix_tree.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"

typedef struct node node;

struct node {
    node *parent;         /* NULL: a root, which has no page. Of a node that is not in use: the next such node */
    node *children;       /* top of their treap; NULL: a leaf */
    node *left, *right;   /* in the treap of the siblings */
    uint32_t priority;    /* larger is nearer to the top */
    int32_t page;         /* -1: not in use */
    uint8_t token_count;  /* 1 .. 64; below 64 it has no children */
    uint8_t draft_tokens; /* of them, how many from the first on have the draft layer's keys */
    int32_t tokens[KV_PAGE_TOKENS];
};

typedef struct tree_space tree_space;

struct tree_space {
    node root;        /* first, so that a root leads to its space */
    tree_space *next; /* in the same bucket */
    uint64_t hash;
    size_t name_bytes;
    char name[];
};

struct prefix_tree {
    kv_pages *pages;
    node *nodes;         /* [pages->count] those from fresh_node on were never used */
    node **node_of;      /* [pages->count] the node of a page in the tree */
    node *unused;        /* returned nodes, linked by parent */
    int fresh_node;
    uint64_t seed;       /* for hashes and priorities, so that no choice of names or tokens makes searches slow */
    uint64_t priorities; /* drawn so far */
    tree_space **buckets; /* [bucket_count], a power of two */
    size_t bucket_count;
    prefix_tree_stats stats;
};

enum { FIRST_BUCKETS = 16 };

prefix_tree *prefix_tree_create(kv_pages *pages)
{
    prefix_tree *t = mem_alloc(1, sizeof *t);
    t->pages = pages;
    t->nodes = mem_alloc((size_t)pages->count, sizeof *t->nodes);
    t->node_of = mem_alloc((size_t)pages->count, sizeof(node *));
    t->bucket_count = FIRST_BUCKETS;
    t->buckets = mem_alloc(t->bucket_count, sizeof(tree_space *));
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t)sizeof t->seed)
        t->seed = (uint64_t)(uintptr_t)t;
    return t;
}

void prefix_tree_destroy(prefix_tree *t)
{
    if (!t)
        return;
    prefix_tree_clear(t);
    free(t->nodes);
    free(t->node_of);
    free(t->buckets);
    free(t);
}

/* ---- spaces ---- */

static tree_space *space_find(const prefix_tree *t, view name, uint64_t hash)
{
    tree_space *s = t->buckets[hash & (t->bucket_count - 1)];
    while (s && !(s->hash == hash && view_equal((view){s->name, s->name_bytes}, name)))
        s = s->next;
    return s;
}

static uint64_t space_hash(const prefix_tree *t, view name)
{
    return hash_bytes(name.data, name.length, t->seed);
}

static void space_link(prefix_tree *t, tree_space *s)
{
    tree_space **bucket = &t->buckets[s->hash & (t->bucket_count - 1)];
    s->next = *bucket;
    *bucket = s;
}

static void spaces_grow(prefix_tree *t)
{
    tree_space **old = t->buckets;
    size_t old_count = t->bucket_count;
    t->bucket_count *= 2;
    t->buckets = mem_alloc(t->bucket_count, sizeof(tree_space *));
    for (size_t i = 0; i < old_count; i++)
        for (tree_space *s = old[i], *next; s; s = next) {
            next = s->next;
            space_link(t, s);
        }
    free(old);
}

static tree_space *space_find_or_add(prefix_tree *t, view name)
{
    uint64_t hash = space_hash(t, name);
    tree_space *s = space_find(t, name, hash);
    if (s)
        return s;
    if ((size_t)t->stats.spaces >= t->bucket_count)
        spaces_grow(t);
    s = mem_alloc(1, sizeof *s + name.length);
    s->root.page = -1;
    s->hash = hash;
    s->name_bytes = name.length;
    if (name.length)
        memcpy(s->name, name.data, name.length);
    space_link(t, s);
    t->stats.spaces++;
    return s;
}

static void space_remove(prefix_tree *t, tree_space *s)
{
    tree_space **link = &t->buckets[s->hash & (t->bucket_count - 1)];
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    free(s);
    t->stats.spaces--;
}

/* ---- siblings ---- */

/* How many tokens a and b have in common from the first on, where the first `known` (<= count) are known to be equal. */
static int common_tokens(const int32_t *a, const int32_t *b, int known, int count)
{
    int i = known;
    while (i + 8 <= count && memcmp(a + i, b + i, 8 * sizeof *a) == 0)
        i += 8;
    while (i < count && a[i] == b[i])
        i++;
    return i;
}

/* Whether a comes before b, which have `common` tokens in common; a beginning comes before what goes on. */
static bool comes_before(const int32_t *a, int a_count, const int32_t *b, int b_count, int common)
{
    return common < b_count && (common == a_count || a[common] < b[common]);
}

/* Between which children tokens belong: the last one before them, and the first one that equals them or comes behind. One of
 * the two has the longest beginning in common with them. */
typedef struct neighbours {
    node *before, *after;             /* NULL: none */
    int common_before, common_after;  /* tokens in common */
} neighbours;

static neighbours find_neighbours(const node *parent, const int32_t *tokens, int count)
{
    neighbours n = {0};
    for (node *c = parent->children; c;) {
        /* What both bounds have in common with the tokens, all children between them have, too. */
        int known = n.common_before < n.common_after ? n.common_before : n.common_after;
        int common = common_tokens(c->tokens, tokens, known, c->token_count < count ? c->token_count : count);
        if (comes_before(c->tokens, c->token_count, tokens, count, common)) {
            n.before = c;
            n.common_before = common;
            c = c->right;
        } else {
            n.after = c;
            n.common_after = common;
            c = common == c->token_count ? NULL : c->left;
        }
    }
    return n;
}

static bool node_before(const node *a, const node *b)
{
    int least = a->token_count < b->token_count ? a->token_count : b->token_count;
    return comes_before(a->tokens, a->token_count, b->tokens, b->token_count, common_tokens(a->tokens, b->tokens, 0, least));
}

static void treap_add(node **top, node *added)
{
    while (*top && (*top)->priority >= added->priority)
        top = node_before(*top, added) ? &(*top)->right : &(*top)->left;
    node **before = &added->left, **behind = &added->right;
    for (node *n = *top; n;)
        if (node_before(n, added)) {
            *before = n;
            before = &n->right;
            n = n->right;
        } else {
            *behind = n;
            behind = &n->left;
            n = n->left;
        }
    *before = *behind = NULL;
    *top = added;
}

static void treap_remove(node **top, node *removed)
{
    while (*top != removed)
        top = node_before(*top, removed) ? &(*top)->right : &(*top)->left;
    node *before = removed->left, *behind = removed->right;
    while (before && behind)
        if (before->priority >= behind->priority) {
            *top = before;
            top = &before->right;
            before = before->right;
        } else {
            *top = behind;
            top = &behind->left;
            behind = behind->left;
        }
    *top = before ? before : behind;
}

/* ---- nodes ---- */

static void node_set_tokens(node *n, const int32_t *tokens, int count, int draft_tokens)
{
    memcpy(n->tokens, tokens, (size_t)count * sizeof *tokens);
    n->token_count = (uint8_t)count;
    n->draft_tokens = (uint8_t)draft_tokens;
}

static void node_set_page(prefix_tree *t, node *n, int32_t page)
{
    if (n->page == page)
        return;
    kv_pages_tree_share(t->pages, page);
    if (n->page >= 0)
        kv_pages_tree_drop(t->pages, n->page);
    n->page = page;
    t->node_of[page] = n;
}

static node *node_create(prefix_tree *t)
{
    node *n = t->unused;
    if (n) {
        t->unused = n->parent;
    } else {
        assert(t->fresh_node < t->pages->count);
        n = &t->nodes[t->fresh_node++];
    }
    n->children = NULL;
    n->page = -1;
    n->priority = (uint32_t)random_word_at(t->seed, t->priorities++);
    t->stats.pages++;
    return n;
}

static void node_remove(prefix_tree *t, node *n)
{
    node *parent = n->parent;
    treap_remove(&parent->children, n);
    kv_pages_tree_drop(t->pages, n->page);
    n->page = -1;
    n->parent = t->unused;
    t->unused = n;
    t->stats.pages--;
    if (!parent->parent && !parent->children)
        space_remove(t, (tree_space *)parent);
}

/* ---- looking up ---- */

static int tokens_of_page(int count, int page)
{
    int left = count - page * KV_PAGE_TOKENS;
    return left < KV_PAGE_TOKENS ? left : KV_PAGE_TOKENS;
}

static int draft_tokens_within(const node *n, int tokens)
{
    return n->draft_tokens < tokens ? n->draft_tokens : tokens;
}

/* A page has draft keys only where its parent has them all: insert_equal sees to that. So the sum counts from the first token on. */
static void match_add(prefix_match *m, const node *n, int tokens)
{
    m->draft_tokens += draft_tokens_within(n, tokens);
    m->tokens += tokens;
}

/* The page to copy from: the longer beginning, of equally long ones the one with more of the draft layer's keys. */
static void match_add_copy(prefix_match *m, const neighbours *n)
{
    const node *best = n->after;
    int common = n->common_after;
    if (n->common_before > common || (n->common_before == common && common > 0 &&
                                      draft_tokens_within(n->before, common) > draft_tokens_within(best, common))) {
        best = n->before;
        common = n->common_before;
    }
    if (common == 0)
        return;
    m->copy_page = best->page;
    m->copy_tokens = common;
    match_add(m, best, common);
}

/* page_table: NULL or [pages of count]. */
static prefix_match match(const prefix_tree *t, view space, const int32_t *tokens, int count, int32_t *page_table)
{
    prefix_match m = {.copy_page = -1};
    const tree_space *s = space_find(t, space, space_hash(t, space));
    const node *at = s ? &s->root : NULL;
    while (at && m.tokens < count) {
        int wanted = tokens_of_page(count, m.full_pages);
        neighbours n = find_neighbours(at, tokens + m.tokens, wanted);
        if (n.common_after < KV_PAGE_TOKENS) {
            match_add_copy(&m, &n);
            break;
        }
        at = n.after;
        if (page_table)
            page_table[m.full_pages] = at->page;
        m.full_pages++;
        m.idle_pages += kv_pages_is_idle(t->pages, at->page);
        match_add(&m, at, KV_PAGE_TOKENS);
    }
    return m;
}

prefix_match prefix_tree_find(const prefix_tree *t, view space, const int32_t *tokens, int count)
{
    return match(t, space, tokens, count, NULL);
}

prefix_match prefix_tree_take(prefix_tree *t, view space, const int32_t *tokens, int count, int32_t *page_table)
{
    prefix_match m = match(t, space, tokens, count, page_table);
    for (int i = 0; i < m.full_pages; i++)
        kv_pages_share(t->pages, page_table[i]);
    if (m.copy_page >= 0)
        kv_pages_share(t->pages, m.copy_page);
    return m;
}

/* ---- changing ---- */

static node *insert_new(prefix_tree *t, node *parent, const int32_t *tokens, int count, int draft_tokens, int32_t page)
{
    node *n = node_create(t);
    n->parent = parent;
    node_set_tokens(n, tokens, count, draft_tokens);
    node_set_page(t, n, page);
    treap_add(&parent->children, n);
    return n;
}

/* The tree has these very tokens: one of the two pages stays. */
static void insert_equal(prefix_tree *t, node *n, int draft_tokens, int32_t *page)
{
    if (draft_tokens > n->draft_tokens) {
        n->draft_tokens = (uint8_t)draft_tokens;
        node_set_page(t, n, *page);
    } else if (*page != n->page && n->token_count == KV_PAGE_TOKENS) {
        kv_pages_share(t->pages, n->page);
        kv_pages_drop(t->pages, *page);
        *page = n->page;
    }
}

static node *insert_page(prefix_tree *t, node *parent, const int32_t *tokens, int count, int draft_tokens, int32_t *page)
{
    neighbours n = find_neighbours(parent, tokens, count);
    if (n.after && n.common_after == count) {
        if (n.after->token_count == count)
            insert_equal(t, n.after, draft_tokens, page);
        if (kv_pages_is_idle(t->pages, n.after->page))
            kv_pages_idle_last(t->pages, n.after->page);
        return n.after;
    }
    if (n.before && n.common_before == n.before->token_count) { /* the new page goes on where this one ends */
        node_set_tokens(n.before, tokens, count, draft_tokens);
        node_set_page(t, n.before, *page);
        return n.before;
    }
    return insert_new(t, parent, tokens, count, draft_tokens, *page);
}

void prefix_tree_insert(prefix_tree *t, view space, const int32_t *tokens, int count, int draft_tokens, int32_t *page_table)
{
    if (count <= 0)
        return;
    node *at = &space_find_or_add(t, space)->root;
    for (int i = 0; i * KV_PAGE_TOKENS < count; i++) {
        int first = i * KV_PAGE_TOKENS, wanted = tokens_of_page(count, i);
        int drafts = draft_tokens - first;
        drafts = drafts < 0 ? 0 : drafts > wanted ? wanted : drafts;
        at = insert_page(t, at, tokens + first, wanted, drafts, &page_table[i]);
    }
}

/* From the page that is idle for longest down to a leaf. Pages on the way became idle together with it at the latest (a sequence
 * drops all its pages at once, in any order): they move to the head of the idle pages, children before parents, so that each is
 * passed once. The leaf may be in use, see the header. */
static node *next_to_evict(prefix_tree *t)
{
    int32_t page = kv_pages_longest_idle(t->pages);
    if (page < 0)
        return NULL;
    node *n = t->node_of[page];
    while (n->children) {
        n = n->children;
        if (kv_pages_is_idle(t->pages, n->page))
            kv_pages_idle_first(t->pages, n->page);
    }
    return n;
}

int prefix_tree_evict(prefix_tree *t, int pages)
{
    int given_back = 0;
    node *n;
    while (given_back < pages && (n = next_to_evict(t))) {
        given_back += kv_pages_is_idle(t->pages, n->page);
        node_remove(t, n);
    }
    t->stats.evicted_pages += (uint64_t)given_back;
    return given_back;
}

void prefix_tree_clear(prefix_tree *t)
{
    for (int i = 0; i < t->fresh_node; i++)
        if (t->nodes[i].page >= 0)
            kv_pages_tree_drop(t->pages, t->nodes[i].page);
    for (size_t i = 0; i < t->bucket_count; i++)
        for (tree_space *s = t->buckets[i], *next; s; s = next) {
            next = s->next;
            free(s);
        }
    memset(t->buckets, 0, t->bucket_count * sizeof(tree_space *));
    t->unused = NULL;
    t->fresh_node = 0;
    t->stats.pages = t->stats.spaces = 0;
}

prefix_tree_stats prefix_tree_count(const prefix_tree *t)
{
    return t->stats;
}
