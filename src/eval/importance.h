/* Statistics of activations for the quantizer: the mean square of every input column of every matrix, collected over text.
 *
 * The file has one f32 tensor [columns] per matrix, named like the module (model.layers.3.mlp.experts.7.gate_proj). The columns of a
 * routed expert are those of the rows that were routed to it. Experts that saw no row have the statistics of their layer; they are
 * listed in the metadata under experts_without_rows. kv_b_proj and eh_proj have no statistics. */
#ifndef EVAL_IMPORTANCE_H
#define EVAL_IMPORTANCE_H

#include "engine/session.h"

typedef struct importance importance;

/* Listens to the session's forward pass until it is freed. */
importance *importance_create(session *s, error *err);
void importance_free(importance *m); /* NULL is allowed */

/* Runs trunk and draft layer over a window of tokens (1 or more, within the session's room). */
bool importance_add(importance *m, const int32_t *tokens, int count, error *err);

/* Writes the file; `source` names the text in its metadata. *lonely: how many experts saw no row. */
bool importance_write(const importance *m, const char *path, const char *source, int *lonely, error *err);

#endif
