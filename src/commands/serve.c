/* drawbridge serve: the server. Opens the model, starts the engine, and runs the HTTP loop until it is told to stop. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "commands/commands.h"
#include "commands/model_path.h"
#include "commands/runner.h"
#include "commands/text_model.h"
#include "engine/generate.h"
#include "model/inspect.h"
#include "serve/generation.h"
#include "serve/page.h"
#include "serve/server.h"

typedef struct serve_values {
    runner_values runner;
    const char *host, *name, *template, *keys, *hosts, *origins, *spec;
    int64_t port, kv_tokens, max_running, max_queue, prefill_budget, max_tokens, default_max_tokens, max_choices;
    int64_t max_body_mb, max_connections;
    double itl_ms, simulate, timeout_s, drain_s, keep_alive_s, idle_s;
    bool prefix_cache, log_json;
} serve_values;

#define AT(field) offsetof(serve_values, field)

static const option serve_options[] = {
    RUNNER_MODEL_ROWS(serve_values),
    {.name = "host", .type = OPTION_TEXT, .metavar = "ADDRESS", .by_default = "127.0.0.1", .group = "Network", .offset = AT(host),
     .help = "Address to listen on. Anything but a loopback address needs --api-keys."},
    {.name = "port", .letter = 'p', .type = OPTION_INT, .metavar = "N", .least = 0, .most = 65535, .by_default = "8080", .group = "Network",
     .offset = AT(port), .help = "Port to listen on. 0 takes any free one; the banner says which."},
    {.name = "api-keys", .type = OPTION_FILE, .metavar = "FILE", .unset = "no keys", .group = "Network", .offset = AT(keys),
     .help = "Who may use the server: one line per key, NAME KEY [admin] [in-flight=N] [per-minute=N]."},
    {.name = "allow-host", .type = OPTION_TEXT, .metavar = "NAMES", .unset = "none", .group = "Network", .offset = AT(hosts),
     .help = "Names, separated by commas, that a request's Host may have beside the address itself and localhost."},
    {.name = "allow-origin", .type = OPTION_TEXT, .metavar = "ORIGINS", .unset = "none", .group = "Network", .offset = AT(origins),
     .help = "Web origins, separated by commas, whose pages may call the server from a browser; * for any."},
    {.name = "max-connections", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1000000, .by_default = "16384", .group = "Network",
     .offset = AT(max_connections), .help = "Open connections at the same time."},
    {.name = "idle-timeout", .type = OPTION_NUMBER, .metavar = "S", .least = 1, .most = 86400, .by_default = "120", .group = "Network",
     .offset = AT(idle_s), .help = "Seconds after which an unused connection is closed."},
    {.name = "keep-alive", .type = OPTION_NUMBER, .metavar = "S", .least = 0.05, .most = 3600, .by_default = "5", .group = "Network",
     .offset = AT(keep_alive_s), .help = "Seconds of silence after which a stream gets a comment line, so that proxies keep it open."},
    {.name = "drain", .type = OPTION_NUMBER, .metavar = "S", .least = 0, .most = 86400, .by_default = "30", .group = "Network",
     .offset = AT(drain_s), .help = "Seconds that running requests have to finish after SIGTERM or Ctrl-C."},
    {.name = "log-json", .type = OPTION_FLAG, .group = "Network", .offset = AT(log_json),
     .help = "Write the request log as JSON lines instead of key=value."},
    {.name = "model-name", .type = OPTION_TEXT, .metavar = "NAME", .unset = "the directory's name", .group = "Requests", .offset = AT(name),
     .help = "Name of the model in the API."},
    {.name = "template", .type = OPTION_TEXT, .metavar = "NAME", .unset = "recognised from the model's files", .group = "Requests",
     .offset = AT(template), .help = "Chat format, for a model whose template is not known. drawbridge render --help lists them."},
    {.name = "max-tokens", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1 << 24, .unset = "what the context allows",
     .group = "Requests", .offset = AT(max_tokens), .help = "The longest answer a request may ask for, in tokens."},
    {.name = "default-max-tokens", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1 << 24, .unset = "what the context allows",
     .group = "Requests", .offset = AT(default_max_tokens), .help = "The longest answer of a request that does not say."},
    {.name = "max-choices", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 16, .by_default = "16", .group = "Requests",
     .offset = AT(max_choices), .help = "The most answers to one request (n)."},
    {.name = "max-body", .type = OPTION_INT, .metavar = "MB", .least = 1, .most = 4096, .by_default = "16", .group = "Requests",
     .offset = AT(max_body_mb), .help = "The largest request body."},
    {.name = "timeout", .type = OPTION_NUMBER, .metavar = "S", .least = 0, .most = 864000, .by_default = "0", .group = "Requests",
     .offset = AT(timeout_s), .help = "Seconds after which a request ends with what it has; 0: never. A request may ask for less."},
    {.name = "max-running", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 4096, .by_default = "64", .group = "Engine",
     .offset = AT(max_running), .help = "Sequences computed at the same time."},
    {.name = "max-queue", .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1000000, .by_default = "1024", .group = "Engine",
     .offset = AT(max_queue), .help = "Requests that may wait. One more is refused with 503 and Retry-After."},
    {.name = "kv-tokens", .type = OPTION_INT, .metavar = "N", .least = 64, .most = 1e12,
     .unset = "8 contexts, at most a quarter of free memory, or three quarters of a GPU's", .group = "Engine", .offset = AT(kv_tokens),
     .help = "Room in the KV cache, in tokens, for running sequences and cached prefixes together."},
    {.name = "prefix-cache", .type = OPTION_FLAG, .by_default = "on", .group = "Engine", .offset = AT(prefix_cache),
     .help = "Do not keep the keys of finished requests for later ones that begin alike."},
    {.name = "spec", .type = OPTION_TEXT, .metavar = "off|N|auto", .by_default = "auto", .group = "Engine", .offset = AT(spec),
     .help = "Tokens guessed ahead by the draft head, 1 to 8. The output is the same. auto measures what pays, and stops where it "
             "does not; auto:N guesses at most N."},
    {.name = "spec-simulate", .type = OPTION_NUMBER, .metavar = "X", .least = 1, .most = 9, .unset = "real acceptance", .group = "Engine",
     .offset = AT(simulate),
     .help = "For speed tests only: accept guesses by lot so that a step gives X tokens on average. The answers are then wrong. Needs "
             "--spec N."},
    {.name = "itl-target", .type = OPTION_NUMBER, .metavar = "MS", .least = 1, .most = 60000, .by_default = "100", .group = "Engine",
     .offset = AT(itl_ms), .help = "Aim for the time between two tokens of a stream while other prompts are computed."},
    {.name = "prefill-budget", .type = OPTION_INT, .metavar = "N", .least = 1, .most = RUNNER_MAX_CHUNK,
     .unset = "measured, from --itl-target", .group = "Engine",
     .offset = AT(prefill_budget), .help = "Prompt tokens per step while anything is decoding."},
    RUNNER_CONTEXT_ROW(serve_values),
    RUNNER_ROWS(serve_values),
};

typedef struct serve_job {
    runner runner;
    text_model text;
    server *server;
    engine *engine;
    text directory;
    char *name;
} serve_job;

/* ---- the engine ---- */

