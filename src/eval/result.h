/* The results of one run as a JSON document: what --json prints, what --out keeps, and what two runs are compared by.
 *
 *     {"format": "drawbridge eval 1", "task", "model", "options": {...}, "options_hash", "complete": bool,
 *      "items": [{"id", "prompt", ...}], "summary": {...}}
 *
 * An item of an accuracy task has "correct"; of perplexity "tokens" and "nll" (sum); of divergence "tokens", "kl" (array) and
 * "agree" (count). "prompt" is a hash of what was asked, so that two runs are compared only where they asked the same.
 *
 * With a path the document is written every few seconds, atomically; a run with the same options continues it. */
#ifndef EVAL_RESULT_H
#define EVAL_RESULT_H

#include "base/json.h"
#include "base/text.h"

typedef struct eval_result {
    json_t *document;  /* everything but the items */
    json_t **records;  /* [count] what is known of each item; NULL: not done */
    size_t count, done;
    size_t resumed;    /* of the done ones, found in the file */
    char *path;        /* NULL: kept in memory only */
    uint64_t saved_us; /* when it was written last */
} eval_result;

/* ids and prompts: [count] each, borrowed during the call. options: what must be equal to go on with a file; its reference is
 * taken. Zero r before; eval_result_free in any case. */
bool eval_result_open(eval_result *r, const char *path, const char *task, const char *model, json_t *options, const char *const *ids,
                      const char *const *prompts, size_t count, error *err);
void eval_result_free(eval_result *r);

/* Keeps a record (its reference is taken; it needs "id" and "prompt"); writes the file when the last time is some seconds ago. */
bool eval_result_set(eval_result *r, size_t index, json_t *record, error *err);

/* Writes the file, if any; complete when every item is done. */
bool eval_result_save(eval_result *r, error *err);

/* The document with items and summary; a new reference. */
json_t *eval_result_document(const eval_result *r);

/* Items right so far, for a running score. */
size_t eval_result_correct(const eval_result *r);

/* Reads a saved document; NULL on failure. */
json_t *eval_document_load(const char *path, error *err);

/* Lines for people: score and interval, and by group. */
void eval_document_print(const json_t *document, text *out);

/* Baseline against candidate over the items both have. *comparison receives a JSON object (a new reference), out the table. */
bool eval_documents_compare(const json_t *baseline, const json_t *candidate, json_t **comparison, text *out, error *err);

#endif
