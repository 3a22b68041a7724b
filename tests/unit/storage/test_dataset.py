"""Datasets as content: the same root wherever they come from, or an error."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import BlobCorrupt, Mismatch, PayloadInvalid, RowMissing, UsageError
from lockstep.protocol.merkle import tensor_root
from lockstep.protocol.types import TensorRoot
from lockstep.storage import dataset as module
from lockstep.storage.dagpb import FileNode, Link
from lockstep.storage.dataset import Dataset, Manifest, load_dataset, load_manifest, store_dataset
from lockstep.storage.directory import DirectoryStore

LOAD_ALONE = """
import sys
from lockstep.storage import open_store
from lockstep.storage.dataset import load_dataset
dataset = load_dataset(open_store(sys.argv[1]), sys.argv[2])
assert "torch" not in sys.modules and "lockstep.training" not in sys.modules, "nothing but storage is needed"
print(dataset.root.hex())
"""


def tokens(rows: int, row_tokens: int, vocabulary: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(rows).integers(0, vocabulary, (rows, row_tokens), dtype=np.int32)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def altered(store: DirectoryStore, cid: str, **changes: Any) -> str:
    """A manifest with some fields replaced."""
    return store.put_node({**store.get_node(cid), **changes})


@pytest.mark.parametrize(
    ("vocabulary", "dtype", "width"),
    [(2, "u8", 1), (256, "u8", 1), (257, "u16", 2), (65_536, "u16", 2), (70_000, "u32", 4)],
)
def test_dataset_comes_back_from_the_narrowest_shards(
    store: DirectoryStore, vocabulary: int, dtype: str, width: int
) -> None:
    dataset = Dataset(tokens(10, 7, vocabulary), vocabulary)
    cid = store_dataset(store, dataset, shard_bytes=4 * 7 * width)
    manifest = load_manifest(store, cid)
    assert (manifest.dtype, manifest.shard_rows, len(manifest.shards)) == (dtype, 4, 3), "4 + 4 + 2 rows"
    assert [store.size(shard) for shard in manifest.shards] == [28 * width, 28 * width, 14 * width], "bytes"
    loaded = load_dataset(store, cid, root=dataset.root)
    assert np.array_equal(loaded.rows, dataset.rows), "tokens"
    assert (loaded.vocabulary, loaded.row_count, loaded.row_tokens) == (vocabulary, 10, 7), "and what is said of them"


def test_a_large_dataset_is_made_once_in_the_cache_mapped_and_made_again_if_it_is_damaged(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "MAPPED_BYTES", 1000)
    dataset = Dataset(tokens(100, 7, 300), 300)
    cid = store_dataset(store, dataset, shard_bytes=200)
    assert np.array_equal(load_dataset(store, cid, root=dataset.root).rows, dataset.rows)
    (made,) = (tmp_path / "cache/blobs").glob(f"{cid}.*")
    assert made.stat().st_size == dataset.rows.nbytes
    inode = made.stat().st_ino
    assert np.array_equal(load_dataset(DirectoryStore(store.home), cid).rows, dataset.rows)
    assert made.stat().st_ino == inode, "the second reader maps what the first one made"
    words = bytearray(made.read_bytes())
    words[5] ^= 1
    made.chmod(0o600)
    made.write_bytes(words)
    assert np.array_equal(load_dataset(DirectoryStore(store.home), cid).rows, dataset.rows)
    shard = load_manifest(store, cid).shards[2]
    for path in (tmp_path / "cache/blobs").glob("*"):
        path.unlink()
    store._path(shard).unlink()
    with pytest.raises(RowMissing) as missing:
        load_dataset(DirectoryStore(store.home), cid)
    assert missing.value.row == 2 * load_manifest(store, cid).shard_rows


@pytest.mark.slow
def test_a_shard_of_any_size_is_read_in_pieces(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    count = 48 << 20
    manifest = Manifest("u16", count // 64, 64, 300, count // 64, (store.put(bytes(2 * count)),), TensorRoot(bytes(32)))
    cid = store.put_node(manifest.to_node())
    tracemalloc.start()
    with pytest.raises(Mismatch, match="do not add up"):
        load_dataset(store, cid)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20, "of 96 MiB stored and 192 MiB of tokens"


@pytest.mark.parametrize("size", [3 << 18, (3 << 18) + 1])
def test_a_token_that_two_chunks_share_is_read(store: DirectoryStore, size: int) -> None:
    """Chunks that end within a token, as another program may have cut them."""
    rows = tokens(1, 1 << 18, 70_000)
    data = rows.astype("<u4").tobytes()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    links = tuple(Link(store.put_block(chunk, "raw"), len(chunk), len(chunk)) for chunk in chunks)
    root = store.put_block(FileNode(links).encode(), "dag-pb")
    dataset = Dataset(rows, 70_000)
    manifest = Manifest("u32", 1, 1 << 18, 70_000, 1, (root,), dataset.root)
    assert (load_dataset(store, store.put_node(manifest.to_node())).rows == rows).all()


def test_shards_are_little_endian(store: DirectoryStore) -> None:
    cid = store_dataset(store, Dataset(np.array([[1, 258]], np.int32), 300))
    (shard,) = load_manifest(store, cid).shards
    assert store.get(shard, max_bytes=4) == b"\x01\x00\x02\x01"


@given(rows=st.integers(1, 30), row_tokens=st.integers(1, 30), shard_bytes=st.integers(1, 300))
def test_any_cut_loads_the_same_dataset(
    tmp_path_factory: pytest.TempPathFactory, rows: int, row_tokens: int, shard_bytes: int
) -> None:
    store = DirectoryStore(tmp_path_factory.mktemp("cut"))
    dataset = Dataset(tokens(rows, row_tokens, 256), 256)
    loaded = load_dataset(store, store_dataset(store, dataset, shard_bytes=shard_bytes), root=dataset.root)
    assert np.array_equal(loaded.rows, dataset.rows)


def test_root_is_that_of_the_i32_tensor_and_not_of_the_shards(store: DirectoryStore) -> None:
    rows = tokens(40, 33, 256)
    expected = tensor_root(1, (40, 33), rows.astype("<i4").tobytes())
    assert Dataset(rows, 256).root == expected, "of the rows"
    assert Dataset(np.asfortranarray(rows), 256).root == expected, "in whatever order numpy keeps them"
    assert load_dataset(store, store_dataset(store, Dataset(rows, 256), shard_bytes=99)).root == expected, "loaded"


def test_manifest_has_one_cid_and_links_its_shards(store: DirectoryStore, tmp_path: Path) -> None:
    dataset = Dataset(tokens(10, 7, 256), 256)
    cid = store_dataset(store, dataset)
    assert store_dataset(DirectoryStore(tmp_path / "other"), dataset) == cid, "in every store"
    assert type(store.get_node(cid)["shards"][0]).__name__ == "CID", "links, so that a pin reaches the shards"


def test_rows_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Dataset(tokens(2, 2, 9), 9).rows[0, 0] = 1


@pytest.mark.parametrize(
    ("rows", "vocabulary"),
    [
        (np.zeros((2, 2), np.int64), 9),
        (np.zeros(4, np.int32), 9),
        (np.zeros((0, 4), np.int32), 9),
        (np.full((1, 1), 9, np.int32), 9),
        (np.full((1, 1), -1, np.int32), 9),
    ],
)
def test_what_is_no_dataset_is_a_usage_error(rows: Any, vocabulary: int) -> None:
    with pytest.raises(UsageError) as error:
        Dataset(rows, vocabulary)
    assert error.value.hint, "with a hint"


def test_dataset_of_another_job_is_a_mismatch(store: DirectoryStore) -> None:
    cid = store_dataset(store, Dataset(tokens(3, 3, 9), 9))
    with pytest.raises(Mismatch, match="the job names"):
        load_dataset(store, cid, root=bytes(32))


def test_manifest_that_lies_about_its_root_is_a_mismatch(store: DirectoryStore) -> None:
    cid = store_dataset(store, Dataset(tokens(3, 3, 9), 9))
    lie = bytes(32)
    with pytest.raises(Mismatch, match="do not add up"):
        load_dataset(store, altered(store, cid, root=lie), root=lie)


def test_shards_in_another_order_are_a_mismatch(store: DirectoryStore) -> None:
    cid = store_dataset(store, Dataset(tokens(4, 3, 9), 9), shard_bytes=6)
    shards = store.get_node(cid)["shards"]
    with pytest.raises(Mismatch, match="do not add up"):
        load_dataset(store, altered(store, cid, shards=shards[::-1]))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"dtype": "u16"},
        {"dtype": "f4"},
        {"rows": 0},
        {"rows": -3},
        {"rows": 4},
        {"rows": True},
        {"rows": "3"},
        {"row_tokens": 2},
        {"row_tokens": 4},
        {"row_tokens": 1 << 40},
        {"vocabulary": 1},
        {"vocabulary": 1 << 31},
        {"shard_rows": 1},
        {"shards": []},
        {"shards": ["x"]},
        {"shards": None},
        {"root": b"short"},
        {"root": None},
        {"unknown": 1},
    ],
)
def test_malformed_manifest_is_invalid(store: DirectoryStore, changes: dict[str, Any]) -> None:
    cid = store_dataset(store, Dataset(np.arange(9, dtype=np.int32).reshape(3, 3), 9))
    with pytest.raises(PayloadInvalid) as error:
        load_dataset(store, altered(store, cid, **changes))
    assert error.value.hint, "with a hint"


@pytest.mark.parametrize("node", [None, 7, [], {}, {"version": 1}, "text"])
def test_other_node_is_no_manifest(store: DirectoryStore, node: Any) -> None:
    with pytest.raises(PayloadInvalid):
        load_dataset(store, store.put_node(node))


def test_manifest_of_more_than_the_reader_accepts_is_refused_unread(store: DirectoryStore) -> None:
    cid = store_dataset(store, Dataset(tokens(3, 3, 9), 9))
    with pytest.raises(PayloadInvalid, match="3 x 3"):
        load_dataset(store, cid, max_bytes=35)
    huge = altered(store, cid, rows=(1 << 31) - 1, row_tokens=(1 << 31) - 1, shard_rows=(1 << 31) - 1)
    with pytest.raises(PayloadInvalid, match="accepted here"):
        load_dataset(store, huge)


def test_damaged_and_missing_shards_are_told_apart(store: DirectoryStore) -> None:
    cid = store_dataset(store, Dataset(tokens(3, 3, 9), 9))
    shard = load_manifest(store, cid).shards[0]
    (path,) = store.home.glob(f"blocks/*/{shard}")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BlobCorrupt):
        load_dataset(store, cid)
    path.unlink()
    with pytest.raises(RowMissing, match="row 0"):
        load_dataset(store, cid)


@pytest.mark.slow
def test_loading_needs_no_torch(store: DirectoryStore) -> None:
    dataset = Dataset(tokens(5, 5, 256), 256)
    done = subprocess.run(
        [sys.executable, "-c", LOAD_ALONE, store.url, store_dataset(store, dataset)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == dataset.root.hex()
