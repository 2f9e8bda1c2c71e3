#include "formats/scalar.h"

#include <math.h>

/* e4m3: (8 + m) * 2^(e - 10) for e > 0, m * 2^-9 for e = 0; all exact in f32. */
#define E4M3_MAGNITUDE(e, m) \
    ((e) == 15 && (m) == 7 ? NAN : (e) > 0 ? (float)((8 + (m)) << (e)) / 1024.0f : (float)(m) / 512.0f)
#define E4M3_BINADE(s, e) \
    s E4M3_MAGNITUDE(e, 0), s E4M3_MAGNITUDE(e, 1), s E4M3_MAGNITUDE(e, 2), s E4M3_MAGNITUDE(e, 3), \
    s E4M3_MAGNITUDE(e, 4), s E4M3_MAGNITUDE(e, 5), s E4M3_MAGNITUDE(e, 6), s E4M3_MAGNITUDE(e, 7)
#define E4M3_HALF(s) \
    E4M3_BINADE(s, 0), E4M3_BINADE(s, 1), E4M3_BINADE(s, 2), E4M3_BINADE(s, 3), E4M3_BINADE(s, 4), \
    E4M3_BINADE(s, 5), E4M3_BINADE(s, 6), E4M3_BINADE(s, 7), E4M3_BINADE(s, 8), E4M3_BINADE(s, 9), \
    E4M3_BINADE(s, 10), E4M3_BINADE(s, 11), E4M3_BINADE(s, 12), E4M3_BINADE(s, 13), E4M3_BINADE(s, 14), E4M3_BINADE(s, 15)

const float e4m3_values[256] = {E4M3_HALF(+), E4M3_HALF(-)};

const float e2m1_values[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

uint8_t e4m3_encode(float value)
{
    uint32_t bits = float_bits(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu, code;
    if (magnitude > 0x7F800000u)
        return (uint8_t)(sign | 0x7Fu);
    if (magnitude >= 0x43E00000u) /* 448 */
        return (uint8_t)(sign | 0x7Eu);
    if (magnitude < 0x3C800000u) { /* 2^-6: below it codes are steps of 2^-9, the step of an f32 near 2^14 */
        code = float_bits(float_of_bits(magnitude) + 16384.0f) - float_bits(16384.0f);
    } else {
        code = ((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20) - ((127 - 7) << 3);
    }
    return (uint8_t)(sign | code);
}

uint8_t e2m1_encode(float value)
{
    float a = float_of_bits(float_bits(value) & 0x7FFFFFFFu);
    /* How many of the midpoints between neighbours lie below; a midpoint itself goes to the even code. Written as !(a <=)
     * so that NaN passes them all. */
    int code = !(a <= 0.25f) + !(a < 0.75f) + !(a <= 1.25f) + !(a < 1.75f) + !(a <= 2.5f) + !(a < 3.5f) + !(a <= 5.0f);
    return (uint8_t)((float_bits(value) >> 28 & 8u) | (uint32_t)code);
}

uint8_t mxfp4_scale_even(float amax)
{
    int exponent = (int)((float_bits(amax) + 0x200000u) >> 23) - 2;
    return (uint8_t)(exponent < 0 ? 0 : exponent > 254 ? 254 : exponent);
}
