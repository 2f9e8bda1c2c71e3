#include "tune/foreign.h"

#include <stdlib.h>
#include <string.h>

#include "base/csv.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"

enum { FILE_MOST = 1 << 26, NUMBER_MOST = 1 << 30, STEP_ROWS_MOST = 4096 };

static void add_shape(foreign_list *l, const foreign_shape *s)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 32;
        l->shapes = mem_grow(l->shapes, (size_t)l->capacity, sizeof *l->shapes);
    }
    l->shapes[l->count++] = *s;
}

void foreign_free(foreign_list *l)
{
    free(l->shapes);
    *l = (foreign_list){0};
}

/* A whole number from 1; false for anything else. */
static bool read_number(const char *s, size_t length, int64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < length; i++) {
        if (s[i] < '0' || s[i] > '9' || *out > NUMBER_MOST)
            return false;
        *out = 10 * *out + (s[i] - '0');
    }
    return length > 0 && *out > 0 && *out <= NUMBER_MOST;
}

/* ---- aiter ---- */

bool foreign_parse_aiter(view bytes, const char *where, foreign_list *out, error *err)
{
    static const char *const names[] = {"token", "model_dim", "inter_dim", "expert", "topk"};
    enum { NAMES = sizeof names / sizeof *names };
    int at[NAMES];
    csv_table csv = {0};
    out->kind = "aiter";
    bool ok = csv_parse(bytes, where, &csv, err);
    for (int i = 0; ok && i < NAMES; i++)
        if ((at[i] = csv_column(&csv, names[i])) < 0)
            ok = error_set(err, ERROR_INPUT, "%s line 1: there is no column \"%s\"; expected a table of aiter's fused MoE, with token, "
                           "model_dim, inter_dim, expert and topk", where, names[i]);
    for (size_t r = 0; ok && r < csv.count; r++) {
        int64_t v[NAMES];
        for (int i = 0; ok && i < NAMES; i++) {
            view f = csv.rows[r].fields[at[i]];
            if (!read_number(f.data, f.length, &v[i]))
                ok = error_set(err, ERROR_INPUT, "%s line %lld: %s must be a whole number from 1, found \"%.*s\"", where,
                               (long long)csv.rows[r].line, names[i], f.length < 40 ? (int)f.length : 40, f.data);
        }
        if (ok)
            add_shape(out, &(foreign_shape){v[0], v[1], v[2], v[3], v[4], true, true, (int)csv.rows[r].line});
    }
    csv_free(&csv);
    return ok;
}

/* ---- Triton ---- */

/* The number behind "E=" or "N=" in a file's name. */
static bool name_number(const char *name, const char *what, int64_t *out)
{
    const char *at = name;
    while ((at = strstr(at, what)) && at != name && at[-1] != ',')
        at++;
    if (!at)
        return false;
    at += strlen(what);
    return read_number(at, strspn(at, "0123456789"), out);
}

static bool triton_shapes(const json_t *root, const char *path, const foreign_shape *common, foreign_list *out, error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value) {
        foreign_shape s = *common;
        if (strcmp(key, "triton_version") == 0)
            continue;
        if (!read_number(key, strlen(key), &s.tokens))
            return error_set(err, ERROR_INPUT, "%s: the key \"%.40s\" must be a number of tokens", path, key);
        if (!json_is_object(value))
            return error_set(err, ERROR_INPUT, "%s: \"%s\" must be an object of tile sizes, found %s", path, key, json_type_name(value));
        add_shape(out, &s);
    }
    return true;
}

bool foreign_parse_triton(view bytes, const char *path, foreign_list *out, error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    foreign_shape common = {.gate_up = !text_ends_with(name, "_down.json"), .down = true};
    out->kind = "triton";
    if (!name_number(name, "E=", &common.experts) || !name_number(name, "N=", &common.width))
        return error_set(err, ERROR_INPUT, "%s: the name of a Triton MoE table says E=..,N=.., this one does not", path);
    json_t *root = json_parse(bytes.data, bytes.length, path, err);
    bool ok = root && (json_is_object(root) || error_set(err, ERROR_INPUT, "%s: expected an object, found %s", path, json_type_name(root)));
    ok = ok && triton_shapes(root, path, &common, out, err);
    json_decref(root);
    return ok;
}

bool foreign_read(const char *path, foreign_list *out, error *err)
{
    text bytes = {0};
    bool csv = text_ends_with(path, ".csv");
    if (!csv && !text_ends_with(path, ".json"))
        return error_set(err, ERROR_INPUT, "%s: expected a .csv of aiter or a .json of Triton", path);
    bool ok = file_read(path, FILE_MOST, &bytes, err) &&
              (csv ? foreign_parse_aiter : foreign_parse_triton)((view){bytes.data ? bytes.data : "", bytes.length}, path, out, err);
    text_free(&bytes);
    return ok;
}

