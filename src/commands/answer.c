#include "commands/answer.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "commands/interrupt.h"

/* ---- showing ---- */

/* Control characters could steer the terminal; all but newline and tab become U+FFFD. */
static void add_clean(text *out, view bytes)
{
    for (size_t i = 0; i < bytes.length; i++) {
        unsigned char c = (unsigned char)bytes.data[i];
        bool c1 = c == 0xC2 && i + 1 < bytes.length && (unsigned char)bytes.data[i + 1] < 0xA0;
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F || c1) {
            text_add_utf8(out, 0xFFFD);
            i += c1;
        } else {
            text_add_char(out, (char)c);
        }
    }
}

static void show(answer_screen *s, FILE *to, view bytes)
{
    text shown = {0};
    if (!to || bytes.length == 0)
        return;
    if (s->clean)
        add_clean(&shown, bytes);
    else
        text_add(&shown, bytes.data, bytes.length);
    fwrite(shown.data, 1, shown.length, to);
    fflush(to);
    s->at_line_start = shown.data[shown.length - 1] == '\n';
    text_free(&shown);
}

static void end_reasoning(answer_screen *s)
{
    if (!s->in_reasoning)
        return;
    s->in_reasoning = false;
    if (!s->reasoning)
        return;
    fprintf(s->reasoning, "%s%s\n", s->dim ? "\x1b[0m" : "", s->at_line_start ? "" : "\n");
    fflush(s->reasoning);
    s->at_line_start = true;
}

static void show_reasoning(answer_screen *s, view bytes)
{
    if (!s->in_reasoning && s->reasoning && s->dim)
        fputs("\x1b[2m", s->reasoning);
    s->in_reasoning = true;
    show(s, s->reasoning, bytes);
}

static void show_content(answer_screen *s, view bytes)
{
    end_reasoning(s);
    show(s, s->content, bytes);
}

/* A call is shown when it is complete: name and arguments on a line. */
static void show_call(answer_screen *s, const char *name, const text *arguments)
{
    text line = {0};
    end_reasoning(s);
    text_add_format(&line, "%s[call] %s %s\n", s->at_line_start ? "" : "\n", name, arguments->data ? arguments->data : "");
    show(s, s->content, (view){line.data, line.length});
    text_free(&line);
}

static void end_screen(answer_screen *s)
{
    end_reasoning(s);
    if (s->content && !s->at_line_start)
        show(s, s->content, view_of("\n"));
}

/* ---- taking events ---- */

static void end_call(answer_screen *s, const chat_event *e, answer *out)
{
    json_t *call = json_array_get(out->calls, json_array_size(out->calls) - 1);
    const char *bytes = out->arguments.data ? out->arguments.data : "";
    json_t *arguments = e->complete ? json_loadb(bytes, out->arguments.length, JSON_ALLOW_NUL, NULL) : NULL;
    if (!arguments)
        arguments = json_stringn(bytes, out->arguments.length);
    show_call(s, json_string_value(json_object_get(call, "name")), &out->arguments);
    json_object_set_new(call, "arguments", arguments);
}

static void take_event(answer_screen *s, const chat_event *e, answer *out)
{
    switch (e->kind) {
    case CHAT_EVENT_REASONING:
        text_add(&out->reasoning, e->text.data, e->text.length);
        show_reasoning(s, e->text);
        break;
    case CHAT_EVENT_CONTENT:
        text_add(&out->content, e->text.data, e->text.length);
        show_content(s, e->text);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        text_clear(&out->arguments);
        json_array_append_new(out->calls, json_pack("{s:s%}", "name", e->text.data, e->text.length));
        break;
    case CHAT_EVENT_CALL_ARGUMENTS:
        text_add(&out->arguments, e->text.data, e->text.length);
        break;
    case CHAT_EVENT_CALL_END:
        end_call(s, e, out);
        break;
    case CHAT_EVENT_FINISH:
        out->problems = e->problems;
        if (e->finish != CHAT_FINISH_CUT)
            out->finish = e->finish == CHAT_FINISH_CALLS ? "tool_calls" : "stop";
        break;
    }
}

static void take_events(answerer *a, chat_output *parser, answer *out)
{
    chat_event e;
    while (chat_output_next(parser, &e))
        take_event(&a->screen, &e, out);
}

/* ---- generating ---- */

static bool is_end(const model_config *c, int32_t id)
{
    for (int i = 0; i < c->eos_count; i++)
        if (c->eos[i] == id)
            return true;
    return false;
}

static void keep_logprobs(const sampler_result *r, int wanted, answer *out)
{
    if (wanted < 0)
        return;
    json_t *top = json_array();
    for (int i = 0; i < r->top_count; i++)
        json_array_append_new(top, json_pack("{s:i, s:f}", "id", (int)r->top[i].id, "logprob", r->top[i].logprob));
    json_array_append_new(out->logprobs, json_pack("{s:i, s:f, s:o}", "id", (int)r->token, "logprob", r->logprob, "top", top));
}

