"""A GPT's state after many steps is one committed hash, whatever compiled the code, and however it runs.

Of models whose products are integers, no hash is committed: every way ends in the state that the scalar path ends in.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.numerics.libraries import find_compiler
from lockstep.protocol.programs.program import Kind, Program
from tests.determinism import training_run
from tests.determinism.training_run import COMPILERS, GOLDEN, STEPS, Way
from tests.unit.numerics.comparison import PATHS

SHORT, FEW = 50, 10
HOURS = 4 * 3600


@pytest.fixture(scope="module")
def program() -> Program:
    return training_run.gpt()


@pytest.fixture(scope="module", params=training_run.MODELS)
def integers(request: pytest.FixtureRequest) -> Program:
    """A step whose products are products of codes, gradients rounded stochastically."""
    program = training_run.MODELS[request.param]("int8")
    assert sum(op.is_qdot for op in program.ops) > 20
    return program


@pytest.fixture(scope="module")
def tenth(integers: Program) -> str:
    """S_10, as one thread of the scalar path has it."""
    return training_run.train(integers, FEW, "scalar", 1, "off")


def assert_golden(ways: Sequence[Way], steps: int) -> None:
    """Of every way that this machine has, and there is one."""
    assert any(way.root for way in ways), ways
    wrong = [way for way in ways if way.root not in (None, GOLDEN[steps])]
    assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in PATHS if path != "scalar"] or PATHS)
def test_fifty_steps_end_in_the_golden_state(program: Program, path: str) -> None:
    assert training_run.train(program, SHORT, path, 2, "off") == GOLDEN[SHORT]


@pytest.mark.slow
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_fifty_steps_of_compiled_maps_end_in_the_golden_state(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    assert training_run.train(program, SHORT, "auto", 2, "require") == GOLDEN[SHORT]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", training_run.THREADS)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "scalar"] or PATHS)
def test_ten_steps_of_integers_end_alike(integers: Program, tenth: str, path: str, threads: int) -> None:
    assert training_run.train(integers, FEW, path, threads, "off") == tenth


@pytest.mark.slow
def test_a_state_of_integers_is_not_that_of_another_arithmetic(tenth: str, integers: Program) -> None:
    """The state depends on the products: without stochastic rounding another state comes of it."""
    nearest = replace(integers, ops=tuple(replace(op, p1=0) if op.kind == Kind.QUANT else op for op in integers.ops))
    assert training_run.train(nearest, FEW, "auto", 2, "off") != tenth


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(HOURS)
def test_fifty_steps_of_integers_end_alike_on_every_build(integers: Program) -> None:
    """Both compilers, every path, one and two threads, maps interpreted and compiled."""
    ways = [way for compiler in COMPILERS for way in training_run.ways_of_build(integers, SHORT, compiler)]
    roots = {way.root for way in ways if way.root}
    assert len([way for way in ways if way.root]) >= 8, ways
    assert len(roots) == 1, ways


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++ on this machine")
def test_a_clang_build_ends_in_the_golden_state(program: Program) -> None:
    """On every path, at one and two threads, interpreted and compiled."""
    assert_golden(list(training_run.ways_of_build(program, SHORT, "clang++")), SHORT)


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
def test_a_thousand_steps_end_in_the_golden_state(program: Program) -> None:
    """On the fastest path; `python -m tests.determinism.training_run` takes every way there is."""
    assert training_run.train(program, STEPS, "auto", 2, "off") == GOLDEN[STEPS]
