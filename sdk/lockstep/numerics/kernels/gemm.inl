// dot as a matrix product: packed panels, a register tile of MR rows x NV vectors, k cut at the chunks of the profile.
//
// Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008; the k block is not free here: it is
// the chunk, because a tile's accumulators are the chains.

constexpr int NR = NV * W;

// pack[k * pitch + i] = in[i * row + k * k_stride] for i < W (zero from `rows` on), k < depth. Later k overwrite what
// earlier ones wrote beyond the pitch; the last one writes up to W words.
inline void pack_group(Word* pack, Index pitch, const Word* in, Index row, Index k_stride, int rows, Index depth) {
    if (k_stride == 1) {
        for (Index k = 0; k < depth; k += W) {
            const int n = static_cast<int>(depth - k < W ? depth - k : W);
            Float square[W];
            if (n == W)
                for (int i = 0; i < W; ++i) square[i] = i < rows ? load(in + i * row + k) : zero();
            else
                for (int i = 0; i < W; ++i) square[i] = i < rows ? load_first(in + i * row + k, n) : zero();
            transpose(square);
            for (int i = 0; i < n; ++i) store(pack + (k + i) * pitch, square[i]);
        }
    } else if (row == 1) {
        if (rows == W)
            for (Index k = 0; k < depth; ++k) store(pack + k * pitch, load(in + k * k_stride));
        else
            for (Index k = 0; k < depth; ++k) store(pack + k * pitch, load_first(in + k * k_stride, rows));
    } else {
        for (Index k = 0; k < depth; ++k) {
            Word lanes[W] = {};
            for (int i = 0; i < rows; ++i) lanes[i] = in[i * row + k * k_stride];
            store(pack + k * pitch, load(lanes));
        }
    }
}

void run_gemm_pack(const GemmPlan& plan, const Word* b, Index panel, Word* packed) {
    const Index n0 = panel * NR;
    for (Index k0 = 0; k0 < plan.k; k0 += kChunk) {
        const Index depth = plan.k - k0 < kChunk ? plan.k - k0 : kChunk;
        for (int v = 0; v < NV; ++v) {
            const Index n = n0 + v * W, left = plan.n - n;
            const int rows = static_cast<int>(left < 0 ? 0 : left < W ? left : W);
            const Word* in = rows ? b + n * plan.b_n + k0 * plan.b_k : b;
            pack_group(packed + k0 * NR + v * W, NR, in, plan.b_n, plan.b_k, rows, depth);
        }
    }
}

struct Tile {
    const Word* a;  // depth x rows
    const Word* b;  // depth x NR
    Word* out;
    Index depth, out_row;
    int columns;
    bool first, last;  // chunk of the fold
};

template <int ROWS>
void multiply(const Tile& t) {
    Float chain[ROWS][NV];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) chain[i][v] = zero();
    const Word *a = t.a, *b = t.b;
    for (Index k = 0; k < t.depth; ++k, a += ROWS, b += NR) {
        Float right[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) right[v] = load(b + v * W);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
            const Float left = splat(a + i);
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) chain[i][v] = fma(left, right[v], chain[i][v]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) {
            Word* out = t.out + i * t.out_row + v * W;
            const int columns = t.columns - v * W < W ? t.columns - v * W : W;
            if (columns <= 0) continue;
            const Float before = t.first ? zero() : columns == W ? load(out) : load_first(out, columns);
            const Float sum = add(before, chain[i][v]);
            const Float result = t.last ? canonical(sum) : sum;
            if (columns == W) store(out, result);
            else store_first(out, result, columns);
        }
}

template <int ROWS>
void multiply_rows(const Tile& tile, int rows) {
    if (rows == ROWS) return multiply<ROWS>(tile);
    if constexpr (ROWS > 1) multiply_rows<ROWS - 1>(tile, rows);
}

void run_gemm(const GemmPlan& plan, const Word* a, const Word* packed, Word* out, Index m_begin, Index m_end, Index first_panel,
              Index panels, Word* scratch) {
    const Index rows = m_end - m_begin, strips = (rows + MR - 1) / MR;
    const auto strip_start = [&](Index strip) { return rows * strip / strips; };  // even heights: no lone last row
    for (Index k0 = 0; k0 < plan.k; k0 += kChunk) {
        const Index depth = plan.k - k0 < kChunk ? plan.k - k0 : kChunk;
        for (Index strip = 0; strip < strips; ++strip) {
            const Index r = strip_start(strip), height = strip_start(strip + 1) - r;
            pack_group(scratch + r * depth, height, a + (m_begin + r) * plan.a_m + k0 * plan.a_k, plan.a_m, plan.a_k,
                       static_cast<int>(height), depth);
        }
        for (Index panel = 0; panel < panels; ++panel) {
            const Index n0 = (first_panel + panel) * NR;
            Tile tile;
            tile.b = packed + panel * NR * plan.k + k0 * NR;
            tile.depth = depth;
            tile.out_row = plan.out_m;
            tile.columns = static_cast<int>(plan.n - n0 < NR ? plan.n - n0 : NR);
            tile.first = k0 == 0;
            tile.last = k0 + depth == plan.k;
            for (Index strip = 0; strip < strips; ++strip) {
                const Index r = strip_start(strip);
                tile.a = scratch + r * depth;
                tile.out = out + (m_begin + r) * plan.out_m + n0;
                multiply_rows<MR>(tile, static_cast<int>(strip_start(strip + 1) - r));
            }
        }
    }
}
