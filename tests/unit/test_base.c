/* The base layer: errors, text, UTF-8, maps, hashing, random numbers, threads, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/sanitize.h"
#include "base/sha256.h"
#include "base/text.h"
#include "base/threads.h"

static void test_error_text_is_cut_at_a_character(void **state)
{
    (void)state;
    error err;
    char name[1100];
    for (size_t i = 0; i + 2 < sizeof name; i += 2)
        memcpy(name + i, "\xC3\xA9", 3);
    assert_false(error_set(&err, ERROR_INPUT, "%s", name));
    assert_int_equal(err.code, ERROR_INPUT);
    assert_true(utf8_valid(err.text, strlen(err.text)));
    assert_false(error_add(&err, "shard %d", 3));
    assert_true(text_starts_with(err.text, "shard 3: "));
}

/* A long context, of two-byte characters at every offset, stays valid and whole. */
static void test_error_context_is_kept_whole(void **state)
{
    (void)state;
    error err;
    for (size_t shift = 0; shift < 2; shift++) {
        char path[401] = "/";
        for (size_t i = shift; i + 2 < sizeof path; i += 2)
            memcpy(path + i, "\xC3\xA9", 3);
        error_set(&err, ERROR_INPUT, "broken");
        assert_false(error_add(&err, "while opening %s", path));
        assert_true(utf8_valid(err.text, strlen(err.text)));
        assert_true(text_ends_with(err.text, ": broken"));
        assert_non_null(strstr(err.text, path));
    }
    char fits[sizeof err.text];
    memset(fits, 'x', sizeof fits);
    memcpy(fits + sizeof fits - 3, "\xC3\xA9", 3);
    error_set(&err, ERROR_INPUT, "%s", fits);
    assert_string_equal(err.text, fits);
}

static void test_text_is_terminated_by_any_addition(void **state)
{
    (void)state;
    text t = {0};
    text_add_format(&t, "%s", "");
    assert_non_null(t.data);
    assert_string_equal(t.data, "");
    text_free(&t);
}

static void test_utf8(void **state)
{
    (void)state;
    uint32_t c;
    text t = {0};
    for (uint32_t p = 1; p <= 0x10FFFF; p++) {
        if (p >= 0xD800 && p <= 0xDFFF)
            continue;
        text_clear(&t);
        text_add_utf8(&t, p);
        assert_int_equal(utf8_decode(t.data, t.length, &c), t.length);
        assert_int_equal(c, p);
        for (size_t cut = 1; cut < t.length; cut++) {
            assert_int_equal(utf8_decode(t.data, cut, &c), 0);
            assert_int_equal(utf8_incomplete_tail(t.data, cut), cut);
        }
        assert_int_equal(utf8_incomplete_tail(t.data, t.length), 0);
    }
    text_free(&t);
    assert_false(utf8_valid("\xC0\x80", 2));
    assert_false(utf8_valid("\xED\xA0\x80", 3));
    assert_false(utf8_valid("\xF4\x90\x80\x80", 4));
    assert_int_equal(utf8_incomplete_tail("\xED\xA0", 2), 0);
    assert_int_equal(utf8_incomplete_tail("a\xFF", 2), 0);
}

static void test_map(void **state)
{
    (void)state;
    enum { N = 10000 };
    map m = {0};
    char (*names)[16] = mem_alloc(N, sizeof *names);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        assert_true(map_add(&m, view_of(names[i]), i));
        assert_false(map_add(&m, view_of(names[i]), -1));
    }
    int64_t v;
    for (int i = 0; i < N; i++) {
        assert_true(map_get(&m, view_of(names[i]), &v));
        assert_int_equal(v, i);
    }
    assert_false(map_get(&m, view_of("absent"), &v));
    map_free(&m);
    free(names);
}

