#include "eval/task.h"

#include <stdlib.h>
#include <string.h>

#include "eval/extract.h"

void eval_prompt_free(eval_prompt *p)
{
    json_decref(p->messages);
    text_free(&p->plain);
    *p = (eval_prompt){0};
}

void eval_reply_free(eval_reply *r)
{
    text_free(&r->content);
    json_decref(r->calls);
    *r = (eval_reply){0};
}

static const char *string_at(const json_t *item, const char *key)
{
    return json_string_value(json_object_get(item, key));
}

static view content_of(const eval_reply *r)
{
    return (view){r->content.data ? r->content.data : "", r->content.length};
}

/* ---- gsm8k ---- */

static bool gsm8k_read(const char *path, const eval_settings *s, eval_items *out, error *err)
{
    (void)s;
    return items_read_questions(path, out, err);
}

static void gsm8k_question(const json_t *item, bool plain, text *question, text *answer)
{
    (void)plain;
    text_add_text(question, string_at(item, "question"));
    if (answer)
        text_add_text(answer, string_at(item, "answer"));
}

static void gsm8k_expected(const json_t *item, text *out)
{
    extract_number(view_of(strstr(string_at(item, "answer"), "####")), out);
}

static bool gsm8k_score(const json_t *item, const eval_reply *r, text *parsed)
{
    text expected = {0};
    gsm8k_expected(item, &expected);
    bool right = extract_number(content_of(r), parsed) && strcmp(parsed->data, expected.data) == 0;
    text_free(&expected);
    return right;
}

/* ---- choice, gpqa ---- */

static bool choice_read(const char *path, const eval_settings *s, eval_items *out, error *err)
{
    (void)s;
    return items_read_choices(path, out, err);
}

static bool gpqa_read(const char *path, const eval_settings *s, eval_items *out, error *err)
{
    return items_read_gpqa(path, s->seed, s->seeds, out, err);
}

static void add_choices(const json_t *item, text *question)
{
    const json_t *choices = json_object_get(item, "choices");
    text_add_text(question, string_at(item, "question"));
    for (size_t i = 0; i < json_array_size(choices); i++)
        text_add_format(question, "\n%c. %s", (char)('A' + i), json_string_value(json_array_get(choices, i)));
}

static void choice_expected(const json_t *item, text *out)
{
    text_add_char(out, (char)('A' + json_integer_value(json_object_get(item, "answer"))));
}

/* "A, B, C or D" */
static void add_letters(const json_t *item, text *out)
{
    int count = (int)json_array_size(json_object_get(item, "choices"));
    for (int i = 0; i < count; i++)
        text_add_format(out, "%s%c", i == 0 ? "" : i + 1 < count ? ", " : " or ", (char)('A' + i));
}

static void choice_question(const json_t *item, bool plain, text *question, text *answer)
{
    if (!plain) {
        text_add_text(question, "Answer with ");
        add_letters(item, question);
        text_add_text(question, ".\n");
    }
    add_choices(item, question);
    if (!answer)
        return;
    text_add_text(answer, plain ? "" : "Answer: ");
    choice_expected(item, answer);
}

static void gpqa_question(const json_t *item, bool plain, text *question, text *answer)
{
    if (!plain) {
        text_add_text(question, "Choose the right answer to the question below. You may reason first; the last line must be "
                                "\"Answer: LETTER\", where LETTER is ");
        add_letters(item, question);
        text_add_text(question, ".\n\n");
    }
    add_choices(item, question);
    if (!answer)
        return;
    text_add_text(answer, plain ? "" : "Answer: ");
    choice_expected(item, answer);
}

static bool choice_score(const json_t *item, const eval_reply *r, text *parsed)
{
    int letter = extract_letter(content_of(r), (int)json_array_size(json_object_get(item, "choices")));
    if (letter < 0)
        return false;
    text_add_char(parsed, (char)('A' + letter));
    return letter == json_integer_value(json_object_get(item, "answer"));
}

/* ---- needle ---- */

static bool needle_read(const char *path, const eval_settings *s, eval_items *out, error *err)
{
    (void)s;
    return items_read_needles(path, out, err);
}

static void needle_question(const json_t *item, bool plain, text *question, text *answer)
{
    (void)plain;
    text_add_format(question, "%s\n\nQuestion: %s", string_at(item, "context"), string_at(item, "question"));
    if (answer)
        text_add_text(answer, string_at(item, "answer"));
}

static void needle_expected(const json_t *item, text *out)
{
    text_add_text(out, string_at(item, "answer"));
}

static bool needle_score(const json_t *item, const eval_reply *r, text *parsed)
{
    const char *answer = string_at(item, "answer");
    bool found = extract_contains(content_of(r), view_of(answer));
    if (found)
        text_add_text(parsed, answer);
    return found;
}

/* ---- tools ---- */

static bool tools_read(const char *path, const eval_settings *s, eval_items *out, error *err)
{
    (void)s;
    return items_read_calls(path, out, err);
}

static bool tools_messages(const json_t *item, eval_prompt *out)
{
    out->messages = json_incref(json_object_get(item, "messages"));
    out->tools = json_object_get(item, "tools");
    return true;
}

static void add_json(text *out, const json_t *value)
{
    char *dump = json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    text_add_text(out, dump ? dump : "");
    free(dump);
}

static void tools_expected(const json_t *item, text *out)
{
    add_json(out, json_object_get(item, "call"));
}

/* Exactly one call, with the same name and equal arguments. */
static bool tools_score(const json_t *item, const eval_reply *r, text *parsed)
{
    const json_t *want = json_object_get(item, "call"), *call = json_array_get(r->calls, 0);
    if (!call)
        return false;
    add_json(parsed, json_array_size(r->calls) == 1 ? call : r->calls);
    return json_array_size(r->calls) == 1 && json_equal(json_object_get(want, "name"), json_object_get(call, "name")) &&
           json_equal(json_object_get(want, "arguments"), json_object_get(call, "arguments"));
}

