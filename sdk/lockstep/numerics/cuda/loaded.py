"""A Program loaded on a device: its kernels, its constants, and the memory that its steps share."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from lockstep.numerics import reference
from lockstep.numerics.arrays import Array, StepContext, to_array
from lockstep.numerics.cuda.device import Address, Device, Kernels, RecordedLaunch, addresses
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.cuda.launches import Launches, Space, reads
from lockstep.numerics.cuda.memory import Arena, plan
from lockstep.numerics.resident import DeviceFailed
from lockstep.protocol.errors import Crashed, DoctorError, UsageError
from lockstep.protocol.merkle import EMPTY, TensorHeader, tensor_root_of_tree
from lockstep.protocol.programs.program import Alias, Program
from lockstep.protocol.types import TensorRoot

log = logging.getLogger(__name__)

HASH_THREADS = 128
"""Threads of a block of hash_leaves and hash_nodes in kernels.cuh."""
STATES = 2
"""Number of states in memory: a step's input and output; earlier states are hashed by then."""
DIGEST_WORDS = 8
WHOLE = 0.5
"""Largest part of the free memory that a step may take with all tensors stored.

A larger step computes attention in tiles, which is slower (docs/cuda.md).
"""
MOST_SOURCE = 1 << 20
"""Most characters of generated source that are compiled for a Program; a GPT's step has a sixteenth of that."""
OWN_SOURCE = '#include "kernels.cuh"\n'
"""The kernels' header alone: if the compiler accepts it, then an error lies in the Program's source."""
GRAPHS = 8
"""Most recorded graphs of a step, one for each recurring set of tensor addresses.

A state's buffers are those of the state before the last one, so addresses recur.
"""


class Buffer:
    """Words in a device's memory, freed with the last reference to the object."""

    def __init__(self, address: Address, give_back: Callable[[Address], None]) -> None:
        self.address = address
        self.root: TensorRoot | None = None
        """Root of the tensor in the buffer once hashed; committed words do not change."""
        self.host: weakref.ref[Array] | None = None
        """Array in the host's memory with the same words, while it is in use."""
        weakref.finalize(self, give_back, address)


class BufferPool:
    """Reuses device allocations by size: a step's results take the memory of an earlier step's.

    A buffer may be reused while kernels that read it are running: the kernel that overwrites it is launched later, and
    a device executes launches in order.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[Address]] = {}
        weakref.finalize(self, _free_all, device, self._free)

    def take(self, words: int) -> Buffer:
        """Returns a buffer of so many words with arbitrary contents. Raises DeviceFailed if the device has no room."""
        held = self._free.setdefault(words, [])
        try:
            return Buffer(held.pop(), held.append)
        except IndexError:
            return Buffer(self._allocated(words), held.append)

    @property
    def idle(self) -> int:
        """Bytes of free buffers."""
        return 4 * sum(words * len(held) for words, held in list(self._free.items()))

    def trim(self) -> None:
        """Returns the free buffers to the device."""
        _free_all(self._device, self._free)

    def _allocated(self, words: int) -> Address:
        try:
            return self._device.allocate(words)
        except DeviceFailed:
            # Other Programs of this process free the memory that they keep for their next step.
            for loaded in list(_programs.get(self._device, ())):
                loaded.trim()
        return self._device.allocate(words)

    def filled(self, array: Array) -> Buffer:
        """Returns a buffer with the words of an array."""
        words = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        buffer = self.take(len(words))
        self._device.write(buffer.address, words)
        if not array.flags.writeable:
            buffer.host = weakref.ref(array)
        return buffer


def _free_all(device: Device, free: dict[int, list[Address]]) -> None:
    for held in list(free.values()):
        with suppress(IndexError):  # Another thread may have taken the buffer meanwhile.
            while True:
                device.free(held.pop())


class DeviceTensor(NamedTuple):
    """A tensor in a device's memory."""

    header: TensorHeader
    buffer: Buffer


DeviceState: TypeAlias = tuple[DeviceTensor | None, ...]
"""A state on a device: one tensor per entry, None for EMPTY."""


class Hashing(NamedTuple):
    """Tensors that are being hashed, and the device memory for their digests."""

    tensors: tuple[DeviceTensor, ...]
    digests: Buffer


class DeviceNeed(NamedTuple):
    """Bytes that a Program needs on a device, without its dataset."""

    fixed: int
    """Bytes held while the Program is loaded: constants and scratch memory."""
    state: int
    """Bytes of a step's input state."""
    step: int
    """Bytes to run a step from state to state."""
    shown: int
    """Bytes to materialise every op's output, one after another."""


