/* The split rule of GLM's tokenizer:
 *
 *   1  (?i:'s|'t|'re|'ve|'m|'ll|'d)     a contraction
 *   2  [^\r\n\p{L}\p{N}]?\p{L}+         letters, with one leading character that is no letter, number or line end
 *   3  \p{N}{1,3}                       one to three numbers
 *   4   ?[^\s\p{L}\p{N}]+[\r\n]*        symbols, with a leading space and the line ends that follow
 *   5  \s*[\r\n]+                       spaces up to and including the last line end of the run
 *   6  \s+(?!\S)                        spaces, but for the last one when something follows
 *   7  \s+                              what is left of spaces
 *
 * The first alternative that matches wins, and every character begins some match, so the pieces cover the text. What the first
 * one or two characters are decides the alternative; no state is kept between pieces:
 *
 *   first      second       alternative
 *   '          s, t, ...    1 (U+017F, long s, folds to s)
 *   letter                  2
 *   number                  3
 *   symbol     letter       2
 *   symbol     else         4
 *   space      letter       2     (any space but CR and LF)
 *   U+0020     symbol       4
 *   space      else         5, 6, 7 on the whole run of spaces
 *
 * A run of spaces is scanned twice at most: once for the piece that ends with its last line end (5) or before its last space (6),
 * once for the rest. So the scanner is linear in the text. */
#include "model/tokenizer_split.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "model/unicode_tables.h"

const char tokenizer_split_regex[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                                     " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* The class of the character at s[0] and its length in bytes; count > 0. */
static inline unsigned class_at(const char *s, size_t count, size_t *length)
{
    unsigned class = unicode_ascii_class[(unsigned char)s[0]];
    *length = 1;
    if (class != 0xFF)
        return class;
    uint32_t c;
    int n = utf8_decode(s, count, &c);
    if (n == 0)
        return UNICODE_OTHER;
    *length = (size_t)n;
    return unicode_class_of(c);
}

/* The end of the run of characters of one class (letter or symbol) that continues at `at`. */
static inline size_t run_end(const char *s, size_t at, size_t count, unsigned class)
{
    for (;;) {
        while (at < count && unicode_ascii_class[(unsigned char)s[at]] == class)
            at++;
        size_t length;
        if (at == count || !((unsigned char)s[at] & 0x80) || class_at(s + at, count - at, &length) != class)
            return at;
        at += length;
    }
}

static size_t numbers_end(const char *s, size_t at, size_t count)
{
    size_t length;
    for (int n = 1; n < 3 && at < count && class_at(s + at, count - at, &length) == UNICODE_NUMBER; n++)
        at += length;
    return at;
}

static size_t symbols_end(const char *s, size_t at, size_t count)
{
    at = run_end(s, at, count, UNICODE_OTHER);
    while (at < count && (s[at] == '\r' || s[at] == '\n'))
        at++;
    return at;
}

/* Alternatives 5, 6 and 7 on the run of spaces at s. */
static size_t spaces_end(const char *s, size_t count)
{
    size_t at = 0, last = 0, after_newline = 0, length;
    while (at < count) {
        unsigned class = class_at(s + at, count - at, &length);
        if (class != UNICODE_SPACE && class != UNICODE_NEWLINE)
            break;
        last = at;
        at += length;
        if (class == UNICODE_NEWLINE)
            after_newline = at;
    }
    if (after_newline)
        return after_newline;
    return at == count || last == 0 ? at : last;
}

/* Length of the contraction at s, which begins with an apostrophe; 0 for none. */
static size_t contraction(const char *s, size_t count)
{
    if (count < 2)
        return 0;
    char a = (char)(s[1] | 0x20), b = count > 2 ? (char)(s[2] | 0x20) : '\0';
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return 3;
    return count > 2 && s[1] == '\xC5' && s[2] == '\xBF' ? 3 : 0;
}

size_t tokenizer_split_next(const char *s, size_t count)
{
    size_t length, second_length;
    unsigned first = class_at(s, count, &length);
    if (first == UNICODE_LETTER)
        return run_end(s, length, count, UNICODE_LETTER);
    if (first == UNICODE_NUMBER)
        return numbers_end(s, length, count);
    if (s[0] == '\'') {
        size_t n = contraction(s, count);
        if (n)
            return n;
    }
    bool alone = length == count || first == UNICODE_NEWLINE;
    unsigned second = alone ? UNICODE_SPACE : class_at(s + length, count - length, &second_length);
    if (second == UNICODE_LETTER)
        return run_end(s, length + second_length, count, UNICODE_LETTER);
    if (first == UNICODE_OTHER || (s[0] == ' ' && second == UNICODE_OTHER))
        return symbols_end(s, length, count);
    return spaces_end(s, count);
}
