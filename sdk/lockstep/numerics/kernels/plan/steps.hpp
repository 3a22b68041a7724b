// The step of an op by itself, with its operands at the views that are given.
#pragma once

#include <optional>
#include <vector>

#include "plan/schedule.hpp"

namespace lockstep {

// A map over `extents` whose operands' strides are those of `views` and whose output has `out_strides`.
MapPlan plan_map(const std::vector<Index>& extents, const std::vector<Index>& out_strides, const std::vector<View>& views,
                 const std::vector<Instr>& instrs);
// Registers that an instruction does not read become copies of one that it does: planning need not know arities.
std::vector<Instr> with_read_registers_only(const Descriptor& op);

MapStep plan_map_step(const Descriptor& op);
MapStep plan_concat(const Descriptor& op);
// A sequential chain for each output.
FoldStep plan_fold(const Descriptor& op, const std::vector<View>& views);
// A product, a chain or, of what is nowhere in memory, neither.
Step plan_fold_step(const Descriptor& op, const std::vector<View>& views);
// A dot as a matrix product if the innermost output axis belongs to one operand and some other axis to the other one.
std::optional<GemmStep> plan_gemm(const Descriptor& op, const std::vector<View>& views);
// A dot of codes as a matrix product if one operand, codes and scales, is the same along the innermost output axis.
Step plan_qdot_step(const Program& program, const Descriptor& op);
// Op `index`, a quant.
QuantStep plan_quant(const Descriptor& op, int index, const View& view);
// Whether a quant may read its operand there: its k is contiguous, or its rows lie side by side.
bool quantises(const Descriptor& op, const View& view);
// Op `index` where the Program has its operands.
Step plan_step(const Program& program, std::size_t index);

}  // namespace lockstep
