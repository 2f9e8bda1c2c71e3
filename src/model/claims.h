/* What config.json's quantization_config claims: which modules are not quantized, and the format of the others. Never used to
 * read anything; only compared with the tensor headers (weights_report.c). Internal to src/model. */
#ifndef MODEL_CLAIMS_H
#define MODEL_CLAIMS_H

#include <regex.h>

#include "base/json.h"
#include "base/map.h"
#include "base/text.h"
#include "formats/format.h"

typedef enum claim_kind { CLAIM_NAME, CLAIM_GLOB, CLAIM_REGEX, CLAIM_UNREADABLE } claim_kind;

/* One entry of the list of modules that are not quantized. */
typedef struct claim_entry {
    const char *pattern; /* borrowed from the JSON */
    claim_kind kind;
    regex_t regex;       /* CLAIM_REGEX */
    bool hit;            /* some tensor matched */
} claim_entry;

/* Quark's layer_quant_config: modules that match have a format of their own. */
typedef struct claim_layer {
    const char *pattern; /* a glob; borrowed from the JSON */
    int format;          /* claimed format_id, or -1 */
} claim_layer;

typedef struct claims {
    const char *method;   /* "quark", ...; NULL: there is no quantization_config */
    const char *list_key; /* where the list is: "exclude", ... */
    bool known;           /* the method's rules are known here, so a comparison makes sense */
    bool by_suffix;       /* an entry also matches the end of a name */
    int format;           /* claimed format_id of quantized modules, or -1 */
    claim_layer *layers;  /* [layer_count] */
    size_t layer_count;
    claim_entry *entries;
    size_t count;
    map names;            /* CLAIM_NAME entries by name */
    size_t *patterns;     /* indices of the globs and regular expressions */
    size_t pattern_count;
} claims;

/* Reads quantization_config (NULL: none). Anything odd in it only makes the comparison weaker. */
void claims_read(const json_t *quantization, claims *out);
void claims_free(claims *c);

/* Whether the list covers this module: by its name, the name of a module around it, a glob or a regular expression ("re:..."). */
bool claims_exclude(claims *c, const char *module);

/* The claimed format_id of a quantized module, or -1. */
int claims_format(const claims *c, const char *module);

/* Marks the entries that match this module, for the report of those that match nothing. */
void claims_mark(claims *c, const char *module);

/* How engines that build the draft layer as a model of its own call a module of it: model.layers.N.eh_proj is model.eh_proj there,
 * and model.layers.N.mlp.gate is model.decoder.mlp.gate. False for a module of another layer than draft_layer. */
bool draft_alias(const char *module, int draft_layer, text *out);

bool glob_match(const char *pattern, const char *name); /* '*', '?', '[a-z]', '[!a-z]' */

#endif