class DevicePlan:
    """The kernels of a Program and the memory layout of their results; nothing is on the device yet."""

    def __init__(self, program: Program, device: Device, without_tiles: DevicePlan | None = None) -> None:
        """`without_tiles` is the plan that this one replaces; only then is attention computed in tiles."""
        self.generated = generate(program, device.shared_bytes, without_tiles is not None)
        self.arena = plan(program, self.generated.launches)
        # The memory layout for games is the same in both plans.
        self.all: Arena = without_tiles.all if without_tiles else plan(program, self.generated.shown, shown=True)
        state = sum(header.elements for header in program.inputs if header is not None)
        fixed = sum(const.header.elements for const in program.consts) + self.generated.scratch_words
        largest = max((op.header.elements for op in program.ops), default=0)
        hashing = largest // 16  # 32-byte digests: one per leaf of 1 KiB, and as many again for the levels above
        step, shown = STATES * state + self.arena.words + hashing, state + self.all.words + hashing
        self.need = DeviceNeed(4 * fixed, 4 * state, 4 * (fixed + step), 4 * (fixed + shown))


def planned(
    program: Program, device: Device, free: int, has_room: Callable[[int], bool] = lambda words: True
) -> DevicePlan:
    """Returns the plan of a Program for a device with `free` bytes.

    Allocates nothing, except that `has_room` may try to allocate the outputs of a step. Raises UsageError for a Program
    whose kernels the device cannot have.
    """
    found = DevicePlan(program, device)
    if found.need.step > WHOLE * free or not has_room(found.arena.words):
        found = DevicePlan(program, device, without_tiles=found)
    characters = len(found.generated.source)
    if characters > MOST_SOURCE:
        raise UsageError(
            f"the source of its kernels has {characters:,} characters, more than the limit of {MOST_SOURCE:,} for "
            f"{device.label}",
            hint="the processor runs it",
        )
    return found


def _compiled(device: Device, source: str) -> Kernels:
    """Compiles a Program's kernels.

    Raises Crashed if the compiler accepts the kernels' header but not this source, DoctorError if it accepts neither.
    """
    # INVARIANT: no Program ends a process by what a device's compiler makes of it: the compiler is broken if it refuses
    # our own source, else the job is refused.
    try:
        return device.load(source)
    except DeviceFailed:
        raise
    except DoctorError as error:
        device.load(OWN_SOURCE)
        raise Crashed(f"its kernels do not compile: {error.message}", hint="use --device cpu for this job") from error


