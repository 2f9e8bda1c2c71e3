/* drawbridge eval: how good a model is, with intervals, and whether two models differ. docs/evaluation.md describes the tasks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "commands/commands.h"
#include "commands/eval_job.h"
#include "commands/interrupt.h"
#include "commands/output.h"
#include "eval/drafts.h"

static const char *const task_choices[] = {"gate", "gsm8k", "gpqa", "choice", "needle", "tools", "ppl", "kl", NULL};
static const char *const form_choices[] = {"auto", "chat", "plain", NULL};
static const char *const method_choices[] = {"generate", "logprob", NULL};

#define VALUE(field) offsetof(eval_values, field)

static const option eval_options[] = {
    RUNNER_MODEL_ROWS(eval_values),
    {.name = "task", .type = OPTION_CHOICE, .choices = task_choices, .by_default = "gate", .offset = VALUE(task),
     .help = "What to measure. gsm8k: word problems. gpqa, choice: multiple choice. needle: a fact in a long text. tools: tool calls. ppl: "
             "perplexity of a text. kl: divergence from the model of --against. gate: needle, choice, kl and draft head, with thresholds."},
    {.name = "data", .letter = 'd', .type = OPTION_FILE, .metavar = "FILE", .repeatable = true, .unset = "the model's eval folder",
     .offset = VALUE(data), .help = "Read the items (ppl, kl: the text) from this file."},
    {.name = "limit", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1 << 30, .unset = "all", .offset = VALUE(limit),
     .help = "Ask the first N questions only (ppl, kl: score N windows); with several files, equally many of each. The gate asks 12 "
             "needles and 32 choices and scores 8 windows unless told."},
    {.name = "out", .letter = 'o', .type = OPTION_FILE, .metavar = "FILE", .offset = VALUE(out),
     .help = "Keep the results of every item in this JSON file. When it exists and was made with the same options, the run goes on where "
             "it stopped. With --against, the other model's results are in FILE.against."},
    {.name = "json", .type = OPTION_FLAG, .offset = VALUE(json), .help = "Print the results as one JSON object, items included."},
    {.name = "against", .type = OPTION_DIRECTORY, .metavar = "MODEL2", .offset = VALUE(against),
     .help = "The baseline: run it over the same items and compare. For kl and the gate, the reference of the divergence."},
    {.name = "against-exact", .type = OPTION_FLAG, .offset = VALUE(against_exact),
     .help = "The baseline is the same model, computed with --exact: what faster arithmetic and a smaller cache change."},
    {.name = "compare", .type = OPTION_FILE, .metavar = "A.json", .offset = VALUE(compare),
     .help = "Compare two saved results instead: --compare A.json B.json, A being the baseline."},
    {.name = "importance-out", .type = OPTION_FILE, .metavar = "FILE", .offset = VALUE(importance),
     .help = "With ppl: collect the mean squares of the inputs of every matrix over the text into this safetensors file, for quantize "
             "--importance, instead of the perplexity."},
    {.name = "shots", .type = OPTION_INT, .metavar = "N", .least = 0, .most = 64, .by_default = "0",
     .group = "Questions", .offset = VALUE(shots),
     .help = "Worked examples before each question."},
    {.name = "shots-file", .type = OPTION_FILE, .metavar = "FILE", .group = "Questions", .offset = VALUE(shots_file),
     .unset = "the model's, or the first items", .help = "Where the examples come from: the first N items of this file."},
    {.name = "form", .type = OPTION_CHOICE, .choices = form_choices, .by_default = "auto", .group = "Questions", .offset = VALUE(form),
     .help = "Ask as a chat, or as plain text (Question: ... Answer:). auto is plain when there are examples."},
    {.name = "method", .type = OPTION_CHOICE, .choices = method_choices, .by_default = "generate",
     .group = "Questions", .offset = VALUE(method),
     .help = "choice, gpqa: let the model write its answer, or take the letter that is likeliest behind \"Answer:\"."},
    {.name = "thinking", .type = OPTION_FLAG, .by_default = "on", .group = "Questions", .offset = VALUE(thinking),
     .help = "Ask for answers without reasoning."},
    {.name = "effort", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the template's", .group = "Questions", .offset = VALUE(effort),
     .help = "How much to reason, where the template knows it."},
    {.name = "template", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the model's own", .group = "Questions", .offset = VALUE(format),
     .help = "Use a chat template by name instead of the model's own."},
    {.name = "seeds", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1000, .by_default = "1",
     .group = "Questions", .offset = VALUE(seeds),
     .help = "gpqa: ask each question with N orders of its choices."},
    {.name = "lengths", .type = OPTION_TEXT, .metavar = "N,N,...", .group = "Questions", .offset = VALUE(lengths),
     .help = "needle: make texts of these lengths in tokens instead of reading them."},
    {.name = "per-length", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 10000, .by_default = "20", .group = "Questions",
     .offset = VALUE(per_length), .help = "needle: how many texts of each length of --lengths."},
    {.name = "window", .type = OPTION_INT, .metavar = "N", .least = 2, .most = 1 << 24, .by_default = "1024", .group = "Questions",
     .offset = VALUE(window), .help = "ppl, kl: tokens of a window; each is scored on its own."},
    {.name = "max-tokens", .letter = 'n', .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1 << 24, .unset = "the task's",
     .group = "Sampling", .offset = VALUE(max_tokens), .help = "The most tokens of an answer, reasoning included."},
    {.name = "temperature", .type = OPTION_NUMBER, .metavar = "X", .least = 0, .most = 100, .by_default = "0", .group = "Sampling",
     .offset = VALUE(temperature), .help = "How much chance decides; 0 always takes the likeliest token."},
    {.name = "top-p", .type = OPTION_NUMBER, .metavar = "X", .least = 0, .most = 1, .by_default = "1", .group = "Sampling",
     .offset = VALUE(top_p), .help = "Draw among the likeliest tokens that together reach probability X; 1 is off."},
    {.name = "seed", .type = OPTION_INT, .metavar = "N", .least = 0, .most = 0x1p62, .by_default = "0", .group = "Sampling",
     .offset = VALUE(seed), .help = "The seed of sampling, of the order of choices and of made texts."},
    {.name = "min-needle", .type = OPTION_NUMBER, .metavar = "X", .least = 0, .most = 1, .by_default = "0.8", .group = "Gate",
     .offset = VALUE(min_needle), .help = "The least accuracy of needle."},
    {.name = "min-choice", .type = OPTION_NUMBER, .metavar = "X", .least = 0, .most = 1, .by_default = "0.85", .group = "Gate",
     .offset = VALUE(min_choice), .help = "The least accuracy of choice."},
    {.name = "max-kl", .type = OPTION_NUMBER, .metavar = "X", .least = 0, .most = 1000, .by_default = "0.05", .group = "Gate",
     .offset = VALUE(max_kl), .help = "The largest mean divergence from --against, in nats."},
    {.name = "min-agreement", .type = OPTION_NUMBER, .metavar = "X", .least = 0, .most = 1, .by_default = "0.9", .group = "Gate",
     .offset = VALUE(min_agreement), .help = "The least share of positions whose likeliest token is that of --against."},
    {.name = "min-tokens-per-step", .type = OPTION_NUMBER, .metavar = "X", .least = 1, .most = 17, .by_default = "1.5", .group = "Gate",
     .offset = VALUE(min_tokens), .help = "The least number of tokens per step that the draft head makes possible."},
    {.name = "drafts", .type = OPTION_INT, .metavar = "N", .least = 1, .most = DRAFTS_MOST, .by_default = "3", .group = "Gate",
     .offset = VALUE(drafts), .help = "Drafts per step when that is measured."},
    {.name = "url", .type = OPTION_TEXT, .metavar = "URL", .group = "Server", .offset = VALUE(url),
     .help = "Ask a server with OpenAI's API instead of computing here."},
    {.name = "served-model", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the server's first", .group = "Server",
     .offset = VALUE(served_model), .help = "The model's name on the server."},
    {.name = "api-key-file", .type = OPTION_FILE, .metavar = "FILE", .unset = "DRAWBRIDGE_API_KEY, OPENAI_API_KEY", .group = "Server",
     .offset = VALUE(api_key_file), .help = "Read the server's key from the first line of this file."},
    {.name = "batch", .letter = 'b', .type = OPTION_INT, .metavar = "N", .least = 1, .most = 4096, .by_default = "16",
     .group = "Computation",
     .offset = VALUE(batch), .help = "Questions in progress at the same time. The result does not depend on it."},
    RUNNER_ROWS(eval_values),
};

static bool is_task(const eval_values *v, const char *name)
{
    return strcmp(task_choices[v->task], name) == 0;
}

static bool check_url(const eval_values *v, error *err)
{
    static const char *const local_only[] = {"ppl", "kl", "gate"};
    if (!v->url)
        return true;
    for (size_t i = 0; i < COUNT_OF(local_only); i++)
        if (is_task(v, local_only[i]))
            return error_set(err, ERROR_USAGE, "--task %s needs the model's logits, which a server does not give; run it without --url",
                             local_only[i]);
    if (v->method == EVAL_LOGPROB)
        return error_set(err, ERROR_USAGE, "--method logprob needs the model's logits, which a server does not give; run it without --url");
    if (eval_has_baseline(v))
        return error_set(err, ERROR_USAGE, "--against works without --url only; save each server's results with --out and use --compare");
    return true;
}

static bool check_values(const eval_values *v, error *err)
{
    if (v->importance && !is_task(v, "ppl"))
        return error_set(err, ERROR_USAGE, "--importance-out goes with --task ppl, found --task %s", task_choices[v->task]);
    if (is_task(v, "gate") && (v->data.count || v->shots || v->out))
        return error_set(err, ERROR_USAGE, "--task gate takes no --data, --shots or --out");
    if (v->against && v->against_exact)
        return error_set(err, ERROR_USAGE, "--against and --against-exact name two baselines; give one of them");
    if (v->against_exact && v->runner.exact)
        return error_set(err, ERROR_USAGE, "--against-exact compares with --exact, so there is no difference to show; leave one out");
    return check_url(v, err);
}

/* ---- the runs ---- */

