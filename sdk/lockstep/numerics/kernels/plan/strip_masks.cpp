// Which columns of a group's tiles its masks leave.
#include <algorithm>

#include "apply_op.hpp"
#include "kernels.hpp"
#include "plan/strip_groups.hpp"

namespace lockstep {
namespace {

constexpr Index kMostMaskCells = 1 << 24;  // that are looked at to find what a mask leaves
constexpr Index kDear = 16;                // operations of a dear instruction

// What a register holds in the dead columns of a row.
enum class Dead { kOneValue, kOfColumn, kUnknown };  // kOfColumn: a function of row and column alone

// The columns that the masks leave, row by row: nothing is computed beyond them. A mask is a SELECT by a condition on row and
// column between a known value and one that may be anything.
class Masks {
public:
    Masks(StripGroup& group, Budget& budget, MaskCache& cache) : group_(group), budget_(budget), cache_(cache) {}

    // Live columns of each row; empty if everything has to be computed.
    Indices find() {
        if (group_.rows > kMostMaskCells / group_.columns) return {};
        budget_.hold(group_.rows, sizeof(Index));
        live_.assign(static_cast<std::size_t>(group_.rows), 0);
        bool any = false;
        for (StripMember& m : group_.members) {
            if (!acceptable(m)) return {};
            if (m.kind != MemberKind::kMap || !m.tile) continue;
            any = masks(m) || any;
        }
        return any ? live_ : Indices{};
    }

private:
    bool known(const StripOperand& o) const { return o.member >= 0 && group_.members[static_cast<std::size_t>(o.member)].dead_known; }
    bool from_product(const StripOperand& o) const {
        return o.member >= 0 && group_.members[static_cast<std::size_t>(o.member)].kind == MemberKind::kProducer;
    }

    // Whether a member can do without the dead columns of what it reads.
    bool acceptable(const StripMember& m) const {
        if (m.tile && m.buffer < 0) return false;
        switch (m.kind) {
        case MemberKind::kMap:
        case MemberKind::kProducer: return true;
        case MemberKind::kRowConsumer:
        case MemberKind::kColumnConsumer: return known(m.operands[0]);
        case MemberKind::kFold: break;
        }
        if (m.mode != FoldMode::kDot) return known(m.operands[0]);
        const StripOperand &a = m.operands[0], &b = m.operands[1];
        return (known(a) && (known(b) || from_product(b))) || (known(b) && from_product(a));
    }

    Dead operand_state(const StripOperand& o) const {
        if (o.member >= 0) return known(o) ? Dead::kOneValue : Dead::kUnknown;
        if (o.column == 0) return Dead::kOneValue;
        return o.source.tag == Tag::kIota && same_in_batches(o) ? Dead::kOfColumn : Dead::kUnknown;
    }
    static bool same_in_batches(const StripOperand& o) {
        return std::all_of(o.batch.begin(), o.batch.end(), [](Index s) { return s == 0; });
    }

    // Whether the map masks.
    bool masks(StripMember& m) {
        std::vector<Dead> state;
        for (const StripOperand& o : m.operands) state.push_back(operand_state(o));
        const std::vector<bool> pure = pure_registers(m);
        bool any = false;
        for (std::size_t i = 0; i < m.instrs.size(); ++i) {
            const Instr& in = m.instrs[i];
            const int arguments = arity(in.op);
            const auto of = [&](int argument, std::uint8_t reg) { return argument < arguments ? state[reg] : Dead::kOneValue; };
            const Dead a = of(0, in.a), b = of(1, in.b), c = of(2, in.c);
            Dead own = std::max({a, b, c});
            if (static_cast<Op>(in.op) == Op::SELECT && a == Dead::kOfColumn && own == Dead::kUnknown && std::min(b, c) == Dead::kOneValue &&
                pure[in.a]) {
                mark(m, pure, in.a, b == Dead::kUnknown);
                own = Dead::kOneValue;
                any = true;
            }
            state.push_back(own);
        }
        m.dead_known = state.back() == Dead::kOneValue;
        return any;
    }

