#include "serve/native_request.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "serve/seed.h"

typedef enum row_type {
    ROW_BOOL,
    ROW_NOT,    /* a bool that is stored negated */
    ROW_INT,
    ROW_NUMBER,
    ROW_STRING, /* const char *, without NUL characters */
    ROW_VALUE,  /* const json_t *, looked at later */
    ROW_NONE,   /* checked to be a bool; without effect */
    ROW_READER,
    ROW_REFUSED,
} row_type;

typedef struct reading {
    native_request *r;
    int vocab;
    error *err;
} reading;

typedef struct row {
    const char *name;
    row_type type;
    size_t offset;       /* in native_request */
    double least, most;  /* of ROW_INT; both 0: any int */
    bool (*read)(const reading *c, const json_t *value, const char *path);
    const char *neutral; /* ROW_REFUSED: a JSON array of values that change nothing */
    const char *words;   /* ROW_REFUSED: why */
} row;

static bool refuse_type(const char *path, const char *expected, const json_t *found, error *err)
{
    return error_set(err, ERROR_INPUT, "%s: expected %s, found %s", path, expected, json_type_name(found));
}

/* ---- readers ---- */

static bool ids_read(const json_t *array, int vocab, const char *path, token_list *out, error *err)
{
    if (!json_is_array(array))
        return refuse_type(path, "an array of token ids", array, err);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *id = json_array_get(array, i);
        if (!json_is_integer(id))
            return error_set(err, ERROR_INPUT, "%s[%zu]: expected a token id, found %s", path, i, json_type_name(id));
        if (json_integer_value(id) < 0 || json_integer_value(id) >= vocab)
            return error_set(err, ERROR_INPUT, "%s[%zu]: the model's tokens go from 0 to %d, found %lld", path, i, vocab - 1,
                             (long long)json_integer_value(id));
        token_list_add(out, (int32_t)json_integer_value(id));
    }
    return true;
}

static bool read_stop_ids(const reading *c, const json_t *value, const char *path)
{
    if (json_array_size(value) > GENERATION_STOP_IDS_MOST)
        return error_set(c->err, ERROR_INPUT, "%s: at most %d ids, found %zu", path, GENERATION_STOP_IDS_MOST, json_array_size(value));
    return ids_read(value, c->vocab, path, &c->r->spec.stop_ids, c->err);
}

static bool stop_add(const reading *c, const json_t *stop, const char *path)
{
    generation_spec *s = &c->r->spec;
    size_t bytes = json_string_length(stop);
    if (!json_is_string(stop))
        return refuse_type(path, "a string or an array of strings", stop, c->err);
    if (bytes == 0 || bytes > GENERATION_STOP_BYTES_MOST || strlen(json_string_value(stop)) != bytes)
        return error_set(c->err, ERROR_INPUT, "%s: a stop string has 1 to %d bytes and no NUL character", path, GENERATION_STOP_BYTES_MOST);
    if (s->stop_count == GENERATION_STOPS_MOST)
        return error_set(c->err, ERROR_INPUT, "%s: at most %d stop strings", path, GENERATION_STOPS_MOST);
    s->stops[s->stop_count++] = mem_copy(json_string_value(stop), bytes);
    return true;
}

static bool read_stop(const reading *c, const json_t *value, const char *path)
{
    if (!json_is_array(value))
        return stop_add(c, value, path);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!stop_add(c, json_array_get(value, i), path))
            return false;
    return true;
}

/* -1 for all, as 2^30 and more in sglang. */
static bool read_top_k(const reading *c, const json_t *value, const char *path)
{
    if (!json_is_integer(value))
        return refuse_type(path, "an integer", value, c->err);
    json_int_t k = json_integer_value(value);
    if (k < -1 || k == 0)
        return error_set(c->err, ERROR_INPUT, "%s: must be at least 1, or -1 to keep every token, found %lld", path, (long long)k);
    c->r->spec.params.top_k = k > c->vocab ? -1 : (int)k;
    return true;
}

