/* The loops, included once for each kind of processor.

   NAME(x) is the name of x for this kind and LANES how many numbers a vector holds. SIDE rows are multiplied
   with as many others at once, ROWS points with HALF of the vectors, and PAIR vectors of lanes are added to: so
   that all sums stay in registers.
   Nothing here depends on threads: a caller gives each its own numbers. */

typedef float NAME(lanes) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define LINE NAME(lanes)
#define AT(numbers, i) (*(const LINE *)((numbers) + (i)))
#define INTO(numbers, i) (*(LINE *)((numbers) + (i)))

static inline float NAME(sum)(LINE a)
{
    float parts[LANES];
    INTO(parts, 0) = a;
    for (count half = LANES / 2; half; half /= 2)
        for (count i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* total += a·aᵀ, STEP columns at a time: each lane adds up few of them in float32. The columns are copied to
   `room` first, rows side by side: where they lie, many may share few places of a cache. */
static void NAME(gram)(const float *rows, count stride, count n, count width, float *room, double *total)
{
    count side = (n + SIDE - 1) / SIDE * SIDE, line = STEP + LANES;
    memset(room, 0, sizeof(float) * side * line);
    for (count start = 0; start < width; start += STEP) {
        count here = width - start < STEP ? width - start : STEP, whole = (here + LANES - 1) / LANES * LANES;
        for (count i = 0; i < n; i++) {
            memcpy(room + i * line, rows + i * stride + start, sizeof(float) * here);
            memset(room + i * line + here, 0, sizeof(float) * (whole - here));
        }
        for (count i = 0; i < side; i += SIDE)
            for (count j = 0; j <= i; j += SIDE) {
                LINE sums[SIDE][SIDE] = {{{0}}};
                const float *left = room + i * line, *right = room + j * line;
                for (count at = 0; at < whole; at += LANES) {
                    LINE others[SIDE];
                    for (int r = 0; r < SIDE; r++) others[r] = AT(right + r * line, at);
                    for (int l = 0; l < SIDE; l++) {
                        LINE one = AT(left + l * line, at);
                        for (int r = 0; r < SIDE; r++) sums[l][r] += one * others[r];
                    }
                }
                for (int l = 0; l < SIDE; l++)
                    for (int r = 0; r < SIDE; r++)
                        if (i + l < n && j + r <= i + l) total[(i + l) * n + j + r] += NAME(sum)(sums[l][r]);
            }
    }
    for (count i = 0; i < n; i++)
        for (count j = 0; j < i; j++) total[j * n + i] = total[i * n + j];
}

/* sums[j] += Σ mixing[l]·numbers[l·length + j] for j < length; reads up to LANES numbers more. */
static inline void NAME(add_lines)(const float *numbers, const float *mixing, count lines, count length, float *sums)
{
    count at = 0;
    for (; at + WIDE * LANES <= length; at += WIDE * LANES) {
        LINE total[WIDE];
        for (int q = 0; q < WIDE; q++) total[q] = AT(sums, at + q * LANES);
        for (count l = 0; l < lines; l++)
            for (int q = 0; q < WIDE; q++) total[q] += mixing[l] * AT(numbers, l * length + at + q * LANES);
        for (int q = 0; q < WIDE; q++) INTO(sums, at + q * LANES) = total[q];
    }
    while (at < length) {
        float parts[LANES];
        LINE total = {0};
        for (count l = 0; l < lines; l++) total += mixing[l] * AT(numbers, l * length + at);
        INTO(parts, 0) = total;
        for (int q = 0; q < LANES && at < length; q++, at++) sums[at] += parts[q];
    }
}

/* Add all folds of one row to its points in two sketches, some of its chunks at a time: these stay in the first
   cache. */
static void NAME(fold)(const float *row, const struct tile *tile, float *const sketches[2])
{
    float window[WINDOW + LANES] = {0};
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

#undef LINE
#undef AT
#undef INTO
