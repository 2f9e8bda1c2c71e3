/* What a model is and what it needs, as text for people and as JSON. */
#ifndef MODEL_INSPECT_H
#define MODEL_INSPECT_H

#include <stdio.h>

#include "model/kv_layout.h"
#include "model/weights.h"

/* Bytes of cache that one token takes: latent KV of every layer, index keys of the full layers, and both of the MTP layer. */
uint64_t kv_token_bytes(const model_config *c, kv_dtype kv);

/* Rows of a step that the estimate of working memory assumes: as many tokens of a prompt as run and chat compute at once. */
enum { INSPECT_STEP_ROWS = 256 };

typedef struct memory_need {
    uint64_t weight_bytes;  /* mapped checkpoint and decoded norms */
    uint64_t kv_bytes;      /* cache of one sequence, in whole pages of 64 tokens */
    uint64_t working_bytes; /* estimate of the buffers of one step of up to INSPECT_STEP_ROWS rows */
    uint64_t total_bytes;
} memory_need;

memory_need memory_needed(const model *m, kv_dtype kv, int64_t context_tokens);

void inspect_print(const model *m, FILE *out);
json_t *inspect_json(const model *m); /* json_decref frees; its keys are described in docs/model.md */

#endif
