"""Compares Programs on the emulated device with the processor's kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.device import FOLDER, MMA
from lockstep.numerics.cuda.emulator import EmulatedKernels, Emulator
from lockstep.numerics.trace import layout_root, tensor_root
from lockstep.protocol.programs.program import Program
from tests.unit.numerics.comparison import words


class Mutant(Emulator):
    """A device with another kernel source."""

    def __init__(self, before: str, after: str, *, which: int = 0, descending: bool = False, unit: str = MMA) -> None:
        super().__init__(descending=descending, unit=unit)
        self._before, self._after, self._which = before, after, which

    def load(self, source: str) -> EmulatedKernels:
        whole = source
        for header in ("kernels.cuh", "integers.cuh", "tiles.cuh"):
            whole = whole.replace(f'#include "{header}"', (FOLDER / header).read_text().replace("#pragma once", ""))
        parts = whole.split(self._before)
        assert len(parts) > self._which + 1, f"{self._before} stands in the source"
        head, tail = parts[: self._which + 1], parts[self._which + 1 :]
        return super().load(self._before.join(head) + self._after + self._before.join(tail))


class Both:
    """A Program on the emulated device and on the processor."""

    def __init__(self, program: Program, *, descending: bool = False, unit: str = MMA) -> None:
        self.program = program
        self.processor = paths.compile(program, fused="off")
        self.device = Emulator(descending=descending, unit=unit)
        self.emulated = CudaExecutable(program, device=self.device)

    def agree(self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None) -> None:
        """Asserts that every op's output, the output state and its root are equal, bit by bit."""
        due = self.processor.run(state, context, dataset, keep=True)
        kept = self.emulated.run(state, context, dataset, keep=True)
        for i, (own, other) in enumerate(zip(due, kept, strict=True)):
            label = f"op {i} ({self.program.name_of(i)})"
            np.testing.assert_array_equal(words(other), words(own), err_msg=label)
        assert self.emulated.roots(state, context, dataset) == tuple(tensor_root(own) for own in due), "all ops' roots"
        some = frozenset(range(0, len(due), 3))
        found = self.emulated.outputs(state, context, dataset, some)
        assert set(found) == some, "the outputs that were asked for, and no other"
        for i in some:
            np.testing.assert_array_equal(words(found[i]), words(due[i]), err_msg=f"op {i}, shown with few others")
        final = self.processor.run(state, context, dataset)
        resident = self.emulated.step(self.emulated.upload(state), context, dataset)
        for k, (own, other) in enumerate(zip(final, self.emulated.download(resident), strict=True)):
            assert (own is None) == (other is None), f"output {k} is EMPTY on both or on neither"
            if own is not None:
                np.testing.assert_array_equal(words(other), words(own), err_msg=f"output {k}, memory reused")
        assert self.emulated.root(resident) == layout_root(self.program.output_layout, final), "the state's root"
        assert self.device.intact, "a kernel wrote beyond its tensor"
