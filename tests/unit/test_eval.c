/* Evaluation: what is found in answers, statistics, items and their errors, prompts, result files and their continuation, comparison. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/csv.h"
#include "base/file.h"
#include "base/memory.h"
#include "eval/extract.h"
#include "eval/result.h"
#include "eval/stats.h"
#include "eval/task.h"
#include "eval/textscore.h"

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* ---- files ---- */

static char folder[] = "/tmp/drawbridge-eval-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) == 0 ? 0 : -1;
}

/* Writes a file of the test folder and gives its path, valid until the next call with the same name length. */
static const char *write_file(const char *name, const char *content)
{
    static char path[128];
    error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    file_writer *w = file_writer_open(path, &err);
    assert_non_null(w);
    assert_true(file_writer_add(w, content, strlen(content), &err) && file_writer_commit(w, &err));
    return path;
}

static void assert_contains(const char *words, const char *part)
{
    if (!strstr(words, part))
        fail_msg("expected \"%s\" in \"%s\"", part, words);
}

/* ---- answers ---- */

static void check_number(const char *answer, const char *expected)
{
    text out = {0};
    bool found = extract_number(view_of(answer), &out);
    if (found != (expected != NULL))
        fail_msg("\"%s\": found %s", answer, found ? out.data : "nothing");
    if (found && strcmp(out.data, expected) != 0)
        fail_msg("\"%s\": expected %s, found %s", answer, expected, out.data);
    text_free(&out);
}

static void test_numbers(void **state)
{
    (void)state;
    check_number("She has 3 + 4 = 7 eggs.\n#### 7", "7");
    check_number("#### 7\n\nI checked it 3 times.", "7");
    check_number("The answer is 12.", "12");
    check_number("5 apples and 6 pears", "6");
    check_number("#### 1,234,567", "1234567");
    check_number("$1,200.50 in total", "1200.5");
    check_number("#### $18.00", "18");
    check_number("It is -3.", "-3");
    check_number("10-3", "3");
    check_number("(4 + 6)-3", "3");
    check_number("x = -0.0", "0");
    check_number("007", "7");
    check_number("a list: 1,2,3", "3");
    check_number("of 1,2345", "2345");
    check_number("the share is .5", "0.5");
    check_number("#### none, but 8 before", "8");
    check_number("4 #### no digits behind", NULL);
    check_number("no number", NULL);
    check_number("", NULL);
}

static void check_letter(const char *answer, int choices, int expected)
{
    int found = extract_letter(view_of(answer), choices);
    if (found != expected)
        fail_msg("\"%s\": expected %d, found %d", answer, expected, found);
}

static void test_letters(void **state)
{
    (void)state;
    check_letter("Answer: B", 4, 1);
    check_letter("A is wrong. The answer is (C).", 4, 2);
    check_letter("**Answer:** D", 4, 3);
    check_letter("Answer: A\nWait. Answer: B", 4, 1);
    check_letter("ANSWER: $\\boxed{C}$", 4, 2);
    check_letter("so \\boxed{A} or rather \\boxed{D}", 4, 3);
    check_letter("B", 4, 1);
    check_letter(" C. Rome", 4, 2);
    check_letter("(A) is right", 4, 0);
    check_letter("I take (B), not (C)", 4, 2);
    check_letter("A dog is an animal", 4, -1);
    check_letter("Answer: E", 4, -1);
    check_letter("Answer: E", 5, 4);
    check_letter("Answer: Because", 4, -1);
    check_letter("the answer is Berlin", 4, -1);
    check_letter("", 4, -1);
}

static void test_words(void **state)
{
    (void)state;
    assert_true(extract_contains(view_of("The code is 4711."), view_of("4711")));
    assert_true(extract_contains(view_of("the GREEN key"), view_of("green key")));
    assert_false(extract_contains(view_of("The code is 14711."), view_of("4711")));
    assert_false(extract_contains(view_of("The code is 47110."), view_of("4711")));
    assert_false(extract_contains(view_of("anything"), view_of("")));
    assert_int_equal(extract_before(view_of("7\n\nQuestion: x"), "Question:").length, 3);
    assert_int_equal(extract_before(view_of("7"), "Question:").length, 1);
}

/* ---- statistics ---- */

