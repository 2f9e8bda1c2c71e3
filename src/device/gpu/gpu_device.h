/* The GPU device, inside. Operations are in gpu_ops.c, steps and graphs in gpu_step.c, the dispatch table in gpu_dispatch.c; kernels know
 * nothing of all this (gpu_kernels.h).
 *
 * All work goes through one stream. A step's tokens, positions and page tables are copied to the GPU once, by begin; a program that
 * has run before with a row count of the same bucket is one graph launch. */
#ifndef DEVICE_GPU_GPU_DEVICE_H
#define DEVICE_GPU_GPU_DEVICE_H

#include "device/device.h"
#include "device/gpu/gpu_kernels.h"
#include "device/gpu/gpu_weights.h"

enum { GPU_STAGINGS = 4, GPU_GRAPHS = 160 };

typedef struct gpu_device gpu_device;

/* How the operations of the dispatch table are computed; a variant points to one of these, of which it means the members of its own
 * operation. They launch on g->stream, for the rows of g->rows unless told otherwise, and have g's scratch memory. */
typedef struct gpu_kernels {
    void (*linear)(gpu_device *g, const gpu_linear_args *a, int rows);   /* linear, value */
    void (*mlp)(gpu_device *g, const gpu_mlp_args *a);                   /* experts: one MLP for all rows, to a->out */
    void (*experts)(gpu_device *g, int layer, activations *a);           /* experts: x += those that the router chose, and the shared one */
    void (*absorb)(gpu_device *g, const gpu_absorb_args *a);
    void (*attend)(gpu_device *g, const gpu_attend_args *a);
    void (*index)(gpu_device *g, const gpu_index_score_args *scores, const gpu_select_args *select); /* of scores->score_rows rows */
} gpu_kernels;

/* Pinned memory through which a step goes to the GPU, with the event that says when it is free again. */
typedef struct gpu_staging {
    uint8_t *memory;
    gpu_event sent;
} gpu_staging;

/* A recorded program. */
typedef struct gpu_recording {
    device_program program;
    int rows;               /* of the bucket */
    const float *hidden_in;
    const float *x;         /* names the activations */
    gpu_graph graph;        /* NULL: it has run once, and will be recorded the second time */
    uint64_t used;          /* when, in launches; the one that was not used for longest makes place */
} gpu_recording;

struct gpu_device {
    device base;
    bool exact;
    dispatch_table dispatch;
    gpu_properties properties;
    gpu_weights weights;
    gpu_stream stream;
    int max_rows, max_context;

    gpu_step *step;          /* device memory; arrays and tables behind it */
    size_t step_bytes;       /* of it, and of each staging */
    gpu_staging staging[GPU_STAGINGS];
    int turn;
    int rows;                /* of the running step's bucket: what launches are sized for */
    int32_t *sequence_pages; /* [most_sequences] host memory: pages of each sequence of a step */
    int most_sequences;
    gpu_recording *open;     /* the recording that end will close; NULL: none */
    gpu_recording recordings[GPU_GRAPHS];
    int recording_count;
    uint64_t launches;

    int32_t *row_list;       /* device memory: count, then some rows [max_rows], for logits and gather */
    float *frequency;        /* [rope_dim / 2] */
    float *draft_input;      /* [max_rows][2 * hidden] rows of [embedding; hidden] */
    float *index_scores;     /* [score_rows][max_context] */
    int score_rows;          /* rows scored at once */
    int32_t *pair_rows, *slots; /* [pairs] */
    gpu_tile *tiles;         /* [pairs] */
    int32_t *tile_count, *expert_counts; /* [1], [experts] */
    float *pair_out;         /* [pairs][hidden] results of the experts */
    float *shared_out;       /* [max_rows][hidden] */
    void *scratch[12];       /* the above, to free them */
    int scratch_count;
};

static inline gpu_device *gpu_of(device *d)
{
    return (gpu_device *)d;
}

/* Ends the program when a status is not GPU_OK: a GPU that failed in the middle of a step has lost the state of every request. */
void gpu_must(gpu_status s, const char *what);

/* gpu_dispatch.c */
bool gpu_dispatch_create(gpu_device *g, const device_limits *limits, error *err);
void gpu_exercise(device *d, const device_trial *t);

/* gpu_step.c */
bool gpu_step_create(gpu_device *g, error *err);
void gpu_step_destroy(gpu_device *g);
bool gpu_begin(device *d, const step *s, device_program program, const float *hidden_in, activations *a);
void gpu_end(device *d);
void gpu_send_list(gpu_device *g, int count, const int32_t *rows); /* to g->row_list */
int gpu_bucket_rows(const gpu_device *g, int rows);

/* gpu_ops.c */
void gpu_op_embed(device *d, const step *s, activations *a);
void gpu_op_draft_embed(device *d, const step *s, const float *hidden_in, activations *a);
void gpu_op_attention_project(device *d, const step *s, int layer, activations *a);
void gpu_op_index_select(device *d, const step *s, int layer, activations *a);
void gpu_op_attend(device *d, const step *s, int layer, activations *a);
void gpu_op_mlp(device *d, const step *s, int layer, activations *a);
void gpu_op_finish(device *d, const step *s, bool draft, activations *a);
void gpu_op_logits(device *d, const float *hidden, int count, const int32_t *rows, activations *a);

/* The generic variant of each; one projection, for the tuner; the weights of a layer in the checkpoint. */
extern const gpu_kernels gpu_generic;
const layer_weights *gpu_host_layer(const gpu_device *g, int layer);
void gpu_project(gpu_device *g, const gpu_matrix *w, const float *in, float *out, bool add);

#endif
