"""A Program on a device: its kernels, its constants, and the memory that its steps share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from lockstep.numerics import reference
from lockstep.numerics.cuda.device import Address, Device, Kernels, addresses
from lockstep.numerics.cuda.generate import Generated, Space, generate
from lockstep.numerics.cuda.memory import plan
from lockstep.numerics.executor import Array, Context, to_array
from lockstep.protocol.merkle import EMPTY, TensorHeader, tensor_root_of_tree
from lockstep.protocol.program import Alias, Program
from lockstep.protocol.types import TensorRoot

HASH_THREADS = 128
"""Of hash_leaves and hash_nodes in kernels.cuh."""


class Buffer:
    """Words of a device, given back with the last reference to them."""

    def __init__(self, address: Address, give_back: Callable[[Address], None]) -> None:
        self.address = address
        self.root: TensorRoot | None = None
        """Of the tensor that lies here, once somebody asked: what is committed is not edited."""
        weakref.finalize(self, give_back, address)


class Pool:
    """Allocations of a device by size: a step's results lie where an earlier step's were.

    A buffer may be taken again while kernels that read it are under way: what will write to it is asked for later, and
    a device does in order what it is asked.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[Address]] = {}
        weakref.finalize(self, _free_all, device, self._free)

    def take(self, words: int) -> Buffer:
        """A buffer of so many words, with any contents."""
        held = self._free.setdefault(words, [])
        return Buffer(held.pop() if held else self._device.allocate(words), held.append)

    def filled(self, array: Array) -> Buffer:
        """A buffer with an array's words."""
        words = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        buffer = self.take(len(words))
        self._device.write(buffer.address, words)
        return buffer


def _free_all(device: Device, free: dict[int, list[Address]]) -> None:
    for held in free.values():
        while held:
            device.free(held.pop())


class DeviceTensor(NamedTuple):
    """A tensor that lies on a device."""

    header: TensorHeader
    buffer: Buffer


DeviceState: TypeAlias = tuple[DeviceTensor | None, ...]
"""One tensor per entry, None = EMPTY."""


