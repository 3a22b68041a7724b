"""SHA-256 Merkle commitments: leaves of 1 KiB, trees padded with EMPTY, proofs as sibling lists.

A domain byte distinguishes the four kinds of hash: 0x00 leaf, 0x01 node, 0x02 tensor, 0x03 Program. The native module
`_hash` computes the same digests, several leaves at a time; without it hashlib does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from types import ModuleType
from typing import overload

from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Digest, ProgramRoot, TensorRoot

try:
    _native: ModuleType | None = import_module("lockstep.protocol._hash")
except ImportError:  # a source checkout without a build: slower, equal
    _native = None

LEAF_BYTES = 1024
"""Bytes of tensor contents in one leaf: 256 elements of 4 bytes."""

LEAF_ELEMENTS = LEAF_BYTES // 4
HASH_BYTES = 32
MAX_DEPTH = 40


def leaf(data: bytes) -> Digest:
    """Hashes a leaf: SHA256(0x00 ‖ data)."""
    return Digest(sha256(b"\x00" + data).digest())


def node(left: bytes, right: bytes) -> Digest:
    """Hashes two children into their parent: SHA256(0x01 ‖ left ‖ right)."""
    return Digest(sha256(b"\x01" + left + right).digest())


def _empties() -> tuple[Digest, ...]:
    levels = [Digest(bytes(32))]
    for _ in range(MAX_DEPTH):
        levels.append(node(levels[-1], levels[-1]))
    return tuple(levels)


EMPTY = _empties()
"""EMPTY[k] is Z_k, the root of 2^k empty leaves; Z_0 is 32 zero bytes."""


def ceil_log2(count: int) -> int:
    """Returns the least d with 2^d >= count, for count >= 1."""
    return (count - 1).bit_length()


def levels(leaves: Sequence[bytes], depth: int | None = None) -> list[list[Digest]]:
    """Returns all levels, leaves first, root last; level k omits the trailing nodes equal to Z_k.

    `depth` pads to 2^depth leaves (default: the next power of two).
    """
    depth = ceil_log2(max(len(leaves), 1)) if depth is None else depth
    if len(leaves) > 1 << depth:
        raise ValueError(f"{len(leaves)} leaves do not fit a tree of depth {depth}")
    level = [Digest(x) for x in leaves]
    out = [level]
    for k in range(depth):
        if len(level) % 2:
            level = [*level, EMPTY[k]]
        level = [node(level[i], level[i + 1]) for i in range(0, len(level), 2)]
        out.append(level)
    return out


def node_at(tree_levels: Sequence[Sequence[Digest]], height: int, index: int) -> Digest:
    """Returns the node `height` levels above the leaves; Z_height beyond the end of its level."""
    level = tree_levels[height]
    return level[index] if index < len(level) else EMPTY[height]


def tree(leaves: Sequence[bytes], depth: int | None = None) -> Digest:
    """Returns the Merkle root of leaf *hashes*, padded with EMPTY; Z_depth if there are no leaves."""
    return node_at(levels(leaves, depth), -1 if depth is None else depth, 0) if leaves else EMPTY[depth or 0]


def proof(tree_levels: Sequence[Sequence[Digest]], index: int, start: int = 0) -> list[Digest]:
    """Returns the siblings of node `index` at height `start`, upward to the root."""
    return [node_at(tree_levels, k, (index >> (k - start)) ^ 1) for k in range(start, len(tree_levels) - 1)]


def climb(start: bytes, index: int, siblings: Sequence[bytes]) -> Digest:
    """Returns the root that `siblings` give for the node `start` at position `index`."""
    current = Digest(start)
    for sibling in siblings:
        current = node(sibling, current) if index & 1 else node(current, sibling)
        index >>= 1
    return current


def verify(root: bytes, start: bytes, index: int, siblings: Sequence[bytes]) -> bool:
    """Returns True if `start` is at `index` under `root`; False for an index beyond the tree."""
    return index >> len(siblings) == 0 and climb(start, index, siblings) == root


def require(root: bytes, start: bytes, index: int, depth: int, siblings: Sequence[bytes]) -> None:
    """Raises the contract's revert unless `start` is at `index` of a tree of this depth under `root`."""
    # INVARIANT: a tree's depth comes from the claim or the Program, never from the proof that a mover sends.
    if len(siblings) != depth or not verify(root, start, index, siblings):
        raise revert("ProofInvalid")


