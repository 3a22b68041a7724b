"""What every content store does, whatever is behind it: a directory, or the Kubo RPC of a process of its own."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.protocol.errors import BlobCorrupt, BlobMissing, PayloadInvalid, Unreachable, UsageError
from lockstep.storage import cid_of, open_store, parse_cid
from lockstep.storage.dagpb import FileNode
from lockstep.storage.unixfs import CHUNK_BYTES
from tests.battery.conftest import Place

MIB = 1 << 20
SIZES = (0, 1, 1023, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, MIB, 3 * MIB)
TREE = 2 * CHUNK_BYTES + 1000


def content(size: int, name: str = "") -> bytes:
    """That many bytes that do not repeat."""
    return hashlib.shake_256(f"{size}{name}".encode()).digest(size)


@pytest.mark.sampled(1)
def test_content_of_every_size_comes_back(place: Place) -> None:
    store = place.open()
    for size in SIZES:
        data = content(size)
        cid = store.put(data)
        assert cid == cid_of(data), f"{size} bytes: the CID is that of the layout"
        assert store.get(cid, max_bytes=size) == data, f"{size} bytes: content"
        assert store.size(cid) == size, f"{size} bytes: size"
        assert store.has(cid), f"{size} bytes: has"


def test_put_twice_is_the_same_content(place: Place) -> None:
    store = place.open()
    first = store.put(content(TREE))
    files = place.block_files()
    assert store.put(bytearray(content(TREE))) == first, "equal bytes have one name"
    assert place.block_files() == files, "nothing was added"


def test_url_leads_back_to_the_store(place: Place) -> None:
    cid = place.open().put(b"found again")
    assert open_store(place.open().url).get(cid, max_bytes=11) == b"found again"


def test_missing_content_is_missing(place: Place) -> None:
    store = place.open()
    cid = cid_of(b"never stored")
    with pytest.raises(BlobMissing) as error:
        store.get(cid, max_bytes=100)
    assert cid in error.value.message, "the error names the block"
    assert error.value.hint, "the error has a hint"
    with pytest.raises(BlobMissing):
        store.size(cid)
    assert not store.has(cid), "has"


@pytest.mark.sampled(1)
def test_tree_without_a_leaf_is_missing(place: Place) -> None:
    store = place.open()
    cid = store.put(content(TREE))
    leaf = FileNode.decode(store.fetch_block(cid)).links[1].cid
    place.block_file(leaf).unlink()
    with pytest.raises(BlobMissing, match=leaf):
        store.get(cid, max_bytes=TREE)


@pytest.mark.sampled(1)
def test_text_that_is_no_cid_is_a_usage_error(place: Place) -> None:
    store = place.open()
    for text in ("", "x", "../../etc/passwd", "bafk", "Qm" + "a" * 44, cid_of(b"a").upper(), cid_of(b"a") + "a"):
        with pytest.raises(UsageError):
            store.get(text, max_bytes=1)
        with pytest.raises(UsageError):
            store.has(text)
        with pytest.raises(UsageError):
            store.size(text)


def test_content_under_a_wrong_cid_is_never_returned(place: Place) -> None:
    store = place.open()
    here, other = store.put(b"this"), store.put(b"that")
    place.block_file(here).write_bytes(place.block_file(other).read_bytes())
    with pytest.raises(BlobCorrupt, match=here):
        store.get(here, max_bytes=100)


@pytest.mark.sampled(1)
def test_truncated_block_is_corrupt_and_healed_by_put(place: Place) -> None:
    store = place.open()
    for part in ("single block", "root", "leaf"):
        data = content(1000 if part == "single block" else TREE)
        cid = store.put(data)
        damaged = FileNode.decode(store.fetch_block(cid)).links[2].cid if part == "leaf" else cid
        path = place.block_file(damaged)
        for keep in (0, 1, -1):
            path.write_bytes(path.read_bytes()[:keep])
            assert not store.has(damaged), f"{part} cut to [:{keep}]: not held"
            with pytest.raises(BlobCorrupt, match=damaged) as error:
                store.get(cid, max_bytes=TREE)
            assert error.value.hint, f"{part} cut to [:{keep}]: the error has a hint"
            assert store.put(data) == cid, f"{part} cut to [:{keep}]: the same name again"
            assert store.get(cid, max_bytes=TREE) == data, f"{part} cut to [:{keep}]: healed"


def test_flipped_bit_is_corrupt(place: Place) -> None:
    store = place.open()
    cid = store.put(content(5000))
    path = place.block_file(cid)
    block = bytearray(path.read_bytes())
    block[4321] ^= 4
    path.write_bytes(block)
    with pytest.raises(BlobCorrupt):
        store.get(cid, max_bytes=5000)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1000, TREE])
def test_content_above_the_readers_limit_is_refused(place: Place, size: int) -> None:
    store = place.open()
    cid = store.put(content(size))
    with pytest.raises(PayloadInvalid, match=f"{size} bytes"):
        store.get(cid, max_bytes=size - 1)
    assert len(store.get(cid, max_bytes=size)) == size, "the limit itself is allowed"


def test_nodes_come_back(place: Place) -> None:
    store = place.open()
    value = {"version": 1, "programs": {"step": "bafkrei"}, "shards": [b"\x00" * 32, 7, None, True]}
    cid = store.put_node(value)
    assert parse_cid(cid).codec == "dag-cbor", "codec"
    assert store.get_node(cid) == value, "value"
    assert store.get(cid, max_bytes=1000) == store.fetch_block(cid), "its bytes are content too"


@pytest.mark.sampled(1)
def test_node_read_from_other_content_is_invalid(place: Place) -> None:
    store = place.open()
    with pytest.raises(PayloadInvalid):
        store.get_node(store.put(b"no node"))
    with pytest.raises(PayloadInvalid):
        store.get_node(store.put(b"\xff\xff not cbor", codec="dag-cbor"))


@pytest.mark.sampled(1)
def test_block_above_1_mib_is_refused(place: Place) -> None:
    with pytest.raises(PayloadInvalid):
        place.open().put(bytes(MIB + 1), codec="dag-cbor")


@pytest.mark.sampled(1)
def test_files_go_in_and_out_whole(place: Place, tmp_path: Path) -> None:
    store = place.open()
    source, target = tmp_path / "source.bin", tmp_path / "target.bin"
    source.write_bytes(content(TREE))
    target.write_bytes(b"old")
    cid = store.put_file(source)
    assert cid == cid_of(content(TREE)), "the CID does not depend on the file's name"
    assert store.get_file(cid, target, max_bytes=TREE) == TREE, "size"
    assert target.read_bytes() == content(TREE), "content"


def test_failed_read_leaves_the_old_file_and_nothing_else(place: Place, tmp_path: Path) -> None:
    store = place.open()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"old")
    cid = store.put(content(TREE))
    leaf = FileNode.decode(store.fetch_block(cid)).links[2].cid
    place.block_file(leaf).write_bytes(b"damaged")
    with pytest.raises(BlobCorrupt):
        store.get_file(cid, folder / "model.bin", max_bytes=TREE)
    assert [path.name for path in folder.iterdir()] == ["model.bin"], "no half-written file"
    assert (folder / "model.bin").read_bytes() == b"old", "what was there stays"


def test_unreadable_file_is_a_usage_error(place: Place, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        place.open().put_file(tmp_path / "absent")
    with pytest.raises(UsageError):
        place.open().put_file(tmp_path)


@pytest.mark.sampled(1)
def test_concurrent_writers_do_not_disturb_each_other(place: Place) -> None:
    store = place.open()
    contents = [content(CHUNK_BYTES + size % 3, name=str(size % 5)) for size in range(20)]
    with ThreadPoolExecutor(8) as pool:
        cids = list(pool.map(lambda data: (store if len(data) % 2 else place.open()).put(data), contents))
    for cid, data in zip(cids, contents, strict=True):
        assert cid == cid_of(data), "each writer got its own content's name"
        assert store.get(cid, max_bytes=len(data)) == data, "and each content is whole"
    assert not list((place.home / "partial").iterdir()), "nothing half-written is left"


def test_store_that_is_down_is_unreachable_never_missing(place: Place) -> None:
    store = place.open()
    cid = store.put(content(TREE))
    store.check()
    place.lose()
    calls = (
        lambda: store.get(cid, max_bytes=TREE),
        lambda: store.get(cid_of(b"never stored"), max_bytes=TREE),
        lambda: store.has(cid),
        lambda: store.size(cid),
        lambda: store.put(b"more"),
        lambda: store.put(content(TREE, "more")),
        lambda: store.put_node({"more": 1}),
        store.check,
    )
    for number, call in enumerate(calls):
        with pytest.raises(Unreachable) as error:
            call()
        assert error.value.hint, f"call {number} gives a hint"


@pytest.mark.slow
def test_kill_9_while_writing_leaves_no_half_written_block(place: Place) -> None:
    random.seed(9)
    for round_ in range(4):
        cids = place.kill_while_writing(str(round_), seconds=random.uniform(0.0, 0.3))
        assert cids[0], "the writer had begun"
        if place.kind == "kubo":
            place.start()
        store = place.open()
        for path in place.block_files():
            digest = hashlib.sha256(path.read_bytes()).digest()
            assert digest == parse_cid(path.name).digest, f"round {round_}: {path.name} is whole"
        for number, cid in enumerate(cids):
            expected = hashlib.shake_256(f"{round_}-{number}".encode()).digest(700_000)
            assert store.get(cid, max_bytes=700_000) == expected, f"round {round_}: what was acknowledged is there"
        for path in place.block_files():
            if parse_cid(path.name).codec == "dag-pb":
                assert store.get(path.name, max_bytes=MIB), f"round {round_}: a visible root has all its leaves"
