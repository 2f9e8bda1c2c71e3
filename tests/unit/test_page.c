/* The page's files and how they are served; the functions of http.h that handle_page calls are replaced by recording ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/handlers.h"
#include "serve/page.h"

struct http_exchange {
    const char *path, *if_none_match;
    char headers[2048]; /* "name: value\n" of the reply */
    int status;
    const char *type;
    const void *body;
    size_t bytes;
};

const char *http_path(const http_exchange *x)
{
    return x->path;
}

const char *http_header(const http_exchange *x, const char *name)
{
    return strcmp(name, "If-None-Match") == 0 ? x->if_none_match : NULL;
}

void http_add_header(http_exchange *x, const char *name, const char *value)
{
    size_t n = strlen(x->headers);
    snprintf(x->headers + n, sizeof x->headers - n, "%s: %s\n", name, value);
}

void http_reply(http_exchange *x, int status, const char *type, const void *body, size_t bytes)
{
    assert_int_equal(x->status, 0);
    x->status = status;
    x->type = type;
    x->body = body;
    x->bytes = bytes;
}

void server_reply_error(http_exchange *x, int status, const char *param, const char *sentence, ...)
{
    (void)param, (void)sentence;
    http_reply(x, status, "application/json", NULL, 0);
}

static http_exchange get(const char *path, const char *if_none_match)
{
    http_exchange x = {.path = path, .if_none_match = if_none_match};
    handle_page(NULL, &x, NULL);
    return x;
}

static bool has_header(const http_exchange *x, const char *line)
{
    const char *at = strstr(x->headers, line);
    return at && (at == x->headers || at[-1] == '\n');
}

static void test_page_is_served(void **state)
{
    (void)state;
    http_exchange x = get("/", NULL);
    assert_int_equal(x.status, 200);
    assert_string_equal(x.type, "text/html; charset=utf-8");
    assert_memory_equal(x.body, "<!doctype html>", 15);
    assert_true(has_header(&x, "Referrer-Policy: no-referrer\n"));
    assert_true(has_header(&x, "Cache-Control: no-cache\n"));
    assert_true(has_header(&x, "Content-Security-Policy: default-src 'self';"));
    assert_non_null(strstr(x.headers, "frame-ancestors 'none'"));
    assert_null(strstr(x.headers, "unsafe"));
}

static void test_asset_types(void **state)
{
    (void)state;
    assert_string_equal(get("/assets/page.js", NULL).type, "text/javascript; charset=utf-8");
    assert_string_equal(get("/assets/page.css", NULL).type, "text/css; charset=utf-8");
    assert_string_equal(get("/assets/drawbridge.svg", NULL).type, "image/svg+xml");
}

static void test_unknown_files(void **state)
{
    (void)state;
    assert_int_equal(get("/assets/none.js", NULL).status, 404);
    assert_int_equal(get("/assets/", NULL).status, 404);
    assert_int_equal(get("/assets/../page.js", NULL).status, 404);
    assert_int_equal(get("/assets/package.json", NULL).status, 404);
}

static void test_unchanged_files_are_not_sent_again(void **state)
{
    (void)state;
    const page_file *f = page_find("page.js");
    assert_non_null(f);
    char tags[128];
    snprintf(tags, sizeof tags, "\"other\", W/%s", f->etag);
    assert_int_equal(get("/assets/page.js", "\"other\"").status, 200);
    assert_int_equal(get("/assets/page.js", f->etag).status, 304);
    assert_int_equal(get("/assets/page.js", tags).status, 304);
    assert_int_equal(get("/assets/page.js", tags).bytes, 0);
    assert_int_equal(get("/assets/page.js", "*").status, 304);
}

/* The bytes of a file of the repository, terminated. */
static char *read_source(const char *name, size_t *count)
{
    char path[512];
    snprintf(path, sizeof path, "%s/web/%s", SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *bytes = malloc(1 << 20);
    *count = fread(bytes, 1, (1 << 20) - 1, f);
    bytes[*count] = 0;
    fclose(f);
    return bytes;
}

static void test_files_are_embedded_byte_by_byte(void **state)
{
    (void)state;
    int checked = 0;
    for (const page_file *f = page_files; f->name; f++) {
        size_t count;
        char *bytes = read_source(f->name, &count);
        if (!bytes) {
            assert_memory_equal(f->name, "uplot", 5);
            continue;
        }
        assert_int_equal(count, f->count);
        assert_memory_equal(bytes, f->bytes, count);
        free(bytes);
        checked++;
    }
    assert_true(checked > 5);
}

static char *text_of(const page_file *f)
{
    char *words = malloc(f->count + 1);
    memcpy(words, f->bytes, f->count);
    words[f->count] = 0;
    return words;
}

/* What the Content-Security-Policy would stop, and what would need another host. */
static void test_policy_is_kept(void **state)
{
    (void)state;
    static const char *const never[] = {"innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "new Function", "style=\"", "onclick=",
                                        "<style", "javascript:", "https://", "document.write"};
    for (const page_file *f = page_files; f->name; f++) {
        if (strncmp(f->name, "uplot", 5) == 0)
            continue;
        char *words = text_of(f);
        for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
            if (strstr(words, never[i]))
                fail_msg("%s has %s", f->name, never[i]);
        for (const char *at = words; (at = strstr(at, "<script")); at++)
            assert_true(strncmp(at, "<script src=", 12) == 0 || strncmp(at, "<script type=\"module\" src=", 26) == 0);
        free(words);
    }
}

/* Every /assets/NAME and every import in the files exists; uPlot's may be missing. */
static void test_references_exist(void **state)
{
    (void)state;
    static const char *const marks[] = {"\"/assets/", "from \"./"};
    int found = 0;
    for (const page_file *f = page_files; f->name; f++) {
        if (strncmp(f->name, "uplot", 5) == 0)
            continue;
        char *words = text_of(f);
        for (int m = 0; m < 2; m++)
            for (const char *at = words; (at = strstr(at, marks[m])); at++) {
                char name[64];
                assert_int_equal(sscanf(at + strlen(marks[m]), "%63[^\"]", name), 1);
                if (!page_find(name) && strncmp(name, "uplot", 5) != 0)
                    fail_msg("%s refers to %s, which is not embedded", f->name, name);
                found++;
            }
        free(words);
    }
    assert_true(found > 10);
}

static void test_missing_charts_are_told(void **state)
{
    (void)state;
    assert_int_equal(page_has_charts(), page_find("uplot.js") && page_find("uplot.css") && page_find("uplot-license.txt"));
    assert_int_equal(page_has_charts(), page_warning() == NULL);
}

/* The lock file says what, not from where: the registry is the user's setting. */
static void test_lock_file_names_no_host(void **state)
{
    (void)state;
    size_t count;
    char *lock = read_source("package-lock.json", &count);
    assert_non_null(lock);
    assert_non_null(strstr(lock, "\"integrity\": \"sha512-"));
    assert_null(strstr(lock, "resolved"));
    assert_null(strstr(lock, "://"));
    free(lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_is_served),
        cmocka_unit_test(test_asset_types),
        cmocka_unit_test(test_unknown_files),
        cmocka_unit_test(test_unchanged_files_are_not_sent_again),
        cmocka_unit_test(test_files_are_embedded_byte_by_byte),
        cmocka_unit_test(test_policy_is_kept),
        cmocka_unit_test(test_references_exist),
        cmocka_unit_test(test_missing_charts_are_told),
        cmocka_unit_test(test_lock_file_names_no_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
