/* The model's forward pass, written once in terms of device operations (DESIGN, decision 3): glm.c is the trunk, mtp.c the draft
 * head. A `forward` owns the activations of one step; it is used by one thread. */
#ifndef FORWARD_FORWARD_H
#define FORWARD_FORWARD_H

#include "device/device.h"

/* Looks at an intermediate: rows x columns of f32 or i32 values in host memory, valid during the call. Per-layer taps are called
 * once per layer and step; the draft layer has number config.layers. layer is -1 for taps outside the layers. */
typedef struct tap_value {
    const char *name;
    int layer;
    bool integers;     /* i32 instead of f32 */
    int rows, columns;
    const void *data;  /* [rows][columns] */
} tap_value;

typedef void (*tap_function)(void *context, const tap_value *value);

/* What can be tapped, for --tap and its help. */
typedef struct tap_description {
    const char *name, *shape, *what;
    bool per_layer;
} tap_description;

const tap_description *tap_descriptions(int *count);

typedef struct forward {
    device *device;
    const model *model;
    int max_rows, max_logit_rows;
    activations a;
    float *draft_hidden;          /* [max_rows][hidden] hidden state of each draft chain */
    int32_t *draft_selected;      /* [max_rows][index_topk] list its next steps reuse */
    int32_t *draft_selected_count; /* [max_rows] */
    float *host_logits;           /* [max_logit_rows][vocab] */
    tap_function tap;             /* NULL: none */
    void *tap_context;
} forward;

/* The device's limits.max_rows must be at least max_rows. */
forward *forward_create(device *d, int max_rows, int max_logit_rows, error *err);
void forward_destroy(forward *f);

/* Runs the trunk over a step (1 .. max_rows rows); keys are kept in the pages, hidden states in f->a.hidden. */
void forward_run(forward *f, const step *s);

/* Logits of some rows of the latest forward_run or draft step, [count][vocab] in host memory until the next call;
 * count <= max_logit_rows. */
const float *forward_logits(forward *f, int count, const int32_t *rows);

/* The draft head (spec 3). For a row at position p the token is that of position p + 1 and the hidden state that of position p;
 * the logits predict position p + 2.
 *
 * forward_draft_extend runs over verified rows with the trunk's hidden states ([rows][hidden], device memory) and fills the draft layer's
 * part of the pages. forward_draft_follow does the same for some rows of the latest forward_run: row i of s continues row rows[i] of
 * that step. forward_draft_begin then picks the rows whose chains go on, and each forward_draft_next appends one draft step
 * to every chain: tokens are the drafts just chosen, positions one further. */
void forward_draft_extend(forward *f, const step *s, const float *hidden);
void forward_draft_follow(forward *f, const step *s, const int32_t *rows);
void forward_draft_begin(forward *f, int count, const int32_t *rows);
void forward_draft_next(forward *f, const step *s);

#endif