static bool read_max_new_tokens(const reading *c, const json_t *value, const char *path)
{
    if (!json_is_integer(value))
        return refuse_type(path, "an integer", value, c->err);
    json_int_t n = json_integer_value(value);
    if (n < 1 || n > INT32_MAX)
        return error_set(c->err, ERROR_INPUT, "%s: must be from 1 to %d, found %lld", path, INT32_MAX, (long long)n);
    c->r->spec.max_tokens = (int)n;
    c->r->max_given = true;
    return true;
}

static bool read_seed(const reading *c, const json_t *value, const char *path)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return error_set(c->err, ERROR_INPUT, "%s: expected an integer that is not negative", path);
    if (c->r->seed >= 0 && c->r->seed != json_integer_value(value))
        return error_set(c->err, ERROR_INPUT, "%s: seed and sampling_seed are the same field and have two values", path);
    c->r->seed = json_integer_value(value);
    return true;
}

static bool read_logit_bias(const reading *c, const json_t *value, const char *path)
{
    generation_spec *s = &c->r->spec;
    const char *key;
    const json_t *bias;
    if (!json_is_object(value))
        return refuse_type(path, "an object of token ids and numbers", value, c->err);
    s->bias = mem_alloc(json_object_size(value) + 1, sizeof *s->bias);
    json_object_foreach((json_t *)(uintptr_t)value, key, bias) {
        char *end;
        long id = strtol(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || (key[0] == '0' && key[1]) || *end || id >= c->vocab)
            return error_set(c->err, ERROR_INPUT, "%s: \"%.20s\" is not a token id; the model's tokens go from 0 to %d", path, key,
                             c->vocab - 1);
        if (!json_is_number(bias) || !(json_number_value(bias) >= -100 && json_number_value(bias) <= 100))
            return error_set(c->err, ERROR_INPUT, "%s.%s: expected a number from -100 to 100", path, key);
        s->bias[s->params.bias_count++] = (sampler_bias){(int32_t)id, (float)json_number_value(bias)};
    }
    s->params.bias = s->bias;
    return true;
}

static bool read_start_len(const reading *c, const json_t *value, const char *path)
{
    if (!json_is_integer(value) || json_integer_value(value) != -1)
        return error_set(c->err, ERROR_INPUT, "%s: log-probabilities of the prompt are not computed; only -1 is supported", path);
    return true;
}

static bool read_sampling(const reading *c, const json_t *value, const char *path);

/* ---- the table ---- */

#define AT(field) offsetof(native_request, field)
#define NO_GRAMMAR "structured output is not supported"
#define NO_MEDIA "this model reads text only"
#define NO_SPLIT "prefill and decode run in this one server"
#define NO_SESSION "there are no sessions; send the whole prompt, the prefix cache finds what it knows"
#define NO_LORA "there are no adapters"

