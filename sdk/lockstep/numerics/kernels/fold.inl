// Folds with one chain per output: lanes are outputs, so no chain is ever reordered.

// W consecutive outputs and where each one's terms start.
struct Group {
    Index start[2][W];
    int outputs;
};

// How W lanes of one operand are read for consecutive k.
enum class Access { kDirect, kBroadcast, kRows, kScattered };

inline Group group_at(const FoldPlan& plan, int operands, Index first_output, Index end) {
    Group g;
    const Index left = end - first_output;
    g.outputs = static_cast<int>(left < 0 ? 0 : left < W ? left : W);
    Index coordinate[kMaxAxes], rest = first_output, at[2] = {0, 0};
    for (int ax = plan.axes - 1; ax >= 0; --ax) {
        coordinate[ax] = rest % plan.extents[ax];
        rest /= plan.extents[ax];
        for (int v = 0; v < operands; ++v) at[v] += coordinate[ax] * plan.strides[v][ax];
    }
    for (int lane = 0; lane < W; ++lane) {
        // Lanes beyond the last output repeat the first one: they read what exists and are not stored.
        for (int v = 0; v < operands; ++v) g.start[v][lane] = lane == 0 || lane < g.outputs ? at[v] : g.start[v][0];
        if (lane + 1 >= g.outputs) continue;
        for (int ax = plan.axes - 1; ax >= 0; --ax) {
            for (int v = 0; v < operands; ++v) at[v] += plan.strides[v][ax];
            if (++coordinate[ax] < plan.extents[ax]) break;
            for (int v = 0; v < operands; ++v) at[v] -= plan.strides[v][ax] * plan.extents[ax];
            coordinate[ax] = 0;
        }
    }
    return g;
}

inline Access access_of(const Index* start, Index k_stride) {
    bool direct = true, broadcast = true;
    for (int lane = 1; lane < W; ++lane) {
        direct &= start[lane] - start[lane - 1] == 1;
        broadcast &= start[lane] == start[0];
    }
    if (direct) return Access::kDirect;
    if (broadcast) return Access::kBroadcast;
    return k_stride == 1 ? Access::kRows : Access::kScattered;
}

// Terms k .. k + n of W lanes as n vectors; returns where they lie and sets their pitch.
inline const Word* terms(const Word* base, const Index* start, Index k_stride, Access access, Index k, int n, Word* tile, Index* pitch) {
    *pitch = W;
    const Word* at = base + k * k_stride;
    switch (access) {
    case Access::kDirect: *pitch = k_stride; return at + start[0];
    case Access::kBroadcast:
        for (int i = 0; i < n; ++i) store(tile + i * W, splat(at + start[0] + i * k_stride));
        return tile;
    case Access::kRows: {
        Float square[W];
        for (int lane = 0; lane < W; ++lane)
            square[lane] = n == W ? load(at + start[lane]) : load_first(at + start[lane], n);
        transpose(square);
        for (int i = 0; i < W; ++i) store(tile + i * W, square[i]);
        return tile;
    }
    case Access::kScattered:
        for (int i = 0; i < n; ++i)
            for (int lane = 0; lane < W; ++lane) tile[i * W + lane] = at[start[lane] + i * k_stride];
        return tile;
    }
    return tile;
}

// U groups side by side: their chains hide each other's latency.
template <bool DOT, int U>
void fold_sums(const FoldPlan& plan, const Word* const* bases, Word* out, Index first_output, Index end) {
    constexpr int V = DOT ? 2 : 1;
    alignas(64) Word tile[V][U][W * W];
    Group groups[U];
    Access access[V][U];
    for (int u = 0; u < U; ++u) {
        groups[u] = group_at(plan, V, first_output + u * W, end);
        for (int v = 0; v < V; ++v) access[v][u] = access_of(groups[u].start[v], plan.k_stride[v]);
    }
    Float sum[U], total[U];  // level 1 and, over more than 65,536 terms, level 2
    for (int u = 0; u < U; ++u) sum[u] = total[u] = zero();
    const bool two_levels = plan.k > kChunk * kChunk;
    for (Index k0 = 0; k0 < plan.k; k0 += kChunk) {
        const Index k1 = plan.k - k0 < kChunk ? plan.k : k0 + kChunk;
        Float chain[U];
        for (int u = 0; u < U; ++u) chain[u] = zero();
        for (Index k = k0; k < k1; k += W) {
            const int n = static_cast<int>(k1 - k < W ? k1 - k : W);
            const Word* at[V][U];
            Index pitch[V][U];
            for (int u = 0; u < U; ++u)
                for (int v = 0; v < V; ++v)
                    at[v][u] = terms(bases[v], groups[u].start[v], plan.k_stride[v], access[v][u], k, n, tile[v][u], &pitch[v][u]);
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                for (int u = 0; u < U; ++u) {
                    const Float a = load(at[0][u] + i * pitch[0][u]);
                    if constexpr (DOT) chain[u] = fma(a, load(at[V - 1][u] + i * pitch[V - 1][u]), chain[u]);
                    else chain[u] = add(chain[u], a);
                }
            }
        }
        for (int u = 0; u < U; ++u) {
            sum[u] = plan.partial ? chain[u] : add(sum[u], chain[u]);
            if (!two_levels || (k1 != plan.k && k1 % (kChunk * kChunk))) continue;
            total[u] = add(total[u], sum[u]);
            sum[u] = zero();
        }
    }
    for (int u = 0; u < U; ++u)
        store_first(out + first_output + u * W, canonical(two_levels ? total[u] : sum[u]), groups[u].outputs);
}

