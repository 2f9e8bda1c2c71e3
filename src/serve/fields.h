/* Request fields of the OpenAI APIs: one table (fields_table.c) with a row for every field that OpenAI's, sglang's or vLLM's clients send.
 * A row stores the field's value in an api_request, or refuses it by name and says why. null and a value that changes nothing are
 * accepted everywhere. docs/api_openai.md has the same table, written by fields_markdown and compared by a test. */
#ifndef SERVE_FIELDS_H
#define SERVE_FIELDS_H

#include <jansson.h>

#include "serve/generation.h"

enum { API_CHAT = 1, API_COMPLETIONS = 2, API_BOTH = 3 };

/* What is wrong with a request, as OpenAI's clients want to know it. */
typedef struct request_error {
    error err;
    int status;       /* of HTTP */
    char param[64];   /* the field; "": none */
    const char *code; /* "context_length_exceeded", ...; NULL: none */
} request_error;

/* Sets status 400, the field and the sentence; returns false. */
bool request_refuse(request_error *e, const char *param, const char *words, ...) __attribute__((format(printf, 3, 4)));

/* The fields of a request. Pointers into JSON are borrowed from the body. */
typedef struct api_request {
    int api;                /* API_CHAT or API_COMPLETIONS */
    generation_spec spec;   /* owned; the sampling part is filled from the fields, the prompt afterwards */
    const json_t *messages, *prompt, *tools, *tool_choice, *input_ids;
    const char *model, *user, *rid, *request_id, *cache_salt, *extra_key, *reasoning_effort;
    chat_switch enable_thinking, clear_thinking, thinking;
    const char *template_effort; /* chat_template_kwargs.reasoning_effort */
    bool stream, include_usage, continuous_usage;
    bool parallel_calls, continue_final;
    chat_switch add_generation_prompt;
    bool separate_reasoning, stream_reasoning, include_reasoning;
    bool logprobs;          /* chat */
    int top_logprobs;       /* chat; -1: not given */
    int logprob_count;      /* completions; -1: not given */
    bool return_token_ids, return_prompt_token_ids, return_cached_details, return_spec_details;
    bool echo, skip_special, no_stop_trim, include_stop;
    int max_tokens, max_completion_tokens, best_of; /* 0: not given */
    bool has_seed;
} api_request;

/* Reads a body into r: defaults are the model's, ids are those of a tokenizer of vocab tokens. api_request_free in any case. */
bool fields_read(const json_t *body, int api, const sampler_params *defaults, int vocab, api_request *r, request_error *e);
void api_request_free(api_request *r);

/* ---- the table ---- */

typedef enum field_type {
    FIELD_BOOL,   /* bool */
    FIELD_INT,    /* int */
    FIELD_NUMBER, /* double */
    FIELD_STRING, /* const char *; least and most are bytes */
    FIELD_ARRAY,  /* const json_t * */
    FIELD_OBJECT, /* const json_t * */
    FIELD_ANY,    /* const json_t * */
    FIELD_SWITCH, /* chat_switch, from true or false */
} field_type;

typedef struct field_reading {
    const char *name;
    const json_t *value; /* not null */
    int vocab;
    api_request *request;
    request_error *e;
} field_reading;

typedef struct field {
    const char *name;
    int apis;
    field_type type;
    double least, most;  /* both ends allowed; both 0: any */
    size_t offset;       /* of the value in api_request; FIELD_NOWHERE: accepted without effect */
    bool (*store)(const field_reading *r); /* instead of offset */
    const char *neutral; /* refused fields: a JSON array of the values that are accepted because they change nothing */
    const char *refused; /* why, and what to use instead; NULL: the field works */
    const char *words;   /* what it does */
} field;

#define FIELD_NOWHERE ((size_t)-1)

extern const field fields_table[];
extern const size_t fields_count;

/* The row of a field in an API; NULL: unknown. */
const field *fields_find(const char *name, int api);

/* The table of docs/api_openai.md. */
void fields_markdown(text *out);

/* Stores a whole array of token ids of a vocabulary; where names it in errors. */
bool fields_token_ids(const json_t *array, int vocab, const char *param, const char *where, token_list *out, request_error *e);

#endif
