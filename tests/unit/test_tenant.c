/* Key files, finding a tenant by its key, and the limits of a tenant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka needs the above */
#include <cmocka.h>

#include <sys/stat.h>

#include "base/log.h"
#include "base/text.h"
#include "serve/tenant.h"

static char path[64];

static void write_keys(const char *bytes)
{
    snprintf(path, sizeof path, "/tmp/test_tenant_XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
    close(fd);
}

static tenants *load(const char *bytes, error *err)
{
    write_keys(bytes);
    tenants *t = tenants_load(path, err);
    unlink(path);
    return t;
}

static void test_no_file(void **state)
{
    (void)state;
    error err = {0};
    tenants *t = tenants_load(NULL, &err);
    assert_non_null(t);
    assert_false(tenants_have_keys(t));
    tenant *who = tenants_find(t, NULL, NULL);
    assert_non_null(who);
    assert_string_equal(who->name, "");
    assert_true(who->admin);
    assert_ptr_equal(tenants_find(t, "Bearer whatever", "x"), who);
    tenants_free(t);
    assert_null(tenants_load("/nonexistent/keys", &err));
    assert_non_null(strstr(err.text, "/nonexistent/keys"));
}

static void test_find(void **state)
{
    (void)state;
    error err = {0};
    tenants *t = load("# keys\n\n  alice sk-alice-1 admin\r\nbob\tsk-bob in-flight=2 per-minute=60 # comment\nalice sk-alice-2 admin\n"
                      "carol sk-bobb", &err);
    assert_non_null(t);
    assert_true(tenants_have_keys(t));
    static const struct {
        const char *authorization, *x_api_key, *name;
    } cases[] = {
        {"Bearer sk-alice-1", NULL, "alice"},
        {"bearer   sk-alice-2", NULL, "alice"},
        {NULL, "sk-bob", "bob"},
        {"Bearer sk-bobb", NULL, "carol"},
        {"Bearer wrong", "sk-bob", "bob"},
        {"Bearer sk-alice-1", "wrong", "alice"},
        {"Bearer sk-bo", NULL, NULL},
        {"Bearer sk-bobbb", NULL, NULL},
        {"Bearer sk-bob ", NULL, NULL},
        {"Bearer SK-BOB", NULL, NULL},
        {"Bearer ", NULL, NULL},
        {"Basic sk-bob", NULL, NULL},
        {"sk-bob", NULL, NULL},
        {"", "", NULL},
        {NULL, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tenant *who = tenants_find(t, cases[i].authorization, cases[i].x_api_key);
        if (cases[i].name) {
            assert_non_null(who);
            assert_string_equal(who->name, cases[i].name);
        } else {
            assert_null(who);
        }
    }
    tenant *bob = tenants_find(t, NULL, "sk-bob");
    assert_false(bob->admin);
    assert_int_equal(bob->in_flight_most, 2);
    assert_int_equal(bob->per_minute_most, 60);
    assert_ptr_equal(tenants_find(t, "Bearer sk-alice-1", NULL), tenants_find(t, "Bearer sk-alice-2", NULL));
    tenants_free(t);
}

/* Keys that differ in one bit at any place are told apart. */
static void test_one_bit(void **state)
{
    (void)state;
    error err = {0};
    char key[] = "0123456789abcdefghij";
    tenants *t = load("a 0123456789abcdefghij\n", &err);
    assert_non_null(t);
    assert_non_null(tenants_find(t, NULL, key));
    for (size_t i = 0; key[i]; i++)
        for (int bit = 0; bit < 7; bit++) {
            key[i] = (char)(key[i] ^ (1 << bit));
            assert_null(tenants_find(t, NULL, key));
            key[i] = (char)(key[i] ^ (1 << bit));
        }
    tenants_free(t);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *words;
    } cases[] = {
        {"", "has no key"},
        {"# only\n", "has no key"},
        {"a secret-k\nb\n", "line 2"},
        {"a secret-k other\n", "only admin"},
        {"a secret-k in-flight=0\n", "in-flight must be"},
        {"a secret-k in-flight=-1\n", "in-flight must be"},
        {"a secret-k in-flight=1x\n", "in-flight must be"},
        {"a secret-k in-flight=\n", "only admin"},
        {"a secret-k per-minute=99999999999999999999\n", "per-minute must be"},
        {"a/b secret-k\n", "name"},
        {"0123456789012345678901234567890123456789012345678901234567890123 secret-k\n", "name"},
        {"a secret-k\nb secret-k\n", "earlier line"},
        {"a secret-k\na secret-l admin\n", "must agree"},
        {"a secret-\xc3\xa9\n", "printable"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error err = {0};
        assert_null(load(cases[i].bytes, &err));
        if (!strstr(err.text, cases[i].words))
            print_error("%s: %s\n", cases[i].bytes, err.text);
        assert_non_null(strstr(err.text, cases[i].words));
        assert_null(strstr(err.text, "secret")); /* no key in a message */
    }
}

static void test_in_flight(void **state)
{
    (void)state;
    error err = {0};
    int retry = 0;
    tenant who = {.name = "w", .in_flight_most = 3};
    assert_true(tenant_enter(&who, 2, 1000, &retry, &err));
    assert_false(tenant_enter(&who, 2, 1000, &retry, &err));
    assert_int_equal(retry, 1);
    assert_non_null(strstr(err.text, "3 answers"));
    assert_true(tenant_enter(&who, 1, 1000, &retry, &err));
    assert_false(tenant_enter(&who, 1, 1000, &retry, &err));
    tenant_leave(&who, 2);
    assert_true(tenant_enter(&who, 2, 1000, &retry, &err));
    tenant_leave(&who, 3);
    assert_int_equal(who.in_flight, 0);
    tenant free_of_limits = {.name = ""};
    for (int i = 0; i < 1000; i++)
        assert_true(tenant_enter(&free_of_limits, 16, 1000, &retry, &err));
}

static void test_per_minute(void **state)
{
    (void)state;
    error err = {0};
    int retry = 0;
    tenant who = {.name = "w", .per_minute_most = 6, .in_flight_most = 100};
    uint64_t now = 5000000;
    for (int i = 0; i < 6; i++)
        assert_true(tenant_enter(&who, 1, now, &retry, &err));
    assert_false(tenant_enter(&who, 1, now, &retry, &err));
    assert_int_equal(retry, 10);
    assert_int_equal(who.in_flight, 6); /* a refusal takes no place */
    assert_false(tenant_enter(&who, 1, now + 9000000, &retry, &err));
    assert_int_equal(retry, 1);
    assert_true(tenant_enter(&who, 1, now + 10000000, &retry, &err));
    assert_false(tenant_enter(&who, 1, now + 10000000, &retry, &err));
    now += 1000000000; /* a long pause fills the bucket once, not more */
    assert_true(tenant_enter(&who, 6, now, &retry, &err));
    assert_false(tenant_enter(&who, 1, now, &retry, &err));
    assert_false(tenant_enter(&who, 7, now + 100000000, &retry, &err));
    assert_int_equal(retry, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_file),   cmocka_unit_test(test_find),      cmocka_unit_test(test_one_bit),
        cmocka_unit_test(test_bad_files), cmocka_unit_test(test_in_flight), cmocka_unit_test(test_per_minute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
