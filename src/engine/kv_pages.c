#include "engine/kv_pages.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/memory.h"

kv_pages *kv_pages_create_ids(int count)
{
    kv_pages *p = mem_alloc(1, sizeof *p);
    *p = (kv_pages){.count = count, .free_count = count};
    p->free_list = mem_alloc((size_t)count, sizeof *p->free_list);
    p->users = mem_alloc((size_t)count, sizeof *p->users);
    p->in_tree = mem_alloc((size_t)count, sizeof *p->in_tree);
    p->idle_next = mem_alloc((size_t)count + 1, sizeof *p->idle_next);
    p->idle_previous = mem_alloc((size_t)count + 1, sizeof *p->idle_previous);
    for (int i = 0; i < count; i++)
        p->free_list[i] = count - 1 - i;
    p->idle_next[count] = p->idle_previous[count] = count;
    return p;
}

kv_pages *kv_pages_create(device *d, int64_t tokens, error *err)
{
    int64_t count = tokens / KV_PAGE_TOKENS + (tokens % KV_PAGE_TOKENS > 0);
    size_t bytes = 0;
    if (count < 1 || count >= INT_MAX || !checked_mul_size((size_t)count, d->layout.page_bytes, &bytes)) {
        error_set(err, ERROR_FIT, "a KV cache of %lld tokens is not possible", (long long)tokens);
        return NULL;
    }
    uint8_t *memory = d->ops->alloc(d, bytes);
    if (!memory) {
        error_set(err, ERROR_FIT, "no memory for a KV cache of %lld tokens (%zu MB); ask for a smaller context", (long long)tokens,
                  bytes >> 20);
        return NULL;
    }
    kv_pages *p = kv_pages_create_ids((int)count);
    p->device = d;
    p->memory = memory;
    return p;
}

void kv_pages_destroy(kv_pages *p)
{
    if (!p)
        return;
    if (p->device)
        p->device->ops->free(p->device, p->memory);
    free(p->free_list);
    free(p->users);
    free(p->in_tree);
    free(p->idle_next);
    free(p->idle_previous);
    free(p);
}

static void ring_remove(kv_pages *p, int32_t page)
{
    p->idle_next[p->idle_previous[page]] = p->idle_next[page];
    p->idle_previous[p->idle_next[page]] = p->idle_previous[page];
}

static void ring_insert(kv_pages *p, int32_t page, int32_t before)
{
    p->idle_next[page] = before;
    p->idle_previous[page] = p->idle_previous[before];
    p->idle_next[p->idle_previous[page]] = page;
    p->idle_previous[before] = page;
}

static void stop_being_idle(kv_pages *p, int32_t page)
{
    ring_remove(p, page);
    p->idle_count--;
}

bool kv_pages_take(kv_pages *p, int32_t *page)
{
    if (p->free_count == 0)
        return false;
    *page = p->free_list[--p->free_count];
    p->users[*page] = 1;
    return true;
}

void kv_pages_share(kv_pages *p, int32_t page)
{
    assert(p->users[page] > 0);
    if (kv_pages_is_idle(p, page))
        stop_being_idle(p, page);
    p->users[page]++;
}

void kv_pages_drop(kv_pages *p, int32_t page)
{
    assert(p->users[page] > 0 && !kv_pages_is_idle(p, page)); /* an idle page has no user who could drop it */
    if (--p->users[page] == 0)
        p->free_list[p->free_count++] = page;
    if (!kv_pages_is_idle(p, page))
        return;
    ring_insert(p, page, p->count);
    p->idle_count++;
}

void kv_pages_tree_share(kv_pages *p, int32_t page)
{
    assert(p->users[page] > 0 && !p->in_tree[page]);
    p->users[page]++;
    p->in_tree[page] = true;
}

void kv_pages_tree_drop(kv_pages *p, int32_t page)
{
    if (kv_pages_is_idle(p, page))
        stop_being_idle(p, page);
    p->in_tree[page] = false;
    kv_pages_drop(p, page);
}

bool kv_pages_is_idle(const kv_pages *p, int32_t page)
{
    return p->in_tree[page] && p->users[page] == 1;
}

int32_t kv_pages_longest_idle(const kv_pages *p)
{
    return p->idle_count > 0 ? p->idle_next[p->count] : -1;
}

void kv_pages_idle_first(kv_pages *p, int32_t page)
{
    ring_remove(p, page);
    ring_insert(p, page, p->idle_next[p->count]);
}

void kv_pages_idle_last(kv_pages *p, int32_t page)
{
    ring_remove(p, page);
    ring_insert(p, page, p->count);
}
