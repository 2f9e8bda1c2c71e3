/* The public library, on the built-in model: what it refuses, and what is left behind when it is closed (nothing, says ASan). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <drawbridge.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NANO SOURCE_DIR "/models/nano"

static drawbridge *open_nano(void)
{
    drawbridge_error err = {0};
    drawbridge_options o = drawbridge_options_defaults();
    o.threads = 1;
    o.context = 512;
    drawbridge *d = drawbridge_open(NANO, &o, &err);
    if (!d)
        fail_msg("%s", err.text);
    return d;
}

static drawbridge_request request(const drawbridge *d, int max_tokens)
{
    static const int32_t prompt[] = {5, 6, 7, 8, 9};
    drawbridge_request r = drawbridge_request_defaults(d);
    r.tokens = prompt;
    r.token_count = sizeof prompt / sizeof prompt[0];
    r.max_tokens = max_tokens;
    r.ignore_eos = true;
    return r;
}

static void check_refused(drawbridge *d, const drawbridge_request *r, const char *words)
{
    drawbridge_error err = {0};
    uint64_t id = 0;
    assert_false(drawbridge_submit(d, r, &id, &err));
    if (!strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
    assert_int_not_equal(err.code, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    static const double times[] = {-1, NAN, INFINITY, 1e30};
    drawbridge *d = open_nano();
    for (int i = 0; i < 4; i++) {
        drawbridge_request r = request(d, 3);
        r.timeout_s = times[i];
        check_refused(d, &r, "request.timeout_s");
    }
    drawbridge_request r = request(d, -1);
    check_refused(d, &r, "request.max_tokens");
    r = request(d, 3);
    r.stop_count = -1;
    check_refused(d, &r, "stop_count");
    r = request(d, 600);
    check_refused(d, &r, "context of 512");
    r = request(d, 3);
    r.token_count = 0;
    check_refused(d, &r, "empty");
    r = request(d, 3);
    r.messages = "[]";
    check_refused(d, &r, "both given");
    drawbridge_event ev;
    assert_int_equal(drawbridge_poll(d, &ev, 1, -1), 0); /* nothing was submitted, so there is nothing to wait for */
    drawbridge_close(d);
}

static void test_open_failures(void **state)
{
    (void)state;
    drawbridge_error err = {0};
    drawbridge_options o = drawbridge_options_defaults();
    assert_null(drawbridge_open(SOURCE_DIR "/models/none", NULL, &err));
    assert_int_not_equal(err.code, 0);
    o.speculation = "9";
    assert_null(drawbridge_open(NANO, &o, &err));
    assert_non_null(strstr(err.text, "options.speculation"));
    o = drawbridge_options_defaults();
    o.max_running = 0;
    assert_null(drawbridge_open(NANO, &o, &err));
    assert_null(drawbridge_open(NANO, &o, NULL));
    drawbridge_close(NULL);
}

static void test_time_out(void **state)
{
    (void)state;
    drawbridge *d = open_nano();
    drawbridge_error err = {0};
    drawbridge_event ev;
    uint64_t id = 0, taken = 0;
    drawbridge_request r = request(d, 400);
    r.timeout_s = 1e-6;
    r.user = &err;
    assert_true(drawbridge_submit(d, &r, &id, &err));
    while (drawbridge_poll(d, &ev, 1, -1) == 1) {
        assert_int_equal(ev.id, id);
        assert_ptr_equal(ev.user, &err);
        taken++;
        assert_true(ev.finish == DRAWBRIDGE_RUNNING || ev.finish == DRAWBRIDGE_TIMEOUT);
        drawbridge_event_free(&ev);
    }
    assert_true(taken > 0);
    drawbridge_close(d);
}

/* Closed with events that nobody took, requests that run and requests that wait. */
static void test_close_in_the_middle(void **state)
{
    (void)state;
    drawbridge *d = open_nano();
    drawbridge_error err = {0};
    drawbridge_event ev;
    for (int i = 0; i < 40; i++) {
        uint64_t id;
        drawbridge_request r = request(d, i % 2 ? 400 : 1);
        assert_true(drawbridge_submit(d, &r, &id, &err));
        if (i == 5)
            drawbridge_cancel(d, id);
    }
    assert_int_equal(drawbridge_poll(d, &ev, 1, 60000), 1);
    drawbridge_event_free(&ev);
    drawbridge_close(d);
}

