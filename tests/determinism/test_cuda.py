"""A GPT trained on the CUDA path, its state on the device from step to step: the roots are the processor's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.numerics import executor
from lockstep.numerics.cuda import CudaExecutable, default_device
from lockstep.numerics.cuda.device import Device
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.executor import Context
from lockstep.numerics.trace import layout_root
from lockstep.protocol.errors import UsageError
from lockstep.protocol.program import Program
from tests.determinism.test_step import SEED, start


@pytest.fixture(scope="module")
def program() -> Program:
    """A GPT's training step, with folds over more than 256 terms."""
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models import GPT, GPTConfig
    from lockstep.training.models.gpt import next_token_loss
    from lockstep.training.strategies import diloco

    model = GPT(GPTConfig(vocabulary=64, context=16, layers=2, heads=2, width=80))
    batch = Batch(rows=4, row_length=17)
    return build_programs(model, next_token_loss, diloco.Spec(), batch=batch, rounds=2, slots=2).step


def processor_roots(program: Program, steps: int) -> Iterator[str]:
    executable = executor.compile(program, fused="off")
    state, dataset = start(program)
    for t in range(1, steps + 1):
        state = list(executable.run(state, Context(SEED, 2, 1, t), dataset))
        yield layout_root(program.output_layout, state).hex()


def device_roots(program: Program, device: Device, steps: int) -> Iterator[str]:
    executable = CudaExecutable(program, device=device)
    arrays, dataset = start(program)
    dataset.flags.writeable = False
    state = executable.upload(arrays)
    for t in range(1, steps + 1):
        state = executable.step(state, Context(SEED, 2, 1, t), dataset)
        yield executable.root(state).hex()


def assert_equal(program: Program, device: Device, steps: int) -> None:
    pairs = zip(device_roots(program, device, steps), processor_roots(program, steps), strict=True)
    for t, (found, due) in enumerate(pairs, 1):
        assert found == due, f"S_{t}"


@pytest.mark.parametrize("descending", [False, True])
def test_three_emulated_steps(program: Program, descending: bool) -> None:
    assert_equal(program, Emulator(descending=descending), 3)


@pytest.mark.slow
def test_a_hundred_emulated_steps(program: Program) -> None:
    assert_equal(program, Emulator(), 100)


@pytest.mark.cuda
def test_a_hundred_steps_on_the_device(program: Program) -> None:
    try:
        device = default_device()
    except UsageError as error:
        pytest.skip(str(error))
    assert_equal(program, device, 100)
