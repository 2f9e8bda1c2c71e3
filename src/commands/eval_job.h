/* What the parts of the eval command share: its options, an open model, and a set of questions. Internal to src/commands/eval*.c. */
#ifndef COMMANDS_EVAL_JOB_H
#define COMMANDS_EVAL_JOB_H

#include "commands/runner.h"
#include "commands/text_model.h"
#include "eval/local.h"
#include "eval/result.h"

typedef struct eval_values {
    runner_values runner;
    int task, form, method;
    option_list data;
    int64_t limit, shots, max_tokens, seed, seeds, per_length, batch, window, drafts;
    const char *shots_file, *effort, *format, *lengths;
    const char *against, *compare, *out, *importance, *url, *served_model, *api_key_file;
    double temperature, top_p;
    double min_needle, min_choice, max_kl, min_agreement, min_tokens; /* of the gate */
    bool thinking, json, against_exact;
} eval_values;

/* A model with its text side, ready to answer and to score. Zero before; eval_engine_close in any case. */
typedef struct eval_engine {
    runner runner;
    text_model text;
    bulk *bulk;
    eval_model model; /* what src/eval works with */
} eval_engine;

/* Whether there is a baseline, --against or --against-exact, and how it is computed. */
bool eval_has_baseline(const eval_values *v);
runner_values eval_baseline(const eval_values *v);

bool eval_engine_text(const runner_values *v, const char *format_name, eval_engine *e, error *err); /* first: tokenizer, chat format */
bool eval_engine_start(const runner_values *v, int64_t context, int batch, eval_engine *e,
                       error *err); /* then: weights, `context` tokens */
void eval_engine_close(eval_engine *e);

/* {"directory", "config", "bytes"}: what is compared when a run goes on. */
json_t *eval_model_identity(const runner_values *v, error *err);
const char *eval_model_label(const runner_values *v); /* for people: the directory, or "nano (built in)" */

/* Finds a file in the model's eval folder, or else in the built-in model's. The path is appended to out. */
bool eval_find_file(const runner_values *v, const char *name, text *out, error *err);

/* The files of a task as an array of texts: --data, or what eval_find_file finds. */
typedef struct eval_paths {
    text paths[64];
    const char *list[64];
    size_t count;
} eval_paths;

bool eval_paths_find(const eval_values *v, const char *const *names, eval_paths *out, error *err);
void eval_paths_free(eval_paths *p);

/* The questions of a task with everything that is known before a model is opened. Zero before; eval_set_free in any case. */
typedef struct eval_set {
    const eval_task *task;
    eval_settings settings;
    int lengths[16];        /* settings.lengths points here */
    eval_items items, shots;
    eval_prompt *prompts;   /* [items.count] */
    eval_question *questions; /* [items.count]; NULL when asked over a URL */
} eval_set;

bool eval_set_prepare(const eval_values *v, const eval_task *task, const tokenizer *t, eval_set *s, error *err);
bool eval_set_encode(eval_set *s, const text_model *text, error *err);
int64_t eval_set_context(const eval_set *s); /* tokens the longest question and its answer take */
void eval_set_free(eval_set *s);

/* What identifies a run besides the model. */
json_t *eval_set_options(const eval_values *v, const eval_set *s);

/* Asks what is not answered yet. out_path NULL: nothing is kept. The document is a new reference; it is given even when interrupted. */
bool eval_set_run(const eval_values *v, eval_set *s, eval_engine *e, json_t *identity, const char *label, const char *out_path,
                  json_t **document, error *err);
bool eval_set_run_url(const eval_values *v, eval_set *s, const char *out_path, json_t **document, error *err);

/* The tasks over a text; documents as above. */
bool eval_text_perplexity(const eval_values *v, const runner_values *tested, const char *out_path, json_t **document, error *err);
bool eval_text_divergence(const eval_values *v, const char *out_path, json_t **document, error *err);
/* --importance-out */
bool eval_text_importance(const eval_values *v, error *err);

/* The gate: prints its table (or JSON); false with an error that names the parts that failed. */
bool eval_gate_run(const eval_values *v, error *err);

#endif
