/* The kernels for CPUs with AVX2 and FMA. The 16 lanes of a sum are two registers, and the additions of one sum wait for each other,
 * so several sums run side by side: three rows by two columns fill 12 of the 16 registers and need 5 loads for 6 products; rows that are
 * left go alone, by four columns. (Measured on Zen 3, n = 384: 37 G products/s per core for three rows, 31 for one, 29 for two by two.)
 * In `dots` multiplication and addition stay separate: a fused one rounds once and gives other bits. The tiles are the same for both
 * kinds, which one is a constant where they are inlined.
 *
 * Sizes that are no multiple of 16 (a model has few) go one sum at a time. The end of such a vector is loaded with zeros behind it; a
 * zero product changes no lane but -0, which a fused sum can have and a sum of rounded products cannot. */
#include "device/cpu/cpu_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>

#include "base/sanitize.h"

/* An extension of both compilers, each with its own spelling: the instruction set is chosen per function, without flags per
 * file. What is included above is compiled for any CPU. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

/* The tiles below must become straight code whose sums live in registers, which C has no word for: gcc and clang have this one. */
#define TILE UNCHECKED_LOOP __attribute__((always_inline)) static inline

enum { WIDTH = 8, LANES = 16, MOST_SUMS = 6 };

/* Adds the products of eight lanes (half 0 or 1) at `at` to the sums of a tile. The columns stay in registers while the rows pass. */
TILE void tile_step(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t at, int half,
                    bool fused, __m256 sums[MOST_SUMS][2])
{
    __m256 weight[4];
    for (int c = 0; c < columns; c++)
        weight[c] = _mm256_loadu_ps(w + c * w_stride + at);
    for (int r = 0; r < rows; r++) {
        __m256 in = _mm256_loadu_ps(x[r] + at);
        __asm__("" : "+x"(in)); /* an extension of gcc and clang: gcc would load it anew for every column, which costs a tenth */
        for (int c = 0; c < columns; c++) {
            __m256 *sum = &sums[r * columns + c][half];
            *sum = fused ? _mm256_fmadd_ps(weight[c], in, *sum) : _mm256_add_ps(*sum, _mm256_mul_ps(weight[c], in));
        }
    }
}

/* Lanes 0 .. 3 after the folds by 8 and 4. */
TILE __m128 fold(const __m256 sum[2])
{
    __m256 s = _mm256_add_ps(sum[0], sum[1]);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* The folds by 2 and 1 of four sums at once. */
TILE __m128 fold_four(__m128 a, __m128 b, __m128 c, __m128 d, bool fused)
{
    __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
    __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    __m128 sum = _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD));
    return fused ? _mm_add_ps(sum, _mm_setzero_ps()) : sum;
}

/* Adds a tile over whole vectors, n % 16 == 0; rows and columns are constants where this is inlined. */
TILE void tile_add(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, bool fused,
                   __m256 sums[MOST_SUMS][2])
{
    for (int64_t k = 0; k + LANES <= n; k += LANES) {
        tile_step(w, w_stride, columns, x, rows, k, 0, fused, sums);
        tile_step(w, w_stride, columns, x, rows, k + WIDTH, 1, fused, sums);
    }
}

TILE void tile_sums(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, bool fused,
                    __m256 sums[MOST_SUMS][2])
{
    for (int i = 0; i < rows * columns; i++)
        sums[i][0] = sums[i][1] = _mm256_setzero_ps();
    tile_add(w, w_stride, columns, x, rows, n, fused, sums);
}

/* The six results of three rows by two columns. */
TILE void store_3x2(__m256 sums[MOST_SUMS][2], bool fused, float *y)
{
    __m128 four = fold_four(fold(sums[0]), fold(sums[1]), fold(sums[2]), fold(sums[3]), fused);
    __m128 f = fold(sums[4]), g = fold(sums[5]), two = fold_four(f, g, f, g, fused);
    _mm_storel_pi((__m64 *)(void *)y, four);
    _mm_storeh_pi((__m64 *)(void *)(y + CPU_COLUMN_BLOCK), four);
    _mm_storel_pi((__m64 *)(void *)(y + 2 * CPU_COLUMN_BLOCK), two);
}

TILE void tile_3x2(const float *w, int64_t w_stride, const float *const *x, int64_t n, bool fused, float *y)
{
    const float *const rows[3] = {x[0], x[1], x[2]};
    __m256 sums[MOST_SUMS][2];
    tile_sums(w, w_stride, 2, rows, 3, n, fused, sums);
    store_3x2(sums, fused, y);
}

enum { PIECE = 512, PIECE_ROWS = 24 };

/* Long vectors, rows a multiple of three up to PIECE_ROWS: all tiles over one piece of the vectors before the next piece, so that eight
 * columns of it stay in the first cache; the lanes wait in memory. */
TILE void dots_in_pieces(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, bool fused, float *y)
{
    __m256 kept[PIECE_ROWS / 3 * CPU_COLUMN_BLOCK / 2][MOST_SUMS][2];
    for (int64_t k = 0; k < n; k += PIECE) {
        int64_t length = n - k < PIECE ? n - k : PIECE;
        for (int r = 0, tile = 0; r < rows; r += 3)
            for (int c = 0; c < columns; c += 2, tile++) {
                const float *const at[3] = {x[r] + k, x[r + 1] + k, x[r + 2] + k};
                __m256 sums[MOST_SUMS][2];
                for (int i = 0; i < MOST_SUMS; i++)
                    for (int half = 0; half < 2; half++)
                        sums[i][half] = k == 0 ? _mm256_setzero_ps() : kept[tile][i][half];
                tile_add(w + c * w_stride + k, w_stride, 2, at, 3, length, fused, sums);
                if (k + length == n) {
                    store_3x2(sums, fused, y + r * CPU_COLUMN_BLOCK + c);
                    continue;
                }
                for (int i = 0; i < MOST_SUMS; i++)
                    for (int half = 0; half < 2; half++)
                        kept[tile][i][half] = sums[i][half];
            }
    }
}

