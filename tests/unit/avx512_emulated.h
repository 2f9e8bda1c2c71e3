/* The 512-bit instructions that cpu_matmul_avx512.c uses, written out for CPUs without them: as two 256-bit ones, or by the definition.
 * To be included where AVX2 and FMA are chosen. */
#ifndef TESTS_AVX512_EMULATED_H
#define TESTS_AVX512_EMULATED_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef struct emulated_ints {
    __m256i half[2];
} emulated_ints;

typedef struct emulated_floats {
    __m256 half[2];
} emulated_floats;

#define __m512i emulated_ints
#define __m512 emulated_floats

/* Both halves by one expression in `i`. */
#define EMULATED_INTS(expression) {emulated_ints out; for (int i = 0; i < 2; i++) out.half[i] = (expression); return out;}
#define EMULATED_FLOATS(expression) {emulated_floats out; for (int i = 0; i < 2; i++) out.half[i] = (expression); return out;}

static inline emulated_ints emulated_load(const void *p) EMULATED_INTS(_mm256_loadu_si256((const __m256i *)p + i))
static inline emulated_ints emulated_zero_ints(void) EMULATED_INTS(_mm256_setzero_si256())
static inline emulated_ints emulated_set_bytes(char v) EMULATED_INTS(_mm256_set1_epi8(v))
static inline emulated_ints emulated_set_words(int v) EMULATED_INTS(_mm256_set1_epi32(v))
static inline emulated_ints emulated_broadcast(__m128i v) EMULATED_INTS(_mm256_broadcastsi128_si256(v))
static inline emulated_ints emulated_shuffle(emulated_ints a, emulated_ints b) EMULATED_INTS(_mm256_shuffle_epi8(a.half[i], b.half[i]))
static inline emulated_ints emulated_and(emulated_ints a, emulated_ints b) EMULATED_INTS(_mm256_and_si256(a.half[i], b.half[i]))
static inline emulated_ints emulated_shift(emulated_ints a, int by) EMULATED_INTS(_mm256_srli_epi16(a.half[i], by))
static inline emulated_floats emulated_load_floats(const float *p) EMULATED_FLOATS(_mm256_loadu_ps(p + 8 * i))
static inline emulated_floats emulated_zero_floats(void) EMULATED_FLOATS(_mm256_setzero_ps())
static inline emulated_floats emulated_set_floats(float v) EMULATED_FLOATS(_mm256_set1_ps(v))
static inline emulated_floats emulated_convert(emulated_ints a) EMULATED_FLOATS(_mm256_cvtepi32_ps(a.half[i]))
static inline emulated_floats emulated_mul(emulated_floats a, emulated_floats b) EMULATED_FLOATS(_mm256_mul_ps(a.half[i], b.half[i]))
static inline emulated_floats emulated_fma(emulated_floats a, emulated_floats b, emulated_floats c)
    EMULATED_FLOATS(_mm256_fmadd_ps(a.half[i], b.half[i], c.half[i]))

static inline void emulated_store(float *p, emulated_floats a)
{
    _mm256_storeu_ps(p, a.half[0]);
    _mm256_storeu_ps(p + 8, a.half[1]);
}

static inline __m256i emulated_extract(emulated_ints a, int which)
{
    return a.half[which];
}

/* To each 32-bit sum the four products of bytes, those of b without sign, those of c with one. */
static inline emulated_ints emulated_dot(emulated_ints a, emulated_ints b, emulated_ints c)
{
    int32_t sum[16];
    uint8_t unsigned_bytes[64];
    int8_t signed_bytes[64];
    memcpy(sum, &a, sizeof sum);
    memcpy(unsigned_bytes, &b, sizeof unsigned_bytes);
    memcpy(signed_bytes, &c, sizeof signed_bytes);
    for (int i = 0; i < 64; i++)
        sum[i / 4] += unsigned_bytes[i] * signed_bytes[i];
    memcpy(&a, sum, sizeof sum);
    return a;
}

#define _mm512_loadu_si512 emulated_load
#define _mm512_setzero_si512 emulated_zero_ints
#define _mm512_set1_epi8 emulated_set_bytes
#define _mm512_set1_epi32 emulated_set_words
#define _mm512_broadcast_i32x4 emulated_broadcast
#define _mm512_shuffle_epi8 emulated_shuffle
#define _mm512_and_si512 emulated_and
#define _mm512_srli_epi16 emulated_shift
#define _mm512_loadu_ps emulated_load_floats
#define _mm512_setzero_ps emulated_zero_floats
#define _mm512_set1_ps emulated_set_floats
#define _mm512_cvtepi32_ps emulated_convert
#define _mm512_mul_ps emulated_mul
#define _mm512_fmadd_ps emulated_fma
#define _mm512_storeu_ps emulated_store
#define _mm512_castsi512_si256(a) emulated_extract(a, 0)
#undef _mm512_extracti64x4_epi64 /* a macro in clang */
#define _mm512_extracti64x4_epi64 emulated_extract
#define _mm512_dpbusd_epi32 emulated_dot

#define CPU_MATMUL_EMULATED
#define cpu_matmul_avx512 emulated_matmul_avx512 /* the library has the others */
#define cpu_f32_panel_avx512 emulated_f32_panel

#endif
