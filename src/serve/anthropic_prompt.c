/* From a Messages request to tokens: options of the chat format, forced calls, prefill. */
#include <string.h>

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

bool anthropic_prompt_make(const anthropic_request *r, const chat_format *f, const tokenizer *t, anthropic_prompt *out, error *err)
{
    chat_options o;
    chat_prompt p = {0};
    const json_t *tools = r->calls_off ? NULL : r->tools;
    bool ok = options_make(r, f, &o, err) && chat_render(f, r->messages, tools, &o, &p, err);
    if (ok) {
        chat_prompt_tokens(&p, t, &out->tokens);
        out->in_thinking = p.in_thinking;
        out->in_content = r->prefill && p.segments[p.segment_count - 1].control == CHAT_TEXT;
        if (r->forced)
            force_call(r, f, t, out);
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
