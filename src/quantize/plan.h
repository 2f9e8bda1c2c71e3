/* The plan of a conversion: every tensor of the result, where its bytes come from, and the file it goes to. A plan of shapes has no
 * source: somebody else makes the bytes (synth.h).
 *
 * Entries are in the order of their data in the source files, so that a conversion reads each file once from its beginning
 * to its end. The plan depends on the source's headers and the options alone. */
#ifndef QUANTIZE_PLAN_H
#define QUANTIZE_PLAN_H

#include "model/weights.h"
#include "quantize/recipe.h"

enum { ENTRY_MOST_OUTPUTS = 4, PLAN_NO_PARTNER = -1 };

typedef enum output_part {
    PART_DATA,         /* values or codes */
    PART_SCALES,       /* block scales */
    PART_TENSOR_SCALE, /* NVFP4: weight_scale_2 */
    PART_INPUT_SCALE,  /* NVFP4: input_scale */
} output_part;

/* One tensor of the result. */
typedef struct plan_output {
    char *name;
    dtype type;
    int rank;
    int64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t bytes;
    output_part part;
} plan_output;

/* A matrix with its scales, or a tensor that is copied. */
typedef struct plan_entry {
    const char *module;    /* name without ".weight"; of another tensor: its whole name */
    matrix_class class;
    bool draft;            /* in the draft layer */
    matrix source;         /* format NULL: no matrix, `raw` is copied. In a plan of shapes: format and size of the result, no data */
    const tensor *raw;     /* the source's tensor; of a matrix: the one that holds its data (NULL in a plan of shapes) */
    const format *to;      /* of the result; NULL: no matrix */
    bool copied;           /* bytes are taken as they are */
    const char *why;       /* why it is not quantized; NULL: it is, or it is no matrix */
    float input_scale;     /* NVFP4 */
    int64_t partner;       /* NVFP4: entry with the same tensor scale (gate and up of one MLP), or PLAN_NO_PARTNER */
    float largest;         /* NVFP4: largest magnitude of it and its partner; < 0: not known yet */
    plan_output outputs[ENTRY_MOST_OUTPUTS];
    int output_count;
    uint64_t source_bytes, bytes; /* of all its tensors */
} plan_entry;

/* One file of the result: entries first .. first+count-1. */
typedef struct plan_shard {
    char *file; /* name without directory */
    size_t first, count;
    uint64_t bytes; /* of tensor data */
} plan_shard;

typedef struct plan {
    const model *source;        /* NULL: a plan of shapes */
    const model_config *config;
    recipe recipe;
    arena memory;
    plan_entry *entries;
    size_t count, capacity;
    plan_shard *shards;
    size_t shard_count;
    uint64_t source_bytes, bytes;   /* of tensor data, before and after */
    int dropped;                    /* input scales of the source that are not carried over */
    int format_count[FORMAT_COUNT]; /* matrices of the result by format */
    uint64_t format_bytes[FORMAT_COUNT];
} plan;

/* source must outlive the plan. Refuses a glob that matches no module. */
bool plan_create(const model *source, const recipe *r, uint64_t shard_bytes, plan *out, error *err);
/* Makes the bytes of a vector, a norm's weight or a bias: BF16, or F32 where it is a buffer. */
typedef void (*plan_vector_maker)(const void *context, const tensor *t, uint8_t *out);

/* The plan of a model that does not exist yet, in the order of the layers. config must outlive it. Vectors are made at once and lie in
 * the plan's memory; the largest of NVFP4 matrices is left to the caller. */
void plan_create_shapes(const model_config *config, const recipe *r, uint64_t shard_bytes, plan_vector_maker make, const void *context,
                        plan *out);
void plan_free(plan *p);

/* What will be done, for people: formats by class, the draft layer's policy, what is kept and why. */
void plan_describe(const plan *p, text *out);

#endif
