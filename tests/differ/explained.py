"""Branches of the planner's sources that no case can take, with the reason; a covered run compares them with its
counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.differ.builds import KERNELS, ROOT
from tests.differ.counts import Counts


@dataclass(frozen=True)
class Explained:
    """Exits of a line that are never taken."""

    file: str
    text: str
    """A text that occurs once in the source and ends in the line."""
    branches: int
    why: str

    def line(self, source: str) -> int:
        """Returns the number of the line."""
        return source[: source.index(self.text) + len(self.text)].count("\n") + 1


WHOLE = "what a run makes is whole for each of its batches, as the steps before were taken so"
APART = (
    "it is asked of groups whose products differ by batch: each wide member of those is a map or a product that it has"
)

EXPLAINED = (
    # --- the plan as a whole
    Explained(
        "plan/schedule.cpp",
        "if (reason.empty()) return schedule;",
        1,
        "the planner's own check has found a plan unsound",
    ),
    Explained("plan/schedule.cpp", "} catch (const OverBudget&) {", 1, "the same"),
    Explained(
        "plan/schedule.cpp",
        'throw std::logic_error("no schedule: " + why)',
        1,
        "the check has found even the plain one so",
    ),
    Explained("multiply.cpp", "}();", 1, "two threads ask for the cache's size at once, the first time"),
    # --- what the decoder lets in
    Explained(
        "plan/dots.cpp",
        "if (op.mode != static_cast<int>(FoldMode::kDot) || op.k > kChunk * kChunk) return std::nullopt;",
        1,
        "the decoder gives two operands to dots alone",
    ),
    Explained(
        "plan/views.cpp",
        "static_cast<Op>(op.instrs[0].op) == Op::MOV && op.instrs[0].a == 0;",
        1,
        "the first instruction of a map of one operand can read register 0 alone",
    ),
    Explained(
        "plan/views.cpp",
        "while (axis < n_axes && stride % row[axis] != 0) ++axis;",
        1,
        "the innermost axis of a copy has stride 1; a copy without axes is one word, which has no second place to read",
    ),
    Explained("plan/views.cpp", "if (axis == n_axes) return std::nullopt;", 1, "the same"),
    Explained(
        "plan/sums.cpp",
        "|| views[i].size() != 1 || views[i][0].tag != Tag::kOp) continue;",
        1,
        "a sum has one operand, and keeps one as long as it runs by itself",
    ),
    Explained(
        "plan/strip_axes.cpp",
        "while (covered < op.extents[e] && first > 0 && !matched[first - 1])",
        1,
        "no view reaches outside of its source; this keeps the loop inside of the axes if one does",
    ),
    # --- what runs in which form
    Explained(
        "plan/products.cpp",
        "if (!read[i] && is_copy(program.ops[i]) && schedule.alone(i)) {",
        1,
        "a copy that a group ends with is in its rows' order, so products have seen through it; others still read it",
    ),
    Explained(
        "plan/loops.cpp",
        "candidate[i] = program.ops[i].kind == Kind::kMap && !program.ops[i].instrs.empty() &&",
        1,
        "folds alone become scatters",
    ),
    Explained(
        "plan/loops.cpp",
        "!std::holds_alternative<ScatterPlan>(schedule.fused[i]) &&",
        1,
        "the one map that a quant absorbs is read by quants that it absorbs, too, so that it is not in the order",
    ),
    Explained(
        "plan/batches.cpp",
        "if (qdot && schedule_.alone(own)) return qdot->plan.shape.batches;",
        1,
        "scatters are dots, and no group has a product of codes as a member",
    ),
    Explained(
        "plan/quants.cpp", "if (op.kind != Kind::kQuant || taken[i]) continue;", 1, "scatters take maps and folds alone"
    ),
    Explained("plan/quants.cpp", "if (op.kind != Kind::kConcat || taken[r] ||", 1, "the same"),
    Explained(
        "plan/quants.cpp",
        "if (low < 0 || done[static_cast<std::size_t>(low)]) continue;",
        1,
        "what quantises a rest comes behind the codes that it is the rest of, and has one rest",
    ),
    Explained(
        "plan/views.cpp",
        "return view.tag == Tag::kOp && product(extents) ==",
        1,
        "its callers have looked: it is asked of views of an op alone",
    ),
    Explained(
        "plan/quants.cpp",
        "return op.p0 >= 2 && !axes.extents.empty()",
        1,
        "what is read through a copy has a stride of 1: where that is not k's, it is an axis of the rows",
    ),
    Explained(
        "multiply.cpp", "if (!plan.b_runs.length || plan.begun) return false;", 1, "strips alone go on, without runs"
    ),
    # --- axes that were cut before
    Explained(
        "plan/quants.cpp",
        "return found && due && *found == *due;",
        2,
        "the axes are cut wherever the map's are and rows, groups, words and lanes begin",
    ),
    Explained(
        "plan/strip_matcher.cpp",
        "if (axes_.rows.size() < 2 || axes_.rows.back() != axes_.columns) return false;",
        1,
        "the last extent of a product that begins a group is above 1, so it is the last of these",
    ),
    Explained(
        "plan/strip_matcher.cpp",
        "if (!found || view.offset != 0 || (tile && !axes_.is_tile(op))) return false;",
        1,
        "the rows have just been cut where the map's axes are",
    ),
    Explained("plan/strip_axes.cpp", "if (!found) return false;", 1, "the rows are the product's own axes"),
    Explained("plan/strip_axes.cpp", "strides.push_back(*found);\n    }", 1, "the same"),
    Explained(
        "plan/strip_axes.cpp",
        "if (!a_strides || !b_strides || a.tag == Tag::kIota || b.tag == Tag::kIota) return std::nullopt;",
        1,
        "the axes of an op fit those of the rows for both of its operands or for none",
    ),
    Explained("plan/batches.cpp", "if (all % batches != 0 || words % batches != 0) return false;", 2, WHOLE),
    Explained("plan/batches.cpp", "if (!strides) return false;", 1, "the axes are cut wherever the op's are"),
    Explained(
        "plan/batches.cpp",
        "if (rows % batches != 0 || plan.axes == 0) return false;",
        1,
        "no axes are one row, and no batches",
    ),
    Explained("plan/batches.cpp", "if (words % batches != 0) return false;", 1, WHOLE),
    Explained(
        "plan/batches.cpp",
        "if (extents[ax] > 1 && strides[ax]",
        1,
        "axes of one are dropped where the product is planned",
    ),
    Explained(
        "plan/loops.cpp",
        "if (!extents) continue;",
        1,
        "an op has at most eight axes, and no cuts but its own",
    ),
    Explained("plan/loops.cpp", "ordinal.push_back(count);\n        }", 1, "the same"),
    Explained(
        "plan/loops.cpp",
        "Index room = gathers || plan.flat ? kBlock : kLoopBlock;",
        1,
        "operands of a loop of short rows are gathered but for single words, and with these alone there is one axis",
    ),
    # --- groups of rows
    Explained(
        "plan/strip_matcher.cpp",
        "for (std::size_t axis = axes_.rows.size() - 1; axis-- > 0 && b[axis] == 0;)",
        1,
        "products that differ by batch have a stride along one of these axes",
    ),
    Explained("plan/strip_matcher.cpp", "per_batch_ = per_batch_ || other.per_batch_;", 1, APART),
    Explained(
        "plan/strip_matcher.cpp",
        "if (other.is(view, Role::kTile) && !recompute(other, view.index)) return false;",
        2,
        APART,
    ),
    Explained(
        "plan/strip_matcher.cpp",
        "if (found == other.members_.end() || found->kind == MemberKind::kFold) return false;",
        3,
        APART,
    ),
    Explained(
        "plan/strips.cpp",
        "|| !group.recompute(forward, tile)) return std::nullopt;",
        1,
        APART,
    ),
    Explained(
        "plan/strip_matcher.cpp",
        "if (!plan_->schedule.needed[static_cast<std::size_t>(i)] || role(i) != Role::kNone) continue;",
        1,
        "ops get a role in their order, and a group grows from behind the last one that has any",
    ),
    Explained(
        "plan/strip_groups.cpp",
        "if (reader.kind == MemberKind::kMap && reader.tile) own.inlined_by = static_cast<int>(readers[m][0]);",
        1,
        "a map that reads a wide member at its own place is wide",
    ),
    Explained("plan/strip_masks.cpp", "switch (m.kind) {", 1, "a member is of one of five kinds, and all are listed"),
    Explained("strips_run.cpp", "switch (group_.members[m].kind) {", 1, "the same"),
    Explained("strips_run.cpp", "switch (own.mode) {", 1, "a fold is of one of five modes, and all are listed"),
    Explained(
        "strips_run.cpp",
        "const Index step = masked && group_.masked ? group_.block_rows : group_.columns;",
        1,
        "a group without masks is not run as one with masks",
    ),
    # --- batches
    Explained(
        "plan/batches.cpp",
        "const bool reads = reads_shares(step.sources[0], [&]",
        1,
        "not a condition of ours: what is made for the first of several calls is always there to be destroyed",
    ),
    Explained(
        "plan/batches.cpp",
        "for (std::size_t at = begin; at < end && !again; ++at) {",
        1,
        "where a loop is cut the run ends, so that the first condition ends the search",
    ),
    Explained(
        "plan/batches.cpp",
        "if (found == made_.end() || !found->second ||",
        1,
        "every step that a run has taken has named what it makes",
    ),
    Explained(
        "plan/quants.cpp",
        "return matches(part(0), joined(rows, quant.k), values) &&",
        2,
        "not a condition of ours: what is made for the first of several calls is always there to be destroyed",
    ),
    # --- ops that are computed again
    Explained(
        "plan/recompute.cpp",
        "return kept_[read] || (!readers_[read].empty() &&",
        1,
        "it is asked of what an op reads that is itself read",
    ),
    Explained(
        "plan/recompute.cpp",
        "if (!again || made.elements != elements || kept_[read] || first_[read] >= 0 ||",
        1,
        "an output is in memory anyway, which was asked before",
    ),
)


@dataclass(frozen=True)
class Reached:
    """Number of branches of a source: taken, explained, and all."""

    taken: int = 0
    explained: int = 0
    all: int = 0

    def __add__(self, other: Reached) -> Reached:
        return Reached(self.taken + other.taken, self.explained + other.explained, self.all + other.all)

    def __str__(self) -> str:
        share = 100 * self.taken / max(1, self.all)
        both = 100 * (self.taken + self.explained) / max(1, self.all)
        return f"branches {self.taken}/{self.all} ({share:.1f} %), {self.explained} explained ({both:.1f} %)"


def reached(counts: Counts, file: str) -> tuple[Reached, list[str]]:
    """Compares a source's counts with the explanations; returns the result and the lines with an unexplained branch, or
    a taken explained one.
    """
    source = (ROOT / KERNELS / file).read_text()
    text = source.splitlines()
    due_at: Counter[int] = Counter()
    for reason in EXPLAINED:
        if reason.file == file:
            due_at[reason.line(source)] += reason.branches
    never = Counter(line for (line, *_), count in counts.branches.items() if not count)
    explained, left = 0, []
    missing = counts.missing()
    for line, times in sorted(never.items()):
        explained += min(due_at[line], times)
        if times > due_at[line]:
            left.append(f"{line}: {' '.join(missing[line])} | {text[line - 1].strip()[:150]}")
    left += [
        f"{line}: explained, and taken | {text[line - 1].strip()}" for line, due in due_at.items() if never[line] < due
    ]
    taken = sum(count > 0 for count in counts.branches.values())
    return Reached(taken, explained, len(counts.branches)), left
