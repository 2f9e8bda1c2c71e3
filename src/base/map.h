/* A hash map from byte strings to 64-bit numbers, for names read from files. Keys are borrowed: they must outlive
 * the map. The hash is seeded per process, so crafted names cannot force collisions. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

typedef struct map_slot {
    view key; /* data == NULL: empty */
    uint64_t hash;
    int64_t value;
} map_slot;

/* Zero-initialise to create one. */
typedef struct map {
    map_slot *slots; /* [capacity], a power of two, at most 5/8 full */
    size_t capacity, count;
    uint64_t seed;
} map;

bool map_add(map *m, view key, int64_t value); /* false when the key is there already (value unchanged) */
bool map_get(const map *m, view key, int64_t *value);
void map_free(map *m);

uint64_t hash_bytes(const void *bytes, size_t count, uint64_t seed);

#endif
