"""What the API reads of a stranger's Program to describe its job."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dag_cbor

from coordinator import descriptions
from coordinator.descriptions import Descriptions
from lockstep.protocol.types import Cid
from lockstep.storage.containers import JobSpec
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.links import link_of

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
