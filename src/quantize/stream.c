/* How a file is written.
 *
 *     round k      | piece | piece | piece | ...      pieces of rows, encoded by all threads
 *     round k - 1  | segment | segment | ...          the same bytes in the order of the file: written and hashed by one of them
 *
 * A piece is some rows of one matrix; its codes go to the round's buffer, its scales to a buffer of the matrix, because the file has
 * all codes before the first scale. When those scales alone would take more than SCALES_BYTES, the matrix is encoded twice instead:
 * once for its codes, once for its scales. NVFP4 needs the largest value of a matrix before the first piece of it, so a round that
 * begins such matrices starts with a pass over them. Sums of errors are merged in the order of the pieces, whose size is fixed. */
#include "quantize/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"

enum {
    ROUND_BYTES = 32 << 20,        /* of result in one stream_round */
    ROUND_SOURCE_BYTES = 64 << 20, /* of source in one stream_round */
    ROUND_PIECES = 2048,
    PIECE_SOURCE_BYTES = 1 << 20,
    SCALES_BYTES = 64 << 20,       /* of one matrix, held until they are written */
    ROW_BLOCK = 128,               /* fp8_block's; pieces begin at a multiple of it */
};

typedef enum piece_kind { PIECE_ENCODE, PIECE_CHECK, PIECE_LARGEST } piece_kind;

/* One unit of parallel work. */
typedef struct piece {
    piece_kind kind;
    plan_entry *entry;
    int64_t first_row, rows;     /* ENCODE, LARGEST */
    uint8_t *data, *scales;      /* ENCODE: where the codes and scales go */
    const uint8_t *bytes;        /* CHECK: values of a copied tensor */
    size_t byte_count;           /* 0: of a type in which every code is finite */
    dtype type;
    bool is_scale;
    uint64_t first_value;        /* CHECK: index of the first one */
    const float *importance;     /* ENCODE: [cols], or NULL */
    encode_stats stats;
    bool measured;               /* stats count */
    float largest;               /* LARGEST */
    bool failed;
    error err;
} piece;

/* Bytes for the file, in order. */
typedef struct segment {
    const void *bytes;
    size_t count;
    bool mapped;   /* bytes are the source's: give the pages back afterwards */
    uint8_t *owned; /* freed afterwards; NULL: nothing */
} segment;

typedef struct stream_round {
    uint8_t *buffer; /* [capacity] */
    size_t used;
    piece *pieces;
    size_t piece_count;
    segment *segments;
    size_t segment_count, segment_capacity;
    uint64_t source_bytes;
    float scalars[2 * ROUND_PIECES]; /* tensor scales, to have an address */
    size_t scalar_count;
} stream_round;

/* The file being written. */
typedef struct sink {
    safetensors_writer *writer;
    const plan *p;
    size_t entry, end;    /* the entry whose bytes come next, and the one after the last */
    int output;           /* its output */
    uint64_t left;        /* bytes of that output */
    XXH3_state_t *file_hash, *tensor_hash;
    shard_result *result;
    bool failed;
    error err;
} sink;

/* Where the making of pieces is. */
typedef struct cursor {
    size_t entry, end;
    int64_t row;        /* next row of the entry */
    int pass;           /* 1: the second pass over a matrix with large scales */
    uint64_t offset;    /* next byte of a copied tensor */
    int copied_part;    /* 0: data, 1: scales, 2: both are done */
    uint8_t *scales;    /* of the entry, until they are in a segment; NULL: none, or two passes */
} cursor;

struct stream {
    plan *p;
    stream_options options;
    pool *workers;
    progress *shown;
    uint64_t done_bytes; /* of source, for the progress */
    size_t capacity;     /* of a round's buffer */
    stream_round rounds[2];
    piece *largest;      /* pieces of the pass for NVFP4 */
    size_t largest_count, largest_capacity;
    sink sink;
    cursor at;
};

void shard_result_free(shard_result *r)
{
    free(r->hashes);
    *r = (shard_result){0};
}