/* What was found, for people; how: behind the model's name where there are two. */
static void print_document(const eval_values *v, const json_t *document, const char *how)
{
    text out = {0};
    if (!document || v->json)
        return;
    if (eval_has_baseline(v))
        text_add_format(&out, "%s%s\n", json_string_value(json_object_get(document, "model")), how);
    eval_document_print(document, &out);
    output_text(&out);
    text_free(&out);
}

static bool run_questions(const eval_values *v, const runner_values *tested, const char *out_path, json_t **document, error *err)
{
    eval_engine engine = {0};
    eval_set set = {0};
    json_t *identity = eval_model_identity(tested, err);
    bool ok = identity && eval_engine_text(tested, v->format, &engine, err) &&
              eval_set_prepare(v, eval_task_find(task_choices[v->task]), engine.text.tokenizer, &set, err) &&
              eval_set_encode(&set, &engine.text, err) && eval_engine_start(tested, eval_set_context(&set), (int)v->batch, &engine, err) &&
              eval_set_run(v, &set, &engine, identity, eval_model_label(tested), out_path, document, err);
    json_decref(identity);
    eval_set_free(&set);
    eval_engine_close(&engine);
    return ok;
}

/* Over a URL the model's directory only gives the data and, for made texts, the tokenizer that measures them. */
static bool run_url(const eval_values *v, json_t **document, error *err)
{
    eval_set set = {0};
    tokenizer *measure = v->lengths ? text_model_tokenizer(runner_model_name(&v->runner), err) : NULL;
    bool ok = (measure || !v->lengths) && eval_set_prepare(v, eval_task_find(task_choices[v->task]), measure, &set, err) &&
              eval_set_run_url(v, &set, v->out, document, err);
    eval_set_free(&set);
    tokenizer_free(measure);
    return ok;
}

