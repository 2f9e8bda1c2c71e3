/* safetensors: files written here and read back, every rule broken once with the error it must give, shards and index. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "formats/safetensors.h"

/* ---- helpers ---- */

/* Length, header and `data_bytes` bytes of data 0, 1, 2, ... */
static void file_make(text *out, uint64_t length, const char *header, size_t header_bytes, size_t data_bytes)
{
    text_clear(out);
    for (int i = 0; i < 8; i++)
        text_add_char(out, (char)(length >> (8 * i) & 255));
    text_add(out, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        text_add_char(out, (char)i);
}

static checkpoint *parse(const text *bytes, error *err)
{
    *err = (error){0};
    /* a copy of exact size, so that the address sanitizer sees an access beyond it */
    static uint8_t *memory;
    free(memory);
    memory = malloc(bytes->length + 1);
    memcpy(memory, bytes->data, bytes->length);
    memory = realloc(memory, bytes->length ? bytes->length : 1);
    return checkpoint_from_memory(memory, bytes->length, "x.safetensors", err);
}

static checkpoint *parse_header(const char *header, size_t data_bytes, error *err)
{
    text bytes = {0};
    file_make(&bytes, strlen(header), header, strlen(header), data_bytes);
    checkpoint *c = parse(&bytes, err);
    text_free(&bytes);
    return c;
}

/* The error is an input error whose text has every '|'-separated part. */
static void check_error(const char *label, checkpoint *c, const error *err, const char *parts)
{
    if (c)
        fail_msg("accepted: %s", label);
    assert_int_equal(err->code, ERROR_INPUT);
    char *copy = mem_copy(parts, strlen(parts)), *rest = NULL;
    for (char *part = strtok_r(copy, "|", &rest); part; part = strtok_r(NULL, "|", &rest))
        if (!strstr(err->text, part))
            fail_msg("%s: error lacks \"%s\": %s", label, part, err->text);
    free(copy);
}

typedef struct scratch {
    char directory[64];
} scratch;

static void scratch_write(const scratch *s, const char *name, const void *bytes, size_t count)
{
    text path = {0};
    error err;
    path_join(&path, s->directory, name);
    file_writer *w = file_writer_open(path.data, &err);
    assert_non_null(w);
    assert_true(file_writer_add(w, bytes, count, &err) && file_writer_commit(w, &err));
    text_free(&path);
}

/* A file with U8 tensors of one byte each; names are separated by spaces. */
static void scratch_shard(const scratch *s, const char *file, const char *names)
{
    text header = {0}, bytes = {0};
    char *copy = mem_copy(names, strlen(names)), *rest = NULL;
    size_t n = 0;
    for (char *name = strtok_r(copy, " ", &rest); name; name = strtok_r(NULL, " ", &rest), n++)
        text_add_format(&header, "%c\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", n ? ',' : '{', name, n, n + 1);
    text_add_char(&header, '}');
    file_make(&bytes, header.length, header.data, header.length, n);
    scratch_write(s, file, bytes.data, bytes.length);
    text_free(&header);
    text_free(&bytes);
    free(copy);
}

static void scratch_make(scratch *s)
{
    strcpy(s->directory, "/tmp/test_safetensors.XXXXXX");
    assert_non_null(mkdtemp(s->directory));
}

static void scratch_remove(const scratch *s, const char *names)
{
    char *copy = mem_copy(names, strlen(names)), *rest = NULL;
    text path = {0};
    for (char *name = strtok_r(copy, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        path_join(&path, s->directory, name);
        assert_int_equal(unlink(path.data), 0);
    }
    assert_int_equal(rmdir(s->directory), 0); /* also: nothing else was left there */
    text_free(&path);
    free(copy);
}

/* ---- accepted files ---- */

static void test_reads_tensors(void **state)
{
    (void)state;
    error err;
    checkpoint *c = parse_header("{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"},"
                                 "\"late\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                                 "\"none\":{\"data_offsets\":[4,4],\"dtype\":\"F64\",\"shape\":[0,7]},"
                                 "\"early\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ", 16, &err);
    assert_non_null(c);
    char shape[32];
    assert_int_equal(checkpoint_count(c), 3);
    assert_string_equal(checkpoint_tensor(c, 0)->name, "early");
    assert_string_equal(checkpoint_tensor(c, 1)->name, "none");
    assert_string_equal(checkpoint_tensor(c, 2)->name, "late");
    const tensor *t = checkpoint_find(c, "late");
    assert_ptr_equal(t, checkpoint_tensor(c, 2));
    assert_string_equal(tensor_shape_text(t, shape, sizeof shape), "[2, 3]");
    assert_string_equal(tensor_shape_text(t, shape, 4), "[2,");
    assert_int_equal(t->type, DTYPE_BF16);
    assert_int_equal(t->bytes, 12);
    assert_int_equal(t->data[0], 4);
    assert_int_equal(t->data[11], 15);
    assert_int_equal(checkpoint_tensor(c, 0)->rank, 0);
    assert_int_equal(checkpoint_tensor(c, 1)->bytes, 0);
    assert_null(checkpoint_find(c, "absent"));
    assert_null(checkpoint_find(c, "__metadata__"));
    assert_int_equal(checkpoint_bytes(c), 16);
    assert_int_equal(checkpoint_shards(c), 1);
    assert_string_equal(checkpoint_shard_name(c, 0), "x.safetensors");
    assert_string_equal(checkpoint_metadata(c, 0, "format"), "pt");
    assert_string_equal(checkpoint_metadata(c, 0, "k"), "");
    assert_null(checkpoint_metadata(c, 0, "absent"));
    checkpoint_close(c);
}

static void test_empty_checkpoints(void **state)
{
    (void)state;
    error err;
    checkpoint *c = parse_header("{}", 0, &err);
    assert_non_null(c);
    assert_int_equal(checkpoint_count(c), 0);
    assert_null(checkpoint_find(c, "a"));
    assert_null(checkpoint_metadata(c, 0, "a"));
    checkpoint_close(c);
    c = parse_header("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, &err);
    assert_non_null(c);
    assert_int_equal(checkpoint_find(c, "a")->bytes, 0);
    checkpoint_close(c);
    checkpoint_close(NULL);
}

static void test_dtypes(void **state)
{
    (void)state;
    static const char *const names[] = {"BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3", "F8_E5M2", "F8_E8M0",
                                        "F16", "BF16", "F32", "F64"};
    static const size_t bytes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 1, 1, 2, 2, 4, 8};
    assert_int_equal(sizeof names / sizeof *names, DTYPE_COUNT);
    for (int i = 0; i < DTYPE_COUNT; i++) {
        dtype t;
        assert_string_equal(dtype_name((dtype)i), names[i]);
        assert_int_equal(dtype_bytes((dtype)i), bytes[i]);
        assert_true(dtype_parse(names[i], &t));
        assert_int_equal(t, i);
    }
    dtype t;
    assert_false(dtype_parse("F4", &t));
    assert_false(dtype_parse("bf16", &t));
    assert_false(dtype_parse("", &t));
}

/* ---- refused files ---- */

static void test_refuses_lengths(void **state)
{
    (void)state;
    static const struct {
        uint64_t length;
        size_t header_bytes; /* of "{}" and spaces really there */
        const char *parts;
    } cases[] = {
        {0, 2, "x.safetensors|header length is 0"},
        {3, 2, "header length is 3|only 2 bytes"},
        {100000000, 2, "header length is 100000000|only 2 bytes"},
        {100000001, 2, "header length is 100000001|at most 100000000"},
        {UINT64_C(1) << 63, 2, "9223372036854775808|at most 100000000"},
        {UINT64_MAX, 2, "18446744073709551615|at most 100000000"},
        {UINT64_MAX - 7, 2, "18446744073709551608|at most 100000000"},
    };
    text bytes = {0};
    error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file_make(&bytes, cases[i].length, "{}", cases[i].header_bytes, 0);
        check_error(cases[i].parts, parse(&bytes, &err), &err, cases[i].parts);
    }
    file_make(&bytes, 2, "{}", 2, 0);
    for (bytes.length = 0; bytes.length < 8; bytes.length++)
        check_error("short", parse(&bytes, &err), &err, "x.safetensors|8 bytes of header length");
    bytes.length = 10;
    checkpoint *c = parse(&bytes, &err);
    assert_non_null(c);
    checkpoint_close(c);
    text_free(&bytes);
}

