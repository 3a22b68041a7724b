"""The kernels' scalar operations on every path: a sample always, all of it in the slow tests; and that errors show."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from lockstep.numerics import _native, paths, portable
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.scalar import ARITY, Opcode, apply
from lockstep.protocol.programs.program import F32
from tests.primitives import battery
from tests.primitives.battery import MUTANTS, UNARY, Kernels, Reference, Task
from tests.support.scalar_vectors import Words, vectors
from tests.unit.numerics.comparison import CONTEXT, PATHS, strange, words

BY_NAME = {"ids": lambda op: op.name}
FULL = 10_000_000
SAMPLE = 100_000
HOURS = 6 * 3600
PROCESSES = 2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return battery.build(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def reference(library: Path) -> Reference:
    return Reference(library)


def assert_is_the_specification(reference: Reference, op: Opcode, count: int) -> None:
    a, b, c = vectors(op, count, seed=5)
    due = [apply(op, *words) for words in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    np.testing.assert_array_equal(reference.apply(op, a, b, c), np.array(due, np.uint32))


# --- the reference ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("op", Opcode, **BY_NAME)
def test_the_reference_is_the_specification_on_many_vectors(reference: Reference, op: Opcode) -> None:
    assert_is_the_specification(reference, op, SAMPLE)


def test_the_reference_numbers_the_words_as_they_are(reference: Reference) -> None:
    for op in UNARY:
        words = np.arange(0xBF7FFFF0, 0xBF800010, dtype=np.uint32)
        np.testing.assert_array_equal(
            reference.apply_from(op, 0xBF7FFFF0, 32), reference.apply(op, words, words, words)
        )


# --- the kernels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", Opcode, **BY_NAME)
def test_the_reference_is_the_specification_and_every_path_equals_it(reference: Reference, op: Opcode) -> None:
    assert_is_the_specification(reference, op, 500)
    assert battery.compare(reference, Task(op, 11, SAMPLE, exhaustive=False), (_native, portable)) == []


def test_maps_of_every_operation_equal_the_reference_wherever_they_run(reference: Reference) -> None:
    """Interpreted by the kernels of every path, compiled, and on the emulated device; operands of one value, too."""
    n, due = 1100, list[Words]()
    b = ProgramBuilder([(F32, n), (F32, n), (F32, n), None])
    given = [strange(np.random.default_rng(k), n) for k in range(3)]
    given[2][::2] = np.random.default_rng(3).integers(-40, 40, n // 2).astype(np.int32).view(np.float32)
    one, other = np.full(n, 0x3FC00000, np.uint32), np.full(n, 0xFFFFFFFD, np.uint32)
    for op in Opcode:
        reads = 0 if op == Opcode.IMM else ARITY[op]

        def apply_to(e: Expression, *x: int, op: Opcode = op, reads: int = reads) -> int:
            return e.apply(op, *x[:reads]) if reads else e.imm(0x12345678)

        def apply_to_one(e: Expression, x: int, op: Opcode = op, reads: int = reads) -> int:
            return e.apply(op, *(x, e.imm(0x3FC00000), e.imm(0xFFFFFFFD))[:reads]) if reads else e.imm(5)

        b.map((n,), [b.input(k) for k in range(3)], apply_to, name=op.name)
        b.map((n,), [b.input(2)], apply_to_one, name=f"{op.name} of one value")
        x, y, z = (words(array) for array in given)
        if reads:
            due += [reference.apply(op, x, y, z), reference.apply(op, z, one, other)]
        else:
            due += [np.full(n, word, np.uint32) for word in (0x12345678, 5)]
    program = b.finish([None])
    state = [*given, None]
    made: dict[str, Sequence[Array | None]] = {
        f"{path}, {threads} threads": paths.compile(program, path=path, threads=threads, fused="off").run(
            state, CONTEXT, keep=True
        )
        for path in PATHS
        for threads in (1, 3)
    }
    made["compiled"] = paths.compile(program, fused="require").run(state, CONTEXT, keep=True)
    made["the emulated device"] = CudaExecutable(program, device=Emulator()).run(state, CONTEXT, keep=True)
    plain = portable.Executor(program.header, list(program.descriptors), [])
    made["portable"] = plain.run(state, CONTEXT.seed, *CONTEXT.words, None, True, 1, "auto")
    for way, outputs in made.items():
        for i, (got, wanted) in enumerate(zip(outputs, due, strict=True)):
            np.testing.assert_array_equal(words(got), wanted, err_msg=f"{program.name_of(i)}, {way}")


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("op", Opcode, **BY_NAME)
def test_every_path_equals_the_reference_on_ten_million_vectors(library: Path, op: Opcode) -> None:
    (outcome,) = battery.run(library, battery.vector_tasks(op, FULL), PROCESSES)
    assert outcome.cases >= FULL
    assert outcome.mismatches == ()


@pytest.mark.slow
@pytest.mark.words
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("op", UNARY, **BY_NAME)
def test_every_path_equals_the_reference_on_all_words(library: Path, op: Opcode) -> None:
    (outcome,) = battery.run(library, battery.word_tasks(op), PROCESSES)
    assert outcome.cases == 2**32
    assert outcome.mismatches == ()


def test_tasks_cover_all_words_once() -> None:
    ends = [0]
    for task in battery.word_tasks(Opcode.FEXP):
        assert task.start == ends[-1], "no gap, no overlap"
        ends.append(task.start + task.count)
    assert ends[-1] == 2**32


# --- that a wrong line shows ------------------------------------------------------------------------------------------


def is_noticed(mutated: Reference | Kernels, judge: Callable[[Opcode, Words, Words, Words], Words]) -> bool:
    """Whether some operation's vectors tell the two apart."""
    for op in Opcode:
        a, b, c = vectors(op, SAMPLE, seed=11)
        if not np.array_equal(mutated.apply(op, a, b, c), judge(op, a, b, c)):
            return True
    return False


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_line_of_the_reference_is_noticed(mutant: int, tmp_path: Path) -> None:
    def kernels(op: Opcode, a: Words, b: Words, c: Words) -> Words:
        return _native.apply_op(op, a, b, c, "scalar")

    assert is_noticed(Reference(battery.build(tmp_path, mutant)), kernels)


