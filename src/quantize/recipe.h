/* Which matrices are quantized, and to what: classes of matrices, and named recipes over them.
 *
 *     class          matrices                                             amd   amd-attn-fp8   all   zai   modelopt   attn8
 *     experts        mlp.experts.*                                        x     x              x     x     x          x
 *     shared         mlp.shared_experts.*                                 x     x              x     x     -          fp8 blocks
 *     dense          mlp.{gate,up,down}_proj of dense layers              -     x              x     x     -          fp8 blocks
 *     attention      self_attn.{q_a,q_b,kv_a,kv_b,o}                      -     fp8 per row    x     x     -          fp8 blocks
 *     indexer        self_attn.indexer.{wq_b,wk}                          -     fp8 per row    x     x     -          fp8 blocks
 *     head           lm_head                                              -     -              -     -     -          fp8 blocks
 *     never          embedding, router, indexer.weights_proj, eh_proj, norms
 *     draft layer    the same classes of the draft layer                  -     x              -     x     -          x
 *
 * attn8 is for made-up weights (synth.h), whose lm_head decides nothing.
 */
#ifndef QUANTIZE_RECIPE_H
#define QUANTIZE_RECIPE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/text.h"
#include "formats/format.h"

typedef enum matrix_class {
    CLASS_EXPERTS,
    CLASS_SHARED,
    CLASS_DENSE,
    CLASS_ATTENTION,
    CLASS_INDEXER,
    CLASS_ROUTER, /* from here on: never quantized */
    CLASS_INDEX_WEIGHTS,
    CLASS_DRAFT_PROJECT,
    CLASS_EMBEDDING,
    CLASS_HEAD,
    CLASS_OTHER, /* vectors, and tensors that are only copied */
    CLASS_COUNT
} matrix_class;

const char *matrix_class_name(matrix_class c);

typedef enum recipe_id { RECIPE_DEFAULT, RECIPE_AMD, RECIPE_AMD_ATTN_FP8, RECIPE_ALL, RECIPE_ZAI, RECIPE_MODELOPT, RECIPE_ATTN8 } recipe_id;
typedef enum mtp_policy { MTP_DEFAULT, MTP_KEEP, MTP_QUANTIZE } mtp_policy;

/* What the user asked for. The strings are borrowed. */
typedef struct recipe_options {
    format_id to;
    recipe_id recipe;
    mtp_policy mtp;
    const char *const *include; /* globs over module names: quantized although the recipe does not say so */
    size_t include_count;
    const char *const *exclude; /* globs: not quantized; stronger than include */
    size_t exclude_count;
} recipe_options;

/* The same, decided. */
typedef struct recipe {
    recipe_options options;
    const char *name;      /* "amd"; "bf16" when nothing is quantized */
    unsigned classes;      /* bit 1 << class: quantized to options.to */
    unsigned row_classes;  /* bit 1 << class: quantized to fp8 with a scale per row */
    unsigned block_classes; /* bit 1 << class: quantized to fp8 with a scale per 128 x 128 block, whatever options.to */
    bool quantize_draft;   /* the draft layer, too */
    bool draft_by_default; /* no --mtp was given */
} recipe;

/* Refuses combinations that make no sense. */
bool recipe_resolve(const recipe_options *options, recipe *out, error *err);

/* The format that a matrix gets. Where it is not quantized, why receives the reason in words (else it is cleared). */
format_id recipe_format(const recipe *r, const char *module, matrix_class c, bool draft, int64_t rows, int64_t cols, text *why);

#endif
