/* The index maps of the GPU's attention tiles (gpu_attention_layout.h): every value has one place, lanes that work together meet
 * different banks, and entries are as long as the KV pages have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "device/gpu/hopper/gpu_attention_layout.h"
#include "model/kv_layout.h"

enum { LANES = 32, PHASE = 8, BANK_BYTES = 128 }; /* shared memory serves 8 lanes of 16 bytes at a time from 128 bytes of banks */

static void a_panel_has_a_place_for_each_piece(void **state)
{
    bool taken[ATTENTION_PANEL_BYTES / 16] = {false};
    (void)state;
    for (uint32_t line = 0; line < ATTENTION_BLOCK; line++)
        for (uint32_t piece = 0; piece < 8; piece++) {
            uint32_t at = sm90_piece(line, piece);
            assert_int_equal(at % 16, 0);
            assert_int_equal(at / SM90_LINE_BYTES, line);
            assert_false(taken[at / 16]);
            taken[at / 16] = true;
        }
}

static void a_tile_is_described_by_address_and_strides(void **state)
{
    uint64_t tile = sm90_tile(0x2c400, ATTENTION_PANEL_BYTES);
    (void)state;
    assert_int_equal(tile & 0x3fff, 0x2c40);
    assert_int_equal(tile >> 16 & 0x3fff, ATTENTION_PANEL_BYTES / 16);
    assert_int_equal(tile >> 32 & 0x3fff, SM90_LINE_GROUP_BYTES / 16);
    assert_int_equal(tile >> 62, 1);
    assert_int_equal(sm90_tile_at(tile, 0x820), sm90_tile(0x2c400 + 0x820, ATTENTION_PANEL_BYTES));
}

/* Lanes of a unit of 4 keys bring each piece of 16 values once. */
static void check_unit(int latent)
{
    int panels = latent / 64, pieces = latent / 128;
    bool taken[ATTENTION_UNIT][8][4];
    memset(taken, 0, sizeof taken);
    for (int index = 0; index < pieces; index++)
        for (int lane = 0; lane < LANES; lane++) {
            attention_piece p = attention_piece_at(index, lane, panels);
            assert_in_range(p.key, 0, ATTENTION_UNIT - 1);
            assert_in_range(p.panel, 0, panels - 1);
            assert_false(taken[p.key][p.panel][p.quarter]);
            taken[p.key][p.panel][p.quarter] = true;
        }
    for (int key = 0; key < ATTENTION_UNIT; key++)
        for (int panel = 0; panel < panels; panel++)
            for (int quarter = 0; quarter < 4; quarter++)
                assert_true(taken[key][panel][quarter]);
}

static void a_unit_is_brought_once(void **state)
{
    (void)state;
    check_unit(512);
    check_unit(128);
}

/* Eight lanes that are served together read, and store, eight different 16-byte columns. */
static void check_banks(int latent, int entry)
{
    int panels = latent / 64;
    for (int index = 0; index < latent / 128; index++)
        for (int first = 0; first < LANES; first += PHASE)
            for (uint32_t half = 0; half < 2; half++) {
                unsigned stored = 0, read = 0;
                for (int lane = first; lane < first + PHASE; lane++) {
                    attention_piece p = attention_piece_at(index, lane, panels);
                    uint32_t to = (uint32_t)p.panel * ATTENTION_PANEL_BYTES + sm90_piece((uint32_t)p.key, (uint32_t)p.quarter * 2 + half);
                    int from = p.key * attention_raw_bytes(entry) + p.panel * 64 + p.quarter * 16;
                    stored |= 1u << to % BANK_BYTES / 16;
                    read |= 1u << from % BANK_BYTES / 16;
                }
                assert_int_equal(stored, 0xff);
                assert_int_equal(read, 0xff);
            }
}

static void lanes_meet_different_banks(void **state)
{
    (void)state;
    check_banks(512, attention_entry_bytes(true, 512, 64));
    check_banks(128, attention_entry_bytes(true, 128, 32));
}

static void entries_are_those_of_the_pages(void **state)
{
    static const int latents[] = {512, 128}, ropes[] = {64, 32};
    (void)state;
    for (int i = 0; i < 2; i++) {
        model_config c = {.kv_lora_rank = latents[i], .rope_dim = ropes[i], .index_dim = 128, .layers = 1};
        kv_layout fp8 = kv_layout_of(&c, KV_FP8), bf16 = kv_layout_of(&c, KV_BF16);
        assert_int_equal(attention_entry_bytes(true, latents[i], ropes[i]), fp8.latent_bytes);
        assert_int_equal(attention_entry_bytes(false, latents[i], ropes[i]), bf16.latent_bytes);
        assert_true(attention_raw_bytes((int)fp8.latent_bytes) >= (int)fp8.latent_bytes);
        assert_true(attention_raw_bytes((int)bf16.latent_bytes) >= (int)bf16.latent_bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_panel_has_a_place_for_each_piece), cmocka_unit_test(a_tile_is_described_by_address_and_strides),
        cmocka_unit_test(a_unit_is_brought_once),             cmocka_unit_test(lanes_meet_different_banks),
        cmocka_unit_test(entries_are_those_of_the_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
