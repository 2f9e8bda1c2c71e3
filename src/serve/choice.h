/* One choice of an answer: tokens in, pieces of text and calls out. It parses the model's output (chat_output.h) or decodes it,
 * looks for stop strings in the content, and counts. It knows neither the engine nor HTTP.
 *
 *     choice_add(c, tokens, count, ended);          the tokens of one step
 *     if (!choice_ended(c) && no more will come)    choice_end(c);
 *     while (choice_next(c, &piece)) ...
 *
 * Content that may still become a stop string is held back until it is decided. The stop string that is complete first wins, of
 * several that end at the same byte the longest one; so the result does not depend on how the text is cut into tokens. White
 * space at the beginning of a chat answer is not part of its content and is not searched. */
#ifndef SERVE_CHOICE_H
#define SERVE_CHOICE_H

#include "model/chat_output.h"

/* What it borrows must outlive it, except forced and stops, which are only read by choice_new. */
typedef struct choice_options {
    const tokenizer *tokenizer;
    const chat_format *format;  /* NULL: no chat, all is content */
    const json_t *tools;        /* chat; NULL: none. A reference is kept */
    const token_list *forced;   /* chat: tokens of the prompt that begin the output; NULL: none */
    bool in_thinking;           /* chat: the output begins inside <think> */
    bool in_content;            /* chat: the output goes on inside content, so that white space at its beginning belongs to it */
    bool plain_reasoning;       /* chat: reasoning is given as content, </think> where it ends; it is not searched */
    bool one_call;              /* chat: the answer ends after its first call */
    bool ignore_eos;            /* chat: tokens that end a turn mean nothing, unless they ended the answer */
    bool keep_stop;             /* the stop string or token is part of the text */
    bool keep_special;          /* no chat: special tokens are text */
    int min_tokens;             /* a stop string that is complete earlier does not count */
    char *const *stops;         /* [stop_count] stop strings, not empty */
    int stop_count;
} choice_options;

/* How it ended, as far as the text tells; complete once choice_ended. */
typedef struct choice_result {
    bool stopped;            /* the text ended itself: end token, stop string, first call with one_call. False: choice_end came */
    bool calls;              /* at least one call is complete */
    const char *stop_text;   /* the stop string that matched; lives as long as the choice. NULL: none */
    int32_t stop_id;         /* the token that ended it; -1: none */
    unsigned problems;       /* of chat_output.h */
    int tokens;              /* up to the one that ended it */
    int reasoning_tokens;    /* of them, until </think>, that included */
} choice_result;

typedef struct choice choice;

choice *choice_new(const choice_options *options);
void choice_free(choice *c); /* NULL is allowed */

/* Takes tokens; `ended` says that the last of them ended the answer (an end token or a stop id). Returns how many count: those after
 * the end of the choice are left out. Pieces taken before are no longer valid. */
int choice_add(choice *c, const int32_t *ids, int count, bool ended);

/* No more tokens come: what was held back becomes pieces. */
void choice_end(choice *c);

bool choice_ended(const choice *c);
const choice_result *choice_result_now(const choice *c);

/* Takes the oldest piece; never CHAT_EVENT_FINISH. Its text holds until the next choice_add or choice_end. */
bool choice_next(choice *c, chat_event *piece);

#endif