static void assert_near(double found, double expected, double tolerance)
{
    if (!(fabs(found - expected) <= tolerance))
        fail_msg("expected %.10g +- %.1g, found %.10g", expected, tolerance, found);
}

/* Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, score method without continuity correction, gives
 * 81/263: 0.2553 .. 0.3662, 15/148: 0.0624 .. 0.1605, 0/20: 0 .. 0.1611, 1/29: 0.0061 .. 0.1718. Four digits: half a unit of the last. */
static void test_wilson(void **state)
{
    (void)state;
    const struct {
        int64_t right, count;
        double low, high;
    } known[] = {{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718}};
    for (size_t i = 0; i < COUNT(known); i++) {
        stats_interval w = stats_wilson(known[i].right, known[i].count);
        assert_near(w.low, known[i].low, 5.1e-5);
        assert_near(w.high, known[i].high, 5.1e-5);
    }
    stats_interval all = stats_wilson(20, 20), none = stats_wilson(0, 0);
    assert_true(all.high == 1 && none.low == 0 && none.high == 1);
    assert_near(all.low, 1 - 0.1611, 5.1e-5);
}

/* Sums of binomial coefficients by hand: (1 + 10) / 2^10 * 2 for 1 against 9, and so on. */
static void test_mcnemar(void **state)
{
    (void)state;
    assert_near(stats_mcnemar(1, 9), 2.0 * 11 / 1024, 1e-12);
    assert_near(stats_mcnemar(9, 1), 2.0 * 11 / 1024, 1e-12);
    assert_near(stats_mcnemar(0, 5), 2.0 / 32, 1e-12);
    assert_near(stats_mcnemar(2, 6), 2.0 * (1 + 8 + 28) / 256, 1e-12);
    assert_near(stats_mcnemar(5, 5), 1, 0);
    assert_near(stats_mcnemar(0, 0), 1, 0);
}

/* By hand: mean 3, standard deviation sqrt(2.5), half width 1.95996 * sqrt(2.5 / 5) = 1.38590. */
static void test_mean_and_quantile(void **state)
{
    (void)state;
    double values[] = {5, 1, 4, 2, 3}, mean;
    stats_interval i = stats_mean(values, 5, &mean);
    assert_near(mean, 3, 0);
    assert_near(i.low, 3 - 1.3859038, 1e-6);
    assert_near(i.high, 3 + 1.3859038, 1e-6);
    assert_near(stats_quantile(values, 5, 0.99), 4.96, 1e-12); /* place 3.96 of 0 .. 4 */
    assert_near(stats_quantile(values, 5, 0.5), 3, 0);
    assert_true(isnan(stats_quantile(values, 0, 0.5)));
    assert_true(isnan(stats_mean(values, 1, &mean).low) && mean == 1);
}

/* The bootstrap of a mean of n values has standard deviation s / sqrt(n) (s with divisor n), so for many items its percentile interval
 * is near the normal one. 2,000 resamples leave each end uncertain by about 0.06 of that deviation; five times that is allowed. */
static void test_bootstrap(void **state)
{
    (void)state;
    enum { N = 400 };
    double values[N], weights[N], sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        values[i] = (i * 37) % 101;
        weights[i] = 1;
        sum += values[i];
    }
    for (int i = 0; i < N; i++)
        squares += (values[i] - sum / N) * (values[i] - sum / N);
    double deviation = sqrt(squares / N) / sqrt(N);
    stats_interval b = stats_bootstrap(values, NULL, N, STATS_RESAMPLES, 7);
    assert_near(b.low, sum / N - 1.959964 * deviation, 0.3 * deviation);
    assert_near(b.high, sum / N + 1.959964 * deviation, 0.3 * deviation);
    stats_interval again = stats_bootstrap(values, weights, N, STATS_RESAMPLES, 7),
                   other = stats_bootstrap(values, NULL, N, STATS_RESAMPLES, 8);
    assert_true(again.low == b.low && again.high == b.high);
    assert_true(other.low != b.low);
    double sums[] = {10, 20, 60}, tokens[] = {10, 20, 60};
    stats_interval one = stats_bootstrap(sums, tokens, 3, 100, 1);
    assert_true(one.low == 1 && one.high == 1);
}

