#include "eval/items.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/random.h"

enum { ITEMS_LIMIT_BYTES = 1 << 30, CHOICES_MOST = 26 };

void eval_items_free(eval_items *s)
{
    eval_items_limit(s, 0);
    free(s->items);
    *s = (eval_items){0};
}

static void free_item(eval_item *item)
{
    free(item->id);
    free(item->group);
    json_decref(item->data);
}

void eval_items_limit(eval_items *s, size_t most)
{
    while (s->count > most)
        free_item(&s->items[--s->count]);
}

void eval_items_drop_first(eval_items *s, size_t count)
{
    count = count < s->count ? count : s->count;
    for (size_t i = 0; i < count; i++)
        free_item(&s->items[i]);
    s->count -= count;
    memmove(s->items, s->items + count, s->count * sizeof *s->items);
}

/* Takes the reference to data. */
static eval_item *add_item(eval_items *s, json_t *data)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->items = mem_grow(s->items, s->capacity, sizeof *s->items);
    }
    s->items[s->count] = (eval_item){.data = data};
    return &s->items[s->count++];
}

static char *formatted(const char *format, long long a, long long b)
{
    char buffer[64];
    int n = snprintf(buffer, sizeof buffer, format, a, b);
    return mem_copy(buffer, (size_t)n);
}

/* Adds a file or recipe to what identifies the items. */
static void add_source(eval_items *s, const void *bytes, size_t count)
{
    char both[2 * SHA256_TEXT_BYTES] = "";
    size_t n = strlen(s->source);
    memcpy(both, s->source, n);
    sha256_hex(bytes, count, both + n);
    if (n)
        sha256_hex(both, strlen(both), s->source);
    else
        memcpy(s->source, both, SHA256_TEXT_BYTES);
}

/* ---- JSON Lines ---- */

typedef bool (*item_check)(json_source s, eval_item *item, error *err);

static bool is_blank(view line)
{
    for (size_t i = 0; i < line.length; i++)
        if (!strchr(" \t\r", line.data[i]))
            return false;
    return true;
}

static bool read_line(view line, const char *path, int64_t number, item_check check, eval_items *out, error *err)
{
    text where = {0};
    text_add_format(&where, "%s line %lld", path, (long long)number);
    json_t *value = json_parse(line.data, line.length, where.data, err);
    bool ok = value != NULL;
    if (ok && !json_is_object(value))
        ok = error_set(err, ERROR_INPUT, "%s: expected an object, found %s", where.data, json_type_name(value));
    if (ok) {
        eval_item *item = add_item(out, json_incref(value));
        item->id = formatted("%lld", number, 0);
        ok = check((json_source){value, where.data}, item, err);
    }
    json_decref(value);
    text_free(&where);
    return ok;
}

static bool read_lines(const char *path, item_check check, eval_items *out, error *err)
{
    text bytes = {0};
    bool ok = file_read(path, ITEMS_LIMIT_BYTES, &bytes, err);
    int64_t number = 0;
    size_t before = out->count;
    for (size_t at = 0; ok && at < bytes.length;) {
        const char *start = bytes.data + at, *end = memchr(start, '\n', bytes.length - at);
        view line = {start, end ? (size_t)(end - start) : bytes.length - at};
        at += line.length + 1;
        number++;
        ok = is_blank(line) || read_line(line, path, number, check, out, err);
    }
    if (ok && out->count == before)
        ok = error_set(err, ERROR_INPUT, "%s holds no items", path);
    if (ok)
        add_source(out, bytes.data, bytes.length);
    text_free(&bytes);
    return ok;
}

static bool check_question(json_source s, eval_item *item, error *err)
{
    const char *question, *answer;
    (void)item;
    if (!json_get_string(s, "question", &question, err) || !json_get_string(s, "answer", &answer, err))
        return false;
    const char *mark = strstr(answer, "####");
    if (!mark || !mark[4 + strspn(mark + 4, " ")])
        return error_set(err, ERROR_INPUT, "%s: the answer does not end with \"#### NUMBER\"", s.where);
    return true;
}

bool items_read_questions(const char *path, eval_items *out, error *err)
{
    return read_lines(path, check_question, out, err);
}

static bool check_choices(json_source s, eval_item *item, error *err)
{
    const char *question;
    int64_t answer;
    (void)item;
    const json_t *choices = json_object_get(s.object, "choices");
    size_t count = json_array_size(choices);
    if (!json_get_string(s, "question", &question, err))
        return false;
    if (!json_is_array(choices) || count < 2 || count > CHOICES_MOST)
        return error_set(err, ERROR_INPUT, "%s: choices must be an array of 2 to %d texts", s.where, (int)CHOICES_MOST);
    for (size_t i = 0; i < count; i++)
        if (!json_is_string(json_array_get(choices, i)))
            return error_set(err, ERROR_INPUT, "%s: choices[%zu] is %s, expected a string", s.where, i,
                             json_type_name(json_array_get(choices, i)));
    return json_get_int(s, "answer", 0, (int64_t)count - 1, &answer, err);
}

