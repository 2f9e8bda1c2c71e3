/* What sanitizer builds need of us. Outside such builds nothing here costs anything.
 *
 * The innermost loops: checking every element costs ten times the loop itself. Such a loop is a function of its own marked
 * UNCHECKED_LOOP; whoever calls it first touches both ends of each range with touch_range, which the sanitizer does check.
 *
 * Memory that does not come from malloc: forbid_range makes any access to a range an error, allow_range takes that back. */
#ifndef BASE_SANITIZE_H
#define BASE_SANITIZE_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BASE_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define BASE_ADDRESS_SANITIZER 1
#endif

#ifdef BASE_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
enum { SANITIZE_GUARD_BYTES = 4096 }; /* to forbid behind a block */
#else
enum { SANITIZE_GUARD_BYTES = 0 };
#endif

/* An extension of gcc and clang: the attribute has no equivalent in C17. */
#define UNCHECKED_LOOP __attribute__((no_sanitize("address"), no_sanitize("undefined")))

static inline void touch_range(const void *first, size_t bytes)
{
#ifdef BASE_ADDRESS_SANITIZER
    const volatile char *p = first;
    if (bytes > 0)
        (void)p[0], (void)p[bytes - 1];
#else
    (void)first, (void)bytes;
#endif
}

static inline void forbid_range(const void *first, size_t bytes)
{
#ifdef BASE_ADDRESS_SANITIZER
    __asan_poison_memory_region(first, bytes);
#else
    (void)first, (void)bytes;
#endif
}

static inline void allow_range(const void *first, size_t bytes)
{
#ifdef BASE_ADDRESS_SANITIZER
    __asan_unpoison_memory_region(first, bytes);
#else
    (void)first, (void)bytes;
#endif
}

/* Whether a sanitizer would report an access; false outside sanitizer builds. */
static inline bool is_forbidden(const void *address)
{
#ifdef BASE_ADDRESS_SANITIZER
    return __asan_address_is_poisoned(address) != 0;
#else
    (void)address;
    return false;
#endif
}

#endif
