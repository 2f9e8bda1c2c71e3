/* Seeds for requests that bring none. */
#ifndef SERVE_SEED_H
#define SERVE_SEED_H

#include <stdint.h>

/* Another one at every call, not secret, and a positive 64-bit integer, so that a client can send it back. Loop thread only. */
uint64_t serve_new_seed(void);

#endif