size_t shard_tensors(const plan *p, size_t shard)
{
    size_t count = 0;
    for (size_t i = 0; i < p->shards[shard].count; i++)
        count += (size_t)p->entries[p->shards[shard].first + i].output_count;
    return count;
}

/* ---- importance ---- */

/* "mlp.experts.7.up_proj" -> "mlp.experts.up_proj"; false when there is no such number. */
static bool without_expert(const char *module, text *out)
{
    static const char experts[] = ".mlp.experts.";
    const char *at = strstr(module, experts);
    if (!at)
        return false;
    at += sizeof experts - 1;
    size_t digits = strspn(at, "0123456789");
    text_clear(out);
    text_add(out, module, (size_t)(at - module));
    text_add_text(out, at + digits + (at[digits] == '.'));
    return digits > 0;
}

bool stream_importance(const checkpoint *file, const char *module, int64_t cols, const float **out, error *err)
{
    *out = NULL;
    const tensor *t = file ? checkpoint_find(file, module) : NULL;
    text shared = {0};
    if (file && !t && without_expert(module, &shared))
        t = checkpoint_find(file, shared.data);
    text_free(&shared);
    if (!t)
        return true;
    if (t->type != DTYPE_F32 || t->rank != 1 || t->shape[0] != cols)
        return error_set(err, ERROR_INPUT, "--importance: tensor %s must be F32 [%lld], one value per column of %s", t->name,
                         (long long)cols, module);
    if ((uintptr_t)t->data % sizeof(float) != 0)
        return error_set(err, ERROR_INPUT, "--importance: tensor %s is not aligned to 4 bytes in its file; write the file again",
                         t->name);
    const float *values = (const float *)(const void *)t->data;
    for (int64_t i = 0; i < cols; i++)
        if (!isfinite(values[i]) || values[i] < 0.0f)
            return error_set(err, ERROR_INPUT, "--importance: tensor %s, value %lld is %g; expected finite and not negative",
                             t->name, (long long)i, (double)values[i]);
    *out = values;
    return true;
}

/* ---- the file ---- */

static void sink_watch(void *context, const void *bytes, size_t count)
{
    XXH3_64bits_update(context, bytes, count);
}

/* Closes the tensors that are complete and moves to the next one that has bytes. */
static void sink_advance(sink *k)
{
    while (k->entry < k->end && k->left == 0) {
        const plan_entry *e = &k->p->entries[k->entry];
        if (k->output >= 0) {
            k->result->hashes[k->result->hash_count++] = XXH3_64bits_digest(k->tensor_hash);
            XXH3_64bits_reset(k->tensor_hash);
        }
        if (++k->output == e->output_count) {
            k->entry++;
            k->output = -1;
        } else {
            k->left = e->outputs[k->output].bytes;
        }
    }
}

static bool sink_put(sink *k, const void *bytes, size_t count)
{
    const uint8_t *p = bytes;
    if (!safetensors_writer_data(k->writer, bytes, count, &k->err))
        return false;
    while (count > 0 && k->entry < k->end) {
        size_t n = count < k->left ? count : (size_t)k->left;
        XXH3_64bits_update(k->tensor_hash, p, n);
        p += n;
        count -= n;
        k->left -= n;
        k->result->bytes += n;
        sink_advance(k);
    }
    return true;
}

static bool sink_open(stream *s, size_t shard, const char *path, shard_result *out, error *err)
{
    const plan_shard *ps = &s->p->shards[shard];
    sink *k = &s->sink;
    *k = (sink){.p = s->p, .entry = ps->first, .end = ps->first + ps->count, .output = -1, .result = out};
    *out = (shard_result){.hashes = mem_alloc(shard_tensors(s->p, shard) + 1, sizeof *out->hashes)};
    k->writer = safetensors_writer_open(path, err);
    if (!k->writer)
        return false;
    k->file_hash = XXH3_createState();
    k->tensor_hash = XXH3_createState();
    XXH3_64bits_reset(k->file_hash);
    XXH3_64bits_reset(k->tensor_hash);
    safetensors_writer_watch(k->writer, sink_watch, k->file_hash);
    safetensors_writer_metadata(k->writer, "format", "pt");
    for (size_t i = k->entry; i < k->end; i++)
        for (int o = 0; o < s->p->entries[i].output_count; o++) {
            const plan_output *t = &s->p->entries[i].outputs[o];
            if (!safetensors_writer_declare(k->writer, t->name, t->type, t->rank, t->shape, err))
                return false;
        }
    return true;
}

