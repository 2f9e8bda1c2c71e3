/* POST /v1/completions */
#include "serve/handlers.h"
#include "serve/openai.h"

void handle_openai_completions(server *s, http_exchange *x, const tenant *who)
{
    request_error e = {0};
    openai_prompts prompts = {0};
    json_t *body = server_body(s, x);
    if (!body)
        return;
    openai_job *j = openai_job_new(s, x, who, body);
    openai_context c = openai_context_of(s);
    if (generation_admits(s, who, &e.status, &e.err) && openai_completions_read(&c, body, &j->request, &prompts, &e)) {
        openai_job_start(j, prompts.tokens, prompts.count);
    } else {
        openai_reply_problem(s, x, who, &e);
        openai_job_free(j);
    }
    openai_prompts_free(&prompts);
}
