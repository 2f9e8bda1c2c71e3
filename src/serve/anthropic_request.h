/* Anthropic's Messages API, input side: the JSON of a request becomes a conversation in OpenAI's form (for chat_render) and typed
 * parameters. Nothing here knows the server: see anthropic.c. docs/api_anthropic.md has every field.
 *
 * A field either has its effect or is refused by its name; errors begin with the place, as in messages[2].content[0].type. */
#ifndef SERVE_ANTHROPIC_REQUEST_H
#define SERVE_ANTHROPIC_REQUEST_H

#include <jansson.h>

#include "model/chat.h"

enum { ANTHROPIC_THINKING_LEAST = 1024, ANTHROPIC_TOOLS_MOST = 1024, ANTHROPIC_TOOL_NAME_MOST = 128 };

typedef enum anthropic_thinking {
    ANTHROPIC_THINKING_UNSET, /* nothing said: off, where the chat format can be without */
    ANTHROPIC_THINKING_OFF,
    ANTHROPIC_THINKING_ON,
} anthropic_thinking;

/* A request that was read. Strings and `stops` are borrowed from its JSON. */
typedef struct anthropic_request {
    const char *model;
    json_t *messages;           /* owned; OpenAI's form */
    json_t *tools;              /* owned; OpenAI's form; NULL: none */
    int max_tokens;             /* 0: not given (count_tokens) */
    bool stream;
    double temperature, top_p;  /* NAN: not given */
    int top_k;                  /* -1: not given */
    const json_t *stops;        /* array of strings; NULL: none */
    anthropic_thinking thinking;
    bool hides_thinking;        /* thinking.display "omitted": the block comes without its text */
    int budget;                 /* thinking.budget_tokens; 0: not given */
    const char *effort;         /* output_config.effort; NULL: not given */
    chat_switch clear_thinking; /* of context_management */
    bool forced;                /* tool_choice any or tool */
    const char *forced_name;    /* tool_choice tool; NULL: any */
    bool calls_off;             /* tool_choice none */
    bool one_call;              /* at most one call */
    bool prefill;               /* the last message is the assistant's: the answer continues it */
} anthropic_request;

/* Reads the body of /v1/messages, or with `counting` of /v1/messages/count_tokens. anthropic_request_free in any case. */
bool anthropic_request_read(const json_t *body, bool counting, anthropic_request *out, error *err);
void anthropic_request_free(anthropic_request *r);

/* Turns "messages" and "system" (NULL: none) into messages in OpenAI's form. *prefill: the last one is the assistant's. */
json_t *anthropic_messages_convert(const json_t *messages, const json_t *system, bool *prefill, error *err);

/* The prompt as tokens. Zero-initialise; anthropic_prompt_free releases it. */
typedef struct anthropic_prompt {
    token_list tokens;   /* everything the model is given */
    token_list forced;   /* the end of tokens that is the beginning of the answer: a forced call */
    bool in_thinking;    /* without `forced` the prompt ends inside <think> */
    bool in_content;     /* the prompt ends inside content (prefill) */
} anthropic_prompt;

bool anthropic_prompt_make(const anthropic_request *r, const chat_format *f, const tokenizer *t, anthropic_prompt *out, error *err);
void anthropic_prompt_free(anthropic_prompt *p);

/* ---- shared by the files of this API ---- */

/* Whether the object has only keys of `allowed` (ended by NULL); the error names the key, below `path`. */
bool anthropic_keys_check(const json_t *object, const char *path, const char *const *allowed, error *err);

/* cache_control: null or {"type": "ephemeral", "ttl": "5m" or "1h", "scope"}. The prefix cache needs no marks; this checks the form. */
bool anthropic_cache_check(const json_t *holder, const char *path, error *err);

#endif
