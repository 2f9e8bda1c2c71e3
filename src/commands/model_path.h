/* Which model a command works on: the directory the user named, or the built-in model; and where its tuned tables are. */
#ifndef COMMANDS_MODEL_PATH_H
#define COMMANDS_MODEL_PATH_H

#include "base/error.h"
#include "base/text.h"

/* Stores the directory of a model that holds the file `needed` ("config.json", "tokenizer.json"). given NULL: the
 * built-in model, looked for beside the executable (../models/nano, ../../models/nano) and where an installation puts
 * it (../share/drawbridge/models/nano). */
bool model_path_resolve(const char *given, const char *needed, text *out, error *err);

/* Stores the path of a config.json: of a shipped configuration by its name ("glm-mini", found beside the built-in model), else of the
 * file or the model directory that `given` names. */
bool config_path_resolve(const char *given, text *out, error *err);

/* The directory of tuned tables: the given one, which must be there, or else ../tuned, ../../tuned or ../share/drawbridge/tuned beside the
 * executable; nothing is stored when there is none. */
bool tuned_path_resolve(const char *given, text *out, error *err);

/* The same for whoever writes it: the given one, or that beside the built-in model. It may be missing. */
bool tuned_path_for_writing(const char *given, text *out, error *err);

#endif
