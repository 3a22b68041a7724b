"""A claim that a machine would make is compared with other code, in full or by samples, before it joins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.execution import comparing
from lockstep.execution.comparing import check_job, portable_of
from lockstep.execution.jobs import Job
from lockstep.numerics.executor import Executable
from lockstep.protocol.errors import WrongBits
from lockstep.protocol.programs.program import Fold, Kind, Program
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.support.wrong import one_bit_off, turned

EVERY_WORD, SAMPLES = comparing.EXACT_OPERATIONS, 0


@pytest.fixture(params=[0, 1, 2], ids=["floats", "codes", "codes in a matrix"])
def toy(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return toyjob.load(DirectoryStore(tmp_path), threads=2, integers=request.param)


@pytest.fixture(params=[EVERY_WORD, SAMPLES], ids=["every word", "samples"])
def exact(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def products(program: Program) -> list[int]:
    return [i for i, op in enumerate(program.ops) if op.kind == Kind.FOLD and op.mode in (Fold.DOT, Fold.QDOT)]


def native(executable: Executable) -> bool:
    return executable.path != "portable"


def plant_in_sweep(monkeypatch: pytest.MonkeyPatch, program: Program, op: int, element: int) -> None:
    """One element of an op is wrong where all ops are shown, and on demand; the next ones are computed from it."""
    sweep, outputs = Executable.sweep, Executable.outputs

    def wrong(words: Any) -> Any:
        copy = np.array(words)
        copy.reshape(-1).view(np.uint32)[element] ^= 1
        return copy

    def swept(self: Executable, state: Any, context: Any, dataset: Any, visit: Callable[[int, Any], None]) -> None:
        def seen(i: int, words: Any) -> None:
            visit(i, wrong(words) if i == op else words)

        sweep(self, state, context, dataset, seen if self.program is program and native(self) else visit)

    def made(self: Executable, state: Any, context: Any, dataset: Any, ops: frozenset[int]) -> dict[int, Any]:
        found = outputs(self, state, context, dataset, ops)
        if op in found and self.program is program and native(self):
            found[op] = wrong(found[op])
        return found

    monkeypatch.setattr(Executable, "sweep", swept)
    monkeypatch.setattr(Executable, "outputs", made)


def test_a_right_executor_passes(toy: Job, exact: int) -> None:
    check_job(toy, exact)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["step", "encode", "merge"])
def test_one_wrong_bit_of_the_state_that_is_claimed_is_found(
    toy: Job, exact: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, advance = getattr(toy.programs, name), Executable.advance

    def wrong(self: Executable, *arguments: Any) -> Any:
        found = advance(self, *arguments)
        return one_bit_off(found) if self.program is program else found

    monkeypatch.setattr(Executable, "advance", wrong)
    with pytest.raises(WrongBits, match=f"Program '{name}' .*entry 0 of the state .*element 0 is 0x"):
        check_job(toy, exact)


def test_every_product_is_compared_and_named(toy: Job, exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = toy.programs.step
    assert len(products(program)) > 1
    for op in products(program):
        with monkeypatch.context() as patched:
            plant_in_sweep(patched, program, op, 0)
            with pytest.raises(WrongBits, match=rf"'step' .*op {op} \({program.name_of(op)}.*\), element 0 is 0x"):
                check_job(toy, exact)


@pytest.mark.sampled(1)
def test_ops_of_every_kind_are_sampled(toy: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    program = toy.programs.step
    for op in range(len(program.ops)):
        with monkeypatch.context() as patched:
            plant_in_sweep(patched, program, op, program.ops[op].header.elements - 1)
            with pytest.raises(WrongBits, match=rf"op {op} \("):
                check_job(toy, SAMPLES)


def test_the_second_step_is_compared_of_the_jobs_own_rows(toy: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, Any]] = []
    materialise = comparing.materialise

    def watched(executable: Executable, state: Any, context: Any, rows: Any) -> Any:
        seen.append((context.t, rows))
        return materialise(executable, state, context, rows)

    monkeypatch.setattr(comparing, "materialise", watched)
    check_job(toy)
    assert [t for t, _ in seen] == [2, toyjob.STEPS + 1, 1]
    assert all(rows is toy.dataset for _, rows in seen)


def test_the_portable_executor_runs_beside_compiled_kernels(toy: Job) -> None:
    run, slow = toy.executable(toy.programs.encode), portable_of(toy.programs.encode)
    state = [None if h is None else np.ones(h.shape, np.int32 if h.dtype else np.float32) for h in run.program.inputs]
    context = toyjob_context()
    for own, other in zip(run.run(state, context), slow.run(state, context), strict=True):
        assert (own is None) == (other is None)
        assert own is None or other is None or np.array_equal(own, other)
    assert not np.array_equal(turned(state[0]), np.asarray(state[0]))


def toyjob_context() -> Any:
    from lockstep.numerics.arrays import StepContext

    return StepContext(bytes(32), 0, 0, 1)
