/* The tensors of the architecture, one table row each: name, where it goes in the weights, shape. Loading, counting
 * parameters and reporting all walk these tables. Internal to src/model, but for src/quantize, which walks them to convert a checkpoint. */
#ifndef MODEL_TENSORS_H
#define MODEL_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

/* Sizes that shapes are made of. */
typedef enum dim {
    DIM_ONE, /* as cols: the tensor is a vector, decoded to f32 */
    DIM_HIDDEN,
    DIM_TWO_HIDDEN,
    DIM_VOCAB,
    DIM_Q_LATENT,
    DIM_Q_ALL,      /* heads * (nope + rope) */
    DIM_KV_LATENT,
    DIM_KV_A,       /* kv latent + rope */
    DIM_KV_B,       /* heads * (nope + v) */
    DIM_V_ALL,      /* heads * v */
    DIM_INDEX_Q,    /* index heads * index dim */
    DIM_INDEX,
    DIM_INDEX_HEADS,
    DIM_DENSE,      /* width of a dense MLP */
    DIM_SHARED,     /* width of the shared experts together */
    DIM_EXPERT,     /* width of one expert */
    DIM_EXPERTS,
    DIM_COUNT
} dim;

void dims_of(const model_config *c, int64_t dims[DIM_COUNT]);

typedef struct tensor_row {
    const char *name; /* of a matrix: the module, to which ".weight" and the scales' names are added; of a vector: complete */
    size_t field;     /* offset of the matrix or `const float *` in the struct that the table belongs to */
    dim rows, cols;
    bool buffer;      /* not counted among the parameters */
} tensor_row;

typedef struct tensor_table {
    const tensor_row *rows;
    size_t count;
} tensor_table;

extern const tensor_table tensors_top;     /* into model; names complete. lm_head apart: tensors_head */
extern const tensor_table tensors_head;    /* into model: lm_head, when embeddings are not tied */
extern const tensor_table tensors_layer;   /* into layer_weights; names after "model.layers.N." */
extern const tensor_table tensors_indexer; /* into layer_weights */
extern const tensor_table tensors_dense;   /* into layer_weights: a dense MLP */
extern const tensor_table tensors_sparse;  /* into layer_weights: the router */
extern const tensor_table tensors_shared;  /* into layer_weights: shared experts */
extern const tensor_table tensors_expert;  /* into mlp_weights; names after "mlp.experts.E." */
extern const tensor_table tensors_mtp;     /* into mtp_weights; names after "model.layers.N." */

#endif
