#include "eval/remote.h"

#include <stdlib.h>

#include "base/memory.h"
#include "eval/extract.h"
#include "eval/openai.h"

bool eval_server_model(http_client *c, text *out, error *err)
{
    http_request r = {.path = OPENAI_MODELS_PATH};
    bool ok = http_client_post_all(c, &r, 1, NULL, NULL, err);
    if (ok && r.err.code != ERROR_NONE) {
        *err = r.err;
        ok = error_add(err, "asking the server for its models (--served-model names one)");
    }
    ok = ok && openai_models_parse(r.response.data, r.response.length, out, err);
    http_request_free(&r);
    return ok;
}

typedef struct server_job {
    const eval_prompt *prompts;
    const size_t *which;
    eval_replied done;
    void *context;
    int failed;
    error first; /* of the failures */
} server_job;

static void note_failure(server_job *j, const error *e)
{
    if (j->failed++ == 0)
        j->first = *e;
}

static void take_answer(server_job *j, size_t index, openai_answer *a)
{
    eval_reply reply = {.prompt_tokens = a->prompt_tokens, .tokens = a->completion_tokens, .cut = a->finish == OPENAI_FINISH_LENGTH};
    view content = {a->content.data ? a->content.data : "", a->content.length};
    if (!j->prompts[index].messages)
        content = extract_before(content, "Question:");
    text_add(&reply.content, content.data, content.length);
    reply.calls = json_incref(a->calls);
    j->done(j->context, index, &reply);
}

static void request_done(void *context, http_request *requests, int index)
{
    server_job *j = context;
    http_request *r = &requests[index];
    openai_answer answer = {0};
    error err = {0};
    if (r->err.code != ERROR_NONE)
        note_failure(j, &r->err);
    else if (!openai_answer_parse(r->response.data, r->response.length, &answer, &err))
        note_failure(j, &err);
    else
        take_answer(j, j->which[index], &answer);
    openai_answer_free(&answer);
    http_request_free(r);
}

static bool make_body(const char *served_model, const eval_settings *s, const eval_prompt *p, size_t index, text *out, error *err)
{
    static const char *const stop[] = {"Question:"};
    openai_query q = {.model = served_model,
                      .messages = p->messages,
                      .prompt = p->messages ? NULL : p->plain.data,
                      .tools = p->tools,
                      .temperature = s->temperature,
                      .top_p = s->top_p,
                      .max_tokens = s->max_tokens,
                      .seed = (int64_t)(s->seed + index),
                      .stop = stop,
                      .stop_count = p->messages ? 0 : 1,
                      .enable_thinking = s->thinking ? CHAT_UNSET : CHAT_FALSE,
                      .reasoning_effort = s->effort};
    return openai_query_body(&q, out, err);
}

bool eval_ask_server(http_client *c, const char *served_model, const eval_settings *s, const eval_prompt *prompts, const size_t *which,
                     size_t count, eval_replied done, void *context, error *err)
{
    http_request *requests = mem_alloc(count ? count : 1, sizeof *requests);
    text *bodies = mem_alloc(count ? count : 1, sizeof *bodies);
    server_job job = {.prompts = prompts, .which = which, .done = done, .context = context};
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        const eval_prompt *p = &prompts[which[i]];
        ok = make_body(served_model, s, p, which[i], &bodies[i], err);
        requests[i] = (http_request){.path = p->messages ? OPENAI_CHAT_PATH : OPENAI_COMPLETION_PATH, .body = bodies[i].data,
                                     .body_bytes = bodies[i].length};
    }
    ok = ok && http_client_post_all(c, requests, (int)count, request_done, &job, err);
    if (ok && job.failed) {
        *err = job.first;
        ok = error_add(err, "%d of %zu requests failed; with --out the same command asks them again. The first", job.failed, count);
    }
    for (size_t i = 0; i < count; i++) {
        http_request_free(&requests[i]);
        text_free(&bodies[i]);
    }
    free(requests);
    free(bodies);
    return ok;
}
