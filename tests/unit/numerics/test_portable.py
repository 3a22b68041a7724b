"""Without compiled kernels the bits are the same: numpy against the extension, and a whole process without either."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.cli.doctor import PORTABLE
from lockstep.numerics import _native, paths, portable, tables
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import F32, Alias, Fold, Program
from tests.support.random_ops import Maker
from tests.unit.numerics import test_fusion_random
from tests.unit.numerics.comparison import CONTEXT, STRANGE, normal, strange
from tests.unit.numerics.test_fusion_random import ENTRIES, WORDS

WORDS_OF_AN_OP = 60_000
BLOCKED = [sys.executable, str(Path(__file__).resolve().parents[2] / "support/without_native.py"), "-m"]


def words_of(rng: np.random.Generator) -> Array:
    """Any words, ordinary numbers, and strange ones."""
    found = rng.integers(0, 1 << 32, WORDS_OF_AN_OP, dtype=np.uint64).astype(np.uint32)
    third = WORDS_OF_AN_OP // 3
    found[:third] = strange(rng, third).view(np.uint32)
    found[third : third + 2000] = rng.choice(STRANGE.view(np.uint32), 2000)
    return rng.permutation(found)


def test_a_fused_product_rounds_once_near_every_tie() -> None:
    """Sums that binary64 rounds to a tie of binary32, and sums among the subnormals."""
    rng = np.random.default_rng(1)
    n = 200_000
    a, b = (rng.integers(0x3F800000, 0x40800000, n, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    product = a.view(np.float32).astype(np.float64) * b.view(np.float32)
    tie = np.float64(2.0) ** rng.integers(24, 30, n) + np.ldexp(1.0, rng.integers(0, 5, n))
    c = (tie - product).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal(portable.apply_op(Opcode.FFMA, a, b, c), _native.apply_op(Opcode.FFMA, a, b, c))
    small = [(words_of(rng) & np.uint32(0x80FFFFFF)) | np.uint32(high) for high in (0x20000000, 0x1F000000, 0)]
    np.testing.assert_array_equal(portable.apply_op(Opcode.FFMA, *small), _native.apply_op(Opcode.FFMA, *small))


@pytest.mark.parametrize("mode", [mode for mode in Fold if mode != Fold.QDOT], ids=lambda mode: mode.name)
@pytest.mark.parametrize("terms", [1, 255, 256, 257, 1000])
def test_the_chunks_of_a_fold_are_the_kernels(mode: Fold, terms: int) -> None:
    rng = np.random.default_rng(terms)
    a, b = (strange(rng, terms).view(np.uint32) for _ in range(2))
    np.testing.assert_array_equal(portable.chunk_results(mode, a, b), _native.chunk_results(mode, a, b))


def assert_same(program: Program, state: list[Array | None], dataset: Array | None) -> None:
    """All outputs kept, the outputs of a step, the swept bytes, and some by themselves."""
    consts = [np.frombuffer(c.data, np.uint32) for c in program.consts]
    made = program.header, list(program.descriptors), consts
    own, due = portable.Executor(*made), _native.Executor(*made)
    given: tuple[Any, ...] = (state, CONTEXT.seed, *CONTEXT.words, dataset)
    for keep in (True, False):
        for i, (x, y) in enumerate(
            zip(own.run(*given, keep, 1, "auto"), due.run(*given, keep, 1, "auto"), strict=True)
        ):
            assert (x is None) <= (y is None), f"op {i} is kept where the kernels keep it"
            if x is not None and y is not None:
                assert (x.dtype, x.shape, x.flags.writeable) == (y.dtype, y.shape, False)
                assert x.tobytes() == y.tobytes(), f"op {i}, keep {keep}"
    swept: list[list[tuple[int, bytes]]] = [[], []]
    for executor, seen in zip((own, due), swept, strict=True):
        executor.sweep(*given, 1, "auto", lambda i, data, seen=seen: seen.append((i, bytes(data))))
    assert swept[0] == swept[1]
    last = len(program.ops) - 1
    mine, theirs = (e.some(*given, 1, "auto", [last])[last] for e in (own, due))
    assert mine is not None
    assert theirs is not None
    assert mine.tobytes() == theirs.tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(16))
def test_random_programs_of_every_kind_give_the_kernels_bits(seed: int) -> None:
    step = Maker(seed).step()
    state: list[Array | None] = [
        np.frombuffer(step.inputs[k].data, np.float32) for k in range(len(step.program.inputs))
    ]
    rows = np.frombuffer(step.data.data, np.int32).reshape(step.data.header.shape)
    assert_same(step.program, state, rows)


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_of_products_give_the_kernels_bits(seed: int) -> None:
    program = test_fusion_random.Maker(seed).program()
    rng = np.random.default_rng(seed)
    state: list[Array | None] = [strange(rng, WORDS) for _ in range(ENTRIES)]
    assert_same(program, state + [None] * (len(program.inputs) - ENTRIES), None)


@pytest.mark.slow
def test_bytes_that_the_kernels_refuse_are_refused() -> None:
    """Random changes of a Program's bytes: both take it, or both refuse it; nothing else is raised."""
    dice = random.Random(0)
    refused = 0
    for seed in range(8):
        program = Maker(seed).step().program
        consts = [np.frombuffer(c.data, np.uint32) for c in program.consts]
        for _ in range(100):
            pieces = [bytearray(program.header), *map(bytearray, program.descriptors)]
            piece = dice.choice(pieces)
            piece[dice.randrange(len(piece))] = dice.choice((0, 1, 2, 255, dice.randrange(256)))
            header, *descriptors = map(bytes, pieces)
            taken = []
            for kernels in (portable, _native):
                try:
                    kernels.Executor(header, descriptors, consts)
                    kernels.bytes_of_run(header, descriptors, [c.size for c in consts])
                    taken.append(True)
                except ValueError:
                    taken.append(False)
            # The depth is read, and the layout's encodings are held to one form, by the portable parser alone.
            assert not taken[0] or taken[1], "what the kernels refuse would reach outside of a tensor"
            refused += not taken[0]
    assert refused > 100


