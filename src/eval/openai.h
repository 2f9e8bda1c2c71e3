/* The part of OpenAI's HTTP API that an evaluation needs: requests for answers, and what comes back. */
#ifndef EVAL_OPENAI_H
#define EVAL_OPENAI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "model/chat.h"

#define OPENAI_CHAT_PATH "/v1/chat/completions"
#define OPENAI_COMPLETION_PATH "/v1/completions"
#define OPENAI_MODELS_PATH "/v1/models"

/* One request. A chat has messages; a plain completion has a prompt. */
typedef struct openai_query {
    const char *model;
    const json_t *messages;      /* array in OpenAI's form; NULL: a plain completion */
    const char *prompt;          /* of a plain completion, else NULL */
    const json_t *tools;         /* array, or NULL */
    double temperature;          /* negative: the server's */
    double top_p;                /* 0: the server's */
    int max_tokens;              /* 0: the server's */
    int64_t seed;                /* negative: none */
    const char *const *stop;     /* [stop_count] texts that end the answer */
    int stop_count;
    chat_switch enable_thinking; /* set: sent in chat_template_kwargs, which sglang and vLLM read */
    const char *reasoning_effort; /* NULL: not sent */
} openai_query;

/* Writes the JSON body over `out`. Fails when a text is not UTF-8. */
bool openai_query_body(const openai_query *q, text *out, error *err);

typedef enum openai_finish { OPENAI_FINISH_STOP, OPENAI_FINISH_LENGTH, OPENAI_FINISH_CALLS, OPENAI_FINISH_OTHER } openai_finish;

/* Zero-initialise to create one; openai_answer_free releases it. */
typedef struct openai_answer {
    text content;             /* the answer, "" where the server sent null */
    text reasoning;           /* reasoning_content, or reasoning where a server names it so */
    json_t *calls;            /* array of {"name": string, "arguments": object}; arguments are null when the server's text of
                                 them is not a JSON object: the call counts as made, and as wrong */
    openai_finish finish;
    int64_t prompt_tokens, completion_tokens; /* -1: not told */
} openai_answer;

/* Reads the body of a response with status 200, of a chat or of a plain completion: the first choice. */
bool openai_answer_parse(const char *bytes, size_t count, openai_answer *out, error *err);
void openai_answer_free(openai_answer *a);

/* The first model's name from the body of GET /v1/models, for a user who named none. */
bool openai_models_parse(const char *bytes, size_t count, text *name, error *err);

#endif
