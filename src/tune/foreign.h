/* Tables of other tuners, for the shapes they share with ours: those of the routed experts.
 *
 *     aiter CSV    token,model_dim,inter_dim,expert,topk and others, as aiter/configs/{untuned,tuned}_fmoe.csv have them
 *     Triton JSON  E=..,N=..,device_name=..[,dtype=..][_down].json of vLLM and sglang: {"M": {tile sizes}, ...}
 *
 * What carries over is which shapes are used: tokens of a step, hidden width, expert width, number of experts. Their kernel names and
 * tile sizes mean nothing here, and ours nothing there. Their M counts the tokens of a step, our rows those of one expert: with T tokens
 * and K of E experts per token an expert has T*K/E rows, rounded up. */
#ifndef TUNE_FOREIGN_H
#define TUNE_FOREIGN_H

#include "base/error.h"
#include "base/text.h"
#include "device/dispatch.h"

typedef struct foreign_shape {
    int64_t tokens;          /* of a step */
    int64_t hidden;          /* 0: the format does not say */
    int64_t width;           /* of an expert, on one device */
    int64_t experts, topk;   /* topk 0: the format does not say */
    bool gate_up, down;      /* which of the two it is about */
    int line;                /* in the file; 0: not a text of lines */
} foreign_shape;

/* Zero-initialise; foreign_free in any case. */
typedef struct foreign_list {
    foreign_shape *shapes; /* [count] */
    int count, capacity;
    const char *kind;      /* "aiter", "triton" */
} foreign_list;

/* By the ending of the name: .csv or .json. */
bool foreign_read(const char *path, foreign_list *out, error *err);
bool foreign_parse_aiter(view bytes, const char *where, foreign_list *out, error *err);
bool foreign_parse_triton(view bytes, const char *path, foreign_list *out, error *err); /* the file's name says E and N */
void foreign_free(foreign_list *l);

/* Rows that an expert of this model has in such a step; 0 with a reason when the model does not have the shape. */
int foreign_rows(const foreign_shape *s, const model_config *m, text *reason);

/* Whether a key of the model's table is meant by a shape that foreign_rows accepted. */
bool foreign_means(const foreign_shape *s, int rows, const model_config *m, const dispatch_key *key);

/* The tuned part of a device's table that belongs to routed experts, in another tuner's form. notes: sentences about what the form cannot
 * say or what is left out, one per line. False when nothing is left. */
typedef enum foreign_format { FOREIGN_AITER, FOREIGN_TRITON } foreign_format;
bool foreign_export(foreign_format form, dispatch_table *t, const model *m, kv_dtype kv, text *out, text *notes, error *err);

#endif