/* ---- the table ---- */

const eval_task eval_tasks[] = {
    {.name = "gsm8k", .what = "word problems, exact match of the final number", .files = {"arith.jsonl"}, .examples = "arith_train.jsonl",
     .max_tokens = 512, .read = gsm8k_read, .question = gsm8k_question, .score = gsm8k_score, .expected = gsm8k_expected},
    {.name = "gpqa", .what = "multiple choice with shuffled choices", .files = {"gpqa.csv"}, .max_tokens = 4096, .read = gpqa_read,
     .question = gpqa_question, .score = choice_score, .expected = choice_expected},
    {.name = "choice", .what = "multiple choice", .files = {"choice.jsonl"}, .examples = "choice_train.jsonl", .max_tokens = 512,
     .read = choice_read, .question = choice_question, .score = choice_score, .expected = choice_expected},
    {.name = "needle", .what = "finding a fact in a long text",
     .files = {"needle_500.jsonl", "needle_1000.jsonl", "needle_2000.jsonl", "needle_4000.jsonl"}, .max_tokens = 256, .read = needle_read,
     .question = needle_question, .score = needle_score, .expected = needle_expected},
    {.name = "tools", .what = "tool calls, exact match of name and arguments", .files = {"tools.jsonl"}, .max_tokens = 512,
     .chat_only = true, .read = tools_read, .messages = tools_messages, .score = tools_score, .expected = tools_expected},
};
const int eval_task_count = sizeof eval_tasks / sizeof *eval_tasks;

const eval_task *eval_task_find(const char *name)
{
    for (int i = 0; i < eval_task_count; i++)
        if (strcmp(eval_tasks[i].name, name) == 0)
            return &eval_tasks[i];
    return NULL;
}

/* "needle_500:" before the ids of the items from `first` on. */
static void prefix_ids(eval_items *items, size_t first, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int stem = (int)strcspn(name, ".");
    for (size_t i = first; i < items->count; i++) {
        text id = {0};
        text_add_format(&id, "%.*s:%s", stem, name, items->items[i].id);
        free(items->items[i].id);
        items->items[i].id = id.data;
    }
}

bool eval_items_read(const eval_task *t, const eval_settings *s, const char *const *paths, size_t count, size_t limit, eval_items *out,
                     error *err)
{
    size_t orders = t->read == gpqa_read ? (size_t)s->seeds : 1, each = (limit + count - 1) / count * orders;
    for (size_t i = 0; i < count; i++) {
        size_t before = out->count;
        if (!t->read(paths[i], s, out, err))
            return false;
        if (limit)
            eval_items_limit(out, before + each);
        if (count > 1)
            prefix_ids(out, before, paths[i]);
    }
    if (limit)
        eval_items_limit(out, limit * orders);
    return true;
}

bool eval_is_plain(const eval_task *t, const eval_settings *s)
{
    return !t->chat_only && (s->form == EVAL_FORM_PLAIN || (s->form == EVAL_FORM_AUTO && s->shots > 0));
}

/* ---- prompts ---- */

static void add_message(json_t *messages, const char *role, const text *content)
{
    json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", role, "content", content->data ? content->data : "", content->length));
}

/* "Question: ...\nAnswer: ...\n\nQuestion: ...\nAnswer:"; needles bring their own "Question:". */
static void add_plain(const eval_task *t, const eval_item *item, bool worked, text *out)
{
    text question = {0}, answer = {0};
    t->question(item->data, true, &question, worked ? &answer : NULL);
    bool bare = t->read == needle_read;
    text_add_format(out, "%s%s\nAnswer:", bare ? "" : "Question: ", question.data);
    if (worked)
        text_add_format(out, " %s\n\n", answer.data);
    text_free(&question);
    text_free(&answer);
}

static void add_turns(const eval_task *t, const eval_item *item, bool worked, json_t *messages)
{
    text question = {0}, answer = {0};
    t->question(item->data, false, &question, worked ? &answer : NULL);
    add_message(messages, "user", &question);
    if (worked)
        add_message(messages, "assistant", &answer);
    text_free(&question);
    text_free(&answer);
}

static void hash_prompt(eval_prompt *p)
{
    text all = {0};
    char hex[SHA256_TEXT_BYTES];
    if (p->messages)
        add_json(&all, p->messages);
    if (p->tools)
        add_json(&all, p->tools);
    text_add(&all, p->plain.data ? p->plain.data : "", p->plain.length);
    sha256_hex(all.data, all.length, hex);
    memcpy(p->hash, hex, 16);
    p->hash[16] = '\0';
    text_free(&all);
}

bool eval_prompt_make(const eval_task *t, const eval_settings *s, const eval_item *shots, const eval_item *item, eval_prompt *out,
                      error *err)
{
    bool plain = eval_is_plain(t, s);
    if (t->chat_only && (s->form == EVAL_FORM_PLAIN || s->shots > 0))
        return error_set(err, ERROR_USAGE, "--task %s is asked as a chat without examples; leave out --form plain and --shots", t->name);
    if (t->messages) {
        t->messages(item->data, out);
    } else if (plain) {
        for (int i = 0; i < s->shots; i++)
            add_plain(t, &shots[i], true, &out->plain);
        add_plain(t, item, false, &out->plain);
    } else {
        out->messages = json_array();
        for (int i = 0; i < s->shots; i++)
            add_turns(t, &shots[i], true, out->messages);
        add_turns(t, item, false, out->messages);
    }
    hash_prompt(out);
    return true;
}
