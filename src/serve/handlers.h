/* The handlers of all endpoints, for the table in routes.c; each is defined in the file of its API. */
#ifndef SERVE_HANDLERS_H
#define SERVE_HANDLERS_H

#include "serve/server.h"

/* OpenAI */
void handle_openai_chat(server *s, http_exchange *x, const tenant *who);
void handle_openai_completions(server *s, http_exchange *x, const tenant *who);
void handle_models(server *s, http_exchange *x, const tenant *who); /* the list, and one model by its name */

/* Anthropic */
void handle_anthropic_messages(server *s, http_exchange *x, const tenant *who);
void handle_anthropic_count(server *s, http_exchange *x, const tenant *who);

/* native */
void handle_generate(server *s, http_exchange *x, const tenant *who);
void handle_tokenize(server *s, http_exchange *x, const tenant *who);
void handle_detokenize(server *s, http_exchange *x, const tenant *who);

/* operation */
void handle_metrics(server *s, http_exchange *x, const tenant *who);
void handle_server_info(server *s, http_exchange *x, const tenant *who); /* also /model_info and their old names */
void handle_loads(server *s, http_exchange *x, const tenant *who);
void handle_flush_cache(server *s, http_exchange *x, const tenant *who);
void ops_flushes_take(server *s); /* replies to the /flush_cache that the engine has done; called when it has news */
void handle_abort_request(server *s, http_exchange *x, const tenant *who);
void handle_health(server *s, http_exchange *x, const tenant *who);  /* health.c: the process lives */
void handle_ready(server *s, http_exchange *x, const tenant *who);   /* health.c: new requests are welcome */
void handle_version(server *s, http_exchange *x, const tenant *who); /* health.c */

/* page */
void handle_page(server *s, http_exchange *x, const tenant *who); /* / and /assets/... */
void handle_dashboard(server *s, http_exchange *x, const tenant *who);

#endif
