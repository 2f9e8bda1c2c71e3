/* Questions answered by a model in this process: prompts to tokens, tokens to replies. */
#ifndef EVAL_LOCAL_H
#define EVAL_LOCAL_H

#include "engine/bulk.h"
#include "engine/session.h"
#include "eval/task.h"
#include "model/chat.h"

/* A model ready to compute; all parts are the caller's. */
typedef struct eval_model {
    session *session;
    bulk *bulk;
    const tokenizer *tokenizer;
    const chat_format *format;
    const volatile sig_atomic_t *stop; /* non-zero: end with ERROR_INTERRUPTED */
} eval_model;

/* A question as tokens. */
typedef struct eval_question {
    token_list tokens;
    const json_t *tools; /* borrowed; NULL: none */
    bool plain;          /* plain text: the answer ends where the next "Question:" begins */
    bool in_thinking;    /* the prompt ends inside the reasoning */
} eval_question;

/* Renders and encodes a prompt. For EVAL_LOGPROB the reasoning is off and a chat prompt ends with "Answer:". */
bool eval_question_make(const tokenizer *t, const chat_format *f, const eval_settings *s, const eval_prompt *p,
                        eval_question *out, error *err);
void eval_question_free(eval_question *q);

/* Called once for each question that is answered, in any order. The reply is the callee's to free. */
typedef void (*eval_replied)(void *context, size_t index, eval_reply *r);

/* Answers questions[which[0 .. count-1]]. */
bool eval_answer_all(eval_model *m, const eval_settings *s, const eval_question *questions, const size_t *which, size_t count,
                     eval_replied done, void *context, error *err);

/* The same by likelihood: the reply is "Answer: X" for the likeliest letter; choices[i] is how many question i has. */
bool eval_choose_all(eval_model *m, const eval_question *questions, const int *choices, const size_t *which, size_t count,
                     eval_replied done, void *context, error *err);

/* The reply that answer tokens mean; cut: they were ended by the token limit. */
void eval_reply_parse(const eval_model *m, const eval_question *q, const token_list *answer, bool cut, eval_reply *out);

#endif
