#include "serve/anthropic_answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/random.h"

typedef enum block_kind { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL } block_kind;

enum { ID_LETTERS = 24, ID_BYTES = 40 };

struct anthropic_answer {
    anthropic_answer_options options;
    char id[ID_BYTES];
    uint64_t ids;        /* made so far */
    json_t *content;     /* gathered: the blocks that are complete */
    block_kind kind;     /* of the block that is open */
    int index;           /* of the open block, or the next one */
    text words;          /* of the open block: all of it (gathered), or what was not sent yet */
    char call_id[ID_BYTES];
    char *call_name;     /* owned; of an open call */
    bool left_open;      /* a call of the stream ended incomplete */
};

/* prefix and 24 letters and digits. */
static void make_id(anthropic_answer *a, const char *prefix, char out[ID_BYTES])
{
    static const char letters[] = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    size_t at = strlen(prefix);
    uint64_t n = a->ids++;
    memcpy(out, prefix, at);
    for (size_t i = 0; i < ID_LETTERS; i++)
        out[at++] = letters[random_word(a->options.seed, n, i) % (sizeof letters - 1)];
    out[at] = '\0';
}

anthropic_answer *anthropic_answer_create(const anthropic_answer_options *options)
{
    anthropic_answer *a = mem_alloc(1, sizeof *a);
    a->options = *options;
    a->content = json_array();
    make_id(a, "msg_", a->id);
    return a;
}

void anthropic_answer_free(anthropic_answer *a)
{
    if (!a)
        return;
    json_decref(a->content);
    text_free(&a->words);
    free(a->call_name);
    free(a);
}

static bool streams(const anthropic_answer *a)
{
    return a->options.send != NULL;
}

static void send_typed(anthropic_answer *a, const char *type, json_t *value)
{
    json_t *typed = json_pack("{s:s}", "type", type);
    json_object_update_new(typed, value);
    a->options.send(a->options.context, type, typed);
}

/* input_tokens are those that had to be computed; the cache fills itself, so none are "written" to it. */
static json_t *usage_json(const generation_usage *u)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "input_tokens", u->prompt_tokens - u->cached_tokens, "cache_creation_input_tokens", 0,
                     "cache_read_input_tokens", u->cached_tokens, "output_tokens", u->completion_tokens);
}

static json_t *message_json(anthropic_answer *a, const generation_usage *usage)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:O, s:n, s:n, s:o}", "id", a->id, "type", "message", "role", "assistant", "model",
                     a->options.model, "content", a->content, "stop_reason", "stop_sequence", "usage", usage_json(usage));
}

void anthropic_answer_begin(anthropic_answer *a, const generation_usage *usage)
{
    if (!streams(a))
        return;
    send_typed(a, "message_start", json_pack("{s:o}", "message", message_json(a, usage)));
    send_typed(a, "ping", json_object());
}

/* ---- blocks ---- */

static void send_delta(anthropic_answer *a, const char *type, const char *key)
{
    json_t *delta = json_pack("{s:s}", "type", type);
    json_object_set_new(delta, key, json_stringn(a->words.data ? a->words.data : "", a->words.length));
    send_typed(a, "content_block_delta", json_pack("{s:i, s:o}", "index", a->index, "delta", delta));
    text_clear(&a->words);
}

void anthropic_answer_step(anthropic_answer *a)
{
    static const char *const deltas[][2] = {[BLOCK_THINKING] = {"thinking_delta", "thinking"}, [BLOCK_TEXT] = {"text_delta", "text"},
                                            [BLOCK_CALL] = {"input_json_delta", "partial_json"}};
    if (streams(a) && a->kind != BLOCK_NONE && a->words.length > 0)
        send_delta(a, deltas[a->kind][0], deltas[a->kind][1]);
}

/* The block as it stands; words of a call are its input. NULL when they are not an object. */
static json_t *block_json(anthropic_answer *a)
{
    error unused = {0};
    const char *words = a->words.data ? a->words.data : "";
    if (a->kind == BLOCK_THINKING)
        return json_pack("{s:s, s:s%, s:s}", "type", "thinking", "thinking", words, a->words.length, "signature", "");
    if (a->kind == BLOCK_TEXT)
        return json_pack("{s:s, s:s%}", "type", "text", "text", words, a->words.length);
    json_t *input = a->words.length ? json_parse(words, a->words.length, "input", &unused) : json_object();
    if (!json_is_object(input)) {
        json_decref(input);
        return NULL;
    }
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", a->call_id, "name", a->call_name, "input", input);
}

