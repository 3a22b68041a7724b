"""Merkle commitments: what a root binds."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol import merkle

hashes = st.binary(min_size=32, max_size=32)


def test_domains_keep_leaf_and_node_apart() -> None:
    left, right = merkle.leaf(b"a"), merkle.leaf(b"b")
    assert merkle.node(left, right) == sha256(b"\x01" + left + right).digest()
    assert merkle.leaf(left + right) != merkle.node(left, right)


def test_one_leaf_is_its_own_tree() -> None:
    only = merkle.leaf(b"x")
    assert merkle.tree([only]) == only


@given(st.lists(hashes, min_size=1, max_size=40))
def test_padding_is_empty_leaves(leaves: list[bytes]) -> None:
    width = 1 << merkle.ceil_log2(len(leaves))
    assert merkle.tree(leaves) == merkle.tree([*leaves, *[bytes(32)] * (width - len(leaves))])


@given(st.lists(hashes, min_size=1, max_size=40), st.data())
def test_every_leaf_proves_itself_and_nothing_else(leaves: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(leaves) - 1))
    levels = merkle.levels(leaves)
    proof = merkle.proof(levels, index)
    root = levels[-1][0]
    assert merkle.verify(root, leaves[index], index, proof)
    assert not merkle.verify(root, merkle.leaf(leaves[index]), index, proof), "another leaf"
    assert not merkle.verify(root, leaves[index], index + (1 << len(proof)), proof), "an index beyond the tree"


@given(st.lists(hashes, min_size=1, max_size=8), st.integers(3, 6))
def test_lift_is_padding(leaves: list[bytes], to: int) -> None:
    depth = merkle.ceil_log2(len(leaves))
    assert merkle.lift(merkle.tree(leaves), depth, to) == merkle.tree(leaves, to)


def test_no_leaves_are_empty() -> None:
    assert merkle.tree([], 3) == merkle.EMPTY[3]


def test_leaves_beyond_the_depth_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        merkle.levels([bytes(32)] * 5, 2)


@given(st.binary(min_size=4, max_size=5000).map(lambda b: b[: len(b) // 4 * 4]))
def test_data_root_is_the_tree_over_1_kib_leaves(data: bytes) -> None:
    plain = merkle.tree([merkle.leaf(data[i : i + 1024]) for i in range(0, len(data), 1024)])
    assert merkle.data_root(data) == plain
    assert merkle.data_levels(data)[-1][0] == plain


def test_a_tensor_root_binds_dtype_and_shape() -> None:
    data = bytes(range(24))
    roots = {merkle.tensor_root(d, s, data) for d in (0, 1) for s in ((6,), (2, 3), (3, 2))}
    assert len(roots) == 6


def test_a_tensor_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes for a tensor"):
        merkle.tensor_root(0, (3,), bytes(8))


def test_a_scalar_is_one_leaf_of_four_bytes() -> None:
    assert merkle.scalar_root(1, -1) == merkle.tensor_root(1, (), b"\xff\xff\xff\xff")