static void test_verdicts(void **state)
{
    (void)state;
    enum { N = 200 };
    bool a[N], b[N];
    for (int i = 0; i < N; i++) {
        a[i] = i % 2 == 0;
        b[i] = i % 2 == 0 || i < 40; /* 20 more, none fewer */
    }
    stats_comparison c = stats_compare_correct(a, b, N, 1);
    assert_near(c.delta, 0.1, 1e-12);
    assert_near(c.p, 2 * pow(0.5, 20), 1e-12);
    assert_int_equal(c.verdict, STATS_BETTER);
    assert_int_equal(stats_compare_correct(b, a, N, 1).verdict, STATS_WORSE);
    c = stats_compare_correct(a, a, N, 1);
    assert_true(c.interval.low == 0 && c.interval.high == 0 && c.verdict == STATS_NO_DIFFERENCE);
    for (int i = 0; i < N; i++)
        b[i] = i < 5 ? !a[i] : a[i];
    assert_int_equal(stats_compare_correct(a, b, N, 1).verdict, STATS_NO_DIFFERENCE);
    double x[] = {1, 2, 3, 4, 5, 6}, y[] = {2, 3.1, 4, 5.2, 6, 7.3};
    assert_int_equal(stats_compare_means(x, y, NULL, STATS_FEWEST, true, 1).verdict, STATS_WORSE);
    assert_int_equal(stats_compare_means(x, y, NULL, STATS_FEWEST, false, 1).verdict, STATS_BETTER);
    assert_int_equal(stats_compare_means(x, y, NULL, STATS_FEWEST - 1, true, 1).verdict, STATS_TOO_FEW);
    c = stats_compare_means(x, y, NULL, 1, true, 1);
    assert_true(isnan(c.interval.low) && isnan(c.interval.high) && c.verdict == STATS_TOO_FEW);
}

/* KL((1/2, 1/2) || (1/4, 3/4)) = ln(2) - ln(3)/2 = ln(2 / sqrt(3)); logits shifted by a constant and padding do not matter. */
static void test_divergence(void **state)
{
    (void)state;
    const float p[] = {3, 3, 99}, q[] = {-1, -1 + 1.0986122887f, 50};
    bool agree;
    assert_near(row_divergence(p, q, 2, &agree), log(2 / sqrt(3)), 1e-7);
    assert_false(agree);
    assert_near(row_divergence(q, q, 2, &agree), 0, 0);
    assert_true(agree);
    assert_near(row_nll(q, 2, 1), log(4.0 / 3), 1e-7);
    int32_t ids[10] = {0};
    token_list all = {.ids = ids, .count = 9, .capacity = 10};
    size_t count;
    text_window *w = text_windows(&all, 4, &count);
    assert_int_equal(count, 2); /* the ninth token alone predicts nothing */
    assert_int_equal(w[1].count, 4);
    free(w);
    all.count = 10;
    w = text_windows(&all, 4, &count);
    assert_int_equal(count, 3);
    assert_int_equal(w[2].count, 2);
    free(w);
}

/* ---- CSV and items ---- */

static void test_csv(void **state)
{
    (void)state;
    csv_table t = {0};
    error err = {0};
    const char *bytes = "\xEF\xBB\xBFname,\"two\nlines\",x\r\n\"a \"\"quoted\"\", b\",,\"\"\n1,\"2\r\n3\",4";
    assert_true(csv_parse(view_of(bytes), "f.csv", &t, &err));
    assert_int_equal(t.columns, 3);
    assert_int_equal(t.count, 2);
    assert_int_equal(csv_column(&t, "two\nlines"), 1);
    assert_int_equal(csv_column(&t, "none"), -1);
    assert_true(view_equal_text(t.rows[0].fields[0], "a \"quoted\", b"));
    assert_int_equal(t.rows[0].fields[1].length, 0);
    assert_int_equal(t.rows[0].line, 3);
    assert_true(view_equal_text(t.rows[1].fields[1], "2\r\n3"));
    assert_true(view_equal_text(t.rows[1].fields[2], "4"));
    csv_free(&t);
}

