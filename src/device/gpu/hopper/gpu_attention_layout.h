/* Where things lie in the tiles of the attention and indexer kernels: the part that is plain arithmetic, seen by C too, so that a test on
 * any machine can check it.
 *
 * Operand tiles lie in panels of 64 f16 (128 bytes) per line with the 128-byte swizzle of Hopper's matrix units: the 16-byte piece c of
 * line r is stored at piece c ^ (r & 7) of that line. A line is a key, a head or a query row. Such a tile can be read in both directions:
 * along the line ("by line": the summed index runs along the line) and across ("across": the summed index counts lines). */
#ifndef DEVICE_GPU_GPU_ATTENTION_LAYOUT_H
#define DEVICE_GPU_GPU_ATTENTION_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ATTENTION_BOTH static __host__ __device__ constexpr
#else
#define ATTENTION_BOTH static inline
#endif

enum { SM90_LINE_BYTES = 128, SM90_LINE_GROUP_BYTES = 1024 };
enum { ATTENTION_BLOCK = 64, ATTENTION_UNIT = 4, ATTENTION_PANEL_BYTES = ATTENTION_BLOCK * SM90_LINE_BYTES };

/* Byte offset of 16-byte piece c of line r in a swizzled panel. */
ATTENTION_BOTH uint32_t sm90_piece(uint32_t r, uint32_t c)
{
    return r * SM90_LINE_BYTES + ((c ^ (r & 7u)) << 4);
}

/* What the matrix units are told about a tile: its address, the distance between groups of 8 lines, and (across only) the distance
 * between panels. Bits 62-63: 1 is the 128-byte swizzle. */
ATTENTION_BOTH uint64_t sm90_tile(uint32_t address, uint32_t panel_bytes)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(panel_bytes >> 4) << 16 | (uint64_t)(SM90_LINE_GROUP_BYTES >> 4) << 32
           | (uint64_t)1 << 62;
}

/* The same, `offset` bytes further in shared memory. */
ATTENTION_BOTH uint64_t sm90_tile_at(uint64_t tile, uint32_t offset)
{
    return tile + (offset >> 4);
}

/* Bytes of a cached latent entry (model/kv_layout.h): fp8 with a scale per 128 values and a bf16 rotary part, or all bf16. */
ATTENTION_BOTH int attention_entry_bytes(bool fp8, int latent, int rope)
{
    return fp8 ? latent + (latent + 127) / 128 * 4 + rope * 2 : (latent + rope) * 2;
}

/* Entries as they come lie this far apart in shared memory: 64 bytes more than a multiple of 128, so that lanes that read two entries at
 * once meet different banks. */
ATTENTION_BOTH int attention_raw_bytes(int entry)
{
    return (entry + 63) / 128 * 128 + 64;
}

/* Where piece `index` of a lane lies when a warp brings a unit of 4 keys: 16 values of one key. Four lanes read 64 bytes of a key that lie
 * side by side; eight lanes store to eight different 16-byte columns. */
typedef struct attention_piece {
    int key, panel, quarter; /* key of the unit, panel of 64 values, 16 values of it */
} attention_piece;

ATTENTION_BOTH attention_piece attention_piece_at(int index, int lane, int panels)
{
    int at = index * 4 + (lane >> 3);
    attention_piece p = {at / panels * 2 + ((lane >> 2) & 1), at % panels, lane & 3};
    return p;
}

#endif
