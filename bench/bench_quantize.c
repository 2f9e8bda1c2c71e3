/* How fast rows are encoded in memory on one core: GB/s of BF16 input for each target format, rule, variant, with and without search
 * and statistics, over a matrix of 2048 x 6144 (one expert projection of GLM-5.2), and the relative L2 error that comes out.
 * CPU time, best of several passes.
 *
 *   bench_quantize [CHECKPOINT]   errors are those of normal values, and with a checkpoint those of its BF16 matrices */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/random.h"
#include "formats/format.h"
#include "formats/safetensors.h"
#include "formats/scalar.h"
#include "quantize/encode.h"

enum { ROWS = 2048, COLS = 6144, PASSES = 5 };

/* A bf16 matrix of normal values with standard deviation 0.02; the caller frees data. */
static matrix make_source(void)
{
    uint8_t *data = mem_alloc((size_t)ROWS * COLS, 2);
    for (uint64_t i = 0; i < (uint64_t)ROWS * COLS; i++) {
        double normal = sqrt(-2.0 * log(random_uniform(1, i, 0))) * cos(2.0 * 3.14159265358979 * random_uniform(1, i, 1));
        uint16_t code = bf16_encode((float)(normal * 0.02));
        memcpy(data + 2 * i, &code, sizeof code);
    }
    return (matrix){format_of(FORMAT_BF16), ROWS, COLS, data, NULL, 1.0f};
}

static bool encode_all(const matrix *source, const encode_options *o, encode_stats *stats)
{
    uint64_t data_bytes, scale_bytes;
    const format *f = format_of(o->to);
    if (!format_data_bytes(f, source->rows, source->cols, &data_bytes) || !format_scale_bytes(f, source->rows, source->cols, &scale_bytes))
        return false;
    uint8_t *data = mem_alloc(data_bytes, 1), *scales = mem_alloc(scale_bytes + 1, 1);
    error err;
    float largest;
    bool ok = encode_largest(source, 0, source->rows, &largest, &err) &&
              encode_rows(source, 0, source->rows, o, encode_tensor_scale(o->to, largest), data, scales, stats, &err);
    if (!ok)
        printf("%s\n", err.text);
    free(data);
    free(scales);
    return ok;
}

/* GB/s of input, as the quantizer calls it: 128 rows at a time, into memory that is warm. */
static double measure(const matrix *source, const encode_options *o, bool with_stats)
{
    uint64_t data_bytes = 0, scale_bytes = 0;
    const format *f = format_of(o->to);
    format_data_bytes(f, 128, COLS, &data_bytes);
    format_scale_bytes(f, 128, COLS, &scale_bytes);
    uint8_t *data = mem_alloc(data_bytes, 1), *scales = mem_alloc(scale_bytes + 1, 1);
    double best = 0.0;
    for (int pass = 0; pass < PASSES; pass++) {
        encode_stats stats = {0};
        clock_t start = clock();
        for (int64_t row = 0; row < ROWS; row += 128)
            if (!encode_rows(source, row, 128, o, 1.0f / 2688.0f, data, scales, with_stats ? &stats : NULL, NULL))
                return 0.0;
        double rate = (double)ROWS * COLS * 2.0 * 1e-9 / ((double)(clock() - start) / CLOCKS_PER_SEC);
        best = rate > best ? rate : best;
    }
    free(data);
    free(scales);
    return best;
}

typedef struct target {
    format_id to;
    scale_rule rule;
    bool search;
} target;

static const target targets[] = {
    {FORMAT_F32, SCALE_EVEN, false},   {FORMAT_BF16, SCALE_EVEN, false},  {FORMAT_FP8_BLOCK, SCALE_EVEN, false},
    {FORMAT_MXFP4, SCALE_EVEN, false}, {FORMAT_MXFP4, SCALE_FLOOR, false}, {FORMAT_MXFP4, SCALE_CEIL, false},
    {FORMAT_MXFP4, SCALE_EVEN, true},  {FORMAT_MXFP4, SCALE_FLOOR, true},  {FORMAT_MXFP4, SCALE_CEIL, true},
    {FORMAT_NVFP4, SCALE_EVEN, false}, {FORMAT_NVFP4, SCALE_EVEN, true}};
enum { TARGETS = sizeof targets / sizeof *targets };

static void print_target(const target *t)
{
    printf("%-10s %-6s %-7s", format_of(t->to)->name, t->to == FORMAT_MXFP4 ? scale_rule_name(t->rule) : "", t->search ? "search" : "");
}

static void print_speeds(const matrix *source)
{
    printf("GB/s of BF16 input, one core\n%-10s %-6s %-7s", "to", "rule", "");
    for (encode_variant v = ENCODE_GENERIC; v < ENCODE_VARIANTS; v++)
        if (encode_variant_available(v))
            printf(" %9s   +stats", encode_variant_name(v));
    printf("\n");
    for (int i = 0; i < TARGETS; i++) {
        print_target(&targets[i]);
        for (encode_variant v = ENCODE_GENERIC; v < ENCODE_VARIANTS; v++) {
            encode_options o = {.to = targets[i].to, .rule = targets[i].rule, .search = targets[i].search, .variant = v};
            if (encode_variant_available(v))
                printf(" %9.2f %8.2f", measure(source, &o, false), measure(source, &o, true));
        }
        printf("\n");
    }
}

static void print_error(const char *name, const encode_stats *s)
{
    printf("  %-8s relative L2 %.6f  cosine %.7f  max %.4g", name, encode_stats_relative_l2(s), encode_stats_cosine(s), s->max_error);
}

/* Adds every BF16 matrix of a checkpoint that fits the target. */
static void measure_checkpoint(const checkpoint *files, const target *t, encode_stats *stats)
{
    encode_options o = {.to = t->to, .rule = t->rule, .search = t->search};
    for (size_t i = 0; i < checkpoint_count(files); i++) {
        const tensor *x = checkpoint_tensor(files, i);
        if (x->type != DTYPE_BF16 || x->rank != 2 || x->shape[1] % 32 != 0 || strstr(x->name, "embed") || strstr(x->name, "lm_head"))
            continue;
        matrix m = {format_of(FORMAT_BF16), x->shape[0], x->shape[1], x->data, NULL, 1.0f};
        encode_all(&m, &o, stats);
    }
}

/* files: NULL without a checkpoint. */
static void print_errors(const matrix *source, const checkpoint *files)
{
    printf("\nerror\n");
    for (int i = 0; i < TARGETS; i++) {
        encode_options o = {.to = targets[i].to, .rule = targets[i].rule, .search = targets[i].search};
        encode_stats stats = {0}, file_stats = {0};
        print_target(&targets[i]);
        encode_all(source, &o, &stats);
        print_error("normal", &stats);
        if (files) {
            measure_checkpoint(files, &targets[i], &file_stats);
            print_error("checkpoint", &file_stats);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    error err;
    checkpoint *files = argc > 1 ? checkpoint_open(argv[1], &err) : NULL;
    if (argc > 1 && !files) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    matrix source = make_source();
    print_speeds(&source);
    print_errors(&source, files);
    if (files)
        checkpoint_close(files);
    free((void *)(uintptr_t)source.data);
    return 0;
}
