"""A Program on a device: its kernels, its constants, and the memory that its steps share."""

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
"""A step's input and its output: what came before is hashed by then."""
DIGEST_WORDS = 8
WHOLE = 0.5
"""Part of the free memory that a step may take with all tensors in it; one that takes more computes attention in tiles,
which takes longer (docs/cuda.md)."""
MOST_SOURCE = 1 << 20
"""The most characters of a Program's kernels that are compiled; a GPT's step has a sixteenth."""
OWN_SOURCE = '#include "kernels.cuh"\n'
"""A compiler that works takes it, whatever it makes of a stranger's Program."""
GRAPHS = 8
"""Recorded launches of a step, one for each set of places that its tensors have had twice: a state's buffers are those
of the state before the last one."""


class Buffer:
    """Words of a device, given back with the last reference to them."""

    def __init__(self, address: Address, give_back: Callable[[Address], None]) -> None:
        self.address = address
        self.root: TensorRoot | None = None
        """The root of the tensor in the buffer, once it was hashed: committed words do not change."""
        self.host: weakref.ref[Array] | None = None
        """The same words in the host's memory, as long as that array is in use."""
        weakref.finalize(self, give_back, address)


class BufferPool:
    """Allocations of a device by size: a step's results lie where an earlier step's were.

    A buffer may be taken again while kernels that read it are under way: what will write to it is asked for later, and
    a device does in order what it is asked.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[Address]] = {}
        weakref.finalize(self, _free_all, device, self._free)

    def take(self, words: int) -> Buffer:
        """A buffer of so many words, with any contents; raises DeviceFailed if the device has no room for it."""
        held = self._free.setdefault(words, [])
        try:
            return Buffer(held.pop(), held.append)
        except IndexError:
            return Buffer(self._allocated(words), held.append)

    @property
    def idle(self) -> int:
        """Bytes of buffers that are free."""
        return 4 * sum(words * len(held) for words, held in list(self._free.items()))

    def trim(self) -> None:
        """Returns the free buffers to the device."""
        _free_all(self._device, self._free)

    def _allocated(self, words: int) -> Address:
        try:
            return self._device.allocate(words)
        except DeviceFailed:
            # What other Programs of this process keep for their next step makes room for this one.
            for loaded in list(_programs.get(self._device, ())):
                loaded.trim()
        return self._device.allocate(words)

    def filled(self, array: Array) -> Buffer:
        """A buffer with an array's words."""
        words = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        buffer = self.take(len(words))
        self._device.write(buffer.address, words)
        if not array.flags.writeable:
            buffer.host = weakref.ref(array)
        return buffer


def _free_all(device: Device, free: dict[int, list[Address]]) -> None:
    for held in list(free.values()):
        with suppress(IndexError):  # whoever takes one meanwhile has it
            while True:
                device.free(held.pop())


class DeviceTensor(NamedTuple):
    """A tensor that lies on a device."""

    header: TensorHeader
    buffer: Buffer


DeviceState: TypeAlias = tuple[DeviceTensor | None, ...]
"""One tensor per entry, None = EMPTY."""


class Hashing(NamedTuple):
    """Tensors that are being hashed, and where their digests will lie."""

    tensors: tuple[DeviceTensor, ...]
    digests: Buffer


class DeviceNeed(NamedTuple):
    """Bytes that a Program takes on a device, without its dataset."""

    fixed: int
    """Bytes that it holds as long as it is loaded: constants, scratch."""
    state: int
    """Bytes of the state that a step begins with."""
    step: int
    """Bytes to run a step from state to state."""
    shown: int
    """Bytes to show every op's output, one after the other."""


class DevicePlan:
    """A Program's kernels, and the places of what they compute; nothing of it is on a device."""

    def __init__(self, program: Program, device: Device, without_tiles: DevicePlan | None = None) -> None:
        """`without_tiles` is the plan that this one replaces; attention is computed in tiles only if it is given."""
        self.generated = generate(program, device.shared_bytes, without_tiles is not None)
        self.arena = plan(program, self.generated.launches)
        # A game's are the same in both.
        self.all: Arena = without_tiles.all if without_tiles else plan(program, self.generated.shown, shown=True)
        state = sum(header.elements for header in program.inputs if header is not None)
        fixed = sum(const.header.elements for const in program.consts) + self.generated.scratch_words
        largest = max((op.header.elements for op in program.ops), default=0)
        hashing = largest // 16  # 32 bytes a leaf of 1 KiB, and as much above it
        step, shown = STATES * state + self.arena.words + hashing, state + self.all.words + hashing
        self.need = DeviceNeed(4 * fixed, 4 * state, 4 * (fixed + step), 4 * (fixed + shown))