static void test_csv_errors(void **state)
{
    (void)state;
    const struct {
        const char *bytes, *sentence;
    } bad[] = {{"a,b\n1,2\n3\n", "f.csv line 3: expected 2 fields as in the first row, found 1"},
               {"a,b\n1,\"2\n3\n", "f.csv line 2: the quote that opens here is never closed"},
               {"a\n\"x\"y\n", "f.csv line 2: expected a comma"},
               {"a\nx\"y\n", "f.csv line 2: a quote inside a field"},
               {"", "f.csv is empty"}};
    for (size_t i = 0; i < COUNT(bad); i++) {
        csv_table t = {0};
        error err = {0};
        assert_false(csv_parse(view_of(bad[i].bytes), "f.csv", &t, &err));
        assert_contains(err.text, bad[i].sentence);
        csv_free(&t);
    }
}

#define GPQA_HEAD "Record,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"

static void test_gpqa(void **state)
{
    (void)state;
    eval_items items = {0};
    error err = {0};
    const char *path = write_file("gpqa.csv", GPQA_HEAD "x,\"What, then?\",right ,w1,w2,w3\ny,Why?,yes,no,maybe,never\n");
    assert_true(items_read_gpqa(path, 3, 20, &items, &err));
    assert_int_equal(items.count, 40);
    assert_string_equal(items.items[0].id, "1/3");
    assert_string_equal(items.items[21].group, "seed 4");
    int places[4] = {0};
    for (size_t i = 0; i < 20; i++) {
        size_t answer = (size_t)json_integer_value(json_object_get(items.items[i].data, "answer"));
        assert_string_equal(json_string_value(json_array_get(json_object_get(items.items[i].data, "choices"), answer)), "right");
        places[answer]++;
    }
    for (int i = 0; i < 4; i++)
        assert_in_range(places[i], 1, 12); /* every place is used; which is fixed by the seeds */
    eval_items_free(&items);
    assert_false(items_read_gpqa(write_file("bad1.csv", "Question,Correct Answer\nq,a\n"), 0, 1, &items, &err));
    assert_contains(err.text, "bad1.csv line 1: there is no column \"Incorrect Answer 1\"");
    eval_items_free(&items);
    assert_false(items_read_gpqa(write_file("bad2.csv", GPQA_HEAD "x,\"q\n?\",a,b,c,d\ny,q,a,b,,d\n"), 0, 1, &items, &err));
    assert_contains(err.text, "bad2.csv line 4: Incorrect Answer 2 is empty");
    eval_items_free(&items);
}

