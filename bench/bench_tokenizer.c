/* Speed of the tokenizer on one core: the split rule alone, and whole encoding.
 *
 *     bench_tokenizer [--large [--write FILE]] [--tokenizer FILE] [FILE...]
 *
 * Measures text that it makes itself, the same in every run (words, code, digits, CJK, emoji, spaces), and the given files. The
 * tokenizer is models/nano/tokenizer.json unless another is named. --large uses a synthetic tokenizer.json of GLM's size instead:
 * 154,820 tokens, made by joining neighbours in text of the same kind, with a merge for every way to make a token of two
 * others; the time to load it is printed, and --write FILE keeps it. Times are CPU time of the thread, so that other programs
 * on the machine change them less.
 *
 *     bench_tokenizer --lines [--tokenizer FILE]
 *
 * answers lines of standard input, for tools/tokenizer_probe.mjs: a JSON string with [[ids...], [bytes of each piece...]], where
 * the pieces are those of the whole string without regard to added tokens; an array of ids with their text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/map.h"
#include "base/random.h"
#include "model/tokenizer.h"
#include "model/tokenizer_split.h"

enum { SAMPLE_BYTES = 8 << 20, LARGE_TOKENS = 154820, REPEATS = 5 };

/* ---- sample text ---- */

static uint64_t dice(uint64_t *counter, uint64_t sides)
{
    return random_word(17, (*counter)++, 0) % sides;
}

/* A word of a made-up language whose syllables repeat the way real ones do; small numbers are more likely than large ones. */
static void add_word(text *t, uint64_t *n)
{
    static const char *const onset[] = {"t",  "s", "r", "th", "c", "m", "p",  "b",  "w", "st",
                                        "f", "d", "l", "n",  "h", "",  "pr", "gr", "v", "k"};
    static const char *const vowel[] = {"e", "a", "o", "i", "u", "ea", "ou", "y"};
    static const char *const coda[] = {"", "n", "r", "s", "t", "l", "nd", "ng", "st", "ck", "m", "tion", "d"};
    uint64_t rank = dice(n, 1 + dice(n, 1 + dice(n, 60000))), counter = rank * 977; /* Zipf-like choice among 60,000 words */
    for (uint64_t syllables = 1 + dice(&counter, 1 + rank % 3); syllables > 0; syllables--) {
        text_add_text(t, onset[dice(&counter, sizeof onset / sizeof *onset)]);
        text_add_text(t, vowel[dice(&counter, sizeof vowel / sizeof *vowel)]);
        text_add_text(t, coda[dice(&counter, sizeof coda / sizeof *coda)]);
    }
}

static void add_sentence(text *t, uint64_t *n)
{
    for (uint64_t words = 4 + dice(n, 20); words > 0; words--) {
        add_word(t, n);
        text_add_text(t, words == 1 ? ". " : dice(n, 12) ? " " : dice(n, 3) ? ", " : "'s ");
    }
    if (dice(n, 5) == 0)
        text_add_text(t, "\n\n");
}

static void add_code(text *t, uint64_t *n)
{
    for (uint64_t lines = 2 + dice(n, 8); lines > 0; lines--) {
        text_add_format(t, "%*s", (int)(4 * dice(n, 4)), "");
        add_word(t, n);
        text_add_text(t, dice(n, 2) ? "_" : "->");
        add_word(t, n);
        text_add_format(t, dice(n, 2) ? "[%u] = " : "(%u, 0x%x) ", (unsigned)dice(n, 1000), (unsigned)dice(n, 4096));
        add_word(t, n);
        text_add_text(t, dice(n, 2) ? ");\n" : " {\n");
    }
}

static void add_cjk(text *t, uint64_t *n)
{
    for (uint64_t count = 8 + dice(n, 40); count > 0; count--)
        text_add_utf8(t, 0x4E00 + (uint32_t)dice(n, 1 + dice(n, 6000)));
    text_add_utf8(t, 0x3002);
}

