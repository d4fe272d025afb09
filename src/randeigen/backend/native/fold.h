/* Rows mixed and folded into sketches, as geometry/folds.py says: included by loops.h. */

/* Numbers with the signs that the bits from vector i on say: 1 is a minus. */
static inline LINE NAME(signed)(LINE numbers, const uint8_t *signs, count i)
{
#if LANES == 16
    uint16_t minus;
    memcpy(&minus, signs + 2 * i, sizeof(minus));
    return (LINE)_mm512_mask_xor_ps((__m512)numbers, minus, (__m512)numbers, _mm512_set1_ps(-0.0f));
#else
    const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i here = _mm256_and_si256(_mm256_set1_epi32(signs[i]), bits);
    __m256 minus = _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(here, bits)), _mm256_set1_ps(-0.0f));
    return (LINE)_mm256_xor_ps((__m256)numbers, minus);
#endif
}

/* Sums and differences of vectors that are `apart` from one another. */
static inline __attribute__((always_inline)) void NAME(butterflies)(LINE numbers[RADIX], int apart)
{
    for (int i = 0; i < RADIX; i++) {
        if (i & apart) continue;
        LINE first = numbers[i], second = numbers[i + apart];
        numbers[i] = first + second;
        numbers[i + apart] = first - second;
    }
}

/* The Hadamard transform over RADIX vectors. */
static inline __attribute__((always_inline)) void NAME(across)(LINE numbers[RADIX])
{
    NAME(butterflies)(numbers, 1);
    NAME(butterflies)(numbers, 2);
    NAME(butterflies)(numbers, 4);
#if RADIX == 16
    NAME(butterflies)(numbers, 8);
#endif
}

/* The Hadamard transform over the numbers of a vector. */
static inline LINE NAME(within)(LINE numbers)
{
#if LANES == 16
#define STAGE(swapped, ...) here = _mm512_fmadd_ps(here, _mm512_setr_ps(__VA_ARGS__), swapped)
    __m512 here = (__m512)numbers;
    STAGE(_mm512_shuffle_f32x4(here, here, 0x4e), 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    STAGE(_mm512_shuffle_f32x4(here, here, 0xb1), 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    STAGE(_mm512_permute_ps(here, 0x4e), 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    STAGE(_mm512_permute_ps(here, 0xb1), 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
#else
#define STAGE(swapped, ...) here = _mm256_fmadd_ps(here, _mm256_setr_ps(__VA_ARGS__), swapped)
    __m256 here = (__m256)numbers;
    STAGE(_mm256_permute2f128_ps(here, here, 1), 1, 1, 1, 1, -1, -1, -1, -1);
    STAGE(_mm256_permute_ps(here, 0x4e), 1, 1, -1, -1, 1, 1, -1, -1);
    STAGE(_mm256_permute_ps(here, 0xb1), 1, -1, 1, -1, 1, -1, 1, -1);
#endif
#undef STAGE
    return (LINE)here;
}

/* Add vectors to sums, with signs. */
static inline __attribute__((always_inline)) void NAME(add_signed)(const LINE numbers[RADIX], const uint8_t *signs,
                                                                   float *sums)
{
    for (int a = 0; a < RADIX; a++) INTO(sums, a * LANES) += NAME(signed)(numbers[a], signs, a);
}

/* Mix one block of a row, from the pivot, and add it to its points. The next one is fetched meanwhile. */
static void NAME(fold_block)(const float *row, const float *pivot, const float *next, const uint8_t *before,
                             const struct sketch *sketches, int many)
{
    enum { ALL = BLOCK / LANES, APART = ALL / RADIX };
    float mixed[BLOCK] __attribute__((aligned(64)));
    LINE here[RADIX];
    for (count i = 0; i < APART; i++) {
        for (int a = 0; a < RADIX; a++) {
            here[a] = AT(row, (a * APART + i) * LANES);
            if (pivot) here[a] -= AT(pivot, (a * APART + i) * LANES);
            here[a] = NAME(signed)(here[a] * SCALE, before, a * APART + i);
        }
        NAME(across)(here);
        for (int a = 0; a < RADIX; a++) INTO(mixed, (a * APART + i) * LANES) = here[a];
    }
    for (count apart = APART / RADIX; apart > 1; apart /= RADIX)
        for (count i = 0; i < ALL; i++) {
            if (i / apart % RADIX) continue;
            for (int a = 0; a < RADIX; a++) here[a] = AT(mixed, (a * apart + i) * LANES);
            NAME(across)(here);
            for (int a = 0; a < RADIX; a++) INTO(mixed, (a * apart + i) * LANES) = here[a];
        }
    for (count i = 0; i < ALL; i += RADIX) {
        for (int a = 0; a < RADIX; a++) here[a] = AT(mixed, (i + a) * LANES);
        NAME(across)(here);
        for (int a = 0; a < RADIX; a++) here[a] = NAME(within)(here[a]);
        if (next)
            for (int a = 0; a < RADIX * LANES; a += 16) __builtin_prefetch(next + i * LANES + a);
        for (const struct sketch *s = sketches; s < sketches + many; s++)
            NAME(add_signed)(here, s->signs + i * LANES / 8, s->sums + (s->start + i * LANES) % s->width);
    }
}