/* Commits or abandons. */
static bool sink_close(sink *k, bool ok, const char *path, error *err)
{
    if (ok) {
        sink_advance(k);
        ok = safetensors_writer_commit(k->writer, err);
    } else {
        safetensors_writer_abandon(k->writer);
    }
    k->result->hash = k->file_hash ? XXH3_64bits_digest(k->file_hash) : 0;
    XXH3_freeState(k->file_hash);
    XXH3_freeState(k->tensor_hash);
    file_map whole;
    if (ok && file_map_open(path, &whole, err)) {
        k->result->bytes = whole.bytes;
        file_map_close(&whole);
        k->result->done = true;
    }
    return k->result->done;
}

/* ---- rounds ---- */

static void segment_add(stream_round *r, const void *bytes, size_t count, bool mapped, uint8_t *owned)
{
    if (r->segment_count == r->segment_capacity) {
        r->segment_capacity = r->segment_capacity ? 2 * r->segment_capacity : 256;
        r->segments = mem_grow(r->segments, r->segment_capacity, sizeof *r->segments);
    }
    r->segments[r->segment_count++] = (segment){bytes, count, mapped, owned};
}

static void round_clear(stream_round *r)
{
    for (size_t i = 0; i < r->segment_count; i++)
        free(r->segments[i].owned);
    r->used = r->piece_count = r->segment_count = r->scalar_count = 0;
    r->source_bytes = 0;
}

static void round_write(sink *k, stream_round *r)
{
    for (size_t i = 0; i < r->segment_count && !k->failed; i++) {
        const segment *g = &r->segments[i];
        k->failed = !sink_put(k, g->bytes, g->count);
        if (g->mapped)
            file_map_release(g->bytes, g->count);
    }
}

static bool round_full(const stream *s, const stream_round *r, size_t more)
{
    return r->piece_count > 0 && (r->piece_count == ROUND_PIECES || r->source_bytes >= ROUND_SOURCE_BYTES ||
                                  r->used + more > ROUND_BYTES || r->used + more > s->capacity);
}

static size_t row_bytes(const format *f, int64_t cols)
{
    uint64_t data = 0, scales = 0;
    format_data_bytes(f, ROW_BLOCK, cols, &data);
    format_scale_bytes(f, ROW_BLOCK, cols, &scales);
    return (size_t)((data + scales + ROW_BLOCK - 1) / ROW_BLOCK);
}

static int64_t piece_rows(const plan_entry *e)
{
    size_t row = row_bytes(e->source.format, e->source.cols);
    int64_t rows = (int64_t)(PIECE_SOURCE_BYTES / (row ? row : 1)), step = e->to->block_rows > 1 ? ROW_BLOCK : 1;
    return rows < step ? step : rows / step * step;
}

static size_t scales_of(const plan_entry *e, int64_t rows)
{
    uint64_t bytes = 0;
    format_scale_bytes(e->to, rows, e->source.cols, &bytes);
    return (size_t)bytes;
}

/* Places in the buffer are aligned to 64 bytes. */
static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t piece_bytes(const plan_entry *e, int64_t rows)
{
    return aligned((size_t)rows * format_row_bytes(e->to, e->source.cols)) + aligned(scales_of(e, rows));
}

static uint8_t *round_take(stream_round *r, size_t bytes)
{
    uint8_t *p = r->buffer + r->used;
    r->used += aligned(bytes);
    return p;
}

