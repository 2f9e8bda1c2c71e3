#include "engine/sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static bool check_tokens(const int32_t *tokens, int count, int vocab, const char *what, error *err)
{
    for (int i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return error_set(err, ERROR_INPUT, "%s %d is %d, expected a token id from 0 to %d", what, i, tokens[i], vocab - 1);
    return true;
}

static bool check(const engine_request *r, const model_config *c, int max_context, error *err)
{
    if (r->prompt_count < 1)
        return error_set(err, ERROR_INPUT, "the prompt is empty; at least one token is needed");
    if (r->max_tokens < 1)
        return error_set(err, ERROR_INPUT, "max_tokens is %d, expected at least 1", r->max_tokens);
    if (r->prompt_count > max_context - r->max_tokens)
        return error_set(err, ERROR_FIT, "the prompt has %d tokens and the answer may have %d, together more than the context of %d; "
                         "shorten the prompt or lower max_tokens", r->prompt_count, r->max_tokens, max_context);
    if (r->min_tokens < 0 || r->min_tokens > r->max_tokens)
        return error_set(err, ERROR_INPUT, "min_tokens is %d, expected 0 to max_tokens (%d)", r->min_tokens, r->max_tokens);
    if (r->stop_count < 0)
        return error_set(err, ERROR_INPUT, "stop_count is %d, expected the number of stop tokens", r->stop_count);
    return check_tokens(r->prompt, r->prompt_count, c->vocab_size, "prompt token", err) &&
           check_tokens(r->stop_ids, r->stop_count, c->vocab_size, "stop token", err) &&
           sampler_params_check(&r->params, c->vocab_size, err);
}

/* What ends the answer: the model's tokens and the request's own. */
static void copy_stops(sequence *s, const engine_request *r, const model_config *c)
{
    int own = r->ignore_eos ? 0 : c->eos_count;
    s->stop_ids = mem_alloc((size_t)(own + r->stop_count + 1), sizeof *s->stop_ids);
    for (int i = 0; i < own; i++)
        s->stop_ids[s->stop_count++] = c->eos[i];
    for (int i = 0; i < r->stop_count; i++)
        s->stop_ids[s->stop_count++] = r->stop_ids[i];
}

/* params with the request's biases; early with the end tokens banned behind them. With ignore_eos the model's own end tokens may be
 * sampled at any time. */
static void copy_params(sequence *s, const engine_request *r)
{
    int count = r->params.bias_count;
    s->bias = mem_alloc((size_t)(count + s->stop_count + 1), sizeof *s->bias);
    if (count > 0)
        memcpy(s->bias, r->params.bias, (size_t)count * sizeof *s->bias);
    for (int i = 0; i < s->stop_count; i++)
        s->bias[count + i] = (sampler_bias){s->stop_ids[i], -INFINITY};
    s->params = r->params;
    s->params.bias = s->bias;
    s->early = s->params;
    s->early.bias_count = count + s->stop_count;
}

sequence *sequence_create(const engine_request *r, const model_config *c, int max_context, error *err)
{
    if (!check(r, c, max_context, err))
        return NULL;
    sequence *s = mem_alloc(1, sizeof *s);
    s->user = r->user;
    s->token_capacity = r->prompt_count + 64;
    s->tokens = mem_alloc((size_t)s->token_capacity, sizeof *s->tokens);
    memcpy(s->tokens, r->prompt, (size_t)r->prompt_count * sizeof *s->tokens);
    s->prompt_count = s->known = r->prompt_count;
    s->limit = r->prompt_count + r->max_tokens;
    s->min_known = r->prompt_count + r->min_tokens;
    s->space = mem_copy(r->space ? r->space : "", r->space ? strlen(r->space) : 0);
    s->priority = r->priority;
    s->deadline_us = r->deadline_us;
    s->stats.prompt_tokens = r->prompt_count;
    copy_stops(s, r, c);
    copy_params(s, r);
    if (sampler_params_use_history(&s->params))
        s->history = sampler_state_create(r->prompt, (size_t)r->prompt_count, (size_t)r->max_tokens + SPEC_DEPTH_MOST, err);
    if (s->history || !sampler_params_use_history(&s->params))
        return s;
    sequence_free(s);
    return NULL;
}

void sequence_free(sequence *s)
{
    if (!s)
        return;
    sampler_state_free(s->history);
    free(s->tokens);
    free(s->page_table);
    free(s->space);
    free(s->bias);
    free(s->stop_ids);
    free(s);
}

void sequence_append(sequence *s, int32_t token)
{
    if (s->known == s->token_capacity) {
        s->token_capacity *= 2;
        s->tokens = mem_grow(s->tokens, (size_t)s->token_capacity, sizeof *s->tokens);
    }
    s->tokens[s->known++] = token;
}

void sequence_reserve_pages(sequence *s, int pages)
{
    if (pages <= s->page_capacity)
        return;
    s->page_capacity = pages + pages / 2 + 4;
    s->page_table = mem_grow(s->page_table, (size_t)s->page_capacity, sizeof *s->page_table);
}

bool sequence_ends_with(const sequence *s, int32_t token)
{
    for (int i = 0; i < s->stop_count; i++)
        if (s->stop_ids[i] == token)
            return true;
    return false;
}

const sampler_params *sequence_params(const sequence *s, int position)
{
    return position < s->min_known ? &s->early : &s->params;
}

bool sequence_begins_alike(const sequence *a, const sequence *b, int first, int count)
{
    size_t size = sizeof *a->tokens;
    return memcmp(a->tokens + first, b->tokens + first, (size_t)(count - first) * size) == 0 &&
           memcmp(a->tokens, b->tokens, (size_t)first * size) == 0 && strcmp(a->space, b->space) == 0;
}
