#include "base/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/memory.h"

static uint64_t fold(uint64_t a, uint64_t b)
{
    a ^= b;
    a *= UINT64_C(0x9E3779B97F4A7C15);
    a ^= a >> 32;
    a *= UINT64_C(0xD6E8FEB86659FD93);
    return a ^ (a >> 29);
}

uint64_t hash_bytes(const void *bytes, size_t count, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = seed ^ (count * UINT64_C(0xA0761D6478BD642F)), word;
    for (; count >= 8; p += 8, count -= 8) {
        memcpy(&word, p, 8);
        h = fold(h, word);
    }
    word = 0;
    if (count)
        memcpy(&word, p, count);
    return fold(h, word);
}

static map_slot *map_slot_for(const map *m, view key, uint64_t hash)
{
    for (size_t i = hash & (m->capacity - 1);; i = (i + 1) & (m->capacity - 1)) {
        map_slot *s = &m->slots[i];
        if (!s->key.data || (s->hash == hash && view_equal(s->key, key)))
            return s;
    }
}

static void map_resize(map *m, size_t capacity)
{
    map old = *m;
    m->slots = mem_alloc(capacity, sizeof *m->slots);
    m->capacity = capacity;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].key.data)
            *map_slot_for(m, old.slots[i].key, old.slots[i].hash) = old.slots[i];
    free(old.slots);
}

bool map_add(map *m, view key, int64_t value)
{
    if (m->capacity == 0) {
        if (getrandom(&m->seed, sizeof m->seed, GRND_NONBLOCK) != (ssize_t)sizeof m->seed)
            m->seed = (uint64_t)(uintptr_t)m;
        map_resize(m, 64);
    }
    if (m->count * 8 >= m->capacity * 5)
        map_resize(m, m->capacity * 2);
    if (!key.data)
        key.data = "";
    uint64_t hash = hash_bytes(key.data, key.length, m->seed);
    map_slot *s = map_slot_for(m, key, hash);
    if (s->key.data)
        return false;
    *s = (map_slot){key, hash, value};
    m->count++;
    return true;
}

bool map_get(const map *m, view key, int64_t *value)
{
    if (m->capacity == 0)
        return false;
    if (!key.data)
        key.data = "";
    const map_slot *s = map_slot_for(m, key, hash_bytes(key.data, key.length, m->seed));
    if (!s->key.data)
        return false;
    *value = s->value;
    return true;
}

void map_free(map *m)
{
    free(m->slots);
    *m = (map){0};
}