static float *scalar_add(stream_round *r, float value)
{
    r->scalars[r->scalar_count] = value;
    return &r->scalars[r->scalar_count++];
}

/* ---- pieces ---- */

static piece *piece_add(stream_round *r, piece_kind kind, plan_entry *e, uint64_t source_bytes)
{
    piece *p = &r->pieces[r->piece_count++];
    *p = (piece){.kind = kind, .entry = e};
    r->source_bytes += source_bytes;
    return p;
}

static bool two_passes(const stream *s, const plan_entry *e)
{
    return scales_of(e, e->source.rows) > s->options.scales_bytes;
}

static void next_entry(cursor *c)
{
    *c = (cursor){.entry = c->entry + 1, .end = c->end};
}

/* NVFP4's two scalars follow the scales. */
static void add_scalars(const plan_entry *e, stream_round *r)
{
    if (e->to->id != FORMAT_NVFP4)
        return;
    float scale = e->copied ? e->source.scale : encode_tensor_scale(FORMAT_NVFP4, e->largest);
    segment_add(r, scalar_add(r, scale), sizeof scale, false, NULL);
    segment_add(r, scalar_add(r, e->input_scale), sizeof scale, false, NULL);
}

/* After the last row. */
static void finish_encoded(stream *s, const plan_entry *e, stream_round *r)
{
    cursor *c = &s->at;
    if (two_passes(s, e) && c->pass == 0) {
        c->pass = 1;
        c->row = 0;
        return;
    }
    if (c->scales)
        segment_add(r, c->scales, scales_of(e, e->source.rows), false, c->scales);
    add_scalars(e, r);
    next_entry(c);
}

/* Adds the next piece of a matrix that is encoded. False with *full when it does not fit in this round. */
static bool add_encode(stream *s, stream_round *r, bool *full, error *err)
{
    cursor *c = &s->at;
    plan_entry *e = &s->p->entries[c->entry];
    int64_t rows = piece_rows(e), left = e->source.rows - c->row;
    rows = rows < left ? rows : left;
    *full = round_full(s, r, piece_bytes(e, rows));
    if (*full)
        return false;
    bool one_pass = !two_passes(s, e);
    if (c->row == 0 && one_pass && scales_of(e, e->source.rows) > 0 && !c->scales) {
        c->scales = mem_try_alloc(scales_of(e, e->source.rows), 1);
        if (!c->scales)
            return error_set(err, ERROR_FIT, "out of memory for the scales of %s", e->module);
    }
    piece *p = piece_add(r, PIECE_ENCODE, e, (uint64_t)rows * row_bytes(e->source.format, e->source.cols));
    size_t data = (size_t)rows * format_row_bytes(e->to, e->source.cols), scales = scales_of(e, rows);
    p->first_row = c->row;
    p->rows = rows;
    p->data = round_take(r, data);
    p->scales = c->scales ? c->scales + scales_of(e, c->row) : round_take(r, scales);
    p->measured = c->pass == 0;
    if (!stream_importance(s->options.importance, e->module, e->source.cols, &p->importance, err))
        return false;
    segment_add(r, c->pass == 0 ? p->data : p->scales, c->pass == 0 ? data : scales, false, NULL);
    c->row += rows;
    if (c->row == e->source.rows)
        finish_encoded(s, e, r);
    return true;
}

/* The bytes of a copied entry: data, then scales. */
static const uint8_t *copied_bytes(const plan_entry *e, int part, uint64_t *count)
{
    *count = part < e->output_count && e->outputs[part].part <= PART_SCALES ? e->outputs[part].bytes : 0;
    if (!e->source.format)
        return part == 0 ? e->raw->data : NULL;
    return part == 0 ? e->source.data : e->source.scales;
}

