/* The loops, included once for each kind of processor.

   NAME(x) is the name of x for this kind and LANES how many numbers a vector holds. SIDE rows are multiplied
   with as many others at once, or OTHER_SIDE where that leaves fewer over, and TRIPLE points with HALF of the
   vectors: so that all sums stay in registers.
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

/* Put all vectors side by side: LANES numbers of each in turn, then the next LANES; zeros follow the last. */
static void NAME(pack)(const float *vectors, count k, float *packed)
{
    for (count at = 0; at < k; at += LANES)
        for (int v = 0; v < VECTORS; v++, packed += LANES)
            if (at + LANES <= k)
                INTO(packed, 0) = AT(vectors, v * k + at);
            else
                for (count j = 0; j < LANES; j++) packed[j] = at + j < k ? vectors[v * k + at + j] : 0;
}

static void NAME(unpack)(const float *packed, count k, float *vectors)
{
    for (count at = 0; at < k; at += LANES)
        for (int v = 0; v < VECTORS; v++, packed += LANES)
            if (at + LANES <= k)
                INTO(vectors, v * k + at) = AT(packed, 0);
            else
                for (count j = 0; at + j < k; j++) vectors[v * k + at + j] = packed[j];
}

/* inner[r][v] += points·vectors over some columns, a multiple of LANES, for up to TRIPLE points. Meanwhile the
   same points' next columns, PANEL further on, come nearer. */
static inline void NAME(multiply)(const float *points, count stride, count many, const float *packed, count columns,
                                  LINE inner[TRIPLE][VECTORS])
{
    const float *rows[TRIPLE]; /* those beyond the last are the first: nobody asks for their products */
    for (int r = 0; r < TRIPLE; r++) rows[r] = points + (r < many ? r : 0) * stride;
    for (int half = 0; half < VECTORS; half += HALF) {
        LINE total[TRIPLE][HALF];
        for (int r = 0; r < TRIPLE; r++)
            for (int v = 0; v < HALF; v++) total[r][v] = inner[r][half + v];
        for (count at = 0; at < columns; at += LANES) {
            LINE here[TRIPLE];
            for (int r = 0; r < TRIPLE; r++) here[r] = AT(rows[r], at);
            for (int r = 0; r < TRIPLE && !half; r++) __builtin_prefetch(rows[r] + at + PANEL, 0, 2);
            for (int v = 0; v < HALF; v++) {
                LINE vector = AT(packed, at * VECTORS + (half + v) * LANES);
                __asm__("" : "+v"(vector)); /* it is read once, not once for each point */
                for (int r = 0; r < TRIPLE; r++) total[r][v] += here[r] * vector;
            }
        }
        for (int r = 0; r < TRIPLE; r++)
            for (int v = 0; v < HALF; v++) inner[r][half + v] = total[r][v];
    }
}

/* sums += factorsᵀ·points over `wide` times LANES columns. Meanwhile those of points further on come nearer. */
static inline __attribute__((always_inline)) void NAME(spread)(const float *points, count stride, count many,
                                                               float factors[GROUP][VECTORS], int wide, float *sums)
{
    for (int half = 0; half < VECTORS; half += HALF, sums += HALF * LANES) {
        LINE total[TRIPLE][HALF];
        for (int q = 0; q < wide; q++)
            for (int v = 0; v < HALF; v++) total[q][v] = AT(sums, (q * VECTORS + v) * LANES);
        for (count r = 0; r < many; r++) {
            LINE here[TRIPLE];
            for (int q = 0; q < wide; q++) here[q] = AT(points, r * stride + q * LANES);
            for (int q = 0; q < wide && !half; q++)
                __builtin_prefetch(points + (r + AHEAD) * stride + q * LANES, 0, 2);
            for (int v = 0; v < HALF; v++)
                for (int q = 0; q < wide; q++) total[q][v] += factors[r][half + v] * here[q];
        }
        for (int q = 0; q < wide; q++)
            for (int v = 0; v < HALF; v++) INTO(sums, (q * VECTORS + v) * LANES) = total[q][v];
    }
}

/* For some points: shares = weights·(points·vectors − shifts), and sums = sharesᵀ·points. In `room` vectors and
   sums lie as the loops read them, at lines of the cache. */
static void NAME(covariance_times)(const float *points, count stride, count n, count k, const float *vectors,
                                   const float *shifts, const float *weights, float *room, float *shares, float *sums)
{
    count whole = k / LANES * LANES, over = k - whole, padded = over ? whole + LANES : k;
    float *packed = room + -((uintptr_t)room / sizeof(float)) % 16, *total = packed + VECTORS * padded;
    NAME(pack)(vectors, k, packed);
    memset(total, 0, sizeof(float) * VECTORS * padded);
    for (count i = 0; i < n; i += GROUP, points += GROUP * stride) {
        count many = n - i < GROUP ? n - i : GROUP;
        LINE inner[GROUP][VECTORS] __attribute__((aligned(64))) = {{{0}}};
        for (count at = 0; at < whole; at += PANEL)
            for (count r = 0; r < many; r += TRIPLE)
                NAME(multiply)(points + r * stride + at, stride, many - r, packed + at * VECTORS,
                               whole - at < PANEL ? whole - at : PANEL, inner + r);
        float last[GROUP][LANES] = {{0}}; /* the columns beyond those of whole vectors of lanes */
        for (count r = 0; r < many && over; r++) memcpy(last[r], points + r * stride + whole, sizeof(float) * over);
        for (count r = 0; r < many && over; r += TRIPLE)
            NAME(multiply)(last[r], LANES, many - r, packed + whole * VECTORS, LANES, inner + r);
        float factors[GROUP][VECTORS];
        for (count r = 0; r < many; r++)
            for (int v = 0; v < VECTORS; v++)
                shares[(i + r) * VECTORS + v] = factors[r][v] =
                    weights[i + r] * (NAME(sum)(inner[r][v]) - shifts[v]);
        count at = 0;
        for (; at + TRIPLE * LANES <= whole; at += TRIPLE * LANES)
            NAME(spread)(points + at, stride, many, factors, TRIPLE, total + at * VECTORS);
        for (; at < whole; at += LANES) NAME(spread)(points + at, stride, many, factors, 1, total + at * VECTORS);
        if (over) NAME(spread)(last[0], LANES, many, factors, 1, total + at * VECTORS);
    }
    NAME(unpack)(total, k, sums);
}

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