/* An entry for tensor "a.w" with these values. */
#define ENTRY(dtype, shape, offsets) "{\"a.w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define U8(name, begin, end, size) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" size "],\"data_offsets\":[" begin "," end "]}"

static void test_refuses_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *parts; /* all must be in the error */
    } cases[] = {
        /* JSON */
        {" {}", 0, "begins with byte 0x20|expected '{'"},
        {"[]", 0, "begins with byte 0x5B|expected '{'"},
        {"{", 0, "x.safetensors|not valid JSON|line 1"},
        {"{}x", 0, "not valid JSON"},
        {"{} {}", 0, "not valid JSON"},
        {"{\"a\xFF\":1}", 0, "not valid JSON|unable to decode byte 0xff"},
        {"{\"a\xC0\x80\":1}", 0, "not valid JSON|unable to decode byte 0xc0"},
        {"{" U8("same", "0", "1", "1") "," U8("same", "1", "2", "1") "}", 2, "duplicate|same"},
        {"{\"nul\\u0000name\":{}}", 0, "not valid JSON|NUL"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "x.safetensors|empty name"},
        /* entries */
        {"{\"a.w\":3}", 0, "x.safetensors|\"a.w\"|object|an integer"},
        {"{\"a.w\":null}", 0, "\"a.w\"|object|null"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"extra\":1}}", 1, "\"a.w\"|unknown key \"extra\""},
        {"{\"a.w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "\"a.w\"|\"dtype\"|nothing"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "\"a.w\"|\"shape\"|nothing"},
        {"{\"a.w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"a.w\"|\"data_offsets\"|nothing"},
        {ENTRY("7", "[1]", "[0,1]"), 1, "\"a.w\"|\"dtype\" must be a string|an integer"},
        {ENTRY("\"F4\"", "[1]", "[0,1]"), 1, "\"a.w\"|unknown dtype \"F4\"|BF16"},
        {ENTRY("\"U8\\u0000\"", "[1]", "[0,1]"), 1, "\"a.w\"|unknown dtype"},
        {ENTRY("\"U8\"", "1", "[0,1]"), 1, "\"a.w\"|\"shape\" must be an array|an integer"},
        {ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "\"a.w\"|9 dimensions|at most 8"},
        {ENTRY("\"U8\"", "[-1]", "[0,1]"), 1, "\"a.w\"|\"shape\" holds -1"},
        {ENTRY("\"U8\"", "[1.0]", "[0,1]"), 1, "\"a.w\"|\"shape\" must hold integers|a number"},
        {ENTRY("\"U8\"", "[1e0]", "[0,1]"), 1, "\"a.w\"|\"shape\" must hold integers|a number"},
        {ENTRY("\"U8\"", "[\"1\"]", "[0,1]"), 1, "\"a.w\"|\"shape\" must hold integers|a string"},
        {ENTRY("\"U8\"", "[true]", "[0,1]"), 1, "\"a.w\"|\"shape\" must hold integers|a boolean"},
        {ENTRY("\"U8\"", "[null]", "[0,1]"), 1, "\"a.w\"|\"shape\" must hold integers|null"},
        {ENTRY("\"U8\"", "[9007199254740993]", "[0,1]"), 1, "\"a.w\"|\"shape\" holds 9007199254740993|2^53"},
        {ENTRY("\"U8\"", "[18446744073709551616]", "[0,1]"), 1, "x.safetensors|too big integer"},
        {ENTRY("\"U8\"", "[9007199254740992,9007199254740992]", "[0,1]"), 1, "\"a.w\"|more than 2^64 bytes|[9007199254740992, "},
        {ENTRY("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "\"a.w\"|more than 2^64 bytes"},
        {ENTRY("\"U8\"", "[4294967296,4294967296,0]", "[0,0]"), 0, "\"a.w\"|more than 2^64 bytes"},
        {ENTRY("\"F64\"", "[4503599627370496,512]", "[0,0]"), 0, "\"a.w\"|more than 2^64 bytes|F64"},
        /* offsets */
        {ENTRY("\"U8\"", "[1]", "7"), 1, "\"a.w\"|\"data_offsets\" must be an array|an integer"},
        {ENTRY("\"U8\"", "[1]", "[0]"), 1, "\"a.w\"|\"data_offsets\" has 1 numbers|expected 2"},
        {ENTRY("\"U8\"", "[1]", "[0,1,2]"), 1, "\"a.w\"|\"data_offsets\" has 3 numbers"},
        {ENTRY("\"U8\"", "[1]", "[-1,0]"), 1, "\"a.w\"|\"data_offsets\" holds -1"},
        {ENTRY("\"U8\"", "[1]", "[0,1.5]"), 1, "\"a.w\"|\"data_offsets\" must hold integers|a number"},
        {ENTRY("\"U8\"", "[1]", "[\"0\",1]"), 1, "\"a.w\"|\"data_offsets\" must hold integers|a string"},
        {ENTRY("\"U8\"", "[1]", "[0,9007199254740993]"), 1, "\"a.w\"|\"data_offsets\" holds 9007199254740993"},
        {ENTRY("\"U8\"", "[1]", "[0,9223372036854775808]"), 1, "x.safetensors|too big integer"},
        {ENTRY("\"U8\"", "[1]", "[1,0]"), 1, "\"a.w\"|reversed|begin 1|end 0"},
        {ENTRY("\"U8\"", "[1]", "[9007199254740992,0]"), 1, "\"a.w\"|reversed"},
        {ENTRY("\"BF16\"", "[2,3]", "[0,11]"), 11, "\"a.w\"|[2, 3] of BF16 needs 12 bytes|span 11"},
        {ENTRY("\"U8\"", "[0]", "[0,1]"), 1, "\"a.w\"|needs 0 bytes|span 1"},
        {ENTRY("\"U8\"", "[]", "[0,0]"), 0, "\"a.w\"|needs 1 bytes|span 0"},
        {ENTRY("\"U8\"", "[9007199254740992]", "[0,9007199254740992]"), 1, "\"a.w\"|ends at byte 9007199254740992|only 1 bytes"},
        /* all together */
        {"{" U8("a.w", "0", "2", "2") "," U8("b.w", "1", "3", "2") "}", 3, "\"b.w\"|begins at byte 1|overlaps tensor \"a.w\"|ends at 2"},
        {"{" U8("a.w", "0", "2", "2") "," U8("b.w", "0", "2", "2") "}", 2, "\"b.w\"|begins at byte 0|overlaps tensor \"a.w\""},
        {"{" U8("a.w", "0", "2", "2") "," U8("b.w", "1", "1", "0") "}", 2, "\"b.w\"|begins at byte 1|overlaps tensor \"a.w\""},
        {"{" U8("a.w", "0", "2", "2") "," U8("b.w", "3", "4", "1") "}", 4, "\"b.w\"|begins at byte 3|expected 2|no tensor"},
        {"{" U8("a.w", "1", "2", "1") "}", 2, "\"a.w\"|begins at byte 1|expected 0"},
        {"{" U8("a.w", "0", "2", "2") "," U8("b.w", "2", "4", "2") "}", 3, "\"b.w\"|ends at byte 4|only 3 bytes|cut short"},
        {"{" U8("a.w", "0", "2", "2") "}", 3, "x.safetensors|end at byte 2|3 bytes of data"},
        {"{}", 1, "x.safetensors|end at byte 0|1 bytes of data"},
        {"{" U8("a.w", "1", "1", "0") "}", 1, "\"a.w\"|begins at byte 1|expected 0"},
        /* metadata */
        {"{\"__metadata__\":[]}", 0, "x.safetensors|__metadata__|object of strings|an array"},
        {"{\"__metadata__\":null}", 0, "__metadata__|object of strings|null"},
        {"{\"__metadata__\":{\"key\":1}}", 0, "__metadata__|\"key\"|must be a string|an integer"},
        {"{\"__metadata__\":{\"key\":{}}}", 0, "__metadata__|\"key\"|must be a string|an object"},
        {"{\"__metadata__\":{\"key\":\"a\\u0000b\"}}", 0, "__metadata__|\"key\"|NUL"},
    };
    error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(cases[i].header, parse_header(cases[i].header, cases[i].data_bytes, &err), &err, cases[i].parts);
}