// W rows at a time: vectors along the terms, multiplied as they lie, become lanes of rows.
template <bool PRODUCTS>
void sum_pieces(const PiecewiseSum& plan, const Word* const* bases, Word* out, Index begin, Index end) {
    static_assert(kPiece % W == 0 && kChunk % kPiece == 0);
    const bool two_levels = plan.k > kChunk * kChunk;
    for (Index o = begin; o < end; o += W) {
        const int outputs = static_cast<int>(end - o < W ? end - o : W);
        const Word* rows[2][W];
        for (int v = 0; v <= PRODUCTS; ++v)  // lanes beyond the last output repeat the first one
            for (int lane = 0; lane < W; ++lane) rows[v][lane] = bases[v] + (lane < outputs ? o + lane : o) * plan.row[v];
        Float sum = zero(), total = zero();
        for (Index k0 = 0; k0 < plan.k; k0 += kChunk) {
            const Index k1 = plan.k - k0 < kChunk ? plan.k : k0 + kChunk;
            Float chain = zero();
            for (Index k = k0; k < k1; k += W) {
                Float square[W];
                const Index at = plan.piece_at[0][k / kPiece] + k % kPiece;
                for (int lane = 0; lane < W; ++lane) square[lane] = load(rows[0][lane] + at);
                if constexpr (PRODUCTS) {
                    const Index other = plan.piece_at[1][k / kPiece] + k % kPiece;
                    for (int lane = 0; lane < W; ++lane) square[lane] = times(square[lane], load(rows[1][lane] + other));
                }
                transpose(square);
                for (int i = 0; i < W; ++i) chain = add(chain, square[i]);
            }
            sum = add(sum, chain);
            if (!two_levels || (k1 != plan.k && k1 % (kChunk * kChunk))) continue;
            total = add(total, sum);
            sum = zero();
        }
        store_first(out + o, canonical(two_levels ? total : sum), outputs);
    }
}

void run_piecewise_sum(const PiecewiseSum& plan, const Word* const* bases, Word* out, Index begin, Index end) {
    return plan.operands == 2 ? sum_pieces<true>(plan, bases, out, begin, end) : sum_pieces<false>(plan, bases, out, begin, end);
}

// A word as an integer whose signed maximum is the fold's result, and back.
template <FoldMode MODE>
LOCKSTEP_INLINE Int keyed(Int x) {
    if constexpr (MODE == FoldMode::kWrappingSum) return x;
    const Int ordered = either_not_both(x, both(signs(x), splat_int(0x7fffffff)));
    return MODE == FoldMode::kMin ? either_not_both(ordered, splat_int(-1)) : ordered;
}
template <FoldMode MODE>
LOCKSTEP_INLINE Int unkeyed(Int key) {
    if constexpr (MODE == FoldMode::kWrappingSum) return key;
    const Int ordered = MODE == FoldMode::kMin ? either_not_both(key, splat_int(-1)) : key;
    return either_not_both(ordered, both(signs(ordered), splat_int(0x7fffffff)));
}

template <FoldMode MODE>
LOCKSTEP_INLINE Word joined(Word x, Word y) {
    if constexpr (MODE == FoldMode::kWrappingSum) return x + y;
    return word(MODE == FoldMode::kMax ? f32::max(value(x), value(y)) : f32::min(value(x), value(y)));
}

