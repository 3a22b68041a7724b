// Products of codes: exact sums of a group in integer lanes, one float multiplication and one addition for each group.
//
// A step multiplies one unit of a row with one unit of W columns: CODES_AT_ONCE codes, four where the instruction set multiplies
// bytes, else two that were extended to 16 bits. The groups of a chain are packed together, so that a tile's floats are written once
// for each chain, and a product of any length takes no more memory. The lanes give: Int unit_of(Int words, int unit) for each of UNITS, Int multiply_codes(Int sum, Int a, Int b), and
// Int bias_of(Int sum, Int words), what a row's products are short of because of the form of b's units.

constexpr Index qdot_strip_words(const QdotPlan& plan) { return W * (groups_packed(plan) * (plan.words * UNITS + 3)) + 2 * W; }

// Groups of a chain.
struct Chain {
    Index begin, end;
};

// Words of group c that are not all padding.
constexpr Index words_of(const QdotPlan& plan, Index c) { return plan.period && (c + 1) % plan.period == 0 ? plan.last_words : plan.words; }

// Words of a group from the first to the last one in which some row has a code that is not 0.
struct Span {
    Index begin, end;
};

// Words [0, depth) of up to W rows at `in`, packed as units: out[(k * UNITS + u) * pitch + i] for rows i. What a row's products are
// short of is the result.
template <bool BIASED>
Int pack_units(Word* out, Index pitch, const Word* in, Index row, int rows, Index depth, Span* span = nullptr) {
    Int bias[2] = {splat_int(0), splat_int(0)};
    for (Index k = 0; k < depth; k += W) {
        const int n = lanes_left(depth, k);
        Float square[W];
        if (n == W)
            for (int i = 0; i < W; ++i) square[i] = i < rows ? load(in + i * row + k) : zero();
        else
            for (int i = 0; i < W; ++i) square[i] = i < rows ? load_first(in + i * row + k, n) : zero();
        if (!BIASED) {
            Int any = bits(square[0]);
            for (int i = 1; i < W; ++i) any = either(any, bits(square[i]));
            if (const unsigned found = lanes_not_zero(any)) {
                if (span->begin == span->end) span->begin = k + __builtin_ctz(found);
                span->end = k + 32 - __builtin_clz(found);
            }
        }
        transpose(square);
        const auto store_row = [&](int i) {
            const Int words = bits(square[i]);
            for (int u = 0; u < UNITS; ++u)
                store(out + ((k + i) * UNITS + u) * pitch, floats(BIASED ? biased_unit_of(words, u) : unit_of(words, u)));
            if (!BIASED) bias[i & 1] = bias_of(bias[i & 1], words);
        };
        if (n == W)
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) store_row(i);
        else
            for (int i = 0; i < n; ++i) store_row(i);
    }
    return add(bias[0], bias[1]);
}

// One column block's panel: NR columns from n on, all groups of a chain: units of a group, then its scales.
inline void pack_code_panel(const QdotPlan& plan, const QdotOperands& at, const Chain& chain, Index n, Index n1, Word* panel) {
    const Index depth = plan.words * UNITS;
    for (Index c = chain.begin; c < chain.end; ++c, panel += (depth + 1) * NR) {
        for (int v = 0; v < NV; ++v) {
            const int columns = lanes_left(n1, n + v * W);
            const Factor::Part in = plan.shape.b.from(at.b, columns ? n + v * W : n, c * plan.words);
            pack_units<true>(panel + v * W, NR, in.at, in.row, columns, words_of(plan, c));
            Word scales[W] = {};
            for (int i = 0; i < columns; ++i) scales[i] = at.scale_b[(n + v * W + i) * plan.scale_b_n + c * plan.scale_b_k];
            store(panel + depth * NR + v * W, load(scales));
        }
    }
}

// A strip's rows, all groups of a chain: units of a group side by side, W words apart, then its biases, its scales and its span.
// Words outside of the span are not multiplied: a mask leaves rows of attention codes on one side of the diagonal alone.
inline void pack_code_strip(const QdotPlan& plan, const QdotOperands& at, const Chain& chain, Index m, int rows, Word* strip) {
    const Index depth = plan.words * UNITS;
    for (Index c = chain.begin; c < chain.end; ++c, strip += (depth + 3) * W) {
        Span span{0, 0};
        const Factor::Part in = plan.shape.a.from(at.a, m, c * plan.words);
        const Int bias = pack_units<false>(strip, W, in.at, in.row, rows, words_of(plan, c), &span);
        store(strip + depth * W, floats(bias));
        strip[(depth + 2) * W] = static_cast<Word>(span.begin * UNITS);
        strip[(depth + 2) * W + 1] = static_cast<Word>(span.end * UNITS);
        Word scales[W] = {};
        for (int i = 0; i < rows; ++i) scales[i] = at.scale_a[(m + i) * plan.scale_a_m + c * plan.scale_a_k];
        store(strip + (depth + 1) * W, load(scales));
    }
}