static void test_refuses_deep_nesting(void **state)
{
    (void)state;
    text header = {0};
    error err;
    text_add_text(&header, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        text_add_char(&header, '[');
    check_error("deep", parse_header(header.data, 0, &err), &err, "x.safetensors|not valid JSON|depth");
    text_free(&header);
}

/* A name of any length and content leaves room for the fact, in one line of valid UTF-8. */
static void test_long_names_in_errors(void **state)
{
    (void)state;
    text header = {0};
    error err;
    for (int skip = 0; skip < 3; skip++) {
        text_clear(&header);
        text_add_format(&header, "{\"%.*s", skip, "xy");
        for (int i = 0; i < 5000; i++)
            text_add_text(&header, i == 5 ? "\\n" : "\xE2\x82\xAC");
        text_add_text(&header, "\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,0]}}");
        check_error("long name", parse_header(header.data, 0, &err), &err, "unknown dtype \"F4\"|...\"|F64");
        assert_true(utf8_valid(err.text, strlen(err.text)));
        assert_null(strchr(err.text, '\n'));
    }
    text_free(&header);
}

/* ---- speed ---- */

static void test_many_tensors(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    text header = {0};
    error err;
    for (int i = 0; i < COUNT; i++) {
        int at = (int)((int64_t)i * 7919 % COUNT); /* not in the order of the data */
        text_add_format(&header, "%c\"model.layers.%d.mlp.experts.%d.down_proj.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                        "\"data_offsets\":[%d,%d]}", i ? ',' : '{', at / 256, at % 256, at, at + 1);
    }
    text_add_char(&header, '}');
    uint64_t start = clock_now_us();
    checkpoint *c = parse_header(header.data, COUNT, &err);
    uint64_t us = clock_now_us() - start;
    assert_non_null(c);
    for (int i = 0; i < COUNT; i += 997) {
        char name[100];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", i / 256, i % 256);
        assert_ptr_equal(checkpoint_find(c, name), checkpoint_tensor(c, (size_t)i));
        assert_int_equal(checkpoint_tensor(c, (size_t)i)->data[0], i & 255);
    }
    checkpoint_close(c);
    text_free(&header);
    /* A quadratic pass over 10^5 names takes minutes; 10 s leaves room for sanitizers on a loaded machine. */
    assert_true(us < 10000000);
}

/* ---- directories ---- */

static checkpoint *open_in(const scratch *s, const char *name, error *err)
{
    text path = {0};
    *err = (error){0};
    path_join(&path, s->directory, name);
    checkpoint *c = checkpoint_open(path.data, err);
    text_free(&path);
    return c;
}

static void test_directories(void **state)
{
    (void)state;
    scratch s;
    error err;
    scratch_make(&s);
    check_error("empty directory", open_in(&s, "", &err), &err, "no .safetensors file|test_safetensors");
    check_error("absent", open_in(&s, "absent", &err), &err, "absent|cannot open");
    scratch_shard(&s, "other.safetensors", "other");
    scratch_shard(&s, ".hidden.safetensors", "hidden");
    checkpoint *c = open_in(&s, "", &err);
    assert_non_null(c);
    assert_non_null(checkpoint_find(c, "other"));
    assert_string_equal(checkpoint_shard_name(c, 0), "other.safetensors");
    checkpoint_close(c);
    scratch_shard(&s, "second.safetensors", "second");
    check_error("two files", open_in(&s, "", &err), &err, "several|other.safetensors|second.safetensors|index.json");
    scratch_shard(&s, "model.safetensors", "single");
    c = open_in(&s, "", &err);
    assert_non_null(c);
    assert_non_null(checkpoint_find(c, "single"));
    checkpoint_close(c);
    c = open_in(&s, "second.safetensors", &err);
    assert_non_null(c);
    assert_non_null(checkpoint_find(c, "second"));
    checkpoint_close(c);
    scratch_write(&s, "empty.safetensors", "", 0);
    check_error("empty file", open_in(&s, "empty.safetensors", &err), &err, "empty.safetensors|has 0 bytes");
    scratch_remove(&s, "other.safetensors .hidden.safetensors second.safetensors model.safetensors empty.safetensors");
}

static void test_index(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        const char *parts; /* NULL: accepted */
    } cases[] = {
        {"{\"metadata\":{\"total_size\":4},\"weight_map\":{\"c\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\","
         "\"b\":\"m-1.safetensors\",\"d\":\"m-2.safetensors\"}}", NULL},
        {"{\"metadata\":{}}", "index.json|\"weight_map\"|nothing"},
        {"[]", "index.json|\"weight_map\"|nothing"},
        {"{\"weight_map\":[]}", "index.json|\"weight_map\"|an array"},
        {"{\"weight_map\":{}}", "index.json|\"weight_map\"|an empty one"},
        {"{\"weight_map\":{\"a\":1}}", "index.json|\"a\"|must be a string|an integer"},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", "index.json|\"a\"|../m-1.safetensors|without '/'"},
        {"{\"weight_map\":{\"a\":\"sub/m-1.safetensors\"}}", "index.json|\"a\"|bad shard name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "index.json|\"a\"|bad shard name"},
        {"{\"weight_map\":{\"a\":\".m-1.safetensors\"}}", "index.json|\"a\"|bad shard name \".m-1.safetensors\""},
        {"{\"weight_map\":{\"a\":\"\"}}", "index.json|\"a\"|bad shard name"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\\u0000\"}}", "index.json|\"a\"|bad shard name"},
        {"{\"weight_map\":{\"a\":\"m\\n1.safetensors\"}}", "index.json|\"a\"|bad shard name"},
        {"{\"weight_map\":{\"a\":\"m-9.safetensors\"}}", "index.json|m-9.safetensors|missing"},
        {"{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}", "model.safetensors.index.json|header length"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\",\"zz\":\"m-1.safetensors\"}}",
         "index.json|\"zz\"|not in shard m-1.safetensors"},
        {"{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\",\"d\":\"m-2.safetensors\"}}",
         "index.json|\"a\" is in shard m-1.safetensors|puts it in m-2.safetensors"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\"}}", "index.json|\"b\" is in shard m-1.safetensors|not in the index"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-1.safetensors\",\"again\":\"m-3.safetensors\"}}",
         "\"b\" is in two shards|m-1.safetensors|m-3.safetensors"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-1.safetensors\"}}", "index.json|duplicate"},
        {"{\"weight_map\":", "index.json|not valid JSON"},
        {"", "index.json|not valid JSON"},
    };
    scratch s;
    error err;
    scratch_make(&s);
    scratch_shard(&s, "m-1.safetensors", "a b");
    scratch_shard(&s, "m-2.safetensors", "c d");
    scratch_shard(&s, "m-3.safetensors", "b again");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_write(&s, "model.safetensors.index.json", cases[i].index, strlen(cases[i].index));
        checkpoint *c = open_in(&s, "", &err);
        if (cases[i].parts) {
            check_error(cases[i].index, c, &err, cases[i].parts);
            continue;
        }
        assert_non_null(c);
        assert_int_equal(checkpoint_shards(c), 2);
        assert_int_equal(checkpoint_count(c), 4);
        assert_int_equal(checkpoint_bytes(c), 4);
        assert_string_equal(checkpoint_shard_name(c, checkpoint_find(c, "a")->shard), "m-1.safetensors");
        assert_string_equal(checkpoint_shard_name(c, checkpoint_find(c, "d")->shard), "m-2.safetensors");
        assert_int_equal(checkpoint_find(c, "d")->data[0], 1);
        checkpoint_close(c);
    }
    scratch_remove(&s, "m-1.safetensors m-2.safetensors m-3.safetensors model.safetensors.index.json");
}

