"""Attention in tiles: a step's memory, traffic and launches with and without them, the kernels' registers. No device.

    python benchmarks/attention.py                     the tables of docs/cuda.md
    python benchmarks/attention.py --json              one line of JSON on stdout
    python benchmarks/attention.py --model llama-124m --arch sm_90a

Memory is that of the ops' outputs, by the planner that places them on a device. What is moved is counted: the words
that a launch reads and writes, each once. Registers and the bytes of a thread's stack (spills) are those of the kernels
of one layer, compiled by NVRTC and read by cuobjdump (PATH, or the package nvidia-cuda-cuobjdump). Without NVRTC the
second table is left out, and why is said.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu import MODELS, training_step
from benchmarks.inner_loops import ARCHITECTURES, SHARED_BYTES, tool
from lockstep.numerics.cuda.device import compile_source
from lockstep.numerics.cuda.generate import Generated, generate
from lockstep.numerics.cuda.launches import KernelArgument, Launch, Space, place_of
from lockstep.numerics.cuda.memory import plan
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Kind, Program, Tag
from lockstep.tracing.arithmetic import PRODUCTS

USAGE = re.compile(r"Function (tile_\w+):\s+REG:(\d+) STACK:(\d+)")
EXPORT = re.compile(r"^LOCKSTEP_EXPORT\(\w+\)\n", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A step of training, with its attention in tiles or one op at a time."""

    model: str
    products: str
    tiles: bool
    gigabytes: float
    """Memory of ops' outputs."""
    moved_gigabytes: float
    """Gigabytes that launches read and write (`moved_words`)."""
    launches: int
    kernels: int
    what: str = "step"


@dataclass(frozen=True)
class Frame:
    """A kernel of one layer's attention on one architecture."""

    products: str
    reduction: str
    """The aten operation whose reduction it is, by its place among the layer's."""
    architecture: str
    registers: int
    stack_bytes: int
    what: str = "kernel"


LARGE = ("gpt2-124m", "llama-124m")
"""The models of `gpu.MODELS` whose steps a device is held against."""
NAMES = ("maxima", "sums", "output", "by v", "rows' sums", "by k", "by q")
"""The reductions of a layer, in the order of the Program."""


def step(model: str, products: str, program: Program, tiles: bool) -> tuple[Step, Generated]:
    """A step's memory and launches."""
    generated = generate(program, SHARED_BYTES, tiles)
    arena = plan(program, generated.launches)
    launched = arena.launched(generated.launches)
    kernels, moved = {launch.kernel for launch in launched}, moved_words(program, launched)
    gigabytes = (round(4e-9 * words, 2) for words in (arena.words, moved))
    return Step(model, products, tiles, *gigabytes, len(launched), len(kernels)), generated


def moved_words(program: Program, launched: Sequence[Launch]) -> int:
    """Words that launches read and write: of each argument those that the widest view from there shows, once a launch.

    A view that is shown again at other coordinates (stride 0) counts once; what a cache holds or loses is not known.
    """
    widest: dict[KernelArgument, int] = {}
    for i, op in enumerate(program.ops):
        widest[KernelArgument(Space.OP, i)] = op.header.elements
        for part, view in enumerate(op.views):
            extents = [*op.extents, *op.k_extents]
            if op.kind == Kind.CONCAT:
                extents[op.p0] = op.sizes[part]
            axes = zip(extents, view.strides, strict=True)
            shown = prod(extent for extent, stride in axes if stride)
            if view.tag in (Tag.OP, Tag.STATE, Tag.CONST):
                place = place_of(view)
                widest[place] = max(widest.get(place, 0), shown)
    total = 0
    for launch in launched:
        tensors = [place for place in set(launch.arguments) if place.space in (Space.OP, Space.STATE, Space.CONST)]
        known = [widest[place] for place in tensors if place in widest]
        # A part of a concat is written behind others: as many words as are read for it.
        total += sum(known) + (len(tensors) - len(known)) * max(known, default=0)
    return total


def layer_kernels(generated: Generated) -> list[str]:
    """The kernels of attention in the order of their first launch."""
    names = (launch.kernel for own in generated.launches for launch in own if launch.kernel.startswith("tile_"))
    return list(dict.fromkeys(names))


def frames(products: str, generated: Generated, architecture: str) -> list[Frame]:
    """Registers and stack that the compiler gave each kernel."""
    names = layer_kernels(generated)
    parts = EXPORT.split(generated.source.partition('#include "kernels.cuh"\n')[2])
    own = [part for part in parts if any(f" {name}(" in part for name in names)]
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "tiles.cubin"
        image.write_bytes(compile_source('#include "kernels.cuh"\n' + "".join(own), architecture))
        command = [tool("cuobjdump"), "-res-usage", str(image)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = {name: (int(registers), int(stack)) for name, registers, stack in USAGE.findall(said)}
    labels = NAMES if len(names) == len(NAMES) else names
    return [Frame(products, label, architecture, *usage[name]) for label, name in zip(labels, names, strict=True)]


def steps_table(steps: Sequence[Step]) -> list[str]:
    """Lines of Markdown: a row for each step."""
    rows = [
        f"| {s.model}, {s.products} | {'in tiles' if s.tiles else 'one op at a time'} | {s.gigabytes} GB "
        f"| {s.moved_gigabytes} GB | {s.launches:,} | {s.kernels} |"
        for s in steps
    ]
    return ["| a step of | attention | outputs | moved | launches | kernels |", "|---|---|---|---|---|---|", *rows]


def frames_table(found: Sequence[Frame]) -> list[str]:
    """Lines of Markdown: registers and bytes of stack, a row for each kernel and a column for each architecture."""
    architectures = list(dict.fromkeys(frame.architecture for frame in found))
    cells = {(f.products, f.reduction, f.architecture): f"{f.registers} / {f.stack_bytes}" for f in found}
    rows = dict.fromkeys((f.products, f.reduction) for f in found)
    lines = [
        " | ".join((f"{name}, {products}", *(cells[products, name, a] for a in architectures)))
        for products, name in rows
    ]
    head = " | ".join(("|", *architectures))
    return [f"{head} |", "|---" * (len(architectures) + 1) + "|", *(f"| {line} |" for line in lines)]


def main() -> int:
    """Counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--model", action="append", choices=MODELS, help=f"default: {' and '.join(LARGE)}")
    parser.add_argument("--products", action="append", choices=PRODUCTS, help="an arithmetic (default: all)")
    parser.add_argument("--arch", action="append", help="an architecture, such as sm_80 (default: all)")
    arguments = parser.parse_args()
    steps: list[Step] = []
    found: list[Frame] = []
    skipped = None
    models = arguments.model or LARGE
    for model, products in product(models, arguments.products or PRODUCTS):
        program = training_step(MODELS[model], products)
        before, _ = step(model, products, program, tiles=False)
        after, generated = step(model, products, program, tiles=True)
        steps += [before, after]
        if model != models[0]:
            continue
        try:
            for architecture in arguments.arch or ARCHITECTURES:
                found += frames(products, generated, architecture)
        except UsageError as error:
            skipped = str(error)
    if arguments.json:
        results = [asdict(result) for result in (*steps, *found)]
        print(json.dumps({"data": {"results": results, "skipped": skipped}}))
        return 0
    print("\n".join(steps_table(steps)))
    print("\n".join(["", *(frames_table(found) if found else [f"no machine code: {skipped}"])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
