/* Arithmetic that kernels share: decoding of number formats, exponential and angles, sums over lanes and blocks. For kernels only.
 *
 * Everything here is made of single f32 or f64 operations in a fixed order, so results are the same with every compiler. */
#ifndef DEVICE_GPU_GPU_MATH_H
#define DEVICE_GPU_GPU_MATH_H

#include "device/gpu/gpu_kernels.h"

GPU_DEVICE int gpu_least(int a, int b)
{
    return a < b ? a : b;
}

GPU_DEVICE float gpu_larger(float a, float b)
{
    return a > b ? a : b;
}

/* ---- single numbers; the bits are those of formats/scalar.h ---- */

GPU_DEVICE float gpu_from_bf16(uint32_t code)
{
    return gpu_float(code << 16);
}

GPU_DEVICE uint16_t gpu_to_bf16(float value)
{
    uint32_t bits = gpu_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

/* Exponent and mantissa of an e4m3 lie in an f32 whose exponent is 120 too small; the product is exact, denormals included. */
GPU_DEVICE float gpu_from_e4m3(uint32_t code)
{
    float magnitude = gpu_float((code & 0x7Fu) << 20) * 0x1p120f;
    magnitude = (code & 0x7Fu) == 0x7Fu ? gpu_float(0x7FC00000u) : magnitude;
    return gpu_float(gpu_bits(magnitude) | (code & 0x80u) << 24);
}

GPU_DEVICE uint8_t gpu_to_e4m3(float value)
{
    uint32_t bits = gpu_bits(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu, code;
    if (magnitude > 0x7F800000u)
        code = 0x7Fu;
    else if (magnitude >= 0x43E00000u)
        code = 0x7Eu;
    else if (magnitude < 0x3C800000u)
        code = gpu_bits(gpu_float(magnitude) + 16384.0f) - gpu_bits(16384.0f);
    else
        code = ((magnitude + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20) - ((127 - 7) << 3);
    return (uint8_t)(sign | code);
}

/* The low four bits; as for e4m3. */
GPU_DEVICE float gpu_from_e2m1(uint32_t code)
{
    float magnitude = gpu_float((code & 7u) << 22) * 0x1p126f;
    return gpu_float(gpu_bits(magnitude) | (code & 8u) << 28);
}

GPU_DEVICE float gpu_from_e8m0(uint32_t code)
{
    return gpu_float(code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : code << 23);
}

/* Four e4m3 codes of a word. */
GPU_DEVICE void gpu_from_e4m3x4(uint32_t word, float out[4])
{
#if defined(__CUDACC__)
    for (int i = 0; i < 2; i++) { /* exact: every e4m3 is an f16 */
        uint32_t halves;
        asm("{ cvt.rn.f16x2.e4m3x2 %0, %1; }" : "=r"(halves) : "h"((uint16_t)(word >> 16 * i)));
        asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
            : "=f"(out[2 * i]), "=f"(out[2 * i + 1]) : "r"(halves));
    }
#else
    for (int i = 0; i < 4; i++)
        out[i] = gpu_from_e4m3(word >> 8 * i & 0xFFu);
#endif
}

/* ---- matrices ---- */

/* A lane reads its part of a row in chunks of 16 bytes (f32: 32), and computes with pieces of 8 values. */
template <int FORMAT>
struct gpu_chunk {
    enum {
        VALUES = FORMAT == GPU_MXFP4 || FORMAT == GPU_NVFP4 ? 32 : FORMAT == GPU_FP8_BLOCK || FORMAT == GPU_FP8_CHANNEL ? 16 : 8,
        LOADS = FORMAT == GPU_F32 ? 2 : 1,
        PIECES = VALUES / 8
    };
};

/* Eight values of a chunk, scales aside. */
template <int FORMAT>
GPU_DEVICE void gpu_decode_piece(const gpu_u4 *chunk, int piece, float out[8])
{
    const gpu_u4 c = chunk[0];
    if (FORMAT == GPU_F32) {
        const gpu_u4 d = chunk[FORMAT == GPU_F32 ? 1 : 0];
        GPU_UNROLL for (int i = 0; i < 4; i++) {
            out[i] = gpu_float(c.v[i]);
            out[4 + i] = gpu_float(d.v[i]);
        }
    } else if (FORMAT == GPU_BF16) {
        GPU_UNROLL for (int i = 0; i < 4; i++) {
            out[2 * i] = gpu_float(c.v[i] << 16);
            out[2 * i + 1] = gpu_float(c.v[i] & 0xFFFF0000u);
        }
    } else if (FORMAT == GPU_FP8_BLOCK || FORMAT == GPU_FP8_CHANNEL) {
        gpu_from_e4m3x4(c.v[2 * piece], out);
        gpu_from_e4m3x4(c.v[2 * piece + 1], out + 4);
    } else {
        GPU_UNROLL for (int i = 0; i < 8; i++)
            out[i] = gpu_from_e2m1(c.v[piece] >> 4 * i);
    }
}

/* The factor of the piece that begins at column k. */
template <int FORMAT>
GPU_DEVICE float gpu_piece_scale(const gpu_matrix &w, int n, int k)
{
    if (k >= w.cols)
        return 0.0f;
    if (FORMAT == GPU_FP8_BLOCK)
        return ((const float *)w.scales)[(int64_t)(n / 128) * ((w.cols + 127) / 128) + k / 128];
    if (FORMAT == GPU_FP8_CHANNEL)
        return ((const float *)w.scales)[n];
    if (FORMAT == GPU_MXFP4)
        return gpu_from_e8m0(w.scales[(int64_t)n * (w.cols / 32) + k / 32]);
    if (FORMAT == GPU_NVFP4)
        return gpu_from_e4m3(w.scales[(int64_t)n * (w.cols / 16) + k / 16]) * w.scale;
    return 1.0f;
}

/* Eight values from column k on, k a multiple of 8, scales applied. */
template <int FORMAT>
GPU_DEVICE void gpu_row_piece(const gpu_matrix &w, int n, int k, float out[8])
{
    const int values = gpu_chunk<FORMAT>::VALUES, loads = gpu_chunk<FORMAT>::LOADS;
    const gpu_u4 *row = (const gpu_u4 *)(w.data + n * w.row_bytes) + k / values * loads;
    gpu_u4 chunk[gpu_chunk<FORMAT>::LOADS];
    GPU_UNROLL for (int i = 0; i < loads; i++)
        chunk[i] = row[i];
    float scale = gpu_piece_scale<FORMAT>(w, n, k);
    float plain[4][8];
    /* the piece's number is known at run time: constants let the chunk stay in registers */
    GPU_UNROLL for (int p = 0; p < gpu_chunk<FORMAT>::PIECES; p++)
        gpu_decode_piece<FORMAT>(chunk, p, plain[p]);
    GPU_UNROLL for (int i = 0; i < 8; i++) {
        float value = plain[0][i];
        GPU_UNROLL for (int p = 1; p < gpu_chunk<FORMAT>::PIECES; p++)
            value = k % values == 8 * p ? plain[p][i] : value;
        out[i] = FORMAT == GPU_F32 || FORMAT == GPU_BF16 ? value : value * scale;
    }
}

GPU_DEVICE void gpu_row_values(const gpu_matrix &w, int n, int k, float out[8])
{
    switch (w.format) {
    case GPU_F32: gpu_row_piece<GPU_F32>(w, n, k, out); break;
    case GPU_BF16: gpu_row_piece<GPU_BF16>(w, n, k, out); break;
    case GPU_FP8_BLOCK: gpu_row_piece<GPU_FP8_BLOCK>(w, n, k, out); break;
    case GPU_MXFP4: gpu_row_piece<GPU_MXFP4>(w, n, k, out); break;
    case GPU_NVFP4: gpu_row_piece<GPU_NVFP4>(w, n, k, out); break;
    default: gpu_row_piece<GPU_FP8_CHANNEL>(w, n, k, out);
    }
}

/* ---- functions ---- */

/* e^x: 2^n e^r with |r| <= ln 2 / 2, e^r by its series; within 1.5 units in the last place. */
GPU_DEVICE float gpu_exp(float x)
{
    if (!(x > -104.0f))
        return x != x ? x : 0.0f;
    if (x > 88.8f)
        return gpu_float(0x7F800000u);
    float n = gpu_round(x * 1.44269504f);
    float r = gpu_fma(n, -0.693145752f, x);
    r = gpu_fma(n, -1.42860677e-6f, r);
    float p = 1.0f / 5040.0f;
    p = gpu_fma(p, r, 1.0f / 720.0f);
    p = gpu_fma(p, r, 1.0f / 120.0f);
    p = gpu_fma(p, r, 1.0f / 24.0f);
    p = gpu_fma(p, r, 1.0f / 6.0f);
    p = gpu_fma(p, r, 0.5f);
    p = gpu_fma(p, r, 1.0f);
    p = gpu_fma(p, r, 1.0f);
    int exponent = (int)n, half = exponent / 2; /* in two factors: 2^n alone may not be a number */
    return p * gpu_float((uint32_t)(half + 127) << 23) * gpu_float((uint32_t)(exponent - half + 127) << 23);
}

GPU_DEVICE float gpu_sigmoid(float x)
{
    return 1.0f / (1.0f + gpu_exp(-x));
}

GPU_DEVICE float gpu_silu(float x)
{
    return x / (1.0f + gpu_exp(-x));
}

/* In f64, so that angles of a million keep all their bits; the results are rounded once more to f32. */
GPU_DEVICE void gpu_cos_sin(float angle, float *cosine, float *sine)
{
    double a = (double)angle, n = gpu_round64(a * 0.63661977236758134308), r;
    r = gpu_fma64(n, -1.57079632679489655800, a);
    r = gpu_fma64(n, -6.12323399573676603587e-17, r);
    double rr = r * r, s = -1.0 / 39916800.0 + rr * (1.0 / 6227020800.0), c = -1.0 / 3628800.0 + rr * (1.0 / 479001600.0);
    s = gpu_fma64(s, rr, 1.0 / 362880.0);
    s = gpu_fma64(s, rr, -1.0 / 5040.0);
    s = gpu_fma64(s, rr, 1.0 / 120.0);
    s = gpu_fma64(s, rr, -1.0 / 6.0);
    s = gpu_fma64(s * rr, r, r);
    c = gpu_fma64(c, rr, 1.0 / 40320.0);
    c = gpu_fma64(c, rr, -1.0 / 720.0);
    c = gpu_fma64(c, rr, 1.0 / 24.0);
    c = gpu_fma64(c, rr, -0.5);
    c = gpu_fma64(c, rr, 1.0);
    int quarter = (int)((int64_t)n & 3);
    double to_cos = quarter & 1 ? s : c, to_sin = quarter & 1 ? c : s;
    *cosine = (float)(quarter == 1 || quarter == 2 ? -to_cos : to_cos);
    *sine = (float)(quarter >= 2 ? -to_sin : to_sin);
}

/* Rotates values 2i and 2i + 1 of v by the row's angle i. */
GPU_DEVICE void gpu_rotate_pair(float *v, const float *rope, int i)
{
    float a = v[2 * i], b = v[2 * i + 1], cosine = rope[2 * i], sine = rope[2 * i + 1];
    v[2 * i] = a * cosine - b * sine;
    v[2 * i + 1] = b * cosine + a * sine;
}

/* A number of the same order as f; NaN goes below everything, -0 equals +0. */
GPU_DEVICE uint32_t gpu_order_key(float f)
{
    uint32_t u = gpu_bits(f);
    if (f != f)
        return 0;
    if (u == 0x80000000u)
        u = 0;
    return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

/* ---- sums over lanes and blocks ---- */

/* Alike in all lanes: each step adds the same two numbers in both. */
GPU_DEVICE float gpu_lanes_sum(float value)
{
#if defined(GPU_EMULATE) /* the same tree with one meeting of the lanes instead of five */
    const uint32_t *lanes = emulated_exchange(gpu_bits(value));
    float sums[GPU_LANES];
    for (int i = 0; i < GPU_LANES; i++)
        sums[i] = gpu_float(lanes[i]);
    for (int half = GPU_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sums[i] += sums[i + half];
    return sums[0];
#else
    GPU_UNROLL for (int mask = GPU_LANES / 2; mask > 0; mask /= 2)
        value += gpu_float(gpu_shuffle_xor(gpu_bits(value), mask));
    return value;
#endif
}

GPU_DEVICE float gpu_lanes_largest(float value)
{
    GPU_UNROLL for (int mask = GPU_LANES / 2; mask > 0; mask /= 2)
        value = gpu_larger(value, gpu_float(gpu_shuffle_xor(gpu_bits(value), mask)));
    return value;
}

GPU_DEVICE uint64_t gpu_lanes_largest_u64(uint64_t value)
{
    GPU_UNROLL for (int mask = GPU_LANES / 2; mask > 0; mask /= 2) {
        uint64_t other = (uint64_t)gpu_shuffle_xor((uint32_t)(value >> 32), mask) << 32 | gpu_shuffle_xor((uint32_t)value, mask);
        value = other > value ? other : value;
    }
    return value;
}

/* Over a block of THREADS threads; scratch: THREADS / GPU_LANES floats of shared memory. All threads get the sum. */
template <int THREADS>
GPU_DEVICE float gpu_block_sum(float value, float *scratch)
{
    value = gpu_lanes_sum(value);
    gpu_sync();
    if (gpu_lane() == 0)
        scratch[threadIdx.x / GPU_LANES] = value;
    gpu_sync();
    float sum = scratch[0];
    GPU_UNROLL for (int i = 1; i < THREADS / GPU_LANES; i++)
        sum += scratch[i];
    return sum;
}

/* ---- pages ---- */

GPU_DEVICE uint8_t *gpu_entry(const gpu_step *step, const gpu_cache &c, int row, int position, int64_t offset, int64_t entry_bytes)
{
    int64_t page = step->tables[step->table_first[step->sequences[row]] + position / GPU_PAGE_TOKENS];
    return step->pages + page * c.page_bytes + offset + position % GPU_PAGE_TOKENS * entry_bytes;
}

#endif
