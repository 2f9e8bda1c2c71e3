/* The text of /metrics, read by a strict parser of Prometheus' form, and the history for the page. */
#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/metrics.h"

enum { SAMPLES_MOST = 4096, NAME_BYTES = 96, LABELS_BYTES = 256 };

/* ---- the parser ---- */

typedef struct sample {
    char name[NAME_BYTES];
    char labels[LABELS_BYTES]; /* as written, between the braces */
    double value;
} sample;

typedef struct parsed {
    sample samples[SAMPLES_MOST];
    int count;
    char families[SAMPLES_MOST / 4][NAME_BYTES], types[SAMPLES_MOST / 4][16];
    int family_count;
} parsed;

static parsed p;

static bool is_name_char(char c, bool first)
{
    return isalpha((unsigned char)c) || c == '_' || c == ':' || (!first && isdigit((unsigned char)c));
}

static const char *parse_name(const char *s, char *out)
{
    int n = 0;
    while (is_name_char(s[n], n == 0) && n < NAME_BYTES - 1) {
        out[n] = s[n];
        n++;
    }
    out[n] = 0;
    assert_true(n > 0);
    return s + n;
}

/* key="value",... up to the closing brace */
static const char *parse_labels(const char *s, char *out)
{
    const char *start = s;
    for (;;) {
        char key[NAME_BYTES];
        s = parse_name(s, key);
        assert_null(strchr(key, ':'));
        assert_true(*s++ == '=');
        assert_true(*s++ == '"');
        while (*s != '"') {
            assert_true(*s && *s != '\n');
            if (*s == '\\')
                assert_non_null(strchr("\\\"n", *++s));
            s++;
        }
        s++;
        if (*s == '}')
            break;
        assert_true(*s++ == ',');
    }
    size_t n = (size_t)(s - start);
    assert_true(n < LABELS_BYTES);
    memcpy(out, start, n);
    out[n] = 0;
    return s + 1;
}

/* A sample must belong to the newest family: its name alone, or with a histogram's suffix. */
static void check_belongs(const char *name)
{
    assert_true(p.family_count > 0);
    const char *family = p.families[p.family_count - 1], *type = p.types[p.family_count - 1];
    size_t n = strlen(family);
    if (strcmp(type, "histogram") == 0) {
        assert_memory_equal(name, family, n);
        assert_true(strcmp(name + n, "_bucket") == 0 || strcmp(name + n, "_sum") == 0 || strcmp(name + n, "_count") == 0);
    } else {
        assert_string_equal(name, family);
    }
}

static void parse_sample(const char *line)
{
    assert_true(p.count < SAMPLES_MOST);
    sample *s = &p.samples[p.count];
    char *end;
    line = parse_name(line, s->name);
    s->labels[0] = 0;
    if (*line == '{')
        line = parse_labels(line + 1, s->labels);
    assert_true(*line == ' ');
    s->value = strcmp(line + 1, "+Inf") == 0 ? INFINITY : strtod(line + 1, &end);
    assert_true(isinf(s->value) || (end != line + 1 && *end == 0));
    check_belongs(s->name);
    for (int i = 0; i < p.count; i++)
        if (strcmp(p.samples[i].name, s->name) == 0 && strcmp(p.samples[i].labels, s->labels) == 0)
            fail_msg("%s{%s} twice", s->name, s->labels);
    p.count++;
}

