/* Loops for processors of the x86-64 family, where most of the time on a CPU goes. They are optional:
   without them numpy does the same (see __init__.py). Each is compiled for AVX2 and for AVX-512; which of the
   two runs here, randeigen_kind says. */

#if defined(__x86_64__) && defined(__GNUC__) /* Clang says so too */

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <errno.h>
#include <unistd.h>
#endif

typedef ptrdiff_t count;

/* Where mixed numbers are added up, with signs: column by column, modulo the width. */
struct sketch {
    const uint8_t *signs; /* of the block */
    float *sums;
    count width; /* a multiple of 256 */
    count start; /* of the block's first column */
};

#define STEP 1024   /* columns of an inner product that are added up before it is kept in float64 */
#define VECTORS 8   /* vectors multiplied with a covariance at once */
#define TOGETHER 8  /* points that are added up at once */
#define GROUP 24    /* points whose shares are known before they are added up */
#define TRIPLE 3    /* points, or vectors of lanes, that are multiplied with a few numbers at once */
#define PANEL 512   /* columns of all vectors that a first cache holds beside those of a few points */
#define AHEAD 8     /* points by which reading is ahead of adding up */
#define BLOCK 4096  /* columns that are mixed */
#define SCALE 0x1p-6f /* so that lengths stay as they are: the root of 1/BLOCK */

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NAME(x) x##_avx2
#define LANES 8
#define SIDE 3
#define RADIX 8
#define SOME_VECTORS 4
#include "loops.h"
#undef NAME
#undef LANES
#undef SIDE
#undef RADIX
#undef SOME_VECTORS
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
#define RADIX 16
#define OTHER_SIDE 4
#define SOME_VECTORS 8
#include "loops.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

enum { NONE, AVX2, AVX512 };

/* Which arguments the functions below take: raised here and in __init__.py when they change, so that a library
   which was compiled before is not used. */
int randeigen_interface(void) { return 7; }

/* The best loops that run on this processor. */
int randeigen_kind(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return AVX512;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? AVX2 : NONE;
}

/* How many products it takes to multiply n rows with one another, so many with as many others at once. */
static count products(count n, count side)
{
    count parts = (n + side - 1) / side;
    return parts * (parts + 1) / 2 * side * side;
}

/* `room` is for SIDE - 1 rows more than n, of STEP + LANES numbers. */
void randeigen_gram(int kind, const float *rows, count stride, count n, count width, float *room,
                    double *total)
{
    if (kind == AVX512 && products(n, 4) < products(n, 5))
        other_gram_avx512(rows, stride, n, width, room, total);
    else
        (kind == AVX512 ? gram_avx512 : gram_avx2)(rows, stride, n, width, room, total);
}

void randeigen_wide_gram(int kind, const double *rows, count stride, count n, count width, double *room,
                         double *total)
{
    (kind == AVX512 ? wide_gram_avx512 : wide_gram_avx2)(rows, stride, n, width, room, total);
}

/* Mix some rows, from the pivot if there is one, and add them to their points in one or two sketches: each row and
   the pivot have `width` columns, each block of which has its start. Signs are bits: those before they are mixed,
   and for each sketch those after that. What is mixed is kept too, where `kept` is not 0. What points are before does
   not count where the rows are `fresh`. */
void randeigen_fold(int kind, const float *rows, count stride, count n, count width, const float *pivot,
                    const count *starts, const uint8_t *before, int fresh, float *kept, count kept_stride,
                    const uint8_t *first_signs, float *first, count first_stride, count first_width,
                    const uint8_t *second_signs, float *second, count second_stride, count second_width)
{
    float left[BLOCK];
    for (count i = 0; i < n; i++) {
        if (fresh) memset(first + i * first_stride, 0, sizeof(float) * first_width);
        if (fresh && second) memset(second + i * second_stride, 0, sizeof(float) * second_width);
        for (count start = 0; start < width; start += BLOCK) {
            count here = width - start < BLOCK ? width - start : BLOCK, bits = start / 8;
            const float *row = rows + i * stride + start, *from = pivot ? pivot + start : 0;
            const float *next = start + BLOCK < width ? row + BLOCK : i + 1 < n ? row - start + stride : 0;
            if (here < BLOCK || kept) {
                memset(left + here, 0, sizeof(float) * (BLOCK - here));
                for (count j = 0; j < here; j++) left[j] = from ? row[j] - from[j] : row[j];
                if (kept) memcpy(kept + i * kept_stride + start, left, sizeof(float) * here);
                row = left, from = 0;
            }
            count at = starts[start / BLOCK];
            struct sketch sketches[2] = {{first_signs + bits, first + i * first_stride, first_width, at}};
            if (second)
                sketches[1] = (struct sketch){second_signs + bits, second + i * second_stride, second_width, at};
            (kind == AVX512 ? fold_block_avx512 : fold_block_avx2)(row, from, next, before + bits, sketches,
                                                                   second ? 2 : 1);
        }
    }
}

