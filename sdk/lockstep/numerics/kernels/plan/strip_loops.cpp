// The loops of a group's maps.
#include <algorithm>

#include "plan/strip_groups.hpp"

namespace lockstep {
namespace {

// The operands and instructions of a map, and of those that it takes in, in one numbering.
class LoopOf {
public:
    LoopOf(const StripGroup& group, std::size_t m) : group_(group) {
        collect(m);
        fits_ = fits_ && operands_.size() <= kMaxLoopOperands;
        if (!fits_) return;
        const int result = emit(m);
        loop_.members = loop_.outputs = {static_cast<std::size_t>(group.members[m].op)};
        loop_.results = {result};
        loop_.plan.operands = static_cast<int>(operands_.size());
        loop_.plan.outputs = 1;
        loop_.plan.elements = group.batches * group.rows * group.columns;
        for (std::size_t v = 0; v < operands_.size(); ++v) loop_.plan.operand[v] = form_of(operands_[v]);
        fits_ = loop_.instrs.size() <= kMaxLoopInstrs;
    }
    bool fits() const { return fits_; }
    Loop& loop() { return loop_; }
    std::vector<StripOperand>& operands() { return operands_; }

private:
    bool taken_in(const StripOperand& o, std::size_t m) const {
        return o.member >= 0 && group_.members[static_cast<std::size_t>(o.member)].inlined_by == static_cast<int>(m);
    }

    void collect(std::size_t m) {
        for (const StripOperand& o : group_.members[m].operands) {
            if (taken_in(o, m)) collect(static_cast<std::size_t>(o.member));
            else operands_.push_back(o);
            fits_ = fits_ && (o.member >= 0 || o.source.tag == Tag::kIota || o.column == 0 || o.column == 1);
        }
    }

    // The register of the map's result; operands are met in the order of collect().
    int emit(std::size_t m) {
        const StripMember& own = group_.members[m];
        std::vector<int> registers;
        for (const StripOperand& o : own.operands) registers.push_back(taken_in(o, m) ? emit(static_cast<std::size_t>(o.member)) : next_++);
        for (const Instr& in : own.instrs) {
            const int arguments = arity(in.op);
            const auto at = [&](int k, std::uint8_t r) { return arguments > k ? registers[r] : -1; };
            loop_.instrs.push_back(LoopInstr{in.op, at(0, in.a), at(1, in.b), at(2, in.c), in.imm});
            registers.push_back(static_cast<int>(operands_.size() + loop_.instrs.size()) - 1);
        }
        return registers.back();
    }

    static LoopOperand form_of(const StripOperand& o) {
        LoopOperand found{};
        found.iota = o.member < 0 && o.source.tag == Tag::kIota;
        found.step = static_cast<Word>(o.column);
        const auto none = [](Index s) { return s == 0; };
        const bool one_per_batch = std::all_of(o.batch.begin(), o.batch.end(), none) && std::all_of(o.lead.begin(), o.lead.end(), none);
        if (o.member >= 0 || (!found.iota && o.column == 1)) found.form = Form::kElement;
        else if (o.column == 0 && o.row == 0 && one_per_batch) found.form = Form::kUniform;
        else found.form = found.iota ? Form::kIota : Form::kRow;
        return found;
    }

    const StripGroup& group_;
    std::vector<StripOperand> operands_;
    Loop loop_{};
    int next_ = 0;
    bool fits_ = true;
};

}  // namespace

void add_strip_loops(StripGroup& group, std::vector<Loop>& loops) {
    for (std::size_t m = 0; m < group.members.size(); ++m) {
        StripMember& own = group.members[m];
        if (own.kind != MemberKind::kMap || !own.tile || own.instrs.empty()) continue;
        LoopOf found(group, m);
        if (!found.fits()) continue;
        own.loop = static_cast<int>(loops.size());
        own.loop_operands = std::move(found.operands());
        loops.push_back(std::move(found.loop()));
    }
}

}  // namespace lockstep
