"""Running a Program: flat state tensors in, flat state tensors out, the same bits on every machine.

>>> from lockstep.numerics.builder import ProgramBuilder
>>> b = ProgramBuilder([(F32, 4)])
>>> x = b.input(0)
>>> y = b.map((4,), [x], lambda e, v: e.fadd(v, v))
>>> executable = compile(b.finish([y]))
>>> executable.run([np.arange(4, dtype=np.float32)], Context(bytes(32), 0, 0, 1))[0].tolist()
[0.0, 2.0, 4.0, 6.0]
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lockstep.numerics import _native
from lockstep.numerics.fused import Fusion, mode_of
from lockstep.numerics.selftest import check_machine
from lockstep.protocol import merkle
from lockstep.protocol.errors import PayloadInvalid, ProgramInvalid, UsageError
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32, Alias, Const, Kind, Program
from lockstep.protocol.types import TensorRoot

Array: TypeAlias = npt.NDArray[Any]

DTYPES: dict[int, np.dtype[Any]] = {F32: np.dtype("<f4"), I32: np.dtype("<i4")}
"""numpy's name of each dtype of a Program."""


@dataclass(frozen=True)
class StepContext:
    """What a step depends on beside its state."""

    seed: bytes
    """32 bytes: the round's randomness."""
    round: int
    slot: int
    t: int
    """The step within the claim, from 1."""

    def __post_init__(self) -> None:
        if len(self.seed) != 32:
            raise UsageError(f"a seed of {len(self.seed)} bytes", hint="a seed is 32 bytes")
        if not all(0 <= word < 1 << 32 for word in self.words):
            raise UsageError(f"context {self.words}", hint="round, slot and t are 32-bit unsigned integers")

    @property
    def words(self) -> tuple[int, int, int]:
        """What a view of tag CONTEXT reads: round, slot, t."""
        return self.round, self.slot, self.t


def to_array(header: TensorHeader, data: bytes | memoryview) -> Array:
    """A tensor's committed bytes as a read-only array of its shape."""
    if len(data) != 4 * header.elements:
        raise PayloadInvalid(
            f"{len(data)} bytes for a tensor of shape {header.shape}", hint=f"{4 * header.elements} bytes are due"
        )
    return np.frombuffer(data, DTYPES[header.dtype]).reshape(header.shape)


def to_bytes(array: Array) -> bytes:
    """The committed bytes of a tensor: little-endian words, row-major."""
    return np.ascontiguousarray(array).tobytes()


def const(array: Array) -> Const:
    """A constant table of a Program from a float32 or int32 array."""
    for dtype, name in DTYPES.items():
        if array.dtype == name:
            return Const(TensorHeader(dtype, array.shape), to_bytes(array))
    raise UsageError(f"a constant of dtype {array.dtype}", hint="constants are float32 or int32")


