/* One sequence and its cache: what `run`, `chat` and `logits` drive. The server's scheduler batches many; this is the simple case.
 *
 * session_sync is the one verb that decides between reusing, extending and rebuilding: give it the whole prompt and it computes only
 * what the cache does not hold. */
#ifndef ENGINE_SESSION_H
#define ENGINE_SESSION_H

#include <signal.h>

#include "engine/kv_pages.h"
#include "forward/forward.h"

typedef struct session {
    forward *forward;
    kv_pages *pages;
    int32_t *page_table; /* [max_tokens / 64 rounded up] */
    int page_count;      /* pages taken so far */
    int32_t *tokens;     /* [max_tokens] the tokens the cache holds */
    int count;           /* how many */
    int max_tokens;
    int chunk;           /* rows of one step while a prompt is computed, at most forward->max_rows */
    int last_rows;       /* rows of the latest step */
    const volatile sig_atomic_t *stop; /* when it becomes non-zero, session_sync ends with ERROR_INTERRUPTED; NULL: never */
} session;

session *session_create(forward *f, kv_pages *pages, int max_tokens, int chunk, error *err);
void session_destroy(session *s);

/* One step: appends 1 .. forward->max_rows tokens to the sequence. */
bool session_feed(session *s, const int32_t *tokens, int count, error *err);

/* Makes the cache hold exactly these tokens (count >= 1). *reused: how many were there already. */
bool session_sync(session *s, const int32_t *tokens, int count, int *reused, error *err);

/* Logits of the latest position; valid until the next step. */
const float *session_logits(session *s);

/* Logits of rows first .. first + count - 1 of the latest step, [count][vocab]. */
const float *session_step_logits(session *s, int first, int count);

/* Forgets everything from token `count` on. Nothing is computed. */
void session_truncate(session *s, int count);

#endif
