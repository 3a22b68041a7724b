"""A small model trained for many steps, and the root of its last state: on every build, path and thread count.

    python -m tests.determinism.training_run                 1,000 steps of everything that this machine has; a table
    python -m tests.determinism.training_run --steps 50
    python -m tests.determinism.training_run --products int8 --model llama
    python -m tests.determinism.training_run --odd                   the nets of benchmarks/nets.py

Every build runs in a process of its own, without torch.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import shake_256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.numerics import arrays, paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.trace import layout_root, tensor_root
from lockstep.protocol.programs.program import Program

ROOT = Path(__file__).resolve().parents[2]
STEPS = 1000
SEED = bytes(range(32))
VOCABULARY, ROW_LENGTH, ROWS = 64, 17, 512
PATHS = tuple(reversed(_native.paths()))
THREADS = (1, 2)
COMPILERS = ("g++", "clang++")

FUSED = ("off", "require")
CODE = {"off": "interpreted", "require": "compiled   "}

GOLDEN = {
    50: "d7f40c6801b24628b302e6669abf3719b48e1f50eba75d6fa6afc4b38d5c87fe",
    1000: "275adce3559fccec3865125119dbb5e8858430604e17488b47ff20e612a98e99",
}
"""S_t by t: of gpt() from start(), whatever computes it. Other models have no state that is written down: all ways to
compute one must agree."""


def gpt(products: str = "float32") -> Program:
    """One training step: forward, backward, clipping, AdamW; folds of more than 256 terms, 130,560 parameters."""
    from lockstep.training.models import GPT, GPTConfig

    return _step(GPT(GPTConfig(vocabulary=VOCABULARY, context=ROW_LENGTH - 1, layers=2, heads=2, width=72)), products)


def llama(products: str = "float32") -> Program:
    """The same of a model with a gated MLP, two heads to each key and norms without means."""
    from lockstep.training.models import Llama, LlamaConfig

    config = LlamaConfig(
        vocabulary=VOCABULARY, context=ROW_LENGTH - 1, layers=2, heads=4, kv_heads=2, width=64, hidden=300
    )
    return _step(Llama(config), products)


MODELS: dict[str, Callable[[str], Program]] = {"gpt": gpt, "llama": llama}

Start = tuple[list[Array | None], Array]
"""S_0 and the dataset."""


def odd(name: str, products: str = "float32") -> tuple[Program, Start]:
    """A net of odd widths with weights and rows of its own."""
    from benchmarks.nets import BYTES, CLASSES, NETS, SIDE
    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.baseline import flat_parameters
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.parameters import first_statistics, layout_of
    from lockstep.training.strategies import diloco

    net, draw = NETS[name], np.random.default_rng(0)
    length = net.tokens or SIDE * SIDE + 1
    rows = draw.integers(0, BYTES, (ROWS, length)).astype(np.int32)
    if net.tokens is None:
        rows[:, -1] %= CLASSES
    model, spec = net.model(), diloco.DiLoCo(inner_steps=STEPS)
    program = build_programs(
        model, net.loss, spec, batch=Batch(net.rows, length), rounds=1, slots=2, arithmetic=Arithmetic(products)
    ).step
    base = [flat_parameters(model), *(first_statistics(model, layout_of(model)) or (None,))]
    state = [None if h is None else np.zeros(h.shape, arrays.DTYPES[h.dtype]) for h in program.inputs]
    state[: 2 * len(base)] = base * 2  # what is trained, and what it is compared with
    return program, (state, rows)


def _step(model: Any, products: str) -> Program:
    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models import next_token_loss
    from lockstep.training.strategies import diloco

    spec, batch = diloco.DiLoCo(inner_steps=STEPS), Batch(rows=2, row_length=ROW_LENGTH)
    return build_programs(
        model, next_token_loss, spec, batch=batch, rounds=1, slots=2, arithmetic=Arithmetic(products)
    ).step


def start(program: Program) -> Start:
    """S_0 and the dataset, from SHAKE-256 alone: multiples of 2^-20 below 2^-5 for weights, tokens for rows."""
    state: list[Array | None] = [
        None if h is None else np.zeros(h.shape, arrays.DTYPES[h.dtype]) for h in program.inputs
    ]
    weights = state[0]
    assert weights is not None, "the state begins with the parameters"
    numbers = np.frombuffer(shake_256(b"weights").digest(2 * weights.size), "<i2")
    state[0] = (numbers.astype(np.float32) * np.float32(2.0**-20)).reshape(weights.shape)
    state[2] = state[0]  # the anchor
    tokens = np.frombuffer(shake_256(b"rows").digest(ROWS * ROW_LENGTH), np.uint8) % VOCABULARY
    return state, tokens.astype(np.int32).reshape(ROWS, ROW_LENGTH)


def train(program: Program, steps: int, path: str, threads: int, fused: str, given: Start | None = None) -> str:
    """The root of the last state, as hex. The last step is swept and kept, too.

    Raises UsageError for a path that this machine lacks; DoctorError without the compiler that "require" wants.
    """
    executable = paths.compile(program, path=path, threads=threads, fused=fused)
    state, dataset = given or start(program)
    for t in range(1, steps):
        state = list(executable.run(state, StepContext(SEED, 0, 1, t), dataset))
    context = StepContext(SEED, 0, 1, steps)
    kept = executable.run(state, context, dataset, keep=True)
    swept = executable.roots(state, context, dataset)
    wrong = [op for op, array in enumerate(kept) if array is not None and tensor_root(array) != swept[op]]
    assert not wrong, f"ops {wrong} have other words in memory of their own than in a sweep"
    last = layout_root(program.output_layout, list(executable.run(state, context, dataset)))
    assert last == layout_root(program.output_layout, list(executable.select(kept, state))), "a step that is kept"
    return last.hex()


# --- builds -----------------------------------------------------------------------------------------------------------


def build(compiler: str) -> Path | None:
    """The native extension made by a compiler, in out/build; None if the machine lacks it."""
    if shutil.which(compiler) is None:
        return None
    place = ROOT / "out/build" / f"with-{compiler}"
    tools = Path(sys.executable).parent
    cmake = str(tools / "cmake") if (tools / "cmake").exists() else "cmake"
    nanobind = subprocess.check_output([sys.executable, "-m", "nanobind", "--cmake_dir"], text=True).strip()
    configure = [
        cmake, "-S", str(ROOT), "-B", str(place), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_CXX_COMPILER={compiler}", f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}",
        "-DCMAKE_CXX_FLAGS=-Werror",
    ]  # fmt: skip
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
    for command in (configure, [cmake, "--build", str(place), "--target", "_native", "--parallel", "2"]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return next(place.glob("_native*.so"))


# --- every way --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way of computing, and what it gave."""

    compiler: str
    path: str
    threads: int
    fused: str
    """"off": interpreted maps; "require": compiled ones, by the same compiler."""
    root: str | None
    """None: skipped."""
    cpu_seconds: float = 0.0
    """Of all threads; on a busy machine wall time says how long they waited for a core."""
    why: str = ""
    """Of a way that was skipped."""