/* ---- this model's view ---- */

static bool same_experts(const foreign_shape *s, const model_config *m)
{
    int fused = m->experts + m->shared_experts, fused_topk = m->experts_per_token + m->shared_experts;
    bool plain = s->experts == m->experts && (s->topk == 0 || s->topk == m->experts_per_token);
    return plain || (s->experts == fused && (s->topk == 0 || s->topk == fused_topk));
}

int foreign_rows(const foreign_shape *s, const model_config *m, text *reason)
{
    text_clear(reason);
    if (s->hidden && s->hidden != m->hidden_size)
        text_add_format(reason, "its hidden width is %lld, this model's %d", (long long)s->hidden, m->hidden_size);
    else if (s->width != m->expert_intermediate && m->expert_intermediate % s->width == 0)
        text_add_format(reason, "its expert width %lld is that of one of %lld tensor-parallel parts, and there is no tensor parallelism "
                        "here", (long long)s->width, (long long)(m->expert_intermediate / s->width));
    else if (s->width != m->expert_intermediate)
        text_add_format(reason, "its expert width is %lld, this model's %d", (long long)s->width, m->expert_intermediate);
    else if (!same_experts(s, m))
        text_add_format(reason, "it has %lld experts%s, this model %d with %d per token", (long long)s->experts,
                        s->experts == m->experts ? " but another number per token" : "", m->experts, m->experts_per_token);
    if (reason->length)
        return 0;
    int64_t rows = (s->tokens * m->experts_per_token + m->experts - 1) / m->experts;
    if (rows > STEP_ROWS_MOST)
        text_add_format(reason, "%lld tokens give an expert %lld rows, a step has at most %d", (long long)s->tokens, (long long)rows,
                        STEP_ROWS_MOST);
    return reason->length ? 0 : (int)rows;
}

bool foreign_means(const foreign_shape *s, int rows, const model_config *m, const dispatch_key *key)
{
    if (rows <= 0 || key->bucket != dispatch_bucket(rows) || key->operation != dispatch_experts)
        return false;
    return (s->gate_up && key->n == s->width && key->k == m->hidden_size) || (s->down && key->n == m->hidden_size && key->k == s->width);
}

/* ---- export ---- */

/* How aiter writes a format. NVFP4 is not among what it knows. */
typedef struct format_words {
    format_id id;
    const char *dtype, *quant;
} format_words;

static const format_words words[] = {
    {FORMAT_BF16, "torch.bfloat16", "QuantType.No"},
    {FORMAT_MXFP4, "torch.float4_e2m1fn_x2", "QuantType.per_1x32"},
    {FORMAT_FP8_BLOCK, "torch.float8_e4m3fn", "QuantType.per_128x128"},
    {FORMAT_FP8_CHANNEL, "torch.float8_e4m3fn", "QuantType.per_Token"},
};

static const format_words *words_of(const char *name)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(format_of(words[i].id)->name, name) == 0)
            return &words[i];
    return NULL;
}

/* What the routed experts are stored in. */
typedef struct expert_formats {
    struct {
        const char *gate_up, *down; /* format names */
        int uses;
    } rows[16];
    int count;
} expert_formats;

static void note_format(void *context, const dispatch_work *work)
{
    expert_formats *f = context;
    if (!work->routed || work->w != &work->mlp->gate)
        return;
    const char *down = work->mlp->down.format == work->mlp->up.format ? work->mlp->down.format->name : "several formats";
    int i = 0;
    while (i < f->count && (strcmp(f->rows[i].gate_up, work->key.format) != 0 || strcmp(f->rows[i].down, down) != 0))
        i++;
    if (i == 16)
        return;
    if (i == f->count)
        f->count++;
    f->rows[i].gate_up = work->key.format;
    f->rows[i].down = down;
    f->rows[i].uses++;
}

typedef struct export {
    dispatch_table *t;
    const model_config *m;
    text *out, *notes;
    int written, untuned; /* rows */
} export;