bool items_read_choices(const char *path, eval_items *out, error *err)
{
    return read_lines(path, check_choices, out, err);
}

static bool check_needle(json_source s, eval_item *item, error *err)
{
    const char *words;
    int64_t tokens = 0;
    if (!json_get_string(s, "context", &words, err) || !json_get_string(s, "question", &words, err) ||
        !json_get_string(s, "answer", &words, err) || !json_get_int_or(s, "tokens", 1, INT32_MAX, &tokens, err))
        return false;
    if (!words[0])
        return error_set(err, ERROR_INPUT, "%s: the answer is empty", s.where);
    if (tokens)
        item->group = formatted("%lld tokens", tokens, 0);
    return true;
}

bool items_read_needles(const char *path, eval_items *out, error *err)
{
    return read_lines(path, check_needle, out, err);
}

static bool check_call(json_source s, eval_item *item, error *err)
{
    (void)item;
    const json_t *messages = json_object_get(s.object, "messages"), *tools = json_object_get(s.object, "tools");
    const json_t *call = json_object_get(s.object, "call");
    if (json_array_size(messages) == 0)
        return error_set(err, ERROR_INPUT, "%s: messages must be an array with at least one message", s.where);
    if (json_array_size(tools) == 0)
        return error_set(err, ERROR_INPUT, "%s: tools must be an array with at least one tool", s.where);
    if (!json_is_string(json_object_get(call, "name")) || !json_is_object(json_object_get(call, "arguments")))
        return error_set(err, ERROR_INPUT, "%s: call must be {\"name\": TEXT, \"arguments\": OBJECT}", s.where);
    return true;
}

bool items_read_calls(const char *path, eval_items *out, error *err)
{
    return read_lines(path, check_call, out, err);
}

/* ---- GPQA ---- */

enum { GPQA_CHOICES = 4 };

static const char *const gpqa_columns[] = {"Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"};