def ways(program: Program, steps: int, compiler: str, given: Start | None = None) -> Iterator[Way]:
    """Of the build that is loaded in this process."""
    for kind in product(PATHS, THREADS, FUSED):
        begin = time.process_time()
        root = train(program, steps, *kind, given)
        yield Way(compiler, *kind, root, round(time.process_time() - begin, 1))


def ways_of_build(program: Program, steps: int, compiler: str, given: Start | None = None) -> Iterator[Way]:
    """Of a compiler's build, in a process of its own."""
    extension = build(compiler)
    if extension is None:
        yield from (Way(compiler, *kind, None, why=f"no {compiler} here") for kind in product(PATHS, THREADS, FUSED))
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "step.pickle"
        place.write_bytes(pickle.dumps((program, given)))
        command = [
            sys.executable, str(ROOT / "tests/support/with_native.py"), str(extension),
            "-m", "tests.determinism.training_run", "--steps", str(steps), "--program", str(place), "--build", compiler,
        ]  # fmt: skip
        # Passive: on a busy machine threads that spin at a barrier keep those from running that they wait for.
        own = {"CXX": compiler, "LOCKSTEP_CACHE": str(Path(folder) / "cache"), "OMP_WAIT_POLICY": "passive"}
        with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            yield from (Way(**json.loads(line)) for line in child.stdout)
        if child.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")


def main() -> int:
    """Trains in every way; prints a table; 1 if two roots differ, or one is not the golden one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"at most {STEPS}, the schedule's length (default)")
    parser.add_argument("--products", choices=("float32", "int8"), default="float32", help="the model's products")
    parser.add_argument("--model", choices=tuple(MODELS), default="gpt")
    parser.add_argument("--odd", action="store_true", help="nets of odd widths in the place of a model")
    parser.add_argument("--program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        program, given = pickle.loads(arguments.program.read_bytes())
        for way in ways(program, arguments.steps, arguments.build, given):
            print(json.dumps(asdict(way)), flush=True)
        return 0
    if arguments.odd:
        from benchmarks.nets import NETS

        return max(_compare(name, *odd(name, arguments.products), arguments.steps, arguments.products) for name in NETS)
    program = MODELS[arguments.model](arguments.products)
    return _compare(arguments.model, program, None, arguments.steps, arguments.products)


def _compare(name: str, program: Program, given: Start | None, steps: int, products: str) -> int:
    print(f"S_{steps} of {name}, products in {products}, trained from S_0", flush=True)
    found = []
    for compiler in COMPILERS:
        for way in ways_of_build(program, steps, compiler, given):
            found.append(way)
            outcome = f"skipped: {way.why}" if way.root is None else f"{way.root}  {way.cpu_seconds:7.1f} s of CPU"
            print(f"{way.compiler:8}{way.path:8}{way.threads} threads  maps {CODE[way.fused]}  {outcome}", flush=True)
    roots = {way.root for way in found if way.root}
    due = GOLDEN.get(steps) if (name, products) == ("gpt", "float32") else None
    ran = sum(way.root is not None for way in found)
    print(
        f"{ran} ways, {len(roots)} different root{'s' * (len(roots) > 1)}",
        "" if due is None else f"golden: {roots == {due}}", flush=True,
    )  # fmt: skip
    return int(len(roots) != 1 or (due is not None and roots != {due}))


if __name__ == "__main__":
    sys.exit(main())