def lift(root: bytes, depth: int, to: int) -> Digest:
    """Returns the root of a tree of depth `to` whose first 2^depth leaves are under `root`, and whose others are
    EMPTY.
    """
    current = Digest(root)
    for k in range(depth, to):
        current = node(current, EMPTY[k])
    return current


def leaf_count(data_bytes: int) -> int:
    """Returns the number of leaves for contents of that many bytes (>= 4)."""
    return -(-data_bytes // LEAF_BYTES)


@dataclass(frozen=True)
class Level(Sequence[Digest]):
    """One level of a tree as a single buffer: 32 bytes per node."""

    packed: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.packed) // HASH_BYTES

    @overload
    def __getitem__(self, index: int) -> Digest: ...

    @overload
    def __getitem__(self, index: slice) -> list[Digest]: ...

    def __getitem__(self, index: int | slice) -> Digest | list[Digest]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"node {index} of {len(self)}")
        at = index % len(self) * HASH_BYTES
        return Digest(self.packed[at : at + HASH_BYTES])


def data_levels(data: bytes | memoryview) -> list[Level]:
    """Returns `levels` over the 1 KiB leaves of a tensor's contents."""
    view = memoryview(data).cast("B")
    if _native is not None:
        return [Level(level) for level in _native.tree_levels(view, threads=1)]
    hashes = [leaf(bytes(view[i : i + LEAF_BYTES])) for i in range(0, len(view), LEAF_BYTES)]
    return [Level(b"".join(level)) for level in levels(hashes)]


def data_root(data: bytes | memoryview, threads: int = 1) -> Digest:
    """Returns the root over the 1 KiB leaves of a tensor's contents, independent of `threads`; Z_0 for empty
    contents.
    """
    view = memoryview(data).cast("B")
    if not view:
        return EMPTY[0]
    if _native is not None:
        return Digest(_native.tree_root(view, threads=threads))
    return data_levels(view)[-1][0]


@dataclass(frozen=True)
class TensorHeader:
    """Dtype and shape of a tensor, which its root binds together with the contents."""

    dtype: int
    """0 = f32, 1 = i32."""
    shape: tuple[int, ...]
    """() for a scalar; every dimension >= 1."""

    def encode(self) -> bytes:
        """Encodes dtype u8 ‖ rank u8 ‖ dims u32 each."""
        return bytes((self.dtype, len(self.shape))) + b"".join(d.to_bytes(4, "big") for d in self.shape)

    @property
    def elements(self) -> int:
        """Number of 4-byte elements; 1 for a scalar."""
        count = 1
        for d in self.shape:
            count *= d
        return count

    @property
    def leaves(self) -> int:
        """Number of 1 KiB leaves."""
        return leaf_count(4 * self.elements)

    @property
    def depth(self) -> int:
        """Depth of the tree over the leaves."""
        return ceil_log2(self.leaves)


def tensor_root_of_tree(header: TensorHeader, tree_root: bytes) -> TensorRoot:
    """Returns SHA256(0x02 ‖ header ‖ tree)."""
    return TensorRoot(sha256(b"\x02" + header.encode() + tree_root).digest())


def tensor_root(dtype: int, shape: Sequence[int], data: bytes | memoryview, threads: int = 1) -> TensorRoot:
    """Returns the root of a tensor of little-endian words, row-major.

    Raises ValueError for contents of another length.
    """
    header = TensorHeader(dtype, tuple(shape))
    view = memoryview(data).cast("B")
    if len(view) != 4 * header.elements:
        raise ValueError(f"{len(view)} bytes for a tensor of shape {header.shape}: {4 * header.elements} are due")
    return tensor_root_of_tree(header, data_root(view, threads))


def scalar_root(dtype: int, word: int) -> TensorRoot:
    """Returns the root of a scalar with the 32-bit `word`."""
    return tensor_root(dtype, (), (word & 0xFFFFFFFF).to_bytes(4, "little"))


def program_root(header: bytes, ops_root: bytes, consts_root: bytes) -> ProgramRoot:
    """Returns SHA256(0x03 ‖ leaf(header) ‖ ops_root ‖ consts_root)."""
    return ProgramRoot(sha256(b"\x03" + leaf(header) + ops_root + consts_root).digest())
