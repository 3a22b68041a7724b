"""Payloads and checkpoints on the wire."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import dag_cbor
import numpy as np
import pytest

from lockstep.protocol.errors import BlobMissing, Mismatch, PayloadInvalid, UsageError
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32
from lockstep.protocol.types import Cid
from lockstep.storage import ContentStore, cid_of, cid_of_block
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.links import link_of
from lockstep.storage.payload import (
    BLOCK,
    INT8_FORMAT,
    MAX_TENSORS,
    PIECE,
    Checkpoint,
    encode_checkpoint,
    encode_payload,
    load_carry,
    load_checkpoint,
    load_payload,
    store_carry,
    store_checkpoint,
    store_payload,
    stored_length,
    wire_length,
)
from tests.support.stored import stored_bytes

N = 4 * BLOCK
LINK = len("carry") + 1 + 41
"""Bytes by which a manifest grows that names a carry."""
LARGE = 2 * PIECE + BLOCK
"""Elements of a tensor that is quantised in three pieces, and mapped."""
LAYOUT = [TensorHeader(F32, (N,)), None]
RNG = np.random.default_rng(7)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContentStore:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return DirectoryStore(tmp_path / "blocks")


def quantised(values: np.ndarray) -> np.ndarray:
    """As the strategy's encode leaves them: scales of 16 significant bits, codes of 8."""
    blocks = values.astype(np.float32).reshape(-1, BLOCK)
    scales = (np.abs(blocks).max(1) / np.float32(127)).view(np.uint32) & np.uint32(0xFFFFFF00)
    scales = scales.view(np.float32)[:, None]
    codes = np.where(scales > 0, np.rint(blocks / np.where(scales > 0, scales, 1)), 0).astype(np.int8)
    return (codes.astype(np.float32) * scales).reshape(-1)


def manifest(store: ContentStore, **fields: object) -> Cid:
    return store.put_node(fields)


def test_words_come_back_bit_for_bit(store: ContentStore) -> None:
    values = RNG.standard_normal(N).astype(np.float32)
    values[:4] = [np.nan, -0.0, np.inf, 1e-42]
    (back,) = load_payload(store, store_payload(store, [values]), LAYOUT)
    assert back.tobytes() == values.tobytes()


@pytest.mark.parametrize("size", [N, LARGE])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30, 3.7e-5])
def test_quantised_tensors_travel_as_bytes_and_come_back_bit_for_bit(
    store: ContentStore, scale: float, size: int
) -> None:
    layout = [TensorHeader(F32, (size,)), None]
    values = quantised(RNG.standard_normal(size) * scale)
    values[BLOCK : 2 * BLOCK] = 0
    cid = store_payload(store, [values], INT8_FORMAT)
    assert stored_bytes(store, cid) == wire_length(layout, INT8_FORMAT) < size * 1.2
    for _ in range(2):
        (back,) = load_payload(store, cid, layout)
        assert back.tobytes() == values.tobytes()
        assert not back.flags.writeable, "what others see is nobody's to write"


@pytest.mark.parametrize("values", [RNG.standard_normal(N), np.full(N, np.inf), np.full(N, -0.0)])
def test_what_bytes_cannot_carry_travels_as_words(store: ContentStore, values: np.ndarray) -> None:
    values = values.astype(np.float32)
    cid = store_payload(store, [values], INT8_FORMAT)
    assert stored_bytes(store, cid) == wire_length(LAYOUT, "f32")
    assert load_payload(store, cid, LAYOUT)[0].tobytes() == values.tobytes()


@pytest.mark.parametrize("values", [quantised(RNG.standard_normal(N)), RNG.standard_normal(N).astype(np.float32)])
@pytest.mark.parametrize("carries", [False, True])
def test_the_length_of_what_is_stored_is_read_from_its_manifest(
    store: ContentStore, tmp_path: Path, values: np.ndarray, carries: bool
) -> None:
    beside = store_carry(store, [np.zeros(3 * N, np.float32)]) if carries else None
    cid = store_payload(store, [values], INT8_FORMAT, beside)
    manifests = DirectoryStore(tmp_path / "manifests")
    assert manifests.put_node(store.get_node(cid)) == cid
    assert stored_length(manifests, cid, LAYOUT, carries=carries) == stored_bytes(store, cid), "the carry's link alone"


def test_the_last_piece_decides_as_the_first_does(store: ContentStore) -> None:
    values = quantised(RNG.standard_normal(LARGE))
    values[-1] = np.float32(np.pi)
    assert store.get_node(store_payload(store, [values], INT8_FORMAT))["format"] == "f32"