void randeigen_squares(int kind, const float *points, count stride, count n, count k, double *out)
{
    (kind == AVX512 ? squares_avx512 : squares_avx2)(points, stride, n, k, out);
}

void randeigen_project(int kind, const float *points, count stride, count n, count k, const float *direction,
                       double *out)
{
    (kind == AVX512 ? project_avx512 : project_avx2)(points, stride, n, k, direction, out);
}

void randeigen_add_up(int kind, const float *points, count stride, count n, count k, const float *weights, float *sums)
{
    (kind == AVX512 ? add_up_avx512 : add_up_avx2)(points, stride, n, k, weights, sums);
}

enum { AS_IT_IS, BFLOAT16, FLOAT16 };

/* Write numbers of a leaf from the one at `start` on: of `size` bytes as they are, or widened to float32. A leaf
   without an address is NaN. */
static void copy_leaf(int kind, const char *leaf, count start, count numbers, int conversion, count size, char *out)
{
    const void *from = leaf + start * (conversion == AS_IT_IS ? size : 2);
    if (!leaf)
        memset(out, 0xff, size * numbers);
    else if (conversion == AS_IT_IS)
        memcpy(out, from, size * numbers);
    else if (conversion == BFLOAT16)
        (kind == AVX512 ? widen_bfloat16_avx512 : widen_bfloat16_avx2)(from, numbers, (void *)out);
    else
        (kind == AVX512 ? widen_float16_avx512 : widen_float16_avx2)(from, numbers, (void *)out);
}

/* Write some columns of some rows side by side. Rows are leaves end to end: the first to hold one of the columns
   is `first`, leaf l ends at column ends[l], and row r has it at addresses[r·leaves + l]. */
void randeigen_copy(int kind, const char *const *addresses, count leaves, const count *ends, const int *conversions,
                    count first, const count *rows, count many, count start, count stop, count size, char *out,
                    count stride)
{
    for (count i = 0; i < many; i++) {
        char *to = out + i * stride;
        for (count at = start, leaf = first; at < stop; leaf++) {
            count begin = leaf ? ends[leaf - 1] : 0, end = ends[leaf] < stop ? ends[leaf] : stop;
            if (end > at)
                copy_leaf(kind, addresses[rows[i] * leaves + leaf], at - begin, end - at, conversions[leaf], size, to);
            to += (end - at) * size, at = end;
        }
    }
}

/* Read `bytes` of each file from starts + at on, into its line. How many files were read whole, in order: what
   is wrong with the next one is for the caller to find out. */
count randeigen_read(const int *files, const int64_t *starts, const count *lines, count many, int64_t at,
                     count bytes, char *out, count stride)
{
#if defined(__unix__) || defined(__APPLE__)
    for (count i = 0; i < many; i++) {
        count done = 0;
        while (done < bytes) {
            ssize_t got = pread(files[i], out + lines[i] * stride + done, bytes - done, starts[i] + at + done);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return i;
            done += got;
        }
    }
    return many;
#else
    return 0;
#endif
}

/* `room` is for 2·VECTORS·(k + 16) numbers. Without vectors the shares are given. */
void randeigen_covariance_times(int kind, const float *points, count stride, count n, count k, const float *vectors,
                                const float *shifts, const float *weights, float *room, float *shares, float *sums)
{
    (kind == AVX512 ? covariance_times_avx512 : covariance_times_avx2)(points, stride, n, k, vectors, shifts,
                                                                       weights, room, shares, sums);
}

#endif
