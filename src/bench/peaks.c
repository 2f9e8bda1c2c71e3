#include "bench/peaks.h"

#include <stddef.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

enum { CHAINS = 12, BYTE_CHAINS = 6, WIDENED_AFTER = 8, ARM_CHAINS = 24 };

/* The value may change here for all the compiler knows: no instruction, but nothing can be computed in advance or only once. An extension
 * of both compilers; plain C has no such means. */
#if defined(__x86_64__)
#define OPAQUE(value) __asm__ volatile("" : "+x"(value))
#elif defined(__aarch64__)
#define OPAQUE(value) __asm__ volatile("" : "+w"(value))
#else
#define OPAQUE(value) ((void)0)
#endif

/* ---- any CPU: what the compiler makes of plain C ---- */

static uint64_t plain_fused(int x)
{
    enum { LANES = 32 };
    float sum[LANES] = {0}, a[LANES], total = 0;
    for (int i = 0; i < LANES; i++)
        a[i] = (float)(x + i);
    for (int s = 0; s < PEAK_STEPS; s++)
        for (int i = 0; i < LANES; i++)
            sum[i] = sum[i] * 0.5f + a[i];
    for (int i = 0; i < LANES; i++)
        total += sum[i];
    return (uint64_t)total;
}

static uint64_t plain_bytes(int x)
{
    enum { LANES = 64 };
    int8_t a[LANES];
    int32_t sum[LANES] = {0};
    uint64_t total = 0;
    for (int i = 0; i < LANES; i++)
        a[i] = (int8_t)(x + i);
    for (int s = 0; s < PEAK_STEPS; s++)
        for (int i = 0; i < LANES; i++)
            sum[i] += a[i] * (int8_t)s;
    for (int i = 0; i < LANES; i++)
        total += (uint32_t)sum[i];
    return total;
}

static const peak_loop plain[2] = {{"plain C f32", 2.0 * 32 * PEAK_STEPS, true, plain_fused},
                                   {"plain C bytes", 2.0 * 64 * PEAK_STEPS, true, plain_bytes}};

/* ---- x86 ---- */

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) static uint64_t avx2_fused(int x)
{
    __m256 sum[CHAINS], a = _mm256_set1_ps(1.0f + (float)x), b = _mm256_set1_ps(0.5f);
    uint64_t total = 0;
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
        OPAQUE(a);
    }
    for (int i = 0; i < CHAINS; i++)
        total += (uint64_t)_mm256_cvtss_f32(sum[i]);
    return total;
}

/* Products of bytes as kernels for 4-bit weights sum them: pairs in 16 bits, which hold eight of them, then in 32 bits. The sums are
 * variables of their own: of an array, gcc adds up the products in another order and keeps them in memory. */
#define SIX_TIMES(x) x(0) x(1) x(2) x(3) x(4) x(5)
#define BYTES_SUM(i) __m256i sum##i = _mm256_set1_epi32(i), pairs##i;
#define BYTES_BEGIN(i) OPAQUE(a); pairs##i = _mm256_maddubs_epi16(a, a);
#define BYTES_ADD(i) OPAQUE(a); pairs##i = _mm256_add_epi16(pairs##i, _mm256_maddubs_epi16(a, a)); OPAQUE(pairs##i);
#define BYTES_WIDEN(i) sum##i = _mm256_add_epi32(sum##i, _mm256_madd_epi16(pairs##i, ones));
#define BYTES_TOTAL(i) total += (uint64_t)(uint32_t)_mm256_extract_epi32(sum##i, 0);

__attribute__((target("avx2"))) static uint64_t avx2_bytes(int x)
{
    __m256i a = _mm256_set1_epi8((char)x), ones = _mm256_set1_epi16(1);
    uint64_t total = 0;
    SIX_TIMES(BYTES_SUM)
    for (int s = 0; s < PEAK_STEPS / WIDENED_AFTER; s++) {
        SIX_TIMES(BYTES_BEGIN)
#pragma GCC unroll 7
        for (int word = 1; word < WIDENED_AFTER; word++) {
            SIX_TIMES(BYTES_ADD)
        }
        SIX_TIMES(BYTES_WIDEN)
    }
    SIX_TIMES(BYTES_TOTAL)
    return total;
}

