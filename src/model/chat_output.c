/* A state machine over control tokens:
 *
 *     REASONING --</think>--> CONTENT --<think>--> REASONING
 *     REASONING, CONTENT --<tool_call>--> NAME --<arg_key>--> KEY --</arg_key>--> AFTER_KEY --<arg_value>--> VALUE
 *     VALUE --</arg_value>--> BETWEEN --<arg_key>--> KEY ...
 *     NAME, BETWEEN --</tool_call>--> CONTENT
 *
 * Text goes to wherever the state says. Reasoning and string arguments are passed on at once, verbatim; content loses
 * the white space around it and around calls; other arguments wait until they are complete. */
#include "model/chat_output.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/chat_schema.h"
#include "model/python_json.h"

typedef enum output_state {
    STATE_REASONING,
    STATE_CONTENT,
    STATE_NAME,      /* after <tool_call> */
    STATE_BETWEEN,   /* after </arg_value> */
    STATE_KEY,       /* after <arg_key> */
    STATE_AFTER_KEY, /* after </arg_key> */
    STATE_VALUE,     /* after <arg_value> */
    STATE_FINISHED,
} output_state;

/* A chat_event whose text is a place in `queued`. */
typedef struct queued_event {
    chat_event event;
    size_t offset, bytes;
} queued_event;

struct chat_output {
    const chat_format *format;
    const tokenizer *tokens;
    json_t *tools; /* NULL: none */
    output_state state;
    token_stream characters; /* bytes of a character that is not complete */
    text piece;              /* scratch: the text of the current token */
    unsigned problems;       /* of the whole output */
    bool any_complete;       /* a complete call was reported */

    text held;            /* white space that becomes content only if more content follows */
    size_t held_kept;     /* bytes of held from before the current run of content */
    bool run_visible;     /* the current run of content has something other than white space */
    bool content_started; /* some run has */

    int calls;                /* reported so far; the index of the next one */
    bool call_reported;       /* the current call has a CALL_BEGIN */
    unsigned call_problems;   /* of the current call */
    text name, key, value;    /* of the current call; value only when it is not streamed */
    json_t *keys;             /* object whose keys are the arguments of the current call so far */
    const json_t *parameters; /* schema of the current call's arguments, or NULL */
    unsigned types;           /* allowed for the current value */
    bool value_skipped;       /* the current value is not reported */

    queued_event *events; /* [event_count] of which the first event_next were taken */
    size_t event_count, event_capacity, event_next;
    text queued; /* the texts of events */
};

chat_output *chat_output_new(const chat_format *f, const tokenizer *t, const json_t *tools, bool in_thinking)
{
    chat_output *o = mem_alloc(1, sizeof *o);
    o->format = f;
    o->tokens = t;
    o->tools = json_incref((json_t *)(uintptr_t)tools);
    o->state = in_thinking ? STATE_REASONING : STATE_CONTENT;
    o->keys = json_object();
    return o;
}

void chat_output_free(chat_output *o)
{
    if (!o)
        return;
    json_decref(o->tools);
    json_decref(o->keys);
    text *texts[] = {&o->piece, &o->held, &o->name, &o->key, &o->value, &o->queued};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        text_free(texts[i]);
    free(o->events);
    free(o);
}

/* ---- the queue ---- */

static queued_event *event_add(chat_output *o, chat_event_kind kind)
{
    if (o->event_count == o->event_capacity) {
        o->event_capacity = o->event_capacity ? 2 * o->event_capacity : 16;
        o->events = mem_grow(o->events, o->event_capacity, sizeof *o->events);
    }
    queued_event *e = &o->events[o->event_count++];
    *e = (queued_event){.event = {.kind = kind, .call = o->calls}, .offset = o->queued.length};
    return e;
}

/* The event to which text of this kind can be appended: the newest one, or a new one. */
static queued_event *event_open(chat_output *o, chat_event_kind kind)
{
    queued_event *last = o->event_count > o->event_next ? &o->events[o->event_count - 1] : NULL;
    return last && last->event.kind == kind ? last : event_add(o, kind);
}

