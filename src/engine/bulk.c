#include "engine/bulk.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* A sequence that is running. */
typedef struct bulk_slot {
    int request;           /* index; -1: the slot is free */
    int32_t *page_table;   /* [pages per sequence], taken at creation and kept */
    int cached;            /* tokens the pages hold */
    int32_t newest;        /* sampled last, not computed yet */
    sampler_state *history; /* NULL when no penalty is on */
} bulk_slot;

struct bulk {
    forward *forward;
    bulk_options options;
    kv_pages *pages;
    sampler *sampler;
    bulk_slot *slots;           /* [options.max_sequences] */
    const int32_t **page_tables; /* [max_sequences] */
    int32_t *tokens, *positions, *sequences; /* [forward->max_rows] of the step being composed */
    int32_t *logit_rows;        /* [max_sequences] rows of the step whose logits are wanted */
    int *logit_slots;           /* [max_sequences] the slots they belong to */
};

static bool take_pages(bulk *b, bulk_slot *s, error *err)
{
    int pages = (b->options.max_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    s->request = -1;
    s->page_table = mem_alloc((size_t)pages, sizeof *s->page_table);
    for (int i = 0; i < pages; i++)
        if (!kv_pages_take(b->pages, &s->page_table[i]))
            return error_set(err, ERROR_FIT, "the KV cache is too small for %d sequences", b->options.max_sequences);
    return true;
}

bulk *bulk_create(forward *f, const bulk_options *options, error *err)
{
    bulk *b = mem_alloc(1, sizeof *b);
    b->forward = f;
    b->options = *options;
    int most = f->max_rows < f->max_logit_rows ? f->max_rows : f->max_logit_rows;
    if (b->options.max_sequences > most)
        b->options.max_sequences = most; /* each running sequence needs a row and its logits */
    size_t slots = (size_t)b->options.max_sequences, rows = (size_t)f->max_rows;
    int64_t context = (options->max_context + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * KV_PAGE_TOKENS;
    b->slots = mem_alloc(slots, sizeof *b->slots);
    b->page_tables = mem_alloc(slots, sizeof *b->page_tables);
    b->logit_rows = mem_alloc(slots, sizeof *b->logit_rows);
    b->logit_slots = mem_alloc(slots, sizeof *b->logit_slots);
    b->tokens = mem_alloc(rows, sizeof *b->tokens);
    b->positions = mem_alloc(rows, sizeof *b->positions);
    b->sequences = mem_alloc(rows, sizeof *b->sequences);
    b->sampler = sampler_create(f->model->config.vocab_size, err);
    b->pages = kv_pages_create(f->device, context * b->options.max_sequences, err);
    bool ok = b->sampler && b->pages;
    for (int i = 0; ok && i < b->options.max_sequences; i++) {
        ok = take_pages(b, &b->slots[i], err);
        b->page_tables[i] = b->slots[i].page_table;
    }
    if (ok)
        return b;
    bulk_destroy(b);
    return NULL;
}

void bulk_destroy(bulk *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->options.max_sequences; i++) {
        sampler_state_free(b->slots[i].history);
        free(b->slots[i].page_table);
    }
    kv_pages_destroy(b->pages);
    sampler_free(b->sampler);
    free(b->slots);
    free(b->page_tables);
    free(b->logit_rows);
    free(b->logit_slots);
    free(b->tokens);
    free(b->positions);
    free(b->sequences);
    free(b);
}

static bool check_request(const bulk *b, const bulk_request *r, int index, error *err)
{
    int vocab = b->forward->model->config.vocab_size;
    if (r->prompt_count < 1 || r->max_tokens < 1)
        return error_set(err, ERROR_INPUT, "request %d needs at least one prompt token and one answer token", index);
    if (r->prompt_count > b->options.max_context - r->max_tokens)
        return error_set(err, ERROR_FIT,
                         "request %d has %d prompt tokens and may answer %d, but a sequence holds %d; raise the context", index,
                         r->prompt_count, r->max_tokens, b->options.max_context);
    for (int i = 0; i < r->prompt_count; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= vocab)
            return error_set(err, ERROR_INPUT, "request %d: token %d is %d, expected 0 to %d", index, i, r->prompt[i], vocab - 1);
    return sampler_params_check(&r->params, vocab, err);
}

static bool start(bulk_slot *s, bulk_request *requests, int index, error *err)
{
    bulk_request *r = &requests[index];
    s->request = index;
    s->cached = 0;
    r->answer.count = 0;
    if (r->params.logprobs >= 0)
        r->logprobs = mem_alloc((size_t)r->max_tokens, sizeof *r->logprobs);
    if (sampler_params_use_history(&r->params))
        s->history = sampler_state_create(r->prompt, (size_t)r->prompt_count, (size_t)r->max_tokens, err);
    return s->history || !sampler_params_use_history(&r->params);
}

static void add_row(bulk *b, step *s, int slot, int32_t token)
{
    b->tokens[s->rows] = token;
    b->positions[s->rows] = b->slots[slot].cached++;
    b->sequences[s->rows++] = slot;
}

/* Decoding sequences first, one row each; then prompts, each as far as the step has room. Returns how many logits are wanted. */
static int compose(bulk *b, const bulk_request *requests, step *s)
{
    int wanted = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < b->options.max_sequences && s->rows < b->forward->max_rows; i++) {
            bulk_slot *slot = &b->slots[i];
            if (slot->request < 0)
                continue;
            const bulk_request *r = &requests[slot->request];
            bool decoding = slot->cached >= r->prompt_count;
            if (decoding != (pass == 0))
                continue;
            if (decoding)
                add_row(b, s, i, slot->newest);
            while (!decoding && slot->cached < r->prompt_count && s->rows < b->forward->max_rows)
                add_row(b, s, i, r->prompt[slot->cached]);
            if (slot->cached < r->prompt_count)
                continue;
            b->logit_rows[wanted] = s->rows - 1;
            b->logit_slots[wanted++] = i;
        }
    return wanted;
}

