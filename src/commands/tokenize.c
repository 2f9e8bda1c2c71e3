/* drawbridge tokenize: text to token ids and back.
 *
 * The plain output, ids separated by blanks on one line, is what `logits --tokens` reads. With --jsonl each line is a
 * document of its own; a line that is wrong ends the command with its number. */
#include <stdio.h>

#include "base/log.h"
#include "commands/commands.h"
#include "commands/input.h"
#include "commands/output.h"
#include "commands/text_model.h"
#include "model/tokenizer.h"

typedef struct tokenize_values {
    option_list words;
    const char *model, *file;
    bool decode, jsonl, json, pieces, special;
} tokenize_values;

static const option tokenize_options[] = {
    {.name = "TEXT", .type = OPTION_TEXT, .positional = true, .repeatable = true, .offset = offsetof(tokenize_values, words),
     .help = "The text; several arguments are joined by blanks. Without it, standard input is read, byte for byte."},
    {.name = "model", .letter = 'm', .type = OPTION_DIRECTORY, .metavar = "DIR", .unset = "the built-in model",
     .offset = offsetof(tokenize_values, model), .help = "The directory that holds tokenizer.json."},
    {.name = "file", .letter = 'f', .type = OPTION_FILE, .metavar = "FILE", .offset = offsetof(tokenize_values, file),
     .help = "Read this file instead of standard input."},
    {.name = "decode", .letter = 'd', .type = OPTION_FLAG, .offset = offsetof(tokenize_values, decode),
     .help = "The other way: decimal ids separated by white space become text."},
    {.name = "special", .type = OPTION_FLAG, .by_default = "on", .offset = offsetof(tokenize_values, special),
     .help = "Treat special tokens written in the text, such as <|user|>, as plain text. With --decode, leave them out."},
    {.name = "jsonl", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(tokenize_values, jsonl),
     .help = "Read one JSON string per line and print one array of ids per line. With --decode, the other way round."},
    {.name = "json", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(tokenize_values, json),
     .help = "Print a JSON object: ids, and the text of each token (with --decode: text)."},
    {.name = "pieces", .type = OPTION_FLAG, .group = "Output", .offset = offsetof(tokenize_values, pieces),
     .help = "Print one line per token: its id, a tab, and its text as a JSON string."},
};

static bool check_values(const tokenize_values *v, error *err)
{
    if (v->json + v->jsonl + v->pieces > 1)
        return error_set(err, ERROR_USAGE, "--json, --jsonl and --pieces exclude each other");
    if (v->decode && v->pieces)
        return error_set(err, ERROR_USAGE, "--decode and --pieces exclude each other");
    if (v->file && v->words.count)
        return error_set(err, ERROR_USAGE, "--file and TEXT exclude each other");
    if (v->jsonl && v->words.count)
        return error_set(err, ERROR_USAGE, "--jsonl reads lines from standard input or --file and takes no TEXT");
    return true;
}

static bool gather_text(const tokenize_values *v, text *out, error *err)
{
    if (!v->words.count)
        return input_read(v->file, out, err);
    for (size_t i = 0; i < v->words.count; i++) {
        text_add_text(out, i ? " " : "");
        text_add_text(out, v->words.items[i]);
    }
    return true;
}

/* ---- one text ---- */

static void print_pieces(const tokenizer *t, const token_list *ids)
{
    text line = {0};
    for (size_t i = 0; i < ids->count; i++) {
        view piece = tokenizer_token(t, ids->ids[i]);
        text_add_format(&line, "%d\t", (int)ids->ids[i]);
        output_json_string(piece.data, piece.length, &line);
        text_add_char(&line, '\n');
        if (!output_text(&line))
            break;
    }
    text_free(&line);
}

static void print_json(const tokenizer *t, const token_list *ids)
{
    text line = {0};
    text_add_format(&line, "{\"count\":%zu,\"ids\":[", ids->count);
    output_ids(ids->ids, ids->count, ",", &line);
    text_add_text(&line, "],\"tokens\":[");
    for (size_t i = 0; i < ids->count; i++) {
        view piece = tokenizer_token(t, ids->ids[i]);
        text_add_text(&line, i ? "," : "");
        output_json_string(piece.data, piece.length, &line);
    }
    text_add_text(&line, "]}\n");
    output_text(&line);
    text_free(&line);
}

static void print_ids(const token_list *ids)
{
    text line = {0};
    output_ids(ids->ids, ids->count, " ", &line);
    text_add_char(&line, '\n');
    output_text(&line);
    text_free(&line);
}

