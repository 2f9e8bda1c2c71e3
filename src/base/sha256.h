/* SHA-256 (FIPS 180-4): identity of small files such as chat templates. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>

enum { SHA256_TEXT_BYTES = 65 };

/* Writes 64 lower-case hexadecimal digits and a terminator. */
void sha256_hex(const void *bytes, size_t count, char out[SHA256_TEXT_BYTES]);

#endif
