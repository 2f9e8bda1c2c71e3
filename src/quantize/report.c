#include "quantize/report.h"

#include <stdlib.h>
#include <string.h>

#include "base/map.h"

/* Matrices of one class that became one format. */
typedef struct class_total {
    int count, kept, copied;
    uint64_t source_bytes, bytes;
    encode_stats stats; /* of all formats of the class */
} class_total;

static class_total total_of(const plan *p, const shard_result *results, int class, int draft)
{
    class_total t = {0};
    for (size_t i = 0; i < p->count; i++) {
        const plan_entry *e = &p->entries[i];
        if ((int)e->class != class || e->draft != draft)
            continue;
        t.count++;
        t.kept += e->why != NULL;
        t.copied += e->copied;
        t.source_bytes += e->source_bytes;
        t.bytes += e->bytes;
    }
    for (size_t s = 0; s < p->shard_count; s++)
        encode_stats_merge(&t.stats, &results[s].stats[class][draft]);
    return t;
}

/* Reasons for keeping matrices, with how many each. */
typedef struct reason {
    const char *why;
    int count;
    const char *example;
} reason;

typedef struct reason_list {
    reason *items;
    size_t count;
} reason_list;

static reason_list reasons_of(const plan *p)
{
    reason_list list = {0};
    map index = {0};
    for (size_t i = 0; i < p->count; i++) {
        const plan_entry *e = &p->entries[i];
        int64_t at;
        if (!e->why)
            continue;
        if (!map_get(&index, view_of(e->why), &at)) {
            at = (int64_t)list.count;
            list.items = mem_grow(list.items, ++list.count, sizeof *list.items);
            list.items[at] = (reason){e->why, 0, e->module};
            map_add(&index, view_of(e->why), at);
        }
        list.items[at].count++;
    }
    map_free(&index);
    return list;
}

static void class_line(int class, int draft, const class_total *t, text *out)
{
    text_add_format(out, "%-22s %-6s %7d %10.3f %10.3f", matrix_class_name((matrix_class)class), draft ? "draft" : "", t->count,
                    (double)t->source_bytes / 1e6, (double)t->bytes / 1e6);
    if (t->stats.values && t->stats.error_squares > 0.0)
        text_add_format(out, "   %.6f  %.3e  %.8f\n", encode_stats_relative_l2(&t->stats), t->stats.max_error,
                        encode_stats_cosine(&t->stats));
    else
        text_add_text(out, "   exact\n");
}

void report_text(const plan *p, const shard_result *results, text *out)
{
    text_add_text(out, "class                         tensors  MB before   MB after   relative L2 error, largest error, cosine\n");
    for (int class = 0; class < CLASS_COUNT; class++)
        for (int draft = 0; draft < 2; draft++) {
            class_total t = total_of(p, results, class, draft);
            if (t.count)
                class_line(class, draft, &t, out);
        }
    text_add_text(out, "matrices:");
    for (int f = 0, n = 0; f < FORMAT_COUNT; f++)
        if (p->format_count[f])
            text_add_format(out, "%s %d %s (%.3f MB)", n++ ? "," : "", p->format_count[f], format_of((format_id)f)->name,
                            (double)p->format_bytes[f] / 1e6);
    text_add_format(out, "\nbytes: %.3f MB -> %.3f MB\n", (double)p->source_bytes / 1e6, (double)p->bytes / 1e6);
    reason_list reasons = reasons_of(p);
    for (size_t i = 0; i < reasons.count; i++)
        text_add_format(out, "not quantized: %d (%s), for example %s\n", reasons.items[i].count, reasons.items[i].why,
                        reasons.items[i].example);
    free(reasons.items);
}

static json_t *class_json(int class, int draft, const class_total *t)
{
    json_t *j = json_pack("{s:s, s:b, s:i, s:i, s:i, s:I, s:I}", "class", matrix_class_name((matrix_class)class), "draft", draft,
                          "tensors", t->count, "not_quantized", t->kept, "copied", t->copied, "source_bytes",
                          (json_int_t)t->source_bytes, "bytes", (json_int_t)t->bytes);
    if (t->stats.values) {
        json_object_set_new(j, "values", json_integer(t->stats.values));
        json_object_set_new(j, "relative_l2", json_real(encode_stats_relative_l2(&t->stats)));
        json_object_set_new(j, "max_error", json_real(t->stats.max_error));
        json_object_set_new(j, "cosine", json_real(encode_stats_cosine(&t->stats)));
    }
    return j;
}

static json_t *kept_json(const plan *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->count; i++)
        if (p->entries[i].why)
            json_array_append_new(list, json_pack("{s:s, s:s}", "module", p->entries[i].module, "reason", p->entries[i].why));
    return list;
}

json_t *report_json(const plan *p, const shard_result *results)
{
    json_t *classes = json_array(), *formats = json_array();
    for (int class = 0; class < CLASS_COUNT; class++)
        for (int draft = 0; draft < 2; draft++) {
            class_total t = total_of(p, results, class, draft);
            if (t.count)
                json_array_append_new(classes, class_json(class, draft, &t));
        }
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (p->format_count[f])
            json_array_append_new(formats, json_pack("{s:s, s:i, s:I}", "format", format_of((format_id)f)->name, "matrices",
                                                     p->format_count[f], "bytes", (json_int_t)p->format_bytes[f]));
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:o, s:o, s:o}", "to", format_of(p->recipe.options.to)->name, "recipe",
                     p->recipe.name, "draft_layer",
                     !p->config->has_mtp ? "none" : p->recipe.quantize_draft ? "quantize" : "keep", "source_bytes",
                     (json_int_t)p->source_bytes, "bytes", (json_int_t)p->bytes, "files", (int)p->shard_count, "classes", classes,
                     "formats", formats, "not_quantized", kept_json(p));
}
