/* What a user sees of the dispatch table: the table itself, warnings, and the refusal of --require-tuned. */
#ifndef COMMANDS_DISPATCH_REPORT_H
#define COMMANDS_DISPATCH_REPORT_H

#include <stdio.h>

#include "base/json.h"
#include "device/dispatch.h"

/* Warns about rows of the tuned table that could not be used, and about shapes it lacks: the first few by name. Without a table there
 * is no warning unless its directory was named by the user. require: any untuned shape is an error that names the first ones.
 * tune_command: what measures them, as a user types it. */
bool dispatch_report_check(const dispatch_table *t, bool directory_given, bool require, const char *tune_command, error *err);

void dispatch_report_print(const dispatch_table *t, FILE *out);
json_t *dispatch_report_json(const dispatch_table *t); /* json_decref frees */

#endif
