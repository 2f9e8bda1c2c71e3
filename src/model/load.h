/* What the parts of the checkpoint loader share (weights.c, weights_format.c, weights_report.c). Internal to src/model. */
#ifndef MODEL_LOAD_H
#define MODEL_LOAD_H

#include "base/map.h"
#include "model/tensors.h"
#include "model/weights.h"

/* A matrix that was loaded, for the comparison with config.json. */
typedef struct loaded_module {
    view name; /* the tensor's name without ".weight" */
    format_id format;
} loaded_module;

typedef struct loader {
    model *m;
    const checkpoint *c;
    map names;               /* tensor name -> index in the checkpoint */
    bool *used;              /* [checkpoint_count] tensor was read */
    int64_t dims[DIM_COUNT];
    loaded_module *modules;
    size_t module_count, module_capacity;
    text name;               /* the tensor name being built */
    text missing;            /* the first few missing names */
    int missing_count;
    error *err;
} loader;

/* How the tensors of one matrix are called: endings after the module's name. */
typedef struct tensor_endings {
    const char *weight, *scale, *scale_inverse, *tensor_scale;
} tensor_endings;

/* A matrix, or `experts` matrices of the same shape behind each other. */
typedef struct stored_matrix {
    const tensor *weight;             /* NULL: missing */
    matrix first;
    uint64_t data_bytes, scale_bytes; /* of one matrix */
    const uint8_t *tensor_scales;     /* NVFP4: f32 per matrix; else NULL */
} stored_matrix;

const tensor *load_find(loader *l, const char *name); /* marks it as used; NULL when absent */
void load_missing(loader *l, const char *name);

/* Decides by the headers how module's matrix is stored, checks the shapes of all its tensors and fills out. experts 0: a tensor
 * [rows][cols]; else a stacked one [experts][rows][cols]. An absent tensor is noted as missing and leaves out->first empty. */
bool load_stored(loader *l, const char *module, const tensor_endings *endings, int64_t experts, int64_t rows, int64_t cols,
                 stored_matrix *out);
matrix stored_at(const stored_matrix *s, int64_t index);

/* Decodes a vector to f32; it must be finite. */
bool load_vector(loader *l, const char *name, int64_t count, const float **out);

void sentence_add(disagreement **list, int *count, const char *pattern, ...) __attribute__((format(printf, 3, 4)));

/* Compares quantization_config (NULL: none) with the modules that were loaded; adds to m->disagreements. */
void report_disagreements(loader *l, const json_t *quantization);

#endif