static bool add_copied(stream *s, stream_round *r, bool *full)
{
    cursor *c = &s->at;
    plan_entry *e = &s->p->entries[c->entry];
    uint64_t count;
    const uint8_t *bytes = copied_bytes(e, c->copied_part, &count);
    *full = round_full(s, r, 0);
    if (*full)
        return false;
    size_t n = count - c->offset < PIECE_SOURCE_BYTES ? (size_t)(count - c->offset) : PIECE_SOURCE_BYTES;
    if (n > 0) {
        const plan_output *o = &e->outputs[c->copied_part];
        dtype type = o->part == PART_SCALES && o->type == DTYPE_U8 ? DTYPE_F8_E8M0 : o->type;
        piece *p = piece_add(r, PIECE_CHECK, e, n);
        p->bytes = bytes + c->offset;
        p->byte_count = type == DTYPE_BF16 || type == DTYPE_F32 || type == DTYPE_F8_E4M3 || type == DTYPE_F8_E8M0 ? n : 0;
        p->type = type;
        p->is_scale = o->part == PART_SCALES;
        p->first_value = c->offset / dtype_bytes(type);
        segment_add(r, bytes + c->offset, n, s->p->source != NULL, NULL);
        c->offset += n;
    }
    if (c->offset < count)
        return true;
    c->offset = 0;
    if (++c->copied_part < 2)
        return true;
    if (e->source.format)
        add_scalars(e, r);
    next_entry(c);
    return true;
}

/* ---- the work ---- */

static bool not_finite(piece *p, size_t index, bool infinite)
{
    return error_set(&p->err, ERROR_INPUT, "%s %llu is %s", p->is_scale ? "scale" : "value",
                     (unsigned long long)(p->first_value + index), infinite ? "infinite" : "not a number");
}

/* Codes of one byte, which have a NaN but no infinity. The first loop has no exit, so that it is compiled to vectors. */
static bool piece_check_codes(piece *p)
{
    uint8_t mask = p->type == DTYPE_F8_E4M3 ? 0x7F : 0xFF, found = 0;
    for (size_t i = 0; i < p->byte_count; i++)
        found |= (p->bytes[i] & mask) == mask;
    for (size_t i = 0; i < p->byte_count && found; i++)
        if ((p->bytes[i] & mask) == mask)
            return not_finite(p, i, false);
    return true;
}

static bool piece_check(piece *p)
{
    if (p->type == DTYPE_F8_E4M3 || p->type == DTYPE_F8_E8M0)
        return piece_check_codes(p);
    bool half = p->type == DTYPE_BF16;
    size_t size = half ? 2 : 4;
    for (size_t i = 0; i + size <= p->byte_count; i += size) {
        uint32_t bits = 0;
        memcpy((uint8_t *)&bits + (half ? 2 : 0), p->bytes + i, size);
        if ((bits & 0x7F800000u) == 0x7F800000u)
            return not_finite(p, i / size, !(bits & 0x007FFFFFu));
    }
    return true;
}

static bool piece_encode(const stream *s, piece *p)
{
    const plan_entry *e = p->entry;
    if (s->options.make) {
        s->options.make(s->options.make_context, e, p->first_row, p->rows, p->data, p->scales);
        return true;
    }
    encode_options o = {.to = e->to->id, .rule = s->options.rule, .search = s->options.search, .importance = p->importance};
    float scale = encode_tensor_scale(e->to->id, e->largest);
    return encode_rows(&e->source, p->first_row, p->rows, &o, scale, p->data, p->scales, p->measured ? &p->stats : NULL, &p->err);
}

static void piece_run(const stream *s, piece *p)
{
    bool ok = true;
    switch (p->kind) {
    case PIECE_ENCODE: ok = piece_encode(s, p); break;
    case PIECE_CHECK: ok = piece_check(p); break;
    case PIECE_LARGEST: ok = encode_largest(&p->entry->source, p->first_row, p->rows, &p->largest, &p->err); break;
    }
    p->failed = !ok;
}

typedef struct round_job {
    stream *s;
    piece *pieces;
    stream_round *previous; /* written by iteration 0; NULL: none */
} round_job;

