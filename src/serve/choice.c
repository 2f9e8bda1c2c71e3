/* Stop strings are found by Knuth, Morris and Pratt's automaton, one per string: its state is how many bytes at the end of the content
 * so far are the beginning of the string. The largest state is what has to be held back. */
#include "serve/choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

typedef struct stop_matcher {
    char *bytes;
    size_t length;
    size_t *shorter; /* [length] of bytes[0..i]: the longest proper beginning that is also its end */
    size_t state;
} stop_matcher;

/* A piece whose text is a place in `queued`. */
typedef struct queued_piece {
    chat_event event;
    size_t offset, bytes;
} queued_piece;

struct choice {
    const tokenizer *tokenizer;
    const chat_format *format;
    chat_output *parser;     /* chat */
    token_stream characters; /* no chat */
    text scratch;            /* no chat: the text of the current token */
    bool plain_reasoning, one_call, ignore_eos, keep_stop;
    int min_tokens;
    stop_matcher *stops; /* [stop_count] */
    int stop_count;
    text held;         /* content that may be the beginning of a stop string */
    bool in_reasoning; /* no </think> yet */
    bool ended;
    choice_result result;

    queued_piece *pieces; /* [piece_count] of which the first piece_next were taken */
    size_t piece_count, piece_capacity, piece_next;
    text queued; /* the texts of pieces */
};

/* ---- the queue ---- */

static queued_piece *piece_add(choice *c, const chat_event *e)
{
    if (c->piece_count == c->piece_capacity) {
        c->piece_capacity = c->piece_capacity ? 2 * c->piece_capacity : 8;
        c->pieces = mem_grow(c->pieces, c->piece_capacity, sizeof *c->pieces);
    }
    queued_piece *p = &c->pieces[c->piece_count++];
    *p = (queued_piece){.event = *e, .offset = c->queued.length};
    return p;
}

/* Text of the same kind and call as the newest piece is appended to it. */
static void piece_text(choice *c, const chat_event *e, view v)
{
    queued_piece *last = c->piece_count > c->piece_next ? &c->pieces[c->piece_count - 1] : NULL;
    bool extends = last && last->event.kind == e->kind && last->event.call == e->call && e->kind != CHAT_EVENT_CALL_BEGIN;
    queued_piece *p = extends ? last : piece_add(c, e);
    p->bytes += v.length;
    text_add(&c->queued, v.data, v.length);
}

static void content_add(choice *c, view v)
{
    if (v.length > 0)
        piece_text(c, &(chat_event){.kind = CHAT_EVENT_CONTENT}, v);
}

bool choice_next(choice *c, chat_event *piece)
{
    if (c->piece_next == c->piece_count)
        return false;
    const queued_piece *p = &c->pieces[c->piece_next++];
    *piece = p->event;
    piece->text = (view){c->queued.data ? c->queued.data + p->offset : "", p->bytes};
    return true;
}

static void queue_reuse(choice *c)
{
    if (c->piece_next < c->piece_count)
        return;
    c->piece_next = c->piece_count = 0;
    text_clear(&c->queued);
}

/* ---- stop strings ---- */

static void matcher_init(stop_matcher *m, const char *stop)
{
    m->length = strlen(stop);
    m->bytes = mem_copy(stop, m->length);
    m->shorter = mem_alloc(m->length, sizeof *m->shorter);
    for (size_t i = 1, k = 0; i < m->length; i++) {
        while (k > 0 && stop[i] != stop[k])
            k = m->shorter[k - 1];
        k += stop[i] == stop[k];
        m->shorter[i] = k;
    }
}

/* True when the string ends with this byte. */
static bool matcher_step(stop_matcher *m, char byte)
{
    size_t k = m->state;
    if (k == m->length)
        k = m->shorter[k - 1];
    while (k > 0 && byte != m->bytes[k])
        k = m->shorter[k - 1];
    m->state = k + (byte == m->bytes[k]);
    return m->state == m->length;
}

