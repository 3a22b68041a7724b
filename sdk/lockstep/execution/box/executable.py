"""An executable whose Program runs in a confined child process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lockstep.base.decoding import anything, octets, table
from lockstep.execution.box.segments import Form
from lockstep.numerics.arrays import DTYPES, Array, StepContext
from lockstep.numerics.executor import Executable
from lockstep.protocol.errors import UsageError
from lockstep.protocol.merkle import HASH_BYTES
from lockstep.protocol.programs.program import Alias
from lockstep.protocol.types import TensorRoot


class Transitions(Protocol):
    """Interface of a job's child process for executables."""

    def transit(
        self, verb: str, program: bytes, state: Sequence[Array | None], context: StepContext, dataset: Array | None,
        *, forms: Sequence[tuple[int, Form]] | None = None, read: Callable[[Any, str], Any] = anything,
    ) -> tuple[Any, list[Array]]:  # fmt: skip
        """Executes `verb` in the child; returns its answer and the tensors that it wrote, of these (op, form)."""

    def free_scratch(self, program: bytes) -> None:
        """Releases the memory that the child keeps for a Program's next run."""


@dataclass(frozen=True)
class BoxedExecutable(Executable):
    """A Program that always runs in the child; its tensors are in shared memory, read-only in this process."""

    box: Transitions = field(kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Plans nothing here: the child plans the Program."""

    @property
    def compiled(self) -> bool:
        """Always False: this process does not know whether the child has compiled its loops."""
        return False

    def run(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None = None,
        keep: bool = False,
    ) -> tuple[Array | None, ...]:
        """Runs the Program in the child, as `Executable.run` does here."""
        if keep:
            made = self.outputs(state, context, dataset, frozenset(range(len(self.program.ops))))
            return tuple(made[op] for op in range(len(self.program.ops)))
        ops = list(dict.fromkeys(a.index for a in self.program.outputs if a.kind == Alias.OP_KIND))
        outputs = self._made("run", state, context, dataset, ops)
        sources: dict[int, Any] = {Alias.OP_KIND: outputs, Alias.STATE_KIND: state}
        return tuple(sources[a.kind][a.index] if a.kind in sources else None for a in self.program.outputs)

    def roots(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> tuple[TensorRoot, ...]:
        """Returns the roots of all ops' outputs, as `Executable.roots` does, computed in the child."""
        due = HASH_BYTES * len(self.program.ops)
        arrays, rows = self._given(state, dataset)
        found, _ = self.box.transit(
            "roots", self.program.root, arrays, context, rows, read=table({"roots": octets(due)})
        )  # fmt: skip
        data = found["roots"]
        return tuple(TensorRoot(data[i : i + HASH_BYTES]) for i in range(0, due, HASH_BYTES))

    def sweep(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None,
        visit: Callable[[int, Array], None],
    ) -> None:
        """Visits every op's words, as `Executable.sweep`; each op is computed separately."""
        for op in range(len(self.program.ops)):
            made = self.outputs(state, context, dataset, frozenset({op}))
            visit(op, np.ascontiguousarray(made[op]).reshape(-1).view(np.uint32))

    def outputs(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None, ops: frozenset[int]
    ) -> dict[int, Array]:
        """Returns the outputs of some ops, as `Executable.outputs` does, computed in the child."""
        return self._made("outputs", state, context, dataset, sorted(ops))

    def free_scratch(self) -> None:
        """Releases the memory kept for the next run, as `Executable.free_scratch`, before the child's next order."""
        self.box.free_scratch(self.program.root)

    def profile(self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None) -> list[int]:
        """Raises UsageError: profiling needs a Program that runs in this process."""
        raise UsageError("a sandboxed Program cannot be profiled", hint="compile it with `numerics.paths.compile`")

    # -- inside

    def _made(
        self, verb: str, state: Sequence[Array | None], context: StepContext, dataset: Array | None, ops: Sequence[int]
    ) -> dict[int, Array]:
        headers = [self.program.ops[op].header for op in ops]
        forms: list[tuple[int, Form]] = [
            (op, (DTYPES[h.dtype], tuple(h.shape))) for op, h in zip(ops, headers, strict=True)
        ]  # fmt: skip
        arrays, rows = self._given(state, dataset)
        _, made = self.box.transit(verb, self.program.root, arrays, context, rows, forms=forms, read=table({}))
        return dict(zip(ops, made, strict=True))

    def _given(self, state: Sequence[Array | None], dataset: Array | None) -> tuple[list[Array | None], Array | None]:
        """Returns the tensors that a run receives. Raises PayloadInvalid as the run does."""
        # The child checks them; they are passed unchanged, because a copy would have to be transferred each time.
        checked = [self._entry(k, array) for k, array in enumerate(self._entries(state))]
        given = [None if entry is None else array for entry, array in zip(checked, state, strict=True)]
        return given, self._dataset(dataset)