static void add_other(text *t, uint64_t *n)
{
    for (uint64_t count = 1 + dice(n, 4); count > 0; count--)
        text_add_utf8(t, 0x1F600 + (uint32_t)dice(n, 64));
    text_add_format(t, " %u.%03u\t%s\r\n", (unsigned)dice(n, 100000), (unsigned)dice(n, 1000), dice(n, 2) ? "  \n" : "");
    for (uint64_t count = 3 + dice(n, 9); count > 0; count--)
        text_add_utf8(t, 0x430 + (uint32_t)dice(n, 32));
}

static text sample(size_t bytes, uint64_t start)
{
    text t = {0};
    for (uint64_t n = start; t.length < bytes;) {
        uint64_t kind = dice(&n, 20);
        if (kind < 12)
            add_sentence(&t, &n);
        else if (kind < 16)
            add_code(&t, &n);
        else if (kind < 18)
            add_cjk(&t, &n);
        else
            add_other(&t, &n);
    }
    return t;
}

/* ---- a large tokenizer ---- */

/* A token of the vocabulary under construction: its byte-alphabet characters are made on output. */
typedef struct large {
    view tokens[LARGE_TOKENS];
    int count;
    map ids;
} large;

static void add_alphabet(text *t, view bytes)
{
    for (size_t i = 0; i < bytes.length; i++) {
        unsigned b = (unsigned char)bytes.data[i];
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        unsigned c = itself ? b : b <= 32 ? 256 + b : b <= 160 ? 256 + 33 + b - 127 : 256 + 67;
        if (c == '"' || c == '\\')
            text_add_char(t, '\\');
        text_add_utf8(t, c);
    }
}

/* Reads pieces of text from left to right as tokens known so far, longest first, and makes each pair of neighbours a token. */
static void large_learn(large *v, const char *piece, size_t count)
{
    view before = {0};
    for (size_t at = 0; at < count && v->count < LARGE_TOKENS;) {
        int64_t id;
        view found = {piece + at, 1};
        for (size_t n = 2; n <= 24 && at + n <= count; n++)
            if (map_get(&v->ids, (view){piece + at, n}, &id))
                found.length = n;
        view joined = {before.data, before.length + found.length};
        if (before.length && joined.length <= 24 && map_add(&v->ids, joined, v->count))
            v->tokens[v->count++] = joined;
        before = found;
        at += found.length;
    }
}

/* Writes a merge for every cut of a token into two others; returns how many. */
static int add_merges(const large *v, view token, bool first, text *json)
{
    int count = 0;
    int64_t id;
    for (size_t cut = 1; cut < token.length; cut++) {
        view left = {token.data, cut}, right = {token.data + cut, token.length - cut};
        if (!map_get(&v->ids, left, &id) || !map_get(&v->ids, right, &id))
            continue;
        text_add_text(json, first && count == 0 ? "[\"" : ",[\"");
        add_alphabet(json, left);
        text_add_text(json, "\",\"");
        add_alphabet(json, right);
        text_add_text(json, "\"]");
        count++;
    }
    return count;
}