class Loaded:
    """A Program ready to be launched, by one thread at a time; its attributes are in the device's memory."""

    def __init__(self, program: Program, device: Device) -> None:
        """Loads the Program.

        Raises DeviceFailed if the device has no room for a step, UsageError for a Program that it cannot run, and the
        errors of `_compiled`.
        """
        self._program, self._device = program, device
        self.pool, free = BufferPool(device), available(device)
        chosen = planned(program, device, free, self._has_room)
        self._generated, self._arena, self._all, self.need = chosen.generated, chosen.arena, chosen.all, chosen.need
        if self.need.step > free:
            raise DeviceFailed(
                f"a step takes {self.need.step:,} bytes of {device.label}, which has {free:,} free",
                hint="use a device with more memory, or --device cpu",
            )
        self._kernels = _compiled(device, self._generated.source)
        self._consts = [self.pool.filled(to_array(c.header, c.data)) for c in program.consts]
        self._context = self.pool.take(self._generated.context_words)
        self._scratch = self.pool.take(self._generated.scratch_words)
        self._empties = self.pool.filled(np.frombuffer(b"".join(EMPTY), np.uint32))
        self._dataset: tuple[Array, Buffer] | None = None
        self._results = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
        self._reads = list(map(reads, self._generated.shown))
        needed = self._arena.needed
        self._step = _Packed(self._generated.launches, [i for i in range(len(program.ops)) if needed[i]])
        _programs.setdefault(device, weakref.WeakSet()).add(self)

    @property
    def idle(self) -> int:
        """Bytes that are only kept for the next step."""
        held = self._dataset
        return self.pool.idle + (0 if held is None else held[0].nbytes)

    def _has_room(self, words: int) -> bool:
        """True if the outputs of a step can be allocated now; the memory is reserved for the first step."""
        try:
            self.pool.take(words)
        except DeviceFailed:
            return False
        return True

    def trim(self) -> None:
        """Frees the memory kept for the next step, once the step that uses it has run."""
        self._dataset = None
        self.pool.trim()

    def launch(
        self,
        state: Sequence[DeviceTensor | None],
        context: StepContext,
        dataset: Array | None,
        after: Callable[[int], None] | None = None,
    ) -> DeviceState:
        """Starts the Program; returns the outputs of its ops, None for an op without a stored output.

        `after` is called with each op.
        """
        rows = self._rows(dataset)
        where = self._fixed(state, context, dataset, rows)
        outputs: list[DeviceTensor | None] = [None] * len(self._program.ops)
        # Scratch buffers are released once the step is started: later launches that overwrite them also run later.
        region = self.pool.take(self._arena.words)
        where.update({(Space.OP, i): region.address + 4 * at for i, at in self._arena.offsets.items()})
        for i in self._results:
            header = self._program.ops[i].header
            outputs[i] = DeviceTensor(header, self.pool.take(header.elements))
            where[Space.OP, i] = outputs[i].buffer.address  # type: ignore[union-attr]
        self._step.launch(self._kernels, where, after)
        return tuple(outputs)

    def show(
        self,
        state: Sequence[DeviceTensor | None],
        context: StepContext,
        dataset: Array | None,
        ops: Collection[int],
        each: Callable[[int, Address], None],
    ) -> None:
        """Computes `ops` and their operands; calls `each` with each op and the address of its output.

        The address is valid until the call returns, and for kernels that the call starts.
        """
        rows = self._rows(dataset)
        where = self._fixed(state, context, dataset, rows)
        region = self.pool.take(self._all.words)
        where.update({(Space.OP, i): region.address + 4 * at for i, at in self._all.offsets.items()})
        run, wanted = set(ops), frozenset(ops)
        for i in reversed(range(len(self._program.ops))):
            if i in run:
                run |= self._reads[i]

        def after(op: int) -> None:
            if op in wanted:
                each(op, where[Space.OP, op])

        _Packed(self._generated.shown, sorted(run)).launch(self._kernels, where, after)

    def roots(
        self, state: Sequence[DeviceTensor | None], context: StepContext, dataset: Array | None
    ) -> tuple[TensorRoot, ...]:
        """Returns the roots of all ops' outputs, each hashed on the device before its memory is reused."""
        headers = [op.header for op in self._program.ops]
        digests = self.pool.take(DIGEST_WORDS * len(headers))

        def hash_(op: int, at: Address) -> None:
            self._hash_tree(headers[op], at, digests.address + 4 * DIGEST_WORDS * op)

        self.show(state, context, dataset, range(len(headers)), hash_)
        return tuple(self._roots(headers, digests))

    def hash(self, tensors: Iterable[DeviceTensor]) -> Hashing:
        """Starts to hash those tensors on the device whose roots are unknown."""
        unknown = {id(t.buffer): t for t in tensors if t.buffer.root is None}
        digests = self.pool.take(DIGEST_WORDS * len(unknown))
        self._device.enter()
        for i, tensor in enumerate(unknown.values()):
            self._hash_tree(tensor.header, tensor.buffer.address, digests.address + 4 * DIGEST_WORDS * i)
        return Hashing(tuple(unknown.values()), digests)

    def finish(self, hashing: Hashing) -> None:
        """Waits for the digests; afterwards the tensors' roots are known."""
        if hashing.tensors:
            headers = [tensor.header for tensor in hashing.tensors]
            for tensor, root in zip(hashing.tensors, self._roots(headers, hashing.digests), strict=True):
                tensor.buffer.root = root

    def _roots(self, headers: Sequence[TensorHeader], digests: Buffer) -> list[TensorRoot]:
        words = np.empty((len(headers), DIGEST_WORDS), np.uint32)
        self._device.read(digests.address, words)
        return [tensor_root_of_tree(header, row.tobytes()) for header, row in zip(headers, words, strict=True)]

    def _hash_tree(self, header: TensorHeader, at: Address, to: Address) -> None:
        """Starts to hash the words at address `at`; the root of their tree is written to address `to`."""
        count = header.leaves
        levels = [self.pool.take(DIGEST_WORDS * (-(-count >> height))) for height in range(header.depth)]
        places = [*(level.address for level in levels), to]
        self._hash("hash_leaves", count, at, places[0], header.elements)
        for height, (level, above) in enumerate(pairwise(places)):
            empty = self._empties.address + 4 * DIGEST_WORDS * height
            self._hash("hash_nodes", (count + 1) // 2, level, above, empty, count)
            count = (count + 1) // 2

    def _hash(self, kernel: str, items: int, *values: int) -> None:
        cells = np.array(values, np.uint64)
        pointers = addresses(cells)
        self._kernels.launch(kernel, -(-items // HASH_THREADS), HASH_THREADS, 0, pointers.ctypes.data)

    def _fixed(
        self, state: Sequence[DeviceTensor | None], context: StepContext, dataset: Array | None, rows: Buffer | None
    ) -> dict[tuple[Space, int], Address]:
        """Returns the address of every tensor and region except the ops' outputs; writes the step's context."""
        count = 0 if dataset is None else len(dataset)
        draws = [
            reference.drawn_row(context.seed, context.words, first + j, count)
            for first, drawn in self._generated.draws
            for j in range(drawn)
        ]
        words = np.array([*context.words, *np.frombuffer(context.seed, "<u4"), *draws], np.uint32)
        self._device.write(self._context.address, words)
        where = {(Space.CONST, k): const.address for k, const in enumerate(self._consts)}
        where[Space.CONTEXT, 0] = self._context.address
        where[Space.SCRATCH, 0] = self._scratch.address
        where[Space.VALUE, 0] = 0
        if rows is not None:
            where[Space.DATASET, 0] = rows.address
        where.update({(Space.STATE, k): held.buffer.address for k, held in enumerate(state) if held is not None})
        return where

    def _rows(self, dataset: Array | None) -> Buffer | None:
        """Returns the dataset on the device, and copies it unless it is the same read-only array as before."""
        self._device.enter()
        if dataset is None:
            return None
        held = self._dataset
        if held is None or held[0] is not dataset or dataset.flags.writeable:
            self._dataset = None  # Frees the previous dataset first: its memory may be needed.
            held = self._dataset = dataset, self.pool.filled(dataset)
        return held[1]


_programs: weakref.WeakKeyDictionary[Device, weakref.WeakSet[Loaded]] = weakref.WeakKeyDictionary()


def available(device: Device) -> int:
    """Returns the device bytes available to this process: free ones, and those that its Programs keep for their next
    step.
    """
    return device.memory.free + sum(loaded.idle for loaded in list(_programs.get(device, ())))


class _Packed:
    """Launches with all arguments in one array, so that a step only fills in addresses."""

    def __init__(self, launches: Launches, ops: Sequence[int]) -> None:
        self._launches = [(i, launches[i]) for i in ops]
        places = [place for _, own in self._launches for launch in own for place in launch.arguments]
        self._slots: dict[tuple[Space, int], int] = {}
        self._slot = np.array([self._slots.setdefault(place[:2], len(self._slots)) for place in places], np.int64)
        offsets = [place.offset * (1 if place.space == Space.VALUE else 4) for place in places]
        self._offset = np.array(offsets, np.uint64)
        self._cells = np.zeros(len(places), np.uint64)
        self._addresses = addresses(self._cells)
        self._recorded: dict[bytes, Callable[[], None] | None] = {}
        """Recorded graphs by the base addresses of all tensors, the most recent last; None for addresses seen once."""
        self._records = True

    def launch(
        self, kernels: Kernels, where: dict[tuple[Space, int], Address], after: Callable[[int], None] | None
    ) -> None:
        """Starts all launches in order, or the recorded graph for these addresses.

        With `after`, launches are started one by one, and `after` is called with each op once all of its launches are
        started.
        """
        bases = np.array([where[key] for key in self._slots], np.uint64)
        self._cells[:] = bases[self._slot] + self._offset
        if after is None and self._records and (start := self._again(kernels, bases.tobytes())) is not None:
            start()
            return
        at = int(self._addresses.ctypes.data)
        for op, own in self._launches:
            for launch in own:
                kernels.launch(launch.kernel, launch.blocks, launch.threads, launch.shared, at)
                at += 8 * len(launch.arguments)
            if after is not None:
                after(op)

    def _again(self, kernels: Kernels, places: bytes) -> Callable[[], None] | None:
        """Returns a function that starts the CUDA graph for these addresses, which is recorded at their second launch;
        None before that, or if no graph can be recorded."""
        seen, start = places in self._recorded, self._recorded.pop(places, None)
        if seen and start is None:
            try:
                start = kernels.record(self._nodes())
            except DeviceFailed as error:
                # If the device itself failed, the following launch reports it.
                log.warning("no CUDA graph can be built, so kernels are launched one by one: %s", error)
                self._records = False
                return None
        self._recorded[places] = start
        if len(self._recorded) > GRAPHS:
            del self._recorded[next(iter(self._recorded))]
        return start

    def _nodes(self) -> list[RecordedLaunch]:
        nodes, at = [], 0
        for launch in (launch for _, own in self._launches for launch in own):
            arguments = self._cells[at : at + len(launch.arguments)].copy()
            nodes.append(RecordedLaunch(launch.kernel, launch.blocks, launch.threads, launch.shared, arguments))
            at += len(launch.arguments)
        return nodes
