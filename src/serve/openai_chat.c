/* POST /v1/chat/completions */
#include "serve/handlers.h"
#include "serve/openai.h"

void handle_openai_chat(server *s, http_exchange *x, const tenant *who)
{
    request_error e = {0};
    json_t *body = server_body(s, x);
    if (!body)
        return;
    openai_job *j = openai_job_new(s, x, who, body);
    openai_context c = openai_context_of(s);
    if (!generation_admits(s, who, &e.status, &e.err) || !openai_chat_read(&c, body, &j->request, &e)) {
        openai_reply_problem(s, x, who, &e);
        openai_job_free(j);
        return;
    }
    token_list prompt = j->request.spec.prompt;
    j->request.spec.prompt = (token_list){0};
    openai_job_start(j, &prompt, 1);
}
