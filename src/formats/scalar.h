/* Single numbers: bf16, fp8 e4m3 (the "fn" kind: no infinities, NaN = 0x7F and 0xFF, largest 448), e8m0 and e2m1,
 * each with encode (round to nearest, ties to even) and decode. */
#ifndef FORMATS_SCALAR_H
#define FORMATS_SCALAR_H

#include <stdint.h>

float bf16_decode(uint16_t code);
uint16_t bf16_encode(float value); /* a NaN stays a (quiet) NaN */

float e4m3_decode(uint8_t code);
uint8_t e4m3_encode(float value); /* saturates at 448; NaN gives 0x7F with the sign kept */

float e8m0_decode(uint8_t code);  /* 2^(code-127); 255 is NaN */

float e2m1_decode(uint8_t code);  /* low four bits: 0 .5 1 1.5 2 3 4 6, bit 3 the sign */
uint8_t e2m1_encode(float value); /* saturates at 6 */

/* The e8m0 scale of a block of 32 whose largest magnitude is amax, by Quark's rule "even": the exponent of amax after
 * rounding its mantissa to one bit, minus 2 (the exponent of e2m1's largest binade). */
uint8_t mxfp4_scale_even(float amax);

#endif
