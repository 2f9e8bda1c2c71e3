/* The subcommands: one file each, with its option table. src/main.c holds the table of them all. */
#ifndef COMMANDS_COMMANDS_H
#define COMMANDS_COMMANDS_H

#include "base/options.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

extern const command command_serve;
extern const command command_chat;
extern const command command_run;
extern const command command_inspect;
extern const command command_quantize;
extern const command command_synth;
extern const command command_tune;
extern const command command_bench;
extern const command command_tokenize;
extern const command command_render;
extern const command command_logits;
extern const command command_eval;
extern const command command_help;
extern const command command_completion;
extern const command command_man;
extern const command command_version;

#endif
