/* The text side of a model: its tokenizer and its chat format, without weights. */
#ifndef COMMANDS_TEXT_MODEL_H
#define COMMANDS_TEXT_MODEL_H

#include "base/error.h"
#include "model/chat.h"
#include "model/tokenizer.h"

typedef struct text_model {
    tokenizer *tokenizer;
    chat_format *format; /* NULL when not asked for */
} text_model;

/* The tokenizer of a model directory; NULL: the built-in model. */
tokenizer *text_model_tokenizer(const char *model, error *err);

/* Tokenizer and chat format; format_name NULL: the model's own. Zero m before; text_model_close in any case. */
bool text_model_open(const char *model, const char *format_name, text_model *m, error *err);
void text_model_close(text_model *m);

#endif
