/* One answer of the model: generated, shown while it comes, and kept. What run and chat share. */
#ifndef COMMANDS_ANSWER_H
#define COMMANDS_ANSWER_H

#include <stdio.h>

#include "commands/runner.h"
#include "commands/text_model.h"
#include "engine/generate.h"
#include "model/chat_output.h"

/* Where an answer is shown while it comes. */
typedef struct answer_screen {
    FILE *content, *reasoning; /* NULL: not shown */
    bool clean;                /* replace control characters: the stream is a terminal */
    bool dim;                  /* reasoning in dimmed letters */
    bool in_reasoning;         /* what was shown last */
    bool at_line_start;        /* of the content or reasoning stream */
} answer_screen;

typedef struct answer {
    text content, reasoning;
    json_t *calls;        /* array of {"name", "arguments"}; arguments are an object, or a string when they are cut */
    text arguments;       /* of the call that is coming in */
    token_list ids;
    const char *finish;   /* "stop", "tool_calls", "length" or "interrupted" */
    unsigned problems;    /* of chat_output.h */
    json_t *logprobs;     /* array, one object per token; NULL when not asked for */
    double prompt_s, answer_s; /* time */
} answer;

/* What is needed to answer; the parts are the caller's. */
typedef struct answerer {
    runner *runner;
    text_model *text;
    const json_t *tools; /* NULL: none */
    sampler_params params;
    int64_t max_tokens;  /* OPTION_NOT_GIVEN: what the context holds */
    generator generator;
    answer_screen screen;
} answerer;

/* Answers the prompt; Ctrl-C (commands/interrupt.h) stops it, which is no error. Zero out before; answer_free in any case. */
bool answer_prompt(answerer *a, const token_list *prompt, bool in_thinking, answer *out, error *err);

/* Continues plain text: special tokens of the answer are shown as text. */
bool answer_raw(answerer *a, const token_list *prompt, answer *out, error *err);

void answer_free(answer *a);

/* The answer as an assistant's message for the next prompt. */
json_t *answer_message(const answer *a);

/* Speed of the latest answer, to standard error with -v. */
void answer_log_speed(const answerer *a, const answer *out);

#endif