    // The registers that are computed from immediates alone and iotas that are the same in every batch.
    static std::vector<bool> pure_registers(const StripMember& m) {
        std::vector<bool> pure;
        for (const StripOperand& o : m.operands) pure.push_back(o.member < 0 && o.source.tag == Tag::kIota && same_in_batches(o));
        for (const Instr& in : m.instrs) {
            const int arguments = arity(in.op);
            pure.push_back((arguments < 1 || pure[in.a]) && (arguments < 2 || pure[in.b]) && (arguments < 3 || pure[in.c]));
        }
        return pure;
    }

    // Extends each row's live columns to the last one whose condition is `live`.
    void mark(const StripMember& m, const std::vector<bool>& pure, std::size_t condition, bool live) {
        const auto [found, made] = cache_.try_emplace(key_of(m, pure, condition, live));
        if (made) found->second = ends(m, pure, condition, live);
        for (std::size_t row = 0; row < live_.size(); ++row) live_[row] = std::max(live_[row], found->second[row]);
    }

    // All that the ends depend on.
    std::vector<Index> key_of(const StripMember& m, const std::vector<bool>& pure, std::size_t condition, bool live) const {
        std::vector<Index> key{group_.rows, group_.columns, group_.inner_rows, static_cast<Index>(condition), live};
        key.insert(key.end(), group_.lead.begin(), group_.lead.end());
        for (std::size_t reg = 0; reg <= condition; ++reg) {
            if (!pure[reg]) continue;
            key.push_back(static_cast<Index>(reg));
            if (reg < m.operands.size()) {
                const StripOperand& o = m.operands[reg];
                key.insert(key.end(), {o.source.offset, o.row, o.column});
                key.insert(key.end(), o.lead.begin(), o.lead.end());
            } else {
                const Instr& in = m.instrs[reg - m.operands.size()];
                key.insert(key.end(), {in.op, in.a, in.b, in.c, in.imm});
            }
        }
        return key;
    }

    // Per row, the last column whose condition is `live`, and one more.
    Indices ends(const StripMember& m, const std::vector<bool>& pure, std::size_t condition, bool live) const {
        const f32::FloatEnvironment environment;
        const auto columns = static_cast<std::size_t>(group_.columns);
        Index operations = 1;
        for (std::size_t reg = 0; reg <= condition; ++reg)
            if (pure[reg]) operations += reg >= m.operands.size() && is_dear(m.instrs[reg - m.operands.size()].op) ? kDear : 1;
        budget_.spend(group_.rows * group_.columns, operations);
        budget_.hold(group_.rows, sizeof(Index));
        std::vector<std::vector<Word>> values(condition + 1, std::vector<Word>(columns));
        Indices found(static_cast<std::size_t>(group_.rows), 0);
        for (Index row = 0; row < group_.rows; ++row) {
            for (std::size_t reg = 0; reg <= condition; ++reg) {
                if (!pure[reg]) continue;
                std::vector<Word>& value = values[reg];
                if (reg < m.operands.size()) {
                    const StripOperand& o = m.operands[reg];
                    const Index start = o.source.offset + row_offset(o, group_.lead, group_.inner_rows, row);
                    for (std::size_t j = 0; j < columns; ++j) value[j] = static_cast<Word>(start + static_cast<Index>(j) * o.column);
                    continue;
                }
                const Instr& in = m.instrs[reg - m.operands.size()];
                if (static_cast<Op>(in.op) == Op::IMM) std::fill(value.begin(), value.end(), in.imm);
                else kScalarKernels.apply_op(in.op, values[in.a].data(), values[in.b].data(), values[in.c].data(), value.data(), columns);
            }
            Index& end = found[static_cast<std::size_t>(row)];
            for (Index j = group_.columns; j > end; --j)
                if ((values[condition][static_cast<std::size_t>(j - 1)] != 0) == live) end = j;
        }
        return found;
    }

    StripGroup& group_;
    Budget& budget_;
    MaskCache& cache_;
    Indices live_;
};

}  // namespace

Indices live_columns(StripGroup& group, Budget& budget, MaskCache& masks) { return Masks(group, budget, masks).find(); }

}  // namespace lockstep
