/* Arbitrary JSON as a conversation: {"messages", "tools"} or the bare messages. The first byte chooses the format and the
 * options. Checked: no crash, an error text for every refusal, segments that tile the text, tokens that are control tokens
 * exactly where the format wrote them, and the same tokens as the whole text's when no text segment holds a control string. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../tiny_tokenizer.h"
#include "base/json.h"
#include "model/chat.h"

static tokenizer *tiny;
static chat_format *formats[4];

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void open_once(void)
{
    static const char *const names[] = {"glm-5.2", "glm-5.3", "glm-5", "nano"};
    error err = {0};
    if (tiny)
        return;
    tiny = tiny_tokenizer(CHAT_TEXT);
    for (size_t i = 0; i < 4; i++)
        require((formats[i] = chat_format_load(NULL, tiny, names[i], &err)) != NULL);
}

static bool has_added(const char *bytes, size_t count)
{
    token_list ids = {0};
    bool found = false;
    tokenizer_encode(tiny, bytes, count, true, &ids);
    for (size_t i = 0; i < ids.count; i++)
        found |= ids.ids[i] >= TINY_CONTROL;
    token_list_free(&ids);
    return found;
}

static void check(const chat_prompt *p)
{
    size_t end = 0, controls = 0, found = 0;
    bool plain = true;
    token_list mine = {0}, theirs = {0};
    for (size_t i = 0; i < p->segment_count; i++) {
        const chat_segment *s = &p->segments[i];
        require(s->offset == end && s->bytes > 0);
        require(i == 0 || s->control != CHAT_TEXT || s[-1].control != CHAT_TEXT);
        end += s->bytes;
        controls += s->control != CHAT_TEXT;
        plain &= s->control != CHAT_TEXT || !has_added(p->text.data + s->offset, s->bytes);
    }
    require(end == p->text.length && utf8_valid(p->text.data, p->text.length));
    chat_prompt_tokens(p, tiny, &mine);
    for (size_t i = 0; i < mine.count; i++)
        found += mine.ids[i] >= TINY_CONTROL;
    require(found == controls);
    tokenizer_encode(tiny, p->text.data, p->text.length, true, &theirs);
    require(!plain || (mine.count == theirs.count && memcmp(mine.ids, theirs.ids, mine.count * sizeof *mine.ids) == 0));
    token_list_free(&mine);
    token_list_free(&theirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    open_once();
    if (size == 0)
        return 0;
    error err = {0};
    chat_prompt p = {0};
    chat_options o = {.add_generation_prompt = data[0] & 4, .enable_thinking = (chat_switch)((data[0] >> 3) % 3),
                      .clear_thinking = (chat_switch)((data[0] >> 5) % 3), .reasoning_effort = data[0] & 128 ? "high" : NULL};
    json_t *request = json_parse((const char *)data + 1, size - 1, "input", &err);
    if (request) {
        const json_t *messages = json_is_array(request) ? request : json_object_get(request, "messages");
        if (chat_render(formats[data[0] & 3], messages, json_object_get(request, "tools"), &o, &p, &err))
            check(&p);
        else
            require(err.code != ERROR_NONE && err.text[0] && p.text.length == 0);
    }
    json_decref(request);
    chat_prompt_free(&p);
    return 0;
}
