/* The items of an evaluation: read from a file, or made. Reading checks everything; errors name the file and the line. */
#ifndef EVAL_ITEMS_H
#define EVAL_ITEMS_H

#include "base/json.h"
#include "base/sha256.h"
#include "model/tokenizer.h"

typedef struct eval_item {
    char *id;      /* "1", "2", ... by line or row; with several orders of the choices "7/2": row 7, order 2 */
    char *group;   /* what results are also shown by (a length, a seed); NULL: nothing */
    json_t *data;  /* the checked object */
} eval_item;

/* Zero-initialise to create one; eval_items_free in any case. */
typedef struct eval_items {
    eval_item *items; /* [count] */
    size_t count, capacity;
    char source[SHA256_TEXT_BYTES]; /* SHA-256 of the file, or of the recipe of made items */
} eval_items;

void eval_items_free(eval_items *s);
void eval_items_limit(eval_items *s, size_t most);         /* forgets items behind the first `most` */
void eval_items_drop_first(eval_items *s, size_t count);   /* forgets the first ones */

/* JSON Lines. Each of these checks its own form (docs/evaluation.md): */
bool items_read_questions(const char *path, eval_items *out, error *err); /* {"question", "answer"}: gsm8k */
bool items_read_choices(const char *path, eval_items *out, error *err);   /* {"question", "choices", "answer"} */
bool items_read_needles(const char *path, eval_items *out, error *err);   /* {"context", "question", "answer", "tokens"} */
bool items_read_calls(const char *path, eval_items *out, error *err);     /* {"messages", "tools", "call"} */

/* GPQA's CSV as choice items: each row once per seed first .. first + seeds - 1, the choices shuffled by it. */
bool items_read_gpqa(const char *path, uint64_t first_seed, int seeds, eval_items *out, error *err);

/* Needle items made up: for each length (tokens by t), `count` texts of neutral sentences with one fact at places spread evenly. */
bool items_make_needles(const tokenizer *t, const int *lengths, int length_count, int count, uint64_t seed, eval_items *out, error *err);

#endif
