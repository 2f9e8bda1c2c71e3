/* The page pool: page ids handed out and taken back, with a count of users. The bytes lie in device memory, in one block.
 *
 * A page is free (no user), in use (by a sequence, perhaps by the prefix tree, too) or idle (the prefix tree is its only user).
 * Idle pages form a list in the order in which they became idle, so that the one unused for longest is always at hand. */
#ifndef ENGINE_KV_PAGES_H
#define ENGINE_KV_PAGES_H

#include "device/device.h"

typedef struct kv_pages {
    device *device;
    uint8_t *memory;  /* [count][layout.page_bytes], device memory */
    int count;        /* pages in all */
    int free_count;
    int32_t *free_list; /* [count] the first free_count entries are the free pages; taken from the end */
    int32_t *users;   /* [count] reference counts */
    bool *in_tree;    /* [count] one of the users is the prefix tree */
    int idle_count;   /* pages whose only user is the prefix tree: they can be evicted */
    int32_t *idle_next, *idle_previous; /* [count + 1] a ring of the idle pages, longest idle first; entry `count` is its anchor */
} kv_pages;

/* A pool that holds at least `tokens` tokens. */
kv_pages *kv_pages_create(device *d, int64_t tokens, error *err);
/* `count` page ids without memory behind them, for whoever only keeps accounts: tests and measurements. */
kv_pages *kv_pages_create_ids(int count);
void kv_pages_destroy(kv_pages *p);
bool kv_pages_take(kv_pages *p, int32_t *page);  /* one user; false when none is free */
void kv_pages_share(kv_pages *p, int32_t page);  /* one user more */
void kv_pages_drop(kv_pages *p, int32_t page);   /* one user less; the last one frees the page */

/* For the prefix tree alone. */
void kv_pages_tree_share(kv_pages *p, int32_t page); /* the tree becomes a user of a page that has one */
void kv_pages_tree_drop(kv_pages *p, int32_t page);  /* it stops being one */
bool kv_pages_is_idle(const kv_pages *p, int32_t page);
int32_t kv_pages_longest_idle(const kv_pages *p);    /* -1: none is idle */
/* An idle page becomes the one that is idle for longest, or for shortest. */
void kv_pages_idle_first(kv_pages *p, int32_t page);
void kv_pages_idle_last(kv_pages *p, int32_t page);

#endif
