/* The tasks of the eval command that ask questions: prepare, ask, keep. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "commands/eval_job.h"
#include "commands/interrupt.h"
#include "eval/remote.h"

/* ---- preparing ---- */

static bool parse_lengths(const char *words, eval_set *s, error *err)
{
    enum { MOST = sizeof s->lengths / sizeof *s->lengths };
    s->settings.lengths = s->lengths;
    for (const char *at = words; *at;) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || n < 1 || n > 1 << 24 || s->settings.length_count == MOST)
            return error_set(err, ERROR_USAGE, "--lengths %s: expected up to %d numbers of tokens separated by commas", words, (int)MOST);
        s->lengths[s->settings.length_count++] = (int)n;
        at = *end ? end + 1 : end;
    }
    return true;
}

static bool read_settings(const eval_values *v, eval_set *s, error *err)
{
    const eval_task *t = s->task;
    s->settings = (eval_settings){.form = (eval_form)v->form,
                                  .method = (eval_method)v->method,
                                  .shots = (int)v->shots,
                                  .max_tokens = v->max_tokens == OPTION_NOT_GIVEN ? t->max_tokens : (int)v->max_tokens,
                                  .thinking = v->thinking,
                                  .effort = v->effort,
                                  .temperature = v->temperature,
                                  .top_p = v->top_p,
                                  .seed = (uint64_t)v->seed,
                                  .seeds = (int)v->seeds,
                                  .per_length = (int)v->per_length};
    bool letters = strcmp(t->name, "choice") == 0 || strcmp(t->name, "gpqa") == 0;
    if (s->settings.method == EVAL_LOGPROB && !letters)
        return error_set(err, ERROR_USAGE, "--method logprob is for choice and gpqa, not for %s", t->name);
    if (v->lengths && strcmp(t->name, "needle") != 0)
        return error_set(err, ERROR_USAGE, "--lengths is for needle, not for %s", t->name);
    if (v->lengths && v->data.count)
        return error_set(err, ERROR_USAGE, "--lengths makes the items, --data reads them; give one of the two");
    return !v->lengths || parse_lengths(v->lengths, s, err);
}

/* Examples: --shots-file, or the model's own file of them, or else the first items, which are then not asked. */
static bool read_shots(const eval_values *v, eval_set *s, error *err)
{
    size_t shots = (size_t)s->settings.shots;
    text path = {0};
    bool ok = true;
    if (v->shots_file)
        text_add_text(&path, v->shots_file);
    else if (v->data.count == 0 && s->task->examples)
        ok = eval_find_file(&v->runner, s->task->examples, &path, err);
    const char *from = path.data;
    ok = ok && (!from || eval_items_read(s->task, &s->settings, &from, 1, 0, &s->shots, err));
    if (ok && from && s->shots.count < shots)
        ok = error_set(err, ERROR_INPUT, "%s has %zu items, --shots %zu asks for more", from, s->shots.count, shots);
    if (ok && !from)
        log_info("note: the first %zu items are the examples and are not asked", shots);
    text_free(&path);
    return ok;
}

static bool read_items(const eval_values *v, const tokenizer *t, eval_set *s, error *err)
{
    size_t limit = v->limit == OPTION_NOT_GIVEN ? 0 : (size_t)v->limit, shots = (size_t)s->settings.shots;
    if (s->settings.length_count) {
        if (!items_make_needles(t, s->lengths, s->settings.length_count, s->settings.per_length, s->settings.seed, &s->items, err))
            return false;
        if (limit)
            eval_items_limit(&s->items, limit);
        return true;
    }
    if (shots && !read_shots(v, s, err))
        return false;
    eval_paths paths = {0};
    bool first_are_shots = shots && s->shots.count == 0;
    bool ok = eval_paths_find(v, s->task->files, &paths, err) &&
              eval_items_read(s->task, &s->settings, paths.list, paths.count, limit && first_are_shots ? limit + shots : limit,
                              &s->items, err);
    eval_paths_free(&paths);
    if (ok && first_are_shots) {
        if (s->items.count <= shots)
            return error_set(err, ERROR_INPUT, "%zu items are not enough for --shots %zu and a question", s->items.count, shots);
        memcpy(s->shots.source, s->items.source, sizeof s->shots.source);
        s->shots.items = mem_copy(s->items.items, shots * sizeof *s->items.items);
        s->shots.count = s->shots.capacity = shots;
        s->items.count -= shots;
        memmove(s->items.items, s->items.items + shots, s->items.count * sizeof *s->items.items);
    }
    return ok;
}

