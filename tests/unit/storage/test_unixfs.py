"""The layout of content: names that other implementations give, and trees that lie."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lockstep.protocol.errors import BlobCorrupt, BlobMissing, PayloadInvalid
from lockstep.protocol.types import Cid
from lockstep.storage.cid import cid_of_block
from lockstep.storage.dagpb import FileNode, Link
from lockstep.storage.unixfs import MAX_DEPTH, chunks_of, cid_of, cid_of_file, content_size, layout, read_chunks

# (bytes, chunk, links per node, CID): made by ipfs-unixfs-importer of npm with cidVersion 1, rawLeaves and the balanced
# layout, for the content `pattern(bytes)`
GOLDEN = [
    (0, 262144, 174, "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"),
    (1, 262144, 174, "bafkreiaij7wqrolyv5gx2glkordkq22yacpgg23bdwyweenwlknk37zjyu"),
    (262143, 262144, 174, "bafkreiasona2j7pb4qmrokqq4owbu4t25jk3ykyjuqo5ypmdbrejp6kld4"),
    (262144, 262144, 174, "bafkreidqwk7ukbhsyafa44jkg5hjnbcsb4imp6m5znw3363uvpwsllsmti"),
    (262145, 262144, 174, "bafybeihb5pj3qrbr7v2k6macpqpcpbizx22pxcjw2yt5szf5ta5s37q3dm"),
    (1048576, 262144, 174, "bafybeifo65joqt3vubujg2sbdl4lkaellgl6qrrhn5l2mnlr6slcmnptba"),
    (3145728, 262144, 174, "bafybeifdsjbjxrpleakvxrp3qqqurcdoxxv3qj5v3thdosjqz5xq6cdwpe"),
    (3145729, 262144, 174, "bafybeieehjczcispx45ikgphvw6jlvbche45aq3xhb5t4nddpi2fqbg4tu"),
    (174000, 1000, 174, "bafybeicpmn23uk4nwxjkku5eyvvih3cmozu6n7ub7oblklryxi3sghceka"),
    (174001, 1000, 174, "bafybeibkayd56262wlq2nrpswcqtvhlvdkgiecjugcxuex67h6mc3tddna"),
    (27, 1, 3, "bafybeieuxi6uqu5sul7chp3qat57rbgt6q6q4quu66fb3o37zaeadnylee"),
    (28, 1, 3, "bafybeicmusa7rjry4fvmj6gfihrpqiqr2sn6twyksl5l4xggslqdrogdva"),
    (82, 1, 3, "bafybeiebhlgy4yamzyq5rklyrdnfy543jrtew62vf36sa2pimyvbniavje"),
]


def pattern(size: int) -> bytes:
    return bytes((i * i + (i >> 8) * 7 + 3) & 255 for i in range(size))


class Blocks(dict[str, bytes]):
    """Blocks in memory, counting how many were asked for."""

    asked = 0

    def fetch_block(self, cid: Cid) -> bytes:
        self.asked += 1
        if cid not in self:
            raise BlobMissing(cid)
        return self[cid]

    def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
        return (self.fetch_block(link.cid) for link in links[first:])

    def add(self, block: bytes, codec: str = "raw") -> Cid:
        cid = cid_of_block(block, codec)
        self[cid] = block
        return cid

    def add_node(self, *children: tuple[Cid, int]) -> Cid:
        return self.add(FileNode(tuple(Link(cid, size, size) for cid, size in children)).encode(), "dag-pb")


def read(blocks: Blocks, cid: Cid, max_bytes: int = 1 << 20, least: int = 1) -> bytes:
    return b"".join(read_chunks(blocks, cid, max_bytes=max_bytes, least_bytes=least))


@pytest.mark.sampled(2)
@pytest.mark.uncounted
@pytest.mark.parametrize(("size", "chunk", "links", "cid"), GOLDEN)
def test_names_are_those_of_other_implementations(size: int, chunk: int, links: int, cid: str) -> None:
    *_, root = layout(chunks_of(pattern(size), chunk), links)
    assert root.cid == cid
    if (chunk, links) == (262144, 174):
        assert cid_of(pattern(size)) == cid, "the default layout"
        assert cid_of_file(io.BytesIO(pattern(size))) == cid, "read as a file"


@pytest.mark.uncounted
@given(size=st.integers(0, 400), chunk=st.integers(1, 40), links=st.integers(2, 5))
def test_any_layout_reads_back(size: int, chunk: int, links: int) -> None:
    blocks = Blocks()
    cid = Cid("")
    for block in layout(chunks_of(pattern(size), chunk), links):
        for link in FileNode.decode(block.data).links if block.cid.startswith("bafybei") else ():
            assert link.cid in blocks, "children come before their parents"
        blocks[block.cid] = block.data
        cid = block.cid
    assume(size <= chunk * links**MAX_DEPTH)
    assert read(blocks, cid, least=chunk) == pattern(size), "content"
    assert content_size(blocks, cid) == size, "size"


def test_size_is_known_before_a_second_block_is_fetched() -> None:
    blocks = Blocks()
    cid = blocks.add_node((blocks.add(b"abc"), 3), (blocks.add(b"de"), 2))
    with pytest.raises(PayloadInvalid, match="5 bytes"):
        read(blocks, cid, max_bytes=4)
    assert blocks.asked == 1, "only the root was fetched"


def test_content_in_crumbs_is_refused_before_they_are_fetched() -> None:
    blocks = Blocks()
    crumb, chunk = blocks.add(b"x"), blocks.add(bytes(8))
    crumbs = blocks.add_node((chunk, 8), (chunk, 8), (crumb, 1))
    assert read(blocks, crumbs, least=8) == bytes(16) + b"x", "the last chunk is as short as it is"
    for broken in (
        blocks.add_node(*[(crumb, 1)] * 5),
        blocks.add_node((crumbs, 17), (chunk, 8)),
        blocks.add_node((blocks.add_node((crumb, 1)), 1), (chunk, 8)),
    ):
        with pytest.raises(PayloadInvalid, match="less than 8 bytes"):
            read(blocks, broken, least=8)
    blocks.asked = 0
    with pytest.raises(PayloadInvalid):
        read(blocks, blocks.add_node(*[(crumb, 1)] * 5), least=8)
    assert blocks.asked == 1, "only the root was fetched"


@pytest.mark.parametrize("promised", [1, 2, 4, 1 << 19])
def test_leaf_of_another_size_than_promised_is_corrupt(promised: int) -> None:
    blocks = Blocks()
    cid = blocks.add_node((blocks.add(b"abc"), promised))
    with pytest.raises(BlobCorrupt, match="parent says"):
        read(blocks, cid)


def test_inner_node_of_another_size_than_promised_is_corrupt() -> None:
    blocks = Blocks()
    inner = blocks.add_node((blocks.add(b"abc"), 3))
    with pytest.raises(BlobCorrupt, match="parent says"):
        read(blocks, blocks.add_node((inner, 4)))


def test_leaf_that_is_a_dag_cbor_block_counts_as_its_bytes() -> None:
    blocks = Blocks()
    cid = blocks.add_node((blocks.add(b"abc"), 3), (blocks.add(b"\xf6", "dag-cbor"), 1))
    assert read(blocks, cid) == b"abc\xf6"


def test_tree_deeper_than_any_file_is_corrupt() -> None:
    blocks = Blocks()
    cid = blocks.add(b"abc")
    for _ in range(MAX_DEPTH + 2):
        cid = blocks.add_node((cid, 3))
    with pytest.raises(BlobCorrupt, match="deeper"):
        read(blocks, cid)


def test_missing_child_is_missing() -> None:
    blocks = Blocks()
    cid = blocks.add_node((cid_of_block(b"abc"), 3))
    with pytest.raises(BlobMissing):
        read(blocks, cid)
