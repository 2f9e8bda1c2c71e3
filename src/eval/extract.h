/* Finding the answer in what a model wrote. */
#ifndef EVAL_EXTRACT_H
#define EVAL_EXTRACT_H

#include <stdbool.h>

#include "base/text.h"

/* The final number: the one behind the first "####", or else the last one of the text; in a normal form ("1,234.50" is "1234.5",
 * "-0" is "0"), so that equal numbers are equal texts. False when there is none. */
bool extract_number(view answer, text *out);

/* The chosen letter of `choices` ones (2 .. 26), 0 for A; -1 when there is none. In this order: the last "answer" followed by a
 * letter ("Answer: B", "the answer is (B)", "**Answer:** \boxed{B}"), the last \boxed{B}, a text that begins with a letter alone
 * ("B", "B.", "(B) Rome"), the last letter in parentheses. */
int extract_letter(view answer, int choices);

/* Whether the words appear in the answer, ASCII case aside, not as a part of a longer word or number. */
bool extract_contains(view answer, view words);

/* The part before the first occurrence of mark; all of it when there is none. */
view extract_before(view answer, const char *mark);

#endif