static void event_text(chat_output *o, chat_event_kind kind, view v)
{
    if (v.length == 0)
        return;
    event_open(o, kind)->bytes += v.length;
    text_add(&o->queued, v.data, v.length);
}

static void arguments_text(chat_output *o, const char *literal)
{
    event_text(o, CHAT_EVENT_CALL_ARGUMENTS, view_of(literal));
}

static void arguments_escaped(chat_output *o, view v)
{
    if (v.length == 0)
        return;
    queued_event *e = event_open(o, CHAT_EVENT_CALL_ARGUMENTS);
    size_t before = o->queued.length;
    python_escape_add(&o->queued, v.data, v.length);
    e->bytes += o->queued.length - before;
}

bool chat_output_next(chat_output *o, chat_event *event)
{
    if (o->event_next == o->event_count)
        return false;
    const queued_event *e = &o->events[o->event_next++];
    *event = e->event;
    event->text = (view){o->queued.data ? o->queued.data + e->offset : "", e->bytes};
    return true;
}

static void queue_reuse(chat_output *o)
{
    if (o->event_next < o->event_count)
        return;
    o->event_next = o->event_count = 0;
    text_clear(&o->queued);
}

/* ---- content ---- */

static void content_text(chat_output *o, view v)
{
    view visible = schema_trim(v);
    if (visible.length == 0) {
        if (o->content_started)
            text_add(&o->held, v.data, v.length);
        return;
    }
    size_t before = (size_t)(visible.data - v.data), after = v.length - before - visible.length;
    if (o->content_started)
        text_add(&o->held, v.data, before);
    event_text(o, CHAT_EVENT_CONTENT, (view){o->held.data, o->held.length});
    event_text(o, CHAT_EVENT_CONTENT, visible);
    text_clear(&o->held);
    text_add(&o->held, visible.data + visible.length, after);
    o->held_kept = 0;
    o->run_visible = o->content_started = true;
}

/* A run of content ends at a control token. White space alone between two of them is no content. */
static void content_run_end(chat_output *o)
{
    if (!o->run_visible && o->held.data) {
        o->held.length = o->held_kept;
        o->held.data[o->held.length] = '\0';
    }
    o->held_kept = o->held.length;
    o->run_visible = false;
}

/* ---- calls ---- */

static void call_begin(chat_output *o)
{
    text_clear(&o->name);
    json_object_clear(o->keys);
    o->call_problems = 0;
    o->call_reported = false;
    o->parameters = NULL;
    o->state = STATE_NAME;
}

/* The name is complete. A call without one is followed but not reported. */
static void name_end(chat_output *o)
{
    view name = schema_trim((view){o->name.data, o->name.length});
    if (name.length == 0) {
        o->call_problems |= CHAT_PROBLEM_NAMELESS_CALL;
        return;
    }
    if (!schema_find_tool(o->tools, name, &o->parameters))
        o->call_problems |= CHAT_PROBLEM_UNKNOWN_TOOL;
    o->call_reported = true;
    event_add(o, CHAT_EVENT_CALL_BEGIN)->bytes = name.length;
    text_add(&o->queued, name.data, name.length);
}

static void call_end(chat_output *o, bool complete)
{
    if (o->call_reported) {
        if (complete)
            arguments_text(o, json_object_size(o->keys) > 0 ? "}" : "{}");
        queued_event *e = event_add(o, CHAT_EVENT_CALL_END);
        e->event.complete = complete;
        e->event.problems = o->call_problems;
        o->any_complete |= complete;
        o->calls++;
    }
    o->problems |= o->call_problems;
    o->call_reported = false;
    o->state = STATE_CONTENT;
}

/* jansson's strict reader, and so our own, has no NUL in keys. */
static void key_repair(chat_output *o, view key, text *out)
{
    for (size_t i = 0; i < key.length; i++) {
        if (key.data[i] == '\0') {
            o->call_problems |= CHAT_PROBLEM_STRAY;
            text_add_utf8(out, 0xFFFD);
        } else {
            text_add_char(out, key.data[i]);
        }
    }
}

