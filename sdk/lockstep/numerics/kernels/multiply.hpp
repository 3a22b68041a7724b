// Matrix products on threads: what is packed when, and who computes which tiles.
#pragma once

#include <span>

#include "buffers.hpp"
#include "kernels.hpp"

namespace lockstep {

// The whole product on as many threads as there are workspaces; the bits do not depend on how it is cut.
void multiply(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const Kernels& kernels, std::span<Workspace> workspaces);

void multiply_codes(const QdotPlan& plan, const QdotOperands& at, Word* out, const Kernels& kernels, std::span<Workspace> workspaces);

// One batch of it on this thread; `scratch` holds multiply_codes_scratch() words.
void multiply_codes_alone(const QdotPlan& plan, const QdotOperands& at, Word* out, const Kernels& kernels, Index batch, Word* scratch);
Index multiply_codes_scratch(const QdotPlan& plan, const Kernels& kernels);

// The whole product on this thread; `scratch` holds multiply_scratch() words, those of a plan with as many columns and terms or more.
void multiply_alone(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const Kernels& kernels, Word* scratch);
Index multiply_scratch(const GemmPlan& plan, const Kernels& kernels);

}  // namespace lockstep
