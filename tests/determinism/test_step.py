"""One training step, one sequence of state roots: on every path, thread count, process and float environment."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lockstep.numerics import arrays, paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.libraries import find_compiler
from lockstep.numerics.trace import layout_root, materialise
from lockstep.protocol.programs.program import Program
from tests.unit.numerics.comparison import PATHS

STEPS = 3
SEED = bytes(range(32))


@pytest.fixture(scope="module", params=["float32", "int8"])
def step(request: pytest.FixtureRequest) -> Program:
    """A GPT's training step, with folds over more than 256 terms, or with products of codes in their place."""
    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models import GPT, GPTConfig
    from lockstep.training.models.gpt import next_token_loss
    from lockstep.training.strategies import diloco

    model = GPT(GPTConfig(vocabulary=64, context=16, layers=2, heads=2, width=80))
    batch = Batch(rows=4, row_length=17)
    return build_programs(
        model, next_token_loss, diloco.DiLoCo(), batch=batch, rounds=2, slots=2, arithmetic=Arithmetic(request.param)
    ).step


def start(program: Program) -> tuple[list[Array | None], Array]:
    """A state of small parameters and zero moments, and a dataset."""
    rng = np.random.default_rng(0)
    state: list[Array | None] = []
    for k, header in enumerate(program.inputs):
        zeros = None if header is None else np.zeros(header.shape, arrays.DTYPES[header.dtype])
        state.append(zeros)
        if k in (0, 2) and zeros is not None:
            state[k] = (np.random.default_rng(1).standard_normal(zeros.shape) * 0.02).astype(np.float32)
    return state, rng.integers(0, 64, (100, 17)).astype(np.int32)


def roots(program: Program, path: str, threads: int, fused: str = "off") -> list[str]:
    """S_1 .. S_STEPS."""
    executable = paths.compile(program, path=path, threads=threads, fused=fused)
    state, dataset = start(program)
    found = []
    for t in range(1, STEPS + 1):
        state = list(executable.run(state, StepContext(SEED, 2, 1, t), dataset))
        found.append(layout_root(program.output_layout, state).hex())
    return found


@pytest.fixture(scope="module")
def expected(step: Program) -> Sequence[str]:
    return roots(step, "scalar", 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("path", PATHS)
def test_roots_do_not_depend_on_path_or_threads(
    step: Program, expected: Sequence[str], path: str, threads: int
) -> None:
    assert roots(step, path, threads) == expected


@pytest.mark.sampled(1)
@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("path", PATHS)
def test_roots_are_those_of_compiled_maps(
    step: Program, expected: Sequence[str], path: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    assert roots(step, path, threads, fused="require") == expected


@pytest.mark.sampled(1)
def test_roots_do_not_depend_on_what_is_kept(step: Program, expected: Sequence[str]) -> None:
    state, dataset = start(step)
    traced = materialise(paths.compile(step), state, StepContext(SEED, 2, 1, 1), dataset)
    assert traced.root.hex() == expected[0]


@pytest.mark.sampled(1)
def test_roots_are_those_of_another_process_without_torch(
    step: Program, expected: Sequence[str], tmp_path: Path
) -> None:
    place = tmp_path / "step.pickle"
    place.write_bytes(pickle.dumps(step))
    code = (
        "import pickle, sys; from tests.determinism.test_step import roots;"
        f"print(*roots(pickle.load(open({str(place)!r}, 'rb')), 'auto', 2)); sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threads", [1, 2])
def test_roots_do_not_depend_on_the_callers_float_environment(
    step: Program, expected: Sequence[str], threads: int
) -> None:
    """A caller that flushes subnormals gets the same bits, and its own mode back."""
    import torch

    least = torch.tensor([1e-40])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert roots(step, "auto", threads) == expected
        assert (least * 1.0).item() == 0.0, "the caller's mode is restored"
    finally:
        torch.set_flush_denormal(False)
