/* Random numbers as a pure function of a key: the same (seed, position, index) gives the same number in any order,
 * on any thread, with any batch around it (DESIGN, decision 4). */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

/* A well mixed 64-bit word of three counters. */
uint64_t random_word(uint64_t seed, uint64_t position, uint64_t index);

/* Uniform in the open interval (0, 1): never 0 and never 1, so that log() of it is finite. */
double random_uniform(uint64_t seed, uint64_t position, uint64_t index);

#endif
