#include "base/random.h"

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection whose output bits each depend on all input bits. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

uint64_t random_word(uint64_t seed, uint64_t position, uint64_t index)
{
    uint64_t x = mix(seed + UINT64_C(0x9E3779B97F4A7C15));
    x = mix(x ^ mix(position + UINT64_C(0xD1B54A32D192ED03)));
    return mix(x + (index + 1) * UINT64_C(0x9E3779B97F4A7C15));
}

double random_uniform(uint64_t seed, uint64_t position, uint64_t index)
{
    return ((double)(random_word(seed, position, index) >> 12) + 0.5) * 0x1p-52;
}
