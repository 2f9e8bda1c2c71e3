/* Random numbers as a pure function of a key: the same (seed, position, index) gives the same number in any order,
 * on any thread, with any batch around it (DESIGN, decision 4). */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

/* A well mixed 64-bit word of three counters. */
uint64_t random_word(uint64_t seed, uint64_t position, uint64_t index);

/* Uniform in the open interval (0, 1): never 0 and never 1, so that log() of it is finite. */
double random_uniform(uint64_t seed, uint64_t position, uint64_t index);

/* The same numbers for a loop over index: random_uniform(s, p, i) is random_uniform_at(random_key(s, p), i). */
uint64_t random_key(uint64_t seed, uint64_t position);

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose output bits each depend on all input bits. */
static inline uint64_t random_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint64_t random_word_at(uint64_t key, uint64_t index)
{
    return random_mix(key + (index + 1) * UINT64_C(0x9E3779B97F4A7C15));
}

static inline double random_uniform_at(uint64_t key, uint64_t index)
{
    return ((double)(random_word_at(key, index) >> 12) + 0.5) * 0x1p-52;
}

#endif
