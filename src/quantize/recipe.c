#include "quantize/recipe.h"

#include <inttypes.h>

#include "model/claims.h"

enum {
    MOE = 1 << CLASS_EXPERTS | 1 << CLASS_SHARED,
    SELF_ATTENTION = 1 << CLASS_ATTENTION | 1 << CLASS_INDEXER,
    EVERYTHING = MOE | 1 << CLASS_DENSE | SELF_ATTENTION,
};

static const struct {
    const char *name;
    unsigned classes, row_classes, block_classes;
    bool quantize_draft;
} recipes[] = {
    [RECIPE_AMD] = {"amd", MOE, 0, 0, false},
    [RECIPE_AMD_ATTN_FP8] = {"amd-attn-fp8", MOE | 1 << CLASS_DENSE, SELF_ATTENTION, 0, true},
    [RECIPE_ALL] = {"all", EVERYTHING, 0, 0, false},
    [RECIPE_ZAI] = {"zai", EVERYTHING, 0, 0, true},
    [RECIPE_MODELOPT] = {"modelopt", 1 << CLASS_EXPERTS, 0, 0, false},
    [RECIPE_ATTN8] = {"attn8", 1 << CLASS_EXPERTS, 0, 1 << CLASS_SHARED | 1 << CLASS_DENSE | SELF_ATTENTION | 1 << CLASS_HEAD, true},
};

static const char *const class_names[CLASS_COUNT] = {
    [CLASS_EXPERTS] = "experts",
    [CLASS_SHARED] = "shared experts",
    [CLASS_DENSE] = "dense MLP",
    [CLASS_ATTENTION] = "attention",
    [CLASS_INDEXER] = "indexer",
    [CLASS_ROUTER] = "router",
    [CLASS_INDEX_WEIGHTS] = "indexer head weights",
    [CLASS_DRAFT_PROJECT] = "draft projection",
    [CLASS_EMBEDDING] = "embedding",
    [CLASS_HEAD] = "lm_head",
    [CLASS_OTHER] = "norms and other",
};

const char *matrix_class_name(matrix_class c)
{
    return class_names[c];
}

static recipe_id default_recipe(format_id to)
{
    return to == FORMAT_FP8_BLOCK ? RECIPE_ZAI : to == FORMAT_NVFP4 ? RECIPE_MODELOPT : RECIPE_AMD;
}

bool recipe_resolve(const recipe_options *options, recipe *out, error *err)
{
    const recipe_options *o = options;
    *out = (recipe){.options = *o, .name = "bf16", .draft_by_default = o->mtp == MTP_DEFAULT};
    if (o->to == FORMAT_BF16) {
        if (o->recipe != RECIPE_DEFAULT || o->mtp != MTP_DEFAULT || o->include_count || o->exclude_count)
            return error_set(err, ERROR_USAGE,
                             "--recipe, --mtp, --include and --exclude choose what is quantized; with --to bf16 nothing is");
        return true;
    }
    recipe_id id = o->recipe == RECIPE_DEFAULT ? default_recipe(o->to) : o->recipe;
    if (id == RECIPE_AMD_ATTN_FP8 && o->to != FORMAT_MXFP4)
        return error_set(err, ERROR_USAGE, "--recipe amd-attn-fp8 is MXFP4 with attention in FP8; use it with --to mxfp4");
    out->name = recipes[id].name;
    out->classes = recipes[id].classes;
    out->row_classes = recipes[id].row_classes;
    out->block_classes = recipes[id].block_classes;
    out->quantize_draft = o->mtp == MTP_DEFAULT ? recipes[id].quantize_draft : o->mtp == MTP_QUANTIZE;
    return true;
}

static const char *first_match(const char *const *globs, size_t count, const char *module)
{
    for (size_t i = 0; i < count; i++)
        if (glob_match(globs[i], module))
            return globs[i];
    return NULL;
}

/* Without regard to the matrix's size. */
static format_id format_wanted(const recipe *r, const char *module, matrix_class c, bool draft, text *why)
{
    const recipe_options *o = &r->options;
    unsigned bit = 1u << c;
    const char *excluded = first_match(o->exclude, o->exclude_count, module);
    format_id own = r->row_classes & bit ? FORMAT_FP8_CHANNEL : r->block_classes & bit ? FORMAT_FP8_BLOCK : o->to;
    if (o->to == FORMAT_BF16)
        return FORMAT_BF16;
    if (c >= CLASS_ROUTER && !(r->block_classes & bit)) {
        text_add_text(why, "never quantized");
    } else if (excluded) {
        text_add_format(why, "--exclude %s", excluded);
    } else if (first_match(o->include, o->include_count, module)) {
        return own;
    } else if (draft && !r->quantize_draft) {
        text_add_text(why, r->draft_by_default ? "the recipe keeps the draft layer" : "--mtp keep");
    } else if (!((r->classes | r->row_classes | r->block_classes) & bit)) {
        text_add_format(why, "not in recipe %s", r->name);
    } else {
        return own;
    }
    return FORMAT_BF16;
}

format_id recipe_format(const recipe *r, const char *module, matrix_class c, bool draft, int64_t rows, int64_t cols, text *why)
{
    uint64_t bytes;
    text_clear(why);
    format_id id = format_wanted(r, module, c, draft, why);
    const format *f = format_of(id);
    if (format_data_bytes(f, rows, cols, &bytes))
        return id;
    text_add_format(why, "its rows of %" PRId64 " values are not a multiple of %d, as %s needs", cols, f->block_cols, f->name);
    return FORMAT_BF16;
}
