#include "eval/extract.h"

#include <ctype.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static size_t find(view s, size_t from, const char *mark)
{
    size_t n = strlen(mark);
    for (size_t i = from; i + n <= s.length; i++)
        if (memcmp(s.data + i, mark, n) == 0)
            return i;
    return s.length;
}

view extract_before(view answer, const char *mark)
{
    return (view){answer.data, find(answer, 0, mark)};
}

/* ---- numbers ---- */

/* The end of the number that begins with the digit (or ".5") at `start`: digits, groups of three behind commas, one fraction. */
static size_t number_end(view s, size_t start)
{
    size_t i = start;
    while (i < s.length && is_digit(s.data[i]))
        i++;
    while (i + 3 < s.length && s.data[i] == ',' && is_digit(s.data[i + 1]) && is_digit(s.data[i + 2]) && is_digit(s.data[i + 3]) &&
           !(i + 4 < s.length && is_digit(s.data[i + 4])))
        i += 4;
    if (i + 1 < s.length && s.data[i] == '.' && is_digit(s.data[i + 1])) {
        i++;
        while (i < s.length && is_digit(s.data[i]))
            i++;
    }
    return i;
}

/* A minus belongs to the number when nothing that it could subtract from stands before it: "-3", "= -3", "$-3", not "5-3". */
static bool is_negative(view s, size_t start)
{
    if (start > 0 && s.data[start - 1] == '$')
        start--;
    if (start == 0 || s.data[start - 1] != '-')
        return false;
    return start == 1 || (!is_word(s.data[start - 2]) && s.data[start - 2] != ')' && s.data[start - 2] != '-');
}

static void add_normal(view digits, bool negative, text *out)
{
    text whole = {0}, fraction = {0};
    bool after_point = false;
    for (size_t i = 0; i < digits.length; i++) {
        char c = digits.data[i];
        if (c == '.')
            after_point = true;
        else if (is_digit(c) && (after_point || whole.length || c != '0'))
            text_add_char(after_point ? &fraction : &whole, c);
    }
    while (fraction.length && fraction.data[fraction.length - 1] == '0')
        fraction.length--;
    bool zero = whole.length == 0 && fraction.length == 0;
    text_add_text(out, negative && !zero ? "-" : "");
    text_add(out, whole.length ? whole.data : "0", whole.length ? whole.length : 1);
    if (fraction.length) {
        text_add_char(out, '.');
        text_add(out, fraction.data, fraction.length);
    }
    text_free(&whole);
    text_free(&fraction);
}

/* The first number at or behind `from`; *end: where it ends. */
static bool next_number(view s, size_t from, size_t *start, size_t *end)
{
    for (size_t i = from; i < s.length; i++)
        if (is_digit(s.data[i]) || (s.data[i] == '.' && i + 1 < s.length && is_digit(s.data[i + 1]))) {
            *start = i;
            *end = number_end(s, i);
            return true;
        }
    return false;
}

bool extract_number(view answer, text *out)
{
    text_clear(out);
    size_t start, end, last, last_end, mark = find(answer, 0, "####");
    bool found = next_number(answer, mark, &last, &last_end);
    for (size_t from = 0; mark == answer.length && next_number(answer, from, &start, &end); from = end) {
        found = true;
        last = start;
        last_end = end;
    }
    if (found)
        add_normal((view){answer.data + last, last_end - last}, is_negative(answer, last), out);
    return found;
}

/* ---- letters ---- */

/* A letter of the choices at i that stands alone; -1 otherwise. */
static int letter_at(view s, size_t i, int choices)
{
    if (i >= s.length || s.data[i] < 'A' || s.data[i] >= 'A' + choices)
        return -1;
    if (i + 1 < s.length && is_word(s.data[i + 1]))
        return -1;
    return s.data[i] - 'A';
}

/* Steps over what may stand between "answer" and its letter. */
static size_t skip_decoration(view s, size_t i)
{
    static const char *const marks[] = {"is", "\\boxed", "\\text", "option", "Option"};
    for (bool moved = true; moved;) {
        moved = false;
        while (i < s.length && strchr(" \t\r\n:=*_($\"'`{[", s.data[i]) && s.data[i])
            i++, moved = true;
        for (size_t m = 0; m < sizeof marks / sizeof *marks; m++) {
            size_t n = strlen(marks[m]);
            if (i + n < s.length && memcmp(s.data + i, marks[m], n) == 0 && !isalpha((unsigned char)s.data[i + n]))
                i += n, moved = true;
        }
    }
    return i;
}

static int behind_answer(view s, int choices)
{
    int found = -1;
    for (size_t i = 0; i + 6 <= s.length; i++) {
        if ((s.data[i] != 'A' && s.data[i] != 'a') || (memcmp(s.data + i + 1, "nswer", 5) != 0 && memcmp(s.data + i + 1, "NSWER", 5) != 0))
            continue;
        int letter = letter_at(s, skip_decoration(s, i + 6), choices);
        found = letter >= 0 ? letter : found;
    }
    return found;
}

static int last_between(view s, const char *open, char close, int choices)
{
    int found = -1;
    size_t n = strlen(open);
    for (size_t i = find(s, 0, open); i < s.length; i = find(s, i + 1, open)) {
        int letter = letter_at(s, i + n, choices);
        if (letter >= 0 && i + n + 1 < s.length && s.data[i + n + 1] == close)
            found = letter;
    }
    return found;
}

static int at_beginning(view s, int choices)
{
    size_t i = 0;
    while (i < s.length && strchr(" \t\r\n*_(\"'`", s.data[i]) && s.data[i])
        i++;
    int letter = letter_at(s, i, choices);
    if (letter < 0 || i + 1 == s.length)
        return letter;
    return strchr(".):,*_\"'`\r\n", s.data[i + 1]) && s.data[i + 1] ? letter : -1;
}

int extract_letter(view answer, int choices)
{
    int letter = behind_answer(answer, choices);
    if (letter < 0)
        letter = last_between(answer, "\\boxed{", '}', choices);
    if (letter < 0)
        letter = at_beginning(answer, choices);
    if (letter < 0)
        letter = last_between(answer, "(", ')', choices);
    return letter;
}

/* ---- words ---- */

static bool equal_at(view s, size_t i, view words)
{
    for (size_t k = 0; k < words.length; k++)
        if (tolower((unsigned char)s.data[i + k]) != tolower((unsigned char)words.data[k]))
            return false;
    return true;
}

bool extract_contains(view answer, view words)
{
    for (size_t i = 0; words.length && i + words.length <= answer.length; i++) {
        size_t end = i + words.length;
        bool left = i == 0 || !is_word(answer.data[i - 1]) || !is_word(words.data[0]);
        bool right = end == answer.length || !is_word(answer.data[end]) || !is_word(words.data[words.length - 1]);
        if (left && right && equal_at(answer, i, words))
            return true;
    }
    return false;
}
