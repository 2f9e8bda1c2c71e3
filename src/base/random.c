#include "base/random.h"

uint64_t random_key(uint64_t seed, uint64_t position)
{
    uint64_t x = random_mix(seed + UINT64_C(0x9E3779B97F4A7C15));
    return random_mix(x ^ random_mix(position + UINT64_C(0xD1B54A32D192ED03)));
}

uint64_t random_word(uint64_t seed, uint64_t position, uint64_t index)
{
    return random_word_at(random_key(seed, position), index);
}

double random_uniform(uint64_t seed, uint64_t position, uint64_t index)
{
    return random_uniform_at(random_key(seed, position), index);
}
