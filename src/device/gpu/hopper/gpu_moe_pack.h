/* How expert weights lie in GPU memory: MXFP4 rearranged so that a thread of a warpgroup gets its registers of a matrix product by two
 * 16-byte loads, and scales rebased so that a weight becomes an e4m3 number by a table of 8 bytes.
 *
 * A matrix of rows x cols is cut into tiles of 64 rows x 128 columns; tile (i, j) begins at ((i * cols / 128) + j) * MOE_TILE_BYTES:
 *
 *     0     4096 bytes of codes: 2 pieces of 2048 (columns 0..63, 64..127), in each 16 bytes per thread, threads in order
 *     4096   256 bytes of scales: 8 bytes per (warp, g): 4 groups of position 16 warp + g, then of position 16 warp + g + 8
 *
 * The 16 bytes of thread (warp, lane), g = lane / 4, t = lane % 4: words (step s, half h) in the order s0h0 s0h1 s1h0 s1h1, a step being 32
 * columns. Word (s, h): 8 weights of position 16 warp + g + 8 h: a0..a3 = columns 32 s + 4 t .. + 3, b0..b3 = 16 columns behind them.
 *
 *     nibble     7   6   5   4   3   2   1   0      magnitudes (e2m1 without sign): a_i in nibble i, b_i in nibble 4 + i
 *     bit 3 of   b3  a3  b2  a2  b1  a1  b0  a0     signs: of a_i in nibble 2 i, of b_i in nibble 2 i + 1
 *
 * Scales: a group's exponent minus that of its row's largest group, plus 11, so 0..11: e2m1 * 2^(scale - 5) is an e4m3 number. The row's
 * own factor, 2^(largest - 127 - 6), is an f32 of its own. Groups more than 11 binades below the largest are rounded to scale 0 and
 * counted.
 *
 * Which row of the model lies at which position: tiles come in pairs (128 positions), so that a thread that has both tiles of a pair has
 * neighbours. MOE_GATE_UP: gate at g, up at g + 8 of the same column; column 2 g in the first tile, 2 g + 1 in the second. MOE_DOWN: rows
 * 4 g and 4 g + 1 at g and g + 8 of the first tile, 4 g + 2 and 4 g + 3 of the second.
 *
 * The functions below are compiled for the host and for the GPU. */
#ifndef DEVICE_GPU_GPU_MOE_PACK_H
#define DEVICE_GPU_GPU_MOE_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define MOE_BOTH static inline __host__ __device__
#else
#define MOE_BOTH static inline
#endif

enum {
    MOE_TILE_ROWS = 64,
    MOE_TILE_COLS = 128,
    MOE_TILE_CODES = 4096,
    MOE_TILE_BYTES = 4352,
    MOE_GROUP = 32,      /* columns that share a scale */
    MOE_SCALE_TOP = 11   /* scale of a row's largest group */
};

typedef enum moe_order { MOE_GATE_UP, MOE_DOWN } moe_order;

/* The row at a position of the packed matrix. MOE_GATE_UP: rows 0..inter-1 are gate, inter..2 inter-1 are up. */
MOE_BOTH int moe_row_at(moe_order order, int position, int inter)
{
    int pair = position / 128, tile = position / 64 % 2, warp = position / 16 % 4, g = position % 8, h = position / 8 % 2;
    return order == MOE_GATE_UP ? pair * 64 + warp * 16 + 2 * g + tile + h * inter : pair * 128 + warp * 32 + 4 * g + 2 * tile + h;
}

/* Position and columns of word `word` (0..3) of piece `piece` of a thread (0..127). */
MOE_BOTH int moe_word_position(int thread, int word)
{
    return thread / 32 * 16 + thread % 32 / 4 + 8 * (word % 2);
}

MOE_BOTH int moe_word_column(int thread, int piece, int word)
{
    return piece * 64 + word / 2 * 32 + thread % 4 * 4;
}

/* Where the scale of group 0..3 of a position lies in the tile. */
MOE_BOTH int moe_scale_offset(int position, int group)
{
    return MOE_TILE_CODES + (position / 16 * 8 + position % 8) * 8 + position / 8 % 2 * 4 + group;
}