/* HELP must come first and TYPE in the line after it. */
static void parse_comment(const char *line, const char *previous)
{
    char name[NAME_BYTES];
    bool type = strncmp(line, "# TYPE ", 7) == 0;
    assert_true(type || strncmp(line, "# HELP ", 7) == 0);
    const char *rest = parse_name(line + 7, name);
    assert_true(*rest++ == ' ');
    if (!type)
        return;
    assert_true(strncmp(previous, "# HELP ", 7) == 0 && strncmp(previous + 7, name, strlen(name)) == 0);
    assert_true(previous[7 + strlen(name)] == ' ');
    for (int i = 0; i < p.family_count; i++)
        assert_string_not_equal(p.families[i], name);
    assert_true(strcmp(rest, "gauge") == 0 || strcmp(rest, "counter") == 0 || strcmp(rest, "histogram") == 0);
    size_t n = strlen(name);
    bool total = n > 6 && strcmp(name + n - 6, "_total") == 0;
    assert_int_equal(total, strcmp(rest, "counter") == 0);
    memcpy(p.families[p.family_count], name, n + 1);
    memcpy(p.types[p.family_count++], rest, strlen(rest) + 1);
}

static double value_of(const char *name, const char *labels)
{
    for (int i = 0; i < p.count; i++)
        if (strcmp(p.samples[i].name, name) == 0 && strcmp(p.samples[i].labels, labels) == 0)
            return p.samples[i].value;
    fail_msg("no sample %s{%s}", name, labels);
    return 0;
}

static void check_histogram(const char *family)
{
    char name[NAME_BYTES + 8];
    double last_bound = -INFINITY, last = 0, count = -1;
    int buckets = 0;
    for (int i = 0; i < p.count; i++) {
        const sample *s = &p.samples[i];
        snprintf(name, sizeof name, "%s_bucket", family);
        if (strcmp(s->name, name) == 0) {
            const char *le = strstr(s->labels, "le=\"");
            assert_non_null(le);
            double bound = strncmp(le + 4, "+Inf", 4) == 0 ? INFINITY : strtod(le + 4, NULL);
            assert_true(bound > last_bound && s->value >= last);
            last_bound = bound, last = s->value;
            buckets++;
        }
        snprintf(name, sizeof name, "%s_count", family);
        if (strcmp(s->name, name) == 0)
            count = s->value;
    }
    assert_true(buckets > 1 && isinf(last_bound));
    assert_true(last == count);
}

static void parse(const text *t)
{
    p.count = p.family_count = 0;
    assert_true(t->length > 0 && t->data[t->length - 1] == '\n');
    char *copy = malloc(t->length + 1), *previous = copy;
    memcpy(copy, t->data, t->length + 1);
    for (char *line = copy, *end; (end = strchr(line, '\n')); previous = line, line = end + 1) {
        *end = 0;
        if (*line == '#')
            parse_comment(line, previous);
        else
            parse_sample(line);
    }
    free(copy);
    for (int i = 0; i < p.family_count; i++)
        if (strcmp(p.types[i], "histogram") == 0)
            check_histogram(p.families[i]);
}

/* ---- what is measured ---- */

static const engine_counters counters = {
    .running = 3, .waiting = 2, .decoding = 2, .prefilling = 1, .pages = 100, .free_pages = 50, .idle_pages = 30, .tree_pages = 40,
    .submitted = 12, .refused = 1, .finished = {[ENGINE_STOP] = 5, [ENGINE_LENGTH] = 2, [ENGINE_DEADLINE] = 1},
    .prompt_tokens = 1000, .cached_tokens = 600, .computed_tokens = 900, .output_tokens = 400, .preemptions = 4, .evicted_pages = 7,
    .steps = 300, .step_us = 2500000, .last_rows = 17, .prefill_rows = 64,
    .spec = {.tried = {100, 80}, .right = {80, 40}, .verify_steps = 100, .verify_tokens = 220, .depth = 2},
    .spec_words = "2", .spec_simulated = false,
};

static engine_event event_at(uint64_t time_us, int count, int output_tokens)
{
    return (engine_event){.count = count, .time_us = time_us, .stats = {.arrival_us = 1000000, .output_tokens = output_tokens}};
}