@pytest.mark.slow
def test_a_payload_is_stored_in_pieces(store: ContentStore) -> None:
    values = quantised(RNG.standard_normal(64 * PIECE))
    tracemalloc.start()
    cid = store_payload(store, [values], INT8_FORMAT)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Its codes, a quarter of it, and a few pieces.
    assert peak < 0.25 * values.nbytes + 16 * 4 * PIECE, f"{peak} bytes for {values.nbytes}"
    tracemalloc.start()
    (back,) = load_payload(store, cid, [TensorHeader(F32, values.shape)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * 4 * PIECE, f"{peak} bytes to read {values.nbytes}"
    assert np.array_equal(back, values), "bit for bit"


def test_a_cut_manifest_is_refused_before_it_is_parsed(store: ContentStore) -> None:
    data = encode_payload([np.zeros(N, np.float32)], name=store.put)
    for cut in (1, 40, -1):
        with pytest.raises(PayloadInvalid, match="bytes, not"):
            load_payload(store, store.put(data[:cut], codec="dag-cbor"), LAYOUT)


@pytest.mark.parametrize("size", [N - BLOCK, N + BLOCK, LARGE])
def test_a_blob_of_another_length_is_refused_by_its_root(store: ContentStore, size: int) -> None:
    blob = store.put(bytes(4 * size))
    fetched: list[Cid] = []
    fetch = store.fetch_block
    store.fetch_block = lambda cid: (fetched.append(cid), fetch(cid))[1]  # type: ignore[method-assign]
    cid = manifest(store, format="f32", tensors=[link_of(blob)])
    with pytest.raises(PayloadInvalid, match=f"{4 * size} bytes where {4 * N} are due") as caught:
        load_payload(store, cid, LAYOUT)
    assert caught.value.hint, "a refusal says what to do"
    assert fetched == [cid, blob], "nothing but roots was read"


def test_a_blob_cut_into_crumbs_is_refused(store: ContentStore) -> None:
    from lockstep.storage.dagpb import FileNode, Link

    crumb = store.put(bytes(4))
    node = FileNode((Link(crumb, 4, 4),) * N)
    blob = cid_of_block(node.encode(), "dag-pb")
    fetch = store.fetch_block
    store.fetch_block = lambda cid: node.encode() if cid == blob else fetch(cid)  # type: ignore[method-assign]
    with pytest.raises(PayloadInvalid, match="leaf of 4 bytes"):
        load_payload(store, manifest(store, format="f32", tensors=[link_of(blob)]), LAYOUT)


def test_what_a_manifest_must_not_be(store: ContentStore) -> None:
    blob = link_of(store.put(bytes(4 * N)))
    for fields in (
        {"format": "f33", "tensors": [blob]},
        {"format": 132, "tensors": [blob, 1]},
        {"formax": "f32", "tensors": [blob]},
        {"format": "f32", "tensorz": [blob]},
        {"format": "f32", "tensors": [bytes(39)]},
        {"format": "f32", "tensors": [b"\0" * 19, b"\0" * 17]},
    ):
        cid = manifest(store, **fields)
        with pytest.raises(PayloadInvalid):
            load_payload(store, cid, LAYOUT)
    assert len(store.fetch_block(cid)) > 40, "the last has about the length that is due"
    with pytest.raises(PayloadInvalid, match="bytes, not"):
        load_payload(store, store.put(b"words"), LAYOUT)
    with pytest.raises(UsageError):
        load_payload(store, "no cid", LAYOUT)


def test_a_blob_that_nobody_holds_is_missing(store: ContentStore) -> None:
    cid = manifest(store, format="f32", tensors=[link_of(cid_of(bytes(4 * N)))])
    with pytest.raises(BlobMissing):
        load_payload(store, cid, LAYOUT)


def test_integer_tensors_travel_as_words(store: ContentStore) -> None:
    layout = [TensorHeader(I32, (3,)), TensorHeader(F32, ())]
    tensors = (np.array([1, -2, 3], np.int32), np.array(2.5, np.float32))
    back = load_payload(store, store_payload(store, tensors, INT8_FORMAT), layout)
    assert [b.tobytes() for b in back] == [t.tobytes() for t in tensors]
    assert back[1].shape == ()


CARRY = [None, TensorHeader(F32, (5,)), TensorHeader(I32, ())]


def test_a_carry_lies_as_words_in_a_container_of_its_own(store: ContentStore) -> None:
    values, own = quantised(RNG.standard_normal(N)), RNG.standard_normal(5).astype(np.float32)
    carry = store_carry(store, [own, np.array(3, np.int32)])
    cid = store_payload(store, [values], INT8_FORMAT, carry)
    alone = wire_length(LAYOUT, INT8_FORMAT)
    assert stored_bytes(store, cid) == wire_length(LAYOUT, INT8_FORMAT, carries=True) == alone + LINK
    assert stored_bytes(store, carry) == wire_length(CARRY, "f32")
    assert [b.tobytes() for b in load_payload(store, cid, LAYOUT, carries=True)] == [values.tobytes()]
    assert [b.tobytes() for b in load_carry(store, cid, LAYOUT, CARRY)] == [own.tobytes(), b"\3\0\0\0"]


def test_a_withheld_or_false_carry_leaves_the_payload_as_it_is(store: ContentStore) -> None:
    values = quantised(RNG.standard_normal(N))
    other = store_carry(store, [np.zeros(4, np.float32), np.array(3, np.int32)])
    whole = store_payload(store, [values], INT8_FORMAT, other)
    for beside, refused in ((cid_of(b"nowhere"), BlobMissing), (other, PayloadInvalid), (whole, PayloadInvalid)):
        cid = store_payload(store, [values], INT8_FORMAT, beside)
        assert load_payload(store, cid, LAYOUT, carries=True)[0].tobytes() == values.tobytes()
        with pytest.raises(refused):
            load_carry(store, cid, LAYOUT, CARRY)


def test_a_payload_names_a_carry_if_its_job_has_one_and_only_then(store: ContentStore) -> None:
    values = quantised(RNG.standard_normal(N))
    for carries, beside in ((True, None), (False, cid_of(b"carry"))):
        with pytest.raises(PayloadInvalid, match="bytes, not"):
            load_payload(store, store_payload(store, [values], INT8_FORMAT, beside), LAYOUT, carries=carries)


# -- other formats

SPARSE = "sparse-256-16-2-128-ranked-ranked"


def sparse(n: int) -> np.ndarray:
    """As top-k with two bits leaves a tensor: 16 of 256, four levels, one of them -0."""
    values = np.zeros(n, np.float32)
    for first in range(0, n, 256):
        at = first + RNG.choice(min(256, n - first), 16, replace=False)
        values[at] = RNG.choice(np.array([-2, -0.0, 0.5, 3], np.float32), 16)
    return values


@pytest.mark.parametrize("form", ["f16", "sign-64", "palette-2-1024", "sparse-256-16-2-128-listed-listed", SPARSE])
def test_a_payload_travels_in_its_strategy_s_format(store: ContentStore, form: str) -> None:
    tensors = {
        "f16": RNG.standard_normal(N).astype(np.float16).astype(np.float32),
        "sign-64": np.where(RNG.random(N) < 0.5, -1, 1).astype(np.float32) * np.float32(0.3),
        "palette-2-1024": RNG.choice(np.array([-1, 0, 1, 7], np.float32), N),
    }
    values = tensors.get(form, sparse(N) if form.startswith("sparse") else np.zeros(N, np.float32))
    cid = store_payload(store, [values], form)
    node = store.get_node(cid)
    assert node["format"] == form
    assert ("lengths" in node) == (form == SPARSE)
    due, sent = wire_length(LAYOUT, form), stored_bytes(store, cid)
    assert sent == due or (form == SPARSE and sent < due)
    for fresh in (False, True):
        (back,) = load_payload(store, cid, LAYOUT, wire_format=form, fresh=fresh)
        assert back.tobytes() == values.tobytes()
    with pytest.raises(PayloadInvalid):
        load_payload(store, cid, LAYOUT)


def test_another_format_than_the_job_s_is_refused(store: ContentStore) -> None:
    cid = store_payload(store, [quantised(RNG.standard_normal(N))], INT8_FORMAT)
    for form in ("sign-64", SPARSE, "f32"):
        with pytest.raises(PayloadInvalid):
            load_payload(store, cid, LAYOUT, wire_format=form)


def test_what_a_format_cannot_carry_travels_as_words(store: ContentStore) -> None:
    values = RNG.standard_normal(N).astype(np.float32)
    for form in ("sign-64", SPARSE):
        cid = store_payload(store, [values], form)
        assert store.get_node(cid)["format"] == "f32"
        assert load_payload(store, cid, LAYOUT, wire_format=form)[0].tobytes() == values.tobytes()
    with pytest.raises(PayloadInvalid, match="is unknown"):
        store_payload(store, [values], "sparse-7")


def test_stated_lengths_are_bounded_before_anything_is_fetched(store: ContentStore) -> None:
    cid = store_payload(store, [sparse(N)], SPARSE)
    node = store.get_node(cid)
    (stated,) = np.frombuffer(node["lengths"], "<u4")
    fetched: list[Cid] = []
    fetch = store.fetch_block
    store.fetch_block = lambda c: (fetched.append(c), fetch(c))[1]  # type: ignore[method-assign]
    for wrong in (0, 3, 10**6, 2**32 - 1):
        lie = store.put_node({**node, "lengths": np.array([wrong], "<u4").tobytes()})
        with pytest.raises(PayloadInvalid, match="lengths"):
            load_payload(store, lie, LAYOUT, wire_format=SPARSE)
        assert fetched.pop() == lie
        assert not fetched, "the manifest alone was read"
    lie = store.put_node({**node, "lengths": np.array([stated - 1], "<u4").tobytes()})
    with pytest.raises(PayloadInvalid):
        load_payload(store, lie, LAYOUT, wire_format=SPARSE)


@pytest.mark.parametrize("form", ["sign-64", SPARSE])
def test_a_large_tensor_is_decoded_once_for_the_machine(store: ContentStore, form: str) -> None:
    values = sparse(LARGE) if form == SPARSE else np.full(LARGE, -0.25, np.float32)
    cid = store_payload(store, [values], form)
    for _ in range(2):
        (back,) = load_payload(store, cid, [TensorHeader(F32, (LARGE,))], wire_format=form)
        assert back.tobytes() == values.tobytes()
        assert not back.flags.writeable


def test_more_tensors_than_a_manifest_names_are_refused() -> None:
    with pytest.raises(UsageError, match=f"{MAX_TENSORS + 1} tensors"):
        encode_payload([np.zeros(1, np.float32)] * (MAX_TENSORS + 1))
    with pytest.raises(PayloadInvalid, match="float64"):
        encode_payload([np.zeros(1)])


SHARED, OUTER = [TensorHeader(F32, (N,)), None], [TensorHeader(F32, (N,)), TensorHeader(F32, (2,))]


def test_checkpoint_comes_back(store: ContentStore) -> None:
    values = RNG.standard_normal(N).astype(np.float32)
    kept = Checkpoint((values,), (values * 2, values[:2]))
    cid = store_checkpoint(store, kept)
    assert cid == cid_of_block(encode_checkpoint(kept), "dag-cbor"), "its name is known before it is stored"
    back = load_checkpoint(store, cid, SHARED, OUTER)
    assert [len(back.shared), len(back.outer)] == [1, 2]
    assert back.outer[0].tobytes() == (values * 2).tobytes()


def test_what_is_no_checkpoint_is_a_mismatch(store: ContentStore) -> None:
    good = encode_checkpoint(Checkpoint((np.zeros(N, np.float32),), (np.zeros(N, np.float32),) * 2), store.put)
    for data in (
        b"",
        b"\xa0",
        b"\x81" * len(good),
        dag_cbor.encode({"shared": [], "outer": []}),
        dag_cbor.encode({"shared": None, "outer": [bytes(39)] * 3}),
        good.replace(b"fshared", b"fsharex"),
        # Three blobs, but the last of another length.
        good,
    ):
        with pytest.raises(Mismatch, match="a checkpoint"):
            load_checkpoint(store, store.put(data, codec="dag-cbor"), SHARED, OUTER)


def test_a_damaged_file_of_the_cache_is_fetched_again(store: ContentStore) -> None:
    header = TensorHeader(F32, (LARGE,))
    values = quantised(RNG.standard_normal(LARGE))
    plain, coded = store_payload(store, [values]), store_payload(store, [values], INT8_FORMAT)
    for cid in (plain, coded):
        load_payload(store, cid, [header])
    for path in store.cache.folder.iterdir():
        words = bytearray(path.read_bytes())
        words[77] ^= 1
        path.write_bytes(words)
    for cid in (plain, coded):
        assert load_payload(store, cid, [header])[0].tobytes() != values.tobytes(), "the disk is believed"
        assert load_payload(store, cid, [header], fresh=True)[0].tobytes() == values.tobytes(), "until a root tells"
