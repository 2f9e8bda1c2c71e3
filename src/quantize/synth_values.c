/* 16 random bits choose an entry of a table of 65,536: the quantiles of a distribution that is very nearly normal, the sum of six
 * dice of 256 sides, as values or as codes. */
#include "quantize/synth_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/random.h"
#include "formats/scalar.h"

enum {
    LEVELS = 1 << 16, /* of the tables */
    DICE = 6,
    SIDES = 256,
    MOST = DICE * (SIDES - 1), /* largest sum */
    BLOCK = 128,               /* FP8_BLOCK's rows and columns per scale */
    NVFP4_SCALE = 0x70,        /* e4m3 code of 128; the scales of blocks are this and the next seven codes, up to 240 */
    NVFP4_SCALES = 8,
};

/* Deviations of the codes' values, about where rounding to nearest would put them: the largest of 32 normal values is near 2.1
 * deviations and becomes 4 or 6 in e2m1; the largest of 128 x 128 is near 4 and becomes 448 in e4m3. */
static const float e2m1_deviation = 2.4f, e4m3_deviation = 110.0f;

struct synth_values {
    uint64_t seed;
    const model_config *config;
    float normal[LEVELS];
    uint8_t fp4_pairs[LEVELS]; /* two e2m1 codes, each of 256 quantiles */
    uint8_t fp8[LEVELS];       /* e4m3 codes */
    double fp4_deviation, fp8_deviation; /* of the decoded codes, rounding included */
};

/* ---- tables ---- */

/* ways[s]: in how many ways the dice give the sum s. */
static void count_sums(uint64_t ways[MOST + 1])
{
    memset(ways, 0, (MOST + 1) * sizeof *ways);
    ways[0] = 1;
    for (int d = 0; d < DICE; d++) {
        uint64_t before[MOST + 1];
        memcpy(before, ways, sizeof before);
        for (int s = 0; s <= MOST; s++) {
            ways[s] = 0;
            for (int side = 0; side < SIDES && side <= s; side++)
                ways[s] += before[s - side];
        }
    }
}

static void make_normal(float normal[LEVELS])
{
    uint64_t ways[MOST + 1], below = 0;
    const uint64_t step = UINT64_C(1) << (8 * DICE - 16); /* of all SIDES^DICE ways, one level's share */
    const double middle = MOST / 2.0, deviation = sqrt(DICE * ((double)SIDES * SIDES - 1) / 12);
    int sum = 0;
    count_sums(ways);
    for (uint64_t i = 0; i < LEVELS; i++) {
        while (below + ways[sum] <= i * step + step / 2)
            below += ways[sum++];
        normal[i] = (float)((sum - middle) / deviation);
    }
}

static void make_codes(synth_values *v)
{
    double squares4 = 0, squares8 = 0;
    for (int i = 0; i < LEVELS; i++) {
        uint8_t low = e2m1_encode(e2m1_deviation * v->normal[(i & 255) * 256 + 128]);
        uint8_t high = e2m1_encode(e2m1_deviation * v->normal[(i >> 8) * 256 + 128]);
        v->fp4_pairs[i] = (uint8_t)(low | high << 4);
        v->fp8[i] = e4m3_encode(e4m3_deviation * v->normal[i]);
        squares4 += (double)(e2m1_decode(low) * e2m1_decode(low));
        squares8 += (double)(e4m3_decode(v->fp8[i]) * e4m3_decode(v->fp8[i]));
    }
    v->fp4_deviation = sqrt(squares4 / LEVELS);
    v->fp8_deviation = sqrt(squares8 / LEVELS);
}

synth_values *synth_values_create(const model_config *config, uint64_t seed)
{
    synth_values *v = mem_alloc(1, sizeof *v);
    v->seed = seed;
    v->config = config;
    make_normal(v->normal);
    make_codes(v);
    return v;
}

void synth_values_free(synth_values *v)
{
    free(v);
}

/* ---- how large ---- */

static double deviation_of(const synth_values *v, const plan_entry *e)
{
    double gain = 1, fan_in = (double)e->source.cols;
    if (e->class == CLASS_EMBEDDING && !v->config->tie_embeddings)
        return 1;
    if (e->class == CLASS_EMBEDDING || e->class == CLASS_HEAD)
        gain = 2; /* of the logits */
    else if (text_ends_with(e->module, ".o_proj") || text_ends_with(e->module, ".down_proj"))
        gain = sqrt(0.5 / v->config->layers);
    return gain / sqrt(fan_in);
}

/* ---- rows ---- */

static uint64_t key_of(const synth_values *v, const char *name)
{
    return random_key(v->seed, XXH3_64bits(name, strlen(name)));
}

/* Every row begins with a word of its own, so that rows can be made apart. */
static uint64_t first_word(int64_t row, size_t per_row, size_t per_word)
{
    return (uint64_t)row * ((per_row + per_word - 1) / per_word);
}

/* `count` bytes of a row, 16 random bits each. */
static void fill_codes(const uint8_t *table, uint64_t key, uint64_t word, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; word++) {
        uint64_t bits = random_word_at(key, word);
        for (int k = 0; k < 4 && i < count; k++, bits >>= 16)
            out[i++] = table[bits & 0xFFFF];
    }
}

