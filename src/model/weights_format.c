/* How one matrix is stored, told by its headers alone:
 *
 *     weight        scales                                            read as
 *     BF16, F32     -                                                 bf16, f32
 *     F8_E4M3       weight_scale_inv F32 [rows/128][cols/128]         fp8, blocks of 128 x 128
 *     F8_E4M3       weight_scale F32 [rows] or [rows][1]              fp8, one scale per row
 *     U8, packed    weight_scale U8 or F8_E8M0 [rows][cols/32]        mxfp4
 *     U8, packed    weight_scale F8_E4M3 [rows][cols/16],
 *                   weight_scale_2 F32, one value                     nvfp4
 *
 * Everything else is refused with the tensor's name. */
#include <math.h>
#include <string.h>

#include "model/load.h"

static bool shape_is(const tensor *t, int rank, const int64_t *shape)
{
    if (t->rank != rank)
        return false;
    for (int i = 0; i < rank; i++)
        if (t->shape[i] != shape[i])
            return false;
    return true;
}

static const char *shape_text(int rank, const int64_t *shape, char *buffer, size_t capacity)
{
    tensor t = {.rank = rank};
    memcpy(t.shape, shape, (size_t)rank * sizeof *shape);
    return tensor_shape_text(&t, buffer, capacity);
}

static bool tensor_error(loader *l, const tensor *t, const char *reason)
{
    char found[160];
    return error_set(l->err, ERROR_INPUT, "%s/%s: tensor %s is %s %s, %s", l->m->directory, checkpoint_shard_name(l->c, t->shard),
                     t->name, dtype_name(t->type), tensor_shape_text(t, found, sizeof found), reason);
}

/* Expected shape [experts][rows][cols], the first only when experts is not 0. */
static bool check_shape(loader *l, const tensor *t, int64_t experts, int64_t rows, int64_t cols)
{
    const int64_t shape[3] = {experts, rows, cols};
    int skip = experts ? 0 : 1;
    if (shape_is(t, 3 - skip, shape + skip))
        return true;
    char expected[160], reason[240];
    snprintf(reason, sizeof reason, "expected shape %s", shape_text(3 - skip, shape + skip, expected, sizeof expected));
    return tensor_error(l, t, reason);
}

static const tensor *find_ending(loader *l, const char *module, const char *ending)
{
    text_clear(&l->name);
    text_add_format(&l->name, "%s%s", module, ending);
    return load_find(l, l->name.data);
}