/* order[i]: which of the answers stands at place i; a Fisher-Yates shuffle by (seed, row). */
static void shuffle(uint64_t seed, uint64_t row, int order[GPQA_CHOICES])
{
    for (int i = 0; i < GPQA_CHOICES; i++)
        order[i] = i;
    for (int i = GPQA_CHOICES - 1; i > 0; i--) {
        int other = (int)(random_uniform(seed, row, (uint64_t)i) * (i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static json_t *text_of(view field)
{
    while (field.length && strchr(" \t\r\n", field.data[field.length - 1]))
        field.length--;
    while (field.length && strchr(" \t\r\n", field.data[0]))
        field.data++, field.length--;
    return json_stringn(field.data, field.length);
}

static bool add_gpqa_row(const csv_table *t, size_t row, const int columns[5], uint64_t seed, const char *path, eval_items *out, error *err)
{
    const csv_row *r = &t->rows[row];
    int order[GPQA_CHOICES], answer = 0;
    json_t *choices = json_array(), *question = text_of(r->fields[columns[0]]);
    bool ok = question != NULL;
    shuffle(seed, row, order);
    for (int i = 0; i < GPQA_CHOICES; i++) {
        json_t *choice = text_of(r->fields[columns[1 + order[i]]]);
        if (!choice || !json_string_length(choice))
            ok = error_set(err, ERROR_INPUT, "%s line %lld: %s is %s", path, (long long)r->line, gpqa_columns[1 + order[i]],
                           choice ? "empty" : "not valid UTF-8");
        json_array_append_new(choices, choice ? choice : json_null());
        answer = order[i] == 0 ? i : answer;
    }
    if (!question)
        error_set(err, ERROR_INPUT, "%s line %lld: Question is not valid UTF-8", path, (long long)r->line);
    eval_item *item = add_item(
        out, json_pack("{s:o, s:o, s:i}", "question", question ? question : json_null(), "choices", choices, "answer", answer));
    item->id = formatted("%lld/%lld", (long long)row + 1, (long long)seed);
    item->group = formatted("seed %lld", (long long)seed, 0);
    return ok;
}

bool items_read_gpqa(const char *path, uint64_t first_seed, int seeds, eval_items *out, error *err)
{
    text bytes = {0};
    csv_table table = {0};
    int columns[5];
    bool ok = file_read(path, ITEMS_LIMIT_BYTES, &bytes, err) && csv_parse((view){bytes.data, bytes.length}, path, &table, err);
    for (int i = 0; ok && i < 5; i++)
        if ((columns[i] = csv_column(&table, gpqa_columns[i])) < 0)
            ok = error_set(err, ERROR_INPUT, "%s line 1: there is no column \"%s\"", path, gpqa_columns[i]);
    for (size_t row = 0; ok && row < table.count; row++)
        for (int s = 0; ok && s < seeds; s++)
            ok = add_gpqa_row(&table, row, columns, first_seed + (uint64_t)s, path, out, err);
    if (ok && out->count == 0)
        ok = error_set(err, ERROR_INPUT, "%s holds no items", path);
    if (ok)
        add_source(out, bytes.data, bytes.length);
    csv_free(&table);
    text_free(&bytes);
    return ok;
}

/* ---- needles ---- */

static const char *const subjects[] = {"The weather", "The market", "The old road", "The river", "The village", "The garden", "The school",
                                       "The harbour", "The field", "The baker", "A small boat", "The bridge"};
static const char *const verbs[] = {"was quiet", "looked beautiful", "changed slowly", "seemed calm", "was busy", "stayed the same",
                                    "was bright", "felt warm", "was almost empty"};
static const char *const times[] = {"in the morning", "that day", "during the winter", "after the rain", "in the evening", "last week",
                                    "all summer", "on Sunday", "late at night"};
static const char *const owners[] = {"north gate", "blue tower", "old library", "small museum", "east harbour", "stone bridge",
                                     "green garden", "white chapel"};

static uint64_t pick(uint64_t seed, uint64_t position, uint64_t index, uint64_t count)
{
    return random_word(seed, position, index) % count;
}
#define PICK(list, seed, position, index) list[pick(seed, position, index, sizeof(list) / sizeof *(list))]

static int token_count(const tokenizer *t, const text *words)
{
    token_list ids = {0};
    tokenizer_encode(t, words->data ? words->data : "", words->length, false, &ids);
    int count = (int)ids.count;
    token_list_free(&ids);
    return count;
}

static void add_sentence(text *out, uint64_t seed, uint64_t key, uint64_t i)
{
    text_add_format(out, "%s%s %s %s.", i % 7 == 0 && i ? "\n" : i ? " " : "", PICK(subjects, seed, key, 4 * i),
                    PICK(verbs, seed, key, 4 * i + 1), PICK(times, seed, key, 4 * i + 2));
}

/* A text of about `tokens` tokens; the fact stands at `depth` (0 .. 1) of it. */
static void make_context(const tokenizer *t, int tokens, double depth, const char *fact, uint64_t seed, uint64_t key, text *out)
{
    text sample = {0};
    enum { SAMPLE = 64 };
    for (uint64_t i = 0; i < SAMPLE; i++)
        add_sentence(&sample, seed, key, i);
    int per_sample = token_count(t, &sample);
    text_free(&sample);
    text_add_text(out, "Read the text and answer the question.\n\n");
    uint64_t sentences = (uint64_t)tokens * SAMPLE / (uint64_t)per_sample, at = (uint64_t)(depth * (double)sentences);
    for (uint64_t i = 0; i <= sentences; i++) {
        if (i == at)
            text_add_format(out, "%s%s", i ? " " : "", fact);
        if (i < sentences)
            add_sentence(out, seed, key, i == 0 && at == 0 ? 1 : i);
    }
}

static void make_needle(const tokenizer *t, int tokens, int index, int count, uint64_t seed, eval_items *out)
{
    uint64_t key = (uint64_t)tokens * 1000003u + (uint64_t)index;
    text fact = {0}, context = {0}, question = {0}, code = {0};
    const char *owner = PICK(owners, seed, key, UINT64_MAX);
    text_add_format(&code, "%d", 1000 + (int)pick(seed, key, UINT64_MAX - 1, 9000));
    text_add_format(&fact, "The access code of the %s is %s.", owner, code.data);
    text_add_format(&question, "What is the access code of the %s?", owner);
    make_context(t, tokens, count > 1 ? (double)index / (double)(count - 1) : 0.5, fact.data, seed, key, &context);
    eval_item *item = add_item(out, json_pack("{s:s, s:s, s:s, s:i}", "context", context.data, "question", question.data,
                                              "answer", code.data, "tokens", tokens));
    item->id = formatted("%lld/%lld", tokens, index + 1);
    item->group = formatted("%lld tokens", tokens, 0);
    text_free(&fact);
    text_free(&context);
    text_free(&question);
    text_free(&code);
}

bool items_make_needles(const tokenizer *t, const int *lengths, int length_count, int count, uint64_t seed, eval_items *out, error *err)
{
    text recipe = {0};
    text_add_format(&recipe, "needles 1, seed %llu, %d each:", (unsigned long long)seed, count);
    for (int i = 0; i < length_count; i++) {
        if (lengths[i] < 64) {
            text_free(&recipe);
            return error_set(err, ERROR_USAGE, "a length of %d tokens has no room for a text, expected at least 64", lengths[i]);
        }
        text_add_format(&recipe, " %d", lengths[i]);
        for (int k = 0; k < count; k++)
            make_needle(t, lengths[i], k, count, seed, out);
    }
    add_source(out, recipe.data, recipe.length);
    text_free(&recipe);
    return true;
}