/* Computes the prompt; *limit is how many tokens may follow. */
static bool begin(answerer *a, const token_list *prompt, answer *out, int *limit, error *err)
{
    uint64_t started_us = clock_now_us();
    int64_t room = (int64_t)a->runner->session->max_tokens - (int64_t)prompt->count;
    out->calls = json_array();
    out->logprobs = a->params.logprobs >= 0 ? json_array() : NULL;
    out->finish = "length";
    a->screen.in_reasoning = false;
    a->screen.at_line_start = true;
    if (room < 1)
        return error_set(err, ERROR_FIT,
                         "the prompt has %zu tokens, the context has room for %d and an answer needs some; shorten the prompt or raise "
                         "--context", prompt->count, a->runner->session->max_tokens);
    *limit = (int)(a->max_tokens != OPTION_NOT_GIVEN && a->max_tokens < room ? a->max_tokens : room);
    a->runner->session->stop = &interrupt_count;
    bool ok = generator_begin(&a->generator, a->runner->session, &a->params, prompt->ids, (int)prompt->count, *limit, err);
    out->prompt_s = (double)(clock_now_us() - started_us) * 1e-6;
    return ok;
}

/* The next token: false at the end of the answer for any reason; then err->code tells a failure. */
static bool next_token(answerer *a, int limit, answer *out, int32_t *id, error *err)
{
    sampler_result r;
    if ((int)out->ids.count >= limit)
        return false;
    if (interrupt_count || (a->screen.content && ferror(a->screen.content))) {
        out->finish = "interrupted";
        return false;
    }
    if (!generator_next(&a->generator, &r, err))
        return false;
    token_list_add(&out->ids, r.token);
    keep_logprobs(&r, a->params.logprobs, out);
    *id = r.token;
    return true;
}

/* An interrupted prompt is an interrupted answer, not a failure. */
static bool settle(answer *out, error *err)
{
    if (err->code == ERROR_INTERRUPTED) {
        *err = (error){0};
        out->finish = "interrupted";
    }
    return err->code == ERROR_NONE;
}

bool answer_prompt(answerer *a, const token_list *prompt, bool in_thinking, answer *out, error *err)
{
    int limit = 0;
    int32_t id = 0;
    *err = (error){0};
    if (!begin(a, prompt, out, &limit, err))
        return settle(out, err);
    uint64_t started_us = clock_now_us();
    chat_output *parser = chat_output_new(a->text->format, a->text->tokenizer, a->tools, in_thinking);
    bool open = true;
    while (open && next_token(a, limit, out, &id, err)) {
        open = chat_output_add(parser, id);
        if (open && is_end(&a->runner->model->config, id)) {
            out->finish = "stop";
            open = false;
        }
        take_events(a, parser, out);
    }
    chat_output_end(parser);
    take_events(a, parser, out);
    chat_output_free(parser);
    end_screen(&a->screen);
    out->answer_s = (double)(clock_now_us() - started_us) * 1e-6;
    return settle(out, err);
}

bool answer_raw(answerer *a, const token_list *prompt, answer *out, error *err)
{
    int limit = 0;
    int32_t id = 0;
    *err = (error){0};
    if (!begin(a, prompt, out, &limit, err))
        return settle(out, err);
    uint64_t started_us = clock_now_us();
    token_stream stream = {0};
    size_t shown = 0;
    while (next_token(a, limit, out, &id, err)) {
        if (is_end(&a->runner->model->config, id)) {
            out->finish = "stop";
            break;
        }
        token_stream_add(&stream, a->text->tokenizer, id, &out->content);
        show_content(&a->screen, (view){out->content.data + shown, out->content.length - shown});
        shown = out->content.length;
    }
    token_stream_flush(&stream, &out->content);
    if (out->content.length > shown)
        show_content(&a->screen, (view){out->content.data + shown, out->content.length - shown});
    end_screen(&a->screen);
    out->answer_s = (double)(clock_now_us() - started_us) * 1e-6;
    return settle(out, err);
}

void answer_free(answer *a)
{
    text_free(&a->content);
    text_free(&a->reasoning);
    text_free(&a->arguments);
    token_list_free(&a->ids);
    json_decref(a->calls);
    json_decref(a->logprobs);
    *a = (answer){0};
}

json_t *answer_message(const answer *a)
{
    json_t *m = json_pack("{s:s, s:s%}", "role", "assistant", "content", a->content.data ? a->content.data : "", a->content.length);
    if (a->reasoning.length)
        json_object_set_new(m, "reasoning_content", json_stringn(a->reasoning.data, a->reasoning.length));
    json_t *calls = json_array(), *call;
    size_t i;
    json_array_foreach(a->calls, i, call) {
        if (json_is_object(json_object_get(call, "arguments")))
            json_array_append_new(calls, json_pack("{s:s, s:O}", "type", "function", "function", call));
    }
    if (json_array_size(calls))
        json_object_set(m, "tool_calls", calls);
    json_decref(calls);
    return m;
}

void answer_log_speed(const answerer *a, const answer *out)
{
    int computed = a->generator.prompt_count - a->generator.reused;
    log_detail("prompt: %d tokens, %d from the cache, %.2f s (%.0f tokens/s); answer: %zu tokens, %.2f s (%.1f tokens/s); %s",
               a->generator.prompt_count, a->generator.reused, out->prompt_s, out->prompt_s > 0 ? computed / out->prompt_s : 0.0,
               out->ids.count, out->answer_s, out->answer_s > 0 ? (double)out->ids.count / out->answer_s : 0.0, out->finish);
}