/* Greedy tokens of the usual prompt. */
static void answer(const drawbridge_options *o, int32_t tokens[8], char *kernels, size_t capacity)
{
    drawbridge_error err = {0};
    drawbridge_event ev;
    uint64_t id = 0;
    int count = 0;
    drawbridge *d = drawbridge_open(NANO, o, &err);
    if (!d)
        fail_msg("%s", err.text);
    snprintf(kernels, capacity, "%s", drawbridge_kernels(d));
    drawbridge_request r = request(d, 8);
    r.temperature = 0;
    assert_true(drawbridge_submit(d, &r, &id, &err));
    while (drawbridge_poll(d, &ev, 1, -1) == 1) {
        for (int i = 0; i < ev.token_count; i++)
            tokens[count++] = ev.tokens[i];
        drawbridge_event_free(&ev);
    }
    assert_int_equal(count, 8);
    drawbridge_close(d);
}

static void check_not_opened(const drawbridge_options *o, int code, const char *words)
{
    drawbridge_error err = {0};
    assert_null(drawbridge_open(NANO, o, &err));
    assert_int_equal(err.code, code);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, err.text);
}

static drawbridge_options small_options(void)
{
    drawbridge_options o = drawbridge_options_defaults();
    o.threads = 1;
    o.context = 128;
    o.step_rows = 4;
    return o;
}

static void test_kernels(void **state)
{
    (void)state;
    char words[256];
    int32_t free_choice[8], forced[8], exact[8];
    drawbridge_options o = small_options();
    answer(&o, free_choice, words, sizeof words);
    assert_non_null(strstr(words, " 0 tuned"));
    o.kernels = "generic";
    answer(&o, forced, words, sizeof words);
    assert_memory_equal(free_choice, forced, sizeof forced);
    assert_non_null(strstr(words, "FORCED to generic"));
    o.kernels = "quantum";
    check_not_opened(&o, 2, "there are no kernels \"quantum\" on this machine; there are \"generic\"");
    o = small_options();
    o.exact = true;
    check_not_opened(&o, 2, "DRAWBRIDGE_KV_F32");
    o.kv = DRAWBRIDGE_KV_F32;
    answer(&o, exact, words, sizeof words);
    assert_non_null(strstr(words, "-exact"));
}

static void test_tuned(void **state)
{
    (void)state;
    char folder[] = "/tmp/drawbridge-library-XXXXXX", path[512], words[256], device[128];
    static const char *const shapes[] = {"attend,bf16,8,160,1", "linear,bf16,192,384,1", "experts,mxfp4,128,384,1"};
    int32_t plain[8], tuned[8];
    drawbridge_options o = small_options();
    answer(&o, plain, words, sizeof words);
    if (strstr(words, " 0 heuristic"))
        skip(); /* a machine with one kernel for everything has nothing to tune */
    assert_non_null(mkdtemp(folder));
    o.require_tuned = true;
    check_not_opened(&o, 2, "options.require_tuned needs options.tuned");
    o.tuned = "/nowhere";
    check_not_opened(&o, 3, "options.tuned is /nowhere: there is no such directory");
    o.tuned = folder;
    const char *at = strstr(words, "no table for ");
    assert_non_null(at);
    snprintf(device, sizeof device, "%s", at + strlen("no table for "));
    snprintf(path, sizeof path, "%s/%s.csv", folder, device);
    FILE *table = fopen(path, "w");
    assert_non_null(table);
    fprintf(table, "operation,format,n,k,rows,variant,us,baseline_variant,baseline_us,version\n");
    for (int i = 0; i < 3; i++)
        fprintf(table, "%s,generic,5,generic,5,%s\n", shapes[i], drawbridge_version());
    fclose(table);
    check_not_opened(&o, 5, "options.require_tuned: ");
    o.require_tuned = false;
    answer(&o, tuned, words, sizeof words);
    assert_memory_equal(plain, tuned, sizeof tuned);
    assert_null(strstr(words, " 0 tuned"));
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_tuned),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_open_failures),
        cmocka_unit_test(test_time_out),
        cmocka_unit_test(test_close_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
