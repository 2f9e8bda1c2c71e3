/* What a device does: the model's forward pass as a short list of coarse operations over a ragged batch of rows.
 *
 * A step is any mix of rows: one row is one token of one sequence at one position. Rows of a sequence come in
 * ascending positions and each row sees the cache up to its own position, keys written in this step included.
 *
 * The rule every device keeps (DESIGN, decision 4): what is computed for a row depends on that row and on the cache of
 * its sequence only, bit for bit: not on the other rows, their number, or the number of threads.
 *
 * Activations live in device memory; a device gives it out by `alloc`. On the CPU that is plain memory. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/dispatch.h"
#include "model/kv_layout.h"
#include "model/weights.h"

typedef struct step {
    int rows;
    const int32_t *tokens;           /* [rows] */
    const int32_t *positions;        /* [rows] */
    const int32_t *sequences;        /* [rows] index into page_tables */
    const int32_t *const *page_tables; /* [sequences][pages]: ids of the pages of a sequence, position / 64 apart */
    uint8_t *pages;                  /* the page pool in device memory: page i begins at i * layout.page_bytes */
    bool keep_keys;                  /* write latents and index keys to the pages (a draft step may only look) */
} step;

/* Every intermediate of one layer that another operation, a tap or a test looks at. */
typedef struct activations {
    float *rope;               /* [rows][rope_dim] cos and sin of each pair: c0 s0 c1 s1 ... */
    float *x;                  /* [rows][hidden] the residual stream */
    float *h;                  /* [rows][hidden] its norm, input of the attention or of the MLP */
    float *q_latent;           /* [rows][q_lora_rank] after its norm */
    float *q;                  /* [rows][heads][nope + rope], rope part rotated */
    float *latent;             /* [rows][kv_lora_rank + rope] as computed, before it is rounded into the page */
    float *index_q;            /* [rows][index_heads][index_dim] rotated */
    float *index_k;            /* [rows][index_dim] rotated, before it is rounded into the page */
    float *index_weights;      /* [rows][index_heads] scaled by index_heads^-0.5 */
    int32_t *selected;         /* [rows][index_topk] positions attended to, ascending */
    int32_t *selected_count;   /* [rows] */
    float *q_absorbed;         /* [rows][heads][kv_lora_rank] */
    float *attended_latent;    /* [rows][heads][kv_lora_rank] softmax-weighted sum of latents */
    float *attended;           /* [rows][heads][v_dim] */
    float *router_scores;      /* [rows][experts] sigmoid, without the correction bias */
    int32_t *router_experts;   /* [rows][experts_per_token] ascending ids */
    float *router_weights;     /* [rows][experts_per_token] */
    float *mlp_act;            /* silu(gate) * up. Dense: [rows][dense_intermediate]. Experts: one line of expert_intermediate per
                                  (row, expert) pair, sorted by expert, then by row; behind them [rows][shared width] */
    float *hidden;             /* [rows][hidden] after the final norm (trunk) or shared_head.norm (draft layer) */
    float *logits;             /* [logit rows][vocab] */
} activations;

/* One run of the tuner: work of one key on `rows` rows, as a step calls for it. */
typedef struct device_trial {
    const dispatch_work *works; /* [count] what a step computes at once: one, or some experts of a layer */
    int count, rows;
    const step *s;              /* of `rows` rows */
    activations *a;
    float *in, *out;            /* linear: [rows][k], [rows][n] */
} device_trial;

typedef struct device device;

/* Which operations a step is made of, in which order: what a device may record once and replay. */
typedef enum device_program {
    DEVICE_TRUNK,       /* forward_run */
    DEVICE_DRAFT,       /* a draft step that chooses its positions */
    DEVICE_DRAFT_SHARE, /* one that uses those in a->selected */
    DEVICE_LOOSE,       /* anything else: somebody looks between the operations */
} device_program;

