/* Added tokens: strings that become a token of their own before anything else looks at the text. */
#ifndef MODEL_TOKENIZER_ADDED_H
#define MODEL_TOKENIZER_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

typedef struct added_token {
    view content;
    int32_t id;
    bool lstrip, rstrip; /* also takes the spaces before, after it */
    bool single_word;    /* not where a word character touches it */
} added_token;

/* A node of the trie; the children of a node are a list. */
typedef struct added_node {
    uint32_t child, sibling; /* nodes; 0 for none */
    int32_t token;           /* index of the token that ends here, -1 for none */
    unsigned char byte;
} added_node;

/* A set of added tokens that are looked for together. Zero-initialise to create one. */
typedef struct added_set {
    added_token *tokens; /* [count] */
    added_node *nodes;   /* [node_count], the root is node 0 */
    uint32_t root[256];  /* node after a first byte, 0 for none: most bytes of a text stop here */
    size_t count, capacity, node_count, node_capacity;
} added_set;

/* An occurrence: the token, and the bytes of the text it stands for, stripped spaces included. */
typedef struct added_match {
    const added_token *token;
    size_t start, end;
} added_match;

void added_set_add(added_set *s, added_token token); /* its content, not empty, must outlive the set */
void added_set_free(added_set *s);

/* The next occurrence at or after *from; *from moves to where the search goes on. The spaces it strips may be spaces that an
 * earlier occurrence took already. */
bool added_set_next(const added_set *s, view sentence, size_t *from, added_match *out);

#endif
