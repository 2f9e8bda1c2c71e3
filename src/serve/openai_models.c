/* GET /v1/models and /v1/models/NAME: the one model that is served. */
#include <string.h>

#include "serve/handlers.h"
#include "serve/openai.h"

static json_t *card(const server *s)
{
    const char *name = s->options.model_name;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:n, s:i}", "id", name, "object", "model", "created", (json_int_t)s->started_unix,
                     "owned_by", "drawbridge", "root", name, "parent", "max_model_len", engine_describe(s->engine).max_context);
}

void handle_models(server *s, http_exchange *x, const tenant *who)
{
    static const char all[] = "/v1/models";
    const char *name = http_path(x) + sizeof all - 1;
    if (*name == '/')
        name++;
    if (!*name) {
        server_reply_json(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", card(s)));
        return;
    }
    if (strcmp(name, s->options.model_name) == 0) {
        server_reply_json(x, 200, card(s));
        return;
    }
    request_error e = {0};
    request_refuse(&e, "model", "the model \"%.200s\" is not served here; this server has \"%s\"", name, s->options.model_name);
    e.status = 404;
    e.code = "model_not_found";
    openai_reply_problem(s, x, who, &e);
}
