// What planning may cost. Strangers write Programs: the best schedule of some takes days to find, or more memory than their tensors.
#pragma once

#include "plans.hpp"

namespace lockstep {

// Thrown by Budget; the plain schedule runs instead.
struct OverBudget {};

class Budget {
public:
    // About as many operations as there are words times `times`.
    void spend(Index words, Index times = 1) { take(operations_, words, times); }
    void hold(Index things, Index bytes) { take(bytes_, things, bytes); }

private:
    // Some seconds; planning a Llama of 8 B parameters takes 0.15.
    static constexpr Index kOperations = Index{1} << 32;
    static constexpr Index kBytes = Index{1} << 28;

    static void take(Index& left, Index count, Index each) {
        Index all;
        if (__builtin_mul_overflow(count, each, &all) || all > left) throw OverBudget{};
        left -= all;
    }

    Index operations_ = kOperations, bytes_ = kBytes;
};

}  // namespace lockstep
