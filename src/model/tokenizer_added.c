/* The search for added tokens: leftmost first, of several at one place the longest. An occurrence that single_word rules out
 * is skipped whole: the search goes on behind it, not inside it. */
#include "model/tokenizer_added.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/unicode_tables.h"

static uint32_t node_new(added_set *s, unsigned char byte)
{
    if (s->node_count == s->node_capacity) {
        s->node_capacity = s->node_capacity ? s->node_capacity * 2 : 256;
        s->nodes = mem_grow(s->nodes, s->node_capacity, sizeof *s->nodes);
    }
    s->nodes[s->node_count] = (added_node){0, 0, -1, byte};
    return (uint32_t)s->node_count++;
}

static uint32_t node_child(const added_set *s, uint32_t node, unsigned char byte)
{
    uint32_t c = s->nodes[node].child;
    while (c && s->nodes[c].byte != byte)
        c = s->nodes[c].sibling;
    return c;
}

static uint32_t node_child_or_new(added_set *s, uint32_t node, unsigned char byte)
{
    uint32_t c = node_child(s, node, byte);
    if (c)
        return c;
    c = node_new(s, byte);
    s->nodes[c].sibling = s->nodes[node].child;
    s->nodes[node].child = c;
    return c;
}

void added_set_add(added_set *s, added_token token)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? s->capacity * 2 : 32;
        s->tokens = mem_grow(s->tokens, s->capacity, sizeof *s->tokens);
    }
    if (s->node_count == 0)
        node_new(s, 0);
    uint32_t node = 0;
    for (size_t i = 0; i < token.content.length; i++)
        node = node_child_or_new(s, node, (unsigned char)token.content.data[i]);
    s->root[(unsigned char)token.content.data[0]] = node_child(s, 0, (unsigned char)token.content.data[0]);
    s->nodes[node].token = (int32_t)s->count;
    s->tokens[s->count++] = token;
}

void added_set_free(added_set *s)
{
    free(s->tokens);
    free(s->nodes);
    *s = (added_set){0};
}

/* The longest token that begins at `at`, whose first byte leads to `node`. */
static const added_token *longest_at(const added_set *s, view sentence, size_t at, uint32_t node)
{
    int32_t best = s->nodes[node].token;
    for (size_t i = at + 1; i < sentence.length && (node = node_child(s, node, (unsigned char)sentence.data[i])) != 0; i++)
        if (s->nodes[node].token >= 0)
            best = s->nodes[node].token;
    return best < 0 ? NULL : &s->tokens[best];
}

/* Start of the character that ends at `end` > 0; invalid UTF-8 counts byte by byte. */
static size_t character_before(view sentence, size_t end, uint32_t *code_point)
{
    for (size_t n = 1; n <= 4 && n <= end; n++)
        if (utf8_decode(sentence.data + end - n, n, code_point) == (int)n)
            return end - n;
    *code_point = 0;
    return end - 1;
}

/* End of the character at `start` < sentence.length. */
static size_t character_after(view sentence, size_t start, uint32_t *code_point)
{
    int n = utf8_decode(sentence.data + start, sentence.length - start, code_point);
    if (n == 0)
        *code_point = 0;
    return start + (n ? (size_t)n : 1);
}

static bool word_touches(view sentence, size_t start, size_t end)
{
    uint32_t before = 0, after = 0;
    if (start > 0)
        character_before(sentence, start, &before);
    if (end < sentence.length)
        character_after(sentence, end, &after);
    return unicode_is_word(before) || unicode_is_word(after);
}

static size_t spaces_start(view sentence, size_t end)
{
    uint32_t c;
    for (size_t start; end > 0; end = start) {
        start = character_before(sentence, end, &c);
        if (unicode_class_of(c) != UNICODE_SPACE)
            break;
    }
    return end;
}

static size_t spaces_end(view sentence, size_t start)
{
    uint32_t c;
    for (size_t end; start < sentence.length; start = end) {
        end = character_after(sentence, start, &c);
        if (unicode_class_of(c) != UNICODE_SPACE)
            break;
    }
    return start;
}

bool added_set_next(const added_set *s, view sentence, size_t *from, added_match *out)
{
    for (size_t at = *from; at < sentence.length; at++) {
        uint32_t node = s->root[(unsigned char)sentence.data[at]];
        const added_token *t = node ? longest_at(s, sentence, at, node) : NULL;
        if (!t)
            continue;
        size_t end = at + t->content.length;
        if (t->single_word && word_touches(sentence, at, end)) {
            at = end - 1;
            continue;
        }
        *from = end;
        *out = (added_match){t, at, end};
        if (t->lstrip)
            out->start = spaces_start(sentence, at);
        if (t->rstrip)
            out->end = spaces_end(sentence, end);
        return true;
    }
    return false;
}
