"""dag-pb blocks: read back exactly, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import BlobCorrupt
from lockstep.storage.cid import cid_of_digest
from lockstep.storage.dagpb import FileNode, Link

links = st.builds(
    Link,
    cid=st.builds(cid_of_digest, st.binary(min_size=32, max_size=32), st.sampled_from(["raw", "dag-pb"])),
    size_bytes=st.integers(1, 1 << 40),
    tree_bytes=st.integers(0, 1 << 40),
)
nodes = st.builds(lambda found: FileNode(tuple(found)), st.lists(links, min_size=1, max_size=4))

# written out by hand from the specification of dag-pb: 4 bytes in chunks of 2
TWO_CHUNKS = bytes.fromhex(
    "122a0a2401551220" + "11" * 32 + "12001802" + "122a0a2401551220" + "22" * 32 + "12001802" + "0a080802180420022002"
)


def test_block_is_links_then_unixfs_data() -> None:
    children = (cid_of_digest(b"\x11" * 32), cid_of_digest(b"\x22" * 32))
    node = FileNode(tuple(Link(cid, 2, 2) for cid in children))
    assert node.encode() == TWO_CHUNKS
    assert FileNode.decode(TWO_CHUNKS) == node


@given(nodes)
def test_nodes_come_back(node: FileNode) -> None:
    assert FileNode.decode(node.encode()) == node
    assert node.size_bytes == sum(link.size_bytes for link in node.links)


@given(st.binary(max_size=200))
def test_other_bytes_are_corrupt(block: bytes) -> None:
    with pytest.raises(BlobCorrupt):
        FileNode.decode(block)


@given(nodes, st.data())
def test_changed_byte_is_refused_or_another_node(node: FileNode, data: st.DataObject) -> None:
    block = bytearray(node.encode())
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    try:
        other = FileNode.decode(bytes(block))
    except BlobCorrupt:
        return
    assert other != node, "two blocks never mean one node"
    assert other.encode() == bytes(block), "and each node has one block"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("0a0808021804", "0a0808011804", "a directory"),
        ("0a080802180420022002", "0a080802180520022002", "a size that is not the sum"),
        ("0a080802180420022002", "0a0608021802" + "2002", "a size too few"),
        ("0a080802180420022002", "", "no data"),
        ("12001802", "1201781802", "a named link"),
        ("0a080802180420022002", "0a080802180220022000", "a child without bytes"),
        ("0a080802180420022002", "0a0a0802120061180420022002", "bytes of its own"),
    ],
)
def test_what_is_not_a_plain_file_is_refused(old: str, new: str, what: str) -> None:
    assert old in TWO_CHUNKS.hex(), what
    with pytest.raises(BlobCorrupt):
        FileNode.decode(bytes.fromhex(TWO_CHUNKS.hex().replace(old, new)))
