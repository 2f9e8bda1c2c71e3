/* Any bytes as a tuned table and as the tables of other tuners. Checked: no crash; a refusal is one sentence that names the place; what is
 * accepted as a tuned table is written and read again as the same rows, each found by its key. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device/tuned.h"
#include "tune/foreign.h"

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void require_same(const tuned_table *a, const tuned_table *b)
{
    require(a->count == b->count);
    for (int i = 0; i < a->count; i++) {
        const tuned_row *x = &a->rows[i];
        dispatch_key key = {x->operation, x->format, x->n, x->k, x->bucket};
        const tuned_row *y = tuned_find(b, &key);
        require(y == &b->rows[i] && strcmp(x->variant, y->variant) == 0 && strcmp(x->baseline, y->baseline) == 0);
        require(strcmp(x->version, y->version) == 0 && x->us > 0 && x->baseline_us > 0);
    }
}

static void fuzz_tuned(view bytes)
{
    error err = {0};
    tuned_table a = {0}, b = {0};
    text again = {0};
    if (tuned_parse(bytes, "table", &a, &err)) {
        tuned_format(&a, &again);
        require(tuned_parse((view){again.data, again.length}, "again", &b, &err));
        require_same(&a, &b);
    } else {
        require(err.code == ERROR_INPUT && strstr(err.text, "table"));
    }
    tuned_free(&a);
    tuned_free(&b);
    text_free(&again);
}

static void fuzz_foreign(view bytes)
{
    static const model_config m = {.hidden_size = 384, .expert_intermediate = 128, .experts = 16, .experts_per_token = 4,
                                   .shared_experts = 1};
    text reason = {0};
    for (int i = 0; i < 2; i++) {
        error err = {0};
        foreign_list l = {0};
        bool ok = i ? foreign_parse_triton(bytes, "E=16,N=128.json", &l, &err) : foreign_parse_aiter(bytes, "table", &l, &err);
        require(ok || (err.code == ERROR_INPUT && err.text[0]));
        for (int j = 0; j < l.count; j++) {
            int rows = foreign_rows(&l.shapes[j], &m, &reason);
            require(rows ? rows <= 4096 : reason.length > 0);
        }
        foreign_free(&l);
    }
    text_free(&reason);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    view bytes = {size ? (const char *)data : "", size};
    fuzz_tuned(bytes);
    fuzz_foreign(bytes);
    return 0;
}