/* The longest stop string that ends with this byte, or NULL. */
static const stop_matcher *stops_step(choice *c, char byte)
{
    const stop_matcher *found = NULL;
    for (int i = 0; i < c->stop_count; i++)
        if (matcher_step(&c->stops[i], byte) && (!found || c->stops[i].length > found->length))
            found = &c->stops[i];
    return found;
}

/* How many bytes at the end of the content may be the beginning of a stop string. */
static size_t stops_undecided(const choice *c)
{
    size_t most = 0;
    for (int i = 0; i < c->stop_count; i++) {
        const stop_matcher *m = &c->stops[i];
        size_t state = m->state == m->length ? m->shorter[m->length - 1] : m->state;
        most = state > most ? state : most;
    }
    return most;
}

static void held_release(choice *c)
{
    content_add(c, (view){c->held.data, c->held.length});
    text_clear(&c->held);
    for (int i = 0; i < c->stop_count; i++)
        c->stops[i].state = 0;
}

/* ---- ending ---- */

static void end_by_itself(choice *c)
{
    c->ended = true;
    c->result.stopped = true;
}

/* The content ends where the stop string begins, or behind it. end: bytes of held up to the end of the match. */
static void end_by_stop(choice *c, const stop_matcher *m, size_t end)
{
    content_add(c, (view){c->held.data, c->keep_stop ? end : end - m->length});
    text_clear(&c->held);
    c->result.stop_text = m->bytes;
    end_by_itself(c);
}

static void content_search(choice *c, view v)
{
    size_t before = c->held.length;
    text_add(&c->held, v.data, v.length);
    for (size_t i = before; i < c->held.length; i++) {
        const stop_matcher *m = stops_step(c, c->held.data[i]);
        if (m && c->result.tokens >= c->min_tokens) {
            end_by_stop(c, m, i + 1);
            return;
        }
    }
    size_t undecided = stops_undecided(c), decided = c->held.length - undecided;
    content_add(c, (view){c->held.data, decided});
    if (undecided > 0)
        memmove(c->held.data, c->held.data + decided, undecided);
    c->held.length = undecided;
    if (c->held.data)
        c->held.data[undecided] = '\0';
}

/* ---- chat ---- */

static void parser_event(choice *c, const chat_event *e)
{
    if (e->kind == CHAT_EVENT_FINISH) {
        c->result.problems = e->problems;
        if (e->finish != CHAT_FINISH_CUT) {
            held_release(c);
            end_by_itself(c);
        }
        return;
    }
    if (c->ended)
        return;
    if (e->kind == CHAT_EVENT_CONTENT) {
        content_search(c, e->text);
        return;
    }
    held_release(c);
    if (e->kind == CHAT_EVENT_REASONING && c->plain_reasoning)
        content_add(c, e->text);
    else
        piece_text(c, e, e->text);
    if (e->kind == CHAT_EVENT_CALL_END) {
        c->result.calls |= e->complete;
        if (c->one_call && e->complete)
            end_by_itself(c);
    }
}

static void parser_drain(choice *c)
{
    chat_event e;
    while (chat_output_next(c->parser, &e))
        parser_event(c, &e);
}

static void reasoning_count(choice *c, int32_t id)
{
    if (!c->in_reasoning)
        return;
    chat_control control = chat_format_control(c->format, id);
    c->in_reasoning = control != CHAT_THINK_END && control != CHAT_CALL;
    c->result.reasoning_tokens += control != CHAT_CALL;
    if (c->plain_reasoning && control == CHAT_THINK_END)
        content_add(c, view_of(chat_control_text(CHAT_THINK_END)));
}

static bool ends_turn(chat_control control)
{
    return control == CHAT_END_OF_TEXT || control == CHAT_USER || control == CHAT_OBSERVATION;
}

/* A stop id that is ordinary text is not part of the answer. A control token is not text, and the parser has to see it. */
static void chat_token(choice *c, int32_t id, bool ends)
{
    chat_control control = chat_format_control(c->format, id);
    bool parsed = ends ? control != CHAT_TEXT || c->keep_stop : !c->ignore_eos || !ends_turn(control);
    if (parsed) {
        chat_output_add(c->parser, id);
        parser_drain(c);
    }
    reasoning_count(c, id);
}

