/* Help for the innermost loops in sanitizer builds, where checking every element costs ten times the loop itself. Such a loop is a
 * function of its own marked UNCHECKED_LOOP; whoever calls it first touches both ends of each range with touch_range, which the
 * sanitizer does check. Outside sanitizer builds neither costs anything. */
#ifndef BASE_SANITIZE_H
#define BASE_SANITIZE_H

#include <stddef.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BASE_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define BASE_ADDRESS_SANITIZER 1
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

#endif
