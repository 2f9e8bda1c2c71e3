/* Any bytes as the body of a chat request, or after a first byte '!' of a completion request. Checked: no crash, no leak; a refusal has a
 * status and a sentence, and what is accepted is within the engine's limits. */
#include <stdint.h>
#include <stdlib.h>

#include "../tiny_tokenizer.h"
#include "base/json.h"
#include "serve/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_tokens(const token_list *l)
{
    require(l->count > 0);
    for (size_t i = 0; i < l->count; i++)
        require(l->ids[i] >= 0 && l->ids[i] < TINY_COUNT);
}

static void check_accepted(const api_request *r, const openai_prompts *p)
{
    error err = {0};
    const generation_spec *s = &r->spec;
    require(sampler_params_check(&s->params, TINY_COUNT, &err));
    require(s->choices >= 1 && s->choices <= GENERATION_CHOICES_MOST);
    require(s->max_tokens >= 0 && s->min_tokens >= 0 && s->timeout_s >= 0);
    for (int i = 0; i < s->stop_count; i++)
        require(s->stops[i][0] != '\0');
    for (int i = 0; i < p->count; i++)
        check_tokens(&p->tokens[i]);
    if (r->api == API_CHAT)
        check_tokens(&s->prompt);
    else
        require(p->count >= 1 && p->count * s->choices <= OPENAI_CHOICES_MOST);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static openai_context c;
    error err = {0};
    if (!c.tokenizer) {
        tokenizer *tiny = tiny_tokenizer(CHAT_TEXT);
        c = (openai_context){.tokenizer = tiny, .format = chat_format_load(NULL, tiny, "glm-5.2", &err), .model_name = "tiny",
                             .defaults = sampler_params_default(TINY_COUNT)};
    }
    bool completions = size > 0 && data[0] == '!';
    json_t *body = json_parse((const char *)data + completions, size - completions, "request", &err);
    if (!body)
        return 0;
    api_request r = {0};
    openai_prompts p = {0};
    request_error e = {0};
    bool ok = completions ? openai_completions_read(&c, body, &r, &p, &e) : openai_chat_read(&c, body, &r, &e);
    if (ok)
        check_accepted(&r, &p);
    else
        require(e.status >= 400 && e.err.text[0] != '\0');
    api_request_free(&r);
    openai_prompts_free(&p);
    json_decref(body);
    return 0;
}
