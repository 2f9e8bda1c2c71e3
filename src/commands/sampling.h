/* The options of sampling, shared by run and chat. An option that is not given leaves what the model's generation_config.json
 * says. */
#ifndef COMMANDS_SAMPLING_H
#define COMMANDS_SAMPLING_H

#include "base/options.h"
#include "engine/sampler.h"

typedef struct sampling_values {
    int64_t max_tokens, top_k, seed;                          /* OPTION_NOT_GIVEN */
    double temperature, top_p, min_p, repetition, presence, frequency; /* NaN: not given */
    option_list bias;                                         /* "ID=VALUE" */
} sampling_values;

/* Rows for the table of a command whose struct has a field `sampling`. */
#define SAMPLING_OFFSET(values, field) (offsetof(values, sampling) + offsetof(sampling_values, field))
#define SAMPLING_NUMBER(values, field_, name_, from, to, unset_, help_) \
    {.name = name_, .type = OPTION_NUMBER, .metavar = "X", .least = from, .most = to, .unset = unset_, .group = "Sampling", \
     .offset = SAMPLING_OFFSET(values, field_), .help = help_}
#define SAMPLING_ROWS(values) \
    {.name = "max-tokens", .letter = 'n', .type = OPTION_INT, .metavar = "N", .least = 1, .most = 1 << 24, .group = "Sampling", \
     .unset = "what the context holds", .offset = SAMPLING_OFFSET(values, max_tokens), \
     .help = "The most tokens of an answer, reasoning included."}, \
    SAMPLING_NUMBER(values, temperature, "temperature", 0, 100, "the model's", \
                    "How much chance decides; 0 always takes the likeliest token."), \
    {.name = "top-k", .type = OPTION_INT, .metavar = "K", .least = -1, .most = 1 << 24, .unset = "the model's", .group = "Sampling", \
     .offset = SAMPLING_OFFSET(values, top_k), .help = "Draw among the K likeliest tokens only; 0 is off."}, \
    SAMPLING_NUMBER(values, top_p, "top-p", 0, 1, "the model's", \
                    "Draw among the likeliest tokens that together reach probability X; 1 is off."), \
    SAMPLING_NUMBER(values, min_p, "min-p", 0, 1, "the model's", \
                    "Draw among tokens at least X times as likely as the likeliest; 0 is off."), \
    SAMPLING_NUMBER(values, repetition, "repetition-penalty", 0, 10, "the model's", \
                    "Make tokens of the prompt and the answer less likely; 1 is off."), \
    SAMPLING_NUMBER(values, presence, "presence-penalty", -2, 2, "0", "Subtract X once from the logits of tokens in the answer."), \
    SAMPLING_NUMBER(values, frequency, "frequency-penalty", -2, 2, "0", "Subtract X for each time a token is in the answer."), \
    {.name = "logit-bias", .type = OPTION_TEXT, .metavar = "ID=X", .repeatable = true, .group = "Sampling", \
     .offset = SAMPLING_OFFSET(values, bias), .help = "Add X, from -100 to 100, to the logit of token ID."}, \
    {.name = "seed", .type = OPTION_INT, .metavar = "N", .least = 0, .most = 0x1p63, .unset = "a new one each time", \
     .group = "Sampling", .offset = SAMPLING_OFFSET(values, seed), .help = "The same seed, prompt and model give the same answer."}

/* Parameters for a model directory whose tokenizer has vocab_used tokens. bias_memory receives the list that params borrows; free it
 * after use. */
bool sampling_params(const sampling_values *v, const char *directory, int vocab_used, sampler_params *out, sampler_bias **bias_memory,
                     error *err);

#endif
