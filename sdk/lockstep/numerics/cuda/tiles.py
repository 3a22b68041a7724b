"""Generates the C++ by which tiles.cuh computes reductions of wide tensors: one kernel per reduction."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from lockstep.numerics.cuda.launches import KernelArgument, Launch, Space, boolean, evaluate, place_of
from lockstep.numerics.cuda.views import position, word
from lockstep.numerics.cuda.wide import OWN, Computed, ProductElement, Reduction, WideOperand
from lockstep.numerics.scalar import ARITY, Opcode
from lockstep.protocol.programs.program import Fold, Program, Tag, groups_of

TILE_THREADS = 256
"""Threads of a block: kTileThreads of tiles.cuh."""
SWEEP, TERMS = 256, 16
"""Terms per sweep and per pass: kSweep and kTerms of tiles.cuh."""
VALUES = 4 * OWN * (SWEEP + 4)
"""Shared words for values: kValues of tiles.cuh."""
MODES = {Fold.DOT: "kDot", Fold.SUM: "kSum", Fold.MAX: "kMax", Fold.MIN: "kMin", Fold.ISUM: "kWrappingSum"}
"""Maps a fold's mode to `Mode` of kernels.cuh."""


class TileKernel(NamedTuple):
    """A kernel's kind and text, with @ in place of its name, and its launch before it is named."""

    kind: str
    text: str
    launch: Launch


def tile_kernel(program: Program, reduction: Reduction) -> TileKernel:
    """Returns the kernel of one reduction; it is launched at the position of its op."""
    return _TileWriter(program, reduction).kernel()


