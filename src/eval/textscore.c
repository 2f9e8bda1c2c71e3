#include "eval/textscore.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"

text_window *text_windows(const token_list *tokens, int length, size_t *count)
{
    text_window *list = mem_alloc(tokens->count / (size_t)length + 1, sizeof *list);
    *count = 0;
    for (size_t first = 0; first + 2 <= tokens->count; first += (size_t)length) {
        size_t left = tokens->count - first;
        list[(*count)++] = (text_window){tokens->ids + first, left < (size_t)length ? (int)left : length};
    }
    return list;
}

static int largest(const float *row, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (row[i] > row[best])
            best = i;
    return best;
}

/* ln of the sum of exp. */
static double log_sum(const float *row, int count)
{
    double top = row[largest(row, count)], sum = 0;
    for (int i = 0; i < count; i++)
        sum += exp((double)row[i] - top);
    return top + log(sum);
}

double row_nll(const float *logits, int count, int32_t token)
{
    return log_sum(logits, count) - (double)logits[token];
}

double row_divergence(const float *p, const float *q, int count, bool *agree)
{
    double sum_p = log_sum(p, count), sum_q = log_sum(q, count), kl = 0;
    for (int i = 0; i < count; i++) {
        double log_p = (double)p[i] - sum_p, log_q = (double)q[i] - sum_q;
        kl += exp(log_p) * (log_p - log_q);
    }
    *agree = largest(p, count) == largest(q, count);
    return kl > 0 ? kl : 0; /* rounding can leave a tiny negative sum */
}

typedef struct nll_sum {
    text_window window;
    int vocab, used;
    double sum;
} nll_sum;

static void add_rows(void *context, int first, int count, const float *logits)
{
    nll_sum *s = context;
    for (int i = 0; i < count && first + i + 1 < s->window.count; i++)
        s->sum += row_nll(logits + (size_t)i * (size_t)s->vocab, s->used, s->window.tokens[first + i + 1]);
}

static int vocab_used(const eval_model *m, int vocab)
{
    int used = tokenizer_size(m->tokenizer);
    return used < vocab ? used : vocab;
}

bool text_window_nll(eval_model *m, text_window w, double *nll, error *err)
{
    int vocab = m->session->forward->model->config.vocab_size;
    nll_sum s = {.window = w, .vocab = vocab, .used = vocab_used(m, vocab)};
    if (!bulk_score(m->bulk, w.tokens, w.count, add_rows, &s, err))
        return false;
    *nll = s.sum;
    return isfinite(s.sum) || error_set(err, ERROR_RUNTIME, "the model's logits are not finite");
}

bool text_window_divergence(eval_model *m, eval_model *reference, text_window w, double *kl, int64_t *agree, error *err)
{
    session *a = reference->session, *b = m->session;
    int vocab = b->forward->model->config.vocab_size, used = vocab_used(m, vocab);
    int rows = a->forward->max_logit_rows < b->forward->max_logit_rows ? a->forward->max_logit_rows : b->forward->max_logit_rows;
    session_truncate(a, 0);
    session_truncate(b, 0);
    for (int first = 0; first < w.count - 1;) {
        int n = w.count - 1 - first < rows ? w.count - 1 - first : rows;
        if (m->stop && *m->stop)
            return error_set(err, ERROR_INTERRUPTED, "interrupted");
        if (!session_feed(a, w.tokens + first, n, err) || !session_feed(b, w.tokens + first, n, err))
            return false;
        const float *p = session_step_logits(a, 0, n), *q = session_step_logits(b, 0, n);
        for (int i = 0; i < n; i++) {
            bool same;
            kl[first + i] = row_divergence(p + (size_t)i * (size_t)vocab, q + (size_t)i * (size_t)vocab, used, &same);
            *agree += same;
            if (!isfinite(kl[first + i]))
                return error_set(err, ERROR_RUNTIME, "the models' logits are not finite at position %d of a window", first + i);
        }
        first += n;
    }
    return true;
}
