/* The built-in model against HF transformers (float32 run, f32 cache here): every position's best logits, greedy continuations, the
 * positions the indexer chooses, hidden states, routing, and the draft head's guesses. The MXFP4 checkpoint ships with the project;
 * the BF16 master is compared too when it is present beside the checkout. */
#include "golden.h"

#include "fixtures.h"

#ifdef RIG_EMULATED /* slow: the shortest */
static const char *const PROMPTS[] = {"chat"};
#else
static const char *const PROMPTS[] = {"chat", "arith", "tool", "random", "retr1200", "retr3000"};
#endif
enum { PROMPT_COUNT = sizeof PROMPTS / sizeof PROMPTS[0], FORCED_COUNT = PROMPT_COUNT < 4 ? PROMPT_COUNT : 4, MAX_TOKENS = 4096 };

/* 1e-3 of the largest logit is the bound the project promises; HF and the independent PyTorch implementation differ by 1e-5 here
 * (golden.json), the float32 rounding of different summation orders. */
static const float LOGIT_BOUND = 1e-3f;

/* Where HF's own gap at the cut of the index list is smaller than this, float32 rounding of another summation order may pick another
 * position, and everything computed from there on may differ a little more. */
static const float INDEX_GAP = 1e-4f;

/* Rows whose index lists are all clear of ties in HF's own scores; NULL tensor: prompts no longer than the list. */
static bool *clear_rows(const golden *g)
{
    bool *clear = mem_alloc((size_t)g->count, sizeof *clear);
    const tensor *info = NULL;
    float *gap = golden_tensor(g->file, "index_gap_all", DTYPE_F32, &info);
    for (int row = 0; row < g->count; row++) {
        clear[row] = true;
        for (int64_t layer = 0; gap && layer < info->shape[0]; layer++)
            clear[row] = clear[row] && gap[layer * g->count + row] >= INDEX_GAP;
    }
    free(gap);
    return clear;
}

/* What the taps of one run gather. */
typedef struct gathered {
    const model_config *config;
    int count;            /* rows of the whole prompt */
    int32_t *selected;    /* [layers][count][topk] of the full layers */
    float *hidden_rms;    /* [layers + 1][count] */
    float *hidden_first8; /* [layers + 1][count][8] */
    int32_t *experts;     /* [layers][count][experts_per_token] */
    float *expert_weights;
    int row;              /* first row of the running step */
} gathered;

static gathered gathered_new(const model_config *m, int count)
{
    size_t rows = (size_t)count, layers = (size_t)m->layers + 1;
    gathered g = {.config = m, .count = count};
    g.selected = mem_alloc(layers * rows * (size_t)m->index_topk, sizeof *g.selected);
    g.hidden_rms = mem_alloc(layers * rows, sizeof(float));
    g.hidden_first8 = mem_alloc(layers * rows * 8, sizeof(float));
    g.experts = mem_alloc(layers * rows * (size_t)m->experts_per_token, sizeof(int32_t));
    g.expert_weights = mem_alloc(layers * rows * (size_t)m->experts_per_token, sizeof(float));
    return g;
}

static void gathered_free(gathered *g)
{
    free(g->selected);
    free(g->hidden_rms);
    free(g->hidden_first8);
    free(g->experts);
    free(g->expert_weights);
}

static void keep_hidden(gathered *g, int layer, const tap_value *v)
{
    const float *x = v->data;
    for (int row = 0; row < v->rows; row++, x += v->columns) {
        size_t at = (size_t)layer * (size_t)g->count + (size_t)(g->row + row);
        double sum = 0;
        for (int i = 0; i < v->columns; i++)
            sum += (double)x[i] * (double)x[i];
        g->hidden_rms[at] = (float)sqrt(sum / v->columns);
        memcpy(g->hidden_first8 + at * 8, x, 8 * sizeof(float));
    }
}

static void keep_tap(void *context, const tap_value *v)
{
    gathered *g = context;
    size_t at = ((size_t)(v->layer < 0 ? 0 : v->layer) * (size_t)g->count + (size_t)g->row) * (size_t)v->columns;
    size_t bytes = (size_t)v->rows * (size_t)v->columns * 4;
    if (v->layer == g->config->layers)
        return;
    if (strcmp(v->name, "embed") == 0)
        keep_hidden(g, 0, v);
    else if (strcmp(v->name, "layer_out") == 0)
        keep_hidden(g, v->layer + 1, v);
    else if (strcmp(v->name, "selected") == 0)
        memcpy(g->selected + at, v->data, bytes);
    else if (strcmp(v->name, "router_experts") == 0)
        memcpy(g->experts + at, v->data, bytes);
    else if (strcmp(v->name, "router_weights") == 0)
        memcpy(g->expert_weights + at, v->data, bytes);
}

