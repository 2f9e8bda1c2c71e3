/* Anthropic's Messages API, output side: pieces of an answer become content blocks, sent one by one as events or gathered into one
 * message. Knows neither HTTP nor the engine: events go to a function.
 *
 *     begin -> piece, piece, step, piece, step ... -> end (or fail)
 *
 * A call that was cut is not a block of a whole message, because its input is not an object; in a stream its block has begun already and
 * ends with unfinished JSON and the stop_reason that cut it. */
#ifndef SERVE_ANTHROPIC_ANSWER_H
#define SERVE_ANTHROPIC_ANSWER_H

#include <jansson.h>
#include <stdint.h>

#include "serve/generation.h"

/* Takes the reference to value. */
typedef void (*anthropic_send)(void *context, const char *event, json_t *value);

typedef struct anthropic_answer_options {
    const char *model;    /* borrowed */
    bool hides_thinking;
    bool clipped;         /* max_tokens was more than the context has room for */
    uint64_t seed;        /* of the ids */
    anthropic_send send;  /* NULL: gather */
    void *context;
} anthropic_answer_options;

typedef struct anthropic_answer anthropic_answer;

anthropic_answer *anthropic_answer_create(const anthropic_answer_options *options);
void anthropic_answer_free(anthropic_answer *a); /* NULL is allowed */

/* Before the first piece. Streams: message_start. */
void anthropic_answer_begin(anthropic_answer *a, const generation_usage *usage);
void anthropic_answer_piece(anthropic_answer *a, const chat_event *piece);
void anthropic_answer_step(anthropic_answer *a); /* streams: sends what has come */

/* The answer is whole: for a stream the last events are sent and NULL is returned, else the message (a new reference). f->end is STOP,
 * LENGTH or CALLS. A stream whose last call the model left unfinished on its own ends as a failure: nothing marks it as cut. */
json_t *anthropic_answer_end(anthropic_answer *a, const generation_finish *f, const generation_usage *usage);

/* A stream has failed: the error event. status as for a reply. */
void anthropic_answer_fail(anthropic_answer *a, int status, const char *sentence);

/* The HTTP status of an answer that did not come about; 0 when it did. */
int anthropic_finish_status(generation_end end);

#endif
