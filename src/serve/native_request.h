/* Requests of the native API, in the forms of sglang and vLLM: /generate, /tokenize, /detokenize. Nothing here knows the server: see
 * native.c. One table has every field; docs/api_native.md has the same. A field either has its effect or is refused by its name; null, and
 * values that change nothing, are accepted everywhere. */
#ifndef SERVE_NATIVE_REQUEST_H
#define SERVE_NATIVE_REQUEST_H

#include "serve/generation.h"

enum { NATIVE_PROMPTS_MOST = 64, NATIVE_MAX_NEW_TOKENS = 128 };

/* A request to /generate that was read. */
typedef struct native_request {
    token_list *prompts;  /* [count], owned */
    int count;
    bool list;            /* text or input_ids was a list of prompts: the answer is a list */
    generation_spec spec; /* owned; everything but prompt and rid */
    char **rids;          /* [count], owned; NULL: not given */
    bool max_given;       /* max_new_tokens was given; else it is NATIVE_MAX_NEW_TOKENS or what there is room for */
    bool stream;
    bool logprobs;        /* return_logprob */
    int top_logprobs;
    bool logprob_text;    /* return_text_in_logprobs */
    bool prompt_ids;      /* return_prompt_token_ids */
    /* as they came; borrowed */
    const json_t *text, *input_ids, *rid;
    const char *cache_salt, *extra_key;
    int64_t seed;         /* -1: not given */
} native_request;

/* t: for the prompts and the range of ids. native_request_free in any case. */
bool native_request_read(const json_t *body, const tokenizer *t, native_request *out, error *err);
void native_request_free(native_request *r);

/* /tokenize: the tokens of each prompt, or of a conversation (f NULL: those are refused). */
typedef struct native_tokenize {
    token_list *lists; /* [count], owned */
    int count;
    bool list;         /* prompt was a list */
    bool strings;      /* return_token_strs */
} native_tokenize;

bool native_tokenize_read(const json_t *body, const tokenizer *t, const chat_format *f, native_tokenize *out, error *err);
void native_tokenize_free(native_tokenize *r);

/* /detokenize: the texts of one list of tokens or of several. */
typedef struct native_detokenize {
    text *texts; /* [count], owned */
    int count;
    bool list;   /* tokens was a list of lists */
} native_detokenize;

bool native_detokenize_read(const json_t *body, const tokenizer *t, native_detokenize *out, error *err);
void native_detokenize_free(native_detokenize *r);

#endif