static bool encode_one(const tokenizer *t, const tokenize_values *v, const text *input)
{
    token_list ids = {0};
    tokenizer_encode(t, input->data ? input->data : "", input->length, v->special, &ids);
    if (v->pieces)
        print_pieces(t, &ids);
    else if (v->json)
        print_json(t, &ids);
    else
        print_ids(&ids);
    log_detail("%zu bytes, %zu tokens", input->length, ids.count);
    token_list_free(&ids);
    return true;
}

static bool decode_one(const tokenizer *t, const tokenize_values *v, const text *input, error *err)
{
    token_list ids = {0};
    text decoded = {0}, line = {0};
    const char *where = v->words.count ? "TEXT" : input_name(v->file);
    bool ok = token_ids_parse((view){input->data, input->length}, where, tokenizer_size(t), &ids, err);
    if (ok) {
        tokenizer_decode(t, ids.ids, ids.count, !v->special, &decoded);
        if (v->json) {
            text_add_text(&line, "{\"text\":");
            output_json_string(decoded.data, decoded.length, &line);
            text_add_text(&line, "}\n");
            output_text(&line);
        } else {
            output_document(&decoded);
        }
    }
    token_list_free(&ids);
    text_free(&decoded);
    text_free(&line);
    return ok;
}

/* ---- lines ---- */

static bool encode_line(const tokenizer *t, const tokenize_values *v, const json_t *value, const char *where, text *out, error *err)
{
    if (!json_is_string(value))
        return error_set(err, ERROR_INPUT, "%s: expected a JSON string, found %s", where, json_type_name(value));
    token_list ids = {0};
    tokenizer_encode(t, json_string_value(value), json_string_length(value), v->special, &ids);
    text_add_char(out, '[');
    output_ids(ids.ids, ids.count, ",", out);
    text_add_text(out, "]\n");
    token_list_free(&ids);
    return true;
}

static bool decode_line(const tokenizer *t, const tokenize_values *v, const json_t *value, const char *where, text *out, error *err)
{
    token_list ids = {0};
    text decoded = {0};
    bool ok = token_ids_from_json(value, where, tokenizer_size(t), &ids, err);
    if (ok) {
        tokenizer_decode(t, ids.ids, ids.count, !v->special, &decoded);
        output_json_string(decoded.data, decoded.length, out);
        text_add_char(out, '\n');
    }
    token_list_free(&ids);
    text_free(&decoded);
    return ok;
}

static bool convert_lines(const tokenizer *t, const tokenize_values *v, error *err)
{
    input_lines in;
    if (!input_lines_open(v->file, &in, err))
        return false;
    text out = {0}, where = {0};
    bool ok = true;
    while (ok && input_lines_next(&in, err)) {
        json_t *value = input_lines_json(&in, err);
        text_clear(&where);
        text_add_format(&where, "%s, line %lld", in.name, (long long)in.number);
        ok = value && (v->decode ? decode_line(t, v, value, where.data, &out, err) : encode_line(t, v, value, where.data, &out, err));
        json_decref(value);
        if (!output_text(&out))
            break;
    }
    ok = ok && err->code == ERROR_NONE;
    input_lines_close(&in);
    text_free(&out);
    text_free(&where);
    return ok;
}

static bool tokenize_run(const program *p, const void *values, error *err)
{
    (void)p;
    const tokenize_values *v = values;
    if (!check_values(v, err))
        return false;
    tokenizer *t = text_model_tokenizer(v->model, err);
    text input = {0};
    bool ok = t != NULL;
    if (ok && v->jsonl)
        ok = convert_lines(t, v, err);
    else if (ok)
        ok = gather_text(v, &input, err) && (v->decode ? decode_one(t, v, &input, err) : encode_one(t, v, &input));
    tokenizer_free(t);
    text_free(&input);
    return ok;
}

static const command_example tokenize_examples[] = {
    {"drawbridge tokenize 'Hello, world'", "Print the ids, separated by blanks."},
    {"drawbridge tokenize --pieces < letter.txt", "Show how a file is cut into tokens."},
    {"drawbridge tokenize 'Hello' | drawbridge tokenize --decode", "There and back."},
    {"drawbridge tokenize --jsonl < texts.jsonl > ids.jsonl", "Many texts at once, one per line."},
};

const command command_tokenize = {
    .name = "tokenize",
    .summary = "turn text into tokens, or tokens into text",
    .description = "Prints the token ids of a text, as the model's own tokenizer gives them. Special tokens written in the text are "
                   "recognised unless --no-special is given; chat messages never are (see render). The ids are separated by blanks, the "
                   "form that logits --tokens reads.",
    .options = tokenize_options,
    .option_count = COUNT_OF(tokenize_options),
    .values_bytes = sizeof(tokenize_values),
    .examples = tokenize_examples,
    .example_count = COUNT_OF(tokenize_examples),
    .run = tokenize_run,
};
