"""Float32.sol against the integer reference: small formats in full always, large ones in `make test-words`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.float32 import FLOAT32, Evm, evm
from lockstep.numerics.scalar import ARITY, Opcode
from tests.primitives import battery, on_chain
from tests.primitives.battery import Reference
from tests.primitives.on_chain import OPS, REDUCED, SAMPLE, Format

pytestmark = pytest.mark.chain

BY_NAME = {"ids": lambda op: op.name}
FEW, MILLION = 6_000, 1_000_000
HOURS = 6 * 3600


@pytest.fixture(scope="module")
def chain() -> Iterator[Evm]:
    with evm() as machine:
        yield machine


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(battery.build(tmp_path_factory.mktemp("reference")))


def assert_equal(chain: Evm, reference: Reference, tasks: list[on_chain.Task], cases: int) -> None:
    (outcome,) = on_chain.run([chain], reference, tasks)
    assert outcome.cases >= cases
    assert outcome.mismatches == ()


def test_every_function_of_the_library_is_an_operation() -> None:
    others = {Opcode.I2F: "fromInt", Opcode.F2I: "toInt", Opcode.FCANON: "canonical"}
    names = {others.get(op, op.name[1:].lower()) for op in OPS}
    chains = {"sum", "dot"}  # of add and fma: tests/forge/Float32.t.sol holds them to those
    assert names | chains == set(re.findall(r"function (\w+)\([^)]*\)\s+internal\s+pure", FLOAT32.read_text()))


def test_a_format_has_every_word_once() -> None:
    words = Format((0, 127, 255), 2, 1).words
    assert len(words) == len(np.unique(words)) == 2 * 3 * 8
    for special in (0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x3F800000, 0x3FE00001):
        assert special in words, f"{special:08x}"


def test_tasks_cover_each_combination_once() -> None:
    own = Format((127, 128), 1, 0)
    (task,) = on_chain.format_tasks(Opcode.FFMA, {3: own})
    triples = np.stack(task.operands, axis=1)
    assert len(triples) == len(np.unique(triples, axis=0)) == len(own.words) ** 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", OPS, **BY_NAME)
def test_a_small_format_in_full_and_some_vectors(chain: Evm, reference: Reference, op: Opcode) -> None:
    tasks = [*on_chain.format_tasks(op, SAMPLE), *on_chain.vector_tasks(op, FEW)]
    assert_equal(chain, reference, tasks, len(SAMPLE[ARITY[op]].words) ** ARITY[op] + FEW)


@pytest.mark.slow
@pytest.mark.words
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("op", OPS, **BY_NAME)
def test_the_reduced_format_in_full(chain: Evm, reference: Reference, op: Opcode) -> None:
    tasks = on_chain.format_tasks(op, REDUCED)
    assert_equal(chain, reference, tasks, len(REDUCED[ARITY[op]].words) ** ARITY[op])


@pytest.mark.slow
@pytest.mark.words
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("op", OPS, **BY_NAME)
def test_a_million_vectors(chain: Evm, reference: Reference, op: Opcode) -> None:
    assert_equal(chain, reference, on_chain.vector_tasks(op, MILLION), MILLION)


@pytest.mark.slow
def test_a_wrong_line_shows_in_a_small_format(chain: Evm, reference: Reference) -> None:
    source = FLOAT32.read_text()
    line = "add(shl(sub(256, e), x), and(r, 1)), HALF)"
    assert line in source, "ties to even"
    mutant = chain.with_float32(source.replace(line, "shl(sub(256, e), x), HALF)", 1))
    (outcome,) = on_chain.run([mutant], reference, on_chain.format_tasks(Opcode.FFMA, SAMPLE))
    assert outcome.mismatches, "some triple is half way"
