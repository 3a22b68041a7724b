"""A Program planned for this machine's processor: maps flat state tensors to flat state tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.numerics import portable
from lockstep.numerics.arrays import DTYPES, Array, StepContext, to_array
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.fused import Fusion
from lockstep.protocol import merkle
from lockstep.protocol.errors import PayloadInvalid, ProgramInvalid
from lockstep.protocol.programs.program import I32, Alias, Kind, Program
from lockstep.protocol.types import TensorRoot

_PORTABLE: Any = portable
"""The portable executor, typed as the compiled kernels: names and types are the same."""


@dataclass(frozen=True)
class Executable:
    """A Program that was decoded, checked and planned once. One thread at a time runs it; others wait."""

    program: Program
    threads: int = 1
    """Number of threads; the bits do not depend on it."""
    path: str = "auto"
    """Kernel path: "auto", one of `kernels.paths()`, or "portable" for numpy alone; the bits do not depend on it."""
    fused: str = "auto"
    """Compilation of maps (numerics/fused.py): "auto", "off" or "require"; the bits do not depend on it."""
    _executor: _native.Executor = field(init=False, repr=False, compare=False)
    _fusion: Fusion = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        consts = [to_array(c.header, c.data).reshape(-1) for c in self.program.consts]
        kernels = _PORTABLE if self.path == portable.NAME else _native
        try:
            executor = kernels.Executor(self.program.header, list(self.program.descriptors), consts)
        except ValueError as error:
            raise ProgramInvalid(f"the Program cannot be run: {error}", hint="validate() names the rule") from error
        object.__setattr__(self, "_executor", executor)
        object.__setattr__(self, "_fusion", Fusion(executor, self.path, self.fused))

    @property
    def place(self) -> str:
        """The device that computes, as `--device` names it."""
        return "cpu"

    @property
    def shows(self) -> bool:
        """True if this executable can materialise a step for a game."""
        return True

    @property
    def compiled(self) -> bool:
        """True if maps now run compiled code."""
        return self._fusion.compiled

    def run(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None = None,
        keep: bool = False,
    ) -> tuple[Array | None, ...]:
        """Runs one step. Returns the output state (None = EMPTY), or with `keep` the outputs of all ops in order.

        `state` has one float32 or int32 array per input entry, of rank 0 or 1 as in the header; `dataset` is int32
        (rows, row length). An entry that the output state takes over from the input is the same array object. Raises
        PayloadInvalid for a tensor of another dtype or shape.
        """
        arguments = self._arguments(state, context, dataset)
        self._fusion.before_run()
        outputs = self._executor.run(*arguments, keep, self.threads, self.path)
        return tuple(outputs) if keep else self.select(outputs, state)

    def write(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None,
        into: Mapping[int, Array],
    ) -> None:
        """Runs one step as `run`, but writes outputs of ops into the caller's arrays `into`, by op; these must not
        overlap the inputs.

        Raises PayloadInvalid as `run` does.
        """
        self._fusion.before_run()
        arguments = self._arguments(state, context, dataset)
        self._executor.run(*arguments, False, self.threads, self.path, into=dict(into))

    def advance(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> Sequence[Array | None]:
        """Runs a step and returns the state for the next one, which stays on a device (`resident.Resident`)."""
        return self.run(state, context, dataset)

    def roots(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> tuple[TensorRoot, ...]:
        """Returns the roots of all ops' outputs, in order.

        Each output is hashed when it is complete and freed after its last reader, so that this takes a step's memory
        instead of that of all outputs. Raises PayloadInvalid as `run` does.
        """
        found: list[TensorRoot] = []

        def hashed(op: int, words: Array) -> None:
            tree = merkle.data_root(words.view(np.uint8).data, self.threads)
            found.append(merkle.tensor_root_of_tree(self.program.ops[op].header, tree))

        self.sweep(state, context, dataset, hashed)
        return tuple(found)

    def sweep(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None,
        visit: Callable[[int, Array], None],
    ) -> None:
        """Calls visit(op, words as flat uint32) for every op in order; an output is freed after its last reader.

        Raises PayloadInvalid as `run` does.
        """

        def seen(op: int, data: memoryview) -> None:
            visit(op, np.frombuffer(data, np.uint32))

        self._executor.sweep(*self._arguments(state, context, dataset), self.threads, self.path, seen)

    def outputs(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None, ops: frozenset[int]
    ) -> dict[int, Array]:
        """Returns the outputs of some ops; computes only these and the ops that they depend on.

        Raises PayloadInvalid as `run` does.
        """
        self._fusion.before_run()
        arguments = self._arguments(state, context, dataset)
        made = self._executor.some(*arguments, self.threads, self.path, sorted(ops))
        return {op: array for op, array in enumerate(made) if array is not None}

    def free_scratch(self) -> None:
        """Frees the memory kept for the next run, unless a run is in progress."""
        self._executor.rest()

    def profile(self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None) -> list[int]:
        """Returns the nanoseconds of each op in one run; 0 for an op that needs no time of its own."""
        spent: list[int] = []
        arguments = self._arguments(state, context, dataset)
        self._executor.run(*arguments, False, self.threads, self.path, nanoseconds=spent)
        return spent

    def select(self, outputs: Sequence[Array | None], state: Sequence[Array | None]) -> tuple[Array | None, ...]:
        """Assembles the output state from ops' outputs and the input state, by its aliases."""
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
                f"the state has {len(state)} tensors",
                hint=f"the Program takes {len(entries)} (None for an EMPTY entry)",
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
