// Whether compiled code is a loop's.
#include "loops.hpp"

#include <algorithm>

#include "apply_op.hpp"
#include "kernels.hpp"

namespace lockstep {
namespace {

// Numbers of every kind: mostly near 1, small integers, one word in eight special, one in eight any word at all.
class Probe {
public:
    explicit Probe(std::uint64_t seed) : state_(seed * 2 + 1) {}
    Word operator()() {
        static constexpr Word kSpecial[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff, 0x7f800000, 0xff800000, 0x80000000, 0,
                                            1,          0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800000, 31};
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        const Word x = static_cast<Word>(state_ >> 32), kind = static_cast<Word>(state_ >> 20) & 7;
        if (kind == 0) return kSpecial[x % 16];
        if (kind == 1) return x;
        if (kind == 2) return x % 64;
        return (x & 0x81ffffff) | 0x3e000000;
    }

private:
    std::uint64_t state_;
};

}  // namespace

bool same_function(const Loop& one, const Loop& other) {
    if (one.plan.operands != other.plan.operands || one.plan.streams != other.plan.streams || one.instrs != other.instrs || one.results != other.results)
        return false;
    return std::equal(one.plan.operand, one.plan.operand + one.plan.operands, other.plan.operand, [](const LoopOperand& a, const LoopOperand& b) {
        return a.form == b.form && (a.form != Form::kIota || a.step == b.step);
    });
}

bool computes(LoopFunction function, const Loop& loop, const Kernels& kernels) {
    constexpr Index kRows = 3, kColumns = 277, kCells = kRows * kColumns;
    constexpr std::size_t kLine = 16, kPitch = (kCells + kLine - 1) / kLine * kLine;
    constexpr int kTrials = 16;
    const LoopPlan& plan = loop.plan;
    const f32::FloatEnvironment environment;
    const auto registers = static_cast<std::size_t>(plan.operands) + loop.instrs.size();
    std::vector<std::vector<Word>> due(registers, std::vector<Word>(kCells));
    std::vector<Word> cells(loop.results.size() * kPitch + kLine);  // the outputs, each from the start of a line on
    std::size_t shift = 0;
    while (reinterpret_cast<std::uintptr_t>(cells.data() + shift) % (kLine * sizeof(Word)) != 0) ++shift;
    const auto got = [&](std::size_t j) { return cells.data() + shift + j * kPitch; };
    for (int trial = 0; trial < kTrials; ++trial) {
        Probe probe(static_cast<std::uint64_t>(trial));
        std::vector<std::vector<Word>> memory;
        const Word* in[kMaxLoopOperands];
        Index in_stride[kMaxLoopOperands], out_stride[kMaxLoopOutputs];
        Word* out[kMaxLoopOutputs];
        for (int v = 0; v < plan.operands; ++v) {
            const LoopOperand& operand = plan.operand[v];
            const Index stride = operand.form == Form::kElement ? kColumns : operand.form == Form::kUniform ? 0 : 1;
            memory.emplace_back(operand.form == Form::kElement ? kCells : kRows);
            std::generate(memory.back().begin(), memory.back().end(), probe);
            const std::vector<Word>& held = memory.back();
            for (Index r = 0; r < kRows; ++r)
                for (Index c = 0; c < kColumns; ++c)
                    due[static_cast<std::size_t>(v)][static_cast<std::size_t>(r * kColumns + c)] =
                        operand.form == Form::kIota ? held[0] + static_cast<Word>(r) + operand.step * static_cast<Word>(c)
                                                    : held[static_cast<std::size_t>(r * stride + (operand.form == Form::kElement ? c : 0))];
            in[v] = held.data();
            in_stride[v] = stride;
        }
        for (std::size_t i = 0; i < loop.instrs.size(); ++i) {
            const LoopInstr& instr = loop.instrs[i];
            std::vector<Word>& result = due[static_cast<std::size_t>(plan.operands) + i];
            const auto at = [&](int r) { return r < 0 ? nullptr : due[static_cast<std::size_t>(r)].data(); };
            if (static_cast<Op>(instr.op) == Op::IMM) std::fill(result.begin(), result.end(), instr.imm);
            else kernels.apply_op(instr.op, at(instr.a), at(instr.b), at(instr.c), result.data(), kCells);
        }
        for (std::size_t j = 0; j < loop.results.size(); ++j) {
            out[j] = got(j);
            out_stride[j] = kColumns;
        }
        function(in, in_stride, out, out_stride, kRows, kColumns);
        for (std::size_t j = 0; j < loop.results.size(); ++j) {
            const std::vector<Word>& wanted = due[static_cast<std::size_t>(loop.results[j])];
            if (!std::equal(wanted.begin(), wanted.end(), got(j))) return false;
        }
    }
    return true;
}

}  // namespace lockstep
