/* Taps of a whole prompt, gathered step by step and written as tensors "NAME" or "NAME.LAYER", [tokens][columns]. */
#ifndef COMMANDS_TAP_FILE_H
#define COMMANDS_TAP_FILE_H

#include "base/options.h"
#include "formats/safetensors.h"
#include "forward/forward.h"

typedef struct tap_file tap_file;

/* The taps that the texts NAME or NAME:LAYER of the list ask for, over `tokens` rows in all. */
tap_file *tap_file_create(const option_list *wanted, const model_config *config, int tokens, error *err);
void tap_file_free(tap_file *t);

/* The tap_function; its context is the tap_file. */
void tap_file_add(void *context, const tap_value *value);

/* After the first step: the tensors are known. An error when a wanted tap did not come, or when memory is short. */
bool tap_file_declare(const tap_file *t, safetensors_writer *w, error *err);

/* After the last step: their data, in the order declared. */
bool tap_file_write(const tap_file *t, safetensors_writer *w, error *err);

#endif