static const row sampling_rows[] = {
    {"max_new_tokens", ROW_READER, 0, 0, 0, read_max_new_tokens, NULL, NULL},
    {"min_new_tokens", ROW_INT, AT(spec.min_tokens), 0, INT32_MAX, NULL, NULL, NULL},
    {"stop", ROW_READER, 0, 0, 0, read_stop, NULL, NULL},
    {"stop_token_ids", ROW_READER, 0, 0, 0, read_stop_ids, NULL, NULL},
    {"temperature", ROW_NUMBER, AT(spec.params.temperature), 0, 0, NULL, NULL, NULL},
    {"top_p", ROW_NUMBER, AT(spec.params.top_p), 0, 0, NULL, NULL, NULL},
    {"top_k", ROW_READER, 0, 0, 0, read_top_k, NULL, NULL},
    {"min_p", ROW_NUMBER, AT(spec.params.min_p), 0, 0, NULL, NULL, NULL},
    {"frequency_penalty", ROW_NUMBER, AT(spec.params.frequency_penalty), 0, 0, NULL, NULL, NULL},
    {"presence_penalty", ROW_NUMBER, AT(spec.params.presence_penalty), 0, 0, NULL, NULL, NULL},
    {"repetition_penalty", ROW_NUMBER, AT(spec.params.repetition_penalty), 0, 0, NULL, NULL, NULL},
    {"n", ROW_INT, AT(spec.choices), 1, GENERATION_CHOICES_MOST, NULL, NULL, NULL},
    {"ignore_eos", ROW_BOOL, AT(spec.ignore_eos), 0, 0, NULL, NULL, NULL},
    {"skip_special_tokens", ROW_NOT, AT(spec.keep_special), 0, 0, NULL, NULL, NULL},
    {"no_stop_trim", ROW_BOOL, AT(spec.keep_stop), 0, 0, NULL, NULL, NULL},
    {"logit_bias", ROW_READER, 0, 0, 0, read_logit_bias, NULL, NULL},
    {"seed", ROW_READER, 0, 0, 0, read_seed, NULL, NULL},
    {"sampling_seed", ROW_READER, 0, 0, 0, read_seed, NULL, NULL},
    {"spaces_between_special_tokens", ROW_REFUSED, 0, 0, 0, NULL, "[true]", "text is never put between special tokens"},
    {"stream_interval", ROW_REFUSED, 0, 0, 0, NULL, "[1]", "every step is sent"},
    {"stop_regex", ROW_REFUSED, 0, 0, 0, NULL, "[\"\", []]", "use stop"},
    {"regex", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_GRAMMAR},
    {"json_schema", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_GRAMMAR},
    {"ebnf", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_GRAMMAR},
    {"structural_tag", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_GRAMMAR},
    {"custom_params", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", "there are no custom logit processors"},
    {NULL, ROW_NONE, 0, 0, 0, NULL, NULL, NULL},
};

static const row generate_rows[] = {
    {"text", ROW_VALUE, AT(text), 0, 0, NULL, NULL, NULL},
    {"input_ids", ROW_VALUE, AT(input_ids), 0, 0, NULL, NULL, NULL},
    {"sampling_params", ROW_READER, 0, 0, 0, read_sampling, NULL, NULL},
    {"stream", ROW_BOOL, AT(stream), 0, 0, NULL, NULL, NULL},
    {"return_logprob", ROW_BOOL, AT(logprobs), 0, 0, NULL, NULL, NULL},
    {"top_logprobs_num", ROW_INT, AT(top_logprobs), 0, SAMPLER_LOGPROBS_MOST, NULL, NULL, NULL},
    {"return_text_in_logprobs", ROW_BOOL, AT(logprob_text), 0, 0, NULL, NULL, NULL},
    {"logprob_start_len", ROW_READER, 0, 0, 0, read_start_len, NULL, NULL},
    {"return_prompt_token_ids", ROW_BOOL, AT(prompt_ids), 0, 0, NULL, NULL, NULL},
    {"rid", ROW_VALUE, AT(rid), 0, 0, NULL, NULL, NULL},
    {"priority", ROW_INT, AT(spec.priority), -1000000, 1000000, NULL, NULL, NULL},
    {"cache_salt", ROW_STRING, AT(cache_salt), 0, 0, NULL, NULL, NULL},
    {"extra_key", ROW_STRING, AT(extra_key), 0, 0, NULL, NULL, NULL},
    {"no_logs", ROW_NONE, 0, 0, 0, NULL, NULL, NULL},
    {"log_metrics", ROW_REFUSED, 0, 0, 0, NULL, "[true]", "every request is counted"},
    {"input_embeds", ROW_REFUSED, 0, 0, 0, NULL, "[]", "send text or input_ids"},
    {"image_data", ROW_REFUSED, 0, 0, 0, NULL, "[[], \"\"]", NO_MEDIA},
    {"video_data", ROW_REFUSED, 0, 0, 0, NULL, "[[], \"\"]", NO_MEDIA},
    {"audio_data", ROW_REFUSED, 0, 0, 0, NULL, "[[], \"\"]", NO_MEDIA},
    {"modalities", ROW_REFUSED, 0, 0, 0, NULL, "[[]]", NO_MEDIA},
    {"mm_hashes", ROW_REFUSED, 0, 0, 0, NULL, "[[]]", NO_MEDIA},
    {"mm_content_hashes", ROW_REFUSED, 0, 0, 0, NULL, "[[]]", NO_MEDIA},
    {"use_audio_in_video", ROW_REFUSED, 0, 0, 0, NULL, "[false]", NO_MEDIA},
    {"video_config", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", NO_MEDIA},
    {"images_config", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", NO_MEDIA},
    {"max_dynamic_patch", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_MEDIA},
    {"min_dynamic_patch", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_MEDIA},
    {"image_max_dynamic_patch", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_MEDIA},
    {"video_max_dynamic_patch", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_MEDIA},
    {"need_wait_for_mm_inputs", ROW_REFUSED, 0, 0, 0, NULL, "[false]", NO_MEDIA},
    {"num_items_assigned", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", NO_MEDIA},
    {"encoder_urls", ROW_REFUSED, 0, 0, 0, NULL, "[[]]", NO_MEDIA},
    {"token_ids_logprob", ROW_REFUSED, 0, 0, 0, NULL, "[[]]", "use top_logprobs_num"},
    {"return_sampling_mask", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "it is not available"},
    {"return_flat_raw_top_logprobs", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "log-probabilities of the prompt are not computed"},
    {"return_flat_raw_top_logprobs_b64", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "log-probabilities of the prompt are not computed"},
    {"return_hidden_states", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "they are not available"},
    {"return_routed_experts", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "they are not available"},
    {"routed_experts_start_len", ROW_REFUSED, 0, 0, 0, NULL, "[0]", "routed experts are not available"},
    {"return_indexer_topk", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "it is not available"},
    {"return_entropy", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "it is not available"},
    {"return_bytes", ROW_REFUSED, 0, 0, 0, NULL, "[false]", NO_MEDIA},
    {"session_params", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", NO_SESSION},
    {"session_id", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SESSION},
    {"lora_path", ROW_REFUSED, 0, 0, 0, NULL, "[\"\"]", NO_LORA},
    {"lora_id", ROW_REFUSED, 0, 0, 0, NULL, "[\"\"]", NO_LORA},
    {"custom_logit_processor", ROW_REFUSED, 0, 0, 0, NULL, "[\"\"]", "there are no custom logit processors"},
    {"positional_embed_overrides", ROW_REFUSED, 0, 0, 0, NULL, "[]", "send text or input_ids"},
    {"multi_item_delimiter_indices", ROW_REFUSED, 0, 0, 0, NULL, "[[]]", "there is no scoring"},
    {"bootstrap_host", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SPLIT},
    {"bootstrap_port", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SPLIT},
    {"bootstrap_room", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SPLIT},
    {"bootstrap_pair_key", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SPLIT},
    {"decode_tp_size", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SPLIT},
    {"disagg_prefill_dp_rank", ROW_REFUSED, 0, 0, 0, NULL, "[]", NO_SPLIT},
    {"kv_router_hint", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", NO_SPLIT},
    {"routed_dp_rank", ROW_REFUSED, 0, 0, 0, NULL, "[0]", "there is one rank, 0"},
    {"data_parallel_rank", ROW_REFUSED, 0, 0, 0, NULL, "[0]", "there is one rank, 0"},
    {"routing_key", ROW_REFUSED, 0, 0, 0, NULL, "[]", "requests are scheduled by priority and arrival"},
    {"conversation_id", ROW_REFUSED, 0, 0, 0, NULL, "[]", "send an X-Request-Id header to find a request in the logs"},
    {"http_worker_ipc", ROW_REFUSED, 0, 0, 0, NULL, "[]", "it is internal to sglang"},
    {"background", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "answers are not stored"},
    {"require_reasoning", ROW_REFUSED, 0, 0, 0, NULL, "[false]", "the prompt decides; /v1/chat/completions has a field for it"},
    {"max_thinking_tokens", ROW_REFUSED, 0, 0, 0, NULL, "[]", "only the whole answer is limited, by max_new_tokens"},
    {"custom_labels", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", "metrics have fixed labels"},
    {"external_trace_header", ROW_REFUSED, 0, 0, 0, NULL, "[{}]", "there is no tracing"},
    {"received_time", ROW_REFUSED, 0, 0, 0, NULL, "[]", "the server takes the time itself"},
    {NULL, ROW_NONE, 0, 0, 0, NULL, NULL, NULL},
};

static bool is_neutral(const char *list, const json_t *value)
{
    json_t *values = json_loads(list, 0, NULL);
    bool found = false;
    for (size_t i = 0; i < json_array_size(values) && !found; i++)
        found = json_equal(json_array_get(values, i), (json_t *)(uintptr_t)value);
    json_decref(values);
    return found;
}

static bool store_int(const row *f, const json_t *value, const char *path, void *to, error *err)
{
    if (!json_is_integer(value))
        return refuse_type(path, "an integer", value, err);
    double n = (double)json_integer_value(value);
    if (n < f->least || n > f->most)
        return error_set(err, ERROR_INPUT, "%s: must be from %.0f to %.0f, found %lld", path, f->least, f->most,
                         (long long)json_integer_value(value));
    *(int *)to = (int)json_integer_value(value);
    return true;
}

static bool row_read(const row *f, const reading *c, const json_t *value, const char *path)
{
    void *to = (char *)c->r + f->offset;
    switch (f->type) {
    case ROW_BOOL:
    case ROW_NOT:
        if (!json_is_boolean(value))
            return refuse_type(path, "true or false", value, c->err);
        *(bool *)to = json_is_true(value) == (f->type == ROW_BOOL);
        return true;
    case ROW_NONE: return json_is_boolean(value) || refuse_type(path, "true or false", value, c->err);
    case ROW_INT: return store_int(f, value, path, to, c->err);
    case ROW_NUMBER:
        if (!json_is_number(value))
            return refuse_type(path, "a number", value, c->err);
        *(double *)to = json_number_value(value);
        return true;
    case ROW_STRING:
        if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
            return refuse_type(path, "a string without NUL characters", value, c->err);
        *(const char **)to = json_string_value(value);
        return true;
    case ROW_VALUE: *(const json_t **)to = value; return true;
    case ROW_READER: return f->read(c, value, path);
    case ROW_REFUSED: break;
    }
    return is_neutral(f->neutral, value) || error_set(c->err, ERROR_INPUT, "%s: not supported: %s; leave it out", path, f->words);
}

/* All fields of an object; prefix begins their names in errors. */
static bool rows_read(const row *rows, const reading *c, const json_t *object, const char *prefix)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        const row *f = rows;
        text path = {0};
        if (json_is_null(value))
            continue;
        while (f->name && strcmp(f->name, key) != 0)
            f++;
        text_add_format(&path, "%s%.60s", prefix, key);
        bool ok = f->name ? row_read(f, c, value, path.data)
                          : error_set(c->err, ERROR_INPUT, "%s: not a field of this API; leave it out", path.data);
        text_free(&path);
        if (!ok)
            return false;
    }
    return true;
}

static bool read_sampling(const reading *c, const json_t *value, const char *path)
{
    if (!json_is_object(value))
        return refuse_type(path, "an object (the same for all prompts)", value, c->err);
    return rows_read(sampling_rows, c, value, "sampling_params.");
}

/* ---- prompts ---- */

static bool prompts_room(native_request *r, size_t count, const char *path, error *err)
{
    if (count == 0 || count > NATIVE_PROMPTS_MOST)
        return error_set(err, ERROR_INPUT, "%s: expected 1 to %d prompts, found %zu", path, NATIVE_PROMPTS_MOST, count);
    r->prompts = mem_alloc(count, sizeof *r->prompts);
    r->count = (int)count;
    return true;
}

static bool text_prompts(native_request *r, const tokenizer *t, error *err)
{
    r->list = json_is_array(r->text);
    if (!prompts_room(r, r->list ? json_array_size(r->text) : 1, "text", err))
        return false;
    for (int i = 0; i < r->count; i++) {
        const json_t *prompt = r->list ? json_array_get(r->text, (size_t)i) : r->text;
        if (!json_is_string(prompt))
            return refuse_type("text", "a string or an array of strings", prompt, err);
        tokenizer_encode(t, json_string_value(prompt), json_string_length(prompt), true, &r->prompts[i]);
    }
    return true;
}

static bool id_prompts(native_request *r, int vocab, error *err)
{
    if (!json_is_array(r->input_ids))
        return refuse_type("input_ids", "an array of token ids or an array of such arrays", r->input_ids, err);
    r->list = json_is_array(json_array_get(r->input_ids, 0));
    if (!prompts_room(r, r->list ? json_array_size(r->input_ids) : 1, "input_ids", err))
        return false;
    for (int i = 0; i < r->count; i++) {
        const json_t *ids = r->list ? json_array_get(r->input_ids, (size_t)i) : r->input_ids;
        if (!ids_read(ids, vocab, "input_ids", &r->prompts[i], err))
            return false;
    }
    return true;
}

/* One id for one prompt; for a list of prompts a list of ids, or a beginning that a number is put after. */
static bool rids_read(native_request *r, error *err)
{
    if (!r->rid)
        return true;
    bool listed = json_is_array(r->rid);
    if (listed != r->list && listed)
        return error_set(err, ERROR_INPUT, "rid: expected a string, because there is one prompt");
    if (listed && json_array_size(r->rid) != (size_t)r->count)
        return error_set(err, ERROR_INPUT, "rid: expected %d strings, one for each prompt, found %zu", r->count, json_array_size(r->rid));
    r->rids = mem_alloc((size_t)r->count, sizeof *r->rids);
    for (int i = 0; i < r->count; i++) {
        const json_t *rid = listed ? json_array_get(r->rid, (size_t)i) : r->rid;
        size_t bytes = json_string_length(rid);
        text t = {0};
        if (!json_is_string(rid) || bytes == 0 || bytes > 256 || strlen(json_string_value(rid)) != bytes)
            return error_set(err, ERROR_INPUT, "rid: expected a string of 1 to 256 bytes without NUL characters");
        text_add_text(&t, json_string_value(rid));
        if (r->list && !listed)
            text_add_format(&t, "_%d", i);
        r->rids[i] = t.data;
    }
    return true;
}

static void salt_join(native_request *r)
{
    text t = {0};
    if (!r->cache_salt && !r->extra_key)
        return;
    text_add_format(&t, "%s\n%s", r->cache_salt ? r->cache_salt : "", r->extra_key ? r->extra_key : "");
    r->spec.cache_salt = t.data;
}

/* What several fields say together. */
static bool settle(native_request *r, int vocab, error *err)
{
    generation_spec *s = &r->spec;
    if (!r->logprobs && (r->top_logprobs > 0 || r->logprob_text))
        return error_set(err, ERROR_INPUT, "%s: needs return_logprob",
                         r->top_logprobs > 0 ? "top_logprobs_num" : "return_text_in_logprobs");
    if (r->max_given && s->min_tokens > s->max_tokens)
        return error_set(err, ERROR_INPUT, "sampling_params.min_new_tokens: must not be more than max_new_tokens, found %d and %d",
                         s->min_tokens, s->max_tokens);
    s->params.logprobs = r->logprobs ? r->top_logprobs : -1;
    s->params.seed = r->seed >= 0 ? (uint64_t)r->seed : serve_new_seed();
    salt_join(r);
    return sampler_params_check(&s->params, vocab, err) || error_add(err, "sampling_params");
}

bool native_request_read(const json_t *body, const tokenizer *t, native_request *out, error *err)
{
    int vocab = tokenizer_size(t);
    reading c = {.r = out, .vocab = vocab, .err = err};
    *out = (native_request){.seed = -1};
    out->spec.choices = 1;
    out->spec.params = sampler_params_default(vocab);
    if (!rows_read(generate_rows, &c, body, ""))
        return false;
    if (!out->text == !out->input_ids)
        return error_set(err, ERROR_INPUT, "text: send exactly one of text and input_ids");
    bool ok = out->text ? text_prompts(out, t, err) : id_prompts(out, vocab, err);
    return ok && rids_read(out, err) && settle(out, vocab, err);
}

void native_request_free(native_request *r)
{
    for (int i = 0; i < r->count; i++) {
        token_list_free(&r->prompts[i]);
        if (r->rids)
            free(r->rids[i]);
    }
    free(r->prompts);
    free(r->rids);
    generation_spec_free(&r->spec);
    *r = (native_request){0};
}
