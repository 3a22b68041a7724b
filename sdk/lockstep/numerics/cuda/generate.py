"""Generates CUDA source for a Program: a kernel for each op, and its arguments.

Shapes and strides are constants of the source; addresses of tensors are arguments. The layers of a model therefore
share kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import NamedTuple

from lockstep.numerics.builder import row_major
from lockstep.numerics.cuda.device import SHARED_BYTES
from lockstep.numerics.cuda.launches import (
    NOWHERE,
    KernelArgument,
    Launch,
    Launches,
    Space,
    boolean,
    evaluate,
    place_of,
    reads,
)
from lockstep.numerics.cuda.matrix import Matrix, matrix_of
from lockstep.numerics.cuda.quants import Array, QuantGroup, Target, alone, quant_groups
from lockstep.numerics.cuda.tiles import MODES, tile_kernel
from lockstep.numerics.cuda.views import position, seen_through, word
from lockstep.numerics.cuda.wide import wide_reductions
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import CHUNK, Fold, Kind, Op, Program, Tag, View, groups_of

MAP_THREADS = 256
FOLD_THREADS = 128
"""Threads of a fold's block: kFoldThreads of kernels.cuh."""
PRODUCT_THREADS = 256
"""Threads of a product's block: kProductThreads of kernels.cuh."""
QUANT_THREADS = 256
"""Threads of a quantisation's block: kQuantThreads of kernels.cuh."""
CODE_THREADS = 256
"""Threads of a block that multiplies codes: kCodeThreads of integers.cuh."""
BUSY_BLOCKS = 132
"""Multiprocessors of a large device, an H100: with fewer blocks some are idle."""
PRODUCTS_A_CYCLE = {128: 72, 64: 50}
"""Float products per cycle of a multiprocessor, by the side of a block's tile; measured on an H100."""
WORDS_A_CYCLE = 3
"""Words per cycle that the memory of an H100 moves for each multiprocessor."""
FEW_TILES = 30
"""Number of tiles of a product of codes below which its groups are spread over blocks of their own.

Their partial results, written for a fold, take as long in memory as a multiprocessor needs to compute four groups.
"""
LEAST_SPLIT = 8
"""Least number of groups for which the fold's extra launch pays off."""
MOST_SPLIT_WORDS = 1 << 26
"""Most words of partial results that these blocks may leave to a fold."""

CONTEXT_WORDS = 11
"""Words of the step's context: round, slot, t and the seed; the row numbers of the Program's draws follow."""


@dataclass(frozen=True)
class Generated:
    """The kernels of a Program, with the launches of its ops."""

    source: str
    launches: Launches
    """Launches of a training step; the launches of one op may compute later ops too."""
    shown: Launches
    """Launches for a game, in which every op's output is stored: each op by itself."""
    scratch_words: int
    draws: tuple[tuple[int, int], ...]
    """(number of the first draw, rows) of each DRAW op, in order."""

    @property
    def context_words(self) -> int:
        """Number of words in the region that holds a step's context."""
        return CONTEXT_WORDS + sum(rows for _, rows in self.draws)


def generate(program: Program, shared_bytes: int = SHARED_BYTES, tiles: bool = True) -> Generated:
    """Generates source and launches of all ops, for a device whose blocks have `shared_bytes` of shared memory.

    With `tiles`, attention scores are never stored in memory. Raises UsageError for a fold with more partial results
    than 2^31.
    """
    writer = _Writer(program, shared_bytes)
    shown = tuple(tuple(writer.op(i, op)) for i, op in enumerate(program.ops))
    launches = list(shown)
    groups = quant_groups(program, list(map(reads, shown)))
    found = writer.tiles(groups) if tiles else NO_TILES
    for group in groups:
        if group.members - {group.source} <= found.nowhere:
            continue
        for i in group.members:
            launches[i] = ()
        launches[group.place] = (writer.quants(group),)
    for i in found.nowhere:
        launches[i] = ()
    for i, launch in found.launches.items():
        launches[i] = (launch,)
    source = '#include "kernels.cuh"\n\n' + "\n".join(writer.kernels.values())
    return Generated(source, tuple(launches), shown, writer.scratch_words, tuple(writer.draws))


