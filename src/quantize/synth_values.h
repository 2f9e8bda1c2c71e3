/* Made-up weights: values of any row of any matrix, as a pure function of seed, tensor name and place. No floating-point function of
 * the C library is involved but sqrt, which is exact to the last bit everywhere: the bytes are the same on every machine.
 *
 * Values are about normal. A matrix has the deviation gain / sqrt(columns), so that a normalised input gives outputs of about the size
 * of the gain: 1, and 1 / sqrt(2 layers) where the output is added to the residual stream. Block formats get random codes and
 * scales that vary from block to block, as those of real weights do. */
#ifndef QUANTIZE_SYNTH_VALUES_H
#define QUANTIZE_SYNTH_VALUES_H

#include "quantize/plan.h"

typedef struct synth_values synth_values;

synth_values *synth_values_create(const model_config *config, uint64_t seed);
void synth_values_free(synth_values *v);

/* A stream_maker; context is a synth_values. */
void synth_values_make(const void *context, const plan_entry *e, int64_t first_row, int64_t rows, uint8_t *data, uint8_t *scales);

/* NVFP4: what to take for the largest magnitude of the matrix, from which its scale per matrix follows. */
float synth_values_largest(const synth_values *v, const plan_entry *e);

/* A plan_vector_maker: norms near 1, biases near 0. */
void synth_values_vector(const void *context, const tensor *t, uint8_t *out);

#endif