static metrics *filled(void)
{
    metrics *m = metrics_create("nano \"x\"\\\n");
    engine_event first = event_at(1030000, 1, 1), next = event_at(1050000, 2, 3), last = event_at(1060000, 1, 4);
    metrics_tokens(m, &first, 0);
    metrics_tokens(m, &next, 1030000);
    metrics_tokens(m, &last, 1050000);
    last.stats = (engine_request_stats){.arrival_us = 1000000, .admitted_us = 1010000, .first_token_us = 1030000, .finished_us = 1060000,
                                        .prompt_tokens = 100, .cached_tokens = 64, .output_tokens = 4, .drafted = 6, .accepted = 2,
                                        .verify_steps = 2};
    metrics_finish(m, &last, "tool_calls", 32);
    engine_event never = event_at(1500000, 0, 0);
    never.stats.prompt_tokens = 10;
    metrics_finish(m, &never, "timeout", 0);
    metrics_http(m, "/v1/chat/completions", 200, 60000);
    metrics_http(m, "/v1/chat/completions", 499, 60000);
    metrics_http(m, "/assets/*", 304, 100);
    metrics_http(m, "other", 404, 100);
    metrics_http(m, NULL, 431, 100);
    return m;
}

static void write_and_parse(const engine_counters *c)
{
    metrics *m = filled();
    text out = {0};
    metrics_write(m, c, 9, &out);
    parse(&out);
    text_free(&out);
    metrics_destroy(m);
}

static const char *const expected[] = {
    "drawbridge_build_info", "drawbridge_running_requests", "drawbridge_waiting_requests", "drawbridge_decoding_requests",
    "drawbridge_prefilling_requests", "drawbridge_kv_pages", "drawbridge_kv_page_tokens", "drawbridge_prefix_tree_pages",
    "drawbridge_step_rows", "drawbridge_prefill_row_budget", "drawbridge_http_connections", "drawbridge_dispatch_shapes",
    "drawbridge_requests_submitted_total",
    "drawbridge_requests_refused_total", "drawbridge_engine_finished_total", "drawbridge_prompt_tokens_total",
    "drawbridge_cached_tokens_total", "drawbridge_computed_rows_total", "drawbridge_output_tokens_total", "drawbridge_preemptions_total",
    "drawbridge_evicted_pages_total", "drawbridge_steps_total", "drawbridge_step_seconds_total", "drawbridge_spec_simulated",
    "drawbridge_spec_depth", "drawbridge_spec_verify_steps_total", "drawbridge_spec_verify_tokens_total", "drawbridge_spec_tried_total",
    "drawbridge_spec_right_total", "drawbridge_spec_drafted_tokens_total", "drawbridge_spec_accepted_tokens_total",
    "drawbridge_requests_finished_total", "drawbridge_http_requests_total", "drawbridge_time_to_first_token_seconds",
    "drawbridge_inter_token_latency_seconds", "drawbridge_request_duration_seconds", "drawbridge_request_queue_seconds",
    "drawbridge_request_prefill_seconds", "drawbridge_request_decode_seconds", "drawbridge_request_inference_seconds",
    "drawbridge_request_time_per_output_token_seconds", "drawbridge_request_prompt_tokens", "drawbridge_request_uncached_prompt_tokens",
    "drawbridge_request_output_tokens", "drawbridge_request_max_tokens", "drawbridge_http_request_duration_seconds",
    "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_used_tokens", "sglang:token_usage", "sglang:max_total_num_tokens",
    "sglang:cache_hit_rate", "sglang:gen_throughput", "sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:spec_num_steps",
    "sglang:spec_num_draft_tokens", "sglang:prompt_tokens_total", "sglang:generation_tokens_total", "sglang:cached_tokens_total",
    "sglang:num_requests_total", "sglang:num_aborted_requests_total", "sglang:num_retracted_requests_total",
    "sglang:evicted_tokens_total", "sglang:realtime_tokens_total", "sglang:time_to_first_token_seconds",
    "sglang:inter_token_latency_seconds", "sglang:e2e_request_latency_seconds", "sglang:queue_time_seconds",
    "sglang:prompt_tokens_histogram", "sglang:generation_tokens_histogram", "sglang:uncached_prompt_tokens_histogram",
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:num_preemptions_total",
    "vllm:request_success_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds",
    "vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_params_max_tokens",
    "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
};