static void value_begin(chat_output *o)
{
    text key = {0};
    key_repair(o, schema_trim((view){o->key.data, o->key.length}), &key);
    view k = {key.data ? key.data : "", key.length};
    bool duplicate = json_object_getn(o->keys, k.data, k.length) != NULL;
    if (duplicate)
        o->call_problems |= CHAT_PROBLEM_DUPLICATE_KEY;
    o->value_skipped = duplicate || !o->call_reported;
    o->types = schema_property_types(o->parameters, k);
    text_clear(&o->value);
    o->state = STATE_VALUE;
    if (!o->value_skipped) {
        arguments_text(o, json_object_size(o->keys) > 0 ? ", \"" : "{\"");
        arguments_escaped(o, k);
        arguments_text(o, o->types == SCHEMA_STRING ? "\": \"" : "\": ");
        json_object_setn_new(o->keys, k.data, k.length, json_true());
    }
    text_free(&key);
}

static void value_end(chat_output *o)
{
    o->state = STATE_BETWEEN;
    if (o->value_skipped)
        return;
    if (o->types == SCHEMA_STRING) {
        arguments_text(o, "\"");
        return;
    }
    text json = {0};
    if (!schema_value_add(&json, (view){o->value.data ? o->value.data : "", o->value.length}, o->types))
        o->call_problems |= CHAT_PROBLEM_TYPE;
    event_text(o, CHAT_EVENT_CALL_ARGUMENTS, (view){json.data, json.length});
    text_free(&json);
}

/* ---- text and control tokens ---- */

static void handle_text(chat_output *o, view v)
{
    switch (o->state) {
    case STATE_REASONING: event_text(o, CHAT_EVENT_REASONING, v); break;
    case STATE_CONTENT: content_text(o, v); break;
    case STATE_NAME: text_add(&o->name, v.data, v.length); break;
    case STATE_KEY: text_add(&o->key, v.data, v.length); break;
    case STATE_VALUE:
        if (!o->value_skipped && o->types == SCHEMA_STRING)
            arguments_escaped(o, v);
        else if (!o->value_skipped)
            text_add(&o->value, v.data, v.length);
        break;
    default:
        if (schema_trim(v).length > 0)
            o->call_problems |= CHAT_PROBLEM_STRAY;
    }
}

static bool in_call(const chat_output *o)
{
    return o->state >= STATE_NAME && o->state <= STATE_VALUE;
}

static void finish(chat_output *o, chat_finish how)
{
    if (in_call(o)) {
        o->call_problems |= CHAT_PROBLEM_UNCLOSED;
        call_end(o, false);
    }
    event_add(o, CHAT_EVENT_FINISH)->event.finish = how == CHAT_FINISH_STOP && o->any_complete ? CHAT_FINISH_CALLS : how;
    o->events[o->event_count - 1].event.problems = o->problems;
    o->state = STATE_FINISHED;
}

static void handle_think(chat_output *o, chat_control c)
{
    if (o->state == STATE_CONTENT) {
        content_run_end(o);
        if (c == CHAT_THINK)
            o->state = STATE_REASONING;
        else
            o->problems |= CHAT_PROBLEM_STRAY;
    } else if (o->state == STATE_REASONING) {
        o->state = c == CHAT_THINK ? STATE_REASONING : STATE_CONTENT;
    } else {
        o->call_problems |= CHAT_PROBLEM_STRAY;
    }
}

static void handle_call(chat_output *o)
{
    if (o->state == STATE_CONTENT)
        content_run_end(o);
    if (o->state == STATE_NAME)
        name_end(o);
    if (in_call(o)) {
        o->call_problems |= CHAT_PROBLEM_UNCLOSED;
        call_end(o, o->state == STATE_NAME || o->state == STATE_BETWEEN);
    }
    call_begin(o);
}

static void handle_call_end(chat_output *o)
{
    if (o->state == STATE_NAME)
        name_end(o);
    if (o->state == STATE_KEY || o->state == STATE_AFTER_KEY)
        o->call_problems |= CHAT_PROBLEM_STRAY;
    if (o->state == STATE_VALUE) {
        o->call_problems |= CHAT_PROBLEM_UNCLOSED;
        value_end(o);
    }
    call_end(o, true);
}

