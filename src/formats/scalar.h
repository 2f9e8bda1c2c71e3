/* Single numbers: bf16, fp8 e4m3 (the "fn" kind: no infinities, NaN = 0x7F and 0xFF, largest 448), e8m0 and e2m1,
 * each with decode and, e8m0 aside, encode (round to nearest, ties to even).
 *
 *     bf16  s eeeeeeee mmmmmmm   the upper half of an f32
 *     e4m3  s eeee mmm           bias 7
 *     e8m0  eeeeeeee             2^(code-127), 255 is NaN
 *     e2m1  s ee m               bias 1, no NaN, no infinity
 *
 * Decoding is inline, for the loops of kernels; the results depend on nothing but the code. */
#ifndef FORMATS_SCALAR_H
#define FORMATS_SCALAR_H

#include <stdint.h>
#include <string.h>

extern const float e4m3_values[256]; /* e4m3_decode of every code */
extern const float e2m1_values[16];  /* e2m1_decode of every code */

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_decode(uint16_t code)
{
    return float_of_bits((uint32_t)code << 16);
}

/* A NaN stays a NaN, made quiet. Values beyond the largest finite bf16 by half a step become infinite. */
static inline uint16_t bf16_encode(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static inline float e4m3_decode(uint8_t code)
{
    return e4m3_values[code];
}

uint8_t e4m3_encode(float value); /* saturates at 448, infinities too; NaN gives 0x7F with the sign kept */

/* 2^(code-127); 255 is NaN. 2^-127 (code 0) is a denormal f32. */
static inline float e8m0_decode(uint8_t code)
{
    if (code == 0)
        return float_of_bits(0x00400000u);
    return float_of_bits(code == 255 ? 0x7FC00000u : (uint32_t)code << 23);
}

/* Low four bits: 0 .5 1 1.5 2 3 4 6, bit 3 the sign. */
static inline float e2m1_decode(uint8_t code)
{
    return e2m1_values[code & 15];
}

/* Saturates at 6, infinities and NaN too (e2m1 has neither); the sign is kept, on zeros also. */
uint8_t e2m1_encode(float value);

/* The e8m0 scale of a block of 32 whose largest magnitude is amax (finite, not negative), by Quark's rule "even": the
 * exponent of amax after rounding its mantissa to one bit, minus 2 (the exponent of e2m1's largest binade), clamped to
 * 0..254. amax 0 gives code 0, and all values of such a block encode as zeros. */
uint8_t mxfp4_scale_even(float amax);

#endif