static void test_every_name(void **state)
{
    (void)state;
    int count = (int)(sizeof expected / sizeof expected[0]);
    write_and_parse(&counters);
    for (int i = 0; i < count; i++) {
        int found = 0;
        for (int k = 0; k < p.family_count; k++)
            found += strcmp(p.families[k], expected[i]) == 0;
        if (!found)
            fail_msg("%s is missing", expected[i]);
    }
    assert_int_equal(p.family_count, count);
}

#define MODEL "model_name=\"nano \\\"x\\\"\\\\\\n\""
#define SGLANG MODEL ",engine_type=\"unified\""
#define VLLM MODEL ",engine=\"0\""

static void test_values(void **state)
{
    (void)state;
    write_and_parse(&counters);
    assert_true(value_of("drawbridge_build_info", "version=\"" DRAWBRIDGE_VERSION "\"," MODEL) == 1);
    assert_true(value_of("drawbridge_kv_pages", "state=\"used\"") == 20);
    assert_true(value_of("drawbridge_kv_pages", "state=\"idle\"") == 30);
    assert_true(value_of("drawbridge_step_seconds_total", "") == 2.5);
    assert_true(value_of("drawbridge_engine_finished_total", "finish=\"deadline\"") == 1);
    assert_true(value_of("drawbridge_spec_right_total", "position=\"2\"") == 40);
    assert_true(value_of("drawbridge_spec_drafted_tokens_total", "") == 6);
    assert_true(value_of("sglang:token_usage", SGLANG) == 0.2);
    assert_true(value_of("sglang:max_total_num_tokens", SGLANG) == 6400);
    assert_true(value_of("sglang:realtime_tokens_total", SGLANG ",mode=\"prefill_compute\"") == 400);
    assert_true(value_of("sglang:num_aborted_requests_total", SGLANG) == 1);
    assert_true(value_of("vllm:request_success_total", VLLM ",finished_reason=\"stop\"") == 1);
    assert_true(value_of("vllm:spec_decode_num_accepted_tokens_total", VLLM) == 120);
    assert_true(value_of("vllm:spec_decode_num_accepted_tokens_per_pos_total", VLLM ",position=\"0\"") == 80);
}

static void test_requests(void **state)
{
    (void)state;
    write_and_parse(&counters);
    assert_true(value_of("vllm:time_to_first_token_seconds_bucket", VLLM ",le=\"0.02\"") == 0);
    assert_true(value_of("vllm:time_to_first_token_seconds_bucket", VLLM ",le=\"0.04\"") == 1);
    assert_true(value_of("vllm:time_to_first_token_seconds_bucket", VLLM ",le=\"2560\"") == 1);
    assert_true(value_of("drawbridge_inter_token_latency_seconds_count", "") == 3);
    assert_true(fabs(value_of("drawbridge_inter_token_latency_seconds_sum", "") - 0.03) < 1e-9);
    assert_true(value_of("drawbridge_inter_token_latency_seconds_bucket", "le=\"0.01\"") == 3);
    assert_true(value_of("drawbridge_request_duration_seconds_count", "") == 2);
    assert_true(value_of("drawbridge_request_prefill_seconds_count", "") == 1);
    assert_true(fabs(value_of("drawbridge_request_prefill_seconds_sum", "") - 0.02) < 1e-9);
    assert_true(fabs(value_of("drawbridge_request_time_per_output_token_seconds_sum", "") - 0.01) < 1e-9);
    assert_true(value_of("drawbridge_request_uncached_prompt_tokens_sum", "") == 36);
    assert_true(value_of("drawbridge_request_max_tokens_count", "") == 1);
}

