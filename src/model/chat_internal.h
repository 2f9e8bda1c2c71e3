/* Shared by the files of the chat format: what a format does, and a conversation after checking. */
#ifndef MODEL_CHAT_INTERNAL_H
#define MODEL_CHAT_INTERNAL_H

#include "base/memory.h"
#include "model/chat.h"

/* What distinguishes the formats; every difference the renderer knows is a field. */
typedef struct chat_rules {
    const char *name;
    const char *efforts[3];  /* values of reasoning_effort with a line of their own; any other value is "max". None: no
                                effort line */
    bool always_thinks;      /* effort line and open <think> whatever enable_thinking says */
    bool whole_tools;        /* tools are printed with their {"type", "function"} wrapper */
    bool filtered_tools;     /* "strict" and "defer_loading" keys and deferred tools are not printed */
    bool keeps_reasoning;    /* clear_thinking, when unset, is false */
    bool obeys_clearing;     /* reads clear_thinking at all */
    bool splits_reasoning;   /* <think>...</think> in an assistant's content is its reasoning */
    bool strips_content;     /* the assistant's content loses white space at its ends */
    bool strips_reasoning;   /* so does its reasoning; empty reasoning is none */
    bool bare_think_end;     /* no reasoning is "</think>" instead of "<think></think>" */
    bool reminds_of_media;   /* image, video and audio parts become a sentence instead of an error */
    bool response_lists;     /* tool content may be a list of {"output"}: one response each */
    bool response_per_item;  /* such a list, or one of strings, opens its own <|observation|> */
    bool tool_references;    /* tool content may be a list of {"type": "tool_reference", "name"} */
} chat_rules;

struct chat_format {
    chat_rules rules;
    int32_t ids[CHAT_CONTROL_COUNT]; /* -1 without a tokenizer */
};

typedef enum chat_role { CHAT_ROLE_SYSTEM, CHAT_ROLE_USER, CHAT_ROLE_ASSISTANT, CHAT_ROLE_TOOL } chat_role;

typedef struct chat_call {
    view name;
    const json_t *arguments; /* an object */
} chat_call;

/* A checked message. Views point into the messages or the conversation's arena. */
typedef struct chat_turn {
    chat_role role;
    view content; /* system, user, assistant: the visible text */
    bool has_reasoning;
    view reasoning;        /* reasoning_content */
    chat_call *calls;      /* [call_count] */
    size_t call_count;
    view *responses;       /* tool: [response_count] */
    size_t response_count;
    bool own_observation; /* tool: <|observation|> even after another tool message */
} chat_turn;

typedef struct chat_conversation {
    chat_turn *turns; /* [count] */
    size_t count;
    const json_t **tools; /* [tool_count] the objects to print, in order */
    size_t tool_count;
    bool has_tools; /* the tools block is printed, even when every tool is deferred */
    json_t *parsed; /* array that owns arguments given as strings */
    arena memory;
} chat_conversation;

/* Checks messages and tools and fills a zero-initialised conversation; chat_conversation_free in any case. */
bool chat_conversation_read(chat_conversation *c, const chat_rules *r, const json_t *messages, const json_t *tools,
                            error *err);
void chat_conversation_free(chat_conversation *c);

/* One tool as a format prints it. */
void chat_tool_add(text *out, const chat_rules *r, const json_t *tool);

#endif
