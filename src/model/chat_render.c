/* Writes a checked conversation as a prompt. Literals of the format may contain control tokens, everything that comes
 * from the conversation is text. */
#include <stdlib.h>
#include <string.h>

#include "model/chat_internal.h"
#include "model/python_json.h"

/* What the writers share. */
typedef struct writing {
    const chat_format *format;
    const chat_options *options;
    chat_prompt *prompt;
} writing;

static const char tools_head[] =
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n";

static const char tools_tail[] =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

static chat_segment *segment_add(chat_prompt *p, chat_control control, int32_t id)
{
    if (p->segment_count == p->segment_capacity) {
        p->segment_capacity = p->segment_capacity ? 2 * p->segment_capacity : 32;
        p->segments = mem_grow(p->segments, p->segment_capacity, sizeof *p->segments);
    }
    chat_segment *s = &p->segments[p->segment_count++];
    *s = (chat_segment){.control = control, .id = id, .offset = p->text.length};
    return s;
}

static void write_control(const writing *w, chat_control c)
{
    const char *literal = chat_control_text(c);
    segment_add(w->prompt, c, chat_format_id(w->format, c))->bytes = strlen(literal);
    text_add_text(&w->prompt->text, literal);
}

static void write_text(const writing *w, view v)
{
    chat_prompt *p = w->prompt;
    if (v.length == 0)
        return;
    bool extend = p->segment_count > 0 && p->segments[p->segment_count - 1].control == CHAT_TEXT;
    chat_segment *s = extend ? &p->segments[p->segment_count - 1] : segment_add(p, CHAT_TEXT, -1);
    s->bytes += v.length;
    text_add(&p->text, v.data, v.length);
}

/* The control token that s begins with. */
static chat_control control_at(const char *s)
{
    for (int c = 0; c < CHAT_CONTROL_COUNT; c++)
        if (text_starts_with(s, chat_control_text((chat_control)c)))
            return (chat_control)c;
    return CHAT_TEXT;
}

/* A literal of the format: its control tokens are control tokens. */
static void write_literal(const writing *w, const char *literal)
{
    const char *plain = literal, *s = literal;
    while (*s) {
        chat_control c = control_at(s);
        if (c == CHAT_TEXT) {
            s++;
            continue;
        }
        write_text(w, (view){plain, (size_t)(s - plain)});
        write_control(w, c);
        plain = s += strlen(chat_control_text(c));
    }
    write_text(w, (view){plain, (size_t)(s - plain)});
}

static bool thinks(const writing *w)
{
    return w->format->rules.always_thinks || w->options->enable_thinking != CHAT_FALSE;
}

static void write_effort(const writing *w)
{
    const chat_rules *r = &w->format->rules;
    const char *effort = "max", *wanted = w->options->reasoning_effort;
    if (!r->efforts[0] || !thinks(w))
        return;
    for (size_t i = 0; wanted && i < sizeof r->efforts / sizeof *r->efforts && r->efforts[i]; i++)
        if (strcmp(r->efforts[i], wanted) == 0)
            effort = wanted;
    char capital[2] = {(char)(effort[0] - 'a' + 'A'), '\0'};
    write_literal(w, "<|system|>Reasoning Effort: ");
    write_text(w, view_of(capital));
    write_text(w, view_of(effort + 1));
}

static void write_tools(const writing *w, const chat_conversation *c)
{
    if (!c->has_tools)
        return;
    text line = {0};
    write_literal(w, tools_head);
    for (size_t i = 0; i < c->tool_count; i++) {
        text_clear(&line);
        chat_tool_add(&line, &w->format->rules, c->tools[i]);
        text_add_char(&line, '\n');
        write_text(w, (view){line.data, line.length});
    }
    write_literal(w, tools_tail);
    text_free(&line);
}

/* The last place of word in s, or s.length. */
static size_t find_last(view s, const char *word)
{
    size_t n = strlen(word), found = s.length;
    for (size_t i = 0; n <= s.length && i <= s.length - n; i++)
        if (s.data[i] == word[0] && memcmp(s.data + i, word, n) == 0)
            found = i;
    return found;
}

static size_t find_first(view s, const char *word)
{
    size_t n = strlen(word);
    for (size_t i = 0; n <= s.length && i <= s.length - n; i++)
        if (s.data[i] == word[0] && memcmp(s.data + i, word, n) == 0)
            return i;
    return s.length;
}

static view trim_newlines(view s, bool front, bool back)
{
    while (front && s.length > 0 && s.data[0] == '\n')
        s = (view){s.data + 1, s.length - 1};
    while (back && s.length > 0 && s.data[s.length - 1] == '\n')
        s.length--;
    return s;
}

/* Takes the reasoning out of "<think>reasoning</think>content": what lies before the first </think>, from the last
 * <think> on, and what follows the last </think>. */
static void split_reasoning(const chat_rules *r, chat_turn *turn)
{
    view all = turn->content;
    size_t first = find_first(all, "</think>"), last = find_last(all, "</think>");
    if (first == all.length)
        return;
    view before = trim_newlines((view){all.data, first}, false, r->strips_reasoning);
    size_t opening = find_last(before, "<think>");
    if (opening < before.length)
        before = (view){before.data + opening + strlen("<think>"), before.length - opening - strlen("<think>")};
    size_t after = last + strlen("</think>");
    turn->has_reasoning = true;
    turn->reasoning = trim_newlines(before, r->strips_reasoning, false);
    turn->content = trim_newlines((view){all.data + after, all.length - after}, r->strips_reasoning, false);
}