static int given(int64_t value)
{
    return value == OPTION_NOT_GIVEN ? 0 : (int)value;
}

/* --kv-tokens, or 8 contexts as far as a quarter of the free memory goes (three quarters of a GPU's, which has no other use for it), but
 * one context in any case. */
static int64_t cache_tokens(const serve_values *v, const runner *r, int64_t context)
{
    enum { CONTEXTS = 8, MEMORY_PARTS = 4, MOST_TOKENS = 1 << 28 };
    if (v->kv_tokens != OPTION_NOT_GIVEN)
        return v->kv_tokens;
    device *d = r->device;
    uint64_t bytes = d->ops->free_bytes ? (uint64_t)d->ops->free_bytes(d) / 4 * 3 : machine_free_bytes() / MEMORY_PARTS;
    uint64_t room = bytes / (d->layout.page_bytes / KV_PAGE_TOKENS);
    int64_t wanted = CONTEXTS * context;
    if (room > 0 && (uint64_t)wanted > room)
        wanted = (int64_t)room;
    wanted = wanted > MOST_TOKENS ? MOST_TOKENS : wanted;
    return wanted > context + KV_PAGE_TOKENS ? wanted : context + KV_PAGE_TOKENS;
}

static bool spec_of(const serve_values *v, spec_options *out, error *err)
{
    if (!spec_options_parse(v->spec, out, err))
        return error_add(err, "--spec");
    if (isnan(v->simulate))
        return true;
    if (out->mode != SPEC_FIXED)
        return error_set(err, ERROR_USAGE, "--spec-simulate needs a fixed number of guesses: add --spec N");
    if (v->simulate > out->depth + 1)
        return error_set(err, ERROR_USAGE, "--spec-simulate is %g, but with --spec %d a step gives at most %d tokens", v->simulate,
                         out->depth, out->depth + 1);
    out->simulate = v->simulate;
    return true;
}