template <FoldMode MODE>
constexpr Word kIdentity = MODE == FoldMode::kMax ? f32::NEGATIVE_INFINITE : MODE == FoldMode::kMin ? f32::INFINITE : 0;

// Keys joined lane by lane, and the largest magnitude; one above infinity's is a NaN.
template <FoldMode MODE>
struct Extreme {
    Int key = keyed<MODE>(splat_int(static_cast<std::int32_t>(kIdentity<MODE>))), magnitude = splat_int(0);

};

template <FoldMode MODE>
LOCKSTEP_INLINE void take(Extreme<MODE>& e, Int x) {
    e.key = MODE == FoldMode::kWrappingSum ? add(e.key, x) : max(e.key, keyed<MODE>(x));
    if constexpr (MODE != FoldMode::kWrappingSum) e.magnitude = max(e.magnitude, both(x, splat_int(0x7fffffff)));
}

template <FoldMode MODE>
LOCKSTEP_INLINE void lanes_of(const Extreme<MODE>& e, Word* result) {
    Word magnitude[W];
    store(result, floats(unkeyed<MODE>(e.key)));
    store(magnitude, floats(e.magnitude));
    if constexpr (MODE != FoldMode::kWrappingSum)
        for (int i = 0; i < W; ++i) result[i] = magnitude[i] > f32::INFINITE ? f32::NOT_A_NUMBER : result[i];
}

// max, min and the wrapping sum have no order: along k where that is contiguous and long, across outputs elsewhere.
constexpr Index kLongRow = 1024;  // terms from which joining the lanes at the end costs less than transposing

template <FoldMode MODE>
void fold_unordered(const FoldPlan& plan, const Word* const* bases, Word* out, Index begin, Index end) {
    Word lanes[W];
    alignas(64) Word tile[W * W];
    for (Index o = begin; o < end; o += W) {
        const Group g = group_at(plan, 1, o, end);
        const Access access = access_of(g.start[0], plan.k_stride[0]);
        if (plan.k_stride[0] == 1 && access != Access::kDirect && (plan.k >= kLongRow || g.outputs < W)) {
            for (int lane = 0; lane < g.outputs; ++lane) {
                const Word* row = bases[0] + g.start[0][lane];
                Extreme<MODE> even, odd;
                Index k = 0;
                for (; k + 2 * W <= plan.k; k += 2 * W) {
                    take(even, bits(load(row + k)));
                    take(odd, bits(load(row + k + W)));
                }
                Word joint = kIdentity<MODE>;
                lanes_of(even, lanes);
                for (int i = 0; i < W; ++i) joint = joined<MODE>(joint, lanes[i]);
                lanes_of(odd, lanes);
                for (int i = 0; i < W; ++i) joint = joined<MODE>(joint, lanes[i]);
                for (; k < plan.k; ++k) joint = joined<MODE>(joint, row[k]);
                out[o + lane] = joint;
            }
            continue;
        }
        Extreme<MODE> extreme;
        for (Index k = 0; k < plan.k; k += W) {
            const int n = static_cast<int>(plan.k - k < W ? plan.k - k : W);
            Index pitch;
            const Word* at = terms(bases[0], g.start[0], plan.k_stride[0], access, k, n, tile, &pitch);
            for (int i = 0; i < n; ++i) take(extreme, bits(load(at + i * pitch)));
        }
        lanes_of(extreme, lanes);
        for (int lane = 0; lane < g.outputs; ++lane) out[o + lane] = lanes[lane];
    }
}

template <bool DOT>
void fold_all_sums(const FoldPlan& plan, const Word* const* bases, Word* out, Index begin, Index end) {
    for (; end - begin > 2 * W; begin += 4 * W) fold_sums<DOT, 4>(plan, bases, out, begin, end);
    for (; begin < end; begin += W) fold_sums<DOT, 1>(plan, bases, out, begin, end);
}

void run_fold(const FoldPlan& plan, const Word* const* bases, Word* out, Index begin, Index end) {
    switch (plan.mode) {
    case FoldMode::kDot: return fold_all_sums<true>(plan, bases, out, begin, end);
    case FoldMode::kSum: return fold_all_sums<false>(plan, bases, out, begin, end);
    case FoldMode::kMax: return fold_unordered<FoldMode::kMax>(plan, bases, out, begin, end);
    case FoldMode::kMin: return fold_unordered<FoldMode::kMin>(plan, bases, out, begin, end);
    case FoldMode::kWrappingSum: return fold_unordered<FoldMode::kWrappingSum>(plan, bases, out, begin, end);
    }
}
