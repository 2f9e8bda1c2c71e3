/* drawbridge eval --task gate: a short check of a checkpoint before it serves anyone.
 *
 * Four parts, each with a threshold: needle and choice (accuracy), kl against a reference (with --against), and what the draft head
 * gives (tokens per step, if the model has one). A part that cannot be measured is shown as skipped with the reason. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "commands/eval_job.h"
#include "commands/output.h"
#include "eval/drafts.h"

enum { GATE_NEEDLES = 12, GATE_CHOICES = 32, GATE_DRAFT_ANSWERS = 8, GATE_WINDOWS = 8, GATE_MAX_TOKENS = 256 };

typedef enum gate_outcome { GATE_PASS, GATE_FAIL, GATE_SKIPPED } gate_outcome;
static const char *const outcome_names[] = {"pass", "FAIL", "skipped"};

typedef struct gate_part {
    const char *name, *measure; /* "needle", "accuracy" */
    double value, threshold;
    bool at_most;               /* the value may not exceed the threshold; else: not fall below it */
    gate_outcome outcome;
    const char *note;           /* why it was skipped; NULL: nothing to say */
} gate_part;

enum { GATE_PARTS = 5 };

typedef struct gate {
    eval_values values; /* with the gate's own limits */
    eval_engine engine;
    eval_set needle, choice;
    json_t *identity;
    gate_part parts[GATE_PARTS];
    int count;
} gate;

static void add_part(gate *g, gate_part part)
{
    if (part.outcome != GATE_SKIPPED)
        part.outcome = (part.at_most ? part.value <= part.threshold : part.value >= part.threshold) ? GATE_PASS : GATE_FAIL;
    g->parts[g->count++] = part;
}

static bool prepare(gate *g, error *err)
{
    eval_values *v = &g->values, choice = *v;
    choice.lengths = NULL;
    if (v->limit == OPTION_NOT_GIVEN) {
        v->limit = GATE_NEEDLES;
        choice.limit = GATE_CHOICES;
    }
    g->identity = eval_model_identity(&v->runner, err);
    if (!g->identity || !eval_engine_text(&v->runner, v->format, &g->engine, err) ||
        !eval_set_prepare(v, eval_task_find("needle"), g->engine.text.tokenizer, &g->needle, err) ||
        !eval_set_prepare(&choice, eval_task_find("choice"), g->engine.text.tokenizer, &g->choice, err) ||
        !eval_set_encode(&g->needle, &g->engine.text, err) || !eval_set_encode(&g->choice, &g->engine.text, err))
        return false;
    int64_t a = eval_set_context(&g->needle), b = eval_set_context(&g->choice);
    return eval_engine_start(&v->runner, a > b ? a : b, (int)v->batch, &g->engine, err);
}

static bool run_accuracy(gate *g, eval_set *s, const char *name, double threshold, error *err)
{
    json_t *document = NULL;
    bool ok = eval_set_run(&g->values, s, &g->engine, g->identity, eval_model_label(&g->values.runner), NULL, &document, err);
    if (ok)
        add_part(g, (gate_part){.name = name, .measure = "accuracy", .threshold = threshold,
                                .value = json_number_value(json_object_get(json_object_get(document, "summary"), "accuracy"))});
    json_decref(document);
    return ok;
}

static bool run_divergence(gate *g, error *err)
{
    const eval_values *v = &g->values;
    if (!eval_has_baseline(v)) {
        add_part(g, (gate_part){.name = "kl", .measure = "mean", .threshold = v->max_kl, .at_most = true, .outcome = GATE_SKIPPED,
                                .note = "no --against"});
        return true;
    }
    json_t *document = NULL;
    bool ok = eval_text_divergence(v, NULL, &document, err);
    const json_t *summary = json_object_get(document, "summary");
    if (ok) {
        add_part(g, (gate_part){.name = "kl", .measure = "mean", .threshold = v->max_kl, .at_most = true,
                                .value = json_number_value(json_object_get(summary, "mean_kl"))});
        add_part(g, (gate_part){.name = "kl", .measure = "top-1 agreement", .threshold = v->min_agreement,
                                .value = json_number_value(json_object_get(summary, "top1_agreement"))});
    }
    json_decref(document);
    return ok;
}

static bool replay(gate *g, const token_list *prompt, const token_list *answer, draft_counts *counts, error *err)
{
    token_list whole = {0};
    for (size_t i = 0; i < prompt->count; i++)
        token_list_add(&whole, prompt->ids[i]);
    for (size_t i = 0; i < answer->count; i++)
        token_list_add(&whole, answer->ids[i]);
    bool ok = drafts_replay(g->engine.runner.session, whole.ids, (int)whole.count, (int)prompt->count, (int)g->values.drafts, counts, err);
    token_list_free(&whole);
    return ok;
}

