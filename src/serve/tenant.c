#include "serve/tenant.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/text.h"

enum { FILE_BYTES = 1 << 20, KEYS_MOST = 4096, KEY_BYTES = 4096, DIGITS = SHA256_TEXT_BYTES - 1 };

typedef struct tenant_key {
    char hash[SHA256_TEXT_BYTES];
    int tenant; /* index */
} tenant_key;

struct tenants {
    tenant *list;       /* [count]; does not move after loading */
    int count;
    tenant_key *keys;   /* [key_count] */
    int key_count;
    bool from_file;
};

/* ---- the key file */

/* A line being read. */
typedef struct key_line {
    const char *path;
    int number;
    tenant found; /* what it says */
    view key;
} key_line;

static view next_word(view *rest)
{
    while (rest->length && (rest->data[0] == ' ' || rest->data[0] == '\t'))
        *rest = (view){rest->data + 1, rest->length - 1};
    size_t n = 0;
    while (n < rest->length && rest->data[n] != ' ' && rest->data[n] != '\t' && rest->data[n] != '\r')
        n++;
    view word = {rest->data, n};
    *rest = (view){rest->data + n, rest->length - n};
    return word;
}

static bool has_only(view word, const char *allowed)
{
    for (size_t i = 0; i < word.length; i++)
        if (word.data[i] == '\0' || !strchr(allowed, word.data[i]))
            return false;
    return word.length > 0;
}

