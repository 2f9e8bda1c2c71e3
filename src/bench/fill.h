/* A cache that looks as if a long text had been read: what speed at a depth is measured with.
 *
 * The first FILL_REAL positions of a sequence are computed. Behind them an entry of a layer is made of two computed ones, i and j, drawn
 * at random, with an angle of its own:
 *
 *     mean + cos(t) * (entry i - mean) + sin(t) * (entry j - mean)
 *
 * which has the mean and the covariance of the computed ones. Keys are so as far apart as the layer makes them, scores spread, no two are
 * alike, and selection has its usual work; reading 16,384 tokens takes a moment instead of minutes. The draft layer's part stays empty. */
#ifndef BENCH_FILL_H
#define BENCH_FILL_H

#include "forward/forward.h"

enum { FILL_REAL = 256 };

typedef struct fill {
    const device *device;
    int layers;       /* of the trunk */
    int count;        /* positions gathered so far */
    float *latents;   /* [layers][FILL_REAL][latent + rope] */
    float *keys;      /* [layers][FILL_REAL][index_dim]; layers that share a list have none */
    float *latent_means, *key_means; /* [layers][latent + rope], [layers][index_dim] */
    float *mixed;     /* [latent + rope] */
    uint8_t *page;    /* [page_bytes] in host memory */
} fill;

fill *fill_create(const device *d, error *err);
void fill_destroy(fill *f);

/* The tap that gathers what is computed for FILL_REAL rows at positions 0 .., a step or several; context: the fill. */
void fill_tap(void *context, const tap_value *v);
void fill_gathered(fill *f, int rows); /* after each of these steps */

/* Entries of positions first .. end - 1 of a page that holds positions page_first ..; the random numbers are those of `sequence`. */
void fill_page(fill *f, device *d, uint8_t *page, int page_first, int first, int end, int sequence);

#endif
