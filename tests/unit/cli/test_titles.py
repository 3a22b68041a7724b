"""`train list`, `status` and `watch` call a job by its title, and do without one if the storage does not tell it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.base.naming import short
from lockstep.base.settings import DEFAULTS
from lockstep.cli import why
from lockstep.cli.why import titles_of
from lockstep.client import JobHandle
from lockstep.protocol.errors import BlobMissing
from lockstep.protocol.types import Cid
from lockstep.storage.containers import JobSpec
from lockstep.storage.directory import DirectoryStore
from tests.support.world import World

from .conftest import Lockstep

SPEC = JobSpec({}, Cid("a"), Cid("b"), {}, (), {}, title="Night owls: 你好")
NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""


@pytest.fixture
def world(lockstep: Lockstep) -> Iterator[World]:
    """A job with a title, which commands find."""
    made = World.start(spec_digest=SPEC.digest)
    made.contracts.addresses.save(Path("deployment.json"))
    DirectoryStore(Path("blocks").absolute()).put(SPEC.encode(), codec="dag-cbor")
    yield made
    made.devnet.stop()


def where(world: World, storage: str = "") -> list[str]:
    """The settings of a command."""
    folder = Path.cwd()
    return [
        "--rpc",
        world.devnet.url,
        "--deployment",
        str(folder / "deployment.json"),
        "--storage",
        storage or f"dir://{folder}/blocks",
    ]


def test_a_list_and_a_status_show_the_title(lockstep: Lockstep, world: World) -> None:
    listed = lockstep("train", "list", *where(world))
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.endswith(f"  {world.address('requester')}  {SPEC.title}\n")
    assert [row["title"] for row in lockstep("train", "list", *where(world), "--json").data] == [SPEC.title]
    status = lockstep("train", "status", world.job.hex(), *where(world))
    assert status.out.splitlines()[0] == f"title  {SPEC.title}"
    assert lockstep("train", "status", world.job.hex(), *where(world), "--json").data["title"] == SPEC.title


def test_a_watch_begins_with_the_title(lockstep: Lockstep, world: World) -> None:
    for call in (world.contracts.market.cancel(world.job), world.contracts.market.finish(world.job)):
        world.send(call, "requester")
    world.devnet.mine(int(DEFAULTS["finality"]))
    watched = lockstep("train", "watch", world.job.hex(), "--no-loss", *where(world))
    assert watched.out.splitlines()[0] == f"job {short(world.job)}: {SPEC.title}"


def test_a_storage_that_does_not_answer_takes_nothing_but_the_title(lockstep: Lockstep, world: World) -> None:
    status = lockstep("train", "status", world.job.hex(), *where(world, NOBODY))
    assert (status.code, status.out.splitlines()[0]) == (
        0, f"job    {short(world.job)}, active: 0 of 2 rounds settled, 0 started"
    )  # fmt: skip
    assert lockstep("train", "status", world.job.hex(), *where(world, NOBODY), "--json").data["title"] == ""


def test_no_title_is_waited_for_after_one_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle:
        def __init__(self, title: str | None) -> None:
            self.known = title

        @property
        def title(self) -> str:
            if self.known is None:
                gone.wait()
            if not self.known:
                raise BlobMissing("it is not stored")
            return self.known

    gone = threading.Event()
    monkeypatch.setattr(why, "TITLE_SECONDS", 0.2)
    handles: list[JobHandle] = [Handle(title) for title in ("a", "", "b", None, "c")]  # type: ignore[misc]
    assert titles_of(handles) == ["a", "", "b", "", ""]
    gone.set()
    assert titles_of([]) == []
