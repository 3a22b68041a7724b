"""The inner loops of products in NVIDIA's machine code: issue slots, tensor instructions, spills. No device.

    python benchmarks/inner_loops.py                     the tables of docs/cuda.md
    python benchmarks/inner_loops.py --json              one line of JSON on stdout
    python benchmarks/inner_loops.py --arch sm_90a --sass     one architecture, with the loop itself

NVRTC compiles the product of 1,024 x 1,024 outputs over 4 groups of 256 codes, in tiles of 128 x 128, as for a device;
nvdisasm and cuobjdump (PATH, or the packages nvidia-cuda-nvdisasm and nvidia-cuda-cuobjdump) read it.

The loop is the shortest one with all tensor instructions. It brings one tile of 128 x 128 x 256, multiplies it and ends
a group: one promotion of every sum. An issue slot is an instruction that one of the four schedulers of a multiprocessor
sends to a warp, whatever its predicate says: the loop's instructions times 8 warps by 4 schedulers. The unit alone
needs 256 slots (1,024 products of 16 x 8 x 32; 16 for sm_90a's of 64 x 128 x 32), the order of the floats 512 (four
operations on each of 16,384 outputs), or 256 where they are packed in pairs.

The second table counts the loop of a product of floats of 1,024 x 1,024 outputs in tiles of 128 x 128, which multiplies
8 terms of each output, 512 FFMA, and has the end of a chunk in all its forms: the first, the last, those between.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from lockstep.numerics.builder import ProgramBuilder, Quantised
from lockstep.numerics.cuda import generate
from lockstep.numerics.cuda.device import compile_source, unit_of
from lockstep.protocol.errors import LockstepError, UsageError
from lockstep.protocol.programs.program import F32, I32, MAX_GROUP_WORDS

ARCHITECTURES = ("sm_75", "sm_80", "sm_90a", "sm_100", "sm_103", "sm_120")
SLOTS = {"sm_75": 1800, "sm_80": 1024, "sm_90a": 900, "sm_100": 800, "sm_103": 3072, "sm_120": 1024}
"""Issue slots that a loop may take. The tensor cores of sm_90 take 1,024 cycles for a tile: below, they limit it."""
SHARED_BYTES = 99 << 10
SIDE, GROUPS = 1024, 4
WARPS, SCHEDULERS = 8, 4
LABEL, TARGET = re.compile(r"^(\.L_\w+):"), re.compile(r"\bBRA\S*\s+(?:!?U?P\w+,\s*)?`\((\.L_\w+)\)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
CLASSES = {
    "tensor": ("IMMA", "IGMMA", "HMMA"),
    "float": ("FADD", "FMUL", "FADD2", "FMUL2", "I2FP"),
    "halves": ("HADD2",),
    "fragments": ("LDSM",),
    "scales": ("LDS",),
    "copies": ("LDGSTS", "LDG", "STS"),
    "waits": ("BAR", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "MEMBAR", "FENCE"),
    "spills": ("LDL", "STL"),
}
"""Instructions by what they do; what is none of them is "others": addresses, constants, the loop itself."""
ROWS = {
    "tensor instructions": ("tensor",),
    "float instructions": ("float",),
    "codes to halves": ("halves",),
    "fragments and scales read": ("fragments", "scales"),
    "copies, waits": ("copies", "waits"),
    "others": ("others",),
    "spills": ("spills",),
    "registers": ("registers",),
    "issue slots of a tile": ("slots",),
}
"""The rows of the table; each is a sum of counts."""
FLOAT_ROWS = {
    "products": ("fma",),
    "shared memory read, written": ("read", "written"),
    "outputs and operands": ("memory",),
    "others, the end of a chunk": ("others",),
    "spills": ("spills",),
    "registers": ("registers",),
}
"""Those of products of floats."""
FLOAT_CLASSES = {
    "fma": ("FFMA",),
    "read": ("LDS",),
    "written": ("STS",),
    "memory": ("LDG", "STG"),
    "spills": ("LDL", "STL"),
}


@dataclass(frozen=True)
class InnerLoop:
    """The inner loop of one architecture; all counts are of a warp."""

    what: str
    """The architecture."""
    unit: str
    registers: int
    instructions: int
    tensor: int
    float: int
    halves: int
    fragments: int
    scales: int
    copies: int
    waits: int
    spills: int
    others: int
    slots: int
    """Issue slots of a tile of 128 x 128 x 256 on each scheduler."""


@dataclass(frozen=True)
class FloatLoop:
    """The loop of a product of floats on one architecture; all counts are of a warp."""

    what: str
    """The architecture."""
    registers: int
    instructions: int
    fma: int
    read: int
    written: int
    memory: int
    spills: int
    others: int


def source() -> str:
    """The kernels of one product of codes in large tiles."""
    words = GROUPS * MAX_GROUP_WORDS
    b = ProgramBuilder([(I32, SIDE * words)] * 2 + [(F32, SIDE * GROUPS)] * 2)
    left, right = (
        Quantised(b.input(j).reshape(SIDE, words), b.input(2 + j).reshape(SIDE, GROUPS), MAX_GROUP_WORDS)
        for j in (0, 1)
    )
    with patch.object(generate, "BUSY_BLOCKS", 1):
        return generate.generate(b.finish([b.qdot(left.unsqueeze(1), right)]), SHARED_BYTES).source


def source_of_floats() -> str:
    """The kernels of one product of floats in large tiles."""
    b = ProgramBuilder([(F32, SIDE * SIDE)] * 2)
    left, right = (b.input(j).reshape(SIDE, SIDE) for j in (0, 1))
    with patch.object(generate, "BUSY_BLOCKS", 1):
        return generate.generate(b.finish([b.dot(left.unsqueeze(1), right)]), SHARED_BYTES).source


def tool(name: str) -> str:
    """The place of a CUDA tool; raises UsageError where there is none."""
    spec = find_spec("nvidia")
    folders = [f"{place}/cu13/bin" for place in (spec.submodule_search_locations or ()) if spec] if spec else []
    for path in (None, *folders):
        found = shutil.which(name, path=path)
        if found:
            return found
    raise UsageError(f"no {name} on this machine", hint=f"pip install nvidia-cuda-{name}")


def inner_loop(lines: Sequence[str], products: Sequence[str] = CLASSES["tensor"]) -> list[str]:
    """The lines of the shortest loop of a kernel that has all its instructions of these names."""

    def _is_product(line: str) -> bool:
        found = INSTRUCTION.match(line)
        return bool(found) and found.group(1).split(".")[0] in products  # type: ignore[union-attr]

    labels = {found.group(1): i for i, line in enumerate(lines) if (found := LABEL.match(line))}
    total = sum(map(_is_product, lines))
    loops = []
    for i, line in enumerate(lines):
        found = TARGET.search(line)
        begin = labels.get(found.group(1), i) if found else i
        body = lines[begin : i + 1]
        if begin < i and sum(map(_is_product, body)) == total:
            loops.append(body)
    if not total or not loops:
        raise UsageError(f"no loop has all of {', '.join(products)}", hint="read the kernel with --sass")
    return min(loops, key=len)


def count(architecture: str) -> tuple[InnerLoop, list[str]]:
    """The inner loop of a product of codes on an architecture, and its lines."""
    kernel, registers = _kernel(source(), "codes", architecture)
    lines = inner_loop(kernel)
    counts = _counted(lines, CLASSES)
    instructions = sum(counts.values())
    slots = instructions * WARPS // SCHEDULERS
    return InnerLoop(architecture, unit_of(architecture), registers, instructions, **counts, slots=slots), lines


def count_floats(architecture: str) -> tuple[FloatLoop, list[str]]:
    """The loop of a product of floats on an architecture, and its lines."""
    kernel, registers = _kernel(source_of_floats(), "product", architecture)
    lines = inner_loop(kernel, FLOAT_CLASSES["fma"])
    counts = _counted(lines, FLOAT_CLASSES)
    return FloatLoop(architecture, registers, sum(counts.values()), **counts), lines


def _kernel(text: str, kind: str, architecture: str) -> tuple[list[str], int]:
    """The lines of a source's only kernel of a kind, and its registers."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "product.cubin"
        image.write_bytes(compile_source(text, architecture))
        code = _said(tool("nvdisasm"), "-c", str(image))
        usage = _said(tool("cuobjdump"), "-res-usage", str(image))
    sections = re.split(r"^//-+ (?=\.text)", code, flags=re.MULTILINE)
    kernel = next(section for section in sections if section.startswith(f".text.{kind}_"))
    registers = re.search(rf"Function {kind}_\w+:\s+REG:(\d+)", usage)
    assert registers, "cuobjdump tells registers"
    return kernel.splitlines(), int(registers.group(1))


