/* Runs the chat format for tests/chat_jinja.py and tests/chat_output.py: one JSON object per line of standard input, one JSON
 * value per line of output.
 *
 *     {"messages": [...], "format": NAME, ...}   the prompt as a string, or {"error": text}
 *     {"output": [ids], "tools": [...], ...}     the events of the output parser, as an array
 *     {"float": number}                          the number as Python's repr prints it, as a string
 *
 * With the path of a tokenizer.json as argument every prompt's tokens are checked too, see tokens_check. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/chat.h"
#include "model/chat_output.h"
#include "model/python_json.h"
#include "tiny_tokenizer.h"

static tokenizer *given; /* of the argument, or NULL */

static chat_switch switch_of(const json_t *v)
{
    return json_is_true(v) ? CHAT_TRUE : json_is_false(v) ? CHAT_FALSE : CHAT_UNSET;
}

/* Whether text holds an added token when read the way HF reads it. */
static bool has_added(const char *bytes, size_t count)
{
    token_list ids = {0};
    bool found = false;
    tokenizer_encode(given, bytes, count, true, &ids);
    for (size_t i = 0; i < ids.count; i++)
        found |= tokenizer_is_added(given, ids.ids[i]);
    token_list_free(&ids);
    return found;
}

/* The segments tile the text, text segments become no added token, and where the conversation holds no added tokens the
 * prompt has the tokens that HF gives its text. NULL, or what is wrong. */
static const char *tokens_check(const chat_prompt *p)
{
    const char *wrong = NULL;
    bool plain = true;
    size_t end = 0, controls = 0, added = 0;
    token_list mine = {0}, theirs = {0};
    for (size_t i = 0; i < p->segment_count; i++) {
        const chat_segment *s = &p->segments[i];
        if (s->offset != end || s->bytes == 0 || (i > 0 && s->control == CHAT_TEXT && s[-1].control == CHAT_TEXT))
            wrong = "segments do not tile the text";
        end = s->offset + s->bytes;
        controls += s->control != CHAT_TEXT;
        plain &= s->control != CHAT_TEXT || !has_added(p->text.data + s->offset, s->bytes);
    }
    chat_prompt_tokens(p, given, &mine);
    tokenizer_encode(given, p->text.data, p->text.length, true, &theirs);
    for (size_t i = 0; i < mine.count; i++)
        added += tokenizer_is_added(given, mine.ids[i]);
    if (end != p->text.length)
        wrong = "segments do not cover the text";
    if (added != controls)
        wrong = "text became an added token";
    if (plain && (mine.count != theirs.count || memcmp(mine.ids, theirs.ids, mine.count * sizeof *mine.ids) != 0))
        wrong = "tokens differ from those of the whole text";
    token_list_free(&mine);
    token_list_free(&theirs);
    return wrong;
}

static json_t *render(const json_t *request, chat_prompt *prompt)
{
    error err = {0};
    chat_format *f = chat_format_load(json_string_value(json_object_get(request, "directory")), given,
                                      json_string_value(json_object_get(request, "format")), &err);
    chat_options o = {
        .enable_thinking = switch_of(json_object_get(request, "enable_thinking")),
        .clear_thinking = switch_of(json_object_get(request, "clear_thinking")),
        .reasoning_effort = json_string_value(json_object_get(request, "reasoning_effort")),
        .add_generation_prompt = json_is_true(json_object_get(request, "add_generation_prompt")),
    };
    bool ok = f && chat_render(f, json_object_get(request, "messages"), json_object_get(request, "tools"), &o, prompt, &err);
    const char *wrong = ok && given ? tokens_check(prompt) : NULL;
    if (wrong)
        ok = error_set(&err, ERROR_RUNTIME, "%s: %s", wrong, prompt->text.data);
    chat_format_free(f);
    return ok ? json_stringn(prompt->text.data, prompt->text.length) : json_pack("{s:s}", "error", err.text);
}

static void take_events(chat_output *o, json_t *events)
{
    static const char *const kinds[] = {"reasoning", "content", "begin", "arguments", "end", "finish"};
    static const char *const finishes[] = {"stop", "calls", "cut"};
    chat_event e;
    while (chat_output_next(o, &e)) {
        json_t *piece = json_stringn(e.text.data, e.text.length); /* NULL when it is not valid UTF-8 */
        json_array_append_new(events, json_pack("{s:s, s:i, s:o, s:b, s:s, s:i}", "kind", kinds[e.kind], "call", e.call, "text",
            piece ? piece : json_null(), "complete", (int)e.complete, "finish", finishes[e.finish], "problems", (int)e.problems));
    }
}

/* "every": events are taken after that many tokens. "end": chat_output_end is called. */
static json_t *parse_output(const json_t *request)
{
    static tokenizer *tiny;
    static chat_format *format;
    error err = {0};
    if (!tiny) {
        tiny = tiny_tokenizer(CHAT_TEXT);
        format = chat_format_load(NULL, tiny, "glm-5.2", &err);
    }
    const json_t *ids = json_object_get(request, "output");
    json_int_t every = json_integer_value(json_object_get(request, "every"));
    chat_output *o = chat_output_new(format, tiny, json_object_get(request, "tools"),
                                     json_is_true(json_object_get(request, "in_thinking")));
    json_t *events = json_array();
    for (size_t i = 0; i < json_array_size(ids); i++) {
        chat_output_add(o, (int32_t)json_integer_value(json_array_get(ids, i)));
        if (every > 0 && i % (size_t)every == 0)
            take_events(o, events);
    }
    chat_output_end(o);
    take_events(o, events);
    chat_output_free(o);
    return events;
}

static json_t *answer(const json_t *request, chat_prompt *prompt)
{
    const json_t *number = json_object_get(request, "float");
    if (json_object_get(request, "output"))
        return parse_output(request);
    if (!number)
        return render(request, prompt);
    text t = {0};
    python_float_add(&t, json_number_value(number));
    json_t *value = json_string(t.data);
    text_free(&t);
    return value;
}

int main(int argc, char **argv)
{
    error err = {0};
    chat_prompt prompt = {0};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    if (argc > 1 && !(given = tokenizer_load(argv[1], &err))) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    while ((length = getline(&line, &capacity, stdin)) > 0) {
        json_t *request = json_parse(line, (size_t)length, "standard input", &err);
        json_t *value = request ? answer(request, &prompt) : json_pack("{s:s}", "error", err.text);
        json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
        putchar('\n');
        json_decref(value);
        json_decref(request);
    }
    free(line);
    chat_prompt_free(&prompt);
    tokenizer_free(given);
    return 0;
}
