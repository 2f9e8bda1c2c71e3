#include "commands/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "engine/generate.h"

/* One that can be given to --seed again. */
static uint64_t new_seed(void)
{
    return random_word((uint64_t)time(NULL), (uint64_t)getpid(), clock_now_us()) & INT64_MAX;
}

static void override_number(double given, double *field)
{
    if (!isnan(given))
        *field = given;
}

/* "ID=X" */
static bool parse_bias(const char *typed, int vocab, sampler_bias *out, error *err)
{
    char *after_id, *end;
    long id = strtol(typed, &after_id, 10);
    bool shaped = typed[0] >= '0' && typed[0] <= '9' && *after_id == '=' && after_id[1];
    double x = shaped ? strtod(after_id + 1, &end) : 0;
    if (!shaped || *end || !(fabs(x) <= 100))
        return error_set(err, ERROR_USAGE, "--logit-bias needs ID=X with X from -100 to 100, found \"%s\"", typed);
    if (id >= vocab)
        return error_set(err, ERROR_USAGE, "--logit-bias %s: the model's tokens go from 0 to %d", typed, vocab - 1);
    *out = (sampler_bias){(int32_t)id, (float)x};
    return true;
}

bool sampling_params(const sampling_values *v, const char *directory, int vocab_used, sampler_params *out, sampler_bias **bias_memory,
                     error *err)
{
    *out = sampler_params_default(vocab_used);
    *bias_memory = mem_alloc(v->bias.count ? v->bias.count : 1, sizeof **bias_memory);
    if (!generation_defaults(directory, out, err))
        return false;
    for (size_t i = 0; i < v->bias.count; i++)
        if (!parse_bias(v->bias.items[i], vocab_used, &(*bias_memory)[i], err))
            return false;
    out->bias = *bias_memory;
    out->bias_count = (int)v->bias.count;
    override_number(v->temperature, &out->temperature);
    override_number(v->top_p, &out->top_p);
    override_number(v->min_p, &out->min_p);
    override_number(v->repetition, &out->repetition_penalty);
    override_number(v->presence, &out->presence_penalty);
    override_number(v->frequency, &out->frequency_penalty);
    if (v->top_k != OPTION_NOT_GIVEN)
        out->top_k = (int)v->top_k;
    out->seed = v->seed == OPTION_NOT_GIVEN ? new_seed() : (uint64_t)v->seed;
    return true;
}
