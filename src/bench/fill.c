#include "bench/fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "device/cpu/cpu.h"

enum { FILL_SEED = 0x66696C6C };

static size_t latent_width(const fill *f)
{
    return (size_t)(f->device->layout.latent_dim + f->device->layout.rope_dim);
}

fill *fill_create(const device *d, error *err)
{
    fill *f = mem_alloc(1, sizeof *f);
    *f = (fill){.device = d, .layers = d->model->config.layers};
    size_t layers = (size_t)f->layers, latent = latent_width(f), key = (size_t)d->layout.index_dim;
    f->latents = mem_try_alloc(layers * FILL_REAL * latent, sizeof(float));
    f->keys = mem_try_alloc(layers * FILL_REAL * key, sizeof(float));
    f->latent_means = mem_alloc(layers * latent, sizeof(float));
    f->key_means = mem_alloc(layers * key, sizeof(float));
    f->mixed = mem_alloc(latent + key, sizeof(float));
    f->page = mem_try_alloc(d->layout.page_bytes, 1);
    if (f->latents && f->keys && f->page)
        return f;
    fill_destroy(f);
    error_set(err, ERROR_FIT, "no memory for the cache entries of %d layers", d->model->config.layers);
    return NULL;
}

void fill_destroy(fill *f)
{
    if (!f)
        return;
    free(f->latents);
    free(f->keys);
    free(f->latent_means);
    free(f->key_means);
    free(f->mixed);
    free(f->page);
    free(f);
}

void fill_tap(void *context, const tap_value *v)
{
    fill *f = context;
    float *to = strcmp(v->name, "latent") == 0 ? f->latents : strcmp(v->name, "index_k") == 0 ? f->keys : NULL;
    if (!to || v->layer >= f->layers || f->count + v->rows > FILL_REAL)
        return;
    size_t width = (size_t)v->columns, at = (size_t)v->layer * FILL_REAL + (size_t)f->count;
    memcpy(to + at * width, v->data, (size_t)v->rows * width * sizeof(float));
}

static void means(const float *values, size_t width, int layers, int count, float *out)
{
    for (int layer = 0; layer < layers; layer++)
        for (size_t i = 0; i < width; i++) {
            double sum = 0;
            for (int p = 0; p < count; p++)
                sum += (double)values[((size_t)layer * FILL_REAL + (size_t)p) * width + i];
            out[(size_t)layer * width + i] = (float)(sum / count);
        }
}

void fill_gathered(fill *f, int rows)
{
    f->count += rows;
    if (f->count < FILL_REAL)
        return;
    means(f->latents, latent_width(f), f->layers, f->count, f->latent_means);
    means(f->keys, (size_t)f->device->layout.index_dim, f->layers, f->count, f->key_means);
}

/* One entry of two, by random numbers of the key. */
static const float *mix(fill *f, const float *values, const float *mean, size_t width, uint64_t key)
{
    uint64_t word = random_word_at(key, 0);
    const float *a = values + word % FILL_REAL * width, *b = values + (word >> 32) % FILL_REAL * width;
    double angle = random_uniform_at(key, 1) * 6.283185307179586;
    float c = (float)cos(angle), s = (float)sin(angle);
    for (size_t i = 0; i < width; i++)
        f->mixed[i] = mean[i] + c * (a[i] - mean[i]) + s * (b[i] - mean[i]);
    return f->mixed;
}

static void fill_layer(fill *f, int layer, int slot, uint64_t position, int sequence)
{
    const kv_layout *k = &f->device->layout;
    size_t width = latent_width(f), key_width = (size_t)k->index_dim;
    uint64_t seed = FILL_SEED + (uint64_t)sequence, at = position * (uint64_t)f->layers * 2 + (uint64_t)layer * 2;
    cpu_latent_store(k, mix(f, f->latents + (size_t)layer * FILL_REAL * width, f->latent_means + (size_t)layer * width, width,
                            random_key(seed, at)),
                     f->page + k->latent_offset[layer] + (size_t)slot * k->latent_bytes);
    if (f->device->model->config.full_index[layer])
        cpu_index_key_store(k, mix(f, f->keys + (size_t)layer * FILL_REAL * key_width, f->key_means + (size_t)layer * key_width,
                                   key_width, random_key(seed, at + 1)),
                            f->page + k->index_offset[layer] + (size_t)slot * k->index_bytes);
}

void fill_page(fill *f, device *d, uint8_t *page, int page_first, int first, int end, int sequence)
{
    d->ops->read(d, f->page, page, d->layout.page_bytes);
    for (int p = first; p < end; p++)
        for (int layer = 0; layer < f->layers; layer++)
            fill_layer(f, layer, p - page_first, (uint64_t)p, sequence);
    d->ops->write(d, page, f->page, d->layout.page_bytes);
}
