#include "commands/output.h"

#include <stdio.h>
#include <unistd.h>

void output_ids(const int32_t *ids, size_t count, const char *separator, text *out)
{
    for (size_t i = 0; i < count; i++) {
        char digits[16];
        int n = 0;
        uint32_t rest = (uint32_t)ids[i];
        do
            digits[n++] = (char)('0' + rest % 10);
        while ((rest /= 10) > 0);
        if (i)
            text_add_text(out, separator);
        while (n > 0)
            text_add_char(out, digits[--n]);
    }
}

static void add_json_character(uint32_t c, const char *bytes, size_t count, text *out)
{
    static const char *const named[0x20] = {['\b'] = "\\b", ['\f'] = "\\f", ['\n'] = "\\n", ['\r'] = "\\r", ['\t'] = "\\t"};
    if (c == '"' || c == '\\')
        text_add_format(out, "\\%c", (char)c);
    else if (c < 0x20 && named[c])
        text_add_text(out, named[c]);
    else if (c < 0x20 || c == 0x7F)
        text_add_format(out, "\\u%04x", (unsigned)c);
    else
        text_add(out, bytes, count);
}

void output_json_string(const char *bytes, size_t count, text *out)
{
    text_add_char(out, '"');
    for (size_t i = 0; i < count;) {
        uint32_t c;
        int n = utf8_decode(bytes + i, count - i, &c);
        if (n > 0)
            add_json_character(c, bytes + i, (size_t)n, out);
        else
            text_add_utf8(out, 0xFFFD);
        i += n > 0 ? (size_t)n : 1;
    }
    text_add_char(out, '"');
}

void output_json(json_t *value)
{
    json_dumpf(value, stdout, JSON_ENCODE_ANY | (isatty(STDOUT_FILENO) ? JSON_INDENT(2) : JSON_COMPACT));
    putchar('\n');
    json_decref(value);
}

bool output_text(text *t)
{
    if (t->length)
        fwrite(t->data, 1, t->length, stdout);
    text_clear(t);
    return !ferror(stdout);
}

bool output_document(text *t)
{
    if (isatty(STDOUT_FILENO) && (t->length == 0 || t->data[t->length - 1] != '\n'))
        text_add_char(t, '\n');
    return output_text(t);
}
