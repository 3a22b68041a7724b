// The passes of planning, in their order (schedule.cpp). Each changes the form, the order or the place of some ops and never a bit.
//
// They share an op's step by itself (steps.hpp), views moved from one tensor to another one (views.hpp), and axes (axes.hpp).
#pragma once

#include <vector>

#include "plan/budget.hpp"
#include "plan/schedule.hpp"

namespace lockstep {

// Outputs that would wait long are computed again where they are read late (recompute.cpp).
Recomputed recompute(const Program& program);

// What a step reads and leaves in memory, by op.
struct Traffic {
    std::vector<int> reads, writes;
};

// What a pass hands on to the next one.
struct Planner {
    Program program;  // the planned one, with the axes that steps walk: rows of quants are cut, maps are permuted
    Views views;      // of each op as its step reads them; the ops' own stay those of the Program
    Schedule schedule;
    Budget& budget;

    Planner(Recomputed planned, Budget& budget);

    // Every op gets a step of its own; folds and quants read through copies (steps.cpp).
    void plan_steps();
    // The gradient of an embedding adds rows instead of multiplying by a one-hot matrix (scatters.cpp).
    void find_scatters();
    // Quants of one tensor, of what they leave of it, and copies of their codes become one step (quants.cpp).
    void find_quants();
    // Ops that no output depends on are dropped (placement.cpp).
    void choose_results();
    // Attention, softmax and cross-entropy: ops that share rows run a row block at a time (strips.cpp).
    void find_strips();
    // Products read transposed and windowed operands where copies took them from (products.cpp).
    void read_products_in_place();
    // A map that one fold alone reads is stored in the order in which its own operands lie (layouts.cpp).
    void choose_layouts();
    // A sum reads the pieces of which a copy or a product would be made where they lie (sums.cpp).
    void read_sums_in_place();
    // A concat that is one part of another concat is written there at once (concats.cpp).
    void join_concats();
    // Maps over the same elements may run in one compiled loop (loops.cpp).
    void find_loops();
    // What quants alone read late is quantised early: its codes wait in its place (early_quants.cpp).
    void quantise_early();
    // Steps between products of codes are taken a batch at a time (batches.cpp).
    void find_batches();
    // Results are placed in memory: each is there from its step to its last reader's (placement.cpp).
    void place_results();

    // What passes ask about the steps of the order as it is (traffic.cpp).
    Traffic traffic(int op) const;
    // How often the steps read each op's output.
    std::vector<int> count_reads() const;
    // Each step's position; a loop's steps read at the position of its last member.
    std::vector<std::size_t> positions() const;
    std::size_t reads_at(int op, const std::vector<std::size_t>& positions) const;
};

}  // namespace lockstep