static void test_http(void **state)
{
    (void)state;
    write_and_parse(&counters);
    assert_true(value_of("drawbridge_http_requests_total", "path=\"/v1/chat/completions\",status=\"2xx\"") == 1);
    assert_true(value_of("drawbridge_http_requests_total", "path=\"/v1/chat/completions\",status=\"closed\"") == 1);
    assert_true(value_of("drawbridge_http_requests_total", "path=\"/assets/*\",status=\"3xx\"") == 1);
    assert_true(value_of("drawbridge_http_requests_total", "path=\"other\",status=\"4xx\"") == 2);
    assert_true(value_of("drawbridge_http_request_duration_seconds_count", "") == 5);
    assert_true(value_of("drawbridge_http_connections", "") == 9);
}

/* However many paths there are, and whatever they are made of, the text stays bounded and well-formed. */
static void test_paths_are_bounded(void **state)
{
    (void)state;
    metrics *m = metrics_create("m");
    text out = {0};
    metrics_http(m, "/quote\"", 200, 1);
    for (int i = 0; i < 1000; i++) {
        char path[32];
        snprintf(path, sizeof path, "/%d", i);
        metrics_http(m, path, 200, 1);
    }
    metrics_write(m, &counters, 0, &out);
    parse(&out);
    double sum = 0, rows = 0;
    for (int i = 0; i < p.count; i++)
        if (strcmp(p.samples[i].name, "drawbridge_http_requests_total") == 0) {
            sum += p.samples[i].value;
            rows++;
        }
    assert_true(sum == 1001 && rows <= 5 * 65);
    text_free(&out);
    metrics_destroy(m);
}

static void test_simulated_is_marked(void **state)
{
    (void)state;
    engine_counters c = counters;
    write_and_parse(&c);
    assert_true(value_of("drawbridge_spec_simulated", "") == 0);
    c.spec_simulated = true;
    write_and_parse(&c);
    assert_true(value_of("drawbridge_spec_simulated", "") == 1);
}

/* ---- history ---- */

static double number_at(json_t *history, const char *series, size_t i)
{
    json_t *array = json_object_get(json_object_get(history, "series"), series);
    assert_true(json_is_array(array) && i < json_array_size(array));
    json_t *v = json_array_get(array, i);
    assert_true(json_is_number(v) || json_is_null(v));
    return json_is_null(v) ? NAN : json_number_value(v);
}

/* All series have one length. */
static size_t history_length(json_t *history)
{
    json_t *series = json_object_get(history, "series"), *array;
    const char *name;
    size_t n = json_array_size(json_object_get(series, "t"));
    json_object_foreach(series, name, array)
        assert_int_equal(json_array_size(array), n);
    assert_int_equal(json_object_size(series), 1 + 17 + SPEC_DEPTH_MOST);
    return n;
}