static void test_bad_items(void **state)
{
    (void)state;
    const struct {
        const char *task, *bytes, *sentence;
    } bad[] = {
        {"gsm8k", "{\"question\": \"q\", \"answer\": \"#### 1\"}\n{\"question\": 1}\n", "items.jsonl line 2"},
        {"gsm8k", "\n{\"question\": \"q\", \"answer\": \"12\"}\n", "items.jsonl line 2: the answer does not end with \"#### NUMBER\""},
        {"gsm8k", "[]\n", "items.jsonl line 1: expected an object"},
        {"gsm8k", "{\"question\": \n", "items.jsonl line 1"},
        {"gsm8k", "\n \n", "items.jsonl holds no items"},
        {"choice", "{\"question\": \"q\", \"choices\": [\"a\"], \"answer\": 0}\n", "line 1: choices must be an array of 2 to 26 texts"},
        {"choice", "{\"question\": \"q\", \"choices\": [\"a\", 2], \"answer\": 0}\n", "line 1: choices[1] is"},
        {"choice", "{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 2}\n", "answer"},
        {"needle", "{\"context\": \"c\", \"question\": \"q\", \"answer\": \"\"}\n", "line 1: the answer is empty"},
        {"needle", "{\"question\": \"q\", \"answer\": \"a\"}\n", "context"},
        {"tools", "{\"messages\": [], \"tools\": [{}], \"call\": {}}\n", "line 1: messages"},
        {"tools", "{\"messages\": [{}], \"tools\": [], \"call\": {}}\n", "line 1: tools"},
        {"tools", "{\"messages\": [{}], \"tools\": [{}], \"call\": {\"name\": \"f\", \"arguments\": \"{}\"}}\n", "line 1: call must be"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        eval_items items = {0};
        eval_settings settings = {.seeds = 1};
        error err = {0};
        assert_false(eval_task_find(bad[i].task)->read(write_file("items.jsonl", bad[i].bytes), &settings, &items, &err));
        assert_int_equal(err.code, ERROR_INPUT);
        assert_contains(err.text, bad[i].sentence);
        assert_contains(err.text, "items.jsonl");
        eval_items_free(&items);
    }
}

/* ---- prompts and scores ---- */

#define ARITHMETIC "{\"question\": \"1 + 1?\", \"answer\": \"It is 1 + 1 = 2.\\n#### 2\"}\n" \
                   "{\"question\": \"2 + 2?\", \"answer\": \"#### 4\"}\n" \
                   "{\"question\": \"3 + 3?\", \"answer\": \"#### 6\"}\n"

static void test_prompts(void **state)
{
    (void)state;
    const eval_task *t = eval_task_find("gsm8k");
    eval_items items = {0};
    error err = {0};
    eval_settings s = {.shots = 1};
    const char *path = write_file("arith.jsonl", ARITHMETIC);
    assert_true(eval_items_read(t, &s, &path, 1, 2, &items, &err));
    assert_int_equal(items.count, 2);
    eval_prompt plain = {0}, chat = {0};
    assert_true(eval_prompt_make(t, &s, items.items, &items.items[1], &plain, &err));
    assert_string_equal(plain.plain.data, "Question: 1 + 1?\nAnswer: It is 1 + 1 = 2.\n#### 2\n\nQuestion: 2 + 2?\nAnswer:");
    assert_null(plain.messages);
    s.form = EVAL_FORM_CHAT;
    assert_true(eval_prompt_make(t, &s, items.items, &items.items[1], &chat, &err));
    char *dump = json_dumps(chat.messages, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        dump, "[{\"content\":\"1 + 1?\",\"role\":\"user\"},{\"content\":\"It is 1 + 1 = 2.\\n#### 2\",\"role\":\"assistant\"},"
              "{\"content\":\"2 + 2?\",\"role\":\"user\"}]");
    free(dump);
    assert_string_not_equal(plain.hash, chat.hash);
    eval_prompt_free(&plain);
    eval_prompt_free(&chat);
    s.form = EVAL_FORM_PLAIN;
    assert_false(eval_prompt_make(eval_task_find("tools"), &s, NULL, &items.items[0], &plain, &err));
    assert_contains(err.text, "--task tools is asked as a chat");
    eval_items_free(&items);
}

static void test_several_files(void **state)
{
    (void)state;
    char first[128], second[128];
    snprintf(first, sizeof first, "%s", write_file("one.jsonl", ARITHMETIC));
    snprintf(second, sizeof second, "%s", write_file("two.jsonl", ARITHMETIC));
    const char *paths[] = {first, second};
    eval_items items = {0}, alone = {0};
    eval_settings s = {0};
    error err = {0};
    assert_true(eval_items_read(eval_task_find("gsm8k"), &s, paths, 2, 4, &items, &err));
    assert_true(eval_items_read(eval_task_find("gsm8k"), &s, paths, 1, 0, &alone, &err));
    assert_int_equal(items.count, 4);
    assert_string_equal(items.items[1].id, "one:2");
    assert_string_equal(items.items[2].id, "two:1");
    assert_string_equal(alone.items[1].id, "2");
    assert_string_not_equal(items.source, alone.source);
    eval_items_free(&items);
    eval_items_free(&alone);
}

/* What a task makes of a reply. */
static bool scores(const char *task, const char *item, const char *content, const char *calls)
{
    eval_reply r = {0};
    text parsed = {0};
    json_t *data = json_loads(item, 0, NULL);
    assert_non_null(data);
    text_add_text(&r.content, content);
    r.calls = calls ? json_loads(calls, 0, NULL) : NULL;
    bool right = eval_task_find(task)->score(data, &r, &parsed);
    json_decref(data);
    text_free(&parsed);
    eval_reply_free(&r);
    return right;
}

static void test_scores(void **state)
{
    (void)state;
    const char *sum = "{\"question\": \"q\", \"answer\": \"so #### 1,200\"}", *choice = "{\"choices\": [\"x\", \"y\"], \"answer\": 1}";
    assert_true(scores("gsm8k", sum, "It is 1200.00 dollars", NULL));
    assert_false(scores("gsm8k", sum, "It is 1201", NULL));
    assert_false(scores("gsm8k", sum, "", NULL));
    assert_true(scores("choice", choice, "Answer: B", NULL));
    assert_false(scores("choice", choice, "Answer: A", NULL));
    assert_true(scores("needle", "{\"answer\": \"red key\"}", "The Red Key opens it.", NULL));
    const char *call = "{\"call\": {\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [\"x\"]}}}";
    assert_true(scores("tools", call, "", "[{\"name\": \"f\", \"arguments\": {\"b\": [\"x\"], \"a\": 1}}]"));
    assert_false(scores("tools", call, "", "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"));
    assert_false(scores("tools", call, "", "[{\"name\": \"g\", \"arguments\": {\"a\": 1, \"b\": [\"x\"]}}]"));
    assert_false(scores("tools", call, "", "[{\"name\": \"f\", \"arguments\": null}]"));
    assert_false(scores("tools", call, "", "[]"));
    assert_false(scores("tools", call, "",
                        "[{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [\"x\"]}}, {\"name\": \"f\", \"arguments\": {}}]"));
}

/* ---- results ---- */

static const char *const ids[] = {"1", "2", "3"};
static const char *const prompts[] = {"aaaa", "bbbb", "cccc"};

static bool open_result(eval_result *r, const char *path, int limit, error *err)
{
    return eval_result_open(r, path, "gsm8k", "m", json_pack("{s:i, s:s}", "limit", limit, "form", "chat"), ids, prompts, 3, err);
}

static void set_correct(eval_result *r, size_t i, bool right)
{
    error err = {0};
    assert_true(eval_result_set(r, i,
                                json_pack("{s:s, s:s, s:b, s:s, s:s}", "id", ids[i], "prompt", prompts[i], "correct", (int)right,
                                          "parsed", "1", "group", i ? "long" : "short"),
                                &err));
}

static void test_resume(void **state)
{
    (void)state;
    char path[128];
    error err = {0};
    eval_result r = {0};
    snprintf(path, sizeof path, "%s/result.json", folder);
    assert_true(open_result(&r, path, 3, &err));
    set_correct(&r, 1, true);
    assert_true(eval_result_save(&r, &err));
    eval_result_free(&r);

    assert_true(open_result(&r, path, 3, &err));
    assert_int_equal(r.resumed, 1);
    assert_true(r.records[1] && !r.records[0] && !r.records[2]);
    set_correct(&r, 0, false);
    set_correct(&r, 2, true);
    assert_int_equal(eval_result_correct(&r), 2);
    assert_true(eval_result_save(&r, &err));
    eval_result_free(&r);

    json_t *saved = eval_document_load(path, &err);
    assert_true(json_is_true(json_object_get(saved, "complete")));
    assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(saved, "items"), 0), "id")), "1");
    const json_t *summary = json_object_get(saved, "summary");
    assert_near(json_number_value(json_object_get(summary, "accuracy")), 2.0 / 3, 1e-8);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(json_object_get(summary, "groups"), "long"), "correct")), 2);
    json_decref(saved);

    assert_false(open_result(&r, path, 4, &err));
    assert_contains(err.text, "result.json is the result of another run (limit differs)");
    eval_result_free(&r);
    const char *other[] = {"aaaa", "bbbb", "dddd"};
    assert_false(eval_result_open(&r, path, "gsm8k", "m", json_pack("{s:i, s:s}", "limit", 3, "form", "chat"), ids, other, 3, &err));
    assert_contains(err.text, "item 3 is not one of this run");
    eval_result_free(&r);
    assert_false(open_result(&r, write_file("other.json", "{\"items\": []}"), 3, &err));
    assert_contains(err.text, "other.json is not a result of drawbridge eval");
    eval_result_free(&r);
    assert_false(open_result(&r, write_file("cut.json", "{\"items\": "), 3, &err));
    assert_contains(err.text, "cut.json");
    eval_result_free(&r);
}