static void check_logits(const char *prompt, const golden *g, const float *all, int vocab, const bool *clear)
{
    const tensor *info = NULL;
    int32_t *top_ids = golden_tensor(g->file, "top_ids", DTYPE_I32, &info);
    float *top = golden_tensor(g->file, "top_logits", DTYPE_F32, NULL), *last = golden_tensor(g->file, "last_logits", DTYPE_F32, NULL);
    int per_row = (int)info->shape[1], rows = 0, over = 0; /* over: rows beyond the bound, all with a near-tie */
    float bound = LOGIT_BOUND * largest_magnitude(top, (size_t)(g->count * per_row)), worst = 0, worst_any = 0;
    for (int row = 0; row < g->count; row++) {
        float here = 0;
        for (int i = 0; i < per_row; i++)
            here = fmaxf(here, fabsf(all[row * vocab + top_ids[row * per_row + i]] - top[row * per_row + i]));
        worst_any = fmaxf(worst_any, here);
        over += here > bound;
        float margin = top[row * per_row] - top[row * per_row + 1];
        if (margin > bound && argmax(all + row * vocab, vocab) != top_ids[row * per_row])
            fail_msg("%s: position %d: top token differs from HF's", prompt, row);
        if (!clear[row])
            continue;
        rows++;
        worst = fmaxf(worst, here);
    }
    for (int row = 0; row < 8; row++)
        for (int i = 0; i < vocab && clear[g->count - 8 + row]; i++)
            worst = fmaxf(worst, fabsf(all[(g->count - 8 + row) * vocab + i] - last[row * vocab + i]));
    printf("  %-9s %4d tokens: largest logit difference %.2e (bound %.2e; %.2e over all rows, %d without a near-tie)\n", prompt, g->count,
           (double)worst, (double)bound, (double)worst_any, rows);
    assert_true(worst <= bound);
    assert_true(over <= g->count / 1000);
    free(top_ids);
    free(top);
    free(last);
}

static void check_index_sets(const char *prompt, const golden *g, const gathered *taps)
{
    const tensor *info = NULL;
    int32_t *sets = golden_tensor(g->file, "index_sets", DTYPE_I32, &info);
    if (!sets)
        return;
    int32_t *layers = golden_tensor(g->file, "index_layers", DTYPE_I32, NULL), *pos = golden_tensor(g->file, "index_pos", DTYPE_I32, NULL);
    float *gap = golden_tensor(g->file, "index_gap", DTYPE_F32, NULL);
    int64_t topk = info->shape[2];
    int compared = 0;
    for (int64_t l = 0; l < info->shape[0]; l++)
        for (int64_t p = 0; p < info->shape[1]; p++) {
            if (gap[l * info->shape[1] + p] < INDEX_GAP)
                continue;
            const int32_t *want = sets + (l * info->shape[1] + p) * topk;
            const int32_t *got = taps->selected + ((int64_t)layers[l] * g->count + pos[p]) * topk;
            if (memcmp(want, got, (size_t)topk * sizeof *got) != 0)
                fail_msg("%s: layer %d position %d: the index list differs from HF's", prompt, layers[l], pos[p]);
            compared++;
        }
    printf("  %-9s %d index lists equal\n", prompt, compared);
    free(sets);
    free(layers);
    free(pos);
    free(gap);
}