/* The variants of both halves for steps of so many tokens; false when one of them is not tuned. */
static bool export_pair(const export *e, const char *gate_up, const char *down, int tokens, const char **first, const char **second)
{
    const model_config *m = e->m;
    int rows = (int)(((int64_t)tokens * m->experts_per_token + m->experts - 1) / m->experts);
    dispatch_key a = {dispatch_experts, gate_up, m->expert_intermediate, m->hidden_size, dispatch_bucket(rows)};
    dispatch_key b = {dispatch_experts, down, m->hidden_size, m->expert_intermediate, dispatch_bucket(rows)};
    const dispatch_row *x = dispatch_find(e->t, &a), *y = dispatch_find(e->t, &b);
    if (!x || !y || x->source == DISPATCH_HEURISTIC || y->source == DISPATCH_HEURISTIC)
        return false;
    *first = x->name;
    *second = y->name;
    return true;
}

static void export_aiter(export *e, const char *gate_up, const char *down)
{
    const model_config *m = e->m;
    const format_words *w = words_of(gate_up);
    const char *first, *second;
    for (int tokens = 1; tokens <= STEP_ROWS_MOST; tokens *= 2) {
        if (!export_pair(e, gate_up, down, tokens, &first, &second)) {
            e->untuned++;
            continue;
        }
        text_add_format(e->out, "%d,%d,%d,%d,%d,ActivationType.Silu,torch.float32,torch.float32,%s,%s,1,0,"
                        "drawbridge %s gate_up=%s down=%s\n", tokens, m->hidden_size, m->expert_intermediate, m->experts,
                        m->experts_per_token, w->dtype, w->quant, e->t->device_name, first, second);
        e->written++;
    }
}

static void export_triton(export *e, const char *gate_up, const char *down)
{
    const char *first, *second;
    json_t *root = json_object();
    for (int tokens = 1; tokens <= STEP_ROWS_MOST; tokens *= 2) {
        char key[16];
        if (!export_pair(e, gate_up, down, tokens, &first, &second)) {
            e->untuned++;
            continue;
        }
        snprintf(key, sizeof key, "%d", tokens);
        json_object_set_new(root, key, json_pack("{s:s, s:s}", "drawbridge_gate_up", first, "drawbridge_down", second));
        e->written++;
    }
    char *bytes = json_dumps(root, JSON_INDENT(4));
    text_add_format(e->out, "%s\n", bytes ? bytes : "{}");
    text_add_format(e->notes, "its name in that form: E=%d,N=%d,device_name=%s,dtype=%s.json, where dtype is our name of the format\n",
                    e->m->experts, e->m->expert_intermediate, e->t->device_name, gate_up);
    free(bytes);
    json_decref(root);
}

static const char AITER_COLUMNS[] = "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
                                    "doweight_stage1,_tag\n";

/* Whether a pair of formats goes into this export; else a note says why not. A Triton file holds one format: the most used one. */
static bool can_export(const export *e, foreign_format form, const expert_formats *found, int i)
{
    const char *gate_up = found->rows[i].gate_up, *down = found->rows[i].down;
    bool named = strcmp(gate_up, down) == 0 && (form == FOREIGN_TRITON || words_of(gate_up)), first = true;
    for (int j = 0; form == FOREIGN_TRITON && j < found->count; j++)
        first = first && (found->rows[j].uses < found->rows[i].uses || j >= i);
    if (!named || !first)
        text_add_format(e->notes, "%d experts in %s and %s are left out: %s\n", found->rows[i].uses, gate_up, down,
                        named ? "a file of this form holds one format" : "the form has no word for that");
    return named && first;
}

bool foreign_export(foreign_format form, dispatch_table *t, const model *m, kv_dtype kv, text *out, text *notes, error *err)
{
    expert_formats found = {0};
    export e = {.t = t, .m = &m->config, .out = out, .notes = notes};
    dispatch_visit(m, kv, note_format, &found);
    if (form == FOREIGN_AITER)
        text_add_text(out, AITER_COLUMNS);
    for (int i = 0; i < found.count; i++)
        if (can_export(&e, form, &found, i))
            (form == FOREIGN_AITER ? export_aiter : export_triton)(&e, found.rows[i].gate_up, found.rows[i].down);
    if (e.untuned)
        text_add_format(notes, "%d numbers of tokens are left out: their shapes are not tuned\n", e.untuned);
    text_add_text(notes, form == FOREIGN_AITER ? "aiter can take the shapes; dtype and q_dtype_a are f32, as activations are here "
                                                 "before any are rounded, and _tag is a word for people\n"
                                               : "the form's tile sizes have no counterpart here: Triton cannot run from this file, which "
                                                 "lists shapes and our kernels\n");
    return e.written > 0 || error_set(err, ERROR_INPUT, "there is no tuned shape of this model's experts that the form can hold; run "
                                      "drawbridge tune first (%.*s)", (int)strcspn(notes->data, "\n"), notes->data);
}
