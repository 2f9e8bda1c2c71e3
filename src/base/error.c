#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Removes a UTF-8 character that vsnprintf cut in the middle. */
static void drop_partial_character(char *sentence)
{
    size_t n = strlen(sentence);
    sentence[n - utf8_incomplete_tail(sentence, n)] = '\0';
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
    drop_partial_character(err->text);
    return false;
}

bool error_set_errno(error *err, error_code code, const char *format, ...)
{
    int saved = errno;
    if (!err)
        return false;
    char sentence[sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return error_set(err, code, "%s: %s", sentence, strerror(saved));
}

bool error_add(error *err, const char *format, ...)
{
    if (!err)
        return false;
    char context[sizeof err->text], old[sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    memcpy(old, err->text, sizeof old);
    return error_set(err, err->code == ERROR_NONE ? ERROR_RUNTIME : err->code, "%s: %s", context, old);
}