def test_what_a_run_holds_and_computes_is_of_the_kernels_size() -> None:
    for seed in range(6):
        program = test_fusion_random.Maker(seed).program()
        given = program.header, list(program.descriptors), [c.header.elements for c in program.consts]
        arena, results, shown = portable.bytes_of_run(*given)
        named = {a.index for a in program.outputs if a.kind == Alias.OP_KIND}
        assert results == sum(4 * program.ops[i].header.elements for i in named)
        assert shown >= _native.bytes_of_run(*given)[2] / 2
        assert arena > 0
        assert sum(portable.work_of_run(*given)) == pytest.approx(sum(_native.work_of_run(*given)), rel=0.5)


def test_another_path_is_refused() -> None:
    zero = np.zeros(1, np.uint32)
    with pytest.raises(ValueError, match="not built"):
        portable.apply_op(Opcode.MOV, zero, zero, zero, "avx2")
    with pytest.raises(ValueError, match="no such opcode"):
        portable.apply_op(99, zero, zero, zero)


def blocked(*arguments: str, timeout: int = 500) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BLOCKED, *arguments], capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.slow
def test_the_golden_state_is_reached_without_compiled_code() -> None:
    code = (
        "from tests.support.without_native import block; block()\n"
        "from lockstep.numerics.built import COMPILED\n"
        "from lockstep.protocol import merkle\n"
        "from tests.determinism import training_run as t\n"
        "assert not COMPILED and merkle._native is None\n"
        "print(t.train(t.gpt(), 50, 'auto', 1, 'auto') == t.GOLDEN[50])"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.slow
def test_the_kernels_own_tests_pass_without_them() -> None:
    done = blocked("pytest", "-n", "0", "-q", "tests/unit/numerics/test_executor.py", "-k", "not blocks")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_doctor_says_what_an_installation_without_kernels_is_for() -> None:
    told = blocked("lockstep.cli.main", "doctor", "--device", "cpu")
    assert told.returncode == 0, told.stderr
    assert "portable kernels; self-test passed" in told.stdout
    assert PORTABLE in told.stdout


def test_loops_that_must_be_compiled_are_refused_without_kernels() -> None:
    code = (
        "from tests.support.without_native import block; block()\n"
        "from lockstep.protocol.errors import DoctorError\n"
        "from lockstep.numerics import paths\n"
        "from tests.unit.numerics.test_executor import simple\n"
        "try: paths.compile(simple(), fused='require')\n"
        "except DoctorError as error: print(error.hint)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert "LOCKSTEP_FUSED" in done.stdout, done.stderr


def test_compiled_kernels_are_taken_where_they_are() -> None:
    assert paths._native is _native


@pytest.mark.parametrize(("words", "terms"), [(1, 3), (2, 301), (64, 301), (64, 40_000)])
def test_quants_of_many_blocks_give_the_kernels_bits(words: int, terms: int) -> None:
    """Random halves of a block begin in the middle of a stream, and in the middle of four words."""
    rows = max(3, 3 * portable.BLOCK // terms)
    b = ProgramBuilder([(F32, rows * terms)])
    x = b.input(0).reshape(rows, terms)
    made = [b.quant(x, words, stream, power) for stream, power in ((0, False), ((1 << 31) + 5, True))]
    program = b.finish([t for q in made for t in (q.codes, q.scales)])
    assert_same(program, [strange(np.random.default_rng(words), rows * terms)], None)


def test_a_quant_takes_no_memory_of_what_it_reads() -> None:
    """Scales are a 256th of the values that they are of, and rows may be the same row."""
    rows, terms = 2000, 1 << 14
    b = ProgramBuilder([(F32, terms)])
    program = b.finish([b.quant(b.input(0).unsqueeze(0).expand(rows, terms)).scales])
    executor = portable.Executor(program.header, list(program.descriptors), [])
    values = normal(np.random.default_rng(0), terms)
    tracemalloc.start()
    found = executor.run([values], CONTEXT.seed, *CONTEXT.words, None, False, 1, "auto")[-1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    due = tables.quantised(values[None], 64)[1]
    np.testing.assert_array_equal(found.reshape(rows, -1), np.tile(due, (rows, 1)))
    assert peak < 4 * (64 * portable.BLOCK + 4 * found.size), f"{peak >> 20} MiB"
