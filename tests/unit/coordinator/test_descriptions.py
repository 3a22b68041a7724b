"""What the API reads of a stranger's Program to describe its job."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dag_cbor
import numpy as np

from coordinator import descriptions
from coordinator.descriptions import Descriptions
from lockstep.protocol.types import Cid
from lockstep.storage import Dataset, store_dataset
from lockstep.storage.containers import JobSpec, encode_program
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.fields import RowField, RowForm
from lockstep.storage.links import link_of
from tests.support import toyjob

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