/* ---- the writer ---- */

static safetensors_writer *writer_in(const scratch *s, const char *name)
{
    text path = {0};
    error err;
    path_join(&path, s->directory, name);
    safetensors_writer *w = safetensors_writer_open(path.data, &err);
    assert_non_null(w);
    text_free(&path);
    return w;
}

static void test_round_trip(void **state)
{
    (void)state;
    scratch s;
    error err;
    scratch_make(&s);
    safetensors_writer *w = writer_in(&s, "out.safetensors");
    safetensors_writer_metadata(w, "format", "pt");
    safetensors_writer_metadata(w, "note", "quote \" and \xC3\xA9");
    uint8_t bytes[64];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(200 - i);
    assert_true(safetensors_writer_declare(w, "z.first", DTYPE_BF16, 2, (int64_t[]){2, 3}, &err));
    assert_true(safetensors_writer_declare(w, "empty", DTYPE_F32, 2, (int64_t[]){0, 3}, &err));
    assert_true(safetensors_writer_declare(w, "a \"quoted\"", DTYPE_F8_E4M3, 1, (int64_t[]){5}, &err));
    assert_true(safetensors_writer_declare(w, "scalar", DTYPE_F32, 0, NULL, &err));
    assert_true(safetensors_writer_data(w, bytes, 1, &err));
    assert_true(safetensors_writer_data(w, bytes + 1, 15, &err));
    assert_true(safetensors_writer_data(w, bytes + 16, 0, &err));
    assert_true(safetensors_writer_data(w, bytes + 16, 5, &err));
    text path = {0}, file = {0};
    path_join(&path, s.directory, "out.safetensors");
    assert_false(file_exists(path.data));
    assert_true(safetensors_writer_commit(w, &err));

    assert_true(file_read(path.data, 10000, &file, &err));
    size_t length = (uint8_t)file.data[0] + 256u * (uint8_t)file.data[1];
    assert_int_equal(length % 8, 0);
    assert_int_equal(file.length, 8 + length + 21);
    checkpoint *c = checkpoint_open(path.data, &err);
    assert_non_null(c);
    assert_int_equal(checkpoint_count(c), 4);
    static const char *const names[] = {"z.first", "empty", "a \"quoted\"", "scalar"};
    static const int shift[] = {0, 12, 12, 17}, sizes[] = {12, 0, 5, 4};
    for (size_t i = 0; i < 4; i++) {
        const tensor *t = checkpoint_tensor(c, i);
        assert_string_equal(t->name, names[i]);
        assert_int_equal(t->bytes, sizes[i]);
        assert_memory_equal(t->data, bytes + shift[i], t->bytes);
    }
    assert_int_equal(checkpoint_find(c, "z.first")->type, DTYPE_BF16);
    assert_int_equal(checkpoint_find(c, "z.first")->shape[1], 3);
    assert_int_equal(checkpoint_find(c, "scalar")->rank, 0);
    assert_string_equal(checkpoint_metadata(c, 0, "note"), "quote \" and \xC3\xA9");
    checkpoint_close(c);
    text_free(&path);
    text_free(&file);
    scratch_remove(&s, "out.safetensors");
}

