/* From a Messages request to tokens: options of the chat format, forced calls, prefill. */
#include <string.h>

#include "model/chat_output.h"
#include "serve/anthropic_request.h"

/* The text of a small conversation with these options; false when the format refuses them. */
static bool probe(const chat_format *f, const chat_options *o, chat_prompt *out)
{
    error unused = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    bool ok = chat_render(f, messages, NULL, o, out, &unused);
    json_decref(messages);
    return ok;
}

static bool format_obeys(const chat_format *f, const chat_options *o)
{
    chat_prompt p = {0};
    bool ok = probe(f, o, &p);
    chat_prompt_free(&p);
    return ok;
}

/* Whether the format writes this effort differently from its default, the largest. */
static bool format_knows_effort(const chat_format *f, const char *effort)
{
    chat_options asked = {.reasoning_effort = effort}, plain = {0};
    chat_prompt a = {0}, b = {0};
    bool known = probe(f, &asked, &a) && probe(f, &plain, &b) &&
                 !view_equal((view){a.text.data, a.text.length}, (view){b.text.data, b.text.length});
    chat_prompt_free(&a);
    chat_prompt_free(&b);
    return known;
}

/* The format's word for an effort. Formats take a word they do not know for the largest effort, so a smaller one that they lack becomes
 * the nearest larger one they have. */
static const char *effort_word(const chat_format *f, const char *effort)
{
    static const char *const order[] = {"low", "medium", "high"};
    size_t count = sizeof order / sizeof *order, at = 0;
    while (at < count && effort && strcmp(order[at], effort) != 0)
        at++;
    for (; effort && at < count; at++)
        if (format_knows_effort(f, order[at]))
            return order[at];
    return NULL;
}

static bool options_make(const anthropic_request *r, const chat_format *f, chat_options *o, error *err)
{
    *o = (chat_options){.clear_thinking = r->clear_thinking, .add_generation_prompt = !r->prefill};
    chat_options off = {.enable_thinking = CHAT_FALSE}, keep = {.clear_thinking = CHAT_FALSE};
    bool always = !format_obeys(f, &off);
    if (r->thinking == ANTHROPIC_THINKING_OFF && always)
        return error_set(err, ERROR_INPUT, "thinking.type: the model's chat format %s always thinks; leave \"thinking\" out or enable it",
                         chat_format_name(f));
    if (r->clear_thinking == CHAT_FALSE && !format_obeys(f, &keep))
        return error_set(err, ERROR_INPUT, "context_management.edits[0].keep: the model's chat format %s cannot keep the thinking of "
                         "earlier turns; leave the edit out", chat_format_name(f));
    o->enable_thinking = r->thinking == ANTHROPIC_THINKING_ON ? CHAT_TRUE : always ? CHAT_UNSET : CHAT_FALSE;
    o->reasoning_effort = effort_word(f, r->effort);
    return true;
}

static void tokens_append(token_list *to, const token_list *from)
{
    for (size_t i = 0; i < from->count; i++)
        token_list_add(to, from->ids[i]);
}

static void force_call(const anthropic_request *r, const chat_format *f, const tokenizer *t, anthropic_prompt *out)
{
    if (out->in_thinking)
        token_list_add(&out->forced, chat_format_id(f, CHAT_THINK_END));
    token_list_add(&out->forced, chat_format_id(f, CHAT_CALL));
    if (r->forced_name)
        tokenizer_encode(t, r->forced_name, strlen(r->forced_name), false, &out->forced);
    tokens_append(&out->tokens, &out->forced);
}

/* The prefill goes through the answer's parser, too: otherwise the parser would drop white space at the beginning of what follows. What
 * it gives for the prefill is not part of the answer. */
static void force_prefill(const chat_prompt *p, const chat_format *f, const tokenizer *t, anthropic_prompt *out)
{
    const chat_segment *last = &p->segments[p->segment_count - 1];
    chat_event event;
    if (last->control != CHAT_TEXT)
        return;
    tokenizer_encode(t, p->text.data + last->offset, last->bytes, false, &out->forced);
    chat_output *parser = chat_output_new(f, t, NULL, false);
    for (size_t i = 0; i < out->forced.count; i++) {
        chat_output_add(parser, out->forced.ids[i]);
        while (chat_output_next(parser, &event))
            out->skip_bytes += event.kind == CHAT_EVENT_CONTENT ? event.text.length : 0;
    }
    chat_output_free(parser);
}

/* A stop sequence in the prefill would end the answer before it begins. */
static bool prefill_check(const anthropic_request *r, error *err)
{
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const char *content = json_string_value(json_object_get(last, "content"));
    for (size_t i = 0; content && i < json_array_size(r->stops); i++)
        if (strstr(content, json_string_value(json_array_get(r->stops, i))))
            return error_set(err, ERROR_INPUT, "stop_sequences[%zu]: occurs in the last message, which the answer continues", i);
    return true;
}

bool anthropic_prompt_make(const anthropic_request *r, const chat_format *f, const tokenizer *t, anthropic_prompt *out, error *err)
{
    chat_options o;
    chat_prompt p = {0};
    bool ok = options_make(r, f, &o, err) && (!r->prefill || prefill_check(r, err)) &&
              chat_render(f, r->messages, r->calls_off ? NULL : r->tools, &o, &p, err);
    if (ok) {
        chat_prompt_tokens(&p, t, &out->tokens);
        out->in_thinking = p.in_thinking;
        if (r->forced)
            force_call(r, f, t, out);
        else if (r->prefill)
            force_prefill(&p, f, t, out);
    }
    chat_prompt_free(&p);
    return ok;
}

void anthropic_prompt_free(anthropic_prompt *p)
{
    token_list_free(&p->tokens);
    token_list_free(&p->forced);
    *p = (anthropic_prompt){0};
}
