"""A GPT's state after many steps is one committed hash, whatever compiled the code, and however it runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.numerics.libraries import find_compiler
from lockstep.protocol.programs.program import Program
from tests.determinism import training_run
from tests.determinism.training_run import COMPILERS, GOLDEN, STEPS, Way
from tests.unit.numerics.comparison import PATHS

SHORT = 50
HOURS = 4 * 3600


@pytest.fixture(scope="module")
def program() -> Program:
    return training_run.gpt()


def assert_golden(ways: Sequence[Way], steps: int) -> None:
    """Of every way that this machine has, and there is one."""
    assert any(way.root for way in ways), ways
    wrong = [way for way in ways if way.root not in (None, GOLDEN[steps])]
    assert not wrong, wrong


@pytest.mark.parametrize("path", [path for path in PATHS if path != "scalar"] or PATHS)
def test_fifty_steps_end_in_the_golden_state(program: Program, path: str) -> None:
    assert training_run.train(program, SHORT, path, 2, "off") == GOLDEN[SHORT]


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_fifty_steps_of_compiled_maps_end_in_the_golden_state(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    assert training_run.train(program, SHORT, "auto", 2, "require") == GOLDEN[SHORT]


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
@pytest.mark.skipif(shutil.which("clang++") is None, reason="no clang++ on this machine")
def test_a_clang_build_ends_in_the_golden_state(program: Program) -> None:
    """On every path, at one and two threads, interpreted and compiled."""
    assert_golden(list(training_run.ways_of_build(program, SHORT, "clang++")), SHORT)


@pytest.mark.slow
@pytest.mark.timeout(HOURS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_thousand_steps_end_in_the_golden_state(program: Program, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    assert_golden(list(training_run.ways_of_build(program, STEPS, compiler)), STEPS)
