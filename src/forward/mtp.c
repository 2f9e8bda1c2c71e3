/* The draft head (multi-token prediction, spec 3): one more decoder layer that reads the trunk's hidden state of position p and the
 * token of position p + 1 and guesses the token of position p + 2; fed with its own output it goes on guessing.
 *
 * With index sharing (GLM-5.2) the positions chosen by the first step serve all further steps of a chain, which then look at the
 * cache without writing to it. Without it (GLM-5, 5.1) each step writes its keys one position further and chooses anew. */
#include "forward/forward.h"
#include "forward/tap.h"

static void draft_step(forward *f, const step *s, const float *hidden, bool choose)
{
    device *d = f->device;
    device_program program = choose ? DEVICE_DRAFT : DEVICE_DRAFT_SHARE;
    if (d->ops->begin(d, s, f->tap ? DEVICE_LOOSE : program, hidden, &f->a))
        return;
    d->ops->draft_embed(d, s, hidden, &f->a);
    forward_layer(f, s, f->model->config.layers, choose);
    d->ops->finish(d, s, true, &f->a);
    tap_finish(f, s, true);
    d->ops->end(d);
}

void forward_draft_extend(forward *f, const step *s, const float *hidden)
{
    draft_step(f, s, hidden, true);
}

void forward_draft_follow(forward *f, const step *s, const int32_t *rows)
{
    device *d = f->device;
    d->ops->gather(d, f->draft_hidden, f->a.hidden, s->rows, rows, (size_t)f->model->config.hidden_size * sizeof(float));
    draft_step(f, s, f->draft_hidden, true);
}

void forward_draft_begin(forward *f, int count, const int32_t *rows)
{
    const model_config *m = &f->model->config;
    device *d = f->device;
    d->ops->gather(d, f->draft_hidden, f->a.hidden, count, rows, (size_t)m->hidden_size * sizeof(float));
    d->ops->gather(d, f->draft_selected, f->a.selected, count, rows, (size_t)m->index_topk * sizeof(int32_t));
    d->ops->gather(d, f->draft_selected_count, f->a.selected_count, count, rows, sizeof(int32_t));
}

void forward_draft_next(forward *f, const step *s)
{
    device *d = f->device;
    const model_config *m = &f->model->config;
    bool share = m->share_index_in_drafts;
    step looking = *s;
    if (share) {
        looking.keep_keys = false;
        d->ops->copy(d, f->a.selected, f->draft_selected, (size_t)s->rows * (size_t)m->index_topk * sizeof(int32_t));
        d->ops->copy(d, f->a.selected_count, f->draft_selected_count, (size_t)s->rows * sizeof(int32_t));
    }
    draft_step(f, &looking, f->draft_hidden, !share);
    d->ops->copy(d, f->draft_hidden, f->a.hidden, (size_t)s->rows * (size_t)m->hidden_size * sizeof(float));
}