struct CodeTile {
    const Word *strip, *panel;
    Word* out;
    Index groups, depth, out_row;  // depth: of a whole group
    bool first, only;              // of the product's chains
    int columns;
};

// Adds one group's products to a tile's sums, which are zero before the FIRST group; the LAST group's are written to `out`.
template <int ROWS, bool FIRST, bool LAST>
void multiply_group(const CodeTile& t, const Word* strip, const Word* panel, Word* sums) {
    Int chain[ROWS][NV];
    const Word *biases = strip + t.depth * W, *scales = biases + W, *column_scales = panel + t.depth * NR;
    const Index begin = scales[W], end = scales[W + 1];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) chain[i][v] = bits(splat(biases + i));
#pragma GCC unroll 1
    for (Index k = begin; k < end; ++k) {
        Int right[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) right[v] = bits(load(panel + k * NR + v * W));
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) chain[i][v] = multiply_codes(chain[i][v], strip + k * W + i, right[v]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            const Float scale = times(splat(scales + i), load(column_scales + v * W));
            const Float sum = add(FIRST ? zero() : load(sums + i * NR + v * W), times(converted(chain[i][v]), scale));
            if (!LAST) store(sums + i * NR + v * W, sum);
            else if (t.columns == NR) store(t.out + i * t.out_row + v * W, canonical(sum));
            else store_first(t.out + i * t.out_row + v * W, canonical(sum), lanes_left(t.columns, v * W));
        }
}

template <int ROWS>
void multiply_code_rows(const CodeTile& t, int rows) {
    if (rows != ROWS) {
        if constexpr (ROWS > 1) multiply_code_rows<ROWS - 1>(t, rows);
        return;
    }
    alignas(64) Word sums[ROWS * NR];
    const auto strip = [&](Index c) { return t.strip + c * (t.depth + 3) * W; };
    const auto panel = [&](Index c) { return t.panel + c * (t.depth + 1) * NR; };
    // A sum that began at +0 is not -0: one level of partials adds nothing to it.
    if (t.only && t.groups == 1) return multiply_group<ROWS, true, true>(t, strip(0), panel(0), sums);
    multiply_group<ROWS, true, false>(t, strip(0), panel(0), sums);
    for (Index c = 1; c + 1 < t.groups; ++c) multiply_group<ROWS, false, false>(t, strip(c), panel(c), sums);
    if (t.only) return multiply_group<ROWS, false, true>(t, strip(t.groups - 1), panel(t.groups - 1), sums);
    if (t.groups > 1) multiply_group<ROWS, false, false>(t, strip(t.groups - 1), panel(t.groups - 1), sums);
    for (int i = 0; i < ROWS; ++i)
        for (int v = 0; v < NV; ++v) {
            const int n = lanes_left(t.columns, v * W);
            Word* const out = t.out + i * t.out_row + v * W;
            const Float sum = load(sums + i * NR + v * W);
            if (n > 0) store_first(out, canonical(t.first ? sum : add(load_first(out, n), sum)), n);
        }
}

void run_qdot(const QdotPlan& plan, const QdotOperands& at, Word* out, const GemmPart& part, Word* scratch) {
    const Strips strips(part.m1 - part.m0);
    Word* const strip = scratch;
    Word* const panels = strip + qdot_strip_words(plan);
    const Index panel_words = groups_packed(plan) * (plan.words * UNITS + 1) * NR;
    CodeTile tile{strip, nullptr, nullptr, 0, plan.words * UNITS, plan.shape.out_m, true, plan.groups <= kGroupsAtOnce, 0};
    for (Index n0 = part.n0; n0 < part.n1; n0 += part.columns) {
        const Index n1 = n0 + part.columns < part.n1 ? n0 + part.columns : part.n1;
        for (Index c = 0; c < plan.groups; c += kGroupsAtOnce) {
            const Chain chain{c, c + kGroupsAtOnce < plan.groups ? c + kGroupsAtOnce : plan.groups};
            tile.groups = chain.end - chain.begin;
            tile.first = c == 0;
            for (Index n = n0; n < n1; n += NR) pack_code_panel(plan, at, chain, n, n1, panels + (n - n0) / NR * panel_words);
            for (Index s = 0; s < strips.count; ++s) {
                const Index m = part.m0 + strips.start(s);
                const int rows = strips.height(s);
                pack_code_strip(plan, at, chain, m, rows, strip);
                for (Index n = n0; n < n1; n += NR) {
                    tile.panel = panels + (n - n0) / NR * panel_words;
                    tile.out = out + m * plan.shape.out_m + n;
                    tile.columns = static_cast<int>(n1 - n < NR ? n1 - n : NR);
                    multiply_code_rows<MR>(tile, rows);
                }
            }
        }
    }
}