class _TileWriter:
    def __init__(self, program: Program, reduction: Reduction) -> None:
        self.program, self.of = program, reduction
        self.op = program.ops[reduction.op]
        self.sources: dict[KernelArgument, str] = {}
        self.terms = prod(reduction.extents(reduction.sweep))
        self.is_codes = program.ops[reduction.bases[0].op].is_qdot

    def kernel(self) -> TileKernel:
        """Returns the kernel with its text and launch (`tile_kernel`)."""
        of, codes = self.of, self.of.codes
        bases = "".join(self._base(b) for b in range(len(of.bases)))
        values = self._values()
        right = self._right()
        if of.columns is None:
            kind, call, shared = "tile_fold", "fold_tiles", VALUES
        elif codes is None:
            kind, call = "tile_product", "multiply_tiles"
            shared = VALUES + 4 * TERMS * (-(-of.axes[of.columns] // 32) * 32 + 4)
        else:
            kind, call, shared = "tile_codes", "multiply_code_tiles", self._shared_by_codes()
        names = list(self.sources.values())
        streams = [] if codes is None else [f"stream{limb}" for limb in range(max(codes.limbs) + 1)]
        pointers = [*names, *(["context"] if codes is not None else [])]
        parameters = [*(f"const Word* __restrict__ {name}" for name in pointers), *(f"Word {name}" for name in streams)]
        mode = f"    static constexpr Mode MODE = Mode::{MODES[Fold(self.op.mode)]};\n" if of.columns is None else ""
        text = f"""\
struct @_tiles {{
    static constexpr Word OWN = {word(of.axes[of.own])}, SWEEP = {word(self.terms)};
    static constexpr int BASES = {len(of.bases)};
    static constexpr bool CODES = {boolean(self.is_codes)}, SECOND = {boolean(len(of.roots) > 1)};
{mode}{"".join(f"    const Word* {name};" + chr(10) for name in pointers)}\
{"".join(f"    Word {name};" + chr(10) for name in streams)}\
{bases}\
    template <int B>
    LOCKSTEP_MEMBER auto base() const {{
        {" else ".join(f"if constexpr (B == {b}) return base{b}();" for b in range(len(of.bases)))}
    }}
{values}\
{right}\
    LOCKSTEP_MEMBER static Word out([[maybe_unused]] Word batch, [[maybe_unused]] Word own) {{
        return {self._at(of.out)};
    }}
}};
LOCKSTEP_KERNEL({TILE_THREADS}, 2) @({", ".join(parameters)}, Word* __restrict__ out) {{
    {call}(@_tiles{{{", ".join([*pointers, *streams])}}}, out);
}}
LOCKSTEP_EXPORT(@)
"""
        arguments = [*self.sources]
        if codes is not None:
            arguments += [KernelArgument(Space.CONTEXT)]
            arguments += [KernelArgument(Space.VALUE, 0, stream) for stream in codes.group.streams[: len(streams)]]
        arguments.append(KernelArgument(Space.OP, of.op))
        return TileKernel(kind, text, Launch("", of.blocks, TILE_THREADS, tuple(arguments), shared))

    # --- places -----------------------------------------------------------------------------------------------

    def _pointer(self, place: WideOperand) -> str:
        """Returns the C++ name of the argument that points to a tensor."""
        return self.sources.setdefault(place_of(place.view), f"p{len(self.sources)}")

    def _along(self, walk: Sequence[int], axes: Sequence[int], name: str = "i") -> str:
        """Returns C++ for the words that the given loop axes add to a position, at the element called `name`."""
        return position(self.of.extents(axes), [walk[a] for a in axes], name)

    def _at(self, walk: Sequence[int]) -> str:
        """Returns C++ for a position within a batch, at an owned row and a term of the sweep."""
        axes = (("batch", self.of.batch), ("own", (self.of.own,)), ("sweep", self.of.sweep))
        parts = [self._along(walk, own, name) for name, own in axes]
        return " + ".join(part for part in parts if part != "0u") or "0u"

    def _static(self, name: str, walk: Sequence[int], axes: Sequence[int]) -> str:
        body = self._along(walk, axes)
        return f"        LOCKSTEP_MEMBER static Word {name}([[maybe_unused]] Word i) {{ return {body}; }}\n"

    def _by_four(self, place: WideOperand, along: int, length: int, others: Sequence[int]) -> bool:
        """Returns True if four words at a time are contiguous, aligned, and either all inside or all outside."""
        rest = [place.walk[a] for a in range(len(place.walk)) if a != along]
        return place.walk[along] == 1 and not any(x % 4 for x in (length, place.view.offset, *rest, *others))

    # --- products ---------------------------------------------------------------------------------------------

    def _base(self, b: int) -> str:
        base = self.of.bases[b]
        op = self.program.ops[base.op]
        sides = ((base.own, "Own", (self.of.own,)), (1 - base.own, "Sweep", self.of.sweep))
        structs, pointers = [], []
        for operand, name, axes in sides:
            codes = base.places[operand]
            pointers.append(self._pointer(codes))
            rows = prod(self.of.extents(axes))
            common = self._static("row", codes.walk, axes) + self._static("batch", codes.walk, self.of.batch)
            if op.is_qdot:
                structs.append(f"""\
    struct {name}{b} {{
        static constexpr Word ROWS = {word(rows)}, SCALE_STEP = {word(op.views[operand + 2].strides[-1])};
        static constexpr bool VECTOR = {boolean(op.p0 % 4 == 0)};
{common}{self._static("scale", base.places[operand + 2].walk, axes)}\
{self._static("scale_batch", base.places[operand + 2].walk, self.of.batch)}    }};
""")
                continue
            step = codes.view.strides[-1]
            if step == 1:
                vector = not any(x % 4 for x in (op.k_extents[0], codes.view.offset, *codes.walk))
            else:
                vector = len(axes) == 1 and self._by_four(codes, axes[0], rows, (step,))
            structs.append(f"""\
    struct {name}{b} {{
        static constexpr Word ROWS = {word(rows)}, TERMS = {word(op.k_extents[0])};
        static constexpr bool ALONG_TERMS = {boolean(step == 1)}, VECTOR = {boolean(vector)};
{common}        LOCKSTEP_MEMBER static Word term(Word i) {{ return i * {word(step)}; }}
    }};
""")
        members = ["own", "sweep"]
        if op.is_qdot:
            pointers += [self._pointer(base.places[operand + 2]) for operand, _, _ in sides]
            members += ["own_scales", "sweep_scales"]
            size = f"WORDS = {word(op.p0)}, GROUPS = {word(op.k_extents[0])}"
        else:
            size = f"TERMS = {word(op.k_extents[0])}"
        return f"""\
{"".join(structs)}\
    struct Base{b} {{
        static constexpr bool CODES = {boolean(op.is_qdot)};
        static constexpr Word {size};
        using Own = Own{b};
        using Sweep = Sweep{b};
        const Word* __restrict__ {", * __restrict__ ".join(members)};
    }};
    LOCKSTEP_MEMBER Base{b} base{b}() const {{ return {{{", ".join(pointers)}}}; }}
"""

    def _right(self) -> str:
        of = self.of
        if of.columns is None:
            return ""
        first, codes = of.right[0], of.codes
        own = f"""\
    static constexpr Word OUT_OWN = {word(of.out[of.own])}, OUT_N = {word(of.out[of.columns])};
    LOCKSTEP_MEMBER const Word* right() const {{ return {self._pointer(first)}; }}
"""
        common = self._static("row", first.walk, (of.columns,)) + self._static("batch", first.walk, of.batch)
        rows = word(of.axes[of.columns])
        if codes is None:
            terms = len(of.sweep) == 1 and first.walk[of.sweep[0]] == 1 and first.walk[of.columns] != 1
            along, length = (of.sweep[0], self.terms) if terms else (of.columns, of.axes[of.columns])
            vector = self._by_four(first, along, length, ())
            return f"""\
{own}\
    struct Right {{
        static constexpr Word ROWS = {rows}, TERMS = {word(self.terms)};
        static constexpr bool ALONG_TERMS = {boolean(terms)}, VECTOR = {boolean(vector)};
{common}{self._static("term", first.walk, of.sweep)}    }};
"""
        group, quant = codes.group, codes.group.op
        terms_of_right = next(j for j in (0, 1) if self.op.views[j] == first.view)
        two = max(codes.limbs) > 0
        limbs = " : ".join(f"part == {k}u ? {limb}" for k, limb in enumerate(codes.limbs[:-1]))
        limb = f"{limbs} : {codes.limbs[-1]}" if limbs else f"{codes.limbs[-1]}"
        stream = "limb == 0 ? stream0 : stream1" if two else "stream0"
        return f"""\
{own}\
    static constexpr Word PARTS = {word(len(codes.limbs))}, WORDS = {word(quant.p0)};
    static constexpr Word ROW = {word(groups_of(quant.k_extents[0], quant.p0) * quant.p0)};
    static constexpr bool POWER = {boolean(group.op.takes_powers)};
    LOCKSTEP_MEMBER static int limb([[maybe_unused]] Word part) {{ return {limb}; }}
    LOCKSTEP_MEMBER Word stream([[maybe_unused]] int limb) const {{ return {stream}; }}
    LOCKSTEP_MEMBER static Word quant_row([[maybe_unused]] Word batch, [[maybe_unused]] Word own) {{
        return {self._at(codes.rows)};
    }}
    LOCKSTEP_MEMBER const Word* right_scales() const {{ return {self._pointer(of.right[1])}; }}
    struct Right {{
        static constexpr Word ROWS = {rows};
        static constexpr Word SCALE_STEP = {word(self.op.views[terms_of_right + 2].strides[-1])};
        static constexpr bool VECTOR = true;
{common}{self._static("scale", of.right[1].walk, (of.columns,))}\
{self._static("scale_batch", of.right[1].walk, of.batch)}    }};
"""

    def _shared_by_codes(self) -> int:
        """Shared memory in bytes, equal to TileCodes<>::BYTES."""
        assert self.of.codes is not None
        assert self.of.columns is not None
        columns, groups = -(-self.of.axes[self.of.columns] // 64), SWEEP // (4 * self.of.codes.group.op.p0)
        return max(VALUES, columns * 64 * (SWEEP + 16)) + OWN * (SWEEP + 16) + 4 * groups * (OWN + TILE_THREADS)

    # --- values -----------------------------------------------------------------------------------------------

    def _values(self) -> str:
        """Returns the C++ members that compute elements of the folded tensors, and what these need from the
        products.
        """
        names, lines, pure = [], [], []
        needs: list[tuple[str, ...]] = []
        """Per node, for each product the condition under which its value matters."""
        bases = range(len(self.of.bases))
        for k, node in enumerate(self.of.nodes):
            if isinstance(node, ProductElement):
                names.append(f"b{node.base}")
                pure.append(False)
                needs.append(tuple("true" if b == node.base else "false" for b in bases))
                continue
            names.append(f"n{k}")
            if isinstance(node, WideOperand):
                iota = node.view.tag == Tag.IOTA
                at = self._at(node.walk)
                text = f"{word(node.view.offset)} + {at}" if iota else f"{self._pointer(node)}[static_cast<int>({at})]"
                pure.append(iota)
                needs.append(("false",) * len(bases))
            else:
                text = self._instruction(node, names)
                pure.append(all(pure[argument] for argument in node.arguments))
                needs.append(tuple(self._need(node, names, pure, [own[b] for own in needs]) for b in bases))
            lines.append((pure[-1], f"        [[maybe_unused]] const Word n{k} = {text};\n"))
        parameters = ", ".join(f"[[maybe_unused]] Word {name}" for name in ("batch", "own", "sweep"))
        every = "".join(line for _, line in lines)
        alone = "".join(line for is_pure, line in lines if is_pure)
        products = "[[maybe_unused]] Word b0, [[maybe_unused]] Word b1"
        functions = "".join(
            f"    LOCKSTEP_MEMBER Word {name}({parameters}, {products}) const {{\n"
            f"{every}        return {names[root]};\n    }}\n"
            for name, root in zip(("first", "second"), self.of.roots, strict=False)
        )
        wanted = [_either(*(needs[root][b] for root in self.of.roots)) for b in bases]
        masked = " || ".join(f"B == {b}" for b in bases if wanted[b] != "true") or "false"
        conditions = " else ".join(f"if constexpr (B == {b}) return {wanted[b]};" for b in bases)
        return f"""\
{functions}\
    template <int B>
    static constexpr bool MASKED = {masked};
    template <int B>
    LOCKSTEP_MEMBER bool needs({parameters}) const {{
{alone}        {conditions}
    }}
"""

    @staticmethod
    def _instruction(node: Computed, names: Sequence[str]) -> str:
        arguments = [names[argument] for argument in node.arguments]
        registers = dict(zip((node.instr.a, node.instr.b, node.instr.c), arguments, strict=False))
        return evaluate(node.instr, [registers.get(r, "") for r in range(max(registers, default=-1) + 1)])

    @staticmethod
    def _need(node: Computed, names: Sequence[str], pure: Sequence[bool], needs: Sequence[str]) -> str:
        """Returns the condition under which an instruction needs a product: a mask may make its value irrelevant."""
        assert ARITY[Opcode(node.instr.op)] == len(node.arguments)
        if node.instr.op == Opcode.SELECT and pure[node.arguments[0]]:
            condition, left, right = node.arguments
            if needs[left] != needs[right]:
                return f"({names[condition]} != 0 ? {needs[left]} : {needs[right]})"
            return needs[left]
        return _either(*(needs[argument] for argument in node.arguments))


def _either(*conditions: str) -> str:
    """Returns the C++ disjunction of conditions, simplified."""
    own = dict.fromkeys(condition for condition in conditions if condition != "false")
    if "true" in own:
        return "true"
    return " || ".join(own) or "false"
