/* The chat format of GLM models, input side: a conversation in OpenAI's form becomes a prompt (docs/chat.md).
 *
 * There is no template interpreter. A model directory's template text is recognised by its SHA-256 and rendered by
 * C code that gives the bytes Jinja2 would. The prompt is a list of segments: control tokens, which only the format
 * itself writes, and text, which is encoded without looking for control tokens. So nothing that a user, a tool or a
 * past answer says can become a control token. */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "model/tokenizer.h"

/* Added tokens with a meaning in the format. */
typedef enum chat_control {
    CHAT_TEXT = -1, /* not a control token */
    CHAT_GMASK,
    CHAT_SOP,
    CHAT_END_OF_TEXT,
    CHAT_SYSTEM,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_OBSERVATION,
    CHAT_THINK,
    CHAT_THINK_END,
    CHAT_CALL,
    CHAT_CALL_END,
    CHAT_KEY,
    CHAT_KEY_END,
    CHAT_VALUE,
    CHAT_VALUE_END,
    CHAT_RESPONSE,
    CHAT_RESPONSE_END,
    CHAT_CONTROL_COUNT,
} chat_control;

const char *chat_control_text(chat_control c); /* "<think>", ... */

/* A format of the table in chat_format.c, with the ids that one tokenizer gives to its control tokens. */
typedef struct chat_format chat_format;

/* The format of a model directory: chat_template.jinja, or else "chat_template" in tokenizer_config.json, looked up by
 * its SHA-256. With forced_name the directory is not read. An unknown template is an error that gives its hash.
 * Every control token must be an added token of t. t is borrowed only during the call; NULL gives a format that can
 * render text but no tokens. */
chat_format *chat_format_load(const char *directory, const tokenizer *t, const char *forced_name, error *err);
void chat_format_free(chat_format *f);

const char *chat_format_name(const chat_format *f);                /* "glm-5.2", ... */
const char *chat_format_names(void);                               /* "glm-5.2, glm-5.3, ...", for help texts */
int32_t chat_format_id(const chat_format *f, chat_control c);      /* -1 without a tokenizer */
chat_control chat_format_control(const chat_format *f, int32_t id); /* CHAT_TEXT when id is not a control token */

/* A template variable that may be absent. */
typedef enum chat_switch { CHAT_UNSET = 0, CHAT_FALSE, CHAT_TRUE } chat_switch;

typedef struct chat_options {
    chat_switch enable_thinking;  /* unset and true: the answer begins with reasoning */
    chat_switch clear_thinking;   /* false: keep the reasoning of turns before the last user message */
    const char *reasoning_effort; /* NULL: unset. The format decides which values it knows */
    bool add_generation_prompt;   /* end with the beginning of the assistant's turn */
} chat_options;

/* A stretch of chat_prompt.text: one control token, or text between two of them. */
typedef struct chat_segment {
    chat_control control; /* CHAT_TEXT: text */
    int32_t id;           /* of the control token; -1 for text or without a tokenizer */
    size_t offset, bytes; /* in chat_prompt.text */
} chat_segment;

/* Zero-initialise to create one; chat_prompt_free releases it. */
typedef struct chat_prompt {
    text text;              /* what Jinja2 would give */
    chat_segment *segments; /* [segment_count], in order, covering text; no two text segments in a row */
    size_t segment_count, segment_capacity;
    bool in_thinking; /* the prompt ends inside <think>: the first output tokens are reasoning */
} chat_prompt;

/* Renders messages (an array) and tools (an array, or NULL) in OpenAI's form. On failure the error names the place,
 * such as messages[3].content[1].type, and the prompt is empty. Whatever a template would silently leave out is
 * refused. A used prompt is overwritten. */
bool chat_render(const chat_format *f, const json_t *messages, const json_t *tools, const chat_options *options,
                 chat_prompt *out, error *err);
void chat_prompt_free(chat_prompt *p);

/* Appends the tokens of a prompt; t is the tokenizer its format was loaded with. */
void chat_prompt_tokens(const chat_prompt *p, const tokenizer *t, token_list *out);

#endif