static void block_open(anthropic_answer *a, block_kind kind)
{
    a->kind = kind;
    if (streams(a))
        send_typed(a, "content_block_start", json_pack("{s:i, s:o}", "index", a->index, "content_block", block_json(a)));
}

/* whole: for a call, that its input is complete. */
static void block_close(anthropic_answer *a, bool whole)
{
    if (a->kind == BLOCK_NONE)
        return;
    if (streams(a)) {
        anthropic_answer_step(a);
        if (a->kind == BLOCK_THINKING)
            send_delta(a, "signature_delta", "signature");
        send_typed(a, "content_block_stop", json_pack("{s:i}", "index", a->index));
        a->left_open |= !whole;
    } else if (whole) {
        json_t *block = block_json(a);
        if (block)
            json_array_append_new(a->content, block);
    }
    a->index++;
    a->kind = BLOCK_NONE;
    text_clear(&a->words);
    free(a->call_name);
    a->call_name = NULL;
}

static void words_piece(anthropic_answer *a, block_kind kind, view words)
{
    if (words.length == 0)
        return;
    if (a->kind != kind) {
        block_close(a, a->kind != BLOCK_CALL);
        block_open(a, kind);
    }
    if (kind != BLOCK_THINKING || !a->options.hides_thinking)
        text_add(&a->words, words.data, words.length);
}

void anthropic_answer_piece(anthropic_answer *a, const chat_event *piece)
{
    switch (piece->kind) {
    case CHAT_EVENT_REASONING: words_piece(a, BLOCK_THINKING, piece->text); break;
    case CHAT_EVENT_CONTENT: words_piece(a, BLOCK_TEXT, piece->text); break;
    case CHAT_EVENT_CALL_BEGIN:
        block_close(a, a->kind != BLOCK_CALL);
        a->call_name = mem_copy(piece->text.data, piece->text.length);
        make_id(a, "toolu_", a->call_id);
        block_open(a, BLOCK_CALL);
        break;
    case CHAT_EVENT_CALL_ARGUMENTS: text_add(&a->words, piece->text.data, piece->text.length); break;
    case CHAT_EVENT_CALL_END: block_close(a, piece->complete); break;
    case CHAT_EVENT_FINISH: break;
    }
}

/* ---- the end ---- */

static const char *stop_reason(const anthropic_answer *a, const generation_finish *f)
{
    if (f->end == GENERATION_CALLS)
        return "tool_use";
    if (f->end == GENERATION_LENGTH)
        return a->options.clipped ? "model_context_window_exceeded" : "max_tokens";
    return f->stop_text ? "stop_sequence" : "end_turn";
}

json_t *anthropic_answer_end(anthropic_answer *a, const generation_finish *f, const generation_usage *usage)
{
    block_close(a, a->kind != BLOCK_CALL);
    const char *reason = stop_reason(a, f);
    const char *sequence = f->end == GENERATION_STOP ? f->stop_text : NULL;
    if (!streams(a)) {
        json_t *message = message_json(a, usage);
        json_object_set_new(message, "stop_reason", json_string(reason));
        json_object_set_new(message, "stop_sequence", sequence ? json_string(sequence) : json_null());
        return message;
    }
    if (a->left_open && f->end != GENERATION_LENGTH) {
        anthropic_answer_fail(a, 500, "the model ended its turn inside a tool call, whose input is therefore not complete; try again");
        return NULL;
    }
    json_t *delta = json_pack("{s:s, s:s?}", "stop_reason", reason, "stop_sequence", sequence);
    send_typed(a, "message_delta", json_pack("{s:o, s:o}", "delta", delta, "usage", usage_json(usage)));
    send_typed(a, "message_stop", json_object());
    return NULL;
}

void anthropic_answer_fail(anthropic_answer *a, int status, const char *sentence)
{
    const char *type = status == 504 ? "timeout_error" : status == 503 ? "overloaded_error" : "api_error";
    send_typed(a, "error", json_pack("{s:{s:s, s:s}}", "error", "type", type, "message", sentence));
}

int anthropic_finish_status(generation_end end)
{
    switch (end) {
    case GENERATION_ABORTED: return 503;
    case GENERATION_TIMEOUT: return 504;
    case GENERATION_FAILED: return 500;
    default: return 0;
    }
}
