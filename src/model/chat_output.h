/* The chat format of GLM models, output side: tokens in, events out (docs/chat.md).
 *
 *     chat_output *o = chat_output_new(format, tokenizer, tools, prompt.in_thinking);
 *     for each token:  chat_output_add(o, id);
 *                      while (chat_output_next(o, &event)) ...
 *     at the end:      chat_output_end(o);
 *                      while (chat_output_next(o, &event)) ...
 *
 * Only control tokens structure the output; text that merely looks like one stays text. Events carry whole UTF-8
 * characters only. The concatenated events depend on the tokens alone. */
#ifndef MODEL_CHAT_OUTPUT_H
#define MODEL_CHAT_OUTPUT_H

#include "model/chat.h"

typedef enum chat_event_kind {
    CHAT_EVENT_REASONING,      /* text: the next piece of the reasoning */
    CHAT_EVENT_CONTENT,        /* text: the next piece of the answer */
    CHAT_EVENT_CALL_BEGIN,     /* call, text: the name of the function, complete */
    CHAT_EVENT_CALL_ARGUMENTS, /* call, text: the next piece of the arguments, a JSON object as text */
    CHAT_EVENT_CALL_END,       /* call, complete */
    CHAT_EVENT_FINISH,         /* finish; the last event, exactly once */
} chat_event_kind;

typedef enum chat_finish {
    CHAT_FINISH_STOP,  /* the model ended its turn */
    CHAT_FINISH_CALLS, /* the model ended its turn, and at least one call is complete */
    CHAT_FINISH_CUT,   /* chat_output_end came first: token limit, stop string, cancellation */
} chat_finish;

/* What was irregular in a call or in the whole output: bits for metrics and logs. */
enum {
    CHAT_PROBLEM_NAMELESS_CALL = 1,  /* a call without a name: not reported as a call */
    CHAT_PROBLEM_UNKNOWN_TOOL = 2,   /* a name that is not among the tools: reported all the same */
    CHAT_PROBLEM_DUPLICATE_KEY = 4,  /* an argument given twice: the first one counts */
    CHAT_PROBLEM_STRAY = 8,          /* text or control tokens where the format has none: left out */
    CHAT_PROBLEM_UNCLOSED = 16,      /* </arg_value> or </tool_call> is missing */
    CHAT_PROBLEM_TYPE = 32,          /* a value that does not have a type its schema allows */
};

typedef struct chat_event {
    chat_event_kind kind;
    int call;           /* index of the call, from 0 */
    view text;          /* valid until the next chat_output_add or chat_output_end */
    bool complete;      /* CALL_END: the arguments are a whole JSON object; otherwise the call must not be executed */
    chat_finish finish; /* FINISH */
    unsigned problems;  /* CALL_END: of this call; FINISH: of the whole output */
} chat_event;

typedef struct chat_output chat_output;

/* f (loaded with t) and t must outlive the parser. tools as for chat_render, or NULL; a reference is kept. */
chat_output *chat_output_new(const chat_format *f, const tokenizer *t, const json_t *tools, bool in_thinking);
void chat_output_free(chat_output *o);

/* Returns false once the output has finished: an end-of-turn token came (now or before). */
bool chat_output_add(chat_output *o, int32_t id);

/* No more tokens come. Nothing happens when the output has finished already. */
void chat_output_end(chat_output *o);

/* Takes the oldest event. */
bool chat_output_next(chat_output *o, chat_event *event);

#endif
