#include "engine/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

session *session_create(forward *f, kv_pages *pages, int max_tokens, int chunk, error *err)
{
    if (max_tokens < 1 || max_tokens > f->model->config.max_positions) {
        error_set(err, ERROR_FIT, "a context of %d tokens is not possible: the model allows 1 to %d", max_tokens,
                  f->model->config.max_positions);
        return NULL;
    }
    session *s = mem_alloc(1, sizeof *s);
    *s = (session){.forward = f, .pages = pages, .max_tokens = max_tokens, .chunk = chunk < f->max_rows ? chunk : f->max_rows};
    s->tokens = mem_alloc((size_t)max_tokens, sizeof *s->tokens);
    s->page_table = mem_alloc((size_t)(max_tokens / KV_PAGE_TOKENS + 1), sizeof *s->page_table);
    return s;
}

void session_destroy(session *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->page_count; i++)
        kv_pages_drop(s->pages, s->page_table[i]);
    free(s->tokens);
    free(s->page_table);
    free(s);
}

void session_truncate(session *s, int count)
{
    if (count < s->count)
        s->count = count;
}

/* Takes pages until positions below `count` have one. */
static bool reserve(session *s, int count, error *err)
{
    bool may_grow = s->max_tokens < s->forward->model->config.max_positions;
    if (count > s->max_tokens)
        return error_set(err, ERROR_FIT, "the sequence would have %d tokens, the context has room for %d; shorten it%s", count,
                         s->max_tokens, may_grow ? " or raise --context" : " (the model allows no more)");
    while (s->page_count * KV_PAGE_TOKENS < count) {
        if (!kv_pages_take(s->pages, &s->page_table[s->page_count]))
            return error_set(err, ERROR_FIT, "the KV cache is full at %d tokens; raise --context", s->page_count * KV_PAGE_TOKENS);
        s->page_count++;
    }
    return true;
}

/* Token ids index the embedding: what is not in the vocabulary must never get there. */
static bool check_tokens(const session *s, const int32_t *tokens, int count, error *err)
{
    int vocab = s->forward->model->config.vocab_size;
    for (int i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return error_set(err, ERROR_INPUT, "token %d of the sequence is %d, expected 0 to %d", s->count + i, tokens[i], vocab - 1);
    return true;
}

bool session_feed(session *s, const int32_t *tokens, int count, error *err)
{
    if (!check_tokens(s, tokens, count, err) || !reserve(s, s->count + count, err))
        return false;
    int32_t *positions = mem_alloc((size_t)count, sizeof *positions), *sequences = mem_alloc((size_t)count, sizeof *sequences);
    const int32_t *tables[1] = {s->page_table};
    for (int i = 0; i < count; i++)
        positions[i] = s->count + i;
    step rows = {.rows = count, .tokens = tokens, .positions = positions, .sequences = sequences, .page_tables = tables,
                 .pages = s->pages->memory, .keep_keys = true};
    forward_run(s->forward, &rows);
    free(positions);
    free(sequences);
    memcpy(s->tokens + s->count, tokens, (size_t)count * sizeof *tokens);
    s->count += count;
    s->last_rows = count;
    return true;
}

static int common_prefix(const session *s, const int32_t *tokens, int count)
{
    int n = 0;
    while (n < count && n < s->count && s->tokens[n] == tokens[n])
        n++;
    return n;
}

bool session_sync(session *s, const int32_t *tokens, int count, int *reused, error *err)
{
    int kept = common_prefix(s, tokens, count);
    if (kept == count)
        kept--; /* the last position is computed again for its logits */
    session_truncate(s, kept);
    *reused = kept;
    if (!reserve(s, count, err))
        return false;
    progress *p = progress_start("prompt", "tokens", count - kept);
    bool ok = true;
    while (ok && s->count < count) {
        if (s->stop && *s->stop)
            ok = error_set(err, ERROR_INTERRUPTED, "interrupted after %d of %d prompt tokens", s->count, count);
        else
            ok = session_feed(s, tokens + s->count, count - s->count < s->chunk ? count - s->count : s->chunk, err);
        progress_update(p, s->count - kept);
    }
    progress_finish(p);
    return ok;
}

const float *session_step_logits(session *s, int first, int count)
{
    int32_t *rows = mem_alloc((size_t)count, sizeof *rows);
    for (int i = 0; i < count; i++)
        rows[i] = first + i;
    const float *logits = forward_logits(s->forward, count, rows);
    free(rows);
    return logits;
}

const float *session_logits(session *s)
{
    return session_step_logits(s, s->last_rows - 1, 1);
}
