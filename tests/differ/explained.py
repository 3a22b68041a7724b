"""Branches of the planner's sources that no case can take, each with what rules it out; a covered run states them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.differ.builds import KERNELS, ROOT
from tests.differ.counts import Counts


@dataclass(frozen=True)
class Explained:
    """Ways out of a line that nothing takes."""

    file: str
    text: str
    """A part of the line that stands there once."""
    branches: int
    why: str


EXPLAINED = (
    Explained(
        "planner.cpp", "if (reason.empty()) return schedule;", 1, "the planner's own check has found a plan unsound"
    ),
    Explained("planner.cpp", "} catch (const OverBudget&) {", 1, "the same"),
    Explained(
        "planner.cpp", 'throw std::logic_error("no schedule: " + why)', 1, "the check has found even the plain one so"
    ),
    Explained(
        "planner.cpp",
        "if (!read[i] && is_copy(program.ops[i]) && std::holds_alternative<std::monostate>(schedule.fused[i])) {",
        1,
        "a copy that a group ends with is in its rows' order, so products have seen through it; others still read it",
    ),
    Explained(
        "quants.cpp",
        "if (op.kind != Kind::kQuant || !op.wants_codes() || op.p0 != words) return {};",
        1,
        "codes are whole numbers by the rules of a Program, and scales are not",
    ),
    Explained(
        "quants.cpp",
        "return op.p0 >= 2 && !axes.extents.empty()",
        1,
        "what is read through a copy has a stride of 1: where that is not k's, it is an axis of the rows",
    ),
    Explained(
        "strips.cpp",
        "while (covered < op.extents[e] && first > 0 && !matched[first - 1])",
        1,
        "no view reaches outside of its source; this keeps the loop inside of the axes if one does",
    ),
    Explained("multiply.cpp", "}();", 1, "two threads ask for the cache's size at once, the first time"),
    Explained(
        "loops.cpp",
        "if (!std::equal(wanted.begin(), wanted.end(), got(j))) return false;",
        1,
        "a compiler has made code of other bits",
    ),
)


@dataclass(frozen=True)
class Reached:
    """Branches of a source: taken, explained, and all."""

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
    """Counts of a source's branches, and its lines with one that is neither taken nor explained."""
    text = (ROOT / KERNELS / file).read_text().splitlines()
    never = Counter(line for (line, *_), count in counts.branches.items() if not count)
    explained, left = 0, []
    missing = counts.missing()
    for line, times in sorted(never.items()):
        due = sum(reason.branches for reason in EXPLAINED if reason.file == file and reason.text in text[line - 1])
        explained += min(due, times)
        if times > due:
            left.append(f"{line}: {' '.join(missing[line])} | {text[line - 1].strip()[:150]}")
    taken = sum(count > 0 for count in counts.branches.values())
    return Reached(taken, explained, len(counts.branches)), left