bool eval_set_prepare(const eval_values *v, const eval_task *task, const tokenizer *t, eval_set *s, error *err)
{
    s->task = task;
    if (!read_settings(v, s, err) || !read_items(v, t, s, err))
        return false;
    s->prompts = mem_alloc(s->items.count, sizeof *s->prompts);
    for (size_t i = 0; i < s->items.count; i++)
        if (!eval_prompt_make(task, &s->settings, s->shots.items, &s->items.items[i], &s->prompts[i], err))
            return false;
    return true;
}

bool eval_set_encode(eval_set *s, const text_model *text_side, error *err)
{
    s->questions = mem_alloc(s->items.count, sizeof *s->questions);
    for (size_t i = 0; i < s->items.count; i++)
        if (!eval_question_make(text_side->tokenizer, text_side->format, &s->settings, &s->prompts[i], &s->questions[i], err))
            return error_add(err, "item %s", s->items.items[i].id);
    return true;
}

int64_t eval_set_context(const eval_set *s)
{
    int64_t longest = 0;
    for (size_t i = 0; i < s->items.count; i++)
        longest = (int64_t)s->questions[i].tokens.count > longest ? (int64_t)s->questions[i].tokens.count : longest;
    return longest + s->settings.max_tokens;
}

void eval_set_free(eval_set *s)
{
    for (size_t i = 0; i < s->items.count; i++) {
        if (s->prompts)
            eval_prompt_free(&s->prompts[i]);
        if (s->questions)
            eval_question_free(&s->questions[i]);
    }
    free(s->prompts);
    free(s->questions);
    eval_items_free(&s->items);
    eval_items_free(&s->shots);
    *s = (eval_set){0};
}

json_t *eval_set_options(const eval_values *v, const eval_set *s)
{
    static const char *const methods[] = {"generate", "logprob"};
    const eval_settings *o = &s->settings;
    return json_pack("{s:s, s:I, s:s, s:s, s:i, s:s, s:i, s:b, s:s?, s:s?, s:f, s:f, s:I, s:i}", "data", s->items.source, "items",
                     (json_int_t)s->items.count, "form", eval_is_plain(s->task, o) ? "plain" : "chat", "method",
                     methods[o->method], "shots", o->shots, "shots_data", s->shots.source, "max_tokens", o->max_tokens,
                     "thinking", (int)o->thinking, "effort", o->effort, "template", v->format, "temperature", o->temperature,
                     "top_p", o->top_p, "seed", (json_int_t)o->seed, "seeds", o->seeds);
}

/* ---- asking ---- */

/* One run: where replies go. */
typedef struct set_run {
    eval_set *set;
    eval_result *result;
    progress *progress;
    char label[64];     /* shown by the progress line: the running score */
    size_t first_done;  /* done when it began */
    error trouble;      /* the latest failure to keep a record */
} set_run;

/* Text for a JSON string: NUL, which a reader would refuse, becomes U+FFFD. */
static json_t *clean_text(const text *t)
{
    text clean = {0};
    for (size_t i = 0; i < t->length; i++) {
        if (t->data[i])
            text_add_char(&clean, t->data[i]);
        else
            text_add_utf8(&clean, 0xFFFD);
    }
    json_t *value = json_stringn(clean.data ? clean.data : "", clean.length);
    text_free(&clean);
    return value ? value : json_string("(not UTF-8)");
}

static json_t *make_record(const eval_set *s, size_t index, const eval_reply *r)
{
    const eval_item *item = &s->items.items[index];
    text parsed = {0}, expected = {0};
    bool right = s->task->score(item->data, r, &parsed);
    s->task->expected(item->data, &expected);
    json_t *record =
        json_pack("{s:s, s:s, s:o, s:o, s:o, s:b, s:I, s:I}", "id", item->id, "prompt", s->prompts[index].hash, "answer",
                  clean_text(&r->content), "parsed", clean_text(&parsed), "expected", clean_text(&expected), "correct",
                  (int)right, "prompt_tokens", (json_int_t)r->prompt_tokens, "tokens", (json_int_t)r->tokens);
    if (record && item->group)
        json_object_set_new(record, "group", json_string(item->group));
    if (record && r->cut)
        json_object_set_new(record, "cut", json_true());
    text_free(&parsed);
    text_free(&expected);
    return record;
}

static void take_reply(void *context, size_t index, eval_reply *r)
{
    set_run *run = context;
    error trouble = {0};
    if (!eval_result_set(run->result, index, make_record(run->set, index, r), &trouble))
        run->trouble = trouble;
    snprintf(run->label, sizeof run->label, "%s %.1f %% right", run->set->task->name,
             100 * (double)eval_result_correct(run->result) / (double)run->result->done);
    progress_update(run->progress, (double)(run->result->done - run->first_done));
    eval_reply_free(r);
}

