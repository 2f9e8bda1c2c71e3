/* Prometheus' text form, version 0.0.4. Every family has HELP and TYPE before its samples, and all samples of a family are together. */
#include <math.h>
#include <string.h>

#include "serve/metrics_internal.h"

/* Where to write, and the labels that every sample of the current group of names has ("" or "a=\"b\",c=\"d\""). */
typedef struct writer {
    text *out;
    const char *labels;
} writer;

/* Nearly all samples are whole numbers, and there are a thousand: printf would take most of a scrape's time. */
static void add_whole(text *out, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    text_add(out, digits + at, sizeof digits - at);
}

static void add_number(text *out, double value)
{
    if (isnan(value))
        text_add_text(out, "NaN");
    else if (isinf(value))
        text_add_text(out, value > 0 ? "+Inf" : "-Inf");
    else if (value >= 0 && value < 9e15 && value == floor(value))
        add_whole(out, (uint64_t)value);
    else
        text_add_format(out, "%.9g", value);
}

static void family(writer *w, const char *name, const char *type, const char *help)
{
    text_add_format(w->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* One sample: name + suffix, the writer's labels and one more label when key is not NULL. */
static void sample(writer *w, const char *name, const char *suffix, const char *key, const char *label, double value)
{
    text_add_text(w->out, name);
    text_add_text(w->out, suffix);
    if (*w->labels || key) {
        text_add_char(w->out, '{');
        text_add_text(w->out, w->labels);
        if (key) {
            const char *const parts[] = {*w->labels ? "," : "", key, "=\"", label, "\""};
            for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
                text_add_text(w->out, parts[i]);
        }
        text_add_char(w->out, '}');
    }
    text_add_char(w->out, ' ');
    add_number(w->out, value);
    text_add_char(w->out, '\n');
}

static void gauge(writer *w, const char *name, double value, const char *help)
{
    family(w, name, "gauge", help);
    sample(w, name, "", NULL, NULL, value);
}

static void counter(writer *w, const char *name, uint64_t value, const char *help)
{
    family(w, name, "counter", help);
    sample(w, name, "", NULL, NULL, (double)value);
}

static void write_histogram(writer *w, const char *name, const histogram *h, const char *help)
{
    uint64_t total = 0;
    text bound = {0};
    family(w, name, "histogram", help);
    for (int i = 0; i <= h->bound_count; i++) {
        total += h->counts[i];
        text_clear(&bound);
        add_number(&bound, i < h->bound_count ? h->bounds[i] : INFINITY);
        sample(w, name, "_bucket", "le", bound.data, (double)total);
    }
    text_free(&bound);
    sample(w, name, "_sum", NULL, NULL, h->sum);
    sample(w, name, "_count", NULL, NULL, (double)total);
}

/* One histogram under the names it has here, in sglang and in vLLM; NULL: not there. */
typedef struct histogram_names {
    histogram_id id;
    const char *own, *sglang, *vllm, *help;
} histogram_names;

static const histogram_names histogram_table[] = {
    {HISTOGRAM_TTFT, "drawbridge_time_to_first_token_seconds", "sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
     "From a request's arrival to its first token."},
    {HISTOGRAM_ITL, "drawbridge_inter_token_latency_seconds", "sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds",
     "Between two tokens of a request; the tokens of one step share its time."},
    {HISTOGRAM_E2E, "drawbridge_request_duration_seconds", "sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
     "From a request's arrival to its end."},
    {HISTOGRAM_QUEUE, "drawbridge_request_queue_seconds", "sglang:queue_time_seconds", "vllm:request_queue_time_seconds",
     "From a request's arrival to its admission."},
    {HISTOGRAM_PREFILL, "drawbridge_request_prefill_seconds", NULL, "vllm:request_prefill_time_seconds",
     "From a request's admission to its first token."},
    {HISTOGRAM_DECODE, "drawbridge_request_decode_seconds", NULL, "vllm:request_decode_time_seconds",
     "From a request's first token to its end."},
    {HISTOGRAM_INFERENCE, "drawbridge_request_inference_seconds", NULL, "vllm:request_inference_time_seconds",
     "From a request's admission to its end."},
    {HISTOGRAM_TPOT, "drawbridge_request_time_per_output_token_seconds", NULL, "vllm:request_time_per_output_token_seconds",
     "A request's decode time by its tokens after the first."},
    {HISTOGRAM_PROMPT, "drawbridge_request_prompt_tokens", "sglang:prompt_tokens_histogram", "vllm:request_prompt_tokens",
     "Prompt tokens of a request."},
    {HISTOGRAM_UNCACHED, "drawbridge_request_uncached_prompt_tokens", "sglang:uncached_prompt_tokens_histogram", NULL,
     "Prompt tokens of a request that were not in the prefix cache."},
    {HISTOGRAM_OUTPUT, "drawbridge_request_output_tokens", "sglang:generation_tokens_histogram", "vllm:request_generation_tokens",
     "Output tokens of a request."},
    {HISTOGRAM_MAX_TOKENS, "drawbridge_request_max_tokens", NULL, "vllm:request_params_max_tokens",
     "Output tokens that a request allowed."},
    {HISTOGRAM_HTTP, "drawbridge_http_request_duration_seconds", NULL, NULL, "From a request's first byte to the end of its reply."},
};

typedef const char *(*histogram_namer)(const histogram_names *row);
static const char *own_name(const histogram_names *row) { return row->own; }
static const char *sglang_name(const histogram_names *row) { return row->sglang; }
static const char *vllm_name(const histogram_names *row) { return row->vllm; }

static void write_histograms(writer *w, const metrics *m, histogram_namer namer)
{
    for (size_t i = 0; i < sizeof histogram_table / sizeof histogram_table[0]; i++)
        if (namer(&histogram_table[i]))
            write_histogram(w, namer(&histogram_table[i]), &m->histograms[histogram_table[i].id], histogram_table[i].help);
}

static int used_pages(const engine_counters *c)
{
    return c->pages - c->free_pages - c->idle_pages;
}

static double used_share(const engine_counters *c)
{
    return c->pages ? (double)used_pages(c) / c->pages : 0;
}

static uint64_t sum_of(const uint64_t *values, int count)
{
    uint64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static void write_state(writer *w, const engine_counters *c, int connections)
{
    static const char *const states[] = {"used", "idle", "free"};
    int counts[] = {used_pages(c), c->idle_pages, c->free_pages};
    gauge(w, "drawbridge_running_requests", c->running, "Requests being computed.");
    gauge(w, "drawbridge_waiting_requests", c->waiting, "Requests in the queue.");
    gauge(w, "drawbridge_decoding_requests", c->decoding, "Running requests past their prompt.");
    gauge(w, "drawbridge_prefilling_requests", c->prefilling, "Running requests whose prompt is being computed.");
    family(w, "drawbridge_kv_pages", "gauge",
           "Pages of the KV pool: used by sequences, idle (only the prefix cache holds them, evicted when needed), free.");
    for (int i = 0; i < 3; i++)
        sample(w, "drawbridge_kv_pages", "", "state", states[i], counts[i]);
    gauge(w, "drawbridge_kv_page_tokens", KV_PAGE_TOKENS, "Tokens per page.");
    gauge(w, "drawbridge_prefix_tree_pages", (double)c->tree_pages, "Pages in the prefix cache, in use or idle.");
    gauge(w, "drawbridge_step_rows", c->last_rows, "Rows of the latest step.");
    gauge(w, "drawbridge_prefill_row_budget", c->prefill_rows, "Prompt rows that a step with decoding requests may have now.");
    gauge(w, "drawbridge_http_connections", connections, "Open connections.");
}

static void write_dispatch(writer *w, const dispatch_counts *c)
{
    static const char name[] = "drawbridge_dispatch_shapes";
    family(w, name, "gauge", "Shapes of this model by how their kernel was chosen: from the tuned table, as the only one, by rule.");
    sample(w, name, "", "source", "tuned", c->tuned);
    sample(w, name, "", "source", "only", c->only);
    sample(w, name, "", "source", "heuristic", c->heuristic);
}

static void write_totals(writer *w, const engine_counters *c)
{
    static const char *const finishes[] = {[ENGINE_STOP] = "stop", [ENGINE_LENGTH] = "length", [ENGINE_CANCELLED] = "cancelled",
                                           [ENGINE_DEADLINE] = "deadline", [ENGINE_FAILED] = "failed"};
    counter(w, "drawbridge_requests_submitted_total", c->submitted, "Requests the engine accepted.");
    counter(w, "drawbridge_requests_refused_total", c->refused, "Requests the engine refused: queue full, or impossible.");
    family(w, "drawbridge_engine_finished_total", "counter", "Requests that ended, by how the engine ended them.");
    for (int i = ENGINE_STOP; i <= ENGINE_FAILED; i++)
        sample(w, "drawbridge_engine_finished_total", "", "finish", finishes[i], (double)c->finished[i]);
    counter(w, "drawbridge_prompt_tokens_total", c->prompt_tokens, "Prompt tokens of admitted requests.");
    counter(w, "drawbridge_cached_tokens_total", c->cached_tokens, "Prompt tokens found in the prefix cache.");
    counter(w, "drawbridge_computed_rows_total", c->computed_tokens, "Rows computed: prompts, outputs, drafts, recomputation.");
    counter(w, "drawbridge_output_tokens_total", c->output_tokens, "Output tokens.");
    counter(w, "drawbridge_preemptions_total", c->preemptions, "Requests that gave up their pages and were computed again.");
    counter(w, "drawbridge_evicted_pages_total", c->evicted_pages, "Pages evicted from the prefix cache.");
    counter(w, "drawbridge_steps_total", c->steps, "Engine steps.");
    family(w, "drawbridge_step_seconds_total", "counter", "Time spent in steps.");
    sample(w, "drawbridge_step_seconds_total", "", NULL, NULL, (double)c->step_us * 1e-6);
}

static void write_by_position(writer *w, const char *name, const uint64_t *values, int first, const char *help)
{
    family(w, name, "counter", help);
    for (int i = 0; i < SPEC_DEPTH_MOST; i++) {
        char position[] = {(char)('0' + first + i), 0};
        sample(w, name, "", "position", position, (double)values[i]);
    }
}

static void write_speculation(writer *w, const metrics *m, const engine_counters *c)
{
    gauge(w, "drawbridge_spec_simulated", c->spec_simulated,
          "1: acceptance is simulated (--spec-simulate), the output is not the model's and all speculation figures are made up.");
    gauge(w, "drawbridge_spec_depth", c->spec.depth, "Drafts per step chosen now.");
    counter(w, "drawbridge_spec_verify_steps_total", c->spec.verify_steps, "(Request, step) pairs with at least one draft.");
    counter(w, "drawbridge_spec_verify_tokens_total", c->spec.verify_tokens, "Output tokens of these.");
    write_by_position(w, "drawbridge_spec_tried_total", c->spec.tried, 1, "Drafts compared, by position; all drafts before were right.");
    write_by_position(w, "drawbridge_spec_right_total", c->spec.right, 1, "Drafts accepted, by position.");
    counter(w, "drawbridge_spec_drafted_tokens_total", m->drafted, "Drafts verified, of requests that have ended.");
    counter(w, "drawbridge_spec_accepted_tokens_total", m->accepted, "Drafts accepted, of requests that have ended.");
}

static void write_http(writer *w, const metrics *m)
{
    family(w, "drawbridge_requests_finished_total", "counter", "Requests that ended, by the reason the client was given.");
    for (int i = 0; i < REASONS; i++)
        sample(w, "drawbridge_requests_finished_total", "", "reason", finish_reason_names[i], (double)m->reasons[i]);
    family(w, "drawbridge_http_requests_total", "counter", "HTTP requests by route and class of status; closed: the client left first.");
    for (int i = 0; i <= m->path_count; i++)
        for (int k = 0; k < STATUS_CLASSES; k++) {
            const uint64_t *row = m->http[i < m->path_count ? i : METRICS_PATHS_MOST];
            text labels = {0};
            text_add_format(&labels, "path=\"%s\"", i < m->path_count ? m->paths[i] : "other");
            writer with_path = {w->out, labels.data};
            sample(&with_path, "drawbridge_http_requests_total", "", "status", status_class_names[k], (double)row[k]);
            text_free(&labels);
        }
}

static void write_own(text *out, const metrics *m, const engine_counters *c, int connections)
{
    text labels = {0};
    text_add_format(&labels, "version=\"%s\",model_name=\"%s\"", DRAWBRIDGE_VERSION, m->model_name);
    writer info = {out, labels.data}, w = {out, ""};
    gauge(&info, "drawbridge_build_info", 1, "Version and model.");
    text_free(&labels);
    write_state(&w, c, connections);
    write_dispatch(&w, &c->dispatch);
    write_totals(&w, c);
    write_speculation(&w, m, c);
    write_http(&w, m);
    write_histograms(&w, m, own_name);
}

static void write_sglang_gauges(writer *w, const metrics *m, const engine_counters *c)
{
    const history *h = &m->history;
    double rate = h->tokens_per_step > 1 && c->spec.depth ? (h->tokens_per_step - 1) / c->spec.depth : 0;
    gauge(w, "sglang:num_running_reqs", c->running, "Requests being computed.");
    gauge(w, "sglang:num_queue_reqs", c->waiting, "Requests in the queue.");
    gauge(w, "sglang:num_used_tokens", (double)used_pages(c) * KV_PAGE_TOKENS, "Tokens of the pages that sequences use.");
    gauge(w, "sglang:token_usage", used_share(c), "Share of the pages that sequences use.");
    gauge(w, "sglang:max_total_num_tokens", (double)c->pages * KV_PAGE_TOKENS, "Tokens of all pages.");
    gauge(w, "sglang:cache_hit_rate", h->hit_rate, "Share of prompt tokens found in the prefix cache, of the last seconds with any.");
    gauge(w, "sglang:gen_throughput", h->output_tps, "Output tokens per second, of the last second.");
    gauge(w, "sglang:spec_accept_length", h->tokens_per_step, "Tokens per verifying step, of the last seconds with any.");
    gauge(w, "sglang:spec_accept_rate", rate < 1 ? rate : 1, "Accepted drafts per draft at the present depth.");
    gauge(w, "sglang:spec_num_steps", c->spec.depth, "Draft steps now.");
    gauge(w, "sglang:spec_num_draft_tokens", c->spec.depth ? c->spec.depth + 1 : 0, "Rows verified per step now.");
}

static void write_sglang_counters(writer *w, const metrics *m, const engine_counters *c)
{
    counter(w, "sglang:prompt_tokens_total", c->prompt_tokens, "Prompt tokens.");
    counter(w, "sglang:generation_tokens_total", c->output_tokens, "Output tokens.");
    counter(w, "sglang:cached_tokens_total", c->cached_tokens, "Prompt tokens found in the prefix cache.");
    counter(w, "sglang:num_requests_total", sum_of(m->reasons, REASONS), "Requests that ended.");
    counter(w, "sglang:num_aborted_requests_total", m->reasons[REASON_ABORT] + m->reasons[REASON_TIMEOUT], "Requests aborted.");
    counter(w, "sglang:num_retracted_requests_total", c->preemptions, "Preemptions.");
    counter(w, "sglang:evicted_tokens_total", c->evicted_pages * KV_PAGE_TOKENS, "Tokens of pages evicted from the prefix cache.");
    family(w, "sglang:realtime_tokens_total", "counter", "Tokens by how they came to be.");
    sample(w, "sglang:realtime_tokens_total", "", "mode", "prefill_compute", (double)(c->prompt_tokens - c->cached_tokens));
    sample(w, "sglang:realtime_tokens_total", "", "mode", "prefill_cache", (double)c->cached_tokens);
    sample(w, "sglang:realtime_tokens_total", "", "mode", "decode", (double)c->output_tokens);
}

static void write_vllm_requests(writer *w, const metrics *m)
{
    static const char name[] = "vllm:request_success_total";
    family(w, name, "counter", "Requests that ended.");
    sample(w, name, "", "finished_reason", "stop", (double)(m->reasons[REASON_STOP] + m->reasons[REASON_CALLS]));
    sample(w, name, "", "finished_reason", "length", (double)m->reasons[REASON_LENGTH]);
    sample(w, name, "", "finished_reason", "abort", (double)(m->reasons[REASON_ABORT] + m->reasons[REASON_TIMEOUT]));
    sample(w, name, "", "finished_reason", "error", (double)m->reasons[REASON_ERROR]);
}

static void write_vllm(writer *w, const metrics *m, const engine_counters *c)
{
    gauge(w, "vllm:num_requests_running", c->running, "Requests being computed.");
    gauge(w, "vllm:num_requests_waiting", c->waiting, "Requests in the queue.");
    gauge(w, "vllm:kv_cache_usage_perc", used_share(c), "Share of the pages that sequences use; 1 is all.");
    counter(w, "vllm:prefix_cache_queries_total", c->prompt_tokens, "Prompt tokens looked up.");
    counter(w, "vllm:prefix_cache_hits_total", c->cached_tokens, "Prompt tokens found.");
    counter(w, "vllm:prompt_tokens_total", c->prompt_tokens, "Prompt tokens.");
    counter(w, "vllm:generation_tokens_total", c->output_tokens, "Output tokens.");
    counter(w, "vllm:num_preemptions_total", c->preemptions, "Preemptions.");
    write_vllm_requests(w, m);
    counter(w, "vllm:spec_decode_num_drafts_total", c->spec.verify_steps, "(Request, step) pairs with at least one draft.");
    counter(w, "vllm:spec_decode_num_draft_tokens_total", m->drafted, "Drafts verified, of requests that have ended.");
    counter(w, "vllm:spec_decode_num_accepted_tokens_total", sum_of(c->spec.right, SPEC_DEPTH_MOST), "Drafts accepted.");
    write_by_position(w, "vllm:spec_decode_num_accepted_tokens_per_pos_total", c->spec.right, 0, "Drafts accepted, by position from 0.");
}

void metrics_write(metrics *m, const engine_counters *c, int connections, text *out)
{
    text sglang = {0}, vllm = {0};
    text_add_format(&sglang, "model_name=\"%s\",engine_type=\"unified\"", m->model_name);
    text_add_format(&vllm, "model_name=\"%s\",engine=\"0\"", m->model_name);
    writer for_sglang = {out, sglang.data}, for_vllm = {out, vllm.data};
    write_own(out, m, c, connections);
    write_sglang_gauges(&for_sglang, m, c);
    write_sglang_counters(&for_sglang, m, c);
    write_histograms(&for_sglang, m, sglang_name);
    write_vllm(&for_vllm, m, c);
    write_histograms(&for_vllm, m, vllm_name);
    text_free(&sglang);
    text_free(&vllm);
}