static void fill_bf16(const float *normal, float deviation, uint64_t key, uint64_t word, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; word++) {
        uint64_t bits = random_word_at(key, word);
        for (int k = 0; k < 4 && i < count; k++, bits >>= 16, i++) {
            uint16_t code = bf16_encode(deviation * normal[bits & 0xFFFF]);
            memcpy(out + 2 * i, &code, sizeof code);
        }
    }
}

/* Powers of two below and above the wanted scale, in the shares that give the wanted variance. */
static void fill_e8m0(double scale, uint64_t key, uint64_t word, size_t count, uint8_t *out)
{
    int exponent;
    double mantissa = 2 * frexp(scale, &exponent); /* 1 <= mantissa < 2, scale = mantissa * 2^(exponent-1) */
    int low = exponent - 1 + 127;
    unsigned share = (unsigned)((mantissa * mantissa - 1) / 3 * 256);
    low = low < 1 ? 1 : low > 253 ? 253 : low;
    for (size_t i = 0; i < count; word++) {
        uint64_t bits = random_word_at(key, word);
        for (int k = 0; k < 8 && i < count; k++, bits >>= 8)
            out[i++] = (uint8_t)(low + ((bits & 255) < share));
    }
}

static void fill_e4m3(uint64_t key, uint64_t word, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count; word++) {
        uint64_t bits = random_word_at(key, word);
        for (int k = 0; k < 8 && i < count; k++, bits >>= 8)
            out[i++] = (uint8_t)(NVFP4_SCALE + (bits & (NVFP4_SCALES - 1)));
    }
}

/* Between 0.9 and 1.1 of the wanted scale. */
static void fill_f32(double scale, uint64_t key, uint64_t first, uint64_t count, uint8_t *out)
{
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)(scale * (0.9 + 0.2 * random_uniform_at(key, first + i)));
        memcpy(out + i * sizeof value, &value, sizeof value);
    }
}

/* Mean square of the e4m3 scales that fill_e4m3 chooses among, as a deviation. */
static double nvfp4_scale_deviation(void)
{
    double squares = 0;
    for (int i = 0; i < NVFP4_SCALES; i++) {
        double value = (double)e4m3_decode((uint8_t)(NVFP4_SCALE + i));
        squares += value * value;
    }
    return sqrt(squares / NVFP4_SCALES);
}

float synth_values_largest(const synth_values *v, const plan_entry *e)
{
    return (float)(deviation_of(v, e) / (v->fp4_deviation * nvfp4_scale_deviation()) * 6 * 448);
}

static void make_scales(const synth_values *v, const plan_entry *e, int64_t first_row, int64_t rows, uint8_t *out)
{
    const int64_t cols = e->source.cols, blocks = (cols + BLOCK - 1) / BLOCK;
    const size_t per_row = e->to->id == FORMAT_MXFP4 ? (size_t)cols / 32 : (size_t)cols / 16;
    double scale = deviation_of(v, e) / (e->to->id == FORMAT_MXFP4 ? v->fp4_deviation : v->fp8_deviation);
    uint64_t key = key_of(v, e->outputs[1].name);
    if (e->to->id == FORMAT_FP8_BLOCK) {
        fill_f32(scale, key, (uint64_t)(first_row / BLOCK * blocks), (uint64_t)((rows + BLOCK - 1) / BLOCK * blocks), out);
        return;
    }
    if (e->to->id == FORMAT_FP8_CHANNEL) {
        fill_f32(scale, key, (uint64_t)first_row, (uint64_t)rows, out);
        return;
    }
    for (int64_t r = first_row; r < first_row + rows; r++, out += per_row)
        if (e->to->id == FORMAT_MXFP4)
            fill_e8m0(scale, key, first_word(r, per_row, 8), per_row, out);
        else
            fill_e4m3(key, first_word(r, per_row, 8), per_row, out);
}

void synth_values_make(const void *context, const plan_entry *e, int64_t first_row, int64_t rows, uint8_t *data, uint8_t *scales)
{
    const synth_values *v = context;
    const size_t row_bytes = format_row_bytes(e->to, e->source.cols), cols = (size_t)e->source.cols;
    const uint8_t *codes = e->to->bits == 4 ? v->fp4_pairs : v->fp8;
    uint64_t key = key_of(v, e->outputs[0].name);
    for (int64_t r = first_row; r < first_row + rows; r++, data += row_bytes)
        if (e->to->id == FORMAT_BF16)
            fill_bf16(v->normal, (float)deviation_of(v, e), key, first_word(r, cols, 4), cols, data);
        else
            fill_codes(codes, key, first_word(r, row_bytes, 4), row_bytes, data);
    if (e->to->scale_bytes)
        make_scales(v, e, first_row, rows, scales);
}

void synth_values_vector(const void *context, const tensor *t, uint8_t *out)
{
    const synth_values *v = context;
    bool bias = text_ends_with(t->name, "bias");
    uint64_t key = key_of(v, t->name);
    for (int64_t i = 0; i < t->shape[0]; i++) {
        float z = v->normal[random_word_at(key, (uint64_t)i) & 0xFFFF];
        float value = bias ? 0.01f * z : 1.0f + 0.05f * z;
        uint16_t code = bf16_encode(value);
        if (t->type == DTYPE_F32)
            memcpy(out + (size_t)i * sizeof value, &value, sizeof value);
        else
            memcpy(out + (size_t)i * sizeof code, &code, sizeof code);
    }
}