static float read_f32(const uint8_t *bytes)
{
    float value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static bool check_finite(loader *l, const tensor *t)
{
    for (uint64_t i = 0; i < t->bytes / sizeof(float); i++) {
        char reason[120];
        float value = read_f32(t->data + i * sizeof(float));
        if (isfinite(value))
            continue;
        snprintf(reason, sizeof reason, "and its value %llu is %g: the file is damaged, download it again", (unsigned long long)i,
                 (double)value);
        return tensor_error(l, t, reason);
    }
    return true;
}

static bool store(const tensor *weight, const tensor *scales, format_id id, int64_t rows, int64_t cols, stored_matrix *out)
{
    const format *f = format_of(id);
    out->weight = weight;
    out->first = (matrix){f, rows, cols, weight->data, scales ? scales->data : NULL, 1.0f};
    return format_data_bytes(f, rows, cols, &out->data_bytes) && format_scale_bytes(f, rows, cols, &out->scale_bytes);
}

/* weight_scale [rows] or [rows][1], of a stacked tensor [experts][rows] or [experts][rows][1]. */
static bool load_fp8_channel(loader *l, const tensor *weight, const tensor *scales, int64_t experts, int64_t rows, int64_t cols,
                             stored_matrix *out)
{
    const int64_t shape[3] = {experts, rows, 1};
    int skip = experts ? 0 : 1;
    if (scales->type != DTYPE_F32)
        return tensor_error(l, scales, "expected F32");
    if (!shape_is(scales, 2 - skip, shape + skip) && !shape_is(scales, 3 - skip, shape + skip))
        return tensor_error(l, scales,
                            "expected one scale per row of the weight (one scale per matrix is not supported; quantize again "
                            "with a scale per row or per 128 x 128 block)");
    return check_finite(l, scales) && store(weight, scales, FORMAT_FP8_CHANNEL, rows, cols, out);
}

static bool load_fp8(loader *l, const tensor *weight, const char *module, const tensor_endings *e, int64_t experts, int64_t rows,
                     int64_t cols, stored_matrix *out)
{
    const tensor *scales = find_ending(l, module, e->scale_inverse);
    if (!check_shape(l, weight, experts, rows, cols))
        return false;
    const tensor *channels = scales ? NULL : find_ending(l, module, e->scale);
    if (channels)
        return load_fp8_channel(l, weight, channels, experts, rows, cols, out);
    if (!scales) {
        find_ending(l, module, e->scale_inverse);
        load_missing(l, l->name.data);
        return true;
    }
    if (scales->type != DTYPE_F32)
        return tensor_error(l, scales, "expected F32");
    return check_shape(l, scales, experts, (rows + 127) / 128, (cols + 127) / 128) && check_finite(l, scales) &&
           store(weight, scales, FORMAT_FP8_BLOCK, rows, cols, out);
}

/* NVFP4's one scale per matrix: shape [] or [1], or [experts] for a stacked tensor. */
static bool load_tensor_scale(loader *l, const char *module, const tensor_endings *e, int64_t experts, stored_matrix *out)
{
    const tensor *t = find_ending(l, module, e->tensor_scale);
    if (!t) {
        load_missing(l, l->name.data);
        return true;
    }
    const int64_t shape[1] = {experts ? experts : 1};
    if (t->type != DTYPE_F32)
        return tensor_error(l, t, "expected F32");
    if (!shape_is(t, 1, shape) && !(experts == 0 && t->rank == 0))
        return tensor_error(l, t, experts ? "expected one value per expert" : "expected one value");
    out->tensor_scales = t->data;
    out->first.scale = read_f32(t->data);
    return check_finite(l, t);
}

static bool load_fp4(loader *l, const tensor *weight, const char *module, const tensor_endings *e, int64_t experts, int64_t rows,
                     int64_t cols, stored_matrix *out)
{
    const tensor *scales = find_ending(l, module, e->scale);
    if (!scales) {
        load_missing(l, l->name.data);
        return true;
    }
    bool nvidia = scales->type == DTYPE_F8_E4M3;
    int64_t block = nvidia ? 16 : 32;
    if (!nvidia && scales->type != DTYPE_U8 && scales->type != DTYPE_F8_E8M0)
        return tensor_error(l, scales, "expected U8 or F8_E8M0 (MXFP4) or F8_E4M3 (NVFP4)");
    if (cols % block != 0)
        return tensor_error(
            l, weight, nvidia ? "but its rows are not a multiple of 16 values" : "but its rows are not a multiple of 32 values");
    if (!check_shape(l, weight, experts, rows, cols / 2) || !check_shape(l, scales, experts, rows, cols / block))
        return false;
    return store(weight, scales, nvidia ? FORMAT_NVFP4 : FORMAT_MXFP4, rows, cols, out) &&
           (!nvidia || load_tensor_scale(l, module, e, experts, out));
}

bool load_stored(loader *l, const char *module, const tensor_endings *e, int64_t experts, int64_t rows, int64_t cols,
                 stored_matrix *out)
{
    *out = (stored_matrix){0};
    const tensor *weight = find_ending(l, module, e->weight);
    if (!weight) {
        load_missing(l, l->name.data);
        return true;
    }
    switch (weight->type) {
    case DTYPE_BF16: return check_shape(l, weight, experts, rows, cols) && store(weight, NULL, FORMAT_BF16, rows, cols, out);
    case DTYPE_F32: return check_shape(l, weight, experts, rows, cols) && store(weight, NULL, FORMAT_F32, rows, cols, out);
    case DTYPE_F8_E4M3: return load_fp8(l, weight, module, e, experts, rows, cols, out);
    case DTYPE_U8: return load_fp4(l, weight, module, e, experts, rows, cols, out);
    default:
        return tensor_error(l, weight,
                            "a type that is not supported for weights (BF16, F32, F8_E4M3 with weight_scale_inv or weight_scale, "
                            "U8 with weight_scale)");
    }
}

matrix stored_at(const stored_matrix *s, int64_t index)
{
    matrix m = s->first;
    m.data += (uint64_t)index * s->data_bytes;
    m.scales = m.scales ? m.scales + (uint64_t)index * s->scale_bytes : NULL;
    if (s->tensor_scales)
        m.scale = read_f32(s->tensor_scales + (uint64_t)index * sizeof(float));
    return m;
}

bool load_vector(loader *l, const char *name, int64_t count, const float **out)
{
    const tensor *t = load_find(l, name);
    if (!t) {
        load_missing(l, name);
        return true;
    }
    if (t->type != DTYPE_BF16 && t->type != DTYPE_F32)
        return tensor_error(l, t, "expected BF16 or F32");
    if (!shape_is(t, 1, &count)) {
        char reason[80];
        snprintf(reason, sizeof reason, "expected shape [%lld]", (long long)count);
        return tensor_error(l, t, reason);
    }
    float *values = arena_alloc(&l->m->memory, (size_t)count, sizeof *values);
    matrix row = {format_of(t->type == DTYPE_F32 ? FORMAT_F32 : FORMAT_BF16), 1, count, t->data, NULL, 1.0f};
    matrix_row(&row, 0, values);
    *out = values;
    for (int64_t i = 0; i < count; i++) {
        char reason[120];
        if (isfinite(values[i]))
            continue;
        snprintf(reason, sizeof reason, "and its value %lld is %g: the file is damaged, download it again", (long long)i,
                 (double)values[i]);
        return tensor_error(l, t, reason);
    }
    return true;
}