static void test_writer_empty(void **state)
{
    (void)state;
    scratch s;
    error err;
    scratch_make(&s);
    assert_true(safetensors_writer_commit(writer_in(&s, "out.safetensors"), &err));
    checkpoint *c = open_in(&s, "", &err);
    assert_non_null(c);
    assert_int_equal(checkpoint_count(c), 0);
    checkpoint_close(c);
    scratch_remove(&s, "out.safetensors");
}

static void check_failed(bool ok, const error *err, const char *part)
{
    assert_false(ok);
    if (!strstr(err->text, part))
        fail_msg("error lacks \"%s\": %s", part, err->text);
}

static void test_writer_refuses_declarations(void **state)
{
    (void)state;
    static const int64_t one[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    scratch s;
    error err;
    scratch_make(&s);
    safetensors_writer *w = writer_in(&s, "out.safetensors");
    assert_true(safetensors_writer_declare(w, "a", DTYPE_U8, 1, one, &err));
    check_failed(safetensors_writer_declare(w, "a", DTYPE_U8, 1, one, &err), &err, "\"a\" is declared twice");
    check_failed(safetensors_writer_declare(w, "", DTYPE_U8, 1, one, &err), &err, "cannot be the name");
    check_failed(safetensors_writer_declare(w, "__metadata__", DTYPE_U8, 1, one, &err), &err, "cannot be the name");
    check_failed(safetensors_writer_declare(w, "\xFF", DTYPE_U8, 1, one, &err), &err, "cannot be the name");
    check_failed(safetensors_writer_declare(w, "b", DTYPE_U8, 9, one, &err), &err, "\"b\" has rank 9");
    check_failed(safetensors_writer_declare(w, "b", DTYPE_U8, -1, one, &err), &err, "\"b\" has rank -1");
    check_failed(safetensors_writer_declare(w, "b", DTYPE_U8, 1, (int64_t[]){-1}, &err), &err, "\"b\" has a negative");
    check_failed(safetensors_writer_declare(w, "b", DTYPE_F64, 1, (int64_t[]){INT64_C(1) << 53}, &err), &err, "2^53");
    check_failed(safetensors_writer_declare(w, "b", DTYPE_F64, 2, (int64_t[]){INT64_MAX, 0}, &err), &err, "2^53");
    check_failed(safetensors_writer_declare(w, "b", DTYPE_U8, 2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 32}, &err), &err, "2^53");
    assert_true(safetensors_writer_data(w, "x", 1, &err));
    check_failed(safetensors_writer_declare(w, "late", DTYPE_U8, 1, one, &err), &err, "\"late\" was declared after");
    safetensors_writer_abandon(w);
    safetensors_writer_abandon(NULL);
    scratch_remove(&s, "");
}

