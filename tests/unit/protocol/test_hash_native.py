"""The native SHA-256 trees against hashlib."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import pytest

from lockstep.protocol import _hash, merkle


def paths() -> list[str]:
    """Those of this machine."""
    found = []
    for path in ("portable", "sha-ni", "avx512", "sha2"):
        try:
            _hash.tree_root(b"", path)
        except ValueError:
            continue
        found.append(path)
    return found


PATHS = [*paths(), "auto"]
LENGTHS = [
    0,
    1,
    4,
    54,
    55,
    62,
    63,
    64,
    119,
    1023,
    1024,
    1025,
    2047,
    2048,
    5000,
    7 * 1024,
    8 * 1024 + 3,
    16 * 1024,
    33 * 1024,
    257 * 1024 + 4,
]


def leaves_by_hashlib(data: bytes) -> list[bytes]:
    return [sha256(b"\x00" + data[i : i + 1024]).digest() for i in range(0, len(data), 1024)]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_tree_of_a_buffer_equals_hashlib(path: str, length: int) -> None:
    data = Random(length).randbytes(length)
    leaves = leaves_by_hashlib(data)
    levels = merkle.levels(leaves) if leaves else [[merkle.EMPTY[0]]]
    assert _hash.leaf_hashes(data, path) == b"".join(leaves), "leaves"
    assert _hash.tree_levels(data, path) == [b"".join(level) for level in levels], "levels"
    assert _hash.tree_root(data, path) == levels[-1][0], "root of the buffer"
    assert _hash.merkle_root(b"".join(leaves), path) == levels[-1][0], "root of the hashes"
    assert _hash.merkle_levels(b"".join(leaves), path)[-1] == levels[-1][0], "levels of the hashes"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("length", [60 * 1024, 1 << 20, (1 << 20) + 5, 3_000_001])
def test_threads_change_no_hash(path: str, length: int) -> None:
    data = Random(length).randbytes(length)
    leaves = b"".join(leaves_by_hashlib(data))
    for threads in (1, 2, 3, 7):
        assert _hash.leaf_hashes(data, path, threads) == leaves, threads
        assert _hash.tree_levels(data, path, threads) == _hash.merkle_levels(leaves, path), threads


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_a_number_of_threads_that_is_none_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        _hash.tree_root(b"", threads=threads)


def test_hashes_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        _hash.merkle_root(bytes(33))


def test_unknown_path_is_refused() -> None:
    with pytest.raises(ValueError, match="path"):
        _hash.tree_root(b"", "abacus")