KERNEL_MUTANTS = {
    "subnormals are flushed": ("_mm_setcsr(0x1f80)", "_mm_setcsr(0x9fc0)"),
    "rounds towards zero": ("_mm_setcsr(0x1f80)", "_mm_setcsr(0x7f80)"),
    "fma rounds twice": ("inexact && !(bits & 1) ? bits + outward : bits", "bits"),
    "fma rounds to odd the wrong way": ("? 1 : ~std::uint64_t{0}", "? ~std::uint64_t{0} : std::uint64_t{1}"),
    "NaNs keep their payloads": ("is_nan(word(x)) ? NOT_A_NUMBER : word(x)", "word(x)"),
    "exp scales at once": (
        "p * value((half + 127) << 23) * value((rest + 127) << 23)",
        "p * (value((half + 127) << 23) * value((rest + 127) << 23))",
    ),
    "log forgets that it scaled a subnormal": ("k - (23 & subnormal)", "k"),
    "tanh's threshold goes to the other side": ("word(a) < TANH_SMALL", "word(a) <= TANH_SMALL"),
    "min takes -0 for +0": ("ordered(x < y ? x : y)", "word(a < b ? a : b)"),
    "a cast truncates": ("rounded = (a + magic) - magic", "rounded = a"),
    "a cast does not saturate": ("~SIGN + (word(a) >> 31)", "SIGN"),
}
"""One line of f32.hpp, and what it is replaced by."""


@pytest.mark.sampled(2)
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the environment's lines are x86's")
@pytest.mark.parametrize("what", KERNEL_MUTANTS)
def test_a_wrong_line_of_the_kernels_is_noticed(what: str, reference: Reference, tmp_path: Path) -> None:
    old, new = KERNEL_MUTANTS[what]
    assert is_noticed(Kernels(battery.build_kernels(tmp_path, old, new)), reference.apply)


def test_unchanged_kernels_are_not(reference: Reference, tmp_path: Path) -> None:
    assert not is_noticed(Kernels(battery.build_kernels(tmp_path, "", "")), reference.apply)
