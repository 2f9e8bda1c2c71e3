#include "device/gpu/hopper/gpu_moe_pack.h"

#include <math.h>
#include <string.h>

/* The largest scale of a row. */
static int row_top(const uint8_t *scales, int groups)
{
    int top = 0;
    for (int i = 0; i < groups; i++)
        top = scales[i] > top ? scales[i] : top;
    return top;
}

static int64_t pack_tile(moe_order order, const uint8_t *codes, const uint8_t *scales, int rows, int cols, int first_position,
                         int first_col, uint8_t *tile)
{
    int64_t lowered = 0;
    int groups = cols / MOE_GROUP;
    for (int position = 0; position < MOE_TILE_ROWS; position++) {
        int row = moe_row_at(order, first_position + position, rows / 2), top = row_top(scales + (int64_t)row * groups, groups), down;
        for (int group = 0; group < MOE_TILE_COLS / MOE_GROUP; group++) {
            int code = scales[(int64_t)row * groups + first_col / MOE_GROUP + group];
            tile[moe_scale_offset(position, group)] = (uint8_t)moe_scale_of(code, top, &down);
            lowered += down > 0;
        }
    }
    for (int i = 0; i < MOE_TILE_CODES / 4; i++) {
        int piece = i / 512, thread = i / 4 % 128, word = i % 4, down;
        int row = moe_row_at(order, first_position + moe_word_position(thread, word), rows / 2);
        int col = first_col + moe_word_column(thread, piece, word);
        const uint8_t *row_scales = scales + (int64_t)row * groups;
        moe_scale_of(row_scales[col / MOE_GROUP], row_top(row_scales, groups), &down);
        uint32_t packed = moe_word_make(codes, cols, row, col, down);
        memcpy(tile + 4 * i, &packed, sizeof packed);
    }
    return lowered;
}

int64_t moe_pack_host(moe_order order, const uint8_t *codes, const uint8_t *scales, int rows, int cols, uint8_t *packed, float *row_scales)
{
    if (rows % (2 * MOE_TILE_ROWS) != 0 || cols % MOE_TILE_COLS != 0)
        return -1;
    int64_t lowered = 0;
    for (int position = 0; position < rows; position++) {
        int row = moe_row_at(order, position, rows / 2);
        row_scales[position] = ldexpf(1.0f, row_top(scales + (int64_t)row * (cols / MOE_GROUP), cols / MOE_GROUP) - 127 - 6);
    }
    for (int first = 0; first < rows; first += MOE_TILE_ROWS)
        for (int col = 0; col < cols; col += MOE_TILE_COLS, packed += MOE_TILE_BYTES)
            lowered += pack_tile(order, codes, scales, rows, cols, first, col, packed);
    return lowered;
}