/* ---- no chat ---- */

static void plain_token(choice *c, int32_t id, bool ends)
{
    if (ends && !c->keep_stop)
        return;
    text_clear(&c->scratch);
    token_stream_add(&c->characters, c->tokenizer, id, &c->scratch);
    content_search(c, (view){c->scratch.data, c->scratch.length});
}

/* ---- the life of a choice ---- */

/* Shows the parser some content that is not reported. */
static void parser_into_content(choice *c)
{
    token_list word = {0};
    chat_event e;
    tokenizer_encode(c->tokenizer, ".", 1, false, &word);
    for (size_t i = 0; i < word.count; i++)
        chat_output_add(c->parser, word.ids[i]);
    while (chat_output_next(c->parser, &e))
        continue;
    token_list_free(&word);
}

choice *choice_new(const choice_options *o)
{
    choice *c = mem_alloc(1, sizeof *c);
    c->tokenizer = o->tokenizer;
    c->format = o->format;
    c->characters.skip_special = !o->keep_special;
    c->plain_reasoning = o->plain_reasoning;
    c->one_call = o->one_call;
    c->ignore_eos = o->ignore_eos;
    c->keep_stop = o->keep_stop;
    c->min_tokens = o->min_tokens;
    c->in_reasoning = o->format && o->in_thinking;
    c->result.stop_id = -1;
    c->stop_count = o->stop_count;
    c->stops = mem_alloc((size_t)o->stop_count + 1, sizeof *c->stops);
    for (int i = 0; i < o->stop_count; i++)
        matcher_init(&c->stops[i], o->stops[i]);
    if (!o->format)
        return c;
    c->parser = chat_output_new(o->format, o->tokenizer, o->tools, o->in_thinking);
    if (o->in_content)
        parser_into_content(c);
    for (size_t i = 0; o->forced && i < o->forced->count; i++) {
        chat_output_add(c->parser, o->forced->ids[i]);
        parser_drain(c);
    }
    return c;
}

void choice_free(choice *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->stop_count; i++) {
        free(c->stops[i].bytes);
        free(c->stops[i].shorter);
    }
    chat_output_free(c->parser);
    text_free(&c->scratch);
    text_free(&c->held);
    text_free(&c->queued);
    free(c->pieces);
    free(c->stops);
    free(c);
}

/* The parser's last words: the problems of the whole output. */
static void parser_close(choice *c)
{
    if (!c->parser)
        return;
    chat_output_end(c->parser);
    parser_drain(c);
}

static void end_by_token(choice *c)
{
    choice_end(c);
    end_by_itself(c);
}

int choice_add(choice *c, const int32_t *ids, int count, bool ended)
{
    queue_reuse(c);
    int used = 0;
    while (used < count && !c->ended) {
        bool ends = ended && used == count - 1;
        int32_t id = ids[used++];
        c->result.tokens++;
        if (c->parser)
            chat_token(c, id, ends);
        else
            plain_token(c, id, ends);
        bool by_parser = c->ended && !c->result.stop_text && c->parser && ends_turn(chat_format_control(c->format, id));
        if (ends && !c->ended)
            end_by_token(c);
        if (c->ended && (ends || by_parser) && !c->result.stop_text)
            c->result.stop_id = id;
        if (c->ended)
            parser_close(c);
    }
    return used;
}

void choice_end(choice *c)
{
    if (c->ended)
        return;
    queue_reuse(c);
    if (c->parser) {
        parser_close(c);
    } else {
        text_clear(&c->scratch);
        token_stream_flush(&c->characters, &c->scratch);
        content_search(c, (view){c->scratch.data, c->scratch.length});
    }
    if (!c->ended)
        held_release(c);
    c->ended = true;
}

bool choice_ended(const choice *c)
{
    return c->ended;
}

const choice_result *choice_result_now(const choice *c)
{
    return &c->result;
}
