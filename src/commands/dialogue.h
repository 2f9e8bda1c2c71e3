/* The options of a conversation, shared by run and chat, and the prompt they give. */
#ifndef COMMANDS_DIALOGUE_H
#define COMMANDS_DIALOGUE_H

#include "base/options.h"
#include "commands/text_model.h"

typedef struct dialogue_values {
    const char *system, *tools, *effort, *format; /* format: --template */
    bool thinking;
} dialogue_values;

/* Rows for the table of a command whose struct has a field `dialogue`. */
#define DIALOGUE_OFFSET(values, field) (offsetof(values, dialogue) + offsetof(dialogue_values, field))
#define DIALOGUE_ROWS(values) \
    {.name = "system", .letter = 's', .type = OPTION_TEXT, .metavar = "TEXT", .group = "Conversation", \
     .offset = DIALOGUE_OFFSET(values, system), .help = "A system message before the conversation."}, \
    {.name = "tools", .type = OPTION_FILE, .metavar = "FILE", .group = "Conversation", .offset = DIALOGUE_OFFSET(values, tools), \
     .help = "JSON array of tools the model may call, as in a chat request."}, \
    {.name = "thinking", .type = OPTION_FLAG, .by_default = "on", .group = "Conversation", .offset = DIALOGUE_OFFSET(values, thinking), \
     .help = "Ask for an answer without reasoning."}, \
    {.name = "effort", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the template's", .group = "Conversation", \
     .offset = DIALOGUE_OFFSET(values, effort), .help = "How much to reason, where the template knows it: high or max."}, \
    {.name = "template", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the model's own", .group = "Conversation", \
     .offset = DIALOGUE_OFFSET(values, format), .help = "Use a chat template by name instead of the model's own. " \
             "A name that does not exist lists those that do."}

/* Renders messages (an array) to tokens that end where the assistant's answer begins. */
bool dialogue_prompt(const dialogue_values *v, const text_model *m, const json_t *messages, const json_t *tools, token_list *out,
                     bool *in_thinking, error *err);

/* Appends {"role", "content"}. Text that is not UTF-8 is an error that begins with `where`. */
bool dialogue_add(json_t *messages, const char *role, const char *content, size_t bytes, const char *where, error *err);

#endif
