"""Training on the CUDA path, the state on the device from step to step: the roots are the processor's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.cuda import CudaExecutable, loaded, open_device, wide
from lockstep.numerics.cuda.device import UNITS, Device
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.trace import layout_root
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import F32, Program
from tests.determinism import training_run
from tests.determinism.training_run import GOLDEN, SEED, gpt, start, train
from tests.unit.numerics.test_cuda_codes import FORMS, take

MODELS = ("gpt", "llama", "encoder", "cnn", "lora")
LENGTHS = [pytest.param(steps, marks=pytest.mark.long if steps > 100 else ()) for steps in GOLDEN]
"""Steps on the emulated device."""


@pytest.fixture(scope="module")
def device() -> Device:
    """This machine's; it is asked for before anything is traced for it."""
    try:
        return open_device()
    except UsageError as error:
        pytest.skip(str(error))


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


@pytest.mark.slow
@pytest.mark.parametrize("descending", [False, True])
def test_three_emulated_steps(program: Program, descending: bool) -> None:
    found = trained(program, Emulator(descending=descending), 3, *start(program))
    assert found == train(program, 3, "auto", 1, "off")


@pytest.fixture(scope="module", params=training_run.MODELS)
def integers(request: pytest.FixtureRequest) -> Program:
    """A step whose products are products of codes."""
    return training_run.MODELS[request.param]("int8")


@pytest.mark.slow
@pytest.mark.parametrize("descending", [False, True])
def test_three_emulated_steps_of_integers(integers: Program, descending: bool) -> None:
    found = trained(integers, Emulator(descending=descending), 3, *start(integers))
    assert found == train(integers, 3, "auto", 1, "off")


@pytest.mark.slow
@pytest.mark.parametrize("name", training_run.MODELS)
@pytest.mark.parametrize("products", ["float32", "int8"])
def test_emulated_steps_with_attention_in_tiles(name: str, products: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of two heads, or of four of which two share keys, over 40 tokens: less than what takes tiles elsewhere."""
    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models import GPT, GPTConfig, Llama, LlamaConfig, next_token_loss
    from lockstep.training.strategies import diloco

    tokens, rng = 40, np.random.default_rng(5)
    model = (
        GPT(GPTConfig(vocabulary=32, context=tokens, layers=1, heads=2, width=48))
        if name == "gpt"
        else Llama(LlamaConfig(vocabulary=32, context=tokens, layers=1, heads=4, kv_heads=2, width=48, hidden=40))
    )
    programs = build_programs(
        model, next_token_loss, diloco.DiLoCo(), batch=Batch(1, tokens + 1), rounds=1, slots=2,
        arithmetic=Arithmetic(products),
    )  # fmt: skip
    program = programs.step
    begin: list[Array | None] = [
        None if h is None else np.zeros(h.shape, np.float32 if h.dtype == F32 else np.int32) for h in program.inputs
    ]
    for k in (0, 2):  # the parameters and the round's anchor
        own = begin[k]
        assert own is not None
        begin[k] = np.random.default_rng(1).standard_normal(own.shape, np.float32) * np.float32(0.05)
    dataset = rng.integers(0, 32, (16, tokens + 1)).astype(np.int32)
    monkeypatch.setattr(wide, "LEAST_WORDS", 2 * tokens * tokens)
    monkeypatch.setattr(wide, "LEAST_BLOCKS", 1)
    monkeypatch.setattr(loaded, "WHOLE", 0.0)
    assert generate(program, 99 << 10).source.count("_tiles{") == 7, "three reductions forward, four backward"
    device = Emulator(descending=name == "llama")
    executable, state = paths.compile(program, fused="off"), begin
    for t in range(1, 4):
        state = list(executable.run(state, StepContext(SEED, 0, 1, t), dataset))
    assert trained(program, device, 3, begin, dataset) == layout_root(program.output_layout, state).hex()
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
@pytest.mark.parametrize("steps", LENGTHS)
def test_emulated_training_of_integers_ends_in_the_processors_state(integers: Program, steps: int) -> None:
    assert trained(integers, Emulator(), steps, *start(integers)) == train(integers, steps, "auto", 1, "off")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", LENGTHS)
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
    program = build_programs(model, loss_of(model), diloco.DiLoCo(), batch=batch, rounds=1, slots=2).step
    flat, dataset = initial_parameters(model, 1), rows(length)
    zero = np.zeros_like(flat)
    begin: list[Array | None] = [flat, None, flat, None, zero, zero, np.array(0, np.int32), None]
    executable, state = paths.compile(program, fused="off"), begin
    for t in range(1, 4):
        state = list(executable.run(state, StepContext(SEED, 0, 1, t), dataset))
    assert trained(program, Emulator(), 3, begin, dataset) == layout_root(program.output_layout, state).hex()


@pytest.mark.cuda
@pytest.mark.parametrize("steps", GOLDEN)
def test_training_of_integers_on_the_device_ends_in_the_processors_state(
    device: Device, integers: Program, steps: int
) -> None:
    assert trained(integers, device, steps, *start(integers)) == train(integers, steps, "auto", 1, "off")


@pytest.mark.cuda
@pytest.mark.parametrize("steps", GOLDEN)
def test_training_on_the_device_ends_in_the_golden_state(device: Device, program: Program, steps: int) -> None:
    assert trained(program, device, steps, *start(program)) == GOLDEN[steps]
