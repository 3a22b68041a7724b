"""Quants of one tensor as one kernel of the emulated device: which ops it takes, its words, its defects."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Quantised, Tensor
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.cuda.memory import plan
from lockstep.numerics.cuda.quants import quant_groups
from lockstep.protocol.programs.program import F32, Program
from tests.support.emulation import Both, Mutant
from tests.unit.numerics.comparison import CONTEXT, normal, strange
from tests.unit.numerics.test_cuda_codes import Data, differs
from tests.unit.numerics.test_quants import REASONS, STREAM, joined, program_with_a_rest, rest, two_limbs


def padded_rest(b: ProgramBuilder, x: Tensor, q: Quantised, name: str) -> Tensor:
    """x [rows, K] - codes x scales in two maps, as the tracer writes it where the last group is ragged."""
    rows, terms = x.shape
    shape = (rows * q.groups, q.words, 4)
    lanes = q.codes.reshape(*shape[:2]).unsqueeze(2).expand(*shape)
    up = b.iota((4,), 0, 24, -8).expand(*shape)
    scales = q.scales.reshape(shape[0]).unsqueeze(1).unsqueeze(1).expand(*shape)

    def expression(e: Expression, code: int, up: int, scale: int) -> None:
        e.fmul(e.i2f(e.ishr(e.ishl(code, up), e.i32(24))), scale)

    value = b.map(shape, [lanes, up, scales], expression, dtype=F32, name=f"{name} value")
    flat = value.reshape(rows, 4 * q.words * q.groups).slice(1, 0, terms)
    return b.map((rows, terms), [x, flat], lambda e, x, value: e.fsub(x, value), name=name)


def limbs_of(b: ProgramBuilder, x: Tensor, words: int, stream: int, name: str) -> tuple[Quantised, Quantised]:
    """Two limbs of x, whatever its terms."""
    if x.shape[1] % (4 * words) == 0:
        return two_limbs(b, x, words, stream, name)
    high = b.quant(x, words, name=f"{name}.high")
    return high, b.quant(padded_rest(b, x, high, f"{name}.rest"), words, stream, name=f"{name}.low")


def state_of(program: Program, data: Data = normal) -> list[Array | None]:
    rng = np.random.default_rng(11)
    return [None if header is None else data(rng, header.elements) for header in program.inputs]


def product_of_limbs(rows: int, columns: int, terms: int, words: int) -> tuple[ProgramBuilder, list[Tensor]]:
    b = ProgramBuilder([(F32, rows * terms), (F32, columns * terms)])
    (high_x, low_x), (high_y, low_y) = (
        limbs_of(b, b.input(j).reshape(n, terms), words, (STREAM + 1) * j, name)
        for j, (n, name) in enumerate(((rows, "x"), (columns, "y")))
    )
    left, right = joined(b, [high_x, high_x, low_x], "left"), joined(b, [high_y, low_y, high_y], "right")
    return b, [b.qdot(left.unsqueeze(1), right, name="product"), low_x.scales, high_y.codes]


SHAPES = [
    (5, 33, 256, 64),
    (37, 20, 192, 16),
    (9, 16, 16, 2),
    (3, 8, 4, 1),
    (7, 5, 100, 64),
    (6, 9, 150, 16),
    (4, 6, 9, 1),
]
"""(M, N, K, words of a group): whole groups, and ragged ones."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("data", [normal, strange])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_limbs_and_their_copies_are_one_kernel_for_each_tensor(
    shape: tuple[int, int, int, int], data: Data, extra: bool
) -> None:
    b, (product, *more) = product_of_limbs(*shape)
    program = b.finish([product, *(more if extra else [])])
    assert launched(program) == ["x.high.codes", "y.high.codes", "product"]
    Both(program, descending=extra).agree(state_of(program, data), CONTEXT)


def test_what_the_limbs_leave_is_computed_where_somebody_reads_it() -> None:
    for reason in REASONS:
        program = program_with_a_rest(reason)
        assert len(quant_groups(program)) == 2, reason
        Both(program).agree(state_of(program), CONTEXT)


