"""Runs a Program on a device: the state stays there from step to step until it is downloaded.

executable = compile(program, path="cuda")
state = executable.upload(arrays)
for t in range(1, steps + 1):
    state = executable.step(state, StepContext(seed, round, slot, t), dataset)
executable.root(state)                  # hashed on the device
arrays = executable.download(state)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import perf_counter_ns

import numpy as np

from lockstep.numerics.arrays import DTYPES, Array, StepContext
from lockstep.numerics.cuda.device import Address, Device
from lockstep.numerics.cuda.loaded import DeviceNeed, DeviceState, DeviceTensor, Loaded, available
from lockstep.numerics.executor import Executable
from lockstep.numerics.resident import Resident
from lockstep.protocol.errors import PayloadInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import Alias, state_root
from lockstep.protocol.types import StateRoot, TensorRoot


@dataclass(frozen=True)
class CudaExecutable(Executable):
    """A Program loaded on a device.

    `run` copies as `Executable.run` does; `upload`, `step`, `root` and `download` avoid its copies.
    """

    path: str = "cuda"
    fused: str = "off"
    """Compilation mode of the processor's maps; a device ignores it."""
    device: Device = field(kw_only=True, repr=False, compare=False)
    _loaded: Loaded = field(init=False, repr=False, compare=False)
    _running: Lock = field(init=False, repr=False, compare=False, default_factory=Lock)

    def __post_init__(self) -> None:
        super().__post_init__()  # Parsing rejects a Program that would read memory outside of its tensors.
        object.__setattr__(self, "_loaded", Loaded(self.program, self.device))

    @property
    def place(self) -> str:
        """The device that computes, as `--device` names it."""
        return self.device.label

    @property
    def shows(self) -> bool:
        """True if the device has the memory to materialise a step for a game; otherwise the processor does it."""
        return self.need.shown <= available(self.device)

    @property
    def need(self) -> DeviceNeed:
        """Bytes that the Program needs on the device, without its dataset."""
        return self._loaded.need

    def upload(self, state: Sequence[Array | None]) -> DeviceState:
        """Copies a state to the device, without the tensors that are already there.

        Raises PayloadInvalid as `run` does.
        """
        if isinstance(state, Resident) and state.where is self.device:
            return self._own(state.tensors)
        buffers = {}
        tensors: list[DeviceTensor | None] = []
        self.device.enter()
        for k, given in enumerate(self._entries(state)):
            array, header = self._entry(k, given), self.program.inputs[k]
            if header is None or array is None:
                tensors.append(None)
                continue
            # A tensor that occurs twice in the state is copied once.
            if id(given) not in buffers:
                buffers[id(given)] = self._loaded.pool.filled(array)
            tensors.append(DeviceTensor(header, buffers[id(given)]))
        return tuple(tensors)

    def step(self, state: DeviceState, context: StepContext, dataset: Array | None = None) -> DeviceState:
        """Starts a step; returns its output state, which may still be computing.

        A read-only dataset is copied to the device once.
        """
        outputs = self._launch(state, context, dataset)
        sources: dict[int, DeviceState] = {Alias.OP_KIND: outputs, Alias.STATE_KIND: state}
        return tuple(sources[a.kind][a.index] if a.kind in sources else None for a in self.program.outputs)

    def root(self, state: DeviceState) -> StateRoot:
        """Returns `trace.layout_root` of the state's arrays; only digests leave the device."""
        with self._running:
            hashing = self._loaded.hash(tensor for tensor in state if tensor is not None)
        # Waiting for the digests does not hold the lock, so that another thread can start the next step.
        self._loaded.finish(hashing)
        return state_root([None if tensor is None else tensor.buffer.root for tensor in state])

    def download(self, state: DeviceState) -> tuple[Array | None, ...]:
        """Copies the state's tensors to read-only arrays."""
        return tuple(None if tensor is None else self._array(tensor) for tensor in state)

    def run(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None, keep: bool = False
    ) -> tuple[Array | None, ...]:
        """Runs one step on arrays, as `Executable.run`."""
        if keep:
            found = self.outputs(state, context, dataset, range(len(self.program.ops)))
            return tuple(found[i] for i in range(len(self.program.ops)))
        return self.select(self.download(self._launch(self.upload(state), context, dataset)), state)

    def advance(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> Resident[DeviceTensor]:
        """Runs one step, as `Executable.advance`; the state stays on the device."""
        tensors = self.step(self.upload(state), context, dataset)
        layout = [None if tensor is None else tensor.header for tensor in tensors]
        return Resident(self.device, layout, tensors, self._array, partial(self.root, tensors))

    def roots(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None
    ) -> tuple[TensorRoot, ...]:
        """Returns the roots of all ops' outputs in order; at any time the device holds no more outputs than a step
        needs.
        """
        resident, rows = self.upload(state), self._dataset(dataset)
        with self._running:
            return self._loaded.roots(resident, context, rows)

    def outputs(
        self, state: Sequence[Array | None], context: StepContext, dataset: Array | None, ops: Collection[int]
    ) -> dict[int, Array]:
        """Returns the outputs of some ops, each copied before its device memory is reused."""
        resident, rows = self.upload(state), self._dataset(dataset)
        found: dict[int, Array] = {}

        def copy(op: int, at: Address) -> None:
            found[op] = self._read(self.program.ops[op].header, at)

        with self._running:
            self._loaded.show(resident, context, rows, ops, copy)
        return found

    def sweep(
        self,
        state: Sequence[Array | None],
        context: StepContext,
        dataset: Array | None,
        visit: Callable[[int, Array], None],
    ) -> None:
        """Visits every op's words in order, as `Executable.sweep`; each is copied before its device memory is
        reused.
        """
        resident, rows = self.upload(state), self._dataset(dataset)

        def copied(op: int, at: Address) -> None:
            visit(op, self._read(self.program.ops[op].header, at).reshape(-1).view(np.uint32))

        with self._running:
            self._loaded.show(resident, context, rows, range(len(self.program.ops)), copied)

    def free_scratch(self) -> None:
        """Does nothing: a device's free memory serves the running Program, and other Programs take it when they need
        it.
        """

    def profile(self, state: Sequence[Array | None], context: StepContext, dataset: Array | None = None) -> list[int]:
        """Returns the nanoseconds of each op, as `Executable.profile`.

        Each op is waited for, so their sum exceeds a step's time.
        """
        spent = [0] * len(self.program.ops)
        begin = perf_counter_ns()

        def after(op: int) -> None:
            nonlocal begin
            self.device.wait()
            end = perf_counter_ns()
            spent[op] += end - begin
            begin = end

        self._launch(self.upload(state), context, dataset, after)
        return spent

    def _launch(
        self,
        state: DeviceState,
        context: StepContext,
        dataset: Array | None,
        after: Callable[[int], None] | None = None,
    ) -> DeviceState:
        rows = self._dataset(dataset)
        with self._running:
            return self._loaded.launch(state, context, rows, after)

    def _own(self, tensors: Sequence[DeviceTensor | None]) -> DeviceState:
        """Accepts another Program's output state as this one's input. Raises PayloadInvalid if the layouts differ."""
        layout = [None if tensor is None else tensor.header for tensor in tensors]
        if layout != list(self.program.inputs):
            raise PayloadInvalid("a state on the device is of another layout", hint="the tensors are of another job")
        return tuple(tensors)

    def _array(self, tensor: DeviceTensor) -> Array:
        known = None if tensor.buffer.host is None else tensor.buffer.host()
        if known is not None and known.shape == tensor.header.shape:
            return known
        array = self._read(tensor.header, tensor.buffer.address)
        tensor.buffer.host = weakref.ref(array)
        return array

    def _read(self, header: TensorHeader, at: Address) -> Array:
        words = np.empty(header.elements, np.uint32)
        self.device.read(at, words)
        words.flags.writeable = False
        return words.view(DTYPES[header.dtype]).reshape(header.shape)
