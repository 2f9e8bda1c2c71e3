#include "eval/drafts.h"

#include <stdlib.h>

#include "base/memory.h"

static int32_t likeliest(forward *f, int32_t row)
{
    int32_t best = 0;
    const float *logits = forward_logits(f, 1, &row);
    for (int i = 1; i < f->model->config.vocab_size; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Trunk and draft head over tokens first .. end - 1; token `end` must be known. */
static bool extend(session *s, const int32_t *tokens, int first, int end, error *err)
{
    int32_t *positions = mem_alloc((size_t)s->chunk, sizeof *positions), *sequences = mem_alloc((size_t)s->chunk, sizeof *sequences);
    const int32_t *tables[1] = {s->page_table};
    bool ok = true;
    for (int n; ok && first < end; first += n) {
        n = end - first < s->chunk ? end - first : s->chunk;
        for (int i = 0; i < n; i++)
            positions[i] = first + i;
        step rows = {.rows = n, .tokens = tokens + first + 1, .positions = positions, .sequences = sequences, .page_tables = tables,
                     .pages = s->pages->memory, .keep_keys = true};
        ok = session_feed(s, tokens + first, n, err);
        if (ok)
            forward_draft_extend(s->forward, &rows, s->forward->a.hidden);
        if (ok && first + n == end) {
            int32_t last = n - 1;
            forward_draft_begin(s->forward, 1, &last);
        }
    }
    free(positions);
    free(sequences);
    return ok;
}

/* Drafts behind position `at` that equal what follows; tries at most `most`. */
static int accept(session *s, const int32_t *tokens, int at, int most, draft_counts *out)
{
    const int32_t *tables[1] = {s->page_table};
    int32_t draft = likeliest(s->forward, s->last_rows - 1), sequence = 0;
    for (int k = 0; k < most; k++) {
        out->tried[k]++;
        if (draft != tokens[at + 2 + k])
            return k;
        out->right[k]++;
        if (k + 1 == most)
            break;
        int32_t position = at + 1 + k;
        step more = {.rows = 1, .tokens = &draft, .positions = &position, .sequences = &sequence, .page_tables = tables,
                     .pages = s->pages->memory, .keep_keys = true};
        forward_draft_next(s->forward, &more);
        draft = likeliest(s->forward, 0);
    }
    return most;
}

bool drafts_replay(session *s, const int32_t *tokens, int count, int prompt_count, int drafts, draft_counts *out, error *err)
{
    int reused;
    if (count < prompt_count + 2)
        return true;
    if (!session_sync(s, tokens, count, &reused, err)) /* takes the pages of all positions */
        return false;
    session_truncate(s, 0);
    for (int first = 0, at = prompt_count - 1; at + 2 < count;) {
        if (!extend(s, tokens, first, at + 1, err))
            return false;
        int room = count - at - 2 < drafts ? count - at - 2 : drafts;
        int right = accept(s, tokens, at, room, out);
        if (room == drafts || right < room) {
            out->steps++;
            out->tokens += right + 1;
        }
        first = at + 1;
        at += right + 1;
    }
    return true;
}
