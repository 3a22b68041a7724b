"""Training on the CUDA path, the state on the device from step to step: the roots are the processor's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.cuda import CudaExecutable, open_device, wide
from lockstep.numerics.cuda.device import UNITS, Device
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.trace import layout_root
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Program
from tests.determinism import training_run
from tests.determinism.training_run import GOLDEN, SEED, gpt, start, train
from tests.unit.numerics.test_cuda_codes import FORMS, take

MODELS = ("gpt", "llama", "encoder", "cnn", "lora")


@pytest.fixture(scope="module")
def program() -> Program:
    return gpt()


def trained(program: Program, device: Device, steps: int, state: Sequence[Array | None], dataset: Array) -> str:
    """The root after some steps, as hex."""
    executable = CudaExecutable(program, device=device)
    dataset.flags.writeable = False
    resident = executable.upload(state)
    for t in range(1, steps + 1):
        resident = executable.step(resident, StepContext(SEED, 0, 1, t), dataset)
    return executable.root(resident).hex()


@pytest.mark.parametrize("descending", [False, True])
def test_three_emulated_steps(program: Program, descending: bool) -> None:
    found = trained(program, Emulator(descending=descending), 3, *start(program))
    assert found == train(program, 3, "auto", 1, "off")


@pytest.fixture(scope="module", params=training_run.MODELS)
def integers(request: pytest.FixtureRequest) -> Program:
    """A step whose products are products of codes."""
    return training_run.MODELS[request.param]("int8")


@pytest.mark.parametrize("descending", [False, True])
def test_three_emulated_steps_of_integers(integers: Program, descending: bool) -> None:
    found = trained(integers, Emulator(descending=descending), 3, *start(integers))
    assert found == train(integers, 3, "auto", 1, "off")


@pytest.mark.parametrize("model", training_run.MODELS)
@pytest.mark.parametrize("products", ["float32", "int8"])
def test_three_emulated_steps_with_attention_in_tiles(
    model: str, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows of 16 tokens, whose attention is too small for tiles elsewhere."""
    monkeypatch.setattr(wide, "LEAST_WORDS", 2 * 2 * 16 * 16)
    monkeypatch.setattr(wide, "LEAST_BLOCKS", 1)
    monkeypatch.setattr(wide, "LEAST_GROUP", 1)
    program = training_run.MODELS[model](products)
    device = Emulator(descending=model == "llama")
    assert trained(program, device, 3, *start(program)) == train(program, 3, "auto", 1, "off")
    assert device.intact, "a kernel wrote beyond its tensor"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_three_emulated_steps_of_integers_in_every_form(
    integers: Program, unit: str, descending: bool, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(form, monkeypatch)
    device = Emulator(unit=unit, descending=descending)
    assert trained(integers, device, 3, *start(integers)) == train(integers, 3, "auto", 1, "off")
    assert device.intact, "a kernel wrote beyond its tensor"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", GOLDEN)
def test_emulated_training_of_integers_ends_in_the_processors_state(integers: Program, steps: int) -> None:
    assert trained(integers, Emulator(), steps, *start(integers)) == train(integers, steps, "auto", 1, "off")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", GOLDEN)
def test_emulated_training_ends_in_the_golden_state(program: Program, steps: int) -> None:
    assert trained(program, Emulator(), steps, *start(program)) == GOLDEN[steps]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_emulated_steps(name: str) -> None:
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models import loss_of
    from lockstep.training.parameters import initial_parameters
    from lockstep.training.strategies import diloco
    from tests.unit.training.test_models import rows, small

    model, length = small(name)
    batch = Batch(4, length)
    program = build_programs(model, loss_of(model), diloco.Spec(), batch=batch, rounds=1, slots=2).step
    flat, dataset = initial_parameters(model, 1), rows(length)
    zero = np.zeros_like(flat)
    begin: list[Array | None] = [flat, None, flat, None, zero, zero, np.array(0, np.int32), None]
    executable, state = paths.compile(program, fused="off"), begin
    for t in range(1, 4):
        state = list(executable.run(state, StepContext(SEED, 0, 1, t), dataset))
    assert trained(program, Emulator(), 3, begin, dataset) == layout_root(program.output_layout, state).hex()


@pytest.mark.cuda
@pytest.mark.parametrize("steps", GOLDEN)
def test_training_of_integers_on_the_device_ends_in_the_processors_state(integers: Program, steps: int) -> None:
    try:
        device = open_device()
    except UsageError as error:
        pytest.skip(str(error))
    assert trained(integers, device, steps, *start(integers)) == train(integers, steps, "auto", 1, "off")


@pytest.mark.cuda
@pytest.mark.parametrize("steps", GOLDEN)
def test_training_on_the_device_ends_in_the_golden_state(program: Program, steps: int) -> None:
    try:
        device = open_device()
    except UsageError as error:
        pytest.skip(str(error))
    assert trained(program, device, steps, *start(program)) == GOLDEN[steps]