static bool ask_engine(const eval_set *s, eval_engine *e, const size_t *which, size_t count, set_run *run, error *err)
{
    if (s->settings.method == EVAL_GENERATE)
        return eval_answer_all(&e->model, &s->settings, s->questions, which, count, take_reply, run, err);
    int *choices = mem_alloc(s->items.count, sizeof *choices);
    for (size_t i = 0; i < s->items.count; i++)
        choices[i] = (int)json_array_size(json_object_get(s->items.items[i].data, "choices"));
    bool ok = eval_choose_all(&e->model, s->questions, choices, which, count, take_reply, run, err);
    free(choices);
    return ok;
}

static bool open_result(eval_set *s, json_t *options, const char *label, const char *out_path, eval_result *result, error *err)
{
    const char **ids = mem_alloc(s->items.count, sizeof *ids), **prompts = mem_alloc(s->items.count, sizeof *prompts);
    for (size_t i = 0; i < s->items.count; i++) {
        ids[i] = s->items.items[i].id;
        prompts[i] = s->prompts[i].hash;
    }
    bool ok = eval_result_open(result, out_path, s->task->name, label, options, ids, prompts, s->items.count, err);
    free(ids);
    free(prompts);
    if (ok && result->resumed)
        log_info("%s: %zu of %zu items are done already", out_path, result->resumed, result->count);
    return ok;
}

static bool finish(eval_result *r, bool ok, const error *trouble, json_t **document, error *err)
{
    error saving = {0};
    bool saved = eval_result_save(r, &saving);
    *document = eval_result_document(r);
    if (!ok && err->code == ERROR_INTERRUPTED)
        return error_set(err, ERROR_INTERRUPTED, "interrupted after %zu of %zu items%s%s%s", r->done, r->count,
                         r->path && saved ? "; " : "", r->path && saved ? r->path : "",
                         r->path && saved ? " keeps them, the same command goes on" : "");
    if (ok && !saved)
        *err = saving;
    if (ok && saved && r->done < r->count)
        *err = *trouble;
    return ok && saved && r->done == r->count;
}

/* Who answers: an engine, or a server. */
typedef struct set_answerer {
    eval_engine *engine;
    http_client *client;
    const char *served_model;
} set_answerer;

static bool ask(const eval_set *s, const set_answerer *from, const size_t *which, size_t count, set_run *run, error *err)
{
    if (count == 0)
        return true;
    if (from->engine)
        return ask_engine(s, from->engine, which, count, run, err);
    return eval_ask_server(from->client, from->served_model, &s->settings, s->prompts, which, count, take_reply, run, err);
}

static bool run_set(const eval_values *v, eval_set *s, const set_answerer *from, json_t *identity, const char *label, const char *out_path,
                    json_t **document, error *err)
{
    eval_result result = {0};
    json_t *options = eval_set_options(v, s);
    json_object_set(options, "model", identity);
    set_run run = {.set = s, .result = &result};
    size_t *which = mem_alloc(s->items.count, sizeof *which), count = 0;
    bool ok = open_result(s, options, label, out_path, &result, err);
    if (ok) {
        for (size_t i = 0; i < result.count; i++)
            if (!result.records[i])
                which[count++] = i;
        snprintf(run.label, sizeof run.label, "%s", s->task->name);
        run.first_done = result.done;
        run.progress = progress_start(run.label, "items", (double)count);
        ok = ask(s, from, which, count, &run, err);
        progress_finish(run.progress);
        ok = finish(&result, ok, &run.trouble, document, err);
    }
    free(which);
    eval_result_free(&result);
    return ok;
}

bool eval_set_run(const eval_values *v, eval_set *s, eval_engine *e, json_t *identity, const char *label, const char *out_path,
                  json_t **document, error *err)
{
    set_answerer from = {.engine = e};
    return run_set(v, s, &from, identity, label, out_path, document, err);
}

bool eval_set_run_url(const eval_values *v, eval_set *s, const char *out_path, json_t **document, error *err)
{
    text key = {0}, name = {0};
    bool ok = http_api_key_load(v->api_key_file, &key, err);
    http_client_options options = {.in_flight = (int)v->batch, .api_key = key.data, .stop = &interrupt_count};
    http_client *client = ok ? http_client_create(v->url, &options, err) : NULL;
    ok = client != NULL;
    if (ok && v->served_model)
        text_add_text(&name, v->served_model);
    else if (ok)
        ok = eval_server_model(client, &name, err);
    if (ok) {
        set_answerer from = {.client = client, .served_model = name.data};
        json_t *identity = json_pack("{s:s, s:s}", "url", v->url, "served_model", name.data);
        ok = identity ? run_set(v, s, &from, identity, name.data, out_path, document, err)
                      : error_set(err, ERROR_USAGE, "the URL or the model's name is not UTF-8");
        json_decref(identity);
    }
    http_client_destroy(client);
    text_free(&key);
    text_free(&name);
    return ok;
}
