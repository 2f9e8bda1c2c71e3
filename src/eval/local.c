#include "eval/local.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "eval/extract.h"
#include "model/chat_output.h"

static void encode(const tokenizer *t, const char *words, size_t count, token_list *out)
{
    tokenizer_encode(t, words, count, false, out);
}

bool eval_question_make(const tokenizer *t, const chat_format *f, const eval_settings *s, const eval_prompt *p,
                        eval_question *out, error *err)
{
    out->tools = p->tools;
    out->plain = !p->messages;
    if (out->plain) {
        encode(t, p->plain.data, p->plain.length, &out->tokens);
        return true;
    }
    bool choose = s->method == EVAL_LOGPROB;
    chat_options options = {.enable_thinking = s->thinking && !choose ? CHAT_UNSET : CHAT_FALSE, .reasoning_effort = s->effort,
                            .add_generation_prompt = true};
    chat_prompt prompt = {0};
    bool ok = chat_render(f, p->messages, p->tools, &options, &prompt, err);
    if (ok) {
        chat_prompt_tokens(&prompt, t, &out->tokens);
        out->in_thinking = prompt.in_thinking;
    }
    if (ok && choose)
        encode(t, "Answer:", 7, &out->tokens);
    chat_prompt_free(&prompt);
    return ok;
}

void eval_question_free(eval_question *q)
{
    token_list_free(&q->tokens);
    *q = (eval_question){0};
}

/* ---- replies ---- */

static void parse_plain(const eval_model *m, const token_list *answer, bool cut, eval_reply *out)
{
    tokenizer_decode(m->tokenizer, answer->ids, answer->count, true, &out->content);
    if (!out->content.data)
        return;
    size_t kept = extract_before((view){out->content.data, out->content.length}, "Question:").length;
    out->cut = cut && kept == out->content.length;
    out->content.length = kept;
    out->content.data[kept] = '\0';
}

static void end_call(const chat_event *e, text *arguments, json_t *calls)
{
    json_t *call = json_array_get(calls, json_array_size(calls) - 1);
    json_t *value = e->complete ? json_loadb(arguments->data ? arguments->data : "", arguments->length, 0, NULL) : NULL;
    json_object_set_new(call, "arguments", value ? value : json_null());
    text_clear(arguments);
}

static void take_events(chat_output *parser, text *arguments, eval_reply *out)
{
    chat_event e;
    while (chat_output_next(parser, &e)) {
        if (e.kind == CHAT_EVENT_CONTENT)
            text_add(&out->content, e.text.data, e.text.length);
        else if (e.kind == CHAT_EVENT_CALL_BEGIN)
            json_array_append_new(out->calls, json_pack("{s:s%}", "name", e.text.data, e.text.length));
        else if (e.kind == CHAT_EVENT_CALL_ARGUMENTS)
            text_add(arguments, e.text.data, e.text.length);
        else if (e.kind == CHAT_EVENT_CALL_END)
            end_call(&e, arguments, out->calls);
    }
}

static void parse_chat(const eval_model *m, const eval_question *q, const token_list *answer, bool cut, eval_reply *out)
{
    chat_output *parser = chat_output_new(m->format, m->tokenizer, q->tools, q->in_thinking);
    text arguments = {0};
    out->calls = json_array();
    out->cut = cut;
    for (size_t i = 0; i < answer->count && chat_output_add(parser, answer->ids[i]); i++)
        take_events(parser, &arguments, out);
    chat_output_end(parser);
    take_events(parser, &arguments, out);
    chat_output_free(parser);
    text_free(&arguments);
}

void eval_reply_parse(const eval_model *m, const eval_question *q, const token_list *answer, bool cut, eval_reply *out)
{
    out->prompt_tokens = (int64_t)q->tokens.count;
    out->tokens = (int64_t)answer->count;
    if (q->plain)
        parse_plain(m, answer, cut, out);
    else
        parse_chat(m, q, answer, cut, out);
}

/* ---- generating ---- */

typedef struct local_job {
    const eval_model *model;
    const eval_question *questions;
    const size_t *which;
    eval_replied done;
    void *context;
} local_job;

static void request_done(void *context, bulk_request *requests, int index)
{
    const local_job *j = context;
    bulk_request *r = &requests[index];
    eval_reply reply = {0};
    eval_reply_parse(j->model, &j->questions[j->which[index]], &r->answer, r->finish == BULK_LENGTH, &reply);
    token_list_free(&r->answer);
    j->done(j->context, j->which[index], &reply);
}

bool eval_answer_all(eval_model *m, const eval_settings *s, const eval_question *questions, const size_t *which, size_t count,
                     eval_replied done, void *context, error *err)
{
    bulk_request *requests = mem_alloc(count ? count : 1, sizeof *requests);
    for (size_t i = 0; i < count; i++) {
        const token_list *prompt = &questions[which[i]].tokens;
        sampler_params params = sampler_params_default(tokenizer_size(m->tokenizer));
        params.temperature = s->temperature;
        params.top_p = s->top_p;
        params.seed = s->seed + which[i];
        params.logprobs = -1;
        requests[i] = (bulk_request){
            .prompt = prompt->ids, .prompt_count = (int)prompt->count, .max_tokens = s->max_tokens, .params = params};
    }
    local_job job = {m, questions, which, done, context};
    bool ok = bulk_run(m->bulk, requests, (int)count, request_done, &job, err);
    for (size_t i = 0; i < count; i++)
        token_list_free(&requests[i].answer);
    free(requests);
    return ok;
}

/* ---- choosing by likelihood ---- */

enum { LETTERS = 26 };

/* The token of " A", " B", ...: what follows "Answer:". */
static bool letter_tokens(const tokenizer *t, int count, int32_t out[LETTERS], error *err)
{
    for (int i = 0; i < count; i++) {
        token_list ids = {0};
        char words[3] = {' ', (char)('A' + i), '\0'};
        encode(t, words, 2, &ids);
        bool one = ids.count == 1;
        out[i] = one ? ids.ids[0] : -1;
        token_list_free(&ids);
        if (!one)
            return error_set(
                err, ERROR_INPUT,
                "--method logprob needs one token for \"%s\", which this tokenizer does not have; use --method generate", words);
    }
    return true;
}

static bool choose(eval_model *m, const eval_question *q, int choices, eval_reply *out, error *err)
{
    int32_t ids[LETTERS];
    int reused, best = 0;
    if (!letter_tokens(m->tokenizer, choices, ids, err) || !session_sync(m->session, q->tokens.ids, (int)q->tokens.count, &reused, err))
        return false;
    const float *logits = session_logits(m->session);
    for (int i = 1; i < choices; i++)
        if (logits[ids[i]] > logits[ids[best]])
            best = i;
    text_add_format(&out->content, "Answer: %c", (char)('A' + best));
    out->prompt_tokens = (int64_t)q->tokens.count;
    out->tokens = 0;
    return true;
}

bool eval_choose_all(eval_model *m, const eval_question *questions, const int *choices, const size_t *which, size_t count,
                     eval_replied done, void *context, error *err)
{
    for (size_t i = 0; i < count; i++) {
        eval_reply reply = {0};
        if (m->stop && *m->stop)
            return error_set(err, ERROR_INTERRUPTED, "interrupted");
        if (!choose(m, &questions[which[i]], choices[which[i]], &reply, err)) {
            eval_reply_free(&reply);
            return false;
        }
        done(context, which[i], &reply);
    }
    return true;
}
