/* The page pool: page ids handed out and taken back, with a count of users. The bytes lie in device memory, in one block. */
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
} kv_pages;

/* A pool that holds at least `tokens` tokens. */
kv_pages *kv_pages_create(device *d, int64_t tokens, error *err);
void kv_pages_destroy(kv_pages *p);
bool kv_pages_take(kv_pages *p, int32_t *page);  /* one user; false when none is free */
void kv_pages_share(kv_pages *p, int32_t page);  /* one user more */
void kv_pages_drop(kv_pages *p, int32_t page);   /* one user less; the last one frees the page */

/* The prefix tree becomes a user of the page, or stops being one. */
void kv_pages_tree_share(kv_pages *p, int32_t page);
void kv_pages_tree_drop(kv_pages *p, int32_t page);

#endif
