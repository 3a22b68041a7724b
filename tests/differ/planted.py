"""Planted one-line defects, as from a slip, that the generators must find.

All are compiled into one build, next to the right text; LOCKSTEP_PLANTED selects one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.differ.builds import Change

VARIABLE = "LOCKSTEP_PLANTED"


@dataclass(frozen=True)
class Defect:
    """A place in a kernel's source and its defective text."""

    name: str
    file: str
    before: str
    """Text that occurs once: an expression, or whole statements without declarations."""
    after: str
    kinds: tuple[str, ...] = ("layers", "anything", "strips")
    """Generators that must find it: those without torch, which takes seconds to import."""

    def change(self, number: int) -> Change:
        """Returns the change with both texts, one of which is selected at run time."""
        if self.before.endswith((";", "}")):
            both = f"if (kPlanted == {number}) {{ {self.after} }} else {{ {self.before} }}"
        else:
            both = f"(kPlanted == {number} ? ({self.after}) : ({self.before}))"
        return Change(self.file, self.before, both)


DECLARED = Change("plans.hpp", "using Index = std::int64_t;", "using Index = std::int64_t;\nextern const int kPlanted;")
DEFINED = Change(
    "plan/arena.cpp", "namespace lockstep {\nnamespace {", "#include <cstdlib>\n\nnamespace lockstep {\n"
    f'const int kPlanted = std::getenv("{VARIABLE}") ? std::atoi(std::getenv("{VARIABLE}")) : 0;\n\nnamespace {{',
)  # fmt: skip

MASKS = ("windows",)
FROM = "{places_.row + row, places_.row_run + row, places_.k_at + k, places_.k_run + k}"

DEFECTS = (
    Defect(
        "a place moved twice",
        "plans.hpp",
        f"if (placed()) return {{base, 0, 0, {FROM}, true}};",
        f"if (placed()) return {{base + row + k, 0, 0, {FROM}, true}};",
    ),
    Defect(
        "a panel packed from its chunk's first term",
        "gemm.inl",
        "operand.from(base, n, k + first)",
        "operand.from(base, n, k)",
    ),
    Defect(
        "a sum begun anew at each chunk", "turned.inl", "tile.before = k ? tile.out : zeros;", "tile.before = zeros;"
    ),
    Defect("the next run's row for a run's first", "turned.inl", "windows.row[g * RUN]", "windows.row[g]"),
    Defect(
        "the last row of a task left out",
        "multiply.cpp",
        "plan.m * (row + 1) / row_parts",
        "plan.m * (row + 1) / row_parts - (row + 1 < row_parts)",
    ),
    Defect(
        "another operand's stride from batch to batch",
        "multiply.cpp",
        "at.scale_b += i * plan.scale_b_batch[ax];",
        "at.scale_b += i * plan.scale_a_batch[ax];",
    ),
    Defect(
        "an offset forgotten where a copy is read in place",
        "plan/products.cpp",
        "copy.views[0].offset + offset",
        "copy.views[0].offset",
    ),
    Defect(
        "a reach beyond an axis allowed",
        "plan/views.cpp",
        "if (low[axis] < 0 || high[axis] >= axes.extents[axis]) return std::nullopt;",
        "",
    ),
    Defect(
        "a part of a joined concat out of place",
        "plan/concats.cpp",
        "own.parts[part].out_offset + before * (*placed)[inner.p0]",
        "own.parts[part].out_offset + before",
    ),
    Defect("a turned view joined to a group", "plan/strip_matcher.cpp", "return *found == due;", "return true;"),
    Defect(
        "dead columns taken for zeros",
        "strips_run.cpp",
        "return std::all_of(x, x + here.variant.rows, [](Word w) { return w == 0; });",
        "return true;",
    ),
    Defect(
        "rows as far apart as if nothing were masked",
        "strips_run.cpp",
        "plan.strides[v][0] = o.member >= 0 ? pitch(read, here) : o.row;",
        "plan.strides[v][0] = o.member >= 0 ? group_.columns : o.row;",
    ),
    Defect(
        "a condition of data taken for a mask",
        "plan/strip_masks.cpp",
        "std::min(b, c) == Dead::kOneValue &&\n                pure[in.a]",
        "std::min(b, c) == Dead::kOneValue",
        MASKS,
    ),
    Defect(
        "the columns that a mask hides taken for those that it leaves",
        "plan/strip_masks.cpp",
        "mark(m, pure, in.a, b == Dead::kUnknown);",
        "mark(m, pure, in.a, c == Dead::kUnknown);",
        MASKS,
    ),
    Defect(
        "the ends of a mask with another bound",
        "plan/strip_masks.cpp",
        "key.insert(key.end(), {in.op, in.a, in.b, in.c, in.imm});",
        "key.insert(key.end(), {in.op, in.a, in.b, in.c});",
        MASKS,
    ),
    Defect(
        "one factor that is known taken for both",
        "plan/strip_masks.cpp",
        "(known(a) && (known(b) || from_product(b))) || (known(b) && from_product(a))",
        "known(a) || known(b)",
        MASKS,
    ),
    Defect(
        "the mask of one batch for all of them",
        "plan/strip_masks.cpp",
        "return std::all_of(o.batch.begin(), o.batch.end(), [](Index s) { return s == 0; });",
        "return true;",
        MASKS,
    ),
    Defect(
        "a block as wide as its first row",
        "plan/strip_groups.cpp",
        "*std::max_element(at, at + block.rows)",
        "*at",
        MASKS,
    ),
    Defect("padding of groups of another size", "plan/dots.cpp", "op.p0 != words", "false"),
    Defect("a second limb of other values", "plan/quants.cpp", "!same_place(part(0), quant.views[0])", "false"),
    Defect(
        "the random words of a row's first group",
        "quant.inl",
        "(row * plan.groups + group) * 2 * plan.words",
        "(row * plan.groups) * 2 * plan.words",
    ),
    Defect(
        "the last word of a span left out",
        "qdot.inl",
        "span->end = k + 32 - __builtin_clz(found);",
        "span->end = k + 31 - __builtin_clz(found);",
    ),
    Defect("a tensor dropped while it is read", "plan/sweep.cpp", "pins_[i] == 0", "true"),
    Defect(
        "an index behind the last row taken for one",
        "scatter.cpp",
        "if (row >= static_cast<Word>(plan.rows)) continue;",
        "if (row > static_cast<Word>(plan.rows)) continue;",
    ),
    Defect("an infinity overlooked", "scatter.cpp", "largest[d] >= f32::INFINITE", "largest[d] > f32::INFINITE"),
    Defect(
        "memory given away a step early",
        "plan/arena.cpp",
        "other->begin < stay.end && stay.begin < other->end",
        "other->begin + 1 < stay.end && stay.begin + 1 < other->end",
    ),
)

HEADERS = (
    (
        "a chunk of a product that goes on into the next one",
        Change("kernels.cuh", "(k0 + DEPTH) % kChunk == 0", "(k0 + DEPTH) % (2 * kChunk) == 0"),
    ),
    (
        "a term of a fold taken from the chunk before",
        Change(
            "kernels.cuh",
            "a_start = A::start(output) + chunk",
            "a_start = A::start(output) + (chunk > 1 ? chunk - 1 : chunk)",
        ),
    ),
)
"""Defects of the CUDA kernels, which the emulated device compiles at run time."""


def changes() -> list[Change]:
    """Returns the changes of the single build with all defects."""
    return [DECLARED, DEFINED, *(defect.change(number) for number, defect in enumerate(DEFECTS, 1))]