@dataclass(frozen=True)
class Executable:
    """A Program decoded, checked and planned once, to be run many times (by one thread at a time; others wait)."""

    program: Program
    threads: int = 1
    """The bits do not depend on it."""
    path: str = "auto"
    """"auto", "scalar", "avx2" or "avx512"; the bits do not depend on it."""
    fused: str = "auto"
    """"auto", "off" or "require": whether maps run compiled code (numerics/fused.py); the bits do not depend on it."""
    _executor: _native.Executor = field(init=False, repr=False, compare=False)
    _fusion: Fusion = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        consts = [to_array(c.header, c.data).reshape(-1) for c in self.program.consts]
        try:
            executor = _native.Executor(self.program.header, list(self.program.descriptors), consts)
        except ValueError as error:
            raise ProgramInvalid(f"the Program cannot be run: {error}", hint="validate() names the rule") from error
        object.__setattr__(self, "_executor", executor)
        object.__setattr__(self, "_fusion", Fusion(executor, self.path, self.fused))

    @property
    def place(self) -> str:
        """What computes, as `--device` calls it."""
        return "cpu"

    @property
    def shows(self) -> bool:
        """Whether a game's transition can be computed here."""
        return True

    @property
    def compiled(self) -> bool:
        """Whether maps run compiled code by now."""
        return self._fusion.compiled

    def run(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None = None,
        keep: bool = False,
    ) -> tuple[Array | None, ...]:
        """The output state (None = EMPTY), or with `keep` the outputs of all ops in order.

        `state` has one float32 or int32 array per input entry, of rank 0 or 1 as the header says; `dataset` is
        int32 (rows, row length). An entry that the output state takes from the input is the same array. Raises
        PayloadInvalid for a tensor of another dtype or shape.
        """
        arguments = self._arguments(state, context, dataset)
        self._fusion.before_run()
        outputs = self._executor.run(*arguments, keep, self.threads, self.path)
        return tuple(outputs) if keep else self.select(outputs, state)

    def advance(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> Sequence[Array | None]:
        """`run`, for what is passed on to the next step: on a device the state stays there (`resident.Resident`)."""
        return self.run(state, context, dataset)

    def roots(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> tuple[TensorRoot, ...]:
        """The roots of all ops' outputs, in order.

        Each is hashed as soon as it is complete and let go of after its last reader: a step's memory, not that of all
        outputs. Raises PayloadInvalid as `run` does.
        """
        found: list[TensorRoot] = []

        def hashed(op: int, data: memoryview) -> None:
            tree = merkle.data_root(data, self.threads)
            found.append(merkle.tensor_root_of_tree(self.program.ops[op].header, tree))

        self._executor.sweep(*self._arguments(state, context, dataset), self.threads, self.path, hashed)
        return tuple(found)

    def outputs(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None, ops: frozenset[int]
    ) -> dict[int, Array]:
        """The outputs of some ops. Computes what they are computed from alone, as an ordinary step does.

        Raises PayloadInvalid as `run` does.
        """
        self._fusion.before_run()
        arguments = self._arguments(state, context, dataset)
        made = self._executor.some(*arguments, self.threads, self.path, sorted(ops))
        return {op: array for op, array in enumerate(made) if array is not None}

    def rest(self) -> None:
        """Give the system back what is kept for the next run, unless one is under way."""
        self._executor.rest()

    def profile(self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None) -> list[int]:
        """Nanoseconds that each op took in one run; 0 for an op that needed none of its own."""
        spent: list[int] = []
        arguments = self._arguments(state, context, dataset)
        self._executor.run(*arguments, False, self.threads, self.path, nanoseconds=spent)
        return spent

    def select(self, outputs: Sequence[Array | None], state: Sequence[Array | None]) -> tuple[Array | None, ...]:
        """The output state: what its aliases name among ops' outputs and the input state."""
        sources: dict[int, Sequence[Array | None]] = {Alias.OP_KIND: outputs, Alias.STATE_KIND: state}
        return tuple(sources[a.kind][a.index] if a.kind in sources else None for a in self.program.outputs)

    def _arguments(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None
    ) -> tuple[list[Array | None], bytes, int, int, int, Array | None]:
        arrays = [self._entry(k, array) for k, array in enumerate(self._entries(state))]
        return arrays, context.seed, *context.words, self._dataset(dataset)

    def _entries(self, state: Sequence[Array | None]) -> Sequence[Array | None]:
        entries = self.program.inputs
        if len(state) != len(entries):
            raise PayloadInvalid(
                f"a state of {len(state)} tensors", hint=f"the Program takes {len(entries)} (None for an EMPTY one)"
            )
        return state

    def _entry(self, k: int, array: Array | None) -> Array | None:
        header = self.program.inputs[k]
        if header is None:
            return None
        got = None if array is None else (array.dtype, array.shape)
        if array is None or array.dtype != DTYPES[header.dtype] or array.shape != header.shape:
            raise PayloadInvalid(
                f"state entry {k} is {got}",
                hint=f"the Program takes {DTYPES[header.dtype]} of shape {header.shape} there",
            )
        return np.ascontiguousarray(array)

    def _dataset(self, dataset: Array | None) -> Array | None:
        lengths = {op.extents[1] for op in self.program.ops if op.kind == Kind.DRAW}
        if not lengths:
            return None
        if dataset is None or dataset.dtype != DTYPES[I32] or dataset.ndim != 2 or {dataset.shape[1]} != lengths:
            got = None if dataset is None else (dataset.dtype, dataset.shape)
            wanted = " and ".join(str(length) for length in sorted(lengths))
            raise PayloadInvalid(f"the dataset is {got}", hint=f"the Program draws int32 rows of {wanted} tokens")
        if not len(dataset):
            raise PayloadInvalid("the dataset has no rows", hint="a draw needs one row at least")
        return np.ascontiguousarray(dataset)


def compile(  # noqa: A001 - the verb that the field uses
    program: Program, *, threads: int | None = None, path: str = "auto", fused: str | None = None
) -> Executable:
    """Decodes and plans a Program. `threads` defaults to OMP_NUM_THREADS, or 1; `fused` to LOCKSTEP_FUSED, or "auto".

    `path` "cuda", "cuda:N" or "emulated" gives a `cuda.CudaExecutable` on that device. Raises ProgramInvalid;
    DoctorError on a machine whose arithmetic fails the self-test, or which cannot compile loops that `fused="require"`
    wants; UsageError for a path that this machine does not have.
    """
    if path == "emulated" or path.partition(":")[0] == "cuda":
        from lockstep.numerics.cuda import CudaExecutable, open_device

        return CudaExecutable(program, device=open_device("cuda:0" if path == "cuda" else path))
    mode = mode_of(fused)
    try:
        check_machine(path)
    except ValueError as error:
        raise UsageError(str(error), hint=f"this machine's widest is {_native.best_isa()}; auto chooses it") from error
    if threads is None:
        setting = os.environ.get("OMP_NUM_THREADS", "1").split(",")[0]
        threads = max(1, int(setting)) if setting.isdigit() else 1
    return Executable(program, threads, path, mode)
