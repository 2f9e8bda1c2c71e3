#include "commands/runner.h"

#include <math.h>

#include "base/log.h"
#include "base/threads.h"
#include "commands/dispatch_report.h"
#include "commands/model_path.h"
#include "model/inspect.h"

const char *const runner_device_choices[] = {"cpu", "cuda", NULL};
const char *const runner_kv_choices[] = {"auto", "f32", "bf16", "fp8", NULL};
_Static_assert(KV_F32 == 0 && KV_BF16 == 1 && KV_FP8 == 2 && KV_DTYPE_COUNT == 3, "runner_kv_choices follows kv_dtype");

_Static_assert((int)RUNNER_CHUNK == (int)INSPECT_STEP_ROWS, "inspect tells the memory of the steps that are taken");

static const float HF_LATENT_EPS = 1e-6f;

const char *runner_model_name(const runner_values *v)
{
    return v->argument ? v->argument : v->model;
}

static bool check_values(const runner_values *v, error *err)
{
    if (v->argument && v->model)
        return error_set(err, ERROR_USAGE, "the model is given twice: %s and --model %s", v->argument, v->model);
    if (v->exact && v->kv != 0 && v->kv != 1 + KV_F32)
        return error_set(err, ERROR_USAGE, "--exact needs an f32 cache, found --kv-dtype %s", runner_kv_choices[v->kv]);
    if (v->device == RUNNER_CUDA && v->threads != OPTION_NOT_GIVEN)
        return error_set(err, ERROR_USAGE, "--threads is for --device cpu; a GPU has all its threads at work, leave it out");
    if (v->require_tuned && v->kernels)
        return error_set(err, ERROR_USAGE, "--kernels sets the tuned table aside, so --require-tuned cannot be kept; leave one out");
    return true;
}

static void report_disagreements(const model *m)
{
    enum { SHOWN = 3 };
    for (int i = 0; i < m->disagreement_count && i < SHOWN; i++)
        log_info("note: %s", m->disagreements[i].text);
    if (m->disagreement_count > SHOWN)
        log_info("note: %d more disagreements with config.json; drawbridge inspect lists them", m->disagreement_count - SHOWN);
}

bool runner_open_model(const runner_values *v, runner *r, error *err)
{
    text directory = {0};
    if (check_values(v, err) && model_path_resolve(runner_model_name(v), "config.json", &directory, err))
        r->model = model_open(directory.data, err);
    text_free(&directory);
    if (!r->model)
        return false;
    report_disagreements(r->model);
    if (v->exact || !isnan(v->latent_eps))
        r->model->config.latent_norm_eps = isnan(v->latent_eps) ? HF_LATENT_EPS : (float)v->latent_eps;
    return true;
}

static kv_dtype cache_format(const runner_values *v)
{
    if (v->kv == 0)
        return v->exact ? KV_F32 : KV_BF16;
    return (kv_dtype)(v->kv - 1);
}

device *runner_create_device(const runner_values *v, const model *m, int64_t max_tokens, int rows, error *err)
{
    text tuned = {0};
    device *made = NULL;
    if (tuned_path_resolve(v->tuned, &tuned, err)) {
        device_limits limits = {.kv = cache_format(v),
                                .threads = v->threads == OPTION_NOT_GIVEN ? machine_cores() : (int)v->threads,
                                .max_rows = rows,
                                .max_context = (int)max_tokens,
                                .exact = v->exact,
                                .tuned = tuned.length ? tuned.data : NULL,
                                .kernels = v->kernels};
        made = v->device == RUNNER_CUDA ? gpu_device_create(m, &limits, err) : cpu_device_create(m, &limits, err);
    }
    text_free(&tuned);
    return made;
}

/* The command that measures the shapes of a device made with these options. */
static void write_tune_command(const runner_values *v, int rows, text *out)
{
    const char *name = runner_model_name(v);
    text_add_format(out, "\"drawbridge tune%s%s", name ? " " : "", name ? name : "");
    if (v->threads != OPTION_NOT_GIVEN)
        text_add_format(out, " --threads %lld", (long long)v->threads);
    if (v->kv != 0)
        text_add_format(out, " --kv-dtype %s", runner_kv_choices[v->kv]);
    if (v->exact)
        text_add_text(out, " --exact");
    if (v->tuned)
        text_add_format(out, " --tuned %s", v->tuned);
    if (dispatch_bucket(rows) == DISPATCH_BUCKETS - 1)
        text_add_format(out, " --rows 1,4,16,64,256,%d", rows);
    text_add_text(out, "\"");
}

bool runner_check_kernels(const runner_values *v, const device *d, int rows, bool require, error *err)
{
    text words = {0};
    write_tune_command(v, rows, &words);
    bool ok = dispatch_report_check(d->dispatch, v->tuned != NULL, require, words.data, err);
    text_free(&words);
    return ok;
}

bool runner_start_forward(const runner_values *v, int64_t max_tokens, int rows, int logit_rows, runner *r, error *err)
{
    if (max_tokens > r->model->config.max_positions)
        return error_set(err, ERROR_FIT, "%lld tokens are needed, the model's context has %d; use less", (long long)max_tokens,
                         r->model->config.max_positions);
    r->device = runner_create_device(v, r->model, max_tokens, rows, err);
    if (!r->device || !runner_check_kernels(v, r->device, rows, v->require_tuned, err))
        return false;
    r->forward = forward_create(r->device, rows, logit_rows < rows ? logit_rows : rows, err);
    log_detail("%s, %s cache, %lld tokens of context, %d tokens per step", r->device->description,
               kv_dtype_name(r->device->layout.dtype), (long long)max_tokens, rows);
    text summary = {0};
    dispatch_summary(r->device->dispatch, &summary);
    log_detail("dispatch: %s", summary.data);
    text_free(&summary);
    return r->forward != NULL;
}

int runner_chunk(const runner_values *v)
{
    return v->chunk == OPTION_NOT_GIVEN ? RUNNER_CHUNK : (int)v->chunk;
}

bool runner_start(const runner_values *v, int64_t max_tokens, int logit_rows, runner *r, error *err)
{
    r->chunk = runner_chunk(v);
    if (r->chunk > max_tokens)
        r->chunk = (int)max_tokens;
    if (!runner_start_forward(v, max_tokens, r->chunk, logit_rows, r, err))
        return false;
    r->pages = kv_pages_create(r->device, max_tokens, err);
    r->session = r->pages ? session_create(r->forward, r->pages, (int)max_tokens, r->chunk, err) : NULL;
    return r->session != NULL;
}

int64_t runner_context(const runner_values *v, const runner *r, int64_t prompt, int64_t answer)
{
    int64_t most = v->context == OPTION_NOT_GIVEN ? r->model->config.max_positions : v->context;
    return answer != OPTION_NOT_GIVEN && prompt + answer < most ? prompt + answer : most;
}

void runner_close(runner *r)
{
    session_destroy(r->session);
    kv_pages_destroy(r->pages);
    forward_destroy(r->forward);
    if (r->device)
        r->device->ops->destroy(r->device);
    model_close(r->model);
    *r = (runner){0};
}
