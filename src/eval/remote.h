/* Questions answered by a server with OpenAI's API. */
#ifndef EVAL_REMOTE_H
#define EVAL_REMOTE_H

#include "eval/http_client.h"
#include "eval/local.h"

/* The name of the server's first model, appended to out. */
bool eval_server_model(http_client *c, text *out, error *err);

/* Answers prompts[which[0 .. count-1]], as many at a time as the client was made for. A request that failed for good has no reply; the
 * error then tells how many there were and what happened to the first. */
bool eval_ask_server(http_client *c, const char *served_model, const eval_settings *s, const eval_prompt *prompts, const size_t *which,
                     size_t count, eval_replied done, void *context, error *err);

#endif
