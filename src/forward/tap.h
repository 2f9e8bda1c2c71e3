/* Hands the intermediates of each operation to the tap, when there is one. The names are those of device.h's activations. */
#ifndef FORWARD_TAP_H
#define FORWARD_TAP_H

#include "forward/forward.h"

/* One decoder layer; choose: the layer computes its own list of positions. Shared by glm.c and mtp.c. */
void forward_layer(forward *f, const step *s, int layer, bool choose);

void tap_embed(forward *f, const step *s);
void tap_attention_project(forward *f, const step *s, int layer);
void tap_index_select(forward *f, const step *s, int layer);
void tap_attend(forward *f, const step *s, int layer);
void tap_mlp(forward *f, const step *s, int layer);
void tap_finish(forward *f, const step *s, bool draft);

#endif
