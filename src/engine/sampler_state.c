/* A dense list of distinct tokens, found through an open-addressing table of indices into it, at most half full.
 *
 * Tokens leave in the reverse order of their arrival. So an entry whose counts drop to zero is the newest of the list, and
 * the newest in the table: no other entry was placed behind it, and both can forget it without moving anything. */
#include "engine/sampler_state.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/memory.h"
#include "base/random.h"

struct sampler_state {
    sampler_seen *seen; /* [seen_count used] */
    size_t seen_count;
    uint32_t *slots;    /* [slot_mask + 1]; index into seen plus one, 0: empty */
    size_t slot_mask;   /* a power of two minus one */
    int32_t *outputs;   /* [output_limit]; output tokens in order, for rewinding */
    size_t output_count, output_limit;
};

/* The slot that holds id, or the empty one where it belongs. */
static size_t state_slot(const sampler_state *s, int32_t id)
{
    size_t i = random_mix((uint32_t)id) & s->slot_mask;
    while (s->slots[i] != 0 && s->seen[s->slots[i] - 1].id != id)
        i = (i + 1) & s->slot_mask;
    return i;
}

static sampler_seen *state_entry(sampler_state *s, int32_t id)
{
    size_t i = state_slot(s, id);
    if (s->slots[i] == 0) {
        s->seen[s->seen_count] = (sampler_seen){.id = id};
        s->slots[i] = (uint32_t)++s->seen_count;
    }
    return &s->seen[s->slots[i] - 1];
}

static bool state_reserve(sampler_state *s, size_t tokens, size_t output_limit)
{
    size_t slots = 8;
    while (slots < 2 * tokens)
        slots *= 2;
    s->seen = mem_try_alloc(tokens, sizeof *s->seen);
    s->slots = mem_try_alloc(slots, sizeof *s->slots);
    s->outputs = mem_try_alloc(output_limit, sizeof *s->outputs);
    s->slot_mask = slots - 1;
    s->output_limit = output_limit;
    return s->seen && s->slots && s->outputs;
}

sampler_state *sampler_state_create(const int32_t *prompt, size_t prompt_count, size_t output_limit, error *err)
{
    enum { MOST_TOKENS = 1 << 30 };
    size_t tokens;
    if (!checked_add_size(prompt_count, output_limit, &tokens) || tokens > MOST_TOKENS) {
        error_set(err, ERROR_INPUT, "a prompt of %zu tokens and an output of up to %zu are more than the %d a sequence can have",
                  prompt_count, output_limit, MOST_TOKENS);
        return NULL;
    }
    for (size_t i = 0; i < prompt_count; i++)
        if (prompt[i] < 0) {
            error_set(err, ERROR_INPUT, "token %zu of the prompt is %d; token ids are not negative", i, (int)prompt[i]);
            return NULL;
        }
    sampler_state *s = mem_alloc(1, sizeof *s);
    if (!state_reserve(s, tokens, output_limit)) {
        error_set(err, ERROR_FIT, "no memory for the token counts of a sequence of %zu tokens; use a shorter one or no penalties",
                  tokens);
        sampler_state_free(s);
        return NULL;
    }
    for (size_t i = 0; i < prompt_count; i++)
        state_entry(s, prompt[i])->prompt++;
    return s;
}

void sampler_state_free(sampler_state *s)
{
    if (!s)
        return;
    free(s->seen);
    free(s->slots);
    free(s->outputs);
    free(s);
}

bool sampler_state_add(sampler_state *s, int32_t id, error *err)
{
    if (id < 0)
        return error_set(err, ERROR_RUNTIME, "cannot count output token %d: token ids are not negative", (int)id);
    if (s->output_count == s->output_limit)
        return error_set(err, ERROR_RUNTIME, "cannot count output token %zu: the sequence was created for %zu", s->output_count + 1,
                         s->output_limit);
    s->outputs[s->output_count++] = id;
    state_entry(s, id)->output++;
    return true;
}

static void state_remove_newest(sampler_state *s)
{
    size_t i = state_slot(s, s->outputs[--s->output_count]);
    sampler_seen *e = &s->seen[s->slots[i] - 1];
    if (--e->output > 0 || e->prompt > 0)
        return;
    s->slots[i] = 0;
    s->seen_count--;
}

bool sampler_state_rewind(sampler_state *s, size_t outputs, error *err)
{
    if (outputs > s->output_count)
        return error_set(err, ERROR_RUNTIME, "cannot rewind to %zu output tokens: the sequence has %zu", outputs, s->output_count);
    while (s->output_count > outputs)
        state_remove_newest(s);
    return true;
}

size_t sampler_state_outputs(const sampler_state *s)
{
    return s->output_count;
}

const sampler_seen *sampler_state_seen(const sampler_state *s, size_t *count)
{
    *count = s->seen_count;
    return s->seen;
}