static text large_json(int *merges)
{
    static large v;
    static char bytes[256];
    text source = sample(64 << 20, 1u << 20), json = {0};
    for (; v.count < 256; v.count++) {
        bytes[v.count] = (char)v.count;
        v.tokens[v.count] = (view){bytes + v.count, 1};
        map_add(&v.ids, v.tokens[v.count], v.count);
    }
    for (size_t at = 0; at < source.length && v.count < LARGE_TOKENS;) {
        size_t n = tokenizer_split_next(source.data + at, source.length - at);
        for (size_t skip = 0; skip < 6 && skip < n; skip++) /* also ends of words, so that most tokens can be made in two ways */
            large_learn(&v, source.data + at + skip, n - skip);
        at += n;
    }
    text_add_text(&json, "{\"version\":\"1.0\",\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":"
                         "[{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    json_t *rule = json_string(tokenizer_split_regex);
    char *quoted = json_dumps(rule, JSON_ENCODE_ANY);
    text_add_text(&json, quoted);
    text_add_text(&json, "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                         "\"trim_offsets\":true,\"use_regex\":false}]},\"decoder\":{\"type\":\"ByteLevel\","
                         "\"add_prefix_space\":true,\"trim_offsets\":true},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < v.count; i++) {
        text_add_text(&json, i ? ",\"" : "\"");
        add_alphabet(&json, v.tokens[i]);
        text_add_format(&json, "\":%d", i);
    }
    text_add_text(&json, "},\"merges\":[");
    for (int i = 256; i < v.count; i++)
        *merges += add_merges(&v, v.tokens[i], *merges == 0, &json);
    text_add_text(&json, "]}}");
    free(quoted);
    json_decref(rule);
    map_free(&v.ids);
    text_free(&source);
    return json;
}

/* ---- measuring ---- */

static uint64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static double mb_per_s(size_t bytes, uint64_t us)
{
    return (double)bytes / (double)(us ? us : 1);
}

static size_t split_all(const char *s, size_t count)
{
    size_t pieces = 0;
    for (size_t at = 0; at < count; pieces++)
        at += tokenizer_split_next(s + at, count - at);
    return pieces;
}

/* The best of several runs: what the code can do when nothing else disturbs it. */
static void measure(const tokenizer *t, const char *name, const char *s, size_t count)
{
    uint64_t split_us = UINT64_MAX, encode_us = UINT64_MAX, decode_us = UINT64_MAX;
    size_t pieces = 0;
    token_list ids = {0};
    text back = {0};
    for (int i = 0; i < REPEATS; i++) {
        uint64_t start = cpu_us();
        pieces = split_all(s, count);
        uint64_t split_end = cpu_us();
        ids.count = 0;
        tokenizer_encode(t, s, count, true, &ids);
        uint64_t encode_end = cpu_us();
        text_clear(&back);
        tokenizer_decode(t, ids.ids, ids.count, false, &back);
        uint64_t decode_end = cpu_us();
        split_us = split_end - start < split_us ? split_end - start : split_us;
        encode_us = encode_end - split_end < encode_us ? encode_end - split_end : encode_us;
        decode_us = decode_end - encode_end < decode_us ? decode_end - encode_end : decode_us;
    }
    bool exact = back.length == count && memcmp(back.data, s, count) == 0;
    double megabytes = (double)count / 1e6, per_piece = (double)count / (double)(pieces ? pieces : 1);
    double per_token = (double)count / (double)(ids.count ? ids.count : 1);
    printf("%-28s %9.2f %11.2f %12.2f %12.1f %12.1f %12.1f  %s\n", name, megabytes, per_piece, per_token, mb_per_s(count, split_us),
           mb_per_s(count, encode_us), mb_per_s(count, decode_us), exact ? "exact" : "not UTF-8");
    token_list_free(&ids);
    text_free(&back);
}

static void measure_runs(const tokenizer *t)
{
    static const char *const units[] = {"a", " ", "ab", "!", "\n", "1"};
    text s = {0};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        char name[64];
        text_clear(&s);
        while (s.length < 1 << 20)
            text_add_text(&s, units[u]);
        snprintf(name, sizeof name, "1 MiB of \"%s\"", units[u][0] == '\n' ? "\\n" : units[u]);
        measure(t, name, s.data, s.length);
    }
    text_free(&s);
}

static int measure_all(const tokenizer *t, int count, char **files)
{
    printf("%-28s %9s %11s %12s %12s %12s %12s\n", "text", "MB", "bytes/piece",
           "bytes/token", "split MB/s", "encode MB/s", "decode MB/s");
    text s = sample(SAMPLE_BYTES, 0);
    measure(t, "mixed, made here", s.data, s.length);
    text_free(&s);
    measure_runs(t);
    for (int i = 0; i < count; i++) {
        error err = {0};
        text file = {0};
        if (!file_read(files[i], 1u << 30, &file, &err)) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        measure(t, files[i], file.data, file.length);
        text_free(&file);
    }
    return 0;
}