/* Hidden states after the embedding and each layer, relative to the row's size; chosen experts and their weights. */
static void check_hidden_and_routing(const golden *g, const gathered *taps)
{
    const tensor *info = NULL, *routed = NULL;
    float *rms = golden_tensor(g->file, "hidden_rms", DTYPE_F32, &info);
    if (!rms)
        return;
    float *first8 = golden_tensor(g->file, "hidden_first8", DTYPE_F32, NULL),
          *weights = golden_tensor(g->file, "router_weights", DTYPE_F32, &routed);
    int32_t *layers = golden_tensor(g->file, "router_layers", DTYPE_I32, NULL),
            *experts = golden_tensor(g->file, "router_experts", DTYPE_I32, NULL);
    int64_t rows = info->shape[0] * info->shape[1], per_token = routed->shape[2];
    for (int64_t i = 0; i < rows; i++) {
        assert_true(fabsf(taps->hidden_rms[i] - rms[i]) <= 1e-4f * rms[i]);
        for (int64_t j = 0; j < 8; j++)
            assert_true(fabsf(taps->hidden_first8[i * 8 + j] - first8[i * 8 + j]) <= 1e-3f * rms[i]);
    }
    for (int64_t l = 0; l < routed->shape[0]; l++)
        for (int64_t i = 0; i < g->count * per_token; i++) {
            int64_t ours = (int64_t)layers[l] * g->count * per_token + i, theirs = l * g->count * per_token + i;
            assert_int_equal(taps->experts[ours], experts[theirs]);
            assert_true(fabsf(taps->expert_weights[ours] - weights[theirs]) <= 1e-4f);
        }
    free(rms);
    free(first8);
    free(weights);
    free(layers);
    free(experts);
}

static void check_greedy(const char *prompt, rig *r, const golden *g)
{
    error err = {0};
    const tensor *info = NULL;
    int32_t *want = golden_tensor(g->file, "greedy", DTYPE_I32, &info);
    float *margin = golden_tensor(g->file, "greedy_margin", DTYPE_F32, NULL);
    int vocab = r->model->config.vocab_size, n = (int)info->shape[0], equal = 0;
    for (int i = 0; i < n; i++, equal++) {
        int32_t token = argmax(session_logits(r->session), vocab);
        if (token != want[i] && margin[i] < 1e-3f)
            break; /* a tie in HF's own run: from here on the texts may differ */
        if (token != want[i])
            fail_msg("%s: greedy token %d is %d, HF has %d (margin %g)", prompt, i, token, want[i], (double)margin[i]);
        assert_true(session_feed(r->session, &token, 1, &err));
    }
    printf("  %-9s %d of %d greedy tokens equal\n", prompt, equal, n);
    free(want);
    free(margin);
}

/* The draft head's part of a reference. */
typedef struct draft_golden {
    int32_t *want;   /* [bases][drafts] */
    float *margin;   /* [bases][drafts] top-1 minus top-2 */
    int32_t *pos;    /* [bases] consecutive positions, the last ones of the prompt */
    int bases, drafts;
    bool *clear;     /* [tokens] see clear_rows */
    int equal, ties; /* drafts that agreed; chains left because the reference itself is undecided */
} draft_golden;

static draft_golden draft_golden_open(const golden *g, const char *suffix)
{
    const tensor *info = NULL;
    char name[64];
    snprintf(name, sizeof name, "mtp_draft%s", suffix);
    draft_golden d = {.want = golden_tensor(g->file, name, DTYPE_I32, &info)};
    if (!d.want)
        return d;
    snprintf(name, sizeof name, "mtp_margin%s", suffix);
    d.margin = golden_tensor(g->file, name, DTYPE_F32, NULL);
    d.pos = golden_tensor(g->file, "mtp_pos", DTYPE_I32, NULL);
    d.bases = (int)info->shape[0];
    d.drafts = (int)info->shape[1];
    d.clear = clear_rows(g);
    return d;
}

static void draft_golden_close(draft_golden *d)
{
    free(d->want);
    free(d->margin);
    free(d->pos);
    free(d->clear);
}

/* One chain of drafts from the row that was extended last. */
static void check_chain(const char *prompt, rig *r, draft_golden *d, int position)
{
    int base = position - d->pos[0];
    const int32_t *tables[1] = {r->session->page_table};
    int32_t row = 0, token = 0, sequence = 0, at = position;
    forward_draft_begin(r->forward, 1, &row);
    for (int i = base * d->drafts; i < (base + 1) * d->drafts; i++) {
        if (at > position) {
            step more = {1, &token, &at, &sequence, tables, r->pages->memory, true};
            forward_draft_next(r->forward, &more);
        }
        at++;
        token = argmax(forward_logits(r->forward, 1, &row), r->model->config.vocab_size);
        if (token != d->want[i] && (d->margin[i] < 1e-3f || !d->clear[position])) {
            d->ties++;
            return;
        }
        if (token != d->want[i])
            fail_msg("%s: draft %d at position %d is %d, the reference has %d", prompt, i % d->drafts, position, token, d->want[i]);
        d->equal++;
    }
}