typedef struct device_ops {
    const char *name;
    void *(*alloc)(device *d, size_t bytes);        /* zeroed; NULL on failure */
    void (*free)(device *d, void *memory);
    void (*read)(device *d, void *host, const void *memory, size_t bytes);  /* device to host, complete on return */
    void (*write)(device *d, void *memory, const void *host, size_t bytes); /* host to device */
    void (*copy)(device *d, void *to, const void *from, size_t bytes);      /* device to device */
    /* to[i] = from[rows[i]], i < count: rows of `bytes` each, a multiple of 4; rows: host memory. */
    void (*gather)(device *d, void *to, const void *from, int count, const int32_t *rows, size_t bytes);
    void *(*alloc_host)(device *d, size_t bytes); /* host memory that is fast to read to; NULL on failure */
    void (*free_host)(device *d, void *memory);
    void (*destroy)(device *d);
    size_t (*free_bytes)(device *d); /* of its memory; NULL: it has the machine's */

    /* Before the operations of a step, which all get the same s and a. True: the device has done the whole program already, and the
     * operations must be left out. hidden_in: that of draft_embed, NULL in the trunk. */
    bool (*begin)(device *d, const step *s, device_program program, const float *hidden_in, activations *a);
    void (*end)(device *d); /* after the last operation, where begin was false */

    /* rope and x of the rows' tokens. */
    void (*embed)(device *d, const step *s, activations *a);
    /* h = norm(x); q_latent, q, latent; latents go to the pages. layer == config.layers: the draft layer. */
    void (*attention_project)(device *d, const step *s, int layer, activations *a);
    /* index_q, index_k, index_weights from h and q_latent; keys go to the pages; selected: the index_topk best positions of each
     * row, all of them while there are no more. Equal scores: the lower position wins. */
    void (*index_select)(device *d, const step *s, int layer, activations *a);
    /* attended over the selected positions; x += o(attended). */
    void (*attend)(device *d, const step *s, int layer, activations *a);
    /* h = norm(x); x += mlp(h), dense or routed and shared experts. */
    void (*mlp)(device *d, const step *s, int layer, activations *a);
    /* hidden = norm(x): final norm, or the draft head's norm. */
    void (*finish)(device *d, const step *s, bool draft, activations *a);
    /* x = project([norm(embed(token)); norm(hidden_in)]) and rope, for the draft layer; hidden_in [rows][hidden]. */
    void (*draft_embed)(device *d, const step *s, const float *hidden_in, activations *a);
    /* logits[i] = lm_head(hidden[rows[i]]). */
    void (*logits)(device *d, const float *hidden, int count, const int32_t *rows, activations *a);
    /* Runs the kernels that the dispatch table has for the trial's key, through the same code as the operations above. */
    void (*exercise)(device *d, const device_trial *t);
} device_ops;

/* Each device begins with this. */
struct device {
    const device_ops *ops;
    const model *model;
    kv_layout layout;
    dispatch_table *dispatch; /* which kernel runs for what: complete when the device is created; the device owns it */
    char description[96]; /* for banners: "cpu, 2 threads, avx2 kernels" */
};

/* What a device is made for. */
typedef struct device_limits {
    kv_dtype kv;
    int threads;     /* CPU: workers, the caller included */
    int max_rows;    /* rows of one step */
    int max_context; /* positions of one sequence */
    bool exact;          /* f32 activations, summed as in the reference; else 4-bit weights meet 8-bit activations */
    const char *tuned;   /* directory where a tuned table of this device may be; NULL: none */
    const char *kernels; /* a level or a variant to be used wherever it exists; NULL: free choice */
} device_limits;

/* The CPU device, with the best kernel variant that this CPU runs. */
device *cpu_device_create(const model *m, const device_limits *limits, error *err);

/* The first GPU of this machine. Fails with a sentence where there is none, or where the program was built without GPU support. */
device *gpu_device_create(const model *m, const device_limits *limits, error *err);

#endif