static void test_writer_refuses_byte_counts(void **state)
{
    (void)state;
    scratch s;
    error err;
    scratch_make(&s);
    safetensors_writer *w = writer_in(&s, "out.safetensors");
    assert_true(safetensors_writer_declare(w, "a", DTYPE_U8, 1, (int64_t[]){4}, &err));
    assert_true(safetensors_writer_declare(w, "b", DTYPE_U8, 1, (int64_t[]){4}, &err));
    assert_true(safetensors_writer_data(w, "123456", 6, &err));
    check_failed(safetensors_writer_data(w, "123", 3, &err), &err, "3 bytes of data were given");
    assert_true(safetensors_writer_data(w, "1", 1, &err));
    check_failed(safetensors_writer_commit(w, &err), &err, "tensor \"b\" lacks 1 bytes: 7 of 8");

    w = writer_in(&s, "out.safetensors");
    assert_true(safetensors_writer_declare(w, "none", DTYPE_U8, 1, (int64_t[]){0}, &err));
    assert_true(safetensors_writer_declare(w, "a", DTYPE_U8, 1, (int64_t[]){4}, &err));
    check_failed(safetensors_writer_commit(w, &err), &err, "tensor \"a\" lacks 4 bytes: 0 of 4");

    w = writer_in(&s, "out.safetensors");
    assert_true(safetensors_writer_declare(w, "a", DTYPE_U8, 1, (int64_t[]){4}, &err));
    assert_true(safetensors_writer_declare(w, "b", DTYPE_U8, 1, (int64_t[]){4}, &err));
    assert_true(safetensors_writer_data(w, "1234", 4, &err));
    check_failed(safetensors_writer_commit(w, &err), &err, "tensor \"b\" lacks 4 bytes: 4 of 8");

    w = writer_in(&s, "out.safetensors");
    check_failed(safetensors_writer_data(w, "1", 1, &err), &err, "only 0 left of 0");
    safetensors_writer_metadata(w, "late", "value");
    check_failed(safetensors_writer_commit(w, &err), &err, "\"late\" was given after");

    w = writer_in(&s, "out.safetensors");
    safetensors_writer_metadata(w, "key", "\xFF");
    check_failed(safetensors_writer_data(w, "", 0, &err), &err, "\"key\"");
    check_failed(safetensors_writer_commit(w, &err), &err, "UTF-8");
    scratch_remove(&s, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_tensors), cmocka_unit_test(test_empty_checkpoints), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_refuses_lengths), cmocka_unit_test(test_refuses_headers), cmocka_unit_test(test_refuses_deep_nesting),
        cmocka_unit_test(test_long_names_in_errors), cmocka_unit_test(test_many_tensors), cmocka_unit_test(test_directories),
        cmocka_unit_test(test_index), cmocka_unit_test(test_round_trip), cmocka_unit_test(test_writer_empty),
        cmocka_unit_test(test_writer_refuses_declarations), cmocka_unit_test(test_writer_refuses_byte_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
