/* A covariance times a few vectors: included by loops.h. */

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
    for (int first = 0; first < VECTORS; first += SOME_VECTORS) {
        LINE total[TRIPLE][SOME_VECTORS];
        for (int r = 0; r < TRIPLE; r++)
            for (int v = 0; v < SOME_VECTORS; v++) total[r][v] = inner[r][first + v];
        for (count at = 0; at < columns; at += LANES) {
            LINE here[TRIPLE];
            for (int r = 0; r < TRIPLE; r++) here[r] = AT(rows[r], at);
            for (int r = 0; r < TRIPLE && !first; r++) __builtin_prefetch(rows[r] + at + PANEL, 0, 2);
            for (int v = 0; v < SOME_VECTORS; v++) {
                LINE vector = AT(packed, at * VECTORS + (first + v) * LANES);
                __asm__("" : "+v"(vector)); /* it is read once, not once for each point */
                for (int r = 0; r < TRIPLE; r++) total[r][v] += here[r] * vector;
            }
        }
        for (int r = 0; r < TRIPLE; r++)
            for (int v = 0; v < SOME_VECTORS; v++) inner[r][first + v] = total[r][v];
    }
}

/* sums += sharesᵀ·points over `wide` times LANES columns. Meanwhile those of points further on come nearer. */
static inline __attribute__((always_inline)) void NAME(spread)(const float *points, count stride, count many,
                                                               const float *shares, int wide, float *sums)
{
    for (int first = 0; first < VECTORS; first += SOME_VECTORS, sums += SOME_VECTORS * LANES) {
        LINE total[TRIPLE][SOME_VECTORS];
        for (int q = 0; q < wide; q++)
            for (int v = 0; v < SOME_VECTORS; v++) total[q][v] = AT(sums, (q * VECTORS + v) * LANES);
        for (count r = 0; r < many; r++) {
            LINE here[TRIPLE];
            for (int q = 0; q < wide; q++) here[q] = AT(points, r * stride + q * LANES);
            for (int q = 0; q < wide && !first; q++)
                __builtin_prefetch(points + (r + AHEAD) * stride + q * LANES, 0, 2);
            for (int v = 0; v < SOME_VECTORS; v++)
                for (int q = 0; q < wide; q++) total[q][v] += shares[r * VECTORS + first + v] * here[q];
        }
        for (int q = 0; q < wide; q++)
            for (int v = 0; v < SOME_VECTORS; v++) INTO(sums, (q * VECTORS + v) * LANES) = total[q][v];
    }
}

/* shares = weights·(points·vectors − shifts) for up to GROUP points, of which `last` are the columns beyond those of
   whole vectors of lanes. */
static inline void NAME(share)(const float *points, count stride, count many, const float *packed, count whole,
                               float last[GROUP][LANES], const float *shifts, const float *weights, float *shares)
{
    LINE inner[GROUP][VECTORS] __attribute__((aligned(64))) = {{{0}}};
    for (count at = 0; at < whole; at += PANEL)
        for (count r = 0; r < many; r += TRIPLE)
            NAME(multiply)(points + r * stride + at, stride, many - r, packed + at * VECTORS,
                           whole - at < PANEL ? whole - at : PANEL, inner + r);
    for (count r = 0; r < many && last; r += TRIPLE)
        NAME(multiply)(last[r], LANES, many - r, packed + whole * VECTORS, LANES, inner + r);
    for (count r = 0; r < many; r++)
        for (int v = 0; v < VECTORS; v++)
            shares[r * VECTORS + v] = weights[r] * (NAME(sum)(inner[r][v]) - shifts[v]);
}

/* For some points: shares = weights·(points·vectors − shifts), unless these are 0: then shares are given; and
   sums = sharesᵀ·points. In `room` vectors and sums lie as the loops read them, at lines of the cache. */
static void NAME(covariance_times)(const float *points, count stride, count n, count k, const float *vectors,
                                   const float *shifts, const float *weights, float *room, float *shares, float *sums)
{
    count whole = k / LANES * LANES, over = k - whole, padded = over ? whole + LANES : k;
    float *packed = room + -((uintptr_t)room / sizeof(float)) % 16, *total = packed + VECTORS * padded;
    if (vectors) NAME(pack)(vectors, k, packed);
    memset(total, 0, sizeof(float) * VECTORS * padded);
    for (count i = 0; i < n; i += GROUP, points += GROUP * stride, shares += GROUP * VECTORS) {
        count many = n - i < GROUP ? n - i : GROUP, at = 0;
        float last[GROUP][LANES] = {{0}};
        for (count r = 0; r < many && over; r++) memcpy(last[r], points + r * stride + whole, sizeof(float) * over);
        if (vectors)
            NAME(share)(points, stride, many, packed, whole, over ? last : 0, shifts, weights + i, shares);
        for (; at + TRIPLE * LANES <= whole; at += TRIPLE * LANES)
            NAME(spread)(points + at, stride, many, shares, TRIPLE, total + at * VECTORS);
        for (; at < whole; at += LANES) NAME(spread)(points + at, stride, many, shares, 1, total + at * VECTORS);
        if (over) NAME(spread)(last[0], LANES, many, shares, 1, total + at * VECTORS);
    }
    NAME(unpack)(total, k, sums);
}