/* ---- answering lines ---- */

static void answer_text(const tokenizer *t, const char *s, size_t count)
{
    token_list ids = {0};
    tokenizer_encode(t, s, count, true, &ids);
    fputs("[[", stdout);
    for (size_t i = 0; i < ids.count; i++)
        printf(i ? ",%d" : "%d", ids.ids[i]);
    fputs("],[", stdout);
    for (size_t at = 0, piece; at < count; at += piece) {
        piece = tokenizer_split_next(s + at, count - at);
        printf(at ? ",%zu" : "%zu", piece);
    }
    puts("]]");
    token_list_free(&ids);
}

static void answer_ids(const tokenizer *t, const json_t *array)
{
    token_list ids = {0};
    text back = {0};
    for (size_t i = 0; i < json_array_size(array); i++)
        token_list_add(&ids, (int32_t)json_integer_value(json_array_get(array, i)));
    tokenizer_decode(t, ids.ids, ids.count, false, &back);
    json_t *s = json_stringn(back.data ? back.data : "", back.length);
    char *line = json_dumps(s, JSON_ENCODE_ANY);
    puts(line);
    free(line);
    json_decref(s);
    token_list_free(&ids);
    text_free(&back);
}

static int answer_lines(const tokenizer *t)
{
    char *line = NULL;
    size_t capacity = 0;
    setvbuf(stdout, NULL, _IOLBF, 1 << 16); /* who asks waits for the answer */
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        json_t *v = json_loadb(line, (size_t)n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!v) {
            fprintf(stderr, "not a JSON value: %s\n", line);
            return 1;
        }
        if (json_is_string(v))
            answer_text(t, json_string_value(v), json_string_length(v));
        else
            answer_ids(t, v);
        json_decref(v);
    }
    free(line);
    return 0;
}

static bool write_file(const char *path, const text *content, error *err)
{
    file_writer *w = file_writer_open(path, err);
    if (!w)
        return false;
    if (file_writer_add(w, content->data, content->length, err))
        return file_writer_commit(w, err);
    file_writer_abandon(w);
    return false;
}

static tokenizer *open_large(const char *write_to, error *err)
{
    int merges = 0;
    text json = large_json(&merges);
    bool written = !write_to || write_file(write_to, &json, err);
    uint64_t start = cpu_us();
    tokenizer *t = written ? tokenizer_parse(json.data, json.length, "synthetic tokenizer", err) : NULL;
    uint64_t end = cpu_us();
    json_decref(json_parse(json.data, json.length, "synthetic tokenizer", NULL));
    uint64_t json_end = cpu_us();
    if (t)
        printf("synthetic tokenizer.json: %d tokens, %d merges, %.1f MB, loaded in %.0f ms (JSON alone: %.0f ms)\n", tokenizer_size(t),
               merges, (double)json.length / 1e6, (double)(end - start) / 1e3, (double)(json_end - end) / 1e3);
    text_free(&json);
    return t;
}

int main(int argc, char **argv)
{
    const char *path = SOURCE_DIR "/models/nano/tokenizer.json", *write_to = NULL;
    bool use_large = false, lines = false;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--large") == 0)
            use_large = true;
        else if (strcmp(argv[i], "--lines") == 0)
            lines = true;
        else if (strcmp(argv[i], "--tokenizer") == 0 && i + 1 < argc)
            path = argv[++i];
        else if (strcmp(argv[i], "--write") == 0 && i + 1 < argc)
            write_to = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--large [--write FILE]] [--lines] [--tokenizer FILE] [FILE...]\n", argv[0]);
            return 2;
        }
    }
    error err = {0};
    tokenizer *t = use_large ? open_large(write_to, &err) : tokenizer_load(path, &err);
    if (!t) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int status = lines ? answer_lines(t) : measure_all(t, argc - i, argv + i);
    tokenizer_free(t);
    return status;
}
