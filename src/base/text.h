/* Text: a growing byte buffer, a borrowed view, and UTF-8. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes, not terminated. */
typedef struct view {
    const char *data;
    size_t length;
} view;

view view_of(const char *terminated);
bool view_equal(view a, view b);
bool view_equal_text(view a, const char *terminated);

/* A growing buffer; data is always terminated once anything was added. Zero-initialise to create one. */
typedef struct text {
    char *data;
    size_t length, capacity; /* bytes; capacity counts the terminator */
} text;

void text_add(text *t, const void *bytes, size_t count);
void text_add_text(text *t, const char *terminated);
void text_add_char(text *t, char c);
void text_add_format(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_arguments(text *t, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
void text_add_utf8(text *t, uint32_t code_point);
void text_clear(text *t); /* keeps the capacity */
void text_free(text *t);

bool text_starts_with(const char *s, const char *prefix);
bool text_ends_with(const char *s, const char *suffix);

/* Reads one code point at s (count > 0 bytes left). Returns its length 1..4 and stores the code point, or returns
 * 0 when the bytes are not valid UTF-8 (overlong, surrogate, beyond U+10FFFF, cut short). */
int utf8_decode(const char *s, size_t count, uint32_t *code_point);
bool utf8_valid(const char *s, size_t count);

/* How many bytes at the end of s are the beginning of a character that is not complete yet (0..3). */
size_t utf8_incomplete_tail(const char *s, size_t count);

/* Edit distance, for "did you mean"; gives up at limit + 1. */
size_t text_distance(const char *a, const char *b, size_t limit);

#endif
