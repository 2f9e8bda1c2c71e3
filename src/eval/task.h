/* The tasks that ask questions: one table row each says where its items come from, how an item becomes a prompt, and whether an
 * answer is right. Perplexity, divergence and the gate are not of this form (textscore.h, commands/eval_gate.c). */
#ifndef EVAL_TASK_H
#define EVAL_TASK_H

#include "eval/items.h"

enum { EVAL_FILES_MOST = 4 };

typedef enum eval_form { EVAL_FORM_AUTO, EVAL_FORM_CHAT, EVAL_FORM_PLAIN } eval_form;
typedef enum eval_method { EVAL_GENERATE, EVAL_LOGPROB } eval_method;

/* What decides prompts and answers. */
typedef struct eval_settings {
    eval_form form;      /* AUTO: chat without examples, plain with them */
    eval_method method;
    int shots;           /* worked examples before the question */
    int max_tokens;      /* of an answer */
    bool thinking;
    const char *effort;  /* NULL: the template's */
    double temperature, top_p;
    uint64_t seed;       /* of sampling, shuffling and made items */
    int seeds;           /* gpqa: orders of the choices */
    const int *lengths;  /* [length_count] needle: make items of these lengths instead of reading them */
    int length_count;
    int per_length;      /* how many of each */
} eval_settings;

/* A question as it is asked. */
typedef struct eval_prompt {
    json_t *messages;  /* chat: array; NULL: plain text */
    const json_t *tools; /* borrowed from the item; NULL: none */
    text plain;
    char hash[17];     /* of the above: the first 16 digits of a SHA-256 */
} eval_prompt;

/* What came back. */
typedef struct eval_reply {
    text content;         /* without the reasoning */
    json_t *calls;        /* array of {"name", "arguments"}; NULL: none */
    int64_t prompt_tokens, tokens; /* -1: not known */
    bool cut;             /* ended by the token limit */
} eval_reply;

void eval_prompt_free(eval_prompt *p);
void eval_reply_free(eval_reply *r);

typedef struct eval_task {
    const char *name, *what; /* what: for help and reports */
    const char *files[EVAL_FILES_MOST + 1]; /* in the model's eval folder; NULL behind the last */
    const char *examples;    /* for --shots, in the same folder; NULL: none */
    int max_tokens;          /* by default */
    bool chat_only;
    bool (*read)(const char *path, const eval_settings *s, eval_items *out, error *err);
    /* The question and, for an example, its worked answer (NULL: none wanted), as texts. */
    void (*question)(const json_t *item, bool plain, text *question, text *answer);
    /* The prompt, where it is not made of question and answer. */
    bool (*messages)(const json_t *item, eval_prompt *out);
    /* Whether the reply is right; `parsed` receives what was understood, empty for nothing. */
    bool (*score)(const json_t *item, const eval_reply *r, text *parsed);
    void (*expected)(const json_t *item, text *out);
} eval_task;

extern const eval_task eval_tasks[];
extern const int eval_task_count;
const eval_task *eval_task_find(const char *name); /* NULL when there is none */

/* Appends the items of the files; with several files each id begins with the name of its file. limit (0: none) keeps so many questions,
 * equally many of each file. */
bool eval_items_read(const eval_task *t, const eval_settings *s, const char *const *paths, size_t count, size_t limit, eval_items *out,
                     error *err);

bool eval_is_plain(const eval_task *t, const eval_settings *s);

/* shots: [settings->shots] examples. */
bool eval_prompt_make(const eval_task *t, const eval_settings *s, const eval_item *shots, const eval_item *item, eval_prompt *out,
                      error *err);

#endif