static bool is_eos(const bulk *b, int32_t token)
{
    for (int i = 0; i < b->options.eos_count; i++)
        if (b->options.eos[i] == token)
            return true;
    return false;
}

/* Takes one sampled token in; *last: it was the last one. */
static bool take_token(bulk *b, bulk_slot *slot, bulk_request *r, const sampler_result *result, bool *last, error *err)
{
    if (r->params.logprobs >= 0)
        r->logprobs[r->answer.count] = result->logprob;
    token_list_add(&r->answer, result->token);
    slot->newest = result->token;
    if (slot->history && !sampler_state_add(slot->history, result->token, err))
        return false;
    r->finish = is_eos(b, result->token) ? BULK_STOP : BULK_LENGTH;
    *last = r->finish == BULK_STOP || r->answer.count >= (size_t)r->max_tokens;
    return true;
}

static void leave(bulk_slot *slot)
{
    sampler_state_free(slot->history);
    slot->history = NULL;
    slot->request = -1;
}

/* One step for all running sequences. */
static bool run_step(bulk *b, bulk_request *requests, bulk_done done, void *context, error *err)
{
    step s = {.tokens = b->tokens, .positions = b->positions, .sequences = b->sequences, .page_tables = b->page_tables,
              .pages = b->pages->memory, .keep_keys = true};
    int wanted = compose(b, requests, &s);
    size_t vocab = (size_t)b->forward->model->config.vocab_size;
    forward_run(b->forward, &s);
    const float *logits = wanted ? forward_logits(b->forward, wanted, b->logit_rows) : NULL;
    for (int i = 0; i < wanted; i++) {
        bulk_slot *slot = &b->slots[b->logit_slots[i]];
        bulk_request *r = &requests[slot->request];
        sampler_result result;
        bool last = false;
        if (!sampler_sample(b->sampler, &r->params, slot->history, logits + (size_t)i * vocab, (uint64_t)slot->cached, &result, err) ||
            !take_token(b, slot, r, &result, &last, err))
            return error_add(err, "request %d", slot->request);
        if (!last)
            continue;
        int index = slot->request;
        leave(slot);
        if (done)
            done(context, requests, index);
    }
    return true;
}

/* Gives free slots to waiting requests; *running: how many sequences are then running. */
static bool fill_slots(bulk *b, bulk_request *requests, int count, int *next, int *running, error *err)
{
    *running = 0;
    for (int i = 0; i < b->options.max_sequences; i++) {
        if (b->slots[i].request < 0 && *next < count && !start(&b->slots[i], requests, (*next)++, err))
            return false;
        *running += b->slots[i].request >= 0;
    }
    return true;
}

bool bulk_run(bulk *b, bulk_request *requests, int count, bulk_done done, void *context, error *err)
{
    for (int i = 0; i < count; i++)
        if (!check_request(b, &requests[i], i, err))
            return false;
    int next = 0, running = 0;
    bool ok;
    while ((ok = fill_slots(b, requests, count, &next, &running, err)) && running > 0) {
        if (b->options.stop && *b->options.stop)
            ok = error_set(err, ERROR_INTERRUPTED, "interrupted");
        else
            ok = run_step(b, requests, done, context, err);
        if (!ok)
            break;
    }
    for (int i = 0; i < b->options.max_sequences; i++)
        leave(&b->slots[i]);
    return ok;
}

bool bulk_score(bulk *b, const int32_t *tokens, int count, bulk_rows rows, void *context, error *err)
{
    bulk_request whole = {.prompt = tokens, .prompt_count = count, .max_tokens = 1,
                          .params = sampler_params_default(b->forward->model->config.vocab_size)};
    if (count >= b->options.max_context)
        return error_set(err, ERROR_FIT, "%d tokens do not fit the context of %d", count, b->options.max_context);
    if (!check_request(b, &whole, 0, err))
        return false;
    forward *f = b->forward;
    int chunk = f->max_rows < f->max_logit_rows ? f->max_rows : f->max_logit_rows;
    int32_t *all = mem_alloc((size_t)chunk, sizeof *all);
    for (int i = 0; i < chunk; i++)
        all[i] = i;
    bool ok = true;
    b->slots[0].cached = 0;
    for (int first = 0; ok && first < count; first += chunk) {
        step s = {.tokens = b->tokens, .positions = b->positions, .sequences = b->sequences, .page_tables = b->page_tables,
                  .pages = b->pages->memory, .keep_keys = true};
        while (s.rows < chunk && first + s.rows < count)
            add_row(b, &s, 0, tokens[first + s.rows]);
        forward_run(f, &s);
        rows(context, first, s.rows, forward_logits(f, s.rows, all));
        if (b->options.stop && *b->options.stop)
            ok = error_set(err, ERROR_INTERRUPTED, "interrupted after %d of %d tokens", first + s.rows, count);
    }
    free(all);
    return ok;
}
