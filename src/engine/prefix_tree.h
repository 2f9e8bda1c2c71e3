/* The prefix tree: which token prefixes have their pages in the cache.
 *
 * A node is one page: 64 tokens (a leaf may hold fewer) and the id of the page that holds their keys, behind the tokens of its
 * parents. Children of a node are kept in the order of their tokens, so that one search finds the equal page or else the one
 * that shares the longest beginning. Each tenant or cache_salt has a root of its own: nothing is shared across `space`s.
 * A page is in the tree once: a sequence inserts its pages under one space and one prefix.
 *
 * Whole pages are shared by reference. Of a page that agrees only at its beginning, the caller gets the page to copy from,
 * so a hit counts in tokens, not in pages. Pages of the tree are never written to.
 *
 * A page that only the tree uses is idle (kv_pages counts them); prefix_tree_evict gives idle leaves back, least recently used
 * first: a page is used until its last sequence drops it. A page in use by a sequence has parents in use, so every idle page can
 * be given back by evicting leaves. There are exceptions: a sequence keeps its own page when one with more of the draft layer's keys
 * replaces it in the tree, or when the tree was cleared, and later pages of it may then lie behind an idle one. The tree forgets
 * such pages where they are in the way, so that idle pages can always be had. */
#ifndef ENGINE_PREFIX_TREE_H
#define ENGINE_PREFIX_TREE_H

#include "base/text.h"
#include "engine/kv_pages.h"

typedef struct prefix_tree prefix_tree;

prefix_tree *prefix_tree_create(kv_pages *pages);
void prefix_tree_destroy(prefix_tree *t); /* gives its pages back; NULL is allowed */

typedef struct prefix_match {
    int tokens;        /* found, full_pages * 64 + copy_tokens */
    int full_pages;    /* pages that can be shared as they are */
    int idle_pages;    /* of them, those that only the tree uses */
    int32_t copy_page; /* the page that goes on in the same way for copy_tokens tokens; -1: none */
    int copy_tokens;   /* 0 .. 63; a whole page that `count` cuts is one to copy, too */
    int draft_tokens;  /* of the found tokens, how many from the first on have the draft layer's keys, too */
} prefix_match;

/* The longest prefix of tokens[0 .. count) in the tree. prefix_tree_find only looks. prefix_tree_take adds the caller as a
 * user of the full pages, whose ids it writes to page_table[0 .. full_pages), and of copy_page, and marks them as just used;
 * the caller drops copy_page when it has copied it. */
prefix_match prefix_tree_find(const prefix_tree *t, view space, const int32_t *tokens, int count);
prefix_match prefix_tree_take(prefix_tree *t, view space, const int32_t *tokens, int count, int32_t *page_table);

/* Puts the pages of tokens[0 .. count) into the tree, a last page that is not full included (that page must not be written to
 * afterwards). The tree becomes a user of pages that are new to it. Where it already has a page with the same tokens, it keeps
 * its own, and page_table[i] is changed to that one (share and drop are done), so that equal pages exist once; but a page
 * with more of the draft layer's keys takes the place of one with fewer. draft_tokens: as in prefix_match.
 * A last page that is not full is never exchanged in page_table. It is not put in where another page begins with its tokens, and
 * a page that begins with its tokens and goes on takes its place later. The caller is a user of all the pages. */
void prefix_tree_insert(prefix_tree *t, view space, const int32_t *tokens, int count, int draft_tokens, int32_t *page_table);

/* Gives back up to `pages` idle pages; returns how many: fewer only when no page is idle any more. */
int prefix_tree_evict(prefix_tree *t, int pages);

/* Forgets everything; pages in use stay with their users. Does not count as eviction. */
void prefix_tree_clear(prefix_tree *t);

typedef struct prefix_tree_stats {
    int64_t pages;            /* nodes now */
    int64_t spaces;           /* roots now */
    uint64_t evicted_pages;   /* ever */
} prefix_tree_stats;

prefix_tree_stats prefix_tree_count(const prefix_tree *t);

#endif
