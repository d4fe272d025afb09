/* A Gram matrix of rows of NUMBER, of which VECTOR holds some. TILE rows are multiplied with as many at once. */

#define IN_VECTOR ((count)(sizeof(VECTOR) / sizeof(NUMBER)))

/* total += a·aᵀ, STEP columns at a time: each lane adds up few of them. The columns are copied to `room` first,
   rows side by side: where they lie, many may share few places of a cache. */
static void GRAM(const NUMBER *rows, count stride, count n, count width, NUMBER *room, double *total)
{
    count side = (n + TILE - 1) / TILE * TILE, line = STEP + LANES;
    memset(room, 0, sizeof(NUMBER) * side * line);
    for (count start = 0; start < width; start += STEP) {
        count here = width - start < STEP ? width - start : STEP;
        count whole = (here + IN_VECTOR - 1) / IN_VECTOR * IN_VECTOR;
        for (count i = 0; i < n; i++) {
            memcpy(room + i * line, rows + i * stride + start, sizeof(NUMBER) * here);
            memset(room + i * line + here, 0, sizeof(NUMBER) * (whole - here));
        }
        for (count i = 0; i < side; i += TILE)
            for (count j = 0; j <= i; j += TILE) {
                VECTOR sums[TILE][TILE] = {{{0}}};
                const NUMBER *left = room + i * line, *right = room + j * line;
                for (count at = 0; at < whole; at += IN_VECTOR) {
                    VECTOR others[TILE];
                    for (int r = 0; r < TILE; r++) others[r] = *(const VECTOR *)(right + r * line + at);
                    for (int l = 0; l < TILE; l++) {
                        VECTOR one = *(const VECTOR *)(left + l * line + at);
                        for (int r = 0; r < TILE; r++) sums[l][r] += one * others[r];
                    }
                }
                for (int l = 0; l < TILE; l++)
                    for (int r = 0; r < TILE; r++)
                        if (i + l < n && j + r <= i + l) total[(i + l) * n + j + r] += SUM(sums[l][r]);
            }
    }
    for (count i = 0; i < n; i++)
        for (count j = 0; j < i; j++) total[j * n + i] = total[i * n + j];
}

#undef GRAM
#undef TILE
#undef IN_VECTOR