static void test_history_values(void **state)
{
    (void)state;
    metrics *m = metrics_create("m");
    engine_counters c = counters;
    metrics_tick(m, &c, 1, 5000000);
    for (int i = 0; i < 90; i++) {
        engine_event first = event_at(1100000, 1, 1), next = event_at(1120000, 2, 3);
        metrics_tokens(m, &first, 0);
        metrics_tokens(m, &next, 1100000);
    }
    c.output_tokens += 500, c.prompt_tokens += 300, c.cached_tokens += 100;
    c.spec.tried[0] += 10, c.spec.right[0] += 9, c.spec.verify_steps += 10, c.spec.verify_tokens += 19;
    metrics_tick(m, &c, 2, 5300000); /* too early: ignored */
    metrics_tick(m, &c, 2, 7000000);
    json_t *h = metrics_history(m, &c, -1);
    assert_int_equal(history_length(h), 1);
    assert_true(number_at(h, "t", 0) == 7);
    assert_true(number_at(h, "output_tps", 0) == 250);
    assert_true(number_at(h, "prompt_tps", 0) == 100);
    assert_true(number_at(h, "cached_tps", 0) == 50);
    assert_true(number_at(h, "pages_used", 0) == 20);
    assert_true(fabs(number_at(h, "hit_rate", 0) - 1.0 / 3) < 1e-6);
    assert_true(fabs(number_at(h, "accept_1", 0) - .9) < 1e-6);
    assert_true(isnan(number_at(h, "accept_3", 0)));
    assert_true(fabs(number_at(h, "tokens_per_step", 0) - 1.9) < 1e-6);
    assert_true(fabs(number_at(h, "ttft_p95", 0) - .1) < .015);
    assert_true(fabs(number_at(h, "itl_p50", 0) - .01) < .0015);
    assert_true(number_at(h, "connections", 0) == 2);
    json_t *current = json_object_get(h, "current");
    assert_true(fabs(json_number_value(json_object_get(current, "ttft_p50")) - .1) < .015);
    assert_false(json_is_true(json_object_get(json_object_get(h, "speculation"), "simulated")));
    json_decref(h);
    metrics_destroy(m);
}

static void test_history_ring(void **state)
{
    (void)state;
    metrics *m = metrics_create("m");
    engine_counters c = counters;
    json_t *h = metrics_history(m, &c, -1);
    assert_int_equal(history_length(h), 0);
    json_decref(h);
    for (int i = 0; i <= METRICS_HISTORY_S + 50; i++) {
        c.output_tokens += (uint64_t)i;
        metrics_tick(m, &c, 0, 1000500 + (uint64_t)i * 999999); /* a little fast: once, two ticks fall into one second */
    }
    h = metrics_history(m, &c, -1);
    assert_int_equal(history_length(h), METRICS_HISTORY_S);
    for (size_t i = 1; i < METRICS_HISTORY_S; i++)
        assert_true(number_at(h, "t", i) > number_at(h, "t", i - 1));
    assert_true(fabs(number_at(h, "output_tps", METRICS_HISTORY_S - 1) - (METRICS_HISTORY_S + 50)) < .01);
    assert_true(isnan(number_at(h, "ttft_p50", 0)) && isnan(number_at(h, "hit_rate", METRICS_HISTORY_S - 1)));
    int64_t since = (int64_t)number_at(h, "t", METRICS_HISTORY_S - 4);
    json_decref(h);
    h = metrics_history(m, &c, since);
    assert_int_equal(history_length(h), 3);
    json_decref(h);
    h = metrics_history(m, &c, INT64_MAX);
    assert_int_equal(history_length(h), 0);
    json_decref(h);
    metrics_destroy(m);
}

/* Percentiles forget what is older than the window. */
static void test_history_forgets(void **state)
{
    (void)state;
    metrics *m = metrics_create("m");
    engine_event first = event_at(1100000, 1, 1);
    metrics_tick(m, &counters, 0, 1000000);
    metrics_tokens(m, &first, 0);
    for (uint64_t i = 2; i < 80; i++)
        metrics_tick(m, &counters, 0, i * 1000000);
    json_t *h = metrics_history(m, &counters, -1);
    assert_true(!isnan(number_at(h, "ttft_p50", 0)));
    assert_true(!isnan(number_at(h, "ttft_p50", METRICS_WINDOW_S - 1)));
    assert_true(isnan(number_at(h, "ttft_p50", METRICS_WINDOW_S)));
    assert_true(json_is_null(json_object_get(json_object_get(h, "current"), "ttft_p50")));
    json_decref(h);
    metrics_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_name),     cmocka_unit_test(test_values),        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_http),           cmocka_unit_test(test_simulated_is_marked), cmocka_unit_test(test_history_values),
        cmocka_unit_test(test_paths_are_bounded), cmocka_unit_test(test_history_ring),   cmocka_unit_test(test_history_forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