def planned(
    program: Program, device: Device, free: int, has_room: Callable[[int], bool] = lambda words: True
) -> DevicePlan:
    """The plan of a Program for so many free bytes of a device; nothing is allocated, unless `has_room` does so to tell
    if the outputs of a step find memory. Raises UsageError for a Program that the device has no kernels for."""
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
    """Compiles a Program's kernels. Raises Crashed if the compiler accepts the kernels' own header but not this source,
    DoctorError if it accepts neither."""
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
    """A Program ready to be launched, by one thread at a time; its attributes are what lies on the device."""

    def __init__(self, program: Program, device: Device) -> None:
        """Raises DeviceFailed if the device has no room for a step, UsageError for a Program that it cannot run, and
        what `_compiled` raises."""
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
        """Bytes that are kept for the next step alone."""
        held = self._dataset
        return self.pool.idle + (0 if held is None else held[0].nbytes)

    def _has_room(self, words: int) -> bool:
        """True if the outputs of a step find memory now; it is kept for the first step, and others see it taken."""
        try:
            self.pool.take(words)
        except DeviceFailed:
            return False
        return True

    def trim(self) -> None:
        """Returns the memory kept for the next step to the device, after the step that uses it."""
        self._dataset = None
        self.pool.trim()

    def launch(
        self,
        state: Sequence[DeviceTensor | None],
        context: StepContext,
        dataset: Array | None,
        after: Callable[[int], None] | None = None,
    ) -> DeviceState:
        """Starts the Program; returns the outputs of its ops, None for an op without one. `after` is called with each
        op."""
        rows = self._rows(dataset)
        where = self._fixed(state, context, dataset, rows)
        outputs: list[DeviceTensor | None] = [None] * len(self._program.ops)
        # Given back when the step is started: what is written there later is asked for later.
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
        """Computes `ops` and their operands; `each` is called with each op and its output's address, which is valid
        until the call returns, and for a kernel that it starts."""
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
        """The roots of all ops' outputs, each hashed on the device before its place is another's."""
        headers = [op.header for op in self._program.ops]
        digests = self.pool.take(DIGEST_WORDS * len(headers))

        def hash_(op: int, at: Address) -> None:
            self._hash_tree(headers[op], at, digests.address + 4 * DIGEST_WORDS * op)

        self.show(state, context, dataset, range(len(headers)), hash_)
        return tuple(self._roots(headers, digests))

    def hash(self, tensors: Iterable[DeviceTensor]) -> Hashing:
        """Starts to hash tensors on the device, those whose roots are not known."""
        unknown = {id(t.buffer): t for t in tensors if t.buffer.root is None}
        digests = self.pool.take(DIGEST_WORDS * len(unknown))
        self._device.enter()
        for i, tensor in enumerate(unknown.values()):
            self._hash_tree(tensor.header, tensor.buffer.address, digests.address + 4 * DIGEST_WORDS * i)
        return Hashing(tuple(unknown.values()), digests)

    def finish(self, hashing: Hashing) -> None:
        """Waits for the digests; the tensors' roots are known from then on."""
        if hashing.tensors:
            headers = [tensor.header for tensor in hashing.tensors]
            for tensor, root in zip(hashing.tensors, self._roots(headers, hashing.digests), strict=True):
                tensor.buffer.root = root

    def _roots(self, headers: Sequence[TensorHeader], digests: Buffer) -> list[TensorRoot]:
        words = np.empty((len(headers), DIGEST_WORDS), np.uint32)
        self._device.read(digests.address, words)
        return [tensor_root_of_tree(header, row.tobytes()) for header, row in zip(headers, words, strict=True)]

    def _hash_tree(self, header: TensorHeader, at: Address, to: Address) -> None:
        """Starts to hash the words at an address; the digest of their tree goes to another."""
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
        """Returns the address of every tensor and region but the ops' outputs; writes the step's context."""
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
        """Returns the dataset on the device; it is copied again unless it is the same read-only array."""
        self._device.enter()
        if dataset is None:
            return None
        held = self._dataset
        if held is None or held[0] is not dataset or dataset.flags.writeable:
            self._dataset = None  # the other one's place may be needed
            held = self._dataset = dataset, self.pool.filled(dataset)
        return held[1]


_programs: weakref.WeakKeyDictionary[Device, weakref.WeakSet[Loaded]] = weakref.WeakKeyDictionary()


def available(device: Device) -> int:
    """Bytes of a device that this process could have: what is free, and what its Programs keep for their next step."""
    return device.memory.free + sum(loaded.idle for loaded in list(_programs.get(device, ())))


class _Packed:
    """Launches with their arguments in one array, so that a step only fills in where tensors lie."""

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
        """By the bases of all places, the latest last; None: seen once."""
        self._records = True

    def launch(
        self, kernels: Kernels, where: dict[tuple[Space, int], Address], after: Callable[[int], None] | None
    ) -> None:
        """Starts all of them, in order, at once where they were started so before; `after` is called with each op when
        all of its own are started, one by one."""
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
        """Starts the launches as they are with their arguments; None the first time."""
        seen, start = places in self._recorded, self._recorded.pop(places, None)
        if seen and start is None:
            try:
                start = kernels.record(self._nodes())
            except DeviceFailed as error:
                # If it is the device that failed, what follows says so.
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
