"""Running a Program on a device: state stays there from step to step and comes back when asked for.

executable = compile(program, path="cuda")
state = executable.upload(arrays)
for t in range(1, steps + 1):
    state = executable.step(state, Context(seed, round, slot, t), dataset)
executable.root(state)                  # hashed on the device
arrays = executable.download(state)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter_ns

import numpy as np

from lockstep.numerics.cuda.device import Device
from lockstep.numerics.cuda.loaded import DeviceState, DeviceTensor, Loaded
from lockstep.numerics.executor import DTYPES, Array, Context, Executable
from lockstep.protocol.program import Alias, state_root
from lockstep.protocol.types import StateRoot


@dataclass(frozen=True)
class CudaExecutable(Executable):
    """A Program on a device. `run` is `Executable.run`; `upload`, `step`, `root` and `download` spare its copies."""

    path: str = "cuda"
    fused: str = "off"
    """Of the processor's maps, which are not used."""
    device: Device = field(kw_only=True, repr=False, compare=False)
    _loaded: Loaded = field(init=False, repr=False, compare=False)
    _running: Lock = field(init=False, repr=False, compare=False, default_factory=Lock)

    def __post_init__(self) -> None:
        super().__post_init__()  # parses the Program, and refuses one that would read foreign memory
        object.__setattr__(self, "_loaded", Loaded(self.program, self.device))

    def upload(self, state: Sequence[Array | None]) -> DeviceState:
        """A state on the device; raises PayloadInvalid as `run` does."""
        arrays = [self._entry(k, array) for k, array in enumerate(self._entries(state))]
        return tuple(
            None if header is None or array is None else DeviceTensor(header, self._loaded.pool.filled(array))
            for header, array in zip(self.program.inputs, arrays, strict=True)
        )

    def step(self, state: DeviceState, context: Context, dataset: Array | None = None) -> DeviceState:
        """The output state, still under way. A dataset that is read-only is copied to the device once."""
        outputs = self._launch(state, context, dataset, keep=False)
        sources: dict[int, DeviceState] = {Alias.OP_KIND: outputs, Alias.STATE_KIND: state}
        return tuple(sources[a.kind][a.index] if a.kind in sources else None for a in self.program.outputs)

    def root(self, state: DeviceState) -> StateRoot:
        """`trace.layout_root` of the state's arrays; only digests leave the device."""
        with self._running:
            return state_root([None if tensor is None else self._loaded.root(tensor) for tensor in state])

    def download(self, state: DeviceState) -> tuple[Array | None, ...]:
        """The state's tensors as read-only arrays."""
        return tuple(None if tensor is None else self._array(tensor) for tensor in state)

    def run(
        self, state: Sequence[Array | None], context: Context, dataset: Array | None = None, keep: bool = False
    ) -> tuple[Array | None, ...]:
        """See `Executable.run`."""
        arrays = self.download(self._launch(self.upload(state), context, dataset, keep))
        return arrays if keep else self.select(arrays, state)

    def profile(self, state: Sequence[Array | None], context: Context, dataset: Array | None = None) -> list[int]:
        """See `Executable.profile`: each op is waited for, so a step takes less than their sum."""
        spent = [0] * len(self.program.ops)
        begin = perf_counter_ns()

        def after(op: int) -> None:
            nonlocal begin
            self.device.wait()
            end = perf_counter_ns()
            spent[op] += end - begin
            begin = end

        self._launch(self.upload(state), context, dataset, keep=False, after=after)
        return spent

    def _launch(
        self,
        state: DeviceState,
        context: Context,
        dataset: Array | None,
        keep: bool,
        after: Callable[[int], None] | None = None,
    ) -> DeviceState:
        rows = self._dataset(dataset)
        with self._running:
            return self._loaded.launch(state, context, rows, keep, after)

    def _array(self, tensor: DeviceTensor) -> Array:
        words = np.empty(tensor.header.elements, np.uint32)
        self.device.read(tensor.buffer.address, words)
        words.flags.writeable = False
        return words.view(DTYPES[tensor.header.dtype]).reshape(tensor.header.shape)