static json_t *document(const char *task, const char *items)
{
    json_t *list = json_loads(items, 0, NULL);
    assert_non_null(list);
    return json_pack("{s:s, s:s, s:s, s:o}", "format", "drawbridge eval 1", "task", task, "model", "m", "items", list);
}

static void test_compare(void **state)
{
    (void)state;
    text items[2] = {{0}, {0}}, table = {0};
    for (int which = 0; which < 2; which++) {
        text_add_text(&items[which], "[");
        for (int i = 0; i < 40; i++) /* the candidate loses items 0 .. 9 */
            text_add_format(&items[which], "%s{\"id\": \"%d\", \"prompt\": \"p\", \"correct\": %s}", i ? "," : "", i,
                            which && i < 10 ? "false" : "true");
        text_add_text(&items[which], "]");
    }
    json_t *a = document("gsm8k", items[0].data), *b = document("gsm8k", items[1].data), *found = NULL;
    error err = {0};
    assert_true(eval_documents_compare(a, b, &found, &table, &err));
    assert_contains(table.data, "baseline");
    assert_contains(table.data, "1.00000    0.75000   -0.25000");
    assert_contains(table.data, "worse");
    assert_near(json_number_value(json_object_get(found, "mcnemar_p")), 2.0 / 1024, 1e-12);
    assert_int_equal(json_integer_value(json_object_get(found, "left_out")), 0);
    json_decref(found);
    json_array_remove(json_object_get(b, "items"), 0);
    text_clear(&table);
    assert_true(eval_documents_compare(a, b, &found, &table, &err));
    assert_contains(table.data, "1 items are in one of the runs only");
    json_decref(found);
    json_object_set_new(json_array_get(json_object_get(b, "items"), 3), "prompt", json_string("q"));
    assert_false(eval_documents_compare(a, b, &found, &table, &err));
    assert_contains(err.text, "item 4 was asked differently");
    json_t *other = document("choice", "[]"), *empty = document("gsm8k", "[]");
    assert_false(eval_documents_compare(a, other, &found, &table, &err));
    assert_contains(err.text, "different tasks");
    assert_false(eval_documents_compare(a, empty, &found, &table, &err));
    assert_contains(err.text, "no item in common");
    json_decref(a);
    json_decref(b);
    json_decref(other);
    json_decref(empty);
    text_free(&items[0]);
    text_free(&items[1]);
    text_free(&table);
}

