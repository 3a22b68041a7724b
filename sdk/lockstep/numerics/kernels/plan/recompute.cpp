// Which ops are computed twice.
#include <algorithm>

#include "apply_op.hpp"
#include "plan/passes.hpp"

namespace lockstep {
namespace {

constexpr int kLong = 64;               // ops that stand between two readers of what waits long
constexpr Index kLeastWords = 1 << 12;  // of an output that is worth it
constexpr Index kSmall = 8;             // an operand this many times smaller may be kept longer for it
constexpr std::size_t kMostInstrs = 4;  // of a map that is copied by itself
constexpr std::size_t kMostChain = 8;   // ops that are copied together
constexpr Index kMostTerms = 256;       // of a product that is

bool is_cheap(const Descriptor& op) {
    if (op.instrs.size() > kMostInstrs) return false;
    return std::none_of(op.instrs.begin(), op.instrs.end(), [](const Instr& instr) { return is_dear(instr.op); });
}

class Copies {
public:
    explicit Copies(const Program& program) : program_(program), readers_(program.ops.size()), kept_(program.ops.size(), false), first_(program.ops.size(), -1) {
        for (const Alias& alias : program.outputs)
            if (alias.kind == 1) kept_[static_cast<std::size_t>(alias.index)] = true;
        std::vector<bool> needed = kept_;
        for (std::size_t i = program.ops.size(); i-- > 0;) {
            if (!needed[i]) continue;
            for (const int read : ops_read(program.ops[i].views)) {
                needed[static_cast<std::size_t>(read)] = true;
                readers_[static_cast<std::size_t>(read)].push_back(static_cast<int>(i));
            }
        }
        for (std::vector<int>& by : readers_) std::reverse(by.begin(), by.end());
    }

    // One per op: the first reader of its copy, or -1.
    std::vector<int> find() {
        for (std::size_t i = 0; i < program_.ops.size(); ++i) {
            const std::vector<int>& by = readers_[i];
            const Descriptor& own = program_.ops[i];
            if (kept_[i] || by.size() < 2 || own.kind != Kind::kMap || own.instrs.empty() || own.elements < kLeastWords) continue;
            std::size_t late = 1;
            for (std::size_t r = 2; r < by.size(); ++r)
                if (by[r] - by[r - 1] > by[late] - by[late - 1]) late = r;
            if (by[late] - by[late - 1] < kLong) continue;
            const std::vector<int> readers(by.begin() + static_cast<std::ptrdiff_t>(late), by.end());
            if (std::all_of(readers.begin(), readers.end(), [&](int reader) { return quantises(reader); })) continue;
            std::vector<int> chain;
            if (is_cheap(own) && is_worth(own, readers)) first_[i] = readers[0];
            else if (add_chain(static_cast<int>(i), own.elements, readers[0], chain) && is_attention(chain))
                for (const int op : chain) first_[static_cast<std::size_t>(op)] = readers[0];
        }
        return first_;
    }

private:
    // What is quantised, by itself or as a copy, takes a quarter of the memory.
    bool quantises(int reader) const {
        const auto& by = readers_[static_cast<std::size_t>(reader)];
        if (program_.at(reader).kind == Kind::kQuant) return true;
        const bool copies = program_.at(reader).kind == Kind::kMap && program_.at(reader).views.size() == 1 && program_.at(reader).instrs.size() == 1 &&
                            static_cast<Op>(program_.at(reader).instrs[0].op) == Op::MOV;
        return copies && !by.empty() && std::all_of(by.begin(), by.end(), [&](int r) { return program_.at(r).kind == Kind::kQuant; });
    }

    // Whether the op's output, or its copy's, is in memory for the op `due` anyway.
    bool waits(std::size_t read, int due) const {
        return kept_[read] || (!readers_[read].empty() && readers_[read].back() >= due && first_[read] <= due);
    }