static bool run_task(const eval_values *v, const runner_values *tested, const char *out_path, json_t **document, error *err)
{
    if (is_task(v, "ppl"))
        return eval_text_perplexity(v, tested, out_path, document, err);
    if (is_task(v, "kl"))
        return eval_text_divergence(v, out_path, document, err);
    return run_questions(v, tested, out_path, document, err);
}

static bool print_comparison(const eval_values *v, const json_t *baseline, const json_t *candidate, error *err)
{
    json_t *comparison = NULL;
    text table = {0};
    bool ok = eval_documents_compare(baseline, candidate, &comparison, &table, err);
    if (ok && v->json)
        output_json(json_pack("{s:O, s:O, s:O}", "comparison", comparison, "baseline", baseline, "candidate", candidate));
    else if (ok)
        output_text(&table);
    json_decref(comparison);
    text_free(&table);
    return ok;
}

static bool run_compare(const eval_values *v, error *err)
{
    const char *second = runner_model_name(&v->runner);
    if (!second)
        return error_set(err, ERROR_USAGE, "--compare needs two files: --compare A.json B.json");
    json_t *baseline = eval_document_load(v->compare, err), *candidate = baseline ? eval_document_load(second, err) : NULL;
    bool ok = candidate && print_comparison(v, baseline, candidate, err);
    json_decref(baseline);
    json_decref(candidate);
    return ok;
}

