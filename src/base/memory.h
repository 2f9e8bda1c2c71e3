/* Memory: checked allocation, and arenas that are freed as a whole.
 *
 * Small bookkeeping goes through mem_alloc and friends, which end the program with one sentence when the system
 * has no memory left. Anything whose size comes from a file, a flag or a request goes through mem_try_alloc, so
 * that the caller can answer with an error. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stddef.h>

void *mem_alloc(size_t count, size_t item_bytes);      /* zeroed; never NULL */
void *mem_grow(void *old, size_t count, size_t item_bytes); /* realloc with a checked product; never NULL */
void *mem_try_alloc(size_t count, size_t item_bytes);  /* zeroed; NULL when too large or out of memory */
void *mem_try_alloc_aligned(size_t bytes, size_t alignment); /* zeroed, free() releases it; NULL on failure */
/* Zeroed pages that take physical memory only when they are touched, for caches sized for the worst case. Large blocks are made of
 * huge pages where the system has them. */
void *mem_try_alloc_lazy(size_t bytes);                /* 4,096-byte aligned; NULL on failure */
void mem_free_lazy(void *memory);                      /* NULL is allowed */
void *mem_copy(const void *bytes, size_t count);       /* count bytes and a terminating zero; never NULL */

/* Hints about mapped memory; they cannot fail. Huge pages for what will be read often: */
void mem_prefer_huge(const void *bytes, size_t count);
/* reads a range of a mapped file, not more than it, into memory near the calling thread: */
void mem_read_ahead(const void *bytes, size_t count);

typedef struct arena_block arena_block;

/* An arena: allocations live until arena_free. Zero-initialise to create one. */
typedef struct arena {
    arena_block *newest;
    size_t used_bytes; /* sum of all allocations, for reports */
} arena;

void *arena_alloc(arena *a, size_t count, size_t item_bytes); /* zeroed, 64-byte aligned; never NULL */
char *arena_copy(arena *a, const char *text, size_t length);  /* with a terminating zero */
void arena_free(arena *a);

#endif
