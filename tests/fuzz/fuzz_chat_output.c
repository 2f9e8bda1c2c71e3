/* Random token streams through the parser of chat output. A byte of the input is a token: 0 to 127 a character, then longer
 * tokens, every control token, and bytes that are half characters, so that damage at any place is common. Checked: no crash,
 * whole characters only, events in a sensible order, arguments of complete calls are JSON objects, and the same text whether
 * events are taken after every token or at the end. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../tiny_tokenizer.h"
#include "base/json.h"
#include "model/chat_output.h"

static tokenizer *tiny;
static chat_format *format;
static json_t *tools;

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void open_once(void)
{
    error err = {0};
    if (tiny)
        return;
    tiny = tiny_tokenizer(CHAT_TEXT);
    format = chat_format_load(NULL, tiny, "glm-5.2", &err);
    tools =
        json_loads("[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
                   "\"b\":{\"type\":[\"boolean\",\"null\"]},\"o\":{\"anyOf\":[{\"type\":\"object\"},{\"type\":\"array\"}]},"
                   "\"u\":{\"type\":[\"string\",\"number\"]}}}},{\"name\":\"\\n\"}]",
                   0, NULL);
    require(format && tools);
}

static int32_t token_of(uint8_t byte)
{
    int32_t upper = byte - 128;
    if (byte < 128)
        return byte;
    if (upper < TINY_COUNT - TINY_LONG)
        return TINY_LONG + upper;
    return 128 + (upper * 37) % 128; /* half characters */
}

/* What the events of one run add up to. */
typedef struct sums {
    text all;       /* every text, with a letter for its kind where the kind changes */
    text arguments; /* of the open call */
    int last_kind, calls;
    bool open, finished;
} sums;

static void sums_add(sums *s, const chat_event *e)
{
    require(!s->finished && utf8_valid(e->text.data, e->text.length));
    bool of_call = e->kind == CHAT_EVENT_CALL_ARGUMENTS || e->kind == CHAT_EVENT_CALL_END;
    require(of_call == s->open || e->kind == CHAT_EVENT_CALL_BEGIN);
    if ((int)e->kind != s->last_kind || e->kind == CHAT_EVENT_CALL_BEGIN)
        text_add_char(&s->all, (char)('\1' + (int)e->kind));
    s->last_kind = (int)e->kind;
    text_add(&s->all, e->text.data, e->text.length);
    if (e->kind == CHAT_EVENT_CALL_BEGIN) {
        require(!s->open && e->call == s->calls && e->text.length > 0);
        s->open = true;
        text_clear(&s->arguments);
    } else if (e->kind == CHAT_EVENT_CALL_ARGUMENTS) {
        text_add(&s->arguments, e->text.data, e->text.length);
    } else if (e->kind == CHAT_EVENT_CALL_END) {
        error err = {0};
        json_t *v = e->complete ? json_parse(s->arguments.data, s->arguments.length, "arguments", &err) : NULL;
        require(!e->complete || json_is_object(v));
        json_decref(v);
        s->open = false;
        s->calls++;
    } else if (e->kind == CHAT_EVENT_FINISH) {
        s->finished = true;
    }
}

static void run(const uint8_t *data, size_t size, bool eager, sums *s)
{
    chat_event e;
    chat_output *o = chat_output_new(format, tiny, tools, size > 0 && (data[0] & 1));
    s->last_kind = -1;
    for (size_t i = 1; i < size; i++) {
        chat_output_add(o, token_of(data[i]));
        while (eager && chat_output_next(o, &e))
            sums_add(s, &e);
    }
    chat_output_end(o);
    while (chat_output_next(o, &e))
        sums_add(s, &e);
    require(s->finished);
    chat_output_free(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sums eager = {0}, late = {0};
    open_once();
    run(data, size, true, &eager);
    run(data, size, false, &late);
    require(eager.all.length == late.all.length && memcmp(eager.all.data, late.all.data, eager.all.length) == 0);
    text_free(&eager.all);
    text_free(&eager.arguments);
    text_free(&late.all);
    text_free(&late.arguments);
    return 0;
}
