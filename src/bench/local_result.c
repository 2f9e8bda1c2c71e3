#include <math.h>

#include "bench/local.h"

void local_test_name(const local_test *t, text *out)
{
    text_add_format(out, t->generate ? "tg%d" : "pp%d", t->generate ? t->generate : t->prompt);
    if (t->batch > 1)
        text_add_format(out, " b%d", t->batch);
    if (t->depth)
        text_add_format(out, " @ d%d", t->depth);
}

static double tokens_of(const local_test *t)
{
    return t->generate ? (double)t->generate * t->batch : t->prompt;
}

local_figures local_figures_of(const local_result *r, const ceilings *c)
{
    local_figures f = {0};
    double tokens = tokens_of(&r->test), sum = 0, seconds = 0, squares = 0;
    for (int i = 0; i < r->repetitions; i++) {
        double speed = tokens / r->seconds[i];
        sum += speed;
        seconds += r->seconds[i];
        f.best_tokens_per_second = speed > f.best_tokens_per_second ? speed : f.best_tokens_per_second;
    }
    f.tokens_per_second = sum / r->repetitions;
    for (int i = 0; i < r->repetitions; i++)
        squares += (tokens / r->seconds[i] - f.tokens_per_second) * (tokens / r->seconds[i] - f.tokens_per_second);
    f.deviation = r->repetitions > 1 ? sqrt(squares / (r->repetitions - 1)) : 0;
    seconds /= r->repetitions;
    f.step_ms = seconds * 1e3 / r->cost.steps;
    f.read_share = cost_read_bytes(&r->cost) * 1e-9 / c->read_gb_s / seconds;
    f.arithmetic_share = (r->cost.byte_ops * 1e-9 / c->bytes_gop_s + r->cost.fused_ops * 1e-9 / c->fused_gflop_s) / seconds;
    return f;
}

json_t *local_result_json(const local_result *r, const ceilings *c)
{
    local_figures f = local_figures_of(r, c);
    text name = {0};
    json_t *samples = json_array(), *processor = json_array();
    local_test_name(&r->test, &name);
    for (int i = 0; i < r->repetitions; i++) {
        json_array_append_new(samples, json_real(r->seconds[i]));
        json_array_append_new(processor, json_real(r->processor_seconds[i]));
    }
    json_t *out = json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "test", name.data, "prompt",
                            r->test.prompt, "generate", r->test.generate, "batch", r->test.batch, "depth", r->test.depth, "tokens",
                            tokens_of(&r->test), "steps", r->cost.steps, "tokens_per_second", f.tokens_per_second,
                            "tokens_per_second_deviation", f.deviation, "best_tokens_per_second", f.best_tokens_per_second, "step_ms",
                            f.step_ms, "read_share", f.read_share, "arithmetic_share", f.arithmetic_share, "seconds", samples,
                            "processor_seconds", processor);
    json_t *must = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "weight_bytes", r->cost.weight_bytes, "expert_bytes",
                             r->cost.expert_bytes, "key_bytes", r->cost.key_bytes, "byte_operations", r->cost.byte_ops,
                             "f32_operations", r->cost.fused_ops, "distinct_experts", r->cost.experts, "logit_rows", r->cost.logit_rows);
    json_object_set_new(out, "must", must);
    text_free(&name);
    return out;
}