class Loaded:
    """A Program ready to be launched, by one thread at a time."""

    def __init__(self, program: Program, device: Device) -> None:
        self._program, self._device = program, device
        self._generated = generate(program)
        self._arena = plan(program, self._generated.launches)
        self._kernels = device.load(self._generated.source)
        self.pool = Pool(device)
        self._consts = [self.pool.filled(to_array(c.header, c.data)) for c in program.consts]
        self._context = self.pool.take(self._generated.context_words)
        self._scratch = self.pool.take(self._generated.scratch_words)
        self._empties = self.pool.filled(np.frombuffer(b"".join(EMPTY), np.uint32))
        self._region: Buffer | None = None
        self._dataset: tuple[Array, Buffer] | None = None
        self._results = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
        count, needed = len(program.ops), self._arena.needed
        self._step = _Packed(self._generated, [i for i in range(count) if needed[i]])
        self._whole = _Packed(self._generated, range(count))

    def launch(
        self,
        state: Sequence[DeviceTensor | None],
        context: Context,
        dataset: Array | None,
        keep: bool,
        after: Callable[[int], None] | None = None,
    ) -> DeviceState:
        """The ops' outputs, under way: the Program's, or with `keep` all of them. `after` is called with each op."""
        where = self._fixed(context, dataset)
        where.update({(Space.STATE, k): held.buffer.address for k, held in enumerate(state) if held is not None})
        outputs: list[DeviceTensor | None] = [None] * len(self._program.ops)
        for i, op in enumerate(self._program.ops):
            if keep or i in self._results:
                buffer = self._output(op.header.elements, keep)
                outputs[i] = DeviceTensor(op.header, buffer)
                where[Space.OP, i] = buffer.address
            elif i in self._arena.offsets:
                where[Space.OP, i] = self._shared().address + 4 * self._arena.offsets[i]
        (self._whole if keep else self._step).launch(self._kernels, where, after)
        return tuple(outputs)

    def root(self, tensor: DeviceTensor) -> TensorRoot:
        """The root of a tensor, hashed on the device."""
        buffer, count = tensor.buffer, tensor.header.leaves
        if buffer.root is None:
            level = self.pool.take(8 * count)
            self._hash("hash_leaves", count, buffer.address, level.address, tensor.header.elements)
            for height in range(tensor.header.depth):
                above = self.pool.take(8 * ((count + 1) // 2))
                empty = self._empties.address + 32 * height
                self._hash("hash_nodes", (count + 1) // 2, level.address, above.address, empty, count)
                level, count = above, (count + 1) // 2
            digest = np.empty(8, np.uint32)
            self._device.read(level.address, digest)
            buffer.root = tensor_root_of_tree(tensor.header, digest.tobytes())
        return buffer.root

    def _hash(self, kernel: str, items: int, *values: int) -> None:
        cells = np.array(values, np.uint64)
        pointers = addresses(cells)
        self._kernels.launch(kernel, -(-items // HASH_THREADS), HASH_THREADS, pointers.ctypes.data)

    def _fixed(self, context: Context, dataset: Array | None) -> dict[tuple[Space, int], Address]:
        """Where everything lies that is neither state nor an op's output."""
        rows = 0 if dataset is None else len(dataset)
        drawn = [
            reference.drawn_row(context.seed, context.words, first + j, rows)
            for first, count in self._generated.draws
            for j in range(count)
        ]
        words = np.array([*context.words, *np.frombuffer(context.seed, "<u4"), *drawn], np.uint32)
        self._device.write(self._context.address, words)
        where = {(Space.CONST, k): const.address for k, const in enumerate(self._consts)}
        where[Space.CONTEXT, 0] = self._context.address
        where[Space.SCRATCH, 0] = self._scratch.address
        if dataset is not None:
            where[Space.DATASET, 0] = self._held(dataset).address
        return where

    def _held(self, dataset: Array) -> Buffer:
        """The dataset on the device; copied again unless it is the same array, and one that nobody writes to."""
        if self._dataset is None or self._dataset[0] is not dataset or dataset.flags.writeable:
            self._dataset = None
            self._dataset = dataset, self.pool.filled(dataset)
        return self._dataset[1]

    def _shared(self) -> Buffer:
        """The region of the outputs that die within a step; a run that keeps everything needs none."""
        if self._region is None:
            self._region = self.pool.take(self._arena.words)
        return self._region

    def _output(self, words: int, keep: bool) -> Buffer:
        """Memory of an op's own: from the pool for what every step makes, else for this once."""
        return Buffer(self._device.allocate(words), self._device.free) if keep else self.pool.take(words)


class _Packed:
    """Launches with their arguments in one array, so that a step only fills in where tensors lie."""

    def __init__(self, generated: Generated, ops: Sequence[int]) -> None:
        self._launches = [(i, launch) for i in ops for launch in generated.launches[i]]
        places = [place for _, launch in self._launches for place in launch.arguments]
        self._slots: dict[tuple[Space, int], int] = {}
        self._slot = np.array([self._slots.setdefault(place[:2], len(self._slots)) for place in places], np.int64)
        self._offset = np.array([4 * place.offset for place in places], np.uint64)
        self._cells = np.zeros(len(places), np.uint64)
        self._addresses = addresses(self._cells)

    def launch(
        self, kernels: Kernels, where: dict[tuple[Space, int], Address], after: Callable[[int], None] | None
    ) -> None:
        """Starts all of them, in order."""
        bases = np.array([where[key] for key in self._slots], np.uint64)
        self._cells[:] = bases[self._slot] + self._offset
        at = int(self._addresses.ctypes.data)
        for op, launch in self._launches:
            kernels.launch(launch.kernel, launch.blocks, launch.threads, at)
            at += 8 * len(launch.arguments)
            if after is not None:
                after(op)