/* The draft layer over the rows the trunk has just computed, with the tokens that follow them. */
static void extend_drafts(rig *r, const golden *g, int first, int n, int32_t after_prompt)
{
    const int32_t *tables[1] = {r->session->page_table};
    int32_t next[RIG_ROWS], positions[RIG_ROWS], sequences[RIG_ROWS] = {0};
    for (int i = 0; i < n; i++) {
        next[i] = first + i + 1 < g->count ? g->ids[first + i + 1] : after_prompt;
        positions[i] = first + i;
    }
    step s = {n, next, positions, sequences, tables, r->pages->memory, true};
    forward_draft_extend(r->forward, &s, r->forward->a.hidden);
}

/* Runs the prompt once, the way a server does: trunk, then the draft layer over the same rows, and at the last positions chains of
 * drafts. Whole chunks first, one row at a time where drafts are checked. Returns the logits of every position.
 * suffix "_ownkeys" selects the reference in which draft steps also see their own keys, as in models without index sharing. */
static float *run_prompt(const char *prompt, rig *r, const golden *g, gathered *taps, const char *suffix)
{
    error err = {0};
    size_t vocab = (size_t)r->model->config.vocab_size;
    float *all = mem_alloc((size_t)g->count * vocab, sizeof *all);
    int32_t *greedy = golden_tensor(g->file, "greedy", DTYPE_I32, NULL);
    draft_golden d = draft_golden_open(g, suffix);
    r->model->config.share_index_in_drafts = suffix[0] == '\0';
    session_truncate(r->session, 0);
    while (r->session->count < g->count) {
        int first = r->session->count, n = first < d.pos[0] ? d.pos[0] - first : 1;
        n = n < RIG_ROWS ? n : RIG_ROWS;
        taps->row = first;
        r->forward->tap = keep_tap;
        r->forward->tap_context = taps;
        if (!session_feed(r->session, g->ids + first, n, &err))
            fail_msg("%s", err.text);
        r->forward->tap = NULL;
        memcpy(all + (size_t)first * vocab, session_step_logits(r->session, 0, n), (size_t)n * vocab * sizeof *all);
        extend_drafts(r, g, first, n, greedy[0]);
        if (first >= d.pos[0])
            check_chain(prompt, r, &d, first);
    }
    printf("  %-9s %d of %d drafts%s equal, %d chains left at a tie\n", prompt, d.equal, d.bases * d.drafts, suffix, d.ties);
    assert_true(d.ties <= d.bases / 4);
    r->model->config.share_index_in_drafts = true;
    draft_golden_close(&d);
    free(greedy);
    return all;
}

/* The draft steps have overwritten the activations: the last position again, for its logits. */
static void restore_last_step(rig *r, const golden *g)
{
    error err = {0};
    session_truncate(r->session, g->count - 1);
    assert_true(session_feed(r->session, g->ids + g->count - 1, 1, &err));
}

static void check_set(const char *directory, const char *set)
{
    rig r = rig_open(directory, KV_F32, 2, MAX_TOKENS);
    for (int i = 0; i < (forced_kernels ? FORCED_COUNT : PROMPT_COUNT); i++) { /* the first ones also choose their index lists */
        golden g = golden_open(set, PROMPTS[i]);
        gathered taps = gathered_new(&r.model->config, g.count);
        bool *clear = clear_rows(&g);
        if (checkpoint_find(g.file, "mtp_draft_ownkeys"))
            free(run_prompt(PROMPTS[i], &r, &g, &taps, "_ownkeys"));
        float *all = run_prompt(PROMPTS[i], &r, &g, &taps, "");
        check_logits(PROMPTS[i], &g, all, r.model->config.vocab_size, clear);
        check_index_sets(PROMPTS[i], &g, &taps);
        check_hidden_and_routing(&g, &taps);
        restore_last_step(&r, &g);
        check_greedy(PROMPTS[i], &r, &g);
        free(all);
        free(clear);
        gathered_free(&taps);
        golden_close(&g);
    }
    rig_close(&r);
}

static void test_mxfp4_equals_hf(void **state)
{
    (void)state;
    check_set(SOURCE_DIR "/models/nano", "golden_mxfp4");
}

static void test_bf16_equals_hf(void **state)
{
    (void)state;
    const char *directory = fixture_nano_bf16();
    if (!directory)
        skip();
    check_set(directory, "golden_bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mxfp4_equals_hf), cmocka_unit_test(test_bf16_equals_hf)};
    return golden_main(tests, MODE_EXACT, NULL, NULL);
}
