#include "engine/generate.h"

#include "base/file.h"
#include "base/json.h"

bool generator_begin(generator *g, session *s, const sampler_params *params, const int32_t *prompt, int count, int limit, error *err)
{
    int vocab = s->forward->model->config.vocab_size;
    sampler_state_free(g->history);
    g->history = NULL;
    g->session = s;
    g->params = *params;
    g->previous = -1;
    g->prompt_count = count;
    g->produced = 0;
    if (!sampler_params_check(params, vocab, err))
        return false;
    if (!g->sampler && !(g->sampler = sampler_create(vocab, err)))
        return false;
    if (sampler_params_use_history(params)) {
        g->history = sampler_state_create(prompt, (size_t)count, (size_t)limit, err);
        if (!g->history)
            return false;
    }
    return session_sync(s, prompt, count, &g->reused, err);
}

bool generator_next(generator *g, sampler_result *out, error *err)
{
    if (g->previous >= 0 && !session_feed(g->session, &g->previous, 1, err))
        return false;
    if (!sampler_sample(g->sampler, &g->params, g->history, session_logits(g->session), (uint64_t)g->session->count, out, err))
        return false;
    g->previous = out->token;
    g->produced++;
    return !g->history || sampler_state_add(g->history, out->token, err);
}

void generator_free(generator *g)
{
    sampler_free(g->sampler);
    sampler_state_free(g->history);
    *g = (generator){0};
}

static bool read_defaults(json_source s, sampler_params *p, error *err)
{
    int64_t top_k = p->top_k;
    bool sample = true;
    bool ok = json_get_bool_or(s, "do_sample", &sample, err) &&
              json_get_number_or(s, "temperature", 0, 100, &p->temperature, err) && json_get_number_or(s, "top_p", 0, 1, &p->top_p, err) &&
              json_get_number_or(s, "min_p", 0, 1, &p->min_p, err) && json_get_int_or(s, "top_k", -1, INT32_MAX, &top_k, err) &&
              json_get_number_or(s, "repetition_penalty", 0, 10, &p->repetition_penalty, err);
    p->top_k = (int)top_k;
    if (!sample)
        p->temperature = 0;
    return ok;
}

bool generation_defaults(const char *directory, sampler_params *p, error *err)
{
    enum { LIMIT_BYTES = 1 << 20 };
    text path = {0};
    bool ok = true;
    path_join(&path, directory, "generation_config.json");
    if (file_exists(path.data)) {
        json_t *root = json_parse_file(path.data, LIMIT_BYTES, err);
        ok = root && read_defaults((json_source){root, path.data}, p, err);
        json_decref(root);
    }
    text_free(&path);
    return ok;
}
