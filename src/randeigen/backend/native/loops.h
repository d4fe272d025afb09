/* The loops, included once for each kind of processor.

   NAME(x) is the name of x for this kind and LANES how many numbers a vector holds. SIDE rows are multiplied
   with as many others at once, or OTHER_SIDE where that leaves fewer over, ROWS points with HALF of the vectors, and PAIR vectors of lanes are added to: so
   that all sums stay in registers.
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

/* The same for `wide` vectors of lanes, of which `length` numbers are wanted. */
static inline __attribute__((always_inline)) void NAME(add_columns)(const float *numbers, const float *mixing, count lines, count step, int wide,
                                     count length, float *sums)
{
    LINE total[WIDE] = {{0}};
    for (count l = 0; l < lines; l++)
        for (int q = 0; q < wide; q++) total[q] += mixing[l] * AT(numbers, l * step + q * LANES);
    if (length == wide * LANES)
        for (int q = 0; q < wide; q++) INTO(sums, q * LANES) += total[q];
    else {
        float parts[WIDE * LANES];
        for (int q = 0; q < wide; q++) INTO(parts, q * LANES) = total[q];
        for (count i = 0; i < length; i++) sums[i] += parts[i];
    }
}

/* sums[j] += Σ mixing[l]·numbers[l·length + j] for j < length; reads up to WIDE·LANES numbers more. */
static inline void NAME(add_lines)(const float *numbers, const float *mixing, count lines, count length, float *sums)
{
    count at = 0;
    for (; at + WIDE * LANES <= length; at += WIDE * LANES)
        NAME(add_columns)(numbers + at, mixing, lines, length, WIDE, WIDE * LANES, sums + at);
    if (length - at > WIDE / 2 * LANES)
        NAME(add_columns)(numbers + at, mixing, lines, length, WIDE, length - at, sums + at);
    else if (length > at)
        NAME(add_columns)(numbers + at, mixing, lines, length, WIDE / 2, length - at, sums + at);
}

/* Add all folds of one row to its points in two sketches, some of its chunks at a time: these stay in the first
   cache. */
static void NAME(fold)(const float *row, const struct tile *tile, float *const sketches[2])
{
    float window[WINDOW + WIDE * LANES] = {0};
    count chunk = tile->chunk, at_once = WINDOW / chunk;
    for (count first = 0; first < tile->chunks; first += at_once) {
        count here = tile->chunks - first < at_once ? tile->chunks - first : at_once, numbers = here * chunk;
        for (count i = 0; i < here; i++)
            memcpy(window + i * chunk, row + tile->order[first + i] * chunk, sizeof(float) * chunk);
        const float *mixing = tile->mixing;
        for (count f = 0; f < tile->many; f++) {
            struct fold fold = tile->folds[f];
            count at = first * chunk + fold.offset, line = at / fold.length, along = at % fold.length, done = 0;
            float *sums = sketches[fold.sketch] + fold.column;
            if (along) {
                done = fold.length - along < numbers ? fold.length - along : numbers;
                NAME(add_lines)(window, mixing + line++, 1, done, sums + along);
            }
            count whole = (numbers - done) / fold.length;
            NAME(add_lines)(window + done, mixing + line, whole, fold.length, sums);
            done += whole * fold.length, line += whole;
            if (done < numbers) NAME(add_lines)(window + done, mixing + line, 1, numbers - done, sums);
            mixing += fold.lines;
        }
    }
}

/* inner[r][v] += points·vectors over the columns from start to stop, a multiple of LANES. */
static inline void NAME(multiply)(const float *const points[GROUP], const float *vectors, count k, count start,
                                  count stop, LINE inner[GROUP][VECTORS])
{
    for (int i = 0; i < GROUP; i += ROWS)
        for (int half = 0; half < VECTORS; half += HALF) {
            LINE total[ROWS][HALF];
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < HALF; v++) total[r][v] = inner[i + r][half + v];
            for (count at = start; at < stop; at += LANES) {
                LINE here[ROWS];
                for (int r = 0; r < ROWS; r++) here[r] = AT(points[i + r], at);
                for (int v = 0; v < HALF; v++) {
                    LINE vector = AT(vectors + (half + v) * k, at);
                    for (int r = 0; r < ROWS; r++) total[r][v] += here[r] * vector;
                }
            }
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < HALF; v++) inner[i + r][half + v] = total[r][v];
        }
}

/* sums += factorsᵀ·points over `pair` times LANES columns from `at` on. */
static inline void NAME(spread)(const float *const points[GROUP], float factors[GROUP][VECTORS], count k, count at,
                                int pair, float *sums)
{
    LINE total[PAIR][VECTORS];
    for (int v = 0; v < VECTORS; v++)
        for (int p = 0; p < pair; p++) total[p][v] = AT(sums + v * k, at + p * LANES);
    for (int r = 0; r < GROUP; r++) {
        LINE here[PAIR];
        for (int p = 0; p < pair; p++) here[p] = AT(points[r], at + p * LANES);
        for (int v = 0; v < VECTORS; v++)
            for (int p = 0; p < pair; p++) total[p][v] += factors[r][v] * here[p];
    }
    for (int v = 0; v < VECTORS; v++)
        for (int p = 0; p < pair; p++) INTO(sums + v * k, at + p * LANES) = total[p][v];
}

/* For some points: shares = weights·(points·vectors − shifts), and sums += sharesᵀ·points. */
static void NAME(covariance_times)(const float *points, count stride, count n, count k, const float *vectors,
                                   const float *shifts, const float *weights, float *shares, float *sums)
{
    count whole = k / LANES * LANES;
    for (count i = 0; i < n; i += GROUP, points += GROUP * stride) {
        count many = n - i < GROUP ? n - i : GROUP;
        const float *rows[GROUP]; /* those beyond the last have factors of 0 */
        for (int r = 0; r < GROUP; r++) rows[r] = points + (r < many ? r : 0) * stride;
        LINE inner[GROUP][VECTORS] = {{{0}}};
        for (count start = 0; start < whole; start += STEP)
            NAME(multiply)(rows, vectors, k, start, start + STEP < whole ? start + STEP : whole, inner);
        float factors[GROUP][VECTORS] = {{0}};
        for (int r = 0; r < many; r++)
            for (int v = 0; v < VECTORS; v++) {
                float product = NAME(sum)(inner[r][v]);
                for (count at = whole; at < k; at++) product += rows[r][at] * vectors[v * k + at];
                shares[(i + r) * VECTORS + v] = factors[r][v] = weights[i + r] * (product - shifts[v]);
            }
        count at = 0;
        for (; at + PAIR * LANES <= whole; at += PAIR * LANES) NAME(spread)(rows, factors, k, at, PAIR, sums);
        for (; at < whole; at += LANES) NAME(spread)(rows, factors, k, at, 1, sums);
        for (; at < k; at++)
            for (int r = 0; r < GROUP; r++)
                for (int v = 0; v < VECTORS; v++) sums[v * k + at] += factors[r][v] * rows[r][at];
    }
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