class _Tiles(NamedTuple):
    """Launches of reductions over wide tensors, and the ops that then need no launch."""

    launches: dict[int, Launch]
    nowhere: frozenset[int]


NO_TILES = _Tiles({}, frozenset())


class _Terms(NamedTuple):
    """The terms that a fold reads from one operand: position of the first, and stride."""

    start: str
    """Offset in words of the first term of output `i`, as C++; for an iota, the value of that term."""
    stride: int
    iota: bool = False

    @property
    def members(self) -> str:
        """The members that `fold` requires of `Fold::First` and `Fold::Second`."""
        return f"""{{
        static constexpr bool IOTA = {boolean(self.iota)};
        static constexpr Word STRIDE = {word(self.stride)};
        LOCKSTEP_MEMBER static Word start([[maybe_unused]] Word i) {{ return {self.start}; }}
    }}"""


class _Writer:
    """Writes the kernels; equal texts are written once."""

    def __init__(self, program: Program, shared_bytes: int) -> None:
        self.program, self.shared_bytes = program, shared_bytes
        self.kernels: dict[str, str] = {}
        self.scratch_words = 0
        self.draws: list[tuple[int, int]] = []

    def op(self, i: int, op: Op) -> list[Launch]:
        """The launches that compute op `i`."""
        out = KernelArgument(Space.OP, i)
        if op.kind == Kind.MAP:
            return [self._map(op, out)]
        if op.kind == Kind.FOLD:
            return self._fold(op, out)
        if op.kind == Kind.QUANT:
            return [self.quants(alone(i, op))]
        if op.kind == Kind.GATHER:
            return [self._gather(op, out)]
        if op.kind == Kind.CONCAT:
            return self._concat(op, out)
        if op.kind == Kind.RANDOM:
            lines = [f"const Word r = philox(p0, {word(op.p0)}, i);"]
            return [self._each("random", op.extents, [KernelArgument(Space.CONTEXT)], lines, "r", out)]
        return [self._draw(op, out)]

    def _kernel(self, kind: str, text: str) -> str:
        """Returns the name of a kernel; its text has @ in place of the name."""
        name = f"{kind}_{sha256(text.encode()).hexdigest()[:12]}"
        self.kernels[name] = text.replace("@", name)
        return name

    # --- element by element -----------------------------------------------------------------------------

    def _each(
        self, kind: str, extents: Sequence[int], sources: Sequence[KernelArgument], lines: Sequence[str], result: str,
        out: KernelArgument, out_position: str = "i",
    ) -> Launch:  # fmt: skip
        """Returns a launch with one thread per group of elements `i`: `lines` compute `result` from the pointers p0,
        p1, ...
        """
        elements = prod(extents)
        rounds = 4 if elements >= 1 << 18 else 1
        parameters = "".join(f"const Word* __restrict__ p{j}, " for j in range(len(sources)))
        body = "\n".join(f"        {line}" for line in lines)
        text = f"""\
LOCKSTEP_KERNEL({MAP_THREADS}) @({parameters}Word* __restrict__ out) {{
#pragma unroll
    for (Word round = 0; round < {word(rounds)}; ++round) {{
        const Word i = (blockIdx.x * {word(rounds)} + round) * {word(MAP_THREADS)} + threadIdx.x;
        if (i >= {word(elements)}) return;
{body}
        out[static_cast<int>({out_position})] = {result};
    }}
}}
LOCKSTEP_EXPORT(@)
"""
        blocks = -(-elements // (rounds * MAP_THREADS))
        return Launch(self._kernel(kind, text), blocks, MAP_THREADS, (*sources, out))

    def _map(self, op: Op, out: KernelArgument) -> Launch:
        sources: list[KernelArgument] = []
        lines, result = self._registers(op, sources)
        return self._each("map", op.extents, sources, lines, result, out)

    @staticmethod
    def _registers(op: Op, sources: list[KernelArgument]) -> tuple[list[str], str]:
        """Returns the C++ lines that compute element `i` of a map, and the name of the result."""
        lines = [
            f"[[maybe_unused]] const Word r{j} = {_read(view, op.extents, sources)};" for j, view in enumerate(op.views)
        ]
        lines += [
            f"[[maybe_unused]] const Word r{len(op.views) + k} = {evaluate(instr)};"
            for k, instr in enumerate(op.instrs)
        ]
        return lines, f"r{len(lines) - 1}"

    def _gather(self, op: Op, out: KernelArgument) -> Launch:
        sources: list[KernelArgument] = []
        index, table = op.views
        lines = [f"const Word row = {_read(index, op.extents, sources)};"]
        element = _read(table, op.extents, sources, f" + row * {word(op.p1)}")
        return self._each("gather", op.extents, sources, lines, f"row < {word(op.p0)} ? {element} : 0", out)

    def _concat(self, op: Op, out: KernelArgument) -> list[Launch]:
        strides = row_major(op.extents)
        launches, before = [], 0
        for view, size in zip(op.views, op.sizes, strict=True):
            extents = (*op.extents[: op.p0], size, *op.extents[op.p0 + 1 :])
            sources: list[KernelArgument] = []
            lines = [f"const Word r = {_read(view, extents, sources)};"]
            part = out._replace(offset=before * strides[op.p0])
            launches.append(self._each("concat", extents, sources, lines, "r", part, position(extents, strides)))
            before += size
        return launches

    def _draw(self, op: Op, out: KernelArgument) -> Launch:
        rows, length = op.extents
        at = CONTEXT_WORDS + sum(n for _, n in self.draws)
        self.draws.append((op.p0, rows))
        # A dataset may have more words than an int can count.
        lines = [f"const Word r = p1[static_cast<long long>(p0[i / {word(length)}]) * {length} + i % {word(length)}];"]
        return self._each(
            "draw", op.extents, [KernelArgument(Space.CONTEXT, 0, at), KernelArgument(Space.DATASET)], lines, "r", out
        )

    # --- folds ------------------------------------------------------------------------------------------

    def _fold(self, op: Op, out: KernelArgument) -> list[Launch]:
        if op.mode == Fold.QDOT:
            return self._qdot(op, out)
        views = [seen_through(self.program, op, view) for view in op.views]
        product = self._product(op, views, out) if op.mode == Fold.DOT else None
        if product is not None:
            return product
        elements = prod(op.extents)
        if elements * op.chunks >= 1 << 31:
            raise UsageError(
                f"a fold of {elements} outputs over {op.k_terms} terms has too many partial results for the CUDA path",
                hint="run it on the processor, or fold in two ops",
            )
        sources: list[KernelArgument] = []
        terms = [_terms(view, op.extents, sources) for view in views]
        return self._levels(Fold(op.mode), elements, op.k_terms, terms, sources, out, 0)

    def _qdot(self, op: Op, out: KernelArgument) -> list[Launch]:
        """Returns the launches of a quantised dot product: tiles of a matrix product, or else one thread per output."""
        matrix = matrix_of(op, op.views, ((0, 2), (1, 3)))
        if matrix is not None:
            return self._code_product(op, matrix, out)
        sources: list[KernelArgument] = []
        at = [f"p{j} + static_cast<int>({_terms(view, op.extents, sources).start})" for j, view in enumerate(op.views)]
        steps = (word(view.strides[-1]) for view in op.views[2:])
        shape = ", ".join((word(op.k_extents[0]), word(op.p0), *steps))
        lines = [f"const Word r = product_of_codes<{shape}>({', '.join(at)});"]
        return [self._each("qdot", op.extents, sources, lines, "r", out)]

    def _code_product(self, op: Op, matrix: Matrix, out: KernelArgument) -> list[Launch]:
        m, n, batches = matrix.rows, matrix.columns, prod(matrix.counts)
        words, groups, elements = op.p0, op.k_extents[0], prod(op.extents)
        large, small = (-(-m // side) * -(-n // side) * batches for side in (128, 64))
        fits = large >= BUSY_BLOCKS and _shared_by_codes(128, words) <= self.shared_bytes
        side, tiles = (128, large) if fits else (64, small)
        split = tiles < FEW_TILES and groups >= LEAST_SPLIT and elements * groups <= MOST_SPLIT_WORDS
        shared = _shared_by_codes(side, words)
        operands = []
        for rows, axis, (codes, scales) in ((m, matrix.m, matrix.left), (n, -1, matrix.right)):
            walk, scale_walk = matrix.walks[codes], matrix.walks[scales]
            operands.append(f"""{{
        static constexpr Word ROWS = {word(rows)}, ROW_STRIDE = {word(walk[axis])};
        static constexpr Word SCALE_STRIDE = {word(scale_walk[axis])};
        static constexpr Word SCALE_STEP = {word(op.views[scales].strides[-1])};
        LOCKSTEP_MEMBER static Word batch([[maybe_unused]] Word i) {{ return {matrix.place(walk)}; }}
        LOCKSTEP_MEMBER static Word scale_batch([[maybe_unused]] Word i) {{ return {matrix.place(scale_walk)}; }}
    }}""")
        names = ("left", "right", "left_scales", "right_scales")
        parameters = "".join(f"const Word* __restrict__ {name}, " for name in names)
        text = f"""\
struct @_codes {{
    static constexpr int SIDE = {side};
    static constexpr bool SPLIT = {boolean(split)};
    static constexpr Word WORDS = {word(words)}, GROUPS = {word(1 if split else groups)};
    static constexpr Word BATCHES = {word(batches)}, ELEMENTS = {word(elements)};
    static constexpr Word ROW_STRIDE = {word(matrix.own[matrix.m])};
    LOCKSTEP_MEMBER static Word batch([[maybe_unused]] Word i) {{ return {matrix.place(matrix.own)}; }}
    struct Left {operands[0]};
    struct Right {operands[1]};
}};
static_assert(Plan<@_codes>::BYTES == {shared});
LOCKSTEP_KERNEL({CODE_THREADS}, {128 // side}) @({parameters}Word* out) {{
    multiply_codes<@_codes>({", ".join(names)}, out);
}}
LOCKSTEP_EXPORT(@)
"""
        sources = [place_of(op.views[j]) for j in (matrix.left[0], matrix.right[0], matrix.left[1], matrix.right[1])]
        blocks, to = (tiles * groups, KernelArgument(Space.SCRATCH)) if split else (tiles, out)
        launch = Launch(self._kernel("codes", text), blocks, CODE_THREADS, (*sources, to), shared)
        return [launch, *self._above(Fold.DOT, elements, groups, out, 0)] if split else [launch]

    def quants(self, group: QuantGroup) -> Launch:
        """Returns the launch that quantises one tensor: one thread per word of codes."""
        op = group.op
        k, words = op.k_extents[0], op.p0
        row = groups_of(k, words) * words
        extents = (*op.extents[:-1], row)
        sources: list[KernelArgument] = []
        read = self._values(group, sources)
        limbs, targets = range(len(group.streams)), [f"to{j}" for j in range(len(group.targets))]
        targets += ["made"] * group.stores
        pointers = [f"p{j}" for j in range(len(sources))]
        members = "\n".join(
            self._writes(Array(limb, scales), group.targets) for limb in (0, 1) for scales in (False, True)
        )
        streams = [f"stream{limb}" for limb in limbs]
        parameters = [
            *(f"const Word* __restrict__ {name}" for name in [*pointers, "context"]),
            *(f"Word {name}" for name in streams), *(f"Word* __restrict__ {name}" for name in targets),
        ]  # fmt: skip
        text = f"""\
struct @_quant {{
    static constexpr Word K = {word(k)}, WORDS = {word(words)}, ROW = {word(row)}, ALL = {word(prod(extents))};
    static constexpr bool POWER = {boolean(op.takes_powers)}, TWO = {boolean(len(limbs) == 2)};
{"".join(f"    const Word* {name};" + chr(10) for name in pointers)}\
    Word {", ".join(f"*{name}" for name in targets)};
{read}
{members}
}};
LOCKSTEP_KERNEL({QUANT_THREADS}) @({", ".join(parameters)}) {{
    quantise(context, {", ".join([*streams, "0u"][:2])}, @_quant{{{", ".join([*pointers, *targets])}}});
}}
LOCKSTEP_EXPORT(@)
"""
        blocks = -(-prod(extents) // QUANT_THREADS)
        arguments = (
            *sources, KernelArgument(Space.CONTEXT),
            *(KernelArgument(Space.VALUE, 0, stream) for stream in group.streams),
            *(NOWHERE if t.op is None else KernelArgument(Space.OP, t.op, t.offset) for t in group.targets),
            *([KernelArgument(Space.OP, group.source)] if group.source is not None and group.stores else []),
        )  # fmt: skip
        return Launch(self._kernel("quant", text), blocks, QUANT_THREADS, arguments, outputs=len(targets))

    def _values(self, group: QuantGroup, sources: list[KernelArgument]) -> str:
        """Returns the C++ member that gives the values of a word of codes, whose first code has index `first` in its
        row.

        The values are those of a tensor or of a map; a map's values are stored too if another op reads them.
        """
        op, view, k = group.op, group.op.views[0], group.op.k_extents[0]
        if group.source is None:
            sources.append(place_of(view))
            row = position((*op.extents[:-1], groups_of(k, op.p0) * op.p0), view.strides[:-1])
            vector = boolean(not any(x % 4 for x in (k, view.offset, *view.strides[:-1])))
            return f"""\
    LOCKSTEP_MEMBER Four read([[maybe_unused]] Word i, Word first) const {{
        return four_of<K, {vector}>(p0 + static_cast<int>({row} + first), first);
    }}"""
        lines, result = self._registers(self.program.ops[group.source], sources)
        body = "\n".join(f"            {line}" for line in lines)
        store = "\n        store_four<K>(made + (number / ROW * K + first), first, own);" if group.stores else ""
        return f"""\
    LOCKSTEP_MEMBER Four read(Word number, Word first) const {{
        Four own{{}};
#pragma unroll
        for (Word j = 0; j < 4; ++j) {{
            if (first + j >= K) continue;
            [[maybe_unused]] const Word i = number / ROW * K + first + j;
{body}
            own.lane[j] = {result};
        }}{store}
        return own;
    }}"""

    @staticmethod
    def _writes(array: Array, targets: Sequence[Target]) -> str:
        """Returns the C++ member that `quantise` calls with a row of an array, a position in it and the word to
        store.
        """
        name = f"{'scale' if array.scales else 'codes'}_{array.limb}"
        own = [(j, word(target.pitch)) for j, target in enumerate(targets) if target.array == array]
        lines = [f"        if (to{j}) to{j}[static_cast<int>(row * {pitch} + at)] = x;\n" for j, pitch in own]
        parameters = ", ".join(f"[[maybe_unused]] Word {parameter}" for parameter in ("row", "at", "x"))
        return f"    LOCKSTEP_MEMBER void {name}({parameters}) const {{\n{''.join(lines)}    }}"

    def tiles(self, groups: Sequence[QuantGroup]) -> _Tiles:
        """Returns the launches of reductions in tiles, if a block has the shared memory for all of them."""
        found = wide_reductions(self.program, groups)
        made = {reduction.op: tile_kernel(self.program, reduction) for reduction in found.reductions}
        if any(own.launch.shared > self.shared_bytes for own in made.values()):
            return NO_TILES
        launches = {op: own.launch._replace(kernel=self._kernel(own.kind, own.text)) for op, own in made.items()}
        return _Tiles(launches, found.nowhere)

    def _levels(
        self,
        mode: Fold,
        outputs: int,
        k: int,
        terms: Sequence[_Terms],
        sources: Sequence[KernelArgument],
        out: KernelArgument,
        used: int,
    ) -> list[Launch]:
        """Returns one launch for the chunks of a fold and, while there are several chunks, one for each level above.

        `used` is the number of scratch words that lower levels occupy.
        """
        chunks = -(-k // CHUNK)
        to = out if chunks == 1 else KernelArgument(Space.SCRATCH, 0, used)
        pointers = [f"p{j}" for j in range(len(sources))]
        parameters = "".join(f"const Word* __restrict__ {pointer}, " for pointer in pointers)
        given = iter(pointers)
        passed = ["nullptr" if term.iota else next(given) for term in terms]
        same = mode == Fold.DOT and terms[0] == terms[1] and len(set(sources)) < 2
        second = f"struct Second {terms[1].members};" if mode == Fold.DOT else "using Second = First;"
        text = f"""\
struct @_fold {{
    static constexpr Mode MODE = Mode::{MODES[mode]};
    static constexpr Word OUTPUTS = {word(outputs)}, K = {word(k)};
    static constexpr bool SAME = {boolean(same)};
    struct First {terms[0].members};
    {second}
}};
LOCKSTEP_KERNEL({FOLD_THREADS}) @({parameters}Word* __restrict__ out) {{
    fold<@_fold>({passed[0]}, {passed[-1]}, out);
}}
LOCKSTEP_EXPORT(@)
"""
        launch = Launch(self._kernel("fold", text), -(-outputs * chunks // FOLD_THREADS), FOLD_THREADS, (*sources, to))
        if chunks == 1:
            return [launch]
        return [launch, *self._above(mode, outputs, chunks, out, used)]

    def _above(self, mode: Fold, outputs: int, chunks: int, out: KernelArgument, used: int) -> list[Launch]:
        """Returns the launches above chunk results, which are `outputs` words apart in the scratch region from word
        `used` on.
        """
        end = used + outputs * chunks
        self.scratch_words = max(self.scratch_words, end)
        above = Fold.SUM if mode == Fold.DOT else mode
        return self._levels(
            above, outputs, chunks, [_Terms("i", outputs)], [KernelArgument(Space.SCRATCH, 0, used)], out, end
        )

    def _product(self, op: Op, views: Sequence[View], out: KernelArgument) -> list[Launch] | None:
        """Returns the launches of a dot as a matrix product.

        Returns None unless the innermost output axis belongs to one operand and another axis to the other operand.
        """
        if op.k_terms > CHUNK * CHUNK or any(view.tag == Tag.IOTA for view in views):
            return None
        matrix = matrix_of(op, views, ((0,), (1,)))
        if matrix is None:
            return None
        order = (*matrix.left, *matrix.right)
        sides = [
            _side(matrix, rows, matrix.walks[j], axis, op.k_terms, views[j])
            for j, rows, axis in zip(order, (matrix.rows, matrix.columns), (matrix.m, -1), strict=True)
        ]
        m, n, batches = matrix.rows, matrix.columns, prod(matrix.counts)
        sparse = _is_indicator(self.program, views[order[0]])
        side, split = _tiling(m, n, batches, op.k_terms)
        # Groups outputs by four: whole groups in a row, aligned wherever the other strides lead.
        strides = [matrix.own[a] for a in (*matrix.batch, matrix.m)]
        vector = not any(x % 4 for x in (n, out.offset, *strides, *([prod(op.extents)] if split else [])))
        text = f"""\
struct @_dot {{
    static constexpr int SIDE = {side};
    static constexpr bool SPLIT = {boolean(split)}, VECTOR = {boolean(vector)}, SPARSE = {boolean(sparse)};
    static constexpr Word K = {word(op.k_terms)}, BATCHES = {word(batches)}, ELEMENTS = {word(prod(op.extents))};
    static constexpr Word ROW_STRIDE = {word(matrix.own[matrix.m])};
    LOCKSTEP_MEMBER static Word batch([[maybe_unused]] Word i) {{ return {matrix.place(matrix.own)}; }}
    struct Left {sides[0]};
    struct Right {sides[1]};
}};
LOCKSTEP_KERNEL({PRODUCT_THREADS}, 2) @(const Word* __restrict__ left, const Word* __restrict__ right, Word* out) {{
    multiply<@_dot>(left, right, out);
}}
LOCKSTEP_EXPORT(@)
"""
        blocks = -(-m // side) * -(-n // side) * batches * (op.chunks if split else 1)
        sources = [place_of(views[j]) for j in order]
        to = KernelArgument(Space.SCRATCH) if split else out
        launch = Launch(self._kernel("product", text), blocks, PRODUCT_THREADS, (*sources, to))
        if not split:
            return [launch]
        return [launch, *self._above(Fold.DOT, prod(op.extents), op.chunks, out, 0)]


def _is_indicator(program: Program, view: View) -> bool:
    """Returns True for a map of comparisons as numbers (one-hot): it is mostly zeros."""
    op = program.ops[view.index] if view.tag == Tag.OP else None
    if op is None or op.kind != Kind.MAP or not op.instrs or op.instrs[-1].op != Opcode.I2F:
        return False
    compared = op.instrs[-1].a - len(op.views)
    return 0 <= compared < len(op.instrs) and op.instrs[compared].op == Opcode.IEQ


def _shared_by_codes(side: int, words: int) -> int:
    """Shared memory in bytes, equal to Plan<>::BYTES in integers.cuh: two stages of codes, and the scales of the groups
    that end in them.
    """
    return 2 * 2 * side * 128 + 2 * (2 if words <= 16 else 1) * 2 * side * 4


def _read(view: View, extents: Sequence[int], sources: list[KernelArgument], more: str = "") -> str:
    """Returns C++ for the word that a view has at element `i`; a tensor becomes the next pointer."""
    at = position(extents, view.strides[: len(extents)]) + more
    if view.tag == Tag.IOTA:
        return f"({word(view.offset)} + {at})"
    sources.append(place_of(view))
    return f"p{len(sources) - 1}[static_cast<int>({at})]"


def _terms(view: View, extents: Sequence[int], sources: list[KernelArgument]) -> _Terms:
    start = position(extents, view.strides[: len(extents)])
    if view.tag == Tag.IOTA:
        return _Terms(f"{word(view.offset)} + {start}", view.strides[-1], iota=True)
    sources.append(place_of(view))
    return _Terms(start, view.strides[-1])


def _side(matrix: Matrix, rows: int, walk: Sequence[int], axis: int, k: int, view: View) -> str:
    """Returns an operand of a product as the body of a C++ struct."""
    term, stride = view.strides[-1], walk[axis]
    along = [walk[a] for a in matrix.batch]
    # Loads four words at a time if they are contiguous along one axis, in whole groups, and aligned wherever the other
    # strides lead.
    length, other = (k, stride) if term == 1 else (rows, term)
    vector = 1 in (term, stride) and not any(x % 4 for x in (length, other, view.offset, *along))
    return f"""{{
        static constexpr Word ROWS = {word(rows)}, ROW_STRIDE = {word(stride)}, TERM_STRIDE = {word(term)};
        static constexpr bool VECTOR = {boolean(vector)};
        LOCKSTEP_MEMBER static Word batch([[maybe_unused]] Word i) {{ return {matrix.place(walk)}; }}
    }}"""


def _tiling(m: int, n: int, batches: int, k: int) -> tuple[int, bool]:
    """Returns (side of a block's tile, True if chunks get blocks of their own), chosen for the least time on a large
    device.

    Estimates the products of the busiest multiprocessor and the words that pass through memory.
    """
    chunks = -(-k // CHUNK)

    def cost(side: int, split: bool) -> tuple[float, bool, int]:
        tiles = -(-m // side) * -(-n // side) * batches
        blocks, terms = (tiles * chunks, min(k, CHUNK)) if split else (tiles, k)
        products = -(-blocks // BUSY_BLOCKS) * side * side * terms / PRODUCTS_A_CYCLE[side]
        words = 2 * m * n * batches * chunks if split else 0
        return products + words / BUSY_BLOCKS / WORDS_A_CYCLE, split, -side

    splits = (False, True) if chunks > 1 and m * n * batches * chunks <= MOST_SPLIT_WORDS else (False,)
    forms = [(side, split) for side in PRODUCTS_A_CYCLE for split in splits]
    return min(forms, key=lambda form: cost(*form))
