/* The table of chat formats and of the template texts that are known to mean them. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/sha256.h"
#include "model/chat_internal.h"

static const chat_rules formats[] = {
    {.name = "glm-5.2", .efforts = {"high"}, .filtered_tools = true, .obeys_clearing = true, .splits_reasoning = true,
     .strips_content = true, .reminds_of_media = true, .response_lists = true, .tool_references = true},
    {.name = "glm-5.3", .efforts = {"low", "high"}, .always_thinks = true, .filtered_tools = true, .keeps_reasoning = true,
     .obeys_clearing = true, .splits_reasoning = true, .strips_content = true, .reminds_of_media = true,
     .response_lists = true, .tool_references = true},
    {.name = "glm-5", .whole_tools = true, .obeys_clearing = true, .splits_reasoning = true, .strips_content = true,
     .strips_reasoning = true, .bare_think_end = true, .response_lists = true, .response_per_item = true},
    {.name = "nano", .efforts = {"high"}},
};

static const char format_names[] = "glm-5.2, glm-5.3, glm-5, nano";

/* Template texts known to mean a format. docs/chat.md says where each comes from. */
static const struct {
    const char *sha256;
    const char *format;
    bool refuses_media; /* the text inserts image tokens, which no text model can answer: such parts are refused */
} templates[] = {
    {"172dc74a35e1752df75ecfb2b2cf9326d2852bb1379868ebeec9571654489679", "glm-5.2", false}, /* GLM-5.2, 5,076 bytes */
    {"6d172cae09cb494bd825a6b14d07e7b32a2c26988afe43d8bc2bbda91aab99c8", "glm-5.2", true},  /* ik_llama.cpp's copy */
    {"d63ad536c3c81880043e22ec7fd08db42b4d8fb7c89c7138bc562bfa25281375", "glm-5", false},   /* GLM-4.7-Flash, 3,120 bytes */
    {"dd918aa2db60d165a2cb60275f7ed2de234e76ccdc2c218df7a5ca27f1e3af6a", "nano", false},    /* the built-in model */
};

static const char *const control_texts[CHAT_CONTROL_COUNT] = {
    [CHAT_GMASK] = "[gMASK]",
    [CHAT_SOP] = "<sop>",
    [CHAT_END_OF_TEXT] = "<|endoftext|>",
    [CHAT_SYSTEM] = "<|system|>",
    [CHAT_USER] = "<|user|>",
    [CHAT_ASSISTANT] = "<|assistant|>",
    [CHAT_OBSERVATION] = "<|observation|>",
    [CHAT_THINK] = "<think>",
    [CHAT_THINK_END] = "</think>",
    [CHAT_CALL] = "<tool_call>",
    [CHAT_CALL_END] = "</tool_call>",
    [CHAT_KEY] = "<arg_key>",
    [CHAT_KEY_END] = "</arg_key>",
    [CHAT_VALUE] = "<arg_value>",
    [CHAT_VALUE_END] = "</arg_value>",
    [CHAT_RESPONSE] = "<tool_response>",
    [CHAT_RESPONSE_END] = "</tool_response>",
};

enum { TEMPLATE_BYTES_MOST = 1 << 20, CONFIG_BYTES_MOST = 1 << 26 };

const char *chat_control_text(chat_control c)
{
    return c >= 0 && c < CHAT_CONTROL_COUNT ? control_texts[c] : "";
}

const char *chat_format_names(void)
{
    return format_names;
}

const char *chat_format_name(const chat_format *f)
{
    return f->rules.name;
}

int32_t chat_format_id(const chat_format *f, chat_control c)
{
    return c >= 0 && c < CHAT_CONTROL_COUNT ? f->ids[c] : -1;
}

chat_control chat_format_control(const chat_format *f, int32_t id)
{
    for (int c = 0; c < CHAT_CONTROL_COUNT; c++)
        if (id >= 0 && f->ids[c] == id)
            return (chat_control)c;
    return CHAT_TEXT;
}

static const chat_rules *rules_find(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

/* The text of "chat_template" in a tokenizer_config.json; false with an unset error when there is none. */
static bool template_read_config(const char *path, text *out, error *err)
{
    json_t *config = json_parse_file(path, CONFIG_BYTES_MOST, err);
    const json_t *value = json_object_get(config, "chat_template");
    if (json_is_string(value))
        text_add(out, json_string_value(value), json_string_length(value));
    bool ok = json_is_string(value);
    json_decref(config);
    return ok;
}

/* The template text of a model directory. */
static bool template_read(const char *directory, text *out, error *err)
{
    text path = {0};
    error inner = {0};
    bool ok = false;
    path_join(&path, directory, "chat_template.jinja");
    if (file_exists(path.data)) {
        ok = file_read(path.data, TEMPLATE_BYTES_MOST, out, &inner);
    } else {
        path_join(&path, directory, "tokenizer_config.json");
        ok = file_exists(path.data) && template_read_config(path.data, out, &inner);
    }
    if (!ok && inner.code == ERROR_NONE)
        error_set(&inner, ERROR_INPUT, "%s: no chat template: neither chat_template.jinja nor a \"chat_template\" text in "
                  "tokenizer_config.json; --template NAME chooses one of %s", directory, format_names);
    if (!ok && err)
        *err = inner;
    text_free(&path);
    return ok;
}

/* The rules of a known template text. */
static bool template_recognise(const char *directory, const text *source, chat_rules *out, error *err)
{
    char hash[SHA256_TEXT_BYTES];
    sha256_hex(source->data, source->length, hash);
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        if (strcmp(templates[i].sha256, hash) != 0)
            continue;
        *out = *rules_find(templates[i].format);
        if (templates[i].refuses_media)
            out->reminds_of_media = false;
        return true;
    }
    return error_set(err, ERROR_INPUT, "%s: the chat template (%zu bytes, SHA-256 %s) is not a known one; --template NAME "
                     "renders the format NAME instead, one of %s", directory, source->length, hash, format_names);
}

static bool rules_choose(const char *directory, const char *forced_name, chat_rules *out, error *err)
{
    if (forced_name) {
        const chat_rules *r = rules_find(forced_name);
        if (!r)
            return error_set(err, ERROR_USAGE, "--template %s: no such chat format; there are %s", forced_name, format_names);
        *out = *r;
        return true;
    }
    text source = {0};
    bool ok = template_read(directory, &source, err) && template_recognise(directory, &source, out, err);
    text_free(&source);
    return ok;
}

static bool ids_find(chat_format *f, const tokenizer *t, error *err)
{
    for (int c = 0; c < CHAT_CONTROL_COUNT; c++) {
        f->ids[c] = t ? tokenizer_added_id(t, control_texts[c]) : -1;
        if (t && f->ids[c] < 0)
            return error_set(err, ERROR_INPUT, "the tokenizer has no added token %s, which the chat format %s needs; the "
                             "tokenizer and the chat template do not belong together", control_texts[c], f->rules.name);
    }
    return true;
}

chat_format *chat_format_load(const char *directory, const tokenizer *t, const char *forced_name, error *err)
{
    chat_format *f = mem_alloc(1, sizeof *f);
    if (rules_choose(directory, forced_name, &f->rules, err) && ids_find(f, t, err))
        return f;
    free(f);
    return NULL;
}

void chat_format_free(chat_format *f)
{
    free(f);
}
