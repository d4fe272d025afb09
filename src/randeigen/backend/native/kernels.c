/* Three loops for processors of the x86-64 family, where most of the time on a CPU goes. They are optional:
   without them numpy does the same (see __init__.py). Each is compiled for AVX2 and for AVX-512; which of the
   two runs here, randeigen_kind says. */

#if defined(__x86_64__) && defined(__GNUC__) /* Clang says so too */

#include <stddef.h>
#include <string.h>

typedef ptrdiff_t count;

/* How a tile is folded, as folds.py says. */
struct fold {
    count offset; /* how far into the first line the tile begins */
    count length; /* of a line */
    count lines;
    count column, sketch; /* where the sums begin, and in which of two sketches */
};
struct tile {
    const count *order; /* of its chunks */
    count chunks, chunk;
    count many;
    const struct fold *folds;
    const float *mixing; /* the factors of all lines, one fold after the other */
};

#define STEP 1024   /* columns of an inner product that are added up before it is kept in float64 */
#define VECTORS 8   /* vectors multiplied with a covariance at once */
#define GROUP 8     /* points whose shares are known before they are added up */
#define WINDOW 8192 /* numbers of a row that are folded while a cache holds them */
#define WIDE 4      /* vectors of a line that are added up at once */
#define HALF 4      /* of the vectors, those multiplied with a few points at once */

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NAME(x) x##_avx2
#define LANES 8
#define SIDE 3
#define ROWS 2
#define PAIR 1
#include "loops.h"
#undef NAME
#undef LANES
#undef SIDE
#undef ROWS
#undef PAIR
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define NAME(x) x##_avx512
#define LANES 16
#define SIDE 5
#define ROWS 4
#define PAIR 2
#include "loops.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

enum { NONE, AVX2, AVX512 };

/* Which arguments the functions below take: raised here and in __init__.py when they change, so that a library
   which was compiled before is not used. */
int randeigen_interface(void) { return 1; }

/* The best loops that run on this processor. */
int randeigen_kind(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return AVX512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? AVX2 : NONE;
}

/* `room` is for SIDE - 1 rows more than n, of STEP + LANES numbers. */
void randeigen_gram(int kind, const float *rows, count stride, count n, count width, float *room,
                    double *total)
{
    (kind == AVX512 ? gram_avx512 : gram_avx2)(rows, stride, n, width, room, total);
}

/* Put the chunks of some rows in order and add all folds of them to their points in two sketches. */
void randeigen_fold(int kind, const float *rows, count stride, count n, const count *order, count chunks,
                    count chunk, count many, const struct fold *folds, const float *mixing, float *first,
                    count first_stride, float *second, count second_stride)
{
    const struct tile tile = {order, chunks, chunk, many, folds, mixing};
    for (count i = 0; i < n; i++) {
        float *const sketches[2] = {first + i * first_stride, second + i * second_stride};
        (kind == AVX512 ? fold_avx512 : fold_avx2)(rows + i * stride, &tile, sketches);
    }
}

void randeigen_covariance_times(int kind, const float *points, count stride, count n, count k,
                                const float *vectors, const float *shifts, const float *weights, float *shares,
                                float *sums)
{
    (kind == AVX512 ? covariance_times_avx512 : covariance_times_avx2)(points, stride, n, k, vectors, shifts,
                                                                       weights, shares, sums);
}

#endif
