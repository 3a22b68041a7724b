"""A Program with a state: the unit that is run on every path, saved to a file, and shrunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.numerics.arrays import DTYPES, Array, StepContext
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, Alias, Const, Kind, Op, Program, Tag, View
from lockstep.storage.containers import decode_program, encode_program

CONTEXT = StepContext(bytes(range(32)), round=3, slot=1, t=7)
ROWS = 13
"""Number of rows in the dataset."""
STRANGE = np.array(
    [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0, 1, 0x80000001,
     0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000], dtype=np.uint32,
)  # fmt: skip
"""Special values: quiet and signalling NaNs, infinities, zeros, subnormals, the largest and least normal, one."""


@dataclass(frozen=True)
class Case:
    """A Program with its inputs."""

    name: str
    """Name KIND:SEED, from which the case can be regenerated."""
    program: Program
    state: tuple[Array | None, ...]
    dataset: Array | None

    @property
    def work(self) -> int:
        """Total elements of all ops, each multiplied by its number of terms."""
        return sum(op.header.elements * max(1, op.k_terms, len(op.instrs)) for op in self.program.ops)

    def save(self, path: Path) -> None:
        """Writes the case as .npz: the Program as in its container, and the arrays."""
        beside: dict[str, Any] = {}

        def named(data: memoryview) -> str:
            raise ValueError("a constant of a case is small enough to stand in the Program's file")

        beside["program"] = np.frombuffer(encode_program(self.program, named), np.uint8)
        beside |= {f"state_{k}": array for k, array in enumerate(self.state) if array is not None}
        if self.dataset is not None:
            beside["dataset"] = self.dataset
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, name=self.name, **beside)

    @staticmethod
    def load(path: Path) -> Case:
        """Reads a file that `save` wrote."""
        with np.load(path) as found:
            program = decode_program(found["program"].tobytes())
            state = tuple(found.get(f"state_{k}") for k in range(len(program.inputs)))
            return Case(str(found["name"]), program, state, found.get("dataset"))


def filled(name: str, program: Program, seed: int, manner: str = "") -> Case:
    """Returns the case of a Program filled with numbers of one manner, or of all manners by the seed if none is
    named.
    """
    rng = np.random.default_rng(seed)
    manner = manner or ("normal", "normal", "strange", "large", "small", "words", "whole")[seed % 7]
    state = tuple(None if header is None else _entry(header, manner, rng) for header in program.inputs)
    columns = {op.extents[1] for op in program.ops if op.kind == Kind.DRAW}
    dataset = rng.integers(0, 50, (ROWS, columns.pop())).astype(np.int32) if columns else None
    return Case(name, program, state, dataset)


def _entry(header: TensorHeader, manner: str, rng: np.random.Generator) -> Array:
    n = header.elements
    words: Array
    if header.dtype != F32:
        low, high = (-(2**31), 2**31) if manner == "words" else (-4, 40)
        words = rng.integers(low, high, n).astype(np.int32).view(np.uint32)
    elif manner == "words":
        words = rng.integers(0, 2**32, n).astype(np.uint32)
    elif manner == "whole":
        words = rng.integers(-3, 4, n).astype(np.float32).view(np.uint32)
    else:
        scale = {"large": 1e18, "small": 1e-22}.get(manner, 1.0)
        words = (rng.standard_normal(n) * scale).astype(np.float32).view(np.uint32)
        if manner == "strange":
            at = rng.integers(0, n, max(1, n // 9))
            words[at] = rng.choice(STRANGE, len(at))
    return words.view(DTYPES[header.dtype]).reshape(header.shape)


def counted(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Returns the ops with cumulative elements."""
    total, found = 0, []
    for op in ops:
        total += op.header.elements
        found.append(replace(op, cumulative=total))
    return tuple(found)


def finished(
    ops: Sequence[Op],
    inputs: Sequence[TensorHeader | None],
    consts: Sequence[Const] = (),
    shown: Sequence[int] = (),
    others: Sequence[Alias] = (),
) -> Program:
    """Returns the Program of these ops; its outputs are the ops that nothing reads, those in `shown`, flat, and
    `others`.
    """
    ops = list(ops)
    read = {view.index for op in ops for view in op.views if view.tag == Tag.OP}
    outputs = []
    for i in [*(i for i in range(len(ops)) if i not in read), *shown]:
        if len(ops[i].extents) > 1:
            ops.append(Op(Kind.MAP, ops[i].dtype, (ops[i].header.elements,), (View(Tag.OP, i, 0, (1,)),)))
            i = len(ops) - 1
        outputs.append(Alias(Alias.OP_KIND, i))
    outputs += others
    return Program(counted(ops), padded(inputs, None), padded(outputs, Alias(Alias.EMPTY_KIND)), tuple(consts))


def padded(entries: Sequence[Any], empty: Any) -> tuple[Any, ...]:
    """Pads the entries of a state to the next power of two."""
    width = 1
    while width < len(entries):
        width *= 2
    return (*entries, *[empty] * (width - len(entries)))