@pytest.mark.slow
def test_other_values_are_no_rest() -> None:
    """Each of these maps differs from x - code x scale in one thing, so nothing is left out for it."""
    rows, K, words = 4, 96, 8

    def variant(kind: str) -> Program:
        b = ProgramBuilder([(F32, rows * K), (F32, rows * K)])
        x, other = (b.input(j).reshape(rows, K) for j in range(2))
        high = b.quant(x, words, name="high")
        of = b.quant(other, words, name="other") if kind in ("other codes", "other scales") else high
        shape = (rows * high.groups, words, 4)
        codes = (of if kind == "other codes" else high).codes.reshape(*shape[:2]).unsqueeze(2).expand(*shape)
        scales = (
            (of if kind == "other scales" else high).scales.reshape(shape[0]).unsqueeze(1).unsqueeze(1).expand(*shape)
        )
        up = b.iota((4,), 0, 24, 8 if kind == "other order" else -8).expand(*shape)
        from_ = other if kind == "other tensor" else x

        def expression(e: Expression, x: int, code: int, up: int, scale: int) -> None:
            byte = e.ishr(e.ishl(code, up), e.i32(16 if kind == "other bytes" else 24))
            e.fsub(x, (e.fadd if kind == "a sum" else e.fmul)(e.i2f(byte), scale))

        left = b.map(shape, [from_.reshape(*shape), codes, up, scales], expression, dtype=F32, name="left")
        low = b.quant(left.reshape(rows, K), words, name="low")
        return b.finish([high.codes, high.scales, low.codes, low.scales])

    for kind in ("other codes", "other scales", "other order", "other tensor", "other bytes", "a sum"):
        program = variant(kind)
        groups = quant_groups(program)
        assert all(len(group.streams) == 1 for group in groups), kind
        Both(program).agree(state_of(program), CONTEXT)
    assert [len(group.streams) for group in quant_groups(variant("the rest"))] == [2]


def test_quants_that_differ_by_their_stream_share_a_kernel() -> None:
    b = ProgramBuilder([(F32, 300)])
    x = b.input(0).reshape(3, 100)
    made = [b.quant(x, 16, STREAM + n) for n in range(3)]
    program = b.finish([part for q in made for part in (q.codes, q.scales)])
    generated = generate(program)
    assert generated.source.count("LOCKSTEP_EXPORT(") == 1
    assert sum(map(len, generated.launches)) == 3, "codes are rounded by each stream"
    Both(program).agree(state_of(program), CONTEXT)


def test_an_op_that_a_later_one_computes_has_a_place_until_its_last_reader() -> None:
    """The low limb's codes are computed in the place of the high one's, before ops that lie between them."""
    b = ProgramBuilder([(F32, 4 * 256)])
    x = b.input(0).reshape(4, 256)
    high = b.quant(x, 64, name="high")
    left = rest(b, x, high, "rest")
    between = [b.map((4, 256), [x], lambda e, v: e.fmul(v, v), name="between") for _ in range(3)]
    low = b.quant(left, 64, STREAM, name="low")
    sums = [b.sum(each) for each in between]
    program = b.finish([b.qdot(low, high), *sums])
    generated = generate(program)
    arena = plan(program, generated.launches)
    low_codes = program.names.index("low.codes")
    assert not arena.needed[low_codes], "the first quant computes it"
    assert low_codes in arena.offsets
    Both(program).agree(state_of(program), CONTEXT)


# --- maps ---------------------------------------------------------------------------------------------------


def launched(program: Program) -> list[str]:
    """Names of the ops in whose place something runs."""
    needed = plan(program, generate(program).launches).needed
    return [name for name, runs in zip(program.names, needed, strict=True) if runs]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("data", [strange, normal])
