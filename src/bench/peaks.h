/* Loops that do nothing but arithmetic, as fast as this CPU can: fused products in f32, and sums of products of bytes. Enough sums run side
 * by side to hide the latency of an instruction; operands stay in registers. */
#ifndef BENCH_PEAKS_H
#define BENCH_PEAKS_H

#include <stdbool.h>
#include <stdint.h>

enum { PEAK_STEPS = 1 << 16 };

typedef struct peak_loop {
    const char *name;       /* "avx2 fma" */
    double operations;      /* of one call; a product and its addition are two */
    bool plain;             /* plain C, for CPUs that have nothing better */
    uint64_t (*run)(int x); /* x: any small number; the result only keeps the compiler from leaving work out */
} peak_loop;

/* The loops that this build on this CPU can run, the plain one last; NULL behind it. */
const peak_loop *peak_fused_at(int index);
const peak_loop *peak_bytes_at(int index);

#endif
