/* A model ready to compute: what logits, run and chat share, with the options that choose how. */
#ifndef COMMANDS_RUNNER_H
#define COMMANDS_RUNNER_H

#include "base/options.h"
#include "engine/session.h"

typedef struct runner_values {
    const char *argument, *model; /* MODEL and --model: one of them, or neither */
    int64_t threads, chunk;       /* OPTION_NOT_GIVEN: as many as cores; RUNNER_CHUNK */
    int64_t context;              /* OPTION_NOT_GIVEN: what the model allows; only in RUNNER_CONTEXT_ROW */
    int device;                   /* index into runner_device_choices */
    int kv;                       /* index into runner_kv_choices */
    bool exact;
    double latent_eps;            /* NaN: not given */
    const char *tuned, *kernels;  /* NULL: where tables are; free choice */
    bool require_tuned;
} runner_values;

enum { RUNNER_CPU, RUNNER_CUDA }; /* runner_device_choices */
enum { RUNNER_CHUNK = 256, RUNNER_MAX_CHUNK = 4096, RUNNER_MAX_THREADS = 1024 };

extern const char *const runner_device_choices[]; /* "cpu", "cuda" */
extern const char *const runner_kv_choices[]; /* "auto", then the names of kv_dtype in its order */

/* Rows for the table of a command whose struct has a field `runner`. */
#define RUNNER_OFFSET(values, field) (offsetof(values, runner) + offsetof(runner_values, field))
#define RUNNER_MODEL_ROWS(values) \
    {.name = "MODEL", .type = OPTION_DIRECTORY, .positional = true, .offset = RUNNER_OFFSET(values, argument), \
     .help = "The model's directory. Without it, the built-in model is used."}, \
    {.name = "model", .letter = 'm', .type = OPTION_DIRECTORY, .metavar = "DIR", .offset = RUNNER_OFFSET(values, model), \
     .unset = "the built-in model", .help = "The same as MODEL."}
#define RUNNER_DEVICE_ROW(values) \
    {.name = "device", .type = OPTION_CHOICE, .choices = runner_device_choices, .by_default = "cpu", .group = "Computation", \
     .offset = RUNNER_OFFSET(values, device), .help = "What computes: this machine's processor, or its first NVIDIA GPU."}
#define RUNNER_DEVICE_ROWS(values) \
    RUNNER_DEVICE_ROW(values), \
    {.name = "threads", .letter = 't', .type = OPTION_INT, .metavar = "N", .least = 1, .most = RUNNER_MAX_THREADS, \
     .unset = "all cores", .group = "Computation", .offset = RUNNER_OFFSET(values, threads), \
     .help = "Threads that compute. The result does not depend on it."}, \
    {.name = "chunk", .type = OPTION_INT, .metavar = "N", .least = 1, .most = RUNNER_MAX_CHUNK, .unset = "256", .group = "Computation", \
     .offset = RUNNER_OFFSET(values, chunk), .help = "Tokens of a prompt computed at once. The result does not depend on it."}, \
    {.name = "kv-dtype", .type = OPTION_CHOICE, .choices = runner_kv_choices, .by_default = "auto", .group = "Computation", \
     .offset = RUNNER_OFFSET(values, kv), \
     .help = "Number format of the cache. auto is bf16, and f32 with --exact."}
#define RUNNER_ROWS(values) \
    RUNNER_DEVICE_ROWS(values), \
    {.name = "exact", .type = OPTION_FLAG, .group = "Computation", .offset = RUNNER_OFFSET(values, exact), \
     .help = "Compute as HF transformers does in float32: activations and cache in f32, latent norms with eps 1e-6."}, \
    {.name = "latent-eps", .type = OPTION_NUMBER, .metavar = "X", .least = 1e-12, .most = 0.1, .unset = "rms_norm_eps of config.json", \
     .group = "Computation", .offset = RUNNER_OFFSET(values, latent_eps), \
     .help = "The eps of the latent norms inside the attention (q_a, kv_a). HF transformers takes 1e-6 whatever config.json says, " \
             "deployments take rms_norm_eps."}, \
    RUNNER_KERNEL_ROWS(values), \
    {.name = "require-tuned", .type = OPTION_FLAG, .group = "Kernels", .offset = RUNNER_OFFSET(values, require_tuned), \
     .help = "Refuse to start when the tuned table lacks a shape of this model. drawbridge tune measures them."}
#define RUNNER_KERNEL_ROWS(values) \
    {.name = "tuned", .type = OPTION_DIRECTORY, .metavar = "DIR", .unset = "tuned beside the built-in models", .group = "Kernels", \
     .offset = RUNNER_OFFSET(values, tuned), .help = "Where the tables of tuned kernels are."}, \
    {.name = "kernels", .type = OPTION_TEXT, .metavar = "NAME", .unset = "free choice", .group = "Kernels", \
     .offset = RUNNER_OFFSET(values, kernels), \
     .help = "Use kernels of this level (generic, avx2, avx512vnni, neon) or of this name wherever there are any, for tests. Tuned " \
             "tables are then not read. The result does not depend on it."}

#define RUNNER_CONTEXT_ROW(values) \
    {.name = "context", .letter = 'c', .type = OPTION_INT, .metavar = "N", .least = 2, .most = 1 << 24, .unset = "what the model allows", \
     .group = "Computation", .offset = RUNNER_OFFSET(values, context), .help = "Room for prompt and answer together, in tokens."}

typedef struct runner {
    model *model;     /* set by runner_open_model; the rest by runner_start */
    device *device;
    forward *forward;
    kv_pages *pages;  /* for one sequence of max_tokens */
    session *session;
    int chunk;        /* tokens of a prompt per step */
} runner;

/* Opens the weights, without anything to compute with. Disagreements with config.json are reported. Zero r before;
 * runner_close in any case. */
bool runner_open_model(const runner_values *v, runner *r, error *err);

/* Makes device and forward: steps of up to `rows` rows over sequences of up to max_tokens, up to logit_rows logits at once. */
bool runner_start_forward(const runner_values *v, int64_t max_tokens, int rows, int logit_rows, runner *r, error *err);

/* As above with rows from --chunk, and makes r->session for one sequence of up to max_tokens. */
bool runner_start(const runner_values *v, int64_t max_tokens, int logit_rows, runner *r, error *err);
void runner_close(runner *r);
int runner_chunk(const runner_values *v); /* --chunk, or RUNNER_CHUNK */

/* Tokens a session needs: --context, or what the model allows, but no more than a prompt and its answer take. Answer
 * OPTION_NOT_GIVEN: as long as there is room. */
int64_t runner_context(const runner_values *v, const runner *r, int64_t prompt, int64_t answer);

/* The device alone, with the kernels that the options ask for. NULL with err set on failure. */
device *runner_create_device(const runner_values *v, const model *m, int64_t max_tokens, int rows, error *err);

/* Reports the kernels of a device (dispatch_report.h) that was made with these options for steps of up to `rows` rows. */
bool runner_check_kernels(const runner_values *v, const device *d, int rows, bool require, error *err);

/* The directory that argument or --model names, or NULL. */
const char *runner_model_name(const runner_values *v);

#endif
