// Products with a convolution's windows, turned: lanes are rows of the other operand, and the windows, whose rows come in runs, are
// read word by word where they lie. The other operand is packed once for all images; nothing else is.

static_assert(W <= kMostLanes);
constexpr int kMostGroups = 6;  // of rows in a tile, each with a register for its place

// GROUPS runs of RUN rows, STEP words apart, by VECTORS vectors of columns.
template <int RUN, int STEP, int GROUPS, int VECTORS>
void multiply_runs(const Tile& t, const Word* const* groups, const Index* k_at) {
    constexpr int ROWS = GROUPS * RUN;
    Float chain[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) chain[i][v] = zero();
    const Word* from[GROUPS];
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; ++g) from[g] = groups[g];
    const Word* b = t.b;
#pragma GCC unroll 4
    for (Index k = 0; k < t.depth; ++k, b += NR) {
        const Index at = k_at[k];
        Float right[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
            __builtin_prefetch(b + kRowsAhead * NR + v * W);
            right[v] = load(b + v * W);
        }
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS; ++g)
#pragma GCC unroll 8
            for (int j = 0; j < RUN; ++j) {
                const int i = g * RUN + j;
                const Word* left = from[g] + at + j * STEP;
                if (i % 2) {  // as in `multiply`
                    const Float all = splat(left);
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; ++v) chain[i][v] = fma(all, right[v], chain[i][v]);
                } else {
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; ++v) chain[i][v] = fma_splat(left, right[v], chain[i][v]);
                }
            }
    }
    add_up<ROWS, VECTORS>(t, chain);
}

// `runs` of them, at most GROUPS.
template <int RUN, int STEP, int GROUPS, int VECTORS>
void multiply_groups(const Tile& tile, const Word* const* groups, const Index* k_at, int runs) {
    if (runs == GROUPS) return multiply_runs<RUN, STEP, GROUPS, VECTORS>(tile, groups, k_at);
    if constexpr (GROUPS > 1) multiply_groups<RUN, STEP, GROUPS - 1, VECTORS>(tile, groups, k_at, runs);
}

template <int RUN, int STEP, int GROUPS, int VECTORS>
void multiply_turned_tile(const Tile& tile, const Word* const* groups, const Index* k_at, int runs) {
    if constexpr (VECTORS > 1)
        if (tile.columns <= (VECTORS - 1) * W) return multiply_turned_tile<RUN, STEP, GROUPS, VECTORS - 1>(tile, groups, k_at, runs);
    multiply_groups<RUN, STEP, GROUPS, VECTORS>(tile, groups, k_at, runs);
}

// Rows [row, row + rows) of the windows by one panel of a chunk, into `sums`, of NR words a row.
template <int RUN, int STEP>
void multiply_windows(const GemmPlan& plan, Tile tile, const Word* b, Index row, Index rows, Index k, Word* sums) {
    constexpr int GROUPS = MR / RUN < kMostGroups ? MR / RUN : kMostGroups;
    alignas(64) static constexpr Word zeros[NR] = {};
    const Index runs = rows / RUN, strips = (runs + GROUPS - 1) / GROUPS;
    const int columns = tile.columns;
    for (Index strip = 0; strip < strips; ++strip) {
        const Index first = runs * strip / strips;
        const int own = static_cast<int>(runs * (strip + 1) / strips - first);
        const Word* groups[GROUPS];
        const Places windows = plan.b.from(b, row + first * RUN, k).places;
        for (int g = 0; g < own; ++g) groups[g] = b + windows.row[g * RUN];
        tile.out = sums + first * RUN * NR;
        tile.before = k ? tile.out : zeros;
        tile.columns = columns <= W ? W : (columns + W - 1) / W * W;
        multiply_turned_tile<RUN, STEP, GROUPS, NV>(tile, groups, windows.k_at, own);
    }
}

// out[c * pitch + r] = sums[r * NR + c].
inline void store_turned(Word* out, Index pitch, const Word* sums, Index rows, Index columns) {
    for (Index r = 0; r < rows; r += W) {
        const int height = lanes_left(rows, r);
        for (Index c = 0; c < columns; c += W) {
            Float square[W];
            for (int i = 0; i < W; ++i) square[i] = i < height ? load(sums + (r + i) * NR + c) : zero();
            transpose(square);
            for (int i = 0; i < lanes_left(columns, c); ++i) {
                Word* to = out + (c + i) * pitch + r;
                if (height == W) store(to, square[i]);
                else store_first(to, square[i], height);
            }
        }
    }
}

[[maybe_unused]] void run_turned(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const TurnedPart& part, Word* scratch) {
    Word* const panel = scratch + kTurnedRows * NR;
    for (Index row = part.row0; row < part.row1; row += kTurnedRows) {
        const Index rows = row + kTurnedRows < part.row1 ? kTurnedRows : part.row1 - row;
        for (Index k = 0; k < plan.k; k += kChunk) {
            Tile tile{};
            tile.depth = plan.k - k < kChunk ? plan.k - k : kChunk;
            Word* const packed = panel + (part.keeps ? k * NR : 0);
            if (!part.keeps || (!part.packed && row == part.row0)) pack_panels(plan.a, a, part.column0, part.column1, k, tile.depth, packed);
            tile.b = packed;
            tile.out_row = NR;
            tile.before_row = k ? NR : 0;
            tile.columns = static_cast<int>(part.column1 - part.column0);
            // A run that would leave too many of a tile's rows empty is taken row by row.
            constexpr auto fills = [](int run) { return MR / run * run * 4 >= MR * 3; };
            const int run = plan.b_runs.length, step = plan.b_runs.step;
            if (fills(4) && run == 4 && step == 1) multiply_windows<4, 1>(plan, tile, b, row, rows, k, scratch);
            else if (fills(4) && run == 4 && step == 2) multiply_windows<4, 2>(plan, tile, b, row, rows, k, scratch);
            else if (fills(3) && run == 3 && step == 1) multiply_windows<3, 1>(plan, tile, b, row, rows, k, scratch);
            else multiply_windows<1, 1>(plan, tile, b, row, rows, k, scratch);
        }
        store_turned(out + part.column0 * plan.out_m + row, plan.out_m, scratch, rows, part.column1 - part.column0);
    }
}