static void handle_key(chat_output *o)
{
    if (o->state == STATE_NAME)
        name_end(o);
    else if (o->state != STATE_BETWEEN)
        o->call_problems |= CHAT_PROBLEM_STRAY; /* the key before this one has no value */
    text_clear(&o->key);
    o->state = STATE_KEY;
}

/* Control tokens inside a call, other than those that begin or end something larger. */
static void handle_argument(chat_output *o, chat_control c)
{
    if (c == CHAT_KEY) {
        handle_key(o);
    } else if (c == CHAT_KEY_END && o->state == STATE_KEY) {
        o->state = STATE_AFTER_KEY;
    } else if (c == CHAT_VALUE && (o->state == STATE_AFTER_KEY || o->state == STATE_KEY)) {
        if (o->state == STATE_KEY)
            o->call_problems |= CHAT_PROBLEM_UNCLOSED;
        value_begin(o);
    } else {
        o->call_problems |= CHAT_PROBLEM_STRAY;
    }
}

static void handle_end_of_turn(chat_output *o, chat_control c)
{
    /* <|observation|> asks for the result of a call, so that a call with whole arguments only lacks its end. */
    if (c == CHAT_OBSERVATION && (o->state == STATE_NAME || o->state == STATE_BETWEEN)) {
        if (o->state == STATE_NAME)
            name_end(o);
        o->call_problems |= CHAT_PROBLEM_UNCLOSED;
        call_end(o, true);
    }
    finish(o, CHAT_FINISH_STOP);
}

/* Tokens of the prompt's frame, which mean nothing in an answer. */
static bool is_frame(chat_control c)
{
    return c == CHAT_GMASK || c == CHAT_SOP || c == CHAT_SYSTEM || c == CHAT_ASSISTANT;
}

static void handle_control(chat_output *o, chat_control c)
{
    if (c == CHAT_END_OF_TEXT || c == CHAT_USER || c == CHAT_OBSERVATION)
        handle_end_of_turn(o, c);
    else if (is_frame(c))
        o->problems |= CHAT_PROBLEM_STRAY;
    else if (o->state == STATE_VALUE && c == CHAT_VALUE_END)
        value_end(o);
    else if (o->state == STATE_VALUE && c != CHAT_CALL_END)
        handle_text(o, view_of(chat_control_text(c))); /* a value may quote the format */
    else if (c == CHAT_THINK || c == CHAT_THINK_END)
        handle_think(o, c);
    else if (c == CHAT_CALL)
        handle_call(o);
    else if (!in_call(o))
        handle_text(o, view_of(chat_control_text(c))); /* so may an answer */
    else if (c == CHAT_CALL_END)
        handle_call_end(o);
    else
        handle_argument(o, c);
}

/* Ends an incomplete character. */
static void flush_characters(chat_output *o)
{
    text_clear(&o->piece);
    token_stream_flush(&o->characters, &o->piece);
    handle_text(o, (view){o->piece.data, o->piece.length});
}

bool chat_output_add(chat_output *o, int32_t id)
{
    if (o->state == STATE_FINISHED)
        return false;
    queue_reuse(o);
    chat_control c = chat_format_control(o->format, id);
    if (c != CHAT_TEXT) {
        flush_characters(o);
        handle_control(o, c);
    } else if (tokenizer_is_special(o->tokens, id)) {
        o->problems |= CHAT_PROBLEM_STRAY;
    } else {
        text_clear(&o->piece);
        token_stream_add(&o->characters, o->tokens, id, &o->piece);
        handle_text(o, (view){o->piece.data, o->piece.length});
    }
    return o->state != STATE_FINISHED;
}

void chat_output_end(chat_output *o)
{
    if (o->state == STATE_FINISHED)
        return;
    queue_reuse(o);
    flush_characters(o);
    if (o->run_visible)
        event_text(o, CHAT_EVENT_CONTENT, (view){o->held.data, o->held.length});
    finish(o, CHAT_FINISH_CUT);
}