static void round_task(void *context, int index, int worker)
{
    (void)worker;
    round_job *j = context;
    if (index > 0)
        piece_run(j->s, &j->pieces[index - 1]);
    else if (j->previous)
        round_write(&j->s->sink, j->previous);
}

/* The first piece that failed, in the order of the file. */
static bool pieces_ok(const piece *pieces, size_t count, error *err)
{
    for (size_t i = 0; i < count; i++)
        if (pieces[i].failed) {
            error_set(err, pieces[i].err.code, "tensor %s: %s", pieces[i].entry->module, pieces[i].err.text);
            return false;
        }
    return true;
}

static void release_rows(const plan_entry *e, int64_t first, int64_t rows)
{
    const format *f = e->source.format;
    size_t row = format_row_bytes(f, e->source.cols);
    uint64_t before = 0, until = 0;
    file_map_release(e->source.data + (size_t)first * row, (size_t)rows * row);
    if (f->scale_bytes == 0)
        return;
    format_scale_bytes(f, first / f->block_rows * f->block_rows, e->source.cols, &before);
    format_scale_bytes(f, first + rows, e->source.cols, &until);
    file_map_release(e->source.scales + before, (size_t)(until - before));
}

/* ---- the largest value, for NVFP4 ---- */

static void largest_add(stream *s, plan_entry *e)
{
    int64_t step = piece_rows(e);
    for (int64_t row = 0; row < e->source.rows; row += step) {
        if (s->largest_count == s->largest_capacity) {
            s->largest_capacity = s->largest_capacity ? 2 * s->largest_capacity : 256;
            s->largest = mem_grow(s->largest, s->largest_capacity, sizeof *s->largest);
        }
        int64_t left = e->source.rows - row;
        s->largest[s->largest_count++] =
            (piece){.kind = PIECE_LARGEST, .entry = e, .first_row = row, .rows = left < step ? left : step};
    }
}

static void largest_take(plan *p, const piece *done)
{
    plan_entry *e = done->entry;
    e->largest = done->largest > e->largest ? done->largest : e->largest;
    if (e->partner != PLAN_NO_PARTNER) {
        plan_entry *other = &p->entries[e->partner];
        other->largest = e->largest > other->largest ? e->largest : other->largest;
    }
}

/* Before a matrix's first piece: its largest value and its partner's, together with those of the next matrices of this round. */
static bool find_largest(stream *s, error *err)
{
    enum { AHEAD = 64 };
    s->largest_count = 0;
    uint64_t bytes = 0;
    for (size_t i = s->at.entry; i < s->at.end && i < s->at.entry + AHEAD && bytes < ROUND_SOURCE_BYTES; i++) {
        plan_entry *e = &s->p->entries[i];
        if (!e->to || e->to->id != FORMAT_NVFP4 || e->copied || e->largest >= 0.0f)
            continue;
        plan_entry *partner = e->partner != PLAN_NO_PARTNER ? &s->p->entries[e->partner] : NULL;
        largest_add(s, e);
        bytes += e->source_bytes;
        if (!partner)
            continue;
        largest_add(s, partner);
        bytes += partner->source_bytes;
        e->largest = partner->largest = 0.0f; /* known after this pass; keeps the partner from being added again */
    }
    round_job job = {s, s->largest, NULL};
    pool_run(s->workers, (int)s->largest_count + 1, round_task, &job);
    for (size_t i = 0; i < s->largest_count; i++) {
        largest_take(s->p, &s->largest[i]);
        release_rows(s->largest[i].entry, s->largest[i].first_row, s->largest[i].rows);
    }
    return pieces_ok(s->largest, s->largest_count, err);
}

/* ---- a shard ---- */

/* Fills a round with the next pieces. */
static bool round_fill(stream *s, stream_round *r, error *err)
{
    bool full = false, ok = true;
    round_clear(r);
    while (ok && !full && s->at.entry < s->at.end) {
        plan_entry *e = &s->p->entries[s->at.entry];
        if (e->to && e->to->id == FORMAT_NVFP4 && !e->copied && e->largest < 0.0f && !find_largest(s, err))
            return false;
        bool added = e->copied ? add_copied(s, r, &full) : add_encode(s, r, &full, err);
        ok = added || full;
    }
    return ok;
}

