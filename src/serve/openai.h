/* What the OpenAI endpoints share: from a request to what to generate (openai_request.c), and the answer that is put together while it is
 * generated (openai_job.c, openai_reply.c). docs/api_openai.md describes both sides. */
#ifndef SERVE_OPENAI_H
#define SERVE_OPENAI_H

#include "serve/fields.h"
#include "serve/generation.h"

enum { OPENAI_TOOLS_MOST = 1024, OPENAI_PROMPTS_MOST = 64, OPENAI_CHOICES_MOST = 128, OPENAI_HEX_BYTES_MOST = 16 };

/* ---- requests ---- */

/* What is needed of a server to understand a request. */
typedef struct openai_context {
    const tokenizer *tokenizer;
    const chat_format *format; /* NULL: none; chats are refused */
    sampler_params defaults;
    const char *model_name;
} openai_context;

openai_context openai_context_of(const server *s);

/* Reads a body, checks the model's name, and renders and tokenizes the conversation into r->spec. api_request_free in any case. */
bool openai_chat_read(const openai_context *c, const json_t *body, api_request *r, request_error *e);

/* The prompts of a completion. */
typedef struct openai_prompts {
    token_list *tokens; /* [count] */
    int count;
} openai_prompts;

/* As above; r->spec has no prompt. openai_prompts_free in any case. */
bool openai_completions_read(const openai_context *c, const json_t *body, api_request *r, openai_prompts *p, request_error *e);
void openai_prompts_free(openai_prompts *p);

/* Random bytes from the system as lower-case hexadecimal digits: 2 * bytes of them and a terminator. */
void openai_random_hex(char *out, int bytes);
uint64_t openai_random_seed(void);

/* ---- answers ---- */

/* One choice of the answer, while it comes. */
typedef struct openai_part {
    text content, reasoning; /* streaming: what was not sent yet */
    bool reasoning_over; /* something came after the reasoning */
    json_t *calls;       /* tool_calls, an array; streaming: what was not sent yet. NULL: none */
    text arguments;      /* of its newest entry, until it is put there */
    int call;            /* index of that entry's call */
    json_t *logprobs;    /* chat: array; completions: object; streaming: what was not sent yet. NULL: none */
    json_t *ids;         /* token_ids, likewise */
    size_t text_offset;  /* completions: characters before the next token, for logprobs */
    bool begun;          /* streaming: the first chunk was sent */
    const char *finish;  /* finish_reason; NULL: still coming */
    json_t *matched;     /* matched_stop */
} openai_part;

typedef struct openai_job openai_job;

/* A generation of the job: the context of its sink. */
typedef struct openai_source {
    openai_job *job;
    generation *generation; /* NULL: not running */
    int first_part;         /* index of its first choice among the job's */
    json_t *prompt_ids;     /* NULL: not asked for */
} openai_source;

/* An answer on its way to a client. */
struct openai_job {
    server *server;
    http_exchange *exchange;
    const tenant *who;
    json_t *body;           /* until it starts */
    api_request request;
    char id[280];
    char user[72];          /* to be logged; "": nobody */
    int64_t created;
    openai_source *sources; /* [source_count] */
    int source_count, running;
    openai_part *parts;     /* [part_count], in the order of "index" */
    int part_count;
    generation_usage done;  /* of the generations that are done */
    generation_usage usage; /* of all, for the next reply */
    int depth;              /* sink functions on the stack */
    bool over;              /* replied, or the client has gone: freed when depth is 0 */
};

/* Takes the body's reference. The job lives until it has replied. */
openai_job *openai_job_new(server *s, http_exchange *x, const tenant *who, json_t *body);

/* Frees a job that did not start. */
void openai_job_free(openai_job *j);

/* Submits a generation for each of the prompts, whose memory is released, and begins to reply; a refusal is replied at once. */
void openai_job_start(openai_job *j, token_list *prompts, int count);

/* Replies with an error in OpenAI's form. */
void openai_reply_problem(server *s, http_exchange *x, const tenant *who, const request_error *e);

/* What openai_job.c asks openai_reply.c to make. */
json_t *openai_error_json(int status, const char *param, const char *code, const char *message);
json_t *openai_answer(const openai_job *j);                     /* the whole answer */
json_t *openai_chunk(const openai_job *j, int part, bool last); /* what is new of a part; NULL: nothing */
json_t *openai_usage_chunk(const openai_job *j);                /* choices [] and usage */
void openai_tokens_add(openai_job *j, int part, const generation_token *tokens, int count);
void openai_piece_add(openai_job *j, int part, const chat_event *piece);
void openai_part_free(openai_part *p);

#endif