/* Runs the baseline of --against, shows it, and compares. */
static bool run_against(const eval_values *v, const json_t *candidate, error *err)
{
    runner_values other = eval_baseline(v);
    text path = {0};
    json_t *baseline = NULL;
    if (v->out)
        text_add_format(&path, "%s.against", v->out);
    bool ok = run_task(v, &other, path.data, &baseline, err);
    print_document(v, baseline, v->against_exact ? ", exact" : "");
    ok = ok && print_comparison(v, baseline, candidate, err);
    json_decref(baseline);
    text_free(&path);
    return ok;
}

static bool run_measurement(const eval_values *v, error *err)
{
    json_t *document = NULL;
    bool ok = v->url ? run_url(v, &document, err) : run_task(v, &v->runner, v->out, &document, err);
    bool both = eval_has_baseline(v) && !is_task(v, "kl");
    print_document(v, document, "");
    if (ok && both)
        ok = run_against(v, document, err);
    else if (document && v->json)
        output_json(json_incref(document));
    json_decref(document);
    return ok;
}

static bool eval_run(const program *p, const void *values, error *err)
{
    (void)p;
    const eval_values *v = values;
    interrupt_catch();
    if (v->compare)
        return run_compare(v, err);
    if (!check_values(v, err))
        return false;
    if (is_task(v, "gate"))
        return eval_gate_run(v, err);
    return v->importance ? eval_text_importance(v, err) : run_measurement(v, err);
}

static const command_example eval_examples[] = {
    {"drawbridge eval MODEL --against REFERENCE", "The gate: is this checkpoint fit to serve?"},
    {"drawbridge eval MODEL --task gsm8k --data test.jsonl --shots-file train.jsonl --shots 5 --limit 200 -o r.json",
     "Five examples, 200 questions; run again to go on after an interruption."},
    {"drawbridge eval MXFP4 --task gsm8k --against FP8", "Two checkpoints on the same questions, and whether they differ."},
    {"drawbridge eval MODEL --task kl --against REFERENCE", "How far the predictions are from those of a reference."},
    {"drawbridge eval MODEL --task kl --against-exact", "How far they are from those of exact arithmetic."},
    {"drawbridge eval --compare a.json b.json", "Two saved results."},
    {"drawbridge eval MODEL --task ppl --importance-out importance.safetensors", "Statistics for quantize --importance."},
};

const command command_eval = {
    .name = "eval",
    .summary = "measure a model's accuracy, perplexity or divergence",
    .description = "Asks a model the questions of a task and counts the right answers, or scores a text, and gives a 95 % interval with "
                   "every figure. With --against two models answer the same items, and the verdict says whether their "
                   "difference is more than noise.\n\n"
                   "Items come from the model's own eval folder or from --data. Answers are greedy unless --temperature is given, and the "
                   "same whatever --batch and --threads are. Ctrl-C keeps what is done when --out is given.\n\n"
                   "The gate ends with exit code 1 and names the parts below their thresholds.",
    .options = eval_options,
    .option_count = COUNT_OF(eval_options),
    .values_bytes = sizeof(eval_values),
    .examples = eval_examples,
    .example_count = COUNT_OF(eval_examples),
    .run = eval_run,
};
