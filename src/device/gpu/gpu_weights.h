/* The model's weights in GPU memory: the checkpoint's own codes in one allocation, rows aligned for wide loads (gpu_kernels.h). Uploaded
 * once, when the device is created. */
#ifndef DEVICE_GPU_GPU_WEIGHTS_H
#define DEVICE_GPU_GPU_WEIGHTS_H

#include "device/gpu/gpu_kernels.h"
#include "model/weights.h"

/* As layer_weights; all pointers are device memory. */
typedef struct gpu_layer {
    const float *input_norm, *post_attention_norm, *q_a_norm, *kv_a_norm;
    gpu_matrix q_a, q_b, kv_a, kv_b, o;
    gpu_matrix index_q_b, index_k, index_weights;  /* full layers */
    const float *index_k_norm, *index_k_norm_bias;
    gpu_matrix router;                             /* sparse layers */
    const float *router_bias;
    const gpu_mlp *mlp, *shared;                   /* one each; NULL: none */
    const gpu_mlp *experts;                        /* [experts] */
} gpu_layer;

typedef struct gpu_weights {
    uint8_t *memory;       /* holds all of it */
    size_t bytes;
    gpu_matrix embed, lm_head, project;
    const float *final_norm, *embed_norm, *hidden_norm, *head_norm;
    gpu_layer *layers;     /* host memory: [config.layers], the draft layer behind them where there is one */
} gpu_weights;

/* free_bytes: what the GPU has left. Progress is shown. */
bool gpu_weights_upload(const model *m, size_t free_bytes, gpu_stream s, gpu_weights *out, error *err);
void gpu_weights_free(gpu_weights *w);

#endif
