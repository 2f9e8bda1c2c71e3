#include "engine/kv_pages.h"

#include <limits.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/memory.h"

kv_pages *kv_pages_create(device *d, int64_t tokens, error *err)
{
    int64_t count = (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    size_t bytes = 0;
    if (count < 1 || count > INT_MAX || !checked_mul_size((size_t)count, d->layout.page_bytes, &bytes)) {
        error_set(err, ERROR_FIT, "a KV cache of %lld tokens is not possible", (long long)tokens);
        return NULL;
    }
    kv_pages *p = mem_alloc(1, sizeof *p);
    *p = (kv_pages){.device = d, .count = (int)count, .free_count = (int)count};
    p->memory = d->ops->alloc(d, bytes);
    if (!p->memory) {
        free(p);
        error_set(err, ERROR_FIT, "no memory for a KV cache of %lld tokens (%zu MB); ask for a smaller context", (long long)tokens,
                  bytes >> 20);
        return NULL;
    }
    p->free_list = mem_alloc((size_t)count, sizeof *p->free_list);
    p->users = mem_alloc((size_t)count, sizeof *p->users);
    for (int i = 0; i < p->count; i++)
        p->free_list[i] = p->count - 1 - i;
    return p;
}

void kv_pages_destroy(kv_pages *p)
{
    if (!p)
        return;
    p->device->ops->free(p->device, p->memory);
    free(p->free_list);
    free(p->users);
    free(p);
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
    p->users[page]++;
}

void kv_pages_drop(kv_pages *p, int32_t page)
{
    if (--p->users[page] == 0)
        p->free_list[p->free_count++] = page;
}
