// dot as a matrix product: packed operands, a register tile of MR rows x NV vectors, k cut at the chunks of the profile.
//
// Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008; the k block is not free here: it is
// the chunk, because a tile's accumulators are the chains. A block of b stays in L2 while strips of a pass through L1.

constexpr int NR = NV * W;
constexpr Index kStripsAtATime = 4;  // of a k-major operand, packed together so that whole lines are read at once
constexpr Index kRowsAhead = 8;      // of a panel, fetched from L2 before they are multiplied
static_assert(MR <= W, "a strip is packed as one vector for each k");

inline int lanes_left(Index end, Index begin) {
    const Index left = end - begin;
    return static_cast<int>(left < 0 ? 0 : left < W ? left : W);
}

// pack[k * pitch + i] = in[i * row + k * k_stride] for i < rows <= W (zero up to W), k < depth. Later k overwrite what earlier ones
// wrote beyond the pitch; the last one writes W words.
inline void pack_group(Word* pack, Index pitch, const Word* in, Index row, Index k_stride, int rows, Index depth) {
    if (k_stride == 1) {
        for (Index k = 0; k < depth; k += W) {
            const int n = lanes_left(depth, k);
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

// The same where tables tell the places of rows and terms: `at` begins with the group's first row and the first of `depth` terms.
inline void pack_group_at(Word* pack, Index pitch, const Word* in, const Places& at, int rows, Index depth) {
    if (at.row_run[0] >= rows) {
        const Word* from = in + at.row[0];
        if (rows == W)
            for (Index k = 0; k < depth; ++k) store(pack + k * pitch, load(from + at.k_at[k]));
        else
            for (Index k = 0; k < depth; ++k) store(pack + k * pitch, load_first(from + at.k_at[k], rows));
        return;
    }
    if (at.row_run[0] >= W / 4 && rows == W) {  // few runs
        for (int i = 0; i < rows;) {
            const int n = static_cast<int>(at.row_run[i] < rows - i ? at.row_run[i] : rows - i);
            const Word* from = in + at.row[i];
            for (Index k = 0; k < depth; ++k) store_first(pack + k * pitch + i, load_first(from + at.k_at[k], n), n);
            i += n;
        }
        return;
    }
    for (Index k = 0; k < depth;) {
        const Index left = depth - k < W ? depth - k : W, run = at.k_run[k] < 0 ? -at.k_run[k] : at.k_run[k];
        const int n = static_cast<int>(run < left ? run : left), last = at.k_run[k] < 0 ? n - 1 : 0;  // the term that lies first
        const int step = last ? -1 : 1;
        const Word* from = in + at.k_at[k + last];
        if (n >= W / 4) {
            Float square[W];
            for (int i = 0; i < W; ++i) square[i] = i < rows ? load_first(from + at.row[i], n) : zero();
            transpose(square);
            for (int i = 0; i < n; ++i) store(pack + (k + i) * pitch, square[last + step * i]);
        } else {
            for (int j = 0; j < n; ++j) {
                Word lanes[W] = {};
                for (int i = 0; i < rows; ++i) lanes[i] = from[at.row[i] + last + step * j];
                store(pack + (k + j) * pitch, load(lanes));
            }
        }
        k += n;
    }
}

// Rows [n0, n1) of one chunk of an operand, from term k on, panel after panel of depth x NR words.
inline void pack_panels(const Factor& operand, const Word* base, Index n0, Index n1, Index k, Index depth, Word* pack) {
    const Factor::Part all = operand.from(base, n0, k);
    // Neighbouring terms lie in the same lines; rows that lie along k are packed whole.
    const Index step = all.placed ? 16 : all.row == 1 && all.k != 1 ? 8 : depth;
    for (Index first = 0; first < depth; first += step) {
        const Index count = first + step < depth ? step : depth - first;
        for (Index n = n0; n < n1; n += W) {
            Word* panel = pack + (n - n0) / NR * NR * depth + (n - n0) % NR + first * NR;
            const Factor::Part own = operand.from(base, n, k + first);
            if (own.placed) pack_group_at(panel, NR, own.at, own.places, lanes_left(n1, n), count);
            else pack_group(panel, NR, own.at, own.row, own.k, lanes_left(n1, n), count);
        }
    }
}

// Rows cut into strips of even heights <= MR: no lone last row.
struct Strips {
    Index rows, count;

    explicit Strips(Index all) : rows(all), count((all + MR - 1) / MR) {}
    Index start(Index strip) const { return rows * strip / count; }
    int height(Index strip) const { return static_cast<int>(start(strip + 1) - start(strip)); }
};

// The rows of one chunk that a part's strips are cut from: `operand` from row m0 and term k on.
struct Rows {
    const Factor& operand;
    const Word* base;
    Index m0, k;

    Factor::Part from(Index row, Index term) const { return operand.from(base, m0 + row, k + term); }
};

// Strips [begin, end) of one chunk, each depth x height words, one after the other.
inline void pack_strips(const Rows& rows, const Strips& strips, Index begin, Index end, Index depth, Word* pack) {
    constexpr Index kRowsAtATime = 8;
    const Factor::Part all = rows.from(0, 0);
    const bool side_by_side = !all.placed && all.row == 1 && all.k != 1;
    const Index origin = strips.start(begin), step = side_by_side ? kRowsAtATime : depth;
    for (Index first = 0; first < depth; first += step) {
        const Index count = first + step < depth ? step : depth - first;
        for (Index strip = begin; strip < end; ++strip) {
            const Index r = strips.start(strip);
            const int height = strips.height(strip);
            Word* own = pack + (r - origin) * depth + first * height;
            const Factor::Part in = rows.from(r, first);
            if (in.placed) pack_group_at(own, height, in.at, in.places, height, count);
            else if (!side_by_side) pack_group(own, height, in.at, in.row, in.k, height, count);
            else
                for (Index k = 0; k < count; ++k) store_first(own + k * height, load_first(in.at + k * in.k, height), height);
        }
    }
}

struct Tile {
    const Word* a;  // rows x depth, a_row or a_step words apart
    const Word* b;  // depth x NR
    const Word* before;  // what the chunks before have summed up to: the output itself, or zeros
    Word* out;
    Index depth, a_row, a_step, before_row, out_row;
    int columns;
};

template <int ROWS, int VECTORS>
[[gnu::noinline]] void canonicalise(const Tile& t) {
    for (int i = 0; i < ROWS; ++i)
        for (int v = 0; v < VECTORS; ++v) {
            Word* out = t.out + i * t.out_row + v * W;
            const int columns = lanes_left(t.columns, v * W);
            store_first(out, canonical(load_first(out, columns)), columns);
        }
}

// The chains of a tile onto what the chunks before have summed up to.
template <int ROWS, int VECTORS>
LOCKSTEP_INLINE void add_up(const Tile& t, const Float (&chain)[ROWS][VECTORS]) {
    const Word* before = t.before;
    Word* out = t.out;
    const Index before_row = t.before_row, out_row = t.out_row;
    // A NaN is rare, so all sums are looked at together: one that is not finite makes its lane of `poison` NaN.
    Float poison[4];
    for (Float& p : poison) p = zero();
    const int columns = lanes_left(t.columns, (VECTORS - 1) * W);
    if (columns == W) {
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i, before += before_row, out += out_row)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) {
                const Float sum = add(load(before + v * W), chain[i][v]);
                store(out + v * W, sum);
                poison[(i * VECTORS + v) % 4] = fma(sum, zero(), poison[(i * VECTORS + v) % 4]);
            }
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i, before += before_row, out += out_row)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) {
                const bool whole = v + 1 < VECTORS;
                const Float sum = add(whole ? load(before + v * W) : load_first(before + v * W, columns), chain[i][v]);
                if (whole) store(out + v * W, sum);
                else store_first(out + v * W, sum, columns);
                poison[(i * VECTORS + v) % 4] = fma(sum, zero(), poison[(i * VECTORS + v) % 4]);
            }
    }
    if (any_nan(add(add(poison[0], poison[1]), add(poison[2], poison[3])))) canonicalise<ROWS, VECTORS>(t);
}