static void round_account(stream *s, stream_round *r, shard_result *out)
{
    for (size_t i = 0; i < r->piece_count; i++) {
        piece *p = &r->pieces[i];
        if (p->kind != PIECE_ENCODE)
            continue;
        if (p->measured)
            encode_stats_merge(&out->stats[p->entry->class][p->entry->draft], &p->stats);
        if (s->p->source)
            release_rows(p->entry, p->first_row, p->rows);
    }
    s->done_bytes += r->source_bytes;
    progress_update(s->shown, (double)s->done_bytes / 1e6);
}

static bool run_rounds(stream *s, shard_result *out, error *err)
{
    stream_round *previous = NULL;
    for (int turn = 0;; turn ^= 1) {
        stream_round *r = &s->rounds[turn];
        if (s->options.stop && *s->options.stop)
            return error_set(err, ERROR_INTERRUPTED, "interrupted");
        if (!round_fill(s, r, err))
            return false;
        round_job job = {s, r->pieces, previous};
        pool_run(s->workers, (int)r->piece_count + 1, round_task, &job);
        if (s->sink.failed) {
            *err = s->sink.err;
            return false;
        }
        if (!pieces_ok(r->pieces, r->piece_count, err))
            return false;
        round_account(s, r, out);
        if (previous && r->piece_count == 0 && r->segment_count == 0)
            return true;
        previous = r;
    }
}

bool stream_shard(stream *s, size_t shard, const char *directory, shard_result *out, error *err)
{
    const plan_shard *ps = &s->p->shards[shard];
    text path = {0};
    path_join(&path, directory, ps->file);
    s->at = (cursor){.entry = ps->first, .end = ps->first + ps->count};
    bool ok = sink_open(s, shard, path.data, out, err) && run_rounds(s, out, err);
    ok = sink_close(&s->sink, ok, path.data, err);
    free(s->at.scales);
    s->at.scales = NULL;
    round_clear(&s->rounds[0]);
    round_clear(&s->rounds[1]);
    if (!ok)
        shard_result_free(out);
    text_free(&path);
    return ok;
}

void stream_skip(stream *s, size_t shard)
{
    for (size_t i = 0; i < s->p->shards[shard].count; i++)
        s->done_bytes += s->p->entries[s->p->shards[shard].first + i].source_bytes;
}

stream *stream_create(plan *p, const stream_options *o, pool *workers, progress *shown, error *err)
{
    stream *s = mem_alloc(1, sizeof *s);
    *s = (stream){.p = p, .options = *o, .workers = workers, .shown = shown, .capacity = ROUND_BYTES};
    s->options.scales_bytes = o->scales_bytes ? o->scales_bytes : SCALES_BYTES;
    for (size_t i = 0; i < p->count; i++)
        if (p->entries[i].to && !p->entries[i].copied) {
            size_t need = piece_bytes(&p->entries[i], piece_rows(&p->entries[i]));
            s->capacity = need > s->capacity ? need : s->capacity;
        }
    for (int i = 0; i < 2; i++) {
        s->rounds[i].buffer = mem_try_alloc_aligned(s->capacity, 64);
        s->rounds[i].pieces = mem_try_alloc(ROUND_PIECES, sizeof *s->rounds[i].pieces);
        if (s->rounds[i].buffer && s->rounds[i].pieces)
            continue;
        error_set(err, ERROR_FIT, "out of memory for %zu bytes of buffers", 2 * s->capacity);
        stream_free(s);
        return NULL;
    }
    return s;
}

void stream_free(stream *s)
{
    if (!s)
        return;
    for (int i = 0; i < 2; i++) {
        round_clear(&s->rounds[i]);
        free(s->rounds[i].buffer);
        free(s->rounds[i].pieces);
        free(s->rounds[i].segments);
    }
    free(s->largest);
    free(s);
}