static void test_sha256(void **state)
{
    (void)state;
    char hex[SHA256_TEXT_BYTES];
    sha256_hex("abc", 3, hex); /* FIPS 180-4 example */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    sha256_hex("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void test_random_is_uniform_and_pure(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum = 0;
    int bins[16] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = random_uniform(7, i / 100, i % 100);
        assert_true(u > 0 && u < 1);
        sum += u;
        bins[(int)(u * 16)]++;
    }
    assert_true(sum / N > 0.495 && sum / N < 0.505); /* five standard errors of the mean: 5 * 0.289 / sqrt(N) */
    for (int i = 0; i < 16; i++)
        assert_in_range(bins[i], N / 16 - 400, N / 16 + 400); /* five standard deviations of a bin */
    /* Pinned: a seed means the same tokens in every version. */
    assert_true(random_word(1, 2, 3) == UINT64_C(0xbf2bf6b208c5a1b9));
    assert_true(random_word(UINT64_MAX, 154880, 0) == UINT64_C(0xb71966595c00e9f6));
    assert_true(random_uniform_at(random_key(9, 8), 7) == random_uniform(9, 8, 7));
    assert_true(random_word(1, 2, 3) != random_word(1, 3, 2));
}

/* The buffers of the forward pass are lazy blocks: a sanitizer must see an access beside one, and none may be seen in it. */
static void test_lazy_blocks_are_guarded(void **state)
{
    (void)state;
    for (size_t bytes = 4; bytes < 20000; bytes = bytes * 3 + 4) {
        char *p = mem_try_alloc_lazy(bytes);
        assert_non_null(p);
        assert_false(is_forbidden(p) || is_forbidden(p + bytes - 1));
        p[0] = p[bytes - 1] = 1;
#ifdef BASE_ADDRESS_SANITIZER
        assert_true(is_forbidden(p - 1) && is_forbidden(p + bytes));
#endif
        mem_free_lazy(p);
    }
}

static void count_task(void *context, int index, int worker)
{
    (void)worker;
    ((int *)context)[index]++;
}

static void test_pool_runs_every_index_once(void **state)
{
    (void)state;
    error err;
    for (int threads = 1; threads <= 4; threads++) {
        pool *p = pool_create(threads, &err);
        assert_non_null(p);
        int hits[257] = {0};
        for (int round = 0; round < 50; round++)
            pool_run(p, 257, count_task, hits);
        for (int i = 0; i < 257; i++)
            assert_int_equal(hits[i], 50);
        pool_destroy(p);
    }
}

static volatile sig_atomic_t signals_taken;

static void take_signal(int number)
{
    (void)number;
    signals_taken = signals_taken + 1;
}

/* A signal that the caller blocks waits for the caller; no worker takes it meanwhile. */
static void test_pool_workers_take_no_signals(void **state)
{
    (void)state;
    error err;
    struct sigaction action = {.sa_handler = take_signal}, before;
    sigset_t block, mask, pending;
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, &before);
    pool *p = pool_create(4, &err);
    assert_non_null(p);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, &mask);
    int hits[64] = {0};
    for (int round = 0; round < 20; round++) {
        kill(getpid(), SIGUSR1);
        pool_run(p, 64, count_task, hits);
    }
    assert_int_equal(signals_taken, 0);
    sigpending(&pending);
    assert_true(sigismember(&pending, SIGUSR1));
    sigprocmask(SIG_SETMASK, &mask, NULL);
    assert_int_equal(signals_taken, 1);
    pool_destroy(p);
    sigaction(SIGUSR1, &before, NULL);
}

static void test_file_writer_is_all_or_nothing(void **state)
{
    (void)state;
    error err = {0};
    text got = {0};
    char path[] = "/tmp/drawbridge-file-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "old", 3), 3);
    close(fd);
    file_writer *w = file_writer_open(path, &err);
    assert_true(file_writer_add(w, "half", 4, &err));
    assert_true(file_read(path, 100, &got, &err));
    assert_string_equal(got.data, "old");
    file_writer_abandon(w);
    w = file_writer_open(path, &err);
    assert_true(file_writer_add(w, "new!", 4, &err));
    assert_true(file_writer_patch(w, 0, "N", 1, &err));
    assert_true(file_writer_commit(w, &err));
    assert_true(file_read(path, 100, &got, &err));
    assert_string_equal(got.data, "New!");
    assert_false(file_read(path, 3, &got, &err));
    assert_non_null(strstr(err.text, "limit"));
    unlink(path);
    text_free(&got);
    assert_false(file_read("/tmp", 100, &got, &err));
    assert_non_null(strstr(err.text, "not a regular file"));
}