/* The nibble of a code scaled down by 2^-down, rounded to nearest, ties to even mantissa. */
MOE_BOTH uint32_t moe_code_lower(uint32_t code, int down)
{
    const uint32_t halves[8] = {0, 1, 2, 3, 4, 6, 8, 12}; /* e2m1 magnitudes, doubled */
    uint32_t sign = code & 8u, value = halves[code & 7u];
    uint32_t best = 0;
    for (uint32_t c = 1; c < 8 && down < 16; c++) { /* the nearest of all, compared in units of 2^-down */
        uint32_t to_c = (halves[c] << down) > value ? (halves[c] << down) - value : value - (halves[c] << down);
        uint32_t to_best = (halves[best] << down) > value ? (halves[best] << down) - value : value - (halves[best] << down);
        if (to_c < to_best || (to_c == to_best && c % 2 == 0))
            best = c;
    }
    return best ? sign | best : 0;
}

/* The scale of a group, and how many binades its codes must be lowered. codes of a group whose own e8m0 is `code`, in a row whose largest
 * is `top`. */
MOE_BOTH int moe_scale_of(int code, int top, int *down)
{
    int scale = MOE_SCALE_TOP - (top - code);
    *down = scale < 0 ? -scale : 0;
    return scale < 0 ? 0 : scale;
}

/* 8 codes (nibbles with sign), a0..a3 then b0..b3, as a word. */
MOE_BOTH uint32_t moe_word_pack(const uint32_t *codes)
{
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) {
        word |= (codes[i] & 7u) << 4 * i | (codes[4 + i] & 7u) << (16 + 4 * i);
        word |= (codes[i] & 8u) << 8 * i | (codes[4 + i] & 8u) << (8 * i + 4);
    }
    return word;
}

/* The code at (row, column) of a checkpoint's MXFP4 matrix: even columns in low nibbles. */
MOE_BOTH uint32_t moe_code_at(const uint8_t *codes, int64_t cols, int64_t row, int64_t col)
{
    return (uint32_t)codes[(row * cols + col) / 2] >> col % 2 * 4 & 15u;
}

/* One word of the packed matrix from 8 codes of one group; *lowered counts it when the codes had to be rounded. */
MOE_BOTH uint32_t moe_word_make(const uint8_t *codes, int64_t cols, int64_t row, int64_t col, int down)
{
    uint32_t c[8];
    for (int i = 0; i < 8; i++) {
        c[i] = moe_code_at(codes, cols, row, col + i % 4 + i / 4 * 16);
        if (down > 0)
            c[i] = moe_code_lower(c[i], down);
    }
    return moe_word_pack(c);
}

/* A packed word to e4m3 codes: a0..a3 in *a, b0..b3 in *b, first in the low byte. What the kernels do with PRMT. */
MOE_BOTH void moe_word_unpack(uint32_t word, int scale, uint32_t *a, uint32_t *b)
{
    uint32_t lo = (uint32_t)scale * 0x08080800u + 0x14100800u, hi = (uint32_t)scale * 0x08080808u + 0x24201C18u;
    uint64_t table = (uint64_t)hi << 32 | lo;
    *a = *b = 0;
    for (int i = 0; i < 4; i++) {
        *a |= (uint32_t)(table >> 8 * (word >> 4 * i & 7u) & 255u) << 8 * i;
        *b |= (uint32_t)(table >> 8 * (word >> (16 + 4 * i) & 7u) & 255u) << 8 * i;
    }
    *a |= word << 4 & 0x80808080u;
    *b |= word & 0x80808080u;
}

/* Bytes of a packed matrix. */
MOE_BOTH size_t moe_packed_bytes(int64_t rows, int64_t cols)
{
    return (size_t)(rows / MOE_TILE_ROWS * (cols / MOE_TILE_COLS)) * MOE_TILE_BYTES;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Packs a matrix of `rows` x `cols` MXFP4 values as a checkpoint has it (codes [rows][cols/2], scales [rows][cols/32]) on the host. For
 * MOE_GATE_UP gate and up are given as one matrix of 2 inter rows. row_scales [rows] is in the order of positions. Returns how many groups
 * had to be rounded; -1 when rows or cols is no multiple of 128. */
int64_t moe_pack_host(moe_order order, const uint8_t *codes, const uint8_t *scales, int rows, int cols, uint8_t *packed, float *row_scales);

#ifdef __cplusplus
}
#endif

#endif
