#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Removes a UTF-8 character that vsnprintf cut in the middle. */
static void drop_partial_character(char *text, size_t capacity)
{
    size_t n = strlen(text);
    if (n + 1 < capacity)
        return;
    while (n > 0 && ((unsigned char)text[n - 1] & 0xC0) == 0x80)
        n--;
    if (n > 0 && ((unsigned char)text[n - 1] & 0x80))
        n--;
    text[n] = '\0';
}

bool error_set(error *err, error_code code, const char *format, ...)
{
    if (!err)
        return false;
    va_list args;
    va_start(args, format);
    err->code = code;
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    drop_partial_character(err->text, sizeof err->text);
    return false;
}

bool error_set_errno(error *err, error_code code, const char *format, ...)
{
    int saved = errno;
    if (!err)
        return false;
    char text[sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(err, code, "%s: %s", text, strerror(saved));
}

bool error_add(error *err, const char *format, ...)
{
    if (!err)
        return false;
    char context[256], old[sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    memcpy(old, err->text, sizeof old);
    return error_set(err, err->code == ERROR_NONE ? ERROR_RUNTIME : err->code, "%s: %s", context, old);
}