@pytest.mark.parametrize("terms", [100, 128, 37])
def test_a_map_is_computed_where_it_is_quantised(terms: int, data: Data) -> None:
    """Its output is in memory only if somebody else reads it: a fold, quants of other groups, the state. If its quants
    come later, and others read it, it runs by itself: codes would be there beside it."""
    b = ProgramBuilder([(F32, 6 * terms), (F32, 6 * terms), (F32, terms)])
    x, y = b.input(0).reshape(6, terms), b.input(1).reshape(terms, 6)
    row = b.input(2).unsqueeze(0).expand(6, terms)

    def summed(name: str) -> Tensor:
        return b.map((6, terms), [x, y.permute(1, 0), row], lambda e, x, y, z: e.fadd(e.fmul(x, y), z), name=name)

    tensors, made = {}, []
    for name in ("alone", "folded", "kept", "twice"):
        tensors[name] = summed(name)
        made.append(b.quant(tensors[name], 8, STREAM, name=name))
    made.append(b.quant(tensors["twice"], 4, name="again"))
    made.append(b.quant(summed("partly").slice(1, 0, terms - 1), 8, name="part"))
    early = summed("early")
    total = b.sum(tensors["folded"], name="sum")
    made.append(b.quant(early, 8, name="late"))
    outputs = [tensors["kept"], total, b.max(early, name="max"), *(part for q in made for part in (q.codes, q.scales))]
    program = b.finish(outputs)
    places = ["alone", "folded", "kept", "twice", "again.codes", "partly", "part.codes", "early", "sum", "late.codes"]
    assert launched(program) == [*places, "max"]
    arena = plan(program, generate(program).launches)
    assert [program.names[op] for op in arena.offsets] == ["folded", "twice", "partly", "early"]
    for descending in (False, True):
        Both(program, descending=descending).agree(state_of(program, data), CONTEXT)


def test_a_copy_that_a_product_reads_through_is_not_stored_for_it() -> None:
    b = ProgramBuilder([(F32, 64 * 64), (F32, 64 * 64)])
    x, y = (b.input(j).reshape(64, 64) for j in range(2))
    turned = b.map((64, 64), [x.permute(1, 0)], name="turned")
    made = b.quant(turned, name="q")
    program = b.finish([b.dot(y.unsqueeze(1), turned, name="product"), made.codes, made.scales])
    assert launched(program) == ["turned", "product"]
    assert not plan(program, generate(program).launches).offsets
    Both(program).agree(state_of(program), CONTEXT)


# --- what would break them ---------------------------------------------------------------------------------

DEFECTS = {
    "magnitudes that are still read": ("if constexpr (!EIGHTS) __syncthreads();", ""),
    "eights of another group": ("eights + threadIdx.x / WORDS * (WORDS / NEAR)", "eights"),
    "the first limb's values": ("own.lane[j] = word(f32::sub(x,", "(void)word(f32::sub(x,"),
    "the first limb's stream": ("limb == 0 ? high_stream : low_stream", "limb == 0 ? low_stream : high_stream"),
    "the first limb's scale": ("else to.scale_1(row, at / Quant::WORDS, word(scale.scale));", ""),
    "a rest of nothing": ("static_cast<float>(code), scale.scale)", "static_cast<float>(code), scale.inverse)"),
    "rows by two": ("row = i / Quant::ROW,", "row = i / Quant::ROW / 2 * 2,"),
    "a map that nobody stores": ("store_four<K>(made", "if (K == 0) store_four<K>(made"),
    "another element of a map": ("number / ROW * K + first + j", "number / ROW * ROW + first + j"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_shows(defect: str) -> None:
    b, outputs = product_of_limbs(20, 12, 512, 64)
    outputs += [limb.codes for limb in limbs_of(b, b.input(1).reshape(12, 512), 8, 0, "narrow")]
    doubled = b.map((20, 500), [b.input(0).reshape(20, 512).slice(1, 0, 500)], lambda e, x: e.fadd(x, x))
    made = b.quant(doubled)
    program = b.finish([*outputs, b.sum(doubled), made.codes])
    before, after = DEFECTS[defect]
    shown = (differs(program, Mutant(before, after, descending=descending)) for descending in (False, True))
    assert any(shown), f"the emulation does not show {defect}"