__attribute__((target("avx512f"))) static uint64_t avx512_fused(int x)
{
    __m512 sum[CHAINS], a = _mm512_set1_ps(1.0f + (float)x), b = _mm512_set1_ps(0.5f);
    uint64_t total = 0;
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
        OPAQUE(a);
    }
    for (int i = 0; i < CHAINS; i++)
        total += (uint64_t)_mm512_cvtss_f32(sum[i]);
    return total;
}

__attribute__((target("avx512f,avx512vnni"))) static uint64_t avx512_bytes(int x)
{
    __m512i sum[CHAINS], a = _mm512_set1_epi32(x * 0x01010101);
    uint64_t total = 0;
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
        OPAQUE(a);
    }
    for (int i = 0; i < CHAINS; i++)
        total += (uint64_t)(uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(sum[i]));
    return total;
}

static const peak_loop avx2[2] = {{"avx2 fma", 2.0 * 8 * CHAINS * PEAK_STEPS, false, avx2_fused},
                                  {"avx2 pmaddubsw", 2.0 * 32 * BYTE_CHAINS * PEAK_STEPS, false, avx2_bytes}};
static const peak_loop avx512[2] = {{"avx512 fma", 2.0 * 16 * CHAINS * PEAK_STEPS, false, avx512_fused},
                                    {"avx512 vnni", 2.0 * 64 * CHAINS * PEAK_STEPS, false, avx512_bytes}};

/* __builtin_cpu_supports (gcc, clang) also asks whether the system saves the registers. */
static const peak_loop *special_at(int which, int *index)
{
    if (__builtin_cpu_supports("avx512f") && (which == 0 || __builtin_cpu_supports("avx512vnni")) && (*index)-- == 0)
        return &avx512[which];
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && (*index)-- == 0)
        return &avx2[which];
    return NULL;
}

/* ---- 64-bit Arm ---- */

#elif defined(__aarch64__)

static uint64_t neon_fused(int x)
{
    float32x4_t sum[ARM_CHAINS], a = vdupq_n_f32(1.0f + (float)x), b = vdupq_n_f32(0.5f);
    uint64_t total = 0;
    for (int i = 0; i < ARM_CHAINS; i++)
        sum[i] = vdupq_n_f32((float)i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 24
        for (int i = 0; i < ARM_CHAINS; i++)
            sum[i] = vfmaq_f32(sum[i], a, b);
        OPAQUE(a);
    }
    for (int i = 0; i < ARM_CHAINS; i++)
        total += (uint64_t)vgetq_lane_f32(sum[i], 0);
    return total;
}

#if defined(__clang__)
__attribute__((target("dotprod")))
#else
__attribute__((target("arch=armv8.2-a+dotprod")))
#endif
static uint64_t neon_bytes(int x)
{
    int32x4_t sum[ARM_CHAINS];
    int8x16_t a = vdupq_n_s8((int8_t)x);
    uint64_t total = 0;
    for (int i = 0; i < ARM_CHAINS; i++)
        sum[i] = vdupq_n_s32(i);
    for (int s = 0; s < PEAK_STEPS; s++) {
#pragma GCC unroll 24
        for (int i = 0; i < ARM_CHAINS; i++)
            sum[i] = vdotq_s32(sum[i], a, a);
        OPAQUE(a);
    }
    for (int i = 0; i < ARM_CHAINS; i++)
        total += (uint64_t)(uint32_t)vgetq_lane_s32(sum[i], 0);
    return total;
}

static const peak_loop neon[2] = {{"neon fmla", 2.0 * 4 * ARM_CHAINS * PEAK_STEPS, false, neon_fused},
                                  {"neon sdot", 2.0 * 16 * ARM_CHAINS * PEAK_STEPS, false, neon_bytes}};

static const peak_loop *special_at(int which, int *index)
{
    bool there = which == 0 || (getauxval(AT_HWCAP) & HWCAP_ASIMDDP);
    return there && (*index)-- == 0 ? &neon[which] : NULL;
}

#else

static const peak_loop *special_at(int which, int *index)
{
    (void)which;
    (void)index;
    return NULL;
}

#endif

static const peak_loop *loop_at(int which, int index)
{
    const peak_loop *special = special_at(which, &index);
    return special ? special : index == 0 ? &plain[which] : NULL;
}

const peak_loop *peak_fused_at(int index)
{
    return loop_at(0, index);
}

const peak_loop *peak_bytes_at(int index)
{
    return loop_at(1, index);
}