    // A map by itself reads one tensor of its size; one more if its only reader is a map over the same elements.
    bool is_worth(const Descriptor& map, const std::vector<int>& late) const {
        int large = 0;
        for (const View& view : map.views) {
            if (view.tag != Tag::kOp) continue;
            const auto read = static_cast<std::size_t>(view.index);
            if (program_.ops[read].elements * kSmall <= map.elements) continue;
            ++large;
            if (!waits(read, late[0])) return false;
        }
        const bool taken_in = late.size() == 1 && program_.at(late[0]).kind == Kind::kMap && program_.at(late[0]).elements == map.elements;
        return large <= (taken_in ? 2 : 1);
    }

    // Adds op i and the maps and products of codes, of as many elements, that have to be computed again for it.
    bool add_chain(int i, Index elements, int due, std::vector<int>& chain, std::size_t depth = 0) const {
        if (depth == kMostChain) return false;
        for (const View& view : program_.at(i).views) {
            if (view.tag != Tag::kOp || std::find(chain.begin(), chain.end(), view.index) != chain.end()) continue;
            const auto read = static_cast<std::size_t>(view.index);
            const Descriptor& made = program_.ops[read];
            if (made.elements * kSmall <= elements || waits(read, due)) continue;
            const bool again = (made.kind == Kind::kMap && !made.instrs.empty()) || made.is_qdot();
            if (!again || made.elements != elements || kept_[read] || first_[read] >= 0 || !add_chain(view.index, elements, due, chain, depth + 1)) return false;
        }
        chain.push_back(i);
        return chain.size() <= kMostChain;
    }

    // The probabilities of attention, from a short product for each head: its steps are taken a head at a time (batches.cpp), so that
    // none of them is in memory for all.
    bool is_attention(const std::vector<int>& chain) const {
        std::size_t products = 0;
        for (const int i : chain) {
            if (!program_.at(i).is_qdot()) continue;
            ++products;
            if (4 * program_.at(i).k * program_.at(i).p0 > kMostTerms) return false;
            for (std::size_t side = 0; side < 2; ++side) {
                const View& codes = program_.at(i).views[side];
                if (codes.tag != Tag::kOp || codes.strides[0] == 0) return false;
            }
        }
        return products == 1;
    }

    const Program& program_;
    std::vector<std::vector<int>> readers_;
    std::vector<bool> kept_;
    std::vector<int> first_;
};

}  // namespace

// Copied is what costs little beside what it saves: a cheap map that waits long while what it is computed from waits anyway, and
// attention's probabilities (Dao et al., "FlashAttention", 2022, section 3) where their product is one of codes.
Recomputed recompute(const Program& program) {
    const std::vector<int> first = Copies(program).find();
    const std::size_t n = program.ops.size();
    Recomputed result{program, {}, std::vector<int>(n), std::vector<int>(n, -1)};
    std::vector<std::vector<int>> before(n);
    for (std::size_t i = 0; i < n; ++i)
        if (first[i] >= 0) before[static_cast<std::size_t>(first[i])].push_back(static_cast<int>(i));
    result.program.ops.clear();
    const auto add = [&](int op, int reader) {
        Descriptor made = program.at(op);
        for (View& view : made.views) {
            if (view.tag != Tag::kOp) continue;
            const auto read = static_cast<std::size_t>(view.index);
            view.index = first[read] >= 0 && first[read] <= reader ? result.copy_of[read] : result.op_of[read];
        }
        result.original.push_back(op);
        result.program.ops.push_back(std::move(made));
        return static_cast<int>(result.original.size()) - 1;
    };
    for (std::size_t i = 0; i < n; ++i) {
        const auto reader = static_cast<int>(i);
        for (const int op : before[i]) result.copy_of[static_cast<std::size_t>(op)] = add(op, reader);
        result.op_of[i] = add(reader, reader);
    }
    for (Alias& alias : result.program.outputs)
        if (alias.kind == 1) alias.index = result.op_of[static_cast<std::size_t>(alias.index)];
    return result;
}

}  // namespace lockstep