/* Perplexity: windows of 10 and 30 tokens; a lower nll is better. */
static void test_compare_texts(void **state)
{
    (void)state;
    json_t *a = document("ppl", "[{\"id\": \"1\", \"prompt\": \"p\", \"tokens\": 10, \"nll\": 20.0},"
                                "{\"id\": \"2\", \"prompt\": \"p\", \"tokens\": 30, \"nll\": 60.0}]");
    json_t *b = document("ppl", "[{\"id\": \"1\", \"prompt\": \"p\", \"tokens\": 10, \"nll\": 10.0},"
                                "{\"id\": \"2\", \"prompt\": \"p\", \"tokens\": 30, \"nll\": 30.0}]");
    json_t *found = NULL;
    text table = {0};
    error err = {0};
    assert_true(eval_documents_compare(a, b, &found, &table, &err));
    assert_near(json_number_value(json_object_get(found, "delta")), -1, 1e-12);
    assert_contains(table.data, "too few to tell");
    json_decref(found);
    json_decref(a);
    json_decref(b);
    a = document("ppl", "[{\"id\": \"1\", \"prompt\": \"p\", \"tokens\": 10, \"nll\": 20.0}]");
    text_clear(&table);
    assert_true(eval_documents_compare(a, a, &found, &table, &err));
    assert_true(json_is_null(json_object_get(found, "interval")));
    json_decref(found);
    json_decref(a);
    text_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),   cmocka_unit_test(test_letters),       cmocka_unit_test(test_words),
        cmocka_unit_test(test_wilson),    cmocka_unit_test(test_mcnemar),       cmocka_unit_test(test_mean_and_quantile),
        cmocka_unit_test(test_bootstrap), cmocka_unit_test(test_verdicts),      cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_csv),       cmocka_unit_test(test_csv_errors),    cmocka_unit_test(test_gpqa),
        cmocka_unit_test(test_bad_items), cmocka_unit_test(test_prompts),       cmocka_unit_test(test_several_files),
        cmocka_unit_test(test_scores),    cmocka_unit_test(test_resume),        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_compare_texts),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