TILE void tile_1x4(const float *w, int64_t w_stride, const float *x, int64_t n, bool fused, float *y)
{
    __m256 sums[MOST_SUMS][2];
    tile_sums(w, w_stride, 4, &x, 1, n, fused, sums);
    _mm_storeu_ps(y, fold_four(fold(sums[0]), fold(sums[1]), fold(sums[2]), fold(sums[3]), fused));
}

/* The first n % 16 lanes at p from lane `first` on, zeros behind them. */
UNCHECKED_LOOP static inline __m256 load_end(const float *p, int64_t n, int first)
{
    __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_maskload_ps(p + first, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n % LANES)), lane));
}

/* Any n. */
TILE void tile_1x1(const float *w, const float *x, int64_t n, bool fused, float *y)
{
    int64_t whole = n / LANES * LANES;
    __m256 sums[MOST_SUMS][2];
    tile_sums(w, 0, 1, &x, 1, whole, fused, sums);
    for (int half = 0; half < 2 && whole + half * WIDTH < n; half++) {
        __m256 a = load_end(w + whole, n, half * WIDTH), b = load_end(x + whole, n, half * WIDTH);
        sums[0][half] = fused ? _mm256_fmadd_ps(a, b, sums[0][half]) : _mm256_add_ps(sums[0][half], _mm256_mul_ps(a, b));
    }
    __m128 one = fold(sums[0]);
    _mm_store_ss(y, fold_four(one, one, one, one, fused));
}

/* One row, all columns. */
TILE void dots_row(const float *w, int64_t w_stride, int columns, const float *x, int64_t n, bool fused, float *y)
{
    int c = 0;
    for (; n % LANES == 0 && c + 4 <= columns; c += 4)
        tile_1x4(w + c * w_stride, w_stride, x, n, fused, y + c);
    for (; c < columns; c++)
        tile_1x1(w + c * w_stride, x, n, fused, y + c);
}

TILE void dots_tiled(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, bool fused, float *y)
{
    int r = 0, pairs = columns / 2 * 2;
    for (; n % LANES == 0 && n > PIECE && columns % 2 == 0 && rows - r >= 6;) {
        int together = rows - r > PIECE_ROWS ? PIECE_ROWS : (rows - r) / 3 * 3;
        dots_in_pieces(w, w_stride, columns, x + r, together, n, fused, y + r * CPU_COLUMN_BLOCK);
        r += together;
    }
    for (; n % LANES == 0 && r + 3 <= rows; r += 3) {
        for (int c = 0; c < pairs; c += 2)
            tile_3x2(w + c * w_stride, w_stride, x + r, n, fused, y + r * CPU_COLUMN_BLOCK + c);
        for (int i = r; pairs < columns && i < r + 3; i++)
            tile_1x1(w + pairs * w_stride, x[i], n, fused, y + i * CPU_COLUMN_BLOCK + pairs);
    }
    for (; r < rows; r++)
        dots_row(w, w_stride, columns, x[r], n, fused, y + r * CPU_COLUMN_BLOCK);
}

UNCHECKED_LOOP static void avx2_dots(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n, float *y)
{
    dots_tiled(w, w_stride, columns, x, rows, n, false, y);
}

UNCHECKED_LOOP static void avx2_dots_fused(const float *w, int64_t w_stride, int columns, const float *const *x, int rows, int64_t n,
                                           float *y)
{
    dots_tiled(w, w_stride, columns, x, rows, n, true, y);
}

/* `registers` x 8 values of out, kept in registers while all vectors are added. */
TILE void add_scaled_tile(float *out, const float *scales, const float *x, int64_t x_stride, int count, int registers)
{
    __m256 sum[4];
    for (int i = 0; i < registers; i++)
        sum[i] = _mm256_loadu_ps(out + i * WIDTH);
    for (int v = 0; v < count; v++) {
        __m256 scale = _mm256_broadcast_ss(scales + v);
        for (int i = 0; i < registers; i++)
            sum[i] = _mm256_add_ps(sum[i], _mm256_mul_ps(scale, _mm256_loadu_ps(x + v * x_stride + i * WIDTH)));
    }
    for (int i = 0; i < registers; i++)
        _mm256_storeu_ps(out + i * WIDTH, sum[i]);
}

UNCHECKED_LOOP static void avx2_add_scaled(float *out, const float *scales, const float *x, int64_t x_stride, int count, int64_t n)
{
    int64_t k = 0;
    for (; k + 4 * WIDTH <= n; k += 4 * WIDTH)
        add_scaled_tile(out + k, scales, x + k, x_stride, count, 4);
    for (; k + WIDTH <= n; k += WIDTH)
        add_scaled_tile(out + k, scales, x + k, x_stride, count, 1);
    for (; k < n; k++) {
        float sum = out[k];
        for (int v = 0; v < count; v++)
            sum += scales[v] * x[v * x_stride + k];
        out[k] = sum;
    }
}

const cpu_kernels cpu_kernels_avx2 = {"avx2", avx2_dots, avx2_dots_fused, avx2_add_scaled};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
