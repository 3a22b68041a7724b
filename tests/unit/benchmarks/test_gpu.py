"""benchmarks/gpu.py on the emulated device: products of every kind, roots, and a device whose roots are others."""

from __future__ import annotations

import json
import pickle
from argparse import Namespace
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._inductor.config import patch

from benchmarks import gpu
from lockstep.numerics import paths
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Program
from lockstep.training.job import Batch
from tests.support.emulation import Mutant
from tests.support.toyjob import TERMS, step_program
from tests.unit.numerics.comparison import words

CASE = gpu.Workload(lambda: pytest.fail("no model is built"), 1000, Batch(1, TERMS))
CONTEXT = StepContext(gpu.SEED, 0, 0, 1)
DEFECT = "exact * (rows * columns)", "exact * rows * columns"


@pytest.fixture(scope="module")
def toy() -> Program:
    """A step with a product of codes."""
    return step_program(integers=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", gpu.RIVALS)
def test_a_product_is_that_of_its_operands(kind: str) -> None:
    program, (m, k, n) = gpu.product(kind, 5, 300, 7, 2), (5, 300, 7)
    given = gpu.operands_of(program)
    found = CudaExecutable(program, device=Emulator()).run(given, CONTEXT)
    due = paths.compile(program, fused="off").run(given, CONTEXT)
    for own, other in zip(found, due, strict=True):
        assert own is not None
        assert own.shape == (m, n)
        np.testing.assert_array_equal(words(own), words(other))
    if kind == gpu.FLOATS:
        left, right = (np.reshape(array, (-1, k)) for array in given[:2] if array is not None)
        np.testing.assert_allclose(found[0], left @ right.T, rtol=1e-4, atol=1e-4)  # type: ignore[arg-type]


def test_every_kind_of_product_has_rivals_and_only_its_own_kernels() -> None:
    kinds = {kind: gpu.generate(gpu.product(kind, 64, 256, 64, 1)).source for kind in gpu.RIVALS}
    assert [("multiply_codes<" in text, "quantise(" in text) for text in kinds.values()] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip


@pytest.mark.slow
def test_roots_are_compared_until_one_differs(toy: Program) -> None:
    due = list(islice(gpu.processor_roots(toy, CASE, 1), 3))
    same = gpu.compare_roots(Emulator(), "toy", "int8", toy, CASE, 100, due)
    assert (same.equal, same.steps, same.last) == (3, 3, due[-1]), "no more of them are due"
    other = gpu.compare_roots(Mutant(*DEFECT), "toy", "int8", toy, CASE, 3, gpu.processor_roots(toy, CASE, 1))
    assert other.equal < 3
    assert other.steps == 3


def test_kernels_launches_and_memory_are_told(toy: Program) -> None:
    device = Emulator()
    start = gpu.time_kernels(device, "toy", "int8", toy)
    launched: list[str] = []
    executable = CudaExecutable(toy, device=device)
    state, dataset = gpu.beginning(toy, CASE)
    kernels = executable._loaded._kernels

    class Counting:
        def launch(self, name: str, *rest: int) -> None:
            launched.append(name)
            kernels.launch(name, *rest)

    executable._loaded._kernels = Counting()
    executable.step(executable.upload(state), CONTEXT, dataset)
    assert start.launches == len(launched)
    assert start.kernels >= len(set(launched)) > 1
    assert 0 < start.megabytes <= start.shown_megabytes


def test_the_profile_has_every_launch_of_the_slowest_kernels(toy: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SLOWEST", 1000)
    device = Emulator()
    found = list(gpu.profile(device, "toy", "int8", toy, CASE, 1))
    launches = gpu.time_kernels(device, "toy", "int8", toy).launches
    assert sum(kernel.launches for kernel in found) == launches
    assert found == sorted(found, key=lambda kernel: -kernel.ms)
    rounding = 5e-4 * len(found)
    assert sum(kernel.share for kernel in found) == pytest.approx(1, abs=rounding + 1e-9)


def test_roots_that_are_due_are_written_once_and_results_as_they_come(
    toy: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MODELS", {"toy": CASE})
    monkeypatch.setattr(gpu, "open_device", Emulator)
    steps, due, lines = tmp_path / "steps", tmp_path / "due", tmp_path / "lines"
    steps.write_bytes(pickle.dumps({("toy", "int8"): toy}))
    given = ["--model", "toy", "--products", "int8", "--program", str(steps), "--due", str(due), "--lines", str(lines)]
    assert gpu.main([*given, "--steps", "2"]) == 0
    assert not lines.exists(), "the device is not asked"
    roots = json.loads(due.read_text())["toy int8"]
    assert len(roots) == 2
    assert gpu.main([*given, "--stages", "selftest", "roots"]) == 0
    tested, compared = map(json.loads, lines.read_text().splitlines())
    assert tested["what"] == "selftest"
    assert (compared["equal"], compared["last"]) == (2, roots[1])
    due.write_text(json.dumps({"toy int8": [roots[0], roots[0]]}))
    assert gpu.main([*given, "--stages", "roots"]) == 1, "a root that differs"


def test_a_machine_without_a_device_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise UsageError("no CUDA device: none", hint="use another machine")

    monkeypatch.setattr(gpu, "open_device", none)
    assert gpu.main(["--json"]) == 0
    assert '"results": [], "skipped": "no CUDA device: none' in capsys.readouterr().out


def test_a_root_that_differs_is_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"what": "roots", "equal": 2, "steps": 3}
    monkeypatch.setattr(gpu, "measure", lambda given: {"results": [row], "device": "a device"})
    assert gpu.main([]) == 1
    row["equal"] = 3
    assert gpu.main([]) == 0


def test_models_and_arithmetics_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Namespace] = []

    def measure(given: Namespace) -> dict[str, object]:
        asked.append(given)
        return {"results": []}

    monkeypatch.setattr(gpu, "measure", measure)
    gpu.main([])
    gpu.main(["--model", "gpt-small", "--products", "int8"])
    assert [(given.model, given.products) for given in asked] == [
        ([*gpu.MODELS], ["float32", "int8"]), (["gpt-small"], ["int8"]),
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        gpu.main(["--model", "gpt-5"])


def test_the_emulated_device_has_a_model_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--emulate", "--model", "gpt-small"])
    assert ended.value.code == 2
    assert "leave out --model" in capsys.readouterr().err


@pytest.mark.parametrize("others", [["--emulate", "--program", "F"], ["--trace", "F", "--program", "F"]])
def test_one_way_to_the_programs_is_taken(others: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(others)
    assert "not allowed with" in capsys.readouterr().err


ASKED = Namespace(model=["gpt-small"], products=["float32", "int8"])


def test_traced_steps_are_read(tmp_path: Path, toy: Program) -> None:
    file = tmp_path / "steps"
    written = {("gpt-small", "float32"): toy, ("gpt-small", "int8"): toy, ("llama-124m", "int8"): toy}
    file.write_bytes(pickle.dumps(written))
    assert gpu.read(file, ASKED) == written


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (lambda toy: pickle.dumps({("gpt-small", "int8"): toy}), "has no step of gpt-small float32"),
        (lambda toy: pickle.dumps({("gpt2-124m", "int8"): toy}), "no step of gpt-small float32, gpt-small int8"),
        (lambda toy: pickle.dumps(toy), "of another form than --trace writes: Program"),
        (lambda toy: pickle.dumps({"gpt-small": b""}), "of another form than --trace writes: dict"),
        (lambda toy: b"clockstep.protocol.programs.program\nGraph\n.", "is not what --trace writes: "),
        (lambda toy: pickle.dumps(toy)[:-9], "is not what --trace writes: "),
        (lambda toy: b"", "is not what --trace writes: "),
        (lambda toy: None, "cannot be read: No such file"),
    ],
    ids=["an arithmetic", "a model", "one Program", "no Programs", "a class that has gone", "cut", "empty", "no file"],
)
def test_a_file_without_what_is_asked_for_is_refused(
    content: Callable[[Program], bytes | None],
    said: str,
    tmp_path: Path,
    toy: Program,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "steps"
    if (data := content(toy)) is not None:
        file.write_bytes(data)
    with pytest.raises(UsageError, match=said) as refused:
        gpu.read(file, ASKED)
    assert "--trace FILE, with the same --model and --products" in refused.value.hint
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--model", "gpt-small", "--program", str(file)])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert refused.value.hint in told


def test_codes_of_the_rival_end_at_127() -> None:
    found = {}
    for arithmetic in ("int8", "tf32", "bfloat16"):
        torch.manual_seed(0)
        found[arithmetic] = gpu.rival_operand(arithmetic, 64, 1024, "cpu")
    assert [array.dtype for array in found.values()] == [torch.int8, torch.float32, torch.bfloat16]
    assert found["tf32"].abs().max() > 128, "some values have no code"
    assert torch.equal(found["int8"].float(), found["tf32"].clamp(-127, 127).trunc())


def compiled(backend: Any) -> torch.Tensor:
    """A call that torch.compile compiles first."""
    torch.compiler.reset()
    return torch.compile(torch.cos, backend=backend)(torch.ones(3))


def without_a_compiler() -> object:
    with patch({"cpp.cxx": ("/no/compiler",), "force_disable_caches": True}):
        return compiled("inductor")


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def out_of_memory_compiling() -> object:
    return compiled(out_of_memory)


def a_defect(*_: object) -> None:
    raise RuntimeError("shapes differ")


def steps(monkeypatch: pytest.MonkeyPatch, fails: dict[tuple[str, bool], Callable[[], object]]) -> list[str]:
    """Names of torch's steps where some fail in this way."""

    class Peer:
        def __init__(self, case: gpu.Workload, arithmetic: str, compiled: bool) -> None:
            self.step = fails.get((arithmetic, compiled), lambda: None)

    monkeypatch.setattr(gpu, "Peer", Peer)
    return [*gpu.peers(CASE)]


EAGER = ["torch float32, eager", "torch tf32, eager", "torch bfloat16, eager"]


@pytest.mark.slow
def test_torch_does_not_compile_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steps(monkeypatch, {("float32", True): without_a_compiler}) == EAGER
    told = capsys.readouterr().err
    assert told.startswith("torch.compile is skipped: ")
    assert "/no/compiler" in told


@pytest.mark.parametrize("fails", [out_of_memory, out_of_memory_compiling], ids=["running", "compiling"])
def test_a_step_that_runs_out_of_memory_is_told_as_such(
    fails: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = ["torch float32, compiled", "torch bfloat16, compiled"]
    assert steps(monkeypatch, {("tf32", True): fails}) == [*EAGER, *left]
    told = capsys.readouterr().err
    assert told.startswith("torch tf32, compiled is skipped, it runs out of the device's memory: ")
    assert "torch.compile is skipped" not in told


def test_an_eager_step_may_run_out_of_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(steps(monkeypatch, {("float32", False): out_of_memory})) == 5


@pytest.mark.parametrize("kind", [False, True], ids=["eager", "compiled"])
def test_a_defect_of_a_step_is_no_reason_to_skip_it(kind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="shapes differ"):
        steps(monkeypatch, {("float32", kind): a_defect})


@pytest.mark.slow
def test_an_eager_step_is_not_excused_by_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="/no/compiler"):
        steps(monkeypatch, {("float32", False): without_a_compiler})
