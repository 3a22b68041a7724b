"""`train why`, `status` and `watch` of a job that stands still: one sentence, by the chain alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from lockstep.base.naming import short
from lockstep.base.settings import DEFAULTS, resolve
from lockstep.cli import why
from lockstep.cli.why import SILENCE_SECONDS, Silence, impatient
from lockstep.client import Network
from lockstep.protocol.errors import Unreachable
from lockstep.protocol.jobs import Phase
from tests.support.world import World

from .conftest import Lockstep

NOBODY = "http://127.0.0.1:9"
"""The discard port: nobody listens."""


@pytest.fixture
def world(lockstep: Lockstep) -> Iterator[World]:
    """A job on a chain in memory, which commands find; the clock of this machine stands at its first block."""
    made = World.start(slots=3, min_slots=2, rounds=2)
    made.contracts.addresses.save(Path("deployment.json"))
    yield made
    made.devnet.stop()


def places(world: World, storage: str = "") -> dict[str, str]:
    folder = Path.cwd()
    return {
        "rpc": world.devnet.url, "deployment": str(folder / "deployment.json"), "home": str(folder / "home"),
        "storage": storage or f"dir://{folder}/blocks",
    }  # fmt: skip


def where(world: World, storage: str = "") -> list[str]:
    return [word for name, value in places(world, storage).items() for word in (f"--{name}", value)]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's time is the chain's."""
    monkeypatch.setattr(why.time, "time", lambda: 1_800_000_000.0)


def test_why_is_one_sentence_and_status_ends_with_it(lockstep: Lockstep, world: World) -> None:
    world.to(Phase.TRAINING)
    told = lockstep("train", "why", world.job.hex()[:8], *where(world))
    assert (told.code, told.err, told.out.count("\n")) == (0, "", 1)
    assert "round 0 trains: 3 of 3 slots have not committed" in told.out
    data = lockstep("train", "why", world.job.hex(), *where(world), "--json").data
    assert (data["job"], data["obstacles"], data["waiting"]["sentence"] + "\n") == (world.job.hex(), [], told.out)
    status = lockstep("train", "status", world.job.hex(), *where(world))
    assert status.out.splitlines()[0] == f"job    {short(world.job)}, active: 0 of 2 rounds settled, 1 started"
    assert status.out.splitlines()[1].count(" LST") == 3
    assert status.out.splitlines()[2] == f"waits  {told.out.strip()}"
    said = lockstep("train", "status", world.job.hex(), *where(world), "--json").data
    assert said["waiting"] == data["waiting"]


def test_a_store_that_is_gone_is_a_reason_and_no_error(lockstep: Lockstep, world: World) -> None:
    told = lockstep("train", "why", world.job.hex(), *where(world, NOBODY))
    assert told.code == 0, told.err
    waits, obstacle = told.out.splitlines()
    assert "no worker has taken the job" in waits
    assert "the job's parts cannot be read from here" in obstacle
    (error,) = lockstep("train", "why", world.job.hex(), *where(world, NOBODY), "--json").data["obstacles"]
    assert error["code"] == "unreachable"
    assert lockstep("train", "status", world.job.hex(), *where(world, NOBODY)).code == 0


def test_a_chain_that_stands_still_is_seen_by_this_machine_s_clock(
    lockstep: Lockstep, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why.time, "time", lambda: world.now + 301.0)
    assert "no block for 5 min 1 s" in lockstep("train", "why", world.job.hex(), *where(world)).out


def test_a_watch_that_hears_nothing_says_why_ever_more_rarely(
    lockstep: Lockstep, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise Unreachable("nobody answers", "see --rpc")

    passed = [0.0]
    handle = Network.at(resolve(**places(world))).find(world.job.hex())
    silence = Silence(handle, lambda: passed[0])
    told = []
    for second in range(200):
        passed[0] = float(second)
        told += [(second, line) for line in silence.explanation()]
    assert [at for at, _ in told] == [30, 90], "after 30 s, 60 more, 120 more"
    assert "no worker has taken the job" in told[0][1]
    passed[0] = 230.0
    assert "no block for 3 min 20 s" in silence.explanation()[0], "since the first look, whatever time the chain has"
    silence.broken()
    passed[0] += SILENCE_SECONDS[0] - 1
    assert silence.explanation() == []
    monkeypatch.setattr(why, "explained", refused)
    passed[0] += 1
    assert silence.explanation() == ["nothing can be read at present: nobody answers; see --rpc"], "and it goes on"


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_watch_tells_a_silence_and_goes_on(
    lockstep: Lockstep, world: World, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    def explanation(_: Silence) -> list[str]:
        if not world.ledger().jobs[world.job].rounds:
            world.to(Phase.FINAL)
            world.to(Phase.FINAL, 1)
            world.send(world.contracts.market.finish(world.job), "requester")
            world.devnet.mine(int(DEFAULTS["finality"]))
            return ["it waits for workers"]
        return []

    monkeypatch.setattr(Silence, "explanation", explanation)
    ended = lockstep("train", "watch", world.job.hex(), "--no-loss", *where(world), *form)
    assert ended.code == 0, ended.err
    told = ended.err if form else ended.out
    assert told.count("it waits for workers\n") == 1
    assert ("JobDone" if form else "the job is done") in ended.out.splitlines()[-1]


def test_an_impatient_reader_gets_every_item_and_none_between() -> None:
    heard, gone = threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        heard.wait()
        yield 2
        gone.wait()
        raise Unreachable("nobody answers")

    found: list[int | None] = []

    def read() -> None:
        for each in impatient(slow(), 0.01):
            found.append(each)
            if each is None and 1 in found:
                (gone if 2 in found else heard).set()

    with pytest.raises(Unreachable):
        read()
    assert [each for each in found if each is not None] == [1, 2]
    assert None in found[found.index(1) : found.index(2)], "it was told that nothing came"