def _counted(lines: Sequence[str], classes: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Instructions of each class, and others."""
    names = [found.group(1).split(".")[0] for line in lines if (found := INSTRUCTION.match(line))]
    of_name = {name: kind for kind, own in classes.items() for name in own}
    kinds = Counter(of_name.get(name, "others") for name in names)
    return {kind: kinds[kind] for kind in (*classes, "others")}


def table(loops: Sequence[InnerLoop] | Sequence[FloatLoop], rows_of: Mapping[str, Sequence[str]] = ROWS) -> list[str]:
    """The lines of a Markdown table with a column for each loop."""
    rows = [
        " | ".join((name, *(f"{sum(asdict(loop)[kind] for kind in kinds):,}" for loop in loops)))
        for name, kinds in rows_of.items()
    ]
    head = " | ".join(("|", *(loop.what for loop in loops)))
    return [f"{head} |", "|---" * (len(loops) + 1) + "|", *(f"| {row} |" for row in rows)]


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Counts, prints; exit status 1 if a loop spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--arch", action="append", help="an architecture, such as sm_80 (default: all)")
    parser.add_argument("--sass", action="store_true", help="print the loops, too")
    arguments = parser.parse_args()
    try:
        counted = [count(architecture) for architecture in arguments.arch or ARCHITECTURES]
        of_floats = [count_floats(architecture) for architecture in arguments.arch or ARCHITECTURES]
    except LockstepError as error:
        print(json.dumps({"data": {"results": [], "skipped": str(error)}}) if arguments.json else error)
        return 0
    loops, floats = [loop for loop, _ in counted], [loop for loop, _ in of_floats]
    if arguments.json:
        print(
            json.dumps(
                {"data": {"results": [asdict(loop) for loop in loops], "floats": [asdict(loop) for loop in floats]}}
            )
        )
    else:
        print("\n".join([*table(loops), "", *table(floats, FLOAT_ROWS)]))
    if arguments.sass:
        for _, lines in (*counted, *of_floats):
            print("\n".join(lines))
    return int(any(loop.spills for loop in loops))


if __name__ == "__main__":
    sys.exit(main())
