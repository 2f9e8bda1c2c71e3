#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include "base/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/sanitize.h"

enum { ARENA_ALIGNMENT = 64, ARENA_BLOCK_BYTES = 64 * 1024 };

struct arena_block {
    arena_block *older;
    size_t used, capacity; /* in bytes, of data[] */
    _Alignas(ARENA_ALIGNMENT) unsigned char data[];
};

static void *out_of_memory(size_t count, size_t item_bytes)
{
    fprintf(stderr, "drawbridge: out of memory: could not allocate %zu x %zu bytes; free memory or use a smaller model\n",
            count, item_bytes);
    exit(1);
}

void *mem_try_alloc(size_t count, size_t item_bytes)
{
    size_t bytes;
    if (!checked_mul_size(count, item_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

void *mem_try_alloc_aligned(size_t bytes, size_t alignment)
{
    size_t rounded;
    if (!checked_add_size(bytes, alignment, &rounded) || rounded > PTRDIFF_MAX)
        return NULL;
    rounded -= rounded % alignment;
    void *p = aligned_alloc(alignment, rounded);
    return p ? memset(p, 0, rounded) : NULL;
}

void *mem_alloc(size_t count, size_t item_bytes)
{
    void *p = mem_try_alloc(count, item_bytes);
    return p ? p : out_of_memory(count, item_bytes);
}

void *mem_grow(void *old, size_t count, size_t item_bytes)
{
    size_t bytes;
    if (!checked_mul_size(count, item_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return out_of_memory(count, item_bytes);
    void *p = realloc(old, bytes ? bytes : 1);
    return p ? p : out_of_memory(count, item_bytes);
}

/* The length of a lazy block lies in a page of its own before it. In sanitizer builds what lies around the block is forbidden, as
 * around blocks of malloc:
 *
 *     | header: length, forbidden | the block | forbidden: at least LAZY_GUARD_BYTES | */
enum { LAZY_HEADER_BYTES = 4096, LAZY_GUARD_BYTES = SANITIZE_GUARD_BYTES };

void *mem_try_alloc_lazy(size_t bytes)
{
    size_t whole;
    if (!checked_add_size(bytes, LAZY_HEADER_BYTES + LAZY_GUARD_BYTES, &whole) || whole > PTRDIFF_MAX)
        return NULL;
    char *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    memcpy(p, &whole, sizeof whole);
    forbid_range(p, LAZY_HEADER_BYTES);
    forbid_range(p + LAZY_HEADER_BYTES + bytes, LAZY_GUARD_BYTES);
    return p + LAZY_HEADER_BYTES;
}

void mem_free_lazy(void *memory)
{
    if (!memory)
        return;
    char *p = (char *)memory - LAZY_HEADER_BYTES;
    size_t whole;
    allow_range(p, LAZY_HEADER_BYTES);
    memcpy(&whole, p, sizeof whole);
    allow_range(p, whole);
    munmap(p, whole);
}

void *mem_copy(const void *bytes, size_t count)
{
    char *p = mem_alloc(count + 1, 1);
    if (count)
        memcpy(p, bytes, count);
    return p;
}

static arena_block *arena_block_new(arena_block *older, size_t capacity)
{
    size_t bytes;
    arena_block *b = NULL;
    if (checked_add_size(capacity, sizeof *b, &bytes))
        b = mem_try_alloc_aligned(bytes, ARENA_ALIGNMENT);
    if (!b)
        return out_of_memory(capacity, 1);
    b->older = older;
    b->capacity = capacity;
    return b;
}

void *arena_alloc(arena *a, size_t count, size_t item_bytes)
{
    size_t bytes, rounded;
    if (!checked_mul_size(count, item_bytes, &bytes) || !checked_add_size(bytes, ARENA_ALIGNMENT - 1, &rounded))
        return out_of_memory(count, item_bytes);
    rounded -= rounded % ARENA_ALIGNMENT;
    if (!a->newest || a->newest->capacity - a->newest->used < rounded)
        a->newest = arena_block_new(a->newest, rounded > ARENA_BLOCK_BYTES ? rounded : ARENA_BLOCK_BYTES);
    void *p = a->newest->data + a->newest->used;
    a->newest->used += rounded;
    a->used_bytes += rounded;
    return p;
}

char *arena_copy(arena *a, const char *text, size_t length)
{
    char *p = arena_alloc(a, length + 1, 1);
    if (length)
        memcpy(p, text, length);
    return p;
}

void arena_free(arena *a)
{
    while (a->newest) {
        arena_block *older = a->newest->older;
        free(a->newest);
        a->newest = older;
    }
    a->used_bytes = 0;
}