static void write_reasoning(const writing *w, const chat_turn *turn, bool live)
{
    const chat_rules *r = &w->format->rules;
    chat_switch clear = w->options->clear_thinking;
    bool keeps = r->obeys_clearing && (clear == CHAT_FALSE || (clear == CHAT_UNSET && r->keeps_reasoning));
    bool has = turn->has_reasoning && !(r->strips_reasoning && turn->reasoning.length == 0);
    if (has && (live || keeps)) {
        write_control(w, CHAT_THINK);
        write_text(w, r->strips_reasoning ? python_strip(turn->reasoning) : turn->reasoning);
    } else if (!r->bare_think_end) {
        write_control(w, CHAT_THINK);
    }
    write_control(w, CHAT_THINK_END);
}

static void write_call(const writing *w, const chat_call *call)
{
    const char *key;
    const json_t *value;
    text printed = {0};
    write_control(w, CHAT_CALL);
    write_text(w, call->name);
    json_object_foreach((json_t *)(uintptr_t)call->arguments, key, value) {
        text_clear(&printed);
        if (json_is_string(value))
            text_add(&printed, json_string_value(value), json_string_length(value));
        else
            python_json_add(&printed, value);
        write_control(w, CHAT_KEY);
        write_text(w, view_of(key));
        write_literal(w, "</arg_key><arg_value>");
        write_text(w, (view){printed.data, printed.length});
        write_control(w, CHAT_VALUE_END);
    }
    write_control(w, CHAT_CALL_END);
    text_free(&printed);
}

static void write_assistant(const writing *w, chat_turn turn, bool live)
{
    const chat_rules *r = &w->format->rules;
    if (r->splits_reasoning && !turn.has_reasoning)
        split_reasoning(r, &turn);
    write_control(w, CHAT_ASSISTANT);
    write_reasoning(w, &turn, live);
    write_text(w, r->strips_content ? python_strip(turn.content) : turn.content);
    for (size_t i = 0; i < turn.call_count; i++)
        write_call(w, &turn.calls[i]);
}

static void write_tool(const writing *w, const chat_turn *turn, bool first)
{
    if (first || turn->own_observation)
        write_control(w, CHAT_OBSERVATION);
    for (size_t i = 0; i < turn->response_count; i++) {
        write_control(w, CHAT_RESPONSE);
        write_text(w, turn->responses[i]);
        write_control(w, CHAT_RESPONSE_END);
    }
}

static void write_turns(const writing *w, const chat_conversation *c)
{
    size_t live_from = 0; /* index after the last user message */
    for (size_t i = 0; i < c->count; i++)
        if (c->turns[i].role == CHAT_ROLE_USER)
            live_from = i + 1;
    for (size_t i = 0; i < c->count; i++) {
        const chat_turn *turn = &c->turns[i];
        switch (turn->role) {
        case CHAT_ROLE_ASSISTANT: write_assistant(w, *turn, i >= live_from); break;
        case CHAT_ROLE_TOOL: write_tool(w, turn, i == 0 || c->turns[i - 1].role != CHAT_ROLE_TOOL); break;
        default:
            write_control(w, turn->role == CHAT_ROLE_USER ? CHAT_USER : CHAT_SYSTEM);
            write_text(w, turn->content);
        }
    }
}

static void write_generation_prompt(const writing *w)
{
    const chat_rules *r = &w->format->rules;
    if (!w->options->add_generation_prompt)
        return;
    write_control(w, CHAT_ASSISTANT);
    if (thinks(w) || !r->bare_think_end)
        write_control(w, CHAT_THINK);
    if (!thinks(w))
        write_control(w, CHAT_THINK_END);
    w->prompt->in_thinking = thinks(w);
}

static bool options_check(const chat_rules *r, const chat_options *o, error *err)
{
    if (r->always_thinks && o->enable_thinking == CHAT_FALSE)
        return error_set(err, ERROR_INPUT, "enable_thinking: the chat format %s always thinks; leave it out or set it to true",
                         r->name);
    if (!r->obeys_clearing && o->clear_thinking == CHAT_FALSE)
        return error_set(err, ERROR_INPUT, "clear_thinking: the chat format %s cannot keep earlier reasoning; leave it out or "
                         "set it to true", r->name);
    return true;
}

bool chat_render(const chat_format *f, const json_t *messages, const json_t *tools, const chat_options *options,
                 chat_prompt *out, error *err)
{
    chat_conversation c = {0};
    writing w = {.format = f, .options = options, .prompt = out};
    text_clear(&out->text);
    out->segment_count = 0;
    out->in_thinking = false;
    bool ok = options_check(&f->rules, options, err) && chat_conversation_read(&c, &f->rules, messages, tools, err);
    if (ok) {
        write_literal(&w, "[gMASK]<sop>");
        write_effort(&w);
        write_tools(&w, &c);
        write_turns(&w, &c);
        write_generation_prompt(&w);
    }
    chat_conversation_free(&c);
    return ok;
}

void chat_prompt_free(chat_prompt *p)
{
    text_free(&p->text);
    free(p->segments);
    *p = (chat_prompt){0};
}

void chat_prompt_tokens(const chat_prompt *p, const tokenizer *t, token_list *out)
{
    for (size_t i = 0; i < p->segment_count; i++) {
        const chat_segment *s = &p->segments[i];
        if (s->control == CHAT_TEXT)
            tokenizer_encode(t, p->text.data + s->offset, s->bytes, false, out);
        else
            token_list_add(out, s->id);
    }
}