/* Greedy answers to some of the choice questions, then the draft head's part in them. */
static bool measure_drafts(gate *g, draft_counts *counts, error *err)
{
    int count = g->choice.items.count < GATE_DRAFT_ANSWERS ? (int)g->choice.items.count : GATE_DRAFT_ANSWERS;
    bulk_request requests[GATE_DRAFT_ANSWERS] = {{0}};
    for (int i = 0; i < count; i++) {
        const token_list *prompt = &g->choice.questions[i].tokens;
        sampler_params greedy = sampler_params_default(tokenizer_size(g->engine.text.tokenizer));
        greedy.temperature = 0;
        greedy.logprobs = -1;
        requests[i] = (bulk_request){.prompt = prompt->ids, .prompt_count = (int)prompt->count, .max_tokens = g->choice.settings.max_tokens,
                                     .params = greedy};
    }
    bool ok = bulk_run(g->engine.bulk, requests, count, NULL, NULL, err);
    for (int i = 0; ok && i < count; i++)
        ok = replay(g, &g->choice.questions[i].tokens, &requests[i].answer, counts, err);
    for (int i = 0; i < count; i++)
        token_list_free(&requests[i].answer);
    return ok;
}

static bool run_drafts(gate *g, error *err)
{
    gate_part part = {.name = "mtp", .measure = "tokens per step", .threshold = g->values.min_tokens};
    draft_counts counts = {0};
    if (!g->engine.runner.model->config.has_mtp) {
        part.outcome = GATE_SKIPPED;
        part.note = "the model has no draft head";
    } else if (!measure_drafts(g, &counts, err)) {
        return false;
    } else if (counts.steps == 0) {
        part.outcome = GATE_SKIPPED;
        part.note = "the answers are too short";
    } else {
        part.value = (double)counts.tokens / (double)counts.steps;
    }
    add_part(g, part);
    return true;
}

static json_t *gate_json(const gate *g, bool pass)
{
    json_t *parts = json_array();
    for (int i = 0; i < g->count; i++) {
        const gate_part *p = &g->parts[i];
        json_array_append_new(parts, json_pack("{s:s, s:s, s:o, s:f, s:s, s:s*}", "part", p->name, "measure", p->measure, "value",
                                               p->outcome == GATE_SKIPPED || !isfinite(p->value) ? json_null() : json_real(p->value),
                                               p->at_most ? "at_most" : "at_least", p->threshold, "outcome",
                                               p->outcome == GATE_FAIL ? "fail" : outcome_names[p->outcome], "note", p->note));
    }
    return json_pack("{s:s, s:s, s:b, s:o}", "task", "gate", "model", eval_model_label(&g->values.runner), "pass", (int)pass,
                     "parts", parts);
}

static void gate_table(const gate *g, text *out)
{
    text_add_format(out, "%-8s %-16s %10s %14s  %s\n", "part", "measure", "value", "threshold", "outcome");
    for (int i = 0; i < g->count; i++) {
        const gate_part *p = &g->parts[i];
        text_add_format(out, "%-8s %-16s ", p->name, p->measure);
        if (p->outcome == GATE_SKIPPED)
            text_add_format(out, "%10s", "-");
        else
            text_add_format(out, "%10.4f", p->value);
        text_add_format(out, " %s %9.4f  %s%s%s\n", p->at_most ? " <=" : " >=", p->threshold, outcome_names[p->outcome],
                        p->note ? ": " : "", p->note ? p->note : "");
    }
}

/* Names the parts that failed. */
static bool judge(const gate *g, error *err)
{
    text failed = {0};
    for (int i = 0; i < g->count; i++)
        if (g->parts[i].outcome == GATE_FAIL)
            text_add_format(&failed, "%s%s (%s %.4f, %s %.4f)", failed.length ? ", " : "", g->parts[i].name, g->parts[i].measure,
                            g->parts[i].value, g->parts[i].at_most ? "at most" : "at least", g->parts[i].threshold);
    bool pass = failed.length == 0;
    if (!pass)
        error_set(err, ERROR_RUNTIME, "the gate is closed: %s", failed.data);
    text_free(&failed);
    return pass;
}

bool eval_gate_run(const eval_values *v, error *err)
{
    gate g = {.values = *v};
    if (v->max_tokens == OPTION_NOT_GIVEN)
        g.values.max_tokens = GATE_MAX_TOKENS;
    bool ok = prepare(&g, err) && run_accuracy(&g, &g.needle, "needle", v->min_needle, err) &&
              run_accuracy(&g, &g.choice, "choice", v->min_choice, err) && run_drafts(&g, err);
    g.values.limit = v->limit == OPTION_NOT_GIVEN ? GATE_WINDOWS : v->limit;
    ok = ok && run_divergence(&g, err);
    if (ok) {
        bool pass = judge(&g, err);
        text table = {0};
        if (v->json)
            output_json(gate_json(&g, pass));
        else
            gate_table(&g, &table);
        output_text(&table);
        text_free(&table);
        ok = pass;
    }
    eval_set_free(&g.needle);
    eval_set_free(&g.choice);
    eval_engine_close(&g.engine);
    json_decref(g.identity);
    return ok;
}