static void test_json_is_strict(void **state)
{
    (void)state;
    error err;
    static const char *const bad[] = {"{\"a\":1,\"a\":2}", "[1] x", "\"\xFF\"", "{\"a\":NaN}", "", "[18446744073709551616]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_null(json_parse(bad[i], strlen(bad[i]), "here", &err));
        assert_true(text_starts_with(err.text, "here: "));
    }
    assert_null(json_parse("[12\0]", 5, "here", &err)); /* jansson alone accepts it */
    json_t *root = json_parse("{\"n\": 5, \"s\": \"x\"}", 18, "c.json", &err);
    json_source s = {root, "c.json"};
    int64_t n = 0;
    assert_true(json_get_int(s, "n", 0, 5, &n, &err));
    assert_int_equal(n, 5);
    assert_false(json_get_int(s, "n", 0, 4, &n, &err));
    assert_string_equal(err.text, "c.json: key \"n\" must be from 0 to 4, found 5");
    assert_false(json_get_int(s, "s", 0, 4, &n, &err));
    assert_string_equal(err.text, "c.json: key \"s\" must be an integer, found a string");
    assert_false(json_get_int(s, "z", 0, 4, &n, &err));
    assert_true(json_get_int_or(s, "z", 0, 4, &n, &err));
    json_decref(root);
    /* A C string would end at the NUL and compare equal to "x". */
    const char *string = NULL;
    static const char nul[] = "{\"s\": \"x\\u0000y\"}";
    root = json_parse(nul, strlen(nul), "c.json", &err);
    assert_non_null(root);
    assert_false(json_get_string((json_source){root, "c.json"}, "s", &string, &err));
    assert_string_equal(err.text, "c.json: key \"s\" must be a string without NUL characters, found one after 1 bytes");
    json_decref(root);
}

static void log_task(void *context, int index, int worker)
{
    (void)context;
    (void)worker;
    log_warning("line %d of this text", index);
}

/* Lines of several threads do not mix. */
static void test_log_lines_stay_whole(void **state)
{
    (void)state;
    enum { LINES = 4000 };
    error err;
    char path[] = "/tmp/drawbridge-log-XXXXXX";
    int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    assert_true(fd >= 0 && saved >= 0);
    pool *p = pool_create(4, &err);
    dup2(fd, STDERR_FILENO);
    pool_run(p, LINES, log_task, NULL);
    dup2(saved, STDERR_FILENO);
    pool_destroy(p);
    close(saved);
    close(fd);
    text got = {0};
    assert_true(file_read(path, 1 << 20, &got, &err));
    unlink(path);
    int lines = 0, index, length;
    for (const char *s = got.data; *s; s += length + 1, lines++) {
        length = 0;
        assert_int_equal(sscanf(s, "warning: line %d of this text%n", &index, &length), 1);
        assert_true(length > 0 && s[length] == '\n');
    }
    assert_int_equal(lines, LINES);
    text_free(&got);
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(text_distance("inspct", "inspect", 2), 1);
    assert_int_equal(text_distance("chat", "chat", 2), 0);
    assert_int_equal(text_distance("chat", "render", 2), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_text_is_cut_at_a_character),
        cmocka_unit_test(test_error_context_is_kept_whole),
        cmocka_unit_test(test_text_is_terminated_by_any_addition),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_random_is_uniform_and_pure),
        cmocka_unit_test(test_lazy_blocks_are_guarded),
        cmocka_unit_test(test_pool_runs_every_index_once),
        cmocka_unit_test(test_pool_workers_take_no_signals),
        cmocka_unit_test(test_file_writer_is_all_or_nothing),
        cmocka_unit_test(test_json_is_strict),
        cmocka_unit_test(test_log_lines_stay_whole),
        cmocka_unit_test(test_distance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