static bool parse_name(key_line *l, view word, error *err)
{
    if (word.length >= sizeof l->found.name ||
        !has_only(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."))
        return error_set(err, ERROR_INPUT, "%s, line %d: a tenant's name has 1 to %zu letters, digits, '-', '_' or '.'", l->path,
                         l->number, sizeof l->found.name - 1);
    memcpy(l->found.name, word.data, word.length);
    return true;
}

/* Errors never show the key. */
static bool parse_key(key_line *l, view word, error *err)
{
    if (word.length == 0 || word.length > KEY_BYTES)
        return error_set(err, ERROR_INPUT, "%s, line %d: expected NAME KEY [admin] [in-flight=N] [per-minute=N], found %s", l->path,
                         l->number, word.length ? "a key that is too long" : "no key");
    for (size_t i = 0; i < word.length; i++)
        if (word.data[i] <= ' ' || word.data[i] >= 127)
            return error_set(err, ERROR_INPUT, "%s, line %d: the key has a character that is not printable ASCII", l->path, l->number);
    l->key = word;
    return true;
}

static bool parse_number(const key_line *l, view word, const char *name, int *out, error *err)
{
    size_t skip = strlen(name) + 1;
    char digits[12] = {0};
    if (word.length - skip < sizeof digits)
        memcpy(digits, word.data + skip, word.length - skip);
    long value = strspn(digits, "0123456789") == strlen(digits) && digits[0] ? strtol(digits, NULL, 10) : 0;
    if (value < 1 || value > 1000000)
        return error_set(err, ERROR_INPUT, "%s, line %d: %s must be a number from 1 to 1000000", l->path, l->number, name);
    *out = (int)value;
    return true;
}

static bool parse_option(key_line *l, view word, error *err)
{
    if (view_equal_text(word, "admin")) {
        l->found.admin = true;
        return true;
    }
    if (word.length > 10 && memcmp(word.data, "in-flight=", 10) == 0)
        return parse_number(l, word, "in-flight", &l->found.in_flight_most, err);
    if (word.length > 11 && memcmp(word.data, "per-minute=", 11) == 0)
        return parse_number(l, word, "per-minute", &l->found.per_minute_most, err);
    return error_set(err, ERROR_INPUT, "%s, line %d: after the key only admin, in-flight=N and per-minute=N are known", l->path, l->number);
}

static bool parse_line(key_line *l, view line, error *err)
{
    if (!parse_name(l, next_word(&line), err) || !parse_key(l, next_word(&line), err))
        return false;
    for (view word = next_word(&line); word.length && word.data[0] != '#'; word = next_word(&line))
        if (!parse_option(l, word, err))
            return false;
    return true;
}

/* The tenant of this line: a new one, or an old one that must say the same. -1 on failure. */
static int tenant_of_line(tenants *t, const key_line *l, error *err)
{
    for (int i = 0; i < t->count; i++) {
        const tenant *old = &t->list[i];
        if (strcmp(old->name, l->found.name) != 0)
            continue;
        if (old->admin == l->found.admin && old->in_flight_most == l->found.in_flight_most &&
            old->per_minute_most == l->found.per_minute_most)
            return i;
        error_set(err, ERROR_INPUT, "%s, line %d: %s has other rights or limits than on an earlier line; its lines must agree", l->path,
                  l->number, l->found.name);
        return -1;
    }
    t->list = mem_grow(t->list, (size_t)t->count + 1, sizeof *t->list);
    t->list[t->count] = l->found;
    return t->count++;
}

static bool add_key(tenants *t, const key_line *l, error *err)
{
    tenant_key key;
    if (t->key_count == KEYS_MOST)
        return error_set(err, ERROR_INPUT, "%s has more than %d keys", l->path, KEYS_MOST);
    sha256_hex(l->key.data, l->key.length, key.hash);
    for (int i = 0; i < t->key_count; i++)
        if (strcmp(t->keys[i].hash, key.hash) == 0)
            return error_set(err, ERROR_INPUT, "%s, line %d: the key stands on an earlier line, too", l->path, l->number);
    key.tenant = tenant_of_line(t, l, err);
    if (key.tenant < 0)
        return false;
    t->keys = mem_grow(t->keys, (size_t)t->key_count + 1, sizeof *t->keys);
    t->keys[t->key_count++] = key;
    return true;
}

static bool parse_file(tenants *t, const char *path, view bytes, error *err)
{
    int number = 1;
    for (size_t at = 0; at < bytes.length; number++) {
        const char *line = bytes.data + at, *end = memchr(line, '\n', bytes.length - at);
        size_t n = end ? (size_t)(end - line) : bytes.length - at;
        at += n + 1;
        view words = {line, n};
        view first = next_word(&words);
        if (first.length == 0 || first.data[0] == '#')
            continue;
        key_line l = {.path = path, .number = number};
        if (!parse_line(&l, (view){line, n}, err) || !add_key(t, &l, err))
            return false;
    }
    return t->key_count > 0 || error_set(err, ERROR_INPUT, "%s has no key; a line is NAME KEY [admin] [in-flight=N] [per-minute=N]", path);
}

static bool load_file(tenants *t, const char *path, error *err)
{
    text bytes = {0};
    struct stat info;
    t->from_file = true;
    bool ok = file_read(path, FILE_BYTES, &bytes, err);
    if (ok && stat(path, &info) == 0 && (info.st_mode & (S_IRWXG | S_IRWXO)))
        log_warning("%s can be read by other users; it holds keys, so chmod 600 it", path);
    ok = ok && parse_file(t, path, (view){bytes.data, bytes.length}, err);
    if (bytes.data) { /* volatile: the compiler must not drop the writes before free */
        for (volatile char *s = bytes.data; s < bytes.data + bytes.length; s++)
            *s = 0;
    }
    text_free(&bytes);
    return ok;
}

tenants *tenants_load(const char *path, error *err)
{
    tenants *t = mem_alloc(1, sizeof *t);
    if (!path) {
        t->list = mem_alloc(1, sizeof *t->list);
        t->list[0].admin = true;
        t->count = 1;
        return t;
    }
    if (load_file(t, path, err))
        return t;
    tenants_free(t);
    return NULL;
}

void tenants_free(tenants *t)
{
    if (!t)
        return;
    free(t->list);
    free(t->keys);
    free(t);
}

bool tenants_have_keys(const tenants *t)
{
    return t->from_file;
}

/* ---- who is it */

/* Looks at every digit of every key whatever it finds, so the time says nothing about where they differ. Comparing hashes hides the
 * lengths of the keys, too. */
static int find_key(const tenants *t, const char *key, size_t length)
{
    char hash[SHA256_TEXT_BYTES];
    int found = -1;
    sha256_hex(key, length, hash);
    for (int i = 0; i < t->key_count; i++) {
        unsigned difference = 0;
        for (int j = 0; j < DIGITS; j++)
            difference |= (unsigned)(t->keys[i].hash[j] ^ hash[j]);
        int same = (int)((difference - 1U) >> (sizeof(unsigned) * CHAR_BIT - 1)); /* 1 when difference is 0 */
        found = (found & (same - 1)) | (t->keys[i].tenant & -same);
    }
    return found;
}

static int find_bearer(const tenants *t, const char *authorization)
{
    if (strncasecmp(authorization, "bearer ", 7) != 0)
        return -1;
    authorization += 7 + strspn(authorization + 7, " ");
    size_t n = strlen(authorization);
    return n <= KEY_BYTES ? find_key(t, authorization, n) : -1;
}

tenant *tenants_find(tenants *t, const char *authorization, const char *x_api_key)
{
    if (!t->from_file)
        return &t->list[0];
    int found = authorization ? find_bearer(t, authorization) : -1;
    if (found < 0 && x_api_key && strlen(x_api_key) <= KEY_BYTES)
        found = find_key(t, x_api_key, strlen(x_api_key));
    return found >= 0 ? &t->list[found] : NULL;
}

/* ---- limits */

static bool check_rate(tenant *who, int count, uint64_t now_us, int *retry_after_s, error *err)
{
    double per_second = who->per_minute_most / 60.0, most = who->per_minute_most;
    if (who->filled_us == 0)
        who->tokens = most;
    else if (now_us > who->filled_us)
        who->tokens = fmin(most, who->tokens + (double)(now_us - who->filled_us) * 1e-6 * per_second);
    who->filled_us = now_us ? now_us : 1;
    if (who->tokens >= count)
        return true;
    double wait_s = ceil((count - who->tokens) / per_second);
    *retry_after_s = count > who->per_minute_most ? 60 : wait_s < 1 ? 1 : (int)wait_s;
    return error_set(err, ERROR_FIT, "%s may start %d answers per minute; the next one can start in %d s", who->name,
                     who->per_minute_most, *retry_after_s);
}

bool tenant_enter(tenant *who, int count, uint64_t now_us, int *retry_after_s, error *err)
{
    *retry_after_s = 1;
    if (who->in_flight_most > 0 && count > who->in_flight_most - who->in_flight)
        return error_set(err, ERROR_FIT, "%s may have %d answers in flight at a time and has %d; %d more is too many", who->name,
                         who->in_flight_most, who->in_flight, count);
    if (who->per_minute_most > 0) {
        if (!check_rate(who, count, now_us, retry_after_s, err))
            return false;
        who->tokens -= count;
    }
    who->in_flight += count;
    return true;
}

void tenant_leave(tenant *who, int count)
{
    who->in_flight = who->in_flight > count ? who->in_flight - count : 0;
}
