/* Arbitrary bodies for the handlers of the Messages API and of the native API on a fake server. The first byte chooses the handler, the
 * second the chat format and when the client goes away; then the body, a zero byte, and bytes that choose what the engine answers. Checked:
 * no crash and no leak, exactly one reply or a stream with an end unless the client went away, a sentence for every refusal, and that a
 * conversation that was accepted can be rendered. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../tiny_tokenizer.h"
#include "../unit/serve_fakes.h"
#include "serve/anthropic_request.h"

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

/* One event of a generation: a piece, a token or a step. A call's pieces come in the order of a real parser. */
static void play(generation *g, int choice, uint8_t byte, bool *in_call)
{
    static const char *const words[] = {"x", "", " y", "{\"a\": 1}"};
    const char *w = words[byte >> 3 & 3];
    generation_token token = {byte, NULL};
    switch (byte & 7) {
    case 0: fake_piece(g, choice, CHAT_EVENT_REASONING, *in_call ? "" : w); break;
    case 1: fake_piece(g, choice, CHAT_EVENT_CONTENT, *in_call ? "" : w); break;
    case 2:
        if (!*in_call)
            fake_piece(g, choice, CHAT_EVENT_CALL_BEGIN, "get");
        *in_call = true;
        break;
    case 3:
        if (*in_call)
            fake_piece(g, choice, CHAT_EVENT_CALL_ARGUMENTS, w);
        break;
    case 4:
        if (*in_call)
            fake_piece(g, choice, CHAT_EVENT_CALL_END, "");
        *in_call = false;
        break;
    case 5:
        if (!g->cancelled && g->sink.tokens)
            g->sink.tokens(g->sink.context, choice, &token, 1);
        break;
    default: fake_step(g, choice);
    }
}

static void answer(const uint8_t *bytes, size_t count)
{
    for (int i = 0; i < fake_generation_count; i++) {
        generation *g = &fake_generations[i];
        for (int choice = 0; choice < g->spec.choices; choice++) {
            bool in_call = false;
            for (size_t k = 0; k < count; k++)
                play(g, choice, bytes[k], &in_call);
            generation_finish f = {.end = (generation_end)(count % 6), .stop_id = -1, .stop_text = count % 7 ? NULL : "END"};
            fake_finish(g, choice, f);
        }
        fake_done(g);
    }
}

/* What must hold for the prompts that came through. */
static void check_specs(void)
{
    for (int i = 0; i < fake_generation_count; i++) {
        const generation_spec *s = &fake_generations[i].spec;
        require(s->choices >= 1 && s->choices <= GENERATION_CHOICES_MOST && s->max_tokens >= 1);
        require(s->forced.count <= s->prompt.count);
        for (size_t k = 0; k < s->prompt.count; k++)
            require(s->prompt.ids[k] >= 0 && s->prompt.ids[k] < TINY_COUNT);
    }
}

/* The conversion has checked everything that the renderer would refuse, except what a format cannot do. */
static void check_conversion(const char *body, bool counting, const chat_format *f)
{
    error err = {0};
    anthropic_request r = {0};
    anthropic_prompt p = {0};
    json_t *value = json_parse(body, strlen(body), "body", &err);
    if (value && anthropic_request_read(value, counting, &r, &err) && !anthropic_prompt_make(&r, f, tiny, &p, &err))
        require(text_starts_with(err.text, "thinking.type: ") || text_starts_with(err.text, "context_management.edits[0].keep: "));
    anthropic_prompt_free(&p);
    anthropic_request_free(&r);
    json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const server_handler handlers[] = {handle_anthropic_messages, handle_anthropic_count, handle_generate, handle_tokenize,
                                              handle_detokenize, handle_abort_request};
    open_once();
    if (size < 2)
        return 0;
    server s = {.tokenizer = tiny, .format = formats[data[1] & 3], .defaults = sampler_params_default(TINY_COUNT)};
    s.options.model_name = "m";
    const uint8_t *end = memchr(data + 2, 0, size - 2);
    size_t bytes = end ? (size_t)(end - data - 2) : size - 2;
    char *body = mem_copy(data + 2, bytes);
    http_exchange x = {.body = body, .close_at = data[1] >> 2};
    fake_reset();
    fake_refuse_status = 503;
    fake_refuse_from = FAKE_GENERATIONS;
    handlers[data[0] % 6](&s, &x, NULL);
    check_specs();
    answer(end ? end + 1 : data, end ? size - bytes - 3 : 0);
    require(x.ended || x.status == 400 || (x.close_at && x.writes >= x.close_at));
    require(x.status == 200 || x.status == 0 || x.body_out.length > 0);
    if (data[0] % 6 < 2)
        check_conversion(body, data[0] % 6 == 1, s.format);
    fake_reset();
    fake_exchange_free(&x);
    free(body);
    return 0;
}