static bool start_engine(const serve_values *v, serve_job *j, error *err)
{
    engine_options o = {.max_running = (int)v->max_running, .max_waiting = (int)v->max_queue, .prefill_rows = given(v->prefill_budget),
                        .itl_target_us = (uint64_t)(v->itl_ms * 1000), .no_prefix_cache = !v->prefix_cache, .notify = server_wake,
                        .notify_context = j->server};
    int64_t context = runner_context(&v->runner, &j->runner, 0, OPTION_NOT_GIVEN);
    int rows = runner_chunk(&v->runner);
    if (rows < o.max_running)
        rows = o.max_running;
    if (!spec_of(v, &o.spec, err) || !runner_start_forward(&v->runner, context, rows, rows, &j->runner, err))
        return false;
    o.max_context = (int)context;
    o.kv_tokens = cache_tokens(v, &j->runner, context);
    j->engine = engine_create(j->runner.forward, &o, err);
    return j->engine && engine_start(j->engine, err);
}

/* ---- the server ---- */

/* --model-name, or the last part of the directory's name. */
static char *model_name(const serve_values *v, const char *directory)
{
    if (v->name)
        return strdup(v->name);
    size_t end = strlen(directory);
    while (end > 1 && directory[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && directory[start - 1] != '/')
        start--;
    return strndup(directory + start, end - start);
}

/* It stands in JSON, in metrics and in log lines. */
static bool check_name(const char *name, error *err)
{
    size_t bytes = strlen(name);
    bool clean = bytes > 0 && bytes <= SERVER_MODEL_NAME_MOST && utf8_valid(name, bytes);
    for (size_t i = 0; i < bytes && clean; i++)
        clean = (unsigned char)name[i] >= ' ' && name[i] != 0x7F;
    return clean || error_set(err, ERROR_USAGE, "the model's name must be 1 to %d bytes of UTF-8 without control characters; choose one "
                              "with --model-name", SERVER_MODEL_NAME_MOST);
}

static server_options options_of(const serve_values *v, const serve_job *j)
{
    return (server_options){
        .model_name = j->name, .model_path = j->directory.data, .api_keys = v->keys, .allowed_hosts = v->hosts,
        .allowed_origins = v->origins, .log_json = v->log_json,
        .http = {.host = v->host, .port = v->port ? (int)v->port : -1, .max_connections = (int)v->max_connections,
                 .body_bytes = (size_t)v->max_body_mb << 20, .idle_s = v->idle_s},
        .limits = {.max_tokens = given(v->max_tokens), .default_max_tokens = given(v->default_max_tokens),
                   .max_choices = (int)v->max_choices, .request_s = v->timeout_s,
                   .drain_s = v->drain_s > 0 ? v->drain_s : 1e-6, /* 0 would be the server's default */
                   .keep_alive_s = v->keep_alive_s}};
}

static bool open_model(const serve_values *v, serve_job *j, sampler_params *defaults, error *err)
{
    if (!model_path_resolve(runner_model_name(&v->runner), "config.json", &j->directory, err) ||
        !runner_open_model(&v->runner, &j->runner, err) ||
        !text_model_open(runner_model_name(&v->runner), v->template, &j->text, err))
        return false;
    j->name = model_name(v, j->directory.data);
    if (!check_name(j->name, err))
        return false;
    *defaults = sampler_params_default(tokenizer_size(j->text.tokenizer));
    return generation_defaults(j->directory.data, defaults, err);
}

static void print_formats(const model *m, text *out)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (m->format_tensors[i] > 0)
            text_add_format(out, "%s%s %.1f MB", out->length ? ", " : "", format_of((format_id)i)->name,
                            (double)m->format_bytes[i] / 1e6);
}

/* Where the server can be reached from this machine. */
static void write_url(const http_server *h, text *out)
{
    const char *host = http_server_is_wildcard(h) ? "localhost" : http_server_host(h);
    bool six = strchr(host, ':') != NULL;
    text_add_format(out, "http://%s%s%s:%d", six ? "[" : "", host, six ? "]" : "", http_server_port(h));
}

