/* The loops, included once for each kind of processor.

   NAME(x) is the name of x for this kind and LANES how many numbers a vector holds. SIDE rows are multiplied
   with as many others at once, or OTHER_SIDE where that leaves fewer over, and TRIPLE points with
   SOME_VECTORS at once: so that all sums stay in registers.
   Nothing here depends on threads: a caller gives each its own numbers. */

typedef float NAME(lanes) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef double NAME(wide_lanes) __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
#define LINE NAME(lanes)
#define AT(numbers, i) (*(const LINE *)((numbers) + (i)))
#define INTO(numbers, i) (*(LINE *)((numbers) + (i)))

static inline float NAME(sum)(LINE a)
{
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)a);
#else
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)a), _mm256_extractf128_ps((__m256)a, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

static inline double NAME(wide_sum)(NAME(wide_lanes) a)
{
#if LANES == 16
    return _mm512_reduce_add_pd((__m512d)a);
#else
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128((__m256d)a), _mm256_extractf128_pd((__m256d)a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
#endif
}

/* Half as many numbers as a vector of float32 holds, in float64. */
static inline NAME(wide_lanes) NAME(widened)(const float *numbers)
{
#if LANES == 16
    return (NAME(wide_lanes))_mm512_cvtps_pd(_mm256_loadu_ps(numbers));
#else
    return (NAME(wide_lanes))_mm256_cvtps_pd(_mm_loadu_ps(numbers));
#endif
}

#define NUMBER float
#define VECTOR NAME(lanes)
#define SUM NAME(sum)
#define GRAM NAME(gram)
#define TILE SIDE
#include "gram.h"
#ifdef OTHER_SIDE
#define GRAM NAME(other_gram)
#define TILE OTHER_SIDE
#include "gram.h"
#endif
#undef NUMBER
#undef VECTOR
#undef SUM
#define NUMBER double
#define VECTOR NAME(wide_lanes)
#define SUM NAME(wide_sum)
#define GRAM NAME(wide_gram)
#define TILE SIDE
#include "gram.h"
#undef NUMBER
#undef VECTOR
#undef SUM

#include "fold.h"

/* Squared lengths of some points, in float64: no square overflows there. */
static void NAME(squares)(const float *points, count stride, count n, count k, double *out)
{
    for (count i = 0; i < n; i++, points += stride) {
        NAME(wide_lanes) total[4] = {{0}};
        count at = 0;
        for (; at + 2 * LANES <= k; at += 2 * LANES)
            for (int q = 0; q < 4; q++) {
                NAME(wide_lanes) here = NAME(widened)(points + at + q * LANES / 2);
                total[q] += here * here;
            }
        double sum = NAME(wide_sum)((total[0] + total[1]) + (total[2] + total[3]));
        for (; at < k; at++) sum += (double)points[at] * points[at];
        out[i] = sum;
    }
}

/* The inner products of some points with a direction. */
static void NAME(project)(const float *points, count stride, count n, count k, const float *direction, double *out)
{
    for (count i = 0; i < n; i++, points += stride) {
        LINE total[8] = {{0}};
        count at = 0;
        for (; at + 8 * LANES <= k; at += 8 * LANES)
            for (int q = 0; q < 8; q++) total[q] += AT(points, at + q * LANES) * AT(direction, at + q * LANES);
        for (; at + LANES <= k; at += LANES) total[0] += AT(points, at) * AT(direction, at);
        for (int half = 4; half; half /= 2)
            for (int q = 0; q < half; q++) total[q] += total[q + half];
        float sum = NAME(sum)(total[0]);
        for (; at < k; at++) sum += points[at] * direction[at];
        out[i] = sum;
    }
}

/* sums = Σ weights·points, TOGETHER points at a time. */
static void NAME(add_up)(const float *points, count stride, count n, count k, const float *weights, float *sums)
{
    memset(sums, 0, sizeof(float) * k);
    for (count i = 0; i < n; i += TOGETHER, points += TOGETHER * stride) {
        const float *rows[TOGETHER]; /* those beyond the last have weights of 0 */
        float factors[TOGETHER];
        for (int r = 0; r < TOGETHER; r++) {
            rows[r] = points + (i + r < n ? r : 0) * stride;
            factors[r] = i + r < n ? weights[i + r] : 0;
        }
        count at = 0;
        for (; at + LANES <= k; at += LANES) {
            LINE even = factors[0] * AT(rows[0], at), odd = factors[1] * AT(rows[1], at);
            for (int r = 2; r < TOGETHER; r += 2) {
                even += factors[r] * AT(rows[r], at);
                odd += factors[r + 1] * AT(rows[r + 1], at);
            }
            INTO(sums, at) += even + odd;
        }
        for (; at < k; at++)
            for (int r = 0; r < TOGETHER; r++) sums[at] += factors[r] * rows[r][at];
    }
}

#include "covariance.h"

/* The upper half of each number is that of a bfloat16. */
static void NAME(widen_bfloat16)(const uint16_t *from, count numbers, uint32_t *to)
{
    for (count i = 0; i < numbers; i++) to[i] = (uint32_t)from[i] << 16;
}

/* Exponents of float16 count from 15, those of float32 from 127; what is infinite or NaN stays so. */
static void NAME(widen_float16)(const uint16_t *from, count numbers, uint32_t *to)
{
    for (count i = 0; i < numbers; i++) {
        union { uint32_t bits; float number; } here = {(uint32_t)(from[i] & 0x7fff) << 13};
        here.number *= 0x1p112f;
        here.bits |= (from[i] & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
        to[i] = here.bits | (uint32_t)(from[i] & 0x8000) << 16;
    }
}

#undef LINE
#undef AT
#undef INTO
