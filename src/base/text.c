#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

view view_of(const char *terminated)
{
    return (view){terminated, strlen(terminated)};
}

bool view_equal(view a, view b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

bool view_equal_text(view a, const char *terminated)
{
    return view_equal(a, view_of(terminated));
}

static void text_reserve(text *t, size_t extra)
{
    size_t needed = t->length + extra + 1;
    if (needed <= t->capacity)
        return;
    size_t capacity = t->capacity ? t->capacity : 64;
    while (capacity < needed)
        capacity *= 2;
    t->data = mem_grow(t->data, capacity, 1);
    t->capacity = capacity;
}

void text_add(text *t, const void *bytes, size_t count)
{
    text_reserve(t, count);
    if (count)
        memcpy(t->data + t->length, bytes, count);
    t->length += count;
    t->data[t->length] = '\0';
}

void text_add_text(text *t, const char *terminated)
{
    text_add(t, terminated, strlen(terminated));
}

void text_add_char(text *t, char c)
{
    text_add(t, &c, 1);
}

void text_add_arguments(text *t, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int needed = vsnprintf(NULL, 0, format, args);
    if (needed >= 0) {
        text_reserve(t, (size_t)needed);
        vsnprintf(t->data + t->length, (size_t)needed + 1, format, again);
        t->length += (size_t)needed;
    }
    va_end(again);
}

void text_add_format(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_add_arguments(t, format, args);
    va_end(args);
}

void text_add_utf8(text *t, uint32_t c)
{
    char b[4];
    size_t n;
    if (c < 0x80) {
        b[0] = (char)c;
        n = 1;
    } else if (c < 0x800) {
        b[0] = (char)(0xC0 | (c >> 6));
        b[1] = (char)(0x80 | (c & 63));
        n = 2;
    } else if (c < 0x10000) {
        b[0] = (char)(0xE0 | (c >> 12));
        b[1] = (char)(0x80 | ((c >> 6) & 63));
        b[2] = (char)(0x80 | (c & 63));
        n = 3;
    } else {
        b[0] = (char)(0xF0 | (c >> 18));
        b[1] = (char)(0x80 | ((c >> 12) & 63));
        b[2] = (char)(0x80 | ((c >> 6) & 63));
        b[3] = (char)(0x80 | (c & 63));
        n = 4;
    }
    text_add(t, b, n);
}

void text_clear(text *t)
{
    t->length = 0;
    if (t->data)
        t->data[0] = '\0';
}

void text_free(text *t)
{
    free(t->data);
    *t = (text){0};
}

bool text_starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool text_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

/* Length that a leading byte announces; 0 for a byte that cannot lead. */
static int utf8_announced_length(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xC2 && lead <= 0xDF)
        return 2;
    if (lead >= 0xE0 && lead <= 0xEF)
        return 3;
    if (lead >= 0xF0 && lead <= 0xF4)
        return 4;
    return 0;
}

int utf8_decode(const char *s, size_t count, uint32_t *code_point)
{
    const unsigned char *u = (const unsigned char *)s;
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    int n = utf8_announced_length(u[0]);
    if (n == 0 || (size_t)n > count)
        return 0;
    uint32_t c = n == 1 ? u[0] : u[0] & (0x7Fu >> n);
    for (int i = 1; i < n; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 0;
        c = (c << 6) | (u[i] & 0x3Fu);
    }
    if (c < smallest[n] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return 0;
    *code_point = c;
    return n;
}

bool utf8_valid(const char *s, size_t count)
{
    uint32_t c;
    for (size_t i = 0; i < count;) {
        int n = utf8_decode(s + i, count - i, &c);
        if (n == 0)
            return false;
        i += (size_t)n;
    }
    return true;
}

/* Whether `have` bytes at u could still grow into a valid character of n bytes. */
static bool utf8_may_continue(const unsigned char *u, size_t have, int n)
{
    for (size_t i = 1; i < have; i++)
        if ((u[i] & 0xC0) != 0x80)
            return false;
    if (have < 2)
        return true;
    if (n == 3 && ((u[0] == 0xE0 && u[1] < 0xA0) || (u[0] == 0xED && u[1] >= 0xA0)))
        return false;
    return !(n == 4 && ((u[0] == 0xF0 && u[1] < 0x90) || (u[0] == 0xF4 && u[1] >= 0x90)));
}

size_t utf8_incomplete_tail(const char *s, size_t count)
{
    for (size_t have = 1; have <= 3 && have <= count; have++) {
        const unsigned char *u = (const unsigned char *)s + count - have;
        if ((*u & 0xC0) == 0x80)
            continue;
        int n = utf8_announced_length(*u);
        return n > (int)have && utf8_may_continue(u, have, n) ? have : 0;
    }
    return 0;
}

size_t text_distance(const char *a, const char *b, size_t limit)
{
    enum { LONGEST = 64 };
    size_t n = strlen(a), m = strlen(b), row[LONGEST + 1];
    if (n > LONGEST || m > LONGEST)
        return limit + 1;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t insert = row[j - 1] + 1, drop = row[j] + 1;
            diagonal = row[j];
            row[j] = change < insert ? change : insert;
            if (drop < row[j])
                row[j] = drop;
        }
    }
    return row[m] <= limit ? row[m] : limit + 1;
}
