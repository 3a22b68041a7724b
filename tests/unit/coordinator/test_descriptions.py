"""What the API reads of a stranger's Program to describe its job."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dag_cbor
import numpy as np
import pytest

from coordinator import descriptions
from coordinator.descriptions import Descriptions
from lockstep.protocol.types import Cid
from lockstep.storage.containers import JobSpec, encode_program
from lockstep.storage.dataset import Dataset, store_dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.fields import RowField, RowForm
from lockstep.storage.links import link_of
from tests.support import toyjob
from tests.support.waiting import wait

WORDS = 1 << 17


def test_no_constant_is_fetched_of_a_program_with_many(tmp_path: Path) -> None:
    fetched: list[Cid] = []

    class Counting(DirectoryStore):
        def fetch_block(self, cid: Cid) -> bytes:
            fetched.append(cid)
            return super().fetch_block(cid)

    store = Counting(tmp_path)
    blob = store.put(bytes(4 * WORDS))
    const = {"dtype": 0, "shape": [WORDS], "cid": link_of(blob)}
    many = descriptions.PROGRAM_BYTES // (4 * WORDS) + 1
    file = store.put(
        dag_cbor.encode({"header": b"LSP1", "ops": [], "consts": [const] * many, "names": [], "places": []})
    )
    spec = JobSpec(dict.fromkeys(("step", "encode", "merge"), file), blob, blob, {"model": "x"}, (), {"name": "y"})
    store.put(spec.encode(), codec="dag-cbor")
    role = {"step_program": "0x" + bytes(32).hex()}
    job: Any = SimpleNamespace(params={"spec": {"digest": "0x" + spec.digest.hex()}, "roles": [role]})
    assert Descriptions(store, wait_seconds=60).of(job) is None
    assert file in fetched, "its file was read"
    assert blob not in fetched


def test_the_fields_of_a_jobs_rows_are_described_where_its_manifest_can_be_had(tmp_path: Path) -> None:
    store, step = DirectoryStore(tmp_path), toyjob.step_program()
    file = store.put(encode_program(step, store.put))
    form = RowForm("dict", (RowField("x", "float32", (8,)), RowField("<y>", "int64")))
    fields = store_dataset(store, Dataset(np.zeros((2, form.words), np.int32), 0, form=form))
    for cid, due in (
        (fields, "x float32[8], <y> int64[]"),
        (store_dataset(store, toyjob.dataset()), None),
        (store.put(b"x"), None),
    ):
        spec = JobSpec(dict.fromkeys(("step", "encode", "merge"), file), cid, file, {"model": "x"}, (), {"name": "y"})
        store.put(spec.encode(), codec="dag-cbor")
        role = {"step_program": "0x" + step.root.hex()}
        job: Any = SimpleNamespace(params={"spec": {"digest": "0x" + spec.digest.hex()}, "roles": [role]})
        found = Descriptions(store, wait_seconds=60).of(job)
        assert found is not None
        assert (found.model, found.rows) == ("x", due)


def test_a_manifest_that_could_not_be_had_is_asked_for_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, step, now = DirectoryStore(tmp_path / "store"), toyjob.step_program(), [0.0]
    monkeypatch.setattr(descriptions, "time", SimpleNamespace(monotonic=lambda: now[0]))
    form = RowForm("dict", (RowField("x", "float32", (8,)),))
    rows = Dataset(np.zeros((2, form.words), np.int32), 0, form=form)
    file, dataset = store.put(encode_program(step, store.put)), store_dataset(DirectoryStore(tmp_path / "else"), rows)
    spec = JobSpec(dict.fromkeys(("step", "encode", "merge"), file), dataset, file, {}, (), {}, title="Night owls")
    store.put(spec.encode(), codec="dag-cbor")
    role = {"step_program": "0x" + step.root.hex()}
    job: Any = SimpleNamespace(params={"spec": {"digest": "0x" + spec.digest.hex()}, "roles": [role]})
    found = Descriptions(store, wait_seconds=60)

    def told() -> tuple[str, str | None]:
        shown = found.of(job)
        assert shown is not None
        return shown.title, shown.rows

    assert told() == ("Night owls", None)
    assert store_dataset(store, rows) == dataset
    now[0] = descriptions.AGAIN_SECONDS - 1
    assert [told() for _ in range(3)] == [("Night owls", None)] * 3
    assert not found._pending, "nothing is asked before its time"
    now[0] += 1
    told()
    wait(lambda: not found._pending, "the manifest", 0.01)
    assert told() == ("Night owls", "x float32[8]")
