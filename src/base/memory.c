#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE, madvise */
#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Where a lazy block was mapped is written in a page of its own before it. In sanitizer builds what lies around the block is forbidden,
 * as around blocks of malloc:
 *
 *     | rest | header, forbidden | the block | forbidden: at least LAZY_GUARD_BYTES |
 *
 * A block of LAZY_HUGE_FROM bytes or more begins at a multiple of HUGE_PAGE_BYTES and asks for pages of that size. It is still lazy: a
 * huge page comes with the first touch of its range, so that a block that is filled from the front takes at most one huge page, an
 * eighth of the smallest such block, more than was touched. Smaller blocks stay on small pages. */
enum { LAZY_HEADER_BYTES = 4096, LAZY_GUARD_BYTES = SANITIZE_GUARD_BYTES };
enum { HUGE_PAGE_BYTES = 2 << 20, LAZY_HUGE_FROM = 16 << 20 };

typedef struct lazy_header {
    void *mapping;
    size_t bytes;
} lazy_header;

void *mem_try_alloc_lazy(size_t bytes)
{
    lazy_header h;
    bool huge = bytes >= LAZY_HUGE_FROM;
    if (!checked_add_size(bytes, LAZY_HEADER_BYTES + LAZY_GUARD_BYTES + (huge ? HUGE_PAGE_BYTES : 0), &h.bytes) || h.bytes > PTRDIFF_MAX)
        return NULL;
    h.mapping = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (h.mapping == MAP_FAILED)
        return NULL;
    char *block = (char *)h.mapping + LAZY_HEADER_BYTES;
    if (huge) {
        block += (HUGE_PAGE_BYTES - (uintptr_t)block % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
        mem_prefer_huge(block, bytes);
    }
    memcpy(block - LAZY_HEADER_BYTES, &h, sizeof h);
    forbid_range(block - LAZY_HEADER_BYTES, LAZY_HEADER_BYTES);
    forbid_range(block + bytes, LAZY_GUARD_BYTES);
    return block;
}

void mem_free_lazy(void *memory)
{
    if (!memory)
        return;
    char *header = (char *)memory - LAZY_HEADER_BYTES;
    lazy_header h;
    allow_range(header, LAZY_HEADER_BYTES);
    memcpy(&h, header, sizeof h);
    allow_range(h.mapping, h.bytes);
    munmap(h.mapping, h.bytes);
}

/* The whole pages of a range: hints are given for pages. */
static size_t pages_of(const void *bytes, size_t count, void **first)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)bytes / page * page;
    *first = (void *)from;
    return (uintptr_t)bytes + count - from;
}

void mem_prefer_huge(const void *bytes, size_t count)
{
#ifdef MADV_HUGEPAGE
    void *first;
    size_t whole = pages_of(bytes, count, &first);
    if (count > 0)
        madvise(first, whole, MADV_HUGEPAGE);
#else
    (void)bytes, (void)count;
#endif
}

/* Readahead of a mapped file would read beyond the range, and the system reads no more than its own limit (128 kB unless set otherwise)
 * for one request; so the range is asked for in pieces of that size before it is touched. */
void mem_read_ahead(const void *bytes, size_t count)
{
    enum { PIECE_BYTES = 128 << 10, PAGE_BYTES = 4096 };
    void *first;
    size_t whole = pages_of(bytes, count, &first);
    for (size_t at = 0; count > 0 && at < whole; at += PIECE_BYTES)
        madvise((char *)first + at, whole - at < PIECE_BYTES ? whole - at : PIECE_BYTES, MADV_WILLNEED);
    for (size_t at = 0; at < count; at += PAGE_BYTES)
        (void)*((const volatile char *)bytes + at);
    if (count > 0)
        (void)*((const volatile char *)bytes + count - 1);
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
