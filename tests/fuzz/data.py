"""Fuzz targets: what a store holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.target import Run, refusals

FRESH = OTHER_SIZE = 128
"""First bytes from here on ask for what the cache does not hold, or for content of another size."""
LEAST = 4
"""Bytes of every leaf but the last, as readers of these trees want them."""


def manifest() -> tuple[Iterable[bytes], Run]:
    import dag_cbor
    import numpy as np

    from lockstep.base.decoding import from_cbor
    from lockstep.storage.cid import cid_of_block
    from lockstep.storage.dataset import Dataset, Manifest, TokenizerLink
    from lockstep.storage.fields import RowField, RowForm, RowWindows

    rows = Dataset(np.arange(12, dtype=np.int32).reshape(4, 3), 100)
    seeds = []
    for vocabulary, dtype in ((100, "u8"), (1000, "u16"), (100_000, "u32")):
        shards = (cid_of_block(b"a"), cid_of_block(b"b"))
        manifest = Manifest(dtype, 4, 3, vocabulary, 3, shards, rows.root)
        seeds.append(dag_cbor.encode(manifest.to_node()))
    link = TokenizerLink(shards[0], bytes(32), "</s>", "train", False)
    seeds.append(dag_cbor.encode(replace(manifest, tokenizer=link).to_node()))
    windows = RowForm("tokens", (), RowWindows(2, 1, 2))
    seeds.append(dag_cbor.encode(replace(manifest, form=windows).to_node()))
    fields = RowForm("dict", (RowField("x", "float32", (2,)), RowField("y", "uint8", (1, 2))))
    seeds.append(dag_cbor.encode(Manifest("words", 4, 3, 0, 3, shards, rows.root, form=fields).to_node()))
    of_series = RowForm("one", (RowField("x", "float32", (3, 1)),), RowWindows(2, 1, 2))
    seeds.append(dag_cbor.encode(Manifest("words", 4, 3, 0, 3, shards, rows.root, form=of_series).to_node()))

    def run(data: bytes) -> None:
        with refusals():
            manifest = Manifest.from_node(from_cbor(data, 4096))
            assert dag_cbor.encode(manifest.to_node()) == data, "a manifest has one encoding"
            assert sum(manifest.rows_of(k) for k in range(len(manifest.shards))) == manifest.rows, "shards add up"

    return seeds, run


def dataset() -> tuple[Iterable[bytes], Run]:
    """A manifest and its shards in one text: a store gives what the text says, under any name."""
    import dag_cbor
    import numpy as np

    from lockstep.protocol.errors import BlobMissing
    from lockstep.storage.dataset import Dataset, Manifest, load_dataset
    from lockstep.storage.directory import DirectoryStore

    rows = Dataset(np.arange(12, dtype=np.int32).reshape(4, 3), 100)

    class Held(DirectoryStore):
        def __init__(self, node: object, shards: Sequence[object]) -> None:
            self.node, self.shards, self.asked = node, list(shards), 0

        def get_node(self, cid: str) -> Any:
            return self.node

        def get_stream(self, cid: str, *, max_bytes: int) -> Iterator[bytes]:
            self.asked += 1
            data = self.shards[self.asked - 1] if self.asked <= len(self.shards) else None
            if not isinstance(data, bytes):
                raise BlobMissing("no such shard")
            yield from (data[:5], data[5:])

    from lockstep.base.decoding import from_cbor
    from lockstep.storage.cid import cid_of_block

    def text(manifest: Manifest, shards: list[object]) -> bytes:
        return dag_cbor.encode({"node": manifest.to_node(), "shards": shards, "job": True})

    packed = rows.rows.astype(np.uint8)
    cids = (cid_of_block(b"a"), cid_of_block(b"b"))
    good = Manifest("u8", 4, 3, 100, 3, cids, rows.root)

    def run(data: bytes) -> None:
        with refusals():
            given = from_cbor(data, 4096)
            shards = given.get("shards") if isinstance(given, dict) else None
            if not isinstance(shards, list):
                return
            root = rows.root if given.get("job") else None
            found = load_dataset(Held(given.get("node"), shards), "", root=root, max_bytes=1 << 16)
            assert found.fielded or found.rows.min() >= 0, "tokens are no negative numbers"

    parts: list[object] = [packed[:3].tobytes(), packed[3:].tobytes()]
    wide = Manifest("u8", 1 << 20, 3, 100, 1 << 19, cids, rows.root)
    other = Manifest("u8", 4, 3, 100, 3, cids, type(rows.root)(bytes(32)))
    return [
        text(good, parts),
        text(good, [packed[:3].tobytes(), b"\xff\xff\xff"]),
        text(good, [parts[0], b"\x01\x02\x03"]),
        text(good, parts[:1]),
        text(wide, parts),
        text(other, parts),
    ], run


def _held(block: bytes, blobs: dict[Any, bytes]) -> Any:
    """A store of one manifest and some blobs; of any other blob it has zeros, as many as are due."""
    from lockstep.protocol.types import Cid
    from lockstep.storage.cache import BlobCache
    from lockstep.storage.directory import DirectoryStore

    class Held(DirectoryStore):
        cache = BlobCache(Path("/nonexistent"), 0)

        def __init__(self) -> None:
            pass

        def fetch_block(self, cid: Cid) -> bytes:
            return block

        def blobs(self, wanted: Sequence[tuple[Cid, int]]) -> list[memoryview]:
            assert all(0 < size <= 1 << 20 for _, size in wanted), "what is due follows from the layout"
            found = [(blobs.get(cid, b""), size) for cid, size in wanted]
            return [memoryview(data if len(data) == size else bytes(size)) for data, size in found]

    return Held()


def payload() -> tuple[Iterable[bytes], Run]:
    import numpy as np

    from lockstep.protocol.merkle import TensorHeader
    from lockstep.protocol.programs.program import F32, I32
    from lockstep.storage.cid import cid_of_block
    from lockstep.storage.formats.signs import Signs
    from lockstep.storage.formats.sparse import Sparse
    from lockstep.storage.payload import INT8_FORMAT, encode_payload, load_carry, load_payload
    from lockstep.storage.unixfs import cid_of

    block, odd, whole = TensorHeader(F32, (256,)), TensorHeader(F32, (3,)), TensorHeader(I32, (2,))
    ranked = Sparse(256, 16, 2, 128, "ranked", "ranked").name
    forms = (INT8_FORMAT, "f32", Signs(64).name, ranked)
    layouts = [([block, None], []), ([odd, whole], []), ([block], [odd, None, whole]), ([odd], [whole])]
    sparse = np.zeros(256, np.float32)
    sparse[:16] = 1
    zeros = {block: sparse, odd: np.ones(3, np.float32), whole: np.ones(2, np.int32)}

    def tensors(headers: Sequence[TensorHeader | None]) -> list[Any]:
        return [zeros[h] for h in headers if h is not None]

    def run(data: bytes) -> None:
        if not data:
            return
        due, carried = layouts[data[0] % len(layouts)]
        form, fresh = forms[data[0] % FRESH // len(layouts) % len(forms)], data[0] >= FRESH
        with refusals():
            store = _held(data[1:], {})
            found = load_payload(store, cid_of_block(b"x"), due, wire_format=form, carries=bool(carried), fresh=fresh)
            headers = [h for h in due if h is not None]
            assert [x.shape for x in found] == [h.shape for h in headers], "shapes are those of the layout"
            if carried:
                beside = load_carry(store, cid_of_block(b"x"), due, carried, wire_format=form, fresh=fresh)
                assert [x.shape for x in beside] == [h.shape for h in carried if h is not None], "and of the carry's"

    seeds = [
        bytes([k + len(layouts) * n + first])
        + encode_payload(tensors(due), form, cid_of(encode_payload(tensors(carried))) if carried else None)
        for k, (due, carried) in enumerate(layouts)
        for n, form in enumerate(forms)
        for first in (0, FRESH)
    ]
    return seeds, run


def checkpoint() -> tuple[Iterable[bytes], Run]:
    """The first byte is that of no checkpoint: the mutator leaves it as it is."""
    import numpy as np

    from lockstep.protocol.merkle import TensorHeader
    from lockstep.protocol.programs.program import F32
    from lockstep.storage.cid import cid_of_block
    from lockstep.storage.payload import Checkpoint, encode_checkpoint, load_checkpoint

    parts = (np.ones(3, np.float32), np.zeros(2, np.float32), np.ones(1, np.float32))
    good, blobs = Checkpoint(parts[:1], parts[1:]), {cid_of_block(p.tobytes()): p.tobytes() for p in parts}
    shared, outer = [TensorHeader(F32, (3,)), None], [TensorHeader(F32, (2,)), TensorHeader(F32, (1,))]

    def run(data: bytes) -> None:
        with refusals():
            found = load_checkpoint(_held(data[1:], blobs), cid_of_block(b"x"), shared, outer)
            assert [len(found.shared), len(found.outer)] == [1, 2], "as many tensors as the layout has"

    return [b"." + encode_checkpoint(good)], run


def trace() -> tuple[Iterable[bytes], Run]:
    """The first byte says how the store answers, the second how many roots are due."""
    from dataclasses import replace

    from lockstep.execution.jobs import trace_root
    from lockstep.market.ledger import ClaimRecord
    from lockstep.market.replay import first_difference, published_trace
    from lockstep.protocol.errors import BlobMissing, PayloadInvalid, Unreachable
    from lockstep.protocol.types import (
        Address,
        Cid,
        ClaimId,
        Digest,
        JobId,
        Seconds,
        StateRoot,
        TraceRoot,
    )  # fmt: skip
    from lockstep.storage.directory import DirectoryStore

    roots = [StateRoot(bytes([k]) * 32) for k in range(1, 6)]
    word = bytes(32)
    claim = ClaimRecord(
        ClaimId(word), JobId(word), 0, 0, 0, Address("0x" + "11" * 20), TraceRoot(trace_root(roots)), Digest(word),
        Digest(word), Cid("bafkrei"), Cid("bafkrei"), Seconds(0),
    )  # fmt: skip

    class Held(DirectoryStore):
        def __init__(self, answer: int, data: bytes) -> None:
            self.answer, self.data = answer, data

        def get(self, cid: str, *, max_bytes: int) -> bytes:
            if self.answer == 1:
                raise Unreachable("nobody")
            if self.answer == 2:
                raise BlobMissing("nothing")
            if len(self.data) > max_bytes:
                raise PayloadInvalid("too long")
            return self.data

    def run(data: bytes) -> None:
        if len(data) < 2:
            return
        about = replace(claim, trace_cid=None) if data[0] == 3 else claim
        try:
            found = published_trace(Held(data[0], data[2:]), about, data[1])
        except Unreachable:
            return
        if found is not None:
            assert data[0] == 3 or (len(found) == data[1] and all(len(r) == 32 for r in found)), "a list, or none"
        first_difference(found, roots)

    good = b"".join(roots)
    return [bytes((k, 5)) + good for k in range(4)] + [bytes((0, 4)) + good[:128], bytes((0, 4)) + good], run


def dagpb() -> tuple[Iterable[bytes], Run]:
    from lockstep.storage.cid import cid_of_block
    from lockstep.storage.dagpb import FileNode, Link

    nodes = [FileNode((Link(cid_of_block(b"a"), 1, 1),)), FileNode((Link(cid_of_block(b"b"), 300, 400),) * 3)]

    def run(data: bytes) -> None:
        with refusals():
            assert FileNode.decode(data).encode() == data, "a block has one encoding"

    return [n.encode() for n in nodes], run


def unixfs() -> tuple[Iterable[bytes], Run]:
    """Blocks of up to 255 bytes, the root last; a link leads to the block that its digest's first byte counts."""
    from lockstep.protocol.types import Cid
    from lockstep.storage.cid import cid_of_digest, parse_cid
    from lockstep.storage.dagpb import FileNode, Link
    from lockstep.storage.unixfs import CHUNK_BYTES, content_size, leaf_nodes, leaf_of, read_chunks

    def cid(index: int, codec: Any) -> Cid:
        return cid_of_digest(bytes([index]) * 32, codec)

    class Source:
        def __init__(self, blocks: list[bytes]) -> None:
            self.blocks, self.asked = blocks, 0

        def fetch_block(self, cid: Cid) -> bytes:
            self.asked += 1
            assert self.asked < 5000, "reading a tree ends"
            return self.blocks[parse_cid(cid).digest[0] % len(self.blocks)]

        def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
            return (self.fetch_block(link.cid) for link in links[first:])

    def run(data: bytes) -> None:
        blocks, at = [], 1
        while at < len(data) and len(blocks) < 9:
            blocks.append(data[at + 1 : at + 1 + data[at]])
            at += 1 + data[at]
        if not blocks:
            return
        root = cid(len(blocks) - 1, "dag-pb" if data[0] & 1 else "raw")
        with refusals():
            size = content_size(Source(blocks), root)
            found = b"".join(read_chunks(Source(blocks), root, max_bytes=1 << 10, least_bytes=LEAST))
            assert len(found) == size <= 1 << 10, "content has the size that its root says"
        with refusals():
            source, blob = Source(blocks), b""
            size = content_size(source, root) + (data[0] >= OTHER_SIZE)
            for node, links in list(leaf_nodes(source, root, size)):
                for link, leaf in zip(links, source.fetch_leaves(node, links), strict=True):
                    blob += leaf_of(link, leaf)
            assert len(blob) == size, "a blob has the size that is due"

    def text(first: int, *blocks: bytes) -> bytes:
        return bytes([first]) + b"".join(bytes([len(b)]) + b for b in blocks)

    leaf, raw = b"leaf", "raw"
    crumbs = FileNode((Link(cid(0, raw), 3, 4), Link(cid(0, raw), 4, 4)))
    flat = FileNode((Link(cid(0, raw), 4, 4),) * 2)
    tree = FileNode((Link(cid(1, "dag-pb"), 8, 99), Link(cid(0, raw), 4, 4)))
    lying = FileNode((Link(cid(1, "dag-pb"), 9, 99), Link(cid(0, raw), 5, 4)))
    endless = FileNode((Link(cid(0, "dag-pb"), 8, 99),))
    huge = FileNode((Link(cid(0, raw), 1 << 40, 4),))
    whole = FileNode((Link(cid(0, raw), CHUNK_BYTES, 4),))
    cut = FileNode((Link(cid(1, "dag-pb"), CHUNK_BYTES, 99), Link(cid(0, raw), 4, 4)))
    return [
        text(0, leaf),
        text(1, leaf, flat.encode()),
        text(1, leaf, flat.encode(), tree.encode()),
        text(1, leaf, crumbs.encode()),
        text(1, leaf, flat.encode(), lying.encode()),
        text(1, endless.encode()),
        text(1, leaf, huge.encode()),
        text(1, leaf, whole.encode(), cut.encode()),
        text(OTHER_SIZE + 1, leaf, flat.encode()),
    ], run


def cid() -> tuple[Iterable[bytes], Run]:
    from lockstep.storage.cid import cid_from_bytes, cid_of_block, cid_of_digest, cid_to_bytes, parse_cid, verify_block

    def run(data: bytes) -> None:
        with refusals():
            assert cid_to_bytes(cid_from_bytes(data)) == data, "a binary CID has one text"
        with refusals():
            text = data.decode("latin-1")
            parsed = parse_cid(text)
            assert cid_of_digest(parsed.digest, parsed.codec) == text, "a CID has one spelling"
            assert cid_from_bytes(cid_to_bytes(text)) == text, "and one binary form"
            verify_block(text, b"x", source="here")

    names = [cid_of_block(b"x"), cid_of_block(b"y", "dag-pb"), cid_of_block(b"z", "dag-cbor")]
    other = ["QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG", names[0].upper(), "z" + names[0]]
    foreign = [bytes((1, 0x55, 0x12, 16)) + bytes(32), bytes((1, 0x70, 0x13, 32)) + bytes(32)]
    return [*(cid_to_bytes(c) for c in names), *(c.encode() for c in [*names, *other]), *foreign], run