// a's rows lie SIDE_BY_SIDE, a_step words from one k to the next, or are contiguous along k and a_row words apart.
template <int ROWS, int VECTORS, bool SIDE_BY_SIDE>
void multiply(const Tile& t) {
    Float chain[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
        __builtin_prefetch(t.out + i * t.out_row, 1);
        __builtin_prefetch(t.out + i * t.out_row + t.columns - 1, 1);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) chain[i][v] = zero();
    }
    const Word *a = t.a, *b = t.b;
    const Index a_row = t.a_row, a_step = t.a_step;
#pragma GCC unroll 4
    for (Index k = 0; k < t.depth; ++k, a += SIDE_BY_SIDE ? a_step : 1, b += NR) {
        Float right[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
            __builtin_prefetch(b + kRowsAhead * NR + v * W);
            right[v] = load(b + v * W);
        }
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i) {
            const Word* left = SIDE_BY_SIDE ? a + i : a + i * a_row;
            if (i % 2) {  // half of a's words by way of a register: between what the loads and what the issue of instructions allow
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

template <int ROWS, int VECTORS, bool SIDE_BY_SIDE>
void multiply_rows(const Tile& tile, int rows) {
    if (rows == ROWS) return multiply<ROWS, VECTORS, SIDE_BY_SIDE>(tile);
    if constexpr (ROWS > 1) multiply_rows<ROWS - 1, VECTORS, SIDE_BY_SIDE>(tile, rows);
}

template <int VECTORS, bool SIDE_BY_SIDE>
void multiply_tile(const Tile& tile, int rows) {
    if constexpr (VECTORS > 1)
        if (tile.columns <= (VECTORS - 1) * W) return multiply_tile<VECTORS - 1, SIDE_BY_SIDE>(tile, rows);
    multiply_rows<MR, VECTORS, SIDE_BY_SIDE>(tile, rows);
}

// Packing a pays where its words are read for more than a few panels, and where lines a page apart would evict each other.
inline bool packing_pays(const GemmPlan& plan, Index columns) {
    constexpr Index kPage = 1024;
    const Factor::Part a = plan.a.from(nullptr, 0, 0);
    const bool contiguous = a.row == 1 || a.k == 1;
    return a.placed || columns > 3 * NR || !contiguous || a.row * a.k % kPage == 0;
}

// Columns [n0, n1) of one chunk, packed at `panels`, of all strips; `tile` has what its tiles share, `scratch` has room for
// kStripsAtATime strips.
template <bool SIDE_BY_SIDE>
void multiply_block(Tile tile, const Rows& rows, bool packing, const Strips& strips, const Word* panels, Word* out, bool first, Index n0,
                    Index n1, Word* scratch) {
    alignas(64) static constexpr Word zeros[NR] = {};
    const Index group = rows.from(0, 0).k == 1 ? 1 : kStripsAtATime;
    for (Index begin = 0; begin < strips.count; begin += group) {
        const Index end = begin + group < strips.count ? begin + group : strips.count;
        if (packing) pack_strips(rows, strips, begin, end, tile.depth, scratch);
        for (Index strip = begin; strip < end; ++strip) {
            const Index r = strips.start(strip);
            const int height = strips.height(strip);
            const Factor::Part in = rows.from(r, 0);
            tile.a = packing ? scratch + (r - strips.start(begin)) * tile.depth : in.at;
            tile.a_row = in.row;
            tile.a_step = packing ? height : in.k;
            for (Index n = n0; n < n1; n += NR) {
                tile.b = panels + (n - n0) * tile.depth;
                tile.columns = static_cast<int>(n1 - n < NR ? n1 - n : NR);
                tile.out = out + r * tile.out_row + n;
                tile.before = first ? zeros : tile.out;
                multiply_tile<NV, SIDE_BY_SIDE>(tile, height);
            }
        }
    }
}

[[maybe_unused]] void run_gemm(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const GemmPart& part, Word* scratch) {
    const Strips strips(part.m1 - part.m0);
    Word* const panels = scratch + kStripsAtATime * MR * kChunk + W;
    for (Index n0 = part.n0; n0 < part.n1; n0 += part.columns) {
        const Index n1 = n0 + part.columns < part.n1 ? n0 + part.columns : part.n1;
        for (Index k = 0; k < plan.k; k += kChunk) {
            Tile tile{};
            tile.depth = plan.k - k < kChunk ? plan.k - k : kChunk;
            tile.out_row = plan.out_m;
            tile.before_row = k || plan.begun ? plan.out_m : 0;
            pack_panels(plan.b, b, n0, n1, k, tile.depth, panels);
            const Rows rows{plan.a, a, part.m0, k};
            const bool packing = packing_pays(plan, n1 - n0);
            const auto block = packing || rows.from(0, 0).row == 1 ? &multiply_block<true> : &multiply_block<false>;
            block(tile, rows, packing, strips, panels, out + part.m0 * plan.out_m, k == 0 && !plan.begun, n0, n1, scratch);
        }
    }
}
