#include "model/python_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MOST = 17 }; /* that many significant digits always read back as the same double */

/* A decimal in scientific form: d.ddd x 10^exponent. */
typedef struct decimal {
    char digits[DIGITS_MOST + 1]; /* [count] without the point */
    int count, exponent;
} decimal;

static double decimal_value(const decimal *d)
{
    char s[64];
    snprintf(s, sizeof s, "%c.%se%d", d->digits[0], d->digits + 1, d->exponent);
    return strtod(s, NULL);
}

/* value > 0 rounded to count digits. */
static decimal decimal_round(double value, int count)
{
    char s[64];
    decimal d = {.count = count};
    snprintf(s, sizeof s, "%.*e", count - 1, value);
    d.digits[0] = s[0];
    memcpy(d.digits + 1, s + 2, (size_t)(count - 1)); /* s[1] is the point; count == 1 copies nothing */
    d.exponent = (int)strtol(strchr(s, 'e') + 1, NULL, 10);
    return d;
}

/* The next larger decimal of the same number of digits. */
static decimal decimal_next(decimal d)
{
    int i = d.count - 1;
    while (i >= 0 && d.digits[i] == '9')
        d.digits[i--] = '0';
    if (i >= 0) {
        d.digits[i]++;
    } else {
        d.digits[0] = '1';
        d.exponent++;
    }
    return d;
}

/* The shortest decimal that reads back as value. Below a power of two doubles lie twice as dense as above it, so the
 * nearest decimal (below) may read back as another double while its upper neighbour does not: try both. */
static decimal decimal_shortest(double value)
{
    for (int count = 1; count < DIGITS_MOST; count++) {
        decimal near = decimal_round(value, count);
        if (decimal_value(&near) == value)
            return near;
        decimal next = decimal_next(near);
        if (decimal_value(&next) == value)
            return next;
    }
    return decimal_round(value, DIGITS_MOST);
}

static void decimal_drop_zeros(decimal *d)
{
    while (d->count > 1 && d->digits[d->count - 1] == '0')
        d->digits[--d->count] = '\0';
}

static void add_scientific(text *out, const decimal *d)
{
    text_add_char(out, d->digits[0]);
    if (d->count > 1)
        text_add_format(out, ".%s", d->digits + 1);
    text_add_format(out, "e%c%02d", d->exponent < 0 ? '-' : '+', abs(d->exponent));
}

static void add_positional(text *out, const decimal *d)
{
    int point = d->exponent + 1; /* digits before the point */
    if (point <= 0)
        text_add_text(out, "0.");
    for (int i = point; i < 0; i++)
        text_add_char(out, '0');
    for (int i = 0; i < d->count; i++) {
        if (i == point && i > 0)
            text_add_char(out, '.');
        text_add_char(out, d->digits[i]);
    }
    for (int i = d->count; i < point; i++)
        text_add_char(out, '0');
    if (point >= d->count)
        text_add_text(out, ".0");
}

void python_float_add(text *out, double value)
{
    double size = value < 0 ? -value : value;
    if (value < 0 || (value == 0 && 1 / value < 0))
        text_add_char(out, '-');
    if (size == 0) {
        text_add_text(out, "0.0");
        return;
    }
    decimal d = decimal_shortest(size);
    decimal_drop_zeros(&d);
    if (d.exponent < -4 || d.exponent >= 16)
        add_scientific(out, &d);
    else
        add_positional(out, &d);
}

static void add_escaped(text *out, unsigned char c)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *known = c ? strchr(from, c) : NULL;
    if (known)
        text_add_format(out, "\\%c", to[known - from]);
    else
        text_add_format(out, "\\u%04x", c);
}

void python_escape_add(text *out, const char *bytes, size_t count)
{
    size_t plain = 0; /* where the run of bytes that need no escape began */
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        text_add(out, bytes + plain, i - plain);
        add_escaped(out, c);
        plain = i + 1;
    }
    text_add(out, bytes + plain, count - plain);
}

static void add_quoted(text *out, const char *bytes, size_t count)
{
    text_add_char(out, '"');
    python_escape_add(out, bytes, count);
    text_add_char(out, '"');
}

static void add_array(text *out, const json_t *value)
{
    text_add_char(out, '[');
    for (size_t i = 0; i < json_array_size(value); i++) {
        if (i > 0)
            text_add_text(out, ", ");
        python_json_add(out, json_array_get(value, i));
    }
    text_add_char(out, ']');
}

static void add_object(text *out, const json_t *value)
{
    const char *key;
    const json_t *item;
    bool first = true;
    text_add_char(out, '{');
    /* jansson's iterators take a non-const object but do not change it. */
    json_object_foreach((json_t *)(uintptr_t)value, key, item) {
        if (!first)
            text_add_text(out, ", ");
        first = false;
        add_quoted(out, key, strlen(key));
        text_add_text(out, ": ");
        python_json_add(out, item);
    }
    text_add_char(out, '}');
}

void python_json_add(text *out, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: add_object(out, value); break;
    case JSON_ARRAY: add_array(out, value); break;
    case JSON_STRING: add_quoted(out, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: text_add_format(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL: python_float_add(out, json_real_value(value)); break;
    case JSON_TRUE: text_add_text(out, "true"); break;
    case JSON_FALSE: text_add_text(out, "false"); break;
    default: text_add_text(out, "null"); break;
    }
}

bool python_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

view python_strip(view s)
{
    uint32_t c;
    while (s.length > 0) {
        int n = utf8_decode(s.data, s.length, &c);
        if (n == 0 || !python_is_space(c))
            break;
        s.data += n;
        s.length -= (size_t)n;
    }
    while (s.length > 0) {
        size_t n = 1;
        while (n < s.length && n < 4 && ((unsigned char)s.data[s.length - n] & 0xC0) == 0x80)
            n++;
        if (utf8_decode(s.data + s.length - n, n, &c) == 0 || !python_is_space(c))
            break;
        s.length -= n;
    }
    return s;
}
