/* A model of made-up weights for one run of a command: synth:CONFIG[:FORMAT], with CONFIG and FORMAT as in drawbridge synth. */
#ifndef COMMANDS_SYNTH_MODEL_H
#define COMMANDS_SYNTH_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

bool synth_model_named(const char *name); /* whether it begins with synth:; NULL is allowed */

/* Makes the weights in a directory of their own, under $TMPDIR or /tmp, and stores its name. layers: 0, or how many. Nothing is left
 * behind when it fails. */
bool synth_model_make(const char *name, int layers, int threads, text *directory, error *err);

/* Removes it. A model that is open stays usable: its files are mapped. */
void synth_model_remove(text *directory); /* nothing when it is empty */

#endif