static void print_banner(const serve_values *v, const serve_job *j, uint64_t started_us)
{
    engine_facts f = engine_describe(j->engine);
    const model *m = j->runner.model;
    text formats = {0}, dispatch = {0};
    print_formats(m, &formats);
    text url = {0};
    write_url(j->server->http, &url);
    dispatch_summary(j->runner.device->dispatch, &dispatch);
    log_info("drawbridge %s", DRAWBRIDGE_VERSION);
    log_info("  model    %s: %.1f M parameters, %.1f M active, %d layers%s, chat format %s", j->name, (double)m->parameters / 1e6,
             (double)m->active_parameters / 1e6, m->config.layers, m->config.has_mtp ? " and a draft head" : "",
             chat_format_name(j->text.format));
    log_info("  weights  %s", formats.data);
    log_info("  device   %s", j->runner.device->description);
    log_info("  dispatch %s", dispatch.data);
    log_info("  cache    %lld tokens in pages of %d (%s, %.0f MB), context %d, up to %d running and %d waiting", (long long)f.kv_tokens,
             KV_PAGE_TOKENS, kv_dtype_name(j->runner.device->layout.dtype),
             (double)f.kv_tokens / KV_PAGE_TOKENS * (double)f.page_bytes / 1e6, f.max_context, f.max_running, f.max_waiting);
    if (f.spec.simulate > 0)
        log_warning("speculation is SIMULATED at %.2f tokens per step: the answers are wrong, only the speed means something",
                    f.spec.simulate);
    else
        log_info("  drafts   %s", f.spec.mode == SPEC_OFF ? "off" : v->spec);
    if (page_warning())
        log_warning("%s", page_warning());
    log_info("  ready    after %.2f s", (double)(clock_now_us() - started_us) * 1e-6);
    log_info("listening on %s%s", url.data, http_server_is_wildcard(j->server->http) ? " and all other addresses of this machine" : "");
    log_info("  curl %s/v1/chat/completions %s-d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 2 + 3?\"}]}'", url.data,
             v->keys ? "-H \"Authorization: Bearer $KEY\" " : "");
    text_free(&formats);
    text_free(&url);
    text_free(&dispatch);
}

static bool serve(const serve_values *v, serve_job *j, error *err)
{
    uint64_t started_us = clock_now_us();
    server_parts parts = {0};
    if (!open_model(v, j, &parts.defaults, err))
        return false;
    parts.model = j->runner.model;
    parts.tokenizer = j->text.tokenizer;
    parts.format = j->text.format;
    server_options options = options_of(v, j);
    j->server = server_create(&options, &parts, err);
    if (!j->server || !start_engine(v, j, err))
        return false;
    server_set_engine(j->server, j->engine);
    print_banner(v, j, started_us);
    return server_run(j->server, err);
}

static bool serve_run(const program *p, const void *values, error *err)
{
    (void)p;
    serve_job j = {0};
    bool ok = serve(values, &j, err);
    engine_destroy(j.engine); /* first: its thread wakes the server */
    if (j.server)
        generation_free_all(j.server);
    server_destroy(j.server);
    runner_close(&j.runner);
    text_model_close(&j.text);
    text_free(&j.directory);
    free(j.name);
    return ok;
}

static const command_example serve_examples[] = {
    {"drawbridge serve", "the built-in model on http://127.0.0.1:8080, with a page to chat and look at"},
    {"drawbridge serve ~/GLM-5.2-MXFP4 --kv-dtype fp8 --max-running 16", "another model, with an 8-bit cache"},
    {"drawbridge serve --host 0.0.0.0 --api-keys keys.txt", "for other machines, with keys"},
};

const command command_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP, with a web page",
    .description = "Answers the OpenAI API (/v1/chat/completions, /v1/completions, /v1/models), the Anthropic API (/v1/messages) and a "
                   "native one (/generate, /tokenize, /metrics and others), and shows a page to chat with the model and to watch the "
                   "server.\n\n"
                   "Requests are computed together; each gets the same tokens as if it were alone. Prompts that begin like earlier ones "
                   "are not computed again.\n\n"
                   "SIGTERM and Ctrl-C let running requests finish (--drain); a second one ends them at once.",
    .options = serve_options,
    .option_count = COUNT_OF(serve_options),
    .values_bytes = sizeof(serve_values),
    .examples = serve_examples,
    .example_count = COUNT_OF(serve_examples),
    .run = serve_run,
};
